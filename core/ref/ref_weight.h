/* ref_weight.h - weights of GGUF files as rows of floats, products with them, and the row formulas that several slots
 * share. Not here: which op uses them. Threads: any. SPDX-License-Identifier: MIT */
#ifndef BPI_REF_WEIGHT_H
#define BPI_REF_WEIGHT_H

#include <math.h>
#include "ref/ref_priv.h"
#include "backplane/slot_quant.h"

/* ---- weights (ref_weight.c) ---- */

/* This rank's part of one raw tensor: planes (ne[2]) of rows (ne[1]) of cols (ne[0]). The file's bytes stay where they
 * are. Where the columns begin or end inside a block, whole blocks are decoded and the rest is skipped over. */
struct bpi_ref_weight {
    const unsigned char *data;       /* first covering block of the first row */
    uint64_t row_bytes, plane_bytes; /* between rows and planes of the file */
    int64_t planes, rows, cols;      /* of the part */
    int64_t skip, cover; /* elements decoded before the first own column; decoded per row in all */
    uint32_t type, round;
    float scale;
    bool as_it_is; /* the file's bytes are the floats wanted; else rows are decoded at each use */
};

/* Fills *w, which owns nothing and is forgotten without a close. A raw without data gives an empty weight.
 * Rows are never kept decoded. Tried with 96 MiB of them on the bundled Q4_K_M model: 75 tok/s against 92, because
 * core/block decodes (3 to 7 G elements/s on one core) faster than memory delivers four bytes an element.
 * Errors: BP_DECLINED for a type without a decoder, BP_E_ARG for a part outside the tensor or a tensor outside its
 * bytes. */
int32_t bpi_ref_weight_open(const struct bpi_ref *ref, const struct bp_raw *raw,
                            struct bpi_ref_weight *w, struct bp_error *err);
/* prepare() of an op that owns one matrix: a handle on the heap of the host, freed with bpi_ref_free. `what` begins the
 * sentence of a refusal. info may be NULL. */
int32_t bpi_ref_weight_handle(struct bpi_ref *ref, const struct bp_raw *raw, const char *what,
                              void **out, struct bp_weight_info *info, struct bp_error *err);
/* Rows [row, row + n) of a plane: the exact decoded values times the scale (one f32 product), rounded when the plugin
 * rounds. *stride: elements from row to row. buf holds n * cover floats and is used unless the part is taken as it is. */
const float *bpi_ref_weight_rows(const struct bpi_ref_weight *w, int64_t plane, int64_t row,
                                 int64_t n, float *buf, int64_t *stride);

/* ---- products (ref_product.c) ---- */

enum {
    BPI_REF_ROW_TILE = 4,   /* rows that share a load of x */
    BPI_REF_ROW_BLOCK = 16, /* rows decoded at a time when many tokens use them */
    BPI_REF_TOK_BLOCK = 16, /* tokens whose results are kept together */
    BPI_REF_SLICE_FLOATS = 16384,
    BPI_REF_SERIAL_WORK =
        65536 /* multiply-adds below which waking threads costs more than it gives */
};

/* y[t * y_stride + r] = row r of w . row t of x, each with the lane order of bpi_ref_dot_ff, whatever the counts.
 * pick: row t of x is row pick[t] (NULL: t itself). */
void bpi_ref_product(const float *w, int64_t w_stride, int64_t n_rows, const double *x,
                     int64_t x_stride, const int32_t *pick, int64_t n_tok, int64_t cols, double *y,
                     int64_t y_stride);

/* Parts that a call is cut into for parallel_for; each has its own piece of scratch. Depends on the machine, never on
 * the problem; results do not depend on it. */
uint64_t bpi_ref_slices(const struct bpi_ref *ref);
/* Runs fn(arg, begin, end) over [0, slices): on the engine's threads when `work` is worth it. */
void bpi_ref_run_slices(const struct bpi_ref *ref, uint64_t work,
                        void (*fn)(void *arg, uint64_t begin, uint64_t end), void *arg);
/* Items [*begin, *end) of n that slice s of `slices` handles. */
void bpi_ref_slice_part(uint64_t s, uint64_t slices, int64_t n, int64_t *begin, int64_t *end);

/* Floats that a slice needs to decode rows with columns `cover`, and how many rows that is (n_tok: tokens that will use
 * them). floats() grows with cover; rows() * cover never exceeds it. */
uint64_t bpi_ref_slice_floats(int64_t cover);
int64_t bpi_ref_slice_rows(int64_t cover, int64_t n_tok);
/* Upper bound of bpi_ref_weight.cover for a part with cols columns. */
int64_t bpi_ref_cover_max(int64_t cols);

/* A scratch area that is handed out piece by piece, 64-byte aligned. Sizing and using share one sequence of calls:
 * a zeroed area only counts. `bad` on overflow or when the area is too small. */
struct bpi_ref_area {
    unsigned char *base;
    uint64_t used, cap;
    bool limited; /* there is an area, of cap bytes */
    bool bad;
};
void *bpi_ref_area_take(struct bpi_ref_area *a, uint64_t n, uint64_t elem_bytes);
/* Ends a workspace(): *out from what the counting area took. */
int32_t bpi_ref_area_report(const struct bpi_ref_area *a, struct bp_workspace *out,
                            struct bp_error *err);
/* The scratch of a launch. */
struct bpi_ref_area bpi_ref_area_of(const struct bp_launch *l);
/* The sentence for an area that is `bad` inside a run. */
int32_t bpi_ref_area_fail(const struct bp_launch *l, const char *op, struct bp_error *err);

/* ---- formulas of one row or number (ref_product.c) ---- */

/* y = w * x / sqrt(mean(x^2) + eps), not yet rounded. */
void bpi_ref_rms_row(const float *x, const float *w, int64_t n, float eps, double *y);

/* silu(-inf) is -0, the limit, and not -inf / inf. */
static inline double bpi_ref_silu(double a)
{
    return a == -INFINITY ? -0.0 : a / (1.0 + exp(-a));
}

#endif
