/* generate.h - one generation with its output, shared by `run` and the chat. SPDX-License-Identifier: MIT */
#ifndef CLI_GENERATE_H
#define CLI_GENERATE_H

#include "cli.h"

struct gen {
    struct cli *c;
    struct bp_sampler *sampler;
    struct bp_sample_params sample; /* with the seed in use */
    uint32_t n_top;
    json_t *tokens;                 /* NULL: not wanted */
    int32_t *ids;                   /* generated in the last gen_run */
    size_t n_ids, cap_ids;
    char *text;                     /* bytes of those */
    size_t n_text, cap_text;
    struct bp_generate_result result;
    struct term_progress bar;
    bool nomem;
};

/* Needs an open model and configuration. */
int32_t gen_open(struct gen *g, struct cli *c);
void gen_close(struct gen *g);
/* Appends the prompt to sequence 0 and generates, streaming to standard output unless --json. */
int32_t gen_run(struct gen *g, const int32_t *prompt, size_t n_prompt);
bool gen_keep_text(struct gen *g, const char *bytes, size_t n);
const char *gen_stop_name(const struct gen *g);
void gen_say_stats(const struct gen *g);
/* A conversation as ids, up to where the model answers. */
int32_t gen_chat_ids(struct cli *c, const struct bp_chat_message *msgs, size_t n, int32_t **ids, size_t *n_ids);

#endif
