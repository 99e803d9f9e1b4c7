/* test_shrink.c - a model file that another program shortens, replaces or lengthens while it is open: one sentence from
 * every call that comes after, never SIGBUS. Each test is a process of its own, so a signal would be a failure.
 * Not here: a file that shrinks inside a call (tests/cli/test_shrink.py). SPDX-License-Identifier: MIT */
#include "unit/engine/check_fixture.h"

static void ignore_bad(void *ctx, const struct bp_bad_blocks *b)
{
    (void)ctx;
    (void)b;
}

static void expect_io(int32_t rc, const struct bp_error *err, const char *says)
{
    ck_assert_msg(rc == BP_E_IO, "status %s: %s", bp_status_name(rc), err->msg);
    ck_assert_int_eq(err->code, BP_E_IO);
    ck_assert_msg(strstr(err->msg, says) != NULL, "%s", err->msg);
}

static void refuse_reading(const char *path, const struct bp_file *f, const char *says)
{
    struct bp_error err = BP_ERROR_INIT, err2 = BP_ERROR_INIT;
    struct bp_manifest *m = NULL;
    struct bp_validation v = {.h = BP_HDR(struct bp_validation, n_bytes)};
    expect_io(bp_file_hash(f, NULL, NULL, &m, &err), &err, says);
    ck_assert_ptr_null(m);
    ck_assert_msg(strstr(err.where, path) != NULL, "where: %s", err.where);
    expect_io(bp_file_validate(f, NULL, NULL, 8, ignore_bad, NULL, &v, &err2), &err2, says);
}

START_TEST(reading_a_changed_file)
{
    const char *path = "shrink_read.gguf";
    long n = copy_file(ZOO("zoo-v3"), path);
    struct bp_file *f = file_open(path);
    ck_assert_int_eq(truncate(path, n / 2), 0);
    refuse_reading(path, f, "changed meanwhile");
    ck_assert_int_eq(truncate(path, n + 1), 0);
    refuse_reading(path, f, "changed meanwhile");
    ck_assert_int_eq(remove(path), 0);
    copy_file(ZOO("zoo-v3"), path); /* the same bytes in another file */
    refuse_reading(path, f, "replaced");
    ck_assert_int_eq(remove(path), 0);
    refuse_reading(path, f, "cannot be opened");
    bp_file_close(f);
}
END_TEST

/* Shortened in the middle of a call, after its look at the length: progress is called between two reads. */
static int32_t shorten(void *ctx, double fraction, const char *what)
{
    (void)fraction;
    (void)what;
    ck_assert_int_eq(truncate(ctx, 100000), 0);
    return 0;
}

START_TEST(shortened_between_two_reads)
{
    static char path[] = "shrink_between.gguf";
    copy_file(ZOO("zoo-glm5-512"), path);
    struct bp_file *f = file_open(path);
    struct bp_callbacks cb = {
        .h = BP_HDR(struct bp_callbacks, progress), .ctx = path, .progress = shorten};
    struct bp_error err = BP_ERROR_INIT;
    struct bp_config *one = NULL;
    struct bp_manifest *m = NULL;
    must(plain_config(&one, &err), &err);
    must(bp_config_set(one, "engine.threads=1", &err), &err);
    expect_io(bp_file_hash(f, one, &cb, &m, &err), &err, "shortened");
    ck_assert_ptr_null(m);
    bp_config_destroy(one);
    bp_file_close(f);
    remove(path);
}
END_TEST

START_TEST(opening_a_session)
{
    const char *path = "shrink_open.gguf";
    long n = copy_file(ZOO("zoo-v3"), path);
    struct rig r = {0};
    struct bp_error err = BP_ERROR_INIT;
    must(plain_config(&r.cfg, &err), &err);
    must(bp_model_open(path, r.cfg, NULL, &r.model, &err), &err);
    ck_assert_int_eq(truncate(path, n / 2), 0);
    expect_io(bp_session_open(r.model, r.cfg, NULL, &r.s, &err), &err, "bytes when it was opened");
    ck_assert_ptr_null(r.s);
    rig_close(&r);
    remove(path);
}
END_TEST

/* The step is refused, its sequence is as before; a file that is whole again is used again. */
START_TEST(stepping)
{
    const char *path = "shrink_step.gguf";
    static const char *const settings[] = {"engine.ctx=64", "engine.threads=1", NULL};
    long n = copy_file(ZOO("zoo-v3"), path);
    struct rig r = rig_open(path, settings);
    int32_t ids[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    struct bp_error err = BP_ERROR_INIT;
    prefill(&r, 0, ids, 4, 4, NULL);
    ck_assert_int_eq(truncate(path, n - 1), 0);
    struct bp_step_item it = item(0, ids + 4, 4, 1, 0);
    expect_io(bp_session_step(r.s, &it, 1, &err), &err, "bytes when it was opened");
    ck_assert_uint_eq(bp_seq_len(r.s, 0), 4);
    ck_assert_ptr_null(bp_session_logits(r.s, 0, 0));
    copy_file(ZOO("zoo-v3"), path); /* the same file, written anew */
    prefill(&r, 0, ids + 4, 4, 4, NULL);
    ck_assert_uint_eq(bp_seq_len(r.s, 0), 8);
    rig_close(&r);
    remove(path);
}
END_TEST

/* Replacing by rename, as careful programs do, disturbs nobody: the mapping keeps the old file. */
START_TEST(replaced_by_rename)
{
    const char *path = "shrink_rename.gguf";
    static const char *const settings[] = {"engine.ctx=64", "engine.threads=1", NULL};
    copy_file(ZOO("zoo-v3"), path);
    struct rig r = rig_open(path, settings);
    int32_t ids[4] = {1, 2, 3, 4};
    FILE *f = fopen("shrink_new.gguf", "wb");
    ck_assert_int_eq(fclose(f), 0);
    ck_assert_int_eq(rename("shrink_new.gguf", path), 0);
    prefill(&r, 0, ids, 4, 4, NULL);
    rig_close(&r);
    remove(path);
}
END_TEST

static void add(TCase *tc)
{
    tcase_add_test(tc, reading_a_changed_file);
    tcase_add_test(tc, shortened_between_two_reads);
    tcase_add_test(tc, opening_a_session);
    tcase_add_test(tc, stepping);
    tcase_add_test(tc, replaced_by_rename);
}

int main(void)
{
    return run_suite("shrink", add);
}
