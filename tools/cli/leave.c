/* leave.c - see leave.h. The program itself never calls exit(), so whoever does is a plugin or a library below one; its
 * status 0 would pass for a good answer. Not here: abort() and signals, which no one can mistake for that.
 * File-scope state: a handler of atexit() gets no argument. SPDX-License-Identifier: MIT */
#include "leave.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_FAILED = 3 };

static const char why[] =
    "a plugin, or a library that it needs, ended the program by calling exit(); "
    "try the plugins that the INI names with backplane-check, one by one";
static const char *command_name = "";
static bool json_wanted, expected;

static void put(int fd, const char *text)
{
    const size_t n = strlen(text);
    if (write(fd, text, n) != (ssize_t)n) return; /* nobody is left to be told */
}

static void on_exit_called(void)
{
    if (expected) return;
    put(STDERR_FILENO, "backplane ");
    put(STDERR_FILENO, command_name);
    put(STDERR_FILENO, ": ");
    put(STDERR_FILENO, why);
    put(STDERR_FILENO, "\n");
    if (json_wanted) {
        put(STDOUT_FILENO, "{\"error\":{\"code\":\"E_INTERNAL\",\"where\":\"exit\",\"message\":\"");
        put(STDOUT_FILENO, why);
        put(STDOUT_FILENO, "\"}}\n");
    }
    _exit(EXIT_FAILED);
}

void leave_init(const char *command, bool json)
{
    command_name = command;
    json_wanted = json;
    (void)atexit(on_exit_called);
}

void leave_expected(void)
{
    expected = true;
}
