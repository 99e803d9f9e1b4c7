/* test_sdk_verdict.c - verdicts, layouts and workspaces of sdk.h: every reason is kept, none stops early, nothing is
 * written past what the caller gave. SPDX-License-Identifier: MIT */
#include "backplane/sdk.h"

#include <check.h>
#include <stdlib.h>

enum { CAP = 4, STRIDE = sizeof(struct bp_reason) + 16 };

static struct bp_verdict v;
static unsigned char memory[CAP * STRIDE];
static uint64_t layouts[2];

static void fresh(void)
{
    memset(memory, 0xee, sizeof memory);
    v = (struct bp_verdict){
        .h = BP_HDR(struct bp_verdict, cost_us), .cap_reasons = CAP, .reason_stride = STRIDE};
    v.reasons = (struct bp_reason *)(void *)memory;
    v.layouts = layouts;
    v.cap_layouts = 2;
}

static const struct bp_reason *reason(uint32_t i)
{
    return (const struct bp_reason *)(const void *)(memory + i * STRIDE);
}

static void begin(void)
{
    static const struct bp_hdr problem = {100, 0, NULL};
    fresh();
    ck_assert_int_eq(bp_verdict_begin(&v, &problem, 100), 1);
}

START_TEST(good_problem_is_yes)
{
    const uint32_t types[] = {8, 14};
    begin();
    bp_want_eq(&v, BP_R_SHAPE, "a", 5, 5);
    bp_want_range(&v, BP_R_SHAPE, "b", -1, -1, 1);
    bp_want_range(&v, BP_R_SHAPE, "b", 1, -1, 1);
    bp_want_le(&v, BP_R_GRAPH, "c", 3, 3);
    bp_want_ge(&v, BP_R_GRAPH, "c", 3, 3);
    bp_want_mul(&v, BP_R_ALIGN, "d", 128, 64);
    bp_want_of(&v, BP_R_QUANT, "e", 14, types, 2);
    bp_want_dtype(&v, "f", BP_DT_BF16, BP_SET(BP_DT_F32) | BP_SET(BP_DT_BF16));
    bp_want_host(&v, NULL);
    ck_assert_int_eq(bp_verdict_done(&v, BP_CAPTURE_ANY, BP_DET_RUN, 3.5), BP_OK);
    ck_assert_uint_eq(v.level, BP_V_YES);
    ck_assert_uint_eq(v.n_reasons, 0);
    ck_assert_uint_eq(v.capture, BP_CAPTURE_ANY);
    ck_assert_uint_eq(v.determinism, BP_DET_RUN);
    ck_assert(v.cost_us == 3.5);
    for (size_t i = 0; i < sizeof memory; ++i) ck_assert_uint_eq(memory[i], 0xee);
}
END_TEST

START_TEST(each_want_adds_its_reason)
{
    const uint32_t types[] = {14, 8};
    begin();
    bp_want_eq(&v, BP_R_SHAPE, "kv_rank", 256, 512);
    bp_want_mul(&v, BP_R_ALIGN, "block_tok", 65, 64);
    bp_want_of(&v, BP_R_QUANT, "w.type", 9, types, 2);
    bp_want_dtype(&v, "kv_dtype", BP_DT_F16, BP_SET(BP_DT_F32) | BP_SET(BP_DT_BF16));
    bp_want_le(&v, BP_R_GRAPH, "need_capture", 3, 1); /* one more than there is room for */
    (void)bp_verdict_done(&v, BP_CAPTURE_ANY, BP_DET_BATCH, -1.0);
    ck_assert_uint_eq(v.level, BP_V_NO);
    ck_assert_uint_eq(v.capture, BP_CAPTURE_NONE);
    ck_assert_uint_eq(v.n_reasons, 5);
    ck_assert_uint_eq(reason(0)->code, BP_R_SHAPE);
    ck_assert_uint_eq(reason(0)->critical, 1);
    ck_assert_str_eq(reason(0)->field, "kv_rank");
    ck_assert_int_eq(reason(0)->got, 256);
    ck_assert_int_eq(reason(0)->want_lo, 512);
    ck_assert_int_eq(reason(0)->want_hi, 512);
    ck_assert_str_eq(reason(1)->text, "must be a multiple of 64");
    ck_assert_int_eq(reason(2)->want_lo, 8);
    ck_assert_int_eq(reason(2)->want_hi, 14);
    ck_assert_str_eq(reason(2)->text, "must be one of 14, 8");
    ck_assert_uint_eq(reason(3)->code, BP_R_DTYPE);
    ck_assert_str_eq(reason(3)->text, "has dtype f16, and this plugin takes f32, bf16");
    for (uint32_t i = 0; i < CAP; ++i) /* the gaps between the elements belong to nobody */
        for (uint32_t at = sizeof(struct bp_reason); at < STRIDE; ++at)
            ck_assert_uint_eq(memory[i * STRIDE + at], 0xee);
}
END_TEST

START_TEST(shorter_reasons_and_none)
{
    begin();
    v.reason_stride = offsetof(struct bp_reason, text); /* of an older caller */
    bp_want_eq(&v, BP_R_SHAPE, "a", 1, 2);
    ck_assert_uint_eq(memory[offsetof(struct bp_reason, text)], 0xee);
    ck_assert_str_eq(reason(0)->field, "a");
    begin();
    v.reasons = NULL;
    bp_want_eq(&v, BP_R_SHAPE, "a", 1, 2);
    ck_assert_uint_eq(v.n_reasons, 1);
    ck_assert_uint_eq(v.level, BP_V_NO);
}
END_TEST

START_TEST(slow_is_degraded_and_never_better)
{
    begin();
    bp_note_slow(&v, BP_R_SHAPE, "n_head", 3, 16, 128, "few heads leave the device empty");
    (void)bp_verdict_done(&v, BP_CAPTURE_Q1, BP_DET_RUN, -1.0);
    ck_assert_uint_eq(v.level, BP_V_DEGRADED);
    ck_assert_uint_eq(reason(0)->critical, 0);
    ck_assert_uint_eq(v.capture, BP_CAPTURE_Q1);
    begin();
    bp_want_eq(&v, BP_R_SHAPE, "a", 1, 2);
    bp_note_slow(&v, BP_R_SHAPE, "n_head", 3, 16, 128, "slow");
    (void)bp_verdict_done(&v, BP_CAPTURE_Q1, BP_DET_RUN, -1.0);
    ck_assert_uint_eq(v.level, BP_V_NO);
}
END_TEST

START_TEST(long_texts_are_cut)
{
    char text[300];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    begin();
    bp_reason_add(&v, BP_R_VENDOR, 1, text, 0, 0, 0, text);
    ck_assert_uint_eq(strlen(reason(0)->field), sizeof reason(0)->field - 1);
    ck_assert_uint_eq(strlen(reason(0)->text), sizeof reason(0)->text - 1);
}
END_TEST

START_TEST(short_problems_and_critical_extensions)
{
    const struct bp_ext known = {sizeof known, BP_EXT_CRITICAL, 7, NULL};
    const struct bp_ext first = {sizeof first, 0, 6, &known};
    const struct bp_hdr short_one = {96, 0, NULL}, extended = {100, 0, &first};
    fresh();
    v.n_reasons = 9; /* left over from an earlier question */
    ck_assert_int_eq(bp_verdict_begin(&v, &short_one, 100), 0);
    ck_assert_uint_eq(v.level, BP_V_NO);
    ck_assert_uint_eq(v.n_reasons, 1);
    ck_assert_uint_eq(reason(0)->code, BP_R_ABI);
    ck_assert_int_eq(reason(0)->got, 96);
    ck_assert_int_eq(reason(0)->want_lo, 100);
    fresh();
    ck_assert_int_eq(bp_verdict_begin(&v, &extended, 100), 1);
    ck_assert_uint_eq(v.n_reasons, 1);
    ck_assert_uint_eq(reason(0)->code, BP_R_EXT);
    ck_assert_int_eq(reason(0)->got, 7);
    (void)bp_verdict_done(&v, 0, 0, 0.0);
    ck_assert_uint_eq(v.level, BP_V_NO);
}
END_TEST

START_TEST(devices)
{
    struct bp_device dev = {
        .h = BP_HDR(struct bp_device, name), .kind = BP_DEV_CUDA, .cc_major = 12};
    begin();
    bp_want_cc(&v, &dev, 90, 120);
    ck_assert_uint_eq(v.n_reasons, 0);
    bp_want_cc(&v, &dev, 90, 103);
    ck_assert_uint_eq(reason(0)->code, BP_R_ARCH);
    ck_assert_int_eq(reason(0)->got, 120);
    bp_want_host(&v, &dev);
    ck_assert_uint_eq(reason(1)->code, BP_R_DEVICE);
    bp_want_cc(&v, NULL, 90, 120);
    ck_assert_uint_eq(reason(2)->code, BP_R_DEVICE);
    ck_assert_uint_eq(v.n_reasons, 3);
}
END_TEST

START_TEST(layouts_are_offered_and_checked)
{
    char name[32];
    begin();
    ck_assert_uint_eq(bp_layout_name(name, "mla", BP_DT_BF16, 576), bp_id("mla.bf16.576"));
    ck_assert_str_eq(name, "mla.bf16.576");
    ck_assert_uint_eq(bp_layout_name(name, "mla.index", BP_DT_F32, 128),
                      bp_id("mla.index.f32.128"));
    ck_assert_uint_eq(bp_layout_name(name, "mla", BP_DT_U8, 576), 0);
    ck_assert_uint_eq(bp_offer_layout(&v, "mla.bf16.576"), bp_id("mla.bf16.576"));
    (void)bp_offer_layout(&v, "b");
    (void)bp_offer_layout(&v, "c"); /* no room: dropped, not written */
    ck_assert_uint_eq(v.n_layouts, 2);
    bp_want_layout(&v, "layout_id", 0); /* still being negotiated */
    bp_want_layout(&v, "layout_id", bp_id("b"));
    ck_assert_uint_eq(v.n_reasons, 0);
    bp_want_layout(&v, "layout_id", bp_id("c"));
    ck_assert_uint_eq(v.n_reasons, 1);
    ck_assert_uint_eq(reason(0)->code, BP_R_LAYOUT);
}
END_TEST

START_TEST(areas_count_and_lay_out_alike)
{
    struct bp_area a;
    _Alignas(64) unsigned char mem[256];
    bp_area_count(&a);
    ck_assert_ptr_null(bp_area_take(&a, 3, 7));
    ck_assert_ptr_null(bp_area_take(&a, 0, 8));
    ck_assert_ptr_null(bp_area_take(&a, 65, 1));
    ck_assert_uint_eq(a.used, 64 + 128);
    ck_assert_uint_eq(a.bad, 0);
    bp_area_of(&a, mem, 192);
    ck_assert_ptr_eq(bp_area_take(&a, 3, 7), mem);
    (void)bp_area_take(&a, 0, 8);
    ck_assert_ptr_eq(bp_area_take(&a, 65, 1), mem + 64);
    ck_assert_uint_eq(a.bad, 0);
    ck_assert_ptr_null(bp_area_take(&a, 1, 1));
    ck_assert_uint_eq(a.bad, 1);
    ck_assert_ptr_null(bp_area_take(&a, 0, 1)); /* and stays bad */
    bp_area_of(&a, mem, 191);
    (void)bp_area_take(&a, 3, 7);
    ck_assert_ptr_null(bp_area_take(&a, 65, 1));
    ck_assert_uint_eq(a.bad, 1);
    bp_area_of(&a, NULL, 1000);
    ck_assert_ptr_null(bp_area_take(&a, 1, 1));
    ck_assert_uint_eq(a.bad, 1);
    bp_area_count(&a);
    (void)bp_area_take(&a, UINT64_MAX / 2, 3);
    ck_assert_uint_eq(a.bad, 1);
    bp_area_count(&a);
    (void)bp_area_take(&a, UINT64_MAX - 63, 1);
    (void)bp_area_take(&a, 64, 1);
    ck_assert_uint_eq(a.bad, 1);
}
END_TEST

START_TEST(workspace_is_filled)
{
    struct bp_workspace ws = {.h = BP_HDR(struct bp_workspace, persistent_zeroed),
                              .persistent_zeroed = 9};
    ck_assert_int_eq(bp_workspace_set(&ws, 1, 2, 3, 4), BP_OK);
    ck_assert(ws.persistent_bytes == 1 && ws.plan_bytes == 2 && ws.scratch_bytes == 3 &&
              ws.pinned_bytes == 4);
    ck_assert(ws.align == 64 && ws.persistent_zeroed == 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("sdk_verdict");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, good_problem_is_yes);
    tcase_add_test(tc, each_want_adds_its_reason);
    tcase_add_test(tc, shorter_reasons_and_none);
    tcase_add_test(tc, slow_is_degraded_and_never_better);
    tcase_add_test(tc, long_texts_are_cut);
    tcase_add_test(tc, short_problems_and_critical_extensions);
    tcase_add_test(tc, devices);
    tcase_add_test(tc, layouts_are_offered_and_checked);
    tcase_add_test(tc, areas_count_and_lay_out_alike);
    tcase_add_test(tc, workspace_is_filled);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
