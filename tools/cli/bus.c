/* bus.c - what happens when a mapped file is shortened, or its disk fails, between two looks at it.
 * The library cannot own a signal, a program can. The sentence is made beforehand: a handler may only write and leave.
 * Decision: docs/decisions/0006. File-scope state: what the handler needs.
 * SPDX-License-Identifier: MIT */
#include "bus.h"

#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_FAILED = 3, STACK_BYTES = 64 << 10 };

static char sentence[1024], object[1024];
static bool json_wanted, on_terminal;
static char stack[STACK_BYTES];

static void put(int fd, const char *text)
{
    size_t n = strlen(text);
    while (n > 0) {
        ssize_t k = write(fd, text, n);
        if (k <= 0) return;
        text += k;
        n -= (size_t)k;
    }
}

/* Only a page of a mapping that the file does not back: anything else keeps its meaning. */
static void on_bus(int sig, siginfo_t *info, void *context)
{
    (void)context;
    if (info->si_code != BUS_ADRERR) {
        signal(sig, SIG_DFL);
        raise(sig);
        return;
    }
    if (on_terminal) put(STDERR_FILENO, "\r\033[K"); /* a progress bar */
    put(STDERR_FILENO, sentence);
    if (json_wanted) put(STDOUT_FILENO, object);
    _exit(EXIT_FAILED);
}

void bus_watch(const char *command, const char *path)
{
    static const char why[] =
        "a file that was being read became shorter, or its disk failed; "
        "nothing after that can be trusted, so check the file and start again";
    char where[300];
    size_t n = strlen(path), room = sizeof where - 1;
    snprintf(where, sizeof where, "%s%s", n > room ? "..." : "",
             n > room ? path + n - room + 3 : path);
    for (char *p = where; *p != '\0'; ++p)
        if ((unsigned char)*p < 0x20 || *p == 0x7f) *p = '?';
    snprintf(sentence, sizeof sentence, "backplane%s%s: %s%s%s\n", command[0] != '\0' ? " " : "",
             command, where, where[0] != '\0' ? ": " : "", why);
    snprintf(object, sizeof object,
             "{\"error\":{\"code\":\"E_IO\",\"where\":\"\",\"message\":\"%s\"}}\n", why);
    json_t *o =
        json_pack("{s:{s:s, s:s, s:s}}", "error", "code", "E_IO", "where", where, "message", why);
    char *text =
        o != NULL ? json_dumps(o, JSON_COMPACT) : NULL; /* fails on bytes that are no UTF-8 */
    if (text != NULL && strlen(text) + 2 <= sizeof object)
        snprintf(object, sizeof object, "%s\n", text);
    free(text);
    json_decref(o);
}

void bus_init(bool json)
{
    struct sigaction sa;
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    json_wanted = json;
    on_terminal = isatty(STDERR_FILENO) == 1;
    bus_watch("", "");
    memset(&sa, 0, sizeof sa);
    sa.sa_sigaction = on_bus;
    sa.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&sa.sa_mask);
    if (sigaltstack(&alternate, NULL) != 0) sa.sa_flags = SA_SIGINFO;
    sigaction(SIGBUS, &sa, NULL);
}
