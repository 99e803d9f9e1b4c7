/* token_image.h - GGUF files of nothing but tokenizer keys, built in memory: what the tokenizer's tests and its fuzz
 * target open. Knows the container's layout by itself, so that any malformed key can be written.
 * Not here: tensors. Threads: an image belongs to one thread. SPDX-License-Identifier: MIT */
#ifndef BP_TEST_TOKEN_IMAGE_H
#define BP_TEST_TOKEN_IMAGE_H

#include <stdint.h>
#include <string.h>
#include "base/base.h"
#include "gguf/gguf.h"
#include "token/token.h"

struct image {
    struct bpi_buf b;
    uint64_t n_kv;
    /* String arrays under construction. */
    struct bpi_buf tokens, types, merges;
    uint32_t n_tokens, n_types, n_merges;
};

static inline void image_num(struct bpi_buf *b, uint64_t v, size_t n_bytes)
{
    bpi_buf_append(b, &v, n_bytes); /* little-endian hosts only, as everywhere in the project */
}
static inline void image_text(struct bpi_buf *b, const char *s, size_t n)
{
    image_num(b, n, 8);
    bpi_buf_append(b, s, n);
}
static inline void image_key(struct image *m, const char *key, uint32_t kind)
{
    image_text(&m->b, key, strlen(key));
    image_num(&m->b, kind, 4);
    ++m->n_kv;
}
static inline void image_str(struct image *m, const char *key, const char *v)
{
    image_key(m, key, BPI_GGUF_STRING);
    image_text(&m->b, v, strlen(v));
}
static inline void image_u32(struct image *m, const char *key, uint32_t v)
{
    image_key(m, key, BPI_GGUF_U32);
    image_num(&m->b, v, 4);
}
static inline void image_bool(struct image *m, const char *key, bool v)
{
    image_key(m, key, BPI_GGUF_BOOL);
    image_num(&m->b, v, 1);
}
static inline void image_array(struct image *m, const char *key, uint32_t kind, uint64_t n,
                               const struct bpi_buf *payload)
{
    image_key(m, key, BPI_GGUF_ARRAY);
    image_num(&m->b, kind, 4);
    image_num(&m->b, n, 8);
    bpi_buf_append(&m->b, payload->data, payload->len);
}

static inline uint32_t image_token_n(struct image *m, const char *text, size_t n, int32_t type)
{
    image_text(&m->tokens, text, n);
    image_num(&m->types, (uint32_t)type, 4);
    ++m->n_types;
    return m->n_tokens++;
}
static inline uint32_t image_token(struct image *m, const char *text, int32_t type)
{
    return image_token_n(m, text, strlen(text), type);
}
static inline void image_merge(struct image *m, const char *line)
{
    image_text(&m->merges, line, strlen(line));
    ++m->n_merges;
}

/* The character that stands for a byte, by its definition: printable ones for themselves, the others counted up. */
static inline size_t image_byte_text(uint32_t byte, unsigned char out[4])
{
    uint32_t cp = 0, next = 0x100;
    for (uint32_t i = 0; i <= byte; ++i) {
        bool self = (i >= 33 && i <= 126) || (i >= 161 && i <= 172) || i >= 174;
        cp = self ? i : next++;
    }
    return bpi_utf8_encode(cp, out);
}
/* Entries 0 to 255, each the byte of its id. */
static inline void image_bytes(struct image *m)
{
    for (uint32_t byte = 0; byte < 256; ++byte) {
        unsigned char text[4];
        size_t n = image_byte_text(byte, text);
        (void)image_token_n(m, (const char *)text, n, BPI_TOK_NORMAL);
    }
}
static inline void image_begin(struct image *m, const char *pre)
{
    *m = (struct image){0};
    bpi_buf_append(&m->b, "GGUF", 4);
    image_num(&m->b, 3, 4);
    image_num(&m->b, 0, 8); /* tensors */
    image_num(&m->b, 0, 8); /* keys: filled in at the end */
    image_str(m, "general.architecture", "test");
    image_str(m, "tokenizer.ggml.model", "gpt2");
    if (pre != NULL) image_str(m, "tokenizer.ggml.pre", pre);
}
/* Writes the collected arrays and the number of keys. */
static inline void image_end(struct image *m)
{
    if (m->n_tokens > 0) {
        image_array(m, "tokenizer.ggml.tokens", BPI_GGUF_STRING, m->n_tokens, &m->tokens);
    }
    if (m->n_types > 0) {
        image_array(m, "tokenizer.ggml.token_type", BPI_GGUF_I32, m->n_types, &m->types);
    }
    if (m->n_merges > 0) {
        image_array(m, "tokenizer.ggml.merges", BPI_GGUF_STRING, m->n_merges, &m->merges);
    }
    if (!m->b.failed) memcpy(m->b.data + 16, &m->n_kv, 8);
}
static inline void image_free(struct image *m)
{
    bpi_buf_free(&m->b);
    bpi_buf_free(&m->tokens);
    bpi_buf_free(&m->types);
    bpi_buf_free(&m->merges);
}
/* Opens the container and the tokenizer in it, then drops the container and the image: the tokenizer stands alone. */
static inline int32_t image_open(struct image *m, struct bpi_token **out, struct bp_error *err)
{
    struct bpi_gguf *g = NULL;
    *out = NULL;
    image_end(m);
    int32_t rc =
        m->b.failed ? BP_E_NOMEM : bpi_gguf_open_memory(m->b.data, m->b.len, "image", &g, err);
    if (rc == BP_OK) rc = bpi_token_open(g, out, err);
    bpi_gguf_close(g);
    image_free(m);
    return rc;
}

#endif
