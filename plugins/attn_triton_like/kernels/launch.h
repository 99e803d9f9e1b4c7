/* launch.h - what the host part (C11) of attn_triton_like says to its kernels (CUDA C++17): one struct of arguments and
 * one launch function per kernel.
 * All memory is the device's. Strides count elements; rows of tensors have innermost stride 1. Launches put work on the
 * given stream (a cudaStream_t) and return the cudaError_t of the launch; they allocate nothing and wait for nothing.
 * Counts of 0 are legal and start nothing. SPDX-License-Identifier: MIT */
#ifndef ATTN_LAUNCH_H
#define ATTN_LAUNCH_H

#include <backplane/types.h>

BP_EXTERN_C_BEGIN

enum {
    ATTN_MAX_SPLITS = 256,  /* of one decode row */
    ATTN_MAX_WIDTH = 2048,  /* numbers of a cached row */
    ATTN_MAX_HEAD = 376,    /* numbers of an expanded key or value */
    ATTN_MAX_INDEX = 320,   /* numbers of an index key */
    ATTN_MAX_INDEX_HEADS = 2048,
    ATTN_HEAD_BLOCK = 16,   /* heads of one item of decode work */
    ATTN_KEY_STEP = 64      /* parts of a row's keys begin at multiples of this */
};

/* A tensor of rows (row) or of rows and heads (row, head). */
struct attn_rows {
    void *data;
    int64_t row, head; /* strides */
    uint32_t dtype, reserved;
};

/* A cache pool: rows of `width` numbers, block_tok of them in a block, blocks block_bytes apart. */
struct attn_pool {
    unsigned char *data;
    int64_t block_bytes, row_bytes;
    uint32_t width, block_tok, dtype, reserved;
};

/* ---- cache.cu ---- */

struct attn_cache_write {
    struct attn_rows kv;
    struct attn_pool pool;
    const float *norm_w, *cos, *sin; /* tables: rope / 2 numbers a position, table_row apart */
    const int32_t *positions, *slot_map;
    int64_t cos_row, sin_row, n_position; /* n_position: rows of the tables; a position beyond them is rotated to NaN */
    uint32_t n_tok, n_latent, n_rope;
    float eps;
};
int32_t attn_start_cache_write(const struct attn_cache_write *a, void *stream);

struct attn_key_write {
    struct attn_rows k;
    struct attn_pool pool;
    const float *norm_w, *norm_b, *cos, *sin;
    const int32_t *positions, *slot_map;
    int64_t cos_row, sin_row, n_position;
    uint32_t n_tok, n_rope, half_style; /* half_style: pairs are (i, i + n_rope / 2), else (2i, 2i + 1) */
    float eps;
};
int32_t attn_start_key_write(const struct attn_key_write *a, void *stream);

struct attn_gather {
    struct attn_rows c, k_pe;
    struct attn_pool pool;
    const int32_t *block_table, *seq, *cu_k, *kv_begin;
    int64_t table_stride;
    uint32_t n_seg, n_k, n_latent, n_rope;
};
int32_t attn_start_gather(const struct attn_gather *a, void *stream);

/* k[:, h, first..first + n_rope) = k_pe for every head. */
struct attn_spread {
    struct attn_rows k_pe, k;
    uint32_t n_row, n_head, first, n_rope;
};
int32_t attn_start_spread(const struct attn_spread *a, void *stream);

struct attn_merge {
    struct attn_rows out, other, lse, other_lse;
    uint32_t n_row, n_head, width, reserved;
};
int32_t attn_start_merge(const struct attn_merge *a, void *stream);

/* ---- product.cu ---- */

/* y[n, h, :] = W[h] x[n, h, :], W[h] (n_out, n_in) with rows ld apart; transposed: W[h] is (n_in, n_out). */
struct attn_product {
    const void *w;
    int64_t w_head, ld; /* elements from head to head, from row to row */
    struct attn_rows x, y;
    uint32_t n_row, n_head, n_in, n_out, transposed, w_dtype;
};
int32_t attn_start_product(const struct attn_product *a, void *stream);

/* Decodes n numbers of a tensor, the first of them number `at`, into rows of dst: number i lies in row i / row_len, at
 * i % row_len, counted from `at`. Heads of head_rows rows each go head_out elements apart; transposed: number (r, c) of a
 * head lands at [c][r]. ld: elements from row to row of dst. `src` holds the bytes of number `at` first. */
struct attn_decode_weights {
    const void *src;
    void *dst;
    uint64_t n;
    int64_t row_len, head_rows, head_out, ld;
    uint32_t type, dst_dtype, transposed;
    float scale;
};
int32_t attn_start_decode_weights(const struct attn_decode_weights *a, void *stream);
/* Can it decode this enum bp_gguf_type? Elements and bytes of a block; 0 when not. */
uint32_t attn_type_block(uint32_t type, uint32_t *n_bytes);

/* ---- decode ---- */

/* One piece of work of a decode step, as plan.c lists them: one of a row's n_split parts, for all heads. part: its number
 * among all parts of rows that are cut, -1 for a row that is not. */
struct attn_item {
    int32_t row, split, n_split, part;
};
/* What lies in plan memory, in this order: the header, first_part and n_split of every row (plan.h), the items. */
struct attn_plan_head {
    uint32_t n_item, n_row, n_part, reserved;
};

struct attn_decode {
    struct attn_rows q, out, lse; /* lse.data NULL: not wanted */
    struct attn_rows idx;         /* data NULL: dense; lists of token slots */
    const int32_t *idx_len;
    int64_t idx_len_stride;
    struct attn_pool pool;
    const int32_t *block_table, *row_seq, *row_kv_len;
    int64_t table_stride;
    const struct attn_plan_head *plan;
    const int32_t *first_part;    /* (n_row): number of a row's first part among all parts; -1: the row is not cut */
    const int32_t *n_split;       /* (n_row) */
    const struct attn_item *items;
    float *part_out, *part_lse;   /* (parts, n_head, C rounded up to 4), (parts, n_head) */
    uint32_t n_row, n_head, n_latent, n_item; /* n_item: at least the items of the plan */
    float scale;
    uint32_t most_smem; /* bytes of shared memory that a block may have on this device */
};
int32_t attn_start_decode_fma(const struct attn_decode *a, void *stream);
/* Needs q, out and pool of one 16-bit dtype, 512 latents, 64 rotated numbers; rows of q and out 4-byte, of the pool 16-byte
 * aligned. */
int32_t attn_start_decode_mma(const struct attn_decode *a, void *stream);
int32_t attn_start_combine(const struct attn_decode *a, void *stream);

/* ---- prefill ---- */

struct attn_prefill {
    struct attn_rows q, k, v, out, lse; /* lse.data NULL: not wanted */
    const int32_t *cu_q, *cu_k;
    uint32_t n_seg, n_head, max_q, qk_dim, v_dim, causal;
    float scale;
    uint32_t reserved;
};
int32_t attn_start_prefill_fma(const struct attn_prefill *a, void *stream);
/* Needs q, k, v, out of one 16-bit dtype, rows 16-byte aligned, (qk_dim, v_dim) one of attn_prefill_mma_serves. */
int32_t attn_start_prefill_mma(const struct attn_prefill *a, void *stream);
int32_t attn_prefill_mma_serves(uint32_t qk_dim, uint32_t v_dim);

/* ---- index ---- */

struct attn_select {
    struct attn_rows q, w, idx, scores; /* scores: row r of the call lies at (r - first_row) * scores.row */
    int32_t *idx_len;
    int64_t idx_len_stride, n_idx, n_scores; /* columns of idx; of scores, when all are wanted, else 0 */
    struct attn_pool pool;
    const int32_t *block_table, *row_seq, *row_kv_len;
    int64_t table_stride;
    uint32_t first_row, n_row, n_head, width, top_k, max_kv;
    float scale;
    uint32_t reserved;
};
int32_t attn_start_scores(const struct attn_select *a, void *stream);
/* Needs q and pool of one 16-bit dtype, keys of 128 numbers, rows of q and pool 16-byte aligned. */
int32_t attn_start_scores_mma(const struct attn_select *a, void *stream);
int32_t attn_start_topk(const struct attn_select *a, void *stream);

BP_EXTERN_C_END
#endif
