/* json_out.c - pieces of JSON that several commands print.
 * Running out of memory inside jansson gives NULL, which its _new functions pass on; main notices a missing object.
 * SPDX-License-Identifier: MIT */
#include "json_out.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of the character at p, or 0 and in *bad how many bytes of it are a valid beginning (at least 1 counts as bad).
 * The ranges of the second byte keep out overlong forms, surrogates and values above U+10FFFF (Unicode table 3-7). */
static size_t utf8_char(const unsigned char *p, size_t n, size_t *bad)
{
    unsigned char lo = 0x80, hi = 0xbf;
    size_t len;
    *bad = 1;
    if (p[0] < 0x80) return 1;
    if (p[0] >= 0xc2 && p[0] <= 0xdf) {
        len = 2;
    } else if (p[0] >= 0xe0 && p[0] <= 0xef) {
        len = 3;
        if (p[0] == 0xe0) lo = 0xa0;
        if (p[0] == 0xed) hi = 0x9f;
    } else if (p[0] >= 0xf0 && p[0] <= 0xf4) {
        len = 4;
        if (p[0] == 0xf0) lo = 0x90;
        if (p[0] == 0xf4) hi = 0x8f;
    } else {
        return 0;
    }
    for (size_t i = 1; i < len; ++i) {
        if (i >= n || p[i] < lo || p[i] > hi) {
            *bad = i;
            return 0;
        }
        lo = 0x80;
        hi = 0xbf;
    }
    return len;
}

bool cli_utf8_valid(const char *text, size_t n, size_t *out_at)
{
    const unsigned char *p = (const unsigned char *)text;
    for (size_t i = 0, bad; i < n;) {
        size_t step = utf8_char(p + i, n - i, &bad);
        if (step == 0) {
            if (out_at != NULL) *out_at = i;
            return false;
        }
        i += step;
    }
    return true;
}

json_t *cli_json_text(const char *text, size_t n)
{
    if (cli_utf8_valid(text, n, NULL)) return json_stringn_nocheck(text, n);
    const unsigned char *p = (const unsigned char *)text;
    char *clean = malloc(3 * n + 1); /* one bad byte becomes three */
    if (clean == NULL) return NULL;
    size_t at = 0;
    for (size_t i = 0, bad; i < n;) {
        size_t step = utf8_char(p + i, n - i, &bad);
        if (step > 0) {
            memcpy(clean + at, p + i, step);
            at += step;
            i += step;
        } else {
            memcpy(clean + at, "\xef\xbf\xbd", 3);
            at += 3;
            i += bad;
        }
    }
    json_t *j = json_stringn_nocheck(clean, at);
    free(clean);
    return j;
}

void cli_json_put_text(json_t *o, const char *key, const char *text, size_t n)
{
    json_object_set_new(o, key, cli_json_text(text, n));
    if (cli_utf8_valid(text, n, NULL)) return;
    json_t *bytes = json_array();
    for (size_t i = 0; i < n; ++i)
        json_array_append_new(bytes, json_integer((unsigned char)text[i]));
    json_object_set_new(o, "bytes", bytes);
}

json_t *cli_json_real(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

json_t *cli_json_ids(const int32_t *ids, size_t n)
{
    json_t *a = json_array();
    for (size_t i = 0; i < n; ++i) json_array_append_new(a, json_integer(ids[i]));
    return a;
}

json_t *cli_json_error(const struct bp_error *err)
{
    json_t *o = json_object();
    json_object_set_new(o, "code", json_string(bp_status_name(err->code)));
    json_object_set_new(o, "where", cli_json_text(err->where, strlen(err->where)));
    json_object_set_new(o, "message", cli_json_text(err->msg, strlen(err->msg)));
    return o;
}

/* ---- choice of backends ---- */

static json_t *text_or_null(const char *text)
{
    return text[0] != '\0' ? cli_json_text(text, strlen(text)) : json_null();
}

json_t *cli_json_words(const char *list)
{
    json_t *a = json_array();
    while (*list != '\0') {
        list += strspn(list, ", \t");
        const size_t n = strcspn(list, ", \t");
        if (n > 0) json_array_append_new(a, cli_json_text(list, n));
        list += n;
    }
    return a;
}

json_t *cli_json_layers(int32_t begin, int32_t end)
{
    char text[32];
    snprintf(text, sizeof text, "%d-%d", begin, end - 1);
    return begin < 0 ? json_null() : json_string(text);
}

json_t *cli_json_kv(const struct bp_decisions *d)
{
    json_t *o = json_object(), *groups = json_array();
    struct bp_decisions_info info = {.h = BP_HDR(struct bp_decisions_info, scratch_bytes)};
    struct bp_decision_kv kv = {.h = BP_HDR(struct bp_decision_kv, index_token_bytes)};
    bp_decisions_info(d, &info);
    json_object_set_new(o, "dtype", text_or_null(info.kv_dtype));
    json_object_set_new(o, "layout",
                        bp_decision_kv(d, 0, &kv) == BP_OK ? text_or_null(kv.layout) : json_null());
    json_object_set_new(o, "asked", text_or_null(info.kv_asked));
    json_object_set_new(o, "why", text_or_null(info.kv_why));
    for (uint32_t i = 0; bp_decision_kv(d, i, &kv) == BP_OK; ++i) {
        json_t *g = json_object();
        json_object_set_new(g, "layers", cli_json_layers(kv.layer_begin, kv.layer_end));
        json_object_set_new(g, "layout", text_or_null(kv.layout));
        json_object_set_new(g, "index_layout", text_or_null(kv.index_layout));
        json_object_set_new(g, "token_bytes", json_integer((json_int_t)kv.token_bytes));
        json_object_set_new(g, "index_token_bytes", json_integer((json_int_t)kv.index_token_bytes));
        json_array_append_new(groups, g);
    }
    json_object_set_new(o, "groups", groups);
    return o;
}

json_t *cli_json_act(const struct bp_decisions *d)
{
    json_t *o = json_object();
    struct bp_decisions_info info = {.h = BP_HDR(struct bp_decisions_info, scratch_bytes)};
    bp_decisions_info(d, &info);
    json_object_set_new(o, "dtype", text_or_null(info.act_dtype));
    json_object_set_new(o, "asked", text_or_null(info.act_asked));
    json_object_set_new(o, "why", text_or_null(info.act_why));
    return o;
}

json_t *cli_json_device(const struct bp_decisions *d)
{
    json_t *o = json_object();
    struct bp_decisions_info info = {.h = BP_HDR(struct bp_decisions_info, scratch_bytes)};
    bp_decisions_info(d, &info);
    json_object_set_new(o, "kind",
                        json_string(info.device_kind == BP_DEV_HOST   ? "host"
                                    : info.device_kind == BP_DEV_CUDA ? "cuda"
                                                                      : "other"));
    json_object_set_new(o, "ordinal", json_integer(info.device_ordinal));
    json_object_set_new(o, "name", text_or_null(info.device));
    json_object_set_new(o, "asked", text_or_null(info.device_asked));
    json_object_set_new(o, "why", text_or_null(info.device_why));
    return o;
}

json_t *cli_json_plugins(const struct bp_decisions *d)
{
    json_t *a = json_array();
    struct bp_decision_plugin p = {.h = BP_HDR(struct bp_decision_plugin, file)};
    for (uint32_t i = 0; bp_decision_plugin(d, i, &p) == BP_OK; ++i) {
        json_t *o = json_object();
        json_object_set_new(o, "name", text_or_null(p.name));
        json_object_set_new(o, "version", text_or_null(p.version));
        json_object_set_new(o, "file", text_or_null(p.file));
        json_array_append_new(a, o);
    }
    return a;
}

static json_t *wrappers_json(const struct bp_decisions *d)
{
    json_t *a = json_array();
    struct bp_decision r = {.h = BP_HDR(struct bp_decision, weight_bytes)};
    for (uint32_t i = 0; bp_decision(d, i, &r) == BP_OK; ++i) {
        if (r.wrappers[0] == '\0') continue;
        json_t *o = json_object();
        json_object_set_new(o, "slot", text_or_null(r.slot));
        json_object_set_new(o, "layers", cli_json_layers(r.layer_begin, r.layer_end));
        json_object_set_new(o, "wrappers", cli_json_words(r.wrappers));
        json_array_append_new(a, o);
    }
    return a;
}

json_t *cli_json_backends(const struct bp_session *s)
{
    json_t *o = json_object(), *slots = json_array();
    const struct bp_decisions *d = bp_session_decisions(s);
    struct bp_choice choice = {.h = BP_HDR(struct bp_choice, layer_end)};
    for (uint32_t i = 0; bp_session_choice(s, i, &choice) == BP_OK; ++i) {
        json_t *row = json_object();
        json_object_set_new(row, "slot", text_or_null(choice.slot));
        json_object_set_new(row, "layers", cli_json_layers(choice.layer_begin, choice.layer_end));
        json_object_set_new(row, "provider", text_or_null(choice.provider));
        json_array_append_new(slots, row);
    }
    json_object_set_new(o, "slots", slots);
    json_object_set_new(o, "wrappers", wrappers_json(d));
    json_object_set_new(o, "kv", cli_json_kv(d));
    json_object_set_new(o, "device", cli_json_device(d));
    json_object_set_new(o, "act", cli_json_act(d));
    json_object_set_new(o, "plugins", cli_json_plugins(d));
    return o;
}

json_t *cli_json_top(const struct bp_model *m, const struct bp_token_prob *top, uint32_t n)
{
    json_t *a = json_array();
    for (uint32_t i = 0; i < n; ++i) {
        char *text = NULL;
        size_t len = 0;
        json_t *row = json_object();
        json_object_set_new(row, "id", json_integer(top[i].id));
        json_object_set_new(row, "logprob", cli_json_real((double)top[i].logprob));
        if (bp_detokenize(m, &top[i].id, 1, 0, &text, &len, NULL) == BP_OK)
            cli_json_put_text(row, "text", text, len);
        else /* an id of the embedding that the vocabulary does not name */
            json_object_set_new(row, "text", json_string(""));
        bp_free(text);
        json_array_append_new(a, row);
    }
    return a;
}
