/* gguf_write.c - collects metadata and tensors, then writes one file of version 3 with alignment 32.
 * Not here: several shards, other alignments. Metadata is encoded as it comes, so its values may go away; tensor data
 * is only pointed to. Tensors lie in the order they were put, without gaps but for padding, which the strictest
 * readers ask for. Threads: a writer belongs to one caller. SPDX-License-Identifier: MIT */
#include "gguf/gguf_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ALIGNMENT = BPI_GGUF_DEFAULT_ALIGNMENT, WRITE_STEP = 1 << 30, FIRST_CAP = 16 };

struct bpi_gguf_writer {
    struct bp_error error; /* the first failure of a put_ call */
    struct bpi_buf kv;     /* encoded records */
    uint64_t *key_at;      /* where each record begins in kv */
    uint64_t n_kv, cap_kv;
    struct bpi_gguf_tensor *tensors; /* offset: from the start of the data section */
    uint64_t n_tensors, cap_tensors;
    uint64_t data_bytes;
};

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

int32_t bpi_gguf_put_tensor(struct bpi_gguf_writer *w, const char *name, uint32_t type,
                            uint32_t n_dim, const int64_t *ne, const void *data, uint64_t n_bytes)
{
    struct bp_error *err = &w->error;
    uint64_t want = 0, end;
    if (err->code != BP_OK) return err->code;
    size_t name_n = strlen(name);
    if (name_n == 0 || name_n > BPI_GGUF_MAX_NAME_BYTES)
        return bpi_fail(err, BP_E_ARG, BPI_GGUF_DOMAIN, name,
                        "a tensor name has %zu bytes; 1 to %d", name_n, BPI_GGUF_MAX_NAME_BYTES);
    if (n_dim < 1 || n_dim > BPI_GGUF_MAX_DIMS)
        return bpi_fail(err, BP_E_ARG, BPI_GGUF_DOMAIN, name,
                        "the tensor has %u dimensions; 1 to %d", n_dim, BPI_GGUF_MAX_DIMS);
    const char *problem = bpi_gguf_tensor_bytes(type, n_dim, ne, &want);
    if (problem != NULL)
        return bpi_fail(err, BP_E_ARG, BPI_GGUF_DOMAIN, name, "the tensor %s", problem);
    if (want != n_bytes || (data == NULL && n_bytes != 0))
        return bpi_fail(err, BP_E_ARG, BPI_GGUF_DOMAIN, name,
                        "the tensor's type and shape take %llu bytes; %llu were given",
                        (unsigned long long)want, (unsigned long long)(data != NULL ? n_bytes : 0));
    if (w->n_tensors == BPI_GGUF_MAX_TENSORS || !bpi_add_u64(w->data_bytes, n_bytes, &end) ||
        !bpi_align_up_u64(end, ALIGNMENT, &end))
        return bpi_fail(err, BP_E_LIMIT, BPI_GGUF_DOMAIN, name,
                        "too many tensors or bytes for one file");
    struct bpi_gguf_tensor *t = with_room(w->tensors, w->n_tensors, &w->cap_tensors, sizeof *t);
    if (t == NULL) return bpi_fail_nomem(err, BPI_GGUF_DOMAIN, 2 * w->cap_tensors * sizeof *t);
    w->tensors = t;
    t += w->n_tensors++;
    *t = (struct bpi_gguf_tensor){
        .type = type, .n_dim = n_dim, .n_bytes = n_bytes, .offset = w->data_bytes, .data = data};
    memcpy(t->name, name, name_n);
    for (uint32_t i = 0; i < BPI_GGUF_MAX_DIMS; ++i) t->ne[i] = i < n_dim ? ne[i] : 1;
    w->data_bytes = end;
    return BP_OK;
}

/* ---- saving ---- */

static struct bpi_span pending_key(const void *items, uint64_t i)
{
    const struct bpi_gguf_writer *w = items;
    const char *record = w->kv.data + w->key_at[i];
    struct bpi_span key = {record + sizeof key.n, 0};
    memcpy(&key.n, record, sizeof key.n);
    return key;
}

static struct bpi_span pending_tensor(const void *items, uint64_t i)
{
    const struct bpi_gguf_writer *w = items;
    return (struct bpi_span){w->tensors[i].name, strlen(w->tensors[i].name)};
}

static int32_t check_unique(const struct bpi_gguf_writer *w, uint64_t n, const char *what,
                            struct bpi_span (*name_of)(const void *items, uint64_t i),
                            struct bp_error *err)
{
    uint64_t first = 0, second = 0;
    struct bpi_gguf_index ix;
    int32_t rc = bpi_gguf_index_build(&ix, w, n, name_of, &first, &second);
    bpi_gguf_index_free(&ix);
    if (rc == BP_E_NOMEM)
        return bpi_fail_nomem(err, BPI_GGUF_DOMAIN, 2 * n * sizeof(struct bpi_gguf_slot));
    if (rc == BP_OK) return BP_OK;
    struct bpi_span name = name_of(w, second);
    return bpi_fail(err, BP_E_ARG, BPI_GGUF_DOMAIN, NULL, "%s '%.*s' was put twice", what,
                    name.n < 100 ? (int)name.n : 100, name.data);
}

static int32_t encode_header(const struct bpi_gguf_writer *w, struct bpi_buf *b,
                             struct bp_error *err)
{
    static const unsigned char zeros[ALIGNMENT];
    bpi_buf_append(b, BPI_GGUF_MAGIC, 4);
    encode_u32(b, 3);
    encode_u64(b, w->n_tensors);
    encode_u64(b, w->n_kv);
    bpi_buf_append(b, w->kv.data, w->kv.len);
    for (uint64_t i = 0; i < w->n_tensors; ++i) {
        const struct bpi_gguf_tensor *t = &w->tensors[i];
        encode_string(b, t->name, strlen(t->name));
        encode_u32(b, t->n_dim);
        for (uint32_t d = 0; d < t->n_dim; ++d) encode_u64(b, (uint64_t)t->ne[d]);
        encode_u32(b, t->type);
        encode_u64(b, t->offset);
    }
    if (w->n_tensors > 0 && b->len % ALIGNMENT != 0)
        bpi_buf_append(b, zeros, ALIGNMENT - b->len % ALIGNMENT);
    return b->failed ? bpi_fail_nomem(err, BPI_GGUF_DOMAIN, b->len) : BP_OK;
}

static int32_t fail_errno(struct bp_error *err, const char *path, const char *what)
{
    int native = errno;
    bool first = err != NULL && err->code == BP_OK;
    char why[128];
    if (strerror_r(native, why, sizeof why) != 0) snprintf(why, sizeof why, "errno %d", native);
    bpi_fail(err, BP_E_IO, BPI_GGUF_DOMAIN, path, "%s: %s", what, why);
    if (first) err->native = native;
    return BP_E_IO;
}

static int32_t write_bytes(int fd, const void *data, uint64_t n, const char *path,
                           struct bp_error *err)
{
    const char *p = data;
    while (n > 0) {
        ssize_t put = write(fd, p, n < WRITE_STEP ? n : WRITE_STEP);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return fail_errno(err, path, "the file cannot be written");
        p += put;
        n -= (uint64_t)put;
    }
    return BP_OK;
}

static int32_t write_all(const struct bpi_gguf_writer *w, const struct bpi_buf *header, int fd,
                         const char *path, struct bp_error *err)
{
    static const unsigned char zeros[ALIGNMENT];
    BP_TRY(write_bytes(fd, header->data, header->len, path, err));
    for (uint64_t i = 0; i < w->n_tensors; ++i) {
        const struct bpi_gguf_tensor *t = &w->tensors[i];
        BP_TRY(write_bytes(fd, t->data, t->n_bytes, path, err));
        uint64_t over = t->n_bytes % ALIGNMENT;
        if (over != 0) BP_TRY(write_bytes(fd, zeros, ALIGNMENT - over, path, err));
    }
    /* Otherwise a crash of the machine could leave the new name on an unfinished file. */
    return fsync(fd) == 0 ? BP_OK : fail_errno(err, path, "the file cannot be brought to disk");
}

static int32_t write_and_rename(const struct bpi_gguf_writer *w, const struct bpi_buf *header,
                                const char *path, const char *tmp, struct bp_error *err)
{
    struct stat st;
    /* A rename would replace a device or a pipe by a plain file. */
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return bpi_fail(
            err, BP_E_IO, BPI_GGUF_DOMAIN, path,
            "this is a directory, a device or a pipe; name a regular file or a new one");
    int fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0 && errno == EEXIST)
        return bpi_fail(
            err, BP_E_IO, BPI_GGUF_DOMAIN, tmp,
            "this temporary file is left from an interrupted write; remove it and try again");
    if (fd < 0) return fail_errno(err, path, "no file can be created in that folder");
    int32_t rc = write_all(w, header, fd, path, err);
    if (close(fd) != 0 && rc == BP_OK) rc = fail_errno(err, path, "the file cannot be closed");
    if (rc == BP_OK && rename(tmp, path) != 0)
        rc = fail_errno(err, path, "the finished file cannot be given its name");
    if (rc != BP_OK) (void)unlink(tmp);
    return rc;
}

int32_t bpi_gguf_writer_save(struct bpi_gguf_writer *w, const char *path, struct bp_error *err)
{
    if (w->error.code != BP_OK)
        return bpi_fail(err, w->error.code, BPI_GGUF_DOMAIN, w->error.where, "%s", w->error.msg);
    struct bpi_buf header = {0}, tmp = {0};
    int32_t rc;
    BP_TRY(check_unique(w, w->n_kv, "key", pending_key, err));
    BP_TRY(check_unique(w, w->n_tensors, "tensor", pending_tensor, err));
    BP_TRY_GOTO(rc, encode_header(w, &header, err), done);
    bpi_buf_printf(&tmp, "%s.tmp.%ld", path, (long)getpid());
    if (tmp.failed) {
        rc = bpi_fail_nomem(err, BPI_GGUF_DOMAIN, strlen(path) + 32);
        goto done;
    }
    rc = write_and_rename(w, &header, path, tmp.data, err);
done:
    bpi_buf_free(&header);
    bpi_buf_free(&tmp);
    return rc;
}
