/* test_ref_pick.c - argmax and topk of the reference backend: exact, lowest index on ties, never a NaN.
 * SPDX-License-Identifier: MIT */
#include "ref_fixture.h"

struct bench {
    struct rig g;
    struct bp_op_ref op;
    const struct bp_dense_ops *ops;
};

static void bench_open(struct bench *b)
{
    rig_open(&b->g, "bf16"); /* rounding must not touch logits */
    b->op = rig_op(&b->g, "bp.dense");
    b->ops = (const struct bp_dense_ops *)(const void *)b->op.vt;
}

static void pick(struct bench *b, const struct rig_tensor *x, const struct rig_tensor *values,
                 const struct rig_tensor *ids)
{
    struct bp_dense_problem p = {.h = BP_HDR(struct bp_dense_problem, k),
                                 .op = BP_DENSE_OP_TOPK,
                                 .max_rows = (uint32_t)x->t.dim[0],
                                 .width = x->t.dim[1],
                                 .x_dtype = BP_DT_F32,
                                 .k = (uint32_t)ids->t.dim[1]};
    struct bp_dense_topk_args a = {
        .h = BP_HDR(struct bp_dense_topk_args, ids), .x = x->t, .ids = ids->t};
    if (values != NULL) a.values = values->t;
    rig_prepare(&b->g, &b->op, &p);
    ck_assert_int_eq(b->ops->topk(b->op.self, &b->g.launch, &a, NULL), BP_OK);
}

/* A number from a small set, so that ties are everywhere; sometimes a NaN or an infinity. */
static double spiky(struct kit_rng *rng, int kind)
{
    uint64_t n = kit_rng_below(rng, 20);
    if (kind == 2 && n < 12) return NAN;
    if (n == 0 && kind > 0) return NAN;
    if (n == 1 && kind > 0) return INFINITY;
    if (n == 2 && kind > 0) return -INFINITY;
    if (n == 3) return -0.0;
    if (n == 4) return 0.0;
    return (double)(float)(floor(bp_oracle_normal(rng) * 4.0) / 4.0 +
                           (kind == 0 && n > 15 ? 0x1p-10 : 0.0));
}

START_TEST(topk_against_the_obvious)
{
    static const int64_t widths[] = {1, 2, 3, 8, 31, 200};
    struct bench b;
    bench_open(&b);
    for (int kind = 0; kind < 3; ++kind) {
        for (size_t w = 0; w < BPI_ARRAY_LEN(widths); ++w) {
            for (int64_t k = 1; k <= widths[w]; k += 1 + k / 3) {
                const int64_t n = 9, width = widths[w];
                struct rig_tensor x = rig_tensor2(BP_DT_F32, n, width, 1),
                                  ids = rig_tensor2(BP_DT_I32, n, k, 2);
                struct rig_tensor values = rig_tensor2(BP_DT_F32, n, k, 0);
                int32_t *want = bp_oracle_alloc((size_t)k, sizeof *want);
                for (int64_t i = 0; i < n * width; ++i) rig_set(&x, i, spiky(&b.g.rng, kind));
                pick(&b, &x, &values, &ids);
                double *xd = rig_doubles(&x);
                for (int64_t r = 0; r < n; ++r) {
                    bp_oracle_topk(xd + r * width, width, k, want);
                    for (int64_t i = 0; i < k; ++i) {
                        ck_assert_int_eq(*rig_int(&ids, r * k + i), want[i]);
                        double v = rig_get(&values, r * k + i);
                        ck_assert(want[i] < 0 ? v == -INFINITY : v == xd[r * width + want[i]]);
                    }
                }
                free(xd);
                free(want);
                rig_drop(&x, "x");
                rig_drop(&ids, "ids");
                rig_drop(&values, "values");
            }
        }
    }
    rig_close(&b.g);
}
END_TEST

START_TEST(argmax_of_edges)
{
    static const struct {
        double x[4];
        int32_t want;
    } cases[] = {{{1, 2, 2, 1}, 1},
                 {{NAN, -INFINITY, NAN, NAN}, 1},
                 {{NAN, NAN, NAN, NAN}, -1},
                 {{-1, -2, -1, -3}, 0},
                 {{-0.0, 0.0, 0.0, 0}, 0},
                 {{5, NAN, 7, NAN}, 2},
                 {{INFINITY, NAN, INFINITY, 0}, 0}};
    struct bench b;
    bench_open(&b);
    for (size_t c = 0; c < BPI_ARRAY_LEN(cases); ++c) {
        struct rig_tensor x = rig_tensor2(BP_DT_F32, 1, 4, 0),
                          ids = rig_tensor2(BP_DT_I32, 1, 1, 0);
        for (int i = 0; i < 4; ++i) rig_set(&x, i, cases[c].x[i]);
        struct bp_dense_topk_args a = {
            .h = BP_HDR(struct bp_dense_topk_args, ids), .x = x.t, .ids = ids.t};
        ck_assert_int_eq(b.ops->argmax(b.op.self, &b.g.launch, &a, NULL),
                         BP_OK); /* values are optional */
        ck_assert_int_eq(*rig_int(&ids, 0), cases[c].want);
        rig_drop(&x, "x");
        rig_drop(&ids, "ids");
    }
    rig_close(&b.g);
}
END_TEST

START_TEST(large_vocabulary_and_no_rows)
{
    enum { W = 151552 };
    struct bench b;
    bench_open(&b);
    struct rig_tensor x = rig_tensor2(BP_DT_F32, 2, W, 0), ids = rig_tensor2(BP_DT_I32, 2, 64, 0);
    rig_fill_normal(&b.g, &x, 1.0);
    pick(&b, &x, NULL, &ids);
    for (int64_t r = 0; r < 2; ++r) {
        double last = INFINITY, least = 0.0;
        int64_t better = 0;
        for (int64_t i = 0; i < 64; ++i) {
            double v = rig_get(&x, r * W + *rig_int(&ids, r * 64 + i));
            ck_assert(v <= last);
            last = least = v;
        }
        for (int64_t i = 0; i < W; ++i) better += rig_get(&x, r * W + i) > least ? 1 : 0;
        ck_assert_int_eq(better, 63);
    }
    x.t.dim[0] = ids.t.dim[0] = 0;
    pick(&b, &x, NULL, &ids);
    x.t.dim[0] = ids.t.dim[0] = 2;
    struct bp_dense_topk_args a = {
        .h = BP_HDR(struct bp_dense_topk_args, ids), .x = x.t, .ids = ids.t};
    struct bp_error err = BP_ERROR_INIT;
    a.ids.dim[0] = 1;
    ck_assert_int_eq(b.ops->topk(b.op.self, &b.g.launch, &a, &err), BP_E_ARG);
    ck_assert(err.msg[0] != '\0');
    rig_drop(&x, "x");
    rig_drop(&ids, "ids");
    rig_close(&b.g);
}
END_TEST

RIG_MAIN("ref_pick", topk_against_the_obvious, argmax_of_edges, large_vocabulary_and_no_rows)
