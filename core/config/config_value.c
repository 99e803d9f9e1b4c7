/* config_value.c - is a text a good value for a key? Numbers, words, lists, layer ranges.
 * Not here: which key it is (config_store.c), how lines are cut (config_load.c). No state.
 * SPDX-License-Identifier: MIT */
#include "config/config_priv.h"

#include <stdio.h>
#include <string.h>

struct bpi_config_quote bpi_config_quote(const char *s)
{
    struct bpi_config_quote q;
    const size_t most = 60;
    size_t n = strlen(s);
    bool cut = n > most;
    if (cut) {
        n = most;
        while (n > 0 && ((unsigned char)s[n] & 0xc0u) == 0x80u) --n;
    }
    memcpy(q.text, s, n);
    memcpy(q.text + n, "...", 4);
    if (!cut) q.text[n] = '\0';
    return q;
}

bool bpi_config_text_ok(const char *text, size_t n, char *why, size_t cap)
{
    for (size_t i = 0; i < n; ++i) {
        unsigned char byte = (unsigned char)text[i];
        if (byte == '\r') {
            snprintf(
                why, cap,
                "a carriage return at column %zu; end lines with LF or CR LF, and nothing else",
                i + 1);
            return false;
        }
        if ((byte < 0x20u && byte != '\t') || byte == 0x7fu) {
            snprintf(why, cap, "control character 0x%02x at column %zu; remove it", byte, i + 1);
            return false;
        }
    }
    if (!bpi_utf8_valid(text, n)) {
        snprintf(why, cap, "bytes that are not UTF-8; save the text as UTF-8");
        return false;
    }
    return true;
}

/* ---- lists ---- */

static const char *skip_blanks(const char *s)
{
    return s + strspn(s, " \t");
}

/* The i-th element of a comma list as [*begin, *begin + *n), without the blanks around it. */
static bool list_element(const char *value, size_t i, const char **begin, size_t *n)
{
    const char *s = skip_blanks(value);
    if (*s == '\0') return false;
    for (; i > 0; --i) {
        s = strchr(s, ',');
        if (s == NULL) return false;
        ++s;
    }
    s = skip_blanks(s);
    size_t len = strcspn(s, ",");
    while (len > 0 && (s[len - 1] == ' ' || s[len - 1] == '\t')) --len;
    *begin = s;
    *n = len;
    return true;
}

bool bpi_config_list_at(const char *value, size_t i, char *out, size_t cap)
{
    const char *begin;
    size_t n;
    if (!list_element(value, i, &begin, &n) || n + 1 > cap) return false;
    memcpy(out, begin, n);
    out[n] = '\0';
    return true;
}

/* Provider names: letters, digits, dot, minus, underscore; 1 to 63 bytes. */
static bool provider_name_ok(const char *s, size_t n)
{
    if (n < 1 || n > 63) return false;
    for (size_t i = 0; i < n; ++i) {
        char ch = s[i];
        bool ok = (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') ||
                  (ch >= '0' && ch <= '9') || ch == '.' || ch == '-' || ch == '_';
        if (!ok) return false;
    }
    return true;
}

bool bpi_config_list_ok(const char *value, bool may_be_empty)
{
    const char *begin;
    size_t n, i = 0;
    for (; list_element(value, i, &begin, &n); ++i) {
        if (!provider_name_ok(begin, n)) return false;
    }
    return i > 0 || may_be_empty;
}

/* ---- layers ---- */

static bool parse_layer(const char *s, size_t n, int32_t *out)
{
    int32_t v = 0;
    if (n < 1 || n > 4) return false;
    for (size_t i = 0; i < n; ++i) {
        if (s[i] < '0' || s[i] > '9') return false;
        v = v * 10 + (s[i] - '0');
    }
    *out = v;
    return v <= BPI_CONFIG_MAX_LAYER;
}

bool bpi_config_parse_layers(const char *text, size_t n, int32_t *out_lo, int32_t *out_hi)
{
    int32_t lo, hi;
    const char *minus = memchr(text, '-', n);
    size_t lo_len = minus != NULL ? (size_t)(minus - text) : n;
    if (!parse_layer(text, lo_len, &lo)) return false;
    hi = lo;
    if (minus != NULL && !parse_layer(minus + 1, n - lo_len - 1, &hi)) return false;
    if (lo > hi) return false;
    *out_lo = lo;
    *out_hi = hi;
    return true;
}

/* ---- scalars ---- */

bool bpi_config_parse_bool(const char *value, bool *out)
{
    static const char *const yes[] = {"true", "yes", "on", "1"};
    static const char *const no[] = {"false", "no", "off", "0"};
    for (size_t i = 0; i < BPI_ARRAY_LEN(yes); ++i) {
        if (strcmp(value, yes[i]) == 0 || strcmp(value, no[i]) == 0) {
            *out = strcmp(value, yes[i]) == 0;
            return true;
        }
    }
    return false;
}

/* Is `value` one of the words of "a|b|c"? Otherwise the nearest of them goes into near[cap], or "". */
static bool is_word(const char *words, const char *value, char *near, size_t cap)
{
    char copy[128];
    const char *list[16];
    size_t n = 0;
    near[0] = '\0';
    snprintf(copy, sizeof copy, "%s", words);
    for (char *w = copy; w != NULL && n < BPI_ARRAY_LEN(list);) {
        char *bar = strchr(w, '|');
        if (bar != NULL) *bar = '\0';
        if (strcmp(w, value) == 0) return true;
        list[n++] = w;
        w = bar != NULL ? bar + 1 : NULL;
    }
    const char *best = bpi_nearest(value, list, n);
    if (best != NULL) snprintf(near, cap, "%s", best);
    return false;
}

static bool number_ok(const struct bpi_config_key *row, const char *value)
{
    if (row->choices != NULL && strcmp(row->choices, value) == 0) return true;
    if (row->type == BPI_CFG_FLOAT) {
        double f;
        return bpi_parse_f64(value, &f) && f >= row->lo && f <= row->hi;
    }
    int64_t i;
    if (!bpi_parse_i64(value, &i) || (double)i < row->lo || (double)i > row->hi) return false;
    return (row->flags & BPI_CFG_POW2) == 0 || (i > 0 && (i & (i - 1)) == 0);
}

bool bpi_config_value_ok(const struct bpi_config_key *row, const char *value, char *hint,
                         size_t cap)
{
    char near[64] = "";
    bool flag, ok;
    size_t n = strlen(value);
    switch (row->type) {
    case BPI_CFG_INT:
    case BPI_CFG_FLOAT:
        ok = number_ok(row, value);
        break;
    case BPI_CFG_BOOL:
        ok = bpi_config_parse_bool(value, &flag);
        break;
    case BPI_CFG_ENUM:
        ok = is_word(row->choices, value, near, sizeof near);
        break;
    case BPI_CFG_LIST:
        ok = bpi_config_list_ok(value, false);
        break;
    default:
        ok = (double)n >= row->lo && (double)n <= row->hi;
        break;
    }
    hint[0] = '\0';
    if (ok) return true;
    if (near[0] != '\0')
        snprintf(hint, cap, "; did you mean %s?", near);
    else if (strchr(value, '#') != NULL)
        snprintf(hint, cap, "; a comment after a value begins with a blank and `;`, not with `#`");
    else if (value[0] == '"' || value[0] == '\'')
        snprintf(hint, cap, "; write values without quotes");
    return false;
}
