/* token_priv.h - the tokenizer's inside, for the files of this room and its unit tests.
 * Threads: immutable after open. SPDX-License-Identifier: MIT */
#ifndef BPI_TOKEN_PRIV_H
#define BPI_TOKEN_PRIV_H

#include "base/base.h"
#include "token/token.h"
#include "token/token_pretok.h"

#define BPI_TOKEN_DOMAIN "token"

enum {
    BPI_TOKEN_MAX_BYTES = 65535, /* of one vocabulary entry */
    BPI_TOKEN_MAX_SPECIAL_BYTES =
        1024, /* of an entry that is looked for in text: bounds the search per byte */
    BPI_TOKENIZE_CONTENT = 1 << 16 /* flag inside the room: chat contents, see token_special.c */
};
#define BPI_STRING_NONE UINT32_MAX

/* Texts with ids 0, 1, 2, ... and the way back. Id < n_vocab: a vocabulary entry. Beyond: a text that only merges
 * mention; merging works on texts, so such a text may be a step on the way to an entry. */
struct bpi_strings {
    struct bpi_span *text;
    uint32_t n, cap;
    uint32_t *slot;  /* id + 1, or 0; open addressing */
    uint32_t n_slot; /* power of two or 0 */
    uint64_t seed;   /* per object, so that a file cannot be made to collide */
    struct bpi_arena arena;
};
/* Appends a copy without making it findable. */
int32_t bpi_strings_append(struct bpi_strings *s, const char *text, size_t n, uint32_t *id);
/* Makes `id` findable. *other is the id that has the same text already, or id. */
int32_t bpi_strings_link(struct bpi_strings *s, uint32_t id, uint32_t *other);
uint32_t bpi_strings_find(const struct bpi_strings *s, const char *text, size_t n);
/* Finds or appends and links. */
int32_t bpi_strings_intern(struct bpi_strings *s, const char *text, size_t n, uint32_t *id);
void bpi_strings_free(struct bpi_strings *s);
uint64_t bpi_mix64(uint64_t a, uint64_t b);

struct bpi_merge {
    uint32_t left, right, result; /* string ids; result is BPI_STRING_NONE in a free slot */
    uint32_t rank;
};
struct bpi_merges {
    struct bpi_merge *slot;
    uint32_t n_slot; /* power of two or 0 */
    uint64_t seed;
};
/* NULL when the pair does not merge. */
const struct bpi_merge *bpi_merges_find(const struct bpi_merges *m, uint32_t left, uint32_t right);
/* Room for n merges, once, before any is added: BP_OK, BP_E_LIMIT, BP_E_NOMEM. */
int32_t bpi_merges_reserve(struct bpi_merges *m, uint64_t n);
/* A pair that is there already keeps its rank. */
void bpi_merges_add(struct bpi_merges *m, uint32_t left, uint32_t right, uint32_t result,
                    uint32_t rank);
int32_t bpi_merges_load(struct bpi_merges *m, struct bpi_strings *strings, const struct bpi_gguf *g,
                        const struct bpi_gguf_kv *kv, struct bp_error *err);

/* token_ranks.c: the merges that follow from ids which are ranks. */
int32_t bpi_merges_from_ranks(struct bpi_token *t, struct bp_error *err);

/* Tries of the entries that text is searched for. Node 0 is unused, so that 0 means none. */
struct bpi_special_node {
    uint32_t child, sibling;
    int32_t id; /* the entry that ends here or BPI_TOKEN_NONE */
    unsigned char byte;
};
struct bpi_special {
    uint32_t first[256]; /* node by first byte */
    struct bpi_special_node *node;
    uint32_t n, cap;
};

enum bpi_token_attr {
    BPI_ATTR_BPE = 1,     /* merging may end in it: decoding it gives back the very bytes */
    BPI_ATTR_EOG = 2,     /* ends generation */
    BPI_ATTR_SPECIAL = 4, /* searched for in text */
    BPI_ATTR_MARKUP = 8   /* USER_DEFINED, but written like a tag: never taken from chat contents */
};

enum { BPI_TOKEN_MAX_NOTES = 2 };
struct bpi_token_note {
    const char *key, *text; /* constants */
};

struct bpi_token {
    struct bpi_strings strings;
    uint32_t n_vocab;
    unsigned char *type, *attr; /* [n_vocab] */
    uint32_t byte_id[256];      /* the entry of each single byte */
    size_t max_text;            /* longest entry */
    struct bpi_merges merges;
    struct bpi_special special;
    const struct bpi_pretok *pre;
    bool whole_words; /* a word that is an entry is taken as it is, before any merging */
    int32_t bos, eos;
    bool add_bos;
    bool has_template;
    bool chat_newline; /* the template writes a newline behind a role marker */
    const struct bpi_chat_family *chat;
    struct bpi_span chat_system; /* what the template adds to chats without; n 0: nothing */
    struct bpi_token_note note[BPI_TOKEN_MAX_NOTES];
    uint32_t n_notes;
};

/* The character that stands for a byte in vocabulary texts, and back (-1: not one of the 256). */
uint32_t bpi_byte_to_cp(unsigned char byte);
int bpi_cp_to_byte(uint32_t cp);

/* token_special.c */
int32_t bpi_special_build(struct bpi_token *t);
struct bpi_special_hit {
    size_t at;
    uint32_t n;
    int32_t id;
};
struct bpi_special_hits {
    struct bpi_special_hit *hit; /* by place, without overlap */
    size_t n, cap;
};
int32_t bpi_special_search(const struct bpi_token *t, const char *text, size_t n, uint32_t flags,
                           struct bpi_special_hits *out);

/* token_bpe.c: a min-heap of keys, and tokenizing with the flags of the room. Appends to *out; on failure *out is as
 * it was. */
struct bpi_heap {
    uint64_t *key;
    size_t n, cap;
};
int32_t bpi_heap_push(struct bpi_heap *h, uint64_t key);
uint64_t bpi_heap_pop(struct bpi_heap *h);
int32_t bpi_tokenize_plain(const struct bpi_token *t, const char *text, size_t n, uint32_t flags,
                           struct bpi_ids *out, struct bp_error *err);

/* token_chat.c: looks at the template once. BP_OK, also when it is none of the known ones, or BP_E_NOMEM. */
int32_t bpi_chat_recognise(struct bpi_token *t, const char *text, size_t n);

#endif
