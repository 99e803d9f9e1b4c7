/* bench_priv.h - shared by the files of tools/bench only. SPDX-License-Identifier: MIT */
#ifndef BENCH_PRIV_H
#define BENCH_PRIV_H

#include <stdio.h>

#include "bench.h"

/* One sentence; returns code. */
int32_t bench_fail(struct bp_error *err, int32_t code, const char *where, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Notes a block that bench_free_to gives back. */
int32_t bench_keep(struct bench *b, void *p, uint32_t mem, uint64_t n, struct bp_error *err);

/* How many copies of something of n bytes exceed the last cache threefold, so that its next turn finds nothing there. */
uint32_t bench_turns(const struct bench *b, uint64_t n);

/* Normal numbers of this size as blocks of `type`. */
int32_t bench_fill_blocks(uint64_t *seed, uint32_t type, double size, unsigned char *dst, uint64_t n_bytes,
                          struct bp_error *err);
/* Some MiB of them in an unlinked file, whole blocks and whole pages, to be mapped often. */
struct bench_pattern {
    FILE *file;
    uint64_t n;
    uint32_t type;
};
int32_t bench_pattern_make(struct bench_pattern *p, uint64_t *seed, uint32_t type, double size, struct bp_error *err);
void bench_pattern_free(struct bench_pattern *p); /* what is mapped stays */
int32_t bench_pattern_map(const struct bench_pattern *p, unsigned char *at, uint64_t n, struct bp_error *err);
/* Address space, without memory; NULL: none. */
void *bench_reserve(uint64_t n);

#endif
