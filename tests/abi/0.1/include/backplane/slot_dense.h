/* slot_dense.h - the small ops between the large ones ("bp.dense" 0.1): embed, rms, layernorm, rope, silu_mul, add,
 * argmax, topk, batched matmul of plain floats.
 * Shapes: rows outermost, inner stride 1, outer strides free (a view of a wider buffer is legal everywhere).
 * Numeric for all: f32 arithmetic or better; NaN in a row stays in that row. n_rows = 0 is legal.
 * SPDX-License-Identifier: MIT */
#ifndef BP_SLOT_DENSE_H
#define BP_SLOT_DENSE_H

#include "backplane/plugin.h"
#include "backplane/slot_quant.h" /* struct bp_weight_info */

BP_EXTERN_C_BEGIN

enum bp_dense_op {
    BP_DENSE_OP_EMBED = 0, BP_DENSE_OP_RMS = 1, BP_DENSE_OP_LAYERNORM = 2, BP_DENSE_OP_ROPE = 3,
    BP_DENSE_OP_SILU_MUL = 4, BP_DENSE_OP_ADD = 5, BP_DENSE_OP_ARGMAX = 6, BP_DENSE_OP_TOPK = 7,
    BP_DENSE_OP_MATMUL = 8
};

struct bp_dense_problem {
    struct bp_hdr h;
    uint32_t op;               /* enum bp_dense_op */
    uint32_t max_rows;
    int64_t width;             /* row length (EMBED: n_embd, ARGMAX and TOPK: vocabulary, ROPE: rotated dims) */
    uint32_t x_dtype, y_dtype;
    uint32_t type;             /* EMBED: enum bp_gguf_type of the table */
    uint32_t k;                /* TOPK */
};
BP_NOPAD(struct bp_dense_problem, k);

struct bp_dense_embed_args {
    struct bp_hdr h;
    void *table;
    struct bp_tensor ids; /* (n_tok) I32, IN; each in [0, rows of the table) - the engine checked them */
    struct bp_tensor y;   /* (n_tok, n_embd), OUT */
};
BP_NOPAD(struct bp_dense_embed_args, y);

struct bp_dense_rms_args {
    struct bp_hdr h;
    struct bp_tensor x;   /* (n, width), IN; INOUT when add is given */
    struct bp_tensor add; /* (n, width), IN, optional: x += add first */
    struct bp_tensor w;   /* (width) F32, IN */
    struct bp_tensor y;   /* (n, width), OUT; may be x when add is not given */
    float eps;
    uint32_t reserved;
};
BP_NOPAD(struct bp_dense_rms_args, reserved);

struct bp_dense_layernorm_args {
    struct bp_hdr h;
    struct bp_tensor x, w, b, y; /* (n, width), (width) F32, (width) F32, (n, width) */
    float eps;
    uint32_t reserved;
};
BP_NOPAD(struct bp_dense_layernorm_args, reserved);

/* Which dims form a rotated pair: (2i, 2i+1) or (i, i + dim/2). */
enum bp_rope_style { BP_ROPE_INTERLEAVED = 0, BP_ROPE_HALF = 1 };

struct bp_dense_rope_args {
    struct bp_hdr h;
    struct bp_tensor x;         /* (n, heads, dim), IN */
    struct bp_tensor y;         /* (n, heads, dim), OUT; may be x */
    struct bp_tensor positions; /* (n) I32, IN */
    struct bp_tensor cos_table; /* (n_pos, dim/2) F32, IN; magnitude already folded in */
    struct bp_tensor sin_table; /* (n_pos, dim/2) F32, IN */
    uint32_t style;             /* enum bp_rope_style */
    uint32_t reserved;
};
BP_NOPAD(struct bp_dense_rope_args, reserved);

struct bp_dense_pair_args { /* silu_mul: y = silu(a) * b; add: y = a + b */
    struct bp_hdr h;
    struct bp_tensor a, b, y; /* (n, width); y may be a or b */
};
BP_NOPAD(struct bp_dense_pair_args, y);

struct bp_dense_topk_args { /* argmax is k = 1 */
    struct bp_hdr h;
    struct bp_tensor x;      /* (n, width) F32, IN */
    struct bp_tensor values; /* (n, k) F32, OUT, descending; optional for argmax */
    struct bp_tensor ids;    /* (n, k) I32, OUT; -1 when the row holds fewer than k numbers that are not NaN */
};
BP_NOPAD(struct bp_dense_topk_args, ids);

struct bp_dense_matmul_args { /* c[i] = a[i] * b[i]^T */
    struct bp_hdr h;
    struct bp_tensor a; /* (batch, m, k), IN */
    struct bp_tensor b; /* (batch, n, k), IN */
    struct bp_tensor c; /* (batch, m, n), OUT */
};
BP_NOPAD(struct bp_dense_matmul_args, c);

struct bp_dense_ops {
    struct bp_op_base base; /* problem: struct bp_dense_problem; tensors(): enum bp_dense_op */

    /* prepare - takes the embedding table (ne = {n_embd, n_vocab}) for embed. Pre: raw->data stays mapped until
     * release. Writes: *out, *info (may be NULL). Errors: BP_DECLINED for an unknown type, BP_E_NOMEM, BP_E_DEVMEM.
     * Numeric: exact decoded rows. Threads: any, serialised per instance. Since: 0.1. */
    int32_t (*prepare)(void *self, const struct bp_raw *raw, void **out, struct bp_weight_info *info,
                       struct bp_error *err);
    /* release - ends a handle; NULL accepted. Pre: unused. Writes: none. Errors: none. Numeric: none. Threads: as
     * prepare. Since: 0.1. */
    void (*release)(void *self, void *table);

    /* embed - rows of the table. Pre: ids in range. Writes: y. Errors: BP_E_DEVICE. Numeric: exact for F32 output.
     * Threads: one call per instance. Since: 0.1. */
    int32_t (*embed)(void *self, const struct bp_launch *l, const struct bp_dense_embed_args *a, struct bp_error *err);
    /* rms - y = w * x / sqrt(mean(x^2) + eps), after x += add when given. Pre: shapes agree. Writes: y, and x with
     * add. Errors: BP_E_DEVICE. Numeric: mean in f32 or better. Source: Zhang and Sennrich 2019. Threads: one call per
     * instance. Since: 0.1. */
    int32_t (*rms)(void *self, const struct bp_launch *l, const struct bp_dense_rms_args *a, struct bp_error *err);
    /* layernorm - y = w * (x - mean) / sqrt(var + eps) + b, population variance. Pre: shapes agree. Writes: y. Errors:
     * BP_E_DEVICE. Numeric: as rms. Source: Ba et al. 2016. Threads: one call per instance. Since: 0.1. */
    int32_t (*layernorm)(void *self, const struct bp_launch *l, const struct bp_dense_layernorm_args *a,
                         struct bp_error *err);
    /* rope - rotates each pair by its position's angle: (a cos - b sin, a sin + b cos). Pre: positions below the
     * table's rows. Writes: y. Errors: BP_E_DEVICE. Numeric: f32 products. Source: Su et al. 2021. Threads: one call
     * per instance. Since: 0.1. */
    int32_t (*rope)(void *self, const struct bp_launch *l, const struct bp_dense_rope_args *a, struct bp_error *err);
    /* silu_mul - y = a / (1 + exp(-a)) * b. Pre: shapes agree. Writes: y. Errors: BP_E_DEVICE. Numeric: f32; -inf
     * gives 0 * b. Threads: one call per instance. Since: 0.1. */
    int32_t (*silu_mul)(void *self, const struct bp_launch *l, const struct bp_dense_pair_args *a,
                        struct bp_error *err);
    /* add - y = a + b. Pre: shapes agree. Writes: y. Errors: BP_E_DEVICE. Numeric: one rounding. Threads: one call per
     * instance. Since: 0.1. */
    int32_t (*add)(void *self, const struct bp_launch *l, const struct bp_dense_pair_args *a, struct bp_error *err);
    /* argmax - index of the largest number, lowest index on ties, NaN never wins. Pre: ids (n, 1). Writes: ids, values
     * if given. Errors: BP_E_DEVICE. Numeric: exact. Threads: one call per instance. Since: 0.1. */
    int32_t (*argmax)(void *self, const struct bp_launch *l, const struct bp_dense_topk_args *a, struct bp_error *err);
    /* topk - the k largest, descending, lowest index first on ties, NaN never chosen. Pre: 1 <= k <= width. Writes:
     * ids, values. Errors: BP_E_DEVICE. Numeric: exact. Threads: one call per instance. Since: 0.1. */
    int32_t (*topk)(void *self, const struct bp_launch *l, const struct bp_dense_topk_args *a, struct bp_error *err);
    /* matmul - batched product of plain floats. Pre: shapes agree; c overlaps neither. Writes: c. Errors: BP_E_DEVICE.
     * Numeric: f32 accumulation or better. Threads: one call per instance. Since: 0.1. */
    int32_t (*matmul)(void *self, const struct bp_launch *l, const struct bp_dense_matmul_args *a,
                      struct bp_error *err);
};
BP_NOPAD(struct bp_dense_ops, matmul);

BP_EXTERN_C_END
#endif
