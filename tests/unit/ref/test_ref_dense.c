/* test_ref_dense.c - bp.dense of the reference backend: norms, rotation, element-wise ops, embedding, plain products.
 * argmax and topk: test_ref_pick.c. SPDX-License-Identifier: MIT */
#include "ref_fixture.h"

#include "block/block.h"

static const uint32_t float_dtypes[] = {BP_DT_F32, BP_DT_F16, BP_DT_BF16};
static const int64_t widths[] = {1, 2, 7, 8, 64, 129, 1031};
static const int64_t counts[] = {0, 1, 2, 13};

struct bench {
    struct rig g;
    struct bp_op_ref op;
    const struct bp_dense_ops *ops;
    uint32_t precision; /* of what `round` makes of inputs and outputs */
};

static void bench_open(struct bench *b, const char *round)
{
    rig_open(&b->g, round);
    b->op = rig_op(&b->g, "bp.dense");
    b->ops = (const struct bp_dense_ops *)(const void *)b->op.vt;
    b->precision = round == NULL                ? BP_ORACLE_EXACT
                   : strcmp(round, "bf16") == 0 ? BP_ORACLE_BF16
                                                : BP_ORACLE_F16;
}

static void reserve(struct bench *b, uint32_t op, int64_t rows, int64_t width, uint32_t x_dtype,
                    uint32_t y_dtype)
{
    struct bp_dense_problem p = {.h = BP_HDR(struct bp_dense_problem, k),
                                 .op = op,
                                 .max_rows = (uint32_t)rows,
                                 .width = width,
                                 .x_dtype = x_dtype,
                                 .y_dtype = y_dtype,
                                 .type = BP_GGUF_F32,
                                 .k = 1};
    rig_prepare(&b->g, &b->op, &p);
}

/* Inputs as the op reads them: rounded when the plugin rounds. */
static double *read_inputs(const struct bench *b, const struct rig_tensor *t)
{
    double *d = rig_doubles(t);
    for (int64_t i = 0; i < rig_count(&t->t); ++i) d[i] = bp_oracle_round(d[i], b->precision);
    return d;
}

/* The value that a double result becomes in the output. */
static void check_value(const struct bench *b, const struct rig_tensor *y, int64_t i, double want,
                        double slack, const char *what)
{
    uint32_t port = bp_oracle_precision_of(y->t.dtype);
    double lo = bp_oracle_round(bp_oracle_round(want - slack, b->precision), port);
    double hi = bp_oracle_round(bp_oracle_round(want + slack, b->precision), port);
    double got = rig_get(y, i);
    ck_assert_msg(got >= lo && got <= hi, "%s, element %lld: got %.9g, want %.9g", what,
                  (long long)i, got, want);
}

static const char *const rounds[] = {NULL, "bf16", "f16"};

/* Calls fn for every combination of rounding, shape and port dtypes. */
static void each_case(uint32_t op,
                      void (*fn)(struct bench *b, int64_t n, int64_t width, uint32_t x, uint32_t y))
{
    for (size_t r = 0; r < BPI_ARRAY_LEN(rounds); ++r) {
        struct bench b;
        bench_open(&b, rounds[r]);
        for (size_t w = 0; w < BPI_ARRAY_LEN(widths); ++w) {
            for (size_t c = 0; c < BPI_ARRAY_LEN(counts); ++c) {
                uint32_t x = float_dtypes[(w + c) % 3], y = float_dtypes[(w * 2 + c + r) % 3];
                reserve(&b, op, counts[c], widths[w], x, y);
                fn(&b, counts[c], widths[w], x, y);
                rig_check_scratch(&b.g);
            }
        }
        rig_close(&b.g);
    }
}

/* ---- norms ---- */

static void rms_case(struct bench *b, int64_t n, int64_t width, uint32_t x_dtype, uint32_t y_dtype)
{
    struct rig_tensor x = rig_tensor2(x_dtype, n, width, 2), y = rig_tensor2(y_dtype, n, width, 1),
                      w = rig_tensor1(BP_DT_F32, width);
    struct rig_tensor add = rig_tensor2(BP_DT_F32, n, width, 0),
                      kept = rig_tensor2(x_dtype, n, width, 0);
    rig_fill_normal(&b->g, &x, 3.0);
    rig_fill_normal(&b->g, &add, 1.0);
    rig_fill_normal(&b->g, &w, 1.0);
    double *wd = rig_doubles(&w), *want = bp_oracle_alloc((size_t)(n * width), sizeof *want);
    for (int with_add = 0; with_add < 2; ++with_add) {
        struct bp_dense_rms_args a = {.h = BP_HDR(struct bp_dense_rms_args, reserved),
                                      .x = x.t,
                                      .w = w.t,
                                      .y = y.t,
                                      .eps = 1e-6f};
        double *before = read_inputs(b, &x), *added = read_inputs(b, &add);
        for (int64_t i = 0; i < n * width; ++i) rig_set(&kept, i, rig_get(&x, i));
        if (with_add == 1) a.add = add.t;
        ck_assert_int_eq(b->ops->rms(b->op.self, &b->g.launch, &a, NULL), BP_OK);
        for (int64_t i = 0; i < n * width; ++i) {
            if (with_add == 1) { /* x itself was written, rounded once */
                check_value(b, &x, i, before[i] + added[i], 0.0, "x += add");
            } else {
                ck_assert(rig_get(&x, i) == rig_get(&kept, i));
            }
        }
        double *now = read_inputs(b, &x);
        bp_oracle_rms(BP_ORACLE_EXACT, now, wd, n, width, (double)1e-6f, want);
        for (int64_t i = 0; i < n * width; ++i)
            check_value(b, &y, i, want[i], fabs(want[i]) * 1e-14, "rms");
        free(before);
        free(added);
        free(now);
    }
    if (x_dtype == y_dtype) { /* y may be x */
        struct bp_dense_rms_args a = {.h = BP_HDR(struct bp_dense_rms_args, reserved),
                                      .x = x.t,
                                      .w = w.t,
                                      .y = x.t,
                                      .eps = 1e-6f};
        ck_assert_int_eq(b->ops->rms(b->op.self, &b->g.launch, &a, NULL), BP_OK);
        rig_check_same(&x, 0, &y, 0, n * width, "rms in place");
    }
    free(wd);
    free(want);
    rig_drop(&x, "x");
    rig_drop(&y, "y");
    rig_drop(&w, "w");
    rig_drop(&add, "add");
    rig_drop(&kept, "kept");
}

START_TEST(rms)
{
    each_case(BP_DENSE_OP_RMS, rms_case);
}
END_TEST

static void layernorm_case(struct bench *b, int64_t n, int64_t width, uint32_t x_dtype,
                           uint32_t y_dtype)
{
    struct rig_tensor x = rig_tensor2(x_dtype, n, width, 0), y = rig_tensor2(y_dtype, n, width, 5);
    struct rig_tensor w = rig_tensor1(BP_DT_F32, width), bias = rig_tensor1(BP_DT_F32, width);
    rig_fill_normal(&b->g, &x, 1.0);
    rig_fill_normal(&b->g, &w, 1.0);
    rig_fill_normal(&b->g, &bias, 1.0);
    double *xd = read_inputs(b, &x), *wd = rig_doubles(&w), *bd = rig_doubles(&bias);
    double *want = bp_oracle_alloc((size_t)(n * width), sizeof *want);
    struct bp_dense_layernorm_args a = {.h = BP_HDR(struct bp_dense_layernorm_args, reserved),
                                        .x = x.t,
                                        .w = w.t,
                                        .b = bias.t,
                                        .y = y.t,
                                        .eps = 1e-6f};
    ck_assert_int_eq(b->ops->layernorm(b->op.self, &b->g.launch, &a, NULL), BP_OK);
    bp_oracle_layernorm(BP_ORACLE_EXACT, xd, wd, bd, n, width, (double)1e-6f, want);
    for (int64_t i = 0; i < n * width; ++i) {
        double slack = (fabs(wd[i % width]) + fabs(bd[i % width])) * 1e-12;
        check_value(b, &y, i, want[i], slack, "layernorm");
    }
    free(xd);
    free(wd);
    free(bd);
    free(want);
    rig_drop(&x, "x");
    rig_drop(&y, "y");
    rig_drop(&w, "w");
    rig_drop(&bias, "b");
}

START_TEST(layernorm)
{
    each_case(BP_DENSE_OP_LAYERNORM, layernorm_case);
}
END_TEST

/* Mean and variance of the population, not of a sample; eps inside the root. */
START_TEST(norms_of_known_numbers)
{
    struct bench b;
    bench_open(&b, NULL);
    struct rig_tensor x = rig_tensor2(BP_DT_F32, 1, 4, 0), y = rig_tensor2(BP_DT_F32, 1, 4, 0);
    struct rig_tensor w = rig_tensor1(BP_DT_F32, 4), zero = rig_tensor1(BP_DT_F32, 4);
    static const double values[] = {1, 3, 5, 7};
    for (int i = 0; i < 4; ++i) {
        rig_set(&x, i, values[i]);
        rig_set(&w, i, 1.0);
        rig_set(&zero, i, 0.0);
    }
    reserve(&b, BP_DENSE_OP_RMS, 1, 4, BP_DT_F32, BP_DT_F32);
    struct bp_dense_rms_args r = {
        .h = BP_HDR(struct bp_dense_rms_args, reserved), .x = x.t, .w = w.t, .y = y.t, .eps = 4.0f};
    ck_assert_int_eq(b.ops->rms(b.op.self, &b.g.launch, &r, NULL), BP_OK);
    ck_assert(rig_get(&y, 3) == (double)(float)(7.0 / 5.0)); /* mean square 21, plus 4 */
    struct bp_dense_layernorm_args n = {.h = BP_HDR(struct bp_dense_layernorm_args, reserved),
                                        .x = x.t,
                                        .w = w.t,
                                        .b = zero.t,
                                        .y = y.t,
                                        .eps = 4.0f};
    ck_assert_int_eq(b.ops->layernorm(b.op.self, &b.g.launch, &n, NULL), BP_OK);
    ck_assert(rig_get(&y, 3) == 1.0); /* mean 4, variance 5, plus 4 */
    ck_assert(rig_get(&y, 0) == -1.0);
    rig_drop(&x, "x");
    rig_drop(&y, "y");
    rig_drop(&w, "w");
    rig_drop(&zero, "zero");
    rig_close(&b.g);
}
END_TEST

/* ---- rotation ---- */

static void rope_case(struct bench *b, int64_t n, int64_t width, uint32_t x_dtype, uint32_t y_dtype)
{
    enum { HEADS = 3, N_POS = 50 };
    const int64_t dim = width * 2;
    for (uint32_t style = BP_ROPE_INTERLEAVED; style <= BP_ROPE_HALF; ++style) {
        struct rig_tensor x = rig_tensor3(x_dtype, n, HEADS, dim, 3),
                          y = rig_tensor3(y_dtype, n, HEADS, dim, 1);
        struct rig_tensor pos = rig_tensor1(BP_DT_I32, n),
                          c = rig_tensor2(BP_DT_F32, N_POS, width, 1),
                          s = rig_tensor2(BP_DT_F32, N_POS, width, 0);
        rig_fill_normal(&b->g, &x, 1.0);
        rig_fill_normal(&b->g, &c, 1.0);
        rig_fill_normal(&b->g, &s, 1.0);
        for (int64_t i = 0; i < n; ++i)
            *rig_int(&pos, i) = (int32_t)kit_rng_below(&b->g.rng, N_POS);
        struct bp_dense_rope_args a = {.h = BP_HDR(struct bp_dense_rope_args, reserved),
                                       .x = x.t,
                                       .y = y.t,
                                       .positions = pos.t,
                                       .cos_table = c.t,
                                       .sin_table = s.t,
                                       .style = style};
        ck_assert_int_eq(b->ops->rope(b->op.self, &b->g.launch, &a, NULL), BP_OK);
        double *xd = read_inputs(b, &x), *cd = rig_doubles(&c), *sd = rig_doubles(&s);
        double *want = bp_oracle_alloc((size_t)dim, sizeof *want);
        for (int64_t h = 0; h < n * HEADS; ++h) {
            int32_t p = *rig_int(&pos, h / HEADS);
            bp_oracle_rope(BP_ORACLE_EXACT, xd + h * dim, cd + p * width, sd + p * width, dim,
                           style, want);
            for (int64_t i = 0; i < dim; ++i) check_value(b, &y, h * dim + i, want[i], 0.0, "rope");
        }
        if (x_dtype == y_dtype) {
            a.y = x.t;
            ck_assert_int_eq(b->ops->rope(b->op.self, &b->g.launch, &a, NULL), BP_OK);
            rig_check_same(&x, 0, &y, 0, n * HEADS * dim, "rope in place");
        }
        free(xd);
        free(cd);
        free(sd);
        free(want);
        rig_drop(&x, "x");
        rig_drop(&y, "y");
        rig_drop(&pos, "positions");
        rig_drop(&c, "cos");
        rig_drop(&s, "sin");
    }
}

START_TEST(rope)
{
    for (size_t r = 0; r < BPI_ARRAY_LEN(rounds); ++r) {
        struct bench b;
        bench_open(&b, rounds[r]);
        for (size_t w = 0; w < BPI_ARRAY_LEN(widths); ++w) { /* 1031 pairs: more than one piece */
            uint32_t x = float_dtypes[w % 3], y = float_dtypes[(w + r) % 3];
            reserve(&b, BP_DENSE_OP_ROPE, 4, widths[w] * 2, x, y);
            rope_case(&b, (int64_t)w % 5, widths[w], x, y);
        }
        rig_close(&b.g);
    }
}
END_TEST

/* Which numbers form a pair, with an angle of 90 degrees for the first pair only. */
START_TEST(rope_pairs)
{
    struct bench b;
    bench_open(&b, NULL);
    struct rig_tensor x = rig_tensor3(BP_DT_F32, 1, 1, 4, 0),
                      y = rig_tensor3(BP_DT_F32, 1, 1, 4, 0);
    struct rig_tensor pos = rig_tensor1(BP_DT_I32, 1), c = rig_tensor2(BP_DT_F32, 2, 2, 0),
                      s = rig_tensor2(BP_DT_F32, 2, 2, 0);
    static const double cos_values[] = {1, 1, 0, 1}, sin_values[] = {0, 0, 1, 0};
    static const double want[2][4] = {{-20, 10, 30, 40}, {-30, 20, 10, 40}};
    for (int i = 0; i < 4; ++i) {
        rig_set(&x, i, 10.0 * (i + 1));
        rig_set(&c, i, cos_values[i]);
        rig_set(&s, i, sin_values[i]);
    }
    *rig_int(&pos, 0) = 1;
    struct bp_dense_rope_args a = {.h = BP_HDR(struct bp_dense_rope_args, reserved),
                                   .x = x.t,
                                   .y = y.t,
                                   .positions = pos.t,
                                   .cos_table = c.t,
                                   .sin_table = s.t};
    for (uint32_t style = 0; style < 2; ++style) {
        a.style = style;
        ck_assert_int_eq(b.ops->rope(b.op.self, &b.g.launch, &a, NULL), BP_OK);
        for (int i = 0; i < 4; ++i) ck_assert(rig_get(&y, i) == want[style][i]);
    }
    struct bp_error err = BP_ERROR_INIT;
    *rig_int(&pos, 0) = 2;
    ck_assert_int_eq(b.ops->rope(b.op.self, &b.g.launch, &a, &err), BP_E_ARG);
    ck_assert_ptr_nonnull(strstr(err.msg, "position 2"));
    rig_drop(&x, "x");
    rig_drop(&y, "y");
    rig_drop(&pos, "pos");
    rig_drop(&c, "c");
    rig_drop(&s, "s");
    rig_close(&b.g);
}
END_TEST

/* ---- element by element ---- */

static void pair_case(struct bench *b, int64_t n, int64_t width, uint32_t x_dtype, uint32_t y_dtype)
{
    struct rig_tensor left = rig_tensor2(x_dtype, n, width, 1),
                      right = rig_tensor2(BP_DT_F32, n, width, 2);
    struct rig_tensor y = rig_tensor2(y_dtype, n, width, 3);
    rig_fill_normal(&b->g, &left, 4.0);
    rig_fill_normal(&b->g, &right, 1.0);
    double *l = read_inputs(b, &left), *r = read_inputs(b, &right);
    struct bp_dense_pair_args a = {
        .h = BP_HDR(struct bp_dense_pair_args, y), .a = left.t, .b = right.t, .y = y.t};
    ck_assert_int_eq(b->ops->add(b->op.self, &b->g.launch, &a, NULL), BP_OK);
    for (int64_t i = 0; i < n * width; ++i) check_value(b, &y, i, l[i] + r[i], 0.0, "add");
    ck_assert_int_eq(b->ops->silu_mul(b->op.self, &b->g.launch, &a, NULL), BP_OK);
    for (int64_t i = 0; i < n * width; ++i) {
        double want = l[i] / (1.0 + exp(-l[i])) * r[i];
        check_value(b, &y, i, want, fabs(want) * 1e-14, "silu_mul");
    }
    if (x_dtype == y_dtype) {
        a.y = left.t;
        ck_assert_int_eq(b->ops->silu_mul(b->op.self, &b->g.launch, &a, NULL), BP_OK);
        rig_check_same(&left, 0, &y, 0, n * width, "silu_mul into a");
    }
    if (y_dtype == BP_DT_F32 && x_dtype != y_dtype) {
        a.y = right.t;
        ck_assert_int_eq(b->ops->silu_mul(b->op.self, &b->g.launch, &a, NULL), BP_OK);
        rig_check_same(&right, 0, &y, 0, n * width, "silu_mul into b");
    }
    free(l);
    free(r);
    rig_drop(&left, "a");
    rig_drop(&right, "b");
    rig_drop(&y, "y");
}

START_TEST(pairs)
{
    each_case(BP_DENSE_OP_SILU_MUL, pair_case);
}
END_TEST

START_TEST(silu_at_the_ends)
{
    static const double in[] = {-INFINITY, INFINITY, NAN, 0.0, -0.0, -800.0, 800.0, -3e38};
    struct bench b;
    bench_open(&b, NULL);
    struct rig_tensor left = rig_tensor2(BP_DT_F32, 1, 8, 0),
                      right = rig_tensor2(BP_DT_F32, 1, 8, 0), y = rig_tensor2(BP_DT_F32, 1, 8, 0);
    for (int i = 0; i < 8; ++i) {
        rig_set(&left, i, in[i]);
        rig_set(&right, i, 2.0);
    }
    struct bp_dense_pair_args a = {
        .h = BP_HDR(struct bp_dense_pair_args, y), .a = left.t, .b = right.t, .y = y.t};
    ck_assert_int_eq(b.ops->silu_mul(b.op.self, &b.g.launch, &a, NULL), BP_OK);
    ck_assert(rig_get(&y, 0) == 0.0); /* 0 * b */
    ck_assert(isinf(rig_get(&y, 1)) && isnan(rig_get(&y, 2)));
    ck_assert(rig_get(&y, 3) == 0.0 && rig_get(&y, 4) == 0.0 && rig_get(&y, 5) == 0.0);
    ck_assert(rig_get(&y, 6) == 1600.0);
    ck_assert(rig_get(&y, 7) == 0.0);
    rig_set(&right, 0, INFINITY);
    ck_assert_int_eq(b.ops->silu_mul(b.op.self, &b.g.launch, &a, NULL), BP_OK);
    ck_assert(isnan(rig_get(&y, 0))); /* 0 * inf */
    rig_drop(&left, "a");
    rig_drop(&right, "b");
    rig_drop(&y, "y");
    rig_close(&b.g);
}
END_TEST

/* ---- embedding ---- */

static void embed_case(struct bench *b, uint32_t type, int64_t width, uint32_t y_dtype)
{
    enum { N = 7, VOCAB = 11 };
    struct bp_oracle_weight w;
    void *table = NULL;
    bp_oracle_weight_init(&w, &b->g.rng, type, width, VOCAB, 1, 1.0f);
    struct bp_raw raw = bp_oracle_raw(&w, "token_embd.weight");
    ck_assert_int_eq(b->ops->prepare(b->op.self, &raw, &table, NULL, NULL), BP_OK);
    struct bp_dense_problem p = {.h = BP_HDR(struct bp_dense_problem, k),
                                 .op = BP_DENSE_OP_EMBED,
                                 .max_rows = N,
                                 .width = width,
                                 .y_dtype = y_dtype,
                                 .type = type};
    rig_prepare(&b->g, &b->op, &p);
    struct rig_tensor ids = rig_tensor1(BP_DT_I32, N), y = rig_tensor2(y_dtype, N, width, 3);
    for (int64_t i = 0; i < N; ++i)
        *rig_int(&ids, i) = i == 0 ? VOCAB - 1 : (int32_t)kit_rng_below(&b->g.rng, VOCAB);
    struct bp_dense_embed_args a = {
        .h = BP_HDR(struct bp_dense_embed_args, y), .table = table, .ids = ids.t, .y = y.t};
    ck_assert_int_eq(b->ops->embed(b->op.self, &b->g.launch, &a, NULL), BP_OK);
    for (int64_t i = 0; i < N * width; ++i) {
        check_value(
            b, &y, i,
            bp_oracle_round(w.w[*rig_int(&ids, i / width) * width + i % width], b->precision), 0.0,
            "embed");
    }
    struct bp_error err = BP_ERROR_INIT;
    *rig_int(&ids, 3) = VOCAB;
    ck_assert_int_eq(b->ops->embed(b->op.self, &b->g.launch, &a, &err), BP_E_ARG);
    ck_assert_ptr_nonnull(strstr(err.msg, "token 3 has id 11"));
    *rig_int(&ids, 3) = -1;
    ck_assert_int_eq(b->ops->embed(b->op.self, &b->g.launch, &a, NULL), BP_E_ARG);
    b->ops->release(b->op.self, table);
    bp_oracle_weight_free(&w);
    rig_drop(&ids, "ids");
    rig_drop(&y, "y");
}

START_TEST(embed)
{
    static const uint32_t types[] = {BP_GGUF_F32,  BP_GGUF_F16,  BP_GGUF_BF16,
                                     BP_GGUF_Q8_0, BP_GGUF_Q4_K, BP_GGUF_IQ4_XS};
    for (size_t r = 0; r < BPI_ARRAY_LEN(rounds); ++r) {
        struct bench b;
        bench_open(&b, rounds[r]);
        for (size_t t = 0; t < BPI_ARRAY_LEN(types); ++t) {
            embed_case(&b, types[t], t < 3 ? 37 : 256, float_dtypes[(t + r) % 3]);
        }
        b.ops->release(b.op.self, NULL);
        rig_close(&b.g);
    }
}
END_TEST

/* ---- plain products ---- */

static void matmul_case(struct bench *b, int64_t batch, int64_t m, int64_t n, int64_t k, uint32_t x,
                        uint32_t y)
{
    struct rig_tensor left = rig_tensor3(x, batch, m, k, 1),
                      right = rig_tensor3(float_dtypes[k % 3], batch, n, k, 2);
    struct rig_tensor c = rig_tensor3(y, batch, m, n, 3);
    rig_fill_normal(&b->g, &left, 1.0);
    rig_fill_normal(&b->g, &right, 1.0);
    reserve(b, BP_DENSE_OP_MATMUL, m, k, x, y);
    struct bp_dense_matmul_args a = {
        .h = BP_HDR(struct bp_dense_matmul_args, c), .a = left.t, .b = right.t, .c = c.t};
    ck_assert_int_eq(b->ops->matmul(b->op.self, &b->g.launch, &a, NULL), BP_OK);
    double *l = read_inputs(b, &left), *r = read_inputs(b, &right);
    for (int64_t i = 0; i < batch * m * n; ++i) {
        const double *lr = l + i / n * k, *rr = r + (i / (m * n) * n + i % n) * k;
        double want = 0.0, mag = 0.0;
        for (int64_t q = 0; q < k; ++q) {
            want += lr[q] * rr[q];
            mag += fabs(lr[q] * rr[q]);
        }
        check_value(b, &c, i, want, mag * 0x1p-50, "matmul");
    }
    free(l);
    free(r);
    rig_drop(&left, "a");
    rig_drop(&right, "b");
    rig_drop(&c, "c");
}

START_TEST(matmul)
{
    for (size_t r = 0; r < BPI_ARRAY_LEN(rounds); ++r) {
        struct bench b;
        bench_open(&b, rounds[r]);
        matmul_case(&b, 1, 1, 1, 1, BP_DT_F32, BP_DT_F32);
        matmul_case(&b, 2, 5, 3, 7, BP_DT_F32, BP_DT_F32);
        matmul_case(&b, 3, 17, 33, 64, BP_DT_BF16, BP_DT_F32);
        matmul_case(&b, 2, 40, 19, 300, BP_DT_F16, BP_DT_BF16);
        matmul_case(&b, 0, 4, 4, 4, BP_DT_F32, BP_DT_F32);
        matmul_case(&b, 2, 0, 4, 4, BP_DT_F32, BP_DT_F32);
        matmul_case(&b, 2, 4, 0, 4, BP_DT_F32, BP_DT_F32);
        matmul_case(&b, 2, 4, 3, 0, BP_DT_F32, BP_DT_F32);
        rig_close(&b.g);
    }
}
END_TEST

/* ---- containment and batches, for all ops that work row by row ---- */

static int32_t run_row_op(struct bench *b, uint32_t op, const struct rig_tensor *x,
                          const struct rig_tensor *other, const struct rig_tensor *w,
                          const struct rig_tensor *y)
{
    struct bp_dense_rms_args rms_args = {.h = BP_HDR(struct bp_dense_rms_args, reserved),
                                         .x = x->t,
                                         .w = w->t,
                                         .y = y->t,
                                         .eps = 1e-6f};
    struct bp_dense_layernorm_args ln_args = {.h = BP_HDR(struct bp_dense_layernorm_args, reserved),
                                              .x = x->t,
                                              .w = w->t,
                                              .b = w->t,
                                              .y = y->t,
                                              .eps = 1e-6f};
    struct bp_dense_pair_args pair_args = {
        .h = BP_HDR(struct bp_dense_pair_args, y), .a = x->t, .b = other->t, .y = y->t};
    if (op == BP_DENSE_OP_RMS) return b->ops->rms(b->op.self, &b->g.launch, &rms_args, NULL);
    if (op == BP_DENSE_OP_LAYERNORM)
        return b->ops->layernorm(b->op.self, &b->g.launch, &ln_args, NULL);
    if (op == BP_DENSE_OP_ADD) return b->ops->add(b->op.self, &b->g.launch, &pair_args, NULL);
    return b->ops->silu_mul(b->op.self, &b->g.launch, &pair_args, NULL);
}

START_TEST(rows_keep_to_themselves)
{
    enum { N = 64, W = 1500 };
    static const uint32_t ops[] = {BP_DENSE_OP_RMS, BP_DENSE_OP_LAYERNORM, BP_DENSE_OP_ADD,
                                   BP_DENSE_OP_SILU_MUL};
    struct bench b;
    bench_open(&b, NULL);
    struct rig_tensor x = rig_tensor2(BP_DT_F32, N, W, 0), other = rig_tensor2(BP_DT_F32, N, W, 0),
                      w = rig_tensor1(BP_DT_F32, W);
    rig_fill_normal(&b.g, &x, 1.0);
    rig_fill_normal(&b.g, &other, 1.0);
    rig_fill_normal(&b.g, &w, 1.0);
    reserve(&b, BP_DENSE_OP_RMS, N, W, BP_DT_F32, BP_DT_F32);
    for (size_t o = 0; o < BPI_ARRAY_LEN(ops); ++o) {
        struct rig_tensor clean = rig_tensor2(BP_DT_F32, N, W, 0),
                          y = rig_tensor2(BP_DT_F32, N, W, 0);
        ck_assert_int_eq(run_row_op(&b, ops[o], &x, &other, &w, &clean), BP_OK);
        double kept = rig_get(&x, 5 * W + 3);
        rig_set(&x, 5 * W + 3, NAN);
        ck_assert_int_eq(run_row_op(&b, ops[o], &x, &other, &w, &y), BP_OK);
        rig_check_same(&y, 0, &clean, 0, 5 * W, "rows before a NaN");
        rig_check_same(&y, 6 * W, &clean, 6 * W, (N - 6) * W, "rows after a NaN");
        ck_assert(isnan(rig_get(&y, 5 * W + 3)));
        rig_set(&x, 5 * W + 3, kept);
        for (int64_t n = 1; n <= 5; n += 2) { /* the last rows alone */
            struct rig_tensor px = x, po = other, py = y;
            px.t.data = bpi_ref_at(&x.t, N - n, 0, 0);
            po.t.data = bpi_ref_at(&other.t, N - n, 0, 0);
            px.t.dim[0] = po.t.dim[0] = py.t.dim[0] = n;
            ck_assert_int_eq(run_row_op(&b, ops[o], &px, &po, &w, &py), BP_OK);
            rig_check_same(&y, 0, &clean, (N - n) * W, n * W, "rows alone");
        }
        rig_drop(&clean, "clean");
        rig_drop(&y, "y");
    }
    rig_drop(&x, "x");
    rig_drop(&other, "other");
    rig_drop(&w, "w");
    rig_close(&b.g);
}
END_TEST

START_TEST(verdicts_name_what_is_wrong)
{
    struct bench b;
    bench_open(&b, NULL);
    const struct bp_dense_problem good = {.h = BP_HDR(struct bp_dense_problem, k),
                                          .op = BP_DENSE_OP_RMS,
                                          .max_rows = 4,
                                          .width = 8,
                                          .x_dtype = BP_DT_F32,
                                          .y_dtype = BP_DT_BF16};
    struct rig_answer a;
    rig_ask(&b.op, &good, &a);
    ck_assert_uint_eq(a.v.level, BP_V_YES);
    struct bp_dense_problem p = good;
    p.op = 99;
    ck_assert(rig_refuses(&b.op, &p, BP_R_FEATURE, "op"));
    p = good;
    p.width = -1;
    ck_assert(rig_refuses(&b.op, &p, BP_R_SHAPE, "width"));
    p = good;
    p.x_dtype = BP_DT_I32;
    ck_assert(rig_refuses(&b.op, &p, BP_R_DTYPE, "x_dtype"));
    p = good;
    p.y_dtype = BP_DT_U32;
    ck_assert(rig_refuses(&b.op, &p, BP_R_DTYPE, "y_dtype"));
    p = good;
    p.op = BP_DENSE_OP_ROPE;
    p.width = 7;
    ck_assert(rig_refuses(&b.op, &p, BP_R_SHAPE, "width"));
    p = good;
    p.op = BP_DENSE_OP_EMBED;
    p.type = BP_GGUF_Q8_K;
    ck_assert(rig_refuses(&b.op, &p, BP_R_QUANT, "type"));
    p = good;
    p.op = BP_DENSE_OP_TOPK;
    p.k = 9;
    ck_assert(rig_refuses(&b.op, &p, BP_R_SHAPE, "k"));
    p.k = 0;
    ck_assert(rig_refuses(&b.op, &p, BP_R_SHAPE, "k"));
    p.k = 8;
    p.x_dtype = BP_DT_BF16;
    ck_assert(rig_refuses(&b.op, &p, BP_R_DTYPE, "x_dtype"));
    /* Calls that do not fit are refused too. */
    struct rig_tensor x = rig_tensor2(BP_DT_F32, 2, 8, 0), y = rig_tensor2(BP_DT_F32, 2, 7, 0);
    struct bp_error err = BP_ERROR_INIT;
    ck_assert_int_eq(run_row_op(&b, BP_DENSE_OP_RMS, &x, &x, &x, &y), BP_E_ARG);
    struct bp_dense_pair_args pair = {
        .h = BP_HDR(struct bp_dense_pair_args, y), .a = x.t, .b = y.t, .y = x.t};
    ck_assert_int_eq(b.ops->add(b.op.self, &b.g.launch, &pair, &err), BP_E_ARG);
    ck_assert_ptr_nonnull(strstr(err.msg, "(2, 7)"));
    rig_drop(&x, "x");
    rig_drop(&y, "y");
    rig_close(&b.g);
}
END_TEST

static void check_ports(const struct bp_op_ref *op, uint32_t slot, const void *args,
                        const char *want)
{
    struct bp_tensor t[8];
    uint32_t n = 8;
    char text[128] = "";
    ck_assert_int_eq(op->vt->tensors(op->self, slot, args, t, &n), BP_OK);
    for (uint32_t i = 0; i < n; ++i) {
        static const char *const access[] = {"?", "<", ">", "="};
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s%s", i != 0 ? " " : "",
                 access[t[i].access & 3], t[i].name);
    }
    ck_assert_str_eq(text, want);
}

START_TEST(ports_are_listed)
{
    struct bench b;
    bench_open(&b, NULL);
    int dummy = 0;
    struct bp_dense_rms_args r = {.h = BP_HDR(struct bp_dense_rms_args, reserved)};
    check_ports(&b.op, BP_DENSE_OP_RMS, &r, "<x <w >y");
    r.add.data = &dummy;
    check_ports(&b.op, BP_DENSE_OP_RMS, &r, "=x <add <w >y");
    check_ports(&b.op, BP_DENSE_OP_LAYERNORM, &(struct bp_dense_layernorm_args){0}, "<x <w <b >y");
    check_ports(&b.op, BP_DENSE_OP_EMBED, &(struct bp_dense_embed_args){0}, "<ids >y");
    check_ports(&b.op, BP_DENSE_OP_ROPE, &(struct bp_dense_rope_args){0},
                "<x <positions <cos_table <sin_table >y");
    check_ports(&b.op, BP_DENSE_OP_SILU_MUL, &(struct bp_dense_pair_args){0}, "<a <b >y");
    check_ports(&b.op, BP_DENSE_OP_ADD, &(struct bp_dense_pair_args){0}, "<a <b >y");
    check_ports(&b.op, BP_DENSE_OP_ARGMAX, &(struct bp_dense_topk_args){0}, "<x >ids");
    check_ports(&b.op, BP_DENSE_OP_TOPK, &(struct bp_dense_topk_args){.values.data = &dummy},
                "<x >values >ids");
    check_ports(&b.op, BP_DENSE_OP_MATMUL, &(struct bp_dense_matmul_args){0}, "<a <b >c");
    uint32_t n = 0;
    ck_assert_int_eq(b.op.vt->tensors(b.op.self, 42, &r, NULL, &n), BP_E_ARG);
    rig_close(&b.g);
}
END_TEST

RIG_MAIN("ref_dense", rms, layernorm, norms_of_known_numbers, rope, rope_pairs, pairs,
         silu_at_the_ends, embed, matmul, rows_keep_to_themselves, verdicts_name_what_is_wrong,
         ports_are_listed)
