/* test_ab_numbers.c - the numbers behind a verdict: rows, bounds, gaps of choices, medians. SPDX-License-Identifier: MIT */
#include "compare/compare_priv.h"
#include "backplane/slot_moe.h"
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

START_TEST(rows_are_measured_against_a)
{
    const float a[] = {1.0f, -4.0f, 2.0f}, b[] = {1.0f, -4.5f, 2.25f};
    const struct bpi_ab_row r = bpi_ab_row(a, b, 3);
    ck_assert(r.alike);
    ck_assert_double_eq(r.max_abs, 0.5);
    ck_assert_double_eq(r.max_a, 4.0);
    ck_assert_int_eq(r.at, 1);
    ck_assert_double_eq(r.d2, 0.25 + 0.0625);
    ck_assert_double_eq(r.a2, 21.0);
}
END_TEST

START_TEST(nan_on_one_side_is_no_agreement)
{
    const float a[] = {1.0f, NAN, INFINITY}, b[] = {1.0f, NAN, INFINITY}, c[] = {1.0f, 0.0f, NAN};
    ck_assert(bpi_ab_row(a, b, 3).alike);
    const struct bpi_ab_row r = bpi_ab_row(a, c, 3);
    ck_assert(!r.alike);
    ck_assert_int_eq(r.at, 1);
    struct bpi_ab_entry e = {.op = {.worst_pos = 0}};
    bpi_ab_count(&e, &r, 7);
    ck_assert(isnan(e.op.max_abs) && isnan(e.d2));
    ck_assert_uint_eq(e.op.worst_pos, 7);
    const struct bpi_ab_row fine = bpi_ab_row(a, b, 1);
    bpi_ab_count(&e, &fine, 8);
    ck_assert_msg(isnan(e.op.max_abs), "a later row must not hide the NaN");
    ck_assert(bpi_ab_row_right(a, b, NULL, 3, BP_DT_F32, 1, NULL));
    ck_assert(!bpi_ab_row_right(c, a, NULL, 3, BP_DT_F32, 1, NULL));
    ck_assert(!bpi_ab_row_right(a, c, NULL, 3, BP_DT_F32, 1, NULL));
}
END_TEST

START_TEST(ulps)
{
    ck_assert_double_eq(bpi_ab_ulp(BP_DT_F32, 1.0), 0x1p-23);
    ck_assert_double_eq(bpi_ab_ulp(BP_DT_BF16, 1.5), 0x1p-7);
    ck_assert_double_eq(bpi_ab_ulp(BP_DT_F16, 2.0), 0x1p-9);
    ck_assert_double_eq(bpi_ab_ulp(BP_DT_F16, 0.0), 0x1p-24);
}
END_TEST

/* Twice the baseline and one ulp at the row's maximum; half as much again is too much. */
START_TEST(bounds_follow_the_baseline)
{
    const float exact[] = {1.0f, 0.5f}, base[] = {1.01f, 0.5f};
    float got[] = {1.0f, 0.5f};
    double limit = 0;
    got[1] = 0.5f + 0.0199f;
    ck_assert(bpi_ab_row_right(got, exact, base, 2, BP_DT_F32, 2, &limit));
    ck_assert_double_lt(fabs(limit - 0.02), 1e-6);
    got[1] = 0.5f + 0.0202f;
    ck_assert(!bpi_ab_row_right(got, exact, base, 2, BP_DT_F32, 2, NULL));
    ck_assert(!bpi_ab_row_right(base, exact, NULL, 2, BP_DT_F32, 2, NULL));
    got[1] = 0.5f + 0x1p-23f;
    ck_assert(bpi_ab_row_right(got, exact, NULL, 2, BP_DT_F32, 2, NULL));
}
END_TEST

/* Every element just below the bound is no rounding. */
START_TEST(norm_counts_too)
{
    float exact[64], base[64], got[64];
    for (int i = 0; i < 64; ++i) {
        exact[i] = 1.0f;
        base[i] = i == 0 ? 1.01f : 1.0f;
        got[i] = 1.019f;
    }
    ck_assert(!bpi_ab_row_right(got, exact, base, 64, BP_DT_F32, 1, NULL));
    for (int i = 0; i < 32; ++i) got[i] = 1.0f;
    ck_assert(bpi_ab_row_right(got, exact, base, 64, BP_DT_F32, 1, NULL));
}
END_TEST

START_TEST(gaps_of_experts)
{
    const struct bpi_hparams hp = {.n_expert = 4,
                                   .n_expert_used = 2,
                                   .n_group = 2,
                                   .n_group_used = 1,
                                   .gating = BP_GATING_SIGMOID,
                                   .group_score = BP_GROUP_TOP2};
    const float logits[] = {0.0f, 1.0f, 2.0f, -3.0f}, bias[] = {0.0f, 0.0f, 0.0f, 1.0f};
    struct bpi_ab_route s;
    struct bp_error err = BP_ERROR_INIT;
    ck_assert_int_eq(bpi_ab_route_make(&s, &hp, &err), BP_OK);
    bpi_ab_route_score(&s, &hp, bias, logits);
    const double p0 = 0.5, p1 = 1 / (1 + exp(-1.0)), p2 = 1 / (1 + exp(-2.0)),
                 p3 = 1 / (1 + exp(3.0)) + 1.0;
    ck_assert(!s.kept[0] && s.kept[1]);
    ck_assert_double_lt(fabs(bpi_ab_route_gap(&s, 2, 3) - fabs(p2 - p3)), 1e-12);
    /* Expert 1 lost with its group, whatever its own score. */
    ck_assert_double_lt(fabs(bpi_ab_route_gap(&s, 2, 1) - (p2 + p3 - p0 - p1)), 1e-12);
    ck_assert(isnan(bpi_ab_route_gap(&s, 2, -1)) && isnan(bpi_ab_route_gap(&s, 4, 1)));
    bpi_ab_route_free(&s);
}
END_TEST

/* Beyond what is kept the narrowest gaps go; an unknown one counts as the widest and is not lost behind narrow ones. */
START_TEST(the_widest_flips_are_kept)
{
    struct bpi_ab_entry e = {.op = {.n_flips = 0}};
    uint32_t n_unknown = 0;
    bpi_ab_add_flip(&e, 0, 1, 2, (double)NAN, false);
    for (uint32_t i = 1; i <= 2 * BPI_AB_FLIPS; ++i) bpi_ab_add_flip(&e, i, 1, 2, 0.5 * i, false);
    bpi_ab_add_flip(&e, 99, 1, 2, (double)NAN, false);
    ck_assert_uint_eq(e.op.n_flips, 2 * BPI_AB_FLIPS + 2);
    ck_assert_uint_eq(e.op.n_flips_kept, BPI_AB_FLIPS);
    for (uint32_t i = 0; i < BPI_AB_FLIPS; ++i) {
        if (isnan(e.flips[i].gap))
            ++n_unknown;
        else
            ck_assert_double_gt(e.flips[i].gap, 0.5 * (BPI_AB_FLIPS + 2));
    }
    ck_assert_uint_eq(n_unknown, 2);
}
END_TEST

START_TEST(keys_of_one_side_are_paired)
{
    const double scores[] = {3.0, 1.0, 4.0, 1.5};
    const int32_t a[] = {0, 2, 2, -1}, b[] = {2, 0, 3, -1};
    uint64_t at[2] = {0, 0};
    int32_t only_a = 7, only_b = 7;
    ck_assert(bpi_ab_next_keys(a, b, 4, at, &only_a, &only_b)); /* a has one of its keys twice */
    ck_assert(only_a == -1 && only_b == 3);
    ck_assert(!bpi_ab_next_keys(a, b, 4, at, &only_a, &only_b));
    ck_assert_double_eq(bpi_ab_key_gap(scores, 4, 0, 3), 1.5);
    ck_assert(isnan(bpi_ab_key_gap(scores, 3, 0, 3)) && isnan(bpi_ab_key_gap(scores, 3, 3, 0)));
    ck_assert(isnan(bpi_ab_key_gap(scores, 4, -1, 0)) && isnan(bpi_ab_key_gap(NULL, 4, 0, 3)));
}
END_TEST

/* A better expert that comes in moves others to the next place: 7 stands against 11, and nobody else. */
START_TEST(experts_stand_against_each_other)
{
    const int32_t a[] = {9, 3, 7}, b[] = {11, 9, 3}, c[] = {3, 9, 7}, d[] = {9, 3, 3};
    struct bpi_ab_pairs at = {.place = 0};
    int32_t ea, eb;
    ck_assert(bpi_ab_next_experts(a, b, 3, &at, &ea, &eb) && ea == 7 && eb == 11);
    ck_assert(!bpi_ab_next_experts(a, b, 3, &at, &ea, &eb));
    at = (struct bpi_ab_pairs){.place = 0}; /* the same in another order */
    ck_assert(bpi_ab_next_experts(a, c, 3, &at, &ea, &eb) && ea == 9 && eb == 3);
    ck_assert(bpi_ab_next_experts(a, c, 3, &at, &ea, &eb) && ea == 3 && eb == 9);
    ck_assert(!bpi_ab_next_experts(a, c, 3, &at, &ea, &eb));
    at = (struct bpi_ab_pairs){
        .place = 0}; /* one comes twice in place of 7, which stands against nobody */
    ck_assert(bpi_ab_next_experts(a, d, 3, &at, &ea, &eb) && ea == 7 && eb == -1);
    ck_assert(!bpi_ab_next_experts(a, d, 3, &at, &ea, &eb));
    at = (struct bpi_ab_pairs){.place = 0};
    ck_assert(!bpi_ab_next_experts(a, a, 3, &at, &ea, &eb));
}
END_TEST

START_TEST(medians_and_intervals)
{
    struct bpi_ab_samples s = {0};
    struct bp_error err = BP_ERROR_INIT;
    struct bpi_rng rng;
    bpi_rng_seed(&rng, 1);
    struct bp_ab_time t = bpi_ab_time(&s, &rng);
    ck_assert(t.n == 0 && t.median == 0);
    for (int i = 0; i < 1001; ++i)
        ck_assert_int_eq(bpi_ab_sample(&s, 100.0 + (i * 7919) % 1001 * 0.01, &rng, &err), BP_OK);
    ck_assert_uint_eq(s.n, BPI_AB_SAMPLES);
    t = bpi_ab_time(&s, &rng);
    ck_assert_uint_eq(t.n, 1001);
    /* Uniform on [100, 110]: the median of 256 of them lies within five standard errors of 105. */
    ck_assert_double_lt(fabs(t.median - 105.0), 5 * 10.0 / 2 / sqrt(256));
    ck_assert(t.lo <= t.median && t.median <= t.hi && t.hi - t.lo > 0.1 && t.hi - t.lo < 4);
    bpi_free(s.us);
}
END_TEST

START_TEST(patterns)
{
    ck_assert(bpi_ab_matches("embd,blk.*.out", "blk.12.out"));
    ck_assert(bpi_ab_matches("*", "logits"));
    ck_assert(!bpi_ab_matches("blk.1.*", "blk.12.out") && !bpi_ab_matches("blk.2.*", "blk.12.out"));
    ck_assert(!bpi_ab_matches(NULL, "embd") && !bpi_ab_matches("", "embd"));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ab_numbers");
    TCase *t = tcase_create("all");
    tcase_add_test(t, rows_are_measured_against_a);
    tcase_add_test(t, nan_on_one_side_is_no_agreement);
    tcase_add_test(t, ulps);
    tcase_add_test(t, bounds_follow_the_baseline);
    tcase_add_test(t, norm_counts_too);
    tcase_add_test(t, gaps_of_experts);
    tcase_add_test(t, the_widest_flips_are_kept);
    tcase_add_test(t, keys_of_one_side_are_paired);
    tcase_add_test(t, experts_stand_against_each_other);
    tcase_add_test(t, medians_and_intervals);
    tcase_add_test(t, patterns);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
