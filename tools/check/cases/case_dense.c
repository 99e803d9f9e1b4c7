/* case_dense.c - every provider of bp.dense against the oracle: norms, rotation, element-wise ops, argmax and topk,
 * embedding, products of plain floats. Order: status, guards, finite class, bound, bits of a repeated call, bits of a row
 * alone. SPDX-License-Identifier: MIT */
#include "cases/bp_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint32_t dtypes[][2] = {{BP_DT_F32, BP_DT_F32},
                                     {BP_DT_BF16, BP_DT_BF16},
                                     {BP_DT_F32, BP_DT_BF16},
                                     {BP_DT_BF16, BP_DT_F32},
                                     {BP_DT_F16, BP_DT_F16}};
static const int64_t widths[] = {1, 2, 31, 32, 33, 64, 127, 128, 129, 512, 1000, 2048};
static const int64_t counts[] = {1, 0, 2, 3, 17, 64, 65, 130};

static const struct bp_dense_ops *ops_of(const struct bp_case_suite *s)
{
    return (const struct bp_dense_ops *)(const void *)s->target->op.vt;
}

enum { APART, IN_X, IN_OTHER }; /* where y lies */

/* A call on n rows, or on one of them alone. */
struct rows_call {
    uint32_t op, style, place;
    struct bp_case_tensor *both; /* in place: what is read as x or other, and written as y */
    struct bp_case_tensor *x, *other, *w, *b, *y, *alone, *positions, *cos_table, *sin_table;
    int64_t only_row;
};

static struct bp_tensor rows_of(const struct rows_call *c, const struct bp_case_tensor *t)
{
    struct bp_tensor view = t->t;
    if (c->only_row < 0) return view;
    view.data = (unsigned char *)view.data + (size_t)(c->only_row * view.stride[0]) * t->elem_bytes;
    view.dim[0] = 1;
    return view;
}

static struct bp_tensor x_of(const struct rows_call *c)
{
    return c->place == IN_X ? c->both->t : rows_of(c, c->x);
}

static struct bp_tensor other_of(const struct rows_call *c)
{
    return c->place == IN_OTHER ? c->both->t : rows_of(c, c->other);
}

static struct bp_tensor y_of(const struct rows_call *c)
{
    return c->place != APART ? c->both->t : c->only_row < 0 ? c->y->t : c->alone->t;
}

static int32_t call_rows(struct bp_case_suite *s, void *arg, struct bp_error *err)
{
    const struct rows_call *c = arg;
    const struct bp_dense_ops *ops = ops_of(s);
    void *self = s->target->op.self;
    const struct bp_tensor x = x_of(c), y = y_of(c);
    if (c->op == BP_DENSE_OP_RMS) {
        struct bp_dense_rms_args a = {.h = BP_HDR(struct bp_dense_rms_args, reserved),
                                      .x = x,
                                      .w = c->w->t,
                                      .y = y,
                                      .eps = 1e-6f};
        if (c->other != NULL) a.add = rows_of(c, c->other);
        bp_case_ports(s, BP_DENSE_OP_RMS, &a);
        return ops->rms(self, &s->launch, &a, err);
    }
    if (c->op == BP_DENSE_OP_LAYERNORM) {
        struct bp_dense_layernorm_args a = {.h = BP_HDR(struct bp_dense_layernorm_args, reserved),
                                            .x = x,
                                            .w = c->w->t,
                                            .b = c->b->t,
                                            .y = y,
                                            .eps = 1e-6f};
        bp_case_ports(s, BP_DENSE_OP_LAYERNORM, &a);
        return ops->layernorm(self, &s->launch, &a, err);
    }
    if (c->op == BP_DENSE_OP_ROPE) {
        struct bp_dense_rope_args a = {.h = BP_HDR(struct bp_dense_rope_args, reserved),
                                       .x = x,
                                       .y = y,
                                       .positions = rows_of(c, c->positions),
                                       .cos_table = c->cos_table->t,
                                       .sin_table = c->sin_table->t,
                                       .style = c->style};
        bp_case_ports(s, BP_DENSE_OP_ROPE, &a);
        return ops->rope(self, &s->launch, &a, err);
    }
    struct bp_dense_pair_args a = {
        .h = BP_HDR(struct bp_dense_pair_args, y), .a = x, .b = other_of(c), .y = y};
    bp_case_ports(s, c->op, &a);
    return c->op == BP_DENSE_OP_ADD ? ops->add(self, &s->launch, &a, err)
                                    : ops->silu_mul(self, &s->launch, &a, err);
}

static struct bp_dense_problem problem_of(uint32_t op, int64_t n, int64_t width,
                                          const uint32_t dtype[2])
{
    return (struct bp_dense_problem){.h = BP_HDR(struct bp_dense_problem, k),
                                     .op = op,
                                     .max_rows = (uint32_t)(n > 0 ? n : 1),
                                     .width = width,
                                     .x_dtype = dtype[0],
                                     .y_dtype = dtype[1]};
}

/* The same numbers where the slot header lets y be an input: rms without add, rope, pairs. Few rows are enough. */
static void in_place(struct bp_case_suite *s, struct rows_call *c, const double *exact,
                     const double *base, const double *mag, uint32_t precision)
{
    const bool pair = c->op == BP_DENSE_OP_ADD || c->op == BP_DENSE_OP_SILU_MUL;
    const int64_t n = c->y->t.dim[0];
    if (c->x->t.dtype != c->y->t.dtype || n == 0 || n > 17 || c->op == BP_DENSE_OP_LAYERNORM ||
        (c->other != NULL && !pair))
        return;
    for (c->place = IN_X; c->place <= (pair ? IN_OTHER : IN_X); ++c->place) {
        const struct bp_case_tensor *from = c->place == IN_X ? c->x : c->other;
        c->both = bp_case_tensor(s, from->t.dtype, from->t.ndim, from->t.dim, 8, true);
        for (int64_t i = 0; i < bp_case_count(from); ++i)
            bp_case_put(c->both, i, bp_case_get(from, i));
        if (bp_case_run(s, call_rows, c))
            (void)bp_case_judge(s, c->both, exact, base, mag, precision,
                                c->place == IN_X ? "y in place of the first input"
                                                 : "y in place of the second input");
    }
    c->place = APART;
}

/* Judges y, then the same call again, in place, then the first and the last row alone. */
static void finish(struct bp_case_suite *s, struct rows_call *c, const double *exact,
                   const double *base, const double *mag, uint32_t precision)
{
    const int64_t n = c->y->t.dim[0];
    (void)bp_case_judge(s, c->y, exact, base, mag, precision, "y");
    (void)bp_case_repeat(s, call_rows, c);
    in_place(s, c, exact, base, mag, precision);
    if (s->answer.verdict.determinism < BP_DET_BATCH || c->other == NULL ||
        c->op == BP_DENSE_OP_RMS)
        return;
    for (int k = 0; k < 2 && n > 0; ++k) {
        c->only_row = k == 0 ? 0 : n - 1;
        if (bp_case_run(s, call_rows, c))
            (void)bp_case_same_row(s, c->y, c->only_row, c->alone, "y");
    }
}

/* ---- norms and pairs ---- */

struct answer {
    double *exact, *base, *mag;
};

static struct answer answer_alloc(int64_t n)
{
    return (struct answer){bp_oracle_alloc((size_t)n, sizeof(double)),
                           bp_oracle_alloc((size_t)n, sizeof(double)),
                           bp_oracle_alloc((size_t)n, sizeof(double))};
}

static void answer_free(struct answer *a)
{
    free(a->exact);
    free(a->base);
    free(a->mag);
}

/* What one op makes of rows of numbers, at one precision; mag (may be NULL): the size of what was added up. */
static void formula(const struct rows_call *c, uint32_t precision, const double *x, double *y,
                    double *mag)
{
    const int64_t n = c->y->t.dim[0], width = c->y->t.dim[1];
    double *w = c->w != NULL ? bp_case_doubles(c->w) : NULL,
           *b = c->b != NULL ? bp_case_doubles(c->b) : NULL;
    double *other = c->other != NULL ? bp_case_doubles(c->other) : NULL;
    if (c->op == BP_DENSE_OP_RMS) bp_oracle_rms(precision, x, w, n, width, (double)1e-6f, y);
    if (c->op == BP_DENSE_OP_LAYERNORM)
        bp_oracle_layernorm(precision, x, w, b, n, width, (double)1e-6f, y);
    for (int64_t i = 0; i < n * width; ++i) {
        if (c->op == BP_DENSE_OP_ADD)
            y[i] = bp_oracle_round(
                bp_oracle_round(x[i], precision) + bp_oracle_round(other[i], precision), precision);
        if (c->op == BP_DENSE_OP_SILU_MUL) y[i] = bp_oracle_silu_mul(precision, x[i], other[i]);
        if (mag == NULL) continue;
        mag[i] = 2.0 * fabs(y[i]);
        if (c->op == BP_DENSE_OP_ADD) mag[i] = fabs(x[i]) + fabs(other[i]);
        if (c->op ==
            BP_DENSE_OP_LAYERNORM) { /* the mean is subtracted: what is left may be smaller than what was there */
            double largest = 0.0, var = 0.0, mean = 0.0;
            const double *row = x + i / width * width;
            for (int64_t k = 0; k < width; ++k) mean += row[k] / (double)width;
            for (int64_t k = 0; k < width; ++k) {
                var += (row[k] - mean) * (row[k] - mean) / (double)width;
                largest = fabs(row[k]) > largest ? fabs(row[k]) : largest;
            }
            mag[i] = 2.0 * fabs(w[i % width]) * largest / sqrt(var + 1e-6) + fabs(b[i % width]);
        }
    }
    free(w);
    free(b);
    free(other);
}

static void row_case(struct bp_case_suite *s, struct bp_case_target *target, uint32_t op,
                     bool with_add, int64_t n, int64_t width, const uint32_t dtype[2],
                     uint32_t fill)
{
    static const char *const names[] = {"embed", "rms", "layernorm", "rope", "silu_mul", "add"};
    const struct bp_dense_problem p = problem_of(op, n, width, dtype);
    const bool pair = op == BP_DENSE_OP_ADD || op == BP_DENSE_OP_SILU_MUL;
    const uint32_t precision = bp_oracle_precision_of(dtype[0]);
    struct rows_call c = {.op = op, .only_row = -1};
    if (!bp_case_begin(s, target, &p, "%s%s rows %lld width %lld x %u y %u %s", names[op],
                       with_add ? "+add" : "", (long long)n, (long long)width, dtype[0], dtype[1],
                       bp_case_fill_name(fill))) {
        return;
    }
    c.x = bp_case_tensor(s, dtype[0], 2, (int64_t[]){n, width}, 8, with_add);
    bp_case_fill(s, c.x, fill, 2.0);
    /* silu(-inf) is 0, its limit, and not -inf / inf. */
    if (op == BP_DENSE_OP_SILU_MUL && fill == BP_FILL_NAN_ROW && n > 0)
        bp_case_put(c.x, 0, -INFINITY);
    if (pair || with_add) {
        c.other = bp_case_tensor(s, dtype[0], 2, (int64_t[]){n, width}, 0, false);
        bp_case_fill(s, c.other, BP_FILL_NORMAL, 1.0);
    }
    if (!pair) {
        c.w = bp_case_tensor(s, BP_DT_F32, 1, &width, 0, false);
        bp_case_fill(s, c.w, BP_FILL_NORMAL, 1.0);
    }
    if (op == BP_DENSE_OP_LAYERNORM) {
        c.b = bp_case_tensor(s, BP_DT_F32, 1, &width, 0, false);
        bp_case_fill(s, c.b, BP_FILL_NORMAL, 1.0);
    }
    c.y = bp_case_tensor(s, dtype[1], 2, (int64_t[]){n, width}, 16, true);
    c.alone = bp_case_tensor(s, dtype[1], 2, (int64_t[]){1, width}, 0, true);
    double *x = bp_case_doubles(c.x), *sum = bp_oracle_alloc((size_t)(n * width), sizeof *sum);
    for (int64_t i = 0; with_add && i < n * width; ++i) {
        sum[i] = bp_oracle_round(x[i] + bp_case_get(c.other, i), bp_oracle_precision_of(dtype[0]));
    }
    if (bp_case_run(s, call_rows, &c)) {
        struct answer a = answer_alloc(n * width);
        if (with_add) {
            (void)bp_case_judge(s, c.x, sum, sum, NULL, precision, "x += add");
            free(x);
            x = bp_case_doubles(c.x); /* the norm is of what was written */
        }
        formula(&c, BP_ORACLE_EXACT, x, a.exact, a.mag);
        formula(&c, precision, x, a.base, NULL);
        finish(s, &c, a.exact, a.base, a.mag, precision);
        answer_free(&a);
    }
    free(x);
    free(sum);
    bp_case_end(s);
}

/* ---- rotation ---- */

static void rope_case(struct bp_case_suite *s, struct bp_case_target *target, uint32_t style,
                      int64_t n, int64_t heads, int64_t dim, const uint32_t dtype[2])
{
    enum { N_POS = 37 };
    const struct bp_dense_problem p = problem_of(BP_DENSE_OP_ROPE, n, dim, dtype);
    const uint32_t precision = bp_oracle_precision_of(dtype[0]);
    const int64_t shape[] = {n, heads, dim}, table[] = {N_POS, dim / 2}, count = n * heads * dim;
    struct rows_call c = {.op = BP_DENSE_OP_ROPE, .style = style, .only_row = -1};
    if (!bp_case_begin(s, target, &p, "rope style %u tok %lld heads %lld dim %lld x %u y %u", style,
                       (long long)n, (long long)heads, (long long)dim, dtype[0], dtype[1])) {
        return;
    }
    c.x = bp_case_tensor(s, dtype[0], 3, shape, 8, false);
    c.positions = bp_case_tensor(s, BP_DT_I32, 1, &n, 0, false);
    c.cos_table = bp_case_tensor(s, BP_DT_F32, 2, table, 0, false);
    c.sin_table = bp_case_tensor(s, BP_DT_F32, 2, table, 0, false);
    c.y = bp_case_tensor(s, dtype[1], 3, shape, 0, true);
    bp_case_fill(s, c.x, BP_FILL_NORMAL, 1.0);
    for (int64_t i = 0; i < n; ++i)
        *bp_case_int(c.positions, i) = (int32_t)kit_rng_below(&s->rng, N_POS);
    for (int64_t i = 0; i < N_POS * dim / 2; ++i) {
        double angle =
            (double)(i / (dim / 2)) * pow(10000.0, -2.0 * (double)(i % (dim / 2)) / (double)dim);
        bp_case_put(c.cos_table, i, cos(angle));
        bp_case_put(c.sin_table, i, sin(angle));
    }
    if (bp_case_run(s, call_rows, &c)) {
        struct answer a = answer_alloc(count);
        double *x = bp_case_doubles(c.x), *co = bp_case_doubles(c.cos_table),
               *si = bp_case_doubles(c.sin_table);
        for (int64_t h = 0; h < n * heads; ++h) {
            int64_t at = *bp_case_int(c.positions, h / heads) * (dim / 2);
            bp_oracle_rope(BP_ORACLE_EXACT, x + h * dim, co + at, si + at, dim, style,
                           a.exact + h * dim);
            bp_oracle_rope(precision, x + h * dim, co + at, si + at, dim, style, a.base + h * dim);
        }
        for (int64_t i = 0; i < count; ++i) a.mag[i] = 4.0; /* a few roundings of numbers near 1 */
        finish(s, &c, a.exact, a.base, a.mag, precision);
        free(x);
        free(co);
        free(si);
        answer_free(&a);
    }
    bp_case_end(s);
}

/* ---- argmax and topk: exact ---- */

struct pick_call {
    bool argmax;
    struct bp_case_tensor *x, *values, *ids;
};

static int32_t call_pick(struct bp_case_suite *s, void *arg, struct bp_error *err)
{
    const struct pick_call *c = arg;
    struct bp_dense_topk_args a = {
        .h = BP_HDR(struct bp_dense_topk_args, ids), .x = c->x->t, .ids = c->ids->t};
    if (c->values != NULL) a.values = c->values->t;
    bp_case_ports(s, c->argmax ? BP_DENSE_OP_ARGMAX : BP_DENSE_OP_TOPK, &a);
    return c->argmax ? ops_of(s)->argmax(s->target->op.self, &s->launch, &a, err)
                     : ops_of(s)->topk(s->target->op.self, &s->launch, &a, err);
}

static void check_picks(struct bp_case_suite *s, struct pick_call *c)
{
    const int64_t n = c->x->t.dim[0], width = c->x->t.dim[1], k = c->ids->t.dim[1];
    int32_t *want = bp_oracle_alloc((size_t)k, sizeof *want);
    double *x = bp_case_doubles(c->x);
    for (int64_t r = 0; r < n; ++r) {
        bp_oracle_topk(x + r * width, width, k, want);
        for (int64_t i = 0; i < k; ++i) {
            int32_t got = *bp_case_int(c->ids, r * k + i);
            if (got != want[i])
                (void)bp_case_fail(s, "6.6", "row %lld place %lld: got index %d, want %d",
                                   (long long)r, (long long)i, got, want[i]);
            if (c->values == NULL || want[i] < 0) continue;
            double v = bp_case_get(c->values, r * k + i);
            if (!(v == x[r * width + want[i]]))
                (void)bp_case_fail(s, "6.14", "row %lld place %lld: value %.9g", (long long)r,
                                   (long long)i, v);
        }
    }
    free(want);
    free(x);
}

static void pick_case(struct bp_case_suite *s, struct bp_case_target *target, bool argmax,
                      int64_t n, int64_t width, int64_t k, int kind)
{
    static const char *const kinds[] = {"normal", "many ties", "mostly NaN", "infinities"};
    struct bp_dense_problem p =
        problem_of(argmax ? BP_DENSE_OP_ARGMAX : BP_DENSE_OP_TOPK, n, width, dtypes[0]);
    struct pick_call c = {.argmax = argmax};
    p.k = (uint32_t)k;
    if (!bp_case_begin(s, target, &p, "%s rows %lld width %lld k %lld %s",
                       argmax ? "argmax" : "topk", (long long)n, (long long)width, (long long)k,
                       kinds[kind])) {
        return;
    }
    c.x = bp_case_tensor(s, BP_DT_F32, 2, (int64_t[]){n, width}, 4, false);
    c.ids = bp_case_tensor(s, BP_DT_I32, 2, (int64_t[]){n, k}, 3, true);
    if (!argmax || kind == 0)
        c.values = bp_case_tensor(s, BP_DT_F32, 2, (int64_t[]){n, k}, 3, true);
    for (int64_t i = 0; i < n * width; ++i) {
        double v = bp_oracle_normal(&s->rng);
        uint64_t dice = kit_rng_below(&s->rng, 10);
        if (kind == 1) v = floor(v * 2.0);
        if (kind == 2 && dice < 8) v = NAN;
        if (kind == 3 && dice < 4) v = dice < 2 ? -INFINITY : INFINITY;
        bp_case_put(c.x, i, v);
    }
    if (bp_case_run(s, call_pick, &c)) {
        check_picks(s, &c);
        (void)bp_case_repeat(s, call_pick, &c);
    }
    bp_case_end(s);
}

/* ---- embedding ---- */

struct embed_call {
    void *table;
    struct bp_case_tensor *ids, *y;
};

static int32_t call_embed(struct bp_case_suite *s, void *arg, struct bp_error *err)
{
    const struct embed_call *c = arg;
    struct bp_dense_embed_args a = {.h = BP_HDR(struct bp_dense_embed_args, y),
                                    .table = c->table,
                                    .ids = c->ids->t,
                                    .y = c->y->t};
    bp_case_ports(s, BP_DENSE_OP_EMBED, &a);
    return ops_of(s)->embed(s->target->op.self, &s->launch, &a, err);
}

static void embed_case(struct bp_case_suite *s, struct bp_case_target *target,
                       const struct bp_oracle_type *info, int64_t n, uint32_t y_dtype)
{
    enum { VOCAB = 29 };
    const int64_t width = info->block_elems > 1 ? 2 * (int64_t)info->block_elems : 75;
    struct bp_dense_problem p =
        problem_of(BP_DENSE_OP_EMBED, n, width, (uint32_t[]){BP_DT_I32, y_dtype});
    struct embed_call c = {0};
    struct bp_oracle_weight w;
    struct bp_error err = BP_ERROR_INIT;
    p.type = info->type;
    if (!bp_case_begin(s, target, &p, "embed %s tok %lld y %u", info->name, (long long)n, y_dtype))
        return;
    bp_oracle_weight_init(&w, &s->rng, info->type, width, VOCAB, 1, 0.75f);
    struct bp_raw raw = bp_oracle_raw(&w, "conform.table");
    (void)bp_case_prepared(s, ops_of(s)->prepare(s->target->op.self, &raw, &c.table, NULL, &err),
                           &err);
    c.ids = bp_case_tensor(s, BP_DT_I32, 1, &n, 0, false);
    c.y = bp_case_tensor(s, y_dtype, 2, (int64_t[]){n, width}, 4, true);
    for (int64_t i = 0; i < n; ++i)
        *bp_case_int(c.ids, i) = i == 0 ? VOCAB - 1 : (int32_t)kit_rng_below(&s->rng, VOCAB);
    if (bp_case_run(s, call_embed, &c)) {
        for (int64_t i = 0; i < n * width && !s->failed; ++i) {
            double exact = w.w[*bp_case_int(c.ids, i / width) * width + i % width],
                   got = bp_case_get(c.y, i);
            double want = bp_oracle_round(exact, bp_oracle_precision_of(y_dtype));
            if (!(got == want))
                (void)bp_case_fail(s, "6.14", "element %lld: got %.9g, want exactly %.9g",
                                   (long long)i, got, want);
        }
        (void)bp_case_repeat(s, call_embed, &c);
    }
    ops_of(s)->release(s->target->op.self, c.table);
    bp_oracle_weight_free(&w);
    bp_case_end(s);
}

/* ---- products of plain floats ---- */

struct matmul_call {
    struct bp_case_tensor *a, *b, *c;
};

static int32_t call_matmul(struct bp_case_suite *s, void *arg, struct bp_error *err)
{
    const struct matmul_call *m = arg;
    struct bp_dense_matmul_args a = {
        .h = BP_HDR(struct bp_dense_matmul_args, c), .a = m->a->t, .b = m->b->t, .c = m->c->t};
    bp_case_ports(s, BP_DENSE_OP_MATMUL, &a);
    return ops_of(s)->matmul(s->target->op.self, &s->launch, &a, err);
}

static void matmul_case(struct bp_case_suite *s, struct bp_case_target *target, const int64_t d[4],
                        const uint32_t dtype[2])
{
    const int64_t batch = d[0], m = d[1], n = d[2], k = d[3];
    const struct bp_dense_problem p = problem_of(BP_DENSE_OP_MATMUL, m, k, dtype);
    const uint32_t precision = bp_oracle_precision_of(dtype[0]);
    struct matmul_call c;
    if (!bp_case_begin(s, target, &p, "matmul batch %lld m %lld n %lld k %lld x %u y %u",
                       (long long)batch, (long long)m, (long long)n, (long long)k, dtype[0],
                       dtype[1])) {
        return;
    }
    c.a = bp_case_tensor(s, dtype[0], 3, (int64_t[]){batch, m, k}, 8, false);
    c.b = bp_case_tensor(s, dtype[0], 3, (int64_t[]){batch, n, k}, 0, false);
    c.c = bp_case_tensor(s, dtype[1], 3, (int64_t[]){batch, m, n}, 8, true);
    bp_case_fill(s, c.a, BP_FILL_NORMAL, 1.0);
    bp_case_fill(s, c.b, BP_FILL_NORMAL, 1.0);
    if (bp_case_run(s, call_matmul, &c)) {
        struct answer out = answer_alloc(batch * m * n);
        double *a = bp_case_doubles(c.a), *b = bp_case_doubles(c.b);
        for (int64_t i = 0; i < batch; ++i) {
            bp_oracle_matmul(BP_ORACLE_EXACT, b + i * n * k, n, k, a + i * m * k, m,
                             out.exact + i * m * n, out.mag + i * m * n);
            bp_oracle_matmul(precision, b + i * n * k, n, k, a + i * m * k, m, out.base + i * m * n,
                             NULL);
        }
        (void)bp_case_judge(s, c.c, out.exact, out.base, out.mag, precision, "c");
        (void)bp_case_repeat(s, call_matmul, &c);
        free(a);
        free(b);
        answer_free(&out);
    }
    bp_case_end(s);
}

/* ---- the grid ---- */

static void walk_rows(struct bp_case_suite *s, struct bp_case_target *target)
{
    for (size_t w = 0; w < KIT_LEN(widths); ++w) {
        for (size_t c = 0; c < KIT_LEN(counts); ++c) {
            const uint32_t *dtype = dtypes[(w + c) % KIT_LEN(dtypes)];
            uint32_t fill = (uint32_t)((w + 3 * c) % BP_FILL_COUNT);
            row_case(s, target, BP_DENSE_OP_RMS, false, counts[c], widths[w], dtype, fill);
            row_case(s, target, BP_DENSE_OP_RMS, true, counts[c], widths[w], dtype, fill);
            row_case(s, target, BP_DENSE_OP_SILU_MUL, false, counts[c], widths[w], dtype, fill);
            row_case(s, target, BP_DENSE_OP_ADD, false, counts[c], widths[w], dtype, fill);
            /* The variance of equal numbers is a difference of equal sums: no precision bounds what is left of it. */
            if (fill == BP_FILL_EQUAL || widths[w] == 1) fill = BP_FILL_NORMAL;
            if (widths[w] > 1)
                row_case(s, target, BP_DENSE_OP_LAYERNORM, false, counts[c], widths[w], dtype,
                         fill);
        }
    }
}

static void walk_rope(struct bp_case_suite *s, struct bp_case_target *target)
{
    static const int64_t shapes[][3] = {{1, 1, 2}, {0, 3, 64},    {3, 1, 64},  {17, 20, 64},
                                        {5, 7, 8}, {130, 2, 128}, {2, 2, 1000}};
    for (uint32_t style = BP_ROPE_INTERLEAVED; style <= BP_ROPE_HALF; ++style) {
        for (size_t i = 0; i < KIT_LEN(shapes); ++i) {
            for (size_t k = 0; k < KIT_LEN(dtypes); ++k) {
                rope_case(s, target, style, shapes[i][0], shapes[i][1], shapes[i][2], dtypes[k]);
            }
        }
    }
}

static void walk_rest(struct bp_case_suite *s, struct bp_case_target *target)
{
    static const int64_t picks[][3] = {{1, 1, 1},    {0, 9, 2},     {2, 7, 7},      {3, 64, 1},
                                       {5, 257, 40}, {2, 5000, 64}, {1, 151552, 64}};
    static const int64_t products[][4] = {{1, 1, 1, 1},     {3, 1, 5, 7}, {2, 17, 33, 64},
                                          {0, 3, 3, 3},     {2, 0, 3, 3}, {1, 65, 63, 129},
                                          {5, 16, 128, 512}};
    for (size_t i = 0; i < KIT_LEN(picks); ++i) {
        for (int kind = 0; kind < 4; ++kind) {
            pick_case(s, target, true, picks[i][0], picks[i][1], 1, kind);
            pick_case(s, target, false, picks[i][0], picks[i][1], picks[i][2], kind);
        }
    }
    for (size_t i = 0; i < KIT_LEN(products); ++i) {
        for (size_t k = 0; k < KIT_LEN(dtypes); ++k) matmul_case(s, target, products[i], dtypes[k]);
    }
    for (uint32_t type = 0; type < BP_GGUF_COUNT; ++type) {
        const struct bp_oracle_type *info = bp_oracle_type(type);
        if (info == NULL) continue;
        for (int64_t n = 0; n < 40; n += 1 + n) embed_case(s, target, info, n, dtypes[n % 2][1]);
    }
}

void case_dense(struct kit *k)
{
    struct bp_case_suite *s = bp_case_open(k, "bp.dense");
    if (s == NULL) return;
    walk_rows(s, &s->own);
    walk_rope(s, &s->own);
    walk_rest(s, &s->own);
    bp_case_close(s);
}
