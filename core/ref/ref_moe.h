/* ref_moe.h - the parts of the moe slot, which lives in three files.
 * Threads: as slot_moe.h says. SPDX-License-Identifier: MIT */
#ifndef BPI_REF_MOE_H
#define BPI_REF_MOE_H

#include "backplane/slot_moe.h"
#include "ref/ref_weight.h"

/* Experts of one layer: this rank's experts, and of each this rank's part of the inner width. */
struct bpi_ref_moe {
    struct bpi_ref_weight gate, up, down; /* planes are experts; planes = 0: none here */
    struct bpi_ref_weight shared_gate, shared_up, shared_down; /* one plane; planes = 0: none */
    int64_t n_embd, n_ff, n_ff_shared;
    int32_t expert_begin, expert_end;
};

/* Scratch of run() (ref_moe_run.c). A pair is one (token, chosen expert of this rank). */
struct bpi_ref_moe_scratch {
    double *x;    /* (n_tok, x_stride) input */
    float *x_row; /* (slices, x_stride) */
    double *h; /* (n_tok * n_used, h_stride) inner activations by pair, pairs grouped by expert */
    double *h_shared; /* (n_tok, h_shared_stride) */
    double *
        part; /* (slices, part_stride) results of down for one block of rows: all pairs, then all tokens */
    float *decoded;    /* (slices, decoded_stride) */
    int32_t *first;    /* (n_expert of the rank + 1) first pair of each expert */
    int32_t *pair_tok; /* (n_tok * n_used) token of a pair */
    int32_t *pair_of;  /* (n_tok, n_used) pair of a choice, -1: none here */
    int64_t x_stride, h_stride, h_shared_stride;
    uint64_t part_stride, decoded_stride;
};
struct bpi_ref_moe_size {
    uint64_t n_tok, n_used, n_expert; /* experts of this rank */
    int64_t n_embd, n_ff, n_ff_shared;
    int64_t cover; /* the widest decoded row of any weight */
};
void bpi_ref_moe_take(const struct bpi_ref *ref, struct bpi_ref_area *a,
                      const struct bpi_ref_moe_size *size, struct bpi_ref_moe_scratch *s);
int32_t bpi_ref_moe_run(void *self, const struct bp_launch *l, const struct bp_moe_run_args *a,
                        struct bp_error *err);

/* ref_moe_route.c. One slice keeps n_expert + n_group numbers and as many marks. */
struct bpi_ref_route_scratch {
    double *p, *sel, *group; /* (slices, stride) */
    uint8_t *mark; /* (slices, stride) experts whose group stayed and that are not taken yet */
    uint64_t stride;
};
void bpi_ref_route_take(const struct bpi_ref *ref, struct bpi_ref_area *a, uint64_t n_expert,
                        struct bpi_ref_route_scratch *s);
int32_t bpi_ref_moe_route(void *self, const struct bp_launch *l, const struct bp_moe_route_args *a,
                          struct bp_error *err);

#endif
