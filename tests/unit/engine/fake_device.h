/* fake_device.h - a device whose memory the host cannot touch (no access rights) but through its copies, so that a pointer
 * which was not carried is a crash. All that is put on it names a living stream of the same instance. Everything else is
 * computed by whoever can. State is at file scope because a query function has no argument; check runs each test in a
 * process of its own. SPDX-License-Identifier: MIT */
#ifndef FAKE_DEVICE_H
#define FAKE_DEVICE_H

#include "engine_fixture.h"
#include "backplane/slot_device.h"
#include "backplane/tools.h"
#include "base/base.h"
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_BLOCKS = 8192 };
static struct block {
    unsigned char *p;
    size_t n_bytes;
} blocks[MAX_BLOCKS];
static int n_blocks, n_copies;
/* Device memory lies in one piece, so that all of it is opened or closed in one call. */
#define REGION_BYTES ((size_t)1 << 33)
static unsigned char *region;
static size_t region_used;

/* Streams, by the instance (one a session) that made them. */
enum { MAX_DEVS = 64 };
static struct dev {
    int n_streams, n_events; /* alive */
} devs[MAX_DEVS];
struct dev_stream {
    const struct dev *owner; /* NULL: destroyed */
};
static struct dev_stream dev_streams[MAX_DEVS];
static int n_devs, n_dev_streams;

static void check_stream(const void *self, const void *stream)
{
    const struct dev_stream *s = stream;
    ck_assert_msg(s >= dev_streams && s < dev_streams + n_dev_streams, "not a stream: %p", stream);
    ck_assert_msg(s->owner != NULL, "the stream was destroyed");
    ck_assert_msg(s->owner == self, "the stream is another session's");
}

static size_t whole_pages(uint64_t n)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    return (size_t)((n + page - 1) / page * page);
}

static int32_t dev_supports(void *self, const void *problem, struct bp_verdict *v)
{
    const struct bp_device_problem *p = problem;
    (void)self;
    v->level = BP_V_YES;
    if (p->kind != BP_DEV_CUDA) {
        v->level = BP_V_NO;
        v->n_reasons = 1;
        v->reasons[0] = (struct bp_reason){.code = BP_R_DEVICE,
                                           .critical = 1,
                                           .got = p->kind,
                                           .want_lo = BP_DEV_CUDA,
                                           .want_hi = BP_DEV_CUDA,
                                           .field = "kind"};
    }
    return BP_OK;
}
static int32_t dev_workspace(void *self, const void *p, struct bp_workspace *out,
                             struct bp_error *err)
{
    (void)self;
    (void)p;
    (void)err;
    out->align = 64;
    return BP_OK;
}
static int32_t dev_tensors(void *self, uint32_t slot, const void *args, struct bp_tensor *t,
                           uint32_t *n)
{
    (void)self;
    (void)slot;
    (void)args;
    (void)t;
    *n = 0;
    return BP_OK;
}
static int32_t dev_props(void *self, struct bp_device *out, struct bp_error *err)
{
    (void)self;
    (void)err;
    out->kind = BP_DEV_CUDA;
    snprintf(out->name, sizeof out->name, "out of reach");
    return BP_OK;
}
static int32_t dev_mem_info(void *self, uint64_t *free_bytes, uint64_t *total_bytes,
                            struct bp_error *err)
{
    (void)self;
    (void)err;
    *free_bytes = *total_bytes = UINT64_C(1) << 34;
    return BP_OK;
}
static int32_t dev_alloc(void *self, uint32_t mem, uint64_t n_bytes, void **out,
                         struct bp_error *err)
{
    (void)self;
    if (mem == BP_MEM_PINNED) {
        *out = aligned_alloc(256, (n_bytes + 255) / 256 * 256);
        if (*out == NULL) return bpi_fail_nomem(err, "fakedev", n_bytes);
        memset(*out, 0, n_bytes);
        return BP_OK;
    }
    ck_assert_int_lt(n_blocks, MAX_BLOCKS);
    struct block *b = &blocks[n_blocks++];
    b->n_bytes = whole_pages(n_bytes);
    if (region == NULL) {
        region = mmap(NULL, REGION_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                      -1, 0);
        ck_assert(region != MAP_FAILED);
    }
    const size_t gap = whole_pages(1); /* behind each block, never open to copies */
    ck_assert_uint_le(b->n_bytes + gap, REGION_BYTES - region_used);
    b->p = region + region_used;
    region_used += b->n_bytes + gap;
    *out = b->p;
    return BP_OK;
}
static void dev_free(void *self, uint32_t mem, void *p)
{
    (void)self;
    if (mem == BP_MEM_PINNED) {
        free(p);
        return;
    }
    for (int i = 0; i < n_blocks; ++i) {
        if (blocks[i].p != p) continue;
        ck_assert_int_eq(madvise(blocks[i].p, blocks[i].n_bytes, MADV_DONTNEED), 0);
        blocks[i].p = NULL;
    }
}
/* Which block does the range lie in? */
static struct block *block_of(const void *p, uint64_t n)
{
    for (int i = 0; i < n_blocks; ++i) {
        struct block *b = &blocks[i];
        if (b->p == NULL || (const unsigned char *)p < b->p ||
            (const unsigned char *)p >= b->p + b->n_bytes)
            continue;
        ck_assert_uint_le((uint64_t)((const unsigned char *)p - b->p) + n, b->n_bytes);
        return b;
    }
    return NULL;
}
static void access_to(const struct block *b, int rights)
{
    if (b != NULL) ck_assert_int_eq(mprotect(b->p, b->n_bytes, rights), 0);
}
static int32_t dev_copy(void *self, void *dst, const void *src, uint64_t n, uint32_t dir,
                        void *stream, struct bp_error *err)
{
    const struct block *to = block_of(dst, n), *from = block_of(src, n);
    check_stream(self, stream);
    (void)err;
    ck_assert((to != NULL) == (dir != BP_COPY_D2H));
    ck_assert((from != NULL) == (dir != BP_COPY_H2D));
    ++n_copies;
    access_to(to, PROT_READ | PROT_WRITE);
    access_to(from, PROT_READ | PROT_WRITE);
    memmove(dst, src, n);
    access_to(to, PROT_NONE);
    access_to(from, PROT_NONE);
    return BP_OK;
}
static int32_t dev_fill(void *self, void *dst, uint8_t value, uint64_t n, void *stream,
                        struct bp_error *err)
{
    const struct block *b = block_of(dst, n);
    check_stream(self, stream);
    (void)err;
    access_to(b, PROT_READ | PROT_WRITE);
    memset(dst, value, n);
    access_to(b, PROT_NONE);
    return BP_OK;
}
static bool dev_lost; /* what was put on it failed there */
static int32_t dev_sync(void *self, void *stream, struct bp_error *err)
{
    check_stream(self, stream);
    if (dev_lost) return bpi_fail(err, BP_E_DEVICE_LOST, "fakedev", NULL, "the device is gone");
    return BP_OK;
}

static int32_t dev_stream_create(void *self, void **out, struct bp_error *err)
{
    struct dev *d = self;
    (void)err;
    ck_assert_int_lt(n_dev_streams, MAX_DEVS);
    dev_streams[n_dev_streams] = (struct dev_stream){.owner = d};
    *out = &dev_streams[n_dev_streams++];
    d->n_streams++;
    return BP_OK;
}
static void dev_stream_destroy(void *self, void *stream)
{
    struct dev *d = self;
    if (stream == NULL) return;
    check_stream(self, stream);
    ((struct dev_stream *)stream)->owner = NULL;
    d->n_streams--;
}

/* Events hold the time of the host's clock at which they were recorded; nothing runs behind its back. */
static int32_t dev_event_create(void *self, void **out, struct bp_error *err)
{
    uint64_t *ns = calloc(1, sizeof *ns);
    (void)err;
    ck_assert_ptr_nonnull(ns);
    ((struct dev *)self)->n_events++;
    *out = ns;
    return BP_OK;
}
static void dev_event_destroy(void *self, void *event)
{
    if (event == NULL) return;
    ((struct dev *)self)->n_events--;
    free(event);
}
static int32_t dev_event_record(void *self, void *event, void *stream, struct bp_error *err)
{
    check_stream(self, stream);
    (void)err;
    *(uint64_t *)event = bpi_now_ns();
    return BP_OK;
}
static int32_t dev_event_elapsed_us(void *self, void *from, void *to, double *out,
                                    struct bp_error *err)
{
    const uint64_t a = *(const uint64_t *)from, b = *(const uint64_t *)to;
    (void)self;
    (void)err;
    ck_assert(a != 0 && b >= a); /* both were recorded */
    *out = (double)(b - a) * 1e-3;
    return BP_OK;
}

static struct bp_device_ops dev_ops;
static const struct bp_op_entry dev_entry = {"bp.device", "fake", BP_ABI_MAJOR, BP_ABI_MINOR, 0, 0};
static struct bp_plugin_desc dev_desc;

static int32_t dev_open(const struct bp_host *host, void **plugin, struct bp_error *err)
{
    (void)host;
    (void)err;
    ck_assert_int_lt(n_devs, MAX_DEVS);
    *plugin = &devs[n_devs++];
    return BP_OK;
}
static void dev_close(void *plugin)
{
    const struct dev *d = plugin;
    ck_assert_int_eq(d->n_streams, 0);
    ck_assert_int_eq(d->n_events, 0);
}
static int32_t dev_create(void *plugin, const struct bp_op_entry *e, const struct bp_device *dev,
                          const struct bp_op_ref *inner, uint32_t n, struct bp_op_ref *out,
                          struct bp_error *err)
{
    (void)e;
    (void)dev;
    (void)inner;
    (void)n;
    (void)err;
    *out = (struct bp_op_ref){.vt = &dev_ops.base, .self = plugin};
    return BP_OK;
}
static void dev_destroy(void *plugin, struct bp_op_ref *op)
{
    (void)plugin;
    (void)op;
}
static const struct bp_plugin_desc *dev_query(const struct bp_query *q)
{
    /* Slots that are never called come from ref. */
    const struct bp_plugin_desc *ref = bp_reference_query()(q);
    struct bp_op_ref own = {NULL, NULL};
    ck_assert_int_eq(ref->op_create(NULL, &dev_entry, NULL, NULL, 0, &own, NULL), BP_OK);
    dev_ops = *(const struct bp_device_ops *)(const void *)own.vt;
    dev_ops.base.supports = dev_supports;
    dev_ops.base.workspace = dev_workspace;
    dev_ops.base.tensors = dev_tensors;
    dev_ops.props = dev_props;
    dev_ops.mem_info = dev_mem_info;
    dev_ops.alloc = dev_alloc;
    dev_ops.free = dev_free;
    dev_ops.copy = dev_copy;
    dev_ops.fill = dev_fill;
    dev_ops.stream_create = dev_stream_create;
    dev_ops.stream_destroy = dev_stream_destroy;
    dev_ops.stream_sync = dev_sync;
    dev_ops.event_create = dev_event_create;
    dev_ops.event_destroy = dev_event_destroy;
    dev_ops.event_record = dev_event_record;
    dev_ops.event_elapsed_us = dev_event_elapsed_us;
    dev_desc = *ref;
    dev_desc.name = "fakedev";
    dev_desc.cfg = NULL;
    dev_desc.n_cfg = 0;
    dev_desc.ops = &dev_entry;
    dev_desc.n_ops = 1;
    dev_desc.ops_stride = sizeof dev_entry;
    dev_desc.open = dev_open;
    dev_desc.close = dev_close;
    dev_desc.op_create = dev_create;
    dev_desc.op_destroy = dev_destroy;
    return &dev_desc;
}

#endif
