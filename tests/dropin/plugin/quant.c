/* quant.c - "bp.quant" of the drop-in plugin: products with Q8_0 weights, straight from the file's bytes; no fused forms.
 * A block is 32 numbers: an f16 scale and 32 signed bytes. Threads: rows are split over the host's.
 * SPDX-License-Identifier: MIT */
#include "dropin.h"

enum { BLOCK = 32, BLOCK_BYTES = 34 };

struct weight {
    const unsigned char *first; /* block (0, 0) of this rank's part */
    int64_t rows, cols, row_bytes;
    float scale;
};

static int32_t quant_supports(void *self, const void *problem, struct bp_verdict *v)
{
    const uint32_t floats = BP_SET(BP_DT_F32) | BP_SET(BP_DT_BF16) | BP_SET(BP_DT_F16);
    const struct bp_quant_problem *p = problem;
    (void)self;
    if (!bp_verdict_begin(v, &p->h, BP_END(struct bp_quant_problem, epilogue))) return BP_OK;
    bp_want_range(v, BP_R_FEATURE, "op", p->op, BP_QUANT_OP_MATMUL, BP_QUANT_OP_DEQUANTIZE);
    bp_want_eq(v, BP_R_FEATURE, "prologue", p->prologue, BP_PROLOGUE_NONE);
    bp_want_eq(v, BP_R_FEATURE, "epilogue", p->epilogue, BP_EPILOGUE_NONE);
    bp_want_range(v, BP_R_SHAPE, "n_w", p->n_w, 1, 4);
    for (uint32_t i = 0; p->w != NULL && i < p->n_w; ++i) {
        bp_want_eq(v, BP_R_QUANT, "w.type", bp_quant_shape_at(p, i)->type, BP_GGUF_Q8_0);
        bp_want_mul(v, BP_R_ALIGN, "w.cols", bp_quant_shape_at(p, i)->cols, BLOCK);
    }
    if (p->op == BP_QUANT_OP_MATMUL) bp_want_dtype(v, "x_dtype", p->x_dtype, floats);
    bp_want_dtype(v, "y_dtype", p->y_dtype, floats);
    return bp_verdict_done(v, BP_CAPTURE_NONE, BP_DET_BATCH, -1.0);
}

static float *take(struct bp_area *a, uint64_t n_tok, uint64_t cols)
{
    return bp_area_take(a, n_tok,
                        cols <= UINT64_MAX / sizeof(float) ? cols * sizeof(float) : UINT64_MAX);
}

static int32_t quant_workspace(void *self, const void *problem_max, struct bp_workspace *out,
                               struct bp_error *err)
{
    const struct bp_quant_problem *p = problem_max;
    struct bp_area area;
    int64_t cols = 0;
    (void)self;
    for (uint32_t i = 0; i < p->n_w; ++i)
        cols = bp_quant_shape_at(p, i)->cols > cols ? bp_quant_shape_at(p, i)->cols : cols;
    bp_area_count(&area);
    (void)take(&area, p->max_tok, (uint64_t)cols);
    if (area.bad != 0)
        return bp_error_set(err, BP_E_LIMIT, NAME, "workspace", "the scratch overflows 64 bits");
    return bp_workspace_set(out, 0, 0, area.used, 0);
}

static int32_t quant_format(void *self, uint32_t i, uint32_t *out_type)
{
    (void)self;
    *out_type = BP_GGUF_Q8_0;
    return i == 0 ? BP_OK : BP_DECLINED;
}

static int32_t quant_prepare(void *self, const struct bp_raw *raw, void **out,
                             struct bp_weight_info *info, struct bp_error *err)
{
    const struct dropin *d = self;
    if (raw->type != BP_GGUF_Q8_0 || raw->begin[0] % BLOCK != 0 || raw->end[0] % BLOCK != 0)
        return bp_error_set(err, BP_DECLINED, NAME, raw->name,
                            "only whole blocks of Q8_0 are served");
    struct weight *w = bp_mem_alloc(d->host, 1, sizeof *w);
    if (w == NULL) return bp_error_set(err, BP_E_NOMEM, NAME, raw->name, "no memory for a handle");
    w->row_bytes = raw->ne[0] / BLOCK * BLOCK_BYTES;
    w->first = (const unsigned char *)raw->data + raw->begin[1] * w->row_bytes +
               raw->begin[0] / BLOCK * BLOCK_BYTES;
    w->rows = raw->end[1] - raw->begin[1];
    w->cols = raw->end[0] - raw->begin[0];
    w->scale = raw->scale;
    if (info != NULL) {
        info->layout_id = 0;
        info->n_bytes = sizeof *w;
    }
    *out = w;
    return BP_OK;
}

static void quant_release(void *self, void *weight)
{
    bp_mem_free(((const struct dropin *)self)->host, weight);
}

struct job {
    const struct weight *w;
    const struct bp_tensor *y;
    const float *x;
    int64_t n_tok;
    uint32_t fault;
};

static float block_scale(const struct weight *w, const unsigned char *block)
{
    uint16_t half;
    memcpy(&half, block, sizeof half);
    return bp_f16_f32(half) * w->scale;
}

static void multiply_rows(void *arg, uint64_t begin, uint64_t end)
{
    const struct job *j = arg;
    const struct weight *w = j->w;
    for (int64_t r = (int64_t)begin; r < (int64_t)end; ++r) {
        for (int64_t t = 0; t < j->n_tok; ++t) {
            const unsigned char *block = w->first + r * w->row_bytes;
            const float *x = j->x + t * w->cols;
            float sum = 0.0f;
            for (int64_t k = 0; k < w->cols; k += BLOCK, block += BLOCK_BYTES) {
                const signed char *q = (const signed char *)block + 2;
                float part = 0.0f;
                for (int i = 0; i < BLOCK; ++i) part += (float)q[i] * x[k + i];
                /* The deliberate error: the first block of a row is taken without its scale. */
                sum += j->fault == FAULT_MATMUL && k == 0 ? part : part * block_scale(w, block);
            }
            bp_store((unsigned char *)bp_at(j->y, t, 0, 0) + r * bp_dtype_bytes(j->y->dtype),
                     j->y->dtype, &sum, 1);
        }
    }
}

static int32_t quant_matmul(void *self, const struct bp_launch *l,
                            const struct bp_quant_matmul_args *a, struct bp_error *err)
{
    struct dropin *d = self;
    struct bp_area area;
    d->n_matmul++;
    if (a->prologue != BP_PROLOGUE_NONE || a->epilogue != BP_EPILOGUE_NONE)
        return bp_error_set(err, BP_E_ARG, NAME, "matmul", "a fused form that supports() refused");
    if (a->x.dim[0] == 0) return BP_OK;
    bp_area_of(&area, l->scratch, l->scratch_bytes);
    float *x = take(&area, (uint64_t)a->x.dim[0], (uint64_t)a->x.dim[1]);
    if (area.bad != 0)
        return bp_error_set(err, BP_E_ARG, NAME, "matmul", "too little scratch for this call");
    for (struct bp_rows r = bp_rows_of(&a->x); bp_rows_next(&r);)
        bp_load(x + r.i[0] * r.n, r.p, a->x.dtype, r.n);
    for (uint32_t i = 0; i < a->n_out; ++i) {
        const struct bp_matmul_out *o = bp_matmul_out_at(a, i);
        struct job j = {o->weight, &o->y, x, a->x.dim[0], d->fault};
        bp_parallel_for(d->host, (uint64_t)j.w->rows, 0, multiply_rows, &j);
    }
    return BP_OK;
}

static int32_t quant_dequantize(void *self, const struct bp_launch *l,
                                const struct bp_quant_dequantize_args *a, struct bp_error *err)
{
    const struct weight *w = a->weight;
    (void)self, (void)l;
    if (a->row_begin < 0 || a->y.dim[0] > w->rows - a->row_begin || a->y.dim[1] != w->cols)
        return bp_error_set(err, BP_E_ARG, NAME, "dequantize", "rows outside of the weight");
    for (struct bp_rows r = bp_rows_of(&a->y); bp_rows_next(&r);) {
        const unsigned char *block = w->first + (a->row_begin + r.i[0]) * w->row_bytes;
        unsigned char *out = r.p;
        for (int64_t k = 0; k < w->cols; k += BLOCK, block += BLOCK_BYTES) {
            float v[BLOCK];
            for (int i = 0; i < BLOCK; ++i)
                v[i] = (float)((const signed char *)block)[2 + i] * block_scale(w, block);
            bp_store(out + k * bp_dtype_bytes(a->y.dtype), a->y.dtype, v, BLOCK);
        }
    }
    return BP_OK;
}

const struct bp_quant_ops dropin_quant = {BP_OP_BASE(struct bp_quant_ops, dequantize, "bp.quant",
                                                     quant_supports, quant_workspace,
                                                     bp_quant_tensors),
                                          quant_format,
                                          quant_prepare,
                                          quant_release,
                                          quant_matmul,
                                          quant_dequantize};
