/* dense.c - the dense slot on CUDA: what is served, memory asked for, the embedding table.
 * Not here: the calls (dense_run.c), the kernels. Threads: as slot_dense.h says. SPDX-License-Identifier: MIT */
#include "device_cuda.h"

#include <backplane/cuda/block.cuh>

static int32_t dense_supports(void *self, const void *problem, struct bp_verdict *v)
{
    const uint32_t floats = BP_SET(BP_DT_F32) | BP_SET(BP_DT_F16) | BP_SET(BP_DT_BF16);
    const struct dc_dense *d = self;
    const struct bp_dense_problem *p = problem;
    if (!bp_verdict_begin(v, &p->h, BP_END(struct bp_dense_problem, k))) return BP_OK;
    const int picks = p->op == BP_DENSE_OP_ARGMAX || p->op == BP_DENSE_OP_TOPK;
    const int multiplies = p->op == BP_DENSE_OP_MATMUL;
    bp_want_cc(v, d->dev, DC_MIN_CC, INT32_MAX);
    bp_want_range(v, BP_R_FEATURE, "op", p->op, 0, BP_DENSE_OP_MATMUL);
    bp_want_range(v, BP_R_SHAPE, "width", p->width, picks || multiplies, INT32_MAX);
    bp_want_le(v, BP_R_SHAPE, "max_rows", p->max_rows, INT32_MAX / DC_MAX_PARTS);
    if (p->op == BP_DENSE_OP_ROPE) bp_want_mul(v, BP_R_SHAPE, "width", p->width, 2);
    if (p->op == BP_DENSE_OP_TOPK) {
        const int64_t most = p->width < DC_MAX_K ? p->width : DC_MAX_K;
        bp_want_range(v, BP_R_SHAPE, "k", p->k, 1, most);
    }
    if (p->op == BP_DENSE_OP_EMBED && bp_block_elems(p->type) == 0) {
        bp_reason_add(v, BP_R_QUANT, 1, "type", p->type, 0, BP_GGUF_COUNT - 1,
                      "block.cuh has no decoder for this type");
    }
    if (picks) bp_want_dtype(v, "x_dtype", p->x_dtype, BP_SET(BP_DT_F32));
    if (!picks && p->op != BP_DENSE_OP_EMBED) bp_want_dtype(v, "x_dtype", p->x_dtype, floats);
    if (!picks && !multiplies) bp_want_dtype(v, "y_dtype", p->y_dtype, floats);
    if (multiplies && p->x_dtype < 32 && (floats & BP_SET(p->x_dtype)) != 0) /* what cuBLAS has */
        bp_want_dtype(v, "y_dtype", p->y_dtype, BP_SET(BP_DT_F32) | BP_SET(p->x_dtype));
    /* cuBLAS chooses its kernel by the number of rows. */
    return bp_verdict_done(v, BP_CAPTURE_ANY, multiplies ? BP_DET_RUN : BP_DET_BATCH, -1.0);
}

/* matmul: what cuBLAS works in. argmax: a counter per row, zero between calls, and the best of each part of a row.
 * The counters are all that the op keeps: one bound op may serve both, and cuBLAS leaves its memory dirty. */
static int32_t dense_workspace(void *self, const void *problem_max, struct bp_workspace *out,
                               struct bp_error *err)
{
    const struct bp_dense_problem *p = problem_max;
    (void)self, (void)err;
    if (p->op == BP_DENSE_OP_MATMUL) {
        BP_TRY(bp_workspace_set(out, 0, 0, BP_CUDA_BLAS_BYTES, 0));
        out->align = BP_CUDA_BLAS_ALIGN;
        return BP_OK;
    }
    if (p->op != BP_DENSE_OP_ARGMAX) return bp_workspace_set(out, 0, 0, 0, 0);
    const uint64_t n = p->max_rows;
    BP_TRY(bp_workspace_set(out, n * sizeof(uint32_t), 0, n * DC_MAX_PARTS * sizeof(uint64_t), 0));
    out->persistent_zeroed = 1;
    return BP_OK;
}

/* ---- embedding table --------------------------------------------------------------------------- */

/* Rows, columns and bytes of the part that is asked for, checked once; kernels do not look again. */
static int32_t measure(const struct bp_raw *raw, struct dc_table *t, uint64_t *first_byte,
                       uint64_t *pitch, struct bp_error *err)
{
    const int64_t elems = bp_block_elems(raw->type), bytes = bp_block_size(raw->type);
    if (elems == 0)
        return bp_error_number(err, BP_DECLINED, DC_NAME, bp_cuda_name(raw), "type ", raw->type,
                               " has no decoder here");
    for (int i = 0; i < 4; ++i) {
        if (raw->begin[i] < 0 || raw->begin[i] > raw->end[i] || raw->end[i] > raw->ne[i] ||
            (i > 1 && raw->ne[i] != 1))
            return bp_error_number(err, BP_E_ARG, DC_NAME, bp_cuda_name(raw),
                                   "the part of an embedding table is no part of it in dimension ",
                                   i, "");
    }
    if (raw->data == NULL || raw->ne[0] % elems != 0)
        return bp_error_number(err, BP_E_ARG, DC_NAME, bp_cuda_name(raw),
                               "an embedding table has data, and rows of whole blocks of ", elems,
                               " elements");
    if (raw->ne[0] / elems > INT32_MAX)
        return bp_error_number(err, BP_E_ARG, DC_NAME, bp_cuda_name(raw),
                               "rows of an embedding table have up to 2^31 - 1 blocks, not ",
                               raw->ne[0] / elems, "");
    *pitch = (uint64_t)(raw->ne[0] / elems * bytes);
    if (*pitch != 0 && (uint64_t)raw->ne[1] > raw->n_bytes / *pitch)
        return bp_error_number(err, BP_E_ARG, DC_NAME, bp_cuda_name(raw),
                               "the table is shorter than its ", raw->ne[1], " rows");
    const int64_t first = raw->begin[0] / elems, last = (raw->end[0] + elems - 1) / elems;
    t->type = raw->type;
    t->scale = raw->scale;
    t->n_rows = raw->end[1] - raw->begin[1];
    t->width = raw->end[0] - raw->begin[0];
    t->skip = t->width != 0 ? raw->begin[0] - first * elems : 0;
    t->row_bytes = t->width != 0 ? (last - first) * bytes : 0;
    *first_byte = (uint64_t)raw->begin[1] * *pitch + (uint64_t)(first * bytes);
    return BP_OK;
}

static int32_t upload(struct dc_dense *d, struct dc_table *t, const struct bp_raw *raw,
                      uint64_t first_byte, uint64_t pitch, struct bp_error *err)
{
    const uint64_t n_bytes = (uint64_t)t->n_rows * (uint64_t)t->row_bytes;
    const unsigned char *src = (const unsigned char *)raw->data + first_byte;
    void *data = NULL;
    BP_TRY(bp_cuda_use(d->dev, err, DC_NAME, bp_cuda_name(raw)));
    BP_TRY(bp_cuda_alloc(&data, n_bytes, err, DC_NAME, bp_cuda_name(raw), "the embedding table"));
    t->data = data;
    if (n_bytes == 0) return BP_OK;
    int32_t rc;
    if (pitch == (uint64_t)t->row_bytes)
        rc = bp_cuda_upload(&d->staging, data, src, n_bytes, err, DC_NAME, bp_cuda_name(raw));
    else
        rc = bp_cuda_upload_rows(&d->staging, data, src, (uint64_t)t->row_bytes, pitch,
                                 (uint64_t)t->n_rows, err, DC_NAME, bp_cuda_name(raw));
    if (rc == BP_OK) rc = bp_cuda_upload_done(&d->staging, err, DC_NAME, bp_cuda_name(raw));
    if (rc != BP_OK) bp_cuda_free(d->dev, data);
    return rc;
}

static int32_t dense_prepare(void *self, const struct bp_raw *raw, void **out,
                             struct bp_weight_info *info, struct bp_error *err)
{
    struct dc_dense *d = self;
    struct dc_table made = {0};
    uint64_t first_byte = 0, pitch = 0;
    *out = NULL;
    BP_TRY(measure(raw, &made, &first_byte, &pitch, err));
    struct dc_table *t = bp_mem_alloc(d->plugin->host, 1, sizeof *t);
    if (t == NULL)
        return bp_error_set(err, BP_E_NOMEM, DC_NAME, bp_cuda_name(raw),
                            "no memory for the table's handle");
    const int32_t rc = upload(d, &made, raw, first_byte, pitch, err);
    if (rc != BP_OK) {
        bp_mem_free(d->plugin->host, t);
        return rc;
    }
    *t = made;
    if (BP_HAS(info, struct bp_weight_info, n_bytes)) {
        info->layout_id = 0;
        info->n_bytes = (uint64_t)t->n_rows * (uint64_t)t->row_bytes;
    }
    *out = t;
    return BP_OK;
}

static void dense_release(void *self, void *table)
{
    struct dc_dense *d = self;
    struct dc_table *t = table;
    if (t == NULL) return;
    bp_cuda_free(d->dev, t->data);
    bp_mem_free(d->plugin->host, t);
}

// clang-format off
static const struct bp_dense_ops ops = {
    .base = BP_OP_BASE(struct bp_dense_ops, matmul, "bp.dense", dense_supports, dense_workspace, bp_dense_tensors),
    .prepare = dense_prepare, .release = dense_release, .embed = dc_embed,
    .rms = dc_rms, .layernorm = dc_layernorm, .rope = dc_rope, .silu_mul = dc_silu_mul, .add = dc_add,
    .argmax = dc_argmax, .topk = dc_topk, .matmul = dc_matmul,
};
// clang-format on

const struct bp_op_base *dc_dense_ops(void)
{
    return &ops.base;
}
