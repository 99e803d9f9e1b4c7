/* gguf_stream.c - all tensors of a file in pieces, many at once, by read calls and not through the mapping.
 * Why not the mapping: a file that another program shortens would end the process with SIGBUS; and the mapping of a
 * large model counts as resident memory while it is walked. Not here: what is done with the bytes (the caller).
 * Threads: the pool's; progress and errors are told in the calling thread. SPDX-License-Identifier: MIT */
#include "gguf/gguf_stream.h"
#include "gguf/gguf_priv.h"

#include <pthread.h>
#include <stdatomic.h>

enum { PIECE_BYTES = 1 << 20 };

/* What one thread of the pool works with. */
struct worker {
    atomic_bool taken;
    unsigned char *buffer; /* (PIECE_BYTES) */
    struct bpi_gguf_input input;
    int32_t rc;
    uint64_t failed_at; /* tensor */
    struct bp_error err;
};

struct walk {
    const struct bpi_gguf *g;
    const struct bpi_gguf_stream *s;
    struct worker *workers;
    uint32_t n_workers;
    pthread_t caller;
    uint64_t total;
    atomic_uint_least64_t done;
    atomic_bool stop;
};

static struct worker *take_worker(struct walk *w, uint32_t *out_number)
{
    for (uint32_t i = 0;; i = (i + 1) % w->n_workers) {
        if (atomic_exchange(&w->workers[i].taken, true)) continue;
        *out_number = i;
        return &w->workers[i];
    }
}

static int32_t tell_progress(struct walk *w, struct worker *k, const char *name)
{
    if (w->s->progress == NULL || !pthread_equal(pthread_self(), w->caller)) return BP_OK;
    double done = (double)atomic_load_explicit(&w->done, memory_order_relaxed);
    double fraction = w->total > 0 ? done / (double)w->total : 1.0;
    if (w->s->progress(w->s->progress_ctx, fraction, name) == 0) return BP_OK;
    return bpi_fail(&k->err, BP_E_ABORTED, BPI_GGUF_DOMAIN, name,
                    "reading the tensors was stopped on request");
}

static int32_t walk_tensor(struct walk *w, struct worker *k, uint32_t number, uint64_t i)
{
    const struct bpi_gguf_tensor *t = &w->g->tensors[i];
    uint32_t block = 1, block_bytes = 1;
    (void)bpi_gguf_type_sizes(t->type, &block, &block_bytes);
    const size_t most = (size_t)PIECE_BYTES / block_bytes * block_bytes;
    if (t->n_bytes == 0) return w->s->piece(w->s->ctx, number, i, 0, k->buffer, 0, &k->err);
    BP_TRY(bpi_gguf_input_open(&k->input, w->g, t->shard, &k->err));
    for (uint64_t at = 0; at < t->n_bytes;) {
        if (atomic_load_explicit(&w->stop, memory_order_relaxed)) return BP_OK;
        size_t n = t->n_bytes - at < most ? (size_t)(t->n_bytes - at) : most;
        BP_TRY(bpi_gguf_input_read(&k->input, t->offset + at, k->buffer, n, &k->err));
        BP_TRY(w->s->piece(w->s->ctx, number, i, at, k->buffer, n, &k->err));
        at += n;
        atomic_fetch_add_explicit(&w->done, n, memory_order_relaxed);
        BP_TRY(tell_progress(w, k, t->name));
    }
    return BP_OK;
}

static void walk_range(void *arg, uint64_t begin, uint64_t end)
{
    struct walk *w = arg;
    uint32_t number;
    struct worker *k = take_worker(w, &number);
    for (uint64_t i = begin; i < end && !atomic_load(&w->stop); ++i) {
        int32_t rc = walk_tensor(w, k, number, i);
        if (rc == BP_OK) continue;
        if (k->rc == BP_OK) {
            k->rc = rc;
            k->failed_at = i;
        }
        atomic_store(&w->stop, true);
    }
    atomic_store(&k->taken, false);
}

static int32_t first_failure(const struct walk *w, struct bp_error *err)
{
    const struct worker *first = NULL;
    for (uint32_t i = 0; i < w->n_workers; ++i) {
        const struct worker *k = &w->workers[i];
        if (k->rc != BP_OK && (first == NULL || k->failed_at < first->failed_at)) first = k;
    }
    if (first == NULL) return BP_OK;
    if (err != NULL && err->code == BP_OK) *err = first->err;
    return first->rc;
}

int32_t bpi_gguf_stream(const struct bpi_gguf *g, struct bpi_pool *pool,
                        const struct bpi_gguf_stream *s, struct bp_error *err)
{
    struct walk w = {.g = g, .s = s, .n_workers = bpi_pool_threads(pool), .caller = pthread_self()};
    const size_t n_bytes = (size_t)w.n_workers * PIECE_BYTES;
    for (uint64_t i = 0; i < g->n_tensors; ++i) w.total += g->tensors[i].n_bytes;
    atomic_init(&w.done, 0);
    atomic_init(&w.stop, false);
    w.workers = bpi_calloc(w.n_workers, sizeof *w.workers);
    unsigned char *buffers = bpi_alloc_aligned(n_bytes, 4096);
    if (w.workers == NULL || buffers == NULL) {
        bpi_free(w.workers);
        bpi_free(buffers);
        return bpi_fail_nomem(err, BPI_GGUF_DOMAIN, n_bytes);
    }
    for (uint32_t i = 0; i < w.n_workers; ++i) {
        atomic_init(&w.workers[i].taken, false);
        w.workers[i].buffer = buffers + (size_t)i * PIECE_BYTES;
        w.workers[i].err = (struct bp_error)BP_ERROR_INIT;
    }
    bpi_pool_run(pool, g->n_tensors, 1, walk_range, &w);
    int32_t rc = first_failure(&w, err);
    for (uint32_t i = 0; i < w.n_workers; ++i) bpi_gguf_input_close(&w.workers[i].input);
    bpi_free(buffers);
    bpi_free(w.workers);
    return rc;
}
