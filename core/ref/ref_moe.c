/* ref_moe.c - the moe slot: what is served, scratch, ports, and the experts of a layer.
 * Not here: the router (ref_moe_route.c), the products (ref_moe_run.c).
 * Threads: as slot_moe.h says. SPDX-License-Identifier: MIT */
#include "ref/ref_moe.h"

#include "block/block.h"

/* ---- what is served ---- */

static void check_type(struct bp_verdict *v, uint32_t type, const char *field)
{
    const struct bpi_block_info *info = bpi_block_info(type);
    if (info != NULL && info->can_decode) return;
    bpi_ref_refuse(v, BP_R_QUANT, field, type, 0, BP_GGUF_COUNT - 1,
                   "core/block has no decoder for this type");
}

static void check_size(struct bp_verdict *v, int64_t n, int64_t lo, const char *field)
{
    if (n < lo || n > INT32_MAX)
        bpi_ref_refuse(v, BP_R_SHAPE, field, n, lo, INT32_MAX, "a size is out of range");
}

static void check_route(const struct bp_moe_problem *p, struct bp_verdict *v)
{
    const uint32_t n_group = p->n_group > 1 ? p->n_group : 1;
    if (p->gating != BP_GATING_SOFTMAX && p->gating != BP_GATING_SIGMOID) {
        bpi_ref_refuse(v, BP_R_FEATURE, "gating", p->gating, BP_GATING_SOFTMAX, BP_GATING_SIGMOID,
                       "softmax or sigmoid");
    }
    if (p->group_score > BP_GROUP_TOP2) {
        bpi_ref_refuse(v, BP_R_FEATURE, "group_score", p->group_score, BP_GROUP_MAX, BP_GROUP_TOP2,
                       "maximum, or sum of the two best");
    }
    if (p->n_expert == 0 || p->n_expert % n_group != 0) {
        bpi_ref_refuse(v, BP_R_SHAPE, "n_group", p->n_group, 1, p->n_expert,
                       "the groups do not divide the experts");
        return;
    }
    if (n_group > 1 && (p->n_group_used < 1 || p->n_group_used > n_group)) {
        bpi_ref_refuse(v, BP_R_SHAPE, "n_group_used", p->n_group_used, 1, n_group,
                       "groups that stay");
        return;
    }
    uint32_t choice = n_group > 1 ? p->n_group_used * (p->n_expert / n_group) : p->n_expert;
    if (p->n_expert_used < 1 || p->n_expert_used > choice) {
        bpi_ref_refuse(v, BP_R_SHAPE, "n_expert_used", p->n_expert_used, 1, choice,
                       "more experts are chosen than stay after the groups");
    }
}

static void check_run(const struct bp_moe_problem *p, struct bp_verdict *v)
{
    check_size(v, p->n_embd, 1, "n_embd");
    check_size(v, p->n_ff, 0, "n_ff");
    check_size(v, p->n_ff_shared, 0, "n_ff_shared");
    if (p->expert_begin > p->expert_end || p->expert_end > p->n_expert) {
        bpi_ref_refuse(v, BP_R_SHAPE, "expert_end", p->expert_end, p->expert_begin, p->n_expert,
                       "experts of this rank");
    }
    if (p->n_expert_used < 1) {
        bpi_ref_refuse(v, BP_R_SHAPE, "n_expert_used", p->n_expert_used, 1, p->n_expert,
                       "experts per token");
    }
    if (p->expert_begin < p->expert_end && p->n_ff > 0) {
        check_type(v, p->type_gate, "type_gate");
        check_type(v, p->type_up, "type_up");
        check_type(v, p->type_down, "type_down");
    }
    if (p->n_ff_shared > 0) {
        check_type(v, p->type_shared_gate, "type_shared_gate");
        check_type(v, p->type_shared_up, "type_shared_up");
        check_type(v, p->type_shared_down, "type_shared_down");
    }
    if (!bpi_ref_is_float(p->x_dtype)) {
        bpi_ref_refuse(v, BP_R_DTYPE, "x_dtype", p->x_dtype, BP_DT_F32, BP_DT_BF16,
                       "F32, F16 or BF16");
    }
    if (!bpi_ref_is_float(p->y_dtype)) {
        bpi_ref_refuse(v, BP_R_DTYPE, "y_dtype", p->y_dtype, BP_DT_F32, BP_DT_BF16,
                       "F32, F16 or BF16");
    }
}

static int32_t moe_supports(void *self, const void *problem, struct bp_verdict *v)
{
    (void)self;
    const struct bp_moe_problem *p = problem;
    bpi_ref_check_header(v, &p->h, BP_END(struct bp_moe_problem, y_dtype));
    if (v->n_reasons != 0) return BP_OK;
    if (p->op == BP_MOE_OP_ROUTE) {
        check_route(p, v);
    } else if (p->op == BP_MOE_OP_RUN) {
        check_run(p, v);
    } else {
        bpi_ref_refuse(v, BP_R_FEATURE, "op", p->op, 0, BP_MOE_OP_RUN, "unknown op");
    }
    bpi_ref_verdict_done(v);
    return BP_OK;
}

static int32_t moe_workspace(void *self, const void *problem_max, struct bp_workspace *out,
                             struct bp_error *err)
{
    const struct bp_moe_problem *p = problem_max;
    struct bpi_ref_area area = {0};
    if (p->op == BP_MOE_OP_ROUTE) {
        struct bpi_ref_route_scratch s;
        bpi_ref_route_take(self, &area, p->n_expert, &s);
    } else {
        struct bpi_ref_moe_scratch s;
        int64_t widest = p->n_embd > p->n_ff ? p->n_embd : p->n_ff;
        if (p->n_ff_shared > widest) widest = p->n_ff_shared;
        struct bpi_ref_moe_size size = {.n_tok = p->max_tok,
                                        .n_used = p->n_expert_used,
                                        .n_expert = p->expert_end,
                                        .n_embd = p->n_embd,
                                        .n_ff = p->n_ff,
                                        .n_ff_shared = p->n_ff_shared,
                                        .cover = bpi_ref_cover_max(widest)};
        bpi_ref_moe_take(self, &area, &size, &s);
    }
    return bpi_ref_area_report(&area, out, err);
}

static int32_t moe_tensors(void *self, uint32_t slot, const void *args, struct bp_tensor *t,
                           uint32_t *n)
{
    (void)self;
    struct bp_tensor ports[4];
    uint32_t count = 0;
    if (slot == BP_MOE_OP_ROUTE) {
        const struct bp_moe_route_args *a = args;
        ports[count++] = bpi_ref_port(&a->logits, "logits", BP_IN);
        if (a->bias.data != NULL) ports[count++] = bpi_ref_port(&a->bias, "bias", BP_IN);
        ports[count++] = bpi_ref_port(&a->ids, "ids", BP_OUT);
        ports[count++] = bpi_ref_port(&a->weights, "weights", BP_OUT);
    } else if (slot == BP_MOE_OP_RUN) {
        const struct bp_moe_run_args *a = args;
        ports[count++] = bpi_ref_port(&a->x, "x", BP_IN);
        ports[count++] = bpi_ref_port(&a->ids, "ids", BP_IN);
        ports[count++] = bpi_ref_port(&a->gates, "gates", BP_IN);
        ports[count++] = bpi_ref_port(&a->y, "y", a->accumulate != 0 ? BP_INOUT : BP_OUT);
    } else {
        return BP_E_ARG;
    }
    bpi_ref_list(ports, count, t, n);
    return BP_OK;
}

/* ---- experts of a layer ---- */

/* Views the two halves of a joint tensor as two tensors. A shard is a range of one half, [0, n_ff), and means the same
 * rows of the other half; the whole range [0, 2 n_ff) means all of both. */
static int32_t split_gate_up(const struct bp_raw *raw, struct bp_raw *gate, struct bp_raw *up,
                             struct bp_error *err)
{
    const int64_t half = raw->ne[1] / 2;
    bool whole = raw->begin[1] == 0 && raw->end[1] == raw->ne[1];
    if (raw->ne[1] % 2 != 0 || (!whole && raw->end[1] > half)) {
        return bpi_fail(err, BP_E_ARG, "ref", raw->name,
                        "gate and up in one tensor have %lld rows, and rows %lld to %lld were "
                        "asked for; an even "
                        "number, and a part of the gate half, were expected",
                        (long long)raw->ne[1], (long long)raw->begin[1], (long long)raw->end[1]);
    }
    *gate = *raw;
    if (whole) gate->end[1] = half;
    *up = *gate;
    up->begin[1] += half;
    up->end[1] += half;
    return BP_OK;
}

static int32_t open_routed(const struct bpi_ref *ref, const struct bp_moe_weights *w,
                           struct bpi_ref_moe *m, struct bp_error *err)
{
    struct bp_raw gate = w->gate, up = w->up;
    if (w->gate_up.data != NULL) BP_TRY(split_gate_up(&w->gate_up, &gate, &up, err));
    if (gate.data == NULL && up.data == NULL && w->down.data == NULL) return BP_OK;
    if (gate.data == NULL || up.data == NULL || w->down.data == NULL) {
        return bpi_fail(err, BP_E_ARG, "ref", w->down.name,
                        "an expert needs gate, up and down, and one is missing");
    }
    BP_TRY(bpi_ref_weight_open(ref, &gate, &m->gate, err));
    BP_TRY(bpi_ref_weight_open(ref, &up, &m->up, err));
    BP_TRY(bpi_ref_weight_open(ref, &w->down, &m->down, err));
    bool same = gate.begin[2] == up.begin[2] && gate.end[2] == up.end[2] &&
                gate.begin[2] == w->down.begin[2] && gate.end[2] == w->down.end[2];
    if (!same || m->gate.cols != m->up.cols || m->gate.rows != m->up.rows ||
        m->gate.rows != m->down.cols || m->gate.cols != m->down.rows) {
        return bpi_fail(err, BP_E_ARG, "ref", w->down.name,
                        "experts %lld to %lld with gate (%lld, %lld), up (%lld, %lld) and down "
                        "(%lld, %lld) do not fit "
                        "together",
                        (long long)gate.begin[2], (long long)gate.end[2], (long long)m->gate.rows,
                        (long long)m->gate.cols, (long long)m->up.rows, (long long)m->up.cols,
                        (long long)m->down.rows, (long long)m->down.cols);
    }
    m->n_embd = m->gate.cols;
    m->n_ff = m->gate.rows;
    m->expert_begin = (int32_t)gate.begin[2];
    m->expert_end = (int32_t)gate.end[2];
    return BP_OK;
}

static int32_t open_shared(const struct bpi_ref *ref, const struct bp_moe_weights *w,
                           struct bpi_ref_moe *m, struct bp_error *err)
{
    const bool none =
        w->shared_gate.data == NULL && w->shared_up.data == NULL && w->shared_down.data == NULL;
    if (none) return BP_OK;
    if (w->shared_gate.data == NULL || w->shared_up.data == NULL || w->shared_down.data == NULL) {
        return bpi_fail(err, BP_E_ARG, "ref", w->shared_down.name,
                        "the shared expert needs gate, up and down, and one is missing");
    }
    BP_TRY(bpi_ref_weight_open(ref, &w->shared_gate, &m->shared_gate, err));
    BP_TRY(bpi_ref_weight_open(ref, &w->shared_up, &m->shared_up, err));
    BP_TRY(bpi_ref_weight_open(ref, &w->shared_down, &m->shared_down, err));
    const struct bpi_ref_weight *gate = &m->shared_gate, *up = &m->shared_up,
                                *down = &m->shared_down;
    if (gate->planes != 1 || up->planes != 1 || down->planes != 1 || gate->cols != up->cols ||
        gate->rows != up->rows || gate->rows != down->cols || gate->cols != down->rows ||
        (m->n_embd != 0 && m->n_embd != gate->cols)) {
        return bpi_fail(err, BP_E_ARG, "ref", w->shared_down.name,
                        "shared gate (%lld, %lld), up (%lld, %lld) and down (%lld, %lld) do not "
                        "fit together or to "
                        "n_embd %lld",
                        (long long)gate->rows, (long long)gate->cols, (long long)up->rows,
                        (long long)up->cols, (long long)down->rows, (long long)down->cols,
                        (long long)m->n_embd);
    }
    m->n_embd = gate->cols;
    m->n_ff_shared = gate->rows;
    return BP_OK;
}

static int32_t moe_prepare(void *self, const struct bp_moe_weights *w, void **out,
                           struct bp_weight_info *info, struct bp_error *err)
{
    struct bpi_ref *ref = self;
    struct bpi_ref_moe *m = bpi_ref_alloc(ref, 1, sizeof *m);
    if (m == NULL) return bpi_fail_nomem(err, "ref", sizeof *m);
    int32_t rc = open_routed(ref, w, m, err);
    if (rc == BP_OK) rc = open_shared(ref, w, m, err);
    if (rc == BP_OK && m->n_embd == 0) {
        rc = bpi_fail(err, BP_E_ARG, "ref", NULL,
                      "a mixture needs experts or a shared expert, and has neither");
    }
    if (rc != BP_OK) {
        bpi_ref_free(ref, m);
        return rc;
    }
    if (BP_HAS(info, struct bp_weight_info, n_bytes)) {
        info->layout_id = 0;
        info->n_bytes = sizeof *m;
    }
    *out = m;
    return BP_OK;
}

static void moe_release(void *self, void *weights)
{
    bpi_ref_free(self, weights);
}

// clang-format off
static const struct bp_moe_ops ops = {
    .base = {.h = BP_HDR(struct bp_moe_ops, run), .iface = "bp.moe", .iface_major = 0, .iface_minor = 1,
             .supports = moe_supports, .workspace = moe_workspace, .tensors = moe_tensors},
    .prepare = moe_prepare, .release = moe_release, .route = bpi_ref_moe_route, .run = bpi_ref_moe_run,
};
// clang-format on

const struct bp_op_base *bpi_ref_moe_ops(void)
{
    return &ops.base;
}
