/* env.h - the process's environment and the program's own place: the few things of the outside that core may ask for.
 * Not here: settings (core/config); nothing but the defaults of folders depends on the environment.
 * Threads: any, as long as nobody changes the environment meanwhile. SPDX-License-Identifier: MIT */
#ifndef BPI_ENV_H
#define BPI_ENV_H

#include <stdbool.h>
#include <stddef.h>

/* Value of a variable; NULL when it is not set, is empty, or the program runs with rights that its caller lacks. */
const char *bpi_env(const char *name);

/* Folder of the running program, without a slash at its end, into out[0..cap); false when the system does not tell or
 * it does not fit. */
bool bpi_program_folder(char *out, size_t cap);

#endif
