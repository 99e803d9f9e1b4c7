/* block_q.c - decoders of the 32-element formats with one scale: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0.
 * Not here: super-blocks (block_k.c), table formats (block_iq4.c).
 * In all of them the low nibble of byte j is element j and the high nibble is element j + 16. A product of a half
 * scale and a small integer is exact in f32, so at most the final addition rounds, once.
 * Source: layouts of ggml @ d99724f (ggml-common.h), restated. Threads: pure. SPDX-License-Identifier: MIT */
#include "block/block_priv.h"

enum { ELEMS = 32, HALF = 16, RUN = 8 };

void bpi_block_decode_q4_0(const unsigned char *restrict src, uint64_t n_blocks,
                           float *restrict dst)
{
    for (uint64_t b = 0; b < n_blocks; ++b, src += 18, dst += ELEMS) {
        const float d = load_f16(src);
        const unsigned char *restrict qs = src + 2;
        for (int j = 0; j < HALF; ++j) dst[j] = d * (float)((qs[j] & 15) - 8);
        for (int j = 0; j < HALF; ++j) dst[j + HALF] = d * (float)((qs[j] >> 4) - 8);
    }
}

void bpi_block_decode_q4_1(const unsigned char *restrict src, uint64_t n_blocks,
                           float *restrict dst)
{
    for (uint64_t b = 0; b < n_blocks; ++b, src += 20, dst += ELEMS) {
        const float d = load_f16(src), m = load_f16(src + 2);
        const unsigned char *restrict qs = src + 4;
        for (int j = 0; j < HALF; ++j) dst[j] = d * (float)(qs[j] & 15) + m;
        for (int j = 0; j < HALF; ++j) dst[j + HALF] = d * (float)(qs[j] >> 4) + m;
    }
}

/* Eight bits become the bits 4 of eight bytes: all bytes of a word get the eight bits, each keeps its own, and adding
 * 0x7f carries it to bit 7 whatever its place was. (Little-endian: byte i of the word is element i.) */
static inline uint64_t spread_bit4(unsigned char bits)
{
    uint64_t w = bits * UINT64_C(0x0101010101010101);
    w = (w & UINT64_C(0x8040201008040201)) + UINT64_C(0x7f7f7f7f7f7f7f7f);
    return (w >> 3) & UINT64_C(0x1010101010101010);
}

/* Five-bit values of n blocks, one byte each: in words of eight bytes, of several blocks before any of them is read
 * again, because a vector load right behind narrower stores would wait for them to leave the core.
 * at: offset of the four bytes of high bits in a block; the sixteen bytes of nibbles follow. */
static void unpack5(const unsigned char *restrict src, uint64_t n, int block_bytes, int at,
                    unsigned char out[RUN][ELEMS])
{
    for (uint64_t b = 0; b < n; ++b, src += block_bytes) {
        const unsigned char *bits = src + at;
        for (int i = 0; i < 2; ++i) {
            uint64_t w, low, high;
            memcpy(&w, bits + 4 + 8 * i, sizeof w);
            low = (w & UINT64_C(0x0f0f0f0f0f0f0f0f)) | spread_bit4(bits[i]);
            high = ((w >> 4) & UINT64_C(0x0f0f0f0f0f0f0f0f)) | spread_bit4(bits[i + 2]);
            memcpy(out[b] + 8 * i, &low, sizeof low);
            memcpy(out[b] + 8 * i + HALF, &high, sizeof high);
        }
    }
}

void bpi_block_decode_q5_0(const unsigned char *restrict src, uint64_t n_blocks,
                           float *restrict dst)
{
    unsigned char q[RUN][ELEMS];
    for (uint64_t n; n_blocks > 0; n_blocks -= n) {
        n = n_blocks < RUN ? n_blocks : RUN;
        unpack5(src, n, 22, 2, q);
        for (uint64_t b = 0; b < n; ++b, src += 22, dst += ELEMS) {
            const float d = load_f16(src);
            for (int j = 0; j < ELEMS; ++j) dst[j] = d * (float)(q[b][j] - 16);
        }
    }
}

void bpi_block_decode_q5_1(const unsigned char *restrict src, uint64_t n_blocks,
                           float *restrict dst)
{
    unsigned char q[RUN][ELEMS];
    for (uint64_t n; n_blocks > 0; n_blocks -= n) {
        n = n_blocks < RUN ? n_blocks : RUN;
        unpack5(src, n, 24, 4, q);
        for (uint64_t b = 0; b < n; ++b, src += 24, dst += ELEMS) {
            const float d = load_f16(src), m = load_f16(src + 2);
            for (int j = 0; j < ELEMS; ++j) dst[j] = d * (float)q[b][j] + m;
        }
    }
}

void bpi_block_decode_q8_0(const unsigned char *restrict src, uint64_t n_blocks,
                           float *restrict dst)
{
    for (uint64_t b = 0; b < n_blocks; ++b, src += 34, dst += ELEMS) {
        const float d = load_f16(src);
        signed char q[ELEMS];
        memcpy(q, src + 2, sizeof q);
        for (int j = 0; j < ELEMS; ++j) dst[j] = d * (float)q[j];
    }
}
