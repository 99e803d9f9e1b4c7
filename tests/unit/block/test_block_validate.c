/* test_block_validate.c - bpi_block_validate: every field that can be wrong, in every type, at every place.
 * SPDX-License-Identifier: MIT */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "base/rng.h"
#include "block/block.h"
#include "unit/block/block_formula.h"

#define SEED UINT64_C(99)
enum { BLOCKS = 150 }; /* floats: two runs of vector code and a rest */

/* Where blocks have halves, what they are called. */
static const struct halves {
    uint32_t type;
    int at[2];
    const char *second;
} halves[] = {
    {BP_GGUF_Q4_0, {0, -1}, NULL},       {BP_GGUF_Q4_1, {0, 2}, "minimum"},
    {BP_GGUF_Q5_0, {0, -1}, NULL},       {BP_GGUF_Q5_1, {0, 2}, "minimum"},
    {BP_GGUF_Q8_0, {0, -1}, NULL},       {BP_GGUF_Q8_1, {0, 2}, "sum"},
    {BP_GGUF_Q2_K, {80, 82}, "minimum"}, {BP_GGUF_Q3_K, {108, -1}, NULL},
    {BP_GGUF_Q4_K, {0, 2}, "minimum"},   {BP_GGUF_Q5_K, {0, 2}, "minimum"},
    {BP_GGUF_Q6_K, {208, -1}, NULL},     {BP_GGUF_IQ1_S, {0, -1}, NULL},
    {BP_GGUF_IQ2_XXS, {0, -1}, NULL},    {BP_GGUF_IQ2_XS, {0, -1}, NULL},
    {BP_GGUF_IQ2_S, {0, -1}, NULL},      {BP_GGUF_IQ3_XXS, {0, -1}, NULL},
    {BP_GGUF_IQ3_S, {0, -1}, NULL},      {BP_GGUF_IQ4_NL, {0, -1}, NULL},
    {BP_GGUF_IQ4_XS, {0, -1}, NULL},     {BP_GGUF_TQ1_0, {52, -1}, NULL},
    {BP_GGUF_TQ2_0, {64, -1}, NULL},     {BP_GGUF_Q1_0, {0, -1}, NULL},
    {BP_GGUF_Q2_0, {0, -1}, NULL},
};

/* Random bytes from which all that is bad was taken: no number with an exponent of all ones anywhere. */
static unsigned char *good_blocks(const struct bpi_block_info *info, uint64_t n)
{
    struct bpi_rng rng;
    bpi_rng_seed(&rng, SEED + info->type);
    unsigned char *p = malloc(n * info->block_bytes);
    ck_assert_ptr_nonnull(p);
    for (uint64_t i = 0; i < n * info->block_bytes; ++i)
        p[i] = (unsigned char)(bpi_rng_u64(&rng) & 0xbf);
    return p;
}

/* The one bad block is named, wherever it is; a second one behind it does not matter; blocks before it are good. */
static void expect_bad(const struct bpi_block_info *info, const unsigned char *bad_block,
                       const char *want)
{
    static const uint64_t places[] = {0, 1, 63, 64, 127, 128, BLOCKS - 1};
    unsigned char *p = good_blocks(info, BLOCKS);
    uint64_t at = 12345;
    const char *reason =
        bpi_block_validate(info->type, p, (uint64_t)BLOCKS * info->block_bytes, &at);
    ck_assert_msg(reason == NULL && at == BLOCKS, "%s: %s", info->name, reason);
    for (size_t i = 0; i < BPI_ARRAY_LEN(places); ++i) {
        unsigned char *block = p + places[i] * info->block_bytes;
        unsigned char keep[512];
        memcpy(keep, block, info->block_bytes);
        memcpy(block, bad_block, info->block_bytes);
        if (places[i] + 1 < BLOCKS) memcpy(block + info->block_bytes, bad_block, info->block_bytes);
        reason = bpi_block_validate(info->type, p, (uint64_t)BLOCKS * info->block_bytes, &at);
        ck_assert_msg(reason != NULL && strcmp(reason, want) == 0, "%s: '%s', want '%s'",
                      info->name, reason != NULL ? reason : "good", want);
        ck_assert_uint_eq(at, places[i]);
        ck_assert_ptr_null(bpi_block_validate(info->type, p, places[i] * info->block_bytes, &at));
        ck_assert_uint_eq(at, places[i]);
        memcpy(block, keep, info->block_bytes);
        if (places[i] + 1 < BLOCKS) memcpy(block + info->block_bytes, keep, info->block_bytes);
    }
    free(p);
}

/* n bytes at `at` of an otherwise good block. */
static void expect_bytes(uint32_t type, int at, const char *bytes, size_t n, const char *want)
{
    const struct bpi_block_info *info = bpi_block_info(type);
    unsigned char *block = good_blocks(info, 1);
    memcpy(block + at, bytes, n);
    expect_bad(info, block, want);
    free(block);
}

START_TEST(halves_of_blocks)
{
    const struct halves *h = &halves[_i];
    for (int k = 0; k < 2 && h->at[k] >= 0; ++k) {
        char nan[64], inf[64];
        snprintf(nan, sizeof nan, "its %s is NaN", k == 0 ? "scale" : h->second);
        snprintf(inf, sizeof inf, "its %s is infinite", k == 0 ? "scale" : h->second);
        expect_bytes(h->type, h->at[k], "\x00\x7c", 2, inf);
        expect_bytes(h->type, h->at[k], "\x00\xfc", 2, inf);
        expect_bytes(h->type, h->at[k], "\x01\x7c", 2, nan);
        expect_bytes(h->type, h->at[k], "\x00\xfe", 2, nan);
        expect_bytes(h->type, h->at[k], "\xff\xff", 2, nan);
    }
}
END_TEST

START_TEST(values)
{
    expect_bytes(BP_GGUF_F16, 0, "\x00\x7c", 2, "the value is infinite");
    expect_bytes(BP_GGUF_F16, 0, "\x00\xfc", 2, "the value is infinite");
    expect_bytes(BP_GGUF_F16, 0, "\x01\xfc", 2, "the value is NaN");
    expect_bytes(BP_GGUF_BF16, 0, "\x80\x7f", 2, "the value is infinite");
    expect_bytes(BP_GGUF_BF16, 0, "\x80\xff", 2, "the value is infinite");
    expect_bytes(BP_GGUF_BF16, 0, "\x81\x7f", 2, "the value is NaN");
    expect_bytes(BP_GGUF_F32, 0, "\x00\x00\x80\x7f", 4, "the value is infinite");
    expect_bytes(BP_GGUF_F32, 0, "\x00\x00\x80\xff", 4, "the value is infinite");
    expect_bytes(BP_GGUF_F32, 0, "\x01\x00\x80\xff", 4, "the value is NaN");
    expect_bytes(BP_GGUF_F64, 0, "\x00\x00\x00\x00\x00\x00\xf0\x7f", 8, "the value is infinite");
    expect_bytes(BP_GGUF_F64, 0, "\x01\x00\x00\x00\x00\x00\xf0\xff", 8, "the value is NaN");
}
END_TEST

START_TEST(other_scales)
{
    expect_bytes(BP_GGUF_Q8_K, 0, "\x00\x00\x80\x7f", 4, "its scale is infinite");
    expect_bytes(BP_GGUF_Q8_K, 0, "\x00\x00\xc0\xff", 4, "its scale is NaN");
    expect_bytes(BP_GGUF_MXFP4, 0, "\xff", 1, "its scale is NaN");
    expect_bytes(BP_GGUF_MXFP4, 0, "\xfe", 1, "its scale is too large for a float");
    expect_bytes(BP_GGUF_MXFP4, 0, "\xfd", 1, "its scale is too large for a float");
    uint64_t at;
    unsigned char largest[17];
    memset(largest, 0xf7, sizeof largest);
    largest[0] = 252;
    ck_assert_ptr_null(bpi_block_validate(BP_GGUF_MXFP4, largest, sizeof largest, &at));
    for (int i = 0; i < 4; ++i) {
        expect_bytes(BP_GGUF_NVFP4, i, "\x7f", 1, "its scale is NaN");
        expect_bytes(BP_GGUF_NVFP4, i, "\xff", 1, "its scale is NaN");
    }
    /* IQ1_M: the half's nibbles are the tops of four words, the lowest first. */
    expect_bytes(BP_GGUF_IQ1_M, 48, "\xff\x0f\xff\x0f\xff\xcf\xff\x7f", 8, "its scale is infinite");
    expect_bytes(BP_GGUF_IQ1_M, 48, "\x00\x10\x00\x00\x00\xc0\x00\xf0", 8, "its scale is NaN");
}
END_TEST

/* Random bytes of every type: a block is called bad if and only if it decodes to something that is not finite. */
START_TEST(agrees_with_decoder)
{
    const struct bpi_block_info *info = bpi_block_info((uint32_t)_i);
    if (info == NULL || !info->can_decode) return;
    enum { ROUNDS = 20000 };
    struct bpi_rng rng;
    uint32_t n_bad = 0;
    bpi_rng_seed(&rng, SEED + 100 + (uint64_t)_i);
    for (int round = 0; round < ROUNDS; ++round) {
        unsigned char block[512];
        float x[256];
        uint64_t at;
        for (uint32_t i = 0; i < info->block_bytes; ++i)
            block[i] = (unsigned char)bpi_rng_u64(&rng);
        if (info->type == BP_GGUF_F64) { /* decoding to float has infinities of its own */
            block[7] = (unsigned char)((block[7] & 0x80) | (round % 8 == 0 ? 0x7f : 0x3f));
            block[6] = (unsigned char)(round % 8 == 0 ? 0xff : block[6]);
        }
        const char *reason = bpi_block_validate(info->type, block, info->block_bytes, &at);
        ck_assert_int_eq(bpi_block_decode(info->type, block, info->block_elems, x), BP_OK);
        bool finite = true;
        for (uint32_t i = 0; i < info->block_elems; ++i) finite = finite && isfinite(x[i]);
        n_bad += reason != NULL;
        /* Decoders have no NaN to give for a bad exponent of these two. */
        const bool quiet = info->type == BP_GGUF_MXFP4 || info->type == BP_GGUF_NVFP4;
        if (finite != (reason == NULL) && !(quiet && finite))
            ck_abort_msg("%s: finite %d, but %s", info->name, finite,
                         reason != NULL ? reason : "good");
    }
    printf("%s: %u of %d bad\n", info->name, n_bad, (int)ROUNDS);
    ck_assert_uint_gt(n_bad, 10);
    ck_assert_uint_lt(n_bad, ROUNDS / 4);
}
END_TEST

START_TEST(sizes_and_types)
{
    uint64_t at = 7;
    unsigned char *p;
    ck_assert_str_eq(bpi_block_validate(4, "", 0, &at), "its type is unknown");
    ck_assert_str_eq(bpi_block_validate(UINT32_MAX, "", 1, &at), "its type is unknown");
    ck_assert_uint_eq(at, 0);
    for (uint32_t type = 0; type < BP_GGUF_COUNT; ++type) {
        const struct bpi_block_info *info = bpi_block_info(type);
        if (info == NULL) continue;
        at = 7;
        ck_assert_ptr_null(bpi_block_validate(type, NULL, 0, &at));
        ck_assert_uint_eq(at, 0);
        p = good_blocks(info, 3);
        for (uint64_t n = 1; n < 3 * info->block_bytes; ++n) {
            unsigned char *exact = malloc(n); /* a sanitizer sees any read beyond */
            ck_assert_ptr_nonnull(exact);
            memcpy(exact, p, n);
            const char *reason = bpi_block_validate(type, exact, n, &at);
            ck_assert((reason == NULL) == (n % info->block_bytes == 0));
            if (reason != NULL) ck_assert_str_eq(reason, "it is cut off");
            ck_assert_uint_eq(at, n / info->block_bytes);
            free(exact);
        }
        free(p);
    }
    /* Integers may be anything. */
    unsigned char ones[64];
    memset(ones, 0xff, sizeof ones);
    static const uint32_t integers[] = {BP_GGUF_I8, BP_GGUF_I16, BP_GGUF_I32, BP_GGUF_I64};
    for (size_t i = 0; i < BPI_ARRAY_LEN(integers); ++i)
        ck_assert_ptr_null(bpi_block_validate(integers[i], ones, sizeof ones, &at));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("block_validate");
    TCase *c = tcase_create("all");
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, halves_of_blocks, 0, (int)BPI_ARRAY_LEN(halves));
    tcase_add_test(c, values);
    tcase_add_test(c, other_scales);
    tcase_add_loop_test(c, agrees_with_decoder, 0, BP_GGUF_COUNT);
    tcase_add_test(c, sizes_and_types);
    suite_add_tcase(s, c);
    printf("seed %llu\n", (unsigned long long)SEED);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
