/* check.h - what the files of the check wrapper share: one wrapped op, one checked slot, one call.
 * Threads: calls of one op never overlap, so its counters need no lock. SPDX-License-Identifier: MIT */
#ifndef CHECK_H
#define CHECK_H

#include "backplane/sdk.h"
#include "backplane/slot_coll.h"
#include "backplane/slot_dense.h"
#include "backplane/slot_device.h"
#include "backplane/slot_mla.h"
#include "backplane/slot_moe.h"
#include "backplane/slot_quant.h"

#define CHECK_NAME "check"

enum { CHECK_MAX_PORTS = 16, CHECK_MAX_ARGS = 2048, CHECK_MAX_LAUNCH = 512, CHECK_GUARD_BYTES = 128 };

struct check_plugin {
    const struct bp_host *host;
    int32_t guards, inputs; /* keys of the same names */
};

/* One wrapped op. */
struct check_op {
    struct check_plugin *plugin;
    struct bp_op_ref inner;
    const char *iface;
    /* The largest scratch that the inner op was ever answered to need, and what this wrapper lays behind it. */
    uint64_t inner_bytes, guard_bytes;
    uint64_t n_calls, n_outputs, n_guarded, n_gaps, n_aliased, n_no_room;
};

/* How much of a tensor means something. */
enum check_extent {
    CHECK_ALL = 0,
    CHECK_DECODE_ROWS, /* rows past meta->n_row are padding and may hold anything */
    CHECK_PICKS        /* values count where an id was found */
};

/* One slot that works on tensors. */
struct check_slot {
    const char *name;    /* "bp.quant.matmul" */
    uint32_t op, extent; /* number for tensors(); enum check_extent */
    int32_t (*call)(const struct check_op *o, const struct bp_launch *l, const void *args, struct bp_error *err);
    uint32_t n_out;      /* OUT tensors that may be moved into guarded memory: their places in the args struct */
    uint32_t out[3];
};

/* The ports of one call, as the inner op lists them. */
struct check_call {
    struct check_op *o;
    const struct check_slot *slot;
    const struct bp_launch *l;
    const void *args;
    struct bp_error *err;
    struct bp_tensor port[CHECK_MAX_PORTS];
    uint32_t n_port;
    uint64_t hash[CHECK_MAX_PORTS], gap_hash[CHECK_MAX_PORTS]; /* before the call; 0 = not taken */
    char bad_input[160]; /* the first input that was not finite before the call, in words; else empty */
};

/* One call with everything looked at. (slots.c) */
int32_t check_run(struct check_op *o, const struct check_slot *slot, const struct bp_launch *l, const void *args,
                  struct bp_error *err);
/* The op table of an interface; NULL for an unknown one. (slots.c) */
const struct bp_op_base *check_table(const char *iface);

/* ---- scan.c ---- */

/* Bytes from the first to behind the last element; 0 for an empty tensor and for strides that run backwards. */
uint64_t check_span(const struct bp_tensor *t);
/* Do the spans of two tensors share a byte? */
int check_overlap(const struct bp_tensor *a, const struct bp_tensor *b);
/* Before the call: inputs that are not finite already, hashes of inputs. After it: outputs that are not finite
 * (BP_E_NUMERIC), inputs that changed (BP_E_INTERNAL). */
void check_scan_before(struct check_call *c);
int32_t check_scan_after(struct check_call *c);
/* Starts the error of this call: layer and op in `where`. */
int32_t check_fail(const struct check_call *c, int32_t code, struct bp_text *t);

/* ---- guard.c ---- */

/* Bytes behind the inner op's scratch that outputs up to this problem need with their guards; 0 when unknown. */
uint64_t check_guard_bytes(const char *iface, const void *problem);
/* The inner call with its outputs in guarded memory where that is possible, copied out afterwards; for the others the
 * bytes between their rows are compared. BP_E_INTERNAL when something was written that is no output. */
int32_t check_guarded_call(struct check_call *c);

#endif
