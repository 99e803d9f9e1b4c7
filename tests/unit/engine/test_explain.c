/* test_explain.c - decisions: the negotiated cache, refusals with all reasons, several attention providers in one run,
 * and errors that name who failed. SPDX-License-Identifier: MIT */
#include "fake_plugins.h"

#define COMMON "engine.ctx=64", "engine.batch_tokens=16", "engine.threads=1", "engine.max_seqs=2"

static struct bp_decision row_of(const struct bp_decisions *d, const char *slot, int32_t layer,
                                 uint32_t *out_i)
{
    struct bp_decision r = {.h = BP_HDR(struct bp_decision, weight_bytes)};
    for (uint32_t i = 0; bp_decision(d, i, &r) == BP_OK; ++i) {
        if (strcmp(r.slot, slot) == 0 && layer >= r.layer_begin && layer < r.layer_end) {
            *out_i = i;
            return r;
        }
    }
    ck_abort_msg("no decision for %s in layer %d", slot, layer);
    return r;
}

static struct bp_decision_candidate cand_of(const struct bp_decisions *d, uint32_t i, uint32_t j)
{
    struct bp_decision_candidate c = {.h = BP_HDR(struct bp_decision_candidate, cost_us)};
    ck_assert_int_eq(bp_decision_candidate(d, i, j, &c), BP_OK);
    return c;
}

static struct bp_decision_reason reason_of(const struct bp_decisions *d, uint32_t i, uint32_t j)
{
    struct bp_decision_reason r = {.h = BP_HDR(struct bp_decision_reason, want_hi_name)};
    ck_assert_int_eq(bp_decision_reason(d, i, j, 0, &r), BP_OK);
    return r;
}

static struct bp_decisions_info info_of(const struct bp_decisions *d)
{
    struct bp_decisions_info info = {.h = BP_HDR(struct bp_decisions_info, scratch_bytes)};
    bp_decisions_info(d, &info);
    return info;
}

static void expect(const char *text, const char *part)
{
    ck_assert_msg(strstr(text, part) != NULL, "\"%s\" is not in: %s", part, text);
}

/* Explains zoo-v32 from its headers. */
static int32_t explain(const char *const *settings, struct bp_decisions **d, struct bp_error *err)
{
    struct bp_config *cfg = fake_config(settings);
    struct bp_model *m;
    must(bp_model_open_headers(ZOO("zoo-v32"), cfg, NULL, &m, err), err);
    int32_t rc = bp_explain(m, cfg, NULL, d, err);
    bp_model_close(m);
    bp_config_destroy(cfg);
    return rc;
}

static void expect_sets(const struct bp_error *err)
{
    expect(err->msg, "kv.dtype {f16}");
    expect(err->msg, "mla.common {mla.bf16.");
    expect(err->msg, "mla.prefill {mla.bf16.");
    expect(err->msg, "mla.index {mla.index.bf16.");
    expect(err->msg, " of fake0}");
    expect(err->msg, "set kv.dtype = auto or bf16");
    const char *decode = strstr(err->msg, "mla.decode {");
    ck_assert_ptr_nonnull(decode);
    ck_assert_int_eq(strncmp(decode, "mla.decode {mla.bf16.", 21), 0);
    ck_assert_msg(strcspn(decode, ",") > strcspn(decode, "}"), "one layout: %s", decode);
}

/* The case that started this project. */
START_TEST(bf16_only_and_f16_asked)
{
    const char *const set[] = {COMMON, "slots.mla.decode=fake0", "kv.dtype=f16", NULL};
    struct bp_error err = BP_ERROR_INIT;
    struct bp_decisions *d;
    struct bp_session *s;
    struct bp_model *m;
    uint32_t i;
    fakes[0].only_dtype = BP_DT_BF16;
    struct bp_config *cfg = fake_config(set);
    must(bp_model_open(ZOO("zoo-v32"), cfg, NULL, &m, &err), &err);
    ck_assert_int_eq(bp_session_open(m, cfg, NULL, &s, &err), BP_E_CONFIG);
    ck_assert_ptr_null(s);
    expect_sets(&err);
    bp_model_close(m);
    bp_config_destroy(cfg);

    err = (struct bp_error)BP_ERROR_INIT;
    ck_assert_int_eq(explain(set, &d, &err), BP_E_CONFIG);
    ck_assert_ptr_nonnull(d);
    expect_sets(&err);
    struct bp_decision r = row_of(d, "mla.decode", 0, &i);
    ck_assert_int_eq(r.chosen, -1);
    ck_assert_uint_eq(r.n_candidates, 1);
    struct bp_decision_candidate c = cand_of(d, i, 0);
    ck_assert_str_eq(c.name, "fake0");
    ck_assert_str_eq(c.version, "1.0");
    ck_assert_uint_eq(c.level, BP_V_NO);
    struct bp_decision_reason why = reason_of(d, i, 0);
    ck_assert_str_eq(why.name, "DTYPE");
    ck_assert_str_eq(why.field, "kv_dtype");
    ck_assert_int_eq(why.got, BP_DT_F16);
    ck_assert_int_eq(why.want_lo, BP_DT_BF16);
    /* What stood before it is there as well. */
    ck_assert_int_eq(row_of(d, "mla.prefill", 0, &i).chosen, 0);
    ck_assert_int_eq(row_of(d, "quant", 2, &i).chosen, 0);
    ck_assert_str_eq(info_of(d).kv_dtype, "");
    bp_decisions_close(d);
}
END_TEST

START_TEST(auto_takes_what_all_serve)
{
    const char *const set[] = {COMMON, "slots.mla.decode=fake0", NULL};
    const uint32_t only[] = {BP_DT_BF16, BP_DT_F16, BP_DT_F32};
    const char *const names[] = {"bf16", "f16", "f32"};
    for (size_t k = 0; k < 3; ++k) {
        struct bp_error err = BP_ERROR_INIT;
        struct bp_decisions *d;
        struct bp_decision_kv kv = {.h = BP_HDR(struct bp_decision_kv, index_token_bytes)};
        fakes[0].only_dtype = only[k];
        must(explain(set, &d, &err), &err);
        ck_assert_str_eq(info_of(d).kv_asked, "auto");
        ck_assert_str_eq(info_of(d).kv_dtype, names[k]);
        ck_assert_int_eq(bp_decision_kv(d, 0, &kv), BP_OK);
        expect(kv.layout, names[k]);
        expect(kv.index_layout, names[k]);
        ck_assert_int_eq(kv.layer_begin, 0);
        ck_assert_int_eq(bp_decision_kv(d, 1, &kv), BP_DECLINED);
        if (k > 0) expect(info_of(d).kv_why, "bf16 is not served by all in layer 0");
        if (k > 0) expect(info_of(d).kv_why, "fake0");
        bp_decisions_close(d);
    }
}
END_TEST

static void count_told(void *ctx, int32_t level, const char *room, const char *line)
{
    int *n = ctx;
    (void)level;
    if (strcmp(room, "loader") == 0 && strstr(line, "takes ref") != NULL) ++*n;
}

/* Layers are asked for every dtype that auto tries, and again when it stands; only what stands is told. */
START_TEST(a_choice_is_told_once)
{
    const char *const set[] = {COMMON, "slots.mla.decode=fake0,ref", "engine.log=info", NULL};
    struct bp_error err = BP_ERROR_INIT;
    struct bp_decisions *d;
    struct bp_model *m;
    int n = 0, n_layer = 0;
    const struct bp_callbacks cb = {
        .h = BP_HDR(struct bp_callbacks, progress), .ctx = &n, .log = count_told};
    fakes[0].only_dtype = BP_DT_F32;
    struct bp_config *cfg = fake_config(set);
    must(bp_model_open_headers(ZOO("zoo-v32"), cfg, NULL, &m, &err), &err);
    must(bp_explain(m, cfg, &cb, &d, &err), &err);
    ck_assert_str_eq(info_of(d).kv_dtype, "bf16");
    struct bp_decision r = {.h = BP_HDR(struct bp_decision, weight_bytes)};
    for (uint32_t i = 0; bp_decision(d, i, &r) == BP_OK; ++i) {
        if (strcmp(r.slot, "mla.decode") == 0) n_layer += r.layer_end - r.layer_begin;
    }
    ck_assert_int_gt(n_layer, 1);
    ck_assert_int_eq(n, n_layer);
    bp_decisions_close(d);
    bp_model_close(m);
    bp_config_destroy(cfg);
}
END_TEST

/* Prefill and decode that share no dtype. */
START_TEST(no_common_dtype)
{
    const char *const set[] = {COMMON, "slots.mla.decode=fake0", "slots.mla.prefill=fake1", NULL};
    struct bp_error err = BP_ERROR_INIT;
    struct bp_decisions *d;
    fakes[0].only_dtype = BP_DT_BF16;
    fakes[1].only_dtype = BP_DT_F16;
    ck_assert_int_eq(explain(set, &d, &err), BP_E_CONFIG);
    expect(err.msg, "kv.dtype {auto}");
    expect(err.msg, " of fake0}");
    expect(err.msg, " of fake1}");
    ck_assert_ptr_null(strstr(err.msg, "set kv.dtype"));
    bp_decisions_close(d);
    /* With ref behind it in the list, prefill has a way out. */
    const char *const out[] = {COMMON, "slots.mla.decode=fake0", "slots.mla.prefill=fake1, ref",
                               NULL};
    uint32_t i;
    err = (struct bp_error)BP_ERROR_INIT;
    must(explain(out, &d, &err), &err);
    ck_assert_str_eq(info_of(d).kv_dtype, "bf16");
    struct bp_decision r = row_of(d, "mla.prefill", 0, &i);
    ck_assert_int_eq(r.chosen, 1);
    ck_assert_uint_eq(cand_of(d, i, 0).level, BP_V_NO);
    ck_assert_str_eq(cand_of(d, i, 1).name, "ref");
    bp_decisions_close(d);
}
END_TEST

/* A slot that nobody serves whatever the cache: its own error, not the sets. */
START_TEST(unknown_name)
{
    const char *const set[] = {COMMON, "slots.mla.decode=fake9", NULL};
    struct bp_error err = BP_ERROR_INIT;
    struct bp_decisions *d;
    uint32_t i;
    ck_assert_int_eq(explain(set, &d, &err), BP_E_CONFIG);
    expect(err.msg, "no provider is called \"fake9\"");
    ck_assert_ptr_null(strstr(err.msg, "mla.common {"));
    ck_assert_int_eq(row_of(d, "mla.decode", 0, &i).chosen, -1);
    bp_decisions_close(d);
}
END_TEST

START_TEST(not_asked_and_runs_of_layers)
{
    const char *const set[] = {COMMON, "slots.mla.decode=fake0, ref",
                               "slots.mla.decode@layers=1-1=ref", NULL};
    struct bp_error err = BP_ERROR_INIT;
    struct bp_decisions *d;
    uint32_t i;
    must(explain(set, &d, &err), &err);
    struct bp_decision r = row_of(d, "mla.decode", 0, &i);
    ck_assert_int_eq(r.layer_end, 1);
    ck_assert_uint_eq(r.n_candidates, 2);
    ck_assert_str_eq(cand_of(d, i, 1).name, "ref");
    ck_assert_uint_eq(cand_of(d, i, 1).level, BP_V_NOT_ASKED);
    r = row_of(d, "mla.decode", 1, &i);
    ck_assert_int_eq(r.layer_begin, 1);
    ck_assert_int_eq(r.layer_end, 2);
    ck_assert_str_eq(cand_of(d, i, 0).name, "ref");
    r = row_of(d, "mla.decode", 2, &i);
    ck_assert_str_eq(cand_of(d, i, (uint32_t)r.chosen).name, "fake0");
    bp_decisions_close(d);
}
END_TEST

/* Types of weights with different answers stand apart, and each says which. */
START_TEST(weights_by_type)
{
    const char *const set[] = {COMMON, "slots.quant=fake0, ref", NULL};
    struct bp_error err = BP_ERROR_INIT;
    struct bp_decisions *d;
    struct bp_decision r = {.h = BP_HDR(struct bp_decision, weight_bytes)};
    uint32_t n_fake = 0, n_ref = 0;
    fakes[0].only_type = BP_GGUF_BF16;
    must(explain(set, &d, &err), &err);
    for (uint32_t i = 0; bp_decision(d, i, &r) == BP_OK; ++i) {
        if (strcmp(r.slot, "quant") != 0) continue;
        ck_assert_uint_gt(r.file_bytes, 0);
        ck_assert_uint_eq(r.weights_known, 0);
        if (r.chosen == 0) {
            ck_assert_str_eq(r.what, "BF16");
            ++n_fake;
        } else {
            ck_assert_ptr_null(strstr(r.what, "BF16"));
            ck_assert_str_eq(reason_of(d, i, 0).name, "QUANT");
            ++n_ref;
        }
    }
    ck_assert_uint_gt(n_fake, 0);
    ck_assert_uint_gt(n_ref, 0);
    bp_decisions_close(d);
}
END_TEST

/* ---- running ---- */

static void run_both_forms(struct bp_session *s, const struct bp_model *m, float *out)
{
    struct bp_error err = BP_ERROR_INIT;
    const uint32_t n_vocab = bp_model_n_vocab(m);
    int32_t *ids = random_ids(7, 20, n_vocab);
    struct bp_step_item it = item(0, ids, 12, 1, 0);
    must(bp_session_step(s, &it, 1, &err), &err);
    for (uint32_t i = 12; i < 20; ++i) {
        it = item(0, ids + i, 1, 1, BP_STEP_DECODE);
        must(bp_session_step(s, &it, 1, &err), &err);
    }
    memcpy(out, bp_session_logits(s, 0, 0), n_vocab * sizeof(float));
    free(ids);
}

/* One provider for prefill, another for decode, a third for layers 0-1, one layout. */
START_TEST(three_attention_providers)
{
    const char *const mixed[] = {COMMON,
                                 "slots.mla.prefill=fake0",
                                 "slots.mla.decode=fake1",
                                 "slots.mla.prefill@layers=0-1=ref",
                                 "slots.mla.decode@layers=0-1=ref",
                                 NULL};
    const char *const plain[] = {COMMON, NULL};
    struct bp_error err = BP_ERROR_INIT;
    float logits[2][512];
    for (int k = 0; k < 2; ++k) {
        struct bp_config *cfg = fake_config(k == 0 ? plain : mixed);
        struct bp_model *m;
        struct bp_session *s;
        must(bp_model_open(ZOO("zoo-v3"), cfg, NULL, &m, &err), &err);
        must(bp_session_open(m, cfg, NULL, &s, &err), &err);
        ck_assert_uint_le(bp_model_n_vocab(m), 512);
        run_both_forms(s, m, logits[k]);
        const struct bp_decisions *d = bp_session_decisions(s);
        struct bp_decision_kv kv = {.h = BP_HDR(struct bp_decision_kv, index_token_bytes)};
        uint32_t i, n_layer = bp_model_n_layer(m);
        ck_assert_uint_gt(n_layer, 2);
        ck_assert_int_eq(bp_decision_kv(d, 0, &kv), BP_OK);
        ck_assert_int_eq(kv.layer_end, (int32_t)n_layer);
        struct bp_decision r = row_of(d, "mla.decode", 2, &i);
        ck_assert_str_eq(cand_of(d, i, (uint32_t)r.chosen).name, k == 0 ? "ref" : "fake1");
        r = row_of(d, "mla.prefill", 2, &i);
        ck_assert_str_eq(cand_of(d, i, (uint32_t)r.chosen).name, k == 0 ? "ref" : "fake0");
        r = row_of(d, "mla.prefill", 1, &i);
        ck_assert_str_eq(cand_of(d, i, (uint32_t)r.chosen).name, "ref");
        r = row_of(d, "quant", 1, &i);
        ck_assert_uint_eq(r.weights_known, 1);
        ck_assert_uint_gt(r.weight_bytes, 0);
        if (k == 1) { /* 8 steps of decode and one prompt, in the layers from 2 on */
            ck_assert_int_eq(fakes[1].n_decode, 8 * ((int)n_layer - 2));
            ck_assert_int_eq(fakes[0].n_prefill, (int)n_layer - 2);
            ck_assert_int_eq(fakes[0].n_decode + fakes[1].n_prefill, 0);
        } else {
            ck_assert_int_eq(fakes[0].n_prefill + fakes[1].n_decode, 0);
        }
        bp_session_close(s);
        bp_model_close(m);
        bp_config_destroy(cfg);
    }
    ck_assert(same_bits(logits[0], logits[1], 264));
}
END_TEST

START_TEST(errors_name_who_failed)
{
    const char *const set[] = {COMMON, "slots.mla.decode=fake1", NULL};
    const char *const said[] = {"kernel 7 did not start", NULL};
    for (int k = 0; k < 2; ++k) {
        struct bp_error err = BP_ERROR_INIT;
        struct bp_config *cfg = fake_config(set);
        struct bp_model *m;
        struct bp_session *s;
        int32_t id = 1;
        must(bp_model_open(ZOO("zoo-v3"), cfg, NULL, &m, &err), &err);
        must(bp_session_open(m, cfg, NULL, &s, &err), &err);
        fakes[1].fail_layer = 3;
        fakes[1].fail_msg = said[k];
        struct bp_step_item it = item(0, &id, 1, 1, BP_STEP_DECODE);
        ck_assert_int_eq(bp_session_step(s, &it, 1, &err), BP_E_DEVICE);
        ck_assert_int_eq(err.code, BP_E_DEVICE);
        ck_assert_str_eq(err.where, "slot mla.decode, layer 3");
        ck_assert_str_eq(err.domain, "fake1");
        expect(err.msg, "slot mla.decode, layer 3, provider fake1, run: ");
        expect(err.msg, k == 0 ? "kernel 7 did not start" : "gave no reason");
        ck_assert_uint_eq(bp_seq_len(s, 0), 0);
        bp_session_close(s);
        bp_model_close(m);
        bp_config_destroy(cfg);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("explain");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, bf16_only_and_f16_asked);
    tcase_add_test(tc, auto_takes_what_all_serve);
    tcase_add_test(tc, a_choice_is_told_once);
    tcase_add_test(tc, no_common_dtype);
    tcase_add_test(tc, unknown_name);
    tcase_add_test(tc, not_asked_and_runs_of_layers);
    tcase_add_test(tc, weights_by_type);
    tcase_add_test(tc, three_attention_providers);
    tcase_add_test(tc, errors_name_who_failed);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
