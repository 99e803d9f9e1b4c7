/* bp_case.h - what the conformance programs share: providers found through the loader, on whatever device they compute
 * on; guarded tensors that travel there and back; the order of judgement.
 * A case: bp_case_begin() asks the provider and gets its memory; tensors are made and filled on the host; bp_case_run()
 * carries them over, calls, carries them back, and checks status and guards; bp_case_judge() checks finite class and
 * bound; bp_case_repeat() calls again from the same start and wants the same bits. bp_case_end() counts and prints.
 * Not here: formulas (bp_oracle.h), grids (tests/conform). Threads: one. SPDX-License-Identifier: MIT */
#ifndef BP_CASE_H
#define BP_CASE_H

#include "backplane/slot_device.h"
#include "base/base.h"
#include "harness/bp_oracle.h"
#include "loader/loader.h"

enum { BP_CASE_TENSORS = 24, BP_CASE_TARGETS = 32 };

/* One provider of an interface on one device. */
struct bp_case_target {
    const char *provider;
    struct bp_device dev;
    struct bp_op_ref op, device;
    const struct bp_device_ops *mem;
    void *stream;
    uint32_t n_ok, n_failed, n_declined;
};

struct bp_case_tensor {
    struct bp_tensor t;   /* data is on the device */
    unsigned char *host;  /* the whole buffer, guards included */
    unsigned char *start; /* what it held before the call */
    unsigned char *after; /* what the first call left */
    void *device;
    size_t n_bytes, elem_bytes;
    bool is_output;
};

struct bp_case_suite {
    const char *name, *iface;
    struct bpi_config *config;
    struct bpi_pool *pool;
    struct bpi_loader *loader;
    struct bpi_rng rng;
    uint64_t seed, case_seed;
    const char *only; /* provider, or NULL for all */
    bool verbose;
    struct bp_case_target targets[BP_CASE_TARGETS];
    uint32_t n_targets, n_flips;

    /* the case at hand */
    struct bp_case_target *target;
    struct bpi_candidate answer;
    struct bp_launch launch;
    struct bp_case_tensor tensors[BP_CASE_TENSORS];
    void *memory[4]; /* persistent, plan, scratch, pinned */
    uint32_t n_tensors;
    bool open, failed;
    char title[160], why[256];
};

/* Arguments of a conformance program: [--provider NAME] [--seed N] [--verbose]. Finds all targets of `iface`. */
void bp_case_open(struct bp_case_suite *s, const char *name, const char *iface, int argc,
                  char **argv);
/* Prints the sums. A target that failed a case, or declined them all, fails; so does a suite without targets. Returns
 * the program's exit status. */
int bp_case_close(struct bp_case_suite *s);

/* Starts a case with its own seed. false: the provider declined it (counted). */
bool bp_case_begin(struct bp_case_suite *s, struct bp_case_target *target, const void *problem,
                   const char *fmt, ...) BPI_PRINTF(4, 5);
void bp_case_end(struct bp_case_suite *s);
/* Marks the case as failed; the first reason is kept. Returns false. */
bool bp_case_fail(struct bp_case_suite *s, const char *fmt, ...) BPI_PRINTF(2, 3);

/* A tensor of the case, freed by bp_case_end. Rows are `pad` elements further apart than they are long. Starts as 0xff
 * everywhere: NaN as a float, -1 as an integer. */
struct bp_case_tensor *bp_case_tensor(struct bp_case_suite *s, uint32_t dtype, uint32_t ndim,
                                      const int64_t *dim, int64_t pad, bool is_output);
/* The i-th logical element, on the host. */
double bp_case_get(const struct bp_case_tensor *t, int64_t i);
void bp_case_put(struct bp_case_tensor *t, int64_t i, double v);
int32_t *bp_case_int(struct bp_case_tensor *t, int64_t i);
int64_t bp_case_count(const struct bp_case_tensor *t);
/* All elements as doubles; the caller frees them. */
double *bp_case_doubles(const struct bp_case_tensor *t);

enum bp_case_fill {
    BP_FILL_NORMAL,
    BP_FILL_EQUAL,
    BP_FILL_WIDE,
    BP_FILL_ONE_HOT,
    BP_FILL_ZERO,
    BP_FILL_NAN_ROW,
    BP_FILL_COUNT
};
const char *bp_case_fill_name(uint32_t fill);
/* NAN_ROW: normal, with one NaN in row 1 (of rows as long as the last dimension), if there is one. */
void bp_case_fill(struct bp_case_suite *s, struct bp_case_tensor *t, uint32_t fill, double size);

/* The bytes of a file on the device, as prepare() wants them on the host: raw bytes stay host memory. */
typedef int32_t bp_case_call(struct bp_case_suite *s, void *arg, struct bp_error *err);
/* Carries inputs over, calls, carries outputs back. Checks status, then guard bytes and bytes of inputs. */
bool bp_case_run(struct bp_case_suite *s, bp_case_call *call, void *arg);
/* Compares one output with the oracle's numbers: finite class, bound, norm. */
bool bp_case_judge(struct bp_case_suite *s, const struct bp_case_tensor *t, const double *exact,
                   const double *base, const double *mag, uint32_t precision, const char *what);
/* Calls again from the same start: the same bits, if the provider promises that. */
bool bp_case_repeat(struct bp_case_suite *s, bp_case_call *call, void *arg);
/* Row `row` of what `full` holds now against row 0 of `part`: the same bits. For providers that promise BATCH. */
bool bp_case_same_row(struct bp_case_suite *s, const struct bp_case_tensor *full, int64_t row,
                      const struct bp_case_tensor *part, const char *what);

#endif
