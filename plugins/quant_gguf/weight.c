/* weight.c - weights: checked, uploaded through pinned buffers in runs of whole strips, and repacked on the
 * device. Not here: the layout (kernels/planes.cuh), sizes (plan.c). Threads: as prepare() says.
 * SPDX-License-Identifier: MIT */
#include "quant_gguf.h"

enum { SLAB_BYTES = 32 << 20 };

/* Memory for at least one strip as the file has it, and cuBLAS, both on first use. */
static int32_t make_ready(struct quant_op *o, uint64_t strip_bytes, const char *where,
                          struct bp_error *err)
{
    const uint64_t want = strip_bytes > SLAB_BYTES ? strip_bytes : SLAB_BYTES;
    BP_TRY(bp_cuda_staging_begin(&o->staging, err, QG_NAME, where));
    if (o->slab_bytes < want) {
        BP_TRY(bp_cuda_upload_done(&o->staging, err, QG_NAME, where));
        bp_cuda_free(o->dev, o->slab);
        o->slab = NULL;
        o->slab_bytes = 0;
        BP_TRY(bp_cuda_alloc(&o->slab, want, err, QG_NAME, where, "the upload of weights"));
        o->slab_bytes = want;
    }
    return o->blas != NULL ? BP_OK : bp_cuda_blas_create(&o->blas, err, QG_NAME, where);
}

/* All rows, a slab at a time. */
static int32_t fill(struct quant_op *o, const struct bp_raw *raw, const struct plan_weight *p,
                    int64_t block_bytes, struct qg_weight *w, struct bp_error *err)
{
    const char *where = bp_cuda_name(raw);
    const unsigned char *src = (const unsigned char *)raw->data +
                               (uint64_t)raw->begin[1] * (uint64_t)p->file_pitch +
                               (uint64_t)(p->first_block * block_bytes);
    int64_t n = (int64_t)(o->slab_bytes / (uint64_t)p->row_bytes) / PLAN_STRIP * PLAN_STRIP;
    for (int64_t row = 0; row < p->rows; row += n) {
        if (n > p->rows - row) n = p->rows - row;
        BP_TRY(bp_cuda_upload_rows(&o->staging, o->slab, src + row * p->file_pitch,
                                   (uint64_t)p->row_bytes, (uint64_t)p->file_pitch, (uint64_t)n,
                                   err, QG_NAME, where));
        if (w->layout == QG_PLANES) {
            const struct qg_repack r = {w, o->slab, p->row_bytes, row, n};
            BP_TRY(bp_cuda_launched(err, QG_NAME, where, qg_repack_launch(&r, o->staging.stream)));
            continue;
        }
        const cudaError_t e = cudaMemcpy2DAsync(
            w->data + row * p->pitch, (size_t)p->pitch, o->slab, (size_t)p->row_bytes,
            (size_t)p->row_bytes, (size_t)n, cudaMemcpyDeviceToDevice, o->staging.stream);
        BP_TRY(bp_cuda_status(err, QG_NAME, where, e, "rows could not be copied"));
    }
    return BP_OK;
}

static int32_t upload(struct quant_op *o, const struct bp_raw *raw, const struct plan_weight *p,
                      int64_t block_bytes, struct qg_weight *w, struct bp_error *err)
{
    const char *where = bp_cuda_name(raw);
    void *memory = NULL;
    BP_TRY(bp_cuda_use(o->dev, err, QG_NAME, where));
    BP_TRY(make_ready(o, (uint64_t)p->row_bytes * PLAN_STRIP, where, err));
    BP_TRY(bp_cuda_alloc(&memory, p->n_bytes, err, QG_NAME, where, "the weight"));
    w->data = (unsigned char *)memory;
    if (memory == NULL) return BP_OK;
    w->counters = (uint32_t *)(void *)(w->data + p->counters_at);
    /* Counters, the padding of rows, and weights without columns. */
    const uint64_t from = w->layout == QG_PLANES && p->row_bytes > 0 ? p->counters_at : 0;
    const cudaError_t e =
        cudaMemsetAsync(w->data + from, 0, (size_t)(p->n_bytes - from), o->staging.stream);
    BP_TRY(bp_cuda_status(err, QG_NAME, where, e, "memory could not be cleared"));
    if (p->row_bytes > 0) BP_TRY(fill(o, raw, p, block_bytes, w, err));
    return bp_cuda_upload_done(&o->staging, err, QG_NAME, where);
}

int32_t quant_prepare(void *self, const struct bp_raw *raw, void **out, struct bp_weight_info *info,
                      struct bp_error *err)
{
    struct quant_op *o = self;
    const struct bp_host *host = o->plugin->host;
    const int64_t elems = qg_block_elems(raw->type), block_bytes = qg_block_bytes(raw->type);
    const int64_t step_cols = qg_step_cols(raw->type);
    struct plan_weight p;
    struct bp_text t;
    *out = NULL;
    if (elems == 0)
        return bp_error_number(
            err, BP_DECLINED, QG_NAME, bp_cuda_name(raw), "type ", raw->type,
            " cannot be decoded by this plugin; its formats are in docs/plugins/quant_gguf.md");
    const char *wrong =
        plan_weight(raw, elems, block_bytes, step_cols, qg_step_bytes(raw->type), &p);
    if (wrong != NULL) {
        const int32_t rc = bp_error_begin(err, &t, BP_E_ARG, QG_NAME, bp_cuda_name(raw));
        bp_text_add(&t, "the tensor ");
        bp_text_add(&t, wrong);
        return rc;
    }
    struct qg_weight *w = (struct qg_weight *)bp_mem_alloc(host, 1, sizeof *w);
    if (w == NULL)
        return bp_error_set(err, BP_E_NOMEM, QG_NAME, bp_cuda_name(raw),
                            "no memory for a weight's handle");
    *w = (struct qg_weight){.type = raw->type,
                            .layout = step_cols == 0                 ? QG_BLOCKS
                                      : qg_step_bytes(raw->type) > 0 ? QG_PLANES
                                                                     : QG_ROWS,
                            .rows = p.rows,
                            .cols = p.cols,
                            .skip = p.skip,
                            .cover = p.cover,
                            .n_steps = p.n_steps,
                            .pitch = p.pitch,
                            .scale = raw->scale};
    const int32_t rc = upload(o, raw, &p, block_bytes, w, err);
    if (rc != BP_OK) {
        quant_release(o, w);
        return rc;
    }
    if (BP_HAS(info, struct bp_weight_info, n_bytes)) {
        info->layout_id = 0;
        info->n_bytes = p.n_bytes;
    }
    *out = w;
    return BP_OK;
}

void quant_release(void *self, void *weight)
{
    struct quant_op *o = self;
    struct qg_weight *w = weight;
    if (w == NULL) return;
    (void)bp_cuda_use(o->dev, NULL, QG_NAME, "quant.release");
    (void)bp_cuda_upload_done(&o->staging, NULL, QG_NAME, "quant.release");
    bp_cuda_free(o->dev, w->data);
    bp_mem_free(o->plugin->host, w);
}

void quant_weights_end(struct quant_op *o)
{
    if (o->staging.ready == 0) return; /* nothing was made */
    (void)bp_cuda_use(o->dev, NULL, QG_NAME, "bp.quant");
    if (o->blas != NULL) (void)cublasDestroy(o->blas);
    bp_cuda_staging_end(&o->staging);
    bp_cuda_free(o->dev, o->slab);
    o->blas = NULL;
    o->slab = NULL;
    o->slab_bytes = 0;
}
