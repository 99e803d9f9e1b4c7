/* gguf_write.c - collects metadata and tensors for one file of version 3 with alignment 32.
 * Not here: writing it (gguf_save.c), several shards, other alignments. Metadata is encoded as it comes, so its values
 * may go away; tensor data is only pointed to. Tensors lie in the order they were put, without gaps but for padding,
 * which the strictest readers ask for. Threads: a writer belongs to one caller. SPDX-License-Identifier: MIT */
#include "gguf/gguf_write_priv.h"

#include <string.h>

enum { ALIGNMENT = BPI_GGUF_WRITE_ALIGNMENT, FIRST_CAP = 16 };

int32_t bpi_gguf_writer_create(struct bpi_gguf_writer **out, struct bp_error *err)
{
    struct bpi_gguf_writer *w = bpi_calloc(1, sizeof *w);
    if (w == NULL) return bpi_fail_nomem(err, BPI_GGUF_DOMAIN, sizeof *w);
    w->error = (struct bp_error)BP_ERROR_INIT;
    *out = w;
    return BP_OK;
}

void bpi_gguf_writer_destroy(struct bpi_gguf_writer *w)
{
    if (w == NULL) return;
    bpi_gguf_writer_abandon(w);
    bpi_buf_free(&w->kv);
    bpi_free(w->key_at);
    bpi_free(w->tensors);
    bpi_free(w);
}

/* The list with room for one more item, or NULL; on NULL the old list is still there. */
static void *with_room(void *list, uint64_t n, uint64_t *cap, size_t elem_bytes)
{
    if (n < *cap) return list;
    uint64_t more = *cap == 0 ? FIRST_CAP : 2 * *cap;
    void *p = bpi_realloc(list, more, elem_bytes);
    if (p != NULL) *cap = more;
    return p;
}

/* ---- metadata ---- */

static void encode_u32(struct bpi_buf *b, uint32_t v)
{
    bpi_buf_append(b, &v, sizeof v);
}

static void encode_u64(struct bpi_buf *b, uint64_t v)
{
    bpi_buf_append(b, &v, sizeof v);
}

static void encode_string(struct bpi_buf *b, const char *data, uint64_t n)
{
    encode_u64(b, n);
    bpi_buf_append(b, data, n);
}

/* Key and kind of a new record; its value follows. */
static int32_t begin_kv(struct bpi_gguf_writer *w, const char *key, uint64_t key_n, uint32_t kind)
{
    struct bp_error *err = &w->error;
    if (err->code != BP_OK) return err->code;
    if (key_n == 0 || key_n > BPI_GGUF_MAX_KEY_BYTES)
        return bpi_fail(err, BP_E_ARG, BPI_GGUF_DOMAIN, key,
                        "a metadata key has %llu bytes; 1 to %d", (unsigned long long)key_n,
                        BPI_GGUF_MAX_KEY_BYTES);
    if (w->n_kv == BPI_GGUF_MAX_KV)
        return bpi_fail(err, BP_E_LIMIT, BPI_GGUF_DOMAIN, NULL, "more than %d metadata records",
                        BPI_GGUF_MAX_KV);
    uint64_t *key_at = with_room(w->key_at, w->n_kv, &w->cap_kv, sizeof *key_at);
    if (key_at == NULL) return bpi_fail_nomem(err, BPI_GGUF_DOMAIN, 2 * w->cap_kv * sizeof *key_at);
    w->key_at = key_at;
    w->key_at[w->n_kv++] = w->kv.len;
    encode_string(&w->kv, key, key_n);
    encode_u32(&w->kv, kind);
    return BP_OK;
}

static int32_t end_kv(struct bpi_gguf_writer *w)
{
    return w->kv.failed ? bpi_fail_nomem(&w->error, BPI_GGUF_DOMAIN, w->kv.len) : BP_OK;
}

static int32_t put_scalar(struct bpi_gguf_writer *w, const char *key, uint32_t kind, const void *v)
{
    BP_TRY(begin_kv(w, key, strlen(key), kind));
    bpi_buf_append(&w->kv, v, bpi_gguf_kind_bytes(kind));
    return end_kv(w);
}

int32_t bpi_gguf_put_u32(struct bpi_gguf_writer *w, const char *key, uint32_t v)
{
    if (w->error.code == BP_OK && strcmp(key, "general.alignment") == 0 && v != ALIGNMENT)
        return bpi_fail(&w->error, BP_E_ARG, BPI_GGUF_DOMAIN, key,
                        "alignment %u was asked for; files are written with %d", v, ALIGNMENT);
    return put_scalar(w, key, BPI_GGUF_U32, &v);
}

int32_t bpi_gguf_put_u64(struct bpi_gguf_writer *w, const char *key, uint64_t v)
{
    return put_scalar(w, key, BPI_GGUF_U64, &v);
}

int32_t bpi_gguf_put_f32(struct bpi_gguf_writer *w, const char *key, float v)
{
    return put_scalar(w, key, BPI_GGUF_F32V, &v);
}

int32_t bpi_gguf_put_bool(struct bpi_gguf_writer *w, const char *key, bool v)
{
    unsigned char byte = v ? 1 : 0;
    return put_scalar(w, key, BPI_GGUF_BOOL, &byte);
}

int32_t bpi_gguf_put_str(struct bpi_gguf_writer *w, const char *key, const char *v, uint64_t n)
{
    if (w->error.code == BP_OK && n > BPI_GGUF_MAX_STRING_BYTES)
        return bpi_fail(&w->error, BP_E_LIMIT, BPI_GGUF_DOMAIN, key,
                        "the string has %llu bytes; the limit is %llu", (unsigned long long)n,
                        (unsigned long long)BPI_GGUF_MAX_STRING_BYTES);
    BP_TRY(begin_kv(w, key, strlen(key), BPI_GGUF_STRING));
    encode_string(&w->kv, v, n);
    return end_kv(w);
}

int32_t bpi_gguf_put_copy(struct bpi_gguf_writer *w, const struct bpi_gguf_kv *kv)
{
    static const char alignment[] = "general.alignment";
    uint32_t v = 0;
    if (kv->key.n == sizeof alignment - 1 && memcmp(kv->key.data, alignment, kv->key.n) == 0) {
        /* It tells how its own file is laid out, and this one is laid out anew. */
        if (kv->kind == BPI_GGUF_U32) memcpy(&v, kv->value, sizeof v);
        if (v != ALIGNMENT) return w->error.code;
    }
    BP_TRY(begin_kv(w, kv->key.data, kv->key.n, kv->kind));
    if (kv->kind == BPI_GGUF_STRING) {
        encode_u64(&w->kv, kv->value_bytes);
    } else if (kv->kind == BPI_GGUF_ARRAY) {
        encode_u32(&w->kv, kv->elem_kind);
        encode_u64(&w->kv, kv->count);
    }
    bpi_buf_append(&w->kv, kv->value, kv->value_bytes);
    return end_kv(w);
}

/* ---- tensors ---- */

/* Checks name, type and shape, and lists the tensor without data. */
static int32_t list_tensor(struct bpi_gguf_writer *w, const char *name, uint32_t type,
                           uint32_t n_dim, const int64_t *ne, struct bpi_gguf_tensor **out)
{
    struct bp_error *err = &w->error;
    uint64_t n_bytes = 0, end;
    if (err->code != BP_OK) return err->code;
    size_t name_n = strlen(name);
    if (name_n == 0 || name_n > BPI_GGUF_MAX_NAME_BYTES)
        return bpi_fail(err, BP_E_ARG, BPI_GGUF_DOMAIN, name,
                        "a tensor name has %zu bytes; 1 to %d", name_n, BPI_GGUF_MAX_NAME_BYTES);
    if (n_dim < 1 || n_dim > BPI_GGUF_MAX_DIMS)
        return bpi_fail(err, BP_E_ARG, BPI_GGUF_DOMAIN, name,
                        "the tensor has %u dimensions; 1 to %d", n_dim, BPI_GGUF_MAX_DIMS);
    const char *problem = bpi_gguf_tensor_bytes(type, n_dim, ne, &n_bytes);
    if (problem != NULL)
        return bpi_fail(err, BP_E_ARG, BPI_GGUF_DOMAIN, name, "the tensor %s", problem);
    if (w->n_tensors == BPI_GGUF_MAX_TENSORS || !bpi_add_u64(w->data_bytes, n_bytes, &end) ||
        !bpi_align_up_u64(end, ALIGNMENT, &end))
        return bpi_fail(err, BP_E_LIMIT, BPI_GGUF_DOMAIN, name,
                        "too many tensors or bytes for one file");
    struct bpi_gguf_tensor *t = with_room(w->tensors, w->n_tensors, &w->cap_tensors, sizeof *t);
    if (t == NULL) return bpi_fail_nomem(err, BPI_GGUF_DOMAIN, 2 * w->cap_tensors * sizeof *t);
    w->tensors = t;
    t += w->n_tensors++;
    *t = (struct bpi_gguf_tensor){
        .type = type, .n_dim = n_dim, .n_bytes = n_bytes, .offset = w->data_bytes};
    memcpy(t->name, name, name_n);
    for (uint32_t i = 0; i < BPI_GGUF_MAX_DIMS; ++i) t->ne[i] = i < n_dim ? ne[i] : 1;
    w->data_bytes = end;
    *out = t;
    return BP_OK;
}

int32_t bpi_gguf_put_tensor(struct bpi_gguf_writer *w, const char *name, uint32_t type,
                            uint32_t n_dim, const int64_t *ne, const void *data, uint64_t n_bytes)
{
    struct bpi_gguf_tensor *t = NULL;
    BP_TRY(list_tensor(w, name, type, n_dim, ne, &t));
    if (t->n_bytes != n_bytes || (data == NULL && n_bytes != 0))
        return bpi_fail(&w->error, BP_E_ARG, BPI_GGUF_DOMAIN, name,
                        "the tensor's type and shape take %llu bytes; %llu were given",
                        (unsigned long long)t->n_bytes,
                        (unsigned long long)(data != NULL ? n_bytes : 0));
    t->data = data;
    return BP_OK;
}

int32_t bpi_gguf_put_shape(struct bpi_gguf_writer *w, const char *name, uint32_t type,
                           uint32_t n_dim, const int64_t *ne)
{
    struct bpi_gguf_tensor *t = NULL;
    return list_tensor(w, name, type, n_dim, ne, &t);
}

int32_t bpi_gguf_writer_status(const struct bpi_gguf_writer *w, struct bp_error *err)
{
    const struct bp_error *e = &w->error;
    if (e->code == BP_OK) return BP_OK;
    return bpi_fail(err, e->code, BPI_GGUF_DOMAIN, e->where, "%s", e->msg);
}
