/* gguf_save.c - writes what a writer holds to a file: all at once, or with tensors that come in pieces.
 * Not here: collecting (gguf_write.c). The file grows under a temporary name beside its own and is renamed when it is
 * whole and on disk; what fails before that removes it.
 * Threads: a writer belongs to one caller. SPDX-License-Identifier: MIT */
#include "gguf/gguf_write_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ALIGNMENT = BPI_GGUF_WRITE_ALIGNMENT, WRITE_STEP = 1 << 30 };

/* ---- header ---- */

static void encode_u32(struct bpi_buf *b, uint32_t v)
{
    bpi_buf_append(b, &v, sizeof v);
}

static void encode_u64(struct bpi_buf *b, uint64_t v)
{
    bpi_buf_append(b, &v, sizeof v);
}

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
        encode_u64(b, strlen(t->name));
        bpi_buf_append(b, t->name, strlen(t->name));
        encode_u32(b, t->n_dim);
        for (uint32_t d = 0; d < t->n_dim; ++d) encode_u64(b, (uint64_t)t->ne[d]);
        encode_u32(b, t->type);
        encode_u64(b, t->offset);
    }
    if (w->n_tensors > 0 && b->len % ALIGNMENT != 0)
        bpi_buf_append(b, zeros, ALIGNMENT - b->len % ALIGNMENT);
    return b->failed ? bpi_fail_nomem(err, BPI_GGUF_DOMAIN, b->len) : BP_OK;
}

uint64_t bpi_gguf_writer_bytes(const struct bpi_gguf_writer *w)
{
    uint64_t n = 4 + 4 + 8 + 8 + w->kv.len;
    for (uint64_t i = 0; i < w->n_tensors; ++i)
        n += 8 + strlen(w->tensors[i].name) + 4 + 8 * (uint64_t)w->tensors[i].n_dim + 4 + 8;
    if (w->n_tensors > 0) n += (ALIGNMENT - n % ALIGNMENT) % ALIGNMENT;
    return n + w->data_bytes;
}

/* ---- bytes ---- */

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

/* Ends tensors that are whole with their padding and steps over those without bytes. */
static int32_t end_tensors(struct bpi_gguf_writer *w, struct bp_error *err)
{
    static const unsigned char zeros[ALIGNMENT];
    struct bpi_gguf_saving *s = &w->saving;
    while (s->tensor < w->n_tensors && s->at == w->tensors[s->tensor].n_bytes) {
        uint64_t over = s->at % ALIGNMENT;
        if (over != 0) BP_TRY(write_bytes(s->fd, zeros, ALIGNMENT - over, s->path, err));
        s->tensor++;
        s->at = 0;
    }
    return BP_OK;
}

int32_t bpi_gguf_writer_append(struct bpi_gguf_writer *w, const void *data, uint64_t n,
                               struct bp_error *err)
{
    struct bpi_gguf_saving *s = &w->saving;
    const unsigned char *p = data;
    if (s->tmp == NULL)
        return bpi_fail(err, BP_E_ARG, BPI_GGUF_DOMAIN, NULL, "no file is being written");
    while (n > 0) {
        BP_TRY(end_tensors(w, err));
        if (s->tensor == w->n_tensors)
            return bpi_fail(err, BP_E_ARG, BPI_GGUF_DOMAIN, s->path,
                            "%llu bytes more than the tensors hold", (unsigned long long)n);
        uint64_t left = w->tensors[s->tensor].n_bytes - s->at;
        uint64_t take = n < left ? n : left;
        BP_TRY(write_bytes(s->fd, p, take, s->path, err));
        s->at += take;
        p += take;
        n -= take;
    }
    return BP_OK;
}

/* ---- the file ---- */

/* Reserving tells of a full disk before hours of work instead of after them. */
static int32_t reserve(int fd, uint64_t n_bytes, const char *path, struct bp_error *err)
{
    char what[96];
    errno = bpi_gguf_reserve(fd, n_bytes);
    if (errno == 0) return BP_OK;
    snprintf(what, sizeof what, "there is no room for the %llu bytes of the file",
             (unsigned long long)n_bytes);
    return fail_errno(err, path, what);
}

static int32_t create_temporary(struct bpi_gguf_saving *s, struct bp_error *err)
{
    struct stat st;
    /* A rename would replace a device or a pipe by a plain file. */
    if (stat(s->path, &st) == 0 && !S_ISREG(st.st_mode))
        return bpi_fail(
            err, BP_E_IO, BPI_GGUF_DOMAIN, s->path,
            "this is a directory, a device or a pipe; name a regular file or a new one");
    /* O_EXCL: never write through a link or into a file that somebody else is filling. */
    s->fd = bpi_open_again(s->tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (s->fd < 0 && errno == EEXIST)
        return bpi_fail(
            err, BP_E_IO, BPI_GGUF_DOMAIN, s->tmp,
            "this temporary file is left from an interrupted write; remove it and try again");
    if (s->fd < 0) return fail_errno(err, s->path, "no file can be created in that folder");
    s->created = true;
    return BP_OK;
}

/* Forgets the file; `drop` also removes it. */
static void end_saving(struct bpi_gguf_saving *s, bool drop)
{
    if (s->fd >= 0) (void)close(s->fd);
    if (s->created && drop) (void)unlink(s->tmp);
    bpi_free(s->path);
    bpi_free(s->tmp);
    *s = (struct bpi_gguf_saving){.fd = -1};
}

void bpi_gguf_writer_abandon(struct bpi_gguf_writer *w)
{
    if (w->saving.tmp != NULL) end_saving(&w->saving, true);
}

static int32_t begin_file(struct bpi_gguf_writer *w, const struct bpi_buf *header, const char *path,
                          struct bp_error *err)
{
    struct bpi_gguf_saving *s = &w->saving;
    struct bpi_buf tmp = {0};
    int32_t rc;
    bpi_buf_printf(&tmp, "%s.tmp.%ld", path, (long)getpid());
    *s = (struct bpi_gguf_saving){.path = bpi_strdup(path), .tmp = tmp.data, .fd = -1};
    if (tmp.failed || s->path == NULL) {
        rc = bpi_fail_nomem(err, BPI_GGUF_DOMAIN, 2 * strlen(path) + 32);
        goto fail;
    }
    BP_TRY_GOTO(rc, create_temporary(s, err), fail);
    BP_TRY_GOTO(rc, reserve(s->fd, bpi_gguf_writer_bytes(w), path, err), fail);
    BP_TRY_GOTO(rc, write_bytes(s->fd, header->data, header->len, path, err), fail);
    return BP_OK;
fail:
    end_saving(s, true);
    return rc;
}

int32_t bpi_gguf_writer_begin(struct bpi_gguf_writer *w, const char *path, struct bp_error *err)
{
    bpi_gguf_writer_abandon(w);
    struct bpi_buf header = {0};
    int32_t rc;
    BP_TRY(bpi_gguf_writer_status(w, err));
    BP_TRY(check_unique(w, w->n_kv, "key", pending_key, err));
    BP_TRY(check_unique(w, w->n_tensors, "tensor", pending_tensor, err));
    BP_TRY_GOTO(rc, encode_header(w, &header, err), done);
    rc = begin_file(w, &header, path, err);
done:
    bpi_buf_free(&header);
    return rc;
}

static int32_t finish_file(struct bpi_gguf_writer *w, struct bp_error *err)
{
    struct bpi_gguf_saving *s = &w->saving;
    BP_TRY(end_tensors(w, err));
    if (s->tensor != w->n_tensors)
        return bpi_fail(err, BP_E_ARG, BPI_GGUF_DOMAIN, w->tensors[s->tensor].name,
                        "the tensor has %llu bytes and %llu were given",
                        (unsigned long long)w->tensors[s->tensor].n_bytes,
                        (unsigned long long)s->at);
    /* Otherwise a crash of the machine could leave the new name on an unfinished file. */
    if (bpi_fsync_again(s->fd) != 0)
        return fail_errno(err, s->path, "the file cannot be brought to disk");
    int fd = s->fd;
    s->fd = -1;
    /* A close that a signal interrupts has closed, and everything is on the disk by then. */
    if (close(fd) != 0 && errno != EINTR)
        return fail_errno(err, s->path, "the file cannot be closed");
    if (rename(s->tmp, s->path) != 0)
        return fail_errno(err, s->path, "the finished file cannot be given its name");
    return BP_OK;
}

int32_t bpi_gguf_writer_finish(struct bpi_gguf_writer *w, struct bp_error *err)
{
    if (w->saving.tmp == NULL)
        return bpi_fail(err, BP_E_ARG, BPI_GGUF_DOMAIN, NULL, "no file is being written");
    int32_t rc = finish_file(w, err);
    end_saving(&w->saving, rc != BP_OK);
    return rc;
}

int32_t bpi_gguf_writer_save(struct bpi_gguf_writer *w, const char *path, struct bp_error *err)
{
    int32_t rc;
    for (uint64_t i = 0; w->error.code == BP_OK && i < w->n_tensors; ++i) {
        if (w->tensors[i].data == NULL && w->tensors[i].n_bytes != 0)
            return bpi_fail(err, BP_E_ARG, BPI_GGUF_DOMAIN, w->tensors[i].name,
                            "the tensor was put without its data");
    }
    BP_TRY(bpi_gguf_writer_begin(w, path, err));
    for (uint64_t i = 0; i < w->n_tensors; ++i) {
        const struct bpi_gguf_tensor *t = &w->tensors[i];
        BP_TRY_GOTO(rc, bpi_gguf_writer_append(w, t->data, t->n_bytes, err), fail);
    }
    return bpi_gguf_writer_finish(w, err);
fail:
    bpi_gguf_writer_abandon(w);
    return rc;
}
