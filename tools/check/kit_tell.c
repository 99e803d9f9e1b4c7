/* kit_tell.c - findings, notes and facts into the pipe, and where the child is. SPDX-License-Identifier: MIT */
#include "kit.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kit_device.h"
#include "kit_rules.h"

enum { TELL_EACH = 3 }; /* findings of one rule on one op; more are only counted */

static void put(char *dst, size_t cap, const char *src)
{
    size_t n = src != NULL ? strlen(src) : 0;
    if (n >= cap) n = cap - 1;
    if (n > 0) memcpy(dst, src, n);
    dst[n] = '\0';
}

static void send(struct kit *k, struct kit_record *r)
{
    const char *p = (const char *)r;
    size_t n = sizeof *r;
    r->magic = KIT_MAGIC;
    r->stage = k->stage;
    while (n > 0) { /* at most PIPE_BUF bytes, so it is written whole */
        ssize_t done = write(k->out, p, n);
        if (done < 0 && errno != EINTR) return;
        if (done > 0) {
            p += done;
            n -= (size_t)done;
        }
    }
}

/* How often has this been told? */
static uint32_t count(struct kit *k, const char *rule, const char *iface, const char *op)
{
    for (uint32_t i = 0; i < k->n_told; ++i) {
        if (strcmp(k->told[i].rule, rule) == 0 && strcmp(k->told[i].iface, iface) == 0 &&
            strncmp(k->told[i].op, op, sizeof k->told[i].op - 1) == 0)
            return ++k->told[i].n;
    }
    if (k->n_told == KIT_LEN(k->told)) return 1;
    put(k->told[k->n_told].rule, sizeof k->told[0].rule, rule);
    put(k->told[k->n_told].iface, sizeof k->told[0].iface, iface);
    put(k->told[k->n_told].op, sizeof k->told[0].op, op);
    k->told[k->n_told].n = 1;
    k->n_told++;
    return 1;
}

static bool tell(struct kit *k, const char *rule, uint32_t reason, const char *iface,
                 const char *op, const char *expected, const char *seen)
{
    struct kit_record r = {.kind = KIT_FINDING, .reason = reason};
    char word[64]; /* the op alone: a title begins with it */
    if (k->mute && (rule[0] == '5' || rule[0] == '6')) return false;
    put(word, sizeof word, op);
    word[strcspn(word, " ")] = '\0';
    k->n_findings++;
    if (count(k, rule, iface, word) > TELL_EACH) return false;
    put(r.rule, sizeof r.rule, rule);
    put(r.iface, sizeof r.iface, iface);
    put(r.op, sizeof r.op, op);
    put(r.expected, sizeof r.expected, expected != NULL ? expected : kit_rule_text(rule));
    put(r.seen, sizeof r.seen, seen);
    send(k, &r);
    return false;
}

bool kit_fail(struct kit *k, const char *rule, const char *iface, const char *op,
              const char *expected, const char *fmt, ...)
{
    char seen[320];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(seen, sizeof seen, fmt, args);
    va_end(args);
    return tell(k, rule, 0, iface, op, expected, seen);
}

bool kit_refuse(struct kit *k, const char *rule, uint32_t reason, const char *op,
                const char *expected, const char *fmt, ...)
{
    char seen[320];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(seen, sizeof seen, fmt, args);
    va_end(args);
    return tell(k, rule, reason, k->iface, op, expected, seen);
}

void kit_note(struct kit *k, const char *iface, const char *fmt, ...)
{
    struct kit_record r = {.kind = KIT_NOTE};
    if (k->mute) return;
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(r.seen, sizeof r.seen, fmt, args);
    va_end(args);
    put(r.iface, sizeof r.iface, iface);
    send(k, &r);
}

void kit_fact(struct kit *k, const char *name, const char *fmt, ...)
{
    struct kit_record r = {.kind = KIT_FACT};
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(r.seen, sizeof r.seen, fmt, args);
    va_end(args);
    put(r.op, sizeof r.op, name);
    send(k, &r);
}

void kit_sums(struct kit *k, const char *iface, uint32_t n_case, uint32_t n_declined)
{
    struct kit_record r = {.kind = KIT_SUMS, .n = {n_case, n_declined}};
    if (k->mute) return;
    put(r.iface, sizeof r.iface, iface);
    if (k->o->n_done != 0) (void)snprintf(r.op, sizeof r.op, "behind %u", k->o->n_done);
    send(k, &r);
}

void kit_at(struct kit *k, const char *rule, const char *iface, const char *op, const char *fmt,
            ...)
{
    struct kit_place *p = k->place;
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(p->text, sizeof p->text, fmt, args);
    va_end(args);
    put(p->rule, sizeof p->rule, rule);
    put(p->iface, sizeof p->iface, iface);
    put(p->op, sizeof p->op, op);
    p->steps = p->steps + 1;
}

void kit_enter(struct kit *k)
{
    k->place->steps = k->place->steps + 1;
    k->place->in_plugin =
        k->place->in_plugin + 1; /* calls of tensors() lie within calls of an op */
}

void kit_leave(struct kit *k)
{
    k->place->in_plugin = k->place->in_plugin - 1;
}

bool kit_skips(struct kit *k, uint64_t seed, const char *title)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    const int64_t now = (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
    if (k->until_ms == 0) k->until_ms = now + (int64_t)(k->o->budget_s * 1000.0);
    if (kit_device_lost(k)) return true;
    /* The case that lost a device is not tried again in the child that goes on behind it. */
    if (++k->n_case <= k->o->n_done) return true;
    k->place->n_case = k->n_case;
    if (k->o->case_part != NULL && strstr(title, k->o->case_part) == NULL) return true;
    if (k->o->budget_s > 0 && now > k->until_ms) {
        k->n_out_of_time++;
        return true;
    }
    static const uint8_t parts[] = {1, 1, 1, 16, 1, 1, 1, 4, 4, 16, 4}; /* of the grid, by stage */
    const bool turns = k->stage >= 7 && k->stage <= 9;
    const uint64_t every = parts[k->stage] * (!k->o->quick ? 1u : turns ? 2u : 8u);
    return seed % every != 0;
}

void kit_note_cut(struct kit *k, const char *iface)
{
    if (k->n_out_of_time != 0)
        kit_note(k, iface, "%u cases were left out: the budget of %g s was used up",
                 k->n_out_of_time, k->o->budget_s);
    if (kit_device_lost(k))
        kit_fact(k, "lost", "%u in stage %u of %s", k->place->n_case, k->stage, iface);
}

bool kit_is_partial(const struct kit *k)
{
    return k->o->quick || k->o->case_part != NULL || k->n_out_of_time != 0 || k->o->n_done != 0 ||
           kit_device_lost(k);
}

const char *kit_status_name(int32_t rc)
{
    switch (rc) {
#define NAME(name, value, text)                                                                    \
    case value:                                                                                    \
        return "BP_" #name;
        BP_STATUS_MAP(NAME)
#undef NAME
    default:
        return "an unknown status";
    }
}

const char *kit_reason_name(uint32_t code)
{
    switch (code) {
#define NAME(name, value)                                                                          \
    case value:                                                                                    \
        return #name;
        BP_REASON_MAP(NAME)
#undef NAME
    default:
        return code >= BP_R_VENDOR ? "VENDOR" : "UNKNOWN";
    }
}
