/* cmd_tokenize.c - `backplane tokenize` and `backplane detokenize`: text to ids and back, by the model's tokenizer.
 * SPDX-License-Identifier: MIT */
#include "cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// clang-format off
static const struct cli_option tokenize_options[] = {
    {"prompt",  'p', CLI_TEXT, "TEXT", NULL, NULL, 0, 0, "The text, whole UTF-8."},
    {"file",    'f', CLI_TEXT, "FILE", NULL, NULL, 0, 0,
     "Read the text from a file, every byte of it. With neither -p nor -f it comes from standard input."},
    {"special",  0,  CLI_SWITCH, NULL, NULL, NULL, 0, 0, "Recognise control tokens spelled out in the text."},
    {"bos",      0,  CLI_SWITCH, NULL, NULL, NULL, 0, 0,
     "Begin with the BOS token when the file asks for one, as `run` does."},
    {"pieces",   0,  CLI_SWITCH, NULL, NULL, NULL, 0, 0, "Print a line per token: id and text."},
};
static const struct cli_option detokenize_options[] = {
    {"special",  0,  CLI_SWITCH, NULL, NULL, NULL, 0, 0, "Spell control tokens out; without it they are nothing."},
};
// clang-format on

/* The text of one token, control tokens spelled out; freed with bp_free. */
static void token_text(const struct cli *c, int32_t id, char **out, size_t *out_n)
{
    uint32_t type;
    if (bp_token_info(c->model, id, &type, out, out_n) != BP_OK) *out_n = 0;
}

static void print_pieces(const struct cli *c, const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; ++i) {
        char *text = NULL, head[32];
        size_t len = 0;
        token_text(c, ids[i], &text, &len);
        term_out(head, (size_t)snprintf(head, sizeof head, "%8d  '", ids[i]));
        term_out(text != NULL ? text : "", len);
        term_out("'\n", 2);
        bp_free(text);
    }
}

static void print_ids(const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; ++i) printf("%s%d", i > 0 ? " " : "", ids[i]);
    putchar('\n');
}

static void tokens_json(const struct cli *c, const int32_t *ids, size_t n)
{
    json_t *tokens = json_array();
    for (size_t i = 0; i < n; ++i) {
        char *text = NULL;
        size_t len = 0;
        json_t *o = json_object();
        token_text(c, ids[i], &text, &len);
        json_object_set_new(o, "id", json_integer(ids[i]));
        cli_json_put_text(o, "text", text != NULL ? text : "", len);
        json_array_append_new(tokens, o);
        bp_free(text);
    }
    json_object_set_new(c->out, "ids", cli_json_ids(ids, n));
    json_object_set_new(c->out, "tokens", tokens);
}

static int32_t cmd_tokenize(struct cli *c)
{
    char *text = NULL;
    int32_t *ids = NULL, rc;
    size_t n_text = 0, n_ids = 0;
    uint32_t flags = (cli_given(&c->line, "special") ? BP_TOKENIZE_SPECIAL : 0) |
                     (cli_given(&c->line, "bos") ? BP_TOKENIZE_BOS : 0);
    BP_TRY(cli_read_text(c, false, &text, &n_text));
    BP_TRY_GOTO(rc, cli_open_model(c), done);
    BP_TRY_GOTO(rc, bp_tokenize(c->model, text, n_text, flags, &ids, &n_ids, &c->err), done);
    if (c->json)
        tokens_json(c, ids, n_ids);
    else if (cli_given(&c->line, "pieces"))
        print_pieces(c, ids, n_ids);
    else
        print_ids(ids, n_ids);
done:
    free(text);
    bp_free(ids);
    return rc;
}

static int32_t parse_ids(struct cli *c, int32_t *ids)
{
    for (size_t i = 0; i < c->line.n_pos; ++i) {
        const char *text = c->line.pos[i];
        size_t digits = strspn(text, "0123456789");
        long long v =
            digits > 0 && digits <= 10 && text[digits] == '\0' ? strtoll(text, NULL, 10) : -1;
        if (v < 0 || v > INT32_MAX)
            return cli_fail(&c->err, BP_E_ARG, "ID",
                            "'%.60s' is no token id; ids are whole numbers from 0", text);
        ids[i] = (int32_t)v;
    }
    return BP_OK;
}

static int32_t cmd_detokenize(struct cli *c)
{
    char *text = NULL;
    size_t n_text = 0;
    int32_t rc, *ids = calloc(c->line.n_pos + 1, sizeof *ids);
    if (ids == NULL) return cli_fail(&c->err, BP_E_NOMEM, "detokenize", "out of memory");
    BP_TRY_GOTO(rc, parse_ids(c, ids), done);
    BP_TRY_GOTO(rc, cli_open_model(c), done);
    BP_TRY_GOTO(rc,
                bp_detokenize(c->model, ids, c->line.n_pos, cli_given(&c->line, "special") ? 1 : 0,
                              &text, &n_text, &c->err),
                done);
    if (c->json) {
        cli_json_put_text(c->out, "text", text, n_text);
    } else {
        term_out(text, n_text);
        term_out("\n", 1);
    }
done:
    bp_free(text);
    free(ids);
    return rc;
}

const struct cli_command cli_cmd_tokenize = {
    .name = "tokenize",
    .args = "",
    .summary = "Print the token ids of a text.",
    .details = "No BOS is added and control tokens in the text stay text, unless asked for.\n\n"
               "JSON: ids, tokens[] {id, text}.",
    .options = tokenize_options,
    .n_options = sizeof tokenize_options / sizeof tokenize_options[0],
    .run = cmd_tokenize,
};

const struct cli_command cli_cmd_detokenize = {
    .name = "detokenize",
    .args = "ID...",
    .min_pos = 1,
    .max_pos = UINT32_MAX,
    .summary = "Print the text of token ids.",
    .details = "JSON: text; bytes[] too when the text is not whole UTF-8.",
    .options = detokenize_options,
    .n_options = sizeof detokenize_options / sizeof detokenize_options[0],
    .run = cmd_detokenize,
};
