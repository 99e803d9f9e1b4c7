/* test_model_headers.c - a model opened for its headers says all that a whole one says, and has read no tensor.
 * That nothing is read of a model of true size: tests/golden/sparse_glm52.py. SPDX-License-Identifier: MIT */
#include "model_edit.h"

static const char *const zoo[] = {
    "zoo-v2lite.gguf", "zoo-v2-group.gguf",     "zoo-v3.gguf", "zoo-glm47flash.gguf",
    "zoo-glm5.gguf",   "zoo-glm52-shared.gguf", "zoo-v32.gguf"};

static struct bpi_model *open_headers(const char *name, const struct edit *edits)
{
    struct bpi_gguf *g = edited_gguf(name, edits);
    struct bpi_model *m = NULL;
    struct bp_error err = BP_ERROR_INIT;
    ck_assert_msg(bpi_model_open_headers(g, NULL, &m, &err) == BP_OK, "%s: %s", name, err.msg);
    return m;
}

START_TEST(says_the_same)
{
    struct bpi_model *a = edited_model(zoo[_i], NULL, NULL), *b = open_headers(zoo[_i], NULL);
    ck_assert(!bpi_model_headers_only(a) && bpi_model_headers_only(b));
    ck_assert_mem_eq(bpi_model_hparams(a), bpi_model_hparams(b), sizeof(struct bpi_hparams));
    ck_assert_uint_eq(bpi_model_report_n(a), bpi_model_report_n(b));
    for (size_t i = 0; i < bpi_model_report_n(a); ++i) {
        const struct bpi_report_entry *x = bpi_model_report(a, i), *y = bpi_model_report(b, i);
        ck_assert_uint_eq(x->kind, y->kind);
        ck_assert_str_eq(x->name, y->name);
        ck_assert_str_eq(x->text, y->text);
    }
    size_t n = 7;
    ck_assert_ptr_nonnull(bpi_model_vec(a, BPI_W_OUTPUT_NORM, 0, NULL));
    ck_assert_ptr_null(bpi_model_vec(b, BPI_W_OUTPUT_NORM, 0, &n));
    ck_assert_uint_eq(n, 0);
    bpi_model_close(a);
    bpi_model_close(b);
}
END_TEST

/* What only reading would show is not looked for, what headers show is. */
START_TEST(reads_nothing)
{
    static const struct edit nan_norm[] = {{ED_POKE, "blk.1.ffn_norm.weight", NAN, NULL},
                                           {ED_ADD, "blk.1.attn_q_a.scale", NAN, "1"},
                                           {0}};
    static const struct edit narrow[] = {{ED_SHAPE, "blk.1.ffn_norm.weight", 0, "63"}, {0}};
    struct bp_error err = BP_ERROR_INIT;
    struct bpi_model *m = open_headers("zoo-v3.gguf", nan_norm);
    struct bp_raw raw;
    ck_assert(bpi_model_raw(m, BPI_W_ATTN_Q_A, 1, 0, 1, &raw) && raw.scale == 1.0f);
    bpi_model_close(m);
    struct bpi_gguf *g = edited_gguf("zoo-v3.gguf", nan_norm);
    ck_assert_int_eq(bpi_model_open(g, NULL, &m, &err), BP_E_NUMERIC);
    bpi_gguf_close(g);
    g = edited_gguf("zoo-v3.gguf", narrow);
    err = (struct bp_error)BP_ERROR_INIT;
    ck_assert_int_eq(bpi_model_open_headers(g, NULL, &m, &err), BP_E_FORMAT);
    ck_assert_msg(strstr(err.msg, "blk.1.ffn_norm.weight is [63]") != NULL, "%s", err.msg);
    bpi_gguf_close(g);
}
END_TEST

static void add(TCase *tc)
{
    tcase_add_loop_test(tc, says_the_same, 0, BPI_ARRAY_LEN(zoo));
    tcase_add_test(tc, reads_nothing);
}

int main(void)
{
    return run_cases("model_headers", add, 60);
}
