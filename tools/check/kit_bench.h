/* kit_bench.h - an op of the plugin under test, ready to be called: a backend's own op; a wrapper's op around the
 * reference, flattened as the engine does it; either of them behind the kit's pass-through wrapper (stage 10).
 * SPDX-License-Identifier: MIT */
#ifndef KIT_BENCH_H
#define KIT_BENCH_H

#include "kit.h"

enum { KIT_MAX_SLOTS = 32 };
/* What relays hand on: the very structs; copies that are wiped afterwards; copies at guard pages, in turn of this ABI's
 * size and longer; copies that point to the device. */
enum kit_copy { KIT_COPY_NONE = 0, KIT_COPY_WIPED = 1, KIT_COPY_GUARDED = 2, KIT_COPY_DEVICE = 3 };

/* One function and one self for each slot. */
struct kit_flat {
    struct bp_op_ref op; /* of the flattened op; valid while this struct stays where it is */
    uint64_t table[64];  /* the op table of relays */
    struct bp_op_ref layer[KIT_MAX_SLOTS];
    uint32_t copy; /* enum kit_copy */
    uint32_t turn;
    struct kit_device *device; /* with KIT_COPY_DEVICE */
};
/* outer's slots where it has them, else inner's (NULL: outer alone). false: the interface has no relays (bp.device). */
bool kit_flatten(struct kit_flat *f, const char *iface, const struct bp_op_ref *outer, const struct bp_op_ref *inner,
                 uint32_t copy);

struct kit_bench {
    struct kit *kit;
    const char *iface;
    struct kit_plugin subject, reference;
    struct bp_op_ref op;     /* to be called */
    struct bp_op_ref ref_op; /* the reference's op of the same interface */
    struct bp_op_ref own;    /* what the subject gave */
    struct bp_op_ref bare;   /* the subject without wrapper: a backend's own op, the reference's below a wrapper */
    struct kit_flat flat, pass, carry;
};
/* copy: not NONE puts the kit's own wrapper around it. false after a finding or a note; nothing is open then. */
bool kit_bench_open(struct kit *k, struct kit_bench *b, const char *iface, uint32_t copy);
void kit_bench_close(struct kit_bench *b);
/* The function that a problem of the interface needs and the op's table lacks: its name, or NULL. */
const char *kit_missing_slot(const struct bp_op_ref *op, const char *iface, const void *problem);

#endif
