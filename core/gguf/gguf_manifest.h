/* gguf_manifest.h - hashes of a model's parts: made from a file, written, read back, compared.
 * Not here: reading the tensors (gguf.h, streaming), what a tensor's bytes mean (core/block).
 * The text form is docs/guide.md, "Is the file whole?". Every byte of a manifest is hostile.
 * Threads: a manifest is immutable; any number of readers. SPDX-License-Identifier: MIT */
#ifndef BPI_GGUF_MANIFEST_H
#define BPI_GGUF_MANIFEST_H

#include "base/base.h"
#include "base/pool.h"
#include "gguf/gguf.h"

/* A longer manifest is refused: a million tensors with the longest names stay below. */
enum { BPI_MANIFEST_MAX_BYTES = 1 << 29, BPI_MANIFEST_MAX_LINE = 2048, BPI_MANIFEST_MAX_FILE_NAME = 255 };

struct bpi_manifest;

/* Reads all of g. progress: as in struct bpi_gguf_stream. Errors: BP_E_IO, BP_E_ABORTED, BP_E_NOMEM. */
int32_t bpi_manifest_make(const struct bpi_gguf *g, struct bpi_pool *pool,
                          int32_t (*progress)(void *ctx, double fraction, const char *what), void *progress_ctx,
                          struct bpi_manifest **out, struct bp_error *err);
/* label: the manifest's file, for messages. Errors: BP_E_FORMAT naming the line; BP_E_UNSUPPORTED another version or
 * another hash; BP_E_LIMIT; BP_E_NOMEM. */
int32_t bpi_manifest_parse(const char *text, size_t n, const char *label, struct bpi_manifest **out,
                           struct bp_error *err);
void bpi_manifest_destroy(struct bpi_manifest *m); /* accepts NULL */
/* Appends the text form; b->failed says whether memory sufficed. */
void bpi_manifest_format(const struct bpi_manifest *m, struct bpi_buf *b);

const char *bpi_manifest_file(const struct bpi_manifest *m); /* base name of the first shard */
uint64_t bpi_manifest_bytes(const struct bpi_manifest *m);   /* of all files */
uint32_t bpi_manifest_shards(const struct bpi_manifest *m);
uint64_t bpi_manifest_tensors(const struct bpi_manifest *m);

/* One line: headers of the shards first, then tensors. */
struct bpi_manifest_line {
    const char *hash, *type; /* "header" for a shard's */
    const char *shard;       /* base name */
    const char *name;        /* "-" for a header's */
    uint64_t n_bytes;
};
bool bpi_manifest_line(const struct bpi_manifest *m, uint64_t i, struct bpi_manifest_line *out);

enum bpi_manifest_diff { BPI_DIFF_HEADER, BPI_DIFF_DAMAGED, BPI_DIFF_MISSING, BPI_DIFF_ADDITIONAL };
typedef void (*bpi_manifest_diff_fn)(void *ctx, uint32_t kind, const char *name, const char *shard, const char *text);
/* Calls fn once for each difference: headers, then tensors of `want` in its order, then those only `have` has. Returns
 * how many. A tensor that moved to another shard unchanged is no difference of its own; the headers then differ. */
uint64_t bpi_manifest_compare(const struct bpi_manifest *want, const struct bpi_manifest *have,
                              bpi_manifest_diff_fn fn, void *ctx);

#endif
