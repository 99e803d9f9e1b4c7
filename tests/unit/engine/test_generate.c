/* test_generate.c - bp_generate against the same tokens computed step by step; stops, callbacks, refusals.
 * SPDX-License-Identifier: MIT */
#include "unit/engine/engine_fixture.h"

#include <math.h>

enum { PROMPT = 40, MAX = 64 };

static const char *const settings[] = {"kv.dtype=f32", "engine.ctx=96", "engine.batch_tokens=32",
                                       NULL};
static struct rig rig;
static int32_t *prompt;

static void set_up(void)
{
    rig = rig_open(ZOO("zoo-glm5"), settings);
    prompt = random_ids(7, PROMPT, 256);
}

static void tear_down(void)
{
    rig_close(&rig);
    free(prompt);
}

/* What the callbacks saw. */
struct seen {
    int32_t ids[MAX];
    double logprob[MAX];
    uint32_t n, stop_at, n_prompt_calls, stop_prompt_at, last_done;
    char text[16 * MAX], bytes[16 * MAX];
    size_t n_text, n_bytes;
};

static int32_t on_token(void *ctx, const struct bp_generated *t)
{
    struct seen *s = ctx;
    ck_assert_uint_lt(s->n, MAX);
    ck_assert_uint_eq(t->n_top, 3);
    ck_assert_int_eq(t->top[0].id, t->id);
    ck_assert(fabs((double)t->top[0].logprob - t->logprob) < 1e-5);
    s->logprob[s->n] = t->logprob;
    s->ids[s->n++] = t->id;
    memcpy(s->text + s->n_text, t->text, t->n_text);
    s->n_text += t->n_text;
    memcpy(s->bytes + s->n_bytes, t->bytes, t->n_bytes);
    s->n_bytes += t->n_bytes;
    return s->stop_at != 0 && s->n == s->stop_at;
}

static int32_t on_prompt(void *ctx, uint32_t done, uint32_t total)
{
    struct seen *s = ctx;
    ck_assert_uint_eq(total, PROMPT);
    ck_assert(s->n_prompt_calls == 0 ? done == 0 : done > s->last_done);
    s->last_done = done;
    s->n_prompt_calls++;
    return s->stop_prompt_at != 0 && s->n_prompt_calls == s->stop_prompt_at;
}

static struct bp_sampler *sampler(uint32_t n_vocab)
{
    struct bp_sample_params p;
    struct bp_sampler *s = NULL;
    struct bp_error err = BP_ERROR_INIT;
    bp_sample_defaults(rig.cfg, &p);
    p.temp = 0.0f;
    must(bp_sampler_create(&p, n_vocab, &s, &err), &err);
    return s;
}

static struct bp_generate_params params(struct bp_sampler *s, struct seen *seen,
                                        uint32_t max_tokens)
{
    return (struct bp_generate_params){.h = BP_HDR(struct bp_generate_params, ctx),
                                       .sampler = s,
                                       .max_tokens = max_tokens,
                                       .n_top = 3,
                                       .ignore_eog = 1,
                                       .on_token = on_token,
                                       .on_prompt = on_prompt,
                                       .ctx = seen};
}

static struct bp_generate_result generate(struct bp_generate_params *p, const int32_t *ids,
                                          uint32_t n)
{
    struct bp_generate_result r = {.h = BP_HDR(struct bp_generate_result, decode_s)};
    struct bp_error err = BP_ERROR_INIT;
    must(bp_generate(rig.s, p, ids, n, &r, &err), &err);
    return r;
}

/* The greedy continuation and its log-probabilities, by the plain session functions. */
static void by_hand(int32_t *ids, double *logprob, uint32_t n)
{
    struct bp_error err = BP_ERROR_INIT;
    float *logits = calloc(rig.n_vocab, sizeof *logits);
    prefill(&rig, 0, prompt, PROMPT, 32, logits);
    for (uint32_t i = 0; i < n; ++i) {
        ids[i] = greedy(logits, rig.n_vocab);
        logprob[i] = bp_logprob(logits, rig.n_vocab, ids[i]);
        struct bp_step_item it = item(0, &ids[i], 1, 1, BP_STEP_DECODE);
        must(bp_session_step(rig.s, &it, 1, &err), &err);
        memcpy(logits, bp_session_logits(rig.s, 0, 0), rig.n_vocab * sizeof *logits);
    }
    must(bp_seq_reset(rig.s, 0, &err), &err);
    free(logits);
}

START_TEST(tokens_are_those_of_single_steps)
{
    static const uint32_t chunks[] = {0, 1, 7, 32};
    int32_t want[20];
    double logprob[20];
    by_hand(want, logprob, 20);
    struct bp_sampler *s = sampler(rig.n_vocab);
    for (size_t k = 0; k < sizeof chunks / sizeof chunks[0]; ++k) {
        struct seen seen = {0};
        struct bp_generate_params p = params(s, &seen, 20);
        p.chunk = chunks[k];
        struct bp_generate_result r = generate(&p, prompt, PROMPT);
        ck_assert_uint_eq(r.stop, BP_STOP_LENGTH);
        ck_assert_uint_eq(r.n_prompt, PROMPT);
        ck_assert_uint_eq(r.n_generated, 20);
        ck_assert_mem_eq(seen.ids, want, sizeof want);
        ck_assert_mem_eq(seen.logprob, logprob, sizeof logprob);
        uint32_t step = chunks[k] > 0 ? chunks[k] : 32;
        ck_assert_uint_eq(seen.n_prompt_calls, 1 + (PROMPT + step - 1) / step);
        ck_assert_uint_eq(bp_seq_len(rig.s, 0), PROMPT + 19); /* the last one picked is not fed */
        ck_assert(r.prefill_s > 0.0 && r.decode_s > 0.0);
        must(bp_seq_reset(rig.s, 0, NULL), &(struct bp_error)BP_ERROR_INIT);
    }
    bp_sampler_destroy(s);
}
END_TEST

START_TEST(a_conversation_goes_on)
{
    int32_t want[12];
    double logprob[12];
    by_hand(want, logprob, 12);
    struct bp_sampler *s = sampler(rig.n_vocab);
    struct seen seen = {0};
    struct bp_generate_params p = params(s, &seen, 5);
    generate(&p, prompt, PROMPT);
    p.on_prompt = NULL;
    p.max_tokens = 7;
    struct bp_generate_result r =
        generate(&p, &seen.ids[4], 1); /* the token that was picked but not fed */
    ck_assert_uint_eq(r.n_generated, 7);
    ck_assert_mem_eq(seen.ids, want, sizeof want);
    bp_sampler_destroy(s);
}
END_TEST

START_TEST(no_tokens_wanted)
{
    struct seen seen = {0};
    struct bp_generate_params p = params(NULL, &seen, 0);
    struct bp_generate_result r = generate(&p, prompt, PROMPT);
    ck_assert_uint_eq(r.n_prompt, PROMPT);
    ck_assert_uint_eq(r.n_generated, 0);
    ck_assert_uint_eq(seen.n, 0);
    ck_assert_uint_eq(bp_seq_len(rig.s, 0), PROMPT);
}
END_TEST

START_TEST(callbacks_can_stop)
{
    struct bp_sampler *s = sampler(rig.n_vocab);
    struct seen seen = {.stop_at = 3};
    struct bp_generate_params p = params(s, &seen, 20);
    struct bp_generate_result r = generate(&p, prompt, PROMPT);
    ck_assert_uint_eq(r.stop, BP_STOP_CALLER);
    ck_assert_uint_eq(r.n_generated, 3);
    ck_assert_uint_eq(bp_seq_len(rig.s, 0), PROMPT + 2);
    must(bp_seq_reset(rig.s, 0, NULL), &(struct bp_error)BP_ERROR_INIT);
    for (uint32_t at = 1; at <= 3; ++at) {
        seen = (struct seen){.stop_prompt_at = at};
        r = generate(&p, prompt, PROMPT);
        ck_assert_uint_eq(r.stop, BP_STOP_CALLER);
        ck_assert_uint_eq(r.n_generated, 0);
        ck_assert_uint_eq(r.n_prompt, at == 1 ? 0 : at == 2 ? 32 : PROMPT);
        ck_assert_uint_eq(bp_seq_len(rig.s, 0), r.n_prompt);
        must(bp_seq_reset(rig.s, 0, NULL), &(struct bp_error)BP_ERROR_INIT);
    }
    bp_sampler_destroy(s);
}
END_TEST

START_TEST(context_ends_it)
{
    struct bp_sampler *s = sampler(rig.n_vocab);
    struct seen seen = {0};
    struct bp_generate_params p = params(s, &seen, MAX);
    struct bp_generate_result r = generate(&p, prompt, PROMPT);
    ck_assert_uint_eq(r.stop, BP_STOP_CONTEXT);
    ck_assert_uint_eq(bp_seq_len(rig.s, 0), 96);
    ck_assert_uint_eq(r.n_generated, 96 - PROMPT + 1);
    bp_sampler_destroy(s);
}
END_TEST

static int32_t stop_everything(void *ctx, uint32_t done, uint32_t total)
{
    (void)total;
    if (done == 0) bp_session_interrupt(ctx);
    return 0;
}

START_TEST(interrupted_step)
{
    struct bp_sampler *s = sampler(rig.n_vocab);
    struct seen seen = {0};
    struct bp_generate_params p = params(s, &seen, 5);
    struct bp_generate_result r = {.h = BP_HDR(struct bp_generate_result, decode_s)};
    bp_session_interrupt(rig.s); /* before the call: meant for something else */
    r = generate(&p, prompt, PROMPT);
    ck_assert_uint_eq(r.n_generated, 5);
    must(bp_seq_reset(rig.s, 0, NULL), &(struct bp_error)BP_ERROR_INIT);
    p.on_prompt = stop_everything;
    p.ctx = rig.s;
    p.on_token = NULL;
    ck_assert_int_eq(bp_generate(rig.s, &p, prompt, PROMPT, &r, NULL), BP_E_ABORTED);
    ck_assert_uint_eq(r.stop, BP_STOP_CALLER);
    ck_assert_uint_eq(bp_seq_len(rig.s, 0), 0);
    bp_sampler_destroy(s);
}
END_TEST

/* Text comes in whole characters and loses no byte, whatever bytes the model says. */
START_TEST(text_is_whole)
{
    struct bp_sampler *s = sampler(rig.n_vocab);
    struct seen seen = {0};
    struct bp_generate_params p = params(s, &seen, 50);
    generate(&p, prompt, PROMPT);
    ck_assert_uint_gt(seen.n_bytes, 0);
    ck_assert_uint_eq(seen.n_text, seen.n_bytes);
    ck_assert_mem_eq(seen.text, seen.bytes, seen.n_bytes);
    bp_sampler_destroy(s);
}
END_TEST

static void refused(const struct bp_generate_params *p, uint32_t n, int32_t code)
{
    struct bp_generate_result r = {.h = BP_HDR(struct bp_generate_result, decode_s)};
    struct bp_error err = BP_ERROR_INIT;
    uint32_t held = bp_seq_len(rig.s, 0);
    ck_assert_int_eq(bp_generate(rig.s, p, prompt, n, &r, &err), code);
    ck_assert_int_eq(err.code, code);
    ck_assert(strlen(err.msg) > 20);
    ck_assert_uint_eq(r.n_prompt, 0);
    ck_assert_uint_eq(bp_seq_len(rig.s, 0), held);
}

START_TEST(refusals_compute_nothing)
{
    struct bp_sampler *s = sampler(rig.n_vocab), *other = sampler(rig.n_vocab + 1);
    struct seen seen = {0};
    struct bp_generate_params good = params(s, &seen, 5), p;
    free(prompt);
    prompt = random_ids(8, 200, 256);
    refused(&good, 0, BP_E_ARG);
    refused(&good, 97, BP_E_LIMIT);
    p = good;
    p.chunk = 33;
    refused(&p, 10, BP_E_ARG);
    p = good;
    p.seq = 1;
    refused(&p, 10, BP_E_ARG);
    p = good;
    p.sampler = NULL;
    refused(&p, 10, BP_E_ARG);
    p = good;
    p.sampler = other;
    refused(&p, 10, BP_E_ARG);
    p = good;
    p.h.size = 8;
    refused(&p, 10, BP_E_ARG);
    ck_assert_uint_eq(seen.n_prompt_calls, 0);
    good.on_prompt = NULL;
    generate(&good, prompt, 50);
    refused(&good, 50, BP_E_LIMIT); /* 54 are held */
    prompt[5] = (int32_t)rig.n_vocab;
    ck_assert_int_eq(
        bp_generate(rig.s, &good, prompt, 10,
                    &(struct bp_generate_result){.h = BP_HDR(struct bp_generate_result, decode_s)},
                    NULL),
        BP_E_ARG);
    bp_sampler_destroy(s);
    bp_sampler_destroy(other);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("generate");
    TCase *t = tcase_create("generate");
    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_set_timeout(t, 120);
    tcase_add_test(t, tokens_are_those_of_single_steps);
    tcase_add_test(t, a_conversation_goes_on);
    tcase_add_test(t, no_tokens_wanted);
    tcase_add_test(t, callbacks_can_stop);
    tcase_add_test(t, context_ends_it);
    tcase_add_test(t, interrupted_step);
    tcase_add_test(t, text_is_whole);
    tcase_add_test(t, refusals_compute_nothing);
    suite_add_tcase(suite, t);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
