/* test_block_encode.c - the contract of bpi_block_encode: what it refuses, what it writes, zeros, edges of halves.
 * Not here: how good the result is (test_block_quality.c). SPDX-License-Identifier: MIT */
#include <check.h>
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "base/half.h"
#include "block/block.h"
#include "unit/block/block_data.h"
#include "unit/block/block_formula.h"

#define SEED UINT64_C(77)
#define KNOWN_HASH UINT64_C(0x20f35479dfd42425)
enum { BLOCKS = 6, MAX_ELEMS = 256 * BLOCKS, MAX_BYTES = 4 * MAX_ELEMS, GUARD = 0xa5 };

static const struct bpi_block_info *encodable(int type)
{
    const struct bpi_block_info *info = bpi_block_info((uint32_t)type);
    return info != NULL && info->can_encode ? info : NULL;
}

static bool untouched(const unsigned char *p, size_t n)
{
    for (size_t i = 0; i < n; ++i)
        if (p[i] != GUARD) return false;
    return true;
}

/* ---- which types ---- */

START_TEST(which_types)
{
    static const uint32_t have[] = {BP_GGUF_F32,  BP_GGUF_F16,    BP_GGUF_BF16,  BP_GGUF_Q4_0,
                                    BP_GGUF_Q4_1, BP_GGUF_Q5_0,   BP_GGUF_Q5_1,  BP_GGUF_Q8_0,
                                    BP_GGUF_Q2_K, BP_GGUF_Q3_K,   BP_GGUF_Q4_K,  BP_GGUF_Q5_K,
                                    BP_GGUF_Q6_K, BP_GGUF_IQ4_NL, BP_GGUF_IQ4_XS};
    uint32_t n = 0;
    for (uint32_t type = 0; type < 400; ++type) {
        const struct bpi_block_info *info = bpi_block_info(type);
        unsigned char out[MAX_BYTES];
        static const float x[MAX_ELEMS];
        memset(out, GUARD, sizeof out);
        if (info != NULL && info->can_encode) {
            ck_assert(info->can_decode);
            ck_assert(info->max_abs >= 65504.0f);
            ++n;
            continue;
        }
        ck_assert_int_eq(bpi_block_encode(type, x, 256, NULL, out), BP_E_UNSUPPORTED);
        ck_assert_int_eq(bpi_block_encode(type, x, 0, NULL, out), BP_E_UNSUPPORTED);
        ck_assert(untouched(out, sizeof out));
        if (info != NULL) ck_assert(info->max_abs == 0.0f);
    }
    ck_assert_uint_eq(n, BPI_ARRAY_LEN(have));
    for (size_t i = 0; i < n; ++i) ck_assert_ptr_nonnull(encodable((int)have[i]));
    ck_assert_int_eq(bpi_block_encode(UINT32_MAX, NULL, 0, NULL, NULL), BP_E_UNSUPPORTED);
}
END_TEST

/* ---- refusals ---- */

START_TEST(refusals_write_nothing)
{
    const struct bpi_block_info *info = encodable(_i);
    if (info == NULL) return;
    const uint32_t n = 2 * info->block_elems;
    float x[512], w[512];
    unsigned char out[2048];
    fill_values(x, n, FILL_GAUSS, 1.0, SEED);
    for (uint32_t i = 0; i < n; ++i) w[i] = 1.0f;
    memset(out, GUARD, sizeof out);
    for (uint32_t odd = 1; odd < info->block_elems; ++odd) {
        ck_assert_int_eq(bpi_block_encode(info->type, x, odd, NULL, out), BP_E_ARG);
        ck_assert_int_eq(bpi_block_encode(info->type, x, odd + info->block_elems, w, out),
                         BP_E_ARG);
    }
    ck_assert_int_eq(bpi_block_encode(info->type, NULL, n, NULL, out), BP_E_ARG);
    ck_assert_int_eq(bpi_block_encode(info->type, x, n, NULL, NULL), BP_E_ARG);
    ck_assert_int_eq(bpi_block_encode(info->type, x, 0, NULL, out), BP_OK);
    ck_assert_int_eq(bpi_block_encode(info->type, NULL, 0, NULL, NULL), BP_OK);
    const float above = info->max_abs < FLT_MAX ? nextafterf(info->max_abs, INFINITY) : INFINITY;
    const float bad[] = {NAN, -NAN, INFINITY, -INFINITY, above, -above};
    const float bad_weight[] = {NAN, INFINITY, -INFINITY, -1e-30f};
    for (uint32_t at = 0; at < n; at += 1 + at / 2) {
        const float good = x[at];
        for (size_t k = 0; k < BPI_ARRAY_LEN(bad); ++k) {
            x[at] = bad[k];
            ck_assert_int_eq(bpi_block_encode(info->type, x, n, NULL, out), BP_E_NUMERIC);
        }
        x[at] = good;
        for (size_t k = 0; k < BPI_ARRAY_LEN(bad_weight); ++k) {
            w[at] = bad_weight[k];
            ck_assert_int_eq(bpi_block_encode(info->type, x, n, w, out), BP_E_NUMERIC);
        }
        w[at] = 1.0f;
    }
    ck_assert(untouched(out, sizeof out));
    x[n - 1] = info->max_abs; /* the limit itself is taken */
    x[0] = -info->max_abs;
    ck_assert_int_eq(bpi_block_encode(info->type, x, n, w, out), BP_OK);
}
END_TEST

/* ---- what is written ---- */

/* All alignments of memory that ends where the last block does; the whole at once and block by block; twice. */
START_TEST(exactly_its_bytes)
{
    const struct bpi_block_info *info = encodable(_i);
    if (info == NULL) return;
    const size_t n_bytes = (size_t)BLOCKS * info->block_bytes, n = BLOCKS * info->block_elems;
    float x[MAX_ELEMS], w[MAX_ELEMS];
    unsigned char first[MAX_BYTES];
    fill_values(x, n, FILL_HEAVY, 0.1, SEED + (uint64_t)_i);
    fill_values(w, n, FILL_GAUSS, 1.0, SEED);
    for (size_t i = 0; i < n; ++i) w[i] = w[i] * w[i];
    for (int weighted = 0; weighted < 2; ++weighted) {
        for (size_t shift = 0; shift < 4; ++shift) {
            unsigned char *memory = malloc(shift + n_bytes), *out = memory + shift;
            ck_assert_ptr_nonnull(memory);
            memset(memory, GUARD, shift + n_bytes);
            ck_assert_int_eq(bpi_block_encode(info->type, x, n, weighted != 0 ? w : NULL, out),
                             BP_OK);
            ck_assert(untouched(memory, shift));
            if (shift == 0) memcpy(first, out, n_bytes);
            ck_assert_mem_eq(out, first, n_bytes);
            free(memory);
        }
        for (size_t b = 0; b < BLOCKS; ++b) {
            unsigned char one[1024];
            const size_t at = b * info->block_elems;
            memset(one, GUARD, sizeof one);
            ck_assert_int_eq(bpi_block_encode(info->type, x + at, info->block_elems,
                                              weighted != 0 ? w + at : NULL, one),
                             BP_OK);
            ck_assert_mem_eq(one, first + b * info->block_bytes, info->block_bytes);
            ck_assert(untouched(one + info->block_bytes, sizeof one - info->block_bytes));
        }
    }
}
END_TEST

/* What was written means to the second formulation what it means to the decoder, and nothing in it is forbidden. */
START_TEST(readable_by_formula)
{
    const struct bpi_block_info *info = encodable(_i);
    if (info == NULL) return;
    float x[MAX_ELEMS], y[MAX_ELEMS];
    unsigned char out[MAX_BYTES];
    const size_t n = BLOCKS * info->block_elems;
    for (int fill = 0; fill < FILL_COUNT; ++fill) {
        fill_values(x, n, (enum fill)fill, 3.0, SEED + 1);
        ck_assert_int_eq(bpi_block_encode(info->type, x, n, NULL, out), BP_OK);
        ck_assert_int_eq(bpi_block_decode(info->type, out, n, y), BP_OK);
        double most = 0, worst = 0;
        for (uint32_t i = 0; i < n; ++i) {
            const uint32_t b = i / info->block_elems, e = i % info->block_elems;
            const double exact = formula_element(info->type, out + b * info->block_bytes, e);
            expect_same(info->name, y[i], exact, b, e);
            most = fabs((double)x[i]) > most ? fabs((double)x[i]) : most;
            worst = fabs(exact - (double)x[i]) > worst ? fabs(exact - (double)x[i]) : worst;
        }
        ck_assert(worst < 0.4 * most); /* Q2_K: a step of a third of the range, and some clipping */
        uint64_t bad;
        ck_assert_ptr_null(bpi_block_validate(info->type, out, BLOCKS * info->block_bytes, &bad));
    }
}
END_TEST

/* ---- zeros and very small values ---- */

START_TEST(zeros)
{
    const struct bpi_block_info *info = encodable(_i);
    if (info == NULL) return;
    const size_t n = 2 * info->block_elems;
    static const float small[] = {0.0f, -0.0f, FLT_TRUE_MIN, -FLT_MIN, 1e-20f, 0x1p-25f, -0x1p-25f};
    float x[512], y[512], w[512] = {0};
    unsigned char out[2048];
    for (size_t k = 0; k < BPI_ARRAY_LEN(small); ++k) {
        if (k >= 2 && info->block_elems == 1) break;
        for (size_t i = 0; i < n; ++i) x[i] = small[k];
        for (int weighted = 0; weighted < 2; ++weighted) {
            memset(out, GUARD, sizeof out);
            ck_assert_int_eq(bpi_block_encode(info->type, x, n, weighted != 0 ? w : NULL, out),
                             BP_OK);
            ck_assert_int_eq(bpi_block_decode(info->type, out, n, y), BP_OK);
            for (size_t i = 0; i < n; ++i) ck_assert(y[i] == 0.0f);
        }
    }
}
END_TEST

/* Sixteen or thirty-two zeros beside other values stay zeros where a group has a scale of its own. */
START_TEST(group_of_zeros)
{
    static const uint32_t types[] = {BP_GGUF_Q2_K, BP_GGUF_Q3_K, BP_GGUF_Q4_K,
                                     BP_GGUF_Q5_K, BP_GGUF_Q6_K, BP_GGUF_IQ4_XS};
    float x[256], y[256];
    unsigned char out[256];
    for (size_t k = 0; k < BPI_ARRAY_LEN(types); ++k) {
        for (int group = 0; group < 8; ++group) {
            fill_values(x, 256, FILL_GAUSS, 1.0, SEED + k);
            for (int i = 0; i < 32; ++i) x[32 * group + i] = i % 2 != 0 ? -0.0f : FLT_TRUE_MIN;
            ck_assert_int_eq(bpi_block_encode(types[k], x, 256, NULL, out), BP_OK);
            ck_assert_int_eq(bpi_block_decode(types[k], out, 256, y), BP_OK);
            for (int i = 0; i < 256; ++i) {
                if (i / 32 == group) ck_assert(y[i] == 0.0f);
            }
            ck_assert(y[(32 * group + 32) % 256] != 0.0f || y[(32 * group + 33) % 256] != 0.0f);
        }
    }
}
END_TEST

/* Near the least halves: never worse than zeros, and within half a step of the least scale. */
START_TEST(subnormal_scales)
{
    const struct bpi_block_info *info = encodable(_i);
    if (info == NULL || info->block_elems == 1) return;
    const size_t n = BLOCKS * info->block_elems;
    /* IQ4's levels around zero, -10, 1 and 13, are that far apart. */
    const bool uneven = info->type == BP_GGUF_IQ4_NL || info->type == BP_GGUF_IQ4_XS;
    const double half_step = uneven ? 6.0 * 0x1p-24 : 0.5 * 0x1p-24;
    float x[MAX_ELEMS], y[MAX_ELEMS], zero[MAX_ELEMS] = {0};
    unsigned char out[MAX_BYTES];
    for (double size = 0x1p-26; size < 0x1p-12; size *= 1.3) {
        fill_values(x, n, FILL_GAUSS, size, SEED + 3);
        ck_assert_int_eq(bpi_block_encode(info->type, x, n, NULL, out), BP_OK);
        ck_assert_int_eq(bpi_block_decode(info->type, out, n, y), BP_OK);
        const double error = rms_error(x, y, NULL, n);
        ck_assert(error <= rms_error(x, zero, NULL, n));
        /* Or as good as elsewhere (Q2_K: 0.26 of the size). */
        ck_assert_msg(error <= half_step + 0.35 * size, "%s size %g error %g", info->name, size,
                      error);
        if (size > (uneven ? 0x1p-19 : 0x1p-22)) ck_assert(error < 0.6 * size);
    }
}
END_TEST

/* ---- the same everywhere ---- */

/* The bytes of all encoders, from values that no mathematical library had a hand in. The hash changes when a search is
 * changed on purpose; compilers, options and processors must not change it. */
START_TEST(known_bytes)
{
    enum { COUNT = 16384 };
    static float x[COUNT], w[COUNT];
    static unsigned char out[4 * COUNT];
    struct bpi_rng rng;
    uint64_t hash = UINT64_C(0xcbf29ce484222325), n_bytes;
    bpi_rng_seed(&rng, SEED);
    for (int i = 0; i < COUNT; ++i) {
        double v = -1.5;
        for (int k = 0; k < 3; ++k) v += bpi_rng_f64(&rng);
        x[i] = (float)(v * v * v);
        w[i] = (float)bpi_rng_f64(&rng);
    }
    for (int type = 0; type < BP_GGUF_COUNT; ++type) {
        if (encodable(type) == NULL) continue;
        for (int weighted = 0; weighted < 2; ++weighted) {
            const float *weights = weighted != 0 ? w : NULL;
            ck_assert(bpi_block_bytes((uint32_t)type, COUNT, &n_bytes));
            ck_assert_int_eq(bpi_block_encode((uint32_t)type, x, COUNT, weights, out), BP_OK);
            for (uint64_t i = 0; i < n_bytes; ++i) hash = (hash ^ out[i]) * UINT64_C(0x100000001b3);
        }
    }
    ck_assert_msg(hash == KNOWN_HASH, "hash %016llx", (unsigned long long)hash);
}
END_TEST

/* ---- floats ---- */

START_TEST(floats_round_to_nearest)
{
    struct bpi_rng rng;
    bpi_rng_seed(&rng, SEED);
    for (int round = 0; round < 100000; ++round) {
        float x = bpi_f32_from_bits((uint32_t)bpi_rng_u64(&rng)), y;
        unsigned char out[4];
        if (!isfinite(x)) continue;
        ck_assert(bpi_block_encode(BP_GGUF_F32, &x, 1, NULL, out) == BP_OK);
        if (memcmp(out, &x, 4) != 0) ck_abort_msg("F32 %a", (double)x);
        static const struct {
            uint32_t type;
            int bits, least;
        } narrow[] = {{BP_GGUF_F16, 11, -24}, {BP_GGUF_BF16, 8, -133}};
        for (int k = 0; k < 2; ++k) {
            int e, rc = bpi_block_encode(narrow[k].type, &x, 1, NULL, out);
            if (fabsf(x) > bpi_block_info(narrow[k].type)->max_abs) {
                if (rc != BP_E_NUMERIC) ck_abort_msg("%a was taken", (double)x);
                continue;
            }
            if (rc != BP_OK) ck_abort_msg("%a was refused", (double)x);
            bpi_block_decode(narrow[k].type, out, 1, &y);
            (void)frexp((double)x, &e);
            int unit = e - narrow[k].bits > narrow[k].least ? e - narrow[k].bits : narrow[k].least;
            double want = ldexp(nearbyint(ldexp((double)x, -unit)), unit);
            if ((double)y != want) ck_abort_msg("%a became %a, not %a", (double)x, (double)y, want);
        }
    }
}
END_TEST

/* ---- weights ---- */

START_TEST(weights_by_ratio)
{
    const struct bpi_block_info *info = encodable(_i);
    if (info == NULL) return;
    const size_t n = BLOCKS * info->block_elems, n_bytes = (size_t)BLOCKS * info->block_bytes;
    float x[MAX_ELEMS], w[MAX_ELEMS], w2[MAX_ELEMS];
    unsigned char even[MAX_BYTES], same[MAX_BYTES], weighted[MAX_BYTES];
    fill_values(x, n, FILL_GAUSS, 1.0, SEED + 5);
    ck_assert_int_eq(bpi_block_encode(info->type, x, n, NULL, even), BP_OK);
    static const float constant[] = {0.0f, 3.7f, FLT_MAX, FLT_TRUE_MIN};
    for (size_t k = 0; k < BPI_ARRAY_LEN(constant); ++k) {
        for (size_t i = 0; i < n; ++i) w[i] = constant[k];
        ck_assert_int_eq(bpi_block_encode(info->type, x, n, w, same), BP_OK);
        ck_assert_mem_eq(same, even, n_bytes);
    }
    fill_values(w, n, FILL_GAUSS, 1.0, SEED + 6);
    for (size_t i = 0; i < n; ++i) {
        w[i] = i % 5 == 0 ? 0.0f : w[i] * w[i];
        w2[i] = w[i] * 0x1p60f;
    }
    ck_assert_int_eq(bpi_block_encode(info->type, x, n, w, weighted), BP_OK);
    ck_assert_int_eq(bpi_block_encode(info->type, x, n, w2, same), BP_OK);
    ck_assert_mem_eq(same, weighted, n_bytes);
    ck_assert((memcmp(weighted, even, n_bytes) != 0) == (info->block_elems > 1));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("block_encode");
    TCase *c = tcase_create("all");
    tcase_set_timeout(c, 120);
    tcase_add_test(c, which_types);
    tcase_add_loop_test(c, refusals_write_nothing, 0, BP_GGUF_COUNT);
    tcase_add_loop_test(c, exactly_its_bytes, 0, BP_GGUF_COUNT);
    tcase_add_loop_test(c, readable_by_formula, 0, BP_GGUF_COUNT);
    tcase_add_loop_test(c, zeros, 0, BP_GGUF_COUNT);
    tcase_add_test(c, group_of_zeros);
    tcase_add_loop_test(c, subnormal_scales, 0, BP_GGUF_COUNT);
    tcase_add_test(c, known_bytes);
    tcase_add_test(c, floats_round_to_nearest);
    tcase_add_loop_test(c, weights_by_ratio, 0, BP_GGUF_COUNT);
    suite_add_tcase(s, c);
    printf("seed %llu\n", (unsigned long long)SEED);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
