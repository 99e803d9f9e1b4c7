/* tap.c - named intermediates: switching them on, emitting them, and finding the first one that is not finite.
 * Off costs one comparison per place. SPDX-License-Identifier: MIT */
#include "engine/session_priv.h"
#include "base/half.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    char rows;
} tap_table[BPI_TAP_COUNT] = {
#define TAP_ROW(id, name, rows) {name, rows},
    BPI_TAP_MAP(TAP_ROW)
#undef TAP_ROW
};

static bool tap_is_global(uint32_t tap)
{
    return tap == BPI_TAP_EMBD || tap == BPI_TAP_OUTPUT_NORM || tap == BPI_TAP_LOGITS;
}

/* Which taps exist in this layer (-1: outside of layers). */
static bool tap_exists(const struct bp_session *s, uint32_t tap, int32_t layer)
{
    if (layer < 0 || tap_is_global(tap)) return layer < 0 && tap_is_global(tap);
    const struct bpi_layer *l = &s->layers[layer];
    switch (tap) {
    case BPI_TAP_Q_LORA:
        return s->hp->q_lora > 0;
    case BPI_TAP_INDEX_K:
    case BPI_TAP_INDEX_Q:
    case BPI_TAP_INDEX_W:
    case BPI_TAP_INDEX_IDS:
        return l->has_index;
    case BPI_TAP_FFN_ACT:
        return l->dense_ffn;
    case BPI_TAP_FFN_NORM:
    case BPI_TAP_ROUTER:
    case BPI_TAP_MOE_IDS:
    case BPI_TAP_MOE_WEIGHTS:
        return !l->dense_ffn;
    default:
        return true;
    }
}

static void tap_name(uint32_t tap, int32_t layer, char out[64])
{
    if (layer < 0) {
        snprintf(out, 64, "%s", tap_table[tap].name);
    } else {
        snprintf(out, 64, "blk.%d.%s", layer, tap_table[tap].name);
    }
}

/* Switches on what matches one pattern; false when nothing does. */
static int32_t enable(struct bp_session *s, struct bpi_taps *taps, const char *pattern,
                      bool *matched, struct bp_error *err)
{
    *matched = false;
    for (int32_t row = 0; row <= (int32_t)s->n_layer; ++row) {
        int32_t layer = row == (int32_t)s->n_layer ? -1 : row;
        for (uint32_t tap = 0; tap < BPI_TAP_COUNT; ++tap) {
            char name[64];
            if (!tap_exists(s, tap, layer)) continue;
            tap_name(tap, layer, name);
            if (!bpi_glob(pattern, name)) continue;
            char *copy = bpi_arena_strndup(&taps->arena, name, strlen(name));
            if (copy == NULL) return bpi_fail_nomem(err, "engine", strlen(name));
            taps->names[(size_t)row * BPI_TAP_COUNT + tap] = copy;
            *matched = true;
        }
    }
    return BP_OK;
}

static int32_t no_such_tap(const struct bp_session *s, const char *pattern, struct bp_error *err)
{
    char word[64], names[2 * BPI_TAP_COUNT][64];
    const char *cands[2 * BPI_TAP_COUNT];
    size_t n = 0, len = strcspn(pattern, ",");
    snprintf(word, sizeof(word), "%.*s", (int)(len < 63 ? len : 63), pattern);
    for (int32_t layer = -1; layer < 1 && layer < (int32_t)s->n_layer; ++layer) {
        for (uint32_t tap = 0; tap < BPI_TAP_COUNT; ++tap) {
            if (!tap_exists(s, tap, layer)) continue;
            tap_name(tap, layer, names[n]);
            cands[n] = names[n];
            ++n;
        }
    }
    const char *near = bpi_nearest(word, cands, n);
    return bpi_fail(err, BP_E_ARG, "engine", word, "no tap matches '%s'%s%s", word,
                    near != NULL ? "; did you mean "
                                 : "; taps are named like blk.3.attn.q_nope or output_norm",
                    near != NULL ? near : "");
}

static int32_t build_taps(struct bp_session *s, const char *patterns, struct bpi_taps *taps,
                          struct bp_error *err)
{
    taps->names =
        bpi_arena_alloc(&taps->arena, ((size_t)s->n_layer + 1) * BPI_TAP_COUNT, sizeof(char *), 16);
    if (taps->names == NULL)
        return bpi_fail_nomem(err, "engine", s->n_layer * BPI_TAP_COUNT * sizeof(char *));
    for (const char *p = patterns; p != NULL;) {
        bool matched;
        BP_TRY(enable(s, taps, p, &matched, err));
        if (!matched) return no_such_tap(s, p, err);
        p = strchr(p, ',');
        if (p != NULL) ++p;
    }
    return BP_OK;
}

int32_t bp_session_tap(struct bp_session *s, const char *patterns, bp_tap_fn fn, void *ctx,
                       struct bp_error *err)
{
    struct bpi_taps taps = {.fn = fn, .ctx = ctx};
    if (patterns != NULL && fn != NULL) {
        int32_t rc = build_taps(s, patterns, &taps, err);
        if (rc != BP_OK) {
            bpi_arena_free(&taps.arena);
            return rc;
        }
    } else {
        taps.fn = NULL;
    }
    bpi_arena_free(&s->taps.arena);
    s->taps = taps;
    return BP_OK;
}

/* Halves as F32, in place of `t`: n elements of one span, so strides stay. */
static int32_t widen(struct bp_tensor *t, uint64_t n, void **owned, struct bp_error *err)
{
    float *wide = bpi_alloc(n * sizeof(*wide));
    const uint16_t *from = t->data;
    if (wide == NULL) return bpi_fail_nomem(err, "engine", n * sizeof(*wide));
    for (uint64_t i = 0; i < n; ++i)
        wide[i] = t->dtype == BP_DT_F16 ? bpi_f16_to_f32(from[i]) : bpi_bf16_to_f32(from[i]);
    bpi_free(*owned);
    *owned = t->data = wide;
    t->dtype = BP_DT_F32;
    return BP_OK;
}

/* What a callback may read, floats in F32: the tensor itself where it is that already, else a copy. */
static int32_t host_view(struct bp_session *s, const struct bp_tensor *t, struct bp_tensor *out,
                         void **owned, struct bp_error *err)
{
    const uint64_t n_bytes = bpi_port_span(t), n = n_bytes / bpi_dtype_bytes(t->dtype);
    const bool halves = t->dtype == BP_DT_F16 || t->dtype == BP_DT_BF16;
    *out = *t;
    *owned = NULL;
    if (n == 0) return BP_OK;
    if (s->device.kind != BP_DEV_HOST) {
        *owned = bpi_alloc(n_bytes);
        if (*owned == NULL) return bpi_fail_nomem(err, "engine", n_bytes);
        out->data = *owned;
        BP_TRY(bpi_session_copy(s, *owned, t->data, n_bytes, BP_COPY_D2H, err));
        BP_TRY(bpi_session_sync(s, err));
    }
    return halves ? widen(out, n, owned, err) : BP_OK;
}

int32_t bpi_tap_emit(struct bp_session *s, uint32_t tap, int32_t layer, const struct bp_tensor *t,
                     struct bp_error *err)
{
    if (!bpi_tap_on(s, tap, layer) || t->dim[0] == 0) return BP_OK;
    const struct bpi_step *st = &s->step;
    struct bp_tensor view;
    void *owned;
    int32_t rc = host_view(s, t, &view, &owned, err);
    size_t row = layer < 0 ? s->n_layer : (uint32_t)layer;
    struct bp_tap_event e = {.h = BP_HDR(struct bp_tap_event, row_pos),
                             .name = s->taps.names[row * BPI_TAP_COUNT + tap],
                             .layer = layer,
                             .n_rows = (uint32_t)t->dim[0],
                             .data = &view,
                             .row_item = st->row_item,
                             .row_pos = st->row_pos};
    if (tap_table[tap].rows == 'L') { /* logits rows are a choice of batch rows */
        uint32_t *maps = bpi_calloc(2 * (size_t)st->n_logits, sizeof(*maps));
        if (rc == BP_OK && maps == NULL)
            rc = bpi_fail_nomem(err, "engine", 2 * st->n_logits * sizeof(*maps));
        for (uint32_t i = 0; i < st->n_logits && maps != NULL; ++i) {
            maps[i] = st->row_item[st->logit_row[i]];
            maps[st->n_logits + i] = st->row_pos[st->logit_row[i]];
        }
        e.row_item = maps;
        e.row_pos = maps != NULL ? maps + st->n_logits : NULL;
        if (rc == BP_OK) s->taps.fn(s->taps.ctx, &e);
        bpi_free(maps);
    } else if (rc == BP_OK) {
        s->taps.fn(s->taps.ctx, &e);
    }
    bpi_free(owned);
    return rc;
}

/* ---- the first tap that is not finite ---- */

struct finder {
    const struct bp_session *s;
    const unsigned char *bad_row;
    char where[96];
    bool found;
};

static bool tensor_row_is_finite(const struct bp_tensor *t, uint32_t row)
{
    if (t->dtype != BP_DT_F32) return true; /* choices */
    int64_t d1 = t->ndim > 2 ? t->dim[1] : 1, s1 = t->ndim > 2 ? t->stride[1] : 0;
    int64_t d2 = t->ndim > 1 ? t->dim[t->ndim - 1] : 1;
    for (int64_t i = 0; i < d1; ++i) {
        for (int64_t j = 0; j < d2; ++j) {
            if (!isfinite(((const float *)t->data)[row * t->stride[0] + i * s1 + j])) return false;
        }
    }
    return true;
}

static void look(void *ctx, const struct bp_tap_event *e)
{
    struct finder *f = ctx;
    const struct bpi_step *st = &f->s->step;
    bool logits = e->row_item != st->row_item;
    for (uint32_t r = 0; r < e->n_rows && !f->found; ++r) {
        uint32_t batch_row = logits ? st->logit_row[r] : r;
        if (!f->bad_row[batch_row] || tensor_row_is_finite(e->data, r)) continue;
        f->found = true;
        snprintf(f->where, sizeof(f->where), "%s", e->name);
    }
}

int32_t bpi_tap_find_nonfinite(struct bp_session *s, const unsigned char *bad_row, char *where,
                               size_t cap, struct bp_error *err)
{
    struct finder f = {.s = s, .bad_row = bad_row};
    struct bpi_taps saved = s->taps, all = {.fn = look, .ctx = &f};
    snprintf(where, cap, "an unknown op");
    int32_t rc = build_taps(s, "*", &all, err);
    if (rc == BP_OK) {
        struct bpi_watcher *watcher = s->watcher;
        s->taps = all;
        s->watcher = NULL; /* these calls were looked at */
        /* The same tokens and metadata give the same numbers, and cache writes are idempotent. */
        rc = bpi_step_forward(s, err);
        if (rc == BP_OK && f.found) snprintf(where, cap, "%s", f.where);
        s->watcher = watcher;
    }
    s->taps = saved;
    bpi_arena_free(&all.arena);
    return rc;
}
