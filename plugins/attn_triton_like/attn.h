/* attn.h - what the host parts of attn_triton_like share: plugin and op state, checks of ports and pools, layouts.
 * Not here: kernels (kernels/), the work list (plan.h). SPDX-License-Identifier: MIT */
#ifndef ATTN_H
#define ATTN_H

#include <backplane/cuda/host.h>
#include <backplane/sdk.h>

#include "kernels/launch.h"
#include "plan.h"

#define ATTN_NAME "attn_triton_like"

struct attn_plugin {
    const struct bp_host *host;
    int64_t split_keys; /* key of the INI: keys of a part, 0 automatic */
};

/* One op on one device; dev outlives it. */
struct attn_op {
    struct attn_plugin *plugin;
    const struct bp_device *dev;
    struct attn_common *common; /* bp.mla.common only */
    uint32_t n_head;            /* bp.mla.decode: the most of any problem sized */
    uint32_t reserved;
};

extern const struct bp_mla_common_ops attn_common_ops;
extern const struct bp_mla_prefill_ops attn_prefill_ops;
extern const struct bp_mla_decode_ops attn_decode_ops;
extern const struct bp_mla_index_ops attn_index_ops;

/* State of bp.mla.common: made by op_create, ended by op_destroy. */
int32_t attn_common_open(struct attn_op *o, struct bp_error *err);
void attn_common_close(struct attn_op *o);

/* The device of the op, for what this thread launches next. */
static inline int32_t attn_use(const struct attn_op *o, const char *op, struct bp_error *err)
{
    return bp_cuda_use(o->dev, err, ATTN_NAME, op);
}

/* ---- checks (ports.c) ---- */

/* The part of supports() that all four share: device, dtypes, capture and determinism up to what is promised. */
void attn_want_problem(struct bp_verdict *v, const struct attn_op *o, const struct bp_mla_problem *p, uint32_t capture,
                       uint32_t determinism);
/* Dimensions of the heads, and that the latent layout is ours; ops that never see the cache take any (cache == 0). */
void attn_want_latent(struct bp_verdict *v, const struct bp_mla_problem *p, int cache);
/* Offers the one layout of this dtype and width, and refuses another. */
void attn_want_layout(struct bp_verdict *v, const char *field, const char *family, uint64_t id, uint64_t width,
                      uint32_t dtype);
/* The i-th layout of a family. */
int32_t attn_layout_at(const char *family, uint64_t width, uint32_t block_tok, uint32_t dtype, uint32_t i,
                       struct bp_kv_layout *out);

/* A tensor of at least d0 rows whose other dimensions are d1 and d2 (0: it has none), of a float dtype or of `dtype`. */
int32_t attn_port(const struct bp_tensor *t, const char *name, uint32_t dtype, int64_t d0, int64_t d1, int64_t d2,
                  const char *op, struct bp_error *err);
/* A pool of rows of `width` numbers in one of the family's layouts. */
int32_t attn_pool_open(const struct bp_tensor *t, const char *family, int64_t width, uint32_t block_tok, const char *op,
                       struct attn_pool *out, struct bp_error *err);
/* A checked tensor as kernels take it. */
struct attn_rows attn_rows_of(const struct bp_tensor *t);
/* Rope tables of n_rope numbers a position. */
int32_t attn_tables(const struct bp_mla_meta *m, int64_t n_rope, const char *op, struct bp_error *err);
/* The status of a launch. */
int32_t attn_launched(int32_t e, const char *op, struct bp_error *err);
/* Scratch too small, or none: how much the call needs. */
int32_t attn_want_scratch(const struct bp_launch *l, uint64_t n_bytes, const char *op, struct bp_error *err);

#endif
