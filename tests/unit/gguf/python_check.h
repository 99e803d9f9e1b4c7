/* python_check.h - runs gguf_check.py for tests that want a second opinion.
 * SPDX-License-Identifier: MIT */
#ifndef PYTHON_CHECK_H
#define PYTHON_CHECK_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include "base/base.h"

/* The script's exit status: 0 good, 1 differs, 77 there is no such package. The arguments hold no quotes. */
static inline int python_check(const char *fmt, ...) BPI_PRINTF(1, 2);
static inline int python_check(const char *fmt, ...)
{
    char args[2048], command[4096];
    va_list list;
    va_start(list, fmt);
    int n = vsnprintf(args, sizeof args, fmt, list);
    va_end(list);
    if (n < 0 || (size_t)n >= sizeof args) return -1;
    n = snprintf(command, sizeof command, "python3 '%s/tests/unit/gguf/gguf_check.py' %s",
                 BP_SOURCE_DIR, args);
    if (n < 0 || (size_t)n >= sizeof command) return -1;
    fflush(stdout);
    int status = system(command);
    if (status == -1 || !WIFEXITED(status)) return -1;
    if (WEXITSTATUS(status) == 127) {
        printf("SKIP: there is no python3\n");
        return 77;
    }
    return WEXITSTATUS(status);
}

#endif
