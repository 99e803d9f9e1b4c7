/* bp_oracle_ops.c - the formulas of the oracle: one loop per sum, nothing clever.
 * SPDX-License-Identifier: MIT */
#include "cases/bp_oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A sum of products of numbers that are rounded already: in double, or one by one in F32. */
static double dot(uint32_t precision, const double *a, const double *b, int64_t n, double *mag)
{
    double sum = 0.0, squares = 0.0;
    float sum32 = 0.0f;
    for (int64_t i = 0; i < n; ++i) {
        double product = a[i] * b[i];
        sum += product;
        squares += product * product;
        if (precision == BP_ORACLE_F32) sum32 += (float)a[i] * (float)b[i];
    }
    if (mag != NULL) *mag = sqrt(squares);
    return precision == BP_ORACLE_F32 ? (double)sum32 : bp_oracle_round(sum, precision);
}

static double *rounded_copy(uint32_t precision, const double *v, int64_t n)
{
    double *r = bp_oracle_alloc((size_t)n, sizeof *r);
    for (int64_t i = 0; i < n; ++i) r[i] = bp_oracle_round(v[i], precision);
    return r;
}

void bp_oracle_matmul(uint32_t precision, const double *w, int64_t rows, int64_t cols,
                      const double *x, int64_t n_tok, double *y, double *mag)
{
    double *wr = rounded_copy(precision, w, rows * cols),
           *xr = rounded_copy(precision, x, n_tok * cols);
    for (int64_t t = 0; t < n_tok; ++t) {
        for (int64_t r = 0; r < rows; ++r) {
            double *m = mag != NULL ? &mag[t * rows + r] : NULL;
            y[t * rows + r] = dot(precision, wr + r * cols, xr + t * cols, cols, m);
        }
    }
    free(wr);
    free(xr);
}

void bp_oracle_rms(uint32_t precision, const double *x, const double *w, int64_t n_rows, int64_t n,
                   double eps, double *y)
{
    for (int64_t r = 0; r < n_rows; ++r) {
        double sum = 0.0;
        for (int64_t i = 0; i < n; ++i) {
            double v = bp_oracle_round(x[r * n + i], precision);
            sum += v * v;
        }
        double root = sqrt(sum / (double)n + eps);
        for (int64_t i = 0; i < n; ++i) {
            double v = bp_oracle_round(x[r * n + i], precision);
            y[r * n + i] =
                bp_oracle_round(w[i] * (bp_oracle_round(v / root, precision)), precision);
        }
    }
}

void bp_oracle_layernorm(uint32_t precision, const double *x, const double *w, const double *b,
                         int64_t n_rows, int64_t n, double eps, double *y)
{
    for (int64_t r = 0; r < n_rows; ++r) {
        double mean = 0.0, var = 0.0;
        for (int64_t i = 0; i < n; ++i)
            mean += bp_oracle_round(x[r * n + i], precision) / (double)n;
        for (int64_t i = 0; i < n; ++i) {
            double d = bp_oracle_round(x[r * n + i], precision) - mean;
            var += d * d / (double)n;
        }
        for (int64_t i = 0; i < n; ++i) {
            double d = bp_oracle_round(x[r * n + i], precision) - bp_oracle_round(mean, precision);
            double v = bp_oracle_round(d / sqrt(var + eps), precision);
            y[r * n + i] = bp_oracle_round(w[i] * v + b[i], precision);
        }
    }
}

void bp_oracle_rope(uint32_t precision, const double *x, const double *cos_row,
                    const double *sin_row, int64_t dim, uint32_t style, double *y)
{
    for (int64_t i = 0; i < dim / 2; ++i) {
        int64_t first = style == BP_ROPE_HALF ? i : 2 * i,
                second = style == BP_ROPE_HALF ? i + dim / 2 : 2 * i + 1;
        double a = bp_oracle_round(x[first], precision), b = bp_oracle_round(x[second], precision);
        double ac = bp_oracle_round(a * cos_row[i], precision),
               bs = bp_oracle_round(b * sin_row[i], precision);
        double as = bp_oracle_round(a * sin_row[i], precision),
               bc = bp_oracle_round(b * cos_row[i], precision);
        y[first] = bp_oracle_round(ac - bs, precision);
        y[second] = bp_oracle_round(as + bc, precision);
    }
}

double bp_oracle_silu_mul(uint32_t precision, double a, double b)
{
    double x = bp_oracle_round(a, precision);
    double silu = x == -INFINITY ? 0.0 : x / (1.0 + exp(-x));
    return bp_oracle_round(bp_oracle_round(silu, precision) * bp_oracle_round(b, precision),
                           precision);
}

void bp_oracle_topk(const double *x, int64_t n, int64_t k, int32_t *ids)
{
    bool *used = bp_oracle_alloc((size_t)n, sizeof *used);
    for (int64_t i = 0; i < k; ++i) {
        int64_t best = -1;
        for (int64_t j = 0; j < n; ++j) {
            if (used[j] || isnan(x[j])) continue;
            if (best < 0 || x[j] > x[best]) best = j;
        }
        ids[i] = (int32_t)best;
        if (best >= 0) used[best] = true;
    }
    free(used);
}

/* ---- router ---- */

static double group_value(const double *sel, int64_t size, uint32_t kind)
{
    double sum = 0.0;
    int32_t best[2] = {-1, -1};
    bp_oracle_topk(sel, size, kind == BP_GROUP_TOP2 && size > 1 ? 2 : 1, best);
    for (int i = 0; i < 2; ++i) sum += best[i] >= 0 ? sel[best[i]] : 0.0;
    return sum;
}

static void drop_groups(const struct bp_oracle_route *r, double *sel)
{
    const int64_t n_group = r->n_group, size = r->n_expert / n_group;
    double *value = bp_oracle_alloc((size_t)n_group, sizeof *value);
    int32_t *stay = bp_oracle_alloc(r->n_group_used, sizeof *stay);
    for (int64_t g = 0; g < n_group; ++g)
        value[g] = group_value(sel + g * size, size, r->group_score);
    bp_oracle_topk(value, n_group, r->n_group_used, stay);
    for (int64_t g = 0; g < n_group; ++g) {
        bool stays = false;
        for (uint32_t i = 0; i < r->n_group_used; ++i) stays = stays || stay[i] == g;
        for (int64_t i = 0; i < size && !stays; ++i) sel[g * size + i] = -INFINITY;
    }
    free(value);
    free(stay);
}

void bp_oracle_route_token(const struct bp_oracle_route *r, const double *logits,
                           const double *bias, int32_t *ids, double *weights, double *p,
                           double *sel)
{
    const int64_t n = r->n_expert;
    double top = -INFINITY, sum = 0.0;
    bool poisoned = false;
    for (int64_t i = 0; i < n; ++i) top = logits[i] > top ? logits[i] : top;
    for (int64_t i = 0; i < n; ++i) {
        p[i] =
            r->gating == BP_GATING_SOFTMAX ? exp(logits[i] - top) : 1.0 / (1.0 + exp(-logits[i]));
        sum += p[i];
    }
    for (int64_t i = 0; i < n; ++i) {
        if (r->gating == BP_GATING_SOFTMAX) p[i] /= sum;
        sel[i] = p[i] + (bias != NULL ? bias[i] : 0.0);
        poisoned = poisoned || !isfinite(logits[i]) || isnan(sel[i]);
    }
    if (!poisoned && r->n_group > 1) drop_groups(r, sel);
    if (!poisoned) bp_oracle_topk(sel, n, r->n_used, ids);
    sum = 0.0;
    for (int64_t k = 0; k < r->n_used; ++k) sum += poisoned ? 0.0 : p[ids[k]];
    for (int64_t k = 0; k < r->n_used; ++k) {
        if (poisoned) {
            ids[k] = -1;
            weights[k] = NAN;
        } else {
            weights[k] = p[ids[k]] * (r->normalize != 0 ? 1.0 / (sum + 1e-20) : 1.0) * r->scale;
        }
    }
}

/* ---- experts ---- */

/* down(silu(gate x) * (up x)) of one expert for one token. */
static void expert(uint32_t precision, const struct bp_oracle_weight *gate,
                   const struct bp_oracle_weight *up, const struct bp_oracle_weight *down,
                   int64_t e, const double *x, double *y, double *mag)
{
    const int64_t n_embd = gate->ne[0], n_ff = gate->ne[1];
    double *a = bp_oracle_alloc((size_t)n_ff, sizeof *a),
           *b = bp_oracle_alloc((size_t)n_ff, sizeof *b);
    double *a_mag = bp_oracle_alloc((size_t)n_ff, sizeof *a),
           *b_mag = bp_oracle_alloc((size_t)n_ff, sizeof *b);
    bp_oracle_matmul(precision, gate->w + e * n_embd * n_ff, n_ff, n_embd, x, 1, a, a_mag);
    bp_oracle_matmul(precision, up->w + e * n_embd * n_ff, n_ff, n_embd, x, 1, b, b_mag);
    for (int64_t i = 0; i < n_ff; ++i) {
        /* How far h moves when gate and up move by one rounding of their products each. */
        a_mag[i] = fabs(b[i]) * 1.1 * a_mag[i] + fabs(a[i]) * b_mag[i];
        a[i] = bp_oracle_silu_mul(precision, a[i], b[i]);
    }
    const double *w = down->w + e * n_embd * n_ff;
    bp_oracle_matmul(precision, w, n_embd, n_ff, a, 1, y, mag);
    for (int64_t r = 0; r < n_embd; ++r) {
        double squares = 0.0;
        for (int64_t i = 0; i < n_ff; ++i)
            squares += w[r * n_ff + i] * w[r * n_ff + i] * a_mag[i] * a_mag[i];
        mag[r] += sqrt(squares);
    }
    free(a);
    free(b);
    free(a_mag);
    free(b_mag);
}

static void add_expert(uint32_t precision, double gate, const double *part, const double *part_mag,
                       int64_t n, double *y, double *mag)
{
    for (int64_t i = 0; i < n; ++i) {
        y[i] = bp_oracle_round(y[i] + bp_oracle_round(gate * part[i], precision), precision);
        if (mag != NULL) mag[i] += fabs(gate) * (part_mag[i] + fabs(part[i])) + fabs(y[i]);
    }
}

void bp_oracle_moe_run(uint32_t precision, const struct bp_oracle_moe *m, const double *x,
                       const int32_t *ids, const double *gates, int64_t n_tok, int64_t n_used,
                       double *y, double *mag)
{
    const bool shared = m->shared_gate != NULL && m->shared_gate->w != NULL;
    const int64_t n = shared ? m->shared_gate->ne[0] : m->gate->ne[0];
    double *part = bp_oracle_alloc((size_t)n, sizeof *part),
           *part_mag = bp_oracle_alloc((size_t)n, sizeof *part);
    for (int64_t t = 0; t < n_tok; ++t) {
        double *row = y + t * n, *row_mag = mag != NULL ? mag + t * n : NULL;
        memset(row, 0, (size_t)n * sizeof *row);
        if (row_mag != NULL) memset(row_mag, 0, (size_t)n * sizeof *row_mag);
        for (int64_t k = 0; k < n_used; ++k) {
            int32_t e = ids[t * n_used + k];
            if (e < m->expert_begin || e >= m->expert_end) continue;
            expert(precision, m->gate, m->up, m->down, e, x + t * n, part, part_mag);
            add_expert(precision, gates[t * n_used + k], part, part_mag, n, row, row_mag);
        }
        if (!shared) continue;
        expert(precision, m->shared_gate, m->shared_up, m->shared_down, 0, x + t * n, part,
               part_mag);
        add_expert(precision, 1.0, part, part_mag, n, row, row_mag);
    }
    free(part);
    free(part_mag);
}
