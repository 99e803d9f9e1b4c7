/* mirror_data.c - the numbers of a call: copied to a mirror, saved, read; rows of the cache in any layout that is plain
 * numbers ("mla.bf16.576": rows one after the other, one per token slot).
 * Not here: calls (mirror.c). Threads: the session's. SPDX-License-Identifier: MIT */
#include "engine/mirror_priv.h"
#include "backplane/sdk.h"
#include <string.h>

/* ---- copies ---- */

static int32_t device_copy(struct bp_session *s, void *dst, const void *src, uint64_t n,
                           uint32_t dir, struct bp_error *err)
{
    BP_TRY(bpi_session_copy(s, dst, src, n, dir, err));
    return bpi_session_sync(s, err);
}

static int32_t fetch(struct bp_session *s, const void *p, void *out, uint64_t n,
                     struct bp_error *err)
{
    if (s->device.kind != BP_DEV_HOST) return device_copy(s, out, p, n, BP_COPY_D2H, err);
    memcpy(out, p, n);
    return BP_OK;
}

static int32_t put(struct bp_session *s, void *p, const void *from, uint64_t n,
                   struct bp_error *err)
{
    if (s->device.kind != BP_DEV_HOST) return device_copy(s, p, from, n, BP_COPY_H2D, err);
    memcpy(p, from, n);
    return BP_OK;
}

/* From a's memory to b's, through the host where both are devices. */
static int32_t carry(struct bp_session *a, const void *from, struct bp_session *b, void *to,
                     uint64_t n, struct bp_error *err)
{
    if (a->device.kind == BP_DEV_HOST) return put(b, to, from, n, err);
    if (b->device.kind == BP_DEV_HOST) return fetch(a, from, to, n, err);
    void *host = bpi_alloc(n);
    if (host == NULL) return bpi_fail_nomem(err, "engine", n);
    int32_t rc = fetch(a, from, host, n, err);
    if (rc == BP_OK) rc = put(b, to, host, n, err);
    bpi_free(host);
    return rc;
}

uint64_t bpi_port_span(const struct bp_tensor *t)
{
    uint64_t span = 1;
    if (t->data == NULL) return 0;
    for (uint32_t i = 0; i < t->ndim; ++i) {
        if (t->dim[i] == 0) return 0;
        span += (uint64_t)(t->dim[i] - 1) * (uint64_t)t->stride[i];
    }
    return span * bpi_dtype_bytes(t->dtype);
}

bool bpi_call_is_pool(const struct bpi_call *c, uint32_t port)
{
    return c->port[port].layout_id != 0;
}

bool bpi_call_overwrites(const struct bpi_call *c, uint32_t port)
{
    const struct bp_tensor *in = &c->port[port];
    const uintptr_t begin = (uintptr_t)in->data, end = begin + bpi_port_span(in);
    if ((in->access & BP_IN) == 0 || bpi_call_is_pool(c, port)) return false;
    for (uint32_t i = 0; i < c->n_port; ++i) {
        const uintptr_t at = (uintptr_t)c->port[i].data;
        if ((c->port[i].access & BP_OUT) == 0 || bpi_call_is_pool(c, i)) continue;
        if (at < end && begin < at + bpi_port_span(&c->port[i])) return true;
    }
    return false;
}

int32_t bpi_mirror_save(struct bp_session *s, const struct bp_tensor *port, void *out,
                        struct bp_error *err)
{
    return fetch(s, port->data, out, bpi_port_span(port), err);
}

/* Is it a step buffer? Norms, rope tables and metadata are the mirror's own. */
static bool is_loaded(const struct bp_session *a, const struct bp_tensor *t)
{
    uint32_t number;
    uint64_t offset;
    if ((t->access & BP_IN) == 0 || t->layout_id != 0) return false;
    if (!bpi_mirror_buffer(a, t->data, &number, &offset)) return false;
    return a->mems[number].p != (void *)a->rope_cos && a->mems[number].p != (void *)a->rope_sin;
}

int32_t bpi_mirror_load(struct bp_session *a, struct bp_session *b, const struct bpi_call *c,
                        void *const *from, struct bp_error *err)
{
    for (uint32_t i = 0; i < c->n_port; ++i) {
        struct bp_tensor t = c->port[i];
        const uint64_t n = bpi_port_span(&t);
        if (n == 0 || !is_loaded(a, &t)) continue;
        BP_TRY(bpi_mirror_translate(a, b, c->layer, &t, err));
        if (from != NULL && from[i] != NULL)
            BP_TRY(put(b, t.data, from[i], n, err));
        else
            BP_TRY(carry(a, c->port[i].data, b, t.data, n, err));
    }
    return BP_OK;
}

bool bpi_mirror_same(struct bp_session *a, struct bp_session *b, const struct bpi_call *c,
                     uint32_t port)
{
    struct bp_error ignored = BP_ERROR_INIT;
    struct bp_tensor t = c->port[port], u = t;
    if (a->device.kind != BP_DEV_HOST || b->device.kind != BP_DEV_HOST) return false;
    if (bpi_mirror_translate(a, b, c->layer, &u, &ignored) != BP_OK) return false;
    struct bp_rows r = bp_rows_of(&t), q = bp_rows_of(&u);
    while (bp_rows_next(&r) && bp_rows_next(&q)) {
        if (memcmp(r.p, q.p, (size_t)r.n * bpi_dtype_bytes(t.dtype)) != 0) return false;
    }
    return true;
}

int32_t bpi_mirror_read(struct bp_session *a, struct bp_session *s, const struct bpi_call *c,
                        uint32_t port, int64_t begin, int64_t rows, void *out, struct bp_error *err)
{
    struct bp_tensor t = c->port[port];
    void *host = NULL;
    BP_TRY(bpi_mirror_translate(a, s, c->layer, &t, err));
    t = bpi_rows(t, begin, rows);
    const uint64_t n = bpi_port_span(&t);
    if (n == 0) return BP_OK;
    if (s->device.kind != BP_DEV_HOST) {
        host = bpi_alloc(n);
        if (host == NULL) return bpi_fail_nomem(err, "engine", n);
        int32_t rc = fetch(s, t.data, host, n, err);
        if (rc != BP_OK) {
            bpi_free(host);
            return rc;
        }
        t.data = host;
    }
    struct bp_rows r = bp_rows_of(&t);
    for (char *at = out; bp_rows_next(&r); at += r.n * 4) {
        if (bp_is_float(t.dtype))
            bp_load((float *)(void *)at, r.p, t.dtype, r.n);
        else
            memcpy(at, r.p, (size_t)r.n * 4);
    }
    bpi_free(host);
    return BP_OK;
}

/* ---- rows of the cache ---- */

uint32_t bpi_mirror_row_width(const struct bp_session *s, bool index)
{
    return index ? s->hp->index_dim : s->hp->kv_lora + s->hp->rope;
}

uint32_t bpi_mirror_n_tok(const struct bp_session *s)
{
    return s->step.n_tok;
}

/* The dtype of a layout of plain rows, BP_DT_NONE for any other. */
static uint32_t plain_dtype(const struct bp_session *s, uint32_t layer, bool index)
{
    static const uint32_t dtypes[] = {BP_DT_F32, BP_DT_BF16, BP_DT_F16};
    const struct bpi_layer *l = &s->layers[layer];
    const uint64_t id = index ? l->index_layout_id : l->kv_layout_id;
    char name[32];
    for (size_t i = 0; i < BPI_ARRAY_LEN(dtypes); ++i) {
        if (bp_layout_name(name, index ? "mla.index" : "mla", dtypes[i],
                           bpi_mirror_row_width(s, index)) == id)
            return dtypes[i];
    }
    return BP_DT_NONE;
}

static unsigned char *row_at(const struct bp_session *s, uint32_t layer, bool index, int64_t slot)
{
    const struct bpi_layer *l = &s->layers[layer];
    unsigned char *pool = index ? l->index_pool : l->pool;
    const uint64_t block = index ? l->index_block_bytes : l->kv_block_bytes;
    return pool + (uint64_t)(slot / s->block_tok) * block +
           (uint64_t)(slot % s->block_tok) * (block / s->block_tok);
}

enum { MAX_ROW = 8192 };

static int32_t read_row(struct bp_session *s, uint32_t layer, bool index, uint32_t dtype,
                        int64_t slot, float *out, struct bp_error *err)
{
    unsigned char raw[MAX_ROW * 4];
    const uint32_t w = bpi_mirror_row_width(s, index);
    BP_TRY(fetch(s, row_at(s, layer, index, slot), raw, (uint64_t)w * bpi_dtype_bytes(dtype), err));
    bp_load(out, raw, dtype, w);
    return BP_OK;
}

static int32_t write_row(struct bp_session *s, uint32_t layer, bool index, uint32_t dtype,
                         int64_t slot, const float *row, struct bp_error *err)
{
    unsigned char raw[MAX_ROW * 4];
    const uint32_t w = bpi_mirror_row_width(s, index);
    bp_store(raw, dtype, row, w);
    return put(s, row_at(s, layer, index, slot), raw, (uint64_t)w * bpi_dtype_bytes(dtype), err);
}

int32_t bpi_mirror_rows(struct bp_session *s, int32_t layer, bool index, float *out,
                        struct bp_error *err)
{
    const uint32_t w = bpi_mirror_row_width(s, index);
    const uint32_t dtype = plain_dtype(s, (uint32_t)layer, index);
    if (dtype == BP_DT_NONE || w > MAX_ROW) return BP_DECLINED;
    for (uint32_t r = 0; r < s->step.n_tok; ++r)
        BP_TRY(read_row(s, (uint32_t)layer, index, dtype, s->step.common.slot_map_host[r],
                        out + (size_t)r * w, err));
    return BP_OK;
}

int32_t bpi_mirror_copy_rows(const struct bp_session *from, struct bp_session *b, uint32_t layer,
                             bool index, uint32_t seq, uint32_t pos, uint32_t n,
                             struct bp_error *err)
{
    struct bp_session *a = (struct bp_session *)(uintptr_t)from; /* fetch only reads */
    const uint32_t da = plain_dtype(a, layer, index), db = plain_dtype(b, layer, index);
    float row[MAX_ROW];
    if (da == BP_DT_NONE || db == BP_DT_NONE || bpi_mirror_row_width(a, index) > MAX_ROW)
        return BP_DECLINED;
    for (uint32_t i = 0; i < n; ++i) {
        BP_TRY(read_row(a, layer, index, da, bpi_kv_slot(a->kv, seq, pos + i), row, err));
        BP_TRY(write_row(b, layer, index, db, bpi_kv_slot(b->kv, seq, pos + i), row, err));
    }
    return BP_OK;
}

int32_t bpi_mirror_import(struct bp_session *a, struct bp_session *b, int32_t layer, bool index,
                          struct bp_error *err)
{
    const uint32_t il = (uint32_t)layer, w = bpi_mirror_row_width(a, index);
    const uint32_t da = plain_dtype(a, il, index), db = plain_dtype(b, il, index);
    float row[MAX_ROW];
    if (da == BP_DT_NONE || db == BP_DT_NONE || w > MAX_ROW) return BP_DECLINED;
    for (uint32_t r = 0; r < a->step.n_tok; ++r) {
        BP_TRY(read_row(a, il, index, da, a->step.common.slot_map_host[r], row, err));
        BP_TRY(write_row(b, il, index, db, b->step.common.slot_map_host[r], row, err));
    }
    return BP_OK;
}

int32_t bpi_mirror_cache_row(struct bp_session *s, int32_t layer, bool index, uint32_t seq,
                             uint32_t pos, float *out, struct bp_error *err)
{
    const uint32_t dtype = plain_dtype(s, (uint32_t)layer, index);
    if (dtype == BP_DT_NONE || bpi_mirror_row_width(s, index) > MAX_ROW) return BP_DECLINED;
    return read_row(s, (uint32_t)layer, index, dtype, bpi_kv_slot(s->kv, seq, pos), out, err);
}

int32_t bpi_mirror_slot_pos(const struct bp_session *s, uint32_t seq, int32_t slot)
{
    const int32_t *table = bpi_kv_table(s->kv, seq);
    const uint32_t n = (bpi_kv_len(s->kv, seq) + s->block_tok - 1) / s->block_tok;
    for (uint32_t i = 0; slot >= 0 && i < n; ++i) {
        if (table[i] == slot / (int32_t)s->block_tok)
            return (int32_t)(i * s->block_tok) + slot % (int32_t)s->block_tok;
    }
    return -1;
}

const struct bpi_hparams *bpi_mirror_hparams(const struct bp_session *s)
{
    return s->hp;
}

const float *bpi_mirror_router_bias(const struct bp_session *s, int32_t layer)
{
    size_t n;
    return bpi_model_vec(s->model->m, BPI_W_ROUTER_BIAS, (uint32_t)layer, &n);
}

/* ---- which token is a row? ---- */

const uint32_t *bpi_mirror_row_pos(const struct bp_session *s)
{
    return s->step.row_pos;
}

const uint32_t *bpi_mirror_row_item(const struct bp_session *s)
{
    return s->step.row_item;
}

uint32_t bpi_mirror_logit_row(const struct bp_session *s, uint32_t i)
{
    return s->step.logit_row[i];
}

/* The first row of the group that a prefill call is about. */
static int32_t group_row(const struct bp_session *s, const void *args)
{
    const void *meta;
    memcpy(&meta, (const char *)args + BPI_ARGS_META_AT, sizeof(meta));
    for (uint32_t g = 0; g < s->step.n_group; ++g) {
        for (uint32_t p = 0; p < s->step.groups[g].n_phase; ++p) {
            if (meta == &s->step.groups[g].meta[p]) return (int32_t)s->step.groups[g].row0;
        }
    }
    return -1;
}

int32_t bpi_mirror_first_row(const struct bp_session *s, const struct bpi_call *c)
{
    uint32_t number;
    uint64_t offset;
    if (c->layer < 0 && strcmp(c->tap, "embd") != 0 && strcmp(c->tap, "output_norm") != 0)
        return -2;
    if (strcmp(c->slot, "mla.prefill") == 0) return group_row(s, c->args);
    if (strcmp(c->op, "cache_gather") == 0 || strcmp(c->op, "expand") == 0) return -1;
    for (uint32_t i = 0; i < c->n_port; ++i) {
        const struct bp_tensor *t = &c->port[i];
        if ((t->access & BP_OUT) == 0) continue;
        if (t->layout_id != 0) return 0;
        if (!bpi_mirror_buffer(s, t->data, &number, &offset) || t->stride[0] <= 0) return 0;
        return (int32_t)(offset / ((uint64_t)t->stride[0] * bpi_dtype_bytes(t->dtype)));
    }
    return 0;
}

uint32_t bpi_mirror_kv_dtype(const struct bp_session *s)
{
    return s->kv_dtype;
}
