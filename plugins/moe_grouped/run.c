/* run.c - workspace, route and run: sizes become launches. Nothing here depends on what ids hold, so a captured step
 * serves every routing.
 * Threads: one call per instance. SPDX-License-Identifier: MIT */
#include "moe.h"
#include "plan.h"

int32_t moe_workspace(void *self, const void *problem_max, struct bp_workspace *out,
                      struct bp_error *err)
{
    const struct bp_moe_problem *p = problem_max;
    const struct moe_size most = {.n_tok = p->max_tok,
                                  .n_used = p->n_expert_used,
                                  .n_expert = p->expert_end,
                                  .n_embd = p->n_embd,
                                  .width = moe_width_most(p->n_ff),
                                  .width_shared = moe_width_most(p->n_ff_shared),
                                  .x_dtype = p->x_dtype};
    (void)self;
    if (p->op == BP_MOE_OP_ROUTE) return bp_workspace_set(out, 0, 0, 0, 0);
    const uint64_t n_bytes = moe_plan_bytes(&most);
    if (n_bytes == UINT64_MAX)
        return bp_error_set(err, BP_E_LIMIT, MOE_NAME, "workspace",
                            "the scratch does not fit 64 bits; lower engine.batch_tokens");
    return bp_workspace_set(out, 0, 0, n_bytes, 0);
}

/* ---- route ---- */

static int32_t check_route(const struct bp_moe_route_args *a, struct bp_error *err)
{
    const int64_t n = a->logits.dim[1], used = a->ids.dim[1],
                  n_group = a->n_group > 1 ? a->n_group : 1;
    if (n < 1 || n > MOE_MAX_EXPERT || n % n_group != 0)
        return bp_error_number(err, BP_E_ARG, MOE_NAME, "moe.route",
                               "the groups must divide the experts, of which there are ", n, "");
    if (a->logits.dtype != BP_DT_F32 || a->ids.dtype != BP_DT_I32 ||
        a->weights.dtype != BP_DT_F32 || a->ids.dim[0] != a->logits.dim[0] ||
        a->weights.dim[0] != a->logits.dim[0] || a->weights.dim[1] != used)
        return bp_error_number(err, BP_E_ARG, MOE_NAME, "moe.route",
                               "logits and weights must be F32 and ids I32, with a row for each "
                               "token, of which there are ",
                               a->logits.dim[0], "");
    const int64_t choice = n_group > 1 ? (int64_t)a->n_group_used * (n / n_group) : n;
    if (used < 1 || used > choice || used > n)
        return bp_error_number(err, BP_E_ARG, MOE_NAME, "moe.route",
                               "more experts are chosen than stay after the groups: ", used, "");
    if (a->gating != BP_GATING_SOFTMAX && a->gating != BP_GATING_SIGMOID)
        return bp_error_number(err, BP_E_ARG, MOE_NAME, "moe.route",
                               "gating is softmax (1) or sigmoid (2), and not ", a->gating, "");
    return BP_OK;
}

int32_t moe_route(void *self, const struct bp_launch *l, const struct bp_moe_route_args *a,
                  struct bp_error *err)
{
    const struct moe_op *op = self;
    BP_TRY(check_route(a, err));
    if (a->logits.dim[0] == 0) return BP_OK;
    BP_TRY(bp_cuda_use(op->dev, err, MOE_NAME, "moe.route"));
    const struct moe_route_call c = {.logits = a->logits.data,
                                     .bias = a->bias.data,
                                     .ids = a->ids.data,
                                     .weights = a->weights.data,
                                     .logits_stride = a->logits.stride[0],
                                     .ids_stride = a->ids.stride[0],
                                     .weights_stride = a->weights.stride[0],
                                     .n_tok = (int32_t)a->logits.dim[0],
                                     .n_expert = (int32_t)a->logits.dim[1],
                                     .n_used = (int32_t)a->ids.dim[1],
                                     .n_group = a->n_group > 1 ? (int32_t)a->n_group : 1,
                                     .n_group_used = (int32_t)a->n_group_used,
                                     .softmax = a->gating == BP_GATING_SOFTMAX,
                                     .top2 = a->group_score == BP_GROUP_TOP2,
                                     .normalize = a->normalize != 0,
                                     .scale = a->scale};
    return bp_cuda_launched(err, MOE_NAME, "moe.route", moe_launch_route(&c, l->stream));
}

/* ---- run ---- */

struct run {
    const struct bp_moe_run_args *a;
    const struct moe_layer *y;
    void *stream;
    struct moe_plan plan;
    struct moe_scratch s;
    struct moe_call routed, shared;
    int32_t n_tok, n_used;
    int has_routed, has_shared;
};

static int32_t check_run(const struct bp_moe_run_args *a, int64_t n_embd, struct bp_error *err)
{
    const int64_t n = a->x.dim[0];
    if (a->x.dim[1] == n_embd && a->y.dim[1] == n_embd && a->y.dim[0] == n && a->ids.dim[0] == n &&
        a->gates.dim[0] == n && a->gates.dim[1] == a->ids.dim[1] && n <= 65535) {
        /* Pairs are counted in 32 bits. */
        if (a->y.dtype == BP_DT_F32 && a->gates.dtype == BP_DT_F32 && a->ids.dtype == BP_DT_I32 &&
            bp_is_float(a->x.dtype) && n * a->ids.dim[1] <= INT32_MAX / 2)
            return BP_OK;
        return bp_error_number(
            err, BP_E_ARG, MOE_NAME, "moe.run",
            "x must be of a float type, ids I32, gates and y F32, and tokens times experts at most "
            "1073741823; the dtype of x is ",
            a->x.dtype, "");
    }
    return bp_error_number(
        err, BP_E_ARG, MOE_NAME, "moe.run",
        "x, ids, gates and y must have the same tokens, at most 65535, and columns: ", n_embd, "");
}

static void call_set(struct run *r, struct moe_call *c, const struct moe_experts *e, int routed)
{
    const struct bp_moe_run_args *a = r->a;
    *c = (struct moe_call){.e = *e,
                           .x = a->x.data,
                           .x_stride = a->x.stride[0],
                           .x_dtype = a->x.dtype,
                           .n_tok = r->n_tok,
                           .n_used = routed ? r->n_used : 1,
                           .ids = routed ? a->ids.data : NULL,
                           .ids_stride = a->ids.stride[0],
                           .h = routed ? r->s.h : r->s.h_shared,
                           .part = routed ? r->s.part : r->s.part_shared,
                           .tile_tok = routed ? r->plan.tile_tok : r->plan.tile_tok_shared,
                           .n_tile = routed ? r->plan.n_tile : r->plan.n_tile_shared,
                           .half = r->plan.half,
                           .list = routed ? r->s.list : NULL,
                           .tiles = routed ? r->s.tiles : NULL};
}

static int32_t sort(const struct run *r)
{
    const struct moe_call *c = &r->routed;
    const struct moe_sort_call s = {.ids = c->ids,
                                    .ids_stride = c->ids_stride,
                                    .n_tok = c->n_tok,
                                    .n_used = c->n_used,
                                    .begin = c->e.begin,
                                    .n = c->e.n,
                                    .tile_tok = c->tile_tok,
                                    .n_tile = c->n_tile,
                                    .list = r->s.list,
                                    .tiles = r->s.tiles};
    return moe_launch_sort(&s, r->stream);
}

static int32_t sum(const struct run *r, int64_t col, int64_t n_col)
{
    const struct bp_moe_run_args *a = r->a;
    const struct moe_sum_call c = {.ids = a->ids.data,
                                   .gates = a->gates.data,
                                   .ids_stride = a->ids.stride[0],
                                   .gates_stride = a->gates.stride[0],
                                   .y_stride = a->y.stride[0],
                                   .part = r->s.part,
                                   .part_shared = r->has_shared ? r->s.part_shared : NULL,
                                   .y = a->y.data,
                                   .n_tok = r->n_tok,
                                   .n_used = r->n_used,
                                   .begin = r->y->routed.begin,
                                   .n = r->has_routed ? r->y->routed.n : 0,
                                   .col = (int32_t)col,
                                   .n_col = (int32_t)n_col,
                                   .accumulate = a->accumulate != 0};
    return moe_launch_sum(&c, r->stream);
}

/* h of all pairs first; then down and the sums, as many columns at a time as the scratch holds parts of. */
static int32_t launch(struct run *r, int64_t n_embd)
{
    int32_t (*inner)(const struct moe_call *, const struct moe_call *, void *) =
        r->plan.few ? moe_launch_few_inner : moe_launch_many_inner;
    int32_t (*outer)(const struct moe_call *, const struct moe_call *, void *) =
        r->plan.few ? moe_launch_few_outer : moe_launch_many_outer;
    struct moe_call *routed = r->has_routed ? &r->routed : NULL,
                    *shared = r->has_shared ? &r->shared : NULL;
    if (routed != NULL && !r->plan.few) BP_TRY(sort(r));
    BP_TRY(inner(routed, shared, r->stream));
    for (int64_t col = 0; col < n_embd; col += r->plan.n_col) {
        const int64_t n_col = n_embd - col < r->plan.n_col ? n_embd - col : r->plan.n_col;
        r->routed.col = r->shared.col = (int32_t)col;
        r->routed.n_col = r->shared.n_col = (int32_t)n_col;
        BP_TRY(outer(routed, shared, r->stream));
        BP_TRY(sum(r, col, n_col));
    }
    return 0;
}

int32_t moe_run(void *self, const struct bp_launch *l, const struct bp_moe_run_args *a,
                struct bp_error *err)
{
    const struct moe_layer *y = a->weights;
    if (y == NULL)
        return bp_error_set(err, BP_E_ARG, MOE_NAME, "moe.run",
                            "there are no weights; call prepare() first");
    const int64_t n_embd = y->routed.n_embd != 0 ? y->routed.n_embd : y->shared.n_embd;
    struct run r = {.a = a, .y = y, .stream = l->stream};
    const struct moe_op *op = self;
    struct bp_area area;
    BP_TRY(check_run(a, n_embd, err));
    r.n_tok = (int32_t)a->x.dim[0];
    r.n_used = (int32_t)a->ids.dim[1];
    if (r.n_tok == 0) return BP_OK;
    BP_TRY(bp_cuda_use(op->dev, err, MOE_NAME, "moe.run"));
    r.has_routed = y->routed.n > 0 && y->routed.n_ff > 0 && r.n_used > 0;
    r.has_shared = y->shared.n_ff > 0;
    const struct moe_size size = {.n_tok = r.n_tok,
                                  .n_used = r.n_used,
                                  .n_expert = r.has_routed ? y->routed.n : 0,
                                  .n_embd = n_embd,
                                  .width = r.has_routed ? y->routed.width : 0,
                                  .width_shared = r.has_shared ? y->shared.width : 0,
                                  .x_dtype = a->x.dtype};
    moe_plan_make(&size, &r.plan);
    bp_area_of(&area, l->scratch, l->scratch_bytes);
    moe_plan_take(&size, &r.plan, &area, &r.s);
    if (area.bad)
        return bp_error_number(err, BP_E_ARG, MOE_NAME, "moe.run",
                               "the scratch is smaller than workspace() asked for, in bytes: ",
                               (int64_t)l->scratch_bytes, "");
    call_set(&r, &r.routed, &y->routed, 1);
    call_set(&r, &r.shared, &y->shared, 0);
    return bp_cuda_launched(err, MOE_NAME, "moe.run", launch(&r, n_embd));
}
