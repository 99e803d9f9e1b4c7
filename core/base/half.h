/* half.h - exact conversions between float and the two 16-bit formats; inline, branch-light, vectorisable.
 * Sources: IEEE 754 binary16; bfloat16 = upper half of binary32. Rounding: to nearest, ties to even.
 * SPDX-License-Identifier: MIT */
#ifndef BPI_HALF_H
#define BPI_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t bpi_f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}
static inline float bpi_f32_from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline float bpi_bf16_to_f32(uint16_t h)
{
    return bpi_f32_from_bits((uint32_t)h << 16);
}
/* NaN stays NaN (quieted). */
static inline uint16_t bpi_f32_to_bf16(float f)
{
    uint32_t u = bpi_f32_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
/* Shift the 15 value bits into place, then rescale by 2^112: exact for normals and subnormals alike. */
static inline float bpi_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t mag = h & 0x7fffu;
    if (mag >= 0x7c00u) return bpi_f32_from_bits(sign | 0x7f800000u | ((mag & 0x3ffu) << 13));
    float v = bpi_f32_from_bits(mag << 13) * bpi_f32_from_bits(0x77800000u);
    return bpi_f32_from_bits(bpi_f32_bits(v) | sign);
}
/* Overflow gives infinity, NaN a quiet NaN, values below half of the least subnormal a signed zero. */
static inline uint16_t bpi_f32_to_f16(float f)
{
    uint32_t u = bpi_f32_bits(f);
    uint16_t sign = (uint16_t)((u >> 16) & 0x8000u);
    uint32_t mag = u & 0x7fffffffu;
    if (mag > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (mag >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* rounds to 65536 or more */
    if (mag < 0x38800000u) { /* subnormal half: let the float adder round at 2^-24 */
        float v = bpi_f32_from_bits(mag) + 0.5f;
        return (uint16_t)(sign | (bpi_f32_bits(v) - 0x3f000000u));
    }
    uint32_t r = mag - 0x38000000u;
    return (uint16_t)(sign | ((r + 0xfffu + ((r >> 13) & 1u)) >> 13));
}

#endif
