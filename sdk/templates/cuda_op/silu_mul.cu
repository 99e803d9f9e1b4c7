/* silu_mul.cu - device part: y = silu(a) * b, one kernel for all pairs of dtypes; its launch and the mapping of errors.
 * All arithmetic is f32, one rounding at the end; an element depends on its own inputs only.
 * Not here: which problems are served (plugin.c). SPDX-License-Identifier: MIT */
#include "silu_mul.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>

namespace
{

constexpr int THREADS = 256;

__device__ float load(const void *p, uint32_t dtype, int64_t at)
{
    if (dtype == BP_DT_F32) return static_cast<const float *>(p)[at];
    if (dtype == BP_DT_F16) return __half2float(static_cast<const __half *>(p)[at]);
    return __bfloat162float(static_cast<const __nv_bfloat16 *>(p)[at]);
}

__device__ void store(void *p, uint32_t dtype, int64_t at, float v)
{
    if (dtype == BP_DT_F32)
        static_cast<float *>(p)[at] = v;
    else if (dtype == BP_DT_F16)
        static_cast<__half *>(p)[at] = __float2half_rn(v);
    else
        static_cast<__nv_bfloat16 *>(p)[at] = __float2bfloat16_rn(v);
}

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
        const float a = load(r.a, r.a_dtype, row * r.a_stride + at);
        const float b = load(r.b, r.b_dtype, row * r.b_stride + at);
        store(r.y, r.y_dtype, row * r.y_stride + at, silu(a) * b);
    }
}

/* After these nothing works on the device until the process ends: the engine must stop calling. */
bool is_lost(cudaError_t e)
{
    switch (e) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorLaunchFailure:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorECCUncorrectable:
    case cudaErrorDevicesUnavailable:
        return true;
    default:
        return false;
    }
}

} // namespace

/* Step 6: the launch. It takes the error of its own launch out of the run time before it returns, so that nobody else
 * finds it there; it allocates nothing, waits for nothing, and uses the given stream only. */
int32_t silu_mul_launch(const silu_mul_rows *rows, void *stream, int32_t *native, const char **text)
{
    const int64_t n_block = (rows->n_rows * rows->width + THREADS - 1) / THREADS;
    const int64_t most = static_cast<int64_t>(rows->sm_count > 0 ? rows->sm_count : 1) * 8;
    const unsigned grid = static_cast<unsigned>(n_block < most ? n_block : most);
    silu_mul_kernel<<<grid, THREADS, 0, static_cast<cudaStream_t>(stream)>>>(*rows);
    const cudaError_t e = cudaGetLastError();
    *native = static_cast<int32_t>(e);
    *text = e == cudaSuccess ? "" : cudaGetErrorString(e);
    if (e == cudaSuccess) return BP_OK;
    return is_lost(e) ? BP_E_DEVICE_LOST : BP_E_DEVICE;
}
