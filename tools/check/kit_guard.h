/* kit_guard.h - memory that ends, or begins, at a page that cannot be touched; the rest of its pages holds canaries.
 * Reading or writing past it is a fault whose address says which block it was; what the canaries see is found later.
 * Threads: allocation is serialised; kit_guard_find may be called in a signal handler. SPDX-License-Identifier: MIT */
#ifndef KIT_GUARD_H
#define KIT_GUARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum kit_guard_side { KIT_AT_END = 0, KIT_AT_BEGIN = 1 };

/* n_bytes at a multiple of align (a power of two up to 4096), filled with `fill`. AT_END: the last byte that the alignment
 * allows lies right before the guard page. `name` is kept, not copied. Ends the process when there is no memory, unless
 * the size is absurd: then NULL. */
void *kit_guard_alloc(size_t n_bytes, size_t align, uint32_t side, uint8_t fill, const char *name, const void *owner);
/* NULL accepted; false: p is no block of kit_guard_alloc. */
bool kit_guard_free(void *p);
/* Frees all blocks of an owner, returns how many there were. */
uint32_t kit_guard_free_all(const void *owner);
/* Offset of the first changed canary of a block, relative to its first byte; false when all are whole. */
bool kit_guard_broken(const void *p, int64_t *offset);
/* The same for all blocks of an owner; names the block. */
bool kit_guard_any_broken(const void *owner, const char **name, size_t *n_bytes, int64_t *offset);
/* Makes a block unwritable, or writable again. */
void kit_guard_protect(void *p, bool writable);
bool kit_guard_is_locked(const void *p);

struct kit_guard_hit {
    const char *name;
    size_t n_bytes;
    int64_t offset; /* of the address, relative to the first byte */
};
bool kit_guard_find(const void *address, struct kit_guard_hit *out);

#endif
