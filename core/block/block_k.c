/* block_k.c - decoders of the 256-element super-blocks with quantized scales: Q2_K .. Q6_K.
 * Not here: Q8_K, an activation format that no file holds. Inner loops run over 16 or 32 elements that share one
 * scale, so that they become vector code. Products of scales and values fit f32 exactly (at most 24 bits); where a
 * minimum is subtracted, that subtraction is the one rounding.
 * Source: layouts of ggml @ d99724f (ggml-common.h), restated. Threads: pure. SPDX-License-Identifier: MIT */
#include "block/block_priv.h"

enum { SUPER = 256 };

/* scales[16] qs[64] d dmin: two bits a value, a 4-bit scale and a 4-bit minimum for 16 values. */
void bpi_block_decode_q2_k(const unsigned char *restrict src, uint64_t n_blocks,
                           float *restrict dst)
{
    for (uint64_t b = 0; b < n_blocks; ++b, src += 84, dst += SUPER) {
        const float d = load_f16(src + 80), dmin = load_f16(src + 82);
        for (int g = 0; g < 16; ++g) {
            const unsigned char *restrict q = src + 16 + 32 * (g / 8) + 16 * (g % 2);
            const int shift = 2 * (g / 2 % 4);
            const float scale = d * (float)(src[g] & 15), min = dmin * (float)(src[g] >> 4);
            float *restrict out = dst + 16 * g;
            for (int l = 0; l < 16; ++l) out[l] = scale * (float)((q[l] >> shift) & 3) - min;
        }
    }
}

/* Sixteen 6-bit scales in 12 bytes: four low bits in nibbles of bytes 0..7, two high bits in bytes 8..11. */
static inline void unpack_q3_scales(const unsigned char *restrict s, int out[16])
{
    for (int i = 0; i < 16; ++i) {
        int low = i < 8 ? s[i] & 15 : s[i - 8] >> 4;
        int high = (s[8 + i % 4] >> (2 * (i / 4))) & 3;
        out[i] = (low | high << 4) - 32;
    }
}

/* hmask[32] qs[64] scales[12] d: two low bits plus one bit whose absence subtracts 4. */
void bpi_block_decode_q3_k(const unsigned char *restrict src, uint64_t n_blocks,
                           float *restrict dst)
{
    for (uint64_t b = 0; b < n_blocks; ++b, src += 110, dst += SUPER) {
        const float d = load_f16(src + 108);
        int scales[16];
        unpack_q3_scales(src + 96, scales);
        for (int g = 0; g < 16; ++g) {
            const unsigned char *restrict q = src + 32 + 32 * (g / 8) + 16 * (g % 2);
            const unsigned char *restrict high = src + 16 * (g % 2);
            const int shift = 2 * (g / 2 % 4), bit = g / 2;
            const float scale = d * (float)scales[g];
            float *restrict out = dst + 16 * g;
            for (int l = 0; l < 16; ++l) {
                int v = ((q[l] >> shift) & 3) | ((high[l] >> bit) & 1) << 2;
                out[l] = scale * (float)(v - 4);
            }
        }
    }
}

/* Eight 6-bit scales and eight 6-bit minima in 12 bytes, shared by Q4_K and Q5_K. */
static inline void unpack_q45_scales(const unsigned char *restrict s, unsigned char scale[8],
                                     unsigned char min[8])
{
    for (int j = 0; j < 4; ++j) {
        scale[j] = s[j] & 63;
        min[j] = s[j + 4] & 63;
        scale[j + 4] = (unsigned char)((s[j + 8] & 15) | (s[j] >> 6) << 4);
        min[j + 4] = (unsigned char)((s[j + 8] >> 4) | (s[j + 4] >> 6) << 4);
    }
}

/* d dmin scales[12] qs[128]: each 32 bytes hold two sub-blocks, low nibbles first. */
void bpi_block_decode_q4_k(const unsigned char *restrict src, uint64_t n_blocks,
                           float *restrict dst)
{
    for (uint64_t b = 0; b < n_blocks; ++b, src += 144, dst += SUPER) {
        const float d = load_f16(src), dmin = load_f16(src + 2);
        unsigned char sc[8], mn[8];
        unpack_q45_scales(src + 4, sc, mn);
        for (int c = 0; c < 4; ++c) {
            const unsigned char *restrict q = src + 16 + 32 * c;
            const float scale0 = d * (float)sc[2 * c], min0 = dmin * (float)mn[2 * c];
            const float scale1 = d * (float)sc[2 * c + 1], min1 = dmin * (float)mn[2 * c + 1];
            float *restrict out = dst + 64 * c;
            for (int l = 0; l < 32; ++l) out[l] = scale0 * (float)(q[l] & 15) - min0;
            for (int l = 0; l < 32; ++l) out[l + 32] = scale1 * (float)(q[l] >> 4) - min1;
        }
    }
}

/* As Q4_K with qh[32] before qs: bit s of qh[l] is the fifth bit of element l of sub-block s. */
void bpi_block_decode_q5_k(const unsigned char *restrict src, uint64_t n_blocks,
                           float *restrict dst)
{
    for (uint64_t b = 0; b < n_blocks; ++b, src += 176, dst += SUPER) {
        const float d = load_f16(src), dmin = load_f16(src + 2);
        const unsigned char *restrict high = src + 16;
        unsigned char sc[8], mn[8];
        unpack_q45_scales(src + 4, sc, mn);
        for (int c = 0; c < 4; ++c) {
            const unsigned char *restrict q = src + 48 + 32 * c;
            const float scale0 = d * (float)sc[2 * c], min0 = dmin * (float)mn[2 * c];
            const float scale1 = d * (float)sc[2 * c + 1], min1 = dmin * (float)mn[2 * c + 1];
            float *restrict out = dst + 64 * c;
            for (int l = 0; l < 32; ++l) {
                int v = (q[l] & 15) | ((high[l] >> (2 * c)) & 1) << 4;
                out[l] = scale0 * (float)v - min0;
            }
            for (int l = 0; l < 32; ++l) {
                int v = (q[l] >> 4) | ((high[l] >> (2 * c + 1)) & 1) << 4;
                out[l + 32] = scale1 * (float)v - min1;
            }
        }
    }
}

/* ql[128] qh[64] sc[16] d: per half, quarter k takes nibble k/2 of ql[32(k%2)..] and bits 2k of qh. */
void bpi_block_decode_q6_k(const unsigned char *restrict src, uint64_t n_blocks,
                           float *restrict dst)
{
    for (uint64_t b = 0; b < n_blocks; ++b, src += 210, dst += SUPER) {
        const float d = load_f16(src + 208);
        signed char sc[16];
        memcpy(sc, src + 192, sizeof sc);
        for (int g = 0; g < 16; ++g) {
            const int half = g / 8, quarter = g / 2 % 4, part = 16 * (g % 2);
            const unsigned char *restrict low = src + 64 * half + 32 * (quarter % 2) + part;
            const unsigned char *restrict high = src + 128 + 32 * half + part;
            const int low_shift = 4 * (quarter / 2), high_shift = 2 * quarter;
            const float scale = d * (float)sc[g];
            float *restrict out = dst + 16 * g;
            for (int l = 0; l < 16; ++l) {
                int v = ((low[l] >> low_shift) & 15) | ((high[l] >> high_shift) & 3) << 4;
                out[l] = scale * (float)(v - 32);
            }
        }
    }
}
