/* manifest_fixture.h - small models and manifests for the tests of hashing. SPDX-License-Identifier: MIT */
#ifndef MANIFEST_FIXTURE_H
#define MANIFEST_FIXTURE_H

#include "gguf/gguf_manifest.h"
#include "unit/gguf/gguf_image.h"

/* The image stays where it is until the file is closed. */
static inline struct bpi_gguf *image_file(const struct image *m)
{
    struct bpi_gguf *g = NULL;
    struct bp_error err = BP_ERROR_INIT;
    ck_assert_msg(bpi_gguf_open_memory(m->p, m->n, "image", &g, &err) == BP_OK, "%s", err.msg);
    return g;
}

static inline struct bpi_manifest *hashed(const struct bpi_gguf *g, struct bpi_pool *pool)
{
    struct bp_error err = BP_ERROR_INIT;
    struct bpi_manifest *m = NULL;
    int32_t rc = bpi_manifest_make(g, pool, NULL, NULL, &m, &err);
    ck_assert_msg(rc == BP_OK && m != NULL, "%s", err.msg);
    return m;
}

static inline char *text_of(const struct bpi_manifest *m)
{
    struct bpi_buf b = {0};
    bpi_manifest_format(m, &b);
    ck_assert(!b.failed);
    return b.data;
}

#endif
