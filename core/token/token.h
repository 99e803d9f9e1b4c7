/* token.h - byte-level BPE: text to ids and back, pre-tokenizers, streaming decode, chat formatting.
 * Not here: Jinja; chat formats are recognised families written as data.
 * Text is hostile: any bytes are legal input and round-trip; special tokens inside text are only recognised on
 * request. Unicode classes come from generated tables (scripts/gen_unicode.py).
 * Threads: a tokenizer is immutable after open; a stream belongs to one thread. SPDX-License-Identifier: MIT */
#ifndef BPI_TOKEN_H
#define BPI_TOKEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/base.h"
#include "gguf/gguf.h"

struct bpi_token;

enum { BPI_TOKEN_NONE = -1 };
enum bpi_token_kind { /* tokenizer.ggml.token_type */
    BPI_TOK_UNDEFINED = 0, BPI_TOK_NORMAL = 1, BPI_TOK_UNKNOWN = 2, BPI_TOK_CONTROL = 3, BPI_TOK_USER = 4,
    BPI_TOK_UNUSED = 5, BPI_TOK_BYTE = 6
};

/* Builds a tokenizer from the tokenizer.* keys. Errors: BP_E_FORMAT (missing or malformed keys, duplicate tokens,
 * ids outside the vocabulary, types shorter than tokens), BP_E_UNSUPPORTED (model other than gpt2, unknown pre: the
 * message lists what is known; a missing one means "default", with a note), BP_E_LIMIT (an entry above 64 KiB, a special
 * one above 1 KiB), BP_E_NOMEM. Linear in the file's size, but for sorting the entries of a file that leaves out its
 * merges. The file may be closed afterwards. */
int32_t bpi_token_open(const struct bpi_gguf *g, struct bpi_token **out, struct bp_error *err);
void bpi_token_close(struct bpi_token *t); /* accepts NULL */

/* What a user should know about this tokenizer: the i-th note, a key of the file and a sentence about what it lacks and
 * what was done instead. False past the last one. */
bool bpi_token_note(const struct bpi_token *t, uint32_t i, const char **out_key, const char **out_text);

uint32_t bpi_token_count(const struct bpi_token *t);
const char *bpi_token_pre(const struct bpi_token *t);
/* Ids or BPI_TOKEN_NONE. */
int32_t bpi_token_bos(const struct bpi_token *t);
int32_t bpi_token_eos(const struct bpi_token *t);
bool bpi_token_add_bos(const struct bpi_token *t);
/* End of generation: eos, eot, eom, and tokens whose text is a known end marker. */
bool bpi_token_is_eog(const struct bpi_token *t, int32_t id);
uint32_t bpi_token_type(const struct bpi_token *t, int32_t id); /* enum bpi_token_kind; UNDEFINED out of range */
int32_t bpi_token_find(const struct bpi_token *t, const char *text, size_t n); /* id of exactly this vocabulary entry */
/* The vocabulary entry as stored (byte alphabet for normal tokens). Empty span out of range. */
struct bpi_span bpi_token_text(const struct bpi_token *t, int32_t id);

enum {
    BPI_TOKENIZE_SPECIAL = 1, /* CONTROL and UNKNOWN tokens written in the text are recognised (trusted text only) */
    BPI_TOKENIZE_BOS = 2      /* prepend BOS when the file says add_bos, unless the text begins with it */
};
struct bpi_ids {
    int32_t *ids;
    size_t n, cap;
    bool own_bos; /* of the last bpi_tokenize: the text begins with BOS itself, so none was added */
};
/* Appends the ids of text[0..n) to *out. Errors: BP_E_NOMEM, BP_E_LIMIT (n above 2^30). Time O(n log n). */
int32_t bpi_tokenize(const struct bpi_token *t, const char *text, size_t n, uint32_t flags, struct bpi_ids *out,
                     struct bp_error *err);
void bpi_ids_free(struct bpi_ids *ids);
int32_t bpi_ids_push(struct bpi_ids *ids, int32_t id); /* BP_OK or BP_E_NOMEM */

/* Bytes of one token appended to b: normal tokens through the byte alphabet; control tokens only when `special`;
 * ids out of range append nothing and return BP_E_ARG. */
int32_t bpi_token_bytes(const struct bpi_token *t, int32_t id, bool special, struct bpi_buf *b);

/* Streaming decode: push ids, take text that ends on a code-point boundary. Bytes that can never become valid UTF-8
 * are passed on as they are once that is certain. Zero-initialise. */
struct bpi_token_stream {
    unsigned char held[4]; /* an incomplete sequence */
    uint32_t n_held;
};
int32_t bpi_token_stream_push(struct bpi_token_stream *s, const struct bpi_token *t, int32_t id, bool special,
                              struct bpi_buf *out);
void bpi_token_stream_flush(struct bpi_token_stream *s, struct bpi_buf *out);

/* Splits text into the pieces that BPE works on, for tests and tools: calls fn for each piece in order. */
int32_t bpi_pretok_split(const char *pre, const char *text, size_t n,
                         int32_t (*fn)(void *ctx, const char *piece, size_t n), void *ctx);
/* NULL-terminated list of the pre-tokenizer names that are implemented. */
const char *const *bpi_pretok_names(void);

/* ---- chat (token_chat.c) ---- */
struct bpi_chat_msg {
    const char *role; /* "system", "user", "assistant" */
    const char *content;
    size_t n_content;
};
/* Ids of a conversation in the model's own format: markers become special ids, contents never do. add_generation
 * appends the header after which the model answers. The family is recognised from tokenizer.chat_template. Where that
 * gives a system message to chats that begin with none (Kimi-K2), so does this.
 * Errors: BP_E_UNSUPPORTED (no template, or none that is known: the message says what to do), BP_E_ARG (unknown
 * role), BP_E_FORMAT (the vocabulary lacks a marker), BP_E_LIMIT (a content above 2^30 bytes), BP_E_NOMEM. */
int32_t bpi_chat_format(const struct bpi_token *t, const struct bpi_chat_msg *msgs, size_t n, bool add_generation,
                        struct bpi_ids *out, struct bp_error *err);
/* "glm", "deepseek2", ... or NULL when the template is missing or unknown. */
const char *bpi_chat_family(const struct bpi_token *t);

#endif
