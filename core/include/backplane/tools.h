/* tools.h - what inspect, verify, tokenize, quantize, plugins, explain, config, plan, ab and doctor need beyond backplane.h.
 * UNSTABLE: may change in any release; public so that tools stay outside of core.
 * SPDX-License-Identifier: MIT */
#ifndef BP_TOOLS_H
#define BP_TOOLS_H

#include "backplane/backplane.h"
#include "backplane/plugin.h"

BP_EXTERN_C_BEGIN

/* ---- files: header of any GGUF, shards included ---- */

struct bp_file;
int32_t bp_file_open(const char *path, struct bp_file **out, struct bp_error *err);
void bp_file_close(struct bp_file *f);

struct bp_file_info {
    struct bp_hdr h;
    uint32_t version, n_shards;
    uint64_t n_kv, n_tensors, n_bytes;
    const char *arch; /* "" when the key is missing */
};
BP_NOPAD(struct bp_file_info, arch);
void bp_file_info(const struct bp_file *f, struct bp_file_info *out);

struct bp_file_shard {
    struct bp_hdr h;
    const char *path;
    uint64_t n_bytes, n_tensors;
};
BP_NOPAD(struct bp_file_shard, n_tensors);
int32_t bp_file_shard(const struct bp_file *f, uint32_t i, struct bp_file_shard *out); /* BP_DECLINED past the end */

struct bp_file_tensor {
    struct bp_hdr h;
    const char *name, *type_name;
    uint32_t type, n_dim;
    int64_t ne[4];
    uint64_t n_bytes, offset;
    const void *data;
    uint32_t shard, reserved;
};
BP_NOPAD(struct bp_file_tensor, reserved);
int32_t bp_file_tensor(const struct bp_file *f, uint64_t i, struct bp_file_tensor *out); /* BP_DECLINED past the end */
int32_t bp_file_find(const struct bp_file *f, const char *name, struct bp_file_tensor *out); /* BP_DECLINED if absent */
/* The name this tensor has in Hugging Face checkpoints; BP_DECLINED when no table knows it. */
int32_t bp_file_hf_name(const char *gguf_name, char *out, size_t cap);

/* Metadata record i: key (owned by the file, NUL-terminated), kind name ("u32", "arr[string]"), value as text of at most
 * max_elems array elements (bp_free it). BP_DECLINED past the end. */
int32_t bp_file_kv(const struct bp_file *f, uint64_t i, uint32_t max_elems, const char **out_key,
                   const char **out_kind, char **out_value);
/* Typed values; BP_DECLINED when absent, BP_E_FORMAT when of another kind. Text is freed with bp_free. */
int32_t bp_file_u64(const struct bp_file *f, const char *key, uint64_t *out, struct bp_error *err);
int32_t bp_file_str(const struct bp_file *f, const char *key, char **out, size_t *out_n, struct bp_error *err);

/* ---- is the file whole? ----
 * These read every byte, by read calls and in engine.threads threads (cfg NULL: one per core), with 1 MiB of memory a
 * thread. Only cb->progress and its ctx are used; it is called from the calling thread, and cb may be NULL.
 * Errors: BP_E_IO the file cannot be read, or was replaced, lengthened or shortened since it was opened; BP_E_ABORTED
 * progress asked to stop; BP_E_NOMEM. */

/* Hashes (XXH3-128) of every shard's header and every tensor. Immutable. */
struct bp_manifest;
int32_t bp_file_hash(const struct bp_file *f, const struct bp_config *cfg, const struct bp_callbacks *cb,
                     struct bp_manifest **out, struct bp_error *err);
/* Reads a manifest that bp_manifest_text made. Errors: BP_E_IO; BP_E_FORMAT naming the line; BP_E_UNSUPPORTED another
 * version; BP_E_LIMIT; BP_E_NOMEM. */
int32_t bp_manifest_load(const char *path, struct bp_manifest **out, struct bp_error *err);
void bp_manifest_close(struct bp_manifest *m); /* NULL accepted */
/* The text form, which is stable: docs/guide.md. NUL-terminated beyond *out_n, freed with bp_free. */
int32_t bp_manifest_text(const struct bp_manifest *m, char **out, size_t *out_n, struct bp_error *err);

struct bp_manifest_info {
    struct bp_hdr h;
    const char *file; /* base name of the first shard */
    uint64_t n_bytes, n_shards, n_tensors;
};
BP_NOPAD(struct bp_manifest_info, n_tensors);
void bp_manifest_info(const struct bp_manifest *m, struct bp_manifest_info *out);

struct bp_manifest_line {
    struct bp_hdr h;
    const char *hash;        /* 32 hexadecimal digits */
    const char *type, *shard, *name; /* of a shard's header: "header", its base name, "-" */
    uint64_t n_bytes;
};
BP_NOPAD(struct bp_manifest_line, n_bytes);
/* Line i: the headers of all shards, then the tensors. BP_DECLINED past the end. */
int32_t bp_manifest_line(const struct bp_manifest *m, uint64_t i, struct bp_manifest_line *out);

enum { BP_DIFFERENCE_HEADER = 0, BP_DIFFERENCE_DAMAGED = 1, BP_DIFFERENCE_MISSING = 2, BP_DIFFERENCE_ADDITIONAL = 3 };
struct bp_difference {
    struct bp_hdr h;
    uint32_t kind, reserved;
    const char *name, *shard, *text; /* name: of the tensor, "-" for a header */
};
BP_NOPAD(struct bp_difference, text);
typedef void (*bp_difference_fn)(void *ctx, const struct bp_difference *d);
/* Calls fn for each difference: headers, tensors of `want` in its order, tensors only `have` has. Returns how many. */
uint64_t bp_manifest_compare(const struct bp_manifest *want, const struct bp_manifest *have, bp_difference_fn fn,
                             void *ctx);

/* A run of neighbouring blocks of a tensor with one thing wrong. For float types a block is one value. */
struct bp_bad_blocks {
    struct bp_hdr h;
    const char *tensor, *type_name, *shard; /* shard: path */
    const char *reason;                     /* "its scale is NaN" */
    uint64_t block, n_blocks;               /* the first one, and how many */
};
BP_NOPAD(struct bp_bad_blocks, n_blocks);
struct bp_validation {
    struct bp_hdr h;
    uint64_t n_tensors, n_bad_tensors, n_blocks, n_bad_blocks, n_bytes;
};
BP_NOPAD(struct bp_validation, n_bytes);
typedef void (*bp_bad_blocks_fn)(void *ctx, const struct bp_bad_blocks *b);
/* Looks at every block of every tensor for NaN, infinities and scales that decode to nothing sensible. fn is called
 * when all is read, in order of tensors and blocks, with at most max_runs runs of each tensor; *out counts all. */
int32_t bp_file_validate(const struct bp_file *f, const struct bp_config *cfg, const struct bp_callbacks *cb,
                         uint32_t max_runs, bp_bad_blocks_fn fn, void *ctx, struct bp_validation *out,
                         struct bp_error *err);

/* ---- quantizing: a file written anew with its weights in other types ---- */

/* "F32, F16, ..., Q4_K_M, Q5_K_M": the types that can be asked for. */
const char *bp_quantize_types(void);

struct bp_quantize;
/* Settles the type of every tensor; reads headers only. f outlives the plan. Errors: BP_E_ARG an unknown type, naming
 * those that are known; BP_E_UNSUPPORTED a weight whose own type cannot be read; BP_E_LIMIT; BP_E_NOMEM. */
int32_t bp_quantize_plan(const struct bp_file *f, const char *type, struct bp_quantize **out, struct bp_error *err);
void bp_quantize_destroy(struct bp_quantize *q); /* NULL accepted */

struct bp_quantize_info {
    struct bp_hdr h;
    const char *type; /* as it is spelt in the list */
    uint64_t n_tensors;
    uint64_t bytes_before; /* of all files of the source */
    uint64_t bytes_after;  /* of the new file, exactly */
    uint64_t n_requantized; /* weights that were quantized already: what they lost stays lost */
};
BP_NOPAD(struct bp_quantize_info, n_requantized);
void bp_quantize_info(const struct bp_quantize *q, struct bp_quantize_info *out);

enum {
    BP_QUANTIZE_ASKED = 0,    /* the type that was asked for */
    BP_QUANTIZE_RAISED = 1,   /* the mix gives this tensor a better one */
    BP_QUANTIZE_FALLBACK = 2, /* rows are no whole number of blocks of the wanted type */
    BP_QUANTIZE_KEPT = 3      /* never quantized: norms, biases, the router, integers */
};
struct bp_quantize_tensor {
    struct bp_hdr h;
    const char *name, *from, *to; /* types */
    uint64_t bytes_before, bytes_after;
    uint32_t why, reserved;
};
BP_NOPAD(struct bp_quantize_tensor, reserved);
/* BP_DECLINED past the end. */
int32_t bp_quantize_tensor(const struct bp_quantize *q, uint64_t i, struct bp_quantize_tensor *out);

enum { BP_QUANTIZE_NO_REPLACE = 1 /* refuse a path where a file is */ };
/* Writes the new file. It grows under a temporary name beside `path`, which stays as it was until the new file is whole
 * and on disk; on failure nothing is left. Bytes do not depend on the number of threads (engine.threads of cfg; NULL =
 * auto). cb may be NULL; its progress stops the work by returning non-zero. Errors: BP_E_ARG `path` is one of the source's
 * files, a symbolic link, or taken; BP_E_NUMERIC a NaN, an infinity, or a value beyond the range of the new type, with
 * tensor, row and column; BP_E_IO; BP_E_NOMEM; BP_E_ABORTED. */
int32_t bp_quantize_write(const struct bp_quantize *q, const char *path, uint32_t flags, const struct bp_config *cfg,
                          const struct bp_callbacks *cb, struct bp_error *err);

/* ---- models ---- */

/* As bp_model_open, from headers alone: no tensor is read, so that a model of any size opens at once, and none is checked
 * for NaN. Numbers, report and text functions work; bp_session_open refuses such a model with BP_E_ARG. */
int32_t bp_model_open_headers(const char *path, const struct bp_config *cfg, const struct bp_callbacks *cb,
                              struct bp_model **out, struct bp_error *err);

enum { BP_REPORT_UNUSED = 0, BP_REPORT_MISSING = 1, BP_REPORT_ASSUMED = 2, BP_REPORT_NOTE = 3 };
struct bp_report {
    struct bp_hdr h;
    uint32_t kind, reserved;
    const char *name, *text;
};
BP_NOPAD(struct bp_report, text);
/* i-th line of the load report; BP_DECLINED past the end. */
int32_t bp_model_report(const struct bp_model *m, uint32_t i, struct bp_report *out);
/* The same for a file that need not open as a model, because tensors are missing for example: what its architecture
 * lacks, does not know or does not use. fn is called once per line. Errors: as bp_model_open where the architecture or
 * the keys are not understood. */
typedef void (*bp_report_fn)(void *ctx, const struct bp_report *line);
int32_t bp_file_survey(const struct bp_file *f, const struct bp_config *cfg, bp_report_fn fn, void *ctx,
                       struct bp_error *err);

/* Vocabulary entry: the type number and bytes of one token (control tokens included). BP_E_ARG out of range. */
int32_t bp_token_info(const struct bp_model *m, int32_t id, uint32_t *out_type, char **out_bytes, size_t *out_n);
/* "glm4"; the chat family or NULL. */
const char *bp_model_pre(const struct bp_model *m);
const char *bp_model_chat_family(const struct bp_model *m);

/* ---- plugins: what their files say; none of their code runs ---- */

enum bp_plugin_status {
    BP_PLUGIN_BUILT_IN = 0, /* in the program itself */
    BP_PLUGIN_READY = 1,    /* nothing speaks against it until it is opened */
    BP_PLUGIN_REFUSED = 2   /* cannot be used: see reason, why, mend */
};
enum {
    BP_PLUGIN_HAS_NOTE = 1,   /* name, version, kind, ABI and interfaces come from its note */
    BP_PLUGIN_HAS_ENTRY = 2,  /* exports bp_plugin_query_v1 */
    BP_PLUGIN_STATIC_TLS = 4, /* wants static TLS, which a running process may not have left */
    BP_PLUGIN_TEXTREL = 8,    /* writes to its own code while it is loaded */
    BP_PLUGIN_UNIQUE = 16     /* exports a symbol that is one for the whole process (STB_GNU_UNIQUE) */
};
/* Texts are never NULL and live as long as the list. */
struct bp_plugin_info {
    struct bp_hdr h;
    const char *name;    /* of the provider: NAME of [plugin.NAME] that names the file, else the plugin's own */
    const char *version;
    const char *file;    /* absolute path; "" when built in */
    const char *ifaces;  /* "bp.quant bp.mla.decode" */
    const char *reason;  /* "ABI", "LOAD", ... when refused, else "" */
    const char *why;     /* one sentence when refused */
    const char *mend;    /* the command that mends it, "" when none does */
    const char *needed;  /* libraries it links, one blank between; what does not fit 511 bytes is left out */
    const char *exports; /* symbols it exports besides the entry; likewise */
    uint32_t status, flags;
    uint32_t kind, abi_major, abi_minor; /* enum bp_plugin_kind of plugin.h */
    uint32_t n_needed, n_exports, reserved;
    uint64_t tls_bytes;
};
BP_NOPAD(struct bp_plugin_info, tls_bytes);

struct bp_plugin_list;
/* All that a session with this configuration would find, by name, then what is built in. Files in a folder that cannot
 * be trusted are listed as refused. Errors: BP_E_CONFIG a folder of engine.plugin_path is relative or missing; BP_E_LIMIT;
 * BP_E_NOMEM. */
int32_t bp_plugin_list_open(const struct bp_config *cfg, struct bp_plugin_list **out, struct bp_error *err);
/* One file, wherever it lies and whoever may write to it. Errors: BP_E_IO, BP_E_FORMAT an empty file, BP_E_NOMEM. */
int32_t bp_plugin_list_file(const char *path, struct bp_plugin_list **out, struct bp_error *err);
void bp_plugin_list_close(struct bp_plugin_list *l); /* accepts NULL */
/* BP_DECLINED past the end. */
int32_t bp_plugin_list_at(const struct bp_plugin_list *l, uint32_t i, struct bp_plugin_info *out);

/* ---- decisions: who serves what, who does not, and why ---- */

/* What was chosen for each slot and run of layers, with every candidate's answer. Immutable; texts are never NULL and
 * live as long as the object. */
struct bp_decisions;

/* Chooses as bp_session_open does and then stops: no weight is prepared, no cache allocated, and a model that was opened
 * for its headers only is enough. On failure *out holds what was decided up to there, the slot that nobody serves
 * included, unless choosing never began (*out is then NULL). Errors: as bp_session_open. */
int32_t bp_explain(struct bp_model *m, const struct bp_config *cfg, const struct bp_callbacks *cb,
                   struct bp_decisions **out, struct bp_error *err);
void bp_decisions_close(struct bp_decisions *d); /* NULL accepted; not for those of a session */
/* Those of an open session; valid until it is closed. */
const struct bp_decisions *bp_session_decisions(const struct bp_session *s);

struct bp_decisions_info {
    struct bp_hdr h;
    const char *device;    /* "host, 8 cores"; "" when no device was chosen */
    const char *device_asked, *device_why; /* engine.device; for auto a sentence, else "" */
    const char *act_asked; /* engine.act as configured */
    const char *act_dtype; /* what it became, "" when binding failed */
    const char *act_why;   /* a sentence when auto had a reason, else "" */
    const char *kv_asked;  /* kv.dtype as configured: "auto" */
    const char *kv_dtype;  /* what it became, "" when there is none */
    const char *kv_why;    /* a sentence when a dtype was passed over, else "" */
    uint32_t device_kind;  /* enum bp_device_kind of plugin.h */
    int32_t device_ordinal;
    uint32_t n_left_out;   /* answers that were not kept, because there were too many different ones */
    uint32_t reserved;
    uint64_t scratch_bytes; /* shared by all ops: the largest of them, not their sum */
};
BP_NOPAD(struct bp_decisions_info, scratch_bytes);
void bp_decisions_info(const struct bp_decisions *d, struct bp_decisions_info *out);

/* One slot in one run of layers. Problems that got the same answers stand in one row; `what` names them. */
struct bp_decision {
    struct bp_hdr h;
    const char *slot;
    const char *what;      /* quant, moe: types of the weights; dense: ops; else "" */
    const char *wrappers;  /* around the chosen one, outermost first: "trace, check" */
    int32_t layer_begin, layer_end; /* [begin, end); -1, -1 outside of layers */
    int32_t chosen;        /* number of the candidate, -1: nobody serves */
    uint32_t n_candidates;
    uint32_t capture, determinism; /* of the chosen one, the least over the row: enum bp_capture, bp_determinism */
    uint32_t on_host;      /* 1: computes on the host although the rank's device is another, see architecture */
    uint32_t weights_known; /* 1: weight_bytes counts; weights were prepared */
    uint64_t persistent_bytes, plan_bytes, scratch_bytes, pinned_bytes; /* workspace of one op for the largest problem */
    uint64_t file_bytes;   /* of the weights that the row owns, as the file holds them */
    uint64_t weight_bytes; /* what the provider's handles to them take */
};
BP_NOPAD(struct bp_decision, weight_bytes);
/* BP_DECLINED past the end; likewise below. */
int32_t bp_decision(const struct bp_decisions *d, uint32_t i, struct bp_decision *out);

enum { BP_V_NOT_ASKED = 3 }; /* besides enum bp_level: an earlier one in the list served */
struct bp_decision_candidate {
    struct bp_hdr h;
    const char *name, *version, *file; /* file: "" when built in; version: "" when not opened */
    const char *mend;                  /* the command that mends the refusal, or "" */
    uint32_t level, n_reasons;         /* enum bp_level or BP_V_NOT_ASKED */
    double cost_us;                    /* its own estimate, negative = unknown */
};
BP_NOPAD(struct bp_decision_candidate, cost_us);
/* Candidate j of decision i, in the order of the list. */
int32_t bp_decision_candidate(const struct bp_decisions *d, uint32_t i, uint32_t j, struct bp_decision_candidate *out);

struct bp_decision_reason {
    struct bp_hdr h;
    const char *name, *field, *text; /* "DTYPE", "kv_dtype", ...; field "": the numbers mean nothing */
    uint32_t code, critical;         /* enum bp_reason_code; 0: only slows it down */
    int64_t got, want_lo, want_hi;
    const char *got_name, *want_lo_name, *want_hi_name; /* of dtypes and types of weights; NULL: a plain number */
};
BP_NOPAD(struct bp_decision_reason, want_hi_name);
int32_t bp_decision_reason(const struct bp_decisions *d, uint32_t i, uint32_t j, uint32_t k,
                           struct bp_decision_reason *out);

/* The cache of one run of layers. */
struct bp_decision_kv {
    struct bp_hdr h;
    const char *layout, *index_layout; /* "mla.bf16.576"; index: "" without */
    int32_t layer_begin, layer_end;
    uint64_t token_bytes, index_token_bytes;
};
BP_NOPAD(struct bp_decision_kv, index_token_bytes);
int32_t bp_decision_kv(const struct bp_decisions *d, uint32_t i, struct bp_decision_kv *out);

/* A plugin that serves something here, or wraps it. */
struct bp_decision_plugin {
    struct bp_hdr h;
    const char *name, *version, *file; /* file: "" when built in */
};
BP_NOPAD(struct bp_decision_plugin, file);
int32_t bp_decision_plugin(const struct bp_decisions *d, uint32_t i, struct bp_decision_plugin *out);

/* A plugin that is linked into the program: sessions opened with this configuration know it after the reference backend,
 * by the name in its descriptor. The function stays valid as long as they do. Errors: BP_E_ARG, BP_E_LIMIT. */
int32_t bp_config_add_plugin(struct bp_config *c, bp_plugin_query_fn query, struct bp_error *err);

/* ---- configuration ---- */

struct bp_config_entry {
    struct bp_hdr h;
    const char *section, *key, *value, *origin, *dflt, *type, *range, *doc; /* range: "1..1024", "auto|f32", or "" */
};
BP_NOPAD(struct bp_config_entry, doc);
/* i-th key; BP_DECLINED past the end. Strings are valid until the next call on this config. */
int32_t bp_config_entry(struct bp_config *c, uint32_t i, struct bp_config_entry *out);

/* Memory the session holds, by kind, in bytes. */
struct bp_session_memory {
    struct bp_hdr h;
    uint64_t cache, weights, buffers, scratch;
};
BP_NOPAD(struct bp_session_memory, scratch);
void bp_session_memory(const struct bp_session *s, struct bp_session_memory *out);

/* ---- writing a GGUF: golden files ---- */

struct bp_gguf_writer;
int32_t bp_gguf_writer_create(struct bp_gguf_writer **out, struct bp_error *err);
void bp_gguf_writer_destroy(struct bp_gguf_writer *w); /* NULL accepted */
/* What fails here is told by save. Keys and names are copied; data stays valid until save. ne in file order; type: F32
 * or I32 of enum bp_gguf_type. */
void bp_gguf_writer_u32(struct bp_gguf_writer *w, const char *key, uint32_t v);
void bp_gguf_writer_str(struct bp_gguf_writer *w, const char *key, const char *v, size_t n);
void bp_gguf_writer_tensor(struct bp_gguf_writer *w, const char *name, uint32_t type, uint32_t n_dim, const int64_t *ne,
                           const void *data);
/* A temporary name and a rename: `path` is whole or untouched. Errors: BP_E_ARG a name twice, another type; BP_E_IO;
 * BP_E_NOMEM. */
int32_t bp_gguf_writer_save(struct bp_gguf_writer *w, const char *path, struct bp_error *err);

/* ---- A/B: two configurations on the same tokens ---- */

enum bp_ab_mode {
    BP_AB_SHADOW = 0, /* A runs; each op of B gets A's very inputs */
    BP_AB_FREE = 1    /* two whole runs, compared at every tap */
};
/* The same-precision baseline: ref with this rounding. AUTO: the coarsest that either side uses. */
enum bp_ab_baseline { BP_AB_BASE_AUTO = 0, BP_AB_BASE_NONE = 1, BP_AB_BASE_BF16 = 2, BP_AB_BASE_F16 = 3 };

/* Numbers made elsewhere, in place of side B (free mode). */
struct bp_ab_golden {
    struct bp_hdr h;
    const float *logits;        /* (n_rows, n_vocab): of the last n_rows ids */
    const float *const *hidden; /* (n_hidden) each (n_ids, n_embd): embd, blk.0.out, ..., output_norm; n_hidden 0: none */
    uint32_t n_rows, n_hidden;
};
BP_NOPAD(struct bp_ab_golden, n_hidden);

/* One side. Its configuration is read while bp_ab_run runs. */
struct bp_ab_side {
    struct bp_hdr h;
    struct bp_model *model;
    const struct bp_config *config;
    uint32_t chunk; /* tokens of the prompt per step, 0 = batch_tokens; both alike in shadow mode */
    uint32_t batch; /* sequences in each step, 0 = 1; the others hold tokens of their own. Likewise */
};
BP_NOPAD(struct bp_ab_side, batch);

struct bp_ab_params {
    struct bp_hdr h;
    struct bp_ab_side a, b;            /* b.model NULL: golden */
    const struct bp_ab_golden *golden; /* NULL: b */
    const int32_t *ids;
    uint32_t n_ids, n_new;             /* n_new: tokens that A picks after them, greedily; both sides then get A's */
    uint32_t mode, baseline;           /* enum bp_ab_mode, enum bp_ab_baseline */
    double max_kl, max_abs;            /* of the logits; NaN: no limit of its own */
    uint64_t seed;                     /* of the order of timing and of the bootstrap */
    const char *dump;                  /* patterns of A's taps (free mode: of B's too), NULL = none; see bp_ab_tap */
    const struct bp_callbacks *cb;     /* may be NULL */
};
BP_NOPAD(struct bp_ab_params, cb);

enum bp_ab_status { BP_AB_OK = 0, BP_AB_FLIP = 1, BP_AB_FAIL = 2 }; /* FLIP: only where the gap is below the precision */

struct bp_ab_flip {
    uint32_t pos;     /* of the token in its sequence */
    int32_t a, b;     /* what each side chose */
    uint32_t wide;    /* 1: the gap is wider than the precision in use */
    double gap;       /* between the exact scores of both; NaN: unknown */
};
struct bp_ab_time {   /* microseconds of one call; all 0 without samples */
    double median, lo, hi; /* lo, hi: 95 % bootstrap interval of the median */
    uint64_t n;
};

/* One op at one place: shadow: all calls of one slot for one tensor of one layer; free: one tap. In order of execution. */
struct bp_ab_op {
    struct bp_hdr h;
    const char *slot, *op, *tap;          /* "quant", "matmul", "blk.3.attn.q_lora" */
    const char *provider_a, *provider_b;  /* "" in free mode where several share a tap */
    const char *text;                     /* one sentence when it is no OK, else "" */
    int32_t layer;                        /* -1 outside of layers */
    uint32_t status;                      /* enum bp_ab_status */
    uint32_t made_here;                   /* 1: not inherited from an earlier op; always in shadow mode */
    uint32_t worst_pos;                   /* token of the largest difference */
    uint64_t calls, n_rows;               /* rows compared */
    uint64_t n_skipped;                   /* free mode: rows behind a flip, which say nothing */
    double max_abs, max_rel, norm_rel;    /* B against A; rel: of the row's maximum, and as norms. NaN: not finite alike */
    double baseline_max_abs, baseline_norm_rel; /* ref rounded against ref exact; 0 where it was not needed */
    uint64_t n_flips, n_wide;
    const struct bp_ab_flip *flips;       /* the first of them */
    uint64_t n_flips_kept;
    struct bp_ab_time time_a, time_b;
    double bytes, flops;                  /* of one median call: weights and tensors touched; 0 = unknown */
};
BP_NOPAD(struct bp_ab_op, flops);

/* Logits after the token at `pos`. */
struct bp_ab_position {
    struct bp_hdr h;
    uint32_t pos, overlap;        /* overlap: of the ten most probable tokens */
    int32_t a_id, b_id;           /* most probable */
    double kl, kl_ba;             /* KL(A || B), KL(B || A) in nats */
    double max_abs, mean_abs;
    double gap;                   /* between A's logits of both ids; 0 when they agree */
};
BP_NOPAD(struct bp_ab_position, gap);

struct bp_ab_summary {
    struct bp_hdr h;
    uint32_t mode, pass;
    const char *text;             /* the verdict in one sentence */
    const char *precision;        /* of the baseline: "f32", "bf16", "f16" */
    int32_t first;                /* op of the first difference that fails, else of the first difference, -1: none */
    uint32_t made_here;           /* of it */
    const char *first_text;       /* one sentence, "" without */
    int32_t first_token;          /* position where the most probable tokens first differ, -1: nowhere */
    uint32_t n_pos;
    uint32_t n_ops, n_fail, n_flip; /* of ops */
    double max_abs, mean_abs, kl, kl_ba, topk_overlap; /* logits: maximum; means over positions; overlap 0..1 */
    double max_kl;
    uint32_t top_k, reserved;     /* what the overlap counts */
    double seconds_a, seconds_b;  /* spent in calls of each side (free: in steps) */
    double seconds;               /* everything after loading */
    uint64_t n_steps_a, n_steps_b;
    struct bp_session_memory memory_a, memory_b;
    uint64_t compare_bytes;       /* kept for the comparison itself, sessions of ref included */
};
BP_NOPAD(struct bp_ab_summary, compare_bytes);

/* Immutable. Texts and arrays live as long as the object. */
struct bp_ab;
/* Opens both sides, runs, compares, closes both sides. That they differ is no error: see the summary. Errors: BP_E_ARG
 * sides that this mode cannot compare; as bp_session_open and bp_session_step, naming the side. */
int32_t bp_ab_run(const struct bp_ab_params *p, struct bp_ab **out, struct bp_error *err);
void bp_ab_close(struct bp_ab *ab); /* NULL accepted */
void bp_ab_summary(const struct bp_ab *ab, struct bp_ab_summary *out);
int32_t bp_ab_op(const struct bp_ab *ab, uint32_t i, struct bp_ab_op *out); /* BP_DECLINED past the end; likewise below */
int32_t bp_ab_position(const struct bp_ab *ab, uint32_t i, struct bp_ab_position *out);
/* All ids, those that A picked included. */
const int32_t *bp_ab_ids(const struct bp_ab *ab, uint32_t *out_n);
/* Logits of A (side 0) or B (1) after position i. NULL out of range. */
const float *bp_ab_logits(const struct bp_ab *ab, uint32_t side, uint32_t i);
/* As bp_session_choice, of that side. */
int32_t bp_ab_choice(const struct bp_ab *ab, uint32_t side, uint32_t i, struct bp_choice *out);
/* "bf16", "mla.bf16.576" of a side; "" for a golden file. */
const char *bp_ab_kv_dtype(const struct bp_ab *ab, uint32_t side);
const char *bp_ab_kv_layout(const struct bp_ab *ab, uint32_t side);
const char *bp_ab_act_dtype(const struct bp_ab *ab, uint32_t side); /* of activations */

/* A kept tap of one side, its rows in order of positions. */
struct bp_ab_tap {
    struct bp_hdr h;
    const char *name;
    uint32_t side, integer;       /* integer: data are int32 */
    uint64_t n_rows, width;
    const void *data;             /* (n_rows, width) float or int32_t */
    const uint32_t *pos;          /* (n_rows) */
};
BP_NOPAD(struct bp_ab_tap, pos);
int32_t bp_ab_tap(const struct bp_ab *ab, uint32_t i, struct bp_ab_tap *out);

/* ---- what `bench` needs: ops without a model, models without a file ---- */

/* Loads plugins and opens engine.device as a session does (auto: CUDA where it answers). cfg outlives the object. */
struct bp_ops;
int32_t bp_ops_open(const struct bp_config *cfg, const struct bp_callbacks *cb, struct bp_ops **out, struct bp_error *err);
void bp_ops_close(struct bp_ops *o); /* NULL accepted */
/* *out_op (may be NULL): the op of bp.device. Both live as long as the object. */
const struct bp_device *bp_ops_device(const struct bp_ops *o, struct bp_op_ref *out_op);

struct bp_op_choice {
    struct bp_hdr h;
    struct bp_op_ref op;           /* lives as long as the object */
    const char *provider;
    uint32_t on_host;              /* 1: computes on the host although the device is another */
    uint32_t capture, determinism; /* enum bp_capture, enum bp_determinism */
    uint32_t degraded;
};
BP_NOPAD(struct bp_op_choice, degraded);
/* The provider that [slots] gives a problem of `slot` ("quant", "mla.decode"). Errors: BP_E_CONFIG when nobody serves,
 * with all reasons. */
int32_t bp_ops_choose(struct bp_ops *o, const char *slot, const void *problem, struct bp_op_choice *out,
                      struct bp_error *err);

/* Name and block of a tensor type; BP_E_UNSUPPORTED for numbers without meaning. */
int32_t bp_block_shape(uint32_t type, const char **out_name, uint32_t *out_elems, uint32_t *out_bytes);
/* n_elems numbers (whole blocks) as blocks of the type. Errors: BP_E_UNSUPPORTED for types that are only read. */
int32_t bp_block_encode(uint32_t type, const float *src, uint64_t n_elems, void *dst, struct bp_error *err);

/* As bp_model_open, of a file image in memory, which outlives the model and is read only. label: its name in messages. */
int32_t bp_model_open_image(const void *image, uint64_t n_bytes, const char *label, const struct bp_config *cfg,
                            const struct bp_callbacks *cb, struct bp_model **out, struct bp_error *err);

/* ---- the reference backend ---- */

/* Entry function of the reference backend, which is built in and defines right: whoever calls it is a host like the
 * engine, with a host table of its own. Never NULL. */
bp_plugin_query_fn bp_reference_query(void);

BP_EXTERN_C_END
#endif
