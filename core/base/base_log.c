/* base_log.c - log lines handed to the owner's sink, and the monotonic clock.
 * Not here: where lines end up, that is the sink's business. Threads: as safe as the sink is.
 * SPDX-License-Identifier: MIT */
#include "base/base.h"
#include "base/base_priv.h"

#include <time.h>

enum { LOG_LINE_BYTES = 1024 };

void bpi_logf(const struct bpi_log *log, int32_t level, const char *room, const char *fmt, ...)
{
    if (log == NULL || log->sink == NULL || level > log->level) return;
    char line[LOG_LINE_BYTES];
    va_list args;
    va_start(args, fmt);
    int n = bpi_vformat(line, sizeof line, fmt, args);
    va_end(args);
    if (n < 0) return;
    bpi_text_make_plain(line);
    log->sink(log->ctx, level, room, line);
}

uint64_t bpi_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}
