/* bench_ops.c - the ceilings, and the ops quant.matmul, moe.run and dense.*.
 * Bytes: weights as the file has them, once for each call, of experts those that the call's tokens chose; inputs and
 * outputs once. Operations: two for each number of a weight and token that meet.
 * SPDX-License-Identifier: MIT */
#include "bench_priv.h"

#include <math.h>
#include <string.h>

uint32_t bench_turns(const struct bench *b, uint64_t n)
{
    enum { MOST = 48 };
    const uint64_t want = 3 * (uint64_t)b->dev->l2_bytes / (n + 1) + 1;
    return want < 2 ? 2 : want > MOST ? MOST : (uint32_t)want;
}

/* ---- ceilings ---- */

struct copy_work {
    struct bench *b;
    unsigned char *from, *to;
    uint64_t n;
};

static int32_t call_copy(void *arg, const struct bp_launch *l, uint32_t i, struct bp_error *err)
{
    const struct copy_work *c = arg;
    (void)i;
    return c->b->d->copy(c->b->dself, c->to, c->from, c->n, BP_COPY_D2D, l->stream, err);
}

static int32_t measure_copy(struct bench *b, struct bp_error *err)
{
    struct bench_row row;
    struct copy_work c = {.b = b, .n = b->o->small ? UINT64_C(32) << 20 : UINT64_C(1) << 30};
    struct bp_launch l = {.h = BP_HDR(struct bp_launch, reserved), .stream = b->stream};
    struct bench_work w = {.call = call_copy, .arg = &c, .n_turns = 1, .footprint = 2 * c.n};
    (void)bench_begin(b, &row, "ceiling.copy", "%llu MiB read and written",
                      (unsigned long long)(c.n >> 20));
    void *from, *to;
    BP_TRY(bench_numbers(b, BP_DT_F32, c.n, 1.0, &from, err));
    BP_TRY(bench_alloc(b, BP_MEM_DEVICE, c.n, &to, err));
    c.from = from;
    c.to = to;
    row.bytes = 2.0 * (double)c.n;
    BP_TRY(bench_sample(b, &w, &l, &row, err));
    b->copy_gb_s = row.gb_s;
    bench_rates(b, &row);
    return bench_end(b, &row, BP_OK, err);
}

struct dense_work {
    const struct bp_dense_ops *vt;
    void *self;
    uint32_t op;
    struct bp_tensor x, y, z, w, ids, cos, sin;
};

static int32_t call_dense(void *arg, const struct bp_launch *l, uint32_t i, struct bp_error *err)
{
    const struct dense_work *d = arg;
    const struct bp_dense_pair_args pair = {
        .h = BP_HDR(struct bp_dense_pair_args, y), .a = d->x, .b = d->z, .y = d->y};
    const struct bp_dense_topk_args top = {
        .h = BP_HDR(struct bp_dense_topk_args, ids), .x = d->x, .values = d->y, .ids = d->ids};
    (void)i;
    switch (d->op) {
    case BP_DENSE_OP_RMS: {
        const struct bp_dense_rms_args a = {.h = BP_HDR(struct bp_dense_rms_args, reserved),
                                            .x = d->x,
                                            .w = d->w,
                                            .y = d->y,
                                            .eps = 1e-6f};
        return d->vt->rms(d->self, l, &a, err);
    }
    case BP_DENSE_OP_LAYERNORM: {
        const struct bp_dense_layernorm_args a = {
            .h = BP_HDR(struct bp_dense_layernorm_args, reserved),
            .x = d->x,
            .w = d->w,
            .b = d->w,
            .y = d->y,
            .eps = 1e-6f};
        return d->vt->layernorm(d->self, l, &a, err);
    }
    case BP_DENSE_OP_ROPE: {
        const struct bp_dense_rope_args a = {.h = BP_HDR(struct bp_dense_rope_args, reserved),
                                             .x = d->x,
                                             .y = d->y,
                                             .positions = d->ids,
                                             .cos_table = d->cos,
                                             .sin_table = d->sin};
        return d->vt->rope(d->self, l, &a, err);
    }
    case BP_DENSE_OP_SILU_MUL:
        return d->vt->silu_mul(d->self, l, &pair, err);
    case BP_DENSE_OP_ADD:
        return d->vt->add(d->self, l, &pair, err);
    case BP_DENSE_OP_ARGMAX:
        return d->vt->argmax(d->self, l, &top, err);
    case BP_DENSE_OP_TOPK:
        return d->vt->topk(d->self, l, &top, err);
    default: {
        const struct bp_dense_matmul_args a = {
            .h = BP_HDR(struct bp_dense_matmul_args, c), .a = d->x, .b = d->z, .c = d->y};
        return d->vt->matmul(d->self, l, &a, err);
    }
    }
}

static int32_t measure_dense(struct bench *b, const struct bp_dense_problem *p,
                             struct dense_work *d, struct bench_row *row, struct bp_error *err)
{
    struct bench_work w = {.problem = p,
                           .call = call_dense,
                           .arg = d,
                           .n_turns = 1,
                           .footprint = (uint64_t)row->bytes};
    BP_TRY(bench_choose(b, "dense", p, &w.choice, row, err));
    d->vt = (const struct bp_dense_ops *)(const void *)w.choice.op.vt;
    d->self = w.choice.op.self;
    d->op = p->op;
    return bench_measure(b, &w, row, err);
}

/* c (m, n) = a (m, k) b (n, k)^T */
static int32_t measure_matmul(struct bench *b, uint32_t dtype, int64_t m, int64_t n, int64_t k,
                              struct bench_row *row, struct bp_error *err)
{
    const struct bp_dense_problem p = {.h = BP_HDR(struct bp_dense_problem, k),
                                       .op = BP_DENSE_OP_MATMUL,
                                       .max_rows = (uint32_t)m,
                                       .width = k,
                                       .x_dtype = dtype,
                                       .y_dtype = dtype,
                                       .k = (uint32_t)n};
    struct dense_work d = {0};
    const uint64_t size = bench_dtype_bytes(dtype);
    row->bytes = (double)((uint64_t)(m * k + n * k + m * n) * size);
    row->flops = 2.0 * (double)m * (double)n * (double)k;
    BP_TRY(bench_tensor(b, dtype, 3, (int64_t[]){1, m, k}, 1.0, &d.x, err));
    BP_TRY(bench_tensor(b, dtype, 3, (int64_t[]){1, n, k}, 0.1, &d.z, err));
    BP_TRY(bench_tensor(b, dtype, 3, (int64_t[]){1, m, n}, 0.0, &d.y, err));
    return measure_dense(b, &p, &d, row, err);
}

int32_t bench_ceilings(struct bench *b, struct bp_error *err)
{
    const size_t mark = b->n_blocks;
    struct bench_row row;
    const int64_t n = b->o->small ? 128 : 8192;
    int32_t rc = measure_copy(b, err);
    bench_free_to(b, mark);
    BP_TRY(rc);
    (void)bench_begin(b, &row, "ceiling.matmul", "%s %lldx%lldx%lld",
                      b->act == BP_DT_F32    ? "f32"
                      : b->act == BP_DT_BF16 ? "bf16"
                                             : "f16",
                      (long long)n, (long long)n, (long long)n);
    rc = measure_matmul(b, b->act, n, n, n, &row, err);
    bench_free_to(b, mark);
    if (rc == BP_OK) {
        b->mm_tflop_s = row.tflop_s;
        bench_rates(b, &row);
    }
    return bench_end(b, &row, rc, err);
}

/* ---- quant.matmul ---- */

enum { MAX_TURNS = 64 };

struct quant_work {
    const struct bp_quant_ops *vt;
    void *self;
    void *weight[MAX_TURNS];
    uint32_t n;
    struct bp_tensor x, y;
};

static int32_t call_quant(void *arg, const struct bp_launch *l, uint32_t i, struct bp_error *err)
{
    const struct quant_work *q = arg;
    struct bp_matmul_out out = {.weight = q->weight[i % q->n], .y = q->y};
    const struct bp_quant_matmul_args a = {.h = BP_HDR(struct bp_quant_matmul_args, reserved),
                                           .x = q->x,
                                           .outs = &out,
                                           .n_out = 1,
                                           .out_stride = sizeof out};
    return q->vt->matmul(q->self, l, &a, err);
}

struct quant_case {
    uint32_t type;
    int64_t rows, cols;
};

static struct bp_quant_problem quant_problem(const struct bench *b, const struct bp_quant_shape *s,
                                             uint32_t n_tok)
{
    return (struct bp_quant_problem){.h = BP_HDR(struct bp_quant_problem, epilogue),
                                     .op = BP_QUANT_OP_MATMUL,
                                     .n_w = 1,
                                     .w_stride = sizeof *s,
                                     .max_tok = n_tok,
                                     .w = s,
                                     .x_dtype = b->act,
                                     .y_dtype = b->act};
}

/* The same weights for every number of columns. */
static int32_t quant_prepare(struct bench *b, const struct quant_case *c, struct quant_work *q,
                             struct bp_op_choice *choice, struct bench_row *row,
                             struct bp_error *err)
{
    const struct bp_quant_shape shape = {c->type, 0, c->rows, c->cols};
    const struct bp_quant_problem p = quant_problem(b, &shape, 512);
    struct bp_raw raw;
    BP_TRY(bench_choose(b, "quant", &p, choice, row, err));
    q->vt = (const struct bp_quant_ops *)(const void *)choice->op.vt;
    q->self = choice->op.self;
    const uint32_t n = bench_turns(b, bench_weight_bytes(c->type, c->cols, c->rows, 1));
    for (q->n = 0; q->n < n; ++q->n) {
        if (q->n == 0 || b->on_host) BP_TRY(bench_raw(b, c->type, c->cols, c->rows, 1, &raw, err));
        BP_TRY(q->vt->prepare(q->self, &raw, &q->weight[q->n], NULL, err));
    }
    return BP_OK;
}

static int32_t quant_columns(struct bench *b, const struct quant_case *c, struct quant_work *q,
                             struct bp_op_choice *choice, uint32_t n_tok, struct bench_row *row,
                             struct bp_error *err)
{
    const struct bp_quant_shape shape = {c->type, 0, c->rows, c->cols};
    const struct bp_quant_problem p = quant_problem(b, &shape, n_tok);
    const uint64_t bytes = bench_weight_bytes(c->type, c->cols, c->rows, 1);
    struct bench_work w = {.problem = &p, .call = call_quant, .arg = q, .n_turns = q->n};
    void *self = choice->op.self;
    BP_TRY(bench_choose(b, "quant", &p, &w.choice, row, err));
    if (w.choice.op.self != self)
        return bench_fail(err, BP_DECLINED, row->op, "another provider for this many columns: %s",
                          w.choice.provider);
    w.footprint = bytes * q->n;
    BP_TRY(bench_tensor(b, b->act, 2, (int64_t[]){n_tok, c->cols}, 1.0, &q->x, err));
    BP_TRY(bench_tensor(b, b->act, 2, (int64_t[]){n_tok, c->rows}, 0.0, &q->y, err));
    row->bytes = (double)bytes +
                 (double)n_tok * (double)(c->rows + c->cols) * (double)bench_dtype_bytes(b->act);
    row->flops = 2.0 * (double)c->rows * (double)c->cols * n_tok;
    return bench_measure(b, &w, row, err);
}

static int32_t quant_case(struct bench *b, const struct quant_case *c, const uint32_t *columns,
                          size_t n_columns, struct bp_error *err)
{
    const size_t mark = b->n_blocks;
    struct quant_work q = {0};
    struct bp_op_choice choice = {0};
    struct bench_row row;
    const char *name = "";
    uint32_t elems, bytes;
    bool ready = false;
    int32_t rc = bp_block_shape(c->type, &name, &elems, &bytes);
    for (size_t i = 0; i < n_columns && rc == BP_OK; ++i) {
        if (!bench_begin(b, &row, "quant.matmul", "%s %lldx%lld, %u column%s", name,
                         (long long)c->rows, (long long)c->cols, columns[i],
                         columns[i] == 1 ? "" : "s"))
            continue;
        if (!ready) rc = quant_prepare(b, c, &q, &choice, &row, err);
        if (rc != BP_OK) {
            rc = bench_end(b, &row, rc, err);
            break;
        }
        ready = true;
        const size_t inner = b->n_blocks;
        rc = quant_columns(b, c, &q, &choice, columns[i], &row, err);
        bench_free_to(b, inner);
        rc = bench_end(b, &row, rc, err);
    }
    for (uint32_t i = 0; i < q.n; ++i) q.vt->release(q.self, q.weight[i]);
    bench_free_to(b, mark);
    return rc;
}

int32_t bench_quant(struct bench *b, struct bp_error *err)
{
    static const uint32_t types[] = {BP_GGUF_BF16,   BP_GGUF_Q8_0, BP_GGUF_Q6_K,
                                     BP_GGUF_Q5_K,   BP_GGUF_Q4_K, BP_GGUF_Q4_0,
                                     BP_GGUF_IQ4_XS, BP_GGUF_Q3_K, BP_GGUF_Q2_K};
    static const uint32_t columns[] = {1, 2, 4, 8, 64, 512}, few[] = {1, 8}, one[] = {1};
    for (size_t i = 0; i < BENCH_LEN(types); ++i) {
        if (b->o->small) {
            const struct quant_case c = {types[i], 96, 512};
            BP_TRY(quant_case(b, &c, few, BENCH_LEN(few), err));
            continue;
        }
        const struct quant_case c = {types[i], 14336, 4096}, wide = {types[i], 18432, 7168};
        BP_TRY(quant_case(b, &c, columns, BENCH_LEN(columns), err));
        BP_TRY(quant_case(b, &wide, one, 1, err));
    }
    return BP_OK;
}

/* ---- moe.run ---- */

enum { N_CHOICES = 16 }; /* lists of experts that take turns */

struct moe_work {
    const struct bp_moe_ops *vt;
    void *self, *weights;
    struct bp_tensor x, y, gates, ids[N_CHOICES];
};

static int32_t call_moe(void *arg, const struct bp_launch *l, uint32_t i, struct bp_error *err)
{
    const struct moe_work *m = arg;
    const struct bp_moe_run_args a = {.h = BP_HDR(struct bp_moe_run_args, reserved),
                                      .weights = m->weights,
                                      .x = m->x,
                                      .ids = m->ids[i % N_CHOICES],
                                      .gates = m->gates,
                                      .y = m->y};
    return m->vt->run(m->self, l, &a, err);
}

struct moe_case {
    const char *name;
    int64_t n_embd, n_ff;
    uint32_t n_expert, n_used, type;
};

static struct bp_moe_problem moe_problem(const struct bench *b, const struct moe_case *c,
                                         uint32_t n_tok)
{
    return (struct bp_moe_problem){.h = BP_HDR(struct bp_moe_problem, y_dtype),
                                   .op = BP_MOE_OP_RUN,
                                   .max_tok = n_tok,
                                   .n_embd = c->n_embd,
                                   .n_ff = c->n_ff,
                                   .n_ff_shared = c->n_ff,
                                   .n_expert = c->n_expert,
                                   .n_expert_used = c->n_used,
                                   .expert_end = c->n_expert,
                                   .n_group = 1,
                                   .n_group_used = 1,
                                   .gating = BP_GATING_SIGMOID,
                                   .type_gate = c->type,
                                   .type_up = c->type,
                                   .type_down = c->type,
                                   .type_shared_gate = c->type,
                                   .type_shared_up = c->type,
                                   .type_shared_down = c->type,
                                   .x_dtype = b->act,
                                   .y_dtype = BP_DT_F32};
}

static int32_t moe_prepare(struct bench *b, const struct moe_case *c, struct moe_work *m,
                           struct bp_op_choice *choice, struct bench_row *row, struct bp_error *err)
{
    const struct bp_moe_problem p = moe_problem(b, c, 512);
    struct bp_moe_weights w = {.h = BP_HDR(struct bp_moe_weights, shared_down)};
    const int64_t e = c->n_embd, f = c->n_ff, n = c->n_expert;
    BP_TRY(bench_choose(b, "moe", &p, choice, row, err));
    m->vt = (const struct bp_moe_ops *)(const void *)choice->op.vt;
    m->self = choice->op.self;
    BP_TRY(bench_raw(b, c->type, e, f, n, &w.gate, err));
    BP_TRY(bench_raw(b, c->type, e, f, n, &w.up, err));
    BP_TRY(bench_raw(b, c->type, f, e, n, &w.down, err));
    BP_TRY(bench_raw(b, c->type, e, f, 1, &w.shared_gate, err));
    BP_TRY(bench_raw(b, c->type, e, f, 1, &w.shared_up, err));
    BP_TRY(bench_raw(b, c->type, f, e, 1, &w.shared_down, err));
    return m->vt->prepare(m->self, &w, &m->weights, NULL, err);
}

/* Experts of every token, none twice; returns how many different ones all tokens chose. */
static uint32_t choose_experts(struct bench *b, const struct moe_case *c, uint32_t n_tok,
                               int32_t *ids, unsigned char *seen)
{
    uint32_t distinct = 0;
    memset(seen, 0, c->n_expert);
    for (uint32_t t = 0; t < n_tok; ++t) {
        int32_t *mine = ids + (size_t)t * c->n_used;
        for (uint32_t k = 0; k < c->n_used;) {
            uint32_t j = 0;
            mine[k] = (int32_t)bench_below(b, c->n_expert);
            while (j < k && mine[j] != mine[k]) ++j;
            if (j < k) continue;
            distinct += seen[mine[k]] == 0;
            seen[mine[k++]] = 1;
        }
    }
    return distinct;
}

static int32_t moe_tokens(struct bench *b, const struct moe_case *c, struct moe_work *m,
                          uint32_t n_tok, struct bench_row *row, struct bp_error *err)
{
    const struct bp_moe_problem p = moe_problem(b, c, n_tok);
    struct bench_work w = {.problem = &p, .call = call_moe, .arg = m, .n_turns = N_CHOICES};
    const int64_t pick[2] = {n_tok, c->n_used};
    const double one = 3.0 * (double)bench_weight_bytes(c->type, c->n_embd, c->n_ff, 1);
    void *host, *seen, *dev;
    double distinct = 0.0;
    BP_TRY(bench_choose(b, "moe", &p, &w.choice, row, err));
    if (w.choice.op.self != m->self)
        return bench_fail(err, BP_DECLINED, row->op, "another provider for this many tokens: %s",
                          w.choice.provider);
    BP_TRY(bench_heap(b, (uint64_t)n_tok * c->n_used * sizeof(int32_t), &host, err));
    BP_TRY(bench_heap(b, c->n_expert, &seen, err));
    for (uint32_t i = 0; i < N_CHOICES; ++i) {
        distinct += choose_experts(b, c, n_tok, host, seen);
        BP_TRY(bench_ints(b, host, (uint64_t)n_tok * c->n_used, &dev, err));
        m->ids[i] = (struct bp_tensor){.data = dev,
                                       .dtype = BP_DT_I32,
                                       .ndim = 2,
                                       .dim = {pick[0], pick[1]},
                                       .stride = {pick[1], 1}};
    }
    distinct /= N_CHOICES;
    BP_TRY(bench_tensor(b, b->act, 2, (int64_t[]){n_tok, c->n_embd}, 1.0, &m->x, err));
    BP_TRY(bench_tensor(b, BP_DT_F32, 2, (int64_t[]){n_tok, c->n_embd}, 0.0, &m->y, err));
    BP_TRY(bench_tensor(b, BP_DT_F32, 2, pick, 0.2, &m->gates, err));
    row->bytes = (distinct + 1.0) * one +
                 (double)n_tok * (double)c->n_embd * (double)(bench_dtype_bytes(b->act) + 4);
    row->flops =
        6.0 * (double)c->n_embd * (double)c->n_ff * (double)n_tok * (double)(c->n_used + 1);
    w.footprint = (uint64_t)(distinct * one);
    return bench_measure(b, &w, row, err);
}

static int32_t moe_case(struct bench *b, const struct moe_case *c, const uint32_t *tokens, size_t n,
                        struct bp_error *err)
{
    const size_t mark = b->n_blocks;
    struct moe_work m = {0};
    struct bp_op_choice choice = {0};
    struct bench_row row;
    const char *name = "";
    uint32_t elems, bytes;
    int32_t rc = bp_block_shape(c->type, &name, &elems, &bytes);
    for (size_t i = 0; i < n && rc == BP_OK; ++i) {
        if (!bench_begin(b, &row, "moe.run", "%s %s, %u of %u experts, %u token%s", c->name, name,
                         c->n_used, c->n_expert, tokens[i], tokens[i] == 1 ? "" : "s"))
            continue;
        if (m.weights == NULL) rc = moe_prepare(b, c, &m, &choice, &row, err);
        if (rc != BP_OK) {
            rc = bench_end(b, &row, rc, err);
            break;
        }
        const size_t inner = b->n_blocks;
        rc = moe_tokens(b, c, &m, tokens[i], &row, err);
        bench_free_to(b, inner);
        rc = bench_end(b, &row, rc, err);
    }
    if (m.weights != NULL) m.vt->release(m.self, m.weights);
    bench_free_to(b, mark);
    return rc;
}

int32_t bench_moe(struct bench *b, struct bp_error *err)
{
    static const uint32_t tokens[] = {1, 8, 64, 512}, few[] = {1, 8};
    static const struct moe_case tiny = {"tiny", 256, 256, 8, 2, BP_GGUF_Q4_K};
    static const struct moe_case large[] = {{"deepseek-v3", 7168, 2048, 256, 8, BP_GGUF_Q4_K},
                                            {"glm-5", 6144, 2048, 256, 8, BP_GGUF_Q4_K}};
    if (b->o->small) return moe_case(b, &tiny, few, BENCH_LEN(few), err);
    for (size_t i = 0; i < BENCH_LEN(large); ++i)
        BP_TRY(moe_case(b, &large[i], tokens, BENCH_LEN(tokens), err));
    return BP_OK;
}

/* ---- dense ---- */

struct dense_case {
    const char *name;
    uint32_t op;
    int64_t rows, width;
    uint32_t k;
};

static int32_t dense_run(struct bench *b, const struct dense_case *c, struct bench_row *row,
                         struct bp_error *err)
{
    const bool top = c->op == BP_DENSE_OP_ARGMAX || c->op == BP_DENSE_OP_TOPK;
    const bool norm = c->op == BP_DENSE_OP_RMS || c->op == BP_DENSE_OP_LAYERNORM;
    const uint32_t in =
        top || c->op == BP_DENSE_OP_RMS || c->op == BP_DENSE_OP_ADD ? BP_DT_F32 : b->act;
    const uint32_t out = top || c->op == BP_DENSE_OP_ADD ? BP_DT_F32 : b->act;
    const struct bp_dense_problem p = {.h = BP_HDR(struct bp_dense_problem, k),
                                       .op = c->op,
                                       .max_rows = (uint32_t)c->rows,
                                       .width = c->width,
                                       .x_dtype = in,
                                       .y_dtype = out,
                                       .k = c->k};
    const int64_t heads = 128, n = c->rows, width = c->width;
    const double si = (double)bench_dtype_bytes(in), so = (double)bench_dtype_bytes(out);
    struct dense_work d = {0};
    if (c->op == BP_DENSE_OP_ROPE) {
        const int64_t dim[3] = {n, heads, width}, table[2] = {n, width / 2}, one[1] = {n};
        BP_TRY(bench_tensor(b, in, 3, dim, 1.0, &d.x, err));
        BP_TRY(bench_tensor(b, out, 3, dim, 0.0, &d.y, err));
        BP_TRY(bench_tensor(b, BP_DT_F32, 2, table, 0.5, &d.cos, err));
        BP_TRY(bench_tensor(b, BP_DT_F32, 2, table, 0.5, &d.sin, err));
        BP_TRY(bench_tensor(b, BP_DT_I32, 1, one, 0.0, &d.ids, err)); /* all at position 0 */
        row->bytes = (double)n * (double)(heads * width) * (si + so);
        row->flops = 3.0 * (double)n * (double)(heads * width);
        return measure_dense(b, &p, &d, row, err);
    }
    BP_TRY(bench_tensor(b, in, 2, (int64_t[]){n, width}, 1.0, &d.x, err));
    if (top) {
        BP_TRY(bench_tensor(b, BP_DT_F32, 2, (int64_t[]){n, c->k}, 0.0, &d.y, err));
        BP_TRY(bench_tensor(b, BP_DT_I32, 2, (int64_t[]){n, c->k}, 0.0, &d.ids, err));
        row->bytes = (double)n * ((double)width * si + 8.0 * c->k);
        return measure_dense(b, &p, &d, row, err);
    }
    BP_TRY(bench_tensor(b, in, 2, (int64_t[]){n, width}, 1.0, &d.z, err));
    BP_TRY(bench_tensor(b, BP_DT_F32, 1, (int64_t[]){width}, 1.0, &d.w, err));
    BP_TRY(bench_tensor(b, out, 2, (int64_t[]){n, width}, 0.0, &d.y, err));
    row->bytes = (double)n * (double)width * (si * (norm ? 1.0 : 2.0) + so);
    row->flops = (double)n * (double)width * (norm ? 4.0 : 1.0);
    return measure_dense(b, &p, &d, row, err);
}

int32_t bench_dense(struct bench *b, struct bp_error *err)
{
    static const struct dense_case full[] = {
        {"dense.rms", BP_DENSE_OP_RMS, 1, 7168, 1},
        {"dense.rms", BP_DENSE_OP_RMS, 512, 7168, 1},
        {"dense.rms", BP_DENSE_OP_RMS, 8192, 7168, 1},
        {"dense.layernorm", BP_DENSE_OP_LAYERNORM, 8192, 128, 1},
        {"dense.silu_mul", BP_DENSE_OP_SILU_MUL, 512, 18432, 1},
        {"dense.silu_mul", BP_DENSE_OP_SILU_MUL, 8192, 18432, 1},
        {"dense.add", BP_DENSE_OP_ADD, 8192, 7168, 1},
        {"dense.rope", BP_DENSE_OP_ROPE, 8192, 64, 1},
        {"dense.argmax", BP_DENSE_OP_ARGMAX, 128, 129280, 1},
        {"dense.topk", BP_DENSE_OP_TOPK, 128, 129280, 40}};
    static const struct dense_case small[] = {{"dense.rms", BP_DENSE_OP_RMS, 4, 256, 1},
                                              {"dense.layernorm", BP_DENSE_OP_LAYERNORM, 4, 128, 1},
                                              {"dense.silu_mul", BP_DENSE_OP_SILU_MUL, 4, 256, 1},
                                              {"dense.add", BP_DENSE_OP_ADD, 4, 256, 1},
                                              {"dense.rope", BP_DENSE_OP_ROPE, 4, 64, 1},
                                              {"dense.argmax", BP_DENSE_OP_ARGMAX, 2, 1000, 1},
                                              {"dense.topk", BP_DENSE_OP_TOPK, 2, 1000, 40}};
    const struct dense_case *cases = b->o->small ? small : full;
    const size_t n = b->o->small ? BENCH_LEN(small) : BENCH_LEN(full), mark = b->n_blocks;
    const int64_t m = b->o->small ? 64 : 4096, rows[] = {b->o->small ? 8 : 512, m};
    struct bench_row row;
    for (size_t i = 0; i < n; ++i) {
        if (!bench_begin(b, &row, cases[i].name, "%lld rows of %lld", (long long)cases[i].rows,
                         (long long)cases[i].width))
            continue;
        const int32_t rc = dense_run(b, &cases[i], &row, err);
        bench_free_to(b, mark);
        BP_TRY(bench_end(b, &row, rc, err));
    }
    for (size_t i = 0; i < BENCH_LEN(rows); ++i) {
        if (!bench_begin(b, &row, "dense.matmul", "%lldx%lldx%lld", (long long)rows[i],
                         (long long)m, (long long)m))
            continue;
        const int32_t rc = measure_matmul(b, b->act, rows[i], m, m, &row, err);
        bench_free_to(b, mark);
        BP_TRY(bench_end(b, &row, rc, err));
    }
    return BP_OK;
}
