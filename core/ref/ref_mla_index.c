/* ref_mla_index.c - "bp.mla.index" of the reference backend: the lightning index of DSA.
 * select is exact on its scores, which are double: the k-th largest is found by radix on their ordered bits, then one
 * walk in order of position takes what is larger and, of what is equal, the first. A score that is NaN ranks below all
 * numbers, so it is chosen only when fewer than top_k numbers remain, the lowest position first.
 * Threads: one call per instance; a call uses the host's threads. SPDX-License-Identifier: MIT */
#include "ref/ref_mla.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { STEP = BPI_REF_MLA_STEP };

/* ---- key_write ---- */

struct write_job {
    const struct bpi_ref *ref;
    const struct bp_mla_key_write_args *a;
    struct bpi_ref_mla_pool pool;
};

static uint64_t write_slice(uint64_t width)
{
    return bpi_ref_mla_align(width * sizeof(float)) + bpi_ref_mla_align(width * sizeof(double));
}

static void write_item(void *arg, uint64_t item, unsigned char *scratch)
{
    const struct write_job *j = arg;
    const struct bp_mla_key_write_args *a = j->a;
    const struct bp_mla_meta *m = a->meta;
    const int64_t t = (int64_t)item, n = a->k.dim[1], half = m->rope_cos.dim[1];
    const int64_t slot = m->slot_map_host[t];
    float *x = (float *)scratch;
    double *y = (double *)(scratch + bpi_ref_mla_align((uint64_t)n * sizeof(float)));
    if (slot < 0) return;
    bpi_ref_load(x, bpi_ref_at(&a->k, t, 0, 0), a->k.dtype, n, j->ref->round);
    const float *w = a->norm_w.data, *b = a->norm_b.data;
    double mean = 0.0, var = 0.0;
    for (int64_t i = 0; i < n; ++i) mean += (double)x[i];
    mean /= (double)n;
    for (int64_t i = 0; i < n; ++i) var += ((double)x[i] - mean) * ((double)x[i] - mean);
    const double inv = 1.0 / sqrt(var / (double)n + (double)a->eps);
    for (int64_t i = 0; i < n; ++i) {
        y[i] = ((double)x[i] - mean) * inv * (double)w[i] + (double)b[i];
    }
    const float *cosines = bpi_ref_at(&m->rope_cos, m->positions_host[t], 0, 0);
    const float *sines = bpi_ref_at(&m->rope_sin, m->positions_host[t], 0, 0);
    const bool pairs = a->rope_style == BP_ROPE_INTERLEAVED;
    for (int64_t i = 0; i < half; ++i) {
        double *first = pairs ? y + 2 * i : y + i;
        double *second = pairs ? first + 1 : first + half;
        double u = *first, v = *second, c = cosines[i], s = sines[i];
        *first = u * c - v * s;
        *second = u * s + v * c;
    }
    bpi_ref_store(bpi_ref_mla_pool_row(&j->pool, slot), j->pool.dtype, y, n, j->ref->round);
}

static int32_t index_key_write(void *self, const struct bp_launch *l,
                               const struct bp_mla_key_write_args *a, struct bp_error *err)
{
    static const char op[] = "mla.index key_write";
    const struct bp_mla_meta *m = a->meta;
    struct write_job j = {.ref = self, .a = a};
    if (m->n_tok == 0) return BP_OK;
    const int64_t n = a->k.dim[1], n_rope = 2 * m->rope_cos.dim[1];
    BP_TRY(bpi_ref_mla_port(&a->k, "k", BP_DT_NONE, m->n_tok, n, 0, op, err));
    BP_TRY(bpi_ref_mla_port(&a->norm_w, "norm_w", BP_DT_F32, n, 0, 0, op, err));
    BP_TRY(bpi_ref_mla_port(&a->norm_b, "norm_b", BP_DT_F32, n, 0, 0, op, err));
    if (n_rope > n || a->rope_style > BP_ROPE_HALF) {
        return bpi_fail(err, BP_E_ARG, "ref", op,
                        "style %u must be 0 or 1, and keys of %" PRId64 " numbers hold no %" PRId64
                        " rotated ones",
                        a->rope_style, n, n_rope);
    }
    BP_TRY(bpi_ref_mla_pool_open(&a->pool, "mla.index", n, m->block_tok, op, &j.pool, err));
    BP_TRY(bpi_ref_mla_check_writes(m, &j.pool, n_rope, op, err));
    return bpi_ref_mla_each(j.ref, l, m->n_tok, write_slice((uint64_t)n),
                            m->n_tok * (uint64_t)n * 8, write_item, &j, op, err);
}

/* ---- select ---- */

struct select_job {
    const struct bpi_ref *ref;
    const struct bp_mla_select_args *a;
    struct bpi_ref_mla_pool pool;
    int64_t n_head, width;
    uint64_t max_len; /* keys of the longest row that is scored */
};

/* What an item keeps in its slice. */
struct parts {
    uint64_t *ranks; /* [max_len] */
    double *q;       /* [n_head][width] */
    double *dots;    /* [n_head][STEP] */
    float *part;     /* [width] */
    float *keys;     /* [STEP][width] */
};

static bool select_slice(uint64_t n_head, uint64_t width, uint64_t max_len, uint64_t *out)
{
    uint64_t n_q; /* the rest stays below 2^40 */
    if (!bpi_mul_u64(n_head, width, &n_q) || n_q > UINT64_C(1) << 56) return false;
    *out = bpi_ref_mla_align(max_len * sizeof(uint64_t)) + bpi_ref_mla_align(n_q * sizeof(double)) +
           bpi_ref_mla_align(n_head * STEP * sizeof(double)) +
           bpi_ref_mla_align(width * sizeof(float)) +
           bpi_ref_mla_align(STEP * width * sizeof(float));
    return true;
}

static struct parts cut(const struct select_job *j, unsigned char *scratch)
{
    const uint64_t n_head = (uint64_t)j->n_head, width = (uint64_t)j->width;
    struct parts p;
    p.ranks = (uint64_t *)scratch;
    scratch += bpi_ref_mla_align(j->max_len * sizeof(uint64_t));
    p.q = (double *)scratch;
    scratch += bpi_ref_mla_align(n_head * width * sizeof(double));
    p.dots = (double *)scratch;
    scratch += bpi_ref_mla_align(n_head * STEP * sizeof(double));
    p.part = (float *)scratch;
    scratch += bpi_ref_mla_align(width * sizeof(float));
    p.keys = (float *)scratch;
    return p;
}

/* Orders scores as unsigned numbers: NaN is 0, below -inf; both zeros are equal. */
static uint64_t rank_of(double score)
{
    uint64_t u;
    if (score != score) return 0;
    score += 0.0; /* -0 becomes +0 */
    memcpy(&u, &score, sizeof u);
    return (u >> 63) != 0 ? ~u : u | (UINT64_C(1) << 63);
}

/* The k-th largest of n ranks (1 <= k <= n) and how many are larger, a byte at a time from the top. */
static uint64_t kth_largest(const uint64_t *ranks, int64_t n, int64_t k, int64_t *out_larger)
{
    uint64_t prefix = 0;
    int64_t larger = 0;
    for (int shift = 56; shift >= 0; shift -= 8) {
        int64_t count[256] = {0};
        for (int64_t i = 0; i < n; ++i) {
            if (shift == 56 || (ranks[i] >> (shift + 8)) == prefix)
                ++count[ranks[i] >> shift & 255];
        }
        int digit = 255;
        while (larger + count[digit] < k) larger += count[digit--];
        prefix = prefix << 8 | (uint64_t)digit;
    }
    *out_larger = larger;
    return prefix;
}

/* Scores of keys 0 .. n of one row, as ranks; `taps` (may be NULL) takes them as f32. */
static void score_row(const struct select_job *j, const struct parts *p, int64_t row, int64_t n,
                      float *taps)
{
    const struct bp_mla_select_args *a = j->a;
    const struct bp_mla_decode_meta *m = a->meta;
    const bool plain = j->pool.dtype == BP_DT_F32 && j->ref->round == BPI_REF_ROUND_NONE;
    const float *w = bpi_ref_at(&a->w, row, 0, 0);
    const float *rows[STEP];
    for (int64_t h = 0; h < j->n_head; ++h) {
        bpi_ref_mla_load_d(p->q + h * j->width, p->part, bpi_ref_at(&a->q, row, h, 0), a->q.dtype,
                           j->width, j->ref->round);
    }
    for (int64_t at = 0; at < n; at += STEP) {
        const uint32_t n_key = (uint32_t)(n - at < STEP ? n - at : STEP);
        for (uint32_t s = 0; s < n_key; ++s) {
            int64_t slot = bpi_ref_mla_slot(m->common, m->row_seq_host[row], at + s);
            const void *cell = bpi_ref_mla_pool_row(&j->pool, slot);
            rows[s] = plain ? cell : p->keys + s * j->width;
            if (plain) continue;
            bpi_ref_load(p->keys + s * j->width, cell, j->pool.dtype, j->width, j->ref->round);
        }
        bpi_ref_mla_dots(p->q, (uint32_t)j->n_head, rows, n_key, j->width, p->dots, STEP);
        for (uint32_t s = 0; s < n_key; ++s) {
            double sum = 0.0;
            for (int64_t h = 0; h < j->n_head; ++h) {
                double dot = p->dots[h * STEP + s];
                sum += (double)w[h] * (dot < 0.0 ? 0.0 : dot); /* NaN passes */
            }
            sum *= (double)a->scale;
            p->ranks[at + s] = rank_of(sum);
            if (taps != NULL) taps[at + s] = (float)sum;
        }
    }
}

static void select_item(void *arg, uint64_t item, unsigned char *scratch)
{
    const struct select_job *j = arg;
    const struct bp_mla_select_args *a = j->a;
    const struct bp_mla_decode_meta *m = a->meta;
    const int64_t row = (int64_t)item, n_idx = a->idx.dim[1], top_k = a->top_k;
    const int64_t n = m->row_kv_len_host[row] > 0 ? m->row_kv_len_host[row] : 0;
    const struct parts p = cut(j, scratch);
    int32_t *idx = bpi_ref_at(&a->idx, row, 0, 0);
    int32_t *idx_len = bpi_ref_at(&a->idx_len, row, 0, 0);
    float *taps = a->scores.data != NULL ? bpi_ref_at(&a->scores, row, 0, 0) : NULL;
    int64_t kept = 0;
    if (n > top_k || taps != NULL) score_row(j, &p, row, n, taps);
    for (int64_t at = n; taps != NULL && at < a->scores.dim[1]; ++at) taps[at] = -INFINITY;
    *idx_len = n > top_k ? (int32_t)top_k : -1;
    if (n > top_k) {
        int64_t larger;
        const uint64_t least = kth_largest(p.ranks, n, top_k, &larger);
        int64_t equal = top_k - larger; /* how many of those that tie stay */
        for (int64_t at = 0; at < n && kept < top_k; ++at) {
            if (p.ranks[at] < least || (p.ranks[at] == least && equal-- <= 0)) continue;
            idx[kept++] = (int32_t)bpi_ref_mla_slot(m->common, m->row_seq_host[row], at);
        }
    }
    while (kept < n_idx) idx[kept++] = -1;
}

/* Every key of every row lies in the pool, and every slot fits an index; finds the longest row. */
static int32_t check_rows(struct select_job *j, uint64_t *out_keys, const char *op,
                          struct bp_error *err)
{
    const struct bp_mla_decode_meta *m = j->a->meta;
    *out_keys = 0;
    for (int64_t row = 0; row < (int64_t)m->n_row_padded; ++row) {
        const int64_t n = m->row_kv_len_host[row];
        if (n <= 0) continue;
        BP_TRY(bpi_ref_mla_check_keys(m->common, &j->pool, m->row_seq_host[row], 0, n, op, err));
        if (j->a->scores.data != NULL && n > j->a->scores.dim[1]) {
            return bpi_fail(err, BP_E_ARG, "ref", op,
                            "row %" PRId64 " has %" PRId64 " keys, and scores holds %" PRId64, row,
                            n, j->a->scores.dim[1]);
        }
        if ((uint64_t)n > j->max_len) j->max_len = (uint64_t)n;
        *out_keys += (uint64_t)n;
    }
    if (j->pool.n_block > INT32_MAX / (int64_t)j->pool.block_tok) {
        return bpi_fail(err, BP_E_LIMIT, "ref", op,
                        "%" PRId64 " blocks of %u tokens are more slots than an index of 32 bits "
                        "can name",
                        j->pool.n_block, j->pool.block_tok);
    }
    return BP_OK;
}

static int32_t index_select(void *self, const struct bp_launch *l,
                            const struct bp_mla_select_args *a, struct bp_error *err)
{
    static const char op[] = "mla.index select";
    const struct bp_mla_decode_meta *m = a->meta;
    const int64_t n_row = m->n_row_padded;
    uint64_t n_key, slice;
    if (n_row == 0) return BP_OK;
    struct select_job j = {.ref = self, .a = a, .n_head = a->q.dim[1], .width = a->q.dim[2]};
    BP_TRY(bpi_ref_mla_port(&a->q, "q", BP_DT_NONE, n_row, j.n_head, j.width, op, err));
    BP_TRY(bpi_ref_mla_port(&a->w, "w", BP_DT_F32, n_row, j.n_head, 0, op, err));
    BP_TRY(bpi_ref_mla_port(&a->idx, "idx", BP_DT_I32, n_row, a->idx.dim[1], 0, op, err));
    BP_TRY(bpi_ref_mla_port(&a->idx_len, "idx_len", BP_DT_I32, n_row, 0, 0, op, err));
    if (a->scores.data != NULL) {
        BP_TRY(
            bpi_ref_mla_port(&a->scores, "scores", BP_DT_F32, n_row, a->scores.dim[1], 0, op, err));
    }
    if (a->top_k == 0 || a->top_k > a->idx.dim[1]) {
        return bpi_fail(err, BP_E_ARG, "ref", op, "top_k is %u, and idx has room for 1 to %" PRId64,
                        a->top_k, a->idx.dim[1]);
    }
    BP_TRY(bpi_ref_mla_pool_open(&a->pool, "mla.index", j.width, m->common->block_tok, op, &j.pool,
                                 err));
    BP_TRY(check_rows(&j, &n_key, op, err));
    if (!select_slice((uint64_t)j.n_head, (uint64_t)j.width, j.max_len, &slice)) return BP_E_LIMIT;
    return bpi_ref_mla_each(j.ref, l, (uint64_t)n_row, slice,
                            n_key * (uint64_t)(j.n_head * j.width), select_item, &j, op, err);
}

/* ---- table ---- */

static int32_t index_layouts(void *self, const struct bp_mla_problem *p, uint32_t i,
                             struct bp_kv_layout *out)
{
    (void)self;
    return bpi_ref_mla_layout_at("mla.index", p->index_dim, p->block_tok, p->kv_dtype, i, out);
}

static int32_t index_supports(void *self, const void *problem, struct bp_verdict *v)
{
    (void)self;
    struct bp_mla_problem p;
    bpi_ref_mla_check_problem(problem, &p, true, v);
    bpi_ref_mla_check_dim(v, "n_index_head", p.n_index_head);
    bpi_ref_mla_check_dim(v, "index_dim", p.index_dim);
    if (p.rope_dim > p.index_dim) {
        bpi_ref_refuse(v, BP_R_SHAPE, "rope_dim", p.rope_dim, 2, p.index_dim,
                       "an index key has fewer numbers than are rotated");
    }
    if (p.index_rope_style > BP_ROPE_HALF) {
        bpi_ref_refuse(v, BP_R_FEATURE, "index_rope_style", p.index_rope_style, BP_ROPE_INTERLEAVED,
                       BP_ROPE_HALF, "unknown style of rotation");
    }
    if (p.top_k == 0 || p.top_k > INT32_MAX) {
        bpi_ref_refuse(v, BP_R_SHAPE, "top_k", p.top_k, 1, INT32_MAX, "nothing could be chosen");
    }
    bpi_ref_mla_check_layout(v, "index_layout_id", "mla.index", p.index_layout_id, p.index_dim,
                             p.kv_dtype);
    bpi_ref_verdict_done(v);
    return BP_OK;
}

static int32_t index_workspace(void *self, const void *problem_max, struct bp_workspace *out,
                               struct bp_error *err)
{
    (void)self;
    const struct bp_mla_problem *p = problem_max;
    const uint64_t n_row = p->max_rows > p->max_tok ? p->max_rows : p->max_tok;
    uint64_t slice, select_bytes = 0, write_bytes = 0;
    if (!select_slice(p->n_index_head, p->index_dim, p->max_kv, &slice) ||
        !bpi_ref_mla_scratch(n_row, slice, &select_bytes) ||
        !bpi_ref_mla_scratch(p->max_tok, write_slice(p->index_dim), &write_bytes)) {
        return bpi_fail(err, BP_E_LIMIT, "ref", "mla.index workspace",
                        "the scratch of this problem overflows a 64-bit size");
    }
    bpi_ref_mla_workspace(out, select_bytes > write_bytes ? select_bytes : write_bytes);
    return BP_OK;
}

static int32_t index_tensors(void *self, uint32_t slot, const void *args, struct bp_tensor *t,
                             uint32_t *n)
{
    (void)self;
    struct bp_tensor ports[6];
    uint32_t count = 0;
    if (slot == BP_MLA_INDEX_OP_KEY_WRITE) {
        const struct bp_mla_key_write_args *a = args;
        ports[count++] = bpi_ref_port(&a->k, "k", BP_IN);
        ports[count++] = bpi_ref_port(&a->norm_w, "norm_w", BP_IN);
        ports[count++] = bpi_ref_port(&a->norm_b, "norm_b", BP_IN);
        ports[count++] = bpi_ref_port(&a->pool, "pool", BP_INOUT);
    } else if (slot == BP_MLA_INDEX_OP_SELECT) {
        const struct bp_mla_select_args *a = args;
        ports[count++] = bpi_ref_port(&a->q, "q", BP_IN);
        ports[count++] = bpi_ref_port(&a->w, "w", BP_IN);
        ports[count++] = bpi_ref_port(&a->pool, "pool", BP_IN);
        ports[count++] = bpi_ref_port(&a->idx, "idx", BP_OUT);
        ports[count++] = bpi_ref_port(&a->idx_len, "idx_len", BP_OUT);
        if (a->scores.data != NULL) ports[count++] = bpi_ref_port(&a->scores, "scores", BP_OUT);
    } else {
        return BP_E_ARG;
    }
    bpi_ref_list(ports, count, t, n);
    return BP_OK;
}

const struct bp_op_base *bpi_ref_mla_index_ops(void)
{
    static const struct bp_mla_index_ops ops = {
        .base = {.h = BP_HDR(struct bp_mla_index_ops, select),
                 .iface = "bp.mla.index",
                 .iface_major = 0,
                 .iface_minor = 1,
                 .supports = index_supports,
                 .workspace = index_workspace,
                 .tensors = index_tensors},
        .layouts = index_layouts,
        .key_write = index_key_write,
        .select = index_select,
    };
    return &ops.base;
}
