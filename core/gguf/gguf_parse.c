/* gguf_parse.c - reads header, metadata and tensor records of one file; every length is compared with the bytes that
 * are left before it is used, and tables grow with the records that were really there, not with announced counts.
 * Not here: where tensors may lie (gguf_layout.c), shards (gguf_shard.c). Threads: one file, one caller.
 * Sources: format of ggml docs/gguf.md and limits of src/gguf.cpp @ d99724f, restated. SPDX-License-Identifier: MIT */
#include "gguf/gguf_priv.h"

#include <stdio.h>
#include <string.h>

/* Least bytes of a record: key length, one byte of key or none, kind, one byte of value; name length, dimension
 * count, type, offset. */
enum { MIN_KV_BYTES = 13, MIN_TENSOR_BYTES = 24, FIRST_CAP = 64 };
/* Headers are brought into memory in pieces of this many bytes, so that little is read of what follows them. */
enum { AHEAD_BYTES = 128 << 10 };

struct reader {
    const struct bpi_gguf_part *part;
    struct bp_error *err;
    uint64_t at, wanted; /* bytes below `wanted` are asked for */
    const char *record;  /* "the header", "metadata record", "tensor record" */
    uint64_t number;
    struct bpi_span name; /* of the record, once it is known */
    char place[160];
};

/* "metadata record 5 (general.name)"; in a buffer of the reader. */
static const char *place(struct reader *r)
{
    int shown = r->name.n < 70 ? (int)r->name.n : 70;
    if (r->number == UINT64_MAX) {
        snprintf(r->place, sizeof r->place, "%s", r->record);
    } else if (r->name.n == 0) {
        snprintf(r->place, sizeof r->place, "%s %llu", r->record, (unsigned long long)r->number);
    } else {
        snprintf(r->place, sizeof r->place, "%s %llu (%.*s)", r->record,
                 (unsigned long long)r->number, shown, r->name.data);
    }
    return r->place;
}

static uint64_t left(const struct reader *r)
{
    return r->part->n_bytes - r->at;
}

/* For all that is wrong with a record, apart from its being cut off. */
#define REFUSE(r, code, ...)                                                                       \
    bpi_fail((r)->err, code, BPI_GGUF_DOMAIN, (r)->part->where, __VA_ARGS__)

/* Of a long value only the beginning: it may be stepped over. */
static void want_ahead(struct reader *r, uint64_t n)
{
    uint64_t begin = r->at > r->wanted ? r->at : r->wanted;
    if (n > AHEAD_BYTES) n = AHEAD_BYTES;
    if (r->at + n <= r->wanted) return;
    bpi_map_want(&r->part->map, begin, r->at + n - begin + AHEAD_BYTES);
    r->wanted = r->at + n + AHEAD_BYTES;
}

static int32_t need(struct reader *r, uint64_t n, const char *field)
{
    if (n <= left(r)) {
        if (r->at >= r->wanted || n > r->wanted - r->at) want_ahead(r, n);
        return BP_OK;
    }
    return REFUSE(r, BP_E_FORMAT,
                  "%s of %s at byte %llu takes %llu bytes, but the file ends after %llu more: an "
                  "incomplete download or a damaged file",
                  field, place(r), (unsigned long long)r->at, (unsigned long long)n,
                  (unsigned long long)left(r));
}

static int32_t read_u32(struct reader *r, const char *field, uint32_t *out)
{
    BP_TRY(need(r, 4, field));
    memcpy(out, r->part->data + r->at, 4);
    r->at += 4;
    return BP_OK;
}

static int32_t read_u64(struct reader *r, const char *field, uint64_t *out)
{
    BP_TRY(need(r, 8, field));
    memcpy(out, r->part->data + r->at, 8);
    r->at += 8;
    return BP_OK;
}

static int32_t read_string(struct reader *r, const char *field, uint64_t max, struct bpi_span *out)
{
    uint64_t n;
    BP_TRY(read_u64(r, field, &n));
    BP_TRY(need(r, n, field));
    if (n > max)
        return REFUSE(r, BP_E_LIMIT, "%s of %s at byte %llu has %llu bytes; the limit is %llu",
                      field, place(r), (unsigned long long)r->at, (unsigned long long)n,
                      (unsigned long long)max);
    *out = (struct bpi_span){(const char *)r->part->data + r->at, n};
    r->at += n;
    return BP_OK;
}

/* ---- header ---- */

struct lead_in {
    const char *bytes;
    uint32_t at, n;
    const char *meaning;
};
// clang-format off
static const struct lead_in lead_ins[] = {
    {"version https://git-lfs", 0, 23, "this is a Git LFS pointer; run 'git lfs pull' to get the file itself"},
    {"<!DOCTYPE", 0, 9, "this is a web page; the download link gave no model"},
    {"<!doctype", 0, 9, "this is a web page; the download link gave no model"},
    {"<html", 0, 5, "this is a web page; the download link gave no model"},
    {"PK\003\004", 0, 4, "this is a ZIP archive or a PyTorch checkpoint; convert it to GGUF"},
    {"{\"", 8, 2, "this is a safetensors file; convert it to GGUF"},
    {"FUGG", 0, 4, "its magic is byte-swapped; big-endian files cannot be read, so convert it to little-endian"},
    {"lmgg", 0, 4, "this is a GGML file from before GGUF; convert the original model again"},
    {"fmgg", 0, 4, "this is a GGML file from before GGUF; convert the original model again"},
    {"tjgg", 0, 4, "this is a GGML file from before GGUF; convert the original model again"},
};
// clang-format on

static int32_t fail_magic(const struct reader *r)
{
    const unsigned char *p = r->part->data;
    uint64_t n = r->part->n_bytes < 12 ? r->part->n_bytes : 12;
    const char *meaning = "check that this is the model file";
    for (size_t i = 0; i < BPI_ARRAY_LEN(lead_ins); ++i) {
        const struct lead_in *l = &lead_ins[i];
        if (r->part->n_bytes >= l->at + l->n && memcmp(p + l->at, l->bytes, l->n) == 0) {
            meaning = l->meaning;
            break;
        }
    }
    bool text = true;
    char shown[40];
    size_t used = 0;
    for (uint64_t i = 0; i < n; ++i) text = text && p[i] >= 0x20 && p[i] < 0x7f;
    for (uint64_t i = 0; i < n; ++i)
        used += (size_t)snprintf(shown + used, sizeof shown - used, text ? "%c" : "%02x ", p[i]);
    if (!text) shown[used - 1] = '\0';
    return REFUSE(r, BP_E_FORMAT, "not a GGUF file (starts with %s%s%s); %s",
                  text ? "\"" : "bytes ", shown, text ? "\"" : "", meaning);
}

static int32_t check_version(const struct reader *r, uint32_t version)
{
    if (version == 2 || version == 3) return BP_OK;
    if (version == 1)
        return REFUSE(r, BP_E_UNSUPPORTED,
                      "GGUF version 1 is not supported (2 and 3 are); convert the original model "
                      "again with current tools");
    if (version != 0 && (version & 0xffffu) == 0)
        return REFUSE(r, BP_E_UNSUPPORTED,
                      "this is a big-endian GGUF file (version field %02x %02x %02x %02x); only "
                      "little-endian files are supported, so convert its byte order",
                      version & 0xff, version >> 8 & 0xff, version >> 16 & 0xff, version >> 24);
    return REFUSE(r, version == 0 ? BP_E_FORMAT : BP_E_UNSUPPORTED,
                  "GGUF version %u is unknown; versions 2 and 3 are supported", version);
}

static int32_t check_count(const struct reader *r, const char *what, uint64_t n, uint64_t min_bytes,
                           uint64_t max)
{
    if (n > left(r) / min_bytes)
        return REFUSE(
            r, BP_E_FORMAT,
            "the header announces %llu %s, but the %llu bytes that follow it hold at most "
            "%llu: an incomplete download or a damaged file",
            (unsigned long long)n, what, (unsigned long long)left(r),
            (unsigned long long)(left(r) / min_bytes));
    if (n > max)
        return REFUSE(r, BP_E_LIMIT, "the header announces %llu %s; the limit is %llu",
                      (unsigned long long)n, what, (unsigned long long)max);
    return BP_OK;
}

static int32_t parse_header(struct reader *r, struct bpi_gguf_part *part, uint64_t *out_n_tensors,
                            uint64_t *out_n_kv)
{
    r->record = "the header";
    r->number = UINT64_MAX;
    if (part->n_bytes == 0) return REFUSE(r, BP_E_FORMAT, "the file is empty");
    uint64_t n = part->n_bytes < 4 ? part->n_bytes : 4;
    if (memcmp(part->data, BPI_GGUF_MAGIC, n) != 0) return fail_magic(r);
    BP_TRY(need(r, 4, "magic"));
    r->at = 4;
    BP_TRY(read_u32(r, "version", &part->version));
    BP_TRY(check_version(r, part->version));
    BP_TRY(read_u64(r, "tensor count", out_n_tensors));
    BP_TRY(read_u64(r, "metadata count", out_n_kv));
    BP_TRY(check_count(r, "metadata records", *out_n_kv, MIN_KV_BYTES, BPI_GGUF_MAX_KV));
    return check_count(r, "tensors", *out_n_tensors, MIN_TENSOR_BYTES, BPI_GGUF_MAX_TENSORS);
}

/* ---- metadata ---- */

/* Steps over n strings; their lengths were never seen before, so each is checked. */
static int32_t skip_strings(struct reader *r, uint64_t n)
{
    for (uint64_t i = 0; i < n; ++i) {
        struct bpi_span s;
        BP_TRY(read_string(r, "array element", BPI_GGUF_MAX_STRING_BYTES, &s));
    }
    return BP_OK;
}

static int32_t parse_array(struct reader *r, struct bpi_gguf_kv *kv)
{
    BP_TRY(read_u32(r, "element kind", &kv->elem_kind));
    BP_TRY(read_u64(r, "array length", &kv->count));
    if (kv->elem_kind == BPI_GGUF_ARRAY)
        return REFUSE(r, BP_E_UNSUPPORTED, "%s is an array of arrays, which is not supported",
                      place(r));
    if (kv->elem_kind >= BPI_GGUF_N_KINDS)
        return REFUSE(r, BP_E_FORMAT, "%s is an array of unknown kind %u; kinds go from 0 to 12",
                      place(r), kv->elem_kind);
    const bool strings = kv->elem_kind == BPI_GGUF_STRING;
    const uint64_t elem_bytes = strings ? 8 : bpi_gguf_kind_bytes(kv->elem_kind);
    if (kv->count > left(r) / elem_bytes)
        return REFUSE(
            r, BP_E_FORMAT,
            "%s announces an array of %llu elements, but the %llu bytes that follow hold at "
            "most %llu: an incomplete download or a damaged file",
            place(r), (unsigned long long)kv->count, (unsigned long long)left(r),
            (unsigned long long)(left(r) / elem_bytes));
    if (kv->count > BPI_GGUF_MAX_ARRAY)
        return REFUSE(r, BP_E_LIMIT, "%s is an array of %llu elements; the limit is %llu", place(r),
                      (unsigned long long)kv->count, (unsigned long long)BPI_GGUF_MAX_ARRAY);
    const uint64_t start = r->at;
    kv->value = r->part->data + start;
    if (strings) {
        BP_TRY(skip_strings(r, kv->count));
    } else {
        r->at += kv->count * elem_bytes;
    }
    kv->value_bytes = r->at - start;
    return BP_OK;
}

/* A bool of another value than 0 and 1 is against the text of the format, but its own reader takes it for true and
 * files exist; so it is true here as well. */
static int32_t parse_kv(struct reader *r, struct bpi_gguf_kv *kv)
{
    BP_TRY(read_string(r, "key", BPI_GGUF_MAX_KEY_BYTES, &kv->key));
    if (kv->key.n == 0) return REFUSE(r, BP_E_FORMAT, "%s has an empty key", place(r));
    if (memchr(kv->key.data, 0, kv->key.n) != NULL)
        return REFUSE(r, BP_E_FORMAT, "the key of %s contains a zero byte", place(r));
    r->name = kv->key;
    BP_TRY(read_u32(r, "kind", &kv->kind));
    if (kv->kind >= BPI_GGUF_N_KINDS)
        return REFUSE(r, BP_E_FORMAT, "%s has the unknown kind %u; kinds go from 0 to 12", place(r),
                      kv->kind);
    if (kv->kind == BPI_GGUF_ARRAY) return parse_array(r, kv);
    kv->count = 1;
    if (kv->kind == BPI_GGUF_STRING) {
        struct bpi_span s;
        BP_TRY(read_string(r, "value", BPI_GGUF_MAX_STRING_BYTES, &s));
        kv->value = (const unsigned char *)s.data;
        kv->value_bytes = s.n;
        return BP_OK;
    }
    kv->value_bytes = bpi_gguf_kind_bytes(kv->kind);
    BP_TRY(need(r, kv->value_bytes, "value"));
    kv->value = r->part->data + r->at;
    r->at += kv->value_bytes;
    return BP_OK;
}

static int32_t parse_all_kv(struct reader *r, struct bpi_gguf_part *part, uint64_t n)
{
    r->record = "metadata record";
    for (r->number = 0; r->number < n; ++r->number) {
        if (part->n_kv == part->cap_kv) {
            uint64_t cap = part->cap_kv == 0 ? (n < FIRST_CAP ? n : FIRST_CAP) : 2 * part->cap_kv;
            struct bpi_gguf_kv *kv = bpi_realloc(part->kv, cap, sizeof *kv);
            if (kv == NULL) return bpi_fail_nomem(r->err, BPI_GGUF_DOMAIN, cap * sizeof *kv);
            part->kv = kv;
            part->cap_kv = cap;
        }
        struct bpi_gguf_kv *kv = &part->kv[part->n_kv];
        *kv = (struct bpi_gguf_kv){0};
        r->name = (struct bpi_span){0};
        BP_TRY(parse_kv(r, kv));
        ++part->n_kv;
    }
    uint64_t first = 0, second = 0;
    int32_t rc = bpi_gguf_index_build(&part->kv_index, part->kv, part->n_kv, bpi_gguf_kv_name,
                                      &first, &second);
    if (rc == BP_E_NOMEM)
        return bpi_fail_nomem(r->err, BPI_GGUF_DOMAIN, n * 2 * sizeof(struct bpi_gguf_slot));
    if (rc != BP_OK) {
        r->name = part->kv[second].key;
        r->number = second;
        return REFUSE(
            r, BP_E_FORMAT,
            "%s has the same key as record %llu; which one counts is undefined, so the file "
            "must be made again",
            place(r), (unsigned long long)first);
    }
    return BP_OK;
}

static int32_t read_alignment(struct reader *r, struct bpi_gguf_part *part)
{
    part->alignment = BPI_GGUF_DEFAULT_ALIGNMENT;
    const struct bpi_gguf_kv *kv = bpi_gguf_part_find(part, "general.alignment");
    if (kv == NULL) return BP_OK;
    if (kv->kind != BPI_GGUF_U32)
        return REFUSE(r, BP_E_FORMAT, "general.alignment has kind %s; it must be u32",
                      bpi_gguf_kind_name(kv->kind));
    uint32_t v;
    memcpy(&v, kv->value, sizeof v);
    if (v == 0 || (v & (v - 1)) != 0)
        return REFUSE(r, BP_E_FORMAT, "general.alignment is %u; it must be a power of two", v);
    if (v > BPI_GGUF_MAX_ALIGNMENT)
        return REFUSE(r, BP_E_LIMIT, "general.alignment is %u; the limit is %u", v,
                      (unsigned)BPI_GGUF_MAX_ALIGNMENT);
    part->alignment = v;
    return BP_OK;
}

/* ---- tensors ---- */

static int32_t check_type(struct reader *r, uint32_t type)
{
    uint32_t elems, bytes;
    if (bpi_gguf_type_sizes(type, &elems, &bytes)) return BP_OK;
    const char *former = bpi_gguf_removed_type(type);
    if (former != NULL)
        return REFUSE(
            r, BP_E_UNSUPPORTED,
            "%s has type %u (%s), which was removed from the format; quantize the original "
            "model again",
            place(r), type, former);
    return REFUSE(
        r, BP_E_UNSUPPORTED,
        "%s has type %u, which is none of the format's (0 to %u); files quantized by a fork "
        "of the tools need that fork",
        place(r), type, (unsigned)BP_GGUF_COUNT - 1);
}

static int32_t fail_shape(struct reader *r, const struct bpi_gguf_tensor *t, const char *problem)
{
    uint32_t block = 1, block_bytes = 0;
    (void)bpi_gguf_type_sizes(t->type, &block, &block_bytes);
    return REFUSE(r, BP_E_FORMAT,
                  "%s %s: shape %lld x %lld x %lld x %lld, type %u with blocks of %u", place(r),
                  problem, (long long)t->ne[0], (long long)t->ne[1], (long long)t->ne[2],
                  (long long)t->ne[3], t->type, block);
}

static int32_t parse_tensor(struct reader *r, struct bpi_gguf_tensor *t)
{
    struct bpi_span name;
    BP_TRY(read_string(r, "name", BPI_GGUF_MAX_NAME_BYTES, &name));
    if (name.n == 0) return REFUSE(r, BP_E_FORMAT, "%s has an empty name", place(r));
    if (memchr(name.data, 0, name.n) != NULL)
        return REFUSE(r, BP_E_FORMAT, "the name of %s contains a zero byte", place(r));
    memcpy(t->name, name.data, name.n);
    r->name = name;
    BP_TRY(read_u32(r, "number of dimensions", &t->n_dim));
    if (t->n_dim < 1 || t->n_dim > BPI_GGUF_MAX_DIMS)
        return REFUSE(r, BP_E_FORMAT, "%s has %u dimensions; 1 to %d are allowed", place(r),
                      t->n_dim, BPI_GGUF_MAX_DIMS);
    for (uint32_t i = 0; i < BPI_GGUF_MAX_DIMS; ++i) {
        uint64_t v = 1;
        if (i < t->n_dim) BP_TRY(read_u64(r, "dimension", &v));
        t->ne[i] = (int64_t)v;
    }
    BP_TRY(read_u32(r, "type", &t->type));
    BP_TRY(check_type(r, t->type));
    BP_TRY(read_u64(r, "offset", &t->offset));
    const char *problem = bpi_gguf_tensor_bytes(t->type, t->n_dim, t->ne, &t->n_bytes);
    if (problem != NULL) return fail_shape(r, t, problem);
    if (t->offset % r->part->alignment != 0)
        return REFUSE(
            r, BP_E_FORMAT, "%s has offset %llu, which is no multiple of the file's alignment %llu",
            place(r), (unsigned long long)t->offset, (unsigned long long)r->part->alignment);
    return BP_OK;
}

static int32_t parse_all_tensors(struct reader *r, struct bpi_gguf *g, struct bpi_gguf_part *part,
                                 uint64_t n)
{
    r->record = "tensor record";
    if (n > BPI_GGUF_MAX_TENSORS - g->n_tensors)
        return REFUSE(r, BP_E_LIMIT, "with this shard the model has %llu tensors; the limit is %d",
                      (unsigned long long)(g->n_tensors + n), BPI_GGUF_MAX_TENSORS);
    part->first_tensor = g->n_tensors;
    for (r->number = 0; r->number < n; ++r->number) {
        if (g->n_tensors == g->cap_tensors) {
            uint64_t cap =
                g->cap_tensors == 0 ? (n < FIRST_CAP ? n : FIRST_CAP) : 2 * g->cap_tensors;
            struct bpi_gguf_tensor *t = bpi_realloc(g->tensors, cap, sizeof *t);
            if (t == NULL) return bpi_fail_nomem(r->err, BPI_GGUF_DOMAIN, cap * sizeof *t);
            g->tensors = t;
            g->cap_tensors = cap;
        }
        struct bpi_gguf_tensor *t = &g->tensors[g->n_tensors];
        *t = (struct bpi_gguf_tensor){.shard = part->number};
        r->name = (struct bpi_span){0};
        BP_TRY(parse_tensor(r, t));
        ++g->n_tensors;
    }
    part->n_tensors = n;
    return BP_OK;
}

int32_t bpi_gguf_parse_part(struct bpi_gguf *g, struct bpi_gguf_part *part, struct bp_error *err)
{
    struct reader r = {.part = part, .err = err};
    uint64_t n_tensors = 0, n_kv = 0;
    BP_TRY(parse_header(&r, part, &n_tensors, &n_kv));
    BP_TRY(parse_all_kv(&r, part, n_kv));
    BP_TRY(read_alignment(&r, part));
    BP_TRY(parse_all_tensors(&r, g, part, n_tensors));
    return bpi_gguf_place_tensors(g, part, r.at, err);
}
