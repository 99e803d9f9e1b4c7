/* quantize_write.c - encodes the tensors of a plan one after another and writes them to the new file.
 * A tensor is cut into chunks, a chunk into pieces of whole blocks; threads convert pieces while one of them writes the
 * chunk before. Blocks know nothing of each other, so the bytes do not depend on how the work is spread.
 * Not here: the choice of types (quantize_plan.c). Threads: the pool's. SPDX-License-Identifier: MIT */
#include "quantize/quantize.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include "base/pool.h"
#include "block/block.h"

#define DOMAIN "quantize"

enum {
    PIECE = 4096, /* values: a multiple of every block, so that only a tensor's end cuts one */
    PIECE_BYTES_MAX = PIECE * 8,
    CHUNK_BYTES = 8 << 20, /* of encoded values */
    CHUNK_PIECES = 1024    /* at most: few bits a value would make chunks that take long to stop */
};

struct chunk {
    const struct bpi_quantize_row *row;
    uint64_t first, n; /* pieces of the tensor */
    unsigned char *bytes;
    uint64_t n_bytes;
};

struct writing {
    const struct bpi_quantize_plan *plan;
    const struct bpi_quantize_job *job;
    struct bpi_gguf_input input;
    unsigned char *buffer[2];
    struct chunk now, before;         /* being converted; being written, n_bytes 0 for none */
    uint64_t done_bytes, total_bytes; /* of the source */
    atomic_bool stop;
    atomic_uint_least64_t bad; /* lowest piece with a value that cannot be; UINT64_MAX */
    atomic_bool io_failed;     /* the first to set it fills io_err */
    struct bp_error io_err;
    struct bp_error write_err;
};

static uint64_t n_values(const struct bpi_gguf_tensor *t)
{
    return (uint64_t)t->ne[0] * (uint64_t)t->ne[1] * (uint64_t)t->ne[2] * (uint64_t)t->ne[3];
}

static uint64_t bytes_of(uint32_t type, uint64_t n)
{
    const struct bpi_block_info *info = bpi_block_info(type);
    return n / info->block_elems * info->block_bytes;
}

static uint64_t pieces_of(const struct bpi_gguf_tensor *t)
{
    uint64_t n = n_values(t);
    return n / PIECE + (n % PIECE != 0);
}

static uint64_t pieces_per_chunk(uint32_t type)
{
    uint64_t n = CHUNK_BYTES / bytes_of(type, PIECE);
    return n < CHUNK_PIECES ? n : CHUNK_PIECES;
}

static uint64_t piece_values(const struct bpi_gguf_tensor *t, uint64_t piece)
{
    uint64_t left = n_values(t) - piece * PIECE;
    return left < PIECE ? left : PIECE;
}

/* ---- one piece ---- */

static void note_bad(struct writing *w, uint64_t piece)
{
    uint64_t lowest = atomic_load(&w->bad);
    while (piece < lowest && !atomic_compare_exchange_weak(&w->bad, &lowest, piece)) {
    }
}

static bool read_piece(struct writing *w, const struct bpi_gguf_tensor *t, uint64_t piece,
                       uint64_t n, void *out)
{
    struct bp_error err = BP_ERROR_INIT;
    uint64_t at = bytes_of(t->type, piece * PIECE);
    if (bpi_gguf_input_read(&w->input, t->offset + at, out, bytes_of(t->type, n), &err) == BP_OK)
        return true;
    if (!atomic_exchange(&w->io_failed, true)) w->io_err = err;
    atomic_store(&w->stop, true);
    return false;
}

/* Whatever cannot be encoded is only counted here; the caller's thread says later what it is. */
static void convert(struct writing *w, uint64_t i)
{
    const struct chunk *c = &w->now;
    const struct bpi_gguf_tensor *t = c->row->src;
    const uint64_t piece = c->first + i, n = piece_values(t, piece);
    unsigned char *dst = c->bytes + i * bytes_of(c->row->to, PIECE);
    uint64_t first_bad;
    if (c->row->to == t->type) {
        if (!read_piece(w, t, piece, n, dst)) return;
        if (bpi_block_validate(t->type, dst, bytes_of(t->type, n), &first_bad) != NULL)
            note_bad(w, piece);
        return;
    }
    unsigned char raw[PIECE_BYTES_MAX];
    float values[PIECE];
    if (!read_piece(w, t, piece, n, raw)) return;
    if (bpi_block_decode(t->type, raw, n, values) != BP_OK ||
        bpi_block_encode(c->row->to, values, n, NULL, dst) != BP_OK)
        note_bad(w, piece);
}

/* Item 0 of a job writes the chunk before, the others convert. */
static void work(void *arg, uint64_t begin, uint64_t end)
{
    struct writing *w = arg;
    for (uint64_t i = begin; i < end; ++i) {
        if (atomic_load_explicit(&w->stop, memory_order_relaxed)) return;
        if (i > 0) {
            convert(w, i - 1);
        } else if (w->before.n_bytes > 0 &&
                   bpi_gguf_writer_append(w->plan->writer, w->before.bytes, w->before.n_bytes,
                                          &w->write_err) != BP_OK) {
            atomic_store(&w->stop, true);
        }
    }
}

/* ---- what went wrong ---- */

enum { PLACE_BYTES = 64 };
/* Where value number `at` is, as "row 3, column 17". */
static void place(const struct bpi_gguf_tensor *t, uint64_t at, char out[PLACE_BYTES])
{
    snprintf(out, PLACE_BYTES, "row %llu, column %llu",
             (unsigned long long)(at / (uint64_t)t->ne[0]),
             (unsigned long long)(at % (uint64_t)t->ne[0]));
}

static int32_t fail_value(const struct bpi_quantize_row *row, uint64_t at, float v,
                          struct bp_error *err)
{
    const struct bpi_gguf_tensor *t = row->src;
    const struct bpi_block_info *to = bpi_block_info(row->to);
    char where[PLACE_BYTES];
    place(t, at, where);
    if (isnan(v) || isinf(v))
        return bpi_fail(
            err, BP_E_NUMERIC, DOMAIN, t->name,
            "tensor '%s' holds %s at %s; a model with broken weights cannot be quantized", t->name,
            isnan(v) ? "NaN" : "an infinity", where);
    return bpi_fail(
        err, BP_E_NUMERIC, DOMAIN, t->name,
        "tensor '%s' holds %g at %s, and %s ends at %g; ask for a type with a wider range", t->name,
        (double)v, where, to->name, (double)to->max_abs);
}

/* Reads the bad piece again and names its first bad value. */
static int32_t explain_bad(struct writing *w, const struct bpi_quantize_row *row, uint64_t piece,
                           struct bp_error *err)
{
    const struct bpi_gguf_tensor *t = row->src;
    const uint64_t n = piece_values(t, piece);
    unsigned char raw[PIECE_BYTES_MAX];
    float values[PIECE];
    uint64_t bad = 0;
    BP_TRY(bpi_gguf_input_read(&w->input, t->offset + bytes_of(t->type, piece * PIECE), raw,
                               bytes_of(t->type, n), err));
    if (row->to == t->type) {
        const char *why = bpi_block_validate(t->type, raw, bytes_of(t->type, n), &bad);
        uint64_t at = piece * PIECE + bad * bpi_block_info(t->type)->block_elems;
        char where[PLACE_BYTES];
        place(t, at, where);
        return bpi_fail(
            err, BP_E_NUMERIC, DOMAIN, t->name,
            "tensor '%s' is broken at %s: %s; a model with broken weights cannot be quantized",
            t->name, where, why != NULL ? why : "it changed");
    }
    float max = bpi_block_info(row->to)->max_abs;
    BP_TRY(bpi_block_decode(t->type, raw, n, values));
    for (uint64_t i = 0; i < n; ++i)
        if (!(fabsf(values[i]) <= max)) return fail_value(row, piece * PIECE + i, values[i], err);
    return bpi_fail(err, BP_E_IO, DOMAIN, t->name,
                    "tensor '%s' changed while it was being read; leave the source alone and start "
                    "again",
                    t->name);
}

static int32_t outcome(struct writing *w, struct bp_error *err)
{
    const struct bp_error *e = NULL;
    if (w->write_err.code != BP_OK) e = &w->write_err;
    if (e == NULL && atomic_load(&w->io_failed)) e = &w->io_err;
    if (e != NULL) {
        if (err != NULL && err->code == BP_OK) *err = *e;
        return e->code;
    }
    uint64_t bad = atomic_load(&w->bad);
    return bad == UINT64_MAX ? BP_OK : explain_bad(w, w->now.row, bad, err);
}

/* ---- chunks ---- */

/* Runs one job: converts w->now, writes w->before. */
static int32_t run_job(struct writing *w, struct bp_error *err)
{
    atomic_store(&w->bad, UINT64_MAX);
    bpi_pool_run(w->job->pool, w->now.n + 1, 1, work, w);
    BP_TRY(outcome(w, err));
    w->before = w->now;
    w->now = (struct chunk){0};
    return BP_OK;
}

static int32_t tell_progress(struct writing *w, const char *path, const char *name,
                             struct bp_error *err)
{
    double all = (double)w->total_bytes;
    double fraction = all > 0 ? (double)w->done_bytes / all : 1.0;
    if (w->job->progress == NULL || w->job->progress(w->job->progress_ctx, fraction, name) == 0)
        return BP_OK;
    return bpi_fail(err, BP_E_ABORTED, DOMAIN, path, "stopped on request; nothing was written");
}

static int32_t write_tensor(struct writing *w, const struct bpi_quantize_row *row, const char *path,
                            struct bp_error *err)
{
    const struct bpi_gguf_tensor *t = row->src;
    const uint64_t n = pieces_of(t), step = pieces_per_chunk(row->to);
    if (n > 0) BP_TRY(bpi_gguf_input_open(&w->input, w->plan->g, t->shard, err));
    for (uint64_t at = 0; at < n; at += step) {
        struct chunk *c = &w->now;
        BP_TRY(tell_progress(w, path, t->name, err));
        *c = (struct chunk){.row = row, .first = at, .n = n - at < step ? n - at : step};
        c->bytes = w->before.bytes == w->buffer[0] ? w->buffer[1] : w->buffer[0];
        uint64_t end = (at + c->n) * PIECE < n_values(t) ? (at + c->n) * PIECE : n_values(t);
        c->n_bytes = bytes_of(row->to, end - at * PIECE);
        if (at + c->n < n)
            bpi_gguf_want(w->plan->g, t, bytes_of(t->type, (at + c->n) * PIECE),
                          bytes_of(t->type, step * PIECE));
        BP_TRY(run_job(w, err));
        w->done_bytes += bytes_of(t->type, end - at * PIECE);
    }
    return BP_OK;
}

static uint64_t largest_chunk(const struct bpi_quantize_plan *p)
{
    uint64_t most = 1;
    for (uint64_t i = 0; i < p->n_rows; ++i) {
        const struct bpi_quantize_row *r = &p->rows[i];
        uint64_t n = pieces_of(r->src), step = pieces_per_chunk(r->to);
        uint64_t bytes = (n < step ? n : step) * bytes_of(r->to, PIECE);
        if (bytes > most) most = bytes;
    }
    return most;
}

static int32_t write_tensors(struct writing *w, const char *path, struct bp_error *err)
{
    const struct bpi_quantize_plan *p = w->plan;
    for (uint64_t i = 0; i < p->n_rows; ++i) BP_TRY(write_tensor(w, &p->rows[i], path, err));
    return run_job(w, err); /* the last chunk has nobody behind it */
}

/* ---- the file ---- */

/* The rename at the end would replace what the source is read from. */
static int32_t check_path(const struct bpi_quantize_plan *p, const char *path, bool no_replace,
                          struct bp_error *err)
{
    struct stat out, in;
    if (path[0] == '\0')
        return bpi_fail(err, BP_E_ARG, DOMAIN, "OUT", "the name of the file to write is empty");
    if (lstat(path, &out) != 0) return BP_OK; /* new, or a reason that opening will tell */
    bool is_link = S_ISLNK(out.st_mode);
    if (stat(path, &out) == 0) {
        for (uint32_t i = 0; i < bpi_gguf_shards(p->g); ++i) {
            const char *source = bpi_gguf_shard_path(p->g, i);
            if (stat(source, &in) == 0 && in.st_dev == out.st_dev && in.st_ino == out.st_ino)
                return bpi_fail(err, BP_E_ARG, DOMAIN, path,
                                "this is the file that is to be read; give the output a name of "
                                "its own");
        }
    }
    if (is_link)
        return bpi_fail(err, BP_E_ARG, DOMAIN, path,
                        "this is a symbolic link, which would be replaced by a file; name the file "
                        "itself");
    if (no_replace)
        return bpi_fail(err, BP_E_ARG, DOMAIN, path,
                        "this file exists already and was not to be replaced");
    return BP_OK;
}

int32_t bpi_quantize_write(const struct bpi_quantize_plan *p, const char *path,
                           const struct bpi_quantize_job *job, struct bp_error *err)
{
    struct writing w = {.plan = p, .job = job, .io_err = BP_ERROR_INIT, .write_err = BP_ERROR_INIT};
    const uint64_t n_bytes = largest_chunk(p);
    int32_t rc;
    BP_TRY(check_path(p, path, job->no_replace, err));
    for (uint64_t i = 0; i < p->n_rows; ++i) w.total_bytes += p->rows[i].src->n_bytes;
    atomic_init(&w.stop, false);
    atomic_init(&w.io_failed, false);
    atomic_init(&w.bad, UINT64_MAX);
    for (int i = 0; i < 2; ++i) {
        w.buffer[i] = bpi_alloc(n_bytes);
        if (w.buffer[i] != NULL) continue;
        rc = bpi_fail_nomem(err, DOMAIN, n_bytes);
        goto done;
    }
    BP_TRY_GOTO(rc, bpi_gguf_writer_begin(p->writer, path, err), done);
    BP_TRY_GOTO(rc, write_tensors(&w, path, err), done);
    rc = bpi_gguf_writer_finish(p->writer, err);
done:
    bpi_gguf_writer_abandon(p->writer);
    bpi_gguf_input_close(&w.input);
    bpi_free(w.buffer[0]);
    bpi_free(w.buffer[1]);
    return rc;
}
