/* test_base_text.c - buffers, nearest names, number parses; the same in every locale.
 * SPDX-License-Identifier: MIT */
#include "base/base.h"

#include <check.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((visibility("default"))) const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

START_TEST(buffer_grows_and_ends_with_nul)
{
    struct bpi_buf b = {0};
    for (int i = 0; i < 1000; ++i) {
        bpi_buf_printf(&b, "%d,", i);
        ck_assert_uint_eq(b.data[b.len], 0);
        ck_assert_uint_lt(b.len, b.cap);
    }
    bpi_buf_puts(&b, "end");
    bpi_buf_append(&b, "\0x", 2);
    ck_assert(!b.failed);
    ck_assert_int_eq(strncmp(b.data, "0,1,2,3,", 8), 0);
    ck_assert_uint_eq(b.len, 10 * 2 + 90 * 3 + 900 * 4 + 5);
    ck_assert_mem_eq(b.data + b.len - 5, "end\0x", 6);
    bpi_buf_free(&b);
    ck_assert(b.data == NULL && b.len == 0 && b.cap == 0);
    bpi_buf_free(&b);
}
END_TEST

START_TEST(buffer_takes_nothing_and_everything)
{
    struct bpi_buf b = {0};
    bpi_buf_append(&b, NULL, 0);
    ck_assert_str_eq(b.data, "");
    bpi_buf_printf(&b, "%s", "");
    ck_assert_uint_eq(b.len, 0);
    bpi_buf_printf(&b, "%5000d", 1);
    ck_assert_uint_eq(b.len, 5000);
    ck_assert_uint_eq((unsigned char)b.data[4999], '1');
    bpi_buf_free(&b);
}
END_TEST

START_TEST(buffer_failure_sticks_and_keeps_what_was_there)
{
    volatile size_t huge = SIZE_MAX / 4, most = SIZE_MAX;
    for (int way = 0; way < 2; ++way) {
        struct bpi_buf b = {0};
        bpi_buf_puts(&b, "abc");
        bpi_buf_append(&b, "", way == 0 ? most : huge);
        ck_assert(b.failed);
        bpi_buf_puts(&b, "more");
        bpi_buf_printf(&b, "%d", 1);
        ck_assert(b.failed);
        ck_assert_str_eq(b.data, "abc");
        ck_assert_uint_eq(b.len, 3);
        bpi_buf_free(&b);
        ck_assert(!b.failed);
    }
}
END_TEST

START_TEST(nearest_name)
{
    static const char *const KEYS[] = {"threads",     "ctx",      "max_seqs", "batch_tokens",
                                       "plugin_path", "fallback", "device"};
    const size_t n = BPI_ARRAY_LEN(KEYS);
    ck_assert_str_eq(bpi_nearest("thread", KEYS, n), "threads");
    ck_assert_str_eq(bpi_nearest("htreads", KEYS, n), "threads");
    ck_assert_str_eq(bpi_nearest("THREADS", KEYS, n), "threads");
    ck_assert_str_eq(bpi_nearest("batchtokens", KEYS, n), "batch_tokens");
    ck_assert_str_eq(bpi_nearest("max-seq", KEYS, n), "max_seqs");
    ck_assert_str_eq(bpi_nearest("xct", KEYS, n), "ctx");
    ck_assert_str_eq(bpi_nearest("plugin_path", KEYS, n), "plugin_path");
    ck_assert_ptr_null(bpi_nearest("temperature", KEYS, n));
    ck_assert_ptr_null(bpi_nearest("", KEYS, n));
    ck_assert_ptr_null(bpi_nearest("ctx", KEYS, 0));
}
END_TEST

/* The limit is 1 + length/3, a swap of neighbours counts once, the first of equals wins. */
START_TEST(nearest_distance_limits)
{
    static const char *const SIX[] = {"abcdef"};
    ck_assert_str_eq(bpi_nearest("abcxyz", SIX, 1), "abcdef"); /* 3 = 1 + 6/3 */
    ck_assert_ptr_null(bpi_nearest("abwxyz", SIX, 1));         /* 4 */
    ck_assert_str_eq(bpi_nearest("badcfe", SIX, 1), "abcdef"); /* three swaps */
    static const char *const SWAP[] = {"ba"};
    ck_assert_str_eq(bpi_nearest("ab", SWAP, 1), "ba"); /* 1; two replacements would be too many */
    static const char *const EQUALS[] = {"cat", "bat", "hat"};
    ck_assert_str_eq(bpi_nearest("rat", EQUALS, 3), "cat");
    char longest[200];
    memset(longest, 'a', sizeof longest);
    longest[128] = '\0';
    const char *const LONG[] = {longest};
    ck_assert_ptr_eq(bpi_nearest(longest, LONG, 1), longest);
    longest[128] = 'a';
    longest[199] = '\0';
    ck_assert_ptr_null(bpi_nearest("a", LONG, 1));
    ck_assert_ptr_null(bpi_nearest(longest, LONG, 1));
}
END_TEST

START_TEST(globs)
{
    static const struct {
        const char *pattern, *text;
        bool match;
    } cases[] = {
        {"", "", true},
        {"", "a", false},
        {"*", "", true},
        {"*", "abc", true},
        {"a*c", "abbc", true},
        {"a*c", "abcb", false},
        {"*.out", "blk.3.out", true},
        {"blk.*.attn.*", "blk.12.attn.kv", true},
        {"blk.*.attn.*", "blk.12.ffn.kv", false},
        {"a*b*c", "aXbXbXc", true},
        {"out,b*", "out", true},
        {"out,b*", "b", false},
        {"o**t", "out", true},
        {"a,b", "a,b", false}, /* the comma ends the pattern and stands for nothing */
        {"*,b", "a,b", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i)
        ck_assert_msg(bpi_glob(cases[i].pattern, cases[i].text) == cases[i].match, "%s on %s",
                      cases[i].pattern, cases[i].text);
}
END_TEST

START_TEST(parse_u64)
{
    static const struct {
        const char *s;
        bool ok;
        uint64_t v;
    } CASES[] = {{"0", true, 0},
                 {"007", true, 7},
                 {"18446744073709551615", true, UINT64_MAX},
                 {"18446744073709551616", false, 0},
                 {"99999999999999999999", false, 0},
                 {"", false, 0},
                 {"-1", false, 0},
                 {"+1", false, 0},
                 {" 1", false, 0},
                 {"1 ", false, 0},
                 {"0x10", false, 0},
                 {"1.0", false, 0},
                 {"1e3", false, 0},
                 {"\xd9\xa1", false, 0}};
    for (size_t i = 0; i < BPI_ARRAY_LEN(CASES); ++i) {
        uint64_t v = 4711;
        ck_assert_msg(bpi_parse_u64(CASES[i].s, &v) == CASES[i].ok, "'%s'", CASES[i].s);
        ck_assert_uint_eq(v, CASES[i].ok ? CASES[i].v : 4711);
    }
}
END_TEST

START_TEST(parse_i64)
{
    static const struct {
        const char *s;
        bool ok;
        int64_t v;
    } CASES[] = {{"0", true, 0},
                 {"-0", true, 0},
                 {"+5", true, 5},
                 {"-5", true, -5},
                 {"9223372036854775807", true, INT64_MAX},
                 {"-9223372036854775808", true, INT64_MIN},
                 {"9223372036854775808", false, 0},
                 {"-9223372036854775809", false, 0},
                 {"", false, 0},
                 {"-", false, 0},
                 {"+", false, 0},
                 {"--1", false, 0},
                 {"+-1", false, 0},
                 {"- 1", false, 0},
                 {"1x", false, 0}};
    for (size_t i = 0; i < BPI_ARRAY_LEN(CASES); ++i) {
        int64_t v = 4711;
        ck_assert_msg(bpi_parse_i64(CASES[i].s, &v) == CASES[i].ok, "'%s'", CASES[i].s);
        ck_assert_int_eq(v, CASES[i].ok ? CASES[i].v : 4711);
    }
}
END_TEST

static void check_floats(void)
{
    static const struct {
        const char *s;
        bool ok;
        double v;
    } CASES[] = {{"0", true, 0.0},
                 {"1.5", true, 1.5},
                 {"-2.25e3", true, -2250.0},
                 {".5", true, 0.5},
                 {"5.", true, 5.0},
                 {"+1E-3", true, 1e-3},
                 {"0.1", true, 0.1},
                 {"4.9406564584124654e-324", true, 0x1p-1074},
                 {"1.7976931348623157e308", true, 0x1.fffffffffffffp1023},
                 {"1e309", false, 0},
                 {"-1e309", false, 0},
                 {"nan", false, 0},
                 {"inf", false, 0},
                 {"0x1p3", false, 0},
                 {"", false, 0},
                 {".", false, 0},
                 {"e5", false, 0},
                 {"1e", false, 0},
                 {"1,5", false, 0},
                 {" 1", false, 0},
                 {"1 ", false, 0},
                 {"1.2.3", false, 0},
                 {"--1", false, 0},
                 {"1_000", false, 0},
                 {"1'000", false, 0}};
    for (size_t i = 0; i < BPI_ARRAY_LEN(CASES); ++i) {
        double v = 4711.0;
        ck_assert_msg(bpi_parse_f64(CASES[i].s, &v) == CASES[i].ok, "'%s'", CASES[i].s);
        ck_assert_msg(v == (CASES[i].ok ? CASES[i].v : 4711.0), "'%s': %a", CASES[i].s, v);
    }
}

START_TEST(parse_f64)
{
    check_floats();
}
END_TEST

/* Compiles a locale whose decimal point is a comma and takes it into use. It is made from nothing: its sources are
 * written here, so that no locale needs to be installed. */
static bool set_comma_locale(void)
{
    char dir[] = "/tmp/bp_locale_XXXXXX", path[64], command[256];
    if (mkdtemp(dir) == NULL) return false;
    snprintf(path, sizeof path, "%s/charmap", dir);
    FILE *f = fopen(path, "w");
    if (f == NULL) return false;
    fputs("<code_set_name> ANSI_X3.4-1968\n<mb_cur_min> 1\n<mb_cur_max> 1\n<escape_char> "
          "/\nCHARMAP\n",
          f);
    for (int i = 0; i < 128; ++i) fprintf(f, "<U%04X> /x%02x c\n", (unsigned)i, (unsigned)i);
    fputs("END CHARMAP\n", f);
    fclose(f);
    snprintf(path, sizeof path, "%s/source", dir);
    f = fopen(path, "w");
    if (f == NULL) return false;
    fputs("LC_NUMERIC\ndecimal_point \"<U002C>\"\nthousands_sep \"<U002E>\"\ngrouping 3;3\nEND "
          "LC_NUMERIC\n",
          f);
    fclose(f);
    snprintf(command, sizeof command,
             "localedef -c -i %s/source -f %s/charmap %s/xx_XX >/dev/null 2>&1", dir, dir, dir);
    int rc = system(command); /* 1 only says that the other categories are missing */
    setenv("LOCPATH", dir, 1);
    bool ok = rc != -1 && setlocale(LC_NUMERIC, "xx_XX") != NULL;
    snprintf(command, sizeof command, "rm -rf %s", dir);
    if (system(command) != 0) printf("%s could not be removed\n", dir);
    return ok;
}

START_TEST(numbers_do_not_follow_the_locale)
{
    ck_assert(set_comma_locale());
    char plain[32];
    snprintf(plain, sizeof plain, "%.1f", 0.5);
    ck_assert_str_eq(plain, "0,5"); /* the locale is really in force */
    check_floats();
    struct bpi_buf b = {0};
    bpi_buf_printf(&b, "%.2f %g", 3.25, 1e-9);
    ck_assert_str_eq(b.data, "3.25 1e-09");
    bpi_buf_free(&b);
    struct bp_error e = BP_ERROR_INIT;
    bpi_fail(&e, BP_E_ARG, "x", "y", "%.1f", 0.5);
    ck_assert_str_eq(e.msg, "0.5");
    snprintf(plain, sizeof plain, "%.1f", 0.5);
    ck_assert_str_eq(plain, "0,5"); /* and was put back each time */
}
END_TEST

int main(void)
{
    Suite *s = suite_create("text");
    TCase *t = tcase_create("text");
    tcase_add_test(t, buffer_grows_and_ends_with_nul);
    tcase_add_test(t, buffer_takes_nothing_and_everything);
    tcase_add_test(t, buffer_failure_sticks_and_keeps_what_was_there);
    tcase_add_test(t, nearest_name);
    tcase_add_test(t, nearest_distance_limits);
    tcase_add_test(t, globs);
    tcase_add_test(t, parse_u64);
    tcase_add_test(t, parse_i64);
    tcase_add_test(t, parse_f64);
    tcase_add_test(t, numbers_do_not_follow_the_locale);
    suite_add_tcase(s, t);
    SRunner *sr = srunner_create(s);
    srunner_run_all(sr, CK_NORMAL);
    int failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
