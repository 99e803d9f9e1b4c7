/* fuzz_block.c - any bytes as blocks of any type, and as values to encode: nothing is read or written beyond what sizes
 * say; what validation calls good decodes to finite values; what was encoded is good.
 * Input: one byte type, one byte of misalignment (bits 0-2) and whether there are weights (bit 3), then the blocks.
 * The same bytes are the values. SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "block/block.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool all_finite(const float *x, uint64_t n)
{
    for (uint64_t i = 0; i < n; ++i)
        if (!isfinite(x[i])) return false;
    return true;
}

/* Blocks that may be anything. */
static void read_blocks(uint32_t type, size_t shift, const uint8_t *data, size_t size)
{
    const struct bpi_block_info *info = bpi_block_info(type);
    const uint64_t elems = info != NULL ? info->block_elems : 1,
                   bytes = info != NULL ? info->block_bytes : 1;
    const uint64_t n_blocks = size / bytes;
    unsigned char *src = malloc(shift + size + 1);
    float *dst = malloc(n_blocks * elems * sizeof(float) + (n_blocks == 0));
    if (src != NULL && dst != NULL) {
        uint64_t bad;
        memcpy(src + shift, data, size);
        const char *reason = bpi_block_validate(type, src + shift, size, &bad);
        if (bad > n_blocks || (reason == NULL && bad * bytes != size && info != NULL)) abort();
        int32_t rc = bpi_block_decode(type, src + shift, n_blocks * elems, dst);
        if ((rc == BP_OK) != (info != NULL && info->can_decode)) abort();
        /* F64 has values that are finite and no float. */
        if (rc == BP_OK && type != BP_GGUF_F64 && !all_finite(dst, bad * elems)) abort();
    }
    free(src);
    free(dst);
}

/* Values that may be anything, weights from the second half of the bytes. */
static void write_blocks(uint32_t type, size_t shift, bool weighted, const uint8_t *data,
                         size_t size)
{
    const struct bpi_block_info *info = bpi_block_info(type);
    const uint64_t elems = info != NULL ? info->block_elems : 1,
                   bytes = info != NULL ? info->block_bytes : 1;
    const uint64_t n_blocks = size / sizeof(float) / (weighted ? 2 : 1) / elems;
    const uint64_t n = n_blocks * elems;
    float *x = malloc(n * sizeof *x + 1), *w = malloc(n * sizeof *w + 1),
          *y = malloc(n * sizeof *y + 1);
    unsigned char *dst = malloc(shift + n_blocks * bytes + (shift + n_blocks == 0));
    if (x != NULL && w != NULL && y != NULL && dst != NULL) {
        memcpy(x, data, n * sizeof *x);
        if (weighted) memcpy(w, data + n * sizeof *x, n * sizeof *w);
        int32_t rc = bpi_block_encode(type, x, n, weighted ? w : NULL, dst + shift);
        const bool can = info != NULL && info->can_encode;
        if (can != (rc == BP_OK || rc == BP_E_NUMERIC)) abort();
        if (rc == BP_E_NUMERIC && !weighted && type == BP_GGUF_F32 && all_finite(x, n)) abort();
        if (rc == BP_OK) {
            uint64_t bad;
            if (!all_finite(x, n)) abort();
            if (bpi_block_validate(type, dst + shift, n_blocks * bytes, &bad) != NULL) abort();
            if (bpi_block_decode(type, dst + shift, n, y) != BP_OK || !all_finite(y, n)) abort();
        }
    }
    free(dst);
    free(y);
    free(w);
    free(x);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) return 0;
    read_blocks(data[0], data[1] % 8, data + 2, size - 2);
    write_blocks(data[0], data[1] % 8, (data[1] & 8) != 0, data + 2, size - 2);
    return 0;
}
