/* ab_out.h - the result of `backplane ab` as JSON and as a table. Not here: what is compared (cmd_ab.c).
 * SPDX-License-Identifier: MIT */
#ifndef CLI_AB_OUT_H
#define CLI_AB_OUT_H

#include "cli.h"

struct ab_side_text { /* what a side is called in the output */
    json_t *settings; /* object of key: value; owned by the caller */
    const char *model; /* path; of a golden file for side B */
};

/* NULL: out of memory. max_kl, max_abs: NaN when not given. */
json_t *ab_json(const struct cli *c, const struct bp_ab *ab, const struct ab_side_text side[2], const char *text,
                double max_kl, double max_abs);
void ab_print(const struct bp_ab *ab, bool all);

#endif
