/* mma.cuh - the tensor-core and copy instructions that sm_90 and sm_120 share, one function each: cp.async, ldmatrix,
 * mma.sync for bf16, f16 and int8.
 * Not here: wgmma, TMA, clusters, anything that only one of the two has.
 * Fragments (m16n8k16, lane = 4 * g + t with g = 0..7, t = 0..3):
 *   A  a[0] row g, columns 2t..;  a[1] row g + 8;  a[2] row g, columns 2t + 8..;  a[3] row g + 8, columns 2t + 8..
 *   B  b[0] column g, rows 2t..;  b[1] column g, rows 2t + 8..
 *   D  d[0], d[1] row g, columns 2t, 2t + 1;  d[2], d[3] row g + 8
 * Sums are f32 (int32 for int8). Header only, CUDA C++17. SPDX-License-Identifier: MIT */
#ifndef BP_CUDA_MMA_CUH
#define BP_CUDA_MMA_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

namespace bp_cuda
{

/* smem_address - a pointer into shared memory as the instructions below take it. */
__device__ __forceinline__ uint32_t smem_address(const void *p)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/* cp_async_16 - starts the copy of 16 bytes to shared memory; both sides 16-byte aligned. With valid = false nothing is
 * read, and 16 zero bytes are written. */
__device__ __forceinline__ void cp_async_16(void *dst, const void *src, bool valid)
{
    const int n_bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(smem_address(dst)), "l"(src), "r"(n_bytes)
                 : "memory");
}
/* cp_async_commit - closes a group of this thread's copies; cp_async_wait - until at most N groups are under way. */
__device__ __forceinline__ void cp_async_commit()
{
    asm volatile("cp.async.commit_group;\n" ::: "memory");
}
template <int N> __device__ __forceinline__ void cp_async_wait()
{
    asm volatile("cp.async.wait_group %0;\n" ::"n"(N) : "memory");
}

/* ldmatrix_x4 - four 8x8 matrices of 16-bit numbers; lane l gives the address of row l % 8 of matrix l / 8 (16 bytes,
 * aligned). ldmatrix_x4_trans - the same, each matrix transposed. */
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(smem_address(row))
                 : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(smem_address(row))
                 : "memory");
}

/* mma - d += a b, m16n8k16. T: __nv_bfloat16 or __half. */
template <class T>
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <>
__device__ __forceinline__ void mma<__nv_bfloat16>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void mma<__half>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* mma_s8 - d += a b, m16n8k32 of int8: fragments as above with four numbers to a register, so columns 4t.. and
 * 4t + 16.. */
__device__ __forceinline__ void mma_s8(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};\n"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* pack - two numbers, rounded to nearest, as one register: `lo` in the low half. T as above. */
template <class T> __device__ __forceinline__ uint32_t pack(float lo, float hi);
template <> __device__ __forceinline__ uint32_t pack<__nv_bfloat16>(float lo, float hi)
{
    const __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
    return *reinterpret_cast<const uint32_t *>(&v);
}
template <> __device__ __forceinline__ uint32_t pack<__half>(float lo, float hi)
{
    const __half2 v = __floats2half2_rn(lo, hi);
    return *reinterpret_cast<const uint32_t *>(&v);
}

} // namespace bp_cuda
#endif
