/* test_base_half.c - half.h against arithmetic in double, every 16-bit value and every rounding boundary; rng.h.
 * SPDX-License-Identifier: MIT */
#include "base/half.h"
#include "base/rng.h"

#include <check.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

/* check's own macros write to a pipe each time they run: too slow for millions of cases. */
#define REQUIRE(cond, ...)                                                                         \
    do {                                                                                           \
        if (!(cond)) ck_abort_msg(__VA_ARGS__);                                                    \
    } while (0)

/* A 16-bit format by its two widths: what IEEE 754 says, computed with ldexp. */
struct format {
    int man_bits, exp_bits;
    float (*decode)(uint16_t);
    uint16_t (*encode)(float);
};
static const struct format F16 = {10, 5, bpi_f16_to_f32, bpi_f32_to_f16};
static const struct format BF16 = {7, 8, bpi_bf16_to_f32, bpi_f32_to_bf16};

static int bias(const struct format *f)
{
    return (1 << (f->exp_bits - 1)) - 1;
}

static double slow_decode(const struct format *f, uint16_t h)
{
    int exp_max = (1 << f->exp_bits) - 1;
    int man = h & ((1 << f->man_bits) - 1), exp = (h >> f->man_bits) & exp_max;
    double sign = h & 0x8000 ? -1.0 : 1.0;
    if (exp == exp_max) return man != 0 ? (double)NAN : sign * (double)INFINITY;
    if (exp == 0) return sign * ldexp(man, 1 - bias(f) - f->man_bits);
    return sign * ldexp((1 << f->man_bits) + man, exp - bias(f) - f->man_bits);
}

/* Nearest value, ties to even, by dividing by the spacing at x and rint(); all steps are exact in double. */
static uint16_t slow_encode(const struct format *f, float x)
{
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    uint16_t inf = (uint16_t)(((1 << f->exp_bits) - 1) << f->man_bits);
    double a = fabs((double)x);
    if (isinf(x)) return (uint16_t)(sign | inf);
    if (a == 0.0) return sign;
    int e = ilogb(a), e_min = 1 - bias(f);
    int step = (e < e_min ? e_min : e) - f->man_bits;
    double units =
        rint(ldexp(a, -step)); /* below 2^(man_bits + 1), or equal to it when rounding carried */
    double bits = e < e_min ? units : units + ldexp(e - e_min, f->man_bits);
    return bits >= inf ? (uint16_t)(sign | inf) : (uint16_t)(sign | (uint16_t)bits);
}

static void check_encode(const struct format *f, float x)
{
    uint16_t want = slow_encode(f, x), got = f->encode(x);
    REQUIRE(got == want, "encode(%a): got 0x%04x, want 0x%04x", (double)x, got, want);
}

static void check_decode_all(const struct format *f)
{
    int n_finite = 0;
    for (uint32_t h = 0; h < 65536; ++h) {
        double want = slow_decode(f, (uint16_t)h);
        float got = f->decode((uint16_t)h);
        if (isnan(want)) {
            REQUIRE(isnan(got), "0x%04x must be NaN", h);
            REQUIRE(isnan(f->decode(f->encode(got))), "0x%04x: NaN must survive a round trip", h);
            continue;
        }
        REQUIRE((double)got == want, "0x%04x: got %a, want %a", h, (double)got, want);
        REQUIRE(!!signbit(got) == !!signbit(want), "0x%04x: sign", h);
        REQUIRE(f->encode(got) == h, "0x%04x: round trip gives 0x%04x", h, f->encode(got));
        n_finite += isfinite(got);
    }
    ck_assert_int_eq(n_finite, 65536 - (2 << f->man_bits));
}

/* Midpoints between neighbours and the floats on both sides of them, for both signs; the last "neighbour" is
 * infinity's place, where overflow begins. */
static void check_boundaries(const struct format *f)
{
    uint16_t inf = (uint16_t)(((1 << f->exp_bits) - 1) << f->man_bits);
    for (uint16_t h = 0; h < inf; ++h) {
        double low = slow_decode(f, h);
        double high = h + 1 < inf ? slow_decode(f, (uint16_t)(h + 1)) : ldexp(1.0, bias(f) + 1);
        float mid = (float)(low + (high - low) / 2);
        REQUIRE((double)mid == low + (high - low) / 2, "midpoint above 0x%04x is no float",
                h); /* the midpoint itself must be a float */
        uint16_t even = (uint16_t)(h & 1 ? h + 1 : h);
        REQUIRE(f->encode(mid) == even, "tie above 0x%04x: 0x%04x", h, f->encode(mid));
        REQUIRE(f->encode(nextafterf(mid, 0.0f)) == h, "below the tie above 0x%04x", h);
        REQUIRE(f->encode(nextafterf(mid, INFINITY)) == h + 1, "above the tie above 0x%04x", h);
        REQUIRE(f->encode(-mid) == (even | 0x8000), "negative tie above 0x%04x", h);
        check_encode(f, nextafterf(-mid, 0.0f));
        check_encode(f, nextafterf(-mid, -INFINITY));
    }
}

static void check_random(const struct format *f, uint64_t seed)
{
    struct bpi_rng rng;
    bpi_rng_seed(&rng, seed);
    for (int i = 0; i < 1000000; ++i) {
        uint64_t r = bpi_rng_u64(&rng);
        float any = bpi_f32_from_bits((uint32_t)r);
        if (isnan(any)) {
            REQUIRE(isnan(f->decode(f->encode(any))), "NaN 0x%08x was lost", (uint32_t)r);
        } else {
            check_encode(f, any);
        }
        /* Few of the random bit patterns lie in the range of f16: these all do. */
        check_encode(f, ldexpf((float)(int32_t)(r >> 32), (int)(r % 48) - 64));
    }
}

START_TEST(f16_decodes_exactly)
{
    check_decode_all(&F16);
}
END_TEST

START_TEST(bf16_decodes_exactly)
{
    check_decode_all(&BF16);
}
END_TEST

START_TEST(f16_rounds_to_even_at_every_boundary)
{
    check_boundaries(&F16);
    ck_assert_uint_eq(bpi_f32_to_f16(65504.0f), 0x7bff);
    ck_assert_uint_eq(bpi_f32_to_f16(65519.996f), 0x7bff);
    ck_assert_uint_eq(bpi_f32_to_f16(65520.0f), 0x7c00);
    ck_assert_uint_eq(bpi_f32_to_f16(-3.0e38f), 0xfc00);
    ck_assert_uint_eq(bpi_f32_to_f16(0x1p-25f), 0x0000);
    ck_assert_uint_eq(bpi_f32_to_f16(-0x1.000002p-25f), 0x8001);
    ck_assert_uint_eq(bpi_f32_to_f16(-0.0f), 0x8000);
    ck_assert_uint_eq(bpi_f32_to_f16(bpi_f32_from_bits(1)), 0x0000); /* least subnormal float */
}
END_TEST

START_TEST(bf16_rounds_to_even_at_every_boundary)
{
    check_boundaries(&BF16);
    ck_assert_uint_eq(bpi_f32_to_bf16(bpi_f32_from_bits(0x7f7fffff)), 0x7f80);
    ck_assert_uint_eq(bpi_f32_to_bf16(bpi_f32_from_bits(0x7f7f7fff)), 0x7f7f);
    ck_assert_uint_eq(bpi_f32_to_bf16(-0.0f), 0x8000);
}
END_TEST

/* A NaN whose mark sits only in bits that are cut off must not become infinity. */
START_TEST(nan_with_low_payload_stays_nan)
{
    const uint32_t nan_bits[] = {0x7f800001, 0xff800001, 0x7fbfffff,
                                 0x7fc00000, 0x7fffffff, 0xffffffff};
    for (size_t i = 0; i < sizeof nan_bits / sizeof *nan_bits; ++i) {
        float x = bpi_f32_from_bits(nan_bits[i]);
        ck_assert(isnan(bpi_f16_to_f32(bpi_f32_to_f16(x))));
        ck_assert(isnan(bpi_bf16_to_f32(bpi_f32_to_bf16(x))));
        ck_assert_uint_eq(bpi_f32_to_f16(x) >> 15, nan_bits[i] >> 31);
        ck_assert_uint_eq(bpi_f32_to_bf16(x) >> 15, nan_bits[i] >> 31);
    }
}
END_TEST

START_TEST(random_floats_round_as_in_double)
{
    const uint64_t seed = 20260117;
    printf("seed %llu\n", (unsigned long long)seed);
    check_random(&F16, seed);
    check_random(&BF16, seed + 1);
}
END_TEST

/* Values computed by a separate program from the published definitions. */
START_TEST(rng_gives_the_published_sequence)
{
    const uint64_t state0[4] = {UINT64_C(0xe220a8397b1dcdaf), UINT64_C(0x6e789e6aa1b965f4),
                                UINT64_C(0x06c45d188009454f), UINT64_C(0xf88bb8a8724c81ec)};
    const uint64_t out0[4] = {UINT64_C(0x99ec5f36cb75f2b4), UINT64_C(0xbf6e1f784956452a),
                              UINT64_C(0x1a5f849d4933e6e0), UINT64_C(0x6aa594f1262d2d2c)};
    const uint64_t out42[4] = {UINT64_C(0x15780b2e0c2ec716), UINT64_C(0x6104d9866d113a7e),
                               UINT64_C(0xae17533239e499a1), UINT64_C(0xecb8ad4703b360a1)};
    struct bpi_rng r;
    bpi_rng_seed(&r, 0);
    for (int i = 0; i < 4; ++i) ck_assert_uint_eq(r.s[i], state0[i]);
    for (int i = 0; i < 4; ++i) ck_assert_uint_eq(bpi_rng_u64(&r), out0[i]);
    bpi_rng_seed(&r, 42);
    for (int i = 0; i < 4; ++i) ck_assert_uint_eq(bpi_rng_u64(&r), out42[i]);
}
END_TEST

START_TEST(rng_ranges)
{
    struct bpi_rng r;
    int count[10] = {0};
    double sum = 0;
    bpi_rng_seed(&r, 7);
    for (int i = 0; i < 100000; ++i) {
        double v = bpi_rng_f64(&r);
        REQUIRE(v >= 0.0 && v < 1.0, "%a", v);
        sum += v;
        count[bpi_rng_below(&r, 10)]++;
        REQUIRE(bpi_rng_below(&r, 1) == 0, "below 1");
    }
    ck_assert(fabs(sum / 100000 - 0.5) < 0.005);
    for (int i = 0; i < 10; ++i) ck_assert(count[i] > 9500 && count[i] < 10500);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("half");
    TCase *t = tcase_create("half");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, f16_decodes_exactly);
    tcase_add_test(t, bf16_decodes_exactly);
    tcase_add_test(t, f16_rounds_to_even_at_every_boundary);
    tcase_add_test(t, bf16_rounds_to_even_at_every_boundary);
    tcase_add_test(t, nan_with_low_payload_stays_nan);
    tcase_add_test(t, random_floats_round_as_in_double);
    tcase_add_test(t, rng_gives_the_published_sequence);
    tcase_add_test(t, rng_ranges);
    suite_add_tcase(s, t);
    SRunner *sr = srunner_create(s);
    srunner_run_all(sr, CK_NORMAL);
    int failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
