/* ab_stat.c - how far rows are apart, and how far they may be.
 * Compiled with strict floating point: a NaN passes no comparison. Threads: pure. SPDX-License-Identifier: MIT */
#include "compare/compare_priv.h"
#include <math.h>

struct bpi_ab_row bpi_ab_row(const float *a, const float *b, uint64_t n)
{
    struct bpi_ab_row r = {.alike = true, .at = -1};
    for (uint64_t i = 0; i < n; ++i) {
        const double x = a[i], y = b[i];
        if (!isfinite(x) || !isfinite(y)) {
            if ((isnan(x) && isnan(y)) || x == y) continue;
            if (r.alike) r.at = (int64_t)i;
            r.alike = false;
            continue;
        }
        const double d = fabs(y - x);
        if (fabs(x) > r.max_a) r.max_a = fabs(x);
        if (d > r.max_abs) {
            r.max_abs = d;
            if (r.alike) r.at = (int64_t)i;
        }
        r.d2 += d * d;
        r.a2 += x * x;
    }
    return r;
}

void bpi_ab_count(struct bpi_ab_entry *e, const struct bpi_ab_row *r, uint32_t pos)
{
    struct bp_ab_op *o = &e->op;
    const double rel = r->max_abs > 0 ? r->max_abs / (r->max_a > 0 ? r->max_a : r->max_abs) : 0.0;
    o->n_rows++;
    e->d2 += r->alike ? r->d2 : (double)NAN;
    e->a2 += r->a2;
    if (!r->alike) {
        if (!isnan(o->max_abs)) o->worst_pos = pos;
        o->max_abs = o->max_rel = (double)NAN;
    }
    if (isnan(o->max_abs)) return;
    if (r->max_abs > o->max_abs) {
        o->max_abs = r->max_abs;
        o->worst_pos = pos;
    }
    if (rel > o->max_rel) o->max_rel = rel;
}

double bpi_ab_ulp(uint32_t dtype, double v)
{
    const int bits = dtype == BP_DT_BF16 ? 8 : dtype == BP_DT_F16 ? 11 : 24;
    const int least = dtype == BP_DT_F16 ? -24 : -149;
    int e;
    if (v == 0.0 || !isfinite(v)) return ldexp(1.0, least);
    (void)frexp(v, &e);
    return ldexp(1.0, e - bits < least ? least : e - bits);
}

/* The kit allows eight roundings of the sum of magnitudes (decision 0009), which nobody has here. Of n products of either
 * sign it is some sqrt(n) times the sum, and a fourth of that times the largest sum of a row; eight more for the ops that
 * follow a sum: activation, softmax, norm. */
double bpi_ab_noise(double size, double n)
{
    return 0x1p-24 * (8.0 + 2.0 * sqrt(n)) * size;
}

bool bpi_ab_row_right(const float *got, const float *exact, const float *base, uint64_t n,
                      uint32_t dtype, double inner, double *limit)
{
    double largest = 0.0, base_error = 0.0, sum = 0.0;
    for (uint64_t i = 0; i < n; ++i) {
        if (!isfinite(exact[i])) continue;
        const double e = base != NULL ? fabs((double)base[i] - exact[i]) : 0.0;
        if (isfinite(e) && e > base_error) base_error = e;
        if (fabs((double)exact[i]) > largest) largest = fabs((double)exact[i]);
    }
    const double allowed =
        2.0 * base_error + bpi_ab_ulp(dtype, largest) + bpi_ab_noise(largest, inner);
    if (limit != NULL) *limit = allowed;
    for (uint64_t i = 0; i < n; ++i) {
        const double x = exact[i], y = got[i];
        if (!isfinite(x) || !isfinite(y)) {
            if (isnan(x) && isnan(y)) continue;
            if (!(x == y)) return false;
            continue;
        }
        const double e = fabs(y - x);
        if (!(e <= allowed)) return false;
        sum += e * e;
    }
    /* An error that is everywhere just below the bound is no rounding any more. */
    return n < 16 || sqrt(sum) <= 0.75 * allowed * sqrt((double)n);
}
