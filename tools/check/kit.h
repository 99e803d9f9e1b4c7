/* kit.h - backplane-check: what its stages share. A stage runs in a child process, which alone runs code of the plugin
 * under test; findings travel through a pipe to the parent, which prints them whatever becomes of the child.
 * Not here: cases and formulas of stage 6 (cases/), guarded memory (kit_guard.h), the host table (kit_host.h).
 * Threads: one, but for those that the host table lends to a plugin. SPDX-License-Identifier: MIT */
#ifndef KIT_H
#define KIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "backplane/sdk_ports.h"
#include "kit_host.h"

#define KIT_LEN(array) (sizeof(array) / sizeof((array)[0]))
#define KIT_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

enum { KIT_MAX_SETS = 32, KIT_MAX_FINDINGS = 512, KIT_TIMEOUT_S = 30, KIT_MAGIC = 0x4b49545f };

/* What travels through the pipe. */
enum kit_record_kind {
    KIT_FINDING = 1, /* a rule was broken */
    KIT_NOTE = 2,    /* something a reader should know: counted flips, declined problems */
    KIT_FACT = 3,    /* name and value about the plugin: op = name, seen = value */
    KIT_SUMS = 4,    /* calls and cases of an interface: n[0] cases, n[1] declined */
    KIT_DONE = 5     /* the child has reached its end */
};
struct kit_record {
    uint32_t magic, kind;
    uint32_t stage, reason; /* enum bp_reason_code, 0: none fits */
    uint32_t n[2];
    char rule[8];     /* "3.2" */
    char iface[32], op[64];
    char expected[160], seen[320];
};

/* Where the child is, in memory that outlives it. */
struct kit_place {
    volatile uint64_t steps; /* changes while the child gets on */
    volatile uint32_t in_plugin;
    volatile uint32_t n_case; /* number of the case that was begun last */
    char rule[8], iface[32], op[64], text[192];
};

struct kit_options {
    const char *file; /* NULL with --reference */
    const char *iface; /* NULL: all */
    struct kit_set sets[KIT_MAX_SETS];
    uint32_t n_sets;
    uint64_t seed;
    uint32_t stages; /* bits */
    uint32_t timeout_s;
    bool reference, json, verbose, quick, full;
    int32_t gpu;               /* ordinal of the device; -1: ops compute on the CPU */
    const char *device_plugin; /* file that opens it */
    const char *case_part;     /* only cases whose title holds it; NULL: all */
    uint32_t n_done;           /* cases of a child that ended before its time, which are not begun again */
    double budget_s;           /* stages that go by cases stop taking new ones after it; 0: none */
};

struct kit {
    const struct kit_options *o;
    struct kit_place *place;
    uint32_t stage;
    const char *iface; /* of this child, "" where a stage has one child */
    int out;           /* pipe */
    int spill;         /* what the plugin writes to stdout and stderr lands here */
    struct {
        char rule[8], iface[32], op[24];
        uint32_t n;
    } told[64]; /* so that one fault is not told a thousand times */
    uint32_t n_told, n_findings;
    struct kit_device *device;          /* NULL without --gpu */
    uint32_t capture, determinism;      /* what the op claims for the case at hand */
    uint32_t n_case, n_out_of_time;     /* cases begun, and left out because of the budget */
    int64_t until_ms;                   /* 0: not yet known */
    bool mute; /* rules of stages 5 and 6 are not told: another stage runs their cases for its own ends */
};
/* Is a case with this seed left out? --quick, --case, --budget, stages that run a part of the grid, a device that is lost. */
bool kit_skips(struct kit *k, uint64_t seed, const char *title);

/* A note of cases that the budget or a lost device left out. */
void kit_note_cut(struct kit *k, const char *iface);
/* Does this run leave out cases that the user named away, so that nothing can be said of all of them? */
bool kit_is_partial(const struct kit *k);

/* ---- telling (kit_tell.c): in the child ---- */

/* One broken rule. `op` is an op's name, a field, or ""; `expected` the rule in words, or what it wants here. Returns
 * false. */
bool kit_fail(struct kit *k, const char *rule, const char *iface, const char *op, const char *expected, const char *fmt,
              ...) KIT_PRINTF(6, 7);
/* The same with the reason code that the loader would give. */
bool kit_refuse(struct kit *k, const char *rule, uint32_t reason, const char *op, const char *expected, const char *fmt,
                ...) KIT_PRINTF(6, 7);
void kit_note(struct kit *k, const char *iface, const char *fmt, ...) KIT_PRINTF(3, 4);
void kit_fact(struct kit *k, const char *name, const char *fmt, ...) KIT_PRINTF(3, 4);
void kit_sums(struct kit *k, const char *iface, uint32_t n_case, uint32_t n_declined);
/* What the child is about to do, for the finding when it does not come back. rule: the one that would be broken. */
void kit_at(struct kit *k, const char *rule, const char *iface, const char *op, const char *fmt, ...) KIT_PRINTF(5, 6);
/* A sign of life; also brackets calls into the plugin. */
void kit_enter(struct kit *k);
void kit_leave(struct kit *k);
/* "BP_OK", "BP_E_ARG", ..., or "an unknown status". */
const char *kit_status_name(int32_t rc);
const char *kit_reason_name(uint32_t code);

/* ---- the subject (kit_subject.c) ---- */

/* The plugin's entry: dlopen of the file, or the reference backend. NULL after a finding. */
bp_plugin_query_fn kit_entry(struct kit *k);
/* Entry, query, descriptor. NULL after a finding. */
const struct bp_plugin_desc *kit_descriptor(struct kit *k);
/* i-th op entry or config key, at the descriptor's stride. */
const struct bp_op_entry *kit_op_at(const struct bp_plugin_desc *d, uint32_t i);
const struct bp_cfg_key *kit_key_at(const struct bp_plugin_desc *d, uint32_t i);

/* A plugin, opened with a host table of its own. */
struct kit_plugin {
    struct kit_host host;
    const struct bp_plugin_desc *desc;
    void *self;
    bool open;
};
/* Opens the subject with --set values, or the reference backend. false after a finding, with nothing left open. */
bool kit_open_subject(struct kit *k, struct kit_plugin *p);
bool kit_open_reference(struct kit *k, struct kit_plugin *p);
void kit_close(struct kit *k, struct kit_plugin *p);
/* An op of an interface on a device. Wrappers get `inner`. false: not offered, or failed with a finding. */
bool kit_make_op(struct kit *k, struct kit_plugin *p, const char *iface, const struct bp_device *dev,
                 const struct bp_op_ref *inner, struct bp_op_ref *out);
void kit_drop_op(struct kit *k, struct kit_plugin *p, struct bp_op_ref *op);
/* The device that ops of the kit are made on: HOST. */
const struct bp_device *kit_host_device(void);

/* ---- interfaces (kit_iface.c) ---- */

enum { KIT_N_IFACES = 9 };
struct kit_iface {
    const char *name;
    uint32_t table_bytes;   /* of the whole op table */
    uint32_t problem_bytes; /* of the problem struct */
    int32_t (*tensors)(void *self, uint32_t slot, const void *args, struct bp_tensor *t, uint32_t *n);
    void (*numbers)(struct kit *k);                                /* stage 6; NULL: none */
};
extern const struct kit_iface kit_ifaces[KIT_N_IFACES];
const struct kit_iface *kit_iface_of(const char *name);
/* Does the subject's descriptor offer it? */
bool kit_offers(const struct bp_plugin_desc *d, const char *iface);

/* An answer of supports(), with room for its lists. */
enum { KIT_MAX_REASONS = 32, KIT_MAX_LAYOUTS = 32 };
struct kit_answer {
    struct bp_verdict verdict;
    struct bp_reason reasons[KIT_MAX_REASONS];
    uint64_t layouts[KIT_MAX_LAYOUTS];
};
void kit_ask(const struct bp_op_ref *op, const void *problem, struct kit_answer *a);
/* Compares what tensors() lists with the ports that the slot header fixes. */
void kit_check_ports(struct kit *k, const char *iface, const struct bp_op_ref *op, uint32_t slot, const void *args);

/* ---- stages: each runs in a child ---- */

void kit_stage_file(struct kit *k);
void kit_stage_query(struct kit *k);
void kit_stage_config(struct kit *k);
void kit_stage_sizes(struct kit *k);
void kit_stage_life(struct kit *k);
void kit_stage_supports(struct kit *k);
void kit_stage_numbers(struct kit *k);
void kit_stage_wrap(struct kit *k);
void kit_stage_turns(struct kit *k); /* 7, 8 and 9 */

#endif
