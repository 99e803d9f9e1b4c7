/* bench_mla.c - mla.decode, mla.prefill and mla.index on caches of random numbers.
 * decode and select: each row is a sequence of its own, its blocks scattered over the pool. Bytes: the keys that a row
 * may see, once, whatever the number of heads; queries and outputs. Operations of decode: 2 (C + R) for the score and
 * 2 C for the sum, for each head and key; of prefill 2 (P + R) + 2 V for each head and pair of query and key that it may
 * see; of select 2 D for each index head and key. Caches are filled as the plain layouts "mla.<dtype>.<width>" have
 * them; a provider that offers none of these is not measured.
 * SPDX-License-Identifier: MIT */
#include "bench_mla.h"

#include <math.h>
#include <string.h>

enum { BLOCK_TOK = BENCH_BLOCK_TOK, C = BENCH_C, R = BENCH_R };

const char *bench_dtype_name(uint32_t dtype)
{
    return dtype == BP_DT_F32 ? "f32" : dtype == BP_DT_BF16 ? "bf16" : "f16";
}

struct bp_mla_problem bench_mla_problem(const struct bench *b, const struct bench_mla_case *c)
{
    return (struct bp_mla_problem){.h = BP_HDR(struct bp_mla_problem, type_v),
                                   .n_head = c->heads,
                                   .nope_dim = 128,
                                   .rope_dim = R,
                                   .v_dim = 128,
                                   .kv_rank = C,
                                   .block_tok = BLOCK_TOK,
                                   .act_dtype = b->act,
                                   .kv_dtype = b->kv,
                                   .max_tok = c->rows,
                                   .max_seqs = c->rows,
                                   .max_rows = c->rows,
                                   .max_kv = c->kv,
                                   .max_slab = c->kv,
                                   .top_k = c->top_k,
                                   .type_k = BP_GGUF_BF16,
                                   .type_v = BP_GGUF_BF16};
}

/* ---- a paged cache and the metadata of a step ---- */

static int32_t ints(struct bench *b, uint64_t n, int32_t **host, const int32_t **dev,
                    struct bp_error *err)
{
    void *h, *d;
    BP_TRY(bench_heap(b, n * sizeof(int32_t), &h, err));
    *host = h;
    if (dev == NULL) return BP_OK;
    BP_TRY(bench_alloc(b, BP_MEM_DEVICE, n * sizeof(int32_t), &d, err));
    *dev = d;
    return BP_OK;
}

static int32_t send(struct bench *b, const int32_t *dev, const int32_t *host, uint64_t n,
                    struct bp_error *err)
{
    union { /* the metadata's pointers are to const */
        const int32_t *in;
        void *out;
    } to = {.in = dev};
    return bench_upload(b, to.out, host, n * sizeof(int32_t), err);
}

int32_t bench_mla_rows(struct bench *b, const struct bench_mla_case *c, struct bench_cache *k,
                       struct bp_error *err)
{
    const uint32_t per = (c->kv + BLOCK_TOK - 1) / BLOCK_TOK, n = c->rows * per;
    int32_t *table, *pos, *slot, *len, *seq, *keys;
    struct bp_mla_meta *m = &k->meta;
    struct bp_mla_decode_meta *d = &k->rows;
    BP_TRY(ints(b, n, &table, &m->block_table, err));
    BP_TRY(ints(b, c->rows, &pos, &m->positions, err));
    BP_TRY(ints(b, c->rows, &slot, &m->slot_map, err));
    BP_TRY(ints(b, c->rows, &len, &m->kv_len, err));
    BP_TRY(ints(b, c->rows, &seq, &d->row_seq, err));
    BP_TRY(ints(b, c->rows, &keys, &d->row_kv_len, err));
    for (uint32_t i = 0; i < n; ++i) table[i] = (int32_t)i;
    for (uint32_t i = n; i > 1; --i) { /* shuffled */
        const uint32_t j = bench_below(b, i);
        const int32_t t = table[i - 1];
        table[i - 1] = table[j];
        table[j] = t;
    }
    for (uint32_t i = 0; i < c->rows; ++i) {
        pos[i] = (int32_t)c->kv - 1;
        slot[i] = table[(size_t)i * per + (c->kv - 1) / BLOCK_TOK] * BLOCK_TOK +
                  (int32_t)((c->kv - 1) % BLOCK_TOK);
        len[i] = keys[i] = (int32_t)c->kv;
        seq[i] = (int32_t)i;
    }
    BP_TRY(send(b, m->block_table, table, n, err));
    BP_TRY(send(b, m->positions, pos, c->rows, err));
    BP_TRY(send(b, m->slot_map, slot, c->rows, err));
    BP_TRY(send(b, m->kv_len, len, c->rows, err));
    BP_TRY(send(b, d->row_seq, seq, c->rows, err));
    BP_TRY(send(b, d->row_kv_len, keys, c->rows, err));
    m->h = (struct bp_hdr)BP_HDR(struct bp_mla_meta, rope_sin);
    m->epoch = 1;
    m->n_tok = m->n_seqs = c->rows;
    m->block_tok = BLOCK_TOK;
    m->table_stride = per;
    m->max_kv = c->kv;
    m->positions_host = pos;
    m->slot_map_host = slot;
    m->block_table_host = table;
    m->kv_len_host = len;
    d->h = (struct bp_hdr)BP_HDR(struct bp_mla_decode_meta, row_kv_len_host);
    d->common = m;
    d->n_row = d->n_row_padded = c->rows;
    d->max_kv = c->kv;
    d->row_seq_host = seq;
    d->row_kv_len_host = keys;
    return BP_OK;
}

int32_t bench_mla_pool(struct bench *b, const struct bench_mla_case *c,
                       const struct bp_kv_layout *l, struct bench_cache *k, struct bp_error *err)
{
    const uint64_t n = (uint64_t)c->rows * k->meta.table_stride;
    k->token_bytes = l->token_bytes;
    k->pool = (struct bp_tensor){.dtype = BP_DT_U8,
                                 .ndim = 2,
                                 .layout_id = l->id,
                                 .dim = {(int64_t)n, (int64_t)l->block_bytes},
                                 .stride = {(int64_t)l->block_bytes, 1}};
    return bench_numbers(b, l->dtype, n * l->block_bytes, 1.0, &k->pool.data, err);
}

typedef int32_t layouts_fn(void *self, const struct bp_mla_problem *p, uint32_t i,
                           struct bp_kv_layout *out);

/* The plain layout of this width. */
static int32_t plain_layout(layouts_fn *layouts, void *self, const struct bp_mla_problem *p,
                            const char *family, uint32_t width, struct bp_kv_layout *out,
                            struct bp_error *err)
{
    char name[32];
    snprintf(name, sizeof name, "%s.%s.%u", family, bench_dtype_name(p->kv_dtype), width);
    for (uint32_t i = 0; i < 64; ++i) {
        *out = (struct bp_kv_layout){.h = BP_HDR(struct bp_kv_layout, name)};
        if (layouts(self, p, i, out) != BP_OK) break;
        if (strcmp(out->name, name) == 0) return BP_OK;
    }
    return bench_fail(err, BP_DECLINED, "layout", "no provider writes the layout %s", name);
}

int32_t bench_mla_latent(struct bench *b, struct bp_mla_problem *p, struct bp_kv_layout *out,
                         struct bench_row *row, struct bp_error *err)
{
    struct bp_op_choice common;
    BP_TRY(bench_choose(b, "mla.common", p, &common, row, err));
    const struct bp_mla_common_ops *vt =
        (const struct bp_mla_common_ops *)(const void *)common.op.vt;
    BP_TRY(plain_layout(vt->layouts, common.op.self, p, "mla", C + R, out, err));
    p->layout_id = out->id;
    return BP_OK;
}

/* ---- decode ---- */

struct decode_work {
    const struct bp_mla_decode_ops *vt;
    void *self;
    struct bench_cache cache;
    struct bp_tensor q, out, idx, idx_len;
};

static int32_t plan_decode(void *arg, const struct bp_launch *l, uint32_t i, struct bp_error *err)
{
    const struct decode_work *d = arg;
    (void)i;
    return d->vt->plan(d->self, l, &d->cache.rows, err);
}

static int32_t call_decode(void *arg, const struct bp_launch *l, uint32_t i, struct bp_error *err)
{
    const struct decode_work *d = arg;
    const struct bp_mla_decode_args a = {.h = BP_HDR(struct bp_mla_decode_args, reserved),
                                         .meta = &d->cache.rows,
                                         .q = d->q,
                                         .pool = d->cache.pool,
                                         .out = d->out,
                                         .idx = d->idx,
                                         .idx_len = d->idx_len,
                                         .scale = 0.0721688f}; /* 1 / sqrt(192) */
    (void)i;
    return d->vt->run(d->self, l, &a, err);
}

/* top_k positions, evenly spread with a random first, as slots. */
static int32_t make_index(struct bench *b, const struct bench_mla_case *c, struct decode_work *d,
                          struct bp_error *err)
{
    const struct bp_mla_meta *m = &d->cache.meta;
    const int64_t n = c->rows, k = c->top_k;
    int32_t *idx, *len;
    void *dev;
    if (c->top_k == 0) return BP_OK;
    BP_TRY(ints(b, (uint64_t)(n * k), &idx, NULL, err));
    BP_TRY(ints(b, (uint64_t)n, &len, NULL, err));
    const uint32_t step = c->kv / c->top_k;
    for (int64_t r = 0; r < n; ++r) {
        const uint32_t first = bench_below(b, step);
        const int32_t *table = m->block_table_host + r * m->table_stride;
        for (int64_t i = 0; i < k; ++i) {
            const uint32_t pos = first + (uint32_t)i * step;
            idx[r * k + i] = table[pos / BLOCK_TOK] * BLOCK_TOK + (int32_t)(pos % BLOCK_TOK);
        }
        len[r] = (int32_t)k;
    }
    BP_TRY(bench_ints(b, idx, (uint64_t)(n * k), &dev, err));
    d->idx = (struct bp_tensor){
        .data = dev, .dtype = BP_DT_I32, .ndim = 2, .dim = {n, k}, .stride = {k, 1}};
    BP_TRY(bench_ints(b, len, (uint64_t)n, &dev, err));
    d->idx_len =
        (struct bp_tensor){.data = dev, .dtype = BP_DT_I32, .ndim = 1, .dim = {n}, .stride = {1}};
    return BP_OK;
}

static int32_t decode_case(struct bench *b, const struct bench_mla_case *c, struct bench_row *row,
                           struct bp_error *err)
{
    struct bp_mla_problem p = bench_mla_problem(b, c);
    struct bp_kv_layout layout;
    struct decode_work d = {0};
    struct bench_work w = {.problem = &p,
                           .plan = plan_decode,
                           .call = call_decode,
                           .arg = &d,
                           .n_turns = 1,
                           .host_lengths = true};
    BP_TRY(bench_mla_latent(b, &p, &layout, row, err));
    BP_TRY(bench_choose(b, "mla.decode", &p, &w.choice, row, err));
    d.vt = (const struct bp_mla_decode_ops *)(const void *)w.choice.op.vt;
    d.self = w.choice.op.self;
    BP_TRY(bench_mla_rows(b, c, &d.cache, err));
    BP_TRY(bench_mla_pool(b, c, &layout, &d.cache, err));
    BP_TRY(make_index(b, c, &d, err));
    BP_TRY(bench_tensor(b, b->act, 3, (int64_t[]){c->rows, c->heads, C + R}, 1.0, &d.q, err));
    BP_TRY(bench_tensor(b, b->act, 3, (int64_t[]){c->rows, c->heads, C}, 0.0, &d.out, err));
    const double keys = (double)c->rows * (c->top_k != 0 ? c->top_k : c->kv);
    row->bytes = keys * (double)d.cache.token_bytes +
                 (double)c->rows * c->heads * (C + R + C) * (double)bench_dtype_bytes(b->act);
    row->flops = keys * c->heads * (2.0 * (C + R) + 2.0 * C);
    w.footprint = (uint64_t)(keys * (double)d.cache.token_bytes);
    return bench_measure(b, &w, row, err);
}

int32_t bench_mla_decode(struct bench *b, struct bp_error *err)
{
    static const struct bench_mla_case full[] = {
        {16, 1, 4096, 0},      {16, 1, 65536, 0},     {16, 8, 16384, 0},    {16, 32, 4096, 0},
        {16, 128, 4096, 0},    {16, 128, 16384, 0},   {128, 1, 4096, 0},    {128, 1, 65536, 0},
        {128, 32, 4096, 0},    {128, 128, 4096, 0},   {128, 128, 16384, 0}, {64, 128, 4096, 0},
        {128, 1, 65536, 2048}, {128, 32, 16384, 2048}};
    static const struct bench_mla_case small[] = {{4, 1, 100, 0}, {4, 2, 256, 0}, {4, 2, 256, 64}};
    const struct bench_mla_case *cases = b->o->small ? small : full;
    const size_t n = b->o->small ? BENCH_LEN(small) : BENCH_LEN(full), mark = b->n_blocks;
    struct bench_row row;
    for (size_t i = 0; i < n; ++i) {
        const struct bench_mla_case *c = &cases[i];
        char sparse[32] = "";
        if (c->top_k != 0) snprintf(sparse, sizeof sparse, ", %u chosen", c->top_k);
        if (!bench_begin(b, &row, "mla.decode", "%u heads, %u row%s, kv %u%s, %s", c->heads,
                         c->rows, c->rows == 1 ? "" : "s", c->kv, sparse, bench_dtype_name(b->kv)))
            continue;
        const int32_t rc = decode_case(b, c, &row, err);
        bench_free_to(b, mark);
        BP_TRY(bench_end(b, &row, rc, err));
    }
    return BP_OK;
}

/* ---- prefill ---- */

struct prefill_work {
    const struct bp_mla_prefill_ops *vt;
    void *self;
    struct bp_mla_meta common;
    struct bp_mla_prefill_meta meta;
    struct bp_tensor q, k, v, out, lse;
    bool context;
};

static int32_t plan_prefill(void *arg, const struct bp_launch *l, uint32_t i, struct bp_error *err)
{
    const struct prefill_work *p = arg;
    (void)i;
    return p->vt->plan(p->self, l, &p->meta, err);
}

static int32_t call_prefill(void *arg, const struct bp_launch *l, uint32_t i, struct bp_error *err)
{
    const struct prefill_work *p = arg;
    const struct bp_mla_prefill_args a = {.h = BP_HDR(struct bp_mla_prefill_args, reserved),
                                          .meta = &p->meta,
                                          .q = p->q,
                                          .k = p->k,
                                          .v = p->v,
                                          .out = p->out,
                                          .lse = p->lse,
                                          .scale = 0.0721688f};
    (void)i;
    return p->context ? p->vt->run_context(p->self, l, &a, err) : p->vt->run(p->self, l, &a, err);
}

struct prefill_case {
    uint32_t heads, n_q, n_k;
    bool context;
};

/* One segment of one sequence. */
static int32_t make_segment(struct bench *b, const struct prefill_case *c, struct prefill_work *p,
                            struct bp_error *err)
{
    struct bp_mla_prefill_meta *m = &p->meta;
    int32_t *cu_q, *cu_k, *seq, *begin, *len;
    BP_TRY(ints(b, 2, &cu_q, &m->cu_q, err));
    BP_TRY(ints(b, 2, &cu_k, &m->cu_k, err));
    BP_TRY(ints(b, 1, &seq, &m->seq, err));
    BP_TRY(ints(b, 1, &begin, &m->kv_begin, err));
    BP_TRY(ints(b, 1, &len, &p->common.kv_len, err));
    cu_q[0] = cu_k[0] = seq[0] = begin[0] = 0;
    cu_q[1] = (int32_t)c->n_q;
    cu_k[1] = len[0] = (int32_t)c->n_k;
    BP_TRY(send(b, m->cu_q, cu_q, 2, err));
    BP_TRY(send(b, m->cu_k, cu_k, 2, err));
    BP_TRY(send(b, m->seq, seq, 1, err));
    BP_TRY(send(b, m->kv_begin, begin, 1, err));
    BP_TRY(send(b, p->common.kv_len, len, 1, err));
    p->common.h = (struct bp_hdr)BP_HDR(struct bp_mla_meta, rope_sin);
    p->common.epoch = 1;
    p->common.n_tok = c->n_q;
    p->common.n_seqs = 1;
    p->common.block_tok = BLOCK_TOK;
    p->common.max_kv = c->n_k;
    p->common.kv_len_host = len;
    m->h = (struct bp_hdr)BP_HDR(struct bp_mla_prefill_meta, kv_begin_host);
    m->common = &p->common;
    m->n_seg = 1;
    m->n_q = m->max_q = c->n_q;
    m->n_k = m->max_k = c->n_k;
    m->seq_host = seq;
    m->cu_q_host = cu_q;
    m->cu_k_host = cu_k;
    m->kv_begin_host = begin;
    return BP_OK;
}

static int32_t prefill_case(struct bench *b, const struct prefill_case *c, struct bench_row *row,
                            struct bp_error *err)
{
    enum { P = 128, V = 128 };
    const struct bench_mla_case sizes = {c->heads, c->n_q, c->n_k, 0};
    struct bp_mla_problem p = bench_mla_problem(b, &sizes);
    struct bp_kv_layout layout;
    struct prefill_work d = {.context = c->context};
    struct bench_work w = {
        .problem = &p, .plan = plan_prefill, .call = call_prefill, .arg = &d, .n_turns = 1};
    const int64_t h = c->heads, nq = c->n_q, nk = c->n_k;
    p.max_seqs = 1;
    p.need_lse = 1;
    BP_TRY(bench_mla_latent(b, &p, &layout, row, err));
    BP_TRY(bench_choose(b, "mla.prefill", &p, &w.choice, row, err));
    d.vt = (const struct bp_mla_prefill_ops *)(const void *)w.choice.op.vt;
    d.self = w.choice.op.self;
    BP_TRY(make_segment(b, c, &d, err));
    BP_TRY(bench_tensor(b, b->act, 3, (int64_t[]){nq, h, P + R}, 1.0, &d.q, err));
    BP_TRY(bench_tensor(b, b->act, 3, (int64_t[]){nk, h, P + R}, 1.0, &d.k, err));
    BP_TRY(bench_tensor(b, b->act, 3, (int64_t[]){nk, h, V}, 1.0, &d.v, err));
    BP_TRY(bench_tensor(b, b->act, 3, (int64_t[]){nq, h, V}, 0.0, &d.out, err));
    BP_TRY(bench_tensor(b, BP_DT_F32, 2, (int64_t[]){nq, h}, 0.0, &d.lse, err));
    const double pairs = c->context ? (double)nq * (double)nk
                                    : (double)nq * ((double)(nk - nq) + ((double)nq + 1.0) / 2.0);
    row->bytes = (double)(nq + nk) * (double)h * (P + R + V) * (double)bench_dtype_bytes(b->act);
    row->flops = pairs * (double)h * (2.0 * (P + R) + 2.0 * V);
    w.footprint = (uint64_t)row->bytes;
    return bench_measure(b, &w, row, err);
}

int32_t bench_mla_prefill(struct bench *b, struct bp_error *err)
{
    static const struct prefill_case full[] = {{16, 512, 512, false},    {16, 4096, 4096, false},
                                               {128, 512, 512, false},   {128, 2048, 2048, false},
                                               {128, 4096, 4096, false}, {128, 512, 4096, true}};
    static const struct prefill_case small[] = {{2, 16, 16, false}, {2, 16, 64, true}};
    const struct prefill_case *cases = b->o->small ? small : full;
    const size_t n = b->o->small ? BENCH_LEN(small) : BENCH_LEN(full), mark = b->n_blocks;
    struct bench_row row;
    for (size_t i = 0; i < n; ++i) {
        const struct prefill_case *c = &cases[i];
        if (!bench_begin(b, &row, "mla.prefill", "%u heads, %u queries, %u keys, %s", c->heads,
                         c->n_q, c->n_k, c->context ? "all seen" : "causal"))
            continue;
        const int32_t rc = prefill_case(b, c, &row, err);
        bench_free_to(b, mark);
        BP_TRY(bench_end(b, &row, rc, err));
    }
    return BP_OK;
}

/* ---- index ---- */

struct select_work {
    const struct bp_mla_index_ops *vt;
    void *self;
    struct bench_cache cache;
    struct bp_tensor q, w, idx, idx_len;
    uint32_t top_k;
    float scale;
};

static int32_t call_select(void *arg, const struct bp_launch *l, uint32_t i, struct bp_error *err)
{
    const struct select_work *s = arg;
    const struct bp_mla_select_args a = {.h = BP_HDR(struct bp_mla_select_args, top_k),
                                         .meta = &s->cache.rows,
                                         .q = s->q,
                                         .w = s->w,
                                         .pool = s->cache.pool,
                                         .idx = s->idx,
                                         .idx_len = s->idx_len,
                                         .scale = s->scale,
                                         .top_k = s->top_k};
    (void)i;
    return s->vt->select(s->self, l, &a, err);
}

static int32_t select_case(struct bench *b, const struct bench_mla_case *c, uint32_t width,
                           struct bench_row *row, struct bp_error *err)
{
    struct bp_mla_problem p = bench_mla_problem(b, c);
    struct bp_kv_layout latent, layout;
    struct select_work s = {.top_k = c->top_k,
                            .scale = (float)(1.0 / sqrt((double)c->heads * width))};
    struct bench_work w = {
        .problem = &p, .call = call_select, .arg = &s, .n_turns = 1, .host_lengths = true};
    p.n_head = 128;
    p.n_index_head = c->heads;
    p.index_dim = width;
    BP_TRY(bench_mla_latent(b, &p, &latent, row, err));
    BP_TRY(bench_choose(b, "mla.index", &p, &w.choice, row, err));
    s.vt = (const struct bp_mla_index_ops *)(const void *)w.choice.op.vt;
    s.self = w.choice.op.self;
    BP_TRY(plain_layout(s.vt->layouts, s.self, &p, "mla.index", width, &layout, err));
    p.index_layout_id = layout.id;
    BP_TRY(bench_mla_rows(b, c, &s.cache, err));
    BP_TRY(bench_mla_pool(b, c, &layout, &s.cache, err));
    BP_TRY(bench_tensor(b, b->act, 3, (int64_t[]){c->rows, c->heads, width}, 1.0, &s.q, err));
    BP_TRY(bench_tensor(b, BP_DT_F32, 2, (int64_t[]){c->rows, c->heads}, 1.0, &s.w, err));
    BP_TRY(bench_tensor(b, BP_DT_I32, 2, (int64_t[]){c->rows, c->top_k}, 0.0, &s.idx, err));
    BP_TRY(bench_tensor(b, BP_DT_I32, 1, (int64_t[]){c->rows}, 0.0, &s.idx_len, err));
    const double keys = (double)c->rows * c->kv;
    row->bytes = keys * (double)s.cache.token_bytes +
                 (double)c->rows * (c->heads * (double)width * (double)bench_dtype_bytes(b->act) +
                                    4.0 * c->top_k);
    row->flops = keys * c->heads * 2.0 * width;
    w.footprint = (uint64_t)(keys * (double)s.cache.token_bytes);
    return bench_measure(b, &w, row, err);
}

int32_t bench_mla_index(struct bench *b, struct bp_error *err)
{
    static const struct bench_mla_case full[] = {{64, 1, 16384, 2048},
                                                 {64, 1, 65536, 2048},
                                                 {64, 32, 16384, 2048},
                                                 {64, 128, 16384, 2048},
                                                 {32, 32, 16384, 2048}};
    static const struct bench_mla_case small[] = {{4, 2, 200, 64}};
    const struct bench_mla_case *cases = b->o->small ? small : full;
    const size_t n = b->o->small ? BENCH_LEN(small) : BENCH_LEN(full), mark = b->n_blocks;
    const uint32_t width = b->o->small ? 64 : 128;
    struct bench_row row;
    for (size_t i = 0; i < n; ++i) {
        const struct bench_mla_case *c = &cases[i];
        if (!bench_begin(b, &row, "mla.index", "%u index heads, %u row%s, kv %u, %u chosen",
                         c->heads, c->rows, c->rows == 1 ? "" : "s", c->kv, c->top_k))
            continue;
        const int32_t rc = select_case(b, c, width, &row, err);
        bench_free_to(b, mark);
        BP_TRY(bench_end(b, &row, rc, err));
    }
    return BP_OK;
}
