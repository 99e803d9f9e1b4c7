/* device_cuda.h - what the files of the plugin share: its instances, its name, what it was built for.
 * SPDX-License-Identifier: MIT */
#ifndef DEVICE_CUDA_H
#define DEVICE_CUDA_H

#include <backplane/cuda/blas.h>
#include <backplane/cuda/host.h>
#include <backplane/sdk.h>

#include "kernels/kernels.h"

#define DC_NAME "device_cuda"
/* The CUDA version that it is compiled with is the lowest driver version that it takes; PTX runs on later
 * chips. */
enum { DC_CUDA_VERSION = CUDART_VERSION / 1000 * 1000, DC_MIN_CC = 90 };

struct dc_plugin {
    const struct bp_host *host;
};

/* "bp.device" on one device. Nothing else: CUDA keeps the rest. */
struct dc_device {
    struct dc_plugin *plugin;
    int32_t ordinal;
};
const struct bp_op_base *dc_device_ops(void);

/* "bp.dense" on one device; dev outlives it. */
struct dc_dense {
    struct dc_plugin *plugin;
    const struct bp_device *dev;
    cublasHandle_t blas; /* NULL where no driver stands behind dev: what needs no device can still be asked */
    struct bp_cuda_staging staging;
};
const struct bp_op_base *dc_dense_ops(void);

/* A table that prepare() took. */
struct dc_table {
    unsigned char *data; /* device memory */
    int64_t n_rows, width, row_bytes, skip;
    uint32_t type;
    float scale;
};

/* Calls of dense.c's table. */
int32_t dc_embed(void *self, const struct bp_launch *l, const struct bp_dense_embed_args *a,
                 struct bp_error *err);
int32_t dc_rms(void *self, const struct bp_launch *l, const struct bp_dense_rms_args *a,
               struct bp_error *err);
int32_t dc_layernorm(void *self, const struct bp_launch *l, const struct bp_dense_layernorm_args *a,
                     struct bp_error *err);
int32_t dc_rope(void *self, const struct bp_launch *l, const struct bp_dense_rope_args *a,
                struct bp_error *err);
int32_t dc_silu_mul(void *self, const struct bp_launch *l, const struct bp_dense_pair_args *a,
                    struct bp_error *err);
int32_t dc_add(void *self, const struct bp_launch *l, const struct bp_dense_pair_args *a,
               struct bp_error *err);
int32_t dc_argmax(void *self, const struct bp_launch *l, const struct bp_dense_topk_args *a,
                  struct bp_error *err);
int32_t dc_topk(void *self, const struct bp_launch *l, const struct bp_dense_topk_args *a,
                struct bp_error *err);
int32_t dc_matmul(void *self, const struct bp_launch *l, const struct bp_dense_matmul_args *a,
                  struct bp_error *err);

#endif
