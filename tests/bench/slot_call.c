/* slot_call.c - what a slot call through the engine's bound op costs over calling the function itself.
 * The callee does next to nothing and lies where the compiler cannot see through it, as in a plugin. Prints the median,
 * the lowest and the highest of many batches, in nanoseconds a call.
 * Usage: bench_slot_call [batches [folder of backplane-trace.so]]. SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "engine/session_priv.h"
#include "loader/plugin_file.h"

enum { CALLS = 200000, MAX_BATCHES = 1001 };

struct counter {
    uint64_t n;
    struct bp_op_ref inner;
};

static int32_t yes(void *self, const void *problem, struct bp_verdict *v)
{
    (void)self;
    (void)problem;
    v->level = BP_V_YES;
    return BP_OK;
}

static int32_t no_workspace(void *self, const void *problem, struct bp_workspace *out,
                            struct bp_error *err)
{
    (void)self;
    (void)problem;
    (void)out;
    (void)err;
    return BP_OK;
}

static int32_t no_tensors(void *self, uint32_t slot, const void *args, struct bp_tensor *t,
                          uint32_t *n)
{
    (void)self;
    (void)slot;
    (void)args;
    (void)t;
    *n = 0;
    return BP_OK;
}

static int32_t run(void *self, const struct bp_launch *l, const struct bp_mla_decode_args *a,
                   struct bp_error *err)
{
    struct counter *c = self;
    (void)l;
    (void)a;
    (void)err;
    c->n++;
    return BP_OK;
}

static int32_t plan(void *self, const struct bp_launch *l, const struct bp_mla_decode_meta *m,
                    struct bp_error *err)
{
    struct counter *c = self;
    (void)l;
    (void)m;
    (void)err;
    c->n++;
    return BP_OK;
}

static int32_t wrapped_plan(void *self, const struct bp_launch *l,
                            const struct bp_mla_decode_meta *m, struct bp_error *err)
{
    struct counter *c = self;
    return ((const struct bp_mla_decode_ops *)c->inner.vt)->plan(c->inner.self, l, m, err);
}

static const struct bp_mla_decode_ops backend_ops = {
    .base = {.h = BP_HDR(struct bp_mla_decode_ops, run),
             .iface = "bp.mla.decode",
             .iface_major = BP_ABI_MAJOR,
             .iface_minor = BP_ABI_MINOR,
             .supports = yes,
             .workspace = no_workspace,
             .tensors = no_tensors},
    .plan = plan,
    .run = run};
static const struct bp_mla_decode_ops wrapper_ops = {
    .base = {.h = BP_HDR(struct bp_mla_decode_ops, run),
             .iface = "bp.mla.decode",
             .iface_major = BP_ABI_MAJOR,
             .iface_minor = BP_ABI_MINOR},
    .plan = wrapped_plan};

/* ---- two plugins ---- */

static int32_t plugin_open(const struct bp_host *host, void **plugin, struct bp_error *err)
{
    (void)err;
    *plugin = (void *)(uintptr_t)host;
    return BP_OK;
}

static void plugin_close(void *plugin)
{
    (void)plugin;
}

static int32_t op_create(void *plugin, const struct bp_op_entry *entry, const struct bp_device *dev,
                         const struct bp_op_ref *inner, uint32_t n_inner, struct bp_op_ref *out,
                         struct bp_error *err)
{
    (void)plugin;
    (void)entry;
    (void)dev;
    struct counter *c = calloc(1, sizeof *c);
    if (c == NULL) return bpi_fail_nomem(err, "bench", sizeof *c);
    if (n_inner == 1) c->inner = inner[0];
    out->vt = n_inner == 1 ? &wrapper_ops.base : &backend_ops.base;
    out->self = c;
    return BP_OK;
}

static void op_destroy(void *plugin, struct bp_op_ref *op)
{
    (void)plugin;
    free(op->self);
}

static const struct bp_op_entry entries[] = {{"bp.mla.decode", "bench", 0, BP_ABI_MINOR, 0, 0}};

#define DESC(kind_, name_)                                                                         \
    {                                                                                              \
        .h = BP_HDR(struct bp_plugin_desc, op_destroy), .abi_major = BP_ABI_MAJOR,                 \
        .abi_minor = BP_ABI_MINOR, .kind = (kind_), .name = name_, .version = "1",                 \
        .vendor = "bench", .license = "MIT", .summary = "", .build_id = "", .ops = entries,        \
        .n_ops = 1, .ops_stride = sizeof entries[0], .open = plugin_open, .close = plugin_close,   \
        .op_create = op_create, .op_destroy = op_destroy                                           \
    }
static const struct bp_plugin_desc backend_desc = DESC(BP_KIND_BACKEND, "backend");
static const struct bp_plugin_desc wrapper_desc = DESC(BP_KIND_WRAPPER, "wrapper");

static const struct bp_plugin_desc *query_backend(const struct bp_query *q)
{
    (void)q;
    return &backend_desc;
}

static const struct bp_plugin_desc *query_wrapper(const struct bp_query *q)
{
    (void)q;
    return &wrapper_desc;
}

/* ---- measuring ---- */

static double now_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

enum how { DIRECT, BOUND, BOUND_LAUNCH, WRAPPED_SLOT };

/* Noinline through volatile pointers: neither function nor op may be known at compile time. */
static double batch(enum how how, const struct bpi_bound *volatile op_in, struct bp_session *s,
                    struct counter *c)
{
    int32_t (*volatile fn_in)(void *, const struct bp_launch *, const struct bp_mla_decode_args *,
                              struct bp_error *) = run;
    int32_t (*fn)(void *, const struct bp_launch *, const struct bp_mla_decode_args *,
                  struct bp_error *) = fn_in;
    const struct bpi_bound *op = op_in;
    struct bp_mla_decode_args a = {.h = BP_HDR(struct bp_mla_decode_args, reserved)};
    struct bp_mla_decode_meta m = {.h = BP_HDR(struct bp_mla_decode_meta, row_kv_len_host)};
    struct bp_launch l = {.h = BP_HDR(struct bp_launch, reserved)};
    int32_t rc = 0;
    const double begin = now_ns();
    for (int i = 0; i < CALLS; ++i) {
        __asm__ volatile(
            "" ::
                : "memory"); /* as little is known at each call as between two layers */
        if (how == DIRECT) rc |= fn(c, &l, &a, NULL);
        if (how == BOUND) rc |= BPI_CALL(op, bp_mla_decode_ops, run, &l, &a, NULL);
        if (how == BOUND_LAUNCH) {
            l = bpi_step_launch(s, op, i & 31);
            rc |= BPI_CALL(op, bp_mla_decode_ops, run, &l, &a, NULL);
        }
        if (how == WRAPPED_SLOT) rc |= BPI_CALL(op, bp_mla_decode_ops, plan, &l, &m, NULL);
    }
    const double ns = (now_ns() - begin) / CALLS;
    return rc == 0 ? ns : -1;
}

static double report(const char *what, double *ns, size_t n, double direct)
{
    qsort(ns, n, sizeof *ns, by_value);
    const double median = ns[n / 2];
    printf("%-58s %8.2f %8.2f %8.2f", what, median, ns[0], ns[n - 1]);
    if (direct >= 0) printf(" %+8.2f", median - direct);
    printf("\n");
    return median;
}

static int32_t bind(const char *ini, struct bpi_config **config, struct bpi_loader **loader,
                    struct bpi_bound *out, struct bp_error *err)
{
    struct bpi_candidate *cands = calloc(4, sizeof *cands);
    struct bp_mla_problem p = {.h = BP_HDR(struct bp_mla_problem, type_v)};
    struct bp_op_ref ref;
    size_t n = 0, chosen = 0;
    if (cands == NULL) return bpi_fail_nomem(err, "bench", 4 * sizeof *cands);
    int32_t rc = bpi_config_create(config, err);
    if (rc == BP_OK) rc = bpi_config_load_text(*config, ini, strlen(ini), "bench", err);
    struct bpi_loader_env env = {.config = *config};
    if (rc == BP_OK) rc = bpi_loader_create(&env, loader, err);
    if (rc == BP_OK) rc = bpi_loader_register(*loader, query_backend, err);
    if (rc == BP_OK) rc = bpi_loader_register(*loader, query_wrapper, err);
    if (rc == BP_OK && bpi_config_str(*config, "engine", "plugin_path")[0] != '\0')
        rc = bpi_loader_scan(*loader, true, err);
    if (rc == BP_OK)
        rc = bpi_loader_choose(*loader, "mla.decode", "bp.mla.decode", 0, NULL, &p, cands, 4, &n,
                               &chosen, &ref, err);
    free(cands);
    if (rc != BP_OK) return rc;
    const struct bpi_flat_op *flat = bpi_loader_flat(*loader, &ref);
    *out = (struct bpi_bound){.vt = flat->vt, .self = flat->self, .ref = ref};
    return BP_OK;
}

int main(int argc, char **argv)
{
    size_t n = argc > 1 ? strtoul(argv[1], NULL, 10) : 101;
    if (n < 3 || n > MAX_BATCHES) n = 101;
    struct bpi_config *configs[3] = {NULL, NULL, NULL};
    struct bpi_loader *loaders[3] = {NULL, NULL, NULL};
    struct bpi_bound ops[3];
    char traced[4096];
    struct bp_error err = BP_ERROR_INIT;
    struct counter counter = {0};
    static double ns[7][MAX_BATCHES];
    struct bp_session *s = calloc(1, sizeof *s);
    int32_t rc = s == NULL;
    if (rc == 0) rc = bind("", &configs[0], &loaders[0], &ops[0], &err);
    if (rc == 0)
        rc = bind("[wrap]\nmla.decode = wrapper\n", &configs[1], &loaders[1], &ops[1], &err);
    if (rc == 0 && argc > 2) {
        (void)snprintf(traced, sizeof traced,
                       "[engine]\nplugin_path = %s\n[wrap]\nmla.decode = trace\n"
                       "[plugin.trace]\nout =\n",
                       argv[2]);
        rc = bind(traced, &configs[2], &loaders[2], &ops[2], &err);
    }
    if (rc != 0) {
        fprintf(stderr, "bench_slot_call: %s\n", err.msg);
        return EXIT_FAILURE;
    }
    for (size_t i = 0; i < n; ++i) { /* in turn, so that a slow moment hits all alike */
        ns[0][i] = batch(DIRECT, NULL, s, &counter);
        ns[1][i] = batch(BOUND, &ops[0], s, NULL);
        ns[2][i] = batch(BOUND, &ops[1], s, NULL);
        ns[3][i] = batch(BOUND_LAUNCH, &ops[0], s, NULL);
        ns[4][i] = batch(BOUND_LAUNCH, &ops[1], s, NULL);
        ns[5][i] = batch(WRAPPED_SLOT, &ops[1], s, NULL);
        if (argc > 2) ns[6][i] = batch(WRAPPED_SLOT, &ops[2], s, NULL);
    }
    printf("%zu batches of %d calls, nanoseconds a call\n%-58s %8s %8s %8s %8s\n", n, CALLS, "",
           "median", "lowest", "highest", "over");
    const double direct = report("direct call", ns[0], n, -1);
    report("bound op", ns[1], n, direct);
    report("bound op, a wrapper around another slot", ns[2], n, direct);
    report("bound op, with its launch filled", ns[3], n, direct);
    report("the same, a wrapper around another slot", ns[4], n, direct);
    report("bound op, the slot itself in a wrapper that passes it on", ns[5], n, direct);
    if (argc > 2) report("bound op, the slot itself in trace", ns[6], n, direct);
    for (int i = 0; i < 3; ++i) {
        bpi_loader_destroy(loaders[i]);
        bpi_config_destroy(configs[i]);
    }
    free(s);
    return EXIT_SUCCESS;
}
