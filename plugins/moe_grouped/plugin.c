/* plugin.c - moe_grouped: router and experts ("bp.moe") on CUDA devices, see docs/plugins/moe_grouped.md.
 * Not here: what is served (supports.c), weights (weights.c), launches (run.c), kernels (kernels/).
 * Threads: as plugin.h says. SPDX-License-Identifier: MIT */
#include "moe.h"

/* Machine code for Hopper and Blackwell, and PTX for what comes after. */
static const uint32_t architectures[] = {900, 1200, 900u | UINT32_C(1) << 31};

static const struct bp_moe_ops moe_ops = {
    .base =
        BP_OP_BASE(struct bp_moe_ops, run, "bp.moe", moe_supports, moe_workspace, bp_moe_tensors),
    .prepare = moe_prepare,
    .release = moe_release,
    .route = moe_route,
    .run = moe_run};

static int32_t plugin_open(const struct bp_host *host, void **plugin, struct bp_error *err)
{
    struct moe_plugin *p = bp_mem_alloc(host, 1, sizeof *p);
    if (p == NULL)
        return bp_error_set(err, BP_E_NOMEM, MOE_NAME, "open", "no memory for the plugin's state");
    p->host = host;
    *plugin = p;
    return BP_OK;
}

static void plugin_close(void *plugin)
{
    struct moe_plugin *p = plugin;
    bp_mem_free(p->host, p);
}

/* Touches no device: that begins with the first prepare(). */
static int32_t plugin_op_create(void *plugin, const struct bp_op_entry *entry,
                                const struct bp_device *dev, const struct bp_op_ref *inner,
                                uint32_t n_inner, struct bp_op_ref *out, struct bp_error *err)
{
    struct moe_plugin *p = plugin;
    (void)inner;
    if (strcmp(entry->iface, "bp.moe") != 0)
        return bp_error_set(err, BP_DECLINED, MOE_NAME, entry->iface,
                            "this plugin does not offer the interface");
    if (n_inner != 0)
        return bp_error_number(err, BP_E_ARG, MOE_NAME, entry->iface,
                               "a backend wraps nothing, and ", n_inner, " inner ops were given");
    if (dev == NULL || dev->kind != BP_DEV_CUDA)
        return bp_error_set(err, BP_DECLINED, MOE_NAME, entry->iface,
                            "this op computes on CUDA devices; set engine.device = cuda:0");
    struct moe_op *op = bp_mem_alloc(p->host, 1, sizeof *op);
    if (op == NULL)
        return bp_error_set(err, BP_E_NOMEM, MOE_NAME, entry->iface, "no memory for the op");
    op->plugin = p;
    op->dev = dev;
    out->vt = &moe_ops.base;
    out->self = op;
    return BP_OK;
}

static void plugin_op_destroy(void *plugin, struct bp_op_ref *op)
{
    struct moe_plugin *p = plugin;
    moe_op_end(op->self);
    bp_mem_free(p->host, op->self);
    op->vt = NULL;
    op->self = NULL;
}

BP_PLUGIN(BP_KIND_BACKEND, MOE_NAME, "0.1.0",
          BP_ABOUT("Backplane", "MIT", "router and experts on CUDA devices"),
          BP_CUDA(13000, 13000, architectures), BP_NO_KEYS,
          BP_HOOKS(plugin_open, plugin_close, plugin_op_create, plugin_op_destroy),
          ("bp.moe", "grouped"));
