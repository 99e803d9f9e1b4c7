/* trace.h - what the files of the trace wrapper share: spans, the ring that holds them, one wrapped op.
 * Threads: slots of one op may run at once (device, prepare beside run), so counters and the ring's head are atomic; a
 * span belongs to the call that took its place. SPDX-License-Identifier: MIT */
#ifndef TRACE_H
#define TRACE_H

#include <stdatomic.h>
#include <time.h>
#include "backplane/sdk.h"
#include "backplane/slot_coll.h"
#include "backplane/slot_dense.h"
#include "backplane/slot_device.h"
#include "backplane/slot_mla.h"
#include "backplane/slot_moe.h"
#include "backplane/slot_quant.h"

#define TRACE_NAME "trace"

enum { TRACE_MAX_SLOTS = 25, TRACE_MAX_TENSORS = 8 };

struct trace_span {
    uint64_t begin_ns, dur_ns; /* of the monotonic clock */
    uint64_t corr, thread;
    int32_t layer, rc;
    uint32_t slot, reserved;
};

/* Tensors of one call, kept on request only. */
struct trace_shapes {
    uint32_t n, reserved;
    struct {
        const char *name; /* static string of the provider, which is never unloaded */
        uint32_t dtype, ndim, access, reserved;
        int64_t dim[4];
    } t[TRACE_MAX_TENSORS];
};

/* One wrapped op. Kept after op_destroy until the plugin closes, because its spans are written then. */
struct trace_op {
    struct trace_plugin *plugin;
    struct bp_op_ref inner;
    const char *iface;
    const char *const *slot_names; /* by slot number */
    uint32_t id, device_kind;
    uint64_t cap; /* spans the ring holds */
    struct trace_span *spans;
    struct trace_shapes *shapes; /* NULL when not asked for */
    _Atomic uint64_t n_spans;    /* ever begun; the ring holds the newest `cap` */
    _Atomic uint64_t calls[TRACE_MAX_SLOTS], ns[TRACE_MAX_SLOTS];
    struct trace_op *older;
};

struct trace_plugin {
    const struct bp_host *host;
    struct trace_op *newest; /* all ops ever made */
    uint32_t n_ops;
    int32_t want_shapes, fd; /* fd: -1 while no file is open */
    int64_t cap;
    char out[512], part[528]; /* the file, and its name while it is written */
};

static inline uint64_t trace_now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

/* The op table of an interface and the names of its slots; NULL for an unknown interface. (slots.c) */
const struct bp_op_base *trace_table(const char *iface, const char *const **out_names);

/* The file is made when the first op is, so that a bad path is a start-up error; its spans come at the end, under
 * another name, so that a reader never sees half a file. (write.c) */
int32_t trace_file_open(struct trace_plugin *p, struct bp_error *err);
void trace_file_finish(struct trace_plugin *p);

#endif
