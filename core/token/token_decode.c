/* token_decode.c - ids to bytes, and to text that arrives token by token.
 * Not here: which ids end a text (token_vocab.c). Threads: a stream belongs to one thread.
 * SPDX-License-Identifier: MIT */
#include "token/token_priv.h"

#include <string.h>

/* Normal entries: each character stands for a byte. A character that stands for none is kept as it is written. */
static void append_mapped(struct bpi_buf *b, struct bpi_span text)
{
    const unsigned char *p = (const unsigned char *)text.data;
    for (uint64_t i = 0; i < text.n;) {
        uint32_t cp;
        bool ok;
        size_t len = bpi_utf8_decode(p + i, text.n - i, &cp, &ok);
        int byte = ok ? bpi_cp_to_byte(cp) : -1;
        if (byte >= 0) {
            unsigned char one = (unsigned char)byte;
            bpi_buf_append(b, &one, 1);
        } else {
            bpi_buf_append(b, p + i, len);
        }
        i += len;
    }
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Entries of type BYTE are written <0x0A>. Any other spelling is text. */
static void append_byte_entry(struct bpi_buf *b, struct bpi_span text)
{
    if (text.n == 6 && memcmp(text.data, "<0x", 3) == 0 && text.data[5] == '>') {
        int high = hex_digit(text.data[3]), low = hex_digit(text.data[4]);
        if (high >= 0 && low >= 0) {
            unsigned char one = (unsigned char)(high << 4 | low);
            bpi_buf_append(b, &one, 1);
            return;
        }
    }
    bpi_buf_append(b, text.data, text.n);
}

int32_t bpi_token_bytes(const struct bpi_token *t, int32_t id, bool special, struct bpi_buf *b)
{
    if (id < 0 || (uint32_t)id >= t->n_vocab) return BP_E_ARG;
    struct bpi_span text = t->strings.text[id];
    switch (t->type[id]) {
    case BPI_TOK_CONTROL:
    case BPI_TOK_UNKNOWN:
        if (special) bpi_buf_append(b, text.data, text.n);
        break;
    case BPI_TOK_USER:
        bpi_buf_append(b, text.data, text.n);
        break;
    case BPI_TOK_BYTE:
        append_byte_entry(b, text);
        break;
    default:
        append_mapped(b, text);
        break;
    }
    return b->failed ? BP_E_NOMEM : BP_OK;
}

int32_t bpi_token_stream_push(struct bpi_token_stream *s, const struct bpi_token *t, int32_t id,
                              bool special, struct bpi_buf *out)
{
    if (id < 0 || (uint32_t)id >= t->n_vocab) return BP_E_ARG;
    size_t before = out->len;
    bpi_buf_append(out, s->held, s->n_held);
    BP_TRY(bpi_token_bytes(t, id, special, out));
    size_t tail =
        bpi_utf8_incomplete_tail((const unsigned char *)out->data + before, out->len - before);
    out->len -= tail;
    memcpy(s->held, out->data + out->len, tail);
    out->data[out->len] = '\0';
    s->n_held = (uint32_t)tail;
    return BP_OK;
}

void bpi_token_stream_flush(struct bpi_token_stream *s, struct bpi_buf *out)
{
    bpi_buf_append(out, s->held, s->n_held);
    s->n_held = 0;
}
