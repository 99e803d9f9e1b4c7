/* kit_child.h - one child process for one stage: limits, a pipe for records, a watch on its progress.
 * SPDX-License-Identifier: MIT */
#ifndef KIT_CHILD_H
#define KIT_CHILD_H

#include "kit.h"

typedef void (*kit_sink)(void *ctx, const struct kit_record *r);
/* Runs fn in a child and hands its records to the sink, then a finding of its end if that was not a peaceful one.
 * Returns false when no child could be started. */
bool kit_child_run(const struct kit_options *o, uint32_t stage, const char *iface, void (*fn)(struct kit *k), kit_sink sink,
                   void *ctx);

#endif
