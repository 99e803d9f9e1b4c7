/* test_device_faults.c - a session on a device (fake_gpu.h) that is not there, has too little memory, is lost, or computes
 * NaN. SPDX-License-Identifier: MIT */
#include "device_rig.h"

/* The host takes the place of a device that is not there, which is told once, and of no other failure. */
START_TEST(auto_hides_no_failure)
{
    static const char *const plain[] = {COMMON, "engine.log=info", NULL};
    static const int32_t bad[] = {BP_E_DEVICE_LOST, BP_E_DEVMEM, BP_E_NOMEM, BP_E_TIMEOUT,
                                  BP_E_INTERNAL};
    const struct bp_callbacks cb = {.h = BP_HDR(struct bp_callbacks, progress), .log = keep_line};
    struct bp_error err = BP_ERROR_INIT;
    struct bp_ops *ops = NULL;
    struct rig r;
    gpu_absent = true;
    counted = "(there are 0 cards in this machine)";
    must(try_open(&r, ZOO("zoo-glm5"), plain, &err), &err);
    ck_assert_int_eq(n_counted, 1);
    must(bp_ops_open(r.cfg, &cb, &ops, &err), &err);
    ck_assert_int_eq(n_counted, 2);
    ck_assert_uint_eq(bp_ops_device(ops, NULL)->kind, BP_DEV_HOST);
    bp_ops_close(ops);
    rig_close(&r);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
        gpu_ill = bad[i];
        bpi_error_clear(&err);
        ck_assert_int_eq(try_open(&r, ZOO("zoo-glm5"), plain, &err), bad[i]);
        expect(err.msg, "there are 0 cards in this machine");
        bpi_error_clear(&err);
        ck_assert_int_eq(bp_ops_open(r.cfg, &cb, &ops, &err), bad[i]);
        expect(err.msg, "there are 0 cards in this machine");
        ck_assert_ptr_null(ops);
        rig_close(&r);
    }
    ck_assert_int_eq(n_counted, 2);
}
END_TEST

/* ---- NaN ---- */

static const struct {
    int kind, layer, width; /* width of the call's output, 0: any */
    const char *where;
    bool infinite;
} nans[] = {
    {K_DECODE, 1, 0, "blk.1.attn.o_lat", false},
    {K_MATMUL, 3, 16, "blk.3.moe.router", false}, /* reaches no logits: the router chooses nobody */
    {K_MATMUL, 3, 16, "blk.3.moe.router", true}};

/* One sequence of three fails, in the step in which it happens; the others go on with the bits that they would have
 * had without it. Captured and not. */
START_TEST(nan_stays_in_its_sequence)
{
    const char *const *const set = _i % 2 == 0 ? graphs : eager;
    struct rig r = open_on(ZOO("zoo-v3"), set);
    struct bp_error err = BP_ERROR_INIT;
    struct out clean = {NULL, 0, 0}, o = {NULL, 0, 0};
    const int32_t ids[3] = {7, 8, 9};
    for (int i = 0; i < 6; ++i) decode_step(&r, ids, 3, 7, &clean);
    for (uint32_t i = 0; i < 3; ++i) must(bp_seq_reset(r.s, i, &err), &err);
    for (int i = 0; i < 3; ++i) decode_step(&r, ids, 3, 7, &o);
    gpu_infinite = nans[_i / 2].infinite;
    gpu_nan_kind = nans[_i / 2].kind;
    gpu_nan_width = nans[_i / 2].width;
    gpu_nan_layer = nans[_i / 2].layer;
    gpu_nan_row = 1;
    struct bp_step_item it[3];
    for (uint32_t i = 0; i < 3; ++i) it[i] = item(i, ids + i, 1, 1, BP_STEP_DECODE);
    ck_assert_int_eq(bp_session_step(r.s, it, 3, &err), BP_E_NUMERIC);
    expect(err.msg, nans[_i / 2].where);
    expect(err.msg, "sequence 1");
    gpu_nan_kind = -1;
    ck_assert_int_eq(gpu_begins, _i % 2 == 0 ? 1 : 0);
    for (uint32_t i = 0; i < 3; ++i) keep(&o, bp_session_logits(r.s, i, 0), r.n_vocab);
    bpi_error_clear(&err);
    ck_assert_int_eq(bp_session_step(r.s, it, 3, &err), BP_E_ARG);
    expect(err.msg, "sequence 1 failed");
    bpi_error_clear(&err);
    it[1] = it[2];
    must(bp_session_step(r.s, it, 2, &err), &err);
    const size_t n = r.n_vocab;
    for (uint32_t i = 0; i < 3; i += 2) {
        ck_assert(same_bits(clean.v + (9 + i) * n, o.v + (9 + i) * n, (uint32_t)n));
        ck_assert(same_bits(clean.v + (12 + i) * n, bp_session_logits(r.s, i / 2, 0), (uint32_t)n));
    }
    free(clean.v);
    free(o.v);
    rig_close(&r);
}
END_TEST

static void mend_device(void)
{
    ck_assert_int_eq(gpu_graphs, 0);
    ck_assert_int_eq(gpu_live, 0);
    gpu_lost_in = -1;
    gpu_lost = false;
    n_dev_streams = n_devs = 0;
}

/* The search for the op that made NaN runs the step again: what ends it is told, and neither a lost device nor an
 * interrupt is forgotten over it. */
START_TEST(lost_in_the_search_for_nan)
{
    enum { MANY = 1000000 };
    int n_step = 0, n_both = 0;
    const int32_t ids[1] = {7};
    struct bp_step_item it = item(0, ids, 1, 1, BP_STEP_DECODE);
    for (int round = 0; round < 5; ++round) {
        struct rig r = open_on(ZOO("zoo-v3"), eager);
        struct bp_error err = BP_ERROR_INIT;
        must(bp_session_step(r.s, &it, 1, &err), &err);
        const int lost_in[] = {MANY, MANY, n_step + 1, (n_step + n_both) / 2, n_both};
        gpu_lost_in = lost_in[round];
        if (round == 0) {
            must(bp_session_step(r.s, &it, 1, &err), &err);
            n_step = MANY - gpu_lost_in;
        } else {
            gpu_nan_kind = K_DECODE;
            gpu_nan_layer = 1;
            gpu_nan_row = gpu_nan_width = 0;
            ck_assert_int_eq(bp_session_step(r.s, &it, 1, &err),
                             round == 1 ? BP_E_NUMERIC : BP_E_DEVICE_LOST);
            gpu_nan_kind = -1;
        }
        if (round == 1) {
            n_both = MANY - gpu_lost_in;
            ck_assert_int_gt(n_both, 2 * n_step);
        } else if (round > 1) {
            expect(err.msg, "the card fell off the bus");
            bpi_error_clear(&err);
            ck_assert_int_eq(bp_session_step(r.s, &it, 1, &err), BP_E_DEVICE_LOST);
            expect(err.msg, "in an earlier step");
            ck_assert_uint_eq(bp_seq_len(r.s, 0), 1);
        }
        rig_close(&r);
        mend_device();
    }
}
END_TEST

START_TEST(interrupted_in_the_search_for_nan)
{
    const int32_t ids[1] = {7};
    struct bp_error err = BP_ERROR_INIT;
    struct bp_step_item it = item(0, ids, 1, 1, BP_STEP_DECODE);
    struct rig r = open_on(ZOO("zoo-v3"), eager);
    must(bp_session_step(r.s, &it, 1, &err), &err);
    gpu_nan_kind = K_DECODE;
    gpu_nan_layer = 1;
    gpu_interrupted = r.s;
    ck_assert_int_eq(bp_session_step(r.s, &it, 1, &err), BP_E_ABORTED);
    ck_assert_uint_eq(bp_seq_len(r.s, 0), 1);
    bpi_error_clear(&err);
    ck_assert_int_eq(bp_session_step(r.s, &it, 1, &err), BP_E_NUMERIC);
    expect(err.msg, "blk.1.attn.o_lat");
    rig_close(&r);
}
END_TEST

/* ---- memory ---- */

/* What is missing is said before a byte goes to the device, and what is asked for is enough. */
START_TEST(too_little_memory)
{
    struct bp_error err = BP_ERROR_INIT;
    unsigned long long need = 0;
    struct rig r;
    gpu_free_bytes = 4096;
    ck_assert_int_eq(try_open(&r, zoo[_i], graphs, &err), BP_E_LIMIT);
    expect(err.msg, "and 4096 are free");
    const char *at = strstr(err.msg, "needs ");
    ck_assert_ptr_nonnull(at);
    ck_assert_int_eq(sscanf(at, "needs %llu bytes", &need), 1);
    ck_assert_int_eq(n_blocks, 0);
    ck_assert_int_eq(n_copies, 0);
    rig_close(&r);
    bpi_error_clear(&err);
    gpu_free_bytes = need - 1;
    ck_assert_int_eq(try_open(&r, zoo[_i], graphs, &err), BP_E_LIMIT);
    rig_close(&r);
    bpi_error_clear(&err);
    gpu_free_bytes = need;
    must(try_open(&r, zoo[_i], graphs, &err), &err);
    struct bp_decision row = {.h = BP_HDR(struct bp_decision, weight_bytes)};
    const struct bp_decisions *d = bp_session_decisions(r.s);
    /* Weights as the file has them, but k_b and v_b decoded - of which ref's handles, on the host, hold a few words more
     * - what was taken, and room for preparing. */
    uint64_t all = gpu_taken + (UINT64_C(128) << 20), file = 0, common = 0;
    for (uint32_t i = 0; bp_decision(d, i, &row) == BP_OK; ++i) {
        const bool is_common = strcmp(row.slot, "mla.common") == 0;
        all += is_common ? row.weight_bytes : row.file_bytes;
        if (is_common) common += row.weight_bytes, file += row.file_bytes;
    }
    ck_assert_uint_gt(common, file + 2 * 4096);
    ck_assert_uint_le(need, all);
    ck_assert_uint_ge(need + 4096, all);
    rig_close(&r);
}
END_TEST

/* ---- a device that is lost ---- */

/* At whatever call: one sentence, then the same reason for every further step, and closing works. */
START_TEST(lost_at_any_call)
{
    const char *const *const set = _i == 0 ? graphs : eager;
    const int32_t ids[2] = {7, 8};
    bool whole = false;
    for (int at = 1; !whole; at += at < 12 ? 1 : 7) {
        struct rig r = open_on(ZOO("zoo-glm47flash"), set);
        struct bp_error err = BP_ERROR_INIT, again = BP_ERROR_INIT;
        struct bp_step_item it = item(0, ids, 1, 1, BP_STEP_DECODE);
        int32_t rc = BP_OK;
        gpu_lost_in = at;
        for (int i = 0; i < 4 && rc == BP_OK; ++i) rc = bp_session_step(r.s, &it, 1, &err);
        whole = rc == BP_OK;
        if (whole) {
            ck_assert_int_gt(at, 40);
        } else {
            ck_assert_int_eq(rc, BP_E_DEVICE_LOST);
            expect(err.msg, "the card fell off the bus");
            expect(err.msg, "fakegpu");
            expect(err.msg, "CUDA_LAUNCH_BLOCKING=1");
            ck_assert_int_eq(bp_session_step(r.s, &it, 1, &again), BP_E_DEVICE_LOST);
            expect(again.msg, "in an earlier step");
            expect(again.msg, "the card fell off the bus");
        }
        rig_close(&r);
        mend_device();
    }
}
END_TEST

START_TEST(lost_while_opening)
{
    int opened = 0;
    for (int at = 1; opened == 0; at += at < 40 ? 1 : 7) {
        struct rig r;
        struct bp_error err = BP_ERROR_INIT;
        gpu_lost_in = at;
        int32_t rc = try_open(&r, ZOO("zoo-glm47flash"), graphs, &err);
        if (rc == BP_OK) {
            opened = at;
        } else {
            ck_assert_int_eq(rc, BP_E_DEVICE_LOST);
            expect(err.msg, "the card fell off the bus");
        }
        rig_close(&r);
        mend_device();
    }
    ck_assert_int_gt(opened, 20);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_faults");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 300);
    tcase_add_test(tc, auto_hides_no_failure);
    tcase_add_loop_test(tc, nan_stays_in_its_sequence, 0, 6);
    tcase_add_test(tc, lost_in_the_search_for_nan);
    tcase_add_test(tc, interrupted_in_the_search_for_nan);
    tcase_add_loop_test(tc, too_little_memory, 0, 4);
    tcase_add_loop_test(tc, lost_at_any_call, 0, 2);
    tcase_add_test(tc, lost_while_opening);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
