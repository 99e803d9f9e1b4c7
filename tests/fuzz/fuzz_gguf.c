/* fuzz_gguf.c - any bytes as a GGUF file: opening refuses them with a sentence, or all that it gives is safe to use.
 * Not here: several shards, which need files. SPDX-License-Identifier: MIT */
#include <stdint.h>
#include <stdlib.h>
#include "unit/gguf/gguf_walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bpi_gguf *g = NULL;
    struct bp_error err = BP_ERROR_INIT;
    int32_t rc = bpi_gguf_open_memory(data, size, "fuzz", &g, &err);
    if (rc != err.code || (rc == BP_OK) != (g != NULL) || (rc == BP_OK) != (err.msg[0] == '\0'))
        abort();
    if (rc == BP_OK) (void)walk_gguf(g);
    bpi_gguf_close(g);
    return 0;
}
