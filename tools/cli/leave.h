/* leave.h - a program that ends without main() knowing, because a plugin called exit(), says so and fails.
 * SPDX-License-Identifier: MIT */
#ifndef CLI_LEAVE_H
#define CLI_LEAVE_H

#include <stdbool.h>

/* From here on every exit is a failure with one sentence and status 3. command: what the sentence begins with, outlives
 * the process; json: the error also goes to standard output, as an object. */
void leave_init(const char *command, bool json);
/* main() is about to return. */
void leave_expected(void);

#endif
