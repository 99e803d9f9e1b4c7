/* case_real.c - see case_real.h: decode and prefill. SPDX-License-Identifier: MIT */
#include "cases/case_real.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases/mla_grid.h"
#include "kit_device.h"

enum { MAX_ROWS = 16, TOP_K = 512, N_PAD = 2, BLOCK = 64, LONG = 4096 };

/* The element (row, head) of a tensor (n, H, width), or (n, H) with width 1, as a row of its own. */
static struct bp_tensor one_of(const struct bp_tensor *t, int64_t row, int64_t head, int64_t width)
{
    struct bp_tensor one = *t;
    one.data = (unsigned char *)t->data +
               (size_t)(row * t->stride[0] + head * t->stride[1]) * mla_elem_bytes(t->dtype);
    one.ndim = 1;
    one.dim[0] = width;
    one.stride[0] = 1;
    return one;
}

/* Are all numbers of a row finite, or, where `want` says NaN, is one of them not? */
static bool row_class(struct mla_suite *s, const struct bp_tensor *t, int64_t row, bool want_nan,
                      const char *what)
{
    const int64_t n = t->ndim > 2 ? t->dim[2] : 1;
    for (int64_t h = 0; h < t->dim[1]; ++h) {
        bool finite = true;
        for (int64_t i = 0; i < n; ++i) finite &= isfinite(mla_get(t, row, h, i));
        if (finite == want_nan)
            return mla_fail(s,
                            want_nan     ? "6.3"
                            : s->has_nan ? "6.4"
                                         : "6.3",
                            "%s: row %lld head %lld is %sfinite", what, (long long)row,
                            (long long)h, finite ? "" : "not ");
    }
    return true;
}

/* One query, its keys and values against the oracle. */
struct sample {
    const double *q[2]; /* exact, rounded */
    const double *const *keys[2], *const *values[2];
    int64_t n, qk, v, row, head;
    double scale;
    uint32_t dtype;
};

static bool judge_sample(struct mla_suite *s, const struct sample *x, const struct bp_tensor *out,
                         const struct bp_tensor *lse)
{
    const uint32_t precision = bp_oracle_precision_of(x->dtype);
    double *numbers = bp_oracle_alloc((size_t)(3 * x->v), sizeof *numbers), l[3] = {0.0};
    for (int k = 0; k < 2; ++k) {
        const struct bp_oracle_attend a = {.q = x->q[k],
                                           .keys = x->keys[k],
                                           .values = x->values[k],
                                           .n = x->n,
                                           .qk_dim = x->qk,
                                           .v_dim = x->v,
                                           .scale = x->scale};
        l[k] = bp_oracle_mla_attend(k == 0 ? BP_ORACLE_EXACT : precision, &a, numbers + k * x->v,
                                    k == 0 ? numbers + 2 * x->v : NULL, k == 0 ? &l[2] : NULL);
    }
    const struct bp_tensor o = one_of(out, x->row, x->head, x->v),
                           e = one_of(lse, x->row, x->head, 1);
    char what[64];
    (void)snprintf(what, sizeof what, "out of row %lld head %lld", (long long)x->row,
                   (long long)x->head);
    const bool good = mla_judge(s, what, &o, 1, numbers, numbers + x->v, numbers + 2 * x->v,
                                x->dtype, precision) &&
                      mla_judge(s, "lse", &e, 1, &l[0], &l[1], &l[2], BP_DT_F32, BP_ORACLE_F32);
    free(numbers);
    return good;
}

/* Heads that are looked at: the first, one in the middle, the last; of long rows the last two of these. */
static int heads_of(uint32_t n_head, int64_t n, int64_t out[3])
{
    int k = 0;
    if (n <= LONG || n_head < 3) out[k++] = 0;
    if (n_head > 2) out[k++] = n_head / 2;
    if (n_head > 1) out[k++] = n_head - 1;
    return k;
}

/* ---- decode ---- */

struct real {
    struct mla_dims d;
    const int32_t *len;
    uint32_t n_seq;
    int shared_with; /* sequence whose first blocks are the last one's too; -1: none */
    int32_t n_shared;
    uint32_t more_blocks; /* of the pool, which nobody uses */
    int nan_seq;          /* -1: none */
    bool sparse;
    const char *what;
};

struct state {
    struct mla_cache cache;
    struct bp_mla_decode_meta m;
    struct bp_mla_decode_args a;
    int32_t seq[MAX_ROWS + N_PAD], len[MAX_ROWS + N_PAD];
    uint32_t n_row;
};

static struct bp_mla_problem problem_of(const struct real *r, uint32_t act)
{
    struct mla_dims d = r->d;
    d.act = act;
    struct bp_mla_problem p = mla_problem(&d);
    uint32_t n_tok = 0, longest = 0;
    for (uint32_t i = 0; i < r->n_seq; ++i) {
        n_tok += (uint32_t)r->len[i];
        if ((uint32_t)r->len[i] > longest) longest = (uint32_t)r->len[i];
    }
    p.max_tok = n_tok;
    p.max_kv = p.max_slab = longest;
    p.max_seqs = MLA_MAX_SEQS;
    p.top_k = TOP_K;
    return p;
}

/* Writes every token through `common`, whose memory is the host's. */
static bool fill(struct mla_suite *s, struct mla_op *common, const struct real *r,
                 const struct bp_kv_layout *layout, struct state *x)
{
    struct bp_error err = BP_ERROR_INIT;
    const struct bp_mla_common_ops *vt = (const void *)common->ref.vt;
    s->more_blocks = r->more_blocks;
    mla_cache_init(s, &x->cache, layout, BLOCK, r->n_seq, r->len, r->shared_with, r->n_shared,
                   r->d.r);
    s->more_blocks = 0;
    struct bp_mla_cache_write_args a = {.h = BP_HDR(struct bp_mla_cache_write_args, reserved),
                                        .meta = &x->cache.meta,
                                        .pool = x->cache.pool,
                                        .eps = MLA_EPS};
    a.kv = mla_random(s, BP_DT_F32, x->cache.meta.n_tok, r->d.c + r->d.r, 0, 8, 1.0);
    a.norm_w = mla_random(s, BP_DT_F32, r->d.c, 0, 0, 0, 0.7);
    if (r->nan_seq >= 0) {
        int64_t token = r->len[r->nan_seq] / 2;
        for (int i = 0; i < r->nan_seq; ++i) token += r->len[i];
        mla_put(&a.kv, token, 3, 0, NAN);
        s->has_nan = true;
    }
    kit_enter(s->kit);
    int32_t rc = vt->cache_write(common->ref.self, &common->l, &a, &err);
    kit_leave(s->kit);
    return rc == BP_OK ||
           mla_fail(s, "6.1", "cache_write of %u tokens: %.180s", x->cache.meta.n_tok, err.msg);
}

/* Rows of one sequence's cache as numbers, the latent part first; the caller frees them. */
static double *gather(struct mla_suite *s, struct mla_op *common, const struct real *r,
                      struct state *x, int32_t seq)
{
    struct bp_error err = BP_ERROR_INIT;
    const struct bp_mla_common_ops *vt = (const void *)common->ref.vt;
    const int64_t n = r->len[seq], width = r->d.c + r->d.r;
    int32_t cu[2] = {0, r->len[seq]}, begin[1] = {0};
    struct bp_mla_prefill_meta m = {.h = BP_HDR(struct bp_mla_prefill_meta, kv_begin_host),
                                    .common = &x->cache.meta,
                                    .n_seg = 1,
                                    .n_k = (uint32_t)n,
                                    .max_k = (uint32_t)n};
    m.seq = m.seq_host = &seq;
    m.cu_k = m.cu_k_host = m.cu_q = m.cu_q_host = cu;
    m.kv_begin = m.kv_begin_host = begin;
    struct bp_mla_cache_gather_args a = {.h = BP_HDR(struct bp_mla_cache_gather_args, k_pe),
                                         .meta = &m,
                                         .pool = x->cache.pool,
                                         .c = mla_tensor(s, BP_DT_F32, n, r->d.c, 0, 0),
                                         .k_pe = mla_tensor(s, BP_DT_F32, n, r->d.r, 0, 0)};
    if (vt->cache_gather(common->ref.self, &common->l, &a, &err) != BP_OK) {
        (void)mla_fail(s, "6.1", "cache_gather: %.180s", err.msg);
        return NULL;
    }
    double *rows = bp_oracle_alloc((size_t)(n * width), sizeof *rows);
    for (int64_t i = 0; i < n; ++i) {
        const float *c = (const float *)a.c.data + i * r->d.c,
                    *p = (const float *)a.k_pe.data + i * r->d.r;
        for (int64_t k = 0; k < width; ++k)
            rows[i * width + k] = (double)(k < r->d.c ? c[k] : p[k - r->d.c]);
    }
    mla_free(a.c.data);
    mla_free(a.k_pe.data);
    return rows;
}

/* A full row of every sequence, two that see less, one that sees nothing; then padded ones, whose queries are NaN. */
static void make_rows(struct mla_suite *s, const struct real *r, struct state *x)
{
    const int64_t width = r->d.c + r->d.r;
    for (uint32_t i = 0; i < r->n_seq; ++i) {
        x->seq[x->n_row] = (int32_t)i;
        x->len[x->n_row++] = r->len[i];
    }
    for (int i = 0; i < 3; ++i) {
        x->seq[x->n_row] = (int32_t)r->n_seq - 1;
        x->len[x->n_row++] = i == 0   ? 0
                             : i == 1 ? r->len[r->n_seq - 1] / 2
                                      : r->len[r->n_seq - 1] - 1;
    }
    const int64_t n = x->n_row + N_PAD;
    x->m = (struct bp_mla_decode_meta){.h = BP_HDR(struct bp_mla_decode_meta, row_kv_len_host),
                                       .common = &x->cache.meta,
                                       .n_row = x->n_row,
                                       .n_row_padded = (uint32_t)n,
                                       .max_kv = x->cache.meta.max_kv};
    x->m.row_seq = x->m.row_seq_host = x->seq;
    x->m.row_kv_len = x->m.row_kv_len_host = x->len;
    x->a = (struct bp_mla_decode_args){.h = BP_HDR(struct bp_mla_decode_args, reserved),
                                       .meta = &x->m,
                                       .pool = x->cache.pool,
                                       .scale = 0.06f};
    x->a.q = mla_random(s, r->d.act, n, r->d.h, width, 8, 1.0);
    x->a.out = mla_tensor(s, r->d.act, n, r->d.h, r->d.c, 8);
    x->a.lse = mla_tensor(s, BP_DT_F32, n, r->d.h, 0, 0);
    for (int64_t i = x->n_row * r->d.h; i < n * r->d.h; ++i)
        for (int64_t k = 0; k < width; ++k) mla_put(&x->a.q, i / r->d.h, i % r->d.h, k, NAN);
    if (!r->sparse) return;
    x->a.idx = mla_tensor(s, BP_DT_I32, n, TOP_K, 0, 0);
    x->a.idx_len = mla_tensor(s, BP_DT_I32, n, 0, 0, 0);
    for (int64_t row = 0; row < x->n_row;
         ++row) { /* every n-th position, where there are more than the list holds */
        const int32_t step = x->len[row] / TOP_K;
        mla_put(&x->a.idx_len, row, 0, 0, x->len[row] <= TOP_K ? -1.0 : (double)TOP_K);
        for (int32_t i = 0; x->len[row] > TOP_K && i < TOP_K; ++i)
            mla_put(&x->a.idx, row, i, 0,
                    (double)mla_slot(&x->cache, x->seq[row], (int64_t)i * step));
    }
}

static void judge_row(struct mla_suite *s, const struct real *r, const struct state *x, int64_t row,
                      const double *const rows[2], const double *const q[2])
{
    const int64_t width = r->d.c + r->d.r;
    const bool listed = r->sparse && x->len[row] > TOP_K;
    const int64_t n = listed ? TOP_K : x->len[row], step = listed ? x->len[row] / TOP_K : 1;
    int64_t heads[3];
    const double **keys[2];
    for (int k = 0; k < 2; ++k) {
        keys[k] = bp_oracle_alloc((size_t)n, sizeof *keys[k]);
        for (int64_t i = 0; i < n; ++i) keys[k][i] = rows[k] + i * step * width;
    }
    const int n_heads = heads_of(r->d.h, n, heads);
    for (int i = 0; i < n_heads && !s->failed; ++i) {
        struct sample one = {.keys = {keys[0], keys[1]},
                             .values = {keys[0], keys[1]},
                             .n = n,
                             .qk = width,
                             .v = r->d.c,
                             .row = row,
                             .head = heads[i],
                             .scale = (double)x->a.scale,
                             .dtype = r->d.act};
        for (int k = 0; k < 2; ++k) one.q[k] = q[k] + (row * r->d.h + heads[i]) * width;
        (void)judge_sample(s, &one, &x->a.out, &x->a.lse);
    }
    free(keys[0]);
    free(keys[1]);
}

static void judge(struct mla_suite *s, struct mla_op *common, const struct real *r, struct state *x)
{
    double *q = mla_values(&x->a.q);
    for (int64_t row = 0; row < x->n_row && !s->failed; ++row) {
        if (x->len[row] == 0) continue;
        /* What is planted lies in the middle of its sequence. */
        const bool nan = x->seq[row] == r->nan_seq && x->len[row] > r->len[r->nan_seq] / 2;
        if (!row_class(s, &x->a.out, row, nan, "out") || !row_class(s, &x->a.lse, row, nan, "lse"))
            break;
    }
    for (uint32_t seq = 0; seq < r->n_seq && !s->failed; ++seq) {
        double *rows[2] = {gather(s, common, r, x, (int32_t)seq), NULL};
        if (rows[0] == NULL) break;
        rows[1] = bp_oracle_rounded(rows[0], r->len[seq] * (r->d.c + r->d.r),
                                    bp_oracle_precision_of(r->d.act));
        for (int64_t row = 0; row < x->n_row && !s->failed; ++row) {
            kit_at(s->kit, "4.10", s->bench.iface, s->label, "case: %s, row %lld", s->label,
                   (long long)row);
            if (x->seq[row] == (int32_t)seq)
                judge_row(s, r, x, row, (const double *const[2]){rows[0], rows[1]},
                          (const double *const[2]){q, q});
        }
        free(rows[0]);
        free(rows[1]);
    }
    free(q);
}

static int32_t do_decode(const struct mla_op *op, const void *args, struct bp_error *err)
{
    const struct bp_mla_decode_args *a = args;
    const struct bp_mla_decode_ops *vt = (const void *)op->ref.vt;
    BP_TRY(vt->plan(op->ref.self, &op->l, a->meta, err));
    return vt->run(op->ref.self, &op->l, a, err);
}

static bool agree_on_layout(const struct mla_op *common, const struct mla_op *op,
                            const struct bp_mla_problem *p, struct bp_kv_layout *out)
{
    const struct bp_mla_common_ops *vt = (const void *)common->ref.vt;
    for (uint32_t i = 0; vt->layouts(common->ref.self, p, i, out) == BP_OK; ++i) {
        for (uint32_t k = 0; k < op->answer.verdict.n_layouts; ++k)
            if (op->answer.layouts[k] == out->id) return true;
    }
    return false;
}

static void decode_case(struct mla_suite *s, struct mla_op *common, struct mla_op *op,
                        const struct real *r)
{
    struct bp_kv_layout layout = {.h = BP_HDR(struct bp_kv_layout, name)};
    const struct bp_mla_problem exact = problem_of(r, BP_DT_F32);
    struct bp_mla_problem p = problem_of(r, r->d.act);
    struct state *x = bp_oracle_alloc(1, sizeof *x);
    mla_label(s, r->what, &r->d);
    if (mla_begin(s) && mla_ask(s, op, &p)) {
        if (!mla_ask(s, common, &exact) || !agree_on_layout(common, op, &exact, &layout)) {
            (void)mla_fail(s, "6.13", "nobody can write a cache for it");
        } else {
            p.layout_id = layout.id;
            if (fill(s, common, r, &layout, x) && mla_ask(s, op, &p)) {
                const struct bp_tensor *outs[] = {&x->a.out, &x->a.lse};
                make_rows(s, r, x);
                if (mla_run(s, op, do_decode, BP_MLA_DECODE_OP_RUN, &x->a, outs, 2, NULL, 0))
                    judge(s, common, r, x);
            }
        }
    }
    free(x);
    mla_case_end(s);
}

void case_real_decode(struct mla_suite *s, struct mla_op *common, struct mla_op *op)
{
    static const int32_t some[] = {1, 63, 64, 65, 1000, 700},
                         many[] = {1, 63, 64, 65, 1000, 16384, 8200}, longest[] = {65536};
    static const uint32_t heads[] = {32, 64, 128, 8, 16, 20};
    static const uint32_t acts[] = {BP_DT_BF16, BP_DT_F16, BP_DT_F32};
    const bool full = s->kit->o->full;
    for (uint32_t i = 0; i < (full ? 18 : 6); ++i) {
        struct real r = {.d = {heads[i % 6], 128, 64, 128, 512, acts[i / 6], acts[(i + i / 6) % 3]},
                         .len = some,
                         .n_seq = 6,
                         .shared_with = 4,
                         .n_shared = 640,
                         .nan_seq = i % 3 == 1 ? 2 : -1,
                         .sparse = i % 2 == 1,
                         .what = i % 3 == 1 ? "rows of real models with NaN in one sequence"
                                            : "rows of real models"};
        decode_case(s, common, op, &r);
    }
    for (uint32_t i = 0; full && i < 6; ++i) {
        struct real r = {.d = {heads[i], 128, 64, 128, 512, acts[i % 2], acts[i % 2]},
                         .len = many,
                         .n_seq = 7,
                         .shared_with = 5,
                         .n_shared = 8192,
                         .nan_seq = -1,
                         .sparse = i >= 3,
                         .what = i >= 3 ? "lists from 16k tokens" : "16k tokens"};
        decode_case(s, common, op, &r);
    }
    for (uint32_t i = 0; full && i < 2; ++i) {
        struct real r = {.d = {16, 128, 64, 128, 512, acts[i], acts[i]},
                         .len = longest,
                         .n_seq = 1,
                         .shared_with = -1,
                         .nan_seq = -1,
                         .what = "64k tokens"};
        decode_case(s, common, op, &r);
    }
    if (full && s->kit->device != NULL) { /* slots times 576 beyond 2^31 */
        struct real r = {.d = {16, 128, 64, 128, 512, BP_DT_BF16, BP_DT_BF16},
                         .len = some,
                         .n_seq = 6,
                         .shared_with = 4,
                         .n_shared = 640,
                         .nan_seq = -1,
                         .more_blocks = 66000,
                         .what = "a pool beyond 2^31 numbers"};
        decode_case(s, common, op, &r);
    }
}

/* ---- prefill ---- */

static int32_t do_run(const struct mla_op *op, const void *args, struct bp_error *err)
{
    const struct bp_mla_prefill_args *a = args;
    const struct bp_mla_prefill_ops *vt = (const void *)op->ref.vt;
    BP_TRY(vt->plan(op->ref.self, &op->l, a->meta, err));
    return vt->run(op->ref.self, &op->l, a, err);
}

enum { N_SEG = 6 };

static void judge_segment(struct mla_suite *s, const struct mla_dims *d,
                          const struct bp_mla_prefill_args *a, int seg)
{
    const int32_t *cu_q = a->meta->cu_q_host, *cu_k = a->meta->cu_k_host;
    const int64_t n_q = cu_q[seg + 1] - cu_q[seg], n_k = cu_k[seg + 1] - cu_k[seg],
                  qk = d->p + d->r;
    int64_t heads[3], rows[3] = {0, n_q / 2, n_q - 1};
    struct bp_tensor k = mla_rows(&a->k, cu_k[seg], cu_k[seg + 1]),
                     v = mla_rows(&a->v, cu_k[seg], cu_k[seg + 1]);
    struct bp_tensor q = mla_rows(&a->q, cu_q[seg], cu_q[seg + 1]);
    double *nk = mla_values(&k), *nv = mla_values(&v), *nq = mla_values(&q);
    const double **keys = bp_oracle_alloc((size_t)n_k, sizeof *keys),
                 **values = bp_oracle_alloc((size_t)n_k, sizeof *values);
    const int n_heads = heads_of(d->h, n_k, heads);
    for (int h = 0; h < n_heads; ++h) {
        for (int64_t i = 0; i < n_k; ++i) {
            keys[i] = nk + (i * d->h + heads[h]) * qk;
            values[i] = nv + (i * d->h + heads[h]) * d->v;
        }
        for (int i = 0; i < 3 && !s->failed; ++i) {
            if (i > 0 && rows[i] == rows[i - 1]) continue;
            const double *one_q = nq + (rows[i] * d->h + heads[h]) * qk;
            const struct sample one = {.q = {one_q, one_q},
                                       .keys = {keys, keys},
                                       .values = {values, values},
                                       .n = n_k - n_q + rows[i] + 1,
                                       .qk = qk,
                                       .v = d->v,
                                       .row = cu_q[seg] + rows[i],
                                       .head = heads[h],
                                       .scale = (double)a->scale,
                                       .dtype = d->act};
            kit_at(s->kit, "4.10", s->bench.iface, s->label, "case: %s, segment %d", s->label, seg);
            (void)judge_sample(s, &one, &a->out, &a->lse);
        }
    }
    free(keys);
    free(values);
    free(nk);
    free(nv);
    free(nq);
}

static void prefill_case(struct mla_suite *s, struct mla_op *op, const struct mla_dims *d,
                         const int32_t *n_q, const int32_t *n_k)
{
    int32_t cu_q[N_SEG + 1] = {0}, cu_k[N_SEG + 1] = {0}, zeros[N_SEG] = {0};
    struct mla_cache none = {.n_seqs = 1};
    struct bp_mla_problem p = mla_problem(d);
    const int64_t qk = d->p + d->r;
    uint32_t max_q = 0, max_k = 0;
    for (int i = 0; i < N_SEG; ++i) {
        cu_q[i + 1] = cu_q[i] + n_q[i];
        cu_k[i + 1] = cu_k[i] + n_k[i];
        if ((uint32_t)n_q[i] > max_q) max_q = (uint32_t)n_q[i];
        if ((uint32_t)n_k[i] > max_k) max_k = (uint32_t)n_k[i];
    }
    p.max_tok = p.max_slab = (uint32_t)cu_k[N_SEG];
    p.max_kv = max_k;
    mla_label(s, max_k > LONG ? "16k keys" : "segments of real models", d);
    if (!mla_begin(s) || !mla_ask(s, op, &p)) return;
    struct bp_mla_prefill_meta m = {.h = BP_HDR(struct bp_mla_prefill_meta, kv_begin_host),
                                    .common = &none.meta,
                                    .n_seg = N_SEG,
                                    .n_q = (uint32_t)cu_q[N_SEG],
                                    .n_k = (uint32_t)cu_k[N_SEG],
                                    .max_q = max_q,
                                    .max_k = max_k};
    m.cu_q = m.cu_q_host = cu_q;
    m.cu_k = m.cu_k_host = cu_k;
    m.seq = m.seq_host = m.kv_begin = m.kv_begin_host = zeros;
    struct bp_mla_prefill_args a = {.h = BP_HDR(struct bp_mla_prefill_args, reserved), .meta = &m};
    a.scale = 1.3f / sqrtf((float)qk);
    a.q = mla_random(s, d->act, m.n_q, d->h, qk, 8, 1.0);
    a.k = mla_random(s, d->act, m.n_k, d->h, qk, 0, 1.0);
    a.v = mla_random(s, d->act, m.n_k, d->h, d->v, 8, 1.0);
    a.out = mla_tensor(s, d->act, m.n_q, d->h, d->v, 8);
    a.lse = mla_tensor(s, BP_DT_F32, m.n_q, d->h, 0, 0);
    const struct bp_tensor *outs[] = {&a.out, &a.lse};
    if (!mla_run(s, op, do_run, BP_MLA_PREFILL_OP_RUN, &a, outs, 2, NULL, 0)) return;
    for (int64_t row = 0; row < m.n_q; ++row)
        if (!row_class(s, &a.out, row, false, "out") || !row_class(s, &a.lse, row, false, "lse"))
            return;
    for (int i = 0; i < N_SEG && !s->failed; ++i)
        if (n_q[i] > 0) judge_segment(s, d, &a, i);
}

void case_real_prefill(struct mla_suite *s, struct mla_op *op)
{
    static const int32_t n_q[] = {1, 5, 64, 0, 3, 33}, n_k[] = {1, 63, 64, 0, 65, 300};
    static const int32_t long_q[] = {1, 5, 64, 3, 33, 130},
                         long_k[] = {64, 63, 1000, 65, 1000, 16384};
    static const uint32_t heads[] = {32, 64, 128}, acts[] = {BP_DT_BF16, BP_DT_F16, BP_DT_F32};
    for (uint32_t i = 0; i < (s->kit->o->full ? 9 : 3); ++i) {
        const struct mla_dims d = {heads[i % 3], mla_pv[(i + i / 3) % 3].p,
                                   64,           mla_pv[(i + i / 3) % 3].v,
                                   512,          acts[i / 3],
                                   BP_DT_BF16};
        prefill_case(s, op, &d, n_q, n_k);
        mla_case_end(s);
    }
    for (uint32_t i = 0; s->kit->o->full && i < 3; ++i) {
        const struct mla_dims d = {16, mla_pv[i].p, 64, mla_pv[i].v, 512, acts[i % 2], BP_DT_BF16};
        prefill_case(s, op, &d, long_q, long_k);
        mla_case_end(s);
    }
}
