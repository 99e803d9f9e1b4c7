/* kit_man.h - help and manual page. SPDX-License-Identifier: MIT */
#ifndef KIT_MAN_H
#define KIT_MAN_H

#include <stdio.h>

/* Both return the program's exit status. */
int kit_help(FILE *f);
int kit_man(FILE *f);

#endif
