/* test_ref_route.c - the router of the reference backend. SPDX-License-Identifier: MIT */
#include "ref_fixture.h"

struct bench {
    struct rig g;
    struct bp_op_ref op;
    const struct bp_moe_ops *ops;
};

static void bench_open(struct bench *b, const char *round)
{
    rig_open(&b->g, round);
    b->op = rig_op(&b->g, "bp.moe");
    b->ops = (const struct bp_moe_ops *)(const void *)b->op.vt;
}

/* One call: n_tok rows, with or without a bias. */
struct routing {
    struct rig_tensor logits, bias, ids, weights;
    struct bp_moe_route_args args;
};

static void routing_open(struct routing *q, int64_t n_tok, const struct bp_oracle_route *r,
                         bool with_bias)
{
    q->logits = rig_tensor2(BP_DT_F32, n_tok, r->n_expert, 1);
    q->bias = rig_tensor1(BP_DT_F32, r->n_expert);
    q->ids = rig_tensor2(BP_DT_I32, n_tok, r->n_used, 2);
    q->weights = rig_tensor2(BP_DT_F32, n_tok, r->n_used, 0);
    q->args = (struct bp_moe_route_args){.h = BP_HDR(struct bp_moe_route_args, scale),
                                         .logits = q->logits.t,
                                         .ids = q->ids.t,
                                         .weights = q->weights.t,
                                         .gating = r->gating,
                                         .group_score = r->group_score,
                                         .n_group = r->n_group,
                                         .n_group_used = r->n_group_used,
                                         .normalize = r->normalize,
                                         .scale = (float)r->scale};
    if (with_bias) q->args.bias = q->bias.t;
}

static void routing_drop(struct routing *q)
{
    rig_drop(&q->logits, "logits");
    rig_drop(&q->bias, "bias");
    rig_drop(&q->ids, "ids");
    rig_drop(&q->weights, "weights");
}

static void route(struct bench *b, const struct bp_oracle_route *r, const struct routing *q)
{
    struct bp_error err = BP_ERROR_INIT;
    struct bp_moe_problem p = {.h = BP_HDR(struct bp_moe_problem, y_dtype),
                               .op = BP_MOE_OP_ROUTE,
                               .max_tok = (uint32_t)q->args.logits.dim[0],
                               .n_expert = (uint32_t)r->n_expert,
                               .n_expert_used = (uint32_t)r->n_used,
                               .n_group = r->n_group,
                               .n_group_used = r->n_group_used,
                               .gating = r->gating,
                               .group_score = r->group_score};
    rig_prepare(&b->g, &b->op, &p);
    ck_assert_msg(b->ops->route(b->op.self, &b->g.launch, &q->args, &err) == BP_OK, "route: %s",
                  err.msg);
    rig_check_scratch(&b->g);
}

static void check_against_oracle(struct routing *q, const struct bp_oracle_route *r)
{
    double *z = rig_doubles(&q->logits), *bias = rig_doubles(&q->bias);
    double *p = bp_oracle_alloc((size_t)r->n_expert, sizeof *p),
           *sel = bp_oracle_alloc((size_t)r->n_expert, sizeof *sel);
    double *weights = bp_oracle_alloc((size_t)r->n_used, sizeof *weights);
    int32_t *ids = bp_oracle_alloc((size_t)r->n_used, sizeof *ids);
    for (int64_t t = 0; t < q->logits.t.dim[0]; ++t) {
        bp_oracle_route_token(r, z + t * r->n_expert, q->args.bias.data != NULL ? bias : NULL, ids,
                              weights, p, sel);
        for (int64_t k = 0; k < r->n_used; ++k) {
            double got = rig_get(&q->weights, t * r->n_used + k);
            ck_assert_msg(*rig_int(&q->ids, t * r->n_used + k) == ids[k],
                          "token %lld choice %lld: got expert %d, want %d", (long long)t,
                          (long long)k, *rig_int(&q->ids, t * r->n_used + k), ids[k]);
            if (isnan(weights[k])) {
                ck_assert(isnan(got));
                continue;
            }
            ck_assert_msg(fabs(got - weights[k]) <= 0x1p-24 * fabs(weights[k]) + 1e-45,
                          "token %lld choice %lld: got %.9g, want %.9g", (long long)t, (long long)k,
                          got, weights[k]);
        }
    }
    free(z);
    free(bias);
    free(p);
    free(sel);
    free(weights);
    free(ids);
}

/* ---- the whole space of options ---- */

static void random_case(struct bench *b, const struct bp_oracle_route *r, int64_t n_tok,
                        bool with_bias, bool ties)
{
    struct routing q;
    routing_open(&q, n_tok, r, with_bias);
    for (int64_t i = 0; i < n_tok * r->n_expert; ++i) {
        double v = bp_oracle_normal(&b->g.rng) * 2.0;
        rig_set(&q.logits, i, ties ? floor(v * 2.0) : v);
    }
    for (int64_t i = 0; i < r->n_expert; ++i)
        rig_set(&q.bias, i, bp_oracle_normal(&b->g.rng) * 0.5);
    route(b, r, &q);
    check_against_oracle(&q, r);
    routing_drop(&q);
}

START_TEST(all_options)
{
    static const struct {
        int64_t n_expert, n_used;
        uint32_t n_group, n_group_used;
    } shapes[] = {{1, 1, 1, 1},  {2, 2, 1, 1},   {7, 3, 1, 1},   {64, 6, 0, 0},  {256, 8, 8, 4},
                  {16, 4, 4, 2}, {16, 2, 16, 5}, {160, 6, 8, 3}, {16, 16, 4, 4}, {12, 4, 6, 2}};
    for (int round = 0; round < 2; ++round) {
        struct bench b;
        bench_open(&b, round == 0 ? NULL : "bf16"); /* rounding never touches the router */
        for (size_t s = 0; s < BPI_ARRAY_LEN(shapes); ++s) {
            for (uint32_t bits = 0; bits < 32; ++bits) {
                struct bp_oracle_route r = {
                    .n_expert = shapes[s].n_expert,
                    .n_used = shapes[s].n_used,
                    .n_group = shapes[s].n_group,
                    .n_group_used = shapes[s].n_group_used,
                    .gating = (bits & 1) != 0 ? BP_GATING_SOFTMAX : BP_GATING_SIGMOID,
                    .group_score = (bits & 2) != 0 ? BP_GROUP_MAX : BP_GROUP_TOP2,
                    .normalize = (bits >> 2) & 1,
                    .scale = (bits & 8) != 0 ? 2.5 : 1.0};
                random_case(&b, &r, 1 + (int64_t)(bits % 5), (bits & 16) != 0, false);
                random_case(&b, &r, 3, false, true); /* many equal scores: lowest id first */
            }
        }
        rig_close(&b.g);
    }
}
END_TEST

/* ---- faults that others had ---- */

/* H02: the bias decides who is chosen and never what they weigh. */
START_TEST(bias_does_not_leak_into_weights)
{
    struct bench b;
    struct routing q;
    const struct bp_oracle_route r = {
        .n_expert = 8, .n_used = 2, .gating = BP_GATING_SIGMOID, .scale = 1.0};
    bench_open(&b, NULL);
    routing_open(&q, 1, &r, true);
    for (int i = 0; i < 8; ++i) {
        rig_set(&q.logits, i, 0.25 * i);
        rig_set(&q.bias, i, i == 1 || i == 4 ? 3.0 : 0.0);
    }
    route(&b, &r, &q);
    ck_assert_int_eq(*rig_int(&q.ids, 0), 4);
    ck_assert_int_eq(*rig_int(&q.ids, 1), 1);
    ck_assert(rig_get(&q.weights, 0) == (double)(float)(1.0 / (1.0 + exp(-1.0))));
    ck_assert(rig_get(&q.weights, 1) == (double)(float)(1.0 / (1.0 + exp(-0.25))));
    q.args.bias.data = NULL; /* without it others are chosen */
    route(&b, &r, &q);
    ck_assert_int_eq(*rig_int(&q.ids, 0), 7);
    ck_assert_int_eq(*rig_int(&q.ids, 1), 6);
    routing_drop(&q);
    rig_close(&b.g);
}
END_TEST

/* H03: 16 experts in 4 groups, where the maximum and the sum of two choose different groups. */
START_TEST(group_scores_differ)
{
    struct bench b;
    struct routing q;
    struct bp_oracle_route r = {.n_expert = 16,
                                .n_used = 2,
                                .gating = BP_GATING_SIGMOID,
                                .n_group = 4,
                                .n_group_used = 1,
                                .scale = 1.0};
    bench_open(&b, NULL);
    routing_open(&q, 1, &r, false);
    for (int i = 0; i < 16; ++i) rig_set(&q.logits, i, -4.0);
    rig_set(&q.logits, 5, 3.0); /* group 1: the single best */
    rig_set(&q.logits, 9, 2.0); /* group 2: the best two */
    rig_set(&q.logits, 10, 2.0);
    q.args.group_score = r.group_score = BP_GROUP_MAX;
    route(&b, &r, &q);
    ck_assert_int_eq(*rig_int(&q.ids, 0), 5);
    ck_assert_int_eq(*rig_int(&q.ids, 1), 4);
    q.args.group_score = r.group_score = BP_GROUP_TOP2;
    route(&b, &r, &q);
    ck_assert_int_eq(*rig_int(&q.ids, 0), 9);
    ck_assert_int_eq(*rig_int(&q.ids, 1), 10);
    routing_drop(&q);
    rig_close(&b.g);
}
END_TEST

/* H03: groups of one expert have no second best; their score must stay finite and the best groups must win. */
START_TEST(groups_of_one)
{
    struct bench b;
    struct routing q;
    struct bp_oracle_route r = {.n_expert = 16,
                                .n_used = 3,
                                .gating = BP_GATING_SIGMOID,
                                .group_score = BP_GROUP_TOP2,
                                .n_group = 16,
                                .n_group_used = 3,
                                .scale = 1.0};
    bench_open(&b, NULL);
    routing_open(&q, 1, &r, true);
    for (int i = 0; i < 16; ++i) {
        rig_set(&q.logits, i, (double)((i * 7) % 16)); /* descending: 9, 2, 11 */
        rig_set(&q.bias, i, -5.0);                     /* all scores negative */
    }
    route(&b, &r, &q);
    ck_assert_int_eq(*rig_int(&q.ids, 0), 9);
    ck_assert_int_eq(*rig_int(&q.ids, 1), 2);
    ck_assert_int_eq(*rig_int(&q.ids, 2), 11);
    check_against_oracle(&q, &r);
    routing_drop(&q);
    rig_close(&b.g);
}
END_TEST

/* A dropped group stays dropped, even when all scores that stay are negative (zeroing instead would let it in). */
START_TEST(dropped_groups_stay_out)
{
    struct bench b;
    struct routing q;
    struct bp_oracle_route r = {.n_expert = 8,
                                .n_used = 4,
                                .gating = BP_GATING_SIGMOID,
                                .group_score = BP_GROUP_TOP2,
                                .n_group = 2,
                                .n_group_used = 1,
                                .scale = 1.0};
    bench_open(&b, NULL);
    routing_open(&q, 1, &r, true);
    for (int i = 0; i < 8; ++i) {
        rig_set(&q.logits, i, 0.0);
        rig_set(&q.bias, i, i < 4 ? -9.0 : -2.0 - i);
    }
    rig_set(&q.bias, 0,
            -1.0); /* group 0 wins by its two best, -0.5 and -8.5; group 1 has -5.5 and -6.5 */
    route(&b, &r, &q);
    for (int k = 0; k < 4; ++k) ck_assert_int_eq(*rig_int(&q.ids, k), k);
    routing_drop(&q);
    rig_close(&b.g);
}
END_TEST

/* H04: normalise and scale are two switches. Sums of weights: 2.5, 1, 2.5 s, s. */
START_TEST(normalize_and_scale_are_independent)
{
    struct bench b;
    bench_open(&b, NULL);
    for (int bits = 0; bits < 4; ++bits) {
        struct routing q;
        const struct bp_oracle_route r = {.n_expert = 10,
                                          .n_used = 4,
                                          .gating = BP_GATING_SOFTMAX,
                                          .normalize = (uint32_t)bits & 1,
                                          .scale = (bits & 2) != 0 ? 2.5 : 1.0};
        double sum = 0.0, p_sum = 0.0, top = 0.0;
        routing_open(&q, 1, &r, false);
        for (int i = 0; i < 10; ++i) rig_set(&q.logits, i, 0.3 * i);
        route(&b, &r, &q);
        for (int i = 0; i < 10; ++i) {
            p_sum += exp(0.3 * i);
            top += i >= 6 ? exp(0.3 * i) : 0.0;
        }
        for (int k = 0; k < 4; ++k) sum += rig_get(&q.weights, k);
        double want = (r.normalize != 0 ? 1.0 : top / p_sum) * r.scale;
        ck_assert_msg(fabs(sum - want) <= 4 * 0x1p-24 * want,
                      "normalize %u scale %g: sum %.9g, want %.9g", r.normalize, r.scale, sum,
                      want);
        routing_drop(&q);
    }
    rig_close(&b.g);
}
END_TEST

START_TEST(nan_and_infinity)
{
    enum { N = 6, X = 12, USED = 3 };
    struct bench b;
    struct routing q, clean;
    bench_open(&b, NULL);
    for (uint32_t gating = BP_GATING_SOFTMAX; gating <= BP_GATING_SIGMOID; ++gating) {
        const struct bp_oracle_route r = {
            .n_expert = X, .n_used = USED, .gating = gating, .normalize = 1, .scale = 2.0};
        routing_open(&q, N, &r, false);
        routing_open(&clean, N, &r, false);
        for (int i = 0; i < N * X; ++i) {
            double v = bp_oracle_normal(&b.g.rng);
            rig_set(&q.logits, i, v);
            rig_set(&clean.logits, i, v);
        }
        rig_set(&q.logits, 1 * X + 5, NAN);
        rig_set(&q.logits, 3 * X + 2, -INFINITY);
        rig_set(&q.logits, 5 * X, INFINITY);
        for (int i = 0; i < X; ++i) rig_set(&q.logits, 4 * X + i, -3e38);
        route(&b, &r, &q);
        route(&b, &r, &clean);
        for (int k = 0; k < USED; ++k) {
            for (int t = 1; t < N; t += 2) {
                ck_assert_int_eq(*rig_int(&q.ids, t * USED + k), -1);
                ck_assert(isnan(rig_get(&q.weights, t * USED + k)));
            }
            ck_assert_int_eq(*rig_int(&q.ids, 4 * USED + k), k); /* all equal: lowest ids */
            if (gating == BP_GATING_SOFTMAX)
                ck_assert(fabs(rig_get(&q.weights, 4 * USED + k) - 2.0 / 3.0) < 1e-6);
            ck_assert(isfinite(rig_get(&q.weights, 4 * USED + k)));
        }
        for (int t = 0; t < N; t += 2) {
            if (t == 4) continue;
            rig_check_same(&q.weights, t * USED, &clean.weights, t * USED, USED,
                           "row beside a NaN");
            rig_check_same(&q.ids, t * USED, &clean.ids, t * USED, USED, "row beside a NaN");
        }
        routing_drop(&q);
        routing_drop(&clean);
    }
    rig_close(&b.g);
}
END_TEST

START_TEST(rows_do_not_depend_on_the_batch)
{
    enum { N = 64 };
    struct bench b;
    struct routing all;
    const struct bp_oracle_route r = {.n_expert = 256,
                                      .n_used = 8,
                                      .gating = BP_GATING_SIGMOID,
                                      .group_score = BP_GROUP_TOP2,
                                      .n_group = 8,
                                      .n_group_used = 4,
                                      .normalize = 1,
                                      .scale = 2.5};
    bench_open(&b, NULL);
    routing_open(&all, N, &r, true);
    for (int64_t i = 0; i < N * 256; ++i) rig_set(&all.logits, i, bp_oracle_normal(&b.g.rng));
    for (int64_t i = 0; i < 256; ++i) rig_set(&all.bias, i, bp_oracle_normal(&b.g.rng) * 0.1);
    route(&b, &r, &all);
    check_against_oracle(&all, &r);
    for (int64_t t = 0; t < N; ++t) {
        struct routing one;
        routing_open(&one, 1, &r, true);
        for (int64_t i = 0; i < 256; ++i) {
            rig_set(&one.logits, i, rig_get(&all.logits, t * 256 + i));
            rig_set(&one.bias, i, rig_get(&all.bias, i));
        }
        route(&b, &r, &one);
        rig_check_same(&one.ids, 0, &all.ids, t * 8, 8, "ids of a row alone");
        rig_check_same(&one.weights, 0, &all.weights, t * 8, 8, "weights of a row alone");
        routing_drop(&one);
    }
    routing_drop(&all);
    rig_close(&b.g);
}
END_TEST

START_TEST(impossible_routings_are_refused)
{
    struct bench b;
    bench_open(&b, NULL);
    const struct bp_moe_problem good = {.h = BP_HDR(struct bp_moe_problem, y_dtype),
                                        .op = BP_MOE_OP_ROUTE,
                                        .max_tok = 4,
                                        .n_expert = 16,
                                        .n_expert_used = 4,
                                        .n_group = 4,
                                        .n_group_used = 2,
                                        .gating = BP_GATING_SIGMOID,
                                        .group_score = BP_GROUP_TOP2};
    struct bp_moe_problem p = good;
    struct rig_answer a;
    rig_ask(&b.op, &good, &a);
    ck_assert_uint_eq(a.v.level, BP_V_YES);
    p.n_group = 3; /* does not divide 16 */
    ck_assert(rig_refuses(&b.op, &p, BP_R_SHAPE, "n_group"));
    p = good;
    p.n_expert_used = 9; /* two groups of four stay */
    ck_assert(rig_refuses(&b.op, &p, BP_R_SHAPE, "n_expert_used"));
    p.n_expert_used = 0;
    ck_assert(rig_refuses(&b.op, &p, BP_R_SHAPE, "n_expert_used"));
    p = good;
    p.n_group_used = 5;
    ck_assert(rig_refuses(&b.op, &p, BP_R_SHAPE, "n_group_used"));
    p.n_group_used = 0;
    ck_assert(rig_refuses(&b.op, &p, BP_R_SHAPE, "n_group_used"));
    p = good;
    p.gating = 3;
    ck_assert(rig_refuses(&b.op, &p, BP_R_FEATURE, "gating"));
    p = good;
    p.group_score = 2;
    ck_assert(rig_refuses(&b.op, &p, BP_R_FEATURE, "group_score"));
    p = good;
    p.n_expert = 0;
    ck_assert(rig_refuses(&b.op, &p, BP_R_SHAPE, "n_group"));
    p = good;
    p.op = 5;
    ck_assert(rig_refuses(&b.op, &p, BP_R_FEATURE, "op"));
    /* The call itself says no as well. */
    const struct bp_oracle_route r = {.n_expert = 16,
                                      .n_used = 4,
                                      .gating = BP_GATING_SIGMOID,
                                      .n_group = 4,
                                      .n_group_used = 2,
                                      .scale = 1.0};
    struct routing q;
    routing_open(&q, 1, &r, false);
    for (int i = 0; i < 16; ++i) rig_set(&q.logits, i, i);
    route(&b, &r, &q);
    for (int k = 0; k < 4; ++k) {
        struct bp_moe_route_args args = q.args;
        struct bp_launch l = b.g.launch;
        struct bp_error err = BP_ERROR_INIT;
        if (k == 0) args.n_group = 3;
        if (k == 1) args.n_group_used = 0;
        if (k == 2) args.gating = 0;
        if (k == 3) l.scratch_bytes = 8;
        ck_assert_msg(b.ops->route(b.op.self, &l, &args, &err) == BP_E_ARG && err.msg[0] != '\0',
                      "case %d", k);
    }
    routing_drop(&q);
    rig_close(&b.g);
}
END_TEST

RIG_MAIN("ref_route", all_options, bias_does_not_leak_into_weights, group_scores_differ,
         groups_of_one, dropped_groups_stay_out, normalize_and_scale_are_independent,
         nan_and_infinity, rows_do_not_depend_on_the_batch, impossible_routings_are_refused)
