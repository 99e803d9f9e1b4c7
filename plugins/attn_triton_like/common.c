/* common.c - "bp.mla.common": layouts, cache writes and reads, merge, the op table. Up-projections: weights.c.
 * Lengths, slots and segments are read on the device; the host's counts fix the grids.
 * Threads: one call per instance. SPDX-License-Identifier: MIT */
#include "common.h"

int32_t attn_common_open(struct attn_op *o, struct bp_error *err)
{
    struct attn_common *c = bp_mem_alloc(o->plugin->host, 1, sizeof *c);
    if (c == NULL)
        return bp_error_set(err, BP_E_NOMEM, ATTN_NAME, "bp.mla.common", "no memory for the op");
    c->weight_dtype = BP_DT_F32;
    o->common = c;
    return BP_OK;
}

void attn_common_close(struct attn_op *o)
{
    struct attn_common *c = o->common;
    if (c == NULL) return;
    (void)cudaSetDevice(o->dev->ordinal);
    bp_cuda_staging_end(&c->staging);
    if (c->blas != NULL) (void)cublasDestroy(c->blas);
    bp_mem_free(o->plugin->host, c);
    o->common = NULL;
}

/* ---- caches ---- */

static int32_t cache_write(void *self, const struct bp_launch *l,
                           const struct bp_mla_cache_write_args *a, struct bp_error *err)
{
    static const char op[] = "mla.common cache_write";
    const struct bp_mla_meta *m = a->meta;
    struct attn_cache_write x = {.n_tok = m->n_tok, .eps = a->eps};
    if (m->n_tok == 0) return BP_OK;
    BP_TRY(attn_use(self, op, err));
    const int64_t width = a->kv.dim[1], n_latent = a->norm_w.dim[0], n_rope = width - n_latent;
    BP_TRY(attn_port(&a->kv, "kv", BP_DT_NONE, m->n_tok, width, 0, op, err));
    BP_TRY(attn_port(&a->norm_w, "norm_w", BP_DT_F32, 1, 0, 0, op, err));
    if (n_rope <= 0 || n_rope % 2 != 0) {
        return bp_error_number(
            err, BP_E_ARG, ATTN_NAME, op, "rows of kv leave ", n_rope,
            " numbers behind the latents, and a positive even number is rotated");
    }
    BP_TRY(attn_tables(m, n_rope, op, err));
    BP_TRY(attn_pool_open(&a->pool, "mla", width, m->block_tok, op, &x.pool, err));
    x.kv = attn_rows_of(&a->kv);
    x.norm_w = a->norm_w.data;
    x.cos = m->rope_cos.data;
    x.sin = m->rope_sin.data;
    x.cos_row = m->rope_cos.stride[0];
    x.sin_row = m->rope_sin.stride[0];
    x.n_position = m->rope_cos.dim[0];
    x.positions = m->positions;
    x.slot_map = m->slot_map;
    x.n_latent = (uint32_t)n_latent;
    x.n_rope = (uint32_t)n_rope;
    return attn_launched(attn_start_cache_write(&x, l->stream), op, err);
}

static int32_t cache_gather(void *self, const struct bp_launch *l,
                            const struct bp_mla_cache_gather_args *a, struct bp_error *err)
{
    static const char op[] = "mla.common cache_gather";
    const struct bp_mla_prefill_meta *m = a->meta;
    struct attn_gather x = {.n_seg = m->n_seg, .n_k = m->n_k};
    if (m->n_seg == 0 || m->n_k == 0) return BP_OK;
    BP_TRY(attn_use(self, op, err));
    const int64_t n_latent = a->c.dim[1], n_rope = a->k_pe.dim[1];
    BP_TRY(attn_port(&a->c, "c", BP_DT_NONE, m->n_k, n_latent, 0, op, err));
    BP_TRY(attn_port(&a->k_pe, "k_pe", BP_DT_NONE, m->n_k, n_rope, 0, op, err));
    BP_TRY(
        attn_pool_open(&a->pool, "mla", n_latent + n_rope, m->common->block_tok, op, &x.pool, err));
    x.c = attn_rows_of(&a->c);
    x.k_pe = attn_rows_of(&a->k_pe);
    x.block_table = m->common->block_table;
    x.table_stride = m->common->table_stride;
    x.seq = m->seq;
    x.cu_k = m->cu_k;
    x.kv_begin = m->kv_begin;
    x.n_latent = (uint32_t)n_latent;
    x.n_rope = (uint32_t)n_rope;
    return attn_launched(attn_start_gather(&x, l->stream), op, err);
}

static int32_t merge(void *self, const struct bp_launch *l, const struct bp_mla_merge_args *a,
                     struct bp_error *err)
{
    static const char op[] = "mla.common merge";
    const int64_t n = a->out.dim[0], n_head = a->out.dim[1], width = a->out.dim[2];
    if (n == 0 || n_head == 0) return BP_OK;
    BP_TRY(attn_use(self, op, err));
    BP_TRY(attn_port(&a->out, "out", BP_DT_NONE, n, n_head, width, op, err));
    BP_TRY(attn_port(&a->lse, "lse", BP_DT_F32, n, n_head, 0, op, err));
    BP_TRY(attn_port(&a->other_out, "other_out", BP_DT_NONE, n, n_head, width, op, err));
    BP_TRY(attn_port(&a->other_lse, "other_lse", BP_DT_F32, n, n_head, 0, op, err));
    const struct attn_merge x = {.out = attn_rows_of(&a->out),
                                 .other = attn_rows_of(&a->other_out),
                                 .lse = attn_rows_of(&a->lse),
                                 .other_lse = attn_rows_of(&a->other_lse),
                                 .n_row = (uint32_t)n,
                                 .n_head = (uint32_t)n_head,
                                 .width = (uint32_t)width};
    return attn_launched(attn_start_merge(&x, l->stream), op, err);
}

/* ---- table ---- */

static int32_t layouts(void *self, const struct bp_mla_problem *p, uint32_t i,
                       struct bp_kv_layout *out)
{
    (void)self;
    return attn_layout_at("mla", (uint64_t)p->kv_rank + p->rope_dim, p->block_tok, p->kv_dtype, i,
                          out);
}

static void want_type(struct bp_verdict *v, const char *field, uint32_t type)
{
    uint32_t n_bytes;
    if (attn_type_block(type, &n_bytes) != 0) return;
    bp_reason_add(v, BP_R_QUANT, 1, field, type, 0, BP_GGUF_COUNT - 1,
                  "there is no decoder for this tensor type");
}

static int32_t supports(void *self, const void *problem, struct bp_verdict *v)
{
    const struct bp_mla_problem *p = problem;
    if (!bp_verdict_begin(v, &p->h, BP_END(struct bp_mla_problem, type_v))) return BP_OK;
    /* cache_gather's grid is fixed by the count of gathered rows. */
    attn_want_problem(v, self, p, BP_CAPTURE_UNIFORM, BP_DET_RUN);
    attn_want_latent(v, p, 1);
    bp_want_range(v, BP_R_SHAPE, "nope_dim", p->nope_dim, 1, 1 << 20);
    bp_want_range(v, BP_R_SHAPE, "v_dim", p->v_dim, 1, 1 << 20);
    want_type(v, "type_k", p->type_k);
    want_type(v, "type_v", p->type_v);
    return bp_verdict_done(v, BP_CAPTURE_UNIFORM, BP_DET_RUN, -1.0);
}

static int32_t workspace(void *self, const void *problem_max, struct bp_workspace *out,
                         struct bp_error *err)
{
    const struct attn_op *o = self;
    const struct bp_mla_problem *p = problem_max;
    (void)err;
    o->common->weight_dtype = p->act_dtype;
    (void)bp_workspace_set(out, BP_CUDA_BLAS_BYTES, 0, 0, 0);
    out->align = 256;
    return BP_OK;
}

const struct bp_mla_common_ops attn_common_ops = {BP_OP_BASE(struct bp_mla_common_ops, merge,
                                                             "bp.mla.common", supports, workspace,
                                                             bp_mla_common_tensors),
                                                  .layouts = layouts,
                                                  .prepare = attn_prepare,
                                                  .release = attn_release,
                                                  .cache_write = cache_write,
                                                  .cache_gather = cache_gather,
                                                  .expand = attn_expand,
                                                  .absorb = attn_absorb,
                                                  .merge = merge};
