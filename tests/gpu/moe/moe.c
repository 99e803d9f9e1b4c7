/* moe.c - microseconds of moe_grouped on a GPU for the experts of GLM-5: 6144 x 2048, 8 of 256 chosen, one shared, random
 * weights. Calls lie in a graph and choose other experts each time, so that weights come from memory and not from a cache.
 * Percentages are of what kernels can move, measured in the same run.
 * Lines of numbers, no judgement; exit status 0, 1 when something failed, 77 without a device.
 * Usage: moe DEVICE_PLUGIN.so MOE_PLUGIN.so [quick]     SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include <backplane/sdk.h>
#include <backplane/slot_dense.h>
#include <backplane/slot_device.h>
#include <backplane/slot_moe.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { EMBD = 6144, FF = 2048, USED = 8, SETS = 6, REPLAYS = 9, MOST_TOK = 4096 };

static const struct bp_device_ops *device;
static const struct bp_moe_ops *moe;
static struct bp_op_ref device_op, moe_op;
static struct bp_device dev = {.h = BP_HDR(struct bp_device, name), .kind = BP_DEV_CUDA};
static void *stream;
static double copy_gbs;
static uint32_t seed = 20261201;

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

static struct bp_tensor tensor(void *p, uint32_t dtype, int64_t rows, int64_t cols)
{
    return (struct bp_tensor){
        .data = p, .dtype = dtype, .ndim = 2, .dim = {rows, cols}, .stride = {cols, 1}};
}

/* What kernels can move: additions of f32, two reads and a write. A copy by the device's engines is slower. */
static void measure_stream(const char *plugin)
{
    enum { ROWS = 16384, WIDTH = 8192, TIMES = 4 };
    const uint64_t n = (uint64_t)ROWS * WIDTH * 4;
    const struct bp_op_ref op = open_op(plugin, "bp.dense");
    const struct bp_dense_ops *dense = (const struct bp_dense_ops *)(const void *)op.vt;
    const struct bp_launch l = {
        .h = BP_HDR(struct bp_launch, reserved), .dev = &dev, .stream = stream, .layer = -1};
    struct bp_dense_pair_args a = {.h = BP_HDR(struct bp_dense_pair_args, y),
                                   .a = tensor(gpu(n), BP_DT_F32, ROWS, WIDTH),
                                   .b = tensor(gpu(n), BP_DT_F32, ROWS, WIDTH),
                                   .y = tensor(gpu(n), BP_DT_F32, ROWS, WIDTH)};
    MUST(dense->add(op.self, &l, &a, &err));
    MUST(device->graph_begin(device_op.self, stream, &err));
    for (int i = 0; i < TIMES; ++i) MUST(dense->add(op.self, &l, &a, &err));
    copy_gbs = TIMES * 3.0 * (double)n / replay() / 1e3;
    printf("     copy %.0f GB/s: additions of 512 MiB, reads and writes counted\n", copy_gbs);
    device->free(device_op.self, BP_MEM_DEVICE, a.a.data);
    device->free(device_op.self, BP_MEM_DEVICE, a.b.data);
    device->free(device_op.self, BP_MEM_DEVICE, a.y.data);
}

/* ---- weights ---- */

struct format {
    const char *name;
    uint32_t type, elems, n_bytes;
};

/* Random blocks with small scales. */
static void fill_blocks(const struct format *f, unsigned char *p, uint64_t n_bytes)
{
    for (uint64_t i = 0; i < n_bytes; i += 4) {
        const uint32_t v =
            f->type == BP_GGUF_BF16 ? (next_random() & 0x80ff80ffu) | 0x3c003c00u : next_random();
        memcpy(p + i, &v, 4);
    }
    static const unsigned char small[4] = {0x00, 0x18, 0x00, 0x18}; /* 0.002 as f16, twice */
    for (uint64_t i = 0; f->type != BP_GGUF_BF16 && i < n_bytes; i += f->n_bytes) {
        if (f->type == BP_GGUF_Q6_K)
            memcpy(p + i + 208, small, 2);
        else
            memcpy(p + i, small, f->type == BP_GGUF_Q8_0 ? 2 : 4);
    }
}

/* One expert's bytes, seen n times in a row. */
static struct bp_raw repeat(const struct format *f, int64_t cols, int64_t rows, int64_t n)
{
    const uint64_t n_bytes = (uint64_t)(cols * rows) / f->elems * f->n_bytes;
    const int fd = memfd_create("experts", 0);
    unsigned char *all = mmap(NULL, n_bytes * (uint64_t)n, PROT_NONE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (fd < 0 || all == MAP_FAILED || ftruncate(fd, (off_t)n_bytes) != 0) exit(1);
    for (int64_t i = 0; i < n; ++i) {
        if (mmap(all + (uint64_t)i * n_bytes, n_bytes, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
            exit(1);
    }
    (void)close(fd);
    fill_blocks(f, all, n_bytes);
    return (struct bp_raw){.h = BP_HDR(struct bp_raw, reserved),
                           .data = all,
                           .n_bytes = n_bytes * (uint64_t)n,
                           .type = f->type,
                           .n_dim = 3,
                           .ne = {cols, rows, n, 1},
                           .end = {cols, rows, n, 1},
                           .name = f->name,
                           .scale = 1.0f};
}

/* ---- calls ---- */

/* n_tok rows of distinct experts; returns how many experts are touched. */
static int64_t choose(int32_t *ids, int64_t n_tok, int64_t n_expert)
{
    unsigned char *seen = calloc((size_t)n_expert, 1);
    int64_t touched = 0;
    for (int64_t t = 0; t < n_tok; ++t) {
        const int64_t step = 1 + 2 * (int64_t)(next_random() % 16);
        int64_t e = (int64_t)(next_random() % (uint32_t)n_expert);
        for (int k = 0; k < USED; ++k, e = (e + step) % n_expert) {
            ids[t * USED + k] = (int32_t)e;
            touched += seen[e] == 0;
            seen[e] = 1;
        }
    }
    free(seen);
    return touched;
}

static struct bp_moe_problem problem_of(const struct format *f, int64_t n_expert, uint32_t dtype,
                                        int64_t n_tok)
{
    return (struct bp_moe_problem){.h = BP_HDR(struct bp_moe_problem, y_dtype),
                                   .op = BP_MOE_OP_RUN,
                                   .max_tok = (uint32_t)n_tok,
                                   .n_embd = EMBD,
                                   .n_ff = FF,
                                   .n_ff_shared = FF,
                                   .n_expert = (uint32_t)n_expert,
                                   .n_expert_used = USED,
                                   .expert_end = (uint32_t)n_expert,
                                   .n_group = 1,
                                   .n_group_used = 1,
                                   .gating = BP_GATING_SIGMOID,
                                   .type_gate = f->type,
                                   .type_up = f->type,
                                   .type_down = f->type,
                                   .type_shared_gate = f->type,
                                   .type_shared_up = f->type,
                                   .type_shared_down = f->type,
                                   .x_dtype = dtype,
                                   .y_dtype = BP_DT_F32};
}

struct buffers {
    void *x, *gates, *y, *ids[SETS];
    int32_t *host_ids;
};

static void measure(const struct format *f, void *handle, int64_t n_expert, uint32_t dtype,
                    int64_t n_tok, const struct buffers *b)
{
    const struct bp_moe_problem p = problem_of(f, n_expert, dtype, n_tok);
    struct bp_workspace ws = {.h = BP_HDR(struct bp_workspace, persistent_zeroed)};
    int64_t touched = 0;
    MUST(moe->base.workspace(moe_op.self, &p, &ws, &err));
    struct bp_launch l = {.h = BP_HDR(struct bp_launch, reserved),
                          .dev = &dev,
                          .stream = stream,
                          .scratch = gpu(ws.scratch_bytes),
                          .scratch_bytes = ws.scratch_bytes,
                          .layer = -1};
    for (int i = 0; i < SETS; ++i) {
        touched += choose(b->host_ids, n_tok, n_expert);
        up(b->ids[i], b->host_ids, (uint64_t)n_tok * USED * 4);
    }
    struct bp_moe_run_args a = {.h = BP_HDR(struct bp_moe_run_args, reserved),
                                .weights = handle,
                                .x = tensor(b->x, dtype, n_tok, EMBD),
                                .ids = tensor(b->ids[0], BP_DT_I32, n_tok, USED),
                                .gates = tensor(b->gates, BP_DT_F32, n_tok, USED),
                                .y = tensor(b->y, BP_DT_F32, n_tok, EMBD)};
    MUST(moe->run(moe_op.self, &l, &a, &err));
    MUST(device->stream_sync(device_op.self, stream, &err));
    MUST(device->graph_begin(device_op.self, stream, &err));
    for (int i = 0; i < SETS; ++i) {
        a.ids.data = b->ids[i];
        MUST(moe->run(moe_op.self, &l, &a, &err));
    }
    const double us = replay() / SETS, one = 3.0 * EMBD * FF / f->elems * f->n_bytes;
    const double gbs = ((double)touched / SETS + 1.0) * one / us / 1e3;
    const double tflops = 2.0 * 3.0 * EMBD * FF * (double)n_tok * (USED + 1) / us / 1e6;
    printf("     moe %-5s %lld experts, %-4s, %4lld tokens %10.1f us  %6.0f GB/s (%2.0f %% of "
           "copy)  %6.1f TFLOP/s  scratch %4.0f MiB\n",
           f->name, (long long)n_expert, bp_dtype_name(dtype), (long long)n_tok, us, gbs,
           100.0 * gbs / copy_gbs, tflops, (double)ws.scratch_bytes / 0x1p20);
    (void)fflush(stdout);
    device->free(device_op.self, BP_MEM_DEVICE, l.scratch);
}

static void measure_type(const struct format *f, int64_t n_expert, int all, const struct buffers *b)
{
    static const int64_t toks[] = {1, 2, 4, 8, 16, 32, 64, 512, 4096};
    struct bp_moe_weights w = {.h = BP_HDR(struct bp_moe_weights, shared_down),
                               .gate = repeat(f, EMBD, FF, n_expert),
                               .up = repeat(f, EMBD, FF, n_expert),
                               .down = repeat(f, FF, EMBD, n_expert),
                               .shared_gate = repeat(f, EMBD, FF, 1),
                               .shared_up = repeat(f, EMBD, FF, 1),
                               .shared_down = repeat(f, FF, EMBD, 1)};
    struct bp_raw *raws[] = {&w.gate, &w.up, &w.down, &w.shared_gate, &w.shared_up, &w.shared_down};
    void *handle = NULL;
    MUST(moe->prepare(moe_op.self, &w, &handle, NULL, &err));
    for (size_t i = 0; i < BP_LEN(raws); ++i)
        (void)munmap((void *)(uintptr_t)raws[i]->data, raws[i]->n_bytes);
    for (size_t i = 0; i < BP_LEN(toks); ++i) {
        if (all || toks[i] == 1 || toks[i] == 8 || toks[i] == 64)
            measure(f, handle, n_expert, BP_DT_BF16, toks[i], b);
        if (toks[i] == 1 || (all && (toks[i] == 8 || toks[i] == 512)))
            measure(f, handle, n_expert, BP_DT_F32, toks[i], b);
    }
    moe->release(moe_op.self, handle);
}

/* The router: logits of 256 experts, groups as in V3 and none. */
static void measure_route(int64_t n_tok, uint32_t n_group, const struct buffers *b)
{
    struct bp_moe_route_args a = {.h = BP_HDR(struct bp_moe_route_args, scale),
                                  .logits = tensor(b->x, BP_DT_F32, n_tok, 256),
                                  .ids = tensor(b->ids[0], BP_DT_I32, n_tok, USED),
                                  .weights = tensor(b->gates, BP_DT_F32, n_tok, USED),
                                  .gating = BP_GATING_SIGMOID,
                                  .group_score = BP_GROUP_TOP2,
                                  .n_group = n_group,
                                  .n_group_used = n_group > 1 ? n_group / 2 : 1,
                                  .normalize = 1,
                                  .scale = 2.5f};
    const struct bp_launch l = {
        .h = BP_HDR(struct bp_launch, reserved), .dev = &dev, .stream = stream, .layer = -1};
    MUST(device->graph_begin(device_op.self, stream, &err));
    for (int i = 0; i < 32; ++i) MUST(moe->route(moe_op.self, &l, &a, &err));
    printf("     route 8 of 256, %u groups, %4lld tokens %10.2f us\n", n_group, (long long)n_tok,
           replay() / 32);
}

int main(int argc, char **argv)
{
    static const struct format formats[] = {{"Q4_K", BP_GGUF_Q4_K, 256, 144},
                                            {"Q6_K", BP_GGUF_Q6_K, 256, 210},
                                            {"Q8_0", BP_GGUF_Q8_0, 32, 34},
                                            {"BF16", BP_GGUF_BF16, 1, 2}};
    struct bp_error err = BP_ERROR_INIT;
    if (argc < 3) return 2;
    device_op = open_op(argv[1], "bp.device");
    device = (const struct bp_device_ops *)(const void *)device_op.vt;
    if (device->props(device_op.self, &dev, &err) != BP_OK) {
        printf("SKIP: %s\n", err.msg);
        return 77;
    }
    moe_op = open_op(argv[2], "bp.moe");
    moe = (const struct bp_moe_ops *)(const void *)moe_op.vt;
    MUST(device->stream_create(device_op.self, &stream, &err));
    measure_stream(argv[1]);
    const uint64_t n_x = (uint64_t)MOST_TOK * EMBD;
    struct buffers b = {
        .x = gpu(n_x * 4), .gates = gpu((uint64_t)MOST_TOK * USED * 4), .y = gpu(n_x * 4)};
    float *x = malloc(n_x * 4);
    b.host_ids = malloc((size_t)MOST_TOK * USED * 4);
    if (x == NULL || b.host_ids == NULL) return 1;
    for (int i = 0; i < SETS; ++i) b.ids[i] = gpu((uint64_t)MOST_TOK * USED * 4);
    /* The same bits serve as f32 and as pairs of bf16: both near 1. */
    for (uint64_t i = 0; i < n_x; ++i) {
        const uint32_t v = (next_random() & 0x80ff80ffu) | 0x3f003f00u;
        memcpy(&x[i], &v, 4);
    }
    up(b.x, x, n_x * 4);
    for (uint32_t g = 1; g <= 8; g += 7) {
        measure_route(1, g, &b);
        measure_route(512, g, &b);
    }
    for (size_t i = 0; i < BP_LEN(formats); ++i) {
        if (argc > 3 && i > 0) break;
        measure_type(&formats[i], i == 0 ? 256 : 64, i == 0, &b);
    }
    free(x);
    free(b.host_ids);
    return 0;
}
