/* base_text.c - growing text buffers, nearest-name search, whole-string number parses.
 * Not here: UTF-8 (base_utf8.c). Threads: a buffer belongs to one thread at a time.
 * SPDX-License-Identifier: MIT */
#include "base/base.h"
#include "base/base_priv.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int bpi_vformat(char *out, size_t cap, const char *fmt, va_list args)
{
    /* For the name "C" the C library gives out a constant object; (locale_t)0 would mean "leave as is". */
    locale_t c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    locale_t before = uselocale(c_locale);
    int n = vsnprintf(out, cap, fmt, args);
    uselocale(before);
    if (c_locale != (locale_t)0) freelocale(c_locale);
    return n;
}

void bpi_copy_end(char *out, size_t cap, const char *s)
{
    static const char gap[] = "...";
    size_t n = strlen(s);
    if (n < cap) {
        memcpy(out, s, n + 1);
        return;
    }
    if (cap <= sizeof gap) {
        if (cap > 0) out[0] = '\0';
        return;
    }
    const char *from = s + n - (cap - sizeof gap);
    while ((*from & 0xc0) == 0x80) ++from; /* never half a character */
    memcpy(out, gap, sizeof gap - 1);
    memcpy(out + sizeof gap - 1, from, strlen(from) + 1);
}

/* ---- buffer ---- */

static bool buf_reserve(struct bpi_buf *b, size_t extra)
{
    uint64_t need;
    if (b->failed) return false;
    if (!bpi_add_u64(b->len, extra, &need) || !bpi_add_u64(need, 1, &need)) {
        b->failed = true;
        return false;
    }
    if (need <= b->cap) return true;
    uint64_t cap = b->cap > 0 ? b->cap : 64;
    while (cap < need) {
        if (!bpi_mul_u64(cap, 2, &cap)) cap = need;
    }
    char *data = bpi_realloc(b->data, cap, 1);
    if (data == NULL) {
        b->failed = true;
        return false;
    }
    b->data = data;
    b->cap = cap;
    return true;
}

void bpi_buf_append(struct bpi_buf *b, const void *bytes, size_t n)
{
    if (!buf_reserve(b, n)) return;
    if (n > 0) memcpy(b->data + b->len, bytes, n);
    b->len += n;
    b->data[b->len] = '\0';
}

void bpi_buf_puts(struct bpi_buf *b, const char *s)
{
    bpi_buf_append(b, s, strlen(s));
}

void bpi_buf_printf(struct bpi_buf *b, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int n = bpi_vformat(NULL, 0, fmt, args);
    va_end(args);
    if (n < 0) {
        b->failed = true;
        return;
    }
    if (!buf_reserve(b, (size_t)n)) return;
    va_start(args, fmt);
    int written = bpi_vformat(b->data + b->len, (size_t)n + 1, fmt, args);
    va_end(args);
    if (written != n) {
        b->data[b->len] = '\0';
        b->failed = true;
        return;
    }
    b->len += (size_t)n;
}

void bpi_buf_free(struct bpi_buf *b)
{
    bpi_free(b->data);
    *b = (struct bpi_buf){0};
}

/* ---- patterns ---- */

bool bpi_glob(const char *p, const char *text)
{
    const char *star = NULL, *back = NULL;
    while (*text != '\0') {
        if (*p == '*') {
            star = ++p;
            back = text;
        } else if (*p == *text && *p != ',') { /* a comma of the text is never the list's */
            ++p;
            ++text;
        } else if (star != NULL) {
            p = star;
            text = ++back;
        } else {
            return false;
        }
    }
    while (*p == '*') ++p;
    return *p == ',' || *p == '\0';
}

/* ---- nearest name ---- */

enum { NEAREST_MAX = 128 }; /* longer names are nobody's typing error */

static unsigned char lower(char c)
{
    unsigned char u = (unsigned char)c;
    return u >= 'A' && u <= 'Z' ? (unsigned char)(u + 32) : u;
}

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Insertions, deletions, replacements and swaps of neighbours that turn a into b (restricted form: no part is edited
 * twice). Three rows of the table are enough: a swap looks two rows back. */
static size_t edit_distance(const char *a, size_t n_a, const char *b, size_t n_b)
{
    size_t rows[3][NEAREST_MAX + 1];
    size_t *before = rows[0], *prev = rows[1], *cur = rows[2];
    for (size_t j = 0; j <= n_b; ++j) {
        before[j] = 0;
        prev[j] = j;
    }
    for (size_t i = 1; i <= n_a; ++i) {
        cur[0] = i;
        for (size_t j = 1; j <= n_b; ++j) {
            size_t cost = lower(a[i - 1]) != lower(b[j - 1]);
            size_t d = min_size(prev[j] + 1, cur[j - 1] + 1);
            d = min_size(d, prev[j - 1] + cost);
            if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) &&
                lower(a[i - 2]) == lower(b[j - 1])) {
                d = min_size(d, before[j - 2] + 1);
            }
            cur[j] = d;
        }
        size_t *spare = before;
        before = prev;
        prev = cur;
        cur = spare;
    }
    return prev[n_b];
}

const char *bpi_nearest(const char *word, const char *const *candidates, size_t n)
{
    size_t n_word = strlen(word);
    if (n_word > NEAREST_MAX) return NULL;
    const char *best = NULL;
    size_t best_distance = 2 + n_word / 3; /* one more than what is near enough */
    for (size_t i = 0; i < n; ++i) {
        size_t n_cand = strlen(candidates[i]);
        if (n_cand > NEAREST_MAX) continue;
        size_t d = edit_distance(word, n_word, candidates[i], n_cand);
        if (d < best_distance) {
            best_distance = d;
            best = candidates[i];
        }
    }
    return best;
}

/* ---- numbers ---- */

bool bpi_parse_u64(const char *s, uint64_t *out)
{
    uint64_t v = 0;
    if (*s == '\0') return false;
    for (; *s != '\0'; ++s) {
        if (*s < '0' || *s > '9') return false;
        if (!bpi_mul_u64(v, 10, &v) || !bpi_add_u64(v, (uint64_t)(*s - '0'), &v)) return false;
    }
    *out = v;
    return true;
}

bool bpi_parse_i64(const char *s, int64_t *out)
{
    bool negative = *s == '-';
    uint64_t v;
    if (*s == '-' || *s == '+') ++s;
    if (!bpi_parse_u64(s, &v)) return false;
    if (v > (uint64_t)INT64_MAX + (negative ? 1u : 0u)) return false;
    /* INT64_MIN has no positive twin, so the negation is done in two steps that stay in range. */
    *out = negative && v > 0 ? -(int64_t)(v - 1) - 1 : (int64_t)v;
    return true;
}

bool bpi_parse_f64(const char *s, double *out)
{
    /* strtod would also take blanks, hexadecimal, "inf" and "nan": none of them is a setting. */
    if (*s == '\0' || strspn(s, "0123456789+-.eE") != strlen(s)) return false;
    locale_t c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (c_locale == (locale_t)0) return false;
    locale_t before = uselocale(c_locale);
    char *end = NULL;
    double v = strtod(s, &end);
    uselocale(before);
    freelocale(c_locale);
    if (end == s || *end != '\0' || !isfinite(v)) return false;
    *out = v;
    return true;
}
