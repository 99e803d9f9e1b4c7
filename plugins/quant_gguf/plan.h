/* plan.h - sizes and choices, as plain functions of shapes: no device, no CUDA. SPDX-License-Identifier: MIT */
#ifndef QUANT_GGUF_PLAN_H
#define QUANT_GGUF_PLAN_H

#include "backplane/sdk.h"
#include "kernels/launch.h"

enum {
    PLAN_STRIP = QG_STRIP,     /* rows of a strip */
    PLAN_WARPS = QG_WARPS,     /* warps of a block, for several tokens */
    PLAN_TOK = QG_MAX_TOK,     /* tokens of one pass over a weight */
    PLAN_PARTS = QG_MAX_COL / QG_MAX_TOK, /* most bf16 columns of a token: f32 is three */
    PLAN_X_PAD = QG_X_PAD,     /* staged rows of x are whole steps of every type */
    PLAN_BLOCKS = 1024,        /* most blocks that run at once */
    PLAN_SHARING = 4,          /* steps of a warp that sharing a unit between blocks costs */
    PLAN_SLAB_ROWS = 4096,     /* rows of a weight that are decoded at once for cuBLAS; half of it in f32 */
    PLAN_BLAS_BYTES = 32 << 20 /* its workspace */
};

/* How a weight lies in device memory. */
struct plan_weight {
    int64_t rows, cols;    /* owned */
    int64_t first_block;   /* of a row of the file */
    int64_t skip, cover;   /* columns before the first owned one; columns stored */
    int64_t n_steps;       /* of a strip; 0 where blocks stay rows */
    int64_t pitch;         /* bytes of a strip of planes, else of a row */
    int64_t row_bytes;     /* of the stored blocks of a row, as the file has them */
    int64_t file_pitch;    /* bytes of a whole row of the file */
    uint64_t data_bytes;   /* planes or rows */
    uint64_t n_bytes;      /* with the counters behind them */
    uint64_t counters_at;
};
/* One matrix or a part of it, of a type with blocks of elems columns in block_bytes. step_cols, step_bytes: of planes;
 * step_bytes 0: rows padded to whole steps and strips; both 0: rows of blocks. NULL, or what is wrong with raw: one clause
 * without its numbers. */
const char *plan_weight(const struct bp_raw *raw, int64_t elems, int64_t block_bytes, int64_t step_cols,
                        int64_t step_bytes, struct plan_weight *out);

/* How a line of steps is shared out (kernels/line.cuh). whole 1: a block has whole units. */
struct plan_cut {
    uint32_t blocks, whole;
};
/* For n_unit units of unit_strips strips (two with silu_mul) of n_steps each, all weights together: as many blocks of n_warp
 * warps as run at once, per_sm on each of n_sm multiprocessors; fewer where a warp would have no step, more where it would
 * have more than those of two strips. */
struct plan_cut plan_gemv(int64_t n_unit, int64_t unit_strips, int64_t n_steps, uint32_t n_sm, uint32_t per_sm,
                          uint32_t n_warp);

/* bf16 columns of a token of x: what is exact; after a norm of 16-bit numbers, 16 bits. */
uint32_t plan_parts(uint32_t x_dtype, int norm);

/* Memory of a product. */
struct plan_need {
    uint64_t n_tok;
    int64_t cols, rows; /* the largest of the weights */
    uint32_t x_dtype;
    uint32_t gemm; /* 1: also through cuBLAS */
};
struct plan_scratch {
    void *stage;   /* x for one pass: PLAN_TOK tokens */
    float *partial;
    float *pair;   /* two products in f32, of one pass */
    void *norm;    /* x after its norm, for cuBLAS; (n_tok, cols) of x_dtype */
    void *slab;    /* decoded rows */
    float *sums[2]; /* (n_tok, slab rows) */
    void *blas;
};
/* Counts over bp_area_count, lays out over bp_area_of. Monotone in every field. */
void plan_scratch(struct bp_area *a, const struct plan_need *need, struct plan_scratch *out);

/* Elements from row to row of decoded rows; rows of one slab. */
int64_t plan_slab_ld(int64_t cols);
int64_t plan_slab_rows(uint32_t x_dtype);

#endif
