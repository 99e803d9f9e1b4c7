/* stage_sizes.c - stage 3: structs end at pages that cannot be touched, at the size of this ABI and beyond it, as an older
 * or a newer host would hand them over; extensions. SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>

#include "kit_bench.h"
#include "kit_guard.h"
#include "kit_problem.h"

enum { N_SIZES = 3, TRIES = 200 };
/* Bytes that a newer minor might have appended. A plugin does not know them, whatever they hold. */
static const uint32_t more[N_SIZES] = {0, 8, 200};

/* A copy of a struct whose last byte lies before a guard page; h.size covers it. */
static void *guarded(const void *from, uint32_t n_bytes, uint32_t extra, const char *name,
                     const void *owner)
{
    unsigned char *p = kit_guard_alloc(n_bytes + extra, 8, KIT_AT_END, 0x6b, name, owner);
    if (p == NULL) return NULL;
    memcpy(p, from, n_bytes);
    ((struct bp_hdr *)(void *)p)->size = n_bytes + extra;
    return p;
}

/* Did a call write behind what this ABI knows of a struct? */
static bool tail_is_whole(struct kit *k, const char *name, const void *p, uint32_t n_bytes,
                          uint32_t extra)
{
    for (uint32_t i = 0; i < extra; ++i) {
        if (((const unsigned char *)p)[n_bytes + i] != 0x6b)
            return kit_fail(k, "3.3", k->iface, name, NULL,
                            "byte %u, behind the %u that this ABI has, was written", n_bytes + i,
                            n_bytes);
    }
    return true;
}

/* ---- host table, error, op ---- */

static void host_tables(struct kit *k, const struct bp_plugin_desc *d)
{
    for (int i = 0; i < N_SIZES; ++i) {
        struct kit_host host;
        const struct bp_error fresh = BP_ERROR_INIT;
        void *plugin = NULL;
        kit_host_init(&host, k->o->sets, k->o->n_sets);
        struct bp_host *table =
            guarded(&host.table, sizeof host.table, more[i], "the host table", k);
        struct bp_error *err = guarded(&fresh, sizeof fresh, more[i], "struct bp_error", k);
        if (table == NULL || err == NULL) return;
        kit_guard_protect(table, false);
        kit_at(k, "3.1", k->iface, "open", "a host table of %u bytes", table->h.size);
        kit_enter(k);
        int32_t rc = d->open(table, &plugin, err);
        kit_leave(k);
        if (rc == BP_OK) {
            kit_enter(k);
            d->close(plugin);
            kit_leave(k);
        } else {
            (void)kit_fail(k, "3.1", k->iface, "open", NULL,
                           "open returned %s with a host table of %u bytes: %.160s",
                           kit_status_name(rc), table->h.size, err->msg);
        }
        (void)tail_is_whole(k, "bp_error", err, sizeof fresh, more[i]);
        kit_host_done(&host);
        (void)kit_guard_free_all(k);
    }
}

/* ---- problems and verdicts ---- */

/* A problem that the op serves; false when there is none among many. */
static bool served_problem(struct kit *k, const struct kit_bench *b, struct kit_problem *p)
{
    struct kit_answer *a = calloc(1, sizeof *a);
    struct kit_rng rng;
    bool found = false;
    if (a == NULL) return false;
    kit_rng_seed(&rng, k->o->seed);
    for (uint32_t i = 0; i < TRIES && !found; ++i) {
        kit_problem_make(b->iface, &rng, i % 24, p);
        kit_problem_link(p, b->iface);
        kit_ask(&b->op, p, a);
        found = a->verdict.level != BP_V_NO;
    }
    free(a);
    return found;
}

/* A verdict with `cap` reasons at a stride, everything at guard pages. */
struct asked {
    struct bp_verdict *v;
    unsigned char *reasons;
    uint32_t stride, cap, extra;
};

static bool ask_guarded(struct kit *k, const struct kit_bench *b, const void *problem, uint32_t cap,
                        uint32_t stride, uint32_t extra, struct asked *out)
{
    struct bp_verdict v = {
        .h = BP_HDR(struct bp_verdict, cost_us), .cap_reasons = cap, .reason_stride = stride};
    *out = (struct asked){.stride = stride, .cap = cap, .extra = extra};
    out->reasons =
        kit_guard_alloc((size_t)cap * stride, 8, KIT_AT_END, 0x6b, "the reasons of a verdict", k);
    v.reasons = cap != 0 ? (struct bp_reason *)(void *)out->reasons : NULL;
    out->v = guarded(&v, sizeof v, extra, "struct bp_verdict", k);
    if (out->v == NULL || out->reasons == NULL) return false;
    kit_enter(k);
    int32_t rc = b->op.vt->supports(b->op.self, problem, out->v);
    kit_leave(k);
    if (rc != BP_OK)
        (void)kit_fail(k, "5.1", k->iface, "supports", NULL, "supports returned %s",
                       kit_status_name(rc));
    int64_t at = 0;
    if (kit_guard_broken(out->v, &at) || kit_guard_broken(out->reasons, &at))
        (void)kit_fail(k, "3.3", k->iface, "supports", NULL,
                       "memory around the verdict was written");
    (void)tail_is_whole(k, "bp_verdict", out->v, sizeof v, extra);
    for (uint32_t i = 0; i < cap;
         ++i) { /* gaps between reasons that are further apart than they are long */
        for (uint32_t c = sizeof(struct bp_reason); c < stride; ++c) {
            if (out->reasons[(size_t)i * stride + c] == 0x6b) continue;
            (void)kit_fail(k, "3.6", k->iface, "supports", NULL,
                           "byte %u of a reason of %zu bytes was written", c,
                           sizeof(struct bp_reason));
            return false;
        }
    }
    return true;
}

static void sizes_of_problem(struct kit *k, const struct kit_bench *b, const struct kit_problem *p)
{
    const struct bp_workspace fresh = {.h = BP_HDR(struct bp_workspace, persistent_zeroed)};
    const struct bp_error clean = BP_ERROR_INIT;
    for (int i = 0; i < N_SIZES; ++i) {
        struct asked a;
        void *q = guarded(&p->p, p->n_bytes, more[i], "struct problem", k);
        struct bp_workspace *ws =
            guarded(&fresh, sizeof fresh, more[N_SIZES - 1 - i], "struct bp_workspace", k);
        struct bp_error *err = guarded(&clean, sizeof clean, 0, "struct bp_error", k);
        if (q == NULL || ws == NULL || err == NULL) return;
        kit_at(k, "3.2", k->iface, "supports", "a problem of %u bytes", p->n_bytes + more[i]);
        if (!ask_guarded(k, b, q, 4, sizeof(struct bp_reason) + 24, more[i], &a)) return;
        if (a.v->level == BP_V_NO)
            (void)kit_fail(k, "3.2", k->iface, "supports",
                           "a longer struct is read as the one that is known",
                           "NO for a problem of %u bytes that is served with %u",
                           p->n_bytes + more[i], p->n_bytes);
        kit_at(k, "3.2", k->iface, "workspace", "a problem of %u bytes", p->n_bytes + more[i]);
        kit_enter(k);
        (void)b->op.vt->workspace(b->op.self, q, ws, err);
        kit_leave(k);
        (void)tail_is_whole(k, "bp_workspace", ws, sizeof fresh, more[N_SIZES - 1 - i]);
        (void)kit_guard_free_all(k);
    }
    /* Shorter ones come from a host of another time: they are refused, or read as far as they go. */
    for (uint32_t n = sizeof(struct bp_hdr); n < p->n_bytes; n += 4) {
        struct asked a;
        unsigned char *q = kit_guard_alloc((n + 7u) & ~7u, 8, KIT_AT_END, 0, "struct problem", k);
        if (q == NULL) return;
        memcpy(q, &p->p, n);
        ((struct bp_hdr *)(void *)q)->size = n;
        kit_at(k, "3.2", k->iface, "supports", "a problem of only %u bytes", n);
        if (!ask_guarded(k, b, q, 1, sizeof(struct bp_reason), 0, &a)) return;
        (void)kit_guard_free_all(k);
    }
}

static void reasons_and_extensions(struct kit *k, const struct kit_bench *b,
                                   const struct kit_problem *p)
{
    const struct bp_ext harmless = {sizeof harmless, 0, bp_id("org.backplane.check.harmless"),
                                    NULL};
    const struct bp_ext critical = {sizeof critical, BP_EXT_CRITICAL,
                                    bp_id("org.backplane.check.critical"), &harmless};
    struct kit_problem q = *p;
    struct asked a;
    bool named = false;
    kit_problem_link(&q, b->iface);
    q.p.h.next = &harmless;
    kit_at(k, "3.5", k->iface, "supports", "an unknown extension that is not critical");
    if (ask_guarded(k, b, &q, 4, sizeof(struct bp_reason), 0, &a) && a.v->level == BP_V_NO)
        (void)kit_fail(k, "3.5", k->iface, "supports", NULL,
                       "NO for a problem that is served without the extension");
    q.p.h.next = &critical;
    kit_at(k, "3.4", k->iface, "supports", "an unknown critical extension");
    if (ask_guarded(k, b, &q, 8, sizeof(struct bp_reason), 0, &a)) {
        for (uint32_t i = 0; i < a.v->n_reasons && i < 8; ++i) {
            struct bp_reason r;
            memcpy(&r, a.reasons + (size_t)i * a.stride, sizeof r);
            named = named || r.code == BP_R_EXT;
        }
        if (a.v->level != BP_V_NO || !named)
            (void)kit_refuse(k, "3.4", BP_R_EXT, "supports", NULL, "level %u, %s reason EXT",
                             a.v->level, named ? "with" : "without");
    }
    /* A refusal with room for no reason, and for one only. */
    for (uint32_t cap = 0; cap < 2; ++cap) {
        kit_at(k, "3.6", k->iface, "supports", "a refusal with room for %u reasons", cap);
        (void)ask_guarded(k, b, &q, cap, sizeof(struct bp_reason) + 8, 0, &a);
    }
    (void)kit_guard_free_all(k);
    /* Other refusals, with room for fewer reasons than they have. */
    struct kit_rng rng;
    kit_rng_seed(&rng, k->o->seed + 3);
    for (uint32_t i = 0; i < TRIES; ++i) {
        kit_problem_make(b->iface, &rng, 24 + i, &q);
        kit_problem_link(&q, b->iface);
        kit_at(k, "3.6", k->iface, "supports", "a random problem with room for %u reasons", i % 2);
        (void)ask_guarded(k, b, &q, i % 2, sizeof(struct bp_reason) + 8, 0, &a);
        (void)kit_guard_free_all(k);
    }
}

/* ---- args and launch ---- */

void kit_stage_sizes(struct kit *k)
{
    struct kit_bench *b = calloc(1, sizeof *b);
    struct kit_problem *p = calloc(1, sizeof *p);
    if (b == NULL || p == NULL) return;
    const struct bp_plugin_desc *d = kit_descriptor(k);
    if (d == NULL) return;
    host_tables(k, d);
    if (!kit_bench_open(k, b, k->iface, KIT_COPY_NONE)) return;
    if (served_problem(k, b, p)) {
        kit_problem_link(p, b->iface);
        sizes_of_problem(k, b, p);
        reasons_and_extensions(k, b, p);
    } else {
        kit_note(k, k->iface,
                 "no random problem was served, so that sizes of structs were not tried");
    }
    kit_bench_close(b);
    free(b);
    free(p);
    /* Calls with args and launch at guard pages: a part of the grid of stage 6, through relays. */
    k->mute = true;
    if (strcmp(k->iface, "bp.device") != 0) kit_iface_of(k->iface)->numbers(k);
}
