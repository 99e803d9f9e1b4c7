/* block_encode.h - the encoders behind bpi_block_encode, and what they share. Not here: the checks (block_info.c).
 * All of them: src holds finite values within the range of the format, weights is NULL or as many finite numbers that
 * are not negative, dst needs no alignment and overlaps nothing, n_blocks may be 0. Pure.
 * SPDX-License-Identifier: MIT */
#ifndef BPI_BLOCK_ENCODE_H
#define BPI_BLOCK_ENCODE_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include "base/half.h"
#include "block/block_search.h"

/* block_float.c */
void bpi_block_encode_f32(const float *src, const float *weights, uint64_t n_blocks,
                          unsigned char *dst);
void bpi_block_encode_f16(const float *src, const float *weights, uint64_t n_blocks,
                          unsigned char *dst);
void bpi_block_encode_bf16(const float *src, const float *weights, uint64_t n_blocks,
                           unsigned char *dst);

/* block_encode_q.c: blocks of 32 with one scale */
void bpi_block_encode_q4_0(const float *src, const float *weights, uint64_t n_blocks,
                           unsigned char *dst);
void bpi_block_encode_q4_1(const float *src, const float *weights, uint64_t n_blocks,
                           unsigned char *dst);
void bpi_block_encode_q5_0(const float *src, const float *weights, uint64_t n_blocks,
                           unsigned char *dst);
void bpi_block_encode_q5_1(const float *src, const float *weights, uint64_t n_blocks,
                           unsigned char *dst);
void bpi_block_encode_q8_0(const float *src, const float *weights, uint64_t n_blocks,
                           unsigned char *dst);
void bpi_block_encode_iq4_nl(const float *src, const float *weights, uint64_t n_blocks,
                             unsigned char *dst);

/* block_encode_scale.c: super-blocks whose groups have a scale */
void bpi_block_encode_q3_k(const float *src, const float *weights, uint64_t n_blocks,
                           unsigned char *dst);
void bpi_block_encode_q6_k(const float *src, const float *weights, uint64_t n_blocks,
                           unsigned char *dst);
void bpi_block_encode_iq4_xs(const float *src, const float *weights, uint64_t n_blocks,
                             unsigned char *dst);

/* block_encode_min.c: super-blocks whose groups have a scale and a minimum */
void bpi_block_encode_q2_k(const float *src, const float *weights, uint64_t n_blocks,
                           unsigned char *dst);
void bpi_block_encode_q4_k(const float *src, const float *weights, uint64_t n_blocks,
                           unsigned char *dst);
void bpi_block_encode_q5_k(const float *src, const float *weights, uint64_t n_blocks,
                           unsigned char *dst);

/* ---- shared ---- */

/* The half nearest to v * unit, at most the largest finite one; and back. */
static inline uint16_t bpi_block_to_half(float v, float unit)
{
    uint16_t h = bpi_f32_to_f16(v * unit);
    return (h & 0x7fffu) > 0x7bffu ? (uint16_t)((h & 0x8000u) | 0x7bffu) : h;
}
static inline float bpi_block_from_half(uint16_t h, float unit)
{
    return bpi_f16_to_f32(h) / unit;
}
/* The half k steps further from zero (nearer for k < 0), no further than zero or the largest. */
static inline uint16_t bpi_block_half_step(uint16_t h, int k)
{
    int mag = (h & 0x7fff) + k;
    mag = mag < 0 ? 0 : mag > 0x7bff ? 0x7bff : mag;
    return (uint16_t)((h & 0x8000u) | (unsigned)mag);
}

static inline void store_u16(unsigned char *p, uint16_t v)
{
    memcpy(p, &v, sizeof v);
}

#endif
