/* config.h - the INI (read with inih) into one typed table.
 * Not here: what a key does. Every key has type, default, range and a sentence; etc/backplane.ini is
 * printed from the same table and a test keeps them equal. Users read docs/configuration.md.
 * Dynamic parts: [slots] and [wrap] take `slot` or `slot@layers=A-B`; [plugin.NAME] takes `file` and
 * whatever keys the plugin declares (kept as text here, checked by the loader).
 * Threads: build on one thread, then read from any. SPDX-License-Identifier: MIT */
#ifndef BPI_CONFIG_H
#define BPI_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include "base/base.h"

enum bpi_config_type { BPI_CFG_STRING, BPI_CFG_INT, BPI_CFG_FLOAT, BPI_CFG_BOOL, BPI_CFG_ENUM, BPI_CFG_LIST };

enum {
    BPI_CFG_POW2 = 1,     /* INT: a power of two */
    BPI_CFG_NO_LAYERS = 2 /* [slots] and [wrap]: one provider serves the whole rank, `@layers` is refused */
};

struct bpi_config_key {
    const char *section, *key;
    uint32_t type;          /* enum bpi_config_type */
    const char *dflt;       /* as written in an INI */
    const char *choices;    /* ENUM: "auto|f32|bf16"; INT and FLOAT: extra word accepted ("auto") or NULL */
    double lo, hi;          /* inclusive. INT and FLOAT: the value; STRING: its length in bytes */
    const char *doc;        /* one or two sentences */
    uint32_t flags;         /* BPI_CFG_POW2, ... */
};
/* The static table, in file order. */
const struct bpi_config_key *bpi_config_keys(size_t *out_n);
/* What a key takes, in words: "an integer from 1 to 1024, or auto". Cut to fit out[cap]. */
void bpi_config_allowed(const struct bpi_config_key *key, char *out, size_t cap);

struct bpi_config;
/* All defaults. */
int32_t bpi_config_create(struct bpi_config **out, struct bp_error *err);
void bpi_config_destroy(struct bpi_config *c); /* accepts NULL */

/* Limits on hostile input. The name limits keep clear of inih's own fixed buffers, which cut silently. */
#define BPI_CONFIG_MAX_BYTES (1u << 20) /* of one file */
#define BPI_CONFIG_MAX_LINE 4096u       /* bytes of one line or of one -s */
#define BPI_CONFIG_MAX_SECTION 49u      /* bytes of a section's name */
#define BPI_CONFIG_MAX_NAME 120u        /* bytes of a key's name */
#define BPI_CONFIG_MAX_KEYS 4096u       /* keys set by one file */
#define BPI_CONFIG_MAX_SETTINGS 16384u  /* keys set by all files and -s together */
#define BPI_CONFIG_MAX_LAYER 4096       /* in `@layers=A-B` */

/* Reads an INI over the current values. All or nothing: after an error the values are as before. Errors name
 * file:line, the key and, for unknown names, the nearest known one. Duplicate keys in one file are errors.
 * BP_E_IO: no such file; BP_E_LIMIT: one of the limits above; BP_E_CONFIG: everything wrong with the text. */
int32_t bpi_config_load(struct bpi_config *c, const char *path, struct bp_error *err);
int32_t bpi_config_load_text(struct bpi_config *c, const char *text, size_t n, const char *label,
                             struct bp_error *err);
/* "section.key=value" from the command line; the section is everything before the last dot that makes a
 * known section ("slots.mla.decode=ref", "plugin.ref.round=bf16", "kv.dtype=f32",
 * "slots.moe@layers=0-2=ref"). Spaces around section.key and value are dropped; the value is taken to the
 * end, comment signs included. */
int32_t bpi_config_set(struct bpi_config *c, const char *assignment, struct bp_error *err);
/* The rules that tie two keys together ([engine] slab is a multiple of [kv] block, ...). Call it once after
 * the last load and set: in between, a half-made change may break them. */
int32_t bpi_config_check(const struct bpi_config *c, struct bp_error *err);

/* Typed reads of table keys. Asking for a key that is not in the table is a programming error: asserts, and
 * returns the zero value. For the word `auto`, _int gives BPI_CONFIG_AUTO and _float NaN. */
#define BPI_CONFIG_AUTO INT64_MIN
int64_t bpi_config_int(const struct bpi_config *c, const char *section, const char *key);
double bpi_config_float(const struct bpi_config *c, const char *section, const char *key);
bool bpi_config_bool(const struct bpi_config *c, const char *section, const char *key);
const char *bpi_config_str(const struct bpi_config *c, const char *section, const char *key); /* never NULL */
/* Is the value the word `auto`? For keys of every type. */
bool bpi_config_is_auto(const struct bpi_config *c, const char *section, const char *key);
/* The i-th element of a comma list, trimmed and copied into out[cap]; false past the end or when it does
 * not fit. */
bool bpi_config_list_at(const char *value, size_t i, char *out, size_t cap);
/* Where the value came from: "default", "FILE:LINE", "-s". */
const char *bpi_config_origin(const struct bpi_config *c, const char *section, const char *key);

/* Provider list of a slot for one layer (-1 = not a layer's business): the narrowest matching
 * `slot@layers=` entry, else the plain entry, else the table's default. Later entries win among equals. */
const char *bpi_config_slot(const struct bpi_config *c, const char *slot, int32_t layer);
/* Wrappers of a slot, outermost first, by the same rules; "" when there are none. */
const char *bpi_config_wrap(const struct bpi_config *c, const char *slot, int32_t layer);
/* Text of [plugin.NAME] KEY, or NULL; for plugin.ref, whose keys are in the table, the default when it is
 * not set.
 * key_at: the n-th key of the section, for checking against a plugin's schema; `file` is the loader's own
 * key and is not listed. name_at: the n-th NAME that some file or -s mentions, in order of first mention. */
const char *bpi_config_plugin(const struct bpi_config *c, const char *plugin, const char *key);
bool bpi_config_plugin_key_at(const struct bpi_config *c, const char *plugin, size_t i, const char **key,
                              const char **value);
const char *bpi_config_plugin_name_at(const struct bpi_config *c, size_t i); /* NULL past the end */

/* The commented INI with every key at its default: the text of etc/backplane.ini. */
void bpi_config_print_default(struct bpi_buf *out);
/* Every current value of the table, each with key, value, origin: fn is called in table order, dynamic keys
 * last (with key NULL and names such as `mla.decode@layers=0-2`). */
void bpi_config_each(const struct bpi_config *c,
                     void (*fn)(void *ctx, const struct bpi_config_key *key, const char *section, const char *name,
                                const char *value, const char *origin),
                     void *ctx);

#endif
