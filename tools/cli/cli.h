/* cli.h - what every command gets: the parsed line, and what it opens step by step. main.c closes all of it.
 * SPDX-License-Identifier: MIT */
#ifndef CLI_H
#define CLI_H

#include <jansson.h>
#include <stdbool.h>
#include <backplane/backplane.h>
#include <backplane/tools.h>
#include "json_out.h"
#include "options.h"
#include "term.h"

struct cli {
    struct cli_line line;
    bool json, verbose;
    bool answer_no;          /* exit status 1 */
    bool computing;          /* sessions were at work that are not `session` */
    json_t *out;             /* the object that --json prints */
    struct bp_error err;
    struct bp_config *config;
    struct bp_model *model;
    struct bp_session *session;
    double load_ms;          /* opening the model and the session */
    uint64_t n_steps;        /* steps that cli_feed made */
};

/* Each opens what it needs and what it builds on, fills c->err on failure. */
int32_t cli_open_config(struct cli *c);
int32_t cli_open_model(struct cli *c);
int32_t cli_open_session(struct cli *c);

/* Sets section.key unless the user did. */
int32_t cli_config_suggest(struct cli *c, const char *section, const char *key, uint64_t value);
/* The -m option or the bundled model; NULL with an error when there is neither. */
const char *cli_model_path(struct cli *c);
/* output.c: may the file that `option` names be written? Ask before computing. Refused: no folder to write into, what is
 * no ordinary file, a file that the command reads (the model's shards, any file named by another option), and the place
 * of the other output option (NULL: there is none). */
int32_t cli_check_output(struct cli *c, const char *option, const char *other);

/* The text of -p, of -f, or of standard input when it is no terminal: whole UTF-8, *out freed with free. drop_newline:
 * one newline at the end of a file or of standard input is not part of the text. Errors: BP_E_ARG, BP_E_IO, ... */
int32_t cli_read_text(struct cli *c, bool drop_newline, char **out, size_t *out_n);
/* Refuses text that is not whole UTF-8, naming the byte. */
int32_t cli_check_utf8(struct cli *c, const char *what, const char *text, size_t n);

/* Logs the choice of backends, memory (with -v). */
void cli_say_session(const struct cli *c);

/* Feeds ids to sequence 0 in steps that keep to the session's limits. Logits of tokens first_logits.. are handed to
 * `fn` in order (index within ids); fn returns a status. step: at most this many tokens per step, 0 = as many as go. */
typedef int32_t (*cli_logits_fn)(void *ctx, size_t index, const float *logits);
int32_t cli_feed(struct cli *c, const int32_t *ids, size_t n, size_t step, uint32_t flags,
                 size_t first_logits, cli_logits_fn fn, void *ctx);

extern const struct cli_command cli_cmd_run, cli_cmd_verify, cli_cmd_tokenize, cli_cmd_detokenize, cli_cmd_inspect,
    cli_cmd_ppl, cli_cmd_quantize, cli_cmd_config, cli_cmd_plugins, cli_cmd_explain, cli_cmd_ab,
    cli_cmd_bench;

/* cmd_chat.c: `run -i`. */
int32_t cli_chat(struct cli *c);

#endif
