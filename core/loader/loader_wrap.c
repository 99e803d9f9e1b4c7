/* loader_wrap.c - wrappers around ops: chains from [wrap], flattened to one function and one self per slot.
 * A wrapper's table offers only the slots it wants; NULL, or a slot beyond the table's size, passes through. So an
 * untouched slot costs nothing, and a wrapper built for an older minor never hides a newer slot.
 * Not here: the relays (loader_relay.c), instances without wrappers (loader_registry.c).
 * Threads: as loader.h says. SPDX-License-Identifier: MIT */
#include "loader/loader_priv.h"

#include <stdio.h>
#include <string.h>

enum { FIRST_SLOT = offsetof(struct bp_op_base, supports) / sizeof(void *), MAX_DEPTH = 16 };

/* ---- flattening ---- */

void bpi_flat_plain(struct bpi_bound_op *op)
{
    op->ref = op->made;
    op->flat.vt = op->made.vt;
    for (size_t i = 0; i < BPI_MAX_SLOTS; ++i) op->flat.self[i] = op->made.self;
}

static int32_t check_wrapper_table(const struct bp_op_base *vt, const char *iface,
                                   const char *wrapper, struct bp_error *err)
{
    if (vt == NULL || vt->h.size < BP_END(struct bp_op_base, iface_minor)) {
        return bpi_fail(err, BP_E_ABI, "loader", iface,
                        "the op table of wrapper %s has %u bytes; at least %u were expected",
                        wrapper, vt != NULL ? vt->h.size : 0,
                        BP_END(struct bp_op_base, iface_minor));
    }
    if (vt->iface == NULL || strcmp(vt->iface, iface) != 0 || vt->iface_major != BP_ABI_MAJOR ||
        vt->iface_minor != BP_ABI_MINOR) {
        return bpi_fail(err, BP_E_ABI, "loader", iface,
                        "the op table of wrapper %s calls itself %s %u.%u; %s %d.%d was expected",
                        wrapper, vt->iface != NULL ? vt->iface : "nothing", vt->iface_major,
                        vt->iface_minor, iface, BP_ABI_MAJOR, BP_ABI_MINOR);
    }
    return BP_OK;
}

int32_t bpi_flat_wrapped(struct bpi_bound_op *op, struct bp_error *err)
{
    const struct bp_op_base *own = op->made.vt, *below = op->inner->flat.vt;
    const struct bp_op_base *relays = bpi_relay_table(op->iface);
    BP_TRY(check_wrapper_table(own, op->iface, op->plugin->desc->name, err));
    if (relays == NULL) {
        return bpi_fail(err, BP_E_CONFIG, "loader", op->iface,
                        "this engine does not know the interface, so %s cannot be put around it",
                        op->plugin->desc->name);
    }
    const uint32_t size = relays->h.size;
    op->tables = bpi_calloc(2, size);
    if (op->tables == NULL) return bpi_fail_nomem(err, "loader", (size_t)2 * size);
    unsigned char *merged = op->tables, *relayed = merged + size;
    memcpy(merged, relays, FIRST_SLOT * sizeof(void *));
    memcpy(relayed, relays, FIRST_SLOT * sizeof(void *));
    for (uint32_t i = FIRST_SLOT; i < size / sizeof(void *); ++i) {
        const uint32_t at = i * (uint32_t)sizeof(void *);
        if (!bpi_table_has(below, at)) continue; /* nothing to wrap; still missed where it is needed */
        const bool mine = bpi_table_has(own, at);
        memcpy(merged + at, (const unsigned char *)(mine ? own : below) + at, sizeof(void *));
        memcpy(relayed + at, (const unsigned char *)relays + at, sizeof(void *));
        op->flat.self[i] = mine ? op->made.self : op->inner->flat.self[i];
    }
    op->flat.vt = (const struct bp_op_base *)(const void *)merged;
    op->ref = (struct bp_op_ref){.vt = (const struct bp_op_base *)(const void *)relayed,
                                 .self = &op->flat};
    return BP_OK;
}

static struct bpi_bound_op *find_ref(const struct bpi_loader *l, const struct bp_op_ref *ref)
{
    struct bpi_bound_op *op = l->newest_op;
    while (op != NULL && (op->ref.vt != ref->vt || op->ref.self != ref->self)) op = op->older;
    return op;
}

const struct bpi_flat_op *bpi_loader_flat(const struct bpi_loader *l, const struct bp_op_ref *op)
{
    const struct bpi_bound_op *found = find_ref(l, op);
    return found != NULL ? &found->flat : NULL;
}

/* ---- chains ---- */

static int32_t find_wrapper(struct bpi_loader *l, const char *name, const char *iface,
                            const char *where, struct bpi_plugin **out,
                            const struct bp_op_entry **entry, struct bp_error *err)
{
    BP_TRY(bpi_loader_need(l, name, where, out, err));
    if ((*out)->desc->kind != BP_KIND_WRAPPER) {
        return bpi_fail(err, BP_E_CONFIG, "loader", where,
                        "%s serves slots itself and wraps nothing; name it in [slots], not in "
                        "[wrap]",
                        name);
    }
    *entry = bpi_plugin_entry((*out)->desc, iface);
    if (*entry == NULL) {
        return bpi_fail(err, BP_E_CONFIG, "loader", where,
                        "wrapper %s does not wrap %s; take it out of this line of [wrap]", name,
                        iface);
    }
    return BP_OK;
}

/* One wrapper around one instance: made on first use, then shared by all slots and layers with the same chain. */
static int32_t put_around(struct bpi_loader *l, const char *name, const char *iface,
                          const char *where, const struct bp_device *dev, struct bpi_bound_op **op,
                          struct bp_error *err)
{
    struct bpi_plugin *p;
    const struct bp_op_entry *entry;
    struct bp_error why = BP_ERROR_INIT;
    BP_TRY(find_wrapper(l, name, iface, where, &p, &entry, err));
    for (struct bpi_bound_op *at = l->newest_op; at != NULL; at = at->older) {
        if (at->plugin != p || at->inner != *op) continue;
        *op = at;
        return BP_OK;
    }
    int32_t rc = bpi_loader_make_op(l, p, entry, dev, *op, op, &why);
    if (rc == BP_OK) return BP_OK;
    return bpi_fail(err, rc == BP_DECLINED ? BP_E_CONFIG : rc, "loader", where,
                    rc == BP_DECLINED ? "wrapper %s declines %s: %s" : "wrapper %s around %s: %s",
                    name, iface, why.msg);
}

int32_t bpi_loader_wrap(struct bpi_loader *l, const char *slot, const char *iface, int32_t layer,
                        const struct bp_device *dev, struct bp_op_ref *op, struct bp_error *err)
{
    const struct bpi_config *config = l->env.config;
    const char *list = config != NULL ? bpi_config_wrap(config, slot, layer) : "";
    char name[BPI_CONFIG_MAX_LINE], where[96];
    size_t n = 0;
    if (list[0] == '\0') return BP_OK;
    (void)snprintf(where, sizeof where, layer >= 0 ? "[wrap] %s, layer %d" : "[wrap] %s", slot,
                   layer);
    while (bpi_config_list_at(list, n, name, sizeof name)) ++n;
    if (n > MAX_DEPTH) {
        return bpi_fail(err, BP_E_LIMIT, "loader", where,
                        "%zu wrappers are asked for around one slot; at most %d fit", n, MAX_DEPTH);
    }
    struct bpi_bound_op *at = find_ref(l, op);
    if (at == NULL) {
        return bpi_fail(err, BP_E_INTERNAL, "loader", where,
                        "the op to wrap did not come from the loader");
    }
    while (n-- > 0) { /* from the innermost out */
        (void)bpi_config_list_at(list, n, name, sizeof name);
        BP_TRY(put_around(l, name, iface, where, dev, &at, err));
    }
    *op = at->ref;
    return BP_OK;
}
