/* test_model_faults.c - one change to a good file per row, and the status and words that have to come back.
 * SPDX-License-Identifier: MIT */
#include "unit/model/model_edit.h"

struct fault {
    const char *what, *file;
    struct edit edits[ED_MAX];
    const char *settings; /* configuration, or NULL */
    int32_t status;
    const char *where;   /* of the error */
    const char *says[2]; /* fragments of its sentence */
};

#define V3 "zoo-v3.gguf"
#define V2L "zoo-v2lite.gguf"
#define G5 "zoo-glm5.gguf"
#define G52 "zoo-glm52-shared.gguf"
#define V32 "zoo-v32.gguf"
#define GROUP "zoo-v2-group.gguf"
#define FMT BP_E_FORMAT
#define UNS BP_E_UNSUPPORTED

// clang-format off
static const struct fault faults[] = {
    /* ---- architecture and names ---- */
    {"unknown architecture", V3, {{ED_STR, "general.architecture", 0, "llama"}}, NULL, UNS, "general.architecture",
     {"architecture 'llama' is not supported", "glm-dsa"}},
    {"architecture with a typing error", V3, {{ED_STR, "general.architecture", 0, "deepsek2"}}, NULL, UNS,
     "general.architecture", {"'deepsek2'", "nearest: deepseek2"}},
    {"architecture that only begins alike", V3, {{ED_STR, "general.architecture", 0, "deepseek2-ocr"}}, NULL, UNS,
     "general.architecture", {"'deepseek2-ocr'", "is not supported"}},
    {"no architecture", V3, {{ED_DROP_KEY, "general.architecture", 0, NULL}}, NULL, FMT, "general.architecture",
     {"key general.architecture is missing", ""}},
    {"architecture that is no string", V3, {{ED_U32, "general.architecture", 3, NULL}}, NULL, FMT, "", {"", ""}},
    {"all names carry a prefix", V3, {{ED_PREFIX, "", 0, "model."}}, NULL, FMT, "blk.0.attn_norm.weight",
     {"is missing", "its names carry the prefix 'model.'"}},
    {"one tensor renamed", V3, {{ED_RENAME, "blk.1.attn_kv_a_mqa.weight", 0, "blk.1.attn_kv_mqa.weight"}}, NULL, FMT,
     "blk.1.attn_kv_a_mqa.weight", {"is missing", "the file has 'blk.1.attn_kv_mqa.weight', which no table knows"}},
    {"keys of another architecture", V3, {{ED_STR, "general.architecture", 0, "glm-dsa"}}, NULL, FMT,
     "glm-dsa.block_count", {"key glm-dsa.block_count is missing", ""}},

    /* ---- missing tensors ---- */
    {"no embedding", V3, {{ED_DROP, "token_embd.weight", 0, NULL}}, NULL, FMT, "token_embd.weight",
     {"tensor token_embd.weight [E N] is missing", ""}},
    {"no output norm", V3, {{ED_DROP, "output_norm.weight", 0, NULL}}, NULL, FMT, "output_norm.weight", {"is missing", ""}},
    {"no attention norm", V3, {{ED_DROP, "blk.3.attn_norm.weight", 0, NULL}}, NULL, FMT, "blk.3.attn_norm.weight",
     {"is missing", ""}},
    {"no query a", V3, {{ED_DROP, "blk.2.attn_q_a.weight", 0, NULL}}, NULL, FMT, "blk.2.attn_q_a.weight",
     {"is missing", "attn_q, or attn_q_a"}},
    {"no queries at all", V3, {{ED_DROP, "*.attn_q_a.weight", 0, NULL}, {ED_DROP, "*.attn_q_b.weight", 0, NULL},
     {ED_DROP_KEY, "attention.q_lora_rank", 0, NULL}}, NULL, FMT, "blk.0.attn_q.weight", {"is missing", "and so are 3 more"}},
    {"half of the kv pair", V3, {{ED_DROP, "blk.1.attn_v_b.weight", 0, NULL}}, NULL, FMT, "blk.1.attn_v_b.weight",
     {"is missing", "attn_kv_b, or attn_k_b and attn_v_b"}},
    {"neither kv form", V3, {{ED_DROP, "blk.1.attn_v_b.weight", 0, NULL}, {ED_DROP, "blk.1.attn_k_b.weight", 0, NULL}},
     NULL, FMT, "blk.1.attn_kv_b.weight", {"is missing", "attn_kv_b, or attn_k_b and attn_v_b"}},
    {"no attention output", V3, {{ED_DROP, "blk.0.attn_output.weight", 0, NULL}}, NULL, FMT, "blk.0.attn_output.weight",
     {"is missing", ""}},
    {"no dense gate", V3, {{ED_DROP, "blk.1.ffn_gate.weight", 0, NULL}}, NULL, FMT, "blk.1.ffn_gate.weight",
     {"is missing", ""}},
    {"no router", V3, {{ED_DROP, "blk.2.ffn_gate_inp.weight", 0, NULL}}, NULL, FMT, "blk.2.ffn_gate_inp.weight",
     {"is missing", ""}},
    {"one expert tensor", V3, {{ED_DROP, "blk.3.ffn_up_exps.weight", 0, NULL}}, NULL, FMT, "blk.3.ffn_up_exps.weight",
     {"is missing", "or ffn_gate_up_exps"}},
    {"expert down", V3, {{ED_DROP, "blk.3.ffn_down_exps.weight", 0, NULL}}, NULL, FMT, "blk.3.ffn_down_exps.weight",
     {"is missing", ""}},
    {"shared expert", V3, {{ED_DROP, "*.ffn_up_shexp.weight", 0, NULL}}, NULL, FMT, "blk.2.ffn_up_shexp.weight",
     {"is missing", "and so are 1 more"}},
    {"shared expert of a layer, no key", V3, {{ED_DROP, "blk.3.ffn_down_shexp.weight", 0, NULL},
     {ED_DROP_KEY, "expert_shared_count", 0, NULL}}, NULL, FMT, "blk.3.ffn_down_shexp.weight", {"is missing", ""}},

    /* ---- shapes ---- */
    {"embedding of another width", V3, {{ED_SHAPE, "token_embd.weight", 0, "32,264"}}, NULL, FMT, "embedding_length",
     {"embedding_length is 64, but tensor token_embd.weight [32, 264] makes it 32", ""}},
    {"vocabulary rows", V3, {{ED_SHAPE, "token_embd.weight", 0, "64,200"}}, NULL, FMT, "vocab_size",
     {"vocab_size is 264, but tensor token_embd.weight [64, 200] makes it 200", ""}},
    {"output rows", V3, {{ED_SHAPE, "output.weight", 0, "64,200"}}, NULL, FMT, "output.weight",
     {"tensor output.weight is [64, 200]; [64, 264] (E N) was expected", ""}},
    {"query rows", V3, {{ED_SHAPE, "blk.1.attn_q_b.weight", 0, "48,120"}}, NULL, FMT, "blk.1.attn_q_b.weight",
     {"[48, 120]; [48, 160] (Q H*(P+R)) was expected", ""}},
    {"query rows not a multiple of the heads", V3, {{ED_SHAPE, "blk.0.attn_q_b.weight", 0, "48,158"}}, NULL, FMT,
     "attention.head_count", {"head_count is 4, but tensor blk.0.attn_q_b.weight is [48, 158]", ""}},
    {"no nope part", V3, {{ED_SHAPE, "blk.0.attn_q_b.weight", 0, "48,64"}}, NULL, FMT, "attention.head_count",
     {"tensor blk.0.attn_q_b.weight is [48, 64]", ""}},
    {"latent norm", V3, {{ED_SHAPE, "blk.0.attn_kv_a_norm.weight", 0, "30"}}, NULL, FMT, "attention.kv_lora_rank",
     {"kv_lora_rank is 32, but tensor blk.0.attn_kv_a_norm.weight [30] makes it 30", ""}},
    {"latent norm of a later layer", V3, {{ED_SHAPE, "blk.2.attn_kv_a_norm.weight", 0, "30"}}, NULL, FMT,
     "blk.2.attn_kv_a_norm.weight", {"is [30]; [32] (C) was expected", ""}},
    {"no rope rows", V3, {{ED_SHAPE, "blk.0.attn_kv_a_mqa.weight", 0, "64,32"}}, NULL, FMT, "blk.0.attn_kv_a_mqa.weight",
     {"more rows than kv_lora", ""}},
    {"odd rope", V3, {{ED_SHAPE, "blk.0.attn_kv_a_mqa.weight", 0, "64,47"}, {ED_DROP_KEY, "rope.dimension_count", 0, NULL}},
     NULL, FMT, "blk.0.attn_kv_a_mqa.weight", {"have to be even", ""}},
    {"v_b", V3, {{ED_SHAPE, "blk.3.attn_v_b.weight", 0, "32,31,4"}}, NULL, FMT, "blk.3.attn_v_b.weight",
     {"is [32, 31, 4]; [32, 32, 4] (C V H) was expected", ""}},
    {"k_b transposed", V3, {{ED_SHAPE, "blk.1.attn_k_b.weight", 0, "32,24,4"}}, NULL, FMT, "blk.1.attn_k_b.weight",
     {"is [32, 24, 4]; [24, 32, 4] (P C H) was expected", ""}},
    {"kv_b beside the pair", V3, {{ED_COPY, "blk.0.attn_q_a.weight", 0, "blk.0.attn_kv_b.weight"}}, NULL, FMT,
     "blk.0.attn_kv_b.weight", {"is [64, 48]; [32, 224] (C H*(P+V)) was expected", ""}},
    {"attention output columns", V3, {{ED_SHAPE, "blk.0.attn_output.weight", 0, "126,64"}}, NULL, FMT,
     "attention.head_count", {"tensor blk.0.attn_output.weight is [126, 64]", "multiple of the heads"}},
    {"value width", V3, {{ED_SHAPE, "blk.0.attn_output.weight", 0, "64,64"}}, NULL, FMT, "attention.value_length_mla",
     {"value_length_mla is 32, but tensor blk.0.attn_output.weight [64, 64] makes it 16", ""}},
    {"dense width", V3, {{ED_SHAPE, "blk.1.ffn_up.weight", 0, "64,64"}}, NULL, FMT, "blk.1.ffn_up.weight",
     {"is [64, 64]; [64, 96] (E D) was expected", ""}},
    {"experts in one tensor only", V3, {{ED_SHAPE, "blk.2.ffn_down_exps.weight", 0, "32,64,15"}}, NULL, FMT,
     "blk.2.ffn_down_exps.weight", {"is [32, 64, 15]; [32, 64, 16] (F E X) was expected", ""}},
    {"selection bias", V3, {{ED_SHAPE, "blk.2.exp_probs_b.bias", 0, "15"}}, NULL, FMT, "blk.2.exp_probs_b.bias",
     {"is [15]; [16] (X) was expected", ""}},
    {"an extra dimension", V3, {{ED_SHAPE, "blk.1.attn_norm.weight", 0, "64,2"}}, NULL, FMT, "blk.1.attn_norm.weight",
     {"is [64, 2]; [64] (E) was expected", ""}},
    {"shared width no multiple", V3, {{ED_SHAPE, "blk.2.ffn_gate_shexp.weight", 0, "64,48"}}, NULL, FMT,
     "blk.2.ffn_gate_shexp.weight", {"as many rows as whole experts of width 32", ""}},
    {"fused experts of odd height", V3, {{ED_RENAME, "blk.2.ffn_gate_exps.weight", 0, "blk.2.ffn_gate_up_exps.weight"},
     {ED_SHAPE, "blk.2.ffn_gate_exps.weight", 0, "64,33,16"}, {ED_DROP, "blk.2.ffn_up_exps.weight", 0, NULL}}, NULL, FMT,
     "blk.2.ffn_gate_up_exps.weight", {"has 33 rows", "half for gate and half for up"}},
    {"fused experts of half the height", V3, {{ED_RENAME, "blk.2.ffn_gate_exps.weight", 0,
     "blk.2.ffn_gate_up_exps.weight"}, {ED_DROP, "blk.2.ffn_up_exps.weight", 0, NULL}}, NULL, FMT,
     "expert_feed_forward_length", {"tensor blk.2.ffn_gate_up_exps.weight [64, 32, 16] makes it 16", ""}},
    {"fused experts of a later layer", V3, {{ED_RENAME, "blk.3.ffn_gate_exps.weight", 0, "blk.3.ffn_gate_up_exps.weight"},
     {ED_DROP, "blk.3.ffn_up_exps.weight", 0, NULL}}, NULL, FMT, "blk.3.ffn_gate_up_exps.weight",
     {"is [64, 32, 16]; [64, 64, 16] (E 2*F X) was expected", ""}},

    /* ---- keys that are missing, zero, mistyped or nonsense ---- */
    {"no block_count", V3, {{ED_DROP_KEY, "block_count", 0, NULL}}, NULL, FMT, "deepseek2.block_count",
     {"key deepseek2.block_count is missing", ""}},
    {"no context_length", V3, {{ED_DROP_KEY, "context_length", 0, NULL}}, NULL, FMT, "deepseek2.context_length",
     {"is missing", ""}},
    {"no head_count", V3, {{ED_DROP_KEY, "attention.head_count", 0, NULL}}, NULL, FMT, "attention.head_count", {"is missing", ""}},
    {"no rms eps", V3, {{ED_DROP_KEY, "attention.layer_norm_rms_epsilon", 0, NULL}}, NULL, FMT, "rms_epsilon", {"is missing", ""}},
    {"no kv_lora_rank", V3, {{ED_DROP_KEY, "attention.kv_lora_rank", 0, NULL}}, NULL, FMT, "kv_lora_rank", {"is missing", ""}},
    {"no expert_used_count", V3, {{ED_DROP_KEY, "expert_used_count", 0, NULL}}, NULL, FMT, "expert_used_count",
     {"is missing", "a model with experts"}},
    {"no group_used_count", V3, {{ED_DROP_KEY, "expert_group_used_count", 0, NULL}}, NULL, FMT, "expert_group_used_count",
     {"is missing", "expert groups"}},
    {"no yarn factor", V3, {{ED_DROP_KEY, "rope.scaling.factor", 0, NULL}}, NULL, FMT, "rope.scaling.factor",
     {"is missing", "YaRN"}},
    {"no top_k", G5, {{ED_DROP_KEY, "attention.indexer.top_k", 0, NULL}}, NULL, FMT, "indexer.top_k",
     {"is missing", "sparse attention"}},
    {"one mla length", V3, {{ED_DROP_KEY, "attention.value_length_mla", 0, NULL}}, NULL, FMT, "value_length_mla",
     {"both or neither", ""}},
    {"zero blocks", V3, {{ED_U32, "block_count", 0, NULL}}, NULL, FMT, "block_count", {"block_count is 0", "positive"}},
    {"zero heads", V3, {{ED_U32, "attention.head_count", 0, NULL}}, NULL, FMT, "attention.head_count", {"is 0", ""}},
    {"zero context", V3, {{ED_U32, "context_length", 0, NULL}}, NULL, FMT, "context_length", {"is 0", ""}},
    {"zero width", V3, {{ED_U32, "embedding_length", 0, NULL}}, NULL, FMT, "embedding_length", {"is 0, but tensor", ""}},
    {"zero latent", V3, {{ED_U32, "attention.kv_lora_rank", 0, NULL}}, NULL, FMT, "kv_lora_rank", {"is 0, but tensor", ""}},
    {"zero rope", V3, {{ED_U32, "rope.dimension_count", 0, NULL}}, NULL, FMT, "rope.dimension_count", {"is 0, but tensor", ""}},
    {"zero experts", V3, {{ED_U32, "expert_count", 0, NULL}}, NULL, FMT, "expert_count", {"is 0, but tensor", "ffn_gate_inp"}},
    {"zero experts used", V3, {{ED_U32, "expert_used_count", 0, NULL}}, NULL, FMT, "expert_used_count", {"is 0; between 1 and 16", ""}},
    {"zero expert width", V3, {{ED_U32, "expert_feed_forward_length", 0, NULL}}, NULL, FMT, "expert_feed_forward_length", {"is 0, but tensor", ""}},
    {"zero shared", V3, {{ED_U32, "expert_shared_count", 0, NULL}}, NULL, FMT, "expert_shared_count",
     {"is 0, but the file has the shared expert blk.2.ffn_gate_shexp.weight [64, 32]", ""}},
    {"zero dense width", V3, {{ED_U32, "feed_forward_length", 0, NULL}}, NULL, FMT, "feed_forward_length", {"is 0, but tensor", ""}},
    {"zero q_lora", V3, {{ED_U32, "attention.q_lora_rank", 0, NULL}}, NULL, FMT, "q_lora_rank", {"is 0, but layer 0 has compressed", ""}},
    {"zero vocabulary", V3, {{ED_U32, "vocab_size", 0, NULL}}, NULL, FMT, "vocab_size", {"is 0, but tensor", ""}},
    {"zero groups used", V3, {{ED_U32, "expert_group_used_count", 0, NULL}}, NULL, FMT, "expert_group_used_count", {"is 0; between 1 and 4", ""}},
    {"zero eps", V3, {{ED_F32, "attention.layer_norm_rms_epsilon", 0, NULL}}, NULL, FMT, "rms_epsilon", {"is 0; a finite, positive", ""}},
    {"NaN eps", V3, {{ED_F32, "attention.layer_norm_rms_epsilon", NAN, NULL}}, NULL, FMT, "", {"rms_epsilon", "nan"}},
    {"zero base", V3, {{ED_F32, "rope.freq_base", 0, NULL}}, NULL, FMT, "rope.freq_base", {"is 0; a finite, positive", ""}},
    {"base of one", V3, {{ED_F32, "rope.freq_base", 1, NULL}}, NULL, UNS, "rope.freq_base", {"above 1", ""}},
    {"infinite base", V3, {{ED_F32, "rope.freq_base", INFINITY, NULL}}, NULL, FMT, "", {"rope.freq_base", "inf"}},
    {"negative scale", V3, {{ED_F32, "expert_weights_scale", -1, NULL}}, NULL, FMT, "expert_weights_scale", {"is -1", ""}},
    {"zero original context", V3, {{ED_U32, "rope.scaling.original_context_length", 0, NULL}}, NULL, FMT, "original_context_length", {"is 0", ""}},
    {"zero beta", V3, {{ED_F32, "rope.scaling.yarn_beta_slow", 0, NULL}}, NULL, FMT, "yarn_beta_slow", {"is 0", ""}},
    {"zero yarn factor", V3, {{ED_F32, "rope.scaling.factor", 0, NULL}}, NULL, UNS, "rope.scaling.factor", {"is 0; YaRN stretches", ""}},
    {"NaN log multiplier", V3, {{ED_F32, "rope.scaling.yarn_log_multiplier", NAN, NULL}}, NULL, FMT, "", {"yarn_log_multiplier", "nan"}},
    {"zero top_k", G5, {{ED_U32, "attention.indexer.top_k", 0, NULL}}, NULL, FMT, "indexer.top_k", {"is 0", ""}},
    {"zero index heads", G5, {{ED_U32, "attention.indexer.head_count", 0, NULL}}, NULL, FMT, "indexer.head_count", {"is 0, but tensor", ""}},
    {"mistyped", V3, {{ED_STR, "attention.head_count", 0, "four"}}, NULL, FMT, "", {"attention.head_count", ""}},
    {"fraction for a count", V3, {{ED_F32, "expert_count", 16, NULL}}, NULL, FMT, "", {"expert_count", ""}},

    /* ---- keys that contradict ---- */
    {"too many blocks", V3, {{ED_U32, "block_count", 5, NULL}}, NULL, FMT, "block_count",
     {"block_count is 5", "there are no tensors of blk.4"}},
    {"too few blocks", V3, {{ED_U32, "block_count", 3, NULL}}, NULL, FMT, "block_count",
     {"block_count is 3", "no nextn tensors in blk.3"}},
    {"block limit", V3, {{ED_U32, "block_count", 4000000000u, NULL}}, NULL, BP_E_LIMIT, "block_count",
     {"block_count is 4000000000; at most 512 blocks", ""}},
    {"block number limit", V3, {{ED_COPY, "blk.0.attn_norm.weight", 0, "blk.99999999999.attn_norm.weight"}}, NULL,
     BP_E_LIMIT, "blk.99999999999.attn_norm.weight", {"at most 512 blocks", ""}},
    {"context limit", V3, {{ED_U32, "context_length", 1u << 25, NULL}}, NULL, BP_E_LIMIT, "context_length", {"at most 16777216", ""}},
    {"head limit", V3, {{ED_U32, "attention.head_count", 100000, NULL}}, NULL, BP_E_LIMIT, "attention.head_count", {"at most 1024", ""}},
    {"heads", V3, {{ED_U32, "attention.head_count", 2, NULL}}, NULL, FMT, "attention.head_count",
     {"head_count is 2, but tensor blk.0.attn_k_b.weight [24, 32, 4] makes it 4", ""}},
    {"heads per layer differ", V3, {{ED_ARR_I32, "attention.head_count", 0, "4,4,8,4"}}, NULL, UNS, "attention.head_count",
     {"differs from layer to layer", ""}},
    {"heads array too short", V3, {{ED_ARR_I32, "attention.head_count", 0, "4,4,4"}}, NULL, FMT, "attention.head_count",
     {"has 3 entries", "block_count is 4"}},
    {"negative heads", V3, {{ED_ARR_I32, "attention.head_count", 0, "4,4,4,-4"}}, NULL, FMT, "attention.head_count", {"-4", ""}},
    {"kv heads", V3, {{ED_U32, "attention.head_count_kv", 3, NULL}}, NULL, FMT, "head_count_kv", {"is 3", "1 (split form)"}},
    {"latent", V3, {{ED_U32, "attention.kv_lora_rank", 64, NULL}}, NULL, FMT, "kv_lora_rank", {"is 64, but tensor", "makes it 32"}},
    {"q_lora", V3, {{ED_U32, "attention.q_lora_rank", 32, NULL}}, NULL, FMT, "q_lora_rank",
     {"q_lora_rank is 32, but tensor blk.0.attn_q_a.weight [64, 48] makes it 48", ""}},
    {"q_lora without tensors", V2L, {{ED_U32, "attention.q_lora_rank", 32, NULL}}, NULL, FMT, "q_lora_rank",
     {"is 32, but layer 0 has blk.0.attn_q.weight", ""}},
    {"both query forms", V3, {{ED_COPY, "blk.0.attn_q_b.weight", 0, "blk.0.attn_q.weight"}}, NULL, FMT,
     "blk.0.attn_q.weight", {"both", ""}},
    {"rope", V3, {{ED_U32, "rope.dimension_count", 64, NULL}}, NULL, FMT, "rope.dimension_count", {"is 64, but tensor", "makes it 16"}},
    {"key length", V3, {{ED_U32, "attention.key_length_mla", 192, NULL}}, NULL, FMT, "key_length_mla", {"is 192, but tensor", "makes it 40"}},
    {"value length", V3, {{ED_U32, "attention.value_length_mla", 128, NULL}}, NULL, FMT, "value_length_mla", {"is 128", "makes it 32"}},
    {"latent width", V3, {{ED_U32, "attention.key_length", 40, NULL}}, NULL, FMT, "attention.key_length", {"is 40", "makes it 48"}},
    {"old key length", V3, {{ED_JOINT, "*", 0, NULL}, {ED_DROP_KEY, "attention.key_length_mla", 0, NULL}, {ED_DROP_KEY,
     "attention.value_length_mla", 0, NULL}, {ED_U32, "attention.key_length", 192, NULL}}, NULL, FMT, "key_length",
     {"key_length is 192", "makes it 40"}},
    {"dense layers", V3, {{ED_U32, "leading_dense_block_count", 1, NULL}}, NULL, FMT, "leading_dense_block_count",
     {"layer 1 has to be a mixture of experts, but the file has blk.1.ffn_gate.weight [64, 96]", ""}},
    {"dense layers too many", V3, {{ED_U32, "leading_dense_block_count", 3, NULL}}, NULL, FMT, "leading_dense_block_count",
     {"layer 2 has to be dense, but the file has blk.2.ffn_gate_inp.weight [64, 16]", ""}},
    {"dense layers beyond all", V3, {{ED_U32, "leading_dense_block_count", 9, NULL}}, NULL, FMT,
     "leading_dense_block_count", {"is 9, but the model has 4 layers", ""}},
    {"dense width key", V3, {{ED_U32, "feed_forward_length", 128, NULL}}, NULL, FMT, "feed_forward_length",
     {"is 128, but tensor blk.0.ffn_gate.weight [64, 96] makes it 96", ""}},
    {"dense widths differ", V3, {{ED_ARR_I32, "feed_forward_length", 0, "96,64,0,0"}}, NULL, UNS, "feed_forward_length",
     {"differs among the 2 dense layers", ""}},
    {"experts", V3, {{ED_U32, "expert_count", 8, NULL}}, NULL, FMT, "expert_count", {"is 8, but tensor blk.2.ffn_gate_inp.weight", ""}},
    {"experts used", V3, {{ED_U32, "expert_used_count", 17, NULL}}, NULL, FMT, "expert_used_count", {"is 17; between 1 and 16", ""}},
    {"expert width", V3, {{ED_U32, "expert_feed_forward_length", 64, NULL}}, NULL, FMT, "expert_feed_forward_length", {"makes it 32", ""}},
    {"shared count", V3, {{ED_U32, "expert_shared_count", 2, NULL}}, NULL, FMT, "expert_shared_count", {"is 2, but tensor", "makes it 1"}},
    {"groups do not divide", V3, {{ED_U32, "expert_group_count", 3, NULL}}, NULL, FMT, "expert_group_count",
     {"is 3, which does not divide the 16 experts", ""}},
    {"more groups than experts", V3, {{ED_U32, "expert_group_count", 32, NULL}}, NULL, FMT, "expert_group_count", {"is 32", ""}},
    {"more groups kept than there are", V3, {{ED_U32, "expert_group_used_count", 5, NULL}}, NULL, FMT,
     "expert_group_used_count", {"is 5; between 1 and 4", ""}},
    {"too few experts in the groups", V3, {{ED_U32, "expert_group_count", 8, NULL}, {ED_U32, "expert_group_used_count", 1,
     NULL}}, NULL, FMT, "expert_group_used_count", {"fewer than the 4 experts chosen", ""}},
    {"gating of another family", V3, {{ED_U32, "expert_gating_func", 4, NULL}}, NULL, UNS, "expert_gating_func",
     {"is 4; 1 (softmax) and 2 (sigmoid)", ""}},
    {"gating after selection", V3, {{ED_U32, "expert_gating_func", 3, NULL}}, NULL, UNS, "expert_gating_func", {"is 3", ""}},
    {"more tokens than rows", V3, {{ED_TOKENS, "tokenizer.ggml.tokens", 300, NULL}}, NULL, FMT, "tokenizer.ggml.tokens",
     {"has 300 entries, but tensor token_embd.weight has 264 rows", ""}},
    {"temperature", V3, {{ED_F32, "attention.temperature_scale", 0.1, NULL}}, NULL, UNS, "attention.temperature_scale",
     {"not supported", ""}},

    /* ---- rope ---- */
    {"linear scaling", G5, {{ED_F32, "rope.scaling.factor", 4, NULL}}, NULL, UNS, "rope.scaling.factor", {"linear scaling", ""}},
    {"old linear scaling", G5, {{ED_F32, "rope.scale_linear", 4, NULL}}, NULL, UNS, "rope.scale_linear", {"linear scaling", ""}},
    {"longrope", G5, {{ED_STR, "rope.scaling.type", 0, "longrope"}}, NULL, UNS, "rope.scaling.type", {"'longrope'", "none and yarn"}},
    {"shrinking yarn", V3, {{ED_F32, "rope.scaling.factor", 0.5, NULL}}, NULL, UNS, "rope.scaling.factor", {"at least 1", ""}},
    {"attn_factor", V3, {{ED_F32, "rope.scaling.attn_factor", 2, NULL}}, NULL, UNS, "rope.scaling.attn_factor", {"only 1", ""}},
    {"attn_factor without yarn", G5, {{ED_F32, "rope.scaling.attn_factor", 0.5, NULL}}, NULL, UNS, "rope.scaling.attn_factor", {"only 1", ""}},
    {"betas swapped", V3, {{ED_F32, "rope.scaling.yarn_beta_fast", 1, NULL}, {ED_F32, "rope.scaling.yarn_beta_slow", 32,
     NULL}}, NULL, FMT, "yarn_beta_slow", {"is 32, above yarn_beta_fast 1", ""}},
    {"beta of the configuration", V3, {{0}}, "model.yarn_beta_slow=40", BP_E_CONFIG, "yarn_beta_slow",
     {"is 40, above yarn_beta_fast 32", ""}},

    /* ---- index ---- */
    {"index on, tensor missing", G5, {{ED_DROP, "blk.2.indexer.proj.weight", 0, NULL}}, "model.indexer=on", FMT,
     "blk.2.indexer.proj.weight", {"is missing, and model.indexer is on", ""}},
    {"index on, none", G5, {{ED_DROP, "*.indexer.proj.weight", 0, NULL}, {ED_DROP, "*.indexer.attn_k.weight", 0, NULL},
     {ED_DROP, "*.indexer.attn_q_b.weight", 0, NULL}, {ED_DROP, "*.indexer.k_norm.weight", 0, NULL},
     {ED_DROP, "*.indexer.k_norm.bias", 0, NULL}}, "model.indexer=on", FMT, "blk.0.indexer.attn_q_b.weight", {"is missing", ""}},
    {"index layers, arch without sharing", "zoo-v32.gguf", {{0}}, "model.index_layers=glm5.2", UNS, "model.index_layers",
     {"architecture deepseek32 do not share", ""}},
    {"index layers, arch without", V3, {{0}}, "model.index_layers=all", UNS, "model.index_layers",
     {"architecture deepseek2 has no index", ""}},
    {"index on, arch without", V3, {{0}}, "model.indexer=on", UNS, "model.indexer", {"architecture deepseek2 has no index", ""}},
    {"types too short", G52, {{ED_ARR_BOOL, "attention.indexer.types", 0, "1,1,0"}}, NULL, FMT, "indexer.types",
     {"has 3 entries", "6 layers"}},
    {"types no array", G52, {{ED_U32, "attention.indexer.types", 1, NULL}}, NULL, FMT, "indexer.types", {"an array", ""}},
    {"types of another kind", G52, {{ED_ARR_I32, "attention.indexer.types", 0, "1,1,0,2,1,0"}}, NULL, FMT, "indexer.types",
     {"entry 3", "is 2; 0 (shared) or 1 (full)"}},
    {"first layer shared", G52, {{ED_ARR_BOOL, "attention.indexer.types", 0, "0,1,0,0,1,0"}}, NULL, FMT, "indexer.types",
     {"no earlier choice", ""}},
    {"index width", G5, {{ED_U32, "attention.indexer.key_length", 64, NULL}}, NULL, FMT, "indexer.key_length",
     {"is 64, but tensor blk.0.indexer.k_norm.weight [32] makes it 32", ""}},
    {"index heads", V32, {{ED_U32, "attention.indexer.head_count", 8, NULL}}, NULL, FMT, "indexer.head_count", {"makes it 16", ""}},
    {"index narrower than rope", G5, {{ED_SHAPE, "blk.0.indexer.k_norm.weight", 0, "8"}, {ED_U32,
     "attention.indexer.key_length", 8, NULL}}, NULL, FMT, "blk.0.indexer.k_norm.weight", {"as wide as the rope", ""}},
    {"index query shape", G5, {{ED_SHAPE, "blk.3.indexer.attn_q_b.weight", 0, "48,500"}}, NULL, FMT,
     "blk.3.indexer.attn_q_b.weight", {"[48, 512] (Q J*I) was expected", ""}},

    /* ---- MTP ---- */
    {"nextn takes all", V3, {{ED_U32, "nextn_predict_layers", 4, NULL}}, NULL, FMT, "nextn_predict_layers", {"is 4", "no trunk layer"}},
    {"nextn without its tensors", V3, {{ED_U32, "nextn_predict_layers", 1, NULL}}, NULL, FMT, "nextn_predict_layers",
     {"no nextn tensors in blk.3", ""}},
    {"nextn tensors in the trunk", V3, {{ED_U32, "nextn_predict_layers", 0, NULL}, {ED_COPY, "blk.1.attn_norm.weight", 0,
     "blk.1.nextn.enorm.weight"}}, NULL, FMT, "nextn_predict_layers", {"nextn tensors in trunk block blk.1", ""}},

    /* ---- types and numbers ---- */
    {"types without decoder", V3, {{ED_TYPE, "blk.0.attn_q_a.weight", BP_GGUF_I8, NULL}, {ED_TYPE, "*.ffn_down_exps.weight",
     BP_GGUF_I16, NULL}, {ED_TYPE, "output.weight", BP_GGUF_I8, NULL}}, NULL, UNS, "output.weight",
     {"4 tensors have types that cannot be decoded: I8 (2), I16 (2); supported: F32", ""}},
    {"types come before shapes", V3, {{ED_TYPE, "blk.0.attn_q_a.weight", BP_GGUF_I8, NULL}, {ED_SHAPE,
     "blk.1.attn_norm.weight", 0, "65"}}, NULL, UNS, "blk.0.attn_q_a.weight", {"I8 (1)", ""}},
    {"NaN in a norm", V3, {{ED_POKE, "blk.2.ffn_norm.weight", NAN, NULL}}, NULL, BP_E_NUMERIC, "blk.2.ffn_norm.weight",
     {"element 0 of tensor blk.2.ffn_norm.weight is NaN", ""}},
    {"infinity in a latent norm", V3, {{ED_POKE, "blk.1.attn_kv_a_norm.weight", -INFINITY, NULL}}, NULL, BP_E_NUMERIC,
     "blk.1.attn_kv_a_norm.weight", {"is infinite", ""}},
    {"NaN in the last norm", V3, {{ED_POKE, "output_norm.weight", NAN, NULL}}, NULL, BP_E_NUMERIC, "output_norm.weight", {"NaN", ""}},
    {"NaN in a selection bias", V3, {{ED_POKE, "blk.3.exp_probs_b.bias", NAN, NULL}}, NULL, BP_E_NUMERIC,
     "blk.3.exp_probs_b.bias", {"NaN", ""}},
    {"NaN in an index bias", G5, {{ED_POKE, "blk.1.indexer.k_norm.bias", NAN, NULL}}, NULL, BP_E_NUMERIC,
     "blk.1.indexer.k_norm.bias", {"NaN", ""}},
};
// clang-format on

START_TEST(refused)
{
    const struct fault *f = &faults[_i];
    struct bpi_gguf *g = edited_gguf(f->file, f->edits);
    struct bpi_config *c = test_config(f->settings);
    struct bpi_model *m = (struct bpi_model *)1;
    struct bp_error err = BP_ERROR_INIT;
    int32_t rc = bpi_model_open(g, c, &m, &err);
    ck_assert_msg(rc == f->status, "%s: status %s, wanted %s: %s", f->what, bpi_status_name(rc),
                  bpi_status_name(f->status), err.msg);
    ck_assert_ptr_null(m);
    ck_assert_int_eq(err.code, f->status);
    ck_assert_msg(strstr(err.where, f->where) != NULL, "%s: where is '%s', wanted '%s'", f->what,
                  err.where, f->where);
    for (int i = 0; i < 2; ++i)
        ck_assert_msg(f->says[i] == NULL || strstr(err.msg, f->says[i]) != NULL,
                      "%s: says '%s', wanted '%s'", f->what, err.msg, f->says[i]);
    /* One sentence that fits the struct: it was not cut. */
    ck_assert_uint_gt(strlen(err.msg), 20);
    ck_assert_uint_lt(strlen(err.msg), sizeof err.msg - 1);
    /* The file is still the caller's, and an error is not needed for failing. */
    ck_assert_int_eq(bpi_model_open(g, c, &m, NULL), f->status);
    bpi_gguf_close(g);
    bpi_config_destroy(c);
}
END_TEST

static void add(TCase *tc)
{
    tcase_add_loop_test(tc, refused, 0, BPI_ARRAY_LEN(faults));
}

int main(void)
{
    return run_cases("model_faults", add, 60);
}
