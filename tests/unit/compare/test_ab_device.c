/* test_ab_device.c - shadow mode between the host and a device whose memory the host cannot touch: every tensor must take the
 * device's copies. Ref computes on both sides, so all results are equal bits. SPDX-License-Identifier: MIT */
#include "unit/engine/fake_device.h"
#include <math.h>

static const char *const host[] = {"engine.ctx=96", "engine.threads=1", "engine.device=cpu", NULL};
static const char *const device[] = {"engine.ctx=96", "engine.threads=1", "engine.device=cuda:0",
                                     "engine.act=f32", NULL};
static const char *const device_f32[] = {"engine.ctx=96",        "engine.threads=1",
                                         "engine.device=cuda:0", "engine.act=f32",
                                         "kv.dtype=f32",         NULL};

static struct bp_config *config(const char *const *set)
{
    struct bp_error err = BP_ERROR_INIT;
    struct bp_config *c = NULL;
    must(bp_config_create(&c, &err), &err);
    must(bp_config_add_plugin(c, dev_query, &err), &err);
    for (size_t i = 0; set[i] != NULL; ++i) must(bp_config_set(c, set[i], &err), &err);
    return c;
}

static void compare(const char *path, const char *const *a, const char *const *b, bool equal)
{
    struct bp_error err = BP_ERROR_INIT;
    struct bp_config *cfg[2] = {config(a), config(b)};
    struct bp_model *m = NULL;
    struct bp_ab *ab = NULL;
    int32_t ids[32];
    for (int i = 0; i < 32; ++i) ids[i] = (i * 37 + 11) % 250 + 1;
    must(bp_model_open(path, cfg[0], NULL, &m, &err), &err);
    struct bp_ab_params p = {.h = BP_HDR(struct bp_ab_params, cb),
                             .ids = ids,
                             .n_ids = 32,
                             .n_new = 2,
                             .max_kl = NAN,
                             .max_abs = NAN};
    p.a = (struct bp_ab_side){.h = BP_HDR(struct bp_ab_side, batch), .model = m, .config = cfg[0]};
    p.b = (struct bp_ab_side){.h = BP_HDR(struct bp_ab_side, batch), .model = m, .config = cfg[1]};
    must(bp_ab_run(&p, &ab, &err), &err);
    struct bp_ab_summary s = {.h = BP_HDR(struct bp_ab_summary, compare_bytes)};
    bp_ab_summary(ab, &s);
    ck_assert_msg(s.pass, "%s", s.text);
    ck_assert_uint_eq(s.n_pos, 34);
    ck_assert_int_eq(s.first == -1, equal);
    struct bp_ab_op op = {.h = BP_HDR(struct bp_ab_op, flops)};
    for (uint32_t i = 0; bp_ab_op(ab, i, &op) == BP_OK; ++i) {
        ck_assert_msg(op.max_abs == 0 || (!equal && strncmp(op.slot, "mla.", 4) == 0),
                      "%s.%s %s: %g", op.slot, op.op, op.tap, op.max_abs);
    }
    bp_ab_close(ab);
    bp_model_close(m);
    bp_config_destroy(cfg[0]);
    bp_config_destroy(cfg[1]);
}

static const char *const zoo[] = {ZOO("zoo-v2lite"), ZOO("zoo-glm5"), ZOO("zoo-v3")};

START_TEST(either_side_or_both)
{
    compare(zoo[_i], host, device, true);
    compare(zoo[_i], device, host, true);
    compare(zoo[_i], device, device, true);
    ck_assert_int_gt(n_copies, 0);
}
END_TEST

START_TEST(caches_are_converted_on_the_way)
{
    compare(zoo[_i], host, device_f32, false);
    compare(zoo[_i], device_f32, host, false);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ab_device");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 300);
    tcase_add_loop_test(t, either_side_or_both, 0, 3);
    tcase_add_loop_test(t, caches_are_converted_on_the_way, 0, 3);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
