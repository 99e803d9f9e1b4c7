/* config_test.h - helpers of the tests of core/config. Include after <check.h>. SPDX-License-Identifier:
 * MIT */
#ifndef BP_CONFIG_TEST_H
#define BP_CONFIG_TEST_H

#include <stdlib.h>
#include <string.h>
#include "config/config.h"

static inline struct bpi_config *new_config(void)
{
    struct bpi_config *c = NULL;
    struct bp_error err = BP_ERROR_INIT;
    ck_assert_msg(bpi_config_create(&c, &err) == BP_OK, "%s", err.msg);
    ck_assert_ptr_nonnull(c);
    return c;
}

static inline void load_ok(struct bpi_config *c, const char *text)
{
    struct bp_error err = BP_ERROR_INIT;
    int32_t rc = bpi_config_load_text(c, text, strlen(text), "t.ini", &err);
    ck_assert_msg(rc == BP_OK, "refused: %s: %s\n%s", err.where, err.msg, text);
    ck_assert_int_eq(err.code, BP_OK);
}

static inline void set_ok(struct bpi_config *c, const char *assignment)
{
    struct bp_error err = BP_ERROR_INIT;
    int32_t rc = bpi_config_set(c, assignment, &err);
    ck_assert_msg(rc == BP_OK, "refused: %s: %s", assignment, err.msg);
}

/* One sentence: not empty, no line break, nothing cut off at its end, the room's domain. */
static inline void is_one_sentence(const struct bp_error *err)
{
    size_t n = strlen(err->msg);
    ck_assert_uint_gt(n, 10);
    ck_assert_uint_lt(n, sizeof err->msg - 1);
    ck_assert_ptr_null(strchr(err->msg, '\n'));
    ck_assert_str_eq(err->domain, "config");
    ck_assert_uint_gt(strlen(err->where), 0);
}

/* The load fails with this code, in this place, with this text in its message; nothing changes. */
static inline void load_fails(struct bpi_config *c, const char *text, size_t n, int32_t code,
                              const char *where, const char *msg)
{
    struct bp_error err = BP_ERROR_INIT;
    int32_t rc = bpi_config_load_text(c, text, n, "t.ini", &err);
    ck_assert_msg(rc == code, "got %d (%s), wanted %d for:\n%.200s", rc, err.msg, code, text);
    ck_assert_int_eq(err.code, code);
    is_one_sentence(&err);
    ck_assert_msg(strcmp(err.where, where) == 0, "where is %s, wanted %s", err.where, where);
    ck_assert_msg(strstr(err.msg, msg) != NULL, "message is: %s\nwanted: %s", err.msg, msg);
}

static inline void set_fails(struct bpi_config *c, const char *assignment, int32_t code,
                             const char *msg)
{
    struct bp_error err = BP_ERROR_INIT;
    int32_t rc = bpi_config_set(c, assignment, &err);
    ck_assert_msg(rc == code, "got %d (%s), wanted %d for %.200s", rc, err.msg, code, assignment);
    ck_assert_int_eq(err.code, code);
    is_one_sentence(&err);
    ck_assert_str_eq(err.where, "-s");
    ck_assert_msg(strstr(err.msg, msg) != NULL, "message is: %s\nwanted: %s", err.msg, msg);
}

struct listing {
    struct bpi_buf text;
    size_t n, n_table, n_not_default;
};

static inline void list_one(void *ctx, const struct bpi_config_key *key, const char *section,
                            const char *name, const char *value, const char *origin)
{
    struct listing *l = ctx;
    bpi_buf_printf(&l->text, "%s.%s=%s (%s)\n", section, name, value, origin);
    l->n++;
    l->n_table += key != NULL;
    l->n_not_default += key == NULL || strcmp(value, key->dflt) != 0;
}

/* Every value with its origin as one text; free with bpi_buf_free(&l.text). */
static inline struct listing list_all(const struct bpi_config *c)
{
    struct listing l = {0};
    bpi_config_each(c, list_one, &l);
    ck_assert(!l.text.failed);
    return l;
}

/* Runs a suite in the way all tests here do. */
static inline int run_suite(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

#endif
