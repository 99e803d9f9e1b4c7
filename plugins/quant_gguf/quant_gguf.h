/* quant_gguf.h - what the files of the plugin share. SPDX-License-Identifier: MIT */
#ifndef QUANT_GGUF_H
#define QUANT_GGUF_H

#include "backplane/cuda/blas.h"
#include "backplane/cuda/host.h"
#include "backplane/sdk.h"
#include "call.h"
#include "kernels/launch.h"
#include "plan.h"

#define QG_NAME "quant_gguf"

struct quant_gguf {
    const struct bp_host *host;
    int64_t gemm_from; /* products of so many tokens go through cuBLAS */
};

/* One op instance on one device. */
struct quant_op {
    struct quant_gguf *plugin;
    const struct bp_device *dev;
    struct bp_cuda_staging staging; /* uploads, on first use */
    void *slab;                     /* device memory in which blocks wait to be repacked */
    uint64_t slab_bytes;
    cublasHandle_t blas; /* NULL until the first weight */
};

/* weight.c */
int32_t quant_prepare(void *self, const struct bp_raw *raw, void **out, struct bp_weight_info *info,
                      struct bp_error *err);
void quant_release(void *self, void *weight);
void quant_weights_end(struct quant_op *o);

/* matmul.c */
int32_t quant_matmul(void *self, const struct bp_launch *l, const struct bp_quant_matmul_args *a,
                     struct bp_error *err);
int32_t quant_dequantize(void *self, const struct bp_launch *l,
                         const struct bp_quant_dequantize_args *a, struct bp_error *err);

#endif
