/* gguf_shard.c - models in several files: finds the others of a first shard and checks that they belong together.
 * Not here: names that occur in two shards (gguf.c indexes all tensors at the end).
 * Facts: split.no counts from 0, the number in the file name from 1; the first shard has the model's metadata and may
 * have no tensor; split.tensors.count is the sum over all shards. Each shard has its own data section and alignment.
 * Source: ggml's gguf-split as described by its users' loaders, restated. SPDX-License-Identifier: MIT */
#include "gguf/gguf_priv.h"

#include <string.h>

/* "-00001-of-00003.gguf" */
enum { SUFFIX_BYTES = 20 };

struct split {
    uint64_t no, count, n_tensors;
    bool has_no, has_count, has_n_tensors;
};

static int32_t read_split(const struct bpi_gguf_part *part, struct split *s, struct bp_error *err)
{
    *s = (struct split){0};
    BP_TRY(bpi_gguf_part_u64(part, "split.no", UINT16_MAX, &s->no, &s->has_no, err));
    BP_TRY(bpi_gguf_part_u64(part, "split.count", UINT16_MAX, &s->count, &s->has_count, err));
    return bpi_gguf_part_u64(part, "split.tensors.count", INT32_MAX, &s->n_tensors,
                             &s->has_n_tensors, err);
}

/* Five digits, as a number. */
static bool five_digits(const char *p, uint32_t *out)
{
    *out = 0;
    for (int i = 0; i < 5; ++i) {
        if (p[i] < '0' || p[i] > '9') return false;
        *out = *out * 10 + (uint32_t)(p[i] - '0');
    }
    return true;
}

/* Splits "dir/x-00002-of-00003.gguf" into its prefix length and numbers. */
static bool split_path(const char *path, size_t *out_prefix, uint32_t *out_number,
                       uint32_t *out_count)
{
    size_t n = strlen(path);
    if (n < SUFFIX_BYTES) return false;
    const char *p = path + n - SUFFIX_BYTES;
    if (p[0] != '-' || memcmp(p + 6, "-of-", 4) != 0 || memcmp(p + 15, ".gguf", 5) != 0)
        return false;
    *out_prefix = n - SUFFIX_BYTES;
    return five_digits(p + 1, out_number) && five_digits(p + 10, out_count);
}

/* Path of shard `number` (from 1) beside the one at `path`; NULL without memory. Freed with bpi_buf_free. */
static const char *sibling(struct bpi_buf *b, const char *path, size_t prefix, uint32_t number,
                           uint64_t count)
{
    bpi_buf_append(b, path, prefix);
    bpi_buf_printf(b, "-%05u-of-%05u.gguf", number, (unsigned)count);
    return b->failed ? NULL : b->data;
}

static int32_t fail_not_first(const struct bpi_gguf_part *part, const struct split *s,
                              struct bp_error *err)
{
    size_t prefix;
    uint32_t number, count;
    struct bpi_buf b = {0};
    const char *first = NULL;
    if (split_path(part->path, &prefix, &number, &count))
        first = sibling(&b, part->path, prefix, 1, s->count);
    int32_t rc =
        bpi_fail(err, BP_E_ARG, BPI_GGUF_DOMAIN, part->where,
                 "this is shard %llu of %llu of a split model; open its first one instead: %s",
                 (unsigned long long)s->no + 1, (unsigned long long)s->count,
                 first != NULL ? bpi_gguf_base_name(first) : "the file whose split.no is 0");
    bpi_buf_free(&b);
    return rc;
}

/* What can be said about the first shard alone; *out_prefix is what the names of all shards begin with. */
static int32_t check_first(const struct bpi_gguf_part *part, const struct split *s,
                           size_t *out_prefix, struct bp_error *err)
{
    uint32_t number, count;
    if (!s->has_no || !s->has_n_tensors)
        return bpi_fail(err, BP_E_FORMAT, BPI_GGUF_DOMAIN, part->where,
                        "split.count is %llu, but %s is missing; the file must be split again",
                        (unsigned long long)s->count,
                        s->has_no ? "split.tensors.count" : "split.no");
    if (s->no >= s->count)
        return bpi_fail(
            err, BP_E_FORMAT, BPI_GGUF_DOMAIN, part->where,
            "split.no is %llu and split.count is %llu; numbers go from 0 to the count less 1",
            (unsigned long long)s->no, (unsigned long long)s->count);
    if (s->no != 0) return fail_not_first(part, s, err);
    if (s->count > BPI_GGUF_MAX_SHARDS)
        return bpi_fail(err, BP_E_LIMIT, BPI_GGUF_DOMAIN, part->where,
                        "the model has %llu shards; the limit is %d", (unsigned long long)s->count,
                        BPI_GGUF_MAX_SHARDS);
    if (!split_path(part->path, out_prefix, &number, &count))
        return bpi_fail(
            err, BP_E_FORMAT, BPI_GGUF_DOMAIN, part->where,
            "this is the first of %llu shards, so its name must end in -00001-of-%05u.gguf "
            "and the others must lie beside it; rename it",
            (unsigned long long)s->count, (unsigned)s->count);
    if (number != 1 || count != s->count)
        return bpi_fail(
            err, BP_E_FORMAT, BPI_GGUF_DOMAIN, part->where,
            "the name says shard %u of %u, but the file says shard 1 of %llu; rename it or "
            "fetch it again",
            number, count, (unsigned long long)s->count);
    return BP_OK;
}

/* A later shard must say the same as its name and as the first shard. */
static int32_t check_other(const struct bpi_gguf_part *part, const struct split *first,
                           struct bp_error *err)
{
    struct split s;
    BP_TRY(read_split(part, &s, err));
    if (!s.has_no || !s.has_count)
        return bpi_fail(
            err, BP_E_FORMAT, BPI_GGUF_DOMAIN, part->where,
            "this should be shard %u of %llu, but it has no %s: it is not part of a split "
            "model",
            part->number + 1, (unsigned long long)first->count,
            s.has_no ? "split.count" : "split.no");
    if (s.no != part->number)
        return bpi_fail(
            err, BP_E_FORMAT, BPI_GGUF_DOMAIN, part->where,
            "the name says shard %u, but the file says shard %llu (split.no %llu); files "
            "were swapped or renamed",
            part->number + 1, (unsigned long long)s.no + 1, (unsigned long long)s.no);
    if (s.count != first->count)
        return bpi_fail(err, BP_E_FORMAT, BPI_GGUF_DOMAIN, part->where,
                        "this shard belongs to a set of %llu, the first one to a set of %llu "
                        "(split.count); fetch all shards from one place",
                        (unsigned long long)s.count, (unsigned long long)first->count);
    if (s.has_n_tensors && s.n_tensors != first->n_tensors)
        return bpi_fail(
            err, BP_E_FORMAT, BPI_GGUF_DOMAIN, part->where,
            "this shard's set has %llu tensors, the first one's %llu (split.tensors.count); "
            "fetch all shards from one place",
            (unsigned long long)s.n_tensors, (unsigned long long)first->n_tensors);
    return BP_OK;
}

static int32_t open_other(struct bpi_gguf *g, size_t prefix, uint32_t i, const struct split *first,
                          struct bp_error *err)
{
    struct bpi_buf b = {0};
    struct bp_error inner = BP_ERROR_INIT;
    const char *path = sibling(&b, g->parts[0].path, prefix, i + 1, first->count);
    int32_t rc = path != NULL ? bpi_gguf_add_file(g, path, &inner)
                              : bpi_fail_nomem(&inner, BPI_GGUF_DOMAIN, prefix + SUFFIX_BYTES);
    if (rc == BP_E_IO) {
        rc = bpi_fail(
            err, BP_E_IO, BPI_GGUF_DOMAIN, g->parts[0].where,
            "shard %u of %llu is missing or unreadable: %s (%s); all shards must lie in one "
            "folder",
            i + 1, (unsigned long long)first->count, bpi_gguf_base_name(path), inner.msg);
        if (err != NULL && err->native == 0) err->native = inner.native;
    } else if (rc != BP_OK) {
        if (err != NULL && err->code == BP_OK) *err = inner;
    } else {
        rc = check_other(&g->parts[i], first, err);
    }
    bpi_buf_free(&b);
    return rc;
}

int32_t bpi_gguf_open_shards(struct bpi_gguf *g, struct bp_error *err)
{
    struct split first;
    size_t prefix = 0;
    BP_TRY(read_split(&g->parts[0], &first, err));
    if (first.count <= 1)
        return BP_OK; /* a merged model keeps the keys of its former first shard */
    BP_TRY(check_first(&g->parts[0], &first, &prefix, err));
    for (uint32_t i = 1; i < first.count; ++i) BP_TRY(open_other(g, prefix, i, &first, err));
    if (g->n_tensors != first.n_tensors)
        return bpi_fail(
            err, BP_E_FORMAT, BPI_GGUF_DOMAIN, g->parts[0].where,
            "the %llu shards hold %llu tensors together, but split.tensors.count says %llu; "
            "fetch all shards from one place",
            (unsigned long long)first.count, (unsigned long long)g->n_tensors,
            (unsigned long long)first.n_tensors);
    return BP_OK;
}
