/* api_file.c - the bp_file_* functions of tools.h: headers, tensors and metadata of any GGUF, whatever it holds.
 * Not here: what keys and tensors mean (core/model). Threads: an open file is immutable.
 * SPDX-License-Identifier: MIT */
#include "engine/engine.h"

#include <string.h>
#include "block/block.h"

static int32_t copy_names(struct bp_file *f, struct bp_error *err)
{
    uint64_t n = bpi_gguf_n_kv(f->g);
    struct bpi_span arch = {"", 0};
    bool found = false;
    struct bp_error odd = BP_ERROR_INIT; /* an architecture of a wrong kind is shown as missing */
    if (bpi_gguf_get_str(f->g, "general.architecture", &arch, &found, &odd) != BP_OK || !found)
        arch = (struct bpi_span){"", 0};
    f->arch = bpi_arena_strndup(&f->arena, arch.data, arch.n);
    f->keys = bpi_arena_alloc(&f->arena, n, sizeof *f->keys, sizeof(void *));
    f->kinds = bpi_arena_alloc(&f->arena, n, sizeof *f->kinds, 1);
    if (f->arch == NULL || f->keys == NULL || f->kinds == NULL)
        return bpi_fail_nomem(err, "gguf", n * (sizeof *f->keys + sizeof *f->kinds));
    for (uint64_t i = 0; i < n; ++i) {
        const struct bpi_gguf_kv *kv = bpi_gguf_kv_at(f->g, i);
        struct bpi_buf kind = {0};
        f->keys[i] = bpi_arena_strndup(&f->arena, kv->key.data, kv->key.n);
        if (kv->kind == BPI_GGUF_ARRAY)
            bpi_buf_printf(&kind, "arr[%s]", bpi_gguf_kind_name(kv->elem_kind));
        else
            bpi_buf_puts(&kind, bpi_gguf_kind_name(kv->kind));
        bool ok = f->keys[i] != NULL && !kind.failed && kind.len < sizeof *f->kinds;
        if (ok) memcpy(f->kinds[i], kind.data, kind.len + 1);
        bpi_buf_free(&kind);
        if (!ok) return bpi_fail_nomem(err, "gguf", kv->key.n + 1);
    }
    return BP_OK;
}

int32_t bp_file_open(const char *path, struct bp_file **out, struct bp_error *err)
{
    int32_t rc;
    *out = NULL;
    struct bp_file *f = bpi_calloc(1, sizeof *f);
    if (f == NULL) return bpi_fail_nomem(err, "gguf", sizeof *f);
    BP_TRY_GOTO(rc, bpi_gguf_open(path, &f->g, err), fail);
    BP_TRY_GOTO(rc, copy_names(f, err), fail);
    *out = f;
    return BP_OK;
fail:
    bp_file_close(f);
    return rc;
}

void bp_file_close(struct bp_file *f)
{
    if (f == NULL) return;
    bpi_gguf_close(f->g);
    bpi_arena_free(&f->arena);
    bpi_free(f);
}

const struct bpi_gguf *bpi_engine_gguf(const struct bp_file *f)
{
    return f->g;
}

void bp_file_info(const struct bp_file *f, struct bp_file_info *out)
{
    out->version = bpi_gguf_version(f->g);
    out->n_shards = bpi_gguf_shards(f->g);
    out->n_kv = bpi_gguf_n_kv(f->g);
    out->n_tensors = bpi_gguf_n_tensors(f->g);
    out->n_bytes = 0;
    for (uint32_t i = 0; i < out->n_shards; ++i) out->n_bytes += bpi_gguf_shard_bytes(f->g, i);
    out->arch = f->arch;
}

int32_t bp_file_shard(const struct bp_file *f, uint32_t i, struct bp_file_shard *out)
{
    if (i >= bpi_gguf_shards(f->g)) return BP_DECLINED;
    out->path = bpi_gguf_shard_path(f->g, i);
    out->n_bytes = bpi_gguf_shard_bytes(f->g, i);
    out->n_tensors = 0;
    for (uint64_t k = 0; k < bpi_gguf_n_tensors(f->g); ++k)
        out->n_tensors += bpi_gguf_tensor_at(f->g, k)->shard == i;
    return BP_OK;
}

static void fill_tensor(const struct bpi_gguf_tensor *t, struct bp_file_tensor *out)
{
    const struct bpi_block_info *info = bpi_block_info(t->type);
    out->name = t->name;
    out->type_name = info != NULL ? info->name : "?";
    out->type = t->type;
    out->n_dim = t->n_dim;
    memcpy(out->ne, t->ne, sizeof out->ne);
    out->n_bytes = t->n_bytes;
    out->offset = t->offset;
    out->data = t->data;
    out->shard = t->shard;
    out->reserved = 0;
}

int32_t bp_file_tensor(const struct bp_file *f, uint64_t i, struct bp_file_tensor *out)
{
    if (i >= bpi_gguf_n_tensors(f->g)) return BP_DECLINED;
    fill_tensor(bpi_gguf_tensor_at(f->g, i), out);
    return BP_OK;
}

int32_t bp_file_find(const struct bp_file *f, const char *name, struct bp_file_tensor *out)
{
    const struct bpi_gguf_tensor *t = bpi_gguf_tensor(f->g, name);
    if (t == NULL) return BP_DECLINED;
    fill_tensor(t, out);
    return BP_OK;
}

int32_t bp_file_hf_name(const char *gguf_name, char *out, size_t cap)
{
    return bpi_model_hf_name(gguf_name, out, cap) ? BP_OK : BP_DECLINED;
}

/* ---- what the model's tables say about it ---- */

struct survey {
    bp_report_fn fn;
    void *ctx;
};

static void survey_line(void *ctx, const struct bpi_report_entry *entry)
{
    const struct survey *s = ctx;
    struct bp_report line = {.h = BP_HDR(struct bp_report, text),
                             .kind = entry->kind,
                             .name = entry->name != NULL ? entry->name : "",
                             .text = entry->text != NULL ? entry->text : ""};
    s->fn(s->ctx, &line);
}

int32_t bp_file_survey(const struct bp_file *f, const struct bp_config *cfg, bp_report_fn fn,
                       void *ctx, struct bp_error *err)
{
    struct survey s = {fn, ctx};
    return bpi_model_survey(f->g, cfg != NULL ? cfg->c : NULL, survey_line, &s, err);
}

/* ---- metadata ---- */

/* Element `at` bytes into an array, seen as a record of its own. Lengths were checked when the file was opened; the
 * check here only keeps this function safe by itself. False past the end. */
static bool next_element(const struct bpi_gguf_kv *kv, uint64_t *at, struct bpi_gguf_kv *out)
{
    uint64_t n = 0, left = kv->value_bytes - *at;
    *out = (struct bpi_gguf_kv){.key = kv->key, .kind = kv->elem_kind, .count = 1};
    if (kv->elem_kind == BPI_GGUF_STRING) {
        if (left < sizeof n) return false;
        memcpy(&n, kv->value + *at, sizeof n);
        *at += sizeof n;
        left -= sizeof n;
    } else if (kv->count > 0) {
        n = kv->value_bytes / kv->count;
    }
    if (n > left) return false;
    out->value = kv->value + *at;
    out->value_bytes = n;
    *at += n;
    return true;
}

static void format_array(const struct bpi_gguf_kv *kv, uint32_t max_elems, struct bpi_buf *b)
{
    uint64_t at = 0, shown = kv->count < max_elems ? kv->count : max_elems;
    const char *quote = kv->elem_kind == BPI_GGUF_STRING ? "\"" : "";
    struct bpi_gguf_kv element;
    bpi_buf_puts(b, "[");
    for (uint64_t i = 0; i < shown && next_element(kv, &at, &element); ++i) {
        bpi_buf_printf(b, "%s%s", i > 0 ? ", " : "", quote);
        bpi_gguf_format_value(&element, b);
        bpi_buf_puts(b, quote);
    }
    if (shown < kv->count)
        bpi_buf_printf(b, "%s... %llu in all", shown > 0 ? ", " : "",
                       (unsigned long long)kv->count);
    bpi_buf_puts(b, "]");
}

int32_t bp_file_kv(const struct bp_file *f, uint64_t i, uint32_t max_elems, const char **out_key,
                   const char **out_kind, char **out_value)
{
    struct bpi_buf b = {0};
    if (i >= bpi_gguf_n_kv(f->g)) return BP_DECLINED;
    const struct bpi_gguf_kv *kv = bpi_gguf_kv_at(f->g, i);
    bpi_buf_append(&b, "", 0);
    if (kv->kind == BPI_GGUF_ARRAY)
        format_array(kv, max_elems, &b);
    else
        bpi_gguf_format_value(kv, &b);
    if (b.failed) {
        bpi_buf_free(&b);
        return BP_E_NOMEM;
    }
    *out_key = f->keys[i];
    *out_kind = f->kinds[i];
    *out_value = b.data;
    return BP_OK;
}

int32_t bp_file_u64(const struct bp_file *f, const char *key, uint64_t *out, struct bp_error *err)
{
    bool found = false;
    BP_TRY(bpi_gguf_get_u64(f->g, key, out, &found, err));
    return found ? BP_OK : BP_DECLINED;
}

int32_t bp_file_str(const struct bp_file *f, const char *key, char **out, size_t *out_n,
                    struct bp_error *err)
{
    bool found = false;
    struct bpi_span s = {"", 0};
    BP_TRY(bpi_gguf_get_str(f->g, key, &s, &found, err));
    if (!found) return BP_DECLINED;
    *out = bpi_strndup(s.data, s.n);
    if (*out == NULL) return bpi_fail_nomem(err, "gguf", s.n + 1);
    *out_n = s.n;
    return BP_OK;
}
