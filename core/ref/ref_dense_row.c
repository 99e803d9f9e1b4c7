/* ref_dense_row.c - norms, rotation and element-wise ops of the dense slot.
 * Every row is computed from itself alone. Where an output may be an input, a piece is read whole before it is written.
 * Threads: as slot_dense.h says. SPDX-License-Identifier: MIT */
#include "ref/ref_dense.h"

enum { CHUNK = 256, LANES = 8 };

struct job {
    struct bpi_ref *ref;
    const void *a; /* the op's args */
    struct bpi_ref_dense_scratch s;
    int64_t n;
    void (*row)(const struct job *j, int64_t r, float *f, double *d);
};

static void row_slices(void *arg, uint64_t begin, uint64_t end)
{
    struct job *j = arg;
    for (uint64_t slice = begin; slice < end; ++slice) {
        int64_t r, r_end;
        bpi_ref_slice_part(slice, bpi_ref_slices(j->ref), j->n, &r, &r_end);
        for (; r < r_end; ++r)
            j->row(j, r, j->s.f + slice * j->s.f_stride, j->s.d + slice * j->s.d_stride);
    }
}

static int32_t run_rows(struct job *j, const struct bp_launch *l, const char *op, int64_t width,
                        struct bp_error *err)
{
    struct bpi_ref_area area = bpi_ref_area_of(l);
    if (j->n == 0) return BP_OK;
    bpi_ref_dense_take(j->ref, &area, width, 2, 1, &j->s);
    if (area.bad) return bpi_ref_area_fail(l, op, err);
    bpi_ref_run_slices(j->ref, (uint64_t)(j->n * width), row_slices, j);
    return BP_OK;
}

static bool same_shape(const struct bp_tensor *a, const struct bp_tensor *b)
{
    return bpi_ref_is_float(a->dtype) && bpi_ref_is_float(b->dtype) && a->dim[0] == b->dim[0] &&
           a->dim[1] == b->dim[1];
}

static int32_t fail_shape(const char *op, const struct bp_tensor *x, const struct bp_tensor *y,
                          struct bp_error *err)
{
    return bpi_fail(err, BP_E_ARG, "ref", op,
                    "x (%lld, %lld) of dtype %u and y (%lld, %lld) of dtype %u do not agree",
                    (long long)x->dim[0], (long long)x->dim[1], x->dtype, (long long)y->dim[0],
                    (long long)y->dim[1], y->dtype);
}

/* ---- norms ---- */

static void rms_row(const struct job *j, int64_t r, float *f, double *d)
{
    const struct bp_dense_rms_args *a = j->a;
    const int64_t n = a->x.dim[1];
    void *x = bpi_ref_at(&a->x, r, 0, 0);
    bpi_ref_load(f, x, a->x.dtype, n, j->ref->round);
    if (a->add.data != NULL) {
        bpi_ref_load(f + n, bpi_ref_at(&a->add, r, 0, 0), a->add.dtype, n, j->ref->round);
        for (int64_t i = 0; i < n; ++i) d[i] = (double)f[i] + (double)f[n + i];
        bpi_ref_store(x, a->x.dtype, d, n, j->ref->round);
        bpi_ref_load(f, x, a->x.dtype, n, j->ref->round);
    }
    bpi_ref_rms_row(f, a->w.data, n, a->eps, d);
    bpi_ref_store(bpi_ref_at(&a->y, r, 0, 0), a->y.dtype, d, n, j->ref->round);
}

int32_t bpi_ref_dense_rms(void *self, const struct bp_launch *l, const struct bp_dense_rms_args *a,
                          struct bp_error *err)
{
    struct job j = {.ref = self, .a = a, .n = a->x.dim[0], .row = rms_row};
    if (!same_shape(&a->x, &a->y)) return fail_shape("dense.rms", &a->x, &a->y, err);
    if (a->add.data != NULL && !same_shape(&a->x, &a->add))
        return fail_shape("dense.rms", &a->x, &a->add, err);
    return run_rows(&j, l, "dense.rms", a->x.dim[1], err);
}

static double sum_row(const float *x, int64_t n)
{
    double s[LANES] = {0};
    for (int64_t i = 0; i < n; ++i) s[i % LANES] += (double)x[i];
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

static void layernorm_row(const struct job *j, int64_t r, float *f, double *d)
{
    const struct bp_dense_layernorm_args *a = j->a;
    const int64_t n = a->x.dim[1];
    const float *w = a->w.data, *b = a->b.data;
    bpi_ref_load(f, bpi_ref_at(&a->x, r, 0, 0), a->x.dtype, n, j->ref->round);
    double mean = sum_row(f, n) / (double)n;
    for (int64_t i = 0; i < n; ++i) d[i] = (double)f[i] - mean;
    double inv = 1.0 / sqrt(bpi_ref_dot_dd(d, d, n) / (double)n + (double)a->eps);
    for (int64_t i = 0; i < n; ++i) d[i] = d[i] * inv * (double)w[i] + (double)b[i];
    bpi_ref_store(bpi_ref_at(&a->y, r, 0, 0), a->y.dtype, d, n, j->ref->round);
}

int32_t bpi_ref_dense_layernorm(void *self, const struct bp_launch *l,
                                const struct bp_dense_layernorm_args *a, struct bp_error *err)
{
    struct job j = {.ref = self, .a = a, .n = a->x.dim[0], .row = layernorm_row};
    if (!same_shape(&a->x, &a->y)) return fail_shape("dense.layernorm", &a->x, &a->y, err);
    return run_rows(&j, l, "dense.layernorm", a->x.dim[1], err);
}

/* ---- rotation ---- */

/* Pairs [i, i + n) of one head; n is at most CHUNK. first and second: the pair's two numbers, side by side. */
static void rotate(const float *first, const float *second, const float *cos_row,
                   const float *sin_row, int64_t n, double *out_first, double *out_second)
{
    for (int64_t i = 0; i < n; ++i) {
        double a = (double)first[i], b = (double)second[i], c = (double)cos_row[i],
               s = (double)sin_row[i];
        out_first[i] = a * c - b * s;
        out_second[i] = a * s + b * c;
    }
}

static void rotate_head(const struct job *j, int64_t r, int64_t head, const float *cos_row,
                        const float *sin_row)
{
    const struct bp_dense_rope_args *a = j->a;
    const int64_t half = a->x.dim[2] / 2;
    const uint32_t round = j->ref->round, from = a->x.dtype, to = a->y.dtype;
    float in[2 * CHUNK], first[CHUNK], second[CHUNK];
    double out[2 * CHUNK], out_first[CHUNK], out_second[CHUNK];
    for (int64_t i = 0; i < half; i += CHUNK) {
        int64_t n = half - i < CHUNK ? half - i : CHUNK;
        if (a->style == BP_ROPE_HALF) {
            bpi_ref_load(first, bpi_ref_at(&a->x, r, head, i), from, n, round);
            bpi_ref_load(second, bpi_ref_at(&a->x, r, head, i + half), from, n, round);
            rotate(first, second, cos_row + i, sin_row + i, n, out_first, out_second);
            bpi_ref_store(bpi_ref_at(&a->y, r, head, i), to, out_first, n, round);
            bpi_ref_store(bpi_ref_at(&a->y, r, head, i + half), to, out_second, n, round);
            continue;
        }
        bpi_ref_load(in, bpi_ref_at(&a->x, r, head, 2 * i), from, 2 * n, round);
        for (int64_t k = 0; k < n; ++k) {
            first[k] = in[2 * k];
            second[k] = in[2 * k + 1];
        }
        rotate(first, second, cos_row + i, sin_row + i, n, out_first, out_second);
        for (int64_t k = 0; k < n; ++k) {
            out[2 * k] = out_first[k];
            out[2 * k + 1] = out_second[k];
        }
        bpi_ref_store(bpi_ref_at(&a->y, r, head, 2 * i), to, out, 2 * n, round);
    }
}

static void rope_row(const struct job *j, int64_t r, float *f, double *d)
{
    const struct bp_dense_rope_args *a = j->a;
    (void)f;
    (void)d;
    int32_t position = *(const int32_t *)bpi_ref_at(&a->positions, r, 0, 0);
    const float *cos_row = bpi_ref_at(&a->cos_table, position, 0, 0);
    const float *sin_row = bpi_ref_at(&a->sin_table, position, 0, 0);
    for (int64_t head = 0; head < a->x.dim[1]; ++head) rotate_head(j, r, head, cos_row, sin_row);
}

int32_t bpi_ref_dense_rope(void *self, const struct bp_launch *l,
                           const struct bp_dense_rope_args *a, struct bp_error *err)
{
    (void)l;
    struct job j = {.ref = self, .a = a, .n = a->x.dim[0], .row = rope_row};
    if (!same_shape(&a->x, &a->y) || a->x.dim[2] != a->y.dim[2] || a->x.dim[2] % 2 != 0) {
        return fail_shape("dense.rope", &a->x, &a->y, err);
    }
    for (int64_t r = 0; r < j.n; ++r) {
        int32_t position = *(const int32_t *)bpi_ref_at(&a->positions, r, 0, 0);
        if (position < 0 || position >= a->cos_table.dim[0]) {
            return bpi_fail(err, BP_E_ARG, "ref", "dense.rope",
                            "position %d is outside of the table's %lld rows", position,
                            (long long)a->cos_table.dim[0]);
        }
    }
    bpi_ref_run_slices(j.ref, (uint64_t)(j.n * a->x.dim[1] * a->x.dim[2]), row_slices, &j);
    return BP_OK;
}

/* ---- element by element ---- */

static void pair_row(const struct job *j, int64_t r, bool silu)
{
    const struct bp_dense_pair_args *a = j->a;
    const int64_t width = a->a.dim[1];
    float left[CHUNK], right[CHUNK];
    double y[CHUNK];
    for (int64_t at = 0; at < width; at += CHUNK) {
        int64_t n = width - at < CHUNK ? width - at : CHUNK;
        bpi_ref_load(left, bpi_ref_at(&a->a, r, at, 0), a->a.dtype, n, j->ref->round);
        bpi_ref_load(right, bpi_ref_at(&a->b, r, at, 0), a->b.dtype, n, j->ref->round);
        for (int64_t i = 0; i < n; ++i) {
            double x = (double)left[i], b = (double)right[i];
            y[i] = silu ? bpi_ref_silu(x) * b : x + b;
        }
        bpi_ref_store(bpi_ref_at(&a->y, r, at, 0), a->y.dtype, y, n, j->ref->round);
    }
}

static void silu_mul_row(const struct job *j, int64_t r, float *f, double *d)
{
    (void)f;
    (void)d;
    pair_row(j, r, true);
}

static void add_row(const struct job *j, int64_t r, float *f, double *d)
{
    (void)f;
    (void)d;
    pair_row(j, r, false);
}

static int32_t run_pair(struct job *j, const struct bp_dense_pair_args *a, const char *op,
                        struct bp_error *err)
{
    if (!same_shape(&a->a, &a->b)) return fail_shape(op, &a->a, &a->b, err);
    if (!same_shape(&a->a, &a->y)) return fail_shape(op, &a->a, &a->y, err);
    bpi_ref_run_slices(j->ref, (uint64_t)(j->n * a->a.dim[1]), row_slices, j);
    return BP_OK;
}

int32_t bpi_ref_dense_silu_mul(void *self, const struct bp_launch *l,
                               const struct bp_dense_pair_args *a, struct bp_error *err)
{
    (void)l;
    struct job j = {.ref = self, .a = a, .n = a->a.dim[0], .row = silu_mul_row};
    return run_pair(&j, a, "dense.silu_mul", err);
}

int32_t bpi_ref_dense_add(void *self, const struct bp_launch *l, const struct bp_dense_pair_args *a,
                          struct bp_error *err)
{
    (void)l;
    struct job j = {.ref = self, .a = a, .n = a->a.dim[0], .row = add_row};
    return run_pair(&j, a, "dense.add", err);
}
