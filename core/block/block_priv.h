/* block_priv.h - the decoders behind bpi_block_decode, one per format, by family.
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

/* ---- shared by the families ---- */

static inline uint16_t load_u16(const unsigned char *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline float load_f16(const unsigned char *p)
{
    return bpi_f16_to_f32(load_u16(p));
}

#endif
