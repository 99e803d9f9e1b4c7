/* gguf_hash.c - makes a manifest: XXH3-128 of every shard's header and of every tensor's bytes.
 * Padding between tensors is covered by no hash: it means nothing. Not here: the text form (gguf_manifest.c).
 * Threads: tensors in parallel, each by one thread. SPDX-License-Identifier: MIT */
#include "gguf/gguf_manifest.h"
#include "gguf/gguf_priv.h"
#include "gguf/gguf_stream.h"

#include <string.h>
#include <xxhash.h>

struct hashing {
    const struct bpi_gguf *g;
    struct bpi_manifest *m;
    XXH3_state_t **states; /* (threads) */
    uint32_t n_states;
};

static int32_t fail_state(struct bp_error *err)
{
    return bpi_fail_nomem(err, BPI_GGUF_DOMAIN, 576);
}

/* The order of digits that xxhsum prints. */
static void put_hash(const XXH3_state_t *state, char out[33])
{
    static const char digits[] = "0123456789abcdef";
    XXH128_canonical_t c;
    XXH128_canonicalFromHash(&c, XXH3_128bits_digest(state));
    for (size_t i = 0; i < 16; ++i) {
        out[2 * i] = digits[c.digest[i] >> 4];
        out[2 * i + 1] = digits[c.digest[i] & 15];
    }
    out[32] = '\0';
}

static int32_t hash_piece(void *ctx, uint32_t worker, uint64_t tensor, uint64_t at,
                          const void *bytes, size_t n, struct bp_error *err)
{
    struct hashing *h = ctx;
    XXH3_state_t *state = h->states[worker];
    const struct bpi_gguf_tensor *t = &h->g->tensors[tensor];
    if (at == 0 && XXH3_128bits_reset(state) != XXH_OK) return fail_state(err);
    if (n > 0 && XXH3_128bits_update(state, bytes, n) != XXH_OK) return fail_state(err);
    if (at + n == t->n_bytes) put_hash(state, h->m->entries[h->m->n_shards + tensor].hash);
    return BP_OK;
}

/* Magic to the beginning of the data: metadata, tensor records, padding. */
static int32_t hash_header(const struct hashing *h, uint32_t shard, struct bp_error *err)
{
    enum { PIECE = 1 << 16 };
    struct bpi_manifest_entry *e = &h->m->entries[shard];
    struct bpi_gguf_input in = {0};
    XXH3_state_t *state = h->states[0];
    unsigned char *buffer = bpi_alloc(PIECE);
    if (buffer == NULL) return bpi_fail_nomem(err, BPI_GGUF_DOMAIN, PIECE);
    int32_t rc = bpi_gguf_input_open(&in, h->g, shard, err);
    if (rc == BP_OK && XXH3_128bits_reset(state) != XXH_OK) rc = fail_state(err);
    for (uint64_t at = 0; rc == BP_OK && at < e->n_bytes;) {
        size_t n = e->n_bytes - at < PIECE ? (size_t)(e->n_bytes - at) : PIECE;
        rc = bpi_gguf_input_read(&in, at, buffer, n, err);
        if (rc == BP_OK && XXH3_128bits_update(state, buffer, n) != XXH_OK) rc = fail_state(err);
        at += n;
    }
    bpi_gguf_input_close(&in);
    bpi_free(buffer);
    if (rc == BP_OK) put_hash(state, e->hash);
    return rc;
}

/* Names, types and sizes of all lines; the hashes follow. */
static int32_t list_entries(const struct bpi_gguf *g, struct bpi_manifest *m, struct bp_error *err)
{
    m->n_shards = g->n_parts;
    m->n_tensors = g->n_tensors;
    m->file = bpi_arena_strndup(&m->arena, bpi_gguf_base_name(g->parts[0].path),
                                strlen(bpi_gguf_base_name(g->parts[0].path)));
    m->entries = bpi_arena_alloc(&m->arena, m->n_shards + m->n_tensors, sizeof *m->entries, 8);
    if (m->file == NULL || m->entries == NULL) goto fail;
    for (uint32_t i = 0; i < g->n_parts; ++i) {
        const struct bpi_gguf_part *part = &g->parts[i];
        const char *name = bpi_gguf_base_name(part->path);
        struct bpi_manifest_entry *e = &m->entries[i];
        *e = (struct bpi_manifest_entry){.type = "header", .shard = i};
        e->n_bytes = part->data_start < part->n_bytes ? part->data_start : part->n_bytes;
        e->name = bpi_arena_strndup(&m->arena, name, strlen(name));
        if (e->name == NULL) goto fail;
        m->n_bytes += part->n_bytes;
    }
    for (uint64_t i = 0; i < g->n_tensors; ++i) {
        const struct bpi_gguf_tensor *t = &g->tensors[i];
        struct bpi_manifest_entry *e = &m->entries[m->n_shards + i];
        *e = (struct bpi_manifest_entry){.shard = t->shard, .n_bytes = t->n_bytes};
        const char *type = bpi_gguf_type_name(t->type);
        size_t n = type != NULL ? strlen(type) : 0;
        if (n > 0 && n < sizeof e->type) memcpy(e->type, type, n + 1);
        e->name = bpi_arena_strndup(&m->arena, t->name, strlen(t->name));
        if (e->name == NULL) goto fail;
    }
    uint64_t first, second; /* the file's own names are unique */
    if (bpi_gguf_index_build(&m->tensors, m->entries + m->n_shards, m->n_tensors,
                             bpi_manifest_entry_name, &first, &second) == BP_OK)
        return BP_OK;
fail:
    return bpi_fail_nomem(err, BPI_GGUF_DOMAIN, (m->n_shards + m->n_tensors) * sizeof *m->entries);
}

static int32_t make_states(struct hashing *h, struct bp_error *err)
{
    h->states = bpi_calloc(h->n_states, sizeof(XXH3_state_t *));
    if (h->states == NULL)
        return bpi_fail_nomem(err, BPI_GGUF_DOMAIN, h->n_states * sizeof(void *));
    for (uint32_t i = 0; i < h->n_states; ++i) {
        h->states[i] = XXH3_createState();
        if (h->states[i] == NULL) return fail_state(err);
    }
    return BP_OK;
}

int32_t bpi_manifest_make(const struct bpi_gguf *g, struct bpi_pool *pool,
                          int32_t (*progress)(void *ctx, double fraction, const char *what),
                          void *progress_ctx, struct bpi_manifest **out, struct bp_error *err)
{
    int32_t rc;
    struct hashing h = {.g = g, .n_states = bpi_pool_threads(pool)};
    struct bpi_gguf_stream stream = {
        .ctx = &h, .piece = hash_piece, .progress = progress, .progress_ctx = progress_ctx};
    *out = NULL;
    h.m = bpi_calloc(1, sizeof *h.m);
    if (h.m == NULL) return bpi_fail_nomem(err, BPI_GGUF_DOMAIN, sizeof *h.m);
    BP_TRY_GOTO(rc, list_entries(g, h.m, err), fail);
    BP_TRY_GOTO(rc, make_states(&h, err), fail);
    for (uint32_t i = 0; i < g->n_parts; ++i) BP_TRY_GOTO(rc, hash_header(&h, i, err), fail);
    BP_TRY_GOTO(rc, bpi_gguf_stream(g, pool, &stream, err), fail);
    *out = h.m;
    h.m = NULL;
fail:
    for (uint32_t i = 0; h.states != NULL && i < h.n_states; ++i) XXH3_freeState(h.states[i]);
    bpi_free(h.states);
    bpi_manifest_destroy(h.m);
    return rc;
}
