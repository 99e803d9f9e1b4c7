/* test_explain_nomem.c - every allocation of explaining fails once, of a choice that stands and of one that does not:
 * nothing leaks (the sanitizer build watches), and what is handed out can be read. SPDX-License-Identifier: MIT */
#include "fake_plugins.h"
#include "harness/alloc_fail.h"

/* Reads all there is. */
static uint32_t read_all(const struct bp_decisions *d)
{
    struct bp_decision r = {.h = BP_HDR(struct bp_decision, weight_bytes)};
    struct bp_decision_candidate c = {.h = BP_HDR(struct bp_decision_candidate, cost_us)};
    struct bp_decision_reason why = {.h = BP_HDR(struct bp_decision_reason, want_hi_name)};
    uint32_t n = 0;
    for (uint32_t i = 0; bp_decision(d, i, &r) == BP_OK; ++i) {
        n += (uint32_t)(strlen(r.slot) + strlen(r.what) + strlen(r.wrappers));
        for (uint32_t j = 0; bp_decision_candidate(d, i, j, &c) == BP_OK; ++j) {
            n += (uint32_t)(strlen(c.name) + strlen(c.version) + strlen(c.file) + strlen(c.mend));
            for (uint32_t k = 0; bp_decision_reason(d, i, j, k, &why) == BP_OK; ++k)
                n += (uint32_t)(strlen(why.name) + strlen(why.field) + strlen(why.text));
        }
        ck_assert_uint_eq(c.h.size, BP_END(struct bp_decision_candidate, cost_us));
    }
    return n;
}

static void walk(const char *const *settings, int32_t want, bool onward)
{
    struct bp_error err = BP_ERROR_INIT;
    struct bp_config *cfg = fake_config(settings);
    struct bp_model *m;
    uint64_t n = 1, n_same = 0;
    fakes[0].only_dtype = BP_DT_F16;
    must(bp_model_open_headers(ZOO("zoo-v32"), cfg, NULL, &m, &err), &err);
    for (;; ++n) {
        struct bp_decisions *d = NULL;
        err = (struct bp_error)BP_ERROR_INIT;
        alloc_fail_arm(n, onward);
        int32_t rc = bp_explain(m, cfg, NULL, &d, &err);
        bool failed = alloc_fail_disarm();
        if (d != NULL) (void)read_all(d);
        if (failed) {
            /* What only goes into a sentence may be dropped. */
            ck_assert_msg(rc == BP_E_NOMEM || rc == want, "allocation %llu: %s: %s",
                          (unsigned long long)n, bp_status_name(rc), err.msg);
            ck_assert(rc == BP_OK || strlen(err.msg) > 10);
            n_same += rc == want;
        } else {
            ck_assert_int_eq(rc, want);
            ck_assert_uint_gt(read_all(d), 50);
        }
        bp_decisions_close(d);
        if (!failed) break;
    }
    printf("%llu allocations, %s; without consequence: %llu\n", (unsigned long long)n - 1,
           onward ? "all later ones fail too" : "one fails", (unsigned long long)n_same);
    ck_assert_uint_lt(n_same, n / 2);
    ck_assert_uint_gt(n, 20);
    bp_model_close(m);
    bp_config_destroy(cfg);
}

START_TEST(stands)
{
    /* bf16 is passed over, so that the sentence about it is made as well. */
    const char *const set[] = {"engine.ctx=64", "engine.threads=1", "slots.mla.decode=fake0", NULL};
    walk(set, BP_OK, _i != 0);
}
END_TEST

START_TEST(fails)
{
    const char *const set[] = {"engine.ctx=64", "engine.threads=1", "slots.mla.decode=fake0",
                               "kv.dtype=bf16", NULL};
    walk(set, BP_E_CONFIG, _i != 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("explain_nomem");
    TCase *tc = tcase_create("nomem");
    tcase_set_timeout(tc, 300);
    tcase_add_loop_test(tc, stands, 0, 2);
    tcase_add_loop_test(tc, fails, 0, 2);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
