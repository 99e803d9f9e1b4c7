/* loader_choose.c - asks the providers of a slot one after the other and keeps every answer.
 * Not here: what is right for a model, and the plugins themselves (loader_registry.c).
 * Threads: as loader.h says. SPDX-License-Identifier: MIT */
#include "loader/loader_priv.h"

#include <stdio.h>
#include <string.h>

static void reset_candidate(struct bpi_candidate *c, const char *provider)
{
    *c = (struct bpi_candidate){.provider = provider};
    c->verdict = (struct bp_verdict){.h = BP_HDR(struct bp_verdict, cost_us),
                                     .cap_reasons = BPI_MAX_REASONS,
                                     .reason_stride = sizeof(struct bp_reason),
                                     .reasons = c->reasons,
                                     .layouts = c->layouts,
                                     .cap_layouts = BPI_MAX_LAYOUTS,
                                     .cost_us = -1.0};
}

void bpi_loader_ask(const struct bp_op_ref *op, const char *provider, const void *problem,
                    struct bpi_candidate *c)
{
    char text[128];
    reset_candidate(c, provider);
    int32_t rc = op->vt->supports(op->self, problem, &c->verdict);
    /* Whatever the plugin did to them, the caller's arrays stay the caller's. */
    c->verdict.reasons = c->reasons;
    c->verdict.layouts = c->layouts;
    c->verdict.cap_reasons = BPI_MAX_REASONS;
    c->verdict.cap_layouts = BPI_MAX_LAYOUTS;
    c->verdict.reason_stride = sizeof(struct bp_reason);
    if (c->verdict.n_layouts > BPI_MAX_LAYOUTS) c->verdict.n_layouts = BPI_MAX_LAYOUTS;
    if (rc != BP_OK || c->verdict.level > BP_V_YES) {
        (void)snprintf(text, sizeof text, "supports() returned %s with level %u",
                       bpi_status_name(rc), c->verdict.level);
        bpi_candidate_refuse(c, BP_R_SELFTEST, "", text);
        return;
    }
    const char *missing = c->verdict.level != BP_V_NO ? bpi_table_missing(op->vt, problem) : NULL;
    if (missing != NULL) {
        (void)snprintf(text, sizeof text, "says yes, but its op table has no %s()", missing);
        bpi_candidate_refuse(c, BP_R_ABI, "", text);
    }
}

/* One walk over the providers of a slot. */
struct walk {
    struct bpi_loader *l;
    const char *slot, *iface;
    int32_t layer;
    const struct bp_device *dev;
    const void *problem;
    struct bpi_candidate *cands;
    size_t cap, n;
    struct bp_op_ref op; /* of the winner, which is cands[n - 1] */
    bool found;
    char where[96];
};

static bool was_asked(const struct walk *w, const char *provider)
{
    for (size_t i = 0; i < w->n; ++i) {
        if (strcmp(w->cands[i].provider, provider) == 0) return true;
    }
    return false;
}

static int32_t ask_plugin(struct walk *w, const struct bp_plugin_desc *desc, struct bp_error *err)
{
    if (was_asked(w, desc->name)) return BP_OK;
    if (w->n == w->cap) {
        return bpi_fail(err, BP_E_LIMIT, "loader", w->where,
                        "more than %zu providers would have to be asked; name fewer in [slots]",
                        w->cap);
    }
    struct bpi_candidate *c = &w->cands[w->n++];
    struct bp_error why = BP_ERROR_INIT;
    reset_candidate(c, desc->name);
    int32_t rc = bpi_loader_op(w->l, desc->name, w->iface, w->dev, &w->op, &why);
    if (rc == BP_E_NOMEM) { /* no verdict on the provider: another try may well succeed */
        return bpi_fail(err, rc, "loader", w->where, "%s: %s", desc->name, why.msg);
    }
    if (rc == BP_OK) {
        /* Wrappers may have a say in the answer, and what is wrong with them is no fault of the provider. */
        BP_TRY(bpi_loader_wrap(w->l, w->slot, w->iface, w->layer, w->dev, &w->op, err));
        bpi_loader_ask(&w->op, desc->name, w->problem, c);
    } else {
        uint32_t code = rc == BP_E_ABI ? BP_R_ABI : rc == BP_DECLINED ? BP_R_FEATURE : BP_R_LOAD;
        bpi_candidate_refuse(c, code, "", why.msg);
    }
    w->found = c->verdict.level != BP_V_NO;
    return BP_OK;
}

/* Every backend that offers the interface, in order of registration. */
static int32_t ask_all(struct walk *w, struct bp_error *err)
{
    for (size_t i = 0; i < bpi_loader_n_plugins(w->l) && !w->found; ++i) {
        const struct bp_plugin_desc *desc = bpi_loader_plugin(w->l, i);
        if (desc->kind != BP_KIND_BACKEND || bpi_plugin_entry(desc, w->iface) == NULL) continue;
        BP_TRY(ask_plugin(w, desc, err));
    }
    return BP_OK;
}

static int32_t ask_list(struct walk *w, const char *list, struct bp_error *err)
{
    char name[BPI_CONFIG_MAX_LINE]; /* the whole list fits, so no element is ever cut */
    for (size_t i = 0; !w->found && bpi_config_list_at(list, i, name, sizeof name); ++i) {
        if (strcmp(name, "auto") == 0) {
            BP_TRY(ask_all(w, err));
            continue;
        }
        const struct bpi_plugin *p = bpi_loader_find(w->l, name);
        if (p == NULL) return bpi_loader_fail_unknown(w->l, name, w->where, err);
        if (p->desc->kind != BP_KIND_BACKEND) {
            return bpi_fail(err, BP_E_CONFIG, "loader", w->where,
                            "%s wraps other providers and serves nothing itself; name it in "
                            "[wrap], not in [slots]",
                            name);
        }
        BP_TRY(ask_plugin(w, p->desc, err));
    }
    return BP_OK;
}

static void format_refusals(const struct walk *w, size_t n, struct bpi_buf *b)
{
    for (size_t i = 0; i < n; ++i) {
        if (i != 0) bpi_buf_puts(b, "; ");
        bpi_candidate_format(&w->cands[i], b);
    }
    if (n == 0) bpi_buf_printf(b, "no registered plugin offers %s", w->iface);
}

/* Says what was passed over, and why: the choice must never be a riddle. */
static void log_choice(const struct walk *w)
{
    const struct bpi_candidate *winner = &w->cands[w->n - 1];
    struct bpi_buf why = {0};
    if (w->n > 1) {
        format_refusals(w, w->n - 1, &why);
        bpi_logf(w->l->env.log, BPI_LOG_INFO, "loader", "%s: takes %s, because %s", w->where,
                 winner->provider, why.data != NULL ? why.data : "others refused");
    }
    bpi_buf_free(&why);
    if (winner->verdict.level == BP_V_DEGRADED) {
        struct bpi_buf how = {0};
        bpi_candidate_format(winner, &how);
        bpi_logf(w->l->env.log, BPI_LOG_WARN, "loader", "%s: served, but badly, by %s", w->where,
                 how.data != NULL ? how.data : winner->provider);
        bpi_buf_free(&how);
    }
}

int32_t bpi_loader_choose(struct bpi_loader *l, const char *slot, const char *iface, int32_t layer,
                          const struct bp_device *dev, const void *problem,
                          struct bpi_candidate *cands, size_t cap, size_t *n_cands, size_t *chosen,
                          struct bp_op_ref *out, struct bp_error *err)
{
    struct walk w = {
        .l = l, .slot = slot, .iface = iface, .layer = layer, .dev = dev, .problem = problem};
    const struct bpi_config *config = l->env.config;
    const char *list = config != NULL ? bpi_config_slot(config, slot, layer) : "auto";
    w.cands = cands;
    w.cap = cap;
    *n_cands = 0;
    (void)snprintf(w.where, sizeof w.where, layer >= 0 ? "slot %s, layer %d" : "slot %s", slot,
                   layer);
    int32_t rc = ask_list(&w, list, err);
    if (rc == BP_OK && !w.found && config != NULL &&
        strcmp(bpi_config_str(config, "engine", "fallback"), "warn") == 0) {
        struct bpi_buf why = {0};
        format_refusals(&w, w.n, &why);
        bpi_logf(l->env.log, BPI_LOG_WARN, "loader",
                 "%s: \"%s\" cannot serve, looking for another: %s", w.where, list,
                 why.data != NULL ? why.data : "");
        bpi_buf_free(&why);
        rc = ask_all(&w, err);
    }
    *n_cands = w.n;
    if (rc != BP_OK) return rc;
    if (!w.found) {
        struct bpi_buf why = {0};
        format_refusals(&w, w.n, &why);
        rc = why.failed ? bpi_fail_nomem(err, "loader", why.cap)
                        : bpi_fail(err, BP_E_CONFIG, "loader", w.where,
                                   "no provider of \"%s\" can serve: %s", list,
                                   why.data != NULL ? why.data : "no provider was asked");
        bpi_buf_free(&why);
        return rc;
    }
    *chosen = w.n - 1;
    *out = w.op;
    log_choice(&w);
    return BP_OK;
}
