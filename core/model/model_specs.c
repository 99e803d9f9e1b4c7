/* model_specs.c - the tables: tensors, when each is needed, keys, architectures.
 * Not here: any decision; the other files read these rows.
 * Sources of names, shapes and defaults: llama.cpp (src/llama-arch.cpp, src/models/deepseek2.cpp, deepseek32.cpp,
 * glm-dsa.cpp, conversion/deepseek.py, conversion/glm.py) and Hugging Face checkpoints; see docs/internals/model.md.
 * SPDX-License-Identifier: MIT */
#include "model/model_priv.h"

/* Shapes in file order. E n_embd, N n_vocab, H heads, P nope, R rope, V v_dim, C kv_lora, Q q_lora, D dense width,
 * X experts, F expert width, S whole shared width, J index heads, I index width.
 * HF names with a star stand for one tensor per expert. attn_kv_b, and the pair attn_k_b (transposed per head) and
 * attn_v_b, all come from kv_b_proj. */
#define GLOBAL(role, gguf, hf, shape, shard)                                                       \
    {                                                                                              \
        role, false, gguf, hf, shape, shard                                                        \
    }
#define LAYER(role, gguf, hf, shape, shard)                                                        \
    {                                                                                              \
        role, true, gguf, hf, shape, shard                                                         \
    }

// clang-format off
static const struct bpi_tensor_spec specs[] = {
    GLOBAL(BPI_W_TOKEN_EMBD,   "token_embd.weight",         "model.embed_tokens.weight",               "E N",         BPI_SHARD_NONE),
    GLOBAL(BPI_W_OUTPUT_NORM,  "output_norm.weight",        "model.norm.weight",                       "E",           BPI_SHARD_NONE),
    GLOBAL(BPI_W_OUTPUT,       "output.weight",             "lm_head.weight",                          "E N",         BPI_SHARD_VOCAB),
    LAYER(BPI_W_ATTN_NORM,     "attn_norm.weight",          "input_layernorm.weight",                  "E",           BPI_SHARD_NONE),
    LAYER(BPI_W_ATTN_Q,        "attn_q.weight",             "self_attn.q_proj.weight",                 "E H*(P+R)",   BPI_SHARD_HEAD_ROW),
    LAYER(BPI_W_ATTN_Q_A,      "attn_q_a.weight",           "self_attn.q_a_proj.weight",               "E Q",         BPI_SHARD_NONE),
    LAYER(BPI_W_ATTN_Q_A_NORM, "attn_q_a_norm.weight",      "self_attn.q_a_layernorm.weight",          "Q",           BPI_SHARD_NONE),
    LAYER(BPI_W_ATTN_Q_B,      "attn_q_b.weight",           "self_attn.q_b_proj.weight",               "Q H*(P+R)",   BPI_SHARD_HEAD_ROW),
    LAYER(BPI_W_ATTN_KV_A,     "attn_kv_a_mqa.weight",      "self_attn.kv_a_proj_with_mqa.weight",     "E C+R",       BPI_SHARD_NONE),
    LAYER(BPI_W_ATTN_KV_A_NORM,"attn_kv_a_norm.weight",     "self_attn.kv_a_layernorm.weight",         "C",           BPI_SHARD_NONE),
    LAYER(BPI_W_ATTN_KV_B,     "attn_kv_b.weight",          "self_attn.kv_b_proj.weight",              "C H*(P+V)",   BPI_SHARD_HEAD_ROW),
    LAYER(BPI_W_ATTN_K_B,      "attn_k_b.weight",           "self_attn.kv_b_proj.weight",              "P C H",       BPI_SHARD_HEAD_2),
    LAYER(BPI_W_ATTN_V_B,      "attn_v_b.weight",           "self_attn.kv_b_proj.weight",              "C V H",       BPI_SHARD_HEAD_2),
    LAYER(BPI_W_ATTN_OUTPUT,   "attn_output.weight",        "self_attn.o_proj.weight",                 "H*V E",       BPI_SHARD_HEAD_COL),
    LAYER(BPI_W_INDEX_Q_B,     "indexer.attn_q_b.weight",   "self_attn.indexer.wq_b.weight",           "Q J*I",       BPI_SHARD_NONE),
    LAYER(BPI_W_INDEX_K,       "indexer.attn_k.weight",     "self_attn.indexer.wk.weight",             "E I",         BPI_SHARD_NONE),
    LAYER(BPI_W_INDEX_K_NORM,  "indexer.k_norm.weight",     "self_attn.indexer.k_norm.weight",         "I",           BPI_SHARD_NONE),
    LAYER(BPI_W_INDEX_K_NORM_B,"indexer.k_norm.bias",       "self_attn.indexer.k_norm.bias",           "I",           BPI_SHARD_NONE),
    LAYER(BPI_W_INDEX_PROJ,    "indexer.proj.weight",       "self_attn.indexer.weights_proj.weight",   "E J",         BPI_SHARD_NONE),
    LAYER(BPI_W_FFN_NORM,      "ffn_norm.weight",           "post_attention_layernorm.weight",         "E",           BPI_SHARD_NONE),
    LAYER(BPI_W_FFN_GATE,      "ffn_gate.weight",           "mlp.gate_proj.weight",                    "E D",         BPI_SHARD_ROW),
    LAYER(BPI_W_FFN_UP,        "ffn_up.weight",             "mlp.up_proj.weight",                      "E D",         BPI_SHARD_ROW),
    LAYER(BPI_W_FFN_DOWN,      "ffn_down.weight",           "mlp.down_proj.weight",                    "D E",         BPI_SHARD_COL),
    LAYER(BPI_W_ROUTER,        "ffn_gate_inp.weight",       "mlp.gate.weight",                         "E X",         BPI_SHARD_NONE),
    LAYER(BPI_W_ROUTER_BIAS,   "exp_probs_b.bias",          "mlp.gate.e_score_correction_bias",        "X",           BPI_SHARD_NONE),
    LAYER(BPI_W_EXP_GATE,      "ffn_gate_exps.weight",      "mlp.experts.*.gate_proj.weight",          "E F X",       BPI_SHARD_ROW),
    LAYER(BPI_W_EXP_UP,        "ffn_up_exps.weight",        "mlp.experts.*.up_proj.weight",            "E F X",       BPI_SHARD_ROW),
    LAYER(BPI_W_EXP_GATE_UP,   "ffn_gate_up_exps.weight",   "mlp.experts.*.{gate,up}_proj.weight",     "E 2*F X",     BPI_SHARD_ROW),
    LAYER(BPI_W_EXP_DOWN,      "ffn_down_exps.weight",      "mlp.experts.*.down_proj.weight",          "F E X",       BPI_SHARD_COL),
    LAYER(BPI_W_SHARED_GATE,   "ffn_gate_shexp.weight",     "mlp.shared_experts.gate_proj.weight",     "E S",         BPI_SHARD_ROW),
    LAYER(BPI_W_SHARED_UP,     "ffn_up_shexp.weight",       "mlp.shared_experts.up_proj.weight",       "E S",         BPI_SHARD_ROW),
    LAYER(BPI_W_SHARED_DOWN,   "ffn_down_shexp.weight",     "mlp.shared_experts.down_proj.weight",     "S E",         BPI_SHARD_COL),
    /* No role: known parts of MTP blocks, which are stored for drafting. */
    LAYER(BPI_W_COUNT,         "nextn.eh_proj.weight",          "eh_proj.weight",                      "2*E E",       BPI_SHARD_NONE),
    LAYER(BPI_W_COUNT,         "nextn.enorm.weight",            "enorm.weight",                        "E",           BPI_SHARD_NONE),
    LAYER(BPI_W_COUNT,         "nextn.hnorm.weight",            "hnorm.weight",                        "E",           BPI_SHARD_NONE),
    LAYER(BPI_W_COUNT,         "nextn.embed_tokens.weight",     "embed_tokens.weight",                 "E N",         BPI_SHARD_NONE),
    LAYER(BPI_W_COUNT,         "nextn.shared_head_head.weight", "shared_head.head.weight",             "E N",         BPI_SHARD_NONE),
    LAYER(BPI_W_COUNT,         "nextn.shared_head_norm.weight", "shared_head.norm.weight",             "E",           BPI_SHARD_NONE),
};

const struct bpi_role_rule bpi_role_rules[BPI_W_COUNT] = {
    [BPI_W_TOKEN_EMBD]     = {BPI_WHEN_ALWAYS, 0, 0},
    [BPI_W_OUTPUT_NORM]    = {BPI_WHEN_ALWAYS, 1, 0},
    [BPI_W_OUTPUT]         = {BPI_WHEN_OPTIONAL, 0, 0},
    [BPI_W_ATTN_NORM]      = {BPI_WHEN_ALWAYS, 1, 0},
    [BPI_W_ATTN_Q]         = {BPI_WHEN_Q_PLAIN, 0, 0},
    [BPI_W_ATTN_Q_A]       = {BPI_WHEN_Q_LORA, 0, 0},
    [BPI_W_ATTN_Q_A_NORM]  = {BPI_WHEN_Q_LORA, 1, 0},
    [BPI_W_ATTN_Q_B]       = {BPI_WHEN_Q_LORA, 0, 0},
    [BPI_W_ATTN_KV_A]      = {BPI_WHEN_ALWAYS, 0, 0},
    [BPI_W_ATTN_KV_A_NORM] = {BPI_WHEN_ALWAYS, 1, 0},
    [BPI_W_ATTN_KV_B]      = {BPI_WHEN_KV_JOINT, 0, 0},
    [BPI_W_ATTN_K_B]       = {BPI_WHEN_KV_SPLIT, 0, 0},
    [BPI_W_ATTN_V_B]       = {BPI_WHEN_KV_SPLIT, 0, 0},
    [BPI_W_ATTN_OUTPUT]    = {BPI_WHEN_ALWAYS, 0, 0},
    [BPI_W_INDEX_Q_B]      = {BPI_WHEN_INDEX, 0, 0},
    [BPI_W_INDEX_K]        = {BPI_WHEN_INDEX, 0, 0},
    [BPI_W_INDEX_K_NORM]   = {BPI_WHEN_INDEX, 1, 0},
    [BPI_W_INDEX_K_NORM_B] = {BPI_WHEN_INDEX, 1, 0},
    [BPI_W_INDEX_PROJ]     = {BPI_WHEN_INDEX, 0, 0},
    [BPI_W_FFN_NORM]       = {BPI_WHEN_ALWAYS, 1, 0},
    [BPI_W_FFN_GATE]       = {BPI_WHEN_DENSE, 0, BPI_W_FFN_DOWN},
    [BPI_W_FFN_UP]         = {BPI_WHEN_DENSE, 0, BPI_W_FFN_DOWN},
    [BPI_W_FFN_DOWN]       = {BPI_WHEN_DENSE, 0, 0},
    [BPI_W_ROUTER]         = {BPI_WHEN_MOE, 0, 0},
    [BPI_W_ROUTER_BIAS]    = {BPI_WHEN_BIAS, 1, 0},
    [BPI_W_EXP_GATE]       = {BPI_WHEN_EXPERTS_SPLIT, 0, BPI_W_EXP_DOWN},
    [BPI_W_EXP_UP]         = {BPI_WHEN_EXPERTS_SPLIT, 0, BPI_W_EXP_DOWN},
    [BPI_W_EXP_GATE_UP]    = {BPI_WHEN_EXPERTS_FUSED, 0, BPI_W_EXP_DOWN},
    [BPI_W_EXP_DOWN]       = {BPI_WHEN_MOE, 0, 0},
    [BPI_W_SHARED_GATE]    = {BPI_WHEN_SHARED, 0, BPI_W_SHARED_DOWN},
    [BPI_W_SHARED_UP]      = {BPI_WHEN_SHARED, 0, BPI_W_SHARED_DOWN},
    [BPI_W_SHARED_DOWN]    = {BPI_WHEN_SHARED, 0, 0},
};

#define REQ BPI_KF_REQUIRED
#define ZERO BPI_KF_ZERO_OK
#define ARR BPI_KF_ARRAY_OK
const struct bpi_key_spec bpi_key_specs[BPI_K_COUNT] = {
    [BPI_K_BLOCK_COUNT]      = {"block_count",                          BPI_KT_U32,   REQ},
    [BPI_K_NEXTN]            = {"nextn_predict_layers",                 BPI_KT_U32,   ZERO},
    [BPI_K_CONTEXT]          = {"context_length",                       BPI_KT_U32,   REQ},
    [BPI_K_EMBD]             = {"embedding_length",                     BPI_KT_U32,   REQ | ZERO},
    [BPI_K_VOCAB]            = {"vocab_size",                           BPI_KT_U32,   ZERO},
    [BPI_K_FF]               = {"feed_forward_length",                  BPI_KT_U32,   ZERO | ARR},
    [BPI_K_HEADS]            = {"attention.head_count",                 BPI_KT_U32,   REQ | ARR},
    [BPI_K_HEADS_KV]         = {"attention.head_count_kv",              BPI_KT_U32,   ARR},
    [BPI_K_KEY_LEN]          = {"attention.key_length",                 BPI_KT_U32,   ZERO},
    [BPI_K_VALUE_LEN]        = {"attention.value_length",               BPI_KT_U32,   ZERO},
    [BPI_K_KEY_LEN_MLA]      = {"attention.key_length_mla",             BPI_KT_U32,   ZERO},
    [BPI_K_VALUE_LEN_MLA]    = {"attention.value_length_mla",           BPI_KT_U32,   ZERO},
    [BPI_K_Q_LORA]           = {"attention.q_lora_rank",                BPI_KT_U32,   ZERO},
    [BPI_K_KV_LORA]          = {"attention.kv_lora_rank",               BPI_KT_U32,   REQ | ZERO},
    [BPI_K_RMS_EPS]          = {"attention.layer_norm_rms_epsilon",     BPI_KT_F32,   REQ},
    [BPI_K_TEMP_SCALE]       = {"attention.temperature_scale",          BPI_KT_F32,   ZERO},
    [BPI_K_DENSE_LAYERS]     = {"leading_dense_block_count",            BPI_KT_U32,   ZERO},
    [BPI_K_EXPERTS]          = {"expert_count",                         BPI_KT_U32,   ZERO},
    [BPI_K_EXPERTS_USED]     = {"expert_used_count",                    BPI_KT_U32,   ZERO},
    [BPI_K_EXPERTS_SHARED]   = {"expert_shared_count",                  BPI_KT_U32,   ZERO},
    [BPI_K_EXPERT_FF]        = {"expert_feed_forward_length",           BPI_KT_U32,   ZERO},
    [BPI_K_EXPERT_SCALE]     = {"expert_weights_scale",                 BPI_KT_F32,   ZERO},
    [BPI_K_EXPERT_NORM]      = {"expert_weights_norm",                  BPI_KT_BOOL,  ZERO},
    [BPI_K_GATING]           = {"expert_gating_func",                   BPI_KT_U32,   ZERO},
    [BPI_K_GROUPS]           = {"expert_group_count",                   BPI_KT_U32,   ZERO},
    [BPI_K_GROUPS_USED]      = {"expert_group_used_count",              BPI_KT_U32,   ZERO},
    [BPI_K_ROPE_DIM]         = {"rope.dimension_count",                 BPI_KT_U32,   ZERO},
    [BPI_K_ROPE_BASE]        = {"rope.freq_base",                       BPI_KT_F32,   0},
    [BPI_K_ROPE_TYPE]        = {"rope.scaling.type",                    BPI_KT_STR,   0},
    [BPI_K_ROPE_FACTOR]      = {"rope.scaling.factor",                  BPI_KT_F32,   ZERO},
    [BPI_K_ROPE_LINEAR]      = {"rope.scale_linear",                    BPI_KT_F32,   ZERO},
    [BPI_K_ROPE_ORIG]        = {"rope.scaling.original_context_length", BPI_KT_U32,   0},
    [BPI_K_ROPE_ATTN_FACTOR] = {"rope.scaling.attn_factor",             BPI_KT_F32,   0},
    [BPI_K_YARN_LOG_MUL]     = {"rope.scaling.yarn_log_multiplier",     BPI_KT_F32,   ZERO},
    [BPI_K_YARN_BETA_FAST]   = {"rope.scaling.yarn_beta_fast",          BPI_KT_F32,   0},
    [BPI_K_YARN_BETA_SLOW]   = {"rope.scaling.yarn_beta_slow",          BPI_KT_F32,   0},
    [BPI_K_YARN_EXT_FACTOR]  = {"rope.scaling.yarn_ext_factor",         BPI_KT_F32,   ZERO},
    [BPI_K_YARN_ATTN_FACTOR] = {"rope.scaling.yarn_attn_factor",        BPI_KT_F32,   ZERO},
    [BPI_K_INDEX_HEADS]      = {"attention.indexer.head_count",         BPI_KT_U32,   ZERO},
    [BPI_K_INDEX_DIM]        = {"attention.indexer.key_length",         BPI_KT_U32,   ZERO},
    [BPI_K_INDEX_TOP_K]      = {"attention.indexer.top_k",              BPI_KT_U32,   0},
    [BPI_K_INDEX_TYPES]      = {"attention.indexer.types",              BPI_KT_ARRAY, 0},
};

const struct bpi_arch_spec bpi_arch_specs[BPI_ARCH_COUNT] = {
    [BPI_ARCH_DEEPSEEK2]  = {"deepseek2",  BP_GATING_SOFTMAX, "the default of this architecture (DeepSeek-V2)",
                             false, BP_ROPE_INTERLEAVED, 0},
    [BPI_ARCH_DEEPSEEK32] = {"deepseek32", BP_GATING_SIGMOID, "what DeepSeek-V3.2 was trained with",
                             true, BP_ROPE_HALF, 0},
    [BPI_ARCH_GLM_DSA]    = {"glm-dsa",    BP_GATING_SIGMOID, "the default of this architecture (GLM-5)",
                             true, BP_ROPE_INTERLEAVED, 1048576},
};
// clang-format on

/* A row out of place would bind weights to the wrong role. */
BP_STATIC_ASSERT(BPI_ARRAY_LEN(specs) == BPI_W_COUNT + 6, "one row per role, then the MTP rows");
BP_STATIC_ASSERT(BPI_ARRAY_LEN(specs) < BPI_NAME_SLOTS / 2, "the name hash is at most half full");

const struct bpi_tensor_spec *bpi_tensor_specs(size_t *out_n)
{
    if (out_n != NULL) *out_n = BPI_ARRAY_LEN(specs);
    return specs;
}

const char *bpi_arch_name(uint32_t arch)
{
    return arch < BPI_ARCH_COUNT ? bpi_arch_specs[arch].name : "?";
}

bool bpi_arch_pattern_full(uint32_t layer)
{
    return layer < 2 || layer % 4 == 2;
}

bool bpi_arch_is_glm_flash(uint32_t n_layer, uint32_t n_vocab)
{
    return (n_layer == 47 || n_layer == 48) && n_vocab == 154880;
}
