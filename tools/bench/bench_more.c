/* bench_more.c - the ops around the large ones: mla.common.*, moe.route, quant.dequantize, dense.embed.
 * Bytes: weights once in the form that 16 bits for each number would take (mla.common decodes them as it likes), inputs
 * and outputs once. Operations of expand and absorb: two for each number of a weight and row. SPDX-License-Identifier: MIT */
#include "bench_mla.h"

#include <string.h>

enum { C = BENCH_C, R = BENCH_R, P = BENCH_P, V = BENCH_V, MAX_TURNS = 64 };

/* ---- mla.common ---- */

enum what { CACHE_WRITE, CACHE_GATHER, EXPAND, ABSORB_UK, ABSORB_UV, MERGE };

struct common_work {
    const struct bp_mla_common_ops *vt;
    void *self, *weights[MAX_TURNS];
    uint32_t n, what;
    struct bench_cache cache;
    struct bp_mla_prefill_meta slab;
    struct bp_tensor x, y, z, w, lse, other_lse;
};

static int32_t call_common(void *arg, const struct bp_launch *l, uint32_t i, struct bp_error *err)
{
    const struct common_work *c = arg;
    switch (c->what) {
    case CACHE_WRITE: {
        const struct bp_mla_cache_write_args a = {
            .h = BP_HDR(struct bp_mla_cache_write_args, reserved),
            .meta = &c->cache.meta,
            .kv = c->x,
            .norm_w = c->w,
            .pool = c->cache.pool,
            .eps = 1e-6f};
        return c->vt->cache_write(c->self, l, &a, err);
    }
    case CACHE_GATHER: {
        const struct bp_mla_cache_gather_args a = {
            .h = BP_HDR(struct bp_mla_cache_gather_args, k_pe),
            .meta = &c->slab,
            .pool = c->cache.pool,
            .c = c->y,
            .k_pe = c->z};
        return c->vt->cache_gather(c->self, l, &a, err);
    }
    case EXPAND: {
        const struct bp_mla_expand_args a = {.h = BP_HDR(struct bp_mla_expand_args, v),
                                             .weights = c->weights[i % c->n],
                                             .c = c->x,
                                             .k_pe = c->w,
                                             .k = c->y,
                                             .v = c->z};
        return c->vt->expand(c->self, l, &a, err);
    }
    case MERGE: {
        const struct bp_mla_merge_args a = {.h = BP_HDR(struct bp_mla_merge_args, other_lse),
                                            .out = c->x,
                                            .lse = c->lse,
                                            .other_out = c->y,
                                            .other_lse = c->other_lse};
        return c->vt->merge(c->self, l, &a, err);
    }
    default: {
        const struct bp_mla_absorb_args a = {.h = BP_HDR(struct bp_mla_absorb_args, reserved),
                                             .weights = c->weights[i % c->n],
                                             .x = c->x,
                                             .y = c->y,
                                             .side = c->what == ABSORB_UK ? BP_MLA_ABSORB_UK
                                                                          : BP_MLA_ABSORB_UV};
        return c->vt->absorb(c->self, l, &a, err);
    }
    }
}

struct common_case {
    uint32_t what;
    struct bench_mla_case c;
};

static int32_t common_weights(struct bench *b, const struct common_case *k, struct common_work *w,
                              struct bp_error *err)
{
    const int64_t h = k->c.heads;
    struct bp_mla_weights raw = {.h = BP_HDR(struct bp_mla_weights, head_end),
                                 .n_head = k->c.heads,
                                 .nope_dim = P,
                                 .v_dim = V,
                                 .kv_rank = C,
                                 .head_end = k->c.heads};
    const uint32_t n = bench_turns(b, 2 * (uint64_t)h * (P + V) * C);
    BP_TRY(bench_raw(b, BP_GGUF_BF16, P, C, h, &raw.k_b, err));
    BP_TRY(bench_raw(b, BP_GGUF_BF16, C, V, h, &raw.v_b, err));
    for (w->n = 0; w->n < n; ++w->n)
        BP_TRY(w->vt->prepare(w->self, &raw, &w->weights[w->n], NULL, err));
    return BP_OK;
}

/* Positions 0 .. rows - 1 of sequence 0. */
static int32_t common_slab(struct bench *b, const struct common_case *k, struct common_work *w,
                           struct bp_error *err)
{
    struct bp_mla_prefill_meta *m = &w->slab;
    const int32_t n = (int32_t)k->c.kv, cu[2] = {0, n};
    void *host, *dev;
    BP_TRY(bench_heap(b, sizeof cu, &host, err));
    memcpy(host, cu, sizeof cu);
    BP_TRY(bench_ints(b, cu, 2, &dev, err));
    m->h = (struct bp_hdr)BP_HDR(struct bp_mla_prefill_meta, kv_begin_host);
    m->common = &w->cache.meta;
    m->n_seg = 1;
    m->n_q = m->max_q = 1;
    m->n_k = m->max_k = k->c.kv;
    m->cu_k = dev;
    m->cu_k_host = host;
    m->seq = m->kv_begin = dev; /* 0 */
    m->seq_host = m->kv_begin_host = host;
    const int32_t one[2] = {0, 1};
    BP_TRY(bench_heap(b, sizeof one, &host, err));
    memcpy(host, one, sizeof one);
    BP_TRY(bench_ints(b, one, 2, &dev, err));
    m->cu_q = dev;
    m->cu_q_host = host;
    return BP_OK;
}

static int32_t common_tensors(struct bench *b, const struct common_case *k, struct common_work *w,
                              struct bench_row *row, struct bp_error *err)
{
    const int64_t n = k->c.rows, h = k->c.heads, kv = k->c.kv;
    const uint32_t act = b->act;
    const double s = (double)bench_dtype_bytes(act), d = (double)n * (double)h;
    switch (k->what) {
    case CACHE_WRITE:
        BP_TRY(bench_tensor(b, act, 2, (int64_t[]){n, C + R}, 1.0, &w->x, err));
        BP_TRY(bench_tensor(b, BP_DT_F32, 1, (int64_t[]){C}, 1.0, &w->w, err));
        BP_TRY(bench_tensor(b, BP_DT_F32, 2, (int64_t[]){kv, R / 2}, 0.5, &w->cache.meta.rope_cos,
                            err));
        BP_TRY(bench_tensor(b, BP_DT_F32, 2, (int64_t[]){kv, R / 2}, 0.5, &w->cache.meta.rope_sin,
                            err));
        row->bytes = (double)n * ((C + R) * s + (double)w->cache.token_bytes);
        return BP_OK;
    case CACHE_GATHER:
        BP_TRY(bench_tensor(b, act, 2, (int64_t[]){kv, C}, 0.0, &w->y, err));
        BP_TRY(bench_tensor(b, act, 2, (int64_t[]){kv, R}, 0.0, &w->z, err));
        row->bytes = (double)kv * ((C + R) * s + (double)w->cache.token_bytes);
        return common_slab(b, k, w, err);
    case EXPAND:
        BP_TRY(bench_tensor(b, act, 2, (int64_t[]){n, C}, 1.0, &w->x, err));
        BP_TRY(bench_tensor(b, act, 2, (int64_t[]){n, R}, 1.0, &w->w, err));
        BP_TRY(bench_tensor(b, act, 3, (int64_t[]){n, h, P + R}, 0.0, &w->y, err));
        BP_TRY(bench_tensor(b, act, 3, (int64_t[]){n, h, V}, 0.0, &w->z, err));
        row->bytes = 2.0 * (double)h * (P + V) * C + s * ((double)n * (C + R) + d * (P + R + V));
        row->flops = 2.0 * d * (P + V) * C;
        return BP_OK;
    case MERGE:
        BP_TRY(bench_tensor(b, act, 3, (int64_t[]){n, h, V}, 1.0, &w->x, err));
        BP_TRY(bench_tensor(b, act, 3, (int64_t[]){n, h, V}, 1.0, &w->y, err));
        BP_TRY(bench_tensor(b, BP_DT_F32, 2, (int64_t[]){n, h}, 1.0, &w->lse, err));
        BP_TRY(bench_tensor(b, BP_DT_F32, 2, (int64_t[]){n, h}, 0.01, &w->other_lse, err));
        row->bytes = d * (3.0 * V * s + 12.0);
        return BP_OK;
    default: {
        const bool uk = k->what == ABSORB_UK;
        const int64_t in = uk ? P : C, out = uk ? C : V;
        BP_TRY(bench_tensor(b, act, 3, (int64_t[]){n, h, in}, 1.0, &w->x, err));
        BP_TRY(bench_tensor(b, act, 3, (int64_t[]){n, h, out}, 0.0, &w->y, err));
        row->bytes = 2.0 * (double)(h * in * out) + d * (double)(in + out) * s;
        row->flops = 2.0 * d * (double)(in * out);
        return BP_OK;
    }
    }
}

static int32_t common_run(struct bench *b, const struct common_case *k, struct common_work *w,
                          struct bench_row *row, struct bp_error *err)
{
    struct bp_mla_problem p = bench_mla_problem(b, &k->c);
    struct bp_kv_layout layout;
    struct bench_work work = {.problem = &p, .call = call_common, .arg = w};
    BP_TRY(bench_mla_latent(b, &p, &layout, row, err));
    BP_TRY(bench_choose(b, "mla.common", &p, &work.choice, row, err));
    w->vt = (const struct bp_mla_common_ops *)(const void *)work.choice.op.vt;
    w->self = work.choice.op.self;
    w->what = k->what;
    if (k->what == CACHE_WRITE || k->what == CACHE_GATHER) {
        BP_TRY(bench_mla_rows(b, &k->c, &w->cache, err));
        BP_TRY(bench_mla_pool(b, &k->c, &layout, &w->cache, err));
    } else if (k->what != MERGE) {
        BP_TRY(common_weights(b, k, w, err));
    }
    BP_TRY(common_tensors(b, k, w, row, err));
    work.n_turns = w->n > 0 ? w->n : 1;
    work.footprint = (uint64_t)row->bytes * work.n_turns;
    return bench_measure(b, &work, row, err);
}

int32_t bench_mla_common(struct bench *b, struct bp_error *err)
{
    static const char *const names[] = {"cache_write", "cache_gather", "expand",
                                        "absorb UK",   "absorb UV",    "merge"};
    static const struct common_case full[] = {
        {CACHE_WRITE, {128, 1, 64, 0}},     {CACHE_WRITE, {128, 2048, 64, 0}},
        {CACHE_GATHER, {128, 1, 16384, 0}}, {EXPAND, {128, 2048, 64, 0}},
        {ABSORB_UK, {128, 1, 64, 0}},       {ABSORB_UK, {128, 32, 64, 0}},
        {ABSORB_UV, {128, 1, 64, 0}},       {ABSORB_UV, {128, 32, 64, 0}},
        {MERGE, {128, 2048, 64, 0}}};
    static const struct common_case small[] = {
        {CACHE_WRITE, {4, 2, 64, 0}}, {CACHE_GATHER, {4, 1, 100, 0}}, {EXPAND, {2, 4, 64, 0}},
        {ABSORB_UK, {2, 2, 64, 0}},   {ABSORB_UV, {2, 2, 64, 0}},     {MERGE, {2, 4, 64, 0}}};
    const struct common_case *cases = b->o->small ? small : full;
    const size_t n = b->o->small ? BENCH_LEN(small) : BENCH_LEN(full), mark = b->n_blocks;
    struct bench_row row;
    for (size_t i = 0; i < n; ++i) {
        const struct common_case *k = &cases[i];
        struct common_work w = {0};
        const uint32_t rows = k->what == CACHE_GATHER ? k->c.kv : k->c.rows;
        if (!bench_begin(b, &row, "mla.common", "%s, %u heads, %u row%s", names[k->what],
                         k->c.heads, rows, rows == 1 ? "" : "s"))
            continue;
        const int32_t rc = common_run(b, k, &w, &row, err);
        for (uint32_t j = 0; j < w.n; ++j) w.vt->release(w.self, w.weights[j]);
        bench_free_to(b, mark);
        BP_TRY(bench_end(b, &row, rc, err));
    }
    return BP_OK;
}

/* ---- moe.route ---- */

struct route_work {
    const struct bp_moe_ops *vt;
    void *self;
    struct bp_moe_route_args a;
};

static int32_t call_route(void *arg, const struct bp_launch *l, uint32_t i, struct bp_error *err)
{
    const struct route_work *r = arg;
    (void)i;
    return r->vt->route(r->self, l, &r->a, err);
}

static int32_t route_run(struct bench *b, uint32_t n_tok, uint32_t groups, uint32_t n_expert,
                         struct bench_row *row, struct bp_error *err)
{
    const struct bp_moe_problem p = {.h = BP_HDR(struct bp_moe_problem, y_dtype),
                                     .op = BP_MOE_OP_ROUTE,
                                     .max_tok = n_tok,
                                     .n_embd = 7168,
                                     .n_ff = 2048,
                                     .n_expert = n_expert,
                                     .n_expert_used = 8,
                                     .expert_end = n_expert,
                                     .n_group = groups,
                                     .n_group_used = (groups + 1) / 2,
                                     .gating = BP_GATING_SIGMOID,
                                     .group_score = BP_GROUP_TOP2,
                                     .type_gate = BP_GGUF_Q4_K,
                                     .type_up = BP_GGUF_Q4_K,
                                     .type_down = BP_GGUF_Q4_K,
                                     .x_dtype = b->act,
                                     .y_dtype = BP_DT_F32};
    struct route_work r = {.a = {.h = BP_HDR(struct bp_moe_route_args, scale),
                                 .gating = p.gating,
                                 .group_score = p.group_score,
                                 .n_group = groups,
                                 .n_group_used = p.n_group_used,
                                 .normalize = 1,
                                 .scale = 2.5f}};
    struct bench_work w = {.problem = &p, .call = call_route, .arg = &r, .n_turns = 1};
    const int64_t pick[2] = {n_tok, 8};
    BP_TRY(bench_choose(b, "moe", &p, &w.choice, row, err));
    r.vt = (const struct bp_moe_ops *)(const void *)w.choice.op.vt;
    r.self = w.choice.op.self;
    BP_TRY(bench_tensor(b, BP_DT_F32, 2, (int64_t[]){n_tok, n_expert}, 1.0, &r.a.logits, err));
    BP_TRY(bench_tensor(b, BP_DT_F32, 1, (int64_t[]){n_expert}, 0.1, &r.a.bias, err));
    BP_TRY(bench_tensor(b, BP_DT_I32, 2, pick, 0.0, &r.a.ids, err));
    BP_TRY(bench_tensor(b, BP_DT_F32, 2, pick, 0.0, &r.a.weights, err));
    row->bytes = (double)n_tok * (4.0 * n_expert + 64.0) + 4.0 * n_expert;
    w.footprint = (uint64_t)row->bytes;
    return bench_measure(b, &w, row, err);
}

int32_t bench_route(struct bench *b, struct bp_error *err)
{
    static const struct {
        uint32_t n_tok, groups;
    } cases[] = {{1, 1}, {1, 8}, {512, 1}, {512, 8}};
    const uint32_t n_expert = b->o->small ? 32 : 256;
    const size_t mark = b->n_blocks;
    struct bench_row row;
    for (size_t i = 0; i < BENCH_LEN(cases); ++i) {
        const uint32_t n = b->o->small && cases[i].n_tok > 8 ? 8 : cases[i].n_tok;
        if (!bench_begin(b, &row, "moe.route", "8 of %u experts, %u group%s, %u token%s", n_expert,
                         cases[i].groups, cases[i].groups == 1 ? "" : "s", n, n == 1 ? "" : "s"))
            continue;
        const int32_t rc = route_run(b, n, cases[i].groups, n_expert, &row, err);
        bench_free_to(b, mark);
        BP_TRY(bench_end(b, &row, rc, err));
    }
    return BP_OK;
}

/* ---- quant.dequantize ---- */

struct dequantize_work {
    const struct bp_quant_ops *vt;
    void *self;
    struct bp_quant_dequantize_args a;
};

static int32_t call_dequantize(void *arg, const struct bp_launch *l, uint32_t i,
                               struct bp_error *err)
{
    const struct dequantize_work *d = arg;
    (void)i;
    return d->vt->dequantize(d->self, l, &d->a, err);
}

static int32_t dequantize_run(struct bench *b, struct dequantize_work *d, uint32_t type,
                              int64_t rows, int64_t cols, struct bench_row *row,
                              struct bp_error *err)
{
    const struct bp_quant_shape shape = {type, 0, rows, cols};
    const struct bp_quant_problem p = {.h = BP_HDR(struct bp_quant_problem, epilogue),
                                       .op = BP_QUANT_OP_DEQUANTIZE,
                                       .n_w = 1,
                                       .w_stride = sizeof shape,
                                       .max_tok = 1,
                                       .w = &shape,
                                       .x_dtype = b->act,
                                       .y_dtype = b->act};
    struct bench_work w = {.problem = &p, .call = call_dequantize, .arg = d, .n_turns = 1};
    struct bp_raw raw;
    BP_TRY(bench_choose(b, "quant", &p, &w.choice, row, err));
    d->vt = (const struct bp_quant_ops *)(const void *)w.choice.op.vt;
    d->self = w.choice.op.self;
    BP_TRY(bench_raw(b, type, cols, rows, 1, &raw, err));
    BP_TRY(d->vt->prepare(d->self, &raw, &d->a.weight, NULL, err));
    BP_TRY(bench_tensor(b, b->act, 2, (int64_t[]){rows, cols}, 0.0, &d->a.y, err));
    d->a.h = (struct bp_hdr)BP_HDR(struct bp_quant_dequantize_args, y);
    row->bytes = (double)bench_weight_bytes(type, cols, rows, 1) +
                 (double)(rows * cols) * (double)bench_dtype_bytes(b->act);
    w.footprint = (uint64_t)row->bytes;
    return bench_measure(b, &w, row, err);
}

int32_t bench_dequantize(struct bench *b, struct bp_error *err)
{
    static const uint32_t types[] = {BP_GGUF_Q8_0, BP_GGUF_Q6_K, BP_GGUF_Q4_K, BP_GGUF_IQ4_XS};
    const int64_t rows = b->o->small ? 96 : 14336, cols = b->o->small ? 512 : 4096;
    const size_t mark = b->n_blocks;
    struct bench_row row;
    for (size_t i = 0; i < BENCH_LEN(types); ++i) {
        struct dequantize_work d = {0};
        const char *name = "";
        uint32_t elems, bytes;
        BP_TRY(bp_block_shape(types[i], &name, &elems, &bytes));
        if (!bench_begin(b, &row, "quant.dequantize", "%s %lldx%lld", name, (long long)rows,
                         (long long)cols))
            continue;
        const int32_t rc = dequantize_run(b, &d, types[i], rows, cols, &row, err);
        if (d.a.weight != NULL) d.vt->release(d.self, d.a.weight);
        bench_free_to(b, mark);
        BP_TRY(bench_end(b, &row, rc, err));
    }
    return BP_OK;
}

/* ---- dense.embed ---- */

struct embed_work {
    const struct bp_dense_ops *vt;
    void *self;
    struct bp_dense_embed_args a;
};

static int32_t call_embed(void *arg, const struct bp_launch *l, uint32_t i, struct bp_error *err)
{
    const struct embed_work *e = arg;
    (void)i;
    return e->vt->embed(e->self, l, &e->a, err);
}

static int32_t embed_run(struct bench *b, struct embed_work *e, int64_t n_tok, int64_t vocab,
                         int64_t width, struct bench_row *row, struct bp_error *err)
{
    const struct bp_dense_problem p = {.h = BP_HDR(struct bp_dense_problem, k),
                                       .op = BP_DENSE_OP_EMBED,
                                       .max_rows = (uint32_t)n_tok,
                                       .width = width,
                                       .x_dtype = BP_DT_I32,
                                       .y_dtype = BP_DT_F32,
                                       .type = BP_GGUF_Q4_K};
    struct bench_work w = {.problem = &p, .call = call_embed, .arg = e, .n_turns = 1};
    struct bp_raw raw;
    void *ids;
    int32_t *host;
    BP_TRY(bench_choose(b, "dense", &p, &w.choice, row, err));
    e->vt = (const struct bp_dense_ops *)(const void *)w.choice.op.vt;
    e->self = w.choice.op.self;
    BP_TRY(bench_raw(b, BP_GGUF_Q4_K, width, vocab, 1, &raw, err));
    BP_TRY(e->vt->prepare(e->self, &raw, &e->a.table, NULL, err));
    BP_TRY(bench_heap(b, (uint64_t)n_tok * sizeof(int32_t), &ids, err));
    host = ids;
    for (int64_t i = 0; i < n_tok; ++i) host[i] = (int32_t)bench_below(b, (uint32_t)vocab);
    BP_TRY(bench_ints(b, host, (uint64_t)n_tok, &ids, err));
    e->a.h = (struct bp_hdr)BP_HDR(struct bp_dense_embed_args, y);
    e->a.ids = (struct bp_tensor){
        .data = ids, .dtype = BP_DT_I32, .ndim = 1, .dim = {n_tok}, .stride = {1}};
    BP_TRY(bench_tensor(b, BP_DT_F32, 2, (int64_t[]){n_tok, width}, 0.0, &e->a.y, err));
    row->bytes =
        (double)bench_weight_bytes(BP_GGUF_Q4_K, width, n_tok, 1) + 4.0 * (double)(n_tok * width);
    w.footprint = (uint64_t)row->bytes;
    return bench_measure(b, &w, row, err);
}

int32_t bench_embed(struct bench *b, struct bp_error *err)
{
    const int64_t vocab = b->o->small ? 512 : 129280, width = b->o->small ? 256 : 7168;
    const int64_t tokens[] = {1, b->o->small ? 8 : 2048};
    const size_t mark = b->n_blocks;
    struct bench_row row;
    for (size_t i = 0; i < BENCH_LEN(tokens); ++i) {
        struct embed_work e = {0};
        if (!bench_begin(b, &row, "dense.embed", "Q4_K %lldx%lld, %lld token%s", (long long)vocab,
                         (long long)width, (long long)tokens[i], tokens[i] == 1 ? "" : "s"))
            continue;
        const int32_t rc = embed_run(b, &e, tokens[i], vocab, width, &row, err);
        if (e.a.table != NULL) e.vt->release(e.self, e.a.table);
        bench_free_to(b, mark);
        BP_TRY(bench_end(b, &row, rc, err));
    }
    return BP_OK;
}
