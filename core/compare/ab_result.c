/* ab_result.c - what a comparison found: rows of ops, positions, kept taps; and how it is read from outside.
 * Not here: finding it. Threads: one at a time while it grows; immutable afterwards. SPDX-License-Identifier: MIT */
#include "compare/compare_priv.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "backplane/sdk_tensor.h"

/* ---- growing ---- */

static bool is_place(const struct bpi_ab_entry *e, const char *slot, const char *op,
                     const char *tap, int32_t layer)
{
    return e->op.layer == layer && strcmp(e->op.tap, tap) == 0 && strcmp(e->op.op, op) == 0 &&
           strcmp(e->op.slot, slot) == 0;
}

static bool grow_entries(struct bp_ab *ab)
{
    if (ab->n_entries < ab->cap_entries) return true;
    const uint32_t cap = ab->cap_entries == 0 ? 256 : 2 * ab->cap_entries;
    struct bpi_ab_entry **more = bpi_realloc(ab->entries, cap, sizeof(*more));
    if (more == NULL) return false;
    ab->entries = more;
    ab->cap_entries = cap;
    return true;
}

static const char *keep_text(struct bp_ab *ab, const char *text)
{
    const char *copy = bpi_arena_strndup(&ab->arena, text, strlen(text));
    return copy != NULL ? copy : "";
}

struct bpi_ab_entry *bpi_ab_entry(struct bp_ab *ab, const char *slot, const char *op,
                                  const char *tap, int32_t layer)
{
    /* Calls come in the same order again and again. */
    for (uint32_t i = 0; i < ab->n_entries; ++i) {
        const uint32_t at = (ab->next + i) % ab->n_entries;
        if (!is_place(ab->entries[at], slot, op, tap, layer)) continue;
        ab->next = at + 1;
        return ab->entries[at];
    }
    struct bpi_ab_entry *e = bpi_arena_alloc(&ab->arena, 1, sizeof(*e), 16);
    if (e == NULL || !grow_entries(ab)) return NULL;
    e->op = (struct bp_ab_op){.h = BP_HDR(struct bp_ab_op, flops),
                              .slot = keep_text(ab, slot),
                              .op = keep_text(ab, op),
                              .tap = keep_text(ab, tap),
                              .provider_a = "",
                              .provider_b = "",
                              .text = "",
                              .layer = layer,
                              .made_here = 1};
    ab->entries[ab->n_entries++] = e;
    ab->next = ab->n_entries;
    return e;
}

const char *bpi_ab_text(struct bp_ab *ab, const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    return keep_text(ab, text);
}

static bool is_wider(double gap, double than)
{
    return isnan(gap) ? !isnan(than) : gap > than;
}

void bpi_ab_add_flip(struct bpi_ab_entry *e, uint32_t pos, int32_t a, int32_t b, double gap,
                     bool wide)
{
    struct bp_ab_op *o = &e->op;
    o->n_flips++;
    if (wide) o->n_wide++;
    const struct bp_ab_flip f = {.pos = pos, .a = a, .b = b, .wide = wide, .gap = gap};
    if (o->n_flips_kept < BPI_AB_FLIPS) {
        e->flips[o->n_flips_kept++] = f;
    } else { /* the widest gaps say most, and an unknown one may be of any width */
        uint32_t least = 0;
        for (uint32_t i = 1; i < BPI_AB_FLIPS; ++i) {
            if (is_wider(e->flips[least].gap, e->flips[i].gap)) least = i;
        }
        if (is_wider(gap, e->flips[least].gap)) e->flips[least] = f;
    }
    o->flips = e->flips;
}

/* ---- logits ---- */

/* ln of the sum of exp, and the largest. NaN and infinity stay. */
static double log_sum(const float *v, uint32_t n, int32_t *out_best)
{
    uint32_t best = 0;
    double sum = 0.0;
    for (uint32_t i = 1; i < n; ++i) {
        if (v[i] > v[best] || isnan(v[best])) best = i;
    }
    for (uint32_t i = 0; i < n; ++i) sum += exp((double)v[i] - v[best]);
    *out_best = (int32_t)best;
    return v[best] + log(sum);
}

static uint32_t overlap(const float *a, const float *b, uint32_t n)
{
    struct bp_token_prob p[BPI_AB_TOP], q[BPI_AB_TOP];
    const uint32_t k = bp_top_logprobs(a, n, BPI_AB_TOP, p);
    uint32_t both = 0;
    (void)bp_top_logprobs(b, n, BPI_AB_TOP, q);
    for (uint32_t i = 0; i < k; ++i) {
        for (uint32_t j = 0; j < k; ++j) both += p[i].id == q[j].id;
    }
    return both;
}

int32_t bpi_ab_add_position(struct bp_ab *ab, uint32_t pos, const float *a, const float *b,
                            uint32_t n, struct bp_error *err)
{
    if (ab->n_positions == ab->cap_positions) {
        const uint32_t cap = ab->cap_positions == 0 ? 256 : 2 * ab->cap_positions;
        struct bp_ab_position *more = bpi_realloc(ab->positions, cap, sizeof(*more));
        if (more == NULL) return bpi_fail_nomem(err, "compare", cap * sizeof(*more));
        ab->positions = more;
        ab->cap_positions = cap;
    }
    struct bp_ab_position p = {.h = BP_HDR(struct bp_ab_position, gap), .pos = pos};
    const double za = log_sum(a, n, &p.a_id), zb = log_sum(b, n, &p.b_id);
    for (uint32_t i = 0; i < n; ++i) {
        const double la = a[i] - za, lb = b[i] - zb, d = fabs((double)b[i] - a[i]);
        if (la > -INFINITY || isnan(la)) p.kl += exp(la) * (la - lb);
        if (lb > -INFINITY || isnan(lb)) p.kl_ba += exp(lb) * (lb - la);
        if (d > p.max_abs || isnan(d)) p.max_abs = isnan(p.max_abs) ? p.max_abs : d;
        p.mean_abs += d / n;
    }
    p.overlap = overlap(a, b, n);
    p.gap = (double)a[p.a_id] - a[p.b_id];
    ab->positions[ab->n_positions++] = p;
    return BP_OK;
}

int32_t bpi_ab_keep_logits(struct bp_ab *ab, uint32_t side, const float *row, struct bp_error *err)
{
    const size_t bytes = (size_t)ab->n_vocab * sizeof(float);
    uint32_t at = ab->n_positions - 1; /* the position was added before */
    if ((at & (at - 1)) == 0 || at == 0) {
        float *more = bpi_realloc(ab->logits[side], at == 0 ? 2u : 2u * at + 1u, bytes);
        if (more == NULL) return bpi_fail_nomem(err, "compare", bytes);
        ab->logits[side] = more;
    }
    memcpy(ab->logits[side] + (size_t)at * ab->n_vocab, row, bytes);
    ab->n_logits = at + 1;
    return BP_OK;
}

/* ---- kept taps ---- */

bool bpi_ab_matches(const char *patterns, const char *name)
{
    while (patterns != NULL && *patterns != '\0') {
        if (bpi_glob(patterns, name)) return true;
        patterns = strchr(patterns, ',');
        if (patterns != NULL) ++patterns;
    }
    return false;
}

void bpi_ab_tap_row(const struct bp_tensor *t, uint32_t row, void *out)
{
    struct bp_tensor one = *t;
    one.data = (char *)t->data + (int64_t)row * t->stride[0] * bp_dtype_bytes(t->dtype);
    one.dim[0] = 1;
    struct bp_rows r = bp_rows_of(&one);
    for (char *at = out; bp_rows_next(&r); at += r.n * 4) {
        if (bp_is_float(t->dtype))
            bp_load((float *)(void *)at, r.p, t->dtype, r.n);
        else
            memcpy(at, r.p, (size_t)r.n * 4);
    }
}

static struct bpi_ab_kept *kept_of(struct bp_ab *ab, uint32_t side, const struct bp_tap_event *e)
{
    for (uint32_t i = 0; i < ab->n_kept; ++i) {
        if (ab->kept[i].tap.side == side && strcmp(ab->kept[i].tap.name, e->name) == 0)
            return &ab->kept[i];
    }
    if (ab->n_kept == ab->cap_kept) {
        const uint32_t cap = ab->cap_kept == 0 ? 64 : 2 * ab->cap_kept;
        struct bpi_ab_kept *more = bpi_realloc(ab->kept, cap, sizeof(*more));
        if (more == NULL) return NULL;
        ab->kept = more;
        ab->cap_kept = cap;
    }
    struct bpi_ab_kept *k = &ab->kept[ab->n_kept++];
    *k = (struct bpi_ab_kept){.tap = {.h = BP_HDR(struct bp_ab_tap, pos),
                                      .name = keep_text(ab, e->name),
                                      .side = side,
                                      .integer = e->data->dtype == BP_DT_I32,
                                      .width = 1}};
    for (uint32_t d = 1; d < e->data->ndim; ++d) k->tap.width *= (uint64_t)e->data->dim[d];
    return k;
}

static bool grow_kept(struct bpi_ab_kept *k, uint64_t n)
{
    const uint64_t want = k->tap.n_rows + n;
    if (want <= k->cap_rows) return true;
    const uint64_t cap = want > 2 * k->cap_rows ? want : 2 * k->cap_rows;
    void *data = bpi_realloc(k->data, cap, k->tap.width * 4);
    if (data != NULL) k->data = data;
    uint32_t *pos = bpi_realloc(k->pos, cap, sizeof(*pos));
    if (pos != NULL) k->pos = pos;
    if (data == NULL || pos == NULL) return false;
    k->cap_rows = cap;
    return true;
}

int32_t bpi_ab_keep(struct bp_ab *ab, uint32_t side, const struct bp_tap_event *e,
                    struct bp_error *err)
{
    struct bpi_ab_kept *k = kept_of(ab, side, e);
    if (k == NULL || !grow_kept(k, e->n_rows)) return bpi_fail_nomem(err, "compare", 64);
    for (uint32_t i = 0; i < e->n_rows; ++i) {
        if (e->row_item[i] != 0) continue; /* a neighbour in the batch */
        bpi_ab_tap_row(e->data, i, (char *)k->data + k->tap.n_rows * k->tap.width * 4);
        k->pos[k->tap.n_rows++] = e->row_pos[i];
    }
    return BP_OK;
}

/* ---- sides ---- */

int32_t bpi_ab_describe(struct bp_ab *ab, uint32_t side, struct bp_session *s, struct bp_error *err)
{
    struct bp_choice c = {.h = BP_HDR(struct bp_choice, layer_end)};
    uint32_t n = 0;
    while (bp_session_choice(s, n, &c) == BP_OK) ++n;
    ab->choices[side] = bpi_arena_alloc(&ab->arena, n + 1u, sizeof(c), 16);
    if (ab->choices[side] == NULL) return bpi_fail_nomem(err, "compare", n * sizeof(c));
    ab->n_choices[side] = n;
    for (uint32_t i = 0; i < n; ++i) {
        (void)bp_session_choice(s, i, &c);
        c.slot = keep_text(ab, c.slot);
        c.provider = keep_text(ab, c.provider);
        ab->choices[side][i] = c;
    }
    ab->kv_dtype[side] = keep_text(ab, bp_session_kv_dtype(s));
    ab->kv_layout[side] = keep_text(ab, bp_session_kv_layout(s));
    ab->act_dtype[side] = keep_text(ab, bp_session_act_dtype(s));
    struct bp_session_memory *m = side == 0 ? &ab->sum.memory_a : &ab->sum.memory_b;
    *m = (struct bp_session_memory){.h = BP_HDR(struct bp_session_memory, scratch)};
    bp_session_memory(s, m);
    return BP_OK;
}

/* ---- reading ---- */

void bp_ab_close(struct bp_ab *ab)
{
    if (ab == NULL) return;
    for (uint32_t i = 0; i < ab->n_entries; ++i) {
        bpi_free(ab->entries[i]->time_a.us);
        bpi_free(ab->entries[i]->time_b.us);
    }
    for (uint32_t i = 0; i < ab->n_kept; ++i) {
        bpi_free(ab->kept[i].data);
        bpi_free(ab->kept[i].pos);
    }
    bpi_free(ab->entries);
    bpi_free(ab->positions);
    bpi_free(ab->kept);
    bpi_free(ab->ids);
    bpi_free(ab->logits[0]);
    bpi_free(ab->logits[1]);
    bpi_arena_free(&ab->arena);
    bpi_free(ab);
}

void bp_ab_summary(const struct bp_ab *ab, struct bp_ab_summary *out)
{
    struct bp_hdr h = out->h;
    *out = ab->sum;
    out->h = h;
}

int32_t bp_ab_op(const struct bp_ab *ab, uint32_t i, struct bp_ab_op *out)
{
    if (i >= ab->n_entries) return BP_DECLINED;
    struct bp_hdr h = out->h;
    *out = ab->entries[i]->op;
    out->h = h;
    return BP_OK;
}

int32_t bp_ab_position(const struct bp_ab *ab, uint32_t i, struct bp_ab_position *out)
{
    if (i >= ab->n_positions) return BP_DECLINED;
    struct bp_hdr h = out->h;
    *out = ab->positions[i];
    out->h = h;
    return BP_OK;
}

const int32_t *bp_ab_ids(const struct bp_ab *ab, uint32_t *out_n)
{
    *out_n = ab->n_ids;
    return ab->ids;
}

const float *bp_ab_logits(const struct bp_ab *ab, uint32_t side, uint32_t i)
{
    if (side > 1 || i >= ab->n_logits || ab->logits[side] == NULL) return NULL;
    return ab->logits[side] + (size_t)i * ab->n_vocab;
}

int32_t bp_ab_choice(const struct bp_ab *ab, uint32_t side, uint32_t i, struct bp_choice *out)
{
    if (side > 1 || i >= ab->n_choices[side]) return BP_DECLINED;
    struct bp_hdr h = out->h;
    *out = ab->choices[side][i];
    out->h = h;
    return BP_OK;
}

const char *bp_ab_kv_dtype(const struct bp_ab *ab, uint32_t side)
{
    return side <= 1 && ab->kv_dtype[side] != NULL ? ab->kv_dtype[side] : "";
}

const char *bp_ab_kv_layout(const struct bp_ab *ab, uint32_t side)
{
    return side <= 1 && ab->kv_layout[side] != NULL ? ab->kv_layout[side] : "";
}

const char *bp_ab_act_dtype(const struct bp_ab *ab, uint32_t side)
{
    return side <= 1 && ab->act_dtype[side] != NULL ? ab->act_dtype[side] : "";
}

int32_t bp_ab_tap(const struct bp_ab *ab, uint32_t i, struct bp_ab_tap *out)
{
    if (i >= ab->n_kept) return BP_DECLINED;
    struct bp_hdr h = out->h;
    *out = ab->kept[i].tap;
    out->data = ab->kept[i].data;
    out->pos = ab->kept[i].pos;
    out->h = h;
    return BP_OK;
}
