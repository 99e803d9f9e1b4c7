/* model.h - a model as data: hyper-parameters, one tensor table, weights by role, and a report of how it was loaded.
 * Not here: computing (core/engine), text (core/token), container bytes (core/gguf).
 * Families deepseek2, deepseek32 and glm-dsa differ in rows of tables, not in code paths. Dimensions come from tensors
 * and are cross-checked with the keys. Sources: reference facts restated in docs/internals/model.md.
 * Threads: immutable after open. SPDX-License-Identifier: MIT */
#ifndef BPI_MODEL_H
#define BPI_MODEL_H

#include <stdbool.h>
#include "base/base.h"
#include "config/config.h"
#include "gguf/gguf.h"
#include "backplane/types.h"

enum bpi_arch { BPI_ARCH_DEEPSEEK2 = 0, BPI_ARCH_DEEPSEEK32 = 1, BPI_ARCH_GLM_DSA = 2, BPI_ARCH_COUNT = 3 };

/* Limits a file must keep; each is named in the message that refuses it. */
enum {
    BPI_MODEL_MAX_LAYERS = 512,
    BPI_MODEL_MAX_EXPERTS = 4096,
    BPI_MODEL_MAX_HEADS = 1024,
    BPI_MODEL_MAX_CTX = 1 << 24
};

struct bpi_hparams {
    uint32_t arch;                 /* enum bpi_arch */
    uint32_t n_layer;              /* trunk layers, without NextN blocks */
    uint32_t n_mtp;                /* NextN blocks that the file stores behind the trunk; not run */
    uint32_t n_ctx_train, n_embd, n_vocab;
    uint32_t n_head, q_lora;       /* q_lora 0: no query compression */
    uint32_t kv_lora, nope, rope, v_dim;
    uint32_t n_dense, n_ff;        /* leading dense layers and their width */
    uint32_t n_expert, n_expert_used, n_ff_exp, n_ff_shared; /* n_ff_shared = whole shared width, 0 = none */
    uint32_t n_group, n_group_used, gating, group_score;     /* enums of slot_moe.h; n_group 1 = no groups */
    bool expert_norm;
    float expert_scale;            /* 1 = none */
    float rms_eps;
    double rope_base;
    bool yarn;
    double yarn_factor, yarn_beta_fast, yarn_beta_slow;
    uint32_t yarn_orig_ctx;
    double yarn_log_mul;           /* 0.1 * mscale_all_dim */
    double rope_mag;               /* multiplies cos and sin */
    double attn_scale;             /* softmax scale, YaRN's factor squared folded in */
    uint32_t n_index_head, index_dim, top_k; /* n_index_head 0: no index */
    uint32_t index_rope_style;     /* enum bp_rope_style */
    float index_eps;
    bool sparse;                   /* the index chooses keys (config model.indexer and tensors present) */
};

/* Roles. The tensor table has one row each: GGUF name, HF name, shape, when it is required, sharding rule. */
enum bpi_role {
    BPI_W_TOKEN_EMBD, BPI_W_OUTPUT_NORM, BPI_W_OUTPUT,
    BPI_W_ATTN_NORM, BPI_W_ATTN_Q, BPI_W_ATTN_Q_A, BPI_W_ATTN_Q_A_NORM, BPI_W_ATTN_Q_B, BPI_W_ATTN_KV_A,
    BPI_W_ATTN_KV_A_NORM, BPI_W_ATTN_KV_B, BPI_W_ATTN_K_B, BPI_W_ATTN_V_B, BPI_W_ATTN_OUTPUT,
    BPI_W_INDEX_Q_B, BPI_W_INDEX_K, BPI_W_INDEX_K_NORM, BPI_W_INDEX_K_NORM_B, BPI_W_INDEX_PROJ,
    BPI_W_FFN_NORM, BPI_W_FFN_GATE, BPI_W_FFN_UP, BPI_W_FFN_DOWN,
    BPI_W_ROUTER, BPI_W_ROUTER_BIAS, BPI_W_EXP_GATE, BPI_W_EXP_UP, BPI_W_EXP_GATE_UP, BPI_W_EXP_DOWN,
    BPI_W_SHARED_GATE, BPI_W_SHARED_UP, BPI_W_SHARED_DOWN,
    BPI_W_COUNT
};

/* How a tensor is cut over tp ranks (file dimension in brackets). */
enum bpi_shard_rule {
    BPI_SHARD_NONE,     /* replicated */
    BPI_SHARD_HEAD_ROW, /* [1] by heads */
    BPI_SHARD_HEAD_2,   /* [2] by heads (or [1] of the 2-D form) */
    BPI_SHARD_HEAD_COL, /* [0] by heads */
    BPI_SHARD_ROW,      /* [1] even rows, same borders as the matching COL */
    BPI_SHARD_COL,      /* [0] at block borders */
    BPI_SHARD_VOCAB     /* [1] by vocabulary */
};

struct bpi_tensor_spec {
    uint32_t role;
    bool per_layer;
    const char *gguf;   /* "attn_q_a.weight", with "blk.N." in front when per_layer */
    const char *hf;     /* "self_attn.q_a_proj.weight", with "model.layers.N." in front when per_layer */
    const char *shape;  /* symbols in file order, "E Q" */
    uint32_t shard;     /* enum bpi_shard_rule */
};
/* The first BPI_W_COUNT rows are indexed by role; the rows behind them have role BPI_W_COUNT: tensors of MTP blocks,
 * known by name and not used. Symbols of shapes: model_specs.c. */
const struct bpi_tensor_spec *bpi_tensor_specs(size_t *out_n);

enum bpi_report_kind { BPI_REPORT_UNUSED, BPI_REPORT_MISSING, BPI_REPORT_ASSUMED, BPI_REPORT_NOTE };
struct bpi_report_entry {
    uint32_t kind;
    const char *name; /* tensor or key */
    const char *text; /* what was done about it */
};

struct bpi_model;

/* What the table misses in an open file, does not know, or does not use, without reading any data: also for files that
 * bpi_model_open refuses because tensors are missing. fn is called once per line. g stays the caller's. Errors: those of
 * bpi_model_open that come before missing tensors (architecture, keys, block numbers). */
typedef void (*bpi_report_fn)(void *ctx, const struct bpi_report_entry *entry);
int32_t bpi_model_survey(const struct bpi_gguf *g, const struct bpi_config *cfg, bpi_report_fn fn, void *ctx,
                         struct bp_error *err);

struct bpi_progress {
    void (*fn)(void *ctx, double fraction, const char *what); /* may be NULL */
    void *ctx;
};

/* Interprets an open GGUF; takes it over on success (bpi_model_close closes it), leaves it to the caller on failure.
 * Decodes norms, biases and the like to f32. Reads config [model]; cfg NULL: all defaults.
 * Errors: BP_E_UNSUPPORTED (architecture, gating, rope scaling; types without decoder: all of them with counts in one
 * message), BP_E_FORMAT (missing or misshapen tensors: name, got, wanted; contradicting keys), BP_E_CONFIG (overrides
 * that contradict each other), BP_E_NUMERIC (NaN or Inf in a norm or bias), BP_E_LIMIT, BP_E_NOMEM. */
int32_t bpi_model_open(struct bpi_gguf *g, const struct bpi_config *cfg, struct bpi_model **out, struct bp_error *err);
/* The same without reading any tensor: no vectors (bpi_model_vec gives NULL), companion scales unread (bpi_model_raw
 * says 1), NaN not found. For looking at files of any size. */
int32_t bpi_model_open_headers(struct bpi_gguf *g, const struct bpi_config *cfg, struct bpi_model **out,
                               struct bp_error *err);
bool bpi_model_headers_only(const struct bpi_model *m);
void bpi_model_close(struct bpi_model *m); /* accepts NULL */

const struct bpi_hparams *bpi_model_hparams(const struct bpi_model *m);
const struct bpi_gguf *bpi_model_gguf(const struct bpi_model *m);
const char *bpi_arch_name(uint32_t arch);

/* Is this layer's feed-forward dense; does its index select by itself (false: it reuses the last full layer's choice)? */
bool bpi_model_layer_dense(const struct bpi_model *m, uint32_t layer);
bool bpi_model_index_full(const struct bpi_model *m, uint32_t layer);

/* The raw bytes of a role, this rank's part. layer is ignored for global roles. False (and *out zeroed with data NULL)
 * when the file does not have it. BPI_W_OUTPUT falls back to token_embd when tied.
 * With tp > 1 heads, blocks of the feed-forward width and vocabulary rows are shared as evenly as whole ones allow, in
 * rank order; a share may be empty. Head columns of attn_output may begin inside a block: the owner masks. The range of
 * BPI_W_EXP_GATE_UP counts rows of one half: [begin, end) of gate and the same rows of up, ne[1]/2 further on. */
bool bpi_model_raw(const struct bpi_model *m, uint32_t role, uint32_t layer, uint32_t rank, uint32_t tp,
                   struct bp_raw *out);
/* A role decoded to f32 (norms, biases): NULL when absent. *out_n elements. */
const float *bpi_model_vec(const struct bpi_model *m, uint32_t role, uint32_t layer, size_t *out_n);

size_t bpi_model_report_n(const struct bpi_model *m);
const struct bpi_report_entry *bpi_model_report(const struct bpi_model *m, size_t i);

/* GGUF name -> HF name ("blk.3.attn_q_a.weight" -> "model.layers.3.self_attn.q_a_proj.weight"); false if the name is in
 * no table (MTP tensors included in the table as unused roles). */
bool bpi_model_hf_name(const char *gguf_name, char *out, size_t cap);
/* The other way: the i-th GGUF name that a tensor of a checkpoint ends up in (kv_b_proj has three, attn_kv_b or the pair
 * attn_k_b, attn_v_b; one expert's tensor lands in the stacked one). False past the end. */
bool bpi_model_gguf_name(const char *hf_name, size_t i, char *out, size_t cap);

/* cos and sin of every position below n_pos: out arrays (n_pos, rope/2). Angles in double; YaRN as in the file. */
void bpi_model_rope_table(const struct bpi_hparams *hp, uint32_t n_pos, float *out_cos, float *out_sin);
/* The rope/2 frequencies, after YaRN. */
void bpi_model_rope_freqs(const struct bpi_hparams *hp, double *out);

#endif
