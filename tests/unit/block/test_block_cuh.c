/* test_block_cuh.c - sdk/cuda/backplane/cuda/block.cuh, compiled for the host, against core/block: every type, bit for
 * bit, on blocks of random bytes and of extreme ones. Halves that are infinite or NaN are not asked about: an infinite
 * scale times zero is NaN, whose bits are nobody's promise.
 * SPDX-License-Identifier: MIT */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backplane/cuda/block.cuh"
#include "base/rng.h"
#include "block/block.h"

enum { MOST_BYTES = 256, MOST_ELEMS = 256, N_RANDOM = 4000 };

static const struct {
    const char *name;
    uint32_t type;
    int n, bytes;
    float (*at)(const unsigned char *, int);
    void (*at8)(const unsigned char *, int, float *);
    int halves[4]; /* where the block holds halves, by offset; -1: none more */
} types[] = {
// clang-format off
#define ROW(NAME, fn, n, bytes, ...) {#NAME, BP_GGUF_##NAME, n, bytes, bp_block_at_##fn, bp_block_at8_##fn, {__VA_ARGS__}},
    ROW(F32, f32, 1, 4, -1)             ROW(F16, f16, 1, 2, 0, -1)          ROW(BF16, bf16, 1, 2, -1)
    ROW(F64, f64, 1, 8, -1)             ROW(Q4_0, q4_0, 32, 18, 0, -1)      ROW(Q4_1, q4_1, 32, 20, 0, 2, -1)
    ROW(Q5_0, q5_0, 32, 22, 0, -1)      ROW(Q5_1, q5_1, 32, 24, 0, 2, -1)   ROW(Q8_0, q8_0, 32, 34, 0, -1)
    ROW(Q2_K, q2_k, 256, 84, 80, 82, -1) ROW(Q3_K, q3_k, 256, 110, 108, -1) ROW(Q4_K, q4_k, 256, 144, 0, 2, -1)
    ROW(Q5_K, q5_k, 256, 176, 0, 2, -1) ROW(Q6_K, q6_k, 256, 210, 208, -1)  ROW(IQ4_NL, iq4_nl, 32, 18, 0, -1)
    ROW(IQ4_XS, iq4_xs, 256, 136, 0, -1) ROW(IQ2_XXS, iq2_xxs, 256, 66, 0, -1) ROW(IQ2_XS, iq2_xs, 256, 74, 0, -1)
    ROW(IQ2_S, iq2_s, 256, 82, 0, -1)   ROW(IQ3_XXS, iq3_xxs, 256, 98, 0, -1) ROW(IQ3_S, iq3_s, 256, 110, 0, -1)
    ROW(IQ1_S, iq1_s, 256, 50, 0, -1)   ROW(IQ1_M, iq1_m, 256, 56, -1)      ROW(MXFP4, mxfp4, 32, 17, -1)
    ROW(NVFP4, nvfp4, 64, 36, -1)       ROW(TQ1_0, tq1_0, 256, 54, 52, -1)  ROW(TQ2_0, tq2_0, 256, 66, 64, -1)
    ROW(Q1_0, q1_0, 128, 18, 0, -1)     ROW(Q2_0, q2_0, 64, 18, 0, -1)
#undef ROW
    // clang-format on
};
enum { N_TYPES = sizeof types / sizeof types[0] };

/* Halves as scales: ordinary, the largest, the least subnormal, the largest subnormal, zeros, with both signs. */
static const uint16_t extreme_halves[] = {0x3c00, 0xbc00, 0x7bff, 0xfbff, 0x0001, 0x8001,
                                          0x03ff, 0x83ff, 0x0400, 0x8400, 0x0000, 0x8000};
enum { N_EXTREME = sizeof extreme_halves / sizeof extreme_halves[0] };

static void put_half(unsigned char *block, size_t t, int at, uint16_t h)
{
    if (types[t].halves[at] >= 0) memcpy(block + types[t].halves[at], &h, sizeof h);
}

static void make_half_finite(unsigned char *block, size_t t)
{
    for (int k = 0; k < 4 && types[t].halves[k] >= 0; ++k) {
        uint16_t h;
        memcpy(&h, block + types[t].halves[k], sizeof h);
        if ((h & 0x7c00u) == 0x7c00u) put_half(block, t, k, (uint16_t)(h ^ 0x4000u));
    }
    if (types[t].type == BP_GGUF_IQ1_M && (block[55] & 0x70) == 0x70) block[55] ^= 0x40;
    if (types[t].type == BP_GGUF_MXFP4 && block[0] > 252) block[0] = 252;
    /* A number, so that all its bits are promised. */
    if (types[t].type == BP_GGUF_F32 || types[t].type == BP_GGUF_F64)
        block[types[t].bytes - 1] &= 0xbf;
    if (types[t].type == BP_GGUF_BF16) block[1] &= 0xbf;
}

static void compare_block(size_t t, const unsigned char *block)
{
    float want[MOST_ELEMS], eight[8];
    ck_assert_int_eq(bpi_block_decode(types[t].type, block, (uint64_t)types[t].n, want), BP_OK);
    for (int i = 0; i < types[t].n; ++i) {
        const float got = types[t].at(block, i), row = bp_block_row_at(types[t].type, block, i);
        ck_assert_msg(memcmp(&got, &want[i], sizeof got) == 0 &&
                          memcmp(&row, &want[i], sizeof row) == 0,
                      "%s, element %d: at() gives %a, row_at() %a, core/block %a", types[t].name, i,
                      (double)got, (double)row, (double)want[i]);
        if (i % 8 != 0 || types[t].n < 8) continue;
        types[t].at8(block, i, eight);
        ck_assert_msg(memcmp(eight, want + i, sizeof eight) == 0,
                      "%s, elements %d to %d: at8() differs", types[t].name, i, i + 7);
    }
}

START_TEST(random_blocks_decode_as_in_core)
{
    const size_t t = (size_t)_i;
    _Alignas(8) unsigned char block[MOST_BYTES];
    struct bpi_rng rng;
    bpi_rng_seed(&rng, 20261201);
    for (int n = 0; n < N_RANDOM; ++n) {
        for (int i = 0; i < types[t].bytes; ++i) block[i] = (unsigned char)bpi_rng_u64(&rng);
        make_half_finite(block, t);
        compare_block(t, block);
    }
}
END_TEST

START_TEST(extreme_blocks_decode_as_in_core)
{
    const size_t t = (size_t)_i;
    static const unsigned char fills[] = {0x00, 0xff, 0x80, 0x7f, 0x55, 0xaa, 0x0f, 0xf0};
    _Alignas(8) unsigned char block[MOST_BYTES];
    for (size_t f = 0; f < sizeof fills; ++f) {
        for (size_t a = 0; a < N_EXTREME; ++a) {
            for (size_t b = 0; b < N_EXTREME; ++b) {
                memset(block, fills[f], sizeof block);
                put_half(block, t, 0, extreme_halves[a]);
                if (types[t].halves[0] >= 0) put_half(block, t, 1, extreme_halves[b]);
                make_half_finite(block, t);
                compare_block(t, block);
            }
        }
    }
}
END_TEST

START_TEST(every_byte_is_a_scale)
{
    /* The eight-bit scales of MXFP4 and NVFP4, all of them; MXFP4's 255 is NaN and may read as anything. */
    _Alignas(8) unsigned char block[MOST_BYTES];
    for (size_t t = 0; t < N_TYPES; ++t) {
        if (types[t].type != BP_GGUF_MXFP4 && types[t].type != BP_GGUF_NVFP4) continue;
        for (int e = 0; e < 255; ++e) {
            for (int i = 0; i < types[t].bytes; ++i) block[i] = (unsigned char)(i * 37 + 11);
            memset(block, e, types[t].type == BP_GGUF_NVFP4 ? 4 : 1);
            compare_block(t, block);
        }
    }
}
END_TEST

START_TEST(no_type_is_missing)
{
    uint32_t n_core = 0;
    for (uint32_t type = 0; type < BP_GGUF_COUNT + 2; ++type) {
        const struct bpi_block_info *info = bpi_block_info(type);
        const int decodes = info != NULL && info->can_decode;
        n_core += decodes ? 1 : 0;
        ck_assert_int_eq(bp_block_elems(type), decodes ? (int)info->block_elems : 0);
        ck_assert_int_eq(bp_block_size(type), decodes ? (int)info->block_bytes : 0);
    }
    ck_assert_uint_eq(n_core, N_TYPES);
    for (size_t t = 0; t < N_TYPES; ++t) {
        ck_assert_int_eq(types[t].n, bp_block_elems(types[t].type));
        ck_assert_int_eq(types[t].bytes, bp_block_size(types[t].type));
    }
    ck_assert(isnan(bp_block_row_at(BP_GGUF_Q8_K, NULL, 0)));
}
END_TEST

START_TEST(rows_are_rows_of_blocks)
{
    enum { N_BLOCKS = 3 };
    _Alignas(8) unsigned char row[N_BLOCKS * MOST_BYTES];
    float want[N_BLOCKS * MOST_ELEMS];
    struct bpi_rng rng;
    bpi_rng_seed(&rng, 7);
    for (size_t t = 0; t < N_TYPES; ++t) {
        const int n = types[t].n * N_BLOCKS;
        for (int i = 0; i < types[t].bytes * N_BLOCKS; ++i)
            row[i] = (unsigned char)bpi_rng_u64(&rng);
        for (int b = 0; b < N_BLOCKS; ++b) make_half_finite(row + b * types[t].bytes, t);
        ck_assert_int_eq(bpi_block_decode(types[t].type, row, (uint64_t)n, want), BP_OK);
        for (int i = 0; i < n; ++i) {
            const float got = bp_block_row_at(types[t].type, row, i);
            ck_assert_msg(memcmp(&got, &want[i], sizeof got) == 0, "%s, element %d of a row",
                          types[t].name, i);
        }
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("block_cuh");
    TCase *c = tcase_create("block_cuh");
    tcase_add_loop_test(c, random_blocks_decode_as_in_core, 0, N_TYPES);
    tcase_add_loop_test(c, extreme_blocks_decode_as_in_core, 0, N_TYPES);
    tcase_add_test(c, every_byte_is_a_scale);
    tcase_add_test(c, no_type_is_missing);
    tcase_add_test(c, rows_are_rows_of_blocks);
    suite_add_tcase(s, c);
    SRunner *runner = srunner_create(s);
    srunner_run_all(runner, CK_ENV);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
