/* gguf_index.c - hash index from names to item numbers; also finds names that occur twice, in linear time.
 * Not here: what is indexed. Threads: built by one, then read by any number.
 * Source of the hash: Aumasson and Bernstein, "SipHash: a fast short-input PRF" (2012), with 1 and 3 rounds.
 * SPDX-License-Identifier: MIT */
#include "gguf/gguf_priv.h"

#include <string.h>

static inline uint64_t rotate(uint64_t v, int n)
{
    return v << n | v >> (64 - n);
}

static inline void sip_round(uint64_t v[4])
{
    v[0] += v[1];
    v[2] += v[3];
    v[1] = rotate(v[1], 13) ^ v[0];
    v[3] = rotate(v[3], 16) ^ v[2];
    v[0] = rotate(v[0], 32);
    v[2] += v[1];
    v[0] += v[3];
    v[1] = rotate(v[1], 17) ^ v[2];
    v[3] = rotate(v[3], 21) ^ v[0];
    v[2] = rotate(v[2], 32);
}

static uint64_t hash_bytes(const uint64_t secret[2], struct bpi_span s)
{
    uint64_t v[4] = {
        secret[0] ^ UINT64_C(0x736f6d6570736575), secret[1] ^ UINT64_C(0x646f72616e646f6d),
        secret[0] ^ UINT64_C(0x6c7967656e657261), secret[1] ^ UINT64_C(0x7465646279746573)};
    uint64_t at = 0, word;
    for (; at + 8 <= s.n; at += 8) {
        memcpy(&word, s.data + at, 8);
        v[3] ^= word;
        sip_round(v);
        v[0] ^= word;
    }
    word = 0;
    if (s.n > at) memcpy(&word, s.data + at, s.n - at);
    word |= s.n << 56;
    v[3] ^= word;
    sip_round(v);
    v[0] ^= word;
    v[2] ^= 0xff;
    for (int i = 0; i < 3; ++i) sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* The slot that holds `name`, or the empty slot where it belongs. */
static struct bpi_gguf_slot *probe(const struct bpi_gguf_index *ix, struct bpi_span name,
                                   uint32_t *out_tag)
{
    uint64_t hash = hash_bytes(ix->secret, name);
    uint32_t tag = (uint32_t)(hash >> 32);
    uint64_t at = hash & ix->mask;
    for (; ix->slots[at].item != 0; at = (at + 1) & ix->mask) {
        if (ix->slots[at].tag != tag) continue;
        struct bpi_span other = ix->name_of(ix->items, ix->slots[at].item - 1);
        if (other.n == name.n && memcmp(other.data, name.data, name.n) == 0) break;
    }
    *out_tag = tag;
    return &ix->slots[at];
}

int32_t bpi_gguf_index_build(struct bpi_gguf_index *ix, const void *items, uint64_t n,
                             struct bpi_span (*name_of)(const void *items, uint64_t i),
                             uint64_t *out_first, uint64_t *out_second)
{
    uint64_t n_slots = 8;
    while (n_slots < 2 * n) n_slots *= 2;
    *ix = (struct bpi_gguf_index){.mask = n_slots - 1, .items = items, .name_of = name_of};
    ix->slots = bpi_calloc(n_slots, sizeof *ix->slots);
    if (ix->slots == NULL) return BP_E_NOMEM;
    /* Good enough against a file that was written before this moment: the clock and where the memory lies. */
    ix->secret[0] = bpi_now_ns();
    ix->secret[1] = (uint64_t)(uintptr_t)ix->slots ^ (uint64_t)(uintptr_t)items << 20;
    for (uint64_t i = 0; i < n; ++i) {
        uint32_t tag;
        struct bpi_gguf_slot *slot = probe(ix, name_of(items, i), &tag);
        if (slot->item != 0) {
            *out_first = slot->item - 1;
            *out_second = i;
            bpi_gguf_index_free(ix);
            return BP_E_FORMAT;
        }
        *slot = (struct bpi_gguf_slot){(uint32_t)i + 1, tag};
    }
    return BP_OK;
}

bool bpi_gguf_index_find(const struct bpi_gguf_index *ix, struct bpi_span name, uint64_t *out)
{
    if (ix->slots == NULL) return false;
    uint32_t tag;
    const struct bpi_gguf_slot *slot = probe(ix, name, &tag);
    if (slot->item == 0) return false;
    *out = slot->item - 1;
    return true;
}

void bpi_gguf_index_free(struct bpi_gguf_index *ix)
{
    bpi_free(ix->slots);
    *ix = (struct bpi_gguf_index){0};
}

struct bpi_span bpi_gguf_kv_name(const void *items, uint64_t i)
{
    return ((const struct bpi_gguf_kv *)items)[i].key;
}
