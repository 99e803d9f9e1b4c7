/* test_manifest_nomem.c - every allocation of hashing, writing and reading a manifest fails once: one sentence,
 * BP_E_NOMEM, nothing leaked (the sanitizer build watches). The hash library's own are not seen here.
 * SPDX-License-Identifier: MIT */
#include "harness/alloc_fail.h"
#include "unit/gguf/manifest_fixture.h"

static uint64_t walk(int32_t (*work)(struct bpi_gguf *g, const char *text, struct bp_error *err),
                     bool onward)
{
    struct image m = {0};
    img_small(&m);
    struct bpi_gguf *g = image_file(&m);
    struct bpi_manifest *right = hashed(g, NULL);
    char *text = text_of(right);
    uint64_t n = 1;
    for (;; ++n) {
        struct bp_error err = BP_ERROR_INIT;
        alloc_fail_arm(n, onward);
        int32_t rc = work(g, text, &err);
        if (!alloc_fail_disarm()) {
            ck_assert_msg(rc == BP_OK, "%s", err.msg);
            break;
        }
        ck_assert_msg(rc == BP_E_NOMEM, "allocation %llu: status %d", (unsigned long long)n, rc);
        ck_assert_uint_gt(strlen(err.msg), 10);
    }
    free(text);
    bpi_manifest_destroy(right);
    bpi_gguf_close(g);
    img_free(&m);
    return n - 1;
}

static int32_t make(struct bpi_gguf *g, const char *text, struct bp_error *err)
{
    struct bpi_manifest *m;
    (void)text;
    int32_t rc = bpi_manifest_make(g, NULL, NULL, NULL, &m, err);
    if ((rc == BP_OK) != (m != NULL)) rc = BP_E_INTERNAL; /* ck_assert would allocate */
    bpi_manifest_destroy(m);
    return rc;
}

static int32_t read(struct bpi_gguf *g, const char *text, struct bp_error *err)
{
    struct bpi_manifest *m;
    (void)g;
    int32_t rc = bpi_manifest_parse(text, strlen(text), "m", &m, err);
    if ((rc == BP_OK) != (m != NULL)) rc = BP_E_INTERNAL; /* ck_assert would allocate */
    bpi_manifest_destroy(m);
    return rc;
}

START_TEST(hashing)
{
    ck_assert_uint_ge(walk(make, false), 6);
    ck_assert_uint_ge(walk(make, true), 6);
}
END_TEST

START_TEST(reading)
{
    ck_assert_uint_ge(walk(read, false), 4);
    ck_assert_uint_ge(walk(read, true), 4);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("manifest_nomem");
    TCase *t = tcase_create("nomem");
    tcase_add_test(t, hashing);
    tcase_add_test(t, reading);
    suite_add_tcase(s, t);
    return img_main(s);
}
