/* bp_case_tensor.c - guarded tensors of a case, and the calls that use them. SPDX-License-Identifier: MIT */
#include "harness/bp_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 256, FILL = 0xff };

struct bp_case_tensor *bp_case_tensor(struct bp_case_suite *s, uint32_t dtype, uint32_t ndim,
                                      const int64_t *dim, int64_t pad, bool is_output)
{
    struct bp_error err = BP_ERROR_INIT;
    if (s->n_tensors == BP_CASE_TENSORS) {
        (void)fprintf(stderr, "a case has at most %d tensors\n", BP_CASE_TENSORS);
        exit(2);
    }
    struct bp_case_tensor *c = &s->tensors[s->n_tensors++];
    *c = (struct bp_case_tensor){.is_output = is_output};
    c->elem_bytes = dtype == BP_DT_F16 || dtype == BP_DT_BF16 ? 2 : 4;
    c->t.dtype = dtype;
    c->t.ndim = ndim;
    int64_t stride = 1;
    for (uint32_t d = ndim; d-- > 0;) {
        c->t.dim[d] = dim[d];
        c->t.stride[d] = stride;
        stride *= dim[d];
        if (d == ndim - 1 && ndim > 1) stride += pad;
    }
    c->n_bytes = (size_t)stride * c->elem_bytes + 2 * GUARD;
    c->host = bp_oracle_alloc(c->n_bytes, 1);
    c->start = bp_oracle_alloc(c->n_bytes, 1);
    c->after = bp_oracle_alloc(c->n_bytes, 1);
    memset(c->host, FILL, c->n_bytes);
    if (s->target->mem->alloc(s->target->device.self, BP_MEM_DEVICE, c->n_bytes, &c->device,
                              &err) != BP_OK) {
        (void)fprintf(stderr, "no memory on the device: %s\n", err.msg);
        exit(2);
    }
    c->t.data = (unsigned char *)c->device + GUARD;
    return c;
}

int64_t bp_case_count(const struct bp_case_tensor *t)
{
    int64_t n = 1;
    for (uint32_t d = 0; d < t->t.ndim; ++d) n *= t->t.dim[d];
    return n;
}

static int64_t offset_of(const struct bp_case_tensor *t, int64_t i)
{
    int64_t at = 0;
    for (uint32_t d = t->t.ndim; d-- > 0;) {
        at += i % t->t.dim[d] * t->t.stride[d];
        i /= t->t.dim[d];
    }
    return at;
}

double bp_case_get(const struct bp_case_tensor *t, int64_t i)
{
    return bp_oracle_get(t->host + GUARD, t->t.dtype, offset_of(t, i));
}

void bp_case_put(struct bp_case_tensor *t, int64_t i, double v)
{
    bp_oracle_put(t->host + GUARD, t->t.dtype, offset_of(t, i), v);
}

int32_t *bp_case_int(struct bp_case_tensor *t, int64_t i)
{
    return (int32_t *)(void *)(t->host + GUARD) + offset_of(t, i);
}

double *bp_case_doubles(const struct bp_case_tensor *t)
{
    const int64_t n = bp_case_count(t);
    double *d = bp_oracle_alloc((size_t)n, sizeof *d);
    for (int64_t i = 0; i < n; ++i) d[i] = bp_case_get(t, i);
    return d;
}

/* ---- fills ---- */

const char *bp_case_fill_name(uint32_t fill)
{
    static const char *const names[BP_FILL_COUNT] = {"normal",  "equal", "wide",
                                                     "one-hot", "zero",  "nan-row"};
    return names[fill];
}

void bp_case_fill(struct bp_case_suite *s, struct bp_case_tensor *t, uint32_t fill, double size)
{
    const int64_t n = bp_case_count(t), width = t->t.ndim > 0 ? t->t.dim[t->t.ndim - 1] : 1;
    for (int64_t i = 0; i < n; ++i) {
        double v = bp_oracle_normal(&s->rng) * size;
        if (fill == BP_FILL_EQUAL) v = size;
        if (fill == BP_FILL_WIDE) v = ldexp(v, (int)bpi_rng_below(&s->rng, 21) - 10);
        if (fill == BP_FILL_ONE_HOT) v = i % width == (i / width * 7) % width ? size : 0.0;
        if (fill == BP_FILL_ZERO) v = 0.0;
        bp_case_put(t, i, v);
    }
    if (fill == BP_FILL_NAN_ROW && n >= 2 * width && width > 0) {
        bp_case_put(t, width + (int64_t)bpi_rng_below(&s->rng, (uint64_t)width), NAN);
    }
}

/* ---- calls ---- */

static bool carry(struct bp_case_suite *s, struct bp_case_tensor *t, bool to_device)
{
    struct bp_error err = BP_ERROR_INIT;
    struct bp_case_target *target = s->target;
    void *dst = to_device ? t->device : (void *)t->host;
    const void *src = to_device ? (const void *)t->host : t->device;
    int32_t rc = target->mem->copy(target->device.self, dst, src, t->n_bytes,
                                   to_device ? BP_COPY_H2D : BP_COPY_D2H, target->stream, &err);
    return rc == BP_OK || bp_case_fail(s, "copy: %s", err.msg);
}

/* Bytes outside of the elements never change; neither does anything in an input. */
static bool check_guards(struct bp_case_suite *s, const struct bp_case_tensor *t, uint32_t number)
{
    unsigned char *own = bp_oracle_alloc(t->n_bytes, 1);
    bool good = true;
    for (int64_t i = 0; t->is_output && i < bp_case_count(t); ++i) {
        memset(own + GUARD + (size_t)offset_of(t, i) * t->elem_bytes, 1, t->elem_bytes);
    }
    for (size_t i = 0; good && i < t->n_bytes; ++i) {
        if (own[i] == 0 && t->host[i] != t->start[i]) {
            good = bp_case_fail(
                s, "byte %lld of tensor %u, which is not an output element, was written",
                (long long)i - GUARD, number);
        }
    }
    free(own);
    return good;
}

static bool call_once(struct bp_case_suite *s, bp_case_call *call, void *arg)
{
    struct bp_error err = BP_ERROR_INIT;
    for (uint32_t i = 0; i < s->n_tensors; ++i) {
        if (!carry(s, &s->tensors[i], true)) return false;
    }
    int32_t rc = call(s, arg, &err);
    if (rc == BP_OK)
        rc = s->target->mem->stream_sync(s->target->device.self, s->target->stream, &err);
    if (rc != BP_OK) return bp_case_fail(s, "status %s: %s", bpi_status_name(rc), err.msg);
    for (uint32_t i = 0; i < s->n_tensors; ++i) {
        if (!carry(s, &s->tensors[i], false)) return false;
    }
    (void)s->target->mem->stream_sync(s->target->device.self, s->target->stream, &err);
    for (uint32_t i = 0; i < s->n_tensors; ++i) {
        if (!check_guards(s, &s->tensors[i], i)) return false;
    }
    return true;
}

bool bp_case_run(struct bp_case_suite *s, bp_case_call *call, void *arg)
{
    if (s->failed) return false;
    for (uint32_t i = 0; i < s->n_tensors; ++i)
        memcpy(s->tensors[i].start, s->tensors[i].host, s->tensors[i].n_bytes);
    return call_once(s, call, arg);
}

bool bp_case_repeat(struct bp_case_suite *s, bp_case_call *call, void *arg)
{
    if (s->failed) return false;
    for (uint32_t i = 0; i < s->n_tensors; ++i) {
        struct bp_case_tensor *t = &s->tensors[i];
        memcpy(t->after, t->host, t->n_bytes);
        memcpy(t->host, t->start, t->n_bytes);
    }
    if (!call_once(s, call, arg)) return false;
    if (s->answer.verdict.determinism < BP_DET_RUN) return true;
    for (uint32_t i = 0; i < s->n_tensors; ++i) {
        if (memcmp(s->tensors[i].after, s->tensors[i].host, s->tensors[i].n_bytes) != 0) {
            return bp_case_fail(s, "tensor %u has other bits when the same call is made again", i);
        }
    }
    return true;
}

bool bp_case_judge(struct bp_case_suite *s, const struct bp_case_tensor *t, const double *exact,
                   const double *base, const double *mag, uint32_t precision, const char *what)
{
    char why[192];
    if (s->failed) return false;
    double *got = bp_case_doubles(t);
    const int64_t width = t->t.dim[t->t.ndim - 1];
    const struct bp_oracle_compare c = {.got = got,
                                        .exact = exact,
                                        .base = base,
                                        .mag = mag,
                                        .n_rows = width > 0 ? bp_case_count(t) / width : 0,
                                        .width = width,
                                        .dtype = t->t.dtype,
                                        .precision = precision};
    bool good = bp_oracle_agree(&c, why, sizeof why) || bp_case_fail(s, "%s: %s", what, why);
    free(got);
    return good;
}

bool bp_case_same_row(struct bp_case_suite *s, const struct bp_case_tensor *full, int64_t row,
                      const struct bp_case_tensor *part, const char *what)
{
    if (s->failed) return false;
    const int64_t width = full->t.dim[full->t.ndim - 1];
    for (int64_t i = 0; i < width; ++i) {
        const unsigned char *a =
            full->host + GUARD + (size_t)offset_of(full, row * width + i) * full->elem_bytes;
        const unsigned char *b = part->host + GUARD + (size_t)offset_of(part, i) * part->elem_bytes;
        if (memcmp(a, b, full->elem_bytes) == 0) continue;
        return bp_case_fail(s, "%s: row %lld alone has other bits than in the batch (column %lld)",
                            what, (long long)row, (long long)i);
    }
    return true;
}
