/* test_ref_row.c - rows, rounding and sums of the reference backend. SPDX-License-Identifier: MIT */
#include "ref_fixture.h"
#include "ref/ref_mla.h"
#include "ref/ref_weight.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

static const uint32_t float_dtypes[] = {BP_DT_F32, BP_DT_F16, BP_DT_BF16};

START_TEST(loads_are_exact_and_round_when_asked)
{
    struct kit_rng rng;
    kit_rng_seed(&rng, rig_seed());
    for (size_t d = 0; d < BPI_ARRAY_LEN(float_dtypes); ++d) {
        for (int64_t n = 0; n < 40; ++n) {
            float raw[40], got[42];
            memset(raw, 0, sizeof raw);
            for (int64_t i = 0; i < n; ++i)
                bp_oracle_put(raw, float_dtypes[d], i, bp_oracle_normal(&rng) * 1e-3);
            for (uint32_t round = BPI_REF_ROUND_NONE; round <= BPI_REF_ROUND_F16; ++round) {
                got[n] = 7.0f;
                bpi_ref_load(got, raw, float_dtypes[d], n, round);
                ck_assert(got[n] == 7.0f);
                for (int64_t i = 0; i < n; ++i) {
                    double want = bp_oracle_get(raw, float_dtypes[d], i);
                    if (round == BPI_REF_ROUND_BF16) want = bp_oracle_round(want, BP_ORACLE_BF16);
                    if (round == BPI_REF_ROUND_F16) want = bp_oracle_round(want, BP_ORACLE_F16);
                    ck_assert(memcmp(&got[i], &(float){(float)want}, sizeof(float)) == 0);
                }
            }
        }
    }
}
END_TEST

/* The oracle rounds in double; an implementation that went through F32 first would differ on ties made by that. */
START_TEST(stores_round_once)
{
    struct kit_rng rng;
    kit_rng_seed(&rng, rig_seed());
    static const double special[] = {0.0,
                                     -0.0,
                                     1.0 + 0x1p-9,
                                     1.0 + 0x1p-9 + 0x1p-30,
                                     1.0 + 0x1p-9 - 0x1p-30,
                                     1.0 + 0x1p-12 + 0x1p-40,
                                     1.0 + 0x1p-12 - 0x1p-40,
                                     65519.999,
                                     65520.0,
                                     65504.0,
                                     3.3961775292304957e38,
                                     3.4e38,
                                     3.39e38,
                                     1e39,
                                     0x1p-25,
                                     0x1.8p-25,
                                     0x1p-24,
                                     0x1p-150,
                                     0x1.000001p-150,
                                     0x1p-149,
                                     1e-320,
                                     -1e-320,
                                     1.0 + 0x1p-25,
                                     1.0 + 0x1p-24,
                                     1.0 + 0x1.8p-24,
                                     INFINITY,
                                     -INFINITY};
    for (int k = 0; k < 20000; ++k) {
        double v = k < (int)BPI_ARRAY_LEN(special)
                       ? special[k]
                       : ldexp(bp_oracle_normal(&rng), (int)kit_rng_below(&rng, 60) - 45);
        const bool nudge = k >= (int)BPI_ARRAY_LEN(special);
        if (nudge && k % 3 == 1)
            v = bp_oracle_round(v, BP_ORACLE_BF16) * (1.0 + 0x1p-9) + v * 0x1p-40; /* near a tie */
        if (nudge && k % 3 == 2)
            v = bp_oracle_round(v, BP_ORACLE_F16) * (1.0 + 0x1p-12) - v * 0x1p-40;
        for (size_t d = 0; d < BPI_ARRAY_LEN(float_dtypes); ++d) {
            float got = 0.0f;
            bpi_ref_store(&got, float_dtypes[d], &v, 1, BPI_REF_ROUND_NONE);
            double want = bp_oracle_round(v, bp_oracle_precision_of(float_dtypes[d]));
            double stored = bp_oracle_get(&got, float_dtypes[d], 0);
            ck_assert_msg(memcmp(&stored, &want, sizeof want) == 0,
                          "%a as dtype %u gave %a, not %a", v, float_dtypes[d], stored, want);
            ck_assert((double)bpi_ref_round_once(v, float_dtypes[d], BPI_REF_ROUND_NONE) == want);
        }
        float through = 0.0f;
        bpi_ref_store(&through, BP_DT_F32, &v, 1, BPI_REF_ROUND_BF16);
        ck_assert((double)through == bp_oracle_round(v, BP_ORACLE_BF16));
        bpi_ref_store(&through, BP_DT_F32, &v, 1, BPI_REF_ROUND_F16);
        ck_assert((double)through == bp_oracle_round(v, BP_ORACLE_F16));
    }
    for (size_t d = 0; d < BPI_ARRAY_LEN(float_dtypes); ++d) {
        float got = 0.0f;
        bpi_ref_store(&got, float_dtypes[d], &(double){NAN}, 1, BPI_REF_ROUND_NONE);
        ck_assert(isnan(bp_oracle_get(&got, float_dtypes[d], 0)));
    }
}
END_TEST

START_TEST(float_stores_match_double_stores)
{
    struct kit_rng rng;
    kit_rng_seed(&rng, rig_seed());
    for (size_t d = 0; d < BPI_ARRAY_LEN(float_dtypes); ++d) {
        for (uint32_t round = BPI_REF_ROUND_NONE; round <= BPI_REF_ROUND_F16; ++round) {
            float v[33], a[33], b[33];
            double w[33];
            memset(a, 0, sizeof a);
            memset(b, 0, sizeof b);
            for (int i = 0; i < 33; ++i) w[i] = (double)(v[i] = (float)bp_oracle_normal(&rng));
            bpi_ref_store_floats(a, float_dtypes[d], v, 33, round);
            bpi_ref_store(b, float_dtypes[d], w, 33, round);
            ck_assert(memcmp(a, b, sizeof a) == 0);
        }
    }
}
END_TEST

START_TEST(addresses_follow_strides)
{
    unsigned char bytes[512];
    struct bp_tensor t = {.data = bytes, .dtype = BP_DT_BF16, .ndim = 4, .stride = {40, 11, 3, 1}};
    ck_assert(bpi_ref_at(&t, 0, 0, 0) == (void *)bytes);
    ck_assert(bpi_ref_at(&t, 2, 1, 3) == (void *)(bytes + 2 * (80 + 11 + 9)));
    t.dtype = BP_DT_I64;
    ck_assert(bpi_ref_at(&t, 1, 0, 1) == (void *)(bytes + 8 * 43));
    t.dtype = BP_DT_U8;
    ck_assert(bpi_ref_at(&t, 1, 1, 0) == (void *)(bytes + 51));
}
END_TEST

/* The order that ref_dot.c promises, written out. */
static double lane_order(const double *a, const double *b, int64_t n)
{
    double s[8] = {0};
    for (int64_t i = 0; i < n; ++i) s[i % 8] = s[i % 8] + a[i] * b[i];
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

START_TEST(sums_have_one_order)
{
    enum { N = 1031 };
    struct kit_rng rng;
    static float a[N], b[N];
    static double ad[N], bd[N];
    kit_rng_seed(&rng, rig_seed());
    for (int i = 0; i < N; ++i) {
        ad[i] = (double)(a[i] = (float)(bp_oracle_normal(&rng) *
                                        pow(2.0, bp_oracle_uniform(&rng) * 12.0)));
        bd[i] = (double)(b[i] = (float)bp_oracle_normal(&rng));
    }
    bool order_matters = false;
    for (int64_t n = 0; n <= N; n = n < 70 ? n + 1 : n * 2 - 1) {
        for (int64_t off = 0; off < 3 && off + n <= N; ++off) { /* unaligned starts too */
            double want = lane_order(ad + off, bd + off, n), plain = 0.0;
            double ff = bpi_ref_dot_ff(a + off, b + off, n),
                   fd = bpi_ref_dot_fd(a + off, bd + off, n);
            double dd = bpi_ref_dot_dd(ad + off, bd + off, n);
            for (int64_t i = 0; i < n; ++i) plain += ad[off + i] * bd[off + i];
            order_matters = order_matters || plain != want;
            ck_assert_msg(memcmp(&ff, &want, 8) == 0 && memcmp(&fd, &want, 8) == 0 &&
                              memcmp(&dd, &want, 8) == 0,
                          "n %lld: %a %a %a, want %a", (long long)n, ff, fd, dd, want);
        }
    }
    ck_assert_msg(order_matters, "the numbers cannot tell one order from another");
}
END_TEST

START_TEST(axpy_adds_one_product_each)
{
    struct kit_rng rng;
    kit_rng_seed(&rng, rig_seed());
    for (int64_t n = 0; n < 35; ++n) {
        double y[36], want[36];
        float x[36];
        for (int i = 0; i < 36; ++i) {
            y[i] = want[i] = bp_oracle_normal(&rng);
            x[i] = (float)bp_oracle_normal(&rng);
        }
        for (int64_t i = 0; i < n; ++i) want[i] = want[i] + 0.3 * (double)x[i];
        bpi_ref_axpy(y, 0.3, x, n);
        ck_assert(memcmp(y, want, sizeof y) == 0);
    }
}
END_TEST

/* Whatever the tile, a sum has the bits of the plain dot product; nothing outside of the block is written. */
START_TEST(products_do_not_depend_on_the_tile)
{
    enum { COLS = 83, ROWS = 21, TOKS = 23, PAD = 2 };
    struct kit_rng rng;
    static float w[ROWS * (COLS + PAD)];
    static double x[TOKS * (COLS + PAD)], y[TOKS * 40];
    int32_t pick[TOKS];
    kit_rng_seed(&rng, rig_seed());
    for (size_t i = 0; i < BPI_ARRAY_LEN(w); ++i) w[i] = (float)bp_oracle_normal(&rng);
    for (size_t i = 0; i < BPI_ARRAY_LEN(x); ++i) x[i] = (double)(float)bp_oracle_normal(&rng);
    for (int i = 0; i < TOKS; ++i) pick[i] = (int32_t)kit_rng_below(&rng, TOKS);
    for (int64_t rows = 0; rows <= ROWS; rows += 1 + rows / 7) {
        for (int64_t toks = 0; toks <= TOKS; toks += 1 + toks / 6) {
            for (int64_t cols = 0; cols <= COLS; cols += 1 + cols / 3) {
                const int32_t *chosen = (rows + toks + cols) % 2 == 0 ? pick : NULL;
                for (size_t i = 0; i < BPI_ARRAY_LEN(y); ++i) y[i] = -7.0;
                bpi_ref_product(w, COLS + PAD, rows, x, COLS + PAD, chosen, toks, cols, y, 40);
                for (int64_t t = 0; t < TOKS; ++t) {
                    for (int64_t r = 0; r < 40; ++r) {
                        const double *xt = x + (chosen != NULL ? chosen[t] : t) * (COLS + PAD);
                        double want = t < toks && r < rows
                                          ? bpi_ref_dot_fd(w + r * (COLS + PAD), xt, cols)
                                          : -7.0;
                        ck_assert(memcmp(&y[t * 40 + r], &want, 8) == 0);
                    }
                }
            }
        }
    }
}
END_TEST

START_TEST(slices_cover_everything_once)
{
    for (int64_t n = 0; n < 70; ++n) {
        for (uint64_t slices = 1; slices < 20; ++slices) {
            int64_t at = 0, begin, end;
            for (uint64_t s = 0; s < slices; ++s) {
                bpi_ref_slice_part(s, slices, n, &begin, &end);
                ck_assert_int_eq(begin, at);
                ck_assert_int_ge(end, begin);
                at = end;
            }
            ck_assert_int_eq(at, n);
        }
    }
    uint64_t before = 0;
    for (int64_t cover = 0; cover < 40000; cover += 97) {
        uint64_t floats = bpi_ref_slice_floats(cover);
        ck_assert_uint_ge(floats, before);
        before = floats;
        for (int64_t n_tok = 1; n_tok < 100; n_tok += 7) {
            int64_t rows = bpi_ref_slice_rows(cover, n_tok);
            ck_assert(rows >= 1 && rows <= BPI_REF_ROW_BLOCK && (uint64_t)(rows * cover) <= floats);
        }
    }
}
END_TEST

START_TEST(areas_count_what_they_give)
{
    struct bpi_ref_area count = {0};
    struct bp_workspace ws;
    (void)bpi_ref_area_take(&count, 3, 8);
    (void)bpi_ref_area_take(&count, 1, 1);
    ck_assert_int_eq(bpi_ref_area_report(&count, &ws, NULL), BP_OK);
    ck_assert_uint_eq(ws.scratch_bytes, 65);
    void *mem = bpi_alloc_aligned(ws.scratch_bytes, 64);
    struct bp_launch l = {.scratch = mem, .scratch_bytes = ws.scratch_bytes};
    struct bpi_ref_area area = bpi_ref_area_of(&l);
    ck_assert(bpi_ref_area_take(&area, 3, 8) == mem);
    ck_assert(bpi_ref_area_take(&area, 1, 1) == (unsigned char *)mem + 64);
    ck_assert(!area.bad);
    ck_assert_ptr_null(bpi_ref_area_take(&area, 1, 1));
    ck_assert(area.bad);
    struct bpi_ref_area huge = {0};
    (void)bpi_ref_area_take(&huge, UINT64_MAX / 2, 3);
    struct bp_error err = BP_ERROR_INIT;
    ck_assert_int_eq(bpi_ref_area_report(&huge, &ws, &err), BP_E_LIMIT);
    ck_assert(err.msg[0] != '\0');
    l.scratch = NULL;
    area = bpi_ref_area_of(&l);
    (void)bpi_ref_area_take(&area, 1, 1);
    ck_assert(area.bad);
    bpi_free(mem);
}
END_TEST

#if defined(BP_SANITIZED) && defined(__SANITIZE_ADDRESS__) && !defined(__clang__)
/* The inner loops carry no checks of their own; what BPI_REF_TOUCH says in their place must be complete. Each case is
 * one element too many, in an own process that the sanitizer ends. */
static void one_too_many(int what)
{
    enum { N = 24 };
    float *f = bpi_calloc(N, sizeof *f), *longer = bpi_calloc(N + 1, sizeof *longer);
    double *d = bpi_calloc(N, sizeof *d), *longer_d = bpi_calloc(4 * (N + 1), sizeof *longer_d);
    double y[8];
    const float *rows[4] = {longer, longer, longer, longer};
    volatile double sum = 0.0;
    switch (what) {
    case 0:
        sum = bpi_ref_dot_ff(f, longer, N + 1);
        break;
    case 1:
        sum = bpi_ref_dot_ff(longer, f, N + 1);
        break;
    case 2:
        sum = bpi_ref_dot_fd(f, longer_d, N + 1);
        break;
    case 3:
        sum = bpi_ref_dot_fd(longer, d, N + 1);
        break;
    case 4:
        sum = bpi_ref_dot_dd(d, longer_d, N + 1);
        break;
    case 5:
        sum = bpi_ref_dot_dd(longer_d, d, N + 1);
        break;
    case 6:
        bpi_ref_axpy(d, 1.0, longer, N + 1);
        break;
    case 7:
        bpi_ref_axpy(longer_d, 1.0, f, N + 1);
        break;
    case 8:
        bpi_ref_product(f, N + 1, 1, longer_d, N + 1, NULL, 1, N + 1, y, 1);
        break;
    case 9:
        bpi_ref_product(longer, N + 1, 1, d, N + 1, NULL, 1, N + 1, y, 1);
        break;
    case 10:
        bpi_ref_product(f, 6, 4, longer_d, 7, NULL, 1, 7, y, 4);
        break; /* the last of four rows */
    case 11:
        bpi_ref_product(longer, 7, 1, d, 7, NULL, 4, 7, y, 1);
        break; /* the last of four tokens */
    case 12:
        bpi_ref_product(longer, 4, 1, d, 4, NULL, 4, 4, d + N - 3, 1);
        break; /* the last of four results */
    case 13:
        bpi_ref_product(longer, 4, 4, longer_d, 4, NULL, 1, 4, d + N - 3, 4);
        break;
    case 14:
        rows[3] = f;
        bpi_ref_mla_accumulate(longer_d, y, rows, 4, N + 1);
        break;
    case 15:
        rows[0] = f;
        bpi_ref_mla_accumulate(longer_d, y, rows, 4, N + 1);
        break;
    case 16:
        bpi_ref_mla_accumulate(d, longer_d, rows, 4, N + 1);
        break;
    case 17:
        bpi_ref_mla_accumulate(longer_d, d + N - 3, rows, 4, N);
        break;
    case 18:
        sum = bpi_ref_dot_ff((const float *)((const char *)longer + 2), longer, 4);
        break; /* not aligned */
    case 19:
        sum = bpi_ref_dot_dd((const double *)((const char *)d + 4), longer_d, 4);
        break;
    default:
        break;
    }
    (void)sum;
    bpi_free(f);
    bpi_free(longer);
    bpi_free(d);
    bpi_free(longer_d);
}

START_TEST(the_sanitizer_sees_one_element_too_many)
{
    enum { CASES = 20 };
    for (int what = 0; what <= CASES; ++what) { /* the last one does nothing and must end well */
        fflush(NULL);
        pid_t child = fork();
        ck_assert_int_ge(child, 0);
        if (child == 0) {
            int null = open("/dev/null", O_WRONLY);
            (void)dup2(null, STDERR_FILENO);
            one_too_many(what);
            _exit(0);
        }
        int status = 0;
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert_msg((status == 0) == (what == CASES), "case %d ended with status %d", what,
                      status);
    }
}
END_TEST
#define SANITIZER_CASES the_sanitizer_sees_one_element_too_many,
#else
#define SANITIZER_CASES
#endif

RIG_MAIN("ref_row", SANITIZER_CASES loads_are_exact_and_round_when_asked, stores_round_once,
         float_stores_match_double_stores, addresses_follow_strides, sums_have_one_order,
         axpy_adds_one_product_each, products_do_not_depend_on_the_tile,
         slices_cover_everything_once, areas_count_what_they_give)
