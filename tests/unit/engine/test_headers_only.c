/* test_headers_only.c - a model opened for its headers answers questions about itself and its text, and runs nothing.
 * SPDX-License-Identifier: MIT */
#include "engine_fixture.h"
#include "backplane/tools.h"

START_TEST(looks_but_does_not_run)
{
    struct bp_error err = BP_ERROR_INIT;
    struct bp_config *cfg = NULL;
    struct bp_model *m = NULL;
    struct bp_session *s = NULL;
    int32_t *ids = NULL;
    size_t n = 0;
    must(plain_config(&cfg, &err), &err);
    must(bp_model_open_headers(ZOO("zoo-v3"), cfg, NULL, &m, &err), &err);
    ck_assert_str_eq(bp_model_arch(m), "deepseek2");
    ck_assert_uint_eq(bp_model_n_vocab(m), 264);
    ck_assert_uint_eq(bp_model_n_layer(m), 4);
    must(bp_tokenize(m, "abc", 3, 0, &ids, &n, &err), &err);
    ck_assert_uint_eq(n, 3);
    bp_free(ids);
    ck_assert_int_eq(bp_session_open(m, cfg, NULL, &s, &err), BP_E_ARG);
    ck_assert_ptr_null(s);
    ck_assert_msg(strstr(err.msg, "headers only") != NULL, "%s", err.msg);
    bp_model_close(m);
    /* Without a config as well, and a file that is none is refused as ever. */
    err = (struct bp_error)BP_ERROR_INIT;
    must(bp_model_open_headers(ZOO("zoo-v32"), NULL, NULL, &m, &err), &err);
    bp_model_close(m);
    ck_assert_int_eq(bp_model_open_headers(BP_SOURCE_DIR "/README.md", cfg, NULL, &m, &err),
                     BP_E_FORMAT);
    bp_config_destroy(cfg);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("headers_only");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, looks_but_does_not_run);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
