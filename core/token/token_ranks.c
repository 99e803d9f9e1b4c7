/* token_ranks.c - merges of a vocabulary that has none but whose ids are ranks, as tiktoken's are (Kimi-K2).
 * There two adjacent texts merge when both joined are an entry, the entry of the lowest id first. So each way to cut an
 * entry into two entries is a merge, and its rank is the id of the whole.
 * All cuts of all entries are found in linear time but for sorting: in the order of the texts the entries that begin
 * another one form a chain, and so do those that end it when texts are read backwards.
 * Not here: merges that a file lists (token_strings.c). Threads: the tokenizer is still being opened.
 * Source: the encoder of OpenAI's tiktoken (what merges when). SPDX-License-Identifier: MIT */
#include "token/token_priv.h"

#include <string.h>

struct entries {
    const struct bpi_span *text; /* by id */
    uint32_t *order, *spare;     /* [n] ids */
    uint32_t n;
    /* [n_vocab] The longest other entry that begins (ends) this one; BPI_STRING_NONE when there is none. */
    uint32_t *begins, *ends;
    uint32_t *chain; /* [longest text] */
};

/* ---- sorting ---- */

/* Below, at or above zero, as text a stands before, at or behind text b. */
static int compare(struct bpi_span a, struct bpi_span b, bool backwards)
{
    uint64_t n = a.n < b.n ? a.n : b.n;
    if (!backwards) {
        int c = memcmp(a.data, b.data, n);
        if (c != 0) return c;
    } else {
        for (uint64_t i = 1; i <= n; ++i) {
            unsigned char x = (unsigned char)a.data[a.n - i], y = (unsigned char)b.data[b.n - i];
            if (x != y) return x < y ? -1 : 1;
        }
    }
    return a.n < b.n ? -1 : a.n > b.n;
}

/* Merge sort from runs of one upwards: its time does not depend on the order that a file chose. */
static void sort_entries(struct entries *e, bool backwards)
{
    for (uint64_t width = 1; width < e->n; width *= 2) {
        for (uint64_t at = 0; at < e->n; at += 2 * width) {
            uint64_t mid = at + width < e->n ? at + width : e->n;
            uint64_t end = at + 2 * width < e->n ? at + 2 * width : e->n;
            uint64_t i = at, j = mid;
            for (uint64_t k = at; k < end; ++k) {
                bool left = j == end || (i < mid && compare(e->text[e->order[i]],
                                                            e->text[e->order[j]], backwards) <= 0);
                e->spare[k] = left ? e->order[i++] : e->order[j++];
            }
        }
        uint32_t *sorted = e->spare;
        e->spare = e->order;
        e->order = sorted;
    }
}

/* ---- which entries begin and end others ---- */

static bool is_part(struct bpi_span part, struct bpi_span whole, bool backwards)
{
    if (part.n >= whole.n) return false;
    return memcmp(part.data, backwards ? whole.data + (whole.n - part.n) : whole.data, part.n) == 0;
}

/* In sorted order the entries that begin this one are among its predecessor and those that begin the predecessor. */
static void link_parts(struct entries *e, bool backwards)
{
    uint32_t *link = backwards ? e->ends : e->begins;
    sort_entries(e, backwards);
    for (uint32_t i = 0; i < e->n; ++i) {
        uint32_t id = e->order[i], part = i > 0 ? e->order[i - 1] : BPI_STRING_NONE;
        while (part != BPI_STRING_NONE && !is_part(e->text[part], e->text[id], backwards)) {
            part = link[part];
        }
        link[id] = part;
    }
}

/* ---- merges ---- */

/* Calls for each way to cut entry `id` into two. m NULL: only counts. Returns how many; *from_earlier says whether one
 * of them has two parts of lower ids. */
static uint64_t cut_entry(struct entries *e, uint32_t id, struct bpi_merges *m, bool *from_earlier)
{
    const struct bpi_span *text = e->text;
    uint32_t n_chain = 0;
    uint64_t count = 0;
    *from_earlier = false;
    for (uint32_t k = e->ends[id]; k != BPI_STRING_NONE; k = e->ends[k]) e->chain[n_chain++] = k;
    /* Beginnings get shorter, endings longer. */
    for (uint32_t left = e->begins[id]; left != BPI_STRING_NONE; left = e->begins[left]) {
        uint64_t rest = text[id].n - text[left].n;
        while (n_chain > 0 && text[e->chain[n_chain - 1]].n < rest) --n_chain;
        if (n_chain == 0) break;
        uint32_t right = e->chain[n_chain - 1];
        if (text[right].n != rest) continue;
        if (m != NULL) bpi_merges_add(m, left, right, id, id);
        if (left < id && right < id) *from_earlier = true;
        ++count;
    }
    return count;
}

static int32_t add_merges(struct bpi_token *t, struct entries *e, struct bp_error *err)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < e->n; ++i) {
        uint32_t id = e->order[i], cp;
        struct bpi_span text = e->text[id];
        bool from_earlier, ok;
        n += cut_entry(e, id, NULL, &from_earlier);
        if (from_earlier ||
            bpi_utf8_decode((const unsigned char *)text.data, text.n, &cp, &ok) == text.n) {
            continue;
        }
        return bpi_fail(err, BP_E_FORMAT, BPI_TOKEN_DOMAIN, "tokenizer.ggml.merges",
                        "there are no merges, and the ids of the entries cannot stand in for them: "
                        "entry %u (\"%.*s\") is not two earlier ones joined; convert the model "
                        "again with its merges",
                        id, (int)(text.n < 40 ? text.n : 40), text.data);
    }
    int32_t rc = bpi_merges_reserve(&t->merges, n);
    if (rc == BP_E_LIMIT) {
        return bpi_fail(err, rc, BPI_TOKEN_DOMAIN, "tokenizer.ggml.tokens",
                        "%llu merges follow from the entries, more than a tokenizer can hold "
                        "(2^30); the file is damaged or hostile",
                        (unsigned long long)n);
    }
    if (rc != BP_OK) return bpi_fail_nomem(err, BPI_TOKEN_DOMAIN, n * sizeof(struct bpi_merge));
    for (uint32_t i = 0; i < e->n; ++i) {
        bool from_earlier;
        (void)cut_entry(e, e->order[i], &t->merges, &from_earlier);
    }
    return BP_OK;
}

/* Whether text can become this entry at all: every character of it stands for a byte. */
static bool is_bytes(struct bpi_span text)
{
    const unsigned char *p = (const unsigned char *)text.data;
    for (uint64_t i = 0; i < text.n;) {
        uint32_t cp;
        bool ok;
        i += bpi_utf8_decode(p + i, text.n - i, &cp, &ok);
        if (!ok || bpi_cp_to_byte(cp) < 0) return false;
    }
    return text.n > 0;
}

int32_t bpi_merges_from_ranks(struct bpi_token *t, struct bp_error *err)
{
    uint32_t *memory = bpi_calloc(t->n_vocab, 4 * sizeof *memory);
    uint32_t *chain = bpi_calloc(t->max_text + 1, sizeof *chain);
    int32_t rc = BP_OK;
    if (memory == NULL || chain == NULL) {
        rc = bpi_fail_nomem(err, BPI_TOKEN_DOMAIN, t->n_vocab * 4 * sizeof *memory);
    } else {
        struct entries e = {.text = t->strings.text,
                            .order = memory,
                            .spare = memory + t->n_vocab,
                            .begins = memory + 2 * (size_t)t->n_vocab,
                            .ends = memory + 3 * (size_t)t->n_vocab,
                            .chain = chain};
        for (uint32_t id = 0; id < t->n_vocab; ++id) {
            if (t->type[id] == BPI_TOK_NORMAL && is_bytes(e.text[id])) e.order[e.n++] = id;
        }
        link_parts(&e, false);
        link_parts(&e, true);
        rc = add_merges(t, &e, err);
    }
    bpi_free(memory);
    bpi_free(chain);
    return rc;
}
