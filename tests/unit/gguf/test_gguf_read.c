/* test_gguf_read.c - right files: values, typed reads and their refusals, layouts, text, the real files of this tree.
 * SPDX-License-Identifier: MIT */
#include <glob.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>
#include "unit/gguf/gguf_image.h"
#include "unit/gguf/gguf_walk.h"

static struct image file;
static unsigned char *copy;
static struct bpi_gguf *g;
static struct bp_error err;

static void open_image(void)
{
    int32_t rc = img_open(file.p, file.n, &copy, &g, &err);
    ck_assert_msg(rc == BP_OK, "%s", err.msg);
}
static void open_small(void)
{
    img_small(&file);
    open_image();
}
static void close_image(void)
{
    bpi_gguf_close(g);
    g = NULL;
    free(copy);
    img_free(&file);
}

START_TEST(what_a_small_file_holds)
{
    // clang-format off
    static const struct { const char *key; uint32_t kind, elem_kind; uint64_t count; const char *text; } want[] = {
        {"general.architecture", BPI_GGUF_STRING, 0, 1, "test"}, {"k.u8", BPI_GGUF_U8, 0, 1, "200"},
        {"k.i8", BPI_GGUF_I8, 0, 1, "-100"}, {"k.u16", BPI_GGUF_U16, 0, 1, "60000"},
        {"k.i16", BPI_GGUF_I16, 0, 1, "-30000"}, {"k.u32", BPI_GGUF_U32, 0, 1, "4000000000"},
        {"k.i32", BPI_GGUF_I32, 0, 1, "-2000000000"}, {"k.f32", BPI_GGUF_F32V, 0, 1, "0.1"},
        {"k.bool", BPI_GGUF_BOOL, 0, 1, "true"}, {"k.str", BPI_GGUF_STRING, 0, 1, "h\xc3\xa9llo\\n"},
        {"k.u64", BPI_GGUF_U64, 0, 1, "18446744073709551615"},
        {"k.i64", BPI_GGUF_I64V, 0, 1, "-9223372036854775808"}, {"k.f64", BPI_GGUF_F64V, 0, 1, "0.1"},
        {"k.ints", BPI_GGUF_ARRAY, BPI_GGUF_I16, 3, "[1, -2, 3]"},
        {"k.strs", BPI_GGUF_ARRAY, BPI_GGUF_STRING, 3, "[\"a\", \"\", \"\\xff z\"]"},
        {"k.none", BPI_GGUF_ARRAY, BPI_GGUF_STRING, 0, "[]"},
        {"k.many", BPI_GGUF_ARRAY, BPI_GGUF_F32V, 20, "[20 f32 values]"},
    };
    // clang-format on
    open_small();
    ck_assert_uint_eq(bpi_gguf_version(g), 3);
    ck_assert_uint_eq(bpi_gguf_shards(g), 1);
    ck_assert_str_eq(bpi_gguf_shard_path(g, 0), "image");
    ck_assert_ptr_null(bpi_gguf_shard_path(g, 1));
    ck_assert_uint_eq(bpi_gguf_shard_bytes(g, 0), file.n);
    ck_assert_uint_eq(bpi_gguf_alignment(g, 0), 32);
    ck_assert_uint_eq(bpi_gguf_n_kv(g), BPI_ARRAY_LEN(want));
    for (size_t i = 0; i < BPI_ARRAY_LEN(want); ++i) {
        const struct bpi_gguf_kv *kv = bpi_gguf_kv_at(g, i);
        struct bpi_buf b = {0};
        ck_assert_uint_eq(kv->key.n, strlen(want[i].key));
        ck_assert_mem_eq(kv->key.data, want[i].key, kv->key.n);
        ck_assert_uint_eq(kv->kind, want[i].kind);
        ck_assert_uint_eq(kv->elem_kind, want[i].elem_kind);
        ck_assert_uint_eq(kv->count, want[i].count);
        ck_assert_ptr_eq(bpi_gguf_find(g, want[i].key), kv);
        bpi_gguf_format_value(kv, &b);
        ck_assert_msg(strcmp(b.data, want[i].text) == 0, "%s is '%s'", want[i].key, b.data);
        bpi_buf_free(&b);
    }
    ck_assert_ptr_null(bpi_gguf_find(g, "k.u"));
    ck_assert_ptr_null(bpi_gguf_find(g, ""));
    ck_assert_uint_eq(bpi_gguf_n_tensors(g), 3);
    const struct bpi_gguf_tensor *t = bpi_gguf_tensor(g, "c.weight");
    ck_assert_ptr_eq(t, bpi_gguf_tensor_at(g, 2));
    ck_assert_uint_eq(t->n_dim, 4);
    ck_assert(t->ne[0] == 2 && t->ne[1] == 3 && t->ne[2] == 1 && t->ne[3] == 2);
    ck_assert_uint_eq(t->n_bytes, 24);
    ck_assert_uint_eq(t->data[0], 128);
    ck_assert_ptr_eq(t->data, copy + t->offset);
    t = bpi_gguf_tensor(g, "b.bias");
    ck_assert(t->n_dim == 1 && t->ne[0] == 5 && t->ne[1] == 1 && t->ne[2] == 1 && t->ne[3] == 1);
    ck_assert_uint_eq(t->data[0], 96);
    ck_assert_ptr_null(bpi_gguf_tensor(g, "a"));
    (void)walk_gguf(g);
    close_image();
}
END_TEST

/* ---- typed reads ---- */

START_TEST(typed_reads)
{
    // clang-format off
    static const struct { const char *key; bool u32, u64, f32, b, str; uint64_t value; double number; } want[] = {
        {"k.u8", true, true, true, false, false, 200, 200}, {"k.i8", false, false, true, false, false, 0, -100},
        {"k.u16", true, true, true, false, false, 60000, 60000},
        {"k.i16", false, false, true, false, false, 0, -30000},
        {"k.u32", true, true, true, false, false, 4000000000u, 4e9},
        {"k.i32", false, false, true, false, false, 0, -2e9},
        {"k.f32", false, false, true, false, false, 0, 0.1f}, {"k.bool", true, true, true, true, false, 1, 1},
        {"k.str", false, false, false, false, true, 0, 0},
        {"k.u64", false, true, true, false, false, UINT64_MAX, 18446744073709551616.0},
        {"k.i64", false, false, true, false, false, 0, -9223372036854775808.0},
        {"k.f64", false, false, true, false, false, 0, 0.1f}, {"k.ints", false, false, false, false, false, 0, 0},
        {"k.strs", false, false, false, false, false, 0, 0},
    };
    // clang-format on
    open_small();
    for (size_t i = 0; i < BPI_ARRAY_LEN(want); ++i) {
        const char *key = want[i].key;
        uint32_t u32 = 77;
        uint64_t u64 = 77;
        float f32 = 77;
        bool b = false, found = false;
        struct bpi_span s = {0};
        struct bp_error e[5] = {BP_ERROR_INIT, BP_ERROR_INIT, BP_ERROR_INIT, BP_ERROR_INIT,
                                BP_ERROR_INIT};
        int32_t rc[5] = {bpi_gguf_get_u32(g, key, &u32, NULL, &e[0]),
                         bpi_gguf_get_u64(g, key, &u64, NULL, &e[1]),
                         bpi_gguf_get_f32(g, key, &f32, NULL, &e[2]),
                         bpi_gguf_get_bool(g, key, &b, NULL, &e[3]),
                         bpi_gguf_get_str(g, key, &s, NULL, &e[4])};
        const bool good[5] = {want[i].u32, want[i].u64, want[i].f32, want[i].b, want[i].str};
        for (int k = 0; k < 5; ++k) {
            ck_assert_msg(rc[k] == (good[k] ? BP_OK : BP_E_FORMAT), "%s read %d: %d %s", key, k,
                          rc[k], e[k].msg);
            ck_assert_msg(good[k] || strstr(e[k].msg, key) != NULL, "'%s' does not name %s",
                          e[k].msg, key);
        }
        ck_assert(u32 == (good[0] ? want[i].value : 77) && u64 == (good[1] ? want[i].value : 77));
        ck_assert_msg(f32 == (good[2] ? (float)want[i].number : 77), "%s is %g", key, (double)f32);
        ck_assert(b == good[3]);
        ck_assert_int_eq(bpi_gguf_get_u64(g, key, &u64, &found, NULL), rc[1]);
        ck_assert(found == good[1]);
    }
    close_image();
}
END_TEST

START_TEST(absent_keys)
{
    uint32_t u32 = 5;
    uint64_t u64 = 6;
    float f32 = 7;
    bool b = true, found = true;
    struct bpi_span s = {"x", 1};
    open_small();
    ck_assert_int_eq(bpi_gguf_get_u32(g, "no", &u32, &found, &err), BP_OK);
    ck_assert(!found && u32 == 5);
    found = true;
    ck_assert_int_eq(bpi_gguf_get_u64(g, "no", &u64, &found, &err), BP_OK);
    ck_assert(!found && u64 == 6);
    found = true;
    ck_assert_int_eq(bpi_gguf_get_f32(g, "no", &f32, &found, &err), BP_OK);
    ck_assert(!found && f32 == 7);
    found = true;
    ck_assert_int_eq(bpi_gguf_get_bool(g, "no", &b, &found, &err), BP_OK);
    ck_assert(!found && b);
    found = true;
    ck_assert_int_eq(bpi_gguf_get_str(g, "no", &s, &found, &err), BP_OK);
    ck_assert(!found && s.n == 1);
    close_image();
}
END_TEST

START_TEST(floats_out_of_range)
{
    static const struct {
        const char *key;
        double value;
        bool good;
    } want[] = {{"inf", INFINITY, false}, {"nan", NAN, false},           {"big", 1e39, false},
                {"-big", -1e300, false},  {"max", 0x1.fffffep127, true}, {"tiny", 1e-300, true}};
    img_header(&file, 3, 0, BPI_ARRAY_LEN(want) + 1);
    for (size_t i = 0; i < BPI_ARRAY_LEN(want); ++i) {
        img_key(&file, want[i].key, BPI_GGUF_F64V);
        img_f64(&file, want[i].value);
    }
    img_key(&file, "nan32", BPI_GGUF_F32V), img_f32(&file, NAN);
    open_image();
    float v = 0;
    for (size_t i = 0; i < BPI_ARRAY_LEN(want); ++i) {
        int32_t rc = bpi_gguf_get_f32(g, want[i].key, &v, NULL, &err);
        ck_assert_msg(rc == (want[i].good ? BP_OK : BP_E_FORMAT), "%s: %d", want[i].key, rc);
        ck_assert(!want[i].good || v == (float)want[i].value);
        bpi_error_clear(&err);
    }
    ck_assert_int_eq(bpi_gguf_get_f32(g, "nan32", &v, NULL, &err), BP_E_FORMAT);
    close_image();
}
END_TEST

START_TEST(arrays)
{
    int64_t v = 77;
    struct bpi_span s[3];
    open_small();
    const struct bpi_gguf_kv *ints = bpi_gguf_find(g, "k.ints"), *strs = bpi_gguf_find(g, "k.strs");
    ck_assert_int_eq(bpi_gguf_arr_i64(g, ints, 1, &v, &err), BP_OK);
    ck_assert_int_eq(v, -2);
    ck_assert_int_eq(bpi_gguf_arr_i64(g, bpi_gguf_find(g, "k.i64"), 0, &v, &err), BP_OK);
    ck_assert(v == INT64_MIN);
    ck_assert_int_eq(bpi_gguf_arr_i64(g, bpi_gguf_find(g, "k.bool"), 0, &v, &err), BP_OK);
    ck_assert_int_eq(v, 1);
    v = 77;
    ck_assert_int_eq(bpi_gguf_arr_i64(g, ints, 3, &v, &err), BP_E_FORMAT);
    ck_assert_msg(strstr(err.msg, "'k.ints' is an array of 3 i16; expected at least 4 elements") !=
                      NULL,
                  "%s", err.msg);
    bpi_error_clear(&err);
    ck_assert_int_eq(bpi_gguf_arr_i64(g, bpi_gguf_find(g, "k.u64"), 0, &v, &err), BP_E_FORMAT);
    bpi_error_clear(&err);
    ck_assert_int_eq(bpi_gguf_arr_i64(g, strs, 0, &v, &err), BP_E_FORMAT);
    bpi_error_clear(&err);
    ck_assert_int_eq(bpi_gguf_arr_i64(g, bpi_gguf_find(g, "k.f32"), 0, &v, &err), BP_E_FORMAT);
    ck_assert_int_eq(v, 77);
    bpi_error_clear(&err);
    ck_assert_int_eq(bpi_gguf_arr_strings(g, strs, s, &err), BP_OK);
    ck_assert(s[0].n == 1 && s[0].data[0] == 'a' && s[1].n == 0 && s[2].n == 3 &&
              s[2].data[2] == 'z');
    ck_assert_int_eq(bpi_gguf_arr_strings(g, bpi_gguf_find(g, "k.none"), s, &err), BP_OK);
    ck_assert_int_eq(bpi_gguf_arr_strings(g, ints, s, &err), BP_E_FORMAT);
    bpi_error_clear(&err);
    ck_assert_int_eq(bpi_gguf_arr_strings(g, bpi_gguf_find(g, "k.str"), s, &err), BP_E_FORMAT);
    close_image();
}
END_TEST

/* Text for people must not carry what moves a terminal's cursor or is no UTF-8. */
START_TEST(text_of_values)
{
    img_header(&file, 3, 0, 5);
    img_kv_str(&file, "escape", "a\x1b[2J\x7f\xc2\x85\xed\xa0\x80\xe2\x82");
    img_key(&file, "inf", BPI_GGUF_F32V), img_f32(&file, -INFINITY);
    img_key(&file, "third", BPI_GGUF_F64V), img_f64(&file, 1.0 / 3);
    img_key(&file, "third32", BPI_GGUF_F32V), img_f32(&file, 1.0f / 3);
    img_array(&file, "bools", BPI_GGUF_BOOL, 3), img_u8(&file, 0), img_u8(&file, 1),
        img_u8(&file, 2);
    static const char *const want[] = {"a\\x1b[2J\\x7f\\xc2\\x85\\xed\\xa0\\x80\\xe2\\x82", "-inf",
                                       "0.3333333333333333", "0.33333334", "[false, true, true]"};
    open_image();
    for (size_t i = 0; i < BPI_ARRAY_LEN(want); ++i) {
        struct bpi_buf b = {0};
        bpi_gguf_format_value(bpi_gguf_kv_at(g, i), &b);
        ck_assert_str_eq(b.data, want[i]);
        bpi_buf_free(&b);
    }
    ck_assert_str_eq(bpi_gguf_kind_name(BPI_GGUF_I64V), "i64");
    ck_assert_str_eq(bpi_gguf_kind_name(13), "?");
    close_image();
}
END_TEST

/* ---- layouts ---- */

START_TEST(version_2_and_no_tensors)
{
    img_header(&file, 2, 0, 1);
    img_kv_str(&file, "general.architecture", "x");
    open_image(); /* ends right behind the header, without padding */
    ck_assert_uint_eq(bpi_gguf_version(g), 2);
    ck_assert_uint_eq(bpi_gguf_n_tensors(g), 0);
    (void)walk_gguf(g);
    close_image();
    img_header(&file, 3, 0, 0);
    open_image();
    ck_assert_uint_eq(bpi_gguf_n_kv(g), 0);
    (void)walk_gguf(g);
    close_image();
}
END_TEST

/* Any order, gaps, another alignment and trailing bytes are within the format. */
START_TEST(tolerated_layouts)
{
    img_header(&file, 3, 3, 1);
    img_kv_u32(&file, "general.alignment", 128);
    img_tensor2(&file, "late", 4, 1, BP_GGUF_F32, 512);
    img_tensor2(&file, "early", 4, 2, BP_GGUF_F32, 0);
    img_tensor2(&file, "middle", 256, 1, BP_GGUF_Q4_K, 256);
    img_pad(&file, 128);
    size_t start = file.n;
    for (unsigned i = 0; i < 1000; ++i) img_u8(&file, i / 128);
    open_image();
    ck_assert_uint_eq(bpi_gguf_alignment(g, 0), 128);
    ck_assert_uint_eq(bpi_gguf_tensor(g, "early")->offset, start);
    ck_assert_uint_eq(bpi_gguf_tensor(g, "late")->data[0], 4);
    ck_assert_uint_eq(bpi_gguf_tensor(g, "middle")->data[0], 2);
    ck_assert_uint_eq(bpi_gguf_tensor(g, "middle")->n_bytes, 144);
    (void)walk_gguf(g);
    close_image();
}
END_TEST

/* Out of order and without any gap: the end of one is the beginning of the next. */
START_TEST(touching_tensors)
{
    img_header(&file, 3, 3, 0);
    img_tensor2(&file, "c", 32, 2, BP_GGUF_I8, 96);
    img_tensor2(&file, "a", 32, 1, BP_GGUF_I8, 0);
    img_tensor2(&file, "b", 64, 1, BP_GGUF_I8, 32);
    img_pad(&file, 32);
    for (unsigned i = 0; i < 160; ++i) img_u8(&file, i);
    open_image();
    ck_assert_uint_eq(bpi_gguf_tensor(g, "b")->data[63], 95);
    ck_assert_uint_eq(bpi_gguf_tensor(g, "c")->data[63], 159);
    close_image();
}
END_TEST

/* The text of the format allows 0 and 1 only, its own reader takes the rest for true. */
START_TEST(unusual_bool)
{
    bool b = false;
    uint32_t v = 0;
    img_header(&file, 3, 0, 1);
    img_key(&file, "k", BPI_GGUF_BOOL), img_u8(&file, 2);
    open_image();
    ck_assert_int_eq(bpi_gguf_get_bool(g, "k", &b, NULL, &err), BP_OK);
    ck_assert(b);
    ck_assert_int_eq(bpi_gguf_get_u32(g, "k", &v, NULL, &err), BP_OK);
    ck_assert_uint_eq(v, 1);
    close_image();
}
END_TEST

/* Zero dimensions are for the model's shape check to refuse; here they only have no bytes, wherever they point. */
START_TEST(empty_tensors)
{
    img_header(&file, 3, 3, 0);
    img_tensor2(&file, "none", 0, 7, BP_GGUF_Q8_0, 0);
    img_tensor2(&file, "far", 32, 0, BP_GGUF_Q8_0, 1 << 20);
    img_tensor2(&file, "some", 32, 1, BP_GGUF_Q8_0, 0);
    img_pad(&file, 32);
    img_fill(&file, 9, 34);
    open_image();
    ck_assert_uint_eq(bpi_gguf_tensor(g, "none")->n_bytes, 0);
    ck_assert_ptr_null(bpi_gguf_tensor(g, "none")->data);
    ck_assert_ptr_null(bpi_gguf_tensor(g, "far")->data);
    ck_assert_uint_eq(bpi_gguf_tensor(g, "some")->data[33], 9);
    (void)walk_gguf(g);
    close_image();
}
END_TEST

START_TEST(longest_names)
{
    char key[65536], name[64];
    memset(key, 'k', 65535), key[65535] = '\0';
    memset(name, 'n', 63), name[63] = '\0';
    img_header(&file, 3, 1, 1);
    img_kv_u32(&file, key, 1);
    img_tensor2(&file, name, 1, 1, BP_GGUF_I8, 0);
    img_pad(&file, 32);
    img_u8(&file, 1);
    open_image();
    ck_assert_ptr_nonnull(bpi_gguf_find(g, key));
    ck_assert_ptr_nonnull(bpi_gguf_tensor(g, name));
    close_image();
}
END_TEST

/* ---- files ---- */

START_TEST(paths_that_are_no_files)
{
    ck_assert_int_eq(bpi_gguf_open(BP_SOURCE_DIR, &g, &err), BP_E_IO);
    ck_assert_ptr_nonnull(strstr(err.msg, "directory"));
    bpi_error_clear(&err);
    ck_assert_int_eq(bpi_gguf_open("/no/such/folder/x.gguf", &g, &err), BP_E_IO);
    ck_assert_int_ne(err.native, 0);
    bpi_error_clear(&err);
    FILE *f = fopen("empty.gguf", "w");
    ck_assert(f != NULL && fclose(f) == 0);
    ck_assert_int_eq(bpi_gguf_open("empty.gguf", &g, &err), BP_E_FORMAT);
    ck_assert_ptr_nonnull(strstr(err.msg, "empty"));
    ck_assert_ptr_null(g);
    ck_assert_int_eq(unlink("empty.gguf"), 0);
}
END_TEST

/* The end of a long path is what tells files apart. */
START_TEST(long_path_in_message)
{
    char folder[128], path[256];
    memset(folder, 'd', sizeof folder), folder[120] = '\0';
    ck_assert(mkdir(folder, 0777) == 0 || access(folder, W_OK) == 0);
    snprintf(path, sizeof path, "%s/the-name.gguf", folder);
    struct image m = {0};
    img_text(&m, "no model");
    img_save(&m, path);
    ck_assert_int_eq(bpi_gguf_open(path, &g, &err), BP_E_FORMAT);
    ck_assert_msg(strncmp(err.where, "...", 3) == 0 && strstr(err.where, "/the-name.gguf") != NULL,
                  "%s", err.where);
    img_free(&m);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(rmdir(folder), 0);
}
END_TEST

static void check_real(const char *path, bool golden)
{
    struct bpi_span arch = {0};
    bool found = false;
    ck_assert_msg(bpi_gguf_open(path, &g, &err) == BP_OK, "%s: %s", path, err.msg);
    ck_assert_int_eq(bpi_gguf_get_str(g, "general.architecture", &arch, &found, &err), BP_OK);
    ck_assert_msg(found && (arch.n == 6 && memcmp(arch.data, "golden", 6) == 0) == golden, "%s",
                  path);
    ck_assert_uint_gt(bpi_gguf_n_tensors(g), 0);
    ck_assert_uint_eq(bpi_gguf_version(g), 3);
    if (!golden) {
        ck_assert_ptr_nonnull(bpi_gguf_tensor(g, "token_embd.weight"));
        ck_assert_ptr_nonnull(bpi_gguf_tensor(g, "output_norm.weight"));
    }
    (void)walk_gguf(g);
    bpi_gguf_close(g);
    g = NULL;
}

START_TEST(real_files)
{
    glob_t found;
    unsigned n_models = 0, n_goldens = 0;
    ck_assert_int_eq(glob(BP_SOURCE_DIR "/tests/data/zoo/*.gguf", 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; ++i) {
        bool golden = strstr(found.gl_pathv[i], ".golden.gguf") != NULL;
        check_real(found.gl_pathv[i], golden);
        n_models += !golden;
        n_goldens += golden;
    }
    globfree(&found);
    ck_assert_uint_ge(n_models, 9);
    ck_assert_uint_ge(n_goldens, 9);
    check_real(BP_SOURCE_DIR "/models/bp-tiny-glm-dsa-Q4_K_M.gguf", false);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("gguf_read");
    TCase *c = tcase_create("all");
    tcase_set_timeout(c, 60);
    err = (struct bp_error)BP_ERROR_INIT;
    tcase_add_test(c, what_a_small_file_holds);
    tcase_add_test(c, typed_reads);
    tcase_add_test(c, absent_keys);
    tcase_add_test(c, floats_out_of_range);
    tcase_add_test(c, arrays);
    tcase_add_test(c, text_of_values);
    tcase_add_test(c, version_2_and_no_tensors);
    tcase_add_test(c, tolerated_layouts);
    tcase_add_test(c, touching_tensors);
    tcase_add_test(c, unusual_bool);
    tcase_add_test(c, empty_tensors);
    tcase_add_test(c, longest_names);
    tcase_add_test(c, paths_that_are_no_files);
    tcase_add_test(c, long_path_in_message);
    tcase_add_test(c, real_files);
    suite_add_tcase(s, c);
    return img_main(s);
}
