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
    uint32_t round; /* enum bpi_ref_round */
    uint32_t reserved;
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
int64_t bpi_ref_dtype_bytes(uint32_t dtype);
/* Byte address of element (i, j, k, 0) of a tensor; unused indices are 0. */
void *bpi_ref_at(const struct bp_tensor *t, int64_t i, int64_t j, int64_t k);
/* Reads n contiguous elements of dtype at p into f32; rounds when round is not NONE. */
void bpi_ref_load(float *dst, const void *p, uint32_t dtype, int64_t n, uint32_t round);
/* Writes n values, each rounded once from double to dtype (through `round` first when set). */
void bpi_ref_store(void *p, uint32_t dtype, const double *src, int64_t n, uint32_t round);
/* The same for values that are f32 already: exact for F32 without rounding. */
void bpi_ref_store_floats(void *p, uint32_t dtype, const float *src, int64_t n, uint32_t round);
float bpi_ref_round1(float v, uint32_t round);
/* The same for n values in place; nothing with round NONE. */
void bpi_ref_round(float *v, int64_t n, uint32_t round);
/* One value as bpi_ref_store would leave it, still as f32 (exact for all three dtypes): what the next op would read. */
float bpi_ref_round_once(double v, uint32_t dtype, uint32_t round);

/* ---- sums (ref_dot.c): fixed lane order, the same bits for the same inputs on every x86-64 ---- */
double bpi_ref_dot_ff(const float *a, const float *b, int64_t n);
double bpi_ref_dot_fd(const float *a, const double *b, int64_t n);
double bpi_ref_dot_dd(const double *a, const double *b,
                      int64_t n); /* all three agree bit for bit on equal values */
/* y[i] += s * x[i] */
void bpi_ref_axpy(double *y, double s, const float *x, int64_t n);

/* The loops of this room are plain C; on x86-64 the compiler also makes copies for wider vectors and the loader of the
 * process picks one. All copies do the same operations in the same order (-ffp-contract=off), so they give the same
 * bits. Only GCC: clang 14 names its copies so that other files cannot link to them; sanitizers come up too late. */
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__) &&       \
    !defined(BP_SANITIZED)
#define BPI_REF_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define BPI_REF_CLONES
#endif

/* The innermost loops do not carry the sanitizers' checks of every element, which made them thirty times slower; they
 * say first which elements they will read and write, and the address sanitizer looks at those in one go. It reports
 * the same faults. Without it BPI_REF_TOUCH is nothing. */
#if defined(BP_SANITIZED) && defined(__SANITIZE_ADDRESS__) && defined(__GNUC__) && !defined(__clang__)
#define BPI_REF_INNER __attribute__((no_sanitize("address"), no_sanitize("undefined")))
#define BPI_REF_TOUCH(p, n) bpi_ref_touch((p), (n), (int64_t)sizeof *(p))
/* Reports, as the sanitizer's own checks would, when one of n elements at p may not be used (ref_dot.c). */
void bpi_ref_touch(const void *p, int64_t n, int64_t elem_bytes);
#else
#define BPI_REF_INNER
#define BPI_REF_TOUCH(p, n) ((void)0)
#endif

/* ---- host memory (ref_verdict.c) ---- */

/* Zeroed memory from the host table; NULL on failure or overflow. Freed with bpi_ref_free, which accepts NULL. */
void *bpi_ref_alloc(struct bpi_ref *ref, uint64_t n, uint64_t elem_bytes);
void bpi_ref_free(struct bpi_ref *ref, void *p);

/* ---- helpers for verdicts and workspaces (ref_verdict.c) ---- */

/* Adds one critical reason; the verdict becomes NO. */
void bpi_ref_refuse(struct bp_verdict *v, uint32_t code, const char *field, int64_t got,
                    int64_t want_lo, int64_t want_hi, const char *text);
/* Every supports() begins with it: refuses structs that end before n_bytes, and unknown critical extensions. */
void bpi_ref_check_header(struct bp_verdict *v, const struct bp_hdr *h, uint32_t n_bytes);
/* Call last: YES unless refused; capture NONE, determinism BATCH. */
void bpi_ref_verdict_done(struct bp_verdict *v);
/* Fills t[0..min(*n, count)) from ports[], then *n = count: the common tail of every tensors(). */
void bpi_ref_list(const struct bp_tensor *ports, uint32_t count, struct bp_tensor *t, uint32_t *n);
/* A copy of *t with name and access set. */
struct bp_tensor bpi_ref_port(const struct bp_tensor *t, const char *name, uint32_t access);

#endif
