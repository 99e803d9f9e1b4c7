/* cmd_ppl.c - `backplane ppl`: perplexity of a text, scored the way llama.cpp's perplexity tool scores it.
 * The text is cut into chunks of C tokens. Of each chunk the first half is context only; from token C/2 on, every token
 * but the last predicts its successor, which makes C - C/2 - 1 scored tokens. With a model that begins texts with BOS,
 * the first token of every chunk is replaced by it.
 * SPDX-License-Identifier: MIT */
#include "cli.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

// clang-format off
static const struct cli_option options[] = {
    {"file",   'f', CLI_TEXT, "TEXT", NULL, NULL, 0, 0,
     "The text, a UTF-8 file. Without it, standard input unless that is a terminal."},
    {"prompt", 'p', CLI_TEXT, "TEXT", NULL, NULL, 0, 0, "The text itself."},
    {"chunk",  'C', CLI_INT, "C", "512", NULL, 4, 4194304, "Tokens per chunk."},
    {"chunks",  0,  CLI_INT, "N", "0", NULL, 0, 2147483647, "Score only the first N chunks; 0 = all."},
};
// clang-format on

struct score {
    const int32_t *ids; /* of the chunk */
    uint32_t n_vocab;
    double sum, sum2; /* of -ln p */
    uint64_t n;
};

static int32_t add_row(void *ctx, size_t index, const float *logits)
{
    struct score *s = ctx;
    double nll = -bp_logprob(logits, s->n_vocab, s->ids[index + 1]);
    s->sum += nll;
    s->sum2 += nll * nll;
    s->n++;
    return BP_OK;
}

/* Uncertainty of the perplexity: the standard error of the mean, carried through exp. */
static double standard_error(const struct score *s)
{
    double n = (double)s->n, mean = s->sum / n, var = s->sum2 / n - mean * mean;
    return s->n > 1 && var > 0.0 ? sqrt(var / (n - 1.0)) * exp(mean) : 0.0;
}

/* The BOS token when texts of this model begin with it, else -1. */
static int32_t find_bos(struct cli *c, int32_t *out)
{
    int32_t *ids = NULL;
    size_t n = 0;
    BP_TRY(bp_tokenize(c->model, "", 0, BP_TOKENIZE_BOS, &ids, &n, &c->err));
    *out = n == 1 ? ids[0] : -1;
    bp_free(ids);
    return BP_OK;
}

static int32_t score_chunks(struct cli *c, int32_t *ids, size_t n_chunks, size_t size,
                            struct score *s)
{
    struct term_progress bar;
    int32_t bos, rc = BP_OK;
    BP_TRY(find_bos(c, &bos));
    term_progress_begin(&bar, "perplexity");
    for (size_t k = 0; k < n_chunks && rc == BP_OK; ++k) {
        char note[64] = "";
        int32_t *chunk = ids + k * size;
        if (bos >= 0) chunk[0] = bos;
        s->ids = chunk;
        BP_TRY_GOTO(rc, bp_seq_reset(c->session, 0, &c->err), done);
        /* The last token predicts nothing that is scored, so it is not computed. */
        BP_TRY_GOTO(rc, cli_feed(c, chunk, size - 1, 0, 0, size / 2, add_row, s), done);
        snprintf(note, sizeof note, "%.4f", exp(s->sum / (double)s->n));
        term_progress_update(&bar, (double)(k + 1) / (double)n_chunks, note);
        if (c->verbose) term_say("chunk %zu of %zu: %s so far", k + 1, n_chunks, note);
    }
done:
    term_progress_end(&bar);
    return rc;
}

static int32_t run_ppl(struct cli *c, int32_t *ids, size_t n_ids)
{
    size_t size = (size_t)cli_int(&c->line, "chunk"), most = (size_t)cli_int(&c->line, "chunks");
    size_t n_chunks = n_ids / size;
    if (n_chunks == 0)
        return cli_fail(
            &c->err, BP_E_ARG, "text",
            "the text has %zu tokens, which is less than one chunk of %zu; give a longer "
            "text or a smaller -C",
            n_ids, size);
    if (most > 0 && most < n_chunks) n_chunks = most;
    BP_TRY(cli_config_suggest(c, "engine", "ctx", size));
    BP_TRY(cli_open_session(c));
    if (bp_session_ctx(c->session) < size - 1)
        return cli_fail(&c->err, BP_E_ARG, "-C, --chunk",
                        "a chunk has %zu tokens but the context holds only %u; raise engine.ctx or "
                        "choose a smaller -C",
                        size, bp_session_ctx(c->session));
    struct score s = {.n_vocab = bp_model_n_vocab(c->model)};
    BP_TRY(score_chunks(c, ids, n_chunks, size, &s));
    double ppl = exp(s.sum / (double)s.n);
    if (!isfinite(ppl))
        return cli_fail(&c->err, BP_E_NUMERIC, "perplexity",
                        "the perplexity is not finite: the model gives a token of the text no "
                        "probability at all");
    if (c->json) {
        json_object_set_new(c->out, "ppl", json_real(ppl));
        json_object_set_new(c->out, "stderr", json_real(standard_error(&s)));
        json_object_set_new(c->out, "tokens", json_integer((json_int_t)s.n));
        json_object_set_new(c->out, "chunks", json_integer((json_int_t)n_chunks));
        json_object_set_new(c->out, "chunk_tokens", json_integer((json_int_t)size));
        json_object_set_new(c->out, "text_tokens", json_integer((json_int_t)n_ids));
        json_object_set_new(c->out, "backends", cli_json_backends(c->session));
    } else {
        printf("perplexity %.4f +/- %.4f (%llu tokens scored in %zu chunks of %zu)\n", ppl,
               standard_error(&s), (unsigned long long)s.n, n_chunks, size);
    }
    return BP_OK;
}

static int32_t cmd_ppl(struct cli *c)
{
    char *text = NULL;
    int32_t *ids = NULL, rc;
    size_t n_text = 0, n_ids = 0;
    BP_TRY(cli_read_text(c, false, &text, &n_text));
    BP_TRY_GOTO(rc, cli_open_model(c), done);
    BP_TRY_GOTO(rc, bp_tokenize(c->model, text, n_text, BP_TOKENIZE_BOS, &ids, &n_ids, &c->err),
                done);
    rc = run_ppl(c, ids, n_ids);
done:
    free(text);
    bp_free(ids);
    return rc;
}

const struct cli_command cli_cmd_ppl = {
    .name = "ppl",
    .args = "",
    .summary = "Measure the perplexity of a text.",
    .details =
        "The text is cut into chunks of C tokens, each on an empty sequence. The first half of a "
        "chunk is context only; the tokens of the second half are scored, C - C/2 - 1 of them. "
        "The figures compare with those of llama.cpp's perplexity tool at the same -c.\n\n"
        "JSON: ppl, stderr, tokens (scored), chunks, chunk_tokens, text_tokens, backends.",
    .options = options,
    .n_options = sizeof options / sizeof options[0],
    .run = cmd_ppl,
};
