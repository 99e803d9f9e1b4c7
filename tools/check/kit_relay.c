/* kit_relay.c - flattened ops: a table of relays, each of which calls the layer that owns its slot. Relays may hand
 * on copies of args and launch (enum kit_copy) that are gone when the call is over, so that a pointer that was kept points
 * to nothing. Threads: as the op below. SPDX-License-Identifier: MIT */
#include <string.h>

#include "kit_bench.h"
#include "kit_device.h"
#include "kit_guard.h"

enum { COPY_BYTES = 1024, WIPED = 0x6b };

#define SLOT(T, slot)                                                                              \
    ((offsetof(struct T, slot) - offsetof(struct bp_op_base, supports)) / sizeof(void *))
#define FLAT ((const struct kit_flat *)self)
#define VT(T, slot) ((const struct T *)(const void *)FLAT->layer[SLOT(T, slot)].vt)
#define SELF(T, slot) (FLAT->layer[SLOT(T, slot)].self)
#define PASS(T, slot, ...) VT(T, slot)->slot(SELF(T, slot), __VA_ARGS__)

/* Copies of a launch and of an args struct. */
struct copies {
    uint64_t launch[32], args[COPY_BYTES / 8];
    void *at[2]; /* the copies at guard pages, to be freed */
    const struct kit_flat *flat;
};

/* The copy that a call gets of a struct. */
static const void *copy_of(struct copies *c, int which, const void *from)
{
    static const uint32_t more[] = {0, 8, 0, 120};
    const struct bp_hdr *h = from;
    const size_t cap = which == 0 ? sizeof c->launch : sizeof c->args;
    if (h == NULL || h->size > cap) return from;
    if (c->flat->copy == KIT_COPY_WIPED) {
        uint64_t *to = which == 0 ? c->launch : c->args;
        memcpy(to, from, h->size);
        return to;
    }
    const uint32_t extra = more[(c->flat->turn + (uint32_t)which) % KIT_LEN(more)];
    unsigned char *p = kit_guard_alloc(h->size + extra, 8, KIT_AT_END, WIPED,
                                       which == 0 ? "struct bp_launch" : "struct args", c);
    if (p == NULL) return from;
    memcpy(p, from, h->size);
    ((struct bp_hdr *)(void *)p)->size = h->size + extra;
    kit_guard_protect(p, false);
    c->at[which] = p;
    return p;
}

static int32_t wiped(struct copies *c, int32_t rc)
{
    volatile unsigned char *p = (volatile unsigned char *)c->launch;
    for (size_t i = 0; i < sizeof c->launch + sizeof c->args; ++i) p[i] = WIPED;
    for (int i = 0; i < 2; ++i) (void)kit_guard_free(c->at[i]);
    return rc;
}

#define ON_DEVICE(T, slot, A, ...)                                                                 \
    if (FLAT->copy == KIT_COPY_DEVICE) {                                                           \
        struct kit_carried x = {.n_turns = 0};                                                     \
        struct bp_error own = BP_ERROR_INIT, *e = err != NULL ? err : &own;                        \
        int32_t rc = BP_OK;                                                                        \
        while (kit_turn_begin(FLAT->device, l, a, __VA_ARGS__, &x, &rc, e)) {                      \
            rc = PASS(T, slot, &x.launch, (const struct A *)(const void *)x.args, e);              \
            kit_turn_end(FLAT->device, &x, &rc, e);                                                \
        }                                                                                          \
        return rc;                                                                                 \
    }
#define RUN(T, slot, A, ...)                                                                       \
    static int32_t T##_##slot(void *self, const struct bp_launch *l, const struct A *a,            \
                              struct bp_error *err)                                                \
    {                                                                                              \
        struct copies c = {.flat = self};                                                          \
        ON_DEVICE(T, slot, A, __VA_ARGS__)                                                         \
        if (FLAT->copy == KIT_COPY_NONE) return PASS(T, slot, l, a, err);                          \
        ((struct kit_flat *)self)->turn++;                                                         \
        const struct bp_launch *l2 = copy_of(&c, 0, l);                                            \
        const struct A *a2 = copy_of(&c, 1, a);                                                    \
        return wiped(&c, PASS(T, slot, l2, a2, err));                                              \
    }
#define WEIGHTS(T, W)                                                                              \
    static int32_t T##_prepare(void *self, const struct W *w, void **out,                          \
                               struct bp_weight_info *info, struct bp_error *err)                  \
    {                                                                                              \
        return PASS(T, prepare, w, out, info, err);                                                \
    }                                                                                              \
    static void T##_release(void *self, void *handle)                                              \
    {                                                                                              \
        PASS(T, release, handle);                                                                  \
    }
#define LAYOUTS(T)                                                                                 \
    static int32_t T##_layouts(void *self, const struct bp_mla_problem *p, uint32_t i,             \
                               struct bp_kv_layout *out)                                           \
    {                                                                                              \
        return PASS(T, layouts, p, i, out);                                                        \
    }

static int32_t base_supports(void *self, const void *p, struct bp_verdict *v)
{
    return PASS(bp_op_base, supports, p, v);
}
static int32_t base_workspace(void *self, const void *p, struct bp_workspace *w,
                              struct bp_error *err)
{
    return PASS(bp_op_base, workspace, p, w, err);
}
static int32_t base_tensors(void *self, uint32_t slot, const void *args, struct bp_tensor *t,
                            uint32_t *n)
{
    return PASS(bp_op_base, tensors, slot, args, t, n);
}

WEIGHTS(bp_dense_ops, bp_raw)
RUN(bp_dense_ops, embed, bp_dense_embed_args, KIT_META_NONE, false, false)
RUN(bp_dense_ops, rms, bp_dense_rms_args, KIT_META_NONE, false, false)
RUN(bp_dense_ops, layernorm, bp_dense_layernorm_args, KIT_META_NONE, false, false)
RUN(bp_dense_ops, rope, bp_dense_rope_args, KIT_META_NONE, false, false)
RUN(bp_dense_ops, silu_mul, bp_dense_pair_args, KIT_META_NONE, false, false)
RUN(bp_dense_ops, add, bp_dense_pair_args, KIT_META_NONE, false, false)
RUN(bp_dense_ops, argmax, bp_dense_topk_args, KIT_META_NONE, false, false)
RUN(bp_dense_ops, topk, bp_dense_topk_args, KIT_META_NONE, false, false)
RUN(bp_dense_ops, matmul, bp_dense_matmul_args, KIT_META_NONE, false, false)

static int32_t bp_quant_ops_format(void *self, uint32_t i, uint32_t *out)
{
    return PASS(bp_quant_ops, format, i, out);
}
WEIGHTS(bp_quant_ops, bp_raw)
RUN(bp_quant_ops, matmul, bp_quant_matmul_args, KIT_META_NONE, false, true)
RUN(bp_quant_ops, dequantize, bp_quant_dequantize_args, KIT_META_NONE, false, false)

LAYOUTS(bp_mla_common_ops)
WEIGHTS(bp_mla_common_ops, bp_mla_weights)
RUN(bp_mla_common_ops, cache_write, bp_mla_cache_write_args, KIT_META_COMMON, false, false)
RUN(bp_mla_common_ops, cache_gather, bp_mla_cache_gather_args, KIT_META_PREFILL, false, false)
RUN(bp_mla_common_ops, expand, bp_mla_expand_args, KIT_META_NONE, false, false)
RUN(bp_mla_common_ops, absorb, bp_mla_absorb_args, KIT_META_NONE, false, false)
RUN(bp_mla_common_ops, merge, bp_mla_merge_args, KIT_META_NONE, false, false)

RUN(bp_mla_prefill_ops, plan, bp_mla_prefill_meta, KIT_META_PREFILL, true, false)
RUN(bp_mla_prefill_ops, run, bp_mla_prefill_args, KIT_META_PREFILL, false, false)
RUN(bp_mla_prefill_ops, run_context, bp_mla_prefill_args, KIT_META_PREFILL, false, false)

RUN(bp_mla_decode_ops, plan, bp_mla_decode_meta, KIT_META_DECODE, true, false)
RUN(bp_mla_decode_ops, run, bp_mla_decode_args, KIT_META_DECODE, false, false)

LAYOUTS(bp_mla_index_ops)
RUN(bp_mla_index_ops, key_write, bp_mla_key_write_args, KIT_META_COMMON, false, false)
RUN(bp_mla_index_ops, select, bp_mla_select_args, KIT_META_DECODE, false, false)

WEIGHTS(bp_moe_ops, bp_moe_weights)
RUN(bp_moe_ops, route, bp_moe_route_args, KIT_META_NONE, false, false)
RUN(bp_moe_ops, run, bp_moe_run_args, KIT_META_NONE, false, false)

static int32_t bp_coll_ops_comm_create(void *self, const struct bp_coll_setup *s, void **out,
                                       struct bp_error *err)
{
    return PASS(bp_coll_ops, comm_create, s, out, err);
}
static void bp_coll_ops_comm_destroy(void *self, void *comm)
{
    PASS(bp_coll_ops, comm_destroy, comm);
}
RUN(bp_coll_ops, all_reduce, bp_coll_args, KIT_META_NONE, false, false)
RUN(bp_coll_ops, all_gather, bp_coll_args, KIT_META_NONE, false, false)
RUN(bp_coll_ops, broadcast, bp_coll_args, KIT_META_NONE, false, false)
static int32_t bp_coll_ops_barrier(void *self, const struct bp_launch *l, void *comm,
                                   struct bp_error *err)
{
    return PASS(bp_coll_ops, barrier, l, comm, err);
}
static int32_t bp_coll_ops_async_error(void *self, void *comm, struct bp_error *err)
{
    return PASS(bp_coll_ops, async_error, comm, err);
}
static void bp_coll_ops_abort(void *self, void *comm)
{
    PASS(bp_coll_ops, abort, comm);
}

#define BASE(T, name, last)                                                                        \
    .base = {BP_HDR(struct T, last), name, 0, 1, base_supports, base_workspace, base_tensors}
static const struct bp_dense_ops dense_relays = {BASE(bp_dense_ops, "bp.dense", matmul),
                                                 .prepare = bp_dense_ops_prepare,
                                                 .release = bp_dense_ops_release,
                                                 .embed = bp_dense_ops_embed,
                                                 .rms = bp_dense_ops_rms,
                                                 .layernorm = bp_dense_ops_layernorm,
                                                 .rope = bp_dense_ops_rope,
                                                 .silu_mul = bp_dense_ops_silu_mul,
                                                 .add = bp_dense_ops_add,
                                                 .argmax = bp_dense_ops_argmax,
                                                 .topk = bp_dense_ops_topk,
                                                 .matmul = bp_dense_ops_matmul};
static const struct bp_quant_ops quant_relays = {BASE(bp_quant_ops, "bp.quant", dequantize),
                                                 .format = bp_quant_ops_format,
                                                 .prepare = bp_quant_ops_prepare,
                                                 .release = bp_quant_ops_release,
                                                 .matmul = bp_quant_ops_matmul,
                                                 .dequantize = bp_quant_ops_dequantize};
static const struct bp_mla_common_ops common_relays = {
    BASE(bp_mla_common_ops, "bp.mla.common", merge),
    .layouts = bp_mla_common_ops_layouts,
    .prepare = bp_mla_common_ops_prepare,
    .release = bp_mla_common_ops_release,
    .cache_write = bp_mla_common_ops_cache_write,
    .cache_gather = bp_mla_common_ops_cache_gather,
    .expand = bp_mla_common_ops_expand,
    .absorb = bp_mla_common_ops_absorb,
    .merge = bp_mla_common_ops_merge};
static const struct bp_mla_prefill_ops prefill_relays = {
    BASE(bp_mla_prefill_ops, "bp.mla.prefill", run_context), .plan = bp_mla_prefill_ops_plan,
    .run = bp_mla_prefill_ops_run, .run_context = bp_mla_prefill_ops_run_context};
static const struct bp_mla_decode_ops decode_relays = {
    BASE(bp_mla_decode_ops, "bp.mla.decode", run), .plan = bp_mla_decode_ops_plan,
    .run = bp_mla_decode_ops_run};
static const struct bp_mla_index_ops index_relays = {
    BASE(bp_mla_index_ops, "bp.mla.index", select), .layouts = bp_mla_index_ops_layouts,
    .key_write = bp_mla_index_ops_key_write, .select = bp_mla_index_ops_select};
static const struct bp_moe_ops moe_relays = {
    BASE(bp_moe_ops, "bp.moe", run), .prepare = bp_moe_ops_prepare, .release = bp_moe_ops_release,
    .route = bp_moe_ops_route, .run = bp_moe_ops_run};
static const struct bp_coll_ops coll_relays = {BASE(bp_coll_ops, "bp.coll", abort),
                                               .comm_create = bp_coll_ops_comm_create,
                                               .comm_destroy = bp_coll_ops_comm_destroy,
                                               .all_reduce = bp_coll_ops_all_reduce,
                                               .all_gather = bp_coll_ops_all_gather,
                                               .broadcast = bp_coll_ops_broadcast,
                                               .barrier = bp_coll_ops_barrier,
                                               .async_error = bp_coll_ops_async_error,
                                               .abort = bp_coll_ops_abort};

static const struct bp_op_base *relays_of(const char *iface)
{
    static const struct bp_op_base *const all[] = {
        &dense_relays.base,  &quant_relays.base, &common_relays.base, &prefill_relays.base,
        &decode_relays.base, &index_relays.base, &moe_relays.base,    &coll_relays.base};
    for (size_t i = 0; i < KIT_LEN(all); ++i) {
        if (strcmp(all[i]->iface, iface) == 0) return all[i];
    }
    return NULL;
}

/* Does a table reach slot i with a function? */
static bool has_slot(const struct bp_op_base *vt, size_t at)
{
    void *fn = NULL;
    if (vt->h.size < at + sizeof fn) return false;
    memcpy(&fn, (const unsigned char *)vt + at, sizeof fn);
    return fn != NULL;
}

bool kit_flatten(struct kit_flat *f, const char *iface, const struct bp_op_ref *outer,
                 const struct bp_op_ref *inner, uint32_t copy)
{
    const struct bp_op_base *relays = relays_of(iface);
    const size_t first = offsetof(struct bp_op_base, supports);
    memset(f, 0, sizeof *f);
    if (relays == NULL || relays->h.size > sizeof f->table) return false;
    memcpy(f->table, relays, relays->h.size);
    f->copy = copy;
    for (size_t i = 0; first + i * sizeof(void *) < relays->h.size; ++i) {
        const size_t at = first + i * sizeof(void *);
        if (has_slot(outer->vt, at))
            f->layer[i] = *outer;
        else if (inner != NULL && has_slot(inner->vt, at))
            f->layer[i] = *inner;
        else
            memset((unsigned char *)f->table + at, 0, sizeof(void *)); /* nobody serves it */
    }
    f->op = (struct bp_op_ref){(const struct bp_op_base *)(const void *)f->table, f};
    return true;
}
