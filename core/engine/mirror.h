/* mirror.h - watching the calls of a session's steps, and repeating each in another session of the same model: what
 * core/compare builds its shadow mode on. A mirror takes part in every step with metadata, cache and buffers of its own,
 * so that any backend on any device can be one; only its ops run when it is told to, on inputs that are copied to it.
 * Not here: what is compared and how it is judged (core/compare).
 * Threads: the session's. SPDX-License-Identifier: MIT */
#ifndef BPI_MIRROR_H
#define BPI_MIRROR_H

#include "engine/engine.h"

enum { BPI_CALL_PORTS = 16 };

/* One call of an op in a step. */
struct bpi_call {
    const char *slot, *op, *provider; /* "mla.decode", "run", "ref" */
    char tap[64];                     /* what it writes: "blk.3.attn.o_lat" */
    int32_t layer;
    uint32_t number;  /* of the slot header */
    const void *args; /* n_args bytes */
    size_t n_args;
    struct bp_tensor port[BPI_CALL_PORTS]; /* in memory of the session; pools included */
    uint32_t n_port;
    double us;           /* after(): what the call took */
    double bytes, flops; /* estimates: of weights and tensors, of the sums */
    const void *bound;
};

/* Both may stop the step with a status. before: inputs are as the op will see them. after: it was good. */
struct bpi_watch {
    void *ctx;
    int32_t (*before)(void *ctx, const struct bpi_call *c, struct bp_error *err);
    int32_t (*after)(void *ctx, const struct bpi_call *c, struct bp_error *err);
};
/* NULL: nobody. *w must stay; off costs one comparison a call. Errors: BP_E_NOMEM. */
int32_t bpi_session_watch(struct bp_session *s, const struct bpi_watch *w, struct bp_error *err);

/* Opens a session that repeats calls of a, and takes no steps of its own. It has the weights of one layer at a time, got
 * when a call wants them, but for those that a has in the same layout from the same code and file. a must outlive it. */
int32_t bpi_mirror_open(struct bp_model *m, const struct bp_config *cfg, const struct bp_callbacks *cb,
                        const struct bp_session *a, struct bp_session **out, struct bp_error *err);
/* Can b repeat what a does? BP_E_ARG with a sentence when shapes or limits differ. */
int32_t bpi_mirror_check(const struct bp_session *a, const struct bp_session *b, struct bp_error *err);
/* Takes the step's tokens into b's cache tables and builds its metadata. Before a's step. */
int32_t bpi_mirror_begin(struct bp_session *b, const struct bp_step_item *items, uint32_t n_items, struct bp_error *err);
/* The same in the middle of a's step, for a mirror that was opened late: takes in the tokens before it as well. */
int32_t bpi_mirror_join(const struct bp_session *a, struct bp_session *b, const struct bp_step_item *items,
                        uint32_t n_items, struct bp_error *err);

/* Copies the inputs of a call to b. from[i]: contents of port i saved earlier (bpi_mirror_save), NULL: as they are. from
 * itself may be NULL. */
int32_t bpi_mirror_load(struct bp_session *a, struct bp_session *b, const struct bpi_call *c, void *const *from,
                        struct bp_error *err);
/* Runs the call in b on what was loaded. *us (may be NULL): what it took, plan() and copies left out. */
int32_t bpi_mirror_run(struct bp_session *a, struct bp_session *b, const struct bpi_call *c, double *us,
                       struct bp_error *err);
const char *bpi_mirror_provider(const struct bp_session *a, const struct bp_session *b, const struct bpi_call *c);
/* Is it the reference backend, with no wrapper around it and nobody else's ops in what b is composed of? */
bool bpi_mirror_is_ref(const struct bp_session *a, const struct bp_session *b, const struct bpi_call *c);

/* Bytes from the first element of a port to its last; 0 without data. */
uint64_t bpi_port_span(const struct bp_tensor *t);
/* Does an output of the call share memory with this port? Then it must be saved before. */
bool bpi_call_overwrites(const struct bpi_call *c, uint32_t port);
bool bpi_call_is_pool(const struct bpi_call *c, uint32_t port);
int32_t bpi_mirror_save(struct bp_session *s, const struct bp_tensor *port, void *out, struct bp_error *err);
/* Port of a call in session s (a itself, or a mirror of it) as contiguous numbers: float, or int32_t for I32. */
int32_t bpi_mirror_read(struct bp_session *a, struct bp_session *s, const struct bpi_call *c, uint32_t port,
                        int64_t begin, int64_t n, void *out, struct bp_error *err); /* rows [begin, begin + n) */
/* The same bits in both? False also where that takes copies to find out. */
bool bpi_mirror_same(struct bp_session *a, struct bp_session *b, const struct bpi_call *c, uint32_t port);

/* The cache rows of the step in layer `layer`, latent or index keys, in batch order, as floats (n_tok, width).
 * BP_DECLINED: a layout that only its provider can read. */
uint32_t bpi_mirror_row_width(const struct bp_session *s, bool index);
uint32_t bpi_mirror_n_tok(const struct bp_session *s);
int32_t bpi_mirror_rows(struct bp_session *s, int32_t layer, bool index, float *out, struct bp_error *err);
/* Makes b's cache rows of the step those of a, rounded to b's layout. BP_DECLINED as above. */
int32_t bpi_mirror_import(struct bp_session *a, struct bp_session *b, int32_t layer, bool index, struct bp_error *err);

/* Batch rows of the step: position of each, and for the outputs of a call which batch row its row 0 is, -1: rows are no
 * tokens (gathered keys). */
const uint32_t *bpi_mirror_row_pos(const struct bp_session *s);
const uint32_t *bpi_mirror_row_item(const struct bp_session *s);
int32_t bpi_mirror_first_row(const struct bp_session *s, const struct bpi_call *c);
/* Batch row of the i-th logits row. */
uint32_t bpi_mirror_logit_row(const struct bp_session *s, uint32_t i);

const struct bpi_hparams *bpi_mirror_hparams(const struct bp_session *s);
const float *bpi_mirror_router_bias(const struct bp_session *s, int32_t layer); /* host; NULL: none */
/* One cached row as floats. BP_DECLINED as bpi_mirror_rows. */
int32_t bpi_mirror_cache_row(struct bp_session *s, int32_t layer, bool index, uint32_t seq, uint32_t pos, float *out,
                             struct bp_error *err);
/* The position of a token slot in a sequence, -1: it is not one of its. */
int32_t bpi_mirror_slot_pos(const struct bp_session *s, uint32_t seq, int32_t slot);
uint32_t bpi_mirror_kv_dtype(const struct bp_session *s);

#endif
