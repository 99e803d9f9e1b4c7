/* gguf_priv.h - what the files of core/gguf share: parts (files), the name index, typed reads of one part.
 * Not here: anything other rooms need (gguf.h). SPDX-License-Identifier: MIT */
#ifndef BPI_GGUF_PRIV_H
#define BPI_GGUF_PRIV_H

#include "base/base.h"
#include "gguf/gguf.h"

#define BPI_GGUF_DOMAIN "gguf"
#define BPI_GGUF_MAGIC "GGUF"
enum { BPI_GGUF_DEFAULT_ALIGNMENT = 32, BPI_GGUF_N_KINDS = 13 };

/* ---- gguf_index.c: names to numbers, by hash ---- */

struct bpi_gguf_slot {
    uint32_t item; /* number + 1; 0 is empty */
    uint32_t tag;  /* upper half of the hash */
};
/* The hash is keyed with a secret of the process's moment, so that nobody can write a file whose names all collide. */
struct bpi_gguf_index {
    struct bpi_gguf_slot *slots;
    uint64_t mask; /* slots - 1 */
    uint64_t secret[2];
    const void *items;
    struct bpi_span (*name_of)(const void *items, uint64_t i);
};
/* Indexes items 0..n-1 (n < 2^31); `items` stays where it is. BP_E_FORMAT: two items share a name; *out_first and
 * *out_second say which. BP_E_NOMEM. After a failure the index is empty. */
int32_t bpi_gguf_index_build(struct bpi_gguf_index *ix, const void *items, uint64_t n,
                             struct bpi_span (*name_of)(const void *items, uint64_t i),
                             uint64_t *out_first, uint64_t *out_second);
bool bpi_gguf_index_find(const struct bpi_gguf_index *ix, struct bpi_span name, uint64_t *out);
void bpi_gguf_index_free(struct bpi_gguf_index *ix);
struct bpi_span bpi_gguf_kv_name(const void *items, uint64_t i); /* items: struct bpi_gguf_kv [] */

/* ---- parts: one file each ---- */

struct bpi_gguf_part {
    char *path;
    char where[96];     /* path for messages, cut at the front */
    struct bpi_map map; /* zero for images in memory */
    char *copy;         /* the bytes, of a file that was read into memory */
    const unsigned char *data;
    uint64_t n_bytes;
    uint32_t version, number;
    uint64_t alignment, data_start;
    struct bpi_gguf_kv *kv;
    uint64_t n_kv, cap_kv;
    struct bpi_gguf_index kv_index;
    uint64_t first_tensor, n_tensors; /* range in struct bpi_gguf.tensors */
};

struct bpi_gguf {
    struct bpi_gguf_part *parts;
    uint32_t n_parts, cap_parts;
    bool copies; /* files are read into memory, not mapped */
    struct bpi_gguf_tensor *tensors;
    uint64_t n_tensors, cap_tensors;
    struct bpi_gguf_index tensor_index;
};

/* gguf.c: maps PATH, or reads it where g->copies says so, and parses it as the next part. */
int32_t bpi_gguf_add_file(struct bpi_gguf *g, const char *path, struct bp_error *err);
/* gguf_parse.c: header, metadata and tensor records of a part whose data, n_bytes, number and where are set. */
int32_t bpi_gguf_parse_part(struct bpi_gguf *g, struct bpi_gguf_part *part, struct bp_error *err);
/* gguf_layout.c: where a part's tensors lie: inside the file, apart from each other; fills data and offset. */
int32_t bpi_gguf_place_tensors(struct bpi_gguf *g, struct bpi_gguf_part *part, uint64_t header_end,
                               struct bp_error *err);
/* gguf_shard.c: opens parts 1.. when part 0 says that there are more. */
int32_t bpi_gguf_open_shards(struct bpi_gguf *g, struct bp_error *err);

/* ---- gguf_types.c ---- */

/* True and the sizes if `type` is a number of the format that is still in use. */
bool bpi_gguf_type_sizes(uint32_t type, uint32_t *out_elems, uint32_t *out_bytes);
/* "Q4_K"; NULL for numbers that are not in use. */
const char *bpi_gguf_type_name(uint32_t type);
/* The former name of a number that was taken out of the format, else NULL. */
const char *bpi_gguf_removed_type(uint32_t type);
/* Bytes of a tensor, all steps checked; n_dim >= 1. NULL, or what is wrong ("has a negative dimension"). */
const char *bpi_gguf_tensor_bytes(uint32_t type, uint32_t n_dim, const int64_t *ne, uint64_t *out);

/* ---- gguf_value.c ---- */
bool bpi_gguf_kind_is_integer(uint32_t kind);
uint32_t bpi_gguf_kind_bytes(uint32_t kind); /* 0 for strings, arrays, unknown */
const struct bpi_gguf_kv *bpi_gguf_part_find(const struct bpi_gguf_part *part, const char *key);
int32_t bpi_gguf_part_u64(const struct bpi_gguf_part *part, const char *key, uint64_t max,
                          uint64_t *out, bool *found, struct bp_error *err);

/* ---- gguf_manifest.c ---- */

struct bpi_manifest_entry {
    char hash[33];            /* 32 lower-case digits */
    char type[17];            /* "Q4_K"; "header" of the lines of shards */
    uint32_t shard;
    uint32_t reserved;
    uint64_t n_bytes;
    const char *name;         /* of a tensor, or of a shard's file */
};
struct bpi_manifest {
    struct bpi_arena arena;
    const char *file; /* base name of the first shard */
    uint64_t n_bytes; /* of all files */
    uint32_t n_shards, reserved;
    uint64_t n_tensors;
    struct bpi_manifest_entry *entries; /* (n_shards + n_tensors) headers first */
    struct bpi_gguf_index tensors;      /* over entries + n_shards */
};
struct bpi_span bpi_manifest_entry_name(const void *items, uint64_t i); /* items: struct bpi_manifest_entry [] */

/* The file name without its folders. */
const char *bpi_gguf_base_name(const char *path);

#endif
