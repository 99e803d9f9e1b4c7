/* device.c - the device slot on CUDA: memory, copies, streams, events, graphs, properties.
 * Every function makes its device current first, because a rank's thread may call here before anything else did.
 * An error is taken out of the run time as it is told, so that the next launch does not find it.
 * Not here: any arithmetic. Threads: as slot_device.h says; there is no state to guard.
 * SPDX-License-Identifier: MIT */
#include "device_cuda.h"

static int32_t told(struct bp_error *err, const char *where, cudaError_t e, const char *what)
{
    if (e == cudaSuccess) return BP_OK;
    (void)cudaGetLastError();
    return bp_cuda_status(err, DC_NAME, where, e, what);
}

static cudaError_t use(void *self)
{
    const struct dc_device *d = self;
    return cudaSetDevice(d->ordinal);
}

/* ---- what is there ---------------------------------------------------------------------------- */

/* No device work: props() says whether the device answers. */
static int32_t device_supports(void *self, const void *problem, struct bp_verdict *v)
{
    const struct bp_device_problem *p = problem;
    const struct dc_device *d = self;
    if (!bp_verdict_begin(v, &p->h, BP_END(struct bp_device_problem, ordinal))) return BP_OK;
    if (p->kind != BP_DEV_CUDA) {
        bp_reason_add(v, BP_R_DEVICE, 1, "kind", p->kind, BP_DEV_CUDA, BP_DEV_CUDA,
                      "this plugin opens CUDA devices only");
    }
    bp_want_eq(v, BP_R_DEVICE, "ordinal", p->ordinal, d->ordinal);
    bp_want_ge(v, BP_R_DEVICE, "ordinal", p->ordinal, 0);
    return bp_verdict_done(v, BP_CAPTURE_ANY, BP_DET_BATCH, -1.0);
}

static int32_t device_workspace(void *self, const void *problem_max, struct bp_workspace *out,
                                struct bp_error *err)
{
    (void)self, (void)problem_max, (void)err;
    return bp_workspace_set(out, 0, 0, 0, 0);
}

static void add_version(struct bp_text *t, int version)
{
    bp_text_i64(t, version / 1000);
    bp_text_add(t, ".");
    bp_text_i64(t, version % 1000 / 10);
}

/* Why no device can be had at all, in words that say what to do. */
static int32_t fail_driver(struct bp_error *err, cudaError_t e)
{
    struct bp_text t;
    int driver = 0;
    const int32_t code = bp_error_begin(err, &t, BP_E_DEVICE, DC_NAME, "device");
    if (err != NULL) err->native = (int32_t)e;
    (void)cudaDriverGetVersion(&driver);
    (void)cudaGetLastError();
    if (e == cudaErrorNoDevice) {
        bp_text_add(&t, "the NVIDIA driver shows no GPU to this process; see nvidia-smi and "
                        "CUDA_VISIBLE_DEVICES, or set engine.device = cpu");
    } else if (driver == 0) {
        bp_text_add(&t, "there is no NVIDIA driver on this machine (libcuda.so.1); install one for "
                        "CUDA ");
        add_version(&t, DC_CUDA_VERSION);
        bp_text_add(&t, " or set engine.device = cpu");
    } else if (driver < DC_CUDA_VERSION) {
        bp_text_add(&t, "the NVIDIA driver serves CUDA ");
        add_version(&t, driver);
        bp_text_add(&t, ", and this plugin needs ");
        add_version(&t, DC_CUDA_VERSION);
        bp_text_add(&t, "; install a newer driver");
    } else {
        return bp_cuda_status(err, DC_NAME, "device", e, "the NVIDIA driver does not start");
    }
    return code;
}

static int32_t fail_ordinal(struct bp_error *err, int32_t ordinal, int n_devices)
{
    struct bp_text t;
    const int32_t code = bp_error_begin(err, &t, BP_E_DEVICE, DC_NAME, "device");
    bp_text_add(&t, "cuda:");
    bp_text_i64(&t, ordinal);
    bp_text_add(&t, " is not there; this machine has ");
    bp_text_i64(&t, n_devices);
    bp_text_add(&t, n_devices == 1 ? " CUDA device, cuda:0" : " CUDA devices, cuda:0 to cuda:");
    if (n_devices != 1) bp_text_i64(&t, n_devices - 1);
    return code;
}

static int32_t fail_arch(struct bp_error *err, const struct cudaDeviceProp *p)
{
    struct bp_text t;
    const int32_t code = bp_error_begin(err, &t, BP_E_DEVICE, DC_NAME, "device");
    bp_text_add(&t, p->name);
    bp_text_add(&t, " has compute capability ");
    bp_text_i64(&t, p->major);
    bp_text_add(&t, ".");
    bp_text_i64(&t, p->minor);
    bp_text_add(&t, ", and this plugin was built for others; rebuild it with this one in "
                    "BP_CUDA_ARCHS (9.0 is the lowest that it can be built for)");
    return code;
}

/* The driver's handle of the primary context, for plugins that want it. The run time has it current by now. */
static void *current_context(void)
{
    void *fn = NULL, *ctx = NULL;
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t e =
        cudaGetDriverEntryPointByVersion("cuCtxGetCurrent", &fn, 12000, cudaEnableDefault, &found);
    if (e != cudaSuccess || found != cudaDriverEntryPointSuccess) return NULL;
    int (*get)(void **) = NULL;
    memcpy(&get, &fn, sizeof get); /* a function's address came as an object's */
    return get(&ctx) == 0 ? ctx : NULL;
}

static void fill_props(struct bp_device *out, int32_t ordinal, const struct cudaDeviceProp *p,
                       int driver)
{
    struct bp_device d = {.h = BP_HDR(struct bp_device, name),
                          .kind = BP_DEV_CUDA,
                          .ordinal = ordinal,
                          .cc_major = p->major,
                          .cc_minor = p->minor,
                          .n_sm = (uint32_t)p->multiProcessorCount,
                          .l2_bytes = (uint32_t)p->l2CacheSize,
                          .total_bytes = p->totalGlobalMem,
                          .smem_bytes = p->sharedMemPerBlockOptin,
                          .driver_version = (uint32_t)driver,
                          .ctx = current_context()};
    struct bp_text t;
    memcpy(d.uuid, &p->uuid, sizeof d.uuid);
    bp_text_begin(&t, d.name, sizeof d.name);
    bp_text_add(&t, p->name);
    /* The caller's struct may end earlier than ours. */
    const struct bp_hdr h = out->h;
    memcpy(out, &d, h.size < d.h.size ? h.size : d.h.size);
    out->h = h;
}

static int32_t device_props(void *self, struct bp_device *out, struct bp_error *err)
{
    const struct dc_device *d = self;
    int n_devices = 0, driver = 0;
    struct cudaDeviceProp p;
    cudaError_t e = cudaGetDeviceCount(&n_devices);
    if (e != cudaSuccess || n_devices == 0) {
        (void)cudaGetLastError();
        return fail_driver(err, e == cudaSuccess ? cudaErrorNoDevice : e);
    }
    if (d->ordinal >= n_devices) return fail_ordinal(err, d->ordinal, n_devices);
    BP_TRY(
        told(err, "device", cudaGetDeviceProperties(&p, d->ordinal), "the device does not answer"));
    if (p.major * 10 + p.minor < DC_MIN_CC) return fail_arch(err, &p);
    BP_TRY(told(err, "device", cudaSetDevice(d->ordinal), "the device cannot be used"));
    e = (cudaError_t)dc_probe();
    if (e == cudaErrorNoKernelImageForDevice || e == cudaErrorUnsupportedPtxVersion ||
        e == cudaErrorInvalidDeviceFunction)
        return fail_arch(err, &p);
    BP_TRY(told(err, "device", e, "the device does not take kernels"));
    BP_TRY(told(err, "device", cudaDriverGetVersion(&driver), "the driver tells no version"));
    fill_props(out, d->ordinal, &p, driver);
    return BP_OK;
}

static int32_t device_mem_info(void *self, uint64_t *free_bytes, uint64_t *total_bytes,
                               struct bp_error *err)
{
    size_t now = 0, all = 0;
    cudaError_t e = use(self);
    if (e == cudaSuccess) e = cudaMemGetInfo(&now, &all);
    *free_bytes = now;
    *total_bytes = all;
    return told(err, "device.mem_info", e, "the device was asked for its memory");
}

/* ---- memory ----------------------------------------------------------------------------------- */

static int32_t alloc_pinned(uint64_t n_bytes, void **out, struct bp_error *err)
{
    const cudaError_t e = cudaHostAlloc(out, (size_t)n_bytes, cudaHostAllocPortable);
    if (e == cudaSuccess) {
        memset(*out, 0, (size_t)n_bytes);
        return BP_OK;
    }
    *out = NULL;
    (void)cudaGetLastError();
    if (e != cudaErrorMemoryAllocation)
        return bp_cuda_status(err, DC_NAME, "device.alloc", e, "pinned host memory cannot be had");
    return bp_error_number(err, BP_E_NOMEM, DC_NAME, "device.alloc", "", (int64_t)n_bytes,
                           " bytes of pinned host memory cannot be had; free host memory, or raise "
                           "the limit on locked memory (ulimit -l)");
}

static int32_t device_alloc(void *self, uint32_t mem, uint64_t n_bytes, void **out,
                            struct bp_error *err)
{
    *out = NULL;
    BP_TRY(told(err, "device.alloc", use(self), "the device cannot be used"));
    if (n_bytes == 0) n_bytes = 1; /* an address of its own all the same */
    if (mem == BP_MEM_PINNED) return alloc_pinned(n_bytes, out, err);
    BP_TRY(bp_cuda_alloc(out, n_bytes, err, DC_NAME, "device.alloc", "the allocation"));
    /* The thread's own stream: the legacy one would wait for all others. */
    cudaError_t e = cudaMemsetAsync(*out, 0, (size_t)n_bytes, cudaStreamPerThread);
    if (e == cudaSuccess) e = cudaStreamSynchronize(cudaStreamPerThread);
    if (e == cudaSuccess) return BP_OK;
    (void)cudaFree(*out);
    *out = NULL;
    return told(err, "device.alloc", e, "new memory could not be zeroed");
}

static void device_free(void *self, uint32_t mem, void *p)
{
    if (p == NULL) return;
    (void)use(self);
    (void)(mem == BP_MEM_PINNED ? cudaFreeHost(p) : cudaFree(p));
    (void)cudaGetLastError();
}

static int32_t device_copy(void *self, void *dst, const void *src, uint64_t n_bytes, uint32_t dir,
                           void *stream, struct bp_error *err)
{
    static const enum cudaMemcpyKind kinds[] = {cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost,
                                                cudaMemcpyDeviceToDevice};
    if (dir >= BP_LEN(kinds))
        return bp_error_number(err, BP_E_ARG, DC_NAME, "device.copy", "direction ", dir,
                               " is none of 0, 1, 2");
    if (n_bytes == 0) return BP_OK;
    cudaError_t e = use(self);
    if (e == cudaSuccess) e = cudaMemcpyAsync(dst, src, (size_t)n_bytes, kinds[dir], stream);
    return told(err, "device.copy", e, "the copy failed");
}

static int32_t device_fill(void *self, void *dst, uint8_t value, uint64_t n_bytes, void *stream,
                           struct bp_error *err)
{
    if (n_bytes == 0) return BP_OK;
    cudaError_t e = use(self);
    if (e == cudaSuccess) e = cudaMemsetAsync(dst, value, (size_t)n_bytes, stream);
    return told(err, "device.fill", e, "the fill failed");
}

/* ---- streams and events ------------------------------------------------------------------------ */

static int32_t stream_create(void *self, void **out, struct bp_error *err)
{
    cudaStream_t s = NULL;
    cudaError_t e = use(self);
    if (e == cudaSuccess) e = cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    *out = s;
    return told(err, "device.stream_create", e, "no stream can be had");
}

static void stream_destroy(void *self, void *stream)
{
    if (stream == NULL) return;
    (void)use(self);
    (void)cudaStreamSynchronize(stream);
    (void)cudaStreamDestroy(stream);
    (void)cudaGetLastError();
}

static int32_t stream_sync(void *self, void *stream, struct bp_error *err)
{
    cudaError_t e = use(self);
    if (e == cudaSuccess) e = cudaStreamSynchronize(stream);
    return told(err, "device.stream_sync", e, "work on the device failed");
}

static int32_t event_create(void *self, void **out, struct bp_error *err)
{
    cudaEvent_t made = NULL;
    cudaError_t e = use(self);
    if (e == cudaSuccess) e = cudaEventCreate(&made);
    *out = made;
    return told(err, "device.event_create", e, "no event can be had");
}

static void event_destroy(void *self, void *event)
{
    if (event == NULL) return;
    (void)use(self);
    (void)cudaEventDestroy(event);
    (void)cudaGetLastError();
}

static int32_t event_record(void *self, void *event, void *stream, struct bp_error *err)
{
    cudaError_t e = use(self);
    if (e == cudaSuccess) e = cudaEventRecord(event, stream);
    return told(err, "device.event_record", e, "the event was not recorded");
}

static int32_t event_wait(void *self, void *event, void *stream, struct bp_error *err)
{
    cudaError_t e = use(self);
    if (e == cudaSuccess) e = cudaStreamWaitEvent(stream, event, 0);
    return told(err, "device.event_wait", e, "the stream cannot wait for the event");
}

static int32_t event_elapsed_us(void *self, void *from, void *to, double *out, struct bp_error *err)
{
    float ms = 0;
    cudaError_t e = use(self);
    if (e == cudaSuccess) e = cudaEventSynchronize(from);
    if (e == cudaSuccess) e = cudaEventSynchronize(to);
    if (e == cudaSuccess) e = cudaEventElapsedTime(&ms, from, to);
    *out = (double)ms * 1000.0;
    return told(err, "device.event_elapsed_us", e, "the time between two events is not known");
}

/* ---- graphs ------------------------------------------------------------------------------------ */

/* Thread-local: what other threads do, another rank's allocation for one, does not spoil the capture. */
static int32_t graph_begin(void *self, void *stream, struct bp_error *err)
{
    cudaError_t e = use(self);
    if (e == cudaSuccess) e = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    return told(err, "device.graph_begin", e, "the capture did not begin");
}

static int32_t graph_end(void *self, void *stream, void **out_graph, struct bp_error *err)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    *out_graph = NULL;
    (void)use(self);
    /* Ends the capture even where it was spoilt, and then says so. */
    cudaError_t e = cudaStreamEndCapture(stream, &graph);
    if (e != cudaSuccess) return told(err, "device.graph_end", e, "an op cannot be captured");
    e = cudaGraphInstantiate(&exec, graph, 0);
    (void)cudaGraphDestroy(graph);
    if (e == cudaSuccess) e = cudaGraphUpload(exec, stream);
    if (e != cudaSuccess && exec != NULL) (void)cudaGraphExecDestroy(exec);
    if (e == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return bp_cuda_status(err, DC_NAME, "device.graph_end", e,
                              "no memory for the graph of a captured step");
    }
    BP_TRY(told(err, "device.graph_end", e, "the captured graph cannot be run"));
    *out_graph = exec;
    return BP_OK;
}

static int32_t graph_launch(void *self, void *graph, void *stream, struct bp_error *err)
{
    cudaError_t e = use(self);
    if (e == cudaSuccess) e = cudaGraphLaunch(graph, stream);
    return told(err, "device.graph_launch", e, "the graph was not started");
}

static void graph_destroy(void *self, void *graph)
{
    if (graph == NULL) return;
    (void)use(self);
    (void)cudaGraphExecDestroy(graph);
    (void)cudaGetLastError();
}

// clang-format off
static const struct bp_device_ops ops = {
    .base = BP_OP_BASE(struct bp_device_ops, graph_destroy, "bp.device", device_supports, device_workspace,
                       bp_device_tensors),
    .props = device_props, .mem_info = device_mem_info, .alloc = device_alloc, .free = device_free,
    .copy = device_copy, .fill = device_fill,
    .stream_create = stream_create, .stream_destroy = stream_destroy, .stream_sync = stream_sync,
    .event_create = event_create, .event_destroy = event_destroy, .event_record = event_record,
    .event_wait = event_wait, .event_elapsed_us = event_elapsed_us,
    .graph_begin = graph_begin, .graph_end = graph_end, .graph_launch = graph_launch,
    .graph_destroy = graph_destroy,
};
// clang-format on

const struct bp_op_base *dc_device_ops(void)
{
    return &ops.base;
}
