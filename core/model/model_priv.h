/* model_priv.h - what the files of core/model share: the tables, the keys as read, the model under construction.
 * Not for other rooms. Threads: a model is built by one thread and immutable afterwards.
 * SPDX-License-Identifier: MIT */
#ifndef BPI_MODEL_PRIV_H
#define BPI_MODEL_PRIV_H

#include "model/model.h"
#include "block/block.h"
#include "backplane/slot_dense.h"
#include "backplane/slot_moe.h"

/* ---- tables (model_specs.c) ---- */

/* When a role's tensor is needed; decided per layer by bpi_model_need. */
enum bpi_need_rule {
    BPI_WHEN_ALWAYS,
    BPI_WHEN_OPTIONAL,
    BPI_WHEN_Q_PLAIN,  /* queries are not compressed */
    BPI_WHEN_Q_LORA,   /* queries are compressed */
    BPI_WHEN_KV_JOINT, /* kv_b, or k_b and v_b; both forms together are fine */
    BPI_WHEN_KV_SPLIT,
    BPI_WHEN_INDEX, /* the layer selects keys by itself */
    BPI_WHEN_DENSE,
    BPI_WHEN_MOE,
    BPI_WHEN_BIAS,          /* MoE layers that have one */
    BPI_WHEN_EXPERTS_SPLIT, /* gate and up, or gate_up */
    BPI_WHEN_EXPERTS_FUSED,
    BPI_WHEN_SHARED
};

struct bpi_role_rule {
    uint8_t when;   /* enum bpi_need_rule */
    uint8_t is_vec; /* decoded to f32 at load and scanned for NaN */
    uint8_t down;   /* ROW rules: the role whose columns set the borders */
};
extern const struct bpi_role_rule bpi_role_rules[BPI_W_COUNT];

/* Metadata keys, without the architecture in front. */
enum bpi_key {
    BPI_K_BLOCK_COUNT, /* first, because arrays are measured against it */
    BPI_K_NEXTN,
    BPI_K_CONTEXT,
    BPI_K_EMBD,
    BPI_K_VOCAB,
    BPI_K_FF,
    BPI_K_HEADS,
    BPI_K_HEADS_KV,
    BPI_K_KEY_LEN,
    BPI_K_VALUE_LEN,
    BPI_K_KEY_LEN_MLA,
    BPI_K_VALUE_LEN_MLA,
    BPI_K_Q_LORA,
    BPI_K_KV_LORA,
    BPI_K_RMS_EPS,
    BPI_K_TEMP_SCALE,
    BPI_K_DENSE_LAYERS,
    BPI_K_EXPERTS,
    BPI_K_EXPERTS_USED,
    BPI_K_EXPERTS_SHARED,
    BPI_K_EXPERT_FF,
    BPI_K_EXPERT_SCALE,
    BPI_K_EXPERT_NORM,
    BPI_K_GATING,
    BPI_K_GROUPS,
    BPI_K_GROUPS_USED,
    BPI_K_ROPE_DIM,
    BPI_K_ROPE_BASE,
    BPI_K_ROPE_TYPE,
    BPI_K_ROPE_FACTOR,
    BPI_K_ROPE_LINEAR,
    BPI_K_ROPE_ORIG,
    BPI_K_ROPE_ATTN_FACTOR,
    BPI_K_YARN_LOG_MUL,
    BPI_K_YARN_BETA_FAST,
    BPI_K_YARN_BETA_SLOW,
    BPI_K_YARN_EXT_FACTOR,
    BPI_K_YARN_ATTN_FACTOR,
    BPI_K_INDEX_HEADS,
    BPI_K_INDEX_DIM,
    BPI_K_INDEX_TOP_K,
    BPI_K_INDEX_TYPES,
    BPI_K_COUNT
};
enum bpi_key_type { BPI_KT_U32, BPI_KT_F32, BPI_KT_BOOL, BPI_KT_STR, BPI_KT_ARRAY };
enum bpi_key_flags {
    BPI_KF_REQUIRED = 1,
    BPI_KF_ZERO_OK = 2, /* zero has a meaning, or a tensor contradicts it */
    BPI_KF_ARRAY_OK = 4 /* scalar, or one entry per layer */
};
struct bpi_key_spec {
    const char *suffix;
    uint8_t type;  /* enum bpi_key_type */
    uint8_t flags; /* enum bpi_key_flags */
};
extern const struct bpi_key_spec bpi_key_specs[BPI_K_COUNT];

/* A family: what differs between architectures, as data. */
struct bpi_arch_spec {
    const char *name;       /* general.architecture and prefix of its keys */
    uint32_t gating;        /* when the file has no gating key; enum bp_moe_gating */
    const char *gating_why; /* for the report */
    bool has_index;
    uint32_t index_rope_style; /* enum bp_rope_style */
    uint32_t
        long_ctx; /* without index types, a context of at least this means the pattern below; 0 = never */
};
extern const struct bpi_arch_spec bpi_arch_specs[BPI_ARCH_COUNT];
/* GLM-5.2's built-in pattern: layers 0, 1 and then every fourth from 2 on select by themselves. */
bool bpi_arch_pattern_full(uint32_t layer);
/* Files of GLM-4.7-Flash made before the gating key existed are told by their shape. */
bool bpi_arch_is_glm_flash(uint32_t n_layer, uint32_t n_vocab);

/* ---- names (model_names.c) ---- */

/* Where a tensor name belongs. */
struct bpi_name {
    const struct bpi_tensor_spec *spec; /* NULL: in no table */
    bool in_block;                      /* the name begins with "blk.N." */
    uint32_t layer;                     /* N; UINT32_MAX when it does not fit 32 bits */
};
/* Hash of the table's names, built per use because nothing here is file-scope state. */
enum { BPI_NAME_SLOTS = 128 };
struct bpi_name_index {
    uint8_t slot[BPI_NAME_SLOTS]; /* row + 1, 0 = empty */
};
void bpi_name_index_init(struct bpi_name_index *ix);
struct bpi_name bpi_name_parse(const struct bpi_name_index *ix, const char *name);
/* "blk.3.attn_q.weight"; cut to fit. */
void bpi_name_of(uint32_t role, uint32_t layer, char *out, size_t cap);

/* ---- keys (model_keys.c) ---- */

struct bpi_key_value {
    bool found;
    bool b;
    uint32_t u; /* of an array its first element */
    float f;
    struct bpi_span s;
    const struct bpi_gguf_kv *kv; /* NULL when absent */
};

/* The model under construction and afterwards. */
struct bpi_model {
    struct bpi_gguf *gguf;        /* owned once open has succeeded */
    const struct bpi_config *cfg; /* during open only; NULL = all defaults */
    const struct bpi_arch_spec *arch;
    struct bpi_key_value key[BPI_K_COUNT];
    struct bpi_hparams hp;
    bool q_plain, has_shared; /* decided from tensors before shapes are known */
    const char *index_why;    /* why index tensors are not used */
    uint8_t index_full[BPI_MODEL_MAX_LAYERS];
    /* (n_layer + 1, BPI_W_COUNT): row 0 global roles, row 1 + L layer L */
    const struct bpi_gguf_tensor **tensor;
    float **vec;
    float *scale; /* same places; NULL: the file has no companion scales */
    struct bpi_report_entry *report;
    size_t n_report, cap_report;
    struct bpi_arena arena; /* texts of the report and decoded vectors */
    bool nomem;             /* a report line was lost: open fails with BP_E_NOMEM */
};

/* Reads every key of the table. Errors as the typed reads of gguf.h, and BP_E_FORMAT for a required key that is absent,
 * zero where zero means nothing, NaN or infinity, an array of the wrong length. */
int32_t bpi_model_read_keys(struct bpi_model *m, struct bp_error *err);
/* "glm-dsa.block_count". */
void bpi_model_key_name(const struct bpi_model *m, uint32_t key, char *out, size_t cap);
/* Are the first n entries of an array key equal to the first? Always true for a scalar. */
bool bpi_model_key_uniform(const struct bpi_model *m, uint32_t key, uint64_t n);

/* ---- report (model_report.c) ---- */
void bpi_model_note(struct bpi_model *m, uint32_t kind, const char *name, const char *fmt, ...)
    BPI_PRINTF(4, 5);
void bpi_model_note_key(struct bpi_model *m, uint32_t kind, uint32_t key, const char *fmt, ...)
    BPI_PRINTF(4, 5);
/* Nine digits, decimal point whatever the locale. */
void bpi_number_text(double v, char out[32]);
/* "[64, 160]". */
void bpi_dims_text(const struct bpi_gguf_tensor *t, char *out, size_t cap);

/* ---- tensors by role (model_resolve.c) ---- */

static inline const struct bpi_gguf_tensor *bpi_model_tensor(const struct bpi_model *m,
                                                             uint32_t role, uint32_t layer)
{
    size_t row = role <= BPI_W_OUTPUT ? 0 : (size_t)layer + 1;
    return m->tensor[row * BPI_W_COUNT + role];
}
enum bpi_need { BPI_NEED_NO, BPI_NEED_MAY, BPI_NEED_YES };
/* Does this layer need the role? *why (may be NULL): why not. */
uint32_t bpi_model_need(const struct bpi_model *m, uint32_t role, uint32_t layer, const char **why);
/* Architecture, keys, trunk length, names to roles, dense layers, query form, shared experts, index. */
int32_t bpi_model_resolve(struct bpi_model *m, struct bp_error *err);
/* Drops what is not used, with a report line each. */
void bpi_model_drop_unused(struct bpi_model *m);
/* The first needed tensor that is absent is the error; with `list` all of them go to the report instead. */
int32_t bpi_model_check_missing(struct bpi_model *m, bool list, struct bp_error *err);

/* ---- companion scales (model_scales.c) ---- */

/* Which place of m->tensor a tensor of this name multiplies; SIZE_MAX: none that is used. */
size_t bpi_model_scale_place(const struct bpi_model *m, const struct bpi_name_index *ix,
                             const char *name);
/* Needs hp.n_expert. Errors: BP_E_UNSUPPORTED (experts with different scales, another type than F32), BP_E_FORMAT (a
 * count that fits nothing), BP_E_NUMERIC, BP_E_NOMEM. */
int32_t bpi_model_read_scales(struct bpi_model *m, struct bp_error *err);

/* ---- trunk and index (model_layers.c) ---- */

/* hp.n_layer and hp.n_mtp from keys and block numbers in the file. */
int32_t bpi_model_find_trunk(struct bpi_model *m, const struct bpi_name_index *ix,
                             struct bp_error *err);
/* hp.n_dense from the key, held against the tensors. */
int32_t bpi_model_find_dense(struct bpi_model *m, struct bp_error *err);
/* Which layers select, and whether selection is on. */
int32_t bpi_model_find_index(struct bpi_model *m, struct bp_error *err);

/* ---- numbers (model_hparams.c, model_experts.c, model_shapes.c, model_rope.c) ---- */

int32_t bpi_model_derive(struct bpi_model *m, struct bp_error *err);
int32_t bpi_model_derive_experts(struct bpi_model *m, struct bp_error *err);
/* A number that a tensor fixes and a key repeats: absent keys are reported, contradictions are BP_E_FORMAT. */
int32_t bpi_model_expect(struct bpi_model *m, uint32_t key, uint64_t value,
                         const struct bpi_gguf_tensor *t, const char *what, struct bp_error *err);
/* A required key of some condition ("a file with experts"). */
int32_t bpi_model_require(const struct bpi_model *m, uint32_t key, const char *why,
                          struct bp_error *err);
/* v > limit is BP_E_LIMIT naming what. */
int32_t bpi_model_limit(const char *where, const char *what, uint64_t v, uint64_t limit,
                        struct bp_error *err);
int32_t bpi_model_limit_key(const struct bpi_model *m, uint32_t key, const char *what,
                            uint64_t limit, struct bp_error *err);
/* A shape of the table in numbers; returns how many dimensions it has, the others are 1. */
uint32_t bpi_shape_eval(const struct bpi_hparams *hp, const char *shape, int64_t ne[4]);
/* Every tensor against its row of the table. */
int32_t bpi_model_check_shapes(const struct bpi_model *m, struct bp_error *err);
/* Rope and YaRN keys to hp, overrides of the configuration included; then attn_scale. */
int32_t bpi_model_derive_rope(struct bpi_model *m, struct bp_error *err);

#endif
