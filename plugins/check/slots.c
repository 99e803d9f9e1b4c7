/* slots.c - the op tables of the check wrapper: every slot that works on tensors, and workspace() for its own memory.
 * All other slots pass through. Threads: as the wrapped slot. SPDX-License-Identifier: MIT */
#include "check.h"

int32_t check_run(struct check_op *o, const struct check_slot *slot, const struct bp_launch *l,
                  const void *args, struct bp_error *err)
{
    struct check_call c;
    struct bp_text t;
    memset(&c, 0, sizeof c);
    c.o = o;
    c.slot = slot;
    c.l = l;
    c.args = args;
    c.err = err;
    c.n_port = CHECK_MAX_PORTS;
    const int32_t listed = o->inner.vt->tensors(o->inner.self, slot->op, args, c.port, &c.n_port);
    if (listed != BP_OK || c.n_port > CHECK_MAX_PORTS) {
        const int32_t rc = check_fail(&c, BP_E_INTERNAL, &t);
        bp_text_add(&t, "the op does not list its tensors (status ");
        bp_text_i64(&t, listed);
        bp_text_add(&t, "), so there is nothing to check; take check out of this line of [wrap]");
        return rc;
    }
    o->n_calls++;
    check_scan_before(&c);
    BP_TRY(check_guarded_call(&c));
    return check_scan_after(&c);
}

/* What the inner op asks for, and room for guarded outputs behind it. Both only grow: the engine takes the largest of all
 * answers, and the sum of two maxima may be larger than any single one. */
static int32_t workspace(void *self, const void *problem, struct bp_workspace *out,
                         struct bp_error *err)
{
    struct check_op *o = self;
    BP_TRY(o->inner.vt->workspace(o->inner.self, problem, out, err));
    if (!o->plugin->guards) return BP_OK;
    const uint64_t guard = check_guard_bytes(o->iface, problem);
    const uint64_t inner = out->scratch_bytes;
    if (guard > o->guard_bytes) o->guard_bytes = guard;
    if (inner > UINT64_MAX / 2 || o->guard_bytes > UINT64_MAX / 4)
        return BP_OK; /* nobody gives that */
    if (inner > o->inner_bytes) o->inner_bytes = (inner + 63) & ~UINT64_C(63);
    out->scratch_bytes = o->inner_bytes + o->guard_bytes + 64;
    return BP_OK;
}

#define OUT(args, field) ((uint32_t)offsetof(struct args, field))

/* One slot: how the inner function is called, what is known of the slot, and the slot itself. */
#define CHECKED(T, fn, args_t, op_, extent_, text, n_out_, ...)                                    \
    static int32_t call_##T##_##fn(const struct check_op *o, const struct bp_launch *l,            \
                                   const void *args, struct bp_error *err)                         \
    {                                                                                              \
        return ((const struct T *)o->inner.vt)                                                     \
            ->fn(o->inner.self, l, (const struct args_t *)args, err);                              \
    }                                                                                              \
    static int32_t T##_##fn(void *self, const struct bp_launch *l, const struct args_t *a,         \
                            struct bp_error *err)                                                  \
    {                                                                                              \
        static const struct check_slot slot = {text,   op_,          extent_, call_##T##_##fn,     \
                                               n_out_, {__VA_ARGS__}};                             \
        return check_run(self, &slot, l, a, err);                                                  \
    }

// clang-format off
CHECKED(bp_dense_ops, embed, bp_dense_embed_args, BP_DENSE_OP_EMBED, CHECK_ALL, "bp.dense.embed",
        1, OUT(bp_dense_embed_args, y))
CHECKED(bp_dense_ops, rms, bp_dense_rms_args, BP_DENSE_OP_RMS, CHECK_ALL, "bp.dense.rms",
        1, OUT(bp_dense_rms_args, y))
CHECKED(bp_dense_ops, layernorm, bp_dense_layernorm_args, BP_DENSE_OP_LAYERNORM, CHECK_ALL, "bp.dense.layernorm",
        1, OUT(bp_dense_layernorm_args, y))
CHECKED(bp_dense_ops, rope, bp_dense_rope_args, BP_DENSE_OP_ROPE, CHECK_ALL, "bp.dense.rope",
        1, OUT(bp_dense_rope_args, y))
CHECKED(bp_dense_ops, silu_mul, bp_dense_pair_args, BP_DENSE_OP_SILU_MUL, CHECK_ALL, "bp.dense.silu_mul",
        1, OUT(bp_dense_pair_args, y))
CHECKED(bp_dense_ops, add, bp_dense_pair_args, BP_DENSE_OP_ADD, CHECK_ALL, "bp.dense.add",
        1, OUT(bp_dense_pair_args, y))
CHECKED(bp_dense_ops, argmax, bp_dense_topk_args, BP_DENSE_OP_ARGMAX, CHECK_PICKS, "bp.dense.argmax",
        2, OUT(bp_dense_topk_args, values), OUT(bp_dense_topk_args, ids))
CHECKED(bp_dense_ops, topk, bp_dense_topk_args, BP_DENSE_OP_TOPK, CHECK_PICKS, "bp.dense.topk",
        2, OUT(bp_dense_topk_args, values), OUT(bp_dense_topk_args, ids))
CHECKED(bp_dense_ops, matmul, bp_dense_matmul_args, BP_DENSE_OP_MATMUL, CHECK_ALL, "bp.dense.matmul",
        1, OUT(bp_dense_matmul_args, c))

/* The products of a matmul are found through its array. */
CHECKED(bp_quant_ops, matmul, bp_quant_matmul_args, BP_QUANT_OP_MATMUL, CHECK_ALL, "bp.quant.matmul", 0, 0)
CHECKED(bp_quant_ops, dequantize, bp_quant_dequantize_args, BP_QUANT_OP_DEQUANTIZE, CHECK_ALL, "bp.quant.dequantize",
        1, OUT(bp_quant_dequantize_args, y))

CHECKED(bp_moe_ops, route, bp_moe_route_args, BP_MOE_OP_ROUTE, CHECK_ALL, "bp.moe.route",
        2, OUT(bp_moe_route_args, ids), OUT(bp_moe_route_args, weights))
CHECKED(bp_moe_ops, run, bp_moe_run_args, BP_MOE_OP_RUN, CHECK_ALL, "bp.moe.run", 1, OUT(bp_moe_run_args, y))

/* Ranks exchange their own memory: what a collective writes to stays where it is. */
CHECKED(bp_coll_ops, all_reduce, bp_coll_args, BP_COLL_OP_ALL_REDUCE, CHECK_ALL, "bp.coll.all_reduce", 0, 0)
CHECKED(bp_coll_ops, all_gather, bp_coll_args, BP_COLL_OP_ALL_GATHER, CHECK_ALL, "bp.coll.all_gather", 0, 0)
CHECKED(bp_coll_ops, broadcast, bp_coll_args, BP_COLL_OP_BROADCAST, CHECK_ALL, "bp.coll.broadcast", 0, 0)

CHECKED(bp_mla_common_ops, cache_write, bp_mla_cache_write_args, BP_MLA_OP_CACHE_WRITE, CHECK_ALL,
        "bp.mla.common.cache_write", 0, 0)
CHECKED(bp_mla_common_ops, cache_gather, bp_mla_cache_gather_args, BP_MLA_OP_CACHE_GATHER, CHECK_ALL,
        "bp.mla.common.cache_gather", 2, OUT(bp_mla_cache_gather_args, c), OUT(bp_mla_cache_gather_args, k_pe))
CHECKED(bp_mla_common_ops, expand, bp_mla_expand_args, BP_MLA_OP_EXPAND, CHECK_ALL, "bp.mla.common.expand",
        2, OUT(bp_mla_expand_args, k), OUT(bp_mla_expand_args, v))
CHECKED(bp_mla_common_ops, absorb, bp_mla_absorb_args, BP_MLA_OP_ABSORB, CHECK_ALL, "bp.mla.common.absorb",
        1, OUT(bp_mla_absorb_args, y))
CHECKED(bp_mla_common_ops, merge, bp_mla_merge_args, BP_MLA_OP_MERGE, CHECK_ALL, "bp.mla.common.merge", 0, 0)

CHECKED(bp_mla_prefill_ops, run, bp_mla_prefill_args, BP_MLA_PREFILL_OP_RUN, CHECK_ALL, "bp.mla.prefill.run",
        2, OUT(bp_mla_prefill_args, out), OUT(bp_mla_prefill_args, lse))
CHECKED(bp_mla_prefill_ops, run_context, bp_mla_prefill_args, BP_MLA_PREFILL_OP_RUN_CONTEXT, CHECK_ALL,
        "bp.mla.prefill.run_context", 2, OUT(bp_mla_prefill_args, out), OUT(bp_mla_prefill_args, lse))

CHECKED(bp_mla_decode_ops, run, bp_mla_decode_args, BP_MLA_DECODE_OP_RUN, CHECK_DECODE_ROWS, "bp.mla.decode.run",
        2, OUT(bp_mla_decode_args, out), OUT(bp_mla_decode_args, lse))

CHECKED(bp_mla_index_ops, key_write, bp_mla_key_write_args, BP_MLA_INDEX_OP_KEY_WRITE, CHECK_ALL,
        "bp.mla.index.key_write", 0, 0)
CHECKED(bp_mla_index_ops, select, bp_mla_select_args, BP_MLA_INDEX_OP_SELECT, CHECK_DECODE_ROWS, "bp.mla.index.select",
        3, OUT(bp_mla_select_args, idx), OUT(bp_mla_select_args, idx_len), OUT(bp_mla_select_args, scores))

/* ---- tables ---- */

#define BASE(T, last, iface) .base = BP_OP_BASE(struct T, last, iface, NULL, workspace, NULL)
#define F(T, fn) .fn = T##_##fn

/* Memory and streams: no tensors to look at. */
static const struct bp_device_ops device_table = {
    .base = BP_OP_BASE(struct bp_device_ops, graph_destroy, "bp.device", NULL, NULL, NULL)};
static const struct bp_dense_ops dense_table = {
    BASE(bp_dense_ops, matmul, "bp.dense"), F(bp_dense_ops, embed), F(bp_dense_ops, rms), F(bp_dense_ops, layernorm),
    F(bp_dense_ops, rope), F(bp_dense_ops, silu_mul), F(bp_dense_ops, add), F(bp_dense_ops, argmax),
    F(bp_dense_ops, topk), F(bp_dense_ops, matmul)};
static const struct bp_quant_ops quant_table = {
    BASE(bp_quant_ops, dequantize, "bp.quant"), F(bp_quant_ops, matmul), F(bp_quant_ops, dequantize)};
static const struct bp_moe_ops moe_table = {
    BASE(bp_moe_ops, run, "bp.moe"), F(bp_moe_ops, route), F(bp_moe_ops, run)};
static const struct bp_coll_ops coll_table = {
    BASE(bp_coll_ops, abort, "bp.coll"), F(bp_coll_ops, all_reduce), F(bp_coll_ops, all_gather),
    F(bp_coll_ops, broadcast)};
static const struct bp_mla_common_ops common_table = {
    BASE(bp_mla_common_ops, merge, "bp.mla.common"), F(bp_mla_common_ops, cache_write),
    F(bp_mla_common_ops, cache_gather), F(bp_mla_common_ops, expand), F(bp_mla_common_ops, absorb),
    F(bp_mla_common_ops, merge)};
static const struct bp_mla_prefill_ops prefill_table = {
    BASE(bp_mla_prefill_ops, run_context, "bp.mla.prefill"), F(bp_mla_prefill_ops, run),
    F(bp_mla_prefill_ops, run_context)};
static const struct bp_mla_decode_ops decode_table = {
    BASE(bp_mla_decode_ops, run, "bp.mla.decode"), F(bp_mla_decode_ops, run)};
static const struct bp_mla_index_ops index_table = {
    BASE(bp_mla_index_ops, select, "bp.mla.index"), F(bp_mla_index_ops, key_write), F(bp_mla_index_ops, select)};
// clang-format on

const struct bp_op_base *check_table(const char *iface)
{
    static const struct bp_op_base *const tables[] = {
        &device_table.base,  &dense_table.base,  &quant_table.base,
        &moe_table.base,     &coll_table.base,   &common_table.base,
        &prefill_table.base, &decode_table.base, &index_table.base};
    for (uint32_t i = 0; i < BP_LEN(tables); ++i) {
        if (strcmp(tables[i]->iface, iface) == 0) return tables[i];
    }
    return NULL;
}
