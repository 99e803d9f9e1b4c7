/* kit_env.h - what belongs to the whole process: counts of what it holds, and settings that no plugin may change.
 * SPDX-License-Identifier: MIT */
#ifndef KIT_ENV_H
#define KIT_ENV_H

#include "kit.h"

struct kit_counts {
    int files, threads, mappings;
    uint64_t heap; /* bytes of malloc in use; 0 where that cannot be known */
};
struct kit_counts kit_counts_now(void);

struct kit_settings;
/* A picture of locale, rounding, signals, folder, environment. NULL without memory. */
struct kit_settings *kit_settings_take(void);
/* Compares with now, tells rule 4.8 for what differs, frees the picture. */
void kit_settings_check(struct kit *k, struct kit_settings *s, const char *op);
/* Rule 4.9: has something been written to stdout or stderr? */
void kit_check_spill(struct kit *k);

#endif
