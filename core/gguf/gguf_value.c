/* gguf_value.c - typed reads of metadata with range checks, and values as text.
 * Not here: which keys exist and what they mean (core/model). Values lie unaligned in the mapping and are copied out.
 * Threads: any number of readers. SPDX-License-Identifier: MIT */
#include "gguf/gguf_priv.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SHOWN_ELEMENTS = 8, SHOWN_IN_MESSAGE = 60 };

// clang-format off
static const struct { const char *name; uint32_t n_bytes; bool integer; } kinds[BPI_GGUF_N_KINDS] = {
    [BPI_GGUF_U8] = {"u8", 1, true},      [BPI_GGUF_I8] = {"i8", 1, true},
    [BPI_GGUF_U16] = {"u16", 2, true},    [BPI_GGUF_I16] = {"i16", 2, true},
    [BPI_GGUF_U32] = {"u32", 4, true},    [BPI_GGUF_I32] = {"i32", 4, true},
    [BPI_GGUF_F32V] = {"f32", 4, false},  [BPI_GGUF_BOOL] = {"bool", 1, true},
    [BPI_GGUF_STRING] = {"string", 0, false}, [BPI_GGUF_ARRAY] = {"array", 0, false},
    [BPI_GGUF_U64] = {"u64", 8, true},    [BPI_GGUF_I64V] = {"i64", 8, true},
    [BPI_GGUF_F64V] = {"f64", 8, false},
};
// clang-format on

const char *bpi_gguf_kind_name(uint32_t kind)
{
    return kind < BPI_GGUF_N_KINDS ? kinds[kind].name : "?";
}

bool bpi_gguf_kind_is_integer(uint32_t kind)
{
    return kind < BPI_GGUF_N_KINDS && kinds[kind].integer;
}

uint32_t bpi_gguf_kind_bytes(uint32_t kind)
{
    return kind < BPI_GGUF_N_KINDS ? kinds[kind].n_bytes : 0;
}

const struct bpi_gguf_kv *bpi_gguf_part_find(const struct bpi_gguf_part *part, const char *key)
{
    uint64_t i;
    struct bpi_span span = {key, strlen(key)};
    return bpi_gguf_index_find(&part->kv_index, span, &i) ? &part->kv[i] : NULL;
}

/* ---- single values ---- */

/* Any integer kind: bits is the two's complement value, negative tells how to read it. A bool is 0 or 1. */
struct integer {
    uint64_t bits;
    bool negative;
};

static struct integer load_integer(uint32_t kind, const unsigned char *p)
{
    uint64_t raw = 0;
    int64_t v;
    memcpy(&raw, p, bpi_gguf_kind_bytes(kind));
    switch (kind) {
    case BPI_GGUF_I8:
        v = (int8_t)raw;
        break;
    case BPI_GGUF_I16:
        v = (int16_t)raw;
        break;
    case BPI_GGUF_I32:
        v = (int32_t)raw;
        break;
    case BPI_GGUF_I64V:
        v = (int64_t)raw;
        break;
    case BPI_GGUF_BOOL:
        return (struct integer){raw != 0, false};
    default:
        return (struct integer){raw, false};
    }
    return (struct integer){(uint64_t)v, v < 0};
}

static double load_float(uint32_t kind, const unsigned char *p)
{
    float f;
    double d;
    if (kind == BPI_GGUF_F32V) {
        memcpy(&f, p, sizeof f);
        return (double)f;
    }
    memcpy(&d, p, sizeof d);
    return d;
}

/* What a value is, for a message; never longer work than its first bytes. */
static void describe_value(const struct bpi_gguf_kv *kv, struct bpi_buf *b)
{
    struct bpi_gguf_kv cut = *kv;
    if (kv->kind == BPI_GGUF_ARRAY) {
        bpi_buf_printf(b, "an array of %" PRIu64 " %s", kv->count,
                       bpi_gguf_kind_name(kv->elem_kind));
        return;
    }
    if (cut.value_bytes > SHOWN_IN_MESSAGE) cut.value_bytes = SHOWN_IN_MESSAGE;
    bpi_buf_printf(b, "the %s '", bpi_gguf_kind_name(kv->kind));
    bpi_gguf_format_value(&cut, b);
    bpi_buf_puts(b, cut.value_bytes < kv->value_bytes ? "...'" : "'");
}

static int32_t fail_value(const struct bpi_gguf_part *part, const struct bpi_gguf_kv *kv,
                          const char *expected, struct bp_error *err)
{
    struct bpi_buf text = {0};
    describe_value(kv, &text);
    int key_n = kv->key.n < 100 ? (int)kv->key.n : 100;
    int32_t rc =
        bpi_fail(err, BP_E_FORMAT, BPI_GGUF_DOMAIN, part->where, "key '%.*s' is %s; expected %s",
                 key_n, kv->key.data, text.failed ? "something else" : text.data, expected);
    bpi_buf_free(&text);
    return rc;
}

static int32_t absent(bool *found)
{
    if (found != NULL) *found = false;
    return BP_OK;
}

static int32_t present(bool *found)
{
    if (found != NULL) *found = true;
    return BP_OK;
}

int32_t bpi_gguf_part_u64(const struct bpi_gguf_part *part, const char *key, uint64_t max,
                          uint64_t *out, bool *found, struct bp_error *err)
{
    const struct bpi_gguf_kv *kv = bpi_gguf_part_find(part, key);
    if (kv == NULL) return absent(found);
    char expected[64];
    snprintf(expected, sizeof expected, "an integer from 0 to %" PRIu64, max);
    if (!bpi_gguf_kind_is_integer(kv->kind)) return fail_value(part, kv, expected, err);
    struct integer v = load_integer(kv->kind, kv->value);
    if (v.negative || v.bits > max) return fail_value(part, kv, expected, err);
    *out = v.bits;
    return present(found);
}

int32_t bpi_gguf_get_u64(const struct bpi_gguf *g, const char *key, uint64_t *out, bool *found,
                         struct bp_error *err)
{
    return bpi_gguf_part_u64(&g->parts[0], key, UINT64_MAX, out, found, err);
}

int32_t bpi_gguf_get_u32(const struct bpi_gguf *g, const char *key, uint32_t *out, bool *found,
                         struct bp_error *err)
{
    bool here = false;
    uint64_t v = 0;
    BP_TRY(bpi_gguf_part_u64(&g->parts[0], key, UINT32_MAX, &v, &here, err));
    if (!here) return absent(found);
    *out = (uint32_t)v;
    return present(found);
}

/* Not finite is out of range: no key of the format means anything by it, and it would turn up again as logits. */
int32_t bpi_gguf_get_f32(const struct bpi_gguf *g, const char *key, float *out, bool *found,
                         struct bp_error *err)
{
    static const char expected[] = "a finite number that fits a 32-bit float";
    const struct bpi_gguf_part *part = &g->parts[0];
    const struct bpi_gguf_kv *kv = bpi_gguf_part_find(part, key);
    if (kv == NULL) return absent(found);
    if (bpi_gguf_kind_is_integer(kv->kind)) {
        struct integer v = load_integer(kv->kind, kv->value);
        *out = v.negative ? (float)(int64_t)v.bits : (float)v.bits;
        return present(found);
    }
    if (kv->kind != BPI_GGUF_F32V && kv->kind != BPI_GGUF_F64V)
        return fail_value(part, kv, expected, err);
    double v = load_float(kv->kind, kv->value);
    if (!isfinite(v) || fabs(v) > (double)FLT_MAX) return fail_value(part, kv, expected, err);
    *out = (float)v;
    return present(found);
}

int32_t bpi_gguf_get_bool(const struct bpi_gguf *g, const char *key, bool *out, bool *found,
                          struct bp_error *err)
{
    bool here = false;
    uint64_t v = 0;
    BP_TRY(bpi_gguf_part_u64(&g->parts[0], key, 1, &v, &here, err));
    if (!here) return absent(found);
    *out = v != 0;
    return present(found);
}

int32_t bpi_gguf_get_str(const struct bpi_gguf *g, const char *key, struct bpi_span *out,
                         bool *found, struct bp_error *err)
{
    const struct bpi_gguf_part *part = &g->parts[0];
    const struct bpi_gguf_kv *kv = bpi_gguf_part_find(part, key);
    if (kv == NULL) return absent(found);
    if (kv->kind != BPI_GGUF_STRING) return fail_value(part, kv, "a string", err);
    *out = (struct bpi_span){(const char *)kv->value, kv->value_bytes};
    return present(found);
}

/* ---- arrays ---- */

int32_t bpi_gguf_arr_i64(const struct bpi_gguf *g, const struct bpi_gguf_kv *kv, uint64_t i,
                         int64_t *out, struct bp_error *err)
{
    const struct bpi_gguf_part *part = &g->parts[0];
    const uint32_t kind = kv->kind == BPI_GGUF_ARRAY ? kv->elem_kind : kv->kind;
    if (!bpi_gguf_kind_is_integer(kind))
        return fail_value(part, kv, "integers or an array of integers", err);
    if (i >= kv->count) {
        char expected[64];
        snprintf(expected, sizeof expected, "at least %" PRIu64 " elements", i + 1);
        return fail_value(part, kv, expected, err);
    }
    struct integer v = load_integer(kind, kv->value + i * bpi_gguf_kind_bytes(kind));
    if (!v.negative && v.bits > INT64_MAX)
        return fail_value(part, kv, "integers below 2 to the power 63", err);
    *out = (int64_t)v.bits;
    return BP_OK;
}

/* Steps through packed strings whose lengths were checked when the file was opened; false at the end. */
static bool next_string(const struct bpi_gguf_kv *kv, uint64_t *at, struct bpi_span *out)
{
    uint64_t n;
    if (kv->value_bytes - *at < sizeof n) return false;
    memcpy(&n, kv->value + *at, sizeof n);
    *at += sizeof n;
    if (n > kv->value_bytes - *at) return false;
    *out = (struct bpi_span){(const char *)kv->value + *at, n};
    *at += n;
    return true;
}

int32_t bpi_gguf_arr_strings(const struct bpi_gguf *g, const struct bpi_gguf_kv *kv,
                             struct bpi_span *out, struct bp_error *err)
{
    if (kv->kind != BPI_GGUF_ARRAY || kv->elem_kind != BPI_GGUF_STRING)
        return fail_value(&g->parts[0], kv, "an array of strings", err);
    uint64_t at = 0;
    for (uint64_t i = 0; i < kv->count; ++i) {
        if (!next_string(kv, &at, &out[i]))
            return fail_value(&g->parts[0], kv, "as many strings as its length says", err);
    }
    return BP_OK;
}

/* ---- text ---- */

/* Text as it is, but for bytes that are no UTF-8 and for control characters, which could move a terminal's cursor. */
static void format_text(const char *data, uint64_t n, struct bpi_buf *b)
{
    const unsigned char *p = (const unsigned char *)data;
    for (uint64_t i = 0; i < n;) {
        uint32_t cp;
        bool ok;
        size_t step = bpi_utf8_decode(p + i, n - i, &cp, &ok);
        if (ok && cp >= 0x20 && !(cp >= 0x7f && cp < 0xa0)) {
            bpi_buf_append(b, p + i, step);
        } else if (cp == '\n') {
            bpi_buf_puts(b, "\\n");
        } else if (cp == '\t') {
            bpi_buf_puts(b, "\\t");
        } else if (cp == '\r') {
            bpi_buf_puts(b, "\\r");
        } else {
            for (size_t j = 0; j < step; ++j) bpi_buf_printf(b, "\\x%02x", p[i + j]);
        }
        i += step;
    }
}

/* The shortest decimal that reads back as the same value. */
static void format_float(uint32_t kind, const unsigned char *p, struct bpi_buf *b)
{
    const double v = load_float(kind, p);
    const bool narrow = kind == BPI_GGUF_F32V;
    if (!isfinite(v)) {
        bpi_buf_puts(b, isnan(v) ? "nan" : v > 0 ? "inf" : "-inf");
        return;
    }
    const int most = narrow ? 9 : 17;
    for (int digits = narrow ? 6 : 15; digits <= most; ++digits) {
        struct bpi_buf text = {0};
        double back = 0;
        bpi_buf_printf(&text, "%.*g", digits, v);
        bool same = !text.failed && bpi_parse_f64(text.data, &back) &&
                    (narrow ? (float)back == (float)v : back == v);
        if (same || digits == most) {
            bpi_buf_append(b, text.data, text.len);
            digits = most;
        }
        bpi_buf_free(&text);
    }
}

static void format_scalar(uint32_t kind, const unsigned char *p, struct bpi_buf *b)
{
    if (kind == BPI_GGUF_F32V || kind == BPI_GGUF_F64V) {
        format_float(kind, p, b);
    } else if (kind == BPI_GGUF_BOOL) {
        bpi_buf_puts(b, *p != 0 ? "true" : "false");
    } else {
        struct integer v = load_integer(kind, p);
        if (v.negative) {
            bpi_buf_printf(b, "%" PRId64, (int64_t)v.bits);
        } else {
            bpi_buf_printf(b, "%" PRIu64, v.bits);
        }
    }
}

static void format_array(const struct bpi_gguf_kv *kv, struct bpi_buf *b)
{
    if (kv->count > SHOWN_ELEMENTS) {
        bpi_buf_printf(b, "[%" PRIu64 " %s%s]", kv->count, bpi_gguf_kind_name(kv->elem_kind),
                       kv->elem_kind == BPI_GGUF_STRING ? "s" : " values");
        return;
    }
    uint64_t at = 0;
    bpi_buf_puts(b, "[");
    for (uint64_t i = 0; i < kv->count; ++i) {
        struct bpi_span s;
        if (i > 0) bpi_buf_puts(b, ", ");
        if (kv->elem_kind != BPI_GGUF_STRING) {
            format_scalar(kv->elem_kind, kv->value + i * bpi_gguf_kind_bytes(kv->elem_kind), b);
        } else if (next_string(kv, &at, &s)) {
            bpi_buf_puts(b, "\"");
            format_text(s.data, s.n, b);
            bpi_buf_puts(b, "\"");
        }
    }
    bpi_buf_puts(b, "]");
}

void bpi_gguf_format_value(const struct bpi_gguf_kv *kv, struct bpi_buf *b)
{
    if (kv->kind == BPI_GGUF_ARRAY) {
        format_array(kv, b);
    } else if (kv->kind == BPI_GGUF_STRING) {
        format_text((const char *)kv->value, kv->value_bytes, b);
    } else {
        format_scalar(kv->kind, kv->value, b);
    }
}
