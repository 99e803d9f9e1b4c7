/* test_file_noio.c - every file operation of the functions in base_file.c and base_output.c fails once: an error that names the file, no
 * descriptor left open, and of a write the old file whole and no temporary one. Signals are waited out.
 * SPDX-License-Identifier: MIT */
#include "base/base.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "harness/io_fail.h"

enum { BYTES = 70000 };
static char dir[64], content[BYTES], old[BYTES];

static void make_file(const char *path, const char *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(bytes, 1, n, f), n);
    ck_assert_int_eq(fclose(f), 0);
}

static void setup(void)
{
    (void)snprintf(dir, sizeof dir, "/tmp/bp_noio_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    ck_assert_int_eq(chdir(dir), 0);
    memset(content, 'n', BYTES);
    memset(old, 'o', BYTES);
    make_file("target", old, BYTES);
}

static void teardown(void)
{
    ck_assert_int_eq(unlink("target"), 0);
    ck_assert_int_eq(chdir("/"), 0);
    ck_assert_int_eq(rmdir(dir), 0); /* fails if anything else is left in it */
}

static int n_entries(const char *folder)
{
    int n = 0;
    DIR *d = opendir(folder);
    ck_assert_ptr_nonnull(d);
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static bool holds(const char *want)
{
    static char got[BYTES + 1];
    FILE *f = fopen("target", "rb");
    ck_assert_ptr_nonnull(f);
    size_t n = fread(got, 1, sizeof got, f);
    (void)fclose(f);
    return n == BYTES && memcmp(got, want, BYTES) == 0;
}

/* The operations under test; each closes what it opened. */
static int32_t do_read(struct bp_error *err)
{
    char *data = NULL;
    size_t n = 0;
    int32_t rc = bpi_file_read("target", BYTES, &data, &n, err);
    ck_assert((rc == BP_OK) == (data != NULL));
    if (rc == BP_OK) ck_assert(n == BYTES && memcmp(data, old, BYTES) == 0);
    bpi_free(data);
    return rc;
}

static int32_t do_map(struct bp_error *err)
{
    struct bpi_map m = {0};
    int32_t rc = bpi_map_open("target", &m, err);
    ck_assert((rc == BP_OK) == (m.data != NULL));
    if (rc == BP_OK) ck_assert(m.n_bytes == BYTES && memcmp(m.data, old, BYTES) == 0);
    bpi_map_close(&m);
    return rc;
}

static int32_t do_input(struct bp_error *err)
{
    static char got[BYTES];
    struct bpi_map m = {0};
    struct bpi_input in = {.fd = -1};
    int32_t rc = bpi_map_open("target", &m, err);
    if (rc == BP_OK) rc = bpi_input_open(&m, "target", &in, err);
    if (rc == BP_OK) rc = bpi_input_read(&in, 0, got, BYTES, err);
    if (rc == BP_OK) ck_assert_mem_eq(got, old, BYTES);
    bpi_input_close(&in);
    bpi_map_close(&m);
    return rc;
}

static int32_t do_write(struct bp_error *err)
{
    return bpi_file_write("target", content, BYTES, err);
}

struct task {
    int32_t (*run)(struct bp_error *err);
    bool writes;
    enum io_call uses[8]; /* of these at least one must be seen; IO_N_CALLS ends the list */
};
static const struct task tasks[] = {
    {do_read, false, {IO_OPEN, IO_FSTAT, IO_PREAD, IO_CLOSE, IO_N_CALLS}},
    {do_map, false, {IO_OPEN, IO_FSTAT, IO_MMAP, IO_CLOSE, IO_N_CALLS}},
    {do_input, false, {IO_OPEN, IO_FSTAT, IO_PREAD, IO_CLOSE, IO_N_CALLS}},
    {do_write, true, {IO_STAT, IO_OPEN, IO_WRITE, IO_FSYNC, IO_RENAME, IO_CLOSE, IO_N_CALLS}},
};
static const int faults[] = {EIO, ENOMEM, ENOSPC, EINTR, IO_SHORT, IO_END};

static void check_failure(const struct task *t, int how, int32_t rc, const struct bp_error *err)
{
    const char *call = io_fail_call_name(io_fail_call());
    if (how == EINTR || how == IO_SHORT) {
        ck_assert_msg(rc == BP_OK, "%s with %d: %s: %s", call, how, err->where, err->msg);
    } else if (rc != BP_OK) {
        ck_assert_msg(rc == BP_E_IO && err->code == rc && strcmp(err->where, "target") == 0 &&
                          strlen(err->msg) > 15 && strchr(err->msg, '\n') == NULL,
                      "%s with %d: %d, %s: %s", call, how, rc, err->where, err->msg);
        ck_assert_int_eq(err->native, how > 0 ? how : 0);
    } else {
        /* Nothing is lost when a file that was only read does not close, or when a path that is about to be written
         * cannot be looked at first. */
        ck_assert_msg((io_fail_call() == IO_CLOSE && !t->writes) || io_fail_call() == IO_STAT,
                      "%s with %d went unnoticed", call, how);
    }
    if (t->writes)
        ck_assert_msg(holds(rc == BP_OK ? content : old), "%s with %d: contents", call, how);
}

START_TEST(each_operation_fails)
{
    const struct task *t = &tasks[_i];
    int before = n_entries("/proc/self/fd");
    for (size_t k = 0; k < BPI_ARRAY_LEN(faults); ++k) {
        uint64_t n = 1;
        for (;; ++n) {
            struct bp_error err = BP_ERROR_INIT;
            make_file("target", old, BYTES);
            io_fail_arm(n, faults[k]);
            int32_t rc = t->run(&err);
            bool failed = io_fail_disarm();
            ck_assert_int_eq(n_entries("/proc/self/fd"), before);
            ck_assert_int_eq(n_entries("."), 1);
            if (!failed) {
                ck_assert_msg(rc == BP_OK, "%s", err.msg);
                break;
            }
            check_failure(t, faults[k], rc, &err);
        }
        for (size_t i = 0; faults[k] > 0 && t->uses[i] != IO_N_CALLS; ++i)
            ck_assert_uint_gt(io_fail_seen(t->uses[i]), 0);
        printf("task %d, fault %d: %llu operations\n", _i, faults[k], (unsigned long long)n - 1);
    }
}
END_TEST

/* A first failure must not be the last word: the same call works right afterwards. */
START_TEST(a_later_attempt_succeeds)
{
    for (uint64_t n = 1; n < 8; ++n) {
        struct bp_error err = BP_ERROR_INIT;
        make_file("target", old, BYTES);
        io_fail_arm(n, EIO);
        (void)tasks[_i].run(NULL);
        (void)io_fail_disarm();
        make_file("target", old, BYTES);
        ck_assert_msg(tasks[_i].run(&err) == BP_OK, "%s", err.msg);
        if (tasks[_i].writes) ck_assert(holds(content));
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("file_noio");
    TCase *t = tcase_create("noio");
    tcase_set_timeout(t, 120);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_loop_test(t, each_operation_fails, 0, (int)BPI_ARRAY_LEN(tasks));
    tcase_add_loop_test(t, a_later_attempt_succeeds, 0, (int)BPI_ARRAY_LEN(tasks));
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
