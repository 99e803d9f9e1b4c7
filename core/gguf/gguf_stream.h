/* gguf_stream.h - all bytes of a model by read calls, so that a file that is shortened meanwhile cannot raise SIGBUS.
 * Not here: what is done with the bytes (gguf_hash.c, core/engine). SPDX-License-Identifier: MIT */
#ifndef BPI_GGUF_STREAM_H
#define BPI_GGUF_STREAM_H

#include "base/base.h"
#include "base/pool.h"
#include "gguf/gguf.h"

/* Every tensor once, in pieces. */
struct bpi_gguf_stream {
    void *ctx;
    /* n bytes of a tensor, from byte `at` of it on: whole blocks. The pieces of one tensor come in order and from one
     * worker (0 .. threads of the pool - 1); several tensors are under way at once. A tensor of zero bytes is one piece
     * with n = 0. Not BP_OK ends the walk. */
    int32_t (*piece)(void *ctx, uint32_t worker, uint64_t tensor, uint64_t at, const void *bytes, size_t n,
                     struct bp_error *err);
    /* Called from the calling thread only; may be NULL. Non-zero ends the walk with BP_E_ABORTED. */
    int32_t (*progress)(void *ctx, double fraction, const char *what);
    void *progress_ctx;
};
/* Memory: one MiB a thread. Errors: BP_E_IO, BP_E_NOMEM, BP_E_ABORTED, what `piece` returned; of several failures the
 * one with the lowest tensor number. pool may be NULL. */
int32_t bpi_gguf_stream(const struct bpi_gguf *g, struct bpi_pool *pool, const struct bpi_gguf_stream *s,
                        struct bp_error *err);

#endif
