/* loader_priv.h - what the files of core/loader share. SPDX-License-Identifier: MIT */
#ifndef BPI_LOADER_PRIV_H
#define BPI_LOADER_PRIV_H

#include <stdatomic.h>
#include "loader/loader.h"
#include "loader/plugin_file.h"

/* One registered plugin; also the ctx of its host table. */
struct bpi_plugin {
    struct bpi_loader *loader;
    const char *name; /* of this instance: the descriptor's, or that of the section which names its file */
    const struct bp_plugin_desc *desc;
    void *self; /* from open() */
    struct bp_host host;
    struct bpi_plugin *older;
    _Atomic uint64_t used_bytes,
        peak_bytes; /* host memory that it holds, and the most it ever held */
    uint32_t told, reserved; /* 1: that it was passed over as broken was said */
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
    struct bpi_found **found; /* by name */
    size_t n_found;
};

/* loader_host.c */
void bpi_plugin_init_host(struct bpi_plugin *p);

/* loader_schema.c: do the keys of [plugin.NAME] exist, and are their values what the plugin declares? */
int32_t bpi_plugin_check_config(const struct bpi_config *config, const char *name,
                                const struct bp_plugin_desc *desc, struct bp_error *err);

/* loader_registry.c */

/* The handshake in three steps. query: asks for the descriptor and checks all of it that needs no config. admit: keys of
 * [plugin.NAME], then open(); `name` outlives the plugin. dismiss: closes the newest plugin again. */
int32_t bpi_loader_query(const struct bpi_loader *l, bp_plugin_query_fn query,
                         const struct bp_plugin_desc **out, struct bp_error *err);
int32_t bpi_loader_admit(struct bpi_loader *l, const char *name, const struct bp_plugin_desc *desc,
                         struct bpi_plugin **out, struct bp_error *err);
void bpi_loader_dismiss(struct bpi_loader *l, struct bpi_plugin *newest);
/* 1 to 31 of a-z, 0-9 and _, and not "auto". */
bool bpi_plugin_name_ok(const char *name);
/* Opened plugins only; bpi_loader_need opens. */
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

/* loader_scan.c */
void bpi_loader_forget_found(struct bpi_loader *l);
/* bpi_loader_found_named, to be opened. */
struct bpi_found *bpi_found_named(const struct bpi_loader *l, const char *name);

/* loader_choose.c: would `auto` come to it? What cannot even be read offers nothing for certain, so it is told for every
 * slot. */
bool bpi_found_may_offer(const struct bpi_found *f, const char *iface);

/* loader_open.c */

/* Opens a found plugin on first use. BP_DECLINED: it is refused, f->why says why; anything else is no verdict on it. */
int32_t bpi_found_open(struct bpi_loader *l, struct bpi_found *f, struct bp_error *err);
/* The refusal as an error. */
int32_t bpi_found_fail(const struct bpi_found *f, const char *where, struct bp_error *err);
/* The plugin that a name stands for, opened if need be. Errors: BP_E_CONFIG unknown (nearest name), BP_E_CONFIG or
 * BP_E_ABI refused, with the reason and the command that mends it. */
int32_t bpi_loader_need(struct bpi_loader *l, const char *name, const char *where,
                        struct bpi_plugin **out, struct bp_error *err);
/* Turns the dynamic linker's text into a reason. */
void bpi_refuse_dlerror(struct bpi_refusal *why, const char *text);
/* Was the plugin built for this device and its driver? */
bool bpi_desc_fits_device(const struct bp_plugin_desc *desc, const struct bp_device *dev,
                          struct bpi_refusal *why);

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

/* Fill *why; numbers: what was found and what was wanted. */
void bpi_refuse(struct bpi_refusal *why, uint32_t code, const char *fmt, ...) BPI_PRINTF(3, 4);
void bpi_refusal_numbers(struct bpi_refusal *why, const char *field, int64_t got, int64_t lo,
                         int64_t hi);
/* Turns *c into that refusal. */
void bpi_candidate_take(struct bpi_candidate *c, const struct bpi_refusal *why);
/* Turns *c into a refusal by the loader itself. */
void bpi_candidate_refuse(struct bpi_candidate *c, uint32_t code, const char *field,
                          const char *text);
/* "ref: DTYPE kv_dtype: ...; QUANT ..." */
void bpi_candidate_format(const struct bpi_candidate *c, struct bpi_buf *b);

#endif
