/* session_carry.c - lets an op that computes on the host serve a rank whose device is another: the tensors that its
 * tensors() names are carried to the host and, where they are written, back.
 * Each piece of device memory has a twin on the host. A tensor keeps its offset in it, so views, strides and tensors that
 * share memory mean the same on both sides. Metadata needs no copy: the engine builds it on the host.
 * What it costs: two copies and two waits around each call, and the whole pool for an op on the cache. It is for standing
 * in and for finding faults; it is never captured in a graph, and `explain` shows it.
 * Threads: the session's. SPDX-License-Identifier: MIT */
#include "engine/session_priv.h"

#include <string.h>

// clang-format off
#define AT(T, f) (uint32_t)offsetof(struct T, f)
static const struct bpi_ports table[] = {
    {"bp.dense", BP_DENSE_OP_EMBED, BPI_META_NONE, {AT(bp_dense_embed_args, ids), AT(bp_dense_embed_args, y)}},
    {"bp.dense", BP_DENSE_OP_RMS, BPI_META_NONE,
     {AT(bp_dense_rms_args, x), AT(bp_dense_rms_args, add), AT(bp_dense_rms_args, w), AT(bp_dense_rms_args, y)}},
    {"bp.dense", BP_DENSE_OP_ROPE, BPI_META_NONE,
     {AT(bp_dense_rope_args, x), AT(bp_dense_rope_args, y), AT(bp_dense_rope_args, positions),
      AT(bp_dense_rope_args, cos_table), AT(bp_dense_rope_args, sin_table)}},
    {"bp.dense", BP_DENSE_OP_SILU_MUL, BPI_META_NONE,
     {AT(bp_dense_pair_args, a), AT(bp_dense_pair_args, b), AT(bp_dense_pair_args, y)}},
    {"bp.dense", BP_DENSE_OP_ADD, BPI_META_NONE,
     {AT(bp_dense_pair_args, a), AT(bp_dense_pair_args, b), AT(bp_dense_pair_args, y)}},
    {"bp.quant", BP_QUANT_OP_MATMUL, BPI_META_NONE, /* and outs */
     {AT(bp_quant_matmul_args, x), AT(bp_quant_matmul_args, norm_w), AT(bp_quant_matmul_args, residual)}},
    {"bp.mla.common", BP_MLA_OP_CACHE_WRITE, BPI_META_COMMON,
     {AT(bp_mla_cache_write_args, kv), AT(bp_mla_cache_write_args, norm_w), AT(bp_mla_cache_write_args, pool)}},
    {"bp.mla.common", BP_MLA_OP_CACHE_GATHER, BPI_META_PREFILL,
     {AT(bp_mla_cache_gather_args, pool), AT(bp_mla_cache_gather_args, c), AT(bp_mla_cache_gather_args, k_pe)}},
    {"bp.mla.common", BP_MLA_OP_EXPAND, BPI_META_NONE,
     {AT(bp_mla_expand_args, c), AT(bp_mla_expand_args, k_pe), AT(bp_mla_expand_args, k), AT(bp_mla_expand_args, v)}},
    {"bp.mla.common", BP_MLA_OP_ABSORB, BPI_META_NONE, {AT(bp_mla_absorb_args, x), AT(bp_mla_absorb_args, y)}},
    {"bp.mla.common", BP_MLA_OP_MERGE, BPI_META_NONE,
     {AT(bp_mla_merge_args, out), AT(bp_mla_merge_args, lse), AT(bp_mla_merge_args, other_out),
      AT(bp_mla_merge_args, other_lse)}},
    {"bp.mla.prefill", BP_MLA_PREFILL_OP_RUN, BPI_META_PREFILL,
     {AT(bp_mla_prefill_args, q), AT(bp_mla_prefill_args, k), AT(bp_mla_prefill_args, v),
      AT(bp_mla_prefill_args, out), AT(bp_mla_prefill_args, lse)}},
    {"bp.mla.prefill", BP_MLA_PREFILL_OP_RUN_CONTEXT, BPI_META_PREFILL,
     {AT(bp_mla_prefill_args, q), AT(bp_mla_prefill_args, k), AT(bp_mla_prefill_args, v),
      AT(bp_mla_prefill_args, out), AT(bp_mla_prefill_args, lse)}},
    {"bp.mla.decode", BP_MLA_DECODE_OP_RUN, BPI_META_DECODE, /* lse is not asked for in a step */
     {AT(bp_mla_decode_args, q), AT(bp_mla_decode_args, pool), AT(bp_mla_decode_args, out),
      AT(bp_mla_decode_args, idx), AT(bp_mla_decode_args, idx_len)}},
    {"bp.mla.index", BP_MLA_INDEX_OP_KEY_WRITE, BPI_META_COMMON,
     {AT(bp_mla_key_write_args, k), AT(bp_mla_key_write_args, norm_w), AT(bp_mla_key_write_args, norm_b),
      AT(bp_mla_key_write_args, pool)}},
    {"bp.mla.index", BP_MLA_INDEX_OP_SELECT, BPI_META_DECODE,
     {AT(bp_mla_select_args, q), AT(bp_mla_select_args, w), AT(bp_mla_select_args, pool), AT(bp_mla_select_args, idx),
      AT(bp_mla_select_args, idx_len)}},
    {"bp.moe", BP_MOE_OP_ROUTE, BPI_META_NONE,
     {AT(bp_moe_route_args, logits), AT(bp_moe_route_args, bias), AT(bp_moe_route_args, ids),
      AT(bp_moe_route_args, weights)}},
    {"bp.moe", BP_MOE_OP_RUN, BPI_META_NONE,
     {AT(bp_moe_run_args, x), AT(bp_moe_run_args, ids), AT(bp_moe_run_args, gates), AT(bp_moe_run_args, y)}},
};
BP_STATIC_ASSERT(offsetof(struct bp_mla_cache_write_args, meta) == offsetof(struct bp_mla_cache_gather_args, meta) &&
                 offsetof(struct bp_mla_cache_write_args, meta) == offsetof(struct bp_mla_prefill_args, meta) &&
                 offsetof(struct bp_mla_cache_write_args, meta) == offsetof(struct bp_mla_decode_args, meta) &&
                 offsetof(struct bp_mla_cache_write_args, meta) == offsetof(struct bp_mla_key_write_args, meta) &&
                 offsetof(struct bp_mla_cache_write_args, meta) == offsetof(struct bp_mla_select_args, meta),
                 "metadata comes first everywhere");
// clang-format on

const struct bpi_ports *bpi_find_ports(const char *iface, uint32_t number)
{
    for (size_t i = 0; i < BPI_ARRAY_LEN(table); ++i) {
        if (table[i].number == number && strcmp(table[i].iface, iface) == 0) return &table[i];
    }
    return NULL;
}

/* ---- twins ---- */

static const struct bpi_mem *find_mem(const struct bp_session *s, const void *p)
{
    const uintptr_t at = (uintptr_t)p;
    for (uint32_t i = 0; i < s->n_mems; ++i) {
        const struct bpi_mem *m = &s->mems[i];
        if (m->host != NULL && at >= (uintptr_t)m->p && at - (uintptr_t)m->p < m->n_bytes) return m;
    }
    return NULL;
}

/* The host's side of a device pointer; NULL for NULL and for what is no memory of the session. */
static void *twin_of(const struct bp_session *s, const void *p)
{
    const struct bpi_mem *m = p != NULL ? find_mem(s, p) : NULL;
    return m != NULL ? (char *)m->host + ((uintptr_t)p - (uintptr_t)m->p) : NULL;
}

static int32_t make_twin(struct bp_session *s, uint32_t i, struct bp_error *err)
{
    const struct bpi_mem m = s->mems[i];
    void *host = s->meta_host;
    uint32_t twin = m.twin;
    if (m.p == (void *)s->meta_dev || m.p == (void *)s->rope_cos || m.p == (void *)s->rope_sin)
        twin = BPI_TWIN_FIXED;
    if (m.p != (void *)s->meta_dev) {
        BP_TRY(bpi_session_alloc(s, BP_MEM_PINNED, m.n_bytes, &s->memory.buffers, &host, err));
        if (twin == BPI_TWIN_FIXED)
            BP_TRY(bpi_session_copy(s, host, m.p, m.n_bytes, BP_COPY_D2H, err));
    }
    s->mems[i].host = host; /* the array may have moved */
    s->mems[i].twin = twin;
    return BP_OK;
}

int32_t bpi_carry_create(struct bp_session *s, struct bp_error *err)
{
    bool any = false;
    const uint32_t n = s->n_mems; /* twins come behind */
    for (uint32_t i = 0; i < s->n_bound; ++i) any = any || s->bound[i].on_host;
    if (!any) return BP_OK;
    s->carry = bpi_arena_alloc(&s->arena, 1, sizeof(*s->carry), 16);
    if (s->carry == NULL) return bpi_fail_nomem(err, "engine", sizeof(*s->carry));
    s->host = (struct bp_device){.h = BP_HDR(struct bp_device, name), .kind = BP_DEV_HOST};
    for (uint32_t i = 0; i < n; ++i) {
        if (s->mems[i].twin != BPI_TWIN_NONE) BP_TRY(make_twin(s, i, err));
    }
    return bpi_session_sync(s, err);
}

/* ---- metadata ---- */

static const int32_t *ints(const struct bp_session *s, const int32_t *p)
{
    return twin_of(s, p);
}

static const struct bp_mla_meta *carry_common(struct bp_session *s, const struct bp_mla_meta *m)
{
    struct bp_mla_meta *o = &s->carry->common;
    *o = *m;
    o->positions = ints(s, m->positions);
    o->slot_map = ints(s, m->slot_map);
    o->block_table = ints(s, m->block_table);
    o->kv_len = ints(s, m->kv_len);
    o->rope_cos.data = twin_of(s, m->rope_cos.data);
    o->rope_sin.data = twin_of(s, m->rope_sin.data);
    return o;
}

const struct bp_mla_prefill_meta *bpi_carry_prefill(struct bp_session *s,
                                                    const struct bp_mla_prefill_meta *m)
{
    struct bp_mla_prefill_meta *o = &s->carry->prefill;
    *o = *m;
    o->common = carry_common(s, m->common);
    o->seq = ints(s, m->seq);
    o->cu_q = ints(s, m->cu_q);
    o->cu_k = ints(s, m->cu_k);
    o->kv_begin = ints(s, m->kv_begin);
    return o;
}

const struct bp_mla_decode_meta *bpi_carry_decode(struct bp_session *s,
                                                  const struct bp_mla_decode_meta *m)
{
    struct bp_mla_decode_meta *o = &s->carry->decode;
    *o = *m;
    o->common = carry_common(s, m->common);
    o->row_seq = ints(s, m->row_seq);
    o->row_kv_len = ints(s, m->row_kv_len);
    return o;
}

static void carry_meta(struct bp_session *s, uint32_t kind)
{
    const void *from, *to = NULL;
    memcpy(&from, s->carry->clone + BPI_ARGS_META_AT, sizeof(from));
    if (kind == BPI_META_COMMON) to = carry_common(s, from);
    if (kind == BPI_META_PREFILL) to = bpi_carry_prefill(s, from);
    if (kind == BPI_META_DECODE) to = bpi_carry_decode(s, from);
    memcpy(s->carry->clone + BPI_ARGS_META_AT, &to, sizeof(to));
}

/* ---- tensors ---- */

/* Copies a tensor's span over. A tensor that is only written comes too, because between its rows may lie others'
 * numbers, which go back with it. */
static int32_t copy_tensor(struct bp_session *s, const struct bp_tensor *t, uint32_t dir,
                           struct bp_error *err)
{
    const uint64_t n = bpi_port_span(t);
    if (n == 0) return BP_OK;
    const struct bpi_mem *m = find_mem(s, t->data);
    if (m == NULL || n > m->n_bytes - ((uintptr_t)t->data - (uintptr_t)m->p)) {
        return bpi_fail(err, BP_E_INTERNAL, "engine", t->name,
                        "a tensor of an op on the host lies outside of the session's memory");
    }
    if (m->twin == BPI_TWIN_FIXED) return BP_OK;
    char *host = (char *)m->host + ((uintptr_t)t->data - (uintptr_t)m->p);
    return dir == BP_COPY_D2H ? bpi_session_copy(s, host, t->data, n, dir, err)
                              : bpi_session_copy(s, t->data, host, n, dir, err);
}

static void move_ports(struct bp_session *s, const struct bpi_ports *ports)
{
    for (uint32_t i = 0; i < BPI_MAX_ARGS_PORTS && ports->at[i] != 0; ++i) {
        struct bp_tensor t;
        memcpy(&t, s->carry->clone + ports->at[i], sizeof(t));
        t.data = twin_of(s, t.data);
        memcpy(s->carry->clone + ports->at[i], &t, sizeof(t));
    }
}

static void move_outs(struct bp_session *s)
{
    struct bp_quant_matmul_args a;
    memcpy(&a, s->carry->clone, sizeof(a));
    memcpy(s->carry->outs, a.outs, a.n_out * sizeof(a.outs[0]));
    for (uint32_t i = 0; i < a.n_out; ++i) s->carry->outs[i].y.data = twin_of(s, a.outs[i].y.data);
    a.outs = s->carry->outs;
    memcpy(s->carry->clone, &a, sizeof(a));
}

static int32_t carry_in(struct bp_session *s, const struct bpi_bound *op, uint32_t number,
                        const void *args, size_t n_bytes, struct bp_error *err)
{
    struct bpi_carry *c = s->carry;
    const char *iface = op->vt->iface;
    const struct bpi_ports *ports = bpi_find_ports(iface, number);
    if (ports == NULL || n_bytes > sizeof(c->clone)) {
        return bpi_fail(err, BP_E_INTERNAL, "engine", iface,
                        "op %u of %s cannot be carried to the host", number, iface);
    }
    c->n = BPI_ARRAY_LEN(c->list);
    BP_TRY(bpi_op_result(op, -1, "tensors",
                         op->ref.vt->tensors(op->ref.self, number, args, c->list, &c->n), err));
    if (c->n > BPI_ARRAY_LEN(c->list)) {
        return bpi_fail(err, BP_E_LIMIT, "engine", iface, "%s lists %u tensors for one call",
                        op->provider, c->n);
    }
    for (uint32_t i = 0; i < c->n; ++i) BP_TRY(copy_tensor(s, &c->list[i], BP_COPY_D2H, err));
    BP_TRY(bpi_session_sync(s, err));
    memcpy(c->clone, args, n_bytes);
    move_ports(s, ports);
    if (strcmp(iface, "bp.quant") == 0) move_outs(s);
    if (ports->meta != BPI_META_NONE) carry_meta(s, ports->meta);
    c->args = c->clone;
    return BP_OK;
}

int32_t bpi_carry_in(struct bp_session *s, const struct bpi_bound *op, uint32_t number,
                     const void *args, size_t n_bytes, struct bp_error *err)
{
    s->carry->rc = carry_in(s, op, number, args, n_bytes, err);
    return s->carry->rc;
}

int32_t bpi_carry_out(struct bp_session *s, int32_t rc, struct bp_error *err)
{
    const struct bpi_carry *c = s->carry;
    if (rc != BP_OK) return rc;
    for (uint32_t i = 0; i < c->n; ++i) {
        if ((c->list[i].access & BP_OUT) != 0)
            BP_TRY(copy_tensor(s, &c->list[i], BP_COPY_H2D, err));
    }
    return bpi_session_sync(s, err);
}
