/* test_gguf_python.c - our reader and writer against the `gguf` package for Python, in both directions.
 * Skipped (77) where the package is not installed. SPDX-License-Identifier: MIT */
#include <glob.h>
#include "unit/gguf/gguf_image.h"
#include "unit/gguf/python_check.h"

static uint64_t fnv(const unsigned char *p, uint64_t n)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (uint64_t i = 0; i < n; ++i) h = (h ^ p[i]) * UINT64_C(0x100000001b3);
    return h;
}

/* String arrays: the package shows the strings without their lengths. */
static uint64_t hash_value(const struct bpi_gguf *g, const struct bpi_gguf_kv *kv)
{
    if (kv->kind != BPI_GGUF_ARRAY || kv->elem_kind != BPI_GGUF_STRING)
        return fnv(kv->value, kv->value_bytes);
    struct bpi_span *all = bpi_calloc(kv->count, sizeof *all);
    struct bpi_buf joined = {0};
    ck_assert_ptr_nonnull(all);
    ck_assert_int_eq(bpi_gguf_arr_strings(g, kv, all, NULL), BP_OK);
    for (uint64_t i = 0; i < kv->count; ++i) bpi_buf_append(&joined, all[i].data, all[i].n);
    ck_assert(!joined.failed);
    uint64_t h = fnv((const unsigned char *)joined.data, joined.len);
    bpi_buf_free(&joined);
    bpi_free(all);
    return h;
}

static void compare(const char *path)
{
    struct bpi_gguf *g = NULL;
    struct bp_error err = BP_ERROR_INIT;
    ck_assert_msg(bpi_gguf_open(path, &g, &err) == BP_OK, "%s", err.msg);
    FILE *f = fopen("listing.txt", "w");
    ck_assert_ptr_nonnull(f);
    for (uint64_t i = 0; i < bpi_gguf_n_kv(g); ++i) {
        const struct bpi_gguf_kv *kv = bpi_gguf_kv_at(g, i);
        fprintf(f, "key %.*s %s", (int)kv->key.n, kv->key.data, bpi_gguf_kind_name(kv->kind));
        if (kv->kind == BPI_GGUF_ARRAY)
            fprintf(f, " of %s", kv->count > 0 ? bpi_gguf_kind_name(kv->elem_kind) : "-");
        fprintf(f, " %llu %016llx\n", (unsigned long long)kv->count,
                (unsigned long long)hash_value(g, kv));
    }
    for (uint64_t i = 0; i < bpi_gguf_n_tensors(g); ++i) {
        const struct bpi_gguf_tensor *t = bpi_gguf_tensor_at(g, i);
        fprintf(f, "tensor %s %u %lld %lld %lld %lld %llu %llu %016llx\n", t->name, t->type,
                (long long)t->ne[0], (long long)t->ne[1], (long long)t->ne[2], (long long)t->ne[3],
                (unsigned long long)t->n_bytes, (unsigned long long)t->offset,
                (unsigned long long)fnv(t->data, t->n_bytes < 64 ? t->n_bytes : 64));
    }
    ck_assert_int_eq(fclose(f), 0);
    bpi_gguf_close(g);
    ck_assert_int_eq(python_check("list '%s' listing.txt", path), 0);
}

START_TEST(package_reads_ours)
{
    struct image m = {0};
    struct bpi_gguf *g;
    struct bpi_gguf_writer *w;
    struct bp_error err;
    unsigned char *copy, blocks[144];
    for (unsigned i = 0; i < sizeof blocks; ++i) blocks[i] = (unsigned char)(7 * i);
    img_small(&m);
    ck_assert_int_eq(img_open(m.p, m.n, &copy, &g, &err), BP_OK);
    ck_assert_int_eq(bpi_gguf_writer_create(&w, &err), BP_OK);
    for (uint64_t i = 0; i < bpi_gguf_n_kv(g); ++i)
        (void)bpi_gguf_put_copy(w, bpi_gguf_kv_at(g, i));
    (void)bpi_gguf_put_bool(w, "put.bool", false);
    (void)bpi_gguf_put_u64(w, "put.u64", 12345678901234u);
    (void)bpi_gguf_put_f32(w, "put.f32", 0.25f);
    (void)bpi_gguf_put_tensor(w, "odd", BP_GGUF_F32, 2, (const int64_t[]){3, 5}, blocks, 60);
    (void)bpi_gguf_put_tensor(w, "q4_k", BP_GGUF_Q4_K, 2, (const int64_t[]){256, 1}, blocks, 144);
    (void)bpi_gguf_put_tensor(w, "q8_0", BP_GGUF_Q8_0, 3, (const int64_t[]){32, 2, 2}, blocks, 136);
    ck_assert_msg(bpi_gguf_writer_save(w, "ours.gguf", &err) == BP_OK, "%s", err.msg);
    bpi_gguf_writer_destroy(w);
    bpi_gguf_close(g);
    free(copy);
    img_free(&m);
    compare("ours.gguf");
}
END_TEST

START_TEST(we_read_the_packages)
{
    struct bpi_gguf *g = NULL;
    struct bp_error err = BP_ERROR_INIT;
    struct bpi_span s;
    uint64_t u64;
    int64_t i64;
    float f32;
    ck_assert_int_eq(python_check("write theirs.gguf"), 0);
    compare("theirs.gguf");
    ck_assert_int_eq(bpi_gguf_open("theirs.gguf", &g, &err), BP_OK);
    ck_assert_int_eq(bpi_gguf_get_u64(g, "k.u64", &u64, NULL, &err), BP_OK);
    ck_assert(u64 == UINT64_MAX);
    ck_assert_int_eq(bpi_gguf_get_f32(g, "k.f64", &f32, NULL, &err), BP_OK);
    ck_assert(f32 == -2.25f);
    ck_assert_int_eq(bpi_gguf_get_str(g, "k.str", &s, NULL, &err), BP_OK);
    ck_assert(s.n == 7 && memcmp(s.data,
                                 "gr\xc3\xbc\xc3\x9f"
                                 "e",
                                 7) == 0);
    ck_assert_int_eq(bpi_gguf_arr_i64(g, bpi_gguf_find(g, "k.ints"), 1, &i64, &err), BP_OK);
    ck_assert_int_eq(i64, -2);
    const struct bpi_gguf_tensor *t = bpi_gguf_tensor(g, "f32");
    ck_assert(t->ne[0] == 3 && t->ne[1] == 2);
    bpi_gguf_close(g);
}
END_TEST

START_TEST(both_read_real_files)
{
    glob_t found;
    ck_assert_int_eq(glob(BP_SOURCE_DIR "/tests/data/zoo/*.gguf", 0, NULL, &found), 0);
    ck_assert_uint_ge(found.gl_pathc, 9);
    for (size_t i = 0; i < found.gl_pathc; ++i) compare(found.gl_pathv[i]);
    globfree(&found);
    compare(BP_SOURCE_DIR "/models/bp-tiny-glm-dsa-Q4_K_M.gguf");
}
END_TEST

int main(void)
{
    if (python_check("write probe.gguf") == 77) return 77;
    Suite *s = suite_create("gguf_python");
    TCase *c = tcase_create("all");
    tcase_set_timeout(c, 300);
    tcase_add_test(c, package_reads_ours);
    tcase_add_test(c, we_read_the_packages);
    tcase_add_test(c, both_read_real_files);
    suite_add_tcase(s, c);
    return img_main(s);
}
