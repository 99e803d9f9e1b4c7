/* config_store.c - the settings as a list: create, destroy, check and append one setting, -s.
 * Not here: cutting an INI into settings (config_load.c), giving values out (config_read.c).
 * Threads: one at a time while it is built. SPDX-License-Identifier: MIT */
#include "config/config_priv.h"

#include <stdio.h>
#include <string.h>

int32_t bpi_config_create(struct bpi_config **out, struct bp_error *err)
{
    struct bpi_config *c = bpi_calloc(1, sizeof *c);
    if (c == NULL) return bpi_fail_nomem(err, BPI_CONFIG_DOMAIN, sizeof *c);
    *out = c;
    return BP_OK;
}

void bpi_config_truncate(struct bpi_config *c, size_t n)
{
    while (c->n > n) {
        struct bpi_config_item *item = &c->items[--c->n];
        if (item->replaces != SIZE_MAX) c->items[item->replaces].replaced = false;
        bpi_free(item->block);
    }
}

void bpi_config_destroy(struct bpi_config *c)
{
    if (c == NULL) return;
    bpi_config_truncate(c, 0);
    bpi_free(c->items);
    bpi_free(c);
}

void bpi_config_source_line(struct bpi_config_source *src, unsigned line)
{
    src->line = line;
    if (line == 0) {
        snprintf(src->where, sizeof src->where, "%s", src->label);
        return;
    }
    char number[16];
    int digits = snprintf(number, sizeof number, ":%u", line);
    bpi_copy_end(src->where, sizeof src->where - (size_t)digits, src->label);
    memcpy(src->where + strlen(src->where), number, (size_t)digits + 1);
}

/* ---- names ---- */

const char *bpi_config_plugin_name(const char *section)
{
    const char *prefix = "plugin.";
    size_t n_prefix = strlen(prefix), n = strlen(section);
    if (n <= n_prefix || n > BPI_CONFIG_MAX_SECTION || memcmp(section, prefix, n_prefix) != 0)
        return NULL;
    for (const char *s = section + n_prefix; *s != '\0'; ++s) {
        bool ok = (*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') ||
                  (*s >= '0' && *s <= '9') || *s == '_' || *s == '-';
        if (!ok) return NULL;
    }
    return section + n_prefix;
}

static bool is_table_section(const char *section)
{
    size_t n;
    const struct bpi_config_section *s = bpi_config_sections(&n);
    for (size_t i = 0; i < n; ++i) {
        if (strcmp(s[i].name, section) == 0) return true;
    }
    return false;
}

bool bpi_config_section_known(const char *section)
{
    return is_table_section(section) || bpi_config_plugin_name(section) != NULL;
}

int32_t bpi_config_unknown_section(const struct bpi_config_source *src, const char *section,
                                   struct bp_error *err)
{
    const char *names[16], *near;
    size_t n;
    const struct bpi_config_section *s = bpi_config_sections(&n);
    if (strncmp(section, "plugin", 6) == 0 && (section[6] == '.' || section[6] == '\0'))
        return bpi_fail(err, BP_E_CONFIG, BPI_CONFIG_DOMAIN, src->where,
                        "[%s] names no plugin; write [plugin.NAME] with a NAME of letters, digits, "
                        "_ and -, at most %u bytes in all",
                        bpi_config_quote(section).text, BPI_CONFIG_MAX_SECTION);
    for (size_t i = 0; i < n && i < BPI_ARRAY_LEN(names); ++i) names[i] = s[i].name;
    near = bpi_nearest(section, names, n < BPI_ARRAY_LEN(names) ? n : BPI_ARRAY_LEN(names));
    if (near != NULL)
        return bpi_fail(err, BP_E_CONFIG, BPI_CONFIG_DOMAIN, src->where,
                        "unknown section [%s]; did you mean [%s]?", bpi_config_quote(section).text,
                        near);
    struct bpi_config_quote q = bpi_config_quote(section);
    return bpi_fail(err, BP_E_CONFIG, BPI_CONFIG_DOMAIN, src->where,
                    "unknown section [%s]; there are engine, slots, kv, parallel, model, sample, "
                    "plugin.NAME and wrap",
                    q.text);
}

static int32_t unknown_key(const struct bpi_config_source *src, const char *section,
                           const char *name, struct bp_error *err)
{
    const char *names[64], *near;
    size_t n_keys, n = 0;
    const struct bpi_config_key *keys = bpi_config_keys(&n_keys);
    struct bpi_config_quote q = bpi_config_quote(name);
    /* [wrap] takes the names of [slots]. */
    const char *like = strcmp(section, "wrap") == 0 ? "slots" : section;
    for (size_t i = 0; i < n_keys && n < BPI_ARRAY_LEN(names); ++i) {
        if (strcmp(keys[i].section, like) == 0) names[n++] = keys[i].key;
    }
    near = bpi_nearest(name, names, n);
    if (near != NULL)
        return bpi_fail(err, BP_E_CONFIG, BPI_CONFIG_DOMAIN, src->where,
                        "unknown key %s in [%s]; did you mean %s?", q.text, section, near);
    for (size_t i = 0; i < n_keys; ++i) {
        if (strcmp(keys[i].key, name) == 0)
            return bpi_fail(err, BP_E_CONFIG, BPI_CONFIG_DOMAIN, src->where,
                            "unknown key %s in [%s]; it belongs to [%s]", q.text, section,
                            keys[i].section);
    }
    return bpi_fail(err, BP_E_CONFIG, BPI_CONFIG_DOMAIN, src->where,
                    "unknown key %s in [%s]; etc/backplane.ini lists every key", q.text, section);
}

/* ---- one setting: which key, which layers, which value ---- */

struct setting {
    const char *section, *name, *value;
    const struct bpi_config_key *row; /* what the value is checked against; NULL for free text */
    bool in_table;                    /* the row is what is being set, not only its model */
    size_t base_len;
    int32_t layer_lo, layer_hi;
};

/* "@layers" reached the name, "A-B = LIST" the value, because an INI line is cut at its first `=`. */
static int32_t split_layers(struct setting *s, const struct bpi_config_source *src,
                            struct bp_error *err)
{
    const char *at = s->name + s->base_len;
    if (strcmp(at, "@layers") != 0)
        return bpi_fail(err, BP_E_CONFIG, BPI_CONFIG_DOMAIN, src->where,
                        "%s in [%s]: expected @layers=A-B after the slot, as in "
                        "mla.decode@layers=0-2 = ref",
                        bpi_config_quote(s->name).text, s->section);
    if ((s->row->flags & BPI_CFG_NO_LAYERS) != 0)
        return bpi_fail(err, BP_E_CONFIG, BPI_CONFIG_DOMAIN, src->where,
                        "%s in [%s] takes no @layers, because one provider serves the whole rank",
                        s->row->key, s->section);
    const char *equals = strchr(s->value, '=');
    size_t n = equals != NULL ? (size_t)(equals - s->value) : strlen(s->value);
    while (n > 0 && (s->value[n - 1] == ' ' || s->value[n - 1] == '\t')) --n;
    if (equals == NULL || !bpi_config_parse_layers(s->value, n, &s->layer_lo, &s->layer_hi))
        return bpi_fail(err, BP_E_CONFIG, BPI_CONFIG_DOMAIN, src->where,
                        "[%s] %s@layers=%s: expected one layer or a range A-B with A <= B <= %d, "
                        "then = and names, as in %s@layers=0-2 = ref",
                        s->section, s->row->key, bpi_config_quote(s->value).text,
                        BPI_CONFIG_MAX_LAYER, s->row->key);
    s->value = equals + 1 + strspn(equals + 1, " \t");
    s->in_table = false;
    return BP_OK;
}

static int32_t resolve_plugin_key(struct setting *s, const struct bpi_config_source *src,
                                  struct bp_error *err)
{
    for (const char *p = s->name; *p != '\0'; ++p) {
        bool ok = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') ||
                  (*p >= '0' && *p <= '9') || *p == '_' || *p == '-' || *p == '.';
        if (!ok)
            return bpi_fail(
                err, BP_E_CONFIG, BPI_CONFIG_DOMAIN, src->where,
                "key %s in [%s] may only hold letters, digits, dot, minus and underscore",
                bpi_config_quote(s->name).text, s->section);
    }
    s->in_table = false;
    return BP_OK;
}

static int32_t resolve(struct setting *s, const struct bpi_config_source *src, struct bp_error *err)
{
    bool wrap = strcmp(s->section, "wrap") == 0;
    bool slots = wrap || strcmp(s->section, "slots") == 0;
    if (!bpi_config_section_known(s->section))
        return bpi_config_unknown_section(src, s->section, err);
    if (s->name[0] == '\0')
        return bpi_fail(err, BP_E_CONFIG, BPI_CONFIG_DOMAIN, src->where,
                        "a value in [%s] has no key; write key = value", s->section);
    if (strlen(s->name) > BPI_CONFIG_MAX_NAME)
        return bpi_fail(err, BP_E_LIMIT, BPI_CONFIG_DOMAIN, src->where,
                        "the key %s has %zu bytes, more than the %u that are accepted",
                        bpi_config_quote(s->name).text, strlen(s->name), BPI_CONFIG_MAX_NAME);
    if (!is_table_section(s->section)) return resolve_plugin_key(s, src, err);
    s->base_len = slots ? strcspn(s->name, "@") : strlen(s->name);
    s->row = bpi_config_row(wrap ? "slots" : s->section, s->name, s->base_len);
    s->in_table = !wrap;
    if (s->row == NULL) return unknown_key(src, s->section, s->name, err);
    return s->name[s->base_len] == '@' ? split_layers(s, src, err) : BP_OK;
}

static int32_t check_value(const struct setting *s, const struct bpi_config_source *src,
                           struct bp_error *err)
{
    char allowed[192], hint[128];
    if (s->row == NULL) return BP_OK;
    if (strcmp(s->section, "wrap") == 0 && bpi_config_list_ok(s->value, true)) return BP_OK;
    if (bpi_config_value_ok(s->row, s->value, hint, sizeof hint)) return BP_OK;
    bpi_config_allowed(s->row, allowed, sizeof allowed);
    return bpi_fail(err, BP_E_CONFIG, BPI_CONFIG_DOMAIN, src->where, "[%s] %s = %s: expected %s%s",
                    s->section, s->row->key,
                    s->value[0] != '\0' ? bpi_config_quote(s->value).text : "(nothing)", allowed,
                    hint);
}

/* The live setting of the same name, or SIZE_MAX; also whether the section was mentioned before. */
static size_t find_same(const struct bpi_config *c, const struct setting *s, bool *out_opens)
{
    size_t same = SIZE_MAX;
    *out_opens = true;
    for (size_t i = 0; i < c->n; ++i) {
        const struct bpi_config_item *item = &c->items[i];
        if (strcmp(item->section, s->section) != 0) continue;
        *out_opens = false;
        if (item->layer_lo == s->layer_lo && item->layer_hi == s->layer_hi &&
            item->base_len == s->base_len && memcmp(item->name, s->name, s->base_len) == 0)
            same = i;
    }
    return same;
}

static int32_t check_place(const struct bpi_config *c, const struct setting *s,
                           const struct bpi_config_source *src, size_t same, struct bp_error *err)
{
    if (same != SIZE_MAX && same >= src->first) {
        const char *line = strrchr(c->items[same].origin, ':');
        return bpi_fail(
            err, BP_E_CONFIG, BPI_CONFIG_DOMAIN, src->where,
            "[%s] %s is set twice in this file, first in line %s; remove one of the two",
            s->section, bpi_config_quote(c->items[same].name).text, line != NULL ? line + 1 : "?");
    }
    if (src->first <= c->n && c->n - src->first >= BPI_CONFIG_MAX_KEYS)
        return bpi_fail(err, BP_E_LIMIT, BPI_CONFIG_DOMAIN, src->where,
                        "this file sets more than the %u keys that are accepted",
                        BPI_CONFIG_MAX_KEYS);
    if (c->n >= BPI_CONFIG_MAX_SETTINGS)
        return bpi_fail(err, BP_E_LIMIT, BPI_CONFIG_DOMAIN, src->where,
                        "files and -s together set more than the %u keys that are accepted",
                        BPI_CONFIG_MAX_SETTINGS);
    return BP_OK;
}

static int32_t reserve_item(struct bpi_config *c, struct bp_error *err)
{
    if (c->n < c->cap) return BP_OK;
    size_t cap = c->cap > 0 ? 2 * c->cap : 32;
    struct bpi_config_item *items = bpi_realloc(c->items, cap, sizeof *items);
    if (items == NULL) return bpi_fail_nomem(err, BPI_CONFIG_DOMAIN, cap * sizeof *items);
    c->items = items;
    c->cap = cap;
    return BP_OK;
}

/* Copies the texts of a setting into one block behind a new item. */
static int32_t append(struct bpi_config *c, const struct setting *s,
                      const struct bpi_config_source *src, size_t same, bool opens,
                      struct bp_error *err)
{
    char layers[32] = "", line[16] = "";
    if (s->layer_lo >= 0 && s->layer_lo == s->layer_hi)
        snprintf(layers, sizeof layers, "@layers=%d", s->layer_lo);
    else if (s->layer_lo >= 0)
        snprintf(layers, sizeof layers, "@layers=%d-%d", s->layer_lo, s->layer_hi);
    if (src->line > 0) snprintf(line, sizeof line, ":%u", src->line);
    const char *parts[] = {s->section, "", s->name, layers, s->value, "", src->label, line};
    const char *texts[4];
    size_t total = 0, at = 0;
    for (size_t i = 0; i < 8; ++i) total += strlen(parts[i]) + 1;
    char *block = bpi_alloc(total);
    if (block == NULL) return bpi_fail_nomem(err, BPI_CONFIG_DOMAIN, total);
    for (size_t i = 0; i < 4; ++i) {
        size_t n_first = i == 1 ? s->base_len : strlen(parts[2 * i]);
        size_t n_second = strlen(parts[2 * i + 1]);
        texts[i] = block + at;
        memcpy(block + at, parts[2 * i], n_first);
        memcpy(block + at + n_first, parts[2 * i + 1], n_second + 1);
        at += n_first + n_second + 1;
    }
    if (same != SIZE_MAX) c->items[same].replaced = true;
    c->items[c->n++] = (struct bpi_config_item){.row = s->in_table ? s->row : NULL,
                                                .block = block,
                                                .section = texts[0],
                                                .name = texts[1],
                                                .value = texts[2],
                                                .origin = texts[3],
                                                .base_len = s->base_len,
                                                .layer_lo = s->layer_lo,
                                                .layer_hi = s->layer_hi,
                                                .replaces = same,
                                                .opens = opens};
    return BP_OK;
}

int32_t bpi_config_add(struct bpi_config *c, const struct bpi_config_source *src,
                       const char *section, const char *name, const char *value,
                       struct bp_error *err)
{
    struct setting s = {.section = section,
                        .name = name,
                        .value = value,
                        .base_len = strlen(name),
                        .layer_lo = -1,
                        .layer_hi = -1};
    BP_TRY(resolve(&s, src, err));
    BP_TRY(check_value(&s, src, err));
    bool opens;
    size_t same = find_same(c, &s, &opens);
    BP_TRY(check_place(c, &s, src, same, err));
    BP_TRY(reserve_item(c, err));
    return append(c, &s, src, same, opens, err);
}

/* ---- -s ---- */

/* Cuts "section.key" at the last dot that leaves a known section; false when there is none. */
static bool split_section(const char *name, char section[BPI_CONFIG_MAX_SECTION + 1],
                          const char **out_key)
{
    size_t n = strcspn(name, "@"); /* dots of layers are no concern of the section */
    while (n > 0) {
        --n;
        if (name[n] != '.' || n > BPI_CONFIG_MAX_SECTION) continue;
        memcpy(section, name, n);
        section[n] = '\0';
        if (bpi_config_section_known(section)) {
            *out_key = name + n + 1;
            return true;
        }
    }
    return false;
}

/* The message for a name in which no known section was found. */
static int32_t no_section(const struct bpi_config_source *src, const char *name,
                          struct bp_error *err)
{
    char section[BPI_CONFIG_MAX_SECTION + 1];
    size_t n_keys, n = strcspn(name, ".");
    const struct bpi_config_key *keys = bpi_config_keys(&n_keys);
    if (name[n] == '.') {
        snprintf(section, sizeof section, "%.*s", (int)(n < sizeof section ? n : 0), name);
        return bpi_config_unknown_section(src, section[0] != '\0' ? section : name, err);
    }
    if (name[0] == '\0')
        return bpi_fail(
            err, BP_E_CONFIG, BPI_CONFIG_DOMAIN, src->where,
            "the setting has no key; write -s section.key=value, as in -s kv.dtype=f32");
    for (size_t i = 0; i < n_keys; ++i) {
        if (strcmp(keys[i].key, name) == 0)
            return bpi_fail(err, BP_E_CONFIG, BPI_CONFIG_DOMAIN, src->where,
                            "%s lacks its section; write -s %s.%s=VALUE", name, keys[i].section,
                            name);
    }
    return bpi_fail(err, BP_E_CONFIG, BPI_CONFIG_DOMAIN, src->where,
                    "%s is no section.key; write -s section.key=value, as in -s kv.dtype=f32",
                    bpi_config_quote(name).text);
}

int32_t bpi_config_set(struct bpi_config *c, const char *assignment, struct bp_error *err)
{
    struct bpi_config_source src = {.label = "-s", .first = SIZE_MAX};
    char copy[BPI_CONFIG_MAX_LINE + 1], section[BPI_CONFIG_MAX_SECTION + 1], why[128];
    const char *key;
    bpi_config_source_line(&src, 0);
    size_t n = strlen(assignment);
    if (n > BPI_CONFIG_MAX_LINE)
        return bpi_fail(err, BP_E_LIMIT, BPI_CONFIG_DOMAIN, src.where,
                        "the setting has %zu bytes, more than the %u that are accepted", n,
                        BPI_CONFIG_MAX_LINE);
    if (!bpi_config_text_ok(assignment, n, why, sizeof why))
        return bpi_fail(err, BP_E_CONFIG, BPI_CONFIG_DOMAIN, src.where, "the setting holds %s",
                        why);
    memcpy(copy, assignment, n + 1);
    while (n > 0 && (copy[n - 1] == ' ' || copy[n - 1] == '\t')) copy[--n] = '\0';
    char *name = copy + strspn(copy, " \t");
    char *equals = strchr(name, '=');
    if (equals == NULL)
        return bpi_fail(err, BP_E_CONFIG, BPI_CONFIG_DOMAIN, src.where,
                        "%s has no `=`; write -s section.key=value, as in -s kv.dtype=f32",
                        name[0] != '\0' ? bpi_config_quote(name).text : "an empty setting");
    const char *value = equals + 1 + strspn(equals + 1, " \t");
    for (*equals = '\0'; equals > name && (equals[-1] == ' ' || equals[-1] == '\t'); --equals)
        equals[-1] = '\0';
    if (!split_section(name, section, &key)) return no_section(&src, name, err);
    return bpi_config_add(c, &src, section, key, value, err);
}
