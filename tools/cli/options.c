/* options.c - parsing of the command line and the help, both from the tables.
 * Not here: the tables of the commands (cmd_*.c). Never calls setlocale, so numbers are read in the C locale.
 * SPDX-License-Identifier: MIT */
#include "options.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// clang-format off
static const struct cli_option common[] = {
    {"model",  'm', CLI_TEXT, "FILE", NULL, NULL, 0, 0,
     "The model: a GGUF file, of several shards the first one. Without it, the bundled tiny model is used where it is "
     "found beside the program."},
    {"config", 'c', CLI_TEXT, "INI", NULL, NULL, 0, 0,
     "Read this configuration file over the defaults."},
    {"set",    's', CLI_TEXT, "SECTION.KEY=VALUE", NULL, NULL, 0, 0,
     "Set one key of the configuration, over what files say; may be given several times."},
    {"json",    0,  CLI_SWITCH, NULL, NULL, NULL, 0, 0,
     "Print exactly one JSON object on standard output and everything else on standard error."},
    {"verbose", 'v', CLI_SWITCH, NULL, NULL, NULL, 0, 0,
     "Print more on standard error: speed, chosen backends, memory."},
    {"help",   'h', CLI_SWITCH, NULL, NULL, NULL, 0, 0, "Print this help."},
};
// clang-format on
enum { N_COMMON = sizeof common / sizeof common[0] };

const struct cli_option *cli_option_at(const struct cli_command *cmd, size_t i)
{
    if (i < cmd->n_options) return &cmd->options[i];
    i -= cmd->n_options;
    return i < N_COMMON ? &common[i] : NULL;
}

/* ---- nearest name ---- */

enum { MAX_WORD = 40 };

static size_t min_of(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Edits between two short words; a swap of neighbours is one edit. */
static size_t distance(const char *a, const char *b)
{
    size_t d[MAX_WORD + 1][MAX_WORD + 1], n = strlen(a), m = strlen(b);
    if (n > MAX_WORD || m > MAX_WORD) return MAX_WORD;
    for (size_t i = 0; i <= n; ++i) d[i][0] = i;
    for (size_t j = 0; j <= m; ++j) d[0][j] = j;
    for (size_t i = 1; i <= n; ++i) {
        for (size_t j = 1; j <= m; ++j) {
            size_t best = min_of(d[i - 1][j], d[i][j - 1]) + 1;
            best = min_of(best, d[i - 1][j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                best = min_of(best, d[i - 2][j - 2] + 1);
            d[i][j] = best;
        }
    }
    return d[n][m];
}

const char *cli_nearest(const char *word, const char *const *words, size_t n)
{
    const char *best = NULL;
    size_t best_d = 2 + strlen(word) / 3;
    for (size_t i = 0; i < n; ++i) {
        size_t d = distance(word, words[i]);
        if (d < best_d) {
            best = words[i];
            best_d = d;
        }
    }
    return best;
}

/* ---- parsing ---- */

/* "-n, --tokens" for messages. */
static void option_label(const struct cli_option *o, char *out, size_t cap)
{
    if (o->letter != 0)
        snprintf(out, cap, "-%c, --%s", o->letter, o->name);
    else
        snprintf(out, cap, "--%s", o->name);
}

static bool parse_number(const char *text, bool whole, double *out)
{
    char *end = NULL;
    errno = 0;
    if (whole) {
        long long v = strtoll(text, &end, 10);
        *out = (double)v;
    } else {
        *out = strtod(text, &end);
    }
    bool space = text[0] == ' ' || (text[0] >= '\t' && text[0] <= '\r');
    return !space && end != text && *end == '\0' && errno == 0 && isfinite(*out);
}

static int32_t check_value(const struct cli_option *o, const char *text, struct bp_error *err)
{
    char label[64];
    double v;
    /* Configuration options get their range from the configuration itself. */
    if (o->config != NULL || (o->kind != CLI_INT && o->kind != CLI_FLOAT)) return BP_OK;
    option_label(o, label, sizeof label);
    if (!parse_number(text, o->kind == CLI_INT, &v) || v < o->lo || v > o->hi)
        return cli_fail(err, BP_E_ARG, label, "%s takes %s from %.15g to %.15g, not '%.60s'", label,
                        o->kind == CLI_INT ? "an integer" : "a number", o->lo, o->hi, text);
    return BP_OK;
}

static int32_t unknown_option(const struct cli_command *cmd, const char *given,
                              struct bp_error *err)
{
    const char *names[CLI_MAX_OPTIONS];
    size_t n = 0;
    for (const struct cli_option *o; (o = cli_option_at(cmd, n)) != NULL; ++n) names[n] = o->name;
    const char *near = given[1] == '-' ? cli_nearest(given + 2, names, n) : NULL;
    if (near != NULL)
        return cli_fail(err, BP_E_ARG, given, "%s has no option '%.60s'; did you mean --%s?",
                        cmd->name, given, near);
    return cli_fail(err, BP_E_ARG, given,
                    "%s has no option '%.60s'; 'backplane %s --help' lists its options", cmd->name,
                    given, cmd->name);
}

/* The number of the option that `arg` begins, and where its value begins when it is attached; -1 when unknown. */
static int find_option(const struct cli_command *cmd, const char *arg, const char **out_value)
{
    *out_value = NULL;
    const struct cli_option *o;
    for (size_t i = 0; (o = cli_option_at(cmd, i)) != NULL; ++i) {
        if (arg[1] == '-') {
            size_t n = strlen(o->name);
            if (strncmp(arg + 2, o->name, n) != 0 || (arg[2 + n] != '\0' && arg[2 + n] != '='))
                continue;
            if (arg[2 + n] == '=') *out_value = arg + 2 + n + 1;
            return (int)i;
        }
        if (o->letter == 0 || arg[1] != o->letter) continue;
        if (arg[2] != '\0') *out_value = arg + 2;
        return (int)i;
    }
    return -1;
}

static int32_t parse_option(struct cli_line *l, int argc, char **argv, int *at,
                            struct bp_error *err)
{
    const char *arg = argv[*at], *value;
    char label[64];
    int i = find_option(l->cmd, arg, &value);
    if (i < 0) return unknown_option(l->cmd, arg, err);
    const struct cli_option *o = cli_option_at(l->cmd, (size_t)i);
    option_label(o, label, sizeof label);
    if (o->kind == CLI_SWITCH) {
        if (value != NULL)
            return cli_fail(err, BP_E_ARG, label, "%s takes no value, but '%.60s' gives one", label,
                            arg);
        l->value[i] = "";
        if (strcmp(o->name, "help") == 0) l->help = true;
        return BP_OK;
    }
    if (value == NULL) {
        if (*at + 1 >= argc)
            return cli_fail(err, BP_E_ARG, label, "%s needs a value: %s", label, o->arg);
        value = argv[++*at];
    }
    BP_TRY(check_value(o, value, err));
    l->value[i] = value;
    l->all[l->n_all] = value;
    l->all_of[l->n_all++] = (size_t)i;
    if (strcmp(o->name, "set") == 0) l->sets[l->n_sets++] = value;
    return BP_OK;
}

static int32_t check_positions(const struct cli_line *l, struct bp_error *err)
{
    const struct cli_command *cmd = l->cmd;
    if (l->n_pos > cmd->max_pos)
        return cli_fail(err, BP_E_ARG, cmd->name,
                        "'%.80s' is one argument too many; texts with spaces need quotes",
                        l->pos[cmd->max_pos]);
    if (l->n_pos < cmd->min_pos)
        return cli_fail(err, BP_E_ARG, cmd->name, "%s needs %s; see 'backplane %s --help'",
                        cmd->name, cmd->args, cmd->name);
    return BP_OK;
}

int32_t cli_line_parse(struct cli_line *l, const struct cli_command *cmd, int argc, char **argv,
                       struct bp_error *err)
{
    *l = (struct cli_line){.cmd = cmd};
    assert(cmd->n_options + N_COMMON <= CLI_MAX_OPTIONS);
    l->pos = calloc((size_t)argc + 1, sizeof *l->pos);
    l->sets = calloc((size_t)argc + 1, sizeof *l->sets);
    l->all = calloc((size_t)argc + 1, sizeof *l->all);
    l->all_of = calloc((size_t)argc + 1, sizeof *l->all_of);
    if (l->pos == NULL || l->sets == NULL || l->all == NULL || l->all_of == NULL)
        return cli_fail(err, BP_E_NOMEM, cmd->name, "out of memory while reading the command line");
    bool options_end = false;
    for (int i = 0; i < argc; ++i) {
        if (!options_end && strcmp(argv[i], "--") == 0) {
            options_end = true;
        } else if (!options_end && argv[i][0] == '-' && argv[i][1] != '\0') {
            BP_TRY(parse_option(l, argc, argv, &i, err));
        } else {
            l->pos[l->n_pos++] = argv[i];
        }
    }
    return l->help ? BP_OK : check_positions(l, err);
}

void cli_line_free(struct cli_line *l)
{
    free(l->pos);
    free(l->sets);
    free(l->all);
    free(l->all_of);
    l->pos = l->sets = l->all = NULL;
    l->all_of = NULL;
}

/* ---- values ---- */

static size_t number_of(const struct cli_line *l, const char *name)
{
    const struct cli_option *o;
    size_t i = 0;
    while ((o = cli_option_at(l->cmd, i)) != NULL && strcmp(o->name, name) != 0) ++i;
    assert(o != NULL && "the command has no such option");
    return i;
}

bool cli_given(const struct cli_line *l, const char *name)
{
    return l->value[number_of(l, name)] != NULL;
}

const char *cli_given_at(const struct cli_line *l, const char *name, size_t i)
{
    const size_t number = number_of(l, name);
    for (size_t k = 0; k < l->n_all; ++k) {
        if (l->all_of[k] == number && i-- == 0) return l->all[k];
    }
    return NULL;
}

const char *cli_text(const struct cli_line *l, const char *name)
{
    size_t i = number_of(l, name);
    return l->value[i] != NULL ? l->value[i] : cli_option_at(l->cmd, i)->dflt;
}

int64_t cli_int(const struct cli_line *l, const char *name)
{
    const char *text = cli_text(l, name);
    return text != NULL ? strtoll(text, NULL, 10) : 0;
}

double cli_float(const struct cli_line *l, const char *name)
{
    const char *text = cli_text(l, name);
    return text != NULL ? strtod(text, NULL) : 0.0;
}

/* ---- help ---- */

enum { HELP_WIDTH = 96, HELP_INDENT = 6 };

/* Words of `text` in lines of at most HELP_WIDTH columns; a newline in the text begins a new line. */
static void print_wrapped(FILE *f, const char *text, int indent)
{
    int column = 0;
    while (*text != '\0') {
        if (*text == '\n' || *text == ' ') {
            if (*text++ == '\n') {
                fputc('\n', f);
                column = 0;
            }
            continue;
        }
        int n = (int)strcspn(text, " \n");
        if (column > 0 && column + 1 + n > HELP_WIDTH) {
            fputc('\n', f);
            column = 0;
        }
        column +=
            column == 0 ? fprintf(f, "%*s%.*s", indent, "", n, text) : fprintf(f, " %.*s", n, text);
        text += n;
    }
    if (column > 0) fputc('\n', f);
}

static void help_option(FILE *f, const struct cli_option *o)
{
    fprintf(f, "  ");
    if (o->letter != 0) fprintf(f, "-%c, ", o->letter);
    fprintf(f, "--%s", o->name);
    if (o->arg != NULL) fprintf(f, " %s", o->arg);
    if (o->dflt != NULL) fprintf(f, "   (default %s)", o->dflt);
    if (o->config != NULL) fprintf(f, "   (default: config key %s)", o->config);
    fputc('\n', f);
    print_wrapped(f, o->doc, HELP_INDENT);
}

void cli_help_command(const struct cli_command *cmd, FILE *f)
{
    fprintf(f, "usage: backplane %s%s%s [options]\n\n", cmd->name, cmd->args[0] != '\0' ? " " : "",
            cmd->args);
    print_wrapped(f, cmd->summary, 0);
    if (cmd->details[0] != '\0') {
        fputc('\n', f);
        print_wrapped(f, cmd->details, 0);
    }
    if (cmd->n_options > 0) fprintf(f, "\noptions of %s:\n", cmd->name);
    for (size_t i = 0; i < cmd->n_options; ++i) help_option(f, &cmd->options[i]);
    fprintf(f, "\ncommon options:\n");
    for (size_t i = 0; i < N_COMMON; ++i) help_option(f, &common[i]);
    fprintf(
        f, "\nexit status: 0 good, 1 the answer is \"no\", 2 usage or bad input, 3 it failed while "
           "running\n");
}

void cli_help_all(const struct cli_command *const *cmds, size_t n, FILE *f)
{
    fprintf(f,
            "backplane %s - runs MLA + MoE language models from GGUF files\n\n"
            "usage: backplane COMMAND [options]\n\n",
            bp_version());
    for (size_t i = 0; i < n; ++i) fprintf(f, "  %-12s%s\n", cmds[i]->name, cmds[i]->summary);
    fprintf(f, "  %-12s%s\n  %-12s%s\n\n", "help", "Print this, or with a command its own help.",
            "--version", "Print the version.");
    fprintf(f,
            "'backplane COMMAND --help' explains a command. All take -m FILE, -c INI, -s "
            "SECTION.KEY=VALUE, --json.\n"
            "exit status: 0 good, 1 the answer is \"no\", 2 usage or bad input, 3 it failed while "
            "running\n");
}
