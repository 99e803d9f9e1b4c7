/* gguf_layout.c - where the tensors of one file lie: all of each inside the file, none over another.
 * Not here: sizes and alignment of a single record (gguf_parse.c). Any order and any gaps are accepted, as the text of
 * the format allows; time is linear for files in order, n log n otherwise. Threads: one file, one caller.
 * SPDX-License-Identifier: MIT */
#include "gguf/gguf_priv.h"

#include <stdlib.h>

struct extent {
    uint64_t begin, end; /* in the file */
    uint64_t tensor;
};

/* The first tensor in file order that reaches beyond the end is named; the furthest one says how much is missing. */
static int32_t fail_cut(const struct bpi_gguf *g, const struct bpi_gguf_part *part, uint64_t end,
                        struct bp_error *err)
{
    const struct bpi_gguf_tensor *first = NULL;
    uint64_t n_beyond = 0;
    for (uint64_t i = 0; i < part->n_tensors; ++i) {
        const struct bpi_gguf_tensor *t = &g->tensors[part->first_tensor + i];
        if (t->n_bytes == 0 || t->offset + t->n_bytes <= part->n_bytes) continue;
        if (first == NULL) first = t;
        ++n_beyond;
    }
    if (first == NULL) return BP_E_INTERNAL;
    return bpi_fail(
        err, BP_E_FORMAT, BPI_GGUF_DOMAIN, part->where,
        "incomplete download: the file has %llu bytes and %llu are missing; tensor '%s' "
        "(bytes %llu to %llu) is the first of %llu that lie beyond the end; fetch the file "
        "again",
        (unsigned long long)part->n_bytes, (unsigned long long)(end - part->n_bytes), first->name,
        (unsigned long long)first->offset, (unsigned long long)(first->offset + first->n_bytes),
        (unsigned long long)n_beyond);
}

static int compare_extents(const void *a, const void *b)
{
    const struct extent *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->tensor < y->tensor ? -1 : x->tensor > y->tensor;
}

static int32_t fail_overlap(const struct bpi_gguf *g, const struct bpi_gguf_part *part,
                            const struct extent *a, const struct extent *b, struct bp_error *err)
{
    return bpi_fail(
        err, BP_E_FORMAT, BPI_GGUF_DOMAIN, part->where,
        "tensors '%s' (bytes %llu to %llu) and '%s' (bytes %llu to %llu) overlap; the file "
        "is damaged and must be made again",
        g->tensors[a->tensor].name, (unsigned long long)a->begin, (unsigned long long)a->end,
        g->tensors[b->tensor].name, (unsigned long long)b->begin, (unsigned long long)b->end);
}

static int32_t check_sorted(const struct bpi_gguf *g, const struct bpi_gguf_part *part,
                            struct bp_error *err)
{
    uint64_t n = 0;
    int32_t rc = BP_OK;
    struct extent *e = bpi_calloc(part->n_tensors, sizeof *e);
    if (e == NULL) return bpi_fail_nomem(err, BPI_GGUF_DOMAIN, part->n_tensors * sizeof *e);
    for (uint64_t i = 0; i < part->n_tensors; ++i) {
        const struct bpi_gguf_tensor *t = &g->tensors[part->first_tensor + i];
        if (t->n_bytes == 0) continue;
        e[n++] = (struct extent){t->offset, t->offset + t->n_bytes, part->first_tensor + i};
    }
    qsort(e, n, sizeof *e, compare_extents);
    for (uint64_t i = 1; i < n && rc == BP_OK; ++i) {
        if (e[i].begin < e[i - 1].end) rc = fail_overlap(g, part, &e[i - 1], &e[i], err);
    }
    bpi_free(e);
    return rc;
}

int32_t bpi_gguf_place_tensors(struct bpi_gguf *g, struct bpi_gguf_part *part, uint64_t header_end,
                               struct bp_error *err)
{
    if (part->n_tensors == 0) {
        part->data_start = header_end;
        return BP_OK;
    }
    if (!bpi_align_up_u64(header_end, part->alignment, &part->data_start)) return BP_E_INTERNAL;
    uint64_t furthest = 0, previous = 0;
    bool in_order = true;
    for (uint64_t i = 0; i < part->n_tensors; ++i) {
        struct bpi_gguf_tensor *t = &g->tensors[part->first_tensor + i];
        uint64_t begin, end;
        if (!bpi_add_u64(part->data_start, t->offset, &begin) ||
            !bpi_add_u64(begin, t->n_bytes, &end))
            return bpi_fail(
                err, BP_E_FORMAT, BPI_GGUF_DOMAIN, part->where,
                "tensor '%s' has offset %llu and %llu bytes, which is beyond 64 bits; the "
                "file is damaged",
                t->name, (unsigned long long)t->offset, (unsigned long long)t->n_bytes);
        t->offset = begin;
        if (t->n_bytes == 0) continue; /* has no place that could be wrong, and data stays NULL */
        if (end > furthest) furthest = end;
        if (begin < previous) in_order = false;
        previous = end;
        if (end <= part->n_bytes) t->data = part->data + begin;
    }
    if (furthest > part->n_bytes) return fail_cut(g, part, furthest, err);
    return in_order ? BP_OK : check_sorted(g, part, err);
}
