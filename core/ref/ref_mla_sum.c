/* ref_mla_sum.c - the two sums of attention: dot products of queries with key rows, and softmax-weighted value rows.
 * Several results are computed at a time only to read and convert a row once; each result is summed in the order that
 * it would have alone, so grouping never shows in the bits.
 * Source: Milakov and Gimelshein 2018 for the running maximum.
 * Threads: all functions are pure. SPDX-License-Identifier: MIT */
#include "ref/ref_mla.h"

#include <math.h>

enum { LANES = 8 }; /* as in ref_dot.c: element i belongs to lane i mod 8 */

static inline double fold(const double s[LANES])
{
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

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

/* Four queries against each row. */
BPI_REF_CLONES static void dots_4q(const double *q, const float *const *rows, uint32_t n_row,
                                   int64_t width, double *out, int64_t out_stride)
{
    const double *q0 = q, *q1 = q + width, *q2 = q + 2 * width, *q3 = q + 3 * width;
    for (uint32_t r = 0; r < n_row; ++r) {
        const float *row = rows[r];
        double s0[LANES] = {0}, s1[LANES] = {0}, s2[LANES] = {0}, s3[LANES] = {0};
        int64_t i = 0;
        for (; i + LANES <= width; i += LANES) {
            for (int j = 0; j < LANES; ++j) {
                double x = (double)row[i + j];
                s0[j] += x * q0[i + j];
                s1[j] += x * q1[i + j];
                s2[j] += x * q2[i + j];
                s3[j] += x * q3[i + j];
            }
        }
        for (int j = 0; i + j < width; ++j) {
            double x = (double)row[i + j];
            s0[j] += x * q0[i + j];
            s1[j] += x * q1[i + j];
            s2[j] += x * q2[i + j];
            s3[j] += x * q3[i + j];
        }
        out[r] = fold(s0);
        out[out_stride + r] = fold(s1);
        out[2 * out_stride + r] = fold(s2);
        out[3 * out_stride + r] = fold(s3);
    }
}

/* One query against four rows at a time. */
BPI_REF_CLONES static void dots_4r(const double *q, const float *const *rows, uint32_t n_row,
                                   int64_t width, double *out)
{
    for (uint32_t r = 0; r < n_row; r += 4) {
        const float *r0 = rows[r], *r1 = rows[r + 1], *r2 = rows[r + 2], *r3 = rows[r + 3];
        double s0[LANES] = {0}, s1[LANES] = {0}, s2[LANES] = {0}, s3[LANES] = {0};
        int64_t i = 0;
        for (; i + LANES <= width; i += LANES) {
            for (int j = 0; j < LANES; ++j) {
                double x = q[i + j];
                s0[j] += (double)r0[i + j] * x;
                s1[j] += (double)r1[i + j] * x;
                s2[j] += (double)r2[i + j] * x;
                s3[j] += (double)r3[i + j] * x;
            }
        }
        for (int j = 0; i + j < width; ++j) {
            double x = q[i + j];
            s0[j] += (double)r0[i + j] * x;
            s1[j] += (double)r1[i + j] * x;
            s2[j] += (double)r2[i + j] * x;
            s3[j] += (double)r3[i + j] * x;
        }
        out[r] = fold(s0);
        out[r + 1] = fold(s1);
        out[r + 2] = fold(s2);
        out[r + 3] = fold(s3);
    }
}

void bpi_ref_mla_dots(const double *q, uint32_t n_q, const float *const *rows, uint32_t n_row,
                      int64_t width, double *out, int64_t out_stride)
{
    for (; n_q >= 4; n_q -= 4) {
        dots_4q(q, rows, n_row, width, out, out_stride);
        q += 4 * width;
        out += 4 * out_stride;
    }
    uint32_t n_full = n_row & ~3u;
    for (; n_q > 0; --n_q) {
        dots_4r(q, rows, n_full, width, out);
        for (uint32_t r = n_full; r < n_row; ++r) out[r] = bpi_ref_dot_fd(rows[r], q, width);
        q += width;
        out += out_stride;
    }
}

BPI_REF_CLONES static void accumulate_4(double *restrict acc, const double p[4],
                                        const float *restrict r0, const float *restrict r1,
                                        const float *restrict r2, const float *restrict r3,
                                        int64_t width)
{
    double p0 = p[0], p1 = p[1], p2 = p[2], p3 = p[3];
    for (int64_t i = 0; i < width; ++i) {
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
