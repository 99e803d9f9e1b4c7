/* case_mla.c - every provider of bp.mla.prefill and bp.mla.decode against the oracle.
 * Grid: 1 to 20 heads; (P, V) of real models and one pair that divides nothing; C 512 and 80; sequences of 1, 63, 64,
 * 65 and 1000 tokens over shuffled blocks, one of them sharing a prefix; empty and padded rows; recycled blocks full of
 * NaN; dense rows and lists. Beside it: case_mla_common.c, case_mla_index.c.
 * SPDX-License-Identifier: MIT */
#include "cases/case_real.h"
#include "cases/mla_grid.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int32_t do_run(const struct mla_op *op, const void *args, struct bp_error *err)
{
    const struct bp_mla_prefill_args *a = args;
    const struct bp_mla_prefill_ops *vt = (const void *)op->ref.vt;
    BP_TRY(vt->plan(op->ref.self, &op->l, a->meta, err));
    return vt->run(op->ref.self, &op->l, a, err);
}
static int32_t do_context(const struct mla_op *op, const void *args, struct bp_error *err)
{
    const struct bp_mla_prefill_args *a = args;
    const struct bp_mla_prefill_ops *vt = (const void *)op->ref.vt;
    BP_TRY(vt->plan(op->ref.self, &op->l, a->meta, err));
    return vt->run_context(op->ref.self, &op->l, a, err);
}
static int32_t do_decode(const struct mla_op *op, const void *args, struct bp_error *err)
{
    const struct bp_mla_decode_args *a = args;
    const struct bp_mla_decode_ops *vt = (const void *)op->ref.vt;
    BP_TRY(vt->plan(op->ref.self, &op->l, a->meta, err));
    return vt->run(op->ref.self, &op->l, a, err);
}

/* ---- prefill ---- */

enum { N_SEG = 8, FEW_HEADS = 3 /* where calls without lse are tried */ };
static const int32_t seg_q[N_SEG] = {1, 7, 64, 3, 0, 2, 33, 1},
                     seg_k[N_SEG] = {1, 63, 64, 65, 4, 1000, 33, 64};
/* run_context may meet segments without keys */
static const int32_t context_k[N_SEG] = {1, 0, 64, 65, 4, 1000, 0, 63};

struct attended {
    struct mla_judged out, lse;
};

static struct attended attended_alloc(int64_t n, int64_t h, int64_t width)
{
    struct attended x;
    double **all[] = {&x.out.exact, &x.out.base, &x.out.mag, &x.lse.exact, &x.lse.base, &x.lse.mag};
    for (int i = 0; i < 6; ++i) {
        *all[i] = bp_oracle_alloc((size_t)(n * h * (i < 3 ? width : 1)), sizeof(double));
    }
    return x;
}

static void attended_free(struct attended *x)
{
    mla_judged_free(&x->out);
    mla_judged_free(&x->lse);
}

/* One row and head at both precisions, into place. Arrays of pointers: [0] exact, [1] rounded. */
static void attend_both(struct attended *x, int64_t at, struct bp_oracle_attend *a,
                        double *const q[2], const double *const *keys[2],
                        const double *const *values[2], uint32_t precision)
{
    for (int k = 0; k < 2; ++k) {
        a->q = q[k];
        a->keys = keys[k];
        a->values = values[k];
        double *out = (k == 0 ? x->out.exact : x->out.base) + at * a->v_dim;
        double *mag = k == 0 ? x->out.mag + at * a->v_dim : NULL;
        double *lse = (k == 0 ? x->lse.exact : x->lse.base) + at;
        *lse = bp_oracle_mla_attend(k == 0 ? BP_ORACLE_EXACT : precision, a, out, mag,
                                    k == 0 ? x->lse.mag + at : NULL);
    }
}

/* One NaN each in a query, a key and a value: rows of other segments, and those that do not see them yet, stay clean. */
static void plant_nans(struct mla_suite *s, const struct bp_mla_prefill_args *a,
                       const struct mla_dims *d, const int32_t *cu_q, const int32_t *cu_k)
{
    s->has_nan = true;
    mla_put(&a->q, cu_q[3] + 1, 0, 5, NAN);
    if (cu_k[2] - cu_k[1] > 60) mla_put(&a->k, cu_k[1] + 60, d->h - 1, 7, NAN);
    mla_put(&a->v, cu_k[2] + 43, 0, 3, NAN);
}

static void prefill_case(struct mla_suite *s, struct mla_op *op, const struct mla_dims *d,
                         bool causal, bool with_nan)
{
    const struct bp_mla_problem p = mla_problem(d);
    const int32_t *n_k = causal ? seg_k : context_k;
    const int64_t qk = d->p + d->r;
    int32_t cu_q[N_SEG + 1] = {0}, cu_k[N_SEG + 1] = {0}, zeros[N_SEG] = {0};
    struct mla_cache none = {.n_seqs = 1};
    mla_label(s,
              causal     ? with_nan ? "run with NaN" : "run"
              : with_nan ? "run_context with NaN"
                         : "run_context",
              d);
    if (!mla_begin(s) || !mla_ask(s, op, &p)) return;
    for (int i = 0; i < N_SEG; ++i) {
        cu_q[i + 1] = cu_q[i] + seg_q[i];
        cu_k[i + 1] = cu_k[i] + n_k[i];
    }
    struct bp_mla_prefill_meta m = {.h = BP_HDR(struct bp_mla_prefill_meta, kv_begin_host),
                                    .common = &none.meta,
                                    .n_seg = N_SEG,
                                    .n_q = (uint32_t)cu_q[N_SEG],
                                    .n_k = (uint32_t)cu_k[N_SEG],
                                    .max_q = 64,
                                    .max_k = 1000};
    m.cu_q = m.cu_q_host = cu_q;
    m.cu_k = m.cu_k_host = cu_k;
    m.seq = m.seq_host = m.kv_begin = m.kv_begin_host = zeros;
    struct bp_mla_prefill_args a = {.h = BP_HDR(struct bp_mla_prefill_args, reserved), .meta = &m};
    a.scale = 1.7f / sqrtf((float)qk);
    a.q = mla_random(s, d->act, m.n_q, d->h, qk, 8, 1.0);
    a.k = mla_random(s, d->act, m.n_k, d->h, qk, 0, 1.0);
    a.v = mla_random(s, d->act, m.n_k, d->h, d->v, 8, 1.0);
    if (with_nan) plant_nans(s, &a, d, cu_q, cu_k);
    a.out = mla_tensor(s, d->act, m.n_q, d->h, d->v, 8);
    a.lse = mla_tensor(s, BP_DT_F32, m.n_q, d->h, 0, 0);
    const struct bp_tensor *outs[] = {&a.out, &a.lse};
    if (!mla_run(s, op, causal ? do_run : do_context,
                 causal ? BP_MLA_PREFILL_OP_RUN : BP_MLA_PREFILL_OP_RUN_CONTEXT, &a, outs, 2, NULL,
                 0))
        return;
    /* The inputs have the provider's dtype already: exact and rounded are the same numbers. */
    double *q = mla_values(&a.q), *k = mla_values(&a.k), *v = mla_values(&a.v);
    struct attended x = attended_alloc(m.n_q, d->h, d->v);
    const double **keys = bp_oracle_alloc(1000, sizeof *keys);
    const double **values = bp_oracle_alloc(1000, sizeof *values);
    const double *const *both_k[2] = {keys, keys}, *const * both_v[2] = {values, values};
    const uint32_t precision = bp_oracle_precision_of(d->act);
    for (int i = 0; i < N_SEG; ++i) {
        for (int64_t h = 0; h < d->h; ++h) {
            for (int64_t key = 0; key < n_k[i]; ++key) {
                keys[key] = k + ((cu_k[i] + key) * d->h + h) * qk;
                values[key] = v + ((cu_k[i] + key) * d->h + h) * d->v;
            }
            for (int64_t row = 0; row < seg_q[i]; ++row) {
                int64_t at = (cu_q[i] + row) * d->h + h;
                double *both_q[2] = {q + at * qk, q + at * qk};
                struct bp_oracle_attend one = {.n = causal ? n_k[i] - seg_q[i] + row + 1 : n_k[i]};
                one.qk_dim = qk;
                one.v_dim = d->v;
                one.scale = (double)a.scale;
                attend_both(&x, at, &one, both_q, both_k, both_v, precision);
            }
        }
    }
    if (mla_judge(s, "out", &a.out, m.n_q, x.out.exact, x.out.base, x.out.mag, d->act, precision) &&
        mla_judge(s, "lse", &a.lse, m.n_q, x.lse.exact, x.lse.base, x.lse.mag, BP_DT_F32,
                  BP_ORACLE_F32) &&
        causal && d->h <= FEW_HEADS) { /* nobody asked for it */
        a.lse = (struct bp_tensor){0};
        if (mla_run(s, op, do_run, BP_MLA_PREFILL_OP_RUN, &a, outs, 1, NULL, 0))
            (void)mla_judge(s, "out, without lse", &a.out, m.n_q, x.out.exact, x.out.base,
                            x.out.mag, d->act, precision);
    }
    attended_free(&x);
    free(keys);
    free(values);
    free(q);
    free(k);
    free(v);
}

/* ---- decode ---- */

enum { N_ROW = 9, TOP_K = 64 };
/* Full rows of every sequence, two that see less than is cached, one that sees nothing. */
static const int32_t row_seq[N_ROW] = {0, 1, 2, 3, 4, 5, 4, 5, 2},
                     row_len[N_ROW] = {1, 63, 64, 65, 1000, 700, 77, 641, 0};

struct decode_rows {
    int32_t seq[N_ROW + MLA_N_PAD], len[N_ROW + MLA_N_PAD];
    struct bp_mla_decode_meta m;
    struct bp_mla_decode_args a;
    int32_t list[N_ROW][MLA_MAX_KV]; /* positions that each row attends */
    int64_t n_list[N_ROW];
    double *rows[2]; /* of the cache, (n_k, C + R): exact, rounded */
};

static void make_rows(struct mla_suite *s, struct decode_rows *r, const struct mla_filled *x,
                      const struct mla_dims *d)
{
    const int64_t width = d->c + d->r, n_k = x->cu[MLA_N_SEQ];
    memset(r, 0, sizeof *r);
    memcpy(r->seq, row_seq, sizeof row_seq);
    memcpy(r->len, row_len, sizeof row_len);
    r->m = (struct bp_mla_decode_meta){.h = BP_HDR(struct bp_mla_decode_meta, row_kv_len_host),
                                       .common = &x->cache.meta,
                                       .n_row = N_ROW,
                                       .n_row_padded = N_ROW + MLA_N_PAD,
                                       .max_kv = MLA_MAX_KV};
    r->m.row_seq = r->m.row_seq_host = r->seq;
    r->m.row_kv_len = r->m.row_kv_len_host = r->len;
    r->a = (struct bp_mla_decode_args){
        .h = BP_HDR(struct bp_mla_decode_args, reserved), .meta = &r->m, .pool = x->cache.pool};
    r->a.scale = 0.08f;
    r->a.q = mla_random(s, d->act, N_ROW + MLA_N_PAD, d->h, width, 8, 1.0);
    r->a.out = mla_tensor(s, d->act, N_ROW + MLA_N_PAD, d->h, d->c, 16);
    r->a.lse = mla_tensor(s, BP_DT_F32, N_ROW + MLA_N_PAD, d->h, 0, 0);
    for (int64_t i = N_ROW * d->h; i < (N_ROW + MLA_N_PAD) * d->h; ++i) {
        for (int64_t k = 0; k < width; ++k) mla_put(&r->a.q, i / d->h, i % d->h, k, NAN);
    }
    r->rows[0] = bp_oracle_alloc((size_t)(n_k * width), sizeof(double));
    for (int64_t k = 0; k < n_k; ++k) {
        memcpy(r->rows[0] + k * width, x->latent + k * d->c, d->c * sizeof(double));
        memcpy(r->rows[0] + k * width + d->c, x->rope + k * d->r, d->r * sizeof(double));
    }
    r->rows[1] = bp_oracle_rounded(r->rows[0], n_k * width, bp_oracle_precision_of(d->act));
}

/* All keys of every row; or, in turn, all keys (-1), a list, a list with gaps, an empty list. */
static void make_lists(struct mla_suite *s, struct decode_rows *r, const struct mla_filled *x,
                       bool sparse)
{
    if (sparse) {
        r->a.idx = mla_tensor(s, BP_DT_I32, N_ROW + MLA_N_PAD, TOP_K, 0, 0);
        r->a.idx_len = mla_tensor(s, BP_DT_I32, N_ROW + MLA_N_PAD, 0, 0, 0);
    }
    for (int64_t row = 0; row < N_ROW; ++row) {
        const int kind = sparse ? (int)((row + 2) % 4) : 0;
        int64_t n = 0, entry = 0;
        for (int32_t at = 0; at < row_len[row] && entry < TOP_K * (kind != 0) + (kind == 0); ++at) {
            if (kind == 3) break;
            if (kind == 0) {
                r->list[row][n++] = at;
                continue;
            }
            if (row_len[row] > TOP_K && kit_rng_below(&s->rng, (uint64_t)row_len[row]) > 48)
                continue;
            if (kind == 2 && entry % 3 == 1) ++entry; /* stays -1 */
            if (entry == TOP_K) break;
            mla_put(&r->a.idx, row, entry++, 0, (double)mla_slot(&x->cache, row_seq[row], at));
            r->list[row][n++] = at;
        }
        r->n_list[row] = n;
        if (sparse) mla_put(&r->a.idx_len, row, 0, 0, kind == 0 ? -1.0 : (double)entry);
    }
}

static void judge_rows(struct mla_suite *s, struct mla_op *op, const struct decode_rows *r,
                       const struct mla_filled *x, const struct mla_dims *d)
{
    const int64_t width = d->c + d->r;
    const uint32_t precision = bp_oracle_precision_of(d->act);
    struct attended want = attended_alloc(N_ROW, d->h, d->c);
    double *q = mla_values(&r->a.q);
    const double **keys[2] = {bp_oracle_alloc(MLA_MAX_KV, sizeof *keys[0]),
                              bp_oracle_alloc(MLA_MAX_KV, sizeof *keys[0])};
    const double *const *both[2] = {keys[0], keys[1]};
    for (int64_t row = 0; row < N_ROW; ++row) {
        for (int64_t k = 0; k < r->n_list[row]; ++k) {
            int64_t at = (x->cu[row_seq[row]] + r->list[row][k]) * width;
            keys[0][k] = r->rows[0] + at;
            keys[1][k] = r->rows[1] + at;
        }
        for (int64_t h = 0; h < d->h; ++h) {
            double *both_q[2] = {q + (row * d->h + h) * width, q + (row * d->h + h) * width};
            struct bp_oracle_attend one = {.n = r->n_list[row]};
            one.qk_dim = width;
            one.v_dim = d->c;
            one.scale = (double)r->a.scale;
            attend_both(&want, row * d->h + h, &one, both_q, both, both, precision);
        }
    }
    struct bp_tensor out = mla_rows(&r->a.out, 0, N_ROW), lse = mla_rows(&r->a.lse, 0, N_ROW);
    if (mla_judge(s, "out", &out, N_ROW, want.out.exact, want.out.base, want.out.mag, d->act,
                  precision) &&
        mla_judge(s, "lse", &lse, N_ROW, want.lse.exact, want.lse.base, want.lse.mag, BP_DT_F32,
                  BP_ORACLE_F32) &&
        d->h <= FEW_HEADS) { /* nobody asked for it */
        struct bp_mla_decode_args a = r->a;
        a.lse = (struct bp_tensor){0};
        a.out = mla_tensor(s, d->act, N_ROW + MLA_N_PAD, d->h, d->c, 0);
        out = mla_rows(&a.out, 0, N_ROW);
        const struct bp_tensor *outs[] = {&a.out};
        if (mla_run(s, op, do_decode, BP_MLA_DECODE_OP_RUN, &a, outs, 1, NULL, 0))
            (void)mla_judge(s, "out, without lse", &out, N_ROW, want.out.exact, want.out.base,
                            want.out.mag, d->act, precision);
    }
    attended_free(&want);
    free(keys[0]);
    free(keys[1]);
    free(q);
}

/* Row by row: what a provider that claims BATCH gives for a row alone is what it gave in the batch. */
static void rows_alone(struct mla_suite *s, struct mla_op *op, struct decode_rows *r,
                       const struct mla_dims *d)
{
    if (op->answer.verdict.determinism < BP_DET_BATCH) return;
    for (int64_t row = 3; row < N_ROW; row += 3) {
        struct bp_mla_decode_meta m = r->m;
        struct bp_mla_decode_args a = r->a;
        struct bp_tensor want = mla_rows(&r->a.out, row, row + 1),
                         want_lse = mla_rows(&r->a.lse, row, row + 1);
        m.n_row = m.n_row_padded = 1;
        m.row_seq = m.row_seq_host = r->seq + row;
        m.row_kv_len = m.row_kv_len_host = r->len + row;
        a.meta = &m;
        a.q = mla_rows(&r->a.q, row, row + 1);
        a.out = mla_tensor(s, d->act, 1, d->h, d->c, 0);
        a.lse = mla_tensor(s, BP_DT_F32, 1, d->h, 0, 0);
        if (a.idx.data != NULL) {
            a.idx = mla_rows(&r->a.idx, row, row + 1);
            a.idx_len = mla_rows(&r->a.idx_len, row, row + 1);
        }
        const struct bp_tensor *outs[] = {&a.out, &a.lse};
        ++op->l.epoch;
        if (!mla_run(s, op, do_decode, BP_MLA_DECODE_OP_RUN, &a, outs, 2, NULL, 0)) return;
        if (!mla_same_bits(&a.out, &want) || !mla_same_bits(&a.lse, &want_lse)) {
            (void)mla_fail(s, "6.8", "row %lld alone has other bits than in a batch",
                           (long long)row);
        }
    }
}

/* A layout that both can use, in the order of the one that writes. */
static bool agree_on_layout(const struct mla_op *common, const struct mla_op *op,
                            const struct bp_mla_problem *p, struct bp_kv_layout *out)
{
    const struct bp_mla_common_ops *vt = (const void *)common->ref.vt;
    for (uint32_t i = 0; vt->layouts(common->ref.self, p, i, out) == BP_OK; ++i) {
        for (uint32_t k = 0; k < op->answer.verdict.n_layouts; ++k) {
            if (op->answer.layouts[k] == out->id) return true;
        }
    }
    return false;
}

static void decode_case(struct mla_suite *s, struct mla_op *common, struct mla_op *op,
                        const struct mla_dims *d, bool with_nan)
{
    struct mla_filled x;
    struct decode_rows r;
    struct bp_kv_layout layout = {.h = BP_HDR(struct bp_kv_layout, name)};
    struct bp_mla_problem p = mla_problem(d);
    struct mla_dims exact =
        *d; /* the cache is written and read in f32, so that its numbers are known exactly */
    exact.act = BP_DT_F32;
    struct bp_mla_problem fill = mla_problem(&exact);
    p.top_k = TOP_K;
    mla_label(s, with_nan ? "run with NaN in the cache" : "run", d);
    if (!mla_begin(s) || !mla_ask(s, op, &p)) return;
    if (!mla_ask(s, common, &fill) || !agree_on_layout(common, op, &fill, &layout)) {
        (void)mla_fail(s, "6.13", "nobody can write a cache for it");
        return;
    }
    s->has_nan = with_nan;
    if (!mla_fill(s, common, &x, &exact, &layout)) return;
    p.layout_id = layout.id;
    if (mla_ask(s, op, &p)) {
        make_rows(s, &r, &x, d);
        for (int sparse = 0; sparse < 2; ++sparse) {
            const struct bp_tensor *outs[] = {&r.a.out, &r.a.lse};
            make_lists(s, &r, &x, sparse == 1);
            ++op->l.epoch;
            if (!mla_run(s, op, do_decode, BP_MLA_DECODE_OP_RUN, &r.a, outs, 2, NULL, 0)) break;
            judge_rows(s, op, &r, &x, d);
            if (!s->failed) rows_alone(s, op, &r, d);
        }
        free(r.rows[0]);
        free(r.rows[1]);
    }
    mla_filled_free(&x);
}

/* ---- all ---- */

void case_mla_prefill(struct kit *k)
{
    struct mla_suite *s = bp_oracle_alloc(1, sizeof *s);
    struct mla_op op;
    if (!mla_suite_open(s, k, "bp.mla.prefill")) {
        free(s);
        return;
    }
    mla_op_own(s, &op);
    for (int i = 0; i < 5 * 4 * 3; ++i) {
        struct mla_dims d = {
            mla_heads[i / 12], mla_pv[i / 3 % 4].p, 64, mla_pv[i / 3 % 4].v, 512, 0, 0};
        if (i / 3 % 4 == 3) d.r = 16;
        d.act = mla_dtypes[i % 3];
        d.kv = mla_dtypes[(i + 1) % 3];
        prefill_case(s, &op, &d, true, i % 5 == 2);
        mla_case_end(s);
        prefill_case(s, &op, &d, false, i % 5 == 2);
        mla_case_end(s);
    }
    case_real_prefill(s, &op);
    mla_op_done(s, &op);
    mla_suite_close(s);
    free(s);
}

/* Who writes the cache: the plugin, if it can on the CPU in a layout that its decoder takes; else the reference. */
static struct kit_plugin *writer_of(struct mla_suite *s)
{
    return s->kit->device == NULL && kit_offers(s->bench.subject.desc, "bp.mla.common") &&
                   s->bench.subject.desc->kind == BP_KIND_BACKEND
               ? &s->bench.subject
               : &s->bench.reference;
}

static bool find_writer(struct mla_suite *s, struct mla_op *common)
{
    struct kit_plugin *p = writer_of(s);
    memset(common, 0, sizeof *common);
    common->iface = "bp.mla.common";
    return kit_make_op(s->kit, p, "bp.mla.common", kit_host_device(), NULL, &common->ref);
}

void case_mla_decode(struct kit *k)
{
    struct mla_suite *s = bp_oracle_alloc(1, sizeof *s);
    struct mla_op op, common;
    if (!mla_suite_open(s, k, "bp.mla.decode")) {
        free(s);
        return;
    }
    mla_op_own(s, &op);
    if (find_writer(s, &common)) {
        for (int i = 0; i < 5 * 2 * 9; ++i) {
            struct mla_dims d = {mla_heads[i / 18],
                                 128,
                                 mla_latent[i / 9 % 2].r,
                                 128,
                                 mla_latent[i / 9 % 2].c,
                                 0,
                                 0};
            d.act = mla_dtypes[i % 3];
            d.kv = mla_dtypes[i / 3 % 3];
            decode_case(s, &common, &op, &d, i % 5 == 2);
            mla_case_end(s);
        }
        case_real_decode(s, &common, &op);
        mla_op_done(s, &op);
        kit_drop_op(k, writer_of(s), &common.ref);
    }
    mla_suite_close(s);
    free(s);
}
