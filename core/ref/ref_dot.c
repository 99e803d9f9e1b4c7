/* ref_dot.c - sums of products in double, eight lanes in a fixed order.
 * Element i goes to lane i mod 8; the lanes are folded as a tree at the end. The order depends on n alone, so a result
 * depends neither on the machine's vector width nor on what else is computed in the same call. A product of two f32
 * values is exact in double.
 * Threads: all functions are pure. SPDX-License-Identifier: MIT */
#include "ref/ref_lanes.h"
#include "ref/ref_priv.h"

enum { LANES = BPI_REF_LANES };

BPI_REF_CLONES double bpi_ref_dot_ff(const float *a, const float *b, int64_t n)
{
    bpi_ref_lanes sum = {0}, av, bv;
    double s[LANES];
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        BPI_REF_LANES_F(av, a + i);
        BPI_REF_LANES_F(bv, b + i);
        sum += av * bv;
    }
    memcpy(s, &sum, sizeof s);
    for (int j = 0; i + j < n; ++j) s[j] += (double)a[i + j] * (double)b[i + j];
    return bpi_ref_fold(s);
}

BPI_REF_CLONES double bpi_ref_dot_fd(const float *a, const double *b, int64_t n)
{
    bpi_ref_lanes sum = {0}, av, bv;
    double s[LANES];
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        BPI_REF_LANES_F(av, a + i);
        BPI_REF_LANES_D(bv, b + i);
        sum += av * bv;
    }
    memcpy(s, &sum, sizeof s);
    for (int j = 0; i + j < n; ++j) s[j] += (double)a[i + j] * (double)b[i + j];
    return bpi_ref_fold(s);
}

BPI_REF_CLONES double bpi_ref_dot_dd(const double *a, const double *b, int64_t n)
{
    bpi_ref_lanes sum = {0}, av, bv;
    double s[LANES];
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        BPI_REF_LANES_D(av, a + i);
        BPI_REF_LANES_D(bv, b + i);
        sum += av * bv;
    }
    memcpy(s, &sum, sizeof s);
    for (int j = 0; i + j < n; ++j) s[j] += (double)a[i + j] * (double)b[i + j];
    return bpi_ref_fold(s);
}

BPI_REF_CLONES void bpi_ref_axpy(double *y, double s, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; ++i) y[i] += s * (double)x[i];
}
