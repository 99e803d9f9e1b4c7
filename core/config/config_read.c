/* config_read.c - giving values out: typed reads, slots by layer, plugin sections, the whole list, rules
 * across keys.
 * Not here: checks of single values (they were made when the value came in). Threads: any, once the config
 * is built.
 * SPDX-License-Identifier: MIT */
#include "config/config_priv.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* The last setting of a table key, or NULL while it is at its default. */
static const struct bpi_config_item *last_of(const struct bpi_config *c,
                                             const struct bpi_config_key *row)
{
    for (size_t i = c->n; i > 0; --i) {
        if (c->items[i - 1].row == row) return &c->items[i - 1];
    }
    return NULL;
}

static const char *row_value(const struct bpi_config *c, const struct bpi_config_key *row)
{
    const struct bpi_config_item *item = last_of(c, row);
    return item != NULL ? item->value : row->dflt;
}

static const char *row_origin(const struct bpi_config *c, const struct bpi_config_key *row)
{
    const struct bpi_config_item *item = last_of(c, row);
    return item != NULL ? item->origin : "default";
}

/* The row that a caller asks for by name; NULL in release builds when the caller is wrong about name or
 * type. */
static const struct bpi_config_key *must_have(const char *section, const char *key,
                                              uint32_t type_mask)
{
    const struct bpi_config_key *row = bpi_config_row(section, key, strlen(key));
    assert(row != NULL && "no such key in the table");
    assert((row == NULL || (type_mask >> row->type & 1u) != 0) && "the key has another type");
    return row != NULL && (type_mask >> row->type & 1u) != 0 ? row : NULL;
}

int64_t bpi_config_int(const struct bpi_config *c, const char *section, const char *key)
{
    const struct bpi_config_key *row = must_have(section, key, 1u << BPI_CFG_INT);
    int64_t v = 0;
    if (row == NULL) return 0;
    const char *text = row_value(c, row);
    if (row->choices != NULL && strcmp(text, row->choices) == 0) return BPI_CONFIG_AUTO;
    return bpi_parse_i64(text, &v) ? v : 0;
}

double bpi_config_float(const struct bpi_config *c, const char *section, const char *key)
{
    const struct bpi_config_key *row = must_have(section, key, 1u << BPI_CFG_FLOAT);
    double v = 0;
    if (row == NULL) return 0;
    const char *text = row_value(c, row);
    if (row->choices != NULL && strcmp(text, row->choices) == 0) return NAN;
    return bpi_parse_f64(text, &v) ? v : 0;
}

bool bpi_config_bool(const struct bpi_config *c, const char *section, const char *key)
{
    const struct bpi_config_key *row = must_have(section, key, 1u << BPI_CFG_BOOL);
    bool v = false;
    return row != NULL && bpi_config_parse_bool(row_value(c, row), &v) && v;
}

const char *bpi_config_str(const struct bpi_config *c, const char *section, const char *key)
{
    const struct bpi_config_key *row = must_have(section, key, ~0u);
    return row != NULL ? row_value(c, row) : "";
}

bool bpi_config_is_auto(const struct bpi_config *c, const char *section, const char *key)
{
    return strcmp(bpi_config_str(c, section, key), "auto") == 0;
}

const char *bpi_config_origin(const struct bpi_config *c, const char *section, const char *key)
{
    const struct bpi_config_key *row = must_have(section, key, ~0u);
    return row != NULL ? row_origin(c, row) : "";
}

/* ---- slots and wrappers ---- */

/* The narrowest setting of `slot` that covers the layer, the later one among equals, or NULL. */
static const struct bpi_config_item *narrowest(const struct bpi_config *c, const char *section,
                                               const char *slot, int32_t layer)
{
    const struct bpi_config_item *best = NULL;
    int64_t best_width = INT64_MAX;
    size_t n = strlen(slot);
    for (size_t i = c->n; i > 0; --i) {
        const struct bpi_config_item *item = &c->items[i - 1];
        if (item->base_len != n || memcmp(item->name, slot, n) != 0 ||
            strcmp(item->section, section) != 0)
            continue;
        bool plain = item->layer_lo < 0;
        if (!plain && (layer < item->layer_lo || layer > item->layer_hi)) continue;
        int64_t width = plain ? INT64_MAX - 1 : (int64_t)item->layer_hi - item->layer_lo;
        if (width < best_width) {
            best = item;
            best_width = width;
        }
    }
    return best;
}

const char *bpi_config_slot(const struct bpi_config *c, const char *slot, int32_t layer)
{
    const struct bpi_config_key *row = must_have("slots", slot, 1u << BPI_CFG_LIST);
    if (row == NULL) return "";
    const struct bpi_config_item *item = narrowest(c, "slots", slot, layer);
    return item != NULL ? item->value : row->dflt;
}

const char *bpi_config_wrap(const struct bpi_config *c, const char *slot, int32_t layer)
{
    if (must_have("slots", slot, 1u << BPI_CFG_LIST) == NULL) return "";
    const struct bpi_config_item *item = narrowest(c, "wrap", slot, layer);
    return item != NULL ? item->value : "";
}

/* ---- plugins ---- */

static bool is_of_plugin(const char *section, const char *plugin)
{
    const char *name = bpi_config_plugin_name(section);
    return name != NULL && strcmp(name, plugin) == 0;
}

const char *bpi_config_plugin(const struct bpi_config *c, const char *plugin, const char *key)
{
    size_t n_keys;
    const struct bpi_config_key *keys = bpi_config_keys(&n_keys);
    for (size_t i = c->n; i > 0; --i) {
        const struct bpi_config_item *item = &c->items[i - 1];
        if (strcmp(item->name, key) == 0 && is_of_plugin(item->section, plugin)) return item->value;
    }
    for (size_t i = 0; i < n_keys; ++i) {
        if (strcmp(keys[i].key, key) == 0 && is_of_plugin(keys[i].section, plugin))
            return keys[i].dflt;
    }
    return NULL;
}

bool bpi_config_plugin_key_at(const struct bpi_config *c, const char *plugin, size_t i,
                              const char **key, const char **value)
{
    size_t n_keys;
    const struct bpi_config_key *keys = bpi_config_keys(&n_keys);
    for (size_t k = 0; k < n_keys; ++k) {
        if (!is_of_plugin(keys[k].section, plugin) || i-- > 0) continue;
        *key = keys[k].key;
        *value = row_value(c, &keys[k]);
        return true;
    }
    for (size_t k = 0; k < c->n; ++k) {
        const struct bpi_config_item *item = &c->items[k];
        if (item->row != NULL || !is_of_plugin(item->section, plugin) ||
            strcmp(item->name, "file") == 0 || item->replaced || i-- > 0)
            continue;
        *key = item->name;
        *value = item->value;
        return true;
    }
    return false;
}

const char *bpi_config_plugin_name_at(const struct bpi_config *c, size_t i)
{
    for (size_t k = 0; k < c->n; ++k) {
        const char *name = bpi_config_plugin_name(c->items[k].section);
        if (name != NULL && c->items[k].opens && i-- == 0) return name;
    }
    return NULL;
}

/* ---- everything ---- */

void bpi_config_each(const struct bpi_config *c,
                     void (*fn)(void *ctx, const struct bpi_config_key *key, const char *section,
                                const char *name, const char *value, const char *origin),
                     void *ctx)
{
    size_t n_keys;
    const struct bpi_config_key *keys = bpi_config_keys(&n_keys);
    for (size_t i = 0; i < n_keys; ++i)
        fn(ctx, &keys[i], keys[i].section, keys[i].key, row_value(c, &keys[i]),
           row_origin(c, &keys[i]));
    for (size_t i = 0; i < c->n; ++i) {
        const struct bpi_config_item *item = &c->items[i];
        if (item->row == NULL && !item->replaced)
            fn(ctx, NULL, item->section, item->name, item->value, item->origin);
    }
}

int32_t bpi_config_check(const struct bpi_config *c, struct bp_error *err)
{
    int64_t slab = bpi_config_int(c, "engine", "slab"), block = bpi_config_int(c, "kv", "block");
    if (slab % block != 0)
        return bpi_fail(err, BP_E_CONFIG, BPI_CONFIG_DOMAIN, bpi_config_origin(c, "engine", "slab"),
                        "[engine] slab = %lld is no multiple of [kv] block = %lld (%s); choose for "
                        "example slab = %lld",
                        (long long)slab, (long long)block, bpi_config_origin(c, "kv", "block"),
                        (long long)((slab + block - 1) / block * block));
    if (bpi_config_is_auto(c, "model", "yarn_beta_fast") ||
        bpi_config_is_auto(c, "model", "yarn_beta_slow"))
        return BP_OK;
    double fast = bpi_config_float(c, "model", "yarn_beta_fast");
    double slow = bpi_config_float(c, "model", "yarn_beta_slow");
    if (fast >= slow) return BP_OK;
    return bpi_fail(
        err, BP_E_CONFIG, BPI_CONFIG_DOMAIN, bpi_config_origin(c, "model", "yarn_beta_slow"),
        "[model] yarn_beta_slow = %s is above yarn_beta_fast = %s (%s); give the larger "
        "one to yarn_beta_fast",
        bpi_config_str(c, "model", "yarn_beta_slow"), bpi_config_str(c, "model", "yarn_beta_fast"),
        bpi_config_origin(c, "model", "yarn_beta_fast"));
}
