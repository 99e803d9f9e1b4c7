/* test_config_nomem.c - every allocation of create, load and set fails once: BP_E_NOMEM, one sentence,
 * values as before, nothing leaked (the sanitizer build watches). SPDX-License-Identifier: MIT */
#include <check.h>
#include <stdio.h>
#include <unistd.h>
#include "harness/alloc_fail.h"
#include "unit/config/config_test.h"

START_TEST(create_fails)
{
    struct bpi_config *c = NULL;
    struct bp_error err = BP_ERROR_INIT;
    alloc_fail_arm(1, false);
    int32_t rc = bpi_config_create(&c, &err);
    ck_assert(alloc_fail_disarm());
    ck_assert_int_eq(rc, BP_E_NOMEM);
    ck_assert_int_eq(err.code, BP_E_NOMEM);
    ck_assert_ptr_null(c);
}
END_TEST

static int32_t load_and_set(struct bpi_config *c, const char *path, struct bp_error *err)
{
    BP_TRY(bpi_config_load(c, path, err));
    BP_TRY(bpi_config_load_text(c, "[kv]\nblock=32\n", 14, "second.ini", err));
    return bpi_config_set(c, "slots.mla.decode@layers=0-2=ref", err);
}

/* `onward`: from the n-th on nothing is given out, as when memory has really run out. */
static void walk(const char *path, bool onward)
{
    uint64_t n = 1;
    for (;; ++n) {
        struct bpi_config *c = new_config();
        struct bp_error err = BP_ERROR_INIT;
        alloc_fail_arm(n, onward);
        int32_t rc = load_and_set(c, path, &err);
        bool failed = alloc_fail_disarm();
        if (!failed) {
            ck_assert_int_eq(rc, BP_OK);
            ck_assert_str_eq(bpi_config_slot(c, "mla.decode", 1), "ref");
            bpi_config_destroy(c);
            break;
        }
        ck_assert_msg(rc == BP_E_NOMEM, "allocation %llu: status %d, %s", (unsigned long long)n, rc,
                      err.msg);
        ck_assert_int_eq(err.code, BP_E_NOMEM);
        ck_assert_uint_gt(strlen(err.msg), 10);
        /* The config is whole: a load that failed left nothing, and the same work now succeeds. */
        ck_assert_str_eq(bpi_config_slot(c, "mla.decode", 1), "auto");
        ck_assert_int_eq(load_and_set(c, path, &err), BP_OK);
        ck_assert_int_eq(bpi_config_int(c, "kv", "block"), 32);
        bpi_config_destroy(c);
    }
    /* The file sets 60 keys in blocks of their own, and the list of them grows; so the walk was a long one. */
    ck_assert_uint_gt(n, 60);
}

START_TEST(load_and_set_fail)
{
    char path[] = "/tmp/bp-config-XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    FILE *f = fdopen(fd, "w");
    ck_assert_ptr_nonnull(f);
    fputs("[plugin.x]\n", f);
    for (int i = 0; i < 60; ++i) fprintf(f, "key%d = value %d\n", i, i);
    fclose(f);
    walk(path, false);
    walk(path, true);
    unlink(path);
}
END_TEST

START_TEST(print_default_fails)
{
    uint64_t n = 1;
    for (;; ++n) {
        struct bpi_buf b = {0};
        alloc_fail_arm(n, false);
        bpi_config_print_default(&b);
        bool failed = alloc_fail_disarm();
        ck_assert_int_eq(b.failed, failed);
        bpi_buf_free(&b);
        if (!failed) break;
    }
    ck_assert_uint_gt(n, 2);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("config_nomem");
    TCase *tc = tcase_create("nomem");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, create_fails);
    tcase_add_test(tc, load_and_set_fail);
    tcase_add_test(tc, print_default_fails);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
