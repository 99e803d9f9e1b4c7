/* session_kv.c - the cache's dtype and layouts: negotiated between common, prefill, decode, index and the INI, never
 * assumed. `auto` is resolved before any backend is asked. SPDX-License-Identifier: MIT */
#include "engine/session_priv.h"
#include <stdio.h>
#include <string.h>

enum { MAX_LAYOUTS = BPI_MAX_LAYOUTS };

static uint32_t resolve_dtype(const struct bpi_config *c)
{
    const char *text = bpi_config_str(c, "kv", "dtype");
    if (strcmp(text, "f32") == 0) return BP_DT_F32;
    if (strcmp(text, "f16") == 0) return BP_DT_F16;
    return BP_DT_BF16; /* bf16, and what auto means: the models are trained in it, so nothing can overflow */
}

const char *bp_session_kv_dtype(const struct bp_session *s)
{
    return s->kv_dtype == BP_DT_F32 ? "f32" : s->kv_dtype == BP_DT_F16 ? "f16" : "bf16";
}

const char *bp_session_kv_layout(const struct bp_session *s)
{
    return s->kv_layout;
}

struct bp_mla_problem bpi_session_mla_problem(const struct bp_session *s, uint32_t il)
{
    const struct bpi_hparams *hp = s->hp;
    const struct bpi_layer *l = &s->layers[il];
    struct bp_mla_problem p = {.h = BP_HDR(struct bp_mla_problem, type_v),
                               .n_head = hp->n_head,
                               .nope_dim = hp->nope,
                               .rope_dim = hp->rope,
                               .v_dim = hp->v_dim,
                               .kv_rank = hp->kv_lora,
                               .block_tok = s->block_tok,
                               .act_dtype = s->act,
                               .kv_dtype = s->kv_dtype,
                               .layout_id = l->kv_layout_id,
                               .index_layout_id = l->index_layout_id,
                               .max_tok = s->batch_tok,
                               .max_seqs = s->max_seqs,
                               .max_rows = s->max_rows,
                               .max_kv = s->ctx,
                               .max_slab = s->slab_cap,
                               .need_lse = 1};
    if (hp->sparse) {
        p.n_index_head = hp->n_index_head;
        p.index_dim = hp->index_dim;
        p.index_rope_style = hp->index_rope_style;
        p.top_k = hp->top_k;
    }
    struct bp_raw raw;
    bool joint = !bpi_model_raw(s->model->m, BPI_W_ATTN_K_B, il, 0, 1, &raw);
    if (joint) bpi_model_raw(s->model->m, BPI_W_ATTN_KV_B, il, 0, 1, &raw);
    p.type_k = p.type_v = raw.type;
    if (!joint && bpi_model_raw(s->model->m, BPI_W_ATTN_V_B, il, 0, 1, &raw)) p.type_v = raw.type;
    return p;
}

/* Prefill and decode for one latent layout. */
static int32_t try_layout(struct bp_session *s, uint32_t il, const struct bp_kv_layout *layout,
                          struct bp_error *err)
{
    struct bpi_layer *l = &s->layers[il];
    l->kv_layout_id = layout->id;
    l->kv_block_bytes = layout->block_bytes;
    struct bp_mla_problem p = bpi_session_mla_problem(s, il);
    BP_TRY(bpi_session_choose(s, BPI_SLOT_MLA_PREFILL, (int32_t)il, &p, &l->prefill, err));
    BP_TRY(bpi_session_choose(s, BPI_SLOT_MLA_DECODE, (int32_t)il, &p, &l->decode, err));
    struct bpi_bound
        *same; /* the common op answers for the layout, too: its workspace may depend on it */
    return bpi_session_bound(s, &l->common->ref, l->common->provider, &p, &same, err);
}

static int32_t negotiate_index(struct bp_session *s, uint32_t il, struct bp_error *err)
{
    struct bpi_layer *l = &s->layers[il];
    struct bp_mla_problem p = bpi_session_mla_problem(s, il);
    BP_TRY(bpi_session_choose(s, BPI_SLOT_MLA_INDEX, (int32_t)il, &p, &l->index, err));
    struct bp_kv_layout layout = {.h = BP_HDR(struct bp_kv_layout, name)};
    if (BPI_CALL(l->index, bp_mla_index_ops, layouts, &p, 0, &layout) != BP_OK) {
        return bpi_fail(
            err, BP_E_CONFIG, "engine", "kv.dtype",
            "mla.index provider %s offers no index layout of dtype %s for layer %u; choose another "
            "kv.dtype or slots.mla.index",
            l->index->provider, bp_session_kv_dtype(s), il);
    }
    l->index_layout_id = layout.id;
    l->index_block_bytes = layout.block_bytes;
    p = bpi_session_mla_problem(s, il);
    return bpi_session_choose(s, BPI_SLOT_MLA_INDEX, (int32_t)il, &p, &l->index, err);
}

static int32_t negotiate_layer(struct bp_session *s, uint32_t il, struct bp_error *err)
{
    struct bpi_layer *l = &s->layers[il];
    struct bp_mla_problem p = bpi_session_mla_problem(s, il);
    BP_TRY(bpi_session_choose(s, BPI_SLOT_MLA_COMMON, (int32_t)il, &p, &l->common, err));
    struct bp_error last = BP_ERROR_INIT;
    struct bpi_buf offered = {0};
    int32_t rc = BP_E_CONFIG;
    for (uint32_t i = 0; i < MAX_LAYOUTS && rc == BP_E_CONFIG; ++i) {
        struct bp_kv_layout layout = {.h = BP_HDR(struct bp_kv_layout, name)};
        if (BPI_CALL(l->common, bp_mla_common_ops, layouts, &p, i, &layout) != BP_OK) break;
        bpi_buf_printf(&offered, "%s%s", i > 0 ? ", " : "", layout.name);
        bpi_error_clear(&last);
        rc = try_layout(s, il, &layout, &last);
        if (rc == BP_OK && il == 0) snprintf(s->kv_layout, sizeof(s->kv_layout), "%s", layout.name);
    }
    if (rc != BP_OK) {
        bpi_fail(err, rc, "engine", last.where[0] != '\0' ? last.where : "kv.dtype",
                 "layer %u: %s (kv.dtype is %s; mla.common provider %s offers the layouts {%s})",
                 il, last.msg[0] != '\0' ? last.msg : "there is no cache layout of this dtype",
                 bp_session_kv_dtype(s), l->common->provider,
                 offered.data != NULL ? offered.data : "");
    }
    bpi_buf_free(&offered);
    if (rc == BP_OK && l->has_index) rc = negotiate_index(s, il, err);
    return rc;
}

int32_t bpi_session_negotiate(struct bp_session *s, struct bp_error *err)
{
    s->kv_dtype = resolve_dtype(s->config);
    for (uint32_t il = 0; il < s->n_layer; ++il) BP_TRY(negotiate_layer(s, il, err));
    bpi_logf(&s->log, BPI_LOG_INFO, "engine", "kv.dtype = %s (asked for: %s), layout %s",
             bp_session_kv_dtype(s), bpi_config_str(s->config, "kv", "dtype"), s->kv_layout);
    return BP_OK;
}
