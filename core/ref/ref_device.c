/* ref_device.c - the host as a device: memory is the process's, a stream is NULL, every call is done when it returns.
 * Threads: any. SPDX-License-Identifier: MIT */
#include "backplane/slot_device.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "ref/ref_priv.h"

enum { ALIGN = 256 };

struct event {
    uint64_t at_ns; /* 0: not recorded */
};

static int32_t device_supports(void *self, const void *problem, struct bp_verdict *v)
{
    (void)self;
    const struct bp_device_problem *p = problem;
    bpi_ref_check_header(v, &p->h, BP_END(struct bp_device_problem, ordinal));
    if (v->n_reasons != 0) return BP_OK;
    if (p->kind != BP_DEV_HOST) {
        bpi_ref_refuse(v, BP_R_DEVICE, "kind", p->kind, BP_DEV_HOST, BP_DEV_HOST,
                       "ref is the host only");
    } else if (p->ordinal != 0) {
        bpi_ref_refuse(v, BP_R_DEVICE, "ordinal", p->ordinal, 0, 0, "there is one host");
    }
    bpi_ref_verdict_done(v);
    return BP_OK;
}

static int32_t device_workspace(void *self, const void *problem_max, struct bp_workspace *out,
                                struct bp_error *err)
{
    (void)self;
    (void)problem_max;
    (void)err;
    out->persistent_bytes = out->plan_bytes = out->scratch_bytes = out->pinned_bytes = 0;
    out->align = 64;
    out->persistent_zeroed = 0;
    return BP_OK;
}

static int32_t device_tensors(void *self, uint32_t slot, const void *args, struct bp_tensor *t,
                              uint32_t *n)
{
    (void)self;
    (void)slot;
    (void)args;
    bpi_ref_list(NULL, 0, t, n);
    return BP_OK;
}

static int32_t device_props(void *self, struct bp_device *out, struct bp_error *err)
{
    (void)err;
    const struct bpi_ref *ref = self;
    struct bp_hdr h = out->h;
    uint32_t n_bytes = h.size < ref->device.h.size ? h.size : ref->device.h.size;
    memcpy(out, &ref->device, n_bytes);
    out->h = h;
    return BP_OK;
}

/* Linux: what can be had without swapping. Elsewhere: pages that are free right now. */
static uint64_t free_memory(void)
{
    unsigned long long kib = 0;
    FILE *f = fopen("/proc/meminfo", "r");
    if (f != NULL) {
        char line[128];
        while (fgets(line, sizeof line, f) != NULL &&
               sscanf(line, "MemAvailable: %llu kB", &kib) != 1)
            continue;
        (void)fclose(f);
    }
    if (kib != 0) return (uint64_t)kib * 1024;
    long page_bytes = sysconf(_SC_PAGESIZE), pages = -1;
#ifdef _SC_AVPHYS_PAGES
    pages = sysconf(_SC_AVPHYS_PAGES);
#endif
    return page_bytes > 0 && pages > 0 ? (uint64_t)page_bytes * (uint64_t)pages : 0;
}

static int32_t device_mem_info(void *self, uint64_t *free_bytes, uint64_t *total_bytes,
                               struct bp_error *err)
{
    (void)err;
    const struct bpi_ref *ref = self;
    *total_bytes = ref->device.total_bytes;
    *free_bytes = free_memory();
    if (*free_bytes > *total_bytes) *free_bytes = *total_bytes;
    return BP_OK;
}

static int32_t device_alloc(void *self, uint32_t mem, uint64_t n_bytes, void **out,
                            struct bp_error *err)
{
    const struct bpi_ref *ref = self;
    (void)mem; /* both kinds are host memory here */
    void *p = ref->host->mem_alloc(ref->host->ctx, n_bytes, ALIGN);
    if (p == NULL) {
        return bpi_fail(err, BP_E_NOMEM, "ref", "device.alloc",
                        "%llu bytes of host memory were asked for, and %llu of %llu are free",
                        (unsigned long long)n_bytes, (unsigned long long)free_memory(),
                        (unsigned long long)ref->device.total_bytes);
    }
    *out = p; /* the host gives it zeroed */
    return BP_OK;
}

static void device_free(void *self, uint32_t mem, void *p)
{
    (void)mem;
    bpi_ref_free(self, p);
}

static int32_t device_copy(void *self, void *dst, const void *src, uint64_t n_bytes, uint32_t dir,
                           void *stream, struct bp_error *err)
{
    (void)self;
    (void)dir;
    (void)stream;
    (void)err;
    if (n_bytes != 0) memcpy(dst, src, n_bytes);
    return BP_OK;
}

static int32_t device_fill(void *self, void *dst, uint8_t value, uint64_t n_bytes, void *stream,
                           struct bp_error *err)
{
    (void)self;
    (void)stream;
    (void)err;
    if (n_bytes != 0) memset(dst, value, n_bytes);
    return BP_OK;
}

static int32_t stream_create(void *self, void **out, struct bp_error *err)
{
    (void)self;
    (void)err;
    *out = NULL; /* what a stream is on the host */
    return BP_OK;
}

static void stream_destroy(void *self, void *stream)
{
    (void)self;
    (void)stream;
}

static int32_t stream_sync(void *self, void *stream, struct bp_error *err)
{
    (void)self;
    (void)stream;
    (void)err;
    return BP_OK;
}

static int32_t event_create(void *self, void **out, struct bp_error *err)
{
    struct event *e = bpi_ref_alloc(self, 1, sizeof *e);
    if (e == NULL) return bpi_fail_nomem(err, "ref", sizeof *e);
    *out = e;
    return BP_OK;
}

static void event_destroy(void *self, void *event)
{
    bpi_ref_free(self, event);
}

static int32_t event_record(void *self, void *event, void *stream, struct bp_error *err)
{
    (void)self;
    (void)stream;
    (void)err;
    ((struct event *)event)->at_ns = bpi_now_ns();
    return BP_OK;
}

static int32_t event_wait(void *self, void *event, void *stream, struct bp_error *err)
{
    (void)self;
    (void)event;
    (void)stream;
    (void)err;
    return BP_OK;
}

static int32_t event_elapsed_us(void *self, void *from, void *to, double *out, struct bp_error *err)
{
    (void)self;
    const struct event *a = from, *b = to;
    if (a->at_ns == 0 || b->at_ns == 0) {
        return bpi_fail(err, BP_E_ARG, "ref", "device.event_elapsed_us",
                        "an event was never recorded");
    }
    *out = ((double)b->at_ns - (double)a->at_ns) / 1000.0;
    return BP_OK;
}

static int32_t graph_begin(void *self, void *stream, struct bp_error *err)
{
    (void)self;
    (void)stream;
    return bpi_fail(err, BP_DECLINED, "ref", "device.graph_begin", "the host has no graphs");
}

static int32_t graph_end(void *self, void *stream, void **out_graph, struct bp_error *err)
{
    (void)self;
    (void)stream;
    (void)out_graph;
    return bpi_fail(err, BP_DECLINED, "ref", "device.graph_end", "the host has no graphs");
}

static int32_t graph_launch(void *self, void *graph, void *stream, struct bp_error *err)
{
    (void)self;
    (void)graph;
    (void)stream;
    return bpi_fail(err, BP_DECLINED, "ref", "device.graph_launch", "the host has no graphs");
}

static void graph_destroy(void *self, void *graph)
{
    (void)self;
    (void)graph;
}

// clang-format off
static const struct bp_device_ops ops = {
    .base = {.h = BP_HDR(struct bp_device_ops, graph_destroy), .iface = "bp.device", .iface_major = 0, .iface_minor = 1,
             .supports = device_supports, .workspace = device_workspace, .tensors = device_tensors},
    .props = device_props, .mem_info = device_mem_info, .alloc = device_alloc, .free = device_free,
    .copy = device_copy, .fill = device_fill,
    .stream_create = stream_create, .stream_destroy = stream_destroy, .stream_sync = stream_sync,
    .event_create = event_create, .event_destroy = event_destroy, .event_record = event_record,
    .event_wait = event_wait, .event_elapsed_us = event_elapsed_us,
    .graph_begin = graph_begin, .graph_end = graph_end, .graph_launch = graph_launch, .graph_destroy = graph_destroy,
};
// clang-format on

const struct bp_op_base *bpi_ref_device_ops(void)
{
    return &ops.base;
}
