/* oracle_block.c - what a weight is, for unit tests: core/block, which defines it. SPDX-License-Identifier: MIT */
#include "block/block.h"
#include "cases/bp_oracle.h"

int32_t bp_oracle_decode(uint32_t type, const void *bytes, uint64_t n, float *out)
{
    return bpi_block_decode(type, bytes, n, out);
}
