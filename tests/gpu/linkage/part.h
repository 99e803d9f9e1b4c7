/* part.h - what each of the two libraries of the linkage test can do; each has a CUDA run time of its own.
 * A function returns 0 or the cudaError_t (10000 + cublasStatus_t) that stopped it. SPDX-License-Identifier: MIT */
#ifndef LINKAGE_PART_H
#define LINKAGE_PART_H

#include <stdint.h>

struct part {
    int (*use)(int device);
    int (*context)(void **out); /* the driver's current context of this thread, as this run time sees it */
    int (*alloc)(void **out, uint64_t n_bytes);
    int (*release)(void *p);
    int (*stream)(void **out);
    int (*event)(void **out);
    int (*record)(void *event, void *stream);
    int (*wait)(void *event, void *stream);
    int (*sync)(void *stream);
    int (*to_device)(void *dst, const void *src, uint64_t n_bytes, void *stream);
    int (*to_host)(void *dst, const void *src, uint64_t n_bytes, void *stream);
    int (*scale_add)(float *x, int n, float factor, float add, void *stream); /* x = factor x + add */
    int (*big_smem)(float *x, int n, void *stream); /* x += 1 through 99 KiB of shared memory */
    int (*bad_launch)(void *stream);                /* must fail */
    int (*last_error)(void);
    int (*blas_begin)(void **handle);
    int (*blas_mul)(void *handle, void *workspace, uint64_t n_bytes, const float *a, const float *b, float *c, int n,
                    void *stream); /* n x n */
    int (*capture_begin)(void *stream);
    int (*capture_end)(void *stream, void **graph);
    int (*replay)(void *graph, void *stream);
};

#endif
