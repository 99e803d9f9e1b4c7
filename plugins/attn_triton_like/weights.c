/* weights.c - up-projections of one layer: prepare, expand, absorb.
 * k_b and v_b, or kv_b, are decoded once on the device into one orientation, in the dtype of the activations: f32 holds
 * every decoded value, 16 bits round it as the activations are rounded themselves.
 * Of one row of input, and where dtypes differ, the products are our own kernels; else cuBLAS, batched over heads,
 * with f32 accumulation and a fixed workspace. Threads: one call per instance. SPDX-License-Identifier: MIT */
#include "common.h"

enum { MAX_DIM = 1 << 20 };

/* One tensor: rows of row_len numbers, head_rows of them a head. */
struct part {
    const struct bp_raw *raw;
    int64_t row_len, head_rows;
    uint32_t block_elems, block_bytes;
};

static int32_t check_part(const struct bp_raw *raw, int64_t row_len, int64_t head_rows,
                          int64_t n_head, struct part *out, struct bp_error *err)
{
    int64_t rows = 1;
    *out = (struct part){.raw = raw, .row_len = row_len, .head_rows = head_rows};
    out->block_elems = attn_type_block(raw->type, &out->block_bytes);
    if (out->block_elems == 0) {
        return bp_error_number(err, BP_DECLINED, ATTN_NAME, bp_cuda_name(raw),
                               "there is no decoder for tensor type ", raw->type, "");
    }
    for (uint32_t d = 1; d < 4 && d < raw->n_dim; ++d) {
        if (raw->ne[d] < 0 || raw->ne[d] > INT32_MAX || rows > INT32_MAX)
            return bp_error_number(err, BP_E_ARG, ATTN_NAME, bp_cuda_name(raw), "the tensor has ",
                                   raw->ne[d], " rows in one dimension, which no model has");
        rows *= raw->ne[d];
    }
    if (raw->ne[0] != row_len || rows != head_rows * n_head || row_len % out->block_elems != 0 ||
        raw->n_bytes != (uint64_t)(row_len / out->block_elems * rows) * out->block_bytes) {
        struct bp_text t;
        (void)bp_error_begin(err, &t, BP_E_ARG, ATTN_NAME, bp_cuda_name(raw));
        bp_text_add(&t, "the tensor is ");
        bp_text_i64(&t, raw->ne[0]);
        bp_text_add(&t, " x ");
        bp_text_i64(&t, rows);
        bp_text_add(&t, " numbers in ");
        bp_text_u64(&t, raw->n_bytes);
        bp_text_add(&t, " bytes, and the model's heads need ");
        bp_text_i64(&t, row_len);
        bp_text_add(&t, " x ");
        bp_text_i64(&t, head_rows * n_head);
        bp_text_add(&t, " in whole blocks");
        return BP_E_ARG;
    }
    return BP_OK;
}

/* The rank's heads of one tensor, to dst. `at`: where the head's first row goes, in rows of the head. */
static int32_t decode_part(struct attn_common *c, const struct attn_weights *own,
                           const struct part *p, int64_t head_begin, int64_t at, int transposed,
                           struct bp_error *err)
{
    const uint64_t head_elems = (uint64_t)(p->row_len * p->head_rows);
    const uint64_t head_bytes = head_elems / p->block_elems * p->block_bytes,
                   n_bytes = head_bytes * (uint64_t)own->n_head;
    const unsigned char *src =
        (const unsigned char *)p->raw->data + head_bytes * (uint64_t)head_begin;
    const int64_t head_out = (own->nope_dim + own->v_dim) * own->kv_rank;
    void *raw = NULL;
    if (n_bytes == 0) return BP_OK;
    BP_TRY(bp_cuda_alloc(&raw, n_bytes, err, ATTN_NAME, bp_cuda_name(p->raw),
                         "the up-projection as the file has it"));
    int32_t rc =
        bp_cuda_upload(&c->staging, raw, src, n_bytes, err, ATTN_NAME, bp_cuda_name(p->raw));
    if (rc == BP_OK) {
        const struct attn_decode_weights x = {.src = raw,
                                              .dst = (unsigned char *)own->rows +
                                                     at * own->kv_rank * bp_dtype_bytes(own->dtype),
                                              .n = head_elems * (uint64_t)own->n_head,
                                              .row_len = p->row_len,
                                              .head_rows = p->head_rows,
                                              .head_out = head_out,
                                              .ld = own->kv_rank,
                                              .type = p->raw->type,
                                              .dst_dtype = own->dtype,
                                              .transposed = (uint32_t)transposed,
                                              .scale = p->raw->scale};
        rc = attn_launched(attn_start_decode_weights(&x, c->staging.stream), bp_cuda_name(p->raw),
                           err);
    }
    const int32_t done =
        bp_cuda_upload_done(&c->staging, rc == BP_OK ? err : NULL, ATTN_NAME, bp_cuda_name(p->raw));
    (void)cudaFree(raw); /* prepare() has chosen the device */
    (void)cudaGetLastError();
    return rc != BP_OK ? rc : done;
}

static int32_t decode_all(struct attn_common *c, const struct bp_mla_weights *w,
                          const struct attn_weights *own, struct bp_error *err)
{
    const int64_t p = w->nope_dim, v = w->v_dim, r = w->kv_rank, h = w->n_head,
                  first = w->head_begin;
    const int k_own = w->k_b.data != NULL, v_own = w->v_b.data != NULL;
    struct part part;
    if (!k_own || !v_own) {
        if (w->kv_b.data == NULL) {
            return bp_error_set(err, BP_E_ARG, ATTN_NAME, "mla.common prepare",
                                "the layer has neither k_b with v_b nor the joint kv_b; check the "
                                "file with backplane "
                                "inspect");
        }
        BP_TRY(check_part(&w->kv_b, r, p + v, h, &part, err));
        BP_TRY(decode_part(c, own, &part, first, 0, 0, err));
    }
    if (k_own) { /* transposed in the file: row c has the P numbers that multiply latent c */
        BP_TRY(check_part(&w->k_b, p, r, h, &part, err));
        BP_TRY(decode_part(c, own, &part, first, 0, 1, err));
    }
    if (!v_own) return BP_OK;
    BP_TRY(check_part(&w->v_b, r, v, h, &part, err));
    return decode_part(c, own, &part, first, p, 0, err);
}

int32_t attn_prepare(void *self, const struct bp_mla_weights *w, void **out,
                     struct bp_weight_info *info, struct bp_error *err)
{
    struct attn_op *o = self;
    const uint32_t dims[] = {w->nope_dim, w->v_dim, w->kv_rank, w->n_head};
    for (uint32_t i = 0; i < BP_LEN(dims); ++i) {
        if (dims[i] >= 1 && dims[i] <= MAX_DIM && w->head_begin <= w->head_end &&
            w->head_end <= w->n_head)
            continue;
        return bp_error_number(
            err, BP_E_ARG, ATTN_NAME, "mla.common prepare",
            "every dimension must be 1 to 1048576 and the heads in order, and one is ", dims[i],
            "");
    }
    BP_TRY(attn_use(o, "mla.common prepare", err));
    if (o->common->blas == NULL)
        BP_TRY(bp_cuda_blas_create(&o->common->blas, err, ATTN_NAME, "mla.common prepare"));
    struct attn_weights *own = bp_mem_alloc(o->plugin->host, 1, sizeof *own);
    if (own == NULL)
        return bp_error_set(err, BP_E_NOMEM, ATTN_NAME, "mla.common prepare",
                            "no memory for the handle");
    *own = (struct attn_weights){.n_head = w->head_end - w->head_begin,
                                 .nope_dim = w->nope_dim,
                                 .v_dim = w->v_dim,
                                 .kv_rank = w->kv_rank,
                                 .dtype = o->common->weight_dtype};
    /* Below 2^61 by the limits above, and what the device cannot give is told with its number of bytes. */
    const uint64_t n_bytes = (uint64_t)own->n_head * (uint64_t)(own->nope_dim + own->v_dim) *
                             (uint64_t)own->kv_rank * (uint64_t)bp_dtype_bytes(own->dtype);
    int32_t rc = bp_cuda_alloc(&own->rows, n_bytes, err, ATTN_NAME, "mla.common prepare",
                               "the up-projections of a layer");
    if (rc == BP_OK) rc = decode_all(o->common, w, own, err);
    if (rc != BP_OK) {
        attn_release(self, own);
        return rc;
    }
    if (info != NULL) {
        info->layout_id = 0; /* private to this provider */
        info->n_bytes = n_bytes;
    }
    *out = own;
    return BP_OK;
}

void attn_release(void *self, void *weights)
{
    const struct attn_op *o = self;
    struct attn_weights *own = weights;
    if (own == NULL) return;
    bp_cuda_free(o->dev, own->rows);
    bp_mem_free(o->plugin->host, own);
}

/* ---- products ---- */

static int32_t blas_product(struct attn_common *c, const struct bp_launch *l,
                            const struct attn_product *p, const char *op, struct bp_error *err)
{
    const float one = 1.0f, zero = 0.0f;
    const cudaDataType_t type = bp_cuda_blas_type(p->w_dtype);
    /* Row-major y = x W^T is column-major y^T = W x^T; W's rows are columns there. */
    const cublasOperation_t turn = p->transposed != 0 ? CUBLAS_OP_N : CUBLAS_OP_T;
    BP_TRY(bp_cuda_blas_begin(c->blas, l->stream, l->persistent, BP_CUDA_BLAS_BYTES, err, ATTN_NAME,
                              op));
    const cublasStatus_t s = cublasGemmStridedBatchedEx(
        c->blas, turn, CUBLAS_OP_N, (int)p->n_out, (int)p->n_row, (int)p->n_in, &one, p->w, type,
        (int)p->ld, p->w_head, p->x.data, type, (int)p->x.row, p->x.head, &zero, p->y.data, type,
        (int)p->y.row, p->y.head, (int)p->n_head, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    return bp_cuda_blas_status(err, ATTN_NAME, op, s, "the batched product was not started");
}

static int32_t product(struct attn_op *o, const struct bp_launch *l, const struct attn_product *p,
                       const char *op, struct bp_error *err)
{
    const int64_t most = INT32_MAX;
    const int plain = p->x.dtype == p->w_dtype && p->y.dtype == p->w_dtype && p->x.row <= most &&
                      p->y.row <= most && p->n_row <= most && p->x.row >= p->n_in &&
                      p->y.row >= p->n_out;
    if (p->n_row > 1 && plain) return blas_product(o->common, l, p, op, err);
    return attn_launched(attn_start_product(p, l->stream), op, err);
}

int32_t attn_expand(void *self, const struct bp_launch *l, const struct bp_mla_expand_args *a,
                    struct bp_error *err)
{
    static const char op[] = "mla.common expand";
    const struct attn_weights *w = a->weights;
    if (w == NULL || a->k_pe.ndim != 2)
        return bp_error_set(err, BP_E_ARG, ATTN_NAME, op, "no weights, or k_pe is not (n_k, R)");
    const int64_t n = a->c.dim[0], n_rope = a->k_pe.dim[1];
    if (n == 0 || w->n_head == 0) return BP_OK;
    BP_TRY(attn_use(self, op, err));
    BP_TRY(attn_port(&a->c, "c", BP_DT_NONE, n, w->kv_rank, 0, op, err));
    BP_TRY(attn_port(&a->k_pe, "k_pe", BP_DT_NONE, n, n_rope, 0, op, err));
    BP_TRY(attn_port(&a->k, "k", BP_DT_NONE, n, w->n_head, w->nope_dim + n_rope, op, err));
    BP_TRY(attn_port(&a->v, "v", BP_DT_NONE, n, w->n_head, w->v_dim, op, err));
    struct attn_product p = {.w = w->rows,
                             .w_head = (w->nope_dim + w->v_dim) * w->kv_rank,
                             .ld = w->kv_rank,
                             .x = attn_rows_of(&a->c),
                             .y = attn_rows_of(&a->k),
                             .n_row = (uint32_t)n,
                             .n_head = (uint32_t)w->n_head,
                             .n_in = (uint32_t)w->kv_rank,
                             .n_out = (uint32_t)w->nope_dim,
                             .w_dtype = w->dtype};
    p.x.head = 0; /* all heads share the latents */
    BP_TRY(product(self, l, &p, op, err));
    p.w = (const unsigned char *)w->rows + w->nope_dim * w->kv_rank * bp_dtype_bytes(w->dtype);
    p.y = attn_rows_of(&a->v);
    p.n_out = (uint32_t)w->v_dim;
    BP_TRY(product(self, l, &p, op, err));
    const struct attn_spread s = {.k_pe = attn_rows_of(&a->k_pe),
                                  .k = attn_rows_of(&a->k),
                                  .n_row = (uint32_t)n,
                                  .n_head = (uint32_t)w->n_head,
                                  .first = (uint32_t)w->nope_dim,
                                  .n_rope = (uint32_t)n_rope};
    return attn_launched(attn_start_spread(&s, l->stream), op, err);
}

int32_t attn_absorb(void *self, const struct bp_launch *l, const struct bp_mla_absorb_args *a,
                    struct bp_error *err)
{
    static const char op[] = "mla.common absorb";
    const struct attn_weights *w = a->weights;
    if (w == NULL || a->side > BP_MLA_ABSORB_UV)
        return bp_error_number(err, BP_E_ARG, ATTN_NAME, op, "no weights, or side ", a->side,
                               " is neither UK nor UV");
    const int out_of = a->side == BP_MLA_ABSORB_UV;
    const int64_t n = a->x.dim[0], n_in = out_of ? w->kv_rank : w->nope_dim,
                  n_out = out_of ? w->v_dim : w->kv_rank;
    if (n == 0 || w->n_head == 0) return BP_OK;
    BP_TRY(attn_use(self, op, err));
    BP_TRY(attn_port(&a->x, "x", BP_DT_NONE, n, w->n_head, n_in, op, err));
    BP_TRY(attn_port(&a->y, "y", BP_DT_NONE, n, w->n_head, n_out, op, err));
    const int64_t skip = out_of ? w->nope_dim * w->kv_rank * bp_dtype_bytes(w->dtype) : 0;
    const struct attn_product p = {.w = (const unsigned char *)w->rows + skip,
                                   .w_head = (w->nope_dim + w->v_dim) * w->kv_rank,
                                   .ld = w->kv_rank,
                                   .x = attn_rows_of(&a->x),
                                   .y = attn_rows_of(&a->y),
                                   .n_row = (uint32_t)n,
                                   .n_head = (uint32_t)w->n_head,
                                   .n_in = (uint32_t)n_in,
                                   .n_out = (uint32_t)n_out,
                                   .transposed = (uint32_t)!out_of,
                                   .w_dtype = w->dtype};
    return product(self, l, &p, op, err);
}
