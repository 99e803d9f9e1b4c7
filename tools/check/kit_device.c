/* kit_device.c - see kit_device.h. Twins lie in segments: device memory with an image of the same size in pinned memory, so
 * that one copy takes everything up and one brings it back. Scratch has memory of its own, which is poisoned on the device.
 * SPDX-License-Identifier: MIT */
#include "kit_device_priv.h"

#include <stdlib.h>
#include <string.h>

#include "kit_guard.h"

const struct bp_device *kit_device_of(const struct kit *k)
{
    return k->device != NULL ? &k->device->dev : kit_host_device();
}

bool kit_device_lost(const struct kit *k)
{
    return k->device != NULL && k->device->lost;
}

/* ---- opening ---- */

static bool offers_device(struct kit *k, struct kit_device *d, struct bp_error *err)
{
    const struct bp_device wanted = {
        .h = BP_HDR(struct bp_device, name), .kind = BP_DEV_CUDA, .ordinal = k->o->gpu};
    const struct bp_device_problem p = {
        .h = BP_HDR(struct bp_device_problem, ordinal), .kind = BP_DEV_CUDA, .ordinal = k->o->gpu};
    struct kit_answer *a = calloc(1, sizeof *a);
    bool good = false;
    for (uint32_t i = 0; a != NULL && i < d->plugin.desc->n_ops && !good; ++i) {
        const struct bp_op_entry *e = kit_op_at(d->plugin.desc, i);
        if (strcmp(e->iface, "bp.device") != 0) continue;
        if (d->plugin.desc->op_create(d->plugin.self, e, &wanted, NULL, 0, &d->op, err) != BP_OK)
            break;
        kit_ask(&d->op, &p, a);
        good = a->verdict.level != BP_V_NO;
        if (!good)
            (void)snprintf(err->msg, sizeof err->msg, "%s %s", a->reasons[0].field,
                           a->reasons[0].text);
        d->vt = (const struct bp_device_ops *)(const void *)d->op.vt;
    }
    free(a);
    if (!good && err->msg[0] == '\0')
        (void)snprintf(err->msg, sizeof err->msg, "its plugin offers no bp.device");
    return good && d->vt->props(d->op.self, &d->dev, err) == BP_OK &&
           d->vt->stream_create(d->op.self, &d->stream, err) == BP_OK &&
           d->vt->stream_create(d->op.self, &d->aux[0], err) == BP_OK &&
           d->vt->stream_create(d->op.self, &d->aux[1], err) == BP_OK;
}

bool kit_device_open(struct kit *k, char *why, size_t cap)
{
    struct bp_error err = BP_ERROR_INIT;
    why[0] = '\0';
    if (k->o->gpu < 0 || k->device != NULL) return true;
    struct kit_device *d = calloc(1, sizeof *d);
    if (d == NULL) return false;
    d->kit = k;
    d->options = *k->o;
    d->options.file = k->o->device_plugin;
    if (strcmp(k->o->device_plugin, k->o->file) != 0) d->options.n_sets = 0;
    d->options.reference = false;
    d->dev = (struct bp_device){
        .h = BP_HDR(struct bp_device, name), .kind = BP_DEV_CUDA, .ordinal = k->o->gpu};
    const struct kit_options *own = k->o;
    k->o = &d->options;
    bool good = kit_open_subject(k, &d->plugin);
    k->o = own;
    if (good) {
        kit_at(k, "4.10", "bp.device", "op_create", "opening device %d", own->gpu);
        kit_enter(k);
        good = offers_device(k, d, &err);
        kit_leave(k);
        err.msg[sizeof err.msg - 1] = '\0';
        (void)snprintf(why, cap, "%s", err.msg);
    } else {
        (void)snprintf(why, cap, "its plugin cannot be opened");
    }
    if (good)
        k->device = d;
    else
        free(d);
    return good;
}

void kit_stage_device(struct kit *k)
{
    char why[300];
    if (kit_device_open(k, why, sizeof why))
        kit_fact(k, "device", "%.63s, compute capability %d.%d", k->device->dev.name,
                 k->device->dev.cc_major, k->device->dev.cc_minor);
    else
        kit_fact(k, "no device", "%s", why);
}

/* ---- twins ---- */

void kit_device_reset(struct kit_device *d)
{
    if (d == NULL) return;
    for (uint32_t i = 0; i < d->n_segments; ++i) d->segments[i].used = 0;
    d->scratch.used = 0;
    d->n_twins = 0;
    d->broken.is_set = false;
    if (d->pinned != NULL && !d->lost) d->vt->free(d->op.self, BP_MEM_PINNED, d->pinned);
    d->pinned = NULL;
}

static int32_t grow(struct kit_device *d, struct segment *s, uint64_t n, bool image,
                    struct bp_error *err)
{
    const uint64_t whole = n > SEGMENT ? n : SEGMENT;
    BP_TRY(d->vt->alloc(d->op.self, BP_MEM_DEVICE, whole, (void **)&s->device, err));
    if (image) BP_TRY(d->vt->alloc(d->op.self, BP_MEM_PINNED, whole, (void **)&s->image, err));
    s->n_bytes = whole;
    return BP_OK;
}

/* Odd twins begin where the alignment of an element allows, not where an allocator would put them: views do, too. */
static uint64_t place_of(const struct kit_device *d, const unsigned char *host, uint64_t n_bytes,
                         uint32_t kind)
{
    const uint64_t low = (uintptr_t)host % ALIGN;
    (void)n_bytes;
    return kind == TWIN_BLOCK && d->n_twins % 2 == 1 ? ROOM + low : ROOM;
}

static int32_t twin_of(struct kit_device *d, const void *host, uint64_t n_bytes, const char *name,
                       uint32_t kind, struct twin **out, struct bp_error *err)
{
    for (uint32_t i = 0; i < d->n_twins; ++i) {
        *out = &d->twins[i];
        if ((*out)->host == host && (*out)->n_bytes == n_bytes) return BP_OK;
    }
    if (d->n_twins == MAX_TWINS) {
        (void)snprintf(err->msg, sizeof err->msg,
                       "the kit has no room for more than %d blocks in a case", MAX_TWINS);
        return BP_E_LIMIT;
    }
    const uint64_t before = place_of(d, host, n_bytes, kind);
    const uint64_t n = (before + n_bytes + ROOM + ALIGN - 1) / ALIGN * ALIGN;
    uint32_t i = 0;
    struct segment *s = &d->scratch;
    if (kind == TWIN_SCRATCH) {
        if (s->n_bytes < n) {
            if (s->device != NULL) d->vt->free(d->op.self, BP_MEM_DEVICE, s->device);
            s->device = NULL;
            s->n_bytes = 0;
            BP_TRY(grow(d, s, n, false, err));
        }
        s->used = 0;
    } else {
        while (i < d->n_segments && d->segments[i].n_bytes - d->segments[i].used < n) ++i;
        if (i == MAX_SEGMENTS) return BP_E_LIMIT;
        s = &d->segments[i];
        if (i == d->n_segments) {
            BP_TRY(grow(d, s, n, true, err));
            d->n_segments++;
        }
    }
    *out = &d->twins[d->n_twins++];
    **out = (struct twin){host, name, n_bytes, s->used + before, kind, i};
    if (s->image != NULL) memset(s->image + s->used, DEVICE_CANARY, n);
    s->used += n;
    return BP_OK;
}

static unsigned char *address_of(const struct kit_device *d, const struct twin *t)
{
    return (t->kind == TWIN_SCRATCH ? d->scratch.device : d->segments[t->segment].device) + t->at;
}

/* Does the address lie in a block of the case? Blocks of the plugin's own memory and structs stay on the host. */
static bool block_at(const void *p, struct kit_guard_hit *hit)
{
    return kit_guard_find(p, hit) && hit->offset >= 0 && (uint64_t)hit->offset <= hit->n_bytes &&
           strcmp(hit->name, "memory of mem_alloc") != 0 && strncmp(hit->name, "struct ", 7) != 0 &&
           strcmp(hit->name, "the host table") != 0;
}

/* *word, if it is an address in a block of the case, becomes that of its twin. */
static int32_t translate(struct kit_device *d, uint64_t *word, uint32_t kind, struct bp_error *err)
{
    struct kit_guard_hit hit;
    struct twin *t;
    if (*word < 4096 || !block_at((const void *)(uintptr_t)*word, &hit)) return BP_OK;
    const unsigned char *begin = (const unsigned char *)(uintptr_t)*word - hit.offset;
    BP_TRY(twin_of(d, begin, hit.n_bytes, hit.name, kind, &t, err));
    *word = (uintptr_t)(address_of(d, t) + hit.offset);
    return BP_OK;
}

static int32_t translate_words(struct kit_device *d, void *at, size_t n_bytes, struct bp_error *err)
{
    uint64_t word;
    for (size_t i = 0; i + sizeof word <= n_bytes; i += sizeof word) {
        memcpy(&word, (unsigned char *)at + i, sizeof word);
        BP_TRY(translate(d, &word, TWIN_BLOCK, err));
        memcpy((unsigned char *)at + i, &word, sizeof word);
    }
    return BP_OK;
}

static int32_t translate_array(struct kit_device *d, const int32_t **p, uint64_t n,
                               const char *name, struct bp_error *err)
{
    struct twin *t;
    if (*p == NULL) return BP_OK;
    BP_TRY(twin_of(d, *p, n * sizeof **p, name, TWIN_ARRAY, &t, err));
    *p = (const int32_t *)(const void *)address_of(d, t);
    return BP_OK;
}

/* ---- metadata ---- */

static int32_t carry_common(struct kit_device *d, struct kit_carried *c,
                            const struct bp_mla_meta *m, struct bp_error *err)
{
    c->common = *m;
    BP_TRY(translate_array(d, &c->common.positions, m->n_tok, "positions", err));
    BP_TRY(translate_array(d, &c->common.slot_map, m->n_tok, "slot_map", err));
    BP_TRY(translate_array(d, &c->common.block_table, (uint64_t)m->n_seqs * m->table_stride,
                           "block_table", err));
    BP_TRY(translate_array(d, &c->common.kv_len, m->n_seqs, "kv_len", err));
    BP_TRY(translate_words(d, &c->common.rope_cos, sizeof c->common.rope_cos, err));
    return translate_words(d, &c->common.rope_sin, sizeof c->common.rope_sin, err);
}

static int32_t carry_meta(struct kit_device *d, struct kit_carried *c, const void *meta,
                          uint32_t kind, const void **out, struct bp_error *err)
{
    if (kind == KIT_META_COMMON) {
        *out = &c->common;
        return carry_common(d, c, meta, err);
    }
    if (kind == KIT_META_PREFILL) {
        const struct bp_mla_prefill_meta *m = meta;
        c->prefill = *m;
        *out = &c->prefill;
        BP_TRY(translate_array(d, &c->prefill.seq, m->n_seg, "seq", err));
        BP_TRY(translate_array(d, &c->prefill.cu_q, m->n_seg + 1, "cu_q", err));
        BP_TRY(translate_array(d, &c->prefill.cu_k, m->n_seg + 1, "cu_k", err));
        BP_TRY(translate_array(d, &c->prefill.kv_begin, m->n_seg, "kv_begin", err));
        c->prefill.common = &c->common;
        return carry_common(d, c, m->common, err);
    }
    const struct bp_mla_decode_meta *m = meta;
    c->decode = *m;
    *out = &c->decode;
    BP_TRY(translate_array(d, &c->decode.row_seq, m->n_row_padded, "row_seq", err));
    BP_TRY(translate_array(d, &c->decode.row_kv_len, m->n_row_padded, "row_kv_len", err));
    c->decode.common = &c->common;
    return carry_common(d, c, m->common, err);
}

/* ---- calls ---- */

/* Pinned memory is the host's: canaries around it are compared where they are. */
static int32_t carry_pinned(struct kit_device *d, struct bp_launch *l, struct bp_error *err)
{
    struct kit_guard_hit hit;
    if (l->pinned == NULL || !kit_guard_find(l->pinned, &hit)) return BP_OK;
    if (d->pinned != NULL && d->pinned_host != l->pinned) {
        d->vt->free(d->op.self, BP_MEM_PINNED, d->pinned);
        d->pinned = NULL;
    }
    if (d->pinned == NULL) {
        BP_TRY(d->vt->alloc(d->op.self, BP_MEM_PINNED, hit.n_bytes + 2 * ROOM, &d->pinned, err));
        memset(d->pinned, DEVICE_CANARY, hit.n_bytes + 2 * ROOM);
        memset((unsigned char *)d->pinned + ROOM, 0xff, hit.n_bytes);
        d->pinned_host = l->pinned;
        d->pinned_bytes = hit.n_bytes;
    }
    l->pinned = (unsigned char *)d->pinned + ROOM;
    return BP_OK;
}

static int32_t carry_launch(struct kit_device *d, struct bp_launch *l, struct bp_error *err)
{
    uint64_t scratch = (uintptr_t)l->scratch;
    d->in_scratch = l->scratch;
    l->dev = &d->dev;
    l->stream = d->stream;
    for (int i = 0; i < 2; ++i) l->aux[i] = d->n_calls % 2 == 0 ? d->aux[i] : NULL;
    BP_TRY(translate(d, &scratch, TWIN_SCRATCH, err));
    l->scratch = (void *)(uintptr_t)scratch;
    BP_TRY(translate_words(d, &l->persistent, sizeof l->persistent, err));
    BP_TRY(translate_words(d, &l->plan, sizeof l->plan, err));
    return carry_pinned(d, l, err);
}

/* Scratch: canaries and poison, made on the device. */
static int32_t poison_scratch(struct kit_device *d, struct bp_error *err)
{
    for (uint32_t i = 0; i < d->n_twins; ++i) {
        const struct twin *t = &d->twins[i];
        if (t->kind != TWIN_SCRATCH || t->host != d->in_scratch) continue;
        BP_TRY(d->vt->fill(d->op.self, d->scratch.device, DEVICE_CANARY, t->at + t->n_bytes + ROOM,
                           d->stream, err));
        if (t->n_bytes != 0)
            BP_TRY(d->vt->fill(d->op.self, d->scratch.device + t->at, 0xff, t->n_bytes, d->stream,
                               err));
    }
    return BP_OK;
}

int32_t kit_device_upload(struct kit_device *d, bool late, struct bp_error *err)
{
    for (uint32_t i = 0; i < d->n_twins; ++i) {
        const struct twin *t = &d->twins[i];
        if (t->kind != TWIN_SCRATCH && t->n_bytes != 0)
            memcpy(d->segments[t->segment].image + t->at, t->host, t->n_bytes);
    }
    BP_TRY(poison_scratch(d, err));
    for (uint32_t i = 0; late && i < d->n_segments; ++i) {
        if (d->segments[i].used != 0)
            BP_TRY(d->vt->fill(d->op.self, d->segments[i].device, 0xff, d->segments[i].used,
                               d->stream, err));
    }
    if (late) {
        BP_TRY(d->vt->stream_sync(d->op.self, d->stream, err));
        BP_TRY(kit_device_delay(d, err));
    }
    for (uint32_t i = 0; i < d->n_segments; ++i) {
        const struct segment *s = &d->segments[i];
        if (s->used != 0)
            BP_TRY(
                d->vt->copy(d->op.self, s->device, s->image, s->used, BP_COPY_H2D, d->stream, err));
    }
    return BP_OK;
}

int32_t kit_device_carry(struct kit_device *d, const struct bp_launch *l, const void *args,
                         uint32_t meta, bool is_meta, bool is_matmul, struct kit_carried *c,
                         struct bp_error *err)
{
    const struct bp_hdr *h = args;
    const size_t n_launch = l->h.size < sizeof c->launch ? l->h.size : sizeof c->launch;
    if (h->size > sizeof c->args) return BP_E_LIMIT;
    memset(c, 0, sizeof *c);
    memcpy(&c->launch, l, n_launch);
    c->launch.h.size = (uint32_t)n_launch;
    memcpy(c->args, args, h->size);
    d->n_calls++;
    BP_TRY(carry_launch(d, &c->launch, err));
    if (is_meta) {
        const void *out;
        BP_TRY(carry_meta(d, c, args, meta, &out, err));
        memcpy(c->args, out, h->size);
        return BP_OK;
    }
    if (meta != KIT_META_NONE) {
        const void *from, *out;
        memcpy(&from, (const unsigned char *)args + sizeof *h, sizeof from);
        BP_TRY(carry_meta(d, c, from, meta, &out, err));
        memcpy((unsigned char *)c->args + sizeof *h, &out, sizeof out);
    }
    if (is_matmul) {
        struct bp_quant_matmul_args *a = (struct bp_quant_matmul_args *)(void *)c->args;
        for (uint32_t i = 0; i < a->n_out && i < KIT_LEN(c->outs); ++i) {
            c->outs[i] = *bp_matmul_out_at(a, i);
            BP_TRY(translate_words(d, &c->outs[i].y, sizeof c->outs[i].y, err));
        }
        a->outs = c->outs;
        a->out_stride = sizeof c->outs[0];
    }
    return translate_words(d, (unsigned char *)c->args + sizeof *h, h->size - sizeof *h, err);
}

static void tell_broken(struct kit_device *d, const char *name, uint64_t n_bytes, int64_t at,
                        bool input)
{
    if (d->broken.is_set) return;
    d->broken.name = name;
    d->broken.n_bytes = n_bytes;
    d->broken.at = at;
    d->broken.is_set = true;
    d->broken.input = input;
}

/* Canaries around n_bytes at p: `before` bytes of them, and ROOM behind. */
static void look_around(struct kit_device *d, const char *name, const unsigned char *p,
                        uint64_t n_bytes, uint64_t before)
{
    for (uint64_t i = 0; i < ROOM; ++i) {
        if (p[n_bytes + i] != DEVICE_CANARY)
            tell_broken(d, name, n_bytes, (int64_t)(n_bytes + i), false);
    }
    for (uint64_t i = 1; i <= before; ++i) {
        if (p[-(int64_t)i] != DEVICE_CANARY) tell_broken(d, name, n_bytes, -(int64_t)i, false);
    }
}

/* What came back against what went up: into the host's block, or, where that may not be written, compared with it. */
static void take_back(struct kit_device *d, const struct twin *t)
{
    const unsigned char *now = d->segments[t->segment].image + t->at;
    if (t->n_bytes == 0 || memcmp(now, t->host, t->n_bytes) == 0) return;
    if (t->kind == TWIN_BLOCK && !kit_guard_is_locked(t->host)) {
        memcpy((unsigned char *)(uintptr_t)t->host, now, t->n_bytes);
        return;
    }
    for (uint64_t i = 0; i < t->n_bytes; ++i) {
        if (now[i] != t->host[i]) tell_broken(d, t->name, t->n_bytes, (int64_t)i, true);
    }
}

void kit_device_take_back(struct kit_device *d)
{
    for (uint32_t i = 0; i < d->n_twins; ++i) {
        if (d->twins[i].kind != TWIN_SCRATCH) take_back(d, &d->twins[i]);
    }
}

static int32_t look_at_scratch(struct kit_device *d, const struct twin *t, struct bp_error *err)
{
    unsigned char around[2][ROOM];
    const unsigned char *p = address_of(d, t);
    BP_TRY(d->vt->copy(d->op.self, around[0], p - ROOM, ROOM, BP_COPY_D2H, d->stream, err));
    BP_TRY(d->vt->copy(d->op.self, around[1], p + t->n_bytes, ROOM, BP_COPY_D2H, d->stream, err));
    BP_TRY(d->vt->stream_sync(d->op.self, d->stream, err));
    for (uint64_t b = 0; b < ROOM; ++b) {
        if (around[1][b] != DEVICE_CANARY)
            tell_broken(d, t->name, t->n_bytes, (int64_t)(t->n_bytes + b), false);
        if (around[0][b] != DEVICE_CANARY)
            tell_broken(d, t->name, t->n_bytes, (int64_t)b - ROOM, false);
    }
    return BP_OK;
}

int32_t kit_device_download(struct kit_device *d, struct bp_error *err)
{
    for (uint32_t i = 0; i < d->n_segments; ++i) {
        const struct segment *s = &d->segments[i];
        if (s->used != 0)
            BP_TRY(
                d->vt->copy(d->op.self, s->image, s->device, s->used, BP_COPY_D2H, d->stream, err));
    }
    BP_TRY(d->vt->stream_sync(d->op.self, d->stream, err));
    for (uint32_t i = 0; i < d->n_twins; ++i) {
        const struct twin *t = &d->twins[i];
        if (t->kind != TWIN_SCRATCH)
            look_around(d, t->name, d->segments[t->segment].image + t->at, t->n_bytes, ROOM);
        else if (t->host == d->in_scratch)
            BP_TRY(look_at_scratch(d, t, err));
    }
    if (d->pinned != NULL)
        look_around(d, "pinned memory", (const unsigned char *)d->pinned + ROOM, d->pinned_bytes,
                    ROOM);
    return BP_OK;
}

bool kit_device_whole(struct kit *k, const char *iface, const char *op)
{
    struct kit_device *d = k->device;
    if (d == NULL || !d->broken.is_set) return true;
    d->broken.is_set = false;
    return kit_fail(
        k, d->broken.input || strncmp(d->broken.name, "tensor", 6) == 0 ? "6.2" : "6.10", iface, op,
        NULL, "byte %lld of %s%s on the device, which has %llu bytes, was written",
        (long long)d->broken.at, d->broken.name, d->broken.input ? ", an input," : "",
        (unsigned long long)d->broken.n_bytes);
}
