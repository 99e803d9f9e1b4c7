/* token_bpe.c - text to ids: special tokens, then pieces, then merges by rank.
 * Merging takes the adjacent pair of the lowest rank, the leftmost of equals, until no pair has one. A heap holds
 * (rank, place); an entry is stale when the symbols at its place no longer form a pair of that rank. So a word of n
 * bytes costs O(n log n), and a megabyte of spaces is one word.
 * Not here: the vocabulary (token_vocab.c), chat formats. Threads: pure on an open tokenizer.
 * Source: Sennrich et al. 2016 (BPE); byte alphabet as in GPT-2's encoder. SPDX-License-Identifier: MIT */
#include "token/token_priv.h"

#include <string.h>

#define MAX_TEXT_BYTES (UINT64_C(1) << 30)

/* ---- ids ---- */

int32_t bpi_ids_push(struct bpi_ids *ids, int32_t id)
{
    if (ids->n == ids->cap) {
        size_t cap = ids->cap > 0 ? ids->cap * 2 : 64;
        int32_t *grown = bpi_realloc(ids->ids, cap, sizeof *grown);
        if (grown == NULL) return BP_E_NOMEM;
        ids->ids = grown;
        ids->cap = cap;
    }
    ids->ids[ids->n++] = id;
    return BP_OK;
}

void bpi_ids_free(struct bpi_ids *ids)
{
    bpi_free(ids->ids);
    *ids = (struct bpi_ids){0};
}

/* ---- heap ---- */

int32_t bpi_heap_push(struct bpi_heap *h, uint64_t key)
{
    if (h->n == h->cap) {
        size_t cap = h->cap > 0 ? h->cap * 2 : 256;
        uint64_t *grown = bpi_realloc(h->key, cap, sizeof *grown);
        if (grown == NULL) return BP_E_NOMEM;
        h->key = grown;
        h->cap = cap;
    }
    size_t i = h->n++;
    for (; i > 0 && h->key[(i - 1) / 2] > key; i = (i - 1) / 2) h->key[i] = h->key[(i - 1) / 2];
    h->key[i] = key;
    return BP_OK;
}

uint64_t bpi_heap_pop(struct bpi_heap *h)
{
    uint64_t top = h->key[0], last = h->key[--h->n];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= h->n) break;
        if (child + 1 < h->n && h->key[child + 1] < h->key[child]) ++child;
        if (h->key[child] >= last) break;
        h->key[i] = h->key[child];
        i = child;
    }
    if (h->n > 0) h->key[i] = last;
    return top;
}

/* ---- one word ---- */

/* A symbol is named by the place of its first byte. */
struct symbol {
    uint32_t id;   /* string id; BPI_STRING_NONE once merged into the symbol before */
    uint32_t prev; /* place of the symbol before; NO_PLACE for the first */
    uint32_t next; /* place of the symbol behind; the word's length for the last */
};
#define NO_PLACE UINT32_MAX

struct work {
    const struct bpi_token *t;
    struct bpi_ids *out;
    struct symbol *sym;
    size_t cap;
    struct bpi_heap heap;
    struct bpi_buf mapped;
};

static int32_t push_pair(struct work *w, uint32_t at, uint32_t n)
{
    if (at == NO_PLACE || w->sym[at].next >= n) return BP_OK;
    const struct bpi_merge *m =
        bpi_merges_find(&w->t->merges, w->sym[at].id, w->sym[w->sym[at].next].id);
    return m != NULL ? bpi_heap_push(&w->heap, (uint64_t)m->rank << 32 | at) : BP_OK;
}

static int32_t merge_all(struct work *w, uint32_t n)
{
    struct symbol *sym = w->sym;
    for (uint32_t i = 0; i < n; ++i) BP_TRY(push_pair(w, i, n));
    while (w->heap.n > 0) {
        uint64_t key = bpi_heap_pop(&w->heap);
        uint32_t at = (uint32_t)key, next = sym[at].next;
        if (sym[at].id == BPI_STRING_NONE || next >= n) continue;
        const struct bpi_merge *m = bpi_merges_find(&w->t->merges, sym[at].id, sym[next].id);
        if (m == NULL || m->rank != (uint32_t)(key >> 32)) continue;
        sym[at].id = m->result;
        sym[at].next = sym[next].next;
        sym[next].id = BPI_STRING_NONE;
        if (sym[at].next < n) sym[sym[at].next].prev = at;
        BP_TRY(push_pair(w, sym[at].prev, n));
        BP_TRY(push_pair(w, at, n));
    }
    return BP_OK;
}

/* A symbol that is no entry, or one that text must not become, falls back to the entries of its bytes. */
static int32_t emit_symbols(struct work *w, const unsigned char *word, uint32_t n)
{
    for (uint32_t at = 0; at < n; at = w->sym[at].next) {
        uint32_t id = w->sym[at].id;
        if (id < w->t->n_vocab && (w->t->attr[id] & BPI_ATTR_BPE) != 0) {
            BP_TRY(bpi_ids_push(w->out, (int32_t)id));
            continue;
        }
        for (uint32_t i = at; i < w->sym[at].next; ++i) {
            BP_TRY(bpi_ids_push(w->out, (int32_t)w->t->byte_id[word[i]]));
        }
    }
    return BP_OK;
}

/* The entry that is the whole word, for the models that prefer it to merging. */
static int32_t whole_word(struct work *w, const unsigned char *word, size_t n, int32_t *id)
{
    *id = BPI_TOKEN_NONE;
    if (n > w->t->max_text) return BP_OK;
    w->mapped.len = 0;
    for (size_t i = 0; i < n; ++i) {
        unsigned char utf8[4];
        bpi_buf_append(&w->mapped, utf8, bpi_utf8_encode(bpi_byte_to_cp(word[i]), utf8));
    }
    if (w->mapped.failed) return BP_E_NOMEM;
    *id = bpi_token_find(w->t, w->mapped.data, w->mapped.len);
    if (*id != BPI_TOKEN_NONE && (w->t->attr[*id] & BPI_ATTR_BPE) == 0) *id = BPI_TOKEN_NONE;
    return BP_OK;
}

static int32_t encode_word(void *ctx, const char *piece, size_t n)
{
    struct work *w = ctx;
    const unsigned char *word = (const unsigned char *)piece;
    if (n == 1) return bpi_ids_push(w->out, (int32_t)w->t->byte_id[word[0]]);
    if (w->t->whole_words) {
        int32_t id;
        BP_TRY(whole_word(w, word, n, &id));
        if (id != BPI_TOKEN_NONE) return bpi_ids_push(w->out, id);
    }
    if (n > w->cap) {
        size_t cap = n < 256 ? 256 : n;
        struct symbol *grown = bpi_realloc(w->sym, cap, sizeof *grown);
        if (grown == NULL) return BP_E_NOMEM;
        w->sym = grown;
        w->cap = cap;
    }
    for (uint32_t i = 0; i < n; ++i) {
        w->sym[i] = (struct symbol){w->t->byte_id[word[i]], i > 0 ? i - 1 : NO_PLACE, i + 1};
    }
    w->heap.n = 0;
    BP_TRY(merge_all(w, (uint32_t)n));
    return emit_symbols(w, word, (uint32_t)n);
}

/* ---- a text ---- */

static int32_t encode_text(struct work *w, const char *text, size_t n, uint32_t flags,
                           struct bpi_special_hits *hits)
{
    BP_TRY(bpi_special_search(w->t, text, n, flags, hits));
    size_t at = 0;
    for (size_t i = 0; i < hits->n; ++i) {
        const struct bpi_special_hit *hit = &hits->hit[i];
        BP_TRY(bpi_pretok_run(w->t->pre, text + at, hit->at - at, encode_word, w));
        BP_TRY(bpi_ids_push(w->out, hit->id));
        at = hit->at + hit->n;
    }
    return bpi_pretok_run(w->t->pre, text + at, n - at, encode_word, w);
}

int32_t bpi_tokenize_plain(const struct bpi_token *t, const char *text, size_t n, uint32_t flags,
                           struct bpi_ids *out, struct bp_error *err)
{
    if (n > MAX_TEXT_BYTES) {
        return bpi_fail(err, BP_E_LIMIT, BPI_TOKEN_DOMAIN, NULL,
                        "the text has %llu bytes; at most 2^30 can be tokenized at once, cut it",
                        (unsigned long long)n);
    }
    size_t before = out->n;
    struct work w = {.t = t, .out = out};
    struct bpi_special_hits hits = {0};
    int32_t rc = encode_text(&w, text, n, flags, &hits);
    bpi_free(hits.hit);
    bpi_free(w.sym);
    bpi_free(w.heap.key);
    bpi_buf_free(&w.mapped);
    if (rc != BP_OK) {
        out->n = before;
        bpi_fail_nomem(err, BPI_TOKEN_DOMAIN, n);
    }
    return rc;
}

int32_t bpi_tokenize(const struct bpi_token *t, const char *text, size_t n, uint32_t flags,
                     struct bpi_ids *out, struct bp_error *err)
{
    size_t before = out->n;
    bool bos = (flags & BPI_TOKENIZE_BOS) != 0 && t->add_bos;
    out->own_bos = false;
    if (bos && bpi_ids_push(out, t->bos) != BP_OK) {
        return bpi_fail_nomem(err, BPI_TOKEN_DOMAIN, sizeof(int32_t));
    }
    int32_t rc = bpi_tokenize_plain(t, text, n, flags & BPI_TOKENIZE_SPECIAL, out, err);
    if (rc != BP_OK) {
        out->n = before;
        return rc;
    }
    /* The text may bring its own: a model never wants two. An odd file may name an ordinary entry, which is text. */
    if (bos && out->n > before + 1 && out->ids[before + 1] == t->bos &&
        (t->attr[t->bos] & BPI_ATTR_SPECIAL) != 0) {
        memmove(&out->ids[before], &out->ids[before + 1], (--out->n - before) * sizeof(int32_t));
        out->own_bos = true;
    }
    return BP_OK;
}
