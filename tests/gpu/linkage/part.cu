/* part.cu - one of the two libraries: the same source is linked twice, each time with a static CUDA run time of its own.
 * Not here: what is done with them (main.cpp). SPDX-License-Identifier: MIT */
#include "part.h"

#include <cublas_v2.h>
#include <cuda_runtime.h>

namespace
{

cudaStream_t stream_of(void *s)
{
    return static_cast<cudaStream_t>(s);
}

__global__ void scale_add_kernel(float *x, int n, float factor, float add)
{
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) x[i] = factor * x[i] + add;
}

__global__ void big_smem_kernel(float *x, int n)
{
    extern __shared__ float room[];
    const int last = 99 * 1024 / 4 - 1;
    for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) {
        room[last - static_cast<int>(threadIdx.x)] = x[i] + 1.0f;
        x[i] = room[last - static_cast<int>(threadIdx.x)];
    }
}

int use(int device)
{
    return cudaSetDevice(device);
}
int context(void **out)
{
    void *fn = nullptr;
    cudaDriverEntryPointQueryResult found;
    const cudaError_t e =
        cudaGetDriverEntryPointByVersion("cuCtxGetCurrent", &fn, 12000, cudaEnableDefault, &found);
    if (e != cudaSuccess) return e;
    if (found != cudaDriverEntryPointSuccess) return cudaErrorNotSupported;
    return reinterpret_cast<int (*)(void **)>(fn)(out);
}
int alloc(void **out, uint64_t n_bytes)
{
    return cudaMalloc(out, n_bytes);
}
int release(void *p)
{
    return cudaFree(p);
}
int stream(void **out)
{
    return cudaStreamCreateWithFlags(reinterpret_cast<cudaStream_t *>(out), cudaStreamNonBlocking);
}
int event(void **out)
{
    return cudaEventCreate(reinterpret_cast<cudaEvent_t *>(out));
}
int record(void *ev, void *s)
{
    return cudaEventRecord(static_cast<cudaEvent_t>(ev), stream_of(s));
}
int wait(void *ev, void *s)
{
    return cudaStreamWaitEvent(stream_of(s), static_cast<cudaEvent_t>(ev), 0);
}
int sync(void *s)
{
    return cudaStreamSynchronize(stream_of(s));
}
int to_device(void *dst, const void *src, uint64_t n_bytes, void *s)
{
    return cudaMemcpyAsync(dst, src, n_bytes, cudaMemcpyHostToDevice, stream_of(s));
}
int to_host(void *dst, const void *src, uint64_t n_bytes, void *s)
{
    return cudaMemcpyAsync(dst, src, n_bytes, cudaMemcpyDeviceToHost, stream_of(s));
}
int scale_add(float *x, int n, float factor, float add, void *s)
{
    scale_add_kernel<<<(n + 255) / 256, 256, 0, stream_of(s)>>>(x, n, factor, add);
    return cudaGetLastError();
}
int big_smem(float *x, int n, void *s)
{
    const cudaError_t e = cudaFuncSetAttribute(
        big_smem_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 99 * 1024);
    if (e != cudaSuccess) return e;
    big_smem_kernel<<<1, 256, 99 * 1024, stream_of(s)>>>(x, n);
    return cudaGetLastError();
}
int bad_launch(void *s)
{
    scale_add_kernel<<<1, 2048, 0, stream_of(s)>>>(nullptr, 0, 0, 0);
    return cudaPeekAtLastError();
}
int last_error(void)
{
    return cudaGetLastError();
}
int blas_begin(void **handle)
{
    const cublasStatus_t rc = cublasCreate(reinterpret_cast<cublasHandle_t *>(handle));
    return rc == CUBLAS_STATUS_SUCCESS ? 0 : 10000 + rc;
}
/* cublasSetStream takes the workspace away again, so it comes first. */
int blas_mul(void *handle, void *workspace, uint64_t n_bytes, const float *a, const float *b,
             float *c, int n, void *s)
{
    const float one = 1, zero = 0;
    const cublasHandle_t h = static_cast<cublasHandle_t>(handle);
    cublasStatus_t rc = cublasSetStream(h, stream_of(s));
    if (rc == CUBLAS_STATUS_SUCCESS) rc = cublasSetWorkspace(h, workspace, n_bytes);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = cublasGemmEx(h, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, a, CUDA_R_32F, n, b,
                          CUDA_R_32F, n, &zero, c, CUDA_R_32F, n, CUBLAS_COMPUTE_32F,
                          CUBLAS_GEMM_DEFAULT);
    return rc == CUBLAS_STATUS_SUCCESS ? 0 : 10000 + rc;
}
int capture_begin(void *s)
{
    return cudaStreamBeginCapture(stream_of(s), cudaStreamCaptureModeThreadLocal);
}
int capture_end(void *s, void **graph)
{
    cudaGraph_t g = nullptr;
    cudaError_t e = cudaStreamEndCapture(stream_of(s), &g);
    if (e != cudaSuccess) return e;
    e = cudaGraphInstantiate(reinterpret_cast<cudaGraphExec_t *>(graph), g, 0);
    (void)cudaGraphDestroy(g);
    return e;
}
int replay(void *graph, void *s)
{
    return cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), stream_of(s));
}

const part functions = {use,        context,   alloc,         release,     stream,
                        event,      record,    wait,          sync,        to_device,
                        to_host,    scale_add, big_smem,      bad_launch,  last_error,
                        blas_begin, blas_mul,  capture_begin, capture_end, replay};

} // namespace

extern "C" __attribute__((visibility("default"))) const part *linkage_part()
{
    return &functions;
}
