/* sdk_ports.h - what tensors() answers: a list builder, and the finished function for every interface of slot_*.h, to be
 * put into an op table as it is. Part of sdk.h.
 * The ports of an op are fixed by its slot header, names included, so nobody needs to write these lists again.
 * Header only, C11 and C++17. Threads: any. SPDX-License-Identifier: MIT */
#ifndef BP_SDK_PORTS_H
#define BP_SDK_PORTS_H

#include "backplane/slot_coll.h"
#include "backplane/slot_dense.h"
#include "backplane/slot_device.h"
#include "backplane/slot_mla.h"
#include "backplane/slot_moe.h"
#include "backplane/slot_quant.h"

BP_EXTERN_C_BEGIN

/* A list of ports under construction: counts all, stores as many as the caller has room for. */
struct bp_ports {
    struct bp_tensor *t;
    uint32_t cap, n;
};

/* bp_ports_begin - starts the answer in t, whose capacity is *n. */
static inline struct bp_ports bp_ports_begin(struct bp_tensor *t, const uint32_t *n)
{
    struct bp_ports list;
    list.t = t;
    list.cap = t != NULL ? *n : 0;
    list.n = 0;
    return list;
}

/* bp_ports_add - appends a tensor under its port's name (a static string). access: enum bp_access. */
static inline void bp_ports_add(struct bp_ports *list, const struct bp_tensor *tensor, const char *name, uint32_t access)
{
    const uint32_t at = list->n++;
    if (at >= list->cap) return;
    list->t[at] = *tensor;
    list->t[at].name = name;
    list->t[at].access = access;
}

/* bp_ports_add_given - the same for an optional port: only when it was given. */
static inline void bp_ports_add_given(struct bp_ports *list, const struct bp_tensor *tensor, const char *name,
                                      uint32_t access)
{
    if (tensor->data != NULL) bp_ports_add(list, tensor, name, access);
}

/* bp_ports_done - *n = ports of the call, stored or not. Returns BP_OK. */
static inline int32_t bp_ports_done(const struct bp_ports *list, uint32_t *n)
{
    *n = list->n;
    return BP_OK;
}

/* bp_device_tensors - tensors() of "bp.device": lists nothing. */
static inline int32_t bp_device_tensors(void *self, uint32_t slot, const void *args, struct bp_tensor *t, uint32_t *n)
{
    (void)self, (void)slot, (void)args, (void)t;
    *n = 0;
    return BP_OK;
}

/* The parts of bp_dense_tensors. */
static inline void bp_ports_dense_norm_(struct bp_ports *list, uint32_t slot, const void *args)
{
    if (slot == BP_DENSE_OP_RMS) {
        const struct bp_dense_rms_args *a = (const struct bp_dense_rms_args *)args;
        bp_ports_add(list, &a->x, "x", a->add.data != NULL ? BP_INOUT : BP_IN);
        bp_ports_add_given(list, &a->add, "add", BP_IN);
        bp_ports_add(list, &a->w, "w", BP_IN);
        bp_ports_add(list, &a->y, "y", BP_OUT);
    } else {
        const struct bp_dense_layernorm_args *a = (const struct bp_dense_layernorm_args *)args;
        bp_ports_add(list, &a->x, "x", BP_IN);
        bp_ports_add(list, &a->w, "w", BP_IN);
        bp_ports_add(list, &a->b, "b", BP_IN);
        bp_ports_add(list, &a->y, "y", BP_OUT);
    }
}
static inline void bp_ports_dense_rope_(struct bp_ports *list, const struct bp_dense_rope_args *a)
{
    bp_ports_add(list, &a->x, "x", BP_IN);
    bp_ports_add(list, &a->positions, "positions", BP_IN);
    bp_ports_add(list, &a->cos_table, "cos_table", BP_IN);
    bp_ports_add(list, &a->sin_table, "sin_table", BP_IN);
    bp_ports_add(list, &a->y, "y", BP_OUT);
}

/* bp_dense_tensors - tensors() of "bp.dense". */
static inline int32_t bp_dense_tensors(void *self, uint32_t slot, const void *args, struct bp_tensor *t, uint32_t *n)
{
    const struct bp_dense_embed_args *embed = (const struct bp_dense_embed_args *)args;
    const struct bp_dense_pair_args *pair = (const struct bp_dense_pair_args *)args;
    const struct bp_dense_topk_args *topk = (const struct bp_dense_topk_args *)args;
    const struct bp_dense_matmul_args *matmul = (const struct bp_dense_matmul_args *)args;
    struct bp_ports list = bp_ports_begin(t, n);
    (void)self;
    switch (slot) {
    case BP_DENSE_OP_EMBED:
        bp_ports_add(&list, &embed->ids, "ids", BP_IN);
        bp_ports_add(&list, &embed->y, "y", BP_OUT);
        break;
    case BP_DENSE_OP_RMS:
    case BP_DENSE_OP_LAYERNORM:
        bp_ports_dense_norm_(&list, slot, args);
        break;
    case BP_DENSE_OP_ROPE:
        bp_ports_dense_rope_(&list, (const struct bp_dense_rope_args *)args);
        break;
    case BP_DENSE_OP_SILU_MUL:
    case BP_DENSE_OP_ADD:
        bp_ports_add(&list, &pair->a, "a", BP_IN);
        bp_ports_add(&list, &pair->b, "b", BP_IN);
        bp_ports_add(&list, &pair->y, "y", BP_OUT);
        break;
    case BP_DENSE_OP_ARGMAX:
    case BP_DENSE_OP_TOPK:
        bp_ports_add(&list, &topk->x, "x", BP_IN);
        bp_ports_add_given(&list, &topk->values, "values", BP_OUT);
        bp_ports_add(&list, &topk->ids, "ids", BP_OUT);
        break;
    case BP_DENSE_OP_MATMUL:
        bp_ports_add(&list, &matmul->a, "a", BP_IN);
        bp_ports_add(&list, &matmul->b, "b", BP_IN);
        bp_ports_add(&list, &matmul->c, "c", BP_OUT);
        break;
    default:
        return BP_E_ARG;
    }
    return bp_ports_done(&list, n);
}

/* bp_matmul_out_at - the i-th product of a call, at the caller's stride. */
static inline struct bp_matmul_out *bp_matmul_out_at(const struct bp_quant_matmul_args *a, uint32_t i)
{
    const uint64_t stride = a->out_stride != 0 ? a->out_stride : sizeof(struct bp_matmul_out);
    return (struct bp_matmul_out *)(void *)((unsigned char *)a->outs + i * stride);
}

/* bp_quant_shape_at - the i-th weight of a problem, at the caller's stride. */
static inline const struct bp_quant_shape *bp_quant_shape_at(const struct bp_quant_problem *p, uint32_t i)
{
    const uint64_t stride = p->w_stride != 0 ? p->w_stride : sizeof(struct bp_quant_shape);
    return (const struct bp_quant_shape *)(const void *)((const unsigned char *)p->w + i * stride);
}

/* bp_quant_tensors - tensors() of "bp.quant". */
static inline int32_t bp_quant_tensors(void *self, uint32_t slot, const void *args, struct bp_tensor *t, uint32_t *n)
{
    static const char *const names[] = {"y", "y1", "y2", "y3"}; /* at most four weights share an input */
    const struct bp_quant_matmul_args *a = (const struct bp_quant_matmul_args *)args;
    struct bp_ports list = bp_ports_begin(t, n);
    (void)self;
    if (slot == BP_QUANT_OP_DEQUANTIZE) {
        bp_ports_add(&list, &((const struct bp_quant_dequantize_args *)args)->y, "y", BP_OUT);
        return bp_ports_done(&list, n);
    }
    if (slot != BP_QUANT_OP_MATMUL) return BP_E_ARG;
    const uint32_t n_y = a->epilogue == BP_EPILOGUE_SILU_MUL ? 1 : a->n_out;
    bp_ports_add(&list, &a->x, "x", BP_IN);
    if (a->prologue == BP_PROLOGUE_RMS) bp_ports_add(&list, &a->norm_w, "norm_w", BP_IN);
    if (a->epilogue == BP_EPILOGUE_ADD) bp_ports_add(&list, &a->residual, "residual", BP_IN);
    for (uint32_t i = 0; i < n_y && i < 4; ++i) bp_ports_add(&list, &bp_matmul_out_at(a, i)->y, names[i], BP_OUT);
    return bp_ports_done(&list, n);
}

/* bp_mla_common_tensors - tensors() of "bp.mla.common". */
static inline int32_t bp_mla_common_tensors(void *self, uint32_t slot, const void *args, struct bp_tensor *t, uint32_t *n)
{
    const struct bp_mla_cache_write_args *write = (const struct bp_mla_cache_write_args *)args;
    const struct bp_mla_cache_gather_args *gather = (const struct bp_mla_cache_gather_args *)args;
    const struct bp_mla_expand_args *expand = (const struct bp_mla_expand_args *)args;
    const struct bp_mla_absorb_args *absorb = (const struct bp_mla_absorb_args *)args;
    const struct bp_mla_merge_args *merge = (const struct bp_mla_merge_args *)args;
    struct bp_ports list = bp_ports_begin(t, n);
    (void)self;
    switch (slot) {
    case BP_MLA_OP_CACHE_WRITE:
        bp_ports_add(&list, &write->kv, "kv", BP_IN);
        bp_ports_add(&list, &write->norm_w, "norm_w", BP_IN);
        bp_ports_add(&list, &write->pool, "pool", BP_INOUT);
        break;
    case BP_MLA_OP_CACHE_GATHER:
        bp_ports_add(&list, &gather->pool, "pool", BP_IN);
        bp_ports_add(&list, &gather->c, "c", BP_OUT);
        bp_ports_add(&list, &gather->k_pe, "k_pe", BP_OUT);
        break;
    case BP_MLA_OP_EXPAND:
        bp_ports_add(&list, &expand->c, "c", BP_IN);
        bp_ports_add(&list, &expand->k_pe, "k_pe", BP_IN);
        bp_ports_add(&list, &expand->k, "k", BP_OUT);
        bp_ports_add(&list, &expand->v, "v", BP_OUT);
        break;
    case BP_MLA_OP_ABSORB:
        bp_ports_add(&list, &absorb->x, "x", BP_IN);
        bp_ports_add(&list, &absorb->y, "y", BP_OUT);
        break;
    case BP_MLA_OP_MERGE:
        bp_ports_add(&list, &merge->out, "out", BP_INOUT);
        bp_ports_add(&list, &merge->lse, "lse", BP_INOUT);
        bp_ports_add(&list, &merge->other_out, "other_out", BP_IN);
        bp_ports_add(&list, &merge->other_lse, "other_lse", BP_IN);
        break;
    default:
        return BP_E_ARG;
    }
    return bp_ports_done(&list, n);
}

/* bp_mla_prefill_tensors - tensors() of "bp.mla.prefill". */
static inline int32_t bp_mla_prefill_tensors(void *self, uint32_t slot, const void *args, struct bp_tensor *t,
                                             uint32_t *n)
{
    const struct bp_mla_prefill_args *a = (const struct bp_mla_prefill_args *)args;
    struct bp_ports list = bp_ports_begin(t, n);
    (void)self;
    if (slot > BP_MLA_PREFILL_OP_RUN_CONTEXT) return BP_E_ARG;
    bp_ports_add(&list, &a->q, "q", BP_IN);
    bp_ports_add(&list, &a->k, "k", BP_IN);
    bp_ports_add(&list, &a->v, "v", BP_IN);
    bp_ports_add(&list, &a->out, "out", BP_OUT);
    bp_ports_add_given(&list, &a->lse, "lse", BP_OUT);
    return bp_ports_done(&list, n);
}

/* bp_mla_decode_tensors - tensors() of "bp.mla.decode". */
static inline int32_t bp_mla_decode_tensors(void *self, uint32_t slot, const void *args, struct bp_tensor *t, uint32_t *n)
{
    const struct bp_mla_decode_args *a = (const struct bp_mla_decode_args *)args;
    struct bp_ports list = bp_ports_begin(t, n);
    (void)self;
    if (slot != BP_MLA_DECODE_OP_RUN) return BP_E_ARG;
    bp_ports_add(&list, &a->q, "q", BP_IN);
    bp_ports_add(&list, &a->pool, "pool", BP_IN);
    bp_ports_add(&list, &a->out, "out", BP_OUT);
    bp_ports_add_given(&list, &a->lse, "lse", BP_OUT);
    if (a->idx.data != NULL) {
        bp_ports_add(&list, &a->idx, "idx", BP_IN);
        bp_ports_add(&list, &a->idx_len, "idx_len", BP_IN);
    }
    return bp_ports_done(&list, n);
}

/* bp_mla_index_tensors - tensors() of "bp.mla.index". */
static inline int32_t bp_mla_index_tensors(void *self, uint32_t slot, const void *args, struct bp_tensor *t, uint32_t *n)
{
    const struct bp_mla_key_write_args *write = (const struct bp_mla_key_write_args *)args;
    const struct bp_mla_select_args *select = (const struct bp_mla_select_args *)args;
    struct bp_ports list = bp_ports_begin(t, n);
    (void)self;
    if (slot == BP_MLA_INDEX_OP_KEY_WRITE) {
        bp_ports_add(&list, &write->k, "k", BP_IN);
        bp_ports_add(&list, &write->norm_w, "norm_w", BP_IN);
        bp_ports_add(&list, &write->norm_b, "norm_b", BP_IN);
        bp_ports_add(&list, &write->pool, "pool", BP_INOUT);
    } else if (slot == BP_MLA_INDEX_OP_SELECT) {
        bp_ports_add(&list, &select->q, "q", BP_IN);
        bp_ports_add(&list, &select->w, "w", BP_IN);
        bp_ports_add(&list, &select->pool, "pool", BP_IN);
        bp_ports_add(&list, &select->idx, "idx", BP_OUT);
        bp_ports_add(&list, &select->idx_len, "idx_len", BP_OUT);
        bp_ports_add_given(&list, &select->scores, "scores", BP_OUT);
    } else {
        return BP_E_ARG;
    }
    return bp_ports_done(&list, n);
}

/* bp_moe_tensors - tensors() of "bp.moe". */
static inline int32_t bp_moe_tensors(void *self, uint32_t slot, const void *args, struct bp_tensor *t, uint32_t *n)
{
    const struct bp_moe_route_args *route = (const struct bp_moe_route_args *)args;
    const struct bp_moe_run_args *run = (const struct bp_moe_run_args *)args;
    struct bp_ports list = bp_ports_begin(t, n);
    (void)self;
    if (slot == BP_MOE_OP_ROUTE) {
        bp_ports_add(&list, &route->logits, "logits", BP_IN);
        bp_ports_add_given(&list, &route->bias, "bias", BP_IN);
        bp_ports_add(&list, &route->ids, "ids", BP_OUT);
        bp_ports_add(&list, &route->weights, "weights", BP_OUT);
    } else if (slot == BP_MOE_OP_RUN) {
        bp_ports_add(&list, &run->x, "x", BP_IN);
        bp_ports_add(&list, &run->ids, "ids", BP_IN);
        bp_ports_add(&list, &run->gates, "gates", BP_IN);
        bp_ports_add(&list, &run->y, "y", run->accumulate != 0 ? BP_INOUT : BP_OUT);
    } else {
        return BP_E_ARG;
    }
    return bp_ports_done(&list, n);
}

/* bp_coll_tensors - tensors() of "bp.coll". */
static inline int32_t bp_coll_tensors(void *self, uint32_t slot, const void *args, struct bp_tensor *t, uint32_t *n)
{
    const struct bp_coll_args *a = (const struct bp_coll_args *)args;
    struct bp_ports list = bp_ports_begin(t, n);
    (void)self;
    if (slot > BP_COLL_OP_BROADCAST) return BP_E_ARG;
    bp_ports_add(&list, &a->x, "x", slot == BP_COLL_OP_ALL_GATHER ? BP_IN : BP_INOUT);
    if (slot == BP_COLL_OP_ALL_GATHER) bp_ports_add(&list, &a->y, "y", BP_OUT);
    return bp_ports_done(&list, n);
}

BP_EXTERN_C_END
#endif
