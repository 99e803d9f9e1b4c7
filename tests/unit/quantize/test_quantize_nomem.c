/* test_quantize_nomem.c - every allocation of a plan and of a write fails once: BP_E_NOMEM, one sentence, nothing left
 * behind, and the next try works. SPDX-License-Identifier: MIT */
#include "unit/quantize/quantize_fixture.h"

#include "harness/alloc_fail.h"

static const struct src_tensor small[] = {
    {"blk.0.ffn_up.weight", BP_GGUF_BF16, 2, {256, 40}},
    {"blk.0.ffn_down.weight", BP_GGUF_Q8_0, 2, {256, 40}},
    {"blk.0.attn_norm.weight", BP_GGUF_F32, 1, {256}},
    {NULL, 0, 0, {0}},
};

static int32_t work(const struct bpi_gguf *g, struct bp_error *err)
{
    struct bpi_quantize_plan p;
    struct bpi_quantize_job job = {0};
    int32_t rc;
    BP_TRY(bpi_pool_create(2, &job.pool, err));
    BP_TRY_GOTO(rc, bpi_quantize_plan(g, bpi_quantize_target("Q4_K_M"), &p, err), done);
    rc = bpi_quantize_write(&p, in_folder("out.gguf"), &job, err);
    bpi_quantize_plan_free(&p);
done:
    bpi_pool_destroy(job.pool);
    return rc;
}

static void walk(bool onward)
{
    struct bpi_gguf *g = make_source(in_folder("in.gguf"), small, 1);
    uint64_t n = 1;
    for (;; ++n) {
        struct bp_error err = BP_ERROR_INIT;
        alloc_fail_arm(n, onward);
        int32_t rc = work(g, &err);
        if (!alloc_fail_disarm()) {
            ck_assert_msg(rc == BP_OK, "%s", err.msg);
            break;
        }
        ck_assert_msg(rc == BP_E_NOMEM, "allocation %llu: status %d, %s", (unsigned long long)n, rc,
                      err.msg);
        ck_assert_uint_gt(strlen(err.msg), 10);
        ck_assert_msg(folder_files(false) == 1, "allocation %llu", (unsigned long long)n);
    }
    /* pool twice, rows, writer, its keys, records and tensors, indexes, header, buffers, names */
    ck_assert_uint_ge(n, 12);
    ck_assert_uint_eq(folder_files(false), 2);
    bpi_gguf_close(g);
}

START_TEST(one_fails)
{
    walk(false);
}
END_TEST

START_TEST(all_from_one_on_fail)
{
    walk(true);
}
END_TEST

static void add(TCase *tc)
{
    tcase_add_test(tc, one_fails);
    tcase_add_test(tc, all_from_one_on_fail);
}

int main(void)
{
    return run_quantize_cases("quantize_nomem", add, 60);
}
