/* test_carry.c - ref, which computes on the host, serves a rank whose device is another. The device is a fake whose memory
 * the host cannot touch (no access rights) but through its copies, so that a pointer which was not carried is a crash.
 * SPDX-License-Identifier: MIT */
#include "fake_device.h"
#include "fake_plugins.h"

/* ---- the same numbers ---- */

static const char *const on_cpu[] = {"engine.ctx=96",
                                     "engine.batch_tokens=32",
                                     "engine.slab=64",
                                     "engine.threads=1",
                                     "engine.max_seqs=2",
                                     "engine.device=cpu",
                                     NULL};
static const char *const on_device[] = {
    "engine.ctx=96",     "engine.batch_tokens=32", "engine.slab=64", "engine.threads=1",
    "engine.max_seqs=2", "engine.device=cuda:0",   "engine.act=f32", NULL};

static void count_tap(void *ctx, const struct bp_tap_event *e)
{
    const float *v = e->data->data; /* readable by the host, or this crashes */
    ck_assert(v[0] - v[0] == 0.0f);
    ++*(int *)ctx;
}

/* A prompt over a slab's edge in two chunks, single tokens, a shared beginning with a copied block, two sequences. */
static void run_all(struct bp_session *s, const struct bp_model *m, float *out)
{
    struct bp_error err = BP_ERROR_INIT;
    const uint32_t n_vocab = bp_model_n_vocab(m);
    int32_t *ids = random_ids(11, 80, n_vocab);
    int n_taps = 0;
    for (uint32_t at = 0; at < 70; at += 30) {
        struct bp_step_item it = item(0, ids + at, at + 30 > 70 ? 70 - at : 30, 1, 0);
        must(bp_session_step(s, &it, 1, &err), &err);
    }
    must(bp_session_tap(s, "blk.1.attn.resid,output_norm", count_tap, &n_taps, &err), &err);
    for (uint32_t i = 70; i < 74; ++i) {
        struct bp_step_item two[2] = {item(0, ids + i, 1, 1, BP_STEP_DECODE),
                                      item(1, ids + i - 70, 2, 1, 0)};
        must(bp_session_step(s, two, 2, &err), &err);
        memcpy(out, bp_session_logits(s, 0, 0), n_vocab * sizeof(float));
        memcpy(out + n_vocab, bp_session_logits(s, 1, 0), n_vocab * sizeof(float));
        out += 2 * (size_t)n_vocab;
    }
    ck_assert_int_eq(n_taps, 8);
    free(ids);
}

static void compare(const char *path, const char *const *device_settings)
{
    float *logits[2];
    for (int k = 0; k < 2; ++k) {
        struct bp_error err = BP_ERROR_INIT;
        struct bp_config *cfg = fake_config(k == 0 ? on_cpu : device_settings);
        struct bp_model *m;
        struct bp_session *s;
        must(bp_config_add_plugin(cfg, dev_query, &err), &err);
        must(bp_model_open(path, cfg, NULL, &m, &err), &err);
        must(bp_session_open(m, cfg, NULL, &s, &err), &err);
        logits[k] = calloc(8 * (size_t)bp_model_n_vocab(m), sizeof(float));
        run_all(s, m, logits[k]);
        struct bp_decision r = {.h = BP_HDR(struct bp_decision, weight_bytes)};
        const struct bp_decisions *d = bp_session_decisions(s);
        for (uint32_t i = 0; bp_decision(d, i, &r) == BP_OK; ++i)
            ck_assert_uint_eq(r.on_host, k == 1 && strcmp(r.slot, "device") != 0);
        struct bp_decisions_info info = {.h = BP_HDR(struct bp_decisions_info, scratch_bytes)};
        bp_decisions_info(d, &info);
        ck_assert_uint_eq(info.device_kind, k == 0 ? BP_DEV_HOST : BP_DEV_CUDA);
        if (k == 0) ck_assert_int_eq(n_copies, 0);
        const uint32_t n_vocab = bp_model_n_vocab(m);
        bp_session_close(s);
        bp_model_close(m);
        bp_config_destroy(cfg);
        if (k == 1) ck_assert(same_bits(logits[0], logits[1], 8 * n_vocab));
    }
    ck_assert_int_gt(n_copies, 100);
    for (int i = 0; i < n_blocks; ++i) ck_assert_ptr_null(blocks[i].p);
    free(logits[0]);
    free(logits[1]);
}

START_TEST(whole_model_carried)
{
    static const char *const zoo[] = {ZOO("zoo-v32"), ZOO("zoo-v3"), ZOO("zoo-v2lite"),
                                      ZOO("zoo-glm52-shared")};
    compare(zoo[_i], on_device);
}
END_TEST

/* ---- who is taken ---- */

/* Under auto, whoever computes on the device goes before those that would be carried; a name is taken at its word. */
START_TEST(device_goes_first)
{
    const char *const named[] = {"engine.ctx=64", "engine.device=cuda:0", "slots.mla.decode=ref",
                                 NULL};
    struct bp_error err = BP_ERROR_INIT;
    struct bp_config *cfg = fake_config(named);
    struct bp_model *m;
    struct bp_decisions *d;
    struct bp_decision r = {.h = BP_HDR(struct bp_decision, weight_bytes)};
    struct bp_decision_candidate c = {.h = BP_HDR(struct bp_decision_candidate, cost_us)};
    must(bp_config_add_plugin(cfg, dev_query, &err), &err);
    must(bp_model_open_headers(ZOO("zoo-v3"), cfg, NULL, &m, &err), &err);
    fakes[1].takes_device = true;
    must(bp_explain(m, cfg, NULL, &d, &err), &err);
    int n = 0;
    for (uint32_t i = 0; bp_decision(d, i, &r) == BP_OK; ++i) {
        ck_assert_int_eq(bp_decision_candidate(d, i, (uint32_t)r.chosen, &c), BP_OK);
        if (strcmp(r.slot, "mla.decode") == 0) {
            ck_assert_str_eq(c.name, "ref");
            ck_assert_uint_eq(r.on_host, 1);
            ++n;
        } else if (strcmp(r.slot, "mla.prefill") == 0) {
            ck_assert_str_eq(c.name, "fake1");
            ck_assert_uint_eq(r.on_host, 0);
            ck_assert_uint_eq(r.n_candidates, 3);
            ++n;
        }
    }
    ck_assert_int_eq(n, 2);
    bp_decisions_close(d);
    bp_model_close(m);
    bp_config_destroy(cfg);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("carry");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, whole_model_carried, 0, 4);
    tcase_add_test(tc, device_goes_first);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
