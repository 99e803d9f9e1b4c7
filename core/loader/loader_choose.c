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
        c->broken = 1;
        return;
    }
    const char *missing = c->verdict.level != BP_V_NO ? bpi_table_missing(op->vt, problem) : NULL;
    if (missing != NULL) {
        (void)snprintf(text, sizeof text, "says yes, but its op table has no %s()", missing);
        bpi_candidate_refuse(c, BP_R_ABI, "", text);
        c->broken = 1;
    }
}

enum { MAX_FIXED = 64 };

/* One walk over the providers of a slot. */
struct walk {
    struct bpi_loader *l;
    const char *slot, *iface;
    int32_t layer;
    const struct bp_device *dev;
    const void *problem;
    struct bpi_candidate *cands;
    size_t cap, n, won;
    struct bp_op_ref op; /* of the winner, which is cands[won] */
    bool found;
    bool named; /* the provider that is asked stands in the list by its name, not by `auto` */
    char where[96];
};

static bool was_asked(const struct walk *w, const char *provider)
{
    for (size_t i = 0; i < w->n; ++i) {
        if (strcmp(w->cands[i].provider, provider) == 0) return true;
    }
    return false;
}

/* The next free candidate; NULL with an error when all are taken. */
static struct bpi_candidate *next_candidate(struct walk *w, const char *provider,
                                            struct bp_error *err)
{
    if (w->n == w->cap) {
        bpi_fail(err, BP_E_LIMIT, "loader", w->where,
                 "more than %zu providers would have to be asked; name fewer in [slots]", w->cap);
        return NULL;
    }
    struct bpi_candidate *c = &w->cands[w->n++];
    reset_candidate(c, provider);
    return c;
}

static bool falls_back(const struct walk *w)
{
    const struct bpi_config *config = w->l->env.config;
    return config != NULL && strcmp(bpi_config_str(config, "engine", "fallback"), "warn") == 0;
}

/* A provider that answers, but not as the ABI says, or fails to make its op: a mistake to be mended and not a no. Named, it
 * ends the walk; else it is passed over, once with a warning. */
static int32_t pass_over(const struct walk *w, const struct bpi_candidate *c, int32_t rc,
                         const char *text, struct bp_error *err)
{
    if (w->named && !falls_back(w)) {
        return bpi_fail(err, rc == BP_E_ABI ? BP_E_ABI : BP_E_CONFIG, "loader", w->where,
                        "plugin %s cannot be used: %s (%s)", c->provider, text,
                        bpi_reason_name(c->reasons[0].code));
    }
    struct bpi_plugin *p = bpi_loader_find(w->l, c->provider);
    if (p == NULL || p->told) return BP_OK;
    p->told = 1;
    bpi_logf(w->l->env.log, BPI_LOG_WARN, "loader", "%s: plugin %s is passed over: %s (%s)",
             w->where, c->provider, text, bpi_reason_name(c->reasons[0].code));
    return BP_OK;
}

/* Gets the op on one device, in its wrappers, and asks it. */
static int32_t ask_on(struct walk *w, const char *provider, const struct bp_device *dev,
                      struct bpi_candidate *c, struct bp_error *err)
{
    struct bp_error why = BP_ERROR_INIT;
    int32_t rc = bpi_loader_op(w->l, provider, w->iface, dev, &w->op, &why);
    if (rc == BP_E_NOMEM) { /* no verdict on the provider: another try may well succeed */
        return bpi_fail(err, rc, "loader", w->where, "%s: %s", provider, why.msg);
    }
    if (rc == BP_OK) {
        /* Wrappers may have a say in the answer, and what is wrong with them is no fault of the provider. */
        BP_TRY(bpi_loader_wrap(w->l, w->slot, w->iface, w->layer, dev, &w->op, err));
        bpi_loader_ask(&w->op, provider, w->problem, c);
        if (c->broken) BP_TRY(pass_over(w, c, BP_E_ABI, c->reasons[0].text, err));
    } else {
        uint32_t code = rc == BP_E_ABI ? BP_R_ABI : rc == BP_DECLINED ? BP_R_FEATURE : BP_R_LOAD;
        bpi_candidate_refuse(c, code, "", why.msg);
        c->declines_device = rc == BP_DECLINED;
        c->broken = rc != BP_DECLINED;
        if (c->broken) BP_TRY(pass_over(w, c, rc, why.msg, err));
    }
    w->found = c->verdict.level != BP_V_NO;
    w->won = (size_t)(c - w->cands);
    return BP_OK;
}

/* An op that computes on the host can serve another device, with its tensors carried; a device cannot. */
static int32_t ask_on_host(struct walk *w, struct bpi_candidate *c, struct bp_error *err)
{
    const bool elsewhere = w->dev != NULL && w->dev->kind != BP_DEV_HOST;
    if (!elsewhere || !c->declines_device || strcmp(w->iface, "bp.device") == 0) return BP_OK;
    reset_candidate(c, c->provider);
    BP_TRY(ask_on(w, c->provider, NULL, c, err));
    c->on_host = 1;
    return BP_OK;
}

static int32_t ask_plugin(struct walk *w, const struct bpi_plugin *p, bool named,
                          struct bp_error *err)
{
    w->named = named;
    struct bpi_candidate *c = next_candidate(w, p->name, err);
    struct bpi_refusal unfit;
    if (c == NULL) return BP_E_LIMIT;
    if (!bpi_desc_fits_device(p->desc, w->dev, &unfit)) {
        bpi_candidate_take(c, &unfit);
        c->refusal = NULL; /* it dies here; the reason holds its numbers */
        return BP_OK;
    }
    BP_TRY(ask_on(w, p->name, w->dev, c, err));
    return named ? ask_on_host(w, c, err) : BP_OK;
}

/* Once per plugin and loader: it was passed over, and would have been asked. */
static void tell_refused(const struct walk *w, struct bpi_found *f)
{
    struct bpi_buf b = {0};
    if (f->told) return;
    f->told = 1;
    bpi_refusal_format(&f->why, &b);
    bpi_logf(w->l->env.log, BPI_LOG_WARN, "loader", "%s: plugin %s (%s) is passed over: %s",
             w->where, f->name, f->path, b.data != NULL ? b.data : "");
    bpi_buf_free(&b);
}

/* A plugin in a file. What cannot be used is kept with its reason; whether that is an error, the caller knows. */
static int32_t ask_found(struct walk *w, struct bpi_found *f, bool named, struct bp_error *err)
{
    int32_t rc = bpi_found_open(w->l, f, err);
    if (rc == BP_OK) return ask_plugin(w, bpi_loader_find(w->l, f->name), named, err);
    if (rc != BP_DECLINED) return rc;
    struct bpi_candidate *c = next_candidate(w, f->name, err);
    if (c == NULL) return BP_E_LIMIT;
    bpi_candidate_take(c, &f->why);
    return BP_OK;
}

bool bpi_found_may_offer(const struct bpi_found *f, const char *iface)
{
    const struct bp_plugin_note *note = &f->file.note;
    if (f->shadowed) return false;
    if ((f->file.flags & BPI_PF_NOTE) == 0) return true;
    return note->kind != BP_KIND_WRAPPER && bpi_note_offers(note, iface);
}

static bool is_found(const struct bpi_loader *l, const char *name)
{
    return bpi_loader_found_named(l, name) != NULL;
}

/* Every backend that offers the interface: those in files by name, then the registered ones in order. */
static int32_t ask_all(struct walk *w, struct bp_error *err)
{
    struct bpi_loader *l = w->l;
    const struct bpi_plugin *fixed[MAX_FIXED];
    size_t n = 0;
    for (size_t i = 0; i < l->n_found && !w->found; ++i) {
        struct bpi_found *f = l->found[i];
        if (!bpi_found_may_offer(f, w->iface) || was_asked(w, f->name)) continue;
        BP_TRY(ask_found(w, f, false, err));
        if (f->state == BPI_FOUND_REFUSED) tell_refused(w, f);
    }
    for (const struct bpi_plugin *p = l->newest; p != NULL && n < MAX_FIXED; p = p->older) {
        if (!is_found(l, p->name)) fixed[n++] = p;
    }
    while (n > 0 && !w->found) {
        const struct bpi_plugin *p = fixed[--n];
        if (p->desc->kind != BP_KIND_BACKEND || bpi_plugin_entry(p->desc, w->iface) == NULL ||
            was_asked(w, p->name))
            continue;
        BP_TRY(ask_plugin(w, p, false, err));
    }
    w->named = false;
    for (size_t i = 0; i < w->n && !w->found; ++i) BP_TRY(ask_on_host(w, &w->cands[i], err));
    return BP_OK;
}

static int32_t refuse_wrapper(const struct walk *w, const char *name, struct bp_error *err)
{
    return bpi_fail(err, BP_E_CONFIG, "loader", w->where,
                    "%s wraps other providers and serves nothing itself; name it in [wrap], not in "
                    "[slots]",
                    name);
}

/* A plugin that is named and cannot be used at all is a mistake to be mended, whatever comes after it in the list; a
 * plugin that can be used and says no is what lists are for. */
static int32_t ask_named(struct walk *w, const char *name, struct bp_error *err)
{
    struct bpi_loader *l = w->l;
    if (was_asked(w, name)) return BP_OK;
    const struct bpi_plugin *p = bpi_loader_find(l, name);
    if (p == NULL) {
        struct bpi_found *f = bpi_found_named(l, name);
        if (f == NULL) return bpi_loader_fail_unknown(l, name, w->where, err);
        if (f->state == BPI_FOUND_READY && f->file.note.kind == BP_KIND_WRAPPER)
            return refuse_wrapper(w, name, err);
        BP_TRY(ask_found(w, f, true, err));
        if (f->state != BPI_FOUND_REFUSED) return BP_OK;
        if (!falls_back(w)) return bpi_found_fail(f, w->where, err);
        tell_refused(w, f);
        return BP_OK;
    }
    if (p->desc->kind != BP_KIND_BACKEND) return refuse_wrapper(w, name, err);
    return ask_plugin(w, p, true, err);
}

static int32_t ask_list(struct walk *w, const char *list, struct bp_error *err)
{
    char name[BPI_CONFIG_MAX_LINE]; /* the whole list fits, so no element is ever cut */
    for (size_t i = 0; !w->found && bpi_config_list_at(list, i, name, sizeof name); ++i) {
        BP_TRY(strcmp(name, "auto") == 0 ? ask_all(w, err) : ask_named(w, name, err));
    }
    return BP_OK;
}

/* All answers but the winner's, when there is one. */
static void format_refusals(const struct walk *w, struct bpi_buf *b)
{
    size_t n = 0;
    for (size_t i = 0; i < w->n; ++i) {
        if (w->found && i == w->won) continue;
        if (n++ != 0) bpi_buf_puts(b, "; ");
        bpi_candidate_format(&w->cands[i], b);
    }
    if (n == 0) bpi_buf_printf(b, "no registered plugin offers %s", w->iface);
}

/* "slot quant, layer 5" */
static void put_where(struct walk *w)
{
    (void)snprintf(w->where, sizeof w->where, w->layer >= 0 ? "slot %s, layer %d" : "slot %s",
                   w->slot, w->layer);
}

void bpi_loader_tell(const struct bpi_loader *l, const char *slot, int32_t layer,
                     struct bpi_candidate *cands, size_t n_cands, size_t chosen)
{
    struct walk w = {
        .slot = slot, .layer = layer, .cands = cands, .n = n_cands, .won = chosen, .found = true};
    const struct bpi_candidate *winner = &cands[chosen];
    put_where(&w);
    if (n_cands > 1) {
        struct bpi_buf why = {0};
        format_refusals(&w, &why);
        bpi_logf(l->env.log, BPI_LOG_INFO, "loader", "%s: takes %s, because %s", w.where,
                 winner->provider, why.data != NULL ? why.data : "others refused");
        bpi_buf_free(&why);
    }
    if (winner->verdict.level == BP_V_DEGRADED) {
        struct bpi_buf how = {0};
        bpi_candidate_format(winner, &how);
        bpi_logf(l->env.log, BPI_LOG_WARN, "loader", "%s: served, but badly, by %s", w.where,
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
    put_where(&w);
    int32_t rc = ask_list(&w, list, err);
    if (rc == BP_OK && !w.found && falls_back(&w)) {
        struct bpi_buf why = {0};
        format_refusals(&w, &why);
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
        format_refusals(&w, &why);
        rc = why.failed ? bpi_fail_nomem(err, "loader", why.cap)
                        : bpi_fail(err, BP_E_CONFIG, "loader", w.where,
                                   "no provider of \"%s\" can serve: %s", list,
                                   why.data != NULL ? why.data : "no provider was asked");
        bpi_buf_free(&why);
        return rc;
    }
    *chosen = w.won;
    *out = w.op;
    return BP_OK;
}
