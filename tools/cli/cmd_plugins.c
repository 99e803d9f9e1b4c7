/* cmd_plugins.c - `backplane plugins`: which plugins there are, from their files alone; none of their code runs.
 * Not here: what is chosen of them. SPDX-License-Identifier: MIT */
#include "cli.h"

#include <backplane/plugin.h>
#include <stdio.h>
#include <string.h>

// clang-format off
static const struct cli_option options[] = {
    {"file", 'f', CLI_TEXT, "FILE", NULL, NULL, 0, 0, "Only this file, wherever it lies; its place is not checked."},
};
// clang-format on

static json_t *text(const char *s)
{
    return cli_json_text(s, strlen(s));
}

/* The words of a list with one blank between them. */
static json_t *words(const char *list)
{
    json_t *a = json_array();
    for (const char *s = list; *s != '\0';) {
        const size_t n = strcspn(s, " ");
        json_array_append_new(a, cli_json_text(s, n));
        s += n + (s[n] == ' ');
    }
    return a;
}

static const char *status_name(uint32_t status)
{
    return status == BP_PLUGIN_BUILT_IN ? "built in"
           : status == BP_PLUGIN_READY  ? "ready"
                                        : "refused";
}

static bool is_known(const struct bp_plugin_info *p)
{
    return p->status == BP_PLUGIN_BUILT_IN || (p->flags & BP_PLUGIN_HAS_NOTE) != 0;
}

static const char *kind_name(uint32_t kind)
{
    return kind == BP_KIND_BACKEND ? "backend" : kind == BP_KIND_WRAPPER ? "wrapper" : "unknown";
}

/* What the note would say is null where there is none. */
static json_t *plugin_json(const struct bp_plugin_info *p)
{
    json_t *o = json_object();
    char abi[32];
    snprintf(abi, sizeof abi, "%u.%u", p->abi_major, p->abi_minor);
    const bool known = is_known(p);
    json_object_set_new(o, "name", text(p->name));
    json_object_set_new(o, "status", json_string(status_name(p->status)));
    json_object_set_new(o, "version", known ? text(p->version) : json_null());
    json_object_set_new(o, "kind", known ? json_string(kind_name(p->kind)) : json_null());
    json_object_set_new(o, "abi", known ? json_string(abi) : json_null());
    json_object_set_new(o, "interfaces", known ? words(p->ifaces) : json_null());
    json_object_set_new(o, "file", p->file[0] != '\0' ? text(p->file) : json_null());
    json_object_set_new(o, "needed", words(p->needed));
    if (p->status != BP_PLUGIN_REFUSED) return o;
    json_object_set_new(o, "reason", json_string(p->reason));
    json_object_set_new(o, "why", text(p->why));
    json_object_set_new(o, "mend", p->mend[0] != '\0' ? text(p->mend) : json_null());
    return o;
}

static void put(const char *s)
{
    term_out(s, strlen(s));
}

static void print_plugin(const struct bp_plugin_info *p)
{
    char line[128];
    term_name(p->name);
    if (is_known(p)) {
        snprintf(line, sizeof line, " %.32s, %s, ABI %u.%u", p->version, kind_name(p->kind),
                 p->abi_major, p->abi_minor);
        put(line);
    }
    snprintf(line, sizeof line, ", %s\n", status_name(p->status));
    put(line);
    if (p->file[0] != '\0') {
        put("  file:   ");
        term_name(p->file);
        put("\n");
    }
    if (is_known(p)) {
        put("  offers: ");
        put(p->ifaces);
        put("\n");
    }
    if (p->status != BP_PLUGIN_REFUSED) return;
    put("  why:    ");
    term_name(p->why);
    put(" (");
    put(p->reason);
    put(")\n");
    if (p->mend[0] == '\0') return;
    put("  run:    ");
    term_name(p->mend);
    put("\n");
}

static int32_t cmd_plugins(struct cli *c)
{
    struct bp_plugin_list *list = NULL;
    struct bp_plugin_info info = {.h = BP_HDR(struct bp_plugin_info, tls_bytes)};
    const char *file = cli_text(&c->line, "file");
    BP_TRY(cli_open_config(c));
    BP_TRY(file != NULL ? bp_plugin_list_file(file, &list, &c->err)
                        : bp_plugin_list_open(c->config, &list, &c->err));
    json_t *plugins = json_array();
    for (uint32_t i = 0; bp_plugin_list_at(list, i, &info) == BP_OK; ++i) {
        if (file != NULL && info.status == BP_PLUGIN_REFUSED) c->answer_no = true;
        if (c->json)
            json_array_append_new(plugins, plugin_json(&info));
        else
            print_plugin(&info);
    }
    if (c->json) json_object_set(c->out, "plugins", plugins);
    json_decref(plugins);
    bp_plugin_list_close(list);
    return BP_OK;
}

const struct cli_command cli_cmd_plugins = {
    .name = "plugins",
    .args = "",
    .summary = "List the plugins that are installed, and why some of them cannot be used.",
    .details =
        "Looks at the files that [plugin.NAME] sections name and at those in the folders of\n"
        "engine.plugin_path, as -c and -s set them. Only the notes inside the files are read; no\n"
        "code of a plugin runs, so a plugin that is ready may still be refused when it is opened.\n"
        "\n"
        "Exit status 1 when -f names a file that cannot be used.\n\n"
        "JSON: plugins[] {name, status, version, kind, abi, interfaces[], file, needed[]}, and "
        "for\n"
        "refused ones {reason, why, mend}.",
    .options = options,
    .n_options = sizeof options / sizeof options[0],
    .run = cmd_plugins,
};
