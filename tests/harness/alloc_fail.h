/* alloc_fail.h - make the n-th allocation of a stretch of code fail.
 * How: a test named test_<topic>_nomem.c is linked with this and with -Wl,--wrap for malloc, calloc, realloc and
 * posix_memalign (tests/CMakeLists.txt), so every call of those in the program's own objects and static libraries
 * passes here. Not here: allocations inside shared libraries.
 * Use:  for (n = 1;; ++n) { alloc_fail_arm(n, false); rc = work(); if (!alloc_fail_disarm()) break; check rc; }
 * Threads: counting is atomic, so pools may allocate too; arm and disarm from one thread.
 * SPDX-License-Identifier: MIT */
#ifndef BP_TEST_ALLOC_FAIL_H
#define BP_TEST_ALLOC_FAIL_H

#include <stdbool.h>
#include <stdint.h>

/* From now on the nth allocation (1 = the next one) fails; `onward` makes all later ones fail too. */
void alloc_fail_arm(uint64_t nth, bool onward);
/* Back to normal. Did an allocation fail since arm? */
bool alloc_fail_disarm(void);
/* Allocations seen since the last arm. */
uint64_t alloc_fail_count(void);

#endif
