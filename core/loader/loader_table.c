/* loader_table.c - what the ABI says about op tables: sizes, versions, which function an op of a problem needs.
 * A plugin that says yes and has no function for it must be found before the first step, not in it.
 * Threads: pure. SPDX-License-Identifier: MIT */
#include "loader/loader_priv.h"

#include <string.h>
#include "backplane/slot_coll.h"
#include "backplane/slot_dense.h"
#include "backplane/slot_device.h"
#include "backplane/slot_mla.h"
#include "backplane/slot_moe.h"
#include "backplane/slot_quant.h"

enum { ANY_OP = -1 };

/* A function of a table and the op of the problem that needs it. */
struct need {
    const char *iface;
    int32_t op; /* ANY_OP: every problem does */
    uint32_t offset;
    const char *name;
};

// clang-format off
#define NEED(iface, T, op, fn) {iface, op, (uint32_t)offsetof(struct T, fn), #fn}
static const struct need needs[] = {
#define F(fn) NEED("bp.device", bp_device_ops, ANY_OP, fn)
    F(props), F(mem_info), F(alloc), F(free), F(copy), F(fill), F(stream_create), F(stream_destroy), F(stream_sync),
    F(event_create), F(event_destroy), F(event_record), F(event_wait), F(event_elapsed_us), F(graph_begin),
    F(graph_end), F(graph_launch), F(graph_destroy),
#undef F
#define F(op, fn) NEED("bp.dense", bp_dense_ops, BP_DENSE_OP_##op, fn)
    F(EMBED, prepare), F(EMBED, release), F(EMBED, embed), F(RMS, rms), F(LAYERNORM, layernorm), F(ROPE, rope),
    F(SILU_MUL, silu_mul), F(ADD, add), F(ARGMAX, argmax), F(TOPK, topk), F(MATMUL, matmul),
#undef F
#define F(op, fn) NEED("bp.quant", bp_quant_ops, op, fn)
    F(ANY_OP, format), F(ANY_OP, prepare), F(ANY_OP, release), F(BP_QUANT_OP_MATMUL, matmul),
    F(BP_QUANT_OP_DEQUANTIZE, dequantize),
#undef F
#define F(op, fn) NEED("bp.moe", bp_moe_ops, BP_MOE_OP_##op, fn)
    F(ROUTE, route), F(RUN, prepare), F(RUN, release), F(RUN, run),
#undef F
#define F(fn) NEED("bp.coll", bp_coll_ops, ANY_OP, fn)
    F(comm_create), F(comm_destroy), F(all_reduce), F(all_gather), F(broadcast), F(barrier), F(async_error), F(abort),
#undef F
#define F(fn) NEED("bp.mla.common", bp_mla_common_ops, ANY_OP, fn)
    F(layouts), F(prepare), F(release), F(cache_write), F(cache_gather), F(expand), F(absorb), F(merge),
#undef F
#define F(fn) NEED("bp.mla.prefill", bp_mla_prefill_ops, ANY_OP, fn)
    F(plan), F(run), F(run_context),
#undef F
#define F(fn) NEED("bp.mla.decode", bp_mla_decode_ops, ANY_OP, fn)
    F(plan), F(run),
#undef F
#define F(fn) NEED("bp.mla.index", bp_mla_index_ops, ANY_OP, fn)
    F(layouts), F(key_write), F(select),
#undef F
};
// clang-format on

/* The three slots with several ops keep the op right behind the header. */
BP_STATIC_ASSERT(offsetof(struct bp_dense_problem, op) == sizeof(struct bp_hdr),
                 "op of a dense problem");
BP_STATIC_ASSERT(offsetof(struct bp_quant_problem, op) == sizeof(struct bp_hdr),
                 "op of a quant problem");
BP_STATIC_ASSERT(offsetof(struct bp_moe_problem, op) == sizeof(struct bp_hdr),
                 "op of a moe problem");

bool bpi_table_has(const struct bp_op_base *vt, uint32_t offset)
{
    uintptr_t address;
    if ((uint64_t)offset + sizeof address > vt->h.size) return false;
    memcpy(&address, (const unsigned char *)vt + offset, sizeof address);
    return address != 0;
}

int32_t bpi_table_check(const struct bp_op_base *vt, const char *iface, const char *provider,
                        struct bp_error *err)
{
    if (vt == NULL || vt->h.size < BP_END(struct bp_op_base, tensors)) {
        return bpi_fail(err, BP_E_ABI, "loader", iface,
                        "the op table of %s has %u bytes; at least %u were expected", provider,
                        vt != NULL ? vt->h.size : 0, BP_END(struct bp_op_base, tensors));
    }
    if (vt->iface == NULL || strcmp(vt->iface, iface) != 0 || vt->iface_major != BP_ABI_MAJOR ||
        vt->iface_minor != BP_ABI_MINOR) {
        return bpi_fail(err, BP_E_ABI, "loader", iface,
                        "the op table of %s calls itself %s %u.%u; %s %d.%d was expected", provider,
                        vt->iface != NULL ? vt->iface : "nothing", vt->iface_major, vt->iface_minor,
                        iface, BP_ABI_MAJOR, BP_ABI_MINOR);
    }
    if (vt->supports == NULL || vt->workspace == NULL || vt->tensors == NULL) {
        return bpi_fail(err, BP_E_ABI, "loader", iface,
                        "the op table of %s lacks %s, which every table must have", provider,
                        vt->supports == NULL    ? "supports"
                        : vt->workspace == NULL ? "workspace"
                                                : "tensors");
    }
    return BP_OK;
}

const char *bpi_table_missing(const struct bp_op_base *vt, const void *problem)
{
    const struct bp_hdr *h = problem;
    uint32_t op = UINT32_MAX;
    if (h->size >= sizeof *h + sizeof op)
        memcpy(&op, (const unsigned char *)problem + sizeof *h, sizeof op);
    for (size_t i = 0; i < BPI_ARRAY_LEN(needs); ++i) {
        const struct need *n = &needs[i];
        if (strcmp(n->iface, vt->iface) != 0) continue;
        if (n->op != ANY_OP && (uint32_t)n->op != op) continue;
        if (!bpi_table_has(vt, n->offset)) return n->name;
    }
    return NULL;
}
