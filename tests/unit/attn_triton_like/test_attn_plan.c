/* test_attn_plan.c - the work list of decode in attn_triton_like: every key of every row is covered once, lists stay inside
 * their bounds, bounds never shrink, and the device is kept busy without too many parts.
 * SPDX-License-Identifier: MIT */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "plan.h"

enum { SEED = 20261201, N_RANDOM = 3000, MOST_ROWS = 200 };

static uint64_t state = SEED;

static uint32_t below(uint32_t n)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((state >> 33) % n);
}

static struct attn_plan_shape random_shape(void)
{
    struct attn_plan_shape s = {
        .n_row = 1 + below(MOST_ROWS), .n_head = 1 + below(130), .n_slot = 1 + below(400)};
    s.max_kv = 1 + below((uint32_t)1 << (1 + below(20)));
    if (below(3) == 0) s.fixed = 64 * (1 + below(40));
    return s;
}

/* The list in memory of exactly the promised size; the caller frees it. */
static struct attn_plan_head *build(const struct attn_plan_shape *s, const int32_t *len)
{
    const struct attn_plan_bounds b = attn_plan_bounds(s);
    struct attn_plan_head *plan = malloc(b.n_bytes);
    ck_assert_ptr_nonnull(plan);
    memset(plan, 0xff, b.n_bytes);
    ck_assert(attn_plan_build(s, len, plan) <= b.n_bytes);
    ck_assert(plan->n_item <= b.n_item);
    ck_assert((uint64_t)plan->n_part * s->n_head <= b.n_part_head);
    ck_assert_uint_eq(plan->n_row, s->n_row);
    return plan;
}

/* What kernels/decode.cuh makes of a row of n keys: the part's first key, and one past its last. */
static void part_of(int64_t n, const struct attn_item *item, int64_t *begin, int64_t *end)
{
    int64_t each = (n + item->n_split - 1) / item->n_split;
    each = (each + ATTN_KEY_STEP - 1) / ATTN_KEY_STEP * ATTN_KEY_STEP;
    *begin = item->split * each;
    *end = *begin + each < n ? *begin + each : n;
}

/* Items of each row stand together and in order, tile its keys without a gap, and own part numbers of their own. */
static void check_cover(const struct attn_plan_shape *s, const int32_t *len,
                        struct attn_plan_head *plan)
{
    const struct attn_item *item = attn_plan_items(plan, s->n_row);
    uint32_t n_item = 0, n_part = 0;
    ck_assert_uint_eq((uintptr_t)item % 16, 0);
    for (uint32_t row = 0; row < s->n_row; ++row) {
        const int32_t n_split = attn_plan_splits(plan, s->n_row)[row],
                      first = attn_plan_first(plan)[row];
        int64_t at = 0;
        ck_assert(n_split >= 1 && n_split <= ATTN_MAX_SPLITS);
        ck_assert_int_eq(first, n_split > 1 ? (int32_t)n_part : -1);
        for (int32_t i = 0; i < n_split; ++i, ++item, ++n_item) {
            int64_t begin, end;
            ck_assert(item->row == (int32_t)row && item->split == i && item->n_split == n_split);
            ck_assert_int_eq(item->part, n_split > 1 ? (int32_t)n_part++ : -1);
            part_of(len[row] > 0 ? len[row] : 0, item, &begin, &end);
            if (begin >= end) continue;
            ck_assert_int_eq(begin, at);
            at = end;
        }
        ck_assert_int_eq(at, len[row] > 0 ? len[row] : 0);
    }
    ck_assert_uint_eq(plan->n_item, n_item);
    ck_assert_uint_eq(plan->n_part, n_part);
}

START_TEST(every_key_is_covered_once)
{
    int32_t len[MOST_ROWS];
    for (int round = 0; round < N_RANDOM; ++round) {
        const struct attn_plan_shape s = random_shape();
        for (uint32_t i = 0; i < s.n_row; ++i) {
            len[i] = below(6) == 0   ? -(int32_t)below(2)
                     : below(3) == 0 ? (int32_t)s.max_kv
                                     : (int32_t)below(s.max_kv + 1);
        }
        struct attn_plan_head *plan = build(&s, len);
        check_cover(&s, len, plan);
        free(plan);
    }
}
END_TEST

/* workspace() is asked about the largest problem, and smaller ones must fit. */
START_TEST(bounds_never_shrink)
{
    for (int round = 0; round < N_RANDOM; ++round) {
        const struct attn_plan_shape s = random_shape();
        struct attn_plan_shape large = s;
        large.n_row += below(3) * below(1000);
        large.n_head += below(3) * below(40);
        large.max_kv += below(3) * below(1 << 20);
        const struct attn_plan_bounds a = attn_plan_bounds(&s), b = attn_plan_bounds(&large);
        ck_assert(a.n_bytes <= b.n_bytes);
        ck_assert(a.n_part_head <= b.n_part_head);
    }
}
END_TEST

START_TEST(one_long_row_fills_the_device)
{
    const struct attn_plan_shape s = {.n_row = 1, .n_head = 16, .max_kv = 1 << 20, .n_slot = 264};
    const int32_t lengths[] = {16384, 32768, 131072};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; ++i) {
        struct attn_plan_head *plan = build(&s, &lengths[i]);
        ck_assert_uint_ge(plan->n_item, 100);
        ck_assert_uint_le(plan->n_item, ATTN_MAX_SPLITS);
        free(plan);
    }
    const int32_t brief = ATTN_MIN_PART;
    struct attn_plan_head *plan = build(&s, &brief);
    ck_assert_uint_eq(plan->n_item, 1);
    ck_assert_uint_eq(plan->n_part, 0);
    free(plan);
}
END_TEST

START_TEST(many_long_rows_have_long_parts)
{
    const struct attn_plan_shape s = {.n_row = 128, .n_head = 16, .max_kv = 16384, .n_slot = 264};
    int32_t len[128];
    for (int i = 0; i < 128; ++i) len[i] = 16384;
    struct attn_plan_head *plan = build(&s, len);
    ck_assert_uint_ge(plan->n_item, 256);
    ck_assert_uint_le(plan->n_item, 128 * 10);
    free(plan);
}
END_TEST

/* With a fixed length of parts, what the other rows are makes no difference. */
START_TEST(fixed_parts_do_not_depend_on_neighbours)
{
    int32_t len[MOST_ROWS];
    for (int round = 0; round < N_RANDOM; ++round) {
        struct attn_plan_shape s = random_shape();
        s.fixed = 64 * (1 + below(40));
        for (uint32_t i = 0; i < s.n_row; ++i) len[i] = (int32_t)below(s.max_kv + 1);
        struct attn_plan_head *plan = build(&s, len);
        const uint32_t row = below(s.n_row), n_row = s.n_row;
        const int32_t n_split = attn_plan_splits(plan, n_row)[row];
        free(plan);
        s.n_row = 1;
        plan = build(&s, &len[row]);
        ck_assert_int_eq(attn_plan_splits(plan, 1)[0], n_split);
        free(plan);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("attn_plan");
    TCase *tc = tcase_create("plan");
    tcase_add_test(tc, every_key_is_covered_once);
    tcase_add_test(tc, bounds_never_shrink);
    tcase_add_test(tc, one_long_row_fills_the_device);
    tcase_add_test(tc, many_long_rows_have_long_parts);
    tcase_add_test(tc, fixed_parts_do_not_depend_on_neighbours);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
