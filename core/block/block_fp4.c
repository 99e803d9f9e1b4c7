/* block_fp4.c - decoders of the formats whose nibbles are 4-bit floats (E2M1): MXFP4, NVFP4.
 * Not here: the factor that a companion tensor may hold for a whole NVFP4 tensor (core/model).
 * The table holds doubled values, so the scales are halved. The sixteen values are scaled once per group; a product is
 * exact in f32 (MXFP4 with an exponent above 252, which no encoder writes, can give infinity).
 * Source: OCP Microscaling Formats 1.0; layouts of ggml @ d99724f (ggml-common.h), restated. Threads: pure.
 * SPDX-License-Identifier: MIT */
#include "block/block_priv.h"

/* There is no negative zero. */
static const float levels[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static inline void scale_levels(float scale, float scaled[16])
{
    for (int i = 0; i < 16; ++i) scaled[i] = scale * levels[i];
}

/* 2^(e - 128): a subnormal float for e = 0 and 1, whose exponent field would be below 1. */
static inline float half_of_e8m0(unsigned e)
{
    return bpi_f32_from_bits(e < 2 ? 0x00200000u << e : (e - 1) << 23);
}

/* e qs[16]: byte j holds elements j and j + 16. */
void bpi_block_decode_mxfp4(const unsigned char *restrict src, uint64_t n_blocks,
                            float *restrict dst)
{
    for (uint64_t b = 0; b < n_blocks; ++b, src += 17, dst += 32) {
        float scaled[16];
        scale_levels(half_of_e8m0(src[0]), scaled);
        for (int j = 0; j < 16; ++j) {
            dst[j] = scaled[src[1 + j] & 15];
            dst[j + 16] = scaled[src[1 + j] >> 4];
        }
    }
}

/* Half of an unsigned E4M3 number (bias 7). The one code that would be NaN counts as zero, and bit 7 is not looked at
 * unless the rest is that code. */
static inline float half_of_ue4m3(unsigned u)
{
    const unsigned exp = u >> 3 & 15, man = u & 7;
    if (u == 0x7f) return 0.0f;
    if (exp == 0) return (float)man * 0x1p-10f;
    return bpi_f32_from_bits((exp + 127 - 7 - 1) << 23 | man << 20);
}

/* d[4] qs[32]: sixteen values a scale; byte j of a group's eight holds elements j and j + 8. */
void bpi_block_decode_nvfp4(const unsigned char *restrict src, uint64_t n_blocks,
                            float *restrict dst)
{
    for (uint64_t b = 0; b < n_blocks; ++b, src += 36, dst += 64) {
        for (int g = 0; g < 4; ++g) {
            const unsigned char *restrict qs = src + 4 + 8 * g;
            float scaled[16], *restrict out = dst + 16 * g;
            scale_levels(half_of_ue4m3(src[g]), scaled);
            for (int j = 0; j < 8; ++j) {
                out[j] = scaled[qs[j] & 15];
                out[j + 8] = scaled[qs[j] >> 4];
            }
        }
    }
}
