/* test_device_session.c - a session on a device with ops of its own (fake_gpu.h): the numbers of the host, steps as captured
 * graphs, what auto chooses. Not here: what goes wrong there (test_device_faults.c). SPDX-License-Identifier: MIT */
#include "device_rig.h"
#include <math.h>

/* ---- the same numbers ---- */

/* Prompts of two sequences, then single tokens over the edges of all buckets; a step with a prompt in between; one
 * sequence cut back and grown again; changing wishes for logits; several tokens of each sequence. */
static struct out scenario(struct rig *r)
{
    struct bp_error err = BP_ERROR_INIT;
    struct out o = {NULL, 0, 0};
    int32_t *ids = random_ids(29, 400, r->n_vocab), *at = ids;
    prefill(r, 0, at, 9, 9, NULL);
    prefill(r, 1, at += 9, 3, 3, NULL);
    for (int i = 0; i < 30; ++i, at += 2) decode_step(r, at, 2, 3, &o);
    struct bp_step_item mixed[2] = {item(0, at, 1, 1, BP_STEP_DECODE), item(2, at + 1, 20, 1, 0)};
    must(bp_session_step(r->s, mixed, 2, &err), &err);
    keep(&o, bp_session_logits(r->s, 0, 0), r->n_vocab);
    at += 21;
    must(bp_seq_truncate(r->s, 0, 5, &err), &err);
    for (int i = 0; i < 8; ++i, at += 3) decode_step(r, at, 3, i < 4 ? 7 : 5, &o);
    for (int i = 0; i < 4; ++i, at += 4) {
        struct bp_step_item two[2] = {item(0, at, 2, 1, BP_STEP_DECODE),
                                      item(1, at + 2, 2, 2, BP_STEP_DECODE)};
        must(bp_session_step(r->s, two, 2, &err), &err);
        keep(&o, bp_session_logits(r->s, 0, 0), r->n_vocab);
        keep(&o, bp_session_logits(r->s, 1, 1), r->n_vocab);
    }
    for (int i = 0; i < 50; ++i, at += 1) decode_step(r, at, 1, 1, &o);
    free(ids);
    return o;
}

static struct out run_scenario(const char *path, const char *const *set)
{
    struct rig r = open_on(path, set);
    struct out o = scenario(&r);
    rig_close(&r);
    ck_assert_int_eq(gpu_live, 0);
    ck_assert_int_eq(gpu_graphs, 0);
    return o;
}

START_TEST(graphs_give_the_bits_of_single_calls)
{
    struct out host = run_scenario(zoo[_i], on_cpu);
    ck_assert_int_eq(gpu_calls, 0);
    struct out one = run_scenario(zoo[_i], eager);
    ck_assert_int_gt(gpu_calls, 1000);
    ck_assert_int_eq(gpu_begins, 0);
    const int calls = gpu_calls;
    struct out all = run_scenario(zoo[_i], graphs);
    ck_assert_int_gt(gpu_begins, 3);
    ck_assert_int_gt(gpu_launches, 60);
    ck_assert_int_lt(gpu_calls - calls, calls * 2 / 3);
    struct out on = run_scenario(zoo[_i], demanded);
    ck_assert_uint_eq(host.n, one.n);
    ck_assert_uint_eq(host.n, all.n);
    ck_assert_uint_eq(host.n, on.n);
    ck_assert(same_bits(host.v, one.v, (uint32_t)host.n));
    ck_assert(same_bits(host.v, all.v, (uint32_t)host.n));
    ck_assert(same_bits(host.v, on.v, (uint32_t)host.n));
    free(host.v);
    free(one.v);
    free(all.v);
    free(on.v);
}
END_TEST

/* Two tokens of two sequences are not one token of four, though rows and logits are as many. */
START_TEST(shapes_that_look_alike)
{
    struct out o[2] = {{NULL, 0, 0}, {NULL, 0, 0}};
    for (int k = 0; k < 2; ++k) {
        struct rig r = open_on(ZOO("zoo-glm47flash"), k == 0 ? eager : graphs);
        struct bp_error err = BP_ERROR_INIT;
        const int32_t ids[4] = {7, 8, 9, 10};
        for (int i = 0; i < 3; ++i) {
            struct bp_step_item two[2] = {item(0, ids, 2, 2, BP_STEP_DECODE),
                                          item(1, ids + 2, 2, 2, BP_STEP_DECODE)};
            must(bp_session_step(r.s, two, 2, &err), &err);
            for (uint32_t j = 0; j < 4; ++j)
                keep(&o[k], bp_session_logits(r.s, j / 2, j % 2), r.n_vocab);
        }
        for (uint32_t i = 0; i < 4; ++i) must(bp_seq_reset(r.s, i, &err), &err);
        for (int i = 0; i < 3; ++i) decode_step(&r, ids, 4, 15, &o[k]);
        rig_close(&r);
    }
    ck_assert_int_eq(gpu_begins, 2);
    ck_assert_uint_eq(o[0].n, o[1].n);
    ck_assert(same_bits(o[0].v, o[1].v, (uint32_t)o[0].n));
    free(o[0].v);
    free(o[1].v);
}
END_TEST

/* One wait a step, whether captured or not. */
START_TEST(one_wait_a_step)
{
    struct rig r = open_on(ZOO("zoo-glm47flash"), graphs);
    struct out o = {NULL, 0, 0};
    const int32_t ids[1] = {7};
    const int before = gpu_syncs;
    for (int i = 0; i < 6; ++i) decode_step(&r, ids, 1, 1, &o);
    ck_assert_int_eq(gpu_syncs - before, 6);
    ck_assert_int_eq(gpu_begins, 1);
    ck_assert_int_eq(gpu_launches, 5);
    free(o.v);
    rig_close(&r);
}
END_TEST

/* More shapes than graphs are kept: the oldest go, and come back when they are wanted. */
START_TEST(few_graphs_are_kept)
{
    struct rig r = open_on(ZOO("zoo-glm47flash"), graphs);
    struct out o = {NULL, 0, 0};
    struct bp_error err = BP_ERROR_INIT;
    const int32_t ids[5] = {7, 8, 9, 10, 11};
    for (int round = 0; round < 2; ++round) {
        for (uint32_t mask = 1; mask < 32; ++mask) {
            for (uint32_t i = 0; i < 5; ++i) must(bp_seq_reset(r.s, i, &err), &err);
            for (int k = 0; k < 3; ++k) decode_step(&r, ids, 5, mask, &o);
        }
    }
    ck_assert_int_eq(gpu_begins, 62);
    ck_assert_int_eq(gpu_launches, 124);
    ck_assert_int_eq(gpu_graphs, 16);
    ck_assert(same_bits(o.v, o.v + o.n / 2, (uint32_t)(o.n / 2)));
    free(o.v);
    rig_close(&r);
    ck_assert_int_eq(gpu_graphs, 0);
}
END_TEST

/* Whoever looks at a step sees its single calls. */
static void count_tap(void *ctx, const struct bp_tap_event *e)
{
    (void)e;
    ++*(int *)ctx;
}
START_TEST(taps_stop_graphs)
{
    struct rig r = open_on(ZOO("zoo-glm47flash"), graphs);
    struct bp_error err = BP_ERROR_INIT;
    struct out o = {NULL, 0, 0};
    int n = 0;
    const int32_t ids[1] = {7};
    must(bp_session_tap(r.s, "blk.0.out", count_tap, &n, &err), &err);
    for (int i = 0; i < 4; ++i) decode_step(&r, ids, 1, 1, &o);
    ck_assert_int_eq(gpu_begins, 0);
    ck_assert_int_eq(n, 4);
    must(bp_session_tap(r.s, NULL, NULL, NULL, &err), &err);
    for (int i = 0; i < 3; ++i) decode_step(&r, ids, 1, 1, &o);
    ck_assert_int_eq(gpu_begins, 1);
    ck_assert_int_eq(n, 4);
    free(o.v);
    rig_close(&r);
}
END_TEST

/* ---- what cannot be captured ---- */

START_TEST(an_op_that_cannot_be_captured)
{
    static const char *const name[] = {"bp.dense",      "bp.quant",     "bp.mla.common", NULL,
                                       "bp.mla.decode", "bp.mla.index", "bp.moe"};
    struct bp_error err = BP_ERROR_INIT;
    struct rig r;
    gpu_capture[G_PREFILL] = BP_CAPTURE_ANY;
    gpu_capture[_i] = BP_CAPTURE_NONE;
    int32_t rc = try_open(&r, ZOO("zoo-glm5"), demanded, &err);
    if (name[_i] == NULL) { /* no step of single tokens calls it */
        must(rc, &err);
    } else {
        ck_assert_int_eq(rc, BP_E_CONFIG);
        expect(err.msg, "engine.graph = on");
        expect(err.msg, name[_i]);
        expect(err.msg, "fakegpu");
    }
    rig_close(&r);
    r = open_on(ZOO("zoo-glm5"), graphs);
    struct out o = {NULL, 0, 0};
    const int32_t ids[1] = {7};
    for (int i = 0; i < 4; ++i) decode_step(&r, ids, 1, 1, &o);
    ck_assert_int_eq(gpu_begins, name[_i] == NULL ? 1 : 0);
    free(o.v);
    rig_close(&r);
}
END_TEST

START_TEST(an_op_on_the_host_is_not_captured)
{
    static const char *const host_moe[] = {COMMON, "engine.device=cuda:0", "engine.graph=on",
                                           "slots.moe=ref", NULL};
    struct bp_error err = BP_ERROR_INIT;
    struct rig r;
    ck_assert_int_eq(try_open(&r, ZOO("zoo-v3"), host_moe, &err), BP_E_CONFIG);
    expect(err.msg, "bp.moe of ref");
    expect(err.msg, "computes on the host");
    rig_close(&r);
}
END_TEST

/* One query per sequence can be captured, several cannot. */
START_TEST(single_queries_only)
{
    struct bp_error err = BP_ERROR_INIT;
    const int32_t ids[2] = {7, 8};
    gpu_capture[G_DECODE] = BP_CAPTURE_Q1;
    struct rig r = open_on(ZOO("zoo-glm47flash"), graphs);
    for (int i = 0; i < 4; ++i) {
        struct bp_step_item it = item(0, ids, 2, 1, BP_STEP_DECODE);
        must(bp_session_step(r.s, &it, 1, &err), &err);
    }
    ck_assert_int_eq(gpu_begins, 0);
    struct out o = {NULL, 0, 0};
    for (int i = 0; i < 3; ++i) decode_step(&r, ids, 1, 1, &o);
    ck_assert_int_eq(gpu_begins, 1);
    free(o.v);
    rig_close(&r);
}
END_TEST

START_TEST(a_capture_that_fails)
{
    struct out good = run_scenario(ZOO("zoo-glm47flash"), eager);
    gpu_fail_end = 1;
    n_warnings = 0;
    struct out all = run_scenario(ZOO("zoo-glm47flash"), graphs);
    ck_assert_int_eq(gpu_fail_end, 0);
    ck_assert_int_eq(gpu_begins, 1);
    ck_assert_int_eq(gpu_launches, 0);
    ck_assert_int_eq(n_warnings, 1);
    expect(last_line, "the capture was spoilt");
    ck_assert_uint_eq(good.n, all.n);
    ck_assert(same_bits(good.v, all.v, (uint32_t)good.n));
    free(good.v);
    free(all.v);
    gpu_fail_end = 1;
    struct rig r = open_on(ZOO("zoo-glm47flash"), demanded);
    struct bp_error err = BP_ERROR_INIT;
    const int32_t ids[1] = {7};
    struct bp_step_item it = item(0, ids, 1, 1, BP_STEP_DECODE);
    must(bp_session_step(r.s, &it, 1, &err), &err);
    ck_assert_int_eq(bp_session_step(r.s, &it, 1, &err), BP_E_DEVICE);
    expect(err.msg, "could not be captured");
    ck_assert_uint_eq(bp_seq_len(r.s, 0), 1);
    rig_close(&r);
}
END_TEST

/* A device slot may have none: no fault, unless they were demanded. */
START_TEST(no_graphs_at_all)
{
    gpu_no_graphs = true;
    n_warnings = 0;
    struct out a = run_scenario(ZOO("zoo-glm47flash"), eager),
               b = run_scenario(ZOO("zoo-glm47flash"), graphs);
    ck_assert_int_eq(n_warnings, 0);
    ck_assert_uint_eq(a.n, b.n);
    ck_assert(same_bits(a.v, b.v, (uint32_t)a.n));
    free(a.v);
    free(b.v);
    struct rig r = open_on(ZOO("zoo-glm47flash"), demanded);
    struct bp_error err = BP_ERROR_INIT;
    const int32_t ids[1] = {7};
    struct bp_step_item it = item(0, ids, 1, 1, BP_STEP_DECODE);
    must(bp_session_step(r.s, &it, 1, &err), &err);
    ck_assert_int_eq(bp_session_step(r.s, &it, 1, &err), BP_E_UNSUPPORTED);
    expect(err.msg, "this device has no graphs");
    rig_close(&r);
}
END_TEST

/* ---- what auto chooses ---- */

static struct bp_decisions *explain(const char *path, const char *const *set)
{
    struct bp_error err = BP_ERROR_INIT;
    struct bp_config *c = config(set);
    struct bp_model *m;
    struct bp_decisions *d;
    must(bp_model_open_headers(path, c, NULL, &m, &err), &err);
    must(bp_explain(m, c, NULL, &d, &err), &err);
    bp_model_close(m);
    bp_config_destroy(c);
    return d;
}

START_TEST(auto_takes_the_device_and_bf16)
{
    static const char *const plain[] = {COMMON, NULL};
    struct bp_decisions_info info = {.h = BP_HDR(struct bp_decisions_info, scratch_bytes)};
    struct bp_decisions *d = explain(ZOO("zoo-glm5"), plain);
    bp_decisions_info(d, &info);
    ck_assert_uint_eq(info.device_kind, BP_DEV_CUDA);
    ck_assert_str_eq(info.device_asked, "auto");
    expect(info.device_why, "fakegpu");
    ck_assert_str_eq(info.act_asked, "auto");
    ck_assert_str_eq(info.act_dtype, "bf16");
    ck_assert_str_eq(info.act_why, "");
    struct bp_decision row = {.h = BP_HDR(struct bp_decision, weight_bytes)};
    for (uint32_t i = 0; bp_decision(d, i, &row) == BP_OK; ++i) ck_assert_uint_eq(row.on_host, 0);
    bp_decisions_close(d);
    gpu_absent = true;
    d = explain(ZOO("zoo-glm5"), plain);
    bp_decisions_info(d, &info);
    ck_assert_uint_eq(info.device_kind, BP_DEV_HOST);
    expect(info.device_why, "there are 0 cards in this machine");
    ck_assert_str_eq(info.act_dtype, "f32");
    expect(info.act_why, "host");
    bp_decisions_close(d);
}
END_TEST

/* Binding that is only tried says nothing. */
START_TEST(the_cache_is_told_once)
{
    static const char *const plain[] = {COMMON, "engine.log=info", NULL};
    counted = "kv.dtype = ";
    struct rig r = open_on(ZOO("zoo-glm5"), plain);
    ck_assert_int_eq(n_counted, 1);
    rig_close(&r);
}
END_TEST

START_TEST(a_device_that_is_not_there)
{
    struct bp_error err = BP_ERROR_INIT;
    struct rig r;
    gpu_absent = true;
    ck_assert_int_eq(try_open(&r, ZOO("zoo-glm5"), eager, &err), BP_E_CONFIG);
    expect(err.msg, "engine.device = cuda:0");
    expect(err.msg, "there are 0 cards in this machine");
    rig_close(&r);
    static const char *const named[] = {COMMON, "slots.device=fakegpu", NULL};
    bpi_error_clear(&err);
    ck_assert_int_eq(try_open(&r, ZOO("zoo-glm5"), named, &err), BP_E_CONFIG);
    expect(err.msg, "there are 0 cards in this machine");
    expect(err.msg, "no provider of \"fakegpu\" can serve");
    rig_close(&r);
}
END_TEST

/* Whoever takes f32 only keeps everything in f32, rather than being replaced by the host. */
START_TEST(one_without_bf16)
{
    static const char *const plain[] = {COMMON, "engine.device=cuda:0", NULL};
    static const char *const bf16[] = {COMMON, "engine.device=cuda:0", "engine.act=bf16", NULL};
    struct bp_decisions_info info = {.h = BP_HDR(struct bp_decisions_info, scratch_bytes)};
    gpu_f32_only[_i] = true;
    struct bp_decisions *d = explain(ZOO("zoo-glm5"), plain);
    bp_decisions_info(d, &info);
    ck_assert_str_eq(info.act_dtype, "f32");
    expect(info.act_why, "fakegpu: DTYPE");
    expect(info.act_why, "got bf16");
    struct bp_decision row = {.h = BP_HDR(struct bp_decision, weight_bytes)};
    for (uint32_t i = 0; bp_decision(d, i, &row) == BP_OK; ++i) ck_assert_uint_eq(row.on_host, 0);
    bp_decisions_close(d);
    d = explain(ZOO("zoo-glm5"), bf16);
    bp_decisions_info(d, &info);
    ck_assert_str_eq(info.act_dtype, "bf16");
    uint32_t carried = 0;
    for (uint32_t i = 0; bp_decision(d, i, &row) == BP_OK; ++i) carried += row.on_host;
    ck_assert_uint_gt(carried, 0);
    bp_decisions_close(d);
}
END_TEST

/* Products in the plain form only: the engine composes the rest. In f32 with the same bits; in bf16 with what is rounded in
 * between, but for what goes from F32 to F32, and captured like anything else. */
START_TEST(composed_forms)
{
    static const char *const gpu16[] = {COMMON, "engine.device=cuda:0", "engine.act=bf16",
                                        "engine.graph=on", NULL};
    struct out fused = run_scenario(zoo[_i], on_cpu), fused16 = run_scenario(zoo[_i], gpu16);
    gpu_plain = true;
    struct out plain = run_scenario(zoo[_i], graphs), plain16 = run_scenario(zoo[_i], gpu16);
    ck_assert_uint_eq(fused.n, plain.n);
    ck_assert(same_bits(fused.v, plain.v, (uint32_t)fused.n));
    double near = 0.0, far = 0.0;
    for (size_t i = 0; i < fused.n; ++i) {
        near += fabs((double)plain16.v[i] - (double)fused.v[i]);
        far += fabs((double)fused16.v[i] - (double)fused.v[i]);
        ck_assert(isfinite(plain16.v[i]));
    }
    ck_assert_double_gt(near, 0.0);
    ck_assert_double_lt(near, 4.0 * far);
    free(fused.v);
    free(fused16.v);
    free(plain.v);
    free(plain16.v);
}
END_TEST

/* Whatever an activation is kept in, a tap shows F32. */
static void check_tap(void *ctx, const struct bp_tap_event *e)
{
    const struct bp_tensor *t = e->data;
    const bool choice = strstr(e->name, "ids") != NULL;
    ck_assert_msg(t->dtype == (choice ? BP_DT_I32 : BP_DT_F32), "%s", e->name);
    for (int64_t i = 0; i < t->dim[t->ndim - 1] && !choice; ++i) {
        const float v = ((const float *)t->data)[i];
        ck_assert_msg(fabsf(v) < 1e4f, "%s: %g", e->name, (double)v);
        uint32_t bits;
        memcpy(&bits, &v, sizeof bits);
        if (strstr(e->name, "attn.heads") != NULL) ck_assert_uint_eq(bits & 0xffffu, 0);
    }
    ++*(int *)ctx;
}
START_TEST(taps_are_f32)
{
    static const char *const cpu[] = {COMMON, "engine.device=cpu", "engine.act=bf16", NULL};
    static const char *const gpu[] = {COMMON, "engine.device=cuda:0", "engine.act=bf16", NULL};
    struct rig r = open_on(ZOO("zoo-glm5"), _i == 0 ? cpu : gpu);
    struct bp_error err = BP_ERROR_INIT;
    int n = 0;
    int32_t *ids = random_ids(5, 20, r.n_vocab);
    must(bp_session_tap(r.s, "*", check_tap, &n, &err), &err);
    prefill(&r, 0, ids, 20, 20, NULL);
    ck_assert_int_gt(n, 40);
    free(ids);
    rig_close(&r);
}
END_TEST

/* f16 on request: what overflows is an error that says what to do. */
START_TEST(activations_in_f16)
{
    static const char *const f16[] = {COMMON, "engine.device=cuda:0", "engine.act=f16", NULL};
    struct rig r = open_on(ZOO("zoo-v3"), f16);
    struct bp_error err = BP_ERROR_INIT;
    struct out o = {NULL, 0, 0};
    const int32_t ids[1] = {7};
    decode_step(&r, ids, 1, 1, &o);
    gpu_nan_kind = K_DECODE;
    struct bp_step_item it = item(0, ids, 1, 1, BP_STEP_DECODE);
    ck_assert_int_eq(bp_session_step(r.s, &it, 1, &err), BP_E_NUMERIC);
    expect(err.msg, "blk.0.attn.o_lat");
    expect(err.msg, "engine.act = bf16");
    free(o.v);
    rig_close(&r);
}
END_TEST

/* The same rounding on host and device. */
START_TEST(activations_in_bf16)
{
    static const char *const cpu16[] = {COMMON, "engine.device=cpu", "engine.act=bf16", NULL};
    static const char *const gpu16[] = {COMMON, "engine.device=cuda:0", NULL};
    struct out host = run_scenario(zoo[_i], cpu16), dev = run_scenario(zoo[_i], gpu16);
    struct out f32 = run_scenario(zoo[_i], on_cpu);
    ck_assert_uint_eq(host.n, dev.n);
    ck_assert(same_bits(host.v, dev.v, (uint32_t)host.n));
    ck_assert(!same_bits(host.v, f32.v, (uint32_t)host.n));
    free(host.v);
    free(dev.v);
    free(f32.v);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_session");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 300);
    tcase_add_loop_test(tc, graphs_give_the_bits_of_single_calls, 0, 4);
    tcase_add_test(tc, shapes_that_look_alike);
    tcase_add_test(tc, one_wait_a_step);
    tcase_add_test(tc, few_graphs_are_kept);
    tcase_add_test(tc, taps_stop_graphs);
    tcase_add_loop_test(tc, an_op_that_cannot_be_captured, 0, G_TABLES);
    tcase_add_test(tc, an_op_on_the_host_is_not_captured);
    tcase_add_test(tc, single_queries_only);
    tcase_add_test(tc, a_capture_that_fails);
    tcase_add_test(tc, no_graphs_at_all);
    tcase_add_test(tc, auto_takes_the_device_and_bf16);
    tcase_add_test(tc, the_cache_is_told_once);
    tcase_add_test(tc, a_device_that_is_not_there);
    tcase_add_loop_test(tc, one_without_bf16, 0, G_TABLES);
    tcase_add_loop_test(tc, activations_in_bf16, 0, 2);
    tcase_add_loop_test(tc, composed_forms, 0, 4);
    tcase_add_loop_test(tc, taps_are_f32, 0, 2);
    tcase_add_test(tc, activations_in_f16);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
