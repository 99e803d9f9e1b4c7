/* test_quantize_published.c - the mixes are those of published files: same tensors, same types, same size. Only the index
 * weights differ: they are kept here. Without the files (BP_MODELS) it is a SKIP. SPDX-License-Identifier: MIT */
#include "unit/quantize/quantize_fixture.h"

#include "harness/models.h"

static const char *const pairs[][2] = {
    {"bp-tiny-deepseek2-BF16.gguf", "bp-tiny-deepseek2-Q4_K_M.gguf"},
    {"bp-tiny-deepseek2-BF16.gguf", "bp-tiny-deepseek2-Q8_0.gguf"},
    {"bp-tiny-glm-dsa-BF16.gguf", "bp-tiny-glm-dsa-Q4_K_M.gguf"}};

static const char *path_of(const char *file)
{
    const char *path = bp_test_model(file);
    ck_assert_msg(path != NULL, "%s not found", file);
    return path;
}

START_TEST(as_published_files)
{
    struct bp_error err = BP_ERROR_INIT;
    struct bpi_gguf *g = NULL, *want = NULL;
    struct bpi_quantize_plan p;
    ck_assert_int_eq(bpi_gguf_open(path_of(pairs[_i][0]), &g, &err), BP_OK);
    ck_assert_int_eq(bpi_gguf_open(path_of(pairs[_i][1]), &want, &err), BP_OK);
    plan_for(g, strstr(pairs[_i][1], "Q8_0") != NULL ? "Q8_0" : "Q4_K_M", &p);
    ck_assert_uint_eq(p.n_rows, bpi_gguf_n_tensors(want));
    for (uint64_t i = 0; i < p.n_rows; ++i) {
        const char *name = p.rows[i].src->name;
        const struct bpi_gguf_tensor *t = bpi_gguf_tensor(want, name);
        ck_assert_msg(t != NULL, "%s", name);
        if (strstr(name, "indexer.proj") != NULL) continue;
        ck_assert_msg(t->type == p.rows[i].to, "%s: %s, wanted %s", name,
                      bpi_block_info(p.rows[i].to)->name, bpi_block_info(t->type)->name);
    }
    bpi_quantize_plan_free(&p);
    bpi_gguf_close(want);
    bpi_gguf_close(g);
}
END_TEST

static void add(TCase *tc)
{
    tcase_add_loop_test(tc, as_published_files, 0, (int)BPI_ARRAY_LEN(pairs));
}

int main(void)
{
    for (size_t i = 0; i < 2 * BPI_ARRAY_LEN(pairs); ++i) {
        const char *file = pairs[i / 2][i % 2];
        if (bp_test_model(file) != NULL) continue;
        printf("SKIP: %s not found; set BP_MODELS to the folder that holds it\n", file);
        return 77;
    }
    return run_quantize_cases("quantize_published", add, 60);
}
