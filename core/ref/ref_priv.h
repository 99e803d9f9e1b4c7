/* ref_priv.h - what the files of core/ref share: plugin state, typed row access, rounding, dot products.
 * Numeric contract of the whole backend: inputs are read as f32 (F32, F16 and BF16 ports are exact), products and sums
 * are double, in an order that depends only on the row itself - never on the number of rows, the thread, or the
 * chunking - and each output is rounded once to its port's dtype.
 * round = bf16 | f16: every activation read, every decoded weight and every activation written is rounded to that
 * format first (sums stay double): the same-precision baseline. Ports that are F32 by definition (LSE, router logits,
 * gates, scores, norm weights, rope tables) are never rounded.
 * SPDX-License-Identifier: MIT */
#ifndef BPI_REF_PRIV_H
#define BPI_REF_PRIV_H

#include <stdbool.h>
#include "base/base.h"
#include "base/half.h"
#include "backplane/plugin.h"

enum bpi_ref_round { BPI_REF_ROUND_NONE = 0, BPI_REF_ROUND_BF16 = 1, BPI_REF_ROUND_F16 = 2 };

/* One plugin instance; also the `self` of every op it creates. */
struct bpi_ref {
    const struct bp_host *host;
    uint32_t round;          /* enum bpi_ref_round */
    uint32_t reserved;
    uint64_t decoded_left;   /* bytes of weights that may still be kept decoded as f32 */
    struct bp_device device; /* HOST */
};

/* Op tables, one file (or a few) each. */
const struct bp_op_base *bpi_ref_device_ops(void);
const struct bp_op_base *bpi_ref_dense_ops(void);
const struct bp_op_base *bpi_ref_quant_ops(void);
const struct bp_op_base *bpi_ref_moe_ops(void);
const struct bp_op_base *bpi_ref_coll_ops(void);
const struct bp_op_base *bpi_ref_mla_common_ops(void);
const struct bp_op_base *bpi_ref_mla_prefill_ops(void);
const struct bp_op_base *bpi_ref_mla_decode_ops(void);
const struct bp_op_base *bpi_ref_mla_index_ops(void);

/* ---- rows (ref_row.c) ---- */

/* Is dtype one of F32, F16, BF16? */
bool bpi_ref_is_float(uint32_t dtype);
/* Byte address of element (i, j, k, 0) of a tensor; unused indices are 0. */
void *bpi_ref_at(const struct bp_tensor *t, int64_t i, int64_t j, int64_t k);
/* Reads n contiguous elements of dtype at p into f32; rounds when round is not NONE. */
void bpi_ref_load(float *dst, const void *p, uint32_t dtype, int64_t n, uint32_t round);
/* Writes n values, each rounded once from double to dtype (through `round` first when set). */
void bpi_ref_store(void *p, uint32_t dtype, const double *src, int64_t n, uint32_t round);
float bpi_ref_round1(float v, uint32_t round);

/* ---- sums (ref_dot.c): fixed lane order, the same bits for the same inputs on every x86-64 ---- */
double bpi_ref_dot_ff(const float *a, const float *b, int64_t n);
double bpi_ref_dot_fd(const float *a, const double *b, int64_t n);
double bpi_ref_dot_dd(const double *a, const double *b, int64_t n); /* all three agree bit for bit on equal values */
/* y[i] += s * x[i] */
void bpi_ref_axpy(double *y, double s, const float *x, int64_t n);

/* ---- helpers for verdicts and workspaces (ref_plugin.c) ---- */

/* Adds one critical reason; the verdict becomes NO. */
void bpi_ref_refuse(struct bp_verdict *v, uint32_t code, const char *field, int64_t got, int64_t want_lo,
                    int64_t want_hi, const char *text);
/* Call last: YES unless refused; capture NONE, determinism BATCH. */
void bpi_ref_verdict_done(struct bp_verdict *v);
/* Fills t[0..min(*n, count)) from ports[], then *n = count: the common tail of every tensors(). */
void bpi_ref_list(const struct bp_tensor *ports, uint32_t count, struct bp_tensor *t, uint32_t *n);
/* A copy of *t with name and access set. */
struct bp_tensor bpi_ref_port(const struct bp_tensor *t, const char *name, uint32_t access);

#endif
