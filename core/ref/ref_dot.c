/* ref_dot.c - sums of products in double, eight lanes in a fixed order.
 * Element i goes to lane i mod 8; the lanes are folded as a tree at the end. The order depends on n alone, so a result
 * depends neither on the machine's vector width nor on what else is computed in the same call. A product of two f32
 * values is exact in double.
 * Threads: all functions are pure. SPDX-License-Identifier: MIT */
#include "ref/ref_priv.h"

/* The loops over lanes must not unroll: GCC 12 then takes them apart into scalars. */
enum { LANES = 8 };

static inline double fold(const double s[LANES])
{
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

BPI_REF_CLONES double bpi_ref_dot_ff(const float *a, const float *b, int64_t n)
{
    double s[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
#pragma GCC unroll 1
        for (int j = 0; j < LANES; ++j) s[j] += (double)a[i + j] * (double)b[i + j];
    }
    for (int j = 0; i + j < n; ++j) s[j] += (double)a[i + j] * (double)b[i + j];
    return fold(s);
}

BPI_REF_CLONES double bpi_ref_dot_fd(const float *a, const double *b, int64_t n)
{
    double s[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
#pragma GCC unroll 1
        for (int j = 0; j < LANES; ++j) s[j] += (double)a[i + j] * b[i + j];
    }
    for (int j = 0; i + j < n; ++j) s[j] += (double)a[i + j] * b[i + j];
    return fold(s);
}

BPI_REF_CLONES double bpi_ref_dot_dd(const double *a, const double *b, int64_t n)
{
    double s[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
#pragma GCC unroll 1
        for (int j = 0; j < LANES; ++j) s[j] += a[i + j] * b[i + j];
    }
    for (int j = 0; i + j < n; ++j) s[j] += a[i + j] * b[i + j];
    return fold(s);
}

BPI_REF_CLONES void bpi_ref_axpy(double *y, double s, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; ++i) y[i] += s * (double)x[i];
}
