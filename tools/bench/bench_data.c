/* bench_data.c - random numbers and weights: valid, finite, of a size as in real models, the same for the same seed.
 * Weights are encoded by core/block from normal numbers, a few MiB of them, which are repeated. Weights for a device are
 * mapped to those MiB again and again, so that the experts of a layer need no host memory of their own; where the host
 * computes, they are copies, since its caches would else hold all of them.
 * SPDX-License-Identifier: MIT */
#include "bench_priv.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static uint64_t next(uint64_t *seed)
{
    uint64_t z = (*seed += UINT64_C(0x9e3779b97f4a7c15)); /* splitmix64 */
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static double uniform(uint64_t *seed)
{
    return (double)(next(seed) >> 11) * 0x1p-53;
}

double bench_uniform(struct bench *b)
{
    return uniform(&b->seed);
}

uint32_t bench_below(struct bench *b, uint32_t n)
{
    return (uint32_t)(uniform(&b->seed) * n);
}

/* Near enough to normal: the sum of four uniforms, of variance 1. */
static float normal(uint64_t *seed)
{
    double sum = 0.0;
    for (int i = 0; i < 4; ++i) sum += uniform(seed) - 0.5;
    return (float)(sum * 1.7320508075688772);
}

uint64_t bench_dtype_bytes(uint32_t dtype)
{
    switch (dtype) {
    case BP_DT_F16:
    case BP_DT_BF16:
        return 2;
    case BP_DT_U8:
        return 1;
    case BP_DT_I64:
        return 8;
    default:
        return 4;
    }
}

static uint32_t type_of(uint32_t dtype)
{
    return dtype == BP_DT_F16 ? BP_GGUF_F16 : dtype == BP_DT_BF16 ? BP_GGUF_BF16 : BP_GGUF_F32;
}

int32_t bench_fill_blocks(uint64_t *seed, uint32_t type, double size, unsigned char *dst,
                          uint64_t n_bytes, struct bp_error *err)
{
    /* Elements that are made; then they repeat. Encoding takes its time, plain numbers do not. */
    enum { ENCODED = 1 << 14, PLAIN = 1 << 18 };
    const char *name;
    uint32_t elems, bytes;
    if (bp_block_shape(type, &name, &elems, &bytes) != BP_OK)
        return bench_fail(err, BP_E_ARG, "type", "there is no tensor type %u", type);
    uint64_t fresh = (uint64_t)(elems > 1 ? ENCODED : PLAIN) / elems * bytes;
    if (fresh > n_bytes) fresh = n_bytes / bytes * bytes;
    const uint64_t n = fresh / bytes * elems;
    float *x = malloc((n + 1) * sizeof *x);
    if (x == NULL)
        return bench_fail(err, BP_E_NOMEM, "memory", "no memory for %llu numbers",
                          (unsigned long long)n);
    for (uint64_t i = 0; i < n; ++i) x[i] = (float)size * normal(seed);
    const int32_t rc = bp_block_encode(type, x, n, dst, err);
    free(x);
    BP_TRY(rc);
    for (uint64_t at = fresh; at < n_bytes; at += fresh)
        memcpy(dst + at, dst, at + fresh <= n_bytes ? fresh : n_bytes - at);
    return BP_OK;
}

int32_t bench_numbers(struct bench *b, uint32_t dtype, uint64_t n_bytes, double size, void **out,
                      struct bp_error *err)
{
    enum { PIECE = 8 << 20 };
    const size_t mark = b->n_blocks;
    const uint64_t piece = n_bytes < PIECE ? n_bytes : PIECE;
    void *host;
    unsigned char *dst;
    BP_TRY(bench_alloc(b, BP_MEM_DEVICE, n_bytes, out, err));
    if (size == 0.0 || n_bytes == 0) return BP_OK; /* zeroed already */
    dst = *out;
    BP_TRY(bench_heap(b, piece, &host, err));
    BP_TRY(bench_fill_blocks(&b->seed, type_of(dtype), size, host, piece, err));
    BP_TRY(bench_upload(b, dst, host, piece, err));
    for (uint64_t at = piece; at < n_bytes; at += at) /* doubled on the device */
        BP_TRY(b->d->copy(b->dself, dst + at, dst, at <= n_bytes - at ? at : n_bytes - at,
                          BP_COPY_D2D, b->stream, err));
    BP_TRY(b->d->stream_sync(b->dself, b->stream, err));
    bench_free_to(b, mark + 1);
    return BP_OK;
}

int32_t bench_tensor(struct bench *b, uint32_t dtype, uint32_t ndim, const int64_t *dim,
                     double size, struct bp_tensor *out, struct bp_error *err)
{
    int64_t n = 1;
    *out = (struct bp_tensor){.dtype = dtype, .ndim = ndim};
    for (uint32_t i = ndim; i-- > 0;) {
        out->dim[i] = dim[i];
        out->stride[i] = n;
        n *= dim[i];
    }
    return bench_numbers(b, dtype, (uint64_t)n * bench_dtype_bytes(dtype), size, &out->data, err);
}

int32_t bench_ints(struct bench *b, const int32_t *v, uint64_t n, void **out, struct bp_error *err)
{
    BP_TRY(bench_alloc(b, BP_MEM_DEVICE, n * sizeof *v, out, err));
    return bench_upload(b, *out, v, n * sizeof *v, err);
}

/* ---- weights ---- */

uint64_t bench_weight_bytes(uint32_t type, int64_t ne0, int64_t ne1, int64_t ne2)
{
    const char *name;
    uint32_t elems, bytes;
    if (bp_block_shape(type, &name, &elems, &bytes) != BP_OK) return 0;
    return (uint64_t)(ne0 / elems) * bytes * (uint64_t)ne1 * (uint64_t)ne2;
}

static uint64_t common_multiple(uint64_t a, uint64_t b)
{
    uint64_t x = a, y = b;
    while (y != 0) {
        const uint64_t r = x % y;
        x = y;
        y = r;
    }
    return a / x * b;
}

int32_t bench_pattern_make(struct bench_pattern *p, uint64_t *seed, uint32_t type, double size,
                           struct bp_error *err)
{
    enum { WANTED = 16 << 20 };
    const char *name;
    uint32_t elems, bytes;
    p->file = NULL;
    if (bp_block_shape(type, &name, &elems, &bytes) != BP_OK)
        return bench_fail(err, BP_E_ARG, "type", "there is no tensor type %u", type);
    const uint64_t unit = common_multiple(bytes, (uint64_t)sysconf(_SC_PAGESIZE));
    p->n = WANTED / unit * unit;
    if (p->n == 0) p->n = unit;
    p->type = type;
    unsigned char *data = malloc(p->n);
    p->file = tmpfile();
    int32_t rc = BP_OK;
    if (data == NULL || p->file == NULL)
        rc = bench_fail(err, data == NULL ? BP_E_NOMEM : BP_E_IO, "weights",
                        "no room for %llu bytes of random weights: %s", (unsigned long long)p->n,
                        strerror(errno));
    if (rc == BP_OK) rc = bench_fill_blocks(seed, type, size, data, p->n, err);
    if (rc == BP_OK && (fwrite(data, 1, p->n, p->file) != p->n || fflush(p->file) != 0))
        rc = bench_fail(err, BP_E_IO, "weights",
                        "a temporary file of %llu bytes cannot be written: %s",
                        (unsigned long long)p->n, strerror(errno));
    free(data);
    if (rc != BP_OK) bench_pattern_free(p);
    return rc;
}

void bench_pattern_free(struct bench_pattern *p)
{
    if (p->file != NULL) (void)fclose(p->file);
    p->file = NULL;
}

int32_t bench_pattern_map(const struct bench_pattern *p, unsigned char *at, uint64_t n,
                          struct bp_error *err)
{
    for (uint64_t done = 0; done < n; done += p->n) {
        const uint64_t part = n - done < p->n ? n - done : p->n;
        void *m = mmap(at + done, part, PROT_READ, MAP_SHARED | MAP_FIXED, fileno(p->file), 0);
        if (m == MAP_FAILED)
            return bench_fail(err, BP_E_NOMEM, "weights",
                              "random weights cannot be mapped (%s); ask for fewer layers",
                              strerror(errno));
    }
    return BP_OK;
}

void *bench_reserve(uint64_t n)
{
    void *p =
        mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

int32_t bench_raw(struct bench *b, uint32_t type, int64_t ne0, int64_t ne1, int64_t ne2,
                  struct bp_raw *out, struct bp_error *err)
{
    enum { LARGE = 32 << 20 };
    const uint64_t n = bench_weight_bytes(type, ne0, ne1, ne2);
    const double size = 1.0 / sqrt((double)ne0);
    void *p;
    if (b->on_host || n < LARGE) {
        BP_TRY(bench_heap(b, n, &p, err));
        BP_TRY(bench_fill_blocks(&b->seed, type, size, p, n, err));
    } else {
        struct bench_pattern pattern;
        BP_TRY(bench_keep(b, NULL, BENCH_MAP, n, err));
        p = bench_reserve(n);
        if (p == NULL) return bench_fail(err, BP_E_NOMEM, "weights", "no address space");
        b->blocks[b->n_blocks - 1].p = p;
        BP_TRY(bench_pattern_make(&pattern, &b->seed, type, size, err));
        const int32_t rc = bench_pattern_map(&pattern, p, n, err);
        bench_pattern_free(&pattern);
        BP_TRY(rc);
    }
    *out = (struct bp_raw){.h = BP_HDR(struct bp_raw, reserved),
                           .data = p,
                           .n_bytes = n,
                           .type = type,
                           .n_dim = ne2 > 1 ? 3 : 2,
                           .ne = {ne0, ne1, ne2, 1},
                           .end = {ne0, ne1, ne2, 1},
                           .name = "random weight",
                           .scale = 1.0f};
    return BP_OK;
}
