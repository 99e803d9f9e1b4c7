/* test_block_python.c - random blocks of every decoded type against the `gguf` package for Python.
 * Skipped (77) where the package is not installed. SPDX-License-Identifier: MIT */
#include <check.h>
#include <string.h>
#include "base/rng.h"
#include "block/block.h"
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

int main(void)
{
    if (python_check("write probe_block.gguf") == 77) return 77;
    Suite *s = suite_create("block_python");
    TCase *c = tcase_create("all");
    tcase_set_timeout(c, 120);
    tcase_add_loop_test(c, random_blocks, 0, BP_GGUF_COUNT);
    suite_add_tcase(s, c);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
