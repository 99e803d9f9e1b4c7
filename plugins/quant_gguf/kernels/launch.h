/* launch.h - what the host part (C11) and the device part (CUDA) of the plugin say to each other. Every launch function
 * returns (int32_t)cudaGetLastError() and puts its work on the given stream only.
 * SPDX-License-Identifier: MIT */
#ifndef QUANT_GGUF_LAUNCH_H
#define QUANT_GGUF_LAUNCH_H

#include "backplane/slot_quant.h"

BP_EXTERN_C_BEGIN

enum {
    QG_MAX_W = 4,      /* weights that share an input */
    QG_MAX_COL = 24,   /* columns of x as the tensor cores see them: three for a token of f32, two of f16, one of bf16 */
    QG_MAX_TOK = 8,    /* tokens of the kernels that read a weight once for all of them */
    QG_STRIP = 16,     /* rows of a strip */
    QG_WARPS = 8,      /* warps of a block for several tokens */
    QG_ONE_WARPS = 16, /* most of them for one token */
    QG_X_PAD = 256     /* rows of the staged x are whole steps */
};

/* BLOCKS: rows as in the file. PLANES: repacked (planes.cuh). ROWS: rows of 16-bit floats, padded with zeros to whole steps
 * and strips; the tensor-core products and cuBLAS read them. */
enum qg_layout { QG_BLOCKS = 0, QG_PLANES = 1, QG_ROWS = 2 };

/* One weight in device memory. */
struct qg_weight {
    uint32_t type;          /* enum bp_gguf_type */
    uint32_t layout;        /* enum qg_layout */
    int64_t rows, cols;     /* of the part that is owned */
    int64_t skip;           /* columns stored before the first owned one */
    int64_t cover;          /* columns stored, whole blocks */
    int64_t n_steps;        /* of a strip; 0 for BLOCKS */
    int64_t pitch;          /* bytes of a row; of a strip for PLANES */
    float scale;
    uint32_t reserved;
    unsigned char *data;
    uint32_t *counters;     /* one for each strip, all zero between calls */
};

/* x as rows of bf16, or f32: row t * parts + p is part p of token t, whole QG_X_PAD columns, zeros around
 * [skip, skip + cols). */
struct qg_stage {
    const void *x;
    const float *norm_w; /* NULL: no norm */
    void *out;
    int64_t x_stride, ld, cols, skip, n_tok;
    uint32_t x_dtype, parts; /* parts 0: out is f32 */
    float eps;
    uint32_t round; /* a norm is rounded to this dtype first */
    uint32_t plain; /* 1: out is rows of `round` instead */
};
int32_t qg_stage_launch(const struct qg_stage *s, void *stream);

/* y[i] = scale * W[i] x for up to QG_MAX_TOK tokens, with its epilogue. */
struct qg_gemv {
    const struct qg_weight *w[QG_MAX_W];
    struct bp_tensor y[QG_MAX_W]; /* (n_tok, rows) */
    struct bp_tensor residual;    /* data NULL: none */
    uint32_t n_w, silu;           /* silu 1: two weights, one y */
    const void *x;                /* bf16 columns as qg_stage makes them; f32 rows for BLOCKS; for one, x itself */
    int64_t x_ld;
    uint32_t n_tok, parts;
    uint32_t blocks, whole;       /* of threads; 1: a block has whole units: plan_gemv() */
    float *partial;               /* 64 for each block and token */
    /* For one only: a norm of x, which is of x_dtype; wide 1: its runs of four are whole vectors. */
    const float *norm_w; /* NULL: none */
    uint32_t x_dtype, wide;
    float eps;
    uint32_t reserved;
    int64_t smem; /* shared memory that a block can have, in bytes */
};
/* All weights are PLANES or ROWS, of one type, with the same steps. */
int32_t qg_gemv_launch(const struct qg_gemv *g, void *stream);
/* The same for one token, x as the caller has it. */
int32_t qg_one_launch(const struct qg_gemv *g, void *stream);
/* Warps of its blocks, one for each multiprocessor; 0: qg_gemv_launch has to do it. */
int32_t qg_one_warps(uint32_t type, int64_t n_steps, int64_t smem);
/* Blocks of qg_gemv_launch that a multiprocessor runs at once. */
int32_t qg_blocks_per_sm(uint32_t type);
/* All weights are BLOCKS; any types. */
int32_t qg_rows_launch(const struct qg_gemv *g, void *stream);

/* Rows [row, row + n_rows) of a weight to y, times its scale. */
struct qg_dequant {
    const struct qg_weight *w;
    void *y;
    int64_t row, n_rows, y_stride;
    uint32_t y_dtype;
    uint32_t reserved;
};
int32_t qg_dequant_launch(const struct qg_dequant *d, void *stream);

/* Writes rows [row, row + n_rows) of a weight from blocks as the file has them; `raw` begins with row `row`, which is the
 * first of a strip. Rows are raw_pitch bytes apart. */
struct qg_repack {
    const struct qg_weight *w;
    const unsigned char *raw;
    int64_t raw_pitch, row, n_rows;
};
int32_t qg_repack_launch(const struct qg_repack *r, void *stream);
/* Bytes of one step of PLANES, columns of one; 0 for BLOCKS, and bytes for ROWS. */
int64_t qg_step_bytes(uint32_t type);
int64_t qg_step_cols(uint32_t type);
/* Elements and bytes of a block; 0 for types without a decoder. */
int64_t qg_block_elems(uint32_t type);
int64_t qg_block_bytes(uint32_t type);

/* y = a * scale_a with its epilogue: + residual, or silu(a scale_a) * (b scale_b). a, b: f32 (n_tok, width). */
struct qg_finish {
    const float *a, *b; /* b: with silu */
    int64_t ab_stride;
    struct bp_tensor y, residual; /* (n_tok, width) of y; residual.data NULL: none */
    float scale_a, scale_b;
};
int32_t qg_finish_launch(const struct qg_finish *f, void *stream);

BP_EXTERN_C_END
#endif
