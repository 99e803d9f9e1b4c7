/* test_quant_plan.c - what quant_gguf decides on the host: how a weight and its parts lie, how strips are shared, what
 * memory a product needs, and what is refused. SPDX-License-Identifier: MIT */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "plan.h"

static unsigned char some[64];

static struct bp_raw matrix(int64_t cols, int64_t rows, uint64_t n_bytes)
{
    struct bp_raw raw = {
        .h = BP_HDR(struct bp_raw, reserved), .data = some, .n_bytes = n_bytes, .n_dim = 2};
    const int64_t ne[4] = {cols, rows, 1, 1};
    memcpy(raw.ne, ne, sizeof ne);
    memcpy(raw.end, ne, sizeof ne);
    raw.scale = 1.0f;
    return raw;
}

START_TEST(a_whole_weight_is_whole_strips_of_steps)
{
    struct bp_raw raw = matrix(768, 33, 33 * 3 * 144);
    struct plan_weight p;
    ck_assert_ptr_null(plan_weight(&raw, 256, 144, 256, 2304, &p));
    ck_assert_int_eq(p.rows, 33);
    ck_assert_int_eq(p.cols, 768);
    ck_assert_int_eq(p.skip, 0);
    ck_assert_int_eq(p.cover, 768);
    ck_assert_int_eq(p.n_steps, 3);
    ck_assert_int_eq(p.pitch, 3 * 2304);
    ck_assert_uint_eq(p.data_bytes, 3 * 3 * 2304);
    ck_assert_uint_eq(p.counters_at % 256, 0);
    ck_assert_uint_ge(p.counters_at, p.data_bytes);
    ck_assert_uint_eq(p.n_bytes, p.counters_at + 3 * 4);
}
END_TEST

START_TEST(a_part_covers_the_blocks_it_begins_and_ends_in)
{
    struct bp_raw raw = matrix(1024, 64, 64 * 4 * 144);
    struct plan_weight p;
    raw.begin[0] = 255;
    raw.end[0] = 513;
    raw.begin[1] = 7;
    raw.end[1] = 24;
    ck_assert_ptr_null(plan_weight(&raw, 256, 144, 256, 2304, &p));
    ck_assert_int_eq(p.rows, 17);
    ck_assert_int_eq(p.cols, 258);
    ck_assert_int_eq(p.first_block, 0);
    ck_assert_int_eq(p.skip, 255);
    ck_assert_int_eq(p.cover, 768);
    ck_assert_int_eq(p.row_bytes, 3 * 144);
    ck_assert_int_eq(p.file_pitch, 4 * 144);
    raw.begin[0] = raw.end[0] = 300; /* nothing */
    ck_assert_ptr_null(plan_weight(&raw, 256, 144, 256, 2304, &p));
    ck_assert_int_eq(p.cols, 0);
    ck_assert_int_eq(p.cover, 0);
    ck_assert_int_eq(p.n_steps, 1); /* of zeros */
    ck_assert_uint_eq(p.data_bytes, 2 * 2304);
}
END_TEST

START_TEST(rows_of_single_elements_are_padded_to_runs_of_eight)
{
    struct bp_raw raw = matrix(77, 19, 77 * 19 * 4);
    struct plan_weight p;
    ck_assert_ptr_null(plan_weight(&raw, 1, 4, 0, 0, &p));
    ck_assert_int_eq(p.cover, 80);
    ck_assert_int_eq(p.pitch, 320);
    ck_assert_int_eq(p.row_bytes, 308);
    raw = matrix(300, 19,
                 300 * 19 * 2); /* rows of 16-bit floats are whole steps, and strips of them */
    ck_assert_ptr_null(plan_weight(&raw, 1, 2, 128, 0, &p));
    ck_assert_int_eq(p.n_steps, 3);
    ck_assert_int_eq(p.pitch, 768);
    ck_assert_uint_eq(p.data_bytes, 32 * 768);
    raw = matrix(512, 3, 3 * 2 * 66);
    ck_assert_ptr_null(plan_weight(&raw, 256, 66, 0, 0, &p));
    ck_assert_int_eq(p.pitch, 2 * 66);
}
END_TEST

START_TEST(bad_tensors_are_refused_with_a_clause)
{
    struct plan_weight p;
    struct bp_raw raw = matrix(768, 33, 33 * 3 * 144);
    raw.data = NULL;
    ck_assert_ptr_nonnull(plan_weight(&raw, 256, 144, 256, 2304, &p));
    raw = matrix(768, 33, 33 * 3 * 144 - 1);
    ck_assert_ptr_nonnull(strstr(plan_weight(&raw, 256, 144, 256, 2304, &p), "fewer bytes"));
    raw = matrix(769, 33, 1 << 20);
    ck_assert_ptr_nonnull(strstr(plan_weight(&raw, 256, 144, 256, 2304, &p), "blocks"));
    raw = matrix(768, 33, 1 << 20);
    raw.ne[2] = raw.end[2] = 2;
    ck_assert_ptr_nonnull(strstr(plan_weight(&raw, 256, 144, 256, 2304, &p), "matrix"));
    raw = matrix(768, 33, 1 << 20);
    raw.end[1] = 34;
    ck_assert_ptr_nonnull(strstr(plan_weight(&raw, 256, 144, 256, 2304, &p), "part"));
    raw.end[1] = 3;
    raw.begin[1] = 4;
    ck_assert_ptr_nonnull(strstr(plan_weight(&raw, 256, 144, 256, 2304, &p), "part"));
    raw.begin[1] = -1;
    ck_assert_ptr_nonnull(strstr(plan_weight(&raw, 256, 144, 256, 2304, &p), "part"));
    raw = matrix(INT64_MAX / 256 * 256, INT64_MAX, UINT64_MAX);
    ck_assert_ptr_nonnull(plan_weight(&raw, 256, 144, 256, 2304, &p));
    raw = matrix(256, (int64_t)1 << 40, UINT64_MAX);
    ck_assert_ptr_nonnull(plan_weight(&raw, 256, 144, 256, 2304, &p));
}
END_TEST

static void expect_cut(struct plan_cut got, uint32_t blocks, uint32_t whole)
{
    ck_assert_uint_eq(got.blocks, blocks);
    ck_assert_uint_eq(got.whole, whole);
}

START_TEST(blocks_fill_the_device)
{
    expect_cut(plan_gemv(256, 1, 56, 132, 2, 8), 256, 1); /* 4096 x 14336: a strip for each */
    expect_cut(plan_gemv(896, 1, 16, 132, 1, 16), 132, 1);
    expect_cut(plan_gemv(36, 1, 28, 132, 2, 8), 36, 1); /* 576 x 7168: sharing would cost more than three more steps */
    expect_cut(plan_gemv(36, 1, 560, 132, 1, 16), 132, 0); /* so many steps are shared */
    expect_cut(plan_gemv(1, 1, 1, 132, 3, 8), 1, 1);
    expect_cut(plan_gemv(0, 1, 28, 132, 3, 8), 1, 1);
    /* No warp has more than the steps of two strips, and all rounds are full. */
    expect_cut(plan_gemv(8080, 1, 28, 132, 2, 8), 528, 1);
    expect_cut(plan_gemv(8080, 1, 28, 132, 1, 16), 264, 1);
    expect_cut(plan_gemv(448, 2, 28, 132, 1, 16), 132, 1);
}
END_TEST

/* As the kernel cuts the line of steps: no block is empty, whole units stay whole, no warp sees more than three strips. */
START_TEST(every_block_has_work_and_no_warp_too_many_strips)
{
    struct bpi_rng rng;
    uint32_t n_whole = 0;
    bpi_rng_seed(&rng, 11);
    for (int i = 0; i < 3000; ++i) {
        const int64_t units = 1 + (int64_t)bpi_rng_below(&rng, 3000),
                      of = 1 + (int64_t)bpi_rng_below(&rng, 2),
                      steps = 1 + (int64_t)bpi_rng_below(&rng, i % 2 == 0 ? 5 : 100);
        const uint32_t n_sm = 1 + (uint32_t)bpi_rng_below(&rng, 300);
        const int64_t n_warp = 4 << bpi_rng_below(&rng, 3);
        const struct plan_cut cut =
            plan_gemv(units, of, steps, n_sm, 1 + (uint32_t)bpi_rng_below(&rng, 3), (uint32_t)n_warp);
        const int64_t grain = cut.whole != 0 ? of * steps : 1, n = units * of * steps / grain;
        const int64_t blocks = cut.blocks, each = n / blocks, more = n % blocks;
        ck_assert_int_le(blocks, n);
        n_whole += cut.whole;
        for (int64_t b = 0; b < blocks; ++b) {
            const int64_t begin = (b * each + (b < more ? b : more)) * grain,
                          len = (each + (b < more ? 1 : 0)) * grain;
            ck_assert_int_ge(len, 1);
            for (int64_t w = 0; w < n_warp; ++w) {
                const int64_t from = begin + len * w / n_warp, to = begin + len * (w + 1) / n_warp;
                if (from < to) ck_assert_int_le((to - 1) / steps - from / steps + 1, 3);
            }
        }
    }
    ck_assert_uint_gt(n_whole, 100);
    ck_assert_uint_lt(n_whole, 2900);
}
END_TEST

static uint64_t scratch_bytes(const struct plan_need *need, uint32_t *bad)
{
    struct bp_area a;
    struct plan_scratch s;
    bp_area_count(&a);
    plan_scratch(&a, need, &s);
    *bad = a.bad;
    return a.used;
}

START_TEST(memory_never_shrinks_as_a_problem_grows)
{
    static const uint32_t dtypes[] = {BP_DT_F32, BP_DT_F16, BP_DT_BF16};
    struct bpi_rng rng;
    bpi_rng_seed(&rng, 12);
    for (int i = 0; i < 20000; ++i) {
        struct plan_need small = {.n_tok = bpi_rng_below(&rng, 5000),
                                  .cols = (int64_t)bpi_rng_below(&rng, 20000),
                                  .rows = (int64_t)bpi_rng_below(&rng, 20000),
                                  .x_dtype = dtypes[bpi_rng_below(&rng, 3)],
                                  .gemm = (uint32_t)bpi_rng_below(&rng, 2)};
        struct plan_need large = small;
        uint32_t bad = 0;
        large.n_tok += bpi_rng_below(&rng, 100);
        large.cols += (int64_t)bpi_rng_below(&rng, 3000);
        large.rows += (int64_t)bpi_rng_below(&rng, 5000);
        large.gemm |= (uint32_t)bpi_rng_below(&rng, 2);
        const uint64_t n = scratch_bytes(&small, &bad);
        ck_assert_uint_eq(bad, 0);
        ck_assert_uint_le(n, scratch_bytes(&large, &bad));
        ck_assert_uint_eq(bad, 0);
    }
}
END_TEST

START_TEST(memory_of_a_call_lies_in_what_was_asked_for)
{
    const struct plan_need need = {
        .n_tok = 17, .cols = 300, .rows = 129, .x_dtype = BP_DT_BF16, .gemm = 1};
    uint32_t bad = 0;
    const uint64_t n = scratch_bytes(&need, &bad);
    unsigned char *memory = aligned_alloc(256, (size_t)(n + 255) / 256 * 256);
    struct bp_area a;
    struct plan_scratch s;
    ck_assert_ptr_nonnull(memory);
    bp_area_of(&a, memory, n);
    plan_scratch(&a, &need, &s);
    ck_assert_uint_eq(a.bad, 0);
    ck_assert_uint_eq(a.used, n);
    ck_assert_ptr_nonnull(s.stage);
    ck_assert_uint_eq((uintptr_t)s.blas % 256, 0);
    ck_assert_ptr_nonnull(s.blas);
    bp_area_of(&a, memory, n - 64);
    plan_scratch(&a, &need, &s);
    ck_assert_uint_eq(a.bad, 1);
    free(memory);
}
END_TEST

START_TEST(sizes_that_overflow_are_told)
{
    uint32_t bad = 0;
    struct plan_need need = {
        .n_tok = UINT64_MAX, .cols = 1 << 20, .rows = 1 << 20, .x_dtype = BP_DT_F32, .gemm = 1};
    (void)scratch_bytes(&need, &bad);
    ck_assert_uint_eq(bad, 1);
    need = (struct plan_need){.n_tok = 1, .cols = INT64_MAX, .rows = 1, .x_dtype = BP_DT_F32};
    (void)scratch_bytes(&need, &bad);
    ck_assert_uint_eq(bad, 1);
}
END_TEST

START_TEST(parts_hold_a_token_exactly)
{
    ck_assert_uint_eq(plan_parts(BP_DT_BF16, 0), 1);
    ck_assert_uint_eq(plan_parts(BP_DT_BF16, 1), 2);
    ck_assert_uint_eq(plan_parts(BP_DT_F16, 0), 2);
    ck_assert_uint_eq(plan_parts(BP_DT_F16, 1), 2);
    ck_assert_uint_eq(plan_parts(BP_DT_F32, 0), 3);
    ck_assert_uint_eq(plan_parts(BP_DT_F32, 1), 3);
    ck_assert_int_eq(plan_slab_ld(77), 80);
    ck_assert_int_eq(plan_slab_ld(80), 80);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("quant_plan");
    TCase *c = tcase_create("quant_plan");
    tcase_add_test(c, a_whole_weight_is_whole_strips_of_steps);
    tcase_add_test(c, a_part_covers_the_blocks_it_begins_and_ends_in);
    tcase_add_test(c, rows_of_single_elements_are_padded_to_runs_of_eight);
    tcase_add_test(c, bad_tensors_are_refused_with_a_clause);
    tcase_add_test(c, blocks_fill_the_device);
    tcase_add_test(c, every_block_has_work_and_no_warp_too_many_strips);
    tcase_add_test(c, memory_never_shrinks_as_a_problem_grows);
    tcase_add_test(c, memory_of_a_call_lies_in_what_was_asked_for);
    tcase_add_test(c, sizes_that_overflow_are_told);
    tcase_add_test(c, parts_hold_a_token_exactly);
    suite_add_tcase(s, c);
    SRunner *runner = srunner_create(s);
    srunner_run_all(runner, CK_NORMAL);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
