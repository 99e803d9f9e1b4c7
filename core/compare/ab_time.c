/* ab_time.c - times of calls: a sample of them, its median, and how sure that is.
 * The interval is a percentile bootstrap of the median (Efron 1979): nothing is assumed about how times are spread.
 * Threads: one at a time. SPDX-License-Identifier: MIT */
#include "compare/compare_priv.h"
#include <stdlib.h>
#include <string.h>

/* Every call is equally likely to be kept (Vitter's algorithm R, 1985). */
int32_t bpi_ab_sample(struct bpi_ab_samples *s, double us, struct bpi_rng *rng,
                      struct bp_error *err)
{
    const uint64_t seen = s->seen++;
    if (s->n < BPI_AB_SAMPLES) {
        if ((s->n & (s->n - 1)) == 0) { /* room doubles at powers of two */
            float *us_more = bpi_realloc(s->us, s->n == 0 ? 1u : 2u * s->n, sizeof *us_more);
            if (us_more == NULL) return bpi_fail_nomem(err, "compare", s->n * sizeof *us_more);
            s->us = us_more;
        }
        s->us[s->n++] = (float)us;
        return BP_OK;
    }
    const uint64_t at = bpi_rng_below(rng, seen + 1);
    if (at < BPI_AB_SAMPLES) s->us[at] = (float)us;
    return BP_OK;
}

static int by_size(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static double median(float *v, uint32_t n)
{
    qsort(v, n, sizeof *v, by_size);
    return n % 2 != 0 ? v[n / 2] : 0.5 * ((double)v[n / 2 - 1] + v[n / 2]);
}

struct bp_ab_time bpi_ab_time(const struct bpi_ab_samples *s, struct bpi_rng *rng)
{
    enum { ROUNDS = 120 };
    float draw[BPI_AB_SAMPLES], medians[ROUNDS];
    struct bp_ab_time t = {.n = s->seen};
    if (s->n == 0) return t;
    memcpy(draw, s->us, s->n * sizeof *draw);
    t.median = median(draw, s->n);
    for (uint32_t k = 0; k < ROUNDS; ++k) {
        for (uint32_t i = 0; i < s->n; ++i) draw[i] = s->us[bpi_rng_below(rng, s->n)];
        medians[k] = (float)median(draw, s->n);
    }
    qsort(medians, ROUNDS, sizeof *medians, by_size);
    t.lo = medians[ROUNDS / 40];
    t.hi = medians[ROUNDS - 1 - ROUNDS / 40];
    if (t.lo > t.median) t.lo = t.median; /* of few samples */
    if (t.hi < t.median) t.hi = t.median;
    return t;
}
