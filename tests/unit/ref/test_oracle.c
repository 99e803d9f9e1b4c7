/* test_oracle.c - the oracle itself: a comparison that never turns red proves nothing, and a formula that is wrong in the
 * same way as what it judges proves less. SPDX-License-Identifier: MIT */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "base/half.h"
#include "block/block.h"
#include "cases/bp_oracle.h"

enum { N = 64 };

/* Two rows of numbers near 1, a baseline with small errors, and an output under test. */
struct pair {
    double got[2 * N], exact[2 * N], base[2 * N];
    struct bp_oracle_compare c;
    char why[200];
};

static void pair_make(struct pair *p)
{
    struct kit_rng rng;
    kit_rng_seed(&rng, 7);
    for (int i = 0; i < 2 * N; ++i) {
        p->exact[i] = bp_oracle_normal(&rng);
        p->base[i] = p->exact[i] + bp_oracle_uniform(&rng) * 1e-4;
        p->got[i] = p->exact[i] + bp_oracle_uniform(&rng) * 1e-4;
    }
    p->c = (struct bp_oracle_compare){.got = p->got,
                                      .exact = p->exact,
                                      .base = p->base,
                                      .n_rows = 2,
                                      .width = N,
                                      .dtype = BP_DT_F32,
                                      .precision = BP_ORACLE_F32};
    p->why[0] = '\0';
}

static bool agrees(struct pair *p)
{
    return bp_oracle_agree(&p->c, p->why, sizeof p->why);
}

START_TEST(what_is_as_good_as_the_baseline_passes)
{
    struct pair p;
    pair_make(&p);
    ck_assert_msg(agrees(&p), "%s", p.why);
    memcpy(p.got, p.base, sizeof p.got);
    ck_assert_msg(agrees(&p), "%s", p.why);
    memcpy(p.got, p.exact, sizeof p.got);
    ck_assert(agrees(&p));
    p.c.width = 0;
    ck_assert(agrees(&p));
}
END_TEST

START_TEST(one_wrong_number_fails)
{
    static const double wrong[] = {NAN, INFINITY, -INFINITY, 1e30, -1e30, 0.01};
    for (int at = 0; at < 2 * N; at += 13) {
        for (size_t k = 0; k < BPI_ARRAY_LEN(wrong); ++k) {
            struct pair p;
            pair_make(&p);
            p.got[at] = k + 1 == BPI_ARRAY_LEN(wrong) ? p.exact[at] + wrong[k] : wrong[k];
            ck_assert_msg(!agrees(&p), "%g at %d passed", wrong[k], at);
            ck_assert_ptr_nonnull(strstr(p.why, at < N ? "row 0" : "row 1"));
        }
    }
}
END_TEST

START_TEST(classes_come_first)
{
    struct pair p;
    static const double classes[] = {NAN, INFINITY, -INFINITY, 1.0};
    for (size_t e = 0; e < 4; ++e) {
        for (size_t g = 0; g < 4; ++g) {
            pair_make(&p);
            p.exact[5] = classes[e];
            p.got[5] = classes[g];
            p.base[5] = NAN; /* a baseline that overflows must not widen anybody's bound */
            ck_assert_int_eq(agrees(&p), e == g);
        }
    }
    pair_make(&p);
    for (int i = 0; i < 2 * N; ++i) p.base[i] = NAN;
    p.got[3] += 0.01;
    ck_assert(!agrees(&p));
}
END_TEST

START_TEST(errors_beyond_the_bound_fail)
{
    struct pair p;
    pair_make(&p);
    double largest = 0.0;
    for (int i = 0; i < N; ++i)
        largest = fabs(p.base[i] - p.exact[i]) > largest ? fabs(p.base[i] - p.exact[i]) : largest;
    p.got[9] = p.exact[9] + 1.99 * largest;
    ck_assert_msg(agrees(&p), "%s", p.why);
    p.got[9] = p.exact[9] + 2.01 * largest;
    ck_assert(!agrees(&p));
    /* Each just inside, all together: no rounding looks like that. */
    pair_make(&p);
    for (int i = 0; i < N; ++i) p.got[i] = p.exact[i] + 1.9 * largest;
    ck_assert(!agrees(&p));
    ck_assert_ptr_nonnull(strstr(p.why, "norm"));
    /* Without a baseline's error four ulp of f32 at the row's largest are all. */
    pair_make(&p);
    memcpy(p.base, p.exact, sizeof p.base);
    memcpy(p.got, p.exact, sizeof p.got);
    p.exact[0] = p.base[0] = p.got[0] = 3.0;
    for (int i = 1; i < N; ++i) p.exact[i] = p.base[i] = p.got[i] = p.exact[i] / 8.0;
    p.got[4] += 0x1p-20;
    ck_assert(agrees(&p));
    p.got[4] += 0x1p-22;
    ck_assert(!agrees(&p));
    p.c.dtype = BP_DT_BF16;
    ck_assert(agrees(&p));
}
END_TEST

START_TEST(mag_is_a_floor)
{
    struct pair p;
    double mag[2 * N];
    pair_make(&p);
    memcpy(p.base, p.exact, sizeof p.base);
    memcpy(p.got, p.exact, sizeof p.got);
    for (int i = 0; i < 2 * N; ++i) mag[i] = 100.0;
    p.got[1] = p.exact[1] + 150.0 * 0x1p-24;
    ck_assert(!agrees(&p));
    p.c.mag = mag;
    ck_assert_msg(agrees(&p), "%s", p.why);
    p.got[1] = p.exact[1] + 900.0 * 0x1p-24;
    ck_assert(!agrees(&p));
    /* In bf16 inputs, one rounding of 2^-9 of the sum of magnitudes. */
    p.c.precision = BP_ORACLE_BF16;
    p.got[1] = p.exact[1] + 199.0 * 0x1p-9;
    ck_assert_msg(agrees(&p), "%s", p.why);
    p.got[1] = p.exact[1] + 201.0 * 0x1p-9;
    ck_assert(!agrees(&p));
}
END_TEST

START_TEST(rounding_is_that_of_the_formats)
{
    struct kit_rng rng;
    kit_rng_seed(&rng, 11);
    for (int i = 0; i < 200000; ++i) {
        uint32_t bits = (uint32_t)kit_rng_u64(&rng);
        if (i % 2 == 1)
            bits = (bits & 0xff800000u) | ((bits & 0x7fu) << 16) | (bits & 1u) |
                   (i % 4 == 1 ? 0x8000u : 0u); /* ties */
        float f = bpi_f32_from_bits(bits);
        double bf16 = (double)bpi_bf16_to_f32(bpi_f32_to_bf16(f)),
               f16 = (double)bpi_f16_to_f32(bpi_f32_to_f16(f));
        double got = bp_oracle_round((double)f, BP_ORACLE_BF16);
        if (f != f) {
            ck_assert(isnan(got));
            continue;
        }
        ck_assert_msg(memcmp(&got, &bf16, 8) == 0, "%a as bf16: %a, want %a", (double)f, got, bf16);
        got = bp_oracle_round((double)f, BP_ORACLE_F16);
        ck_assert_msg(memcmp(&got, &f16, 8) == 0, "%a as f16: %a, want %a", (double)f, got, f16);
        ck_assert(bp_oracle_round((double)f, BP_ORACLE_F32) == (double)f);
    }
    ck_assert(bp_oracle_ulp(BP_DT_F32, 1.5) == 0x1p-23 &&
              bp_oracle_ulp(BP_DT_F32, 0.75) == 0x1p-24);
    ck_assert(bp_oracle_ulp(BP_DT_BF16, 1.0) == 0x1p-7 && bp_oracle_ulp(BP_DT_F16, 4.0) == 0x1p-8);
    ck_assert(bp_oracle_ulp(BP_DT_F16, 0.0) == 0x1p-24 &&
              bp_oracle_ulp(BP_DT_F32, 1e-42) == 0x1p-149);
}
END_TEST

START_TEST(weights_are_what_core_block_decodes)
{
    struct kit_rng rng;
    kit_rng_seed(&rng, 3);
    for (uint32_t type = 0; type < BP_GGUF_COUNT; ++type) {
        const struct bpi_block_info *info = bpi_block_info(type);
        struct bp_oracle_weight w;
        float f[512];
        double squares = 0.0;
        bool varied = false;
        if (info == NULL || !info->can_decode) continue;
        bp_oracle_weight_init(&w, &rng, type, 256, 2, 1, 2.0f);
        const struct bp_oracle_type *sizes = bp_oracle_type(type);
        uint64_t n_bytes = 0;
        ck_assert_msg(sizes != NULL && bpi_block_bytes(type, 512, &n_bytes), "%s", info->name);
        ck_assert_str_eq(sizes->name, info->name);
        ck_assert_uint_eq(sizes->block_elems, info->block_elems);
        ck_assert_uint_eq(sizes->block_bytes, info->block_bytes);
        ck_assert_uint_eq(w.n_bytes, n_bytes);
        ck_assert_int_eq(bpi_block_decode(type, w.bytes, 512, f), BP_OK);
        for (int i = 0; i < 512; ++i) {
            ck_assert(w.w[i] == (double)(f[i] * 2.0f));
            squares += w.w[i] * w.w[i] / 512.0;
            varied = varied || w.w[i] != w.w[0];
        }
        ck_assert_msg(varied && sqrt(squares) > 0.001 && sqrt(squares) < 2.0, "%s: rms %g",
                      info->name, sqrt(squares));
        struct bp_raw raw = bp_oracle_raw(&w, "name");
        ck_assert(raw.ne[0] == 256 && raw.ne[1] == 2 && raw.ne[2] == 1 && raw.end[0] == 256 &&
                  raw.end[3] == 1);
        ck_assert(raw.n_bytes == w.n_bytes && raw.scale == 2.0f && (uintptr_t)raw.data % 32 == 0);
        bp_oracle_weight_free(&w);
    }
}
END_TEST

/* ---- formulas on numbers one can check by hand ---- */

START_TEST(products_and_norms)
{
    static const double w[] = {1, 2, 3, -1, 0, 4}, x[] = {1, 1, 1, 2, 0, -1};
    static const double ones[] = {1, 1, 1, 1}, zeros[4], v[] = {1, 3, 5, 7};
    double y[4], mag[4];
    bp_oracle_matmul(BP_ORACLE_EXACT, w, 2, 3, x, 2, y, mag);
    ck_assert(y[0] == 6 && y[1] == 3 && y[2] == -1 && y[3] == -6);
    ck_assert(mag[0] == sqrt(14.0) && mag[3] == sqrt(20.0));
    bp_oracle_matmul(BP_ORACLE_F16, (double[]){2049.0}, 1, 1, (double[]){1.0}, 1, y, NULL);
    ck_assert(y[0] == 2048.0); /* inputs are rounded, ties to even */
    bp_oracle_rms(BP_ORACLE_EXACT, v, ones, 1, 4, 4.0, y);
    ck_assert(y[3] == 7.0 / 5.0); /* mean square 21, plus 4 */
    bp_oracle_layernorm(BP_ORACLE_EXACT, v, ones, zeros, 1, 4, 4.0, y);
    ck_assert(y[0] == -1.0 && y[3] == 1.0); /* mean 4, variance 5, plus 4 */
    ck_assert(bp_oracle_silu_mul(BP_ORACLE_EXACT, 0.0, 3.0) == 0.0);
    ck_assert(fabs(bp_oracle_silu_mul(BP_ORACLE_EXACT, 1.0, 2.0) - 2.0 / (1.0 + exp(-1.0))) <
              1e-15);
    ck_assert(bp_oracle_silu_mul(BP_ORACLE_EXACT, -INFINITY, 2.0) == 0.0);
}
END_TEST

START_TEST(rotation_and_choice)
{
    static const double x[] = {10, 20, 30, 40}, c[] = {0, 1}, s[] = {1, 0};
    static const double scores[] = {1, NAN, 5, 5, -INFINITY};
    double y[4];
    int32_t ids[5];
    bp_oracle_rope(BP_ORACLE_EXACT, x, c, s, 4, BP_ROPE_INTERLEAVED, y);
    ck_assert(y[0] == -20 && y[1] == 10 && y[2] == 30 && y[3] == 40);
    bp_oracle_rope(BP_ORACLE_EXACT, x, c, s, 4, BP_ROPE_HALF, y);
    ck_assert(y[0] == -30 && y[1] == 20 && y[2] == 10 && y[3] == 40);
    bp_oracle_topk(scores, 5, 5, ids);
    ck_assert(ids[0] == 2 && ids[1] == 3 && ids[2] == 0 && ids[3] == 4 && ids[4] == -1);
}
END_TEST

START_TEST(routing)
{
    /* Four groups of two; sigmoid of 0 is a half. */
    static const double z[] = {0, 0, 3, -9, 1, 1, 0, 0}, bias[] = {0, 0, 0, 0, 0, 0, 9, 0};
    double p[8], sel[8], weights[2];
    int32_t ids[2];
    struct bp_oracle_route r = {.n_expert = 8,
                                .n_used = 2,
                                .gating = BP_GATING_SIGMOID,
                                .group_score = BP_GROUP_MAX,
                                .n_group = 4,
                                .n_group_used = 1,
                                .scale = 2.0};
    bp_oracle_route_token(&r, z, NULL, ids, weights, p, sel);
    ck_assert(ids[0] == 2 && ids[1] == 3 && isinf(sel[4])); /* the group of the maximum */
    r.group_score = BP_GROUP_TOP2;
    r.normalize = 1;
    bp_oracle_route_token(&r, z, NULL, ids, weights, p, sel);
    ck_assert(ids[0] == 4 && ids[1] == 5 && weights[0] == 1.0 &&
              weights[1] == 1.0); /* half each, times two */
    bp_oracle_route_token(&r, z, bias, ids, weights, p, sel);
    ck_assert(ids[0] == 6 && ids[1] == 7 &&
              weights[0] == 1.0); /* the bias chose, and weighs nothing */
    r.n_group = 8;
    r.n_group_used = 2;
    bp_oracle_route_token(&r, z, NULL, ids, weights, p, sel);
    ck_assert(ids[0] == 2 && ids[1] == 4); /* groups of one */
    bp_oracle_route_token(&r, (double[]){0, 0, 0, NAN, 0, 0, 0, 0}, NULL, ids, weights, p, sel);
    ck_assert(ids[0] == -1 && ids[1] == -1 && isnan(weights[0]) && isnan(weights[1]));
    r = (struct bp_oracle_route){
        .n_expert = 2, .n_used = 2, .gating = BP_GATING_SOFTMAX, .scale = 1.0};
    bp_oracle_route_token(&r, (double[]){1000.0, 1000.0 + log(3.0)}, NULL, ids, weights, p, sel);
    ck_assert(ids[0] == 1 && fabs(weights[0] - 0.75) < 1e-12 && fabs(weights[1] - 0.25) < 1e-12);
}
END_TEST

/* Experts that scale by known factors: silu(large) is large, so h = gate * up. */
START_TEST(experts)
{
    double gate[] = {64, 64}, up[] = {1, 2}, down[] = {0.5, 0.25}, shared[] = {1};
    struct bp_oracle_weight g = {.ne = {1, 1, 2}, .w = gate}, u = {.ne = {1, 1, 2}, .w = up},
                            d = {.ne = {1, 1, 2}, .w = down};
    struct bp_oracle_weight s = {.ne = {1, 1, 1}, .w = shared}, sg = {.ne = {1, 1, 1}, .w = gate};
    struct bp_oracle_moe m = {.gate = &g,
                              .up = &u,
                              .down = &d,
                              .shared_gate = &sg,
                              .shared_up = &s,
                              .shared_down = &s,
                              .expert_end = 2};
    double y[3];
    static const double x[] = {2, 2, 1}, gates[] = {1, 10, 1, 10, 3, 5};
    static const int32_t ids[] = {0, 1, -1, 1, 7, 0};
    bp_oracle_moe_run(BP_ORACLE_EXACT, &m, x, ids, gates, 3, 2, y, NULL);
    /* x = 2: gate 128; expert 0: 128 * 2 * 0.5 = 128; expert 1: 128 * 4 * 0.25 = 128; shared: 128 * 2 = 256. */
    ck_assert(fabs(y[0] - (128.0 + 1280.0 + 256.0)) < 1e-9);
    ck_assert(fabs(y[1] - (1280.0 + 256.0)) < 1e-9);
    ck_assert(fabs(y[2] - (5.0 * 32.0 + 64.0)) < 1e-9); /* expert 7 does not exist */
    m.expert_begin = 1;
    m.shared_gate = NULL;
    bp_oracle_moe_run(BP_ORACLE_EXACT, &m, x, ids, gates, 3, 2, y, NULL);
    ck_assert(fabs(y[0] - 1280.0) < 1e-9 && y[2] == 0.0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("oracle");
    TCase *tc = tcase_create("oracle");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, what_is_as_good_as_the_baseline_passes);
    tcase_add_test(tc, one_wrong_number_fails);
    tcase_add_test(tc, classes_come_first);
    tcase_add_test(tc, errors_beyond_the_bound_fail);
    tcase_add_test(tc, mag_is_a_floor);
    tcase_add_test(tc, rounding_is_that_of_the_formats);
    tcase_add_test(tc, weights_are_what_core_block_decodes);
    tcase_add_test(tc, products_and_norms);
    tcase_add_test(tc, rotation_and_choice);
    tcase_add_test(tc, routing);
    tcase_add_test(tc, experts);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
