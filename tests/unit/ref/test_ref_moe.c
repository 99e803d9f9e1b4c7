/* test_ref_moe.c - the experts of the reference backend. The router: test_ref_route.c. SPDX-License-Identifier: MIT */
#include "ref_fixture.h"

struct shape {
    int64_t n_embd, n_ff, n_ff_shared;
    int32_t n_expert, n_used;
    uint32_t type_in, type_down, type_shared; /* gate and up; down; shared */
    float scale;
};

/* One layer, its oracle, and the prepared handle. */
struct layer {
    struct shape s;
    struct bp_oracle_weight gate, up, down, shared_gate, shared_up, shared_down;
    struct bp_moe_weights raw;
    struct bp_oracle_moe oracle;
    void *handle;
};

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

static void layer_make(struct bench *b, struct layer *y, const struct shape *s)
{
    memset(y, 0, sizeof *y);
    y->s = *s;
    y->raw.h = (struct bp_hdr)BP_HDR(struct bp_moe_weights, shared_down);
    if (s->n_expert > 0) {
        bp_oracle_weight_init(&y->gate, &b->g.rng, s->type_in, s->n_embd, s->n_ff, s->n_expert,
                              s->scale);
        bp_oracle_weight_init(&y->up, &b->g.rng, s->type_in, s->n_embd, s->n_ff, s->n_expert, 1.0f);
        bp_oracle_weight_init(&y->down, &b->g.rng, s->type_down, s->n_ff, s->n_embd, s->n_expert,
                              1.0f);
        y->raw.gate = bp_oracle_raw(&y->gate, "gate");
        y->raw.up = bp_oracle_raw(&y->up, "up");
        y->raw.down = bp_oracle_raw(&y->down, "down");
    }
    if (s->n_ff_shared > 0) {
        bp_oracle_weight_init(&y->shared_gate, &b->g.rng, s->type_shared, s->n_embd, s->n_ff_shared,
                              1, 1.0f);
        bp_oracle_weight_init(&y->shared_up, &b->g.rng, s->type_shared, s->n_embd, s->n_ff_shared,
                              1, 1.0f);
        bp_oracle_weight_init(&y->shared_down, &b->g.rng, s->type_shared, s->n_ff_shared, s->n_embd,
                              1, 1.0f);
        y->raw.shared_gate = bp_oracle_raw(&y->shared_gate, "shared_gate");
        y->raw.shared_up = bp_oracle_raw(&y->shared_up, "shared_up");
        y->raw.shared_down = bp_oracle_raw(&y->shared_down, "shared_down");
    }
    y->oracle = (struct bp_oracle_moe){.gate = &y->gate,
                                       .up = &y->up,
                                       .down = &y->down,
                                       .shared_gate = &y->shared_gate,
                                       .shared_up = &y->shared_up,
                                       .shared_down = &y->shared_down,
                                       .expert_end = s->n_expert};
}

static void layer_prepare(struct bench *b, struct layer *y)
{
    struct bp_error err = BP_ERROR_INIT;
    ck_assert_msg(b->ops->prepare(b->op.self, &y->raw, &y->handle, NULL, &err) == BP_OK,
                  "prepare: %s", err.msg);
}

static void layer_free(struct layer *y)
{
    struct bp_oracle_weight *all[] = {&y->gate,        &y->up,        &y->down,
                                      &y->shared_gate, &y->shared_up, &y->shared_down};
    for (size_t i = 0; i < BPI_ARRAY_LEN(all); ++i) bp_oracle_weight_free(all[i]);
}

static void layer_drop(struct bench *b, struct layer *y)
{
    b->ops->release(b->op.self, y->handle);
    layer_free(y);
}

struct call {
    struct rig_tensor x, ids, gates, y;
    struct bp_moe_run_args args;
};

static void call_open(struct bench *b, struct call *c, const struct shape *s, int64_t n_tok,
                      uint32_t x_dtype, void *handle)
{
    c->x = rig_tensor2(x_dtype, n_tok, s->n_embd, 1);
    c->ids = rig_tensor2(BP_DT_I32, n_tok, s->n_used, 2);
    c->gates = rig_tensor2(BP_DT_F32, n_tok, s->n_used, 1);
    c->y = rig_tensor2(BP_DT_F32, n_tok, s->n_embd, 3);
    rig_fill_normal(&b->g, &c->x, 1.0);
    rig_fill_normal(&b->g, &c->gates, 0.5);
    for (int64_t i = 0; i < n_tok * s->n_used; ++i) {
        *rig_int(&c->ids, i) =
            (int32_t)kit_rng_below(&b->g.rng, (uint64_t)s->n_expert + 1) - 1; /* -1: nobody */
    }
    c->args = (struct bp_moe_run_args){.h = BP_HDR(struct bp_moe_run_args, reserved),
                                       .weights = handle,
                                       .x = c->x.t,
                                       .ids = c->ids.t,
                                       .gates = c->gates.t,
                                       .y = c->y.t};
}

static void call_drop(struct call *c)
{
    rig_drop(&c->x, "x");
    rig_drop(&c->ids, "ids");
    rig_drop(&c->gates, "gates");
    rig_drop(&c->y, "y");
}

static struct bp_moe_problem problem_of(const struct shape *s, int64_t n_tok, uint32_t x_dtype)
{
    return (struct bp_moe_problem){.h = BP_HDR(struct bp_moe_problem, y_dtype),
                                   .op = BP_MOE_OP_RUN,
                                   .max_tok = (uint32_t)n_tok,
                                   .n_embd = s->n_embd,
                                   .n_ff = s->n_ff,
                                   .n_ff_shared = s->n_ff_shared,
                                   .n_expert = (uint32_t)s->n_expert,
                                   .n_expert_used = (uint32_t)s->n_used,
                                   .expert_end = (uint32_t)s->n_expert,
                                   .type_gate = s->type_in,
                                   .type_up = s->type_in,
                                   .type_down = s->type_down,
                                   .type_shared_gate = s->type_shared,
                                   .type_shared_up = s->type_shared,
                                   .type_shared_down = s->type_shared,
                                   .x_dtype = x_dtype,
                                   .y_dtype = BP_DT_F32};
}

static void run(struct bench *b, const struct shape *s, const struct call *c)
{
    struct bp_error err = BP_ERROR_INIT;
    struct bp_moe_problem p = problem_of(s, c->args.x.dim[0], c->x.t.dtype);
    rig_prepare(&b->g, &b->op, &p);
    ck_assert_msg(b->ops->run(b->op.self, &b->g.launch, &c->args, &err) == BP_OK, "run: %s",
                  err.msg);
    rig_check_scratch(&b->g);
}

/* The oracle's y for this call. */
static double *oracle_of(const struct layer *y, const struct call *c, double **mag)
{
    const int64_t n_tok = c->x.t.dim[0], n = n_tok * y->s.n_embd;
    double *x = rig_doubles(&c->x), *gates = rig_doubles(&c->gates),
           *want = bp_oracle_alloc((size_t)n, sizeof *want);
    int32_t *ids = bp_oracle_alloc((size_t)(n_tok * y->s.n_used), sizeof *ids);
    struct rig_tensor id_tensor = c->ids;
    for (int64_t i = 0; i < n_tok * y->s.n_used; ++i) ids[i] = *rig_int(&id_tensor, i);
    *mag = bp_oracle_alloc((size_t)n, sizeof **mag);
    bp_oracle_moe_run(BP_ORACLE_EXACT, &y->oracle, x, ids, gates, n_tok, y->s.n_used, want, *mag);
    free(x);
    free(gates);
    free(ids);
    return want;
}

/* Inner activations are rounded to F32, so the error is a few roundings of every product. */
static void check_values(const struct layer *y, const struct call *c, const double *before,
                         const char *what)
{
    double *mag, *want = oracle_of(y, c, &mag);
    for (int64_t i = 0; i < c->x.t.dim[0] * y->s.n_embd; ++i) {
        double w = want[i] + (before != NULL ? before[i] : 0.0), got = rig_get(&c->y, i);
        double slack = 0x1p-24 * (mag[i] + fabs(w)) + 1e-45;
        ck_assert_msg(fabs(got - w) <= slack, "%s, element %lld: got %.9g, want %.9g within %.3g",
                      what, (long long)i, got, w, slack);
    }
    free(want);
    free(mag);
}

static const struct shape shapes[] = {
    {1, 1, 0, 1, 1, BP_GGUF_F32, BP_GGUF_F32, 0, 1.0f},
    {7, 5, 3, 4, 2, BP_GGUF_F32, BP_GGUF_BF16, BP_GGUF_F16, 0.5f},
    {64, 32, 96, 5, 3, BP_GGUF_Q8_0, BP_GGUF_Q5_1, BP_GGUF_Q4_0, 1.0f},
    {256, 256, 0, 6, 6, BP_GGUF_Q4_K, BP_GGUF_Q6_K, 0, 2.0f},
    {256, 512, 256, 9, 4, BP_GGUF_Q5_K, BP_GGUF_Q3_K, BP_GGUF_Q4_K, 1.0f},
    {33, 0, 17, 3, 2, BP_GGUF_F32, BP_GGUF_F32, BP_GGUF_F32,
     1.0f}, /* this rank has none of the inner width */
};

START_TEST(values)
{
    static const int64_t toks[] = {0, 1, 2, 7, 40};
    static const uint32_t dtypes[] = {BP_DT_F32, BP_DT_BF16, BP_DT_F16};
    struct bench b;
    bench_open(&b, NULL);
    for (size_t s = 0; s < BPI_ARRAY_LEN(shapes); ++s) {
        struct layer y;
        layer_make(&b, &y, &shapes[s]);
        layer_prepare(&b, &y);
        for (size_t t = 0; t < BPI_ARRAY_LEN(toks); ++t) {
            struct call c;
            call_open(&b, &c, &y.s, toks[t], dtypes[(s + t) % 3], y.handle);
            run(&b, &y.s, &c);
            check_values(&y, &c, NULL, "run");
            call_drop(&c);
        }
        layer_drop(&b, &y);
    }
    rig_close(&b.g);
}
END_TEST

START_TEST(accumulate_adds_to_what_is_there)
{
    struct bench b;
    struct layer y;
    struct call c;
    bench_open(&b, NULL);
    layer_make(&b, &y, &shapes[2]);
    layer_prepare(&b, &y);
    call_open(&b, &c, &y.s, 5, BP_DT_F32, y.handle);
    rig_fill_normal(&b.g, &c.y, 1.0);
    double *before = rig_doubles(&c.y);
    c.args.accumulate = 1;
    run(&b, &y.s, &c);
    check_values(&y, &c, before, "accumulate");
    free(before);
    call_drop(&c);
    layer_drop(&b, &y);
    rig_close(&b.g);
}
END_TEST

/* The same bits for a token alone and in a batch; from blocks and from the same numbers as F32; with each rounding. */
START_TEST(rows_do_not_depend_on_the_batch)
{
    enum { N = 64 };
    static const char *const rounds[] = {"none", "bf16", "f16"};
    static const int64_t sizes[] = {1, 2, 3, 5};
    const struct shape *s = &shapes[4];
    for (size_t r = 0; r < BPI_ARRAY_LEN(rounds); ++r) {
        struct bench b, plain;
        struct layer y, z;
        struct call all;
        struct shape fs = *s;
        float *floats[6];
        fs.type_in = fs.type_down = fs.type_shared = BP_GGUF_F32;
        bench_open(&b, rounds[r]);
        bench_open(&plain, rounds[r]);
        layer_make(&b, &y, s);
        z = y;
        layer_prepare(&b, &y);
        floats[0] = rig_as_floats(&y.gate, &y.raw.gate, &z.raw.gate);
        floats[1] = rig_as_floats(&y.up, &y.raw.up, &z.raw.up);
        floats[2] = rig_as_floats(&y.down, &y.raw.down, &z.raw.down);
        floats[3] = rig_as_floats(&y.shared_gate, &y.raw.shared_gate, &z.raw.shared_gate);
        floats[4] = rig_as_floats(&y.shared_up, &y.raw.shared_up, &z.raw.shared_up);
        floats[5] = rig_as_floats(&y.shared_down, &y.raw.shared_down, &z.raw.shared_down);
        layer_prepare(&plain, &z);
        call_open(&b, &all, s, N, BP_DT_F32, y.handle);
        run(&b, s, &all);
        struct rig_tensor again = rig_tensor2(BP_DT_F32, N, s->n_embd, 0);
        struct call other = all;
        other.args.weights = z.handle;
        other.args.y = again.t;
        run(&plain, &fs, &other);
        rig_check_same(&again, 0, &all.y, 0, N * s->n_embd,
                       "blocks against the same numbers as F32");
        for (size_t k = 0; k < BPI_ARRAY_LEN(sizes); ++k) {
            for (int64_t t = 0; t + sizes[k] <= N; t += sizes[k]) {
                struct call part = all;
                const int64_t n = sizes[k];
                part.args.x.data = bpi_ref_at(&all.x.t, t, 0, 0);
                part.args.ids.data = bpi_ref_at(&all.ids.t, t, 0, 0);
                part.args.gates.data = bpi_ref_at(&all.gates.t, t, 0, 0);
                part.args.y = again.t;
                part.args.x.dim[0] = part.args.ids.dim[0] = part.args.gates.dim[0] =
                    part.args.y.dim[0] = n;
                run(&b, s, &part);
                rig_check_same(&again, 0, &all.y, t * s->n_embd, n * s->n_embd, "part of a batch");
            }
        }
        rig_drop(&again, "again");
        call_drop(&all);
        plain.ops->release(plain.op.self, z.handle);
        for (size_t i = 0; i < 6; ++i) free(floats[i]);
        layer_drop(&b, &y);
        rig_close(&b.g);
        rig_close(&plain.g);
    }
}
END_TEST

/* Sums run in the order of the choices: swapping two choices may change bits, and the oracle's order decides. With
 * gates of very different size the order is visible. */
START_TEST(choices_are_summed_in_their_order)
{
    const struct shape s = {8, 8, 0, 3, 3, BP_GGUF_F32, BP_GGUF_F32, 0, 1.0f};
    struct bench b;
    struct layer y;
    struct call c;
    bench_open(&b, NULL);
    layer_make(&b, &y, &s);
    layer_prepare(&b, &y);
    call_open(&b, &c, &s, 1, BP_DT_F32, y.handle);
    /* Expert 2 twice with opposite huge gates around expert 0: (big + small) - big, in this order. */
    static const int32_t ids[] = {2, 0, 2};
    static const double gates[] = {0x1p60, 1.0, -0x1p60};
    for (int i = 0; i < 3; ++i) {
        *rig_int(&c.ids, i) = ids[i];
        rig_set(&c.gates, i, gates[i]);
    }
    run(&b, &s, &c);
    double lost = 0.0;
    for (int64_t i = 0; i < 8; ++i) lost += fabs(rig_get(&c.y, i));
    static const int32_t swapped_ids[] = {2, 2, 0};
    static const double swapped_gates[] = {0x1p60, -0x1p60, 1.0};
    for (int i = 0; i < 3; ++i) {
        *rig_int(&c.ids, i) = swapped_ids[i];
        rig_set(&c.gates, i, swapped_gates[i]);
    }
    run(&b, &s, &c);
    check_values(&y, &c, NULL, "big - big + small");
    double kept = 0.0;
    for (int64_t i = 0; i < 8; ++i) kept += fabs(rig_get(&c.y, i));
    ck_assert(kept > 0.0 && lost != kept);
    call_drop(&c);
    layer_drop(&b, &y);
    rig_close(&b.g);
}
END_TEST

START_TEST(nobody_and_strangers_contribute_nothing)
{
    const struct shape *s = &shapes[2];
    struct bench b;
    struct layer y;
    struct call c;
    bench_open(&b, NULL);
    layer_make(&b, &y, s);
    struct bp_raw *raws[] = {&y.raw.gate, &y.raw.up, &y.raw.down};
    for (size_t i = 0; i < 3; ++i) { /* experts 1 to 3 of 5 */
        raws[i]->begin[2] = 1;
        raws[i]->end[2] = 4;
    }
    y.oracle.expert_begin = 1;
    y.oracle.expert_end = 4;
    layer_prepare(&b, &y);
    call_open(&b, &c, s, 11, BP_DT_F32, y.handle);
    static const int32_t strange[] = {-1, 0, 4, INT32_MIN, INT32_MAX, 5};
    for (int k = 0; k < 6; ++k) {
        *rig_int(&c.ids, 3 + k) = strange[k];
        rig_set(&c.gates, 3 + k, NAN); /* whatever the gate says */
    }
    run(&b, s, &c);
    check_values(&y, &c, NULL, "part of the experts");
    for (int64_t i = 0; i < 11 * s->n_used; ++i) *rig_int(&c.ids, i) = -1;
    run(&b, s, &c);
    check_values(&y, &c, NULL, "shared expert only");
    call_drop(&c);
    layer_drop(&b, &y);
    rig_close(&b.g);
}
END_TEST

/* Two halves of the inner width, cut inside a block of down: their sum is the whole (each rounded once to F32). */
START_TEST(shards_of_the_inner_width_add_up)
{
    const struct shape *s = &shapes[4];
    static const int64_t cuts[] = {0, 1, 100, 256, 511, 512};
    for (size_t k = 0; k < BPI_ARRAY_LEN(cuts); ++k) {
        struct bench b;
        struct layer y;
        struct call whole, half;
        bench_open(&b, NULL);
        layer_make(&b, &y, s);
        layer_prepare(&b, &y);
        call_open(&b, &whole, s, 6, BP_DT_F32, y.handle);
        run(&b, s, &whole);
        double *sum = bp_oracle_alloc((size_t)(6 * s->n_embd), sizeof *sum);
        struct rig_tensor out = rig_tensor2(BP_DT_F32, 6, s->n_embd, 0);
        for (int part = 0; part < 2; ++part) {
            struct bp_moe_weights raw = y.raw;
            struct shape ps = *s;
            void *handle = NULL;
            const int64_t from = part == 0 ? 0 : cuts[k], to = part == 0 ? cuts[k] : s->n_ff;
            raw.gate.begin[1] = raw.up.begin[1] = raw.down.begin[0] = from;
            raw.gate.end[1] = raw.up.end[1] = raw.down.end[0] = to;
            if (part == 1) raw.shared_gate.data = raw.shared_up.data = raw.shared_down.data = NULL;
            ps.n_ff = to - from;
            ps.n_ff_shared = part == 0 ? s->n_ff_shared : 0;
            ck_assert_int_eq(b.ops->prepare(b.op.self, &raw, &handle, NULL, NULL), BP_OK);
            half = whole;
            half.args.weights = handle;
            half.args.y = out.t;
            run(&b, &ps, &half);
            for (int64_t i = 0; i < 6 * s->n_embd; ++i) sum[i] += rig_get(&out, i);
            b.ops->release(b.op.self, handle);
        }
        double *mag, *want = oracle_of(&y, &whole, &mag);
        for (int64_t i = 0; i < 6 * s->n_embd; ++i) {
            ck_assert_msg(fabs(sum[i] - want[i]) <= 0x1p-23 * (mag[i] + fabs(want[i])),
                          "cut %lld, element %lld: %.9g, want %.9g", (long long)cuts[k],
                          (long long)i, sum[i], want[i]);
        }
        free(sum);
        free(want);
        free(mag);
        rig_drop(&out, "out");
        call_drop(&whole);
        layer_drop(&b, &y);
        rig_close(&b.g);
    }
}
END_TEST

/* gate and up in one tensor: the same bits as apart, whole and cut. */
START_TEST(joint_gate_up)
{
    const struct shape s = {64, 96, 0, 4, 2, BP_GGUF_Q8_0, BP_GGUF_Q8_0, 0, 1.0f};
    static const int64_t cuts[][2] = {{0, 96}, {0, 40}, {17, 80}};
    struct bench b;
    struct layer y;
    bench_open(&b, NULL);
    layer_make(&b, &y, &s);
    const uint64_t half = y.gate.n_bytes / (uint64_t)s.n_expert;
    unsigned char *bytes = bpi_alloc_aligned(2 * y.gate.n_bytes, 64);
    for (int32_t e = 0; e < s.n_expert; ++e) {
        memcpy(bytes + 2 * half * (uint64_t)e, y.gate.bytes + half * (uint64_t)e, half);
        memcpy(bytes + 2 * half * (uint64_t)e + half, y.up.bytes + half * (uint64_t)e, half);
    }
    for (size_t k = 0; k < BPI_ARRAY_LEN(cuts); ++k) {
        struct bp_moe_weights apart = y.raw, joint = y.raw;
        struct shape ps = s;
        void *a = NULL, *j = NULL;
        ps.n_ff = cuts[k][1] - cuts[k][0];
        apart.gate.begin[1] = apart.up.begin[1] = apart.down.begin[0] = joint.down.begin[0] =
            cuts[k][0];
        apart.gate.end[1] = apart.up.end[1] = apart.down.end[0] = joint.down.end[0] = cuts[k][1];
        joint.gate_up = y.raw.gate;
        joint.gate_up.data = bytes;
        joint.gate_up.n_bytes = 2 * y.gate.n_bytes;
        joint.gate_up.ne[1] = 2 * s.n_ff;
        joint.gate_up.begin[1] = cuts[k][0];
        joint.gate_up.end[1] = k == 0 ? 2 * s.n_ff : cuts[k][1];
        joint.gate.data = joint.up.data = NULL;
        ck_assert_int_eq(b.ops->prepare(b.op.self, &apart, &a, NULL, NULL), BP_OK);
        ck_assert_int_eq(b.ops->prepare(b.op.self, &joint, &j, NULL, NULL), BP_OK);
        struct call c;
        struct rig_tensor out = rig_tensor2(BP_DT_F32, 9, s.n_embd, 0);
        call_open(&b, &c, &ps, 9, BP_DT_F32, a);
        run(&b, &ps, &c);
        c.args.weights = j;
        c.args.y = out.t;
        run(&b, &ps, &c);
        rig_check_same(&out, 0, &c.y, 0, 9 * s.n_embd, "joint against apart");
        struct bp_error err = BP_ERROR_INIT;
        void *none = NULL;
        joint.gate_up.begin[1] = 50;
        joint.gate_up.end[1] = 100; /* straddles the halves: which rows are meant? */
        ck_assert_int_eq(b.ops->prepare(b.op.self, &joint, &none, NULL, &err), BP_E_ARG);
        ck_assert(err.msg[0] != '\0');
        b.ops->release(b.op.self, a);
        b.ops->release(b.op.self, j);
        call_drop(&c);
        rig_drop(&out, "out");
    }
    bpi_free(bytes);
    layer_free(&y);
    rig_close(&b.g);
}
END_TEST

START_TEST(nan_stays_in_its_row)
{
    enum { N = 9 };
    const struct shape *s = &shapes[4];
    struct bench b;
    struct layer y;
    struct call c;
    bench_open(&b, NULL);
    layer_make(&b, &y, s);
    layer_prepare(&b, &y);
    call_open(&b, &c, s, N, BP_DT_F32, y.handle);
    run(&b, s, &c);
    struct rig_tensor out = rig_tensor2(BP_DT_F32, N, s->n_embd, 0);
    rig_set(&c.x, 4 * s->n_embd + 7, NAN);
    *rig_int(&c.ids, 4 * s->n_used) = 1;
    *rig_int(&c.ids, 5 * s->n_used) = 1; /* the same expert as its neighbour */
    struct call before = c;
    before.args.x.data = bpi_ref_at(&c.x.t, 5, 0, 0);
    before.args.ids.data = bpi_ref_at(&c.ids.t, 5, 0, 0);
    before.args.gates.data = bpi_ref_at(&c.gates.t, 5, 0, 0);
    before.args.x.dim[0] = before.args.ids.dim[0] = before.args.gates.dim[0] =
        before.args.y.dim[0] = 1;
    run(&b, s, &before);
    double *alone = bp_oracle_alloc((size_t)s->n_embd, sizeof *alone);
    for (int64_t i = 0; i < s->n_embd; ++i) alone[i] = rig_get(&c.y, i);
    c.args.y = out.t;
    run(&b, s, &c);
    for (int64_t i = 0; i < s->n_embd; ++i) {
        ck_assert(isnan(rig_get(&out, 4 * s->n_embd + i)));
        ck_assert(rig_get(&out, 5 * s->n_embd + i) == alone[i]);
    }
    for (int64_t i = 0; i < N * s->n_embd; ++i)
        ck_assert(i / s->n_embd == 4 || isfinite(rig_get(&out, i)));
    free(alone);
    rig_drop(&out, "out");
    call_drop(&c);
    layer_drop(&b, &y);
    rig_close(&b.g);
}
END_TEST

START_TEST(bad_layers_are_refused)
{
    const struct shape *s = &shapes[2];
    struct bench b;
    struct layer y;
    bench_open(&b, NULL);
    layer_make(&b, &y, s);
    for (int k = 0; k < 9; ++k) {
        struct bp_moe_weights w = y.raw;
        struct bp_error err = BP_ERROR_INIT;
        void *handle = NULL;
        const int64_t live = b.g.live;
        if (k == 0) w.up.data = NULL;
        if (k == 1) w.shared_up.data = NULL;
        if (k == 2) w.gate.begin[2] = 1;
        if (k == 3) w.down.end[0] = 16;
        if (k == 4) w.gate.end[1] = 16;
        if (k == 5) w.shared_gate.end[1] = 32;
        if (k == 6) w.down.type = BP_GGUF_Q8_K;
        if (k == 7) w.shared_down.n_bytes -= 1;
        if (k == 8) w = (struct bp_moe_weights){.h = y.raw.h};
        int32_t rc = b.ops->prepare(b.op.self, &w, &handle, NULL, &err);
        ck_assert_msg(rc == (k == 6 ? BP_DECLINED : BP_E_ARG) && err.msg[0] != '\0', "case %d: %d",
                      k, rc);
        ck_assert_int_eq(b.g.live, live); /* nothing half-open */
        ck_assert_ptr_null(handle);
    }
    int32_t rc = BP_E_NOMEM;
    int64_t at = 0;
    while (rc == BP_E_NOMEM) { /* memory runs out anywhere: an error, never a leak */
        const int64_t live = b.g.live;
        void *handle = NULL;
        b.g.fail_at = ++at;
        rc = b.ops->prepare(b.op.self, &y.raw, &handle, NULL, NULL);
        b.g.fail_at = 0;
        ck_assert_int_eq(b.g.live, live + (rc == BP_OK));
        b.ops->release(b.op.self, handle);
    }
    ck_assert_int_eq(rc, BP_OK);
    ck_assert_int_ge(at, 2);
    b.ops->release(b.op.self, NULL);
    layer_free(&y);
    rig_close(&b.g);
}
END_TEST

START_TEST(verdicts_calls_and_ports)
{
    struct bench b;
    struct layer y;
    struct call c;
    bench_open(&b, NULL);
    layer_make(&b, &y, &shapes[2]);
    layer_prepare(&b, &y);
    const struct bp_moe_problem good = problem_of(&shapes[2], 4, BP_DT_F32);
    struct bp_moe_problem p = good;
    p.type_up = BP_GGUF_Q8_K;
    ck_assert(rig_refuses(&b.op, &p, BP_R_QUANT, "type_up"));
    p = good;
    p.type_shared_down = 77;
    ck_assert(rig_refuses(&b.op, &p, BP_R_QUANT, "type_shared_down"));
    p.n_ff_shared = 0; /* no shared expert: its types do not matter */
    struct rig_answer a;
    rig_ask(&b.op, &p, &a);
    ck_assert_uint_eq(a.v.level, BP_V_YES);
    p = good;
    p.expert_begin = 6;
    ck_assert(rig_refuses(&b.op, &p, BP_R_SHAPE, "expert_end"));
    p = good;
    p.n_embd = 0;
    p.y_dtype = BP_DT_I32;
    ck_assert(rig_refuses(&b.op, &p, BP_R_SHAPE, "n_embd") &&
              rig_refuses(&b.op, &p, BP_R_DTYPE, "y_dtype"));
    call_open(&b, &c, &y.s, 2, BP_DT_F32, y.handle);
    run(&b, &y.s, &c);
    for (int k = 0; k < 3; ++k) {
        struct bp_moe_run_args args = c.args;
        struct bp_launch l = b.g.launch;
        struct bp_error err = BP_ERROR_INIT;
        if (k == 0) args.x.dim[1] = 63;
        if (k == 1) args.gates.dim[1] = 2;
        if (k == 2) l.scratch_bytes -= 1;
        ck_assert_msg(b.ops->run(b.op.self, &l, &args, &err) == BP_E_ARG && err.msg[0] != '\0',
                      "case %d", k);
    }
    struct bp_tensor t[4];
    uint32_t n = 4;
    c.args.accumulate = 1;
    ck_assert_int_eq(b.op.vt->tensors(b.op.self, BP_MOE_OP_RUN, &c.args, t, &n), BP_OK);
    ck_assert_uint_eq(n, 4);
    ck_assert_str_eq(t[3].name, "y");
    ck_assert_uint_eq(t[3].access, BP_INOUT);
    struct bp_moe_route_args r = {.h = BP_HDR(struct bp_moe_route_args, scale)};
    n = 4;
    ck_assert_int_eq(b.op.vt->tensors(b.op.self, BP_MOE_OP_ROUTE, &r, t, &n), BP_OK);
    ck_assert_uint_eq(n, 3);
    ck_assert_int_eq(b.op.vt->tensors(b.op.self, 9, &r, t, &n), BP_E_ARG);
    p = problem_of(&shapes[2], 4, BP_DT_F32);
    p.max_tok = UINT32_MAX;
    p.n_ff = INT32_MAX;
    struct bp_workspace ws = {.h = BP_HDR(struct bp_workspace, persistent_zeroed)};
    ck_assert_int_eq(b.op.vt->workspace(b.op.self, &p, &ws, NULL), BP_E_LIMIT);
    call_drop(&c);
    layer_drop(&b, &y);
    rig_close(&b.g);
}
END_TEST

RIG_MAIN("ref_moe", values, accumulate_adds_to_what_is_there, rows_do_not_depend_on_the_batch,
         choices_are_summed_in_their_order, nobody_and_strangers_contribute_nothing,
         shards_of_the_inner_width_add_up, joint_gate_up, nan_stays_in_its_row,
         bad_layers_are_refused, verdicts_calls_and_ports)
