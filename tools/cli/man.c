/* man.c - manual pages in man(7), from the same tables as the help, so that no option can be missing from them.
 * The build calls this through `backplane help --man FOLDER`. Pages carry no date, so that two builds give the same
 * bytes. Not here: the tables. SPDX-License-Identifier: MIT */
#include "man.h"
#include "part.h"

#include <string.h>

/* ---- text that roff must not understand ---- */

/* n bytes of text: a hyphen stays a hyphen that can be copied, a backslash is printed. Newlines end a paragraph. */
static void put(FILE *f, const char *text, size_t n)
{
    bool line_start = true;
    for (size_t i = 0; i < n; ++i) {
        char c = text[i];
        if (line_start && (c == '.' || c == '\'')) fputs("\\&", f);
        line_start = false;
        if (c == '\n') {
            while (i + 1 < n && text[i + 1] == '\n') ++i;
            fputs("\n.PP\n", f);
            line_start = true;
        } else if (c == '\\') {
            fputs("\\e", f);
        } else if (c == '-') {
            fputs("\\-", f);
        } else if (c == '\'') {
            fputs("\\(aq", f);
        } else if (c == '`') {
            fputs("\\(ga", f);
        } else if (c == '^') {
            fputs("\\(ha", f);
        } else if (c == '~') {
            fputs("\\(ti", f);
        } else {
            fputc(c, f);
        }
    }
}

static void put_text(FILE *f, const char *text)
{
    put(f, text, strlen(text));
}

static void put_bold(FILE *f, const char *text)
{
    fputs("\\fB", f);
    put_text(f, text);
    fputs("\\fR", f);
}

static void put_italic(FILE *f, const char *text)
{
    fputs("\\fI", f);
    put_text(f, text);
    fputs("\\fR", f);
}

/* ---- parts of pages ---- */

static void head(FILE *f, const char *name, const char *summary)
{
    size_t n = strlen(summary);
    if (n > 0 && summary[n - 1] == '.') --n; /* what apropos prints is no sentence */
    fprintf(f, ".\\\" Made by 'backplane help --man' from the tables of the program.\n");
    fputs(".TH \"", f);
    for (const char *p = name; *p != '\0'; ++p)
        fputc(*p >= 'a' && *p <= 'z' ? *p - 'a' + 'A' : *p, f);
    fprintf(f, "\" 1 \"\" \"backplane %s\" \"Backplane manual\"\n.SH NAME\n", bp_version());
    put_text(f, name);
    fputs(" \\- ", f);
    put(f, summary, n);
    fputc('\n', f);
}

static void option(FILE *f, const struct cli_option *o)
{
    char name[64];
    fputs(".TP\n", f);
    if (o->letter != 0) {
        snprintf(name, sizeof name, "-%c", o->letter);
        put_bold(f, name);
        fputs(", ", f);
    }
    snprintf(name, sizeof name, "--%s", o->name);
    put_bold(f, name);
    if (o->arg != NULL) {
        fputc(' ', f);
        put_italic(f, o->arg);
    }
    fputc('\n', f);
    put_text(f, o->doc);
    if (o->dflt != NULL) {
        fputs("\nDefault: ", f);
        put_bold(f, o->dflt);
        fputc('.', f);
    }
    if (o->config != NULL) {
        fputs("\nDefault: the configuration key ", f);
        put_bold(f, o->config);
        fputc('.', f);
    }
    fputc('\n', f);
}

static void exit_status(FILE *f)
{
    static const char *const rows[][2] = {
        {"0", "Good."},
        {"1", "The answer is \"no\"."},
        {"2", "Usage or bad input."},
        {"3", "It failed while running."},
    };
    fputs(".SH EXIT STATUS\n", f);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i)
        fprintf(f, ".TP\n%s\n%s\n", rows[i][0], rows[i][1]);
}

/* ---- pages ---- */

static void page_of_command(FILE *f, const struct cli_command *cmd)
{
    char name[80];
    const struct cli_option *o;
    snprintf(name, sizeof name, "backplane-%s", cmd->name);
    head(f, name, cmd->summary);
    fputs(".SH SYNOPSIS\n\\fBbackplane ", f);
    put_text(f, cmd->name);
    fputs("\\fR", f);
    if (cmd->args[0] != '\0') {
        fputc(' ', f);
        put_italic(f, cmd->args);
    }
    fputs(" [\\fIoptions\\fR]\n.SH DESCRIPTION\n", f);
    put_text(f, cmd->summary);
    if (cmd->details[0] != '\0') {
        fputs("\n.PP\n", f);
        put_text(f, cmd->details);
    }
    fputc('\n', f);
    if (cmd->n_options > 0) fputs(".SH OPTIONS\n", f);
    for (size_t i = 0; (o = cli_option_at(cmd, i)) != NULL; ++i) {
        if (i == cmd->n_options) fputs(".SH COMMON OPTIONS\n", f);
        option(f, o);
    }
    exit_status(f);
    fputs(".SH SEE ALSO\n.BR backplane (1)\n", f);
}

static void page_of_all(FILE *f, const struct cli_command *const *cmds, size_t n)
{
    head(f, "backplane", "run MLA + MoE language models from GGUF files");
    fputs(".SH SYNOPSIS\n\\fBbackplane\\fR \\fICOMMAND\\fR [\\fIoptions\\fR]\n.br\n"
          "\\fBbackplane help\\fR [\\fICOMMAND\\fR]\n.br\n"
          "\\fBbackplane help \\-\\-man\\fR \\fIFOLDER\\fR\n.br\n\\fBbackplane \\-\\-version\\fR\n"
          ".SH DESCRIPTION\n",
          f);
    put_text(f, "A command does one thing; each has a page of its own, backplane-COMMAND(1), and "
                "'backplane COMMAND --help' prints the same. Results go to standard output, "
                "everything else to standard error.\n"
                "'help --man FOLDER' writes these manual pages into a folder.");
    fputs("\n.SH COMMANDS\n", f);
    for (size_t i = 0; i < n; ++i) {
        fputs(".TP\n", f);
        put_bold(f, cmds[i]->name);
        fputc('\n', f);
        put_text(f, cmds[i]->summary);
        fputc('\n', f);
    }
    const struct cli_option *o;
    fputs(".SH COMMON OPTIONS\n", f);
    for (size_t i = cmds[0]->n_options; (o = cli_option_at(cmds[0], i)) != NULL; ++i) option(f, o);
    exit_status(f);
    fputs(".SH SEE ALSO\n", f);
    for (size_t i = 0; i < n; ++i) {
        fputs(".BR backplane\\-", f);
        put_text(f, cmds[i]->name);
        fprintf(f, " (1)%s\n", i + 1 < n ? "," : "");
    }
}

int32_t cli_man_write(const struct cli_command *const *cmds, size_t n, const char *folder,
                      struct bp_error *err)
{
    for (size_t i = 0; i <= n; ++i) {
        char path[4096];
        int len = snprintf(path, sizeof path, "%s/backplane%s%s.1", folder, i < n ? "-" : "",
                           i < n ? cmds[i]->name : "");
        if (len < 0 || (size_t)len >= sizeof path)
            return cli_fail(err, BP_E_ARG, "--man", "the folder's path is too long");
        struct cli_part part;
        int bad = cli_part_open(&part, path);
        if (bad != 0)
            return cli_fail(err, BP_E_IO, path, "the manual page cannot be created: %s",
                            strerror(bad));
        if (i < n)
            page_of_command(part.f, cmds[i]);
        else
            page_of_all(part.f, cmds, n);
        bad = cli_part_finish(&part, path);
        if (bad != 0)
            return cli_fail(err, BP_E_IO, path, "the manual page cannot be written: %s",
                            strerror(bad));
    }
    return BP_OK;
}
