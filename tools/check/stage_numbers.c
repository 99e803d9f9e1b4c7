/* stage_numbers.c - stages 6 and 10: the grid of each interface; a wrapper around the reference, and a backend behind the
 * kit's own wrapper. SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>

#include "kit_bench.h"
#include "kit_device.h"
#include "kit_env.h"

void kit_stage_numbers(struct kit *k)
{
    char why[300]; /* a driver may change settings when it starts; the plugin is not to blame */
    (void)kit_device_open(k, why, sizeof why);
    struct kit_settings *settings = kit_settings_take();
    kit_iface_of(k->iface)->numbers(k);
    kit_settings_check(k, settings, "numbers");
    kit_check_spill(k);
}

/* A slot of the wrapper that is the inner op's own function: it would be called with the wrapper's self. */
static void copied_slots(struct kit *k, const struct kit_bench *b)
{
    const size_t first = offsetof(struct bp_op_base, supports);
    const struct kit_iface *f = kit_iface_of(b->iface);
    if (b->own.vt->h.size > f->table_bytes)
        (void)kit_fail(k, "10.2", b->iface, "op table", NULL,
                       "the table has %u bytes, the interface of this ABI %u", b->own.vt->h.size,
                       f->table_bytes);
    for (size_t at = first; at < f->table_bytes && at + sizeof(void *) <= b->own.vt->h.size;
         at += sizeof(void *)) {
        void *mine, *inner;
        memcpy(&mine, (const unsigned char *)b->own.vt + at, sizeof mine);
        memcpy(&inner, (const unsigned char *)b->ref_op.vt + at, sizeof inner);
        if (mine != NULL && mine == inner)
            (void)kit_fail(k, "10.2", b->iface, "op table", NULL,
                           "slot %zu is the inner op's function", (at - first) / sizeof mine);
    }
}

void kit_stage_wrap(struct kit *k)
{
    if (strcmp(k->iface, "bp.device") == 0) return;
    struct kit_bench *b = calloc(1, sizeof *b);
    if (b == NULL || !kit_bench_open(k, b, k->iface, KIT_COPY_WIPED)) return;
    if (b->subject.desc->kind == BP_KIND_WRAPPER) copied_slots(k, b);
    kit_bench_close(b);
    free(b);
    /* The same grid, through relays that hand on copies and wipe them: same rules, and what keeps a pointer reads
     * nonsense. */
    kit_iface_of(k->iface)->numbers(k);
}
