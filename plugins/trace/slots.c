/* slots.c - the op tables of the trace wrapper: each slot takes the time around the inner call.
 * Left out: supports, workspace, tensors, layouts and format - questions at start-up, which pass through.
 * On HOST a span is the call; on other devices it is the time to enqueue the work, not to do it.
 * Threads: as the wrapped slot. SPDX-License-Identifier: MIT */
#include <pthread.h>
#include "trace.h"

/* Number of a slot among those after the base. */
#define SLOT(T, fn)                                                                                \
    ((uint32_t)((offsetof(struct T, fn) - sizeof(struct bp_op_base)) / sizeof(void *)))
#define INNER(T) ((const struct T *)o->inner.vt)
#define NO_TENSORS UINT32_MAX

static void keep_shapes(struct trace_op *o, struct trace_shapes *s, uint32_t op, const void *args)
{
    struct bp_tensor t[TRACE_MAX_TENSORS];
    uint32_t n = TRACE_MAX_TENSORS;
    s->n = 0;
    if (op == NO_TENSORS || o->inner.vt->tensors(o->inner.self, op, args, t, &n) != BP_OK) return;
    s->n = n < TRACE_MAX_TENSORS ? n : TRACE_MAX_TENSORS;
    for (uint32_t i = 0; i < s->n; ++i) {
        s->t[i].name = t[i].name;
        s->t[i].dtype = t[i].dtype;
        s->t[i].ndim = t[i].ndim;
        s->t[i].access = t[i].access;
        memcpy(s->t[i].dim, t[i].dim, sizeof t[i].dim);
    }
}

/* Ends the span that began at begin_ns. */
static void note(struct trace_op *o, uint32_t slot, uint64_t begin_ns, const struct bp_launch *l,
                 int32_t rc, uint32_t op, const void *args)
{
    const uint64_t dur_ns = trace_now() - begin_ns;
    const uint64_t at = atomic_fetch_add_explicit(&o->n_spans, 1, memory_order_relaxed) % o->cap;
    atomic_fetch_add_explicit(&o->calls[slot], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&o->ns[slot], dur_ns, memory_order_relaxed);
    o->spans[at] = (struct trace_span){.begin_ns = begin_ns,
                                       .dur_ns = dur_ns,
                                       .corr = l != NULL ? l->corr : 0,
                                       .thread = (uint64_t)pthread_self(),
                                       .layer = l != NULL ? l->layer : -1,
                                       .rc = rc,
                                       .slot = slot};
    if (o->shapes != NULL) keep_shapes(o, &o->shapes[at], op, args);
}

/* One slot: T is its table, fn its name; the parameters after self, and the same as arguments. */
#define TIMED(T, fn, launch, op, args, PARAMS, ...)                                                \
    static int32_t T##_##fn PARAMS                                                                 \
    {                                                                                              \
        struct trace_op *o = self;                                                                 \
        const uint64_t begin_ns = trace_now();                                                     \
        const int32_t rc = INNER(T)->fn(o->inner.self, __VA_ARGS__);                               \
        note(o, SLOT(T, fn), begin_ns, launch, rc, op, args);                                      \
        return rc;                                                                                 \
    }
#define TIMED_VOID(T, fn, PARAMS, ...)                                                             \
    static void T##_##fn PARAMS                                                                    \
    {                                                                                              \
        struct trace_op *o = self;                                                                 \
        const uint64_t begin_ns = trace_now();                                                     \
        INNER(T)->fn(o->inner.self, __VA_ARGS__);                                                  \
        note(o, SLOT(T, fn), begin_ns, NULL, BP_OK, NO_TENSORS, NULL);                             \
    }
#define RUN(T, fn, arg_struct, op)                                                                 \
    TIMED(                                                                                         \
        T, fn, l, op, a,                                                                           \
        (void *self, const struct bp_launch *l, const struct arg_struct *a, struct bp_error *err), \
        l, a, err)
#define PLAIN(T, fn, PARAMS, ...) TIMED(T, fn, NULL, NO_TENSORS, NULL, PARAMS, __VA_ARGS__)
#define WEIGHTS(T, raw)                                                                            \
    PLAIN(T, prepare,                                                                              \
          (void *self, const struct raw *w, void **out, struct bp_weight_info *info,               \
           struct bp_error *err),                                                                  \
          w, out, info, err)                                                                       \
    TIMED_VOID(T, release, (void *self, void *handle), handle)

// clang-format off
PLAIN(bp_device_ops, props, (void *self, struct bp_device *out, struct bp_error *err), out, err)
PLAIN(bp_device_ops, mem_info, (void *self, uint64_t *nfree, uint64_t *all, struct bp_error *err), nfree, all, err)
PLAIN(bp_device_ops, alloc, (void *self, uint32_t mem, uint64_t n, void **out, struct bp_error *err), mem, n, out, err)
TIMED_VOID(bp_device_ops, free, (void *self, uint32_t mem, void *p), mem, p)
PLAIN(bp_device_ops, copy,
      (void *self, void *dst, const void *src, uint64_t n, uint32_t dir, void *stream, struct bp_error *err),
      dst, src, n, dir, stream, err)
PLAIN(bp_device_ops, fill, (void *self, void *dst, uint8_t v, uint64_t n, void *stream, struct bp_error *err),
      dst, v, n, stream, err)
PLAIN(bp_device_ops, stream_create, (void *self, void **out, struct bp_error *err), out, err)
TIMED_VOID(bp_device_ops, stream_destroy, (void *self, void *stream), stream)
PLAIN(bp_device_ops, stream_sync, (void *self, void *stream, struct bp_error *err), stream, err)
PLAIN(bp_device_ops, event_create, (void *self, void **out, struct bp_error *err), out, err)
TIMED_VOID(bp_device_ops, event_destroy, (void *self, void *event), event)
PLAIN(bp_device_ops, event_record, (void *self, void *event, void *stream, struct bp_error *err), event, stream, err)
PLAIN(bp_device_ops, event_wait, (void *self, void *event, void *stream, struct bp_error *err), event, stream, err)
PLAIN(bp_device_ops, event_elapsed_us, (void *self, void *from, void *to, double *out, struct bp_error *err),
      from, to, out, err)
PLAIN(bp_device_ops, graph_begin, (void *self, void *stream, struct bp_error *err), stream, err)
PLAIN(bp_device_ops, graph_end, (void *self, void *stream, void **out, struct bp_error *err), stream, out, err)
PLAIN(bp_device_ops, graph_launch, (void *self, void *graph, void *stream, struct bp_error *err), graph, stream, err)
TIMED_VOID(bp_device_ops, graph_destroy, (void *self, void *graph), graph)

WEIGHTS(bp_dense_ops, bp_raw)
RUN(bp_dense_ops, embed, bp_dense_embed_args, BP_DENSE_OP_EMBED)
RUN(bp_dense_ops, rms, bp_dense_rms_args, BP_DENSE_OP_RMS)
RUN(bp_dense_ops, layernorm, bp_dense_layernorm_args, BP_DENSE_OP_LAYERNORM)
RUN(bp_dense_ops, rope, bp_dense_rope_args, BP_DENSE_OP_ROPE)
RUN(bp_dense_ops, silu_mul, bp_dense_pair_args, BP_DENSE_OP_SILU_MUL)
RUN(bp_dense_ops, add, bp_dense_pair_args, BP_DENSE_OP_ADD)
RUN(bp_dense_ops, argmax, bp_dense_topk_args, BP_DENSE_OP_ARGMAX)
RUN(bp_dense_ops, topk, bp_dense_topk_args, BP_DENSE_OP_TOPK)
RUN(bp_dense_ops, matmul, bp_dense_matmul_args, BP_DENSE_OP_MATMUL)

WEIGHTS(bp_quant_ops, bp_raw)
RUN(bp_quant_ops, matmul, bp_quant_matmul_args, BP_QUANT_OP_MATMUL)
RUN(bp_quant_ops, dequantize, bp_quant_dequantize_args, BP_QUANT_OP_DEQUANTIZE)

WEIGHTS(bp_moe_ops, bp_moe_weights)
RUN(bp_moe_ops, route, bp_moe_route_args, BP_MOE_OP_ROUTE)
RUN(bp_moe_ops, run, bp_moe_run_args, BP_MOE_OP_RUN)

PLAIN(bp_coll_ops, comm_create, (void *self, const struct bp_coll_setup *s, void **out, struct bp_error *err),
      s, out, err)
TIMED_VOID(bp_coll_ops, comm_destroy, (void *self, void *comm), comm)
RUN(bp_coll_ops, all_reduce, bp_coll_args, BP_COLL_OP_ALL_REDUCE)
RUN(bp_coll_ops, all_gather, bp_coll_args, BP_COLL_OP_ALL_GATHER)
RUN(bp_coll_ops, broadcast, bp_coll_args, BP_COLL_OP_BROADCAST)
TIMED(bp_coll_ops, barrier, l, NO_TENSORS, NULL,
      (void *self, const struct bp_launch *l, void *comm, struct bp_error *err), l, comm, err)
PLAIN(bp_coll_ops, async_error, (void *self, void *comm, struct bp_error *err), comm, err)
TIMED_VOID(bp_coll_ops, abort, (void *self, void *comm), comm)

WEIGHTS(bp_mla_common_ops, bp_mla_weights)
RUN(bp_mla_common_ops, cache_write, bp_mla_cache_write_args, BP_MLA_OP_CACHE_WRITE)
RUN(bp_mla_common_ops, cache_gather, bp_mla_cache_gather_args, BP_MLA_OP_CACHE_GATHER)
RUN(bp_mla_common_ops, expand, bp_mla_expand_args, BP_MLA_OP_EXPAND)
RUN(bp_mla_common_ops, absorb, bp_mla_absorb_args, BP_MLA_OP_ABSORB)
RUN(bp_mla_common_ops, merge, bp_mla_merge_args, BP_MLA_OP_MERGE)

RUN(bp_mla_prefill_ops, plan, bp_mla_prefill_meta, NO_TENSORS)
RUN(bp_mla_prefill_ops, run, bp_mla_prefill_args, BP_MLA_PREFILL_OP_RUN)
RUN(bp_mla_prefill_ops, run_context, bp_mla_prefill_args, BP_MLA_PREFILL_OP_RUN_CONTEXT)

RUN(bp_mla_decode_ops, plan, bp_mla_decode_meta, NO_TENSORS)
RUN(bp_mla_decode_ops, run, bp_mla_decode_args, BP_MLA_DECODE_OP_RUN)

RUN(bp_mla_index_ops, key_write, bp_mla_key_write_args, BP_MLA_INDEX_OP_KEY_WRITE)
RUN(bp_mla_index_ops, select, bp_mla_select_args, BP_MLA_INDEX_OP_SELECT)

/* ---- tables ---- */

#define BASE(T, last, iface) .base = BP_OP_BASE(struct T, last, iface, NULL, NULL, NULL)
#define F(fn) .fn = CAT(TABLE_T, fn)
#define CAT(T, fn) CAT2(T, fn)
#define CAT2(T, fn) T##_##fn

#define TABLE_T bp_device_ops
static const struct bp_device_ops device_table = {
    BASE(bp_device_ops, graph_destroy, "bp.device"), F(props), F(mem_info), F(alloc), F(free), F(copy), F(fill),
    F(stream_create), F(stream_destroy), F(stream_sync), F(event_create), F(event_destroy), F(event_record),
    F(event_wait), F(event_elapsed_us), F(graph_begin), F(graph_end), F(graph_launch), F(graph_destroy)};
static const char *const device_names[] = {
    "props", "mem_info", "alloc", "free", "copy", "fill", "stream_create", "stream_destroy", "stream_sync",
    "event_create", "event_destroy", "event_record", "event_wait", "event_elapsed_us", "graph_begin", "graph_end",
    "graph_launch", "graph_destroy"};
#undef TABLE_T
#define TABLE_T bp_dense_ops
static const struct bp_dense_ops dense_table = {
    BASE(bp_dense_ops, matmul, "bp.dense"), F(prepare), F(release), F(embed), F(rms), F(layernorm), F(rope),
    F(silu_mul), F(add), F(argmax), F(topk), F(matmul)};
static const char *const dense_names[] = {"prepare", "release", "embed", "rms", "layernorm", "rope",
                                          "silu_mul", "add", "argmax", "topk", "matmul"};
#undef TABLE_T
#define TABLE_T bp_quant_ops
static const struct bp_quant_ops quant_table = {
    BASE(bp_quant_ops, dequantize, "bp.quant"), F(prepare), F(release), F(matmul), F(dequantize)};
static const char *const quant_names[] = {"format", "prepare", "release", "matmul", "dequantize"};
#undef TABLE_T
#define TABLE_T bp_moe_ops
static const struct bp_moe_ops moe_table = {BASE(bp_moe_ops, run, "bp.moe"), F(prepare), F(release), F(route), F(run)};
static const char *const moe_names[] = {"prepare", "release", "route", "run"};
#undef TABLE_T
#define TABLE_T bp_coll_ops
static const struct bp_coll_ops coll_table = {
    BASE(bp_coll_ops, abort, "bp.coll"), F(comm_create), F(comm_destroy), F(all_reduce), F(all_gather), F(broadcast),
    F(barrier), F(async_error), F(abort)};
static const char *const coll_names[] = {"comm_create", "comm_destroy", "all_reduce", "all_gather",
                                         "broadcast", "barrier", "async_error", "abort"};
#undef TABLE_T
#define TABLE_T bp_mla_common_ops
static const struct bp_mla_common_ops common_table = {
    BASE(bp_mla_common_ops, merge, "bp.mla.common"), F(prepare), F(release), F(cache_write), F(cache_gather),
    F(expand), F(absorb), F(merge)};
static const char *const common_names[] = {"layouts", "prepare", "release", "cache_write", "cache_gather",
                                           "expand", "absorb", "merge"};
#undef TABLE_T
#define TABLE_T bp_mla_prefill_ops
static const struct bp_mla_prefill_ops prefill_table = {
    BASE(bp_mla_prefill_ops, run_context, "bp.mla.prefill"), F(plan), F(run), F(run_context)};
static const char *const prefill_names[] = {"plan", "run", "run_context"};
#undef TABLE_T
#define TABLE_T bp_mla_decode_ops
static const struct bp_mla_decode_ops decode_table = {
    BASE(bp_mla_decode_ops, run, "bp.mla.decode"), F(plan), F(run)};
static const char *const decode_names[] = {"plan", "run"};
#undef TABLE_T
#define TABLE_T bp_mla_index_ops
static const struct bp_mla_index_ops index_table = {
    BASE(bp_mla_index_ops, select, "bp.mla.index"), F(key_write), F(select)};
static const char *const index_names[] = {"layouts", "key_write", "select"};
// clang-format on

/* Names stand in the order of the table, and none is forgotten. */
#define NAMED(T, names)                                                                            \
    BP_STATIC_ASSERT((sizeof(struct T) - sizeof(struct bp_op_base)) / sizeof(void *) ==            \
                             BP_LEN(names) &&                                                      \
                         BP_LEN(names) <= TRACE_MAX_SLOTS,                                         \
                     "names of " #T)
NAMED(bp_device_ops, device_names);
NAMED(bp_dense_ops, dense_names);
NAMED(bp_quant_ops, quant_names);
NAMED(bp_moe_ops, moe_names);
NAMED(bp_coll_ops, coll_names);
NAMED(bp_mla_common_ops, common_names);
NAMED(bp_mla_prefill_ops, prefill_names);
NAMED(bp_mla_decode_ops, decode_names);
NAMED(bp_mla_index_ops, index_names);

const struct bp_op_base *trace_table(const char *iface, const char *const **out_names)
{
    static const struct {
        const struct bp_op_base *table;
        const char *const *names;
    } tables[] = {{&device_table.base, device_names},   {&dense_table.base, dense_names},
                  {&quant_table.base, quant_names},     {&moe_table.base, moe_names},
                  {&coll_table.base, coll_names},       {&common_table.base, common_names},
                  {&prefill_table.base, prefill_names}, {&decode_table.base, decode_names},
                  {&index_table.base, index_names}};
    for (uint32_t i = 0; i < BP_LEN(tables); ++i) {
        if (strcmp(tables[i].table->iface, iface) != 0) continue;
        *out_names = tables[i].names;
        return tables[i].table;
    }
    return NULL;
}
