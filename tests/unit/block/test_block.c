/* test_block.c - the decoders of core/block against known vectors and against a second formulation.
 * The second formulation reads single bit fields of a block and evaluates the formula of one element in double; all
 * products and differences fit a double exactly, so the decoder must give that value rounded to float, bit for bit.
 * SPDX-License-Identifier: MIT */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "base/rng.h"
#include "block/block.h"

#define SEED UINT64_C(20240917)

enum { MAX_BLOCK = 256, MAX_BYTES = 292 };

/* ---- known vectors ---- */

/* Block byte i = (i*37+11) & 255, then d := 1.0 and m or dmin := 0.5 (offset -1: none). */
// clang-format off
static const struct vector {
    uint32_t type;
    int d_at, m_at;
    float first, second, middle, last;
    double sum, weighted;
} vectors[] = {
    {BP_GGUF_Q4_0,     0, -1,    -3,       2,      -3,      0,     -21,       -518},
    {BP_GGUF_Q4_1,     0,  2,    15.5f,    4.5f,    9.5f,  12.5f,   261,       4247},
    {BP_GGUF_Q5_0,     0, -1,     9,      -2,      14,      1,      15,        112},
    {BP_GGUF_Q5_1,     0,  2,    19.5f,   24.5f,   19.5f,   5.5f,   521,       8165},
    {BP_GGUF_Q8_0,     0, -1,    85,     122,     -91,    -48,    -176,      -8080},
    {BP_GGUF_IQ4_NL,   0, -1,   -35,      25,     -35,      1,    -257,      -6919},
    {BP_GGUF_Q2_K,    80, 82,    33,       0,       7.5f,   4.5f,  2059,     243130},
    {BP_GGUF_Q3_K,   108, -1,    81,    -108,       2,     42,     958,     177145},
    {BP_GGUF_Q4_K,     0,  2,   315.5f,  -25.5f,  423,     48.5f, 54440,    7572840},
    {BP_GGUF_Q5_K,     0,  2,   811.5f,  -25.5f, 1047,    108.5f, 116216,  16027448},
    {BP_GGUF_Q6_K,   208, -1, -1431,    1696,    -351,    -60,     4612,     784420},
    {BP_GGUF_IQ4_XS,   0, -1,    65,      -1,    -585,    -16,   -11005,   -2091134},
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
    memcpy(block + v->d_at, "\x00\x3c", 2);
    if (v->m_at >= 0) memcpy(block + v->m_at, "\x00\x38", 2);
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

/* ---- second formulation ---- */

/* n bits from bit `at` of a little-endian bit string. */
static unsigned field(const unsigned char *p, unsigned at, unsigned n)
{
    unsigned v = 0;
    for (unsigned i = 0; i < n; ++i) v |= (unsigned)((p[(at + i) / 8] >> ((at + i) % 8)) & 1) << i;
    return v;
}

static double binary(const unsigned char *p, unsigned exp_bits, unsigned man_bits)
{
    unsigned man = field(p, 0, man_bits), exp = field(p, man_bits, exp_bits);
    unsigned top = (1u << exp_bits) - 1;
    int bias = (int)(top >> 1);
    double v;
    if (exp == top) {
        v = man != 0 ? (double)NAN : (double)INFINITY;
    } else if (exp == 0) {
        v = ldexp(man, 1 - bias - (int)man_bits);
    } else {
        v = ldexp(man + ldexp(1, (int)man_bits), (int)exp - bias - (int)man_bits);
    }
    return field(p, man_bits + exp_bits, 1) != 0 ? -v : v;
}

static double half_at(const unsigned char *p)
{
    return binary(p, 5, 10);
}

/* Nibble number k of the 16 bytes at p in the order of the 32-element formats. */
static int nibble(const unsigned char *p, unsigned k)
{
    return (int)field(p, 8 * (k % 16) + 4 * (k / 16), 4);
}

static const int level[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                              1,    13,   25,  38,  53,  69,  89,  113};

static int scale_q3(const unsigned char *p, unsigned g)
{
    unsigned low = g < 8 ? field(p, 8 * g, 4) : field(p, 8 * (g - 8) + 4, 4);
    return (int)(low + 16 * field(p, 64 + 8 * (g % 4) + 2 * (g / 4), 2)) - 32;
}

/* Scale (min = 0) or minimum (min = 1) of sub-block j of Q4_K and Q5_K. */
static int scale_q45(const unsigned char *p, unsigned j, unsigned min)
{
    if (j < 4) return (int)field(p, 8 * (j + 4 * min), 6);
    return (int)(field(p, 8 * (j + 4) + 4 * min, 4) + 16 * field(p, 8 * (j - 4 + 4 * min) + 6, 2));
}

static double super_element(uint32_t type, const unsigned char *p, unsigned e)
{
    const unsigned n = e / 128, j = e % 128 / 32, l = e % 32, sub = e / 32, g = e / 16;
    switch (type) {
    case BP_GGUF_Q2_K: {
        double q = field(p, 8 * (16 + 32 * n + l) + 2 * j, 2);
        return half_at(p + 80) * field(p, 8 * g, 4) * q - half_at(p + 82) * field(p, 8 * g + 4, 4);
    }
    case BP_GGUF_Q3_K: {
        int q = (int)field(p, 8 * (32 + 32 * n + l) + 2 * j, 2);
        if (field(p, 8 * l + 4 * n + j, 1) == 0) q -= 4;
        return half_at(p + 108) * scale_q3(p + 96, g) * q;
    }
    case BP_GGUF_Q4_K: {
        double q = field(p, 8 * (16 + 32 * (sub / 2) + l) + 4 * (sub % 2), 4);
        return half_at(p) * scale_q45(p + 4, sub, 0) * q -
               half_at(p + 2) * scale_q45(p + 4, sub, 1);
    }
    case BP_GGUF_Q5_K: {
        double q = field(p, 8 * (48 + 32 * (sub / 2) + l) + 4 * (sub % 2), 4) +
                   16 * field(p, 8 * (16 + l) + sub, 1);
        return half_at(p) * scale_q45(p + 4, sub, 0) * q -
               half_at(p + 2) * scale_q45(p + 4, sub, 1);
    }
    case BP_GGUF_Q6_K: {
        unsigned low = field(p, 8 * (64 * n + 32 * (j % 2) + l) + 4 * (j / 2), 4);
        unsigned high = field(p, 8 * (128 + 32 * n + l) + 2 * j, 2);
        int scale = (int)field(p, 8 * (192 + g), 8);
        if (scale > 127) scale -= 256;
        return half_at(p + 208) * scale * ((int)(low + 16 * high) - 32);
    }
    case BP_GGUF_IQ4_XS: {
        int scale = (int)(field(p, 32 + 4 * sub, 4) + 16 * field(p, 16 + 2 * sub, 2)) - 32;
        return half_at(p) * scale * level[nibble(p + 8 + 16 * sub, l)];
    }
    default:
        ck_abort_msg("no second formulation of type %u", type);
    }
    return NAN;
}

static double element(uint32_t type, const unsigned char *p, unsigned e)
{
    switch (type) {
    case BP_GGUF_F32:
        return binary(p, 8, 23);
    case BP_GGUF_F16:
        return half_at(p);
    case BP_GGUF_BF16:
        return binary(p, 8, 7);
    case BP_GGUF_F64: {
        double v;
        memcpy(&v, p, sizeof v);
        return v;
    }
    case BP_GGUF_Q4_0:
        return half_at(p) * (nibble(p + 2, e) - 8);
    case BP_GGUF_Q4_1:
        return half_at(p) * nibble(p + 4, e) + half_at(p + 2);
    case BP_GGUF_Q5_0:
        return half_at(p) * (nibble(p + 6, e) + 16 * (int)field(p, 16 + e, 1) - 16);
    case BP_GGUF_Q5_1:
        return half_at(p) * (nibble(p + 8, e) + 16 * (int)field(p, 32 + e, 1)) + half_at(p + 2);
    case BP_GGUF_Q8_0: {
        int q = (int)field(p, 16 + 8 * e, 8);
        return half_at(p) * (q > 127 ? q - 256 : q);
    }
    case BP_GGUF_IQ4_NL:
        return half_at(p) * level[nibble(p + 2, e)];
    default:
        return super_element(type, p, e);
    }
}

/* One ck_assert an element would be a write to a pipe an element. */
static void expect_same(const char *name, float got, double exact, uint64_t block, unsigned e)
{
    float want = (float)exact;
    bool same = isnan(want) ? isnan(got) : memcmp(&got, &want, sizeof got) == 0;
    if (!same)
        ck_abort_msg("%s block %llu element %u: %a, want %a", name, (unsigned long long)block, e,
                     (double)got, (double)want);
}

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
            expect_same(info->name, x[i], element(info->type, src + b * info->block_bytes, e), b,
                        e);
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
    ck_assert_uint_ge(n_decoded, 16);
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
