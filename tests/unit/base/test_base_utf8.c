/* test_base_utf8.c - every code point, every malformed class, every cut.
 * SPDX-License-Identifier: MIT */
#include "base/base.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static bool is_scalar(uint32_t cp)
{
    return cp <= 0x10ffff && !(cp >= 0xd800 && cp <= 0xdfff);
}

/* Everything that must hold for one code point. A plain bool, because check's macros write to a pipe each time. */
static bool round_trips(uint32_t cp)
{
    unsigned char out[5] = {0xaa, 0xaa, 0xaa, 0xaa, 0xaa};
    size_t n = bpi_utf8_encode(cp, out);
    if (n != (!is_scalar(cp) ? 0u : cp < 0x80 ? 1u : cp < 0x800 ? 2u : cp < 0x10000 ? 3u : 4u))
        return false;
    for (size_t i = n; i < 5; ++i) {
        if (out[i] != 0xaa) return false;
    }
    if (n == 0) return true;
    uint32_t back = 0;
    bool ok = false;
    if (bpi_utf8_decode(out, n, &back, &ok) != n || !ok || back != cp) return false;
    if (!bpi_utf8_valid((char *)out, n) || bpi_utf8_incomplete_tail(out, n) != 0) return false;
    for (size_t cut = 1; cut < n; ++cut) {
        if (bpi_utf8_valid((char *)out, cut) || bpi_utf8_incomplete_tail(out, cut) != cut)
            return false;
        if (bpi_utf8_decode(out, cut, &back, &ok) != 1 || ok || back != 0xfffd) return false;
    }
    return true;
}

START_TEST(every_code_point_round_trips)
{
    uint32_t n_valid = 0;
    for (uint32_t cp = 0; cp < 0x120000; ++cp) {
        unsigned char out[4];
        if (!round_trips(cp)) ck_abort_msg("U+%04X", cp);
        n_valid += bpi_utf8_encode(cp, out) > 0;
    }
    ck_assert_uint_eq(n_valid, 0x110000 - 0x800);
    unsigned char out[4];
    ck_assert_uint_eq(bpi_utf8_encode(UINT32_MAX, out), 0);
}
END_TEST

/* The plain definition, by value instead of by byte ranges: gather the bits, then ask whether the shortest form has
 * this length and whether the value is a scalar. Returns the length of a valid sequence at p, or 0. */
static size_t plain_valid(const unsigned char *p, size_t n)
{
    size_t len = p[0] < 0x80         ? 1
                 : (p[0] >> 5) == 6  ? 2
                 : (p[0] >> 4) == 14 ? 3
                 : (p[0] >> 3) == 30 ? 4
                                     : 0;
    if (len == 0 || len > n) return 0;
    uint32_t v = len == 1 ? p[0] : p[0] & ((1u << (7 - len)) - 1);
    for (size_t i = 1; i < len; ++i) {
        if ((p[i] >> 6) != 2) return 0;
        v = v << 6 | (p[i] & 63u);
    }
    size_t shortest = v < 0x80 ? 1 : v < 0x800 ? 2 : v < 0x10000 ? 3 : 4;
    return shortest == len && is_scalar(v) ? len : 0;
}

/* All 2- and 3-byte strings, and all 4-byte strings whose lead byte can lead four. */
START_TEST(decode_agrees_with_the_plain_definition)
{
    unsigned char p[4];
    uint32_t cp;
    bool ok;
    for (uint32_t v = 0; v < (1u << 24); ++v) {
        p[0] = (unsigned char)(v >> 16);
        p[1] = (unsigned char)(v >> 8);
        p[2] = (unsigned char)v;
        size_t want = plain_valid(p, 3), got = bpi_utf8_decode(p, 3, &cp, &ok);
        if (ok != (want > 0) || got != (want > 0 ? want : 1)) ck_abort_msg("bytes %06x", v);
        if (!ok && cp != 0xfffd) ck_abort_msg("bytes %06x: replacement", v);
    }
    for (uint32_t v = 0xf0u << 16; v < 0xf8u << 16; ++v) {
        for (uint32_t last = 0x7e; last <= 0xc1; ++last) {
            p[0] = (unsigned char)(v >> 16);
            p[1] = (unsigned char)(v >> 8);
            p[2] = (unsigned char)v;
            p[3] = (unsigned char)last;
            size_t want = plain_valid(p, 4), got = bpi_utf8_decode(p, 4, &cp, &ok);
            if (ok != (want > 0) || got != (want > 0 ? want : 1))
                ck_abort_msg("bytes %06x%02x", v, last);
        }
    }
}
END_TEST

START_TEST(malformed_classes)
{
    static const struct {
        const char *what, *bytes;
    } CASES[] = {
        {"lone continuation", "\x80"},
        {"last continuation", "\xbf"},
        {"overlong slash, 2", "\xc0\xaf"},
        {"overlong, lead c1", "\xc1\xbf"},
        {"overlong slash, 3", "\xe0\x80\xaf"},
        {"greatest overlong 3", "\xe0\x9f\xbf"},
        {"overlong slash, 4", "\xf0\x80\x80\xaf"},
        {"greatest overlong 4", "\xf0\x8f\xbf\xbf"},
        {"first surrogate", "\xed\xa0\x80"},
        {"last surrogate", "\xed\xbf\xbf"},
        {"surrogate pair", "\xed\xa0\xbd\xed\xb8\x80"},
        {"U+110000", "\xf4\x90\x80\x80"},
        {"lead f5", "\xf5\x80\x80\x80"},
        {"five bytes", "\xf8\x88\x80\x80\x80"},
        {"six bytes", "\xfc\x84\x80\x80\x80\x80"},
        {"fe", "\xfe"},
        {"ff", "\xff"},
        {"cut 2", "\xc3"},
        {"cut 3", "\xe2\x82"},
        {"cut 4", "\xf0\x9f\x98"},
        {"2 broken by letter", "\xc3"
                               "A"},
        {"3 broken by letter", "\xe2\x82"
                               "A"},
        {"3 broken by lead", "\xe2\xc3\xa4"},
        {"4 broken by letter", "\xf0\x9f\x98"
                               "A"},
    };
    for (size_t i = 0; i < BPI_ARRAY_LEN(CASES); ++i) {
        const char *b = CASES[i].bytes;
        uint32_t cp = 0;
        bool ok = true;
        ck_assert_msg(!bpi_utf8_valid(b, strlen(b)), "%s", CASES[i].what);
        ck_assert_msg(bpi_utf8_decode((const unsigned char *)b, strlen(b), &cp, &ok) == 1, "%s",
                      CASES[i].what);
        ck_assert_msg(!ok && cp == 0xfffd, "%s", CASES[i].what);
    }
    ck_assert(bpi_utf8_valid("", 0));
    ck_assert(bpi_utf8_valid("a\0b", 3));
    ck_assert(bpi_utf8_valid("\xf4\x8f\xbf\xbf\xed\x9f\xbf\xee\x80\x80\xef\xbf\xbf", 13));
}
END_TEST

START_TEST(incomplete_tail)
{
    static const struct {
        const char *bytes;
        size_t want;
    } CASES[] = {{"", 0},
                 {"abc", 0},
                 {"ab\xc3", 1},
                 {"ab\xe2\x82", 2},
                 {"ab\xf0\x9f\x98", 3},
                 {"\xf0\x9f\x98\x80", 0},
                 {"\xe2\x82\xac", 0},
                 {"\xe0\x80", 0},
                 {"\xed\xa0", 0},
                 {"\xf0\x8f", 0},
                 {"\xf4\x90\x80", 0},
                 {"\xf4\x8f\xbf", 3},
                 {"\xc0", 0},
                 {"\xf5", 0},
                 {"\x80", 0},
                 {"\x80\x80\x80", 0},
                 {"\xc3\xa4\x80", 0},
                 {"\xe2\x82\xac\x80\x80", 0},
                 {"\xf0\x9f\x98\x80\xe2", 1},
                 {"\xed", 1}};
    for (size_t i = 0; i < BPI_ARRAY_LEN(CASES); ++i) {
        size_t got =
            bpi_utf8_incomplete_tail((const unsigned char *)CASES[i].bytes, strlen(CASES[i].bytes));
        ck_assert_msg(got == CASES[i].want, "case %zu: got %zu, want %zu", i, got, CASES[i].want);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("utf8");
    TCase *t = tcase_create("utf8");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, every_code_point_round_trips);
    tcase_add_test(t, decode_agrees_with_the_plain_definition);
    tcase_add_test(t, malformed_classes);
    tcase_add_test(t, incomplete_tail);
    suite_add_tcase(s, t);
    SRunner *sr = srunner_create(s);
    srunner_run_all(sr, CK_NORMAL);
    int failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
