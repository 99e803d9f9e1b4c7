/* kernels.h - what the host part (C11) and the kernels (CUDA) of the plugin say to each other: one launch function
 * per op. Every one puts one kernel on `stream`, allocates and waits for nothing, and returns the cudaError_t of
 * the launch (0 good), which it takes out of the run time. Rows are contiguous; strides count elements. `wide` 1:
 * every row of every operand starts at a multiple of so many elements and the width is one, so memory is moved so
 * many at a time: four in norms, 16 bytes of a and b in pairs (four of f32, eight of 16 bits), four pairs in rope;
 * else one element at a time.
 * SPDX-License-Identifier: MIT */
#ifndef DEVICE_CUDA_KERNELS_H
#define DEVICE_CUDA_KERNELS_H

#include <backplane/types.h>

BP_EXTERN_C_BEGIN

/* Rows of one operand; data NULL: not given. */
struct dc_rows {
    void *data;
    int64_t stride;
    uint32_t dtype, reserved;
};

struct dc_norm {
    struct dc_rows x, add, y;
    const float *w, *b;
    int64_t n_rows, width;
    float eps;
    uint32_t wide;
};
int32_t dc_start_rms(const struct dc_norm *a, void *stream);
int32_t dc_start_layernorm(const struct dc_norm *a, void *stream);

struct dc_rope_args {
    const void *x;
    void *y;
    const int32_t *positions;
    const float *cos_table, *sin_table;
    int64_t x_row, x_head, y_row, y_head, position_stride, cos_stride, sin_stride;
    int64_t n_rows, n_heads, half, n_pos;
    uint32_t x_dtype, y_dtype, style, wide;
};
int32_t dc_start_rope(const struct dc_rope_args *a, void *stream);

struct dc_pair {
    struct dc_rows a, b, y;
    int64_t n_rows, width;
    uint32_t silu, wide; /* silu 1: y = silu(a) * b, 0: y = a + b; wide: a and b have one dtype, too */
};
int32_t dc_start_pair(const struct dc_pair *a, void *stream);

struct dc_embed_args {
    const unsigned char *table;
    const int32_t *ids;
    struct dc_rows y;
    int64_t id_stride, row_bytes, n_rows, n_vocab, width, skip; /* skip: elements before the first of a stored row */
    float scale;
    uint32_t type;
};
int32_t dc_start_embed(const struct dc_embed_args *a, void *stream);

/* Most that topk serves and keeps in shared memory, and the parts that one row of argmax is cut into at most. */
enum { DC_MAX_K = 8192, DC_MAX_PARTS = 32 };
struct dc_pick {
    const float *x;
    float *values; /* may be NULL */
    int32_t *ids;
    int64_t x_stride, value_stride, id_stride, n_rows, width, k;
    uint64_t *best;    /* argmax: n_rows * DC_MAX_PARTS choices, scratch */
    uint32_t *arrived; /* argmax: n_rows counters, zero before and after */
};
int32_t dc_start_argmax(const struct dc_pick *a, void *stream);
int32_t dc_start_topk(const struct dc_pick *a, void *stream);

/* Whether the device runs this plugin's kernels at all: a cudaError_t. */
int32_t dc_probe(void);

BP_EXTERN_C_END
#endif
