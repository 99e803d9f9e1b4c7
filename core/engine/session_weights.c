/* session_weights.c - hands every weight to the op that owns it, and takes it back.
 * No handle crosses providers; raw bytes stay in the mapped file. A mirror gets its weights when a call wants them, and
 * takes the lender's handle where its own would be the same: made by the same code from the same bytes of the same file in
 * the same layout. The code must be the same because a layout's name says nothing of faults in writing it.
 * SPDX-License-Identifier: MIT */
#include "engine/session_priv.h"
#include "gguf/gguf.h"
#include <stdio.h>
#include <string.h>

/* ---- handles ---- */

/* Where a session keeps one handle. */
struct place {
    enum bpi_slot slot; /* of the op */
    const struct bpi_bound *op;
    void **handle;
    struct bpi_owned *owned;
};

static void end_handle(const struct place *at)
{
    if (at->slot == BPI_SLOT_DENSE)
        BPI_CALL(at->op, bp_dense_ops, release, *at->handle);
    else if (at->slot == BPI_SLOT_MLA_COMMON)
        BPI_CALL(at->op, bp_mla_common_ops, release, *at->handle);
    else if (at->slot == BPI_SLOT_MOE)
        BPI_CALL(at->op, bp_moe_ops, release, *at->handle);
    else
        BPI_CALL(at->op, bp_quant_ops, release, *at->handle);
}

/* What is lent stays. */
static void release(struct bp_session *s, const struct place *at)
{
    if (*at->handle == NULL || at->owned->lent) return;
    end_handle(at);
    s->held_bytes -= at->owned->n_bytes;
    *at->handle = NULL;
    *at->owned = (struct bpi_owned){0};
}

/* Is the lender's handle what was just made? */
static bool is_lent(const struct bp_session *s, const struct place *own,
                    const struct place *lenders)
{
    const struct bp_session *l = s->lender;
    return bpi_mirror_near(s) && l->model == s->model && *lenders->handle != NULL &&
           own->owned->layout_id != 0 && own->owned->layout_id == lenders->owned->layout_id &&
           own->op->ref.vt == lenders->op->ref.vt;
}

/* Counts a new handle. row: of the decisions. */
static void settle(struct bp_session *s, const struct place *own, const struct place *lenders,
                   const struct bp_weight_info *info, uint32_t row)
{
    *own->owned = (struct bpi_owned){.layout_id = info->layout_id, .n_bytes = info->n_bytes};
    if (is_lent(s, own, lenders)) {
        end_handle(own);
        *own->handle = *lenders->handle;
        *own->owned = (struct bpi_owned){.layout_id = info->layout_id, .lent = true};
    }
    s->held_bytes += own->owned->n_bytes;
    if (s->held_bytes > s->most_bytes) {
        s->memory.weights += s->held_bytes - s->most_bytes;
        s->most_bytes = s->held_bytes;
    }
    if (s->lender == NULL) bpi_decisions_weight(s->decisions, row, info->n_bytes);
}

static struct place at_site(struct bpi_site *site, uint32_t i)
{
    return (struct place){BPI_SLOT_QUANT, site->op[i], &site->weight[i], &site->owned[i]};
}

static struct place at_mla(struct bpi_layer *l)
{
    return (struct place){BPI_SLOT_MLA_COMMON, l->common, &l->mla, &l->mla_owned};
}

static struct place at_moe(struct bpi_layer *l)
{
    return (struct place){BPI_SLOT_MOE, l->moe, &l->experts, &l->experts_owned};
}

static struct place at_embed(struct bp_session *s)
{
    return (struct place){BPI_SLOT_DENSE, s->dense[BP_DENSE_OP_EMBED], &s->embed, &s->embed_owned};
}

/* Whose handles may stand in: the session's own, where there is no lender. Only read. */
static struct bp_session *lender_of(struct bp_session *s)
{
    return s->lender != NULL ? (struct bp_session *)(uintptr_t)s->lender : s;
}

/* Once an op on a device has its copy, nobody on the host needs the file's pages, so that a model may be larger than the
 * host's memory. */
static void drop_pages(const struct bp_session *s, const struct bpi_bound *op,
                       const struct bp_raw *raw)
{
    if (s->device.kind == BP_DEV_HOST || op->on_host || s->lender != NULL ||
        s->model->n_sessions > 1 || raw->data == NULL)
        return;
    bpi_gguf_drop(bpi_model_gguf(s->model->m), raw->data, raw->n_bytes);
}

/* ---- products ---- */

static void where_of(uint32_t role, int32_t layer, char out[64])
{
    const char *name = bpi_tensor_specs(&(size_t){0})[role].gguf;
    if (layer >= 0)
        snprintf(out, 64, "blk.%d.%s", layer, name);
    else
        snprintf(out, 64, "%s", name);
}

int32_t bpi_weight_of_site(struct bp_session *s, struct bpi_site *site, uint32_t i, int32_t layer,
                           struct bp_error *err)
{
    struct bp_session *o = lender_of(s);
    const char *base = layer < 0 ? (char *)&s->head : (char *)&s->layers[layer];
    char *other = layer < 0 ? (char *)&o->head : (char *)&o->layers[layer];
    const struct place own = at_site(site, i);
    const struct place lenders = at_site((void *)(other + ((const char *)site - base)), i);
    struct bp_raw raw;
    struct bp_weight_info info = {.h = BP_HDR(struct bp_weight_info, n_bytes)};
    char where[64];
    if (site->weight[i] != NULL) return BP_OK;
    where_of(site->role[i], layer, where);
    if (!bpi_model_raw(s->model->m, site->role[i], layer < 0 ? 0 : (uint32_t)layer, 0, 1, &raw)) {
        return bpi_fail(err, BP_E_INTERNAL, "engine", where,
                        "the weight was bound but is not in the model");
    }
    BP_TRY(BPI_RUN(site->op[i], layer, bp_quant_ops, prepare, &raw, &site->weight[i], &info));
    settle(s, &own, &lenders, &info, site->row[i]);
    drop_pages(s, site->op[i], &raw);
    return BP_OK;
}

static int32_t prepare_site(struct bp_session *s, struct bpi_site *site, int32_t layer,
                            struct bp_error *err)
{
    for (uint32_t i = 0; i < site->n_w; ++i) BP_TRY(bpi_weight_of_site(s, site, i, layer, err));
    return BP_OK;
}

static void release_site(struct bp_session *s, struct bpi_site *site)
{
    for (uint32_t i = 0; i < site->n_w; ++i) {
        const struct place at = at_site(site, i);
        release(s, &at);
    }
}

/* Sites of a layer in the order in which it reads them. */
enum { N_SITES = 8 };
static void sites_of(struct bpi_layer *l, struct bpi_site *out[N_SITES])
{
    struct bpi_site *const all[N_SITES] = {&l->in,      &l->q_b,    &l->out,     &l->index_q,
                                           &l->index_w, &l->router, &l->gate_up, &l->down};
    memcpy(out, all, sizeof(all));
}

/* ---- the rest ---- */

/* One pass over the vectors of all layers. On HOST they stay where they are; elsewhere a first pass counts, and the next
 * one places copies side by side. */
struct vectors {
    unsigned char *host; /* staging; NULL: only count */
    unsigned char *dev;
    uint64_t n_bytes;
};
enum { VECTOR_ALIGN = 256 };

static void place_vector(const struct bp_session *s, struct vectors *v, uint32_t role, uint32_t il,
                         const float **out)
{
    size_t n = 0;
    const float *from = bpi_model_vec(s->model->m, role, il, &n);
    if (s->device.kind == BP_DEV_HOST) *out = from;
    if (from == NULL || s->device.kind == BP_DEV_HOST) return;
    if (v->host != NULL) {
        memcpy(v->host + v->n_bytes, from, n * sizeof(float));
        *out = (const float *)(const void *)(v->dev + v->n_bytes);
    }
    v->n_bytes += (n * sizeof(float) + VECTOR_ALIGN - 1) / VECTOR_ALIGN * VECTOR_ALIGN;
}

static void place_vectors(struct bp_session *s, struct vectors *v)
{
    v->n_bytes = 0;
    for (uint32_t il = 0; il < s->n_layer; ++il) {
        struct bpi_layer *l = &s->layers[il];
        const struct {
            uint32_t role;
            const float **out;
        } all[] = {
            {BPI_W_ATTN_NORM, &l->attn_norm},       {BPI_W_ATTN_Q_A_NORM, &l->q_a_norm},
            {BPI_W_ATTN_KV_A_NORM, &l->kv_a_norm},  {BPI_W_FFN_NORM, &l->ffn_norm},
            {BPI_W_INDEX_K_NORM, &l->index_norm_w}, {BPI_W_INDEX_K_NORM_B, &l->index_norm_b},
            {BPI_W_ROUTER_BIAS, &l->router_bias},
        };
        for (size_t i = 0; i < BPI_ARRAY_LEN(all); ++i)
            place_vector(s, v, all[i].role, il, all[i].out);
    }
    place_vector(s, v, BPI_W_OUTPUT_NORM, 0, &s->output_norm);
}

uint64_t bpi_session_vector_bytes(struct bp_session *s)
{
    struct vectors v = {.host = NULL};
    place_vectors(s, &v);
    return v.n_bytes;
}

static int32_t upload_vectors(struct bp_session *s, struct bp_error *err)
{
    struct vectors v = {.host = NULL};
    void *host, *dev;
    place_vectors(s, &v);
    if (v.n_bytes == 0) return BP_OK;
    const uint64_t n = v.n_bytes;
    BP_TRY(bpi_session_alloc(s, BP_MEM_DEVICE, n, &s->memory.weights, &dev, err));
    BP_TRY(BPI_RUN(s->device_op, -1, bp_device_ops, alloc, (uint32_t)BP_MEM_PINNED, n, &host));
    v.host = host;
    v.dev = dev;
    place_vectors(s, &v);
    int32_t rc = bpi_session_copy(s, dev, host, n, BP_COPY_H2D, err);
    if (rc == BP_OK) rc = bpi_session_sync(s, err);
    BPI_CALL(s->device_op, bp_device_ops, free, (uint32_t)BP_MEM_PINNED, host);
    return rc;
}

int32_t bpi_weight_of_mla(struct bp_session *s, uint32_t il, struct bp_error *err)
{
    struct bpi_layer *l = &s->layers[il];
    const struct place own = at_mla(l), lenders = at_mla(&lender_of(s)->layers[il]);
    const struct bpi_hparams *hp = s->hp;
    struct bp_mla_weights w = {.h = BP_HDR(struct bp_mla_weights, head_end),
                               .n_head = hp->n_head,
                               .nope_dim = hp->nope,
                               .v_dim = hp->v_dim,
                               .kv_rank = hp->kv_lora,
                               .head_begin = 0,
                               .head_end = hp->n_head};
    if (l->mla != NULL) return BP_OK;
    bool split = bpi_model_raw(s->model->m, BPI_W_ATTN_K_B, il, 0, 1, &w.k_b);
    split = bpi_model_raw(s->model->m, BPI_W_ATTN_V_B, il, 0, 1, &w.v_b) && split;
    if (!split) {
        memset(&w.k_b, 0, sizeof(w.k_b));
        memset(&w.v_b, 0, sizeof(w.v_b));
        bpi_model_raw(s->model->m, BPI_W_ATTN_KV_B, il, 0, 1, &w.kv_b);
    }
    struct bp_weight_info info = {.h = BP_HDR(struct bp_weight_info, n_bytes)};
    BP_TRY(BPI_RUN(l->common, (int32_t)il, bp_mla_common_ops, prepare, &w, &l->mla, &info));
    settle(s, &own, &lenders, &info, l->common_row);
    drop_pages(s, l->common, &w.k_b);
    drop_pages(s, l->common, &w.v_b);
    drop_pages(s, l->common, &w.kv_b);
    return BP_OK;
}

int32_t bpi_weight_of_moe(struct bp_session *s, uint32_t il, struct bp_error *err)
{
    struct bpi_layer *l = &s->layers[il];
    const struct place own = at_moe(l), lenders = at_moe(&lender_of(s)->layers[il]);
    struct bp_moe_weights w = {.h = BP_HDR(struct bp_moe_weights, shared_down)};
    const struct {
        uint32_t role;
        struct bp_raw *out;
    } parts[] = {
        {BPI_W_EXP_GATE, &w.gate},           {BPI_W_EXP_UP, &w.up},
        {BPI_W_EXP_GATE_UP, &w.gate_up},     {BPI_W_EXP_DOWN, &w.down},
        {BPI_W_SHARED_GATE, &w.shared_gate}, {BPI_W_SHARED_UP, &w.shared_up},
        {BPI_W_SHARED_DOWN, &w.shared_down},
    };
    if (l->experts != NULL) return BP_OK;
    for (size_t i = 0; i < BPI_ARRAY_LEN(parts); ++i) {
        bpi_model_raw(s->model->m, parts[i].role, il, 0, 1, parts[i].out);
    }
    struct bp_weight_info info = {.h = BP_HDR(struct bp_weight_info, n_bytes)};
    BP_TRY(BPI_RUN(l->moe, (int32_t)il, bp_moe_ops, prepare, &w, &l->experts, &info));
    settle(s, &own, &lenders, &info, l->moe_row);
    for (size_t i = 0; i < BPI_ARRAY_LEN(parts); ++i) drop_pages(s, l->moe, parts[i].out);
    return BP_OK;
}

int32_t bpi_weight_of_embed(struct bp_session *s, struct bp_error *err)
{
    struct bp_raw raw;
    const struct place own = at_embed(s), lenders = at_embed(lender_of(s));
    struct bp_weight_info info = {.h = BP_HDR(struct bp_weight_info, n_bytes)};
    if (s->embed != NULL) return BP_OK;
    bpi_model_raw(s->model->m, BPI_W_TOKEN_EMBD, 0, 0, 1, &raw);
    BP_TRY(BPI_RUN(own.op, -1, bp_dense_ops, prepare, &raw, &s->embed, &info));
    settle(s, &own, &lenders, &info, s->embed_row);
    drop_pages(s, own.op, &raw);
    return BP_OK;
}

/* ---- all of them ---- */

static int32_t prepare_layer_sites(struct bp_session *s, uint32_t il, struct bp_error *err)
{
    struct bpi_site *sites[N_SITES];
    sites_of(&s->layers[il], sites);
    for (size_t i = 0; i < N_SITES; ++i) BP_TRY(prepare_site(s, sites[i], (int32_t)il, err));
    return BP_OK;
}

/* What every token reads comes first, the experts last: a provider that runs short of fast memory then has spent it where
 * it helps most. */
int32_t bpi_session_prepare(struct bp_session *s, struct bp_error *err)
{
    BP_TRY(upload_vectors(s, err));
    if (s->lender != NULL) return BP_OK;
    BP_TRY(bpi_weight_of_embed(s, err));
    BP_TRY(prepare_site(s, &s->head, -1, err));
    for (uint32_t il = 0; il < s->n_layer; ++il) {
        BP_TRY(bpi_session_progress(s, 0.5 * il / s->n_layer, "preparing weights", err));
        BP_TRY(prepare_layer_sites(s, il, err));
        BP_TRY(bpi_weight_of_mla(s, il, err));
    }
    for (uint32_t il = 0; il < s->n_layer; ++il) {
        BP_TRY(bpi_session_progress(s, 0.5 + 0.5 * il / s->n_layer, "preparing experts", err));
        if (!s->layers[il].dense_ffn) BP_TRY(bpi_weight_of_moe(s, il, err));
    }
    return BP_OK;
}

void bpi_weights_release(struct bp_session *s, int32_t layer)
{
    struct bpi_site *sites[N_SITES];
    if (layer < 0) {
        const struct place embed = at_embed(s);
        release_site(s, &s->head);
        release(s, &embed);
        return;
    }
    struct bpi_layer *l = &s->layers[layer];
    const struct place mla = at_mla(l), experts = at_moe(l);
    sites_of(l, sites);
    for (size_t i = 0; i < N_SITES; ++i) release_site(s, sites[i]);
    release(s, &mla);
    release(s, &experts);
}

void bpi_session_release(struct bp_session *s)
{
    if (s->layers == NULL) return;
    for (uint32_t il = 0; il < s->n_layer; ++il) bpi_weights_release(s, (int32_t)il);
    bpi_weights_release(s, -1);
}
