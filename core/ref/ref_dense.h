/* ref_dense.h - the parts of the dense slot, which lives in three files.
 * Threads: as slot_dense.h says. SPDX-License-Identifier: MIT */
#ifndef BPI_REF_DENSE_H
#define BPI_REF_DENSE_H

#include "backplane/slot_dense.h"
#include "ref/ref_weight.h"

/* Scratch of one slice for the ops that need whole rows; the one place that knows its size (ref_dense.c). */
struct bpi_ref_dense_scratch {
    float *f;  /* (slices, f_stride) */
    double *d; /* (slices, d_stride) */
    uint64_t f_stride, d_stride;
};
/* rows_f, rows_d: rows of `width` that a slice keeps. */
void bpi_ref_dense_take(const struct bpi_ref *ref, struct bpi_ref_area *a, int64_t width,
                        uint64_t rows_f, uint64_t rows_d, struct bpi_ref_dense_scratch *s);

/* ref_dense_row.c */
int32_t bpi_ref_dense_rms(void *self, const struct bp_launch *l, const struct bp_dense_rms_args *a,
                          struct bp_error *err);
int32_t bpi_ref_dense_layernorm(void *self, const struct bp_launch *l,
                                const struct bp_dense_layernorm_args *a, struct bp_error *err);
int32_t bpi_ref_dense_rope(void *self, const struct bp_launch *l,
                           const struct bp_dense_rope_args *a, struct bp_error *err);
int32_t bpi_ref_dense_silu_mul(void *self, const struct bp_launch *l,
                               const struct bp_dense_pair_args *a, struct bp_error *err);
int32_t bpi_ref_dense_add(void *self, const struct bp_launch *l, const struct bp_dense_pair_args *a,
                          struct bp_error *err);

/* ref_dense_pick.c */
int32_t bpi_ref_dense_argmax(void *self, const struct bp_launch *l,
                             const struct bp_dense_topk_args *a, struct bp_error *err);
int32_t bpi_ref_dense_topk(void *self, const struct bp_launch *l,
                           const struct bp_dense_topk_args *a, struct bp_error *err);

#endif
