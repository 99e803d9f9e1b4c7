/* case_real_index.c - see case_real.h: the index over 16k tokens. Scores are compared with the oracle at a few positions of
 * each row; the choice has to be exact on the scores that the op gives out. SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases/case_real.h"
#include "cases/mla_grid.h"

enum { N_SEQ = 5, N_ROW = 7, N_PAD = 2, BLOCK = 64, N_SAMPLE = 48, DIM = 128, ROPE = 64 };

static const int32_t seq_len[N_SEQ] = {1, 2048, 2049, 1000, 16384};
static const int32_t row_seq[N_ROW] = {0, 1, 2, 3, 4, 4, 2},
                     row_len[N_ROW] = {1, 2048, 2049, 1000, 16384, 8191, 0};

struct index_state {
    struct mla_cache cache;
    struct bp_mla_key_write_args w;
    struct bp_mla_decode_meta m;
    struct bp_mla_select_args a;
    int32_t seq[N_ROW + N_PAD], len[N_ROW + N_PAD];
    uint32_t n_head, act, kv;
};

static int32_t do_key_write(const struct mla_op *op, const void *a, struct bp_error *err)
{
    return ((const struct bp_mla_index_ops *)(const void *)op->ref.vt)
        ->key_write(op->ref.self, &op->l, a, err);
}
static int32_t do_select(const struct mla_op *op, const void *a, struct bp_error *err)
{
    return ((const struct bp_mla_index_ops *)(const void *)op->ref.vt)
        ->select(op->ref.self, &op->l, a, err);
}

static struct bp_mla_problem problem_of(const struct index_state *x, uint32_t top_k)
{
    const struct mla_dims d = {16, 128, ROPE, 128, 512, x->act, x->kv};
    struct bp_mla_problem p = mla_problem(&d);
    p.max_tok = 0;
    for (int i = 0; i < N_SEQ; ++i) p.max_tok += (uint32_t)seq_len[i];
    p.max_kv = p.max_slab = 16384;
    p.n_index_head = x->n_head;
    p.index_dim = DIM;
    p.index_rope_style = BP_ROPE_INTERLEAVED;
    p.top_k = top_k;
    return p;
}

static bool write_keys(struct mla_suite *s, struct mla_op *op, const struct bp_mla_problem *p,
                       struct index_state *x)
{
    struct bp_kv_layout layout = {.h = BP_HDR(struct bp_kv_layout, name)};
    const struct bp_mla_index_ops *vt = (const void *)op->ref.vt;
    if (vt->layouts(op->ref.self, p, 0, &layout) != BP_OK)
        return mla_fail(s, "6.13", "serves the problem, but lists no layout");
    mla_cache_init(s, &x->cache, &layout, BLOCK, N_SEQ, seq_len, -1, 0, ROPE);
    x->w = (struct bp_mla_key_write_args){.h = BP_HDR(struct bp_mla_key_write_args, rope_style),
                                          .meta = &x->cache.meta,
                                          .pool = x->cache.pool,
                                          .eps = MLA_EPS,
                                          .rope_style = BP_ROPE_INTERLEAVED};
    x->w.k = mla_random(s, x->act, x->cache.meta.n_tok, DIM, 0, 8, 1.0);
    x->w.norm_w = mla_random(s, BP_DT_F32, DIM, 0, 0, 0, 0.7);
    x->w.norm_b = mla_random(s, BP_DT_F32, DIM, 0, 0, 0, 0.2);
    const struct bp_tensor *inouts[] = {&x->w.pool};
    return mla_run(s, op, do_key_write, BP_MLA_INDEX_OP_KEY_WRITE, &x->w, NULL, 0, inouts, 1);
}

static void make_rows(struct mla_suite *s, struct index_state *x, uint32_t top_k)
{
    const int64_t n = N_ROW + N_PAD;
    memcpy(x->seq, row_seq, sizeof row_seq);
    memcpy(x->len, row_len, sizeof row_len);
    x->m = (struct bp_mla_decode_meta){.h = BP_HDR(struct bp_mla_decode_meta, row_kv_len_host),
                                       .common = &x->cache.meta,
                                       .n_row = N_ROW,
                                       .n_row_padded = (uint32_t)n,
                                       .max_kv = 16384};
    x->m.row_seq = x->m.row_seq_host = x->seq;
    x->m.row_kv_len = x->m.row_kv_len_host = x->len;
    x->a = (struct bp_mla_select_args){.h = BP_HDR(struct bp_mla_select_args, top_k),
                                       .meta = &x->m,
                                       .pool = x->cache.pool,
                                       .scale = 1.0f / sqrtf((float)(x->n_head * DIM)),
                                       .top_k = top_k};
    x->a.q = mla_random(s, x->act, n, x->n_head, DIM, 8, 1.0);
    x->a.w = mla_random(s, BP_DT_F32, n, x->n_head, 0, 0, 1.0);
    for (int64_t i = 0; i < x->n_head * DIM; ++i) { /* padded rows hold anything */
        mla_put(&x->a.q, N_ROW, i / DIM, i % DIM, NAN);
        mla_put(&x->a.q, N_ROW + 1, i / DIM, i % DIM, NAN);
    }
    x->a.idx = mla_tensor(s, BP_DT_I32, n, top_k, 0, 0);
    x->a.idx_len = mla_tensor(s, BP_DT_I32, n, 0, 0, 0);
    x->a.scores = mla_tensor(s, BP_DT_F32, n, 16384, 0, 0);
}

struct placed {
    double score;
    int64_t at;
};

static int by_rank(const void *a, const void *b)
{
    const struct placed *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

static int by_position(const void *a, const void *b)
{
    const struct placed *x = a, *y = b;
    return x->at < y->at ? -1 : x->at > y->at;
}

/* The list is that of the best scores that were given out, in the order of positions. */
static void judge_choice(struct mla_suite *s, const struct index_state *x, int64_t row)
{
    const int64_t n = x->len[row], k = x->a.top_k;
    const double got = mla_get(&x->a.idx_len, row, 0, 0);
    if (got != (n > k ? (double)k : -1.0)) {
        (void)mla_fail(s, "6.6", "row %lld of %lld keys has idx_len %g", (long long)row,
                       (long long)n, got);
        return;
    }
    if (n <= k) return;
    struct placed *all = bp_oracle_alloc((size_t)n, sizeof *all);
    for (int64_t i = 0; i < n; ++i) all[i] = (struct placed){mla_get(&x->a.scores, row, i, 0), i};
    qsort(all, (size_t)n, sizeof *all, by_rank);
    qsort(all, (size_t)k, sizeof *all, by_position);
    for (int64_t i = 0; i < k && !s->failed; ++i) {
        const double slot = mla_get(&x->a.idx, row, i, 0),
                     want = (double)mla_slot(&x->cache, x->seq[row], all[i].at);
        if (slot != want)
            (void)mla_fail(s, "6.6", "row %lld entry %lld: got slot %g, want %g (position %lld)",
                           (long long)row, (long long)i, slot, want, (long long)all[i].at);
    }
    free(all);
}

/* Scores at a few positions, of keys that the oracle makes from what was written. */
static void judge_scores(struct mla_suite *s, const struct index_state *x, int64_t row,
                         const double *q, const double *w)
{
    const uint32_t act = bp_oracle_precision_of(x->act), kv = bp_oracle_precision_of(x->kv);
    const int64_t n = x->len[row] < N_SAMPLE ? x->len[row] : N_SAMPLE;
    double *norm_w = mla_values(&x->w.norm_w), *norm_b = mla_values(&x->w.norm_b);
    double *exact = bp_oracle_alloc((size_t)(3 * n), sizeof *exact), keys[2][DIM];
    struct bp_tensor got = mla_tensor(s, BP_DT_F32, n, 0, 0, 0);
    int64_t first = 0;
    for (int i = 0; i < x->seq[row]; ++i) first += seq_len[i];
    for (int64_t i = 0; i < n; ++i) {
        const int64_t at = n < N_SAMPLE ? i : i * (x->len[row] - 1) / (N_SAMPLE - 1);
        struct bp_tensor k = mla_rows(&x->w.k, first + at, first + at + 1);
        struct bp_tensor c = mla_rows(&x->cache.meta.rope_cos, at, at + 1),
                         si = mla_rows(&x->cache.meta.rope_sin, at, at + 1);
        double *in = mla_values(&k), *co = mla_values(&c), *sn = mla_values(&si);
        bp_oracle_mla_key(BP_ORACLE_EXACT, in, norm_w, norm_b, DIM, ROPE, co, sn,
                          BP_ROPE_INTERLEAVED, (double)MLA_EPS, keys[0]);
        bp_oracle_mla_key(act, in, norm_w, norm_b, DIM, ROPE, co, sn, BP_ROPE_INTERLEAVED,
                          (double)MLA_EPS, keys[1]);
        for (int e = 0; e < DIM; ++e)
            keys[1][e] = bp_oracle_round(bp_oracle_round(keys[1][e], kv), act);
        exact[i] = bp_oracle_mla_score(BP_ORACLE_EXACT, q, w, keys[0], x->n_head, DIM,
                                       (double)x->a.scale, &exact[2 * n + i]);
        exact[n + i] =
            bp_oracle_mla_score(act, q, w, keys[1], x->n_head, DIM, (double)x->a.scale, NULL);
        mla_put(&got, i, 0, 0, mla_get(&x->a.scores, row, at, 0));
        free(in);
        free(co);
        free(sn);
    }
    (void)mla_judge(s, "scores", &got, 1, exact, exact + n, exact + 2 * n, BP_DT_F32, act);
    free(norm_w);
    free(norm_b);
    free(exact);
}

static void index_case(struct mla_suite *s, struct mla_op *op, struct index_state *x,
                       uint32_t top_k)
{
    const struct bp_mla_problem p = problem_of(x, top_k);
    (void)snprintf(s->label, sizeof s->label,
                   "select of 16k keys, %u heads, top_k %u, dtypes %u and %u", x->n_head, top_k,
                   x->act, x->kv);
    if (!mla_begin(s) || !mla_ask(s, op, &p) || !write_keys(s, op, &p, x)) return;
    make_rows(s, x, top_k);
    const struct bp_tensor *outs[] = {&x->a.idx_len, &x->a.scores};
    if (!mla_run(s, op, do_select, BP_MLA_INDEX_OP_SELECT, &x->a, outs, 2, NULL, 0)) return;
    double *q = mla_values(&x->a.q), *w = mla_values(&x->a.w);
    for (int64_t row = 0; row < N_ROW && !s->failed; ++row) {
        kit_at(s->kit, "4.10", s->bench.iface, s->label, "case: %s, row %lld", s->label,
               (long long)row);
        judge_choice(s, x, row);
        if (x->len[row] > 0 && !s->failed)
            judge_scores(s, x, row, q + row * x->n_head * DIM, w + row * x->n_head);
    }
    free(q);
    free(w);
}

void case_real_index(struct mla_suite *s, struct mla_op *op)
{
    static const uint32_t heads[] = {32, 64, 8}, top_ks[] = {2048, 512},
                          acts[] = {BP_DT_BF16, BP_DT_F32, BP_DT_F16};
    for (uint32_t i = 0; s->kit->o->full && i < 6; ++i) {
        struct index_state *x = bp_oracle_alloc(1, sizeof *x);
        x->n_head = heads[i % 3];
        x->act = acts[i % 3];
        x->kv = acts[(i + i / 3) % 3];
        index_case(s, op, x, top_ks[i / 3]);
        mla_case_end(s);
        free(x);
    }
}
