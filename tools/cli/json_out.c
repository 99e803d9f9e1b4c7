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

json_t *cli_json_backends(const struct bp_session *s)
{
    json_t *o = json_object(), *slots = json_array(), *kv = json_object();
    struct bp_choice choice = {.h = BP_HDR(struct bp_choice, layer_end)};
    for (uint32_t i = 0; bp_session_choice(s, i, &choice) == BP_OK; ++i) {
        json_t *row = json_object();
        char layers[32];
        snprintf(layers, sizeof layers, "%d-%d", choice.layer_begin, choice.layer_end - 1);
        json_object_set_new(row, "slot", json_string(choice.slot));
        json_object_set_new(row, "layers",
                            choice.layer_begin < 0 ? json_null() : json_string(layers));
        json_object_set_new(row, "provider", json_string(choice.provider));
        json_array_append_new(slots, row);
    }
    json_object_set_new(kv, "dtype", json_string(bp_session_kv_dtype(s)));
    json_object_set_new(kv, "layout", json_string(bp_session_kv_layout(s)));
    json_object_set_new(o, "slots", slots);
    json_object_set_new(o, "kv", kv);
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
