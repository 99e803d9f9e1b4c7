/* ref_coll.c - collectives of a world of one: nothing to wait for, a gather is a copy.
 * Not here: more ranks; a provider that moves data between them serves those.
 * Threads: as slot_coll.h says. SPDX-License-Identifier: MIT */
#include "backplane/slot_coll.h"

#include <string.h>
#include "ref/ref_priv.h"

static int32_t coll_supports(void *self, const void *problem, struct bp_verdict *v)
{
    (void)self;
    const struct bp_coll_problem *p = problem;
    bpi_ref_check_header(v, &p->h, BP_END(struct bp_coll_problem, max_elems));
    if (v->n_reasons != 0) return BP_OK;
    if (p->world != 1) {
        bpi_ref_refuse(
            v, BP_R_TOPOLOGY, "world", p->world, 1, 1,
            "one rank only; more need a coll provider that connects them (threads, MPI or NCCL)");
    } else if (p->rank != 0) {
        bpi_ref_refuse(v, BP_R_TOPOLOGY, "rank", p->rank, 0, 0, "a world of one has rank 0 only");
    }
    if (p->dtype == BP_DT_NONE || p->dtype > BP_DT_U32) {
        bpi_ref_refuse(v, BP_R_DTYPE, "dtype", p->dtype, BP_DT_F32, BP_DT_U32, "unknown dtype");
    }
    bpi_ref_verdict_done(v);
    return BP_OK;
}

static int32_t coll_workspace(void *self, const void *problem_max, struct bp_workspace *out,
                              struct bp_error *err)
{
    (void)self;
    (void)problem_max;
    (void)err;
    out->persistent_bytes = out->plan_bytes = out->scratch_bytes = out->pinned_bytes = 0;
    out->align = 64;
    out->persistent_zeroed = 0;
    return BP_OK;
}

static int32_t coll_tensors(void *self, uint32_t slot, const void *args, struct bp_tensor *t,
                            uint32_t *n)
{
    (void)self;
    const struct bp_coll_args *a = args;
    struct bp_tensor ports[2];
    uint32_t count = 0;
    if (slot > BP_COLL_OP_BROADCAST) return BP_E_ARG;
    ports[count++] = bpi_ref_port(&a->x, "x", slot == BP_COLL_OP_ALL_GATHER ? BP_IN : BP_INOUT);
    if (slot == BP_COLL_OP_ALL_GATHER) ports[count++] = bpi_ref_port(&a->y, "y", BP_OUT);
    bpi_ref_list(ports, count, t, n);
    return BP_OK;
}

struct comm {
    uint32_t world, reserved;
};

static int32_t comm_create(void *self, const struct bp_coll_setup *s, void **out,
                           struct bp_error *err)
{
    if (s->world != 1 || s->rank != 0) {
        return bpi_fail(err, BP_DECLINED, "ref", "coll.comm_create",
                        "rank %u of %u cannot join: ref serves a world of one; choose a coll "
                        "provider that connects "
                        "ranks",
                        s->rank, s->world);
    }
    struct comm *c = bpi_ref_alloc(self, 1, sizeof *c);
    if (c == NULL) return bpi_fail_nomem(err, "ref", sizeof *c);
    c->world = 1;
    *out = c;
    return BP_OK;
}

static void comm_destroy(void *self, void *comm)
{
    bpi_ref_free(self, comm);
}

/* The sum over one rank, or what one rank sends to itself. */
static int32_t coll_nothing(void *self, const struct bp_launch *l, const struct bp_coll_args *a,
                            struct bp_error *err)
{
    (void)self;
    (void)l;
    (void)a;
    (void)err;
    return BP_OK;
}

static int32_t coll_broadcast(void *self, const struct bp_launch *l, const struct bp_coll_args *a,
                              struct bp_error *err)
{
    if (a->root != 0) {
        return bpi_fail(err, BP_E_ARG, "ref", "coll.broadcast",
                        "root %u does not exist in a world of one", a->root);
    }
    return coll_nothing(self, l, a, err);
}

static int32_t coll_all_gather(void *self, const struct bp_launch *l, const struct bp_coll_args *a,
                               struct bp_error *err)
{
    (void)self;
    (void)l;
    int64_t n = 1;
    for (uint32_t d = 0; d < a->x.ndim; ++d) n *= a->x.dim[d];
    if (a->x.dtype != a->y.dtype) {
        return bpi_fail(err, BP_E_ARG, "ref", "coll.all_gather", "x has dtype %u and y %u",
                        a->x.dtype, a->y.dtype);
    }
    if (n > 0 && a->x.data != a->y.data)
        memcpy(a->y.data, a->x.data, (size_t)(n * bpi_ref_dtype_bytes(a->x.dtype)));
    return BP_OK;
}

static int32_t coll_barrier(void *self, const struct bp_launch *l, void *comm, struct bp_error *err)
{
    (void)self;
    (void)l;
    (void)comm;
    (void)err;
    return BP_OK;
}

static int32_t coll_async_error(void *self, void *comm, struct bp_error *err)
{
    (void)self;
    (void)comm;
    (void)err;
    return BP_OK;
}

/* No call of a world of one is ever in flight. */
static void coll_abort(void *self, void *comm)
{
    (void)self;
    (void)comm;
}

// clang-format off
static const struct bp_coll_ops ops = {
    .base = {.h = BP_HDR(struct bp_coll_ops, abort), .iface = "bp.coll", .iface_major = 0, .iface_minor = 1,
             .supports = coll_supports, .workspace = coll_workspace, .tensors = coll_tensors},
    .comm_create = comm_create, .comm_destroy = comm_destroy, .all_reduce = coll_nothing,
    .all_gather = coll_all_gather, .broadcast = coll_broadcast, .barrier = coll_barrier,
    .async_error = coll_async_error, .abort = coll_abort,
};
// clang-format on

const struct bp_op_base *bpi_ref_coll_ops(void)
{
    return &ops.base;
}
