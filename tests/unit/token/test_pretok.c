/* test_pretok.c - the splitters against recorded pieces of an independent engine; linear time; invalid bytes; names.
 * Against the regexes themselves: test_pretok_regex.c. SPDX-License-Identifier: MIT */
#include <check.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "base/rng.h"
#include "harness/cpu_time.h"
#include "harness/token_pieces.h"

START_TEST(recorded_pieces)
{
    static const char *const names[] = {"gpt-2",       "llama-bpe",    "glm4",   "qwen2",
                                        "deepseek-v3", "deepseek-llm", "kimi-k2"};
    json_error_t je;
    json_t *root = json_load_file(BP_SOURCE_DIR "/tests/data/golden/pretok.json", 0, &je);
    ck_assert_msg(root != NULL, "%s", je.text);
    struct pieces p = {0};
    unsigned texts = 0;
    for (size_t k = 0; k < BPI_ARRAY_LEN(names); ++k) {
        json_t *list = json_object_get(root, names[k]), *entry;
        ck_assert(json_array_size(list) > 0);
        size_t i;
        json_array_foreach(list, i, entry)
        {
            json_t *text = json_object_get(entry, "text");
            json_t *want = json_object_get(entry, "pieces");
            pieces_split(names[k], json_string_value(text), json_string_length(text), &p);
            ck_assert_msg(p.n == json_array_size(want), "%s, text %zu: %zu pieces", names[k], i,
                          p.n);
            for (size_t j = 0, start = 0; j < p.n; start = p.end[j++]) {
                json_t *w = json_array_get(want, j);
                ck_assert_msg(json_string_length(w) == p.end[j] - start &&
                                  memcmp(json_string_value(w), p.text + start, p.end[j] - start) ==
                                      0,
                              "%s, text %zu, piece %zu", names[k], i, j);
            }
            ++texts;
        }
    }
    printf("%u recorded texts\n", texts);
    ck_assert_uint_eq(json_object_size(root), BPI_ARRAY_LEN(names));
    free(p.end);
    json_decref(root);
}
END_TEST

/* A single wrong byte is one symbol: the split is that of the text with U+FFFD in its place. */
static void check_mended(const char *pre, const char *text, size_t n, struct pieces *raw,
                         struct pieces *clean)
{
    char mended[64 * 3];
    size_t m = 0, ends[64] = {0}, n_ends = 0;
    pieces_split(pre, text, n, raw);
    for (size_t i = 0, piece = 0; i < n;) {
        uint32_t c;
        bool ok;
        i += bpi_utf8_decode((const unsigned char *)text + i, n - i, &c, &ok);
        m += bpi_utf8_encode(c, (unsigned char *)mended + m);
        if (piece < raw->n && i == raw->end[piece]) {
            ends[n_ends++] = m;
            ++piece;
        }
    }
    pieces_split(pre, mended, m, clean);
    bool same = n_ends == raw->n && clean->n == raw->n; /* no piece ends inside a character */
    for (size_t i = 0; same && i < clean->n; ++i) same = clean->end[i] == ends[i];
    if (!same) ck_abort_msg("%s: %zu pieces of %zu bytes", pre, raw->n, n);
}

START_TEST(invalid_bytes_count_as_u_fffd)
{
    const uint64_t seed = 77;
    printf("seed %llu\n", (unsigned long long)seed);
    struct bpi_rng rng;
    bpi_rng_seed(&rng, seed);
    struct pieces raw = {0}, clean = {0};
    for (int round = 0; round < 5000; ++round) {
        static const char alphabet[] =
            "\xff\xc0\x80\xe4\xb8\xad\xf0\x9f\xed\xa0\xe2\x80\x83 aB1.\n";
        char text[64];
        size_t n = bpi_rng_below(&rng, sizeof text);
        for (size_t i = 0; i < n; ++i) text[i] = alphabet[bpi_rng_below(&rng, sizeof alphabet - 1)];
        for (const char *const *name = bpi_pretok_names(); *name != NULL; ++name) {
            check_mended(*name, text, n, &raw, &clean);
        }
    }
    free(raw.end);
    free(clean.end);
}
END_TEST

static double seconds_for(const char *pre, const char *text, size_t n, struct pieces *p)
{
    uint64_t t0 = bp_test_cpu_ns();
    pieces_split(pre, text, n, p);
    return (double)(bp_test_cpu_ns() - t0) * 1e-9;
}

/* The whole text and its last quarter. A busy machine may spoil one measurement, not three. */
static double check_time(const char *pre, const char *text, size_t n, double *worst_ratio,
                         struct pieces *p)
{
#ifdef BP_SANITIZED
    const double limit = 20;
#else
    const double limit = 2;
#endif
    double big = 0, ratio = 0;
    for (int attempt = 0; attempt < 3; ++attempt) {
        big = seconds_for(pre, text, n, p);
        double small = seconds_for(pre, text + n - n / 4, n / 4, p);
        /* Below two milliseconds the clock decides, not the algorithm. */
        ratio = big > 2e-3 ? big / (small > 5e-4 ? small : 5e-4) : 0;
        if (big < limit && ratio < 8.0) break;
    }
    if (ratio > *worst_ratio) *worst_ratio = ratio;
    ck_assert_msg(big < limit && ratio < 8.0, "%s: %f s, %f times a quarter, text %.20s", pre, big,
                  ratio, text);
    return big;
}

START_TEST(time_is_linear)
{
    /* A tail stands at the end once: what looks for something behind a long run must not look again and again. */
    static const struct {
        const char *fill, *tail;
    } fills[] = {{" ", ""},
                 {"\n", ""},
                 {"\r\n", ""},
                 {"a", ""},
                 {"A", ""},
                 {"aB", ""},
                 {"AAb", ""},
                 {"1", ""},
                 {"'", ""},
                 {"!", ""},
                 {" \n", ""},
                 {"\t ", ""},
                 {"\xe4\xb8\xad", ""},
                 {"\xcc\x81", ""},
                 {"\x01", ""},
                 {"\xff", ""},
                 {"'l", ""},
                 {" 1", ""},
                 {"a ", ""},
                 {"\n ", ""},
                 {" ", "1"},            /* spaces that do not reach the end of their piece */
                 {"\xe3\x80\x80", "1"}, /* the same, of three bytes */
                 {" ", "\xe2\x82\xac"},
                 {"\n", "1"},
                 {"A", "\xca\xb0"},  /* capitals, then a letter that is both */
                 {"A\xca\xb0", "A"}, /* both in turn */
                 {"\xca\xb0"
                  "A",
                  ""},
                 {"\xcc\x81"
                  "A",
                  ""}, /* mark, capital */
                 {"\xcc\x81"
                  "AAAAAAAA",
                  "!"},
                 {"\xe3\x80\x85", ""},             /* Han that is no ideograph */
                 {"\xe3\x81\x8b\xe4\xb8\xad", ""}, /* kana, Han */
                 {"h\xc3\xa9", ""},                /* ASCII and other letters in turn */
                 {"'S", ""},
                 {"a's", ""}};
#ifdef BP_SANITIZED
    enum { MIB = 1 << 18 }; /* a quarter: what is measured there is whether they end */
#else
    enum { MIB = 1 << 20 };
#endif
    char *text = malloc(MIB);
    ck_assert_ptr_nonnull(text);
    struct pieces p = {0};
    double worst = 0, worst_ratio = 0;
    for (size_t k = 0; k < BPI_ARRAY_LEN(fills); ++k) {
        size_t len = strlen(fills[k].fill), tail = strlen(fills[k].tail);
        for (size_t i = 0; i < MIB; ++i) text[i] = fills[k].fill[i % len];
        memcpy(text + MIB - tail, fills[k].tail, tail);
        for (const char *const *name = bpi_pretok_names(); *name != NULL; ++name) {
            double big = check_time(*name, text, MIB, &worst_ratio, &p);
            if (big > worst) worst = big;
        }
    }
    printf("%d KiB: at most %.1f ms, at most %.1f times the time of a quarter\n", MIB >> 10,
           worst * 1e3, worst_ratio);
    ck_assert(worst > 0);
    free(p.end);
    free(text);
}
END_TEST

static int32_t stop_at_third(void *ctx, const char *piece, size_t n)
{
    (void)piece;
    (void)n;
    return ++*(int *)ctx == 3 ? BP_E_ABORTED : BP_OK;
}

START_TEST(names_and_failures)
{
    int calls = 0;
    ck_assert_int_eq(bpi_pretok_split("no-such", "a", 1, stop_at_third, &calls), BP_E_UNSUPPORTED);
    ck_assert_int_eq(bpi_pretok_split(NULL, "a", 1, stop_at_third, &calls), BP_E_UNSUPPORTED);
    ck_assert_int_eq(bpi_pretok_split("glm", "a", 1, stop_at_third, &calls), BP_E_UNSUPPORTED);
    ck_assert_int_eq(bpi_pretok_split("glm4", "", 0, stop_at_third, &calls), BP_OK);
    ck_assert_int_eq(calls, 0);
    ck_assert_int_eq(bpi_pretok_split("glm4", "a b c d", 7, stop_at_third, &calls), BP_E_ABORTED);
    ck_assert_int_eq(calls, 3);
    size_t n = 0;
    for (const char *const *name = bpi_pretok_names(); *name != NULL; ++name, ++n) {
        calls = -100;
        ck_assert_int_eq(bpi_pretok_split(*name, "ab", 2, stop_at_third, &calls), BP_OK);
        ck_assert_int_eq(calls, -99);
    }
    ck_assert_uint_eq(n, 9);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("pretok");
    TCase *tc = tcase_create("pretok");
    tcase_set_timeout(tc, 300);
    tcase_add_test(tc, recorded_pieces);
    tcase_add_test(tc, invalid_bytes_count_as_u_fffd);
    tcase_add_test(tc, time_is_linear);
    tcase_add_test(tc, names_and_failures);
    suite_add_tcase(s, tc);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
