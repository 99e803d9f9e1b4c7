/* silu_mul.h - what the host part (C11) and the device part (CUDA) of the plugin say to each other.
 * SPDX-License-Identifier: MIT */
#ifndef SILU_MUL_H
#define SILU_MUL_H

#include <backplane/types.h>

BP_EXTERN_C_BEGIN

/* y = silu(a) * b over rows of `width`, put on `stream` (a cudaStream_t). Strides count elements from row to row; dtypes
 * are F32, F16 or BF16. Returns the cudaError_t of the launch. */
struct silu_mul_rows {
    const void *a, *b;
    void *y;
    int64_t a_stride, b_stride, y_stride, n_rows, width;
    uint32_t a_dtype, b_dtype, y_dtype, sm_count;
};
int32_t silu_mul_launch(const struct silu_mul_rows *rows, void *stream);

BP_EXTERN_C_END
#endif
