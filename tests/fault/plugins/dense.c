/* dense.c - rms, silu_mul and add of "bp.dense", right but for the fault that FAULT names.
 * SPDX-License-Identifier: MIT */
#include "backplane/slot_dense.h"

#include <math.h>

#define IFACE "bp.dense"
#define OP_TABLE dense_table
static const struct bp_dense_ops dense_table;
#include "frame.h"

enum { N_ROWS = 3 }; /* of scratch */

static int32_t dense_supports(void *self, const void *problem, struct bp_verdict *v)
{
    const struct bp_dense_problem *p = problem;
    const uint32_t floats = BP_SET(BP_DT_F32) | BP_SET(BP_DT_F16) | BP_SET(BP_DT_BF16);
    (void)self;
    if (!frame_supports(v, &p->h, BP_END(struct bp_dense_problem, k))) return BP_OK;
    if (p->op != BP_DENSE_OP_RMS && p->op != BP_DENSE_OP_SILU_MUL && p->op != BP_DENSE_OP_ADD) {
        bp_reason_add(v, BP_R_FEATURE, 1, "op", p->op, BP_DENSE_OP_RMS, BP_DENSE_OP_ADD,
                      "rms, silu_mul and add are served");
    }
    bp_want_range(v, BP_R_SHAPE, "width", p->width, 1, 1 << 20);
    bp_want_dtype(v, "x_dtype", p->x_dtype, floats);
    bp_want_dtype(v, "y_dtype", p->y_dtype, floats);
    if (FAULT == F_NO_WITHOUT_REASON) v->n_reasons = 0;
    return bp_verdict_done(v, BP_CAPTURE_NONE, BP_DET_BATCH, -1.0);
}

static int32_t dense_workspace(void *self, const void *problem, struct bp_workspace *out,
                               struct bp_error *err)
{
    const struct bp_dense_problem *p = problem;
    struct bp_area a;
    (void)self;
    (void)err;
    bp_area_count(&a);
    (void)bp_area_take(&a, N_ROWS * (uint64_t)p->width, sizeof(float));
    return frame_workspace(out, a.used, p->max_rows);
}

static int32_t dense_tensors(void *self, uint32_t slot, const void *args, struct bp_tensor *t,
                             uint32_t *n)
{
    const uint32_t cap = *n;
    const int32_t rc = bp_dense_tensors(self, slot, args, t, n);
    if (FAULT == F_WRONG_PORTS && rc == BP_OK && cap > 0) t[0].access = BP_OUT;
    return rc;
}

/* A call in one form: y from x and, for pairs, another. */
struct call {
    uint32_t op;
    struct bp_tensor x, other, w, y; /* other.data, w.data: NULL where there is none */
    float eps;
};

static void formula(const struct call *c, int64_t width, float *x, const float *other,
                    const float *w)
{
    double sum = 0.0;
    for (int64_t i = 0; i < width; ++i) {
        if (c->op == BP_DENSE_OP_SILU_MUL) {
            const double silu =
                isinf(x[i]) && x[i] < 0.0f ? -0.0 : (double)x[i] / (1.0 + exp(-(double)x[i]));
            x[i] = (float)(silu * (double)other[i]);
        } else if (c->other.data != NULL) {
            x[i] += other[i];
        }
        sum += (double)x[i] * (double)x[i];
    }
    const double by = 1.0 / sqrt(sum / (double)width + (double)c->eps);
    for (int64_t i = 0; i < width && c->op == BP_DENSE_OP_RMS; ++i)
        x[i] = (float)((double)x[i] * by * (double)w[i]);
}

/* Faults that show in the results of a row. */
static void spoil_row(const struct state *s, const struct call *c, float *x, int64_t width,
                      int64_t *n)
{
    if (width == 0) return;
    if (FAULT == F_WRONG_NUMBERS) x[width / 2] += 1.0f;
    if (FAULT == F_OVERWRITES) {
        x[width] = 1.0f;
        *n = width + 1;
    }
    if (FAULT == F_UNDERWRITES) *n = width - 1;
    if (FAULT == F_NOT_REPEATABLE && s->n_calls % 2 == 0) x[0] = nextafterf(x[0], INFINITY);
    if (FAULT == F_BATCH_VARIANT && c->y.dim[0] > 1) x[0] = nextafterf(x[0], INFINITY);
}

static int32_t compute(struct state *s, const struct bp_launch *l, const struct bp_hdr *args,
                       const struct call *c)
{
    const int64_t width = c->y.dim[1];
    struct bp_area area;
    int has_nan = 0;
    BP_TRY(misbehave_in_run(s, l));
    /* What a later minor might append, read without a look at h.size. */
    if (FAULT == F_PAST_ARGS && ((const volatile unsigned char *)args)[args->size] == 77)
        return BP_E_ARG;
    bp_area_of(&area, l->scratch, l->scratch_bytes);
    float *rows = bp_area_take(&area, N_ROWS * (uint64_t)width, sizeof(float));
    if (rows == NULL) return BP_E_ARG;
    float *x = rows, *other = rows + width, *w = rows + 2 * width;
    for (int64_t r = 0; r < c->y.dim[0] && FAULT == F_CLEARS_FIRST; ++r)
        memset(bp_at(&c->y, r, 0, 0), 0, (size_t)width * bp_dtype_bytes(c->y.dtype));
    if (c->w.data != NULL) bp_load(w, c->w.data, c->w.dtype, width);
    for (int64_t r = 0; r < c->y.dim[0]; ++r) {
        int64_t n = width;
        bp_load(x, bp_at(&c->x, r, 0, 0), c->x.dtype, width);
        if (c->other.data != NULL) bp_load(other, bp_at(&c->other, r, 0, 0), c->other.dtype, width);
        if (c->op == BP_DENSE_OP_RMS && c->other.data != NULL) { /* x += add is an output too */
            for (int64_t i = 0; i < width; ++i) x[i] += other[i], other[i] = 0.0f;
            bp_store(bp_at(&c->x, r, 0, 0), c->x.dtype, x, width);
        }
        formula(c, width, x, other, w);
        spoil_row(s, c, x, width, &n);
        bp_store(bp_at(&c->y, r, 0, 0), c->y.dtype, x, n);
        for (int64_t i = 0; i < width; ++i) has_nan |= isnan(x[i]);
        if (FAULT == F_WRITES_INPUT && width > 0) memset(bp_at(&c->x, r, 0, 0), 0, 2);
    }
    for (int64_t r = 0; r < c->y.dim[0] && FAULT == F_NAN_SPREADS && has_nan; ++r) {
        const float nan = NAN;
        bp_store(bp_at(&c->y, r, 0, 0), c->y.dtype, &nan, 1);
    }
    return BP_OK;
}

static int32_t rms(void *self, const struct bp_launch *l, const struct bp_dense_rms_args *a,
                   struct bp_error *err)
{
    const struct call c = {
        .op = BP_DENSE_OP_RMS, .x = a->x, .other = a->add, .w = a->w, .y = a->y, .eps = a->eps};
    (void)err;
    return compute(self, l, &a->h, &c);
}

static int32_t pair(void *self, const struct bp_launch *l, const struct bp_dense_pair_args *a,
                    uint32_t op)
{
    const struct call c = {.op = op, .x = a->a, .other = a->b, .y = a->y};
    return compute(self, l, &a->h, &c);
}

static int32_t silu_mul(void *self, const struct bp_launch *l, const struct bp_dense_pair_args *a,
                        struct bp_error *err)
{
    (void)err;
    return pair(self, l, a, BP_DENSE_OP_SILU_MUL);
}

static int32_t add(void *self, const struct bp_launch *l, const struct bp_dense_pair_args *a,
                   struct bp_error *err)
{
    (void)err;
    return pair(self, l, a, BP_DENSE_OP_ADD);
}

static const struct bp_dense_ops dense_table = {.base = {.h = BP_HDR(struct bp_dense_ops, matmul),
                                                         .iface = IFACE,
                                                         .iface_major = BP_ABI_MAJOR,
                                                         .iface_minor = BP_ABI_MINOR,
                                                         .supports = dense_supports,
                                                         .workspace = dense_workspace,
                                                         .tensors = dense_tensors},
                                                .rms = rms,
                                                .silu_mul = silu_mul,
                                                .add = add};
