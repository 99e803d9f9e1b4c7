/* variant.c - one small plugin in many shapes: a good provider of bp.coll for one rank, and what can be wrong with it.
 * CMakeLists.txt beside this file says which shape each macro makes. The note and the entry are written out by hand,
 * because the helpers of sdk.h cannot lie. SPDX-License-Identifier: MIT */
#include "backplane/sdk.h"
#include "backplane/slot_coll.h"

#include <locale.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#ifndef NAME
#error "NAME is the plugin's name"
#endif
#ifndef NOTE_MINOR
#define NOTE_MINOR BP_ABI_MINOR
#endif
#ifndef NOTE_IFACES
#define NOTE_IFACES "bp.coll"
#endif
#ifndef DESC_NAME
#define DESC_NAME NAME
#endif
#ifndef DESC_VERSION
#define DESC_VERSION "1.2.3"
#endif
#ifndef DESC_MINOR
#define DESC_MINOR BP_ABI_MINOR
#endif
#ifndef LEVEL
#define LEVEL BP_V_YES
#endif

/* Proof that code of this file ran: nothing else in the tests sets this variable. */
__attribute__((constructor)) static void constructed(void)
{
    (void)setenv("BP_TEST_RAN_" NAME, "1", 1);
}

#ifdef MISSING_SYMBOL
extern int bp_test_symbol_that_nobody_has(void);
#endif
#ifdef NEEDS_HELPER
extern int bp_test_helper(void);
#endif

struct state {
    const struct bp_host *host;
    int64_t number;
};

static int32_t supports(void *self, const void *problem, struct bp_verdict *v)
{
    (void)self;
    (void)problem;
    v->level = LEVEL;
    if (v->level == BP_V_NO && v->cap_reasons > 0) {
        memset(&v->reasons[0], 0, sizeof v->reasons[0]);
        v->reasons[0].code = BP_R_TOPOLOGY;
        v->reasons[0].critical = 1;
        memcpy(v->reasons[0].text, "not today", 10);
        v->n_reasons = 1;
    }
    return BP_OK;
}

static int32_t workspace(void *self, const void *problem, struct bp_workspace *out,
                         struct bp_error *err)
{
    (void)self;
    (void)problem;
    (void)err;
    out->align = 64;
    return BP_OK;
}

static int32_t tensors(void *self, uint32_t slot, const void *args, struct bp_tensor *t,
                       uint32_t *n)
{
    (void)self;
    (void)slot;
    (void)args;
    (void)t;
    *n = 0;
    return BP_OK;
}

static int32_t comm_create(void *self, const struct bp_coll_setup *s, void **out,
                           struct bp_error *err)
{
    (void)s;
    (void)err;
    *out = self;
    return BP_OK;
}

static void comm_destroy(void *self, void *comm)
{
    (void)self;
    (void)comm;
}

static int32_t reduce(void *self, const struct bp_launch *l, const struct bp_coll_args *a,
                      struct bp_error *err)
{
    (void)self;
    (void)l;
    (void)a;
    (void)err;
    return BP_OK; /* the sum over one rank, and its broadcast, is what is there */
}

static int32_t gather(void *self, const struct bp_launch *l, const struct bp_coll_args *a,
                      struct bp_error *err)
{
    (void)self;
    (void)l;
    int64_t n = 4;
    for (uint32_t i = 0; i < a->x.ndim; ++i) n *= a->x.dim[i];
    (void)err;
    memcpy(a->y.data, a->x.data, (size_t)n);
    return BP_OK;
}

static int32_t barrier(void *self, const struct bp_launch *l, void *comm, struct bp_error *err)
{
    (void)self;
    (void)l;
    (void)comm;
    (void)err;
    return BP_OK;
}

static int32_t async_error(void *self, void *comm, struct bp_error *err)
{
    (void)self;
    (void)comm;
    (void)err;
    return BP_OK;
}

static const struct bp_coll_ops ops_table = {.base = {.h = BP_HDR(struct bp_coll_ops, abort),
                                                      .iface = "bp.coll",
                                                      .iface_major = BP_ABI_MAJOR,
                                                      .iface_minor = BP_ABI_MINOR,
                                                      .supports = supports,
                                                      .workspace = workspace,
                                                      .tensors = tensors},
                                             .comm_create = comm_create,
                                             .comm_destroy = comm_destroy,
                                             .all_reduce = reduce,
                                             .all_gather = gather,
                                             .broadcast = reduce,
                                             .barrier = barrier,
                                             .async_error = async_error,
                                             .abort = comm_destroy};

static int32_t open_plugin(const struct bp_host *host, void **plugin, struct bp_error *err)
{
#ifdef OPEN_FAILS
    (void)host;
    (void)plugin;
    err->code = BP_E_DEVICE;
    memcpy(err->msg, "the chip is on holiday", 23);
    return BP_E_DEVICE;
#else
    struct state *s = host->mem_alloc(host->ctx, sizeof *s, 64);
    (void)err;
    if (s == NULL) return BP_E_NOMEM;
    s->host = host;
    s->number = 7;
    (void)host->cfg_i64(host->ctx, "number", &s->number);
#ifdef CHANGES_LOCALE
    (void)setlocale(LC_ALL, "C.UTF-8");
#endif
#ifdef CHANGES_SIGNALS
    (void)signal(SIGUSR2, SIG_IGN);
#endif
    *plugin = s;
    return BP_OK;
#endif
}

static void close_plugin(void *plugin)
{
    struct state *s = plugin;
    s->host->mem_free(s->host->ctx, s);
}

static int32_t op_create(void *plugin, const struct bp_op_entry *entry, const struct bp_device *dev,
                         const struct bp_op_ref *inner, uint32_t n_inner, struct bp_op_ref *out,
                         struct bp_error *err)
{
    (void)entry;
    (void)dev;
    (void)inner;
    (void)n_inner;
    (void)err;
#ifdef MISSING_SYMBOL
    if (bp_test_symbol_that_nobody_has() != 0) return BP_DECLINED;
#endif
#ifdef NEEDS_HELPER
    if (bp_test_helper() != 0) return BP_DECLINED;
#endif
    out->vt = &ops_table.base;
    out->self = plugin;
    return BP_OK;
}

static void op_destroy(void *plugin, struct bp_op_ref *op)
{
    (void)plugin;
    op->vt = NULL;
}

static const struct bp_cfg_key keys[] = {{"number", "int", "7", "a number", 1, 100}};
static const struct bp_op_entry offers[] = {
    {"bp.coll", "one", BP_ABI_MAJOR, BP_ABI_MINOR, 0, 0},
#ifdef OFFERS_MORE
    {"bp.moe", "none", BP_ABI_MAJOR, BP_ABI_MINOR, 0, 0},
#endif
};

static const struct bp_plugin_desc desc = {.h = BP_HDR(struct bp_plugin_desc, op_destroy),
                                           .abi_major = BP_ABI_MAJOR,
                                           .abi_minor = DESC_MINOR,
                                           .min_host_minor = BP_ABI_MINOR,
                                           .kind = BP_KIND_BACKEND,
                                           .name = DESC_NAME,
                                           .version = DESC_VERSION,
                                           .vendor = "test",
                                           .license = "MIT",
                                           .summary = "for tests",
                                           .build_id = "",
                                           .cfg = keys,
                                           .n_cfg = 1,
                                           .cfg_stride = sizeof keys[0],
                                           .ops = offers,
                                           .n_ops = BP_LEN(offers),
                                           .ops_stride = sizeof offers[0],
                                           .open = open_plugin,
                                           .close = close_plugin,
                                           .op_create = op_create,
                                           .op_destroy = op_destroy};

#ifndef NO_NOTE
__attribute__((used, section(BP_NOTE_SECTION),
               aligned(4))) static const struct bp_note_record note = {
    sizeof(BP_NOTE_OWNER),
    sizeof(struct bp_plugin_note),
    BP_NOTE_PLUGIN,
    BP_NOTE_OWNER,
    {BP_ABI_MAJOR, NOTE_MINOR, BP_KIND_BACKEND, 0, NAME, "1.2.3", NOTE_IFACES}};
#endif

#ifdef NO_ENTRY
#define VISIBLE
#else
#define VISIBLE BP_EXPORT
#endif
VISIBLE const struct bp_plugin_desc *bp_plugin_query_v1(const struct bp_query *q);
const struct bp_plugin_desc *bp_plugin_query_v1(const struct bp_query *q)
{
#ifdef QUERY_NULL
    return q == NULL ? &desc : NULL;
#else
    return bp_query_fits(q) ? &desc : NULL;
#endif
}
