/* plugin.c - attn_triton_like: the four MLA interfaces on CUDA devices, for any dimensions; the frame of the plugin.
 * The work is in common.c and weights.c (caches, up-projections), attend.c (prefill, decode) and index.c.
 * Threads: as plugin.h says. SPDX-License-Identifier: MIT */
#include "attn.h"

static const uint32_t architectures[] = {900, 1200, 900 | 1u << 31};

static const struct bp_cfg_key keys[] = {
    {"split_keys", "int", "0",
     "cached tokens that one part of a decode row covers; 0 chooses it from all rows of the step. "
     "A fixed number makes a "
     "row's bits independent of its neighbours and costs speed at small batches",
     0, 1 << 24},
};

static int32_t plugin_open(const struct bp_host *host, void **plugin, struct bp_error *err)
{
    struct attn_plugin *p = bp_mem_alloc(host, 1, sizeof *p);
    if (p == NULL)
        return bp_error_set(err, BP_E_NOMEM, ATTN_NAME, "open", "no memory for the plugin's state");
    p->host = host;
    const int32_t rc = bp_cfg_i64(host, "split_keys", 0, &p->split_keys);
    if (rc != BP_OK || p->split_keys < 0 || p->split_keys > 1 << 24 ||
        (p->split_keys != 0 && p->split_keys < ATTN_KEY_STEP)) {
        bp_mem_free(host, p);
        return bp_error_number(err, BP_E_CONFIG, ATTN_NAME, "split_keys",
                               "split_keys must be 0, or from ", ATTN_KEY_STEP, " to 16777216");
    }
    *plugin = p;
    return BP_OK;
}

static void plugin_close(void *plugin)
{
    struct attn_plugin *p = plugin;
    bp_mem_free(p->host, p);
}

static const struct bp_op_base *table_of(const char *iface)
{
    if (strcmp(iface, "bp.mla.common") == 0) return &attn_common_ops.base;
    if (strcmp(iface, "bp.mla.prefill") == 0) return &attn_prefill_ops.base;
    if (strcmp(iface, "bp.mla.decode") == 0) return &attn_decode_ops.base;
    if (strcmp(iface, "bp.mla.index") == 0) return &attn_index_ops.base;
    return NULL;
}

static int32_t plugin_op_create(void *plugin, const struct bp_op_entry *entry,
                                const struct bp_device *dev, const struct bp_op_ref *inner,
                                uint32_t n_inner, struct bp_op_ref *out, struct bp_error *err)
{
    struct attn_plugin *p = plugin;
    const struct bp_op_base *vt = table_of(entry->iface);
    (void)inner;
    if (vt == NULL)
        return bp_error_set(err, BP_DECLINED, ATTN_NAME, entry->iface,
                            "this plugin does not offer the interface");
    if (n_inner != 0) {
        return bp_error_number(err, BP_E_ARG, ATTN_NAME, entry->iface,
                               "a backend wraps nothing, and ", n_inner, " inner ops were given");
    }
    if (dev == NULL || dev->kind != BP_DEV_CUDA) {
        return bp_error_set(err, BP_DECLINED, ATTN_NAME, entry->iface,
                            "this op computes on CUDA devices; set engine.device = cuda:0");
    }
    struct attn_op *o = bp_mem_alloc(p->host, 1, sizeof *o);
    if (o == NULL)
        return bp_error_set(err, BP_E_NOMEM, ATTN_NAME, entry->iface, "no memory for the op");
    o->plugin = p;
    o->dev = dev;
    if (vt == &attn_common_ops.base) {
        const int32_t rc = attn_common_open(o, err);
        if (rc != BP_OK) {
            bp_mem_free(p->host, o);
            return rc;
        }
    }
    out->vt = vt;
    out->self = o;
    return BP_OK;
}

static void plugin_op_destroy(void *plugin, struct bp_op_ref *op)
{
    struct attn_plugin *p = plugin;
    attn_common_close(op->self);
    bp_mem_free(p->host, op->self);
    op->vt = NULL;
    op->self = NULL;
}

BP_PLUGIN(BP_KIND_BACKEND, ATTN_NAME, "0.1.0",
          BP_ABOUT("Backplane", "MIT",
                   "multi-head latent attention on CUDA devices, simple and for any dimensions"),
          BP_CUDA(13000, 13000, architectures), BP_KEYS(keys),
          BP_HOOKS(plugin_open, plugin_close, plugin_op_create, plugin_op_destroy),
          ("bp.mla.common", "paged"), ("bp.mla.prefill", "tiled"), ("bp.mla.decode", "split"),
          ("bp.mla.index", "radix"));
