/* attend.c - "bp.mla.prefill" and "bp.mla.decode": which kernel serves a call, its arguments and its memory.
 * Threads: one call per instance. SPDX-License-Identifier: MIT */
#include "attn.h"

/* ---- prefill ---- */

/* Which rows a block works on follows from the block's number and the segments, so there is nothing to plan. */
static int32_t prefill_plan(void *self, const struct bp_launch *l,
                            const struct bp_mla_prefill_meta *m, struct bp_error *err)
{
    (void)self, (void)l, (void)m, (void)err;
    return BP_OK;
}

static int is_16_bit(uint32_t dtype)
{
    return dtype == BP_DT_F16 || dtype == BP_DT_BF16;
}

/* The tensor-core kernel needs one 16-bit dtype everywhere and one of the sizes it is made for. */
static int prefill_is_fast(const struct bp_mla_prefill_args *a, uint32_t qk, uint32_t v)
{
    const uint32_t dtype = a->q.dtype;
    return is_16_bit(dtype) && a->k.dtype == dtype && a->v.dtype == dtype &&
           a->out.dtype == dtype && attn_prefill_mma_serves(qk, v) && bp_cuda_aligned(&a->q, 16) &&
           bp_cuda_aligned(&a->k, 16) && bp_cuda_aligned(&a->v, 16) && bp_cuda_aligned(&a->out, 4);
}

static int32_t prefill(const struct bp_launch *l, const struct bp_mla_prefill_args *a, int causal,
                       const char *op, struct bp_error *err)
{
    const struct bp_mla_prefill_meta *m = a->meta;
    if (m->n_seg == 0 || m->n_q == 0) return BP_OK;
    const int64_t n_head = a->q.dim[1], qk = a->q.dim[2], v = a->out.dim[2];
    BP_TRY(attn_port(&a->q, "q", BP_DT_NONE, m->n_q, n_head, qk, op, err));
    BP_TRY(attn_port(&a->k, "k", BP_DT_NONE, m->n_k, n_head, qk, op, err));
    BP_TRY(attn_port(&a->v, "v", BP_DT_NONE, m->n_k, n_head, v, op, err));
    BP_TRY(attn_port(&a->out, "out", BP_DT_NONE, m->n_q, n_head, v, op, err));
    if (a->lse.data != NULL)
        BP_TRY(attn_port(&a->lse, "lse", BP_DT_F32, m->n_q, n_head, 0, op, err));
    if (qk > ATTN_MAX_HEAD || v > ATTN_MAX_HEAD)
        return bp_error_number(err, BP_E_ARG, ATTN_NAME, op,
                               "queries, keys and values of a head have at most ", ATTN_MAX_HEAD,
                               " numbers");
    const struct attn_prefill x = {.q = attn_rows_of(&a->q),
                                   .k = attn_rows_of(&a->k),
                                   .v = attn_rows_of(&a->v),
                                   .out = attn_rows_of(&a->out),
                                   .lse = a->lse.data != NULL ? attn_rows_of(&a->lse)
                                                              : (struct attn_rows){.data = NULL},
                                   .cu_q = m->cu_q,
                                   .cu_k = m->cu_k,
                                   .n_seg = m->n_seg,
                                   .n_head = (uint32_t)n_head,
                                   .max_q = m->max_q,
                                   .qk_dim = (uint32_t)qk,
                                   .v_dim = (uint32_t)v,
                                   .causal = (uint32_t)causal,
                                   .scale = a->scale};
    const int fast = prefill_is_fast(a, x.qk_dim, x.v_dim);
    return attn_launched(fast ? attn_start_prefill_mma(&x, l->stream)
                              : attn_start_prefill_fma(&x, l->stream),
                         op, err);
}

static int32_t prefill_run(void *self, const struct bp_launch *l,
                           const struct bp_mla_prefill_args *a, struct bp_error *err)
{
    BP_TRY(attn_use(self, "mla.prefill run", err));
    return prefill(l, a, 1, "mla.prefill run", err);
}

static int32_t prefill_context(void *self, const struct bp_launch *l,
                               const struct bp_mla_prefill_args *a, struct bp_error *err)
{
    BP_TRY(attn_use(self, "mla.prefill run_context", err));
    return prefill(l, a, 0, "mla.prefill run_context", err);
}

static int32_t prefill_supports(void *self, const void *problem, struct bp_verdict *v)
{
    const struct bp_mla_problem *p = problem;
    if (!bp_verdict_begin(v, &p->h, BP_END(struct bp_mla_problem, type_v))) return BP_OK;
    /* The grid is fixed by the counts of segments and of the longest one's queries. */
    attn_want_problem(v, self, p, BP_CAPTURE_UNIFORM, BP_DET_BATCH);
    attn_want_latent(v, p, 0);
    bp_want_range(v, BP_R_SHAPE, "nope_dim", p->nope_dim, 1, ATTN_MAX_HEAD - (int64_t)p->rope_dim);
    bp_want_range(v, BP_R_SHAPE, "v_dim", p->v_dim, 1, ATTN_MAX_HEAD);
    bp_want_le(v, BP_R_SHAPE, "max_seqs", p->max_seqs, 65535);
    return bp_verdict_done(v, BP_CAPTURE_UNIFORM, BP_DET_BATCH, -1.0);
}

static int32_t prefill_workspace(void *self, const void *problem_max, struct bp_workspace *out,
                                 struct bp_error *err)
{
    (void)self, (void)problem_max, (void)err;
    return bp_workspace_set(out, 0, 0, 0, 0);
}

const struct bp_mla_prefill_ops attn_prefill_ops = {
    BP_OP_BASE(struct bp_mla_prefill_ops, run_context, "bp.mla.prefill", prefill_supports,
               prefill_workspace, bp_mla_prefill_tensors),
    .plan = prefill_plan, .run = prefill_run, .run_context = prefill_context};

/* ---- decode ---- */

enum { BLOCKS_PER_SM = 2 };

static struct attn_plan_shape shape_of(const struct attn_op *o, uint32_t n_row, uint32_t n_head,
                                       uint32_t max_kv)
{
    return (struct attn_plan_shape){.n_row = n_row,
                                    .n_head = n_head,
                                    .max_kv = max_kv,
                                    .n_slot =
                                        (o->dev->n_sm != 0 ? o->dev->n_sm : 1) * BLOCKS_PER_SM,
                                    .fixed = (uint32_t)o->plugin->split_keys};
}

/* Scratch: the parts' outputs, then their LSE. UINT64_MAX: it overflows, or is too small. */
static uint64_t take_parts(struct bp_area *area, uint64_t n_part_head, uint64_t n_latent,
                           float **out, float **lse)
{
    *out = bp_area_take(area, n_part_head, (n_latent + 3) / 4 * 4 * sizeof(float));
    *lse = bp_area_take(area, n_part_head, sizeof(float));
    return area->bad == 0 ? area->used : UINT64_MAX;
}

/* The list is built in pinned memory and copied in stream order; the engine plans anew only when the step before has ended,
 * so nobody reads that memory while it is written. How many heads a query has is not in the metadata: the most that
 * workspace() was asked about decide how finely rows are cut. */
static int32_t decode_plan(void *self, const struct bp_launch *l,
                           const struct bp_mla_decode_meta *m, struct bp_error *err)
{
    const struct attn_op *o = self;
    struct attn_plan_head *plan = l->pinned;
    if (m->n_row_padded == 0) return BP_OK;
    if (plan == NULL || l->plan == NULL)
        return bp_error_set(err, BP_E_ARG, ATTN_NAME, "mla.decode plan",
                            "there is no plan memory; ask workspace()");
    const struct attn_plan_shape s = shape_of(o, m->n_row_padded, o->n_head, m->max_kv);
    BP_TRY(attn_use(o, "mla.decode plan", err));
    const uint64_t n_bytes = attn_plan_build(&s, m->row_kv_len_host, plan);
    const cudaError_t e =
        cudaMemcpyAsync(l->plan, plan, (size_t)n_bytes, cudaMemcpyHostToDevice, l->stream);
    return bp_cuda_status(err, ATTN_NAME, "mla.decode plan", e, "the work list was not copied");
}

static int32_t decode_ports(const struct bp_mla_decode_args *a, const char *op,
                            struct bp_error *err)
{
    const int64_t n_row = a->meta->n_row_padded, n_head = a->q.dim[1], width = a->q.dim[2],
                  n_latent = a->out.dim[2];
    BP_TRY(attn_port(&a->q, "q", BP_DT_NONE, n_row, n_head, width, op, err));
    BP_TRY(attn_port(&a->out, "out", BP_DT_NONE, n_row, n_head, n_latent, op, err));
    if (a->lse.data != NULL)
        BP_TRY(attn_port(&a->lse, "lse", BP_DT_F32, n_row, n_head, 0, op, err));
    if (a->idx.data != NULL) {
        BP_TRY(attn_port(&a->idx, "idx", BP_DT_I32, n_row, a->idx.dim[1], 0, op, err));
        BP_TRY(attn_port(&a->idx_len, "idx_len", BP_DT_I32, n_row, 0, 0, op, err));
    }
    if (n_latent > width)
        return bp_error_number(err, BP_E_ARG, ATTN_NAME, op,
                               "out has more latents than a query has numbers: ", n_latent, "");
    return BP_OK;
}

/* The tensor-core kernel needs one 16-bit dtype everywhere and the width of the real models. */
static int decode_is_fast(const struct bp_mla_decode_args *a, const struct attn_pool *pool,
                          uint32_t n_latent)
{
    const uint32_t dtype = pool->dtype;
    return is_16_bit(dtype) && a->q.dtype == dtype && a->out.dtype == dtype && n_latent == 512 &&
           pool->width == 576 && bp_cuda_aligned(&a->q, 4) && bp_cuda_aligned(&a->out, 4) &&
           (uintptr_t)pool->data % 16 == 0 && pool->block_bytes % 16 == 0;
}

static int32_t decode_run(void *self, const struct bp_launch *l, const struct bp_mla_decode_args *a,
                          struct bp_error *err)
{
    static const char op[] = "mla.decode run";
    const struct attn_op *o = self;
    const struct bp_mla_decode_meta *m = a->meta;
    const struct bp_mla_meta *c = m->common;
    struct attn_plan_head *plan = l->plan;
    const uint32_t n_row = m->n_row_padded;
    struct bp_area area;
    if (n_row == 0) return BP_OK;
    BP_TRY(attn_use(o, op, err));
    BP_TRY(decode_ports(a, op, err));
    if (a->q.dim[1] > (int64_t)o->n_head)
        return bp_error_number(err, BP_E_ARG, ATTN_NAME, op, "workspace() was never asked about ",
                               a->q.dim[1], " heads");
    const struct attn_plan_shape s = shape_of(o, n_row, o->n_head, m->max_kv);
    const struct attn_plan_bounds b = attn_plan_bounds(&s);
    struct attn_decode x = {.q = attn_rows_of(&a->q),
                            .out = attn_rows_of(&a->out),
                            .block_table = c->block_table,
                            .table_stride = c->table_stride,
                            .row_seq = m->row_seq,
                            .row_kv_len = m->row_kv_len,
                            .plan = plan,
                            .first_part = attn_plan_first(plan),
                            .n_split = attn_plan_splits(plan, n_row),
                            .items = attn_plan_items(plan, n_row),
                            .n_row = n_row,
                            .n_head = (uint32_t)a->q.dim[1],
                            .n_latent = (uint32_t)a->out.dim[2],
                            .n_item = (uint32_t)b.n_item,
                            .scale = a->scale,
                            .most_smem = (uint32_t)o->dev->smem_bytes};
    BP_TRY(attn_pool_open(&a->pool, "mla", a->q.dim[2], c->block_tok, op, &x.pool, err));
    if (a->lse.data != NULL) x.lse = attn_rows_of(&a->lse);
    if (a->idx.data != NULL) {
        x.idx = attn_rows_of(&a->idx);
        x.idx_len = a->idx_len.data;
        x.idx_len_stride = a->idx_len.stride[0];
    }
    bp_area_of(&area, l->scratch, l->scratch_bytes);
    /* A list for more heads has no more parts than one for the heads of this call, for which workspace() was asked. */
    const struct attn_plan_shape own = shape_of(o, n_row, x.n_head, m->max_kv);
    const uint64_t n_part_head = attn_plan_bounds(&own).n_part_head;
    if (take_parts(&area, n_part_head, x.n_latent, &x.part_out, &x.part_lse) == UINT64_MAX) {
        return bp_error_number(err, BP_E_ARG, ATTN_NAME, op, "scratch is too small for ",
                               (int64_t)n_part_head,
                               " partial rows; ask workspace() with the largest problem");
    }
    /* The list of this very step is still in pinned memory; a graph has to hold for any list. */
    if (l->capturing == 0) x.n_item = ((const struct attn_plan_head *)l->pinned)->n_item;
    const int fast = decode_is_fast(a, &x.pool, x.n_latent);
    BP_TRY(attn_launched(fast ? attn_start_decode_mma(&x, l->stream)
                              : attn_start_decode_fma(&x, l->stream),
                         op, err));
    if (l->capturing == 0 && ((const struct attn_plan_head *)l->pinned)->n_part == 0) return BP_OK;
    return attn_launched(attn_start_combine(&x, l->stream), op, err);
}

static int32_t decode_supports(void *self, const void *problem, struct bp_verdict *v)
{
    const struct attn_op *o = self;
    const struct bp_mla_problem *p = problem;
    const uint32_t level = o->plugin->split_keys != 0 ? BP_DET_BATCH : BP_DET_RUN;
    if (!bp_verdict_begin(v, &p->h, BP_END(struct bp_mla_problem, type_v))) return BP_OK;
    attn_want_problem(v, o, p, BP_CAPTURE_UNIFORM, level);
    attn_want_latent(v, p, 1);
    return bp_verdict_done(v, BP_CAPTURE_UNIFORM, level, -1.0);
}

static int32_t decode_workspace(void *self, const void *problem_max, struct bp_workspace *out,
                                struct bp_error *err)
{
    struct attn_op *o = self;
    const struct bp_mla_problem *p = problem_max;
    const uint32_t n_row = p->max_rows > p->max_tok ? p->max_rows : p->max_tok;
    const struct attn_plan_shape s = shape_of(o, n_row, p->n_head, p->max_kv);
    const struct attn_plan_bounds b = attn_plan_bounds(&s);
    struct bp_area area;
    float *part, *lse;
    /* Lists are made for the most heads that were asked about: with fewer the same list has room, too. */
    if (p->n_head > o->n_head) o->n_head = p->n_head;
    bp_area_count(&area);
    const uint64_t scratch = take_parts(&area, b.n_part_head, p->kv_rank, &part, &lse);
    if (scratch == UINT64_MAX || b.n_bytes == UINT64_MAX)
        return bp_error_set(err, BP_E_LIMIT, ATTN_NAME, "mla.decode",
                            "the scratch of this problem overflows a 64-bit size");
    return bp_workspace_set(out, 0, b.n_bytes, scratch, b.n_bytes);
}

const struct bp_mla_decode_ops attn_decode_ops = {
    BP_OP_BASE(struct bp_mla_decode_ops, run, "bp.mla.decode", decode_supports, decode_workspace,
               bp_mla_decode_tensors),
    .plan = decode_plan, .run = decode_run};
