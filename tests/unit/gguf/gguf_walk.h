/* gguf_walk.h - asks an open file for everything that its interface gives, and touches all the bytes it points to.
 * For tests and fuzzing: whatever opening let through must be safe to use. SPDX-License-Identifier: MIT */
#ifndef GGUF_WALK_H
#define GGUF_WALK_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "gguf/gguf.h"

static inline uint64_t walk_bytes(const void *p, uint64_t n)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < n; ++i) sum = sum * 31 + ((const unsigned char *)p)[i];
    return sum;
}

static inline uint64_t walk_key(const struct bpi_gguf *g, const struct bpi_gguf_kv *kv)
{
    uint64_t sum = walk_bytes(kv->key.data, kv->key.n) + walk_bytes(kv->value, kv->value_bytes);
    uint32_t u32 = 0;
    uint64_t u64 = 0;
    float f32 = 0;
    bool b = false, found;
    struct bpi_span s = {0};
    int64_t i64 = 0;
    struct bp_error err = BP_ERROR_INIT;
    char *key = bpi_strndup(kv->key.data, kv->key.n);
    if (key == NULL || bpi_gguf_find(g, key) != kv)
        abort(); /* keys are unique and without zero bytes */
    if (bpi_gguf_get_u32(g, key, &u32, &found, &err) == BP_OK && !found) abort();
    bpi_error_clear(&err);
    if (bpi_gguf_get_u64(g, key, &u64, &found, &err) == BP_OK && !found) abort();
    (void)bpi_gguf_get_f32(g, key, &f32, NULL, NULL);
    (void)bpi_gguf_get_bool(g, key, &b, NULL, NULL);
    bpi_error_clear(&err);
    if (bpi_gguf_get_str(g, key, &s, &found, &err) == BP_OK) sum += walk_bytes(s.data, s.n);
    if (kv->count > 0) (void)bpi_gguf_arr_i64(g, kv, kv->count - 1, &i64, NULL);
    bpi_error_clear(&err);
    if (bpi_gguf_arr_i64(g, kv, kv->count, &i64, &err) == BP_OK) abort();
    struct bpi_span *all = bpi_calloc(kv->count < 100000 ? kv->count : 0, sizeof *all);
    if (all != NULL && kv->count < 100000 && bpi_gguf_arr_strings(g, kv, all, NULL) == BP_OK) {
        for (uint64_t i = 0; i < kv->count; ++i) sum += walk_bytes(all[i].data, all[i].n);
    }
    bpi_free(all);
    struct bpi_buf text = {0};
    bpi_gguf_format_value(kv, &text);
    if (text.data != NULL && !bpi_utf8_valid(text.data, text.len)) abort();
    sum += text.len + u32 + u64 + (f32 > 0) + b + (uint64_t)i64;
    bpi_buf_free(&text);
    bpi_free(key);
    return sum;
}

/* Returns a number made of everything it saw, so that no compiler leaves the reading out. */
static inline uint64_t walk_gguf(const struct bpi_gguf *g)
{
    uint64_t sum = bpi_gguf_version(g) + bpi_gguf_shards(g);
    for (uint32_t i = 0; i <= bpi_gguf_shards(g); ++i) {
        sum += bpi_gguf_shard_bytes(g, i) + bpi_gguf_alignment(g, i);
        sum += bpi_gguf_shard_path(g, i) != NULL;
    }
    for (uint64_t i = 0; i < bpi_gguf_n_kv(g); ++i) sum += walk_key(g, bpi_gguf_kv_at(g, i));
    for (uint64_t i = 0; i < bpi_gguf_n_tensors(g); ++i) {
        const struct bpi_gguf_tensor *t = bpi_gguf_tensor_at(g, i);
        if (bpi_gguf_tensor(g, t->name) != t) abort();
        if ((t->data == NULL) != (t->n_bytes == 0)) abort();
        sum += walk_bytes(t->data, t->n_bytes);
    }
    if (bpi_gguf_kv_at(g, bpi_gguf_n_kv(g)) != NULL) abort();
    if (bpi_gguf_tensor_at(g, bpi_gguf_n_tensors(g)) != NULL) abort();
    if (bpi_gguf_find(g, "no such key") != NULL && bpi_gguf_tensor(g, "no such tensor") != NULL)
        abort();
    return sum;
}

#endif
