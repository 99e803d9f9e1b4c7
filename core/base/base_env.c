/* base_env.c - environment variables and the program's folder, for defaults of folders.
 * Not here: any meaning of what is found. Threads: as env.h says. SPDX-License-Identifier: MIT */
#define _GNU_SOURCE 1 /* secure_getenv */
#include "base/env.h"

#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

const char *bpi_env(const char *name)
{
    const char *value = secure_getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

bool bpi_program_folder(char *out, size_t cap)
{
    ssize_t n = readlink("/proc/self/exe", out, cap);
    if (n <= 0 || (size_t)n >= cap)
        return false; /* readlink fills the room without a word when it cuts */
    out[n] = '\0';
    char *slash = strrchr(out, '/');
    if (slash == NULL) return false;
    slash[slash == out ? 1 : 0] = '\0';
    return true;
}
