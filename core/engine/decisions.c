/* decisions.c - keeps the answers of all candidates in few rows, apart from loader and session, so that they can be read
 * after a failure too. Not here: choosing. Threads: written by the one that binds. SPDX-License-Identifier: MIT */
#include "engine/decisions.h"

#include "loader/plugin_file.h"

#include <stdio.h>
#include <string.h>

/* A model has thousands of problems and a handful of answers. A provider that answers each one differently must not
 * make the table grow with the model. */
enum { MAX_ROWS = 512, MAX_NAMES = 64, WHAT_CAP = 160 };

struct reason {
    struct bp_reason r; /* texts end with NUL */
    const char *text;   /* whole: a refusal's is longer than r.text */
};

struct cand {
    const char *name, *version, *file, *mend;
    uint32_t level, n_reasons;
    double cost_us;
    struct reason *reasons;
};

struct row {
    struct bp_decision d; /* but what */
    char what[WHAT_CAP];
    struct cand *cands;
};

struct bp_decisions {
    struct bpi_arena arena;
    struct row *rows;
    uint32_t n_rows, cap_rows;
    struct bp_decision_kv *kvs;
    uint32_t n_kvs;
    struct bp_decision_plugin plugins[MAX_NAMES];
    uint32_t n_plugins;
    struct bp_decisions_info info;
};

int32_t bpi_decisions_create(struct bp_decisions **out, struct bp_error *err)
{
    *out = bpi_calloc(1, sizeof **out);
    if (*out == NULL) return bpi_fail_nomem(err, "engine", sizeof **out);
    (*out)->info = (struct bp_decisions_info){.device = "",
                                              .device_asked = "",
                                              .device_why = "",
                                              .kv_asked = "",
                                              .kv_dtype = "",
                                              .kv_why = "",
                                              .act_asked = "",
                                              .act_dtype = "",
                                              .act_why = ""};
    return BP_OK;
}

void bp_decisions_close(struct bp_decisions *d)
{
    if (d == NULL) return;
    bpi_arena_free(&d->arena);
    bpi_free(d->rows);
    bpi_free(d->kvs);
    bpi_free(d);
}

static int32_t copy_text(struct bp_decisions *d, const char *s, const char **out,
                         struct bp_error *err)
{
    if (s == NULL || s[0] == '\0') {
        *out = "";
        return BP_OK;
    }
    *out = bpi_arena_strndup(&d->arena, s, strlen(s));
    return *out != NULL ? BP_OK : bpi_fail_nomem(err, "engine", strlen(s));
}

/* ---- equal answers ---- */

static uint32_t kept_reasons(const struct bpi_candidate *c)
{
    return c->verdict.n_reasons < BPI_MAX_REASONS ? c->verdict.n_reasons : BPI_MAX_REASONS;
}

/* Reasons come from plugins: their texts may lack the NUL. */
static struct bp_reason clean(const struct bp_reason *from)
{
    struct bp_reason r = *from;
    r.field[sizeof r.field - 1] = r.text[sizeof r.text - 1] = '\0';
    return r;
}

static bool same_reason(const struct reason *a, const struct bp_reason *from)
{
    const struct bp_reason b = clean(from);
    return a->r.code == b.code && a->r.critical == b.critical && a->r.got == b.got &&
           a->r.want_lo == b.want_lo && a->r.want_hi == b.want_hi &&
           strcmp(a->r.field, b.field) == 0 && strcmp(a->r.text, b.text) == 0;
}

static bool same_cand(const struct cand *a, const struct bpi_candidate *b)
{
    if (strcmp(a->name, b->provider) != 0 || a->level != b->verdict.level ||
        a->n_reasons != kept_reasons(b))
        return false;
    for (uint32_t i = 0; i < a->n_reasons; ++i) {
        if (!same_reason(&a->reasons[i], &b->reasons[i])) return false;
    }
    return true;
}

/* Could the answers stand in this row? Layers must adjoin. */
static bool fits(const struct row *r, const struct bpi_answers *a, const char *const *rest,
                 size_t n_rest, const char *wrappers)
{
    const struct bp_decision *d = &r->d;
    if (strcmp(d->slot, a->slot) != 0 || d->chosen != a->chosen ||
        d->n_candidates != a->n_cands + n_rest || d->on_host != (uint32_t)a->on_host ||
        strcmp(d->wrappers, wrappers) != 0)
        return false;
    const bool adjoins = a->layer < 0 ? d->layer_begin < 0
                                      : d->layer_begin >= 0 && a->layer >= d->layer_begin &&
                                            a->layer <= d->layer_end;
    if (!adjoins) return false;
    for (size_t i = 0; i < a->n_cands; ++i) {
        if (!same_cand(&r->cands[i], &a->cands[i])) return false;
    }
    for (size_t i = 0; i < n_rest; ++i) {
        const struct cand *c = &r->cands[a->n_cands + i];
        if (c->level != BP_V_NOT_ASKED || strcmp(c->name, rest[i]) != 0) return false;
    }
    return true;
}

/* ---- keeping ---- */

/* Adds a word to "Q4_K, Q6_K"; when it is full, dots say that there were more. */
static void add_word(char list[WHAT_CAP], const char *word)
{
    const size_t n = strlen(word), used = strlen(list);
    if (n == 0) return;
    for (const char *at = list; (at = strstr(at, word)) != NULL; at += n) {
        if ((at == list || at[-1] == ' ') && (at[n] == '\0' || at[n] == ',')) return;
    }
    if (used + n + sizeof ", , ..." > WHAT_CAP) {
        if (used < 3 || strcmp(list + used - 3, "...") != 0)
            (void)snprintf(list + used, WHAT_CAP - used, ", ...");
        return;
    }
    (void)snprintf(list + used, WHAT_CAP - used, "%s%s", used != 0 ? ", " : "", word);
}

static int32_t copy_reasons(struct bp_decisions *d, const struct bpi_candidate *from,
                            struct cand *to, struct bp_error *err)
{
    to->n_reasons = kept_reasons(from);
    if (to->n_reasons == 0) return BP_OK;
    to->reasons = bpi_arena_alloc(&d->arena, to->n_reasons, sizeof *to->reasons, 16);
    if (to->reasons == NULL) return bpi_fail_nomem(err, "engine", sizeof *to->reasons);
    for (uint32_t i = 0; i < to->n_reasons; ++i) {
        to->reasons[i].r = clean(&from->reasons[i]);
        to->reasons[i].text = to->reasons[i].r.text;
    }
    if (from->refusal == NULL) return BP_OK;
    BP_TRY(copy_text(d, from->refusal->text, &to->reasons[0].text, err));
    return copy_text(d, from->refusal->mend, &to->mend, err);
}

static int32_t copy_about(struct bp_decisions *d, const struct bpi_loader *l, const char *name,
                          struct cand *to, struct bp_error *err)
{
    const char *version, *file;
    bpi_loader_about(l, name, &version, &file);
    to->mend = "";
    BP_TRY(copy_text(d, name, &to->name, err));
    BP_TRY(copy_text(d, version, &to->version, err));
    return copy_text(d, file, &to->file, err);
}

static int32_t add_plugin(struct bp_decisions *d, const struct bpi_loader *l, const char *name,
                          struct bp_error *err)
{
    struct cand c = {0};
    for (uint32_t i = 0; i < d->n_plugins; ++i) {
        if (strcmp(d->plugins[i].name, name) == 0) return BP_OK;
    }
    if (d->n_plugins == MAX_NAMES) return BP_OK; /* the loader holds no more */
    BP_TRY(copy_about(d, l, name, &c, err));
    d->plugins[d->n_plugins++] =
        (struct bp_decision_plugin){.name = c.name, .version = c.version, .file = c.file};
    return BP_OK;
}

static int32_t add_plugins(struct bp_decisions *d, const struct bpi_loader *l,
                           const struct bpi_answers *a, const char *wrappers, struct bp_error *err)
{
    char name[BPI_CONFIG_MAX_LINE];
    if (a->chosen < 0) return BP_OK;
    BP_TRY(add_plugin(d, l, a->cands[a->chosen].provider, err));
    for (size_t i = 0; bpi_config_list_at(wrappers, i, name, sizeof name); ++i)
        BP_TRY(add_plugin(d, l, name, err));
    return BP_OK;
}

static int32_t new_row(struct bp_decisions *d, const struct bpi_loader *l,
                       const struct bpi_answers *a, const char *const *rest, size_t n_rest,
                       const char *wrappers, struct row **out, struct bp_error *err)
{
    const size_t n = a->n_cands + n_rest;
    if (d->n_rows == d->cap_rows) {
        const uint32_t cap = d->cap_rows == 0 ? 32 : 2 * d->cap_rows;
        struct row *grown = bpi_realloc(d->rows, cap, sizeof *grown);
        if (grown == NULL) return bpi_fail_nomem(err, "engine", cap * sizeof *grown);
        d->rows = grown;
        d->cap_rows = cap;
    }
    struct row *r = &d->rows[d->n_rows];
    *r = (struct row){.d = {.what = "",
                            .layer_begin = a->layer < 0 ? -1 : a->layer,
                            .layer_end = a->layer < 0 ? -1 : a->layer + 1,
                            .chosen = a->chosen,
                            .n_candidates = (uint32_t)n,
                            .capture = BP_CAPTURE_ANY,
                            .determinism = BP_DET_BATCH,
                            .on_host = a->on_host}};
    BP_TRY(copy_text(d, a->slot, &r->d.slot, err));
    BP_TRY(copy_text(d, wrappers, &r->d.wrappers, err));
    r->cands = bpi_arena_alloc(&d->arena, n != 0 ? n : 1, sizeof *r->cands, 16);
    if (r->cands == NULL) return bpi_fail_nomem(err, "engine", n * sizeof *r->cands);
    for (size_t i = 0; i < n; ++i) {
        struct cand *c = &r->cands[i];
        *c = (struct cand){.level = BP_V_NOT_ASKED, .cost_us = -1.0};
        BP_TRY(
            copy_about(d, l, i < a->n_cands ? a->cands[i].provider : rest[i - a->n_cands], c, err));
        if (i >= a->n_cands) continue;
        c->level = a->cands[i].verdict.level;
        c->cost_us = a->cands[i].verdict.cost_us;
        BP_TRY(copy_reasons(d, &a->cands[i], c, err));
    }
    BP_TRY(add_plugins(d, l, a, wrappers, err));
    d->n_rows++;
    *out = r;
    return BP_OK;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static void account(struct bp_decisions *d, struct row *r, const struct bpi_answers *a)
{
    struct bp_decision *o = &r->d;
    if (a->layer >= o->layer_end) o->layer_end = a->layer < 0 ? -1 : a->layer + 1;
    add_word(r->what, a->what);
    o->file_bytes += a->file_bytes;
    if (a->chosen < 0) {
        o->capture = o->determinism = 0;
        return;
    }
    const struct bp_verdict *v = &a->cands[a->chosen].verdict;
    if (v->capture < o->capture) o->capture = v->capture;
    if (v->determinism < o->determinism) o->determinism = v->determinism;
    if (v->cost_us > r->cands[a->chosen].cost_us) r->cands[a->chosen].cost_us = v->cost_us;
    if (a->ws == NULL) return;
    o->persistent_bytes = larger(o->persistent_bytes, a->ws->persistent_bytes);
    o->plan_bytes = larger(o->plan_bytes, a->ws->plan_bytes);
    o->scratch_bytes = larger(o->scratch_bytes, a->ws->scratch_bytes);
    o->pinned_bytes = larger(o->pinned_bytes, a->ws->pinned_bytes);
    d->info.scratch_bytes = larger(d->info.scratch_bytes, o->scratch_bytes);
}

/* Providers behind the last one that was asked. */
static size_t not_asked(const struct bpi_loader *l, const struct bpi_answers *a, const char **rest)
{
    const char *names[MAX_NAMES];
    size_t n = bpi_loader_names(l, a->slot, a->iface, a->layer, names, MAX_NAMES), n_rest = 0;
    for (size_t i = 0; i < n; ++i) {
        bool asked = false;
        for (size_t j = 0; j < a->n_cands && !asked; ++j)
            asked = strcmp(names[i], a->cands[j].provider) == 0;
        if (!asked) rest[n_rest++] = names[i];
    }
    return n_rest;
}

int32_t bpi_decisions_note(struct bp_decisions *d, const struct bpi_loader *l,
                           const struct bpi_config *config, const struct bpi_answers *a,
                           uint32_t *out_row, struct bp_error *err)
{
    const char *rest[MAX_NAMES];
    const size_t n_rest = not_asked(l, a, rest);
    const char *wrappers = bpi_config_wrap(config, a->slot, a->layer);
    struct row *r = NULL;
    if (out_row != NULL) *out_row = BPI_NO_ROW;
    for (uint32_t i = d->n_rows; i > 0 && r == NULL; --i) {
        if (fits(&d->rows[i - 1], a, rest, n_rest, wrappers)) r = &d->rows[i - 1];
    }
    if (r == NULL && d->n_rows == MAX_ROWS) {
        d->info.n_left_out++;
        return BP_OK;
    }
    if (r == NULL) BP_TRY(new_row(d, l, a, rest, n_rest, wrappers, &r, err));
    account(d, r, a);
    if (out_row != NULL) *out_row = (uint32_t)(r - d->rows);
    return BP_OK;
}

void bpi_decisions_weight(struct bp_decisions *d, uint32_t row, uint64_t n_bytes)
{
    if (row >= d->n_rows) return;
    d->rows[row].d.weight_bytes += n_bytes;
    d->rows[row].d.weights_known = 1;
}

int32_t bpi_decisions_kv(struct bp_decisions *d, int32_t layer, const struct bp_kv_layout *latent,
                         const struct bp_kv_layout *index, struct bp_error *err)
{
    const char *index_name = index != NULL ? index->name : "";
    if (d->n_kvs > 0) {
        struct bp_decision_kv *last = &d->kvs[d->n_kvs - 1];
        if (last->layer_end == layer && strcmp(last->layout, latent->name) == 0 &&
            strcmp(last->index_layout, index_name) == 0) {
            last->layer_end++;
            return BP_OK;
        }
    }
    struct bp_decision_kv *grown = bpi_realloc(d->kvs, d->n_kvs + 1u, sizeof *grown);
    if (grown == NULL) return bpi_fail_nomem(err, "engine", (d->n_kvs + 1u) * sizeof *grown);
    d->kvs = grown;
    struct bp_decision_kv *kv = &grown[d->n_kvs];
    *kv = (struct bp_decision_kv){.layer_begin = layer,
                                  .layer_end = layer + 1,
                                  .token_bytes = latent->token_bytes,
                                  .index_token_bytes = index != NULL ? index->token_bytes : 0};
    BP_TRY(copy_text(d, latent->name, &kv->layout, err));
    BP_TRY(copy_text(d, index_name, &kv->index_layout, err));
    d->n_kvs++;
    return BP_OK;
}

int32_t bpi_decisions_device(struct bp_decisions *d, const struct bp_device *device,
                             const char *asked, const char *why, struct bp_error *err)
{
    BP_TRY(copy_text(d, asked, &d->info.device_asked, err));
    BP_TRY(copy_text(d, why, &d->info.device_why, err));
    d->info.device_kind = device->kind;
    d->info.device_ordinal = device->ordinal;
    return copy_text(d, device->name, &d->info.device, err);
}

int32_t bpi_decisions_act(struct bp_decisions *d, const char *asked, const char *dtype,
                          const char *why, struct bp_error *err)
{
    BP_TRY(copy_text(d, asked, &d->info.act_asked, err));
    BP_TRY(copy_text(d, dtype, &d->info.act_dtype, err));
    return copy_text(d, why, &d->info.act_why, err);
}

int32_t bpi_decisions_dtype(struct bp_decisions *d, const char *asked, const char *dtype,
                            const char *why, struct bp_error *err)
{
    BP_TRY(copy_text(d, asked, &d->info.kv_asked, err));
    BP_TRY(copy_text(d, dtype, &d->info.kv_dtype, err));
    return copy_text(d, why, &d->info.kv_why, err);
}

/* ---- tools.h ---- */

void bp_decisions_info(const struct bp_decisions *d, struct bp_decisions_info *out)
{
    const struct bp_hdr h = out->h;
    *out = d->info;
    out->h = h;
}

int32_t bp_decision(const struct bp_decisions *d, uint32_t i, struct bp_decision *out)
{
    if (i >= d->n_rows) return BP_DECLINED;
    const struct bp_hdr h = out->h;
    *out = d->rows[i].d;
    out->what = d->rows[i].what;
    out->h = h;
    return BP_OK;
}

int32_t bp_decision_candidate(const struct bp_decisions *d, uint32_t i, uint32_t j,
                              struct bp_decision_candidate *out)
{
    if (i >= d->n_rows || j >= d->rows[i].d.n_candidates) return BP_DECLINED;
    const struct cand *c = &d->rows[i].cands[j];
    *out = (struct bp_decision_candidate){.h = out->h,
                                          .name = c->name,
                                          .version = c->version,
                                          .file = c->file,
                                          .mend = c->mend,
                                          .level = c->level,
                                          .n_reasons = c->n_reasons,
                                          .cost_us = c->cost_us};
    return BP_OK;
}

int32_t bp_decision_reason(const struct bp_decisions *d, uint32_t i, uint32_t j, uint32_t k,
                           struct bp_decision_reason *out)
{
    if (i >= d->n_rows || j >= d->rows[i].d.n_candidates || k >= d->rows[i].cands[j].n_reasons)
        return BP_DECLINED;
    const struct reason *r = &d->rows[i].cands[j].reasons[k];
    *out = (struct bp_decision_reason){.h = out->h,
                                       .name = bpi_reason_name(r->r.code),
                                       .field = r->r.field,
                                       .text = r->text,
                                       .code = r->r.code,
                                       .critical = r->r.critical,
                                       .got = r->r.got,
                                       .want_lo = r->r.want_lo,
                                       .want_hi = r->r.want_hi,
                                       .got_name = bpi_reason_number_name(&r->r, r->r.got),
                                       .want_lo_name = bpi_reason_number_name(&r->r, r->r.want_lo),
                                       .want_hi_name = bpi_reason_number_name(&r->r, r->r.want_hi)};
    return BP_OK;
}

int32_t bp_decision_kv(const struct bp_decisions *d, uint32_t i, struct bp_decision_kv *out)
{
    if (i >= d->n_kvs) return BP_DECLINED;
    const struct bp_hdr h = out->h;
    *out = d->kvs[i];
    out->h = h;
    return BP_OK;
}

int32_t bp_decision_plugin(const struct bp_decisions *d, uint32_t i, struct bp_decision_plugin *out)
{
    if (i >= d->n_plugins) return BP_DECLINED;
    const struct bp_hdr h = out->h;
    *out = d->plugins[i];
    out->h = h;
    return BP_OK;
}
