/* api_text.c - text of a model: tokenize, detokenize, chat, vocabulary entries.
 * Not here: how text is cut (core/token). Every function that needs the tokenizer fails with its reason when the
 * model's file has none that is supported.
 * Threads: any number at once; a model is immutable. SPDX-License-Identifier: MIT */
#include "engine/engine.h"

BP_STATIC_ASSERT((int)BP_TOKENIZE_SPECIAL == (int)BPI_TOKENIZE_SPECIAL &&
                     (int)BP_TOKENIZE_BOS == (int)BPI_TOKENIZE_BOS,
                 "one numbering");

static int32_t need_tokenizer(const struct bp_model *m, struct bp_error *err)
{
    if (m->t != NULL) return BP_OK;
    return bpi_fail(err, m->token_err.code, "token", m->token_err.where, "%s", m->token_err.msg);
}

/* Hands the ids over to the caller, or frees them on failure. */
static int32_t give_ids(int32_t rc, struct bpi_ids *ids, int32_t **out_ids, size_t *out_n,
                        struct bp_error *err)
{
    if (rc == BP_OK && ids->ids == NULL) {
        ids->ids =
            bpi_alloc(sizeof *ids->ids); /* so that an empty answer can be freed like any other */
        if (ids->ids == NULL) rc = bpi_fail_nomem(err, "token", sizeof *ids->ids);
    }
    if (rc != BP_OK) {
        bpi_ids_free(ids);
        return rc;
    }
    *out_ids = ids->ids;
    *out_n = ids->n;
    return BP_OK;
}

int32_t bp_tokenize(const struct bp_model *m, const char *text, size_t n, uint32_t flags,
                    int32_t **out_ids, size_t *out_n, struct bp_error *err)
{
    struct bpi_ids ids = {0};
    *out_ids = NULL;
    *out_n = 0;
    if ((flags & ~(uint32_t)(BP_TOKENIZE_SPECIAL | BP_TOKENIZE_BOS)) != 0 ||
        (text == NULL && n > 0))
        return bpi_fail(err, BP_E_ARG, "token", NULL, "bp_tokenize: unknown flags or no text");
    BP_TRY(need_tokenizer(m, err));
    int32_t rc = bpi_tokenize(m->t, text, n, flags, &ids, err);
    if (rc == BP_OK && ids.own_bos)
        bpi_logf(&m->log, BPI_LOG_INFO, "token",
                 "the text begins with the begin token itself, so none was put before it");
    return give_ids(rc, &ids, out_ids, out_n, err);
}

static int32_t give_text(struct bpi_buf *b, char **out, size_t *out_n, struct bp_error *err)
{
    if (!b->failed && b->data == NULL) {
        bpi_buf_append(b, "", 1);
        b->len = 0;
    }
    if (b->failed) {
        size_t n = b->len;
        bpi_buf_free(b);
        return bpi_fail_nomem(err, "token", n + 1);
    }
    *out = b->data;
    *out_n = b->len;
    return BP_OK;
}

int32_t bp_detokenize(const struct bp_model *m, const int32_t *ids, size_t n, int32_t special,
                      char **out, size_t *out_n, struct bp_error *err)
{
    struct bpi_buf b = {0};
    *out = NULL;
    *out_n = 0;
    BP_TRY(need_tokenizer(m, err));
    for (size_t i = 0; i < n; ++i) {
        if (bpi_token_bytes(m->t, ids[i], special != 0, &b) == BP_OK) continue;
        bpi_buf_free(&b);
        return bpi_fail(err, BP_E_ARG, "token", NULL,
                        "%d is no token id of this model; ids go from 0 to %u", ids[i],
                        bpi_token_count(m->t) - 1);
    }
    return give_text(&b, out, out_n, err);
}

int32_t bp_token_is_eog(const struct bp_model *m, int32_t id)
{
    return m->t != NULL && bpi_token_is_eog(m->t, id) ? 1 : 0;
}

int32_t bp_chat_format(const struct bp_model *m, const struct bp_chat_message *msgs, size_t n,
                       int32_t add_generation, int32_t **out_ids, size_t *out_n,
                       struct bp_error *err)
{
    struct bpi_ids ids = {0};
    *out_ids = NULL;
    *out_n = 0;
    BP_TRY(need_tokenizer(m, err));
    struct bpi_chat_msg *own = bpi_calloc(n, sizeof *own);
    if (own == NULL) return bpi_fail_nomem(err, "token", n * sizeof *own);
    for (size_t i = 0; i < n; ++i)
        own[i] = (struct bpi_chat_msg){msgs[i].role, msgs[i].content, msgs[i].n_content};
    int32_t rc = bpi_chat_format(m->t, own, n, add_generation != 0, &ids, err);
    bpi_free(own);
    return give_ids(rc, &ids, out_ids, out_n, err);
}

int32_t bp_token_info(const struct bp_model *m, int32_t id, uint32_t *out_type, char **out_bytes,
                      size_t *out_n)
{
    struct bpi_buf b = {0};
    *out_bytes = NULL;
    *out_n = 0;
    *out_type = 0;
    if (m->t == NULL || id < 0 || (uint32_t)id >= bpi_token_count(m->t)) return BP_E_ARG;
    BP_TRY(bpi_token_bytes(m->t, id, true, &b));
    *out_type = bpi_token_type(m->t, id);
    return give_text(&b, out_bytes, out_n, NULL);
}

const char *bp_model_pre(const struct bp_model *m)
{
    return m->t != NULL ? bpi_token_pre(m->t) : NULL;
}

const char *bp_model_chat_family(const struct bp_model *m)
{
    return m->t != NULL ? bpi_chat_family(m->t) : NULL;
}
