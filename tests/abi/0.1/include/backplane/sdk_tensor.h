/* sdk_tensor.h - reading and writing plain tensors on the host: element sizes, addresses from strides, the 16-bit
 * floats, whole rows as f32. Part of sdk.h.
 * Not here: block formats, cache layouts, anything that allocates.
 * Numeric: F32, F16 and BF16 read exactly; stores round once, to nearest, ties to even; NaN stays NaN.
 * Header only, C11 and C++17. Threads: any. SPDX-License-Identifier: MIT */
#ifndef BP_SDK_TENSOR_H
#define BP_SDK_TENSOR_H

#include <string.h>

#include "backplane/types.h"

BP_EXTERN_C_BEGIN

/* bp_dtype_bytes - bytes of one element of an enum bp_dtype; 0 for anything else. */
static inline int64_t bp_dtype_bytes(uint32_t dtype)
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
    case BP_DT_U8:
        return 1;
    default:
        return 0;
    }
}

/* bp_dtype_name - "f32", "bf16", ...; "unknown" for anything else. */
static inline const char *bp_dtype_name(uint32_t dtype)
{
    static const char *const names[] = {"none", "f32", "f16", "bf16", "i32", "i64", "u8", "u32"};
    return dtype < sizeof names / sizeof names[0] ? names[dtype] : "unknown";
}

/* bp_at - address of element (i, j, k, 0) of a plain tensor; indices of dimensions it lacks are 0. */
static inline void *bp_at(const struct bp_tensor *t, int64_t i, int64_t j, int64_t k)
{
    const int64_t index[4] = {i, j, k, 0};
    int64_t at = 0;
    for (uint32_t d = 0; d < t->ndim && d < 4; ++d) at += index[d] * t->stride[d];
    return (unsigned char *)t->data + at * bp_dtype_bytes(t->dtype);
}

/* All rows of a tensor (its innermost dimension), in order, whatever its strides:
 *
 *     for (struct bp_rows r = bp_rows_of(&x); bp_rows_next(&r);)
 *         bp_load(row, r.p, x.dtype, r.n);
 */
struct bp_rows {
    const struct bp_tensor *t;
    void *p;      /* first element of the present row */
    int64_t n;    /* elements of a row */
    int64_t i[3]; /* its outer indices */
    int64_t at;   /* number of the next row */
    int64_t end;  /* rows in all */
};

/* bp_rows_of - before the first row of *t; a tensor without dimensions has none. */
static inline struct bp_rows bp_rows_of(const struct bp_tensor *t)
{
    struct bp_rows r;
    memset(&r, 0, sizeof r);
    r.t = t;
    if (t->ndim == 0 || t->ndim > 4) return r;
    r.n = t->dim[t->ndim - 1];
    r.end = 1;
    for (uint32_t d = 0; d + 1 < t->ndim; ++d) r.end *= t->dim[d];
    return r;
}

/* bp_rows_next - goes to the next row; 0 when there is none. */
static inline int bp_rows_next(struct bp_rows *r)
{
    int64_t rest = r->at, offset = 0;
    if (r->at >= r->end) return 0;
    for (uint32_t d = r->t->ndim - 1; d-- > 0;) {
        r->i[d] = rest % r->t->dim[d];
        rest /= r->t->dim[d];
        offset += r->i[d] * r->t->stride[d];
    }
    r->p = (unsigned char *)r->t->data + offset * bp_dtype_bytes(r->t->dtype);
    r->at++;
    return 1;
}

/* ---- 16-bit floats ---- */

/* bp_bits_f32, bp_f32_bits - the bits of a float as a number, and back. */
static inline float bp_bits_f32(uint32_t bits)
{
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}
static inline uint32_t bp_f32_bits(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

/* bp_bf16_f32, bp_f16_f32 - the exact value. */
static inline float bp_bf16_f32(uint16_t bits)
{
    return bp_bits_f32((uint32_t)bits << 16);
}
static inline float bp_f16_f32(uint16_t bits)
{
    const uint32_t sign = (uint32_t)(bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
    if (magnitude >= 0x7c00u) return bp_bits_f32(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    if (magnitude >= 0x0400u) return bp_bits_f32(sign | ((magnitude << 13) + 0x38000000u));
    /* Subnormal: a whole number of 2^-24. */
    const float v = (float)magnitude * bp_bits_f32(0x33800000u);
    return bp_bits_f32(sign | bp_f32_bits(v));
}

/* bp_f32_bf16, bp_f32_f16 - rounded to nearest, ties to even; too large gives infinity, NaN a quiet NaN. */
static inline uint16_t bp_f32_bf16(float v)
{
    const uint32_t bits = bp_f32_bits(v);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
static inline uint16_t bp_f32_f16(float v)
{
    const uint32_t bits = bp_f32_bits(v), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 and more round to infinity */
    if (magnitude >= 0x38800000u) {
        const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
        return (uint16_t)(sign | (rounded - 0x38000000u) >> 13);
    }
    if (magnitude < 0x33000000u) return (uint16_t)sign; /* below half of the smallest */
    const uint32_t shift = 126u - (magnitude >> 23), whole = (magnitude & 0x7fffffu) | 0x800000u;
    const uint32_t kept = whole >> shift, rest = whole & ((1u << shift) - 1u), half = 1u << (shift - 1u);
    return (uint16_t)(sign | (kept + (rest > half || (rest == half && (kept & 1u) != 0) ? 1u : 0u)));
}

/* ---- rows ---- */

/* bp_is_float - is dtype one of F32, F16, BF16? */
static inline int bp_is_float(uint32_t dtype)
{
    return dtype == BP_DT_F32 || dtype == BP_DT_F16 || dtype == BP_DT_BF16;
}

/* bp_load - n contiguous elements of a float dtype at p as f32. Any other dtype gives NaN. */
static inline void bp_load(float *dst, const void *p, uint32_t dtype, int64_t n)
{
    const uint16_t *half = (const uint16_t *)p;
    if (dtype == BP_DT_F32) {
        if (n > 0) memcpy(dst, p, (size_t)n * sizeof *dst);
        return;
    }
    for (int64_t i = 0; i < n; ++i) {
        if (dtype == BP_DT_BF16) dst[i] = bp_bf16_f32(half[i]);
        else if (dtype == BP_DT_F16) dst[i] = bp_f16_f32(half[i]);
        else dst[i] = bp_bits_f32(0x7fc00000u);
    }
}

/* bp_store - n values to contiguous elements of a float dtype at p, each rounded once; any other dtype: nothing. */
static inline void bp_store(void *p, uint32_t dtype, const float *src, int64_t n)
{
    uint16_t *half = (uint16_t *)p;
    if (dtype == BP_DT_F32) {
        if (n > 0) memcpy(p, src, (size_t)n * sizeof *src);
        return;
    }
    for (int64_t i = 0; i < n; ++i) {
        if (dtype == BP_DT_BF16) half[i] = bp_f32_bf16(src[i]);
        else if (dtype == BP_DT_F16) half[i] = bp_f32_f16(src[i]);
    }
}

BP_EXTERN_C_END
#endif
