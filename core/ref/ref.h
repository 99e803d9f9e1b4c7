/* ref.h - the reference backend: every slot in plain C with double accumulation, always built, always loadable.
 * It defines right. It is an oracle, not a race car. The engine never calls it by name: it registers through the same
 * descriptor as any plugin.
 * SPDX-License-Identifier: MIT */
#ifndef BPI_REF_H
#define BPI_REF_H

#include "backplane/plugin.h"

/* The static twin of bp_plugin_query_v1. */
const struct bp_plugin_desc *bpi_ref_query(const struct bp_query *q);

#endif
