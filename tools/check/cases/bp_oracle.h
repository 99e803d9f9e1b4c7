/* bp_oracle.h - what is right, written a second time: naive double formulas on decoded weights, independent of
 * core/ref, and the comparison that every provider is held to.
 * Numbers are double arrays, contiguous, rows outermost. Each formula runs at a precision: EXACT is the truth; the
 * others round inputs, weights, every intermediate result and the output to that format (F32 also sums in F32): the
 * baseline that a provider of that precision is compared with. `mag` (may be NULL) receives for each output how much
 * one relative rounding of every product would move it, in units of that rounding: no provider of that precision can be
 * asked for less.
 * What a weight is comes from bp_oracle_decode, which the program that links this provides: the kit asks the reference
 * backend, unit tests ask core/block. Ends the program on lack of memory.
 * Threads: pure but for the generator passed in. SPDX-License-Identifier: MIT */
#ifndef BP_ORACLE_H
#define BP_ORACLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "backplane/slot_dense.h"
#include "backplane/slot_moe.h"
#include "backplane/slot_quant.h"
#include "cases/kit_rng.h"

enum bp_oracle_precision {
    BP_ORACLE_EXACT = 0,
    BP_ORACLE_F32 = 1,
    BP_ORACLE_BF16 = 2,
    BP_ORACLE_F16 = 3
};
/* The precision that a provider computes at when its activations have this dtype. */
uint32_t bp_oracle_precision_of(uint32_t dtype);
/* v as a number of that precision; EXACT: v. */
double bp_oracle_round(double v, uint32_t precision);
/* Distance between two neighbours of dtype at |v|. */
double bp_oracle_ulp(uint32_t dtype, double v);
/* Reads and writes one element of a float dtype. */
double bp_oracle_get(const void *p, uint32_t dtype, int64_t i);
void bp_oracle_put(void *p, uint32_t dtype, int64_t i, double v);

/* Zeroed memory, or the program ends. */
void *bp_oracle_alloc(size_t n, size_t elem_bytes);
/* Uniform in [-1, 1), a normal deviate, a fair coin of n sides. */
double bp_oracle_uniform(struct kit_rng *rng);
double bp_oracle_normal(struct kit_rng *rng);

/* ---- weights ---- */

/* Sizes of a type that can be decoded; NULL for others. */
struct bp_oracle_type {
    const char *name; /* "Q4_K" */
    uint32_t type, block_elems, block_bytes;
};
const struct bp_oracle_type *bp_oracle_type(uint32_t type);
/* The exact values of n elements, whole blocks. Not defined in this library. Errors: any status but BP_OK. */
int32_t bp_oracle_decode(uint32_t type, const void *bytes, uint64_t n, float *out);

/* A tensor of random blocks: every bit pattern of the quants occurs, scales are finite and such that the values are
 * near 1 / sqrt(ne[0]). */
struct bp_oracle_weight {
    uint32_t type;
    int64_t ne[3];
    unsigned char *bytes;
    uint64_t n_bytes;
    float scale;
    double *w; /* (ne[2], ne[1], ne[0]): decoded, times scale in one F32 product */
};
void bp_oracle_weight_init(struct bp_oracle_weight *w, struct kit_rng *rng, uint32_t type,
                           int64_t ne0, int64_t ne1, int64_t ne2, float scale);
void bp_oracle_weight_free(struct bp_oracle_weight *w); /* accepts a zeroed weight */
/* The whole tensor as prepare() takes it. */
struct bp_raw bp_oracle_raw(const struct bp_oracle_weight *w, const char *name);

/* ---- formulas ---- */

/* y[t][r] = sum_k w[r][k] x[t][k] */
void bp_oracle_matmul(uint32_t precision, const double *w, int64_t rows, int64_t cols,
                      const double *x, int64_t n_tok, double *y, double *mag);
void bp_oracle_rms(uint32_t precision, const double *x, const double *w, int64_t n_rows, int64_t n,
                   double eps, double *y);
void bp_oracle_layernorm(uint32_t precision, const double *x, const double *w, const double *b,
                         int64_t n_rows, int64_t n, double eps, double *y);
/* One head of `dim` numbers; cos and sin have dim / 2. */
void bp_oracle_rope(uint32_t precision, const double *x, const double *cos_row,
                    const double *sin_row, int64_t dim, uint32_t style, double *y);
double bp_oracle_silu_mul(uint32_t precision, double a, double b);
/* ids of the k largest, descending, lowest index first on ties, never a NaN; -1 where there are no more. */
void bp_oracle_topk(const double *x, int64_t n, int64_t k, int32_t *ids);

struct bp_oracle_route {
    int64_t n_expert, n_used;
    uint32_t gating, group_score, n_group, n_group_used, normalize;
    double scale;
};
/* One token. bias may be NULL. sel (n_expert, may be NULL) receives the scores that chose, -inf for experts of dropped
 * groups. A NaN gives ids -1 and weights NaN. */
void bp_oracle_route_token(const struct bp_oracle_route *r, const double *logits,
                           const double *bias, int32_t *ids, double *weights, double *p,
                           double *sel);

/* Routed experts and the shared one; a shared weight with w == NULL is absent. */
struct bp_oracle_moe {
    const struct bp_oracle_weight *gate, *up, *down, *shared_gate, *shared_up, *shared_down;
    int32_t expert_begin, expert_end; /* that take part */
};
void bp_oracle_moe_run(uint32_t precision, const struct bp_oracle_moe *m, const double *x,
                       const int32_t *ids, const double *gates, int64_t n_tok, int64_t n_used,
                       double *y, double *mag);

/* ---- comparison ---- */

/* Rows of `width` numbers. Order: finite class of each element, then the bound of each element, then the norm of each
 * row. The bound is twice the baseline's error (its largest in the row, at least mag roundings) plus one ulp of the
 * output at the row's largest value; four of each in f32, where sums round too (decision 0009). On failure `why` names row, column and the four numbers. */
struct bp_oracle_compare {
    const double *got, *exact, *base, *mag; /* mag may be NULL */
    int64_t n_rows, width;
    uint32_t dtype;     /* of the output */
    uint32_t precision; /* of the provider */
};
bool bp_oracle_agree(const struct bp_oracle_compare *c, char *why, size_t cap);

#endif
