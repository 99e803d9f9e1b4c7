/* fake_ops.c - see fake.h: every op of the reference as a kernel of the fake device. A call copies its structs, like a
 * kernel its parameters, and waits on its stream; when its turn comes, the device's memory is open and metadata is read
 * from the device. SPDX-License-Identifier: MIT */
#include "fake.h"
#include "libcuda.h"

#include <math.h>
#include <stdlib.h>

#include "ref/ref.h"

enum { MAX_ARGS = 1024 };

struct op_task {
    struct fake_task task;
    struct fake_op *op;
    struct fake_device *dev;
    int32_t (*call)(struct op_task *t);
    struct bp_launch launch;
    uint64_t args[MAX_ARGS / 8];
    struct bp_mla_meta common;
    struct bp_mla_prefill_meta prefill;
    struct bp_mla_decode_meta decode;
    struct bp_matmul_out outs[4];
    void *out_end; /* behind the last byte of an output */
    struct bp_tensor in, out;
    const int32_t *array; /* of metadata */
    uint64_t number;
};

enum meta { NONE, COMMON, PREFILL, DECODE };

static void copy_common(struct op_task *t, const struct bp_mla_meta *m)
{
    t->common = *m;
    t->array = m->positions;
    if (t->op->fault == F_HOST_META) return;
    t->common.positions_host = m->positions;
    t->common.slot_map_host = m->slot_map;
    t->common.block_table_host = m->block_table;
    t->common.kv_len_host = m->kv_len;
}

/* The metadata behind the header of args, as the device has it. */
static void copy_meta(struct op_task *t, enum meta kind)
{
    const void *from, *to = &t->common;
    memcpy(&from, (const unsigned char *)t->args + sizeof(struct bp_hdr), sizeof from);
    if (kind == COMMON) copy_common(t, from);
    if (kind == PREFILL) {
        const struct bp_mla_prefill_meta *m = from;
        t->prefill = *m;
        t->prefill.seq_host = m->seq;
        t->prefill.cu_q_host = m->cu_q;
        t->prefill.cu_k_host = m->cu_k;
        t->prefill.kv_begin_host = m->kv_begin;
        copy_common(t, m->common);
        t->prefill.common = &t->common;
        to = &t->prefill;
    }
    if (kind == DECODE) {
        const struct bp_mla_decode_meta *m = from;
        t->decode = *m;
        t->decode.row_seq_host = m->row_seq;
        if (t->op->fault != F_FROZEN_LENGTHS) t->decode.row_kv_len_host = m->row_kv_len;
        copy_common(t, m->common);
        t->decode.common = &t->common;
        t->array = m->row_seq;
        to = &t->decode;
    }
    memcpy((unsigned char *)t->args + sizeof(struct bp_hdr), &to, sizeof to);
}

/* Mistakes of a kernel. */
static void misbehave(struct op_task *t)
{
    unsigned char *y = t->out.data;
    switch ((int)t->op->fault) {
    case F_PAST_TENSOR:
        *(volatile unsigned char *)t->out_end = 1;
        break;
    case F_PAST_SCRATCH:
        *((volatile unsigned char *)t->launch.scratch + t->launch.scratch_bytes) = 1;
        break;
    case F_PAST_PLAN:
        *((volatile unsigned char *)t->launch.plan + 64) = 1;
        break;
    case F_WRITES_INPUT:
        if (t->in.data != NULL) *(volatile unsigned char *)t->in.data ^= 1;
        break;
    case F_WRITES_META:
        if (t->array != NULL) *(volatile int32_t *)(uintptr_t)t->array ^= 1;
        break;
    case F_WRONG:
        if (t->out.dim[0] != 0) y[0] ^= 0x40;
        break;
    case F_RARE_BIT:
        if (t->out.dim[0] != 0 && t->number % 20 == 19) y[0] ^= 1;
        break;
    case F_BATCH_VARIANT:
        if (t->out.dim[0] > 1) y[0] ^= 1;
        break;
    default:
        break;
    }
}

static int32_t run_op(struct fake_task *task)
{
    struct op_task *t = (struct op_task *)(void *)task;
    BP_TRY(t->call(t));
    if (t->out.data != NULL) misbehave(t);
    return BP_OK;
}

/* Where outputs lie, for misbehave(): the ports of the slot header say it. */
static void find_ports(struct op_task *t, uint32_t slot,
                       int32_t (*ports)(void *, uint32_t, const void *, struct bp_tensor *,
                                        uint32_t *))
{
    struct bp_tensor list[16];
    uint32_t n = 16;
    if (ports(NULL, slot, t->args, list, &n) != BP_OK) return;
    for (uint32_t i = 0; i < n; ++i) {
        if (list[i].access == BP_IN && t->in.data == NULL) t->in = list[i];
        if ((list[i].access & BP_OUT) == 0 || t->out.data != NULL || list[i].layout_id != 0)
            continue;
        t->out = list[i];
        int64_t end = 0, empty = 0;
        for (uint32_t d = 0; d < list[i].ndim; ++d) {
            empty |= list[i].dim[d] == 0;
            end += (list[i].dim[d] - 1) * list[i].stride[d];
        }
        t->out_end =
            (unsigned char *)list[i].data + (empty ? 0 : (end + 1) * bp_dtype_bytes(list[i].dtype));
    }
}

static int32_t start(struct op_task *t, struct bp_error *err)
{
    struct fake_stream *s = t->launch.stream;
    struct fake_device *d = s->dev;
    void *memory;
    int32_t rc = d->lost;
    t->dev = d;
    t->number = d->n_ops++;
    t->task.run = run_op;
    if (t->op->fault == F_LOSES_DEVICE && t->number == 20) d->lost = BP_E_DEVICE_LOST;
    if (t->op->fault == F_NO_CAPTURE && s->capturing) s->capturing = 2;
    fake_context_set(t->op->fault == F_OTHER_CONTEXT ? (void *)&d->contexts[t->number % 2]
                                                     : d->contexts);
    if (t->op->fault == F_ALLOCATES) rc = fake_alloc(d, 4096, &memory);
    if (rc != BP_OK) {
        free(t);
        return bp_error_set(err, rc, "fake", "run", "the device is lost");
    }
    if (t->op->fault == F_DEFAULT_STREAM && !s->capturing) {
        struct fake_stream own = {.dev = d};
        own.last = &own.first;
        fake_push(&own, &t->task);
        return fake_drain(&own);
    }
    fake_push(s, &t->task);
    return t->op->fault == F_WAITS && !s->capturing ? fake_drain(s) : BP_OK;
}

static struct op_task *task_of(struct fake_op *op, const struct bp_launch *l, const void *args)
{
    struct op_task *t = calloc(1, sizeof *t);
    const struct bp_hdr *h = args;
    if (t == NULL || h->size > MAX_ARGS) {
        free(t);
        return NULL;
    }
    t->op = op;
    t->launch = *l;
    t->launch.stream = NULL;
    memcpy(t->args, args, h->size);
    return t;
}

#define VT(T) ((const struct T *)(const void *)t->op->ref.vt)
#define KERNEL(T, fn, A, slot, ports, meta)                                                        \
    static int32_t T##_##fn##_call(struct op_task *t)                                              \
    {                                                                                              \
        return VT(T)->fn(t->op->ref.self, &t->launch, (const struct A *)(const void *)t->args,     \
                         NULL);                                                                    \
    }                                                                                              \
    static int32_t T##_##fn(void *self, const struct bp_launch *l, const struct A *a,              \
                            struct bp_error *err)                                                  \
    {                                                                                              \
        struct op_task *t = task_of(self, l, a);                                                   \
        if (t == NULL) return BP_E_NOMEM;                                                          \
        t->call = T##_##fn##_call;                                                                 \
        if (meta != NONE) copy_meta(t, meta);                                                      \
        find_ports(t, slot, ports);                                                                \
        t->launch.stream = l->stream;                                                              \
        return start(t, err);                                                                      \
    }
#define WEIGHTS(T, W)                                                                              \
    static int32_t T##_prepare(void *self, const struct W *w, void **out,                          \
                               struct bp_weight_info *info, struct bp_error *err)                  \
    {                                                                                              \
        struct fake_op *op = self;                                                                 \
        return ((const struct T *)(const void *)op->ref.vt)                                        \
            ->prepare(op->ref.self, w, out, info, err);                                            \
    }                                                                                              \
    static void T##_release(void *self, void *handle)                                              \
    {                                                                                              \
        struct fake_op *op = self;                                                                 \
        ((const struct T *)(const void *)op->ref.vt)->release(op->ref.self, handle);               \
    }
#define LAYOUTS(T)                                                                                 \
    static int32_t T##_layouts(void *self, const struct bp_mla_problem *p, uint32_t i,             \
                               struct bp_kv_layout *out)                                           \
    {                                                                                              \
        struct fake_op *op = self;                                                                 \
        return ((const struct T *)(const void *)op->ref.vt)->layouts(op->ref.self, p, i, out);     \
    }

static int32_t base_supports(void *self, const void *p, struct bp_verdict *v)
{
    struct fake_op *op = self;
    BP_TRY(op->ref.vt->supports(op->ref.self, p, v));
    if (v->level != BP_V_NO)
        v->capture = op->fault == F_LOW_CLAIM ? BP_CAPTURE_NONE : BP_CAPTURE_UNIFORM;
    return BP_OK;
}
static int32_t base_workspace(void *self, const void *p, struct bp_workspace *w,
                              struct bp_error *err)
{
    struct fake_op *op = self;
    BP_TRY(op->ref.vt->workspace(op->ref.self, p, w, err));
    if (op->fault == F_PAST_PLAN && w->plan_bytes == 0) w->plan_bytes = 64;
    return BP_OK;
}

#define DENSE(fn, A, OP)                                                                           \
    KERNEL(bp_dense_ops, fn, bp_dense_##A##_args, BP_DENSE_OP_##OP, bp_dense_tensors, NONE)
WEIGHTS(bp_dense_ops, bp_raw)
DENSE(embed, embed, EMBED)
DENSE(rms, rms, RMS)
DENSE(layernorm, layernorm, LAYERNORM)
DENSE(rope, rope, ROPE)
DENSE(silu_mul, pair, SILU_MUL)
DENSE(add, pair, ADD)
DENSE(argmax, topk, ARGMAX)
DENSE(topk, topk, TOPK)
DENSE(matmul, matmul, MATMUL)

WEIGHTS(bp_quant_ops, bp_raw)
static int32_t quant_format(void *self, uint32_t i, uint32_t *out)
{
    struct fake_op *op = self;
    return ((const struct bp_quant_ops *)(const void *)op->ref.vt)->format(op->ref.self, i, out);
}
KERNEL(bp_quant_ops, dequantize, bp_quant_dequantize_args, BP_QUANT_OP_DEQUANTIZE, bp_quant_tensors,
       NONE)
static int32_t quant_matmul_call(struct op_task *t)
{
    return VT(bp_quant_ops)->matmul(t->op->ref.self, &t->launch, (const void *)t->args, NULL);
}
static int32_t quant_matmul(void *self, const struct bp_launch *l,
                            const struct bp_quant_matmul_args *a, struct bp_error *err)
{
    struct op_task *t = task_of(self, l, a);
    if (t == NULL) return BP_E_NOMEM;
    struct bp_quant_matmul_args *own = (struct bp_quant_matmul_args *)(void *)t->args;
    for (uint32_t i = 0; i < a->n_out && i < 4; ++i) t->outs[i] = *bp_matmul_out_at(a, i);
    own->outs = t->outs;
    own->out_stride = sizeof t->outs[0];
    t->call = quant_matmul_call;
    find_ports(t, BP_QUANT_OP_MATMUL, bp_quant_tensors);
    t->launch.stream = l->stream;
    return start(t, err);
}

LAYOUTS(bp_mla_common_ops)
WEIGHTS(bp_mla_common_ops, bp_mla_weights)
#define MLA(fn, OP, meta)                                                                          \
    KERNEL(bp_mla_common_ops, fn, bp_mla_##fn##_args, BP_MLA_OP_##OP, bp_mla_common_tensors, meta)
MLA(cache_write, CACHE_WRITE, COMMON)
MLA(cache_gather, CACHE_GATHER, PREFILL)
MLA(expand, EXPAND, NONE)
MLA(absorb, ABSORB, NONE)
MLA(merge, MERGE, NONE)

KERNEL(bp_mla_prefill_ops, run, bp_mla_prefill_args, BP_MLA_PREFILL_OP_RUN, bp_mla_prefill_tensors,
       PREFILL)
KERNEL(bp_mla_prefill_ops, run_context, bp_mla_prefill_args, BP_MLA_PREFILL_OP_RUN_CONTEXT,
       bp_mla_prefill_tensors, PREFILL)
static int32_t prefill_plan(void *self, const struct bp_launch *l,
                            const struct bp_mla_prefill_meta *m, struct bp_error *err)
{
    struct fake_op *op = self;
    return ((const struct bp_mla_prefill_ops *)(const void *)op->ref.vt)
        ->plan(op->ref.self, l, m, err);
}

KERNEL(bp_mla_decode_ops, run, bp_mla_decode_args, BP_MLA_DECODE_OP_RUN, bp_mla_decode_tensors,
       DECODE)
static int32_t decode_plan(void *self, const struct bp_launch *l,
                           const struct bp_mla_decode_meta *m, struct bp_error *err)
{
    struct fake_op *op = self;
    return ((const struct bp_mla_decode_ops *)(const void *)op->ref.vt)
        ->plan(op->ref.self, l, m, err);
}

LAYOUTS(bp_mla_index_ops)
KERNEL(bp_mla_index_ops, key_write, bp_mla_key_write_args, BP_MLA_INDEX_OP_KEY_WRITE,
       bp_mla_index_tensors, COMMON)
KERNEL(bp_mla_index_ops, select, bp_mla_select_args, BP_MLA_INDEX_OP_SELECT, bp_mla_index_tensors,
       DECODE)

WEIGHTS(bp_moe_ops, bp_moe_weights)
KERNEL(bp_moe_ops, route, bp_moe_route_args, BP_MOE_OP_ROUTE, bp_moe_tensors, NONE)
KERNEL(bp_moe_ops, run, bp_moe_run_args, BP_MOE_OP_RUN, bp_moe_tensors, NONE)

#define BASE(T, name, last, ports)                                                                 \
    .base = {BP_HDR(struct T, last), name, 0, 1, base_supports, base_workspace, ports}
#define K(T, fn) .fn = T##_##fn
const struct bp_op_base *fake_table(const char *iface)
{
    static const struct bp_dense_ops dense = {
        BASE(bp_dense_ops, "bp.dense", matmul, bp_dense_tensors),
        K(bp_dense_ops, prepare),
        K(bp_dense_ops, release),
        K(bp_dense_ops, embed),
        K(bp_dense_ops, rms),
        K(bp_dense_ops, layernorm),
        K(bp_dense_ops, rope),
        K(bp_dense_ops, silu_mul),
        K(bp_dense_ops, add),
        K(bp_dense_ops, argmax),
        K(bp_dense_ops, topk),
        K(bp_dense_ops, matmul)};
    static const struct bp_quant_ops quant = {
        BASE(bp_quant_ops, "bp.quant", dequantize, bp_quant_tensors),
        .format = quant_format,
        K(bp_quant_ops, prepare),
        K(bp_quant_ops, release),
        .matmul = quant_matmul,
        K(bp_quant_ops, dequantize)};
    static const struct bp_mla_common_ops common = {
        BASE(bp_mla_common_ops, "bp.mla.common", merge, bp_mla_common_tensors),
        K(bp_mla_common_ops, layouts),
        K(bp_mla_common_ops, prepare),
        K(bp_mla_common_ops, release),
        K(bp_mla_common_ops, cache_write),
        K(bp_mla_common_ops, cache_gather),
        K(bp_mla_common_ops, expand),
        K(bp_mla_common_ops, absorb),
        K(bp_mla_common_ops, merge)};
    static const struct bp_mla_prefill_ops prefill = {
        BASE(bp_mla_prefill_ops, "bp.mla.prefill", run_context, bp_mla_prefill_tensors),
        .plan = prefill_plan, K(bp_mla_prefill_ops, run), K(bp_mla_prefill_ops, run_context)};
    static const struct bp_mla_decode_ops decode = {
        BASE(bp_mla_decode_ops, "bp.mla.decode", run, bp_mla_decode_tensors), .plan = decode_plan,
        K(bp_mla_decode_ops, run)};
    static const struct bp_mla_index_ops index = {
        BASE(bp_mla_index_ops, "bp.mla.index", select, bp_mla_index_tensors),
        K(bp_mla_index_ops, layouts), K(bp_mla_index_ops, key_write), K(bp_mla_index_ops, select)};
    static const struct bp_moe_ops moe = {BASE(bp_moe_ops, "bp.moe", run, bp_moe_tensors),
                                          K(bp_moe_ops, prepare), K(bp_moe_ops, release),
                                          K(bp_moe_ops, route), K(bp_moe_ops, run)};
    const struct bp_op_base *const all[] = {
        &dense.base,  &quant.base, &common.base, &prefill.base,
        &decode.base, &index.base, &moe.base,    &fake_device_table.base};
    for (size_t i = 0; i < BP_LEN(all); ++i) {
        if (strcmp(all[i]->iface, iface) == 0) return all[i];
    }
    return NULL;
}

/* ---- the plugin ---- */

struct plugin {
    const struct bp_host *host;
    void *ref;
    uint32_t fault;
    struct fake_device *device; /* made when somebody asks for bp.device */
};

static const struct bp_plugin_desc *ref_desc(void)
{
    const struct bp_query q = {.h = BP_HDR(struct bp_query, engine_version),
                               .host_major = BP_ABI_MAJOR,
                               .host_minor = BP_ABI_MINOR};
    return bpi_ref_query(&q);
}

/* The number of the fault that the key names. */
static int32_t read_fault(const struct bp_host *host, uint32_t *out, struct bp_error *err)
{
    static const char all[] = FAKE_FAULTS "|";
    char name[32];
    int32_t rc = bp_cfg_str(host, "fault", "sound", name, sizeof name);
    const size_t n = rc == BP_OK ? strlen(name) : 0;
    *out = 0;
    for (const char *at = all; rc == BP_OK && *at != '\0'; at = strchr(at, '|') + 1, ++*out) {
        if (n > 0 && strncmp(at, name, n) == 0 && at[n] == '|') return BP_OK;
    }
    return bp_error_set(err, BP_E_CONFIG, "fake", "fault", "the key names no fault");
}

static int32_t fake_open(const struct bp_host *host, void **out, struct bp_error *err)
{
    struct plugin *p = bp_mem_alloc(host, 1, sizeof *p);
    if (p == NULL) return bp_error_set(err, BP_E_NOMEM, "fake", "open", "no memory");
    p->host = host;
    int32_t rc = read_fault(host, &p->fault, err);
    if (rc == BP_OK) rc = ref_desc()->open(host, &p->ref, err);
    if (rc == BP_OK) rc = fake_device_open(host, p->fault, &p->device);
    if (rc == BP_OK) {
        *out = p;
        return BP_OK;
    }
    if (p->ref != NULL) ref_desc()->close(p->ref);
    bp_mem_free(host, p);
    return rc == BP_E_NOMEM ? bp_error_set(err, rc, "fake", "open", "no memory") : rc;
}

static void fake_close(void *plugin)
{
    struct plugin *p = plugin;
    fake_device_close(p->device);
    ref_desc()->close(p->ref);
    bp_mem_free(p->host, p);
}

static int32_t fake_create(void *plugin, const struct bp_op_entry *entry,
                           const struct bp_device *dev, const struct bp_op_ref *inner,
                           uint32_t n_inner, struct bp_op_ref *out, struct bp_error *err)
{
    struct plugin *p = plugin;
    (void)inner;
    (void)n_inner;
    if (strcmp(entry->iface, "bp.device") == 0) {
        *out = (struct bp_op_ref){&fake_device_table.base, p->device};
        return BP_OK;
    }
    if (dev == NULL || dev->kind != BP_DEV_CUDA)
        return bp_error_set(err, BP_DECLINED, "fake", entry->iface,
                            "computes on the fake device only");
    if (fake_table(entry->iface) == NULL)
        return bp_error_set(err, BP_DECLINED, "fake", entry->iface, "is not offered");
    struct fake_op *op = bp_mem_alloc(p->host, 1, sizeof *op);
    if (op == NULL) return bp_error_set(err, BP_E_NOMEM, "fake", entry->iface, "no memory");
    op->host = p->host;
    op->fault = p->fault;
    int32_t rc = ref_desc()->op_create(p->ref, entry, NULL, NULL, 0, &op->ref, err);
    if (rc != BP_OK) {
        bp_mem_free(p->host, op);
        return rc;
    }
    *out = (struct bp_op_ref){fake_table(entry->iface), op};
    return BP_OK;
}

static void fake_destroy(void *plugin, struct bp_op_ref *ref)
{
    if (ref->vt != &fake_device_table.base) {
        struct fake_op *op = ref->self;
        ref_desc()->op_destroy(((struct plugin *)plugin)->ref, &op->ref);
        bp_mem_free(op->host, op);
    }
    *ref = (struct bp_op_ref){NULL, NULL};
}

static const struct bp_cfg_key keys[] = {
    {"fault", "enum:" FAKE_FAULTS, "sound", "The mistake that is made.", 0, 0},
};

BP_PLUGIN(BP_KIND_BACKEND, "fake", "0.1.0",
          BP_ABOUT("Backplane", "MIT", "the reference on a device out of reach"), BP_NO_CUDA,
          BP_KEYS(keys), BP_HOOKS(fake_open, fake_close, fake_create, fake_destroy),
          ("bp.device", "fake"), ("bp.dense", "fake"), ("bp.quant", "fake"), ("bp.moe", "fake"),
          ("bp.mla.common", "fake"), ("bp.mla.prefill", "fake"), ("bp.mla.decode", "fake"),
          ("bp.mla.index", "fake"));
