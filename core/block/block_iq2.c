/* block_iq2.c - decoders of IQ2_XXS, IQ2_XS, IQ2_S: eight magnitudes from a codebook row, eight signs beside it.
 * Not here: the codebooks (block_grids.c). A block is unpacked to 256 signed bytes first, then scaled in vector loops;
 * with the scale kept as d / 8 times an odd integer each product is exact in f32, so no order of factors matters.
 * Source: layouts of ggml @ d99724f (ggml-common.h), restated. Threads: pure. SPDX-License-Identifier: MIT */
#include "block/block_priv.h"
#include "block/block_words.h"

enum { SUPER = 256 };

/* Digits 0, 1, 2 stand for 8, 25, 43. */
static inline uint64_t magnitudes(uint16_t row)
{
    uint64_t w = spread_2bit(row);
    return BYTES8(8) + w * 17 + (w >> 1 & BYTES8(1));
}

/* d, then per 32 values four row numbers and a word: four times seven sign bits, and a scale in its top four bits. */
void bpi_block_decode_iq2_xxs(const unsigned char *restrict src, uint64_t n_blocks,
                              float *restrict dst)
{
    for (uint64_t b = 0; b < n_blocks; ++b, src += 66, dst += SUPER) {
        const float d = load_f16(src) * 0.125f;
        signed char q[SUPER];
        for (int g = 0; g < 8; ++g) {
            const unsigned char *p = src + 2 + 8 * g;
            const uint32_t signs = load_u32(p + 4);
            for (int l = 0; l < 4; ++l)
                store_word(q + 32 * g + 8 * l,
                           negate_bytes(magnitudes(bpi_block_grid_iq2_xxs[p[l]]),
                                        even_signs(signs >> (7 * l) & 127)));
        }
        for (int g = 0; g < 16; ++g) {
            const float scale = d * (float)(2 * (src[2 + 8 * (g / 2) + 7] >> 4) + 1);
            scale_bytes(scale, q + 16 * g, 16, dst + 16 * g);
        }
    }
}

/* Nibble g of p is the scale of values 16 g ... */
static inline float scale_of(float d, const unsigned char *p, int g)
{
    return d * (float)(2 * (p[g / 2] >> (4 * (g % 2)) & 15) + 1);
}

/* d, 32 words of nine bits row number and seven bits signs, scales[8] with a nibble for 16 values. */
void bpi_block_decode_iq2_xs(const unsigned char *restrict src, uint64_t n_blocks,
                             float *restrict dst)
{
    for (uint64_t b = 0; b < n_blocks; ++b, src += 74, dst += SUPER) {
        const float d = load_f16(src) * 0.125f;
        signed char q[SUPER];
        for (int i = 0; i < 32; ++i) {
            const unsigned w = load_u16(src + 2 + 2 * i);
            store_word(q + 8 * i, negate_bytes(magnitudes(bpi_block_grid_iq2_xs[w & 511]),
                                               even_signs(w >> 9)));
        }
        for (int g = 0; g < 16; ++g)
            scale_bytes(scale_of(d, src + 66, g), q + 16 * g, 16, dst + 16 * g);
    }
}

/* d, low bytes of 32 row numbers, 32 bytes of signs, qh[8] with two high bits a row number, scales as in IQ2_XS. */
void bpi_block_decode_iq2_s(const unsigned char *restrict src, uint64_t n_blocks,
                            float *restrict dst)
{
    for (uint64_t b = 0; b < n_blocks; ++b, src += 82, dst += SUPER) {
        const float d = load_f16(src) * 0.125f;
        signed char q[SUPER];
        for (int i = 0; i < 32; ++i) {
            const unsigned high = src[66 + i / 4] >> (2 * (i % 4)) & 3;
            const uint16_t row = bpi_block_grid_iq2_s[src[2 + i] | high << 8];
            store_word(q + 8 * i, negate_bytes(magnitudes(row), src[34 + i]));
        }
        for (int g = 0; g < 16; ++g)
            scale_bytes(scale_of(d, src + 74, g), q + 16 * g, 16, dst + 16 * g);
    }
}
