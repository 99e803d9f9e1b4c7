/* fuzz_block.c - any bytes as blocks of any type: decoding reads and writes nothing beyond what sizes say.
 * Input: one byte type, one byte of misalignment, then the blocks. SPDX-License-Identifier: MIT */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "block/block.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) return 0;
    const struct bpi_block_info *info = bpi_block_info(data[0]);
    const uint64_t elems = info != NULL ? info->block_elems : 1,
                   bytes = info != NULL ? info->block_bytes : 1;
    const uint64_t n_blocks = (size - 2) / bytes, shift = data[1] % 8;
    unsigned char *src = malloc(shift + n_blocks * bytes + (n_blocks == 0));
    float *dst = malloc(n_blocks * elems * sizeof(float) + (n_blocks == 0));
    if (src != NULL && dst != NULL) {
        memcpy(src + shift, data + 2, n_blocks * bytes);
        int32_t rc = bpi_block_decode(data[0], src + shift, n_blocks * elems, dst);
        if ((rc == BP_OK) != (info != NULL && info->can_decode)) abort();
    }
    free(src);
    free(dst);
    return 0;
}
