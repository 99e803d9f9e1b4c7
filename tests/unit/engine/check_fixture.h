/* check_fixture.h - files to hash, damage and shorten, for the tests of bp_file_hash and its like: a copy of a zoo
 * model in the working folder, named after the test. SPDX-License-Identifier: MIT */
#ifndef CHECK_FIXTURE_H
#define CHECK_FIXTURE_H

#include "backplane/tools.h"
#include "unit/engine/engine_fixture.h"
#include <unistd.h>

static inline long copy_file(const char *from, const char *to)
{
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    ck_assert(in != NULL && out != NULL);
    static char buf[1 << 16];
    size_t n;
    long sum = 0;
    while ((n = fread(buf, 1, sizeof buf, in)) > 0) {
        ck_assert_uint_eq(fwrite(buf, 1, n, out), n);
        sum += (long)n;
    }
    fclose(in);
    ck_assert_int_eq(fclose(out), 0);
    return sum;
}

static inline void overwrite(const char *path, uint64_t at, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "r+b");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(fseek(f, (long)at, SEEK_SET), 0);
    ck_assert_uint_eq(fwrite(bytes, 1, n, f), n);
    ck_assert_int_eq(fclose(f), 0);
}

static inline struct bp_file *file_open(const char *path)
{
    struct bp_error err = BP_ERROR_INIT;
    struct bp_file *f = NULL;
    must(bp_file_open(path, &f, &err), &err);
    return f;
}

static inline struct bp_file_tensor tensor_of(const struct bp_file *f, const char *name)
{
    struct bp_file_tensor t = {.h = BP_HDR(struct bp_file_tensor, reserved)};
    ck_assert_int_eq(bp_file_find(f, name, &t), BP_OK);
    return t;
}

static inline int run_suite(const char *name, void (*add)(TCase *tc))
{
    Suite *suite = suite_create(name);
    TCase *tc = tcase_create(name);
    tcase_set_timeout(tc, 120);
    add(tc);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}

#endif
