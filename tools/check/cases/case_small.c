/* case_small.c - bp.device on the host and bp.coll: memory, copies and fills; collectives of one rank and of two threads.
 * Not here: streams and graphs of real devices. SPDX-License-Identifier: MIT */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "cases/bp_case.h"

/* ---- bp.device ---- */

/* A copy that is over when it returns. */
static int32_t copied(const struct bp_device_ops *d, void *self, void *dst, const void *src,
                      uint64_t n, uint32_t dir, void *stream, struct bp_error *err)
{
    BP_TRY(d->copy(self, dst, src, n, dir, stream, err));
    return d->stream_sync(self, stream, err);
}

static void device_memory(struct bp_case_suite *s, const struct bp_device_ops *d, void *self,
                          uint32_t mem, void *stream)
{
    static const uint64_t sizes[] = {1, 3, 64, 4095, 4096, 100001};
    struct bp_error err = BP_ERROR_INIT;
    unsigned char *back = bp_oracle_alloc(100001, 1), *in = bp_oracle_alloc(100001, 1);
    for (size_t i = 0; i < 100001; ++i) in[i] = (unsigned char)kit_rng_u64(&s->rng);
    for (size_t i = 0; i < KIT_LEN(sizes) && !s->failed; ++i) {
        const uint64_t n = sizes[i];
        void *a = NULL, *b = NULL;
        if (d->alloc(self, mem, n, &a, &err) != BP_OK ||
            d->alloc(self, mem, n, &b, &err) != BP_OK || a == NULL || b == NULL) {
            (void)bp_case_fail(s, "6.1", "alloc of %llu bytes: %s", (unsigned long long)n, err.msg);
        } else if ((uintptr_t)a % 256 != 0) {
            (void)bp_case_fail(s, "6.14", "alloc gives memory that is not 256-byte aligned");
        } else if (copied(d, self, back, a, n, BP_COPY_D2H, stream, &err) != BP_OK) {
            (void)bp_case_fail(s, "6.1", "copy from the device: %s", err.msg);
        } else {
            for (uint64_t k = 0; k < n; ++k) {
                if (back[k] != 0)
                    (void)bp_case_fail(s, "6.14", "alloc gives memory that is not zero");
            }
            if (copied(d, self, a, in, n, BP_COPY_H2D, stream, &err) != BP_OK ||
                copied(d, self, b, a, n, BP_COPY_D2D, stream, &err) != BP_OK ||
                copied(d, self, back, b, n, BP_COPY_D2H, stream, &err) != BP_OK)
                (void)bp_case_fail(s, "6.1", "copy: %s", err.msg);
            else if (memcmp(in, back, n) != 0)
                (void)bp_case_fail(s, "6.14", "%llu bytes came back changed",
                                   (unsigned long long)n);
            if (d->fill(self, a, 0x5c, n, stream, &err) != BP_OK ||
                copied(d, self, back, a, n, BP_COPY_D2H, stream, &err) != BP_OK ||
                back[0] != 0x5c || back[n - 1] != 0x5c)
                (void)bp_case_fail(s, "6.14", "fill of %llu bytes: %s", (unsigned long long)n,
                                   err.msg);
        }
        d->free(self, mem, a);
        d->free(self, mem, b);
    }
    d->free(self, mem, NULL);
    free(back);
    free(in);
}

/* Pinned memory: the host reads and writes it, and copies go from it to the device and back. */
static void pinned_memory(struct bp_case_suite *s, const struct bp_device_ops *d, void *self,
                          void *stream)
{
    enum { BYTES = 100001 };
    struct bp_error err = BP_ERROR_INIT;
    void *host = NULL, *device = NULL;
    if (d->alloc(self, BP_MEM_PINNED, BYTES, &host, &err) != BP_OK ||
        d->alloc(self, BP_MEM_DEVICE, BYTES, &device, &err) != BP_OK) {
        (void)bp_case_fail(s, "6.1", "alloc of %d pinned bytes: %s", BYTES, err.msg);
    } else {
        unsigned char *p = host;
        for (int i = 0; i < BYTES; ++i) {
            if (p[i] != 0) (void)bp_case_fail(s, "6.14", "alloc gives memory that is not zero");
            p[i] = (unsigned char)(i * 7);
        }
        int32_t rc = copied(d, self, device, host, BYTES, BP_COPY_H2D, stream, &err);
        memset(host, 0, BYTES);
        if (rc == BP_OK) rc = copied(d, self, host, device, BYTES, BP_COPY_D2H, stream, &err);
        if (rc != BP_OK) (void)bp_case_fail(s, "6.1", "copy: %s", err.msg);
        for (int i = 0; i < BYTES && !s->failed; ++i) {
            if (p[i] != (unsigned char)(i * 7))
                (void)bp_case_fail(s, "6.14", "byte %d came back changed", i);
        }
    }
    d->free(self, BP_MEM_PINNED, host);
    d->free(self, BP_MEM_DEVICE, device);
}

/* Events order two streams; a graph replays what was captured with the bytes that are there by then. */
static void device_order(struct bp_case_suite *s, const struct bp_device_ops *d, void *self,
                         void *stream)
{
    enum { BYTES = 1 << 20 };
    struct bp_error err = BP_ERROR_INIT;
    void *other = NULL, *from = NULL, *to = NULL, *graph = NULL, *a = NULL, *b = NULL;
    unsigned char *back = bp_oracle_alloc(BYTES, 1);
    double us = -1.0;
    int32_t rc = d->stream_create(self, &other, &err);
    if (rc == BP_OK) rc = d->event_create(self, &from, &err);
    if (rc == BP_OK) rc = d->event_create(self, &to, &err);
    if (rc == BP_OK) rc = d->alloc(self, BP_MEM_DEVICE, BYTES, &a, &err);
    if (rc == BP_OK) rc = d->alloc(self, BP_MEM_DEVICE, BYTES, &b, &err);
    if (rc == BP_OK) rc = d->event_record(self, from, stream, &err);
    for (int i = 0; rc == BP_OK && i < 64; ++i)
        rc = d->fill(self, a, (uint8_t)i, BYTES, stream, &err);
    if (rc == BP_OK) rc = d->event_record(self, to, stream, &err);
    if (rc == BP_OK) rc = d->event_wait(self, to, other, &err);
    if (rc == BP_OK) rc = copied(d, self, back, a, BYTES, BP_COPY_D2H, other, &err);
    if (rc == BP_OK) rc = d->event_elapsed_us(self, from, to, &us, &err);
    if (rc != BP_OK)
        (void)bp_case_fail(s, "6.1", "streams and events: %s: %s", kit_status_name(rc), err.msg);
    else if (back[0] != 63 || back[BYTES - 1] != 63)
        (void)bp_case_fail(s, "6.14", "a stream that waits for an event does not wait");
    else if (!(us >= 0.0 && us < 1e7))
        (void)bp_case_fail(s, "6.14", "event_elapsed_us gives %g", us);
    if (!s->failed && (rc = d->graph_begin(self, stream, &err)) == BP_OK) {
        rc = d->copy(self, b, a, BYTES, BP_COPY_D2D, stream, &err);
        int32_t rc2 = d->graph_end(self, stream, &graph, &err);
        if (rc == BP_OK) rc = rc2;
        if (rc == BP_OK) rc = d->fill(self, a, 0x77, BYTES, stream, &err);
        if (rc == BP_OK) rc = d->graph_launch(self, graph, stream, &err);
        if (rc == BP_OK) rc = copied(d, self, back, b, BYTES, BP_COPY_D2H, stream, &err);
        if (rc != BP_OK)
            (void)bp_case_fail(s, "6.1", "graphs: %s: %s", kit_status_name(rc), err.msg);
        else if (back[0] != 0x77 || back[BYTES - 1] != 0x77)
            (void)bp_case_fail(s, "6.14", "a replayed graph copies what was there at its capture");
    } else if (rc != BP_OK && rc != BP_DECLINED) {
        (void)bp_case_fail(s, "6.1", "graph_begin: %s: %s", kit_status_name(rc), err.msg);
    }
    d->graph_destroy(self, graph);
    d->free(self, BP_MEM_DEVICE, a);
    d->free(self, BP_MEM_DEVICE, b);
    d->event_destroy(self, from);
    d->event_destroy(self, to);
    d->stream_destroy(self, other);
    free(back);
}

void case_device(struct kit *k)
{
    const struct bp_device_problem p = {.h = BP_HDR(struct bp_device_problem, ordinal),
                                        .kind = k->o->gpu >= 0 ? BP_DEV_CUDA : BP_DEV_HOST,
                                        .ordinal = k->o->gpu >= 0 ? k->o->gpu : 0};
    struct bp_case_suite *s = k->stage == 10 ? NULL : bp_case_open(k, "bp.device");
    struct bp_error err = BP_ERROR_INIT;
    if (s == NULL) return;
    const struct bp_device_ops *d = (const struct bp_device_ops *)(const void *)s->own.op.vt;
    void *self = s->own.op.self, *stream = NULL;
    if (bp_case_begin(s, &s->own, &p,
                      p.kind == BP_DEV_HOST ? "memory of the host" : "memory of the device")) {
        struct bp_device props = {.h = BP_HDR(struct bp_device, name)};
        uint64_t free_bytes = 0, total = 0;
        if (d->props(self, &props, &err) != BP_OK || props.kind != p.kind)
            (void)bp_case_fail(s, "6.1", "props: %s", err.msg);
        if (d->mem_info(self, &free_bytes, &total, &err) != BP_OK || free_bytes > total ||
            total == 0)
            (void)bp_case_fail(s, "6.1", "mem_info: %llu of %llu bytes free",
                               (unsigned long long)free_bytes, (unsigned long long)total);
        if (d->stream_create(self, &stream, &err) != BP_OK ||
            d->stream_sync(self, stream, &err) != BP_OK)
            (void)bp_case_fail(s, "6.1", "stream: %s", err.msg);
        device_memory(s, d, self, BP_MEM_DEVICE, stream);
        if (p.kind == BP_DEV_HOST)
            device_memory(s, d, self, BP_MEM_PINNED, stream);
        else
            pinned_memory(s, d, self, stream);
        if (p.kind != BP_DEV_HOST && !s->failed) device_order(s, d, self, stream);
        d->stream_destroy(self, stream);
        d->stream_destroy(self, NULL);
        bp_case_end(s);
    }
    bp_case_close(s);
}

/* ---- bp.coll ---- */

enum { MAX_RANKS = 2, ELEMS = 1000 };

struct rank_call {
    struct bp_case_suite *s;
    const struct bp_coll_ops *vt;
    uint32_t rank, world;
    float x[ELEMS], y[MAX_RANKS * ELEMS], b[ELEMS];
    int32_t rc[5];
};

static void *run_rank(void *arg)
{
    struct rank_call *c = arg;
    void *self = c->s->own.op.self, *comm = NULL;
    const struct bp_coll_setup setup = {.h = BP_HDR(struct bp_coll_setup, key),
                                        .world = c->world,
                                        .rank = c->rank,
                                        .key = "backplane-check"};
    struct bp_launch l = c->s->launch;
    c->rc[0] = c->vt->comm_create(self, &setup, &comm, NULL);
    if (c->rc[0] != BP_OK) return NULL;
    struct bp_tensor t = {.dtype = BP_DT_F32, .ndim = 1, .dim = {ELEMS}, .stride = {1}};
    struct bp_coll_args a = {.h = BP_HDR(struct bp_coll_args, reserved), .comm = comm, .x = t};
    a.x.data = c->x;
    a.y = t;
    a.y.ndim = 2;
    a.y.dim[0] = c->world;
    a.y.dim[1] = ELEMS;
    a.y.stride[0] = ELEMS;
    a.y.stride[1] = 1;
    a.y.data = c->y;
    c->rc[1] = c->vt->all_gather(self, &l, &a, NULL);
    c->rc[2] = c->vt->all_reduce(self, &l, &a, NULL);
    a.x.data = c->b;
    a.y.data = NULL;
    a.root = c->world - 1;
    c->rc[3] = c->vt->broadcast(self, &l, &a, NULL);
    c->rc[4] = c->vt->barrier(self, &l, comm, NULL);
    c->vt->comm_destroy(self, comm);
    return NULL;
}

static void judge_ranks(struct bp_case_suite *s, const struct rank_call *r, uint32_t world,
                        float (*in)[ELEMS])
{
    static const char *const names[] = {"comm_create", "all_gather", "all_reduce", "broadcast",
                                        "barrier"};
    for (uint32_t i = 0; i < world; ++i) {
        for (int c = 0; c < 5; ++c) {
            if (r[i].rc[c] != BP_OK)
                (void)bp_case_fail(s, r[i].rc[c] == BP_DECLINED ? "5.6" : "6.1",
                                   "%s of rank %u returned %s", names[c], i,
                                   kit_status_name(r[i].rc[c]));
        }
        if (s->failed) return;
        if (memcmp(r[i].y, in, world * sizeof in[0]) != 0)
            (void)bp_case_fail(s, "6.14", "all_gather of rank %u is no copy in rank order", i);
        if (memcmp(r[i].x, r[0].x, sizeof r[0].x) != 0)
            (void)bp_case_fail(s, "6.14", "all_reduce: rank %u has other bits than rank 0", i);
        if (memcmp(r[i].b, in[world - 1], sizeof in[0]) != 0)
            (void)bp_case_fail(s, "6.14", "broadcast: rank %u does not have the root's bits", i);
        for (int64_t e = 0; e < ELEMS; ++e) {
            double want = (double)in[0][e] + (world > 1 ? (double)in[1][e] : 0.0);
            double room = bp_oracle_ulp(BP_DT_F32, want);
            if (!((double)r[i].x[e] - want <= room && want - (double)r[i].x[e] <= room))
                (void)bp_case_fail(s, "6.5", "all_reduce element %lld: got %.9g, want %.9g",
                                   (long long)e, (double)r[i].x[e], want);
        }
    }
}

void case_coll(struct kit *k)
{
    struct bp_case_suite *s = bp_case_open(k, "bp.coll");
    if (s == NULL) return;
    for (uint32_t world = 1; world <= MAX_RANKS; ++world) {
        const struct bp_coll_problem p = {.h = BP_HDR(struct bp_coll_problem, max_elems),
                                          .world = world,
                                          .dtype = BP_DT_F32,
                                          .max_elems = ELEMS};
        if (!bp_case_begin(s, &s->own, &p, "all_reduce, all_gather, broadcast of %u ranks", world))
            continue;
        struct rank_call *r = bp_oracle_alloc(world, sizeof *r);
        float(*in)[ELEMS] = bp_oracle_alloc(world, sizeof *in);
        pthread_t threads[MAX_RANKS];
        for (uint32_t i = 0; i < world; ++i) {
            r[i].s = s;
            r[i].vt = (const struct bp_coll_ops *)(const void *)s->own.op.vt;
            r[i].rank = i;
            r[i].world = world;
            for (int64_t e = 0; e < ELEMS; ++e)
                in[i][e] = r[i].x[e] = r[i].b[e] = (float)bp_oracle_normal(&s->rng);
        }
        kit_enter(k);
        uint32_t started = 1;
        while (started < world &&
               pthread_create(&threads[started], NULL, run_rank, &r[started]) == 0)
            ++started;
        (void)run_rank(&r[0]);
        for (uint32_t i = 1; i < started; ++i) (void)pthread_join(threads[i], NULL);
        kit_leave(k);
        judge_ranks(s, r, world, in);
        free(r);
        free(in);
        bp_case_end(s);
    }
    bp_case_close(s);
}
