/* block_iq3.c - decoders of IQ3_XXS and IQ3_S: four magnitudes from a codebook row, signs beside it.
 * Not here: the codebooks (block_grids.c). As in block_iq2.c: unpack to signed bytes, then scale; all products are
 * exact in f32.
 * Source: layouts of ggml @ d99724f (ggml-common.h), restated. Threads: pure. SPDX-License-Identifier: MIT */
#include "block/block_priv.h"
#include "block/block_words.h"

enum { SUPER = 256 };

/* Digit k stands for 4 + 8 k, except that 7 stands for 62, two more than that. */
static inline uint64_t magnitudes_xxs(unsigned char a, unsigned char b)
{
    uint64_t w = spread_4bit(bpi_block_grid_iq3_xxs[a], bpi_block_grid_iq3_xxs[b]);
    return BYTES8(4) + w * 8 + (w & w >> 1 & w >> 2 & BYTES8(1)) * 2;
}

/* d, 64 row numbers, then per 32 values a word: four times seven sign bits, and a scale in its top four bits. */
void bpi_block_decode_iq3_xxs(const unsigned char *restrict src, uint64_t n_blocks,
                              float *restrict dst)
{
    for (uint64_t b = 0; b < n_blocks; ++b, src += 98, dst += SUPER) {
        const float d = load_f16(src) * 0.25f;
        signed char q[SUPER];
        for (int i = 0; i < 32; ++i) {
            const uint32_t signs = load_u32(src + 66 + 4 * (i / 4));
            store_word(q + 8 * i, negate_bytes(magnitudes_xxs(src[2 + 2 * i], src[3 + 2 * i]),
                                               even_signs(signs >> (7 * (i % 4)) & 127)));
        }
        for (int g = 0; g < 8; ++g) {
            const float scale = d * (float)(2 * (src[66 + 4 * g + 3] >> 4) + 1);
            scale_bytes(scale, q + 32 * g, 32, dst + 32 * g);
        }
    }
}

/* d, low bytes of 64 row numbers, qh[8] with their ninth bits, 32 bytes of signs, scales[4] with a nibble for 32
 * values. Digit k stands for 1 + 2 k. */
void bpi_block_decode_iq3_s(const unsigned char *restrict src, uint64_t n_blocks,
                            float *restrict dst)
{
    for (uint64_t b = 0; b < n_blocks; ++b, src += 110, dst += SUPER) {
        const float d = load_f16(src);
        signed char q[SUPER];
        for (int i = 0; i < 32; ++i) {
            const unsigned high = (unsigned)src[66 + i / 4] >> (2 * (i % 4));
            const uint16_t a = bpi_block_grid_iq3_s[src[2 + 2 * i] | (high & 1) << 8];
            const uint16_t c = bpi_block_grid_iq3_s[src[3 + 2 * i] | (high & 2) << 7];
            store_word(q + 8 * i, negate_bytes(BYTES8(1) + spread_4bit(a, c) * 2, src[74 + i]));
        }
        for (int g = 0; g < 8; ++g) {
            const float scale = d * (float)(2 * (src[106 + g / 2] >> (4 * (g % 2)) & 15) + 1);
            scale_bytes(scale, q + 32 * g, 32, dst + 32 * g);
        }
    }
}
