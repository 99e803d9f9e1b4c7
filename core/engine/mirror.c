/* mirror.c - who looks at the calls of a step, and the same call in another session.
 * A pointer of one session is translated to the other by what it is: step buffers by their number and offset, norms, pools
 * and handles by their place in the layer, metadata by its place in the step. So views and tensors that share memory mean
 * the same on both sides. Not here: copying tensors, rows of the cache (mirror_data.c).
 * Threads: the session's. SPDX-License-Identifier: MIT */
#include "engine/mirror_priv.h"
#include "backplane/sdk_ports.h"
#include <string.h>

/* ---- watching ---- */

int32_t bpi_session_watch(struct bp_session *s, const struct bpi_watch *w, struct bp_error *err)
{
    if (w == NULL) {
        s->watcher = NULL;
        return BP_OK;
    }
    struct bpi_watcher *watcher = bpi_arena_alloc(&s->arena, 1, sizeof(*watcher), 16);
    if (watcher == NULL) return bpi_fail_nomem(err, "engine", sizeof(*watcher));
    watcher->w = w;
    s->watcher = watcher;
    return BP_OK;
}

/* The tensors of a call, from its slot's own list: a provider's might be the fault that is looked for. */
static int32_t list_ports(const char *iface, uint32_t number, const void *args, struct bp_tensor *t,
                          uint32_t *n)
{
    static const struct {
        const char *iface;
        int32_t (*fn)(void *self, uint32_t slot, const void *args, struct bp_tensor *t,
                      uint32_t *n);
    } lists[] = {
        {"bp.dense", bp_dense_tensors},
        {"bp.quant", bp_quant_tensors},
        {"bp.mla.common", bp_mla_common_tensors},
        {"bp.mla.prefill", bp_mla_prefill_tensors},
        {"bp.mla.decode", bp_mla_decode_tensors},
        {"bp.mla.index", bp_mla_index_tensors},
        {"bp.moe", bp_moe_tensors},
    };
    for (size_t i = 0; i < BPI_ARRAY_LEN(lists); ++i) {
        if (strcmp(lists[i].iface, iface) == 0) return lists[i].fn(NULL, number, args, t, n);
    }
    return BP_E_ARG;
}

int32_t bpi_watch_before(struct bp_session *s, const struct bpi_bound *op, const char *fn,
                         uint32_t number, const struct bp_launch *l, const void *args,
                         size_t n_bytes, struct bp_error *err)
{
    struct bpi_watcher *w = s->watcher;
    struct bpi_call *c = &w->call;
    *c = (struct bpi_call){.slot = op->vt->iface + strlen("bp."),
                           .op = fn,
                           .provider = op->provider,
                           .layer = l->layer,
                           .number = number,
                           .args = args,
                           .n_args = n_bytes,
                           .n_port = BPI_CALL_PORTS,
                           .bound = op};
    w->rc = list_ports(op->vt->iface, number, args, c->port, &c->n_port);
    if (w->rc != BP_OK || c->n_port > BPI_CALL_PORTS)
        return w->rc = bpi_fail(err, BP_E_INTERNAL, "engine", op->vt->iface,
                                "op %u of %s does not list its tensors", number, op->vt->iface);
    bpi_call_name(s, c, w->site, sizeof(w->site));
    bpi_call_cost(s, c);
    w->rc = w->w->before != NULL ? w->w->before(w->w->ctx, c, err) : BP_OK;
    if (w->rc == BP_OK) w->rc = bpi_time_begin(s, op, err);
    return w->rc;
}

/* Waiting for the device is also where a fault of the call shows that only happens there. */
int32_t bpi_watch_after(struct bp_session *s, int32_t rc, struct bp_error *err)
{
    struct bpi_watcher *w = s->watcher;
    if (rc != BP_OK) return rc;
    rc = bpi_time_end(s, w->call.bound, &w->call.us, err);
    if (rc != BP_OK) return bpi_op_failed(w->call.bound, w->call.layer, w->call.op, rc, err);
    return w->w->after != NULL ? w->w->after(w->w->ctx, &w->call, err) : BP_OK;
}

/* ---- can one repeat the other? ---- */

static int32_t unlike(const char *what, uint64_t a, uint64_t b, struct bp_error *err)
{
    return bpi_fail(err, BP_E_ARG, "engine", what,
                    "A has %s %llu and B has %llu; in shadow mode they must be equal, because B's "
                    "ops get A's tensors - use --mode free",
                    what, (unsigned long long)a, (unsigned long long)b);
}

int32_t bpi_mirror_check(const struct bp_session *a, const struct bp_session *b,
                         struct bp_error *err)
{
    const struct bpi_hparams *p = a->hp, *q = b->hp;
    const struct {
        const char *name;
        uint64_t a, b;
    } equal[] = {
        {"engine.ctx", a->ctx, b->ctx},
        {"engine.max_seqs", a->max_seqs, b->max_seqs},
        {"engine.batch_tokens", a->batch_tok, b->batch_tok},
        {"engine.slab", a->slab, b->slab},
        {"kv.block", a->block_tok, b->block_tok},
        {"layers", p->n_layer, q->n_layer},
        {"an embedding width of", p->n_embd, q->n_embd},
        {"a vocabulary of", p->n_vocab, q->n_vocab},
        {"heads", p->n_head, q->n_head},
        {"a query rank of", p->q_lora, q->q_lora},
        {"a latent width of", p->kv_lora, q->kv_lora},
        {"an unrotated width of", p->nope, q->nope},
        {"a rotated width of", p->rope, q->rope},
        {"a value width of", p->v_dim, q->v_dim},
        {"leading dense layers", p->n_dense, q->n_dense},
        {"a feed-forward width of", p->n_ff, q->n_ff},
        {"experts", p->n_expert, q->n_expert},
        {"experts per token", p->n_expert_used, q->n_expert_used},
        {"an expert width of", p->n_ff_exp, q->n_ff_exp},
        {"a shared expert's width of", p->n_ff_shared, q->n_ff_shared},
        {"expert groups", p->n_group, q->n_group},
        {"groups per token", p->n_group_used, q->n_group_used},
        {"the gating function", p->gating, q->gating},
        {"the sparse index", p->sparse, q->sparse},
        {"index heads", p->n_index_head, q->n_index_head},
        {"an index width of", p->index_dim, q->index_dim},
        {"an index top_k of", p->top_k, q->top_k},
    };
    if (a->act != b->act)
        return bpi_fail(err, BP_E_ARG, "engine", "engine.act",
                        "A's activations are %s and B's %s; in shadow mode they must be equal, "
                        "because B's ops get A's tensors - set engine.act of A alone, which B then "
                        "follows, or use --mode free",
                        bp_session_act_dtype(a), bp_session_act_dtype(b));
    for (size_t i = 0; i < BPI_ARRAY_LEN(equal); ++i) {
        if (equal[i].a != equal[i].b) return unlike(equal[i].name, equal[i].a, equal[i].b, err);
    }
    return BP_OK;
}

/* ---- taking part in a step ---- */

int32_t bpi_mirror_begin(struct bp_session *b, const struct bp_step_item *items, uint32_t n_items,
                         struct bp_error *err)
{
    return bpi_step_open(b, items, n_items, err);
}

/* The tokens before the step, block by block in the order in which a took them, so that b's blocks get the same numbers:
 * lists of keys name slots. */
static int32_t take_blocks(const struct bp_session *a, struct bp_session *b,
                           const struct bp_step_item *items, uint32_t n_items, struct bp_error *err)
{
    const uint32_t n_blocks = a->max_seqs * bpi_kv_table_width(a->kv);
    for (uint32_t block = 0; block < n_blocks; ++block) {
        for (uint32_t i = 0; i < n_items; ++i) {
            const uint32_t seq = items[i].seq, have = bpi_kv_len(b->kv, seq);
            const uint32_t before = bpi_kv_len(a->kv, seq) - items[i].n_ids;
            const uint32_t n = before - have < a->block_tok ? before - have : a->block_tok;
            int32_t from, to;
            if (n == 0 || bpi_kv_table(a->kv, seq)[have / a->block_tok] != (int32_t)block) continue;
            int32_t rc = bpi_kv_append(b->kv, seq, n, &from, &to);
            if (rc != BP_OK)
                return bpi_fail(err, rc, "engine", NULL,
                                "the cache of the reference cannot take what the model's took");
        }
    }
    for (uint32_t i = 0; i < n_items; ++i) {
        const uint32_t n = bpi_kv_len(b->kv, items[i].seq);
        if (n == bpi_kv_len(a->kv, items[i].seq) - items[i].n_ids &&
            memcmp(bpi_kv_table(a->kv, items[i].seq), bpi_kv_table(b->kv, items[i].seq),
                   (n + a->block_tok - 1) / a->block_tok * sizeof(int32_t)) == 0)
            continue;
        return bpi_fail(err, BP_E_INTERNAL, "engine", NULL,
                        "the cache of the reference numbers its blocks in another way");
    }
    return BP_OK;
}

int32_t bpi_mirror_join(const struct bp_session *a, struct bp_session *b,
                        const struct bp_step_item *items, uint32_t n_items, struct bp_error *err)
{
    BP_TRY(take_blocks(a, b, items, n_items, err));
    BP_TRY(bpi_step_open(b, items, n_items, err));
    for (uint32_t i = 0; i < n_items; ++i) {
        for (uint32_t il = 0; il < a->n_layer; ++il) {
            const uint32_t n = bpi_kv_len(a->kv, items[i].seq);
            int32_t rc = bpi_mirror_copy_rows(a, b, il, false, items[i].seq, 0, n, err);
            if (rc == BP_OK && a->layers[il].has_index)
                rc = bpi_mirror_copy_rows(a, b, il, true, items[i].seq, 0, n, err);
            if (rc != BP_OK && rc != BP_DECLINED) return rc;
        }
    }
    return BP_OK;
}

/* ---- translating ---- */

/* Step buffers come first among a session's pieces of memory, in one order; the staging of metadata ends them. */
static uint32_t n_buffers(const struct bp_session *s)
{
    uint32_t n = 0;
    while (n < s->n_mems && s->mems[n].p != (void *)s->meta_host) ++n;
    return n;
}

bool bpi_mirror_buffer(const struct bp_session *s, const void *p, uint32_t *out_number,
                       uint64_t *out_offset)
{
    const uintptr_t at = (uintptr_t)p;
    const uint32_t n = n_buffers(s);
    for (uint32_t i = 0; i < n; ++i) {
        const uintptr_t base = (uintptr_t)s->mems[i].p;
        if (at < base || at - base >= s->mems[i].n_bytes) continue;
        *out_number = i;
        *out_offset = at - base;
        return true;
    }
    return false;
}

/* A norm of the layer (or of the model), which each session has for itself. */
static const float *other_vector(const struct bp_session *a, const struct bp_session *b,
                                 int32_t layer, const void *p)
{
    if (p == (const void *)a->output_norm) return b->output_norm;
    if (layer < 0) return NULL;
    const struct bpi_layer *la = &a->layers[layer], *lb = &b->layers[layer];
    const struct {
        const float *a, *b;
    } pairs[] = {
        {la->attn_norm, lb->attn_norm},       {la->q_a_norm, lb->q_a_norm},
        {la->kv_a_norm, lb->kv_a_norm},       {la->index_norm_w, lb->index_norm_w},
        {la->index_norm_b, lb->index_norm_b}, {la->ffn_norm, lb->ffn_norm},
        {la->router_bias, lb->router_bias},
    };
    for (size_t i = 0; i < BPI_ARRAY_LEN(pairs); ++i) {
        if (pairs[i].a != NULL && p == (const void *)pairs[i].a) return pairs[i].b;
    }
    return NULL;
}

static void *other_pool(const struct bp_session *a, const struct bp_session *b, int32_t layer,
                        const void *p, struct bp_tensor *t)
{
    if (layer < 0) return NULL;
    const struct bpi_layer *la = &a->layers[layer], *lb = &b->layers[layer];
    if (p != (const void *)la->pool &&
        (la->index_pool == NULL || p != (const void *)la->index_pool))
        return NULL;
    const bool index = p != (const void *)la->pool;
    t->dim[1] = t->stride[0] = (int64_t)(index ? lb->index_block_bytes : lb->kv_block_bytes);
    t->layout_id = index ? lb->index_layout_id : lb->kv_layout_id;
    return index ? lb->index_pool : lb->pool;
}

int32_t bpi_mirror_translate(const struct bp_session *a, const struct bp_session *b, int32_t layer,
                             struct bp_tensor *t, struct bp_error *err)
{
    uint32_t number;
    uint64_t offset;
    const char *p = t->data;
    const char *positions = (const char *)a->step.common.positions;
    if (a == b || p == NULL) return BP_OK;
    if (bpi_mirror_buffer(a, p, &number, &offset)) {
        t->data = (char *)b->mems[number].p + offset;
        return BP_OK;
    }
    if (p >= positions && p < positions + 4 * (size_t)a->step.n_tok) {
        t->data = (char *)(uintptr_t)b->step.common.positions + (p - positions);
        return BP_OK;
    }
    if (p == (const char *)a->ids_dev) {
        t->data = (void *)(uintptr_t)b->ids_dev;
        return BP_OK;
    }
    const float *vector = other_vector(a, b, layer, p);
    void *pool = vector == NULL ? other_pool(a, b, layer, p, t) : NULL;
    t->data = vector != NULL ? (void *)(uintptr_t)vector : pool;
    if (t->data != NULL) return BP_OK;
    return bpi_fail(err, BP_E_INTERNAL, "engine", t->name,
                    "a tensor of a call lies in no memory that the other side has too");
}

/* ---- calling ---- */

static const struct bp_mla_prefill_meta *other_group(const struct bp_session *a,
                                                     const struct bp_session *b,
                                                     const struct bp_mla_prefill_meta *m)
{
    for (uint32_t g = 0; g < a->step.n_group && g < b->step.n_group; ++g) {
        for (uint32_t p = 0; p < a->step.groups[g].n_phase; ++p) {
            if (m == &a->step.groups[g].meta[p]) return &b->step.groups[g].meta[p];
        }
    }
    return NULL;
}

union call_args {
    struct bp_hdr h;
    unsigned char bytes[1024];
    struct bp_dense_embed_args embed;
    struct bp_dense_rms_args rms;
    struct bp_dense_rope_args rope;
    struct bp_dense_pair_args pair;
    struct bp_quant_matmul_args matmul;
    struct bp_mla_cache_write_args cache_write;
    struct bp_mla_cache_gather_args cache_gather;
    struct bp_mla_expand_args expand;
    struct bp_mla_absorb_args absorb;
    struct bp_mla_merge_args merge;
    struct bp_mla_prefill_args prefill;
    struct bp_mla_decode_args decode;
    struct bp_mla_key_write_args key_write;
    struct bp_mla_select_args select;
    struct bp_moe_route_args route;
    struct bp_moe_run_args moe;
};

/* The call's args with every pointer turned into b's, weights left out. */
static int32_t other_args(const struct bp_session *a, const struct bp_session *b,
                          const struct bpi_call *c, union call_args *out, struct bp_error *err)
{
    const struct bpi_bound *op = c->bound;
    const struct bpi_ports *ports = bpi_find_ports(op->vt->iface, c->number);
    if (ports == NULL || c->n_args > sizeof(out->bytes))
        return bpi_fail(err, BP_E_INTERNAL, "engine", op->vt->iface,
                        "op %u of %s cannot be repeated", c->number, op->vt->iface);
    memcpy(out->bytes, c->args, c->n_args);
    for (uint32_t i = 0; i < BPI_MAX_ARGS_PORTS && ports->at[i] != 0; ++i) {
        struct bp_tensor t;
        memcpy(&t, out->bytes + ports->at[i], sizeof(t));
        BP_TRY(bpi_mirror_translate(a, b, c->layer, &t, err));
        memcpy(out->bytes + ports->at[i], &t, sizeof(t));
    }
    const void *meta = &b->step.common;
    if (ports->meta == BPI_META_NONE) return BP_OK;
    if (ports->meta == BPI_META_DECODE) meta = &b->step.decode;
    if (ports->meta == BPI_META_PREFILL) {
        const void *own;
        memcpy(&own, out->bytes + BPI_ARGS_META_AT, sizeof(own));
        meta = other_group(a, b, own);
        if (meta == NULL)
            return bpi_fail(err, BP_E_INTERNAL, "engine", op->vt->iface,
                            "the other side groups its prompt tokens in another way");
    }
    memcpy(out->bytes + BPI_ARGS_META_AT, &meta, sizeof(meta));
    return BP_OK;
}

/* The site of b that has the weight at the place where one of a has it. */
static const struct bpi_site *other_site(const struct bp_session *a, const struct bp_session *b,
                                         int32_t layer, const void *weight,
                                         const struct bpi_site **own, uint32_t *first)
{
    static const size_t sites[] = {
        offsetof(struct bpi_layer, in),      offsetof(struct bpi_layer, q_b),
        offsetof(struct bpi_layer, out),     offsetof(struct bpi_layer, index_q),
        offsetof(struct bpi_layer, index_w), offsetof(struct bpi_layer, gate_up),
        offsetof(struct bpi_layer, down),    offsetof(struct bpi_layer, router)};
    const size_t n = layer < 0 ? 1 : BPI_ARRAY_LEN(sites);
    for (size_t i = 0; i < n; ++i) {
        const char *la = layer < 0 ? (const char *)&a->head : (const char *)&a->layers[layer];
        const char *lb = layer < 0 ? (const char *)&b->head : (const char *)&b->layers[layer];
        const struct bpi_site *sa = (const void *)(la + (layer < 0 ? 0 : sites[i]));
        for (uint32_t k = 0; k < sa->n_w; ++k) {
            if (sa->weight[k] != weight) continue;
            *own = sa;
            *first = k;
            return (const void *)(lb + (layer < 0 ? 0 : sites[i]));
        }
    }
    return NULL;
}

const struct bpi_site *bpi_call_site(const struct bp_session *a, const struct bp_session *b,
                                     const struct bpi_call *c, uint32_t *first)
{
    const struct bp_quant_matmul_args *m = c->args;
    const struct bpi_site *own = NULL;
    if (strcmp(c->slot, "quant") != 0 || m->n_out == 0) return NULL;
    return other_site(a, b, c->layer, bp_matmul_out_at(m, 0)->weight, &own, first);
}

static int32_t run_matmul(const struct bp_session *a, struct bp_session *b,
                          const struct bpi_call *c, const struct bp_quant_matmul_args *m,
                          struct bp_error *err)
{
    uint32_t first = 0;
    struct bp_tensor y[BPI_SITE_MAX_W], x = m->x;
    const struct bpi_site *site = bpi_call_site(a, b, c, &first);
    if (site == NULL || m->n_out > BPI_SITE_MAX_W || first + m->n_out > site->n_w)
        return bpi_fail(err, BP_E_INTERNAL, "engine", c->tap,
                        "a product's weight is not known to the other side");
    for (uint32_t i = 0; i < m->n_out; ++i) {
        y[i] = bp_matmul_out_at(m, i)->y;
        BP_TRY(bpi_mirror_translate(a, b, c->layer, &y[i], err));
    }
    /* As much in one call as b has in one go; what it has not is composed, as in a step of its own. */
    struct bpi_site part = {.n_w = m->n_out,
                            .cols = site->cols,
                            .prologue = m->prologue,
                            .epilogue = m->epilogue,
                            .exact = site->exact};
    const bool whole = m->n_out == site->n_w;
    for (uint32_t i = 0; i < part.n_w; ++i) {
        part.op[i] = site->op[first + i];
        part.weight[i] = site->weight[first + i];
        part.rows[i] = site->rows[first + i];
        part.type[i] = site->type[first + i];
    }
    part.one_call =
        whole && site->one_call && m->prologue == site->prologue && m->epilogue == site->epilogue;
    part.multi = whole && site->multi;
    struct bpi_bound *const *dense = c->layer < 0 ? b->dense : b->layers[c->layer].dense;
    return bpi_site_run(b, &part, dense, c->layer, &x, m->norm_w.data, y,
                        m->epilogue == BP_EPILOGUE_ADD ? &m->residual : NULL, err);
}

/* Which of b's ops answers a call. */
static struct bpi_bound *other_op(const struct bp_session *a, const struct bp_session *b,
                                  const struct bpi_call *c)
{
    const struct bpi_layer *l = c->layer < 0 ? NULL : &b->layers[c->layer];
    uint32_t first = 0;
    if (strcmp(c->slot, "dense") == 0 && c->number == BP_DENSE_OP_RMS &&
        ((const struct bp_dense_rms_args *)c->args)->y.dtype == BP_DT_F32)
        return l == NULL ? b->rms_f32 : l->rms_f32 != NULL ? l->rms_f32 : l->dense[c->number];
    if (strcmp(c->slot, "dense") == 0) return l == NULL ? b->dense[c->number] : l->dense[c->number];
    if (strcmp(c->slot, "quant") == 0) {
        const struct bpi_site *site = bpi_call_site(a, b, c, &first);
        return site != NULL ? site->op[first] : NULL;
    }
    if (l == NULL) return NULL;
    if (strcmp(c->slot, "mla.common") == 0) return l->common;
    if (strcmp(c->slot, "mla.prefill") == 0) return l->prefill;
    if (strcmp(c->slot, "mla.decode") == 0) return l->decode;
    if (strcmp(c->slot, "mla.index") == 0) return l->index;
    return l->moe;
}

const char *bpi_mirror_provider(const struct bp_session *a, const struct bp_session *b,
                                const struct bpi_call *c)
{
    const struct bpi_bound *op = other_op(a, b, c);
    return op != NULL ? op->provider : "";
}

/* Ops of wrapped instances answer through another self than their plugin's. */
static bool is_ref(const struct bpi_bound *op)
{
    return op != NULL && strcmp(op->provider, "ref") == 0 && op->vt == op->ref.vt;
}

bool bpi_mirror_is_ref(const struct bp_session *a, const struct bp_session *b,
                       const struct bpi_call *c)
{
    uint32_t first = 0;
    if (a == b) return is_ref(c->bound);
    if (strcmp(c->slot, "quant") != 0) return is_ref(other_op(a, b, c));
    const struct bp_quant_matmul_args *m = c->args;
    const struct bpi_site *site = bpi_call_site(a, b, c, &first);
    struct bpi_bound *const *dense = c->layer < 0 ? b->dense : b->layers[c->layer].dense;
    static const uint32_t composing[] = {BP_DENSE_OP_RMS, BP_DENSE_OP_ADD, BP_DENSE_OP_SILU_MUL};
    bool ref = site != NULL;
    for (uint32_t i = 0; ref && i < m->n_out; ++i)
        ref = first + i < site->n_w && is_ref(site->op[first + i]);
    for (size_t i = 0; ref && i < BPI_ARRAY_LEN(composing); ++i)
        ref = dense[composing[i]] == NULL || is_ref(dense[composing[i]]);
    return ref;
}

static int32_t run_dense(struct bp_session *b, struct bpi_bound *op, const struct bpi_call *c,
                         struct bp_launch *l, union call_args *u, struct bp_error *err)
{
    switch (c->number) {
    case BP_DENSE_OP_EMBED:
        u->embed.table = b->embed;
        return BPI_OP(b, op, bp_dense_ops, embed, c->number, l, &u->embed);
    case BP_DENSE_OP_RMS:
        return BPI_OP(b, op, bp_dense_ops, rms, c->number, l, &u->rms);
    case BP_DENSE_OP_ROPE:
        u->rope.cos_table = b->step.common.rope_cos;
        u->rope.sin_table = b->step.common.rope_sin;
        return BPI_OP(b, op, bp_dense_ops, rope, c->number, l, &u->rope);
    case BP_DENSE_OP_SILU_MUL:
        return BPI_OP(b, op, bp_dense_ops, silu_mul, c->number, l, &u->pair);
    default:
        return BPI_OP(b, op, bp_dense_ops, add, c->number, l, &u->pair);
    }
}

static int32_t run_common(struct bp_session *b, struct bpi_bound *op, const struct bpi_call *c,
                          struct bp_launch *l, union call_args *u, struct bp_error *err)
{
    switch (c->number) {
    case BP_MLA_OP_CACHE_WRITE:
        return BPI_OP(b, op, bp_mla_common_ops, cache_write, c->number, l, &u->cache_write);
    case BP_MLA_OP_CACHE_GATHER:
        return BPI_OP(b, op, bp_mla_common_ops, cache_gather, c->number, l, &u->cache_gather);
    case BP_MLA_OP_EXPAND:
        u->expand.weights = b->layers[c->layer].mla;
        return BPI_OP(b, op, bp_mla_common_ops, expand, c->number, l, &u->expand);
    case BP_MLA_OP_ABSORB:
        u->absorb.weights = b->layers[c->layer].mla;
        return BPI_OP(b, op, bp_mla_common_ops, absorb, c->number, l, &u->absorb);
    default:
        return BPI_OP(b, op, bp_mla_common_ops, merge, c->number, l, &u->merge);
    }
}

static int32_t run_rest(struct bp_session *b, struct bpi_bound *op, const struct bpi_call *c,
                        struct bp_launch *l, union call_args *u, struct bp_error *err)
{
    if (strcmp(c->slot, "mla.prefill") == 0) {
        return c->number == BP_MLA_PREFILL_OP_RUN
                   ? BPI_OP(b, op, bp_mla_prefill_ops, run, c->number, l, &u->prefill)
                   : BPI_OP(b, op, bp_mla_prefill_ops, run_context, c->number, l, &u->prefill);
    }
    if (strcmp(c->slot, "mla.decode") == 0)
        return BPI_OP(b, op, bp_mla_decode_ops, run, c->number, l, &u->decode);
    if (strcmp(c->slot, "mla.index") == 0) {
        return c->number == BP_MLA_INDEX_OP_SELECT
                   ? BPI_OP(b, op, bp_mla_index_ops, select, c->number, l, &u->select)
                   : BPI_OP(b, op, bp_mla_index_ops, key_write, c->number, l, &u->key_write);
    }
    if (c->number == BP_MOE_OP_ROUTE)
        return BPI_OP(b, op, bp_moe_ops, route, c->number, l, &u->route);
    u->moe.weights = b->layers[c->layer].experts;
    return BPI_OP(b, op, bp_moe_ops, run, c->number, l, &u->moe);
}

static int32_t plan(struct bp_session *b, struct bpi_bound *op, const struct bpi_call *c,
                    const struct bp_launch *l, const union call_args *u, struct bp_error *err)
{
    if (strcmp(c->slot, "mla.prefill") == 0)
        return bpi_step_plan_prefill(b, op, l, u->prefill.meta, err);
    if (strcmp(c->slot, "mla.decode") == 0) return bpi_step_plan_decode(b, op, l, err);
    return BP_OK;
}

int32_t bpi_mirror_run(struct bp_session *a, struct bp_session *b, const struct bpi_call *c,
                       double *us, struct bp_error *err)
{
    union call_args u;
    struct bpi_bound *op = other_op(a, b, c);
    memset(&u, 0, sizeof(u));
    if (op == NULL)
        return bpi_fail(err, BP_E_INTERNAL, "engine", c->tap, "the other side has no op for %s.%s",
                        c->slot, c->op);
    BP_TRY(bpi_mirror_weights(a, b, c, err));
    BP_TRY(other_args(a, b, c, &u, err));
    struct bp_launch launch = bpi_step_launch(b, op, c->layer);
    BP_TRY(plan(b, op, c, &launch, &u, err));
    double took;
    int32_t rc;
    BP_TRY(bpi_time_begin(b, op, err));
    if (strcmp(c->slot, "quant") == 0)
        rc = run_matmul(a, b, c, &u.matmul, err);
    else if (strcmp(c->slot, "dense") == 0)
        rc = run_dense(b, op, c, &launch, &u, err);
    else if (strcmp(c->slot, "mla.common") == 0)
        rc = run_common(b, op, c, &launch, &u, err);
    else
        rc = run_rest(b, op, c, &launch, &u, err);
    BP_TRY(rc);
    rc = bpi_time_end(b, op, &took, err);
    if (rc != BP_OK) return bpi_op_failed(op, c->layer, c->op, rc, err);
    if (us != NULL) *us = took;
    return BP_OK;
}
