/* compare_priv.h - what the files of core/compare share: an A/B comparison while it runs, and its results.
 * Not here: the interface (backplane/tools.h), repeating calls (engine/mirror.h).
 * Threads: one at a time. SPDX-License-Identifier: MIT */
#ifndef BPI_COMPARE_PRIV_H
#define BPI_COMPARE_PRIV_H

#include <stdbool.h>
#include "base/base.h"
#include "base/rng.h"
#include "engine/engine.h"
#include "engine/mirror.h"

enum { BPI_AB_FLIPS = 16, BPI_AB_SAMPLES = 256, BPI_AB_TOP = 10, BPI_AB_BLOCK = 1 << 16, BPI_AB_BATCH = 256 };

/* Times of one op on one side: a sample of all calls. */
struct bpi_ab_samples {
    float *us; /* BPI_AB_SAMPLES at most */
    uint32_t n;
    uint64_t seen;
};

/* One row of the result, with sums. */
struct bpi_ab_entry {
    struct bp_ab_op op; /* texts are in the result's arena */
    double d2, a2;           /* sums of (b - a)^2 and a^2 */
    double base_d2, base_a2; /* the same of the baseline */
    double base_max_rel;
    uint64_t base_rows;
    double score_size;       /* free mode: the largest of the scores behind a choice */
    uint32_t blamed;         /* 1: A is worse than the baseline, 2: B */
    struct bp_ab_flip flips[BPI_AB_FLIPS];
    struct bpi_ab_samples time_a, time_b;
};

/* A tap that is kept for a golden file. */
struct bpi_ab_kept {
    struct bp_ab_tap tap;
    uint64_t cap_rows;
    uint32_t *pos;
    void *data;
};

struct bp_ab {
    struct bpi_arena arena;
    struct bpi_ab_entry **entries;
    uint32_t n_entries, cap_entries, next; /* next: where the next one is looked for first */
    struct bp_ab_position *positions;
    uint32_t n_positions, cap_positions;
    int32_t *ids;
    uint32_t n_ids;
    float *logits[2]; /* (n_logits, n_vocab) when something is dumped */
    uint32_t n_logits, n_vocab;
    struct bpi_ab_kept *kept;
    uint32_t n_kept, cap_kept;
    struct bp_choice *choices[2];
    uint32_t n_choices[2];
    const char *kv_dtype[2], *kv_layout[2], *act_dtype[2];
    struct bp_ab_summary sum;
};

/* The comparison at hand. */
struct bpi_ab_run {
    const struct bp_ab_params *p;
    struct bp_ab *ab;
    struct bp_session *a, *b;
    struct bpi_rng rng;
    const char *stopped;     /* a side met NaN or infinity: why; NULL: none did */
    double sides;            /* free mode: 1 when a side is exact, 2: both may be off, each by its own error */
    double unit;             /* of the precision in use: 2^-9 bf16, 2^-12 f16, 2^-24 f32 */
    char kv[8], round[8];    /* of the baseline: kv.dtype and plugin.ref.round */
};

/* ---- ab.c ---- */
/* A configuration of ref alone, with the limits of side a: the exact one, or the baseline. In shadow mode it and side B
 * are mirrors of side A. */
int32_t bpi_ab_ref_session(struct bpi_ab_run *r, bool baseline, struct bp_session **out, struct bp_error *err);
/* Counts its memory and closes it; NULL is nothing. */
void bpi_ab_ref_end(struct bpi_ab_run *r, struct bp_session *s);
/* What the baseline is, once both sides are open. */
void bpi_ab_settle_precision(struct bpi_ab_run *r);
int32_t bpi_ab_open(struct bpi_ab_run *r, const struct bp_ab_side *side, const char *name, struct bp_session **out,
                    struct bp_error *err);
/* The status of a step: one that ends in NaN is an answer and no failure. name: of the side. */
int32_t bpi_ab_stepped(struct bpi_ab_run *r, int32_t rc, const char *name, const struct bp_error *why,
                       struct bp_error *err);
/* Sequences of a side's steps, and tokens that each of them may take at once. */
int32_t bpi_ab_batch(const struct bp_session *s, const struct bp_ab_side *side, uint32_t *batch, uint32_t *chunk,
                     struct bp_error *err);
/* What neighbour k in the batch holds at positions [pos, pos + n): the same tokens in another order. */
void bpi_ab_neighbour(const struct bp_ab *ab, uint32_t k, uint32_t pos, uint32_t n, int32_t *out);
/* Tells how far it is; BP_E_ABORTED when the caller wants to stop. */
int32_t bpi_ab_progress(const struct bpi_ab_run *r, uint32_t done, uint32_t total, struct bp_error *err);
bool bpi_ab_is_exact(const struct bp_config *c); /* ref of this configuration does not round */
/* Ref of this side is the baseline. cache: also in calls that read or write the cache. */
bool bpi_ab_is_base(const struct bpi_ab_run *r, uint32_t side, bool cache);

/* ---- ab_result.c ---- */
/* The entry of a place; made where it is new. NULL: out of memory. */
struct bpi_ab_entry *bpi_ab_entry(struct bp_ab *ab, const char *slot, const char *op, const char *tap, int32_t layer);
const char *bpi_ab_text(struct bp_ab *ab, const char *fmt, ...) BPI_PRINTF(2, 3); /* never NULL */
int32_t bpi_ab_add_position(struct bp_ab *ab, uint32_t pos, const float *a, const float *b, uint32_t n,
                            struct bp_error *err);
int32_t bpi_ab_keep_logits(struct bp_ab *ab, uint32_t side, const float *row, struct bp_error *err);
void bpi_ab_add_flip(struct bpi_ab_entry *e, uint32_t pos, int32_t a, int32_t b, double gap, bool wide);
/* Row `row` of a tap as contiguous floats, or int32_t for integers. */
void bpi_ab_tap_row(const struct bp_tensor *t, uint32_t row, void *out);
/* Rows of a tap for a golden file. */
int32_t bpi_ab_keep(struct bp_ab *ab, uint32_t side, const struct bp_tap_event *e, struct bp_error *err);
bool bpi_ab_matches(const char *patterns, const char *name);
/* Takes what is to be known of an open side. */
int32_t bpi_ab_describe(struct bp_ab *ab, uint32_t side, struct bp_session *s, struct bp_error *err);

/* ---- ab_stat.c ---- */
struct bpi_ab_row { /* of b against a */
    double max_abs, max_a, d2, a2;
    int64_t at;     /* element of the largest difference */
    bool alike;     /* finite in the same places */
};
struct bpi_ab_row bpi_ab_row(const float *a, const float *b, uint64_t n);
/* Adds a row of B against A to the entry's maxima and sums. */
void bpi_ab_count(struct bpi_ab_entry *e, const struct bpi_ab_row *r, uint32_t pos);
double bpi_ab_ulp(uint32_t dtype, double v);
/* What f32 sums of n products may do to a number of this size. */
double bpi_ab_noise(double size, double n);
/* Is `got` right, row by row? exact and base as in architecture.md 7. *limit: what the largest element was allowed. */
bool bpi_ab_row_right(const float *got, const float *exact, const float *base, uint64_t n, uint32_t dtype, double inner,
                      double *limit);

/* ---- ab_flip.c ---- */
/* Exact selection scores of a router row; group[g]: its exact group score, kept[g]: is it among the best? */
struct bpi_ab_route {
    double *sel, *group;
    bool *kept;
    uint32_t n, n_group;
};
int32_t bpi_ab_route_make(struct bpi_ab_route *s, const struct bpi_hparams *hp, struct bp_error *err);
void bpi_ab_route_free(struct bpi_ab_route *s);
void bpi_ab_route_score(struct bpi_ab_route *s, const struct bpi_hparams *hp, const float *bias, const float *logits);
double bpi_ab_route_gap(const struct bpi_ab_route *s, int32_t a, int32_t b);
double bpi_ab_route_size(const struct bpi_ab_route *s); /* of the scores: what a precision is relative to */
/* Exact scores of the keys of one row from a's cache: (n_keys) doubles. BP_DECLINED: the layout is not plain. */
int32_t bpi_ab_index_scores(struct bp_session *s, int32_t layer, uint32_t seq, const float *q, const float *w,
                            uint32_t n_keys, double *out, struct bp_error *err);
/* The next experts that stand against each other in two rows of k: those that only one side chose, paired in order, or
 * where both chose the same ones, places whose experts differ. *at: where to go on. */
struct bpi_ab_pairs {
    uint64_t keys[2];
    uint32_t place;
    bool other_set;
};
bool bpi_ab_next_experts(const int32_t *a, const int32_t *b, uint32_t k, struct bpi_ab_pairs *at, int32_t *ea,
                         int32_t *eb);
/* The next keys that only one side has, paired in order; -1: that side has no more. False: neither has. at: where to go
 * on, zeros at first. Negative entries are no keys. */
bool bpi_ab_next_keys(const int32_t *a, const int32_t *b, uint64_t k, uint64_t at[2], int32_t *only_a, int32_t *only_b);
/* Between the scores of two positions. NaN where one has none, as a key behind its own row, which a faulty side may
 * choose. scores may be NULL. */
double bpi_ab_key_gap(const double *scores, uint32_t n_keys, int32_t a, int32_t b);

/* ---- ab_time.c ---- */
int32_t bpi_ab_sample(struct bpi_ab_samples *s, double us, struct bpi_rng *rng, struct bp_error *err);
struct bp_ab_time bpi_ab_time(const struct bpi_ab_samples *s, struct bpi_rng *rng);

/* ---- the two modes, and the end ---- */
int32_t bpi_ab_shadow(struct bpi_ab_run *r, struct bp_error *err);
int32_t bpi_ab_free(struct bpi_ab_run *r, struct bp_error *err);
void bpi_ab_verdict(struct bpi_ab_run *r);

#endif
