/* backplane.h - for applications: configure, open a model, run a session, read logits, generate.
 * Not here: what only tools need (tools.h), writing plugins (plugin.h, slot_*.h).
 * Threads: a config, a model and a session each belong to one thread at a time; one model serves many sessions.
 * Errors: every function that can fail returns enum bp_status and fills *err (NULL allowed) with one sentence.
 * Ownership: nobody frees what the other side allocated; what bp_* hands out as an array is freed with bp_free.
 * SPDX-License-Identifier: MIT */
#ifndef BP_BACKPLANE_H
#define BP_BACKPLANE_H

#include "backplane/types.h"

BP_EXTERN_C_BEGIN

/* "0.1.0". */
const char *bp_version(void);
const char *bp_status_name(int32_t status);
void bp_free(void *p);

/* ---- configuration: the INI and its overrides ---- */

struct bp_config;
int32_t bp_config_create(struct bp_config **out, struct bp_error *err);
void bp_config_destroy(struct bp_config *c);
/* Reads an INI file over the present values. */
int32_t bp_config_load(struct bp_config *c, const char *path, struct bp_error *err);
/* "section.key=value". */
int32_t bp_config_set(struct bp_config *c, const char *assignment, struct bp_error *err);
/* Present text of a key of the table ("kv", "dtype"), NULL for an unknown one. Valid until the next change. */
const char *bp_config_get(const struct bp_config *c, const char *section, const char *key);

/* Lines of the log, without newline; level 0 error .. 3 debug. Config key engine.log sets the level. */
typedef void (*bp_log_fn)(void *ctx, int32_t level, const char *room, const char *line);
/* Progress of loading, 0..1; return non-zero to stop (the call then fails with BP_E_ABORTED). */
typedef int32_t (*bp_progress_fn)(void *ctx, double fraction, const char *what);

struct bp_callbacks {
    struct bp_hdr h;
    void *ctx;
    bp_log_fn log;           /* may be NULL */
    bp_progress_fn progress; /* may be NULL */
};
BP_NOPAD(struct bp_callbacks, progress);

/* ---- model ---- */

struct bp_model;
/* Opens a GGUF (the first shard of several). Headers and small tensors only; weights stay mapped. cb is copied; its log
 * is also told what the model's text functions notice, in the threads that call them. */
int32_t bp_model_open(const char *path, const struct bp_config *cfg, const struct bp_callbacks *cb,
                      struct bp_model **out, struct bp_error *err);
/* All sessions of the model are closed first. NULL accepted. */
void bp_model_close(struct bp_model *m);

const char *bp_model_arch(const struct bp_model *m);
uint32_t bp_model_n_vocab(const struct bp_model *m);
uint32_t bp_model_n_embd(const struct bp_model *m);
uint32_t bp_model_n_layer(const struct bp_model *m);
uint32_t bp_model_n_ctx(const struct bp_model *m); /* trained context */
uint64_t bp_model_bytes(const struct bp_model *m); /* of all shards */

/* ---- text ---- */

enum {
    BP_TOKENIZE_SPECIAL = 1, /* control tokens spelled out in the text are recognised: trusted text only */
    BP_TOKENIZE_BOS = 2      /* prepend BOS when the file asks for it */
};
/* Any bytes are legal text. *out_ids is freed with bp_free. */
int32_t bp_tokenize(const struct bp_model *m, const char *text, size_t n, uint32_t flags, int32_t **out_ids,
                    size_t *out_n, struct bp_error *err);
/* Bytes of ids joined together; control tokens render as nothing unless `special`. *out is NUL-terminated beyond
 * *out_n, freed with bp_free. */
int32_t bp_detokenize(const struct bp_model *m, const int32_t *ids, size_t n, int32_t special, char **out,
                      size_t *out_n, struct bp_error *err);
/* End of generation? */
int32_t bp_token_is_eog(const struct bp_model *m, int32_t id);

struct bp_chat_message {
    const char *role; /* "system", "user", "assistant" */
    const char *content;
    size_t n_content;
};
/* Ids of a conversation in the model's own format; contents never become control tokens. */
int32_t bp_chat_format(const struct bp_model *m, const struct bp_chat_message *msgs, size_t n,
                       int32_t add_generation, int32_t **out_ids, size_t *out_n, struct bp_error *err);

/* ---- session: bound backends, cache, buffers; everything is allocated in open ---- */

struct bp_session;
/* Chooses backends for every slot and layer, negotiates the cache, prepares weights. Errors: BP_E_CONFIG when no
 * provider serves (with all reasons); before anything is taken, with bytes needed and free: BP_E_LIMIT when the device
 * has too little for the model, BP_E_NOMEM when the host has too little for cache and buffers; BP_E_DEVMEM or BP_E_NOMEM
 * when an allocation fails all the same; BP_E_ABORTED. */
int32_t bp_session_open(struct bp_model *m, const struct bp_config *cfg, const struct bp_callbacks *cb,
                        struct bp_session **out, struct bp_error *err);
void bp_session_close(struct bp_session *s); /* NULL accepted */

uint32_t bp_session_ctx(const struct bp_session *s);           /* tokens one sequence can hold */
uint32_t bp_session_max_seqs(const struct bp_session *s);      /* sequences are numbered 0 .. max_seqs - 1 */
uint32_t bp_session_batch_tokens(const struct bp_session *s);  /* tokens one step can take */
uint32_t bp_session_max_logits(const struct bp_session *s);    /* rows of logits one step can return */

/* How many tokens sequence `seq` holds. */
uint32_t bp_seq_len(const struct bp_session *s, uint32_t seq);
/* Empties a sequence and gives its blocks back. */
int32_t bp_seq_reset(struct bp_session *s, uint32_t seq, struct bp_error *err);
/* Cuts a sequence to its first n_tok tokens. */
int32_t bp_seq_truncate(struct bp_session *s, uint32_t seq, uint32_t n_tok, struct bp_error *err);
/* Lets the empty sequence dst start with the first tokens of src without computing them: whole blocks only, so
 * *out_shared <= n_tok is what was shared. */
int32_t bp_seq_share(struct bp_session *s, uint32_t dst, uint32_t src, uint32_t n_tok, uint32_t *out_shared,
                     struct bp_error *err);

enum {
    BP_STEP_DECODE = 1 /* compute these tokens in the decode form (absorbed); otherwise they are prompt (prefill) */
};
/* Work for one sequence in one step. */
struct bp_step_item {
    struct bp_hdr h;
    uint32_t seq;      /* each sequence at most once per step */
    uint32_t flags;
    const int32_t *ids;
    uint32_t n_ids;    /* 0 is legal and does nothing */
    uint32_t n_logits; /* logits for the last n_logits of these tokens, 0..n_ids */
};
BP_NOPAD(struct bp_step_item, n_logits);

/* One step: appends the items' tokens to their sequences. Errors: BP_E_ARG (bad seq, id, counts), BP_E_LIMIT (context or
 * cache full: nothing was changed), BP_E_NUMERIC (NaN or Inf: names the first layer and op; that sequence is failed and
 * must be reset, the others advanced), BP_E_DEVICE*. Results of a row never depend on the other rows with backends that
 * claim it (ref does). */
int32_t bp_session_step(struct bp_session *s, const struct bp_step_item *items, uint32_t n_items,
                        struct bp_error *err);
/* Logits of the last step: (n_vocab) f32 of row `row` (0 .. n_logits - 1) of item `item`; NULL out of range. Valid until
 * the next step. */
const float *bp_session_logits(const struct bp_session *s, uint32_t item, uint32_t row);

/* Asks the running step - or, when none runs, the next one - to stop, from any thread or a signal handler; that step
 * returns BP_E_ABORTED and its sequences are as they were before it. */
void bp_session_interrupt(struct bp_session *s);

/* ---- taps: named intermediates, no cost when off ---- */

struct bp_tap_event {
    struct bp_hdr h;
    const char *name;            /* "blk.3.attn.q_nope", "embd", "blk.3.out", "output_norm", "logits" */
    int32_t layer;               /* -1 outside of layers */
    uint32_t n_rows;             /* rows that map to tokens; equals data.dim[0] */
    const struct bp_tensor *data; /* readable by the host during the call; F32, choices I32; rows outermost */
    const uint32_t *row_item;    /* (n_rows) item of the step */
    const uint32_t *row_pos;     /* (n_rows) position in the sequence */
};
BP_NOPAD(struct bp_tap_event, row_pos);
typedef void (*bp_tap_fn)(void *ctx, const struct bp_tap_event *e);
/* Taps whose name matches one of the comma-separated patterns ('*' matches any run of characters) call fn. NULL patterns
 * turn all off. Errors: BP_E_ARG when a pattern matches no tap (nearest name given). */
int32_t bp_session_tap(struct bp_session *s, const char *patterns, bp_tap_fn fn, void *ctx, struct bp_error *err);

/* Which provider serves what: one row per (slot, provider, run of layers). BP_DECLINED past the end. */
struct bp_choice {
    struct bp_hdr h;
    const char *slot, *provider;
    int32_t layer_begin, layer_end; /* [begin, end); -1, -1 outside of layers */
};
BP_NOPAD(struct bp_choice, layer_end);
int32_t bp_session_choice(const struct bp_session *s, uint32_t i, struct bp_choice *out);
/* Cache dtype and layout names, "bf16" and "mla.bf16.576". */
const char *bp_session_kv_dtype(const struct bp_session *s);
/* "f32", "bf16" or "f16": the dtype of activations between ops. */
const char *bp_session_act_dtype(const struct bp_session *s);
const char *bp_session_kv_layout(const struct bp_session *s);

/* ---- sampling and generation ---- */

struct bp_sample_params {
    struct bp_hdr h;
    float temp;           /* 0 = greedy */
    int32_t top_k;        /* 0 = off */
    float top_p, min_p;   /* 1 and 0 = off */
    float repeat_penalty; /* 1 = off */
    uint32_t repeat_last; /* tokens looked back at */
    uint64_t seed;
};
BP_NOPAD(struct bp_sample_params, seed);
/* From the config's [sample]; seed auto becomes a fresh random number, which is reported in *p. */
void bp_sample_defaults(const struct bp_config *c, struct bp_sample_params *p);

struct bp_sampler;
int32_t bp_sampler_create(const struct bp_sample_params *p, uint32_t n_vocab, struct bp_sampler **out,
                          struct bp_error *err);
void bp_sampler_destroy(struct bp_sampler *s);
/* Picks from (n_vocab) logits and remembers the pick for the repetition penalty. Order: penalty, temperature 0 = argmax
 * (lowest id on ties), top-k, top-p, min-p, temperature, draw. Errors: BP_E_NUMERIC when a logit is NaN or +Inf or all
 * are -Inf: text is never made from them. */
int32_t bp_sampler_pick(struct bp_sampler *s, const float *logits, int32_t *out_id, struct bp_error *err);
/* Tells the sampler about tokens that it did not pick (the prompt). */
void bp_sampler_accept(struct bp_sampler *s, const int32_t *ids, size_t n);

/* ln softmax(logits)[id], in double, over the unmodified logits. */
double bp_logprob(const float *logits, uint32_t n_vocab, int32_t id);
struct bp_token_prob {
    int32_t id;
    float logprob;
};
/* The k most probable, descending, lowest id first on ties; out holds k entries. Returns how many (min(k, n_vocab)). */
uint32_t bp_top_logprobs(const float *logits, uint32_t n_vocab, uint32_t k, struct bp_token_prob *out);

enum bp_stop { BP_STOP_NONE = 0, BP_STOP_EOG = 1, BP_STOP_LENGTH = 2, BP_STOP_CONTEXT = 3, BP_STOP_CALLER = 4 };

struct bp_generated { /* one token, during the callback */
    struct bp_hdr h;
    int32_t id;
    uint32_t n_top;
    double logprob;
    const char *bytes;         /* of this token alone; may be part of a character */
    size_t n_bytes;
    const char *text;          /* what became whole UTF-8 with this token; may be empty */
    size_t n_text;
    const struct bp_token_prob *top;
};
BP_NOPAD(struct bp_generated, top);

struct bp_generate_params {
    struct bp_hdr h;
    struct bp_sampler *sampler;
    uint32_t seq;
    uint32_t max_tokens;     /* 0 = none: only the prompt is computed */
    uint32_t chunk;          /* prefill tokens per step; 0 = batch_tokens */
    uint32_t n_top;          /* most probable alternatives to report */
    uint32_t ignore_eog;     /* 1: end-of-generation tokens are ordinary text */
    uint32_t reserved;
    int32_t (*on_token)(void *ctx, const struct bp_generated *t); /* non-zero stops */
    int32_t (*on_prompt)(void *ctx, uint32_t done, uint32_t total); /* progress of the prompt; may be NULL; non-zero stops */
    void *ctx;
};
BP_NOPAD(struct bp_generate_params, ctx);

struct bp_generate_result {
    struct bp_hdr h;
    uint32_t stop;           /* enum bp_stop */
    uint32_t n_prompt, n_generated, reserved;
    double prefill_s, decode_s;
};
BP_NOPAD(struct bp_generate_result, decode_s);
/* Appends the prompt to the sequence and generates. The sequence keeps prompt and generated tokens (all but the last one
 * picked), so a conversation goes on with the next call. Errors: BP_E_LIMIT before anything is computed when the prompt
 * does not fit the context (both numbers given); as bp_session_step. */
int32_t bp_generate(struct bp_session *s, const struct bp_generate_params *p, const int32_t *prompt, size_t n_prompt,
                    struct bp_generate_result *out, struct bp_error *err);

BP_EXTERN_C_END
#endif
