/* step_attn.c - attention of one layer: the MLA common base. Splits the projections, writes the cache, selects keys,
 * runs absorbed rows and prefill groups, merges partial results. Backends only specialise.
 * Source: DeepSeek-V2 report section 2.1; notation of slot_mla.h. SPDX-License-Identifier: MIT */
#include "engine/session_priv.h"

static struct bp_tensor pool_tensor(const struct bp_session *s, void *pool, uint64_t block_bytes,
                                    uint64_t layout_id)
{
    int64_t n = (int64_t)s->max_seqs * bpi_kv_table_width(s->kv);
    struct bp_tensor t = bpi_t2(pool, BP_DT_U8, n, (int64_t)block_bytes);
    t.layout_id = layout_id;
    return t;
}

static struct bp_tensor q_tensor(const struct bp_session *s)
{
    return bpi_t3(s->q, s->act, s->step.n_tok, s->hp->n_head, s->hp->nope + s->hp->rope);
}

static struct bp_tensor q_lat_tensor(const struct bp_session *s)
{
    return bpi_t3(s->q_lat, s->act, s->step.n_row, s->hp->n_head, s->hp->kv_lora + s->hp->rope);
}

/* ---- projections and cache ---- */

static int32_t project(struct bp_session *s, uint32_t il, struct bp_error *err)
{
    struct bpi_layer *l = &s->layers[il];
    const struct bpi_hparams *hp = s->hp;
    int32_t layer = (int32_t)il;
    int64_t n = s->step.n_tok;
    struct bp_tensor x = bpi_t2(s->x, BP_DT_F32, n, hp->n_embd);
    struct bp_tensor q = bpi_t2(s->q, s->act, n, (int64_t)hp->n_head * (hp->nope + hp->rope));
    struct bp_tensor q_lora = bpi_t2(s->q_lora, s->act, n, hp->q_lora);
    struct bp_tensor y[3] = {hp->q_lora > 0 ? q_lora : q,
                             bpi_t2(s->kv_raw, s->act, n, hp->kv_lora + hp->rope),
                             bpi_t2(s->index_k, s->act, n, hp->index_dim)};
    BP_TRY(bpi_site_run(s, &l->in, l->dense, layer, &x, l->attn_norm, y, NULL, err));
    BP_TRY(bpi_tap_emit(s, BPI_TAP_KV, layer, &y[1], err));
    if (l->has_index) {
        bpi_step_guard(s, &y[2]);
        BP_TRY(bpi_tap_emit(s, BPI_TAP_INDEX_K, layer, &y[2], err));
    }
    if (hp->q_lora == 0) return BP_OK;
    BP_TRY(bpi_tap_emit(s, BPI_TAP_Q_LORA, layer, &q_lora, err));
    return bpi_site_run(s, &l->q_b, l->dense, layer, &q_lora, l->q_a_norm, &q, NULL, err);
}

static int32_t write_cache(struct bp_session *s, uint32_t il, struct bp_error *err)
{
    struct bpi_layer *l = &s->layers[il];
    const struct bpi_hparams *hp = s->hp;
    struct bp_launch launch = bpi_step_launch(s, l->common, (int32_t)il);
    struct bp_mla_cache_write_args a = {
        .h = BP_HDR(struct bp_mla_cache_write_args, reserved),
        .meta = &s->step.common,
        .kv = bpi_t2(s->kv_raw, s->act, s->step.n_tok, hp->kv_lora + hp->rope),
        .norm_w = bpi_t1((void *)(uintptr_t)l->kv_a_norm, BP_DT_F32, hp->kv_lora),
        .pool = pool_tensor(s, l->pool, l->kv_block_bytes, l->kv_layout_id),
        .eps = hp->rms_eps};
    BP_TRY(
        BPI_OP(s, l->common, bp_mla_common_ops, cache_write, BP_MLA_OP_CACHE_WRITE, &launch, &a));
    if (!l->has_index) return BP_OK;
    /* Index keys are written even while nothing is selected: later tokens will want them. */
    struct bp_mla_key_write_args k = {
        .h = BP_HDR(struct bp_mla_key_write_args, rope_style),
        .meta = &s->step.common,
        .k = bpi_t2(s->index_k, s->act, s->step.n_tok, hp->index_dim),
        .norm_w = bpi_t1((void *)(uintptr_t)l->index_norm_w, BP_DT_F32, hp->index_dim),
        .norm_b = bpi_t1((void *)(uintptr_t)l->index_norm_b, BP_DT_F32, hp->index_dim),
        .pool = pool_tensor(s, l->index_pool, l->index_block_bytes, l->index_layout_id),
        .eps = hp->index_eps,
        .rope_style = hp->index_rope_style};
    launch = bpi_step_launch(s, l->index, (int32_t)il);
    return BPI_OP(s, l->index, bp_mla_index_ops, key_write, BP_MLA_INDEX_OP_KEY_WRITE, &launch, &k);
}

static int32_t rope(struct bp_session *s, uint32_t il, const struct bp_tensor *x,
                    const struct bp_tensor *y, uint32_t first_row, uint32_t style,
                    struct bp_error *err)
{
    const struct bpi_bound *op = s->layers[il].dense[BP_DENSE_OP_ROPE];
    struct bp_launch launch = bpi_step_launch(s, op, (int32_t)il);
    const int32_t *positions = s->step.common.positions + first_row;
    struct bp_dense_rope_args a = {.h = BP_HDR(struct bp_dense_rope_args, reserved),
                                   .x = *x,
                                   .y = *y,
                                   .positions =
                                       bpi_t1((void *)(uintptr_t)positions, BP_DT_I32, x->dim[0]),
                                   .cos_table = s->step.common.rope_cos,
                                   .sin_table = s->step.common.rope_sin,
                                   .style = style};
    return BPI_OP(s, op, bp_dense_ops, rope, BP_DENSE_OP_ROPE, &launch, &a);
}

/* Rotates q_pe: of rows straight into their place behind the absorbed part, of the other tokens in place. */
static int32_t rotate_queries(struct bp_session *s, uint32_t il, struct bp_error *err)
{
    const struct bpi_hparams *hp = s->hp;
    int64_t n_row = s->step.n_row, n = s->step.n_tok;
    struct bp_tensor q_pe = bpi_cols(q_tensor(s), hp->nope, hp->rope);
    struct bp_tensor rows = bpi_rows(q_pe, 0, n_row), rest = bpi_rows(q_pe, n_row, n - n_row);
    struct bp_tensor lat = bpi_cols(q_lat_tensor(s), hp->kv_lora, hp->rope);
    if (n_row > 0) BP_TRY(rope(s, il, &rows, &lat, 0, BP_ROPE_INTERLEAVED, err));
    if (n > n_row) BP_TRY(rope(s, il, &rest, &rest, (uint32_t)n_row, BP_ROPE_INTERLEAVED, err));
    if (bpi_tap_on(s, BPI_TAP_Q_NOPE, (int32_t)il)) {
        struct bp_tensor q_nope = bpi_cols(q_tensor(s), 0, hp->nope);
        BP_TRY(bpi_tap_emit(s, BPI_TAP_Q_NOPE, (int32_t)il, &q_nope, err));
    }
    if (!bpi_tap_on(s, BPI_TAP_Q_PE, (int32_t)il)) return BP_OK;
    /* Rows' q_pe is not read again, so it can be rotated in place for the eye. */
    if (n_row > 0) BP_TRY(rope(s, il, &rows, &rows, 0, BP_ROPE_INTERLEAVED, err));
    return bpi_tap_emit(s, BPI_TAP_Q_PE, (int32_t)il, &q_pe, err);
}

/* ---- rows: absorbed form ---- */

static int32_t select_keys(struct bp_session *s, uint32_t il, struct bp_error *err)
{
    struct bpi_layer *l = &s->layers[il];
    const struct bpi_hparams *hp = s->hp;
    int64_t n = s->step.n_row;
    struct bp_tensor x = bpi_t2(s->x, BP_DT_F32, n, hp->n_embd),
                     q_lora = bpi_t2(s->q_lora, s->act, n, hp->q_lora);
    struct bp_tensor q2 = bpi_t2(s->index_q, s->act, n, (int64_t)hp->n_index_head * hp->index_dim);
    struct bp_tensor w = bpi_t2(s->index_w, BP_DT_F32, n, hp->n_index_head);
    BP_TRY(
        bpi_site_run(s, &l->index_q, l->dense, (int32_t)il, &q_lora, l->q_a_norm, &q2, NULL, err));
    BP_TRY(bpi_site_run(s, &l->index_w, l->dense, (int32_t)il, &x, l->attn_norm, &w, NULL, err));
    bpi_step_guard(s, &q2);
    bpi_step_guard(s, &w);
    struct bp_tensor q = bpi_t3(s->index_q, s->act, n, hp->n_index_head, hp->index_dim);
    struct bp_tensor q_pe = bpi_cols(q, 0, hp->rope);
    BP_TRY(rope(s, il, &q_pe, &q_pe, 0, hp->index_rope_style, err));
    struct bp_mla_select_args a = {
        .h = BP_HDR(struct bp_mla_select_args, top_k),
        .meta = &s->step.decode,
        .q = q,
        .w = w,
        .pool = pool_tensor(s, l->index_pool, l->index_block_bytes, l->index_layout_id),
        .idx = bpi_t2(s->idx, BP_DT_I32, n, hp->top_k),
        .idx_len = bpi_t1(s->idx_len, BP_DT_I32, n),
        .scale = (float)s->index_scale,
        .top_k = hp->top_k};
    struct bp_launch launch = bpi_step_launch(s, l->index, (int32_t)il);
    BP_TRY(BPI_OP(s, l->index, bp_mla_index_ops, select, BP_MLA_INDEX_OP_SELECT, &launch, &a));
    BP_TRY(bpi_tap_emit(s, BPI_TAP_INDEX_Q, (int32_t)il, &q, err));
    BP_TRY(bpi_tap_emit(s, BPI_TAP_INDEX_W, (int32_t)il, &w, err));
    return bpi_tap_emit(s, BPI_TAP_INDEX_IDS, (int32_t)il, &a.idx, err);
}

static int32_t absorb(struct bp_session *s, uint32_t il, uint32_t side, const struct bp_tensor *x,
                      const struct bp_tensor *y, struct bp_error *err)
{
    struct bpi_layer *l = &s->layers[il];
    struct bp_launch launch = bpi_step_launch(s, l->common, (int32_t)il);
    struct bp_mla_absorb_args a = {.h = BP_HDR(struct bp_mla_absorb_args, reserved),
                                   .weights = l->mla,
                                   .x = *x,
                                   .y = *y,
                                   .side = side};
    return BPI_OP(s, l->common, bp_mla_common_ops, absorb, BP_MLA_OP_ABSORB, &launch, &a);
}

int32_t bpi_step_plan_decode(struct bp_session *s, struct bpi_bound *op,
                             const struct bp_launch *launch, struct bp_error *err)
{
    if (op->planned_epoch == s->epoch && op->planned_meta == &s->step.decode) return BP_OK;
    op->planned_epoch = s->epoch;
    op->planned_meta = &s->step.decode;
    return BPI_PLAN(s, op, bp_mla_decode_ops, bpi_carry_decode, launch, &s->step.decode);
}

static int32_t attend_rows(struct bp_session *s, uint32_t il, struct bp_error *err)
{
    struct bpi_layer *l = &s->layers[il];
    const struct bpi_hparams *hp = s->hp;
    int64_t n = s->step.n_row;
    if (n == 0) return BP_OK;
    /* A layer without its own index keeps the last full layer's choice, which still lies in s->idx. */
    if (s->step.select && l->index_full) BP_TRY(select_keys(s, il, err));
    struct bp_tensor q_nope = bpi_cols(bpi_rows(q_tensor(s), 0, n), 0, hp->nope);
    struct bp_tensor q_abs = bpi_cols(q_lat_tensor(s), 0, hp->kv_lora);
    struct bp_tensor o_lat = bpi_t3(s->o_lat, s->act, n, hp->n_head, hp->kv_lora);
    struct bp_tensor heads = bpi_t3(s->heads, s->act, n, hp->n_head, hp->v_dim);
    BP_TRY(absorb(s, il, BP_MLA_ABSORB_UK, &q_nope, &q_abs, err));
    struct bp_mla_decode_args a = {.h = BP_HDR(struct bp_mla_decode_args, reserved),
                                   .meta = &s->step.decode,
                                   .q = q_lat_tensor(s),
                                   .pool =
                                       pool_tensor(s, l->pool, l->kv_block_bytes, l->kv_layout_id),
                                   .out = o_lat,
                                   .scale = (float)hp->attn_scale};
    if (s->step.select) {
        a.idx = bpi_t2(s->idx, BP_DT_I32, n, hp->top_k);
        a.idx_len = bpi_t1(s->idx_len, BP_DT_I32, n);
    }
    BP_TRY(bpi_tap_emit(s, BPI_TAP_Q_LAT, (int32_t)il, &a.q, err));
    struct bp_launch launch = bpi_step_launch(s, l->decode, (int32_t)il);
    BP_TRY(bpi_step_plan_decode(s, l->decode, &launch, err));
    BP_TRY(BPI_OP(s, l->decode, bp_mla_decode_ops, run, BP_MLA_DECODE_OP_RUN, &launch, &a));
    BP_TRY(bpi_tap_emit(s, BPI_TAP_O_LAT, (int32_t)il, &o_lat, err));
    return absorb(s, il, BP_MLA_ABSORB_UV, &o_lat, &heads, err);
}

/* ---- groups: multi-head form ---- */

/* The keys and values of one phase, from the cache: what is attended is what later steps will read. */
static int32_t gather_phase(struct bp_session *s, uint32_t il, const struct bp_mla_prefill_meta *m,
                            struct bp_tensor *k, struct bp_tensor *v, struct bp_error *err)
{
    struct bpi_layer *l = &s->layers[il];
    const struct bpi_hparams *hp = s->hp;
    struct bp_launch launch = bpi_step_launch(s, l->common, (int32_t)il);
    struct bp_mla_cache_gather_args g = {
        .h = BP_HDR(struct bp_mla_cache_gather_args, k_pe),
        .meta = m,
        .pool = pool_tensor(s, l->pool, l->kv_block_bytes, l->kv_layout_id),
        .c = bpi_t2(s->slab_c, s->act, m->n_k, hp->kv_lora),
        .k_pe = bpi_t2(s->slab_pe, s->act, m->n_k, hp->rope)};
    BP_TRY(
        BPI_OP(s, l->common, bp_mla_common_ops, cache_gather, BP_MLA_OP_CACHE_GATHER, &launch, &g));
    *k = bpi_t3(s->slab_k, s->act, m->n_k, hp->n_head, hp->nope + hp->rope);
    *v = bpi_t3(s->slab_v, s->act, m->n_k, hp->n_head, hp->v_dim);
    struct bp_mla_expand_args e = {.h = BP_HDR(struct bp_mla_expand_args, v),
                                   .weights = l->mla,
                                   .c = g.c,
                                   .k_pe = g.k_pe,
                                   .k = *k,
                                   .v = *v};
    launch = bpi_step_launch(s, l->common, (int32_t)il);
    return BPI_OP(s, l->common, bp_mla_common_ops, expand, BP_MLA_OP_EXPAND, &launch, &e);
}

int32_t bpi_step_plan_prefill(struct bp_session *s, struct bpi_bound *op,
                              const struct bp_launch *launch, const struct bp_mla_prefill_meta *m,
                              struct bp_error *err)
{
    if (op->planned_meta == m && op->planned_epoch == s->epoch) return BP_OK;
    BP_TRY(BPI_PLAN(s, op, bp_mla_prefill_ops, bpi_carry_prefill, launch, m));
    op->planned_meta = m;
    op->planned_epoch = s->epoch;
    return BP_OK;
}

static int32_t attend_phase(struct bp_session *s, uint32_t il, const struct bpi_group *g,
                            uint32_t phase, struct bp_error *err)
{
    struct bpi_layer *l = &s->layers[il];
    const struct bpi_hparams *hp = s->hp;
    const struct bp_mla_prefill_meta *m = &g->meta[phase];
    struct bp_tensor heads = bpi_t3(s->heads, s->act, s->step.n_tok, hp->n_head, hp->v_dim);
    struct bp_mla_prefill_args a = {.h = BP_HDR(struct bp_mla_prefill_args, reserved),
                                    .meta = m,
                                    .q = bpi_rows(q_tensor(s), g->row0, g->n_q),
                                    .out = bpi_rows(heads, g->row0, g->n_q),
                                    .scale = (float)hp->attn_scale};
    struct bp_tensor lse = bpi_t2(s->lse, BP_DT_F32, g->n_q, hp->n_head);
    BP_TRY(gather_phase(s, il, m, &a.k, &a.v, err));
    struct bp_launch launch = bpi_step_launch(s, l->prefill, (int32_t)il);
    BP_TRY(bpi_step_plan_prefill(s, l->prefill, &launch, m, err));
    if (phase == 0) {
        if (g->n_phase > 1) a.lse = lse;
        return BPI_OP(s, l->prefill, bp_mla_prefill_ops, run, BP_MLA_PREFILL_OP_RUN, &launch, &a);
    }
    struct bp_mla_merge_args merge = {
        .h = BP_HDR(struct bp_mla_merge_args, other_lse), .out = a.out, .lse = lse};
    a.out = bpi_t3(s->heads2, s->act, g->n_q, hp->n_head, hp->v_dim);
    a.lse = bpi_t2(s->lse2, BP_DT_F32, g->n_q, hp->n_head);
    BP_TRY(BPI_OP(s, l->prefill, bp_mla_prefill_ops, run_context, BP_MLA_PREFILL_OP_RUN_CONTEXT,
                  &launch, &a));
    merge.other_out = a.out;
    merge.other_lse = a.lse;
    launch = bpi_step_launch(s, l->common, (int32_t)il);
    return BPI_OP(s, l->common, bp_mla_common_ops, merge, BP_MLA_OP_MERGE, &launch, &merge);
}

int32_t bpi_step_attention(struct bp_session *s, uint32_t il, struct bp_error *err)
{
    struct bpi_layer *l = &s->layers[il];
    const struct bpi_hparams *hp = s->hp;
    BP_TRY(project(s, il, err));
    BP_TRY(write_cache(s, il, err));
    BP_TRY(rotate_queries(s, il, err));
    BP_TRY(attend_rows(s, il, err));
    for (uint32_t g = 0; g < s->step.n_group; ++g) {
        for (uint32_t p = 0; p < s->step.groups[g].n_phase; ++p) {
            BP_TRY(bpi_step_interrupted(s, il, err));
            BP_TRY(attend_phase(s, il, &s->step.groups[g], p, err));
        }
    }
    struct bp_tensor heads =
        bpi_t2(s->heads, s->act, s->step.n_tok, (int64_t)hp->n_head * hp->v_dim);
    struct bp_tensor x = bpi_t2(s->x, BP_DT_F32, s->step.n_tok, hp->n_embd);
    BP_TRY(bpi_tap_emit(s, BPI_TAP_HEADS, (int32_t)il, &heads, err));
    BP_TRY(bpi_site_run(s, &l->out, l->dense, (int32_t)il, &heads, NULL, &x, &x, err));
    return bpi_tap_emit(s, BPI_TAP_RESID, (int32_t)il, &x, err);
}
