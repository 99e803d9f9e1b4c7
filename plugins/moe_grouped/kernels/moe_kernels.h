/* moe_kernels.h - what host code and kernels of moe_grouped say to each other: weights as they lie on the device, one
 * struct per launch, and the launch functions, which return the cudaError_t of their own launch as int32_t.
 * Words: a pair is one (token, chosen expert), number token * n_used + choice; h is silu(gate x) * (up x).
 * Not here: who calls them (run.c), sizes of scratch (plan.h). Threads: one call per op instance.
 * SPDX-License-Identifier: MIT */
#ifndef MOE_KERNELS_H
#define MOE_KERNELS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    MOE_TILE_FEW = 16,   /* tokens of a tile when experts have few */
    MOE_TILE_MANY = 64,  /* and when they have many */
    MOE_MAX_EXPERT = 4096 /* counters and scores lie in shared memory */
};

/* One matrix of each expert. Rows are padded to whole chunks of 32 columns and to 16 bytes, zeros there. Q6_K and Q8_0
 * rows are split into planes (moe_chunk.cuh); all other types lie as in the file. */
struct moe_mat {
    const uint8_t *data;
    int64_t row_bytes, expert_bytes;
    int32_t rows, cols; /* cols: decoded columns of a row, a multiple of 32 */
    uint32_t type;      /* enum bp_gguf_type */
    float scale;
};

/* gate and up have n_ff rows; down has width columns, of which [left, left + n_ff) are n_ff's. */
struct moe_experts {
    struct moe_mat gate, up, down;
    int32_t begin, n; /* experts [begin, begin + n) of the model */
    int32_t n_ff, left, width;
    int32_t n_embd;
};

/* One launch of products. The shared expert is a set of one expert with ids == NULL, n_used == 1. */
struct moe_call {
    struct moe_experts e;
    const void *x;        /* (n_tok, n_embd) */
    int64_t x_stride;
    uint32_t x_dtype;
    int32_t n_tok, n_used;
    const int32_t *ids;   /* (n_tok, n_used), NULL: every token, expert 0 */
    int64_t ids_stride;
    void *h;              /* (pairs, width): f32, bf16 where the tensor cores read it */
    float *part;          /* (pairs, n_col): down of columns [col, col + n_col) */
    int32_t col, n_col;
    int32_t tile_tok;     /* MOE_TILE_... */
    int32_t n_tile;       /* upper bound of tiles */
    int32_t half;         /* 1: h is bf16, products on the tensor cores */
    const int32_t *list;  /* pairs by expert; NULL: pair i is i */
    const int32_t *tiles; /* (n_tile, 4): expert, first in list, count, 0; count 0: nothing. NULL: token tiles */
};

struct moe_sort_call {
    const int32_t *ids;
    int64_t ids_stride;
    int32_t n_tok, n_used, begin, n; /* experts as in moe_experts */
    int32_t tile_tok, n_tile;
    int32_t *list, *tiles;
};

struct moe_sum_call {
    const int32_t *ids;
    const float *gates;
    int64_t ids_stride, gates_stride, y_stride;
    const float *part, *part_shared; /* NULL: none */
    float *y;
    int32_t n_tok, n_used, begin, n;
    int32_t col, n_col, accumulate;
};

struct moe_route_call {
    const float *logits, *bias; /* bias may be NULL */
    int32_t *ids;
    float *weights;
    int64_t logits_stride, ids_stride, weights_stride;
    int32_t n_tok, n_expert, n_used, n_group, n_group_used;
    int32_t softmax, top2, normalize;
    float scale;
};

/* Rows of a file, staged on the device, to rows of a moe_mat, from one block on. */
struct moe_pack_call {
    const uint8_t *src;
    uint8_t *dst;
    int64_t n_rows, src_row, dst_row; /* bytes from row to row */
    int64_t skip, n_block, copy_bytes; /* first byte of a row, blocks of it, bytes of it when they stay as they are */
    uint32_t type;
};

int32_t moe_launch_route(const struct moe_route_call *c, void *stream);
int32_t moe_launch_sort(const struct moe_sort_call *c, void *stream);
int32_t moe_launch_pack(const struct moe_pack_call *c, void *stream);
int32_t moe_launch_sum(const struct moe_sum_call *c, void *stream);
/* Few tokens: a product of one row of x per pair. inner: gate, up and h; outer: down. Either call may be NULL. */
int32_t moe_launch_few_inner(const struct moe_call *routed, const struct moe_call *shared, void *stream);
int32_t moe_launch_few_outer(const struct moe_call *routed, const struct moe_call *shared, void *stream);
/* Many tokens: tiles of rows of x that share an expert. */
int32_t moe_launch_many_inner(const struct moe_call *routed, const struct moe_call *shared, void *stream);
int32_t moe_launch_many_outer(const struct moe_call *routed, const struct moe_call *shared, void *stream);
/* One call of them on the tensor cores, where many_inner and many_outer come when it serves: bf16, and all types that it
 * holds exactly. */
int32_t moe_tile_serves(const struct moe_call *c, int32_t inner);
int32_t moe_launch_tile(const struct moe_call *c, int32_t inner, void *stream);

#ifdef __cplusplus
}
#endif
#endif
