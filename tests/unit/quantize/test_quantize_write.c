/* test_quantize_write.c - what is in the new file: every value as the encoder makes it from the decoded source, for every
 * type on both sides, tensors of many chunks, any number of threads, sources of several shards; broken numbers named with
 * their place. SPDX-License-Identifier: MIT */
#include "unit/quantize/quantize_fixture.h"

#include <float.h>
#include "unit/gguf/gguf_image.h"

enum { SEED = 20250 };

/* Bytes of `t` as they must be in the new file, made in one go; freed with free. */
static void *expected_bytes(const struct bpi_gguf_tensor *t, uint32_t to, uint64_t *out_n)
{
    uint64_t n = count_values(t->ne, 4);
    if (to == t->type) {
        *out_n = t->n_bytes;
        void *copy = malloc(t->n_bytes + 1);
        ck_assert_ptr_nonnull(copy);
        if (t->n_bytes > 0) memcpy(copy, t->data, t->n_bytes);
        return copy;
    }
    float *x = malloc((n + 1) * sizeof *x);
    ck_assert(x != NULL && bpi_block_bytes(to, n, out_n));
    void *p = malloc(*out_n + 1);
    ck_assert_ptr_nonnull(p);
    ck_assert_int_eq(bpi_block_decode(t->type, t->data, n, x), BP_OK);
    ck_assert_int_eq(bpi_block_encode(to, x, n, NULL, p), BP_OK);
    free(x);
    return p;
}

static void check_tensors(const struct bpi_gguf *g, const struct bpi_gguf *out)
{
    ck_assert_uint_eq(bpi_gguf_n_tensors(out), bpi_gguf_n_tensors(g));
    for (uint64_t i = 0; i < bpi_gguf_n_tensors(g); ++i) {
        const struct bpi_gguf_tensor *a = bpi_gguf_tensor_at(g, i), *b = bpi_gguf_tensor_at(out, i);
        uint64_t n = 0;
        ck_assert_str_eq(a->name, b->name);
        ck_assert_uint_eq(a->n_dim, b->n_dim);
        ck_assert_int_eq(memcmp(a->ne, b->ne, sizeof a->ne), 0);
        void *want = expected_bytes(a, b->type, &n);
        ck_assert_uint_eq(b->n_bytes, n);
        ck_assert_msg(n == 0 || memcmp(want, b->data, n) == 0, "%s: bytes differ", a->name);
        free(want);
    }
}

static const struct src_tensor mixed[] = {
    {"token_embd.weight", BP_GGUF_BF16, 2, {256, 70}},
    {"blk.0.attn_norm.weight", BP_GGUF_F32, 1, {256}},
    {"blk.0.attn_k_b.weight", BP_GGUF_F16, 3, {96, 32, 8}},
    {"blk.0.attn_v_b.weight", BP_GGUF_Q8_0, 3, {256, 32, 8}},
    {"blk.0.ffn_gate_inp.weight", BP_GGUF_F32, 2, {256, 8}},
    {"blk.0.exp_probs_b.bias", BP_GGUF_F32, 1, {8}},
    {"blk.0.ffn_down_exps.weight", BP_GGUF_F64, 3, {256, 64, 8}},
    {"blk.0.ffn_up_exps.weight", BP_GGUF_Q4_K, 3, {512, 64, 8}},
    {"blk.0.odd.weight", BP_GGUF_F32, 2, {7, 5}},
    {"blk.0.none.weight", BP_GGUF_F32, 2, {256, 0}},
    {"output.weight", BP_GGUF_BF16, 2, {256, 70}},
    {NULL, 0, 0, {0}},
};

static const char *const targets[] = {"F32",  "F16",    "BF16",   "Q4_0",   "Q4_1",  "Q5_0",
                                      "Q5_1", "Q8_0",   "Q2_K",   "Q3_K",   "Q4_K",  "Q5_K",
                                      "Q6_K", "IQ4_NL", "IQ4_XS", "Q4_K_M", "Q5_K_M"};

START_TEST(every_target)
{
    struct bpi_gguf *g = make_source(in_folder("in.gguf"), mixed, SEED);
    struct bpi_gguf *out = quantized(g, targets[_i], in_folder("out.gguf"), 2);
    check_tensors(g, out);
    bpi_gguf_close(out);
    bpi_gguf_close(g);
    ck_assert_uint_eq(folder_files(false), 2); /* no temporary file */
}
END_TEST

/* Every type that has a decoder as the source. */
START_TEST(every_source)
{
    unsigned n = 0;
    for (uint32_t type = 0; type < BP_GGUF_COUNT; ++type) {
        const struct bpi_block_info *info = bpi_block_info(type);
        if (info == NULL || !info->can_decode) continue;
        struct src_tensor t[] = {{"blk.0.ffn_up.weight", type, 2, {512, 40}}, {NULL, 0, 0, {0}}};
        struct bpi_gguf *g = make_source(in_folder("in.gguf"), t, SEED + type);
        struct bpi_gguf *out = quantized(g, "Q8_0", in_folder("out.gguf"), 2);
        check_tensors(g, out);
        ck_assert_uint_eq(bpi_gguf_tensor_at(out, 0)->type, BP_GGUF_Q8_0);
        bpi_gguf_close(out);
        bpi_gguf_close(g);
        ++n;
    }
    ck_assert_uint_eq(n, 29);
}
END_TEST

static void expect_same_files(const char *a, const char *b)
{
    char *x = NULL, *y = NULL;
    size_t n = 0, m = 0;
    ck_assert_int_eq(bpi_file_read(a, SIZE_MAX / 2, &x, &n, NULL), BP_OK);
    ck_assert_int_eq(bpi_file_read(b, SIZE_MAX / 2, &y, &m, NULL), BP_OK);
    ck_assert_uint_eq(n, m);
    ck_assert_int_eq(memcmp(x, y, n), 0);
    bpi_free(x);
    bpi_free(y);
}

/* More values than a chunk holds, and rows that do not divide it: without a pool, and with 1 to 7 threads. */
START_TEST(threads_do_not_matter)
{
    static const struct src_tensor large[] = {
        {"blk.0.ffn_up.weight", BP_GGUF_BF16, 2, {768, 5700}}, /* a little above 2^22 */
        {"blk.0.ffn_down.weight", BP_GGUF_F32, 2, {1280, 33}},
        {NULL, 0, 0, {0}}};
#ifdef BP_SANITIZED
    const uint32_t most = 3;
#else
    const uint32_t most = 7;
#endif
    struct bpi_gguf *g = make_source(in_folder("in.gguf"), large, SEED);
    bpi_gguf_close(quantized(g, "Q8_0", in_folder("alone.gguf"), 0));
    for (uint32_t threads = 1; threads <= most; threads += 2) {
        struct bpi_gguf *out = quantized(g, "Q8_0", in_folder("out.gguf"), threads);
        if (threads == 3) check_tensors(g, out);
        bpi_gguf_close(out);
        expect_same_files(in_folder("alone.gguf"), in_folder("out.gguf"));
    }
    bpi_gguf_close(quantized(g, "F32", in_folder("wide.gguf"), 2)); /* many small chunks */
    struct bpi_gguf *wide = NULL;
    ck_assert_int_eq(bpi_gguf_open(in_folder("wide.gguf"), &wide, NULL), BP_OK);
    check_tensors(g, wide);
    bpi_gguf_close(wide);
    bpi_gguf_close(g);
}
END_TEST

/* To its own type a file only changes its metadata; twice is the same as once. */
START_TEST(again)
{
    struct bpi_gguf *g = make_source(in_folder("in.gguf"), mixed, SEED);
    struct bpi_gguf *once = quantized(g, "Q4_K_M", in_folder("once.gguf"), 2);
    bpi_gguf_close(quantized(once, "Q4_K_M", in_folder("twice.gguf"), 1));
    expect_same_files(in_folder("once.gguf"), in_folder("twice.gguf"));
    bpi_gguf_close(once);
    bpi_gguf_close(g);
}
END_TEST

/* One shard of a split source: its split keys, and one tensor. */
static void save_shard(unsigned number, unsigned count, const char *tensor)
{
    char name[64];
    struct image m = {0};
    img_header(&m, 3, tensor != NULL ? 1 : 0, number == 0 ? 5 : 3);
    if (number == 0) img_kv_str(&m, "general.architecture", "test"), img_kv_str(&m, "x.y", "z");
    img_key(&m, "split.no", BPI_GGUF_U16), img_u16(&m, number);
    img_key(&m, "split.count", BPI_GGUF_U16), img_u16(&m, count);
    img_key(&m, "split.tensors.count", BPI_GGUF_I32), img_u32(&m, 2);
    if (tensor != NULL) {
        float x[256 * 3];
        img_tensor2(&m, tensor, 256, 3, BP_GGUF_F32, 0);
        img_pad(&m, 32);
        fill_values(x, BPI_ARRAY_LEN(x), FILL_GAUSS, 1.0, SEED + number);
        img_bytes(&m, x, sizeof x);
    }
    snprintf(name, sizeof name, "s-%05u-of-%05u.gguf", number + 1, count);
    img_save(&m, in_folder(name));
    img_free(&m);
}

START_TEST(shards_become_one_file)
{
    struct bp_error err = BP_ERROR_INIT;
    struct bpi_gguf *g = NULL;
    save_shard(0, 3, NULL);
    save_shard(1, 3, "blk.0.ffn_up.weight");
    save_shard(2, 3, "blk.0.ffn_down.weight");
    ck_assert_msg(bpi_gguf_open(in_folder("s-00001-of-00003.gguf"), &g, &err) == BP_OK, "%s",
                  err.msg);
    struct bpi_gguf *out = quantized(g, "Q4_K", in_folder("out.gguf"), 2);
    ck_assert_uint_eq(bpi_gguf_shards(out), 1);
    ck_assert_uint_eq(bpi_gguf_n_kv(out), 4);
    ck_assert_ptr_null(bpi_gguf_find(out, "split.count"));
    check_tensors(g, out);
    bpi_gguf_close(out);
    /* A later shard is a file of the source as well. */
    struct bpi_quantize_plan p;
    struct bpi_quantize_job job = {0};
    plan_for(g, "Q4_K", &p);
    ck_assert_int_eq(bpi_quantize_write(&p, in_folder("s-00003-of-00003.gguf"), &job, &err),
                     BP_E_ARG);
    bpi_quantize_plan_free(&p);
    bpi_gguf_close(g);
}
END_TEST

START_TEST(image_in_memory)
{
    struct bp_error err = BP_ERROR_INIT;
    struct bpi_gguf *g = make_source(in_folder("in.gguf"), mixed, SEED), *mem = NULL;
    char *image = NULL;
    size_t n = 0;
    ck_assert_int_eq(bpi_file_read(in_folder("in.gguf"), SIZE_MAX / 2, &image, &n, &err), BP_OK);
    ck_assert_int_eq(bpi_gguf_open_memory(image, n, "image", &mem, &err), BP_OK);
    bpi_gguf_close(quantized(g, "Q5_K_M", in_folder("a.gguf"), 2));
    bpi_gguf_close(quantized(mem, "Q5_K_M", in_folder("b.gguf"), 2));
    expect_same_files(in_folder("a.gguf"), in_folder("b.gguf"));
    bpi_gguf_close(mem);
    bpi_gguf_close(g);
    bpi_free(image);
}
END_TEST

/* ---- broken numbers ---- */

// clang-format off
static const struct {
    const char *tensor, *target;
    uint32_t type;
    uint64_t row, column; /* where the value is put */
    double value;
    const char *says[3];
} broken[] = {
    {"blk.0.ffn_up.weight", "Q4_K", BP_GGUF_F32, 37, 211, NAN,      {"NaN", "row 37, column 211", "blk.0.ffn_up.weight"}},
    {"blk.0.ffn_up.weight", "Q8_0", BP_GGUF_F32, 39, 511, INFINITY, {"infinity", "row 39, column 511", NULL}},
    {"blk.0.ffn_up.weight", "F32",  BP_GGUF_F64, 0, 0, -INFINITY,   {"infinity", "row 0, column 0", NULL}},
    {"blk.0.ffn_up.weight", "F32",  BP_GGUF_F64, 0, 3, 1e300,       {"infinity", "row 0, column 3", NULL}},
    {"blk.0.ffn_up.weight", "F16",  BP_GGUF_F32, 5, 6, 70000,       {"70000", "F16", "row 5, column 6"}},
    {"blk.0.ffn_up.weight", "Q4_1", BP_GGUF_F32, 5, 6, -1e9,        {"-1e+09", "Q4_1", "wider range"}},
    {"blk.0.ffn_up.weight", "F32",  BP_GGUF_F32, 8, 9, NAN,         {"NaN", "row 8, column 9", NULL}},
    {"blk.0.attn_norm.weight", "Q4_K", BP_GGUF_F32, 0, 100, NAN,    {"NaN", "row 0, column 100", "blk.0.attn_norm.weight"}},
    {"blk.0.ffn_gate_inp.weight", "Q4_K", BP_GGUF_F32, 3, 2, INFINITY, {"infinite", "row 3, column 2", NULL}},
};
// clang-format on

/* The second bad value, further on, must never be the one that is named, whatever thread finds it first. */
START_TEST(broken_numbers)
{
    const char *name = broken[_i].tensor;
    struct src_tensor t[] = {{"token_embd.weight", BP_GGUF_F32, 2, {512, 2}},
                             {name, broken[_i].type, 2, {512, 40}},
                             {NULL, 0, 0, {0}}};
    if (strstr(name, "norm") != NULL) t[1].n_dim = 1;
    struct bp_error err = BP_ERROR_INIT;
    struct bpi_gguf *g = make_source(in_folder("in.gguf"), t, SEED);
    const struct bpi_gguf_tensor *victim = bpi_gguf_tensor_at(g, 1);
    uint64_t at[2] = {broken[_i].row * 512 + broken[_i].column, count_values(victim->ne, 4) - 1};
    FILE *f = fopen(in_folder("in.gguf"), "r+b");
    ck_assert_ptr_nonnull(f);
    for (int i = 0; i < 2; ++i) {
        float narrow = (float)broken[_i].value;
        size_t size = broken[_i].type == BP_GGUF_F64 ? 8 : 4;
        ck_assert_int_eq(fseek(f, (long)(victim->offset + at[i] * size), SEEK_SET), 0);
        const void *p = size == 8 ? (const void *)&broken[_i].value : (const void *)&narrow;
        ck_assert_uint_eq(fwrite(p, size, 1, f), 1);
    }
    ck_assert_int_eq(fclose(f), 0);
    struct bpi_quantize_plan p;
    struct bpi_quantize_job job = {0};
    plan_for(g, broken[_i].target, &p);
    ck_assert_int_eq(bpi_pool_create(4, &job.pool, &err), BP_OK);
    ck_assert_int_eq(bpi_quantize_write(&p, in_folder("out.gguf"), &job, &err), BP_E_NUMERIC);
    ck_assert_str_eq(err.where, name);
    for (int i = 0; i < 3 && broken[_i].says[i] != NULL; ++i)
        ck_assert_msg(strstr(err.msg, broken[_i].says[i]) != NULL, "'%s' lacks '%s'", err.msg,
                      broken[_i].says[i]);
    ck_assert_uint_eq(folder_files(false), 1);
    bpi_pool_destroy(job.pool);
    bpi_quantize_plan_free(&p);
    bpi_gguf_close(g);
}
END_TEST

static void add(TCase *tc)
{
    tcase_add_loop_test(tc, every_target, 0, (int)BPI_ARRAY_LEN(targets));
    tcase_add_test(tc, every_source);
    tcase_add_test(tc, threads_do_not_matter);
    tcase_add_test(tc, again);
    tcase_add_test(tc, shards_become_one_file);
    tcase_add_test(tc, image_in_memory);
    tcase_add_loop_test(tc, broken_numbers, 0, (int)BPI_ARRAY_LEN(broken));
}

int main(void)
{
    printf("seed %d\n", SEED);
    return run_quantize_cases("quantize_write", add, 300);
}
