/* slot_mla.h - multi-head latent attention: four interfaces that are chosen apart ("bp.mla.common", "bp.mla.prefill",
 * "bp.mla.decode", "bp.mla.index", all 0.1) and the metadata they share.
 * Not here: projections (slot_quant.h), rotation of queries (slot_dense.h), block tables' policy (core/kv), the order
 * of calls (core/engine).
 * Source: DeepSeek-V2 report (2024) section 2.1 for MLA; DeepSeek-V3.2 report (2025) for the index (DSA).
 *
 * Fixed meanings, because kernels in the field disagree:
 *  - LSE is the natural logarithm of the sum of exp(scale * q.k).
 *  - A row without keys gives out = 0 and LSE = -inf. Merging with it changes nothing.
 *  - Index lists hold token slots (block * block_tok + offset), ascending by position; -1 means skip.
 *  - Padded rows have kv_len 0 and may hold anything in out. NaN in a row never reaches another row.
 *  - The softmax scale is passed, never inferred.
 * A cached token is one latent row: c (kv_rank numbers, after its norm) and k_pe (rope_dim numbers, after rotation).
 * A layout id fixes bytes per token and per block; nobody multiplies a dtype by a width.
 * Notation: H heads of this rank, P nope_dim, R rope_dim, V v_dim, C kv_rank, D index key width.
 * SPDX-License-Identifier: MIT */
#ifndef BP_SLOT_MLA_H
#define BP_SLOT_MLA_H

#include "backplane/plugin.h"
#include "backplane/slot_dense.h" /* enum bp_rope_style */
#include "backplane/slot_quant.h" /* struct bp_weight_info */

BP_EXTERN_C_BEGIN

/* One problem for all four interfaces. */
struct bp_mla_problem {
    struct bp_hdr h;
    uint32_t n_head, nope_dim, rope_dim, v_dim, kv_rank;
    uint32_t block_tok;             /* tokens per cache block */
    uint32_t act_dtype;             /* q, k, v, latent activations: enum bp_dtype */
    uint32_t kv_dtype;              /* resolved cache dtype, never "auto" */
    uint64_t layout_id;             /* latent pool; 0 while layouts are still being negotiated */
    uint64_t index_layout_id;       /* index pool; 0 = none or not yet */
    uint32_t max_tok;               /* tokens of one step */
    uint32_t max_seqs, max_rows;    /* sequences and decode rows of one step */
    uint32_t max_kv;                /* cached tokens of one sequence */
    uint32_t max_slab;              /* keys of one gathered slab group */
    uint32_t n_index_head, index_dim, index_rope_style, top_k; /* 0 = no index */
    uint32_t need_lse, need_capture, need_determinism;
    uint32_t type_k, type_v;        /* enum bp_gguf_type of k_b and v_b (both of kv_b's type in joint files) */
};
BP_NOPAD(struct bp_mla_problem, type_v);

struct bp_kv_layout {
    struct bp_hdr h;
    uint64_t id;           /* bp_id(name) */
    uint64_t block_bytes;  /* one block of block_tok tokens */
    uint64_t token_bytes;  /* for reports */
    uint32_t dtype;        /* enum bp_dtype of the stored numbers */
    uint32_t align;        /* of the pool */
    char name[32];         /* "mla.bf16.576" */
};
BP_NOPAD(struct bp_kv_layout, name);

/* ---- metadata: built once per step by the engine, shared by all layers; arrays on the rank's device, the _host twins
 * always readable by the host ---- */

struct bp_mla_meta { /* common */
    struct bp_hdr h;
    uint64_t epoch;
    uint32_t n_tok, n_seqs;
    uint32_t block_tok, table_stride;
    uint32_t max_kv, reserved;           /* upper bound of kv_len */
    const int32_t *positions;            /* (n_tok) */
    const int32_t *slot_map;             /* (n_tok) token slot to write, -1 = do not write */
    const int32_t *block_table;          /* (n_seqs, table_stride) block numbers */
    const int32_t *kv_len;               /* (n_seqs) cached tokens after this step's writes */
    const int32_t *positions_host, *slot_map_host, *block_table_host, *kv_len_host;
    struct bp_tensor rope_cos, rope_sin; /* (n_pos, R/2) F32 */
};
BP_NOPAD(struct bp_mla_meta, rope_sin);

/* Packed segments: queries of segment s are rows cu_q[s] .. cu_q[s+1), its keys rows cu_k[s] .. cu_k[s+1) of the
 * gathered slab, which are positions kv_begin[s] + 0, 1, ... of sequence seq[s]. */
struct bp_mla_prefill_meta {
    struct bp_hdr h;
    const struct bp_mla_meta *common;
    uint32_t n_seg, n_q, n_k, max_q, max_k, reserved;
    const int32_t *seq, *cu_q, *cu_k, *kv_begin;
    const int32_t *seq_host, *cu_q_host, *cu_k_host, *kv_begin_host;
};
BP_NOPAD(struct bp_mla_prefill_meta, kv_begin_host);

/* Rows of absorbed queries: one token each, from decoding sequences and from sparse prefill. */
struct bp_mla_decode_meta {
    struct bp_hdr h;
    const struct bp_mla_meta *common;
    uint32_t n_row, n_row_padded;         /* rows n_row .. n_row_padded have kv_len 0 */
    uint32_t max_kv, reserved;            /* upper bound of row_kv_len */
    const int32_t *row_seq;               /* (n_row_padded) row of the block table */
    const int32_t *row_kv_len;            /* (n_row_padded) keys this row may see: its position + 1 */
    const int32_t *row_seq_host, *row_kv_len_host;
};
BP_NOPAD(struct bp_mla_decode_meta, row_kv_len_host);

/* ---- bp.mla.common ---- */

enum bp_mla_common_op {
    BP_MLA_OP_CACHE_WRITE = 0, BP_MLA_OP_CACHE_GATHER = 1, BP_MLA_OP_EXPAND = 2, BP_MLA_OP_ABSORB = 3,
    BP_MLA_OP_MERGE = 4
};

/* Up-projections of one layer: k_b and v_b, or kv_b alone. Absent parts have data == NULL. Shards are by head. */
struct bp_mla_weights {
    struct bp_hdr h;
    struct bp_raw k_b;  /* ne = {P, C, H} or {P, C*H} */
    struct bp_raw v_b;  /* ne = {C, V, H} or {C, V*H} */
    struct bp_raw kv_b; /* ne = {C, H*(P+V)}: per head P key rows, then V value rows */
    uint32_t n_head, nope_dim, v_dim, kv_rank; /* n_head of the whole model */
    uint32_t head_begin, head_end;             /* heads of this rank */
};
BP_NOPAD(struct bp_mla_weights, head_end);

struct bp_mla_cache_write_args {
    struct bp_hdr h;
    const struct bp_mla_meta *meta;
    struct bp_tensor kv;     /* (n_tok, C + R), IN, raw projection */
    struct bp_tensor norm_w; /* (C) F32, IN */
    struct bp_tensor pool;   /* (n_blocks, block_bytes) U8, INOUT, layout_id set */
    float eps;
    uint32_t reserved;
};
BP_NOPAD(struct bp_mla_cache_write_args, reserved);

struct bp_mla_cache_gather_args {
    struct bp_hdr h;
    const struct bp_mla_prefill_meta *meta;
    struct bp_tensor pool; /* IN */
    struct bp_tensor c;    /* (n_k, C), OUT */
    struct bp_tensor k_pe; /* (n_k, R), OUT */
};
BP_NOPAD(struct bp_mla_cache_gather_args, k_pe);

struct bp_mla_expand_args {
    struct bp_hdr h;
    void *weights;
    struct bp_tensor c;    /* (n_k, C), IN */
    struct bp_tensor k_pe; /* (n_k, R), IN */
    struct bp_tensor k;    /* (n_k, H, P + R), OUT: W_UK c, then k_pe repeated for each head */
    struct bp_tensor v;    /* (n_k, H, V), OUT: W_UV c */
};
BP_NOPAD(struct bp_mla_expand_args, v);

enum bp_mla_absorb_side { BP_MLA_ABSORB_UK = 0, BP_MLA_ABSORB_UV = 1 };
struct bp_mla_absorb_args {
    struct bp_hdr h;
    void *weights;
    struct bp_tensor x; /* UK: (n, H, P) queries; UV: (n, H, C) latent outputs; IN */
    struct bp_tensor y; /* UK: (n, H, C); UV: (n, H, V); OUT */
    uint32_t side;      /* enum bp_mla_absorb_side */
    uint32_t reserved;
};
BP_NOPAD(struct bp_mla_absorb_args, reserved);

struct bp_mla_merge_args {
    struct bp_hdr h;
    struct bp_tensor out, lse;             /* (n, H, V), (n, H) F32, INOUT */
    struct bp_tensor other_out, other_lse; /* same shapes, IN */
};
BP_NOPAD(struct bp_mla_merge_args, other_lse);

struct bp_mla_common_ops {
    struct bp_op_base base; /* problem: struct bp_mla_problem; tensors(): enum bp_mla_common_op */

    /* layouts - the i-th latent layout this provider can write for problem p, the preferred first. Pre: none. Writes:
     * *out. Errors: BP_DECLINED past the end. Numeric: none. Threads: any. Since: 0.1. */
    int32_t (*layouts)(void *self, const struct bp_mla_problem *p, uint32_t i, struct bp_kv_layout *out);

    /* prepare - takes the up-projections of one layer, decoded once, in whatever orientations it wants. Pre: data stays
     * mapped until release. Writes: *out, *info (may be NULL). Errors: BP_DECLINED for a type not served, BP_E_NOMEM,
     * BP_E_DEVMEM. Numeric: exact decoded values. Threads: any, serialised per instance. Since: 0.1. */
    int32_t (*prepare)(void *self, const struct bp_mla_weights *w, void **out, struct bp_weight_info *info,
                       struct bp_error *err);
    /* release - ends a handle; NULL accepted. Pre: unused. Writes: none. Errors: none. Numeric: none. Threads: as
     * prepare. Since: 0.1. */
    void (*release)(void *self, void *weights);

    /* cache_write - c = rms(kv[0..C)) and k_pe = rope(kv[C..C+R), interleaved pairs) into the pool. Pre: slots inside
     * the pool. Writes: the pool at slot_map's slots. Errors: BP_E_DEVICE. Numeric: f32, then one rounding to the
     * layout's dtype. Threads: one call per instance. Since: 0.1. */
    int32_t (*cache_write)(void *self, const struct bp_launch *l, const struct bp_mla_cache_write_args *a,
                           struct bp_error *err);
    /* cache_gather - the segments' cached rows, densely packed. Pre: blocks written. Writes: c, k_pe. Errors:
     * BP_E_DEVICE. Numeric: the stored numbers, exactly where the output dtype holds them. Threads: one call per
     * instance. Since: 0.1. */
    int32_t (*cache_gather)(void *self, const struct bp_launch *l, const struct bp_mla_cache_gather_args *a,
                            struct bp_error *err);
    /* expand - keys and values of all heads from latents. Pre: outputs do not overlap inputs. Writes: k, v. Errors:
     * BP_E_DEVICE. Numeric: f32 accumulation or better. Threads: one call per instance. Since: 0.1. */
    int32_t (*expand)(void *self, const struct bp_launch *l, const struct bp_mla_expand_args *a, struct bp_error *err);
    /* absorb - UK: y[h] = W_UK[h]^T x[h], a query in latent space; UV: y[h] = W_UV[h] x[h], an output out of it. Pre: y
     * does not overlap x. Writes: y. Errors: BP_E_DEVICE. Numeric: as expand. Threads: one call per instance.
     * Since: 0.1. */
    int32_t (*absorb)(void *self, const struct bp_launch *l, const struct bp_mla_absorb_args *a, struct bp_error *err);
    /* merge - joins two partial softmax results over disjoint keys. Pre: shapes agree. Writes: out, lse. Errors:
     * BP_E_DEVICE. Numeric: f32 or better; (empty, x), (x, empty) give x bit for bit, (empty, empty) gives 0 and -inf.
     * Threads: one call per instance. Since: 0.1. */
    int32_t (*merge)(void *self, const struct bp_launch *l, const struct bp_mla_merge_args *a, struct bp_error *err);
};
BP_NOPAD(struct bp_mla_common_ops, merge);

/* ---- bp.mla.prefill: the multi-head form over expanded keys ---- */

enum bp_mla_prefill_op { BP_MLA_PREFILL_OP_RUN = 0, BP_MLA_PREFILL_OP_RUN_CONTEXT = 1 };

struct bp_mla_prefill_args {
    struct bp_hdr h;
    const struct bp_mla_prefill_meta *meta;
    struct bp_tensor q;   /* (n_q, H, P + R), IN, rotated */
    struct bp_tensor k;   /* (n_k, H, P + R), IN */
    struct bp_tensor v;   /* (n_k, H, V), IN */
    struct bp_tensor out; /* (n_q, H, V), OUT */
    struct bp_tensor lse; /* (n_q, H) F32, OUT; optional for run */
    float scale;
    uint32_t reserved;
};
BP_NOPAD(struct bp_mla_prefill_args, reserved);

struct bp_mla_prefill_ops {
    struct bp_op_base base; /* problem: struct bp_mla_problem; tensors(): enum bp_mla_prefill_op */

    /* plan - work lists for one segment group, into l->plan. Pre: none. Writes: l->plan. Errors: BP_E_LIMIT. Numeric:
     * none. Threads: one call per instance. Since: 0.1. */
    int32_t (*plan)(void *self, const struct bp_launch *l, const struct bp_mla_prefill_meta *m, struct bp_error *err);
    /* run - causal: query i of a segment with n_q queries and n_k keys sees keys 0 .. n_k - n_q + i. Pre: plan() with
     * this meta; n_k >= n_q. Writes: out, lse if given. Errors: BP_E_DEVICE. Numeric: softmax in f32 or better, maximum
     * subtracted; a row depends on its own keys only. Threads: one call per instance. Since: 0.1. */
    int32_t (*run)(void *self, const struct bp_launch *l, const struct bp_mla_prefill_args *a, struct bp_error *err);
    /* run_context - no mask: each query sees all keys of its segment. Pre: as run; lse given. Writes: out, lse. Errors:
     * BP_E_DEVICE. Numeric: as run. Threads: one call per instance. Since: 0.1. */
    int32_t (*run_context)(void *self, const struct bp_launch *l, const struct bp_mla_prefill_args *a,
                           struct bp_error *err);
};
BP_NOPAD(struct bp_mla_prefill_ops, run_context);

/* ---- bp.mla.decode: absorbed queries against the latent pool ---- */

enum bp_mla_decode_op { BP_MLA_DECODE_OP_RUN = 0 };

struct bp_mla_decode_args {
    struct bp_hdr h;
    const struct bp_mla_decode_meta *meta;
    struct bp_tensor q;       /* (n_row_padded, H, C + R), IN: absorbed part first, then the rotated part */
    struct bp_tensor pool;    /* IN */
    struct bp_tensor out;     /* (n_row_padded, H, C), OUT: softmax-weighted latents */
    struct bp_tensor lse;     /* (n_row_padded, H) F32, OUT, optional */
    struct bp_tensor idx;     /* (n_row_padded, top_k) I32, IN, optional: token slots */
    struct bp_tensor idx_len; /* (n_row_padded) I32, IN, with idx; -1: the row attends all its row_kv_len keys */
    float scale;
    uint32_t reserved;
};
BP_NOPAD(struct bp_mla_decode_args, reserved);

struct bp_mla_decode_ops {
    struct bp_op_base base; /* problem: struct bp_mla_problem; tensors(): enum bp_mla_decode_op */

    /* plan - the split work list of a step, into l->plan, once per epoch for all layers. Pre: none. Writes: l->plan.
     * Errors: BP_E_LIMIT. Numeric: none. Threads: one call per instance. Since: 0.1. */
    int32_t (*plan)(void *self, const struct bp_launch *l, const struct bp_mla_decode_meta *m, struct bp_error *err);
    /* run - out = softmax(scale * q . [c | k_pe]) . c over the row's keys. Pre: plan() with this epoch. Writes: out,
     * lse if given. Errors: BP_E_DEVICE. Numeric: softmax in f32 or better, maximum subtracted. Threads: one call per
     * instance. Since: 0.1. */
    int32_t (*run)(void *self, const struct bp_launch *l, const struct bp_mla_decode_args *a, struct bp_error *err);
};
BP_NOPAD(struct bp_mla_decode_ops, run);

/* ---- bp.mla.index: the lightning index of DSA; owns no weights, its norms and projections are passed in ---- */

enum bp_mla_index_op { BP_MLA_INDEX_OP_KEY_WRITE = 0, BP_MLA_INDEX_OP_SELECT = 1 };

struct bp_mla_key_write_args {
    struct bp_hdr h;
    const struct bp_mla_meta *meta;
    struct bp_tensor k;              /* (n_tok, D), IN, raw projection */
    struct bp_tensor norm_w, norm_b; /* (D) F32, IN: layer norm */
    struct bp_tensor pool;           /* (n_blocks, block_bytes) U8, INOUT, index layout */
    float eps;
    uint32_t rope_style;             /* enum bp_rope_style; the first R dims of D are rotated */
};
BP_NOPAD(struct bp_mla_key_write_args, rope_style);

struct bp_mla_select_args {
    struct bp_hdr h;
    const struct bp_mla_decode_meta *meta;
    struct bp_tensor q;       /* (n_row_padded, n_index_head, D), IN, rotated */
    struct bp_tensor w;       /* (n_row_padded, n_index_head) F32, IN: head weights, any sign */
    struct bp_tensor pool;    /* IN */
    struct bp_tensor idx;     /* (n_row_padded, top_k) I32, OUT: token slots, ascending by position, then -1 */
    struct bp_tensor idx_len; /* (n_row_padded) I32, OUT: top_k; -1 for rows with at most top_k keys, idx then unset */
    struct bp_tensor scores;  /* (n_row_padded, max_kv) F32, OUT, optional (taps): by position */
    float scale;              /* 1 / sqrt(n_index_head * D) */
    uint32_t top_k;
};
BP_NOPAD(struct bp_mla_select_args, top_k);

struct bp_mla_index_ops {
    struct bp_op_base base; /* problem: struct bp_mla_problem; tensors(): enum bp_mla_index_op */

    /* layouts - as bp.mla.common, for the index pool. Pre: none. Writes: *out. Errors: BP_DECLINED past the end.
     * Numeric: none. Threads: any. Since: 0.1. */
    int32_t (*layouts)(void *self, const struct bp_mla_problem *p, uint32_t i, struct bp_kv_layout *out);
    /* key_write - rope(layernorm(k)) into the index pool. Pre: slots inside the pool. Writes: the pool at slot_map's
     * slots. Errors: BP_E_DEVICE. Numeric: f32, then one rounding. Threads: one call per instance. Since: 0.1. */
    int32_t (*key_write)(void *self, const struct bp_launch *l, const struct bp_mla_key_write_args *a,
                         struct bp_error *err);
    /* select - score(s) = scale * sum_j w_j relu(q_j . k_s) for the row's keys; keeps exactly the top_k largest, the
     * lowest position on ties. Pre: keys written. Writes: idx, idx_len, scores if given. Errors: BP_E_DEVICE. Numeric:
     * f32 accumulation or better; the choice is exact on the scores it computed. Threads: one call per instance.
     * Since: 0.1. */
    int32_t (*select)(void *self, const struct bp_launch *l, const struct bp_mla_select_args *a, struct bp_error *err);
};
BP_NOPAD(struct bp_mla_index_ops, select);

BP_EXTERN_C_END
#endif
