/* planes_device.cuh - the instructions that planes.cuh is made of. A test replaces them to look at the layout on the host.
 * SPDX-License-Identifier: MIT */
#ifndef QUANT_GGUF_PLANES_DEVICE_CUH
#define QUANT_GGUF_PLANES_DEVICE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include "backplane/cuda/block.cuh"

namespace planes
{

/* Weights are read once: they shall not push x out of the first cache. */
__device__ __forceinline__ uint4 load_stream(const void *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
__device__ __forceinline__ uint2 load_stream8(const void *p)
{
    uint2 v;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
                 : "=r"(v.x), "=r"(v.y)
                 : "l"(p));
    return v;
}
__device__ __forceinline__ uint32_t load_stream4(const void *p)
{
    uint32_t v;
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}
__device__ __forceinline__ uint32_t load_stream2(const void *p)
{
    uint16_t v;
    asm volatile("ld.global.nc.L1::no_allocate.u16 %0, [%1];" : "=h"(v) : "l"(p));
    return v;
}
/* A constant in a register, out of the assembler's sight, which would put it into instructions and other constants of those
 * into registers, each time. All lanes take part. */
__device__ __forceinline__ uint32_t opaque(uint32_t v)
{
    return __shfl_sync(0xffffffffu, v, 0);
}
/* (w & mask) | or_, one instruction. */
template <uint32_t MASK> __device__ __forceinline__ uint32_t and_or(uint32_t w, uint32_t or_)
{
    uint32_t v;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(v) : "r"(w), "n"(MASK), "r"(or_));
    return v;
}
__device__ __forceinline__ uint32_t sub_bf16x2(uint32_t a, uint32_t b)
{
    uint32_t v;
    asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(v) : "r"(a), "r"(b));
    return v;
}
} // namespace planes
#endif
