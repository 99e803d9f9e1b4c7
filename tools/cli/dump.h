/* dump.h - chosen taps as a golden file: what `verify` and `ab --golden` read, and more beside it.
 * Tensors N.tap.NAME (F32 or I32, width x rows) and N.tap.NAME.pos (I32) hold every tap; those that make up the hidden
 * states are N.hidden.L as well when all of them are there for all tokens.
 * Not here: which taps. SPDX-License-Identifier: MIT */
#ifndef CLI_DUMP_H
#define CLI_DUMP_H

#include "cli.h"

struct dump_tap {
    const char *name;
    uint64_t n_rows, width;
    bool integer;
    const void *data;     /* (n_rows, width) float or int32_t */
    const uint32_t *pos;  /* (n_rows) */
};

struct dump_prompt {
    const char *text; /* a label */
    size_t n_text;
    const int32_t *ids; /* (n_ids) those the logits and taps are of */
    uint32_t n_ids;
    const float *logits; /* (n_rows, vocab) of the last n_rows ids */
    uint32_t n_rows;
    const int32_t *greedy; /* (n_greedy) NULL: none */
    uint32_t n_greedy;
    const struct dump_tap *taps;
    uint32_t n_taps;
};

/* Errors: BP_E_ARG a tap is named twice; BP_E_IO; BP_E_NOMEM. */
int32_t dump_write(const char *path, const struct bp_model *m, const struct dump_prompt *prompts, uint32_t n_prompts,
                   struct bp_error *err);

/* Taps collected while a session runs: bp_session_tap(s, patterns, dump_collect, d, err). */
struct dump {
    struct dump_tap *taps;
    uint64_t *cap_rows;
    uint32_t n_taps, cap_taps;
    bool nomem;
};
void dump_collect(void *ctx, const struct bp_tap_event *e);
void dump_free(struct dump *d);

#endif
