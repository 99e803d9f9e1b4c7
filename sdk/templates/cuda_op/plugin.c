/* plugin.c - template of a plugin with a CUDA op, host part in C11: "silu_mul" of "bp.dense" on a CUDA device. All other
 * ops of bp.dense are refused with a reason, and come from the next provider of the slot's list.
 * The kernel and its launch are in silu_mul.cu. Steps 1 to 8 (5 and 6 there) are what you change.
 * Threads: as plugin.h says. SPDX-License-Identifier: MIT */
#include <backplane/cuda/host.h>
#include <backplane/sdk.h>

#include "silu_mul.h"

/* Step 1: the name by which an INI chooses the plugin; the file is backplane-NAME.so. */
#define NAME "silu_cuda"

struct plugin {
    const struct bp_host *host;
};

/* Step 2: what one op on one device keeps; dev outlives it. */
struct op {
    struct plugin *plugin;
    const struct bp_device *dev;
};

/* Step 3: supports. The architectures are those that CMakeLists.txt compiles for. */
static const uint32_t architectures[] = {900, 1200};

static int32_t dense_supports(void *self, const void *problem, struct bp_verdict *v)
{
    static const uint32_t served[] = {90, 120};
    const uint32_t floats = BP_SET(BP_DT_F32) | BP_SET(BP_DT_F16) | BP_SET(BP_DT_BF16);
    const struct op *o = self;
    const struct bp_dense_problem *p = problem;
    if (!bp_verdict_begin(v, &p->h, BP_END(struct bp_dense_problem, k))) return BP_OK;
    bp_want_of(v, BP_R_ARCH, "cc", (int64_t)o->dev->cc_major * 10 + o->dev->cc_minor, served,
               BP_LEN(served));
    bp_want_eq(v, BP_R_FEATURE, "op", p->op, BP_DENSE_OP_SILU_MUL);
    bp_want_dtype(v, "x_dtype", p->x_dtype, floats);
    bp_want_dtype(v, "y_dtype", p->y_dtype, floats);
    bp_want_ge(v, BP_R_SHAPE, "width", p->width, 0);
    return bp_verdict_done(v, BP_CAPTURE_ANY, BP_DET_BATCH, -1.0);
}

/* Step 4: memory; this op needs none besides its arguments. */
static int32_t dense_workspace(void *self, const void *problem_max, struct bp_workspace *out,
                               struct bp_error *err)
{
    (void)self, (void)problem_max, (void)err;
    return bp_workspace_set(out, 0, 0, 0, 0);
}

/* Step 7: the slot: from the engine's arguments to the launch, and its error back in words. */
static int32_t dense_silu_mul(void *self, const struct bp_launch *l,
                              const struct bp_dense_pair_args *a, struct bp_error *err)
{
    const struct op *o = self;
    struct silu_mul_rows rows = {.a = a->a.data,
                                 .b = a->b.data,
                                 .y = a->y.data,
                                 .a_stride = a->a.stride[0],
                                 .b_stride = a->b.stride[0],
                                 .y_stride = a->y.stride[0],
                                 .n_rows = a->y.dim[0],
                                 .width = a->y.dim[1],
                                 .a_dtype = a->a.dtype,
                                 .b_dtype = a->b.dtype,
                                 .y_dtype = a->y.dtype,
                                 .sm_count = bp_cuda_sms(l, o->dev)};
    if (rows.n_rows == 0 || rows.width == 0) return BP_OK;
    BP_TRY(bp_cuda_use(o->dev, err, NAME, "dense silu_mul"));
    return bp_cuda_launched(err, NAME, "dense silu_mul", silu_mul_launch(&rows, l->stream));
}

static const struct bp_dense_ops dense_ops = {.base = BP_OP_BASE(struct bp_dense_ops, matmul,
                                                                 "bp.dense", dense_supports,
                                                                 dense_workspace, bp_dense_tensors),
                                              .silu_mul = dense_silu_mul};

static int32_t plugin_open(const struct bp_host *host, void **plugin, struct bp_error *err)
{
    struct plugin *p = bp_mem_alloc(host, 1, sizeof *p);
    if (p == NULL)
        return bp_error_set(err, BP_E_NOMEM, NAME, "open", "no memory for the plugin's state");
    p->host = host;
    *plugin = p;
    return BP_OK;
}

static void plugin_close(void *plugin)
{
    struct plugin *p = plugin;
    bp_mem_free(p->host, p);
}

/* The device is looked at in supports(), where a mismatch becomes a reason; here only its kind matters. */
static int32_t plugin_op_create(void *plugin, const struct bp_op_entry *entry,
                                const struct bp_device *dev, const struct bp_op_ref *inner,
                                uint32_t n_inner, struct bp_op_ref *out, struct bp_error *err)
{
    struct plugin *p = plugin;
    (void)inner;
    if (strcmp(entry->iface, "bp.dense") != 0) {
        return bp_error_set(err, BP_DECLINED, NAME, entry->iface,
                            "this plugin does not offer the interface");
    }
    if (n_inner != 0) {
        return bp_error_number(err, BP_E_ARG, NAME, entry->iface, "a backend wraps nothing, and ",
                               n_inner, " inner ops were given");
    }
    if (dev == NULL || dev->kind != BP_DEV_CUDA) {
        return bp_error_set(err, BP_DECLINED, NAME, entry->iface,
                            "this op computes on CUDA devices; set engine.device = cuda:0");
    }
    struct op *o = bp_mem_alloc(p->host, 1, sizeof *o);
    if (o == NULL) return bp_error_set(err, BP_E_NOMEM, NAME, entry->iface, "no memory for the op");
    o->plugin = p;
    o->dev = dev;
    out->vt = &dense_ops.base;
    out->self = o;
    return BP_OK;
}

static void plugin_op_destroy(void *plugin, struct bp_op_ref *op)
{
    struct plugin *p = plugin;
    bp_mem_free(p->host, op->self);
    op->vt = NULL;
    op->self = NULL;
}

/* Step 8: note, descriptor and entry. BP_CUDA: toolkit version, lowest driver version, architectures. */
BP_PLUGIN(BP_KIND_BACKEND, NAME, "1.0.0", BP_ABOUT("your name", "MIT", "silu_mul on CUDA devices"),
          BP_CUDA(13000, 13000, architectures), BP_NO_KEYS,
          BP_HOOKS(plugin_open, plugin_close, plugin_op_create, plugin_op_destroy),
          ("bp.dense", "silu_mul"));
