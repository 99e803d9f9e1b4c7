/* case_quant.c - every provider of bp.quant against the oracle: all types it can prepare, edge shapes first, parts
 * of tensors that begin and end inside blocks, all fused forms it says yes to, dequantize. Order: status, guards, finite class, bound, bits of a repeated call, bits of a
 * row alone. SPDX-License-Identifier: MIT */
#include "cases/bp_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_W = 4 };

struct form {
    uint32_t n_w, prologue, epilogue;
};

/* One product, its weights and its tensors. */
struct product {
    struct form form;
    int64_t n_tok, cols, rows[MAX_W];
    int64_t begin[2],
        whole[2]; /* columns and rows: where this rank's part begins, and how large the tensor is */
    struct bp_oracle_weight w[MAX_W];
    double *part[MAX_W]; /* (rows, cols) of the part */
    void *handle[MAX_W];
    struct bp_case_tensor *x, *norm_w, *residual, *y[MAX_W], *alone[MAX_W];
    struct bp_case_tensor *both; /* not NULL: the residual, and y in place of it */
    int64_t only_row;            /* -1: all rows; else this row alone, into `alone` */
    double *exact[MAX_W], *base[MAX_W], *mag[MAX_W];
};

static const struct bp_quant_ops *ops_of(const struct bp_case_suite *s)
{
    return (const struct bp_quant_ops *)(const void *)s->target->op.vt;
}

static struct bp_tensor row_of(const struct bp_case_tensor *t, int64_t row)
{
    struct bp_tensor view = t->t;
    view.data = (unsigned char *)view.data + (size_t)(row * view.stride[0]) * t->elem_bytes;
    view.dim[0] = 1;
    return view;
}

static int32_t call_matmul(struct bp_case_suite *s, void *arg, struct bp_error *err)
{
    const struct product *p = arg;
    struct bp_matmul_out outs[MAX_W];
    for (uint32_t i = 0; i < p->form.n_w; ++i) {
        outs[i] = (struct bp_matmul_out){.weight = p->handle[i],
                                         .y = p->only_row < 0 ? p->y[i]->t : p->alone[i]->t};
    }
    struct bp_quant_matmul_args a = {.h = BP_HDR(struct bp_quant_matmul_args, reserved),
                                     .x = p->only_row < 0 ? p->x->t : row_of(p->x, p->only_row),
                                     .outs = outs,
                                     .n_out = p->form.n_w,
                                     .out_stride = sizeof outs[0],
                                     .prologue = p->form.prologue,
                                     .epilogue = p->form.epilogue,
                                     .eps = 1e-6f};
    if (p->norm_w != NULL) a.norm_w = p->norm_w->t;
    if (p->both != NULL)
        a.residual = outs[0].y = p->both->t;
    else if (p->residual != NULL)
        a.residual = p->only_row < 0 ? p->residual->t : row_of(p->residual, p->only_row);
    bp_case_ports(s, BP_QUANT_OP_MATMUL, &a);
    return ops_of(s)->matmul(s->target->op.self, &s->launch, &a, err);
}

/* ---- the oracle's answer ---- */

static void expect(const struct product *p, uint32_t precision, double *const y[MAX_W],
                   double *const mag[MAX_W])
{
    double *x = bp_case_doubles(p->x);
    const int64_t n = p->n_tok;
    if (p->norm_w != NULL) {
        double *w = bp_case_doubles(p->norm_w);
        bp_oracle_rms(precision, x, w, n, p->cols, (double)1e-6f, x);
        free(w);
    }
    for (uint32_t i = 0; i < p->form.n_w; ++i) {
        bp_oracle_matmul(precision, p->part[i], p->rows[i], p->cols, x, n, y[i],
                         mag != NULL ? mag[i] : NULL);
        for (int64_t k = 0; mag != NULL && p->norm_w != NULL && k < n * p->rows[i]; ++k)
            mag[i][k] *= 2.0;
    }
    for (int64_t k = 0; k < n * p->rows[0]; ++k) {
        double a = y[0][k];
        if (p->residual != NULL) {
            double r = bp_oracle_round(bp_case_get(p->residual, k), precision);
            y[0][k] = bp_oracle_round(a + r, precision);
            if (mag != NULL) mag[0][k] += fabs(a) + fabs(r);
        } else if (p->form.epilogue == BP_EPILOGUE_SILU_MUL) {
            double b = y[1][k];
            y[0][k] = bp_oracle_silu_mul(precision, a, b);
            if (mag != NULL)
                mag[0][k] = 1.1 * mag[0][k] * fabs(b) + mag[1][k] * fabs(a) + 2.0 * fabs(y[0][k]);
        }
    }
    free(x);
}

static void make_expectation(struct product *p, uint32_t precision)
{
    for (uint32_t i = 0; i < p->form.n_w; ++i) {
        const size_t n = (size_t)(p->n_tok * p->rows[i]);
        p->exact[i] = bp_oracle_alloc(n, sizeof(double));
        p->base[i] = bp_oracle_alloc(n, sizeof(double));
        p->mag[i] = bp_oracle_alloc(n, sizeof(double));
    }
    expect(p, BP_ORACLE_EXACT, p->exact, p->mag);
    expect(p, precision, p->base, NULL);
}

/* ---- one case ---- */

static void drop_product(struct bp_case_suite *s, struct product *p)
{
    for (uint32_t i = 0; i < p->form.n_w; ++i) {
        ops_of(s)->release(s->target->op.self, p->handle[i]);
        bp_oracle_weight_free(&p->w[i]);
        free(p->part[i]);
        free(p->exact[i]);
        free(p->base[i]);
        free(p->mag[i]);
    }
}

static void make_weights(struct bp_case_suite *s, struct product *p,
                         const struct bp_quant_shape *shapes)
{
    for (uint32_t i = 0; i < p->form.n_w; ++i) {
        struct bp_error err = BP_ERROR_INIT;
        const int64_t more_rows = p->rows[i] - p->rows[0];
        bp_oracle_weight_init(&p->w[i], &s->rng, shapes[i].type, p->whole[0],
                              p->whole[1] + more_rows, 1, i == 0 ? 1.25f : 0.75f);
        struct bp_raw raw = bp_oracle_raw(&p->w[i], "conform.weight");
        raw.begin[0] = p->begin[0];
        raw.end[0] = p->begin[0] + p->cols;
        raw.begin[1] = p->begin[1];
        raw.end[1] = p->begin[1] + p->rows[i];
        int32_t rc = ops_of(s)->prepare(s->target->op.self, &raw, &p->handle[i], NULL, &err);
        (void)bp_case_prepared(s, rc, &err);
        p->part[i] = bp_oracle_alloc((size_t)(p->rows[i] * p->cols), sizeof(double));
        for (int64_t r = 0; r < p->rows[i]; ++r) {
            for (int64_t c = 0; c < p->cols; ++c) {
                p->part[i][r * p->cols + c] =
                    p->w[i].w[(p->begin[1] + r) * p->whole[0] + p->begin[0] + c];
            }
        }
    }
}

static void make_tensors(struct bp_case_suite *s, struct product *p,
                         const struct bp_quant_problem *problem, uint32_t fill)
{
    const int64_t pad = (int64_t)kit_rng_below(&s->rng, 3) * 8;
    p->x = bp_case_tensor(s, problem->x_dtype, 2, (int64_t[]){p->n_tok, p->cols}, pad, false);
    bp_case_fill(s, p->x, fill, 1.0);
    if (p->form.prologue == BP_PROLOGUE_RMS) {
        p->norm_w = bp_case_tensor(s, BP_DT_F32, 1, &p->cols, 0, false);
        bp_case_fill(s, p->norm_w, BP_FILL_NORMAL, 1.0);
    }
    if (p->form.epilogue == BP_EPILOGUE_ADD) {
        p->residual =
            bp_case_tensor(s, problem->y_dtype, 2, (int64_t[]){p->n_tok, p->rows[0]}, pad, false);
        bp_case_fill(s, p->residual, BP_FILL_NORMAL, 1.0);
    }
    for (uint32_t i = 0; i < p->form.n_w; ++i) {
        bool written = i == 0 || p->form.epilogue != BP_EPILOGUE_SILU_MUL;
        p->y[i] =
            bp_case_tensor(s, problem->y_dtype, 2, (int64_t[]){p->n_tok, p->rows[i]}, pad, written);
        p->alone[i] =
            bp_case_tensor(s, problem->y_dtype, 2, (int64_t[]){1, p->rows[i]}, 0, written);
    }
}

/* A residual may be y itself. */
static void in_place(struct bp_case_suite *s, struct product *p, uint32_t precision)
{
    const struct bp_case_tensor *from = p->residual;
    if (from == NULL || p->n_tok == 0) return;
    p->both = bp_case_tensor(s, from->t.dtype, 2, from->t.dim, 8, true);
    for (int64_t i = 0; i < bp_case_count(from); ++i) bp_case_put(p->both, i, bp_case_get(from, i));
    if (bp_case_run(s, call_matmul, p))
        (void)bp_case_judge(s, p->both, p->exact[0], p->base[0], p->mag[0], precision,
                            "y in place of the residual");
    p->both = NULL;
}

static void check_product(struct bp_case_suite *s, struct product *p, uint32_t x_dtype)
{
    const uint32_t n_y = p->form.epilogue == BP_EPILOGUE_SILU_MUL ? 1 : p->form.n_w;
    const uint32_t precision = bp_oracle_precision_of(x_dtype);
    p->only_row = -1;
    if (!bp_case_run(s, call_matmul, p)) return;
    make_expectation(p, precision);
    for (uint32_t i = 0; i < n_y; ++i) {
        (void)bp_case_judge(s, p->y[i], p->exact[i], p->base[i], p->mag[i], precision,
                            i == 0 ? "y" : "y of a further weight");
    }
    (void)bp_case_repeat(s, call_matmul, p);
    in_place(s, p, precision);
    if (s->answer.verdict.determinism < BP_DET_BATCH || p->n_tok == 0) return;
    for (int k = 0; k < 2; ++k) {
        p->only_row = k == 0 ? 0 : p->n_tok - 1;
        if (!bp_case_run(s, call_matmul, p)) return;
        for (uint32_t i = 0; i < n_y; ++i)
            (void)bp_case_same_row(s, p->y[i], p->only_row, p->alone[i], "y");
    }
}

struct dims {
    int64_t rows, blocks,
        n_tok; /* blocks: columns in blocks of the type (of 32 for plain floats) */
};

/* What a rank owns of a tensor: cut off at either end, in elements. */
struct cut {
    int64_t left, right, top, bottom;
};

struct matmul_case {
    const uint32_t *types;
    const struct dims *dims;
    const struct form *form;
    struct cut cut;
    uint32_t x_dtype, y_dtype, fill;
};

/* Sizes of the case; false when nothing would be left of the tensor. */
static bool measure(const struct matmul_case *m, struct product *p, struct bp_quant_shape *shapes,
                    char *names, size_t cap)
{
    int64_t block = 1;
    names[0] = '\0';
    for (uint32_t i = 0; i < m->form->n_w; ++i) {
        const struct bp_oracle_type *info = bp_oracle_type(m->types[i]);
        if (info->block_elems > block) block = info->block_elems;
        (void)snprintf(names + strlen(names), cap - strlen(names), "%s%s", i != 0 ? "+" : "",
                       info->name);
    }
    p->form = *m->form;
    p->n_tok = m->dims->n_tok;
    p->whole[0] =
        block > 1 ? m->dims->blocks * block : m->dims->blocks * 32 - (m->dims->blocks > 1 ? 9 : 0);
    p->whole[1] = m->dims->rows;
    p->begin[0] = m->cut.left;
    p->begin[1] = m->cut.top;
    p->cols = p->whole[0] - m->cut.left - m->cut.right;
    for (uint32_t i = 0; i < m->form->n_w; ++i) {
        const int64_t more = m->form->epilogue == BP_EPILOGUE_SILU_MUL ? 0 : 5 * (int64_t)i;
        p->rows[i] = p->whole[1] + more - m->cut.top - m->cut.bottom;
        shapes[i] =
            (struct bp_quant_shape){.type = m->types[i], .rows = p->rows[i], .cols = p->cols};
    }
    return p->cols >= 0 && p->rows[0] >= 0;
}

static void matmul_case(struct bp_case_suite *s, struct bp_case_target *target,
                        const struct matmul_case *m)
{
    struct product p = {.only_row = -1};
    struct bp_quant_shape shapes[MAX_W];
    char names[64];
    if (!measure(m, &p, shapes, names, sizeof names)) return;
    const struct bp_quant_problem problem = {.h = BP_HDR(struct bp_quant_problem, epilogue),
                                             .op = BP_QUANT_OP_MATMUL,
                                             .n_w = p.form.n_w,
                                             .w_stride = sizeof shapes[0],
                                             .max_tok = (uint32_t)(p.n_tok > 0 ? p.n_tok : 1),
                                             .w = shapes,
                                             .x_dtype = m->x_dtype,
                                             .y_dtype = m->y_dtype,
                                             .prologue = p.form.prologue,
                                             .epilogue = p.form.epilogue};
    if (!bp_case_begin(s, target, &problem,
                       "matmul %s rows %lld+%lld cols %lld+%lld of %lld tok %lld prologue %u "
                       "epilogue %u x %u y %u %s",
                       names, (long long)p.begin[1], (long long)p.rows[0], (long long)p.begin[0],
                       (long long)p.cols, (long long)p.whole[0], (long long)p.n_tok,
                       p.form.prologue, p.form.epilogue, m->x_dtype, m->y_dtype,
                       bp_case_fill_name(m->fill))) {
        return;
    }
    make_weights(s, &p, shapes);
    make_tensors(s, &p, &problem, m->fill);
    check_product(s, &p, m->x_dtype);
    drop_product(s, &p);
    bp_case_end(s);
}

/* ---- dequantize ---- */

struct rows_call {
    void *handle;
    struct bp_case_tensor *y;
    int64_t row_begin;
};

static int32_t call_dequantize(struct bp_case_suite *s, void *arg, struct bp_error *err)
{
    const struct rows_call *c = arg;
    struct bp_quant_dequantize_args a = {.h = BP_HDR(struct bp_quant_dequantize_args, y),
                                         .weight = c->handle,
                                         .row_begin = c->row_begin,
                                         .y = c->y->t};
    bp_case_ports(s, BP_QUANT_OP_DEQUANTIZE, &a);
    return ops_of(s)->dequantize(s->target->op.self, &s->launch, &a, err);
}

static void dequantize_case(struct bp_case_suite *s, struct bp_case_target *target, uint32_t type,
                            uint32_t y_dtype)
{
    enum { ROWS = 19, BEGIN = 3, N = 13 };
    const struct bp_oracle_type *info = bp_oracle_type(type);
    const int64_t cols = info->block_elems > 1 ? 3 * (int64_t)info->block_elems : 77;
    struct bp_quant_shape shape = {.type = type, .rows = ROWS, .cols = cols};
    const struct bp_quant_problem problem = {.h = BP_HDR(struct bp_quant_problem, epilogue),
                                             .op = BP_QUANT_OP_DEQUANTIZE,
                                             .n_w = 1,
                                             .w_stride = sizeof shape,
                                             .max_tok = 1,
                                             .w = &shape,
                                             .x_dtype = BP_DT_F32,
                                             .y_dtype = y_dtype};
    struct bp_oracle_weight w;
    struct rows_call c = {.row_begin = BEGIN};
    struct bp_error err = BP_ERROR_INIT;
    if (!bp_case_begin(s, target, &problem, "dequantize %s y %u", info->name, y_dtype)) return;
    bp_oracle_weight_init(&w, &s->rng, type, cols, ROWS, 1, 1.5f);
    struct bp_raw raw = bp_oracle_raw(&w, "conform.weight");
    (void)bp_case_prepared(s, ops_of(s)->prepare(s->target->op.self, &raw, &c.handle, NULL, &err),
                           &err);
    c.y = bp_case_tensor(s, y_dtype, 2, (int64_t[]){N, cols}, 4, true);
    if (bp_case_run(s, call_dequantize, &c)) {
        for (int64_t i = 0; i < N * cols; ++i) { /* exact for F32, one rounding otherwise */
            double want = bp_oracle_round(w.w[BEGIN * cols + i], bp_oracle_precision_of(y_dtype));
            double got = bp_case_get(c.y, i);
            if (!(got == want)) {
                (void)bp_case_fail(s, "6.14", "element %lld: got %.9g, want exactly %.9g",
                                   (long long)i, got, want);
                break;
            }
        }
        (void)bp_case_repeat(s, call_dequantize, &c);
    }
    ops_of(s)->release(s->target->op.self, c.handle);
    bp_oracle_weight_free(&w);
    bp_case_end(s);
}

/* ---- the grid ---- */

static const struct dims edge_dims[] = {{1, 1, 1},   {1, 1, 0},    {2, 1, 3},   {3, 3, 2},
                                        {63, 2, 17}, {64, 1, 16},  {65, 2, 33}, {127, 1, 5},
                                        {31, 9, 65}, {130, 3, 129}};
/* Numbers of columns where kernels change, with odd rows and an odd number of blocks; the long ones with --full. */
static const struct dims col_dims[] = {{33, 3, 4}, {35, 1, 8}, {37, 3, 9}};
static const struct dims full_dims[] = {{1, 3, 1},   {129, 3, 2},  {31, 5, 3},   {65, 3, 5},
                                        {67, 3, 64}, {35, 3, 512}, {515, 13, 1}, {257, 13, 8}};
static const struct form forms[] = {{1, 0, 0}, {3, 0, 0}, {4, 1, 0}, {1, 1, 0},
                                    {1, 0, 1}, {2, 1, 1}, {2, 0, 2}, {2, 1, 2}};
static const uint32_t dtypes[][2] = {{BP_DT_F32, BP_DT_F32},
                                     {BP_DT_BF16, BP_DT_BF16},
                                     {BP_DT_BF16, BP_DT_F32},
                                     {BP_DT_F16, BP_DT_F16},
                                     {BP_DT_F16, BP_DT_F32}};

/* Inside one block, over a block's end, whole blocks, one column, nothing. */
static const struct cut cuts[] = {{1, 1, 0, 0},  {13, 2, 1, 2},  {32, 0, 0, 1},
                                  {0, 32, 3, 0}, {31, 64, 0, 0}, {0, 0, 2, 60}};

static void walk_plain(struct bp_case_suite *s, struct bp_case_target *target, uint32_t type,
                       uint32_t at)
{
    const uint32_t types[MAX_W] = {type, type, type, type};
    for (size_t d = 0; d < KIT_LEN(edge_dims); ++d) {
        const uint32_t *pair = dtypes[(at + d) % KIT_LEN(dtypes)];
        const struct matmul_case m = {types,
                                      &edge_dims[d],
                                      &forms[0],
                                      {0, 0, 0, 0},
                                      pair[0],
                                      pair[1],
                                      (uint32_t)((at + d) % BP_FILL_COUNT)};
        matmul_case(s, target, &m);
    }
    for (size_t d = 0; d < KIT_LEN(col_dims) + (s->kit->o->full ? KIT_LEN(full_dims) : 0); ++d) {
        const uint32_t *pair = dtypes[(at + d) % KIT_LEN(dtypes)];
        const struct matmul_case m = {types,
                                      d < KIT_LEN(col_dims) ? &col_dims[d]
                                                            : &full_dims[d - KIT_LEN(col_dims)],
                                      &forms[0],
                                      {0, 0, 0, 0},
                                      pair[0],
                                      pair[1],
                                      d % 3 == 2 ? BP_FILL_NAN_ROW : BP_FILL_NORMAL};
        matmul_case(s, target, &m);
    }
    for (size_t c = 0; c < KIT_LEN(cuts); ++c) {
        static const struct dims whole = {64, 3, 3};
        const uint32_t *pair = dtypes[(at + c) % KIT_LEN(dtypes)];
        const struct matmul_case m = {types,   &whole,  &forms[0],     cuts[c],
                                      pair[0], pair[1], BP_FILL_NORMAL};
        matmul_case(s, target, &m);
    }
    for (size_t k = 0; k < KIT_LEN(dtypes); ++k) dequantize_case(s, target, type, dtypes[k][1]);
}

/* Fused forms, with weights of different types side by side. */
static void walk_fused(struct bp_case_suite *s, struct bp_case_target *target,
                       const uint32_t *types, uint32_t n_types)
{
    for (size_t f = 0; f < KIT_LEN(forms); ++f) {
        for (uint32_t t = 0; t + 1 < n_types; t += 3) {
            const uint32_t mixed[MAX_W] = {types[t], types[t + 1], types[0], types[n_types - 1]};
            for (size_t k = 0; k < KIT_LEN(dtypes); ++k) {
                const struct dims *d = &edge_dims[(f + t + k) % KIT_LEN(edge_dims)];
                uint32_t fill = (uint32_t)((f + t + k) % BP_FILL_COUNT);
                if (fill == BP_FILL_ZERO || fill == BP_FILL_ONE_HOT) fill = BP_FILL_NORMAL;
                const struct matmul_case m = {
                    mixed, d, &forms[f], {0, 0, 0, 0}, dtypes[k][0], dtypes[k][1], fill};
                matmul_case(s, target, &m);
            }
        }
    }
}

static void walk(struct bp_case_suite *s, struct bp_case_target *target)
{
    const struct bp_quant_ops *ops = (const struct bp_quant_ops *)(const void *)target->op.vt;
    uint32_t types[BP_GGUF_COUNT], n_types = 0;
    while (n_types < BP_GGUF_COUNT &&
           ops->format(target->op.self, n_types, &types[n_types]) == BP_OK) {
        if (bp_oracle_type(types[n_types]) == NULL) {
            (void)kit_fail(s->kit, "6.1", "bp.quant", "format", "format lists types of GGUF files",
                           "entry %u is type %u", n_types, types[n_types]);
            break;
        }
        n_types++;
    }
    for (uint32_t t = 0; t < n_types; ++t) walk_plain(s, target, types[t], t);
    walk_fused(s, target, types, n_types);
}

void case_quant(struct kit *k)
{
    struct bp_case_suite *s = bp_case_open(k, "bp.quant");
    if (s == NULL) return;
    walk(s, &s->own);
    bp_case_close(s);
}
