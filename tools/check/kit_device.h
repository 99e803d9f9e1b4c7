/* kit_device.h - the device of a run with --gpu: its plugin, its memory, and the carrying of calls to it. Cases live in
 * host memory between guard pages; before a call every block of the case is copied to a twin on the device, which has
 * exactly its size and lies between canaries; args, launch and metadata are handed over as copies that point there; after
 * the call the twins come back, canaries are compared, and the case judges as it does on the host.
 * Not here: cases; which functions are carried (kit_relay.c). Threads: one. SPDX-License-Identifier: MIT */
#ifndef KIT_DEVICE_H
#define KIT_DEVICE_H

#include "kit.h"

struct kit_device;

/* Opens device o->gpu in this child, once. false: why it cannot be used is in why. */
bool kit_device_open(struct kit *k, char *why, size_t cap);
/* What ops of the subject are made on: the device, or HOST without --gpu. */
const struct bp_device *kit_device_of(const struct kit *k);
/* Has an error left the device unusable? */
bool kit_device_lost(const struct kit *k);
/* Forgets all twins: a case begins. */
void kit_device_reset(struct kit_device *d);
/* The first canary that a call of this case broke, told once: rules 6.2 and 6.10. true: all are whole. */
bool kit_device_whole(struct kit *k, const char *iface, const char *op);
/* Stage 0.5: a child of its own looks whether the device is there. Tells KIT_FACT "device" or "no device". */
void kit_stage_device(struct kit *k);

/* ---- one call (kit_relay.c) ---- */

/* Which metadata stands behind the header of an args struct, or is the argument itself. */
enum kit_meta { KIT_META_NONE, KIT_META_COMMON, KIT_META_PREFILL, KIT_META_DECODE };

enum { KIT_ARGS_BYTES = 1024 };
struct kit_carried {
    uint32_t turn, n_turns;
    bool is_captured;
    struct bp_launch launch;
    uint64_t args[KIT_ARGS_BYTES / 8];
    struct bp_mla_meta common;
    struct bp_mla_prefill_meta prefill;
    struct bp_mla_decode_meta decode;
    struct bp_matmul_out outs[4];
};
/* Copies of launch and args that point to the device. is_meta: args is the metadata itself. */
int32_t kit_device_carry(struct kit_device *d, const struct bp_launch *l, const void *args, uint32_t meta, bool is_meta,
                         bool is_matmul, struct kit_carried *c, struct bp_error *err);
/* A call is made in turns: once, or as stages 7 to 9 want it (kit_turns.c). Begin with *c zeroed; while it returns true,
 * call with c->launch and c->args and end the turn; *rc is the status of the whole. */
bool kit_turn_begin(struct kit_device *d, const struct bp_launch *l, const void *args, uint32_t meta, bool is_meta,
                    bool is_matmul, struct kit_carried *c, int32_t *rc, struct bp_error *err);
void kit_turn_end(struct kit_device *d, struct kit_carried *c, int32_t *rc, struct bp_error *err);

#endif
