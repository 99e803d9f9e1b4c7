/* ref_plugin.c - descriptor, open and close of the reference backend; which op tables it offers.
 * Not here: any arithmetic. Threads: as the plugin contract says. SPDX-License-Identifier: MIT */
#include "ref/ref.h"

#include "base/pool.h"
#include "ref/ref_priv.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

// clang-format off
static const struct bp_cfg_key cfg_keys[] = {
    {"round", "enum:none|bf16|f16", "none",
     "Round every activation and decoded weight to this format; sums stay double. The same-precision baseline.", 0, 0},
};

static const struct {
    struct bp_op_entry entry;
    const struct bp_op_base *(*table)(void);
} offered[] = {
#define OP(iface, table) {{iface, "ref", 0, 1, 0, 0}, table}
    OP("bp.device",      bpi_ref_device_ops),
    OP("bp.dense",       bpi_ref_dense_ops),
    OP("bp.quant",       bpi_ref_quant_ops),
    OP("bp.moe",         bpi_ref_moe_ops),
    OP("bp.coll",        bpi_ref_coll_ops),
    OP("bp.mla.common",  bpi_ref_mla_common_ops),
    OP("bp.mla.prefill", bpi_ref_mla_prefill_ops),
    OP("bp.mla.decode",  bpi_ref_mla_decode_ops),
    OP("bp.mla.index",   bpi_ref_mla_index_ops),
#undef OP
};
// clang-format on

static int32_t read_config(struct bpi_ref *ref, struct bp_error *err)
{
    static const char *const rounds[] = {"none", "bf16", "f16"}; /* by enum bpi_ref_round */
    const struct bp_host *host = ref->host;
    char text[16];
    int32_t rc = host->cfg_str(host->ctx, "round", text, sizeof text);
    if (rc == BP_OK) {
        uint32_t i = 0;
        while (i < BPI_ARRAY_LEN(rounds) && strcmp(rounds[i], text) != 0) ++i;
        if (i == BPI_ARRAY_LEN(rounds)) rc = BP_E_LIMIT;
        ref->round = i;
    }
    if (rc != BP_OK && rc != BP_DECLINED) {
        return bpi_fail(err, BP_E_CONFIG, "ref", "plugin.ref.round",
                        "this key takes none, bf16 or f16, and its value is none of them");
    }
    return BP_OK;
}

static void describe_device(struct bp_device *dev)
{
    *dev = (struct bp_device){.h = BP_HDR(struct bp_device, name), .kind = BP_DEV_HOST};
    dev->n_sm = bpi_pool_cores();
    long page_bytes = sysconf(_SC_PAGESIZE), pages = sysconf(_SC_PHYS_PAGES);
    if (page_bytes > 0 && pages > 0) dev->total_bytes = (uint64_t)page_bytes * (uint64_t)pages;
#ifdef _SC_LEVEL3_CACHE_SIZE
    long cache_bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (cache_bytes > 0 && cache_bytes <= INT32_MAX) dev->l2_bytes = (uint32_t)cache_bytes;
#endif
    (void)snprintf(dev->name, sizeof dev->name, "host, %u cores", dev->n_sm);
}

static int32_t ref_open(const struct bp_host *host, void **plugin, struct bp_error *err)
{
    struct bpi_ref *ref = host->mem_alloc(host->ctx, sizeof *ref, 64);
    if (ref == NULL) return bpi_fail_nomem(err, "ref", sizeof *ref);
    ref->host = host;
    describe_device(&ref->device);
    int32_t rc = read_config(ref, err);
    if (rc != BP_OK) {
        host->mem_free(host->ctx, ref);
        return rc;
    }
    *plugin = ref;
    return BP_OK;
}

static void ref_close(void *plugin)
{
    struct bpi_ref *ref = plugin;
    ref->host->mem_free(ref->host->ctx, ref);
}

static int32_t ref_op_create(void *plugin, const struct bp_op_entry *entry,
                             const struct bp_device *dev, const struct bp_op_ref *inner,
                             uint32_t n_inner, struct bp_op_ref *out, struct bp_error *err)
{
    (void)inner;
    if (n_inner != 0) {
        return bpi_fail(err, BP_E_ARG, "ref", entry->iface,
                        "ref is a backend and wraps nothing, but %u inner ops were given", n_inner);
    }
    if (dev != NULL && dev->kind != BP_DEV_HOST) {
        return bpi_fail(err, BP_DECLINED, "ref", entry->iface,
                        "ref computes on the CPU only; set engine.device = cpu, or name a provider "
                        "for this device");
    }
    for (size_t i = 0; i < BPI_ARRAY_LEN(offered); ++i) {
        if (strcmp(offered[i].entry.iface, entry->iface) != 0) continue;
        *out = (struct bp_op_ref){.vt = offered[i].table(), .self = plugin};
        return BP_OK;
    }
    return bpi_fail(err, BP_DECLINED, "ref", entry->iface, "ref does not offer this interface");
}

/* All ops share the plugin's state, so an op itself owns nothing. */
static void ref_op_destroy(void *plugin, struct bp_op_ref *op)
{
    (void)plugin;
    *op = (struct bp_op_ref){.vt = NULL, .self = NULL};
}

// clang-format off
static const struct bp_plugin_desc desc = {
    .h = BP_HDR(struct bp_plugin_desc, op_destroy),
    .abi_major = BP_ABI_MAJOR, .abi_minor = BP_ABI_MINOR, .min_host_minor = BP_ABI_MINOR,
    .kind = BP_KIND_BACKEND,
    .name = "ref", .version = "0.1.0", .vendor = "Backplane", .license = "MIT",
    .summary = "every slot in plain C with double accumulation; defines right",
    .build_id = "built in",
    .cfg = cfg_keys, .n_cfg = BPI_ARRAY_LEN(cfg_keys), .cfg_stride = sizeof cfg_keys[0],
    .ops = &offered[0].entry, .n_ops = BPI_ARRAY_LEN(offered), .ops_stride = sizeof offered[0],
    .open = ref_open, .close = ref_close, .op_create = ref_op_create, .op_destroy = ref_op_destroy,
};
// clang-format on

const struct bp_plugin_desc *bpi_ref_query(const struct bp_query *q)
{
    /* ABI 0.x: minors must match exactly. The loader compares them too; a foreign host gets no descriptor at all. */
    if (q->host_major != BP_ABI_MAJOR || q->host_minor != BP_ABI_MINOR) return NULL;
    return &desc;
}
