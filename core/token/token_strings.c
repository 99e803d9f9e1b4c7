/* token_strings.c - texts and their ids, pairs of ids and their merge.
 * Not here: what a text means. Threads: an object belongs to one thread until it is finished, then to any number.
 * SPDX-License-Identifier: MIT */
#include "token/token_priv.h"

#include <string.h>

/* Both halves of a 128-bit product folded: cheap, and with a seed per object not to be aimed at from a file. */
uint64_t bpi_mix64(uint64_t a, uint64_t b)
{
    unsigned __int128 p =
        (unsigned __int128)(a ^ UINT64_C(0x9e3779b97f4a7c15)) * (b ^ UINT64_C(0xd1b54a32d192ed03));
    return (uint64_t)p ^ (uint64_t)(p >> 64);
}

static uint64_t hash_text(uint64_t seed, const char *text, size_t n)
{
    uint64_t h = bpi_mix64(seed, n);
    while (n > 0) {
        uint64_t word = 0;
        size_t part = n < 8 ? n : 8;
        memcpy(&word, text, part);
        h = bpi_mix64(h, word ^ seed);
        text += part;
        n -= part;
    }
    return h;
}

int32_t bpi_strings_append(struct bpi_strings *s, const char *text, size_t n, uint32_t *id)
{
    if (s->n == s->cap) {
        uint64_t cap = s->cap > 0 ? (uint64_t)s->cap * 2 : 256;
        if (cap > INT32_MAX) return BP_E_LIMIT;
        struct bpi_span *grown = bpi_realloc(s->text, cap, sizeof *grown);
        if (grown == NULL) return BP_E_NOMEM;
        s->text = grown;
        s->cap = (uint32_t)cap;
    }
    char *copy = bpi_arena_strndup(&s->arena, text, n);
    if (copy == NULL) return BP_E_NOMEM;
    s->text[s->n] = (struct bpi_span){copy, n};
    *id = s->n++;
    return BP_OK;
}

/* The slot that holds the text, or the free one where it belongs. There is a free one: at most half are taken. */
static uint32_t *slot_of(const struct bpi_strings *s, const char *text, size_t n)
{
    uint32_t mask = s->n_slot - 1;
    for (uint32_t i = (uint32_t)hash_text(s->seed, text, n) & mask;; i = (i + 1) & mask) {
        uint32_t taken = s->slot[i];
        if (taken == 0) return &s->slot[i];
        const struct bpi_span *other = &s->text[taken - 1];
        if (other->n == n && memcmp(other->data, text, n) == 0) return &s->slot[i];
    }
}

/* Room for all texts that exist. */
static int32_t reserve_slots(struct bpi_strings *s)
{
    if ((uint64_t)s->n * 2 <= s->n_slot) return BP_OK;
    uint64_t n_slot = s->n_slot > 0 ? s->n_slot : 256;
    while (n_slot < (uint64_t)s->n * 2) n_slot *= 2;
    if (n_slot > (UINT64_C(1) << 31)) return BP_E_LIMIT;
    uint32_t *old = s->slot, n_old = s->n_slot;
    s->slot = bpi_calloc(n_slot, sizeof *s->slot);
    if (s->slot == NULL) {
        s->slot = old;
        return BP_E_NOMEM;
    }
    s->n_slot = (uint32_t)n_slot;
    for (uint32_t i = 0; i < n_old; ++i) {
        if (old[i] == 0) continue;
        const struct bpi_span *text = &s->text[old[i] - 1];
        *slot_of(s, text->data, text->n) = old[i];
    }
    bpi_free(old);
    return BP_OK;
}

int32_t bpi_strings_link(struct bpi_strings *s, uint32_t id, uint32_t *other)
{
    BP_TRY(reserve_slots(s));
    uint32_t *slot = slot_of(s, s->text[id].data, s->text[id].n);
    if (*slot == 0) *slot = id + 1;
    *other = *slot - 1;
    return BP_OK;
}

uint32_t bpi_strings_find(const struct bpi_strings *s, const char *text, size_t n)
{
    if (s->n_slot == 0) return BPI_STRING_NONE;
    uint32_t taken = *slot_of(s, text, n);
    return taken > 0 ? taken - 1 : BPI_STRING_NONE;
}

int32_t bpi_strings_intern(struct bpi_strings *s, const char *text, size_t n, uint32_t *id)
{
    uint32_t other;
    *id = bpi_strings_find(s, text, n);
    if (*id != BPI_STRING_NONE) return BP_OK;
    BP_TRY(bpi_strings_append(s, text, n, id));
    return bpi_strings_link(s, *id, &other);
}

void bpi_strings_free(struct bpi_strings *s)
{
    bpi_free(s->text);
    bpi_free(s->slot);
    bpi_arena_free(&s->arena);
    *s = (struct bpi_strings){0};
}

/* ---- merges ---- */

static struct bpi_merge *merge_slot(const struct bpi_merges *m, uint32_t left, uint32_t right)
{
    uint32_t mask = m->n_slot - 1;
    uint32_t i = (uint32_t)bpi_mix64(m->seed ^ left, m->seed + right) & mask;
    while (m->slot[i].result != BPI_STRING_NONE &&
           (m->slot[i].left != left || m->slot[i].right != right)) {
        i = (i + 1) & mask;
    }
    return &m->slot[i];
}

const struct bpi_merge *bpi_merges_find(const struct bpi_merges *m, uint32_t left, uint32_t right)
{
    if (m->n_slot == 0) return NULL;
    const struct bpi_merge *slot = merge_slot(m, left, right);
    return slot->result != BPI_STRING_NONE ? slot : NULL;
}

int32_t bpi_merges_reserve(struct bpi_merges *m, uint64_t n)
{
    uint64_t n_slot = 16;
    while (n_slot < n * 2) n_slot *= 2;
    if (n_slot > (UINT64_C(1) << 31)) return BP_E_LIMIT;
    m->slot = bpi_calloc(n_slot, sizeof *m->slot);
    if (m->slot == NULL) return BP_E_NOMEM;
    m->n_slot = (uint32_t)n_slot;
    for (uint64_t i = 0; i < n_slot; ++i) m->slot[i].result = BPI_STRING_NONE;
    return BP_OK;
}

void bpi_merges_add(struct bpi_merges *m, uint32_t left, uint32_t right, uint32_t result,
                    uint32_t rank)
{
    struct bpi_merge *slot = merge_slot(m, left, right);
    if (slot->result == BPI_STRING_NONE) *slot = (struct bpi_merge){left, right, result, rank};
}

/* "LEFT RIGHT": cut at the first space behind the first byte. Parts or results that are no vocabulary entries are
 * kept, because merging goes by text: "ab" may be a step towards the entry "abc" without being one, and a final
 * symbol that is no entry falls back to bytes. A pair named twice keeps its first rank. */
static int32_t add_merge(struct bpi_merges *m, struct bpi_strings *strings, struct bpi_span line,
                         uint32_t rank, struct bpi_buf *joined)
{
    const char *space = line.n > 1 ? memchr(line.data + 1, ' ', line.n - 1) : NULL;
    size_t n_left = space != NULL ? (size_t)(space - line.data) : 0;
    if (space == NULL || n_left + 1 == line.n) return BP_E_FORMAT;
    uint32_t left, right, result;
    BP_TRY(bpi_strings_intern(strings, line.data, n_left, &left));
    BP_TRY(bpi_strings_intern(strings, space + 1, line.n - n_left - 1, &right));
    if (bpi_merges_find(m, left, right) != NULL) return BP_OK;
    joined->len = 0;
    bpi_buf_append(joined, line.data, n_left);
    bpi_buf_append(joined, space + 1, line.n - n_left - 1);
    if (joined->failed) return BP_E_NOMEM;
    BP_TRY(bpi_strings_intern(strings, joined->data, joined->len, &result));
    bpi_merges_add(m, left, right, result, rank);
    return BP_OK;
}

int32_t bpi_merges_load(struct bpi_merges *m, struct bpi_strings *strings, const struct bpi_gguf *g,
                        const struct bpi_gguf_kv *kv, struct bp_error *err)
{
    static const char key[] = "tokenizer.ggml.merges";
    struct bpi_buf joined = {0};
    struct bpi_span *line = bpi_calloc(kv->count, sizeof *line);
    if (line == NULL) return bpi_fail_nomem(err, BPI_TOKEN_DOMAIN, kv->count * sizeof *line);
    int32_t rc;
    BP_TRY_GOTO(rc, bpi_gguf_arr_strings(g, kv, line, err), done);
    rc = bpi_merges_reserve(m, kv->count);
    for (uint64_t i = 0; rc == BP_OK && i < kv->count; ++i) {
        rc = add_merge(m, strings, line[i], (uint32_t)i, &joined);
        if (rc == BP_E_FORMAT) {
            bpi_fail(err, rc, BPI_TOKEN_DOMAIN, key,
                     "merge %llu (\"%.*s\") is not two texts with a space between them; convert "
                     "the model again",
                     (unsigned long long)i, (int)(line[i].n < 40 ? line[i].n : 40), line[i].data);
        }
    }
    if (rc == BP_E_LIMIT) {
        bpi_fail(err, rc, BPI_TOKEN_DOMAIN, key,
                 "%llu merges are more than a tokenizer can hold (2^30)",
                 (unsigned long long)kv->count);
    } else if (rc == BP_E_NOMEM) {
        bpi_fail_nomem(err, BPI_TOKEN_DOMAIN, kv->count * sizeof *m->slot);
    }
done:
    bpi_free(line);
    bpi_buf_free(&joined);
    return rc;
}
