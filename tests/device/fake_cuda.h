/* fake_cuda.h - CUDA's run time and cuBLAS for tests of host code, in the program itself: every call can be made to fail, what
 * is made and ended is counted, and what ends has to be on the device that it was made for. Included by the one file of a test
 * program. Not here: products and what else a test looks into; it defines those functions itself.
 * Threads: one. SPDX-License-Identifier: MIT */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include "backplane/cuda/blas.h"

#include <check.h>
#include <stdlib.h>

/* Device memory is one byte each, unless `real`. */
static struct fake_cuda {
    cudaError_t last;    /* what cudaGetLastError answers */
    cudaError_t failure; /* of call number `fails` */
    int calls, fails;    /* from 1 on; 0: none fails */
    int device, owner;   /* the one that is current; the one that everything is on, -1: any */
    int held;            /* memory, streams, events, handles */
    int real;            /* 1: copies are made */
    int math_mode;
} cuda;

static void cuda_reset(cudaError_t failure, int fails, int owner)
{
    memset(&cuda, 0, sizeof cuda);
    cuda.failure = failure;
    cuda.fails = fails;
    cuda.owner = owner;
}

static cudaError_t cuda_call(void)
{
    if (++cuda.calls != cuda.fails) return cudaSuccess;
    return cuda.last = cuda.failure;
}
static cudaError_t cuda_make(void **out, size_t n_bytes)
{
    const cudaError_t e = cuda_call();
    if (e != cudaSuccess) return e;
    *out = malloc(n_bytes);
    ck_assert_ptr_nonnull(*out);
    cuda.held++;
    return e;
}
static void cuda_place(void)
{
    ck_assert(cuda.owner < 0 || cuda.device == cuda.owner);
}
/* Ends never fail: nobody could do anything about it. */
static cudaError_t cuda_end(void *p)
{
    ck_assert_ptr_nonnull(p);
    cuda_place();
    free(p);
    cuda.held--;
    return cudaSuccess;
}

/* ---- the run time ---- */

cudaError_t cudaGetLastError(void)
{
    const cudaError_t e = cuda.last;
    cuda.last = cudaSuccess;
    return e;
}
const char *cudaGetErrorString(cudaError_t e)
{
    return e == cudaErrorMemoryAllocation ? "out of memory" : "a failure";
}
const char *cudaGetErrorName(cudaError_t e)
{
    (void)e;
    return "cudaErrorOfTheTest";
}
cudaError_t cudaSetDevice(int device)
{
    const cudaError_t e = cuda_call();
    if (e == cudaSuccess) cuda.device = device;
    return e;
}
cudaError_t cudaMalloc(void **out, size_t n_bytes)
{
    (void)n_bytes;
    return cuda_make(out, 1);
}
cudaError_t cudaFree(void *p)
{
    return cuda_end(p);
}
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    *free_bytes = 5;
    *total_bytes = 7;
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    void *p = NULL;
    (void)flags;
    const cudaError_t e = cuda_make(&p, 1);
    *out = p;
    return e;
}
cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    return cuda_end(s);
}
cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    (void)s;
    return cuda_call();
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    void *p = NULL;
    (void)flags;
    const cudaError_t e = cuda_make(&p, 1);
    *out = p;
    return e;
}
cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    return cuda_end(event);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    (void)event;
    return cuda_call();
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t s)
{
    (void)event, (void)s;
    return cuda_call();
}
cudaError_t cudaHostAlloc(void **out, size_t n_bytes, unsigned flags)
{
    (void)flags;
    return cuda_make(out, n_bytes);
}
cudaError_t cudaFreeHost(void *p)
{
    return cuda_end(p);
}
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t n_bytes, enum cudaMemcpyKind kind,
                            cudaStream_t s)
{
    (void)kind, (void)s;
    cuda_place();
    const cudaError_t e = cuda_call();
    if (e == cudaSuccess && cuda.real != 0) memcpy(dst, src, n_bytes);
    return e;
}

/* ---- cuBLAS ---- */

static cublasStatus_t cuda_blas(cublasStatus_t failure)
{
    return cuda_call() == cudaSuccess ? CUBLAS_STATUS_SUCCESS : failure;
}
cublasStatus_t cublasCreate_v2(cublasHandle_t *out)
{
    void *p = NULL;
    const cudaError_t e = cuda_make(&p, 1);
    *out = p;
    return e == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t h)
{
    (void)cuda_end(h);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t h, cublasMath_t mode)
{
    (void)h;
    cuda.math_mode = (int)mode;
    return cuda_blas(CUBLAS_STATUS_NOT_SUPPORTED);
}
const char *cublasGetStatusString(cublasStatus_t s)
{
    (void)s;
    return "a status of the test";
}

#endif
