/* fake_gpu.h - the device of fake_device.h with ops of its own: they compute as ref does, on memory that only they can
 * reach, from what lies on the device - no host array of the metadata reaches them - and a stream can capture their calls
 * and replay them. So a session on it is right only if it would be right on a GPU. Tests plant faults by the variables.
 * SPDX-License-Identifier: MIT */
#ifndef FAKE_GPU_H
#define FAKE_GPU_H

#include "fake_device.h"
#include "backplane/slot_dense.h"
#include "backplane/slot_mla.h"
#include "backplane/slot_moe.h"
#include "backplane/slot_quant.h"

enum gpu_table { G_DENSE, G_QUANT, G_COMMON, G_PREFILL, G_DECODE, G_INDEX, G_MOE, G_TABLES };
enum { M_NONE, M_OUTS, M_COMMON, M_PREFILL, M_DECODE, M_COPY };

// clang-format off
#define GPU_CALLS(X) /* kind, table, function, args, what its args point to, number in the slot header */ \
    X(EMBED, dense, embed, bp_dense_embed_args, M_NONE, BP_DENSE_OP_EMBED) \
    X(RMS, dense, rms, bp_dense_rms_args, M_NONE, BP_DENSE_OP_RMS) \
    X(ROPE, dense, rope, bp_dense_rope_args, M_NONE, BP_DENSE_OP_ROPE) \
    X(SILU_MUL, dense, silu_mul, bp_dense_pair_args, M_NONE, BP_DENSE_OP_SILU_MUL) \
    X(ADD, dense, add, bp_dense_pair_args, M_NONE, BP_DENSE_OP_ADD) \
    X(MATMUL, quant, matmul, bp_quant_matmul_args, M_OUTS, BP_QUANT_OP_MATMUL) \
    X(CACHE_WRITE, common, cache_write, bp_mla_cache_write_args, M_COMMON, BP_MLA_OP_CACHE_WRITE) \
    X(GATHER, common, cache_gather, bp_mla_cache_gather_args, M_PREFILL, BP_MLA_OP_CACHE_GATHER) \
    X(EXPAND, common, expand, bp_mla_expand_args, M_NONE, BP_MLA_OP_EXPAND) \
    X(ABSORB, common, absorb, bp_mla_absorb_args, M_NONE, BP_MLA_OP_ABSORB) \
    X(MERGE, common, merge, bp_mla_merge_args, M_NONE, BP_MLA_OP_MERGE) \
    X(PREFILL, prefill, run, bp_mla_prefill_args, M_PREFILL, BP_MLA_PREFILL_OP_RUN) \
    X(CONTEXT, prefill, run_context, bp_mla_prefill_args, M_PREFILL, BP_MLA_PREFILL_OP_RUN_CONTEXT) \
    X(DECODE, decode, run, bp_mla_decode_args, M_DECODE, BP_MLA_DECODE_OP_RUN) \
    X(KEY_WRITE, index, key_write, bp_mla_key_write_args, M_COMMON, BP_MLA_INDEX_OP_KEY_WRITE) \
    X(SELECT, index, select, bp_mla_select_args, M_DECODE, BP_MLA_INDEX_OP_SELECT) \
    X(ROUTE, moe, route, bp_moe_route_args, M_NONE, BP_MOE_OP_ROUTE) \
    X(EXPERTS, moe, run, bp_moe_run_args, M_NONE, BP_MOE_OP_RUN)
// clang-format on

enum gpu_kind {
#define GPU_ENUM(kind, table, fn, args, meta, number) K_##kind,
    GPU_CALLS(GPU_ENUM)
#undef GPU_ENUM
        K_COPY
};

struct gpu_tables {
    struct bp_dense_ops dense;
    struct bp_quant_ops quant;
    struct bp_mla_common_ops common;
    struct bp_mla_prefill_ops prefill;
    struct bp_mla_decode_ops decode;
    struct bp_mla_index_ops index;
    struct bp_moe_ops moe;
};
static struct gpu_tables gpu_ref, gpu_own;

/* ---- what a test may set ---- */

static uint32_t gpu_capture[G_TABLES] = {BP_CAPTURE_ANY,  BP_CAPTURE_ANY, BP_CAPTURE_ANY,
                                         BP_CAPTURE_NONE, BP_CAPTURE_ANY, BP_CAPTURE_ANY,
                                         BP_CAPTURE_ANY};
static bool gpu_f32_only[G_TABLES];
static bool gpu_no_graphs;
static bool gpu_plain;  /* products in the plain form only */
static bool gpu_absent; /* the plugin finds no device */
static int32_t gpu_ill; /* what props() returns then: BP_OK for BP_E_DEVICE */
static uint64_t gpu_free_bytes = UINT64_C(1) << 34;
static int gpu_lost_in = -1; /* calls until the device is lost */
static int gpu_fail_end;     /* captures that fail to end */
static int gpu_nan_kind = -1, gpu_nan_layer, gpu_nan_row,
           gpu_nan_width /* 0: any */; /* the output row of this call becomes NaN */
static struct bp_session *gpu_interrupted; /* interrupted when that happens for the second time */
static int gpu_nans;
static bool gpu_infinite; /* infinity instead */
/* what it sees */
static int gpu_begins, gpu_launches, gpu_graphs, gpu_calls, gpu_syncs, gpu_plans;
static bool gpu_lost;

/* ---- calls ---- */

struct gpu_rec {
    int kind;
    void *self;
    struct bp_launch l;
    _Alignas(16) unsigned char args[1536];
    struct bp_matmul_out outs[4];
    struct bp_mla_meta common;
    struct bp_mla_prefill_meta prefill;
    struct bp_mla_decode_meta decode;
    void *dst;
    const void *src;
    uint64_t n_bytes;
    uint32_t dir;
};
enum { GPU_MAX_RECS = 2048 };
struct gpu_graph {
    int n;
    struct gpu_rec recs[GPU_MAX_RECS];
};
/* The capture in progress: one at a time is enough for the tests. */
static struct gpu_graph *gpu_recording;
static const void *gpu_recording_on;

static int32_t gpu_is_lost(struct bp_error *err)
{
    if (gpu_lost_in > 0 && --gpu_lost_in == 0) gpu_lost = true;
    return gpu_lost ? bpi_fail(err, BP_E_DEVICE_LOST, "fakegpu", NULL, "the card fell off the bus")
                    : BP_OK;
}

/* All device memory lies in one range, so that a kernel's access to it is one call. */
static unsigned char *gpu_range;
static size_t gpu_range_used;
static int gpu_live;
static uint64_t gpu_taken; /* bytes asked for so far */
enum { GPU_RANGE = 1 << 30 };

static void gpu_open_all(int rights)
{
    if (gpu_range_used != 0) ck_assert_int_eq(mprotect(gpu_range, gpu_range_used, rights), 0);
}

static int32_t gpu_take(uint64_t n_bytes, void **out)
{
    if (gpu_range == NULL) {
        gpu_range =
            mmap(NULL, GPU_RANGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        ck_assert(gpu_range != MAP_FAILED);
    }
    ck_assert_int_lt(n_blocks, MAX_BLOCKS);
    struct block *b = &blocks[n_blocks++];
    b->n_bytes = whole_pages(n_bytes);
    b->p = gpu_range + gpu_range_used;
    gpu_range_used += b->n_bytes;
    ck_assert_uint_le(gpu_range_used, GPU_RANGE);
    ++gpu_live;
    gpu_taken += n_bytes;
    *out = b->p;
    return BP_OK;
}

static void gpu_free(void *self, uint32_t mem, void *p)
{
    if (mem == BP_MEM_PINNED || p == NULL) {
        dev_free(self, mem, p);
        return;
    }
    int at = 0;
    while (at < n_blocks && blocks[at].p != p) ++at;
    ck_assert_msg(at < n_blocks, "freed what was not allocated, or twice");
    blocks[at].p = NULL;
    if (--gpu_live != 0) return;
    ck_assert_int_eq(madvise(gpu_range, gpu_range_used, MADV_DONTNEED), 0); /* zeroes it */
    gpu_range_used = 0;
    n_blocks = 0;
}

static void gpu_meta(struct gpu_rec *r, int meta)
{
    const size_t at = offsetof(struct bp_mla_cache_write_args, meta);
    const void *to = NULL, *from;
    if (meta == M_NONE) return;
    if (meta == M_OUTS) {
        struct bp_quant_matmul_args a;
        memcpy(&a, r->args, sizeof a);
        ck_assert_uint_le(a.n_out, 4);
        memcpy(r->outs, a.outs, a.n_out * sizeof a.outs[0]);
        return;
    }
    memcpy(&from, r->args + at, sizeof from);
    if (meta == M_PREFILL) {
        r->prefill = *(const struct bp_mla_prefill_meta *)from;
        to = &r->prefill;
        r->common = *r->prefill.common;
    } else if (meta == M_DECODE) {
        r->decode = *(const struct bp_mla_decode_meta *)from;
        to = &r->decode;
        r->common = *r->decode.common;
    } else {
        r->common = *(const struct bp_mla_meta *)from;
        to = &r->common;
    }
    (void)to;
}

/* A record may have moved since; and a kernel reads lengths where they lie on the device, never on the host. */
static void gpu_link(struct gpu_rec *r, int meta)
{
    const size_t at = offsetof(struct bp_mla_cache_write_args, meta);
    const void *to = &r->common;
    struct bp_mla_meta *c = &r->common;
    if (meta == M_NONE || meta == M_COPY) return;
    if (meta == M_OUTS) {
        struct bp_quant_matmul_args a;
        memcpy(&a, r->args, sizeof a);
        a.outs = r->outs;
        memcpy(r->args, &a, sizeof a);
        return;
    }
    c->positions_host = c->positions;
    c->slot_map_host = c->slot_map;
    c->block_table_host = c->block_table;
    c->kv_len_host = c->kv_len;
    for (uint32_t i = 0; i < c->n_seqs; ++i) ck_assert_uint_le((uint32_t)c->kv_len[i], c->max_kv);
    if (meta == M_PREFILL) {
        struct bp_mla_prefill_meta *p = &r->prefill;
        p->common = c;
        p->seq_host = p->seq;
        p->cu_q_host = p->cu_q;
        p->cu_k_host = p->cu_k;
        p->kv_begin_host = p->kv_begin;
        to = p;
    } else if (meta == M_DECODE) {
        struct bp_mla_decode_meta *d = &r->decode;
        d->common = c;
        d->row_seq_host = d->row_seq;
        d->row_kv_len_host = d->row_kv_len;
        for (uint32_t i = 0; i < d->n_row; ++i)
            ck_assert_uint_le((uint32_t)d->row_kv_len[i], d->max_kv);
        to = d;
    }
    memcpy(r->args + at, &to, sizeof to);
}

struct gpu_plan {
    uint64_t n_row, sum;
};

/* The work list must be of the step that runs, replayed or not. */
static void gpu_check_plan(const struct gpu_rec *r)
{
    const struct gpu_plan *p = r->l.plan;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < r->decode.n_row; ++i) sum += (uint64_t)r->decode.row_kv_len[i];
    ck_assert_uint_eq(p->n_row, r->decode.n_row);
    ck_assert_uint_eq(p->sum, sum);
}

static void gpu_plant_nan(const struct gpu_rec *r, const struct bp_op_base *base, uint32_t number)
{
    struct bp_tensor t[16];
    uint32_t n = 16, i = 0;
    ck_assert_int_eq(base->tensors(r->self, number, r->args, t, &n), BP_OK);
    while ((t[i].access & BP_OUT) == 0) ++i;
    if (gpu_nan_row >= t[i].dim[0] || (gpu_nan_width != 0 && t[i].dim[1] != gpu_nan_width)) return;
    const int64_t at = gpu_nan_row * t[i].stride[0];
    if (++gpu_nans == 2 && gpu_interrupted != NULL) bp_session_interrupt(gpu_interrupted);
    if (t[i].dtype == BP_DT_F32)
        ((float *)t[i].data)[at] = gpu_infinite ? __builtin_inff() : __builtin_nanf("");
    else
        ((uint16_t *)t[i].data)[at] = 0x7fff; /* NaN in both */
}

static int32_t gpu_execute(struct gpu_rec *r, struct bp_error *err)
{
    int32_t rc = BP_OK;
    if (r->kind == K_COPY) {
        memmove(r->dst, r->src, r->n_bytes);
        return BP_OK;
    }
    switch (r->kind) {
#define GPU_CASE(kind, table, fn, T, meta, number)                                                 \
    case K_##kind:                                                                                 \
        gpu_link(r, meta);                                                                         \
        if (K_##kind == K_DECODE) gpu_check_plan(r);                                               \
        rc = gpu_ref.table.fn(r->self, &r->l, (const struct T *)(const void *)r->args, err);       \
        if (gpu_nan_kind == K_##kind && gpu_nan_layer == r->l.layer)                               \
            gpu_plant_nan(r, &gpu_ref.table.base, number);                                         \
        break;
        GPU_CALLS(GPU_CASE)
#undef GPU_CASE
    default:
        ck_abort_msg("unknown call %d", r->kind);
    }
    return rc;
}

static int32_t gpu_call(int kind, void *self, const struct bp_launch *l, const void *args, size_t n,
                        int meta, struct bp_error *err)
{
    struct gpu_rec once, *r = &once;
    BP_TRY(gpu_is_lost(err));
    ck_assert_uint_eq(l->dev->kind, BP_DEV_CUDA);
    ck_assert_msg(l->stream != NULL, "a launch without a stream");
    check_stream(((const struct dev_stream *)l->stream)->owner, l->stream);
    const bool capturing = gpu_recording != NULL && gpu_recording_on == l->stream;
    ck_assert_int_eq(l->capturing != 0, capturing);
    ck_assert_uint_le(n, sizeof r->args);
    ++gpu_calls;
    if (capturing) {
        ck_assert_int_lt(gpu_recording->n, GPU_MAX_RECS);
        r = &gpu_recording->recs[gpu_recording->n++];
    }
    memset(r, 0, sizeof *r);
    r->kind = kind;
    r->self = self;
    r->l = *l;
    memcpy(r->args, args, n);
    gpu_meta(r, meta);
    if (capturing) return BP_OK;
    gpu_open_all(PROT_READ | PROT_WRITE);
    int32_t rc = gpu_execute(r, err);
    gpu_open_all(PROT_NONE);
    return rc;
}

#define GPU_FN(kind, table, fn, T, meta, number)                                                   \
    static int32_t gpu_##table##_##fn(void *self, const struct bp_launch *l, const struct T *a,    \
                                      struct bp_error *err)                                        \
    {                                                                                              \
        return gpu_call(K_##kind, self, l, a, sizeof *a, meta, err);                               \
    }
GPU_CALLS(GPU_FN)
#undef GPU_FN

/* ---- questions ---- */

static void gpu_answer(int table, uint32_t dtype, const char *field, struct bp_verdict *v)
{
    v->capture = gpu_capture[table];
    if (!gpu_f32_only[table] || dtype == BP_DT_F32 || dtype == BP_DT_I32) return;
    struct bp_reason *r = &v->reasons[v->n_reasons++];
    *r = (struct bp_reason){.code = BP_R_DTYPE,
                            .critical = 1,
                            .got = dtype,
                            .want_lo = BP_DT_F32,
                            .want_hi = BP_DT_F32};
    snprintf(r->field, sizeof r->field, "%s", field);
    v->level = BP_V_NO;
}
#define GPU_SUPPORTS(table, number, T, field)                                                      \
    static int32_t gpu_supports_##table(void *self, const void *problem, struct bp_verdict *v)     \
    {                                                                                              \
        int32_t rc = gpu_ref.table.base.supports(self, problem, v);                                \
        gpu_answer(number, ((const struct T *)problem)->field, #field, v);                         \
        return rc;                                                                                 \
    }
GPU_SUPPORTS(dense, G_DENSE, bp_dense_problem, x_dtype)
static int32_t gpu_supports_quant(void *self, const void *problem, struct bp_verdict *v)
{
    const struct bp_quant_problem *p = problem;
    int32_t rc = gpu_ref.quant.base.supports(self, problem, v);
    gpu_answer(G_QUANT, p->x_dtype, "x_dtype", v);
    if (gpu_plain && (p->n_w != 1 || p->prologue != 0 || p->epilogue != 0)) {
        v->reasons[v->n_reasons++] = (struct bp_reason){.code = BP_R_FEATURE, .critical = 1};
        v->level = BP_V_NO;
    }
    return rc;
}
GPU_SUPPORTS(common, G_COMMON, bp_mla_problem, act_dtype)
GPU_SUPPORTS(prefill, G_PREFILL, bp_mla_problem, act_dtype)
GPU_SUPPORTS(decode, G_DECODE, bp_mla_problem, act_dtype)
GPU_SUPPORTS(index, G_INDEX, bp_mla_problem, act_dtype)
GPU_SUPPORTS(moe, G_MOE, bp_moe_problem, x_dtype)
#undef GPU_SUPPORTS

static int32_t gpu_decode_workspace(void *self, const void *problem, struct bp_workspace *out,
                                    struct bp_error *err)
{
    BP_TRY(gpu_ref.decode.base.workspace(self, problem, out, err));
    if (out->plan_bytes < sizeof(struct gpu_plan)) out->plan_bytes = sizeof(struct gpu_plan);
    return BP_OK;
}

static int32_t gpu_decode_plan(void *self, const struct bp_launch *l,
                               const struct bp_mla_decode_meta *m, struct bp_error *err)
{
    struct gpu_plan p = {.n_row = m->n_row};
    (void)self;
    BP_TRY(gpu_is_lost(err));
    ck_assert_msg(gpu_recording == NULL && l->capturing == 0, "plan() inside of a capture");
    for (uint32_t i = 0; i < m->n_row; ++i) p.sum += (uint64_t)m->row_kv_len_host[i];
    ++gpu_plans;
    gpu_open_all(PROT_READ | PROT_WRITE);
    memcpy(l->plan, &p, sizeof p);
    gpu_open_all(PROT_NONE);
    return BP_OK;
}

/* ---- device ---- */

static int32_t gpu_props(void *self, struct bp_device *out, struct bp_error *err)
{
    if (gpu_absent)
        return bpi_fail(err, gpu_ill != BP_OK ? gpu_ill : BP_E_DEVICE, "fakegpu", NULL, "there are 0 cards in this machine");
    return dev_props(self, out, err);
}
static int32_t gpu_mem_info(void *self, uint64_t *free_bytes, uint64_t *total_bytes,
                            struct bp_error *err)
{
    (void)self;
    (void)err;
    *free_bytes = *total_bytes = gpu_free_bytes;
    return BP_OK;
}
static int32_t gpu_alloc(void *self, uint32_t mem, uint64_t n_bytes, void **out,
                         struct bp_error *err)
{
    ck_assert_msg(gpu_recording == NULL, "alloc() inside of a capture");
    BP_TRY(gpu_is_lost(err));
    return mem == BP_MEM_PINNED ? dev_alloc(self, mem, n_bytes, out, err) : gpu_take(n_bytes, out);
}
static int32_t gpu_copy(void *self, void *dst, const void *src, uint64_t n, uint32_t dir,
                        void *stream, struct bp_error *err)
{
    BP_TRY(gpu_is_lost(err));
    if (gpu_recording == NULL || gpu_recording_on != stream)
        return dev_copy(self, dst, src, n, dir, stream, err);
    check_stream(self, stream);
    ck_assert_msg(dir == BP_COPY_D2D, "a copy over the bus in a graph");
    ck_assert_int_lt(gpu_recording->n, GPU_MAX_RECS);
    struct gpu_rec *r = &gpu_recording->recs[gpu_recording->n++];
    memset(r, 0, sizeof *r);
    r->kind = K_COPY;
    r->dst = dst;
    r->src = src;
    r->n_bytes = n;
    return BP_OK;
}
static int32_t gpu_sync(void *self, void *stream, struct bp_error *err)
{
    ck_assert_msg(gpu_recording == NULL, "stream_sync() inside of a capture");
    BP_TRY(gpu_is_lost(err));
    ++gpu_syncs;
    return dev_sync(self, stream, err);
}
static int32_t gpu_graph_begin(void *self, void *stream, struct bp_error *err)
{
    check_stream(self, stream);
    BP_TRY(gpu_is_lost(err));
    if (gpu_no_graphs)
        return bpi_fail(err, BP_DECLINED, "fakegpu", NULL, "this device has no graphs");
    ck_assert_ptr_null(gpu_recording);
    gpu_recording = calloc(1, sizeof *gpu_recording);
    ck_assert_ptr_nonnull(gpu_recording);
    gpu_recording_on = stream;
    ++gpu_begins;
    ++gpu_graphs;
    return BP_OK;
}
static int32_t gpu_graph_end(void *self, void *stream, void **out, struct bp_error *err)
{
    check_stream(self, stream);
    ck_assert_ptr_nonnull(gpu_recording);
    ck_assert_ptr_eq(gpu_recording_on, stream);
    *out = gpu_recording;
    gpu_recording = NULL;
    if (gpu_fail_end == 0 && !gpu_lost) return BP_OK;
    free(*out);
    *out = NULL;
    --gpu_graphs;
    if (gpu_lost) return BP_E_DEVICE_LOST;
    --gpu_fail_end;
    return bpi_fail(err, BP_E_DEVICE, "fakegpu", NULL, "the capture was spoilt");
}
static int32_t gpu_graph_launch(void *self, void *graph, void *stream, struct bp_error *err)
{
    struct gpu_graph *g = graph;
    check_stream(self, stream);
    BP_TRY(gpu_is_lost(err));
    ck_assert_ptr_null(gpu_recording);
    ++gpu_launches;
    gpu_open_all(PROT_READ | PROT_WRITE);
    int32_t rc = BP_OK;
    for (int i = 0; i < g->n && rc == BP_OK; ++i) rc = gpu_execute(&g->recs[i], err);
    gpu_open_all(PROT_NONE);
    return rc;
}
static void gpu_graph_destroy(void *self, void *graph)
{
    (void)self;
    if (graph == NULL) return;
    free(graph);
    --gpu_graphs;
}

/* ---- plugin ---- */

static const struct bp_plugin_desc *gpu_ref_desc;
static struct bp_plugin_desc gpu_desc;
static struct bp_device_ops gpu_device;
static void *gpu_ref_plugins[MAX_DEVS]; /* by instance of fakedev */

static int32_t gpu_open(const struct bp_host *host, void **plugin, struct bp_error *err)
{
    BP_TRY(dev_open(host, plugin, err));
    return gpu_ref_desc->open(host, &gpu_ref_plugins[(struct dev *)*plugin - devs], err);
}
static void gpu_close(void *plugin)
{
    gpu_ref_desc->close(gpu_ref_plugins[(struct dev *)plugin - devs]);
    dev_close(plugin);
}
static int32_t gpu_create(void *plugin, const struct bp_op_entry *e, const struct bp_device *dev,
                          const struct bp_op_ref *inner, uint32_t n, struct bp_op_ref *out,
                          struct bp_error *err)
{
    if (strcmp(e->iface, "bp.device") == 0) {
        *out = (struct bp_op_ref){.vt = &gpu_device.base, .self = plugin};
        return BP_OK;
    }
    if (dev == NULL || dev->kind != BP_DEV_CUDA)
        return bpi_fail(err, BP_DECLINED, "fakegpu", NULL, "set engine.device = cuda:0");
    BP_TRY(gpu_ref_desc->op_create(gpu_ref_plugins[(struct dev *)plugin - devs], e, NULL, inner, n,
                                   out, err));
#define GPU_TAKE(name, member, T)                                                                  \
    if (strcmp(e->iface, name) == 0) {                                                             \
        gpu_ref.member = gpu_own.member = *(const struct T *)(const void *)out->vt;                \
        gpu_own.member.base.supports = gpu_supports_##member;                                      \
        out->vt = &gpu_own.member.base;                                                            \
    }
    GPU_TAKE("bp.dense", dense, bp_dense_ops)
    GPU_TAKE("bp.quant", quant, bp_quant_ops)
    GPU_TAKE("bp.mla.common", common, bp_mla_common_ops)
    GPU_TAKE("bp.mla.prefill", prefill, bp_mla_prefill_ops)
    GPU_TAKE("bp.mla.decode", decode, bp_mla_decode_ops)
    GPU_TAKE("bp.mla.index", index, bp_mla_index_ops)
    GPU_TAKE("bp.moe", moe, bp_moe_ops)
#undef GPU_TAKE
#define GPU_HOOK(kind, table, fn, T, meta, number) gpu_own.table.fn = gpu_##table##_##fn;
    GPU_CALLS(GPU_HOOK)
#undef GPU_HOOK
    gpu_own.decode.base.workspace = gpu_decode_workspace;
    gpu_own.decode.plan = gpu_decode_plan;
    return BP_OK;
}
static void gpu_destroy(void *plugin, struct bp_op_ref *op)
{
    if (op->vt != &gpu_device.base)
        gpu_ref_desc->op_destroy(gpu_ref_plugins[(struct dev *)plugin - devs], op);
}
static const struct bp_plugin_desc *gpu_query(const struct bp_query *q)
{
    (void)dev_query(q); /* fills dev_ops */
    gpu_device = dev_ops;
    gpu_device.props = gpu_props;
    gpu_device.mem_info = gpu_mem_info;
    gpu_device.alloc = gpu_alloc;
    gpu_device.free = gpu_free;
    gpu_device.copy = gpu_copy;
    gpu_device.stream_sync = gpu_sync;
    gpu_device.graph_begin = gpu_graph_begin;
    gpu_device.graph_end = gpu_graph_end;
    gpu_device.graph_launch = gpu_graph_launch;
    gpu_device.graph_destroy = gpu_graph_destroy;
    gpu_ref_desc = bp_reference_query()(q);
    gpu_desc = *gpu_ref_desc;
    gpu_desc.name = "fakegpu";
    gpu_desc.cfg = NULL;
    gpu_desc.n_cfg = 0;
    gpu_desc.open = gpu_open;
    gpu_desc.close = gpu_close;
    gpu_desc.op_create = gpu_create;
    gpu_desc.op_destroy = gpu_destroy;
    return &gpu_desc;
}

#endif
