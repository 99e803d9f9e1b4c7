/* generate.c - one generation with its output, shared by `run` and the chat.
 * Not here: where the prompt comes from (cmd_run.c, cmd_chat.c). SPDX-License-Identifier: MIT */
#include "generate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the callbacks of bp_generate ---- */

static json_t *token_json(const struct gen *g, const struct bp_generated *t)
{
    json_t *o = json_object();
    json_object_set_new(o, "id", json_integer(t->id));
    cli_json_put_text(o, "text", t->bytes, t->n_bytes);
    json_object_set_new(o, "logprob", cli_json_real(t->logprob));
    json_object_set_new(o, "top", cli_json_top(g->c->model, t->top, t->n_top));
    return o;
}

/* "  -0.1234  ' the'   | -2.1 ' a' ..." */
static void say_token(const struct gen *g, const struct bp_generated *t)
{
    char line[1024];
    int n = snprintf(line, sizeof line, "%8d %9.4f  '%.*s'", t->id, t->logprob, (int)t->n_bytes,
                     t->bytes);
    for (uint32_t i = 0; i < t->n_top && n > 0 && (size_t)n < sizeof line; ++i) {
        char *text = NULL;
        size_t len = 0;
        if (bp_detokenize(g->c->model, &t->top[i].id, 1, 0, &text, &len, NULL) != BP_OK) continue;
        n += snprintf(line + n, sizeof line - (size_t)n, "  | %.4f '%.*s'",
                      (double)t->top[i].logprob, (int)(len < 40 ? len : 40), text);
        bp_free(text);
    }
    term_say("%s", line);
}

static int32_t on_token(void *ctx, const struct bp_generated *t)
{
    struct gen *g = ctx;
    if (g->n_ids == g->cap_ids) {
        size_t cap = g->cap_ids > 0 ? 2 * g->cap_ids : 256;
        int32_t *ids = realloc(g->ids, cap * sizeof *ids);
        if (ids == NULL) {
            g->nomem = true;
            return 1;
        }
        g->ids = ids;
        g->cap_ids = cap;
    }
    g->ids[g->n_ids++] = t->id;
    if (g->tokens != NULL) json_array_append_new(g->tokens, token_json(g, t));
    if (!gen_keep_text(g, t->bytes, t->n_bytes)) return 1;
    if (!g->c->json) term_out(t->text, t->n_text);
    if (g->n_top > 0 && !g->c->json) say_token(g, t);
    return term_stopped() ? 1 : 0;
}

static int32_t on_prompt(void *ctx, uint32_t done, uint32_t total)
{
    struct gen *g = ctx;
    if (done == 0) term_progress_begin(&g->bar, "reading the prompt");
    term_progress_update(&g->bar, total > 0 ? (double)done / total : 1.0, "");
    if (done == total) term_progress_end(&g->bar);
    return term_stopped() ? 1 : 0;
}

bool gen_keep_text(struct gen *g, const char *bytes, size_t n)
{
    if (g->n_text + n > g->cap_text) {
        size_t cap = g->cap_text > 0 ? g->cap_text : 1024;
        while (cap < g->n_text + n) cap *= 2;
        char *text = realloc(g->text, cap);
        if (text == NULL) {
            g->nomem = true;
            return false;
        }
        g->text = text;
        g->cap_text = cap;
    }
    if (n > 0) memcpy(g->text + g->n_text, bytes, n);
    g->n_text += n;
    return true;
}

int32_t gen_open(struct gen *g, struct cli *c)
{
    *g = (struct gen){.c = c, .n_top = (uint32_t)cli_int(&c->line, "logprobs")};
    bp_sample_defaults(c->config, &g->sample);
    return bp_sampler_create(&g->sample, bp_model_n_vocab(c->model), &g->sampler, &c->err);
}

void gen_close(struct gen *g)
{
    bp_sampler_destroy(g->sampler);
    json_decref(g->tokens);
    free(g->ids);
    free(g->text);
}

int32_t gen_run(struct gen *g, const int32_t *prompt, size_t n_prompt)
{
    struct cli *c = g->c;
    struct bp_generate_params p = {
        .h = BP_HDR(struct bp_generate_params, ctx),
        .sampler = g->sampler,
        .max_tokens = (uint32_t)cli_int(&c->line, "tokens"),
        .chunk = (uint32_t)cli_int(&c->line, "batch-chunk"),
        .n_top = g->n_top,
        .ignore_eog = cli_given(&c->line, "ignore-eos") ? 1 : 0,
        .on_token = on_token,
        .on_prompt = on_prompt,
        .ctx = g,
    };
    g->n_ids = g->n_text = 0;
    g->result.h = (struct bp_hdr)BP_HDR(struct bp_generate_result, decode_s);
    int32_t rc = bp_generate(c->session, &p, prompt, n_prompt, &g->result, &c->err);
    term_progress_end(&g->bar);
    if (g->nomem)
        return cli_fail(&c->err, BP_E_NOMEM, "run", "out of memory for the generated text");
    /* A step that Ctrl-C cut short is the stop that was asked for. */
    if (rc == BP_E_ABORTED && term_stopped()) {
        c->err = (struct bp_error)BP_ERROR_INIT;
        rc = BP_OK;
    }
    return rc;
}

const char *gen_stop_name(const struct gen *g)
{
    switch (g->result.stop) {
    case BP_STOP_EOG:
        return "eog";
    case BP_STOP_LENGTH:
        return "length";
    case BP_STOP_CONTEXT:
        return "context";
    default:
        return "interrupted";
    }
}

static double rate(double n, double seconds)
{
    return n > 0 && seconds > 0 ? n / seconds : 0.0;
}

void gen_say_stats(const struct gen *g)
{
    const struct bp_generate_result *r = &g->result;
    double steps = r->n_generated > 1 ? r->n_generated - 1 : 0;
    term_say(
        "prompt %u tokens at %.1f tok/s; generated %u tokens at %.1f tok/s; stop: %s; seed %llu",
        r->n_prompt, rate(r->n_prompt, r->prefill_s), r->n_generated, rate(steps, r->decode_s),
        gen_stop_name(g), (unsigned long long)g->sample.seed);
}

int32_t gen_chat_ids(struct cli *c, const struct bp_chat_message *msgs, size_t n, int32_t **ids,
                     size_t *n_ids)
{
    return bp_chat_format(c->model, msgs, n, 1, ids, n_ids, &c->err);
}
