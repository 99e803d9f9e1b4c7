/* matmul.c - products: few tokens in passes over the repacked weights, many through rows that are decoded for
 * cuBLAS. Weights of one call that lie alike are read by one launch; x is brought into the form they want where it
 * is not already in it. Not here: kernels, sizes (plan.c), checks (call.c). Threads: one call per instance.
 * SPDX-License-Identifier: MIT */
#include "quant_gguf.h"

/* plan.c knows no kernels, and kernels know no plan; this is what they have to agree about. */
BP_STATIC_ASSERT((int)PLAN_STRIP == (int)QG_STRIP, "rows of a strip");
BP_STATIC_ASSERT((int)PLAN_WARPS == (int)QG_WARPS, "warps of a block");
BP_STATIC_ASSERT((int)PLAN_TOK == (int)QG_MAX_TOK, "tokens of a pass");
BP_STATIC_ASSERT((int)(PLAN_PARTS *PLAN_TOK) == (int)QG_MAX_COL, "columns of a pass");
BP_STATIC_ASSERT((int)PLAN_X_PAD == (int)QG_X_PAD, "columns of staged x");
BP_STATIC_ASSERT((int)PLAN_BLAS_BYTES == (int)BP_CUDA_BLAS_BYTES, "memory of cuBLAS");

/* One call. */
struct call {
    struct quant_op *o;
    const struct bp_launch *l;
    const struct bp_quant_matmul_args *a;
    struct bp_error *err;
    const struct qg_weight *w[QG_MAX_W];
    struct bp_tensor y[QG_MAX_W];
    uint32_t n_w, silu;
    int64_t n_tok, cols;
    struct plan_scratch s;
    /* What lies in s.stage: tokens from `first` on, in this form. */
    int64_t staged_first, staged_skip, staged_ld;
    uint32_t staged_parts, staged;
    int64_t
        low; /* of x for cuBLAS: elements from the high parts of a row to the low ones; 0: x is one part */
};

static int32_t launched(const struct call *c, int32_t rc)
{
    return bp_cuda_launched(c->err, QG_NAME, "quant.matmul", rc);
}

/* Rows [first, first + n) of a tensor. */
static struct bp_tensor tokens(const struct bp_tensor *t, int64_t first, int64_t n)
{
    struct bp_tensor v = *t;
    if (v.data == NULL) return v;
    v.data = (unsigned char *)v.data + first * v.stride[0] * bp_dtype_bytes(v.dtype);
    v.dim[0] = n;
    return v;
}
static struct bp_tensor columns(const struct bp_tensor *t, int64_t first, int64_t n)
{
    struct bp_tensor v = *t;
    if (v.data == NULL) return v;
    v.data = (unsigned char *)v.data + first * bp_dtype_bytes(v.dtype);
    v.dim[1] = n;
    return v;
}

/* ---- few tokens ---- */

/* x of one pass as the weight wants it: where it lies if it is so already, else staged. */
static int32_t input_for(struct call *c, const struct qg_weight *w, int64_t first, int64_t n,
                         const void **x, int64_t *ld, uint32_t *parts)
{
    const struct bp_quant_matmul_args *a = c->a;
    const struct bp_tensor t = tokens(&a->x, first, n);
    const int norm = a->prologue == BP_PROLOGUE_RMS;
    const int64_t whole = w->layout != QG_BLOCKS ? w->n_steps * qg_step_cols(w->type) : w->cover;
    *parts = w->layout == QG_BLOCKS ? 0 : plan_parts(t.dtype, norm);
    if (!norm && w->skip == 0 && whole == w->cols &&
        t.dtype == (w->layout != QG_BLOCKS ? BP_DT_BF16 : BP_DT_F32) && bp_cuda_aligned(&t, 16)) {
        *x = t.data;
        *ld = t.stride[0];
        return BP_OK;
    }
    *x = c->s.stage;
    *ld = (whole + PLAN_X_PAD - 1) / PLAN_X_PAD * PLAN_X_PAD;
    if (c->staged != 0 && c->staged_first == first && c->staged_skip == w->skip &&
        c->staged_ld == *ld && c->staged_parts == *parts)
        return BP_OK;
    const struct qg_stage s = {.x = t.data,
                               .norm_w = norm ? (const float *)a->norm_w.data : NULL,
                               .out = c->s.stage,
                               .x_stride = t.stride[0],
                               .ld = *ld,
                               .cols = c->cols,
                               .skip = w->skip,
                               .n_tok = n,
                               .x_dtype = t.dtype,
                               .parts = *parts,
                               .eps = a->eps};
    c->staged = 1;
    c->staged_first = first;
    c->staged_skip = w->skip;
    c->staged_ld = *ld;
    c->staged_parts = *parts;
    return launched(c, qg_stage_launch(&s, c->l->stream));
}

/* How the weights of one launch are shared out. */
static void cut(const struct call *c, struct qg_gemv *g, uint32_t per_sm, uint32_t n_warp)
{
    const int64_t unit_strips = g->silu != 0 ? 2 : 1;
    int64_t strips = 0;
    for (uint32_t i = 0; i < g->n_w; ++i) strips += (g->w[i]->rows + QG_STRIP - 1) / QG_STRIP;
    const struct plan_cut p = plan_gemv(strips / unit_strips, unit_strips, g->w[0]->n_steps,
                                        bp_cuda_sms(c->l, c->o->dev), per_sm, n_warp);
    g->blocks = p.blocks;
    g->whole = p.whole;
}

/* One token, x as it is. */
static int32_t pass_one(struct call *c, struct qg_gemv *g, int64_t first, uint32_t n_warp)
{
    const struct bp_tensor t = tokens(&c->a->x, first, 1);
    g->x = t.data;
    g->x_dtype = t.dtype;
    g->wide = (uintptr_t)t.data % (uint64_t)(4 * bp_dtype_bytes(t.dtype)) == 0;
    g->norm_w = c->a->prologue == BP_PROLOGUE_RMS ? (const float *)c->a->norm_w.data : NULL;
    g->eps = c->a->eps;
    g->smem = (int64_t)c->o->dev->smem_bytes;
    cut(c, g, 1, n_warp);
    return launched(c, qg_one_launch(g, c->l->stream));
}

/* One launch: weights that lie alike, for tokens [first, first + n). */
static int32_t pass(struct call *c, struct qg_gemv *g, int64_t first, int64_t n)
{
    const struct qg_weight *w = g->w[0];
    const int32_t n_warp = n == 1 && w->layout == QG_PLANES
                               ? qg_one_warps(w->type, w->n_steps, (int64_t)c->o->dev->smem_bytes)
                               : 0;
    g->n_tok = (uint32_t)n;
    g->partial = c->s.partial;
    if (n_warp > 0) return pass_one(c, g, first, (uint32_t)n_warp);
    BP_TRY(input_for(c, w, first, n, &g->x, &g->x_ld, &g->parts));
    if (w->layout == QG_BLOCKS) return launched(c, qg_rows_launch(g, c->l->stream));
    cut(c, g, (uint32_t)qg_blocks_per_sm(w->type), QG_WARPS);
    return launched(c, qg_gemv_launch(g, c->l->stream));
}

/* gate and up of different types: each into f32, then joined. */
static int32_t pass_pair(struct call *c, int64_t first, int64_t n)
{
    const int64_t rows = c->w[0]->rows;
    for (uint32_t i = 0; i < 2; ++i) {
        struct qg_gemv g = {.w = {c->w[i]}, .n_w = 1};
        g.y[0] = (struct bp_tensor){.data = c->s.pair + (int64_t)i * n * rows,
                                    .dtype = BP_DT_F32,
                                    .ndim = 2,
                                    .dim = {n, rows, 0, 0},
                                    .stride = {rows, 1, 0, 0}};
        /* The weight's scale is in already: gate and up come out whole. */
        BP_TRY(pass(c, &g, first, n));
    }
    const struct qg_finish f = {.a = c->s.pair,
                                .b = c->s.pair + n * rows,
                                .ab_stride = rows,
                                .y = tokens(&c->y[0], first, n),
                                .scale_a = 1.0f,
                                .scale_b = 1.0f};
    return launched(c, qg_finish_launch(&f, c->l->stream));
}

static int32_t few_tokens(struct call *c, int64_t first, int64_t n)
{
    uint32_t done = 0;
    if (c->silu != 0 && !call_joins(c->w)) return pass_pair(c, first, n);
    for (uint32_t i = 0; i < c->n_w; ++i) {
        struct qg_gemv g = {.silu = c->silu};
        if ((done >> i & 1) != 0) continue;
        const uint32_t set = c->silu != 0 ? 3 : call_together(c->w, c->y, c->n_w, i, done);
        done |= set;
        for (uint32_t k = i; k < c->n_w; ++k) {
            if ((set >> k & 1) == 0) continue;
            g.w[g.n_w] = c->w[k];
            g.y[g.n_w++] = tokens(&c->y[k], first, n);
        }
        if (i == 0 && c->a->epilogue == BP_EPILOGUE_ADD)
            g.residual = tokens(&c->a->residual, first, n);
        BP_TRY(pass(c, &g, first, n));
    }
    return BP_OK;
}

/* ---- many tokens ---- */

/* Rows of a weight as cuBLAS takes them, in the dtype of x. */
struct rows {
    void *data;
    int64_t ld;  /* elements from row to row */
    float scale; /* that is still to be applied */
};

/* Decoded into the slab, or where they lie if they are such already. What is decoded is scaled before it is
 * rounded, as the weights themselves are. */
static int32_t rows_of(const struct call *c, uint32_t i, uint32_t dtype, int64_t row, int64_t n,
                       struct rows *out)
{
    const struct qg_weight *w = c->w[i];
    const uint32_t is = w->type == BP_GGUF_F32    ? BP_DT_F32
                        : w->type == BP_GGUF_F16  ? BP_DT_F16
                        : w->type == BP_GGUF_BF16 ? BP_DT_BF16
                                                  : BP_DT_NONE;
    if (is == dtype) {
        out->scale = w->scale;
        out->ld = w->pitch / bp_dtype_bytes(dtype);
        out->data = w->data + row * w->pitch + w->skip * bp_dtype_bytes(dtype);
        return BP_OK;
    }
    out->scale = 1.0f;
    out->ld = plan_slab_ld(c->cols);
    out->data = c->s.slab;
    const struct qg_dequant d = {
        .w = w, .y = c->s.slab, .row = row, .n_rows = n, .y_stride = out->ld, .y_dtype = dtype};
    return launched(c, qg_dequant_launch(&d, c->l->stream));
}

/* y (n_tok, n) = scale * W x for n rows of weight i from `row` on. */
static int32_t multiply(const struct call *c, const struct bp_tensor *x, uint32_t i, int64_t row,
                        int64_t n, void *y, int64_t y_ld, uint32_t y_dtype)
{
    const uint32_t parts = c->low != 0 ? 2 : 1;
    struct rows w;
    BP_TRY(rows_of(c, i, x->dtype, row, n, &w));
    const struct bp_cuda_matrix b = {.data = w.data, .row = w.ld, .dtype = x->dtype},
                                to = {.data = y, .row = y_ld, .dtype = y_dtype};
    for (uint32_t p = 0; p < parts; ++p) {
        const struct bp_cuda_matrix from = {.data = (unsigned char *)x->data +
                                                    (int64_t)p * c->low * bp_dtype_bytes(x->dtype),
                                            .row = x->stride[0],
                                            .dtype = x->dtype};
        const cublasStatus_t s = bp_cuda_blas_abt(c->o->blas, &from, &b, &to, c->n_tok, n, c->cols,
                                                  1, w.scale, p == 0 ? 0.0f : 1.0f);
        BP_TRY(
            bp_cuda_blas_status(c->err, QG_NAME, "quant.matmul", s, "the product was not started"));
    }
    return BP_OK;
}

/* Rows [row, row + n) of output i. cuBLAS writes y itself where that is all there is to do. */
static int32_t slab(const struct call *c, const struct bp_tensor *x, uint32_t i, int64_t row,
                    int64_t n)
{
    const int add = i == 0 && c->a->epilogue == BP_EPILOGUE_ADD;
    const struct bp_tensor y = columns(&c->y[i], row, n);
    if (c->silu == 0 && !add && c->low == 0 && (y.dtype == BP_DT_F32 || y.dtype == x->dtype))
        return multiply(c, x, i, row, n, y.data, y.stride[0], y.dtype);
    BP_TRY(multiply(c, x, i, row, n, c->s.sums[0], n, BP_DT_F32));
    if (c->silu != 0) BP_TRY(multiply(c, x, 1, row, n, c->s.sums[1], n, BP_DT_F32));
    struct qg_finish f = {.a = c->s.sums[0],
                          .b = c->silu != 0 ? c->s.sums[1] : NULL,
                          .ab_stride = n,
                          .y = y,
                          .scale_a = 1.0f,
                          .scale_b = 1.0f};
    if (add) f.residual = columns(&c->a->residual, row, n);
    return launched(c, qg_finish_launch(&f, c->l->stream));
}

/* x after its norm: in its own dtype; f32 for an output of 16 bits as two bf16 that add up to 16 of its bits,
 * because that is what a norm inside of a product is for. */
static int32_t normed(struct call *c, struct bp_tensor *x)
{
    if (c->a->prologue != BP_PROLOGUE_RMS) return BP_OK;
    const int64_t ld = plan_slab_ld(c->cols);
    const int split = x->dtype == BP_DT_F32 && c->y[0].dtype != BP_DT_F32;
    const struct qg_stage s = {.x = x->data,
                               .norm_w = (const float *)c->a->norm_w.data,
                               .out = c->s.norm,
                               .x_stride = x->stride[0],
                               .ld = ld,
                               .cols = c->cols,
                               .n_tok = c->n_tok,
                               .x_dtype = x->dtype,
                               .parts = split ? 2 : 0,
                               .eps = c->a->eps,
                               .round = x->dtype,
                               .plain = !split};
    x->data = c->s.norm;
    x->stride[0] = split ? 2 * ld : ld;
    c->low = split ? ld : 0;
    if (split) x->dtype = BP_DT_BF16;
    return launched(c, qg_stage_launch(&s, c->l->stream));
}

static int32_t many_tokens(struct call *c)
{
    struct bp_tensor x = c->a->x;
    const int64_t step = plan_slab_rows(c->a->x.dtype);
    const uint32_t n_y = c->silu != 0 ? 1 : c->n_w;
    BP_TRY(bp_cuda_blas_begin(c->o->blas, c->l->stream, c->s.blas, PLAN_BLAS_BYTES, c->err, QG_NAME,
                              "quant.matmul"));
    BP_TRY(normed(c, &x));
    for (uint32_t i = 0; i < n_y; ++i) {
        for (int64_t row = 0; row < c->w[i]->rows; row += step) {
            const int64_t rest = c->w[i]->rows - row;
            BP_TRY(slab(c, &x, i, row, rest < step ? rest : step));
        }
    }
    return BP_OK;
}

/* ---- the call ---- */

static void begin(struct call *c)
{
    const struct bp_quant_matmul_args *a = c->a;
    c->n_w = a->n_out;
    c->silu = a->epilogue == BP_EPILOGUE_SILU_MUL;
    c->n_tok = a->x.dim[0];
    c->cols = a->x.dim[1];
    for (uint32_t i = 0; i < c->n_w; ++i) {
        const struct bp_matmul_out *out = bp_matmul_out_at(a, i);
        c->w[i] = (const struct qg_weight *)out->weight;
        c->y[i] = out->y;
    }
}

int32_t quant_matmul(void *self, const struct bp_launch *l, const struct bp_quant_matmul_args *a,
                     struct bp_error *err)
{
    struct quant_op *o = self;
    struct call c = {.o = o, .l = l, .a = a, .err = err};
    struct bp_area area;
    BP_TRY(call_check_matmul(a, err));
    begin(&c);
    if (c.n_tok == 0) return BP_OK;
    struct plan_need need = {.n_tok = (uint64_t)c.n_tok, .cols = c.cols, .x_dtype = a->x.dtype};
    for (uint32_t i = 0; i < c.n_w; ++i)
        need.rows = c.w[i]->rows > need.rows ? c.w[i]->rows : need.rows;
    need.gemm = c.n_tok >= o->plugin->gemm_from && c.cols > 0;
    bp_area_of(&area, l->scratch, l->scratch_bytes);
    plan_scratch(&area, &need, &c.s);
    if (area.bad != 0)
        return bp_error_number(err, BP_E_ARG, QG_NAME, "quant.matmul",
                               "the scratch memory is smaller than workspace() said: ",
                               (int64_t)l->scratch_bytes, " bytes");
    BP_TRY(bp_cuda_use(o->dev, err, QG_NAME, "quant.matmul"));
    if (need.gemm != 0) return many_tokens(&c);
    for (int64_t t = 0; t < c.n_tok; t += QG_MAX_TOK) {
        const int64_t rest = c.n_tok - t;
        BP_TRY(few_tokens(&c, t, rest < QG_MAX_TOK ? rest : QG_MAX_TOK));
    }
    return BP_OK;
}

int32_t quant_dequantize(void *self, const struct bp_launch *l,
                         const struct bp_quant_dequantize_args *a, struct bp_error *err)
{
    const struct quant_op *o = self;
    const struct qg_weight *w = (const struct qg_weight *)a->weight;
    const int64_t n = a->y.dim[0];
    BP_TRY(call_check_dequantize(a, err));
    if (n == 0 || w->cols == 0) return BP_OK;
    BP_TRY(bp_cuda_use(o->dev, err, QG_NAME, "quant.dequantize"));
    const struct qg_dequant d = {.w = w,
                                 .y = a->y.data,
                                 .row = a->row_begin,
                                 .n_rows = n,
                                 .y_stride = a->y.stride[0],
                                 .y_dtype = a->y.dtype};
    return bp_cuda_launched(err, QG_NAME, "quant.dequantize", qg_dequant_launch(&d, l->stream));
}
