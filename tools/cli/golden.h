/* golden.h - a golden file: prompts with the logits, hidden states and continuation that are right.
 * A GGUF of architecture `golden`: golden.count, golden.N.text and the tensors N.ids (I32), N.logits (F32, vocab x
 * rows: of the last rows of the prompt), N.hidden.L (F32, n_embd x tokens), N.greedy (I32).
 * SPDX-License-Identifier: MIT */
#ifndef CLI_GOLDEN_H
#define CLI_GOLDEN_H

#include "cli.h"

enum { GOLDEN_MAX_PROMPTS = 4096 };

struct golden_prompt {
    char *text;            /* a label; freed by golden_close */
    size_t n_text;
    const int32_t *ids;    /* (n_ids) */
    uint32_t n_ids;
    const float *logits;   /* (n_rows, n_vocab): of the last n_rows ids */
    uint32_t n_rows;
    const int32_t *greedy; /* (n_greedy) may be none */
    uint32_t n_greedy;
    uint32_t n_hidden;     /* 0, or layers + 1 */
    const float **hidden;  /* (n_hidden) each (n_ids, n_embd) */
};

struct golden {
    struct bp_file *file;
    struct golden_prompt *prompts;
    uint32_t n_prompts;
};

/* Opens and holds every shape and id against the model. Errors: as bp_file_open, BP_E_FORMAT naming the tensor. On
 * error nothing stays open. */
int32_t golden_open(struct golden *g, const char *path, const struct bp_model *m, struct bp_error *err);
void golden_close(struct golden *g);

#endif
