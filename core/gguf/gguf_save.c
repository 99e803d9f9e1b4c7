/* gguf_save.c - writes what a writer holds to a file: all at once, or with tensors that come in pieces.
 * Not here: collecting (gguf_write.c), the file itself, which is there as a whole or not at all (struct bpi_output).
 * Threads: a writer belongs to one caller. SPDX-License-Identifier: MIT */
#include "gguf/gguf_write_priv.h"

#include <string.h>

enum { ALIGNMENT = BPI_GGUF_WRITE_ALIGNMENT };

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

/* Ends tensors that are whole with their padding and steps over those without bytes. */
static int32_t end_tensors(struct bpi_gguf_writer *w, struct bp_error *err)
{
    static const unsigned char zeros[ALIGNMENT];
    struct bpi_gguf_saving *s = &w->saving;
    while (s->tensor < w->n_tensors && s->at == w->tensors[s->tensor].n_bytes) {
        uint64_t over = s->at % ALIGNMENT;
        if (over != 0) BP_TRY(bpi_output_write(&s->out, zeros, ALIGNMENT - over, err));
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
    if (s->out.tmp == NULL)
        return bpi_fail(err, BP_E_ARG, BPI_GGUF_DOMAIN, NULL, "no file is being written");
    while (n > 0) {
        BP_TRY(end_tensors(w, err));
        if (s->tensor == w->n_tensors)
            return bpi_fail(err, BP_E_ARG, BPI_GGUF_DOMAIN, s->out.path,
                            "%llu bytes more than the tensors hold", (unsigned long long)n);
        uint64_t left = w->tensors[s->tensor].n_bytes - s->at;
        uint64_t take = n < left ? n : left;
        BP_TRY(bpi_output_write(&s->out, p, take, err));
        s->at += take;
        p += take;
        n -= take;
    }
    return BP_OK;
}

/* ---- the file ---- */

void bpi_gguf_writer_abandon(struct bpi_gguf_writer *w)
{
    bpi_output_drop(&w->saving.out);
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
    w->saving = (struct bpi_gguf_saving){0};
    BP_TRY_GOTO(rc, bpi_output_begin(&w->saving.out, path, bpi_gguf_writer_bytes(w), err), done);
    rc = bpi_output_write(&w->saving.out, header.data, header.len, err);
    if (rc != BP_OK) bpi_gguf_writer_abandon(w);
done:
    bpi_buf_free(&header);
    return rc;
}

static int32_t check_whole(struct bpi_gguf_writer *w, struct bp_error *err)
{
    const struct bpi_gguf_saving *s = &w->saving;
    BP_TRY(end_tensors(w, err));
    if (s->tensor == w->n_tensors) return BP_OK;
    return bpi_fail(err, BP_E_ARG, BPI_GGUF_DOMAIN, w->tensors[s->tensor].name,
                    "the tensor has %llu bytes and %llu were given",
                    (unsigned long long)w->tensors[s->tensor].n_bytes, (unsigned long long)s->at);
}

int32_t bpi_gguf_writer_finish(struct bpi_gguf_writer *w, struct bp_error *err)
{
    int32_t rc;
    if (w->saving.out.tmp == NULL)
        return bpi_fail(err, BP_E_ARG, BPI_GGUF_DOMAIN, NULL, "no file is being written");
    BP_TRY_GOTO(rc, check_whole(w, err), fail);
    return bpi_output_finish(&w->saving.out, err);
fail:
    bpi_gguf_writer_abandon(w);
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
