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

/* Starts the copy of 16 bytes to shared memory, past the first cache: weights are read once and shall not push x out
 * of it. */
__device__ __forceinline__ void copy16(void *to, const void *from)
{
    const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}
/* Closes a group of copies; waits until at most N groups are under way. */
__device__ __forceinline__ void close_copies()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N> __device__ __forceinline__ void await_copies()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
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
/* Byte n of w with its sign. __byte_perm() ignores what makes the instruction spread a sign. */
__device__ __forceinline__ int signed_byte_of(uint32_t w, int n)
{
    int v;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(v) : "r"(w), "r"(0x8880u | static_cast<uint32_t>(n) * 0x1111u));
    return v;
}
/* (w & mask) ^ x, one instruction. */
template <uint32_t MASK> __device__ __forceinline__ uint32_t and_xor(uint32_t w, uint32_t x)
{
    uint32_t v;
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(v) : "r"(w), "n"(MASK), "r"(x));
    return v;
}
/* __byte_perm for a choice whose four lowest digits are below 8: it would make sure of that. */
__device__ __forceinline__ uint32_t choose_bytes(uint32_t a, uint32_t b, uint32_t choice)
{
    uint32_t v;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(v) : "r"(a), "r"(b), "r"(choice));
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
