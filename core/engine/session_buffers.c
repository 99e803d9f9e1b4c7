/* session_buffers.c - cache pools, step buffers and workspaces: all memory of a session, allocated once.
 * SPDX-License-Identifier: MIT */
#include "engine/session_priv.h"
#include <string.h>

/* A list of buffers to allocate, so that their sum is known before the first byte is taken. */
struct want {
    void *out; /* address of the pointer to set */
    uint64_t n_bytes;
    uint64_t *account;
    uint32_t mem;
};
enum { MAX_WANTS = 48 };
struct wants {
    struct want w[MAX_WANTS];
    uint32_t n;
    bool overflow;
};

static void want(struct wants *ws, void *out, uint64_t *account, uint32_t mem, uint64_t n,
                 uint64_t width, uint64_t elem)
{
    uint64_t bytes;
    if (ws->n == MAX_WANTS || !bpi_mul_u64(n, width, &bytes) || !bpi_mul_u64(bytes, elem, &bytes)) {
        ws->overflow = true;
        return;
    }
    ws->w[ws->n++] = (struct want){out, bytes, account, mem};
}

static void want_buffers(struct bp_session *s, struct wants *ws)
{
    const struct bpi_hparams *hp = s->hp;
    uint64_t *acc = &s->memory.buffers;
    uint64_t t = s->batch_tok, r = s->max_rows, h = hp->n_head, act = bpi_dtype_bytes(s->act);
    uint64_t qk = hp->nope + hp->rope, lat = hp->kv_lora + hp->rope, k = s->slab_cap;
    uint64_t wide = hp->n_embd > hp->q_lora ? hp->n_embd : hp->q_lora;
    want(ws, &s->x, acc, BP_MEM_DEVICE, t, hp->n_embd, 4);
    want(ws, &s->x_add, acc, BP_MEM_DEVICE, t, hp->n_embd, 4);
    want(ws, &s->h, acc, BP_MEM_DEVICE, t, wide, act);
    want(ws, &s->q_lora, acc, BP_MEM_DEVICE, t, hp->q_lora, act);
    want(ws, &s->q, acc, BP_MEM_DEVICE, t, h * qk, act);
    want(ws, &s->kv_raw, acc, BP_MEM_DEVICE, t, lat, act);
    want(ws, &s->q_lat, acc, BP_MEM_DEVICE, r, h * lat, act);
    want(ws, &s->o_lat, acc, BP_MEM_DEVICE, r, h * hp->kv_lora, act);
    want(ws, &s->heads, acc, BP_MEM_DEVICE, t, h * hp->v_dim, act);
    want(ws, &s->heads2, acc, BP_MEM_DEVICE, t, h * hp->v_dim, act);
    want(ws, &s->lse, acc, BP_MEM_DEVICE, t, h, 4);
    want(ws, &s->lse2, acc, BP_MEM_DEVICE, t, h, 4);
    want(ws, &s->slab_c, acc, BP_MEM_DEVICE, k, hp->kv_lora, act);
    want(ws, &s->slab_pe, acc, BP_MEM_DEVICE, k, hp->rope, act);
    want(ws, &s->slab_k, acc, BP_MEM_DEVICE, k, h * qk, act);
    want(ws, &s->slab_v, acc, BP_MEM_DEVICE, k, h * hp->v_dim, act);
    want(ws, &s->ff, acc, BP_MEM_DEVICE, t, hp->n_ff, act);
    want(ws, &s->ff2, acc, BP_MEM_DEVICE, t, hp->n_ff, act);
    want(ws, &s->x_rows, acc, BP_MEM_DEVICE, s->max_logits, hp->n_embd, 4);
    want(ws, &s->logits, acc, BP_MEM_DEVICE, s->max_logits, hp->n_vocab, 4);
    want(ws, &s->rope_cos, acc, BP_MEM_DEVICE, s->ctx, hp->rope / 2, 4);
    want(ws, &s->rope_sin, acc, BP_MEM_DEVICE, s->ctx, hp->rope / 2, 4);
    if (hp->n_expert > 0) {
        want(ws, &s->router, acc, BP_MEM_DEVICE, t, hp->n_expert, 4);
        want(ws, &s->moe_w, acc, BP_MEM_DEVICE, t * s->n_moe, hp->n_expert_used, 4);
        want(ws, &s->moe_ids, acc, BP_MEM_DEVICE, t, hp->n_expert_used, 4);
    }
    if (hp->sparse) {
        want(ws, &s->index_k, acc, BP_MEM_DEVICE, t, hp->index_dim, act);
        want(ws, &s->index_q, acc, BP_MEM_DEVICE, r, (uint64_t)hp->n_index_head * hp->index_dim,
             act);
        want(ws, &s->index_w, acc, BP_MEM_DEVICE, r, hp->n_index_head, 4);
        want(ws, &s->idx, acc, BP_MEM_DEVICE, r, hp->top_k, 4);
        want(ws, &s->idx_len, acc, BP_MEM_DEVICE, r, 1, 4);
    }
    s->meta_bytes = bpi_step_meta_bytes(s);
    want(ws, &s->meta_host, acc, BP_MEM_PINNED, s->meta_bytes, 1, 1);
    if (s->device.kind != BP_DEV_HOST) {
        want(ws, &s->meta_dev, acc, BP_MEM_DEVICE, s->meta_bytes, 1, 1);
        want(ws, &s->logits_host, acc, BP_MEM_PINNED, s->max_logits, hp->n_vocab, 4);
        if (s->n_moe > 0)
            want(ws, &s->guard_host, acc, BP_MEM_PINNED, t * s->n_moe, hp->n_expert_used, 4);
    }
}

/* What the workspaces of ops on the device take there. */
static bool workspace_bytes(const struct bp_session *s, uint64_t *out)
{
    uint64_t scratch = 0, sum = 0;
    bool ok = true;
    for (uint32_t i = 0; i < s->n_bound; ++i) {
        const struct bpi_bound *b = &s->bound[i];
        if (b->ws.scratch_bytes > scratch) scratch = b->ws.scratch_bytes;
        if (b->on_host) continue;
        ok = ok && bpi_add_u64(sum, b->ws.persistent_bytes, &sum) &&
             bpi_add_u64(sum, b->ws.plan_bytes, &sum);
    }
    if (bpi_mirror_near(s) && s->lender->scratch_bytes >= scratch) scratch = 0; /* it is lent */
    return bpi_add_u64(sum, scratch, out) && ok;
}

static int32_t fail_count(const struct bp_session *s, struct bp_error *err)
{
    return bpi_fail(
        err, BP_E_LIMIT, "engine", "engine.ctx",
        "the bytes of cache, buffers and weights on %s are more than 64 bits can count; "
        "lower engine.ctx (%u), engine.max_seqs (%u) or engine.batch_tokens (%u)",
        s->device.name, s->ctx, s->max_seqs, s->batch_tok);
}

/* Room for what no slot tells: areas on the device in which prepare() repacks (32 MiB in each of quant_gguf and
 * moe_grouped), and what libraries take for their handles. */
static const uint64_t prepare_bytes = UINT64_C(128) << 20;

/* Everything that will lie in the device's memory, before the first byte goes there. A mirror gets its weights a layer at a
 * time, and its vectors at once. */
static int32_t check_device(struct bp_session *s, const struct wants *ws, uint64_t cache,
                            struct bp_error *err)
{
    uint64_t buffers = prepare_bytes, work = 0, total = 0, free_bytes = 0, all = 0;
    uint64_t weights = bpi_session_vector_bytes(s);
    bool ok = !ws->overflow && workspace_bytes(s, &work);
    for (uint32_t i = 0; i < ws->n && ok; ++i)
        ok = ws->w[i].mem != BP_MEM_DEVICE || bpi_add_u64(buffers, ws->w[i].n_bytes, &buffers);
    if (s->lender == NULL) ok = ok && bpi_add_u64(weights, s->weight_bytes, &weights);
    ok = ok && bpi_add_u64(weights, cache, &total) && bpi_add_u64(total, buffers, &total) &&
         bpi_add_u64(total, work, &total);
    if (!ok) return fail_count(s, err);
    BP_TRY(BPI_RUN(s->device_op, -1, bp_device_ops, mem_info, &free_bytes, &all));
    if (total <= free_bytes) return BP_OK;
    return bpi_fail(err, BP_E_LIMIT, "engine", "engine.device",
                    "the model needs %llu bytes on %s (weights %.2f GiB, cache %.2f, buffers and "
                    "workspaces %.2f) and %llu are free; lower engine.ctx (%u), engine.max_seqs "
                    "(%u) or engine.batch_tokens (%u), or take a smaller file",
                    (unsigned long long)total, s->device.name, (double)weights / 0x1p30,
                    (double)cache / 0x1p30, ((double)buffers + (double)work) / 0x1p30,
                    (unsigned long long)free_bytes, s->ctx, s->max_seqs, s->batch_tok);
}

static int32_t check_host(struct bp_session *s, const struct wants *ws, uint64_t more,
                          struct bp_error *err)
{
    uint64_t total = more, free_bytes = 0, all = 0;
    bool ok = !ws->overflow;
    for (uint32_t i = 0; i < ws->n && ok; ++i) ok = bpi_add_u64(total, ws->w[i].n_bytes, &total);
    if (!ok) return fail_count(s, err);
    BP_TRY(BPI_RUN(s->device_op, -1, bp_device_ops, mem_info, &free_bytes, &all));
    if (total <= free_bytes) return BP_OK;
    return bpi_fail(err, BP_E_NOMEM, "engine", "engine.ctx",
                    "cache and buffers need %llu bytes (%.2f GiB) on %s and %llu (%.2f GiB) are "
                    "free; lower engine.ctx (%u), engine.max_seqs (%u) or engine.batch_tokens (%u)",
                    (unsigned long long)total, (double)total / 0x1p30, s->device.name,
                    (unsigned long long)free_bytes, (double)free_bytes / 0x1p30, s->ctx,
                    s->max_seqs, s->batch_tok);
}

static uint64_t n_blocks(const struct bp_session *s)
{
    return (uint64_t)s->max_seqs * ((s->ctx + s->block_tok - 1) / s->block_tok);
}

static int32_t allocate_pools(struct bp_session *s, struct bp_error *err)
{
    uint64_t n = n_blocks(s);
    for (uint32_t il = 0; il < s->n_layer; ++il) {
        struct bpi_layer *l = &s->layers[il];
        void *p;
        BP_TRY(
            bpi_session_alloc(s, BP_MEM_DEVICE, n * l->kv_block_bytes, &s->memory.cache, &p, err));
        l->pool = p;
        if (!l->has_index) continue;
        BP_TRY(bpi_session_alloc(s, BP_MEM_DEVICE, n * l->index_block_bytes, &s->memory.cache, &p,
                                 err));
        l->index_pool = p;
    }
    return BP_OK;
}

static int32_t allocate_workspaces(struct bp_session *s, struct bp_error *err)
{
    uint64_t host_bytes = 0;
    for (uint32_t i = 0; i < s->n_bound; ++i) {
        struct bpi_bound *b = &s->bound[i];
        const uint32_t mem = b->on_host ? BP_MEM_PINNED : BP_MEM_DEVICE;
        uint64_t *acc = &s->memory.scratch;
        if (b->ws.persistent_bytes > 0) {
            BP_TRY(bpi_session_alloc(s, mem, b->ws.persistent_bytes, acc, &b->persistent, err));
        }
        if (b->ws.plan_bytes > 0)
            BP_TRY(bpi_session_alloc(s, mem, b->ws.plan_bytes, acc, &b->plan, err));
        if (b->ws.pinned_bytes > 0) {
            BP_TRY(bpi_session_alloc(s, BP_MEM_PINNED, b->ws.pinned_bytes, acc, &b->pinned, err));
        }
        if (b->ws.scratch_bytes > s->scratch_bytes) s->scratch_bytes = b->ws.scratch_bytes;
        if (b->on_host && b->ws.scratch_bytes > host_bytes) host_bytes = b->ws.scratch_bytes;
    }
    if (host_bytes > 0) /* as large as the device's, whose size every launch tells */
        BP_TRY(bpi_session_alloc(s, BP_MEM_PINNED, s->scratch_bytes, &s->memory.scratch,
                                 &s->host_scratch, err));
    if (bpi_mirror_near(s) && s->lender->scratch_bytes >= s->scratch_bytes) {
        s->scratch = s->lender->scratch; /* their calls come one after the other, each waited for */
        return BP_OK;
    }
    return bpi_session_alloc(s, BP_MEM_DEVICE, s->scratch_bytes, &s->memory.scratch, &s->scratch,
                             err);
}

static int32_t fill_rope_tables(struct bp_session *s, struct bp_error *err)
{
    uint64_t n = (uint64_t)s->ctx * (s->hp->rope / 2);
    if (s->device.kind == BP_DEV_HOST) {
        bpi_model_rope_table(s->hp, s->ctx, s->rope_cos, s->rope_sin);
        return BP_OK;
    }
    float *host = bpi_calloc(2 * n, sizeof(*host));
    if (host == NULL) return bpi_fail_nomem(err, "engine", 2 * n * sizeof(*host));
    bpi_model_rope_table(s->hp, s->ctx, host, host + n);
    int32_t rc = bpi_session_copy(s, s->rope_cos, host, n * 4, BP_COPY_H2D, err);
    if (rc == BP_OK) rc = bpi_session_copy(s, s->rope_sin, host + n, n * 4, BP_COPY_H2D, err);
    if (rc == BP_OK) rc = bpi_session_sync(s, err);
    bpi_free(host);
    return rc;
}

static int32_t allocate_step_state(struct bp_session *s, struct bp_error *err)
{
    struct bpi_step *st = &s->step;
    size_t t = s->batch_tok;
    st->row_item = bpi_arena_alloc(&s->arena, t, sizeof(uint32_t), 16);
    st->row_pos = bpi_arena_alloc(&s->arena, t, sizeof(uint32_t), 16);
    st->logit_row = bpi_arena_alloc(&s->arena, s->max_logits, sizeof(uint32_t), 16);
    st->logit_first = bpi_arena_alloc(&s->arena, s->max_seqs, sizeof(uint32_t), 16);
    st->logit_count = bpi_arena_alloc(&s->arena, s->max_seqs, sizeof(uint32_t), 16);
    st->groups = bpi_arena_alloc(&s->arena, s->max_seg, sizeof(*st->groups), 16);
    s->metas = bpi_arena_alloc(&s->arena, (size_t)s->max_seg * s->max_phase, sizeof(*s->metas), 16);
    s->start = bpi_arena_alloc(&s->arena, s->max_seqs, sizeof(uint32_t), 16);
    s->bad_row = bpi_arena_alloc(&s->arena, t, 1, 16);
    if (st->row_item == NULL || st->row_pos == NULL || st->logit_row == NULL ||
        st->logit_first == NULL || st->logit_count == NULL || st->groups == NULL ||
        s->metas == NULL || s->start == NULL || s->bad_row == NULL) {
        return bpi_fail_nomem(err, "engine", t * 16);
    }
    return BP_OK;
}

int32_t bpi_session_buffers(struct bp_session *s, struct bp_error *err)
{
    struct wants ws = {.n = 0};
    want_buffers(s, &ws);
    uint64_t more = 0, pool, per_layer;
    for (uint32_t il = 0; il < s->n_layer; ++il) {
        per_layer = s->layers[il].kv_block_bytes + s->layers[il].index_block_bytes;
        if (!bpi_mul_u64(n_blocks(s), per_layer, &pool) || !bpi_add_u64(more, pool, &more))
            ws.overflow = true;
    }
    BP_TRY(s->device.kind == BP_DEV_HOST ? check_host(s, &ws, more, err)
                                         : check_device(s, &ws, more, err));
    BP_TRY(bpi_kv_create((uint32_t)n_blocks(s), s->block_tok, s->max_seqs, s->ctx, &s->kv, err));
    for (uint32_t i = 0; i < ws.n; ++i) {
        void *p;
        BP_TRY(bpi_session_alloc(s, ws.w[i].mem, ws.w[i].n_bytes, ws.w[i].account, &p, err));
        memcpy(ws.w[i].out, &p, sizeof(p)); /* out points to a pointer of whatever type */
    }
    if (s->device.kind == BP_DEV_HOST) {
        s->meta_dev = s->meta_host;
        s->logits_host = s->logits;
    }
    BP_TRY(allocate_pools(s, err));
    BP_TRY(allocate_workspaces(s, err));
    BP_TRY(allocate_step_state(s, err));
    return fill_rope_tables(s, err);
}

void bp_session_memory(const struct bp_session *s, struct bp_session_memory *out)
{
    struct bp_hdr h = out->h;
    *out = s->memory;
    out->h = h;
}
