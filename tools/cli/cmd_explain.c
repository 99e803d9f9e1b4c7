/* cmd_explain.c - `backplane explain`: which provider serves which slot, and why not the others; from the model's headers.
 * Not here: choosing. SPDX-License-Identifier: MIT */
#include "cli.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *const levels[] = {"no", "degraded", "yes", "not asked"};
static const char *const captures[] = {"none", "q1", "uniform", "any"};
static const char *const determinisms[] = {"none", "run", "batch"};

static json_t *text(const char *s)
{
    return cli_json_text(s, strlen(s));
}

static json_t *text_or_null(const char *s)
{
    return s[0] != '\0' ? text(s) : json_null();
}

static const char *word(const char *const *words, size_t n, uint32_t i)
{
    return i < n ? words[i] : "unknown";
}
#define WORD(words, i) word(words, sizeof(words) / sizeof((words)[0]), i)

static void layers_text(int32_t begin, int32_t end, char out[32])
{
    if (begin < 0)
        snprintf(out, 32, "-");
    else
        snprintf(out, 32, end - begin > 1 ? "%d-%d" : "%d", begin, end - 1);
}

/* ---- JSON ---- */

static json_t *name_or_null(const char *s)
{
    return s != NULL ? text(s) : json_null();
}

static json_t *reasons_json(const struct bp_decisions *d, uint32_t i, uint32_t j)
{
    json_t *a = json_array();
    struct bp_decision_reason r = {.h = BP_HDR(struct bp_decision_reason, want_hi_name)};
    for (uint32_t k = 0; bp_decision_reason(d, i, j, k, &r) == BP_OK; ++k) {
        json_t *o = json_object();
        const bool numbers = r.field[0] != '\0';
        json_object_set_new(o, "code", json_string(r.name));
        json_object_set_new(o, "number", json_integer(r.code));
        json_object_set_new(o, "field", text_or_null(r.field));
        json_object_set_new(o, "got", numbers ? json_integer(r.got) : json_null());
        json_object_set_new(o, "want_lo", numbers ? json_integer(r.want_lo) : json_null());
        json_object_set_new(o, "want_hi", numbers ? json_integer(r.want_hi) : json_null());
        json_object_set_new(o, "got_name", name_or_null(r.got_name));
        json_object_set_new(o, "want_lo_name", name_or_null(r.want_lo_name));
        json_object_set_new(o, "want_hi_name", name_or_null(r.want_hi_name));
        json_object_set_new(o, "critical", json_boolean(r.critical != 0));
        json_object_set_new(o, "text", text(r.text));
        json_array_append_new(a, o);
    }
    return a;
}

static json_t *candidates_json(const struct bp_decisions *d, uint32_t i)
{
    json_t *a = json_array();
    struct bp_decision_candidate c = {.h = BP_HDR(struct bp_decision_candidate, cost_us)};
    for (uint32_t j = 0; bp_decision_candidate(d, i, j, &c) == BP_OK; ++j) {
        json_t *o = json_object();
        json_object_set_new(o, "name", text(c.name));
        json_object_set_new(o, "verdict", json_string(WORD(levels, c.level)));
        json_object_set_new(o, "version", text_or_null(c.version));
        json_object_set_new(o, "file", text_or_null(c.file));
        json_object_set_new(o, "cost_us",
                            c.cost_us >= 0.0 ? cli_json_real(c.cost_us) : json_null());
        json_object_set_new(o, "reasons", reasons_json(d, i, j));
        if (c.mend[0] != '\0') json_object_set_new(o, "mend", text(c.mend));
        json_array_append_new(a, o);
    }
    return a;
}

static json_t *workspace_json(const struct bp_decision *r)
{
    json_t *o = json_object();
    json_object_set_new(o, "persistent", json_integer((json_int_t)r->persistent_bytes));
    json_object_set_new(o, "plan", json_integer((json_int_t)r->plan_bytes));
    json_object_set_new(o, "scratch", json_integer((json_int_t)r->scratch_bytes));
    json_object_set_new(o, "pinned", json_integer((json_int_t)r->pinned_bytes));
    return o;
}

static json_t *decision_json(const struct bp_decisions *d, uint32_t i, const struct bp_decision *r)
{
    json_t *o = json_object();
    struct bp_decision_candidate c = {.h = BP_HDR(struct bp_decision_candidate, cost_us)};
    const bool chosen =
        r->chosen >= 0 && bp_decision_candidate(d, i, (uint32_t)r->chosen, &c) == BP_OK;
    json_object_set_new(o, "slot", text(r->slot));
    json_object_set_new(o, "layers", cli_json_layers(r->layer_begin, r->layer_end));
    json_object_set_new(o, "what", text_or_null(r->what));
    json_object_set_new(o, "chosen", chosen ? text(c.name) : json_null());
    json_object_set_new(o, "wrappers", cli_json_words(r->wrappers));
    json_object_set_new(o, "on_host", json_boolean(r->on_host != 0));
    json_object_set_new(o, "capture", json_string(WORD(captures, r->capture)));
    json_object_set_new(o, "determinism", json_string(WORD(determinisms, r->determinism)));
    json_object_set_new(o, "workspace", workspace_json(r));
    json_object_set_new(o, "file_bytes", json_integer((json_int_t)r->file_bytes));
    json_object_set_new(o, "weight_bytes",
                        r->weights_known != 0 ? json_integer((json_int_t)r->weight_bytes)
                                              : json_null());
    json_object_set_new(o, "candidates", candidates_json(d, i));
    return o;
}

static void put_json(json_t *out, const struct bp_decisions *d)
{
    json_t *slots = json_array();
    struct bp_decision r = {.h = BP_HDR(struct bp_decision, weight_bytes)};
    for (uint32_t i = 0; bp_decision(d, i, &r) == BP_OK; ++i)
        json_array_append_new(slots, decision_json(d, i, &r));
    json_object_set_new(out, "slots", slots);
    json_object_set_new(out, "kv", cli_json_kv(d));
    json_object_set_new(out, "device", cli_json_device(d));
    json_object_set_new(out, "act", cli_json_act(d));
    json_object_set_new(out, "plugins", cli_json_plugins(d));
}

/* ---- the table ---- */

static void put(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void put(const char *fmt, ...)
{
    char line[1024];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    if (n > 0) term_out(line, (size_t)n < sizeof line ? (size_t)n : sizeof line - 1);
}

/* "96.0 MiB" */
static const char *bytes_text(uint64_t n, char out[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double v = (double)n;
    size_t u = 0;
    while (v >= 1024.0 && u + 1 < sizeof units / sizeof units[0]) {
        v /= 1024.0;
        ++u;
    }
    snprintf(out, 32, u == 0 ? "%.0f %s" : "%.1f %s", v, units[u]);
    return out;
}

/* Capture, determinism, workspace and weights of the chosen one. */
static void print_chosen(const struct bp_decision *r, double cost_us)
{
    char size[32];
    put("chosen");
    if (r->what[0] != '\0') put("   %s", r->what);
    put("   graph %s   bits %s", WORD(captures, r->capture), WORD(determinisms, r->determinism));
    const uint64_t ws = r->persistent_bytes + r->plan_bytes + r->scratch_bytes + r->pinned_bytes;
    if (ws != 0) put("   ws %s", bytes_text(ws, size));
    if (r->file_bytes != 0) put("   weights %s", bytes_text(r->file_bytes, size));
    if (cost_us >= 0.0) put("   cost %.1f us", cost_us);
    if (r->wrappers[0] != '\0') put("   in %s", r->wrappers);
    if (r->on_host != 0) put("   on the host, tensors are carried");
}

static void print_types(const struct bp_decision_reason *r)
{
    const long long got = (long long)r->got, lo = (long long)r->want_lo, hi = (long long)r->want_hi;
    if (r->got_name != NULL)
        put(" %s: got %s (%lld)", r->field, r->got_name, got);
    else
        put(" %s: got %lld", r->field, got);
    if (lo == hi)
        put(", want %s (%lld)", r->want_lo_name, lo);
    else
        put(", want %s..%s (%lld..%lld)", r->want_lo_name, r->want_hi_name, lo, hi);
}

/* As in messages. Ids of layouts and extensions are hashes, which have no range. */
static void print_numbers(const struct bp_decision_reason *r)
{
    const long long got = (long long)r->got, lo = (long long)r->want_lo, hi = (long long)r->want_hi;
    if (r->want_lo_name != NULL && r->want_hi_name != NULL)
        print_types(r);
    else if (r->code == BP_R_LAYOUT || r->code == BP_R_EXT)
        put(" %s: got id %016llx", r->field, (unsigned long long)r->got);
    else if (r->want_lo == INT64_MIN)
        put(" %s: got %lld, want at most %lld", r->field, got, hi);
    else if (r->want_hi == INT64_MAX)
        put(" %s: got %lld, want at least %lld", r->field, got, lo);
    else
        put(" %s: got %lld, want %lld..%lld", r->field, got, lo, hi);
}

static void print_reasons(const struct bp_decisions *d, uint32_t i, uint32_t j)
{
    struct bp_decision_reason r = {.h = BP_HDR(struct bp_decision_reason, want_hi_name)};
    for (uint32_t k = 0; bp_decision_reason(d, i, j, k, &r) == BP_OK; ++k) {
        put("%s%s", k != 0 ? " | " : "   ", r.name);
        if (r.field[0] != '\0') print_numbers(&r);
        if (r.text[0] != '\0') put(r.field[0] != '\0' ? " (%s)" : " %s", r.text);
    }
}

static void print_candidates(const struct bp_decisions *d, uint32_t i, const struct bp_decision *r)
{
    struct bp_decision_candidate c = {.h = BP_HDR(struct bp_decision_candidate, cost_us)};
    char layers[32];
    layers_text(r->layer_begin, r->layer_end, layers);
    put("%-12s %-7s", r->slot, layers);
    if (r->n_candidates == 0) put(" %-16s nobody was asked, see the error\n", "-");
    /* The chosen one first, as the answer; then the others in the order of the list. */
    for (uint32_t pass = 0, n = 0; pass < 2; ++pass) {
        for (uint32_t j = 0; bp_decision_candidate(d, i, j, &c) == BP_OK; ++j) {
            if ((r->chosen >= 0 && j == (uint32_t)r->chosen) != (pass == 0)) continue;
            if (n++ != 0) put("%-20s", "");
            put(" %-16s ", c.name);
            if (pass == 0)
                print_chosen(r, c.cost_us);
            else
                put("%s", c.level == BP_V_NOT_ASKED ? "not asked"
                          : c.level == BP_V_NO      ? "refused"
                                                    : "would serve");
            print_reasons(d, i, j);
            if (c.mend[0] != '\0') put("   run: %s", c.mend);
            put("\n");
        }
    }
}

static void print_table(const struct bp_decisions *d)
{
    struct bp_decision r = {.h = BP_HDR(struct bp_decision, weight_bytes)};
    struct bp_decisions_info info = {.h = BP_HDR(struct bp_decisions_info, scratch_bytes)};
    struct bp_decision_kv kv = {.h = BP_HDR(struct bp_decision_kv, index_token_bytes)};
    struct bp_decision_plugin p = {.h = BP_HDR(struct bp_decision_plugin, file)};
    bp_decisions_info(d, &info);
    put("device       %s", info.device[0] != '\0' ? info.device : "none");
    if (info.device_why[0] != '\0') put(" (asked for: %s; %s)", info.device_asked, info.device_why);
    put("\n");
    for (uint32_t i = 0; bp_decision_plugin(d, i, &p) == BP_OK; ++i) {
        put("%-12s %s %s%s", i == 0 ? "plugins" : "", p.name, p.version,
            p.file[0] != '\0' ? ", " : ", built in");
        term_name(p.file);
        put("\n");
    }
    put("\n%-12s %-7s %-16s\n", "slot", "layers", "provider");
    for (uint32_t i = 0; bp_decision(d, i, &r) == BP_OK; ++i) print_candidates(d, i, &r);
    if (info.n_left_out != 0)
        put("... and %u further answers that differ from these\n", info.n_left_out);
    if (info.act_asked[0] != '\0') {
        put("\nengine.act   %s", info.act_dtype[0] != '\0' ? info.act_dtype : "none");
        if (strcmp(info.act_asked, info.act_dtype) != 0) put(" (asked for: %s)", info.act_asked);
        put("%s%s\n", info.act_why[0] != '\0' ? "; " : "", info.act_why);
    }
    if (info.kv_asked[0] == '\0') return;
    put("\nkv.dtype     %s", info.kv_dtype[0] != '\0' ? info.kv_dtype : "none");
    if (strcmp(info.kv_asked, info.kv_dtype) != 0) put(" (asked for: %s)", info.kv_asked);
    put("%s%s\n", info.kv_why[0] != '\0' ? "; " : "", info.kv_why);
    for (uint32_t i = 0; bp_decision_kv(d, i, &kv) == BP_OK; ++i) {
        char layers[32];
        layers_text(kv.layer_begin, kv.layer_end, layers);
        put("kv.layout    %-7s %s, %llu bytes a token", layers, kv.layout,
            (unsigned long long)kv.token_bytes);
        if (kv.index_layout[0] != '\0')
            put(", index %s, %llu", kv.index_layout, (unsigned long long)kv.index_token_bytes);
        put("\n");
    }
}

/* ---- command ---- */

static int32_t open_headers(struct cli *c)
{
    BP_TRY(cli_open_config(c));
    const char *path = cli_model_path(c);
    if (path == NULL) return c->err.code;
    struct bp_callbacks cb = {.h = BP_HDR(struct bp_callbacks, progress), .log = term_log};
    return bp_model_open_headers(path, c->config, &cb, &c->model, &c->err);
}

static int32_t cmd_explain(struct cli *c)
{
    struct bp_decisions *d = NULL;
    struct bp_error err = BP_ERROR_INIT;
    struct bp_callbacks cb = {.h = BP_HDR(struct bp_callbacks, progress), .log = term_log};
    BP_TRY(open_headers(c));
    int32_t rc = bp_explain(c->model, c->config, &cb, &d, &err);
    if (d == NULL) { /* nothing was asked: the configuration itself is wrong */
        c->err = err;
        return rc;
    }
    if (c->json)
        put_json(c->out, d);
    else
        print_table(d);
    bp_decisions_close(d);
    if (rc == BP_OK) return BP_OK;
    if (rc == BP_E_NOMEM || rc == BP_E_DEVMEM || rc == BP_E_DEVICE || rc == BP_E_DEVICE_LOST) {
        c->err = err; /* no answer, a failure */
        return rc;
    }
    c->answer_no = true;
    term_say("backplane explain: %s%s%s", err.where, err.where[0] != '\0' ? ": " : "", err.msg);
    if (c->json) json_object_set_new(c->out, "error", cli_json_error(&err));
    return BP_OK;
}

const struct cli_command cli_cmd_explain = {
    .name = "explain",
    .args = "",
    .summary = "Show which provider serves which slot and layer, and why not the others.",
    .details =
        "Chooses exactly as run would, with the same -c and -s, and stops before any weight is\n"
        "read: the headers of the model are enough, however large it is. Each candidate of a slot\n"
        "is listed with its reasons; \"not asked\" means that an earlier one in the list serves.\n"
        "Problems with the same answers share a line, which names them (types of weights, ops).\n"
        "\n"
        "Exit status 1 when a slot is served by nobody, or no cache layout suits all: what was\n"
        "decided up to there is printed all the same.\n\n"
        "JSON: slots[] {slot, layers, what, chosen, wrappers[], on_host, capture, determinism,\n"
        "workspace {persistent, plan, scratch, pinned}, file_bytes, weight_bytes, candidates[]\n"
        "{name, verdict (no, degraded, yes, not asked), version, file, cost_us, reasons[] {code,\n"
        "number, field, got, want_lo, want_hi, got_name, want_lo_name, want_hi_name, critical, "
        "text}, mend}}, kv {dtype, layout, asked,\n"
        "why, groups[] {layers, layout, index_layout, token_bytes, index_token_bytes}}, device\n"
        "{kind, ordinal, name}, plugins[] {name, version, file}, and error when a slot is left.",
    .options = NULL,
    .n_options = 0,
    .run = cmd_explain,
};
