/* test_session_rows.c - a row's bits depend on its own sequence only: not on neighbours in the batch, not on how the
 * prompt was chunked, not on whether its prefix was shared. Models: without and with query compression, groups, sparse
 * selection, shared indexers. SPDX-License-Identifier: MIT */
#include "engine_fixture.h"
#include <math.h>

static const char *const models[] = {ZOO("zoo-v2lite"),       ZOO("zoo-v3"),
                                     ZOO("zoo-glm47flash"),   ZOO("zoo-glm5"),
                                     ZOO("zoo-glm52-shared"), ZOO("zoo-v32")};
enum { N_MODELS = sizeof(models) / sizeof(models[0]), N_PROMPT = 90, N_DECODE = 6 };

/* Small slabs and blocks, so that prompts cross several of each. */
static const char *const settings[] = {"engine.max_seqs=3",       "engine.slab=64", "kv.block=16",
                                       "engine.batch_tokens=200", "kv.dtype=bf16",  NULL};

static void decode_alone(struct rig *r, uint32_t seq, float *logits, int32_t *tokens, float *all)
{
    struct bp_error err = BP_ERROR_INIT;
    for (int i = 0; i < N_DECODE; ++i) {
        tokens[i] = greedy(logits, r->n_vocab);
        struct bp_step_item it = item(seq, &tokens[i], 1, 1, BP_STEP_DECODE);
        must(bp_session_step(r->s, &it, 1, &err), &err);
        memcpy(logits, bp_session_logits(r->s, 0, 0), r->n_vocab * sizeof(float));
        memcpy(all + (size_t)i * r->n_vocab, logits, r->n_vocab * sizeof(float));
    }
}

START_TEST(neighbours_do_not_change_a_row)
{
    struct rig r = rig_open(models[_i], settings);
    struct bp_error err = BP_ERROR_INIT;
    uint64_t seed = 7 + (uint64_t)_i;
    printf("%s seed %llu\n", models[_i], (unsigned long long)seed);
    const uint32_t len[2] = {N_PROMPT, 23};
    int32_t *ids[2] = {random_ids(seed, len[0], r.n_vocab),
                       random_ids(seed + 100, len[1], r.n_vocab)};
    float *alone[2], *steps[2];
    int32_t tokens[2][N_DECODE];
    for (uint32_t q = 0; q < 2; ++q) {
        alone[q] = malloc(r.n_vocab * sizeof(float));
        steps[q] = malloc(N_DECODE * r.n_vocab * sizeof(float));
        prefill(&r, q, ids[q], len[q], N_PROMPT, alone[q]);
        float *logits = malloc(r.n_vocab * sizeof(float));
        memcpy(logits, alone[q], r.n_vocab * sizeof(float));
        decode_alone(&r, q, logits, tokens[q], steps[q]);
        free(logits);
        must(bp_seq_reset(r.s, q, &err), &err);
    }
    /* Both prompts in one step, other order of sequences; then both decode together. */
    struct bp_step_item both[2] = {item(2, ids[1], len[1], 1, 0), item(0, ids[0], len[0], 1, 0)};
    must(bp_session_step(r.s, both, 2, &err), &err);
    ck_assert(same_bits(bp_session_logits(r.s, 0, 0), alone[1], r.n_vocab));
    ck_assert(same_bits(bp_session_logits(r.s, 1, 0), alone[0], r.n_vocab));
    for (int i = 0; i < N_DECODE; ++i) {
        both[0] = item(0, &tokens[0][i], 1, 1, BP_STEP_DECODE);
        both[1] = item(2, &tokens[1][i], 1, 1, BP_STEP_DECODE);
        must(bp_session_step(r.s, both, 2, &err), &err);
        for (uint32_t q = 0; q < 2; ++q) {
            ck_assert(same_bits(bp_session_logits(r.s, q, 0), steps[q] + (size_t)i * r.n_vocab,
                                r.n_vocab));
        }
    }
    /* A prompt beside a decoding sequence. */
    must(bp_seq_reset(r.s, 2, &err), &err);
    both[0] = item(2, ids[1], len[1], 1, 0);
    both[1] = item(0, &tokens[0][0], 1, 1, BP_STEP_DECODE);
    must(bp_session_step(r.s, both, 2, &err), &err);
    ck_assert(same_bits(bp_session_logits(r.s, 0, 0), alone[1], r.n_vocab));
    for (uint32_t q = 0; q < 2; ++q) {
        free(ids[q]);
        free(alone[q]);
        free(steps[q]);
    }
    rig_close(&r);
}
END_TEST

START_TEST(chunking_does_not_change_a_row)
{
    struct rig r = rig_open(models[_i], settings);
    struct bp_error err = BP_ERROR_INIT;
    int32_t *ids = random_ids(31, 150, r.n_vocab);
    float *whole = malloc(r.n_vocab * sizeof(float)), *part = malloc(r.n_vocab * sizeof(float));
    prefill(&r, 0, ids, 150, 150, whole);
    const uint32_t chunks[] = {149, 128, 100, 64, 63, 17, 7, 1};
    for (size_t c = 0; c < sizeof(chunks) / sizeof(chunks[0]); ++c) {
        must(bp_seq_reset(r.s, 0, &err), &err);
        prefill(&r, 0, ids, 150, chunks[c], part);
        ck_assert_msg(same_bits(whole, part, r.n_vocab), "chunk %u differs", chunks[c]);
    }
    free(ids);
    free(whole);
    free(part);
    rig_close(&r);
}
END_TEST

START_TEST(a_shared_prefix_equals_a_cold_run)
{
    struct rig r = rig_open(models[_i], settings);
    struct bp_error err = BP_ERROR_INIT;
    int32_t *ids = random_ids(57, 120, r.n_vocab), *other = random_ids(58, 120, r.n_vocab);
    float *cold = malloc(r.n_vocab * sizeof(float)), *warm = malloc(r.n_vocab * sizeof(float));
    prefill(&r, 0, ids, 120, 200, cold);
    const uint32_t shares[] = {119, 112, 64, 33, 16};
    for (size_t i = 0; i < sizeof(shares) / sizeof(shares[0]); ++i) {
        uint32_t got;
        must(bp_seq_share(r.s, 1, 0, shares[i], &got, &err), &err);
        ck_assert_uint_eq(got, shares[i] / 16 * 16);
        prefill(&r, 1, ids + got, 120 - got, 200, warm);
        ck_assert_msg(same_bits(cold, warm, r.n_vocab), "sharing %u tokens differs", shares[i]);
        must(bp_seq_reset(r.s, 1, &err), &err);
    }
    /* The owner is cut inside a shared block and goes another way: the sharer must not notice. */
    uint32_t got;
    must(bp_seq_share(r.s, 1, 0, 112, &got, &err), &err);
    must(bp_seq_truncate(r.s, 0, 100, &err), &err);
    prefill(&r, 0, other, 20, 200, NULL);
    prefill(&r, 1, ids + got, 120 - got, 200, warm);
    ck_assert(same_bits(cold, warm, r.n_vocab));
    free(ids);
    free(other);
    free(cold);
    free(warm);
    rig_close(&r);
}
END_TEST

/* The two forms of attention are the same function; with an f32 cache they differ by rounding only. The logits of these
 * models have a magnitude of a few units. */
START_TEST(decode_form_equals_prefill_form)
{
    const char *const f32[] = {"engine.slab=64", "kv.block=16", "engine.batch_tokens=200",
                               "kv.dtype=f32", NULL};
    struct rig r = rig_open(models[_i], f32);
    struct bp_error err = BP_ERROR_INIT;
    int32_t *ids = random_ids(91, 80, r.n_vocab);
    float *whole = malloc(r.n_vocab * sizeof(float));
    prefill(&r, 0, ids, 80, 80, whole);
    must(bp_seq_reset(r.s, 0, &err), &err);
    struct bp_step_item it = item(0, ids, 80, 1, BP_STEP_DECODE);
    must(bp_session_step(r.s, &it, 1, &err), &err);
    const float *step = bp_session_logits(r.s, 0, 0);
    double worst = 0.0;
    for (uint32_t i = 0; i < r.n_vocab; ++i) {
        double d = fabs((double)whole[i] - (double)step[i]);
        ck_assert(d < 5e-4); /* false for NaN */
        if (d > worst) worst = d;
    }
    printf("%s worst difference %.3g\n", models[_i], worst);
    free(ids);
    free(whole);
    rig_close(&r);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("session_rows");
    TCase *tc = tcase_create("rows");
    tcase_set_timeout(tc, 300);
    tcase_add_loop_test(tc, neighbours_do_not_change_a_row, 0, N_MODELS);
    tcase_add_loop_test(tc, chunking_does_not_change_a_row, 0, N_MODELS);
    tcase_add_loop_test(tc, a_shared_prefix_equals_a_cold_run, 0, N_MODELS);
    tcase_add_loop_test(tc, decode_form_equals_prefill_form, 0, N_MODELS);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
