/* kit_bench.c - see kit_bench.h. SPDX-License-Identifier: MIT */
#include "kit_bench.h"

#include "kit_device.h"

#include <string.h>

/* Which function of a table an op of a problem needs. Interfaces that are not listed are served whole or not at all. */
enum { EVERY_OP = -1 };
struct need {
    const char *iface;
    int32_t op;
    uint32_t offset;
    const char *name;
};
// clang-format off
#define NEED(iface, T, op, fn) {iface, op, (uint32_t)offsetof(struct T, fn), #fn}
static const struct need needs[] = {
#define F(op, fn) NEED("bp.dense", bp_dense_ops, BP_DENSE_OP_##op, fn)
    F(EMBED, prepare), F(EMBED, release), F(EMBED, embed), F(RMS, rms), F(LAYERNORM, layernorm), F(ROPE, rope),
    F(SILU_MUL, silu_mul), F(ADD, add), F(ARGMAX, argmax), F(TOPK, topk), F(MATMUL, matmul),
#undef F
#define F(op, fn) NEED("bp.quant", bp_quant_ops, op, fn)
    F(EVERY_OP, format), F(EVERY_OP, prepare), F(EVERY_OP, release), F(BP_QUANT_OP_MATMUL, matmul),
    F(BP_QUANT_OP_DEQUANTIZE, dequantize),
#undef F
#define F(op, fn) NEED("bp.moe", bp_moe_ops, BP_MOE_OP_##op, fn)
    F(ROUTE, route), F(RUN, prepare), F(RUN, release), F(RUN, run),
#undef F
};
// clang-format on

/* These structs keep the op right behind the header. */
BP_STATIC_ASSERT(offsetof(struct bp_dense_problem, op) == sizeof(struct bp_hdr),
                 "op of a dense problem");
BP_STATIC_ASSERT(offsetof(struct bp_quant_problem, op) == sizeof(struct bp_hdr),
                 "op of a quant problem");
BP_STATIC_ASSERT(offsetof(struct bp_moe_problem, op) == sizeof(struct bp_hdr),
                 "op of a moe problem");

static bool has_function(const struct bp_op_base *vt, size_t at)
{
    void *fn;
    if (at + sizeof fn > vt->h.size) return false;
    memcpy(&fn, (const unsigned char *)vt + at, sizeof fn);
    return fn != NULL;
}

static bool by_op(const char *iface)
{
    for (size_t i = 0; i < KIT_LEN(needs); ++i) {
        if (strcmp(needs[i].iface, iface) == 0) return true;
    }
    return false;
}

const char *kit_missing_slot(const struct bp_op_ref *op, const char *iface, const void *problem)
{
    uint32_t asked;
    memcpy(&asked, (const unsigned char *)problem + sizeof(struct bp_hdr), sizeof asked);
    for (size_t i = 0; i < KIT_LEN(needs); ++i) {
        const struct need *n = &needs[i];
        if (strcmp(n->iface, iface) != 0 || (n->op != EVERY_OP && (uint32_t)n->op != asked))
            continue;
        if (!has_function(op->vt, n->offset)) return n->name;
    }
    return NULL;
}

/* Tables must reach the functions of every op, those of interfaces with several ops the first three; a wrapper's need not.
 * What a problem needs besides is looked for when supports() says yes to it. */
static bool whole_table(struct kit_bench *b)
{
    const struct kit_iface *f = kit_iface_of(b->iface);
    const struct bp_op_base *vt = b->own.vt;
    const size_t first = offsetof(struct bp_op_base, supports);
    if (vt->iface == NULL || strcmp(vt->iface, b->iface) != 0)
        return kit_fail(b->kit, "3.7", b->iface, "op table", NULL,
                        "the table says it is of interface `%s`",
                        vt->iface != NULL ? vt->iface : "(null)");
    if (b->subject.desc->kind == BP_KIND_WRAPPER) return true;
    const size_t end = by_op(b->iface) ? BP_END(struct bp_op_base, tensors) : f->table_bytes;
    if (vt->h.size < end)
        return kit_fail(b->kit, "3.7", b->iface, "op table", NULL,
                        "the table has %u bytes, the interface needs %zu", vt->h.size, end);
    for (size_t at = first; at < end; at += sizeof(void *)) {
        if (!has_function(vt, at))
            return kit_fail(b->kit, "3.7", b->iface, "op table", NULL, "slot %zu is NULL",
                            (at - first) / sizeof(void *));
    }
    return true;
}

bool kit_bench_open(struct kit *k, struct kit_bench *b, const char *iface, uint32_t copy)
{
    memset(b, 0, sizeof *b);
    b->kit = k;
    b->iface = iface;
    char why[300];
    if (!kit_device_open(k, why, sizeof why))
        return kit_fail(k, "6.1", iface, "bp.device", NULL, "the device cannot be opened again: %s",
                        why);
    if (!kit_open_subject(k, &b->subject)) return false;
    if (!kit_open_reference(k, &b->reference)) {
        kit_bench_close(b);
        return false;
    }
    const bool wrapper = b->subject.desc->kind == BP_KIND_WRAPPER;
    if (!kit_make_op(k, &b->reference, iface, kit_host_device(), NULL, &b->ref_op) ||
        !kit_make_op(k, &b->subject, iface, wrapper ? kit_host_device() : kit_device_of(k),
                     wrapper ? &b->ref_op : NULL, &b->own) ||
        !whole_table(b)) {
        kit_bench_close(b);
        return false;
    }
    b->op = b->own;
    b->bare = wrapper ? b->ref_op : b->own;
    if (wrapper) {
        if (!kit_flatten(&b->flat, iface, &b->own, &b->ref_op, KIT_COPY_NONE)) {
            kit_note(k, iface, "wrappers of this interface are not checked");
            kit_bench_close(b);
            return false;
        }
        b->op = b->flat.op;
    }
    if (!wrapper && k->device != NULL && strcmp(iface, "bp.device") != 0) {
        if (!kit_flatten(&b->carry, iface, &b->own, NULL, KIT_COPY_DEVICE)) {
            kit_bench_close(b);
            return false;
        }
        b->carry.device = k->device;
        b->op = b->bare = b->carry.op;
    }
    if (copy != KIT_COPY_NONE) {
        if (!kit_flatten(&b->pass, iface, &b->op, NULL, copy)) {
            kit_bench_close(b);
            return false;
        }
        b->op = b->pass.op;
    }
    return true;
}

void kit_bench_close(struct kit_bench *b)
{
    kit_drop_op(b->kit, &b->subject, &b->own);
    kit_drop_op(b->kit, &b->reference, &b->ref_op);
    if (b->subject.open) {
        kit_close(b->kit, &b->subject);
        kit_host_done(&b->subject.host);
    }
    if (b->reference.open) {
        kit_close(b->kit, &b->reference);
        kit_host_done(&b->reference.host);
    }
    b->own = b->ref_op = (struct bp_op_ref){NULL, NULL};
}
