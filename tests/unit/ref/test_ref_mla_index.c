/* test_ref_mla_index.c - index keys and exact top-k selection of the reference MLA backend.
 * SPDX-License-Identifier: MIT */
#include "unit/ref/mla_fixture.h"

static const int32_t lens[] = {1, 12, 13, 65, 150};
enum { N_SEQ = 5, PAD = 2, MAX_ROW = 8 };
static const float eps = 1e-6f, scale = 0.25f;

/* ---- key_write ---- */

static void want_key(const struct fx_cache *c, const struct bp_mla_key_write_args *a, int64_t t,
                     uint32_t style, double *out)
{
    const int64_t n = c->width, half = c->meta.rope_cos.dim[1], pos = c->positions[t];
    double mean = 0, var = 0, y[128];
    for (int64_t i = 0; i < n; ++i) mean += fx_get(&a->k, t, i, 0) / (double)n;
    for (int64_t i = 0; i < n; ++i) var += pow(fx_get(&a->k, t, i, 0) - mean, 2) / (double)n;
    for (int64_t i = 0; i < n; ++i) {
        y[i] = (fx_get(&a->k, t, i, 0) - mean) / sqrt(var + (double)a->eps) *
                   fx_get(&a->norm_w, i, 0, 0) +
               fx_get(&a->norm_b, i, 0, 0);
        out[i] = y[i]; /* what lies beyond the rotated part stays */
    }
    for (int64_t i = 0; i < half; ++i) {
        int64_t p = style == BP_ROPE_HALF ? i : 2 * i, q = style == BP_ROPE_HALF ? i + half : p + 1;
        double co = fx_get(&c->meta.rope_cos, pos, i, 0), si = fx_get(&c->meta.rope_sin, pos, i, 0);
        out[p] = y[p] * co - y[q] * si;
        out[q] = y[p] * si + y[q] * co;
    }
}

/* Both styles right, and each wrong when compared as the other; every dtype; -1 writes nothing. */
START_TEST(test_key_write)
{
    static const uint32_t dtypes[] = {BP_DT_F32, BP_DT_BF16, BP_DT_F16};
    for (int i = 0; i < 12; ++i) {
        struct fx f;
        struct fx_cache c;
        double want[128], other[128];
        const int64_t width = i % 4 < 2 ? 128 : 24, n_rope = i % 4 < 2 ? 64 : 24;
        const uint32_t style = i % 2 ? BP_ROPE_HALF : BP_ROPE_INTERLEAVED;
        int swapped = 0;
        fx_open(&f, 2, BPI_REF_ROUND_NONE, fx_seed() + (uint64_t)i);
        fx_cache(&f, &c, "mla.index", dtypes[i / 4], width, 16, N_SEQ, lens, n_rope);
        fx_write_all(&c);
        c.slots[40] = -1;
        struct bp_mla_key_write_args a = {.h = BP_HDR(struct bp_mla_key_write_args, rope_style),
                                          .meta = &c.meta,
                                          .pool = c.pool,
                                          .eps = eps,
                                          .rope_style = style};
        a.k = fx_random_tensor(&f, dtypes[(i + i / 4) % 3], c.meta.n_tok, width, 0, 5, 2.0);
        a.norm_w = fx_random_tensor(&f, BP_DT_F32, width, 0, 0, 0, 1.5);
        a.norm_b = fx_random_tensor(&f, BP_DT_F32, width, 0, 0, 0, 0.5);
        FX_OK(f.index->key_write(&f.ref, &f.l, &a, &fx_err));
        for (uint32_t t = 0; t < c.meta.n_tok; ++t) {
            if (t == 40) continue;
            const char *cell =
                (char *)c.pool.data + (size_t)(c.slots[t] * width) * fx_size(c.dtype);
            want_key(&c, &a, t, style, want);
            want_key(&c, &a, t, 1 - style, other);
            for (int64_t k = 0; k < width; ++k) {
                double got = fx_read(cell + (size_t)k * fx_size(c.dtype), c.dtype);
                FX_CHECK_MSG(fx_near(got, want[k], c.dtype, 10), "token %u, %lld: %.9g, want %.9g",
                             t, (long long)k, got, want[k]);
                swapped += !fx_near(got, other[k], c.dtype, 10);
            }
        }
        ck_assert_int_gt(swapped, (int)c.meta.n_tok);
        for (int64_t k = 0; k < width; ++k) FX_CHECK(isnan(fx_cached(&c, 3, 40 - 26, k)));
        a.rope_style = 2;
        FX_FAILS(BP_E_ARG, "style 2", f.index->key_write(&f.ref, &f.l, &a, &fx_err));
        c.meta.n_tok = 0;
        FX_OK(f.index->key_write(&f.ref, &f.l, &a, &fx_err));
        fx_close(&f);
    }
}
END_TEST

/* ---- select ---- */

struct rows {
    int32_t seq[MAX_ROW + PAD], len[MAX_ROW + PAD];
    struct bp_mla_decode_meta m;
    struct bp_mla_select_args a;
};

static void make_rows(struct fx *f, const struct fx_cache *c, struct rows *r, uint32_t n,
                      const int32_t *seq, const int32_t *len, int64_t n_head, uint32_t top_k,
                      uint32_t act)
{
    memset(r, 0, sizeof *r);
    r->m = (struct bp_mla_decode_meta){.h = BP_HDR(struct bp_mla_decode_meta, row_kv_len_host),
                                       .common = &c->meta,
                                       .n_row = n,
                                       .n_row_padded = n + PAD,
                                       .max_kv = c->meta.max_kv};
    for (uint32_t i = 0; i < n; ++i) {
        r->seq[i] = seq[i];
        r->len[i] = len[i];
    }
    for (uint32_t i = n; i < n + PAD; ++i) r->seq[i] = -3;
    r->m.row_seq_host = r->seq;
    r->m.row_kv_len_host = r->len;
    r->a = (struct bp_mla_select_args){.h = BP_HDR(struct bp_mla_select_args, top_k),
                                       .meta = &r->m,
                                       .pool = c->pool,
                                       .scale = scale,
                                       .top_k = top_k};
    r->a.q = fx_random_tensor(f, act, n + PAD, n_head, c->width, 3, 1.0);
    r->a.w = fx_random_tensor(f, BP_DT_F32, n + PAD, n_head, 0, 2, 1.0);
    r->a.idx = fx_tensor(f, BP_DT_I32, n + PAD, top_k + 2, 0, 1);
    r->a.idx_len = fx_tensor(f, BP_DT_I32, n + PAD, 0, 0, 0);
    r->a.scores = fx_tensor(f, BP_DT_F32, n + PAD, c->meta.max_kv, 0, 3);
}

static double want_score(const struct fx_cache *c, const struct rows *r, int64_t row, int64_t at)
{
    double sum = 0;
    for (int64_t h = 0; h < r->a.q.dim[1]; ++h) {
        double dot = 0;
        for (int64_t i = 0; i < c->width; ++i) {
            dot += fx_get(&r->a.q, row, h, i) * fx_cached(c, r->seq[row], at, i);
        }
        sum += fx_get(&r->a.w, row, h, 0) * fmax(dot, 0.0);
    }
    return (double)scale * sum;
}

/* Is position b to be chosen before a? Larger score first, then lower position; NaN last. */
static bool before(const double *s, int64_t b, int64_t a)
{
    if (isnan(s[a]) || isnan(s[b])) return isnan(s[a]) && (!isnan(s[b]) || b < a);
    return s[b] > s[a] || (s[b] == s[a] && b < a);
}

/* Does row hold exactly the top_k positions of s[0..n), ascending, as token slots? By counting, not by sorting. */
static void check_choice(const struct fx_cache *c, const struct rows *r, int64_t row,
                         const double *s)
{
    const int64_t n = r->len[row], k = r->a.top_k;
    int64_t kept = 0;
    if (n <= k) {
        FX_CHECK(fx_get(&r->a.idx_len, row, 0, 0) == -1);
        return;
    }
    FX_CHECK(fx_get(&r->a.idx_len, row, 0, 0) == (double)k);
    for (int64_t at = 0; at < n; ++at) {
        int64_t better = 0;
        for (int64_t other = 0; other < n; ++other) better += before(s, other, at);
        if (better >= k) continue;
        FX_CHECK_MSG(fx_get(&r->a.idx, row, kept, 0) == (double)fx_slot(c, r->seq[row], at),
                     "row %lld: entry %lld should be position %lld", (long long)row,
                     (long long)kept, (long long)at);
        ++kept;
    }
    ck_assert_int_eq(kept, k);
    for (; kept < r->a.idx.dim[1]; ++kept) FX_CHECK(fx_get(&r->a.idx, row, kept, 0) == -1);
}

static void run(struct fx *f, const struct rows *r)
{
    FX_OK(f->index->select(&f->ref, &f->l, &r->a, &fx_err));
}

static const int32_t row_seq[] = {4, 4, 3, 2, 1, 0, 4, 2};
static const int32_t row_len[] = {150, 149, 65, 13, 12, 1, 0, 11};

/* top_k below, equal to and above the length; scores, lists and lengths of every row; every dtype. */
START_TEST(test_select)
{
    static const uint32_t top_ks[] = {1, 11, 12, 13, 64, 149, 150, 400};
    static const uint32_t dtypes[] = {BP_DT_F32, BP_DT_BF16, BP_DT_F16};
    for (size_t i = 0; i < BPI_ARRAY_LEN(top_ks); ++i) {
        struct fx f;
        struct fx_cache c;
        struct rows r;
        fx_open(&f, 2, BPI_REF_ROUND_NONE, fx_seed() + i);
        fx_cache(&f, &c, "mla.index", dtypes[i % 3], i % 2 ? 128 : 23, 16, N_SEQ, lens, 0);
        fx_cache_fill(&f, &c, 1.0);
        make_rows(&f, &c, &r, 8, row_seq, row_len, i % 2 ? 8 : 3, top_ks[i], dtypes[(i + 1) % 3]);
        run(&f, &r);
        for (int64_t row = 0; row < 8; ++row) {
            double s[150];
            for (int64_t at = 0; at < row_len[row]; ++at) {
                s[at] = want_score(&c, &r, row, at);
                FX_CHECK(fx_near(fx_get(&r.a.scores, row, at, 0), s[at], BP_DT_F32, 100));
            }
            for (int64_t at = row_len[row]; at < r.a.scores.dim[1]; ++at) {
                FX_CHECK(fx_get(&r.a.scores, row, at, 0) == -INFINITY);
            }
            check_choice(&c, &r, row, s);
        }
        for (int64_t row = 8; row < 8 + PAD; ++row) {
            FX_CHECK(fx_get(&r.a.idx_len, row, 0, 0) == -1);
        }
        struct bp_tensor idx = r.a.idx, len = r.a.idx_len; /* without scores: the same choice */
        r.a.idx = fx_tensor(&f, BP_DT_I32, 8 + PAD, idx.dim[1], 0, 0);
        r.a.idx_len = fx_tensor(&f, BP_DT_I32, 8 + PAD, 0, 0, 0);
        r.a.scores.data = NULL;
        run(&f, &r);
        FX_CHECK(fx_same_bits(&r.a.idx, &idx) && fx_same_bits(&r.a.idx_len, &len));
        fx_close(&f);
    }
}
END_TEST

/* Many equal scores: keys take few values, so that every threshold cuts through a tie. */
START_TEST(test_ties)
{
    for (uint32_t top_k = 1; top_k < 150; top_k += 7) {
        struct fx f;
        struct fx_cache c;
        struct rows r;
        fx_open(&f, 1, BPI_REF_ROUND_NONE, fx_seed() + top_k);
        fx_cache(&f, &c, "mla.index", BP_DT_BF16, 2, 16, N_SEQ, lens, 0);
        for (int64_t at = 0; at < 150; ++at) {
            fx_write(fx_cell(&c, 4, at, 0), BP_DT_BF16, (double)bpi_rng_below(&f.rng, 4) - 1.0);
            fx_write(fx_cell(&c, 4, at, 1), BP_DT_BF16, 0.0);
        }
        make_rows(&f, &c, &r, 2, row_seq, row_len, 2, top_k, BP_DT_F32);
        for (int64_t row = 0; row < 2; ++row) {
            for (int64_t h = 0; h < 2; ++h) {
                fx_set(&r.a.q, row, h, 0, 1.0);
                fx_set(&r.a.q, row, h, 1, -0.0);
                fx_set(&r.a.w, row, h, 0, row == 0 ? 0.5 : -0.5); /* -0 and +0 are one score */
            }
        }
        run(&f, &r);
        for (int64_t row = 0; row < 2; ++row) {
            double s[150];
            for (int64_t at = 0; at < row_len[row]; ++at) s[at] = want_score(&c, &r, row, at);
            check_choice(&c, &r, row, s);
        }
        fx_close(&f);
    }
}
END_TEST

/* Scores spread over all magnitudes and both signs, where an order by raw bits would go wrong. */
START_TEST(test_magnitudes)
{
    struct fx f;
    struct fx_cache c;
    struct rows r;
    double s[150];
    fx_open(&f, 1, BPI_REF_ROUND_NONE, fx_seed());
    fx_cache(&f, &c, "mla.index", BP_DT_F32, 1, 16, N_SEQ, lens, 0);
    for (int64_t at = 0; at < 150; ++at) {
        double v = pow(10.0, fx_random(&f, 36.0));
        fx_write(fx_cell(&c, 4, at, 0), BP_DT_F32, at % 2 ? v : -v);
    }
    for (uint32_t top_k = 1; top_k < 150; top_k += 11) {
        make_rows(&f, &c, &r, 1, row_seq, row_len, 2, top_k, BP_DT_F32);
        fx_set(&r.a.q, 0, 0, 0, 1.0); /* w relu(k) - w relu(-k): the sign of k survives */
        fx_set(&r.a.q, 0, 1, 0, -1.0);
        fx_set(&r.a.w, 0, 0, 0, 1.0);
        fx_set(&r.a.w, 0, 1, 0, -1.0);
        run(&f, &r);
        for (int64_t at = 0; at < 150; ++at) s[at] = want_score(&c, &r, 0, at);
        check_choice(&c, &r, 0, s);
    }
    fx_close(&f);
}
END_TEST

/* NaN keys are chosen last, lowest position first; NaN in one row's query leaves the other rows alone. */
START_TEST(test_nan)
{
    struct fx f;
    struct fx_cache c;
    struct rows r;
    double s[150];
    fx_open(&f, 1, BPI_REF_ROUND_NONE, fx_seed());
    fx_cache(&f, &c, "mla.index", BP_DT_F32, 16, 16, N_SEQ, lens, 0);
    fx_cache_fill(&f, &c, 1.0);
    for (int64_t at = 0; at < 150; at += 2) fx_write(fx_cell(&c, 4, at, 3), BP_DT_F32, NAN);
    static const uint32_t top_ks[] = {10, 74, 75, 76, 100, 149};
    for (size_t i = 0; i < BPI_ARRAY_LEN(top_ks); ++i) {
        make_rows(&f, &c, &r, 3, row_seq, row_len, 4, top_ks[i], BP_DT_F32);
        fx_set(&r.a.q, 1, 0, 0, NAN);
        run(&f, &r);
        for (int64_t at = 0; at < 150; ++at) {
            s[at] = at % 2 ? want_score(&c, &r, 0, at) : NAN;
            FX_CHECK(isnan(fx_get(&r.a.scores, 0, at, 0)) == (at % 2 == 0));
        }
        check_choice(&c, &r, 0, s);
        for (int64_t at = 0; at < 149; ++at) s[at] = NAN;
        check_choice(&c, &r, 1, s); /* all NaN: the first top_k positions */
        for (int64_t at = 0; at < 65; ++at) s[at] = want_score(&c, &r, 2, at);
        check_choice(&c, &r, 2, s);
    }
    fx_close(&f);
}
END_TEST

/* A row alone has the scores and the choice that it has in a batch, bit for bit. */
START_TEST(test_rows_are_independent)
{
    struct fx f;
    struct fx_cache c;
    struct rows r, one;
    fx_open(&f, 3, BPI_REF_ROUND_NONE, fx_seed());
    fx_cache(&f, &c, "mla.index", BP_DT_F16, 128, 16, N_SEQ, lens, 0);
    fx_cache_fill(&f, &c, 1.0);
    make_rows(&f, &c, &r, 8, row_seq, row_len, 5, 20, BP_DT_F32);
    run(&f, &r);
    for (int64_t row = 0; row < 8; ++row) {
        make_rows(&f, &c, &one, 1, row_seq + row, row_len + row, 5, 20, BP_DT_F32);
        for (int64_t h = 0; h < 5; ++h) {
            memcpy(fx_at(&one.a.q, 0, h, 0), fx_at(&r.a.q, row, h, 0), 128 * 4);
            fx_set(&one.a.w, 0, h, 0, fx_get(&r.a.w, row, h, 0));
        }
        run(&f, &one);
        struct bp_tensor got = fx_rows(&one.a.idx, 0, 1), want = fx_rows(&r.a.idx, row, row + 1);
        FX_CHECK(fx_same_bits(&got, &want));
        got = fx_rows(&one.a.scores, 0, 1);
        want = fx_rows(&r.a.scores, row, row + 1);
        FX_CHECK(fx_same_bits(&got, &want));
    }
    fx_close(&f);
}
END_TEST

/* Rounding applies to queries and keys, never to the F32 weights of the heads. */
START_TEST(test_round_modes)
{
    static const uint32_t rounds[] = {BPI_REF_ROUND_BF16, BPI_REF_ROUND_F16};
    for (int i = 0; i < 2; ++i) {
        struct fx f;
        struct fx_cache c;
        struct rows r;
        int moved = 0;
        fx_open(&f, 1, rounds[i], fx_seed());
        fx_cache(&f, &c, "mla.index", BP_DT_F32, 32, 16, N_SEQ, lens, 0);
        fx_cache_fill(&f, &c, 1.0);
        make_rows(&f, &c, &r, 1, row_seq, row_len, 2, 20, BP_DT_F32);
        run(&f, &r);
        for (int64_t at = 0; at < 150; ++at) {
            double sum = 0, got = fx_get(&r.a.scores, 0, at, 0);
            for (int64_t h = 0; h < 2; ++h) {
                double dot = 0;
                for (int64_t k = 0; k < 32; ++k) {
                    dot += fx_rounded(fx_get(&r.a.q, 0, h, k), rounds[i]) *
                           fx_rounded(fx_cached(&c, 4, at, k), rounds[i]);
                }
                sum += fx_get(&r.a.w, 0, h, 0) * fmax(dot, 0.0);
            }
            FX_CHECK(fx_near(got, (double)scale * sum, BP_DT_F32, 10));
            moved += !fx_near(got, want_score(&c, &r, 0, at), BP_DT_F32, 10);
        }
        ck_assert_int_gt(moved, 0);
        fx_close(&f);
    }
}
END_TEST

START_TEST(test_bad_args)
{
    struct fx f;
    struct fx_cache c;
    struct rows r;
    fx_open(&f, 1, BPI_REF_ROUND_NONE, fx_seed());
    fx_cache(&f, &c, "mla.index", BP_DT_F32, 16, 16, N_SEQ, lens, 0);
    fx_cache_fill(&f, &c, 1.0);
    make_rows(&f, &c, &r, 2, row_seq, row_len, 4, 10, BP_DT_F32);
    r.a.top_k = 13; /* idx has room for 12 */
    FX_FAILS(BP_E_ARG, "top_k is 13", f.index->select(&f.ref, &f.l, &r.a, &fx_err));
    r.a.top_k = 0;
    FX_FAILS(BP_E_ARG, "top_k is 0", f.index->select(&f.ref, &f.l, &r.a, &fx_err));
    r.a.top_k = 10;
    r.a.scores.dim[1] = 149;
    FX_FAILS(BP_E_ARG, "scores holds 149", f.index->select(&f.ref, &f.l, &r.a, &fx_err));
    r.a.scores.dim[1] = 150;
    r.seq[1] = 5;
    FX_FAILS(BP_E_ARG, "sequence 5", f.index->select(&f.ref, &f.l, &r.a, &fx_err));
    r.seq[1] = 4;
    r.a.pool.layout_id = fx_layout("mla", BP_DT_F32, 16);
    FX_FAILS(BP_E_ARG, "layout id", f.index->select(&f.ref, &f.l, &r.a, &fx_err));
    fx_close(&f);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("index");
    tcase_add_test(tc, test_key_write);
    tcase_add_test(tc, test_select);
    tcase_add_test(tc, test_ties);
    tcase_add_test(tc, test_magnitudes);
    tcase_add_test(tc, test_nan);
    tcase_add_test(tc, test_rows_are_independent);
    tcase_add_test(tc, test_round_modes);
    tcase_add_test(tc, test_bad_args);
    return fx_main(tc, "ref_mla_index");
}
