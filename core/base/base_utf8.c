/* base_utf8.c - UTF-8 in the strict sense: shortest forms only, no surrogates, nothing above U+10FFFF.
 * Not here: classes of code points (core/token). Threads: pure functions.
 * Source: Unicode Standard, chapter 3.9, table 3-7 (well-formed byte sequences).
 * SPDX-License-Identifier: MIT */
#include "base/base.h"
#include "base/base_priv.h"

/* Length that a lead byte announces, and the range of the second byte, which is where overlong forms, surrogates and
 * too large values show. 0 for a byte that cannot lead. */
static size_t lead_info(unsigned char lead, unsigned char *lo, unsigned char *hi)
{
    *lo = 0x80;
    *hi = 0xbf;
    if (lead < 0x80) return 1;
    if (lead < 0xc2) return 0;
    if (lead < 0xe0) return 2;
    if (lead < 0xf0) {
        if (lead == 0xe0) *lo = 0xa0;
        if (lead == 0xed) *hi = 0x9f;
        return 3;
    }
    if (lead > 0xf4) return 0;
    if (lead == 0xf0) *lo = 0x90;
    if (lead == 0xf4) *hi = 0x8f;
    return 4;
}

size_t bpi_utf8_decode(const unsigned char *p, size_t n, uint32_t *cp, bool *ok)
{
    unsigned char lo, hi;
    size_t len = lead_info(p[0], &lo, &hi);
    *cp = 0xfffd;
    *ok = false;
    if (len == 0 || len > n) return 1;
    uint32_t v = len == 1 ? p[0] : p[0] & (0x7fu >> len);
    for (size_t i = 1; i < len; ++i) {
        if (p[i] < lo || p[i] > hi) return 1;
        v = (v << 6) | (p[i] & 0x3fu);
        lo = 0x80;
        hi = 0xbf;
    }
    *cp = v;
    *ok = true;
    return len;
}

size_t bpi_utf8_encode(uint32_t cp, unsigned char out[4])
{
    if (cp < 0x80) {
        out[0] = (unsigned char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (unsigned char)(0xc0 | (cp >> 6));
        out[1] = (unsigned char)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp >= 0xd800 && cp <= 0xdfff) return 0;
    if (cp < 0x10000) {
        out[0] = (unsigned char)(0xe0 | (cp >> 12));
        out[1] = (unsigned char)(0x80 | ((cp >> 6) & 0x3f));
        out[2] = (unsigned char)(0x80 | (cp & 0x3f));
        return 3;
    }
    if (cp > 0x10ffff) return 0;
    out[0] = (unsigned char)(0xf0 | (cp >> 18));
    out[1] = (unsigned char)(0x80 | ((cp >> 12) & 0x3f));
    out[2] = (unsigned char)(0x80 | ((cp >> 6) & 0x3f));
    out[3] = (unsigned char)(0x80 | (cp & 0x3f));
    return 4;
}

bool bpi_utf8_valid(const char *s, size_t n)
{
    const unsigned char *p = (const unsigned char *)s;
    uint32_t cp;
    bool ok;
    for (size_t i = 0; i < n;) {
        i += bpi_utf8_decode(p + i, n - i, &cp, &ok);
        if (!ok) return false;
    }
    return true;
}

size_t bpi_utf8_incomplete_tail(const unsigned char *p, size_t n)
{
    for (size_t k = 1; k <= 3 && k <= n; ++k) {
        const unsigned char *s = p + n - k;
        if ((*s & 0xc0) == 0x80) continue; /* a continuation byte: its lead is further left */
        unsigned char lo, hi;
        size_t len = lead_info(*s, &lo, &hi);
        if (len <= k) return 0;
        /* Further bytes are continuations already; only the second has a narrower range. */
        return k >= 2 && (s[1] < lo || s[1] > hi) ? 0 : k;
    }
    return 0;
}

void bpi_text_make_plain(char *s)
{
    size_t n = 0;
    while (s[n] != '\0') ++n;
    unsigned char *p = (unsigned char *)s;
    n -= bpi_utf8_incomplete_tail(p, n);
    s[n] = '\0';
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        bool ok;
        size_t len = bpi_utf8_decode(p + i, n - i, &cp, &ok);
        bool control = cp < 0x20 || (cp >= 0x7f && cp < 0xa0);
        if (!ok || control) {
            for (size_t k = 0; k < len; ++k) s[i + k] = '?';
        }
        i += len;
    }
}
