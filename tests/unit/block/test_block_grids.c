/* test_block_grids.c - the codebooks, read back row by row through the decoders, against their known hashes.
 * SPDX-License-Identifier: MIT */
#include <check.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/half.h"
#include "block/block.h"
#include "unit/block/sha256.h"

/* Source: SHA-256 over the tables as little-endian bytes, computed from ggml's own header at the revision that block.h
 * names; `d` makes the block's whole scale 1 when its stored scale is 0. */
static const struct grid {
    uint32_t type;
    const char *hash;
    unsigned rows, width;
    float d, moved;
} grids[] = {
    {BP_GGUF_IQ2_XXS, "05826b5d3e472a3a", 256, 8, 8, 0},
    {BP_GGUF_IQ2_XS, "06e47aaca60b4dc1", 512, 8, 8, 0},
    {BP_GGUF_IQ2_S, "e1aa1473412b0552", 1024, 8, 8, 0},
    {BP_GGUF_IQ3_XXS, "46e35f5a997efdee", 256, 4, 4, 0},
    {BP_GGUF_IQ3_S, "bd1af4945a1717c6", 512, 4, 1, 0},
    {BP_GGUF_IQ1_S, "07540ffc1aeaf6ad", 2048, 8, 1, 0.125f},
    {BP_GGUF_IQ1_M, "07540ffc1aeaf6ad", 2048, 8, 1, 0.125f},
};

/* A block whose first values are row `row` with positive signs. */
static void put_row(const struct grid *g, unsigned row, unsigned char *block)
{
    const unsigned char low = (unsigned char)row, high = (unsigned char)(row >> 8);
    const uint16_t half = bpi_f32_to_f16(g->d);
    if (g->type == BP_GGUF_IQ1_M) {
        block[0] = low;
        block[32] = high;
        for (int i = 0; i < 4; ++i)
            block[49 + 2 * i] = (unsigned char)((half >> (4 * i) & 15) << 4);
        return;
    }
    memcpy(block, &half, sizeof half);
    block[2] = low;
    if (g->type == BP_GGUF_IQ2_XS) block[3] = high;
    if (g->type == BP_GGUF_IQ2_S || g->type == BP_GGUF_IQ3_S) block[66] = high;
    if (g->type == BP_GGUF_IQ1_S) block[34] = high;
}

START_TEST(hash_of_rows)
{
    const struct grid *g = &grids[_i];
    unsigned char *table = malloc((size_t)g->rows * g->width);
    ck_assert_ptr_nonnull(table);
    for (unsigned row = 0; row < g->rows; ++row) {
        unsigned char block[128] = {0};
        float x[256];
        put_row(g, row, block);
        ck_assert_int_eq(bpi_block_decode(g->type, block, 256, x), BP_OK);
        for (unsigned j = 0; j < g->width; ++j)
            table[row * g->width + j] = (unsigned char)(int)(x[j] - g->moved);
    }
    char hash[17];
    sha256_prefix(table, (size_t)g->rows * g->width, hash);
    ck_assert_str_eq(hash, g->hash);
    table[0] ^= 1; /* one wrong value would have been seen */
    sha256_prefix(table, (size_t)g->rows * g->width, hash);
    ck_assert_str_ne(hash, g->hash);
    free(table);
}
END_TEST

/* The 128 completed sign bytes, read as which of eight values came out negative. */
START_TEST(hash_of_signs)
{
    unsigned char signs[128] = {0};
    for (unsigned i = 0; i < 128; ++i) {
        unsigned char block[66] = {0};
        float x[256];
        const uint16_t one = bpi_f32_to_f16(1.0f);
        memcpy(block, &one, sizeof one);
        block[6] = (unsigned char)i;
        ck_assert_int_eq(bpi_block_decode(BP_GGUF_IQ2_XXS, block, 256, x), BP_OK);
        for (int j = 0; j < 8; ++j) signs[i] |= (unsigned char)((x[j] < 0) << j);
    }
    char hash[17];
    sha256_prefix(signs, sizeof signs, hash);
    ck_assert_str_eq(hash, "a76742a603f8beca");
}
END_TEST

START_TEST(hash_itself)
{
    char hash[17];
    sha256_prefix((const unsigned char *)"abc", 3, hash);
    ck_assert_str_eq(hash, "ba7816bf8f01cfea");
    sha256_prefix((const unsigned char *)"", 0, hash);
    ck_assert_str_eq(hash, "e3b0c44298fc1c14");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("block_grids");
    TCase *c = tcase_create("all");
    tcase_add_test(c, hash_itself);
    tcase_add_loop_test(c, hash_of_rows, 0, (int)(sizeof grids / sizeof *grids));
    tcase_add_test(c, hash_of_signs);
    suite_add_tcase(s, c);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
