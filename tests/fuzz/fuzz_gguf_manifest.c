/* fuzz_gguf_manifest.c - any bytes as a manifest: refused with a sentence, or read, written and read again to the same.
 * SPDX-License-Identifier: MIT */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "gguf/gguf_manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok)
{
    if (!ok) abort();
}

static void tell(void *ctx, uint32_t kind, const char *name, const char *shard, const char *text)
{
    (void)kind;
    *(size_t *)ctx += strlen(name) + strlen(shard) + strlen(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bpi_manifest *m = NULL, *again = NULL;
    struct bp_error err = BP_ERROR_INIT;
    int32_t rc = bpi_manifest_parse((const char *)data, size, "fuzz", &m, &err);
    require(rc == err.code && (rc == BP_OK) == (m != NULL) &&
            (rc == BP_OK) == (err.msg[0] == '\0'));
    require(bpi_utf8_valid(err.msg, strlen(err.msg)) && strchr(err.msg, '\n') == NULL);
    if (m == NULL) return 0;
    struct bpi_buf first = {0}, second = {0};
    size_t seen = 0;
    bpi_manifest_format(m, &first);
    require(!first.failed);
    require(bpi_manifest_parse(first.data, first.len, "again", &again, &err) == BP_OK);
    bpi_manifest_format(again, &second);
    require(!second.failed && second.len == first.len &&
            memcmp(first.data, second.data, first.len) == 0);
    require(bpi_manifest_compare(m, again, tell, &seen) == 0 && seen == 0);
    bpi_buf_free(&first);
    bpi_buf_free(&second);
    bpi_manifest_destroy(m);
    bpi_manifest_destroy(again);
    return 0;
}
