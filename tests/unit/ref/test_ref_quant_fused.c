/* test_ref_quant_fused.c - fused forms have the bits of the plain ops one after the other with F32 between them.
 * SPDX-License-Identifier: MIT */
#include "ref_fixture.h"

enum { COLS = 256, ROWS = 45, MAX_W = 4 };

struct bench {
    struct rig g;
    struct bp_op_ref quant_op, dense_op;
    const struct bp_quant_ops *quant;
    const struct bp_dense_ops *dense;
    struct bp_oracle_weight w[MAX_W];
    void *handle[MAX_W];
    struct rig_tensor x, norm_w;
};

static const uint32_t types[MAX_W] = {BP_GGUF_Q4_K, BP_GGUF_Q6_K, BP_GGUF_Q8_0, BP_GGUF_F32};

static void bench_open(struct bench *b, const char *round, uint32_t dtype, int64_t n_tok)
{
    rig_open(&b->g, round);
    b->quant_op = rig_op(&b->g, "bp.quant");
    b->dense_op = rig_op(&b->g, "bp.dense");
    b->quant = (const struct bp_quant_ops *)(const void *)b->quant_op.vt;
    b->dense = (const struct bp_dense_ops *)(const void *)b->dense_op.vt;
    for (int i = 0; i < MAX_W; ++i) {
        bp_oracle_weight_init(&b->w[i], &b->g.rng, types[i], COLS, i < 2 ? ROWS : 3 + i, 1, 1.0f);
        struct bp_raw raw = bp_oracle_raw(&b->w[i], "w");
        ck_assert_int_eq(b->quant->prepare(b->quant_op.self, &raw, &b->handle[i], NULL, NULL),
                         BP_OK);
    }
    b->x = rig_tensor2(dtype, n_tok, COLS, 3);
    b->norm_w = rig_tensor1(BP_DT_F32, COLS);
    rig_fill_normal(&b->g, &b->x, 2.0);
    rig_fill_normal(&b->g, &b->norm_w, 1.0);
}

static void bench_close(struct bench *b)
{
    for (int i = 0; i < MAX_W; ++i) {
        b->quant->release(b->quant_op.self, b->handle[i]);
        bp_oracle_weight_free(&b->w[i]);
    }
    rig_drop(&b->x, "x");
    rig_drop(&b->norm_w, "norm_w");
    rig_close(&b->g);
}

/* Scratch for both slots. */
static void reserve(struct bench *b, uint32_t prologue, uint32_t epilogue, uint32_t n_w,
                    uint32_t y_dtype)
{
    struct bp_quant_shape w[MAX_W];
    for (uint32_t i = 0; i < n_w; ++i) {
        w[i] = (struct bp_quant_shape){.type = types[i], .rows = b->w[i].ne[1], .cols = COLS};
    }
    struct bp_quant_problem p = {.h = BP_HDR(struct bp_quant_problem, epilogue),
                                 .n_w = n_w,
                                 .w_stride = sizeof w[0],
                                 .max_tok = (uint32_t)b->x.t.dim[0],
                                 .w = w,
                                 .x_dtype = b->x.t.dtype,
                                 .y_dtype = y_dtype,
                                 .prologue = prologue,
                                 .epilogue = epilogue};
    rig_prepare(&b->g, &b->quant_op, &p);
}

static void run_fused(struct bench *b, uint32_t prologue, uint32_t epilogue, struct rig_tensor *y,
                      uint32_t n_w, const struct rig_tensor *residual)
{
    struct bp_matmul_out outs[MAX_W];
    struct bp_error err = BP_ERROR_INIT;
    for (uint32_t i = 0; i < n_w; ++i)
        outs[i] = (struct bp_matmul_out){.weight = b->handle[i], .y = y[i].t};
    struct bp_quant_matmul_args a = {.h = BP_HDR(struct bp_quant_matmul_args, reserved),
                                     .x = b->x.t,
                                     .outs = outs,
                                     .n_out = n_w,
                                     .out_stride = sizeof outs[0],
                                     .prologue = prologue,
                                     .epilogue = epilogue,
                                     .norm_w = b->norm_w.t,
                                     .eps = 1e-5f};
    if (residual != NULL) a.residual = residual->t;
    reserve(b, prologue, epilogue, n_w, y[0].t.dtype);
    ck_assert_msg(b->quant->matmul(b->quant_op.self, &b->g.launch, &a, &err) == BP_OK, "fused: %s",
                  err.msg);
    rig_check_scratch(&b->g);
}

static void plain_product(struct bench *b, int w, const struct rig_tensor *x,
                          const struct rig_tensor *y)
{
    struct bp_matmul_out out = {.weight = b->handle[w], .y = y->t};
    struct bp_quant_matmul_args a = {.h = BP_HDR(struct bp_quant_matmul_args, reserved),
                                     .x = x->t,
                                     .outs = &out,
                                     .n_out = 1,
                                     .out_stride = sizeof out};
    ck_assert_int_eq(b->quant->matmul(b->quant_op.self, &b->g.launch, &a, NULL), BP_OK);
}

static void plain_rms(struct bench *b, const struct rig_tensor *y)
{
    struct bp_dense_rms_args a = {.h = BP_HDR(struct bp_dense_rms_args, reserved),
                                  .x = b->x.t,
                                  .w = b->norm_w.t,
                                  .y = y->t,
                                  .eps = 1e-5f};
    ck_assert_int_eq(b->dense->rms(b->dense_op.self, &b->g.launch, &a, NULL), BP_OK);
}

static void plain_pair(struct bench *b, bool silu, const struct rig_tensor *left,
                       const struct rig_tensor *right, const struct rig_tensor *y)
{
    struct bp_dense_pair_args a = {
        .h = BP_HDR(struct bp_dense_pair_args, y), .a = left->t, .b = right->t, .y = y->t};
    int32_t rc = silu ? b->dense->silu_mul(b->dense_op.self, &b->g.launch, &a, NULL)
                      : b->dense->add(b->dense_op.self, &b->g.launch, &a, NULL);
    ck_assert_int_eq(rc, BP_OK);
}

/* The same form, op by op. */
static void run_plain(struct bench *b, uint32_t prologue, uint32_t epilogue, struct rig_tensor *y,
                      uint32_t n_w, const struct rig_tensor *residual)
{
    const int64_t n_tok = b->x.t.dim[0];
    struct rig_tensor normed = rig_tensor2(BP_DT_F32, n_tok, COLS, 0), between[MAX_W];
    const struct rig_tensor *x = &b->x;
    /* Products first: their scratch, reserved by run_fused, also holds what the dense ops need. */
    if (prologue == BP_PROLOGUE_RMS) {
        plain_rms(b, &normed);
        x = &normed;
    }
    for (uint32_t i = 0; i < n_w; ++i) {
        bool last = epilogue == BP_EPILOGUE_NONE || (epilogue == BP_EPILOGUE_ADD && i != 0);
        between[i] = rig_tensor2(BP_DT_F32, n_tok, b->w[i].ne[1], 0);
        plain_product(b, (int)i, x, last ? &y[i] : &between[i]);
    }
    if (epilogue == BP_EPILOGUE_ADD) plain_pair(b, false, &between[0], residual, &y[0]);
    if (epilogue == BP_EPILOGUE_SILU_MUL) plain_pair(b, true, &between[0], &between[1], &y[0]);
    for (uint32_t i = 0; i < n_w; ++i) rig_drop(&between[i], "between");
    rig_drop(&normed, "normed");
}

static void compare_forms(struct bench *b, uint32_t prologue, uint32_t epilogue, uint32_t n_w,
                          uint32_t y_dtype)
{
    const int64_t n_tok = b->x.t.dim[0];
    struct rig_tensor fused[MAX_W], plain[MAX_W], residual = rig_tensor2(BP_DT_F32, n_tok, ROWS, 1);
    rig_fill_normal(&b->g, &residual, 1.0);
    for (uint32_t i = 0; i < n_w; ++i) {
        fused[i] = rig_tensor2(y_dtype, n_tok, b->w[i].ne[1], 2);
        plain[i] = rig_tensor2(y_dtype, n_tok, b->w[i].ne[1], 0);
    }
    run_fused(b, prologue, epilogue, fused, n_w, &residual);
    run_plain(b, prologue, epilogue, plain, n_w, &residual);
    for (uint32_t i = 0; i < n_w; ++i) {
        if (i == 0 || epilogue != BP_EPILOGUE_SILU_MUL) {
            rig_check_same(&fused[i], 0, &plain[i], 0, rig_count(&fused[i].t),
                           "fused against op by op");
        } else { /* the second output of silu_mul is not written */
            for (size_t k = 0; k < fused[i].n_bytes; ++k)
                ck_assert(fused[i].bytes[RIG_GUARD + k] == RIG_FILL);
        }
    }
    if (epilogue == BP_EPILOGUE_ADD && y_dtype == BP_DT_F32) { /* into the residual itself */
        struct rig_tensor own[MAX_W];
        memcpy(own, fused, sizeof own);
        own[0] = residual;
        run_fused(b, prologue, epilogue, own, n_w, &residual);
        rig_check_same(&residual, 0, &plain[0], 0, rig_count(&residual.t), "in place");
    }
    for (uint32_t i = 0; i < n_w; ++i) {
        rig_drop(&fused[i], "fused");
        rig_drop(&plain[i], "plain");
    }
    rig_drop(&residual, "residual");
}

static void all_forms(const char *round, uint32_t x_dtype, uint32_t y_dtype)
{
    static const int64_t toks[] = {1, 3, 21};
    for (size_t t = 0; t < BPI_ARRAY_LEN(toks); ++t) {
        struct bench b;
        bench_open(&b, round, x_dtype, toks[t]);
        for (uint32_t prologue = 0; prologue <= BP_PROLOGUE_RMS; ++prologue) {
            for (uint32_t n_w = 1; n_w <= MAX_W; ++n_w) {
                compare_forms(&b, prologue, BP_EPILOGUE_NONE, n_w, y_dtype);
                compare_forms(&b, prologue, BP_EPILOGUE_ADD, n_w, y_dtype);
            }
            compare_forms(&b, prologue, BP_EPILOGUE_SILU_MUL, 2, y_dtype);
        }
        bench_close(&b);
    }
}

START_TEST(without_rounding)
{
    all_forms(NULL, BP_DT_F32, BP_DT_F32);
    all_forms(NULL, BP_DT_BF16, BP_DT_F32);
    all_forms(NULL, BP_DT_F16, BP_DT_BF16);
}
END_TEST

START_TEST(with_rounding)
{
    all_forms("bf16", BP_DT_F32, BP_DT_F32);
    all_forms("bf16", BP_DT_BF16, BP_DT_BF16);
    all_forms("f16", BP_DT_F32, BP_DT_F16);
}
END_TEST

/* The truth, for the form with all parts: both sides of the comparison above could be wrong together. */
START_TEST(values_of_fused_forms)
{
    struct bench b;
    const int64_t n_tok = 3;
    bench_open(&b, NULL, BP_DT_F32, n_tok);
    struct rig_tensor y[2] = {rig_tensor2(BP_DT_F32, n_tok, ROWS, 0),
                              rig_tensor2(BP_DT_F32, n_tok, ROWS, 0)};
    double *x = rig_doubles(&b.x), *norm_w = rig_doubles(&b.norm_w);
    double *normed = bp_oracle_alloc((size_t)(n_tok * COLS), sizeof *normed);
    double *gate = bp_oracle_alloc((size_t)(n_tok * ROWS), sizeof *gate),
           *up = bp_oracle_alloc((size_t)(n_tok * ROWS), sizeof *up);
    double *gate_mag = bp_oracle_alloc((size_t)(n_tok * ROWS), sizeof *gate),
           *up_mag = bp_oracle_alloc((size_t)(n_tok * ROWS), sizeof *up);
    run_fused(&b, BP_PROLOGUE_RMS, BP_EPILOGUE_SILU_MUL, y, 2, NULL);
    bp_oracle_rms(BP_ORACLE_EXACT, x, norm_w, n_tok, COLS, 1e-5, normed);
    bp_oracle_matmul(BP_ORACLE_EXACT, b.w[0].w, ROWS, COLS, normed, n_tok, gate, gate_mag);
    bp_oracle_matmul(BP_ORACLE_EXACT, b.w[1].w, ROWS, COLS, normed, n_tok, up, up_mag);
    for (int64_t i = 0; i < n_tok * ROWS; ++i) {
        double want = gate[i] / (1.0 + exp(-gate[i])) * up[i];
        double slack =
            4 * 0x1p-24 * (fabs(want) + gate_mag[i] * fabs(up[i]) + up_mag[i] * fabs(gate[i]));
        ck_assert_msg(fabs(rig_get(&y[0], i) - want) <= slack, "%lld: got %.9g, want %.9g",
                      (long long)i, rig_get(&y[0], i), want);
    }
    free(x);
    free(norm_w);
    free(normed);
    free(gate);
    free(up);
    free(gate_mag);
    free(up_mag);
    rig_drop(&y[0], "y0");
    rig_drop(&y[1], "y1");
    bench_close(&b);
}
END_TEST

RIG_MAIN("ref_quant_fused", without_rounding, with_rounding, values_of_fused_forms)
