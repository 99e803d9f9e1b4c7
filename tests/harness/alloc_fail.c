/* alloc_fail.c - the wrappers that the linker's --wrap puts before the allocator. See alloc_fail.h.
 * Mutable file-scope state is what a wrapper needs; it is in test programs only. SPDX-License-Identifier: MIT */
#include "harness/alloc_fail.h"

#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
int __real_posix_memalign(void **out, size_t align, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
int __wrap_posix_memalign(void **out, size_t align, size_t n);

static _Atomic uint64_t fail_at; /* 0 = not armed */
static atomic_bool fail_onward, has_failed;
static _Atomic uint64_t seen;

void alloc_fail_arm(uint64_t nth, bool onward)
{
    atomic_store(&seen, 0);
    atomic_store(&has_failed, false);
    atomic_store(&fail_onward, onward);
    atomic_store(&fail_at, nth);
}

bool alloc_fail_disarm(void)
{
    atomic_store(&fail_at, 0);
    return atomic_load(&has_failed);
}

uint64_t alloc_fail_count(void)
{
    return atomic_load(&seen);
}

static bool must_fail(void)
{
    uint64_t at = atomic_load(&fail_at);
    if (at == 0) return false;
    uint64_t n = atomic_fetch_add(&seen, 1) + 1;
    if (n != at && !(n > at && atomic_load(&fail_onward))) return false;
    atomic_store(&has_failed, true);
    errno = ENOMEM;
    return true;
}

void *__wrap_malloc(size_t n)
{
    return must_fail() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return must_fail() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
    return must_fail() ? NULL : __real_realloc(p, n);
}

int __wrap_posix_memalign(void **out, size_t align, size_t n)
{
    return must_fail() ? ENOMEM : __real_posix_memalign(out, align, n);
}
