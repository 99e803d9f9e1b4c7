/* test_block_python.c - random blocks of every decoded type, and encoded values, against the `gguf` package for Python.
 * Skipped (77) where the package is not installed. SPDX-License-Identifier: MIT */
#include <check.h>
#include <string.h>
#include "base/rng.h"
#include "block/block.h"
#include "unit/block/block_data.h"
#include "unit/gguf/python_check.h"

#define SEED UINT64_C(4711)
enum { BLOCKS = 500 };

static void save(const char *path, const void *p, size_t n)
{
    ck_assert_int_eq(bpi_file_write(path, p, n, NULL), BP_OK);
}

START_TEST(random_blocks)
{
    const struct bpi_block_info *info = bpi_block_info((uint32_t)_i);
    if (info == NULL || !info->can_decode) return;
    const size_t n_bytes = (size_t)BLOCKS * info->block_bytes,
                 n = (size_t)BLOCKS * info->block_elems;
    unsigned char *src = malloc(n_bytes);
    float *x = malloc(n * sizeof *x);
    struct bpi_rng rng;
    bpi_rng_seed(&rng, SEED + (uint64_t)_i);
    printf("%s: seed %llu\n", info->name, (unsigned long long)(SEED + (uint64_t)_i));
    ck_assert(src != NULL && x != NULL);
    for (size_t i = 0; i < n_bytes; ++i) src[i] = (unsigned char)bpi_rng_u64(&rng);
    ck_assert_int_eq(bpi_block_decode(info->type, src, n, x), BP_OK);
    save("blocks.bin", src, n_bytes);
    save("floats.bin", x, n * sizeof *x);
    int rc = python_check("decode %u blocks.bin floats.bin", info->type);
    /* The package's releases so far know no one- and two-bit types; whatever else it lacks would be a surprise. */
    bool may_lack = info->type == BP_GGUF_Q1_0 || info->type == BP_GGUF_Q2_0;
    ck_assert_msg(rc == 0 || (rc == 77 && may_lack), "%s: exit status %d", info->name, rc);
    free(x);
    free(src);
}
END_TEST

/* The types that the package can encode. Values of several sizes in one file, the smallest with halves that still have
 * all their bits. */
START_TEST(encoded_values)
{
    static const uint32_t types[] = {BP_GGUF_F32,  BP_GGUF_F16,  BP_GGUF_BF16, BP_GGUF_Q4_0,
                                     BP_GGUF_Q4_1, BP_GGUF_Q5_0, BP_GGUF_Q5_1, BP_GGUF_Q8_0};
    enum { N = 65536 };
    static float x[N];
    static unsigned char bytes[4 * N];
    const uint32_t type = types[_i / 3];
    uint64_t n_bytes;
    const double sizes[3] = {0.01, 1.0, 300.0};
    fill_values(x, N, _i % 2 == 0 ? FILL_GAUSS : FILL_HEAVY, sizes[_i % 3], SEED + (uint64_t)_i);
    printf("%s: seed %llu\n", bpi_block_info(type)->name,
           (unsigned long long)(SEED + (uint64_t)_i));
    ck_assert(bpi_block_bytes(type, N, &n_bytes));
    ck_assert_int_eq(bpi_block_encode(type, x, N, NULL, bytes), BP_OK);
    save("floats.bin", x, sizeof x);
    save("blocks.bin", bytes, n_bytes);
    ck_assert_int_eq(python_check("encode %u floats.bin blocks.bin", type), 0);
}
END_TEST

/* The checked-in codebooks are what the generator writes. */
START_TEST(codebooks_are_generated)
{
    fflush(stdout);
    int status = system("python3 '" BP_SOURCE_DIR "/scripts/gen_codebooks.py' > block_grids.new && "
                        "cmp block_grids.new '" BP_SOURCE_DIR "/core/block/block_grids.inc'");
    ck_assert_int_eq(status, 0);
}
END_TEST

int main(void)
{
    if (python_check("write probe_block.gguf") == 77) return 77;
    Suite *s = suite_create("block_python");
    TCase *c = tcase_create("all");
    tcase_set_timeout(c, 120);
    tcase_add_loop_test(c, random_blocks, 0, BP_GGUF_COUNT);
    tcase_add_loop_test(c, encoded_values, 0, 8 * 3);
    tcase_add_test(c, codebooks_are_generated);
    suite_add_tcase(s, c);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
