/* mla_case.c - see mla_case.h. SPDX-License-Identifier: MIT */
#include "cases/mla_case.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backplane/sdk_tensor.h"
#include "kit_device.h"
#include "kit_guard.h"

bool mla_suite_open(struct mla_suite *s, struct kit *k, const char *iface)
{
    memset(s, 0, sizeof *s);
    s->kit = k;
    return kit_bench_open(k, &s->bench, iface,
                          k->stage == 10  ? KIT_COPY_WIPED
                          : k->stage == 3 ? KIT_COPY_GUARDED
                                          : KIT_COPY_NONE);
}

void mla_suite_close(struct mla_suite *s)
{
    kit_bench_close(&s->bench);
}

bool mla_fail(struct mla_suite *s, const char *rule, const char *fmt, ...)
{
    char seen[256];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(seen, sizeof seen, fmt, args);
    va_end(args);
    ++s->n_failed;
    s->failed = true;
    if (s->kit->stage == 9 && strcmp(rule, "6.8") == 0) rule = "9.2";
    if (s->kit->stage == 10)
        rule = s->bench.subject.desc->kind == BP_KIND_WRAPPER ? "10.1" : "10.3";
    return kit_fail(s->kit, rule, s->bench.iface, s->label, NULL, "%s", seen);
}

void mla_op_own(struct mla_suite *s, struct mla_op *op)
{
    memset(op, 0, sizeof *op);
    op->iface = s->bench.iface;
    op->ref = s->bench.op;
    op->is_subject = true;
}

bool mla_begin(struct mla_suite *s)
{
    const uint64_t seed = s->kit->o->seed ^ bp_id(s->label);
    kit_rng_seed(&s->rng, seed);
    s->failed = s->has_nan = false;
    kit_device_reset(s->kit->device);
    return !kit_skips(s->kit, seed, s->label);
}

static void tell_claim(struct mla_suite *s, const struct mla_op *op)
{
    static const char *const names[] = {"none", "run", "batch"};
    uint32_t d = op->answer.verdict.determinism;
    if (op->is_subject && s->n_begun++ == 0 && s->kit->stage == 6)
        kit_fact(s->kit, "determinism", "%s", d < KIT_LEN(names) ? names[d] : "none");
}

bool mla_ask(struct mla_suite *s, struct mla_op *op, const struct bp_mla_problem *p)
{
    struct bp_workspace w;
    const struct bp_reason *r = &op->answer.reasons[0];
    ++op->n_asked;
    kit_at(s->kit, "4.10", s->bench.iface, s->label, "case: %s", s->label);
    kit_enter(s->kit);
    kit_ask(&op->ref, p, &op->answer);
    kit_leave(s->kit);
    if (op->answer.verdict.level == BP_V_NO) {
        ++s->n_declined;
        if (s->kit->o->verbose)
            kit_note(s->kit, op->iface, "declined %s: %s %.32s: %.128s", s->label,
                     kit_reason_name(r->code), r->field, r->text);
        return false;
    }
    ++op->n_served;
    if (op->is_subject) {
        s->kit->capture = op->answer.verdict.capture;
        s->kit->determinism = op->answer.verdict.determinism;
    }
    tell_claim(s, op);
    if (!bp_case_memory(s->kit, op->iface, &op->ref, p, &op->l, &w, s)) {
        s->failed = true;
        ++s->n_failed;
        return false;
    }
    op->l.epoch = s->n_case + 1;
    return true;
}

void mla_op_done(struct mla_suite *s, const struct mla_op *op)
{
    kit_sums(s->kit, op->iface, s->n_case, s->n_declined);
    kit_note_cut(s->kit, op->iface);
    if (s->n_stopped != 0)
        kit_note(s->kit, op->iface,
                 "%u calls whose outputs are not finite were stopped by the wrapper", s->n_stopped);
    if (op->n_served == 0 && s->kit->stage == 6 && !kit_is_partial(s->kit))
        (void)kit_fail(s->kit, "5.9", op->iface, "supports", NULL,
                       "all of %u problems were declined", op->n_asked);
}

/* ---- buffers ---- */

void *mla_bytes(struct mla_suite *s, size_t n_bytes, size_t align, const char *name)
{
    /* Some blocks begin at a guard page, most end at one. */
    void *p = kit_guard_alloc(
        n_bytes, align, kit_rng_below(&s->rng, 4) == 0 ? KIT_AT_BEGIN : KIT_AT_END, 0xff, name, s);
    if (p != NULL) return p;
    (void)fprintf(stderr, "no memory for %zu bytes\n", n_bytes);
    exit(2);
}

void mla_free(void *p)
{
    (void)kit_guard_free(p);
}

void mla_case_end(struct mla_suite *s)
{
    (void)kit_guard_free_all(s);
}

size_t mla_elem_bytes(uint32_t dtype)
{
    return dtype == BP_DT_F16 || dtype == BP_DT_BF16 ? 2 : dtype == BP_DT_U8 ? 1 : 4;
}

struct bp_tensor mla_tensor(struct mla_suite *s, uint32_t dtype, int64_t d0, int64_t d1, int64_t d2,
                            int64_t pad)
{
    struct bp_tensor t = {.dtype = dtype, .dim = {d0, d1, d2}};
    const int64_t inner = (d1 > 0 ? d1 : 1) * (d2 > 0 ? d2 : 1);
    t.ndim = d2 > 0 ? 3 : d1 > 0 ? 2 : 1;
    t.stride[0] = t.ndim == 1 ? 1 : inner + pad;
    t.stride[1] = t.ndim == 3 ? d2 : t.ndim == 2 ? 1 : 0;
    t.stride[2] = t.ndim == 3 ? 1 : 0;
    int64_t n = d0 == 0 ? 0 : t.ndim == 1 ? d0 : (d0 - 1) * t.stride[0] + inner;
    t.data = mla_bytes(s, (size_t)n * mla_elem_bytes(dtype), mla_elem_bytes(dtype), "tensor");
    return t;
}

static void *element(const struct bp_tensor *t, int64_t i, int64_t j, int64_t k)
{
    int64_t at = i * t->stride[0] + j * t->stride[1] + k * t->stride[2];
    return (unsigned char *)t->data + (size_t)at * mla_elem_bytes(t->dtype);
}

double mla_get(const struct bp_tensor *t, int64_t i, int64_t j, int64_t k)
{
    if (t->dtype == BP_DT_I32) return *(const int32_t *)element(t, i, j, k);
    return bp_oracle_get(element(t, i, j, k), t->dtype, 0);
}

void mla_put(const struct bp_tensor *t, int64_t i, int64_t j, int64_t k, double v)
{
    if (t->dtype == BP_DT_I32)
        *(int32_t *)element(t, i, j, k) = (int32_t)v;
    else
        bp_oracle_put(element(t, i, j, k), t->dtype, 0, v);
}

/* Numbers of one row of the first dimension, and how many such rows. */
static int64_t inner_of(const struct bp_tensor *t)
{
    return (t->ndim > 1 ? t->dim[1] : 1) * (t->ndim > 2 ? t->dim[2] : 1);
}

/* Four 16-bit uniforms summed: near enough to normal, variance 1, and cheap. */
static double bell(struct kit_rng *rng)
{
    const uint64_t u = kit_rng_u64(rng);
    const uint64_t sum = (u & 0xffff) + (u >> 16 & 0xffff) + (u >> 32 & 0xffff) + (u >> 48);
    return ((double)sum / 65535.0 - 2.0) * 1.7320508075688772;
}

struct bp_tensor mla_random(struct mla_suite *s, uint32_t dtype, int64_t d0, int64_t d1, int64_t d2,
                            int64_t pad, double size)
{
    struct bp_tensor t = mla_tensor(s, dtype, d0, d1, d2, pad);
    for (int64_t i = 0; i < d0; ++i) {
        void *row = element(&t, i, 0, 0);
        for (int64_t k = 0; k < inner_of(&t); ++k) {
            bp_oracle_put(row, dtype, k, bell(&s->rng) * size);
        }
    }
    return t;
}

struct bp_tensor mla_rows(const struct bp_tensor *t, int64_t begin, int64_t end)
{
    struct bp_tensor r = *t;
    r.dim[0] = end - begin;
    r.data = element(t, begin, 0, 0);
    return r;
}

double *mla_values(const struct bp_tensor *t)
{
    const bool whole = t->ndim < 3 || t->stride[1] == t->dim[2];
    const int64_t n = inner_of(t), width = whole ? n : t->dim[2];
    double *v = bp_oracle_alloc((size_t)(t->dim[0] * n), sizeof *v);
    for (int64_t i = 0; i < t->dim[0]; ++i) {
        for (int64_t k = 0; k < n; k += width) {
            const void *row = element(t, i, whole ? 0 : k / width, 0);
            for (int64_t e = 0; e < width; ++e) v[i * n + k + e] = bp_oracle_get(row, t->dtype, e);
        }
    }
    return v;
}

/* Both have their inner dimensions contiguous. */
bool mla_same_bits(const struct bp_tensor *a, const struct bp_tensor *b)
{
    const size_t n_bytes = (size_t)inner_of(a) * mla_elem_bytes(a->dtype);
    for (int64_t i = 0; i < a->dim[0]; ++i) {
        if (memcmp(element(a, i, 0, 0), element(b, i, 0, 0), n_bytes) != 0) return false;
    }
    return true;
}

/* ---- calls ---- */

/* Copies the rows of a tensor out to, or back from, contiguous bytes. */
static void save(const struct bp_tensor *t, unsigned char *bytes, bool back)
{
    const size_t n_bytes = (size_t)inner_of(t) * mla_elem_bytes(t->dtype);
    for (int64_t i = 0; i < t->dim[0]; ++i) {
        if (back)
            memcpy(element(t, i, 0, 0), bytes + (size_t)i * n_bytes, n_bytes);
        else
            memcpy(bytes + (size_t)i * n_bytes, element(t, i, 0, 0), n_bytes);
    }
}

static unsigned char *saved(const struct bp_tensor *t)
{
    size_t n = (size_t)(t->dim[0] * inner_of(t)) * mla_elem_bytes(t->dtype);
    unsigned char *bytes = bp_oracle_alloc(n, 1);
    save(t, bytes, false);
    return bytes;
}

static void poison(const struct bp_tensor *t, int byte)
{
    const size_t n_bytes = (size_t)inner_of(t) * mla_elem_bytes(t->dtype);
    for (int64_t i = 0; i < t->dim[0]; ++i) memset(element(t, i, 0, 0), byte, n_bytes);
}

static bool outputs_are_finite(const struct mla_suite *s)
{
    for (uint32_t i = 0; i < s->n_ports; ++i) {
        const struct bp_tensor *t = &s->ports[i];
        if ((t->access & BP_OUT) == 0 || !bp_is_float(t->dtype)) continue;
        for (struct bp_rows r = bp_rows_of(t); bp_rows_next(&r);) {
            for (int64_t e = 0; e < r.n; ++e) {
                if (!isfinite(bp_oracle_get(r.p, t->dtype, e))) return false;
            }
        }
    }
    return true;
}

/* A wrapper may stop a call whose outputs hold a NaN: that is what some are for. The op below then gives the outputs. */
static int32_t stopped(struct mla_suite *s, const struct mla_op *op, mla_call call,
                       const void *args, struct bp_error *err)
{
    struct mla_op bare = *op;
    bare.ref = s->bench.bare;
    int32_t rc = call(&bare, args, err);
    if (rc == BP_OK && outputs_are_finite(s)) rc = BP_E_NUMERIC;
    s->n_stopped += rc == BP_OK;
    return rc;
}

static bool call_once(struct mla_suite *s, struct mla_op *op, mla_call call, const void *args)
{
    struct bp_error err = BP_ERROR_INIT;
    struct kit_host *h = &s->bench.subject.host;
    h->in_call = 1;
    kit_enter(s->kit);
    int32_t rc = call(op, args, &err);
    kit_leave(s->kit);
    h->in_call = 0;
    err.msg[sizeof err.msg - 1] = '\0';
    if (rc == BP_E_NUMERIC && op->is_subject && s->bench.subject.desc->kind == BP_KIND_WRAPPER)
        rc = stopped(s, op, call, args, &err);
    if (rc != BP_OK)
        return mla_fail(s, rc == BP_DECLINED ? "5.6" : "6.1", "%s returned %s: %.180s", op->iface,
                        kit_status_name(rc), err.msg);
    if (bp_case_guards(s->kit, op->iface, s->label, s, &s->bench)) return true;
    s->failed = true;
    ++s->n_failed;
    return false;
}

/* Every block but the outputs is made unwritable for the first call: an input that is written is a fault with a name. */
static void lock_inputs(const void *const *p, int n, bool writable)
{
    for (int i = 0; i < n; ++i) kit_guard_protect((void *)(uintptr_t)p[i], writable);
}

enum {
    POISON = 0xff,
    OTHER_POISON = 0x7b
}; /* what outputs hold before the first and the second call */

/* Are the bytes that differ those which were there before? */
static bool unwritten(const unsigned char *first, const unsigned char *second, size_t n)
{
    for (size_t i = 0; i < n; ++i) {
        if (first[i] != second[i] && (first[i] != POISON || second[i] != OTHER_POISON))
            return false;
    }
    return true;
}

bool mla_run(struct mla_suite *s, struct mla_op *op, mla_call call, uint32_t slot, const void *args,
             const struct bp_tensor *const *outs, int n_out, const struct bp_tensor *const *inouts,
             int n_inout)
{
    unsigned char *before[4] = {NULL}, *after[8] = {NULL};
    ++s->n_case;
    struct bp_tensor ports[16];
    const void *inputs[16];
    uint32_t n_ports = 16;
    int n_in = 0;
    if (op->is_subject) kit_check_ports(s->kit, op->iface, &op->ref, slot, args);
    (void)kit_iface_of(op->iface)->tensors(NULL, slot, args, ports, &n_ports);
    for (uint32_t i = 0; i < n_ports && i < 16; ++i) {
        if (ports[i].access == BP_IN) inputs[n_in++] = ports[i].data;
    }
    s->ports = ports;
    s->n_ports = n_ports < 16 ? n_ports : 16;
    lock_inputs(inputs, n_in, false);
    for (int i = 0; i < n_out; ++i) poison(outs[i], POISON);
    for (int i = 0; i < n_inout; ++i) before[i] = saved(inouts[i]);
    bool good = call_once(s, op, call, args);
    if (good && op->answer.verdict.determinism >= BP_DET_RUN) {
        for (int i = 0; i < n_out; ++i) after[i] = saved(outs[i]);
        for (int i = 0; i < n_inout; ++i) after[n_out + i] = saved(inouts[i]);
        for (int i = 0; i < n_out; ++i) poison(outs[i], OTHER_POISON);
        for (int i = 0; i < n_inout; ++i) save(inouts[i], before[i], true);
        struct mla_op again_op = *op;
        if (s->kit->stage == 10 && op->is_subject) again_op.ref = s->bench.bare;
        good = call_once(s, &again_op, call, args);
        for (int i = 0; good && i < n_out + n_inout; ++i) {
            const struct bp_tensor *t = i < n_out ? outs[i] : inouts[i - n_out];
            unsigned char *again = saved(t);
            size_t n = (size_t)(t->dim[0] * inner_of(t)) * mla_elem_bytes(t->dtype);
            if (memcmp(again, after[i], n) != 0) {
                good =
                    i < n_out && unwritten(after[i], again, n)
                        ? mla_fail(s, "6.9", "%s: output %d is not written in whole", op->iface, i)
                        : mla_fail(s, "6.7", "%s: other bits on repetition, in output %d",
                                   op->iface, i);
            }
            free(again);
        }
    }
    lock_inputs(inputs, n_in, true);
    for (int i = 0; i < 4; ++i) free(before[i]);
    for (int i = 0; i < 8; ++i) free(after[i]);
    return good;
}

bool mla_judge(struct mla_suite *s, const char *what, const struct bp_tensor *t, int64_t n,
               const double *exact, const double *base, const double *mag, uint32_t dtype,
               uint32_t precision)
{
    char why[256];
    const int64_t width = t->ndim > 2 ? t->dim[2] : t->ndim > 1 ? t->dim[1] : t->dim[0];
    double *got = mla_values(t);
    struct bp_oracle_compare c = {.got = got, .exact = exact, .base = base, .mag = mag};
    c.n_rows = t->ndim == 1 ? 1 : n * inner_of(t) / width;
    c.width = width;
    c.dtype = dtype;
    c.precision = precision;
    bool good = bp_oracle_agree(&c, why, sizeof why);
    const char *rule = good ? "" : bp_case_rule(&c, s->has_nan);
    free(got);
    return good ? true : mla_fail(s, rule, "%s: %s", what, why);
}

/* ---- cache ---- */

static void rope_tables(struct mla_suite *s, struct mla_cache *c, int64_t n_rope)
{
    const int64_t n_pos = c->meta.max_kv + 1;
    c->meta.rope_cos = mla_tensor(s, BP_DT_F32, n_pos, n_rope / 2, 0, 0);
    c->meta.rope_sin = mla_tensor(s, BP_DT_F32, n_pos, n_rope / 2, 0, 0);
    for (int64_t p = 0; p < n_pos; ++p) {
        for (int64_t i = 0; i < n_rope / 2; ++i) {
            double angle = (double)p * pow(1e4, -2.0 * (double)i / (double)n_rope);
            mla_put(&c->meta.rope_cos, p, i, 0, cos(angle));
            mla_put(&c->meta.rope_sin, p, i, 0, sin(angle));
        }
    }
}

void mla_cache_init(struct mla_suite *s, struct mla_cache *c, const struct bp_kv_layout *layout,
                    uint32_t block_tok, uint32_t n_seqs, const int32_t *len, int prefix_of,
                    int32_t n_shared, int64_t n_rope)
{
    uint32_t total = 0, next = 0;
    memset(c, 0, sizeof *c);
    c->n_seqs = n_seqs;
    c->meta.h = (struct bp_hdr)BP_HDR(struct bp_mla_meta, rope_sin);
    for (uint32_t q = 0; q < n_seqs; ++q) {
        uint32_t n = ((uint32_t)len[q] + block_tok - 1) / block_tok;
        c->len[q] = len[q];
        if (n + 1 > c->stride) c->stride = n + 1;
        if ((uint32_t)len[q] > c->meta.max_kv) c->meta.max_kv = (uint32_t)len[q];
        total += (uint32_t)len[q];
    }
    const uint32_t n_block = n_seqs * c->stride + 2 + s->more_blocks;
    int32_t *order = mla_bytes(s, n_block * sizeof *order, 4, "order");
    for (uint32_t i = 0; i < n_block; ++i) { /* inside-out shuffle */
        uint32_t k = (uint32_t)kit_rng_below(&s->rng, i + 1);
        order[i] = order[k];
        order[k] = (int32_t)i;
    }
    c->table = mla_bytes(s, n_seqs * c->stride * sizeof *c->table, 4, "block table");
    c->slots = mla_bytes(s, (total + 1) * sizeof *c->slots, 4, "slot map");
    c->positions = mla_bytes(s, (total + 1) * sizeof *c->positions, 4, "positions");
    for (uint32_t q = 0; q < n_seqs; ++q) {
        for (uint32_t b = 0; b < c->stride; ++b) {
            bool shared =
                prefix_of >= 0 && q == n_seqs - 1 && (int32_t)((b + 1) * block_tok) <= n_shared;
            c->table[q * c->stride + b] =
                shared ? c->table[(uint32_t)prefix_of * c->stride + b] : order[next];
            next += !shared;
        }
    }
    c->meta.block_tok = block_tok;
    c->meta.n_seqs = n_seqs;
    c->meta.table_stride = c->stride;
    c->meta.epoch = s->n_case + 1;
    c->meta.positions = c->meta.positions_host = c->positions;
    c->meta.slot_map = c->meta.slot_map_host = c->slots;
    c->meta.block_table = c->meta.block_table_host = c->table;
    c->meta.kv_len = c->meta.kv_len_host = c->len;
    for (uint32_t q = 0; q < n_seqs; ++q) {
        for (int32_t at = 0; at < len[q]; ++at) {
            if (prefix_of >= 0 && q == n_seqs - 1 && at < n_shared) continue;
            c->positions[c->meta.n_tok] = at;
            c->slots[c->meta.n_tok++] = (int32_t)mla_slot(c, q, at);
        }
    }
    rope_tables(s, c, n_rope);
    c->pool = (struct bp_tensor){.dtype = BP_DT_U8,
                                 .ndim = 2,
                                 .dim = {n_block, (int64_t)layout->block_bytes},
                                 .stride = {(int64_t)layout->block_bytes, 1}};
    c->pool.data = mla_bytes(s, n_block * layout->block_bytes,
                             layout->align != 0 ? layout->align : 1, "tensor pool");
    c->pool.layout_id = layout->id;
}

int64_t mla_slot(const struct mla_cache *c, int64_t seq, int64_t at)
{
    return (int64_t)c->table[seq * c->stride + at / c->meta.block_tok] * c->meta.block_tok +
           at % c->meta.block_tok;
}
