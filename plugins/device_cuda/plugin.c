/* plugin.c - the frame of device_cuda: descriptor, instances of its two ops.
 * Not here: the device slot (device.c), the dense slot (dense.c). Threads: as plugin.h says.
 * SPDX-License-Identifier: MIT */
#include "device_cuda.h"

/* As CMake compiles it: machine code for 9.0 and 12.0, PTX of 9.0 for what comes later. */
static const uint32_t architectures[] = {900, 1200, 900 | UINT32_C(1) << 31};

static int32_t plugin_open(const struct bp_host *host, void **plugin, struct bp_error *err)
{
    struct dc_plugin *p = bp_mem_alloc(host, 1, sizeof *p);
    if (p == NULL)
        return bp_error_set(err, BP_E_NOMEM, DC_NAME, "open", "no memory for the plugin's state");
    p->host = host;
    *plugin = p;
    return BP_OK;
}

static void plugin_close(void *plugin)
{
    struct dc_plugin *p = plugin;
    bp_mem_free(p->host, p);
}

/* Does no device work: whether the device is there is for props() to say. */
static int32_t create_device(struct dc_plugin *p, const struct bp_device *dev,
                             struct bp_op_ref *out, struct bp_error *err)
{
    struct dc_device *d = bp_mem_alloc(p->host, 1, sizeof *d);
    if (d == NULL)
        return bp_error_set(err, BP_E_NOMEM, DC_NAME, "bp.device", "no memory for the op");
    d->plugin = p;
    d->ordinal = dev->ordinal;
    out->vt = dc_device_ops();
    out->self = d;
    return BP_OK;
}

/* A device that was described but not opened has no context: the op can be asked, and not run. */
static int32_t create_dense(struct dc_plugin *p, const struct bp_device *dev, struct bp_op_ref *out,
                            struct bp_error *err)
{
    struct dc_dense *d = bp_mem_alloc(p->host, 1, sizeof *d);
    if (d == NULL)
        return bp_error_set(err, BP_E_NOMEM, DC_NAME, "bp.dense", "no memory for the op");
    int32_t rc = BP_OK;
    d->plugin = p;
    d->dev = dev;
    if (dev->ctx != NULL) {
        rc = bp_cuda_use(dev, err, DC_NAME, "bp.dense");
        if (rc == BP_OK) rc = bp_cuda_blas_create(&d->blas, err, DC_NAME, "bp.dense");
    }
    if (rc != BP_OK) {
        bp_mem_free(p->host, d);
        return rc;
    }
    out->vt = dc_dense_ops();
    out->self = d;
    return BP_OK;
}

static int32_t plugin_op_create(void *plugin, const struct bp_op_entry *entry,
                                const struct bp_device *dev, const struct bp_op_ref *inner,
                                uint32_t n_inner, struct bp_op_ref *out, struct bp_error *err)
{
    const int device = strcmp(entry->iface, "bp.device") == 0;
    (void)inner;
    if (!device && strcmp(entry->iface, "bp.dense") != 0) {
        return bp_error_set(err, BP_DECLINED, DC_NAME, entry->iface,
                            "this plugin does not offer the interface");
    }
    if (n_inner != 0) {
        return bp_error_number(err, BP_E_ARG, DC_NAME, entry->iface,
                               "a backend wraps nothing, and ", n_inner, " inner ops were given");
    }
    if (dev == NULL || dev->kind != BP_DEV_CUDA) {
        return bp_error_set(err, BP_DECLINED, DC_NAME, entry->iface,
                            "this op computes on CUDA devices; set engine.device = cuda:0");
    }
    return device ? create_device(plugin, dev, out, err) : create_dense(plugin, dev, out, err);
}

static void plugin_op_destroy(void *plugin, struct bp_op_ref *op)
{
    struct dc_plugin *p = plugin;
    if (op->vt == dc_dense_ops()) {
        struct dc_dense *d = op->self;
        if (d->blas != NULL || d->staging.ready != 0)
            (void)bp_cuda_use(d->dev, NULL, DC_NAME, "bp.dense");
        if (d->blas != NULL) (void)cublasDestroy(d->blas);
        if (d->staging.ready != 0) bp_cuda_staging_end(&d->staging);
    }
    bp_mem_free(p->host, op->self);
    op->vt = NULL;
    op->self = NULL;
}

BP_PLUGIN(BP_KIND_BACKEND, DC_NAME, "0.1.0",
          BP_ABOUT("Backplane", "MIT", "NVIDIA GPUs: memory, streams, graphs, and the dense ops"),
          BP_CUDA(CUDART_VERSION, DC_CUDA_VERSION, architectures), BP_NO_KEYS,
          BP_HOOKS(plugin_open, plugin_close, plugin_op_create, plugin_op_destroy),
          ("bp.device", "cuda"), ("bp.dense", "cuda"));
