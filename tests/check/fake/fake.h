/* fake.h - what the parts of the fake device share: memory that the host cannot touch, streams whose work waits until
 * somebody waits for it, graphs. Real enough that a pointer which was not carried, a copy that was not made and a stream
 * that was not used all show.
 * Not here: ops (fake_ops.c), which are the reference's. Threads: one. SPDX-License-Identifier: MIT */
#ifndef FAKE_H
#define FAKE_H

#include "backplane/sdk.h"
#include "backplane/slot_coll.h"
#include "backplane/slot_device.h"
#include "backplane/slot_moe.h"

/* Mistakes that the plugin makes when its key `fault` names them; what the kit must say of each: ../test_device.py. */
enum fault {
    F_SOUND,
    F_NO_DEVICE,       /* there is none */
    F_DEFAULT_STREAM,  /* ops run at once, not behind what their stream has to do first */
    F_WAITS,           /* run() waits for the stream */
    F_ALLOCATES,       /* run() allocates device memory */
    F_HOST_META,       /* ops read the host's metadata while they run */
    F_PAST_TENSOR,     /* the first byte behind an output is written */
    F_PAST_SCRATCH,
    F_PAST_PLAN,
    F_WRITES_INPUT,
    F_WRITES_META,
    F_WRONG,           /* a number is wrong */
    F_LOSES_DEVICE,    /* after the 20th call nothing works any more */
    F_FROZEN_LENGTHS,  /* a captured call keeps the lengths that it was captured with */
    F_NO_CAPTURE,      /* claims capture, and cannot be captured */
    F_LOW_CLAIM,       /* claims less than it can */
    F_RARE_BIT,        /* one call in twenty has another bit */
    F_OTHER_CONTEXT,   /* a call makes another context current */
    F_BATCH_VARIANT,   /* claims BATCH, and rows depend on how many there are */
    N_FAULTS
};
/* Their names, in that order, as the key has them. */
#define FAKE_FAULTS \
    "sound|no_device|default_stream|waits|allocates|host_meta|past_tensor|past_scratch|past_plan|writes_input|writes_meta|wrong|loses_device|frozen_lengths|no_capture|low_claim|rare_bit|other_context|batch_variant"

struct fake_task {
    struct fake_task *next;
    int32_t (*run)(struct fake_task *t); /* with all memory open */
};

struct fake_device;
struct fake_stream {
    struct fake_device *dev;
    struct fake_task *first, **last;
    int capturing;
};

/* One per process: plugins that share a device find it through its streams. */
struct fake_device {
    const struct bp_host *host;
    struct fake_block {
        unsigned char *p;
        uint64_t n_bytes;
        struct fake_block *next;
    } *blocks;
    uint64_t used_bytes, n_ops;
    uint32_t fault;
    char contexts[2]; /* addresses that stand for contexts */
    int32_t lost; /* the status that everything gives from now on */
};

/* Puts a task behind the stream's others; owns it from then on. Its memory is from malloc. */
void fake_push(struct fake_stream *s, struct fake_task *t);
/* Runs all there is to do. */
int32_t fake_drain(struct fake_stream *s);
int32_t fake_alloc(struct fake_device *d, uint64_t n_bytes, void **out);

extern const struct bp_device_ops fake_device_table;
int32_t fake_device_open(const struct bp_host *host, uint32_t fault, struct fake_device **out);
void fake_device_close(struct fake_device *d);

/* An op of the reference, on this device. */
struct fake_op {
    const struct bp_host *host;
    uint32_t fault;
    struct bp_op_ref ref;
};
const struct bp_op_base *fake_table(const char *iface);

#endif
