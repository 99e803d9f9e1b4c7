/* index.c - "bp.mla.index": key writes, and the choice of a row's keys.
 * Scores lie in scratch, for as many rows at a time as SCORES_BYTES hold (one at least), or where the caller wants them.
 * Threads: one call per instance. SPDX-License-Identifier: MIT */
#include "attn.h"

enum { SCORES_BYTES = 64 << 20, MOST_ROWS = 65535 };

static int32_t key_write(void *self, const struct bp_launch *l,
                         const struct bp_mla_key_write_args *a, struct bp_error *err)
{
    static const char op[] = "mla.index key_write";
    const struct bp_mla_meta *m = a->meta;
    struct attn_key_write x = {
        .n_tok = m->n_tok, .eps = a->eps, .half_style = a->rope_style == BP_ROPE_HALF};
    if (m->n_tok == 0) return BP_OK;
    BP_TRY(attn_use(self, op, err));
    const int64_t n = a->k.dim[1], n_rope = 2 * m->rope_cos.dim[1];
    BP_TRY(attn_port(&a->k, "k", BP_DT_NONE, m->n_tok, n, 0, op, err));
    BP_TRY(attn_port(&a->norm_w, "norm_w", BP_DT_F32, n, 0, 0, op, err));
    BP_TRY(attn_port(&a->norm_b, "norm_b", BP_DT_F32, n, 0, 0, op, err));
    BP_TRY(attn_tables(m, n_rope, op, err));
    if (n_rope > n || a->rope_style > BP_ROPE_HALF)
        return bp_error_number(
            err, BP_E_ARG, ATTN_NAME, op,
            "the style must be 0 or 1, and no more numbers rotated than a key has; rotated are ",
            n_rope, "");
    BP_TRY(attn_pool_open(&a->pool, "mla.index", n, m->block_tok, op, &x.pool, err));
    x.k = attn_rows_of(&a->k);
    x.norm_w = a->norm_w.data;
    x.norm_b = a->norm_b.data;
    x.cos = m->rope_cos.data;
    x.sin = m->rope_sin.data;
    x.cos_row = m->rope_cos.stride[0];
    x.sin_row = m->rope_sin.stride[0];
    x.n_position = m->rope_cos.dim[0];
    x.positions = m->positions;
    x.slot_map = m->slot_map;
    x.n_rope = (uint32_t)n_rope;
    return attn_launched(attn_start_key_write(&x, l->stream), op, err);
}

/* Rows whose scores are kept at a time. */
static uint32_t rows_at_once(uint32_t n_row, uint32_t max_kv)
{
    uint64_t n = SCORES_BYTES / ((uint64_t)(max_kv != 0 ? max_kv : 1) * sizeof(float));
    if (n > MOST_ROWS) n = MOST_ROWS;
    if (n == 0) n = 1;
    return n < n_row ? (uint32_t)n : n_row;
}

static int32_t select_ports(const struct bp_mla_select_args *a, const char *op,
                            struct bp_error *err)
{
    const int64_t n_row = a->meta->n_row_padded, n_head = a->q.dim[1], width = a->q.dim[2];
    BP_TRY(attn_port(&a->q, "q", BP_DT_NONE, n_row, n_head, width, op, err));
    BP_TRY(attn_port(&a->w, "w", BP_DT_F32, n_row, n_head, 0, op, err));
    BP_TRY(attn_port(&a->idx, "idx", BP_DT_I32, n_row, a->idx.dim[1], 0, op, err));
    BP_TRY(attn_port(&a->idx_len, "idx_len", BP_DT_I32, n_row, 0, 0, op, err));
    if (a->scores.data != NULL)
        BP_TRY(attn_port(&a->scores, "scores", BP_DT_F32, n_row, a->scores.dim[1], 0, op, err));
    if (a->top_k == 0 || a->top_k > INT32_MAX || a->top_k > a->idx.dim[1])
        return bp_error_number(err, BP_E_ARG, ATTN_NAME, op,
                               "top_k must be 1 up to what idx holds, and it is ", a->top_k, "");
    if (width > ATTN_MAX_INDEX || n_head > ATTN_MAX_INDEX_HEADS)
        return bp_error_number(err, BP_E_ARG, ATTN_NAME, op,
                               "index queries have at most 2048 heads of ", ATTN_MAX_INDEX,
                               " numbers");
    return BP_OK;
}

/* The tensor-core kernel needs one 16-bit dtype and the width of the real models. */
static int is_fast(const struct bp_mla_select_args *a, const struct attn_pool *pool)
{
    return (pool->dtype == BP_DT_F16 || pool->dtype == BP_DT_BF16) && a->q.dtype == pool->dtype &&
           pool->width == 128 && bp_cuda_aligned(&a->q, 16) && (uintptr_t)pool->data % 16 == 0 &&
           pool->block_bytes % 16 == 0;
}

static int32_t choose(void *self, const struct bp_launch *l, const struct bp_mla_select_args *a,
                      struct bp_error *err)
{
    static const char op[] = "mla.index select";
    const struct bp_mla_decode_meta *m = a->meta;
    const int64_t n_row = m->n_row_padded;
    if (n_row == 0) return BP_OK;
    BP_TRY(attn_use(self, op, err));
    BP_TRY(select_ports(a, op, err));
    const int taps = a->scores.data != NULL;
    struct attn_select x = {.q = attn_rows_of(&a->q),
                            .w = attn_rows_of(&a->w),
                            .idx = attn_rows_of(&a->idx),
                            .idx_len = a->idx_len.data,
                            .idx_len_stride = a->idx_len.stride[0],
                            .n_idx = a->idx.dim[1],
                            .block_table = m->common->block_table,
                            .table_stride = m->common->table_stride,
                            .row_seq = m->row_seq,
                            .row_kv_len = m->row_kv_len,
                            .n_head = (uint32_t)a->q.dim[1],
                            .width = (uint32_t)a->q.dim[2],
                            .top_k = a->top_k,
                            .max_kv = m->max_kv,
                            .scale = a->scale};
    BP_TRY(
        attn_pool_open(&a->pool, "mla.index", a->q.dim[2], m->common->block_tok, op, &x.pool, err));
    const int fast = is_fast(a, &x.pool);
    const uint32_t most = taps ? MOST_ROWS : rows_at_once((uint32_t)n_row, m->max_kv);
    if (taps) {
        x.scores = attn_rows_of(&a->scores);
        x.n_scores = a->scores.dim[1];
        if ((int64_t)m->max_kv > x.n_scores)
            return bp_error_number(err, BP_E_ARG, ATTN_NAME, op,
                                   "scores must hold all keys of the longest row: ", m->max_kv, "");
    } else {
        x.scores =
            (struct attn_rows){.data = l->scratch, .row = m->max_kv, .head = 1, .dtype = BP_DT_F32};
        BP_TRY(attn_want_scratch(l, (uint64_t)most * m->max_kv * sizeof(float), op, err));
    }
    for (int64_t at = 0; at < n_row; at += most) {
        x.first_row = (uint32_t)at;
        x.n_row = (uint32_t)(n_row - at < most ? n_row - at : most);
        if (taps) x.scores.data = (float *)a->scores.data + at * a->scores.stride[0];
        const int32_t e =
            fast ? attn_start_scores_mma(&x, l->stream) : attn_start_scores(&x, l->stream);
        BP_TRY(attn_launched(e, op, err));
        BP_TRY(attn_launched(attn_start_topk(&x, l->stream), op, err));
    }
    return BP_OK;
}

static int32_t layouts(void *self, const struct bp_mla_problem *p, uint32_t i,
                       struct bp_kv_layout *out)
{
    (void)self;
    return attn_layout_at("mla.index", p->index_dim, p->block_tok, p->kv_dtype, i, out);
}

static int32_t supports(void *self, const void *problem, struct bp_verdict *v)
{
    const struct bp_mla_problem *p = problem;
    if (!bp_verdict_begin(v, &p->h, BP_END(struct bp_mla_problem, type_v))) return BP_OK;
    attn_want_problem(v, self, p, BP_CAPTURE_UNIFORM, BP_DET_BATCH);
    bp_want_dtype(v, "kv_dtype", p->kv_dtype,
                  BP_SET(BP_DT_F32) | BP_SET(BP_DT_F16) | BP_SET(BP_DT_BF16));
    bp_want_range(v, BP_R_SHAPE, "block_tok", p->block_tok, 1, 1 << 20);
    bp_want_range(v, BP_R_SHAPE, "n_index_head", p->n_index_head, 1, ATTN_MAX_INDEX_HEADS);
    bp_want_range(v, BP_R_SHAPE, "index_dim", p->index_dim, p->rope_dim, ATTN_MAX_INDEX);
    bp_want_range(v, BP_R_FEATURE, "index_rope_style", p->index_rope_style, BP_ROPE_INTERLEAVED,
                  BP_ROPE_HALF);
    bp_want_range(v, BP_R_SHAPE, "top_k", p->top_k, 1, INT32_MAX);
    attn_want_layout(v, "index_layout_id", "mla.index", p->index_layout_id, p->index_dim,
                     p->kv_dtype);
    return bp_verdict_done(v, BP_CAPTURE_UNIFORM, BP_DET_BATCH, -1.0);
}

static int32_t workspace(void *self, const void *problem_max, struct bp_workspace *out,
                         struct bp_error *err)
{
    const struct bp_mla_problem *p = problem_max;
    const uint32_t n_row = p->max_rows > p->max_tok ? p->max_rows : p->max_tok;
    /* At most SCORES_BYTES, or one row; what a smaller problem needs is never more. */
    uint64_t n_bytes = (uint64_t)n_row * p->max_kv * sizeof(float);
    const uint64_t one = (uint64_t)p->max_kv * sizeof(float),
                   most = one > SCORES_BYTES ? one : SCORES_BYTES;
    (void)self, (void)err;
    if (n_bytes > most) n_bytes = most;
    return bp_workspace_set(out, 0, 0, n_bytes, 0);
}

const struct bp_mla_index_ops attn_index_ops = {
    BP_OP_BASE(struct bp_mla_index_ops, select, "bp.mla.index", supports, workspace,
               bp_mla_index_tensors),
    .layouts = layouts, .key_write = key_write, .select = choose};
