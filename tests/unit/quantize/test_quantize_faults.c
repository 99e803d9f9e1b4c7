/* test_quantize_faults.c - places that cannot be written, sources that change, stopping: one sentence, the old file as it
 * was, nothing left behind. SPDX-License-Identifier: MIT */
#include "unit/quantize/quantize_fixture.h"

#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

static const struct src_tensor small[] = {
    {"blk.0.ffn_up.weight", BP_GGUF_BF16, 2, {256, 400}},
    {"blk.0.ffn_down.weight", BP_GGUF_BF16, 2, {256, 400}},
    {NULL, 0, 0, {0}},
};

static struct bpi_gguf *g;
static struct bpi_quantize_plan plan;
static struct bpi_quantize_job job;
static struct bp_error err;

static void begin(void)
{
    folder_begin();
    g = make_source(in_folder("in.gguf"), small, 7);
    plan_for(g, "Q4_K", &plan);
    job = (struct bpi_quantize_job){0};
    err = (struct bp_error)BP_ERROR_INIT;
}

static void end(void)
{
    bpi_quantize_plan_free(&plan);
    bpi_gguf_close(g);
    folder_end();
}

static void refused(const char *path, int32_t status, const char *says)
{
    err = (struct bp_error)BP_ERROR_INIT;
    int32_t rc = bpi_quantize_write(&plan, path, &job, &err);
    ck_assert_msg(rc == status, "%s: %d, %s", path, rc, err.msg);
    ck_assert_msg(strstr(err.msg, says) != NULL, "'%s' lacks '%s'", err.msg, says);
    ck_assert_int_eq(bpi_quantize_write(&plan, path, &job, NULL), status);
}

static void put_old(const char *path)
{
    ck_assert_int_eq(bpi_file_write(path, "old", 3, &err), BP_OK);
}

static void expect_old(const char *path)
{
    char *text = NULL;
    size_t n = 0;
    ck_assert_int_eq(bpi_file_read(path, 100, &text, &n, &err), BP_OK);
    ck_assert(n == 3 && memcmp(text, "old", 3) == 0);
    bpi_free(text);
}

START_TEST(the_source_itself)
{
    ck_assert_int_eq(link(in_folder("in.gguf"), in_folder("hard.gguf")), 0);
    ck_assert_int_eq(symlink("in.gguf", in_folder("soft.gguf")), 0);
    refused(in_folder("in.gguf"), BP_E_ARG, "a name of its own");
    refused(in_folder("hard.gguf"), BP_E_ARG, "a name of its own");
    refused(in_folder("soft.gguf"), BP_E_ARG, "a name of its own");
    char around[200];
    snprintf(around, sizeof around, "%s/../%s/in.gguf", folder, folder);
    refused(around, BP_E_ARG, "a name of its own");
    ck_assert_uint_eq(folder_files(false), 3);
}
END_TEST

START_TEST(links)
{
    put_old(in_folder("other"));
    ck_assert_int_eq(symlink("other", in_folder("soft.gguf")), 0);
    ck_assert_int_eq(symlink("nowhere", in_folder("dangling.gguf")), 0);
    refused(in_folder("soft.gguf"), BP_E_ARG, "symbolic link");
    refused(in_folder("dangling.gguf"), BP_E_ARG, "symbolic link");
    expect_old(in_folder("other"));
}
END_TEST

START_TEST(replacing)
{
    struct bpi_gguf *out = NULL;
    put_old(in_folder("out.gguf"));
    job.no_replace = true;
    refused(in_folder("out.gguf"), BP_E_ARG, "exists already");
    expect_old(in_folder("out.gguf"));
    job.no_replace = false;
    ck_assert_msg(bpi_quantize_write(&plan, in_folder("out.gguf"), &job, &err) == BP_OK, "%s",
                  err.msg);
    ck_assert_int_eq(bpi_gguf_open(in_folder("out.gguf"), &out, &err), BP_OK);
    bpi_gguf_close(out);
    job.no_replace = true; /* nothing is there */
    ck_assert_int_eq(bpi_quantize_write(&plan, in_folder("new.gguf"), &job, &err), BP_OK);
    ck_assert_uint_eq(folder_files(false), 3);
}
END_TEST

START_TEST(places_that_refuse)
{
    ck_assert_int_eq(mkdir(in_folder("sub"), 0700), 0);
    ck_assert_int_eq(mkfifo(in_folder("pipe"), 0600), 0);
    refused(in_folder("sub"), BP_E_IO, "directory");
    refused(in_folder("pipe"), BP_E_IO, "pipe");
    refused(in_folder("no/such/out.gguf"), BP_E_IO, "No such file");
    if (access("/dev/full", F_OK) == 0) refused("/dev/full", BP_E_IO, "device");
    ck_assert_int_eq(chmod(in_folder("sub"), 0500), 0);
    if (access(in_folder("sub"), W_OK) != 0) /* root may write everywhere */
        refused(in_folder("sub/out.gguf"), BP_E_IO, "Permission denied");
    ck_assert_uint_eq(folder_files(false), 3);
}
END_TEST

/* What a full disk does as well: there is no room for the whole file, and writing ends in the middle. The place where a
 * write fails for want of room is the limit itself; a header that fits goes before it. */
START_TEST(no_room)
{
    struct rlimit limit = {plan.file_bytes - 1, RLIM_INFINITY};
    put_old(in_folder("out.gguf"));
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    refused(in_folder("out.gguf"), BP_E_IO, "File too large");
    ck_assert_uint_eq(folder_files(false), 2);
    limit.rlim_cur = plan.file_bytes;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    expect_old(in_folder("out.gguf"));
    err = (struct bp_error)BP_ERROR_INIT;
    ck_assert_msg(bpi_quantize_write(&plan, in_folder("out.gguf"), &job, &err) == BP_OK, "%s",
                  err.msg);
}
END_TEST

/* ---- stopping and changing sources ---- */

struct watcher {
    int calls, stop_at;
    double last;
    bool cut; /* the source, at the first call */
};

static int32_t watch(void *ctx, double fraction, const char *tensor)
{
    struct watcher *w = ctx;
    ck_assert(fraction >= w->last && fraction <= 1.0);
    ck_assert(strncmp(tensor, "blk.0.ffn_", 10) == 0);
    w->last = fraction;
    if (w->cut) ck_assert_int_eq(truncate(in_folder("in.gguf"), 2000), 0);
    return ++w->calls == w->stop_at;
}

START_TEST(stopped)
{
    for (int stop_at = 1; stop_at <= 3; ++stop_at) {
        struct watcher w = {.stop_at = stop_at};
        job.progress = watch;
        job.progress_ctx = &w;
        err = (struct bp_error)BP_ERROR_INIT;
        int32_t rc = bpi_quantize_write(&plan, in_folder("out.gguf"), &job, &err);
        ck_assert_int_eq(rc, stop_at <= 2 ? BP_E_ABORTED : BP_OK);
        ck_assert_int_eq(w.calls, stop_at <= 2 ? stop_at : 2);
        ck_assert_uint_eq(folder_files(false), stop_at <= 2 ? 1 : 2);
        if (rc != BP_OK) ck_assert_ptr_nonnull(strstr(err.msg, "nothing was written"));
    }
}
END_TEST

START_TEST(source_is_shortened)
{
    struct watcher w = {.cut = true};
    job.progress = watch;
    job.progress_ctx = &w;
    ck_assert_int_eq(bpi_quantize_write(&plan, in_folder("out.gguf"), &job, &err), BP_E_IO);
    ck_assert_uint_gt(strlen(err.msg), 20);
    ck_assert_uint_eq(folder_files(false), 1);
}
END_TEST

START_TEST(source_is_gone)
{
    ck_assert_int_eq(unlink(in_folder("in.gguf")), 0);
    refused(in_folder("out.gguf"), BP_E_IO, "No such file");
    ck_assert_uint_eq(folder_files(false), 0);
}
END_TEST

/* A temporary file of a process of this number is not written through. */
START_TEST(temporary_name_is_taken)
{
    char tmp[64];
    snprintf(tmp, sizeof tmp, "out.gguf.tmp.%ld", (long)getpid());
    put_old(in_folder(tmp));
    refused(in_folder("out.gguf"), BP_E_IO, "interrupted write");
    expect_old(in_folder(tmp));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("quantize_faults");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, begin, end);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, the_source_itself);
    tcase_add_test(tc, links);
    tcase_add_test(tc, replacing);
    tcase_add_test(tc, places_that_refuse);
    tcase_add_test(tc, no_room);
    tcase_add_test(tc, stopped);
    tcase_add_test(tc, source_is_shortened);
    tcase_add_test(tc, source_is_gone);
    tcase_add_test(tc, temporary_name_is_taken);
    suite_add_tcase(s, tc);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
