/* ref_dot.c - sums of products in double, eight lanes in a fixed order.
 * Element i goes to lane i mod 8; the lanes are folded as a tree at the end. The order depends on n alone, so a result
 * depends neither on the machine's vector width nor on what else is computed in the same call. A product of two f32
 * values is exact in double.
 * Threads: all functions are pure. SPDX-License-Identifier: MIT */
#include "ref/ref_priv.h"

/* The loops over lanes must not unroll: GCC 12 then takes them apart into scalars. */
enum { LANES = 8 };

#if defined(BP_SANITIZED) && defined(__SANITIZE_ADDRESS__) && defined(__GNUC__) &&                 \
    !defined(__clang__)
#include <sanitizer/asan_interface.h>

void bpi_ref_touch(const void *p, int64_t n, int64_t elem_bytes)
{
    if (n <= 0) return;
    const volatile char *bad =
        __asan_region_is_poisoned((void *)(uintptr_t)p, (size_t)n * (size_t)elem_bytes);
    if (bad != NULL) (void)*bad; /* this read carries a check, so the report is the usual one */
    if (elem_bytes == (int64_t)sizeof(float)) {
        (void)*(const volatile float *)p; /* and these complain when p is not aligned */
    } else {
        (void)*(const volatile double *)p;
    }
}
#endif

BPI_REF_INNER static inline double fold(const double s[LANES])
{
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

BPI_REF_CLONES BPI_REF_INNER double bpi_ref_dot_ff(const float *a, const float *b, int64_t n)
{
    BPI_REF_TOUCH(a, n);
    BPI_REF_TOUCH(b, n);
    double s[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
#pragma GCC unroll 1
        for (int j = 0; j < LANES; ++j) s[j] += (double)a[i + j] * (double)b[i + j];
    }
    for (int j = 0; i + j < n; ++j) s[j] += (double)a[i + j] * (double)b[i + j];
    return fold(s);
}

BPI_REF_CLONES BPI_REF_INNER double bpi_ref_dot_fd(const float *a, const double *b, int64_t n)
{
    BPI_REF_TOUCH(a, n);
    BPI_REF_TOUCH(b, n);
    double s[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
#pragma GCC unroll 1
        for (int j = 0; j < LANES; ++j) s[j] += (double)a[i + j] * b[i + j];
    }
    for (int j = 0; i + j < n; ++j) s[j] += (double)a[i + j] * b[i + j];
    return fold(s);
}

BPI_REF_CLONES BPI_REF_INNER double bpi_ref_dot_dd(const double *a, const double *b, int64_t n)
{
    BPI_REF_TOUCH(a, n);
    BPI_REF_TOUCH(b, n);
    double s[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
#pragma GCC unroll 1
        for (int j = 0; j < LANES; ++j) s[j] += a[i + j] * b[i + j];
    }
    for (int j = 0; i + j < n; ++j) s[j] += a[i + j] * b[i + j];
    return fold(s);
}

BPI_REF_CLONES BPI_REF_INNER void bpi_ref_axpy(double *y, double s, const float *x, int64_t n)
{
    BPI_REF_TOUCH(x, n);
    BPI_REF_TOUCH(y, n);
    for (int64_t i = 0; i < n; ++i) y[i] += s * (double)x[i];
}
