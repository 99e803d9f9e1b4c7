/* plan.h - what a run() looks like, from its sizes alone: which kernels, which tiles, how scratch is cut.
 * The same functions answer workspace() and lay out the memory of a call. Plain C without CUDA, for unit tests.
 * Not here: launches (run.c). Threads: pure. SPDX-License-Identifier: MIT */
#ifndef MOE_PLAN_H
#define MOE_PLAN_H

#include <backplane/sdk.h>

enum {
    MOE_FEW_TOKENS = 8, /* up to here a product per pair, */
    MOE_FEW_PAIRS = 2,  /* and up to so many pairs per expert; measured, a tile costs about three pairs */
    MOE_PART_BYTES = 256 << 20 /* of results of down at a time; more only where 128 columns need more */
};

/* Sizes of one call, or the largest of all calls. */
struct moe_size {
    int64_t n_tok, n_used, n_expert; /* n_expert: held here; 0: no routed experts */
    int64_t n_embd, width, width_shared; /* columns of h, padding included; 0: none */
    uint32_t x_dtype;
};

struct moe_plan {
    int few;           /* 1: product per pair; 0: tiles */
    int half;          /* 1: h is bf16 */
    int32_t tile_tok, n_tile;               /* of the routed experts */
    int32_t tile_tok_shared, n_tile_shared;
    int64_t n_col;     /* columns of y per pass over down */
};

/* Parts of the scratch; NULL where a call does not need them. */
struct moe_scratch {
    void *h, *h_shared;
    float *part, *part_shared;
    int32_t *list, *tiles;
};

void moe_plan_make(const struct moe_size *s, struct moe_plan *p);
/* Lays out a call in *a, or counts it. */
void moe_plan_take(const struct moe_size *s, const struct moe_plan *p, struct bp_area *a, struct moe_scratch *out);
/* Bytes that are enough for every call that is not larger in any size. UINT64_MAX: more than there are. */
uint64_t moe_plan_bytes(const struct moe_size *most);
/* Columns of h for an inner width: whatever part of the blocks of down a cut leaves to be read. */
int64_t moe_width_most(int64_t n_ff);

#endif
