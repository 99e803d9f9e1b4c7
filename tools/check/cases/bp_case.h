/* bp_case.h - what the cases of bp.dense, bp.quant and bp.moe share: guarded tensors and the order of judgement.
 * A case: bp_case_begin() asks the op and gets its memory; tensors are made and filled; bp_case_run() calls and checks
 * status and guards; bp_case_judge() checks finite class and bound; bp_case_repeat() calls again from the same start and
 * wants the same bits. bp_case_end() counts.
 * Not here: formulas (bp_oracle.h), grids (case_*.c). Threads: one. SPDX-License-Identifier: MIT */
#ifndef BP_CASE_H
#define BP_CASE_H

#include "cases/bp_oracle.h"
#include "cases/cases.h"
#include "kit_bench.h"

enum { BP_CASE_TENSORS = 24 };

/* The op under test. */
struct bp_case_target {
    struct bp_op_ref op;
    uint32_t n_ok, n_failed, n_declined;
};

struct bp_case_tensor {
    struct bp_tensor t;   /* data lies between guard pages */
    unsigned char *start; /* what it held before the call */
    unsigned char *after; /* what the first call left */
    size_t n_bytes, elem_bytes; /* from the first element to the end of the last */
    bool is_output;
};

struct bp_case_suite {
    struct kit *kit;
    struct kit_bench bench;
    const char *iface;
    struct kit_rng rng;
    uint64_t seed;
    struct bp_case_target own;
    uint32_t n_flips, n_begun, n_stopped;

    /* the case at hand */
    struct bp_case_target *target;
    struct kit_answer answer;
    struct bp_launch launch;
    struct bp_workspace ws;
    struct bp_case_tensor tensors[BP_CASE_TENSORS];
    uint32_t n_tensors;
    bool failed, has_nan;
    char title[160];
};

/* NULL: not offered here, or it could not be opened (told). */
struct bp_case_suite *bp_case_open(struct kit *k, const char *iface);
/* Tells the sums. An op that declined everything has broken rule 5.9. */
void bp_case_close(struct bp_case_suite *s);

/* Starts a case with its own seed. false: the op declined it (counted). */
bool bp_case_begin(struct bp_case_suite *s, struct bp_case_target *target, const void *problem, const char *fmt, ...)
    KIT_PRINTF(4, 5);
void bp_case_end(struct bp_case_suite *s);
/* Marks the case as failed; the first reason is told. Returns false. */
bool bp_case_fail(struct bp_case_suite *s, const char *rule, const char *fmt, ...) KIT_PRINTF(3, 4);

/* A tensor of the case, freed by bp_case_end. Rows are `pad` elements further apart than they are long. Starts as 0xff
 * everywhere: NaN as a float, -1 as an integer. */
struct bp_case_tensor *bp_case_tensor(struct bp_case_suite *s, uint32_t dtype, uint32_t ndim, const int64_t *dim,
                                      int64_t pad, bool is_output);
/* The i-th logical element. */
double bp_case_get(const struct bp_case_tensor *t, int64_t i);
void bp_case_put(struct bp_case_tensor *t, int64_t i, double v);
int32_t *bp_case_int(struct bp_case_tensor *t, int64_t i);
int64_t bp_case_count(const struct bp_case_tensor *t);
/* All elements as doubles; the caller frees them. */
double *bp_case_doubles(const struct bp_case_tensor *t);

enum bp_case_fill {
    BP_FILL_NORMAL, BP_FILL_EQUAL, BP_FILL_WIDE, BP_FILL_ONE_HOT, BP_FILL_ZERO, BP_FILL_NAN_ROW, BP_FILL_COUNT
};
const char *bp_case_fill_name(uint32_t fill);
/* NAN_ROW: normal, with one NaN in row 1 (of rows as long as the last dimension), if there is one. */
void bp_case_fill(struct bp_case_suite *s, struct bp_case_tensor *t, uint32_t fill, double size);

typedef int32_t bp_case_call(struct bp_case_suite *s, void *arg, struct bp_error *err);
/* The ports of a call against the slot header; called by bp_case_call functions before the call itself. */
void bp_case_ports(struct bp_case_suite *s, uint32_t slot, const void *args);
/* Status, then guard bytes and bytes of inputs. */
bool bp_case_run(struct bp_case_suite *s, bp_case_call *call, void *arg);
/* Compares one output with the oracle's numbers: finite class, bound, norm. */
bool bp_case_judge(struct bp_case_suite *s, const struct bp_case_tensor *t, const double *exact, const double *base,
                   const double *mag, uint32_t precision, const char *what);
/* Calls again from the same start: the same bits, if the op promises that. */
bool bp_case_repeat(struct bp_case_suite *s, bp_case_call *call, void *arg);
/* Row `row` of what `full` holds now against row 0 of `part`: the same bits. For ops that promise BATCH. */
bool bp_case_same_row(struct bp_case_suite *s, const struct bp_case_tensor *full, int64_t row,
                      const struct bp_case_tensor *part, const char *what);
/* The status of a prepare(): 5.6 when it declines what supports() said yes to. Returns whether it is good. */
bool bp_case_prepared(struct bp_case_suite *s, int32_t rc, const struct bp_error *err);

/* ---- also for MLA ---- */

/* Which rule a disagreement breaks: what `why` of bp_oracle_agree says, and whether the inputs held a NaN. */
const char *bp_case_rule(const struct bp_oracle_compare *c, bool has_nan);
/* scratch, plan, persistent and pinned memory of exactly the sizes asked for, each before a guard page; checks the answer
 * of workspace(). owner: for kit_guard_free_all. false after a finding. */
bool bp_case_memory(struct kit *k, const char *iface, const struct bp_op_ref *op, const void *problem,
                    struct bp_launch *l, struct bp_workspace *ws, const void *owner);
/* Every check of memory after a call. false after a finding. */
bool bp_case_guards(struct kit *k, const char *iface, const char *op, const void *owner, struct kit_bench *b);

#endif
