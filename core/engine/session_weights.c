/* session_weights.c - hands every weight to the op that owns it, and takes it back.
 * No handle crosses providers; raw bytes stay in the mapped file. SPDX-License-Identifier: MIT */
#include "engine/session_priv.h"
#include <stdio.h>
#include <string.h>

static void where_of(uint32_t role, uint32_t il, char out[64])
{
    const struct bpi_tensor_spec *spec = &bpi_tensor_specs(&(size_t){0})[role];
    if (spec->per_layer) {
        snprintf(out, 64, "blk.%u.%s", il, spec->gguf);
    } else {
        snprintf(out, 64, "%s", spec->gguf);
    }
}

static int32_t prepare_site(struct bp_session *s, struct bpi_site *site, const uint32_t *roles,
                            uint32_t il, struct bp_error *err)
{
    const int32_t layer = site == &s->head ? -1 : (int32_t)il;
    for (uint32_t i = 0; i < site->n_w; ++i) {
        struct bp_raw raw;
        struct bp_weight_info info = {.h = BP_HDR(struct bp_weight_info, n_bytes)};
        char where[64];
        where_of(roles[i], il, where);
        if (!bpi_model_raw(s->model->m, roles[i], il, 0, 1, &raw)) {
            return bpi_fail(err, BP_E_INTERNAL, "engine", where,
                            "the weight was bound but is not in the model");
        }
        BP_TRY(BPI_RUN(site->op[i], layer, bp_quant_ops, prepare, &raw, &site->weight[i], &info));
        s->memory.weights += info.n_bytes;
        bpi_decisions_weight(s->decisions, site->row[i], info.n_bytes);
    }
    return BP_OK;
}

static void release_site(struct bpi_site *site)
{
    for (uint32_t i = 0; i < site->n_w; ++i) {
        if (site->weight[i] != NULL) BPI_CALL(site->op[i], bp_quant_ops, release, site->weight[i]);
        site->weight[i] = NULL;
    }
}

static int32_t upload_vec(struct bp_session *s, uint32_t role, uint32_t il, const float **out,
                          struct bp_error *err)
{
    size_t n = 0;
    const float *host = bpi_model_vec(s->model->m, role, il, &n);
    const void *dev;
    BP_TRY(bpi_session_upload(s, host, n * sizeof(float), &dev, err));
    *out = dev;
    return BP_OK;
}

static int32_t prepare_vectors(struct bp_session *s, uint32_t il, struct bp_error *err)
{
    struct bpi_layer *l = &s->layers[il];
    const struct {
        uint32_t role;
        const float **out;
    } vectors[] = {
        {BPI_W_ATTN_NORM, &l->attn_norm},       {BPI_W_ATTN_Q_A_NORM, &l->q_a_norm},
        {BPI_W_ATTN_KV_A_NORM, &l->kv_a_norm},  {BPI_W_FFN_NORM, &l->ffn_norm},
        {BPI_W_INDEX_K_NORM, &l->index_norm_w}, {BPI_W_INDEX_K_NORM_B, &l->index_norm_b},
        {BPI_W_ROUTER_BIAS, &l->router_bias},
    };
    for (size_t i = 0; i < BPI_ARRAY_LEN(vectors); ++i)
        BP_TRY(upload_vec(s, vectors[i].role, il, vectors[i].out, err));
    return BP_OK;
}

static int32_t prepare_mla(struct bp_session *s, uint32_t il, struct bp_error *err)
{
    struct bpi_layer *l = &s->layers[il];
    const struct bpi_hparams *hp = s->hp;
    struct bp_mla_weights w = {.h = BP_HDR(struct bp_mla_weights, head_end),
                               .n_head = hp->n_head,
                               .nope_dim = hp->nope,
                               .v_dim = hp->v_dim,
                               .kv_rank = hp->kv_lora,
                               .head_begin = 0,
                               .head_end = hp->n_head};
    bool split = bpi_model_raw(s->model->m, BPI_W_ATTN_K_B, il, 0, 1, &w.k_b);
    split = bpi_model_raw(s->model->m, BPI_W_ATTN_V_B, il, 0, 1, &w.v_b) && split;
    if (!split) {
        memset(&w.k_b, 0, sizeof(w.k_b));
        memset(&w.v_b, 0, sizeof(w.v_b));
        bpi_model_raw(s->model->m, BPI_W_ATTN_KV_B, il, 0, 1, &w.kv_b);
    }
    struct bp_weight_info info = {.h = BP_HDR(struct bp_weight_info, n_bytes)};
    BP_TRY(BPI_RUN(l->common, (int32_t)il, bp_mla_common_ops, prepare, &w, &l->mla, &info));
    s->memory.weights += info.n_bytes;
    bpi_decisions_weight(s->decisions, l->common_row, info.n_bytes);
    return BP_OK;
}

static int32_t prepare_moe(struct bp_session *s, uint32_t il, struct bp_error *err)
{
    struct bpi_layer *l = &s->layers[il];
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
    for (size_t i = 0; i < BPI_ARRAY_LEN(parts); ++i) {
        bpi_model_raw(s->model->m, parts[i].role, il, 0, 1, parts[i].out);
    }
    struct bp_weight_info info = {.h = BP_HDR(struct bp_weight_info, n_bytes)};
    BP_TRY(BPI_RUN(l->moe, (int32_t)il, bp_moe_ops, prepare, &w, &l->experts, &info));
    s->memory.weights += info.n_bytes;
    bpi_decisions_weight(s->decisions, l->moe_row, info.n_bytes);
    return BP_OK;
}

static int32_t prepare_layer_sites(struct bp_session *s, uint32_t il, struct bp_error *err)
{
    struct bpi_layer *l = &s->layers[il];
    const uint32_t in[3] = {s->hp->q_lora > 0 ? BPI_W_ATTN_Q_A : BPI_W_ATTN_Q, BPI_W_ATTN_KV_A,
                            BPI_W_INDEX_K};
    const struct {
        struct bpi_site *site;
        uint32_t roles[2];
    } sites[] = {
        {&l->q_b, {BPI_W_ATTN_Q_B}},      {&l->out, {BPI_W_ATTN_OUTPUT}},
        {&l->index_q, {BPI_W_INDEX_Q_B}}, {&l->index_w, {BPI_W_INDEX_PROJ}},
        {&l->router, {BPI_W_ROUTER}},     {&l->gate_up, {BPI_W_FFN_GATE, BPI_W_FFN_UP}},
        {&l->down, {BPI_W_FFN_DOWN}},
    };
    BP_TRY(prepare_site(s, &l->in, in, il, err));
    for (size_t i = 0; i < BPI_ARRAY_LEN(sites); ++i)
        BP_TRY(prepare_site(s, sites[i].site, sites[i].roles, il, err));
    return BP_OK;
}

static int32_t prepare_global(struct bp_session *s, struct bp_error *err)
{
    struct bp_raw raw;
    bpi_model_raw(s->model->m, BPI_W_TOKEN_EMBD, 0, 0, 1, &raw);
    struct bpi_bound *embed = s->dense[BP_DENSE_OP_EMBED];
    struct bp_weight_info info = {.h = BP_HDR(struct bp_weight_info, n_bytes)};
    BP_TRY(BPI_RUN(embed, -1, bp_dense_ops, prepare, &raw, &s->embed, &info));
    s->memory.weights += info.n_bytes;
    bpi_decisions_weight(s->decisions, s->embed_row, info.n_bytes);
    const uint32_t head[1] = {BPI_W_OUTPUT};
    BP_TRY(prepare_site(s, &s->head, head, 0, err));
    return upload_vec(s, BPI_W_OUTPUT_NORM, 0, &s->output_norm, err);
}

/* What every token reads comes first, the experts last: a provider that runs short of fast memory then has spent it where
 * it helps most. */
int32_t bpi_session_prepare(struct bp_session *s, struct bp_error *err)
{
    BP_TRY(prepare_global(s, err));
    for (uint32_t il = 0; il < s->n_layer; ++il) {
        BP_TRY(bpi_session_progress(s, 0.5 * il / s->n_layer, "preparing weights", err));
        BP_TRY(prepare_vectors(s, il, err));
        BP_TRY(prepare_layer_sites(s, il, err));
        BP_TRY(prepare_mla(s, il, err));
    }
    for (uint32_t il = 0; il < s->n_layer; ++il) {
        BP_TRY(bpi_session_progress(s, 0.5 + 0.5 * il / s->n_layer, "preparing experts", err));
        if (!s->layers[il].dense_ffn) BP_TRY(prepare_moe(s, il, err));
    }
    return BP_OK;
}

void bpi_session_release(struct bp_session *s)
{
    if (s->layers == NULL) return;
    for (uint32_t il = 0; il < s->n_layer; ++il) {
        struct bpi_layer *l = &s->layers[il];
        struct bpi_site *sites[] = {&l->in,      &l->q_b,     &l->out,  &l->index_q,
                                    &l->index_w, &l->gate_up, &l->down, &l->router};
        for (size_t i = 0; i < BPI_ARRAY_LEN(sites); ++i) release_site(sites[i]);
        if (l->mla != NULL) BPI_CALL(l->common, bp_mla_common_ops, release, l->mla);
        if (l->experts != NULL) BPI_CALL(l->moe, bp_moe_ops, release, l->experts);
        l->mla = l->experts = NULL;
    }
    release_site(&s->head);
    struct bpi_bound *embed = s->dense[BP_DENSE_OP_EMBED];
    if (s->embed != NULL) BPI_CALL(embed, bp_dense_ops, release, s->embed);
    s->embed = NULL;
}
