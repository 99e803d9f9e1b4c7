/* dump.c - writing a golden file. Not here: reading one (golden.c). SPDX-License-Identifier: MIT */
#include "dump.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <backplane/sdk_tensor.h>

/* ---- collecting ---- */

static struct dump_tap *tap_of(struct dump *d, const struct bp_tap_event *e, uint64_t **cap)
{
    uint32_t i = 0;
    while (i < d->n_taps && strcmp(d->taps[i].name, e->name) != 0) ++i;
    if (i == d->n_taps) {
        if (d->n_taps == d->cap_taps) {
            const uint32_t n = d->cap_taps == 0 ? 64 : 2 * d->cap_taps;
            struct dump_tap *taps = realloc(d->taps, n * sizeof *taps);
            if (taps != NULL) d->taps = taps;
            uint64_t *caps = realloc(d->cap_rows, n * sizeof *caps);
            if (caps != NULL) d->cap_rows = caps;
            if (taps == NULL || caps == NULL) return NULL;
            d->cap_taps = n;
        }
        char *name = malloc(strlen(e->name) + 1);
        if (name == NULL) return NULL;
        strcpy(name, e->name);
        d->taps[i] =
            (struct dump_tap){.name = name, .width = 1, .integer = e->data->dtype == BP_DT_I32};
        for (uint32_t k = 1; k < e->data->ndim; ++k) d->taps[i].width *= (uint64_t)e->data->dim[k];
        d->cap_rows[i] = 0;
        d->n_taps++;
    }
    *cap = &d->cap_rows[i];
    return &d->taps[i];
}

static bool grow(struct dump_tap *t, uint64_t *cap, uint64_t n)
{
    if (t->n_rows + n <= *cap) return true;
    const uint64_t want = t->n_rows + n > 2 * *cap ? t->n_rows + n : 2 * *cap;
    void *data = realloc((void *)(uintptr_t)t->data, want * t->width * 4);
    if (data != NULL) t->data = data;
    uint32_t *pos = realloc((void *)(uintptr_t)t->pos, want * sizeof *pos);
    if (pos != NULL) t->pos = pos;
    if (data == NULL || pos == NULL) return false;
    *cap = want;
    return true;
}

static void copy_row(const struct bp_tensor *t, uint32_t row, char *out)
{
    struct bp_tensor one = *t;
    one.data = (char *)t->data + (int64_t)row * t->stride[0] * bp_dtype_bytes(t->dtype);
    one.dim[0] = 1;
    struct bp_rows r = bp_rows_of(&one);
    for (; bp_rows_next(&r); out += r.n * 4) {
        if (bp_is_float(t->dtype))
            bp_load((float *)(void *)out, r.p, t->dtype, r.n);
        else
            memcpy(out, r.p, (size_t)r.n * 4);
    }
}

void dump_collect(void *ctx, const struct bp_tap_event *e)
{
    struct dump *d = ctx;
    uint64_t *cap = NULL;
    if (d->nomem) return;
    struct dump_tap *t = tap_of(d, e, &cap);
    d->nomem = t == NULL || !grow(t, cap, e->n_rows);
    if (d->nomem) return;
    for (uint32_t i = 0; i < e->n_rows; ++i) {
        copy_row(e->data, i, (char *)(uintptr_t)t->data + t->n_rows * t->width * 4);
        ((uint32_t *)(uintptr_t)t->pos)[t->n_rows++] = e->row_pos[i];
    }
}

void dump_free(struct dump *d)
{
    for (uint32_t i = 0; i < d->n_taps; ++i) {
        free((void *)(uintptr_t)d->taps[i].name);
        free((void *)(uintptr_t)d->taps[i].data);
        free((void *)(uintptr_t)d->taps[i].pos);
    }
    free(d->taps);
    free(d->cap_rows);
    *d = (struct dump){0};
}

/* ---- writing ---- */

struct writer {
    struct bp_gguf_writer *w;
    const struct bp_model *m;
    void **owned; /* buffers that live until the file is saved */
    size_t n_owned;
    uint32_t n; /* of the prompt */
};

static void put(struct writer *w, const char *name, uint32_t type, int64_t n0, int64_t n1,
                const void *data)
{
    char full[160];
    const int64_t ne[2] = {n0, n1};
    snprintf(full, sizeof full, "%u.%s", w->n, name);
    bp_gguf_writer_tensor(w->w, full, type, n1 > 0 ? 2 : 1, ne, data);
}

static const struct dump_tap *find(const struct dump_prompt *p, const char *name)
{
    for (uint32_t i = 0; i < p->n_taps; ++i) {
        if (strcmp(p->taps[i].name, name) == 0) return &p->taps[i];
    }
    return NULL;
}

/* The tap behind hidden state `level`. */
static const struct dump_tap *hidden_tap(const struct writer *w, const struct dump_prompt *p,
                                         uint32_t level)
{
    char name[48];
    const uint32_t last = bp_model_n_layer(w->m);
    if (level == 0 || level == last) return find(p, level == 0 ? "embd" : "output_norm");
    snprintf(name, sizeof name, "blk.%u.out", level - 1);
    return find(p, name);
}

/* Rows in order of their positions, every one of them. NULL: some are missing, or memory is. */
static const void *ordered(struct writer *w, const struct dump_tap *t, uint32_t n)
{
    float *rows = calloc((size_t)n * t->width + 1, sizeof *rows);
    uint64_t seen = 0;
    if (rows == NULL) return NULL;
    w->owned[w->n_owned++] = rows;
    for (uint64_t i = 0; i < t->n_rows; ++i) {
        if (t->pos[i] >= n) continue;
        memcpy(rows + (size_t)t->pos[i] * t->width, (const float *)t->data + i * t->width,
               t->width * sizeof *rows);
        seen++;
    }
    return seen == n ? rows : NULL;
}

static bool has_hidden(const struct writer *w, const struct dump_prompt *p)
{
    for (uint32_t l = 0; l <= bp_model_n_layer(w->m); ++l) {
        const struct dump_tap *t = hidden_tap(w, p, l);
        if (t == NULL || t->n_rows < p->n_ids || t->width != bp_model_n_embd(w->m)) return false;
    }
    return true;
}

static void put_hidden(struct writer *w, const struct dump_prompt *p)
{
    const void *rows[1024];
    char name[32];
    const uint32_t n = bp_model_n_layer(w->m) + 1;
    if (n > sizeof rows / sizeof rows[0] || !has_hidden(w, p)) return;
    for (uint32_t l = 0; l < n; ++l) {
        rows[l] = ordered(w, hidden_tap(w, p, l), p->n_ids);
        if (rows[l] == NULL) return;
    }
    for (uint32_t l = 0; l < n; ++l) {
        snprintf(name, sizeof name, "hidden.%u", l);
        put(w, name, BP_GGUF_F32, bp_model_n_embd(w->m), p->n_ids, rows[l]);
    }
}

static void put_prompt(struct writer *w, const struct dump_prompt *p)
{
    char key[48], name[128];
    snprintf(key, sizeof key, "golden.%u.text", w->n);
    bp_gguf_writer_str(w->w, key, p->text, p->n_text);
    put(w, "ids", BP_GGUF_I32, p->n_ids, 0, p->ids);
    put(w, "logits", BP_GGUF_F32, bp_model_n_vocab(w->m), p->n_rows, p->logits);
    if (p->n_greedy > 0) put(w, "greedy", BP_GGUF_I32, p->n_greedy, 0, p->greedy);
    put_hidden(w, p);
    for (uint32_t i = 0; i < p->n_taps; ++i) {
        const struct dump_tap *t = &p->taps[i];
        if (t->n_rows == 0) continue;
        snprintf(name, sizeof name, "tap.%s", t->name);
        put(w, name, t->integer ? BP_GGUF_I32 : BP_GGUF_F32, (int64_t)t->width, (int64_t)t->n_rows,
            t->data);
        snprintf(name, sizeof name, "tap.%s.pos", t->name);
        put(w, name, BP_GGUF_I32, (int64_t)t->n_rows, 0, t->pos);
    }
}

int32_t dump_write(const char *path, const struct bp_model *m, const struct dump_prompt *prompts,
                   uint32_t n_prompts, struct bp_error *err)
{
    struct writer w = {.m = m};
    BP_TRY(bp_gguf_writer_create(&w.w, err));
    w.owned = calloc((size_t)n_prompts * (bp_model_n_layer(m) + 1u) + 1, sizeof *w.owned);
    int32_t rc = w.owned != NULL ? BP_OK : cli_fail(err, BP_E_NOMEM, path, "out of memory");
    if (rc == BP_OK) {
        bp_gguf_writer_str(w.w, "general.architecture", "golden", strlen("golden"));
        bp_gguf_writer_u32(w.w, "golden.count", n_prompts);
        for (w.n = 0; w.n < n_prompts; ++w.n) put_prompt(&w, &prompts[w.n]);
        rc = bp_gguf_writer_save(w.w, path, err);
    }
    for (size_t i = 0; i < w.n_owned; ++i) free(w.owned[i]);
    free(w.owned);
    bp_gguf_writer_destroy(w.w);
    return rc;
}
