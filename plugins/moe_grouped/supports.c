/* supports.c - which problems moe_grouped serves. Threads: as plugin.h says. SPDX-License-Identifier: MIT */
#include "moe.h"

#include <backplane/cuda/block.cuh>

void moe_block(uint32_t type, int64_t *elems, int64_t *n_bytes)
{
    *elems = bp_block_elems(type);
    *n_bytes = bp_block_size(type);
}

static void want_type(struct bp_verdict *v, uint32_t type, const char *field)
{
    int64_t elems, n_bytes;
    moe_block(type, &elems, &n_bytes);
    if (elems == 0) {
        bp_reason_add(v, BP_R_QUANT, 1, field, type, 0, BP_GGUF_COUNT - 1,
                      "no decoder for this type");
        return;
    }
    switch (type) {
    case BP_GGUF_Q4_K:
    case BP_GGUF_Q5_K:
    case BP_GGUF_Q6_K:
    case BP_GGUF_Q8_0:
    case BP_GGUF_BF16:
        return;
    default:
        bp_note_slow(v, BP_R_QUANT, field, type, BP_GGUF_Q8_0, BP_GGUF_BF16,
                     "right but slow; read 16 bytes at a time are Q4_K, Q5_K, Q6_K, Q8_0, BF16");
    }
}

static void want_route(const struct bp_moe_problem *p, struct bp_verdict *v)
{
    const uint32_t n_group = p->n_group > 1 ? p->n_group : 1;
    bp_want_range(v, BP_R_FEATURE, "gating", p->gating, BP_GATING_SOFTMAX, BP_GATING_SIGMOID);
    bp_want_range(v, BP_R_FEATURE, "group_score", p->group_score, BP_GROUP_MAX, BP_GROUP_TOP2);
    if (p->n_expert == 0 || p->n_expert % n_group != 0) {
        bp_reason_add(v, BP_R_SHAPE, 1, "n_group", p->n_group, 1, p->n_expert,
                      "the groups do not divide the experts");
        return;
    }
    if (n_group > 1 && (p->n_group_used < 1 || p->n_group_used > n_group)) {
        bp_reason_add(v, BP_R_SHAPE, 1, "n_group_used", p->n_group_used, 1, n_group,
                      "groups that stay");
        return;
    }
    const uint32_t choice = n_group > 1 ? p->n_group_used * (p->n_expert / n_group) : p->n_expert;
    if (p->n_expert_used > choice) {
        bp_reason_add(v, BP_R_SHAPE, 1, "n_expert_used", p->n_expert_used, 1, choice,
                      "more experts are chosen than stay after the groups");
    }
}

static void want_run(const struct bp_moe_problem *p, struct bp_verdict *v)
{
    const uint32_t floats = BP_SET(BP_DT_F32) | BP_SET(BP_DT_F16) | BP_SET(BP_DT_BF16);
    bp_want_range(v, BP_R_SHAPE, "n_embd", p->n_embd, 1, 1 << 24);
    bp_want_range(v, BP_R_SHAPE, "n_ff", p->n_ff, 0, 1 << 24);
    bp_want_range(v, BP_R_SHAPE, "n_ff_shared", p->n_ff_shared, 0, 1 << 24);
    if (p->expert_begin > p->expert_end || p->expert_end > p->n_expert) {
        bp_reason_add(v, BP_R_SHAPE, 1, "expert_end", p->expert_end, p->expert_begin, p->n_expert,
                      "experts of this rank");
    }
    if (p->expert_begin < p->expert_end && p->n_ff > 0) {
        want_type(v, p->type_gate, "type_gate");
        want_type(v, p->type_up, "type_up");
        want_type(v, p->type_down, "type_down");
    }
    if (p->n_ff_shared > 0) {
        want_type(v, p->type_shared_gate, "type_shared_gate");
        want_type(v, p->type_shared_up, "type_shared_up");
        want_type(v, p->type_shared_down, "type_shared_down");
    }
    /* Pairs and tiles are counted in 32 bits, and a launch has at most 65535 rows of blocks. */
    if (p->max_tok > 65535 || (uint64_t)p->max_tok * p->n_expert_used > 900000) {
        bp_reason_add(v, BP_R_SHAPE, 1, "max_tok", p->max_tok, 0,
                      p->n_expert_used > 13 ? 900000 / p->n_expert_used : 65535,
                      "too many choices for one launch; lower engine.batch_tokens");
    }
    bp_want_dtype(v, "x_dtype", p->x_dtype, floats);
    bp_want_dtype(v, "y_dtype", p->y_dtype, BP_SET(BP_DT_F32));
}

int32_t moe_supports(void *self, const void *problem, struct bp_verdict *v)
{
    const struct moe_op *op = self;
    const struct bp_moe_problem *p = problem;
    if (!bp_verdict_begin(v, &p->h, BP_END(struct bp_moe_problem, y_dtype))) return BP_OK;
    bp_want_cc(v, op->dev, 90, INT32_MAX);
    bp_want_range(v, BP_R_SHAPE, "n_expert", p->n_expert, 0, MOE_MAX_EXPERT);
    bp_want_range(v, BP_R_SHAPE, "n_expert_used", p->n_expert_used, 1, p->n_expert);
    if (p->op == BP_MOE_OP_ROUTE) {
        want_route(p, v);
        return bp_verdict_done(v, BP_CAPTURE_ANY, BP_DET_BATCH, -1.0);
    }
    if (p->op == BP_MOE_OP_RUN)
        want_run(p, v);
    else
        bp_reason_add(v, BP_R_FEATURE, 1, "op", p->op, 0, BP_MOE_OP_RUN, "unknown op");
    return bp_verdict_done(v, BP_CAPTURE_ANY, BP_DET_RUN, -1.0);
}
