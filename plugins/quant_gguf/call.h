/* call.h - what a call says, looked at before anything goes to the device: no device, no CUDA.
 * SPDX-License-Identifier: MIT */
#ifndef QUANT_GGUF_CALL_H
#define QUANT_GGUF_CALL_H

#include "backplane/sdk.h"
#include "kernels/launch.h"

/* BP_OK, or BP_E_ARG with a sentence: ports, dtypes and shapes that the kernels rely on. Handles are this
 * plugin's. */
int32_t call_check_matmul(const struct bp_quant_matmul_args *a, struct bp_error *err);
int32_t call_check_dequantize(const struct bp_quant_dequantize_args *a, struct bp_error *err);

/* Weights that one launch may read: bit `first` and those after it, not in `done`, that lie like it and whose
 * outputs have its dtype. Never one handle twice: blocks of a launch that share a strip count in the weight's own
 * counters. */
uint32_t call_together(const struct qg_weight *const *w, const struct bp_tensor *y, uint32_t n_w, uint32_t first,
                       uint32_t done);
/* May silu_mul of these two be one launch? */
int call_joins(const struct qg_weight *const *w);

#endif
