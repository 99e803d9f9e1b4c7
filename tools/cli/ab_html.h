/* ab_html.h - the result of `backplane ab` as one HTML file that needs nothing else: no network, no other files.
 * Not here: what is measured (cmd_ab.c). Threads: any, one call per path. SPDX-License-Identifier: MIT */
#ifndef CLI_AB_HTML_H
#define CLI_AB_HTML_H

#include <jansson.h>
#include <backplane/backplane.h>

/* Writes the report of `result`, the object that `ab --json` prints, under another name beside `path` and renames it, so
 * that `path` is either whole or as it was. Every part of the object may be missing, null or of another type: it is then
 * shown as a dash. Errors: BP_E_ARG when result is no object, BP_E_IO, BP_E_NOMEM; err may be NULL. */
int32_t cli_ab_html(const json_t *result, const char *path, struct bp_error *err);

#endif
