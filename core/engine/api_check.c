/* api_check.c - bp_file_hash, bp_manifest_*, bp_file_validate of tools.h: is a file what it was, and does it decode?
 * Not here: hashing and the text of manifests (core/gguf), what a bad block is (core/block).
 * Threads: a pool of its own for each call; callbacks only in the calling thread. SPDX-License-Identifier: MIT */
#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>
#include "base/pool.h"
#include "block/block.h"
#include "gguf/gguf_manifest.h"
#include "gguf/gguf_stream.h"

struct bp_manifest {
    struct bpi_manifest *m;
};

static int32_t make_pool(const struct bp_file *f, const struct bp_config *cfg,
                         struct bpi_pool **out, struct bp_error *err)
{
    int64_t threads = cfg != NULL ? bpi_config_int(cfg->c, "engine", "threads") : BPI_CONFIG_AUTO;
    uint64_t n = threads == BPI_CONFIG_AUTO ? bpi_pool_cores() : (uint64_t)threads;
    uint64_t n_tensors = bpi_gguf_n_tensors(f->g);
    if (n > n_tensors) n = n_tensors > 0 ? n_tensors : 1;
    return bpi_pool_create((uint32_t)n, out, err);
}

/* ---- manifests ---- */

static int32_t wrap(struct bpi_manifest *m, struct bp_manifest **out, struct bp_error *err)
{
    struct bp_manifest *w = bpi_calloc(1, sizeof *w);
    if (w == NULL) {
        bpi_manifest_destroy(m);
        return bpi_fail_nomem(err, "manifest", sizeof *w);
    }
    w->m = m;
    *out = w;
    return BP_OK;
}

int32_t bp_file_hash(const struct bp_file *f, const struct bp_config *cfg,
                     const struct bp_callbacks *cb, struct bp_manifest **out, struct bp_error *err)
{
    struct bpi_pool *pool = NULL;
    struct bpi_manifest *m = NULL;
    *out = NULL;
    BP_TRY(make_pool(f, cfg, &pool, err));
    int32_t rc = bpi_manifest_make(f->g, pool, cb != NULL ? cb->progress : NULL,
                                   cb != NULL ? cb->ctx : NULL, &m, err);
    bpi_pool_destroy(pool);
    return rc == BP_OK ? wrap(m, out, err) : rc;
}

int32_t bp_manifest_load(const char *path, struct bp_manifest **out, struct bp_error *err)
{
    char *text = NULL;
    size_t n = 0;
    struct bpi_manifest *m = NULL;
    *out = NULL;
    BP_TRY(bpi_file_read(path, BPI_MANIFEST_MAX_BYTES, &text, &n, err));
    int32_t rc = bpi_manifest_parse(text, n, path, &m, err);
    bpi_free(text);
    return rc == BP_OK ? wrap(m, out, err) : rc;
}

void bp_manifest_close(struct bp_manifest *m)
{
    if (m == NULL) return;
    bpi_manifest_destroy(m->m);
    bpi_free(m);
}

int32_t bp_manifest_text(const struct bp_manifest *m, char **out, size_t *out_n,
                         struct bp_error *err)
{
    struct bpi_buf b = {0};
    bpi_manifest_format(m->m, &b);
    if (b.failed) {
        bpi_buf_free(&b);
        return bpi_fail_nomem(err, "manifest", 0);
    }
    *out = b.data;
    *out_n = b.len;
    return BP_OK;
}

void bp_manifest_info(const struct bp_manifest *m, struct bp_manifest_info *out)
{
    out->file = bpi_manifest_file(m->m);
    out->n_bytes = bpi_manifest_bytes(m->m);
    out->n_shards = bpi_manifest_shards(m->m);
    out->n_tensors = bpi_manifest_tensors(m->m);
}

int32_t bp_manifest_line(const struct bp_manifest *m, uint64_t i, struct bp_manifest_line *out)
{
    struct bpi_manifest_line line;
    if (!bpi_manifest_line(m->m, i, &line)) return BP_DECLINED;
    out->hash = line.hash;
    out->type = line.type;
    out->shard = line.shard;
    out->name = line.name;
    out->n_bytes = line.n_bytes;
    return BP_OK;
}

struct listener {
    bp_difference_fn fn;
    void *ctx;
};

static void tell(void *ctx, uint32_t kind, const char *name, const char *shard, const char *text)
{
    BP_STATIC_ASSERT((int)BP_DIFFERENCE_HEADER == (int)BPI_DIFF_HEADER &&
                         (int)BP_DIFFERENCE_ADDITIONAL == (int)BPI_DIFF_ADDITIONAL,
                     "one numbering");
    const struct listener *l = ctx;
    struct bp_difference d = {.h = BP_HDR(struct bp_difference, text),
                              .kind = kind,
                              .name = name,
                              .shard = shard,
                              .text = text};
    l->fn(l->ctx, &d);
}

uint64_t bp_manifest_compare(const struct bp_manifest *want, const struct bp_manifest *have,
                             bp_difference_fn fn, void *ctx)
{
    struct listener l = {fn, ctx};
    return bpi_manifest_compare(want->m, have->m, tell, &l);
}

/* ---- validation ---- */

struct run {
    uint64_t tensor, block, n_blocks;
    const char *reason;
};

/* What one thread found. Its runs of one tensor stand together, because it reads a tensor as a whole. */
struct found {
    struct run *runs;
    size_t n, cap;
    struct run last; /* not in `runs` yet; n_blocks 0 = none */
    uint32_t n_kept; /* runs kept of the tensor of `last` */
    uint64_t n_bad_tensors, n_bad_blocks;
};

struct validation {
    const struct bp_file *f;
    uint32_t max_runs, n_found;
    struct found *found; /* (threads) */
};

static int32_t keep_last(struct found *k, uint32_t max_runs, struct bp_error *err)
{
    if (k->last.n_blocks == 0 || k->n_kept >= max_runs) return BP_OK;
    if (k->n == k->cap) {
        size_t cap = k->cap == 0 ? 16 : 2 * k->cap;
        struct run *runs = bpi_realloc(k->runs, cap, sizeof *runs);
        if (runs == NULL) return bpi_fail_nomem(err, "validate", cap * sizeof *runs);
        k->runs = runs;
        k->cap = cap;
    }
    k->runs[k->n++] = k->last;
    k->n_kept++;
    return BP_OK;
}

static int32_t note(struct found *k, uint32_t max_runs, uint64_t tensor, uint64_t block,
                    const char *reason, struct bp_error *err)
{
    struct run *last = &k->last;
    bool same_tensor = last->n_blocks > 0 && last->tensor == tensor;
    k->n_bad_blocks++;
    if (same_tensor && last->block + last->n_blocks == block && last->reason == reason) {
        last->n_blocks++;
        return BP_OK;
    }
    BP_TRY(keep_last(k, max_runs, err));
    if (!same_tensor) {
        k->n_bad_tensors++;
        k->n_kept = 0;
    }
    *last = (struct run){tensor, block, 1, reason};
    return BP_OK;
}

static int32_t look(void *ctx, uint32_t worker, uint64_t tensor, uint64_t at, const void *bytes,
                    size_t n, struct bp_error *err)
{
    const struct validation *v = ctx;
    const struct bpi_gguf_tensor *t = bpi_gguf_tensor_at(v->f->g, tensor);
    const struct bpi_block_info *info = bpi_block_info(t->type);
    if (info == NULL)
        return bpi_fail(err, BP_E_INTERNAL, "validate", t->name, "its type has no block format");
    for (size_t from = 0; from < n;) {
        uint64_t bad;
        const char *reason =
            bpi_block_validate(t->type, (const char *)bytes + from, n - from, &bad);
        if (reason == NULL) break;
        uint64_t block = (at + from) / info->block_bytes + bad;
        BP_TRY(note(&v->found[worker], v->max_runs, tensor, block, reason, err));
        from += (size_t)(bad + 1) * info->block_bytes;
    }
    return BP_OK;
}

static int compare_runs(const void *a, const void *b)
{
    const struct run *x = a, *y = b;
    if (x->tensor != y->tensor) return x->tensor < y->tensor ? -1 : 1;
    return x->block < y->block ? -1 : x->block > y->block;
}

/* All threads' runs into the first one's list, sorted. */
static int32_t gather(struct validation *v, struct bp_validation *out, struct bp_error *err)
{
    struct found *all = &v->found[0];
    size_t n = 0;
    for (uint32_t i = 0; i < v->n_found; ++i) {
        BP_TRY(keep_last(&v->found[i], v->max_runs, err));
        out->n_bad_tensors += v->found[i].n_bad_tensors;
        out->n_bad_blocks += v->found[i].n_bad_blocks;
        n += v->found[i].n;
    }
    struct run *runs = bpi_realloc(all->runs, n > 0 ? n : 1, sizeof *runs);
    if (runs == NULL) return bpi_fail_nomem(err, "validate", n * sizeof *runs);
    all->runs = runs;
    for (uint32_t i = 1; i < v->n_found; ++i) {
        if (v->found[i].n > 0)
            memcpy(runs + all->n, v->found[i].runs, v->found[i].n * sizeof *runs);
        all->n += v->found[i].n;
    }
    qsort(runs, all->n, sizeof *runs, compare_runs);
    return BP_OK;
}

static void tell_runs(const struct validation *v, bp_bad_blocks_fn fn, void *ctx)
{
    for (size_t i = 0; i < v->found[0].n; ++i) {
        const struct run *r = &v->found[0].runs[i];
        const struct bpi_gguf_tensor *t = bpi_gguf_tensor_at(v->f->g, r->tensor);
        struct bp_bad_blocks b = {.h = BP_HDR(struct bp_bad_blocks, n_blocks),
                                  .tensor = t->name,
                                  .type_name = bpi_block_info(t->type)->name,
                                  .shard = bpi_gguf_shard_path(v->f->g, t->shard),
                                  .reason = r->reason,
                                  .block = r->block,
                                  .n_blocks = r->n_blocks};
        fn(ctx, &b);
    }
}

static void count_blocks(const struct bp_file *f, struct bp_validation *out)
{
    out->n_tensors = bpi_gguf_n_tensors(f->g);
    out->n_bad_tensors = out->n_blocks = out->n_bad_blocks = out->n_bytes = 0;
    for (uint64_t i = 0; i < out->n_tensors; ++i) {
        const struct bpi_gguf_tensor *t = bpi_gguf_tensor_at(f->g, i);
        const struct bpi_block_info *info = bpi_block_info(t->type);
        out->n_bytes += t->n_bytes;
        if (info != NULL) out->n_blocks += t->n_bytes / info->block_bytes;
    }
}

int32_t bp_file_validate(const struct bp_file *f, const struct bp_config *cfg,
                         const struct bp_callbacks *cb, uint32_t max_runs, bp_bad_blocks_fn fn,
                         void *ctx, struct bp_validation *out, struct bp_error *err)
{
    struct bpi_pool *pool = NULL;
    struct validation v = {.f = f, .max_runs = max_runs};
    struct bpi_gguf_stream stream = {.ctx = &v,
                                     .piece = look,
                                     .progress = cb != NULL ? cb->progress : NULL,
                                     .progress_ctx = cb != NULL ? cb->ctx : NULL};
    int32_t rc;
    count_blocks(f, out);
    BP_TRY_GOTO(rc, make_pool(f, cfg, &pool, err), fail);
    v.found = bpi_calloc(bpi_pool_threads(pool), sizeof *v.found);
    if (v.found == NULL) {
        rc = bpi_fail_nomem(err, "validate", bpi_pool_threads(pool) * sizeof *v.found);
        goto fail;
    }
    v.n_found = bpi_pool_threads(pool);
    BP_TRY_GOTO(rc, bpi_gguf_stream(f->g, pool, &stream, err), fail);
    BP_TRY_GOTO(rc, gather(&v, out, err), fail);
    tell_runs(&v, fn, ctx);
fail:
    for (uint32_t i = 0; i < v.n_found; ++i) bpi_free(v.found[i].runs);
    bpi_free(v.found);
    bpi_pool_destroy(pool);
    return rc;
}
