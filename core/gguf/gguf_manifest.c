/* gguf_manifest.c - the text form of a manifest, and what differs between two.
 * Form: one line "backplane-manifest 1 xxh3-128 FILE shards N tensors N bytes N", then one line for each shard
 * "HASH header BYTES SHARD -", then one for each tensor "HASH TYPE BYTES SHARD NAME"; single spaces, each line ended by
 * a newline. In names a space, a percent sign and control characters are %XX. Not here: hashing (gguf_hash.c).
 * Threads: any. SPDX-License-Identifier: MIT */
#include "gguf/gguf_manifest.h"
#include "gguf/gguf_priv.h"

#include <stdio.h>
#include <string.h>

#define DOMAIN "manifest"
#define MAGIC "backplane-manifest"
#define ALGORITHM "xxh3-128"
enum { VERSION = 1, MAX_FIELDS = 10, SHORTEST_LINE = 32 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 };

struct bpi_span bpi_manifest_entry_name(const void *items, uint64_t i)
{
    const struct bpi_manifest_entry *e = (const struct bpi_manifest_entry *)items + i;
    return (struct bpi_span){e->name, strlen(e->name)};
}

void bpi_manifest_destroy(struct bpi_manifest *m)
{
    if (m == NULL) return;
    bpi_gguf_index_free(&m->tensors);
    bpi_arena_free(&m->arena);
    bpi_free(m);
}

/* ---- writing ---- */

static bool must_escape(unsigned char c)
{
    return c <= ' ' || c == '%' || c == 0x7f;
}

static void put_name(struct bpi_buf *b, const char *name)
{
    for (; *name != '\0'; ++name) {
        unsigned char c = (unsigned char)*name;
        if (must_escape(c))
            bpi_buf_printf(b, "%%%02X", c);
        else
            bpi_buf_append(b, name, 1);
    }
}

void bpi_manifest_format(const struct bpi_manifest *m, struct bpi_buf *b)
{
    bpi_buf_printf(b, "%s %d %s ", MAGIC, VERSION, ALGORITHM);
    put_name(b, m->file);
    bpi_buf_printf(b, " shards %u tensors %llu bytes %llu\n", m->n_shards,
                   (unsigned long long)m->n_tensors, (unsigned long long)m->n_bytes);
    for (uint64_t i = 0; i < m->n_shards + m->n_tensors; ++i) {
        const struct bpi_manifest_entry *e = &m->entries[i];
        bpi_buf_printf(b, "%s %s %llu ", e->hash, e->type, (unsigned long long)e->n_bytes);
        put_name(b, m->entries[e->shard].name);
        bpi_buf_puts(b, " ");
        put_name(b, i < m->n_shards ? "-" : e->name);
        bpi_buf_puts(b, "\n");
    }
}

/* ---- reading ---- */

struct reader {
    const char *at, *end, *label;
    uint64_t line; /* from 1 */
    struct bpi_manifest *m;
    struct bpi_gguf_index shards;
    struct bpi_span field[MAX_FIELDS];
    size_t n_fields;
    struct bp_error *err;
};

static int32_t bad(const struct reader *r, const char *what)
{
    return bpi_fail(
        r->err, BP_E_FORMAT, DOMAIN, r->label,
        "line %llu: %s; this is not a manifest as 'backplane inspect --hash' writes it, "
        "or it was damaged",
        (unsigned long long)r->line, what);
}

static int32_t out_of_memory(const struct reader *r, size_t n)
{
    return bpi_fail_nomem(r->err, DOMAIN, n);
}

/* The next line, cut into its fields. */
static int32_t next_line(struct reader *r)
{
    ++r->line;
    r->n_fields = 0;
    if (r->at == r->end) return bad(r, "the text ends where another line was expected");
    size_t left = (size_t)(r->end - r->at);
    size_t look = left < BPI_MANIFEST_MAX_LINE ? left : (size_t)BPI_MANIFEST_MAX_LINE;
    const char *end = memchr(r->at, '\n', look);
    if (end == NULL && look < left) return bad(r, "the line is longer than 2048 bytes");
    if (end == NULL) return bad(r, "the line has no end");
    if (memchr(r->at, '\0', (size_t)(end - r->at)) != NULL) return bad(r, "it has a zero byte");
    for (const char *p = r->at;;) {
        const char *space = memchr(p, ' ', (size_t)(end - p));
        const char *stop = space != NULL ? space : end;
        if (stop == p) return bad(r, "a field is empty");
        if (r->n_fields == MAX_FIELDS) return bad(r, "it has too many fields");
        r->field[r->n_fields++] = (struct bpi_span){p, (uint64_t)(stop - p)};
        if (space == NULL) break;
        p = space + 1;
    }
    r->at = end + 1;
    return BP_OK;
}

static bool field_is(const struct reader *r, size_t i, const char *word)
{
    return r->field[i].n == strlen(word) && memcmp(r->field[i].data, word, r->field[i].n) == 0;
}

static bool field_number(const struct reader *r, size_t i, uint64_t *out)
{
    char text[24];
    const struct bpi_span *f = &r->field[i];
    if (f->n >= sizeof text || (f->n > 1 && f->data[0] == '0')) return false;
    for (uint64_t k = 0; k < f->n; ++k)
        if (f->data[k] < '0' || f->data[k] > '9') return false;
    memcpy(text, f->data, f->n);
    text[f->n] = '\0';
    return bpi_parse_u64(text, out);
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* A name without its escapes, at most `most` bytes of it, in the arena. */
static int32_t field_name(struct reader *r, size_t i, size_t most, const char **out)
{
    char name[BPI_MANIFEST_MAX_FILE_NAME + 1];
    const struct bpi_span *f = &r->field[i];
    size_t n = 0;
    for (uint64_t k = 0; k < f->n; ++k) {
        int c = (unsigned char)f->data[k];
        if (c == '%') {
            bool whole = f->n - k > 2;
            int high = whole ? hex_value(f->data[k + 1]) : -1;
            int low = whole ? hex_value(f->data[k + 2]) : -1;
            if (high < 0 || low < 0 || (high == 0 && low == 0)) return bad(r, "a %XX is wrong");
            c = high * 16 + low;
            k += 2;
        } else if (must_escape((unsigned char)c)) {
            return bad(r, "a control character is in a name");
        }
        if (n == most) return bad(r, "a name is too long");
        name[n++] = (char)c;
    }
    *out = bpi_arena_strndup(&r->m->arena, name, n);
    return *out != NULL ? BP_OK : out_of_memory(r, n + 1);
}

static int32_t read_head(struct reader *r)
{
    struct bpi_manifest *m = r->m;
    uint64_t version, n_shards, n_lines, most = (uint64_t)(r->end - r->at) / SHORTEST_LINE + 1;
    BP_TRY(next_line(r));
    if (r->n_fields < 3 || !field_is(r, 0, MAGIC) || !field_number(r, 1, &version))
        return bad(r, "it does not begin with '" MAGIC "' and a version");
    if (version != VERSION || !field_is(r, 2, ALGORITHM))
        return bpi_fail(r->err, BP_E_UNSUPPORTED, DOMAIN, r->label,
                        "this manifest has version %llu with hash '%.*s'; version %d with %s is "
                        "understood, so make it anew with 'backplane inspect --hash'",
                        (unsigned long long)version, (int)(r->field[2].n < 32 ? r->field[2].n : 32),
                        r->field[2].data, VERSION, ALGORITHM);
    if (r->n_fields != 10 || !field_is(r, 4, "shards") || !field_number(r, 5, &n_shards) ||
        !field_is(r, 6, "tensors") || !field_number(r, 7, &m->n_tensors) ||
        !field_is(r, 8, "bytes") || !field_number(r, 9, &m->n_bytes))
        return bad(r, "it must go on with a file name, 'shards N tensors N bytes N'");
    if (n_shards < 1 || n_shards > BPI_GGUF_MAX_SHARDS || m->n_tensors > BPI_GGUF_MAX_TENSORS)
        return bad(r, "its counts are beyond what a model can have");
    n_lines = n_shards + m->n_tensors;
    if (n_lines > most) return bad(r, "it promises more lines than the text can hold");
    m->n_shards = (uint32_t)n_shards;
    BP_TRY(field_name(r, 3, BPI_MANIFEST_MAX_FILE_NAME, &m->file));
    m->entries = bpi_arena_alloc(&m->arena, n_lines, sizeof *m->entries, 8);
    return m->entries != NULL ? BP_OK : out_of_memory(r, n_lines * sizeof *m->entries);
}

/* Hash, type and bytes, which all lines have. */
static int32_t read_entry(struct reader *r, struct bpi_manifest_entry *e)
{
    BP_TRY(next_line(r));
    if (r->n_fields != 5) return bad(r, "it must have five fields: hash, type, bytes, shard, name");
    if (r->field[0].n != 32) return bad(r, "the hash must have 32 digits");
    for (size_t i = 0; i < 32; ++i) {
        char c = r->field[0].data[i];
        if (hex_value(c) < 0 || (c >= 'A' && c <= 'F'))
            return bad(r, "the hash must be hexadecimal, in lower case");
        e->hash[i] = c;
    }
    if (r->field[1].n >= sizeof e->type) return bad(r, "the type's name is too long");
    for (uint64_t i = 0; i < r->field[1].n; ++i) {
        char c = r->field[1].data[i];
        bool word =
            (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
        if (!word) return bad(r, "the type is not a word");
        e->type[i] = c;
    }
    if (!field_number(r, 2, &e->n_bytes)) return bad(r, "the bytes are no number");
    return BP_OK;
}

static int32_t index_names(struct reader *r, struct bpi_gguf_index *ix,
                           const struct bpi_manifest_entry *e, uint64_t n, uint64_t first_line)
{
    uint64_t first = 0, second = 0;
    int32_t rc = bpi_gguf_index_build(ix, e, n, bpi_manifest_entry_name, &first, &second);
    if (rc == BP_E_NOMEM) return out_of_memory(r, n * 2 * sizeof(struct bpi_gguf_slot));
    if (rc == BP_OK) return BP_OK;
    r->line = first_line + second;
    return bad(r, "the name stands in an earlier line too");
}

static int32_t read_headers(struct reader *r)
{
    for (uint32_t i = 0; i < r->m->n_shards; ++i) {
        struct bpi_manifest_entry *e = &r->m->entries[i];
        BP_TRY(read_entry(r, e));
        if (strcmp(e->type, "header") != 0 || !field_is(r, 4, "-"))
            return bad(r, "a shard's line 'HASH header BYTES SHARD -' was expected");
        BP_TRY(field_name(r, 3, BPI_MANIFEST_MAX_FILE_NAME, &e->name));
        e->shard = i;
    }
    return index_names(r, &r->shards, r->m->entries, r->m->n_shards, 2);
}

static int32_t read_tensors(struct reader *r)
{
    struct bpi_manifest *m = r->m;
    uint64_t shard;
    for (uint64_t i = 0; i < m->n_tensors; ++i) {
        struct bpi_manifest_entry *e = &m->entries[m->n_shards + i];
        const char *name;
        BP_TRY(read_entry(r, e));
        if (strcmp(e->type, "header") == 0) return bad(r, "there are more headers than shards");
        BP_TRY(field_name(r, 4, BPI_GGUF_MAX_NAME_BYTES, &e->name));
        BP_TRY(field_name(r, 3, BPI_MANIFEST_MAX_FILE_NAME, &name));
        if (!bpi_gguf_index_find(&r->shards, (struct bpi_span){name, strlen(name)}, &shard))
            return bad(r, "its shard has no header line");
        e->shard = (uint32_t)shard;
    }
    return index_names(r, &m->tensors, m->entries + m->n_shards, m->n_tensors, 2 + m->n_shards);
}

static int32_t read_all(struct reader *r)
{
    const struct bpi_manifest *m = r->m;
    uint64_t sum = 0;
    BP_TRY(read_head(r));
    BP_TRY(read_headers(r));
    BP_TRY(read_tensors(r));
    ++r->line;
    if (r->at != r->end) return bad(r, "more lines follow than the first one promises");
    for (uint64_t i = 0; i < m->n_shards + m->n_tensors; ++i) {
        if (bpi_add_u64(sum, m->entries[i].n_bytes, &sum) && sum <= m->n_bytes) continue;
        r->line = 2 + i;
        return bad(r, "with it there are more bytes than the first line says");
    }
    return BP_OK;
}

int32_t bpi_manifest_parse(const char *text, size_t n, const char *label, struct bpi_manifest **out,
                           struct bp_error *err)
{
    *out = NULL;
    if (n > BPI_MANIFEST_MAX_BYTES)
        return bpi_fail(err, BP_E_LIMIT, DOMAIN, label,
                        "the manifest has %zu bytes, more than the %d that are accepted", n,
                        BPI_MANIFEST_MAX_BYTES);
    struct reader r = {.at = text, .end = text + n, .label = label, .err = err};
    r.m = bpi_calloc(1, sizeof *r.m);
    if (r.m == NULL) return out_of_memory(&r, sizeof *r.m);
    int32_t rc = read_all(&r);
    bpi_gguf_index_free(&r.shards);
    if (rc != BP_OK) {
        bpi_manifest_destroy(r.m);
        return rc;
    }
    *out = r.m;
    return BP_OK;
}

/* ---- asking ---- */

const char *bpi_manifest_file(const struct bpi_manifest *m)
{
    return m->file;
}
uint64_t bpi_manifest_bytes(const struct bpi_manifest *m)
{
    return m->n_bytes;
}
uint32_t bpi_manifest_shards(const struct bpi_manifest *m)
{
    return m->n_shards;
}
uint64_t bpi_manifest_tensors(const struct bpi_manifest *m)
{
    return m->n_tensors;
}

bool bpi_manifest_line(const struct bpi_manifest *m, uint64_t i, struct bpi_manifest_line *out)
{
    if (i >= m->n_shards + m->n_tensors) return false;
    const struct bpi_manifest_entry *e = &m->entries[i];
    *out = (struct bpi_manifest_line){e->hash, e->type, m->entries[e->shard].name,
                                      i < m->n_shards ? "-" : e->name, e->n_bytes};
    return true;
}

/* ---- comparing ---- */

/* Static text or text in buf; NULL when both are equal. */
static const char *difference(const struct bpi_manifest_entry *want,
                              const struct bpi_manifest_entry *have, char *buf, size_t cap)
{
    if (strcmp(want->type, have->type) != 0)
        snprintf(buf, cap, "its type was %s and is %s", want->type, have->type);
    else if (want->n_bytes != have->n_bytes)
        snprintf(buf, cap, "it had %llu bytes and has %llu", (unsigned long long)want->n_bytes,
                 (unsigned long long)have->n_bytes);
    else if (strcmp(want->hash, have->hash) != 0)
        snprintf(buf, cap, "its bytes differ: the hash was %s and is %s", want->hash, have->hash);
    else
        return NULL;
    return buf;
}

static uint64_t compare_headers(const struct bpi_manifest *want, const struct bpi_manifest *have,
                                bpi_manifest_diff_fn fn, void *ctx)
{
    char buf[192];
    uint64_t n = 0;
    uint32_t most = want->n_shards > have->n_shards ? want->n_shards : have->n_shards;
    for (uint32_t i = 0; i < most; ++i) {
        const char *text = NULL,
                   *name = i < have->n_shards ? have->entries[i].name : want->entries[i].name;
        if (i < want->n_shards && i < have->n_shards)
            text = difference(&want->entries[i], &have->entries[i], buf, sizeof buf);
        else
            text = i < want->n_shards ? "the model has fewer shards than the manifest"
                                      : "the model has more shards than the manifest";
        if (text == NULL) continue;
        fn(ctx, BPI_DIFF_HEADER, "-", name, text);
        ++n;
    }
    return n;
}

uint64_t bpi_manifest_compare(const struct bpi_manifest *want, const struct bpi_manifest *have,
                              bpi_manifest_diff_fn fn, void *ctx)
{
    char buf[192];
    uint64_t at, n = compare_headers(want, have, fn, ctx);
    for (uint64_t i = 0; i < want->n_tensors; ++i) {
        const struct bpi_manifest_entry *w = &want->entries[want->n_shards + i], *h = NULL;
        const char *text = "it is in the manifest but not in the model";
        if (bpi_gguf_index_find(&have->tensors, bpi_manifest_entry_name(w, 0), &at)) {
            h = &have->entries[have->n_shards + at];
            text = difference(w, h, buf, sizeof buf);
        }
        if (text == NULL) continue;
        fn(ctx, h != NULL ? BPI_DIFF_DAMAGED : BPI_DIFF_MISSING, w->name,
           h != NULL ? have->entries[h->shard].name : want->entries[w->shard].name, text);
        ++n;
    }
    for (uint64_t i = 0; i < have->n_tensors; ++i) {
        const struct bpi_manifest_entry *h = &have->entries[have->n_shards + i];
        if (bpi_gguf_index_find(&want->tensors, bpi_manifest_entry_name(h, 0), &at)) continue;
        fn(ctx, BPI_DIFF_ADDITIONAL, h->name, have->entries[h->shard].name,
           "it is in the model but not in the manifest");
        ++n;
    }
    return n;
}
