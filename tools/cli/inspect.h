/* inspect.h - what the files of `backplane inspect` share. SPDX-License-Identifier: MIT */
#ifndef CLI_INSPECT_H
#define CLI_INSPECT_H

#include "cli.h"

/* inspect_check.c: --hash, --check MANIFEST, --validate on an open file; each prints and sets c->answer_no. */
int32_t inspect_hash(struct cli *c, const struct bp_file *f);
int32_t inspect_compare(struct cli *c, const struct bp_file *f, const char *manifest);
int32_t inspect_validate(struct cli *c, const struct bp_file *f);

#endif
