/* block_iq4.c - decoders of the two formats whose nibbles choose one of 16 unevenly spaced levels: IQ4_NL, IQ4_XS.
 * Not here: formats with learned grids. The levels are scaled once per group, which leaves one load a value; a
 * product of scale and level is exact in f32, so this changes no bit.
 * Source: layout and levels of ggml @ d99724f (ggml-common.h), restated. Threads: pure.
 * SPDX-License-Identifier: MIT */
#include "block/block_priv.h"

static const float levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                 1,    13,   25,  38,  53,  69,  89,  113};

static inline void decode_group(float scale, const unsigned char *restrict qs, float *restrict out)
{
    float scaled[16];
    for (int i = 0; i < 16; ++i) scaled[i] = scale * levels[i];
    for (int j = 0; j < 16; ++j) {
        out[j] = scaled[qs[j] & 15];
        out[j + 16] = scaled[qs[j] >> 4];
    }
}

void bpi_block_decode_iq4_nl(const unsigned char *restrict src, uint64_t n_blocks,
                             float *restrict dst)
{
    for (uint64_t b = 0; b < n_blocks; ++b, src += 18, dst += 32)
        decode_group(load_f16(src), src + 2, dst);
}

/* d scales_h scales_l[4] qs[128]: a 6-bit scale for 32 values, two bits of it in scales_h. */
void bpi_block_decode_iq4_xs(const unsigned char *restrict src, uint64_t n_blocks,
                             float *restrict dst)
{
    for (uint64_t b = 0; b < n_blocks; ++b, src += 136, dst += 256) {
        const float d = load_f16(src);
        const uint32_t high = load_u16(src + 2);
        for (int g = 0; g < 8; ++g) {
            int low = (src[4 + g / 2] >> (4 * (g % 2))) & 15;
            int scale = (low | (int)((high >> (2 * g)) & 3) << 4) - 32;
            decode_group(d * (float)scale, src + 8 + 16 * g, dst + 32 * g);
        }
    }
}
