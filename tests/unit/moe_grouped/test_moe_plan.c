/* test_moe_plan.c - the planning of moe_grouped: what workspace() promises is enough for every smaller call and never
 * shrinks, tiles are enough for every routing, and passes over down cover all columns.
 * SPDX-License-Identifier: MIT */
#include <check.h>

#include "kernels/moe_kernels.h"
#include "plan.h"

enum { SEED = 20261201, N_RANDOM = 4000 };

static uint64_t state = SEED;

static int64_t below(int64_t n)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int64_t)((state >> 33) % (uint64_t)n);
}

static int64_t ladder(int64_t most)
{
    const int64_t n = (int64_t)1 << below(25);
    return below((n < most ? n : most) + 1);
}

static struct moe_size random_size(void)
{
    static const uint32_t dtypes[] = {BP_DT_F32, BP_DT_F16, BP_DT_BF16};
    struct moe_size s = {.n_tok = 1 + ladder(8191),
                         .n_expert = ladder(511),
                         .n_embd = 1 + ladder(16383),
                         .width = (ladder(4095) + 31) / 32 * 32,
                         .width_shared = (ladder(4095) + 31) / 32 * 32,
                         .x_dtype = dtypes[below(3)]};
    s.n_used = 1 + below(16);
    return s;
}

static uint64_t bytes_of(const struct moe_size *s)
{
    struct moe_plan p;
    struct moe_scratch out;
    struct bp_area a;
    bp_area_count(&a);
    moe_plan_make(s, &p);
    moe_plan_take(s, &p, &a, &out);
    ck_assert_uint_eq(a.bad, 0);
    return a.used;
}

START_TEST(scratch_is_enough_for_smaller_calls)
{
    for (int i = 0; i < N_RANDOM; ++i) {
        const struct moe_size most = random_size();
        struct moe_size s = most;
        const uint64_t promised = moe_plan_bytes(&most);
        ck_assert_msg(bytes_of(&s) <= promised, "seed %d, case %d", SEED, i);
        s.n_tok = 1 + below(most.n_tok);
        s.n_expert = below(most.n_expert + 1);
        s.width = below(most.width / 32 + 1) * 32;
        s.width_shared = below(most.width_shared / 32 + 1) * 32;
        ck_assert_msg(bytes_of(&s) <= promised, "seed %d, smaller case %d", SEED, i);
        s = most;
        /* The most that few tokens can be: h is f32 there. */
        s.n_tok = MOE_FEW_PAIRS * most.n_expert / most.n_used;
        if (s.n_tok < MOE_FEW_TOKENS) s.n_tok = MOE_FEW_TOKENS;
        if (s.n_tok > most.n_tok) s.n_tok = most.n_tok;
        ck_assert_msg(bytes_of(&s) <= promised, "seed %d, few tokens, case %d", SEED, i);
    }
}
END_TEST

START_TEST(promise_never_shrinks)
{
    for (int i = 0; i < N_RANDOM; ++i) {
        const struct moe_size s = random_size();
        struct moe_size more[6] = {s, s, s, s, s, s};
        more[0].n_tok += 1 + below(300);
        more[1].n_used += 1;
        more[2].n_expert += 1 + below(9);
        more[3].n_embd += 1 + below(2000);
        more[4].width += 32;
        more[5].width_shared += 32;
        for (int k = 0; k < 6; ++k)
            ck_assert_msg(moe_plan_bytes(&more[k]) >= moe_plan_bytes(&s),
                          "seed %d, case %d, field %d", SEED, i, k);
    }
}
END_TEST

/* The routing that needs most tiles: one pair of each expert first, the rest anywhere. */
START_TEST(tiles_are_enough)
{
    for (int i = 0; i < N_RANDOM; ++i) {
        const struct moe_size s = random_size();
        struct moe_plan p;
        int64_t left = s.n_tok * s.n_used, tiles = 0;
        moe_plan_make(&s, &p);
        ck_assert(p.tile_tok == MOE_TILE_FEW || p.tile_tok == MOE_TILE_MANY);
        ck_assert(p.n_tile_shared * (int64_t)p.tile_tok_shared >= s.n_tok);
        for (int64_t e = 0; e < s.n_expert && left > 0; ++e) {
            int64_t n = e + 1 == s.n_expert
                            ? left
                            : 1 + below(2) * p.tile_tok; /* a whole tile and one row */
            if (n > left) n = left;
            tiles += (n + p.tile_tok - 1) / p.tile_tok;
            left -= n;
        }
        ck_assert_msg(tiles <= p.n_tile, "seed %d, case %d: %lld tiles of %d", SEED, i,
                      (long long)tiles, p.n_tile);
        ck_assert(p.n_tile <= s.n_tok * s.n_used);
    }
}
END_TEST

START_TEST(passes_are_whole)
{
    for (int i = 0; i < N_RANDOM; ++i) {
        const struct moe_size s = random_size();
        struct moe_plan p;
        moe_plan_make(&s, &p);
        ck_assert(p.n_col > 0 && p.n_col <= s.n_embd);
        ck_assert(p.n_col == s.n_embd || p.n_col % 128 == 0);
        ck_assert(!p.half || (s.x_dtype == BP_DT_BF16 && !p.few));
        ck_assert(p.few || s.n_tok > MOE_FEW_TOKENS);
    }
}
END_TEST

START_TEST(widths)
{
    ck_assert_int_eq(moe_width_most(0), 0);
    for (int64_t n = 1; n < 3000; ++n) {
        ck_assert_int_eq(moe_width_most(n) % 32, 0);
        ck_assert_int_ge(moe_width_most(n), (n + 31) / 32 * 32);
        /* A part of n columns from any place of rows of blocks of 256. */
        const int64_t at = below(256), cover = (at + n + 255) / 256 * 256;
        ck_assert_int_ge(moe_width_most(n), cover);
    }
}
END_TEST

START_TEST(too_large_is_said)
{
    const struct moe_size s = {.n_tok = INT32_MAX,
                               .n_used = INT32_MAX,
                               .n_expert = INT32_MAX,
                               .n_embd = INT64_MAX / 2,
                               .width = INT64_MAX / 2,
                               .width_shared = INT64_MAX / 2,
                               .x_dtype = BP_DT_F32};
    ck_assert(moe_plan_bytes(&s) == UINT64_MAX);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("moe_plan");
    TCase *tc = tcase_create("plan");
    tcase_add_test(tc, scratch_is_enough_for_smaller_calls);
    tcase_add_test(tc, promise_never_shrinks);
    tcase_add_test(tc, tiles_are_enough);
    tcase_add_test(tc, passes_are_whole);
    tcase_add_test(tc, widths);
    tcase_add_test(tc, too_large_is_said);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
