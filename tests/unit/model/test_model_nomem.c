/* test_model_nomem.c - every allocation of an open and of a survey fails once: BP_E_NOMEM, one sentence, the file still
 * the caller's and fit for another try, nothing leaked (the sanitizer build watches). SPDX-License-Identifier: MIT */
#include "unit/model/model_edit.h"

#include "harness/alloc_fail.h"

/* Unused tensors and absent keys, so that the report grows beyond its first block. */
static const struct edit edits[] = {
    {ED_DROP_KEY, "expert_weights_scale", 0, NULL},
    {ED_DROP_KEY, "expert_gating_func", 0, NULL},
    {ED_DROP_KEY, "vocab_size", 0, NULL},
    {ED_COPY, "blk.3.attn_norm.weight", 0, "blk.3.nextn.enorm.weight"},
    {ED_ARR_BOOL, "attention.indexer.types", 0, "1,0,0,1"},
    {ED_ADD, "blk.0.attn_q_a.scale", 2, "1"},
    {0}};

static void walk(bool onward)
{
    struct bpi_gguf *g = edited_gguf("zoo-glm5.gguf", edits);
    uint64_t n = 1;
    struct bpi_model *m = NULL;
    for (;; ++n) {
        struct bp_error err = BP_ERROR_INIT;
        m = (struct bpi_model *)1;
        alloc_fail_arm(n, onward);
        int32_t rc = bpi_model_open(g, NULL, &m, &err);
        if (!alloc_fail_disarm()) {
            ck_assert_msg(rc == BP_OK, "%s", err.msg);
            break;
        }
        ck_assert_msg(rc == BP_E_NOMEM, "allocation %llu: status %d, %s", (unsigned long long)n, rc,
                      err.msg);
        ck_assert_ptr_null(m);
        ck_assert_uint_gt(strlen(err.msg), 10);
    }
    ck_assert_uint_gt(bpi_model_report_n(m), 32);
    ck_assert_uint_ge(n, 7); /* model, places, report twice, arena, scales, vectors */
    bpi_model_close(m);
}

START_TEST(open_fails)
{
    walk(false);
}
END_TEST

START_TEST(open_fails_onward)
{
    walk(true);
}
END_TEST

static void ignore(void *ctx, const struct bpi_report_entry *e)
{
    (void)e;
    ++*(uint32_t *)ctx;
}

/* A survey that runs out of memory tells nothing, not half of it. */
START_TEST(survey_fails)
{
    struct bpi_gguf *g = edited_gguf("zoo-glm5.gguf", edits);
    for (uint64_t n = 1;; ++n) {
        struct bp_error err = BP_ERROR_INIT;
        uint32_t lines = 0;
        alloc_fail_arm(n, false);
        int32_t rc = bpi_model_survey(g, NULL, ignore, &lines, &err);
        if (!alloc_fail_disarm()) {
            ck_assert_int_eq(rc, BP_OK);
            ck_assert_uint_gt(lines, 32);
            ck_assert_uint_ge(n, 4);
            break;
        }
        ck_assert_int_eq(rc, BP_E_NOMEM);
        ck_assert_uint_eq(lines, 0);
    }
    bpi_gguf_close(g);
}
END_TEST

/* The hint of a missing tensor may be lost for want of memory, the refusal may not. */
START_TEST(refusal_without_memory)
{
    static const struct edit gone[] = {
        {ED_RENAME, "blk.2.attn_norm.weight", 0, "blk.2.attn_nrm.weight"}, {0}};
    struct bpi_gguf *g = edited_gguf("zoo-glm5.gguf", gone);
    bool lost = false, refused = false;
    for (uint64_t n = 1; n < 100; ++n) {
        struct bp_error err = BP_ERROR_INIT;
        struct bpi_model *m = NULL;
        alloc_fail_arm(n, false);
        int32_t rc = bpi_model_open(g, NULL, &m, &err);
        bool failed = alloc_fail_disarm();
        ck_assert(rc == BP_E_FORMAT || (failed && rc == BP_E_NOMEM));
        if (rc == BP_E_FORMAT) {
            bool hint = strstr(err.msg, "blk.2.attn_nrm.weight") != NULL;
            ck_assert(strstr(err.msg, "blk.2.attn_norm.weight") != NULL);
            if (failed && !hint) lost = true;
            if (!failed && hint) refused = true;
        }
        if (!failed) break;
    }
    ck_assert(lost && refused);
    bpi_gguf_close(g);
}
END_TEST

static void add(TCase *tc)
{
    tcase_add_test(tc, open_fails);
    tcase_add_test(tc, open_fails_onward);
    tcase_add_test(tc, survey_fails);
    tcase_add_test(tc, refusal_without_memory);
}

int main(void)
{
    return run_cases("model_nomem", add, 60);
}
