/* block.h - GGUF block formats: the numeric definition of "quantized".
 * Not here: matmul (core/ref and plugins), files (core/gguf).
 * Sources: layouts and formulas from ggml @ d99724f (ggml-common.h, ggml-quants.c), restated in this project's words.
 * Threads: all functions are pure. SPDX-License-Identifier: MIT */
#ifndef BPI_BLOCK_H
#define BPI_BLOCK_H

#include <stdbool.h>
#include <stdint.h>
#include "backplane/types.h"

/* What the format says about a tensor type. */
struct bpi_block_info {
    const char *name;     /* "Q4_K"; upper case as in GGUF tools */
    uint32_t type;        /* enum bp_gguf_type */
    uint32_t block_elems; /* elements per block, a row is a whole number of blocks */
    uint32_t block_bytes;
    bool can_decode; /* bpi_block_decode works */
    bool can_encode; /* bpi_block_encode works */
    float max_abs;   /* largest magnitude that bpi_block_encode takes; 0 without an encoder */
};

/* NULL for numbers that are unknown, removed or out of range. */
const struct bpi_block_info *bpi_block_info(uint32_t type);
/* Case-insensitive lookup; NULL if unknown. */
const struct bpi_block_info *bpi_block_by_name(const char *name);
/* Comma-separated names of all types that can be decoded, for messages. */
const char *bpi_block_supported_names(void);

/* Bytes of n_elems elements of `type` (n_elems a multiple of block_elems). false: unknown type, not a multiple,
 * overflow. */
bool bpi_block_bytes(uint32_t type, uint64_t n_elems, uint64_t *out_bytes);

/* Decodes n_elems elements (a multiple of the block) from src, which needs no alignment, to dst.
 * Numeric: each value is the format's formula evaluated in f32 in the order ggml evaluates it; F64 is rounded to f32.
 * Errors: BP_E_UNSUPPORTED for types without a decoder, BP_E_ARG when n_elems is no multiple of the block. */
int32_t bpi_block_decode(uint32_t type, const void *src, uint64_t n_elems, float *dst);

/* ---- encoding (block_encode_*.c, block_search.c) ---- */

/* Encodes n_elems elements (a multiple of the block) from src to dst, which needs no alignment; src, importance and
 * dst do not overlap. Call it for one row, or part of one, at a time.
 * importance: NULL, or the weights of the elements' squared errors, as many as there are elements. A tensor has one
 * weight per column, so the same weights serve all its rows. Only their ratios within a block matter; below 2^-20 of
 * the block's largest they count as that; a block whose weights are all zero is weighted evenly. The float types round
 * to nearest whatever the weights are.
 * Numeric: what is made smallest is the (weighted) sum of squared errors of the decoded values. A block of zeros, or
 * of magnitudes up to 2^-25, decodes to zeros exactly. Values go up to the type's max_abs. Downwards scales are half
 * floats, which lose bits below 2^-14 and end at 2^-24: values of a typical size of 1e-3 have the same relative error
 * as larger ones (to 1.5 %), of 1e-5 up to 30 % more, below 1e-6 every quantized type gets coarse, but never worse
 * than zeros. The same input gives the same bytes on every machine.
 * Errors: BP_E_UNSUPPORTED for types without an encoder, BP_E_ARG when n_elems is no multiple of the block,
 * BP_E_NUMERIC when a value is NaN, infinite or above the type's max_abs, or a weight is NaN, infinite or negative;
 * nothing is written then. */
int32_t bpi_block_encode(uint32_t type, const float *src, uint64_t n_elems, const float *importance,
                         void *dst);

/* ---- validation (block_validate.c) ---- */

/* Walks n_bytes of blocks of any known type and looks for what decodes to nothing sensible: NaN and infinite scales,
 * minima and values, exponents of MXFP4 above 252 (255 is NaN), NaN among the scales of NVFP4.
 * NULL when all is well; *first_bad_block is then the number of blocks. Else a short reason about the block
 * *first_bad_block ("its scale is NaN", "it is cut off"), a static text. For the float types a block is one value. */
const char *bpi_block_validate(uint32_t type, const void *bytes, uint64_t n_bytes,
                               uint64_t *first_bad_block);

#endif
