/* block_formula.h - every block format a second time: single bit fields and the formula of one element, in double.
 * All products and differences fit a double exactly. The codebooks are the decoders' own, digit by digit; that they are
 * the right ones is tested by their hash (test_block_grids.c). SPDX-License-Identifier: MIT */
#ifndef BLOCK_FORMULA_H
#define BLOCK_FORMULA_H

#include <check.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include "backplane/types.h"
#include "block/block_priv.h"

/* n bits from bit `at` of a little-endian bit string. */
static inline unsigned field(const unsigned char *p, unsigned at, unsigned n)
{
    unsigned v = 0;
    for (unsigned i = 0; i < n; ++i) v |= (unsigned)((p[(at + i) / 8] >> ((at + i) % 8)) & 1) << i;
    return v;
}

static inline double binary(const unsigned char *p, unsigned exp_bits, unsigned man_bits)
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

static inline double half_at(const unsigned char *p)
{
    return binary(p, 5, 10);
}

/* Nibble number k of the 16 bytes at p in the order of the 32-element formats. */
static inline int nibble(const unsigned char *p, unsigned k)
{
    return (int)field(p, 8 * (k % 16) + 4 * (k / 16), 4);
}

static const int formula_level[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};

static inline int scale_q3(const unsigned char *p, unsigned g)
{
    unsigned low = g < 8 ? field(p, 8 * g, 4) : field(p, 8 * (g - 8) + 4, 4);
    return (int)(low + 16 * field(p, 64 + 8 * (g % 4) + 2 * (g / 4), 2)) - 32;
}

/* Scale (min = 0) or minimum (min = 1) of sub-block j of Q4_K and Q5_K. */
static inline int scale_q45(const unsigned char *p, unsigned j, unsigned min)
{
    if (j < 4) return (int)field(p, 8 * (j + 4 * min), 6);
    return (int)(field(p, 8 * (j + 4) + 4 * min, 4) + 16 * field(p, 8 * (j - 4 + 4 * min) + 6, 2));
}

/* Digit j of a codebook row, and what it stands for. */
static inline int pick(uint16_t row, unsigned j, unsigned bits, const int *values)
{
    const unsigned char bytes[2] = {(unsigned char)row, (unsigned char)(row >> 8)};
    return values[field(bytes, bits * j, bits)];
}

static const int values_iq1[3] = {-1, 0, 1}, values_iq2[3] = {8, 25, 43},
                 values_iq3_xxs[8] = {4, 12, 20, 28, 36, 44, 52, 62},
                 values_iq3_s[8] = {1, 3, 5, 7, 9, 11, 13, 15};

/* Bit j of seven stored ones, the eighth being their parity. */
static inline int sign_of7(const unsigned char *p, unsigned at, unsigned j)
{
    unsigned n = 0;
    if (j < 7) return field(p, at + j, 1) != 0 ? -1 : 1;
    for (unsigned i = 0; i < 7; ++i) n += field(p, at + i, 1);
    return n % 2 != 0 ? -1 : 1;
}

static inline double iq2_element(uint32_t type, const unsigned char *p, unsigned e)
{
    const unsigned g = e / 32, i = e / 8, l = i % 4, j = e % 8;
    if (type == BP_GGUF_IQ2_XXS) {
        const unsigned char *a = p + 2 + 8 * g + 4;
        uint16_t row = bpi_block_grid_iq2_xxs[p[2 + 8 * g + l]];
        return half_at(p) * (0.5 + field(a, 28, 4)) * 0.25 * pick(row, j, 2, values_iq2) *
               sign_of7(a, 7 * l, j);
    }
    if (type == BP_GGUF_IQ2_XS) {
        uint16_t row = bpi_block_grid_iq2_xs[field(p, 16 + 16 * i, 9)];
        return half_at(p) * (0.5 + field(p, 8 * 66 + 4 * (e / 16), 4)) * 0.25 *
               pick(row, j, 2, values_iq2) * sign_of7(p, 16 + 16 * i + 9, j);
    }
    uint16_t row = bpi_block_grid_iq2_s[p[2 + i] + 256 * field(p, 8 * (66 + g) + 2 * l, 2)];
    return half_at(p) * (0.5 + field(p, 8 * 74 + 4 * (e / 16), 4)) * 0.25 *
           pick(row, j, 2, values_iq2) * (field(p, 8 * (34 + i) + j, 1) != 0 ? -1 : 1);
}

static inline double iq3_element(uint32_t type, const unsigned char *p, unsigned e)
{
    const unsigned g = e / 32, i = e / 8, k = e / 4, j = e % 8;
    if (type == BP_GGUF_IQ3_XXS) {
        const unsigned char *a = p + 66 + 4 * g;
        uint16_t row = bpi_block_grid_iq3_xxs[p[2 + k]];
        return half_at(p) * (0.5 + field(a, 28, 4)) * 0.5 * pick(row, j % 4, 4, values_iq3_xxs) *
               sign_of7(a, 7 * (i % 4), j);
    }
    uint16_t row = bpi_block_grid_iq3_s[p[2 + k] + 256 * field(p, 8 * 66 + k, 1)];
    return half_at(p) * (1.0 + 2 * field(p, 8 * 106 + 4 * g, 4)) *
           pick(row, j % 4, 4, values_iq3_s) * (field(p, 8 * 74 + e, 1) != 0 ? -1 : 1);
}

static inline double iq1_element(uint32_t type, const unsigned char *p, unsigned e)
{
    const unsigned g = e / 32, i = e / 8, l = i % 4, j = e % 8;
    if (type == BP_GGUF_IQ1_S) {
        const unsigned char *h = p + 34 + 2 * g;
        uint16_t row = bpi_block_grid_iq1_s[p[2 + i] + 256 * field(h, 3 * l, 3)];
        return half_at(p) * (2 * field(h, 12, 3) + 1) *
               (pick(row, j, 2, values_iq1) + (field(h, 15, 1) != 0 ? -0.125 : 0.125));
    }
    unsigned char d[2];
    for (unsigned k = 0; k < 2; ++k)
        d[k] = (unsigned char)(field(p, 8 * 48 + 32 * k + 12, 4) +
                               16 * field(p, 8 * 48 + 32 * k + 28, 4));
    uint16_t row = bpi_block_grid_iq1_s[p[i] + 256 * field(p, 8 * 32 + 4 * i, 3)];
    unsigned scale = field(p, 8 * 48 + 16 * (g / 2) + 3 * (e / 16 % 4), 3);
    return half_at(d) * (2 * scale + 1) *
           (pick(row, j, 2, values_iq1) + (field(p, 8 * 32 + 4 * i + 3, 1) != 0 ? -0.125 : 0.125));
}

/* Twice E2M1, without a negative zero. */
static inline int fp4(unsigned code)
{
    static const int magnitude[8] = {0, 1, 2, 3, 4, 6, 8, 12};
    return code < 8 ? magnitude[code] : -magnitude[code - 8];
}

static inline double fp4_element(uint32_t type, const unsigned char *p, unsigned e)
{
    if (type == BP_GGUF_MXFP4) return ldexp(fp4((unsigned)nibble(p + 1, e)), p[0] - 128);
    const unsigned char u = p[e / 16];
    const unsigned man = u & 7, exp = u >> 3 & 15;
    double d = exp == 0 ? ldexp(man, -9) : ldexp(8 + man, (int)exp - 10);
    if (u == 0 || u == 0x7f) d = 0;
    return fp4(field(p, 8 * (4 + 8 * (e / 16) + e % 8) + 4 * (e % 16 / 8), 4)) * d * 0.5;
}

static inline double tq1_element(const unsigned char *p, unsigned e)
{
    static const unsigned char pow3[5] = {1, 3, 9, 27, 81};
    unsigned char byte, n;
    if (e < 160) {
        byte = p[e % 32];
        n = (unsigned char)(e / 32);
    } else if (e < 240) {
        byte = p[32 + (e - 160) % 16];
        n = (unsigned char)((e - 160) / 16);
    } else {
        byte = p[48 + (e - 240) % 4];
        n = (unsigned char)((e - 240) / 4);
    }
    const int t = byte * pow3[n] % 256 * 3 / 256;
    return half_at(p + 52) * (t - 1);
}

static inline double small_element(uint32_t type, const unsigned char *p, unsigned e)
{
    switch (type) {
    case BP_GGUF_IQ2_XXS:
    case BP_GGUF_IQ2_XS:
    case BP_GGUF_IQ2_S:
        return iq2_element(type, p, e);
    case BP_GGUF_IQ3_XXS:
    case BP_GGUF_IQ3_S:
        return iq3_element(type, p, e);
    case BP_GGUF_IQ1_S:
    case BP_GGUF_IQ1_M:
        return iq1_element(type, p, e);
    case BP_GGUF_MXFP4:
    case BP_GGUF_NVFP4:
        return fp4_element(type, p, e);
    case BP_GGUF_TQ1_0:
        return tq1_element(p, e);
    case BP_GGUF_TQ2_0:
        return half_at(p + 64) *
               ((int)field(p, 8 * (32 * (e / 128) + e % 32) + 2 * (e / 32 % 4), 2) - 1);
    case BP_GGUF_Q1_0:
        return half_at(p) * (field(p, 16 + e, 1) != 0 ? 1 : -1);
    case BP_GGUF_Q2_0:
        return half_at(p) * ((int)field(p, 16 + 2 * e, 2) - 1);
    default:
        ck_abort_msg("no second formulation of type %u", type);
    }
    return NAN;
}

static inline double super_element(uint32_t type, const unsigned char *p, unsigned e)
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
        return half_at(p) * scale * formula_level[nibble(p + 8 + 16 * sub, l)];
    }
    default:
        return small_element(type, p, e);
    }
}

static inline double formula_element(uint32_t type, const unsigned char *p, unsigned e)
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
        return half_at(p) * formula_level[nibble(p + 2, e)];
    default:
        return super_element(type, p, e);
    }
}

/* One ck_assert an element would be a write to a pipe an element. */
static inline void expect_same(const char *name, float got, double exact, uint64_t block,
                               unsigned e)
{
    float want = (float)exact;
    bool same = isnan(want) ? isnan(got) : memcmp(&got, &want, sizeof got) == 0;
    if (!same)
        ck_abort_msg("%s block %llu element %u: %a, want %a", name, (unsigned long long)block, e,
                     (double)got, (double)want);
}

#endif
