/* loader_relay.c - for every slot of every interface a function that passes a call on to the slot's own layer.
 * A wrapped op has one self per slot, and a plain reference has room for one: relays stand between the two, so that an
 * op in wrappers can be asked and wrapped like any other. The engine's own calls do not come this way (BPI_CALL).
 * Threads: pure. SPDX-License-Identifier: MIT */
#include "loader/loader_priv.h"

#include <string.h>
#include "backplane/slot_coll.h"
#include "backplane/slot_dense.h"
#include "backplane/slot_device.h"
#include "backplane/slot_mla.h"
#include "backplane/slot_moe.h"
#include "backplane/slot_quant.h"

/* Function and self of one slot, for the body of its relay. */
#define TABLE(T) ((const struct T *)((const struct bpi_flat_op *)self)->vt)
#define SELF(T, slot) (((const struct bpi_flat_op *)self)->self[BPI_SLOT_INDEX(T, slot)])
#define PASS(T, slot, ...) TABLE(T)->slot(SELF(T, slot), __VA_ARGS__)

/* A slot that works on tensors. */
#define RELAY_RUN(T, slot, args)                                                                   \
    static int32_t T##_##slot(void *self, const struct bp_launch *l, const struct args *a,         \
                              struct bp_error *err)                                                \
    {                                                                                              \
        return PASS(T, slot, l, a, err);                                                           \
    }
/* A slot that takes weights, and the one that gives them up. */
#define RELAY_WEIGHTS(T, raw)                                                                      \
    static int32_t T##_prepare(void *self, const struct raw *w, void **out,                        \
                               struct bp_weight_info *info, struct bp_error *err)                  \
    {                                                                                              \
        return PASS(T, prepare, w, out, info, err);                                                \
    }                                                                                              \
    static void T##_release(void *self, void *handle)                                              \
    {                                                                                              \
        PASS(T, release, handle);                                                                  \
    }
#define RELAY_LAYOUTS(T)                                                                           \
    static int32_t T##_layouts(void *self, const struct bp_mla_problem *p, uint32_t i,             \
                               struct bp_kv_layout *out)                                           \
    {                                                                                              \
        return PASS(T, layouts, p, i, out);                                                        \
    }

/* ---- the part that all tables share ---- */

static int32_t base_supports(void *self, const void *problem, struct bp_verdict *v)
{
    return PASS(bp_op_base, supports, problem, v);
}

static int32_t base_workspace(void *self, const void *problem, struct bp_workspace *out,
                              struct bp_error *err)
{
    return PASS(bp_op_base, workspace, problem, out, err);
}

static int32_t base_tensors(void *self, uint32_t slot, const void *args, struct bp_tensor *t,
                            uint32_t *n)
{
    return PASS(bp_op_base, tensors, slot, args, t, n);
}

/* ---- bp.device ---- */

#define DEVICE(slot, ...) PASS(bp_device_ops, slot, __VA_ARGS__)

static int32_t device_props(void *self, struct bp_device *out, struct bp_error *err)
{
    return DEVICE(props, out, err);
}

static int32_t device_mem_info(void *self, uint64_t *free_bytes, uint64_t *total_bytes,
                               struct bp_error *err)
{
    return DEVICE(mem_info, free_bytes, total_bytes, err);
}

static int32_t device_alloc(void *self, uint32_t mem, uint64_t n_bytes, void **out,
                            struct bp_error *err)
{
    return DEVICE(alloc, mem, n_bytes, out, err);
}

static void device_free(void *self, uint32_t mem, void *p)
{
    DEVICE(free, mem, p);
}

static int32_t device_copy(void *self, void *dst, const void *src, uint64_t n_bytes, uint32_t dir,
                           void *stream, struct bp_error *err)
{
    return DEVICE(copy, dst, src, n_bytes, dir, stream, err);
}

static int32_t device_fill(void *self, void *dst, uint8_t value, uint64_t n_bytes, void *stream,
                           struct bp_error *err)
{
    return DEVICE(fill, dst, value, n_bytes, stream, err);
}

static int32_t device_event_elapsed_us(void *self, void *from, void *to, double *out,
                                       struct bp_error *err)
{
    return DEVICE(event_elapsed_us, from, to, out, err);
}

static int32_t device_graph_end(void *self, void *stream, void **out_graph, struct bp_error *err)
{
    return DEVICE(graph_end, stream, out_graph, err);
}

#define RELAY_MAKE(slot)                                                                           \
    static int32_t device_##slot(void *self, void **out, struct bp_error *err)                     \
    {                                                                                              \
        return DEVICE(slot, out, err);                                                             \
    }
#define RELAY_ONE(slot)                                                                            \
    static int32_t device_##slot(void *self, void *thing, struct bp_error *err)                    \
    {                                                                                              \
        return DEVICE(slot, thing, err);                                                           \
    }
#define RELAY_TWO(slot)                                                                            \
    static int32_t device_##slot(void *self, void *thing, void *stream, struct bp_error *err)      \
    {                                                                                              \
        return DEVICE(slot, thing, stream, err);                                                   \
    }
#define RELAY_END(slot)                                                                            \
    static void device_##slot(void *self, void *thing)                                             \
    {                                                                                              \
        DEVICE(slot, thing);                                                                       \
    }
RELAY_MAKE(stream_create)
RELAY_MAKE(event_create)
RELAY_ONE(stream_sync)
RELAY_ONE(graph_begin)
RELAY_TWO(event_record)
RELAY_TWO(event_wait)
RELAY_TWO(graph_launch)
RELAY_END(stream_destroy)
RELAY_END(event_destroy)
RELAY_END(graph_destroy)

/* ---- bp.dense, bp.quant, bp.moe ---- */

RELAY_WEIGHTS(bp_dense_ops, bp_raw)
RELAY_RUN(bp_dense_ops, embed, bp_dense_embed_args)
RELAY_RUN(bp_dense_ops, rms, bp_dense_rms_args)
RELAY_RUN(bp_dense_ops, layernorm, bp_dense_layernorm_args)
RELAY_RUN(bp_dense_ops, rope, bp_dense_rope_args)
RELAY_RUN(bp_dense_ops, silu_mul, bp_dense_pair_args)
RELAY_RUN(bp_dense_ops, add, bp_dense_pair_args)
RELAY_RUN(bp_dense_ops, argmax, bp_dense_topk_args)
RELAY_RUN(bp_dense_ops, topk, bp_dense_topk_args)
RELAY_RUN(bp_dense_ops, matmul, bp_dense_matmul_args)

static int32_t bp_quant_ops_format(void *self, uint32_t i, uint32_t *out_type)
{
    return PASS(bp_quant_ops, format, i, out_type);
}

RELAY_WEIGHTS(bp_quant_ops, bp_raw)
RELAY_RUN(bp_quant_ops, matmul, bp_quant_matmul_args)
RELAY_RUN(bp_quant_ops, dequantize, bp_quant_dequantize_args)

RELAY_WEIGHTS(bp_moe_ops, bp_moe_weights)
RELAY_RUN(bp_moe_ops, route, bp_moe_route_args)
RELAY_RUN(bp_moe_ops, run, bp_moe_run_args)

/* ---- bp.coll ---- */

static int32_t coll_comm_create(void *self, const struct bp_coll_setup *s, void **out,
                                struct bp_error *err)
{
    return PASS(bp_coll_ops, comm_create, s, out, err);
}

static void coll_comm_destroy(void *self, void *comm)
{
    PASS(bp_coll_ops, comm_destroy, comm);
}

static int32_t coll_barrier(void *self, const struct bp_launch *l, void *comm, struct bp_error *err)
{
    return PASS(bp_coll_ops, barrier, l, comm, err);
}

static int32_t coll_async_error(void *self, void *comm, struct bp_error *err)
{
    return PASS(bp_coll_ops, async_error, comm, err);
}

static void coll_abort(void *self, void *comm)
{
    PASS(bp_coll_ops, abort, comm);
}

RELAY_RUN(bp_coll_ops, all_reduce, bp_coll_args)
RELAY_RUN(bp_coll_ops, all_gather, bp_coll_args)
RELAY_RUN(bp_coll_ops, broadcast, bp_coll_args)

/* ---- bp.mla.* ---- */

RELAY_LAYOUTS(bp_mla_common_ops)
RELAY_WEIGHTS(bp_mla_common_ops, bp_mla_weights)
RELAY_RUN(bp_mla_common_ops, cache_write, bp_mla_cache_write_args)
RELAY_RUN(bp_mla_common_ops, cache_gather, bp_mla_cache_gather_args)
RELAY_RUN(bp_mla_common_ops, expand, bp_mla_expand_args)
RELAY_RUN(bp_mla_common_ops, absorb, bp_mla_absorb_args)
RELAY_RUN(bp_mla_common_ops, merge, bp_mla_merge_args)

RELAY_RUN(bp_mla_prefill_ops, plan, bp_mla_prefill_meta)
RELAY_RUN(bp_mla_prefill_ops, run, bp_mla_prefill_args)
RELAY_RUN(bp_mla_prefill_ops, run_context, bp_mla_prefill_args)

RELAY_RUN(bp_mla_decode_ops, plan, bp_mla_decode_meta)
RELAY_RUN(bp_mla_decode_ops, run, bp_mla_decode_args)

RELAY_LAYOUTS(bp_mla_index_ops)
RELAY_RUN(bp_mla_index_ops, key_write, bp_mla_key_write_args)
RELAY_RUN(bp_mla_index_ops, select, bp_mla_select_args)

/* ---- the tables ---- */

// clang-format off
#define BASE(T, last, name)                                                                                             \
    .base = {.h = BP_HDR(struct T, last), .iface = name, .iface_major = BP_ABI_MAJOR, .iface_minor = BP_ABI_MINOR,      \
             .supports = base_supports, .workspace = base_workspace, .tensors = base_tensors}
#define DEV(slot) .slot = device_##slot
#define ROW(T, slot) .slot = T##_##slot

static const struct bp_device_ops device_table = {
    BASE(bp_device_ops, graph_destroy, "bp.device"),
    DEV(props), DEV(mem_info), DEV(alloc), DEV(free), DEV(copy), DEV(fill), DEV(stream_create), DEV(stream_destroy),
    DEV(stream_sync), DEV(event_create), DEV(event_destroy), DEV(event_record), DEV(event_wait),
    DEV(event_elapsed_us), DEV(graph_begin), DEV(graph_end), DEV(graph_launch), DEV(graph_destroy)};
static const struct bp_dense_ops dense_table = {
    BASE(bp_dense_ops, matmul, "bp.dense"),
    ROW(bp_dense_ops, prepare), ROW(bp_dense_ops, release), ROW(bp_dense_ops, embed), ROW(bp_dense_ops, rms),
    ROW(bp_dense_ops, layernorm), ROW(bp_dense_ops, rope), ROW(bp_dense_ops, silu_mul), ROW(bp_dense_ops, add),
    ROW(bp_dense_ops, argmax), ROW(bp_dense_ops, topk), ROW(bp_dense_ops, matmul)};
static const struct bp_quant_ops quant_table = {
    BASE(bp_quant_ops, dequantize, "bp.quant"),
    ROW(bp_quant_ops, format), ROW(bp_quant_ops, prepare), ROW(bp_quant_ops, release), ROW(bp_quant_ops, matmul),
    ROW(bp_quant_ops, dequantize)};
static const struct bp_moe_ops moe_table = {
    BASE(bp_moe_ops, run, "bp.moe"),
    ROW(bp_moe_ops, prepare), ROW(bp_moe_ops, release), ROW(bp_moe_ops, route), ROW(bp_moe_ops, run)};
static const struct bp_coll_ops coll_table = {
    BASE(bp_coll_ops, abort, "bp.coll"),
    .comm_create = coll_comm_create, .comm_destroy = coll_comm_destroy, ROW(bp_coll_ops, all_reduce),
    ROW(bp_coll_ops, all_gather), ROW(bp_coll_ops, broadcast), .barrier = coll_barrier,
    .async_error = coll_async_error, .abort = coll_abort};
static const struct bp_mla_common_ops common_table = {
    BASE(bp_mla_common_ops, merge, "bp.mla.common"),
    ROW(bp_mla_common_ops, layouts), ROW(bp_mla_common_ops, prepare), ROW(bp_mla_common_ops, release),
    ROW(bp_mla_common_ops, cache_write), ROW(bp_mla_common_ops, cache_gather), ROW(bp_mla_common_ops, expand),
    ROW(bp_mla_common_ops, absorb), ROW(bp_mla_common_ops, merge)};
static const struct bp_mla_prefill_ops prefill_table = {
    BASE(bp_mla_prefill_ops, run_context, "bp.mla.prefill"),
    ROW(bp_mla_prefill_ops, plan), ROW(bp_mla_prefill_ops, run), ROW(bp_mla_prefill_ops, run_context)};
static const struct bp_mla_decode_ops decode_table = {
    BASE(bp_mla_decode_ops, run, "bp.mla.decode"), ROW(bp_mla_decode_ops, plan), ROW(bp_mla_decode_ops, run)};
static const struct bp_mla_index_ops index_table = {
    BASE(bp_mla_index_ops, select, "bp.mla.index"),
    ROW(bp_mla_index_ops, layouts), ROW(bp_mla_index_ops, key_write), ROW(bp_mla_index_ops, select)};
// clang-format on

#define FITS(T) BP_STATIC_ASSERT(sizeof(struct T) <= BPI_MAX_SLOTS * sizeof(void *), #T)
FITS(bp_device_ops);
FITS(bp_dense_ops);
FITS(bp_quant_ops);
FITS(bp_moe_ops);
FITS(bp_coll_ops);
FITS(bp_mla_common_ops);
FITS(bp_mla_prefill_ops);
FITS(bp_mla_decode_ops);
FITS(bp_mla_index_ops);

const struct bp_op_base *bpi_relay_table(const char *iface)
{
    static const struct bp_op_base *const tables[] = {
        &device_table.base,  &dense_table.base,  &quant_table.base,
        &moe_table.base,     &coll_table.base,   &common_table.base,
        &prefill_table.base, &decode_table.base, &index_table.base};
    for (size_t i = 0; i < BPI_ARRAY_LEN(tables); ++i) {
        if (strcmp(tables[i]->iface, iface) == 0) return tables[i];
    }
    return NULL;
}
