/* moe_decode.cuh - 32 weights of any type, in column order; for types without a reader of their own (moe_chunk.cuh) and
 * for experts whose gate and up have different types. Not fast.
 * SPDX-License-Identifier: MIT */
#ifndef MOE_DECODE_CUH
#define MOE_DECODE_CUH

#include "backplane/cuda/block.cuh"
#include "moe_chunk.cuh"

namespace moe
{

/* Columns [32 chunk, 32 chunk + 32) of a row that lies in planes: one run each of two chunks, or both of one. */
template <uint32_t TYPE> __device__ void decode_planes(const uint8_t *row, int cols, int chunk, float *out)
{
    for (int half = 0; half < 2; ++half) {
        const int col = chunk * 32 + half * 16;
        const int reach = Chunk<TYPE>::column(0, 1); /* from the first to the second run of a chunk */
        const int run = col / reach % 2, first = TYPE == BP_GGUF_Q8_0 ? chunk : col / (2 * reach) * 4 + col % reach / 16;
        Chunk<TYPE> c;
        Runs r;
        c.load(row, cols, first);
        c.unpack(first, r);
#pragma unroll
        for (int i = 0; i < 16; ++i)
            out[half * 16 + i] = run == 0 ? __fmul_rn(r.d[0], r.q[i]) : __fmul_rn(r.d[1], r.q[16 + i]);
    }
}

template <uint32_t TYPE> __device__ void decode_blocks(const uint8_t *row, int chunk, float *out)
{
#pragma unroll 1
    for (int i = 0; i < 32; i += 8) bp::block<TYPE>::row_at8(row, static_cast<int64_t>(chunk) * 32 + i, out + i);
}

/* The exact values, without the tensor's scale. One copy per file: the types together are much code. */
static __device__ __noinline__ void decode32(uint32_t type, const uint8_t *row, int cols, int chunk, float *out)
{
    if (type == BP_GGUF_Q6_K) return decode_planes<BP_GGUF_Q6_K>(row, cols, chunk, out);
    if (type == BP_GGUF_Q8_0) return decode_planes<BP_GGUF_Q8_0>(row, cols, chunk, out);
#define MOE_DECODE(TYPE) decode_blocks<TYPE>(row, chunk, out)
    BP_BLOCK_SWITCH(type, MOE_DECODE)
#undef MOE_DECODE
}

} // namespace moe
#endif
