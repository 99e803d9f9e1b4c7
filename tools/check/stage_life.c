/* stage_life.c - stage 4: open, close, op_create, op_destroy again and again, two at once, with host calls that fail.
 * SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kit.h"
#include "kit_device.h"
#include "kit_env.h"
#include "kit_guard.h"
#include "kit_problem.h"

enum { CYCLES = 100, MAX_OPS = 32, MAX_INJECTED = 400 };

struct life {
    struct kit *k;
    const struct bp_plugin_desc *desc;
    struct kit_plugin reference;
    struct bp_op_ref inner[MAX_OPS]; /* of the reference, for wrappers */
    uint32_t n_ops;
};

struct instance {
    struct kit_host host;
    void *self;
    struct bp_op_ref ops[MAX_OPS];
    int32_t rc;
    struct bp_error err;
    const char *where;
    bool open;
};

/* Names the function that is about to be called; the rest of the place stays. */
static void at_op(struct life *l, const char *op)
{
    (void)snprintf(l->k->place->op, sizeof l->k->place->op, "%s", op);
}

/* Opens an instance with all its ops on a host that was set up. false: n->rc, n->err, n->where; nothing is open. */
static bool begin(struct life *l, struct instance *n)
{
    n->err = (struct bp_error)BP_ERROR_INIT;
    n->where = "open";
    memset(n->ops, 0, sizeof n->ops);
    at_op(l, "open");
    kit_enter(l->k);
    n->rc = l->desc->open(&n->host.table, &n->self, &n->err);
    n->open = n->rc == BP_OK;
    for (uint32_t i = 0; n->open && i < l->n_ops; ++i) {
        const bool wrapper = l->desc->kind == BP_KIND_WRAPPER;
        if (wrapper && l->inner[i].vt == NULL) continue;
        n->where = "op_create";
        at_op(l, n->where);
        n->rc = l->desc->op_create(
            n->self, kit_op_at(l->desc, i), wrapper ? kit_host_device() : kit_device_of(l->k),
            wrapper ? &l->inner[i] : NULL, wrapper ? 1 : 0, &n->ops[i], &n->err);
        if (n->rc == BP_OK) continue;
        n->ops[i] = (struct bp_op_ref){NULL, NULL};
        if (n->rc == BP_DECLINED) continue; /* not on this device */
        while (i-- > 0) {
            if (n->ops[i].vt != NULL) l->desc->op_destroy(n->self, &n->ops[i]);
        }
        l->desc->close(n->self);
        n->open = false;
        break;
    }
    kit_leave(l->k);
    n->err.msg[sizeof n->err.msg - 1] = '\0';
    return n->open;
}

static void end(struct life *l, struct instance *n)
{
    at_op(l, "op_destroy");
    kit_enter(l->k);
    for (uint32_t i = l->n_ops; i-- > 0;) {
        if (n->ops[i].vt != NULL) l->desc->op_destroy(n->self, &n->ops[i]);
    }
    at_op(l, "close");
    l->desc->close(n->self);
    kit_leave(l->k);
    n->open = false;
}

static void check_host(struct life *l, struct instance *n, const char *after)
{
    if (n->host.live_blocks != 0)
        (void)kit_fail(l->k, "4.2", "", after, NULL, "%lld blocks of mem_alloc are left",
                       (long long)n->host.live_blocks);
    if (n->host.n_free_unknown != 0)
        (void)kit_fail(l->k, "4.12", "", after, NULL,
                       "%llu calls of mem_free with a pointer that is no block, or is one no more",
                       (unsigned long long)n->host.n_free_unknown);
    const char *name;
    size_t n_bytes;
    int64_t at;
    if (kit_guard_any_broken(&n->host, &name, &n_bytes, &at))
        (void)kit_fail(l->k, "6.10", "", after, NULL,
                       "byte %lld of a block of %zu bytes of mem_alloc was written", (long long)at,
                       n_bytes);
}

/* Waits a moment for threads that are about to end. */
static struct kit_counts settled(const struct kit_counts *before)
{
    struct kit_counts c = kit_counts_now();
    for (int i = 0; i < 50 && c.threads > before->threads; ++i) {
        (void)nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
        c = kit_counts_now();
    }
    return c;
}

static bool cycle(struct life *l)
{
    struct instance n;
    kit_host_init(&n.host, l->k->o->sets, l->k->o->n_sets);
    kit_at(l->k, "4.10", "", "open and close", "opening and closing");
    bool good = begin(l, &n);
    if (good)
        end(l, &n);
    else
        (void)kit_fail(l->k, "4.1", "", n.where, NULL, "%s returned %s: %.200s", n.where,
                       kit_status_name(n.rc), n.err.msg);
    check_host(l, &n, "close");
    kit_host_done(&n.host);
    return good;
}

static void cycles(struct life *l)
{
    if (!cycle(l)) return; /* the first may load what stays */
    (void)cycle(l);
    const struct kit_counts before = kit_counts_now();
    for (int i = 0; i < CYCLES; ++i) {
        if (!cycle(l)) return;
    }
    const struct kit_counts after = settled(&before);
    if (after.threads > before.threads)
        (void)kit_fail(l->k, "4.4", "", "close", NULL,
                       "%d threads more than before, after %d times",
                       after.threads - before.threads, CYCLES);
    if (after.files > before.files)
        (void)kit_fail(l->k, "4.3", "", "close", NULL, "%d files more than before, after %d times",
                       after.files - before.files, CYCLES);
    if (after.mappings > before.mappings + CYCLES / 4)
        (void)kit_fail(l->k, "4.5", "", "close", NULL,
                       "%d mappings more than before, after %d times",
                       after.mappings - before.mappings, CYCLES);
    if (after.heap > before.heap + CYCLES * 16)
        (void)kit_fail(l->k, "4.2", "", "close", NULL,
                       "%llu bytes of malloc more than before, after %d times",
                       (unsigned long long)(after.heap - before.heap), CYCLES);
}

/* A thread that is there after the very first close stays for ever; cycles() compares with what it finds. */
static void first_close(struct life *l)
{
    const struct kit_counts before = kit_counts_now();
    if (!cycle(l)) return;
    const struct kit_counts after = settled(&before);
    if (after.threads > before.threads)
        (void)kit_fail(l->k, "4.4", "", "close", NULL, "%d threads are left after the first close",
                       after.threads - before.threads);
}

static void two_at_once(struct life *l)
{
    struct instance *a = calloc(1, sizeof *a), *b = calloc(1, sizeof *b);
    struct kit_answer *x = calloc(1, sizeof *x), *y = calloc(1, sizeof *y);
    if (a == NULL || b == NULL || x == NULL || y == NULL) return;
    kit_host_init(&a->host, l->k->o->sets, l->k->o->n_sets);
    kit_host_init(&b->host, l->k->o->sets, l->k->o->n_sets);
    kit_at(l->k, "4.6", "", "two instances", "two instances at once");
    if (begin(l, a) && begin(l, b)) {
        for (uint32_t i = 0; i < l->n_ops; ++i) {
            struct kit_problem p;
            struct kit_rng rng;
            const char *iface = kit_op_at(l->desc, i)->iface;
            /* A wrapper need not answer supports() itself. */
            if (b->ops[i].vt == NULL || b->ops[i].vt->supports == NULL ||
                kit_iface_of(iface) == NULL)
                continue;
            kit_rng_seed(&rng, l->k->o->seed);
            kit_problem_make(iface, &rng, 0, &p);
            kit_problem_link(&p, iface);
            kit_ask(&b->ops[i], &p, x);
            if (a->ops[i].vt != NULL) {
                l->desc->op_destroy(a->self, &a->ops[i]);
                a->ops[i] = (struct bp_op_ref){NULL, NULL};
            }
            kit_ask(&b->ops[i], &p, y);
            if (x->verdict.level != y->verdict.level ||
                x->verdict.n_reasons != y->verdict.n_reasons)
                (void)kit_fail(l->k, "4.6", iface, "supports", NULL,
                               "another answer once the other instance's op is gone");
        }
        end(l, a);
        end(l, b);
        check_host(l, a, "close of the first of two");
        check_host(l, b, "close of the second of two");
    } else if (a->open) {
        (void)kit_fail(l->k, "4.6", "", b->where, NULL, "the second instance: %s: %.200s",
                       kit_status_name(b->rc), b->err.msg);
        end(l, a);
    }
    kit_host_done(&a->host);
    kit_host_done(&b->host);
    free(a);
    free(b);
    free(x);
    free(y);
}

/* One run with the n-th call of a kind failing. false: there was no n-th call. */
static bool injected(struct life *l, bool alloc, uint64_t at, int32_t rc)
{
    struct instance n;
    char what[64];
    (void)snprintf(what, sizeof what, "%s %llu fails", alloc ? "mem_alloc" : "cfg call",
                   (unsigned long long)at);
    kit_host_init(&n.host, l->k->o->sets, l->k->o->n_sets);
    n.host.fail_alloc_at = alloc ? at : 0;
    n.host.fail_cfg_at = alloc ? 0 : at;
    n.host.fail_cfg_rc = rc;
    kit_at(l->k, "4.7", "", "open", "opening while %s", what);
    bool good = begin(l, &n);
    const bool reached = (alloc ? n.host.n_alloc : n.host.n_cfg) >= at;
    if (good) end(l, &n);
    /* A plugin may do without what it did not get; where it fails, it says why. */
    if (!good && (n.err.msg[0] == '\0' || n.rc > 0 || n.rc < BP_E_INTERNAL))
        (void)kit_fail(l->k, "4.7", "", n.where, NULL, "%s: %s returned %d and no sentence", what,
                       n.where, n.rc);
    if (good && reached && !alloc && rc == BP_E_CONFIG)
        (void)kit_fail(l->k, "4.7", "", "open", NULL, "%s with BP_E_CONFIG, and open succeeds",
                       what);
    if (n.host.live_blocks != 0)
        (void)kit_fail(l->k, "4.7", "", n.where, NULL, "%s: %lld blocks are left", what,
                       (long long)n.host.live_blocks);
    kit_host_done(&n.host);
    return reached;
}

static void failures(struct life *l)
{
    uint64_t at;
    for (at = 1; at < MAX_INJECTED && injected(l, true, at, 0); ++at) continue;
    for (at = 1; at < MAX_INJECTED && injected(l, false, at, BP_E_CONFIG); ++at) continue;
    for (at = 1; at < MAX_INJECTED && injected(l, false, at, BP_E_LIMIT); ++at) continue;
}

/* ops that nobody knows are declined, and a NULL error is legal everywhere. */
static void odd_calls(struct life *l)
{
    struct instance n;
    struct bp_op_ref out = {NULL, NULL};
    const struct bp_op_entry unknown = {"bp.no_such_interface", "none", BP_ABI_MAJOR,
                                        BP_ABI_MINOR,           0,      0};
    kit_host_init(&n.host, l->k->o->sets, l->k->o->n_sets);
    if (begin(l, &n)) {
        kit_at(l->k, "4.1", "", "op_create",
               "an interface that does not exist, without an error struct");
        kit_enter(l->k);
        int32_t rc = l->desc->op_create(n.self, &unknown, kit_host_device(), NULL, 0, &out, NULL);
        kit_leave(l->k);
        if (rc == BP_OK)
            (void)kit_fail(l->k, "4.1", "", "op_create", "an unknown interface is refused",
                           "op_create of `bp.no_such_interface` succeeds");
        end(l, &n);
    }
    kit_host_done(&n.host);
}

void kit_stage_life(struct kit *k)
{
    struct life *l = calloc(1, sizeof *l);
    char why[300];
    if (l == NULL) return;
    (void)kit_device_open(k, why, sizeof why);
    struct kit_settings *settings = kit_settings_take();
    l->k = k;
    l->desc = kit_descriptor(k);
    if (l->desc == NULL) return;
    kit_settings_check(k, settings, "dlopen and query");
    settings = kit_settings_take();
    l->n_ops = l->desc->n_ops < MAX_OPS ? l->desc->n_ops : MAX_OPS;
    if (l->desc->kind == BP_KIND_WRAPPER && kit_open_reference(k, &l->reference)) {
        for (uint32_t i = 0; i < l->n_ops; ++i)
            (void)kit_make_op(k, &l->reference, kit_op_at(l->desc, i)->iface, kit_host_device(),
                              NULL, &l->inner[i]);
    }
    first_close(l);
    cycles(l);
    two_at_once(l);
    failures(l);
    odd_calls(l);
    kit_settings_check(k, settings, "open and close");
    kit_check_spill(k);
}
