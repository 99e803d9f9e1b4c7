/* bench_cli.h - shared by cmd_bench.c and bench_models.c. SPDX-License-Identifier: MIT */
#ifndef BENCH_CLI_H
#define BENCH_CLI_H

#include "cli.h"

#include <bench.h>

struct bench_print {
    struct cli *c;
    json_t *rows; /* NULL without --json */
    char op[24];  /* of the last row of the table */
    const char *device; /* its name, the first line */
    bool begun;
    uint32_t n_measured; /* rows with numbers, ceilings aside */
    struct bench_row held[2]; /* ceilings, printed with the first row after them: refusals print nothing else */
    uint32_t n_held;
};
/* A bench_row_fn over a struct bench_print. */
int32_t bench_print_row(void *ctx, const struct bench_row *r);

/* -m or --shape. Sets members of c->out but rows. */
int32_t bench_models(struct cli *c, struct bench *b, struct bench_print *p);

#endif
