/* ref_mla.h - what the four MLA interfaces of the reference backend share: cache layouts, port checks, the split of a
 * call into slices, and the two sums of attention (scores, softmax-weighted values).
 * Not here: anything that one interface alone needs.
 * Numeric: as ref_priv.h says. Keys are taken in steps of BPI_REF_MLA_STEP counted from the row's first key, so a row's
 * bits depend on its own keys only, not on its neighbours, on chunking of queries, or on threads.
 * SPDX-License-Identifier: MIT */
#ifndef BPI_REF_MLA_H
#define BPI_REF_MLA_H

#include "ref/ref_priv.h"
#include "backplane/slot_mla.h"

enum {
    BPI_REF_MLA_STEP = 64,        /* keys of one softmax step */
    BPI_REF_MLA_SLICES = 32,      /* parts of scratch, so at most this many threads work on one call */
    BPI_REF_MLA_MAX_DIM = 1 << 20 /* of any dimension, so that 64-bit sizes cannot overflow unnoticed */
};

/* ---- verdicts, layouts and ports (ref_mla_layout.c) ---- */

/* Copies *problem (which may be longer or shorter than ours) and refuses what no MLA op of ref serves: header, dtypes,
 * rope_dim, capture; for ops on a cache also its dtype and block_tok. */
void bpi_ref_mla_check_problem(const void *problem, struct bp_mla_problem *out, bool cache, struct bp_verdict *v);
/* Refuses `got` outside 1..BPI_REF_MLA_MAX_DIM. */
void bpi_ref_mla_check_dim(struct bp_verdict *v, const char *field, uint32_t got);
/* Refuses a layout id that is not 0 and not ours for `width` numbers of kv_dtype; lists what is accepted. */
void bpi_ref_mla_check_layout(struct bp_verdict *v, const char *field, const char *family, uint64_t id, uint64_t width,
                              uint32_t kv_dtype);
/* The i-th layout of family "mla" or "mla.index": bf16, f16, f32, or kv_dtype alone when it is set. */
int32_t bpi_ref_mla_layout_at(const char *family, uint64_t width, uint32_t block_tok, uint32_t kv_dtype, uint32_t i,
                              struct bp_kv_layout *out);
/* Shape checks that common, prefill and decode share. Without `cache` any layout will do: the op never sees it. */
void bpi_ref_mla_check_latent(const struct bp_mla_problem *p, bool cache, struct bp_verdict *v);

/* A pool, opened: rows of `width` numbers. */
struct bpi_ref_mla_pool {
    unsigned char *data;
    uint64_t block_bytes; /* from one block to the next */
    uint64_t row_bytes;
    int64_t width, n_block;
    uint32_t dtype, block_tok;
};
int32_t bpi_ref_mla_pool_open(const struct bp_tensor *t, const char *family, int64_t width, uint32_t block_tok,
                              const char *op, struct bpi_ref_mla_pool *out, struct bp_error *err);
/* The row at a token slot that was checked to lie in the pool. */
void *bpi_ref_mla_pool_row(const struct bpi_ref_mla_pool *pool, int64_t slot);
/* Token slot of position `at` of a sequence that was checked. */
int64_t bpi_ref_mla_slot(const struct bp_mla_meta *m, int64_t seq, int64_t at);
/* Is `slot` one of the pool's token slots? */
bool bpi_ref_mla_slot_ok(const struct bpi_ref_mla_pool *pool, int64_t slot);
/* Are keys 0 .. n_key of sequence seq inside the block table, and their blocks inside the pool? */
int32_t bpi_ref_mla_check_keys(const struct bp_mla_meta *m, const struct bpi_ref_mla_pool *pool, int64_t seq,
                               int64_t begin, int64_t end, const char *op, struct bp_error *err);
/* Token slots to write and, with rope tables, positions: everything that a write op of n_tok tokens reads. */
int32_t bpi_ref_mla_check_writes(const struct bp_mla_meta *m, const struct bpi_ref_mla_pool *pool, int64_t rope_dim,
                                 const char *op, struct bp_error *err);

/* Is *t a tensor of at least d0 rows whose other dimensions are d1 and d2 (0: no such dimension), of dtype (BP_DT_NONE:
 * any float)? */
int32_t bpi_ref_mla_port(const struct bp_tensor *t, const char *name, uint32_t dtype, int64_t d0, int64_t d1,
                         int64_t d2, const char *op, struct bp_error *err);

/* ---- slices (ref_mla_layout.c) ---- */

/* One item of a call; `scratch` belongs to the slice that runs it. */
typedef void (*bpi_ref_mla_fn)(void *arg, uint64_t item, unsigned char *scratch);

/* Scratch of a call of n_item items: as many slices as can run at a time. false on overflow. */
bool bpi_ref_mla_scratch(uint64_t n_item, uint64_t slice_bytes, uint64_t *out_bytes);
/* Runs all items, on the host's threads when `work` (multiply-adds of the whole call) is worth it. */
int32_t bpi_ref_mla_each(const struct bpi_ref *ref, const struct bp_launch *l, uint64_t n_item, uint64_t slice_bytes,
                         uint64_t work, bpi_ref_mla_fn fn, void *arg, const char *op, struct bp_error *err);
/* Rounds up to a cache line, so that parts of a slice stay aligned. */
uint64_t bpi_ref_mla_align(uint64_t n_bytes);
/* Fills a workspace answer with this scratch and nothing else. */
void bpi_ref_mla_workspace(struct bp_workspace *out, uint64_t scratch_bytes);

/* ---- up-projections (ref_mla_weights.c) ---- */

/* One layer's heads of this rank: per head P key rows and then V value rows, each over the C latents; f32, which holds
 * every decoded value exactly. This one orientation serves all: keys and values are dot products with its rows, and
 * W_UK^T x is a weighted sum of them. */
struct bpi_ref_mla_weights {
    int64_t n_head, nope_dim, v_dim, kv_rank;
    float *rows; /* [n_head][P + V][C] */
};
int32_t bpi_ref_mla_prepare(void *self, const struct bp_mla_weights *w, void **out, struct bp_weight_info *info,
                            struct bp_error *err);
void bpi_ref_mla_release(void *self, void *weights);
int32_t bpi_ref_mla_expand(void *self, const struct bp_launch *l, const struct bp_mla_expand_args *a,
                           struct bp_error *err);
int32_t bpi_ref_mla_absorb(void *self, const struct bp_launch *l, const struct bp_mla_absorb_args *a,
                           struct bp_error *err);
/* Scratch of one slice of the two. */
uint64_t bpi_ref_mla_weights_slice(uint64_t nope_dim, uint64_t v_dim, uint64_t kv_rank);

/* ---- sums (ref_mla_sum.c) ---- */

/* n numbers at p as double, rounded first when `round` is set. `part` holds at least n floats. */
void bpi_ref_mla_load_d(double *dst, float *part, const void *p, uint32_t dtype, int64_t n, uint32_t round);
/* out[i * out_stride + j] = q[i * width ...] . rows[j][...]: n_q * n_row dot products. */
void bpi_ref_mla_dots(const double *q, uint32_t n_q, const float *const *rows, uint32_t n_row, int64_t width,
                      double *out, int64_t out_stride);
/* acc[i] += sum over j of p[j] * rows[j][i], j ascending. */
void bpi_ref_mla_accumulate(double *acc, const double *p, const float *const *rows, uint32_t n_row, int64_t width);

/* Softmax of one query over keys that arrive in steps. acc has `width` doubles. */
struct bpi_ref_mla_soft {
    double max, sum;
    double *acc;
    int64_t width;
};
void bpi_ref_mla_soft_begin(struct bpi_ref_mla_soft *s, double *acc, int64_t width);
/* The next n keys (at most BPI_REF_MLA_STEP): scores (overwritten) and value rows. */
void bpi_ref_mla_soft_step(struct bpi_ref_mla_soft *s, double *scores, const float *const *values, uint32_t n);
/* Divides acc by the sum and returns the log-sum-exp; without keys acc is 0 and the result -inf. */
double bpi_ref_mla_soft_end(struct bpi_ref_mla_soft *s);

#endif
