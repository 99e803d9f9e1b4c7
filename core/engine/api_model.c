/* api_model.c - opening a model: container, tokenizer, interpretation; its numbers and its load report.
 * Not here: text (api_text.c), sessions. A file whose tokenizer is missing or not supported still opens, because
 * everything but text works on ids; the text functions then fail with the tokenizer's own reason.
 * Threads: a model is immutable between open and close. SPDX-License-Identifier: MIT */
#include "engine/engine.h"

#include <string.h>

/* State of one bp_model_open. */
struct opening {
    const struct bp_callbacks *cb;
    const struct bp_config *cfg;
    bool headers_only;
    const void *image; /* NULL: a file */
    uint64_t n_image;
    struct bpi_gguf *g; /* owned until the model takes it over */
};

static int32_t progress(const struct opening *o, double fraction, const char *what,
                        struct bp_error *err)
{
    if (o->cb == NULL || o->cb->progress == NULL) return BP_OK;
    if (o->cb->progress(o->cb->ctx, fraction, what) == 0) return BP_OK;
    return bpi_fail(err, BP_E_ABORTED, "model", what, "loading was stopped on request");
}

/* A tokenizer that is not understood is kept as a reason; only running out of memory ends the opening. */
static int32_t open_tokenizer(struct opening *o, struct bp_model *m, struct bp_error *err)
{
    m->token_err = (struct bp_error)BP_ERROR_INIT;
    int32_t rc = bpi_token_open(o->g, &m->t, &m->token_err);
    if (rc == BP_OK) return BP_OK;
    m->t = NULL;
    if (rc == BP_E_NOMEM) {
        if (err != NULL && err->code == BP_OK) *err = m->token_err;
        return rc;
    }
    return BP_OK;
}

/* A vocabulary that is longer than the embedding would hand out ids that no row exists for. */
static int32_t check_vocab(const struct bp_model *m, struct bp_error *err)
{
    if (m->t == NULL) return BP_OK;
    uint32_t rows = bpi_model_hparams(m->m)->n_vocab;
    if (bpi_token_count(m->t) <= rows) return BP_OK;
    return bpi_fail(err, BP_E_FORMAT, "model", m->path,
                    "the tokenizer has %u tokens but token_embd.weight has only %u rows; the file "
                    "mixes parts of two models and must be made again",
                    bpi_token_count(m->t), rows);
}

/* What the tokenizer had to guess is worth a warning: text that is cut wrongly shows only in bad answers. */
static void log_notes(const struct bp_model *m, const struct bpi_log *log)
{
    const char *key, *text;
    for (uint32_t i = 0; m->t != NULL && bpi_token_note(m->t, i, &key, &text); ++i)
        bpi_logf(log, BPI_LOG_WARN, "token", "%s: %s", key, text);
}

static int32_t open_parts(struct opening *o, struct bp_model *m, const struct bpi_log *log,
                          struct bp_error *err)
{
    BP_TRY(progress(o, 0.0, "header", err));
    BP_TRY(bpi_config_check(o->cfg->c, err));
    bool copy = !o->headers_only && !bpi_config_bool(o->cfg->c, "engine", "mmap");
    if (o->image != NULL)
        BP_TRY(bpi_gguf_open_memory(o->image, o->n_image, m->path, &o->g, err));
    else
        BP_TRY(copy ? bpi_gguf_open_copy(m->path, &o->g, err)
                    : bpi_gguf_open(m->path, &o->g, err));
    BP_TRY(progress(o, 0.3, "tokenizer", err));
    BP_TRY(open_tokenizer(o, m, err));
    BP_TRY(progress(o, 0.6, "tensors", err));
    BP_TRY(o->headers_only ? bpi_model_open_headers(o->g, o->cfg->c, &m->m, err)
                           : bpi_model_open(o->g, o->cfg->c, &m->m, err));
    o->g = NULL;
    BP_TRY(check_vocab(m, err));
    if (m->t == NULL) /* whoever wants text will get it as an error; saying it twice helps nobody */
        bpi_logf(log, BPI_LOG_INFO, "token", "no text with this file: %s", m->token_err.msg);
    log_notes(m, log);
    return progress(o, 1.0, "model", err);
}

static int32_t open_model(struct opening *o, const char *path, struct bp_model **out,
                          struct bp_error *err)
{
    int32_t rc;
    struct bp_config *own = NULL;
    struct bp_model *m = NULL;
    struct bpi_log log;
    *out = NULL;
    if (path == NULL || path[0] == '\0')
        return bpi_fail(err, BP_E_ARG, "model", NULL, "no model file was named");
    if (o->cfg == NULL) {
        BP_TRY(bp_config_create(&own, err));
        o->cfg = own;
    }
    log = bpi_engine_log(o->cfg, o->cb);
    m = bpi_calloc(1, sizeof *m);
    if (m == NULL || (m->path = bpi_strdup(path)) == NULL) {
        rc = bpi_fail_nomem(err, "model", sizeof *m + strlen(path) + 1);
        goto fail;
    }
    m->log = log;
    BP_TRY_GOTO(rc, open_parts(o, m, &log, err), fail);
    bp_config_destroy(own);
    *out = m;
    return BP_OK;
fail:
    bpi_gguf_close(o->g);
    bp_model_close(m);
    bp_config_destroy(own);
    return rc;
}

int32_t bp_model_open(const char *path, const struct bp_config *cfg, const struct bp_callbacks *cb,
                      struct bp_model **out, struct bp_error *err)
{
    struct opening o = {.cb = cb, .cfg = cfg};
    return open_model(&o, path, out, err);
}

int32_t bp_model_open_headers(const char *path, const struct bp_config *cfg,
                              const struct bp_callbacks *cb, struct bp_model **out,
                              struct bp_error *err)
{
    struct opening o = {.cb = cb, .cfg = cfg, .headers_only = true};
    return open_model(&o, path, out, err);
}

int32_t bp_model_open_image(const void *image, uint64_t n_bytes, const char *label,
                            const struct bp_config *cfg, const struct bp_callbacks *cb,
                            struct bp_model **out, struct bp_error *err)
{
    struct opening o = {.cb = cb, .cfg = cfg, .image = image, .n_image = n_bytes};
    *out = NULL;
    if (image == NULL) return bpi_fail(err, BP_E_ARG, "model", label, "there is no image to open");
    return open_model(&o, label, out, err);
}

void bp_model_close(struct bp_model *m)
{
    if (m == NULL) return;
    bpi_token_close(m->t);
    bpi_model_close(m->m);
    bpi_free(m->path);
    bpi_free(m);
}

const char *bp_model_arch(const struct bp_model *m)
{
    return bpi_arch_name(bpi_model_hparams(m->m)->arch);
}

uint32_t bp_model_n_vocab(const struct bp_model *m)
{
    return bpi_model_hparams(m->m)->n_vocab;
}

uint32_t bp_model_n_embd(const struct bp_model *m)
{
    return bpi_model_hparams(m->m)->n_embd;
}

uint32_t bp_model_n_layer(const struct bp_model *m)
{
    return bpi_model_hparams(m->m)->n_layer;
}

uint32_t bp_model_n_ctx(const struct bp_model *m)
{
    return bpi_model_hparams(m->m)->n_ctx_train;
}

uint64_t bp_model_bytes(const struct bp_model *m)
{
    const struct bpi_gguf *g = bpi_model_gguf(m->m);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < bpi_gguf_shards(g); ++i) sum += bpi_gguf_shard_bytes(g, i);
    return sum;
}

int32_t bp_model_report(const struct bp_model *m, uint32_t i, struct bp_report *out)
{
    BP_STATIC_ASSERT((int)BP_REPORT_UNUSED == (int)BPI_REPORT_UNUSED &&
                         (int)BP_REPORT_NOTE == (int)BPI_REPORT_NOTE,
                     "one numbering");
    size_t n = bpi_model_report_n(m->m);
    if (i >= n) { /* the tokenizer's notes stand behind the tensors' lines */
        out->kind = BP_REPORT_NOTE;
        return m->t != NULL && bpi_token_note(m->t, (uint32_t)(i - n), &out->name, &out->text)
                   ? BP_OK
                   : BP_DECLINED;
    }
    const struct bpi_report_entry *e = bpi_model_report(m->m, i);
    out->kind = e->kind;
    out->name = e->name != NULL ? e->name : "";
    out->text = e->text != NULL ? e->text : "";
    return BP_OK;
}
