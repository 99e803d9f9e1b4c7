/* kit_man.c - help and manual page from one table of options. SPDX-License-Identifier: MIT */
#include "kit_man.h"

#include <stddef.h>

static const struct {
    const char *name, *text;
} options[] = {
    {"--iface NAME", "only this interface (bp.mla.decode, ...) in the stages that go by interface"},
    {"--stage N,...",
     "only these stages: 0 file, 1 query, 2 config, 3 sizes, 4 lifecycle, 5 supports, 6 numbers, "
     "7 streams, 8 capture, 9 repetition (these three with --gpu), 10 wrappers; default: all"},
    {"--set KEY=VALUE", "a key of the plugin's own INI section; repeatable"},
    {"--seed S", "seed of the random inputs; each case has its own, made of S and its title"},
    {"--timeout S", "seconds without progress after which a plugin counts as hanging; default 30"},
    {"--gpu N",
     "make the ops on device N and give them device memory; without it they are made on the CPU"},
    {"--device-plugin FILE",
     "what opens device N; default: FILE.so itself, or backplane-device_cuda.so beside it"},
    {"--case TEXT",
     "only cases whose title holds TEXT, as \"matmul Q4_K\", in the stages that go by cases"},
    {"--budget S", "take no new cases of an interface in a stage after S seconds; a note says how "
                   "many were left out"},
    {"--quick", "a part of the grid of stage 6, for the time while a plugin is written"},
    {"--full",
     "also the long cases: 16k and 64k cached tokens, every number of columns; minutes on a CPU"},
    {"--reference", "check the reference backend, which is built in, instead of a file"},
    {"--json", "one JSON object on stdout"},
    {"--list", "print all rules, and what happens otherwise"},
    {"--man", "print the manual page"},
    {"--verbose", "name declined problems"},
    {"--help, --version", ""},
};

static const char about[] = "Loads a Backplane plugin and holds it to the rules of the ABI: file, "
                            "entry, configuration, struct sizes, life "
                            "cycle, supports(), and the numbers of every op that it says yes to. "
                            "Whatever it does - crash, hang, exit - "
                            "happens in a child process and is a finding with a rule.";

int kit_help(FILE *f)
{
    (void)fprintf(f,
                  "usage: backplane-check FILE.so [options]\n       backplane-check --reference "
                  "[options]\n\n%s\n\n",
                  about);
    for (size_t i = 0; i < sizeof options / sizeof options[0]; ++i)
        (void)fprintf(f, "  %-18s %s\n", options[i].name, options[i].text);
    (void)fprintf(f,
                  "\nExit status: 0 all rules held, 1 a finding, 2 wrong usage or no such file.\n");
    return ferror(f) != 0 ? 2 : 0;
}

/* A minus sign and a leading dot would be read as something else by troff. */
static void escaped(FILE *f, const char *s)
{
    for (; *s != '\0'; ++s) {
        if (*s == '-' || *s == '\\') (void)fputc('\\', f);
        (void)fputc(*s, f);
    }
}

int kit_man(FILE *f)
{
    (void)fprintf(
        f, ".TH BACKPLANE\\-CHECK 1\n.SH NAME\nbackplane\\-check \\- conformance kit for Backplane "
           "plugins\n"
           ".SH SYNOPSIS\n.B backplane\\-check\n.I FILE.so\n[options]\n.br\n.B backplane\\-check\n"
           "\\-\\-reference [options]\n.SH DESCRIPTION\n");
    escaped(f, about);
    (void)fprintf(f, "\n.SH OPTIONS\n");
    for (size_t i = 0; i < sizeof options / sizeof options[0]; ++i) {
        (void)fprintf(f, ".TP\n.B ");
        escaped(f, options[i].name);
        (void)fprintf(f, "\n");
        escaped(f, options[i].text);
        (void)fprintf(f, "\n");
    }
    (void)fprintf(f,
                  ".SH EXIT STATUS\n0 all rules held, 1 a finding, 2 wrong usage or no such file.\n"
                  ".SH SEE ALSO\n.BR backplane (1),\ndocs/kit.md\n");
    return ferror(f) != 0 ? 2 : 0;
}
