/* bp_oracle_mla.h - MLA written a second time, independent of core/ref: cached rows, products with the up-projections,
 * attention over a list of keys, merging, index scores.
 * Precisions, arrays and `mag` as in bp_oracle.h, with one difference for speed: where a comment says "rounded", the
 * caller rounds those inputs once with bp_oracle_rounded instead of the formula at every product.
 * Softmax is at least f32 in every provider: a baseline of 16 bits keeps scores and sums in f32 and rounds what enters
 * the products and the output. Threads: pure. SPDX-License-Identifier: MIT */
#ifndef BP_ORACLE_MLA_H
#define BP_ORACLE_MLA_H

#include "backplane/slot_mla.h"
#include "cases/bp_oracle.h"

/* A copy of x at that precision; the caller frees it. */
double *bp_oracle_rounded(const double *x, int64_t n, uint32_t precision);

/* One cached row: c = w * rms(kv[0..C)), k_pe = kv[C..C+R) with pairs (2i, 2i+1) rotated. */
void bp_oracle_mla_row(uint32_t precision, const double *kv, const double *w, int64_t n_latent,
                       int64_t n_rope, const double *cos_row, const double *sin_row, double eps,
                       double *out);
/* One index key: layer norm, then its first n_rope numbers rotated in `style`. */
void bp_oracle_mla_key(uint32_t precision, const double *k, const double *w, const double *b,
                       int64_t n, int64_t n_rope, const double *cos_row, const double *sin_row,
                       uint32_t style, double eps, double *out);

/* y[r] = sum_k w[r * stride_r + k * stride_k] x[k]; w and x rounded. */
struct bp_oracle_product {
    const double *w, *x;
    int64_t rows, cols, stride_r, stride_k;
};
void bp_oracle_mla_product(uint32_t precision, const struct bp_oracle_product *p, double *y,
                           double *mag);

/* One query against n keys; keys[i] and values[i] point to their numbers; q, keys and values rounded. */
struct bp_oracle_attend {
    const double *q;
    const double *const *keys, *const *values;
    int64_t n, qk_dim, v_dim;
    double scale;
};
/* Returns the log-sum-exp (-inf for n = 0, out then 0). lse_mag may be NULL. */
double bp_oracle_mla_attend(uint32_t precision, const struct bp_oracle_attend *a, double *out,
                            double *mag, double *lse_mag);

/* Joins (a, lse_a) with (b, lse_b) into out; returns the joint lse. */
double bp_oracle_mla_merge(uint32_t precision, const double *a, double lse_a, const double *b,
                           double lse_b, int64_t n, double *out);

/* scale * sum_j w_j relu(q_j . k); q (n_head, n) and k rounded; w is F32 by definition. */
double bp_oracle_mla_score(uint32_t precision, const double *q, const double *w, const double *k,
                           int64_t n_head, int64_t n, double scale, double *mag);

#endif
