/* slot_quant.h - weights in GGUF block formats and the products with them ("bp.quant" 0.1).
 * Not here: routed experts (slot_moe.h), k_b and v_b of MLA (slot_mla.h), embedding rows (slot_dense.h).
 * y[t][r] = sum_k W[r][k] * x[t][k], with W the exact decoded weights of core/block.
 * Fused forms: n weights that share one input, prologue {none, rms}, epilogue {none, + residual, silu_mul}. A provider
 * says per form in supports() whether it runs it in one go; the engine composes the rest from plain ops.
 * SPDX-License-Identifier: MIT */
#ifndef BP_SLOT_QUANT_H
#define BP_SLOT_QUANT_H

#include "backplane/plugin.h"

BP_EXTERN_C_BEGIN

enum bp_quant_op { BP_QUANT_OP_MATMUL = 0, BP_QUANT_OP_DEQUANTIZE = 1 };
enum bp_prologue { BP_PROLOGUE_NONE = 0, BP_PROLOGUE_RMS = 1 };
/* ADD: y0 = W0 x + residual. SILU_MUL: y0 = silu(W0 x) * (W1 x), exactly two weights, W1's y is not written. */
enum bp_epilogue { BP_EPILOGUE_NONE = 0, BP_EPILOGUE_ADD = 1, BP_EPILOGUE_SILU_MUL = 2 };

/* One weight of a problem. Array element with stride. */
struct bp_quant_shape {
    uint32_t type; /* enum bp_gguf_type */
    uint32_t reserved;
    int64_t rows, cols; /* of this rank's shard */
};

struct bp_quant_problem {
    struct bp_hdr h;
    uint32_t op;               /* enum bp_quant_op */
    uint32_t n_w, w_stride;    /* 1..4 weights */
    uint32_t max_tok;
    const struct bp_quant_shape *w;
    uint32_t x_dtype, y_dtype; /* enum bp_dtype */
    uint32_t prologue, epilogue;
};
BP_NOPAD(struct bp_quant_problem, epilogue);

/* What a handle costs; equal non-zero layout ids of equal raw weights may be shared between providers. */
struct bp_weight_info {
    struct bp_hdr h;
    uint64_t layout_id;
    uint64_t n_bytes;  /* memory owned by the handle, beyond the mapped file */
};
BP_NOPAD(struct bp_weight_info, n_bytes);

/* One product. Array element with stride. */
struct bp_matmul_out {
    void *weight;       /* handle from prepare() of the same op instance */
    struct bp_tensor y; /* (n_tok, rows) */
};

struct bp_quant_matmul_args {
    struct bp_hdr h;
    struct bp_tensor x;         /* (n_tok, cols), IN; inner stride 1 */
    struct bp_matmul_out *outs; /* n_out products of the same x, OUT */
    uint32_t n_out, out_stride;
    uint32_t prologue, epilogue;
    struct bp_tensor norm_w;    /* (cols) F32, IN, with PROLOGUE_RMS: x is replaced by w * x / sqrt(mean(x^2) + eps) */
    struct bp_tensor residual;  /* (n_tok, rows), IN, with EPILOGUE_ADD; may be outs[0].y itself */
    float eps;
    uint32_t reserved;
};
BP_NOPAD(struct bp_quant_matmul_args, reserved);

struct bp_quant_dequantize_args {
    struct bp_hdr h;
    void *weight;
    int64_t row_begin;  /* rows [row_begin, row_begin + y.dim[0]) */
    struct bp_tensor y; /* (n_rows, cols), OUT */
};
BP_NOPAD(struct bp_quant_dequantize_args, y);

struct bp_quant_ops {
    struct bp_op_base base; /* problem: struct bp_quant_problem; tensors(): enum bp_quant_op */

    /* format - the i-th GGUF type this provider can prepare. Pre: none. Writes: *out_type. Errors: BP_DECLINED past the
     * end. Numeric: none. Threads: any. Since: 0.1. */
    int32_t (*format)(void *self, uint32_t i, uint32_t *out_type);

    /* prepare - takes one matrix (ne[2] = ne[3] = 1; rows = ne[1], cols = ne[0]) or this rank's part of it.
     * Pre: raw->data stays mapped until release. Writes: *out, *info (may be NULL). Errors: BP_DECLINED for a type not
     * in format(); BP_E_NOMEM, BP_E_DEVMEM. Numeric: the exact decoded values of core/block times raw->scale.
     * Threads: any, serialised per instance. Since: 0.1. */
    int32_t (*prepare)(void *self, const struct bp_raw *raw, void **out, struct bp_weight_info *info,
                       struct bp_error *err);
    /* release - ends a handle; NULL accepted. Pre: no call uses it. Writes: none. Errors: none. Numeric: none.
     * Threads: as prepare. Since: 0.1. */
    void (*release)(void *self, void *weight);

    /* matmul - the product in its declared form. Pre: supports() on this form; y does not overlap x. n_tok = 0 is
     * legal. Writes: the y of each out (only outs[0].y with SILU_MUL). Errors: BP_E_DEVICE. Numeric: f32 accumulation
     * or better; a row's result does not depend on n_tok when the provider claims BATCH. NaN in a row of x stays in
     * that row. Threads: one call per instance. Since: 0.1. */
    int32_t (*matmul)(void *self, const struct bp_launch *l, const struct bp_quant_matmul_args *a,
                      struct bp_error *err);

    /* dequantize - rows of a prepared weight as plain floats. Pre: rows in range. Writes: y. Errors: BP_E_ARG,
     * BP_E_DEVICE. Numeric: exact for F32 output, else one rounding. Threads: one call per instance. Since: 0.1. */
    int32_t (*dequantize)(void *self, const struct bp_launch *l, const struct bp_quant_dequantize_args *a,
                          struct bp_error *err);
};
BP_NOPAD(struct bp_quant_ops, dequantize);

BP_EXTERN_C_END
#endif
