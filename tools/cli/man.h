/* man.h - manual pages from the tables of commands and options. SPDX-License-Identifier: MIT */
#ifndef CLI_MAN_H
#define CLI_MAN_H

#include "options.h"

/* Writes backplane.1 and a page backplane-COMMAND.1 for each command into `folder`, which exists. Errors: BP_E_IO. */
int32_t cli_man_write(const struct cli_command *const *cmds, size_t n, const char *folder, struct bp_error *err);

#endif
