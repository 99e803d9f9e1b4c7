/* case_moe.c - every provider of bp.moe against the oracle: the router with all its options, and the experts.
 * The choice of an expert is discrete: a provider may differ from exact arithmetic only where the exact gap is below the
 * precision in use; such flips are counted and printed, never hidden in a tolerance.
 * Order: status, guards, finite class, bound, bits of a repeated call, bits of a row alone.
 * SPDX-License-Identifier: MIT */
#include "cases/bp_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct bp_moe_ops *ops_of(const struct bp_case_suite *s)
{
    return (const struct bp_moe_ops *)(const void *)s->target->op.vt;
}

static struct bp_tensor row_of(const struct bp_case_tensor *t, int64_t row)
{
    struct bp_tensor view = t->t;
    if (row < 0) return view;
    view.data = (unsigned char *)view.data + (size_t)(row * view.stride[0]) * t->elem_bytes;
    view.dim[0] = 1;
    return view;
}

/* ---- router ---- */

struct route_call {
    struct bp_oracle_route r;
    struct bp_case_tensor *logits, *bias, *ids, *weights, *alone_ids, *alone_weights;
    int64_t only_row;
};

static int32_t call_route(struct bp_case_suite *s, void *arg, struct bp_error *err)
{
    const struct route_call *c = arg;
    struct bp_moe_route_args a = {.h = BP_HDR(struct bp_moe_route_args, scale),
                                  .logits = row_of(c->logits, c->only_row),
                                  .ids = c->only_row < 0 ? c->ids->t : c->alone_ids->t,
                                  .weights = c->only_row < 0 ? c->weights->t : c->alone_weights->t,
                                  .gating = c->r.gating,
                                  .group_score = c->r.group_score,
                                  .n_group = c->r.n_group,
                                  .n_group_used = c->r.n_group_used,
                                  .normalize = c->r.normalize,
                                  .scale = (float)c->r.scale};
    if (c->bias != NULL) a.bias = c->bias->t;
    bp_case_ports(s, BP_MOE_OP_ROUTE, &a);
    return ops_of(s)->route(s->target->op.self, &s->launch, &a, err);
}

/* Scratch for one token's exact answer. */
struct exact_route {
    int32_t *ids;
    double *weights, *p, *sel;
};

/* Errors of p in F32: a few roundings of exp and of the sum. */
enum { ROUNDINGS = 16 };

/* Is the choice the exact one, or one that only differs where scores differ by less than F32 can tell? */
static bool check_choice(struct bp_case_suite *s, struct route_call *c, int64_t t,
                         const struct exact_route *e)
{
    const int64_t used = c->r.n_used;
    double scale = 0.0;
    for (int64_t i = 0; i < c->r.n_expert; ++i) {
        if (fabs(e->sel[i]) > scale && isfinite(e->sel[i])) scale = fabs(e->sel[i]);
    }
    for (int64_t k = 0; k < used; ++k) {
        int32_t got = *bp_case_int(c->ids, t * used + k);
        if (got == e->ids[k]) continue;
        if (got < 0 || got >= c->r.n_expert)
            return bp_case_fail(s, "6.6", "token %lld: expert %d does not exist", (long long)t,
                                got);
        for (int64_t j = 0; j < k; ++j) {
            if (*bp_case_int(c->ids, t * used + j) == got)
                return bp_case_fail(s, "6.6", "token %lld: expert %d twice", (long long)t, got);
        }
        double gap = fabs(e->sel[got] - e->sel[e->ids[k]]);
        /* Equal scores come from equal logits, and those tie in every arithmetic: the lower id has to win. */
        if (!(gap > 0.0 && gap <= ROUNDINGS * 0x1p-24 * scale)) {
            return bp_case_fail(
                s, "6.6",
                "token %lld choice %lld: got expert %d, want %d; their scores are %.9g apart",
                (long long)t, (long long)k, got, e->ids[k], gap);
        }
        s->n_flips++;
    }
    return true;
}

static bool check_token(struct bp_case_suite *s, struct route_call *c, int64_t t,
                        const struct exact_route *e)
{
    const int64_t used = c->r.n_used;
    const bool poisoned = e->ids[0] < 0;
    double sum = 0.0;
    if (!poisoned && !check_choice(s, c, t, e)) return false;
    for (int64_t k = 0; k < used && !poisoned; ++k) sum += e->p[*bp_case_int(c->ids, t * used + k)];
    for (int64_t k = 0; k < used; ++k) {
        int32_t id = *bp_case_int(c->ids, t * used + k);
        double got = bp_case_get(c->weights, t * used + k);
        if (poisoned) {
            if (id == -1 && isnan(got)) continue;
            return bp_case_fail(s, "6.3",
                                "token %lld has a logit that is not finite: got expert %d with "
                                "weight %.9g, want -1 and NaN",
                                (long long)t, id, got);
        }
        double want = e->p[id] * c->r.scale / (c->r.normalize != 0 ? sum + 1e-20 : 1.0);
        if (!(fabs(got - want) <= ROUNDINGS * 0x1p-24 * fabs(want) + 1e-37)) {
            return bp_case_fail(s, "6.5", "token %lld choice %lld: weight %.9g, want %.9g",
                                (long long)t, (long long)k, got, want);
        }
    }
    return true;
}

static void check_route(struct bp_case_suite *s, struct route_call *c)
{
    const int64_t n = c->r.n_expert;
    struct exact_route e = {bp_oracle_alloc((size_t)c->r.n_used, sizeof(int32_t)),
                            bp_oracle_alloc((size_t)c->r.n_used, sizeof(double)),
                            bp_oracle_alloc((size_t)n, sizeof(double)),
                            bp_oracle_alloc((size_t)n, sizeof(double))};
    double *z = bp_case_doubles(c->logits),
           *bias = c->bias != NULL ? bp_case_doubles(c->bias) : NULL;
    for (int64_t t = 0; t < c->logits->t.dim[0] && !s->failed; ++t) {
        bp_oracle_route_token(&c->r, z + t * n, bias, e.ids, e.weights, e.p, e.sel);
        (void)check_token(s, c, t, &e);
    }
    free(e.ids);
    free(e.weights);
    free(e.p);
    free(e.sel);
    free(z);
    free(bias);
}

enum route_fill { ROUTE_NORMAL, ROUTE_TIES, ROUTE_LARGE, ROUTE_NAN, ROUTE_INFINITE, ROUTE_FILLS };

static void fill_logits(struct bp_case_suite *s, struct bp_case_tensor *t, int fill)
{
    for (int64_t i = 0; i < bp_case_count(t); ++i) {
        double v = bp_oracle_normal(&s->rng) * 2.0;
        if (fill == ROUTE_TIES) v = floor(v);
        if (fill == ROUTE_LARGE) v *= 40.0; /* softmax must subtract the maximum */
        bp_case_put(t, i, v);
    }
    const int64_t n = t->t.dim[1];
    if (fill == ROUTE_NAN && t->t.dim[0] > 1) bp_case_put(t, n + 3 % n, NAN);
    if (fill != ROUTE_INFINITE) return;
    /* An overflow upstream: nobody may be chosen by it, nor because of it. */
    if (t->t.dim[0] > 1) bp_case_put(t, n + 3 % n, INFINITY);
    if (t->t.dim[0] > 2) bp_case_put(t, 2 * n + 1 % n, -INFINITY);
}

static void route_case(struct bp_case_suite *s, struct bp_case_target *target,
                       const struct bp_oracle_route *r, int64_t n_tok, bool with_bias, int fill)
{
    static const char *const names[] = {"normal", "ties", "large", "nan", "infinite"};
    const struct bp_moe_problem p = {.h = BP_HDR(struct bp_moe_problem, y_dtype),
                                     .op = BP_MOE_OP_ROUTE,
                                     .max_tok = (uint32_t)(n_tok > 0 ? n_tok : 1),
                                     .n_expert = (uint32_t)r->n_expert,
                                     .n_expert_used = (uint32_t)r->n_used,
                                     .expert_end = (uint32_t)r->n_expert,
                                     .n_group = r->n_group,
                                     .n_group_used = r->n_group_used,
                                     .gating = r->gating,
                                     .group_score = r->group_score};
    struct route_call c = {.r = *r, .only_row = -1};
    if (!bp_case_begin(s, target, &p,
                       "route experts %lld used %lld groups %u/%u gating %u score %u norm %u scale "
                       "%g bias %d tok %lld %s",
                       (long long)r->n_expert, (long long)r->n_used, r->n_group_used, r->n_group,
                       r->gating, r->group_score, r->normalize, r->scale, (int)with_bias,
                       (long long)n_tok, names[fill])) {
        return;
    }
    c.logits = bp_case_tensor(s, BP_DT_F32, 2, (int64_t[]){n_tok, r->n_expert}, 4, false);
    if (with_bias) c.bias = bp_case_tensor(s, BP_DT_F32, 1, &r->n_expert, 0, false);
    c.ids = bp_case_tensor(s, BP_DT_I32, 2, (int64_t[]){n_tok, r->n_used}, 1, true);
    c.weights = bp_case_tensor(s, BP_DT_F32, 2, (int64_t[]){n_tok, r->n_used}, 2, true);
    c.alone_ids = bp_case_tensor(s, BP_DT_I32, 2, (int64_t[]){1, r->n_used}, 0, true);
    c.alone_weights = bp_case_tensor(s, BP_DT_F32, 2, (int64_t[]){1, r->n_used}, 0, true);
    fill_logits(s, c.logits, fill);
    if (with_bias) bp_case_fill(s, c.bias, BP_FILL_NORMAL, 0.3);
    if (bp_case_run(s, call_route, &c)) {
        check_route(s, &c);
        (void)bp_case_repeat(s, call_route, &c);
        c.only_row = n_tok - 1;
        if (s->answer.verdict.determinism >= BP_DET_BATCH && n_tok > 0 &&
            bp_case_run(s, call_route, &c)) {
            (void)bp_case_same_row(s, c.ids, n_tok - 1, c.alone_ids, "ids");
            (void)bp_case_same_row(s, c.weights, n_tok - 1, c.alone_weights, "weights");
        }
    }
    bp_case_end(s);
}

static void walk_route(struct bp_case_suite *s, struct bp_case_target *target)
{
    static const int64_t toks[] = {1, 0, 2, 17, 64};
    static const struct {
        int64_t n_expert, n_used;
        uint32_t n_group, n_group_used;
    } shapes[] = {{1, 1, 1, 1},   {2, 1, 1, 1},   {7, 3, 1, 1},   {64, 6, 1, 1}, {160, 6, 8, 3},
                  {256, 8, 8, 4}, {384, 8, 1, 1}, {16, 3, 16, 5}, {16, 4, 4, 2}, {16, 16, 1, 1}};
    for (size_t i = 0; i < KIT_LEN(shapes); ++i) {
        for (uint32_t bits = 0; bits < 32; ++bits) {
            const struct bp_oracle_route r = {
                .n_expert = shapes[i].n_expert,
                .n_used = shapes[i].n_used,
                .n_group = shapes[i].n_group,
                .n_group_used = shapes[i].n_group_used,
                .gating = (bits & 1) != 0 ? BP_GATING_SOFTMAX : BP_GATING_SIGMOID,
                .group_score = (bits & 2) != 0 ? BP_GROUP_MAX : BP_GROUP_TOP2,
                .normalize = (bits >> 2) & 1,
                .scale = (bits & 8) != 0 ? 2.5 : 1.0};
            const bool with_bias = (bits & 16) != 0;
            /* A bias makes equal scores of different logits: what ties exactly then depends on rounding. */
            int fill = (int)((bits + i) % ROUTE_FILLS);
            if (fill == ROUTE_TIES && with_bias) fill = ROUTE_NORMAL;
            /* Scores that are all near 1 or 0 tie below any precision. */
            if (fill == ROUTE_LARGE && r.gating == BP_GATING_SIGMOID) fill = ROUTE_NORMAL;
            route_case(s, target, &r, toks[(bits + i) % KIT_LEN(toks)], with_bias, fill);
        }
    }
}

/* ---- experts ---- */

struct shape {
    int64_t n_embd, n_ff, n_ff_shared; /* in units of the type's block for quantized weights */
    int32_t n_expert, n_used, begin, end;
    int64_t left, right; /* cut off the inner width of the routed experts, in elements */
};

struct layer {
    struct bp_oracle_weight w[6]; /* gate, up, down, and the same of the shared expert */
    struct bp_oracle_weight
        part[3]; /* what this rank has of the inner width of the first three; numbers only */
    struct bp_moe_weights raw;
    struct bp_oracle_moe oracle;
};

struct run_call {
    void *handle;
    struct bp_case_tensor *x, *ids, *gates, *y, *alone;
    uint32_t accumulate;
    int64_t only_row;
};

static int32_t call_run(struct bp_case_suite *s, void *arg, struct bp_error *err)
{
    const struct run_call *c = arg;
    struct bp_moe_run_args a = {.h = BP_HDR(struct bp_moe_run_args, reserved),
                                .weights = c->handle,
                                .x = row_of(c->x, c->only_row),
                                .ids = row_of(c->ids, c->only_row),
                                .gates = row_of(c->gates, c->only_row),
                                .y = c->only_row < 0 ? c->y->t : c->alone->t,
                                .accumulate = c->accumulate};
    bp_case_ports(s, BP_MOE_OP_RUN, &a);
    return ops_of(s)->run(s->target->op.self, &s->launch, &a, err);
}

/* Columns (for down) or rows (for gate and up) [left, ne - right) of every expert, as numbers. */
static void cut_inner(const struct bp_oracle_weight *w, bool columns, int64_t left, int64_t right,
                      struct bp_oracle_weight *out)
{
    *out = (struct bp_oracle_weight){.type = w->type, .ne = {w->ne[0], w->ne[1], w->ne[2]}};
    out->ne[columns ? 0 : 1] -= left + right;
    if (w->w == NULL) return;
    out->w = bp_oracle_alloc((size_t)(out->ne[0] * out->ne[1] * out->ne[2]), sizeof *out->w);
    for (int64_t i = 0; i < out->ne[0] * out->ne[1] * out->ne[2]; ++i) {
        int64_t c = i % out->ne[0], r = i / out->ne[0] % out->ne[1],
                e = i / (out->ne[0] * out->ne[1]);
        out->w[i] =
            w->w[(e * w->ne[1] + r + (columns ? 0 : left)) * w->ne[0] + c + (columns ? left : 0)];
    }
}

static void layer_make(struct bp_case_suite *s, struct layer *y, const struct shape *d,
                       const uint32_t type[3])
{
    struct bp_raw *raws[6] = {&y->raw.gate,        &y->raw.up,        &y->raw.down,
                              &y->raw.shared_gate, &y->raw.shared_up, &y->raw.shared_down};
    memset(y, 0, sizeof *y);
    y->raw.h = (struct bp_hdr)BP_HDR(struct bp_moe_weights, shared_down);
    for (int i = 0; i < 6; ++i) {
        const bool shared = i >= 3, down = i % 3 == 2;
        const int64_t inner = shared ? d->n_ff_shared : d->n_ff;
        if (inner == 0) continue;
        bp_oracle_weight_init(&y->w[i], &s->rng, shared ? type[2] : type[down ? 1 : 0],
                              down ? inner : d->n_embd, down ? d->n_embd : inner,
                              shared ? 1 : d->n_expert, down ? 0.75f : 1.25f);
        *raws[i] = bp_oracle_raw(&y->w[i], "conform.experts");
        if (shared) continue;
        raws[i]->begin[2] = d->begin;
        raws[i]->end[2] = d->end;
        raws[i]->begin[down ? 0 : 1] += d->left;
        raws[i]->end[down ? 0 : 1] -= d->right;
        cut_inner(&y->w[i], down, d->left, d->right, &y->part[i]);
    }
    y->oracle = (struct bp_oracle_moe){.gate = &y->part[0],
                                       .up = &y->part[1],
                                       .down = &y->part[2],
                                       .shared_gate = &y->w[3],
                                       .shared_up = &y->w[4],
                                       .shared_down = &y->w[5],
                                       .expert_begin = d->begin,
                                       .expert_end = d->end};
}

static void check_run(struct bp_case_suite *s, const struct layer *layer, struct run_call *c,
                      uint32_t precision)
{
    const int64_t n_tok = c->x->t.dim[0], n_used = c->ids->t.dim[1], n = n_tok * c->x->t.dim[1];
    double *before = bp_case_doubles(c->y);
    if (bp_case_run(s, call_run, c)) {
        double *x = bp_case_doubles(c->x), *gates = bp_case_doubles(c->gates);
        double *exact = bp_oracle_alloc((size_t)n, sizeof *exact),
               *base = bp_oracle_alloc((size_t)n, sizeof *base);
        double *mag = bp_oracle_alloc((size_t)n, sizeof *mag);
        int32_t *ids = bp_oracle_alloc((size_t)(n_tok * n_used), sizeof *ids);
        for (int64_t i = 0; i < n_tok * n_used; ++i) ids[i] = *bp_case_int(c->ids, i);
        bp_oracle_moe_run(BP_ORACLE_EXACT, &layer->oracle, x, ids, gates, n_tok, n_used, exact,
                          mag);
        bp_oracle_moe_run(precision, &layer->oracle, x, ids, gates, n_tok, n_used, base, NULL);
        for (int64_t i = 0; c->accumulate != 0 && i < n; ++i) {
            exact[i] += before[i];
            base[i] = bp_oracle_round(base[i] + before[i], BP_ORACLE_F32);
            mag[i] += fabs(before[i]);
        }
        (void)bp_case_judge(s, c->y, exact, base, mag, precision, "y");
        (void)bp_case_repeat(s, call_run, c);
        free(x);
        free(gates);
        free(exact);
        free(base);
        free(mag);
        free(ids);
    }
    free(before);
    if (s->answer.verdict.determinism < BP_DET_BATCH || n_tok == 0 || c->accumulate != 0) return;
    for (int k = 0; k < 2; ++k) {
        c->only_row = k == 0 ? 0 : n_tok - 1;
        if (bp_case_run(s, call_run, c))
            (void)bp_case_same_row(s, c->y, c->only_row, c->alone, "y");
    }
}

static void run_case(struct bp_case_suite *s, struct bp_case_target *target,
                     const struct shape *shape, const uint32_t type[3], int64_t n_tok,
                     uint32_t x_dtype, bool accumulate, uint32_t fill)
{
    struct shape d = *shape;
    struct layer layer;
    struct run_call c = {.accumulate = accumulate ? 1 : 0, .only_row = -1};
    struct bp_error err = BP_ERROR_INIT;
    int64_t block = 1;
    for (int i = 0; i < 3; ++i)
        block = bp_oracle_type(type[i])->block_elems > block ? bp_oracle_type(type[i])->block_elems
                                                             : block;
    d.n_embd *= block;
    d.n_ff *= block;
    d.n_ff_shared *= block;
    const struct bp_moe_problem p = {.h = BP_HDR(struct bp_moe_problem, y_dtype),
                                     .op = BP_MOE_OP_RUN,
                                     .max_tok = (uint32_t)(n_tok > 0 ? n_tok : 1),
                                     .n_embd = d.n_embd,
                                     .n_ff = d.n_ff - d.left - d.right,
                                     .n_ff_shared = d.n_ff_shared,
                                     .n_expert = (uint32_t)d.n_expert,
                                     .n_expert_used = (uint32_t)d.n_used,
                                     .expert_begin = (uint32_t)d.begin,
                                     .expert_end = (uint32_t)d.end,
                                     .n_group = 1,
                                     .n_group_used = 1,
                                     .gating = BP_GATING_SIGMOID,
                                     .type_gate = type[0],
                                     .type_up = type[0],
                                     .type_down = type[1],
                                     .type_shared_gate = type[2],
                                     .type_shared_up = type[2],
                                     .type_shared_down = type[2],
                                     .x_dtype = x_dtype,
                                     .y_dtype = BP_DT_F32};
    if (!bp_case_begin(
            s, target, &p,
            "run %s/%s/%s embd %lld ff %lld-%lld-%lld shared %lld experts %d..%d of %d used %d "
            "tok %lld x %u acc %d %s",
            bp_oracle_type(type[0])->name, bp_oracle_type(type[1])->name,
            bp_oracle_type(type[2])->name, (long long)d.n_embd, (long long)d.n_ff,
            (long long)d.left, (long long)d.right, (long long)d.n_ff_shared, d.begin, d.end,
            d.n_expert, d.n_used, (long long)n_tok, x_dtype, (int)accumulate,
            bp_case_fill_name(fill))) {
        return;
    }
    layer_make(s, &layer, &d, type);
    (void)bp_case_prepared(
        s, ops_of(s)->prepare(s->target->op.self, &layer.raw, &c.handle, NULL, &err), &err);
    c.x = bp_case_tensor(s, x_dtype, 2, (int64_t[]){n_tok, d.n_embd}, 8, false);
    c.ids = bp_case_tensor(s, BP_DT_I32, 2, (int64_t[]){n_tok, d.n_used}, 0, false);
    c.gates = bp_case_tensor(s, BP_DT_F32, 2, (int64_t[]){n_tok, d.n_used}, 0, false);
    c.y = bp_case_tensor(s, BP_DT_F32, 2, (int64_t[]){n_tok, d.n_embd}, 8, true);
    c.alone = bp_case_tensor(s, BP_DT_F32, 2, (int64_t[]){1, d.n_embd}, 0, true);
    bp_case_fill(s, c.x, fill, 1.0);
    bp_case_fill(s, c.gates, BP_FILL_NORMAL, 0.5);
    if (accumulate) bp_case_fill(s, c.y, BP_FILL_NORMAL, 1.0);
    for (int64_t t = 0; t < n_tok; ++t) {
        int32_t first = (int32_t)kit_rng_below(&s->rng, (uint64_t)d.n_expert);
        for (int64_t k = 0; k < d.n_used; ++k) { /* distinct experts; now and then nobody */
            *bp_case_int(c.ids, t * d.n_used + k) =
                kit_rng_below(&s->rng, 9) == 0 ? -1 : (int32_t)((first + k * 3) % d.n_expert);
        }
    }
    check_run(s, &layer, &c, bp_oracle_precision_of(x_dtype));
    ops_of(s)->release(s->target->op.self, c.handle);
    for (int i = 0; i < 6; ++i) bp_oracle_weight_free(&layer.w[i]);
    for (int i = 0; i < 3; ++i) bp_oracle_weight_free(&layer.part[i]);
    bp_case_end(s);
}

static void walk_run(struct bp_case_suite *s, struct bp_case_target *target)
{
    static const struct shape floats[] = {{1, 1, 0, 1, 1, 0, 1, 0, 0},
                                          {7, 5, 3, 4, 2, 0, 4, 0, 0},
                                          {64, 33, 65, 10, 4, 0, 10, 7, 1},
                                          {96, 40, 0, 16, 8, 4, 11, 0, 0},
                                          {32, 16, 16, 5, 2, 5, 5, 0, 0}};
    /* Cuts inside a block of down, at its edge, and one that leaves nothing. */
    static const struct shape blocks[] = {
        {1, 1, 1, 7, 3, 0, 7, 0, 0}, {2, 1, 0, 8, 2, 2, 8, 0, 0},  {1, 2, 1, 4, 4, 0, 2, 0, 0},
        {1, 3, 1, 6, 2, 0, 6, 5, 9}, {2, 2, 0, 5, 3, 1, 5, 32, 0}, {1, 1, 1, 4, 2, 0, 4, 32, 0}};
    static const uint32_t mixes[][3] = {{BP_GGUF_Q4_K, BP_GGUF_Q6_K, BP_GGUF_Q8_0},
                                        {BP_GGUF_Q8_0, BP_GGUF_Q8_0, BP_GGUF_Q8_0},
                                        {BP_GGUF_Q4_0, BP_GGUF_Q5_1, BP_GGUF_Q4_1},
                                        {BP_GGUF_Q2_K, BP_GGUF_Q3_K, BP_GGUF_Q5_K},
                                        {BP_GGUF_IQ4_XS, BP_GGUF_IQ4_NL, BP_GGUF_Q5_0}};
    static const uint32_t plain[][3] = {{BP_GGUF_F32, BP_GGUF_F32, BP_GGUF_F32},
                                        {BP_GGUF_BF16, BP_GGUF_F16, BP_GGUF_F32}};
    static const uint32_t x_dtypes[] = {BP_DT_F32, BP_DT_BF16, BP_DT_F16};
    static const int64_t toks[] = {1, 0, 2, 5, 33};
    static const uint32_t fills[] = {BP_FILL_NORMAL, BP_FILL_WIDE, BP_FILL_NAN_ROW,
                                     BP_FILL_ONE_HOT};
    uint32_t at = 0;
    for (size_t t = 0; t < KIT_LEN(toks); ++t) {
        for (size_t k = 0; k < KIT_LEN(x_dtypes); ++k) {
            for (size_t i = 0; i < KIT_LEN(floats); ++i, ++at) {
                run_case(s, target, &floats[i], plain[at % 2], toks[t], x_dtypes[k], at % 5 == 4,
                         fills[at % KIT_LEN(fills)]);
            }
            for (size_t i = 0; i < KIT_LEN(blocks); ++i, ++at) {
                run_case(s, target, &blocks[i], mixes[at % KIT_LEN(mixes)], toks[t], x_dtypes[k],
                         at % 5 == 4, fills[at % KIT_LEN(fills)]);
            }
        }
    }
    /* Widths of real layers, more tokens than experts. */
    static const struct shape wide = {4, 1, 1, 32, 6, 0, 32, 0, 0};
    static const int64_t many[] = {1, 3, 8, 130};
    for (size_t t = 0; s->kit->o->full && t < KIT_LEN(many); ++t) {
        for (size_t k = 0; k < KIT_LEN(mixes); ++k)
            run_case(s, target, &wide, mixes[k], many[t], x_dtypes[(t + k) % KIT_LEN(x_dtypes)],
                     false, t == 2 ? BP_FILL_NAN_ROW : BP_FILL_NORMAL);
    }
}

void case_moe(struct kit *k)
{
    struct bp_case_suite *s = bp_case_open(k, "bp.moe");
    if (s == NULL) return;
    walk_route(s, &s->own);
    walk_run(s, &s->own);
    bp_case_close(s);
}
