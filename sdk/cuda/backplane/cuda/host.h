/* host.h - what the host side of every CUDA plugin needs: CUDA's errors as ours, memory with a sentence when there is
 * none, weights from the file to the device through two pinned buffers, a few facts about the device.
 * Not here: kernels and device code (*.cuh), the device slot (a plugin).
 * Header only, C11 and C++17, no state. Needs CUDA's headers and its run time (static, one per plugin): the primary
 * context of the device is what plugins share. Threads: every function may be called from any thread; one staging area
 * is used by one thread at a time. SPDX-License-Identifier: MIT */
#ifndef BP_CUDA_HOST_H
#define BP_CUDA_HOST_H

#include <cuda_runtime_api.h>
#include <string.h>

#include "backplane/sdk.h"

BP_EXTERN_C_BEGIN

/* Shared memory that a block may use on every chip that we build for (sm_120); for static_assert in kernels. */
enum { BP_CUDA_SMEM_MAX = 101376 };

/* ---- errors --------------------------------------------------------------------------------------------------- */

/* bp_cuda_is_lost - after these the context is gone: every later call of the process fails the same way. */
static inline int bp_cuda_is_lost(cudaError_t e)
{
    switch (e) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorLaunchFailure:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorDevicesUnavailable:
    case cudaErrorExternalDevice:
    case cudaErrorContextIsDestroyed:
    case cudaErrorUnknown:
        return 1;
    default:
        return 0;
    }
}

/* bp_cuda_code - our status for CUDA's. */
static inline int32_t bp_cuda_code(cudaError_t e)
{
    if (e == cudaSuccess) return BP_OK;
    if (e == cudaErrorMemoryAllocation) return BP_E_DEVMEM;
    return bp_cuda_is_lost(e) ? BP_E_DEVICE_LOST : BP_E_DEVICE;
}

/* bp_cuda_status - BP_OK, or the status of e with a sentence in *err: what failed, CUDA's words and number, what to do.
 * The run time forgets e, so that the next launch, which asks for the last error, does not find one that was told
 * already.
 * domain: the plugin's name; where: op or tensor; what: "the kernel was not started", "the copy failed". */
static inline int32_t bp_cuda_status(struct bp_error *err, const char *domain, const char *where, cudaError_t e,
                                     const char *what)
{
    struct bp_text t;
    if (e == cudaSuccess) return BP_OK;
    (void)cudaGetLastError();
    const int32_t code = bp_error_begin(err, &t, bp_cuda_code(e), domain, where);
    bp_text_add(&t, what);
    bp_text_add(&t, ": ");
    bp_text_add(&t, cudaGetErrorString(e));
    bp_text_add(&t, " (CUDA error ");
    bp_text_i64(&t, (int64_t)e);
    bp_text_add(&t, ", ");
    bp_text_add(&t, cudaGetErrorName(e));
    bp_text_add(&t, ")");
    if (code == BP_E_DEVICE_LOST) {
        bp_text_add(&t, "; the device is lost to this process, start it again");
    } else if (e == cudaErrorNoKernelImageForDevice || e == cudaErrorUnsupportedPtxVersion) {
        bp_text_add(&t, "; the plugin was not built for this device, build it with its architecture in BP_CUDA_ARCHS");
    }
    if (err != NULL) err->native = (int32_t)e;
    return code;
}

/* bp_cuda_launched - the status of a launch function, which returns (int32_t)cudaGetLastError() right after its
 * launches, so that nobody else finds its error in the run time. */
static inline int32_t bp_cuda_launched(struct bp_error *err, const char *domain, const char *where, int32_t launch)
{
    return bp_cuda_status(err, domain, where, (cudaError_t)launch, "the kernel was not started");
}

/* bp_cuda_oom - BP_E_DEVMEM with bytes wanted and free; what: "the weight", "the pool". */
static inline int32_t bp_cuda_oom(struct bp_error *err, const char *domain, const char *where, const char *what,
                                  uint64_t n_bytes)
{
    struct bp_text t;
    size_t free_bytes = 0, total_bytes = 0;
    const cudaError_t e = cudaMemGetInfo(&free_bytes, &total_bytes);
    (void)cudaGetLastError();
    if (bp_cuda_is_lost(e)) return bp_cuda_status(err, domain, where, e, "the device was asked for its memory");
    const int32_t code = bp_error_begin(err, &t, BP_E_DEVMEM, domain, where);
    bp_text_add(&t, what);
    bp_text_add(&t, " needs ");
    bp_text_u64(&t, n_bytes);
    bp_text_add(&t, " bytes of device memory, and ");
    bp_text_u64(&t, free_bytes);
    bp_text_add(&t, " of ");
    bp_text_u64(&t, total_bytes);
    bp_text_add(&t, " are free; use a smaller context, fewer layers on this device, or more devices");
    if (err != NULL) err->native = (int32_t)cudaErrorMemoryAllocation;
    return code;
}

/* bp_cuda_name - what errors about a tensor call it: its name in the file, which may be missing. */
static inline const char *bp_cuda_name(const struct bp_raw *raw)
{
    return raw->name != NULL ? raw->name : "tensor";
}

/* ---- device and memory ---------------------------------------------------------------------------------------- */

/* bp_cuda_use - makes dev's primary context current on this thread; nothing happens when it is already. First in every
 * call that touches the device: one thread may drive several devices, one call after the other. */
static inline int32_t bp_cuda_use(const struct bp_device *dev, struct bp_error *err, const char *domain,
                                  const char *where)
{
    return bp_cuda_status(err, domain, where, cudaSetDevice(dev->ordinal), "the device cannot be used");
}

/* bp_cuda_alloc - n_bytes of device memory, 256-byte aligned, not zeroed; 0 bytes give NULL. Not in a step. Free with
 * cudaFree. *out is NULL on failure; what: see bp_cuda_oom. */
static inline int32_t bp_cuda_alloc(void **out, uint64_t n_bytes, struct bp_error *err, const char *domain,
                                    const char *where, const char *what)
{
    *out = NULL;
    if (n_bytes == 0) return BP_OK;
    const cudaError_t e = cudaMalloc(out, (size_t)n_bytes);
    if (e == cudaSuccess) return BP_OK;
    *out = NULL;
    (void)cudaGetLastError(); /* it was told; the next launch shall not find it */
    if (e == cudaErrorMemoryAllocation) return bp_cuda_oom(err, domain, where, what, n_bytes);
    return bp_cuda_status(err, domain, where, e, "device memory cannot be had");
}

/* bp_cuda_free - the end of what bp_cuda_alloc gave on dev, whichever device the thread had before; NULL is nothing. */
static inline void bp_cuda_free(const struct bp_device *dev, void *p)
{
    if (p == NULL) return;
    (void)cudaSetDevice(dev->ordinal);
    (void)cudaFree(p);
    (void)cudaGetLastError();
}

/* bp_cuda_sms - multiprocessors that a launch may count on: grids of persistent kernels. */
static inline uint32_t bp_cuda_sms(const struct bp_launch *l, const struct bp_device *dev)
{
    const uint32_t all = dev->n_sm != 0 ? dev->n_sm : 1;
    return l != NULL && l->sm_limit != 0 && l->sm_limit < all ? l->sm_limit : all;
}

/* bp_cuda_grid - blocks for n items of `each`, at most `most`, at least one. */
static inline uint32_t bp_cuda_grid(int64_t n, int64_t each, int64_t most)
{
    const int64_t blocks = (n + each - 1) / each;
    return (uint32_t)(blocks < 1 ? 1 : blocks < most ? blocks : most);
}

/* bp_cuda_aligned - do the rows of a tensor start at multiples of n_bytes (a power of two)? Strides of dimensions of
 * one element do not count. */
static inline int bp_cuda_aligned(const struct bp_tensor *t, uint64_t n_bytes)
{
    if (((uintptr_t)t->data & (n_bytes - 1)) != 0) return 0;
    for (uint32_t d = 0; d + 1 < t->ndim && d < 4; ++d) {
        const uint64_t step = (uint64_t)t->stride[d] * (uint64_t)bp_dtype_bytes(t->dtype);
        if (t->dim[d] > 1 && (step & (n_bytes - 1)) != 0) return 0;
    }
    return 1;
}

/* ---- upload of weights ---------------------------------------------------------------------------------------- */

enum { BP_CUDA_STAGING_BYTES = 8 << 20 };

/* Two pinned buffers and a stream of its own; one per op instance, all zero until the first upload. While the device
 * reads one buffer, the next bytes of the file go to the other. */
struct bp_cuda_staging {
    void *buffer[2];
    cudaEvent_t done[2];  /* the device has read buffer[i] */
    cudaStream_t stream;  /* also for what follows an upload: kernels that repack */
    uint32_t next, ready; /* which buffer is next; 1 once everything exists */
};

/* bp_cuda_staging_end - frees what the uploads made; all zero again. Waits for what runs on its stream. */
static inline void bp_cuda_staging_end(struct bp_cuda_staging *s)
{
    if (s->stream != NULL) (void)cudaStreamSynchronize(s->stream);
    for (int i = 0; i < 2; ++i) {
        if (s->buffer[i] != NULL) (void)cudaFreeHost(s->buffer[i]);
        if (s->done[i] != NULL) (void)cudaEventDestroy(s->done[i]);
    }
    if (s->stream != NULL) (void)cudaStreamDestroy(s->stream);
    (void)cudaGetLastError();
    memset(s, 0, sizeof *s);
}

/* bp_cuda_staging_begin - makes stream and buffers on the current device, once; bp_cuda_upload calls it itself. */
static inline int32_t bp_cuda_staging_begin(struct bp_cuda_staging *s, struct bp_error *err, const char *domain,
                                            const char *where)
{
    if (s->ready != 0) return BP_OK;
    cudaError_t e = cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking);
    for (int i = 0; i < 2 && e == cudaSuccess; ++i) {
        e = cudaEventCreateWithFlags(&s->done[i], cudaEventDisableTiming);
        if (e == cudaSuccess) e = cudaHostAlloc(&s->buffer[i], BP_CUDA_STAGING_BYTES, cudaHostAllocDefault);
    }
    s->ready = e == cudaSuccess;
    if (e == cudaSuccess) return BP_OK;
    (void)cudaGetLastError();
    bp_cuda_staging_end(s);
    if (e == cudaErrorMemoryAllocation)
        return bp_error_set(err, BP_E_NOMEM, domain, where,
                            "no 16 MiB of pinned host memory for the upload of weights");
    return bp_cuda_status(err, domain, where, e, "the upload of weights could not begin");
}

/* bp_cuda_upload_rows - n_rows pieces of row_bytes, src_pitch bytes apart in the file (mapped memory), one after the
 * other at dst on the device; returns when the last piece is on its way and src is no longer read. What follows on
 * s->stream sees them; bp_cuda_upload_done waits. */
static inline int32_t bp_cuda_upload_rows(struct bp_cuda_staging *s, void *dst, const void *src, uint64_t row_bytes,
                                          uint64_t src_pitch, uint64_t n_rows, struct bp_error *err, const char *domain,
                                          const char *where)
{
    uint64_t row = 0, at = 0, out = 0;
    const uint64_t n_bytes = row_bytes * n_rows;
    BP_TRY(bp_cuda_staging_begin(s, err, domain, where));
    while (out < n_bytes) {
        const uint32_t i = s->next;
        unsigned char *to = (unsigned char *)s->buffer[i];
        uint64_t used = 0;
        cudaError_t e = cudaEventSynchronize(s->done[i]);
        while (e == cudaSuccess && used < BP_CUDA_STAGING_BYTES && row < n_rows) {
            const uint64_t room = BP_CUDA_STAGING_BYTES - used, rest = row_bytes - at, n = rest < room ? rest : room;
            memcpy(to + used, (const unsigned char *)src + row * src_pitch + at, (size_t)n);
            used += n;
            at += n;
            if (at == row_bytes) {
                at = 0;
                row++;
            }
        }
        if (e == cudaSuccess)
            e = cudaMemcpyAsync((unsigned char *)dst + out, to, (size_t)used, cudaMemcpyHostToDevice, s->stream);
        if (e == cudaSuccess) e = cudaEventRecord(s->done[i], s->stream);
        if (e != cudaSuccess) return bp_cuda_status(err, domain, where, e, "the upload of weights failed");
        out += used;
        s->next = 1 - i;
    }
    return BP_OK;
}

/* bp_cuda_upload - the same for one piece. */
static inline int32_t bp_cuda_upload(struct bp_cuda_staging *s, void *dst, const void *src, uint64_t n_bytes,
                                     struct bp_error *err, const char *domain, const char *where)
{
    return bp_cuda_upload_rows(s, dst, src, n_bytes, n_bytes, n_bytes != 0 ? 1 : 0, err, domain, where);
}

/* bp_cuda_upload_done - waits for all that s->stream holds, kernels included; before prepare() returns. */
static inline int32_t bp_cuda_upload_done(struct bp_cuda_staging *s, struct bp_error *err, const char *domain,
                                          const char *where)
{
    if (s->stream == NULL) return BP_OK;
    return bp_cuda_status(err, domain, where, cudaStreamSynchronize(s->stream), "the upload of weights failed");
}

BP_EXTERN_C_END
#endif
