/* block.cuh - decoders of all GGUF block formats for kernels: the numbers of core/block, bit for bit.
 * For every type: value i of a block is scale(block, i) * code(block, i) - min(block, i), where code is a small integer
 * and the product is exact in f32; types without a minimum leave it out, the plain floats are read as they are.
 * Not here: matrices, strides, loads wider than a block's own alignment (plugins repack for those).
 * Compiles as CUDA C++17 (functions for host and device) and, for tests, as plain C11 and C++17. In CUDA and C++ there
 * is also block<TYPE>, and BP_BLOCK_SWITCH turns a run-time type into a compile-time one.
 * Blocks lie at even addresses (MXFP4, of 17 bytes: anywhere), F32 at multiples of 4, F64 of 8.
 * Source: layouts of ggml @ d99724f, restated; the tables of the IQ formats are core/block's.
 * Threads: pure. SPDX-License-Identifier: MIT */
#ifndef BP_CUDA_BLOCK_CUH
#define BP_CUDA_BLOCK_CUH

#include <stdint.h>
#include <string.h>

#include "backplane/types.h"

#ifdef __CUDACC__
#include <cuda_fp16.h>
#define BP_BLOCK_FN static __host__ __device__ __forceinline__
#else
#define BP_BLOCK_FN static inline
#endif

/* X(NAME, suffix, elements, bytes) */
// clang-format off
#define BP_BLOCK_FLOAT_MAP(X) X(F32, f32, 1, 4) X(F16, f16, 1, 2) X(BF16, bf16, 1, 2) X(F64, f64, 1, 8)
#define BP_BLOCK_SCALE_MAP(X)                                                                      \
    X(Q4_0, q4_0, 32, 18)         X(Q5_0, q5_0, 32, 22)         X(Q8_0, q8_0, 32, 34)              \
    X(Q3_K, q3_k, 256, 110)       X(Q6_K, q6_k, 256, 210)       X(IQ4_NL, iq4_nl, 32, 18)          \
    X(IQ4_XS, iq4_xs, 256, 136)   X(IQ2_XXS, iq2_xxs, 256, 66)  X(IQ2_XS, iq2_xs, 256, 74)         \
    X(IQ2_S, iq2_s, 256, 82)      X(IQ3_XXS, iq3_xxs, 256, 98)  X(IQ3_S, iq3_s, 256, 110)          \
    X(IQ1_S, iq1_s, 256, 50)      X(IQ1_M, iq1_m, 256, 56)      X(MXFP4, mxfp4, 32, 17)            \
    X(NVFP4, nvfp4, 64, 36)       X(TQ1_0, tq1_0, 256, 54)      X(TQ2_0, tq2_0, 256, 66)           \
    X(Q1_0, q1_0, 128, 18)        X(Q2_0, q2_0, 64, 18)
#define BP_BLOCK_MIN_MAP(X)                                                                        \
    X(Q4_1, q4_1, 32, 20)         X(Q5_1, q5_1, 32, 24)         X(Q2_K, q2_k, 256, 84)             \
    X(Q4_K, q4_k, 256, 144)       X(Q5_K, q5_k, 256, 176)
#define BP_BLOCK_MAP(X) BP_BLOCK_FLOAT_MAP(X) BP_BLOCK_SCALE_MAP(X) BP_BLOCK_MIN_MAP(X)
// clang-format on

/* ---- bits ---------------------------------------------------------------------------------------------------- */

BP_BLOCK_FN uint32_t bp_block_u16(const unsigned char *p)
{
#ifdef __CUDA_ARCH__
    return *(const uint16_t *)(const void *)p;
#else
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
#endif
}
BP_BLOCK_FN uint32_t bp_block_u32(const unsigned char *p)
{
    return bp_block_u16(p) | bp_block_u16(p + 2) << 16;
}
BP_BLOCK_FN float bp_block_float(uint32_t bits)
{
#ifdef __CUDA_ARCH__
    return __uint_as_float(bits);
#else
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
#endif
}
/* The exact value of a half: its 15 bits in place, times 2^112; infinity and NaN by their exponent. */
BP_BLOCK_FN float bp_block_half_bits(uint32_t h)
{
#ifdef __CUDA_ARCH__
    return __half2float(__ushort_as_half((unsigned short)h));
#else
    const uint32_t sign = (h & 0x8000u) << 16, magnitude = h & 0x7fffu;
    if (magnitude >= 0x7c00u) return bp_block_float(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    const float v = bp_block_float(magnitude << 13) * bp_block_float(0x77800000u);
    return sign != 0 ? -v : v;
#endif
}
BP_BLOCK_FN float bp_block_half(const unsigned char *p)
{
    return bp_block_half_bits(bp_block_u16(p));
}

/* ---- plain floats -------------------------------------------------------------------------------------------- */

BP_BLOCK_FN float bp_block_at_f32(const unsigned char *b, int i)
{
    (void)i;
    float v;
    memcpy(&v, b, sizeof v);
    return v;
}
BP_BLOCK_FN float bp_block_at_f16(const unsigned char *b, int i)
{
    (void)i;
    return bp_block_half(b);
}
BP_BLOCK_FN float bp_block_at_bf16(const unsigned char *b, int i)
{
    (void)i;
    return bp_block_float(bp_block_u16(b) << 16);
}
BP_BLOCK_FN float bp_block_at_f64(const unsigned char *b, int i)
{
    (void)i;
    double v;
    memcpy(&v, b, sizeof v);
    return (float)v;
}

/* ---- blocks of 32 with one scale: low nibbles are elements 0..15, high ones 16..31 ----------------------------- */

BP_BLOCK_FN int bp_block_nibble32(const unsigned char *qs, int i)
{
    return qs[i & 15] >> (i >> 4 << 2) & 15;
}
BP_BLOCK_FN float bp_block_scale_q4_0(const unsigned char *b, int i)
{
    (void)i;
    return bp_block_half(b);
}
BP_BLOCK_FN int bp_block_code_q4_0(const unsigned char *b, int i)
{
    return bp_block_nibble32(b + 2, i) - 8;
}
BP_BLOCK_FN float bp_block_scale_q4_1(const unsigned char *b, int i)
{
    (void)i;
    return bp_block_half(b);
}
/* The format adds its minimum: here it is what is taken away. */
BP_BLOCK_FN float bp_block_min_q4_1(const unsigned char *b, int i)
{
    (void)i;
    return -bp_block_half(b + 2);
}
BP_BLOCK_FN int bp_block_code_q4_1(const unsigned char *b, int i)
{
    return bp_block_nibble32(b + 4, i);
}
BP_BLOCK_FN float bp_block_scale_q5_0(const unsigned char *b, int i)
{
    (void)i;
    return bp_block_half(b);
}
BP_BLOCK_FN int bp_block_code_q5_0(const unsigned char *b, int i)
{
    return (bp_block_nibble32(b + 6, i) | (b[2 + (i >> 3)] >> (i & 7) & 1) << 4) - 16;
}
BP_BLOCK_FN float bp_block_scale_q5_1(const unsigned char *b, int i)
{
    (void)i;
    return bp_block_half(b);
}
BP_BLOCK_FN float bp_block_min_q5_1(const unsigned char *b, int i)
{
    (void)i;
    return -bp_block_half(b + 2);
}
BP_BLOCK_FN int bp_block_code_q5_1(const unsigned char *b, int i)
{
    return bp_block_nibble32(b + 8, i) | (b[4 + (i >> 3)] >> (i & 7) & 1) << 4;
}
BP_BLOCK_FN float bp_block_scale_q8_0(const unsigned char *b, int i)
{
    (void)i;
    return bp_block_half(b);
}
BP_BLOCK_FN int bp_block_code_q8_0(const unsigned char *b, int i)
{
    return (signed char)b[2 + i];
}

/* ---- super-blocks of 256 with quantized scales ------------------------------------------------------------------ */

/* Two bits of element i where 64 bytes hold them as in Q2_K and Q3_K: 32 bytes per half, four shifts each. */
BP_BLOCK_FN int bp_block_two_bits(const unsigned char *qs, int i)
{
    return qs[32 * (i >> 7) + (i & 31)] >> (2 * (i >> 5 & 3)) & 3;
}
BP_BLOCK_FN float bp_block_scale_q2_k(const unsigned char *b, int i)
{
    return bp_block_half(b + 80) * (float)(b[i >> 4] & 15);
}
BP_BLOCK_FN float bp_block_min_q2_k(const unsigned char *b, int i)
{
    return bp_block_half(b + 82) * (float)(b[i >> 4] >> 4);
}
BP_BLOCK_FN int bp_block_code_q2_k(const unsigned char *b, int i)
{
    return bp_block_two_bits(b + 16, i);
}
/* Six-bit scale g of Q3_K: four low bits in nibbles of bytes 0..7, two high bits in bytes 8..11. */
BP_BLOCK_FN int bp_block_q3_k_scale(const unsigned char *s, int g)
{
    const int low = s[g & 7] >> (g >> 3 << 2) & 15, high = s[8 + (g & 3)] >> (2 * (g >> 2)) & 3;
    return (low | high << 4) - 32;
}
BP_BLOCK_FN float bp_block_scale_q3_k(const unsigned char *b, int i)
{
    return bp_block_half(b + 108) * (float)bp_block_q3_k_scale(b + 96, i >> 4);
}
BP_BLOCK_FN int bp_block_code_q3_k(const unsigned char *b, int i)
{
    return (bp_block_two_bits(b + 32, i) | (b[i & 31] >> (i >> 5) & 1) << 2) - 4;
}
/* Six-bit scale and minimum g of Q4_K and Q5_K. */
BP_BLOCK_FN int bp_block_q45_k_scale(const unsigned char *s, int g)
{
    return g < 4 ? s[g] & 63 : (s[g + 4] & 15) | s[g - 4] >> 6 << 4;
}
BP_BLOCK_FN int bp_block_q45_k_min(const unsigned char *s, int g)
{
    return g < 4 ? s[g + 4] & 63 : s[g + 4] >> 4 | s[g] >> 6 << 4;
}
BP_BLOCK_FN float bp_block_scale_q4_k(const unsigned char *b, int i)
{
    return bp_block_half(b) * (float)bp_block_q45_k_scale(b + 4, i >> 5);
}
BP_BLOCK_FN float bp_block_min_q4_k(const unsigned char *b, int i)
{
    return bp_block_half(b + 2) * (float)bp_block_q45_k_min(b + 4, i >> 5);
}
BP_BLOCK_FN int bp_block_code_q4_k(const unsigned char *b, int i)
{
    return b[16 + 32 * (i >> 6) + (i & 31)] >> (i >> 3 & 4) & 15;
}
BP_BLOCK_FN float bp_block_scale_q5_k(const unsigned char *b, int i)
{
    return bp_block_scale_q4_k(b, i);
}
BP_BLOCK_FN float bp_block_min_q5_k(const unsigned char *b, int i)
{
    return bp_block_min_q4_k(b, i);
}
BP_BLOCK_FN int bp_block_code_q5_k(const unsigned char *b, int i)
{
    return (b[48 + 32 * (i >> 6) + (i & 31)] >> (i >> 3 & 4) & 15) | (b[16 + (i & 31)] >> (i >> 5) & 1) << 4;
}
BP_BLOCK_FN float bp_block_scale_q6_k(const unsigned char *b, int i)
{
    return bp_block_half(b + 208) * (float)(signed char)b[192 + (i >> 4)];
}
BP_BLOCK_FN int bp_block_code_q6_k(const unsigned char *b, int i)
{
    const int half = i >> 7, quarter = i >> 5 & 3;
    const int low = b[64 * half + 32 * (quarter & 1) + (i & 31)] >> (4 * (quarter >> 1)) & 15;
    return (low | (b[128 + 32 * half + (i & 31)] >> (2 * quarter) & 3) << 4) - 32;
}

/* ---- four bits through a table ----------------------------------------------------------------------------------- */

/* Level n of IQ4: sixteen bytes in four words, so that no table in memory is needed. */
BP_BLOCK_FN int bp_block_iq4_level(int n)
{
    const uint32_t w = (n & 8) == 0 ? ((n & 4) == 0 ? 0xbfad9881u : 0xf6eaddcfu)
                                    : ((n & 4) == 0 ? 0x26190d01u : 0x71594535u);
    return (signed char)(w >> (8 * (n & 3)) & 255u);
}
/* Twice the value of a four-bit float (E2M1); there is no negative zero. */
BP_BLOCK_FN int bp_block_e2m1_twice(int n)
{
    const int v = (int)((n & 4) == 0 ? 0x03020100u >> (8 * (n & 3)) : 0x0c080604u >> (8 * (n & 3))) & 255;
    return (n & 8) != 0 ? -v : v;
}
BP_BLOCK_FN float bp_block_scale_iq4_nl(const unsigned char *b, int i)
{
    (void)i;
    return bp_block_half(b);
}
BP_BLOCK_FN int bp_block_code_iq4_nl(const unsigned char *b, int i)
{
    return bp_block_iq4_level(bp_block_nibble32(b + 2, i));
}
BP_BLOCK_FN float bp_block_scale_iq4_xs(const unsigned char *b, int i)
{
    const int g = i >> 5, low = b[4 + (g >> 1)] >> (4 * (g & 1)) & 15;
    const int high = (int)(bp_block_u16(b + 2) >> (2 * g) & 3u);
    return bp_block_half(b) * (float)((low | high << 4) - 32);
}
BP_BLOCK_FN int bp_block_code_iq4_xs(const unsigned char *b, int i)
{
    return bp_block_iq4_level(bp_block_nibble32(b + 8 + 16 * (i >> 5), i & 31));
}
/* 2^(e - 128), because the codes are doubled; subnormal for e = 0 and 1. */
BP_BLOCK_FN float bp_block_scale_mxfp4(const unsigned char *b, int i)
{
    (void)i;
    return bp_block_float(b[0] < 2 ? 0x00200000u << b[0] : ((uint32_t)b[0] - 1u) << 23);
}
BP_BLOCK_FN int bp_block_code_mxfp4(const unsigned char *b, int i)
{
    return bp_block_e2m1_twice(bp_block_nibble32(b + 1, i));
}
/* Half of an unsigned E4M3 number; its one NaN counts as zero. */
BP_BLOCK_FN float bp_block_scale_nvfp4(const unsigned char *b, int i)
{
    const uint32_t u = b[i >> 4], exponent = u >> 3 & 15u, mantissa = u & 7u;
    if (u == 0x7fu) return 0.0f;
    if (exponent == 0) return (float)mantissa * bp_block_float(0x3a800000u);
    return bp_block_float((exponent + 119u) << 23 | mantissa << 20);
}
BP_BLOCK_FN int bp_block_code_nvfp4(const unsigned char *b, int i)
{
    return bp_block_e2m1_twice(b[4 + (i >> 4 << 3) + (i & 7)] >> (i >> 1 & 4) & 15);
}

/* ---- at most four levels ----------------------------------------------------------------------------------------- */

BP_BLOCK_FN float bp_block_scale_tq1_0(const unsigned char *b, int i)
{
    (void)i;
    return bp_block_half(b + 52);
}
/* A byte is a fraction n / 243: times a power of three, modulo one, and times three its whole part is a digit. */
BP_BLOCK_FN int bp_block_code_tq1_0(const unsigned char *b, int i)
{
    int at, digit;
    if (i < 160) at = i & 31, digit = i >> 5;
    else if (i < 240) at = 32 + (i & 15), digit = (i - 160) >> 4;
    else at = 48 + (i & 3), digit = (i - 240) >> 2;
    const unsigned power = digit == 0 ? 1u : digit == 1 ? 3u : digit == 2 ? 9u : digit == 3 ? 27u : 81u;
    return (int)((b[at] * power & 255u) * 3u >> 8) - 1;
}
BP_BLOCK_FN float bp_block_scale_tq2_0(const unsigned char *b, int i)
{
    (void)i;
    return bp_block_half(b + 64);
}
BP_BLOCK_FN int bp_block_code_tq2_0(const unsigned char *b, int i)
{
    return bp_block_two_bits(b, i) - 1;
}
BP_BLOCK_FN float bp_block_scale_q1_0(const unsigned char *b, int i)
{
    (void)i;
    return bp_block_half(b);
}
BP_BLOCK_FN int bp_block_code_q1_0(const unsigned char *b, int i)
{
    return (b[2 + (i >> 3)] >> (i & 7) & 1) * 2 - 1;
}
BP_BLOCK_FN float bp_block_scale_q2_0(const unsigned char *b, int i)
{
    (void)i;
    return bp_block_half(b);
}
BP_BLOCK_FN int bp_block_code_q2_0(const unsigned char *b, int i)
{
    return (b[2 + (i >> 2)] >> (2 * (i & 3)) & 3) - 1;
}

/* ---- codebooks: rows of eight two-bit or four four-bit digits ------------------------------------------------------ */

#ifdef __CUDACC__
#define BP_BLOCK_GRID(name, rows) [[maybe_unused]] static __device__ const uint16_t bp_block_device_##name[rows]
#include "backplane/cuda/block_grids.inc"
#undef BP_BLOCK_GRID
#endif
#ifdef __cplusplus
#define BP_BLOCK_GRID(name, rows) [[maybe_unused]] static const uint16_t bp_block_host_##name[rows]
#else
#define BP_BLOCK_GRID(name, rows) static const uint16_t bp_block_host_##name[rows]
#endif
#include "backplane/cuda/block_grids.inc"
#undef BP_BLOCK_GRID
#ifdef __CUDA_ARCH__
#define BP_BLOCK_ROW(name, at) ((uint32_t)bp_block_device_##name[at])
#else
#define BP_BLOCK_ROW(name, at) ((uint32_t)bp_block_host_##name[at])
#endif

/* Sign of element i & 7 from seven stored bits; the eighth makes their number even. */
BP_BLOCK_FN int bp_block_even_sign(uint32_t low7, int i)
{
    const uint32_t fold = low7 ^ low7 >> 4, all = low7 | (0x6996u >> (fold & 15u) & 1u) << 7;
    return (int)(all >> (i & 7) & 1u);
}
BP_BLOCK_FN int bp_block_signed(int v, int negative)
{
    return negative != 0 ? -v : v;
}
/* Digits 0, 1, 2 of the IQ2 books stand for 8, 25, 43. */
BP_BLOCK_FN int bp_block_iq2_digit(uint32_t row, int i)
{
    const int digit = (int)(row >> (2 * (i & 7)) & 3u);
    return 8 + 17 * digit + (digit >> 1);
}
BP_BLOCK_FN float bp_block_scale_iq2_xxs(const unsigned char *b, int i)
{
    return bp_block_half(b) * 0.125f * (float)(2 * (b[2 + 8 * (i >> 5) + 7] >> 4) + 1);
}
BP_BLOCK_FN int bp_block_code_iq2_xxs(const unsigned char *b, int i)
{
    const unsigned char *p = b + 2 + 8 * (i >> 5);
    const int l = i >> 3 & 3;
    return bp_block_signed(bp_block_iq2_digit(BP_BLOCK_ROW(iq2_xxs, p[l]), i),
                           bp_block_even_sign(bp_block_u32(p + 4) >> (7 * l) & 127u, i));
}
BP_BLOCK_FN float bp_block_scale_iq2_xs(const unsigned char *b, int i)
{
    return bp_block_half(b) * 0.125f * (float)(2 * (b[66 + (i >> 5)] >> (i >> 2 & 4) & 15) + 1);
}
BP_BLOCK_FN int bp_block_code_iq2_xs(const unsigned char *b, int i)
{
    const uint32_t w = bp_block_u16(b + 2 + 2 * (i >> 3));
    return bp_block_signed(bp_block_iq2_digit(BP_BLOCK_ROW(iq2_xs, w & 511u), i), bp_block_even_sign(w >> 9, i));
}
BP_BLOCK_FN float bp_block_scale_iq2_s(const unsigned char *b, int i)
{
    return bp_block_half(b) * 0.125f * (float)(2 * (b[74 + (i >> 5)] >> (i >> 2 & 4) & 15) + 1);
}
BP_BLOCK_FN int bp_block_code_iq2_s(const unsigned char *b, int i)
{
    const int l = i >> 3;
    const uint32_t high = (uint32_t)b[66 + (l >> 2)] >> (2 * (l & 3)) & 3u;
    return bp_block_signed(bp_block_iq2_digit(BP_BLOCK_ROW(iq2_s, b[2 + l] | high << 8), i), b[34 + l] >> (i & 7) & 1);
}
BP_BLOCK_FN float bp_block_scale_iq3_xxs(const unsigned char *b, int i)
{
    return bp_block_half(b) * 0.25f * (float)(2 * (b[66 + 4 * (i >> 5) + 3] >> 4) + 1);
}
/* Digit k stands for 4 + 8 k, except that 7 stands for 62. */
BP_BLOCK_FN int bp_block_code_iq3_xxs(const unsigned char *b, int i)
{
    const int digit = (int)(BP_BLOCK_ROW(iq3_xxs, b[2 + (i >> 2)]) >> (4 * (i & 3)) & 15u);
    const uint32_t signs = bp_block_u32(b + 66 + 4 * (i >> 5)) >> (7 * (i >> 3 & 3)) & 127u;
    return bp_block_signed(4 + 8 * digit + (digit == 7 ? 2 : 0), bp_block_even_sign(signs, i));
}
BP_BLOCK_FN float bp_block_scale_iq3_s(const unsigned char *b, int i)
{
    return bp_block_half(b) * (float)(2 * (b[106 + (i >> 6)] >> (i >> 3 & 4) & 15) + 1);
}
BP_BLOCK_FN int bp_block_code_iq3_s(const unsigned char *b, int i)
{
    const int l = i >> 2;
    const uint32_t high = (uint32_t)b[66 + (l >> 3)] >> (l & 7) & 1u;
    const int digit = (int)(BP_BLOCK_ROW(iq3_s, b[2 + l] | high << 8) >> (4 * (i & 3)) & 15u);
    return bp_block_signed(1 + 2 * digit, b[74 + (i >> 3)] >> (i & 7) & 1);
}
/* Digits 0, 1, 2 stand for -1, 0, 1, moved by an eighth: in eighths 8 g + 1, or 8 g - 1 when `down` is set. */
BP_BLOCK_FN int bp_block_iq1_moved(uint32_t at, int i, int down)
{
    const int digit = (int)(BP_BLOCK_ROW(iq1_s, at) >> (2 * (i & 7)) & 3u);
    return 8 * (digit - 1) + (down != 0 ? -1 : 1);
}
BP_BLOCK_FN float bp_block_scale_iq1_s(const unsigned char *b, int i)
{
    return bp_block_half(b) * 0.125f * (float)(2 * (b[35 + 2 * (i >> 5)] >> 4 & 7) + 1);
}
BP_BLOCK_FN int bp_block_code_iq1_s(const unsigned char *b, int i)
{
    const int l = i >> 3;
    const uint32_t h = bp_block_u16(b + 34 + 2 * (l >> 2));
    return bp_block_iq1_moved(b[2 + l] | (h >> (3 * (l & 3)) & 7u) << 8, i, (int)(h >> 15));
}
/* The half d of IQ1_M is in the top nibbles of its four words of scales. */
BP_BLOCK_FN float bp_block_scale_iq1_m(const unsigned char *b, int i)
{
    const uint32_t d = (uint32_t)(b[49] >> 4) | (uint32_t)(b[51] >> 4) << 4 | (uint32_t)(b[53] >> 4) << 8 |
                       (uint32_t)(b[55] >> 4) << 12;
    const int g = i >> 4, s = (int)(bp_block_u16(b + 48 + 2 * (g >> 2)) >> (3 * (g & 3)) & 7u);
    return bp_block_half_bits(d) * 0.125f * (float)(2 * s + 1);
}
BP_BLOCK_FN int bp_block_code_iq1_m(const unsigned char *b, int i)
{
    const int l = i >> 3;
    const uint32_t h = (uint32_t)b[32 + (l >> 1)] >> (4 * (l & 1));
    return bp_block_iq1_moved(b[l] | (h & 7u) << 8, i, (int)(h >> 3 & 1u));
}

/* ---- values -------------------------------------------------------------------------------------------------------- */

/* bp_block_at_T(block, i) - value i. bp_block_at8_T(block, i, out) - values i .. i + 7, i a multiple of 8, which share
 * scale and minimum; for the plain floats `block` is the element i = 0 of the row, and so it is for both below. */
#define BP_BLOCK_FLOAT_AT8(NAME, fn, elems, bytes)                                                                     \
    BP_BLOCK_FN void bp_block_at8_##fn(const unsigned char *b, int i, float out[8])                                    \
    {                                                                                                                  \
        for (int j = 0; j < 8; ++j) out[j] = bp_block_at_##fn(b + (i + j) * (bytes), 0);                               \
    }
#define BP_BLOCK_SCALE_AT(NAME, fn, elems, bytes)                                                                      \
    BP_BLOCK_FN float bp_block_at_##fn(const unsigned char *b, int i)                                                  \
    {                                                                                                                  \
        return bp_block_scale_##fn(b, i) * (float)bp_block_code_##fn(b, i);                                            \
    }                                                                                                                  \
    BP_BLOCK_FN void bp_block_at8_##fn(const unsigned char *b, int i, float out[8])                                    \
    {                                                                                                                  \
        const float scale = bp_block_scale_##fn(b, i);                                                                 \
        for (int j = 0; j < 8; ++j) out[j] = scale * (float)bp_block_code_##fn(b, i + j);                              \
    }
#define BP_BLOCK_MIN_AT(NAME, fn, elems, bytes)                                                                        \
    BP_BLOCK_FN float bp_block_at_##fn(const unsigned char *b, int i)                                                  \
    {                                                                                                                  \
        return bp_block_scale_##fn(b, i) * (float)bp_block_code_##fn(b, i) - bp_block_min_##fn(b, i);                  \
    }                                                                                                                  \
    BP_BLOCK_FN void bp_block_at8_##fn(const unsigned char *b, int i, float out[8])                                    \
    {                                                                                                                  \
        const float scale = bp_block_scale_##fn(b, i), min = bp_block_min_##fn(b, i);                                  \
        for (int j = 0; j < 8; ++j) out[j] = scale * (float)bp_block_code_##fn(b, i + j) - min;                        \
    }
BP_BLOCK_FLOAT_MAP(BP_BLOCK_FLOAT_AT8)
BP_BLOCK_SCALE_MAP(BP_BLOCK_SCALE_AT)
BP_BLOCK_MIN_MAP(BP_BLOCK_MIN_AT)
#undef BP_BLOCK_FLOAT_AT8
#undef BP_BLOCK_SCALE_AT
#undef BP_BLOCK_MIN_AT

/* Elements and bytes of a block; 0 for types without a decoder. */
BP_BLOCK_FN int bp_block_elems(uint32_t type)
{
#define BP_BLOCK_CASE(NAME, fn, elems, bytes)                                                                          \
    case BP_GGUF_##NAME: return elems;
    switch (type) {
        BP_BLOCK_MAP(BP_BLOCK_CASE)
    default: return 0;
    }
#undef BP_BLOCK_CASE
}
BP_BLOCK_FN int bp_block_size(uint32_t type)
{
#define BP_BLOCK_CASE(NAME, fn, elems, bytes)                                                                          \
    case BP_GGUF_##NAME: return bytes;
    switch (type) {
        BP_BLOCK_MAP(BP_BLOCK_CASE)
    default: return 0;
    }
#undef BP_BLOCK_CASE
}
/* Element i of a row of blocks. Slow: the type is looked at for every element; kernels use block<TYPE>. */
BP_BLOCK_FN float bp_block_row_at(uint32_t type, const unsigned char *row, int64_t i)
{
#define BP_BLOCK_CASE(NAME, fn, elems, bytes)                                                                          \
    case BP_GGUF_##NAME: return bp_block_at_##fn(row + i / (elems) * (bytes), (int)(i % (elems)));
    switch (type) {
        BP_BLOCK_MAP(BP_BLOCK_CASE)
    default: return bp_block_float(0x7fc00000u);
    }
#undef BP_BLOCK_CASE
}

#ifdef __cplusplus
namespace bp
{

/* block<BP_GGUF_Q4_K>: n elements in `bytes` bytes; at() and at8() as above. row_at, row_at8: element(s) i of a row. */
template <uint32_t TYPE> struct block;
#define BP_BLOCK_STRUCT(NAME, fn, elems, size)                                                                         \
    template <> struct block<BP_GGUF_##NAME> {                                                                         \
        static constexpr int n = elems, bytes = size;                                                                  \
        BP_BLOCK_FN float at(const unsigned char *b, int i) { return bp_block_at_##fn(b, i); }                         \
        BP_BLOCK_FN void at8(const unsigned char *b, int i, float *out) { bp_block_at8_##fn(b, i, out); }              \
        BP_BLOCK_FN float row_at(const unsigned char *row, int64_t i)                                                  \
        {                                                                                                              \
            return bp_block_at_##fn(row + i / n * bytes, static_cast<int>(i % n));                                     \
        }                                                                                                              \
        BP_BLOCK_FN void row_at8(const unsigned char *row, int64_t i, float *out)                                      \
        {                                                                                                              \
            bp_block_at8_##fn(row + i / n * bytes, static_cast<int>(i % n), out);                                      \
        }                                                                                                              \
    };
BP_BLOCK_MAP(BP_BLOCK_STRUCT)
#undef BP_BLOCK_STRUCT

} // namespace bp

/* Runs `return RUN(BP_GGUF_X);` for the run-time type: BP_BLOCK_SWITCH(type, launch<...>) with a function-like macro RUN.
 * Falls through for a type without a decoder. */
#define BP_BLOCK_SWITCH(type, RUN)                                                                                     \
    switch (type) {                                                                                                    \
        BP_BLOCK_CASE_(RUN, F32)                                                                                       \
        BP_BLOCK_CASE_(RUN, F16)                                                                                       \
        BP_BLOCK_CASE_(RUN, BF16)                                                                                      \
        BP_BLOCK_CASE_(RUN, F64)                                                                                       \
        BP_BLOCK_CASE_(RUN, Q4_0)                                                                                      \
        BP_BLOCK_CASE_(RUN, Q4_1)                                                                                      \
        BP_BLOCK_CASE_(RUN, Q5_0)                                                                                      \
        BP_BLOCK_CASE_(RUN, Q5_1)                                                                                      \
        BP_BLOCK_CASE_(RUN, Q8_0)                                                                                      \
        BP_BLOCK_CASE_(RUN, Q2_K)                                                                                      \
        BP_BLOCK_CASE_(RUN, Q3_K)                                                                                      \
        BP_BLOCK_CASE_(RUN, Q4_K)                                                                                      \
        BP_BLOCK_CASE_(RUN, Q5_K)                                                                                      \
        BP_BLOCK_CASE_(RUN, Q6_K)                                                                                      \
        BP_BLOCK_CASE_(RUN, IQ4_NL)                                                                                    \
        BP_BLOCK_CASE_(RUN, IQ4_XS)                                                                                    \
        BP_BLOCK_CASE_(RUN, IQ2_XXS)                                                                                   \
        BP_BLOCK_CASE_(RUN, IQ2_XS)                                                                                    \
        BP_BLOCK_CASE_(RUN, IQ2_S)                                                                                     \
        BP_BLOCK_CASE_(RUN, IQ3_XXS)                                                                                   \
        BP_BLOCK_CASE_(RUN, IQ3_S)                                                                                     \
        BP_BLOCK_CASE_(RUN, IQ1_S)                                                                                     \
        BP_BLOCK_CASE_(RUN, IQ1_M)                                                                                     \
        BP_BLOCK_CASE_(RUN, MXFP4)                                                                                     \
        BP_BLOCK_CASE_(RUN, NVFP4)                                                                                     \
        BP_BLOCK_CASE_(RUN, TQ1_0)                                                                                     \
        BP_BLOCK_CASE_(RUN, TQ2_0)                                                                                     \
        BP_BLOCK_CASE_(RUN, Q1_0)                                                                                      \
        BP_BLOCK_CASE_(RUN, Q2_0)                                                                                      \
    default: break;                                                                                                    \
    }
#define BP_BLOCK_CASE_(RUN, NAME)                                                                                      \
    case BP_GGUF_##NAME: return RUN(BP_GGUF_##NAME);
#endif

#endif
