/* attn.c - microseconds of attn_triton_like on a GPU for the shapes of large models: decode, prefill, index, absorb. Calls lie
 * in a graph; caches are larger than the L2 cache where that matters, blocks are shuffled. Percentages are of a copy measured in
 * the same run, counted on cache bytes. Tensor-core kernels are compared with the f32 ones on the same numbers: that alone is
 * judged. Exit status 0, 1 when something failed or differs, 77 without a device.
 * Usage: attn DEVICE_PLUGIN.so ATTN_PLUGIN.so     SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include <backplane/sdk.h>
#include <backplane/slot_device.h>
#include <backplane/slot_mla.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

enum { C = 512, R = 64, W = C + R, BLOCK = 64, REPLAYS = 9, D = 128, TOP_K = 2048 };

static const struct bp_device_ops *device;
static struct bp_op_ref device_op;
static struct bp_device dev = {.h = BP_HDR(struct bp_device, name), .kind = BP_DEV_CUDA};
static void *stream;
static double copy_gbs;
static uint32_t seed = 20261201;
static int failed;

static void must(int32_t rc, const struct bp_error *err, const char *what)
{
    if (rc == BP_OK) return;
    printf("FAIL %s: status %d, %s\n", what, rc, err != NULL ? err->msg : "");
    exit(1);
}
/* The call fills an `err` of the macro's own. */
#define MUST(call)                                                                                 \
    do {                                                                                           \
        struct bp_error err = BP_ERROR_INIT;                                                       \
        must(call, &err, #call);                                                                   \
    } while (0)

static uint32_t next_random(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 17;
    return seed ^= seed << 5;
}

static void *host_alloc(void *ctx, uint64_t n_bytes, uint64_t align)
{
    (void)ctx;
    const uint64_t whole = (n_bytes + align - 1) / align * align;
    void *p = aligned_alloc((size_t)align, (size_t)whole);
    if (p != NULL) memset(p, 0, (size_t)whole);
    return p;
}
static void host_free(void *ctx, void *p)
{
    (void)ctx;
    free(p);
}

static struct bp_op_ref open_op(const char *path, const char *iface)
{
    static const struct bp_query q = {.h = BP_HDR(struct bp_query, engine_version),
                                      .host_major = BP_ABI_MAJOR,
                                      .host_minor = BP_ABI_MINOR};
    static const struct bp_host host = {.h = BP_HDR(struct bp_host, parallel_for),
                                        .abi_minor = BP_ABI_MINOR,
                                        .mem_alloc = host_alloc,
                                        .mem_free = host_free};
    bp_plugin_query_fn query = NULL;
    struct bp_op_ref op = {0};
    void *plugin = NULL, *so = dlopen(path, RTLD_NOW | RTLD_LOCAL), *entry = NULL;
    if (so != NULL) entry = dlsym(so, BP_PLUGIN_ENTRY);
    if (entry == NULL) {
        printf("FAIL %s\n", dlerror());
        exit(1);
    }
    memcpy(&query, &entry, sizeof query);
    const struct bp_plugin_desc *desc = query(&q);
    MUST(desc->open(&host, &plugin, &err));
    for (uint32_t i = 0; i < desc->n_ops; ++i) {
        if (strcmp(desc->ops[i].iface, iface) == 0)
            MUST(desc->op_create(plugin, &desc->ops[i], &dev, NULL, 0, &op, &err));
    }
    return op;
}

static void *gpu(uint64_t n_bytes)
{
    void *p = NULL;
    MUST(device->alloc(device_op.self, BP_MEM_DEVICE, n_bytes, &p, &err));
    return p;
}

static void up(void *dst, const void *src, uint64_t n)
{
    MUST(device->copy(device_op.self, dst, src, n, BP_COPY_H2D, stream, &err));
    MUST(device->stream_sync(device_op.self, stream, &err));
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Microseconds of the graph of what has been captured since graph_begin, median. */
static double replay(void)
{
    void *graph = NULL, *from = NULL, *to = NULL;
    double us[REPLAYS];
    MUST(device->graph_end(device_op.self, stream, &graph, &err));
    MUST(device->event_create(device_op.self, &from, &err));
    MUST(device->event_create(device_op.self, &to, &err));
    for (int i = 0; i < REPLAYS; ++i) {
        MUST(device->event_record(device_op.self, from, stream, &err));
        MUST(device->graph_launch(device_op.self, graph, stream, &err));
        MUST(device->event_record(device_op.self, to, stream, &err));
        MUST(device->event_elapsed_us(device_op.self, from, to, &us[i], &err));
    }
    qsort(us, REPLAYS, sizeof *us, by_size);
    device->graph_destroy(device_op.self, graph);
    device->event_destroy(device_op.self, from);
    device->event_destroy(device_op.self, to);
    return us[REPLAYS / 2];
}

/* On the stream itself: what a graph does of copies is slower than the memory. */
static void measure_copy(void)
{
    const uint64_t n = UINT64_C(1) << 30;
    void *a = gpu(n), *b = gpu(n), *from = NULL, *to = NULL;
    double us[REPLAYS];
    MUST(device->event_create(device_op.self, &from, &err));
    MUST(device->event_create(device_op.self, &to, &err));
    for (int i = 0; i < REPLAYS; ++i) {
        MUST(device->event_record(device_op.self, from, stream, &err));
        for (int k = 0; k < 4; ++k)
            MUST(device->copy(device_op.self, b, a, n, BP_COPY_D2D, stream, &err));
        MUST(device->event_record(device_op.self, to, stream, &err));
        MUST(device->event_elapsed_us(device_op.self, from, to, &us[i], &err));
    }
    qsort(us, REPLAYS, sizeof us[0], by_size);
    copy_gbs = 4.0 * 2.0 * (double)n / us[REPLAYS / 2] / 1e3;
    printf("     copy %.0f GB/s, read and write counted\n", copy_gbs);
    device->event_destroy(device_op.self, from);
    device->event_destroy(device_op.self, to);
    device->free(device_op.self, BP_MEM_DEVICE, a);
    device->free(device_op.self, BP_MEM_DEVICE, b);
}

/* ---- memory and numbers ---- */

/* n numbers in [-1, 1) of a dtype on the device: a megabyte of random ones, over and over. */
static void *numbers(uint64_t n, uint32_t dtype)
{
    enum { N = 1 << 18 };
    static float wide[N];
    static unsigned char bytes[N * 4];
    const uint64_t each = (uint64_t)bp_dtype_bytes(dtype);
    unsigned char *p = gpu(n * each + 256);
    for (int i = 0; i < N; ++i) wide[i] = (float)(int32_t)next_random() * 0x1p-31f;
    bp_store(bytes, dtype, wide, N);
    for (uint64_t at = 0; at < n; at += N)
        up(p + at * each, bytes, (n - at < N ? n - at : N) * each);
    return p;
}

static struct bp_tensor tensor(void *data, uint32_t dtype, int64_t a, int64_t b, int64_t c)
{
    struct bp_tensor t = {.data = data,
                          .dtype = dtype,
                          .ndim = c != 0   ? 3
                                  : b != 0 ? 2
                                           : 1,
                          .dim = {a, b, c}};
    t.stride[0] = c != 0 ? b * c : b != 0 ? b : 1;
    t.stride[1] = c != 0 ? c : 1;
    t.stride[2] = 1;
    return t;
}

static int32_t *ints_up(const int32_t *x, uint64_t n)
{
    int32_t *p = gpu(n * 4);
    up(p, x, n * 4);
    return p;
}

static void release(void *p)
{
    device->free(device_op.self, BP_MEM_DEVICE, p);
}

static float *down(const struct bp_tensor *t)
{
    uint64_t n = 1;
    for (uint32_t d = 0; d < t->ndim; ++d) n *= (uint64_t)t->dim[d];
    unsigned char *raw = malloc(n * 4);
    float *x = malloc(n * 4);
    MUST(device->copy(device_op.self, raw, t->data, n * (uint64_t)bp_dtype_bytes(t->dtype),
                      BP_COPY_D2H, stream, &err));
    MUST(device->stream_sync(device_op.self, stream, &err));
    bp_load(x, raw, t->dtype, (int64_t)n);
    free(raw);
    return x;
}

/* Largest difference of two results; a NaN is one. */
static void compare(const char *what, const struct bp_tensor *a, const struct bp_tensor *b,
                    uint64_t n, double most)
{
    float *x = down(a), *y = down(b);
    double worst = 0.0;
    for (uint64_t i = 0; i < n; ++i) {
        const double d = x[i] < y[i] ? (double)y[i] - x[i] : (double)x[i] - y[i];
        if (!(d <= worst)) worst = d;
    }
    const int bad = !(worst <= most);
    printf("%s %s: tensor cores and f32 differ by %.2e, allowed %.0e\n", bad ? "FAIL" : "    ",
           what, worst, most);
    failed |= bad;
    free(x);
    free(y);
}

struct sized {
    struct bp_op_ref op;
    struct bp_launch l;
};

/* Gives an op the memory that it asks for. */
static void size_op(struct sized *s, const struct bp_op_ref *op, const struct bp_mla_problem *p)
{
    struct bp_workspace w = {.h = BP_HDR(struct bp_workspace, persistent_zeroed)};
    MUST(op->vt->workspace(op->self, p, &w, &err));
    s->op = *op;
    s->l = (struct bp_launch){
        .h = BP_HDR(struct bp_launch, reserved), .dev = &dev, .stream = stream, .layer = -1};
    s->l.scratch_bytes = w.scratch_bytes;
    if (w.scratch_bytes != 0) s->l.scratch = gpu(w.scratch_bytes);
    if (w.plan_bytes != 0) s->l.plan = gpu(w.plan_bytes);
    if (w.persistent_bytes != 0) s->l.persistent = gpu(w.persistent_bytes);
    if (w.pinned_bytes != 0)
        MUST(device->alloc(device_op.self, BP_MEM_PINNED, w.pinned_bytes, &s->l.pinned, &err));
}

static void size_free(struct sized *s)
{
    release(s->l.scratch);
    release(s->l.plan);
    release(s->l.persistent);
    device->free(device_op.self, BP_MEM_PINNED, s->l.pinned);
}

/* Rows of n_row sequences of n_kv cached tokens each, blocks in random order. */
struct cache {
    struct bp_mla_meta meta;
    struct bp_mla_decode_meta rows;
    int32_t *seq_host, *len_host, *table_host, *seq, *len, *table;
    uint64_t n_block;
};

static void cache_init(struct cache *c, uint32_t n_row, uint32_t n_kv)
{
    const uint32_t stride = (n_kv + BLOCK - 1) / BLOCK;
    memset(c, 0, sizeof *c);
    c->n_block = (uint64_t)n_row * stride;
    c->seq_host = malloc(n_row * 4);
    c->len_host = malloc(n_row * 4);
    c->table_host = malloc(c->n_block * 4);
    for (uint32_t i = 0; i < n_row; ++i) {
        c->seq_host[i] = (int32_t)i;
        c->len_host[i] = (int32_t)n_kv;
    }
    for (uint64_t i = 0; i < c->n_block; ++i) {
        const uint64_t k = next_random() % (i + 1);
        c->table_host[i] = c->table_host[k];
        c->table_host[k] = (int32_t)i;
    }
    c->seq = ints_up(c->seq_host, n_row);
    c->len = ints_up(c->len_host, n_row);
    c->table = ints_up(c->table_host, c->n_block);
    c->meta = (struct bp_mla_meta){
        .h = BP_HDR(struct bp_mla_meta, rope_sin), .n_tok = n_row, .n_seqs = n_row};
    c->meta.block_tok = BLOCK;
    c->meta.table_stride = stride;
    c->meta.max_kv = n_kv;
    c->meta.block_table = c->table;
    c->meta.block_table_host = c->table_host;
    c->meta.kv_len = c->len;
    c->meta.kv_len_host = c->len_host;
    c->rows = (struct bp_mla_decode_meta){.h = BP_HDR(struct bp_mla_decode_meta, row_kv_len_host),
                                          .common = &c->meta};
    c->rows.n_row = c->rows.n_row_padded = n_row;
    c->rows.max_kv = n_kv;
    c->rows.row_seq = c->seq;
    c->rows.row_seq_host = c->seq_host;
    c->rows.row_kv_len = c->len;
    c->rows.row_kv_len_host = c->len_host;
}

static void cache_free(struct cache *c)
{
    release(c->seq);
    release(c->len);
    release(c->table);
    free(c->seq_host);
    free(c->len_host);
    free(c->table_host);
}

static struct bp_tensor pool_of(void *data, const char *family, uint32_t dtype, uint64_t width,
                                uint64_t n_block)
{
    char name[32];
    const uint64_t id = bp_layout_name(name, family, dtype, width);
    struct bp_tensor t = tensor(data, BP_DT_U8, (int64_t)n_block,
                                (int64_t)(width * BLOCK * (uint64_t)bp_dtype_bytes(dtype)), 0);
    t.layout_id = id;
    return t;
}

static struct bp_mla_problem problem(uint32_t n_head, uint32_t act, uint32_t n_row, uint32_t n_kv)
{
    return (struct bp_mla_problem){.h = BP_HDR(struct bp_mla_problem, type_v),
                                   .n_head = n_head,
                                   .nope_dim = 128,
                                   .rope_dim = R,
                                   .v_dim = 128,
                                   .kv_rank = C,
                                   .block_tok = BLOCK,
                                   .act_dtype = act,
                                   .kv_dtype = BP_DT_BF16,
                                   .max_tok = n_row,
                                   .max_seqs = n_row,
                                   .max_rows = n_row,
                                   .max_kv = n_kv,
                                   .n_index_head = 64,
                                   .index_dim = D,
                                   .top_k = TOP_K};
}

/* ---- decode ---- */

static void decode(const struct bp_op_ref *op, uint32_t n_head, uint32_t act, uint32_t n_row,
                   uint32_t n_kv, uint32_t top_k)
{
    const struct bp_mla_decode_ops *vt = (const void *)op->vt;
    const struct bp_mla_problem p = problem(n_head, act, n_row, n_kv);
    struct cache c;
    struct sized s;
    cache_init(&c, n_row, n_kv);
    size_op(&s, op, &p);
    struct bp_mla_decode_args a = {
        .h = BP_HDR(struct bp_mla_decode_args, reserved), .meta = &c.rows, .scale = 0.0722f};
    a.pool = pool_of(numbers(c.n_block * BLOCK * W, BP_DT_BF16), "mla", BP_DT_BF16, W, c.n_block);
    a.q = tensor(numbers((uint64_t)n_row * n_head * W, act), act, n_row, n_head, W);
    a.out = tensor(numbers((uint64_t)n_row * n_head * C, act), act, n_row, n_head, C);
    if (top_k != 0) {
        int32_t *idx = malloc((uint64_t)n_row * top_k * 4), *n = malloc(n_row * 4);
        for (uint64_t i = 0; i < (uint64_t)n_row * top_k; ++i) {
            const uint64_t row = i / top_k, at = i % top_k * (n_kv / top_k);
            idx[i] = c.table_host[row * c.meta.table_stride + at / BLOCK] * BLOCK +
                     (int32_t)(at % BLOCK);
        }
        for (uint32_t i = 0; i < n_row; ++i) n[i] = (int32_t)top_k;
        a.idx = tensor(ints_up(idx, (uint64_t)n_row * top_k), BP_DT_I32, n_row, top_k, 0);
        a.idx_len = tensor(ints_up(n, n_row), BP_DT_I32, n_row, 0, 0);
        free(idx);
        free(n);
    }
    enum { CALLS = 4 };
    MUST(vt->plan(op->self, &s.l, &c.rows, &err));
    MUST(vt->run(op->self, &s.l, &a, &err));
    MUST(device->stream_sync(device_op.self, stream, &err));
    s.l.capturing = 1;
    MUST(device->graph_begin(device_op.self, stream, &err));
    for (int i = 0; i < CALLS; ++i) MUST(vt->run(op->self, &s.l, &a, &err));
    const double us = replay() / CALLS, keys = (double)n_row * (top_k != 0 ? top_k : n_kv);
    const double gbs = keys * W * 2.0 / us / 1e3;
    printf("     decode %-4s %3u heads, batch %3u, kv %5u%s %9.1f us  %6.0f GB/s of cache (%3.0f "
           "%% of copy)  %6.1f TFLOP/s\n",
           bp_dtype_name(act), n_head, n_row, n_kv, top_k != 0 ? ", 2048 of them" : "", us, gbs,
           100.0 * gbs / copy_gbs, keys * n_head * 2.0 * (W + C) / us / 1e6);
    (void)fflush(stdout);
    release(a.pool.data);
    release(a.q.data);
    release(a.out.data);
    release(a.idx.data);
    release(a.idx_len.data);
    size_free(&s);
    cache_free(&c);
}

/* The same queries in bf16 and f32 over one cache: the first takes tensor cores, the second does not. */
static void decode_alike(const struct bp_op_ref *op, uint32_t n_head, uint32_t n_row, uint32_t n_kv)
{
    const struct bp_mla_decode_ops *vt = (const void *)op->vt;
    struct cache c;
    struct bp_tensor out[2];
    char what[96];
    cache_init(&c, n_row, n_kv);
    void *pool = numbers(c.n_block * BLOCK * W, BP_DT_BF16);
    struct bp_tensor q = tensor(numbers((uint64_t)n_row * n_head * W, BP_DT_BF16), BP_DT_BF16,
                                n_row, n_head, W),
                     wide = q;
    float *x = down(&q);
    wide.dtype = BP_DT_F32;
    wide.data = gpu((uint64_t)n_row * n_head * W * 4);
    up(wide.data, x, (uint64_t)n_row * n_head * W * 4);
    for (int i = 0; i < 2; ++i) {
        const uint32_t act = i == 0 ? BP_DT_BF16 : BP_DT_F32;
        const struct bp_mla_problem p = problem(n_head, act, n_row, n_kv);
        struct sized s;
        size_op(&s, op, &p);
        out[i] = tensor(numbers((uint64_t)n_row * n_head * C, act), act, n_row, n_head, C);
        const struct bp_mla_decode_args a = {.h = BP_HDR(struct bp_mla_decode_args, reserved),
                                             .meta = &c.rows,
                                             .q = i == 0 ? q : wide,
                                             .out = out[i],
                                             .scale = 0.5f,
                                             .pool =
                                                 pool_of(pool, "mla", BP_DT_BF16, W, c.n_block)};
        MUST(vt->plan(op->self, &s.l, &c.rows, &err));
        MUST(vt->run(op->self, &s.l, &a, &err));
        MUST(device->stream_sync(device_op.self, stream, &err));
        size_free(&s);
    }
    (void)snprintf(what, sizeof what, "decode, %u heads, batch %u, kv %u", n_head, n_row, n_kv);
    compare(what, &out[0], &out[1], (uint64_t)n_row * n_head * C, 2e-2);
    release(out[0].data);
    release(out[1].data);
    release(q.data);
    release(wide.data);
    release(pool);
    free(x);
    cache_free(&c);
}

/* ---- prefill ---- */

static void prefill(const struct bp_op_ref *op, uint32_t n_head, uint32_t qk, uint32_t v,
                    uint32_t act, uint32_t n, int causal, struct bp_tensor *keep)
{
    const struct bp_mla_prefill_ops *vt = (const void *)op->vt;
    const int32_t zero[2] = {0, 0}, cu[2] = {0, (int32_t)n};
    struct bp_mla_problem p = problem(n_head, act, n, n);
    p.nope_dim = qk - R;
    p.v_dim = v;
    struct sized s;
    size_op(&s, op, &p);
    int32_t *cu_dev = ints_up(cu, 2), *zero_dev = ints_up(zero, 2);
    struct bp_mla_meta meta = {
        .h = BP_HDR(struct bp_mla_meta, rope_sin), .n_tok = n, .n_seqs = 1, .block_tok = BLOCK};
    struct bp_mla_prefill_meta m = {.h = BP_HDR(struct bp_mla_prefill_meta, kv_begin_host),
                                    .common = &meta,
                                    .n_seg = 1,
                                    .n_q = n,
                                    .n_k = n,
                                    .max_q = n,
                                    .max_k = n,
                                    .seq = zero_dev,
                                    .cu_q = cu_dev,
                                    .cu_k = cu_dev,
                                    .kv_begin = zero_dev,
                                    .seq_host = zero,
                                    .cu_q_host = cu,
                                    .cu_k_host = cu,
                                    .kv_begin_host = zero};
    const uint64_t rows = (uint64_t)n * n_head;
    struct bp_mla_prefill_args a = {
        .h = BP_HDR(struct bp_mla_prefill_args, reserved), .meta = &m, .scale = 0.0722f};
    a.q = tensor(numbers(rows * qk, act), act, n, n_head, qk);
    a.k = tensor(numbers(rows * qk, act), act, n, n_head, qk);
    a.v = tensor(numbers(rows * v, act), act, n, n_head, v);
    a.out = tensor(numbers(rows * v, act), act, n, n_head, v);
    a.lse = tensor(numbers(rows, BP_DT_F32), BP_DT_F32, n, n_head, 0);
    MUST(causal ? vt->run(op->self, &s.l, &a, &err) : vt->run_context(op->self, &s.l, &a, &err));
    MUST(device->stream_sync(device_op.self, stream, &err));
    MUST(device->graph_begin(device_op.self, stream, &err));
    MUST(causal ? vt->run(op->self, &s.l, &a, &err) : vt->run_context(op->self, &s.l, &a, &err));
    const double us = replay(), flops = (causal ? 1.0 : 2.0) * n_head * (qk + v) * (double)n * n;
    printf("     prefill %-4s %u heads %u/%u, %u tokens, %s %9.1f us  %6.1f TFLOP/s\n",
           bp_dtype_name(act), n_head, qk, v, n, causal ? "causal " : "context", us,
           flops / us / 1e6);
    (void)fflush(stdout);
    if (keep != NULL)
        *keep = a.out;
    else
        release(a.out.data);
    release(a.q.data);
    release(a.k.data);
    release(a.v.data);
    release(a.lse.data);
    release(cu_dev);
    release(zero_dev);
    size_free(&s);
}

/* Both dtypes get the same random numbers, once rounded. */
static void prefill_alike(const struct bp_op_ref *op, uint32_t qk, uint32_t v, int causal)
{
    struct bp_tensor out[2];
    char what[96];
    const uint32_t n = 1000, start = seed;
    for (int i = 0; i < 2; ++i) {
        seed = start;
        prefill(op, 4, qk, v, i == 0 ? BP_DT_BF16 : BP_DT_F32, n, causal, &out[i]);
    }
    (void)snprintf(what, sizeof what, "prefill %u/%u, %s", qk, v, causal ? "causal" : "context");
    compare(what, &out[0], &out[1], (uint64_t)n * 4 * v, 3e-2);
    release(out[0].data);
    release(out[1].data);
}

/* ---- index ---- */

static void choose(const struct bp_op_ref *op, uint32_t act, uint32_t n_row, uint32_t n_kv)
{
    const struct bp_mla_index_ops *vt = (const void *)op->vt;
    const struct bp_mla_problem p = problem(64, act, n_row, n_kv);
    struct cache c;
    struct sized s;
    cache_init(&c, n_row, n_kv);
    size_op(&s, op, &p);
    const struct bp_mla_select_args a = {
        .h = BP_HDR(struct bp_mla_select_args, top_k),
        .meta = &c.rows,
        .q = tensor(numbers((uint64_t)n_row * 64 * D, act), act, n_row, 64, D),
        .w = tensor(numbers((uint64_t)n_row * 64, BP_DT_F32), BP_DT_F32, n_row, 64, 0),
        .pool = pool_of(numbers(c.n_block * BLOCK * D, BP_DT_BF16), "mla.index", BP_DT_BF16, D,
                        c.n_block),
        .idx = tensor(gpu((uint64_t)n_row * TOP_K * 4), BP_DT_I32, n_row, TOP_K, 0),
        .idx_len = tensor(gpu(n_row * 4), BP_DT_I32, n_row, 0, 0),
        .scale = 0.011f,
        .top_k = TOP_K};
    MUST(vt->select(op->self, &s.l, &a, &err));
    MUST(device->stream_sync(device_op.self, stream, &err));
    s.l.capturing = 1;
    MUST(device->graph_begin(device_op.self, stream, &err));
    MUST(vt->select(op->self, &s.l, &a, &err));
    const double us = replay();
    printf("     select %-4s 64 heads, %3u rows of %6u keys %9.1f us  %6.1f TFLOP/s of scores\n",
           bp_dtype_name(act), n_row, n_kv, us, 2.0 * 64 * D * (double)n_row * n_kv / us / 1e6);
    (void)fflush(stdout);
    release(a.q.data);
    release(a.w.data);
    release(a.pool.data);
    release(a.idx.data);
    release(a.idx_len.data);
    size_free(&s);
    cache_free(&c);
}

/* ---- absorb ---- */

static void absorb(const struct bp_op_ref *op, uint32_t n_head, uint32_t n)
{
    const struct bp_mla_common_ops *vt = (const void *)op->vt;
    const struct bp_mla_problem p = problem(n_head, BP_DT_BF16, n, 1024);
    const int64_t n_elem = (int64_t)n_head * 256 * C;
    struct sized s;
    size_op(&s, op, &p);
    uint16_t *kv_b = malloc((uint64_t)n_elem * 2);
    for (int64_t i = 0; i < n_elem; ++i) kv_b[i] = (uint16_t)(0x3c00u + (next_random() & 0x81ffu));
    struct bp_mla_weights w = {.h = BP_HDR(struct bp_mla_weights, head_end),
                               .n_head = n_head,
                               .nope_dim = 128,
                               .v_dim = 128,
                               .kv_rank = C,
                               .head_end = n_head};
    w.kv_b = (struct bp_raw){.h = BP_HDR(struct bp_raw, reserved),
                             .data = kv_b,
                             .n_bytes = (uint64_t)n_elem * 2,
                             .type = BP_GGUF_BF16,
                             .n_dim = 2,
                             .ne = {C, n_head * 256, 1, 1},
                             .name = "kv_b",
                             .scale = 1.0f};
    enum { SETS = 4 };
    void *handle[SETS];
    for (int i = 0; i < SETS; ++i) MUST(vt->prepare(op->self, &w, &handle[i], NULL, &err));
    for (uint32_t side = 0; side < 2; ++side) {
        const int64_t n_in = side == BP_MLA_ABSORB_UK ? 128 : C,
                      n_out = side == BP_MLA_ABSORB_UK ? C : 128;
        struct bp_mla_absorb_args a = {.h = BP_HDR(struct bp_mla_absorb_args, reserved),
                                       .side = side};
        a.x = tensor(numbers((uint64_t)n * n_head * (uint64_t)n_in, BP_DT_BF16), BP_DT_BF16, n,
                     n_head, n_in);
        a.y = tensor(numbers((uint64_t)n * n_head * (uint64_t)n_out, BP_DT_BF16), BP_DT_BF16, n,
                     n_head, n_out);
        a.weights = handle[0];
        MUST(vt->absorb(op->self, &s.l, &a, &err));
        MUST(device->stream_sync(device_op.self, stream, &err));
        MUST(device->graph_begin(device_op.self, stream, &err));
        for (int i = 0; i < SETS; ++i) {
            a.weights = handle[i];
            MUST(vt->absorb(op->self, &s.l, &a, &err));
        }
        const double us = replay() / SETS, gbs = (double)n_head * 128 * C * 2.0 / us / 1e3;
        printf("     absorb %s %3u heads, %3u rows %9.1f us  %6.0f GB/s of weights (%3.0f %% of "
               "copy)\n",
               side == BP_MLA_ABSORB_UK ? "UK" : "UV", n_head, n, us, gbs, 100.0 * gbs / copy_gbs);
        (void)fflush(stdout);
        release(a.x.data);
        release(a.y.data);
    }
    for (int i = 0; i < SETS; ++i) vt->release(op->self, handle[i]);
    free(kv_b);
    size_free(&s);
}

int main(int argc, char **argv)
{
    struct bp_error err = BP_ERROR_INIT;
    if (argc < 3) {
        printf("usage: attn DEVICE_PLUGIN.so ATTN_PLUGIN.so\n");
        return 2;
    }
    device_op = open_op(argv[1], "bp.device");
    device = (const struct bp_device_ops *)(const void *)device_op.vt;
    if (device->props(device_op.self, &dev, &err) != BP_OK) {
        printf("SKIP: %s\n", err.msg);
        return 77;
    }
    MUST(device->stream_create(device_op.self, &stream, &err));
    measure_copy();
    const struct bp_op_ref common = open_op(argv[2], "bp.mla.common"),
                           dec = open_op(argv[2], "bp.mla.decode");
    const struct bp_op_ref pre = open_op(argv[2], "bp.mla.prefill"),
                           index = open_op(argv[2], "bp.mla.index");
    static const uint32_t shapes[][3] = {
        {16, 1, 1024},    {16, 1, 16384},  {16, 1, 65536},   {16, 16, 4096},   {16, 16, 16384},
        {16, 16, 65536},  {16, 128, 4096}, {16, 128, 16384}, {8, 128, 16384},  {20, 16, 16384},
        {32, 128, 16384}, {64, 1, 16384},  {64, 16, 16384},  {64, 128, 16384}, {128, 16, 16384}};
    decode_alike(&dec, 16, 3, 16384);
    decode_alike(&dec, 20, 40, 1000);
    prefill_alike(&pre, 192, 128, 1);
    prefill_alike(&pre, 192, 128, 0);
    prefill_alike(&pre, 256, 256, 1);
    prefill_alike(&pre, 256, 256, 0);
    for (uint32_t i = 0; i < BP_LEN(shapes); ++i)
        decode(&dec, shapes[i][0], BP_DT_BF16, shapes[i][1], shapes[i][2], 0);
    decode(&dec, 64, BP_DT_BF16, 64, 65536, TOP_K);
    decode(&dec, 16, BP_DT_F32, 16, 16384, 0);
    for (int causal = 0; causal < 2; ++causal) {
        prefill(&pre, 16, 192, 128, BP_DT_BF16, 8192, causal, NULL);
        prefill(&pre, 16, 256, 256, BP_DT_BF16, 8192, causal, NULL);
    }
    prefill(&pre, 16, 192, 128, BP_DT_F32, 2048, 1, NULL);
    prefill(&pre, 16, 128, 96, BP_DT_BF16, 2048, 1, NULL);
    choose(&index, BP_DT_BF16, 1, 32768);
    choose(&index, BP_DT_BF16, 1, 131072);
    choose(&index, BP_DT_BF16, 64, 32768);
    choose(&index, BP_DT_F32, 16, 32768);
    absorb(&common, 128, 1);
    absorb(&common, 128, 8);
    absorb(&common, 128, 64);
    absorb(&common, 16, 1);
    return failed;
}
