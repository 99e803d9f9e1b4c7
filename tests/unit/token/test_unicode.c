/* test_unicode.c - the generated classes and the script Han, every code point against PCRE2's own Unicode tables.
 * SPDX-License-Identifier: MIT */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <check.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "token/token_unicode.h"

enum { N_CP = 0x110000, HAN = 1024, NOT_ASSIGNED = 2048 };

/* Every character of the whole code space that matches `pattern` gets `flag` in table[]. */
static void mark_matches(const char *space, size_t n_space, const uint32_t *cp_of, uint16_t *table,
                         const char *pattern, uint16_t flag)
{
    int code;
    PCRE2_SIZE where;
    pcre2_code *re = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                   PCRE2_UTF | PCRE2_UCP | PCRE2_DOTALL, &code, &where, NULL);
    ck_assert_ptr_nonnull(re);
    (void)pcre2_jit_compile(re, PCRE2_JIT_COMPLETE);
    pcre2_match_data *md = pcre2_match_data_create(1, NULL);
    ck_assert_ptr_nonnull(md);
    size_t at = 0;
    while (pcre2_match(re, (PCRE2_SPTR)space, n_space, at, PCRE2_NO_UTF_CHECK, md, NULL) > 0) {
        const PCRE2_SIZE *o = pcre2_get_ovector_pointer(md);
        table[cp_of[o[0]]] |= flag;
        at = o[1];
    }
    pcre2_match_data_free(md);
    pcre2_code_free(re);
}

START_TEST(every_code_point_matches_pcre2)
{
    static const struct {
        const char *pattern;
        uint16_t flag;
    } classes[] = {{"\\p{Lu}", BPI_UC_LU}, {"\\p{Ll}", BPI_UC_LL}, {"\\p{Lt}", BPI_UC_LT},
                   {"\\p{Lm}", BPI_UC_LM}, {"\\p{Lo}", BPI_UC_LO}, {"\\p{N}", BPI_UC_N},
                   {"\\p{P}", BPI_UC_P},   {"\\p{S}", BPI_UC_S},   {"\\p{M}", BPI_UC_M},
                   {"\\s", BPI_UC_SPACE},  {"\\p{sc:Han}", HAN},   {"\\p{Cn}", NOT_ASSIGNED}};
    char *space = malloc((size_t)N_CP * 4);
    uint32_t *cp_of = malloc(sizeof(uint32_t) * N_CP * 4);
    uint16_t *theirs = calloc(N_CP, sizeof(uint16_t));
    ck_assert(space != NULL && cp_of != NULL && theirs != NULL);
    size_t n = 0;
    for (uint32_t c = 0; c < N_CP; ++c) {
        unsigned char b[4];
        size_t len = bpi_utf8_encode(c, b);
        memcpy(space + n, b, len);
        cp_of[n] = c;
        n += len;
    }
    for (size_t i = 0; i < BPI_ARRAY_LEN(classes); ++i) {
        mark_matches(space, n, cp_of, theirs, classes[i].pattern, classes[i].flag);
    }
    char version[64] = "";
    (void)pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, version);
    bool same_version = strcmp(version, bpi_unicode_version()) == 0;
    unsigned differ = 0, only_assigned_there = 0, with_class = 0, han = 0;
    for (uint32_t c = 0; c < N_CP; ++c) {
        if (c >= 0xd800 && c <= 0xdfff) {
            ck_assert_uint_eq(bpi_unicode_flags(c), 0);
            ck_assert(!bpi_unicode_is_han(c));
            continue;
        }
        uint32_t ours = bpi_unicode_flags(c), other = theirs[c] & (NOT_ASSIGNED - 1u);
        if (ours != 0) ++with_class;
        if (bpi_unicode_is_han(c)) {
            ours |= HAN;
            ++han;
        }
        /* PCRE2's \s has every horizontal space of Perl, also U+180E, which Unicode took out of White_Space. */
        if (c == 0x180e) other = 0;
        if (ours == other) continue;
        /* Another Unicode version may know characters that this one does not, never classify one otherwise. */
        if (!same_version && (ours == 0 || (theirs[c] & NOT_ASSIGNED) != 0)) {
            ++only_assigned_there;
            continue;
        }
        if (differ++ < 10) printf("U+%04X: ours %x, PCRE2's %x\n", c, ours, other);
    }
    printf("Unicode %s here, %s in PCRE2: %u with a class, %u Han, %u differ, %u known to one "
           "version only\n",
           bpi_unicode_version(), version, with_class, han, differ, only_assigned_there);
    ck_assert_uint_eq(differ, 0);
    ck_assert_uint_gt(with_class, 130000);
    ck_assert_uint_gt(han, 90000);
    free(space);
    free(cp_of);
    free(theirs);
}
END_TEST

START_TEST(known_characters)
{
    static const struct {
        uint32_t cp, flags;
    } known[] = {{'A', BPI_UC_LU},
                 {'z', BPI_UC_LL},
                 {'7', BPI_UC_N},
                 {'_', BPI_UC_P},
                 {'+', BPI_UC_S},
                 {' ', BPI_UC_SPACE},
                 {'\n', BPI_UC_SPACE},
                 {0x85, BPI_UC_SPACE},
                 {0xa0, BPI_UC_SPACE},
                 {0x3000, BPI_UC_SPACE},
                 {0x200b, 0},
                 {0x180e, 0},
                 {0, 0},
                 {0x7f, 0},
                 {0x1c5, BPI_UC_LT},
                 {0x2b0, BPI_UC_LM},
                 {0x4e2d, BPI_UC_LO},
                 {0x301, BPI_UC_M},
                 {0xbd, BPI_UC_N},
                 {0x2167, BPI_UC_N},
                 {0xfffd, BPI_UC_S},
                 {0x1f642, BPI_UC_S},
                 {0x10ffff, 0},
                 {0x110000, 0},
                 {0xffffffff, 0},
                 {0xe0100, BPI_UC_M},
                 {0x3002, BPI_UC_P}};
    for (size_t i = 0; i < BPI_ARRAY_LEN(known); ++i) {
        ck_assert_msg(bpi_unicode_flags(known[i].cp) == known[i].flags, "U+%04X", known[i].cp);
    }
}
END_TEST

START_TEST(ranges)
{
    static const uint32_t range[][2] = {{3, 3}, {5, 9}, {11, 12}};
    for (uint32_t c = 0; c < 20; ++c) {
        bool in = c == 3 || (c >= 5 && c <= 9) || c == 11 || c == 12;
        ck_assert(bpi_unicode_in_ranges(c, range, BPI_ARRAY_LEN(range)) == in);
        ck_assert(bpi_unicode_in_ranges(c, range, 1) == (c == 3));
        ck_assert(!bpi_unicode_in_ranges(c, range, 0));
    }
    ck_assert(!bpi_unicode_is_han(UINT32_MAX) && !bpi_unicode_is_han(0));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("unicode");
    TCase *tc = tcase_create("unicode");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, every_code_point_matches_pcre2);
    tcase_add_test(tc, known_characters);
    tcase_add_test(tc, ranges);
    suite_add_tcase(s, tc);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
