/* stage_supports.c - stage 5: supports() and workspace() under random problems. SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kit_bench.h"
#include "kit_guard.h"
#include "kit_problem.h"

enum { N_PROBLEMS = 600, N_TIMED = 9 };
#ifdef BP_SANITIZED
static const double max_us =
    50.0 * 20; /* instrumented code is slower; what is measured is a blunder, not a percent */
#else
static const double max_us = 50.0;
#endif

static double now_us(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static bool same_answer(const struct kit_answer *a, const struct kit_answer *b)
{
    const struct bp_verdict *x = &a->verdict, *y = &b->verdict;
    return x->level == y->level && x->capture == y->capture && x->determinism == y->determinism &&
           x->n_reasons == y->n_reasons && x->n_layouts == y->n_layouts &&
           memcmp(a->reasons, b->reasons, sizeof a->reasons) == 0 &&
           memcmp(a->layouts, b->layouts, sizeof a->layouts) == 0;
}

/* Reasons of an answer against its level. */
static void check_reasons(struct kit *k, const char *iface, const char *text,
                          const struct kit_answer *a)
{
    const struct bp_verdict *v = &a->verdict;
    uint32_t n_critical = 0;
    const uint32_t n = v->n_reasons < KIT_MAX_REASONS ? v->n_reasons : KIT_MAX_REASONS;
    if (v->level > BP_V_YES) {
        (void)kit_fail(k, "5.1", iface, "supports", NULL, "level %u for %s", v->level, text);
        return;
    }
    for (uint32_t i = 0; i < n; ++i) {
        const struct bp_reason *r = &a->reasons[i];
        const bool ends = memchr(r->field, '\0', sizeof r->field) != NULL &&
                          memchr(r->text, '\0', sizeof r->text) != NULL;
        n_critical += r->critical != 0;
        if (!ends || r->code == BP_R_NONE || (r->field[0] == '\0' && r->text[0] == '\0'))
            (void)kit_fail(k, "5.4", iface, "supports", NULL,
                           "reason %u (code %u) names no field and no text, for %s", i, r->code,
                           text);
    }
    if (v->level == BP_V_NO && n_critical == 0)
        (void)kit_fail(k, "5.4", iface, "supports", NULL, "NO without a critical reason, for %s",
                       text);
    if (v->level != BP_V_NO && n_critical != 0)
        (void)kit_fail(k, "5.7", iface, "supports", NULL, "level %u with a critical reason, for %s",
                       v->level, text);
    if (v->level == BP_V_DEGRADED && n == 0)
        (void)kit_fail(k, "5.7", iface, "supports", NULL, "DEGRADED without a reason, for %s",
                       text);
}

static bool ask_workspace(struct kit *k, const struct kit_bench *b, const struct kit_problem *p,
                          const char *text, struct bp_workspace *ws)
{
    struct bp_error err = BP_ERROR_INIT;
    *ws = (struct bp_workspace){.h = BP_HDR(struct bp_workspace, persistent_zeroed)};
    kit_enter(k);
    int32_t rc = b->op.vt->workspace(b->op.self, p, ws, &err);
    kit_leave(k);
    if (rc == BP_E_LIMIT) return false; /* a size overflows: legal, and told */
    if (rc != BP_OK)
        return kit_fail(k, "5.8", b->iface, "workspace", NULL, "%s for %s, which supports() takes",
                        kit_status_name(rc), text);
    if (ws->align < 64 || ws->align > 256 || (ws->align & (ws->align - 1)) != 0)
        return kit_fail(k, "5.8", b->iface, "workspace", NULL, "alignment %u for %s", ws->align,
                        text);
    return true;
}

/* A smaller problem that is served too must not need more. */
static void check_monotone(struct kit *k, const struct kit_bench *b, struct kit_rng *rng,
                           const struct kit_problem *p, const char *text)
{
    struct bp_workspace large, small;
    struct kit_problem q = *p;
    struct kit_answer a;
    char less[200];
    if (!ask_workspace(k, b, p, text, &large) || !kit_problem_shrink(b->iface, rng, &q)) return;
    kit_problem_link(&q, b->iface);
    kit_ask(&b->op, &q, &a);
    kit_problem_text(b->iface, &q, less, sizeof less);
    if (a.verdict.level == BP_V_NO || !ask_workspace(k, b, &q, less, &small)) return;
    const uint64_t l[] = {large.persistent_bytes, large.plan_bytes, large.scratch_bytes,
                          large.pinned_bytes};
    const uint64_t s[] = {small.persistent_bytes, small.plan_bytes, small.scratch_bytes,
                          small.pinned_bytes};
    for (size_t i = 0; i < KIT_LEN(l); ++i) {
        if (s[i] > l[i])
            (void)kit_fail(k, "5.5", b->iface, "workspace", NULL,
                           "%llu bytes for %.110s, %llu for %.110s", (unsigned long long)s[i], less,
                           (unsigned long long)l[i], text);
    }
}

void kit_stage_supports(struct kit *k)
{
    struct kit_bench *b = calloc(1, sizeof *b);
    double *times = calloc(N_PROBLEMS, sizeof *times);
    struct kit_answer *one = calloc(1, sizeof *one), *two = calloc(1, sizeof *two);
    struct kit_rng rng;
    uint32_t n_declined = 0;
    if (b == NULL || times == NULL || one == NULL || two == NULL ||
        !kit_bench_open(k, b, k->iface, KIT_COPY_NONE))
        return;
    struct kit_problem *p = kit_guard_alloc(sizeof *p, 8, KIT_AT_END, 0, "struct problem", k);
    if (p == NULL) return;
    kit_rng_seed(&rng, k->o->seed ^ bp_id(k->iface));
    for (uint32_t i = 0; i < N_PROBLEMS; ++i) {
        struct kit_problem before;
        char text[200];
        kit_problem_make(k->iface, &rng, i, p);
        kit_problem_link(p, k->iface);
        before = *p;
        kit_problem_text(k->iface, p, text, sizeof text);
        kit_at(k, "5.1", k->iface, "supports", "asking about %s", text);
        kit_guard_protect(p, false);
        kit_enter(k);
        double t[N_TIMED];
        kit_ask(&b->op, p, one);
        for (int n = 0; n < (i < 40 ? N_TIMED : 1); ++n) {
            double begin = now_us();
            kit_ask(&b->op, p, two);
            t[n] = now_us() - begin;
        }
        kit_leave(k);
        kit_guard_protect(p, true);
        times[i] = t[0];
        if (memcmp(&before, p, sizeof before) != 0)
            (void)kit_fail(k, "5.2", k->iface, "supports", NULL, "the problem was changed");
        if (!same_answer(one, two))
            (void)kit_fail(k, "5.2", k->iface, "supports", NULL, "two answers differ for %s", text);
        check_reasons(k, k->iface, text, one);
        n_declined += one->verdict.level == BP_V_NO;
        if (one->verdict.level != BP_V_NO) check_monotone(k, b, &rng, p, text);
    }
    kit_sums(k, k->iface, N_PROBLEMS, n_declined);
    qsort(times, N_PROBLEMS, sizeof *times, ascending);
    if (!(times[N_PROBLEMS / 2] < max_us))
        (void)kit_fail(k, "5.3", k->iface, "supports", NULL, "median %.1f us of processor time",
                       times[N_PROBLEMS / 2]);
    kit_bench_close(b);
}
