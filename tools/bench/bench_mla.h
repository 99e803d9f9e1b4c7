/* bench_mla.h - a paged cache and the metadata of a step of decoding, for the files that measure mla.*.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_MLA_H
#define BENCH_MLA_H

#include "bench_priv.h"

enum { BENCH_BLOCK_TOK = 64, BENCH_C = 512, BENCH_R = 64, BENCH_P = 128, BENCH_V = 128 };

struct bench_mla_case {
    uint32_t heads, rows, kv; /* kv: keys of each row */
    uint32_t top_k;           /* decode: 0 = all keys */
};
struct bench_cache {
    struct bp_mla_meta meta;
    struct bp_mla_decode_meta rows;
    struct bp_tensor pool;
    uint64_t token_bytes;
};

const char *bench_dtype_name(uint32_t dtype);
struct bp_mla_problem bench_mla_problem(const struct bench *b, const struct bench_mla_case *c);
/* The plain latent layout that mla.common writes, noted in *p. */
int32_t bench_mla_latent(struct bench *b, struct bp_mla_problem *p, struct bp_kv_layout *out, struct bench_row *row,
                         struct bp_error *err);
/* Every row is a sequence of its own, with its blocks scattered. */
int32_t bench_mla_rows(struct bench *b, const struct bench_mla_case *c, struct bench_cache *k, struct bp_error *err);
int32_t bench_mla_pool(struct bench *b, const struct bench_mla_case *c, const struct bp_kv_layout *l, struct bench_cache *k,
                       struct bp_error *err);

#endif
