/* kv.c - block tables with reference counts; see kv.h. SPDX-License-Identifier: MIT */
#include "kv/kv.h"
#include "base/base.h"
#include <assert.h>
#include <string.h>

struct kv_seq {
    int32_t *table; /* row of bpi_kv.tables */
    uint32_t len;
    bool failed;
};

struct bpi_kv {
    uint32_t n_blocks, block_tok, max_seqs, ctx, width;
    uint32_t n_free;
    int32_t *free_list; /* stack: the last entry is handed out next */
    uint32_t *refs;
    int32_t *tables;
    struct kv_seq *seqs;
};

static uint32_t blocks_for(const struct bpi_kv *kv, uint32_t n_tok)
{
    return n_tok / kv->block_tok + (n_tok % kv->block_tok != 0);
}

int32_t bpi_kv_create(uint32_t n_blocks, uint32_t block_tok, uint32_t max_seqs, uint32_t ctx,
                      struct bpi_kv **out, struct bp_error *err)
{
    *out = NULL;
    /* Token slots travel as int32. */
    if (block_tok == 0 || max_seqs == 0 || ctx == 0 || (uint64_t)n_blocks * block_tok > INT32_MAX) {
        return bpi_fail(err, BP_E_LIMIT, "kv", NULL,
                        "a cache of %u blocks of %u tokens exceeds 2^31 token slots or is empty; "
                        "lower engine.ctx or "
                        "engine.max_seqs",
                        n_blocks, block_tok);
    }
    struct bpi_kv *kv = bpi_calloc(1, sizeof(*kv));
    if (kv == NULL) return bpi_fail_nomem(err, "kv", sizeof(*kv));
    kv->n_blocks = n_blocks;
    kv->block_tok = block_tok;
    kv->max_seqs = max_seqs;
    kv->ctx = ctx;
    kv->width = blocks_for(kv, ctx);
    kv->free_list = bpi_calloc(n_blocks, sizeof(*kv->free_list));
    kv->refs = bpi_calloc(n_blocks, sizeof(*kv->refs));
    kv->tables = bpi_calloc((size_t)max_seqs * kv->width, sizeof(*kv->tables));
    kv->seqs = bpi_calloc(max_seqs, sizeof(*kv->seqs));
    if (kv->free_list == NULL || kv->refs == NULL || kv->tables == NULL || kv->seqs == NULL) {
        size_t table_bytes = (size_t)max_seqs * kv->width * sizeof(int32_t);
        bpi_kv_destroy(kv);
        return bpi_fail_nomem(err, "kv", table_bytes);
    }
    for (uint32_t s = 0; s < max_seqs; ++s) kv->seqs[s].table = kv->tables + (size_t)s * kv->width;
    for (uint32_t b = 0; b < n_blocks; ++b) kv->free_list[b] = (int32_t)(n_blocks - 1 - b);
    kv->n_free = n_blocks;
    *out = kv;
    return BP_OK;
}

void bpi_kv_destroy(struct bpi_kv *kv)
{
    if (kv == NULL) return;
    bpi_free(kv->free_list);
    bpi_free(kv->refs);
    bpi_free(kv->tables);
    bpi_free(kv->seqs);
    bpi_free(kv);
}

uint32_t bpi_kv_len(const struct bpi_kv *kv, uint32_t seq)
{
    return seq < kv->max_seqs ? kv->seqs[seq].len : 0;
}

uint32_t bpi_kv_ctx(const struct bpi_kv *kv)
{
    return kv->ctx;
}

uint32_t bpi_kv_block_tok(const struct bpi_kv *kv)
{
    return kv->block_tok;
}

uint32_t bpi_kv_free_blocks(const struct bpi_kv *kv)
{
    return kv->n_free;
}

uint32_t bpi_kv_table_width(const struct bpi_kv *kv)
{
    return kv->width;
}

const int32_t *bpi_kv_table(const struct bpi_kv *kv, uint32_t seq)
{
    assert(seq < kv->max_seqs);
    return kv->seqs[seq].table;
}

int32_t bpi_kv_slot(const struct bpi_kv *kv, uint32_t seq, uint32_t pos)
{
    assert(seq < kv->max_seqs && pos < kv->seqs[seq].len);
    int32_t block = kv->seqs[seq].table[pos / kv->block_tok];
    return block * (int32_t)kv->block_tok + (int32_t)(pos % kv->block_tok);
}

/* Would appending write into a block that somebody else holds too? */
static bool last_block_is_shared(const struct bpi_kv *kv, const struct kv_seq *s)
{
    return s->len % kv->block_tok != 0 && kv->refs[s->table[s->len / kv->block_tok]] > 1;
}

uint32_t bpi_kv_need(const struct bpi_kv *kv, uint32_t seq, uint32_t n)
{
    const struct kv_seq *s = &kv->seqs[seq];
    if (n == 0) return 0;
    return blocks_for(kv, s->len + n) - blocks_for(kv, s->len) + last_block_is_shared(kv, s);
}

static int32_t take_block(struct bpi_kv *kv)
{
    int32_t b = kv->free_list[--kv->n_free];
    kv->refs[b] = 1;
    return b;
}

static void drop_block(struct bpi_kv *kv, int32_t b)
{
    assert(kv->refs[b] > 0);
    if (--kv->refs[b] == 0) kv->free_list[kv->n_free++] = b;
}

int32_t bpi_kv_append(struct bpi_kv *kv, uint32_t seq, uint32_t n, int32_t *copy_from,
                      int32_t *copy_to)
{
    *copy_from = *copy_to = -1;
    struct kv_seq *s = &kv->seqs[seq];
    if (n == 0) return BP_OK;
    if (n > kv->ctx - s->len || bpi_kv_need(kv, seq, n) > kv->n_free) return BP_E_LIMIT;
    if (last_block_is_shared(kv, s)) {
        int32_t *entry = &s->table[s->len / kv->block_tok];
        *copy_from = *entry;
        *copy_to = take_block(kv);
        drop_block(kv, *copy_from);
        *entry = *copy_to;
    }
    uint32_t have = blocks_for(kv, s->len), want = blocks_for(kv, s->len + n);
    for (uint32_t i = have; i < want; ++i) s->table[i] = take_block(kv);
    s->len += n;
    return BP_OK;
}

void bpi_kv_truncate(struct bpi_kv *kv, uint32_t seq, uint32_t n)
{
    struct kv_seq *s = &kv->seqs[seq];
    assert(n <= s->len);
    uint32_t have = blocks_for(kv, s->len), keep = blocks_for(kv, n);
    for (uint32_t i = have; i > keep; --i) drop_block(kv, s->table[i - 1]);
    s->len = n;
    if (n == 0) s->failed = false;
}

uint32_t bpi_kv_share(struct bpi_kv *kv, uint32_t dst, uint32_t src, uint32_t n)
{
    struct kv_seq *d = &kv->seqs[dst];
    const struct kv_seq *s = &kv->seqs[src];
    if (d == s || d->len != 0 || s->failed) return 0;
    if (n > s->len) n = s->len;
    uint32_t blocks = n / kv->block_tok;
    for (uint32_t i = 0; i < blocks; ++i) {
        d->table[i] = s->table[i];
        kv->refs[s->table[i]]++;
    }
    d->len = blocks * kv->block_tok;
    return d->len;
}

void bpi_kv_mark_failed(struct bpi_kv *kv, uint32_t seq)
{
    kv->seqs[seq].failed = true;
}

bool bpi_kv_failed(const struct bpi_kv *kv, uint32_t seq)
{
    return kv->seqs[seq].failed;
}
