/* test_ab_nomem.c - allocations of a comparison fail, with references and kept taps: nothing leaks (the sanitizer build
 * watches), and what is not told as missing memory is the whole answer. Of the thousands of allocations every few are
 * tried, from a printed seed on (BP_SEED). SPDX-License-Identifier: MIT */
#include "unit/engine/engine_fixture.h"
#include "backplane/tools.h"
#include "harness/alloc_fail.h"
#include <math.h>
#include <time.h>

enum { STRIDE = 5 };

static uint64_t seed(void)
{
    const char *set = getenv("BP_SEED");
    const uint64_t s = set != NULL ? strtoull(set, NULL, 10) : (uint64_t)time(NULL);
    printf("BP_SEED=%llu\n", (unsigned long long)s);
    return s;
}

static void walk(uint32_t mode)
{
    struct bp_error err = BP_ERROR_INIT;
    struct bp_config *cfg[2] = {NULL, NULL};
    struct bp_model *m = NULL;
    int32_t ids[12];
    uint64_t n = 1 + seed() % STRIDE, n_told = 0;
    for (int i = 0; i < 12; ++i) ids[i] = i * 11 + 1;
    for (int i = 0; i < 2; ++i) {
        must(plain_config(&cfg[i], &err), &err);
        must(bp_config_set(cfg[i], "engine.ctx=32", &err), &err);
        must(bp_config_set(cfg[i], "engine.threads=1", &err), &err);
        must(bp_config_set(cfg[i], i == 0 ? "kv.dtype=f32" : "kv.dtype=bf16", &err), &err);
    }
    must(bp_model_open(ZOO("zoo-glm5"), cfg[0], NULL, &m, &err), &err);
    struct bp_ab_params p = {.h = BP_HDR(struct bp_ab_params, cb),
                             .ids = ids,
                             .n_ids = 12,
                             .n_new = 2,
                             .mode = mode,
                             .max_kl = NAN,
                             .max_abs = NAN,
                             .dump = "blk.*.out,blk.2.moe.ids"};
    p.a = (struct bp_ab_side){.h = BP_HDR(struct bp_ab_side, batch), .model = m, .config = cfg[0]};
    p.b = (struct bp_ab_side){.h = BP_HDR(struct bp_ab_side, batch), .model = m, .config = cfg[1]};
    for (;; n += STRIDE) {
        struct bp_ab *ab = NULL;
        err = (struct bp_error)BP_ERROR_INIT;
        alloc_fail_arm(n, false);
        const int32_t rc = bp_ab_run(&p, &ab, &err);
        const bool failed = alloc_fail_disarm();
        ck_assert_msg(rc == BP_OK || (failed && rc == BP_E_NOMEM), "allocation %llu: %s: %s",
                      (unsigned long long)n, bp_status_name(rc), err.msg);
        ck_assert((rc == BP_OK) == (ab != NULL));
        n_told += rc == BP_E_NOMEM;
        bp_ab_close(ab);
        if (!failed) break;
    }
    ck_assert_uint_gt(n / STRIDE, 10);
    ck_assert_uint_gt(n_told, n / STRIDE / 2);
    bp_model_close(m);
    bp_config_destroy(cfg[0]);
    bp_config_destroy(cfg[1]);
}

START_TEST(memory_runs_out)
{
    walk(_i == 0 ? BP_AB_SHADOW : BP_AB_FREE);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ab_nomem");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 500);
    tcase_add_loop_test(t, memory_runs_out, 0, 2);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
