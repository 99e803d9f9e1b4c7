/* bp_case_tensor.c - guarded tensors of a case, and the calls that use them. SPDX-License-Identifier: MIT */
#include "cases/bp_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backplane/sdk_tensor.h"
#include "kit_guard.h"

enum { FILL = 0xff };

static int64_t offset_of(const struct bp_case_tensor *t, int64_t i)
{
    int64_t at = 0;
    for (uint32_t d = t->t.ndim; d-- > 0;) {
        at += i % t->t.dim[d] * t->t.stride[d];
        i /= t->t.dim[d];
    }
    return at;
}

struct bp_case_tensor *bp_case_tensor(struct bp_case_suite *s, uint32_t dtype, uint32_t ndim,
                                      const int64_t *dim, int64_t pad, bool is_output)
{
    static const char *const names[] = {"tensor 0", "tensor 1", "tensor 2", "tensor 3", "tensor 4",
                                        "tensor 5", "tensor 6", "tensor 7", "a tensor"};
    if (s->n_tensors == BP_CASE_TENSORS) {
        (void)fprintf(stderr, "a case has at most %d tensors\n", BP_CASE_TENSORS);
        exit(2);
    }
    const uint32_t number = s->n_tensors++;
    struct bp_case_tensor *c = &s->tensors[number];
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
    const int64_t n = bp_case_count(c);
    c->n_bytes = n == 0 ? 0 : (size_t)(offset_of(c, n - 1) + 1) * c->elem_bytes;
    c->start = bp_oracle_alloc(c->n_bytes, 1);
    c->after = bp_oracle_alloc(c->n_bytes, 1);
    /* Nothing promises more alignment than that of an element; some tensors begin at a guard page, most end at one. */
    c->t.data = kit_guard_alloc(c->n_bytes, c->elem_bytes,
                                kit_rng_below(&s->rng, 4) == 0 ? KIT_AT_BEGIN : KIT_AT_END, FILL,
                                names[number < KIT_LEN(names) ? number : KIT_LEN(names) - 1], s);
    if (c->t.data == NULL) {
        (void)fprintf(stderr, "no memory for a tensor of %zu bytes\n", c->n_bytes);
        exit(2);
    }
    return c;
}

int64_t bp_case_count(const struct bp_case_tensor *t)
{
    int64_t n = 1;
    for (uint32_t d = 0; d < t->t.ndim; ++d) n *= t->t.dim[d];
    return n;
}

double bp_case_get(const struct bp_case_tensor *t, int64_t i)
{
    return bp_oracle_get(t->t.data, t->t.dtype, offset_of(t, i));
}

void bp_case_put(struct bp_case_tensor *t, int64_t i, double v)
{
    bp_oracle_put(t->t.data, t->t.dtype, offset_of(t, i), v);
}

int32_t *bp_case_int(struct bp_case_tensor *t, int64_t i)
{
    return (int32_t *)t->t.data + offset_of(t, i);
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
        if (fill == BP_FILL_WIDE) v = ldexp(v, (int)kit_rng_below(&s->rng, 21) - 10);
        if (fill == BP_FILL_ONE_HOT) v = i % width == (i / width * 7) % width ? size : 0.0;
        if (fill == BP_FILL_ZERO) v = 0.0;
        bp_case_put(t, i, v);
    }
    if (fill == BP_FILL_NAN_ROW && n >= 2 * width && width > 0) {
        s->has_nan = true;
        bp_case_put(t, width + (int64_t)kit_rng_below(&s->rng, (uint64_t)width), NAN);
    }
}

/* ---- calls ---- */

/* Bytes between the elements never change; neither does anything in an input. */
static bool check_guards(struct bp_case_suite *s, const struct bp_case_tensor *t, uint32_t number)
{
    const unsigned char *now = t->t.data;
    if (!t->is_output) {
        if (memcmp(now, t->start, t->n_bytes) == 0) return true;
        for (size_t i = 0; i < t->n_bytes; ++i) {
            if (now[i] != t->start[i])
                return bp_case_fail(s, "6.2", "byte %zu of tensor %u, an input, was written", i,
                                    number);
        }
    }
    unsigned char *own = bp_oracle_alloc(t->n_bytes, 1);
    bool good = true;
    for (int64_t i = 0; i < bp_case_count(t); ++i)
        memset(own + (size_t)offset_of(t, i) * t->elem_bytes, 1, t->elem_bytes);
    for (size_t i = 0; good && i < t->n_bytes; ++i) {
        if (own[i] == 0 && now[i] != t->start[i])
            good = bp_case_fail(s, "6.2", "byte %zu of tensor %u, between its rows, was written", i,
                                number);
    }
    free(own);
    return good;
}

/* Is there anything but finite numbers in what was written? */
static bool outputs_are_finite(const struct bp_case_suite *s)
{
    for (uint32_t i = 0; i < s->n_tensors; ++i) {
        const struct bp_case_tensor *t = &s->tensors[i];
        for (int64_t e = 0; t->is_output && bp_is_float(t->t.dtype) && e < bp_case_count(t); ++e) {
            if (!isfinite(bp_case_get(t, e))) return false;
        }
    }
    return true;
}

/* A wrapper may stop a call whose outputs hold a NaN: that is what some are for. The op below then gives the outputs. */
static int32_t stopped(struct bp_case_suite *s, bp_case_call *call, void *arg, struct bp_error *err)
{
    const struct bp_op_ref op = s->target->op;
    s->target->op = s->bench.bare;
    for (uint32_t i = 0; i < s->n_tensors; ++i)
        memcpy(s->tensors[i].t.data, s->tensors[i].start, s->tensors[i].n_bytes);
    int32_t rc = call(s, arg, err);
    s->target->op = op;
    if (rc == BP_OK && outputs_are_finite(s)) rc = BP_E_NUMERIC;
    s->n_stopped += rc == BP_OK;
    return rc;
}

static bool call_once(struct bp_case_suite *s, bp_case_call *call, void *arg)
{
    struct bp_error err = BP_ERROR_INIT;
    struct kit_host *h = &s->bench.subject.host;
    h->in_call = 1;
    kit_enter(s->kit);
    int32_t rc = call(s, arg, &err);
    kit_leave(s->kit);
    h->in_call = 0;
    err.msg[sizeof err.msg - 1] = '\0';
    if (rc == BP_E_NUMERIC && s->bench.subject.desc->kind == BP_KIND_WRAPPER)
        rc = stopped(s, call, arg, &err);
    if (rc != BP_OK)
        return bp_case_fail(s, rc == BP_DECLINED ? "5.6" : "6.1", "the call returned %s: %.200s",
                            kit_status_name(rc), err.msg);
    if (!bp_case_guards(s->kit, s->iface, s->title, s, &s->bench)) {
        s->failed = true;
        return false;
    }
    for (uint32_t i = 0; i < s->n_tensors; ++i) {
        if (!check_guards(s, &s->tensors[i], i)) return false;
    }
    return true;
}

bool bp_case_run(struct bp_case_suite *s, bp_case_call *call, void *arg)
{
    if (s->failed) return false;
    for (uint32_t i = 0; i < s->n_tensors; ++i)
        memcpy(s->tensors[i].start, s->tensors[i].t.data, s->tensors[i].n_bytes);
    return call_once(s, call, arg);
}

/* Stage 10 repeats a call without the wrapper between. */
static bool call_again(struct bp_case_suite *s, bp_case_call *call, void *arg)
{
    const struct bp_op_ref op = s->target->op;
    if (s->kit->stage == 10) s->target->op = s->bench.bare;
    bool good = call_once(s, call, arg);
    s->target->op = op;
    return good;
}

bool bp_case_repeat(struct bp_case_suite *s, bp_case_call *call, void *arg)
{
    if (s->failed) return false;
    for (uint32_t i = 0; i < s->n_tensors; ++i) {
        struct bp_case_tensor *t = &s->tensors[i];
        memcpy(t->after, t->t.data, t->n_bytes);
        memcpy(t->t.data, t->start, t->n_bytes);
    }
    if (!call_again(s, call, arg)) return false;
    if (s->answer.verdict.determinism < BP_DET_RUN) return true;
    for (uint32_t i = 0; i < s->n_tensors; ++i) {
        if (memcmp(s->tensors[i].after, s->tensors[i].t.data, s->tensors[i].n_bytes) != 0) {
            return bp_case_fail(s, "6.7",
                                "tensor %u has other bits when the same call is made again", i);
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
    bool good = bp_oracle_agree(&c, why, sizeof why) ||
                bp_case_fail(s, bp_case_rule(&c, s->has_nan), "%s: %s", what, why);
    free(got);
    return good;
}

bool bp_case_same_row(struct bp_case_suite *s, const struct bp_case_tensor *full, int64_t row,
                      const struct bp_case_tensor *part, const char *what)
{
    if (s->failed) return false;
    const int64_t width = full->t.dim[full->t.ndim - 1];
    for (int64_t i = 0; i < width; ++i) {
        const unsigned char *a = (const unsigned char *)full->t.data +
                                 (size_t)offset_of(full, row * width + i) * full->elem_bytes;
        const unsigned char *b =
            (const unsigned char *)part->t.data + (size_t)offset_of(part, i) * part->elem_bytes;
        if (memcmp(a, b, full->elem_bytes) == 0) continue;
        return bp_case_fail(s, "6.8",
                            "%s: row %lld alone has other bits than in the batch (column %lld)",
                            what, (long long)row, (long long)i);
    }
    return true;
}
