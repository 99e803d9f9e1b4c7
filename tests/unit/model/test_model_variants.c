/* test_model_variants.c - the forms in which real files come: old and new layouts, tied output, MTP blocks, indexes on all,
 * some or no layers, absent keys. Each opens, means what it has to mean, and the report says what was assumed.
 * SPDX-License-Identifier: MIT */
#include "unit/model/model_edit.h"

#define V3 "zoo-v3.gguf"
#define G5 "zoo-glm5.gguf"
#define G52 "zoo-glm52-shared.gguf"
#define FLASH "zoo-glm47flash.gguf"

static bool has_raw(const struct bpi_model *m, uint32_t role, uint32_t layer)
{
    struct bp_raw raw;
    return bpi_model_raw(m, role, layer, 0, 1, &raw);
}

static uint32_t count_kind(const struct bpi_model *m, uint32_t kind)
{
    uint32_t n = 0;
    for (size_t i = 0; i < bpi_model_report_n(m); ++i) n += bpi_model_report(m, i)->kind == kind;
    return n;
}

/* The numbers of the file as its maker wrote it. */
static void same_as_original(const char *file, const struct bpi_model *m)
{
    struct bpi_model *o = edited_model(file, NULL, NULL);
    ck_assert_mem_eq(bpi_model_hparams(o), bpi_model_hparams(m), sizeof(struct bpi_hparams));
    bpi_model_close(o);
}

/* ---- kv_b ---- */

// clang-format off
#define OLD_KEYS {ED_DROP_KEY, "attention.key_length_mla", 0, NULL}, {ED_DROP_KEY, "attention.value_length_mla", 0, NULL}, \
                 {ED_U32, "attention.key_length", 40, NULL}, {ED_U32, "attention.value_length", 32, NULL}, \
                 {ED_U32, "attention.head_count_kv", 4, NULL}
// clang-format on

START_TEST(joint_kv_with_old_keys)
{
    static const struct edit edits[] = {{ED_JOINT, "*", 0, NULL}, OLD_KEYS, {0}};
    struct bpi_model *m = edited_model(V3, edits, NULL);
    same_as_original(V3, m);
    for (uint32_t i = 0; i < 4; ++i) {
        ck_assert(has_raw(m, BPI_W_ATTN_KV_B, i));
        ck_assert(!has_raw(m, BPI_W_ATTN_K_B, i) && !has_raw(m, BPI_W_ATTN_V_B, i));
    }
    ck_assert_uint_eq(count_kind(m, BPI_REPORT_UNUSED), 0);
    bpi_model_close(m);
}
END_TEST

START_TEST(both_kv_forms_with_old_keys)
{
    static const struct edit edits[] = {{ED_JOINT, "*", 1, NULL}, OLD_KEYS, {0}};
    struct bpi_model *m = edited_model(V3, edits, NULL);
    same_as_original(V3, m);
    for (uint32_t i = 0; i < 4; ++i)
        ck_assert(has_raw(m, BPI_W_ATTN_KV_B, i) && has_raw(m, BPI_W_ATTN_K_B, i) &&
                  has_raw(m, BPI_W_ATTN_V_B, i));
    bpi_model_close(m);
}
END_TEST

START_TEST(mixed_kv_forms)
{
    static const struct edit edits[] = {
        {ED_JOINT, "blk.0.*", 0, NULL}, {ED_JOINT, "blk.2.*", 0, NULL}, {0}};
    struct bpi_model *m = edited_model(V3, edits, NULL);
    same_as_original(V3, m);
    for (uint32_t i = 0; i < 4; ++i) {
        ck_assert_int_eq(has_raw(m, BPI_W_ATTN_KV_B, i), i % 2 == 0);
        ck_assert_int_eq(has_raw(m, BPI_W_ATTN_K_B, i), i % 2 == 1);
    }
    bpi_model_close(m);
}
END_TEST

START_TEST(half_pair_beside_joint)
{
    static const struct edit edits[] = {
        {ED_JOINT, "*", 1, NULL}, {ED_DROP, "blk.1.attn_v_b.weight", 0, NULL}, {0}};
    struct bpi_model *m = edited_model(V3, edits, NULL);
    ASSERT_LINE(m, BPI_REPORT_UNUSED, "blk.1.attn_k_b.weight", "attn_kv_b serves");
    ck_assert(!has_raw(m, BPI_W_ATTN_K_B, 1) && has_raw(m, BPI_W_ATTN_KV_B, 1) &&
              has_raw(m, BPI_W_ATTN_K_B, 0));
    bpi_model_close(m);
}
END_TEST

START_TEST(flat_pair)
{
    static const struct edit edits[] = {{ED_FLAT, "", 0, NULL}, {0}};
    struct bpi_model *m = edited_model(V3, edits, NULL);
    same_as_original(V3, m);
    struct bp_raw k;
    ck_assert(bpi_model_raw(m, BPI_W_ATTN_K_B, 1, 0, 1, &k));
    ck_assert_uint_eq(k.n_dim, 2);
    ck_assert_int_eq(k.ne[1], 32 * 4);
    bpi_model_close(m);
}
END_TEST

/* ---- experts ---- */

START_TEST(fused_experts)
{
    static const struct edit edits[] = {
        {ED_FUSE, "blk.2.*", 0, NULL}, {ED_FUSE, "blk.3.*", 1, NULL}, {0}};
    struct bpi_model *m = edited_model(V3, edits, NULL);
    same_as_original(V3, m);
    ck_assert(has_raw(m, BPI_W_EXP_GATE_UP, 2) && !has_raw(m, BPI_W_EXP_GATE, 2) &&
              !has_raw(m, BPI_W_EXP_UP, 2));
    ck_assert(!has_raw(m, BPI_W_EXP_GATE_UP, 3) && has_raw(m, BPI_W_EXP_GATE, 3) &&
              has_raw(m, BPI_W_EXP_UP, 3));
    ASSERT_LINE(m, BPI_REPORT_UNUSED, "blk.3.ffn_gate_up_exps.weight",
                "ffn_gate_exps and ffn_up_exps serve");
    bpi_model_close(m);
}
END_TEST

START_TEST(all_layers_dense)
{
    static const struct edit edits[] = {{ED_DROP, "blk.2.*", 0, NULL},
                                        {ED_DROP, "blk.3.*", 0, NULL},
                                        {ED_U32, "block_count", 2, NULL},
                                        {0}};
    struct bpi_model *m = edited_model(V3, edits, NULL);
    ck_assert_uint_eq(bpi_model_hparams(m)->n_expert, 0);
    ck_assert_uint_eq(bpi_model_hparams(m)->n_group, 1);
    ck_assert(bpi_model_layer_dense(m, 0) && bpi_model_layer_dense(m, 1));
    ASSERT_LINE(m, BPI_REPORT_NOTE, ".expert_count", "every layer is dense");
    bpi_model_close(m);
}
END_TEST

START_TEST(bias_in_some_layers)
{
    static const struct edit one[] = {{ED_DROP, "blk.2.exp_probs_b.bias", 0, NULL}, {0}};
    struct bpi_model *m = edited_model(V3, one, NULL);
    ck_assert_uint_eq(bpi_model_hparams(m)->group_score, BP_GROUP_TOP2);
    ck_assert_ptr_null(bpi_model_vec(m, BPI_W_ROUTER_BIAS, 2, NULL));
    ck_assert_ptr_nonnull(bpi_model_vec(m, BPI_W_ROUTER_BIAS, 3, NULL));
    ASSERT_LINE(m, BPI_REPORT_MISSING, "exp_probs_b.bias", "absent in 1 of 2 layers (blk.2");
    bpi_model_close(m);

    static const struct edit all[] = {{ED_DROP, "*.exp_probs_b.bias", 0, NULL}, {0}};
    m = edited_model(V3, all, NULL);
    ASSERT_LINE(m, BPI_REPORT_MISSING, "exp_probs_b.bias", "absent in every layer");
    ck_assert_uint_eq(bpi_model_hparams(m)->group_score, BP_GROUP_TOP2); /* sigmoid */
    bpi_model_close(m);
}
END_TEST

/* A bias beside softmax: two best per group, as wherever there is a bias. */
START_TEST(group_score)
{
    static const struct edit softmax[] = {{ED_U32, "expert_gating_func", 1, NULL}, {0}};
    struct bpi_model *m = edited_model(V3, softmax, NULL);
    ck_assert_uint_eq(bpi_model_hparams(m)->group_score, BP_GROUP_TOP2);
    bpi_model_close(m);
    static const struct edit no_bias[] = {
        {ED_U32, "expert_gating_func", 1, NULL}, {ED_DROP, "*.exp_probs_b.bias", 0, NULL}, {0}};
    m = edited_model(V3, no_bias, NULL);
    ck_assert_uint_eq(bpi_model_hparams(m)->group_score, BP_GROUP_MAX);
    bpi_model_close(m);
}
END_TEST

/* ---- output, unknown tensors, vocabulary ---- */

START_TEST(tied_output)
{
    static const struct edit edits[] = {{ED_DROP, "output.weight", 0, NULL}, {0}};
    struct bpi_model *m = edited_model(V3, edits, NULL);
    struct bp_raw embd, out;
    ck_assert(bpi_model_raw(m, BPI_W_TOKEN_EMBD, 0, 0, 1, &embd));
    ck_assert(bpi_model_raw(m, BPI_W_OUTPUT, 0, 0, 1, &out));
    ck_assert_ptr_eq(embd.data, out.data);
    ck_assert_str_eq(out.name, "token_embd.weight");
    ASSERT_LINE(m, BPI_REPORT_NOTE, "output.weight", "tied");
    bpi_model_close(m);
}
END_TEST

START_TEST(unknown_tensors)
{
    static const struct edit edits[] = {
        {ED_COPY, "blk.0.attn_norm.weight", 0, "blk.0.attn_sinks.weight"},
        {ED_COPY, "blk.1.attn_norm.weight", 0, "blk.01.attn_norm.weight"},
        {ED_COPY, "blk.2.attn_norm.weight", 0, "attn_norm.weight"},
        {ED_COPY, "output_norm.weight", 0, "blk.3.output_norm.weight"},
        {ED_COPY, "blk.0.ffn_gate.weight", 0, "blk.2.ffn_gate.weight"},
        {0}};
    struct bpi_model *m = edited_model(V3, edits, NULL);
    same_as_original(V3, m);
    ASSERT_LINE(m, BPI_REPORT_UNUSED, "blk.0.attn_sinks.weight", "no table knows");
    ASSERT_LINE(m, BPI_REPORT_UNUSED, "blk.01.attn_norm.weight", "no table knows");
    ASSERT_LINE(m, BPI_REPORT_UNUSED, "attn_norm.weight", "no table knows");
    ASSERT_LINE(m, BPI_REPORT_UNUSED, "blk.3.output_norm.weight", "no table knows");
    ASSERT_LINE(m, BPI_REPORT_UNUSED, "blk.2.ffn_gate.weight", "mixture of experts");
    ck_assert_uint_eq(count_kind(m, BPI_REPORT_UNUSED), 5);
    ck_assert(!has_raw(m, BPI_W_FFN_GATE, 2));
    bpi_model_close(m);
}
END_TEST

/* What is not used may be of a type that nobody can read. */
START_TEST(unused_tensor_of_unreadable_type)
{
    static const struct edit edits[] = {
        {ED_RENAME, "blk.2.exp_probs_b.bias", 0, "blk.2.exp_probs_c.bias"},
        {ED_TYPE, "blk.2.exp_probs_b.bias", BP_GGUF_I32, NULL},
        {0}};
    struct bpi_model *m = edited_model(V3, edits, NULL);
    ASSERT_LINE(m, BPI_REPORT_UNUSED, "blk.2.exp_probs_c.bias", "no table knows");
    bpi_model_close(m);
}
END_TEST

START_TEST(padding_rows)
{
    static const struct edit edits[] = {{ED_TOKENS, "tokenizer.ggml.tokens", 260, NULL}, {0}};
    struct bpi_model *m = edited_model(V3, edits, NULL);
    ASSERT_LINE(m, BPI_REPORT_NOTE, "token_embd.weight", "4 rows have no token");
    bpi_model_close(m);
}
END_TEST

/* ---- MTP ---- */

START_TEST(mtp_with_key)
{
    static const struct edit edits[] = {
        {ED_U32, "nextn_predict_layers", 1, NULL},
        {ED_COPY, "blk.3.attn_norm.weight", 0, "blk.3.nextn.enorm.weight"},
        {ED_COPY, "blk.2.attn_norm.weight", 0, "blk.3.nextn.hnorm.weight"},
        {ED_COPY, "blk.1.attn_norm.weight", 0, "blk.3.nextn.something.weight"},
        {0}};
    struct bpi_model *m = edited_model(V3, edits, NULL);
    ck_assert_uint_eq(bpi_model_hparams(m)->n_layer, 3);
    ck_assert_uint_eq(bpi_model_hparams(m)->n_mtp, 1);
    ASSERT_LINE(m, BPI_REPORT_UNUSED, "blk.3.nextn.enorm.weight", "part of MTP block 3");
    ASSERT_LINE(m, BPI_REPORT_UNUSED, "blk.3.nextn.something.weight", "part of MTP block 3");
    ASSERT_LINE(m, BPI_REPORT_UNUSED, "blk.3.ffn_down_exps.weight", "not run");
    ck_assert(!has_raw(m, BPI_W_ATTN_NORM, 3));
    bpi_model_close(m);
}
END_TEST

START_TEST(mtp_without_key)
{
    static const struct edit edits[] = {
        {ED_COPY, "blk.3.attn_norm.weight", 0, "blk.3.nextn.enorm.weight"}, {0}};
    struct bpi_model *m = edited_model(V3, edits, NULL);
    ck_assert_uint_eq(bpi_model_hparams(m)->n_layer, 3);
    ck_assert_uint_eq(bpi_model_hparams(m)->n_mtp, 1);
    ASSERT_LINE(m, BPI_REPORT_ASSUMED, "nextn_predict_layers",
                "absent: 1, because blk.3 has nextn tensors");
    bpi_model_close(m);
}
END_TEST

/* As in files that kept the block of the checkpoint that lies behind the counted ones. */
START_TEST(mtp_behind_block_count)
{
    static const struct edit edits[] = {
        {ED_COPY, "blk.3.attn_norm.weight", 0, "blk.4.nextn.enorm.weight"},
        {ED_COPY, "blk.2.attn_norm.weight", 0, "blk.4.attn_norm.weight"},
        {0}};
    struct bpi_model *m = edited_model(V3, edits, NULL);
    ck_assert_uint_eq(bpi_model_hparams(m)->n_layer, 4);
    ck_assert_uint_eq(bpi_model_hparams(m)->n_mtp, 1);
    ASSERT_LINE(m, BPI_REPORT_NOTE, "block_count", "MTP blocks up to blk.4");
    ASSERT_LINE(m, BPI_REPORT_UNUSED, "blk.4.attn_norm.weight", "part of MTP block 4");
    bpi_model_close(m);
}
END_TEST

/* The key counts a block that was not written. */
START_TEST(mtp_key_without_block)
{
    static const struct edit edits[] = {
        {ED_U32, "nextn_predict_layers", 1, NULL}, {ED_U32, "block_count", 5, NULL}, {0}};
    struct bpi_model *m = edited_model(V3, edits, NULL);
    ck_assert_uint_eq(bpi_model_hparams(m)->n_layer, 4);
    ck_assert_uint_eq(bpi_model_hparams(m)->n_mtp, 0);
    ASSERT_LINE(m, BPI_REPORT_NOTE, "nextn_predict_layers", "has 0 MTP blocks");
    bpi_model_close(m);
}
END_TEST

/* ---- index ---- */

// clang-format off
#define NO_INDEX {ED_DROP, "*.indexer.proj.weight", 0, NULL}, {ED_DROP, "*.indexer.attn_k.weight", 0, NULL}, \
                 {ED_DROP, "*.indexer.attn_q_b.weight", 0, NULL}, {ED_DROP, "*.indexer.k_norm.weight", 0, NULL}, \
                 {ED_DROP, "*.indexer.k_norm.bias", 0, NULL}
// clang-format on

static void check_dense(const struct bpi_model *m)
{
    const struct bpi_hparams *hp = bpi_model_hparams(m);
    ck_assert(!hp->sparse);
    ck_assert_uint_eq(hp->n_index_head, 0);
    ck_assert_uint_eq(hp->top_k, 0);
    for (uint32_t i = 0; i < hp->n_layer; ++i) {
        ck_assert(!bpi_model_index_full(m, i));
        ck_assert(!has_raw(m, BPI_W_INDEX_K, i));
        ck_assert_ptr_null(bpi_model_vec(m, BPI_W_INDEX_K_NORM, i, NULL));
    }
}

START_TEST(index_absent)
{
    static const struct edit edits[] = {NO_INDEX, {0}};
    struct bpi_model *m = edited_model(G5, edits, NULL);
    check_dense(m);
    ASSERT_LINE(m, BPI_REPORT_NOTE, "model.indexer",
                "sparse attention: off (no index tensors in file)");
    bpi_model_close(m);
    m = edited_model(G5, edits, "model.indexer=off");
    check_dense(m);
    bpi_model_close(m);
}
END_TEST

START_TEST(index_off)
{
    struct bpi_model *m = edited_model(G5, NULL, "model.indexer=off");
    check_dense(m);
    ASSERT_LINE(m, BPI_REPORT_NOTE, "model.indexer",
                "sparse attention: off (model.indexer is off)");
    ASSERT_LINE(m, BPI_REPORT_UNUSED, "blk.3.indexer.k_norm.bias", "sparse attention is off");
    ck_assert_uint_eq(count_kind(m, BPI_REPORT_UNUSED), 20);
    bpi_model_close(m);
    m = edited_model(G5, NULL, "model.indexer=on");
    ck_assert(bpi_model_hparams(m)->sparse);
    ASSERT_LINE(m, BPI_REPORT_NOTE, "model.indexer", "sparse attention: on (4 of 4 layers select)");
    bpi_model_close(m);
}
END_TEST

START_TEST(index_partly_there)
{
    static const struct edit edits[] = {{ED_DROP, "blk.1.indexer.attn_k.weight", 0, NULL},
                                        {ED_DROP, "blk.3.indexer.proj.weight", 0, NULL},
                                        {0}};
    struct bpi_model *m = edited_model(G5, edits, NULL);
    check_dense(m);
    ASSERT_LINE(m, BPI_REPORT_NOTE, "model.indexer",
                "sparse attention: off (2 of 4 selecting layers lack index tensors, first "
                "blk.1.indexer.attn_k.weight)");
    ASSERT_LINE(m, BPI_REPORT_MISSING, "blk.1.indexer.attn_k.weight", "dense without it");
    ASSERT_LINE(m, BPI_REPORT_MISSING, "blk.3.indexer.proj.weight", "dense without it");
    ck_assert_uint_eq(count_kind(m, BPI_REPORT_MISSING), 2);
    bpi_model_close(m);
}
END_TEST

static void check_full(const struct bpi_model *m, const char *full)
{
    for (uint32_t i = 0; i < bpi_model_hparams(m)->n_layer; ++i) {
        ck_assert_int_eq(bpi_model_index_full(m, i), full[i] == '1');
        ck_assert_int_eq(has_raw(m, BPI_W_INDEX_PROJ, i), full[i] == '1');
        ck_assert_int_eq(bpi_model_vec(m, BPI_W_INDEX_K_NORM_B, i, NULL) != NULL, full[i] == '1');
    }
}

/* Index tensors on selecting layers only, or on all: the same model. */
START_TEST(index_types)
{
    static const struct edit ints[] = {{ED_ARR_I32, "attention.indexer.types", 0, "1,1,0,0,1,0"},
                                       {0}};
    struct bpi_model *m = edited_model(G52, ints, NULL);
    same_as_original(G52, m);
    check_full(m, "110010");
    bpi_model_close(m);

    static const struct edit all[] = {{ED_ARR_BOOL, "attention.indexer.types", 0, "1,0,0,1"}, {0}};
    m = edited_model(G5, all, NULL);
    check_full(m, "1001");
    ASSERT_LINE(m, BPI_REPORT_UNUSED, "blk.1.indexer.proj.weight",
                "shares the choice of an earlier one");
    ck_assert_uint_eq(count_kind(m, BPI_REPORT_UNUSED), 10);
    bpi_model_close(m);

    /* One entry per block, the MTP block counted. */
    static const struct edit mtp[] = {
        {ED_ARR_BOOL, "attention.indexer.types", 0, "1,0,1,1"},
        {ED_COPY, "blk.3.attn_norm.weight", 0, "blk.3.nextn.enorm.weight"},
        {0}};
    m = edited_model(G5, mtp, NULL);
    check_full(m, "101");
    bpi_model_close(m);
}
END_TEST

/* The setting stands over the key, over the context length, and over the default. */
START_TEST(index_layers_by_setting)
{
    static const struct edit types[] = {{ED_ARR_BOOL, "attention.indexer.types", 0, "1,0,0,1"},
                                        {0}};
    static const struct edit at[] = {{ED_U32, "context_length", 1048576, NULL}, {0}};
    struct bpi_model *m = edited_model(G5, types, "model.index_layers=glm5.2");
    check_full(m, "1110");
    ASSERT_LINE(m, BPI_REPORT_NOTE, "model.index_layers", "layers 0, 1, 2, 6, 10, ... select");
    ASSERT_LINE(m, BPI_REPORT_NOTE, "model.indexer", "sparse attention: on (3 of 4 layers select)");
    bpi_model_close(m);
    m = edited_model(G5, at, "model.index_layers=all");
    check_full(m, "1111");
    ASSERT_LINE(m, BPI_REPORT_NOTE, "model.index_layers", "every layer selects");
    bpi_model_close(m);
    m = edited_model(G5, NULL, "model.index_layers=glm5.2");
    check_full(m, "1110");
    bpi_model_close(m);
    m = edited_model("zoo-v32.gguf", NULL, "model.index_layers=all");
    check_full(m, "111");
    bpi_model_close(m);
}
END_TEST

START_TEST(index_pattern_of_long_context)
{
    static const struct edit at[] = {{ED_U32, "context_length", 1048576, NULL}, {0}};
    struct bpi_model *m = edited_model(G5, at, NULL);
    check_full(m, "1110");
    ASSERT_LINE(m, BPI_REPORT_ASSUMED, "indexer.types", "layers 0, 1, 2, 6, 10");
    ck_assert_uint_eq(count_kind(m, BPI_REPORT_UNUSED), 5);
    bpi_model_close(m);
    static const struct edit below[] = {{ED_U32, "context_length", 1048575, NULL}, {0}};
    m = edited_model(G5, below, NULL);
    check_full(m, "1111");
    ASSERT_LINE(m, BPI_REPORT_ASSUMED, "indexer.types", "every layer selects");
    bpi_model_close(m);
    /* Only glm-dsa has the pattern. */
    m = edited_model("zoo-v32.gguf", at, NULL);
    check_full(m, "111");
    bpi_model_close(m);

    uint32_t n = 0;
    for (uint32_t i = 0; i < 78; ++i) n += bpi_arch_pattern_full(i);
    ck_assert_uint_eq(n, 21);
    ck_assert(bpi_arch_pattern_full(74) && !bpi_arch_pattern_full(77) && !bpi_arch_pattern_full(3));
}
END_TEST

START_TEST(index_tensors_without_index)
{
    static const struct edit edits[] = {
        {ED_COPY, "blk.0.attn_norm.weight", 0, "blk.0.indexer.proj.weight"}, {0}};
    struct bpi_model *m = edited_model(V3, edits, NULL);
    ASSERT_LINE(m, BPI_REPORT_UNUSED, "blk.0.indexer.proj.weight", "has no index");
    bpi_model_close(m);
}
END_TEST

/* ---- absent keys, arrays ---- */

// clang-format off
static const struct {
    const char *file, *key, *says;
    size_t offset; /* of a uint32_t in hp that keeps its value, or has `want` */
    int64_t want;
} absent[] = {
#define HP(f) offsetof(struct bpi_hparams, f)
    {V3, "vocab_size", NULL, HP(n_vocab), 264},
    {V3, "feed_forward_length", "absent: 96 (n_ff), from tensor blk.0.ffn_gate.weight", HP(n_ff), 96},
    {V3, "attention.head_count_kv", NULL, HP(n_head), 4},
    {V3, "attention.key_length", NULL, HP(nope), 24},
    {V3, "attention.value_length", NULL, HP(v_dim), 32},
    {V3, "attention.q_lora_rank", "absent: 48 (q_lora), from tensor blk.0.attn_q_a.weight", HP(q_lora), 48},
    {V3, "rope.dimension_count", "absent: 16", HP(rope), 16},
    {V3, "leading_dense_block_count", "absent: 2", HP(n_dense), 2},
    {V3, "expert_count", "absent: 16 (experts)", HP(n_expert), 16},
    {V3, "expert_feed_forward_length", "absent: 32", HP(n_ff_exp), 32},
    {V3, "expert_shared_count", "absent: 1", HP(n_ff_shared), 32},
    {V3, "expert_weights_norm", "absent: false", HP(expert_norm), -1},
    {V3, "expert_gating_func", "absent: softmax, the default of this architecture (DeepSeek-V2); but the file has a "
         "selection bias", HP(gating), BP_GATING_SOFTMAX},
    {G5, "expert_gating_func", "absent: sigmoid", HP(gating), BP_GATING_SIGMOID},
    {"zoo-v32.gguf", "expert_gating_func", "absent: sigmoid", HP(gating), BP_GATING_SIGMOID},
    {"zoo-v2lite.gguf", "expert_gating_func", "absent: softmax", HP(gating), BP_GATING_SOFTMAX},
    {V3, "expert_group_count", "absent: 1 group, the choice is among all 16 experts", HP(n_group), 1},
    {V3, "rope.scaling.original_context_length", "absent: 4096", HP(yarn_orig_ctx), 4096},
    {G5, "attention.indexer.head_count", "absent: 16 (index heads)", HP(n_index_head), 16},
    {G5, "attention.indexer.key_length", "absent: 32", HP(index_dim), 32},
};
// clang-format on

START_TEST(absent_key)
{
    struct edit edits[] = {{ED_DROP_KEY, absent[_i].key, 0, NULL}, {0}};
    struct bpi_model *m = edited_model(absent[_i].file, edits, NULL);
    if (absent[_i].says != NULL)
        ASSERT_LINE(m, BPI_REPORT_ASSUMED, absent[_i].key, absent[_i].says);
    uint32_t got = 0;
    memcpy(&got, (const char *)bpi_model_hparams(m) + absent[_i].offset, sizeof got);
    if (absent[_i].want >= 0) ck_assert_int_eq(got, absent[_i].want);
    if (strcmp(absent[_i].key, "expert_weights_norm") == 0)
        ck_assert(!bpi_model_hparams(m)->expert_norm);
    bpi_model_close(m);
}
END_TEST

/* All four settings of normalise and scale, and what absent and zero mean. */
START_TEST(norm_and_scale)
{
    static const struct {
        struct edit edits[3];
        bool norm;
        float scale;
        const char *says;
    } cases[] = {
        {{{0}}, true, 2.5f, NULL},
        {{{ED_DROP_KEY, "expert_weights_scale", 0, NULL}}, true, 1.0f, "absent: 1"},
        {{{ED_F32, "expert_weights_scale", 0, NULL}}, true, 1.0f, "0: 1"},
        {{{ED_BOOL, "expert_weights_norm", 0, NULL}}, false, 2.5f, NULL},
        {{{ED_BOOL, "expert_weights_norm", 0, NULL},
          {ED_DROP_KEY, "expert_weights_scale", 0, NULL}},
         false,
         1.0f,
         "absent: 1"},
    };
    for (size_t i = 0; i < BPI_ARRAY_LEN(cases); ++i) {
        struct bpi_model *m = edited_model(V3, cases[i].edits, NULL);
        ck_assert_int_eq(bpi_model_hparams(m)->expert_norm, cases[i].norm);
        ck_assert(bpi_model_hparams(m)->expert_scale == cases[i].scale);
        if (cases[i].says != NULL)
            ASSERT_LINE(m, BPI_REPORT_ASSUMED, "expert_weights_scale", cases[i].says);
        bpi_model_close(m);
    }
}
END_TEST

START_TEST(no_shared_expert)
{
    static const struct edit edits[] = {{ED_DROP, "*.ffn_gate_shexp.weight", 0, NULL},
                                        {ED_DROP, "*.ffn_up_shexp.weight", 0, NULL},
                                        {ED_DROP, "*.ffn_down_shexp.weight", 0, NULL},
                                        {ED_DROP_KEY, "expert_shared_count", 0, NULL},
                                        {0}};
    struct bpi_model *m = edited_model(V3, edits, NULL);
    ck_assert_uint_eq(bpi_model_hparams(m)->n_ff_shared, 0);
    ASSERT_LINE(m, BPI_REPORT_ASSUMED, "expert_shared_count", "absent: 0");
    bpi_model_close(m);
}
END_TEST

START_TEST(arrays_for_scalars)
{
    static const struct edit edits[] = {{ED_ARR_I32, "attention.head_count", 0, "4,4,4,4"},
                                        {ED_ARR_I32, "attention.head_count_kv", 0, "1,1,1,1"},
                                        {ED_ARR_I32, "feed_forward_length", 0, "96,96,32,0"},
                                        {0}};
    struct bpi_model *m = edited_model(V3, edits, NULL);
    same_as_original(V3, m);
    bpi_model_close(m);
}
END_TEST

START_TEST(groups_of_one_expert)
{
    static const struct edit edits[] = {{ED_U32, "expert_group_count", 16, NULL},
                                        {ED_U32, "expert_group_used_count", 4, NULL},
                                        {0}};
    struct bpi_model *m = edited_model(V3, edits, NULL);
    ck_assert_uint_eq(bpi_model_hparams(m)->n_group, 16);
    ck_assert_uint_eq(bpi_model_hparams(m)->n_group_used, 4);
    bpi_model_close(m);
    static const struct edit one[] = {
        {ED_U32, "expert_group_count", 1, NULL}, {ED_U32, "expert_group_used_count", 1, NULL}, {0}};
    m = edited_model(V3, one, NULL);
    ck_assert_uint_eq(bpi_model_hparams(m)->n_group, 1);
    bpi_model_close(m);
}
END_TEST

/* A new-style file whose *_mla keys were lost still has its widths in the tensors. */
START_TEST(no_mla_keys)
{
    static const struct edit edits[] = {{ED_DROP_KEY, "attention.key_length_mla", 0, NULL},
                                        {ED_DROP_KEY, "attention.value_length_mla", 0, NULL},
                                        {0}};
    struct bpi_model *m = edited_model(V3, edits, NULL);
    same_as_original(V3, m);
    ASSERT_LINE(m, BPI_REPORT_ASSUMED, "key_length_mla", "absent: 40");
    ASSERT_LINE(m, BPI_REPORT_ASSUMED, "value_length_mla", "absent: 32");
    bpi_model_close(m);
}
END_TEST

/* The shape by which GLM-4.7-Flash files without gating key are told. */
START_TEST(glm_flash_by_shape)
{
    ck_assert(bpi_arch_is_glm_flash(47, 154880) && bpi_arch_is_glm_flash(48, 154880));
    ck_assert(!bpi_arch_is_glm_flash(46, 154880) && !bpi_arch_is_glm_flash(47, 154881));
}
END_TEST

/* ---- survey ---- */

struct tally {
    uint32_t n[4];
    bool saw_norm, saw_up, saw_unknown;
};

static void tally_line(void *ctx, const struct bpi_report_entry *e)
{
    struct tally *t = ctx;
    ++t->n[e->kind];
    if (e->kind == BPI_REPORT_MISSING && strcmp(e->name, "output_norm.weight") == 0)
        t->saw_norm = true;
    if (e->kind == BPI_REPORT_MISSING && strcmp(e->name, "blk.3.ffn_up_exps.weight") == 0)
        t->saw_up = true;
    if (e->kind == BPI_REPORT_UNUSED && strcmp(e->name, "blk.3.ffn_upp_exps.weight") == 0)
        t->saw_unknown = true;
}

START_TEST(survey)
{
    static const struct edit edits[] = {
        {ED_DROP, "output_norm.weight", 0, NULL},
        {ED_RENAME, "blk.3.ffn_up_exps.weight", 0, "blk.3.ffn_upp_exps.weight"},
        {0}};
    struct bpi_gguf *g = edited_gguf(V3, edits);
    struct tally t = {0};
    struct bp_error err = BP_ERROR_INIT;
    struct bpi_model *m = NULL;
    ck_assert_int_eq(bpi_model_survey(g, NULL, tally_line, &t, &err), BP_OK);
    ck_assert(t.saw_norm && t.saw_up && t.saw_unknown);
    ck_assert_uint_eq(t.n[BPI_REPORT_MISSING], 2);
    ck_assert_uint_eq(t.n[BPI_REPORT_UNUSED], 1);
    ck_assert_int_eq(bpi_model_open(g, NULL, &m, &err), BP_E_FORMAT);
    bpi_gguf_close(g);

    static const struct edit arch[] = {{ED_STR, "general.architecture", 0, "gpt2"}, {0}};
    g = edited_gguf(V3, arch);
    bpi_error_clear(&err);
    ck_assert_int_eq(bpi_model_survey(g, NULL, tally_line, &t, &err), BP_E_UNSUPPORTED);
    bpi_gguf_close(g);
}
END_TEST

static void add(TCase *tc)
{
    tcase_add_test(tc, joint_kv_with_old_keys);
    tcase_add_test(tc, both_kv_forms_with_old_keys);
    tcase_add_test(tc, mixed_kv_forms);
    tcase_add_test(tc, half_pair_beside_joint);
    tcase_add_test(tc, flat_pair);
    tcase_add_test(tc, fused_experts);
    tcase_add_test(tc, all_layers_dense);
    tcase_add_test(tc, bias_in_some_layers);
    tcase_add_test(tc, group_score);
    tcase_add_test(tc, tied_output);
    tcase_add_test(tc, unknown_tensors);
    tcase_add_test(tc, unused_tensor_of_unreadable_type);
    tcase_add_test(tc, padding_rows);
    tcase_add_test(tc, mtp_with_key);
    tcase_add_test(tc, mtp_without_key);
    tcase_add_test(tc, mtp_behind_block_count);
    tcase_add_test(tc, mtp_key_without_block);
    tcase_add_test(tc, index_absent);
    tcase_add_test(tc, index_off);
    tcase_add_test(tc, index_partly_there);
    tcase_add_test(tc, index_types);
    tcase_add_test(tc, index_layers_by_setting);
    tcase_add_test(tc, index_pattern_of_long_context);
    tcase_add_test(tc, index_tensors_without_index);
    tcase_add_loop_test(tc, absent_key, 0, BPI_ARRAY_LEN(absent));
    tcase_add_test(tc, norm_and_scale);
    tcase_add_test(tc, no_shared_expert);
    tcase_add_test(tc, arrays_for_scalars);
    tcase_add_test(tc, groups_of_one_expert);
    tcase_add_test(tc, no_mla_keys);
    tcase_add_test(tc, glm_flash_by_shape);
    tcase_add_test(tc, survey);
}

int main(void)
{
    return run_cases("model_variants", add, 60);
}
