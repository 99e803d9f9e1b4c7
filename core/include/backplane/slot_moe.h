/* slot_moe.h - routed experts with the shared expert ("bp.moe" 0.1).
 * Not here: router logits (a plain product of slot_quant.h), the all-reduce after it (slot_coll.h).
 * Source: DeepSeek-V2 and V3 technical reports (2024), sections on DeepSeekMoE; reference code of both.
 * SPDX-License-Identifier: MIT */
#ifndef BP_SLOT_MOE_H
#define BP_SLOT_MOE_H

#include "backplane/plugin.h"
#include "backplane/slot_quant.h" /* struct bp_weight_info */

BP_EXTERN_C_BEGIN

enum bp_moe_op { BP_MOE_OP_ROUTE = 0, BP_MOE_OP_RUN = 1 };
enum bp_moe_gating { BP_GATING_SOFTMAX = 1, BP_GATING_SIGMOID = 2 }; /* numbers of the GGUF key */
enum bp_moe_group_score { BP_GROUP_MAX = 0, BP_GROUP_TOP2 = 1 };

struct bp_moe_problem {
    struct bp_hdr h;
    uint32_t op;                                  /* enum bp_moe_op */
    uint32_t max_tok;
    int64_t n_embd, n_ff, n_ff_shared;            /* of this rank's shard; n_ff_shared = 0: no shared expert */
    uint32_t n_expert, n_expert_used;             /* routed experts of the model, chosen per token */
    uint32_t expert_begin, expert_end;            /* experts this rank holds */
    uint32_t n_group, n_group_used, gating, group_score;
    uint32_t type_gate, type_up, type_down;       /* enum bp_gguf_type of the routed experts */
    uint32_t type_shared_gate, type_shared_up, type_shared_down;
    uint32_t x_dtype, y_dtype;
};
BP_NOPAD(struct bp_moe_problem, y_dtype);

/* Weights of one layer. Absent parts have data == NULL. */
struct bp_moe_weights {
    struct bp_hdr h;
    struct bp_raw gate, up;                          /* ne = {n_embd, n_ff, n_expert} */
    struct bp_raw gate_up;                           /* ne = {n_embd, 2 n_ff, n_expert}, gate rows first; instead of both */
    struct bp_raw down;                              /* ne = {n_ff, n_embd, n_expert} */
    struct bp_raw shared_gate, shared_up, shared_down; /* {n_embd, n_ff_shared} twice, {n_ff_shared, n_embd} */
};
BP_NOPAD(struct bp_moe_weights, shared_down);

struct bp_moe_route_args {
    struct bp_hdr h;
    struct bp_tensor logits;  /* (n_tok, n_expert) F32, IN */
    struct bp_tensor bias;    /* (n_expert) F32, IN, optional: added for the choice only, never to the weights */
    struct bp_tensor ids;     /* (n_tok, n_expert_used) I32, OUT, descending by selection score, lowest id on ties */
    struct bp_tensor weights; /* (n_tok, n_expert_used) F32, OUT */
    uint32_t gating, group_score, n_group, n_group_used;
    uint32_t normalize;       /* 1: divide by the sum of the chosen (plus 1e-20) */
    float scale;              /* multiplies the weights last; 1 = none */
};
BP_NOPAD(struct bp_moe_route_args, scale);

struct bp_moe_run_args {
    struct bp_hdr h;
    void *weights;            /* handle */
    struct bp_tensor x;       /* (n_tok, n_embd), IN, already normalised */
    struct bp_tensor ids;     /* (n_tok, n_expert_used) I32, IN; -1 and experts of other ranks contribute nothing */
    struct bp_tensor gates;   /* (n_tok, n_expert_used) F32, IN */
    struct bp_tensor y;       /* (n_tok, n_embd) F32, OUT, or INOUT with accumulate */
    uint32_t accumulate;      /* 1: y += instead of y = */
    uint32_t reserved;
};
BP_NOPAD(struct bp_moe_run_args, reserved);

struct bp_moe_ops {
    struct bp_op_base base; /* problem: struct bp_moe_problem; tensors(): enum bp_moe_op */

    /* prepare - takes the experts of one layer. Pre: data stays mapped until release. Writes: *out, *info (may be
     * NULL). Errors: BP_DECLINED for types not served, BP_E_NOMEM, BP_E_DEVMEM. Numeric: exact decoded values.
     * Threads: any, serialised per instance. Since: 0.1. */
    int32_t (*prepare)(void *self, const struct bp_moe_weights *w, void **out, struct bp_weight_info *info,
                       struct bp_error *err);
    /* release - ends a handle; NULL accepted. Pre: unused. Writes: none. Errors: none. Numeric: none. Threads: as
     * prepare. Since: 0.1. */
    void (*release)(void *self, void *weights);

    /* route - chooses experts. p = softmax or sigmoid of the logits; sel = p + bias; with groups only the best
     * n_group_used groups stay (score: maximum, or sum of the two best; others count as -inf); ids = top sel; weight =
     * p[id], normalised, scaled. Pre: n_group divides n_expert. Writes: ids, weights. Errors: BP_E_DEVICE. Numeric: f32
     * or better; a logit that is NaN or infinite gives ids -1 and weights NaN in that row. Threads: one call per
     * instance. Since: 0.1. */
    int32_t (*route)(void *self, const struct bp_launch *l, const struct bp_moe_route_args *a, struct bp_error *err);

    /* run - y = sum_i gate_i * down_i(silu(gate_i x) * (up_i x)) + shared(x), the shared expert unscaled. Pre:
     * supports(). Writes: y. Errors: BP_E_DEVICE. Numeric: f32 sums in a fixed order (chosen order, shared last).
     * Threads: one call per instance. Since: 0.1. */
    int32_t (*run)(void *self, const struct bp_launch *l, const struct bp_moe_run_args *a, struct bp_error *err);
};
BP_NOPAD(struct bp_moe_ops, run);

BP_EXTERN_C_END
#endif
