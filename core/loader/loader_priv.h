/* loader_priv.h - what the files of core/loader share. SPDX-License-Identifier: MIT */
#ifndef BPI_LOADER_PRIV_H
#define BPI_LOADER_PRIV_H

#include <stdatomic.h>
#include "loader/loader.h"

/* One registered plugin; also the ctx of its host table. */
struct bpi_plugin {
    struct bpi_loader *loader;
    const struct bp_plugin_desc *desc;
    void *self; /* from open() */
    struct bp_host host;
    struct bpi_plugin *older;
    _Atomic uint64_t used_bytes,
        peak_bytes; /* host memory that it holds, and the most it ever held */
};

/* One created op: a plugin's interface on one device, or a wrapper around another such op. */
struct bpi_bound_op {
    struct bpi_plugin *plugin;
    const char *iface;
    uint32_t device_kind;
    int32_t device_ordinal;
    struct bp_op_ref made;      /* what op_create gave, and op_destroy gets back */
    struct bp_op_ref ref;       /* what others hold: `made` itself, or relays over `flat` */
    struct bpi_bound_op *inner; /* NULL: no wrapper */
    struct bpi_flat_op flat;
    void *tables; /* merged functions and relays of a wrapped op */
    struct bpi_bound_op *older;
};

struct bpi_loader {
    struct bpi_loader_env env;
    struct bpi_plugin *newest;
    struct bpi_bound_op *newest_op;
    size_t n_plugins;
};

/* loader_host.c */
void bpi_plugin_init_host(struct bpi_plugin *p);

/* loader_schema.c: do the keys of [plugin.NAME] exist, and are their values what the plugin declares? */
int32_t bpi_plugin_check_config(const struct bpi_config *config, const struct bp_plugin_desc *desc,
                                struct bp_error *err);

/* loader_registry.c */
struct bpi_plugin *bpi_loader_find(const struct bpi_loader *l,
                                   const char *name); /* NULL when unknown */
const struct bp_op_entry *bpi_plugin_entry(const struct bp_plugin_desc *desc,
                                           const char *iface); /* NULL: no offer */
/* Creates an op, or a wrapper around `inner`, and keeps it. Errors: the plugin's; BP_E_ABI for a bad table. */
int32_t bpi_loader_make_op(struct bpi_loader *l, struct bpi_plugin *p,
                           const struct bp_op_entry *entry, const struct bp_device *dev,
                           struct bpi_bound_op *inner, struct bpi_bound_op **out,
                           struct bp_error *err);
/* Unknown provider: BP_E_CONFIG with the nearest name. */
int32_t bpi_loader_fail_unknown(const struct bpi_loader *l, const char *name, const char *where,
                                struct bp_error *err);

/* loader_table.c: the op tables of the ABI, for checks that need no knowledge of a slot. */

/* Does the table hold what every table must? BP_E_ABI with a sentence otherwise. */
int32_t bpi_table_check(const struct bp_op_base *vt, const char *iface, const char *provider,
                        struct bp_error *err);
/* Name of the first function that *problem needs and the table lacks; NULL when all are there. */
const char *bpi_table_missing(const struct bp_op_base *vt, const void *problem);

/* Does the table offer the function at this offset? */
bool bpi_table_has(const struct bp_op_base *vt, uint32_t offset);

/* loader_wrap.c: fills ref and flat of an op from what its plugin made. */
void bpi_flat_plain(struct bpi_bound_op *op);
int32_t bpi_flat_wrapped(struct bpi_bound_op *op, struct bp_error *err);

/* loader_relay.c: every slot of an interface as this engine knows it, for a self that is a struct bpi_flat_op. NULL for
 * an unknown interface. */
const struct bp_op_base *bpi_relay_table(const char *iface);

/* loader_reason.c */

/* Turns *c into a refusal by the loader itself. */
void bpi_candidate_refuse(struct bpi_candidate *c, uint32_t code, const char *field,
                          const char *text);
/* "ref: DTYPE kv_dtype: ...; QUANT ..." */
void bpi_candidate_format(const struct bpi_candidate *c, struct bpi_buf *b);

#endif
