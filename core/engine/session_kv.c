/* session_kv.c - the cache's dtype and layouts: negotiated between common, prefill, decode, index and the INI, never
 * assumed. No backend ever sees `auto`: it is the first of bf16, f16 and f32 for which every layer finds providers of all
 * four and a layout that they share. One dtype serves the model, layouts may differ from layer to layer.
 * Nothing is bound before the dtype stands, so that what was only tried costs no memory.
 * SPDX-License-Identifier: MIT */
#include "engine/session_priv.h"
#include <stdio.h>
#include <string.h>

enum { MAX_LAYOUTS = BPI_MAX_LAYOUTS, COMMON = 0, PREFILL, DECODE, INDEX };

/* In the order in which auto tries them: the models are trained in bf16, so nothing can overflow; f16 is as small. */
static const struct {
    const char *name;
    uint32_t dtype;
} dtypes[] = {{"bf16", BP_DT_BF16}, {"f16", BP_DT_F16}, {"f32", BP_DT_F32}};
enum { N_DTYPES = BPI_ARRAY_LEN(dtypes) };

static const uint32_t slot_of[BPI_N_TRIALS] = {BPI_SLOT_MLA_COMMON, BPI_SLOT_MLA_PREFILL,
                                               BPI_SLOT_MLA_DECODE, BPI_SLOT_MLA_INDEX};

/* One layer being negotiated: the four questions, and the layouts that stand. */
struct trial {
    uint32_t layer, n_slots; /* without an index there are three */
    struct bpi_question q[BPI_N_TRIALS];
    struct bp_mla_problem p; /* what q point to */
    struct bp_kv_layout latent, index;
};

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

/* ---- one layer ---- */

static int32_t ask(struct bp_session *s, struct trial *t, uint32_t k, struct bp_error *err)
{
    t->p = bpi_session_mla_problem(s, t->layer);
    t->q[k].problem = &t->p;
    t->q[k].cands = s->cands + (size_t)k * BPI_MAX_CANDIDATES;
    return bpi_session_ask(s, &t->q[k], err);
}

/* Does the chosen provider also take the problem as it is now, with its layout? Then this is its answer. */
static bool confirm(struct bp_session *s, struct trial *t, uint32_t k, struct bp_error *err)
{
    struct bpi_candidate *c = &t->q[k].cands[t->q[k].chosen];
    const uint32_t on_host = c->on_host;
    t->p = bpi_session_mla_problem(s, t->layer);
    bpi_loader_ask(&t->q[k].ref, c->provider, &t->p, c);
    c->on_host = on_host;
    if (c->verdict.level != BP_V_NO) return true;
    struct bpi_buf why = {0};
    for (uint32_t i = 0; i < c->verdict.n_reasons && i < BPI_MAX_REASONS; ++i) {
        if (i > 0) bpi_buf_puts(&why, ", ");
        bpi_loader_format_reason(&c->reasons[i], &why);
    }
    bpi_fail(err, BP_E_CONFIG, "engine", bpi_slot_name(slot_of[k]),
             "%s offers a layout and then refuses it: %s", c->provider,
             why.data != NULL ? why.data : "no reason given");
    bpi_buf_free(&why);
    return false;
}

static const struct bp_op_base *table_of(const struct trial *t, uint32_t k)
{
    return t->q[k].ref.vt;
}

/* Common, prefill and decode for one latent layout. */
static int32_t try_layout(struct bp_session *s, struct trial *t, struct bp_error *err)
{
    struct bpi_layer *l = &s->layers[t->layer];
    l->kv_layout_id = t->latent.id;
    l->kv_block_bytes = t->latent.block_bytes;
    if (!confirm(s, t, COMMON, err)) return BP_E_CONFIG;
    BP_TRY(ask(s, t, PREFILL, err));
    return ask(s, t, DECODE, err);
}

static int32_t try_index(struct bp_session *s, struct trial *t, struct bp_error *err)
{
    struct bpi_layer *l = &s->layers[t->layer];
    struct bp_error last = BP_ERROR_INIT;
    BP_TRY(ask(s, t, INDEX, err));
    const struct bp_mla_index_ops *ops =
        (const struct bp_mla_index_ops *)(const void *)table_of(t, INDEX);
    for (uint32_t i = 0; i < MAX_LAYOUTS; ++i) {
        t->index = (struct bp_kv_layout){.h = BP_HDR(struct bp_kv_layout, name)};
        l->index_layout_id = 0;
        t->p = bpi_session_mla_problem(s, t->layer);
        if (ops->layouts(t->q[INDEX].ref.self, &t->p, i, &t->index) != BP_OK) break;
        l->index_layout_id = t->index.id;
        l->index_block_bytes = t->index.block_bytes;
        if (confirm(s, t, INDEX, &last)) return BP_OK;
    }
    if (last.code != BP_OK) return bpi_fail(err, BP_E_CONFIG, "engine", last.where, "%s", last.msg);
    return bpi_fail(err, BP_E_CONFIG, "engine", "mla.index",
                    "%s offers no index layout of dtype %s",
                    t->q[INDEX].cands[t->q[INDEX].chosen].provider, bp_session_kv_dtype(s));
}

/* Finds providers and layouts of one layer for s->kv_dtype, binding nothing. BP_E_CONFIG: there are none. */
static int32_t try_layer(struct bp_session *s, struct trial *t, uint32_t il, struct bp_error *err)
{
    struct bpi_layer *l = &s->layers[il];
    *t = (struct trial){.layer = il, .n_slots = l->has_index ? 4 : 3};
    for (uint32_t k = 0; k < BPI_N_TRIALS; ++k)
        t->q[k] = (struct bpi_question){.slot = slot_of[k], .layer = (int32_t)il};
    l->kv_layout_id = l->index_layout_id = 0;
    BP_TRY(ask(s, t, COMMON, err));
    const struct bp_mla_common_ops *ops =
        (const struct bp_mla_common_ops *)(const void *)table_of(t, COMMON);
    struct bp_error last = BP_ERROR_INIT;
    int32_t rc = BP_E_CONFIG;
    for (uint32_t i = 0; i < MAX_LAYOUTS && rc == BP_E_CONFIG; ++i) {
        t->latent = (struct bp_kv_layout){.h = BP_HDR(struct bp_kv_layout, name)};
        l->kv_layout_id = 0;
        t->p = bpi_session_mla_problem(s, il);
        if (ops->layouts(t->q[COMMON].ref.self, &t->p, i, &t->latent) != BP_OK) break;
        bpi_error_clear(&last);
        rc = try_layout(s, t, &last);
    }
    if (rc != BP_OK) {
        return bpi_fail(err, rc, "engine", last.where[0] != '\0' ? last.where : "mla.common", "%s",
                        last.msg[0] != '\0' ? last.msg : "no layout of this dtype is offered");
    }
    return l->has_index ? try_index(s, t, err) : BP_OK;
}

/* Binds what try_layer() found. */
static int32_t settle_layer(struct bp_session *s, struct trial *t, struct bp_error *err)
{
    struct bpi_layer *l = &s->layers[t->layer];
    struct bpi_bound **out[BPI_N_TRIALS] = {&l->common, &l->prefill, &l->decode, &l->index};
    const uint32_t up[] = {BPI_W_ATTN_K_B, BPI_W_ATTN_V_B}, joint[] = {BPI_W_ATTN_KV_B};
    t->p = bpi_session_mla_problem(s, t->layer);
    t->q[COMMON].file_bytes = bpi_session_file_bytes(s, up, 2, t->layer);
    if (t->q[COMMON].file_bytes == 0)
        t->q[COMMON].file_bytes = bpi_session_file_bytes(s, joint, 1, t->layer);
    /* prepare() decodes them (slot_mla.h): at least once, to the dtype of activations. */
    const struct bpi_hparams *hp = s->hp;
    if (!bpi_mul_u64((uint64_t)hp->n_head * (hp->nope + hp->v_dim),
                     (uint64_t)hp->kv_lora * bpi_dtype_bytes(s->act), &t->q[COMMON].ready_bytes))
        t->q[COMMON].ready_bytes = UINT64_MAX;
    for (uint32_t k = 0; k < t->n_slots; ++k) {
        t->q[k].problem = &t->p;
        BP_TRY(bpi_session_settle(s, &t->q[k], out[k], err));
    }
    l->common_row = t->q[COMMON].row;
    if (t->layer == 0) snprintf(s->kv_layout, sizeof(s->kv_layout), "%s", t->latent.name);
    return bpi_decisions_kv(s->decisions, (int32_t)t->layer, &t->latent,
                            l->has_index ? &t->index : NULL, err);
}

/* ---- the sets, for the message ---- */

/* Layout names by id, as far as providers of common and index can tell them. */
struct names {
    struct bp_kv_layout known[4 * MAX_LAYOUTS];
    uint32_t n;
};

static void put_layouts(const struct names *names, const struct bpi_candidate *c, const char *dtype,
                        struct bpi_buf *b)
{
    if (c->verdict.n_layouts == 0) bpi_buf_puts(b, dtype);
    for (uint32_t i = 0; i < c->verdict.n_layouts; ++i) {
        uint32_t at = 0;
        while (at < names->n && names->known[at].id != c->layouts[i]) ++at;
        if (i > 0) bpi_buf_puts(b, ", ");
        if (at < names->n)
            bpi_buf_puts(b, names->known[at].name);
        else
            bpi_buf_printf(b, "%s layout %016llx", dtype, (unsigned long long)c->layouts[i]);
    }
}

static void learn_names(struct names *names, const struct trial *t, uint32_t k)
{
    const struct bp_op_base *vt = table_of(t, k);
    for (uint32_t i = 0; i < MAX_LAYOUTS && names->n < BPI_ARRAY_LEN(names->known); ++i) {
        struct bp_kv_layout *out = &names->known[names->n];
        *out = (struct bp_kv_layout){.h = BP_HDR(struct bp_kv_layout, name)};
        void *self = t->q[k].ref.self;
        int32_t rc =
            k == COMMON
                ? ((const struct bp_mla_common_ops *)(const void *)vt)->layouts(self, &t->p, i, out)
                : ((const struct bp_mla_index_ops *)(const void *)vt)->layouts(self, &t->p, i, out);
        if (rc != BP_OK) break;
        out->name[sizeof(out->name) - 1] = '\0';
        names->n++;
    }
}

/* "mla.decode {mla.bf16.576 of fast, mla.f32.576 of ref}": what the slot's list serves, whatever the INI wants. False
 * when it serves nothing at all. */
static bool put_set(struct bp_session *s, uint32_t il, uint32_t k, struct names *names,
                    struct bpi_buf *b)
{
    struct bpi_layer *l = &s->layers[il];
    const char *last = NULL; /* provider of what was put so far */
    bpi_buf_printf(b, "%s {", bpi_slot_name(slot_of[k]));
    for (uint32_t d = 0; d < N_DTYPES; ++d) {
        struct trial t = {.layer = il};
        struct bp_error ignored = BP_ERROR_INIT;
        t.q[k] = (struct bpi_question){.slot = slot_of[k], .layer = (int32_t)il};
        l->kv_layout_id = l->index_layout_id = 0;
        s->kv_dtype = dtypes[d].dtype;
        if (ask(s, &t, k, &ignored) != BP_OK) continue;
        const struct bpi_candidate *c = &t.q[k].cands[t.q[k].chosen];
        if (k == COMMON || k == INDEX) learn_names(names, &t, k);
        if (last != NULL && strcmp(last, c->provider) != 0) bpi_buf_printf(b, " of %s", last);
        if (last != NULL) bpi_buf_puts(b, ", ");
        put_layouts(names, c, dtypes[d].name, b);
        last = c->provider;
    }
    if (last != NULL) bpi_buf_printf(b, " of %s", last);
    bpi_buf_puts(b, "}");
    return last != NULL;
}

/* False when some slot serves nothing at all: then the cache is not what is wrong. */
static bool put_sets(struct bp_session *s, uint32_t il, struct bpi_buf *b)
{
    const uint32_t dtype = s->kv_dtype;
    struct names names = {.n = 0};
    bool all = true;
    for (uint32_t k = 0; k < BPI_N_TRIALS; ++k) {
        if (k == INDEX && !s->layers[il].has_index) continue;
        if (k > 0) bpi_buf_puts(b, ", ");
        all = put_set(s, il, k, &names, b) && all;
    }
    s->kv_dtype = dtype;
    return all;
}

/* ---- the model ---- */

/* Can every layer be served with this dtype? *bad: the first layer that cannot, with its trial in *t. */
static int32_t try_model(struct bp_session *s, uint32_t dtype, struct trial *t,
                         struct bp_error *err)
{
    s->kv_dtype = dtype;
    for (uint32_t il = 0; il < s->n_layer; ++il) BP_TRY(try_layer(s, t, il, err));
    return BP_OK;
}

/* Whether nobody serves, as opposed to memory having run out. */
static bool is_refusal(int32_t rc)
{
    return rc == BP_E_CONFIG || rc == BP_E_ABI;
}

static int32_t fail_sets(struct bp_session *s, uint32_t first, const struct trial *t,
                         const struct bp_error *why, struct bp_error *err)
{
    struct bpi_buf sets = {0};
    struct bp_error ignored = BP_ERROR_INIT;
    const char *asked = bpi_config_str(s->config, "kv", "dtype"), *other = NULL;
    const uint32_t il = t->layer;
    if (!put_sets(s, il, &sets)) {
        bpi_buf_free(&sets);
        return bpi_fail(err, why->code, "engine", why->where, "%s", why->msg);
    }
    for (uint32_t d = 0; d < N_DTYPES && other == NULL; ++d) {
        struct trial again;
        if (dtypes[d].dtype != dtypes[first].dtype &&
            try_model(s, dtypes[d].dtype, &again, &ignored) == BP_OK)
            other = dtypes[d].name;
    }
    s->kv_dtype = dtypes[first].dtype;
    int32_t rc = sets.failed
                     ? bpi_fail_nomem(err, "engine", sets.cap)
                     : bpi_fail(err, why->code, "engine", "kv.dtype",
                                "no cache layout serves layer %u: kv.dtype {%s}, %s%s%s; %s", il,
                                asked, sets.data != NULL ? sets.data : "",
                                other != NULL ? "; set kv.dtype = auto or " : "",
                                other != NULL ? other : "", why->msg);
    bpi_buf_free(&sets);
    return rc;
}

/* Binds all layers, or keeps what they answered up to the one that fails. */
static int32_t settle_model(struct bp_session *s, uint32_t first, struct trial *t,
                            struct bp_error *err)
{
    s->kv_dtype = dtypes[first].dtype;
    for (uint32_t il = 0; il < s->n_layer; ++il) {
        struct bp_error why = BP_ERROR_INIT, ignored = BP_ERROR_INIT;
        int32_t rc = try_layer(s, t, il, &why);
        if (rc == BP_OK) {
            BP_TRY(settle_layer(s, t, err));
            continue;
        }
        if (!is_refusal(rc)) return bpi_fail(err, rc, "engine", why.where, "%s", why.msg);
        for (uint32_t k = 0; k < t->n_slots && t->q[k].asked; ++k) {
            t->q[k].problem = &t->p;
            (void)bpi_session_note_failure(s, &t->q[k], &ignored);
        }
        return fail_sets(s, first, t, &why, err);
    }
    return BP_OK;
}

int32_t bpi_session_negotiate(struct bp_session *s, struct bp_error *err)
{
    const char *asked = bpi_config_str(s->config, "kv", "dtype");
    const bool is_auto = strcmp(asked, "auto") == 0;
    struct trial *t = bpi_alloc(sizeof(*t));
    struct bpi_buf passed = {0};
    uint32_t d = 0, first = N_DTYPES;
    int32_t rc = BP_OK;
    if (t == NULL) return bpi_fail_nomem(err, "engine", sizeof(*t));
    for (d = 0; d < N_DTYPES; ++d) {
        struct bp_error why = BP_ERROR_INIT;
        if (!is_auto && strcmp(asked, dtypes[d].name) != 0) continue;
        if (first == N_DTYPES) first = d; /* when none serves, this one is explained */
        if (!is_auto) break;
        rc = try_model(s, dtypes[d].dtype, t, &why);
        if (rc == BP_OK) first = d;
        if (rc != BP_OK && !is_refusal(rc)) bpi_fail(err, rc, "engine", why.where, "%s", why.msg);
        if (rc == BP_OK || !is_refusal(rc)) break;
        bpi_buf_printf(&passed, "%s%s is not served by all in layer %u (%s)",
                       passed.len > 0 ? "; " : "", dtypes[d].name, t->layer, why.msg);
    }
    if (first == N_DTYPES) first = 0; /* the table of keys knows no others */
    if (rc == BP_OK || is_refusal(rc)) rc = settle_model(s, first, t, err);
    if (rc == BP_OK) {
        rc = bpi_decisions_dtype(s->decisions, asked, dtypes[first].name,
                                 passed.data != NULL ? passed.data : "", err);
        if (!s->quiet)
            bpi_logf(&s->log, BPI_LOG_INFO, "engine",
                     "kv.dtype = %s (asked for: %s), layout %s%s%s", dtypes[first].name, asked,
                     s->kv_layout, passed.len > 0 ? "; " : "",
                     passed.data != NULL ? passed.data : "");
    } else {
        struct bp_error ignored = BP_ERROR_INIT;
        (void)bpi_decisions_dtype(s->decisions, asked, "", "", &ignored);
    }
    bpi_buf_free(&passed);
    bpi_free(t);
    return rc;
}
