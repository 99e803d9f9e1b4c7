/* test_quant_call.c - calls of quant_gguf that a kernel must not see, and which weights of a call share a launch.
 * SPDX-License-Identifier: MIT */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"

enum { TOK = 3, COLS = 64, ROWS = 32 };
static float numbers[TOK * COLS];

static struct bp_tensor matrix(int64_t rows, int64_t cols)
{
    return (struct bp_tensor){.data = numbers,
                              .dtype = BP_DT_BF16,
                              .ndim = 2,
                              .dim = {rows, cols, 1, 1},
                              .stride = {cols, 1, 1, 1}};
}

static struct qg_weight weights[4];
static struct bp_matmul_out outs[4];

static struct bp_quant_matmul_args good(uint32_t n_out)
{
    struct bp_quant_matmul_args a = {.h = BP_HDR(struct bp_quant_matmul_args, reserved),
                                     .x = matrix(TOK, COLS),
                                     .outs = outs,
                                     .n_out = n_out,
                                     .out_stride = sizeof outs[0],
                                     .norm_w = {.data = numbers,
                                                .dtype = BP_DT_F32,
                                                .ndim = 1,
                                                .dim = {COLS, 1, 1, 1},
                                                .stride = {1, 1, 1, 1}},
                                     .residual = matrix(TOK, ROWS),
                                     .eps = 1e-6f};
    for (uint32_t i = 0; i < 4; ++i) {
        weights[i] =
            (struct qg_weight){.type = BP_GGUF_Q4_K, .rows = ROWS, .cols = COLS, .cover = COLS};
        outs[i] = (struct bp_matmul_out){.weight = &weights[i], .y = matrix(TOK, ROWS)};
    }
    return a;
}

static void refused(const struct bp_quant_matmul_args *a, const char *words)
{
    struct bp_error err = BP_ERROR_INIT;
    ck_assert_int_eq(call_check_matmul(a, &err), BP_E_ARG);
    ck_assert_str_eq(err.domain, "quant_gguf");
    ck_assert_msg(strstr(err.msg, words) != NULL, "'%s' has no '%s'", err.msg, words);
    ck_assert_int_eq(call_check_matmul(a, NULL), BP_E_ARG);
}

START_TEST(good_calls_pass)
{
    struct bp_error err = BP_ERROR_INIT;
    for (uint32_t n = 1; n <= 4; ++n) {
        for (uint32_t form = 0; form < 6; ++form) {
            struct bp_quant_matmul_args a = good(n);
            a.prologue = form % 2;
            a.epilogue = form / 2;
            if (a.epilogue == BP_EPILOGUE_SILU_MUL && n != 2) continue;
            ck_assert_msg(call_check_matmul(&a, &err) == BP_OK, "%s", err.msg);
        }
    }
    struct bp_quant_matmul_args a = good(2);
    a.epilogue = BP_EPILOGUE_SILU_MUL;
    memset(&outs[1].y, 0, sizeof outs[1].y); /* is not written */
    ck_assert_int_eq(call_check_matmul(&a, &err), BP_OK);
    a = good(1); /* nothing to do */
    a.x.dim[0] = outs[0].y.dim[0] = 0;
    a.x.data = outs[0].y.data = NULL;
    ck_assert_int_eq(call_check_matmul(&a, &err), BP_OK);
    a = good(1); /* one token of a view, whose stride says nothing */
    a.x.dim[0] = outs[0].y.dim[0] = 1;
    a.x.stride[0] = 0;
    ck_assert_int_eq(call_check_matmul(&a, &err), BP_OK);
}
END_TEST

START_TEST(every_output_is_looked_at)
{
    for (uint32_t i = 0; i < 4; ++i) {
        struct bp_quant_matmul_args a = good(4);
        const char *name = ((const char *[]){"y is", "y1 is", "y2 is", "y3 is"})[i];
        outs[i].y.dtype = BP_DT_I32;
        refused(&a, name);
        a = good(4);
        outs[i].y.dim[1]++;
        refused(&a, name);
        a = good(4);
        outs[i].y.dim[0]--;
        refused(&a, name);
        a = good(4);
        outs[i].y.stride[1] = 2;
        refused(&a, name);
        a = good(4);
        outs[i].y.ndim = 3;
        refused(&a, name);
        a = good(4);
        outs[i].y.data = NULL;
        refused(&a, name);
        a = good(4);
        outs[i].weight = NULL;
        refused(&a, "not prepared");
        a = good(4);
        weights[i].cols++;
        refused(&a, "columns");
    }
}
END_TEST

START_TEST(inputs_are_looked_at)
{
    struct bp_quant_matmul_args a = good(1);
    a.n_out = 0;
    refused(&a, "1 to 4");
    a.n_out = 5;
    refused(&a, "1 to 4");
    a = good(1);
    a.x.dtype = BP_DT_I32;
    refused(&a, "x is");
    a = good(1);
    a.x.stride[1] = 2;
    refused(&a, "x is");
    a = good(1);
    a.x.dim[0] = -1;
    refused(&a, "x is");
    a = good(1);
    a.prologue = 2;
    refused(&a, "prologue");
    a = good(1);
    a.epilogue = 3;
    refused(&a, "epilogue");
    a = good(3);
    a.epilogue = BP_EPILOGUE_SILU_MUL;
    refused(&a, "two weights, not 3");
    a = good(2);
    a.epilogue = BP_EPILOGUE_SILU_MUL;
    weights[1].rows++;
    refused(&a, "same rows");
}
END_TEST

START_TEST(norm_and_residual_are_looked_at)
{
    for (int i = 0; i < 5; ++i) {
        struct bp_quant_matmul_args a = good(1);
        a.prologue = BP_PROLOGUE_RMS;
        if (i == 0) a.norm_w.dtype = BP_DT_BF16;
        if (i == 1) a.norm_w.dim[0]--;
        if (i == 2) a.norm_w.data = NULL;
        if (i == 3) a.norm_w.ndim = 2;
        if (i == 4) a.norm_w.stride[0] = 2;
        refused(&a, "norm_w is (");
        a.prologue = BP_PROLOGUE_NONE; /* without a norm nobody reads it */
        ck_assert_int_eq(call_check_matmul(&a, NULL), BP_OK);
        a = good(1);
        a.epilogue = BP_EPILOGUE_ADD;
        if (i == 0) a.residual.dtype = BP_DT_I32;
        if (i == 1) a.residual.dim[0]--;
        if (i == 2) a.residual.data = NULL;
        if (i == 3) a.residual.dim[1]++;
        if (i == 4) a.residual.stride[1] = 2;
        refused(&a, "residual is (");
        a.epilogue = BP_EPILOGUE_NONE;
        ck_assert_int_eq(call_check_matmul(&a, NULL), BP_OK);
    }
}
END_TEST

START_TEST(rows_to_decode_are_looked_at)
{
    struct bp_error err = BP_ERROR_INIT;
    struct bp_quant_dequantize_args a = {.h = BP_HDR(struct bp_quant_dequantize_args, y)};
    (void)good(1);
    a.weight = &weights[0];
    a.row_begin = ROWS - TOK;
    a.y = matrix(TOK, COLS);
    ck_assert_int_eq(call_check_dequantize(&a, &err), BP_OK);
    a.row_begin++;
    ck_assert_int_eq(call_check_dequantize(&a, &err), BP_E_ARG);
    ck_assert_ptr_nonnull(strstr(err.msg, "rows outside of the weight, which has 32"));
    a.row_begin = INT64_MAX;
    ck_assert_int_eq(call_check_dequantize(&a, &err), BP_E_ARG);
    a.row_begin = 0;
    a.y.dtype = BP_DT_I32;
    ck_assert_int_eq(call_check_dequantize(&a, &err), BP_E_ARG);
    ck_assert_ptr_nonnull(strstr(err.msg, "y is (3, 64)"));
    a.y = matrix(TOK, COLS + 1);
    ck_assert_int_eq(call_check_dequantize(&a, &err), BP_E_ARG);
    a.weight = NULL;
    ck_assert_int_eq(call_check_dequantize(&a, &err), BP_E_ARG);
}
END_TEST

/* Launches until all is done; every weight in one of them, none with itself. */
START_TEST(launches_share_weights_but_never_one_with_itself)
{
    uint32_t n_alone = 0, n_shared = 0;
    for (uint32_t pattern = 0; pattern < 4 * 4 * 4 * 4 * 16; ++pattern) {
        const struct qg_weight *w[4];
        struct bp_tensor y[4];
        uint32_t done = 0;
        (void)good(4);
        weights[3].type = BP_GGUF_Q6_K;
        for (uint32_t i = 0; i < 4; ++i) {
            w[i] = &weights[pattern >> 2 * i & 3];
            y[i] = outs[i].y;
            if ((pattern >> (8 + i) & 1) != 0) y[i].dtype = BP_DT_F32;
        }
        for (uint32_t i = 0; i < 4; ++i) {
            if ((done >> i & 1) != 0) continue;
            const uint32_t set = call_together(w, y, 4, i, done);
            ck_assert_uint_ne(set >> i & 1, 0);
            ck_assert_uint_eq(set & done, 0);
            for (uint32_t k = 0; k < 4; ++k) {
                for (uint32_t j = 0; j < k; ++j) {
                    if ((set >> k & set >> j & 1) == 0) continue;
                    ck_assert_ptr_ne(w[k], w[j]);
                    ck_assert_uint_eq(w[k]->type, w[j]->type);
                    ck_assert_uint_eq(y[k].dtype, y[j].dtype);
                }
            }
            if ((set & (set - 1)) != 0)
                ++n_shared;
            else
                ++n_alone;
            done |= set;
        }
        ck_assert_uint_eq(done, 15);
    }
    ck_assert_uint_gt(n_alone, 1000);
    ck_assert_uint_gt(n_shared, 1000);
    const struct qg_weight *twice[2] = {&weights[0], &weights[0]},
                           *pair[2] = {&weights[0], &weights[1]},
                           *mixed[2] = {&weights[0], &weights[3]};
    ck_assert_int_eq(call_joins(twice), 0);
    ck_assert_int_eq(call_joins(pair), 1);
    ck_assert_int_eq(call_joins(mixed), 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("quant_call");
    TCase *c = tcase_create("quant_call");
    tcase_add_test(c, good_calls_pass);
    tcase_add_test(c, every_output_is_looked_at);
    tcase_add_test(c, inputs_are_looked_at);
    tcase_add_test(c, norm_and_residual_are_looked_at);
    tcase_add_test(c, rows_to_decode_are_looked_at);
    tcase_add_test(c, launches_share_weights_but_never_one_with_itself);
    suite_add_tcase(s, c);
    SRunner *runner = srunner_create(s);
    srunner_run_all(runner, CK_NORMAL);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
