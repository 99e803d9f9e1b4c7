/* test_sdk_tensor.c - sdk_tensor.h against the core's own arithmetic: all 16-bit floats, random and edge f32, strided
 * rows. SPDX-License-Identifier: MIT */
#include "backplane/sdk.h"

#include <check.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include "base/half.h"
#include "base/rng.h"

START_TEST(all_halves_read_exactly)
{
    for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
        ck_assert_uint_eq(bp_f32_bits(bp_bf16_f32((uint16_t)bits)),
                          bpi_f32_bits(bpi_bf16_to_f32((uint16_t)bits)));
        ck_assert_uint_eq(bp_f32_bits(bp_f16_f32((uint16_t)bits)),
                          bpi_f32_bits(bpi_f16_to_f32((uint16_t)bits)));
    }
}
END_TEST

static bool is_nan16(uint16_t bits, uint16_t infinity)
{
    return (bits & 0x7fffu) > infinity;
}

static void check_stores(uint32_t bits)
{
    const float v = bp_bits_f32(bits);
    const uint16_t bf16 = bp_f32_bf16(v), f16 = bp_f32_f16(v);
    /* Only the bad case goes through the library: an assertion costs microseconds, and there are millions. */
    const bool good = v != v ? is_nan16(bf16, 0x7f80) && is_nan16(f16, 0x7c00)
                             : bf16 == bpi_f32_to_bf16(v) && f16 == bpi_f32_to_f16(v);
    if (!good) {
        ck_abort_msg("%08" PRIx32 " as bf16: %04x, as f16: %04x; the core gives %04x and %04x",
                     bits, bf16, f16, bpi_f32_to_bf16(v), bpi_f32_to_f16(v));
    }
}

START_TEST(stores_round_like_the_core)
{
    const uint64_t seed = 20260101;
    struct bpi_rng rng;
    (void)printf("seed %" PRIu64 "\n", seed);
    bpi_rng_seed(&rng, seed);
    for (int i = 0; i < 2000000; ++i) check_stores((uint32_t)bpi_rng_u64(&rng));
    /* Around every f16: the value itself, both neighbours as f32, and the middle to the next one with its neighbours. */
    for (uint32_t h = 0; h <= 0xffff; ++h) {
        const uint32_t at = bp_f32_bits(bp_f16_f32((uint16_t)h));
        const uint32_t next = bp_f32_bits(bp_f16_f32((uint16_t)(h + 1)));
        const uint32_t middle = bp_f32_bits((bp_bits_f32(at) + bp_bits_f32(next)) / 2.0f);
        for (uint32_t d = 0; d < 3; ++d) {
            check_stores(at + d - 1);
            check_stores(middle + d - 1);
        }
    }
}
END_TEST

START_TEST(rows_follow_strides)
{
    static float data[200];
    struct bp_tensor t = {.data = data, .dtype = BP_DT_F32, .ndim = 3};
    int64_t n = 0;
    t.dim[0] = 2, t.dim[1] = 3, t.dim[2] = 4;
    t.stride[0] = 90, t.stride[1] = 7, t.stride[2] = 1;
    for (struct bp_rows r = bp_rows_of(&t); bp_rows_next(&r); ++n) {
        ck_assert_int_eq(r.i[0], n / 3);
        ck_assert_int_eq(r.i[1], n % 3);
        ck_assert_int_eq(r.n, 4);
        ck_assert_ptr_eq(r.p, data + n / 3 * 90 + n % 3 * 7);
        ck_assert_ptr_eq(r.p, bp_at(&t, r.i[0], r.i[1], 0));
    }
    ck_assert_int_eq(n, 6);
    t.ndim = 1;
    n = 0;
    for (struct bp_rows r = bp_rows_of(&t); bp_rows_next(&r); ++n) ck_assert_int_eq(r.n, 2);
    ck_assert_int_eq(n, 1);
    t.ndim = 2;
    t.dim[0] = 0;
    struct bp_rows none = bp_rows_of(&t);
    ck_assert_int_eq(bp_rows_next(&none), 0);
    t.ndim = 0;
    none = bp_rows_of(&t);
    ck_assert_int_eq(bp_rows_next(&none), 0);
    t.ndim = 2;
    t.dtype = BP_DT_BF16;
    ck_assert_ptr_eq(bp_at(&t, 1, 0, 0), (unsigned char *)data + 180);
}
END_TEST

START_TEST(loads_and_stores)
{
    const float values[5] = {1.0f, -2.5f, 0.0f, 65504.0f, 3.14159274f};
    const uint32_t dtypes[] = {BP_DT_F32, BP_DT_F16, BP_DT_BF16};
    unsigned char raw[6 * 4];
    float back[5];
    for (uint32_t i = 0; i < BP_LEN(dtypes); ++i) {
        memset(raw, 0xee, sizeof raw);
        bp_store(raw, dtypes[i], values, 5);
        ck_assert_uint_eq(raw[5 * bp_dtype_bytes(dtypes[i])], 0xee);
        bp_load(back, raw, dtypes[i], 5);
        ck_assert(back[0] == 1.0f && back[1] == -2.5f && back[2] == 0.0f);
        ck_assert((back[4] == values[4]) == (dtypes[i] == BP_DT_F32));
    }
    memset(raw, 0xee, sizeof raw);
    bp_store(raw, BP_DT_I32, values, 5);
    ck_assert_uint_eq(raw[0], 0xee);
    bp_load(back, raw, BP_DT_I32, 5);
    ck_assert(back[0] != back[0]);
    ck_assert(bp_is_float(BP_DT_F16) && !bp_is_float(BP_DT_U8) && !bp_is_float(99));
    ck_assert_int_eq(bp_dtype_bytes(BP_DT_I64), 8);
    ck_assert_int_eq(bp_dtype_bytes(99), 0);
    ck_assert_str_eq(bp_dtype_name(BP_DT_U32), "u32");
    ck_assert_str_eq(bp_dtype_name(99), "unknown");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("sdk_tensor");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, all_halves_read_exactly);
    tcase_add_test(tc, stores_round_like_the_core);
    tcase_add_test(tc, rows_follow_strides);
    tcase_add_test(tc, loads_and_stores);
    tcase_set_timeout(tc, 120);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
