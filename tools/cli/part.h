/* part.h - a file that appears whole or not at all: written beside its place under another name, renamed at the end. What
 * had the name before is replaced, never written into, so that no link leads to another file's bytes.
 * Not here: whether the name may be taken (output.c). SPDX-License-Identifier: MIT */
#ifndef CLI_PART_H
#define CLI_PART_H

#include <stdio.h>

struct cli_part {
    FILE *f; /* to write to */
    char *name;
};

/* Both return 0 or an errno, and leave nothing behind when it is not 0. finish closes p->f in any case. */
int cli_part_open(struct cli_part *p, const char *path);
int cli_part_finish(struct cli_part *p, const char *path);

#endif
