/* options.h - the command line as data: one table per command, from which parsing, help and manual pages come.
 * Not here: what commands do (cmd_*.c). SPDX-License-Identifier: MIT */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include <stdbool.h>
#include <stdio.h>
#include <backplane/backplane.h>

struct cli;

enum cli_kind { CLI_SWITCH, CLI_TEXT, CLI_INT, CLI_FLOAT };

struct cli_option {
    const char *name;   /* "top-k" */
    char letter;        /* 'k', or 0 */
    uint32_t kind;      /* enum cli_kind */
    const char *arg;    /* "K" in the help; NULL for switches */
    const char *dflt;   /* value when not given, NULL = none; of config options only shown */
    const char *config; /* "sample.top_k": handed to the configuration, which checks it; else NULL */
    double lo, hi;      /* inclusive range of INT and FLOAT */
    const char *doc;
};

struct cli_command {
    const char *name;
    const char *args;    /* "ID...", "" without positional arguments */
    uint32_t min_pos, max_pos;
    const char *summary; /* one line for the list of commands */
    const char *details; /* paragraphs for the command's own help */
    const struct cli_option *options;
    size_t n_options;
    int32_t (*run)(struct cli *c);
};

enum { CLI_MAX_OPTIONS = 40 };

/* The parsed command line; texts point into argv. */
struct cli_line {
    const struct cli_command *cmd;
    const char *value[CLI_MAX_OPTIONS]; /* by number: the command's own, then the common ones */
    const char **pos;                   /* positional arguments */
    size_t n_pos;
    const char **sets;                  /* -s, in order */
    size_t n_sets;
    const char **all; /* every value given, in order, with the number of its option: cli_given_at */
    size_t *all_of, n_all;
    bool help;
};

/* Parses argv[0..argc) behind the command's name. Errors: BP_E_ARG with one sentence; free with cli_line_free either
 * way. */
int32_t cli_line_parse(struct cli_line *l, const struct cli_command *cmd, int argc, char **argv,
                       struct bp_error *err);
void cli_line_free(struct cli_line *l);

/* By long name. The value given, else the default, else NULL. */
const char *cli_text(const struct cli_line *l, const char *name);
bool cli_given(const struct cli_line *l, const char *name);
/* The i-th value of an option that may be given several times; NULL past the end. */
const char *cli_given_at(const struct cli_line *l, const char *name, size_t i);
int64_t cli_int(const struct cli_line *l, const char *name);
double cli_float(const struct cli_line *l, const char *name);
/* The i-th option, own ones first, then common; NULL past the end. */
const struct cli_option *cli_option_at(const struct cli_command *cmd, size_t i);

void cli_help_command(const struct cli_command *cmd, FILE *f);
void cli_help_all(const struct cli_command *const *cmds, size_t n, FILE *f);

/* The nearest of n words (edit distance with swaps, at most 1 + length/3), or NULL. */
const char *cli_nearest(const char *word, const char *const *words, size_t n);

/* One sentence into *err; returns `code`. */
int32_t cli_fail(struct bp_error *err, int32_t code, const char *where, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

#endif
