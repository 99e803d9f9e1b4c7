/* test_block.c - the decoders of core/block against known vectors and against a second formulation.
 * The second formulation is block_formula.h: the decoder must give its value rounded to float, bit for bit.
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

#define SEED UINT64_C(20240917)

enum { MAX_BLOCK = 256, MAX_BYTES = 292 };

/* ---- known vectors ---- */

/* Block byte i = (i*37+11) & 255, then these bytes are put in: mostly d = 1.0 and m or dmin = 0.5. */
// clang-format off
static const struct vector {
    uint32_t type;
    struct { int at, n; const char *bytes; } put[2];
    float first, second, middle, last;
    double sum, weighted;
} vectors[] = {
#define HALF_1 2, "\x00\x3c"
#define HALF_5 2, "\x00\x38"
    {BP_GGUF_Q4_0,    {{0, HALF_1}},              -3,       2,      -3,      0,     -21,       -518},
    {BP_GGUF_Q4_1,    {{0, HALF_1}, {2, HALF_5}},  15.5f,   4.5f,    9.5f,  12.5f,   261,       4247},
    {BP_GGUF_Q5_0,    {{0, HALF_1}},               9,      -2,      14,      1,      15,        112},
    {BP_GGUF_Q5_1,    {{0, HALF_1}, {2, HALF_5}},  19.5f,  24.5f,   19.5f,   5.5f,   521,       8165},
    {BP_GGUF_Q8_0,    {{0, HALF_1}},               85,     122,    -91,    -48,    -176,      -8080},
    {BP_GGUF_IQ4_NL,  {{0, HALF_1}},              -35,      25,    -35,      1,    -257,      -6919},
    {BP_GGUF_MXFP4,   {{0, 1, "\177"}},            0,       3,      1.5f,   3,      12.5,      319},
    {BP_GGUF_NVFP4,   {{0, 4, "\x38\x39\x3a\x3b"}}, -6, 2,     -7.5f,  0.6875f, -14.0625, -450.75},
    {BP_GGUF_Q2_K,    {{80, HALF_1}, {82, HALF_5}}, 33,      0,      7.5f,   4.5f,  2059,     243130},
    {BP_GGUF_Q3_K,    {{108, HALF_1}},             81,    -108,      2,     42,     958,     177145},
    {BP_GGUF_Q4_K,    {{0, HALF_1}, {2, HALF_5}}, 315.5f,  -25.5f, 423,     48.5f, 54440,    7572840},
    {BP_GGUF_Q5_K,    {{0, HALF_1}, {2, HALF_5}}, 811.5f,  -25.5f, 1047,   108.5f, 116216,  16027448},
    {BP_GGUF_Q6_K,    {{208, HALF_1}},          -1431,    1696,   -351,    -60,     4612,     784420},
    {BP_GGUF_IQ2_XXS, {{0, HALF_1}},             -59.125f, 59.125f, -96.875f, -80.625f, 763.75, 36793},
    {BP_GGUF_IQ2_XS,  {{0, HALF_1}},             -11,      34.375f, -19,    -19,    1490.5,   123198.125},
    {BP_GGUF_IQ2_S,   {{0, HALF_1}},            -145.125f, 84.375f, -9.375f, 78.125f, -800.625, -62080.625},
    {BP_GGUF_IQ3_XXS, {{0, HALF_1}},             -13,       9,     -55,    -15,    -684,       3023},
    {BP_GGUF_IQ3_S,   {{0, HALF_1}},             -81,     243,    -105,    225,    1456,     202790},
    {BP_GGUF_IQ1_S,   {{0, HALF_1}},            -2.625f, 0.375f, -7.875f, -4.375f,   20,     -11829},
    {BP_GGUF_IQ1_M,   {{0, 0, ""}},             -0.875f, 6.125f,  1.875f, -1.875f,   41,      -2236},
    {BP_GGUF_IQ4_XS,  {{0, HALF_1}},              65,      -1,    -585,    -16,  -11005,   -2091134},
    {BP_GGUF_TQ1_0,   {{52, HALF_1}},             -1,      -1,       0,     -1,      -2,       -131},
    {BP_GGUF_TQ2_0,   {{64, HALF_1}},              2,      -1,       2,     -1,     129,      17245},
#undef HALF_1
#undef HALF_5
};
// clang-format on

START_TEST(known_vector)
{
    const struct vector *v = &vectors[_i];
    const struct bpi_block_info *info = bpi_block_info(v->type);
    ck_assert_ptr_nonnull(info);
    ck_assert(info->can_decode);
    unsigned char block[MAX_BYTES];
    for (uint32_t i = 0; i < info->block_bytes; ++i)
        block[i] = (unsigned char)((i * 37 + 11) & 255);
    for (int k = 0; k < 2 && v->put[k].n > 0; ++k)
        memcpy(block + v->put[k].at, v->put[k].bytes, (size_t)v->put[k].n);
    if (v->type == BP_GGUF_IQ1_M) { /* d = 1.0, a nibble a word */
        static const unsigned char top[4] = {0, 0, 0xc0, 0x30};
        for (int k = 0; k < 4; ++k)
            block[49 + 2 * k] = (unsigned char)((block[49 + 2 * k] & 15) | top[k]);
    }
    float x[MAX_BLOCK];
    ck_assert_int_eq(bpi_block_decode(v->type, block, info->block_elems, x), BP_OK);
    double sum = 0, weighted = 0;
    for (uint32_t i = 0; i < info->block_elems; ++i) {
        sum += (double)x[i];
        weighted += (double)x[i] * (i + 1);
    }
    ck_assert_msg(x[0] == v->first, "%s x[0] %g, want %g", info->name, x[0], v->first);
    ck_assert_msg(x[1] == v->second, "%s x[1] %g, want %g", info->name, x[1], v->second);
    float middle = x[info->block_elems / 2], last = x[info->block_elems - 1];
    ck_assert_msg(middle == v->middle, "%s middle %g, want %g", info->name, middle, v->middle);
    ck_assert_msg(last == v->last, "%s last %g, want %g", info->name, last, v->last);
    ck_assert_msg(sum == v->sum, "%s sum %.9g, want %.9g", info->name, sum, v->sum);
    ck_assert_msg(weighted == v->weighted, "%s W %.9g, want %.9g", info->name, weighted,
                  v->weighted);
}
END_TEST

/* ---- random blocks against the second formulation ---- */

/* Random bytes bring subnormal, infinite and NaN scales by themselves; all types, all 4 alignments, runs of blocks. */
START_TEST(random_blocks)
{
    const struct bpi_block_info *info = bpi_block_info((uint32_t)_i);
    if (info == NULL || !info->can_decode) return;
    const uint32_t max_blocks = info->block_elems == 1 ? 101 : 5;
    const int rounds = info->block_elems == 1 ? 2000 : 800;
    const size_t most = (size_t)max_blocks * info->block_bytes;
    struct bpi_rng rng;
    bpi_rng_seed(&rng, SEED + (uint64_t)_i);
    printf("random_blocks %s: seed %llu\n", info->name, (unsigned long long)(SEED + (uint64_t)_i));
    for (int round = 0; round < rounds; ++round) {
        const uint32_t n_blocks = 1 + (uint32_t)bpi_rng_below(&rng, max_blocks);
        const size_t shift = (size_t)round % 4, n_bytes = (size_t)n_blocks * info->block_bytes;
        const uint32_t n = n_blocks * info->block_elems;
        /* Blocks of exactly the needed size: a sanitizer sees any read or write beyond. */
        unsigned char *memory = malloc(shift + n_bytes), *src = memory + shift;
        float *x = malloc(n * sizeof(float));
        ck_assert(memory != NULL && x != NULL && n_bytes <= most);
        for (size_t i = 0; i < n_bytes; ++i) src[i] = (unsigned char)bpi_rng_u64(&rng);
        ck_assert_int_eq(bpi_block_decode(info->type, src, n, x), BP_OK);
        for (uint32_t i = 0; i < n; ++i) {
            uint32_t b = i / info->block_elems, e = i % info->block_elems;
            expect_same(info->name, x[i],
                        formula_element(info->type, src + b * info->block_bytes, e), b, e);
        }
        free(x);
        free(memory);
    }
}
END_TEST

/* Every half and every bfloat16, through the vector loop. */
START_TEST(all_halves)
{
    static unsigned char src[2 * 65536];
    static float x[65536];
    for (unsigned i = 0; i < 65536; ++i) {
        src[2 * i] = (unsigned char)i;
        src[2 * i + 1] = (unsigned char)(i >> 8);
    }
    ck_assert_int_eq(bpi_block_decode(BP_GGUF_F16, src, 65536, x), BP_OK);
    for (unsigned i = 0; i < 65536; ++i) expect_same("F16", x[i], half_at(src + 2 * i), i, 0);
    ck_assert_int_eq(bpi_block_decode(BP_GGUF_BF16, src, 65536, x), BP_OK);
    for (unsigned i = 0; i < 65536; ++i) expect_same("BF16", x[i], binary(src + 2 * i, 8, 7), i, 0);
}
END_TEST

/* ---- refusals ---- */

static bool untouched(const float *x, size_t n)
{
    for (size_t i = 0; i < n; ++i) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        if (bits != 0xa5a5a5a5u) return false;
    }
    return true;
}

START_TEST(refusals_write_nothing)
{
    static const unsigned char src[2 * MAX_BYTES];
    float x[2 * MAX_BLOCK];
    uint32_t n_refused = 0;
    for (uint32_t type = 0; type < 400; ++type) {
        const struct bpi_block_info *info = bpi_block_info(type);
        memset(x, 0xa5, sizeof x);
        if (info == NULL || !info->can_decode) {
            uint32_t n = info == NULL ? 256 : info->block_elems;
            ck_assert_int_eq(bpi_block_decode(type, src, n, x), BP_E_UNSUPPORTED);
            ck_assert_int_eq(bpi_block_decode(type, src, 0, x), BP_E_UNSUPPORTED);
            ++n_refused;
        } else {
            ck_assert_int_eq(bpi_block_decode(type, src, 0, x), BP_OK);
            ck_assert_int_eq(bpi_block_decode(type, NULL, 0, NULL), BP_OK);
            ck_assert_int_eq(bpi_block_decode(type, NULL, info->block_elems, x), BP_E_ARG);
            for (uint32_t n = 1; n < info->block_elems; ++n) {
                ck_assert_int_eq(bpi_block_decode(type, src, n, x), BP_E_ARG);
                ck_assert_int_eq(bpi_block_decode(type, src, n + info->block_elems, x), BP_E_ARG);
            }
        }
        ck_assert(untouched(x, 2 * MAX_BLOCK));
    }
    ck_assert_uint_gt(n_refused, 0);
    ck_assert_int_eq(bpi_block_decode(UINT32_MAX, src, 32, x), BP_E_UNSUPPORTED);
}
END_TEST

/* ---- table ---- */

START_TEST(table_of_types)
{
    // clang-format off
    static const struct { uint32_t type; const char *name; uint32_t elems, bytes; } rows[] = {
        {0, "F32", 1, 4}, {1, "F16", 1, 2}, {2, "Q4_0", 32, 18}, {3, "Q4_1", 32, 20}, {6, "Q5_0", 32, 22},
        {7, "Q5_1", 32, 24}, {8, "Q8_0", 32, 34}, {9, "Q8_1", 32, 36}, {10, "Q2_K", 256, 84},
        {11, "Q3_K", 256, 110}, {12, "Q4_K", 256, 144}, {13, "Q5_K", 256, 176}, {14, "Q6_K", 256, 210},
        {15, "Q8_K", 256, 292}, {16, "IQ2_XXS", 256, 66}, {17, "IQ2_XS", 256, 74}, {18, "IQ3_XXS", 256, 98},
        {19, "IQ1_S", 256, 50}, {20, "IQ4_NL", 32, 18}, {21, "IQ3_S", 256, 110}, {22, "IQ2_S", 256, 82},
        {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1}, {25, "I16", 1, 2}, {26, "I32", 1, 4}, {27, "I64", 1, 8},
        {28, "F64", 1, 8}, {29, "IQ1_M", 256, 56}, {30, "BF16", 1, 2}, {34, "TQ1_0", 256, 54},
        {35, "TQ2_0", 256, 66}, {39, "MXFP4", 32, 17}, {40, "NVFP4", 64, 36}, {41, "Q1_0", 128, 18},
        {42, "Q2_0", 64, 18},
    };
    // clang-format on
    uint32_t n_known = 0;
    for (uint32_t type = 0; type < 1000; ++type) n_known += bpi_block_info(type) != NULL;
    ck_assert_uint_eq(n_known, BPI_ARRAY_LEN(rows));
    ck_assert_ptr_null(bpi_block_info(UINT32_MAX));
    for (size_t i = 0; i < BPI_ARRAY_LEN(rows); ++i) {
        const struct bpi_block_info *info = bpi_block_info(rows[i].type);
        ck_assert_ptr_nonnull(info);
        ck_assert_str_eq(info->name, rows[i].name);
        ck_assert_uint_eq(info->type, rows[i].type);
        ck_assert_uint_eq(info->block_elems, rows[i].elems);
        ck_assert_uint_eq(info->block_bytes, rows[i].bytes);
        ck_assert_ptr_eq(bpi_block_by_name(rows[i].name), info);
    }
    ck_assert_ptr_eq(bpi_block_by_name("q4_k"), bpi_block_info(BP_GGUF_Q4_K));
    ck_assert_ptr_eq(bpi_block_by_name("Iq4_xS"), bpi_block_info(BP_GGUF_IQ4_XS));
    ck_assert_ptr_null(bpi_block_by_name(""));
    ck_assert_ptr_null(bpi_block_by_name("Q4"));
    ck_assert_ptr_null(bpi_block_by_name("Q4_K_M"));
}
END_TEST

START_TEST(names_for_messages)
{
    char names[1024];
    ck_assert_uint_lt(strlen(bpi_block_supported_names()), sizeof names);
    memcpy(names, bpi_block_supported_names(), strlen(bpi_block_supported_names()) + 1);
    uint32_t n_named = 0, n_decoded = 0;
    char *state = NULL;
    for (char *name = strtok_r(names, ", ", &state); name != NULL;
         name = strtok_r(NULL, ", ", &state)) {
        const struct bpi_block_info *info = bpi_block_by_name(name);
        ck_assert_msg(info != NULL && info->can_decode, "'%s' is named but not decoded", name);
        ++n_named;
    }
    for (uint32_t type = 0; type < BP_GGUF_COUNT; ++type) {
        const struct bpi_block_info *info = bpi_block_info(type);
        n_decoded += info != NULL && info->can_decode;
    }
    ck_assert_uint_eq(n_named, n_decoded);
    ck_assert_uint_eq(n_decoded, 29);
}
END_TEST

START_TEST(sizes)
{
    uint64_t n = 77;
    ck_assert(bpi_block_bytes(BP_GGUF_Q4_K, 0, &n) && n == 0);
    ck_assert(bpi_block_bytes(BP_GGUF_Q4_K, 512, &n) && n == 288);
    ck_assert(bpi_block_bytes(BP_GGUF_F32, 3, &n) && n == 12);
    n = 77;
    ck_assert(!bpi_block_bytes(BP_GGUF_Q4_K, 255, &n));
    ck_assert(!bpi_block_bytes(BP_GGUF_F32, UINT64_MAX / 4 + 1, &n));
    ck_assert(!bpi_block_bytes(BP_GGUF_F64, UINT64_C(1) << 61, &n));
    ck_assert(!bpi_block_bytes(4, 32, &n));
    ck_assert(!bpi_block_bytes(43, 32, &n));
    ck_assert_uint_eq(n, 77);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("block");
    TCase *c = tcase_create("all");
    tcase_set_timeout(c, 120);
    tcase_add_loop_test(c, known_vector, 0, (int)BPI_ARRAY_LEN(vectors));
    tcase_add_loop_test(c, random_blocks, 0, BP_GGUF_COUNT);
    tcase_add_test(c, all_halves);
    tcase_add_test(c, refusals_write_nothing);
    tcase_add_test(c, table_of_types);
    tcase_add_test(c, names_for_messages);
    tcase_add_test(c, sizes);
    suite_add_tcase(s, c);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
