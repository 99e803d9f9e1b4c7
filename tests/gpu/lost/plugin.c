/* plugin.c - a wrapper that loses the device: behind call number `after` of quant.matmul it starts a kernel that traps.
 * Built a second time, as backplane-foreign.so, for an architecture that the device is not, the kernel cannot even be
 * started.
 * For tests/gpu/run, part errors. Threads: calls of one op never overlap. SPDX-License-Identifier: MIT */
#include <backplane/cuda/host.h>
#include <backplane/sdk.h>

#ifndef LOST_NAME
#define LOST_NAME "lost"
#endif

int32_t lost_launch(void *stream);

struct plugin {
    const struct bp_host *host;
    int64_t after;
};

struct op {
    struct plugin *plugin;
    struct bp_op_ref inner;
    int64_t n_calls;
};

static const struct bp_cfg_key keys[] = {
    {"after", "int", "3", "calls of quant.matmul before the one that loses the device", 0, 1 << 20},
};

static int32_t matmul(void *self, const struct bp_launch *l, const struct bp_quant_matmul_args *a,
                      struct bp_error *err)
{
    struct op *o = self;
    const struct bp_quant_ops *inner = (const struct bp_quant_ops *)o->inner.vt;
    BP_TRY(inner->matmul(o->inner.self, l, a, err));
    if (o->n_calls++ < o->plugin->after) return BP_OK;
    return bp_cuda_launched(err, LOST_NAME, "quant.matmul", lost_launch(l->stream));
}

static const struct bp_quant_ops ops = {
    .base = BP_OP_BASE(struct bp_quant_ops, dequantize, "bp.quant", NULL, NULL, NULL),
    .matmul = matmul};

static int32_t plugin_open(const struct bp_host *host, void **plugin, struct bp_error *err)
{
    struct plugin *p = bp_mem_alloc(host, 1, sizeof *p);
    if (p == NULL)
        return bp_error_set(err, BP_E_NOMEM, LOST_NAME, "open", "no memory for the plugin's state");
    p->host = host;
    const int32_t rc = bp_cfg_i64(host, keys[0].name, 3, &p->after);
    if (rc != BP_OK) {
        bp_mem_free(host, p);
        return bp_error_set(err, rc, LOST_NAME, keys[0].name, "a number of calls was expected");
    }
    *plugin = p;
    return BP_OK;
}

static void plugin_close(void *plugin)
{
    struct plugin *p = plugin;
    bp_mem_free(p->host, p);
}

static int32_t plugin_op_create(void *plugin, const struct bp_op_entry *entry,
                                const struct bp_device *dev, const struct bp_op_ref *inner,
                                uint32_t n_inner, struct bp_op_ref *out, struct bp_error *err)
{
    struct plugin *p = plugin;
    if (strcmp(entry->iface, "bp.quant") != 0 || dev == NULL || dev->kind != BP_DEV_CUDA)
        return bp_error_set(err, BP_DECLINED, LOST_NAME, entry->iface,
                            "only bp.quant on a CUDA device can be wrapped");
    if (n_inner != 1 || inner[0].vt == NULL)
        return bp_error_number(err, BP_E_ARG, LOST_NAME, entry->iface,
                               "a wrapper takes one inner op, and ", n_inner, " were given");
    struct op *o = bp_mem_alloc(p->host, 1, sizeof *o);
    if (o == NULL)
        return bp_error_set(err, BP_E_NOMEM, LOST_NAME, entry->iface, "no memory for the wrapper");
    o->plugin = p;
    o->inner = inner[0];
    out->vt = &ops.base;
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

BP_PLUGIN(BP_KIND_WRAPPER, LOST_NAME, "1.0.0",
          BP_ABOUT("Backplane", "MIT", "loses the device, for tests"), BP_NO_CUDA, BP_KEYS(keys),
          BP_HOOKS(plugin_open, plugin_close, plugin_op_create, plugin_op_destroy),
          ("bp.quant", LOST_NAME));
