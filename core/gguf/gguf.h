/* gguf.h - the GGUF container: mapped reader for single files and shards, and a writer.
 * Not here: what keys and tensors mean (core/model), block formats (core/block).
 * Every byte of a file is hostile: all sizes go through checked arithmetic before anything is allocated or read.
 * Format source: ggml docs/gguf.md and src/gguf.cpp @ d99724f. Little-endian hosts only.
 * Threads: an open file is immutable; any number of readers. SPDX-License-Identifier: MIT */
#ifndef BPI_GGUF_H
#define BPI_GGUF_H

#include <stdbool.h>
#include <stdint.h>
#include "base/base.h"
#include "backplane/types.h"

/* Limits, all in one place. A file beyond one of them is refused with the limit in the message. */
enum {
    BPI_GGUF_MAX_KEY_BYTES = 65535,
    BPI_GGUF_MAX_NAME_BYTES = 63,
    BPI_GGUF_MAX_DIMS = 4,
    BPI_GGUF_MAX_KV = 1 << 16,
    BPI_GGUF_MAX_TENSORS = 1 << 20,
    BPI_GGUF_MAX_SHARDS = 4096,
    BPI_GGUF_MAX_ALIGNMENT = 1 << 20
};
#define BPI_GGUF_MAX_STRING_BYTES (UINT64_C(1) << 30)
#define BPI_GGUF_MAX_ARRAY (UINT64_C(1) << 30)

enum bpi_gguf_kind { /* value types of the format, with its numbers */
    BPI_GGUF_U8 = 0, BPI_GGUF_I8 = 1, BPI_GGUF_U16 = 2, BPI_GGUF_I16 = 3, BPI_GGUF_U32 = 4, BPI_GGUF_I32 = 5,
    BPI_GGUF_F32V = 6, BPI_GGUF_BOOL = 7, BPI_GGUF_STRING = 8, BPI_GGUF_ARRAY = 9, BPI_GGUF_U64 = 10,
    BPI_GGUF_I64V = 11, BPI_GGUF_F64V = 12
};

/* Bytes inside the mapping; not NUL-terminated, may contain NULs. */
struct bpi_span {
    const char *data;
    uint64_t n;
};

struct bpi_gguf_kv {
    struct bpi_span key;
    uint32_t kind;       /* enum bpi_gguf_kind */
    uint32_t elem_kind;  /* of arrays */
    uint64_t count;      /* elements of arrays, 1 otherwise */
    const unsigned char *value; /* packed payload in the mapping; of a string its bytes, without the length */
    uint64_t value_bytes;       /* of the payload; elements are not aligned */
};

struct bpi_gguf_tensor {
    char name[BPI_GGUF_MAX_NAME_BYTES + 1];
    uint32_t type;      /* enum bp_gguf_type, known to the format (block size not zero) */
    uint32_t n_dim;
    int64_t ne[4];      /* missing dimensions are 1 */
    uint64_t n_bytes;
    uint64_t offset;    /* from the start of its shard's file */
    uint32_t shard;
    uint32_t reserved;
    const unsigned char *data; /* in the mapping of its shard; NULL for a tensor of zero bytes */
};

struct bpi_gguf;

/* Opens PATH and, when it is the first of several shards (split.count > 1), all of them. Reads headers only.
 * Errors: BP_E_IO missing file, directory, unreadable; BP_E_FORMAT anything wrong with the bytes, naming file, record
 * and byte offset; BP_E_UNSUPPORTED version 1, big-endian, unknown tensor type, array of arrays; BP_E_ARG a later shard
 * of a split model (the message names the first one); BP_E_LIMIT; BP_E_NOMEM.
 * On error nothing stays open. */
int32_t bpi_gguf_open(const char *path, struct bpi_gguf **out, struct bp_error *err);
/* The same, with the bytes of all files read into memory: nothing is mapped afterwards, and the files may change or go.
 * They are opened by their headers first, so that garbage of any size is refused before it is read. */
int32_t bpi_gguf_open_copy(const char *path, struct bpi_gguf **out, struct bp_error *err);
/* Parses a file image in memory (fuzzing, tests); the bytes outlive the object; single shard only. */
int32_t bpi_gguf_open_memory(const void *data, uint64_t n_bytes, const char *label, struct bpi_gguf **out,
                             struct bp_error *err);
void bpi_gguf_close(struct bpi_gguf *g); /* accepts NULL */

uint32_t bpi_gguf_version(const struct bpi_gguf *g);
uint32_t bpi_gguf_shards(const struct bpi_gguf *g);
const char *bpi_gguf_shard_path(const struct bpi_gguf *g, uint32_t shard);
uint64_t bpi_gguf_shard_bytes(const struct bpi_gguf *g, uint32_t shard);
uint64_t bpi_gguf_alignment(const struct bpi_gguf *g, uint32_t shard);
/* Hint how tensors will be read next (enum bpi_map_use); an open file expects whole ones. */
void bpi_gguf_expect(const struct bpi_gguf *g, uint32_t use);
/* Bytes that were read and will not be soon: bpi_map_drop where they lie in a mapping. */
void bpi_gguf_drop(const struct bpi_gguf *g, const void *data, uint64_t n_bytes);
/* The files behind the mappings still have all their bytes (bpi_map_check). Images in memory always do. */
int32_t bpi_gguf_check_files(const struct bpi_gguf *g, struct bp_error *err);

/* Metadata of the first shard, in file order. */
uint64_t bpi_gguf_n_kv(const struct bpi_gguf *g);
const struct bpi_gguf_kv *bpi_gguf_kv_at(const struct bpi_gguf *g, uint64_t i);
const struct bpi_gguf_kv *bpi_gguf_find(const struct bpi_gguf *g, const char *key); /* NULL if absent; hashed */

/* Tensors of all shards, in file order, shard after shard. */
uint64_t bpi_gguf_n_tensors(const struct bpi_gguf *g);
const struct bpi_gguf_tensor *bpi_gguf_tensor_at(const struct bpi_gguf *g, uint64_t i);
const struct bpi_gguf_tensor *bpi_gguf_tensor(const struct bpi_gguf *g, const char *name); /* hashed */

/* Typed reads. *found (may be NULL) tells absent (BP_OK, *out untouched) from present. A present key of the wrong
 * kind or out of range is BP_E_FORMAT naming key, kind and value. Integers accept every integer kind and bool,
 * floats accept f32, f64 and integers, and must be finite. A bool byte other than 0 is true. */
int32_t bpi_gguf_get_u32(const struct bpi_gguf *g, const char *key, uint32_t *out, bool *found, struct bp_error *err);
int32_t bpi_gguf_get_u64(const struct bpi_gguf *g, const char *key, uint64_t *out, bool *found, struct bp_error *err);
int32_t bpi_gguf_get_f32(const struct bpi_gguf *g, const char *key, float *out, bool *found, struct bp_error *err);
int32_t bpi_gguf_get_bool(const struct bpi_gguf *g, const char *key, bool *out, bool *found, struct bp_error *err);
int32_t bpi_gguf_get_str(const struct bpi_gguf *g, const char *key, struct bpi_span *out, bool *found,
                         struct bp_error *err);
/* Element i of an integer or bool array (or the scalar itself for i == 0), range-checked as above. */
int32_t bpi_gguf_arr_i64(const struct bpi_gguf *g, const struct bpi_gguf_kv *kv, uint64_t i, int64_t *out,
                         struct bp_error *err);
/* All elements of a string array, in order, to out[0..kv->count): one linear pass. BP_E_FORMAT if not strings. */
int32_t bpi_gguf_arr_strings(const struct bpi_gguf *g, const struct bpi_gguf_kv *kv, struct bpi_span *out,
                             struct bp_error *err);

/* One value as text ("[4096 strings]" for long arrays) appended to b; invalid UTF-8 is escaped as \xNN. */
void bpi_gguf_format_value(const struct bpi_gguf_kv *kv, struct bpi_buf *b);
const char *bpi_gguf_kind_name(uint32_t kind);

/* ---- the files' bytes by read calls, in any order ---- */

/* One shard at a time; of an image in memory nothing is opened. Zero-initialise. Any number of threads may read. */
struct bpi_gguf_input {
    struct bpi_input file;
    const unsigned char *image; /* of an image in memory */
    uint32_t shard;
    bool is_open;
};
/* Turns to a shard; does nothing when it is the open one already. Errors: as bpi_input_open. */
int32_t bpi_gguf_input_open(struct bpi_gguf_input *in, const struct bpi_gguf *g, uint32_t shard, struct bp_error *err);
/* Bytes [at, at + n) of the shard's file; those of a tensor begin at its offset. Errors: as bpi_input_read. */
int32_t bpi_gguf_input_read(const struct bpi_gguf_input *in, uint64_t at, void *out, size_t n, struct bp_error *err);
void bpi_gguf_input_close(struct bpi_gguf_input *in); /* accepts a zeroed one */
/* A hint that bytes [at, at + n) of a tensor will be read soon. */
void bpi_gguf_want(const struct bpi_gguf *g, const struct bpi_gguf_tensor *t, uint64_t at, uint64_t n);

/* ---- writer (gguf_write.c): collects metadata and tensors, then writes the file in one go ---- */
struct bpi_gguf_writer;
int32_t bpi_gguf_writer_create(struct bpi_gguf_writer **out, struct bp_error *err);
void bpi_gguf_writer_destroy(struct bpi_gguf_writer *w); /* accepts NULL */
int32_t bpi_gguf_put_u32(struct bpi_gguf_writer *w, const char *key, uint32_t v);
int32_t bpi_gguf_put_u64(struct bpi_gguf_writer *w, const char *key, uint64_t v);
int32_t bpi_gguf_put_f32(struct bpi_gguf_writer *w, const char *key, float v);
int32_t bpi_gguf_put_bool(struct bpi_gguf_writer *w, const char *key, bool v);
int32_t bpi_gguf_put_str(struct bpi_gguf_writer *w, const char *key, const char *v, uint64_t n);
/* Copies any record of an open file under its own key; general.alignment only where it is 32, since the copy is laid
 * out anew. The split.* keys of a sharded source are the caller's to leave out. */
int32_t bpi_gguf_put_copy(struct bpi_gguf_writer *w, const struct bpi_gguf_kv *kv);
/* The data must stay valid until bpi_gguf_writer_save. ne in file order. */
int32_t bpi_gguf_put_tensor(struct bpi_gguf_writer *w, const char *name, uint32_t type, uint32_t n_dim,
                            const int64_t *ne, const void *data, uint64_t n_bytes);
/* Key and tensor names must be unique. Version 3, alignment 32. Temporary name and rename: PATH is whole or untouched. Reports what a put_ call could not. */
int32_t bpi_gguf_writer_save(struct bpi_gguf_writer *w, const char *path, struct bp_error *err);

/* ---- the same in pieces (gguf_save.c), for tensors that do not exist as a whole ---- */

/* A tensor whose bytes bpi_gguf_writer_append will hand over. */
int32_t bpi_gguf_put_shape(struct bpi_gguf_writer *w, const char *name, uint32_t type, uint32_t n_dim,
                           const int64_t *ne);
/* What the first failed put_ call reported, else BP_OK. */
int32_t bpi_gguf_writer_status(const struct bpi_gguf_writer *w, struct bp_error *err);
/* Bytes of the whole file as it stands. */
uint64_t bpi_gguf_writer_bytes(const struct bpi_gguf_writer *w);
/* begin makes the temporary file, reserves its space where the file system can, and writes the header. append takes the
 * tensors' bytes in the order they were put, in pieces of any size; padding is the writer's. finish wants all of them,
 * brings the file to disk and gives it its name. A failed begin or finish, abandon and destroy leave no temporary file;
 * after a failed append only these are legal. No put_ call in between. Errors: BP_E_IO, BP_E_NOMEM, BP_E_ARG. */
int32_t bpi_gguf_writer_begin(struct bpi_gguf_writer *w, const char *path, struct bp_error *err);
int32_t bpi_gguf_writer_append(struct bpi_gguf_writer *w, const void *data, uint64_t n, struct bp_error *err);
int32_t bpi_gguf_writer_finish(struct bpi_gguf_writer *w, struct bp_error *err);
void bpi_gguf_writer_abandon(struct bpi_gguf_writer *w);

#endif
