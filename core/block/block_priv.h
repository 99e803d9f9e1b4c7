/* block_priv.h - the decoders behind bpi_block_decode, one per format, by family, and their codebooks.
 * Not here: checks; block_info.c makes them before it calls one of these.
 * All of them: src needs no alignment, src and dst do not overlap, n_blocks may be 0, dst holds
 * n_blocks * block_elems floats. Pure. SPDX-License-Identifier: MIT */
#ifndef BPI_BLOCK_PRIV_H
#define BPI_BLOCK_PRIV_H

#include <stdint.h>
#include <string.h>
#include "base/half.h"

/* block_float.c */
void bpi_block_decode_f32(const unsigned char *restrict src, uint64_t n_blocks,
                          float *restrict dst);
void bpi_block_decode_f16(const unsigned char *restrict src, uint64_t n_blocks,
                          float *restrict dst);
void bpi_block_decode_bf16(const unsigned char *restrict src, uint64_t n_blocks,
                           float *restrict dst);
void bpi_block_decode_f64(const unsigned char *restrict src, uint64_t n_blocks,
                          float *restrict dst);

/* block_q.c: blocks of 32 with one scale */
void bpi_block_decode_q4_0(const unsigned char *restrict src, uint64_t n_blocks,
                           float *restrict dst);
void bpi_block_decode_q4_1(const unsigned char *restrict src, uint64_t n_blocks,
                           float *restrict dst);
void bpi_block_decode_q5_0(const unsigned char *restrict src, uint64_t n_blocks,
                           float *restrict dst);
void bpi_block_decode_q5_1(const unsigned char *restrict src, uint64_t n_blocks,
                           float *restrict dst);
void bpi_block_decode_q8_0(const unsigned char *restrict src, uint64_t n_blocks,
                           float *restrict dst);

/* block_k.c: super-blocks of 256 with quantized scales */
void bpi_block_decode_q2_k(const unsigned char *restrict src, uint64_t n_blocks,
                           float *restrict dst);
void bpi_block_decode_q3_k(const unsigned char *restrict src, uint64_t n_blocks,
                           float *restrict dst);
void bpi_block_decode_q4_k(const unsigned char *restrict src, uint64_t n_blocks,
                           float *restrict dst);
void bpi_block_decode_q5_k(const unsigned char *restrict src, uint64_t n_blocks,
                           float *restrict dst);
void bpi_block_decode_q6_k(const unsigned char *restrict src, uint64_t n_blocks,
                           float *restrict dst);

/* block_iq4.c: four bits through a fixed table of 16 levels */
void bpi_block_decode_iq4_nl(const unsigned char *restrict src, uint64_t n_blocks,
                             float *restrict dst);
void bpi_block_decode_iq4_xs(const unsigned char *restrict src, uint64_t n_blocks,
                             float *restrict dst);

/* block_iq2.c, block_iq3.c, block_iq1.c: codebook rows */
void bpi_block_decode_iq2_xxs(const unsigned char *restrict src, uint64_t n_blocks,
                              float *restrict dst);
void bpi_block_decode_iq2_xs(const unsigned char *restrict src, uint64_t n_blocks,
                             float *restrict dst);
void bpi_block_decode_iq2_s(const unsigned char *restrict src, uint64_t n_blocks,
                            float *restrict dst);
void bpi_block_decode_iq3_xxs(const unsigned char *restrict src, uint64_t n_blocks,
                              float *restrict dst);
void bpi_block_decode_iq3_s(const unsigned char *restrict src, uint64_t n_blocks,
                            float *restrict dst);
void bpi_block_decode_iq1_s(const unsigned char *restrict src, uint64_t n_blocks,
                            float *restrict dst);
void bpi_block_decode_iq1_m(const unsigned char *restrict src, uint64_t n_blocks,
                            float *restrict dst);

/* block_fp4.c: four-bit floats */
void bpi_block_decode_mxfp4(const unsigned char *restrict src, uint64_t n_blocks,
                            float *restrict dst);
void bpi_block_decode_nvfp4(const unsigned char *restrict src, uint64_t n_blocks,
                            float *restrict dst);

/* block_ternary.c: at most four levels */
void bpi_block_decode_tq1_0(const unsigned char *restrict src, uint64_t n_blocks,
                            float *restrict dst);
void bpi_block_decode_tq2_0(const unsigned char *restrict src, uint64_t n_blocks,
                            float *restrict dst);
void bpi_block_decode_q1_0(const unsigned char *restrict src, uint64_t n_blocks,
                           float *restrict dst);
void bpi_block_decode_q2_0(const unsigned char *restrict src, uint64_t n_blocks,
                           float *restrict dst);

/* block_grids.c: codebook rows as digits, the first in the lowest bits; eight digits of two bits, for IQ3 four of
 * four */
extern const uint16_t bpi_block_grid_iq2_xxs[256], bpi_block_grid_iq2_xs[512],
    bpi_block_grid_iq2_s[1024];
extern const uint16_t bpi_block_grid_iq3_xxs[256], bpi_block_grid_iq3_s[512],
    bpi_block_grid_iq1_s[2048];

/* ---- shared by the families ---- */

static inline uint16_t load_u16(const unsigned char *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline uint32_t load_u32(const unsigned char *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline float load_f16(const unsigned char *p)
{
    return bpi_f16_to_f32(load_u16(p));
}
/* The half of an IQ1_M block is in the top nibbles of its four words of scales, the lowest nibble first. */
static inline uint16_t bpi_block_iq1_m_half(const unsigned char *block)
{
    unsigned d = 0;
    for (int i = 0; i < 4; ++i) d |= (unsigned)(block[49 + 2 * i] >> 4) << (4 * i);
    return (uint16_t)d;
}

#endif
