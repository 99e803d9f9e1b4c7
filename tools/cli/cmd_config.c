/* cmd_config.c - `backplane config`: every key with its value, where it came from, its range and meaning.
 * SPDX-License-Identifier: MIT */
#include "cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// clang-format off
static const struct cli_option options[] = {
    {"explain", 0, CLI_TEXT, "KEY", NULL, NULL, 0, 0, "Only this key, such as kv.dtype, with all that is known about it."},
};
// clang-format on

static json_t *entry_json(const struct bp_config_entry *e)
{
    json_t *o = json_object();
    json_object_set_new(o, "section", cli_json_text(e->section, strlen(e->section)));
    json_object_set_new(o, "key", cli_json_text(e->key, strlen(e->key)));
    json_object_set_new(o, "value", cli_json_text(e->value, strlen(e->value)));
    json_object_set_new(o, "origin", cli_json_text(e->origin, strlen(e->origin)));
    json_object_set_new(o, "default", json_string(e->dflt));
    json_object_set_new(o, "type", json_string(e->type));
    json_object_set_new(o, "range", json_string(e->range));
    json_object_set_new(o, "doc", json_string(e->doc));
    return o;
}

static void print_entry(const struct bp_config_entry *e, bool full)
{
    char line[512];
    size_t n = (size_t)snprintf(line, sizeof line, "%s.%s = %s", e->section, e->key, e->value);
    term_out(line, n < sizeof line ? n : sizeof line - 1);
    if (!full) {
        printf("%*s  ; %s\n", n < 40 ? (int)(40 - n) : 0, "", e->origin);
        return;
    }
    printf("\n  from:    %s\n  default: %s\n  type:    %s\n", e->origin, e->dflt, e->type);
    if (e->range[0] != '\0') printf("  range:   %s\n", e->range);
    printf("  %s\n", e->doc);
}

/* The name of key i as the user writes it, freed by the caller; NULL past the end or out of memory. */
static char *full_name(struct cli *c, uint32_t i)
{
    struct bp_config_entry e = {.h = BP_HDR(struct bp_config_entry, doc)};
    if (bp_config_entry(c->config, i, &e) != BP_OK) return NULL;
    size_t n = strlen(e.section) + strlen(e.key) + 2;
    char *name = malloc(n);
    if (name != NULL) snprintf(name, n, "%s.%s", e.section, e.key);
    return name;
}

static int32_t unknown_key(struct cli *c, const char *wanted)
{
    char *names[512];
    size_t n = 0;
    while (n < sizeof names / sizeof names[0] && (names[n] = full_name(c, (uint32_t)n)) != NULL)
        ++n;
    const char *near = cli_nearest(wanted, (const char *const *)names, n);
    for (size_t i = 0; near == NULL && i < n; ++i) { /* the key without its section */
        const char *dot = strrchr(names[i], '.');
        if (dot != NULL && strcmp(dot + 1, wanted) == 0) near = names[i];
    }
    if (near != NULL)
        cli_fail(&c->err, BP_E_ARG, "--explain", "there is no key '%.80s'; did you mean '%s'?",
                 wanted, near);
    else
        cli_fail(&c->err, BP_E_ARG, "--explain",
                 "there is no key '%.80s'; 'backplane config' lists all keys", wanted);
    for (size_t i = 0; i < n; ++i) free(names[i]);
    return c->err.code;
}

static int32_t cmd_config(struct cli *c)
{
    struct bp_config_entry e = {.h = BP_HDR(struct bp_config_entry, doc)};
    const char *wanted = cli_text(&c->line, "explain");
    bool found = false;
    json_t *keys = json_array();
    int32_t rc = cli_open_config(c);
    for (uint32_t i = 0; rc == BP_OK && bp_config_entry(c->config, i, &e) == BP_OK; ++i) {
        char name[256];
        snprintf(name, sizeof name, "%s.%s", e.section, e.key);
        if (wanted != NULL && strcmp(name, wanted) != 0) continue;
        found = true;
        if (c->json)
            json_array_append_new(keys, entry_json(&e));
        else
            print_entry(&e, wanted != NULL);
    }
    if (rc == BP_OK && wanted != NULL && !found) rc = unknown_key(c, wanted);
    if (rc == BP_OK && c->json) json_object_set(c->out, "keys", keys);
    json_decref(keys);
    return rc;
}

const struct cli_command cli_cmd_config = {
    .name = "config",
    .args = "",
    .summary = "Print the configuration: every key, its value, where it came from, what it means.",
    .details = "Shows what the defaults, -c and -s together come to.\n\n"
               "JSON: keys[] {section, key, value, origin, default, type, range, doc}.",
    .options = options,
    .n_options = sizeof options / sizeof options[0],
    .run = cmd_config,
};
