/* fail.c - the one way to fill struct bp_error in this program. SPDX-License-Identifier: MIT */
#include "options.h"

#include <stdarg.h>
#include <string.h>

int32_t cli_fail(struct bp_error *err, int32_t code, const char *where, const char *fmt, ...)
{
    if (err == NULL || err->code != BP_OK) return code;
    err->code = code;
    snprintf(err->domain, sizeof err->domain, "cli");
    size_t n = where != NULL ? strlen(where) : 0, room = sizeof err->where - 1;
    if (n <= room)
        snprintf(err->where, sizeof err->where, "%s", where != NULL ? where : "");
    else /* the end of a path says more than its beginning */
        snprintf(err->where, sizeof err->where, "...%s", where + n - room + 3);
    va_list args;
    va_start(args, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, args);
    va_end(args);
    return code;
}
