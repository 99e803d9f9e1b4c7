/* blas.h - a cuBLAS handle as an op instance uses it: made once, its work on the call's stream, its memory from
 * the engine's workspace, its errors as ours; and the row-major product that backends want.
 * cublasSetStream gives the handle its default workspace back, so stream and workspace are always set together here:
 * with memory of its own cuBLAS would allocate in a step and could share it between streams.
 * Header only, C11 and C++17; link with LIBS ${BACKPLANE_CUBLAS}. Numeric: sums in f32, never TF32, and parts of a sum
 * that was split are not rounded to 16 bits before they are added; the same call gives the same bits, but a row's bits
 * may depend on the number of rows (determinism RUN).
 * Threads: one call per handle at a time. SPDX-License-Identifier: MIT */
#ifndef BP_CUDA_BLAS_H
#define BP_CUDA_BLAS_H

#include <cublas_v2.h>

#include "backplane/cuda/host.h"

BP_EXTERN_C_BEGIN

/* What an op asks for with workspace(), aligned to 256 bytes; cuBLAS's own advice for sm_90. Products leave anything
 * there and expect nothing, so scratch will do; never memory in which the op keeps something. */
enum { BP_CUDA_BLAS_BYTES = 32 << 20, BP_CUDA_BLAS_ALIGN = 256 };

/* bp_cuda_blas_status - as bp_cuda_status, for cuBLAS. */
static inline int32_t bp_cuda_blas_status(struct bp_error *err, const char *domain, const char *where, cublasStatus_t s,
                                          const char *what)
{
    struct bp_text t;
    if (s == CUBLAS_STATUS_SUCCESS) return BP_OK;
    const cudaError_t e = cudaGetLastError(); /* what lies beneath, when this run time has seen it */
    if (bp_cuda_is_lost(e)) return bp_cuda_status(err, domain, where, e, what);
    const int32_t code =
        bp_error_begin(err, &t, s == CUBLAS_STATUS_ALLOC_FAILED ? BP_E_DEVMEM : BP_E_DEVICE, domain, where);
    bp_text_add(&t, what);
    bp_text_add(&t, ": ");
    bp_text_add(&t, cublasGetStatusString(s));
    bp_text_add(&t, " (cuBLAS status ");
    bp_text_i64(&t, (int64_t)s);
    bp_text_add(&t, ")");
    if (err != NULL) err->native = (int32_t)s;
    return code;
}

/* bp_cuda_blas_create - a handle on the current device; NULL on failure. Not in a step. End it with cublasDestroy. */
static inline int32_t bp_cuda_blas_create(cublasHandle_t *out, struct bp_error *err, const char *domain,
                                          const char *where)
{
    *out = NULL;
    cublasStatus_t s = cublasCreate(out);
    if (s != CUBLAS_STATUS_SUCCESS) {
        *out = NULL;
        return bp_cuda_blas_status(err, domain, where, s, "cuBLAS could not begin");
    }
    const int mode = (int)CUBLAS_DEFAULT_MATH | (int)CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
    s = cublasSetMathMode(*out, (cublasMath_t)mode);
    if (s == CUBLAS_STATUS_SUCCESS) return BP_OK;
    (void)cublasDestroy(*out);
    *out = NULL;
    return bp_cuda_blas_status(err, domain, where, s, "cuBLAS did not take its mode");
}

/* bp_cuda_blas_begin - what follows runs on `stream` in workspace[n_bytes], at BP_CUDA_BLAS_ALIGN. Before the products
 * of every call. */
static inline int32_t bp_cuda_blas_begin(cublasHandle_t h, void *stream, void *workspace, uint64_t n_bytes,
                                         struct bp_error *err, const char *domain, const char *where)
{
    cublasStatus_t s = cublasSetStream(h, (cudaStream_t)stream);
    if (s == CUBLAS_STATUS_SUCCESS) s = cublasSetWorkspace(h, workspace, (size_t)n_bytes);
    return bp_cuda_blas_status(err, domain, where, s, "cuBLAS did not take its stream and workspace");
}

/* bp_cuda_blas_type - cuBLAS's name of a float dtype. */
static inline cudaDataType_t bp_cuda_blas_type(uint32_t dtype)
{
    return dtype == BP_DT_F16 ? CUDA_R_16F : dtype == BP_DT_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

/* A batch of c[i] (m, n) = alpha * a[i] (m, k) * b[i] (n, k)^T + beta * c[i]; rows are contiguous, `row` is the stride
 * from row to row, `batch` from matrix to matrix, in elements. a and b have one dtype; c has it too, or is F32. k is
 * not 0. */
struct bp_cuda_matrix {
    void *data;
    int64_t row, batch;
    uint32_t dtype, reserved;
};
static inline cublasStatus_t bp_cuda_blas_abt(cublasHandle_t h, const struct bp_cuda_matrix *a,
                                              const struct bp_cuda_matrix *b, const struct bp_cuda_matrix *c, int64_t m,
                                              int64_t n, int64_t k, int64_t n_batch, float alpha, float beta)
{
    if (m == 0 || n == 0 || n_batch == 0) return CUBLAS_STATUS_SUCCESS;
    /* cuBLAS counts columns first: its c^T = b * a^T. A row stride below the row only stands where there is one row. */
    const int64_t lda = a->row > k ? a->row : k, ldb = b->row > k ? b->row : k, ldc = c->row > n ? c->row : n;
    if (n_batch == 1)
        return cublasGemmEx_64(h, CUBLAS_OP_T, CUBLAS_OP_N, n, m, k, &alpha, b->data, bp_cuda_blas_type(b->dtype), ldb,
                               a->data, bp_cuda_blas_type(a->dtype), lda, &beta, c->data, bp_cuda_blas_type(c->dtype),
                               ldc, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    return cublasGemmStridedBatchedEx_64(h, CUBLAS_OP_T, CUBLAS_OP_N, n, m, k, &alpha, b->data,
                                         bp_cuda_blas_type(b->dtype), ldb, b->batch, a->data,
                                         bp_cuda_blas_type(a->dtype), lda, a->batch, &beta, c->data,
                                         bp_cuda_blas_type(c->dtype), ldc, c->batch, n_batch, CUBLAS_COMPUTE_32F,
                                         CUBLAS_GEMM_DEFAULT);
}

BP_EXTERN_C_END
#endif
