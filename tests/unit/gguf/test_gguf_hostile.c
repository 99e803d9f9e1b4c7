/* test_gguf_hostile.c - images that are wrong in one way each, cut at every byte, and with random damage.
 * Every refusal must have the right status and a message that says what is wrong; memory is limited while they run,
 * so that an allocation of an announced size shows up as a wrong status. SPDX-License-Identifier: MIT */
#include <sys/resource.h>
#include <unistd.h>
#include "base/rng.h"
#include "unit/gguf/gguf_image.h"
#include "unit/gguf/gguf_walk.h"

/* Beyond what the test itself holds. */
enum { MEMORY_ALLOWED = 4 << 20 };

/* The shortest beginnings that the cases share. */
static void one_kv(struct image *m, const char *key, uint32_t kind)
{
    img_header(m, 3, 0, 1);
    img_key(m, key, kind);
}
static void one_tensor(struct image *m, uint32_t n_dim, const uint64_t *ne, uint32_t type,
                       uint64_t offset)
{
    img_header(m, 3, 1, 0);
    img_tensor(m, "w", n_dim, ne, type, offset);
    img_pad(m, 32);
    img_fill(m, 0, 256);
}
static void shape2(struct image *m, uint64_t ne0, uint64_t ne1, uint32_t type)
{
    one_tensor(m, 2, (const uint64_t[]){ne0, ne1}, type, 0);
}
static void two_tensors(struct image *m, const char *a, uint64_t at_a, const char *b, uint64_t at_b)
{
    img_header(m, 3, 2, 0);
    img_tensor2(m, a, 8, 2, BP_GGUF_F32, at_a);
    img_tensor2(m, b, 8, 2, BP_GGUF_F32, at_b);
    img_pad(m, 32);
    img_fill(m, 0, 256);
}
static void type_number(struct image *m, uint32_t type)
{
    shape2(m, 256, 1, type);
}
static void alignment(struct image *m, uint32_t v)
{
    img_header(m, 3, 0, 1);
    img_kv_u32(m, "general.alignment", v);
}

#define DIMS(...)                                                                                  \
    (const uint64_t[])                                                                             \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

// clang-format off
/* X(name, status, part of the message, statements that build image m) */
#define HOSTILE_MAP(X)                                                                                                \
    X(empty_image, E_FORMAT, "the file is empty", (void)m)                                                            \
    X(text_file, E_FORMAT, "not a GGUF file (starts with \"Dear reader,\")", img_text(m, "Dear reader, hello"))        \
    X(short_text, E_FORMAT, "not a GGUF file (starts with \"x\")", img_text(m, "x"))                                  \
    X(binary_file, E_FORMAT, "not a GGUF file (starts with bytes 7f 45 4c 46 02)", img_text(m, "\x7f" "ELF\x02"))     \
    X(web_page, E_FORMAT, "this is a web page", img_text(m, "<!DOCTYPE html><html>"))                                 \
    X(lfs_pointer, E_FORMAT, "git lfs pull", img_text(m, "version https://git-lfs.github.com/spec/v1\n"))             \
    X(safetensors, E_FORMAT, "safetensors", img_u64(m, 90); img_text(m, "{\"a\":{}}"))                                \
    X(pytorch, E_FORMAT, "PyTorch", img_text(m, "PK\x03\x04 archive"))                                                \
    X(old_ggml, E_FORMAT, "before GGUF", img_text(m, "tjgg"); img_u32(m, 3))                                          \
    X(swapped_magic, E_FORMAT, "byte-swapped", img_text(m, "FUGG"); img_u32(m, 3))                                    \
    X(two_bytes, E_FORMAT, "magic of the header", img_text(m, "GG"))                                                  \
    X(magic_only, E_FORMAT, "version of the header", img_text(m, "GGUF"))                                             \
    X(version_0, E_FORMAT, "version 0 is unknown", img_header(m, 0, 0, 0))                                            \
    X(version_1, E_UNSUPPORTED, "version 1 is not supported", img_header(m, 1, 0, 0))                                 \
    X(version_4, E_UNSUPPORTED, "version 4 is unknown", img_header(m, 4, 0, 0))                                       \
    X(version_all_ones, E_UNSUPPORTED, "version 4294967295", img_header(m, UINT32_MAX, 0, 0))                         \
    X(big_endian, E_UNSUPPORTED, "big-endian", img_header(m, 0x03000000, 0, 0))                                       \
    X(kv_count_negative, E_FORMAT, "announces 18446744073709551615 metadata records",                                 \
      img_header(m, 3, 0, UINT64_MAX); img_fill(m, 0, 16))                                                            \
    X(kv_count_2_63, E_FORMAT, "metadata records", img_header(m, 3, 0, UINT64_C(1) << 63); img_fill(m, 0, 16))        \
    X(kv_count_one_too_many, E_FORMAT, "hold at most 1", img_header(m, 3, 0, 2); img_fill(m, 0, 25))                  \
    X(kv_count_limit, E_LIMIT, "the limit is 65536", img_header(m, 3, 0, 65537); img_fill(m, 0, 13 * 65537))          \
    X(tensor_count_negative, E_FORMAT, "announces 18446744073709551615 tensors",                                      \
      img_header(m, 3, UINT64_MAX, 0); img_fill(m, 0, 24))                                                            \
    X(tensor_count_2_60, E_FORMAT, "tensors", img_header(m, 3, UINT64_C(1) << 60, 0); img_fill(m, 0, 24))             \
    X(tensor_count_one_too_many, E_FORMAT, "hold at most 1", img_header(m, 3, 2, 0); img_fill(m, 0, 47))              \
    X(key_length_all_ones, E_FORMAT, "key of metadata record 0",                                                      \
      img_header(m, 3, 0, 1); img_u64(m, UINT64_MAX); img_fill(m, 'k', 8))                                            \
    X(key_length_2_63, E_FORMAT, "key of metadata record 0",                                                          \
      img_header(m, 3, 0, 1); img_u64(m, UINT64_C(1) << 63); img_fill(m, 'k', 8))                                     \
    X(key_length_2_31, E_FORMAT, "takes 2147483648 bytes",                                                            \
      img_header(m, 3, 0, 1); img_u64(m, UINT64_C(1) << 31); img_fill(m, 'k', 8))                                     \
    X(key_too_long, E_LIMIT, "the limit is 65535",                                                                    \
      img_header(m, 3, 0, 1); img_u64(m, 65536); img_fill(m, 'k', 65536); img_u32(m, 4); img_u32(m, 1))               \
    X(key_empty, E_FORMAT, "empty key", one_kv(m, "", BPI_GGUF_U32); img_u32(m, 1))                                   \
    X(key_with_zero, E_FORMAT, "zero byte",                                                                           \
      img_header(m, 3, 0, 1); img_u64(m, 3); img_bytes(m, "a\0b", 3); img_u32(m, 4); img_u32(m, 1))                   \
    X(key_twice, E_FORMAT, "metadata record 2 (a) has the same key as record 0",                                      \
      img_header(m, 3, 0, 3); img_kv_u32(m, "a", 1); img_kv_u32(m, "b", 1); img_kv_u32(m, "a", 1))                    \
    X(key_twice_other_kind, E_FORMAT, "the same key",                                                                 \
      img_header(m, 3, 0, 2); img_kv_u32(m, "a", 1); img_kv_str(m, "a", "x"))                                         \
    X(kind_13, E_FORMAT, "metadata record 0 (k) has the unknown kind 13", one_kv(m, "k", 13); img_u64(m, 0))          \
    X(kind_255, E_FORMAT, "unknown kind 255", one_kv(m, "k", 255); img_u64(m, 0))                                     \
    X(kind_missing, E_FORMAT, "kind of metadata record 0 (kkkk)",                                                     \
      img_header(m, 3, 0, 1); img_str(m, "kkkk"); img_fill(m, 0, 1))                                                  \
    X(value_cut, E_FORMAT, "value of metadata record 0 (kk)", one_kv(m, "kk", BPI_GGUF_U64); img_u32(m, 1))           \
    X(string_all_ones, E_FORMAT, "takes 18446744073709551615 bytes",                                                  \
      one_kv(m, "k", BPI_GGUF_STRING); img_u64(m, UINT64_MAX); img_text(m, "abc"))                                    \
    X(string_2_63, E_FORMAT, "value of metadata record 0 (k)",                                                        \
      one_kv(m, "k", BPI_GGUF_STRING); img_u64(m, UINT64_C(1) << 63); img_text(m, "abc"))                             \
    X(string_file_size, E_FORMAT, "value of metadata record 0 (k)",                                                   \
      one_kv(m, "k", BPI_GGUF_STRING); img_u64(m, m->n + 11); img_text(m, "abc"))                                     \
    X(string_one_too_long, E_FORMAT, "takes 4 bytes, but the file ends after 3 more",                                 \
      one_kv(m, "k", BPI_GGUF_STRING); img_u64(m, 4); img_text(m, "abc"))                                             \
    X(array_of_arrays, E_UNSUPPORTED, "array of arrays",                                                              \
      img_header(m, 3, 0, 1); img_array(m, "k", BPI_GGUF_ARRAY, 1); img_u32(m, 4); img_u64(m, 0))                     \
    X(array_kind_13, E_FORMAT, "array of unknown kind 13",                                                            \
      img_header(m, 3, 0, 1); img_array(m, "k", 13, 1); img_u64(m, 0))                                                \
    X(array_all_ones, E_FORMAT, "array of 18446744073709551615 elements",                                             \
      img_header(m, 3, 0, 1); img_array(m, "k", BPI_GGUF_U32, UINT64_MAX); img_u32(m, 4))                             \
    X(array_2_62_wraps, E_FORMAT, "hold at most 1",                                                                   \
      img_header(m, 3, 0, 1); img_array(m, "k", BPI_GGUF_U32, UINT64_C(1) << 62); img_u32(m, 4))                      \
    X(array_2_31, E_FORMAT, "array of 2147483648 elements",                                                           \
      img_header(m, 3, 0, 1); img_array(m, "k", BPI_GGUF_U8, UINT64_C(1) << 31); img_u32(m, 4))                       \
    X(array_one_too_many, E_FORMAT, "array of 3 elements",                                                            \
      img_header(m, 3, 0, 1); img_array(m, "k", BPI_GGUF_U64, 3); img_fill(m, 0, 23))                                 \
    X(strings_too_many, E_FORMAT, "hold at most 1",                                                                   \
      img_header(m, 3, 0, 1); img_array(m, "k", BPI_GGUF_STRING, 2); img_u64(m, 2); img_text(m, "ab"))                \
    X(string_element_all_ones, E_FORMAT, "array element of metadata record 0 (k)",                                    \
      img_header(m, 3, 0, 1); img_array(m, "k", BPI_GGUF_STRING, 2); img_str(m, "ab"); img_u64(m, UINT64_MAX))        \
    X(alignment_zero, E_FORMAT, "general.alignment is 0", alignment(m, 0))                                            \
    X(alignment_24, E_FORMAT, "must be a power of two", alignment(m, 24))                                             \
    X(alignment_2_31, E_LIMIT, "the limit is 1048576", alignment(m, UINT32_C(1) << 31))                               \
    X(alignment_u64, E_FORMAT, "has kind u64; it must be u32",                                                        \
      one_kv(m, "general.alignment", BPI_GGUF_U64); img_u64(m, 32))                                                   \
    X(alignment_string, E_FORMAT, "has kind string",                                                                  \
      img_header(m, 3, 0, 1); img_kv_str(m, "general.alignment", "32"))                                               \
    X(split_in_memory, E_UNSUPPORTED, "one of 2 shards",                                                              \
      one_kv(m, "split.count", BPI_GGUF_U16); img_u16(m, 2))                                                          \
    X(split_count_text, E_FORMAT, "split.count",                                                                      \
      img_header(m, 3, 0, 1); img_kv_str(m, "split.count", "2"))                                                      \
    X(name_too_long, E_LIMIT, "the limit is 63",                                                                      \
      img_header(m, 3, 1, 0); img_u64(m, 64); img_fill(m, 'n', 64); img_fill(m, 0, 64))                               \
    X(name_empty, E_FORMAT, "tensor record 0 has an empty name",                                                      \
      img_header(m, 3, 1, 0); img_tensor2(m, "", 4, 1, 0, 0); img_fill(m, 0, 64))                                     \
    X(name_with_zero, E_FORMAT, "zero byte",                                                                          \
      img_header(m, 3, 1, 0); img_u64(m, 3); img_bytes(m, "a\0b", 3); img_fill(m, 0, 64))                             \
    X(name_twice, E_FORMAT, "tensor 'a' is listed twice, as records 0 and 1", two_tensors(m, "a", 0, "a", 64))        \
    X(dims_0, E_FORMAT, "has 0 dimensions", one_tensor(m, 0, DIMS(1), 0, 0))                                          \
    X(dims_5, E_FORMAT, "tensor record 0 (w) has 5 dimensions", one_tensor(m, 5, DIMS(1, 1, 1, 1, 1), 0, 0))          \
    X(dims_9, E_FORMAT, "has 9 dimensions", one_tensor(m, 9, DIMS(1, 1, 1, 1, 1, 1, 1, 1, 1), 0, 0))                  \
    X(dims_all_ones, E_FORMAT, "has 4294967295 dimensions",                                                           \
      img_header(m, 3, 1, 0); img_str(m, "w"); img_u32(m, UINT32_MAX); img_fill(m, 1, 64))                            \
    X(shape_negative, E_FORMAT, "negative dimension", shape2(m, UINT64_MAX, 2, 0))                                    \
    X(shape_wraps_to_zero, E_FORMAT, "more elements than 64 bits", shape2(m, UINT64_C(1) << 32, UINT64_C(1) << 32, 0)) \
    X(shape_wraps_small, E_FORMAT, "more elements than 64 bits", shape2(m, (UINT64_C(1) << 42) + 256, 1152 << 12, 0)) \
    X(shape_wraps_to_fit, E_FORMAT, "more elements than 64 bits",                                                     \
      one_tensor(m, 3, DIMS(UINT64_C(1) << 62, 4, 64), 0, 0))                                                         \
    X(shape_overflow_behind_zero, E_FORMAT, "more elements than 64 bits",                                             \
      one_tensor(m, 3, DIMS(0, UINT64_C(1) << 40, UINT64_C(1) << 40), 0, 0))                                          \
    X(bytes_overflow, E_FORMAT, "more bytes than 64 bits", shape2(m, UINT64_C(1) << 61, 1, BP_GGUF_F64))              \
    X(row_not_blocks, E_FORMAT, "whole number of blocks", shape2(m, 33, 2, BP_GGUF_Q8_0))                             \
    X(row_not_superblocks, E_FORMAT, "blocks of 256", shape2(m, 128, 2, BP_GGUF_Q4_K))                                \
    X(type_4, E_UNSUPPORTED, "type 4 (Q4_2), which was removed", type_number(m, 4))                                   \
    X(type_33, E_UNSUPPORTED, "type 33 (Q4_0_8_8)", type_number(m, 33))                                               \
    X(type_38, E_UNSUPPORTED, "type 38", type_number(m, 38))                                                          \
    X(type_43, E_UNSUPPORTED, "type 43, which is none of the format's", type_number(m, 43))                           \
    X(type_139_fork, E_UNSUPPORTED, "type 139", type_number(m, 139))                                                  \
    X(type_all_ones, E_UNSUPPORTED, "type 4294967295", type_number(m, UINT32_MAX))                                    \
    X(offset_odd, E_FORMAT, "offset 16, which is no multiple", one_tensor(m, 1, DIMS(4), 0, 16))                      \
    X(offset_wraps, E_FORMAT, "beyond 64 bits", one_tensor(m, 1, DIMS(64), 0, UINT64_MAX - 31))                       \
    X(offset_huge, E_FORMAT, "incomplete download", one_tensor(m, 1, DIMS(64), 0, UINT64_C(1) << 62))                 \
    X(size_huge, E_FORMAT, "incomplete download", shape2(m, UINT64_C(1) << 40, 1 << 20, 0))                           \
    X(no_data_at_all, E_FORMAT, "16 are missing",                                                                     \
      img_header(m, 3, 1, 0); img_tensor(m, "w", 1, DIMS(4), 0, 0); img_pad(m, 32))                                   \
    X(last_byte_missing, E_FORMAT, "and 1 are missing; tensor 'b'",                                                   \
      two_tensors(m, "a", 0, "b", 64); m->n -= 256 - 127)                                                             \
    X(overlap_same, E_FORMAT, "tensors 'a' (bytes", two_tensors(m, "a", 0, "b", 0))                                   \
    X(overlap_part, E_FORMAT, "overlap", two_tensors(m, "a", 0, "b", 32))                                             \
    X(overlap_reversed, E_FORMAT, "overlap", two_tensors(m, "a", 64, "b", 32))

#define BUILDER(name, status, text, ...) static void build_##name(struct image *m) { __VA_ARGS__; }
HOSTILE_MAP(BUILDER)
static const struct { const char *name; int32_t status; const char *text; void (*build)(struct image *m); } hostile[] = {
#define ROW(name, status, text, ...) {#name, BP_##status, text, build_##name},
    HOSTILE_MAP(ROW)
};
// clang-format on

/* Lets this process (a child of check's) have only a little more memory than it has. Sanitizers need far more. */
static void limit_memory(void)
{
#if !defined(BP_SANITIZED)
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    ck_assert(f != NULL && fscanf(f, "%ld", &pages) == 1);
    (void)fclose(f);
    rlim_t bytes = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + MEMORY_ALLOWED;
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &(struct rlimit){bytes, bytes}), 0);
#endif
}

START_TEST(refused)
{
    struct image m = {0};
    struct bpi_gguf *g;
    struct bp_error err;
    unsigned char *copy;
    hostile[_i].build(&m);
    limit_memory();
    int32_t rc = img_open(m.p, m.n, &copy, &g, &err);
    ck_assert_msg(rc == hostile[_i].status, "%s: status %s, want %s; message: %s", hostile[_i].name,
                  bpi_status_name(rc), bpi_status_name(hostile[_i].status), err.msg);
    ck_assert_msg(strstr(err.msg, hostile[_i].text) != NULL, "%s: message '%s' lacks '%s'",
                  hostile[_i].name, err.msg, hostile[_i].text);
    ck_assert_str_eq(err.domain, "gguf");
    ck_assert_str_eq(err.where, "image");
    free(copy);
    img_free(&m);
}
END_TEST

/* Nothing but the whole file opens, and where only data is cut the message counts what is missing. */
START_TEST(cut_anywhere)
{
    struct image m = {0};
    struct bpi_gguf *g;
    struct bp_error err;
    unsigned char *copy;
    img_small(&m);
    ck_assert_int_eq(img_open(m.p, m.n, &copy, &g, &err), BP_OK);
    const uint64_t data_start = bpi_gguf_tensor_at(g, 0)->offset;
    const uint64_t last_start = bpi_gguf_tensor_at(g, 2)->offset;
    bpi_gguf_close(g);
    free(copy);
    for (size_t n = 0; n < m.n; ++n) {
        ck_assert_msg(img_open(m.p, n, &copy, &g, &err) == BP_E_FORMAT, "%zu of %zu bytes: %s", n,
                      m.n, err.msg);
        if (n >= data_start) {
            char missing[80];
            snprintf(missing, sizeof missing, "has %zu bytes and %zu are missing", n, m.n - n);
            ck_assert_msg(strstr(err.msg, missing) != NULL, "cut at %zu: %s", n, err.msg);
            ck_assert_ptr_nonnull(strstr(err.msg, "incomplete download"));
            ck_assert_msg((strstr(err.msg, "'c.weight'") != NULL) == (n >= last_start - 32 + 20),
                          "cut at %zu: %s", n, err.msg);
        }
        free(copy);
    }
    img_free(&m);
}
END_TEST

static void open_and_walk(const unsigned char *p, size_t n, unsigned *n_opened)
{
    struct bpi_gguf *g;
    struct bp_error err;
    unsigned char *copy;
    if (img_open(p, n, &copy, &g, &err) == BP_OK) {
        (void)walk_gguf(g);
        ++*n_opened;
    }
    bpi_gguf_close(g);
    free(copy);
}

START_TEST(every_byte_damaged)
{
    struct image m = {0};
    unsigned n_opened = 0, n_all = 0;
    img_small(&m);
    for (size_t i = 0; i < m.n; ++i) {
        const unsigned char was = m.p[i];
        const unsigned char values[] = {0, 0xff, was ^ 1, was ^ 0x80, (unsigned char)(was + 1)};
        for (size_t k = 0; k < sizeof values; ++k, ++n_all) {
            m.p[i] = values[k];
            open_and_walk(m.p, m.n, &n_opened);
        }
        m.p[i] = was;
    }
    printf("every_byte_damaged: %u of %u images open\n", n_opened, n_all);
    ck_assert_uint_gt(n_opened, 0);
    ck_assert_uint_lt(n_opened, n_all);
    img_free(&m);
}
END_TEST

START_TEST(random_damage)
{
    const uint64_t seed = bpi_now_ns();
    struct bpi_rng rng;
    struct image m = {0};
    unsigned n_opened = 0, n_all = 20000;
    printf("random_damage: seed %llu\n", (unsigned long long)seed);
    fflush(stdout);
    bpi_rng_seed(&rng, seed);
    img_small(&m);
    unsigned char *p = malloc(m.n);
    ck_assert_ptr_nonnull(p);
    for (unsigned round = 0; round < n_all; ++round) {
        memcpy(p, m.p, m.n);
        for (uint64_t k = 1 + bpi_rng_below(&rng, 3); k > 0; --k)
            p[bpi_rng_below(&rng, m.n)] = (unsigned char)bpi_rng_u64(&rng);
        open_and_walk(p, m.n - (bpi_rng_below(&rng, 8) == 0 ? bpi_rng_below(&rng, m.n) : 0),
                      &n_opened);
    }
    printf("random_damage: %u of %u images open\n", n_opened, n_all);
    ck_assert_uint_gt(n_opened, 0);
    ck_assert_uint_lt(n_opened, n_all);
    free(p);
    img_free(&m);
}
END_TEST

/* A caller that wants no message gets the status all the same. */
START_TEST(no_error_wanted)
{
    struct bpi_gguf *g = NULL;
    ck_assert_int_eq(bpi_gguf_open_memory("GGUX", 4, NULL, &g, NULL), BP_E_FORMAT);
    ck_assert_int_eq(bpi_gguf_open("/no/such/file.gguf", &g, NULL), BP_E_IO);
    ck_assert_ptr_null(g);
    bpi_gguf_close(NULL);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("gguf_hostile");
    TCase *c = tcase_create("all");
    tcase_set_timeout(c, 120);
    tcase_add_loop_test(c, refused, 0, (int)BPI_ARRAY_LEN(hostile));
    tcase_add_test(c, cut_anywhere);
    tcase_add_test(c, every_byte_damaged);
    tcase_add_test(c, random_damage);
    tcase_add_test(c, no_error_wanted);
    suite_add_tcase(s, c);
    printf("%zu hostile images\n", BPI_ARRAY_LEN(hostile));
    return img_main(s);
}
