/* test_config_table.c - the key table itself: sane rows, defaults that pass their own checks, ranges that
 * hold at both ends, typed reads. Not here: INI syntax (test_config_load.c). SPDX-License-Identifier: MIT */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include "unit/config/config_test.h"

START_TEST(rows_are_sane)
{
    size_t n;
    const struct bpi_config_key *keys = bpi_config_keys(&n);
    ck_assert_uint_ge(n, 34);
    for (size_t i = 0; i < n; ++i) {
        const struct bpi_config_key *k = &keys[i];
        size_t n_doc = strlen(k->doc);
        char allowed[192];
        ck_assert_uint_gt(n_doc, 15);
        ck_assert_msg(k->doc[n_doc - 1] == '.', "%s.%s: doc is no sentence", k->section, k->key);
        ck_assert_uint_le(strlen(k->section), BPI_CONFIG_MAX_SECTION);
        ck_assert_uint_le(strlen(k->key), BPI_CONFIG_MAX_NAME);
        ck_assert_msg(k->lo <= k->hi, "%s.%s: empty range", k->section, k->key);
        ck_assert((k->type == BPI_CFG_ENUM) <= (k->choices != NULL));
        bpi_config_allowed(k, allowed, sizeof allowed);
        ck_assert_uint_gt(strlen(allowed), 5);
        ck_assert_uint_lt(strlen(allowed), sizeof allowed - 1);
        for (size_t j = 0; j < i; ++j)
            ck_assert_msg(strcmp(k->section, keys[j].section) != 0 ||
                              strcmp(k->key, keys[j].key) != 0,
                          "%s.%s is in the table twice", k->section, k->key);
        /* One section is one stretch of the table, else the printed INI would repeat its header. */
        if (i > 0 && strcmp(k->section, keys[i - 1].section) != 0)
            for (size_t j = 0; j < i; ++j) ck_assert_str_ne(k->section, keys[j].section);
    }
}
END_TEST

START_TEST(defaults_pass_their_own_checks)
{
    struct bpi_config *c = new_config();
    struct bp_error err = BP_ERROR_INIT;
    size_t n;
    const struct bpi_config_key *keys = bpi_config_keys(&n);
    for (size_t i = 0; i < n; ++i) {
        char text[512];
        ck_assert_str_eq(bpi_config_str(c, keys[i].section, keys[i].key), keys[i].dflt);
        ck_assert_str_eq(bpi_config_origin(c, keys[i].section, keys[i].key), "default");
        snprintf(text, sizeof text, "%s.%s=%s", keys[i].section, keys[i].key, keys[i].dflt);
        set_ok(c, text);
        ck_assert_str_eq(bpi_config_str(c, keys[i].section, keys[i].key), keys[i].dflt);
        ck_assert_str_eq(bpi_config_origin(c, keys[i].section, keys[i].key), "-s");
    }
    ck_assert_int_eq(bpi_config_check(c, &err), BP_OK);
    bpi_config_destroy(c);
}
END_TEST

/* Sets key i to a number; its fate must be as said. */
static void try_number(struct bpi_config *c, const struct bpi_config_key *k, double v, bool good)
{
    char text[512];
    if (k->type == BPI_CFG_INT)
        snprintf(text, sizeof text, "%s.%s=%lld", k->section, k->key, (long long)v);
    else
        snprintf(text, sizeof text, "%s.%s=%.17g", k->section, k->key, v);
    if (!good) {
        set_fails(c, text, BP_E_CONFIG, "expected ");
        return;
    }
    set_ok(c, text);
    if (k->type == BPI_CFG_INT)
        ck_assert_int_eq(bpi_config_int(c, k->section, k->key), (int64_t)v);
    else
        ck_assert(bpi_config_float(c, k->section, k->key) == v);
}

START_TEST(ranges_hold_at_both_ends)
{
    struct bpi_config *c = new_config();
    size_t n, n_numbers = 0;
    const struct bpi_config_key *keys = bpi_config_keys(&n);
    for (size_t i = 0; i < n; ++i) {
        const struct bpi_config_key *k = &keys[i];
        if (k->type != BPI_CFG_INT && k->type != BPI_CFG_FLOAT) continue;
        double step = k->type == BPI_CFG_INT ? (k->hi > 1e15 ? 2 : 1) : 1e-6;
        char text[256];
        ++n_numbers;
        try_number(c, k, k->lo, true);
        try_number(c, k, k->hi, true);
        try_number(c, k, k->lo - step, false);
        try_number(c, k, k->hi + step, false);
        static const char *const bad[] = {"",    "nan", "inf",  "-inf", "1x",  "0x10",     "1 2",
                                          "--1", "+",   "1e99", "on",   "1,5", "automatic"};
        for (size_t b = 0; b < BPI_ARRAY_LEN(bad); ++b) {
            /* Hexadecimal may be a number for the float parser; it is never one for integers. */
            if (strcmp(bad[b], "0x10") == 0 && k->type == BPI_CFG_FLOAT) continue;
            snprintf(text, sizeof text, "%s.%s=%s", k->section, k->key, bad[b]);
            set_fails(c, text, BP_E_CONFIG, "expected ");
        }
        snprintf(text, sizeof text, "%s.%s=auto", k->section, k->key);
        if (k->choices == NULL) {
            set_fails(c, text, BP_E_CONFIG, "expected ");
            ck_assert(!bpi_config_is_auto(c, k->section, k->key));
            continue;
        }
        set_ok(c, text);
        ck_assert(bpi_config_is_auto(c, k->section, k->key));
        if (k->type == BPI_CFG_INT)
            ck_assert(bpi_config_int(c, k->section, k->key) == BPI_CONFIG_AUTO);
        else
            ck_assert(isnan(bpi_config_float(c, k->section, k->key)));
    }
    ck_assert_uint_ge(n_numbers, 15);
    set_fails(c, "kv.block=96", BP_E_CONFIG, "a power of two from 16 to 1024");
    set_ok(c, "kv.block=128");
    bpi_config_destroy(c);
}
END_TEST

START_TEST(words_and_flags)
{
    struct bpi_config *c = new_config();
    size_t n, n_words = 0;
    const struct bpi_config_key *keys = bpi_config_keys(&n);
    for (size_t i = 0; i < n; ++i) {
        const struct bpi_config_key *k = &keys[i];
        char text[256], word[64];
        if (k->type == BPI_CFG_BOOL) {
            static const char *const words[] = {"true", "false", "yes", "no",
                                                "on",   "off",   "1",   "0"};
            for (size_t w = 0; w < BPI_ARRAY_LEN(words); ++w) {
                snprintf(text, sizeof text, "%s.%s=%s", k->section, k->key, words[w]);
                set_ok(c, text);
                ck_assert_int_eq(bpi_config_bool(c, k->section, k->key), w % 2 == 0);
            }
            snprintf(text, sizeof text, "%s.%s=2", k->section, k->key);
            set_fails(c, text, BP_E_CONFIG, "expected true or false");
        }
        if (k->type != BPI_CFG_ENUM) continue;
        for (const char *w = k->choices; *w != '\0'; w += strcspn(w, "|"), w += *w == '|') {
            snprintf(word, sizeof word, "%.*s", (int)strcspn(w, "|"), w);
            snprintf(text, sizeof text, "%s.%s=%s", k->section, k->key, word);
            set_ok(c, text);
            ck_assert_str_eq(bpi_config_str(c, k->section, k->key), word);
            ++n_words;
        }
        snprintf(text, sizeof text, "%s.%s=%s", k->section, k->key, k->choices);
        set_fails(c, text, BP_E_CONFIG, "expected one of ");
    }
    ck_assert_uint_ge(n_words, 15);
    bpi_config_destroy(c);
}
END_TEST

START_TEST(ranges_in_words)
{
    static const struct {
        const char *section, *key, *text;
    } cases[] = {
        {"engine", "threads", "an integer from 1 to 1024, or auto"},
        {"engine", "max_seqs", "an integer from 1 to 1024"},
        {"engine", "mmap", "true or false"},
        {"engine", "device", "a text of 1 to 63 bytes"},
        {"slots", "moe", "a comma list of provider names"},
        {"kv", "block", "a power of two from 16 to 1024"},
        {"kv", "dtype", "one of auto, f32, bf16, f16"},
        {"model", "yarn_beta_slow", "a number from 0.01 to 1000, or auto"},
        {"sample", "seed", "an integer from 0 to 9007199254740992, or auto"},
    };
    size_t n;
    const struct bpi_config_key *keys = bpi_config_keys(&n);
    for (size_t t = 0; t < BPI_ARRAY_LEN(cases); ++t) {
        bool found = false;
        for (size_t i = 0; i < n; ++i) {
            char out[192], small[8];
            if (strcmp(keys[i].section, cases[t].section) != 0 ||
                strcmp(keys[i].key, cases[t].key) != 0)
                continue;
            found = true;
            bpi_config_allowed(&keys[i], out, sizeof out);
            ck_assert_str_eq(out, cases[t].text);
            bpi_config_allowed(&keys[i], small, sizeof small);
            ck_assert_uint_eq(strlen(small), sizeof small - 1);
        }
        ck_assert_msg(found, "%s.%s", cases[t].section, cases[t].key);
    }
}
END_TEST

#ifdef NDEBUG
START_TEST(wrong_questions_get_zero)
{
    struct bpi_config *c = new_config();
    ck_assert_int_eq(bpi_config_int(c, "kv", "nothing"), 0);
    ck_assert_int_eq(bpi_config_int(c, "kv", "dtype"), 0); /* another type */
    ck_assert(bpi_config_float(c, "kv", "block") == 0.0);
    ck_assert(!bpi_config_bool(c, "kv", "block"));
    ck_assert_str_eq(bpi_config_str(c, "nowhere", "block"), "");
    ck_assert_str_eq(bpi_config_origin(c, "nowhere", "block"), "");
    ck_assert_str_eq(bpi_config_slot(c, "mla", 0), "");
    ck_assert_str_eq(bpi_config_wrap(c, "mla", 0), "");
    ck_assert(!bpi_config_is_auto(c, "nowhere", "block"));
    bpi_config_destroy(c);
}
END_TEST
#else
START_TEST(wrong_questions_assert)
{
    struct bpi_config *c = new_config();
    bpi_config_int(c, "kv", "nothing");
}
END_TEST
#endif

int main(void)
{
    Suite *suite = suite_create("config_table");
    TCase *tc = tcase_create("table");
    tcase_add_test(tc, rows_are_sane);
    tcase_add_test(tc, defaults_pass_their_own_checks);
    tcase_add_test(tc, ranges_hold_at_both_ends);
    tcase_add_test(tc, words_and_flags);
    tcase_add_test(tc, ranges_in_words);
#ifdef NDEBUG
    tcase_add_test(tc, wrong_questions_get_zero);
#else
    tcase_add_test_raise_signal(tc, wrong_questions_assert, 6);
#endif
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
