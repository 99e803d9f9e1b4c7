/* case_mla_index.c - every provider of bp.mla.index against the oracle.
 * Keys are read back through select itself: with queries that are unit vectors of both signs a score is one number of a
 * key, so no layout is known here. A choice may differ from the exact one only where the exact scores are closer to the
 * threshold than the precision in use can tell; such flips are counted and printed. Equal keys leave no such freedom.
 * SPDX-License-Identifier: MIT */
#include "cases/case_real.h"
#include "cases/mla_grid.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_ROW = 9, MAX_D = 128 };
static const int32_t row_seq[N_ROW] = {0, 1, 2, 3, 4, 5, 4, 5, 2},
                     row_len[N_ROW] = {1, 63, 64, 65, 1000, 700, 77, 641, 0};

struct index_dims {
    uint32_t h, d, r, style, top_k;
    uint32_t act, kv;
};

static struct bp_mla_problem index_problem(const struct index_dims *d)
{
    const struct mla_dims any = {8, 64, d->r, 96, 512, d->act, d->kv};
    struct bp_mla_problem p = mla_problem(&any);
    p.max_rows = MAX_D + MLA_N_PAD;
    p.n_index_head = d->h;
    p.index_dim = d->d;
    p.index_rope_style = d->style;
    p.top_k = d->top_k;
    return p;
}

static void index_label(struct mla_suite *s, const char *what, const struct index_dims *d)
{
    (void)snprintf(s->label, sizeof s->label,
                   "%s, %u heads of %u, %u rotated in style %u, top_k %u, dtypes %u and %u", what,
                   d->h, d->d, d->r, d->style, d->top_k, d->act, d->kv);
}

#define INDEX(op) ((const struct bp_mla_index_ops *)(op)->ref.vt)
static int32_t do_key_write(const struct mla_op *op, const void *a, struct bp_error *err)
{
    return INDEX(op)->key_write(op->ref.self, &op->l, a, err);
}
static int32_t do_select(const struct mla_op *op, const void *a, struct bp_error *err)
{
    return INDEX(op)->select(op->ref.self, &op->l, a, err);
}

struct index_case {
    struct mla_cache cache;
    struct bp_mla_key_write_args w;
    int64_t cu[MLA_N_SEQ + 1];
    double *keys; /* (all tokens, D), as stored: row cu[seq] + at */
    int32_t seq[MAX_D + MLA_N_PAD], len[MAX_D + MLA_N_PAD];
    struct bp_mla_decode_meta m;
    struct bp_mla_select_args a;
};

/* Writes every key. With `kinds` > 0 tokens repeat among that many and nothing is rotated: equal keys everywhere. */
static bool write_keys(struct mla_suite *s, struct mla_op *op, struct index_case *x,
                       const struct index_dims *d, int64_t kinds)
{
    struct bp_kv_layout layout = {.h = BP_HDR(struct bp_kv_layout, name)};
    const struct bp_mla_problem p = index_problem(d);
    memset(x, 0, sizeof *x);
    if (INDEX(op)->layouts(op->ref.self, &p, 0, &layout) != BP_OK) {
        return mla_fail(s, "6.13", "serves the problem, but lists no layout");
    }
    mla_cache_init(s, &x->cache, &layout, MLA_BLOCK_TOK, MLA_N_SEQ, mla_seq_len, MLA_N_SEQ - 2,
                   MLA_SHARED, d->r);
    for (int i = 0; i < MLA_N_SEQ; ++i) x->cu[i + 1] = x->cu[i] + mla_seq_len[i];
    x->w = (struct bp_mla_key_write_args){.h = BP_HDR(struct bp_mla_key_write_args, rope_style),
                                          .meta = &x->cache.meta,
                                          .pool = x->cache.pool,
                                          .eps = MLA_EPS,
                                          .rope_style = d->style};
    const int64_t n = x->cache.meta.n_tok;
    x->w.k = mla_random(s, d->act, n, d->d, 0, 8, 1.0);
    x->w.norm_w = mla_random(s, BP_DT_F32, d->d, 0, 0, 0, 0.7);
    x->w.norm_b = mla_random(s, BP_DT_F32, d->d, 0, 0, 0, 0.2);
    for (int64_t t = kinds; kinds > 0 && t < n; ++t) {
        const int64_t kind = (int64_t)kit_rng_below(&s->rng, (uint64_t)kinds);
        for (int64_t i = 0; i < d->d; ++i) mla_put(&x->w.k, t, i, 0, mla_get(&x->w.k, kind, i, 0));
    }
    for (int64_t i = 0; kinds > 0 && i < (x->cache.meta.max_kv + 1) * (d->r / 2); ++i) {
        mla_put(&x->cache.meta.rope_cos, i / (d->r / 2), i % (d->r / 2), 0, 1.0);
        mla_put(&x->cache.meta.rope_sin, i / (d->r / 2), i % (d->r / 2), 0, 0.0);
    }
    const struct bp_tensor *inouts[] = {&x->w.pool};
    return mla_run(s, op, do_key_write, BP_MLA_INDEX_OP_KEY_WRITE, &x->w, NULL, 0, inouts, 1);
}

/* Rows and ports of a select call; queries and head weights are left NaN. */
static void make_rows(struct mla_suite *s, struct index_case *x, const struct index_dims *d,
                      uint32_t n_row, uint32_t top_k, bool scores)
{
    const int64_t n = n_row + MLA_N_PAD;
    for (int64_t i = n_row; i < n; ++i) x->seq[i] = x->len[i] = 0;
    x->m = (struct bp_mla_decode_meta){.h = BP_HDR(struct bp_mla_decode_meta, row_kv_len_host),
                                       .common = &x->cache.meta,
                                       .n_row = n_row,
                                       .n_row_padded = (uint32_t)n,
                                       .max_kv = MLA_MAX_KV};
    x->m.row_seq = x->m.row_seq_host = x->seq;
    x->m.row_kv_len = x->m.row_kv_len_host = x->len;
    x->a = (struct bp_mla_select_args){.h = BP_HDR(struct bp_mla_select_args, top_k),
                                       .meta = &x->m,
                                       .pool = x->cache.pool,
                                       .top_k = top_k};
    x->a.scale = 1.0f;
    x->a.q = mla_tensor(s, d->act, n, d->h, d->d, 8);
    x->a.w = mla_tensor(s, BP_DT_F32, n, d->h, 0, 0);
    x->a.idx = mla_tensor(s, BP_DT_I32, n, top_k, 0, 0);
    x->a.idx_len = mla_tensor(s, BP_DT_I32, n, 0, 0, 0);
    if (scores) x->a.scores = mla_tensor(s, BP_DT_F32, n, MLA_MAX_KV, 0, 0);
}

static bool select_rows(struct mla_suite *s, struct mla_op *op, struct index_case *x)
{
    const struct bp_tensor *outs[] = {&x->a.idx_len, &x->a.scores};
    ++op->l.epoch;
    /* idx is unset where idx_len is -1, so its bits are compared only through the choice. */
    return mla_run(s, op, do_select, BP_MLA_INDEX_OP_SELECT, &x->a, outs,
                   x->a.scores.data != NULL ? 2 : 1, NULL, 0);
}

/* Every stored key, one number per row of a select call: w relu(e.k) - w relu(-e.k) = k[i]. Two heads are enough. */
static bool read_keys(struct mla_suite *s, struct mla_op *op, struct index_case *x,
                      const struct index_dims *whole)
{
    struct index_dims two = *whole;
    two.h = 2;
    const struct bp_mla_problem p = index_problem(&two), before = index_problem(whole);
    const struct index_dims *d = mla_ask(s, op, &p) ? &two : whole;
    if (d == whole && !mla_ask(s, op, &before)) return false;
    x->keys = bp_oracle_alloc((size_t)(x->cu[MLA_N_SEQ] * d->d), sizeof *x->keys);
    make_rows(s, x, d, d->d, 1, true);
    for (int64_t row = 0; row < d->d; ++row) {
        for (int64_t h = 0; h < d->h; ++h) {
            for (int64_t i = 0; i < d->d; ++i) mla_put(&x->a.q, row, h, i, 0.0);
            mla_put(&x->a.w, row, h, 0, h == 0 ? 1.0 : h == 1 ? -1.0 : 0.0);
        }
        mla_put(&x->a.q, row, 0, row, 1.0);
        mla_put(&x->a.q, row, 1, row, -1.0);
    }
    for (int32_t seq = 0; seq < MLA_N_SEQ; ++seq) {
        for (int64_t row = 0; row < d->d; ++row) {
            x->seq[row] = seq;
            x->len[row] = mla_seq_len[seq];
        }
        if (!select_rows(s, op, x)) return false;
        for (int64_t at = 0; at < mla_seq_len[seq]; ++at) {
            for (int64_t row = 0; row < d->d; ++row) {
                x->keys[(x->cu[seq] + at) * d->d + row] = mla_get(&x->a.scores, row, at, 0);
            }
        }
    }
    return d == whole || mla_ask(s, op, &before);
}

/* The keys against norm and rotation of what was written; the other style must not pass. */
static void judge_keys(struct mla_suite *s, const struct index_case *x, const struct index_dims *d)
{
    const int64_t n = x->cu[MLA_N_SEQ];
    const uint32_t act = bp_oracle_precision_of(d->act), kv = bp_oracle_precision_of(d->kv);
    double *in = mla_values(&x->w.k), *w = mla_values(&x->w.norm_w), *b = mla_values(&x->w.norm_b);
    double *co = mla_values(&x->cache.meta.rope_cos), *si = mla_values(&x->cache.meta.rope_sin);
    struct mla_judged j = mla_judged_alloc(n * d->d), swapped = mla_judged_alloc(n * d->d);
    int64_t token = 0;
    for (int seq = 0; seq < MLA_N_SEQ; ++seq) {
        for (int64_t at = 0; at < mla_seq_len[seq]; ++at) {
            bool shared = seq == MLA_N_SEQ - 1 && at < MLA_SHARED;
            const int64_t t = shared ? x->cu[MLA_N_SEQ - 2] + at : token++;
            const int64_t to = (x->cu[seq] + at) * d->d, half = d->r / 2;
            const double *k = in + t * d->d, *c = co + at * half, *si_row = si + at * half;
            bp_oracle_mla_key(BP_ORACLE_EXACT, k, w, b, d->d, d->r, c, si_row, d->style,
                              (double)MLA_EPS, j.exact + to);
            bp_oracle_mla_key(act, k, w, b, d->d, d->r, c, si_row, d->style, (double)MLA_EPS,
                              j.base + to);
            bp_oracle_mla_key(BP_ORACLE_EXACT, k, w, b, d->d, d->r, c, si_row, 1 - d->style,
                              (double)MLA_EPS, swapped.exact + to);
            bp_oracle_mla_key(act, k, w, b, d->d, d->r, c, si_row, 1 - d->style, (double)MLA_EPS,
                              swapped.base + to);
        }
    }
    for (int64_t i = 0; i < n * d->d; ++i) {
        j.base[i] = bp_oracle_round(j.base[i], kv);
        swapped.base[i] = bp_oracle_round(swapped.base[i], kv);
    }
    struct bp_oracle_compare c = {.got = x->keys, .exact = j.exact, .base = j.base};
    char why[256];
    c.n_rows = n;
    c.width = d->d;
    c.dtype = d->kv == BP_DT_F32 ? d->act : d->kv;
    c.precision = act;
    if (d->act == BP_DT_BF16) c.dtype = BP_DT_BF16;
    if (!bp_oracle_agree(&c, why, sizeof why)) (void)mla_fail(s, "6.5", "key_write: %s", why);
    c.exact = swapped.exact;
    c.base = swapped.base;
    if (bp_oracle_agree(&c, why, sizeof why)) {
        (void)mla_fail(s, "6.5", "the comparison cannot tell the two styles of rotation apart");
    }
    mla_judged_free(&j);
    mla_judged_free(&swapped);
    free(in);
    free(w);
    free(b);
    free(co);
    free(si);
}

/* Positions of row's list, ascending and inside the row; marks them in chosen[0..len). */
static bool read_choice(struct mla_suite *s, const struct index_case *x, int64_t row, bool *chosen)
{
    const int64_t n = x->len[row], k = x->a.top_k;
    const double got = mla_get(&x->a.idx_len, row, 0, 0);
    int64_t entry = 0;
    memset(chosen, 0, MLA_MAX_KV * sizeof *chosen);
    if (got != (n > k ? (double)k : -1.0)) {
        return mla_fail(s, "6.6", "row %lld of %lld keys has idx_len %g", (long long)row,
                        (long long)n, got);
    }
    for (int64_t at = 0; n > k && at < n && entry < k; ++at) {
        if (mla_get(&x->a.idx, row, entry, 0) != (double)mla_slot(&x->cache, x->seq[row], at))
            continue;
        chosen[at] = true;
        ++entry;
    }
    if (n <= k || entry == k) return true;
    return mla_fail(s, "6.6",
                    "row %lld: entry %lld (slot %g) is no key of the row, or out of order",
                    (long long)row, (long long)entry, mla_get(&x->a.idx, row, entry, 0));
}

struct scored {
    double exact[MLA_MAX_KV], base[MLA_MAX_KV], mag[MLA_MAX_KV];
};

struct placed {
    double score;
    int64_t at;
};

/* Larger scores first; of equal ones the earlier position. */
static int by_rank(const void *a, const void *b)
{
    const struct placed *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

/* Marks the k best of s[0..n), returns the score of the last of them. */
static double best_of(const double *s, int64_t n, int64_t k, bool *best)
{
    struct placed order[MLA_MAX_KV];
    for (int64_t i = 0; i < n; ++i) {
        order[i] = (struct placed){s[i], i};
        best[i] = false;
    }
    qsort(order, (size_t)n, sizeof order[0], by_rank);
    for (int64_t i = 0; i < k; ++i) best[order[i].at] = true;
    return order[k - 1].score;
}

/* With `exact` no flip is forgiven. Returns flips. */
static unsigned judge_choice(struct mla_suite *s, const struct index_case *x, int64_t row,
                             const struct scored *v, bool exact)
{
    const int64_t n = x->len[row], k = x->a.top_k;
    const double unit = bp_oracle_precision_of(x->a.q.dtype) == BP_ORACLE_F32 ? 0x1p-24 : 0x1p-9;
    bool chosen[MLA_MAX_KV], best[MLA_MAX_KV];
    double noise = 0.0, largest = 0.0;
    unsigned flips = 0;
    if (!read_choice(s, x, row, chosen) || n <= k) return 0;
    for (int64_t i = 0; i < n; ++i) {
        noise = fmax(noise, fmax(fabs(v->base[i] - v->exact[i]), v->mag[i] * unit));
        largest = fmax(largest, fabs(v->exact[i]));
    }
    const double threshold = best_of(v->exact, n, k, best);
    const double room = exact ? 0.0 : 4.0 * noise + 2.0 * bp_oracle_ulp(BP_DT_F32, largest);
    for (int64_t i = 0; i < n; ++i) {
        if (chosen[i] == best[i]) continue;
        ++flips;
        if (!exact && fabs(v->exact[i] - threshold) <= room) continue;
        (void)mla_fail(s, "6.6",
                       "row %lld: position %lld is %s, with score %.9g and threshold %.9g",
                       (long long)row, (long long)i, chosen[i] ? "chosen" : "left out", v->exact[i],
                       threshold);
        return flips;
    }
    return flips;
}

static void score_row(const struct index_case *x, const struct index_dims *d, int64_t row,
                      const double *q, const double *w, const double *rounded, struct scored *v)
{
    const uint32_t act = bp_oracle_precision_of(d->act);
    for (int64_t at = 0; at < x->len[row]; ++at) {
        const int64_t key = (x->cu[x->seq[row]] + at) * d->d;
        v->exact[at] =
            bp_oracle_mla_score(BP_ORACLE_EXACT, q + row * d->h * d->d, w + row * d->h,
                                x->keys + key, d->h, d->d, (double)x->a.scale, &v->mag[at]);
        v->base[at] = bp_oracle_mla_score(act, q + row * d->h * d->d, w + row * d->h, rounded + key,
                                          d->h, d->d, (double)x->a.scale, NULL);
    }
}

static void set_rows(struct mla_suite *s, struct index_case *x, const struct index_dims *d)
{
    memcpy(x->seq, row_seq, sizeof row_seq);
    memcpy(x->len, row_len, sizeof row_len);
    make_rows(s, x, d, N_ROW, d->top_k, true);
    x->a.scale = 1.0f / sqrtf((float)(d->h * d->d));
    struct bp_tensor q = mla_random(s, d->act, N_ROW, d->h, d->d, 0, 1.0);
    struct bp_tensor w = mla_random(s, BP_DT_F32, N_ROW, d->h, 0, 0, 1.0);
    for (int64_t i = 0; i < N_ROW * d->h; ++i) {
        const int64_t row = i / d->h, h = i % d->h;
        mla_put(&x->a.w, row, h, 0, mla_get(&w, row, h, 0));
        for (int64_t k = 0; k < d->d; ++k) mla_put(&x->a.q, row, h, k, mla_get(&q, row, h, k));
    }
}

/* A row alone gives what it gave in the batch; NaN in one row leaves the others alone. */
static void other_rows(struct mla_suite *s, struct mla_op *op, const struct index_case *x,
                       const struct index_dims *d)
{
    struct index_case one = *x, bad = *x;
    const struct bp_tensor *outs[] = {&one.a.idx_len, &one.a.scores};
    if (op->answer.verdict.determinism < BP_DET_BATCH) return;
    one.m.n_row = one.m.n_row_padded = 1;
    one.m.row_seq = one.m.row_seq_host = x->seq + 4;
    one.m.row_kv_len = one.m.row_kv_len_host = x->len + 4;
    one.a.meta = &one.m;
    one.a.q = mla_rows(&x->a.q, 4, 5);
    one.a.w = mla_rows(&x->a.w, 4, 5);
    one.a.idx = mla_tensor(s, BP_DT_I32, 1, d->top_k, 0, 0);
    one.a.idx_len = mla_tensor(s, BP_DT_I32, 1, 0, 0, 0);
    one.a.scores = mla_tensor(s, BP_DT_F32, 1, MLA_MAX_KV, 0, 0);
    ++op->l.epoch;
    if (!mla_run(s, op, do_select, BP_MLA_INDEX_OP_SELECT, &one.a, outs, 2, NULL, 0)) return;
    struct bp_tensor idx = mla_rows(&x->a.idx, 4, 5), scores = mla_rows(&x->a.scores, 4, 5);
    if ((d->top_k < MLA_MAX_KV && !mla_same_bits(&one.a.idx, &idx)) ||
        !mla_same_bits(&one.a.scores, &scores)) {
        (void)mla_fail(s, "6.8", "a row alone has another choice or other scores than in a batch");
    }
    bad.a.meta = &bad.m;
    bad.a.idx_len = mla_tensor(s, BP_DT_I32, N_ROW + MLA_N_PAD, 0, 0, 0);
    bad.a.scores = mla_tensor(s, BP_DT_F32, N_ROW + MLA_N_PAD, MLA_MAX_KV, 0, 0);
    for (int64_t k = 0; k < d->d; ++k) mla_put(&bad.a.q, 3, 0, k, NAN);
    if (!select_rows(s, op, &bad)) return;
    struct bp_tensor got = mla_rows(&bad.a.scores, 4, 5);
    if (!mla_same_bits(&got, &scores)) (void)mla_fail(s, "6.4", "NaN in row 3 reaches row 4");
}

static unsigned select_case(struct mla_suite *s, struct mla_op *op, const struct index_dims *d)
{
    struct index_case *x = bp_oracle_alloc(1, sizeof *x);
    struct scored *v = bp_oracle_alloc(1, sizeof *v);
    const struct bp_mla_problem p = index_problem(d);
    unsigned flips = 0;
    index_label(s, "select", d);
    if (mla_begin(s) && mla_ask(s, op, &p) && write_keys(s, op, x, d, 0) &&
        read_keys(s, op, x, d)) {
        judge_keys(s, x, d);
        set_rows(s, x, d);
        if (select_rows(s, op, x)) {
            double *q = mla_values(&x->a.q), *w = mla_values(&x->a.w);
            double *rounded =
                bp_oracle_rounded(x->keys, x->cu[MLA_N_SEQ] * d->d, bp_oracle_precision_of(d->act));
            for (int64_t row = 0; row < N_ROW; ++row) {
                if (x->len[row] == 0) continue;
                struct bp_tensor got = mla_rows(&x->a.scores, row, row + 1);
                got.dim[1] = x->len[row];
                score_row(x, d, row, q, w, rounded, v);
                (void)mla_judge(s, "scores", &got, 1, v->exact, v->base, v->mag, BP_DT_F32,
                                bp_oracle_precision_of(d->act));
                flips += judge_choice(s, x, row, v, false);
            }
            free(q);
            free(w);
            free(rounded);
            other_rows(s, op, x, d);
        }
    }
    free(x->keys);
    free(x);
    free(v);
    return flips;
}

/* Few distinct keys, many positions: what is equal is chosen from the front, at every threshold. */
static void tie_case(struct mla_suite *s, struct mla_op *op, const struct index_dims *d)
{
    struct index_case *x = bp_oracle_alloc(1, sizeof *x);
    struct scored *v = bp_oracle_alloc(1, sizeof *v);
    const struct bp_mla_problem p = index_problem(d);
    index_label(s, "select ties", d);
    if (mla_begin(s) && mla_ask(s, op, &p) && write_keys(s, op, x, d, 5) &&
        read_keys(s, op, x, d)) {
        set_rows(s, x, d);
        if (select_rows(s, op, x)) {
            double *q = mla_values(&x->a.q), *w = mla_values(&x->a.w);
            for (int64_t row = 0; row < N_ROW; ++row) {
                score_row(x, d, row, q, w, x->keys, v);
                (void)judge_choice(s, x, row, v, true);
            }
            free(q);
            free(w);
        }
    }
    free(x->keys);
    free(x);
    free(v);
}

void case_mla_index(struct kit *kit)
{
    static const uint32_t heads[] = {2, 8, 32}, top_ks[] = {64, 1, 63, 256, 999, 1000, 2048};
    struct mla_suite *s = bp_oracle_alloc(1, sizeof *s);
    struct mla_op op;
    unsigned flips = 0;
    if (!mla_suite_open(s, kit, "bp.mla.index")) {
        free(s);
        return;
    }
    mla_op_own(s, &op);
    for (int k = 0; k < 3 * 2 * 9; ++k) {
        const bool odd = k / 9 % 2 == 1;
        struct index_dims d = {heads[k / 18], odd ? 40 : 128, odd ? 16 : 64, 0, 0, 0, 0};
        d.style = k % 2 == 0 ? BP_ROPE_INTERLEAVED : BP_ROPE_HALF;
        d.top_k = top_ks[k % 7];
        d.act = mla_dtypes[k % 3];
        d.kv = mla_dtypes[k / 3 % 3];
        flips += select_case(s, &op, &d);
        mla_case_end(s);
    }
    for (int k = 0; k < 14; ++k) {
        struct index_dims d = {8, 128, 64, 0, top_ks[k % 7], BP_DT_F32, mla_dtypes[k % 3]};
        tie_case(s, &op, &d);
        mla_case_end(s);
    }
    case_real_index(s, &op);
    if (flips != 0)
        kit_note(kit, "bp.mla.index", "%u choices differed below the precision in use", flips);
    mla_op_done(s, &op);
    mla_suite_close(s);
    free(s);
}
