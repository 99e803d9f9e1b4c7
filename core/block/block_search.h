/* block_search.h - finding scales for the encoders: the error of sixteen candidates at once, and the best of many.
 * Not here: formats, bits, halves (block_encode_*.c). Everything is in float on values that the caller has brought to
 * about 1, so nothing overflows or vanishes; a fixed order of sums makes the results the same on every machine.
 *
 * The residual form. With t = (x - min) / s and q = t rounded to a level, let r = t - q. Then the best correction of s
 * (and min) for these q is a least-squares problem in r and q alone, and because r is small its sums keep their
 * precision where sums of x * q would lose it: an error of 1e-5 of the signal (eight bits) is told from one of 2e-5.
 *
 * |t| stays far below 2^22 between the levels; beyond lo and hi it may be anything finite.
 * Candidates run along the inner loops, values along the outer ones: sums need no reordering to become vector code.
 * Pure. SPDX-License-Identifier: MIT */
#ifndef BPI_BLOCK_SEARCH_H
#define BPI_BLOCK_SEARCH_H

#include <stdbool.h>
#include <stdint.h>

enum { BPI_LANES = 16, BPI_GROUP_MAX = 32 };

/* A block brought to a largest magnitude in [1, 2) by a power of two: the true values are x * unit. */
struct bpi_scaled {
    float unit;
    float x[256], w[256];
};
/* n values; false when all are too small for any format here to tell them from zero (2^-25, half of the least half):
 * *out is then not set. Weights are brought to at most 1 and at least 2^-20, so that a group of zeros among them still
 * gets values near the given ones. */
bool bpi_block_bring_to_one(const float *src, const float *weights, int n, struct bpi_scaled *out);

/* Values that share a scale. w: positive weights of their squared errors. */
struct bpi_group {
    const float *x, *w;
    int n; /* at most BPI_GROUP_MAX */
};

/* What a value may become before it is multiplied by a scale. */
struct bpi_levels {
    float lo, hi; /* integers lo .. hi, or, with `uneven`, the sixteen levels of IQ4 */
    bool uneven;
};

/* The level nearest to t. */
float bpi_block_level(const struct bpi_levels *l, float t);
/* Number 0 .. 15 of a level of IQ4. */
unsigned bpi_block_level_index(float level);

/* ---- scale only ---- */

/* Per candidate: sums of w r r, w r q, w q q. */
struct bpi_sums {
    float rr[BPI_LANES], rq[BPI_LANES], qq[BPI_LANES];
};
/* inv: inverse scales of either sign. Zero makes every t zero. */
void bpi_block_scan(const struct bpi_group *g, const struct bpi_levels *l,
                    const float inv[BPI_LANES], struct bpi_sums *out);

/* Candidates of a search: the value of largest magnitude is brought to k, with k = first, first - step, ... for
 * 16 n_scans candidates. */
struct bpi_ladder {
    float first, step;
    int n_scans;
};
struct bpi_scale_fit {
    float scale,
        err; /* err: weighted sum of squared errors; scale 0 when all values are below 2^-30 */
};
/* The best scale of one ladder, corrected by least squares. */
struct bpi_scale_fit bpi_block_best_scale(const struct bpi_group *g, const struct bpi_levels *l,
                                          const struct bpi_ladder *ladder);

/* ---- scale and minimum ---- */

/* Per candidate: sums of w q, w q q, w r, w r r, w r q. The sum of w is the caller's. */
struct bpi_min_sums {
    float q[BPI_LANES], qq[BPI_LANES], r[BPI_LANES], rr[BPI_LANES], rq[BPI_LANES];
};
/* Levels 0 .. hi of t = (x - min) * inv. */
void bpi_block_scan_min(const struct bpi_group *g, float hi, const float inv[BPI_LANES],
                        const float min[BPI_LANES], struct bpi_min_sums *out);

struct bpi_min_fit {
    float scale, min, err, mean_q; /* mean_q: weighted mean of the q that err belongs to */
};
/* The best pair; scale 0 when all values are min to within 2^-30. at_most_zero: min may not be positive.
 * The least value is tried at the levels -clip, -clip + step, ... (eight of them), the greatest at hi + clip, ... */
struct bpi_min_fit bpi_block_best_min(const struct bpi_group *g, float hi, bool at_most_zero,
                                      float clip, float step);

float bpi_block_sum_w(const struct bpi_group *g);
/* The error when all values become `min`. */
float bpi_block_flat_err(const struct bpi_group *g, float min);

#endif
