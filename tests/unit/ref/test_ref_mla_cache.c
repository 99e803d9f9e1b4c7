/* test_ref_mla_cache.c - cache_write, cache_gather and merge of the reference MLA backend against plain double loops.
 * SPDX-License-Identifier: MIT */
#include "unit/ref/mla_fixture.h"

static const int32_t lens[] = {1, 63, 64, 65, 130};
enum { N_SEQ = 5 };
static const float eps = 1e-6f;

/* One written row from the definition: norm of the latents, rotation of pairs (2i, 2i+1). */
static void want_row(const struct fx_cache *c, const struct bp_tensor *kv,
                     const struct bp_tensor *w, int64_t t, uint32_t round, double *out)
{
    const int64_t n = w->dim[0], pos = c->positions[t];
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += pow(fx_rounded(fx_get(kv, t, i, 0), round), 2);
    for (int64_t i = 0; i < n; ++i) {
        out[i] = fx_get(w, i, 0, 0) * fx_rounded(fx_get(kv, t, i, 0), round) /
                 sqrt(sum / (double)n + (double)eps);
    }
    for (int64_t i = 0; i < (c->width - n) / 2; ++i) {
        double a = fx_rounded(fx_get(kv, t, n + 2 * i, 0), round);
        double b = fx_rounded(fx_get(kv, t, n + 2 * i + 1, 0), round);
        double co = fx_get(&c->meta.rope_cos, pos, i, 0), si = fx_get(&c->meta.rope_sin, pos, i, 0);
        out[n + 2 * i] = a * co - b * si;
        out[n + 2 * i + 1] = a * si + b * co;
    }
}

static void write_all(struct fx *f, struct fx_cache *c, const struct bp_tensor *kv,
                      const struct bp_tensor *w)
{
    struct bp_mla_cache_write_args a = {.h = BP_HDR(struct bp_mla_cache_write_args, reserved),
                                        .meta = &c->meta,
                                        .kv = *kv,
                                        .norm_w = *w,
                                        .pool = c->pool,
                                        .eps = eps};
    FX_OK(f->common->cache_write(&f->ref, &f->l, &a, &fx_err));
}

/* Every dtype of cache and activations; only the slots written change; -1 writes nothing. */
START_TEST(test_write)
{
    static const uint32_t dtypes[] = {BP_DT_F32, BP_DT_BF16, BP_DT_F16};
    for (int i = 0; i < 9; ++i) {
        struct fx f;
        struct fx_cache c;
        const int64_t n_latent = i % 2 ? 80 : 512, n_rope = i % 2 ? 16 : 64;
        const int64_t width = n_latent + n_rope;
        double want[576];
        fx_open(&f, 2, BPI_REF_ROUND_NONE, fx_seed() + (uint64_t)i);
        fx_cache(&f, &c, "mla", dtypes[i / 3], width, 64, N_SEQ, lens, n_rope);
        fx_write_all(&c);
        struct bp_tensor kv =
            fx_random_tensor(&f, dtypes[i % 3], c.meta.n_tok, width, 0, 9, i == 4 ? 1e-4 : 3.0);
        struct bp_tensor w = fx_random_tensor(&f, BP_DT_F32, n_latent, 0, 0, 0, 1.5);
        const size_t pool_bytes = (size_t)(c.pool.dim[0] * c.pool.dim[1]);
        const uint32_t skipped = 7;
        c.slots[skipped] = -1;
        c.positions[skipped] = -5; /* padding may hold anything */
        write_all(&f, &c, &kv, &w);
        unsigned char *seen = fx_bytes(&f, pool_bytes);
        memcpy(seen, c.pool.data, pool_bytes);
        for (uint32_t t = 0; t < c.meta.n_tok; ++t) {
            if (t == skipped) continue;
            size_t at = (size_t)(c.slots[t] * width) * fx_size(c.dtype);
            want_row(&c, &kv, &w, t, BPI_REF_ROUND_NONE, want);
            for (int64_t k = 0; k < width; ++k) {
                double got =
                    fx_read((char *)c.pool.data + at + (size_t)k * fx_size(c.dtype), c.dtype);
                FX_CHECK_MSG(fx_near(got, want[k], c.dtype, 4.0), "token %u: %.9g, want %.9g", t,
                             got, want[k]);
            }
            memset(seen + at, 0xff, (size_t)width * fx_size(c.dtype));
        }
        for (size_t k = 0; k < pool_bytes; ++k) FX_CHECK(seen[k] == 0xff);
        fx_close(&f);
    }
}
END_TEST

/* Planted faults turn the comparison red: the other rotation style, and a rotation by the row instead of the position. */
START_TEST(test_write_is_sensitive)
{
    struct fx f;
    struct fx_cache c;
    const int32_t len[] = {6};
    double want[24];
    fx_open(&f, 1, BPI_REF_ROUND_NONE, fx_seed());
    fx_cache(&f, &c, "mla", BP_DT_F32, 24, 4, 1, len, 8);
    fx_write_all(&c);
    struct bp_tensor kv = fx_random_tensor(&f, BP_DT_F32, 6, 24, 0, 0, 2.0);
    struct bp_tensor w = fx_random_tensor(&f, BP_DT_F32, 16, 0, 0, 0, 1.5);
    write_all(&f, &c, &kv, &w);
    want_row(&c, &kv, &w, 5, BPI_REF_ROUND_NONE, want);
    int style = 0, position = 0;
    for (int64_t i = 0; i < 4; ++i) {
        double a = fx_get(&kv, 5, 16 + i, 0), b = fx_get(&kv, 5, 16 + i + 4, 0);
        double co = fx_get(&c.meta.rope_cos, 5, i, 0), si = fx_get(&c.meta.rope_sin, 5, i, 0);
        style += !fx_near(fx_cached(&c, 0, 5, 16 + i), a * co - b * si, BP_DT_F32, 4.0);
        FX_CHECK(fx_near(fx_cached(&c, 0, 5, 16 + 2 * i), want[16 + 2 * i], BP_DT_F32, 4.0));
    }
    c.positions[5] = 4;
    want_row(&c, &kv, &w, 5, BPI_REF_ROUND_NONE, want);
    for (int64_t i = 16; i < 24; ++i) {
        position += !fx_near(fx_cached(&c, 0, 5, i), want[i], BP_DT_F32, 4.0);
    }
    ck_assert_int_gt(style, 0);
    ck_assert_int_gt(position, 0);
    fx_close(&f);
}
END_TEST

/* A token's bits do not depend on the step it is written in; NaN in one token stays there; an empty step is legal. */
START_TEST(test_write_alone)
{
    struct fx f;
    struct fx_cache c;
    fx_open(&f, 2, BPI_REF_ROUND_NONE, fx_seed());
    fx_cache(&f, &c, "mla", BP_DT_BF16, 96, 64, N_SEQ, lens, 16);
    fx_write_all(&c);
    const uint32_t n = c.meta.n_tok;
    struct bp_tensor kv = fx_random_tensor(&f, BP_DT_F32, n, 96, 0, 0, 2.0);
    struct bp_tensor w = fx_random_tensor(&f, BP_DT_F32, 80, 0, 0, 0, 1.5);
    const size_t pool_bytes = (size_t)(c.pool.dim[0] * c.pool.dim[1]);
    write_all(&f, &c, &kv, &w);
    void *whole = fx_bytes(&f, pool_bytes);
    memcpy(whole, c.pool.data, pool_bytes);
    memset(c.pool.data, 0xff, pool_bytes);
    const struct bp_mla_meta all = c.meta;
    for (uint32_t t = 0; t < n; ++t) {
        struct bp_tensor row = fx_rows(&kv, t, t + 1);
        c.meta.n_tok = 1;
        c.meta.positions_host = all.positions_host + t;
        c.meta.slot_map_host = all.slot_map_host + t;
        write_all(&f, &c, &row, &w);
    }
    ck_assert_int_eq(memcmp(whole, c.pool.data, pool_bytes), 0);
    c.meta = all;
    for (int64_t i = 0; i < 96; ++i) fx_set(&kv, 20, i, 0, NAN);
    write_all(&f, &c, &kv, &w);
    for (size_t i = 0; i < pool_bytes / 2; ++i) {
        size_t slot = i / 96;
        bool own = slot == (size_t)c.slots[20];
        double v = fx_read((char *)c.pool.data + 2 * i, BP_DT_BF16);
        if (own)
            FX_CHECK(isnan(v));
        else
            ck_assert_int_eq(memcmp((char *)whole + 2 * i, (char *)c.pool.data + 2 * i, 2), 0);
    }
    c.meta.n_tok = 0;
    write_all(&f, &c, &kv, &w);
    fx_close(&f);
}
END_TEST

START_TEST(test_write_rounds)
{
    static const uint32_t rounds[] = {BPI_REF_ROUND_BF16, BPI_REF_ROUND_F16};
    for (int i = 0; i < 2; ++i) {
        struct fx f;
        struct fx_cache c;
        double rounded[96], plain[96];
        const double ulp = rounds[i] == BPI_REF_ROUND_BF16 ? 0x1p-7 : 0x1p-10;
        int moved = 0;
        fx_open(&f, 1, rounds[i], fx_seed());
        fx_cache(&f, &c, "mla", BP_DT_F32, 96, 64, N_SEQ, lens, 16);
        fx_write_all(&c);
        struct bp_tensor kv = fx_random_tensor(&f, BP_DT_F32, c.meta.n_tok, 96, 0, 0, 2.0);
        struct bp_tensor w = fx_random_tensor(&f, BP_DT_F32, 80, 0, 0, 0, 1.5);
        write_all(&f, &c, &kv, &w);
        for (int64_t t = 0; t < 64; ++t) {
            want_row(&c, &kv, &w, t, rounds[i], rounded);
            want_row(&c, &kv, &w, t, BPI_REF_ROUND_NONE, plain);
            for (int64_t k = 0; k < 96; ++k) {
                double got = ((const float *)c.pool.data)[(int64_t)c.slots[t] * 96 + k];
                FX_CHECK(got == fx_rounded(got, rounds[i]));
                FX_CHECK(fabs(got - rounded[k]) <= 0.501 * ulp * fabs(rounded[k]) + 1e-7);
                moved += fabs(got - plain[k]) > 0.51 * ulp * fabs(plain[k]) + 1e-7;
            }
        }
        ck_assert_int_gt(moved, 0);
        fx_close(&f);
    }
}
END_TEST

/* ---- gather ---- */

/* Segments of several sequences, in any order, some empty, some beginning inside a block. */
START_TEST(test_gather)
{
    static const uint32_t dtypes[] = {BP_DT_F32, BP_DT_BF16, BP_DT_F16};
    for (int i = 0; i < 9; ++i) {
        struct fx f;
        struct fx_cache c;
        int32_t seq[] = {4, 0, 2, 2, 3, 1}, begin[] = {60, 0, 0, 63, 1, 10};
        int32_t cu[] = {0, 70, 71, 71, 72, 136, 189}; /* 70, 1, 0, 1, 64, 53 keys */
        const int64_t n_latent = 80, n_rope = 16;
        fx_open(&f, 2, BPI_REF_ROUND_NONE, fx_seed() + (uint64_t)i);
        fx_cache(&f, &c, "mla", dtypes[i / 3], n_latent + n_rope, 64, N_SEQ, lens, n_rope);
        fx_cache_fill(&f, &c, 1.0);
        struct bp_mla_prefill_meta m = {.h = BP_HDR(struct bp_mla_prefill_meta, kv_begin_host),
                                        .common = &c.meta,
                                        .n_seg = 6,
                                        .n_k = 189};
        m.seq_host = seq;
        m.cu_k_host = m.cu_q_host = cu;
        m.kv_begin_host = begin;
        struct bp_tensor lat = fx_tensor(&f, dtypes[i % 3], 189, n_latent, 0, 3);
        struct bp_tensor pe = fx_tensor(&f, dtypes[i % 3], 189, n_rope, 0, 0);
        struct bp_mla_cache_gather_args a = {.h = BP_HDR(struct bp_mla_cache_gather_args, k_pe),
                                             .meta = &m,
                                             .pool = c.pool,
                                             .c = lat,
                                             .k_pe = pe};
        FX_OK(f.common->cache_gather(&f.ref, &f.l, &a, &fx_err));
        for (int s = 0; s < 6; ++s) {
            for (int32_t r = cu[s]; r < cu[s + 1]; ++r) {
                for (int64_t k = 0; k < n_latent + n_rope; ++k) {
                    double want = fx_cached(&c, seq[s], begin[s] + r - cu[s], k);
                    double got =
                        k < n_latent ? fx_get(&lat, r, k, 0) : fx_get(&pe, r, k - n_latent, 0);
                    float once; /* exact where the output dtype holds it, else one rounding */
                    if (lat.dtype != BP_DT_F32) {
                        fx_write(&once, lat.dtype, want);
                        want = fx_read(&once, lat.dtype);
                    }
                    FX_CHECK(got == want);
                }
            }
        }
        cu[6] = 190; /* one key more than the slab has */
        FX_FAILS(BP_E_ARG, "segment 5", f.common->cache_gather(&f.ref, &f.l, &a, &fx_err));
        cu[6] = 189;
        seq[3] = N_SEQ;
        FX_FAILS(BP_E_ARG, "sequence 5", f.common->cache_gather(&f.ref, &f.l, &a, &fx_err));
        seq[3] = 2;
        c.table[2 * c.stride] = (int32_t)c.pool.dim[0];
        FX_FAILS(BP_E_ARG, "the pool has", f.common->cache_gather(&f.ref, &f.l, &a, &fx_err));
        m.n_seg = 0;
        FX_OK(f.common->cache_gather(&f.ref, &f.l, &a, &fx_err));
        fx_close(&f);
    }
}
END_TEST

/* ---- merge ---- */

enum { N_ROW = 9, N_HEAD = 3, N_V = 40 };

struct merge {
    struct bp_tensor out, lse, other_out, other_lse;
};

static void make_merge(struct fx *f, struct merge *m, uint32_t dtype)
{
    m->out = fx_random_tensor(f, dtype, N_ROW, N_HEAD, N_V, 5, 1.0);
    m->other_out = fx_random_tensor(f, dtype, N_ROW, N_HEAD, N_V, 0, 1.0);
    m->lse = fx_random_tensor(f, BP_DT_F32, N_ROW, N_HEAD, 0, 1, 5.0);
    m->other_lse = fx_random_tensor(f, BP_DT_F32, N_ROW, N_HEAD, 0, 0, 5.0);
}

static void merge(struct fx *f, const struct merge *m)
{
    struct bp_mla_merge_args a = {.h = BP_HDR(struct bp_mla_merge_args, other_lse),
                                  .out = m->out,
                                  .lse = m->lse,
                                  .other_out = m->other_out,
                                  .other_lse = m->other_lse};
    FX_OK(f->common->merge(&f->ref, &f->l, &a, &fx_err));
}

static struct bp_tensor copy_of(struct fx *f, const struct bp_tensor *t)
{
    struct bp_tensor c =
        fx_tensor(f, t->dtype, t->dim[0], t->dim[1], t->ndim > 2 ? t->dim[2] : 0, 0);
    for (int64_t i = 0; i < t->dim[0]; ++i) {
        memcpy(fx_at(&c, i, 0, 0), fx_at(t, i, 0, 0), (size_t)c.stride[0] * fx_size(t->dtype));
    }
    return c;
}

START_TEST(test_merge)
{
    static const uint32_t dtypes[] = {BP_DT_F32, BP_DT_BF16, BP_DT_F16};
    for (int i = 0; i < 3; ++i) {
        struct fx f;
        struct merge m;
        fx_open(&f, 2, BPI_REF_ROUND_NONE, fx_seed());
        make_merge(&f, &m, dtypes[i]);
        fx_set(&m.lse, 8, 0, 0, 3000.0); /* far apart: exp must not overflow */
        fx_set(&m.other_lse, 8, 1, 0, -3000.0);
        fx_set(&m.lse, 8, 2, 0, -3000.0);
        struct bp_tensor out = copy_of(&f, &m.out), lse = copy_of(&f, &m.lse);
        merge(&f, &m);
        for (int64_t r = 0; r < N_ROW; ++r) {
            for (int64_t h = 0; h < N_HEAD; ++h) {
                double a = fx_get(&lse, r, h, 0), b = fx_get(&m.other_lse, r, h, 0);
                double share = 1.0 / (1.0 + exp(b - a)); /* of this side */
                double want = a > b ? a + log1p(exp(b - a)) : b + log1p(exp(a - b));
                FX_CHECK(fx_near(fx_get(&m.lse, r, h, 0), want, BP_DT_F32, 3000));
                for (int64_t v = 0; v < N_V; ++v) {
                    want = share * fx_get(&out, r, h, v) +
                           (1.0 - share) * fx_get(&m.other_out, r, h, v);
                    FX_CHECK(fx_near(fx_get(&m.out, r, h, v), want, dtypes[i], 10));
                }
            }
        }
        fx_close(&f);
    }
}
END_TEST

/* Empty sides pass the other through bit for bit, whatever the empty side's `out` holds, in every rounding mode. */
START_TEST(test_merge_empty)
{
    static const uint32_t dtypes[] = {BP_DT_F32, BP_DT_BF16, BP_DT_F16};
    for (int i = 0; i < 9; ++i) {
        struct fx f;
        struct merge m;
        fx_open(&f, 1, (uint32_t)(i / 3), fx_seed() + (uint64_t)i);
        make_merge(&f, &m, dtypes[i % 3]);
        struct bp_tensor out = copy_of(&f, &m.out), lse = copy_of(&f, &m.lse);
        for (int64_t r = 0; r < 6; ++r) { /* 0,1: other empty; 2,3: own empty; 4,5: both */
            for (int64_t h = 0; h < N_HEAD; ++h) {
                if (r < 2 || r > 3) fx_set(&m.other_lse, r, h, 0, -INFINITY);
                if (r > 1) fx_set(&m.lse, r, h, 0, -INFINITY);
                for (int64_t v = 0; v < N_V; ++v) {
                    if (r < 2 || r > 3) fx_set(&m.other_out, r, h, v, NAN);
                    if (r > 1) fx_set(&m.out, r, h, v, NAN);
                }
            }
        }
        struct bp_tensor other = copy_of(&f, &m.other_out), other_lse = copy_of(&f, &m.other_lse);
        merge(&f, &m);
        struct bp_tensor got, want;
#define SAME_ROWS(a, b, from, to)                                                                  \
    (got = fx_rows(&(a), from, to), want = fx_rows(&(b), from, to), fx_same_bits(&got, &want))
        FX_CHECK(SAME_ROWS(m.out, out, 0, 2) && SAME_ROWS(m.lse, lse, 0, 2));
        FX_CHECK(SAME_ROWS(m.out, other, 2, 4) && SAME_ROWS(m.lse, other_lse, 2, 4));
        FX_CHECK(SAME_ROWS(m.other_out, other, 0, N_ROW));
        for (int64_t r = 4; r < 6; ++r) {
            for (int64_t h = 0; h < N_HEAD; ++h) {
                FX_CHECK(fx_get(&m.lse, r, h, 0) == -INFINITY);
                for (int64_t v = 0; v < N_V; ++v) {
                    FX_CHECK(fx_get(&m.out, r, h, v) == 0.0 && !signbit(fx_get(&m.out, r, h, v)));
                }
            }
        }
        FX_CHECK(!SAME_ROWS(m.out, out, 6, N_ROW)); /* the others were merged */
        fx_close(&f);
    }
}
END_TEST

/* NaN in a row stays in that row and head. */
START_TEST(test_merge_nan)
{
    struct fx f;
    struct merge m;
    fx_open(&f, 1, BPI_REF_ROUND_NONE, fx_seed());
    make_merge(&f, &m, BP_DT_F32);
    struct merge clean = m;
    clean.out = copy_of(&f, &m.out);
    clean.lse = copy_of(&f, &m.lse);
    merge(&f, &clean);
    fx_set(&m.lse, 3, 1, 0, NAN);
    fx_set(&m.out, 5, 0, 7, NAN);
    merge(&f, &m);
    for (int64_t r = 0; r < N_ROW; ++r) {
        for (int64_t h = 0; h < N_HEAD; ++h) {
            for (int64_t v = 0; v < N_V; ++v) {
                bool own = (r == 3 && h == 1) || (r == 5 && h == 0 && v == 7);
                double got = fx_get(&m.out, r, h, v);
                FX_CHECK(own ? isnan(got) : got == fx_get(&clean.out, r, h, v));
            }
        }
    }
    fx_close(&f);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("cache");
    tcase_add_test(tc, test_write);
    tcase_add_test(tc, test_write_is_sensitive);
    tcase_add_test(tc, test_write_alone);
    tcase_add_test(tc, test_write_rounds);
    tcase_add_test(tc, test_gather);
    tcase_add_test(tc, test_merge);
    tcase_add_test(tc, test_merge_empty);
    tcase_add_test(tc, test_merge_nan);
    return fx_main(tc, "ref_mla_cache");
}
