/* test_session_faults.c - steps that must be refused leave everything as it was; NaN ends one sequence, is named by layer
 * and op, and does not touch the neighbours. SPDX-License-Identifier: MIT */
#include "engine_fixture.h"
#include "base/base.h"
#include "gguf/gguf.h"
#include <math.h>
#include <unistd.h>

static const char *const settings[] = {"engine.max_seqs=2", "engine.ctx=64",          "kv.block=16",
                                       "engine.slab=64",    "engine.batch_tokens=48", NULL};

START_TEST(refused_steps_change_nothing)
{
    struct rig r = rig_open(ZOO("zoo-v3"), settings);
    int32_t *ids = random_ids(3, 64, r.n_vocab);
    float *before = malloc(r.n_vocab * sizeof(float)), *after = malloc(r.n_vocab * sizeof(float));
    prefill(&r, 0, ids, 20, 20, NULL);
    int32_t negative[1] = {-1}, beyond[1] = {(int32_t)r.n_vocab};
    const struct {
        struct bp_step_item items[3];
        uint32_t n;
        int32_t want;
        const char *says;
    } cases[] = {
        {{item(2, ids, 1, 1, 0)}, 1, BP_E_ARG, "0 .. 1"},
        {{item(0, ids, 1, 1, 0), item(0, ids, 1, 1, 0)}, 2, BP_E_ARG, "twice"},
        {{item(0, ids, 1, 1, 0), item(1, ids, 1, 1, 0), item(1, ids, 1, 1, 0)},
         3,
         BP_E_ARG,
         "max_seqs"},
        {{item(0, negative, 1, 1, 0)}, 1, BP_E_ARG, "vocabulary"},
        {{item(1, ids, 3, 1, 0), item(0, beyond, 1, 1, 0)}, 2, BP_E_ARG, "vocabulary"},
        {{item(1, ids, 2, 3, 0)}, 1, BP_E_ARG, "logits"},
        {{item(1, ids, 49, 1, 0)}, 1, BP_E_ARG, "chunks"},
        {{item(0, ids, 45, 1, 0)}, 1, BP_E_LIMIT, "context is 64"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i) {
        struct bp_error err = BP_ERROR_INIT;
        int32_t rc = bp_session_step(r.s, cases[i].items, cases[i].n, &err);
        ck_assert_int_eq(rc, cases[i].want);
        ck_assert_msg(strstr(err.msg, cases[i].says) != NULL, "case %zu says: %s", i, err.msg);
        ck_assert_uint_eq(bp_seq_len(r.s, 0), 20);
        ck_assert_uint_eq(bp_seq_len(r.s, 1), 0);
        ck_assert_ptr_null(
            bp_session_logits(r.s, 0, 0)); /* nothing of a refused step can be read */
    }
    prefill(&r, 0, ids + 20, 5, 5, after);
    struct bp_error err = BP_ERROR_INIT;
    must(bp_seq_reset(r.s, 0, &err), &err);
    prefill(&r, 0, ids, 25, 25, before);
    ck_assert(same_bits(before, after, r.n_vocab));
    /* Empty work is legal, between others too. */
    struct bp_step_item empty[2] = {item(1, NULL, 0, 0, 0), item(0, ids, 1, 1, 0)};
    must(bp_session_step(r.s, empty, 1, &err), &err);
    must(bp_session_step(r.s, empty, 2, &err), &err);
    ck_assert_ptr_nonnull(bp_session_logits(r.s, 1, 0));
    must(bp_session_step(r.s, NULL, 0, &err), &err);
    free(ids);
    free(before);
    free(after);
    rig_close(&r);
}
END_TEST

START_TEST(malformed_items_are_refused)
{
    struct rig r = rig_open(ZOO("zoo-v3"), settings);
    int32_t id = 1;
    struct bp_error err = BP_ERROR_INIT;
    struct bp_ext critical = {
        .size = sizeof(critical), .flags = BP_EXT_CRITICAL, .id = bp_id("test.unknown")};
    struct bp_ext harmless = {.size = sizeof(harmless), .id = bp_id("test.unknown")};
    struct bp_step_item short_struct = item(0, &id, 1, 1, 0), flags = item(0, &id, 1, 1, 8);
    struct bp_step_item no_ids = item(0, NULL, 3, 1, 0), wild = item(0, &id, UINT32_MAX, 1, 0);
    struct bp_step_item ext = item(0, &id, 1, 1, 0);
    short_struct.h.size = 0;
    ck_assert_int_eq(bp_session_step(r.s, NULL, 1, &err), BP_E_ARG);
    ck_assert_int_eq(bp_session_step(r.s, &short_struct, 1, &err), BP_E_ARG);
    ck_assert_int_eq(bp_session_step(r.s, &flags, 1, &err), BP_E_ARG);
    ck_assert_int_eq(bp_session_step(r.s, &no_ids, 1, &err), BP_E_ARG);
    ck_assert_int_eq(bp_session_step(r.s, &wild, 1, &err),
                     BP_E_LIMIT); /* ids beyond the first are not read */
    ext.h.next = &critical;
    ck_assert_int_eq(bp_session_step(r.s, &ext, 1, &err), BP_DECLINED);
    ext.h.next = &harmless;
    err = (struct bp_error)BP_ERROR_INIT;
    must(bp_session_step(r.s, &ext, 1, &err), &err);
    uint32_t shared;
    ck_assert_int_eq(bp_seq_share(r.s, 1, 0, 1, NULL, &err), BP_E_ARG);
    ck_assert_int_eq(bp_seq_share(r.s, 1, 1, 1, &shared, &err), BP_E_ARG);
    rig_close(&r);
}
END_TEST

START_TEST(an_interrupted_step_is_taken_back)
{
    struct rig r = rig_open(ZOO("zoo-v3"), settings);
    int32_t *ids = random_ids(4, 10, r.n_vocab);
    struct bp_error err = BP_ERROR_INIT;
    bp_session_interrupt(r.s);
    struct bp_step_item it = item(0, ids, 10, 1, 0);
    ck_assert_int_eq(bp_session_step(r.s, &it, 1, &err), BP_E_ABORTED);
    ck_assert_uint_eq(bp_seq_len(r.s, 0), 0);
    must(bp_session_step(r.s, &it, 1, &(struct bp_error)BP_ERROR_INIT), &err);
    ck_assert_uint_eq(bp_seq_len(r.s, 0), 10);
    free(ids);
    rig_close(&r);
}
END_TEST

START_TEST(wrong_limits_are_refused_with_the_key)
{
    const struct {
        const char *set[3];
        const char *where;
    } cases[] = {
        {{"engine.ctx=100000", NULL}, "engine.ctx"},
        {{"kv.block=64", "engine.slab=96", NULL}, "slab"},
        {{"engine.batch_tokens=1", "engine.max_seqs=2", NULL}, "engine.batch_tokens"},
        {{"engine.device=tpu", NULL}, "engine.device"},
        {{"slots.moe=nobody", NULL}, "moe"},
        {{"parallel.tp=2", NULL}, "parallel.tp"},
        {{"slots.moe@layers=90-99=nobody", NULL}, "slots.moe@layers=90-99"},
        {{"slots.mla.decode@layers=0-99=ref", NULL}, "slots.mla.decode@layers=0-99"},
        {{"engine.plugin_path=/nowhere", NULL}, "engine.plugin_path"},
        {{"plugin.attn_flash.num_splits=0", NULL}, "plugin.attn_flash"},
        {{"slots.mla.decode=attn_flash", NULL}, "attn_flash"},
        {{"engine.device=cuda:0", NULL}, "engine.device = cpu"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i) {
        struct rig r = {0};
        struct bp_error err = BP_ERROR_INIT;
        must(plain_config(&r.cfg, &err), &err);
        for (size_t k = 0; cases[i].set[k] != NULL; ++k)
            must(bp_config_set(r.cfg, cases[i].set[k], &err), &err);
        int32_t rc = bp_model_open(ZOO("zoo-v3"), r.cfg, NULL, &r.model, &err);
        if (rc == BP_OK) rc = bp_session_open(r.model, r.cfg, NULL, &r.s, &err);
        ck_assert_int_ne(rc, BP_OK);
        ck_assert_ptr_null(r.s);
        ck_assert_msg(strstr(err.where, cases[i].where) != NULL ||
                          strstr(err.msg, cases[i].where) != NULL,
                      "case %zu: %s: %s", i, err.where, err.msg);
        rig_close(&r);
    }
}
END_TEST

/* A copy of a model in which `n` bytes at `offset` of a tensor are replaced. */
static void damage(const char *from, const char *path, const char *tensor, uint64_t offset,
                   const void *bytes, size_t n)
{
    struct bpi_gguf *g;
    struct bp_error err = BP_ERROR_INIT;
    char *data;
    size_t len;
    must(bpi_gguf_open(from, &g, &err), &err);
    const struct bpi_gguf_tensor *t = bpi_gguf_tensor(g, tensor);
    ck_assert_ptr_nonnull(t);
    ck_assert_uint_eq(t->type, n == 2 ? BP_GGUF_BF16 : BP_GGUF_F32);
    must(bpi_file_read(from, 64u << 20, &data, &len, &err), &err);
    memcpy(data + t->offset + offset, bytes, n);
    must(bpi_file_write(path, data, len, &err), &err);
    bpi_free(data);
    bpi_gguf_close(g);
}

static void damaged_copy(const char *path, const char *tensor, uint64_t offset, const void *bytes,
                         size_t n)
{
    damage(ZOO("zoo-v3"), path, tensor, offset, bytes, n);
}

START_TEST(nan_of_one_token_stops_one_sequence)
{
    char path[64];
    snprintf(path, sizeof(path), "nan-embd-%d.gguf", (int)getpid());
    struct rig clean = rig_open(ZOO("zoo-v3"), settings);
    int32_t *good = random_ids(5, 12, clean.n_vocab), bad[4] = {1, 2, 77, 3};
    for (int i = 0; i < 12; ++i) good[i] = good[i] == 77 ? 78 : good[i];
    float *want = malloc(clean.n_vocab * sizeof(float));
    prefill(&clean, 0, good, 12, 12, want);
    rig_close(&clean);

    uint16_t nan = 0x7fc1;
    struct bpi_gguf *g;
    must(bpi_gguf_open(ZOO("zoo-v3"), &g, NULL), &(struct bp_error)BP_ERROR_INIT);
    uint64_t row = (uint64_t)bpi_gguf_tensor(g, "token_embd.weight")->ne[0] * 2;
    bpi_gguf_close(g);
    damaged_copy(path, "token_embd.weight", 77 * row + 6, &nan, 2);
    struct rig r = rig_open(path, settings);
    remove(path);
    struct bp_error err = BP_ERROR_INIT;
    struct bp_step_item both[2] = {item(0, bad, 4, 1, 0), item(1, good, 12, 1, 0)};
    ck_assert_int_eq(bp_session_step(r.s, both, 2, &err), BP_E_NUMERIC);
    ck_assert_str_eq(err.where, "embd");
    ck_assert_msg(strstr(err.msg, "sequence 0") != NULL && strstr(err.msg, "position 2") != NULL,
                  "%s", err.msg);
    ck_assert(same_bits(bp_session_logits(r.s, 1, 0), want, r.n_vocab)); /* the neighbour went on */
    err = (struct bp_error)BP_ERROR_INIT;
    ck_assert_int_eq(bp_session_step(r.s, &both[0], 1, &err), BP_E_ARG);
    ck_assert_ptr_nonnull(strstr(err.msg, "reset it"));
    uint32_t shared;
    must(bp_seq_reset(r.s, 1, &err), &err);
    must(bp_seq_share(r.s, 1, 0, 4, &shared, &err), &err);
    ck_assert_uint_eq(shared, 0);
    /* After a reset the blocks that held NaN serve again, and nothing of it is left. */
    must(bp_seq_reset(r.s, 0, &err), &err);
    prefill(&r, 0, good, 12, 12, NULL);
    ck_assert(same_bits(bp_session_logits(r.s, 0, 0), want, r.n_vocab));
    free(good);
    free(want);
    rig_close(&r);
}
END_TEST

START_TEST(overflow_is_named_by_layer_and_op)
{
    char path[64];
    const struct {
        const char *tensor, *where;
    } cases[] = {
        {"blk.1.attn_output.weight", "blk.1.attn.resid"},
        {"blk.0.ffn_down.weight", "blk.0.out"},
        {"blk.1.attn_kv_a_mqa.weight", "blk.1.attn.kv"},
        {"output.weight", "logits"},
    };
    snprintf(path, sizeof(path), "inf-%d.gguf", (int)getpid());
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i) {
        uint16_t inf = 0x7f80;
        damaged_copy(path, cases[i].tensor, 0, &inf, 2);
        struct rig r = rig_open(path, settings);
        remove(path);
        int32_t *ids = random_ids(6, 8, r.n_vocab);
        struct bp_error err = BP_ERROR_INIT;
        struct bp_step_item it = item(0, ids, 8, 1, 0);
        ck_assert_int_eq(bp_session_step(r.s, &it, 1, &err), BP_E_NUMERIC);
        ck_assert_str_eq(err.where, cases[i].where);
        free(ids);
        rig_close(&r);
    }
}
END_TEST

/* What only feeds a choice never reaches the logits as NaN: it has to be caught where it is made. */
START_TEST(nan_that_only_chooses_is_named)
{
    const float nan32 = NAN;
    const uint16_t nan16 = 0x7fc0;
    const struct {
        const char *model, *tensor;
        const void *bytes;
        size_t n;
        const char *where;
    } cases[] = {
        {ZOO("zoo-v3"), "blk.2.ffn_gate_inp.weight", &nan32, 4, "blk.2.moe.router"},
        {ZOO("zoo-glm5"), "blk.2.ffn_gate_inp.weight", &nan32, 4, "blk.2.moe.router"},
        {ZOO("zoo-glm5"), "blk.2.indexer.attn_k.weight", &nan16, 2, "blk.2.index.k"},
        {ZOO("zoo-glm5"), "blk.2.indexer.attn_q_b.weight", &nan16, 2, "blk.2.index.q"},
        {ZOO("zoo-glm5"), "blk.2.indexer.proj.weight", &nan16, 2, "blk.2.index.weights"},
    };
    char path[64];
    snprintf(path, sizeof(path), "choice-%d.gguf", (int)getpid());
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i) {
        damage(cases[i].model, path, cases[i].tensor, 0, cases[i].bytes, cases[i].n);
        struct rig r = rig_open(path, settings);
        remove(path);
        int32_t *ids = random_ids(6, 30, r.n_vocab); /* longer than the index's top_k */
        struct bp_error err = BP_ERROR_INIT;
        struct bp_step_item it = item(0, ids, 30, 1, 0);
        ck_assert_msg(bp_session_step(r.s, &it, 1, &err) == BP_E_NUMERIC, "%s went unseen",
                      cases[i].tensor);
        ck_assert_str_eq(err.where, cases[i].where);
        free(ids);
        rig_close(&r);
    }
}
END_TEST

struct seen {
    unsigned n_embd, n_router, n_other;
};

static void count_tap(void *ctx, const struct bp_tap_event *e)
{
    struct seen *seen = ctx;
    if (strcmp(e->name, "embd") == 0) {
        seen->n_embd++;
        ck_assert_uint_eq(e->n_rows, 5);
        for (uint32_t i = 0; i < e->n_rows; ++i) ck_assert_uint_eq(e->row_pos[i], i);
    } else if (strstr(e->name, ".moe.router") != NULL) {
        seen->n_router++;
    } else {
        seen->n_other++;
    }
}

START_TEST(taps_are_chosen_by_pattern)
{
    struct rig r = rig_open(ZOO("zoo-v3"), settings);
    struct bp_error err = BP_ERROR_INIT;
    struct seen seen = {0};
    int32_t *ids = random_ids(8, 5, r.n_vocab);
    must(bp_session_tap(r.s, "embd,blk.*.moe.router", count_tap, &seen, &err), &err);
    prefill(&r, 0, ids, 5, 5, NULL);
    ck_assert_uint_eq(seen.n_embd, 1);
    ck_assert_uint_gt(seen.n_router, 0);
    ck_assert_uint_eq(seen.n_other, 0);
    must(bp_session_tap(r.s, NULL, NULL, NULL, &err), &err);
    must(bp_seq_reset(r.s, 0, &err), &err);
    prefill(&r, 0, ids, 5, 5, NULL);
    ck_assert_uint_eq(seen.n_embd, 1);
    ck_assert_int_eq(bp_session_tap(r.s, "blk.0.atn.resid", count_tap, &seen, &err), BP_E_ARG);
    ck_assert_msg(strstr(err.msg, "blk.0.attn.resid") != NULL, "%s", err.msg);
    free(ids);
    rig_close(&r);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("session_faults");
    TCase *tc = tcase_create("faults");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, refused_steps_change_nothing);
    tcase_add_test(tc, an_interrupted_step_is_taken_back);
    tcase_add_test(tc, wrong_limits_are_refused_with_the_key);
    tcase_add_test(tc, nan_of_one_token_stops_one_sequence);
    tcase_add_test(tc, overflow_is_named_by_layer_and_op);
    tcase_add_test(tc, nan_that_only_chooses_is_named);
    tcase_add_test(tc, malformed_items_are_refused);
    tcase_add_test(tc, taps_are_chosen_by_pattern);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
