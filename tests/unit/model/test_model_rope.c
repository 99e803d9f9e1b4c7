/* test_model_rope.c - frequencies, YaRN, tables, magnitudes and softmax scale against values worked out by hand and, for
 * the tables, against long double. SPDX-License-Identifier: MIT */
#include "unit/model/model_edit.h"

static struct bpi_hparams yarn(double base, double factor, double fast)
{
    return (struct bpi_hparams){.rope = 64,
                                .rope_base = base,
                                .yarn = true,
                                .yarn_factor = factor,
                                .yarn_orig_ctx = 4096,
                                .yarn_beta_fast = fast,
                                .yarn_beta_slow = 1,
                                .rope_mag = 1};
}

/* DeepSeek-V2 and V3: ramp from pair 10 to pair 23. */
START_TEST(frequencies_of_v3)
{
    struct bpi_hparams hp = yarn(1e4, 40, 32);
    double f[32];
    bpi_model_rope_freqs(&hp, f);
    ck_assert(f[0] == 1.0);
    ASSERT_NEAR(f[1], 0.749894209, 1e-9);
    ASSERT_NEAR(f[10], 0.0562341325, 1e-9);
    ASSERT_NEAR(f[11], 0.0390069266, 1e-9);
    ASSERT_NEAR(f[16], 0.0055, 1e-9);
    ASSERT_NEAR(f[22], 1.77827941e-4, 1e-8);
    ASSERT_NEAR(f[23], 3.33380358e-5, 1e-8);
    ASSERT_NEAR(f[31], 3.33380358e-6, 1e-8);
}
END_TEST

/* Kimi-K2: its own beta_fast of 1 makes the ramp a step at pair 19, the usual 32 lets it begin at pair 8. */
START_TEST(frequencies_of_k2)
{
    struct bpi_hparams own = yarn(5e4, 32, 1), usual = yarn(5e4, 32, 32);
    double f[32], g[32];
    bpi_model_rope_freqs(&own, f);
    bpi_model_rope_freqs(&usual, g);
    ASSERT_NEAR(f[16], 4.47213595e-3, 1e-8);
    ASSERT_NEAR(g[16], 1.58388148e-3, 1e-8);
    for (int i = 0; i < 32; ++i) {
        double plain = pow(5e4, -i / 32.0);
        ASSERT_NEAR(f[i], i <= 19 ? plain : plain / 32, 1e-14);
        if (i <= 8) ASSERT_NEAR(g[i], plain, 1e-14);
        if (i >= 20) ASSERT_NEAR(g[i], plain / 32, 1e-14);
        if (i > 8 && i < 20) ck_assert(g[i] < plain && g[i] > plain / 32);
    }
}
END_TEST

START_TEST(frequencies_without_yarn)
{
    struct bpi_hparams hp = {.rope = 64, .rope_base = 8e6, .rope_mag = 1};
    double f[32];
    bpi_model_rope_freqs(&hp, f);
    for (int i = 0; i < 32; ++i) ASSERT_NEAR(f[i], (double)powl(8e6L, -i / 32.0L), 1e-14);
}
END_TEST

/* Bounds of the ramp stay inside the pairs when the original context is short or long. */
START_TEST(ramp_is_clamped)
{
    struct bpi_hparams hp = yarn(1e4, 40, 32);
    double f[32];
    hp.yarn_orig_ctx =
        1; /* every pair turns less than once: all are stretched, but for the ramp's first */
    bpi_model_rope_freqs(&hp, f);
    for (int i = 1; i < 32; ++i) ASSERT_NEAR(f[i], pow(1e4, -i / 32.0) / 40, 1e-12);
    hp.yarn_orig_ctx = 1u << 30; /* every pair turns more than 32 times: none is */
    bpi_model_rope_freqs(&hp, f);
    for (int i = 0; i < 32; ++i) ASSERT_NEAR(f[i], pow(1e4, -i / 32.0), 1e-12);
}
END_TEST

/* The upper bound counts dimensions (63), not pairs (31): here the ramp runs from pair 28 to "pair" 41. */
START_TEST(ramp_beyond_the_last_pair)
{
    struct bpi_hparams hp = yarn(1e4, 40, 32);
    double f[32];
    hp.yarn_orig_ctx = 640000;
    bpi_model_rope_freqs(&hp, f);
    for (int i = 28; i < 32; ++i) {
        double g = (i - 28) / (41.0 - 28.0), plain = pow(1e4, -i / 32.0);
        ASSERT_NEAR(f[i], plain * (1 - g) + plain / 40 * g, 1e-12);
    }
}
END_TEST

START_TEST(tables)
{
    enum { N = 3000 };
    struct bpi_hparams hp = yarn(1e4, 40, 32);
    hp.rope_mag = 1.25;
    static float c[N * 32], s[N * 32];
    double f[32];
    bpi_model_rope_freqs(&hp, f);
    bpi_model_rope_table(&hp, N, c, s);
    for (int pos = 0; pos < N; pos += 37)
        for (int i = 0; i < 32; ++i) {
            long double a = (long double)pos * f[i];
            ck_assert(fabsl(c[pos * 32 + i] - 1.25L * cosl(a)) <= 1e-7L);
            ck_assert(fabsl(s[pos * 32 + i] - 1.25L * sinl(a)) <= 1e-7L);
        }
}
END_TEST

/* A million positions on: an angle in f32 would be off by a tenth of a turn. */
START_TEST(table_of_a_late_position)
{
    enum { N = 1048576 };
    struct bpi_hparams hp = {.rope = 2, .rope_base = 8e6, .rope_mag = 1};
    float *c = malloc(N * sizeof *c), *s = malloc(N * sizeof *s);
    ck_assert(c != NULL && s != NULL);
    bpi_model_rope_table(&hp, N, c, s);
    long double a = N - 1;
    ck_assert(fabsl(c[N - 1] - cosl(a)) <= 1e-7L);
    ck_assert(fabsl(s[N - 1] - sinl(a)) <= 1e-7L);
    free(c);
    free(s);
}
END_TEST

/* ---- from keys ---- */

#define V3W "zoo-v3-512.gguf" /* heads of 128 + 64, as in the real models */

// clang-format off
static const struct {
    const char *what, *file;
    struct edit edits[4];
    const char *settings;
    double scale, mag;
} scales[] = {
    {"V3", V3W, {{0}}, NULL, 0.1352338, 1},
    {"V2-Lite", V3W, {{ED_F32, "rope.scaling.yarn_log_multiplier", 0.0707, NULL}}, NULL, 0.1147214, 1},
    {"K2", V3W, {{ED_F32, "rope.scaling.factor", 32, NULL}}, NULL, 0.1308608, 1},
    {"K2, 64", V3W, {{ED_F32, "rope.scaling.factor", 64, NULL}}, NULL, 0.1446796, 1},
    {"GLM", "zoo-glm5-512.gguf", {{0}}, NULL, 0.0625, 1},
    {"no yarn", V3W, {{ED_STR, "rope.scaling.type", 0, "none"}}, NULL, 0.0721687836, 1},
    {"type absent, factor 1", V3W, {{ED_DROP_KEY, "rope.scaling.type", 0, NULL}, {ED_F32, "rope.scaling.factor", 1, NULL}}, NULL, 0.0721687836, 1},
    {"factor 1", V3W, {{ED_F32, "rope.scaling.factor", 1, NULL}}, NULL, 0.0721687836, 1},
    {"no multiplier", V3W, {{ED_DROP_KEY, "rope.scaling.yarn_log_multiplier", 0, NULL}}, NULL, 0.0721687836, 1.36888795},
    {"multiplier 0", V3W, {{ED_F32, "rope.scaling.yarn_log_multiplier", 0, NULL}}, NULL, 0.0721687836, 1.36888795},
    {"override of none", V3W, {{ED_DROP_KEY, "rope.scaling.yarn_log_multiplier", 0, NULL}}, "model.yarn_log_multiplier=0.1", 0.1352338, 1},
    {"override of one", V3W, {{0}}, "model.yarn_log_multiplier=0.0707", 0.1147214, 1},
    {"override to 0", V3W, {{0}}, "model.yarn_log_multiplier=0", 0.0721687836, 1.36888795},
    {"override without yarn", "zoo-glm5-512.gguf", {{0}}, "model.yarn_log_multiplier=0.1", 0.0625, 1},
};
// clang-format on

START_TEST(scale_and_magnitude)
{
    struct bpi_model *m = edited_model(scales[_i].file, scales[_i].edits, scales[_i].settings);
    const struct bpi_hparams *hp = bpi_model_hparams(m);
    ck_assert_msg(fabs(hp->attn_scale - scales[_i].scale) <= 1e-6 * scales[_i].scale,
                  "%s: scale %.9g", scales[_i].what, hp->attn_scale);
    ck_assert_msg(fabs(hp->rope_mag - scales[_i].mag) <= 1e-8, "%s: magnitude %.9g",
                  scales[_i].what, hp->rope_mag);
    bpi_model_close(m);
}
END_TEST

START_TEST(what_is_reported)
{
    static const struct edit none[] = {
        {ED_DROP_KEY, "rope.scaling.yarn_log_multiplier", 0, NULL},
        {ED_DROP_KEY, "rope.scaling.yarn_beta_fast", 0, NULL},
        {ED_DROP_KEY, "rope.scaling.yarn_beta_slow", 0, NULL},
        {ED_DROP_KEY, "rope.scaling.original_context_length", 0, NULL},
        {ED_DROP_KEY, "rope.freq_base", 0, NULL},
        {ED_F32, "rope.scaling.yarn_ext_factor", 0.5, NULL},
        {0}};
    struct bpi_model *m = edited_model(V3W, none, NULL);
    const struct bpi_hparams *hp = bpi_model_hparams(m);
    ck_assert(hp->yarn_beta_fast == 32 && hp->yarn_beta_slow == 1 && hp->rope_base == 10000);
    ck_assert_uint_eq(hp->yarn_orig_ctx, hp->n_ctx_train);
    ASSERT_LINE(m, BPI_REPORT_ASSUMED, "yarn_log_multiplier", "absent: no mscale_all_dim");
    ASSERT_LINE(m, BPI_REPORT_ASSUMED, "yarn_log_multiplier", "multiplied by 1.36888795");
    ASSERT_LINE(m, BPI_REPORT_ASSUMED, "yarn_log_multiplier", "model.yarn_log_multiplier");
    ASSERT_LINE(m, BPI_REPORT_ASSUMED, "yarn_beta_fast", "absent: 32");
    ASSERT_LINE(m, BPI_REPORT_ASSUMED, "yarn_beta_slow", "absent: 1");
    ASSERT_LINE(m, BPI_REPORT_ASSUMED, "original_context_length", "absent: 4096");
    ASSERT_LINE(m, BPI_REPORT_ASSUMED, "rope.freq_base", "absent: 10000");
    ASSERT_LINE(m, BPI_REPORT_NOTE, "yarn_ext_factor", "ignored");
    bpi_model_close(m);

    m = edited_model(
        V3W, none, "model.yarn_log_multiplier=0.1 model.yarn_beta_fast=1 model.yarn_beta_slow=0.5");
    hp = bpi_model_hparams(m);
    ck_assert(hp->yarn_beta_fast == 1 && hp->yarn_beta_slow == 0.5);
    ASSERT_LINE(m, BPI_REPORT_NOTE, "model.yarn_beta_fast",
                "1 stands in for deepseek2.rope.scaling.yarn_beta_fast");
    ASSERT_LINE(m, BPI_REPORT_NOTE, "model.yarn_beta_slow", "0.5 stands in");
    ASSERT_LINE(m, BPI_REPORT_NOTE, "model.yarn_log_multiplier", "0.1 stands in");
    ck_assert_ptr_null(find_line(m, BPI_REPORT_ASSUMED, "yarn_log_multiplier", ""));
    ck_assert_ptr_null(find_line(m, BPI_REPORT_ASSUMED, "yarn_beta_fast", ""));
    bpi_model_close(m);

    m = edited_model("zoo-glm5.gguf", NULL, "model.yarn_beta_fast=1");
    ASSERT_LINE(m, BPI_REPORT_NOTE, "model.yarn_beta_fast", "without effect");
    bpi_model_close(m);
}
END_TEST

/* The file's own beta keys are honoured. */
START_TEST(beta_keys)
{
    static const struct edit k2[] = {{ED_F32, "rope.scaling.yarn_beta_fast", 1, NULL}, {0}};
    struct bpi_model *m = edited_model(V3W, k2, NULL);
    struct bpi_hparams want = *bpi_model_hparams(m);
    ck_assert(want.yarn_beta_fast == 1);
    double f[32], g[32];
    bpi_model_rope_freqs(&want, f);
    want.yarn_beta_fast = 32;
    bpi_model_rope_freqs(&want, g);
    ck_assert(fabs(f[8] - g[8]) > 1e-4);
    bpi_model_close(m);
}
END_TEST

static void add(TCase *tc)
{
    tcase_add_test(tc, frequencies_of_v3);
    tcase_add_test(tc, frequencies_of_k2);
    tcase_add_test(tc, frequencies_without_yarn);
    tcase_add_test(tc, ramp_is_clamped);
    tcase_add_test(tc, ramp_beyond_the_last_pair);
    tcase_add_test(tc, tables);
    tcase_add_test(tc, table_of_a_late_position);
    tcase_add_loop_test(tc, scale_and_magnitude, 0, BPI_ARRAY_LEN(scales));
    tcase_add_test(tc, what_is_reported);
    tcase_add_test(tc, beta_keys);
}

int main(void)
{
    return run_cases("model_rope", add, 60);
}
