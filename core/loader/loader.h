/* loader.h - registered plugins, their op instances, and the choice between them with every reason kept.
 * Not here: what is right for a model (core/engine asks problem by problem).
 * Plugins come from files (plugin_file.h) and are opened when a slot wants them; the reference backend registers
 * statically, and from its descriptor on goes the same way as any other.
 * Threads: set up and bind on one thread; after that read from any. SPDX-License-Identifier: MIT */
#ifndef BPI_LOADER_H
#define BPI_LOADER_H

#include <stdbool.h>
#include "base/base.h"
#include "base/pool.h"
#include "config/config.h"
#include "backplane/plugin.h"

struct bpi_loader;

enum { BPI_MAX_REASONS = 16, BPI_MAX_LAYOUTS = 8 };

/* Slots that op tables may have room for; where a function lies in its table. */
enum { BPI_MAX_SLOTS = 32 };
#define BPI_SLOT_INDEX(T, slot) (offsetof(struct T, slot) / sizeof(void *))

/* An op as the engine calls it, flattened over its wrappers: for each slot the function of the outermost layer that
 * offers it, and that layer's self. `vt` has the interface's whole table as this engine knows it when there are
 * wrappers; without them it is the provider's own table, and every self is the provider's. */
struct bpi_flat_op {
    const struct bp_op_base *vt;
    void *self[BPI_MAX_SLOTS]; /* by BPI_SLOT_INDEX */
};

/* What one provider answered to one problem. Not to be copied: the verdict points into its own arrays. */
struct bpi_candidate {
    const char *provider;                        /* plugin name */
    struct bp_verdict verdict;                   /* reasons and layouts point into the arrays below */
    struct bp_reason reasons[BPI_MAX_REASONS];
    uint64_t layouts[BPI_MAX_LAYOUTS];
    const struct bpi_refusal *refusal; /* the plugin cannot be used at all: the reason with its whole text and the command
                                        * that mends it (loader/plugin_file.h), alive as long as the loader; else NULL */
    uint32_t on_host;                  /* 1: computes on the host although the rank's device is another */
    uint32_t declines_device;          /* 1: it was not asked, because it has no op for the rank's device */
    uint32_t broken, reserved;         /* 1: no answer as the ABI wants it, or no op: not a no, but a mistake in it */
};

/* Engine services that plugins get through bp_host. */
struct bpi_loader_env {
    const struct bpi_config *config;
    const struct bpi_log *log;   /* may be NULL */
    struct bpi_pool *pool;       /* parallel_for; may be NULL */
};

int32_t bpi_loader_create(const struct bpi_loader_env *env, struct bpi_loader **out, struct bp_error *err);
/* Destroys all op instances, wrappers before what they wrap, then closes all plugins, newest first. Accepts NULL. */
void bpi_loader_destroy(struct bpi_loader *l);

/* Runs the handshake (ABI numbers, table sizes, config schema against [plugin.NAME]), then open(). Errors: BP_E_ABI with
 * both numbers, BP_E_CONFIG with the nearest key, whatever open() says. */
int32_t bpi_loader_register(struct bpi_loader *l, bp_plugin_query_fn query, struct bp_error *err);

size_t bpi_loader_n_plugins(const struct bpi_loader *l);
const struct bp_plugin_desc *bpi_loader_plugin(const struct bpi_loader *l, size_t i);
/* The i-th op that a plugin offers. */
const struct bp_op_entry *bpi_desc_op(const struct bp_plugin_desc *desc, uint32_t i);
/* Host memory that the i-th plugin holds, and the most it has ever held. */
void bpi_loader_memory(const struct bpi_loader *l, size_t i, uint64_t *used_bytes, uint64_t *peak_bytes);
/* Does every [plugin.NAME] of the config belong to a plugin that is registered or was found? Call it after the scan.
 * Errors: BP_E_CONFIG with the nearest name. */
int32_t bpi_loader_check_config(const struct bpi_loader *l, struct bp_error *err);

/* The op instance of one provider for one interface on one device, created on first use and shared afterwards.
 * A plugin in a file is opened for it. BP_DECLINED when the plugin does not offer the interface; BP_E_CONFIG for an
 * unknown provider (nearest name given); BP_E_CONFIG or BP_E_ABI for one that cannot be used. */
int32_t bpi_loader_op(struct bpi_loader *l, const char *provider, const char *iface, const struct bp_device *dev,
                      struct bp_op_ref *out, struct bp_error *err);

/* Puts the wrappers that [wrap] lists for this slot and layer around *op, outermost first; without any, *op stays as it
 * is. The same wrapper around the same instance is made once. An op in wrappers is still a plain reference: its table
 * holds relays that go to each slot's own layer, so that it can be asked, and be wrapped in its turn.
 * Errors: BP_E_CONFIG for a name that is unknown (nearest given), is no wrapper, does not wrap this interface, or
 * declines; BP_E_ABI for a bad table; whatever the wrapper's op_create says. */
int32_t bpi_loader_wrap(struct bpi_loader *l, const char *slot, const char *iface, int32_t layer,
                        const struct bp_device *dev, struct bp_op_ref *op, struct bp_error *err);
/* The flattened form of an op that came from bpi_loader_op, _wrap or _choose; lives as long as the loader. NULL for
 * any other reference. */
const struct bpi_flat_op *bpi_loader_flat(const struct bpi_loader *l, const struct bp_op_ref *op);

/* Asks one instance. *c is overwritten; c->verdict.level says the answer. */
void bpi_loader_ask(const struct bp_op_ref *op, const char *provider, const void *problem, struct bpi_candidate *c);

/* Walks the slot's provider list for `layer` (config; "auto" = every backend that offers the interface: those found in
 * files by name, opened now if need be, then the registered ones in order), each in the slot's wrappers, and takes the
 * first whose verdict is not NO. *cands (cap entries) keeps every answer in order, *n_cands how many were asked. *chosen
 * is the index of the winner. A plugin that cannot be used at all counts as an answer where `auto` comes to it.
 * A provider without an op for `dev` may serve with one for the host, except devices themselves: at once where it is
 * named, under `auto` only when nobody serves on the device. Its candidate then says on_host.
 * Errors: BP_E_CONFIG when nobody serves, with slot, layer, and every provider's reasons in the text; BP_E_CONFIG or
 * BP_E_ABI when a plugin that is named cannot be used at all, or its op is broken: one that fails to be made, a table or
 * an answer that the ABI does not allow, whatever comes after it in the list (with engine.fallback = warn it is passed
 * over with a warning). A NO with reasons lets the list go on. */
int32_t bpi_loader_choose(struct bpi_loader *l, const char *slot, const char *iface, int32_t layer,
                          const struct bp_device *dev, const void *problem, struct bpi_candidate *cands, size_t cap,
                          size_t *n_cands, size_t *chosen, struct bp_op_ref *out, struct bp_error *err);

/* Logs a choice that stands: what was passed over, and why, and whether the winner serves badly. Choosing itself does
 * not, because much is asked only to see whether it would do. */
void bpi_loader_tell(const struct bpi_loader *l, const char *slot, int32_t layer, struct bpi_candidate *cands,
                     size_t n_cands, size_t chosen);

/* The names of all providers that the slot's list would come to for `layer` if each refused, in order and without
 * asking or opening any; those beyond cap are left out. Returns how many. Texts live as long as loader and config. */
size_t bpi_loader_names(const struct bpi_loader *l, const char *slot, const char *iface, int32_t layer,
                        const char **names, size_t cap);
/* Version and file of a provider or wrapper; "" where unknown, and the file of what is built in. */
void bpi_loader_about(const struct bpi_loader *l, const char *name, const char **version, const char **file);

/* "SHAPE kv_rank: got 2, want 1..1 (text)", "DTYPE kv_dtype: got f16 (2), want f32 (1) (text)" for messages and tables. */
void bpi_loader_format_reason(const struct bp_reason *r, struct bpi_buf *b);
const char *bpi_reason_name(uint32_t code);
/* The name of a number in a reason: of a dtype where code and field say that it is one ("kv_dtype"), of a type of GGUF
 * files likewise ("w.type"); else NULL. */
const char *bpi_reason_number_name(const struct bp_reason *r, int64_t number);

#endif
