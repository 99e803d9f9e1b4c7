/* quantize.h - a GGUF written anew with its weights in other types.
 * Not here: the encoders (core/block), the container (core/gguf), what tensors mean to a model (core/model): rules go by
 * names and shapes alone, so any GGUF can be quantized. How the rules came about: docs/internals/quantize.md.
 * Threads: a plan belongs to one caller; writing uses the pool it is given. SPDX-License-Identifier: MIT */
#ifndef BPI_QUANTIZE_H
#define BPI_QUANTIZE_H

#include <stdbool.h>
#include <stdint.h>
#include "base/base.h"
#include "gguf/gguf.h"

struct bpi_pool;

/* What a user can ask for: a type for every weight, or a mix that gives some of them a better one. */
struct bpi_quantize_target {
    const char *name;   /* "Q4_K_M" */
    uint32_t type;      /* enum bp_gguf_type of most weights */
    uint32_t file_type; /* what general.file_type says */
    bool mixed;
};
/* Case does not matter; NULL if unknown. */
const struct bpi_quantize_target *bpi_quantize_target(const char *name);
/* "F32, F16, ..., Q5_K_M", for messages. */
const char *bpi_quantize_names(void);

enum bpi_quantize_why {
    BPI_QUANTIZE_ASKED = 0,    /* the target's own type */
    BPI_QUANTIZE_RAISED = 1,   /* the mix wants a better type for this tensor */
    BPI_QUANTIZE_FALLBACK = 2, /* rows are no whole number of the type's blocks */
    BPI_QUANTIZE_KEPT = 3      /* never quantized: norms, biases, the router, integers */
};
struct bpi_quantize_row {
    const struct bpi_gguf_tensor *src;
    uint32_t to;  /* enum bp_gguf_type */
    uint32_t why; /* enum bpi_quantize_why */
    uint64_t n_bytes;
};

/* Every tensor of a file with the type it will get, and the new file's metadata. */
struct bpi_quantize_plan {
    const struct bpi_gguf *g; /* the caller's, outlives the plan */
    const struct bpi_quantize_target *target;
    struct bpi_quantize_row *rows; /* in the order of the source */
    uint64_t n_rows;
    uint64_t file_bytes; /* of the new file */
    struct bpi_gguf_writer *writer;
};
/* The type and the reason for one tensor. n_blocks: layers of the model. tied: the file has no output.weight. moe: it has
 * eight experts or more. Pure. */
struct bpi_quantize_facts {
    uint32_t n_blocks;
    bool tied, moe;
};
struct bpi_quantize_row bpi_quantize_choose(const struct bpi_quantize_target *target,
                                            const struct bpi_quantize_facts *facts,
                                            const struct bpi_gguf_tensor *t);
/* Reads no tensor. Errors: BP_E_UNSUPPORTED a weight whose type has no decoder, naming it; BP_E_LIMIT; BP_E_NOMEM. On
 * error *out is empty. */
int32_t bpi_quantize_plan(const struct bpi_gguf *g, const struct bpi_quantize_target *target,
                          struct bpi_quantize_plan *out, struct bp_error *err);
void bpi_quantize_plan_free(struct bpi_quantize_plan *p); /* accepts a zeroed plan */

struct bpi_quantize_job {
    struct bpi_pool *pool; /* NULL: the caller works alone; the bytes are the same whatever the number of threads */
    bool no_replace;       /* refuse a path where something is */
    int32_t (*progress)(void *ctx, double fraction, const char *tensor); /* may be NULL; not 0 stops */
    void *progress_ctx;
};
/* Writes the new file. Memory: at most 16 MiB, however large the tensors are, and some KiB of stack a thread. The file
 * grows under a temporary name beside `path` and gets its own when it is whole and on disk, so `path` is untouched until
 * then, and nothing is left on failure. Errors: BP_E_ARG `path` is a file of the source or a symbolic link, or exists and
 * may not be replaced; BP_E_NUMERIC a NaN, an infinity or a value beyond the new type's range, naming tensor and place;
 * BP_E_IO; BP_E_NOMEM; BP_E_ABORTED. */
int32_t bpi_quantize_write(const struct bpi_quantize_plan *p, const char *path,
                           const struct bpi_quantize_job *job, struct bp_error *err);

#endif
