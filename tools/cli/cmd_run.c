/* cmd_run.c - `backplane run`: continue a prompt or answer a chat turn, streaming.
 * Not here: the conversation of `run -i` (cmd_chat.c). SPDX-License-Identifier: MIT */
#include "cli.h"
#include "dump.h"
#include "generate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// clang-format off
static const struct cli_option options[] = {
    {"prompt",  'p', CLI_TEXT, "TEXT", NULL, NULL, 0, 0, "The prompt, whole UTF-8."},
    {"file",    'f', CLI_TEXT, "FILE", NULL, NULL, 0, 0,
     "Read the prompt from a file. With neither -p nor -f it comes from standard input, unless that is a terminal. One "
     "newline at the end of a file or of standard input is not part of the prompt."},
    {"tokens",  'n', CLI_INT, "N", "128", NULL, 1, 2147483647, "Generate at most N tokens."},
    {"interactive", 'i', CLI_SWITCH, NULL, NULL, NULL, 0, 0,
     "Chat in the terminal, a line at a time. Ctrl-C stops an answer, /reset starts over, Ctrl-D ends."},
    {"chat",     0,  CLI_SWITCH, NULL, NULL, NULL, 0, 0,
     "Take the prompt as a user's message, in the model's own chat format."},
    {"system",   0,  CLI_TEXT, "TEXT", NULL, NULL, 0, 0, "With --chat or -i: the system message."},
    {"special",  0,  CLI_SWITCH, NULL, NULL, NULL, 0, 0,
     "Recognise control tokens spelled out in the prompt. For prompts that you trust."},
    {"temp",     0,  CLI_FLOAT, "T", NULL, "sample.temp", 0, 0, "Temperature; 0 = always the likeliest token."},
    {"top-k",    0,  CLI_INT, "K", NULL, "sample.top_k", 0, 0, "Keep the K likeliest tokens; 0 = all."},
    {"top-p",    0,  CLI_FLOAT, "P", NULL, "sample.top_p", 0, 0,
     "Keep the likeliest tokens until their probabilities reach P; 1 = all."},
    {"min-p",    0,  CLI_FLOAT, "P", NULL, "sample.min_p", 0, 0,
     "Drop tokens less likely than P times the likeliest one; 0 = none."},
    {"repeat-penalty", 0, CLI_FLOAT, "R", NULL, "sample.repeat_penalty", 0, 0,
     "Make tokens that occurred lately less likely; 1 = off."},
    {"seed",     0,  CLI_INT, "S", NULL, "sample.seed", 0, 0,
     "Seed of the random choice; the same seed gives the same text."},
    {"logprobs", 0,  CLI_INT, "K", "0", NULL, 0, 1000000,
     "Report the log-probability of each token and its K likeliest alternatives: in the JSON, else on standard error."},
    {"ignore-eos", 0, CLI_SWITCH, NULL, NULL, NULL, 0, 0,
     "Go on behind the model's end-of-text tokens."},
    {"batch-chunk", 0, CLI_INT, "K", "0", NULL, 0, 65536,
     "Compute the prompt in steps of K tokens; 0 = engine.batch_tokens."},
    {"dump",     0,  CLI_TEXT, "NAME,...", NULL, NULL, 0, 0,
     "Write these intermediates, '*' matching anything (blk.3.attn.q_nope, blk.*.out), and the prompt's last logits to a "
     "golden file, which verify and ab read."},
    {"dump-to",  0,  CLI_TEXT, "FILE", "backplane-dump.gguf", NULL, 0, 0, "The golden file that --dump writes."},
};
// clang-format on

static int32_t prompt_ids(struct cli *c, const char *text, size_t n, int32_t **ids, size_t *n_ids)
{
    const char *system = cli_text(&c->line, "system");
    if (!cli_given(&c->line, "chat")) {
        uint32_t special = cli_given(&c->line, "special") ? BP_TOKENIZE_SPECIAL : 0;
        return bp_tokenize(c->model, text, n, BP_TOKENIZE_BOS | special, ids, n_ids, &c->err);
    }
    struct bp_chat_message msgs[2];
    size_t n_msgs = 0;
    if (system != NULL) msgs[n_msgs++] = (struct bp_chat_message){"system", system, strlen(system)};
    msgs[n_msgs++] = (struct bp_chat_message){"user", text, n};
    return gen_chat_ids(c, msgs, n_msgs, ids, n_ids);
}

/* A rate is null when nothing was measured: one token needs no decode step. */
static json_t *rate_json(double n, double seconds)
{
    return n > 0 && seconds > 0 ? json_real(n / seconds) : json_null();
}

static void fill_json(struct gen *g)
{
    json_t *o = g->c->out, *timing = json_object();
    const struct bp_generate_result *r = &g->result;
    json_object_set(o, "tokens", g->tokens);
    json_object_set_new(o, "text", cli_json_text(g->text != NULL ? g->text : "", g->n_text));
    json_object_set_new(o, "stop", json_string(gen_stop_name(g)));
    json_object_set_new(timing, "load_ms", json_real(g->c->load_ms));
    json_object_set_new(timing, "prefill_tok_s", rate_json(r->n_prompt, r->prefill_s));
    json_object_set_new(timing, "decode_tok_s",
                        rate_json(r->n_generated > 1 ? r->n_generated - 1 : 0, r->decode_s));
    json_object_set_new(o, "timing", timing);
    json_object_set_new(o, "backends", cli_json_backends(g->c->session));
    json_object_set_new(o, "seed", json_integer((json_int_t)g->sample.seed));
}

/* Logits are wanted whatever else is: a golden file has some. */
static int32_t begin_dump(struct cli *c, struct dump *d)
{
    const char *names = cli_text(&c->line, "dump");
    if (names == NULL) return BP_OK;
    const size_t n = strlen(names) + sizeof ",logits";
    char *all = malloc(n);
    if (all == NULL) return cli_fail(&c->err, BP_E_NOMEM, "--dump", "out of memory");
    snprintf(all, n, "%s,logits", names);
    int32_t rc = bp_session_tap(c->session, all, dump_collect, d, &c->err);
    free(all);
    return rc;
}

static int32_t end_dump(const struct gen *g, struct dump *d, const char *text, size_t n_text,
                        const int32_t *ids, size_t n_ids)
{
    struct cli *c = g->c;
    struct dump_prompt p = {.text = text,
                            .n_text = n_text,
                            .ids = ids,
                            .n_ids = (uint32_t)n_ids,
                            .n_rows = 1,
                            .taps = d->taps,
                            .n_taps = d->n_taps};
    if (!cli_given(&c->line, "dump")) return BP_OK;
    if (d->nomem) return cli_fail(&c->err, BP_E_NOMEM, "--dump", "out of memory for the taps");
    for (uint32_t i = 0; i < d->n_taps; ++i) {
        const struct dump_tap *t = &d->taps[i];
        for (uint64_t r = 0; r < t->n_rows && strcmp(t->name, "logits") == 0; ++r) {
            if (t->pos[r] + 1 == n_ids) p.logits = (const float *)t->data + r * t->width;
        }
    }
    if (p.logits == NULL) /* Ctrl-C came first */
        return cli_fail(&c->err, BP_E_ABORTED, "--dump",
                        "the prompt was not computed to its end, so there is nothing to write");
    if (g->sample.temp == 0.0f) {
        p.greedy = g->ids;
        p.n_greedy = (uint32_t)g->n_ids;
    }
    return dump_write(cli_text(&c->line, "dump-to"), c->model, &p, 1, &c->err);
}

static int32_t run_prompt(struct cli *c, const char *text, size_t n_text, const int32_t *ids,
                          size_t n_ids)
{
    struct gen g;
    struct dump d = {0};
    int32_t rc = gen_open(&g, c);
    if (rc == BP_OK) rc = begin_dump(c, &d);
    if (rc == BP_OK) {
        if (c->json) g.tokens = json_array();
        rc = gen_run(&g, ids, n_ids);
        if (!c->json && g.result.n_generated > 0) term_out("\n", 1);
    }
    if (rc == BP_OK) rc = end_dump(&g, &d, text, n_text, ids, n_ids);
    dump_free(&d);
    if (rc == BP_OK && c->json) fill_json(&g);
    if (rc == BP_OK && c->verbose) gen_say_stats(&g);
    if (rc == BP_OK && !c->json && g.result.stop == BP_STOP_CALLER)
        term_say("stopped by Ctrl-C after %u tokens", g.result.n_generated);
    if (rc == BP_OK && !c->json && g.result.stop == BP_STOP_CONTEXT)
        term_say("stopped: the context of %u tokens is full", bp_session_ctx(c->session));
    gen_close(&g);
    return rc;
}

static int32_t check_line(struct cli *c)
{
    bool chat = cli_given(&c->line, "chat"), interactive = cli_given(&c->line, "interactive");
    const char *system = cli_text(&c->line, "system");
    if (interactive && c->json)
        return cli_fail(
            &c->err, BP_E_ARG, "-i, --interactive",
            "-i talks in the terminal and --json prints one object; choose one of them");
    if (interactive && cli_given(&c->line, "file"))
        return cli_fail(&c->err, BP_E_ARG, "-i, --interactive",
                        "-i reads its messages from standard input; give -f without -i");
    if (system != NULL && !chat && !interactive)
        return cli_fail(&c->err, BP_E_ARG, "--system", "--system needs --chat or -i");
    if (interactive && cli_given(&c->line, "dump"))
        return cli_fail(&c->err, BP_E_ARG, "--dump",
                        "--dump writes the numbers of one prompt; leave -i out");
    if (system != NULL) BP_TRY(cli_check_utf8(c, "--system", system, strlen(system)));
    if ((chat || interactive) && cli_given(&c->line, "special"))
        return cli_fail(&c->err, BP_E_ARG, "--special",
                        "messages of a chat never become control tokens; leave --special out");
    return BP_OK;
}

static int32_t cmd_run(struct cli *c)
{
    char *text = NULL;
    int32_t *ids = NULL, rc;
    size_t n_text = 0, n_ids = 0;
    BP_TRY(check_line(c));
    if (cli_given(&c->line, "dump")) BP_TRY(cli_check_output(c, "dump-to", NULL));
    BP_TRY(cli_open_config(c));
    int64_t chunk = cli_int(&c->line, "batch-chunk");
    if (chunk > 512) BP_TRY(cli_config_suggest(c, "engine", "batch_tokens", (uint64_t)chunk));
    if (cli_given(&c->line, "interactive")) return cli_chat(c);

    BP_TRY(cli_read_text(c, true, &text, &n_text));
    BP_TRY_GOTO(rc, cli_open_model(c), done);
    BP_TRY_GOTO(rc, prompt_ids(c, text, n_text, &ids, &n_ids), done);
    if (c->json) json_object_set_new(c->out, "prompt_ids", cli_json_ids(ids, n_ids));
    if (n_ids == 0) {
        rc = cli_fail(
            &c->err, BP_E_ARG, "prompt",
            "the prompt is empty and this model begins texts with no BOS token, so there is "
            "nothing to continue; give some text");
        goto done;
    }
    BP_TRY_GOTO(rc, cli_open_session(c), done);
    rc = run_prompt(c, text, n_text, ids, n_ids);
done:
    free(text);
    bp_free(ids);
    return rc;
}

const struct cli_command cli_cmd_run = {
    .name = "run",
    .args = "",
    .summary = "Continue a prompt, answer a chat turn, or chat in the terminal.",
    .details =
        "Without --json only the continuation goes to standard output, as it comes, with a newline "
        "at "
        "its end.\n\n"
        "Ctrl-C stops after the token at hand: what was generated stays printed, the stop is "
        "'interrupted' and the exit status 0; a second Ctrl-C kills the program.\n\n"
        "JSON: prompt_ids, tokens[] {id, text, logprob, top[] {id, text, logprob}}, text, stop "
        "(eog, "
        "length, context or interrupted), timing {load_ms, prefill_tok_s, decode_tok_s}, backends, "
        "seed. The end-of-text token is the last of tokens and has no text. A token that is not "
        "whole "
        "UTF-8 also has bytes[], and U+FFFD in its text.",
    .options = options,
    .n_options = sizeof options / sizeof options[0],
    .run = cmd_run,
};
