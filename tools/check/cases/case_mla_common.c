/* case_mla_common.c - every provider of bp.mla.common against the oracle: cache writes and reads, up-projections, merge.
 * SPDX-License-Identifier: MIT */
#include "cases/mla_grid.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COMMON(op) ((const struct bp_mla_common_ops *)(op)->ref.vt)
static int32_t do_expand(const struct mla_op *op, const void *a, struct bp_error *err)
{
    return COMMON(op)->expand(op->ref.self, &op->l, a, err);
}
static int32_t do_absorb(const struct mla_op *op, const void *a, struct bp_error *err)
{
    return COMMON(op)->absorb(op->ref.self, &op->l, a, err);
}
static int32_t do_merge(const struct mla_op *op, const void *a, struct bp_error *err)
{
    return COMMON(op)->merge(op->ref.self, &op->l, a, err);
}

static int32_t do_gather(const struct mla_op *op, const void *a, struct bp_error *err)
{
    return COMMON(op)->cache_gather(op->ref.self, &op->l, a, err);
}

/* Slabs that begin inside a block, end inside one, or are empty: the very rows that the whole gather gave. */
static void gather_parts(struct mla_suite *s, struct mla_op *op, const struct mla_filled *x,
                         const struct mla_dims *d)
{
    static const int32_t seq[] = {4, 2, 5, 0, 3, 1}, begin[] = {60, 63, 630, 0, 0, 10};
    static const int32_t cu[] = {0, 70, 71, 141, 141, 206, 259};
    struct bp_mla_prefill_meta m = x->gather;
    struct bp_tensor c = mla_tensor(s, d->act, 259, d->c, 0, 0);
    struct bp_tensor k_pe = mla_tensor(s, d->act, 259, d->r, 0, 8);
    m.n_k = 259;
    m.max_k = 70;
    m.seq = m.seq_host = seq;
    m.kv_begin = m.kv_begin_host = begin;
    m.cu_k = m.cu_k_host = m.cu_q = m.cu_q_host = cu;
    struct bp_mla_cache_gather_args a = {.h = BP_HDR(struct bp_mla_cache_gather_args, k_pe),
                                         .meta = &m,
                                         .pool = x->cache.pool,
                                         .c = c,
                                         .k_pe = k_pe};
    const struct bp_tensor *outs[] = {&c, &k_pe};
    if (!mla_run(s, op, do_gather, BP_MLA_OP_CACHE_GATHER, &a, outs, 2, NULL, 0)) return;
    for (int i = 0; i < 6; ++i) {
        const int64_t from = x->cu[seq[i]] + begin[i], n = cu[i + 1] - cu[i];
        struct bp_tensor got = mla_rows(&c, cu[i], cu[i + 1]),
                         want = mla_rows(&x->c, from, from + n);
        struct bp_tensor got_pe = mla_rows(&k_pe, cu[i], cu[i + 1]);
        struct bp_tensor want_pe = mla_rows(&x->k_pe, from, from + n);
        if (mla_same_bits(&got, &want) && mla_same_bits(&got_pe, &want_pe)) continue;
        (void)mla_fail(s, "6.14", "segment %d has other rows than a gather of everything", i);
    }
}

/* Rows of the cache against norm and rotation of what was written. */
static void cache_case(struct mla_suite *s, struct mla_op *op, const struct mla_dims *d,
                       bool with_nan)
{
    struct mla_filled x;
    struct bp_kv_layout layout = {.h = BP_HDR(struct bp_kv_layout, name)};
    const struct bp_mla_problem p = mla_problem(d);
    mla_label(s, with_nan ? "cache_write with NaN" : "cache_write and gather", d);
    if (!mla_begin(s) || !mla_ask(s, op, &p)) return;
    s->has_nan = with_nan;
    if (COMMON(op)->layouts(op->ref.self, &p, 0, &layout) != BP_OK) {
        (void)mla_fail(s, "6.13", "serves the problem, but lists no layout");
        return;
    }
    if (!mla_fill(s, op, &x, d, &layout)) return;
    const int64_t n = x.cu[MLA_N_SEQ], width = d->c + d->r;
    const uint32_t act = bp_oracle_precision_of(d->act), kv = bp_oracle_precision_of(d->kv);
    double *in = mla_values(&x.kv), *w = mla_values(&x.norm_w);
    double *co = mla_values(&x.cache.meta.rope_cos), *si = mla_values(&x.cache.meta.rope_sin);
    double *rows[2], *c[2], *r[2];
    for (int k = 0; k < 2; ++k) {
        rows[k] = bp_oracle_alloc((size_t)width, sizeof(double));
        c[k] = bp_oracle_alloc((size_t)(n * d->c), sizeof(double));
        r[k] = bp_oracle_alloc((size_t)(n * d->r), sizeof(double));
    }
    int64_t token = 0;
    for (int seq = 0; seq < MLA_N_SEQ; ++seq) {
        for (int64_t at = 0; at < mla_seq_len[seq]; ++at) {
            /* A shared token was written once, by the sequence that it is shared with. */
            bool shared = seq == MLA_N_SEQ - 1 && at < MLA_SHARED;
            int64_t t = shared ? x.cu[MLA_N_SEQ - 2] + at : token++;
            int64_t row = x.cu[seq] + at;
            for (int k = 0; k < 2; ++k) {
                const uint32_t precision = k == 0 ? BP_ORACLE_EXACT : act;
                bp_oracle_mla_row(precision, in + t * width, w, d->c, d->r, co + at * (d->r / 2),
                                  si + at * (d->r / 2), (double)MLA_EPS, rows[k]);
                for (int64_t i = 0; i < width; ++i) {
                    double v = rows[k][i];
                    if (k == 1) v = bp_oracle_round(bp_oracle_round(v, kv), act);
                    if (i < d->c)
                        c[k][row * d->c + i] = v;
                    else
                        r[k][row * d->r + i - d->c] = v;
                }
            }
        }
    }
    const uint32_t coarser = d->kv == BP_DT_BF16 || d->act == BP_DT_BF16 ? BP_DT_BF16
                             : d->kv == BP_DT_F16                        ? d->kv
                                                                         : d->act;
    if (mla_judge(s, "c", &x.c, n, c[0], c[1], NULL, coarser, act)) {
        (void)mla_judge(s, "k_pe", &x.k_pe, n, r[0], r[1], NULL, coarser, act);
    }
    gather_parts(s, op, &x, d);
    for (int k = 0; k < 2; ++k) {
        free(rows[k]);
        free(c[k]);
        free(r[k]);
    }
    free(in);
    free(w);
    free(co);
    free(si);
    mla_filled_free(&x);
}

/* ---- up-projections ---- */

struct up {
    struct bp_oracle_weight k, v, kv; /* kv is used in the joint form */
    bool joint;
    struct bp_mla_weights w;
    double *
        rows[2]; /* [H][P + V][C]: of the whole model, exact, rounded to the provider's precision */
};

/* Split, flat (two dimensions) or joint, in turn; block types where the rows allow them. */
static void make_up(struct mla_suite *s, struct up *u, const struct mla_dims *d, unsigned turn)
{
    static const uint32_t k_types[] = {BP_GGUF_F32, BP_GGUF_BF16, BP_GGUF_Q8_0, BP_GGUF_F16};
    static const uint32_t v_types[] = {BP_GGUF_BF16, BP_GGUF_Q4_K, BP_GGUF_F32, BP_GGUF_Q8_0};
    const int64_t h = d->h, p = d->p, v = d->v, c = d->c;
    uint32_t k_type = k_types[turn % 4], v_type = v_types[turn % 4];
    memset(u, 0, sizeof *u);
    u->joint = turn % 3 == 2;
    if (k_type == BP_GGUF_Q8_0 && p % 32 != 0) k_type = BP_GGUF_F16;
    if (c % 256 != 0 && v_type != BP_GGUF_F32) v_type = BP_GGUF_BF16;
    u->w = (struct bp_mla_weights){.h = BP_HDR(struct bp_mla_weights, head_end),
                                   .n_head = d->h,
                                   .nope_dim = d->p,
                                   .v_dim = d->v,
                                   .kv_rank = d->c,
                                   .head_end = d->h};
    if (u->joint) {
        bp_oracle_weight_init(&u->kv, &s->rng, v_type, c, h * (p + v), 1, 0.75f);
        u->w.kv_b = bp_oracle_raw(&u->kv, "attn_kv_b");
    } else {
        const bool flat = turn % 3 == 1;
        bp_oracle_weight_init(&u->k, &s->rng, k_type, p, flat ? c * h : c, flat ? 1 : h, 0.5f);
        bp_oracle_weight_init(&u->v, &s->rng, v_type, c, flat ? v * h : v, flat ? 1 : h, 1.25f);
        u->w.k_b = bp_oracle_raw(&u->k, "attn_k_b");
        u->w.v_b = bp_oracle_raw(&u->v, "attn_v_b");
    }
    const uint32_t act = bp_oracle_precision_of(d->act);
    for (int k = 0; k < 2; ++k) {
        const uint32_t precision = k == 0 ? BP_ORACLE_EXACT : act;
        double *out = bp_oracle_alloc((size_t)(h * (p + v) * c), sizeof *out);
        for (int64_t i = 0; i < h * (p + v) * c; ++i) {
            int64_t head = i / ((p + v) * c), row = i / c % (p + v), col = i % c;
            double x = u->joint  ? u->kv.w[i]
                       : row < p ? u->k.w[(head * c + col) * p + row]
                                 : u->v.w[(head * v + row - p) * c + col];
            out[i] = bp_oracle_round(x, precision);
        }
        u->rows[k] = out;
    }
}

static void up_free(struct up *u)
{
    bp_oracle_weight_free(&u->k);
    bp_oracle_weight_free(&u->v);
    bp_oracle_weight_free(&u->kv);
    free(u->rows[0]);
    free(u->rows[1]);
}

/* For each row and head of this rank: rows [begin, end) of the weights (transposed: their columns) times x. */
static struct mla_judged products(const struct up *u, const struct mla_dims *d, const double *x,
                                  int64_t n, bool per_head, bool transposed, int64_t begin,
                                  int64_t end)
{
    const int64_t n_row = d->p + d->v, n_in = transposed ? end - begin : d->c;
    const int64_t n_out = transposed ? d->c : end - begin;
    struct mla_judged j = mla_judged_alloc(n * d->h * n_out);
    for (int k = 0; k < 2; ++k) {
        const uint32_t precision = k == 0 ? BP_ORACLE_EXACT : bp_oracle_precision_of(d->act);
        for (int64_t t = 0; t < n; ++t) {
            for (int64_t h = 0; h < d->h; ++h) {
                struct bp_oracle_product p = {.w = u->rows[k] +
                                                   ((u->w.head_begin + h) * n_row + begin) * d->c,
                                              .x = x + (per_head ? t * d->h + h : t) * n_in,
                                              .rows = n_out,
                                              .cols = n_in};
                p.stride_r = transposed ? 1 : d->c;
                p.stride_k = transposed ? d->c : 1;
                int64_t at = (t * d->h + h) * n_out;
                bp_oracle_mla_product(precision, &p, (k == 0 ? j.exact : j.base) + at,
                                      k == 0 ? j.mag + at : NULL);
            }
        }
    }
    return j;
}

static void absorb_side(struct mla_suite *s, struct mla_op *op, const struct up *u, void *handle,
                        const struct mla_dims *d, uint32_t side)
{
    const bool uk = side == BP_MLA_ABSORB_UK;
    const int64_t n = 5, n_in = uk ? d->p : d->c, n_out = uk ? d->c : d->v;
    struct bp_tensor x = mla_random(s, d->act, n, d->h, n_in, 8, 1.0);
    struct bp_tensor y = mla_tensor(s, d->act, n, d->h, n_out, 16);
    struct bp_mla_absorb_args a = {.h = BP_HDR(struct bp_mla_absorb_args, reserved),
                                   .weights = handle,
                                   .x = x,
                                   .y = y,
                                   .side = side};
    const struct bp_tensor *outs[] = {&y};
    if (!mla_run(s, op, do_absorb, BP_MLA_OP_ABSORB, &a, outs, 1, NULL, 0)) return;
    double *in = mla_values(&x);
    struct mla_judged j = products(u, d, in, n, true, uk, uk ? 0 : d->p, uk ? d->p : d->p + d->v);
    (void)mla_judge(s, uk ? "absorb UK" : "absorb UV", &y, n, j.exact, j.base, j.mag, d->act,
                    bp_oracle_precision_of(d->act));
    mla_judged_free(&j);
    free(in);
    if (op->answer.verdict.determinism < BP_DET_BATCH) return;
    struct bp_tensor one = mla_tensor(s, d->act, 1, d->h, n_out, 0), want = mla_rows(&y, 3, 4);
    const struct bp_tensor *one_out[] = {&one};
    a.x = mla_rows(&x, 3, 4);
    a.y = one;
    if (mla_run(s, op, do_absorb, BP_MLA_OP_ABSORB, &a, one_out, 1, NULL, 0) &&
        !mla_same_bits(&one, &want)) {
        (void)mla_fail(s, "6.8", "absorb: a row alone has other bits than in a batch");
    }
}

/* In turn all heads of the model, or those in its middle: what one rank of several has. */
static void weights_case(struct mla_suite *s, struct mla_op *op, const struct mla_dims *whole,
                         unsigned turn)
{
    struct bp_error err = BP_ERROR_INIT;
    const bool shard = turn % 5 == 1 && whole->h > 1;
    const uint32_t begin = shard ? whole->h / 3 : 0, end = whole->h - (shard ? whole->h / 4 : 0);
    struct mla_dims own = *whole;
    const struct mla_dims *d = &own;
    struct bp_mla_problem p;
    char what[32];
    struct up u;
    void *handle = NULL;
    own.h = end - begin;
    p = mla_problem(d);
    (void)snprintf(what, sizeof what, shard ? "heads %u to %u" : "expand and absorb", begin,
                   end - 1);
    mla_label(s, what, whole);
    if (!mla_begin(s)) return;
    make_up(s, &u, whole, turn);
    u.w.head_begin = begin;
    u.w.head_end = end;
    p.type_k = u.joint ? u.kv.type : u.k.type;
    p.type_v = u.joint ? u.kv.type : u.v.type;
    if (!mla_ask(s, op, &p)) {
        up_free(&u);
        return;
    }
    int32_t rc = COMMON(op)->prepare(op->ref.self, &u.w, &handle, NULL, &err);
    if (rc != BP_OK) {
        (void)mla_fail(s, rc == BP_DECLINED ? "5.6" : "6.1", "prepare returned %s: %.180s",
                       kit_status_name(rc), err.msg);
        up_free(&u);
        return;
    }
    const int64_t n = 5;
    struct bp_tensor c = mla_random(s, d->act, n, d->c, 0, 8, 1.0);
    struct bp_tensor k_pe = mla_random(s, d->act, n, d->r, 0, 0, 1.0);
    struct bp_tensor k = mla_tensor(s, d->act, n, d->h, d->p + d->r, 8);
    struct bp_tensor v = mla_tensor(s, d->act, n, d->h, d->v, 0);
    struct bp_mla_expand_args e = {.h = BP_HDR(struct bp_mla_expand_args, v),
                                   .weights = handle,
                                   .c = c,
                                   .k_pe = k_pe,
                                   .k = k,
                                   .v = v};
    const struct bp_tensor *outs[] = {&k, &v};
    if (mla_run(s, op, do_expand, BP_MLA_OP_EXPAND, &e, outs, 2, NULL, 0)) {
        const uint32_t precision = bp_oracle_precision_of(d->act);
        double *in = mla_values(&c);
        struct mla_judged jk = products(&u, d, in, n, false, false, 0, d->p);
        struct mla_judged jv = products(&u, d, in, n, false, false, d->p, d->p + d->v);
        struct bp_tensor nope = k;
        nope.dim[2] = d->p;
        if (mla_judge(s, "k", &nope, n, jk.exact, jk.base, jk.mag, d->act, precision)) {
            (void)mla_judge(s, "v", &v, n, jv.exact, jv.base, jv.mag, d->act, precision);
        }
        for (int64_t i = 0; i < n * d->h * d->r; ++i) {
            int64_t t = i / (d->h * d->r), h = i / d->r % d->h, r = i % d->r;
            if (mla_get(&k, t, h, d->p + r) == mla_get(&k_pe, t, r, 0)) continue;
            (void)mla_fail(s, "6.14", "k of head %lld does not end with k_pe", (long long)h);
            break;
        }
        mla_judged_free(&jk);
        mla_judged_free(&jv);
        free(in);
    }
    absorb_side(s, op, &u, handle, d, BP_MLA_ABSORB_UK);
    absorb_side(s, op, &u, handle, d, BP_MLA_ABSORB_UV);
    COMMON(op)->release(op->ref.self, handle);
    up_free(&u);
}

/* ---- merge ---- */

static void merge_case(struct mla_suite *s, struct mla_op *op, const struct mla_dims *d)
{
    const struct bp_mla_problem p = mla_problem(d);
    const int64_t n = 12, width = d->v;
    mla_label(s, "merge", d);
    if (!mla_begin(s) || !mla_ask(s, op, &p)) return;
    struct bp_tensor out = mla_random(s, d->act, n, d->h, width, 8, 1.0);
    struct bp_tensor other = mla_random(s, d->act, n, d->h, width, 0, 1.0);
    struct bp_tensor lse = mla_random(s, BP_DT_F32, n, d->h, 0, 0, 4.0);
    struct bp_tensor other_lse = mla_random(s, BP_DT_F32, n, d->h, 0, 1, 4.0);
    for (int64_t h = 0; h < d->h; ++h) { /* rows 0: other empty, 1: own, 2: both; 3, 4: far apart */
        mla_put(&other_lse, 0, h, 0, -INFINITY);
        mla_put(&lse, 1, h, 0, -INFINITY);
        mla_put(&lse, 2, h, 0, -INFINITY);
        mla_put(&other_lse, 2, h, 0, -INFINITY);
        mla_put(&lse, 3, h, 0, 900.0);
        mla_put(&lse, 4, h, 0, -900.0);
        for (int64_t i = 0; i < width; ++i) mla_put(&out, 1, h, i, NAN);
    }
    double *a = mla_values(&out), *b = mla_values(&other);
    double *la = mla_values(&lse), *lb = mla_values(&other_lse);
    struct mla_judged j = mla_judged_alloc(n * d->h * width), jl = mla_judged_alloc(n * d->h);
    const uint32_t precision = bp_oracle_precision_of(d->act);
    for (int64_t i = 0; i < n * d->h; ++i) {
        jl.exact[i] = bp_oracle_mla_merge(BP_ORACLE_EXACT, a + i * width, la[i], b + i * width,
                                          lb[i], width, j.exact + i * width);
        jl.base[i] = bp_oracle_mla_merge(precision, a + i * width, la[i], b + i * width, lb[i],
                                         width, j.base + i * width);
    }
    struct bp_mla_merge_args args = {.h = BP_HDR(struct bp_mla_merge_args, other_lse),
                                     .out = out,
                                     .lse = lse,
                                     .other_out = other,
                                     .other_lse = other_lse};
    const struct bp_tensor *inouts[] = {&out, &lse};
    if (mla_run(s, op, do_merge, BP_MLA_OP_MERGE, &args, NULL, 0, inouts, 2) &&
        mla_judge(s, "out", &out, n, j.exact, j.base, NULL, d->act, precision) &&
        mla_judge(s, "lse", &lse, n, jl.exact, jl.base, NULL, BP_DT_F32, BP_ORACLE_F32)) {
        double *got = mla_values(&out), *got_lse = mla_values(&lse);
        const size_t row = (size_t)(d->h * width) * sizeof *got, row_l = d->h * sizeof *got;
        if (memcmp(got, a, row) != 0 || memcmp(got_lse, la, row_l) != 0 ||
            memcmp(got + d->h * width, b + d->h * width, row) != 0 ||
            memcmp(got_lse + d->h, lb + d->h, row_l) != 0) {
            (void)mla_fail(s, "6.14", "an empty side changes the other one's bits");
        }
        free(got);
        free(got_lse);
    }
    mla_judged_free(&j);
    mla_judged_free(&jl);
    free(a);
    free(b);
    free(la);
    free(lb);
}

void case_mla_common(struct kit *kit)
{
    struct mla_suite *s = bp_oracle_alloc(1, sizeof *s);
    struct mla_op op;
    unsigned turn = 0;
    if (!mla_suite_open(s, kit, "bp.mla.common")) {
        free(s);
        return;
    }
    mla_op_own(s, &op);
    for (int k = 0; k < 2 * 9; ++k) {
        struct mla_dims d = {3, 48, mla_latent[k / 9].r, 40, mla_latent[k / 9].c, 0, 0};
        d.act = mla_dtypes[k % 3];
        d.kv = mla_dtypes[k / 3 % 3];
        cache_case(s, &op, &d, k % 6 == 4);
        mla_case_end(s);
    }
    for (int k = 0; k < 5 * 4 * 2; ++k) {
        const struct mla_latent lat = mla_latent[k % 2];
        struct mla_dims d = {mla_heads[k / 8], mla_pv[k / 2 % 4].p, lat.r, 0, lat.c, 0, 0};
        d.v = mla_pv[k / 2 % 4].v;
        for (int a = 0; a < 3; ++a, ++turn) {
            d.act = mla_dtypes[a];
            d.kv = mla_dtypes[(turn / 3) % 3];
            weights_case(s, &op, &d, turn + turn / 12);
            mla_case_end(s);
            if (k % 2 == 0) merge_case(s, &op, &d);
            mla_case_end(s);
        }
    }
    mla_op_done(s, &op);
    mla_suite_close(s);
    free(s);
}
