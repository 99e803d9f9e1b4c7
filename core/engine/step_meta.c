/* step_meta.c - turns the items of a step into the metadata that all layers share.
 *
 * Order of batch rows: tokens of decoding sequences, then prompt tokens that attend sparsely, then the other prompt
 * tokens. The first two kinds are "rows": absorbed queries for mla.decode. The third kind is cut into segments at absolute
 * multiples of the slab, and each segment attends its own slab causally and the slabs before it without a mask. Which form
 * a token takes and where its keys are cut depends only on its position and its role, never on how the prompt was
 * chunked or on its neighbours: that is what makes chunked, shared-prefix and batched results equal bit for bit on
 * backends whose rows are independent.
 * SPDX-License-Identifier: MIT */
#include "engine/session_priv.h"
#include <assert.h>
#include <string.h>

/* Staging: one block of int32 arrays, written on the host and copied to the device in one go. */
static int32_t *stage(struct bp_session *s, uint64_t n, const int32_t **dev)
{
    uint64_t bytes = (n * sizeof(int32_t) + 15) & ~UINT64_C(15);
    assert(s->meta_used + bytes <= s->meta_bytes);
    int32_t *host = (int32_t *)(void *)(s->meta_host + s->meta_used);
    *dev = (const int32_t *)(const void *)(s->meta_dev + s->meta_used);
    s->meta_used += bytes;
    return host;
}

uint64_t bpi_step_meta_bytes(const struct bp_session *s)
{
    uint64_t t = s->batch_tok, width = (s->ctx + s->block_tok - 1) / s->block_tok;
    uint64_t ints = 3 * t + s->max_seqs * (width + 1) + 2 * (uint64_t)s->max_rows;
    /* per phase of a group of n segments: seq and kv_begin (n), cu_q and cu_k (n + 1); groups hold one segment at least */
    ints += (uint64_t)s->max_phase * s->max_seg * 6;
    uint64_t arrays = 8 + (uint64_t)s->max_phase * s->max_seg * 4;
    return ints * sizeof(int32_t) + arrays * 16;
}

/* Is this token a row of mla.decode? */
static bool is_row(const struct bp_session *s, const struct bp_step_item *it, uint32_t pos)
{
    return (it->flags & BP_STEP_DECODE) != 0 || (s->hp->sparse && pos >= s->hp->top_k);
}

struct tok_arrays {
    int32_t *ids, *positions, *slots, *row_seq, *row_kv;
};

/* Appends the tokens of one pass: 0 decoding, 1 sparse prompt, 2 dense prompt. */
static void place_tokens(struct bp_session *s, const struct bp_step_item *items, uint32_t n_items,
                         int pass, const struct tok_arrays *a)
{
    struct bpi_step *st = &s->step;
    for (uint32_t i = 0; i < n_items; ++i) {
        const struct bp_step_item *it = &items[i];
        bool decode = (it->flags & BP_STEP_DECODE) != 0;
        for (uint32_t j = 0; j < it->n_ids; ++j) {
            uint32_t pos = s->start[i] + j;
            int kind = decode ? 0 : is_row(s, it, pos) ? 1 : 2;
            if (kind != pass) continue;
            uint32_t r = st->n_tok++;
            a->ids[r] = it->ids[j];
            a->positions[r] = (int32_t)pos;
            a->slots[r] = bpi_kv_slot(s->kv, it->seq, pos);
            st->row_item[r] = i;
            st->row_pos[r] = pos;
            if (kind == 2) continue;
            a->row_seq[r] = (int32_t)i;
            a->row_kv[r] = (int32_t)pos + 1;
            st->n_row = r + 1;
            if (pos + 1 > st->decode.max_kv) st->decode.max_kv = pos + 1;
            if (s->hp->sparse && pos >= s->hp->top_k) st->select = true;
        }
    }
}

/* Logits rows, in item order. Tokens of one item appear in position order inside each pass, so a token is found by its
 * position. */
static void place_logits(struct bp_session *s, const struct bp_step_item *items, uint32_t n_items)
{
    struct bpi_step *st = &s->step;
    for (uint32_t i = 0; i < n_items; ++i) {
        st->logit_first[i] = st->n_logits;
        st->logit_count[i] = items[i].n_logits;
        st->n_logits += items[i].n_logits;
    }
    for (uint32_t r = 0; r < st->n_tok; ++r) {
        uint32_t i = st->row_item[r];
        uint32_t first_pos = s->start[i] + items[i].n_ids - items[i].n_logits;
        if (st->row_pos[r] >= first_pos)
            st->logit_row[st->logit_first[i] + st->row_pos[r] - first_pos] = r;
    }
}

struct segment {
    uint32_t item, row0, n_q, pos0, slab;
};

/* The next run of dense prompt rows that lies in one slab of one sequence. */
static bool next_segment(const struct bp_session *s, uint32_t *row, struct segment *out)
{
    const struct bpi_step *st = &s->step;
    if (*row >= st->n_tok) return false;
    uint32_t r = *row;
    *out = (struct segment){st->row_item[r], r, 0, st->row_pos[r], st->row_pos[r] / s->slab};
    while (r < st->n_tok && st->row_item[r] == out->item && st->row_pos[r] / s->slab == out->slab)
        ++r;
    out->n_q = r - *row;
    *row = r;
    return true;
}

/* Metadata of one phase of a group. Phase 0: each segment's own slab up to its last query; phase p > 0: slab p - 1, empty
 * for segments that lie in it or before it. */
static void build_phase(struct bp_session *s, const struct segment *seg, uint32_t n_seg,
                        uint32_t phase, struct bp_mla_prefill_meta *m)
{
    *m = (struct bp_mla_prefill_meta){.h = BP_HDR(struct bp_mla_prefill_meta, kv_begin_host),
                                      .common = &s->step.common,
                                      .n_seg = n_seg};
    int32_t *seq = stage(s, n_seg, &m->seq), *begin = stage(s, n_seg, &m->kv_begin);
    int32_t *cu_q = stage(s, n_seg + 1, &m->cu_q), *cu_k = stage(s, n_seg + 1, &m->cu_k);
    cu_q[0] = cu_k[0] = 0;
    for (uint32_t i = 0; i < n_seg; ++i) {
        uint32_t slab = phase == 0 ? seg[i].slab : phase - 1, n_k = 0;
        if (phase == 0) {
            n_k = seg[i].pos0 + seg[i].n_q - slab * s->slab;
        } else if (slab < seg[i].slab) {
            n_k = s->slab;
        }
        seq[i] = (int32_t)seg[i].item;
        begin[i] = (int32_t)(slab * s->slab);
        cu_q[i + 1] = cu_q[i] + (int32_t)seg[i].n_q;
        cu_k[i + 1] = cu_k[i] + (int32_t)n_k;
        if (seg[i].n_q > m->max_q) m->max_q = seg[i].n_q;
        if (n_k > m->max_k) m->max_k = n_k;
    }
    m->n_q = (uint32_t)cu_q[n_seg];
    m->n_k = (uint32_t)cu_k[n_seg];
    m->seq_host = seq;
    m->kv_begin_host = begin;
    m->cu_q_host = cu_q;
    m->cu_k_host = cu_k;
}

/* Keys a segment brings into the largest phase of its group. */
static uint32_t segment_keys(const struct bp_session *s, const struct segment *seg)
{
    return seg->slab > 0 ? s->slab : seg->pos0 + seg->n_q;
}

enum {
    SEG_CHUNK = 64
}; /* segments of one group at most: bounds the stack, and a group that wide is busy enough */

static void build_groups(struct bp_session *s)
{
    struct bpi_step *st = &s->step;
    uint32_t row = st->n_row, n_metas = 0;
    struct segment seg[SEG_CHUNK], next;
    bool more = next_segment(s, &row, &next);
    while (more) {
        uint32_t n_seg = 0, keys = 0, phases = 1;
        do {
            seg[n_seg++] = next;
            keys += segment_keys(s, &next);
            if (next.slab + 1 > phases) phases = next.slab + 1;
            more = next_segment(s, &row, &next);
        } while (more && n_seg < SEG_CHUNK && keys + segment_keys(s, &next) <= s->slab_cap);
        struct bpi_group *g = &st->groups[st->n_group++];
        *g = (struct bpi_group){
            .n_seg = n_seg, .n_phase = phases, .row0 = seg[0].row0, .meta = &s->metas[n_metas]};
        n_metas += phases;
        for (uint32_t p = 0; p < phases; ++p) build_phase(s, seg, n_seg, p, &g->meta[p]);
        g->n_q = g->meta[0].n_q;
    }
}

static void build_common(struct bp_session *s, const struct bp_step_item *items, uint32_t n_items)
{
    struct bp_mla_meta *m = &s->step.common;
    m->h = (struct bp_hdr)BP_HDR(struct bp_mla_meta, rope_sin);
    m->epoch = ++s->epoch;
    s->step.n_call = 0;
    m->n_seqs = n_items;
    m->block_tok = s->block_tok;
    m->table_stride = bpi_kv_table_width(s->kv);
    int32_t *table = stage(s, (uint64_t)n_items * m->table_stride, &m->block_table);
    int32_t *len = stage(s, n_items, &m->kv_len);
    for (uint32_t i = 0; i < n_items; ++i) {
        uint32_t n = bpi_kv_len(s->kv, items[i].seq), used = (n + s->block_tok - 1) / s->block_tok;
        int32_t *row = table + (size_t)i * m->table_stride;
        memcpy(row, bpi_kv_table(s->kv, items[i].seq), used * sizeof(*row));
        /* Entries past the end must never be followed; an impossible number makes a kernel that does so fail loudly. */
        for (uint32_t b = used; b < m->table_stride; ++b) row[b] = -1;
        len[i] = (int32_t)n;
        if (n > m->max_kv) m->max_kv = n;
    }
    m->block_table_host = table;
    m->kv_len_host = len;
    m->rope_cos = bpi_t2(s->rope_cos, BP_DT_F32, s->ctx, s->hp->rope / 2);
    m->rope_sin = bpi_t2(s->rope_sin, BP_DT_F32, s->ctx, s->hp->rope / 2);
}

int32_t bpi_step_build(struct bp_session *s, const struct bp_step_item *items, uint32_t n_items,
                       struct bp_error *err)
{
    struct bpi_step *st = &s->step;
    uint32_t n_tok = 0;
    for (uint32_t i = 0; i < n_items; ++i) n_tok += items[i].n_ids;
    s->meta_used = 0;
    st->n_items = n_items;
    st->n_tok = st->n_row = st->n_logits = st->n_group = 0;
    st->select = false;
    memset(&st->common, 0, sizeof(st->common));
    memset(&st->decode, 0, sizeof(st->decode));

    build_common(s, items, n_items);
    const int32_t *ids_dev, *row_seq_dev, *row_kv_dev;
    struct tok_arrays a;
    a.ids = stage(s, n_tok, &ids_dev);
    a.positions = stage(s, n_tok, &st->common.positions);
    a.slots = stage(s, n_tok, &st->common.slot_map);
    a.row_seq = stage(s, n_tok, &row_seq_dev);
    a.row_kv = stage(s, n_tok, &row_kv_dev);
    for (int pass = 0; pass < 3; ++pass) place_tokens(s, items, n_items, pass, &a);
    place_logits(s, items, n_items);

    s->ids_dev = ids_dev;
    st->common.n_tok = st->n_tok;
    st->common.positions_host = a.positions;
    st->common.slot_map_host = a.slots;
    st->decode.h = (struct bp_hdr)BP_HDR(struct bp_mla_decode_meta, row_kv_len_host);
    st->decode.common = &st->common;
    st->decode.n_row = st->decode.n_row_padded = st->n_row;
    st->decode.row_seq = row_seq_dev;
    st->decode.row_kv_len = row_kv_dev;
    st->decode.row_seq_host = a.row_seq;
    st->decode.row_kv_len_host = a.row_kv;
    build_groups(s);
    st->common.max_kv = bpi_graph_max_kv(s, st->common.max_kv);
    st->decode.max_kv = bpi_graph_max_kv(s, st->decode.max_kv);
    if (s->meta_dev == s->meta_host) return BP_OK;
    return bpi_session_copy(s, s->meta_dev, s->meta_host, s->meta_used, BP_COPY_H2D, err);
}
