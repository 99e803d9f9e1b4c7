/* test_file_check_nomem.c - every allocation of hashing, validating and loading a manifest through tools.h fails once:
 * one sentence, BP_E_NOMEM, nothing leaked (the sanitizer build watches). SPDX-License-Identifier: MIT */
#include "harness/alloc_fail.h"
#include "unit/engine/check_fixture.h"

#define PATH "check_nomem.gguf"

struct job {
    struct bp_file *f;
    struct bp_config *cfg;
};

static void ignore_bad(void *ctx, const struct bp_bad_blocks *b)
{
    (void)b;
    ++*(unsigned *)ctx;
}

static int32_t hash(struct job *j, struct bp_error *err)
{
    struct bp_manifest *m = NULL;
    char *text = NULL;
    size_t n;
    int32_t rc = bp_file_hash(j->f, j->cfg, NULL, &m, err);
    if (rc == BP_OK) rc = bp_manifest_text(m, &text, &n, err);
    bp_free(text);
    bp_manifest_close(m);
    return rc;
}

static int32_t validate(struct job *j, struct bp_error *err)
{
    unsigned n = 0;
    struct bp_validation v = {.h = BP_HDR(struct bp_validation, n_bytes)};
    int32_t rc = bp_file_validate(j->f, j->cfg, NULL, 100, ignore_bad, &n, &v, err);
    if (rc == BP_OK && n != 32) rc = BP_E_INTERNAL; /* ck_assert would allocate */
    if (rc == BP_E_NOMEM && n != 0) rc = BP_E_INTERNAL;
    return rc;
}

static int32_t load(struct job *j, struct bp_error *err)
{
    struct bp_manifest *m = NULL;
    (void)j;
    int32_t rc = bp_manifest_load("check_nomem.hash", &m, err);
    bp_manifest_close(m);
    return rc;
}

static void walk(int32_t (*work)(struct job *j, struct bp_error *err), bool onward,
                 uint64_t at_least)
{
    struct bp_error err = BP_ERROR_INIT;
    struct job j = {.f = file_open(PATH)};
    must(bp_config_create(&j.cfg, &err), &err);
    must(bp_config_set(j.cfg, "engine.threads=2", &err), &err);
    uint64_t n = 1;
    for (;; ++n) {
        err = (struct bp_error)BP_ERROR_INIT;
        alloc_fail_arm(n, onward);
        int32_t rc = work(&j, &err);
        if (!alloc_fail_disarm()) {
            must(rc, &err);
            break;
        }
        ck_assert_msg(rc == BP_E_NOMEM, "allocation %llu: %s: %s", (unsigned long long)n,
                      bp_status_name(rc), err.msg);
        ck_assert_uint_gt(strlen(err.msg), 10);
    }
    ck_assert_uint_gt(n, at_least);
    bp_config_destroy(j.cfg);
    bp_file_close(j.f);
}

static void setup(void)
{
    static const unsigned char nan[] = {0, 0, 0xc0, 0x7f};
    copy_file(ZOO("zoo-v3"), PATH);
    struct bp_file *f = file_open(PATH);
    struct bp_file_tensor t = tensor_of(f, "output_norm.weight");
    ck_assert_str_eq(t.type_name, "F32");
    ck_assert_uint_ge(t.n_bytes, 256);
    for (uint64_t i = 0; i < 32; ++i) overwrite(PATH, t.offset + 8 * i, nan, 4);
    struct bp_error err = BP_ERROR_INIT;
    struct bp_manifest *m = NULL;
    char *text = NULL;
    size_t n;
    must(bp_file_hash(f, NULL, NULL, &m, &err), &err);
    must(bp_manifest_text(m, &text, &n, &err), &err);
    FILE *out = fopen("check_nomem.hash", "wb");
    ck_assert_uint_eq(fwrite(text, 1, n, out), n);
    ck_assert_int_eq(fclose(out), 0);
    bp_free(text);
    bp_manifest_close(m);
    bp_file_close(f);
}

static void teardown(void)
{
    remove(PATH);
    remove("check_nomem.hash");
}

START_TEST(hashing)
{
    walk(hash, _i == 1, 8);
}
END_TEST

START_TEST(validating)
{
    walk(validate, _i == 1, 6);
}
END_TEST

START_TEST(loading)
{
    walk(load, _i == 1, 5);
}
END_TEST

static void add(TCase *tc)
{
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, hashing, 0, 2);
    tcase_add_loop_test(tc, validating, 0, 2);
    tcase_add_loop_test(tc, loading, 0, 2);
}

int main(void)
{
    return run_suite("file_check_nomem", add);
}
