/* frame.c - the reference backend under another name, so that a copy of it with one edit is a plugin of its own.
 * Everything goes through ref's own descriptor; only name, note and entry are ours. The copy's edited source is linked
 * in front of the libraries of core, whose members then stand for all the rest.
 * Not here: the edits (faults.py). Threads: as the plugin contract says. SPDX-License-Identifier: MIT */
#include "backplane/sdk.h"

#include "ref/ref.h"

static const struct bp_plugin_desc *ref_desc(void)
{
    const struct bp_query q = {.h = BP_HDR(struct bp_query, engine_version),
                               .host_major = BP_ABI_MAJOR,
                               .host_minor = BP_ABI_MINOR};
    return bpi_ref_query(&q);
}

static int32_t copy_open(const struct bp_host *host, void **plugin, struct bp_error *err)
{
    return ref_desc()->open(host, plugin, err);
}

static void copy_close(void *plugin)
{
    ref_desc()->close(plugin);
}

static int32_t copy_op_create(void *plugin, const struct bp_op_entry *entry,
                              const struct bp_device *dev, const struct bp_op_ref *inner,
                              uint32_t n_inner, struct bp_op_ref *out, struct bp_error *err)
{
    return ref_desc()->op_create(plugin, entry, dev, inner, n_inner, out, err);
}

static void copy_op_destroy(void *plugin, struct bp_op_ref *op)
{
    ref_desc()->op_destroy(plugin, op);
}

static const struct bp_cfg_key keys[] = {
    {"round", "enum:none|bf16|f16", "none", "As in [plugin.ref].", 0, 0},
};

BP_PLUGIN(BP_KIND_BACKEND, NAME, "0.1.0",
          BP_ABOUT("Backplane", "MIT", "a copy of the reference backend, for tests"), BP_NO_CUDA,
          BP_KEYS(keys), BP_HOOKS(copy_open, copy_close, copy_op_create, copy_op_destroy),
          ("bp.dense", "copy"), ("bp.quant", "copy"), ("bp.moe", "copy"), ("bp.mla.common", "copy"),
          ("bp.mla.prefill", "copy"), ("bp.mla.decode", "copy"), ("bp.mla.index", "copy"));
