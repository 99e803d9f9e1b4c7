/* ab_free.c - free mode: two whole runs of the same tokens, compared at every tap.
 * Both runs go in windows: A takes its steps up to a position, then B, then the window's taps are compared and forgotten.
 * Where they differ, the same is done with ref exact and ref rounded: what rounding alone does to such a run is the
 * baseline. A choice that flips makes everything behind it different for a reason that is not in its numbers, so rows
 * behind a flip are not compared: the token's own from that op on, later tokens' from the next layer on.
 * Threads: as a session. SPDX-License-Identifier: MIT */
#include "compare/compare_priv.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    FEW_ROWS = 16,
    BEHIND_ALL = INT32_MAX - 1,
    NEVER = INT32_MAX
}; /* taps behind all layers; rows behind no flip */

/* One tap of the window. */
struct tap {
    char name[64];
    int32_t layer;
    bool integer;
    uint64_t width;
    void *data;             /* (window, width) */
    unsigned char *present; /* (window) */
};

struct half { /* one of two runs */
    struct bp_session *s;
    const struct bp_ab_side *side;
    uint32_t number, chunk, batch, done;
    struct tap *taps;
    uint32_t n_taps, cap_taps, next;
    struct pass *pass;
    int32_t *others; /* tokens of the neighbours in the batch */
    double seconds;
    uint64_t steps;
    struct bp_error error; /* of the callback */
};

struct pass {
    struct bpi_ab_run *r;
    struct half x, y;
    bool baseline;       /* adds to the entries' baseline only */
    uint32_t begin, end; /* of the window */
    int32_t *own,
        *earlier; /* (all tokens) layer from which on a row is behind a flip: its own, an earlier token's */
    struct bpi_ab_route route;
};

/* ---- collecting ---- */

static struct tap *find_tap(struct half *h, const char *name)
{
    for (uint32_t i = 0; i < h->n_taps; ++i) {
        struct tap *t = &h->taps[(h->next + i) % h->n_taps];
        if (strcmp(t->name, name) != 0) continue;
        h->next = (uint32_t)(t - h->taps) + 1;
        return t;
    }
    return NULL;
}

static struct tap *make_tap(struct half *h, const struct bp_tap_event *e)
{
    const uint64_t n = h->pass->end - h->pass->begin;
    if (h->n_taps == h->cap_taps) {
        const uint32_t cap = h->cap_taps == 0 ? 256 : 2 * h->cap_taps;
        struct tap *more = bpi_realloc(h->taps, cap, sizeof(*more));
        if (more == NULL) return NULL;
        h->taps = more;
        h->cap_taps = cap;
    }
    struct tap *t = &h->taps[h->n_taps];
    *t = (struct tap){.layer = e->layer, .integer = e->data->dtype == BP_DT_I32, .width = 1};
    for (uint32_t d = 1; d < e->data->ndim; ++d) t->width *= (uint64_t)e->data->dim[d];
    bpi_copy_end(t->name, sizeof(t->name), e->name);
    t->data = bpi_calloc(n, t->width * 4 + 1);
    t->present = bpi_calloc(n + 1, 1);
    h->n_taps++;
    return t->data != NULL && t->present != NULL ? t : NULL;
}

static bool ends_with(const char *name, const char *end)
{
    const size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

/* Slots of the cache become positions; rows that attend all their keys leave theirs unset. */
static bool positions_of(const struct half *h, const struct tap *t, int32_t *row, uint32_t pos)
{
    if ((uint64_t)pos + 1 <= t->width) return false;
    for (uint64_t i = 0; i < t->width; ++i) row[i] = bpi_mirror_slot_pos(h->s, 0, row[i]);
    return true;
}

static void collect(void *ctx, const struct bp_tap_event *e)
{
    struct half *h = ctx;
    const struct pass *p = h->pass;
    struct tap *t = find_tap(h, e->name);
    if (h->error.code != BP_OK) return;
    if (t == NULL) t = make_tap(h, e);
    if (t == NULL) {
        bpi_fail_nomem(&h->error, "compare", 0);
        return;
    }
    const bool slots = t->integer && ends_with(t->name, ".index.ids");
    for (uint32_t i = 0; i < e->n_rows; ++i) {
        const uint32_t pos = e->row_pos[i];
        if (e->row_item[i] != 0 || pos < p->begin || pos >= p->end) continue;
        char *row = (char *)t->data + (uint64_t)(pos - p->begin) * t->width * 4;
        bpi_ab_tap_row(e->data, i, row);
        t->present[pos - p->begin] =
            !slots || positions_of(h, t, (int32_t *)(void *)row, pos) ? 1 : 0;
    }
    if (!p->baseline && bpi_ab_matches(p->r->p->dump, e->name))
        (void)bpi_ab_keep(p->r->ab, h->number, e, &h->error);
}

static void forget_taps(struct half *h)
{
    for (uint32_t i = 0; i < h->n_taps; ++i) {
        bpi_free(h->taps[i].data);
        bpi_free(h->taps[i].present);
    }
    h->n_taps = h->next = 0;
}

/* ---- stepping ---- */

static int32_t step(struct half *h, uint32_t n, uint32_t flags, struct bp_error *err)
{
    struct bp_step_item items[BPI_AB_BATCH];
    struct bp_error why = BP_ERROR_INIT;
    const int32_t *ids = h->pass->r->ab->ids;
    for (uint32_t k = 0; k < h->batch; ++k) {
        items[k] = (struct bp_step_item){.h = BP_HDR(struct bp_step_item, n_logits),
                                         .seq = k,
                                         .flags = flags,
                                         .ids = ids + h->done,
                                         .n_ids = n,
                                         .n_logits = k == 0 ? n : 0};
        if (k > 0) { /* other texts: the same tokens in another order */
            int32_t *other = h->others + (size_t)(k - 1) * h->chunk;
            bpi_ab_neighbour(h->pass->r->ab, k, h->done, n, other);
            items[k].ids = other;
        }
    }
    const uint64_t start = bpi_now_ns();
    int32_t rc = bp_session_step(h->s, items, h->batch, &why);
    h->seconds += (double)(bpi_now_ns() - start) * 1e-9;
    h->steps++;
    const char *name = h->pass->baseline ? "ref" : h->number == 0 ? "A" : "B";
    BP_TRY(bpi_ab_stepped(h->pass->r, rc, name, &why, err));
    h->done += n;
    BP_TRY(bpi_ab_progress(h->pass->r, h->done, h->pass->r->p->n_ids + h->pass->r->p->n_new, err));
    if (h->error.code != BP_OK)
        return bpi_fail(err, h->error.code, "compare", NULL, "%s", h->error.msg);
    return BP_OK;
}

/* Takes tokens up to `end`; those from `decode_from` on one by one in the decode form. */
static int32_t advance(struct half *h, uint32_t end, uint32_t decode_from, struct bp_error *err)
{
    BP_TRY(bp_session_tap(h->s, "*", collect, h, err));
    while (h->done < end && h->pass->r->stopped == NULL) {
        const bool decode = h->done >= decode_from;
        uint32_t n = end - h->done < h->chunk ? end - h->done : h->chunk;
        BP_TRY(step(h, decode ? 1 : n, decode ? BP_STEP_DECODE : 0, err));
    }
    return bp_session_tap(h->s, NULL, NULL, NULL, err);
}

/* ---- comparing ---- */

static void provider_of(struct bp_ab *ab, uint32_t side, struct bp_ab_op *o)
{
    const char **out = side == 0 ? &o->provider_a : &o->provider_b;
    for (uint32_t i = 0; i < ab->n_choices[side]; ++i) {
        const struct bp_choice *c = &ab->choices[side][i];
        if (strcmp(c->slot, o->slot) != 0) continue;
        if (c->layer_begin >= 0 && (o->layer < c->layer_begin || o->layer >= c->layer_end))
            continue;
        *out = c->provider;
    }
}

/* Which op writes a tap. */
static void op_of(struct pass *p, const struct tap *t, const char **slot, const char **op)
{
    static const struct {
        const char *end, *slot, *op;
    } ops[] = {
        {"embd", "dense", "embed"},
        {".attn.q_pe", "dense", "rope"},
        {".index.q", "dense", "rope"},
        {".index.ids", "mla.index", "select"},
        {".attn.q_lat", "mla.common", "absorb"},
        {".attn.o_lat", "mla.decode", "run"},
        {".ffn.norm", "dense", "rms"},
        {".moe.ids", "moe", "route"},
        {".moe.weights", "moe", "route"},
        {"output_norm", "dense", "rms"},
    };
    char other[80];
    *slot = "quant";
    *op = "matmul";
    for (size_t i = 0; i < BPI_ARRAY_LEN(ops); ++i) {
        if (!ends_with(t->name, ops[i].end)) continue;
        *slot = ops[i].slot;
        *op = ops[i].op;
        return;
    }
    const size_t n = strlen(t->name);
    if (ends_with(t->name, ".attn.heads")) { /* absorbed rows were seen before, as attn.o_lat */
        (void)memcpy(other, t->name, n + 1);
        (void)memcpy(other + n - 5, "o_lat", 6);
        const bool absorbed = find_tap(&p->x, other) != NULL;
        *slot = absorbed ? "mla.common" : "mla.prefill";
        *op = absorbed ? "absorb" : "run";
    } else if (ends_with(t->name, ".out")) {
        (void)memcpy(other, t->name, n + 1);
        (void)memcpy(other + n - 3, "moe.ids", 8);
        if (find_tap(&p->x, other) == NULL) return;
        *slot = "moe";
        *op = "run";
    }
}

static struct bpi_ab_entry *entry_of(struct pass *p, const struct tap *t)
{
    struct bp_ab *ab = p->r->ab;
    const char *slot, *op;
    /* Tokens beyond the prompt come in another form; a tap stays with the op that was seen first. */
    for (uint32_t i = 0; i < ab->n_entries; ++i) {
        const uint32_t at = (ab->next + i) % ab->n_entries;
        if (strcmp(ab->entries[at]->op.tap, t->name) != 0) continue;
        ab->next = at + 1;
        return ab->entries[at];
    }
    op_of(p, t, &slot, &op);
    struct bpi_ab_entry *e = bpi_ab_entry(ab, slot, op, t->name, t->layer);
    if (e == NULL || p->baseline) return e;
    provider_of(ab, 0, &e->op);
    provider_of(ab, 1, &e->op);
    return e;
}

/* Is the row behind a flip in what this tap is made from? */
static bool is_behind(const struct pass *p, const struct tap *t, uint32_t pos)
{
    const int32_t layer = t->layer >= 0 ? t->layer : strcmp(t->name, "embd") == 0 ? -1 : BEHIND_ALL;
    return p->own[pos] <= layer || p->earlier[pos] < layer;
}

static void mark(struct pass *p, const unsigned char *flipped, int32_t layer)
{
    const uint32_t n = p->r->ab->n_ids;
    int32_t least = NEVER;
    for (uint32_t pos = p->begin; pos < p->end; ++pos) {
        if (flipped[pos - p->begin] && layer < p->own[pos]) p->own[pos] = layer;
    }
    for (uint32_t pos = 0; pos < n; ++pos) {
        p->earlier[pos] = least;
        if (p->own[pos] < least) least = p->own[pos];
    }
}

static const void *row_of(const struct pass *p, const struct tap *t, uint32_t pos)
{
    if (t == NULL || pos < p->begin || pos >= p->end || !t->present[pos - p->begin]) return NULL;
    return (const char *)t->data + (uint64_t)(pos - p->begin) * t->width * 4;
}

/* A tap of the same layer. */
static const void *beside(struct pass *p, const struct tap *t, const char *name, uint32_t pos)
{
    char full[80];
    (void)snprintf(full, sizeof(full), "blk.%d.%s", t->layer, name);
    return row_of(p, find_tap(&p->x, full), pos);
}

static void larger(double *v, double x)
{
    if (x > *v) *v = x;
}

static int32_t flip_experts(struct pass *p, const struct tap *t, struct bpi_ab_entry *e,
                            const int32_t *a, const int32_t *b, uint32_t pos, struct bp_error *err)
{
    const struct bpi_hparams *hp = bpi_mirror_hparams(p->x.s);
    const float *logits = beside(p, t, "moe.router", pos);
    if (p->route.n == 0) BP_TRY(bpi_ab_route_make(&p->route, hp, err));
    if (logits != NULL) {
        bpi_ab_route_score(&p->route, hp, bpi_mirror_router_bias(p->x.s, t->layer), logits);
        larger(&e->score_size, bpi_ab_route_size(&p->route));
    }
    struct bpi_ab_pairs at = {.place = 0};
    int32_t ea, eb;
    while (bpi_ab_next_experts(a, b, (uint32_t)t->width, &at, &ea, &eb)) {
        const double gap = logits != NULL ? bpi_ab_route_gap(&p->route, ea, eb) : (double)NAN;
        bpi_ab_add_flip(e, pos, ea, eb, gap, false);
    }
    return BP_OK;
}

/* Keys that only one side chose. */
static int32_t flip_keys(struct pass *p, const struct tap *t, struct bpi_ab_entry *e,
                         const int32_t *a, const int32_t *b, uint32_t pos, struct bp_error *err)
{
    const float *q = beside(p, t, "index.q", pos), *w = beside(p, t, "index.weights", pos);
    double *scores = bpi_calloc(pos + 1u, sizeof(*scores));
    if (scores == NULL) return bpi_fail_nomem(err, "compare", pos * sizeof(*scores));
    int32_t rc = BP_DECLINED, only_a, only_b;
    uint64_t at[2] = {0, 0};
    if (q != NULL && w != NULL)
        rc = bpi_ab_index_scores(p->x.s, t->layer, 0, q, w, pos + 1, scores, err);
    for (uint32_t i = 0; rc == BP_OK && i <= pos; ++i) larger(&e->score_size, fabs(scores[i]));
    while (bpi_ab_next_keys(a, b, t->width, at, &only_a, &only_b)) {
        const double gap = bpi_ab_key_gap(rc == BP_OK ? scores : NULL, pos + 1, only_a, only_b);
        bpi_ab_add_flip(e, pos, only_a, only_b, gap, false);
    }
    bpi_free(scores);
    return rc == BP_DECLINED ? BP_OK : rc;
}

static int32_t compare_choices(struct pass *p, const struct tap *t, const struct tap *u,
                               struct bpi_ab_entry *e, struct bp_error *err)
{
    unsigned char *flipped = bpi_calloc(p->end - p->begin, 1);
    if (flipped == NULL) return bpi_fail_nomem(err, "compare", p->end - p->begin);
    int32_t rc = BP_OK;
    for (uint32_t pos = p->begin; pos < p->end && rc == BP_OK; ++pos) {
        const int32_t *a = row_of(p, t, pos), *b = row_of(p, u, pos);
        if (a == NULL || b == NULL) continue;
        if (is_behind(p, t, pos)) {
            if (!p->baseline) e->op.n_skipped++;
            continue;
        }
        if (p->baseline)
            e->base_rows++;
        else
            e->op.n_rows++;
        if (memcmp(a, b, t->width * 4) == 0) continue;
        const uint64_t before = e->op.n_flips;
        if (!p->baseline)
            rc = ends_with(t->name, ".moe.ids") ? flip_experts(p, t, e, a, b, pos, err)
                                                : flip_keys(p, t, e, a, b, pos, err);
        /* The same keys in another order are no flip. */
        flipped[pos - p->begin] = p->baseline || e->op.n_flips > before;
    }
    if (rc == BP_OK) mark(p, flipped, t->layer);
    bpi_free(flipped);
    return rc;
}

static void add_row(struct pass *p, struct bpi_ab_entry *e, const float *a, const float *b,
                    uint64_t n, uint32_t pos)
{
    const struct bpi_ab_row d = bpi_ab_row(a, b, n);
    if (!p->baseline) {
        bpi_ab_count(e, &d, pos);
        return;
    }
    e->base_rows++;
    larger(&e->op.baseline_max_abs, d.max_abs);
    if (d.max_a > 0) larger(&e->base_max_rel, d.max_abs / d.max_a);
    e->base_d2 += d.d2;
    e->base_a2 += d.a2;
}

/* The side's row, or the golden one. */
static const float *other_row(const struct pass *p, const struct tap *t, const struct tap *u,
                              uint32_t pos)
{
    const struct bp_ab_golden *g = p->baseline ? NULL : p->r->p->golden;
    const uint32_t n = p->r->p->n_ids;
    if (g == NULL) return row_of(p, u, pos);
    if (strcmp(t->name, "logits") == 0)
        return pos >= n - g->n_rows ? g->logits + (size_t)(pos - (n - g->n_rows)) * t->width : NULL;
    if (g->n_hidden == 0) return NULL;
    if (strcmp(t->name, "embd") == 0) return g->hidden[0] + (size_t)pos * t->width;
    if (strcmp(t->name, "output_norm") == 0)
        return g->hidden[g->n_hidden - 1] + (size_t)pos * t->width;
    if (!ends_with(t->name, ".out") || (uint32_t)t->layer + 2 >= g->n_hidden) return NULL;
    return g->hidden[t->layer + 1] + (size_t)pos * t->width;
}

static int32_t add_logits(struct pass *p, const struct tap *t, struct bpi_ab_entry *e,
                          const float *a, const float *b, uint32_t pos, struct bp_error *err)
{
    struct bp_ab *ab = p->r->ab;
    BP_TRY(bpi_ab_add_position(ab, pos, a, b, (uint32_t)t->width, err));
    const struct bp_ab_position *at = &ab->positions[ab->n_positions - 1];
    if (at->a_id != at->b_id && !is_behind(p, t, pos))
        bpi_ab_add_flip(e, pos, at->a_id, at->b_id, at->gap, false);
    if (p->r->p->dump == NULL) return BP_OK;
    BP_TRY(bpi_ab_keep_logits(ab, 0, a, err));
    return bpi_ab_keep_logits(ab, 1, b, err);
}

static int32_t compare_tap(struct pass *p, const struct tap *t, struct bp_error *err)
{
    const bool golden = !p->baseline && p->r->p->golden != NULL;
    const struct tap *u = find_tap(&p->y, t->name);
    struct bpi_ab_entry *e = NULL;
    if (!golden && (u == NULL || u->width != t->width || u->integer != t->integer)) return BP_OK;
    for (uint32_t pos = p->begin; pos < p->end; ++pos) {
        const void *a = row_of(p, t, pos);
        const void *b = t->integer ? row_of(p, u, pos) : other_row(p, t, u, pos);
        if (a == NULL || b == NULL) continue;
        if (e == NULL) {
            e = entry_of(p, t);
            if (e == NULL) return bpi_fail_nomem(err, "compare", sizeof(*e));
            if (!p->baseline) e->op.calls++;
            if (t->integer) return compare_choices(p, t, u, e, err);
        }
        if (!p->baseline && strcmp(t->name, "logits") == 0)
            BP_TRY(add_logits(p, t, e, a, b, pos, err));
        if (is_behind(p, t, pos)) {
            if (!p->baseline) e->op.n_skipped++;
            continue;
        }
        add_row(p, e, a, b, t->width, pos);
    }
    return BP_OK;
}

/* ---- a pass over all tokens ---- */

static int32_t begin_half(struct half *h, struct bp_error *err)
{
    BP_TRY(bpi_ab_batch(h->s, h->side, &h->batch, &h->chunk, err));
    h->error = (struct bp_error)BP_ERROR_INIT;
    h->others = bpi_calloc((size_t)h->batch * h->chunk, sizeof(*h->others));
    return h->others != NULL ? BP_OK : bpi_fail_nomem(err, "compare", (size_t)h->batch * h->chunk);
}

static int32_t window(struct pass *p, uint32_t begin, uint32_t end, uint32_t decode_from,
                      struct bp_error *err)
{
    p->begin = begin;
    p->end = end;
    BP_TRY(advance(&p->x, end, decode_from, err));
    const char *stopped = p->r->stopped; /* one side's NaN is worth seeing the other's numbers */
    p->r->stopped = NULL;
    if (p->y.s != NULL) BP_TRY(advance(&p->y, end, decode_from, err));
    if (stopped != NULL) p->r->stopped = stopped;
    for (uint32_t i = 0; i < p->x.n_taps; ++i) BP_TRY(compare_tap(p, &p->x.taps[i], err));
    forget_taps(&p->x);
    forget_taps(&p->y);
    return BP_OK;
}

static int32_t run_pass(struct pass *p, struct bp_error *err)
{
    struct bp_ab *ab = p->r->ab;
    const uint32_t n = p->r->p->n_ids, n_new = p->baseline ? ab->n_ids - n : p->r->p->n_new;
    p->own = bpi_calloc((size_t)n + n_new, sizeof(*p->own));
    p->earlier = bpi_calloc((size_t)n + n_new, sizeof(*p->earlier));
    if (p->own == NULL || p->earlier == NULL) return bpi_fail_nomem(err, "compare", n * 8ull);
    for (uint32_t i = 0; i < n + n_new; ++i) p->own[i] = p->earlier[i] = NEVER;
    p->x.pass = p->y.pass = p;
    BP_TRY(begin_half(&p->x, err));
    if (p->y.s != NULL) BP_TRY(begin_half(&p->y, err));
    const uint32_t wide = p->y.s != NULL && p->y.chunk > p->x.chunk ? p->y.chunk : p->x.chunk;
    for (uint32_t at = 0; at < n && p->r->stopped == NULL; at += wide)
        BP_TRY(window(p, at, n - at < wide ? n : at + wide, UINT32_MAX, err));
    for (uint32_t i = 0; i < n_new && p->r->stopped == NULL; ++i) {
        if (!p->baseline) {
            const int32_t id = ab->positions[ab->n_positions - 1].a_id;
            if (bp_token_is_eog(p->r->p->a.model, id)) break;
            ab->ids[ab->n_ids++] = id;
        }
        BP_TRY(window(p, n + i, n + i + 1, n, err));
    }
    return BP_OK;
}

static void end_half(struct half *h)
{
    forget_taps(h);
    bpi_free(h->taps);
    bpi_free(h->others);
}

static void end_pass(struct pass *p)
{
    end_half(&p->x);
    end_half(&p->y);
    bpi_free(p->own);
    bpi_free(p->earlier);
    bpi_ab_route_free(&p->route);
}

/* ---- judging ---- */

/* How many layers a tap's numbers went through; 1 in front of the first. */
static double depth(const struct bp_ab *ab, const struct bpi_ab_entry *e)
{
    uint32_t layers = e->op.layer >= 0 ? (uint32_t)e->op.layer + 1 : 1;
    if (e->op.layer < 0 && strcmp(e->op.tap, "embd") != 0) {
        for (uint32_t i = 0; i < ab->n_entries; ++i) {
            if (ab->entries[i]->op.layer >= (int32_t)layers)
                layers = (uint32_t)ab->entries[i]->op.layer + 1;
        }
    }
    return layers;
}

/* Two runs in f32 drift apart with each layer: by a few roundings of what each layer adds. */
static double drift(const struct bp_ab *ab, const struct bpi_ab_entry *e)
{
    return 0x1p-19 * sqrt(depth(ab, e));
}

static const struct bpi_ab_entry *named(const struct bp_ab *ab, int32_t layer, const char *end)
{
    for (uint32_t i = 0; i < ab->n_entries; ++i) {
        if (ab->entries[i]->op.layer == layer && ends_with(ab->entries[i]->op.tap, end))
            return ab->entries[i];
    }
    return NULL;
}

/* What the scores behind a choice may be off by, from the baseline of what they are made from. */
static double choice_precision(const struct bpi_ab_run *r, const struct bpi_ab_entry *e)
{
    const struct bp_ab *ab = r->ab;
    const double noise = drift(ab, e) * e->score_size;
    if (strcmp(e->op.tap, "logits") == 0)
        return 2.0 * r->sides * e->op.baseline_max_abs + drift(ab, e) * 64.0;
    const bool experts = ends_with(e->op.tap, ".moe.ids");
    const struct bpi_ab_entry *from = named(ab, e->op.layer, experts ? ".moe.router" : ".index.q");
    if (experts) return (from != NULL ? 2.0 * r->sides * from->op.baseline_max_abs : 0.0) + noise;
    return (4.0 * r->sides * (from != NULL ? from->base_max_rel : 0.0) +
            (r->unit > 0x1p-24 ? 4.0 * r->unit : 0.0)) *
               e->score_size +
           noise;
}

static const char *end_of(const char *tap)
{
    const char *dot = strncmp(tap, "blk.", 4) == 0 ? strchr(tap + 4, '.') : NULL;
    return dot != NULL ? dot : tap;
}

/* Adds another tap's baseline to one that has none. Errors of a run add up like steps in any direction, so with the root
 * of the layers that they went through. alike: numbers of one kind, else only what is relative to them. */
static void borrow_from(const struct bp_ab *ab, struct bpi_ab_entry *e,
                        const struct bpi_ab_entry *o, bool alike)
{
    const double deeper = depth(ab, e) > depth(ab, o) ? depth(ab, e) / depth(ab, o) : 1.0;
    if (alike) larger(&e->op.baseline_max_abs, sqrt(deeper) * o->op.baseline_max_abs);
    larger(&e->base_max_rel, sqrt(deeper) * o->base_max_rel);
    if (deeper * o->base_d2 * e->base_a2 >= e->base_d2 * o->base_a2) {
        e->base_d2 = deeper * o->base_d2;
        e->base_a2 = o->base_a2;
    }
}

static bool borrow_where(const struct bp_ab *ab, struct bpi_ab_entry *e, uint64_t least)
{
    const bool last = e->op.layer < 0 && strcmp(e->op.tap, "embd") != 0;
    const char *end = last ? ".out" : end_of(e->op.tap);
    bool any = false;
    for (uint32_t i = 0; i < ab->n_entries; ++i) {
        const struct bpi_ab_entry *o = ab->entries[i];
        if (o == e || o->base_rows < least || strcmp(end_of(o->op.tap), end) != 0) continue;
        borrow_from(ab, e, o, !last);
        any = true;
    }
    return any;
}

/* Ref's own run may have met a flip earlier than the sides did, and then has no rows here, or too few to know the largest
 * error by: the same tap of other layers stands in, and for what comes behind all layers their outputs. */
static void borrow_baseline(const struct bp_ab *ab, struct bpi_ab_entry *e)
{
    if (!borrow_where(ab, e, FEW_ROWS) && e->base_rows == 0) (void)borrow_where(ab, e, 1);
    if (e->op.baseline_max_abs <= 0.0 && e->op.max_rel > 0)
        e->op.baseline_max_abs = e->base_max_rel * e->op.max_abs / e->op.max_rel;
}

static void judge_entry(struct bpi_ab_run *r, struct bpi_ab_entry *e)
{
    struct bp_ab_op *o = &e->op;
    const double floor = drift(r->ab, e);
    const double norm = e->d2 > 0 ? sqrt(e->d2 / (e->a2 > 0 ? e->a2 : e->d2)) : e->d2;
    double base =
        e->base_d2 > 0 ? sqrt(e->base_d2 / (e->base_a2 > 0 ? e->base_a2 : e->base_d2)) : 0.0;
    /* A few rows may be the worst ones of the baseline's many. */
    if (o->n_rows < FEW_ROWS) larger(&base, e->base_max_rel);
    if (!(norm <= 2.0 * r->sides * base + floor) ||
        !(o->max_rel <= 4.0 * r->sides * e->base_max_rel + 16.0 * floor)) {
        o->status = BP_AB_FAIL;
    }
    const double precision = choice_precision(r, e);
    for (uint64_t i = 0; i < o->n_flips_kept; ++i) {
        struct bp_ab_flip *f = &e->flips[i];
        f->wide = !(f->gap <= precision);
        o->n_wide += f->wide;
    }
}

static bool differs(const struct bp_ab *ab)
{
    for (uint32_t i = 0; i < ab->n_entries; ++i) {
        const struct bpi_ab_entry *e = ab->entries[i];
        if (!(e->op.max_abs <= 0.0) || e->op.n_flips > 0) return true;
    }
    return false;
}

static int32_t run_baseline(struct bpi_ab_run *r, struct bp_error *err)
{
    const struct bp_ab_side plain = {.h = BP_HDR(struct bp_ab_side, batch)};
    struct pass p = {.r = r, .baseline = true};
    p.x.side = p.y.side = &plain;
    p.y.number = 1;
    int32_t rc = bpi_ab_ref_session(r, false, &p.x.s, err);
    if (rc == BP_OK) rc = bpi_ab_ref_session(r, true, &p.y.s, err);
    if (rc == BP_OK) rc = run_pass(&p, err);
    end_pass(&p);
    bpi_ab_ref_end(r, p.y.s);
    bpi_ab_ref_end(r, p.x.s);
    return rc;
}

/* Ref alone, which rounds nothing; a golden file was made like that. */
static bool is_exact(const struct bpi_ab_run *r, uint32_t side)
{
    const struct bp_ab *ab = r->ab;
    if (side == 1 && r->p->golden != NULL) return true;
    for (uint32_t i = 0; i < ab->n_choices[side]; ++i) {
        if (strcmp(ab->choices[side][i].provider, "ref") != 0) return false;
    }
    return bpi_ab_is_exact(side == 0 ? r->p->a.config : r->p->b.config) &&
           strcmp(bp_ab_kv_dtype(ab, side), "f32") == 0 &&
           strcmp(bp_ab_act_dtype(ab, side), "f32") == 0;
}

int32_t bpi_ab_free(struct bpi_ab_run *r, struct bp_error *err)
{
    struct pass p = {.r = r};
    BP_TRY(bpi_ab_open(r, &r->p->a, "A", &r->a, err));
    BP_TRY(bpi_ab_describe(r->ab, 0, r->a, err));
    /* Every tap is watched later; this asks whether the names exist. */
    if (r->p->dump != NULL) BP_TRY(bp_session_tap(r->a, r->p->dump, collect, NULL, err));
    if (r->p->golden == NULL) {
        BP_TRY(bpi_ab_open(r, &r->p->b, "B", &r->b, err));
        BP_TRY(bpi_ab_describe(r->ab, 1, r->b, err));
    }
    bpi_ab_settle_precision(r);
    r->sides = is_exact(r, 0) || is_exact(r, 1) ? 1.0 : 2.0;
    /* A golden file holds no choices. Ref's stand in for them, or a flip by rounding would look like an error. */
    if (r->p->golden != NULL && r->unit > 0x1p-24) BP_TRY(bpi_ab_ref_session(r, false, &r->b, err));
    const struct bp_ab_side plain = {.h = BP_HDR(struct bp_ab_side, batch), .chunk = r->p->a.chunk};
    p.x.side = &r->p->a;
    p.y.side = r->p->golden != NULL ? &plain : &r->p->b;
    p.x.s = r->a;
    p.y.s = r->b;
    p.y.number = 1;
    const uint64_t start = bpi_now_ns();
    int32_t rc = run_pass(&p, err);
    r->ab->sum.seconds_a = p.x.seconds;
    if (r->p->golden == NULL) r->ab->sum.seconds_b = p.y.seconds;
    r->ab->sum.n_steps_a = p.x.steps;
    if (r->p->golden == NULL) r->ab->sum.n_steps_b = p.y.steps;
    end_pass(&p);
    const char *stopped = r->stopped;
    r->stopped = NULL;
    if (rc == BP_OK && r->unit > 0x1p-24 && differs(r->ab)) rc = run_baseline(r, err);
    if (stopped != NULL) r->stopped = stopped;
    r->ab->sum.seconds = (double)(bpi_now_ns() - start) * 1e-9;
    for (uint32_t i = 0; rc == BP_OK && i < r->ab->n_entries; ++i) {
        if (r->ab->entries[i]->base_rows < FEW_ROWS) borrow_baseline(r->ab, r->ab->entries[i]);
    }
    for (uint32_t i = 0; rc == BP_OK && i < r->ab->n_entries; ++i)
        judge_entry(r, r->ab->entries[i]);
    return rc;
}
