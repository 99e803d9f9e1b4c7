/* api_reference.c - bp_reference_query of tools.h: the reference backend for other hosts than the engine.
 * Threads: pure. SPDX-License-Identifier: MIT */
#include "backplane/tools.h"
#include "ref/ref.h"

bp_plugin_query_fn bp_reference_query(void)
{
    return bpi_ref_query;
}
