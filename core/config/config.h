/* config.h - the INI (read with inih) into one typed table.
 * Not here: what a key does. Every key has type, default, range and a sentence; etc/backplane.ini is printed from
 * the same table and a test keeps them equal.
 * Dynamic parts: [slots] and [wrap] take `slot` or `slot@layers=A-B`; [plugin.NAME] takes `file` and whatever keys
 * the plugin declares (kept as text here, checked by the loader).
 * Threads: build on one thread, then read from any. SPDX-License-Identifier: MIT */
#ifndef BPI_CONFIG_H
#define BPI_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include "base/base.h"

enum bpi_config_type { BPI_CFG_STRING, BPI_CFG_INT, BPI_CFG_FLOAT, BPI_CFG_BOOL, BPI_CFG_ENUM, BPI_CFG_LIST };

struct bpi_config_key {
    const char *section, *key;
    uint32_t type;          /* enum bpi_config_type */
    const char *dflt;       /* as written in an INI */
    const char *choices;    /* ENUM: "auto|f32|bf16"; INT: extra word accepted ("auto") or NULL */
    double lo, hi;          /* INT and FLOAT, inclusive */
    const char *doc;        /* one or two sentences */
};
/* The static table, in file order. */
const struct bpi_config_key *bpi_config_keys(size_t *out_n);

struct bpi_config;
/* All defaults. */
int32_t bpi_config_create(struct bpi_config **out, struct bp_error *err);
void bpi_config_destroy(struct bpi_config *c); /* accepts NULL */
/* Reads an INI over the current values. Errors name file:line, the key and, for unknown names, the nearest known
 * one. Duplicate keys in one file are errors. Hostile input: at most 1 MiB, lines at most 4 KiB. */
int32_t bpi_config_load(struct bpi_config *c, const char *path, struct bp_error *err);
int32_t bpi_config_load_text(struct bpi_config *c, const char *text, size_t n, const char *label,
                             struct bp_error *err);
/* "section.key=value" from the command line; the section is everything before the last dot that makes a known
 * section ("slots.mla.decode=ref", "plugin.ref.round=bf16", "kv.dtype=f32"). */
int32_t bpi_config_set(struct bpi_config *c, const char *assignment, struct bp_error *err);

/* Typed reads of table keys. Asking for a key that is not in the table is a programming error: asserts, and returns
 * the zero value. get_int returns BPI_CONFIG_AUTO for the word `auto`. */
#define BPI_CONFIG_AUTO INT64_MIN
int64_t bpi_config_int(const struct bpi_config *c, const char *section, const char *key);
double bpi_config_float(const struct bpi_config *c, const char *section, const char *key);
bool bpi_config_bool(const struct bpi_config *c, const char *section, const char *key);
const char *bpi_config_str(const struct bpi_config *c, const char *section, const char *key); /* never NULL */
/* The i-th element of a comma list, copied into out[cap]; false past the end or when it does not fit. */
bool bpi_config_list_at(const char *value, size_t i, char *out, size_t cap);
/* Where the value came from: "default", "FILE:LINE", "-s". */
const char *bpi_config_origin(const struct bpi_config *c, const char *section, const char *key);

/* Provider list of a slot for one layer (-1 = not a layer's business): the narrowest matching `slot@layers=` entry,
 * else the plain entry, else the table's default. Later entries win among equals. */
const char *bpi_config_slot(const struct bpi_config *c, const char *slot, int32_t layer);
/* Text of [plugin.NAME] KEY, or NULL. n-th key of the section for checking against a plugin's schema. */
const char *bpi_config_plugin(const struct bpi_config *c, const char *plugin, const char *key);
bool bpi_config_plugin_key_at(const struct bpi_config *c, const char *plugin, size_t i, const char **key,
                              const char **value);

/* The commented INI with every key at its default: the text of etc/backplane.ini. */
void bpi_config_print_default(struct bpi_buf *out);
/* Every current value of the table, each with key, value, origin: fn is called in table order, dynamic keys last. */
void bpi_config_each(const struct bpi_config *c,
                     void (*fn)(void *ctx, const struct bpi_config_key *key, const char *section, const char *name,
                                const char *value, const char *origin),
                     void *ctx);

#endif
