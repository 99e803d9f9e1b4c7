/* gguf.c - opening, closing and looking up; the steps themselves are in gguf_parse.c, gguf_layout.c, gguf_shard.c.
 * Not here: values (gguf_value.c), writing (gguf_write.c). An open object owns its mappings and all that points
 * into them; it never changes after bpi_gguf_open. SPDX-License-Identifier: MIT */
#include "gguf/gguf.h"
#include "gguf/gguf_priv.h"

#include <string.h>

BP_STATIC_ASSERT((uint64_t)BPI_GGUF_MAX_TENSORS < INT32_MAX,
                 "the index numbers items with 32 bits");

static struct bpi_span tensor_name(const void *items, uint64_t i)
{
    const struct bpi_gguf_tensor *t = (const struct bpi_gguf_tensor *)items + i;
    return (struct bpi_span){t->name, strlen(t->name)};
}

static void part_free(struct bpi_gguf_part *part)
{
    bpi_gguf_index_free(&part->kv_index);
    bpi_free(part->kv);
    bpi_map_close(&part->map);
    bpi_free(part->copy);
    bpi_free(part->path);
}

void bpi_gguf_close(struct bpi_gguf *g)
{
    if (g == NULL) return;
    bpi_gguf_index_free(&g->tensor_index);
    bpi_free(g->tensors);
    for (uint32_t i = 0; i < g->n_parts; ++i) part_free(&g->parts[i]);
    bpi_free(g->parts);
    bpi_free(g);
}

const char *bpi_gguf_base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

/* A zeroed part at the end of the list, counted at once so that bpi_gguf_close frees whatever it gets to own. */
static struct bpi_gguf_part *part_new(struct bpi_gguf *g, const char *path)
{
    if (g->n_parts == g->cap_parts) {
        uint32_t cap = g->cap_parts == 0 ? 1 : 2 * g->cap_parts;
        struct bpi_gguf_part *parts = bpi_realloc(g->parts, cap, sizeof *parts);
        if (parts == NULL) return NULL;
        g->parts = parts;
        g->cap_parts = cap;
    }
    char *copy = bpi_strdup(path);
    if (copy == NULL) return NULL;
    struct bpi_gguf_part *part = &g->parts[g->n_parts];
    *part = (struct bpi_gguf_part){.path = copy, .number = g->n_parts};
    bpi_copy_end(part->where, sizeof part->where, part->path);
    ++g->n_parts;
    return part;
}

static int32_t read_part(struct bpi_gguf *g, struct bpi_gguf_part *part, struct bp_error *err)
{
    size_t n = 0;
    BP_TRY(bpi_file_read(part->path, SIZE_MAX - 1, &part->copy, &n, err));
    part->data = (const unsigned char *)part->copy;
    part->n_bytes = n;
    return bpi_gguf_parse_part(g, part, err);
}

int32_t bpi_gguf_add_file(struct bpi_gguf *g, const char *path, struct bp_error *err)
{
    struct bpi_gguf_part *part = part_new(g, path);
    if (part == NULL) return bpi_fail_nomem(err, BPI_GGUF_DOMAIN, sizeof *part + strlen(path));
    if (g->copies) return read_part(g, part, err);
    BP_TRY(bpi_map_open(path, &part->map, err));
    part->data = part->map.data;
    part->n_bytes = part->map.n_bytes;
    /* The kernel's own reading ahead would fetch megabytes of weights behind each header. */
    bpi_map_expect(&part->map, BPI_MAP_SCATTERED);
    int32_t rc = bpi_gguf_parse_part(g, part, err);
    bpi_map_expect(&part->map, BPI_MAP_WHOLE);
    return rc;
}

static int32_t index_tensors(struct bpi_gguf *g, struct bp_error *err)
{
    uint64_t first = 0, second = 0;
    int32_t rc = bpi_gguf_index_build(&g->tensor_index, g->tensors, g->n_tensors, tensor_name,
                                      &first, &second);
    if (rc == BP_E_NOMEM)
        return bpi_fail_nomem(err, BPI_GGUF_DOMAIN,
                              g->n_tensors * 2 * sizeof(struct bpi_gguf_slot));
    if (rc == BP_OK) return BP_OK;
    const struct bpi_gguf_tensor *a = &g->tensors[first], *b = &g->tensors[second];
    const struct bpi_gguf_part *part = &g->parts[b->shard];
    if (a->shard == b->shard)
        return bpi_fail(
            err, BP_E_FORMAT, BPI_GGUF_DOMAIN, part->where,
            "tensor '%s' is listed twice, as records %llu and %llu; which one counts is "
            "undefined, so the file must be made again",
            a->name, (unsigned long long)(first - part->first_tensor),
            (unsigned long long)(second - part->first_tensor));
    return bpi_fail(err, BP_E_FORMAT, BPI_GGUF_DOMAIN, part->where,
                    "tensor '%s' is in shard %u and again in shard %u; the shards are not of one "
                    "model, so fetch them all from one place",
                    a->name, a->shard + 1, b->shard + 1);
}

static int32_t open_files(const char *path, bool copies, struct bpi_gguf **out,
                          struct bp_error *err)
{
    int32_t rc;
    struct bpi_gguf *g = bpi_calloc(1, sizeof *g);
    if (g == NULL) return bpi_fail_nomem(err, BPI_GGUF_DOMAIN, sizeof *g);
    g->copies = copies;
    BP_TRY_GOTO(rc, bpi_gguf_add_file(g, path, err), fail);
    BP_TRY_GOTO(rc, bpi_gguf_open_shards(g, err), fail);
    BP_TRY_GOTO(rc, index_tensors(g, err), fail);
    *out = g;
    return BP_OK;
fail:
    bpi_gguf_close(g);
    return rc;
}

int32_t bpi_gguf_open(const char *path, struct bpi_gguf **out, struct bp_error *err)
{
    return open_files(path, false, out, err);
}

int32_t bpi_gguf_open_copy(const char *path, struct bpi_gguf **out, struct bp_error *err)
{
    struct bpi_gguf *headers = NULL;
    BP_TRY(open_files(path, false, &headers, err));
    bpi_gguf_close(headers);
    return open_files(path, true, out, err);
}

int32_t bpi_gguf_open_memory(const void *data, uint64_t n_bytes, const char *label,
                             struct bpi_gguf **out, struct bp_error *err)
{
    int32_t rc = BP_OK;
    uint64_t n_shards = 0;
    struct bpi_gguf *g = bpi_calloc(1, sizeof *g);
    if (g == NULL) return bpi_fail_nomem(err, BPI_GGUF_DOMAIN, sizeof *g);
    struct bpi_gguf_part *part = part_new(g, label != NULL ? label : "memory");
    if (part == NULL) {
        rc = bpi_fail_nomem(err, BPI_GGUF_DOMAIN, sizeof *part);
        goto fail;
    }
    part->data = data;
    part->n_bytes = n_bytes;
    BP_TRY_GOTO(rc, bpi_gguf_parse_part(g, part, err), fail);
    BP_TRY_GOTO(rc, bpi_gguf_part_u64(part, "split.count", UINT16_MAX, &n_shards, NULL, err), fail);
    if (n_shards > 1) {
        rc =
            bpi_fail(err, BP_E_UNSUPPORTED, BPI_GGUF_DOMAIN, part->where,
                     "this image is one of %llu shards; a split model is opened by the path of its "
                     "first file",
                     (unsigned long long)n_shards);
        goto fail;
    }
    BP_TRY_GOTO(rc, index_tensors(g, err), fail);
    *out = g;
    return BP_OK;
fail:
    bpi_gguf_close(g);
    return rc;
}

uint32_t bpi_gguf_version(const struct bpi_gguf *g)
{
    return g->parts[0].version;
}
uint32_t bpi_gguf_shards(const struct bpi_gguf *g)
{
    return g->n_parts;
}
const char *bpi_gguf_shard_path(const struct bpi_gguf *g, uint32_t shard)
{
    return shard < g->n_parts ? g->parts[shard].path : NULL;
}
uint64_t bpi_gguf_shard_bytes(const struct bpi_gguf *g, uint32_t shard)
{
    return shard < g->n_parts ? g->parts[shard].n_bytes : 0;
}
uint64_t bpi_gguf_alignment(const struct bpi_gguf *g, uint32_t shard)
{
    return shard < g->n_parts ? g->parts[shard].alignment : 0;
}

void bpi_gguf_expect(const struct bpi_gguf *g, uint32_t use)
{
    for (uint32_t i = 0; i < g->n_parts; ++i) bpi_map_expect(&g->parts[i].map, use);
}

void bpi_gguf_drop(const struct bpi_gguf *g, const void *data, uint64_t n_bytes)
{
    const uintptr_t at = (uintptr_t)data;
    for (uint32_t i = 0; i < g->n_parts; ++i) {
        const struct bpi_map *m = &g->parts[i].map;
        const uintptr_t base = (uintptr_t)m->data;
        if (m->data != NULL && at >= base && at - base < m->n_bytes)
            bpi_map_drop(m, at - base, n_bytes);
    }
}

int32_t bpi_gguf_check_files(const struct bpi_gguf *g, struct bp_error *err)
{
    for (uint32_t i = 0; i < g->n_parts; ++i)
        BP_TRY(bpi_map_check(&g->parts[i].map, g->parts[i].path, err));
    return BP_OK;
}

int32_t bpi_gguf_input_open(struct bpi_gguf_input *in, const struct bpi_gguf *g, uint32_t shard,
                            struct bp_error *err)
{
    const struct bpi_gguf_part *part = &g->parts[shard];
    if (in->is_open && in->shard == shard) return BP_OK;
    bpi_gguf_input_close(in);
    if (part->map.data == NULL)
        in->image = part->data;
    else
        BP_TRY(bpi_input_open(&part->map, part->path, &in->file, err));
    in->shard = shard;
    in->is_open = true;
    return BP_OK;
}

int32_t bpi_gguf_input_read(const struct bpi_gguf_input *in, uint64_t at, void *out, size_t n,
                            struct bp_error *err)
{
    if (in->image == NULL) return bpi_input_read(&in->file, at, out, n, err);
    if (n > 0) memcpy(out, in->image + at, n);
    return BP_OK;
}

void bpi_gguf_input_close(struct bpi_gguf_input *in)
{
    if (in->is_open && in->image == NULL) bpi_input_close(&in->file);
    *in = (struct bpi_gguf_input){0};
}

void bpi_gguf_want(const struct bpi_gguf *g, const struct bpi_gguf_tensor *t, uint64_t at,
                   uint64_t n)
{
    bpi_map_want(&g->parts[t->shard].map, t->offset + at, n);
}

uint64_t bpi_gguf_n_kv(const struct bpi_gguf *g)
{
    return g->parts[0].n_kv;
}
const struct bpi_gguf_kv *bpi_gguf_kv_at(const struct bpi_gguf *g, uint64_t i)
{
    return i < g->parts[0].n_kv ? &g->parts[0].kv[i] : NULL;
}
const struct bpi_gguf_kv *bpi_gguf_find(const struct bpi_gguf *g, const char *key)
{
    return bpi_gguf_part_find(&g->parts[0], key);
}

uint64_t bpi_gguf_n_tensors(const struct bpi_gguf *g)
{
    return g->n_tensors;
}
const struct bpi_gguf_tensor *bpi_gguf_tensor_at(const struct bpi_gguf *g, uint64_t i)
{
    return i < g->n_tensors ? &g->tensors[i] : NULL;
}
const struct bpi_gguf_tensor *bpi_gguf_tensor(const struct bpi_gguf *g, const char *name)
{
    uint64_t i;
    struct bpi_span span = {name, strlen(name)};
    return bpi_gguf_index_find(&g->tensor_index, span, &i) ? &g->tensors[i] : NULL;
}
