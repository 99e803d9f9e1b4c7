/* loader_schema.c - checks [plugin.NAME] against the keys that the plugin declares.
 * Not here: reading the INI (core/config). Threads: one at a time per loader. SPDX-License-Identifier: MIT */
#include "loader/loader_priv.h"

#include <stdio.h>
#include <string.h>

enum { MAX_KEYS = 256 }; /* of one plugin */

static const struct bp_cfg_key *key_at(const struct bp_plugin_desc *desc, uint32_t i)
{
    return (const struct bp_cfg_key *)(const void *)((const unsigned char *)desc->cfg +
                                                     (uint64_t)i * desc->cfg_stride);
}

/* Is `word` one of "a|b|c"? */
static bool in_choices(const char *choices, const char *word)
{
    const size_t n = strlen(word);
    for (const char *at = choices; *at != '\0';) {
        size_t len = strcspn(at, "|");
        if (len == n && memcmp(at, word, n) == 0) return true;
        at += len;
        if (*at == '|') ++at;
    }
    return false;
}

static bool is_bool(const char *value)
{
    return in_choices("true|false|yes|no|on|off|1|0", value);
}

/* Appends to *want what the key takes, in words. */
static bool value_fits(const struct bp_cfg_key *k, const char *value, struct bpi_buf *want)
{
    int64_t i;
    double f;
    if (strcmp(k->type, "int") == 0) {
        bpi_buf_printf(want, "a whole number from %lld to %lld", (long long)k->lo,
                       (long long)k->hi);
        return bpi_parse_i64(value, &i) && (double)i >= k->lo && (double)i <= k->hi;
    }
    if (strcmp(k->type, "float") == 0) {
        bpi_buf_printf(want, "a number from %g to %g", k->lo, k->hi);
        return bpi_parse_f64(value, &f) && f >= k->lo && f <= k->hi;
    }
    if (strcmp(k->type, "bool") == 0) {
        bpi_buf_puts(want, "true or false");
        return is_bool(value);
    }
    if (strncmp(k->type, "enum:", 5) == 0) {
        bpi_buf_printf(want, "one of %s", k->type + 5);
        return in_choices(k->type + 5, value);
    }
    return strcmp(k->type, "string") == 0;
}

/* Where a key was set: bpi_config_origin knows the keys of the table only. */
struct origin {
    const char *section, *key, *text;
};

static void match_origin(void *ctx, const struct bpi_config_key *row, const char *section,
                         const char *name, const char *value, const char *text)
{
    struct origin *o = ctx;
    (void)row;
    (void)value;
    if (strcmp(section, o->section) == 0 && strcmp(name, o->key) == 0) o->text = text;
}

static const char *origin_of(const struct bpi_config *config, const char *section, const char *key)
{
    struct origin o = {section, key, "config"};
    bpi_config_each(config, match_origin, &o);
    return o.text;
}

static int32_t check_key(const struct bpi_config *config, const char *name,
                         const struct bp_plugin_desc *desc, const char *key, const char *value,
                         struct bp_error *err)
{
    const char *names[MAX_KEYS];
    char where[96], section[64];
    (void)snprintf(section, sizeof section, "plugin.%s", name);
    (void)snprintf(where, sizeof where, "[%s] %s", section, key);
    for (uint32_t i = 0; i < desc->n_cfg; ++i) {
        const struct bp_cfg_key *k = key_at(desc, i);
        struct bpi_buf want = {0};
        names[i] = k->name;
        if (strcmp(k->name, key) != 0) continue;
        int32_t rc = BP_OK;
        if (!value_fits(k, value, &want)) {
            rc = bpi_fail(err, BP_E_CONFIG, "config", where, "the value \"%s\" (%s) is not %s: %s",
                          value, origin_of(config, section, key),
                          want.data != NULL ? want.data : k->type, k->doc);
        }
        bpi_buf_free(&want);
        return rc;
    }
    const char *near = bpi_nearest(key, names, desc->n_cfg);
    return bpi_fail(err, BP_E_CONFIG, "config", where, "plugin %s knows no such key (%s)%s%s%s",
                    name, origin_of(config, section, key), near != NULL ? "; did you mean \"" : "",
                    near != NULL ? near : "", near != NULL ? "\"?" : "");
}

static bool known_type(const char *type)
{
    static const char *const plain[] = {"string", "int", "float", "bool"};
    for (size_t i = 0; i < BPI_ARRAY_LEN(plain); ++i) {
        if (strcmp(type, plain[i]) == 0) return true;
    }
    return strncmp(type, "enum:", 5) == 0 && type[5] != '\0';
}

/* What the texts of this file are made of. Defaults are the plugin's own affair: it gets no value when none is set. */
static int32_t check_keys(const char *name, const struct bp_plugin_desc *desc, struct bp_error *err)
{
    for (uint32_t i = 0; i < desc->n_cfg; ++i) {
        const struct bp_cfg_key *k = key_at(desc, i);
        if (k->name != NULL && k->type != NULL && k->doc != NULL && known_type(k->type)) continue;
        return bpi_fail(err, BP_E_ABI, "loader", name,
                        "key %u of the plugin (\"%s\") has no name, no text, or no type that this "
                        "engine knows (\"%s\"); mend its struct bp_cfg_key",
                        i, k->name != NULL ? k->name : "", k->type != NULL ? k->type : "");
    }
    return BP_OK;
}

int32_t bpi_plugin_check_config(const struct bpi_config *config, const char *name,
                                const struct bp_plugin_desc *desc, struct bp_error *err)
{
    const char *key, *value;
    if (desc->n_cfg > MAX_KEYS ||
        (desc->n_cfg != 0 && (desc->cfg == NULL || desc->cfg_stride < sizeof(struct bp_cfg_key)))) {
        return bpi_fail(
            err, BP_E_ABI, "loader", name,
            "the plugin declares %u keys of %u bytes; at most %d of at least %zu were expected",
            desc->n_cfg, desc->cfg_stride, MAX_KEYS, sizeof(struct bp_cfg_key));
    }
    BP_TRY(check_keys(name, desc, err));
    for (size_t i = 0; config != NULL && bpi_config_plugin_key_at(config, name, i, &key, &value);
         ++i) {
        BP_TRY(check_key(config, name, desc, key, value, err));
    }
    return BP_OK;
}
