/* mla_grid.h - the problems that the conformance programs of MLA go through, and a cache filled through a provider's own
 * ops, so that no test knows a layout. SPDX-License-Identifier: MIT */
#ifndef MLA_GRID_H
#define MLA_GRID_H

#include "cases/mla_case.h"

enum { MLA_BLOCK_TOK = 64, MLA_N_SEQ = 6, MLA_SHARED = 640, MLA_N_PAD = 2, MLA_MAX_KV = 1000 };
#define MLA_EPS 1e-6f /* of the norm before the cache */
/* Tokens of the sequences; the last shares MLA_SHARED of them with the one before. */
extern const int32_t mla_seq_len[MLA_N_SEQ];
extern const uint32_t mla_heads[5], mla_dtypes[3];
/* Sizes of real models, and one pair that divides nothing. */
extern const struct mla_pv {
    uint32_t p, v;
} mla_pv[4];
extern const struct mla_latent {
    uint32_t c, r;
} mla_latent[2];

struct mla_dims {
    uint32_t h, p, r, v, c;
    uint32_t act, kv; /* enum bp_dtype */
};
struct bp_mla_problem mla_problem(const struct mla_dims *d);
void mla_label(struct mla_suite *s, const char *op, const struct mla_dims *d);

/* Exact values, values at the provider's precision, and roundings (bp_oracle.h). */
struct mla_judged {
    double *exact, *base, *mag;
};
struct mla_judged mla_judged_alloc(int64_t n);
void mla_judged_free(struct mla_judged *j);

/* A cache and all its rows as numbers, read back through cache_gather. */
struct mla_filled {
    struct mla_cache cache;
    struct bp_tensor kv, norm_w, c, k_pe;
    int32_t cu[MLA_N_SEQ + 1], seq[MLA_N_SEQ], begin[MLA_N_SEQ];
    struct bp_mla_prefill_meta gather;
    double *latent, *rope; /* (n_k, C), (n_k, R); row cu[s] + at */
};
/* With s->has_nan, one token in the middle of sequence MLA_NAN_SEQ holds a NaN in its latent part. */
enum { MLA_NAN_SEQ = 2, MLA_NAN_AT = 30 };
/* Writes every token through a bp.mla.common op that was asked about this problem, then gathers every row. */
bool mla_fill(struct mla_suite *s, struct mla_op *common, struct mla_filled *x,
              const struct mla_dims *d, const struct bp_kv_layout *layout);
void mla_filled_free(struct mla_filled *x);

#endif
