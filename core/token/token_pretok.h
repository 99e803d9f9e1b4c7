/* token_pretok.h - the pre-tokenizers by name, for the tokenizer itself; tests and tools use bpi_pretok_split.
 * Not here: BPE. Threads: constant data. SPDX-License-Identifier: MIT */
#ifndef BPI_TOKEN_PRETOK_H
#define BPI_TOKEN_PRETOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Text that a stage works on: one piece of the stage before. Nothing looks beyond it. */
struct bpi_piece {
    const unsigned char *p;
    size_t n;
};

enum { BPI_PRETOK_MAX_STAGES = 6 };
#define BPI_PRETOK_DEFAULT "default" /* what a file without the key tokenizer.ggml.pre means */

struct bpi_pretok {
    const char *name; /* as in tokenizer.ggml.pre */
    /* Each returns the end of its regex's match at byte `at`, or `at` when there is none. Ends at the first NULL. */
    size_t (*stage[BPI_PRETOK_MAX_STAGES + 1])(const struct bpi_piece *t, size_t at);
    bool ignore_merges;   /* a whole word that is a vocabulary entry is taken as it is */
    bool default_add_bos; /* when the file does not say */
    bool
        ids_are_ranks; /* of the vocabularies that use it: merges may be missing, see token_ranks.c */
};

/* NULL for an unknown name. */
const struct bpi_pretok *bpi_pretok_find(const char *name, size_t n_name);

typedef int32_t (*bpi_piece_fn)(void *ctx, const char *piece, size_t n);
/* Pieces of text[0..n) in order; stops at the first failure of fn and returns it. Linear in n. */
int32_t bpi_pretok_run(const struct bpi_pretok *pre, const char *text, size_t n, bpi_piece_fn fn,
                       void *ctx);

#endif
