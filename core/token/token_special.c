/* token_special.c - which special tokens stand in a text, and where.
 * The rule is that of a search token by token, the longest token first, each cutting the text: so where two overlap,
 * the longer one wins, not the earlier one. CONTROL and UNKNOWN tokens are seen only when the caller asks for it.
 * In chat contents, which nobody may forge turns with, USER_DEFINED tokens that look like markup are not seen either:
 * several models store their role markers as such tokens.
 * Cost: one walk down the trie for each byte that some special token begins with; more only where tokens overlap.
 * Not here: the text between them. Threads: pure on an open tokenizer. SPDX-License-Identifier: MIT */
#include "token/token_priv.h"

#include <string.h>

/* ---- the trie ---- */

static uint32_t add_node(struct bpi_special *s, unsigned char byte)
{
    if (s->n == s->cap) {
        uint64_t cap = s->cap > 0 ? (uint64_t)s->cap * 2 : 256;
        struct bpi_special_node *grown =
            cap <= UINT32_MAX ? bpi_realloc(s->node, cap, sizeof *grown) : NULL;
        if (grown == NULL) return 0;
        s->node = grown;
        s->cap = (uint32_t)cap;
        if (s->n == 0) s->n = 1; /* node 0 */
    }
    s->node[s->n] = (struct bpi_special_node){.id = BPI_TOKEN_NONE, .byte = byte};
    return s->n++;
}

static uint32_t child_of(const struct bpi_special *s, uint32_t node, unsigned char byte)
{
    uint32_t k = s->node[node].child;
    while (k != 0 && s->node[k].byte != byte) k = s->node[k].sibling;
    return k;
}

static int32_t add_entry(struct bpi_special *s, struct bpi_span text, int32_t id)
{
    const unsigned char *p = (const unsigned char *)text.data;
    uint32_t node = s->first[p[0]];
    if (node == 0) {
        node = s->first[p[0]] = add_node(s, p[0]);
        if (node == 0) return BP_E_NOMEM;
    }
    for (uint64_t i = 1; i < text.n; ++i) {
        uint32_t next = child_of(s, node, p[i]);
        if (next == 0) {
            next = add_node(s, p[i]);
            if (next == 0) return BP_E_NOMEM;
            s->node[next].sibling = s->node[node].child;
            s->node[node].child = next;
        }
        node = next;
    }
    s->node[node].id = id;
    return BP_OK;
}

int32_t bpi_special_build(struct bpi_token *t)
{
    for (uint32_t i = 0; i < t->n_vocab; ++i) {
        if ((t->attr[i] & BPI_ATTR_SPECIAL) != 0) {
            BP_TRY(add_entry(&t->special, t->strings.text[i], (int32_t)i));
        }
    }
    return BP_OK;
}

static bool is_seen(const struct bpi_token *t, int32_t id, uint32_t flags)
{
    if (t->type[id] != BPI_TOK_USER) return (flags & BPI_TOKENIZE_SPECIAL) != 0;
    return (flags & BPI_TOKENIZE_CONTENT) == 0 || (t->attr[id] & BPI_ATTR_MARKUP) == 0;
}

/* The longest token of at most max bytes at `at`; n == 0 when there is none. */
static struct bpi_special_hit longest_at(const struct bpi_token *t, const char *text, size_t n,
                                         size_t at, size_t max, uint32_t flags)
{
    const struct bpi_special *s = &t->special;
    const unsigned char *p = (const unsigned char *)text + at;
    struct bpi_special_hit hit = {at, 0, BPI_TOKEN_NONE};
    if (max > n - at) max = n - at;
    uint32_t node = max > 0 ? s->first[p[0]] : 0;
    for (uint32_t depth = 1; node != 0; ++depth) {
        int32_t id = s->node[node].id;
        if (id != BPI_TOKEN_NONE && is_seen(t, id, flags)) {
            hit.n = depth;
            hit.id = id;
        }
        node = depth < max ? child_of(s, node, p[depth]) : 0;
    }
    return hit;
}

/* ---- the search ---- */

static int32_t add_hit(struct bpi_special_hits *h, struct bpi_special_hit hit)
{
    if (h->n == h->cap) {
        size_t cap = h->cap > 0 ? h->cap * 2 : 64;
        struct bpi_special_hit *grown = bpi_realloc(h->hit, cap, sizeof *grown);
        if (grown == NULL) return BP_E_NOMEM;
        h->hit = grown;
        h->cap = cap;
    }
    h->hit[h->n++] = hit;
    return BP_OK;
}

static bool is_taken(const unsigned char *taken, size_t at)
{
    return (taken[at / 8] >> at % 8 & 1) != 0;
}

/* The longest hit first, then by place. A hit that an accepted one covers makes way for the next shorter token at its
 * place. Accepted ones are never shorter, so they overlap a hit only by covering its first or its last byte. */
static int32_t settle(const struct bpi_token *t, const char *text, size_t n, uint32_t flags,
                      struct bpi_special_hits *hits, struct bpi_heap *heap, unsigned char *taken)
{
    for (size_t i = 0; i < hits->n; ++i) {
        uint64_t rank = BPI_TOKEN_MAX_SPECIAL_BYTES - hits->hit[i].n;
        BP_TRY(bpi_heap_push(heap, rank << 32 | hits->hit[i].at));
    }
    hits->n = 0;
    while (heap->n > 0) {
        uint64_t key = bpi_heap_pop(heap);
        size_t at = (size_t)(key & UINT32_MAX);
        size_t len = BPI_TOKEN_MAX_SPECIAL_BYTES - (size_t)(key >> 32);
        struct bpi_special_hit hit = longest_at(t, text, n, at, len, flags);
        if (!is_taken(taken, at) && !is_taken(taken, at + hit.n - 1)) {
            for (size_t i = at; i < at + hit.n; ++i) taken[i / 8] |= (unsigned char)(1u << i % 8);
            BP_TRY(add_hit(hits, hit));
            continue;
        }
        hit = longest_at(t, text, n, at, hit.n - 1, flags);
        if (hit.n == 0) continue;
        BP_TRY(bpi_heap_push(heap, (uint64_t)(BPI_TOKEN_MAX_SPECIAL_BYTES - hit.n) << 32 | at));
    }
    return BP_OK;
}

/* Accepted hits come in the order of their length; the text needs them by place. */
static int32_t sort_by_place(struct bpi_special_hits *hits, struct bpi_heap *heap)
{
    struct bpi_special_hits sorted = {0};
    int32_t rc = BP_OK;
    for (size_t i = 0; rc == BP_OK && i < hits->n; ++i) {
        rc = bpi_heap_push(heap, (uint64_t)hits->hit[i].at << 32 | i);
    }
    while (rc == BP_OK && heap->n > 0) {
        rc = add_hit(&sorted, hits->hit[bpi_heap_pop(heap) & UINT32_MAX]);
    }
    bpi_free(hits->hit);
    *hits = sorted;
    return rc;
}

int32_t bpi_special_search(const struct bpi_token *t, const char *text, size_t n, uint32_t flags,
                           struct bpi_special_hits *out)
{
    bool overlap = false;
    size_t end = 0;
    for (size_t at = 0; at < n; ++at) {
        if (t->special.first[(unsigned char)text[at]] == 0) continue;
        struct bpi_special_hit hit = longest_at(t, text, n, at, n - at, flags);
        if (hit.n == 0) continue;
        BP_TRY(add_hit(out, hit));
        if (at < end) overlap = true;
        if (at + hit.n > end) end = at + hit.n;
    }
    if (!overlap) return BP_OK;
    struct bpi_heap heap = {0};
    unsigned char *taken = bpi_calloc(n / 8 + 1, 1);
    int32_t rc = taken != NULL ? settle(t, text, n, flags, out, &heap, taken) : BP_E_NOMEM;
    if (rc == BP_OK) rc = sort_by_place(out, &heap);
    bpi_free(taken);
    bpi_free(heap.key);
    return rc;
}
