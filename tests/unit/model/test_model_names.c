/* test_model_names.c - the tensor table: rows in the order of the roles, names that find themselves again, and names of
 * checkpoints both ways. SPDX-License-Identifier: MIT */
#include "unit/model/model_edit.h"

START_TEST(rows_follow_roles)
{
    size_t n;
    const struct bpi_tensor_spec *s = bpi_tensor_specs(&n);
    ck_assert_uint_eq(n, BPI_W_COUNT + 6);
    for (size_t i = 0; i < n; ++i) {
        ck_assert_uint_eq(s[i].role, i < BPI_W_COUNT ? i : BPI_W_COUNT);
        ck_assert_int_eq(s[i].per_layer, i > BPI_W_OUTPUT);
        ck_assert_uint_le(s[i].shard, BPI_SHARD_VOCAB);
        for (size_t j = 0; j < i; ++j) ck_assert_str_ne(s[i].gguf, s[j].gguf);
        /* ROW needs a COL partner that is cut along the same letter. */
        if (s[i].shard != BPI_SHARD_ROW) continue;
        uint32_t down = bpi_role_rules[i].down;
        ck_assert_uint_eq(s[down].shard, BPI_SHARD_COL);
        ck_assert_ptr_nonnull(strchr(s[i].shape + 2, s[down].shape[0]));
    }
    ck_assert_ptr_eq(bpi_tensor_specs(NULL), s);
}
END_TEST

/* Each shape parses to its end, and every letter has a number behind it. */
START_TEST(shapes_parse)
{
    struct bpi_hparams hp = {.n_embd = 2,
                             .n_vocab = 3,
                             .n_head = 5,
                             .nope = 7,
                             .rope = 11,
                             .v_dim = 13,
                             .kv_lora = 17,
                             .q_lora = 19,
                             .n_ff = 23,
                             .n_expert = 29,
                             .n_ff_exp = 31,
                             .n_ff_shared = 37,
                             .n_index_head = 41,
                             .index_dim = 43};
    size_t n;
    const struct bpi_tensor_spec *s = bpi_tensor_specs(&n);
    for (size_t i = 0; i < n; ++i) {
        int64_t ne[4];
        uint32_t words = 1;
        for (const char *p = s[i].shape; *p != '\0'; ++p) words += *p == ' ';
        ck_assert_uint_eq(bpi_shape_eval(&hp, s[i].shape, ne), words);
        for (uint32_t d = 0; d < 4; ++d) ck_assert_int_ge(ne[d], d < words ? 2 : 1);
    }
    int64_t ne[4];
    bpi_shape_eval(&hp, s[BPI_W_ATTN_Q_B].shape, ne);
    ck_assert(ne[0] == 19 && ne[1] == 5 * 18 && ne[2] == 1);
    bpi_shape_eval(&hp, s[BPI_W_ATTN_KV_A].shape, ne);
    ck_assert_int_eq(ne[1], 28);
    bpi_shape_eval(&hp, s[BPI_W_EXP_GATE_UP].shape, ne);
    ck_assert(ne[1] == 62 && ne[2] == 29);
    bpi_shape_eval(&hp, s[BPI_W_ATTN_OUTPUT].shape, ne);
    ck_assert(ne[0] == 65 && ne[1] == 2);
}
END_TEST

static void join(char out[160], const char *prefix, bool per_layer, uint32_t layer,
                 const char *suffix)
{
    if (per_layer)
        snprintf(out, 160, "%s%u.%s", prefix, layer, suffix);
    else
        snprintf(out, 160, "%s", suffix);
}

START_TEST(both_ways_for_every_row)
{
    size_t n;
    const struct bpi_tensor_spec *s = bpi_tensor_specs(&n);
    static const uint32_t layers[] = {0, 3, 78, 511};
    for (size_t i = 0; i < n; ++i) {
        for (size_t l = 0; l < BPI_ARRAY_LEN(layers); ++l) {
            char gguf[160], want[160], hf[160], back[96];
            bool found = false;
            join(gguf, "blk.", s[i].per_layer, layers[l], s[i].gguf);
            join(want, "model.layers.", s[i].per_layer, layers[l], s[i].hf);
            ck_assert_msg(bpi_model_hf_name(gguf, hf, sizeof hf), "%s", gguf);
            ck_assert_str_eq(hf, want);
            for (size_t k = 0; bpi_model_gguf_name(hf, k, back, sizeof back); ++k)
                found |= strcmp(back, gguf) == 0;
            ck_assert_msg(found, "%s -> %s does not come back", gguf, hf);
            if (i < BPI_W_COUNT) {
                bpi_name_of((uint32_t)i, layers[l], back, sizeof back);
                ck_assert_str_eq(back, gguf);
            }
        }
    }
}
END_TEST

START_TEST(known_pairs)
{
    char out[160];
    ck_assert(bpi_model_hf_name("blk.3.attn_q_a.weight", out, sizeof out));
    ck_assert_str_eq(out, "model.layers.3.self_attn.q_a_proj.weight");
    ck_assert(bpi_model_hf_name("blk.61.exp_probs_b.bias", out, sizeof out));
    ck_assert_str_eq(out, "model.layers.61.mlp.gate.e_score_correction_bias");
    ck_assert(bpi_model_hf_name("blk.61.nextn.eh_proj.weight", out, sizeof out));
    ck_assert_str_eq(out, "model.layers.61.eh_proj.weight");
    ck_assert(bpi_model_hf_name("output.weight", out, sizeof out));
    ck_assert_str_eq(out, "lm_head.weight");
    /* kv_b_proj ends in three tensors, one expert in the stacked one. */
    static const char *const kv[] = {"blk.9.attn_kv_b.weight", "blk.9.attn_k_b.weight",
                                     "blk.9.attn_v_b.weight"};
    for (size_t i = 0; i < 3; ++i) {
        ck_assert(
            bpi_model_gguf_name("model.layers.9.self_attn.kv_b_proj.weight", i, out, sizeof out));
        ck_assert_str_eq(out, kv[i]);
    }
    ck_assert(
        !bpi_model_gguf_name("model.layers.9.self_attn.kv_b_proj.weight", 3, out, sizeof out));
    ck_assert(
        bpi_model_gguf_name("model.layers.4.mlp.experts.255.down_proj.weight", 0, out, sizeof out));
    ck_assert_str_eq(out, "blk.4.ffn_down_exps.weight");
    ck_assert(!bpi_model_gguf_name("model.layers.4.mlp.experts.255.down_proj.weight", 1, out,
                                   sizeof out));
}
END_TEST

START_TEST(names_in_no_table)
{
    static const char *const gguf[] = {"",
                                       "blk.",
                                       "blk.3",
                                       "blk.3.",
                                       "blk..attn_q.weight",
                                       "blk.-1.attn_q.weight",
                                       "blk.03.attn_q.weight",
                                       "blk.3x.attn_q.weight",
                                       "blk.99999999999999999999.attn_q.weight",
                                       "blk.4294967295.attn_q.weight",
                                       "attn_q.weight",
                                       "blk.3.token_embd.weight",
                                       "blk.3.attn_q.bias",
                                       "blk.3.attn_q.weight ",
                                       "BLK.3.attn_q.weight"};
    static const char *const hf[] = {"",
                                     "model.layers.3",
                                     "model.layers.3.",
                                     "model.layers.x.mlp.gate.weight",
                                     "model.layers.3.mlp.experts..down_proj.weight",
                                     "model.layers.3.mlp.experts.1.down_proj",
                                     "model.layers.3.model.norm.weight",
                                     "self_attn.q_proj.weight",
                                     "model.layers.4294967295.mlp.gate.weight"};
    char out[160];
    for (size_t i = 0; i < BPI_ARRAY_LEN(gguf); ++i)
        ck_assert_msg(!bpi_model_hf_name(gguf[i], out, sizeof out), "'%s' gave %s", gguf[i], out);
    for (size_t i = 0; i < BPI_ARRAY_LEN(hf); ++i)
        ck_assert_msg(!bpi_model_gguf_name(hf[i], 0, out, sizeof out), "'%s' gave %s", hf[i], out);
    /* Too small a buffer is no name. */
    ck_assert(!bpi_model_hf_name("blk.3.attn_q_a.weight", out, 10));
    ck_assert(!bpi_model_gguf_name("model.norm.weight", 0, out, 5));
}
END_TEST

START_TEST(arch_names)
{
    ck_assert_str_eq(bpi_arch_name(BPI_ARCH_DEEPSEEK2), "deepseek2");
    ck_assert_str_eq(bpi_arch_name(BPI_ARCH_DEEPSEEK32), "deepseek32");
    ck_assert_str_eq(bpi_arch_name(BPI_ARCH_GLM_DSA), "glm-dsa");
    ck_assert_str_eq(bpi_arch_name(99), "?");
}
END_TEST

static void add(TCase *tc)
{
    tcase_add_test(tc, rows_follow_roles);
    tcase_add_test(tc, shapes_parse);
    tcase_add_test(tc, both_ways_for_every_row);
    tcase_add_test(tc, known_pairs);
    tcase_add_test(tc, names_in_no_table);
    tcase_add_test(tc, arch_names);
}

int main(void)
{
    return run_cases("model_names", add, 60);
}
