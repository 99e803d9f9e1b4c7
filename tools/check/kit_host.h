/* kit_host.h - a host table whose memory lies between guard pages and is counted, and whose functions can fail.
 * Threads: its functions may be called from any thread. SPDX-License-Identifier: MIT */
#ifndef KIT_HOST_H
#define KIT_HOST_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "backplane/plugin.h"

struct kit_set {
    char key[64];
    const char *value;
};

struct kit_host {
    struct bp_host table;
    const struct kit_set *sets;
    uint32_t n_sets;
    pthread_mutex_t lock;
    int64_t live_blocks, live_bytes;
    uint64_t n_alloc, n_cfg, n_free_unknown, n_log;
    uint64_t alloc_in_call; /* allocations while `in_call` was set */
    uint64_t fail_alloc_at; /* the n-th allocation gives NULL; 0: none */
    uint64_t fail_cfg_at;   /* the n-th cfg call gives fail_cfg_rc; 0: none */
    int32_t fail_cfg_rc;
    volatile uint32_t in_call; /* a call of an op is running */
    uint32_t n_parallel;       /* parallel_for calls: their chunks run in another order every time */
    bool serial;               /* parallel_for starts no thread */
};

void kit_host_init(struct kit_host *h, const struct kit_set *sets, uint32_t n_sets);
/* Frees what the plugin left behind. */
void kit_host_done(struct kit_host *h);

#endif
