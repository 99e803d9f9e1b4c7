/* golden.c - reading a golden file; every size and id in it is checked before it is used.
 * SPDX-License-Identifier: MIT */
#include "golden.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct reader {
    struct golden *g;
    const struct bp_model *m;
    const char *path;
    struct bp_error *err;
};

static int32_t bad(const struct reader *r, const char *name, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static int32_t bad(const struct reader *r, const char *name, const char *fmt, ...)
{
    char text[300];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return cli_fail(r->err, BP_E_FORMAT, r->path, "golden tensor '%s' %s", name, text);
}

/* Finds N.name; *found tells whether it is there. Present: it has this type and this many dimensions. */
static int32_t find(const struct reader *r, uint32_t n, const char *name, uint32_t type,
                    uint32_t n_dim, struct bp_file_tensor *out, bool *found)
{
    char full[64];
    *out = (struct bp_file_tensor){.h = BP_HDR(struct bp_file_tensor, reserved)};
    snprintf(full, sizeof full, "%u.%s", n, name);
    *found = bp_file_find(r->g->file, full, out) == BP_OK;
    if (!*found) return BP_OK;
    if (out->type != type)
        return bad(r, full, "has type %s; it must be %s", out->type_name,
                   type == BP_GGUF_F32 ? "F32" : "I32");
    for (uint32_t d = 0; d < 4; ++d) {
        if (out->ne[d] < 1 || out->ne[d] > INT32_MAX || (d >= n_dim && out->ne[d] != 1))
            return bad(r, full, "has dimensions %lld x %lld x %lld x %lld; %u are expected",
                       (long long)out->ne[0], (long long)out->ne[1], (long long)out->ne[2],
                       (long long)out->ne[3], n_dim);
    }
    if ((uintptr_t)out->data % sizeof(float) != 0)
        return bad(r, full, "is not aligned to 4 bytes; write the file with alignment 32");
    return BP_OK;
}

static int32_t read_ids(const struct reader *r, uint32_t n, const char *name, const int32_t **out,
                        uint32_t *out_n, bool *found)
{
    struct bp_file_tensor t;
    char full[64];
    snprintf(full, sizeof full, "%u.%s", n, name);
    BP_TRY(find(r, n, name, BP_GGUF_I32, 1, &t, found));
    if (!*found) return BP_OK;
    *out = t.data;
    *out_n = (uint32_t)t.ne[0];
    for (uint32_t i = 0; i < *out_n; ++i) {
        if ((*out)[i] < 0 || (uint32_t)(*out)[i] >= bp_model_n_vocab(r->m))
            return bad(r, full, "has the id %d at place %u; this model's ids go from 0 to %u",
                       (*out)[i], i, bp_model_n_vocab(r->m) - 1);
    }
    return BP_OK;
}

static int32_t read_rows(const struct reader *r, uint32_t n, const char *name, uint32_t width,
                         const char *width_name, const float **out, uint32_t *out_rows, bool *found)
{
    struct bp_file_tensor t;
    char full[64];
    snprintf(full, sizeof full, "%u.%s", n, name);
    BP_TRY(find(r, n, name, BP_GGUF_F32, 2, &t, found));
    if (!*found) return BP_OK;
    if (t.ne[0] != (int64_t)width)
        return bad(r, full,
                   "has rows of %lld values but the model's %s is %u: it was made for another "
                   "model",
                   (long long)t.ne[0], width_name, width);
    *out = t.data;
    *out_rows = (uint32_t)t.ne[1];
    return BP_OK;
}

static int32_t read_hidden(const struct reader *r, uint32_t n, struct golden_prompt *p)
{
    uint32_t want = bp_model_n_layer(r->m) + 1, rows = 0;
    char name[32], full[48];
    bool found = true;
    p->hidden = calloc(want, sizeof *p->hidden);
    if (p->hidden == NULL) return cli_fail(r->err, BP_E_NOMEM, r->path, "out of memory");
    while (found && p->n_hidden <= want) {
        const float *data = NULL;
        snprintf(name, sizeof name, "hidden.%u", p->n_hidden);
        BP_TRY(read_rows(r, n, name, bp_model_n_embd(r->m), "width", &data, &rows, &found));
        if (!found) break;
        snprintf(full, sizeof full, "%u.%s", n, name);
        if (p->n_hidden == want)
            return bad(r, full, "is one too many: this model has %u layers", want - 1);
        if (rows != p->n_ids)
            return bad(r, full, "has %u rows but the prompt has %u tokens", rows, p->n_ids);
        p->hidden[p->n_hidden++] = data;
    }
    snprintf(full, sizeof full, "%u.%s", n, name);
    /* A later level without the one before it is a hole, and a hole must not pass as "not there". */
    for (uint32_t l = p->n_hidden + 1; l <= want && p->n_hidden < want; ++l) {
        struct bp_file_tensor t = {.h = BP_HDR(struct bp_file_tensor, reserved)};
        char later[48];
        snprintf(later, sizeof later, "%u.hidden.%u", n, l);
        if (bp_file_find(r->g->file, later, &t) == BP_OK)
            return bad(r, full, "is missing, but %s is there", later);
    }
    if (p->n_hidden != 0 && p->n_hidden != want)
        return bad(r, full, "is missing: with %u layers there are %u.hidden.0 to %u.hidden.%u",
                   want - 1, n, n, want - 1);
    return BP_OK;
}

static int32_t read_prompt(const struct reader *r, uint32_t n, struct golden_prompt *p)
{
    char key[48], name[32];
    bool found;
    snprintf(key, sizeof key, "golden.%u.text", n);
    int32_t rc = bp_file_str(r->g->file, key, &p->text, &p->n_text, r->err);
    if (rc != BP_OK && rc != BP_DECLINED) return rc;
    snprintf(name, sizeof name, "%u.ids", n);
    BP_TRY(read_ids(r, n, "ids", &p->ids, &p->n_ids, &found));
    if (!found) return bad(r, name, "is missing");
    snprintf(name, sizeof name, "%u.logits", n);
    BP_TRY(read_rows(r, n, "logits", bp_model_n_vocab(r->m), "vocabulary", &p->logits, &p->n_rows,
                     &found));
    if (!found) return bad(r, name, "is missing");
    if (p->n_rows > p->n_ids)
        return bad(r, name, "has %u rows but the prompt has only %u tokens", p->n_rows, p->n_ids);
    BP_TRY(read_ids(r, n, "greedy", &p->greedy, &p->n_greedy, &found));
    return read_hidden(r, n, p);
}

int32_t golden_open(struct golden *g, const char *path, const struct bp_model *m,
                    struct bp_error *err)
{
    struct reader r = {g, m, path, err};
    struct bp_file_info info = {.h = BP_HDR(struct bp_file_info, arch)};
    uint64_t count = 0;
    int32_t rc;
    *g = (struct golden){0};
    BP_TRY(bp_file_open(path, &g->file, err));
    bp_file_info(g->file, &info);
    if (strcmp(info.arch, "golden") != 0) {
        rc = cli_fail(err, BP_E_FORMAT, path,
                      "this GGUF has architecture '%.40s', not 'golden': it holds no golden values",
                      info.arch);
        goto fail;
    }
    rc = bp_file_u64(g->file, "golden.count", &count, err);
    if (rc == BP_OK && (count < 1 || count > GOLDEN_MAX_PROMPTS))
        rc = cli_fail(err, BP_E_FORMAT, path, "golden.count is %llu; it must be from 1 to %d",
                      (unsigned long long)count, GOLDEN_MAX_PROMPTS);
    if (rc == BP_DECLINED) rc = cli_fail(err, BP_E_FORMAT, path, "the key golden.count is missing");
    if (rc != BP_OK) goto fail;
    g->prompts = calloc(count, sizeof *g->prompts);
    if (g->prompts == NULL) {
        rc = cli_fail(err, BP_E_NOMEM, path, "out of memory");
        goto fail;
    }
    g->n_prompts = (uint32_t)count;
    for (uint32_t n = 0; n < g->n_prompts; ++n)
        BP_TRY_GOTO(rc, read_prompt(&r, n, &g->prompts[n]), fail);
    return BP_OK;
fail:
    golden_close(g);
    return rc;
}

void golden_close(struct golden *g)
{
    for (uint32_t n = 0; n < g->n_prompts; ++n) {
        bp_free(g->prompts[n].text);
        free(g->prompts[n].hidden);
    }
    free(g->prompts);
    bp_file_close(g->file);
    *g = (struct golden){0};
}
