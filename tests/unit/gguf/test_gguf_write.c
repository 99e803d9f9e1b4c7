/* test_gguf_write.c - the writer: exact bytes, round trips of real files, refusals, nothing half-written.
 * SPDX-License-Identifier: MIT */
#include <glob.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>
#include "unit/gguf/gguf_image.h"
#include "unit/gguf/gguf_walk.h"

static struct bp_error err;
static struct bpi_gguf_writer *w;

static void create(void)
{
    err = (struct bp_error)BP_ERROR_INIT;
    ck_assert_int_eq(bpi_gguf_writer_create(&w, &err), BP_OK);
}

static void save(const char *path)
{
    ck_assert_msg(bpi_gguf_writer_save(w, path, &err) == BP_OK, "%s", err.msg);
}

static void expect_bytes(const char *path, const void *want, size_t n)
{
    char *got = NULL;
    size_t got_n = 0;
    ck_assert_msg(bpi_file_read(path, SIZE_MAX / 2, &got, &got_n, &err) == BP_OK, "%s", err.msg);
    ck_assert_uint_eq(got_n, n);
    ck_assert_int_eq(memcmp(got, want, n), 0);
    bpi_free(got);
}

/* Against an image that the test's own builder made. */
START_TEST(exact_bytes)
{
    unsigned char a[34], c[40];
    for (unsigned i = 0; i < sizeof a; ++i) a[i] = (unsigned char)i;
    for (unsigned i = 0; i < sizeof c; ++i) c[i] = (unsigned char)(i * 3);
    create();
    ck_assert_int_eq(bpi_gguf_put_str(w, "general.architecture", "te\0st", 5), BP_OK);
    ck_assert_int_eq(bpi_gguf_put_u32(w, "a.u32", 7), BP_OK);
    ck_assert_int_eq(bpi_gguf_put_u64(w, "a.u64", UINT64_MAX - 1), BP_OK);
    ck_assert_int_eq(bpi_gguf_put_f32(w, "a.f32", -0.5f), BP_OK);
    ck_assert_int_eq(bpi_gguf_put_bool(w, "a.bool", true), BP_OK);
    ck_assert_int_eq(bpi_gguf_put_tensor(w, "a", BP_GGUF_Q8_0, 2, (const int64_t[]){32, 1}, a, 34),
                     BP_OK);
    ck_assert_int_eq(bpi_gguf_put_tensor(w, "none", BP_GGUF_F32, 1, (const int64_t[]){0}, NULL, 0),
                     BP_OK);
    ck_assert_int_eq(bpi_gguf_put_tensor(w, "c", BP_GGUF_F32, 3, (const int64_t[]){5, 2, 1}, c, 40),
                     BP_OK);
    save("exact.gguf");
    bpi_gguf_writer_destroy(w);

    struct image m = {0};
    img_header(&m, 3, 3, 5);
    img_key(&m, "general.architecture", BPI_GGUF_STRING), img_u64(&m, 5),
        img_bytes(&m, "te\0st", 5);
    img_kv_u32(&m, "a.u32", 7);
    img_key(&m, "a.u64", BPI_GGUF_U64), img_u64(&m, UINT64_MAX - 1);
    img_key(&m, "a.f32", BPI_GGUF_F32V), img_f32(&m, -0.5f);
    img_key(&m, "a.bool", BPI_GGUF_BOOL), img_u8(&m, 1);
    img_tensor2(&m, "a", 32, 1, BP_GGUF_Q8_0, 0);
    img_tensor(&m, "none", 1, (const uint64_t[]){0}, BP_GGUF_F32, 64);
    img_tensor(&m, "c", 3, (const uint64_t[]){5, 2, 1}, BP_GGUF_F32, 64);
    img_pad(&m, 32);
    img_bytes(&m, a, sizeof a);
    img_pad(&m, 32);
    img_bytes(&m, c, sizeof c);
    img_pad(&m, 32);
    expect_bytes("exact.gguf", m.p, m.n);
    img_free(&m);
    ck_assert_int_eq(unlink("exact.gguf"), 0);
}
END_TEST

START_TEST(metadata_alone)
{
    struct image m = {0};
    img_header(&m, 3, 0, 1);
    img_kv_u32(&m, "k", 1);
    create();
    ck_assert_int_eq(bpi_gguf_put_u32(w, "k", 1), BP_OK);
    save("alone.gguf");
    save("alone.gguf"); /* again, over the first */
    expect_bytes("alone.gguf", m.p, m.n);
    bpi_gguf_writer_destroy(w);
    bpi_gguf_writer_destroy(NULL);
    img_free(&m);
    ck_assert_int_eq(unlink("alone.gguf"), 0);
}
END_TEST

static void copy_all(const struct bpi_gguf *g)
{
    create();
    for (uint64_t i = 0; i < bpi_gguf_n_kv(g); ++i)
        ck_assert_int_eq(bpi_gguf_put_copy(w, bpi_gguf_kv_at(g, i)), BP_OK);
    for (uint64_t i = 0; i < bpi_gguf_n_tensors(g); ++i) {
        const struct bpi_gguf_tensor *t = bpi_gguf_tensor_at(g, i);
        ck_assert_int_eq(
            bpi_gguf_put_tensor(w, t->name, t->type, t->n_dim, t->ne, t->data, t->n_bytes), BP_OK);
    }
}

/* Files of other writers have the same layout, so a copy has the same bytes. */
START_TEST(copies_of_real_files)
{
    glob_t found;
    ck_assert_int_eq(glob(BP_SOURCE_DIR "/tests/data/zoo/*.gguf", 0, NULL, &found), 0);
    ck_assert_uint_ge(found.gl_pathc, 9);
    for (size_t i = 0; i < found.gl_pathc; ++i) {
        struct bpi_gguf *g = NULL;
        err = (struct bp_error)BP_ERROR_INIT;
        ck_assert_msg(bpi_gguf_open(found.gl_pathv[i], &g, &err) == BP_OK, "%s", err.msg);
        copy_all(g);
        save("copy.gguf");
        bpi_gguf_writer_destroy(w);
        bpi_gguf_close(g);
        struct bpi_map original;
        ck_assert_int_eq(bpi_map_open(found.gl_pathv[i], &original, &err), BP_OK);
        expect_bytes("copy.gguf", original.data, original.n_bytes);
        bpi_map_close(&original);
    }
    globfree(&found);
    ck_assert_int_eq(unlink("copy.gguf"), 0);
}
END_TEST

/* All kinds of values survive, and a source with another alignment and order is laid out anew. */
START_TEST(copy_of_every_kind)
{
    struct image m = {0};
    struct bpi_gguf *g, *again = NULL;
    unsigned char *copy;
    img_small(&m);
    ck_assert_int_eq(img_open(m.p, m.n, &copy, &g, &err), BP_OK);
    copy_all(g);
    save("kinds.gguf");
    bpi_gguf_writer_destroy(w);
    ck_assert_msg(bpi_gguf_open("kinds.gguf", &again, &err) == BP_OK, "%s", err.msg);
    ck_assert_uint_eq(bpi_gguf_n_kv(again), bpi_gguf_n_kv(g));
    for (uint64_t i = 0; i < bpi_gguf_n_kv(g); ++i) {
        const struct bpi_gguf_kv *x = bpi_gguf_kv_at(g, i), *y = bpi_gguf_kv_at(again, i);
        ck_assert(x->key.n == y->key.n && memcmp(x->key.data, y->key.data, x->key.n) == 0);
        ck_assert(x->kind == y->kind && x->elem_kind == y->elem_kind && x->count == y->count);
        ck_assert(x->value_bytes == y->value_bytes &&
                  memcmp(x->value, y->value, x->value_bytes) == 0);
    }
    ck_assert_uint_eq(walk_bytes(bpi_gguf_tensor(again, "c.weight")->data, 24),
                      walk_bytes(m.p + m.n - 24, 24));
    bpi_gguf_close(again);
    bpi_gguf_close(g);
    free(copy);
    img_free(&m);
    ck_assert_int_eq(unlink("kinds.gguf"), 0);
}
END_TEST

START_TEST(alignment_of_the_source)
{
    for (uint32_t align = 16; align <= 64; align *= 2) {
        struct image m = {0};
        struct bpi_gguf *g, *again = NULL;
        unsigned char *copy;
        img_header(&m, 3, 2, 1);
        img_kv_u32(&m, "general.alignment", align);
        img_tensor2(&m, "a", 3, 1, BP_GGUF_I8, 0);
        img_tensor2(&m, "b", 3, 1, BP_GGUF_I8, align);
        img_pad(&m, align);
        img_fill(&m, 1, align);
        img_fill(&m, 2, 3);
        ck_assert_msg(img_open(m.p, m.n, &copy, &g, &err) == BP_OK, "%s", err.msg);
        copy_all(g);
        save("align.gguf");
        bpi_gguf_writer_destroy(w);
        ck_assert_msg(bpi_gguf_open("align.gguf", &again, &err) == BP_OK, "%s", err.msg);
        ck_assert_uint_eq(bpi_gguf_alignment(again, 0), 32);
        ck_assert_uint_eq(bpi_gguf_n_kv(again), align == 32 ? 1 : 0);
        ck_assert_uint_eq(bpi_gguf_tensor(again, "b")->data[2], 2);
        bpi_gguf_close(again);
        bpi_gguf_close(g);
        free(copy);
        img_free(&m);
    }
    ck_assert_int_eq(unlink("align.gguf"), 0);
}
END_TEST

/* ---- refusals: the first one sticks, and the old file stays ---- */

static const int64_t four[] = {4};
static const float data[64];

static int32_t twice_key(void)
{
    (void)bpi_gguf_put_u32(w, "k", 1);
    (void)bpi_gguf_put_f32(w, "k", 1);
    return BP_E_ARG;
}
static int32_t twice_tensor(void)
{
    (void)bpi_gguf_put_tensor(w, "t", BP_GGUF_F32, 1, four, data, 16);
    (void)bpi_gguf_put_tensor(w, "t", BP_GGUF_F32, 1, four, data, 16);
    return BP_E_ARG;
}
static int32_t empty_key(void)
{
    return bpi_gguf_put_u32(w, "", 1);
}
static int32_t long_key(void)
{
    static char key[70000];
    memset(key, 'k', 65536);
    return bpi_gguf_put_u32(w, key, 1);
}
static int32_t wrong_alignment(void)
{
    return bpi_gguf_put_u32(w, "general.alignment", 64);
}
static int32_t long_name(void)
{
    char name[65];
    memset(name, 'n', 64), name[64] = '\0';
    return bpi_gguf_put_tensor(w, name, BP_GGUF_F32, 1, four, data, 16);
}
static int32_t wrong_bytes(void)
{
    return bpi_gguf_put_tensor(w, "t", BP_GGUF_F32, 1, four, data, 15);
}
static int32_t no_data(void)
{
    return bpi_gguf_put_tensor(w, "t", BP_GGUF_F32, 1, four, NULL, 16);
}
static int32_t wrong_type(void)
{
    return bpi_gguf_put_tensor(w, "t", 4, 1, four, data, 16);
}
static int32_t wrong_dims(void)
{
    return bpi_gguf_put_tensor(w, "t", BP_GGUF_F32, 5, four, data, 16);
}
static int32_t wrong_row(void)
{
    return bpi_gguf_put_tensor(w, "t", BP_GGUF_Q8_0, 1, four, data, 16);
}

// clang-format off
static const struct { int32_t (*put)(void); const char *text; } refusals[] = {
    {twice_key, "key 'k' was put twice"}, {twice_tensor, "tensor 't' was put twice"}, {empty_key, "has 0 bytes"},
    {long_key, "has 65536 bytes"}, {wrong_alignment, "alignment 64"}, {long_name, "has 64 bytes"},
    {wrong_bytes, "take 16 bytes; 15 were given"}, {no_data, "0 were given"}, {wrong_type, "unknown type"},
    {wrong_dims, "5 dimensions"}, {wrong_row, "whole number of blocks"},
};
// clang-format on

START_TEST(refused_puts)
{
    struct stat st;
    struct image old = {0};
    img_text(&old, "the old file");
    img_save(&old, "old.gguf");
    create();
    ck_assert_int_eq(refusals[_i].put(), BP_E_ARG);
    (void)bpi_gguf_put_u32(w, "later", 1);
    ck_assert_int_eq(bpi_gguf_writer_save(w, "old.gguf", &err), BP_E_ARG);
    ck_assert_msg(strstr(err.msg, refusals[_i].text) != NULL, "'%s' lacks '%s'", err.msg,
                  refusals[_i].text);
    expect_bytes("old.gguf", old.p, old.n);
    ck_assert_int_eq(bpi_gguf_writer_save(w, "new.gguf", NULL), BP_E_ARG);
    ck_assert_int_ne(stat("new.gguf", &st), 0);
    bpi_gguf_writer_destroy(w);
    img_free(&old);
    ck_assert_int_eq(unlink("old.gguf"), 0);
}
END_TEST

/* No folder, a folder in the place of the file, and a pipe, which must stay a pipe. Not a device of the machine: a
 * writer that is broken would replace it. */
START_TEST(places_that_refuse)
{
    static const char *const paths[] = {"no/such/folder/x.gguf", ".", "pipe.gguf"};
    struct stat st;
    (void)unlink("pipe.gguf");
    ck_assert_int_eq(mkfifo("pipe.gguf", 0600), 0);
    create();
    ck_assert_int_eq(bpi_gguf_put_tensor(w, "t", BP_GGUF_F32, 1, four, data, 16), BP_OK);
    for (size_t i = 0; i < BPI_ARRAY_LEN(paths); ++i) {
        err = (struct bp_error)BP_ERROR_INIT;
        ck_assert_msg(bpi_gguf_writer_save(w, paths[i], &err) == BP_E_IO, "%s", paths[i]);
        ck_assert_str_ne(err.msg, "");
    }
    ck_assert(stat("pipe.gguf", &st) == 0 && S_ISFIFO(st.st_mode));
    bpi_gguf_writer_destroy(w);
    ck_assert_int_eq(unlink("pipe.gguf"), 0);
}
END_TEST

/* A write that fails half-way leaves neither a temporary file nor a changed old one. */
START_TEST(failing_in_the_middle)
{
    char tmp[64];
    struct stat st;
    struct image old = {0};
    img_text(&old, "the old file");
    img_save(&old, "middle.gguf");
    create();
    /* The address is not mapped: the kernel refuses to read from it, as it would a failing disk. */
    ck_assert_int_eq(
        bpi_gguf_put_tensor(w, "t", BP_GGUF_F32, 1, four, (const void *)(uintptr_t)64, 16), BP_OK);
    ck_assert_int_eq(bpi_gguf_writer_save(w, "middle.gguf", &err), BP_E_IO);
    ck_assert_int_ne(err.native, 0);
    snprintf(tmp, sizeof tmp, "middle.gguf.tmp.%ld", (long)getpid());
    ck_assert_int_ne(stat(tmp, &st), 0);
    expect_bytes("middle.gguf", old.p, old.n);
    bpi_gguf_writer_destroy(w);
    img_free(&old);
    ck_assert_int_eq(unlink("middle.gguf"), 0);
}
END_TEST

/* ---- in pieces ---- */

static const unsigned char bytes[100] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17};

static void create_shapes(void)
{
    create();
    (void)bpi_gguf_put_u32(w, "k", 1);
    (void)bpi_gguf_put_shape(w, "a", BP_GGUF_I8, 1, (const int64_t[]){33});
    (void)bpi_gguf_put_shape(w, "none", BP_GGUF_F32, 1, (const int64_t[]){0});
    (void)bpi_gguf_put_shape(w, "b", BP_GGUF_I8, 2, (const int64_t[]){5, 7});
    ck_assert_int_eq(bpi_gguf_writer_status(w, &err), BP_OK);
}

/* Pieces of any size, across the ends of tensors, give the file that whole tensors give, of the size that was told. */
START_TEST(pieces_of_any_size)
{
    struct stat st;
    char *whole = NULL;
    size_t n = 0;
    create();
    (void)bpi_gguf_put_u32(w, "k", 1);
    (void)bpi_gguf_put_tensor(w, "a", BP_GGUF_I8, 1, (const int64_t[]){33}, bytes, 33);
    (void)bpi_gguf_put_tensor(w, "none", BP_GGUF_F32, 1, (const int64_t[]){0}, NULL, 0);
    (void)bpi_gguf_put_tensor(w, "b", BP_GGUF_I8, 2, (const int64_t[]){5, 7}, bytes + 33, 35);
    save("whole.gguf");
    bpi_gguf_writer_destroy(w);
    ck_assert_int_eq(bpi_file_read("whole.gguf", 10000, &whole, &n, &err), BP_OK);
    create_shapes();
    ck_assert_uint_eq(bpi_gguf_writer_bytes(w), n);
    for (uint64_t step = 1; step <= 68; ++step) {
        ck_assert_int_eq(bpi_gguf_writer_begin(w, "pieces.gguf", &err), BP_OK);
        for (uint64_t at = 0; at < 68; at += step) {
            uint64_t take = 68 - at < step ? 68 - at : step;
            ck_assert_int_eq(bpi_gguf_writer_append(w, bytes + at, take, &err), BP_OK);
            ck_assert_int_ne(stat("pieces.gguf", &st), 0);
        }
        ck_assert_msg(bpi_gguf_writer_finish(w, &err) == BP_OK, "%s", err.msg);
        expect_bytes("pieces.gguf", whole, n);
        ck_assert_int_eq(unlink("pieces.gguf"), 0);
    }
    bpi_gguf_writer_destroy(w);
    bpi_free(whole);
    ck_assert_int_eq(unlink("whole.gguf"), 0);
}
END_TEST

START_TEST(pieces_out_of_order)
{
    char tmp[64];
    struct stat st;
    snprintf(tmp, sizeof tmp, "p.gguf.tmp.%ld", (long)getpid());
    create_shapes();
    ck_assert_int_eq(bpi_gguf_writer_append(w, bytes, 1, NULL), BP_E_ARG); /* nothing was begun */
    ck_assert_int_eq(bpi_gguf_writer_finish(w, NULL), BP_E_ARG);
    ck_assert_int_eq(bpi_gguf_writer_save(w, "p.gguf", &err), BP_E_ARG); /* there is no data */
    ck_assert_ptr_nonnull(strstr(err.msg, "without its data"));
    err = (struct bp_error)BP_ERROR_INIT;

    ck_assert_int_eq(bpi_gguf_writer_begin(w, "p.gguf", &err), BP_OK);
    ck_assert_int_eq(stat(tmp, &st), 0);
    ck_assert_uint_ge((uint64_t)st.st_size, 100);
    ck_assert_int_eq(bpi_gguf_writer_append(w, bytes, 69, &err), BP_E_ARG); /* one too many */
    bpi_gguf_writer_abandon(w);
    ck_assert_int_ne(stat(tmp, &st), 0);

    err = (struct bp_error)BP_ERROR_INIT;
    ck_assert_int_eq(bpi_gguf_writer_begin(w, "p.gguf", &err), BP_OK);
    ck_assert_int_eq(bpi_gguf_writer_append(w, bytes, 67, &err), BP_OK);
    ck_assert_int_eq(bpi_gguf_writer_finish(w, &err), BP_E_ARG); /* one too few */
    ck_assert(strcmp(err.where, "b") == 0 && strstr(err.msg, "35 bytes and 34") != NULL);
    ck_assert_int_ne(stat(tmp, &st), 0);

    err = (struct bp_error)BP_ERROR_INIT;
    ck_assert_int_eq(bpi_gguf_writer_begin(w, "p.gguf", &err), BP_OK);
    ck_assert_int_eq(bpi_gguf_writer_begin(w, "p.gguf", &err), BP_OK); /* drops the first */
    bpi_gguf_writer_destroy(w);
    ck_assert(stat(tmp, &st) != 0 && stat("p.gguf", &st) != 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("gguf_write");
    TCase *c = tcase_create("all");
    tcase_set_timeout(c, 120);
    tcase_add_test(c, exact_bytes);
    tcase_add_test(c, metadata_alone);
    tcase_add_test(c, copies_of_real_files);
    tcase_add_test(c, copy_of_every_kind);
    tcase_add_test(c, pieces_of_any_size);
    tcase_add_test(c, pieces_out_of_order);
    tcase_add_test(c, alignment_of_the_source);
    tcase_add_loop_test(c, refused_puts, 0, (int)BPI_ARRAY_LEN(refusals));
    tcase_add_test(c, places_that_refuse);
    tcase_add_test(c, failing_in_the_middle);
    suite_add_tcase(s, c);
    return img_main(s);
}
