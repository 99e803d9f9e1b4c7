/* session_priv.h - the inside of a session: one rank's bound backends, weights, cache, buffers and step state.
 * Shared by session_*.c, step_*.c and tap.c only.
 * Ranks: this struct is one rank; today a session is one rank on one device. Nothing here is file-scope, so several fit
 * one process.
 * SPDX-License-Identifier: MIT */
#ifndef BPI_SESSION_PRIV_H
#define BPI_SESSION_PRIV_H

#include <stdatomic.h>
#include <stdbool.h>
#include "engine/decisions.h"
#include "engine/engine.h"
#include "engine/mirror.h"
#include "kv/kv.h"
#include "loader/loader.h"
#include "backplane/slot_coll.h"
#include "backplane/slot_dense.h"
#include "backplane/slot_device.h"
#include "backplane/slot_mla.h"
#include "backplane/slot_moe.h"
#include "backplane/slot_quant.h"

/* Slots a layer (or the model as a whole) binds; order of the choice table. */
enum bpi_slot {
    BPI_SLOT_DEVICE,
    BPI_SLOT_DENSE,
    BPI_SLOT_QUANT,
    BPI_SLOT_MLA_COMMON,
    BPI_SLOT_MLA_PREFILL,
    BPI_SLOT_MLA_DECODE,
    BPI_SLOT_MLA_INDEX,
    BPI_SLOT_MOE,
    BPI_SLOT_COLL,
    BPI_SLOT_COUNT
};

/* One distinct op instance in use, with the memory it asked for. */
struct bpi_bound {
    const struct bp_op_base *vt; /* flattened over the slot's wrappers, see struct bpi_flat_op */
    void *const *self;           /* by slot: what BPI_CALL passes */
    struct bp_op_ref ref;        /* the same op behind one self: for questions, and as its identity */
    const char *provider;
    bool on_host;           /* computes on the host although the device is another: session_carry.c */
    uint32_t capture;       /* the least over the problems it was bound for: enum bp_capture */
    struct bp_workspace ws; /* maximum over the problems it was bound for */
    void *persistent, *plan, *pinned;
    const void *planned_meta; /* what plan() last saw */
    uint64_t planned_epoch;
};

/* One call of an op in a step, with launch and args: runs it where it computes. number: of its slot header, for
 * tensors(). */
#define BPI_OP(s, op, T, slot, number, l, a)                                                       \
    ((s)->watcher == NULL ? BPI_OP_UNWATCHED(s, op, T, slot, number, l, a)                         \
     : bpi_watch_before(s, op, #slot, number, l, a, sizeof(*(a)), err) != BP_OK                    \
         ? (s)->watcher->rc                                                                        \
         : bpi_watch_after(s, BPI_OP_UNWATCHED(s, op, T, slot, number, l, a), err))
#define BPI_OP_UNWATCHED(s, op, T, slot, number, l, a)                                             \
    (!(op)->on_host ? BPI_RUN(op, (l)->layer, T, slot, l, a)                                       \
     : bpi_carry_in(s, op, number, a, sizeof(*(a)), err) != BP_OK                                  \
         ? (s)->carry->rc                                                                          \
         : bpi_carry_out(s, BPI_RUN(op, (l)->layer, T, slot, l, (s)->carry->args), err))
/* The same for plan(), with its metadata; view: bpi_carry_prefill or bpi_carry_decode. */
#define BPI_PLAN(s, op, T, view, l, m)                                                             \
    BPI_RUN(op, (l)->layer, T, plan, l, (op)->on_host ? view(s, m) : (m))

/* Calls one slot of a bound op with the self that belongs to it: BPI_CALL(op, bp_moe_ops, run, &launch, &args, err). */
#define BPI_CALL(op, T, slot, ...)                                                                 \
    (((const struct T *)(op)->vt)->slot((op)->self[BPI_SLOT_INDEX(T, slot)], __VA_ARGS__))

/* The same for calls that can fail while running or preparing (`err` last): an error names slot, function, layer and
 * provider, whatever the provider said. */
#define BPI_RUN(op, layer, T, slot, ...)                                                           \
    bpi_op_result((op), (layer), #slot, BPI_CALL(op, T, slot, __VA_ARGS__, err), err)
int32_t bpi_op_failed(const struct bpi_bound *op, int32_t layer, const char *fn, int32_t rc,
                      struct bp_error *err);
static inline int32_t bpi_op_result(const struct bpi_bound *op, int32_t layer, const char *fn,
                                    int32_t rc, struct bp_error *err)
{
    return rc == BP_OK ? BP_OK : bpi_op_failed(op, layer, fn, rc, err);
}

enum { BPI_N_DENSE = BP_DENSE_OP_MATMUL + 1 };

/* What is known of a weight's handle besides the handle. */
struct bpi_owned {
    uint64_t layout_id, n_bytes;
    bool lent; /* it is the lender's (struct bp_session) */
};

/* A group of weights that share one input, with its fused form. Which parts run fused is decided when binding. */
enum { BPI_SITE_MAX_W = 4 };
struct bpi_site {
    struct bpi_bound *op[BPI_SITE_MAX_W]; /* quant, chosen weight by weight */
    uint32_t n_w;
    void *weight[BPI_SITE_MAX_W];
    struct bpi_owned owned[BPI_SITE_MAX_W];
    uint32_t role[BPI_SITE_MAX_W];
    int64_t rows[BPI_SITE_MAX_W], cols;
    uint32_t type[BPI_SITE_MAX_W], row[BPI_SITE_MAX_W]; /* row: of the decisions */
    uint64_t file_bytes[BPI_SITE_MAX_W];
    uint32_t prologue, epilogue; /* wanted */
    bool exact;                  /* F32 to F32: composed, what lies between stays F32 too */
    bool one_call;               /* all weights with prologue and epilogue in one matmul */
    bool multi;                  /* all weights in one plain matmul */
};

struct bpi_layer {
    bool dense_ffn, index_full, has_index;
    struct bpi_bound *dense[BPI_N_DENSE]; /* by enum bp_dense_op */
    struct bpi_bound *rms_f32;            /* with an F32 result; NULL without an index */
    struct bpi_bound *common, *prefill, *decode, *index, *moe;
    /* attention */
    const float *attn_norm, *q_a_norm, *kv_a_norm; /* device */
    struct bpi_site in;                            /* {q_a | q, kv_a [, index k]} of rms(x) */
    struct bpi_site q_b; /* of rms(q_a); absent without query compression */
    struct bpi_site out; /* x += W_o o */
    void *mla;           /* k_b and v_b */
    uint64_t kv_layout_id, kv_block_bytes, index_layout_id, index_block_bytes;
    unsigned char *pool, *index_pool;
    /* index */
    const float *index_norm_w, *index_norm_b;
    struct bpi_site index_q; /* of rms(q_a) */
    struct bpi_site index_w; /* of rms(x) */
    /* feed-forward */
    const float *ffn_norm;
    struct bpi_site gate_up, down; /* dense */
    struct bpi_site router;        /* of h */
    const float *router_bias;
    void *experts;
    struct bpi_owned mla_owned, experts_owned;
    uint32_t moe_row, common_row; /* of the decisions */
    uint32_t moe_number;          /* among the layers with experts */
};

/* Metadata of one step; arrays point into session.meta_* staging. */
struct bpi_group {                    /* prefill segments that run together */
    uint32_t n_seg, n_phase;          /* phases: 0 = causal, 1.. = context slabs */
    uint32_t row0, n_q;               /* batch rows of the queries */
    struct bp_mla_prefill_meta *meta; /* n_phase of them */
};

struct bpi_step {
    uint32_t n_items, n_tok, n_row, n_seqs, n_logits;
    bool select; /* some row has more keys than top_k */
    struct bp_mla_meta common;
    struct bp_mla_decode_meta decode;
    uint32_t n_group;
    struct bpi_group *groups;
    uint32_t *row_item, *row_pos; /* (n_tok) batch row -> item, position */
    uint32_t *logit_first;        /* (n_items) first logits row of an item */
    uint32_t *logit_count;        /* (n_items) */
    uint32_t *logit_row;          /* (n_logits) batch row */
    uint64_t n_call;              /* launches so far: the low part of their correlation ids */
};

/* Intermediates that can be tapped. X(id, name, rows) - rows: T all tokens, R decode rows, L logits rows. */
#define BPI_TAP_MAP(X)                                                                             \
    X(EMBD, "embd", 'T')                                                                           \
    X(Q_NOPE, "attn.q_nope", 'T')                                                                  \
    X(Q_PE, "attn.q_pe", 'T')                                                                      \
    X(Q_LORA, "attn.q_lora", 'T')                                                                  \
    X(KV, "attn.kv", 'T')                                                                          \
    X(INDEX_K, "index.k", 'T')                                                                     \
    X(INDEX_Q, "index.q", 'R')                                                                     \
    X(INDEX_W, "index.weights", 'R')                                                               \
    X(INDEX_IDS, "index.ids", 'R')                                                                 \
    X(Q_LAT, "attn.q_lat", 'R')                                                                    \
    X(O_LAT, "attn.o_lat", 'R')                                                                    \
    X(HEADS, "attn.heads", 'T')                                                                    \
    X(RESID, "attn.resid", 'T')                                                                    \
    X(FFN_NORM, "ffn.norm", 'T')                                                                   \
    X(FFN_ACT, "ffn.act", 'T')                                                                     \
    X(ROUTER, "moe.router", 'T')                                                                   \
    X(MOE_IDS, "moe.ids", 'T')                                                                     \
    X(MOE_WEIGHTS, "moe.weights", 'T')                                                             \
    X(OUT, "out", 'T')                                                                             \
    X(OUTPUT_NORM, "output_norm", 'T')                                                             \
    X(LOGITS, "logits", 'L')
enum bpi_tap {
#define BPI_TAP_ENUM(id, name, rows) BPI_TAP_##id,
    BPI_TAP_MAP(BPI_TAP_ENUM)
#undef BPI_TAP_ENUM
        BPI_TAP_COUNT
};

struct bpi_taps {
    bp_tap_fn fn; /* NULL: all off */
    void *ctx;
    const char *
        *names; /* (n_layer + 1, BPI_TAP_COUNT): NULL = off; the last row is outside of layers */
    struct bpi_arena arena;
};

struct bp_session {
    struct bp_model *model;
    const struct bpi_hparams *hp;
    struct bpi_log log;
    struct bp_callbacks cb;
    const struct bpi_config *config; /* not owned; valid during open only */
    const struct bp_config *linked;  /* likewise */
    struct bpi_pool *pool;
    struct bpi_loader *loader;
    struct bpi_arena arena; /* small things that live as long as the session */

    /* limits */
    uint32_t ctx, max_seqs, batch_tok, slab, slab_cap, block_tok, n_layer;
    uint32_t max_rows, max_logits, max_seg;
    uint32_t kv_dtype, act; /* enum bp_dtype */
    double index_scale;     /* 1 / sqrt(index heads * index_dim) */
    uint64_t epoch;

    /* backends */
    struct bpi_bound *device_op;
    struct bp_device_problem device_problem; /* auto is resolved */
    struct bp_device device;
    struct bp_error lost; /* code is BP_E_DEVICE_LOST once the device is */
    char device_why[320], act_why[320]; /* sentences for auto, "" when there is nothing to say */
    bool quiet;                         /* binding is only tried */
    void *stream; /* of the device, for everything that this session puts there; NULL on HOST */
    struct bpi_bound *dense[BPI_N_DENSE]; /* outside of layers */
    struct bpi_bound *rms_f32;            /* the norm outside of layers with an F32 result */
    struct bpi_bound *coll;
    void *comm;
    struct bpi_bound *bound; /* n_bound distinct instances, fixed capacity */
    uint32_t n_bound, cap_bound, n_moe;
    uint64_t weight_bytes; /* expected of weights whose op computes on the device */
    struct bpi_layer *layers;
    struct bpi_site head;
    void *embed;
    struct bpi_owned embed_owned;
    uint64_t held_bytes, most_bytes; /* of handles: now, and at most so far */
    const struct bp_session *lender; /* of a mirror: its weights come when a call wants them, and those whose layout is
                                      * the lender's are the lender's. NULL: they came when the session was opened. */
    int32_t streamed;                /* of a mirror: the layer it is in, -1: outside of layers */
    uint64_t keep_bytes;             /* of a mirror: how many it may keep beyond their layer */
    const float *output_norm;
    struct bp_choice *choices;
    uint32_t n_choices;
    char kv_layout[32];
    struct bpi_candidate *cands; /* scratch of binding: BPI_N_TRIALS times BPI_MAX_CANDIDATES */
    struct bp_decisions *decisions;
    uint32_t embed_row; /* of the decisions */

    /* memory owned, for the device slot's free */
    struct bpi_mem {
        void *p;
        uint64_t n_bytes;
        uint32_t kind;
        uint32_t twin; /* enum bpi_twin */
        void *host;    /* its twin on the host */
    } * mems;
    uint32_t n_mems, cap_mems;
    struct bp_session_memory memory;

    /* cache and buffers (device unless said otherwise); T = batch_tok, R = max_rows */
    struct bpi_kv *kv;
    float *rope_cos, *rope_sin;               /* (ctx, rope/2) */
    void *x;                                  /* (T, E) f32 residual */
    void *h;                                  /* (T, max(E, q_lora)) normalised */
    void *x_add;                              /* (T, E) f32: a product before dense.add takes it */
    void *q_lora;                             /* (T, Q) */
    void *q;                                  /* (T, H, P+R) */
    void *kv_raw;                             /* (T, C+R) */
    void *index_k;                            /* (T, D) */
    void *index_q;                            /* (R, n_ih, D) */
    void *index_w;                            /* (R, n_ih) f32 */
    int32_t *idx, *idx_len;                   /* (R, top_k), (R) */
    void *q_lat, *o_lat;                      /* (R, H, C+R), (R, H, C) */
    void *heads;                              /* (T, H, V) */
    float *lse, *lse2;                        /* (T, H) */
    void *heads2;                             /* (T, H, V) */
    void *slab_c, *slab_pe, *slab_k, *slab_v; /* gathered keys */
    void *ff;                                 /* (T, max(n_ff)) twice when silu_mul is composed */
    void *ff2;
    float *router;         /* (T, X) */
    float *moe_w;          /* (n_moe, n_tok, K): each layer's stay until the step ends, for the guard */
    float *guard_host;     /* moe_w on the host, where the device is another; else NULL */
    int32_t *moe_ids;
    void *x_rows;                /* (L, E) */
    float *logits, *logits_host; /* (L, vocab) */
    const int32_t *ids_dev;      /* (T) in the staging */
    void *scratch;
    uint64_t scratch_bytes;
    unsigned char *meta_host, *meta_dev; /* staging of step metadata */
    uint64_t meta_bytes, meta_used;

    struct bpi_step step;
    struct bp_mla_prefill_meta *metas; /* n_phase_max per segment */
    uint32_t max_phase;
    uint32_t *start;        /* (max_seqs) sequence lengths before the step, by item */
    unsigned char *bad_row; /* (T) */
    struct bpi_taps taps;
    atomic_int interrupted;
    struct bpi_carry *carry; /* NULL: every op computes on the device */
    struct bpi_watcher *watcher; /* NULL: nobody looks at the calls of a step */
    void *timer[2];              /* events around a timed call, made at the first one */
    uint64_t timer_ns;           /* the same by the clock */
    struct bp_device host;   /* for launches of those that do not */
    struct bpi_graphs *graphs; /* NULL: steps are never captured */
    bool capturing;            /* launches go into a graph */
    void *host_scratch;
};

/* ---- session_carry.c: ops that compute on the host of a rank whose device is another ---- */

/* Device memory may have a twin on the host, of the same size: a tensor's place in it is its place in the device's. */
enum bpi_twin { BPI_TWIN_NONE = 0, BPI_TWIN_COPIED = 1, BPI_TWIN_FIXED = 2 /* filled once, never copied back */ };
struct bpi_carry {
    int32_t rc;
    uint32_t n; /* tensors of the call */
    const void *args; /* what the op is called with */
    struct bp_tensor list[16];
    _Alignas(16) unsigned char clone[1024];
    struct bp_matmul_out outs[BPI_SITE_MAX_W];
    struct bp_mla_meta common;
    struct bp_mla_prefill_meta prefill;
    struct bp_mla_decode_meta decode;
};
/* Where tensors and metadata lie in the args of an op that a step calls. NULL: no step calls it. */
enum bpi_call_meta { BPI_META_NONE, BPI_META_COMMON, BPI_META_PREFILL, BPI_META_DECODE };
enum { BPI_MAX_ARGS_PORTS = 5, BPI_ARGS_META_AT = offsetof(struct bp_mla_cache_write_args, meta) };
struct bpi_ports {
    const char *iface;
    uint32_t number, meta;           /* enum bpi_call_meta; metadata lies at BPI_ARGS_META_AT */
    uint32_t at[BPI_MAX_ARGS_PORTS]; /* offsets; 0 ends the list, the header is there; those of outs of bp.quant besides */
};
const struct bpi_ports *bpi_find_ports(const char *iface, uint32_t number);
/* Twins for all device memory, when some op needs them; after the last allocation. */
int32_t bpi_carry_create(struct bp_session *s, struct bp_error *err);
/* Brings the tensors of a call over and makes its args; the status is also in s->carry->rc. */
int32_t bpi_carry_in(struct bp_session *s, const struct bpi_bound *op, uint32_t number, const void *args,
                     size_t n_bytes, struct bp_error *err);
/* Takes what the call wrote back. rc: of the call, passed on. */
int32_t bpi_carry_out(struct bp_session *s, int32_t rc, struct bp_error *err);
const struct bp_mla_prefill_meta *bpi_carry_prefill(struct bp_session *s, const struct bp_mla_prefill_meta *m);
const struct bp_mla_decode_meta *bpi_carry_decode(struct bp_session *s, const struct bp_mla_decode_meta *m);

/* ---- mirror_time.c ---- */
/* Microseconds of a call, from what was put on the stream before to its own end: by events where the op computes on the
 * device, else by the clock. */
int32_t bpi_time_begin(struct bp_session *s, const struct bpi_bound *op, struct bp_error *err);
int32_t bpi_time_end(struct bp_session *s, const struct bpi_bound *op, double *us, struct bp_error *err);
void bpi_time_close(struct bp_session *s);

/* ---- mirror_weights.c ---- */
/* A mirror whose lender is on the same device. */
static inline bool bpi_mirror_near(const struct bp_session *s)
{
    return s->lender != NULL && s->lender->device.kind == s->device.kind &&
           s->lender->device.ordinal == s->device.ordinal;
}
/* How many bytes of weights a mirror may keep beyond their layer; nothing for other sessions. */
int32_t bpi_mirror_budget(struct bp_session *b, struct bp_error *err);

/* ---- mirror.c: who looks at the calls of a step ---- */
struct bpi_watcher {
    const struct bpi_watch *w;
    struct bpi_call call;
    char site[48]; /* tap of the last product: what add and silu_mul complete */
    int32_t rc;
};
int32_t bpi_watch_before(struct bp_session *s, const struct bpi_bound *op, const char *fn, uint32_t number,
                         const struct bp_launch *l, const void *args, size_t n_bytes, struct bp_error *err);
/* rc: of the call. */
int32_t bpi_watch_after(struct bp_session *s, int32_t rc, struct bp_error *err);

/* ---- session_mem.c ---- */
/* Device or pinned memory owned by the session; `kind` counts into session.memory (offset of the field). */
int32_t bpi_session_alloc(struct bp_session *s, uint32_t mem, uint64_t n_bytes, uint64_t *account,
                          void **out, struct bp_error *err);
void bpi_session_free_all(struct bp_session *s);
/* In order of the session's stream; dir: enum bp_copy_dir. */
int32_t bpi_session_copy(struct bp_session *s, void *dst, const void *src, uint64_t n_bytes, uint32_t dir,
                         struct bp_error *err);
/* Waits for the session's stream. */
int32_t bpi_session_sync(struct bp_session *s, struct bp_error *err);

struct bpi_question;
/* ---- session_device.c ---- */
/* Device, dtype of activations, then everything else. */
int32_t bpi_session_bind(struct bp_session *s, struct bp_error *err);
int32_t bpi_session_find_device(struct bp_session *s, struct bp_error *err);
int32_t bpi_session_bind_device(struct bp_session *s, struct bp_error *err);
int32_t bpi_session_create_stream(struct bp_session *s, struct bp_error *err);
/* Keeps why an op ended up on the host, when the dtype of activations is to blame. */
void bpi_session_note_carried(struct bp_session *s, const struct bpi_question *q);

/* ---- session_bind.c ---- */
int32_t bpi_session_bind_alloc(struct bp_session *s, struct bp_error *err);
/* With s->act as it is. */
int32_t bpi_session_bind_all(struct bp_session *s, struct bp_error *err);
/* The bound instance for an op reference, its workspace grown to `problem`. */
int32_t bpi_session_bound(struct bp_session *s, const struct bp_op_ref *ref, const char *provider,
                          bool on_host, const void *problem, struct bpi_bound **out, struct bp_workspace *out_ws,
                          struct bp_error *err);

enum { BPI_MAX_CANDIDATES = 16, BPI_N_TRIALS = 4 };
/* One problem put to the providers of a slot, and what came of it. */
struct bpi_question {
    uint32_t slot;
    int32_t layer; /* -1 outside of layers */
    const void *problem;
    const char *what;    /* see struct bpi_answers */
    uint64_t file_bytes; /* of the weights it is about */
    uint64_t ready_bytes; /* what prepare() makes of it, where that is known to be more; else 0 */
    /* answers */
    struct bpi_candidate *cands; /* BPI_MAX_CANDIDATES */
    size_t n_cands, chosen;
    struct bp_op_ref ref;
    uint32_t row; /* of the decisions */
    bool asked;
};
/* Asks, binds the winner and keeps the answers. */
int32_t bpi_session_choose(struct bp_session *s, struct bpi_question *q, struct bpi_bound **out,
                           struct bp_error *err);
/* The two halves of it: asks only; binds the winner and keeps the answers. */
int32_t bpi_session_ask(struct bp_session *s, struct bpi_question *q, struct bp_error *err);
int32_t bpi_session_settle(struct bp_session *s, struct bpi_question *q, struct bpi_bound **out,
                           struct bp_error *err);
/* Keeps answers without binding anything: binding failed, for this slot or for another that goes with it. */
int32_t bpi_session_note_failure(struct bp_session *s, struct bpi_question *q, struct bp_error *err);
const char *bpi_slot_name(uint32_t slot);
uint64_t bpi_session_file_bytes(const struct bp_session *s, const uint32_t *roles, size_t n,
                                uint32_t layer);
/* Cache dtype and layouts of all layers (session_kv.c). */
int32_t bpi_session_negotiate(struct bp_session *s, struct bp_error *err);
/* Bytes of all norms and biases on a device (session_weights.c); 0 on HOST. */
uint64_t bpi_session_vector_bytes(struct bp_session *s);
/* Weights of all layers (session_weights.c); those of a mirror only as far as they belong to nobody. */
int32_t bpi_session_prepare(struct bp_session *s, struct bp_error *err);
void bpi_session_release(struct bp_session *s);
/* One weight that may be there already: the i-th of a site, k_b and v_b, experts, the embedding. And the end of all that a
 * layer (-1: outside of layers) has and is not lent. */
int32_t bpi_weight_of_site(struct bp_session *s, struct bpi_site *site, uint32_t i, int32_t layer, struct bp_error *err);
int32_t bpi_weight_of_mla(struct bp_session *s, uint32_t il, struct bp_error *err);
int32_t bpi_weight_of_moe(struct bp_session *s, uint32_t il, struct bp_error *err);
int32_t bpi_weight_of_embed(struct bp_session *s, struct bp_error *err);
void bpi_weights_release(struct bp_session *s, int32_t layer);
/* Cache pools and step buffers (session_buffers.c). */
int32_t bpi_session_buffers(struct bp_session *s, struct bp_error *err);
struct bp_mla_problem bpi_session_mla_problem(const struct bp_session *s, uint32_t layer);
int32_t bpi_session_progress(struct bp_session *s, double fraction, const char *what,
                             struct bp_error *err);

/* ---- step_*.c ---- */
/* Metadata of the items, whose tokens were already appended to the cache's tables; s->start has the lengths before. */
int32_t bpi_step_build(struct bp_session *s, const struct bp_step_item *items, uint32_t n_items,
                       struct bp_error *err);
uint64_t bpi_step_meta_bytes(const struct bp_session *s); /* staging for the largest step */
int32_t bpi_step_forward(struct bp_session *s, struct bp_error *err);
/* Its two halves: everything up to the logits on the device, and bringing them to the host. */
int32_t bpi_step_compute(struct bp_session *s, struct bp_error *err);
int32_t bpi_step_finish(struct bp_session *s, struct bp_error *err);
int32_t bpi_step_attention(struct bp_session *s, uint32_t layer, struct bp_error *err);
int32_t bpi_step_ffn(struct bp_session *s, uint32_t layer, struct bp_error *err);
/* Each has a correlation id of its own. */
struct bp_launch bpi_step_launch(struct bp_session *s, const struct bpi_bound *op, int32_t layer);

/* One site: y[i] = W_i rms(x) (or silu_mul, or + residual), composed from plain ops where the provider wants it. dense:
 * the ops that compose. norm_w: with the rms prologue. x (n, cols), y[i] (n, rows_i). */
int32_t bpi_site_run(struct bp_session *s, const struct bpi_site *site,
                     struct bpi_bound *const *dense, int32_t layer, const struct bp_tensor *x,
                     const float *norm_w, struct bp_tensor *y, const struct bp_tensor *residual,
                     struct bp_error *err);
int32_t bpi_dense_rms(struct bp_session *s, struct bpi_bound *const *dense, int32_t layer,
                      const struct bp_tensor *x, const float *w, const struct bp_tensor *y,
                      struct bp_error *err);

/* BP_E_ABORTED once after bp_session_interrupt; asked for between the larger pieces of work. */
int32_t bpi_step_interrupted(struct bp_session *s, uint32_t layer, struct bp_error *err);
/* Marks rows of a tensor (rows outermost) that are not finite. For what only feeds a choice - router logits, the index -
 * where NaN would decide silently instead of reaching the logits. HOST only; on a device the router's weights stand for
 * its logits (bpi_step_finish), and what only the index meets is not seen. */
void bpi_step_guard(struct bp_session *s, const struct bp_tensor *t);

/* Checks the items, reserves their cache and builds their metadata: a step without its layers. */
int32_t bpi_step_open(struct bp_session *s, const struct bp_step_item *items, uint32_t n_items, struct bp_error *err);
/* plan() of a decode or prefill op unless it has seen this metadata. */
int32_t bpi_step_plan_decode(struct bp_session *s, struct bpi_bound *op, const struct bp_launch *launch,
                             struct bp_error *err);
int32_t bpi_step_plan_prefill(struct bp_session *s, struct bpi_bound *op, const struct bp_launch *launch,
                              const struct bp_mla_prefill_meta *m, struct bp_error *err);

/* ---- step_graph.c: steps of decode rows as captured graphs ---- */
/* Can this session capture at all? With engine.graph = on it is an error when it cannot. After binding. */
int32_t bpi_graphs_create(struct bp_session *s, struct bp_error *err);
void bpi_graphs_destroy(struct bp_session *s);
/* The step as a graph if it may be one, else as bpi_step_forward(). */
int32_t bpi_step_run(struct bp_session *s, struct bp_error *err);
/* The bound that stands for the longest of the step's contexts: the same for all lengths of a bucket. */
uint32_t bpi_graph_max_kv(const struct bp_session *s, uint32_t max_kv);

/* ---- tap.c ---- */
static inline bool bpi_tap_on(const struct bp_session *s, uint32_t tap, int32_t layer)
{
    if (s->taps.fn == NULL) return false;
    uint32_t row = layer < 0 ? s->n_layer : (uint32_t)layer;
    return s->taps.names[(size_t)row * BPI_TAP_COUNT + tap] != NULL;
}
/* Emits when on. t: rows outermost. */
int32_t bpi_tap_emit(struct bp_session *s, uint32_t tap, int32_t layer, const struct bp_tensor *t,
                     struct bp_error *err);
/* Runs the step again with every tap on and names the first layer and op with a NaN or Inf in one of the marked rows.
 * Errors: those of a step; then where is "an unknown op". */
int32_t bpi_tap_find_nonfinite(struct bp_session *s, const unsigned char *bad_row, char *where, size_t cap,
                               struct bp_error *err);

/* ---- tensors ---- */
static inline uint32_t bpi_dtype_bytes(uint32_t dtype)
{
    return dtype == BP_DT_F16 || dtype == BP_DT_BF16 ? 2
           : dtype == BP_DT_I64                      ? 8
           : dtype == BP_DT_U8                       ? 1
                                                     : 4;
}
static inline struct bp_tensor bpi_t1(void *p, uint32_t dtype, int64_t n)
{
    return (struct bp_tensor){
        .data = p, .dtype = dtype, .ndim = 1, .dim = {n, 1, 1, 1}, .stride = {1, 1, 1, 1}};
}
static inline struct bp_tensor bpi_t2(void *p, uint32_t dtype, int64_t n, int64_t w)
{
    return (struct bp_tensor){
        .data = p, .dtype = dtype, .ndim = 2, .dim = {n, w, 1, 1}, .stride = {w, 1, 1, 1}};
}
static inline struct bp_tensor bpi_t3(void *p, uint32_t dtype, int64_t n, int64_t h, int64_t w)
{
    return (struct bp_tensor){
        .data = p, .dtype = dtype, .ndim = 3, .dim = {n, h, w, 1}, .stride = {h * w, w, 1, 1}};
}
/* Rows [begin, begin + n) of t. */
static inline struct bp_tensor bpi_rows(struct bp_tensor t, int64_t begin, int64_t n)
{
    if (t.data != NULL)
        t.data = (char *)t.data + begin * t.stride[0] * (int64_t)bpi_dtype_bytes(t.dtype);
    t.dim[0] = n;
    return t;
}
/* Columns [begin, begin + n) of the innermost dimension. */
static inline struct bp_tensor bpi_cols(struct bp_tensor t, int64_t begin, int64_t n)
{
    t.data = (char *)t.data + begin * (int64_t)bpi_dtype_bytes(t.dtype);
    t.dim[t.ndim - 1] = n;
    return t;
}

#endif
