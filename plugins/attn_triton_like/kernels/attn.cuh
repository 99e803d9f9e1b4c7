/* attn.cuh - what the kernels of attn_triton_like share: rows of any float dtype as f32, addresses in a paged pool, the
 * start of a kernel.
 * Header only, CUDA C++17. SPDX-License-Identifier: MIT */
#ifndef ATTN_CUH
#define ATTN_CUH

#include <cuda_runtime.h>
#include <math.h>

#include <backplane/cuda/convert.cuh>
#include <backplane/cuda/host.h>
#include <backplane/cuda/reduce.cuh>

#include "launch.h"

using bp_cuda::FULL_WARP;
using bp_cuda::load_any;
using bp_cuda::store_any;

constexpr float LOG2_E = 1.44269504088896340736f, LN_2 = 0.69314718055994530942f;

/* N rows of n numbers to dst, `pitch` apart, as f32 by the lanes of a warp: all rows are asked for before the first is
 * written, four numbers at a time where the addresses allow it. A row whose src is NULL is zero. */
template <int N>
__device__ __forceinline__ void load_rows(float *dst, int pitch, const unsigned char *const (&src)[N], uint32_t dtype, int n,
                                          int lane)
{
    uintptr_t all = 0;
#pragma unroll
    for (int r = 0; r < N; ++r) all |= reinterpret_cast<uintptr_t>(src[r]);
    if (dtype != BP_DT_F32 && n % 4 == 0 && all % 8 == 0) {
        for (int i = lane; i < n / 4; i += 32) {
            uint2 v[N];
#pragma unroll
            for (int r = 0; r < N; ++r)
                v[r] = src[r] != nullptr ? reinterpret_cast<const uint2 *>(src[r])[i] : make_uint2(0, 0);
#pragma unroll
            for (int r = 0; r < N; ++r) {
                const uint16_t bits[4] = {static_cast<uint16_t>(v[r].x), static_cast<uint16_t>(v[r].x >> 16),
                                          static_cast<uint16_t>(v[r].y), static_cast<uint16_t>(v[r].y >> 16)};
#pragma unroll
                for (int k = 0; k < 4; ++k) dst[r * pitch + 4 * i + k] = load_any(bits + k, dtype, 0);
            }
        }
        return;
    }
    for (int i = lane; i < n; i += 32) {
        float v[N];
#pragma unroll
        for (int r = 0; r < N; ++r) v[r] = src[r] != nullptr ? load_any(src[r], dtype, i) : 0.0f;
#pragma unroll
        for (int r = 0; r < N; ++r) dst[r * pitch + i] = v[r];
    }
}

/* A number that a branch further on decides whether to use, asked for here: the compiler moves a plain load behind the
 * branch, and then trips to memory follow one another that could have been one. */
__device__ __forceinline__ int32_t load_now(const int32_t *p)
{
    int32_t v;
    asm volatile("ld.global.s32 %0, [%1];" : "=r"(v) : "l"(__cvta_generic_to_global(p)));
    return v;
}

/* The row at a token slot. */
__device__ __forceinline__ unsigned char *pool_row(const attn_pool &pool, int64_t slot)
{
    const int64_t block = slot / pool.block_tok, row = slot % pool.block_tok;
    return pool.data + block * pool.block_bytes + row * pool.row_bytes;
}

/* The address of a row of a tensor. */
__device__ __forceinline__ unsigned char *row_at(const attn_rows &t, int64_t row, int64_t head)
{
    return static_cast<unsigned char *>(t.data) + (row * t.row + head * t.head) * (t.dtype == BP_DT_F32 ? 4 : 2);
}

/* The block's dynamic shared memory. */
__device__ __forceinline__ unsigned char *shared_memory()
{
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    return shared_bytes;
}

/* Starts a kernel; more shared memory than a kernel gets by default is asked for first. */
template <class... P, class... A>
int32_t start(void (*kernel)(P...), dim3 grid, int n_thread, size_t smem, void *stream, const A &...args)
{
    if (grid.x == 0 || grid.y == 0 || grid.z == 0) return cudaSuccess;
    if (smem > 48 * 1024) {
        const cudaError_t e =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(smem));
        if (e != cudaSuccess) {
            (void)cudaGetLastError();
            return static_cast<int32_t>(e);
        }
    }
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(static_cast<unsigned>(n_thread));
    config.dynamicSmemBytes = smem;
    config.stream = static_cast<cudaStream_t>(stream);
    const cudaError_t e = cudaLaunchKernelEx(&config, kernel, args...);
    const cudaError_t last = cudaGetLastError(); /* taken, so that nobody else finds it */
    return static_cast<int32_t>(e != cudaSuccess ? e : last);
}

#endif
