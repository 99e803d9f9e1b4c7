/* test_ref_mla_decode.c - absorbed decode of the reference MLA backend against plain double loops.
 * SPDX-License-Identifier: MIT */
#include "unit/ref/mla_fixture.h"

static const int32_t lens[] = {1, 63, 64, 65, 150};
enum { N_SEQ = 5, MAX_ROW = 12, PAD = 2 };
static const float scale = 0.3f;

struct dims {
    int64_t h, c, r;
};
static const struct dims all_dims[] = {{3, 80, 16}, {8, 512, 64}, {1, 5, 2}, {6, 33, 6}};

/* Rows against a cache. row i belongs to sequence seq[i] and sees len[i] keys; PAD padded rows follow. */
struct rows {
    int32_t seq[MAX_ROW + PAD], len[MAX_ROW + PAD];
    struct bp_mla_decode_meta m;
    struct bp_mla_decode_args a;
};

static void make_rows(struct fx *f, const struct fx_cache *c, struct rows *r, const struct dims *d,
                      uint32_t n, const int32_t *seq, const int32_t *len, uint32_t act)
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
    for (uint32_t i = n; i < n + PAD; ++i) r->seq[i] = 12345; /* padding names no sequence */
    r->m.row_seq_host = r->seq;
    r->m.row_kv_len_host = r->len;
    r->a = (struct bp_mla_decode_args){.h = BP_HDR(struct bp_mla_decode_args, reserved),
                                       .meta = &r->m,
                                       .pool = c->pool,
                                       .scale = scale};
    r->a.q = fx_random_tensor(f, act, n + PAD, d->h, d->c + d->r, 3, 1.0);
    r->a.out = fx_tensor(f, act, n + PAD, d->h, d->c, 4);
    r->a.lse = fx_tensor(f, BP_DT_F32, n + PAD, d->h, 0, 1);
    for (uint32_t i = n; i < n + PAD; ++i) { /* padded queries hold NaN */
        for (int64_t h = 0; h < d->h; ++h) {
            for (int64_t k = 0; k < d->c + d->r; ++k) fx_set(&r->a.q, i, h, k, NAN);
        }
    }
}

static void run(struct fx *f, const struct rows *r)
{
    FX_OK(f->decode->plan(&f->ref, &f->l, &r->m, &fx_err));
    FX_OK(f->decode->run(&f->ref, &f->l, &r->a, &fx_err));
}

/* Attention of row i, head h over positions at[0..n) of its sequence, from the definition. */
static double want_row(const struct fx_cache *c, const struct rows *r, int64_t i, int64_t h,
                       const int32_t *at, int64_t n, uint32_t round, double use_scale, double *out)
{
    const int64_t n_latent = r->a.out.dim[2];
    double max = -INFINITY, sum = 0, s[256];
    for (int64_t v = 0; v < n_latent; ++v) out[v] = 0;
    for (int64_t k = 0; k < n; ++k) {
        s[k] = 0;
        for (int64_t e = 0; e < c->width; ++e) {
            s[k] += fx_rounded(fx_get(&r->a.q, i, h, e), round) *
                    fx_rounded(fx_cached(c, r->seq[i], at[k], e), round);
        }
        s[k] *= use_scale;
        max = fmax(max, s[k]);
    }
    for (int64_t k = 0; k < n; ++k) sum += exp(s[k] - max);
    for (int64_t k = 0; k < n; ++k) {
        for (int64_t v = 0; v < n_latent; ++v) {
            out[v] += exp(s[k] - max) / sum * fx_rounded(fx_cached(c, r->seq[i], at[k], v), round);
        }
    }
    return n == 0 ? -INFINITY : max + log(sum);
}

static int misses(const struct fx_cache *c, const struct rows *r, int64_t i, const int32_t *at,
                  int64_t n, double use_scale)
{
    double want[512];
    int n_miss = 0;
    for (int64_t h = 0; h < r->a.q.dim[1]; ++h) {
        double lse = want_row(c, r, i, h, at, n, 0, use_scale, want);
        double got = fx_get(&r->a.lse, i, h, 0);
        n_miss += n == 0 ? got != -INFINITY : !fx_near(got, lse, BP_DT_F32, 10);
        for (int64_t v = 0; v < r->a.out.dim[2]; ++v) {
            n_miss += !fx_near(fx_get(&r->a.out, i, h, v), want[v], r->a.out.dtype, 10);
        }
    }
    return n_miss;
}

static const int32_t all[] = {
#define TEN(n) n + 0, n + 1, n + 2, n + 3, n + 4, n + 5, n + 6, n + 7, n + 8, n + 9
    TEN(0),  TEN(10), TEN(20),  TEN(30),  TEN(40),  TEN(50),  TEN(60), TEN(70),
    TEN(80), TEN(90), TEN(100), TEN(110), TEN(120), TEN(130), TEN(140)};

/* Ragged rows over shuffled blocks with NaN in every slot that no sequence uses; empty and padded rows. */
START_TEST(test_dense)
{
    static const uint32_t dtypes[] = {BP_DT_F32, BP_DT_BF16, BP_DT_F16};
    static const int32_t seq[] = {4, 0, 1, 2, 3, 4, 4, 2, 1},
                         len[] = {150, 1, 63, 64, 65, 77, 1, 0, 20};
    for (int i = 0; i < 12; ++i) {
        struct fx f;
        struct fx_cache c;
        struct rows r;
        const struct dims d = all_dims[i % 4];
        fx_open(&f, 2, BPI_REF_ROUND_NONE, fx_seed() + (uint64_t)i);
        fx_cache(&f, &c, "mla", dtypes[i / 4], d.c + d.r, i % 2 ? 64 : 16, N_SEQ, lens, 0);
        fx_cache_fill(&f, &c, 1.0);
        make_rows(&f, &c, &r, &d, 9, seq, len, dtypes[(i + i / 4) % 3]);
        run(&f, &r);
        int scaled = 0;
        for (int64_t row = 0; row < 9 + PAD; ++row) {
            int32_t n = row < 9 ? len[row] : 0;
            ck_assert_int_eq(misses(&c, &r, row, all, n, (double)scale), 0);
            scaled += misses(&c, &r, row, all, n, (double)scale * 1.59);
        }
        ck_assert_int_gt(scaled, 0); /* the comparison sees a wrong scale */
        fx_close(&f);
    }
}
END_TEST

/* Lists: in any mixture with dense rows (-1), with -1 inside, empty, longer than a step. */
START_TEST(test_lists)
{
    static const int32_t seq[] = {4, 4, 3, 4, 2, 0, 4}, len[] = {150, 150, 65, 149, 64, 1, 0};
    static const int32_t n_list[] = {5, -1, 12, 100, 0, 1, 3};
    enum { TOP_K = 100 };
    struct fx f;
    struct fx_cache c;
    struct rows r;
    const struct dims d = all_dims[0];
    fx_open(&f, 2, BPI_REF_ROUND_NONE, fx_seed());
    fx_cache(&f, &c, "mla", BP_DT_BF16, d.c + d.r, 16, N_SEQ, lens, 0);
    fx_cache_fill(&f, &c, 1.0);
    make_rows(&f, &c, &r, &d, 7, seq, len, BP_DT_F32);
    r.a.idx = fx_tensor(&f, BP_DT_I32, 7 + PAD, TOP_K, 0, 2);
    r.a.idx_len = fx_tensor(&f, BP_DT_I32, 7 + PAD, 0, 0, 0);
    int32_t at[7][TOP_K];
    int64_t n_at[7] = {0};
    for (int64_t row = 0; row < 7; ++row) {
        fx_set(&r.a.idx_len, row, 0, 0, n_list[row]);
        int32_t pos = 0;
        for (int64_t k = 0; k < n_list[row]; ++k) {
            if (row == 2 && k % 3 == 1) continue; /* stays -1 */
            pos += n_list[row] == TOP_K ? k % 3 == 2 : (int32_t)bpi_rng_below(&f.rng, 4);
            if (row >= 5) pos = 0; /* one key; an empty row, with a list of an unused slot */
            fx_set(&r.a.idx, row, k, 0, row == 6 ? 1 : (double)fx_slot(&c, seq[row], pos));
            at[row][n_at[row]++] = pos++;
        }
    }
    fx_set(&r.a.idx_len, 7, 0, 0, 77777); /* padding may hold anything */
    fx_set(&r.a.idx_len, 8, 0, 0, -9);
    n_at[6] = 0;
    run(&f, &r);
    for (int64_t row = 0; row < 7; ++row) {
        if (n_list[row] < 0) {
            ck_assert_int_eq(misses(&c, &r, row, all, len[row], (double)scale), 0);
        } else {
            ck_assert_int_eq(misses(&c, &r, row, at[row], n_at[row], (double)scale), 0);
        }
    }
    ck_assert_int_gt(misses(&c, &r, 0, all, 5, (double)scale), 0); /* the choice of keys is seen */
    fx_close(&f);
}
END_TEST

/* A list of all positions gives the bits of the dense row, with skipped entries anywhere. */
START_TEST(test_full_list_is_dense)
{
    static const int32_t seq[] = {4, 4, 1}, len[] = {150, 150, 63};
    struct fx f;
    struct fx_cache c;
    struct rows r;
    const struct dims d = all_dims[3];
    fx_open(&f, 1, BPI_REF_ROUND_NONE, fx_seed());
    fx_cache(&f, &c, "mla", BP_DT_F32, d.c + d.r, 16, N_SEQ, lens, 0);
    fx_cache_fill(&f, &c, 1.0);
    make_rows(&f, &c, &r, &d, 3, seq, len, BP_DT_F32);
    run(&f, &r);
    struct bp_tensor dense = r.a.out, dense_lse = r.a.lse;
    r.a.out = fx_tensor(&f, BP_DT_F32, 3 + PAD, d.h, d.c, 0);
    r.a.lse = fx_tensor(&f, BP_DT_F32, 3 + PAD, d.h, 0, 0);
    r.a.idx = fx_tensor(&f, BP_DT_I32, 3 + PAD, 200, 0, 0);
    r.a.idx_len = fx_tensor(&f, BP_DT_I32, 3 + PAD, 0, 0, 0);
    for (int64_t row = 0; row < 3; ++row) {
        for (int64_t k = 0, pos = 0; pos < len[row]; ++k) {
            if (row == 1 && k % 5 == 2) continue;
            fx_set(&r.a.idx, row, k, 0, (double)fx_slot(&c, seq[row], pos++));
        }
        fx_set(&r.a.idx_len, row, 0, 0, 200);
    }
    run(&f, &r);
    FX_CHECK(fx_same_bits(&r.a.out, &dense) && fx_same_bits(&r.a.lse, &dense_lse));
    fx_close(&f);
}
END_TEST

/* Alone, in a batch, in another order, with one thread or three: the same bits. */
START_TEST(test_rows_are_independent)
{
    static const int32_t seq[] = {4, 0, 1, 2, 3, 4, 1}, len[] = {150, 1, 63, 64, 65, 77, 3};
    for (int i = 0; i < 2; ++i) {
        struct fx f;
        struct fx_cache c;
        struct rows r, one;
        const struct dims d = all_dims[i];
        fx_open(&f, 3, BPI_REF_ROUND_NONE, fx_seed() + (uint64_t)i);
        fx_cache(&f, &c, "mla", i ? BP_DT_F32 : BP_DT_F16, d.c + d.r, 64, N_SEQ, lens, 0);
        fx_cache_fill(&f, &c, 1.0);
        make_rows(&f, &c, &r, &d, 7, seq, len, BP_DT_F32);
        run(&f, &r);
        for (int64_t row = 6; row >= 0; --row) {
            make_rows(&f, &c, &one, &d, 1, seq + row, len + row, BP_DT_F32);
            for (int64_t h = 0; h < d.h; ++h) {
                memcpy(fx_at(&one.a.q, 0, h, 0), fx_at(&r.a.q, row, h, 0), (size_t)(d.c + d.r) * 4);
            }
            run(&f, &one);
            struct bp_tensor got = fx_rows(&one.a.out, 0, 1);
            struct bp_tensor want = fx_rows(&r.a.out, row, row + 1);
            FX_CHECK(fx_same_bits(&got, &want));
            got = fx_rows(&one.a.lse, 0, 1);
            want = fx_rows(&r.a.lse, row, row + 1);
            FX_CHECK(fx_same_bits(&got, &want));
            struct bp_mla_decode_args heads = one.a; /* one head at a time */
            for (int64_t h = 0; h < d.h; ++h) {
                heads.q.data = fx_at(&one.a.q, 0, h, 0);
                heads.out.data = fx_at(&one.a.out, 0, h, 0);
                heads.lse.data = NULL;
                heads.q.dim[1] = heads.out.dim[1] = 1;
                one.m.n_row_padded = 1;
                heads.q.dim[0] = heads.out.dim[0] = 1;
                FX_OK(f.decode->run(&f.ref, &f.l, &heads, &fx_err));
            }
            got = fx_rows(&one.a.out, 0, 1);
            want = fx_rows(&r.a.out, row, row + 1);
            FX_CHECK(fx_same_bits(&got, &want));
        }
        fx_close(&f);
    }
}
END_TEST

/* NaN in one sequence's cache or one row's query stays in that row; a huge constant in the rotated part of every key
 * never shows in the values. */
START_TEST(test_nan_and_rope_part)
{
    static const int32_t seq[] = {4, 1, 3}, len[] = {100, 63, 65};
    struct fx f;
    struct fx_cache c;
    struct rows r;
    const struct dims d = all_dims[0];
    fx_open(&f, 2, BPI_REF_ROUND_NONE, fx_seed());
    fx_cache(&f, &c, "mla", BP_DT_F32, d.c + d.r, 64, N_SEQ, lens, 0);
    fx_cache_fill(&f, &c, 1.0);
    for (int32_t at = 0; at < 65; ++at) {
        for (int64_t i = d.c; i < d.c + d.r; ++i) fx_write(fx_cell(&c, 3, at, i), c.dtype, 1e6);
    }
    make_rows(&f, &c, &r, &d, 3, seq, len, BP_DT_F32);
    run(&f, &r);
    for (int64_t h = 0; h < d.h; ++h) {
        for (int64_t v = 0; v < d.c; ++v) FX_CHECK(fabs(fx_get(&r.a.out, 2, h, v)) <= 1.0);
    }
    struct bp_tensor clean = r.a.out;
    r.a.out = fx_tensor(&f, BP_DT_F32, 3 + PAD, d.h, d.c, 0);
    fx_write(fx_cell(&c, 4, 130, 0), c.dtype, NAN); /* beyond the row's length: not seen */
    run(&f, &r);
    FX_CHECK(fx_same_bits(&r.a.out, &clean));
    fx_write(fx_cell(&c, 4, 99, d.c), c.dtype, NAN);
    fx_set(&r.a.q, 1, 2, 0, NAN);
    run(&f, &r);
    for (int64_t row = 0; row < 3; ++row) {
        for (int64_t h = 0; h < d.h; ++h) {
            bool own = row == 0 || (row == 1 && h == 2);
            double got = fx_get(&r.a.out, row, h, 3), want = fx_get(&clean, row, h, 3);
            FX_CHECK(own ? isnan(got) : got == want);
        }
    }
    fx_close(&f);
}
END_TEST

START_TEST(test_round_modes)
{
    static const uint32_t rounds[] = {BPI_REF_ROUND_BF16, BPI_REF_ROUND_F16};
    static const int32_t seq[] = {4}, len[] = {90};
    for (int i = 0; i < 2; ++i) {
        struct fx f;
        struct fx_cache c;
        struct rows r;
        double rounded[80], plain[80];
        int moved = 0;
        const struct dims d = all_dims[0];
        const double ulp = rounds[i] == BPI_REF_ROUND_BF16 ? 0x1p-7 : 0x1p-10;
        fx_open(&f, 1, rounds[i], fx_seed());
        fx_cache(&f, &c, "mla", BP_DT_F32, d.c + d.r, 64, N_SEQ, lens, 0);
        fx_cache_fill(&f, &c, 1.0);
        make_rows(&f, &c, &r, &d, 1, seq, len, BP_DT_F32);
        run(&f, &r);
        double lse = want_row(&c, &r, 0, 1, all, 90, rounds[i], (double)scale, rounded);
        (void)want_row(&c, &r, 0, 1, all, 90, BPI_REF_ROUND_NONE, (double)scale, plain);
        FX_CHECK(fx_near(fx_get(&r.a.lse, 0, 1, 0), lse, BP_DT_F32, 10));
        for (int64_t v = 0; v < d.c; ++v) {
            double got = fx_get(&r.a.out, 0, 1, v);
            FX_CHECK(got == fx_rounded(got, rounds[i]));
            FX_CHECK(fabs(got - rounded[v]) <= 0.501 * ulp * fabs(rounded[v]) + 1e-7);
            moved += fabs(got - plain[v]) > 0.51 * ulp * fabs(plain[v]) + 1e-7;
        }
        ck_assert_int_gt(moved, 0);
        fx_close(&f);
    }
}
END_TEST

START_TEST(test_bad_args)
{
    static const int32_t seq[] = {4, 1}, len[] = {100, 63};
    struct fx f;
    struct fx_cache c;
    struct rows r;
    const struct dims d = all_dims[0];
    fx_open(&f, 1, BPI_REF_ROUND_NONE, fx_seed());
    fx_cache(&f, &c, "mla", BP_DT_F32, d.c + d.r, 64, N_SEQ, lens, 0);
    fx_cache_fill(&f, &c, 1.0);
    make_rows(&f, &c, &r, &d, 2, seq, len, BP_DT_F32);
    r.len[1] = (int32_t)c.stride * 64 + 1;
    FX_FAILS(BP_E_ARG, "block table", f.decode->run(&f.ref, &f.l, &r.a, &fx_err));
    r.len[1] = 63;
    r.seq[0] = -1;
    FX_FAILS(BP_E_ARG, "sequence -1", f.decode->run(&f.ref, &f.l, &r.a, &fx_err));
    r.seq[0] = 4;
    c.table[4 * c.stride + 1] = -7;
    FX_FAILS(BP_E_ARG, "number -7", f.decode->run(&f.ref, &f.l, &r.a, &fx_err));
    r.a.idx = fx_tensor(&f, BP_DT_I32, 2 + PAD, 3, 0, 0);
    r.a.idx_len = fx_tensor(&f, BP_DT_I32, 2 + PAD, 0, 0, 0);
    fx_set(&r.a.idx_len, 0, 0, 0, 4);
    FX_FAILS(BP_E_ARG, "idx_len 4", f.decode->run(&f.ref, &f.l, &r.a, &fx_err));
    fx_set(&r.a.idx_len, 0, 0, 0, 2);
    fx_set(&r.a.idx, 0, 1, 0, (double)(c.pool.dim[0] * 64));
    FX_FAILS(BP_E_ARG, "lists token slot", f.decode->run(&f.ref, &f.l, &r.a, &fx_err));
    fx_set(&r.a.idx, 0, 1, 0, 3);
    run(&f, &r);
    r.a.out.dim[2] = d.c + d.r + 1;
    FX_FAILS(BP_E_ARG, "out has", f.decode->run(&f.ref, &f.l, &r.a, &fx_err));
    r.m.n_row_padded = 0;
    FX_OK(f.decode->run(&f.ref, &f.l, &r.a, &fx_err));
    fx_close(&f);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("decode");
    tcase_add_test(tc, test_dense);
    tcase_add_test(tc, test_lists);
    tcase_add_test(tc, test_full_list_is_dense);
    tcase_add_test(tc, test_rows_are_independent);
    tcase_add_test(tc, test_nan_and_rope_part);
    tcase_add_test(tc, test_round_modes);
    tcase_add_test(tc, test_bad_args);
    return fx_main(tc, "ref_mla_decode");
}
