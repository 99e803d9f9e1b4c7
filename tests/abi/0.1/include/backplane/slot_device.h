/* slot_device.h - memory, copies, streams, events, graphs of one device ("bp.device" 0.1).
 * Not here: any arithmetic. HOST is built in; CUDA comes from a plugin. One device per rank.
 * On HOST a stream is NULL, every call is complete when it returns, and graphs are declined.
 * SPDX-License-Identifier: MIT */
#ifndef BP_SLOT_DEVICE_H
#define BP_SLOT_DEVICE_H

#include "backplane/plugin.h"

BP_EXTERN_C_BEGIN

struct bp_device_problem {
    struct bp_hdr h;
    uint32_t kind;   /* enum bp_device_kind */
    int32_t ordinal;
};
BP_NOPAD(struct bp_device_problem, ordinal);

enum bp_copy_dir { BP_COPY_H2D = 0, BP_COPY_D2H = 1, BP_COPY_D2D = 2 };
enum bp_mem_kind { BP_MEM_DEVICE = 0, BP_MEM_PINNED = 1 }; /* on HOST both are host memory */

struct bp_device_ops {
    struct bp_op_base base; /* problem: struct bp_device_problem; tensors() lists nothing */

    /* props - identity and limits. Pre: none. Writes: *out up to its h.size. Errors: BP_E_DEVICE. Numeric: none.
     * Threads: any. Since: 0.1. */
    int32_t (*props)(void *self, struct bp_device *out, struct bp_error *err);

    /* mem_info - bytes free and in all, now. Pre: none. Writes: both. Errors: BP_E_DEVICE. Numeric: none.
     * Threads: any. Since: 0.1. */
    int32_t (*mem_info)(void *self, uint64_t *free_bytes, uint64_t *total_bytes, struct bp_error *err);

    /* alloc - n_bytes of kind `mem` (enum bp_mem_kind), 256-byte aligned, zeroed. Pre: not while capturing.
     * Writes: *out. Errors: BP_E_DEVMEM or BP_E_NOMEM with bytes wanted and free. Numeric: none. Threads: any.
     * Since: 0.1. */
    int32_t (*alloc)(void *self, uint32_t mem, uint64_t n_bytes, void **out, struct bp_error *err);

    /* free - memory from alloc of the same kind; NULL accepted. Pre: no work in flight uses it. Writes: none.
     * Errors: none. Numeric: none. Threads: any. Since: 0.1. */
    void (*free)(void *self, uint32_t mem, void *p);

    /* copy - n_bytes in direction `dir` (enum bp_copy_dir) in stream order. Pre: ranges do not overlap; host side
     * pinned if the copy is to overlap with work. Writes: dst. Errors: BP_E_DEVICE. Numeric: bit copy.
     * Threads: one per stream. Since: 0.1. */
    int32_t (*copy)(void *self, void *dst, const void *src, uint64_t n_bytes, uint32_t dir, void *stream,
                    struct bp_error *err);

    /* fill - sets n_bytes to `value` in stream order. Pre: none. Writes: dst. Errors: BP_E_DEVICE. Numeric: none.
     * Threads: one per stream. Since: 0.1. */
    int32_t (*fill)(void *self, void *dst, uint8_t value, uint64_t n_bytes, void *stream, struct bp_error *err);

    /* stream_create - a non-default, non-blocking stream. stream_destroy - waits for it first.
     * Pre: none. Writes: *out. Errors: BP_E_DEVICE. Numeric: none. Threads: any. Since: 0.1. */
    int32_t (*stream_create)(void *self, void **out, struct bp_error *err);
    /* stream_destroy - accepts NULL. Pre: no capture. Writes: none. Errors: none. Numeric: none. Threads: any.
     * Since: 0.1. */
    void (*stream_destroy)(void *self, void *stream);
    /* stream_sync - returns when all work of the stream is done. Pre: not capturing. Writes: none. Errors:
     * BP_E_DEVICE, BP_E_DEVICE_LOST. Numeric: none. Threads: any. Since: 0.1. */
    int32_t (*stream_sync)(void *self, void *stream, struct bp_error *err);

    /* event_create - a timing event. Pre: none. Writes: *out. Errors: BP_E_DEVICE. Numeric: none. Threads: any.
     * Since: 0.1. */
    int32_t (*event_create)(void *self, void **out, struct bp_error *err);
    /* event_destroy - accepts NULL. Pre: none. Writes: none. Errors: none. Numeric: none. Threads: any. Since: 0.1. */
    void (*event_destroy)(void *self, void *event);
    /* event_record - marks the stream's present end. Pre: event of this device. Writes: the event. Errors:
     * BP_E_DEVICE. Numeric: none. Threads: one per stream. Since: 0.1. */
    int32_t (*event_record)(void *self, void *event, void *stream, struct bp_error *err);
    /* event_wait - later work of `stream` waits for the event. Pre: recorded. Writes: none. Errors: BP_E_DEVICE.
     * Numeric: none. Threads: one per stream. Since: 0.1. */
    int32_t (*event_wait)(void *self, void *event, void *stream, struct bp_error *err);
    /* event_elapsed_us - microseconds between two recorded events; waits for both. Pre: recorded. Writes: *out.
     * Errors: BP_E_DEVICE. Numeric: f64. Threads: any. Since: 0.1. */
    int32_t (*event_elapsed_us)(void *self, void *from, void *to, double *out, struct bp_error *err);

    /* graph_begin - starts capturing what this thread puts on `stream` (thread-local mode). Pre: nothing in capture.
     * Writes: none. Errors: BP_DECLINED without graphs, BP_E_DEVICE. Numeric: none. Threads: the stream's. Since: 0.1. */
    int32_t (*graph_begin)(void *self, void *stream, struct bp_error *err);
    /* graph_end - ends the capture and instantiates it. Pre: graph_begin. Writes: *out_graph. Errors: BP_E_DEVICE; the
     * stream is out of capture in any case. Numeric: none. Threads: the stream's. Since: 0.1. */
    int32_t (*graph_end)(void *self, void *stream, void **out_graph, struct bp_error *err);
    /* graph_launch - replays in stream order. Pre: pointers seen at capture still valid. Writes: what was captured.
     * Errors: BP_E_DEVICE. Numeric: same bits as uncaptured. Threads: the stream's. Since: 0.1. */
    int32_t (*graph_launch)(void *self, void *graph, void *stream, struct bp_error *err);
    /* graph_destroy - accepts NULL. Pre: not running. Writes: none. Errors: none. Numeric: none. Threads: any.
     * Since: 0.1. */
    void (*graph_destroy)(void *self, void *graph);
};
BP_NOPAD(struct bp_device_ops, graph_destroy);

BP_EXTERN_C_END
#endif
