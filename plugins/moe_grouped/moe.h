/* moe.h - the parts of moe_grouped: an op instance, the experts of a layer, and the functions that live in files of
 * their own.
 * Threads: as slot_moe.h says. SPDX-License-Identifier: MIT */
#ifndef MOE_H
#define MOE_H

#include <backplane/cuda/host.h>
#include <backplane/sdk.h>

#include "kernels/moe_kernels.h"

#define MOE_NAME "moe_grouped"

struct moe_plugin {
    const struct bp_host *host;
};

/* One op on one device; dev outlives it. */
struct moe_op {
    struct moe_plugin *plugin;
    const struct bp_device *dev;
    struct bp_cuda_staging staging; /* of prepare() */
    void *stage;                    /* device memory where rows wait to be packed */
    uint64_t stage_bytes;
};

/* A handle: the experts of one layer. n == 0 or n_ff == 0: none of that kind. */
struct moe_layer {
    struct moe_experts routed, shared;
    void *memory[6];
    uint64_t n_bytes;
};

/* weights.c */
int32_t moe_prepare(void *self, const struct bp_moe_weights *w, void **out, struct bp_weight_info *info,
                    struct bp_error *err);
void moe_release(void *self, void *weights);
void moe_op_end(struct moe_op *op);

/* run.c */
int32_t moe_workspace(void *self, const void *problem_max, struct bp_workspace *out, struct bp_error *err);
int32_t moe_route(void *self, const struct bp_launch *l, const struct bp_moe_route_args *a, struct bp_error *err);
int32_t moe_run(void *self, const struct bp_launch *l, const struct bp_moe_run_args *a, struct bp_error *err);

/* supports.c */
int32_t moe_supports(void *self, const void *problem, struct bp_verdict *v);
/* Elements and bytes of a block of a GGUF type; 0 elements: not served. */
void moe_block(uint32_t type, int64_t *elems, int64_t *n_bytes);

#endif
