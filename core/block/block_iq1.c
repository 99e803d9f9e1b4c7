/* block_iq1.c - decoders of IQ1_S and IQ1_M: eight values -1, 0, 1 from a codebook row, all moved by an eighth up or
 * down.
 * Not here: the codebook (block_grids.c). An eighth of the scale times 8 g + 1 or 8 g - 1 is the same product, exact
 * in f32, and those are small integers.
 * Source: layouts of ggml @ d99724f (ggml-common.h), restated. Threads: pure. SPDX-License-Identifier: MIT */
#include "block/block_priv.h"
#include "block/block_words.h"

enum { SUPER = 256 };

/* 8 g + 1, or 8 g - 1 when `down` is set, for the eight g of a row. */
static inline uint64_t moved_row(unsigned row, unsigned down)
{
    uint64_t digits = spread_2bit(bpi_block_grid_iq1_s[row]); /* g + 1 */
    return from_biased(digits * 8 + BYTES8(128 - 8 + 1) - BYTES8(2 * down));
}

/* d, low bytes of 32 row numbers, a word for 32 values: four times three high bits, a 3-bit scale, the direction. */
void bpi_block_decode_iq1_s(const unsigned char *restrict src, uint64_t n_blocks,
                            float *restrict dst)
{
    for (uint64_t b = 0; b < n_blocks; ++b, src += 50, dst += SUPER) {
        const float d = load_f16(src) * 0.125f;
        signed char q[SUPER];
        for (int i = 0; i < 32; ++i) {
            const unsigned h = load_u16(src + 34 + 2 * (i / 4));
            const unsigned row = src[2 + i] | (h >> (3 * (i % 4)) & 7) << 8;
            store_word(q + 8 * i, moved_row(row, h >> 15));
        }
        for (int g = 0; g < 16; ++g) {
            const unsigned s = src[35 + 2 * (g / 2)] >> 4 & 7;
            scale_bytes(d * (float)(2 * s + 1), q + 16 * g, 16, dst + 16 * g);
        }
    }
}

/* Low bytes of 32 row numbers, qh[16] with three high bits and the direction for each, then four words: each a nibble
 * of the half d and four 3-bit scales for 16 values. */
void bpi_block_decode_iq1_m(const unsigned char *restrict src, uint64_t n_blocks,
                            float *restrict dst)
{
    for (uint64_t b = 0; b < n_blocks; ++b, src += 56, dst += SUPER) {
        const float d = bpi_f16_to_f32(bpi_block_iq1_m_half(src)) * 0.125f;
        signed char q[SUPER];
        for (int i = 0; i < 32; ++i) {
            const unsigned h = (unsigned)src[32 + i / 2] >> (4 * (i % 2));
            store_word(q + 8 * i, moved_row(src[i] | (h & 7) << 8, h >> 3 & 1));
        }
        for (int g = 0; g < 16; ++g) {
            const unsigned s = (unsigned)load_u16(src + 48 + 2 * (g / 4)) >> (3 * (g % 4)) & 7;
            scale_bytes(d * (float)(2 * s + 1), q + 16 * g, 16, dst + 16 * g);
        }
    }
}
