/* block_ternary.c - decoders of the formats with one scale and at most four levels: TQ1_0, TQ2_0, Q1_0, Q2_0.
 * Not here: codebook formats. A product of a half and -1, 0, 1 or 2 is exact.
 * Source: layouts of ggml @ d99724f (ggml-common.h), restated. Threads: pure. SPDX-License-Identifier: MIT */
#include "block/block_priv.h"
#include "block/block_words.h"

/* Digit t of each byte, t = -1, 0, 1. A byte is the fraction n / 243 in 1/256, rounded up: times a power of three
 * (modulo one) and times three, its whole part is a digit. */
static inline void trits(float d, const unsigned char *restrict q, unsigned power, int n,
                         float *restrict out)
{
    for (int j = 0; j < n; ++j) {
        const unsigned char fraction = (unsigned char)(q[j] * power);
        out[j] = d * (float)((fraction * 3 >> 8) - 1);
    }
}

/* qs[48] qh[4] d: five digits a byte of qs, first the 32 bytes' first digits and so on, then the 16 bytes'; four
 * digits a byte of qh. */
void bpi_block_decode_tq1_0(const unsigned char *restrict src, uint64_t n_blocks,
                            float *restrict dst)
{
    static const unsigned powers[5] = {1, 3, 9, 27, 81};
    for (uint64_t b = 0; b < n_blocks; ++b, src += 54, dst += 256) {
        const float d = load_f16(src + 52);
        for (int n = 0; n < 5; ++n) trits(d, src, powers[n], 32, dst + 32 * n);
        for (int n = 0; n < 5; ++n) trits(d, src + 32, powers[n], 16, dst + 160 + 16 * n);
        for (int n = 0; n < 4; ++n) trits(d, src + 48, powers[n], 4, dst + 240 + 4 * n);
    }
}

/* qs[64] d: per half of 32 bytes, bits 0-1 are the first 32 values, bits 2-3 the next, and so on. */
void bpi_block_decode_tq2_0(const unsigned char *restrict src, uint64_t n_blocks,
                            float *restrict dst)
{
    for (uint64_t b = 0; b < n_blocks; ++b, src += 66, dst += 256) {
        const float d = load_f16(src + 64);
        for (int g = 0; g < 8; ++g) {
            const unsigned char *restrict q = src + 32 * (g / 4);
            const int shift = 2 * (g % 4);
            float *restrict out = dst + 32 * g;
            for (int l = 0; l < 32; ++l) out[l] = d * (float)(((q[l] >> shift) & 3) - 1);
        }
    }
}

/* d bits[16]: d where the bit is set, -d where not. */
void bpi_block_decode_q1_0(const unsigned char *restrict src, uint64_t n_blocks,
                           float *restrict dst)
{
    for (uint64_t b = 0; b < n_blocks; ++b, src += 18, dst += 128) {
        const float d = load_f16(src);
        signed char q[128];
        for (int i = 0; i < 16; ++i)
            store_word(q + 8 * i, from_biased((spread_bits(src[2 + i]) & BYTES8(2)) + BYTES8(127)));
        scale_bytes(d, q, 128, dst);
    }
}

/* d qs[16]: two bits a value in order, 0 .. 3 for -1 .. 2. */
void bpi_block_decode_q2_0(const unsigned char *restrict src, uint64_t n_blocks,
                           float *restrict dst)
{
    for (uint64_t b = 0; b < n_blocks; ++b, src += 18, dst += 64) {
        const float d = load_f16(src);
        signed char q[64];
        for (int i = 0; i < 8; ++i)
            store_word(q + 8 * i,
                       from_biased(spread_2bit(load_u16(src + 2 + 2 * i)) + BYTES8(127)));
        scale_bytes(d, q, 64, dst);
    }
}
