/* pool.h - a fixed set of worker threads that split index ranges.
 * Not here: task graphs, priorities. One caller at a time; the caller works too.
 * SPDX-License-Identifier: MIT */
#ifndef BPI_POOL_H
#define BPI_POOL_H

#include <stdint.h>
#include "backplane/types.h"

struct bpi_pool;

/* n_threads >= 1 counts the caller. 1 creates no thread. Errors: BP_E_NOMEM, BP_E_IO (thread creation). */
int32_t bpi_pool_create(uint32_t n_threads, struct bpi_pool **out, struct bp_error *err);
void bpi_pool_destroy(struct bpi_pool *p); /* accepts NULL */
uint32_t bpi_pool_threads(const struct bpi_pool *p); /* 1 for NULL */
/* Usable cores of this process (affinity mask), at least 1. */
uint32_t bpi_pool_cores(void);

/* Calls fn(arg, begin, end) on disjoint ranges that cover [0, n), each at most `grain` items (grain 0 = n/threads/4,
 * at least 1), and returns when all are done. NULL pool: one call on the caller. fn must not call bpi_pool_run on the
 * same pool. Which thread runs which range is unspecified: results must not depend on it. */
void bpi_pool_run(struct bpi_pool *p, uint64_t n, uint64_t grain, void (*fn)(void *arg, uint64_t begin, uint64_t end),
                  void *arg);

#endif
