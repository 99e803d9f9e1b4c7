/* stage_config.c - stage 2: the keys that a plugin declares, their defaults, and values that it cannot take.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kit.h"

static bool word_of(const char *list, const char *word)
{
    const size_t n = strlen(word);
    for (const char *p = list; *p != '\0';) {
        const size_t len = strcspn(p, "|");
        if (len == n && strncmp(p, word, n) == 0) return true;
        p += len + (p[len] == '|');
    }
    return false;
}

/* Does a text lie in type and range of a key? */
static bool value_fits(const struct bp_cfg_key *key, const char *v)
{
    static const char bools[] = "true|false|yes|no|on|off|1|0";
    char *end;
    if (strcmp(key->type, "string") == 0) return true;
    if (strcmp(key->type, "bool") == 0) return word_of(bools, v);
    if (strncmp(key->type, "enum:", 5) == 0) return word_of(key->type + 5, v);
    double x = strcmp(key->type, "int") == 0 ? (double)strtoll(v, &end, 10) : strtod(v, &end);
    return *v != '\0' && *end == '\0' && x >= key->lo && x <= key->hi;
}

static bool known_type(const char *t)
{
    return strcmp(t, "string") == 0 || strcmp(t, "int") == 0 || strcmp(t, "float") == 0 ||
           strcmp(t, "bool") == 0 || (strncmp(t, "enum:", 5) == 0 && t[5] != '\0');
}

static bool check_key(struct kit *k, const struct bp_plugin_desc *d, uint32_t i)
{
    const struct bp_cfg_key *key = kit_key_at(d, i);
    const char *name = key->name != NULL ? key->name : "?";
    if (key->name == NULL || key->name[0] == '\0')
        return kit_refuse(k, "2.1", BP_R_CONFIG, "keys", NULL, "key %u has no name", i);
    if (key->type == NULL || !known_type(key->type))
        return kit_refuse(k, "2.1", BP_R_CONFIG, name, NULL,
                          "type `%.40s` is none of string, int, float, bool, enum:a|b",
                          key->type != NULL ? key->type : "(null)");
    if (key->dflt == NULL || key->doc == NULL || key->doc[0] == '\0')
        return kit_refuse(k, "2.1", BP_R_CONFIG, name, NULL, "it has no default, or no text");
    for (uint32_t j = 0; j < i; ++j) {
        if (kit_key_at(d, j)->name != NULL && strcmp(kit_key_at(d, j)->name, key->name) == 0)
            return kit_refuse(k, "2.1", BP_R_CONFIG, name, NULL, "it is declared twice");
    }
    if (!value_fits(key, key->dflt))
        return kit_refuse(k, "2.2", BP_R_CONFIG, name, NULL,
                          "default `%.40s`, type %.40s, range %g..%g", key->dflt, key->type,
                          key->lo, key->hi);
    return true;
}

/* Opens with these values. *rc: what open said; err: its sentence. */
static void open_with(struct kit *k, const struct bp_plugin_desc *d, const struct kit_set *sets,
                      uint32_t n, const char *what, int32_t *rc, struct bp_error *err)
{
    struct kit_host host;
    void *plugin = NULL;
    *err = (struct bp_error)BP_ERROR_INIT;
    kit_host_init(&host, sets, n);
    kit_at(k, "2.4", "", "open", "opening with %s", what);
    kit_enter(k);
    *rc = d->open(&host.table, &plugin, err);
    if (*rc == BP_OK) d->close(plugin);
    kit_leave(k);
    err->msg[sizeof err->msg - 1] = '\0';
    if (host.live_blocks != 0)
        (void)kit_fail(k, "4.2", "", "open", NULL,
                       "%lld blocks are left after opening with %s (%s)",
                       (long long)host.live_blocks, what, kit_status_name(*rc));
    kit_host_done(&host);
}

static bool has_sentence(struct kit *k, const char *what, int32_t rc, const struct bp_error *err)
{
    if (rc < 0 && rc >= BP_E_INTERNAL && err->msg[0] != '\0') return true;
    return kit_fail(k, "2.5", "", "open", NULL, "open with %s returned %d (%s)%s", what, rc,
                    kit_status_name(rc), err->msg[0] == '\0' ? " and no sentence" : "");
}

static void bad_value(struct kit *k, const struct bp_plugin_desc *d, const struct bp_cfg_key *key,
                      const char *v)
{
    struct kit_set set = {.value = v};
    struct bp_error err;
    char what[128];
    int32_t rc;
    (void)snprintf(set.key, sizeof set.key, "%.60s", key->name);
    (void)snprintf(what, sizeof what, "%.60s = %.40s", key->name, v);
    open_with(k, d, &set, 1, what, &rc, &err);
    if (rc != BP_OK) {
        if (rc != BP_E_CONFIG)
            (void)kit_refuse(k, "2.4", BP_R_CONFIG, key->name, "the status is BP_E_CONFIG",
                             "open with %s returned %s", what, kit_status_name(rc));
        (void)has_sentence(k, what, rc, &err);
        return;
    }
    /* Ranges of numbers are the engine's to check, before open. What a number or a choice cannot be is known to both. */
    char *end;
    bool number = strcmp(key->type, "int") == 0 || strcmp(key->type, "float") == 0;
    if (number) {
        (void)strtod(v, &end);
        if (*v != '\0' && *end == '\0') return;
    }
    (void)kit_refuse(k, "2.4", BP_R_CONFIG, key->name, NULL, "open succeeds with %s, of type %.40s",
                     what, key->type);
}

static void bad_values(struct kit *k, const struct bp_plugin_desc *d, const struct bp_cfg_key *key)
{
    static char endless[9000];
    memset(endless, 'x', sizeof endless - 1);
    if (strcmp(key->type, "string") == 0) { /* any text is a string: nothing may crash */
        struct kit_set set = {.value = endless};
        struct bp_error err;
        int32_t rc;
        (void)snprintf(set.key, sizeof set.key, "%.60s", key->name);
        open_with(k, d, &set, 1, "a text of 9000 bytes", &rc, &err);
        if (rc != BP_OK) (void)has_sentence(k, "a text of 9000 bytes", rc, &err);
        return;
    }
    bad_value(k, d, key, "no_such_value");
    bad_value(k, d, key, endless);
    if (strcmp(key->type, "int") == 0) {
        bad_value(k, d, key, "99999999999999999999");
        bad_value(k, d, key, "-9223372036854775808");
        bad_value(k, d, key, "9223372036854775807");
    }
    if (strcmp(key->type, "float") == 0) {
        bad_value(k, d, key, "nan");
        bad_value(k, d, key, "1e999");
    }
}

void kit_stage_config(struct kit *k)
{
    const struct bp_plugin_desc *d = kit_descriptor(k);
    struct kit_set *sets;
    struct bp_error err;
    int32_t rc;
    bool good = true;
    if (d == NULL) return;
    kit_at(k, "2.1", "", "keys", "reading the keys");
    for (uint32_t i = 0; i < d->n_cfg; ++i) good = check_key(k, d, i) && good;
    for (uint32_t s = 0; s < k->o->n_sets; ++s) {
        bool known = false;
        for (uint32_t i = 0; good && i < d->n_cfg; ++i)
            known |= strcmp(kit_key_at(d, i)->name, k->o->sets[s].key) == 0;
        if (good && !known)
            kit_note(k, "", "the plugin declares no key `%s`, which was given with --set",
                     k->o->sets[s].key);
    }
    if (!good) return;
    sets = calloc(d->n_cfg + 1, sizeof *sets);
    if (sets == NULL) return;
    for (uint32_t i = 0; i < d->n_cfg; ++i) {
        (void)snprintf(sets[i].key, sizeof sets[i].key, "%.60s", kit_key_at(d, i)->name);
        sets[i].value = kit_key_at(d, i)->dflt;
    }
    open_with(k, d, sets, d->n_cfg, "every default written out", &rc, &err);
    if (rc != BP_OK)
        (void)kit_refuse(k, "2.3", BP_R_CONFIG, "open", NULL, "open returned %s: %.200s",
                         kit_status_name(rc), err.msg);
    for (uint32_t i = 0; i < d->n_cfg; ++i) bad_values(k, d, kit_key_at(d, i));
    free(sets);
}
