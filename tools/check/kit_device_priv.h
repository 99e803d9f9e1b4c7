/* kit_device_priv.h - what kit_device.c and kit_turns.c share: the device of a child. SPDX-License-Identifier: MIT */
#ifndef KIT_DEVICE_PRIV_H
#define KIT_DEVICE_PRIV_H

#include "kit_device.h"

enum {
    DEVICE_CANARY = 0xa5,
    ROOM = 512,
    ALIGN = 256,
    MAX_TWINS = 512,
    MAX_SEGMENTS = 16,
    SEGMENT = 1 << 26
};

enum twin_kind {
    TWIN_BLOCK,  /* a guard block of the case: up and down */
    TWIN_ARRAY,  /* an array of metadata: up; must come back unchanged */
    TWIN_SCRATCH /* poisoned on the device before each call */
};

struct twin {
    const unsigned char *host;
    const char *name;
    uint64_t n_bytes, at; /* offset in its segment */
    uint32_t kind, segment;
};

struct segment {
    unsigned char *device, *image;
    uint64_t n_bytes, used;
};

struct kit_device {
    struct kit *kit;
    struct kit_plugin plugin;
    struct kit_options options; /* the kit's, with the device plugin as file */
    struct bp_op_ref op;
    const struct bp_device_ops *vt;
    struct bp_device dev;
    void *stream, *aux[2];
    struct segment segments[MAX_SEGMENTS], scratch;
    uint32_t n_segments;
    struct twin twins[MAX_TWINS];
    const void *in_scratch; /* which host block stands behind the scratch of the present call */
    uint32_t n_twins, n_calls;
    void *pinned;
    const unsigned char *pinned_host;
    uint64_t pinned_bytes;
    bool lost;
    struct {
        const char *name;
        uint64_t n_bytes;
        int64_t at;
        bool is_set, input;
    } broken;

    /* ---- stages 7 to 9 (kit_turns.c) ---- */
    unsigned char *first[MAX_SEGMENTS]; /* what the first turn of a call left */
    unsigned char *delay;               /* what the stream is kept busy with */
    uint64_t delay_bytes;
    void *from, *to; /* events around the delay */
    uint64_t free_before;
    void *context_before;
    int64_t began_ns;
    int32_t *host_arrays[16]; /* other numbers for the host's twins of metadata, while a graph is captured */
    uint32_t n_host_arrays;
    void *graph;
    uint32_t n_checked, n_declined, n_late, n_waits, n_shrinks, n_contexts, n_probed, n_could;
};

/* Sends what the host holds up. late: the device's memory is overwritten first, and the stream kept busy in between. */
int32_t kit_device_upload(struct kit_device *d, bool late, struct bp_error *err);
/* Brings the images down and looks at the canaries. */
int32_t kit_device_download(struct kit_device *d, struct bp_error *err);
/* Images into the host's blocks; what differs where nothing may be written is remembered. */
void kit_device_take_back(struct kit_device *d);
/* Keeps both the stream and the default stream busy for a while. */
int32_t kit_device_delay(struct kit_device *d, struct bp_error *err);

#endif
