/* gguf_image.h - builds GGUF images byte by byte, right or wrong, for the tests of core/gguf.
 * Not here: core/gguf's own writer, which refuses to write what is wrong. SPDX-License-Identifier: MIT */
#ifndef GGUF_IMAGE_H
#define GGUF_IMAGE_H

#include <check.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "gguf/gguf.h"

struct image {
    unsigned char *p;
    size_t n, cap;
};

static inline void img_bytes(struct image *m, const void *p, size_t n)
{
    if (m->n + n > m->cap) {
        m->cap = 2 * (m->n + n) + 256;
        m->p = realloc(m->p, m->cap);
        ck_assert_ptr_nonnull(m->p);
    }
    if (n > 0) memcpy(m->p + m->n, p, n);
    m->n += n;
}
static inline void img_free(struct image *m)
{
    free(m->p);
    *m = (struct image){0};
}
static inline void img_u8(struct image *m, unsigned v)
{
    unsigned char c = (unsigned char)v;
    img_bytes(m, &c, 1);
}
static inline void img_u16(struct image *m, unsigned v)
{
    uint16_t s = (uint16_t)v;
    img_bytes(m, &s, 2);
}
static inline void img_u32(struct image *m, uint32_t v)
{
    img_bytes(m, &v, 4);
}
static inline void img_u64(struct image *m, uint64_t v)
{
    img_bytes(m, &v, 8);
}
static inline void img_f32(struct image *m, float v)
{
    img_bytes(m, &v, 4);
}
static inline void img_f64(struct image *m, double v)
{
    img_bytes(m, &v, 8);
}
static inline void img_text(struct image *m, const char *s)
{
    img_bytes(m, s, strlen(s));
}
static inline void img_str(struct image *m, const char *s)
{
    img_u64(m, strlen(s));
    img_text(m, s);
}
static inline void img_fill(struct image *m, unsigned byte, size_t n)
{
    for (size_t i = 0; i < n; ++i) img_u8(m, byte);
}
static inline void img_pad(struct image *m, size_t align)
{
    while (m->n % align != 0) img_u8(m, 0);
}

static inline void img_header(struct image *m, uint32_t version, uint64_t n_tensors, uint64_t n_kv)
{
    img_text(m, "GGUF");
    img_u32(m, version);
    img_u64(m, n_tensors);
    img_u64(m, n_kv);
}
/* Key and kind; the value is up to the caller. */
static inline void img_key(struct image *m, const char *key, uint32_t kind)
{
    img_str(m, key);
    img_u32(m, kind);
}
static inline void img_kv_u32(struct image *m, const char *key, uint32_t v)
{
    img_key(m, key, BPI_GGUF_U32);
    img_u32(m, v);
}
static inline void img_kv_str(struct image *m, const char *key, const char *v)
{
    img_key(m, key, BPI_GGUF_STRING);
    img_str(m, v);
}
static inline void img_array(struct image *m, const char *key, uint32_t kind, uint64_t n)
{
    img_key(m, key, BPI_GGUF_ARRAY);
    img_u32(m, kind);
    img_u64(m, n);
}
static inline void img_tensor(struct image *m, const char *name, uint32_t n_dim, const uint64_t *ne,
                              uint32_t type, uint64_t offset)
{
    img_str(m, name);
    img_u32(m, n_dim);
    for (uint32_t i = 0; i < n_dim; ++i) img_u64(m, ne[i]);
    img_u32(m, type);
    img_u64(m, offset);
}
static inline void img_tensor2(struct image *m, const char *name, uint64_t ne0, uint64_t ne1,
                               uint32_t type, uint64_t offset)
{
    img_tensor(m, name, 2, (const uint64_t[]){ne0, ne1}, type, offset);
}

/* A small right file with every kind of value. Its last byte is the last byte of its last tensor. */
static inline void img_small(struct image *m)
{
    img_header(m, 3, 3, 17);
    img_kv_str(m, "general.architecture", "test");
    img_key(m, "k.u8", BPI_GGUF_U8), img_u8(m, 200);
    img_key(m, "k.i8", BPI_GGUF_I8), img_u8(m, (unsigned char)-100);
    img_key(m, "k.u16", BPI_GGUF_U16), img_u16(m, 60000);
    img_key(m, "k.i16", BPI_GGUF_I16), img_u16(m, (uint16_t)-30000);
    img_kv_u32(m, "k.u32", 4000000000u);
    img_key(m, "k.i32", BPI_GGUF_I32), img_u32(m, (uint32_t)-2000000000);
    img_key(m, "k.f32", BPI_GGUF_F32V), img_f32(m, 0.1f);
    img_key(m, "k.bool", BPI_GGUF_BOOL), img_u8(m, 1);
    img_kv_str(m, "k.str", "h\xc3\xa9llo\n");
    img_key(m, "k.u64", BPI_GGUF_U64), img_u64(m, UINT64_MAX);
    img_key(m, "k.i64", BPI_GGUF_I64V), img_u64(m, (uint64_t)INT64_MIN);
    img_key(m, "k.f64", BPI_GGUF_F64V), img_f64(m, 0.1);
    img_array(m, "k.ints", BPI_GGUF_I16, 3), img_u16(m, 1), img_u16(m, 0xfffe), img_u16(m, 3);
    img_array(m, "k.strs", BPI_GGUF_STRING, 3), img_str(m, "a"), img_str(m, ""),
        img_str(m, "\xff z");
    img_array(m, "k.none", BPI_GGUF_STRING, 0);
    img_array(m, "k.many", BPI_GGUF_F32V, 20), img_fill(m, 0, 80);
    img_tensor2(m, "a.weight", 32, 2, BP_GGUF_Q8_0, 0);
    img_tensor(m, "b.bias", 1, (const uint64_t[]){5}, BP_GGUF_F32, 96);
    img_tensor(m, "c.weight", 4, (const uint64_t[]){2, 3, 1, 2}, BP_GGUF_F16, 128);
    img_pad(m, 32);
    for (unsigned i = 0; i < 128 + 24; ++i) img_u8(m, i);
}

/* Opens a copy of exactly n bytes, so that a sanitizer sees the first byte read beyond them; *copy is to be freed. */
static inline int32_t img_open(const unsigned char *p, size_t n, unsigned char **copy,
                               struct bpi_gguf **out, struct bp_error *err)
{
    *copy = malloc(n > 0 ? n : 1);
    ck_assert_ptr_nonnull(*copy);
    if (n > 0) memcpy(*copy, p, n);
    *out = NULL;
    *err = (struct bp_error)BP_ERROR_INIT;
    int32_t rc = bpi_gguf_open_memory(*copy, n, "image", out, err);
    ck_assert_msg((rc == BP_OK) == (*out != NULL), "status %d with%s an object", rc,
                  *out != NULL ? "" : "out");
    ck_assert_msg(err->code == rc, "status %d, but the error says %d", rc, err->code);
    ck_assert_msg((rc == BP_OK) == (err->msg[0] == '\0'), "status %d with message '%s'", rc,
                  err->msg);
    return rc;
}

static inline void img_save(const struct image *m, const char *path)
{
    struct bp_error err = BP_ERROR_INIT;
    ck_assert_msg(bpi_file_write(path, m->p, m->n, &err) == BP_OK, "%s", err.msg);
}

static inline int img_main(Suite *s)
{
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}

#endif
