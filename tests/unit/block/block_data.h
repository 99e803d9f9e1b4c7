/* block_data.h - values to encode: what weights look like, and worse.
 * SPDX-License-Identifier: MIT */
#ifndef BLOCK_DATA_H
#define BLOCK_DATA_H

#include <math.h>
#include <stddef.h>
#include "base/rng.h"

enum fill { FILL_GAUSS, FILL_HEAVY, FILL_COUNT };

static inline double draw_normal(struct bpi_rng *rng)
{
    double u = 1.0 - bpi_rng_f64(rng); /* in (0, 1] */
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * bpi_rng_f64(rng));
}

/* Student's t with four degrees of freedom: one value in a thousand is beyond 8. */
static inline double draw_heavy(struct bpi_rng *rng)
{
    double v = draw_normal(rng), s = 0;
    for (int i = 0; i < 4; ++i) {
        double z = draw_normal(rng);
        s += z * z;
    }
    return v / sqrt(s / 4);
}

static inline void fill_values(float *x, size_t n, enum fill fill, double size, uint64_t seed)
{
    struct bpi_rng rng;
    bpi_rng_seed(&rng, seed);
    for (size_t i = 0; i < n; ++i)
        x[i] = (float)(size * (fill == FILL_GAUSS ? draw_normal(&rng) : draw_heavy(&rng)));
}

/* Square root of the mean (weighted) squared difference, NaN if anything is. */
static inline double rms_error(const float *x, const float *y, const float *weights, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; ++i) {
        double e = (double)x[i] - (double)y[i];
        sum += (weights != NULL ? (double)weights[i] : 1.0) * e * e;
    }
    return sqrt(sum / (double)n);
}

#endif
