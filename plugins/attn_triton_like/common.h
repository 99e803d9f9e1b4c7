/* common.h - what the two files of bp.mla.common share. SPDX-License-Identifier: MIT */
#ifndef ATTN_COMMON_H
#define ATTN_COMMON_H

#include <backplane/cuda/blas.h>

#include "attn.h"

struct attn_common {
    cublasHandle_t blas; /* NULL until the first weights: what needs no device can be asked without one */
    struct bp_cuda_staging staging;
    uint32_t weight_dtype; /* what up-projections are kept in: the activations' dtype of the problem last sized, f32 before
                            * that; products take weights of another dtype as well, only slower */
    uint32_t reserved;
};

/* Heads of this rank: per head P key rows and then V value rows, each over the C latents; the one orientation serves all
 * three products. */
struct attn_weights {
    int64_t n_head, nope_dim, v_dim, kv_rank;
    uint32_t dtype, reserved;
    void *rows; /* device: [n_head][P + V][C] */
};

int32_t attn_prepare(void *self, const struct bp_mla_weights *w, void **out, struct bp_weight_info *info,
                     struct bp_error *err);
void attn_release(void *self, void *weights);
int32_t attn_expand(void *self, const struct bp_launch *l, const struct bp_mla_expand_args *a, struct bp_error *err);
int32_t attn_absorb(void *self, const struct bp_launch *l, const struct bp_mla_absorb_args *a, struct bp_error *err);

#endif
