/* bench_time.c - the device, memory on it, and the time of a call.
 * On a device: K calls between two events, K such that they take a fifth of a millisecond, replayed as one graph where
 * the provider lets itself be captured; on the host: the clock around one call or, of short ones, several. The median of
 * all samples counts. Before them everything has had its turn once.
 * SPDX-License-Identifier: MIT */
#include "bench_priv.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

int32_t bench_fail(struct bp_error *err, int32_t code, const char *where, const char *fmt, ...)
{
    va_list ap;
    if (err == NULL) return code;
    *err = (struct bp_error)BP_ERROR_INIT;
    err->code = code;
    snprintf(err->domain, sizeof err->domain, "bench");
    snprintf(err->where, sizeof err->where, "%s", where);
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    return code;
}

/* ---- memory ---- */

int32_t bench_keep(struct bench *b, void *p, uint32_t mem, uint64_t n, struct bp_error *err)
{
    if (b->n_blocks == b->cap_blocks) {
        const size_t cap = b->cap_blocks > 0 ? 2 * b->cap_blocks : 32;
        struct bench_block *grown = realloc(b->blocks, cap * sizeof *grown);
        if (grown == NULL) return bench_fail(err, BP_E_NOMEM, "memory", "out of memory");
        b->blocks = grown;
        b->cap_blocks = cap;
    }
    b->blocks[b->n_blocks++] = (struct bench_block){p, mem, n};
    return BP_OK;
}

int32_t bench_alloc(struct bench *b, uint32_t mem, uint64_t n, void **out, struct bp_error *err)
{
    *out = NULL;
    BP_TRY(bench_keep(b, NULL, mem, n, err));
    if (n == 0) return BP_OK;
    BP_TRY(b->d->alloc(b->dself, mem, n, out, err));
    b->blocks[b->n_blocks - 1].p = *out;
    return BP_OK;
}

int32_t bench_heap(struct bench *b, uint64_t n, void **out, struct bp_error *err)
{
    BP_TRY(bench_keep(b, NULL, BENCH_HEAP, n, err));
    *out = aligned_alloc(64, n / 64 * 64 + 64);
    if (*out == NULL)
        return bench_fail(err, BP_E_NOMEM, "memory", "no memory for %llu bytes",
                          (unsigned long long)n);
    b->blocks[b->n_blocks - 1].p = *out;
    return BP_OK;
}

void bench_free_to(struct bench *b, size_t mark)
{
    while (b->n_blocks > mark) {
        const struct bench_block *k = &b->blocks[--b->n_blocks];
        if (k->p == NULL) continue;
        if (k->mem == BENCH_HEAP)
            free(k->p);
        else if (k->mem == BENCH_MAP)
            (void)munmap(k->p, k->n);
        else
            b->d->free(b->dself, k->mem, k->p);
    }
}

int32_t bench_upload(struct bench *b, void *dst, const void *src, uint64_t n, struct bp_error *err)
{
    if (n == 0) return BP_OK;
    BP_TRY(b->d->copy(b->dself, dst, src, n, BP_COPY_H2D, b->stream, err));
    return b->d->stream_sync(b->dself, b->stream, err);
}

/* ---- the device ---- */

static uint32_t dtype_named(const char *name, uint32_t otherwise)
{
    if (name != NULL && strcmp(name, "f32") == 0) return BP_DT_F32;
    if (name != NULL && strcmp(name, "f16") == 0) return BP_DT_F16;
    if (name != NULL && strcmp(name, "bf16") == 0) return BP_DT_BF16;
    return otherwise;
}

int32_t bench_open(struct bench *b, const struct bench_options *o, const struct bp_config *cfg,
                   const struct bp_callbacks *cb, struct bp_error *err)
{
    struct bp_op_ref device;
    *b = (struct bench){.o = o, .seed = 20240607, .copy_gb_s = NAN, .mm_tflop_s = NAN};
    BP_TRY(bp_ops_open(cfg, cb, &b->ops, err));
    b->dev = bp_ops_device(b->ops, &device);
    b->d = (const struct bp_device_ops *)(const void *)device.vt;
    b->dself = device.self;
    b->on_host = b->dev->kind == BP_DEV_HOST;
    b->act = dtype_named(bp_config_get(cfg, "engine", "act"), b->on_host ? BP_DT_F32 : BP_DT_BF16);
    b->kv = dtype_named(bp_config_get(cfg, "kv", "dtype"), BP_DT_BF16);
    if (b->on_host) return BP_OK;
    BP_TRY(b->d->stream_create(b->dself, &b->stream, err));
    BP_TRY(b->d->event_create(b->dself, &b->from, err));
    return b->d->event_create(b->dself, &b->to, err);
}

void bench_close(struct bench *b)
{
    struct bp_error ignored = BP_ERROR_INIT;
    if (b->stream != NULL) (void)b->d->stream_sync(b->dself, b->stream, &ignored);
    bench_free_to(b, 0);
    free(b->blocks);
    if (b->from != NULL) b->d->event_destroy(b->dself, b->from);
    if (b->to != NULL) b->d->event_destroy(b->dself, b->to);
    if (b->stream != NULL) b->d->stream_destroy(b->dself, b->stream);
    bp_ops_close(b->ops);
    *b = (struct bench){0};
}

/* ---- time ---- */

static double now_us(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int32_t calls(const struct bench_work *w, const struct bp_launch *l, uint32_t first,
                     uint32_t n, struct bp_error *err)
{
    for (uint32_t i = 0; i < n; ++i) BP_TRY(w->call(w->arg, l, first + i, err));
    return BP_OK;
}

/* NULL: it cannot be captured; that is no error, the calls are then made one by one. */
static int32_t capture(struct bench *b, const struct bench_work *w, struct bp_launch *l, uint32_t n,
                       void **out, struct bp_error *err)
{
    const uint32_t least = w->host_lengths ? BP_CAPTURE_Q1 : BP_CAPTURE_UNIFORM;
    struct bp_error why = BP_ERROR_INIT;
    *out = NULL;
    if (b->on_host || w->choice.capture < least) return BP_OK;
    int32_t rc = b->d->graph_begin(b->dself, b->stream, &why);
    if (rc == BP_DECLINED) return BP_OK;
    if (rc != BP_OK) return bench_fail(err, rc, "graph", "%s", why.msg);
    l->capturing = 1;
    const int32_t ran = calls(w, l, 0, n, &why);
    l->capturing = 0;
    rc = b->d->graph_end(b->dself, b->stream, out, ran == BP_OK ? &why : NULL);
    if (ran != BP_OK || rc != BP_OK)
        return bench_fail(err, ran != BP_OK ? ran : rc, "graph",
                          "the calls cannot be captured, though %s says so: %.300s",
                          w->choice.provider != NULL ? w->choice.provider : "the provider",
                          why.msg);
    return BP_OK;
}

/* One sample: microseconds of n calls. */
static int32_t sample(struct bench *b, const struct bench_work *w, struct bp_launch *l, void *graph,
                      uint32_t first, uint32_t n, double *us, struct bp_error *err)
{
    if (w->plan != NULL) {
        BP_TRY(w->plan(w->arg, l, 0, err));
        BP_TRY(b->d->stream_sync(b->dself, b->stream, err));
    }
    if (b->on_host) {
        const double start = now_us();
        BP_TRY(calls(w, l, first, n, err));
        *us = now_us() - start;
        return BP_OK;
    }
    BP_TRY(b->d->event_record(b->dself, b->from, b->stream, err));
    if (graph != NULL)
        BP_TRY(b->d->graph_launch(b->dself, graph, b->stream, err));
    else
        BP_TRY(calls(w, l, first, n, err));
    BP_TRY(b->d->event_record(b->dself, b->to, b->stream, err));
    BP_TRY(b->d->stream_sync(b->dself, b->stream, err));
    return b->d->event_elapsed_us(b->dself, b->from, b->to, us, err);
}

static int by_size(const void *x, const void *y)
{
    const double a = *(const double *)x, c = *(const double *)y;
    return (a > c) - (a < c);
}

enum { MAX_SAMPLES = 1000, MAX_CALLS = 256 };

static int32_t sample_all(struct bench *b, const struct bench_work *w, struct bp_launch *l,
                          void *graph, struct bench_row *row, struct bp_error *err)
{
    double us[MAX_SAMPLES];
    const uint32_t want = b->o->samples < MAX_SAMPLES ? b->o->samples : MAX_SAMPLES;
    const double until = now_us() + b->o->seconds * 1e6;
    uint32_t n = 0, first = 0;
    while (n < want && (n < 3 || now_us() < until)) {
        if (b->o->stopped != NULL && b->o->stopped())
            return bench_fail(err, BP_E_ABORTED, row->op, "stopped on request");
        BP_TRY(sample(b, w, l, graph, first, row->calls, &us[n], err));
        us[n] /= row->calls;
        first += row->calls;
        n++;
    }
    qsort(us, n, sizeof us[0], by_size);
    row->us = n % 2 == 1 ? us[n / 2] : 0.5 * (us[n / 2 - 1] + us[n / 2]);
    row->us_min = us[0];
    row->us_max = us[n - 1];
    row->samples = n;
    row->graph = graph != NULL;
    return BP_OK;
}

int32_t bench_sample(struct bench *b, const struct bench_work *w, struct bp_launch *l,
                     struct bench_row *row, struct bp_error *err)
{
    const double target_us = b->on_host ? 50.0 : 200.0;
    const uint32_t turns = w->n_turns > 0 ? w->n_turns : 1;
    double us;
    void *graph;
    /* A first time is that of loading code; the second tells how many calls make a sample. */
    BP_TRY(sample(b, w, l, NULL, 0, turns, &us, err));
    if (!b->on_host || us < 1e6) BP_TRY(sample(b, w, l, NULL, 0, turns, &us, err));
    const double n = ceil(target_us / (us / turns + 1e-3));
    row->calls = n < 1.0 ? 1 : n > MAX_CALLS ? MAX_CALLS : (uint32_t)n;
    if (!b->on_host && row->calls < turns) row->calls = turns;
    BP_TRY(capture(b, w, l, row->calls, &graph, err));
    int32_t rc = BP_OK;
    if (graph != NULL) rc = sample(b, w, l, graph, 0, row->calls, &us, err); /* it is uploaded */
    if (rc == BP_OK) rc = sample_all(b, w, l, graph, row, err);
    if (graph != NULL) b->d->graph_destroy(b->dself, graph);
    BP_TRY(rc);
    row->cached = w->footprint < 2 * (uint64_t)b->dev->l2_bytes;
    bench_rates(b, row);
    return BP_OK;
}

int32_t bench_measure(struct bench *b, const struct bench_work *w, struct bench_row *row,
                      struct bp_error *err)
{
    struct bp_workspace ws = {.h = BP_HDR(struct bp_workspace, persistent_zeroed), .align = 64};
    struct bp_launch l = {.h = BP_HDR(struct bp_launch, reserved),
                          .dev = b->dev,
                          .stream = b->stream,
                          .epoch = 1,
                          .layer = -1};
    row->provider = w->choice.provider;
    BP_TRY(w->choice.op.vt->workspace(w->choice.op.self, w->problem, &ws, err));
    BP_TRY(bench_alloc(b, BP_MEM_DEVICE, ws.persistent_bytes, &l.persistent, err));
    BP_TRY(bench_alloc(b, BP_MEM_DEVICE, ws.plan_bytes, &l.plan, err));
    BP_TRY(bench_alloc(b, BP_MEM_DEVICE, ws.scratch_bytes, &l.scratch, err));
    BP_TRY(bench_alloc(b, BP_MEM_PINNED, ws.pinned_bytes, &l.pinned, err));
    l.scratch_bytes = ws.scratch_bytes;
    return bench_sample(b, w, &l, row, err);
}

void bench_rates(const struct bench *b, struct bench_row *row)
{
    const double memory_us = row->bytes / (b->copy_gb_s * 1e3);
    const double compute_us = row->flops / (b->mm_tflop_s * 1e6);
    row->gb_s = row->bytes / (row->us * 1e3);
    row->tflop_s = row->flops / (row->us * 1e6);
    row->roof_pct = NAN;
    row->roof = "";
    if (isnan(memory_us)) return;
    const bool compute = !isnan(compute_us) && compute_us > memory_us;
    row->roof = compute ? "compute" : "memory";
    row->roof_pct = 100.0 * (compute ? compute_us : memory_us) / row->us;
}

/* ---- rows ---- */

bool bench_wants(const struct bench *b, const char *op)
{
    const char *asked = b->o->op;
    const size_t n = asked != NULL ? strlen(asked) : 0;
    return asked == NULL || (strncmp(asked, op, n) == 0 && (op[n] == '\0' || op[n] == '.'));
}

bool bench_begin(struct bench *b, struct bench_row *row, const char *op, const char *fmt, ...)
{
    va_list ap;
    *row = (struct bench_row){.provider = "",
                              .roof = "",
                              .us = NAN,
                              .us_min = NAN,
                              .us_max = NAN,
                              .gb_s = NAN,
                              .tflop_s = NAN,
                              .roof_pct = NAN};
    snprintf(row->op, sizeof row->op, "%s", op);
    va_start(ap, fmt);
    vsnprintf(row->what, sizeof row->what, fmt, ap);
    va_end(ap);
    return bench_wants(b, op) && (b->o->only == NULL || strstr(row->what, b->o->only) != NULL);
}

int32_t bench_choose(struct bench *b, const char *slot, const void *problem,
                     struct bp_op_choice *out, struct bench_row *row, struct bp_error *err)
{
    out->h = (struct bp_hdr)BP_HDR(struct bp_op_choice, degraded);
    BP_TRY(bp_ops_choose(b->ops, slot, problem, out, err));
    row->provider = out->provider;
    if (!out->on_host) return BP_OK;
    return bench_fail(err, BP_DECLINED, row->op, "%s computes on the host; nobody on the device",
                      out->provider);
}

int32_t bench_end(struct bench *b, struct bench_row *row, int32_t rc, struct bp_error *err)
{
    if (rc == BP_DECLINED || rc == BP_E_CONFIG || rc == BP_E_DEVMEM || rc == BP_E_UNSUPPORTED) {
        snprintf(row->note, sizeof row->note, "%.150s", err->msg);
        *err = (struct bp_error)BP_ERROR_INIT;
        rc = BP_OK;
    }
    BP_TRY(rc);
    return b->o->row(b->o->ctx, row);
}

int32_t bench_all(struct bench *b, struct bp_error *err)
{
    static const struct {
        const char *op; /* bench_dense has several: bench_begin tells them apart */
        int32_t (*run)(struct bench *b, struct bp_error *err);
    } all[] = {{"quant.matmul", bench_quant},    {"quant.dequantize", bench_dequantize},
               {"mla.decode", bench_mla_decode}, {"mla.prefill", bench_mla_prefill},
               {"mla.index", bench_mla_index},   {"mla.common", bench_mla_common},
               {"moe.run", bench_moe},           {"moe.route", bench_route},
               {"dense.embed", bench_embed},     {"dense.rms", bench_dense},
               {"dense.layernorm", bench_dense}, {"dense.silu_mul", bench_dense},
               {"dense.add", bench_dense},       {"dense.rope", bench_dense},
               {"dense.argmax", bench_dense},    {"dense.topk", bench_dense},
               {"dense.matmul", bench_dense}};
    bool known = false, dense = false;
    for (size_t i = 0; i < BENCH_LEN(all); ++i) known |= bench_wants(b, all[i].op);
    if (!known)
        return bench_fail(
            err, BP_E_ARG, "--op",
            "there is no op '%.40s' to measure; quant.matmul, quant.dequantize, "
            "mla.decode, mla.prefill, mla.index, mla.common, moe.run, moe.route and "
            "dense (embed, rms, layernorm, silu_mul, add, rope, argmax, topk, matmul) "
            "exist",
            b->o->op);
    BP_TRY(bench_ceilings(b, err));
    for (size_t i = 0; i < BENCH_LEN(all); ++i) {
        if (!bench_wants(b, all[i].op)) continue;
        if (all[i].run != bench_dense)
            BP_TRY(all[i].run(b, err));
        else
            dense = true;
    }
    return dense ? bench_dense(b, err) : BP_OK;
}
