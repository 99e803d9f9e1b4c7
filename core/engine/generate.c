/* generate.c - bp_generate: the prompt in chunks, then one token after the other.
 * Not here: the choice of a token (sampler.c), the computation (step_*.c).
 * A picked token is fed only when another one is wanted after it, so the last one is never in the cache.
 * Threads: as the session. SPDX-License-Identifier: MIT */
#include "engine/session_priv.h"

#define DOMAIN "generate"

/* State of one call. */
struct run {
    struct bp_session *s;
    const struct bp_generate_params *p;
    struct bp_generate_result *out;
    const struct bpi_token *t; /* NULL: a model without text */
    uint32_t n_vocab;
    struct bpi_token_stream stream;
    struct bpi_buf bytes, text;
    struct bp_token_prob *top;
};

static double seconds_since(uint64_t start_ns)
{
    return (double)(bpi_now_ns() - start_ns) * 1e-9;
}

/* Everything that can be known to fail is refused here, before any computation. */
static int32_t check(const struct bp_session *s, const struct bp_generate_params *p,
                     const int32_t *prompt, size_t n_prompt, struct bp_error *err)
{
    if (!BP_HAS(p, struct bp_generate_params, ctx))
        return bpi_fail(err, BP_E_ARG, DOMAIN, NULL, "the parameters lack their header");
    if (p->seq >= bp_session_max_seqs(s))
        return bpi_fail(err, BP_E_ARG, DOMAIN, NULL,
                        "there is no sequence %u; the session has %u (engine.max_seqs)", p->seq,
                        bp_session_max_seqs(s));
    if (n_prompt == 0 || prompt == NULL)
        return bpi_fail(
            err, BP_E_ARG, DOMAIN, NULL,
            "the prompt has no tokens, so there is nothing to continue; give some text");
    if (p->max_tokens > 0 && p->sampler == NULL)
        return bpi_fail(err, BP_E_ARG, DOMAIN, NULL, "tokens are wanted but no sampler was given");
    if (p->max_tokens > 0 && bpi_sampler_n_vocab(p->sampler) != s->hp->n_vocab)
        return bpi_fail(err, BP_E_ARG, DOMAIN, NULL,
                        "the sampler was made for %u tokens but the model has %u",
                        bpi_sampler_n_vocab(p->sampler), s->hp->n_vocab);
    if (p->chunk > bp_session_batch_tokens(s))
        return bpi_fail(err, BP_E_ARG, DOMAIN, NULL,
                        "chunks of %u tokens are wanted but a step takes at most %u; raise "
                        "engine.batch_tokens",
                        p->chunk, bp_session_batch_tokens(s));
    uint32_t held = bp_seq_len(s, p->seq), ctx = bp_session_ctx(s);
    if (n_prompt > ctx - held) {
        if (held == 0)
            return bpi_fail(
                err, BP_E_LIMIT, DOMAIN, NULL,
                "the prompt has %zu tokens but the context holds only %u; shorten it or "
                "raise engine.ctx",
                n_prompt, ctx);
        return bpi_fail(
            err, BP_E_LIMIT, DOMAIN, NULL,
            "the prompt has %zu tokens and the sequence already holds %u, but the context "
            "holds only %u; shorten it, start over, or raise engine.ctx",
            n_prompt, held, ctx);
    }
    for (size_t i = 0; i < n_prompt; ++i) { /* all of them, before the first chunk is computed */
        if (prompt[i] >= 0 && (uint32_t)prompt[i] < s->hp->n_vocab) continue;
        return bpi_fail(err, BP_E_ARG, DOMAIN, NULL,
                        "token %d at place %zu is outside the vocabulary of %u", prompt[i], i,
                        s->hp->n_vocab);
    }
    return BP_OK;
}

/* Ids that were joined from parts may begin twice, as when a chat format writes the begin token and the caller adds
 * another. Legal, but models were not trained on it. */
static void warn_of_two_begins(const struct run *r, const int32_t *prompt, size_t n_prompt)
{
    int32_t bos = r->t != NULL ? bpi_token_bos(r->t) : BPI_TOKEN_NONE;
    if (bos == BPI_TOKEN_NONE || bp_seq_len(r->s, r->p->seq) > 0) return;
    if (n_prompt >= 2 && prompt[0] == bos && prompt[1] == bos)
        bpi_logf(&r->s->log, BPI_LOG_WARN, DOMAIN,
                 "the prompt begins with the begin token twice; leave one out, or the model may "
                 "answer worse");
}

/* Returns true when the caller wants to stop. */
static bool tell_prompt(const struct run *r, size_t done, size_t total)
{
    return r->p->on_prompt != NULL &&
           r->p->on_prompt(r->p->ctx, (uint32_t)done, (uint32_t)total) != 0;
}

static int32_t prefill(struct run *r, const int32_t *prompt, size_t n_prompt, struct bp_error *err)
{
    size_t chunk = r->p->chunk > 0 ? r->p->chunk : bp_session_batch_tokens(r->s);
    uint64_t start = bpi_now_ns();
    if (tell_prompt(r, 0, n_prompt)) {
        r->out->stop = BP_STOP_CALLER;
        return BP_OK;
    }
    for (size_t done = 0; done < n_prompt;) {
        size_t n = n_prompt - done < chunk ? n_prompt - done : chunk;
        bool last = done + n == n_prompt;
        struct bp_step_item item = {
            .h = BP_HDR(struct bp_step_item, n_logits),
            .seq = r->p->seq,
            .ids = prompt + done,
            .n_ids = (uint32_t)n,
            .n_logits = last && r->p->max_tokens > 0 ? 1 : 0,
        };
        BP_TRY(bp_session_step(r->s, &item, 1, err));
        done += n;
        r->out->n_prompt = (uint32_t)done;
        r->out->prefill_s = seconds_since(start);
        if (tell_prompt(r, done, n_prompt)) {
            r->out->stop = BP_STOP_CALLER;
            return BP_OK;
        }
    }
    return BP_OK;
}

/* The reason to stop behind this token, so far as the caller has no say in it. */
static uint32_t natural_stop(const struct run *r, int32_t id)
{
    if (r->p->ignore_eog == 0 && r->t != NULL && bpi_token_is_eog(r->t, id)) return BP_STOP_EOG;
    if (r->out->n_generated >= r->p->max_tokens) return BP_STOP_LENGTH;
    if (bp_seq_len(r->s, r->p->seq) >= bp_session_ctx(r->s)) return BP_STOP_CONTEXT;
    return BP_STOP_NONE;
}

/* Hands one token to the caller; true when the caller wants to stop. */
static int32_t report(struct run *r, const float *logits, int32_t id, bool last, bool *out_stop,
                      struct bp_error *err)
{
    *out_stop = false;
    if (r->p->on_token == NULL) return BP_OK;
    r->bytes.len = r->text.len = 0;
    bpi_buf_append(&r->bytes, "", 0);
    bpi_buf_append(&r->text, "", 0);
    if (r->t != NULL && (uint32_t)id < bpi_token_count(r->t)) {
        BP_TRY(bpi_token_bytes(r->t, id, false, &r->bytes));
        BP_TRY(bpi_token_stream_push(&r->stream, r->t, id, false, &r->text));
        if (last) bpi_token_stream_flush(&r->stream, &r->text);
    }
    if (r->bytes.failed || r->text.failed) return bpi_fail_nomem(err, DOMAIN, r->text.len + 1);
    const double norm = bpi_log_sum_exp(r->s->pool, logits, r->n_vocab);
    struct bp_generated g = {
        .h = BP_HDR(struct bp_generated, top),
        .id = id,
        .logprob = (double)logits[id] - norm,
        .bytes = r->bytes.data,
        .n_bytes = r->bytes.len,
        .text = r->text.data,
        .n_text = r->text.len,
        .top = r->top,
    };
    if (r->top != NULL) g.n_top = bpi_top_logprobs(logits, r->n_vocab, r->p->n_top, norm, r->top);
    *out_stop = r->p->on_token(r->p->ctx, &g) != 0;
    return BP_OK;
}

static int32_t decode(struct run *r, struct bp_error *err)
{
    for (;;) {
        int32_t id = 0;
        bool stop;
        uint64_t start = bpi_now_ns();
        const float *logits = bp_session_logits(r->s, 0, 0);
        if (logits == NULL)
            return bpi_fail(err, BP_E_INTERNAL, DOMAIN, NULL, "the last step left no logits");
        BP_TRY(bp_sampler_pick(r->p->sampler, logits, &id, err));
        r->out->n_generated++;
        r->out->stop = natural_stop(r, id);
        /* The first pick belongs to the prompt's step; from the second on a step and a pick make a token. */
        if (r->out->n_generated > 1) r->out->decode_s += seconds_since(start);
        BP_TRY(report(r, logits, id, r->out->stop != BP_STOP_NONE, &stop, err));
        if (stop && r->out->stop == BP_STOP_NONE) r->out->stop = BP_STOP_CALLER;
        if (r->out->stop != BP_STOP_NONE) return BP_OK;

        struct bp_step_item item = {
            .h = BP_HDR(struct bp_step_item, n_logits),
            .seq = r->p->seq,
            .flags = BP_STEP_DECODE,
            .ids = &id,
            .n_ids = 1,
            .n_logits = 1,
        };
        start = bpi_now_ns();
        BP_TRY(bp_session_step(r->s, &item, 1, err));
        r->out->decode_s += seconds_since(start);
    }
}

int32_t bp_generate(struct bp_session *s, const struct bp_generate_params *p, const int32_t *prompt,
                    size_t n_prompt, struct bp_generate_result *out, struct bp_error *err)
{
    int32_t rc;
    struct run r = {.s = s, .p = p, .out = out, .t = s->model->t, .n_vocab = s->hp->n_vocab};
    out->stop = BP_STOP_NONE;
    out->n_prompt = out->n_generated = out->reserved = 0;
    out->prefill_s = out->decode_s = 0.0;
    BP_TRY(check(s, p, prompt, n_prompt, err));
    warn_of_two_begins(&r, prompt, n_prompt);
    if (p->n_top > 0) {
        uint32_t n = p->n_top < r.n_vocab ? p->n_top : r.n_vocab;
        r.top = bpi_calloc(n, sizeof *r.top);
        if (r.top == NULL) return bpi_fail_nomem(err, DOMAIN, n * sizeof *r.top);
    }
    /* A stop that was asked for before this call began was meant for something else. */
    atomic_store(&s->interrupted, 0);
    BP_TRY_GOTO(rc, prefill(&r, prompt, n_prompt, err), done);
    if (out->stop != BP_STOP_NONE) goto done;
    if (p->max_tokens == 0) {
        out->stop = BP_STOP_LENGTH;
        goto done;
    }
    bp_sampler_accept(p->sampler, prompt, n_prompt);
    rc = decode(&r, err);
done:
    if (rc == BP_E_ABORTED) out->stop = BP_STOP_CALLER;
    bpi_free(r.top);
    bpi_buf_free(&r.bytes);
    bpi_buf_free(&r.text);
    return rc;
}
