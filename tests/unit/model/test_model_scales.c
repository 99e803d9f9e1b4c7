/* test_model_scales.c - companion scales reach the weights they multiply, and what cannot be multiplied is refused.
 * Numbers of whole models with scales: tests/golden/variants.py. SPDX-License-Identifier: MIT */
#include "model_edit.h"

#define V3 "zoo-v3.gguf"

static float raw_scale(const struct bpi_model *m, uint32_t role, uint32_t layer)
{
    struct bp_raw r;
    ck_assert(bpi_model_raw(m, role, layer, 0, 1, &r));
    return r.scale;
}

START_TEST(one_number)
{
    static const struct edit edits[] = {{ED_ADD, "blk.1.attn_q_a.scale", 0.25, "1"},
                                        {ED_ADD, "blk.3.ffn_down_exps.scale", 2, "16"},
                                        {ED_ADD, "output.scale", 3, "1"},
                                        {ED_ADD, "blk.1.attn_norm.scale", 4, "1"},
                                        {ED_ADD, "blk.1.attn_q_a.input_scale", 5, "1"},
                                        {0}};
    struct bpi_model *m = edited_model(V3, edits, NULL), *plain = edited_model(V3, NULL, NULL);
    ck_assert(raw_scale(m, BPI_W_ATTN_Q_A, 1) == 0.25f && raw_scale(m, BPI_W_ATTN_Q_A, 0) == 1.0f);
    ck_assert(raw_scale(m, BPI_W_EXP_DOWN, 3) == 2.0f && raw_scale(m, BPI_W_EXP_DOWN, 2) == 1.0f);
    ck_assert(raw_scale(m, BPI_W_OUTPUT, 0) == 3.0f && raw_scale(m, BPI_W_TOKEN_EMBD, 0) == 1.0f);
    ck_assert(raw_scale(plain, BPI_W_ATTN_Q_A, 1) == 1.0f);
    size_t n;
    const float *got = bpi_model_vec(m, BPI_W_ATTN_NORM, 1, &n),
                *was = bpi_model_vec(plain, BPI_W_ATTN_NORM, 1, NULL);
    for (size_t i = 0; i < n; ++i) ck_assert(got[i] == 4.0f * was[i]);
    ASSERT_LINE(m, BPI_REPORT_NOTE, "blk.1.attn_q_a.scale", "multiplies the weight");
    ASSERT_LINE(m, BPI_REPORT_UNUSED, "blk.1.attn_q_a.input_scale", "no table knows");
    bpi_model_close(m);
    bpi_model_close(plain);
}
END_TEST

/* Without output.weight the embedding serves, scale included; a scale of something that is not there is a stranger. */
START_TEST(tied_and_stranger)
{
    static const struct edit edits[] = {{ED_DROP, "output.weight", 0, NULL},
                                        {ED_ADD, "token_embd.scale", 2, "1"},
                                        {ED_ADD, "output.scale", 3, "1"},
                                        {ED_ADD, "blk.0.attn_q.scale", 3, "1"},
                                        {0}};
    struct bpi_model *m = edited_model(V3, edits, NULL);
    ck_assert(raw_scale(m, BPI_W_OUTPUT, 0) == 2.0f && raw_scale(m, BPI_W_TOKEN_EMBD, 0) == 2.0f);
    ASSERT_LINE(m, BPI_REPORT_UNUSED, "output.scale", "no table knows");
    ASSERT_LINE(m, BPI_REPORT_UNUSED, "blk.0.attn_q.scale", "no table knows");
    bpi_model_close(m);
}
END_TEST

static const struct {
    struct edit edits[2];
    int32_t code;
    const char *says;
} bad[] = {
    {{{ED_ADD, "blk.3.ffn_up_exps.scale", 2, "16!"}, {0}},
     BP_E_UNSUPPORTED,
     "differently (2 and 1)"},
    {{{ED_ADD, "blk.3.ffn_up_exps.scale", 2, "15"}, {0}}, BP_E_FORMAT, "or one per expert"},
    {{{ED_ADD, "blk.0.attn_q_a.scale", 2, "16"}, {0}}, BP_E_FORMAT, "blk.0.attn_q_a.scale is [16]"},
    {{{ED_ADD, "blk.0.attn_q_a.scale", NAN, "1"}, {0}}, BP_E_NUMERIC, "is NaN"},
};

START_TEST(refused)
{
    struct bpi_gguf *g = edited_gguf(V3, bad[_i].edits);
    struct bpi_model *m = NULL;
    struct bp_error err = BP_ERROR_INIT;
    ck_assert_int_eq(bpi_model_open(g, NULL, &m, &err), bad[_i].code);
    ck_assert_msg(strstr(err.msg, bad[_i].says) != NULL, "%s", err.msg);
    bpi_gguf_close(g);
}
END_TEST

static void add(TCase *tc)
{
    tcase_add_test(tc, one_number);
    tcase_add_test(tc, tied_and_stranger);
    tcase_add_loop_test(tc, refused, 0, BPI_ARRAY_LEN(bad));
}

int main(void)
{
    return run_cases("model_scales", add, 60);
}
