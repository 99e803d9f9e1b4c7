/* block_grids.c - the learned codebooks of the IQ1, IQ2 and IQ3 formats, declared in block_priv.h.
 * Not here: what a digit means; that is arithmetic in block_iq1.c, block_iq2.c and block_iq3.c.
 * Source: ggml (MIT, see THIRD_PARTY.md), through scripts/gen_codebooks.py. SPDX-License-Identifier: MIT */
#include "block/block_priv.h"

#define BP_BLOCK_GRID(name, rows) const uint16_t bpi_block_grid_##name[rows]
#include "block/block_grids.inc"
