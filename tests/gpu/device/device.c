/* device.c - device_cuda on a GPU, beyond what the kit asks: memory, order of streams, captures that are spoilt or made while
 * another thread allocates, choices from rows of up to 262,144 numbers, microseconds per op, a device that is lost.
 * One line per check, PASS or FAIL; lines with "us" are measured, inside of a graph. Exit status 0, 1, or 77 without a device.
 * Usage: device PLUGIN.so [lost]     SPDX-License-Identifier: MIT */
#include <backplane/sdk.h>

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static const struct bp_plugin_desc *desc;
static void *plugin;
static struct bp_op_ref device_op, dense_op;
static const struct bp_device_ops *device;
static const struct bp_dense_ops *dense;
static struct bp_device dev = {.h = BP_HDR(struct bp_device, name), .kind = BP_DEV_CUDA};
static void *stream;
static int failures;

static int check(int good, const char *what)
{
    printf("%s %s\n", good ? "PASS" : "FAIL", what);
    (void)fflush(stdout);
    failures += !good;
    return good;
}

/* What the test itself needs to work. */
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

static int32_t make(const char *iface, struct bp_op_ref *out, struct bp_error *err)
{
    for (uint32_t i = 0; i < desc->n_ops; ++i) {
        if (strcmp(desc->ops[i].iface, iface) == 0)
            return desc->op_create(plugin, &desc->ops[i], &dev, NULL, 0, out, err);
    }
    return BP_E_ARG;
}

static int begin(const char *path)
{
    static const struct bp_query q = {.h = BP_HDR(struct bp_query, engine_version),
                                      .host_major = BP_ABI_MAJOR,
                                      .host_minor = BP_ABI_MINOR};
    static const struct bp_host host = {.h = BP_HDR(struct bp_host, parallel_for),
                                        .abi_minor = BP_ABI_MINOR,
                                        .mem_alloc = host_alloc,
                                        .mem_free = host_free};
    struct bp_error err = BP_ERROR_INIT;
    bp_plugin_query_fn query = NULL;
    void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL), *entry = NULL;
    if (so != NULL) entry = dlsym(so, BP_PLUGIN_ENTRY);
    if (entry == NULL) {
        printf("FAIL %s\n", dlerror());
        return 1;
    }
    memcpy(&query, &entry, sizeof query);
    desc = query(&q);
    MUST(desc->open(&host, &plugin, &err));
    MUST(make("bp.device", &device_op, &err));
    device = (const struct bp_device_ops *)(const void *)device_op.vt;
    if (device->props(device_op.self, &dev, &err) != BP_OK) {
        printf("SKIP: %s\n", err.msg);
        return 77;
    }
    MUST(make("bp.dense", &dense_op, &err));
    dense = (const struct bp_dense_ops *)(const void *)dense_op.vt;
    MUST(device->stream_create(device_op.self, &stream, &err));
    return 0;
}

static void *gpu(uint64_t n_bytes)
{
    void *p = NULL;
    MUST(device->alloc(device_op.self, BP_MEM_DEVICE, n_bytes, &p, &err));
    return p;
}
static void give(void *p)
{
    device->free(device_op.self, BP_MEM_DEVICE, p);
}
static void up(void *dst, const void *src, uint64_t n)
{
    MUST(device->copy(device_op.self, dst, src, n, BP_COPY_H2D, stream, &err));
}
static void sync_stream(void)
{
    MUST(device->stream_sync(device_op.self, stream, &err));
}
static void down(void *dst, const void *src, uint64_t n)
{
    MUST(device->copy(device_op.self, dst, src, n, BP_COPY_D2H, stream, &err));
    sync_stream();
}

/* ---- device slot ---- */

static int all_bytes(const unsigned char *p, size_t n, unsigned char want)
{
    for (size_t i = 0; i < n; ++i) {
        if (p[i] != want) return 0;
    }
    return 1;
}

static void check_props(void)
{
    uint64_t now = 0, all = 0;
    MUST(device->mem_info(device_op.self, &now, &all, &err));
    printf("     %s, cc %d.%d, %u SMs, driver %u, %llu bytes, %llu free\n", dev.name, dev.cc_major,
           dev.cc_minor, dev.n_sm, dev.driver_version, (unsigned long long)dev.total_bytes,
           (unsigned long long)now);
    check(dev.ctx != NULL && !all_bytes(dev.uuid, 16, 0) && dev.n_sm > 0 && dev.cc_major >= 9 &&
              dev.name[0] != '\0',
          "properties are filled, context and uuid too");
    check(now > 0 && now <= all && dev.smem_bytes >= 101376,
          "memory free and in all; shared memory of a block");
}

static void check_memory(void)
{
    enum { N = 1 << 20 };
    unsigned char *host = malloc(N), *pinned = NULL;
    struct bp_error err = BP_ERROR_INIT;
    void *a = gpu(N), *b = gpu(N), *none = NULL;
    down(host, a, N);
    check(all_bytes(host, N, 0) && (uintptr_t)a % 256 == 0 && (uintptr_t)b % 256 == 0,
          "device memory is zeroed and aligned");
    MUST(device->alloc(device_op.self, BP_MEM_PINNED, N, (void **)&pinned, &err));
    check(all_bytes(pinned, N, 0) && (uintptr_t)pinned % 256 == 0,
          "pinned memory is zeroed and aligned");
    for (int i = 0; i < N; ++i) pinned[i] = (unsigned char)(i * 7);
    up(a, pinned, N);
    MUST(device->copy(device_op.self, b, a, N, BP_COPY_D2D, stream, &err));
    MUST(device->fill(device_op.self, (char *)b + 100, 0x5a, 1000, stream, &err));
    down(host, b, N);
    check(memcmp(host, pinned, 100) == 0 && all_bytes(host + 100, 1000, 0x5a) &&
              memcmp(host + 1100, pinned + 1100, N - 1100) == 0,
          "copies in all directions and a fill");
    check(device->alloc(device_op.self, BP_MEM_DEVICE, UINT64_C(1) << 50, &none, &err) ==
                  BP_E_DEVMEM &&
              none == NULL && strstr(err.msg, "1125899906842624 bytes") != NULL &&
              strstr(err.msg, "are free") != NULL,
          "too much memory is refused with bytes wanted and free");
    printf("     %s\n", err.msg);
    MUST(device->alloc(device_op.self, BP_MEM_DEVICE, 0, &none, &err));
    check(none != NULL, "and the next allocation works");
    give(none), give(a), give(b);
    device->free(device_op.self, BP_MEM_PINNED, pinned);
    free(host);
}

static void check_streams(void)
{
    enum { N = 256 << 20 };
    void *other = NULL, *e0 = NULL, *e1 = NULL, *big = gpu(N);
    unsigned char last = 0;
    double us = -1;
    MUST(device->stream_create(device_op.self, &other, &err));
    MUST(device->event_create(device_op.self, &e0, &err));
    MUST(device->event_create(device_op.self, &e1, &err));
    MUST(device->event_record(device_op.self, e0, stream, &err));
    for (int i = 1; i <= 20; ++i)
        MUST(device->fill(device_op.self, big, (uint8_t)i, N, stream, &err));
    MUST(device->event_record(device_op.self, e1, stream, &err));
    MUST(device->event_wait(device_op.self, e1, other, &err));
    MUST(device->copy(device_op.self, &last, (char *)big + N - 1, 1, BP_COPY_D2H, other, &err));
    MUST(device->stream_sync(device_op.self, other, &err));
    MUST(device->event_elapsed_us(device_op.self, e0, e1, &us, &err));
    check(last == 20, "a stream waits for the event of another");
    check(us > 100.0 && us < 1e6, "the time between events is plausible");
    printf("     %.0f us for 20 fills of 256 MiB, %.0f GB/s\n", us, 20.0 * N / us / 1e3);
    device->event_destroy(device_op.self, e0), device->event_destroy(device_op.self, e1);
    device->stream_destroy(device_op.self, other);
    give(big);
}

static void *allocate_often(void *arg)
{
    int *bad = arg;
    struct bp_error err = BP_ERROR_INIT;
    for (int i = 0; i < 50; ++i) {
        void *p = NULL;
        *bad += device->alloc(device_op.self, BP_MEM_DEVICE, 1 << 20, &p, &err) != BP_OK;
        device->free(device_op.self, BP_MEM_DEVICE, p);
    }
    return NULL;
}

static void check_graphs(void)
{
    enum { N = 4096 };
    unsigned char host[N];
    struct bp_error err = BP_ERROR_INIT;
    void *a = gpu(N), *b = gpu(N), *graph = NULL;
    pthread_t thread;
    int bad = 0;
    MUST(device->graph_begin(device_op.self, stream, &err));
    if (pthread_create(&thread, NULL, allocate_often, &bad) != 0) exit(1);
    MUST(device->fill(device_op.self, a, 7, N, stream, &err));
    MUST(device->copy(device_op.self, b, a, N, BP_COPY_D2D, stream, &err));
    (void)pthread_join(thread, NULL);
    check(device->graph_end(device_op.self, stream, &graph, &err) == BP_OK && bad == 0,
          "a capture while another thread allocates");
    down(host, b, N);
    check(all_bytes(host, N, 0), "a capture runs nothing");
    int same = 1;
    for (int i = 0; i < 3; ++i) {
        MUST(device->fill(device_op.self, b, 1, N, stream, &err));
        MUST(device->graph_launch(device_op.self, graph, stream, &err));
        down(host, b, N);
        same = same && all_bytes(host, N, 7);
    }
    check(same, "replays do what was captured");
    device->graph_destroy(device_op.self, graph);
    MUST(device->graph_begin(device_op.self, stream, &err));
    check(device->stream_sync(device_op.self, stream, &err) != BP_OK,
          "waiting in a capture is an error");
    graph = &bad;
    check(device->graph_end(device_op.self, stream, &graph, &err) == BP_E_DEVICE && graph == NULL,
          "a spoilt capture ends with an error");
    printf("     %s\n", err.msg);
    MUST(device->fill(device_op.self, a, 3, N, stream, &err));
    down(host, a, N);
    check(all_bytes(host, N, 3), "and the stream works again");
    give(a), give(b);
}

/* ---- choices ---- */

static int before(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x > y ? -1 : x < y;
}

/* Sorts as the slot's rule says: larger first, ties by the lower index, NaN nowhere. Returns how many there are. */
static int64_t sorted(const float *x, int64_t n, uint64_t *out)
{
    int64_t m = 0;
    for (int64_t i = 0; i < n; ++i) {
        if (x[i] != x[i]) continue;
        const uint32_t bits = bp_f32_bits(x[i] == 0.0f ? 0.0f : x[i]);
        const uint32_t key = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
        out[m++] = (uint64_t)key << 32 | (UINT32_MAX - (uint32_t)i);
    }
    qsort(out, (size_t)m, sizeof *out, before);
    return m;
}

static uint32_t random_state = 12345;
static uint32_t dice(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 17;
    random_state ^= random_state << 5;
    return random_state;
}
static float number(int kind)
{
    const float v = ((float)(dice() >> 8) / 16777216.0f - 0.5f) * 40.0f;
    switch (kind) {
    case 1:
        return floorf(v / 8.0f);
    case 2:
        return 2.5f;
    case 3:
        return dice() % 1000 != 0 ? NAN : v;
    case 4:
        return NAN;
    case 5:
        return dice() % 3 == 0 ? INFINITY : dice() % 2 == 0 ? -INFINITY : -0.0f * v;
    case 6:
        return -INFINITY;
    case 7:
        return dice() % 50 != 0 ? -INFINITY : v;
    default:
        return v;
    }
}

static struct bp_tensor tensor(void *data, uint32_t dtype, int64_t rows, int64_t width,
                               int64_t stride)
{
    return (struct bp_tensor){
        .data = data, .dtype = dtype, .ndim = 2, .dim = {rows, width}, .stride = {stride, 1}};
}

static struct bp_launch launch_of(void *persistent, void *scratch, uint64_t scratch_bytes)
{
    return (struct bp_launch){.h = BP_HDR(struct bp_launch, reserved),
                              .dev = &dev,
                              .stream = stream,
                              .persistent = persistent,
                              .scratch = scratch,
                              .scratch_bytes = scratch_bytes,
                              .layer = -1};
}

static int pick(int64_t rows, int64_t width, int64_t k, int kind)
{
    const int64_t stride = width + 3;
    float *x = malloc((size_t)(rows * stride) * sizeof *x),
          *values = malloc((size_t)(rows * k) * sizeof *values);
    int32_t *ids = malloc((size_t)(rows * k) * sizeof *ids);
    uint64_t *want = malloc((size_t)width * sizeof *want);
    void *gx = gpu((uint64_t)(rows * stride) * 4), *gv = gpu((uint64_t)(rows * k) * 4),
         *gi = gpu((uint64_t)(rows * k) * 4);
    void *counters = gpu((uint64_t)rows * 4), *scratch = gpu((uint64_t)rows * 256);
    const struct bp_launch l = launch_of(counters, scratch, (uint64_t)rows * 256);
    const struct bp_dense_topk_args a = {.h = BP_HDR(struct bp_dense_topk_args, ids),
                                         .x = tensor(gx, BP_DT_F32, rows, width, stride),
                                         .values = tensor(gv, BP_DT_F32, rows, k, k),
                                         .ids = tensor(gi, BP_DT_I32, rows, k, k)};
    int good = 1;
    for (int64_t i = 0; i < rows * stride; ++i) x[i] = number(kind);
    up(gx, x, (uint64_t)(rows * stride) * 4);
    for (int twice = 0; twice < 2 && good;
         ++twice) { /* the second time shows that counters are as they were */
        MUST(k == 1 && rows != 3 ? dense->argmax(dense_op.self, &l, &a, &err)
                                 : dense->topk(dense_op.self, &l, &a, &err));
        down(ids, gi, (uint64_t)(rows * k) * 4);
        down(values, gv, (uint64_t)(rows * k) * 4);
        for (int64_t r = 0; r < rows && good; ++r) {
            const int64_t m = sorted(x + r * stride, width, want);
            for (int64_t i = 0; i < k && good; ++i) {
                const int32_t id = i < m ? (int32_t)(UINT32_MAX - (uint32_t)want[i]) : -1;
                const float v = id >= 0 ? x[r * stride + id] : -INFINITY;
                good = ids[r * k + i] == id && bp_f32_bits(values[r * k + i]) == bp_f32_bits(v);
                if (!good)
                    printf("     row %lld place %lld: got %d (%g), want %d (%g)\n", (long long)r,
                           (long long)i, ids[r * k + i], (double)values[r * k + i], id, (double)v);
            }
        }
    }
    give(gx), give(gv), give(gi), give(counters), give(scratch);
    free(x), free(values), free(ids), free(want);
    return good;
}

static void check_choices(void)
{
    static const int64_t widths[] = {1, 31, 4096, 4097, 129280, 154880, 262144},
                         ks[] = {1, 2, 50, 2048, 8192};
    for (uint32_t w = 0; w < BP_LEN(widths); ++w) {
        for (uint32_t j = 0; j < BP_LEN(ks); ++j) {
            char text[96];
            int good = 1;
            if (ks[j] > widths[w]) continue;
            for (int kind = 0; kind < 8; ++kind)
                good = pick(kind == 0 ? 3 : kind == 1 ? 5 : 1, widths[w], ks[j], kind) && good;
            (void)snprintf(
                text, sizeof text,
                "%lld of %lld: normal, ties, all equal, few, none, infinities, minus infinity",
                (long long)ks[j], (long long)widths[w]);
            check(good, text);
        }
    }
}

/* What one bound op gets when it is asked for both: the larger answer of each kind. cuBLAS leaves its memory dirty, and argmax
 * has counters that begin at zero. */
static void check_shared_memory(void)
{
    enum { ROWS = 5, WIDTH = 154880, M = 64, K = 32768 };
    static const uint32_t ops[2] = {BP_DENSE_OP_ARGMAX, BP_DENSE_OP_MATMUL};
    struct bp_workspace most = {.h = BP_HDR(struct bp_workspace, persistent_zeroed)};
    for (uint32_t i = 0; i < 2; ++i) {
        const struct bp_dense_problem p = {.h = BP_HDR(struct bp_dense_problem, k),
                                           .op = ops[i],
                                           .max_rows = M,
                                           .width = WIDTH,
                                           .x_dtype = BP_DT_F32,
                                           .y_dtype = BP_DT_F32,
                                           .k = 1};
        struct bp_workspace ws = {.h = BP_HDR(struct bp_workspace, persistent_zeroed)};
        MUST(dense_op.vt->workspace(dense_op.self, &p, &ws, &err));
        if (ws.persistent_bytes > most.persistent_bytes)
            most.persistent_bytes = ws.persistent_bytes;
        if (ws.scratch_bytes > most.scratch_bytes) most.scratch_bytes = ws.scratch_bytes;
    }
    float *x = malloc((size_t)ROWS * WIDTH * sizeof *x);
    int32_t ids[2][ROWS];
    void *gx = gpu((uint64_t)ROWS * WIDTH * 4), *gi = gpu(sizeof ids[0]),
         *ga = gpu((uint64_t)M * K * 4), *gc = gpu((uint64_t)M * M * 4),
         *persistent = gpu(most.persistent_bytes), *scratch = gpu(most.scratch_bytes);
    const struct bp_launch l = launch_of(persistent, scratch, most.scratch_bytes);
    const struct bp_dense_topk_args pick_args = {.h = BP_HDR(struct bp_dense_topk_args, ids),
                                                 .x = tensor(gx, BP_DT_F32, ROWS, WIDTH, WIDTH),
                                                 .ids = tensor(gi, BP_DT_I32, ROWS, 1, 1)};
    struct bp_dense_matmul_args m = {.h = BP_HDR(struct bp_dense_matmul_args, c)};
    m.a = (struct bp_tensor){.data = ga,
                             .dtype = BP_DT_F32,
                             .ndim = 3,
                             .dim = {1, M, K},
                             .stride = {(int64_t)M * K, K, 1}};
    m.b = m.c = m.a;
    m.c.data = gc, m.c.dim[2] = M, m.c.stride[0] = M * M, m.c.stride[1] = M;
    for (int64_t i = 0; i < (int64_t)ROWS * WIDTH; ++i) x[i] = number(0);
    up(gx, x, (uint64_t)ROWS * WIDTH * 4);
    up(ga, x, (uint64_t)ROWS * WIDTH * 4);
    for (int i = 0; i < 2; ++i) {
        MUST(dense->argmax(dense_op.self, &l, &pick_args, &err));
        down(ids[i], gi, sizeof ids[i]);
        MUST(dense->matmul(dense_op.self, &l, &m, &err));
    }
    int good = 1;
    for (int r = 0; r < ROWS; ++r) {
        int32_t want = 0;
        for (int32_t i = 1; i < WIDTH; ++i) {
            if (x[(int64_t)r * WIDTH + i] > x[(int64_t)r * WIDTH + want]) want = i;
        }
        good = good && ids[0][r] == want && ids[1][r] == want;
    }
    check(good, "argmax before and after a product in the same memory");
    give(gx), give(gi), give(ga), give(gc), give(persistent), give(scratch);
    free(x);
}

/* ---- upload ---- */

/* A part of a table that is larger than both pinned buffers, its rows cut out of longer ones. */
static void check_table(void)
{
    enum { COLS = 2048, ROWS = 5000, LEFT = 512, RIGHT = 1535, FIRST = 100, LAST = 4900, N = 64 };
    const int64_t width = RIGHT - LEFT;
    float *table = malloc((size_t)ROWS * COLS * sizeof *table),
          *y = malloc((size_t)(N * width) * sizeof *y);
    int32_t ids[N];
    void *handle = NULL, *gi = gpu(sizeof ids), *gy = gpu((uint64_t)(N * width) * 4);
    struct bp_weight_info info = {.h = BP_HDR(struct bp_weight_info, n_bytes)};
    const struct bp_raw raw = {.h = BP_HDR(struct bp_raw, reserved),
                               .data = table,
                               .n_bytes = (uint64_t)ROWS * COLS * sizeof *table,
                               .type = BP_GGUF_F32,
                               .n_dim = 2,
                               .ne = {COLS, ROWS, 1, 1},
                               .begin = {LEFT, FIRST, 0, 0},
                               .end = {RIGHT, LAST, 1, 1},
                               .name = "table",
                               .scale = 1.0f};
    for (int64_t i = 0; i < (int64_t)ROWS * COLS; ++i) table[i] = (float)(i % 16777213);
    for (int i = 0; i < N; ++i)
        ids[i] = i == 0 ? 0 : i == 1 ? LAST - FIRST - 1 : (int32_t)(dice() % (LAST - FIRST));
    MUST(dense->prepare(dense_op.self, &raw, &handle, &info, &err));
    memset(table, 0xff, (size_t)ROWS * COLS * sizeof *table); /* the upload has to be over */
    const struct bp_launch l = launch_of(NULL, NULL, 0);
    const struct bp_dense_embed_args a = {
        .h = BP_HDR(struct bp_dense_embed_args, y),
        .table = handle,
        .ids = {.data = gi, .dtype = BP_DT_I32, .ndim = 1, .dim = {N}, .stride = {1}},
        .y = tensor(gy, BP_DT_F32, N, width, width)};
    up(gi, ids, sizeof ids);
    MUST(dense->embed(dense_op.self, &l, &a, &err));
    down(y, gy, (uint64_t)(N * width) * 4);
    int good = info.n_bytes == (uint64_t)(LAST - FIRST) * (uint64_t)width * 4;
    for (int64_t i = 0; i < N * width && good; ++i) {
        const int64_t at = (FIRST + (int64_t)ids[i / width]) * COLS + LEFT + i % width;
        good = y[i] == (float)(at % 16777213);
    }
    check(good, "rows of a table that was cut out of a larger one and takes several buffers");
    dense->release(dense_op.self, handle);
    give(gi), give(gy);
    free(table), free(y);
}

/* ---- microseconds ---- */

enum { MANY = 64, REPLAYS = 7 };

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* MANY calls in one graph, on buffers that one call leaves in the cache: what a decode step sees. */
static void measure(const char *what, int32_t (*call)(void *arg, const struct bp_launch *l),
                    void *arg, const struct bp_launch *l, double n_bytes)
{
    void *graph = NULL, *from = NULL, *to = NULL;
    double us[REPLAYS];
    must(call(arg, l), NULL, what);
    sync_stream();
    MUST(device->event_create(device_op.self, &from, &err));
    MUST(device->event_create(device_op.self, &to, &err));
    MUST(device->graph_begin(device_op.self, stream, &err));
    for (int i = 0; i < MANY; ++i) must(call(arg, l), NULL, what);
    MUST(device->graph_end(device_op.self, stream, &graph, &err));
    for (int i = 0; i < REPLAYS; ++i) {
        MUST(device->event_record(device_op.self, from, stream, &err));
        MUST(device->graph_launch(device_op.self, graph, stream, &err));
        MUST(device->event_record(device_op.self, to, stream, &err));
        MUST(device->event_elapsed_us(device_op.self, from, to, &us[i], &err));
    }
    qsort(us, REPLAYS, sizeof *us, by_size);
    printf("     %-44s %9.2f us", what, us[REPLAYS / 2] / MANY);
    if (n_bytes > 0) printf("  %7.1f GB/s", n_bytes * MANY / us[REPLAYS / 2] / 1e3);
    printf("\n");
    device->graph_destroy(device_op.self, graph);
    device->event_destroy(device_op.self, from), device->event_destroy(device_op.self, to);
}

static int32_t call_rms(void *arg, const struct bp_launch *l)
{
    return dense->rms(dense_op.self, l, arg, NULL);
}
static int32_t call_add(void *arg, const struct bp_launch *l)
{
    return dense->add(dense_op.self, l, arg, NULL);
}
static int32_t call_silu_mul(void *arg, const struct bp_launch *l)
{
    return dense->silu_mul(dense_op.self, l, arg, NULL);
}
static int32_t call_argmax(void *arg, const struct bp_launch *l)
{
    return dense->argmax(dense_op.self, l, arg, NULL);
}
static int32_t call_topk(void *arg, const struct bp_launch *l)
{
    return dense->topk(dense_op.self, l, arg, NULL);
}
static int32_t call_matmul(void *arg, const struct bp_launch *l)
{
    return dense->matmul(dense_op.self, l, arg, NULL);
}

static void measure_rows(int64_t n, void *const b[4], const struct bp_launch *l)
{
    enum { WIDE = 7168, FF = 18432 };
    char text[64];
    const double k = (double)n * WIDE, f = (double)n * FF;
    struct bp_dense_rms_args r = {
        .h = BP_HDR(struct bp_dense_rms_args, reserved),
        .x = tensor(b[0], BP_DT_F32, n, WIDE, WIDE),
        .w = {.data = b[3], .dtype = BP_DT_F32, .ndim = 1, .dim = {WIDE}, .stride = {1}},
        .y = tensor(b[1], BP_DT_BF16, n, WIDE, WIDE),
        .eps = 1e-6f};
    (void)snprintf(text, sizeof text, "rms %lld x 7168, f32 to bf16", (long long)n);
    measure(text, call_rms, &r, l, k * 6);
    r.add = tensor(b[2], BP_DT_BF16, n, WIDE, WIDE);
    (void)snprintf(text, sizeof text, "rms with addition of bf16 %lld x 7168", (long long)n);
    measure(text, call_rms, &r, l, k * 12);
    struct bp_dense_pair_args p = {.h = BP_HDR(struct bp_dense_pair_args, y),
                                   .a = tensor(b[0], BP_DT_F32, n, WIDE, WIDE),
                                   .b = tensor(b[1], BP_DT_F32, n, WIDE, WIDE),
                                   .y = tensor(b[0], BP_DT_F32, n, WIDE, WIDE)};
    (void)snprintf(text, sizeof text, "add %lld x 7168, f32", (long long)n);
    measure(text, call_add, &p, l, k * 12);
    p.a = tensor(b[0], BP_DT_BF16, n, FF, FF);
    p.b = tensor(b[1], BP_DT_BF16, n, FF, FF);
    p.y = tensor(b[2], BP_DT_BF16, n, FF, FF);
    (void)snprintf(text, sizeof text, "silu_mul %lld x 18432, bf16", (long long)n);
    measure(text, call_silu_mul, &p, l, f * 6);
}

static void measure_all(void)
{
    enum { VOCAB = 154880, MOST = 512 * 18432 * 4, BLAS = 32 << 20 };
    void *b[4] = {gpu(MOST), gpu(MOST), gpu(MOST), gpu(MOST)}, *persistent = gpu(1 << 20),
         *scratch = gpu(BLAS);
    const struct bp_launch l = launch_of(persistent, scratch, BLAS);
    float *x = malloc(VOCAB * sizeof *x);
    for (int i = 0; i < VOCAB; ++i) x[i] = number(0);
    measure_rows(1, b, &l);
    measure_rows(512, b, &l);
    up(b[0], x, VOCAB * sizeof *x);
    struct bp_dense_topk_args t = {.h = BP_HDR(struct bp_dense_topk_args, ids),
                                   .x = tensor(b[0], BP_DT_F32, 1, VOCAB, VOCAB),
                                   .values = tensor(b[1], BP_DT_F32, 1, 1, 1),
                                   .ids = tensor(b[2], BP_DT_I32, 1, 1, 1)};
    measure("argmax of 154880", call_argmax, &t, &l, VOCAB * 4.0);
    t.values.dim[1] = t.ids.dim[1] = 64;
    measure("topk 64 of 154880", call_topk, &t, &l, 0);
    t.x.dim[1] = 32768;
    t.values.dim[1] = t.ids.dim[1] = 2048;
    measure("topk 2048 of 32768", call_topk, &t, &l, 0);
    struct bp_dense_matmul_args m = {.h = BP_HDR(struct bp_dense_matmul_args, c)};
    const struct bp_tensor shape = {
        .dtype = BP_DT_BF16, .ndim = 3, .dim = {1, 2048, 2048}, .stride = {2048 * 2048, 2048, 1}};
    m.a = m.b = m.c = shape;
    m.a.data = b[0], m.b.data = b[1], m.c.data = b[2];
    measure("matmul 2048^3, bf16", call_matmul, &m, &l, 0);
    m.a.dtype = m.b.dtype = m.c.dtype = BP_DT_F32;
    measure("matmul 2048^3, f32", call_matmul, &m, &l, 0);
    for (int i = 0; i < 4; ++i) give(b[i]);
    give(persistent), give(scratch);
    free(x);
}

/* ---- a device that is lost ---- */

static void lose(void)
{
    struct bp_error err = BP_ERROR_INIT;
    void *nowhere = (void *)(uintptr_t)0x7f0000001000, *p = NULL, *graph = NULL;
    const struct bp_launch l = launch_of(NULL, NULL, 0);
    const struct bp_dense_pair_args a = {.h = BP_HDR(struct bp_dense_pair_args, y),
                                         .a = tensor(nowhere, BP_DT_F32, 1, 64, 64),
                                         .b = tensor(nowhere, BP_DT_F32, 1, 64, 64),
                                         .y = tensor(nowhere, BP_DT_F32, 1, 64, 64)};
    MUST(dense->add(dense_op.self, &l, &a, &err));
    check(device->stream_sync(device_op.self, stream, &err) == BP_E_DEVICE_LOST &&
              strstr(err.msg, "is lost") != NULL,
          "a kernel that reads where nothing is loses the device");
    printf("     %s\n", err.msg);
    check(dense->add(dense_op.self, &l, &a, &err) == BP_E_DEVICE_LOST, "the next op says so");
    check(device->alloc(device_op.self, BP_MEM_DEVICE, 1 << 20, &p, &err) == BP_E_DEVICE_LOST &&
              p == NULL,
          "the next allocation says so");
    check(device->graph_begin(device_op.self, stream, &err) == BP_E_DEVICE_LOST,
          "a capture says so");
    check(device->graph_end(device_op.self, stream, &graph, &err) != BP_OK && graph == NULL,
          "and so does its end");
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        printf("usage: device PLUGIN.so [lost]\n");
        return 2;
    }
    const int rc = begin(argv[1]);
    if (rc != 0) return rc;
    if (argc > 2) {
        lose();
    } else {
        check_props();
        check_memory();
        check_streams();
        check_graphs();
        check_choices();
        check_shared_memory();
        check_table();
        measure_all();
    }
    device->stream_destroy(device_op.self, stream);
    desc->op_destroy(plugin, &dense_op);
    desc->op_destroy(plugin, &device_op);
    desc->close(plugin);
    printf("%d failures\n", failures);
    return failures == 0 ? 0 : 1;
}
