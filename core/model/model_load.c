/* model_load.c - opens a model: roles, types, shapes, vectors, in that order, so that a refusal costs as little as it
 * can; and the reading functions of model.h.
 * Not here: the decisions themselves (model_resolve.c, model_layers.c, model_hparams.c). SPDX-License-Identifier: MIT */
#include "model/model_priv.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- types ---- */

/* One message for all types that have no decoder, because whoever reads it has to find another file just once. */
static int32_t check_types(const struct bpi_model *m, struct bp_error *err)
{
    uint32_t count[BP_GGUF_COUNT] = {0}, n_bad = 0;
    const char *first = NULL;
    size_t n = ((size_t)m->hp.n_layer + 1) * BPI_W_COUNT;
    for (size_t i = 0; i < n; ++i) {
        const struct bpi_gguf_tensor *t = m->tensor[i];
        const struct bpi_block_info *info = t != NULL ? bpi_block_info(t->type) : NULL;
        if (t == NULL || (info != NULL && info->can_decode)) continue;
        if (first == NULL) first = t->name;
        if (t->type < BP_GGUF_COUNT) ++count[t->type];
        ++n_bad;
    }
    if (n_bad == 0) return BP_OK;
    char list[256] = "";
    size_t at = 0;
    for (uint32_t type = 0; type < BP_GGUF_COUNT && at < sizeof list; ++type) {
        const struct bpi_block_info *info = bpi_block_info(type);
        if (count[type] == 0) continue;
        int k = snprintf(list + at, sizeof list - at, "%s%s (%u)", at > 0 ? ", " : "",
                         info != NULL ? info->name : "?", count[type]);
        at += k > 0 ? (size_t)k : 0;
    }
    return bpi_fail(err, BP_E_UNSUPPORTED, "model", first,
                    "%u tensors have types that cannot be decoded: %s; supported: %s", n_bad, list,
                    bpi_block_supported_names());
}

/* ---- vectors ---- */

static int32_t load_vec(struct bpi_model *m, size_t place, struct bp_error *err)
{
    const struct bpi_gguf_tensor *t = m->tensor[place];
    /* The shape was checked: one dimension, so n fits and the file has its bytes. */
    size_t n = (size_t)t->ne[0];
    float *v = bpi_arena_alloc(&m->arena, n, sizeof *v, 64);
    if (v == NULL) return bpi_fail_nomem(err, "model", n * sizeof *v);
    int32_t rc = bpi_block_decode(t->type, t->data, n, v);
    if (rc != BP_OK)
        return bpi_fail(err, rc, "model", t->name, "tensor %s cannot be decoded", t->name);
    for (size_t i = 0; i < n; ++i) {
        if (isfinite(v[i])) continue;
        return bpi_fail(
            err, BP_E_NUMERIC, "model", t->name,
            "element %zu of tensor %s is %s; the file is damaged or was converted badly", i,
            t->name, isnan(v[i]) ? "NaN" : "infinite");
    }
    for (size_t i = 0; m->scale != NULL && i < n; ++i) v[i] *= m->scale[place];
    m->vec[place] = v;
    return BP_OK;
}

static int32_t load_vecs(struct bpi_model *m, struct bp_error *err)
{
    size_t n = ((size_t)m->hp.n_layer + 1) * BPI_W_COUNT;
    m->vec = bpi_calloc(n, sizeof *m->vec);
    if (m->vec == NULL) return bpi_fail_nomem(err, "model", n * sizeof *m->vec);
    for (size_t i = 0; i < n; ++i)
        if (m->tensor[i] != NULL && bpi_role_rules[i % BPI_W_COUNT].is_vec)
            BP_TRY(load_vec(m, i, err));
    return BP_OK;
}

/* Hundreds of small tensors lie scattered among the large ones. */
static int32_t load_small(struct bpi_model *m, struct bp_error *err)
{
    bpi_gguf_expect(m->gguf, BPI_MAP_SCATTERED);
    int32_t rc = bpi_model_read_scales(m, err);
    if (rc == BP_OK) rc = load_vecs(m, err);
    bpi_gguf_expect(m->gguf, BPI_MAP_WHOLE);
    return rc;
}

/* ---- open and close ---- */

static void free_model(struct bpi_model *m)
{
    if (m == NULL) return;
    bpi_arena_free(&m->arena);
    bpi_free(m->report);
    bpi_free(m->vec);
    bpi_free(m->scale);
    bpi_free(m->tensor);
    bpi_free(m);
}

static int32_t fail_report(struct bp_error *err)
{
    return bpi_fail(err, BP_E_NOMEM, "model", NULL,
                    "out of memory while noting how the model was read; free memory");
}

static int32_t build(struct bpi_model *m, bool headers_only, struct bp_error *err)
{
    BP_TRY(bpi_model_resolve(m, err));
    BP_TRY(bpi_model_check_missing(m, false, err));
    bpi_model_drop_unused(m);
    BP_TRY(check_types(m, err));
    BP_TRY(bpi_model_derive(m, err));
    BP_TRY(bpi_model_check_shapes(m, err));
    if (!headers_only) BP_TRY(load_small(m, err));
    if (m->nomem) return fail_report(err);
    return BP_OK;
}

static int32_t open_model(struct bpi_gguf *g, const struct bpi_config *cfg, bool headers_only,
                          struct bpi_model **out, struct bp_error *err)
{
    *out = NULL;
    struct bpi_model *m = bpi_calloc(1, sizeof *m);
    if (m == NULL) return bpi_fail_nomem(err, "model", sizeof *m);
    m->gguf = g;
    m->cfg = cfg;
    int32_t rc = build(m, headers_only, err);
    m->cfg = NULL;
    if (rc != BP_OK) {
        free_model(m);
        return rc;
    }
    *out = m;
    return BP_OK;
}

int32_t bpi_model_open(struct bpi_gguf *g, const struct bpi_config *cfg, struct bpi_model **out,
                       struct bp_error *err)
{
    return open_model(g, cfg, false, out, err);
}

int32_t bpi_model_open_headers(struct bpi_gguf *g, const struct bpi_config *cfg,
                               struct bpi_model **out, struct bp_error *err)
{
    return open_model(g, cfg, true, out, err);
}

bool bpi_model_headers_only(const struct bpi_model *m)
{
    return m->vec == NULL;
}

void bpi_model_close(struct bpi_model *m)
{
    if (m == NULL) return;
    bpi_gguf_close(m->gguf);
    free_model(m);
}

int32_t bpi_model_survey(const struct bpi_gguf *g, const struct bpi_config *cfg, bpi_report_fn fn,
                         void *ctx, struct bp_error *err)
{
    struct bpi_model *m = bpi_calloc(1, sizeof *m);
    if (m == NULL) return bpi_fail_nomem(err, "model", sizeof *m);
    m->gguf = (struct bpi_gguf *)g; /* read only here: a surveyed file is not taken over */
    m->cfg = cfg;
    int32_t rc = bpi_model_resolve(m, err);
    if (rc == BP_OK) rc = bpi_model_check_missing(m, true, err);
    if (rc == BP_OK) bpi_model_drop_unused(m);
    if (rc == BP_OK && m->nomem) rc = fail_report(err);
    for (size_t i = 0; rc == BP_OK && i < m->n_report; ++i) fn(ctx, &m->report[i]);
    free_model(m);
    return rc;
}

/* ---- reading ---- */

const struct bpi_hparams *bpi_model_hparams(const struct bpi_model *m)
{
    return &m->hp;
}

const struct bpi_gguf *bpi_model_gguf(const struct bpi_model *m)
{
    return m->gguf;
}

bool bpi_model_layer_dense(const struct bpi_model *m, uint32_t layer)
{
    return layer < m->hp.n_dense;
}

bool bpi_model_index_full(const struct bpi_model *m, uint32_t layer)
{
    return m->hp.sparse && layer < m->hp.n_layer && m->index_full[layer] != 0;
}

const float *bpi_model_vec(const struct bpi_model *m, uint32_t role, uint32_t layer, size_t *out_n)
{
    if (out_n != NULL) *out_n = 0;
    bool global = role <= BPI_W_OUTPUT;
    if (m->vec == NULL || role >= BPI_W_COUNT || (!global && layer >= m->hp.n_layer)) return NULL;
    size_t row = global ? 0 : (size_t)layer + 1;
    const float *v = m->vec[row * BPI_W_COUNT + role];
    if (v != NULL && out_n != NULL) *out_n = (size_t)bpi_model_tensor(m, role, layer)->ne[0];
    return v;
}

size_t bpi_model_report_n(const struct bpi_model *m)
{
    return m->n_report;
}

const struct bpi_report_entry *bpi_model_report(const struct bpi_model *m, size_t i)
{
    return i < m->n_report ? &m->report[i] : NULL;
}
