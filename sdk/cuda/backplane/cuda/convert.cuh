/* convert.cuh - elements of f32, f16 and bf16 as f32 and back: one at a time, as vectors, by a type or by a dtype that is
 * only known at run time; and from a dtype to a template's type on the host.
 * Not here: block formats (block.cuh). Numeric: loads are exact, stores round once to nearest even, NaN stays NaN, f16
 * overflows to infinity. Header only, CUDA C++17. SPDX-License-Identifier: MIT */
#ifndef BP_CUDA_CONVERT_CUH
#define BP_CUDA_CONVERT_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include "backplane/types.h"

namespace bp_cuda
{

__device__ __forceinline__ float to_f32(float v)
{
    return v;
}
__device__ __forceinline__ float to_f32(__half v)
{
    return __half2float(v);
}
__device__ __forceinline__ float to_f32(__nv_bfloat16 v)
{
    return __bfloat162float(v);
}

/* from_f32<T>(v) - v rounded to T. */
template <class T> __device__ __forceinline__ T from_f32(float v);
template <> __device__ __forceinline__ float from_f32<float>(float v)
{
    return v;
}
template <> __device__ __forceinline__ __half from_f32<__half>(float v)
{
    return __float2half_rn(v);
}
template <> __device__ __forceinline__ __nv_bfloat16 from_f32<__nv_bfloat16>(float v)
{
    return __float2bfloat16_rn(v);
}

/* The unsigned word of a size: what one memory instruction moves. */
template <int BYTES> struct word_of;
template <> struct word_of<16> {
    using type = uint4;
};
template <> struct word_of<8> {
    using type = uint2;
};
template <> struct word_of<4> {
    using type = uint32_t;
};
template <> struct word_of<2> {
    using type = uint16_t;
};

/* load_vec, store_vec - N elements at p, which is aligned to N elements or 16 bytes, whichever is less. N is a power of
 * two. Words of up to 16 bytes each. */
template <class T, int N> __device__ __forceinline__ void load_vec(float (&out)[N], const T *p)
{
    constexpr int BYTES = N * static_cast<int>(sizeof(T)), STEP = BYTES < 16 ? BYTES : 16;
    using word = typename word_of<STEP>::type;
    union {
        word w[BYTES / STEP];
        uint16_t h[BYTES / 2];
        uint32_t u[(BYTES + 3) / 4];
    } x;
#pragma unroll
    for (int i = 0; i < BYTES / STEP; ++i) x.w[i] = reinterpret_cast<const word *>(p)[i];
#pragma unroll
    for (int i = 0; i < N; ++i) {
        if constexpr (sizeof(T) == 4) out[i] = __uint_as_float(x.u[i]);
        else if constexpr (__is_same(T, __half)) out[i] = __half2float(__ushort_as_half(x.h[i]));
        else out[i] = __uint_as_float(static_cast<uint32_t>(x.h[i]) << 16);
    }
}
template <class T, int N> __device__ __forceinline__ void store_vec(T *p, const float (&v)[N])
{
    constexpr int BYTES = N * static_cast<int>(sizeof(T)), STEP = BYTES < 16 ? BYTES : 16;
    using word = typename word_of<STEP>::type;
    union {
        word w[BYTES / STEP];
        uint16_t h[BYTES / 2];
        uint32_t u[(BYTES + 3) / 4];
    } x;
#pragma unroll
    for (int i = 0; i < N; ++i) {
        if constexpr (sizeof(T) == 4) x.u[i] = __float_as_uint(v[i]);
        else if constexpr (__is_same(T, __half)) x.h[i] = __half_as_ushort(__float2half_rn(v[i]));
        else x.h[i] = __bfloat16_as_ushort(__float2bfloat16_rn(v[i]));
    }
#pragma unroll
    for (int i = 0; i < BYTES / STEP; ++i) reinterpret_cast<word *>(p)[i] = x.w[i];
}

/* load_any, store_any - element `at` of an array whose dtype (F32, F16, BF16) is only known at run time. A warp takes one
 * way, so this costs a compare; for wide loops choose the type on the host with with_float. */
__device__ __forceinline__ float load_any(const void *p, uint32_t dtype, int64_t at)
{
    if (dtype == BP_DT_F32) return static_cast<const float *>(p)[at];
    if (dtype == BP_DT_F16) return __half2float(static_cast<const __half *>(p)[at]);
    return __bfloat162float(static_cast<const __nv_bfloat16 *>(p)[at]);
}
__device__ __forceinline__ void store_any(void *p, uint32_t dtype, int64_t at, float v)
{
    if (dtype == BP_DT_F32) static_cast<float *>(p)[at] = v;
    else if (dtype == BP_DT_F16) static_cast<__half *>(p)[at] = __float2half_rn(v);
    else static_cast<__nv_bfloat16 *>(p)[at] = __float2bfloat16_rn(v);
}

/* load_any_vec, store_any_vec - the vector forms by dtype. */
template <int N> __device__ __forceinline__ void load_any_vec(float (&out)[N], const void *p, uint32_t dtype, int64_t at)
{
    if (dtype == BP_DT_F32) load_vec(out, static_cast<const float *>(p) + at);
    else if (dtype == BP_DT_F16) load_vec(out, static_cast<const __half *>(p) + at);
    else load_vec(out, static_cast<const __nv_bfloat16 *>(p) + at);
}
template <int N> __device__ __forceinline__ void store_any_vec(void *p, uint32_t dtype, int64_t at, const float (&v)[N])
{
    if (dtype == BP_DT_F32) store_vec(static_cast<float *>(p) + at, v);
    else if (dtype == BP_DT_F16) store_vec(static_cast<__half *>(p) + at, v);
    else store_vec(static_cast<__nv_bfloat16 *>(p) + at, v);
}

/* with_float - on the host: calls f with a value of the type that dtype means, so that a generic lambda can name it with
 * decltype. false for any other dtype. */
template <class F> inline bool with_float(uint32_t dtype, F &&f)
{
    if (dtype == BP_DT_F32) f(float());
    else if (dtype == BP_DT_F16) f(__half());
    else if (dtype == BP_DT_BF16) f(__nv_bfloat16());
    else return false;
    return true;
}

} // namespace bp_cuda
#endif
