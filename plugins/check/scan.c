/* scan.c - what is in the tensors of a call: numbers that are not finite, inputs that changed.
 * Cache pools (an opaque layout) are not looked into: their bytes are no numbers to this wrapper, and hashing them would
 * read the whole cache at every call. Threads: as the wrapped slot. SPDX-License-Identifier: MIT */
#include "check.h"

uint64_t check_span(const struct bp_tensor *t)
{
    int64_t last = 0;
    if (t->data == NULL || t->ndim == 0 || t->ndim > 4) return 0;
    for (uint32_t d = 0; d < t->ndim; ++d) {
        if (t->dim[d] <= 0 || t->stride[d] < 0) return 0;
        last += (t->dim[d] - 1) * t->stride[d];
    }
    return (uint64_t)(last + 1) * (uint64_t)bp_dtype_bytes(t->dtype);
}

int check_overlap(const struct bp_tensor *a, const struct bp_tensor *b)
{
    const uintptr_t at_a = (uintptr_t)a->data, at_b = (uintptr_t)b->data;
    return at_a < at_b + check_span(b) && at_b < at_a + check_span(a);
}

static int is_pool(const struct bp_tensor *t)
{
    return t->layout_id != 0 || t->dtype == BP_DT_U8;
}

static int is_named(const struct bp_tensor *t, const char *name)
{
    return t->name != NULL && strcmp(t->name, name) == 0;
}

/* ---- errors ---- */

int32_t check_fail(const struct check_call *c, int32_t code, struct bp_text *t)
{
    char where[96];
    struct bp_text w;
    bp_text_begin(&w, where, sizeof where);
    if (c->l != NULL && c->l->layer >= 0) {
        bp_text_add(&w, "layer ");
        bp_text_i64(&w, c->l->layer);
        bp_text_add(&w, ", ");
    }
    bp_text_add(&w, c->slot->name);
    return bp_error_begin(c->err, t, code, CHECK_NAME, where);
}

/* ---- numbers that are not finite ---- */

struct place {
    int64_t i[3]; /* outer indices of the row */
    int64_t col;
    float value;
};

static float number_at(const void *row, uint32_t dtype, int64_t col)
{
    uint16_t half;
    float v;
    if (dtype == BP_DT_F32) {
        memcpy(&v, (const unsigned char *)row + col * 4, sizeof v);
        return v;
    }
    memcpy(&half, (const unsigned char *)row + col * 2, sizeof half);
    return dtype == BP_DT_F16 ? bp_f16_f32(half) : bp_bf16_f32(half);
}

/* From the bits: a compiler that believes in finite numbers must not get in the way. */
static int is_finite(float v)
{
    return (bp_f32_bits(v) & 0x7f800000u) != 0x7f800000u;
}

static int is_minus_inf(float v)
{
    return bp_f32_bits(v) == 0xff800000u;
}

static const struct bp_mla_decode_meta *decode_meta(const struct check_call *c)
{
    /* Both structs with padded rows keep it right behind their header. */
    BP_STATIC_ASSERT(offsetof(struct bp_mla_decode_args, meta) ==
                         offsetof(struct bp_mla_select_args, meta),
                     "meta of decode and select");
    return ((const struct bp_mla_decode_args *)c->args)->meta;
}

static int has_row(const struct check_call *c, const struct bp_rows *r)
{
    return c->slot->extent != CHECK_DECODE_ROWS || r->i[0] < (int64_t)decode_meta(c)->n_row;
}

static int64_t cols_of(const struct check_call *c, const struct bp_tensor *t,
                       const struct bp_rows *r)
{
    if (c->slot->extent != CHECK_DECODE_ROWS || !is_named(t, "scores")) return r->n;
    const int32_t n = decode_meta(c)->row_kv_len_host[r->i[0]];
    return n < r->n ? n : r->n;
}

/* topk and argmax: where no number was found there is an id of -1, and the value says nothing. */
static int is_pick(const struct check_call *c, const struct bp_tensor *t, const struct bp_rows *r,
                   int64_t col)
{
    const struct bp_dense_topk_args *a = c->args;
    int32_t id;
    if (c->slot->extent != CHECK_PICKS || !is_named(t, "values")) return 1;
    memcpy(&id, (const unsigned char *)bp_at(&a->ids, r->i[0], col, 0), sizeof id);
    return id >= 0;
}

static int find_bad(const struct check_call *c, const struct bp_tensor *t, struct place *out)
{
    /* A row without keys has a log-sum-exp of -inf, and that is right. */
    const int lse = is_named(t, "lse") || is_named(t, "other_lse");
    if (!bp_is_float(t->dtype) || is_pool(t) || check_span(t) == 0) return 0;
    for (struct bp_rows r = bp_rows_of(t); bp_rows_next(&r);) {
        if (!has_row(c, &r)) continue;
        const int64_t n = cols_of(c, t, &r), step = t->stride[t->ndim - 1];
        for (int64_t col = 0; col < n; ++col) {
            const float v = number_at(r.p, t->dtype, col * step);
            if (is_finite(v) || (lse && is_minus_inf(v)) || !is_pick(c, t, &r, col)) continue;
            memcpy(out->i, r.i, sizeof out->i);
            out->col = col;
            out->value = v;
            return 1;
        }
    }
    return 0;
}

/* "out row 3 [3][0][17] is NaN" */
static void add_place(struct bp_text *t, const struct bp_tensor *port, const struct place *at)
{
    bp_text_add(t, port->name);
    bp_text_add(t, " row ");
    bp_text_i64(t, port->ndim > 1 ? at->i[0] : at->col);
    bp_text_add(t, " (element ");
    for (uint32_t d = 0; d < port->ndim; ++d) {
        bp_text_add(t, "[");
        bp_text_i64(t, d + 1 < port->ndim ? at->i[d] : at->col);
        bp_text_add(t, "]");
    }
    bp_text_add(t, (bp_f32_bits(at->value) & 0x7fffffu) != 0 ? ") is NaN"
                   : is_minus_inf(at->value)                 ? ") is -inf"
                                                             : ") is +inf");
}

/* ---- inputs that change ---- */

static uint64_t mix(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ (hash >> 29);
}

static uint64_t hash_tensor(const struct bp_tensor *t)
{
    uint64_t hash = 1, word;
    const int64_t bytes = bp_dtype_bytes(t->dtype);
    for (struct bp_rows r = bp_rows_of(t); bp_rows_next(&r);) {
        const unsigned char *p = r.p;
        const int64_t step = t->stride[t->ndim - 1] * bytes;
        if (step == bytes) { /* a dense row in words, and the rest of it */
            int64_t at = 0;
            for (; at + 8 <= r.n * bytes; at += 8) {
                memcpy(&word, p + at, 8);
                hash = mix(hash, word);
            }
            word = 0;
            memcpy(&word, p + at, (size_t)(r.n * bytes - at));
            hash = mix(hash, word);
            continue;
        }
        for (int64_t col = 0; col < r.n; ++col) {
            word = 0;
            memcpy(&word, p + col * step, (size_t)bytes);
            hash = mix(hash, word);
        }
    }
    return hash != 0 ? hash : 1;
}

/* Only what is no output too: "y may be x" is legal for many ops. */
static int is_pure_input(const struct check_call *c, uint32_t i)
{
    const struct bp_tensor *t = &c->port[i];
    if (t->access != BP_IN || is_pool(t) || check_span(t) == 0) return 0;
    for (uint32_t k = 0; k < c->n_port; ++k) {
        if (c->port[k].access != BP_IN && check_overlap(t, &c->port[k])) return 0;
    }
    return 1;
}

/* ---- the two looks ---- */

void check_scan_before(struct check_call *c)
{
    struct place at;
    struct bp_text t;
    for (uint32_t i = 0; i < c->n_port; ++i) {
        if (c->o->plugin->inputs && is_pure_input(c, i)) c->hash[i] = hash_tensor(&c->port[i]);
        if (c->bad_input[0] != '\0' || c->port[i].access == BP_OUT) continue;
        if (!find_bad(c, &c->port[i], &at)) continue;
        bp_text_begin(&t, c->bad_input, sizeof c->bad_input);
        add_place(&t, &c->port[i], &at);
    }
}

int32_t check_scan_after(struct check_call *c)
{
    struct place at;
    struct bp_text t;
    for (uint32_t i = 0; i < c->n_port; ++i) {
        if (c->hash[i] == 0 || hash_tensor(&c->port[i]) == c->hash[i]) continue;
        const int32_t rc = check_fail(c, BP_E_INTERNAL, &t);
        bp_text_add(&t, "input ");
        bp_text_add(&t, c->port[i].name);
        bp_text_add(&t, " was changed by the call, and an op may write its outputs only; choose "
                        "another provider for this slot and report it to the author");
        return rc;
    }
    for (uint32_t i = 0; i < c->n_port; ++i) {
        if (c->port[i].access == BP_IN) continue;
        c->o->n_outputs++;
        if (!find_bad(c, &c->port[i], &at)) continue;
        const int32_t rc = check_fail(c, BP_E_NUMERIC, &t);
        bp_text_add(&t, "output ");
        add_place(&t, &c->port[i], &at);
        if (c->bad_input[0] != '\0') {
            bp_text_add(&t, "; it came in, input ");
            bp_text_add(&t, c->bad_input);
            bp_text_add(&t, " before the call: look at the op that wrote it");
        } else {
            bp_text_add(&t, ", and all inputs were finite: this op or its weights made it");
        }
        return rc;
    }
    return BP_OK;
}
