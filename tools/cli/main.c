/* main.c - backplane: finds the command, runs it, prints its JSON or its error, closes everything.
 * Exit status: 0 good, 1 the answer is "no", 2 usage or bad input, 3 it failed while running.
 * SPDX-License-Identifier: MIT */
#include "cli.h"
#include "bus.h"
#include "leave.h"
#include "man.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct cli_command *const commands[] = {
    &cli_cmd_run, &cli_cmd_verify,   &cli_cmd_tokenize, &cli_cmd_detokenize, &cli_cmd_inspect,
    &cli_cmd_ppl, &cli_cmd_quantize, &cli_cmd_config,   &cli_cmd_plugins,    &cli_cmd_explain, &cli_cmd_ab,
    &cli_cmd_bench,
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

enum { EXIT_GOOD = 0, EXIT_NO = 1, EXIT_INPUT = 2, EXIT_FAILED = 3 };

static int exit_of(int32_t status)
{
    switch (status) {
    case BP_OK:
        return EXIT_GOOD;
    case BP_E_ARG:
    case BP_E_IO:
    case BP_E_FORMAT:
    case BP_E_UNSUPPORTED:
    case BP_E_CONFIG:
    case BP_E_ABI:
    case BP_E_LIMIT:
        return EXIT_INPUT;
    default:
        return EXIT_FAILED;
    }
}

/* Prints the object; a full disk or a closed pipe must not look like success. */
static int print_json(json_t *o, int status)
{
    char *text = o != NULL ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    if (text == NULL) {
        term_say("backplane: out of memory while writing JSON");
        return EXIT_FAILED;
    }
    fputs(text, stdout);
    fputc('\n', stdout);
    free(text);
    return status;
}

static int flush_output(int status)
{
    if (fflush(stdout) == 0 && ferror(stdout) == 0) return status;
    term_say("backplane: standard output cannot be written: %s", strerror(errno));
    return EXIT_FAILED;
}

static bool is_word_char(char ch)
{
    return (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') || (ch >= '0' && ch <= '9');
}

/* Does the sentence name `where` already, as a whole word? */
static bool names(const char *msg, const char *where)
{
    size_t n = strlen(where);
    for (const char *at = msg; (at = strstr(at, where)) != NULL; ++at) {
        if ((at == msg || !is_word_char(at[-1])) && !is_word_char(at[n])) return true;
    }
    return n == 0;
}

/* One sentence on standard error; with --json also as an object on standard output. */
static int print_error(const struct bp_error *err, const char *cmd, bool json, json_t *out,
                       int status)
{
    bool has_where = !names(err->msg, err->where) && strcmp(err->where, cmd) != 0;
    term_say("backplane%s%s: %s%s%s", cmd[0] != '\0' ? " " : "", cmd, has_where ? err->where : "",
             has_where ? ": " : "", err->msg);
    if (!json) return status;
    if (out == NULL) out = json_object();
    json_object_set_new(out, "error", cli_json_error(err));
    return print_json(out, status);
}

static void close_all(struct cli *c)
{
    term_watch(NULL);
    bp_session_close(c->session);
    bp_model_close(c->model);
    bp_config_destroy(c->config);
    cli_line_free(&c->line);
}

static int run_command(const struct cli_command *cmd, int argc, char **argv, bool json)
{
    struct cli c = {.err = BP_ERROR_INIT, .json = json};
    int status;
    int32_t rc = cli_line_parse(&c.line, cmd, argc, argv, &c.err);
    if (rc == BP_OK && c.line.help) {
        cli_help_command(cmd, stdout);
        cli_line_free(&c.line);
        return flush_output(EXIT_GOOD);
    }
    if (rc == BP_OK) {
        c.json = cli_given(&c.line, "json");
        c.verbose = cli_given(&c.line, "verbose");
        if (c.json) c.out = json_object();
        rc = cmd->run(&c);
    }
    if (rc != BP_OK) {
        if (c.err.code == BP_OK)
            cli_fail(&c.err, rc, cmd->name, "failed with status %s", bp_status_name(rc));
        status = exit_of(c.err.code);
        /* Before there is a session nothing was computed: a NaN then stands in a file. */
        if (c.err.code == BP_E_NUMERIC && c.session == NULL && !c.computing)
            status = EXIT_INPUT;
        status = print_error(&c.err, cmd->name, c.json, c.out, status);
    } else {
        status = c.answer_no ? EXIT_NO : EXIT_GOOD;
        if (c.json) status = print_json(c.out, status);
    }
    close_all(&c);
    return flush_output(status);
}

static const struct cli_command *find_command(const char *name)
{
    for (size_t i = 0; i < N_COMMANDS; ++i) {
        if (strcmp(commands[i]->name, name) == 0) return commands[i];
    }
    return NULL;
}

static int unknown_command(const char *name, bool json)
{
    struct bp_error err = BP_ERROR_INIT;
    const char *names[N_COMMANDS + 1] = {"help"};
    for (size_t i = 0; i < N_COMMANDS; ++i) names[i + 1] = commands[i]->name;
    const char *near = cli_nearest(name, names, N_COMMANDS + 1);
    if (near != NULL)
        cli_fail(&err, BP_E_ARG, name, "there is no command '%.60s'; did you mean '%s'?", name,
                 near);
    else
        cli_fail(&err, BP_E_ARG, name,
                 "there is no command '%.60s'; 'backplane help' lists the commands", name);
    return flush_output(print_error(&err, "", json, NULL, EXIT_INPUT));
}

/* Manual pages into a folder; the build makes them with this. */
static int print_man(int argc, char **argv, bool json)
{
    struct bp_error err = BP_ERROR_INIT;
    int32_t rc;
    if (argc != 1)
        rc = cli_fail(&err, BP_E_ARG, "--man",
                      "help --man needs one folder to write the manual pages into");
    else
        rc = cli_man_write(commands, N_COMMANDS, argv[0], &err);
    if (rc != BP_OK) return flush_output(print_error(&err, "help", json, NULL, exit_of(rc)));
    return flush_output(EXIT_GOOD);
}

static int print_help(int argc, char **argv, bool json)
{
    while (argc > 0 && strcmp(argv[0], "--json") == 0) {
        --argc;
        ++argv;
    }
    if (argc == 0) {
        cli_help_all(commands, N_COMMANDS, stdout);
        return flush_output(EXIT_GOOD);
    }
    if (strcmp(argv[0], "--man") == 0) return print_man(argc - 1, argv + 1, json);
    const struct cli_command *cmd = find_command(argv[0]);
    if (cmd == NULL) return unknown_command(argv[0], json);
    cli_help_command(cmd, stdout);
    return flush_output(EXIT_GOOD);
}

static int print_version(bool json)
{
    if (!json) {
        printf("backplane %s\n", bp_version());
        return flush_output(EXIT_GOOD);
    }
    json_t *o = json_object();
    json_object_set_new(o, "version", json_string(bp_version()));
    return flush_output(print_json(o, EXIT_GOOD));
}

int main(int argc, char **argv)
{
    bool json = false; /* also for errors in a line that cannot be parsed */
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; ++i)
        json = json || strcmp(argv[i], "--json") == 0;
    term_init();
    if (argc < 2) {
        cli_help_all(commands, N_COMMANDS, stderr);
        return EXIT_INPUT;
    }
    const char *name = argv[1];
    if (strcmp(name, "help") == 0 || strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)
        return print_help(argc - 2, argv + 2, json);
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) return print_version(json);
    const struct cli_command *cmd = find_command(name);
    if (cmd == NULL) return unknown_command(name, json);
    bus_init(cmd->name, json);
    leave_init(cmd->name, json);
    const int status = run_command(cmd, argc - 2, argv + 2, json);
    leave_expected();
    return status;
}
