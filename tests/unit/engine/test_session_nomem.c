/* test_session_nomem.c - every allocation of opening a model and a session fails once: one sentence, BP_E_NOMEM, nothing
 * leaked (the sanitizer build watches). A step allocates nothing at all. SPDX-License-Identifier: MIT */
#include "engine_fixture.h"
#include "harness/alloc_fail.h"

static const char *const settings[] = {"engine.ctx=128", "engine.batch_tokens=64",
                                       "engine.threads=1", NULL};

static int32_t open_all(struct rig *r, struct bp_error *err)
{
    BP_TRY(bp_model_open(ZOO("zoo-glm5"), r->cfg, NULL, &r->model, err));
    return bp_session_open(r->model, r->cfg, NULL, &r->s, err);
}

static void walk(bool onward)
{
    uint64_t n = 1, n_ok = 0;
    for (;; ++n) {
        struct rig r = {0};
        struct bp_error err = BP_ERROR_INIT;
        must(plain_config(&r.cfg, &err), &err);
        for (size_t i = 0; settings[i] != NULL; ++i)
            must(bp_config_set(r.cfg, settings[i], &err), &err);
        alloc_fail_arm(n, onward);
        int32_t rc = open_all(&r, &err);
        bool failed = alloc_fail_disarm();
        if (failed) {
            /* OK is legal: a line of the log that no memory was left for is dropped. */
            ck_assert_msg(rc == BP_E_NOMEM || rc == BP_OK, "allocation %llu: %s: %s",
                          (unsigned long long)n, bp_status_name(rc), err.msg);
            n_ok += rc == BP_OK;
            ck_assert(rc == BP_OK || (strlen(err.msg) > 10 && r.s == NULL));
        } else {
            ck_assert_msg(rc == BP_OK, "%s", err.msg);
        }
        rig_close(&r);
        if (!failed) break;
    }
    printf("%llu allocations, %s; without consequence: %llu\n", (unsigned long long)n - 1,
           onward ? "all later ones fail too" : "one fails", (unsigned long long)n_ok);
    ck_assert_uint_lt(n_ok, n / 4);
    ck_assert_uint_gt(n, 100);
}

START_TEST(one_fails)
{
    walk(false);
}
END_TEST

START_TEST(memory_runs_out)
{
    walk(true);
}
END_TEST

START_TEST(a_step_allocates_nothing)
{
    struct rig r = rig_open(ZOO("zoo-glm5"), settings);
    int32_t *ids = random_ids(1, 60, r.n_vocab);
    struct bp_error err = BP_ERROR_INIT;
    alloc_fail_arm(1, true);
    struct bp_step_item it = item(0, ids, 50, 1, 0);
    int32_t rc = bp_session_step(r.s, &it, 1, &err);
    it = item(0, ids + 50, 1, 1, BP_STEP_DECODE);
    if (rc == BP_OK) rc = bp_session_step(r.s, &it, 1, &err);
    ck_assert(!alloc_fail_disarm());
    must(rc, &err);
    free(ids);
    rig_close(&r);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("session_nomem");
    TCase *tc = tcase_create("nomem");
    tcase_set_timeout(tc, 300);
    tcase_add_test(tc, one_fails);
    tcase_add_test(tc, memory_runs_out);
    tcase_add_test(tc, a_step_allocates_nothing);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
