/* kv.h - bookkeeping of the latent cache: blocks, block tables, lengths, sharing.
 * Not here: the bytes of the pools (core/engine owns them), layouts (mla.common).
 * One table serves the latent and the index pools of all layers. Blocks are reference-counted; a block that two sequences
 * share is copied before one of them writes into it.
 * Threads: one at a time. SPDX-License-Identifier: MIT */
#ifndef BPI_KV_H
#define BPI_KV_H

#include <stdbool.h>
#include <stdint.h>
#include "backplane/types.h"

struct bpi_kv;

/* n_blocks blocks of block_tok tokens for max_seqs sequences of at most ctx tokens. */
int32_t bpi_kv_create(uint32_t n_blocks, uint32_t block_tok, uint32_t max_seqs, uint32_t ctx,
                      struct bpi_kv **out, struct bp_error *err);
void bpi_kv_destroy(struct bpi_kv *kv); /* accepts NULL */

uint32_t bpi_kv_len(const struct bpi_kv *kv, uint32_t seq);
uint32_t bpi_kv_ctx(const struct bpi_kv *kv);
uint32_t bpi_kv_block_tok(const struct bpi_kv *kv);
uint32_t bpi_kv_free_blocks(const struct bpi_kv *kv);
/* Entries per row of a block table: blocks of a full sequence. */
uint32_t bpi_kv_table_width(const struct bpi_kv *kv);
/* The sequence's block numbers; valid entries: ceil(len / block_tok). */
const int32_t *bpi_kv_table(const struct bpi_kv *kv, uint32_t seq);
/* Token slot of a position below len. */
int32_t bpi_kv_slot(const struct bpi_kv *kv, uint32_t seq, uint32_t pos);

/* Free blocks that appending n tokens would take (a copy before writing included). */
uint32_t bpi_kv_need(const struct bpi_kv *kv, uint32_t seq, uint32_t n);
/* Appends n tokens. When the partly filled last block is shared it is replaced: *copy_from and *copy_to name the blocks
 * whose bytes the caller must copy in every pool before anything else (-1: no copy). Errors, with nothing changed:
 * BP_E_LIMIT when the context or the blocks do not suffice. */
int32_t bpi_kv_append(struct bpi_kv *kv, uint32_t seq, uint32_t n, int32_t *copy_from,
                      int32_t *copy_to);
/* Cuts to n tokens, n <= len. Takes back an append whose step failed. */
void bpi_kv_truncate(struct bpi_kv *kv, uint32_t seq, uint32_t n);
/* Empty dst takes the whole blocks among src's first n tokens; returns the tokens shared. A failed src shares nothing. */
uint32_t bpi_kv_share(struct bpi_kv *kv, uint32_t dst, uint32_t src, uint32_t n);

/* A sequence whose cache may hold NaN: never shared, until it is truncated to zero. */
void bpi_kv_mark_failed(struct bpi_kv *kv, uint32_t seq);
bool bpi_kv_failed(const struct bpi_kv *kv, uint32_t seq);

#endif
