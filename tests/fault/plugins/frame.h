/* frame.h - what the broken plugins share: the list of faults, and a frame (note, descriptor, life) that is sound but for
 * the one fault that FAULT names. Written out by hand, because the helpers of sdk.h cannot lie.
 * Included once, by a source that has defined IFACE, OP_TABLE and, as the compiler is told, NAME and FAULT.
 * Not here: faults of computing (dense.c, decode.c); what each fault must lead to (../plugin_table.py).
 * SPDX-License-Identifier: MIT */
#ifndef FAULT_FRAME_H
#define FAULT_FRAME_H

#include "backplane/sdk.h"

#include <fcntl.h>
#include <fenv.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum fault {
    F_SOUND, /* nothing is wrong */
    /* file and descriptor */
    F_TWO_NOTES, F_EXTRA_EXPORT, F_UNIQUE_SYMBOL, F_SHORT_DESC, F_NULL_OPEN, F_KEY_WITHOUT_TYPE, F_BAD_DEFAULT,
    /* op table */
    F_SHORT_TABLE, F_CUT_TABLE, F_NULL_SUPPORTS, F_NULL_WORKSPACE, F_NULL_TENSORS, F_NULL_RUN, F_NULL_TABLE,
    /* life */
    F_CRASH_CONSTRUCTOR, F_CRASH_OPEN, F_CRASH_RUN, F_CRASH_EXIT, F_EXIT_OPEN, F_ABORT_OPEN, F_HANG_OPEN, F_THROWS,
    F_LOCALE_IN_RUN, F_ROUNDING, F_FLUSHES_TINY, F_SIGNALS, F_PRINTS, F_KEEPS_THREAD, F_LEAKS_MEMORY, F_LEAKS_FILES, F_SHARED_STATE,
    F_ACCEPTS_BAD,
    /* supports, workspace, tensors */
    F_READS_PAST_PROBLEM, F_IGNORES_EXT, F_TOO_MANY_REASONS, F_NO_WITHOUT_REASON, F_SLOW_SUPPORTS, F_ODD_ALIGNMENT,
    F_SHRINKING_WORKSPACE, F_WRONG_PORTS, F_WRONG_LAYOUT,
    /* computing */
    F_DECLINES_RUN, F_WRONG_NUMBERS, F_OVERWRITES, F_UNDERWRITES, F_NAN_SPREADS, F_WRITES_INPUT, F_PAST_ARGS,
    F_PAST_SCRATCH, F_PAST_PLAN, F_PAST_PERSISTENT, F_ALLOCATES, F_NOT_REPEATABLE, F_BATCH_VARIANT, F_LSE_BASE_2,
    F_IGNORES_LAYOUT, F_WIDE_ALIGNMENT, F_CLEARS_FIRST, F_NEEDS_LSE, F_CACHED_NAN
};

/* An address that is never mapped. Volatile, so that no compiler sees what is coming. */
static volatile uintptr_t nowhere = 64;
static void crash(void)
{
    *(volatile int *)nowhere = 1;
}

/* State that all instances share: that is what is wrong with F_SHARED_STATE. */
static volatile int shared_is_open;

__attribute__((constructor)) static void constructed(void)
{
    if (FAULT == F_CRASH_CONSTRUCTOR) crash();
}

__attribute__((destructor)) static void destructed(void)
{
    if (FAULT == F_CRASH_EXIT) crash();
}

struct state {
    const struct bp_host *host;
    int64_t number;
    uint64_t n_calls;
};

/* Spends processor time. */
static inline void spend(long us)
{
    struct timespec from, now;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
    do (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    while ((now.tv_sec - from.tv_sec) * 1000000 + (now.tv_nsec - from.tv_nsec) / 1000 < us);
}

/* What the memory of a call may be written beyond its end with. */
static inline void spoil(void *begin, uint64_t n_bytes)
{
    memset((unsigned char *)begin + n_bytes, 0x55, 8);
}

static void *sleep_for_ever(void *arg)
{
    for (;;) (void)pause();
    return arg;
}

static void on_signal(int sig)
{
    (void)sig;
}

static void misbehave_in_open(void)
{
    pthread_t thread;
    switch ((int)FAULT) {
    case F_CRASH_OPEN:
        crash();
        break;
    case F_EXIT_OPEN:
        exit(0);
    case F_ABORT_OPEN:
        abort();
    case F_HANG_OPEN:
        (void)sleep_for_ever(NULL);
        break;
    case F_ROUNDING:
        (void)fesetround(FE_UPWARD);
        break;
    case F_FLUSHES_TINY: /* as libraries do that were linked with -ffast-math */
#if defined(__x86_64__)
        __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040u);
#endif
        break;
    case F_SIGNALS:
        (void)signal(SIGTERM, on_signal);
        break;
    case F_PRINTS:
        (void)printf("ready to serve\n");
        (void)fflush(stdout);
        break;
    case F_KEEPS_THREAD:
        if (pthread_create(&thread, NULL, sleep_for_ever, NULL) == 0) (void)pthread_detach(thread);
        break;
    case F_LEAKS_FILES:
        (void)(open("/dev/null", O_RDONLY | O_CLOEXEC) + 1);
        break;
    default:
        break;
    }
}

static int32_t frame_open(const struct bp_host *host, void **plugin, struct bp_error *err)
{
    int64_t number;
    misbehave_in_open();
    int32_t rc = bp_cfg_i64(host, "number", 7, &number);
    if (rc != BP_OK && FAULT != F_ACCEPTS_BAD)
        return bp_error_set(err, rc, NAME, "open", "`number` is no whole number from 1 to 100");
    if (FAULT == F_LEAKS_MEMORY) (void)bp_mem_alloc(host, 1, 100);
    struct state *s = bp_mem_alloc(host, 1, sizeof *s);
    if (s == NULL) return bp_error_set(err, BP_E_NOMEM, NAME, "open", "no memory for the plugin's state");
    s->host = host;
    s->number = number;
    *plugin = s;
    return BP_OK;
}

static void frame_close(void *plugin)
{
    struct state *s = plugin;
    bp_mem_free(s->host, s);
}

static int32_t frame_op_create(void *plugin, const struct bp_op_entry *entry, const struct bp_device *dev,
                               const struct bp_op_ref *inner, uint32_t n_inner, struct bp_op_ref *out,
                               struct bp_error *err)
{
    (void)inner;
    (void)n_inner;
    if (strcmp(entry->iface, IFACE) != 0)
        return bp_error_set(err, BP_DECLINED, NAME, "op_create", "this plugin does not offer the interface");
    if (dev != NULL && dev->kind != BP_DEV_HOST)
        return bp_error_set(err, BP_DECLINED, NAME, "op_create", "this op computes on the CPU");
    shared_is_open = 1;
    out->vt = FAULT == F_NULL_TABLE ? NULL : &OP_TABLE.base;
    out->self = plugin;
    return BP_OK;
}

static void frame_op_destroy(void *plugin, struct bp_op_ref *op)
{
    (void)plugin;
    shared_is_open = 0;
    op->vt = NULL;
}

/* What every supports() of these plugins begins with. 0: the answer is complete. */
static int frame_supports(struct bp_verdict *v, const struct bp_hdr *problem, uint32_t n_bytes)
{
    struct bp_hdr plain = *problem;
    if (FAULT == F_SLOW_SUPPORTS) {
#ifdef BP_SANITIZED
        spend(3000);
#else
        spend(200);
#endif
    }
    if (FAULT == F_READS_PAST_PROBLEM) plain.size = UINT32_MAX; /* so that it is never too short */
    if (FAULT == F_IGNORES_EXT) plain.next = NULL;
    if (FAULT == F_TOO_MANY_REASONS) v->cap_reasons = UINT32_MAX;
    if (!bp_verdict_begin(v, &plain, n_bytes)) return 0;
    for (int i = 0; i < 3 && FAULT == F_TOO_MANY_REASONS && v->level == BP_V_NO; ++i)
        bp_reason_add(v, BP_R_FEATURE, 1, "h.next", 0, 1, 1, "one more");
    if (FAULT == F_SHARED_STATE && !shared_is_open)
        bp_reason_add(v, BP_R_FEATURE, 1, "self", 0, 1, 1, "the only instance there can be is gone");
    return 1;
}

static const struct bp_cfg_key frame_keys[] = {
    {"number", FAULT == F_KEY_WITHOUT_TYPE ? NULL : "int", FAULT == F_BAD_DEFAULT ? "700" : "7", "a number", 1, 100}};
static const struct bp_op_entry frame_offers[] = {{IFACE, "fault", BP_ABI_MAJOR, BP_ABI_MINOR, 0, 0}};

static const struct bp_plugin_desc frame_desc = {
    .h = {FAULT == F_SHORT_DESC ? BP_END(struct bp_plugin_desc, open) : BP_END(struct bp_plugin_desc, op_destroy), 0, NULL},
    .abi_major = BP_ABI_MAJOR,
    .abi_minor = BP_ABI_MINOR,
    .min_host_minor = BP_ABI_MINOR,
    .kind = BP_KIND_BACKEND,
    .name = NAME,
    .version = "1.2.3",
    .vendor = "test",
    .license = "MIT",
    .summary = "broken on purpose",
    .build_id = "",
    .cfg = frame_keys,
    .n_cfg = BP_LEN(frame_keys),
    .cfg_stride = sizeof frame_keys[0],
    .ops = frame_offers,
    .n_ops = BP_LEN(frame_offers),
    .ops_stride = sizeof frame_offers[0],
    .open = FAULT == F_NULL_OPEN ? NULL : frame_open,
    .close = frame_close,
    .op_create = frame_op_create,
    .op_destroy = frame_op_destroy};

#define NOTE_RECORD                                                                                                    \
    {sizeof(BP_NOTE_OWNER), sizeof(struct bp_plugin_note), BP_NOTE_PLUGIN, BP_NOTE_OWNER,                              \
     {BP_ABI_MAJOR, BP_ABI_MINOR, BP_KIND_BACKEND, 0, NAME, "1.2.3", IFACE}}
__attribute__((used, section(BP_NOTE_SECTION), aligned(4))) static const struct bp_note_record frame_notes[] = {
    NOTE_RECORD,
#ifdef SECOND_NOTE
    NOTE_RECORD,
#endif
};

#ifdef EXTRA_EXPORT
BP_EXPORT int bp_fault_helper(void);
int bp_fault_helper(void)
{
    return 1;
}
#endif
#ifdef UNIQUE_SYMBOL
/* What C++ compilers make of a static variable in a template; here by hand, so that it does not depend on one. */
__asm__(".pushsection .data\n"
        ".globl bp_fault_unique\n"
        ".type bp_fault_unique, %gnu_unique_object\n"
        ".size bp_fault_unique, 4\n"
        "bp_fault_unique: .long 1\n"
        ".popsection\n");
#endif
#ifdef THROWS
extern void bp_fault_throw(void); /* throws.cpp */
#else
static inline void bp_fault_throw(void)
{
}
#endif

/* What every computing function of these plugins begins with. */
static int32_t misbehave_in_run(struct state *s, const struct bp_launch *l)
{
    s->n_calls++;
    switch ((int)FAULT) {
    case F_CRASH_RUN:
        crash();
        break;
    case F_THROWS:
        bp_fault_throw();
        break;
    case F_LOCALE_IN_RUN:
        (void)setlocale(LC_ALL, "C.UTF-8");
        break;
    case F_ALLOCATES:
        bp_mem_free(s->host, bp_mem_alloc(s->host, 1, 64));
        break;
    case F_PAST_SCRATCH:
        spoil(l->scratch, l->scratch_bytes);
        break;
    case F_PAST_PLAN:
        spoil(l->plan, 64);
        break;
    case F_PAST_PERSISTENT:
        spoil(l->persistent, 64);
        break;
    case F_DECLINES_RUN:
        return BP_DECLINED;
    default:
        break;
    }
    return BP_OK;
}

/* What every workspace() of these plugins ends with: `scratch` bytes are what it needs for `rows` rows. */
static int32_t frame_workspace(struct bp_workspace *out, uint64_t scratch, uint64_t rows)
{
    const uint64_t extra = FAULT == F_PAST_PLAN || FAULT == F_PAST_PERSISTENT ? 64 : 0;
    if (FAULT == F_SHRINKING_WORKSPACE && rows < 16) scratch += 4096;
    (void)bp_workspace_set(out, extra, extra, scratch, 0);
    if (FAULT == F_ODD_ALIGNMENT) out->align = 96;
    if (FAULT == F_WIDE_ALIGNMENT) out->align = 512;
    return BP_OK;
}

BP_EXPORT const struct bp_plugin_desc *bp_plugin_query_v1(const struct bp_query *q);
const struct bp_plugin_desc *bp_plugin_query_v1(const struct bp_query *q)
{
    return bp_query_fits(q) ? &frame_desc : NULL;
}

#endif
