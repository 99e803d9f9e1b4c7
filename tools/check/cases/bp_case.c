/* bp_case.c - suites, cases and their memory. Tensors: bp_case_tensor.c. SPDX-License-Identifier: MIT */
#include "cases/bp_case.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kit_device.h"
#include "kit_guard.h"

struct bp_case_suite *bp_case_open(struct kit *k, const char *iface)
{
    struct bp_case_suite *s = bp_oracle_alloc(1, sizeof *s);
    s->kit = k;
    s->iface = iface;
    s->seed = k->o->seed;
    if (!kit_bench_open(k, &s->bench, iface,
                        k->stage == 10  ? KIT_COPY_WIPED
                        : k->stage == 3 ? KIT_COPY_GUARDED
                                        : KIT_COPY_NONE)) {
        free(s);
        return NULL;
    }
    s->own.op = s->bench.op;
    return s;
}

void bp_case_close(struct bp_case_suite *s)
{
    const struct bp_case_target *t = &s->own;
    kit_sums(s->kit, s->iface, t->n_ok + t->n_failed, t->n_declined);
    kit_note_cut(s->kit, s->iface);
    if (t->n_ok + t->n_failed == 0 && s->kit->stage == 6 && !kit_is_partial(s->kit))
        (void)kit_fail(s->kit, "5.9", s->iface, "supports", NULL,
                       "all of %u problems were declined", t->n_declined);
    if (s->n_flips != 0)
        kit_note(s->kit, s->iface, "%u choices differed below the precision in use", s->n_flips);
    if (s->n_stopped != 0)
        kit_note(s->kit, s->iface,
                 "%u calls whose outputs are not finite were stopped by the wrapper", s->n_stopped);
    kit_bench_close(&s->bench);
    free(s);
}

/* ---- one case ---- */

bool bp_case_fail(struct bp_case_suite *s, const char *rule, const char *fmt, ...)
{
    char seen[256];
    va_list args;
    if (!s->failed) {
        va_start(args, fmt);
        (void)vsnprintf(seen, sizeof seen, fmt, args);
        va_end(args);
        if (s->kit->stage == 9 && strcmp(rule, "6.8") == 0) rule = "9.2";
        if (s->kit->stage == 10)
            rule = s->bench.subject.desc->kind == BP_KIND_WRAPPER ? "10.1" : "10.3";
        (void)kit_fail(s->kit, rule, s->iface, s->title, NULL, "%s", seen);
    }
    s->failed = true;
    return false;
}

static void note_declined(struct bp_case_suite *s)
{
    const struct bp_reason *r = &s->answer.reasons[0];
    s->target->n_declined++;
    if (s->kit->o->verbose)
        kit_note(s->kit, s->iface, "declined %s: %s %.32s: %.128s", s->title,
                 kit_reason_name(r->code), r->field, r->text);
}

bool bp_case_memory(struct kit *k, const char *iface, const struct bp_op_ref *op,
                    const void *problem, struct bp_launch *l, struct bp_workspace *ws,
                    const void *owner)
{
    static const char *const names[] = {"persistent memory", "plan memory", "scratch",
                                        "pinned memory"};
    struct bp_error err = BP_ERROR_INIT;
    void *memory[4] = {NULL};
    *ws = (struct bp_workspace){.h = BP_HDR(struct bp_workspace, persistent_zeroed)};
    kit_enter(k);
    int32_t rc = op->vt->workspace(op->self, problem, ws, &err);
    kit_leave(k);
    err.msg[sizeof err.msg - 1] = '\0';
    if (rc != BP_OK)
        return kit_fail(k, "5.8", iface, k->place->op, NULL, "workspace returned %s: %s",
                        kit_status_name(rc), err.msg);
    if (ws->align < 64 || ws->align > 256 || (ws->align & (ws->align - 1)) != 0)
        return kit_fail(k, "5.8", iface, k->place->op, NULL, "workspace asks for alignment %u",
                        ws->align);
    const uint64_t sizes[4] = {ws->persistent_bytes, ws->plan_bytes, ws->scratch_bytes,
                               ws->pinned_bytes};
    for (int i = 0; i < 4; ++i) {
        /* Scratch and plans hold anything, NaN for example, before the first call. */
        const uint8_t fill = i == 0 && ws->persistent_zeroed != 0 ? 0 : 0xff;
        if (sizes[i] == 0) continue;
        memory[i] = kit_guard_alloc(sizes[i], ws->align < 4096 ? ws->align : 4096, KIT_AT_END, fill,
                                    names[i], owner);
        if (memory[i] == NULL)
            return kit_fail(k, "5.8", iface, k->place->op, NULL,
                            "workspace asks for %llu bytes of %s", (unsigned long long)sizes[i],
                            names[i]);
    }
    *l = (struct bp_launch){.h = BP_HDR(struct bp_launch, reserved),
                            .dev = kit_host_device(),
                            .persistent = memory[0],
                            .plan = memory[1],
                            .scratch = memory[2],
                            .pinned = memory[3],
                            .scratch_bytes = ws->scratch_bytes,
                            .epoch = 1,
                            .layer = -1};
    return true;
}

bool bp_case_guards(struct kit *k, const char *iface, const char *op, const void *owner,
                    struct kit_bench *b)
{
    const char *name;
    size_t n_bytes;
    int64_t at;
    struct kit_host *h = &b->subject.host;
    if (kit_guard_any_broken(owner, &name, &n_bytes, &at))
        return kit_fail(k, strncmp(name, "tensor", 6) == 0 ? "6.2" : "6.10", iface, op, NULL,
                        "byte %lld of %s, which has %zu bytes, was written", (long long)at, name,
                        n_bytes);
    if (kit_guard_any_broken(h, &name, &n_bytes, &at))
        return kit_fail(k, "6.10", iface, op, NULL,
                        "byte %lld of a block of %zu bytes from mem_alloc was written",
                        (long long)at, n_bytes);
    if (!kit_device_whole(k, iface, op)) return false;
    if (h->alloc_in_call != 0) {
        unsigned long long n = h->alloc_in_call;
        h->alloc_in_call = 0;
        return kit_fail(k, "6.12", iface, op, NULL, "%llu calls of mem_alloc", n);
    }
    return true;
}

static void tell_claim(struct bp_case_suite *s)
{
    static const char *const names[] = {"none", "run", "batch"};
    uint32_t d = s->answer.verdict.determinism;
    if (s->n_begun++ == 0 && s->kit->stage == 6)
        kit_fact(s->kit, "determinism", "%s", d < KIT_LEN(names) ? names[d] : "none");
}

bool bp_case_begin(struct bp_case_suite *s, struct bp_case_target *target, const void *problem,
                   const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(s->title, sizeof s->title, fmt, args);
    va_end(args);
    /* A seed of its own for each case, so that one case can be run again without those before it. */
    const uint64_t seed = s->seed ^ bp_id(s->title);
    kit_rng_seed(&s->rng, seed);
    if (kit_skips(s->kit, seed, s->title)) return false;
    kit_device_reset(s->kit->device);
    s->target = target;
    s->failed = s->has_nan = false;
    s->n_tensors = 0;
    kit_at(s->kit, "4.10", s->iface, s->title, "case: %s", s->title);
    kit_enter(s->kit);
    kit_ask(&target->op, problem, &s->answer);
    kit_leave(s->kit);
    if (s->answer.verdict.level == BP_V_NO) {
        note_declined(s);
        return false;
    }
    const char *missing = kit_missing_slot(&target->op, s->iface, problem);
    if (missing != NULL) {
        (void)bp_case_fail(s, "3.7", "supports() says yes, and the op table has no %s()", missing);
        target->n_failed++;
        return false;
    }
    s->kit->capture = s->answer.verdict.capture;
    s->kit->determinism = s->answer.verdict.determinism;
    tell_claim(s);
    if (!bp_case_memory(s->kit, s->iface, &target->op, problem, &s->launch, &s->ws, s))
        s->failed = true;
    return true;
}

void bp_case_end(struct bp_case_suite *s)
{
    for (uint32_t i = 0; i < s->n_tensors; ++i) {
        free(s->tensors[i].start);
        free(s->tensors[i].after);
    }
    for (uint64_t i = 0; !s->failed && s->ws.persistent_zeroed != 0 && i < s->ws.persistent_bytes;
         ++i) {
        if (((unsigned char *)s->launch.persistent)[i] == 0) continue;
        (void)bp_case_fail(s, "6.2", "byte %llu of persistent memory is not zero again",
                           (unsigned long long)i);
    }
    (void)kit_guard_free_all(s);
    if (s->failed)
        s->target->n_failed++;
    else
        s->target->n_ok++;
}

bool bp_case_prepared(struct bp_case_suite *s, int32_t rc, const struct bp_error *err)
{
    if (rc == BP_OK) return true;
    return bp_case_fail(s, rc == BP_DECLINED ? "5.6" : "6.1", "prepare returned %s: %.200s",
                        kit_status_name(rc), err->msg);
}

void bp_case_ports(struct bp_case_suite *s, uint32_t slot, const void *args)
{
    kit_check_ports(s->kit, s->iface, &s->target->op, slot, args);
}

const char *bp_case_rule(const struct bp_oracle_compare *c, bool has_nan)
{
    bool unwritten = false, spread = false, differs = false;
    for (int64_t r = 0; r < c->n_rows; ++r) {
        bool row_is_nan = false;
        for (int64_t i = r * c->width; i < (r + 1) * c->width; ++i)
            row_is_nan |= isnan(c->exact[i]);
        for (int64_t i = r * c->width; i < (r + 1) * c->width; ++i) {
            const double got = c->got[i], want = c->exact[i];
            if (isnan(got) == isnan(want) && isinf(got) == isinf(want)) continue;
            differs = true;
            if (isnan(got) && !row_is_nan && has_nan) spread = true;
            /* The poison has all bits set; the NaN of arithmetic has only the first of its fraction. */
            uint64_t bits;
            memcpy(&bits, &got, sizeof bits);
            if (isnan(got) && (bits >> 50 & 3) == 3 && !has_nan) unwritten = true;
        }
    }
    return spread ? "6.4" : unwritten ? "6.9" : differs ? "6.3" : "6.5";
}
