/* api_write.c - bp_gguf_writer_* of tools.h. Not here: the container (core/gguf).
 * Threads: one at a time. SPDX-License-Identifier: MIT */
#include "engine/engine.h"

struct bp_gguf_writer {
    struct bpi_gguf_writer *w;
    struct bp_error first; /* of a put that this file refused */
};

int32_t bp_gguf_writer_create(struct bp_gguf_writer **out, struct bp_error *err)
{
    *out = NULL;
    struct bp_gguf_writer *w = bpi_calloc(1, sizeof *w);
    if (w == NULL) return bpi_fail_nomem(err, "gguf", sizeof *w);
    w->first = (struct bp_error)BP_ERROR_INIT;
    int32_t rc = bpi_gguf_writer_create(&w->w, err);
    if (rc != BP_OK) {
        bpi_free(w);
        return rc;
    }
    *out = w;
    return BP_OK;
}

void bp_gguf_writer_destroy(struct bp_gguf_writer *w)
{
    if (w == NULL) return;
    bpi_gguf_writer_destroy(w->w);
    bpi_free(w);
}

/* Each put_ keeps its failure until save. */
void bp_gguf_writer_u32(struct bp_gguf_writer *w, const char *key, uint32_t v)
{
    (void)bpi_gguf_put_u32(w->w, key, v);
}

void bp_gguf_writer_str(struct bp_gguf_writer *w, const char *key, const char *v, size_t n)
{
    (void)bpi_gguf_put_str(w->w, key, v, n);
}

void bp_gguf_writer_tensor(struct bp_gguf_writer *w, const char *name, uint32_t type,
                           uint32_t n_dim, const int64_t *ne, const void *data)
{
    uint64_t n = 4;
    bool ok = (type == BP_GGUF_F32 || type == BP_GGUF_I32) && n_dim >= 1 && n_dim <= 4;
    for (uint32_t d = 0; ok && d < n_dim; ++d)
        ok = ne[d] >= 0 && bpi_mul_u64(n, (uint64_t)ne[d], &n);
    if (ok) {
        (void)bpi_gguf_put_tensor(w->w, name, type, n_dim, ne, data, n);
        return;
    }
    if (w->first.code == BP_OK)
        bpi_fail(&w->first, BP_E_ARG, "gguf", name,
                 "a tensor to write is F32 or I32 and has 1 to 4 dimensions; this one has type %u "
                 "and %u",
                 type, n_dim);
}

int32_t bp_gguf_writer_save(struct bp_gguf_writer *w, const char *path, struct bp_error *err)
{
    if (w->first.code != BP_OK)
        return bpi_fail(err, w->first.code, "gguf", w->first.where, "%s", w->first.msg);
    return bpi_gguf_writer_save(w->w, path, err);
}
