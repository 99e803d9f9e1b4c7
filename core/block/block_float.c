/* block_float.c - decoders and encoders of the plain float types.
 * Not here: quantized formats. Loops have constant inner lengths so that the compiler turns them into vector code
 * also where it does not weigh costs (gcc -O2).
 * Source: IEEE 754; bfloat16 is the upper half of binary32. Threads: pure. SPDX-License-Identifier: MIT */
#include "block/block_encode.h"
#include "block/block_priv.h"

enum { RUN = 32 };

void bpi_block_decode_f32(const unsigned char *restrict src, uint64_t n_blocks, float *restrict dst)
{
    memcpy(dst, src, n_blocks * sizeof(float));
}

/* As bpi_f16_to_f32, with the case of infinity and NaN folded in by arithmetic, because a branch around a float
 * operation keeps the loop from becoming vector code: bit 15 of mag + 0x400 says "exponent 31". */
static inline float half_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t mag = h & 0x7fffu;
    float scaled = bpi_f32_from_bits(mag << 13) * bpi_f32_from_bits(0x77800000u);
    uint32_t special = (0u - ((mag + 0x400u) >> 15)) & 0x7f800000u;
    return bpi_f32_from_bits(bpi_f32_bits(scaled) | special | sign);
}

void bpi_block_decode_f16(const unsigned char *restrict src, uint64_t n_blocks, float *restrict dst)
{
    uint64_t i = 0;
    for (; i + RUN <= n_blocks; i += RUN) {
        uint16_t h[RUN];
        memcpy(h, src + 2 * i, sizeof h);
        for (int j = 0; j < RUN; ++j) dst[i + (uint64_t)j] = half_to_float(h[j]);
    }
    for (; i < n_blocks; ++i) dst[i] = half_to_float(load_u16(src + 2 * i));
}

void bpi_block_decode_bf16(const unsigned char *restrict src, uint64_t n_blocks,
                           float *restrict dst)
{
    uint64_t i = 0;
    for (; i + RUN <= n_blocks; i += RUN) {
        uint16_t h[RUN];
        memcpy(h, src + 2 * i, sizeof h);
        for (int j = 0; j < RUN; ++j) dst[i + (uint64_t)j] = bpi_bf16_to_f32(h[j]);
    }
    for (; i < n_blocks; ++i) dst[i] = bpi_bf16_to_f32(load_u16(src + 2 * i));
}

/* Beyond the range of float this gives infinity (IEEE conversion), as the format's own tools do. */
void bpi_block_decode_f64(const unsigned char *restrict src, uint64_t n_blocks, float *restrict dst)
{
    for (uint64_t i = 0; i < n_blocks; ++i) {
        double v;
        memcpy(&v, src + 8 * i, sizeof v);
        dst[i] = (float)v;
    }
}

/* ---- encoders: to nearest, ties to even. Weights cannot change what is nearest. ---- */

void bpi_block_encode_f32(const float *src, const float *weights, uint64_t n_blocks,
                          unsigned char *dst)
{
    (void)weights;
    memcpy(dst, src, n_blocks * sizeof *src);
}

void bpi_block_encode_f16(const float *src, const float *weights, uint64_t n_blocks,
                          unsigned char *dst)
{
    (void)weights;
    for (uint64_t i = 0; i < n_blocks; ++i) store_u16(dst + 2 * i, bpi_f32_to_f16(src[i]));
}

void bpi_block_encode_bf16(const float *src, const float *weights, uint64_t n_blocks,
                           unsigned char *dst)
{
    (void)weights;
    for (uint64_t i = 0; i < n_blocks; ++i) store_u16(dst + 2 * i, bpi_f32_to_bf16(src[i]));
}
