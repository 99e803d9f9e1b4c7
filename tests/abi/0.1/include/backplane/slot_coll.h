/* slot_coll.h - collectives between ranks ("bp.coll" 0.1).
 * Not here: what is sharded (core/model), when to reduce (core/engine). A world of one rank is legal.
 * SPDX-License-Identifier: MIT */
#ifndef BP_SLOT_COLL_H
#define BP_SLOT_COLL_H

#include "backplane/plugin.h"

BP_EXTERN_C_BEGIN

enum bp_coll_op { BP_COLL_OP_ALL_REDUCE = 0, BP_COLL_OP_ALL_GATHER = 1, BP_COLL_OP_BROADCAST = 2 };

struct bp_coll_problem {
    struct bp_hdr h;
    uint32_t world, rank;
    uint32_t dtype;     /* enum bp_dtype */
    uint32_t reserved;
    uint64_t max_elems; /* of the largest call, per rank */
};
BP_NOPAD(struct bp_coll_problem, max_elems);

/* How ranks find each other. key is the same on all ranks of one communicator. */
struct bp_coll_setup {
    struct bp_hdr h;
    uint32_t world, rank;
    const char *key;
};
BP_NOPAD(struct bp_coll_setup, key);

struct bp_coll_args {
    struct bp_hdr h;
    void *comm;
    struct bp_tensor x;  /* ALL_REDUCE, BROADCAST: INOUT; ALL_GATHER: this rank's part, IN; contiguous */
    struct bp_tensor y;  /* ALL_GATHER: (world, x...) OUT, in rank order */
    uint32_t root;       /* BROADCAST */
    uint32_t reserved;
};
BP_NOPAD(struct bp_coll_args, reserved);

struct bp_coll_ops {
    struct bp_op_base base; /* problem: struct bp_coll_problem; tensors(): enum bp_coll_op */

    /* comm_create - joins the communicator; returns when all ranks have. Pre: same setup on all ranks but for rank.
     * Writes: *out. Errors: BP_E_TIMEOUT naming the missing ranks, BP_E_DEVICE. Numeric: none. Threads: one call per
     * rank. Since: 0.1. */
    int32_t (*comm_create)(void *self, const struct bp_coll_setup *s, void **out, struct bp_error *err);
    /* comm_destroy - NULL accepted. Pre: no call in flight. Writes: none. Errors: none. Numeric: none. Threads: the
     * rank's. Since: 0.1. */
    void (*comm_destroy)(void *self, void *comm);
    /* all_reduce - x = sum over ranks. Pre: same shape everywhere. Writes: x. Errors: BP_E_DEVICE, BP_E_TIMEOUT,
     * BP_E_ABORTED. Numeric: the same bits on all ranks. Threads: the rank's. Since: 0.1. */
    int32_t (*all_reduce)(void *self, const struct bp_launch *l, const struct bp_coll_args *a, struct bp_error *err);
    /* all_gather - y = the parts of all ranks in rank order. Pre: same shape everywhere. Writes: y. Errors: as
     * all_reduce. Numeric: bit copy. Threads: the rank's. Since: 0.1. */
    int32_t (*all_gather)(void *self, const struct bp_launch *l, const struct bp_coll_args *a, struct bp_error *err);
    /* broadcast - x of root to all. Pre: same shape everywhere. Writes: x on the others. Errors: as all_reduce.
     * Numeric: bit copy. Threads: the rank's. Since: 0.1. */
    int32_t (*broadcast)(void *self, const struct bp_launch *l, const struct bp_coll_args *a, struct bp_error *err);
    /* barrier - returns when all ranks have called it. Pre: none. Writes: none. Errors: as all_reduce. Numeric: none.
     * Threads: the rank's. Since: 0.1. */
    int32_t (*barrier)(void *self, const struct bp_launch *l, void *comm, struct bp_error *err);
    /* async_error - has an earlier call failed meanwhile? Pre: none. Writes: *err. Errors: that failure's. Numeric:
     * none. Threads: any. Since: 0.1. */
    int32_t (*async_error)(void *self, void *comm, struct bp_error *err);
    /* abort - makes calls in flight on all ranks return BP_E_ABORTED. Pre: none. Writes: none. Errors: none. Numeric:
     * none. Threads: any. Since: 0.1. */
    void (*abort)(void *self, void *comm);
};
BP_NOPAD(struct bp_coll_ops, abort);

BP_EXTERN_C_END
#endif
