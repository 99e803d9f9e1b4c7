/* bp_oracle_mla.c - the formulas of MLA: one loop per sum, nothing clever.
 * SPDX-License-Identifier: MIT */
#include "cases/bp_oracle_mla.h"

#include <math.h>
#include <stdlib.h>

double *bp_oracle_rounded(const double *x, int64_t n, uint32_t precision)
{
    double *y = bp_oracle_alloc((size_t)n, sizeof *y);
    for (int64_t i = 0; i < n; ++i) y[i] = bp_oracle_round(x[i], precision);
    return y;
}

void bp_oracle_mla_row(uint32_t precision, const double *kv, const double *w, int64_t n_latent,
                       int64_t n_rope, const double *cos_row, const double *sin_row, double eps,
                       double *out)
{
    bp_oracle_rms(precision, kv, w, 1, n_latent, eps, out);
    bp_oracle_rope(precision, kv + n_latent, cos_row, sin_row, n_rope, BP_ROPE_INTERLEAVED,
                   out + n_latent);
}

void bp_oracle_mla_key(uint32_t precision, const double *k, const double *w, const double *b,
                       int64_t n, int64_t n_rope, const double *cos_row, const double *sin_row,
                       uint32_t style, double eps, double *out)
{
    double *y = bp_oracle_alloc((size_t)n, sizeof *y);
    bp_oracle_layernorm(precision, k, w, b, 1, n, eps, y);
    bp_oracle_rope(precision, y, cos_row, sin_row, n_rope, style, out);
    for (int64_t i = n_rope; i < n; ++i) out[i] = y[i];
    free(y);
}

/* Number by number in F32, else in double; *squares (may be NULL) receives the sum of the squared products. */
static double dot(uint32_t precision, const double *a, int64_t stride, const double *b, int64_t n,
                  double *squares)
{
    double sum[4] = {0}, square[4] = {0}; /* four, so that additions need not wait for each other */
    float sum32 = 0.0f;
    for (int64_t i = 0; i < n && precision == BP_ORACLE_F32; ++i) {
        sum32 += (float)a[i * stride] * (float)b[i];
    }
    if (precision == BP_ORACLE_F32 && squares == NULL) return (double)sum32;
    for (int64_t i = 0; i < n; ++i) {
        double p = a[i * stride] * b[i];
        sum[i % 4] += p;
        square[i % 4] += p * p;
    }
    if (squares != NULL) *squares = square[0] + square[1] + square[2] + square[3];
    return precision == BP_ORACLE_F32 ? (double)sum32 : sum[0] + sum[1] + sum[2] + sum[3];
}

void bp_oracle_mla_product(uint32_t precision, const struct bp_oracle_product *p, double *y,
                           double *mag)
{
    for (int64_t r = 0; r < p->rows; ++r) {
        double squares = 0.0;
        y[r] = bp_oracle_round(dot(precision, p->w + r * p->stride_r, p->stride_k, p->x, p->cols,
                                   mag != NULL ? &squares : NULL),
                               precision);
        if (mag != NULL) mag[r] = sqrt(squares);
    }
}

/* What softmax itself is computed in: double for the truth, else f32. */
static double soft(uint32_t precision, double v)
{
    return precision == BP_ORACLE_EXACT ? v : (double)(float)v;
}

/* out = sum of p[k] values[k] over sum; mag as roundings of the products and of the scores move it. */
static void weigh(uint32_t precision, const struct bp_oracle_attend *a, const double *p, double sum,
                  const double *wobble, double *out, double *mag)
{
    float *sum32 = bp_oracle_alloc((size_t)a->v_dim, sizeof *sum32);
    for (int64_t v = 0; v < a->v_dim; ++v) out[v] = 0.0;
    for (int64_t k = 0; k < a->n; ++k) {
        double weight = precision == BP_ORACLE_F32 ? p[k] : bp_oracle_round(p[k], precision);
        for (int64_t v = 0; v < a->v_dim; ++v) out[v] += weight * a->values[k][v];
        for (int64_t v = 0; v < a->v_dim && precision == BP_ORACLE_F32; ++v) {
            sum32[v] += (float)weight * (float)a->values[k][v];
        }
    }
    for (int64_t v = 0; v < a->v_dim && a->n > 0; ++v) {
        double y = precision == BP_ORACLE_F32 ? (double)sum32[v] : out[v];
        out[v] = bp_oracle_round(y / sum, precision);
    }
    free(sum32);
    if (mag == NULL) return;
    for (int64_t v = 0; v < a->v_dim; ++v) mag[v] = 0.0;
    for (int64_t k = 0; k < a->n; ++k) {
        double share = p[k] / sum;
        for (int64_t v = 0; v < a->v_dim; ++v) {
            double by_value = share * a->values[k][v];
            double by_score = share * wobble[k] * (a->values[k][v] - out[v]);
            mag[v] += by_value * by_value + by_score * by_score;
        }
    }
    for (int64_t v = 0; v < a->v_dim; ++v) mag[v] = sqrt(mag[v]);
}

double bp_oracle_mla_attend(uint32_t precision, const struct bp_oracle_attend *a, double *out,
                            double *mag, double *lse_mag)
{
    double *p = bp_oracle_alloc((size_t)a->n, sizeof *p);
    double *wobble = bp_oracle_alloc((size_t)a->n, sizeof *wobble); /* of a score, in roundings */
    double max = -INFINITY, sum = 0.0, moved = 0.0;
    for (int64_t k = 0; k < a->n; ++k) {
        double squares = 0.0, s;
        s = dot(precision, a->keys[k], 1, a->q, a->qk_dim, mag != NULL ? &squares : NULL);
        p[k] = soft(precision, soft(precision, s) * a->scale);
        wobble[k] = fabs(a->scale) * sqrt(squares);
        if (!(p[k] <= max)) max = p[k];
    }
    for (int64_t k = 0; k < a->n; ++k) {
        p[k] = soft(precision, exp(soft(precision, p[k] - max)));
        sum = soft(precision, sum + p[k]);
    }
    weigh(precision, a, p, sum, wobble, out, mag);
    for (int64_t k = 0; k < a->n; ++k) moved += pow(p[k] / sum * wobble[k], 2.0);
    if (lse_mag != NULL) *lse_mag = sqrt(moved);
    free(wobble);
    free(p);
    return a->n == 0 ? -INFINITY : soft(precision, max + soft(precision, log(sum)));
}

double bp_oracle_mla_merge(uint32_t precision, const double *a, double lse_a, const double *b,
                           double lse_b, int64_t n, double *out)
{
    if (lse_b == -INFINITY || lse_a == -INFINITY) {
        const double *x = lse_b == -INFINITY ? a : b;
        bool none = lse_a == lse_b;
        for (int64_t i = 0; i < n; ++i) out[i] = none ? 0.0 : x[i];
        return lse_b == -INFINITY ? lse_a : lse_b;
    }
    double max = fmax(lse_a, lse_b);
    double wa = soft(precision, exp(lse_a - max)), wb = soft(precision, exp(lse_b - max));
    double sum = soft(precision, wa + wb);
    for (int64_t i = 0; i < n; ++i) {
        double y = soft(precision, soft(precision, wa * a[i]) + soft(precision, wb * b[i]));
        out[i] = bp_oracle_round(y / sum, precision);
    }
    return soft(precision, max + soft(precision, log(sum)));
}

double bp_oracle_mla_score(uint32_t precision, const double *q, const double *w, const double *k,
                           int64_t n_head, int64_t n, double scale, double *mag)
{
    double sum = 0.0, moved = 0.0;
    for (int64_t h = 0; h < n_head; ++h) {
        double squares, s = soft(precision, dot(precision, k, 1, q + h * n, n, &squares));
        if (s < 0.0) s = 0.0;
        sum = soft(precision, sum + soft(precision, w[h] * s));
        /* A product near zero may pass relu or not: its wobble counts either way. */
        moved += w[h] * w[h] * (squares + s * s);
    }
    if (mag != NULL) *mag = fabs(scale) * sqrt(moved);
    return soft(precision, sum * scale);
}
