/* kit_guard.c - see kit_guard.h. A block is one mapping: guard page, data pages, guard page.
 * The list of blocks is the one piece of state of its process: a signal handler has nothing else to go by.
 * SPDX-License-Identifier: MIT */
#include "kit_guard.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CANARY = 0xa5, PAGE = 4096, MAX_BLOCKS = 16384 };

struct block {
    unsigned char *map, *p;
    size_t map_bytes, n_bytes;
    const char *name;
    const void *owner;
    bool locked;
};

static struct block blocks[MAX_BLOCKS];
static uint32_t n_blocks;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void *kit_guard_alloc(size_t n_bytes, size_t align, uint32_t side, uint8_t fill, const char *name,
                      const void *owner)
{
    if (n_bytes > (size_t)1 << 40 || align > PAGE) return NULL;
    const size_t body = (n_bytes + PAGE - 1) / PAGE * PAGE + (n_bytes == 0 ? PAGE : 0);
    unsigned char *map =
        mmap(NULL, body + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED || mprotect(map + PAGE, body, PROT_READ | PROT_WRITE) != 0) return NULL;
    size_t at = side == KIT_AT_BEGIN ? 0 : (body - n_bytes) & ~(align - 1);
    unsigned char *p = map + PAGE + at;
    memset(map + PAGE, CANARY, at);
    if (fill != 0) memset(p, fill, n_bytes);
    memset(p + n_bytes, CANARY, body - at - n_bytes);
    (void)pthread_mutex_lock(&lock);
    bool full = n_blocks == MAX_BLOCKS;
    if (!full)
        blocks[n_blocks++] = (struct block){map, p, body + 2 * PAGE, n_bytes, name, owner, false};
    (void)pthread_mutex_unlock(&lock);
    if (!full) return p;
    (void)munmap(map, body + 2 * PAGE);
    return NULL;
}

static struct block *find(const void *p)
{
    for (uint32_t i = n_blocks; i-- > 0;) {
        if (blocks[i].p == p) return &blocks[i];
    }
    return NULL;
}

static void drop(struct block *b)
{
    (void)munmap(b->map, b->map_bytes);
    *b = blocks[--n_blocks];
}

bool kit_guard_free(void *p)
{
    if (p == NULL) return true;
    (void)pthread_mutex_lock(&lock);
    struct block *b = find(p);
    if (b != NULL) drop(b);
    (void)pthread_mutex_unlock(&lock);
    return b != NULL;
}

uint32_t kit_guard_free_all(const void *owner)
{
    uint32_t n = 0;
    (void)pthread_mutex_lock(&lock);
    for (uint32_t i = n_blocks; i-- > 0;) {
        if (blocks[i].owner != owner) continue;
        drop(&blocks[i]);
        ++n;
    }
    (void)pthread_mutex_unlock(&lock);
    return n;
}

static bool broken(const struct block *b, int64_t *offset)
{
    const unsigned char *end = b->map + b->map_bytes - PAGE;
    for (const unsigned char *c = b->p + b->n_bytes; c < end; ++c) {
        if (*c == CANARY) continue;
        *offset = c - b->p;
        return true;
    }
    for (const unsigned char *c = b->p; c-- > b->map + PAGE;) {
        if (*c == CANARY) continue;
        *offset = c - b->p;
        return true;
    }
    return false;
}

bool kit_guard_broken(const void *p, int64_t *offset)
{
    const struct block *b = find(p);
    return b != NULL && broken(b, offset);
}

bool kit_guard_any_broken(const void *owner, const char **name, size_t *n_bytes, int64_t *offset)
{
    for (uint32_t i = 0; i < n_blocks; ++i) {
        if (blocks[i].owner != owner || !broken(&blocks[i], offset)) continue;
        *name = blocks[i].name;
        *n_bytes = blocks[i].n_bytes;
        return true;
    }
    return false;
}

void kit_guard_protect(void *p, bool writable)
{
    struct block *b = find(p);
    if (b == NULL) return;
    b->locked = !writable;
    (void)mprotect(b->map + PAGE, b->map_bytes - 2 * PAGE,
                   writable ? PROT_READ | PROT_WRITE : PROT_READ);
}

bool kit_guard_is_locked(const void *p)
{
    const struct block *b = find(p);
    return b != NULL && b->locked;
}

bool kit_guard_find(const void *address, struct kit_guard_hit *out)
{
    const unsigned char *a = address;
    for (uint32_t i = 0; i < n_blocks; ++i) {
        const struct block *b = &blocks[i];
        if (a < b->map || a >= b->map + b->map_bytes) continue;
        *out = (struct kit_guard_hit){b->name, b->n_bytes, a - b->p};
        return true;
    }
    return false;
}
