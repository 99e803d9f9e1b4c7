/* dropin.h - what the two files of the drop-in plugin share. SPDX-License-Identifier: MIT */
#ifndef DROPIN_H
#define DROPIN_H

#include <backplane/sdk.h>

#define NAME "dropin"

/* What key `fault` breaks, so that a test can see that the plugin is what computes. */
enum dropin_fault { FAULT_NONE = 0, FAULT_DECODE = 1, FAULT_MATMUL = 2 };

struct dropin {
    const struct bp_host *host;
    uint32_t fault; /* enum dropin_fault */
    uint32_t reserved;
    uint64_t n_decode,
        n_matmul; /* calls; one at a time per instance, and there is one instance of each */
};

extern const struct bp_mla_decode_ops dropin_decode;
extern const struct bp_quant_ops dropin_quant;

#endif
