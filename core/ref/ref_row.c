/* ref_row.c - typed rows: addresses, exact reads into f32, writes that round once.
 * Not here: sums (ref_dot.c). Threads: all functions are pure. SPDX-License-Identifier: MIT */
#include "ref/ref_priv.h"

#include <assert.h>

int64_t bpi_ref_dtype_bytes(uint32_t dtype)
{
    switch (dtype) {
    case BP_DT_F32:
    case BP_DT_I32:
    case BP_DT_U32:
        return 4;
    case BP_DT_F16:
    case BP_DT_BF16:
        return 2;
    case BP_DT_I64:
        return 8;
    default:
        return 1;
    }
}

bool bpi_ref_is_float(uint32_t dtype)
{
    return dtype == BP_DT_F32 || dtype == BP_DT_F16 || dtype == BP_DT_BF16;
}

void *bpi_ref_at(const struct bp_tensor *t, int64_t i, int64_t j, int64_t k)
{
    int64_t at = i * t->stride[0] + j * t->stride[1] + k * t->stride[2];
    return (unsigned char *)t->data + at * bpi_ref_dtype_bytes(t->dtype);
}

float bpi_ref_round1(float v, uint32_t round)
{
    if (round == BPI_REF_ROUND_BF16) return bpi_bf16_to_f32(bpi_f32_to_bf16(v));
    if (round == BPI_REF_ROUND_F16) return bpi_f16_to_f32(bpi_f32_to_f16(v));
    return v;
}

BPI_REF_CLONES static void load_bf16(float *restrict dst, const uint16_t *restrict src, int64_t n)
{
    for (int64_t i = 0; i < n; ++i) dst[i] = bpi_bf16_to_f32(src[i]);
}

BPI_REF_CLONES static void load_f16(float *restrict dst, const uint16_t *restrict src, int64_t n)
{
    for (int64_t i = 0; i < n; ++i) dst[i] = bpi_f16_to_f32(src[i]);
}

BPI_REF_CLONES static void round_bf16(float *v, int64_t n)
{
    for (int64_t i = 0; i < n; ++i) v[i] = bpi_bf16_to_f32(bpi_f32_to_bf16(v[i]));
}

BPI_REF_CLONES static void round_f16(float *v, int64_t n)
{
    for (int64_t i = 0; i < n; ++i) v[i] = bpi_f16_to_f32(bpi_f32_to_f16(v[i]));
}

void bpi_ref_round(float *v, int64_t n, uint32_t round)
{
    if (round == BPI_REF_ROUND_BF16) round_bf16(v, n);
    if (round == BPI_REF_ROUND_F16) round_f16(v, n);
}

void bpi_ref_load(float *dst, const void *p, uint32_t dtype, int64_t n, uint32_t round)
{
    if (n <= 0) return;
    assert(bpi_ref_is_float(dtype));
    if (dtype == BP_DT_BF16) {
        load_bf16(dst, p, n);
    } else if (dtype == BP_DT_F16) {
        load_f16(dst, p, n);
    } else if (dst != p) {
        memmove(dst, p, (size_t)n * sizeof *dst);
    }
    bpi_ref_round(dst, n, round);
}

/* Double to f32, rounded to odd: the last bit is set when anything was cut off. A second rounding, to a format that is
 * at least two bits shorter, then gives what one rounding would have given (Boldo and Melquiond, 2008). */
static float to_odd(double d)
{
    float f = (float)d;
    if ((double)f == d || d != d) return f;
    uint32_t u = bpi_f32_bits(f);
    if (__builtin_fabs((double)f) > __builtin_fabs(d)) u -= 1; /* towards zero */
    return bpi_f32_from_bits(u | 1u);
}

/* The f32 number that conversion to `dtype` starts from. */
static float through(double v, uint32_t dtype, uint32_t round)
{
    if (round != BPI_REF_ROUND_NONE) return bpi_ref_round1(to_odd(v), round);
    return dtype == BP_DT_F32 ? (float)v : to_odd(v);
}

float bpi_ref_round_once(double v, uint32_t dtype, uint32_t round)
{
    float f = through(v, dtype, round);
    if (dtype == BP_DT_BF16) return bpi_ref_round1(f, BPI_REF_ROUND_BF16);
    if (dtype == BP_DT_F16) return bpi_ref_round1(f, BPI_REF_ROUND_F16);
    return f;
}

BPI_REF_CLONES static void store_f32(float *restrict dst, const double *restrict src, int64_t n)
{
    for (int64_t i = 0; i < n; ++i) dst[i] = (float)src[i];
}

void bpi_ref_store(void *p, uint32_t dtype, const double *src, int64_t n, uint32_t round)
{
    assert(bpi_ref_is_float(dtype));
    if (dtype == BP_DT_F32 && round == BPI_REF_ROUND_NONE) {
        store_f32(p, src, n);
        return;
    }
    for (int64_t i = 0; i < n; ++i) {
        float v = through(src[i], dtype, round);
        if (dtype == BP_DT_F32) {
            ((float *)p)[i] = v;
        } else {
            ((uint16_t *)p)[i] = dtype == BP_DT_BF16 ? bpi_f32_to_bf16(v) : bpi_f32_to_f16(v);
        }
    }
}

void bpi_ref_store_floats(void *p, uint32_t dtype, const float *src, int64_t n, uint32_t round)
{
    assert(bpi_ref_is_float(dtype));
    if (n <= 0) return;
    if (dtype == BP_DT_F32) {
        memcpy(p, src, (size_t)n * sizeof *src);
        bpi_ref_round(p, n, round);
        return;
    }
    for (int64_t i = 0; i < n; ++i) {
        float v = bpi_ref_round1(src[i], round);
        ((uint16_t *)p)[i] = dtype == BP_DT_BF16 ? bpi_f32_to_bf16(v) : bpi_f32_to_f16(v);
    }
}
