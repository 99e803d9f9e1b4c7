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

#endif
