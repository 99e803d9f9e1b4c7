/* decode_file.c - usage: decode_file MODEL OUT: the values of all tensors that can be decoded, in file order, as 32-bit
 * floats one after another, for programs that compare them. Exit: 0 done, 1 not. SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <stdlib.h>
#include "block/block.h"
#include "gguf/gguf.h"

static int decode_all(const struct bpi_gguf *g, FILE *f)
{
    for (uint64_t i = 0; i < bpi_gguf_n_tensors(g); ++i) {
        const struct bpi_gguf_tensor *t = bpi_gguf_tensor_at(g, i);
        size_t n = (size_t)(t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3]);
        if (!bpi_block_info(t->type)->can_decode || n == 0) continue;
        float *x = malloc(n * sizeof *x);
        bool ok = x != NULL && bpi_block_decode(t->type, t->data, n, x) == BP_OK &&
                  fwrite(x, sizeof *x, n, f) == n;
        free(x);
        if (!ok) {
            fprintf(stderr, "%s cannot be decoded or written\n", t->name);
            return 1;
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct bp_error err = BP_ERROR_INIT;
    struct bpi_gguf *g = NULL;
    if (argc != 3 || bpi_gguf_open(argv[1], &g, &err) != BP_OK) {
        fprintf(stderr, "usage: decode_file MODEL OUT; %s\n", err.msg);
        return 1;
    }
    FILE *f = fopen(argv[2], "wb");
    int rc = f == NULL || decode_all(g, f) != 0;
    if (f != NULL && fclose(f) != 0) rc = 1;
    bpi_gguf_close(g);
    return rc;
}
