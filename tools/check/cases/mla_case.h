/* mla_case.h - what the cases of MLA share: guarded buffers, a paged cache with shuffled blocks, and the order of
 * judgement: status, guards, finite class, bound, bits of a repetition.
 * Not here: formulas (bp_oracle_mla.h) and cases (case_mla*.c). Threads: one. SPDX-License-Identifier: MIT */
#ifndef MLA_CASE_H
#define MLA_CASE_H

#include "cases/bp_case.h"
#include "cases/bp_oracle_mla.h"
#include "cases/kit_rng.h"

enum { MLA_MAX_SEQS = 8 };

struct mla_suite {
    struct kit *kit;
    struct kit_bench bench;
    struct kit_rng rng;
    char label[160]; /* of the case at hand */
    unsigned n_case, n_declined, n_failed, n_begun, n_stopped;
    const struct bp_tensor *ports; /* of the call at hand */
    uint32_t n_ports;
    uint32_t more_blocks; /* of the next cache's pool, beyond those that it needs */
    bool failed, has_nan;
};

/* Opens the subject with its op of `iface`. false: not offered here, or it could not be opened (told). */
bool mla_suite_open(struct mla_suite *s, struct kit *k, const char *iface);
void mla_suite_close(struct mla_suite *s);
/* Tells one failure of the case at hand. Returns false. */
bool mla_fail(struct mla_suite *s, const char *rule, const char *fmt, ...) KIT_PRINTF(3, 4);

/* One op instance, with the answer to the problem at hand and memory for it. */
struct mla_op {
    struct bp_op_ref ref;
    const char *iface;
    struct kit_answer answer;
    struct bp_launch l;
    bool is_subject; /* else the reference's, which writes caches for a decoder alone */
    unsigned n_served, n_asked;
};
/* The op under test. */
void mla_op_own(struct mla_suite *s, struct mla_op *op);
/* Is the case at hand part of the run? Draws its own random numbers. */
bool mla_begin(struct mla_suite *s);
/* Asks, and gives the op exactly the memory that it asks for, between guard pages. false: declined, or failed. */
bool mla_ask(struct mla_suite *s, struct mla_op *op, const struct bp_mla_problem *p);
/* Tells the sums; rule 5.9 when an op was asked but served nothing. */
void mla_op_done(struct mla_suite *s, const struct mla_op *op);

/* ---- buffers and tensors of a case ---- */

/* Filled with 0xff: NaN as any float, -1 as any integer. */
void *mla_bytes(struct mla_suite *s, size_t n_bytes, size_t align, const char *name);
void mla_free(void *p); /* one of them, before the case ends */
void mla_case_end(struct mla_suite *s); /* frees the case's buffers */

size_t mla_elem_bytes(uint32_t dtype);
/* d1, d2 = 0: no such dimension. Rows are `pad` elements further apart than they are long. */
struct bp_tensor mla_tensor(struct mla_suite *s, uint32_t dtype, int64_t d0, int64_t d1, int64_t d2,
                            int64_t pad);
struct bp_tensor mla_random(struct mla_suite *s, uint32_t dtype, int64_t d0, int64_t d1, int64_t d2,
                            int64_t pad, double size);
struct bp_tensor mla_rows(const struct bp_tensor *t, int64_t begin, int64_t end);
double mla_get(const struct bp_tensor *t, int64_t i, int64_t j, int64_t k);
void mla_put(const struct bp_tensor *t, int64_t i, int64_t j, int64_t k, double v);
/* All numbers, contiguous; the caller frees them. */
double *mla_values(const struct bp_tensor *t);
bool mla_same_bits(const struct bp_tensor *a, const struct bp_tensor *b);

/* ---- calls and judgement ---- */

/* args is the op's args struct. */
typedef int32_t (*mla_call)(const struct mla_op *op, const void *args, struct bp_error *err);
/* Ports (slot: number of the op), status, then guards, then the call once more: the same bits unless the op promises nothing. Tensors `outs` are
 * poisoned before each call; `inouts` are put back before the second. */
bool mla_run(struct mla_suite *s, struct mla_op *op, mla_call call, uint32_t slot, const void *args,
             const struct bp_tensor *const *outs, int n_out, const struct bp_tensor *const *inouts,
             int n_inout);
/* Rows [0, n) of t against exact and base (contiguous), as rows of t's last dimension. */
bool mla_judge(struct mla_suite *s, const char *what, const struct bp_tensor *t, int64_t n,
               const double *exact, const double *base, const double *mag, uint32_t dtype,
               uint32_t precision);

/* ---- a paged cache ---- */

struct mla_cache {
    struct bp_tensor pool;
    struct bp_mla_meta meta; /* as for a step that writes every token of every sequence */
    int32_t len[MLA_MAX_SEQS], *table, *slots, *positions;
    uint32_t n_seqs, stride;
};
/* Blocks in random order. Sequence `prefix_of` (or -1) shares its first `n_shared` tokens, whole blocks, with the last
 * sequence, whose shared tokens are not written again. Pools start as NaN everywhere. */
void mla_cache_init(struct mla_suite *s, struct mla_cache *c, const struct bp_kv_layout *layout,
                    uint32_t block_tok, uint32_t n_seqs, const int32_t *len, int prefix_of,
                    int32_t n_shared, int64_t n_rope);
int64_t mla_slot(const struct mla_cache *c, int64_t seq, int64_t at);

#endif
