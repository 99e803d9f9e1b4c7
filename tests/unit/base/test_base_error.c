/* test_base_error.c - error filling and logging: nothing overrun, first error kept, terminal-safe text.
 * SPDX-License-Identifier: MIT */
#include "base/base.h"

#include <check.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

START_TEST(names_and_texts)
{
    ck_assert_str_eq(bpi_status_name(BP_OK), "OK");
    ck_assert_str_eq(bpi_status_name(BP_E_FORMAT), "E_FORMAT");
    ck_assert_str_eq(bpi_status_text(BP_E_FORMAT), "malformed input");
    ck_assert_str_eq(bpi_status_name(BP_E_INTERNAL), "E_INTERNAL");
    ck_assert_str_eq(bpi_status_name(1), "E_?");
    ck_assert_str_eq(bpi_status_name(INT32_MIN), "E_?");
    ck_assert_str_eq(bpi_status_text(-999), "unknown status");
}
END_TEST

START_TEST(fills_all_fields)
{
    struct bp_error e = BP_ERROR_INIT;
    ck_assert_int_eq(bpi_fail(&e, BP_E_CONFIG, "config", "kv.block", "got %d, want %s", 3, "64"),
                     BP_E_CONFIG);
    ck_assert_int_eq(e.code, BP_E_CONFIG);
    ck_assert_str_eq(e.domain, "config");
    ck_assert_str_eq(e.where, "kv.block");
    ck_assert_str_eq(e.msg, "got 3, want 64");
    ck_assert_uint_eq(e.h.size, sizeof e);
}
END_TEST

START_TEST(keeps_the_first_error)
{
    struct bp_error e = BP_ERROR_INIT;
    bpi_fail(&e, BP_E_IO, "file", "a", "first");
    ck_assert_int_eq(bpi_fail(&e, BP_E_NOMEM, "file", "b", "second"), BP_E_NOMEM);
    ck_assert_int_eq(e.code, BP_E_IO);
    ck_assert_str_eq(e.msg, "first");
    bpi_error_clear(&e);
    ck_assert_int_eq(e.code, BP_OK);
    ck_assert_str_eq(e.msg, "");
    ck_assert_str_eq(e.where, "");
    ck_assert_uint_eq(e.h.size, sizeof e);
    bpi_fail_nomem(&e, "gguf", 12345);
    ck_assert_int_eq(e.code, BP_E_NOMEM);
    ck_assert_ptr_nonnull(strstr(e.msg, "12345 bytes"));
}
END_TEST

START_TEST(null_is_allowed_everywhere)
{
    struct bp_error e = BP_ERROR_INIT;
    ck_assert_int_eq(bpi_fail(NULL, BP_E_ARG, NULL, NULL, "x"), BP_E_ARG);
    ck_assert_int_eq(bpi_fail_nomem(NULL, "x", 1), BP_E_NOMEM);
    bpi_error_clear(NULL);
    bpi_fail(&e, BP_E_ARG, NULL, NULL, "x");
    ck_assert_str_eq(e.domain, "");
    ck_assert_str_eq(e.where, "");
}
END_TEST

/* The struct stands between two guards; text of every length around each field's end must not reach them. */
START_TEST(long_text_is_cut_not_overrun)
{
    struct {
        unsigned char before[32];
        struct bp_error e;
        unsigned char after[32];
    } box;
    char text[700];
    for (size_t n = 0; n < sizeof text; ++n) {
        memset(&box, 0xa5, sizeof box);
        box.e = (struct bp_error)BP_ERROR_INIT;
        memset(text, 'x', n);
        text[n] = '\0';
        bpi_fail(&box.e, BP_E_ARG, text, text, "%s", text);
        ck_assert_uint_eq(strlen(box.e.domain), n < 15 ? n : 15);
        ck_assert_uint_eq(strlen(box.e.where), n < 95 ? n : 95);
        ck_assert_uint_eq(strlen(box.e.msg), n < 511 ? n : 511);
        for (size_t i = 0; i < 32; ++i) ck_assert(box.before[i] == 0xa5 && box.after[i] == 0xa5);
    }
}
END_TEST

/* Of a long path the file name must be left. */
START_TEST(long_place_keeps_its_end)
{
    char path[200];
    memset(path, 'd', sizeof path);
    memcpy(path + 150, "/model-00003-of-00003.gguf", sizeof "/model-00003-of-00003.gguf");
    struct bp_error e = BP_ERROR_INIT;
    bpi_fail(&e, BP_E_FORMAT, "gguf", path, "x");
    ck_assert_uint_eq(strlen(e.where), 95);
    ck_assert(strncmp(e.where, "...ddd", 6) == 0);
    ck_assert(strstr(e.where, "/model-00003-of-00003.gguf") != NULL);
}
END_TEST

START_TEST(end_is_copied_whole_or_cut_between_characters)
{
    static const struct {
        const char *text, *wanted;
        size_t cap;
    } cases[] = {
        {"abcdefg", "abcdefg", 8},
        {"abcdefg", "...efg", 7},
        {"abcdefg", "...g", 5},
        {"abcdefg", "", 4},
        {"abc", "abc", 4},
        {"", "", 1},
        {"x", "", 1},
        {"12345\xe2\x82\xac"
         "6",
         "...6", 7},
        {"12345\xe2\x82\xac"
         "6",
         "...\xe2\x82\xac"
         "6",
         8},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        char out[16];
        memset(out, '#', sizeof out);
        bpi_copy_end(out, cases[i].cap, cases[i].text);
        ck_assert_str_eq(out, cases[i].wanted);
        for (size_t k = cases[i].cap; k < sizeof out; ++k) ck_assert(out[k] == '#');
    }
}
END_TEST

START_TEST(cut_falls_between_characters)
{
    struct bp_error e = BP_ERROR_INIT;
    bpi_fail(&e, BP_E_ARG, "12345678901234\xc3\xa4", "w", "%510s\xe2\x82\xac", "");
    ck_assert_str_eq(e.domain, "12345678901234");
    ck_assert_uint_eq(strlen(e.msg), 510);
    ck_assert(bpi_utf8_valid(e.msg, strlen(e.msg)));
}
END_TEST

/* A tensor name from a hostile file may hold terminal commands. */
START_TEST(hostile_names_cannot_move_the_cursor)
{
    struct bp_error e = BP_ERROR_INIT;
    bpi_fail(&e, BP_E_FORMAT, "gguf",
             "a\x1b[2Jb\r\n\x7f\xc2\x9b"
             "c\xff",
             "name '%s' \xc3\xa4\xe2\x82\xac", "\x1b]0;x\a");
    ck_assert_str_eq(e.where, "a?[2Jb?????c?");
    ck_assert_str_eq(e.msg, "name '?]0;x?' \xc3\xa4\xe2\x82\xac");
}
END_TEST

struct seen {
    int n;
    int32_t level;
    char room[16], line[1200];
};

static void sink(void *ctx, int32_t level, const char *room, const char *line)
{
    struct seen *s = ctx;
    s->n++;
    s->level = level;
    snprintf(s->room, sizeof s->room, "%s", room);
    snprintf(s->line, sizeof s->line, "%s", line);
}

START_TEST(log_passes_and_drops_by_level)
{
    struct seen s = {0};
    struct bpi_log log = {.sink = sink, .ctx = &s, .level = BPI_LOG_INFO};
    bpi_logf(&log, BPI_LOG_DEBUG, "kv", "unseen");
    ck_assert_int_eq(s.n, 0);
    bpi_logf(&log, BPI_LOG_INFO, "kv", "%d blocks\x1b", 7);
    ck_assert_int_eq(s.n, 1);
    ck_assert_int_eq(s.level, BPI_LOG_INFO);
    ck_assert_str_eq(s.room, "kv");
    ck_assert_str_eq(s.line, "7 blocks?");
    bpi_logf(&log, BPI_LOG_ERROR, "kv", "%2000s", "x");
    ck_assert_int_eq(s.n, 2);
    ck_assert_uint_eq(strlen(s.line), 1023);
    bpi_logf(NULL, BPI_LOG_ERROR, "kv", "nowhere");
    log.sink = NULL;
    bpi_logf(&log, BPI_LOG_ERROR, "kv", "nowhere");
    ck_assert_int_eq(s.n, 2);
}
END_TEST

START_TEST(clock_never_goes_back)
{
    uint64_t last = bpi_now_ns();
    for (int i = 0; i < 10000; ++i) {
        uint64_t now = bpi_now_ns();
        ck_assert_uint_ge(now, last);
        last = now;
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("error");
    TCase *t = tcase_create("error");
    tcase_add_test(t, names_and_texts);
    tcase_add_test(t, fills_all_fields);
    tcase_add_test(t, keeps_the_first_error);
    tcase_add_test(t, null_is_allowed_everywhere);
    tcase_add_test(t, long_text_is_cut_not_overrun);
    tcase_add_test(t, long_place_keeps_its_end);
    tcase_add_test(t, end_is_copied_whole_or_cut_between_characters);
    tcase_add_test(t, cut_falls_between_characters);
    tcase_add_test(t, hostile_names_cannot_move_the_cursor);
    tcase_add_test(t, log_passes_and_drops_by_level);
    tcase_add_test(t, clock_never_goes_back);
    suite_add_tcase(s, t);
    SRunner *sr = srunner_create(s);
    srunner_run_all(sr, CK_NORMAL);
    int failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
