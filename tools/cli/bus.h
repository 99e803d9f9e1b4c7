/* bus.h - SIGBUS: one sentence and exit status 3 when a mapped file loses bytes while it is read.
 * SPDX-License-Identifier: MIT */
#ifndef CLI_BUS_H
#define CLI_BUS_H

#include <stdbool.h>

/* Takes SIGBUS over. command: what the sentence begins with, outlives the process; json: the error also goes to standard
 * output, as an object. */
void bus_init(const char *command, bool json);

#endif
