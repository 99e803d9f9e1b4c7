/* fake_device.c - see fake.h: bp.device. SPDX-License-Identifier: MIT */
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

static void open_memory(const struct fake_device *d, int rights)
{
    for (const struct fake_block *b = d->blocks; b != NULL; b = b->next)
        (void)mprotect(b->p, b->n_bytes, rights);
}

void fake_push(struct fake_stream *s, struct fake_task *t)
{
    t->next = NULL;
    *s->last = t;
    s->last = &t->next;
}

static int32_t run_list(struct fake_device *d, struct fake_task *t, int keep)
{
    int32_t rc = d->lost;
    open_memory(d, PROT_READ | PROT_WRITE);
    while (t != NULL) {
        struct fake_task *next = t->next;
        if (rc == BP_OK) rc = t->run(t);
        if (!keep) free(t);
        t = next;
    }
    open_memory(d, PROT_NONE);
    if (rc != BP_OK) d->lost = rc;
    return rc;
}

int32_t fake_drain(struct fake_stream *s)
{
    struct fake_task *first = s->first;
    s->first = NULL;
    s->last = &s->first;
    return run_list(s->dev, first, 0);
}

/* ---- memory ---- */

int32_t fake_alloc(struct fake_device *d, uint64_t n_bytes, void **out)
{
    struct fake_block *b = malloc(sizeof *b);
    if (b == NULL) return BP_E_NOMEM;
    b->n_bytes = (n_bytes + 4095) / 4096 * 4096 + (n_bytes == 0 ? 4096 : 0);
    b->p = mmap(NULL, b->n_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (b->p == MAP_FAILED) {
        free(b);
        return BP_E_DEVMEM;
    }
    b->next = d->blocks;
    d->blocks = b;
    d->used_bytes += b->n_bytes;
    *out = b->p;
    return BP_OK;
}

static int32_t dev_alloc(void *self, uint32_t mem, uint64_t n_bytes, void **out,
                         struct bp_error *err)
{
    if (mem == BP_MEM_DEVICE) return fake_alloc(self, n_bytes, out);
    *out = aligned_alloc(256, (n_bytes + 255) / 256 * 256 + 256);
    if (*out == NULL) return bp_error_set(err, BP_E_NOMEM, "fake", "alloc", "no memory");
    memset(*out, 0, n_bytes);
    return BP_OK;
}

static void drop_block(struct fake_device *d, struct fake_block **at)
{
    struct fake_block *b = *at;
    *at = b->next;
    d->used_bytes -= b->n_bytes;
    (void)munmap(b->p, b->n_bytes);
    free(b);
}

static void dev_free(void *self, uint32_t mem, void *p)
{
    struct fake_device *d = self;
    if (mem == BP_MEM_PINNED) {
        free(p);
        return;
    }
    for (struct fake_block **at = &d->blocks; p != NULL && *at != NULL; at = &(*at)->next) {
        if ((*at)->p != p) continue;
        drop_block(d, at);
        return;
    }
}

struct copy_task {
    struct fake_task task;
    void *dst;
    const void *src;
    uint64_t n_bytes;
    int value; /* of a fill; -1: a copy */
};

static int32_t run_copy(struct fake_task *t)
{
    const struct copy_task *c = (struct copy_task *)(void *)t;
    if (c->n_bytes == 0) return BP_OK;
    if (c->value >= 0)
        memset(c->dst, c->value, c->n_bytes);
    else
        memmove(c->dst, c->src, c->n_bytes);
    return BP_OK;
}

static int32_t push_copy(struct fake_device *d, void *dst, const void *src, uint64_t n, int value,
                         void *stream)
{
    struct copy_task *c = malloc(sizeof *c);
    struct fake_stream *s = stream;
    if (c == NULL) return BP_E_NOMEM;
    *c = (struct copy_task){{NULL, run_copy}, dst, src, n, value};
    if (s == NULL) return run_list(d, &c->task, 0);
    fake_push(s, &c->task);
    return BP_OK;
}

static int on_device(const struct fake_device *d, const void *p, uint64_t n)
{
    for (const struct fake_block *b = d->blocks; b != NULL; b = b->next) {
        if ((const unsigned char *)p >= b->p && (const unsigned char *)p + n <= b->p + b->n_bytes)
            return 1;
    }
    return 0;
}

static int32_t dev_copy(void *self, void *dst, const void *src, uint64_t n, uint32_t dir,
                        void *stream, struct bp_error *err)
{
    const struct fake_device *d = self;
    if (on_device(d, dst, n) != (dir != BP_COPY_D2H) ||
        on_device(d, src, n) != (dir != BP_COPY_H2D))
        return bp_error_set(err, BP_E_ARG, "fake", "copy",
                            "a side of the copy is not where it is said to be");
    return d->lost != BP_OK ? bp_error_set(err, d->lost, "fake", "copy", "the device is lost")
                            : push_copy(self, dst, src, n, -1, stream);
}

static int32_t dev_fill(void *self, void *dst, uint8_t value, uint64_t n, void *stream,
                        struct bp_error *err)
{
    if (!on_device(self, dst, n))
        return bp_error_set(err, BP_E_ARG, "fake", "fill", "no device memory");
    return push_copy(self, dst, NULL, n, value, stream);
}

/* ---- streams and events ---- */

static int32_t dev_stream_create(void *self, void **out, struct bp_error *err)
{
    struct fake_stream *s = malloc(sizeof *s);
    if (s == NULL) return bp_error_set(err, BP_E_NOMEM, "fake", "stream_create", "no memory");
    *s = (struct fake_stream){.dev = self};
    s->last = &s->first;
    *out = s;
    return BP_OK;
}

static void dev_stream_destroy(void *self, void *stream)
{
    (void)self;
    if (stream == NULL) return;
    (void)fake_drain(stream);
    free(stream);
}

static int32_t dev_stream_sync(void *self, void *stream, struct bp_error *err)
{
    const struct fake_device *d = self;
    const int32_t rc = stream != NULL ? fake_drain(stream) : d->lost;
    return rc == BP_OK ? BP_OK
                       : bp_error_set(err, rc, "fake", "stream_sync", "work of the stream failed");
}

struct fake_event {
    struct fake_stream *stream;
    double us;
};

static int32_t dev_event_create(void *self, void **out, struct bp_error *err)
{
    (void)self;
    *out = calloc(1, sizeof(struct fake_event));
    return *out != NULL ? BP_OK
                        : bp_error_set(err, BP_E_NOMEM, "fake", "event_create", "no memory");
}
static void dev_event_destroy(void *self, void *event)
{
    (void)self;
    free(event);
}
struct mark_task {
    struct fake_task task;
    struct fake_event *event;
};

static int32_t run_mark(struct fake_task *t)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    ((struct mark_task *)(void *)t)->event->us =
        (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
    return BP_OK;
}

static int32_t dev_event_record(void *self, void *event, void *stream, struct bp_error *err)
{
    struct mark_task *t = malloc(sizeof *t);
    (void)self;
    if (t == NULL) return bp_error_set(err, BP_E_NOMEM, "fake", "event_record", "no memory");
    *t = (struct mark_task){{NULL, run_mark}, event};
    ((struct fake_event *)event)->stream = stream;
    fake_push(stream, &t->task);
    return BP_OK;
}
/* What the event stands behind is done at once: streams that wait for each other stay in order. */
static int32_t dev_event_wait(void *self, void *event, void *stream, struct bp_error *err)
{
    struct fake_event *e = event;
    (void)self;
    (void)err;
    return e->stream != NULL && e->stream != stream ? fake_drain(e->stream) : BP_OK;
}
static int32_t dev_event_elapsed_us(void *self, void *from, void *to, double *out,
                                    struct bp_error *err)
{
    (void)self;
    (void)err;
    for (int i = 0; i < 2; ++i) {
        struct fake_event *e = i == 0 ? from : to;
        if (e->stream != NULL) BP_TRY(fake_drain(e->stream));
    }
    *out = ((struct fake_event *)to)->us - ((struct fake_event *)from)->us;
    return BP_OK;
}

/* ---- graphs: a list of tasks, run again and again ---- */

static int32_t dev_graph_begin(void *self, void *stream, struct bp_error *err)
{
    struct fake_stream *s = stream;
    (void)self;
    if (s == NULL || s->capturing)
        return bp_error_set(err, BP_E_DEVICE, "fake", "graph_begin", "in capture already");
    BP_TRY(fake_drain(s));
    s->capturing = 1;
    return BP_OK;
}

static int32_t dev_graph_end(void *self, void *stream, void **out, struct bp_error *err)
{
    struct fake_stream *s = stream, *graph = NULL;
    const int broken = s->capturing != 1;
    s->capturing = 0;
    BP_TRY(dev_stream_create(self, (void **)&graph, err));
    *graph = *s;
    if (graph->first == NULL) graph->last = &graph->first;
    s->first = NULL;
    s->last = &s->first;
    *out = graph;
    if (!broken) return BP_OK;
    *out = NULL;
    free(graph);
    return bp_error_set(err, BP_E_DEVICE, "fake", "graph_end", "the capture was broken off");
}

struct launch_task {
    struct fake_task task;
    struct fake_stream *graph;
};

static int32_t run_graph(struct fake_task *t)
{
    for (struct fake_task *g = ((struct launch_task *)(void *)t)->graph->first; g != NULL;
         g = g->next)
        BP_TRY(g->run(g));
    return BP_OK;
}

static int32_t dev_graph_launch(void *self, void *graph, void *stream, struct bp_error *err)
{
    struct launch_task *t = malloc(sizeof *t);
    (void)self;
    if (t == NULL) return bp_error_set(err, BP_E_NOMEM, "fake", "graph_launch", "no memory");
    *t = (struct launch_task){{NULL, run_graph}, graph};
    fake_push(stream, &t->task);
    return BP_OK;
}

static void dev_graph_destroy(void *self, void *graph)
{
    struct fake_stream *g = graph;
    (void)self;
    while (g != NULL && g->first != NULL) {
        struct fake_task *t = g->first;
        g->first = t->next;
        free(t);
    }
    free(g);
}

/* ---- the rest ---- */

static int32_t dev_supports(void *self, const void *problem, struct bp_verdict *v)
{
    const struct bp_device_problem *p = problem;
    const struct fake_device *d = self;
    if (!bp_verdict_begin(v, &p->h, BP_END(struct bp_device_problem, ordinal))) return BP_OK;
    if (p->kind != BP_DEV_CUDA)
        bp_reason_add(v, BP_R_DEVICE, 1, "kind", p->kind, BP_DEV_CUDA, BP_DEV_CUDA,
                      "a device of CUDA's kind");
    if (p->ordinal != 0 || d->fault == F_NO_DEVICE)
        bp_reason_add(v, BP_R_DEVICE, 1, "ordinal", p->ordinal, 0, d->fault == F_NO_DEVICE ? -1 : 0,
                      d->fault == F_NO_DEVICE ? "no such device, there are 0"
                                              : "no such device, there is 1");
    return bp_verdict_done(v, BP_CAPTURE_NONE, BP_DET_BATCH, -1.0);
}
static int32_t dev_workspace(void *self, const void *p, struct bp_workspace *out,
                             struct bp_error *err)
{
    (void)self;
    (void)p;
    (void)err;
    return bp_workspace_set(out, 0, 0, 0, 0);
}
static int32_t dev_props(void *self, struct bp_device *out, struct bp_error *err)
{
    (void)self;
    (void)err;
    out->kind = BP_DEV_CUDA;
    out->ordinal = 0;
    out->cc_major = 9;
    out->n_sm = 1;
    out->total_bytes = UINT64_C(1) << 30;
    out->smem_bytes = 101376;
    (void)snprintf(out->name, sizeof out->name, "out of reach");
    return BP_OK;
}
static int32_t dev_mem_info(void *self, uint64_t *free_bytes, uint64_t *total_bytes,
                            struct bp_error *err)
{
    const struct fake_device *d = self;
    (void)err;
    *total_bytes = UINT64_C(1) << 40;
    *free_bytes = *total_bytes - d->used_bytes;
    return BP_OK;
}

int32_t fake_device_open(const struct bp_host *host, uint32_t fault, struct fake_device **out)
{
    struct fake_device *d = bp_mem_alloc(host, 1, sizeof *d);
    if (d == NULL) return BP_E_NOMEM;
    d->host = host;
    d->fault = fault;
    *out = d;
    return BP_OK;
}

void fake_device_close(struct fake_device *d)
{
    while (d->blocks != NULL) drop_block(d, &d->blocks);
    bp_mem_free(d->host, d);
}

const struct bp_device_ops fake_device_table = {
    .base = {BP_HDR(struct bp_device_ops, graph_destroy), "bp.device", 0, 1, dev_supports,
             dev_workspace, bp_device_tensors},
    .props = dev_props,
    .mem_info = dev_mem_info,
    .alloc = dev_alloc,
    .free = dev_free,
    .copy = dev_copy,
    .fill = dev_fill,
    .stream_create = dev_stream_create,
    .stream_destroy = dev_stream_destroy,
    .stream_sync = dev_stream_sync,
    .event_create = dev_event_create,
    .event_destroy = dev_event_destroy,
    .event_record = dev_event_record,
    .event_wait = dev_event_wait,
    .event_elapsed_us = dev_event_elapsed_us,
    .graph_begin = dev_graph_begin,
    .graph_end = dev_graph_end,
    .graph_launch = dev_graph_launch,
    .graph_destroy = dev_graph_destroy};
