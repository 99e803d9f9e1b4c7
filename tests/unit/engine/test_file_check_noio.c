/* test_file_check_noio.c - every file operation of hashing and validating fails once: one sentence that names the file,
 * nothing left open. Signals and short reads change nothing at all. SPDX-License-Identifier: MIT */
#include "harness/io_fail.h"
#include "unit/engine/check_fixture.h"

#include <dirent.h>
#include <errno.h>

#define PATH BP_SOURCE_DIR "/tests/data/zoo/zoo-v3.gguf"

static struct bp_config *one_thread;

static int n_open_files(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    ck_assert_ptr_nonnull(d);
    while (readdir(d) != NULL) ++n;
    closedir(d);
    return n;
}

static void count_bad(void *ctx, const struct bp_bad_blocks *b)
{
    (void)b;
    ++*(unsigned *)ctx;
}

static int32_t hash(const struct bp_file *f, char **text, struct bp_error *err)
{
    struct bp_manifest *m = NULL;
    size_t n;
    int32_t rc = bp_file_hash(f, one_thread, NULL, &m, err);
    if (rc == BP_OK) rc = bp_manifest_text(m, text, &n, err);
    bp_manifest_close(m);
    return rc;
}

static int32_t validate(const struct bp_file *f, char **text, struct bp_error *err)
{
    unsigned n = 0;
    struct bp_validation v = {.h = BP_HDR(struct bp_validation, n_bytes)};
    (void)text;
    int32_t rc = bp_file_validate(f, one_thread, NULL, 8, count_bad, &n, &v, err);
    return rc == BP_OK && (n != 0 || v.n_bad_blocks != 0) ? BP_E_INTERNAL : rc;
}

static void walk(int32_t (*work)(const struct bp_file *f, char **text, struct bp_error *err),
                 int how)
{
    struct bp_error err = BP_ERROR_INIT;
    bool harmless = how == EINTR || how == IO_SHORT;
    struct bp_file *f = file_open(PATH);
    char *right = NULL, *text;
    must(work(f, &right, &err), &err);
    int before = n_open_files();
    uint64_t n = 1, n_failed = 0;
    for (;; ++n) {
        text = NULL;
        err = (struct bp_error)BP_ERROR_INIT;
        io_fail_arm(n, how);
        int32_t rc = work(f, &text, &err);
        bool failed = io_fail_disarm();
        ck_assert_msg(rc == BP_OK || rc == BP_E_IO, "%s: %s", bp_status_name(rc), err.msg);
        if (!failed || harmless) must(rc, &err);
        /* What a close says is of no use to a reader. */
        if (failed && !harmless && io_fail_call() != IO_CLOSE)
            ck_assert_msg(rc == BP_E_IO, "operation %llu, %s", (unsigned long long)n,
                          io_fail_call_name(io_fail_call()));
        if (rc != BP_OK) {
            ck_assert_msg(strstr(err.where, "zoo-v3.gguf") != NULL, "%s: %s", err.where, err.msg);
            n_failed++;
        } else if (right != NULL) {
            ck_assert_str_eq(text, right);
        }
        bp_free(text);
        ck_assert_int_eq(n_open_files(), before);
        if (!failed) break;
    }
    ck_assert_uint_gt(n, 30);
    ck_assert((n_failed > 30) == !harmless);
    bp_free(right);
    bp_file_close(f);
}

static const int faults[] = {EIO, EINTR, IO_SHORT, IO_END};

static void setup(void)
{
    struct bp_error err = BP_ERROR_INIT;
    must(bp_config_create(&one_thread, &err), &err);
    must(bp_config_set(one_thread, "engine.threads=1", &err), &err);
}

static void teardown(void)
{
    bp_config_destroy(one_thread);
}

START_TEST(hashing)
{
    walk(hash, faults[_i]);
}
END_TEST

START_TEST(validating)
{
    walk(validate, faults[_i]);
}
END_TEST

static void add(TCase *tc)
{
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, hashing, 0, (int)(sizeof faults / sizeof faults[0]));
    tcase_add_loop_test(tc, validating, 0, (int)(sizeof faults / sizeof faults[0]));
}

int main(void)
{
    return run_suite("file_check_noio", add);
}
