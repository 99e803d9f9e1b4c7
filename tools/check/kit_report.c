/* kit_report.c - see kit_report.h. SPDX-License-Identifier: MIT */
#include "kit_report.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum {
    CORE = 0x7f,
    CORE_ON_DEVICE = 0xff,
    DETERMINISTIC = 1u << 6,
    GRAPH = 1u << 8,
    WRAPPERS = 1u << 10,
    CASES = 0x3e0 | 1u << 10 /* stages that consist of cases */
};

static bool same(const struct kit_record *a, const struct kit_record *b)
{
    return a->kind == b->kind && (a->kind != KIT_SUMS || a->stage == b->stage) &&
           strcmp(a->rule, b->rule) == 0 && strcmp(a->iface, b->iface) == 0 &&
           strcmp(a->op, b->op) == 0 && strcmp(a->seen, b->seen) == 0;
}

void kit_report_add(void *ctx, const struct kit_record *r)
{
    struct kit_report *p = ctx;
    for (uint32_t i = 0; i < p->n; ++i) {
        if (same(&p->records[i], r)) return;
    }
    if (p->n == 4096) {
        p->n_dropped++;
        p->n_findings += r->kind == KIT_FINDING;
        return;
    }
    if (p->n == p->cap) {
        uint32_t cap = p->cap != 0 ? 2 * p->cap : 64;
        struct kit_record *more = realloc(p->records, cap * sizeof *more);
        if (more == NULL) {
            p->n_dropped++;
            p->n_findings += r->kind == KIT_FINDING;
            return;
        }
        p->records = more;
        p->cap = cap;
    }
    p->records[p->n++] = *r;
    if (r->kind != KIT_FINDING) return;
    p->n_findings++;
    if (r->stage < 32) p->failed |= 1u << r->stage;
}

const char *kit_report_fact(const struct kit_report *p, const char *name, uint32_t i)
{
    for (uint32_t r = 0; r < p->n; ++r) {
        if (p->records[r].kind != KIT_FACT || strcmp(p->records[r].op, name) != 0) continue;
        if (i-- == 0) return p->records[r].seen;
    }
    return NULL;
}

uint32_t kit_report_count(const struct kit_report *p, const char *name)
{
    uint32_t n = 0;
    while (kit_report_fact(p, name, n) != NULL) ++n;
    return n;
}

void kit_report_free(struct kit_report *p)
{
    free(p->records);
}

/* ---- levels ---- */

/* Was there a case in this stage? Those that go by cases tell how many there were. */
static bool ran_cases(const struct kit_report *p, uint32_t stage)
{
    if ((CASES >> stage & 1) == 0) return true;
    for (uint32_t i = 0; i < p->n; ++i) {
        const struct kit_record *r = &p->records[i];
        if (r->kind == KIT_SUMS && r->stage == stage && r->n[0] > 0) return true;
    }
    return false;
}

/* What became of a stage that was run. */
static const char *outcome(const struct kit_report *p, uint32_t stage)
{
    return (p->failed >> stage & 1) != 0 ? "FAIL" : ran_cases(p, stage) ? "ok" : "nothing to run";
}

static void core_level(const struct kit_report *p, const struct kit_options *o, char *out,
                       size_t cap)
{
    const uint32_t all = o->gpu < 0 ? CORE : CORE_ON_DEVICE;
    size_t n = 0;
    if ((p->failed & all) == 0) {
        (void)snprintf(out, cap, "%s",
                       (p->ran & all) != all                ? "not all stages were run"
                       : ran_cases(p, 5) && ran_cases(p, 6) ? "pass"
                                                            : "nothing was run");
        return;
    }
    n += (size_t)snprintf(out, cap, "FAIL at stage");
    for (uint32_t s = 0; s < 8 && n < cap; ++s) {
        if ((p->failed >> s & 1) != 0) n += (size_t)snprintf(out + n, cap - n, " %u", s);
    }
}

static bool broke(const struct kit_report *p, const char *rule)
{
    for (uint32_t i = 0; i < p->n; ++i) {
        if (p->records[i].kind == KIT_FINDING && strcmp(p->records[i].rule, rule) == 0) return true;
    }
    return false;
}

/* The lowest promise of all interfaces, if stage 6 held it. */
static const char *determinism(const struct kit_report *p)
{
    const char *claim = kit_report_fact(p, "determinism", 0), *lowest = claim;
    if ((p->ran & DETERMINISTIC) == 0) return "stage 6 was not run";
    if (claim == NULL) return "nothing was run";
    for (uint32_t i = 1; (claim = kit_report_fact(p, "determinism", i)) != NULL; ++i) {
        if (strcmp(claim, "none") == 0 || strcmp(lowest, "batch") == 0) lowest = claim;
    }
    if (broke(p, "6.7") || broke(p, "6.8") || broke(p, "9.1") || broke(p, "9.2"))
        return "FAIL: less than claimed";
    return strcmp(lowest, "none") == 0  ? "no promise"
           : strcmp(lowest, "run") == 0 ? "pass (RUN)"
                                        : "pass (BATCH)";
}

static const char *graph_level(const struct kit_report *p, const struct kit_options *o)
{
    if (o->gpu < 0) return "not checked on the CPU";
    if ((p->ran & GRAPH) == 0) return "stage 8 was not run";
    if ((p->failed & GRAPH) != 0) return "FAIL";
    return ran_cases(p, 8) ? "pass" : "nothing was run";
}

static const char *wrapper_level(const struct kit_report *p)
{
    if ((p->ran & WRAPPERS) == 0) return "stage 10 was not run";
    if ((p->failed & WRAPPERS) != 0) return "FAIL";
    return ran_cases(p, 10) ? "pass" : "nothing was run";
}

/* ---- text ---- */

static const char *subject(const struct kit_options *o)
{
    return o->reference ? "the reference backend" : o->file;
}

static void print_text(const struct kit_report *p, const struct kit_options *o)
{
    char core[96];
    const char *name = kit_report_fact(p, "name", 0), *version = kit_report_fact(p, "version", 0);
    (void)printf("%s: %s %s, seed %llu\n", subject(o), name != NULL ? name : "(no descriptor)",
                 version != NULL ? version : "", (unsigned long long)o->seed);
    for (uint32_t i = 0; i < p->n; ++i) {
        const struct kit_record *r = &p->records[i];
        if (r->kind == KIT_FINDING) {
            (void)printf("FAIL KIT-%s%s%s%s%s\n  rule: %s\n  seen: %s\n", r->rule,
                         r->iface[0] != '\0' ? "  " : "", r->iface, r->op[0] != '\0' ? "  " : "",
                         r->op, r->expected, r->seen);
            if (r->reason != 0) (void)printf("  reason: %s\n", kit_reason_name(r->reason));
        } else if (r->kind == KIT_NOTE) {
            (void)printf("note %s%s%s\n", r->iface, r->iface[0] != '\0' ? ": " : "", r->seen);
        } else if (r->kind == KIT_SUMS) {
            (void)printf("stage %u %s%s%s: %u cases, %u declined\n", r->stage, r->iface,
                         r->op[0] != '\0' ? " " : "", r->op, r->n[0], r->n[1]);
        }
    }
    for (uint32_t s = 0; s < 16; ++s) {
        if ((p->ran >> s & 1) != 0) (void)printf("stage %u: %s\n", s, outcome(p, s));
    }
    core_level(p, o, core, sizeof core);
    (void)printf("core: %s\ndeterministic: %s\nwrappers: %s\ngraph: %s\n", core, determinism(p),
                 wrapper_level(p), graph_level(p, o));
    (void)printf("%u finding%s\n", p->n_findings, p->n_findings == 1 ? "" : "s");
}

/* ---- JSON ---- */

/* Texts of a plugin may be any bytes; what is no UTF-8 is shown with '?' in its place. */
static json_t *text(const char *s)
{
    char copy[512];
    json_t *j = json_string(s);
    if (j != NULL) return j;
    (void)snprintf(copy, sizeof copy, "%s", s);
    for (char *c = copy; *c != '\0'; ++c) {
        if ((unsigned char)*c >= 0x80) *c = '?';
    }
    return json_string(copy);
}

static json_t *finding(const struct kit_record *r)
{
    char rule[16];
    json_t *j = json_object();
    (void)snprintf(rule, sizeof rule, "KIT-%s", r->rule);
    (void)json_object_set_new(j, "rule", text(rule));
    (void)json_object_set_new(j, "stage", json_integer(r->stage));
    (void)json_object_set_new(j, "iface", text(r->iface));
    (void)json_object_set_new(j, "op", text(r->op));
    (void)json_object_set_new(j, "expected", text(r->expected));
    (void)json_object_set_new(j, "seen", text(r->seen));
    (void)json_object_set_new(j, "reason",
                              r->reason != 0 ? text(kit_reason_name(r->reason)) : json_null());
    return j;
}

static void print_json(const struct kit_report *p, const struct kit_options *o)
{
    char core[96];
    json_t *all = json_object(), *findings = json_array(), *notes = json_array();
    json_t *stages = json_array(), *levels = json_object(), *sums = json_array();
    static const char *const facts[] = {"name", "version", "kind", "device"};
    (void)json_object_set_new(all, "file", o->reference ? json_null() : text(o->file));
    for (size_t i = 0; i < KIT_LEN(facts); ++i) {
        const char *v = kit_report_fact(p, facts[i], 0);
        (void)json_object_set_new(all, facts[i], v != NULL ? text(v) : json_null());
    }
    (void)json_object_set_new(all, "seed", json_integer((json_int_t)o->seed));
    for (uint32_t i = 0; i < p->n; ++i) {
        const struct kit_record *r = &p->records[i];
        if (r->kind == KIT_FINDING) (void)json_array_append_new(findings, finding(r));
        if (r->kind == KIT_NOTE) (void)json_array_append_new(notes, text(r->seen));
        if (r->kind == KIT_SUMS)
            (void)json_array_append_new(sums, json_pack("{s:i, s:s, s:i, s:i}", "stage", r->stage,
                                                        "iface", r->iface, "cases", r->n[0],
                                                        "declined", r->n[1]));
    }
    for (uint32_t s = 0; s < 16; ++s) {
        if ((p->ran >> s & 1) == 0) continue;
        const bool failed = (p->failed >> s & 1) != 0;
        json_t *pass = !failed && !ran_cases(p, s) ? json_null() : json_boolean(!failed);
        (void)json_array_append_new(stages, json_pack("{s:i, s:o}", "stage", s, "pass", pass));
    }
    core_level(p, o, core, sizeof core);
    (void)json_object_set_new(levels, "core", text(core));
    (void)json_object_set_new(levels, "deterministic", text(determinism(p)));
    (void)json_object_set_new(levels, "graph", text(graph_level(p, o)));
    (void)json_object_set_new(levels, "wrappers", text(wrapper_level(p)));
    (void)json_object_set_new(all, "stages", stages);
    (void)json_object_set_new(all, "findings", findings);
    (void)json_object_set_new(all, "notes", notes);
    (void)json_object_set_new(all, "sums", sums);
    (void)json_object_set_new(all, "levels", levels);
    (void)json_object_set_new(all, "pass", json_boolean(p->n_findings == 0));
    (void)json_dumpf(all, stdout, JSON_COMPACT);
    (void)printf("\n");
    json_decref(all);
}

int kit_report_print(const struct kit_report *p, const struct kit_options *o)
{
    if (o->json)
        print_json(p, o);
    else
        print_text(p, o);
    if (fflush(stdout) != 0 || ferror(stdout)) return 2;
    return p->n_findings == 0 ? 0 : 1;
}
