/* silu_mul.cu - device part: y = silu(a) * b, one kernel for all pairs of dtypes, and its launch.
 * All arithmetic is f32, one rounding at the end; an element depends on its own inputs only.
 * Not here: which problems are served (plugin.c). SPDX-License-Identifier: MIT */
#include "silu_mul.h"

#include <backplane/cuda/convert.cuh>
#include <cuda_runtime.h>
#include <math.h>

namespace
{

using bp_cuda::load_any;
using bp_cuda::store_any;

constexpr int THREADS = 256;

/* -inf gives 0 and not -inf / inf, which is NaN. */
__device__ float silu(float v)
{
    return v == -INFINITY ? 0.0f : v / (1.0f + expf(-v));
}

/* Step 5: the kernel. Elements of all rows are dealt out in one line, so that few long rows and many short ones both
 * fill the device. */
__global__ void silu_mul_kernel(silu_mul_rows r)
{
    const int64_t n = r.n_rows * r.width, step = static_cast<int64_t>(gridDim.x) * THREADS;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; i < n; i += step) {
        const int64_t row = i / r.width, at = i % r.width;
        const float a = load_any(r.a, r.a_dtype, row * r.a_stride + at);
        const float b = load_any(r.b, r.b_dtype, row * r.b_stride + at);
        store_any(r.y, r.y_dtype, row * r.y_stride + at, silu(a) * b);
    }
}

} // namespace

/* Step 6: the launch. It takes the error of its own launch out of the run time before it returns, so that nobody else
 * finds it there; it allocates nothing, waits for nothing, and uses the given stream only. */
int32_t silu_mul_launch(const silu_mul_rows *rows, void *stream)
{
    const int64_t n_block = (rows->n_rows * rows->width + THREADS - 1) / THREADS;
    const int64_t most = static_cast<int64_t>(rows->sm_count > 0 ? rows->sm_count : 1) * 8;
    const unsigned grid = static_cast<unsigned>(n_block < most ? n_block : most);
    silu_mul_kernel<<<grid, THREADS, 0, static_cast<cudaStream_t>(stream)>>>(*rows);
    return cudaGetLastError();
}
