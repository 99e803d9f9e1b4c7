/* bus.h - SIGBUS: one sentence and exit status 3 when a mapped file loses bytes while it is read.
 * SPDX-License-Identifier: MIT */
#ifndef CLI_BUS_H
#define CLI_BUS_H

#include <stdbool.h>

/* Takes SIGBUS over. json: the error also goes to standard output, as an object. */
void bus_init(bool json);
/* The command and the file that the sentence names; called before the file is opened. */
void bus_watch(const char *command, const char *path);

#endif
