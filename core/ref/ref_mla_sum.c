/* ref_mla_sum.c - the two sums of attention: dot products of queries with key rows, and softmax-weighted value rows.
 * Several results are computed at a time only to keep rows in the near cache; each result is summed in the order that
 * it would have alone, so grouping never shows in the bits.
 * Source: Milakov and Gimelshein 2018 for the running maximum.
 * Threads: all functions are pure. SPDX-License-Identifier: MIT */
#include "ref/ref_mla.h"
#include "ref/ref_weight.h"

#include <math.h>

BPI_REF_CLONES static void widen(double *restrict dst, const float *restrict src, int64_t n)
{
    for (int64_t i = 0; i < n; ++i) dst[i] = (double)src[i];
}

void bpi_ref_mla_load_d(double *dst, float *part, const void *p, uint32_t dtype, int64_t n,
                        uint32_t round)
{
    bpi_ref_load(part, p, dtype, n, round);
    widen(dst, part, n);
}

void bpi_ref_mla_dots(const double *q, uint32_t n_q, const float *const *rows, uint32_t n_row,
                      int64_t width, double *out, int64_t out_stride)
{
    for (uint32_t r = 0; r < n_row; ++r) {
        bpi_ref_product(rows[r], width, 1, q, width, NULL, n_q, width, out + r, out_stride);
    }
}

/* Four rows a pass, so that acc is read and written once for them. */
BPI_REF_CLONES BPI_REF_INNER static void accumulate_4(double *restrict acc, const double p[4],
                                                      const float *restrict r0,
                                                      const float *restrict r1,
                                                      const float *restrict r2,
                                                      const float *restrict r3, int64_t width)
{
    BPI_REF_TOUCH(acc, width);
    BPI_REF_TOUCH(p, 4);
    BPI_REF_TOUCH(r0, width);
    BPI_REF_TOUCH(r1, width);
    BPI_REF_TOUCH(r2, width);
    BPI_REF_TOUCH(r3, width);
    const double p0 = p[0], p1 = p[1], p2 = p[2], p3 = p[3];
    int64_t i = 0;
    for (; i + 8 <= width; i += 8) {
#pragma GCC unroll 1
        for (int j = 0; j < 8; ++j) {
            double a = acc[i + j] + p0 * (double)r0[i + j];
            a += p1 * (double)r1[i + j];
            a += p2 * (double)r2[i + j];
            acc[i + j] = a + p3 * (double)r3[i + j];
        }
    }
    for (; i < width; ++i) {
        double a = acc[i] + p0 * (double)r0[i];
        a += p1 * (double)r1[i];
        a += p2 * (double)r2[i];
        acc[i] = a + p3 * (double)r3[i];
    }
}

void bpi_ref_mla_accumulate(double *acc, const double *p, const float *const *rows, uint32_t n_row,
                            int64_t width)
{
    uint32_t j = 0;
    for (; j + 4 <= n_row; j += 4) {
        accumulate_4(acc, p + j, rows[j], rows[j + 1], rows[j + 2], rows[j + 3], width);
    }
    for (; j < n_row; ++j) bpi_ref_axpy(acc, p[j], rows[j], width);
}

void bpi_ref_mla_soft_begin(struct bpi_ref_mla_soft *s, double *acc, int64_t width)
{
    *s = (struct bpi_ref_mla_soft){.max = -INFINITY, .sum = 0.0, .acc = acc, .width = width};
    for (int64_t i = 0; i < width; ++i) acc[i] = 0.0;
}

void bpi_ref_mla_soft_step(struct bpi_ref_mla_soft *s, double *scores, const float *const *values,
                           uint32_t n)
{
    double max = s->max;
    for (uint32_t j = 0; j < n; ++j) {
        if (scores[j] > max) max = scores[j]; /* false for NaN, which reaches the sum below */
    }
    if (max > s->max) {
        if (s->sum != 0.0) {
            double shrink = exp(s->max - max);
            s->sum *= shrink;
            for (int64_t i = 0; i < s->width; ++i) s->acc[i] *= shrink;
        }
        s->max = max;
    }
    for (uint32_t j = 0; j < n; ++j) {
        scores[j] = exp(scores[j] - max);
        s->sum += scores[j];
    }
    bpi_ref_mla_accumulate(s->acc, scores, values, n, s->width);
}

double bpi_ref_mla_soft_end(struct bpi_ref_mla_soft *s)
{
    if (s->sum == 0.0) return -INFINITY; /* no key came: with one, the largest weighs 1 */
    for (int64_t i = 0; i < s->width; ++i) s->acc[i] /= s->sum;
    return s->max + log(s->sum);
}
