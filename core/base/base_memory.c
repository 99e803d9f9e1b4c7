/* base_memory.c - allocation and arenas: the only file of core that calls malloc and free.
 * Not here: device memory, memory budgets. Threads: allocation any; an arena belongs to one thread at a time.
 * SPDX-License-Identifier: MIT */
#include "base/base.h"

#include <stdlib.h>
#include <string.h>

void *bpi_alloc(size_t n_bytes)
{
    return malloc(n_bytes > 0 ? n_bytes : 1);
}

void *bpi_calloc(size_t n, size_t elem_bytes)
{
    uint64_t bytes;
    if (!bpi_mul_u64(n, elem_bytes, &bytes)) return NULL;
    return calloc(1, bytes > 0 ? bytes : 1);
}

void *bpi_realloc(void *p, size_t n, size_t elem_bytes)
{
    uint64_t bytes;
    if (!bpi_mul_u64(n, elem_bytes, &bytes)) return NULL;
    return realloc(p, bytes > 0 ? bytes : 1);
}

void *bpi_alloc_aligned(size_t n_bytes, size_t align)
{
    void *p = NULL;
    if (posix_memalign(&p, align, n_bytes > 0 ? n_bytes : 1) != 0) return NULL;
    return p;
}

char *bpi_strdup(const char *s)
{
    return bpi_strndup(s, strlen(s));
}

char *bpi_strndup(const char *s, size_t n)
{
    uint64_t bytes;
    if (!bpi_add_u64(n, 1, &bytes)) return NULL;
    char *copy = bpi_alloc(bytes);
    if (copy == NULL) return NULL;
    if (n > 0) memcpy(copy, s, n);
    copy[n] = '\0';
    return copy;
}

void bpi_free(void *p)
{
    free(p);
}

/* ---- arena: a list of chunks; only the head is filled further ---- */

struct bpi_arena_chunk {
    struct bpi_arena_chunk *next;
    size_t used, cap; /* bytes of data[] */
    max_align_t data[];
};

enum { ARENA_DEFAULT_CHUNK = 64 * 1024 };

/* Offset in the chunk's data at which the next object of that alignment starts. */
static bool chunk_offset(const struct bpi_arena_chunk *c, size_t align, uint64_t *out)
{
    uint64_t base = (uint64_t)(uintptr_t)c->data, at;
    if (!bpi_align_up_u64(base + c->used, align, &at)) return false;
    *out = at - base;
    return true;
}

static struct bpi_arena_chunk *chunk_new(size_t cap)
{
    uint64_t total;
    if (!bpi_add_u64(cap, sizeof(struct bpi_arena_chunk), &total)) return NULL;
    struct bpi_arena_chunk *c = bpi_calloc(1, total);
    if (c != NULL) c->cap = cap;
    return c;
}

void *bpi_arena_alloc(struct bpi_arena *a, size_t n, size_t elem_bytes, size_t align)
{
    uint64_t bytes, need, at, end;
    if (align == 0 || (align & (align - 1)) != 0) return NULL;
    if (!bpi_mul_u64(n, elem_bytes, &bytes)) return NULL;
    if (bytes == 0) bytes = 1; /* unique pointers, as bpi_alloc gives */
    struct bpi_arena_chunk *c = a->head;
    bool fits =
        c != NULL && chunk_offset(c, align, &at) && bpi_add_u64(at, bytes, &end) && end <= c->cap;
    if (!fits) {
        size_t chunk_bytes = a->chunk_bytes > 0 ? a->chunk_bytes : ARENA_DEFAULT_CHUNK;
        if (!bpi_add_u64(bytes, align, &need)) return NULL;
        c = chunk_new(need > chunk_bytes ? need : chunk_bytes);
        if (c == NULL) return NULL;
        if (!chunk_offset(c, align, &at)) {
            bpi_free(c);
            return NULL;
        }
        end = at + bytes;
        /* A large object gets its own chunk behind the head, so that the head's free space is not lost. */
        if (a->head != NULL && need > chunk_bytes) {
            c->next = a->head->next;
            a->head->next = c;
        } else {
            c->next = a->head;
            a->head = c;
        }
    }
    c->used = end;
    a->used_bytes += bytes;
    return (unsigned char *)c->data + at;
}

char *bpi_arena_strndup(struct bpi_arena *a, const char *s, size_t n)
{
    uint64_t bytes;
    if (!bpi_add_u64(n, 1, &bytes)) return NULL;
    char *copy = bpi_arena_alloc(a, bytes, 1, 1);
    if (copy == NULL) return NULL;
    if (n > 0) memcpy(copy, s, n);
    return copy;
}

void bpi_arena_free(struct bpi_arena *a)
{
    struct bpi_arena_chunk *c = a->head;
    while (c != NULL) {
        struct bpi_arena_chunk *next = c->next;
        bpi_free(c);
        c = next;
    }
    a->head = NULL;
    a->used_bytes = 0;
}
