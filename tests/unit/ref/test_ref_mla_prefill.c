/* test_ref_mla_prefill.c - run and run_context of the reference MLA backend against plain double loops.
 * SPDX-License-Identifier: MIT */
#include "unit/ref/mla_fixture.h"

enum { MAX_SEG = 8 };

/* Packed segments with random queries, keys and values. */
struct batch {
    int32_t cu_q[MAX_SEG + 1], cu_k[MAX_SEG + 1];
    struct bp_mla_meta common;
    struct bp_mla_prefill_meta m;
    struct bp_mla_prefill_args a;
};

struct dims {
    int64_t h, qk, v;
};
/* The first: 48 and 40, none dividing the other. */
static const struct dims all_dims[] = {{3, 48, 40}, {2, 128, 96}, {1, 6, 5}, {5, 9, 17}};
static const float scale = 0.4f;

static void make_batch(struct fx *f, struct batch *b, const struct dims *d, uint32_t n_seg,
                       const int32_t *n_q, const int32_t *n_k, uint32_t act)
{
    memset(b, 0, sizeof *b);
    for (uint32_t s = 0; s < n_seg; ++s) {
        b->cu_q[s + 1] = b->cu_q[s] + n_q[s];
        b->cu_k[s + 1] = b->cu_k[s] + n_k[s];
    }
    b->m = (struct bp_mla_prefill_meta){.h = BP_HDR(struct bp_mla_prefill_meta, kv_begin_host),
                                        .n_seg = n_seg,
                                        .n_q = (uint32_t)b->cu_q[n_seg],
                                        .n_k = (uint32_t)b->cu_k[n_seg]};
    b->m.common = &b->common;
    b->m.cu_q_host = b->cu_q;
    b->m.cu_k_host = b->cu_k;
    b->a = (struct bp_mla_prefill_args){
        .h = BP_HDR(struct bp_mla_prefill_args, reserved), .meta = &b->m, .scale = scale};
    b->a.q = fx_random_tensor(f, act, b->m.n_q, d->h, d->qk, 7, 1.0);
    b->a.k = fx_random_tensor(f, act, b->m.n_k, d->h, d->qk, 0, 1.0);
    b->a.v = fx_random_tensor(f, act, b->m.n_k, d->h, d->v, 3, 1.0);
    b->a.out = fx_tensor(f, act, b->m.n_q, d->h, d->v, 2);
    b->a.lse = fx_tensor(f, BP_DT_F32, b->m.n_q, d->h, 0, 1);
}

static void run(struct fx *f, const struct batch *b, bool causal)
{
    FX_OK(f->prefill->plan(&f->ref, &f->l, &b->m, &fx_err));
    if (causal)
        FX_OK(f->prefill->run(&f->ref, &f->l, &b->a, &fx_err));
    else
        FX_OK(f->prefill->run_context(&f->ref, &f->l, &b->a, &fx_err));
}

/* Softmax of query q over keys [k0, k0 + n) from the definition; `size` receives the largest value met. */
static double want_row(const struct batch *b, int64_t q, int64_t k0, int64_t n, int64_t h,
                       uint32_t round, double use_scale, double *out)
{
    const int64_t n_v = b->a.v.dim[2];
    double max = -INFINITY, sum = 0;
    double *s = malloc(((size_t)n + 1) * sizeof *s);
    ck_assert_ptr_nonnull(s);
    for (int64_t v = 0; v < n_v; ++v) out[v] = 0;
    for (int64_t k = 0; k < n; ++k) {
        s[k] = 0;
        for (int64_t i = 0; i < b->a.q.dim[2]; ++i) {
            s[k] += fx_rounded(fx_get(&b->a.q, q, h, i), round) *
                    fx_rounded(fx_get(&b->a.k, k0 + k, h, i), round);
        }
        s[k] *= use_scale;
        max = fmax(max, s[k]);
    }
    for (int64_t k = 0; k < n; ++k) sum += exp(s[k] - max);
    for (int64_t k = 0; k < n; ++k) {
        for (int64_t v = 0; v < n_v; ++v) {
            out[v] += exp(s[k] - max) / sum * fx_rounded(fx_get(&b->a.v, k0 + k, h, v), round);
        }
    }
    free(s);
    return n == 0 ? -INFINITY : max + log(sum);
}

/* How many outputs differ from the definition by more than one rounding. */
static int misses(const struct batch *b, bool causal, double use_scale)
{
    double want[128];
    int n_miss = 0;
    for (uint32_t s = 0; s < b->m.n_seg; ++s) {
        int64_t n_q = b->cu_q[s + 1] - b->cu_q[s], n_k = b->cu_k[s + 1] - b->cu_k[s];
        for (int64_t i = 0; i < n_q; ++i) {
            int64_t seen = causal ? n_k - n_q + i + 1 : n_k, row = b->cu_q[s] + i;
            for (int64_t h = 0; h < b->a.q.dim[1]; ++h) {
                double lse = want_row(b, row, b->cu_k[s], seen, h, 0, use_scale, want);
                double got = fx_get(&b->a.lse, row, h, 0);
                n_miss += seen == 0 ? got != -INFINITY : !fx_near(got, lse, BP_DT_F32, 10);
                for (int64_t v = 0; v < b->a.v.dim[2]; ++v) {
                    got = fx_get(&b->a.out, row, h, v);
                    n_miss += !fx_near(got, want[v], b->a.out.dtype, 10);
                }
            }
        }
    }
    return n_miss;
}

/* Ragged segments: cached prefixes of 0, 1, 17, 64, 100; single tokens, none, more than a step. */
START_TEST(test_ragged)
{
    static const int32_t n_q[] = {1, 17, 0, 16, 3, 130, 1, 64};
    static const int32_t n_k[] = {1, 17, 5, 17, 80, 130, 101, 128};
    static const uint32_t dtypes[] = {BP_DT_F32, BP_DT_BF16, BP_DT_F16};
    for (size_t i = 0; i < BPI_ARRAY_LEN(all_dims); ++i) {
        struct fx f;
        struct batch b;
        fx_open(&f, 2, BPI_REF_ROUND_NONE, fx_seed() + i);
        make_batch(&f, &b, &all_dims[i], 8, n_q, n_k, dtypes[i % 3]);
        run(&f, &b, true);
        ck_assert_int_eq(misses(&b, true, (double)scale), 0);
        ck_assert_int_gt(misses(&b, false, (double)scale), 0);       /* the mask is seen */
        ck_assert_int_gt(misses(&b, true, (double)scale * 1.59), 0); /* and the scale */
        run(&f, &b, false);
        ck_assert_int_eq(misses(&b, false, (double)scale), 0);
        fx_close(&f);
    }
}
END_TEST

/* Queries without keys give 0 and -inf, beside others that have some. */
START_TEST(test_no_keys)
{
    static const int32_t n_q[] = {3, 5, 2}, n_k[] = {0, 70, 0};
    struct fx f;
    struct batch b;
    fx_open(&f, 1, BPI_REF_ROUND_NONE, fx_seed());
    make_batch(&f, &b, &all_dims[0], 3, n_q, n_k, BP_DT_F32);
    run(&f, &b, false);
    ck_assert_int_eq(misses(&b, false, (double)scale), 0);
    for (int64_t r = 0; r < 10; ++r) {
        bool empty = r < 3 || r >= 8;
        FX_CHECK((fx_get(&b.a.lse, r, 2, 0) == -INFINITY) == empty);
        FX_CHECK((fx_get(&b.a.out, r, 2, 39) == 0.0) == empty);
    }
    /* lse is optional for run only. */
    b.a.lse.data = NULL;
    FX_FAILS(BP_E_ARG, "lse", f.prefill->run_context(&f.ref, &f.l, &b.a, &fx_err));
    b.m.n_q = 0;
    FX_OK(f.prefill->run(&f.ref, &f.l, &b.a, &fx_err));
    fx_close(&f);
}
END_TEST

/* Whole prompts, chunks of any size, one query at a time, one thread or three: the same bits. */
START_TEST(test_chunks_bitwise)
{
    static const int32_t n_one[] = {150};
    for (size_t i = 0; i < BPI_ARRAY_LEN(all_dims); ++i) {
        struct fx f;
        struct batch whole;
        fx_open(&f, 3, BPI_REF_ROUND_NONE, fx_seed() + i);
        make_batch(&f, &whole, &all_dims[i], 1, n_one, n_one, BP_DT_F32);
        run(&f, &whole, true);
        static const int32_t sizes[] = {1, 7, 64, 149};
        for (size_t z = 0; z < BPI_ARRAY_LEN(sizes); ++z) {
            for (int32_t at = 0; at < 150; at += sizes[z]) {
                int32_t end = at + sizes[z] < 150 ? at + sizes[z] : 150;
                struct batch part = whole;
                part.cu_q[1] = end - at;
                part.cu_k[1] = end;
                part.m.n_q = (uint32_t)(end - at);
                part.m.n_k = (uint32_t)end;
                part.m.cu_q_host = part.cu_q;
                part.m.cu_k_host = part.cu_k;
                part.a.meta = &part.m;
                part.a.q = fx_rows(&whole.a.q, at, end);
                part.a.k = fx_rows(&whole.a.k, 0, end);
                part.a.v = fx_rows(&whole.a.v, 0, end);
                struct bp_tensor out = fx_rows(&whole.a.out, at, end);
                struct bp_tensor lse = fx_rows(&whole.a.lse, at, end);
                unsigned char room[150 * 2 * 128 * 4 + 64];
                ck_assert_uint_le((size_t)(out.dim[0] * out.stride[0]) * 4, sizeof room);
                part.a.out = out;
                part.a.out.data = room;
                float lses[150 * 8];
                part.a.lse = lse;
                part.a.lse.data = lses;
                run(&f, &part, true);
                FX_CHECK(fx_same_bits(&part.a.out, &out));
                FX_CHECK(fx_same_bits(&part.a.lse, &lse));
            }
        }
        fx_close(&f);
    }
}
END_TEST

/* A segment beside others has the bits that it has alone. */
START_TEST(test_neighbours_bitwise)
{
    static const int32_t n_q[] = {3, 30, 1, 9, 60}, n_k[] = {3, 95, 77, 9, 64};
    struct fx f;
    struct batch b;
    fx_open(&f, 2, BPI_REF_ROUND_NONE, fx_seed());
    make_batch(&f, &b, &all_dims[0], 5, n_q, n_k, BP_DT_BF16);
    run(&f, &b, true);
    for (int s = 0; s < 5; ++s) {
        struct batch one;
        make_batch(&f, &one, &all_dims[0], 1, n_q + s, n_k + s, BP_DT_BF16);
        one.a.q = fx_rows(&b.a.q, b.cu_q[s], b.cu_q[s + 1]);
        one.a.k = fx_rows(&b.a.k, b.cu_k[s], b.cu_k[s + 1]);
        one.a.v = fx_rows(&b.a.v, b.cu_k[s], b.cu_k[s + 1]);
        run(&f, &one, true);
        struct bp_tensor want = fx_rows(&b.a.out, b.cu_q[s], b.cu_q[s + 1]);
        FX_CHECK(fx_same_bits(&one.a.out, &want));
        want = fx_rows(&b.a.lse, b.cu_q[s], b.cu_q[s + 1]);
        FX_CHECK(fx_same_bits(&one.a.lse, &want));
    }
    fx_close(&f);
}
END_TEST

/* A context cut into slabs at any place and merged is one softmax. */
START_TEST(test_slabs)
{
    static const int32_t n_q[] = {9}, n_k[] = {200};
    static const int64_t cuts[][4] = {{0, 0, 1, 191},    {0, 1, 64, 191},    {0, 17, 17, 191},
                                      {0, 64, 128, 191}, {0, 100, 190, 191}, {0, 191, 191, 191}};
    struct fx f;
    struct batch whole;
    fx_open(&f, 2, BPI_REF_ROUND_NONE, fx_seed());
    make_batch(&f, &whole, &all_dims[0], 1, n_q, n_k, BP_DT_F32);
    run(&f, &whole, true);
    ck_assert_int_eq(misses(&whole, true, (double)scale), 0);
    for (size_t i = 0; i < BPI_ARRAY_LEN(cuts); ++i) {
        struct batch own;
        const int32_t nine[] = {9};
        make_batch(&f, &own, &all_dims[0], 1, nine, nine, BP_DT_F32);
        own.a.q = whole.a.q;
        own.a.k = fx_rows(&whole.a.k, 191, 200);
        own.a.v = fx_rows(&whole.a.v, 191, 200);
        run(&f, &own, true); /* the chunk's own keys, masked */
        for (int c = 0; c < 3; ++c) {
            struct batch slab;
            int32_t n = (int32_t)(cuts[i][c + 1] - cuts[i][c]);
            make_batch(&f, &slab, &all_dims[0], 1, nine, &n, BP_DT_F32);
            slab.a.q = whole.a.q;
            slab.a.k = fx_rows(&whole.a.k, cuts[i][c], cuts[i][c + 1]);
            slab.a.v = fx_rows(&whole.a.v, cuts[i][c], cuts[i][c + 1]);
            run(&f, &slab, false);
            struct bp_mla_merge_args m = {.out = own.a.out,
                                          .lse = own.a.lse,
                                          .other_out = slab.a.out,
                                          .other_lse = slab.a.lse};
            FX_OK(f.common->merge(&f.ref, &f.l, &m, &fx_err));
        }
        for (int64_t r = 0; r < 9; ++r) {
            for (int64_t h = 0; h < 3; ++h) {
                double got = fx_get(&own.a.lse, r, h, 0), want = fx_get(&whole.a.lse, r, h, 0);
                FX_CHECK(fabs(got - want) <= 1e-6 * fabs(want));
                for (int64_t v = 0; v < 40; ++v) {
                    got = fx_get(&own.a.out, r, h, v);
                    want = fx_get(&whole.a.out, r, h, v);
                    FX_CHECK(fabs(got - want) <= 1e-6);
                }
            }
        }
    }
    fx_close(&f);
}
END_TEST

/* NaN in a query stays in its row; NaN in a key or value reaches only queries that see it. */
START_TEST(test_nan)
{
    static const int32_t n_q[] = {40, 20}, n_k[] = {100, 20};
    for (int what = 0; what < 3; ++what) {
        struct fx f;
        struct batch b, bad;
        fx_open(&f, 2, BPI_REF_ROUND_NONE, fx_seed());
        make_batch(&f, &b, &all_dims[0], 2, n_q, n_k, BP_DT_F32);
        run(&f, &b, true);
        bad = b;
        bad.a.out = fx_tensor(&f, BP_DT_F32, 60, 3, 40, 0);
        bad.a.lse = fx_tensor(&f, BP_DT_F32, 60, 3, 0, 0);
        const int64_t key = 83; /* query 23 of the first segment is the first to see it */
        if (what == 0) fx_set(&b.a.q, 30, 1, 5, NAN);
        if (what == 1) fx_set(&b.a.k, key, 1, 5, NAN);
        if (what == 2) fx_set(&b.a.v, key, 1, 5, INFINITY);
        run(&f, &bad, true);
        for (int64_t r = 0; r < 60; ++r) {
            for (int64_t h = 0; h < 3; ++h) {
                bool hit = h == 1 && (what == 0 ? r == 30 : r >= 23 && r < 40);
                for (int64_t v = 0; v < 40; ++v) {
                    double got = fx_get(&bad.a.out, r, h, v);
                    bool own = hit && (what < 2 || v == 5);
                    FX_CHECK(own ? !isfinite(got) : got == fx_get(&b.a.out, r, h, v));
                }
            }
        }
        fx_close(&f);
    }
}
END_TEST

/* Scores far beyond the range of exp: the maximum is subtracted, wherever in the row it stands. */
START_TEST(test_large_scores)
{
    static const int32_t n_q[] = {8}, n_k[] = {150};
    struct fx f;
    struct batch b;
    fx_open(&f, 1, BPI_REF_ROUND_NONE, fx_seed());
    make_batch(&f, &b, &all_dims[0], 1, n_q, n_k, BP_DT_F32);
    fx_fill(&f, &b.a.q, 300.0);
    b.a.scale = 3.0f;
    run(&f, &b, true);
    ck_assert_int_eq(misses(&b, true, 3.0), 0);
    fx_close(&f);
}
END_TEST

START_TEST(test_round_modes)
{
    static const uint32_t rounds[] = {BPI_REF_ROUND_BF16, BPI_REF_ROUND_F16};
    static const int32_t n_q[] = {5}, n_k[] = {90};
    for (int i = 0; i < 2; ++i) {
        struct fx f;
        struct batch b;
        double rounded[40], plain[40];
        int moved = 0;
        const double ulp = rounds[i] == BPI_REF_ROUND_BF16 ? 0x1p-7 : 0x1p-10;
        fx_open(&f, 1, rounds[i], fx_seed());
        make_batch(&f, &b, &all_dims[0], 1, n_q, n_k, BP_DT_F32);
        run(&f, &b, true);
        for (int64_t r = 0; r < 5; ++r) {
            double lse = want_row(&b, r, 0, 86 + r, 1, rounds[i], (double)scale, rounded);
            (void)want_row(&b, r, 0, 86 + r, 1, BPI_REF_ROUND_NONE, (double)scale, plain);
            FX_CHECK(fx_near(fx_get(&b.a.lse, r, 1, 0), lse, BP_DT_F32, 10)); /* never rounded */
            for (int64_t v = 0; v < 40; ++v) {
                double got = fx_get(&b.a.out, r, 1, v);
                FX_CHECK(got == fx_rounded(got, rounds[i]));
                FX_CHECK(fabs(got - rounded[v]) <= 0.501 * ulp * fabs(rounded[v]) + 1e-7);
                moved += fabs(got - plain[v]) > 0.51 * ulp * fabs(plain[v]) + 1e-7;
            }
        }
        ck_assert_int_gt(moved, 0);
        fx_close(&f);
    }
}
END_TEST

START_TEST(test_bad_args)
{
    static const int32_t n_q[] = {2, 2}, n_k[] = {4, 4};
    struct fx f;
    struct batch b;
    fx_open(&f, 1, BPI_REF_ROUND_NONE, fx_seed());
    make_batch(&f, &b, &all_dims[0], 2, n_q, n_k, BP_DT_F32);
    b.cu_k[2] = 9;
    FX_FAILS(BP_E_ARG, "cu_q and cu_k", f.prefill->run(&f.ref, &f.l, &b.a, &fx_err));
    b.cu_k[2] = 8;
    b.cu_q[1] = 5;
    FX_FAILS(BP_E_ARG, "cu_q and cu_k", f.prefill->run(&f.ref, &f.l, &b.a, &fx_err));
    b.cu_q[1] = 2;
    b.a.k.dim[2] = 47;
    FX_FAILS(BP_E_ARG, "k has", f.prefill->run(&f.ref, &f.l, &b.a, &fx_err));
    b.a.k.dim[2] = 48;
    b.a.q.dtype = BP_DT_I32;
    FX_FAILS(BP_E_ARG, "dtype", f.prefill->run(&f.ref, &f.l, &b.a, &fx_err));
    fx_close(&f);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("prefill");
    tcase_add_test(tc, test_ragged);
    tcase_add_test(tc, test_no_keys);
    tcase_add_test(tc, test_chunks_bitwise);
    tcase_add_test(tc, test_neighbours_bitwise);
    tcase_add_test(tc, test_slabs);
    tcase_add_test(tc, test_nan);
    tcase_add_test(tc, test_large_scores);
    tcase_add_test(tc, test_round_modes);
    tcase_add_test(tc, test_bad_args);
    return fx_main(tc, "ref_mla_prefill");
}
