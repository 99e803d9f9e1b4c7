/* moe_pack.cu - rows as the file has them, staged on the device, to rows as the kernels read them: blocks cut to this
 * rank's, padded with zeros, Q6_K and Q8_0 split into planes (moe_chunk.cuh). Bytes move, values do not change.
 * SPDX-License-Identifier: MIT */
#include "moe_kernels.h"

#include <cuda_runtime.h>

#include "moe_chunk.cuh"

namespace
{

constexpr int THREADS = 256;

__global__ void __launch_bounds__(THREADS) pack_kernel(moe_pack_call c)
{
    const int64_t n = c.n_rows * c.dst_row, step = static_cast<int64_t>(gridDim.x) * THREADS;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; i < n; i += step) {
        const int64_t row = i / c.dst_row, from = moe::source_of(c.type, c.n_block, c.copy_bytes, i % c.dst_row);
        c.dst[i] = from >= 0 ? c.src[row * c.src_row + c.skip + from] : 0;
    }
}

} // namespace

int32_t moe_launch_pack(const moe_pack_call *c, void *stream)
{
    const int64_t n_block = (c->n_rows * c->dst_row + THREADS - 1) / THREADS;
    const unsigned grid = static_cast<unsigned>(n_block < 4096 ? n_block : 4096);
    pack_kernel<<<grid, THREADS, 0, static_cast<cudaStream_t>(stream)>>>(*c);
    return static_cast<int32_t>(cudaGetLastError());
}
