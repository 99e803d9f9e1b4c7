/* reduce.cuh - sums and maxima over a warp and over a block, in an order that depends on the sizes only; and numbers as keys
 * that sort the way choices are made: larger first, ties to the lower index, NaN never.
 * Numeric: the same inputs give the same bits; every thread gets the same result. Header only, CUDA C++17.
 * SPDX-License-Identifier: MIT */
#ifndef BP_CUDA_REDUCE_CUH
#define BP_CUDA_REDUCE_CUH

#include <stdint.h>

namespace bp_cuda
{

constexpr unsigned FULL_WARP = 0xffffffffu;

/* For numbers: NaN loses against everything, so a maximum over NaN alone is what it started with. */
__device__ __forceinline__ float larger(float a, float b)
{
    return fmaxf(a, b);
}
__device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}
__device__ __forceinline__ uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* warp_sum, warp_max - over groups of LANES neighbouring lanes (a power of two); all 32 lanes take part. Butterfly, so all
 * lanes of a group get the same bits. */
template <int LANES = 32, class T> __device__ __forceinline__ T warp_sum(T v)
{
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) v += __shfl_xor_sync(FULL_WARP, v, step);
    return v;
}
template <int LANES = 32, class T> __device__ __forceinline__ T warp_max(T v)
{
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) v = larger(v, __shfl_xor_sync(FULL_WARP, v, step));
    return v;
}

/* block_sum, block_max - over all threads of a block of THREADS (a multiple of 32, at most 1024); `room` is shared memory,
 * which may be used for the next reduction at once. All threads of the block take part. `least` starts a maximum. */
template <int THREADS, class T> __device__ __forceinline__ T block_sum(T v, T (&room)[THREADS / 32])
{
    static_assert(THREADS % 32 == 0 && THREADS <= 1024, "whole warps, one block");
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    v = warp_sum(v);
    if constexpr (THREADS == 32) return v;
    __syncthreads(); /* an earlier reduction has been read */
    if (lane == 0) room[warp] = v;
    __syncthreads();
    return warp_sum(lane < THREADS / 32 ? room[lane] : T(0));
}
template <int THREADS, class T> __device__ __forceinline__ T block_max(T v, T least, T (&room)[THREADS / 32])
{
    static_assert(THREADS % 32 == 0 && THREADS <= 1024, "whole warps, one block");
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    v = warp_max(v);
    if constexpr (THREADS == 32) return v;
    __syncthreads();
    if (lane == 0) room[warp] = v;
    __syncthreads();
    return warp_max(lane < THREADS / 32 ? room[lane] : least);
}

/* order_key - a number as an unsigned one that sorts the same way: 0 for NaN, which is below every number; both zeros are
 * one. key_value - the number of a key that is not 0. */
__device__ __forceinline__ uint32_t order_key(float v)
{
    const uint32_t bits = __float_as_uint(v);
    if (v != v) return 0;
    if (v == 0.0f) return 0x80000000u;
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float key_value(uint32_t key)
{
    return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}

/* choice - number and index in one word, of which the largest is the choice; 0 for NaN. choice_index, choice_value - its
 * parts; index -1 for 0. */
__device__ __forceinline__ uint64_t choice(float v, uint32_t index)
{
    const uint32_t key = order_key(v);
    return key == 0 ? 0 : static_cast<uint64_t>(key) << 32 | (0xffffffffu - index);
}
__device__ __forceinline__ int32_t choice_index(uint64_t c)
{
    return c == 0 ? -1 : static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(c));
}
__device__ __forceinline__ float choice_value(uint64_t c)
{
    return key_value(static_cast<uint32_t>(c >> 32));
}

} // namespace bp_cuda
#endif
