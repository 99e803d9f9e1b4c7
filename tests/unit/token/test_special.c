/* test_special.c - special tokens in a text: the longest first, against a search written token length by token length;
 * which kinds are seen when. SPDX-License-Identifier: MIT */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "base/rng.h"
#include "harness/cpu_time.h"
#include "harness/token_image.h"
#include "token/token_priv.h"

enum { N_SPECIAL = 12, MAX_TEXT = 40 };

/* Every length downwards, every place of it from the left: what fits between earlier finds is taken. */
static size_t plain_search(const struct bpi_token *t, const char *const *special,
                           const uint32_t *kind, bool trusted, const char *text, size_t n,
                           struct bpi_special_hit *out)
{
    bool taken[MAX_TEXT] = {false};
    int32_t start[MAX_TEXT];
    size_t length[MAX_TEXT] = {0}, count = 0;
    for (size_t len = n; len > 0; --len) {
        for (size_t at = 0; at + len <= n; ++at) {
            bool is_free = true;
            for (size_t i = at; i < at + len; ++i) is_free = is_free && !taken[i];
            if (!is_free) continue;
            for (size_t k = 0; k < N_SPECIAL; ++k) {
                if (strlen(special[k]) != len || memcmp(special[k], text + at, len) != 0) continue;
                if (kind[k] != BPI_TOK_USER && !trusted) continue;
                for (size_t i = at; i < at + len; ++i) taken[i] = true;
                start[at] = bpi_token_find(t, special[k], len);
                length[at] = len;
                break;
            }
        }
    }
    for (size_t at = 0; at < n; ++at) {
        if (length[at] > 0)
            out[count++] = (struct bpi_special_hit){at, (uint32_t)length[at], start[at]};
    }
    return count;
}

START_TEST(overlaps_against_plain_search)
{
    const uint64_t seed = 31337;
    printf("seed %llu\n", (unsigned long long)seed);
    struct bpi_rng rng;
    bpi_rng_seed(&rng, seed);
    size_t found = 0;
    for (int k = 0; k < 300; ++k) {
        static char text_of[N_SPECIAL][8];
        const char *special[N_SPECIAL];
        uint32_t kind[N_SPECIAL];
        struct image m;
        struct bpi_token *t;
        struct bp_error err = BP_ERROR_INIT;
        image_begin(&m, "gpt-2");
        image_bytes(&m);
        for (size_t i = 0; i < N_SPECIAL; ++i) {
            bool again;
            do {
                size_t len = 2 + bpi_rng_below(&rng, 5);
                for (size_t c = 0; c < len; ++c)
                    text_of[i][c] = (char)('a' + bpi_rng_below(&rng, 2));
                text_of[i][len] = '\0';
                again = false;
                for (size_t j = 0; j < i; ++j) again = again || strcmp(text_of[i], text_of[j]) == 0;
            } while (again);
            static const uint32_t kinds[] = {BPI_TOK_CONTROL, BPI_TOK_USER, BPI_TOK_UNKNOWN};
            special[i] = text_of[i];
            kind[i] = kinds[bpi_rng_below(&rng, 3)];
            (void)image_token(&m, special[i], (int32_t)kind[i]);
        }
        ck_assert_msg(image_open(&m, &t, &err) == BP_OK, "%s", err.msg);
        for (int round = 0; round < 40; ++round) {
            char text[MAX_TEXT];
            size_t n = bpi_rng_below(&rng, MAX_TEXT + 1);
            for (size_t i = 0; i < n; ++i) text[i] = (char)('a' + bpi_rng_below(&rng, 2));
            struct bpi_special_hits ours = {0};
            struct bpi_special_hit theirs[MAX_TEXT];
            uint32_t flags = round % 2 == 0 ? BPI_TOKENIZE_SPECIAL : 0;
            size_t want = plain_search(t, special, kind, flags != 0, text, n, theirs);
            ck_assert_int_eq(bpi_special_search(t, text, n, flags, &ours), BP_OK);
            bool same = ours.n == want;
            for (size_t i = 0; same && i < want; ++i) {
                same = ours.hit[i].at == theirs[i].at && ours.hit[i].n == theirs[i].n &&
                       ours.hit[i].id == theirs[i].id;
            }
            ck_assert_msg(same, "vocabulary %d, \"%.*s\": %zu hits, not %zu", k, (int)n, text,
                          ours.n, want);
            found += want;
            bpi_free(ours.hit);
        }
        bpi_token_close(t);
    }
    ck_assert_uint_gt(found, 20000);
}
END_TEST

START_TEST(which_kinds_are_seen)
{
    struct image m;
    struct bpi_token *t;
    struct bp_error err = BP_ERROR_INIT;
    image_begin(&m, "gpt-2");
    image_bytes(&m);
    static const struct {
        const char *text;
        int32_t type;
        bool plain, trusted, content;
    } kinds[] = {{"<ctl>", BPI_TOK_CONTROL, false, true, false},
                 {"<unk>", BPI_TOK_UNKNOWN, false, true, false},
                 {"<usr>", BPI_TOK_USER, true, true, false},
                 {"[usr]", BPI_TOK_USER, true, true, false},
                 {"usr\t", BPI_TOK_USER, true, true, true},
                 {"<nrm>", BPI_TOK_NORMAL, false, false, false},
                 {"<unu>", BPI_TOK_UNUSED, false, false, false},
                 {"<byt>", BPI_TOK_BYTE, false, false, false},
                 {"<und>", BPI_TOK_UNDEFINED, false, false, false}};
    for (size_t i = 0; i < BPI_ARRAY_LEN(kinds); ++i)
        (void)image_token(&m, kinds[i].text, kinds[i].type);
    image_merge(&m, "x y");
    ck_assert_msg(image_open(&m, &t, &err) == BP_OK, "%s", err.msg);
    for (size_t i = 0; i < BPI_ARRAY_LEN(kinds); ++i) {
        static const uint32_t flags[] = {0, BPI_TOKENIZE_SPECIAL, BPI_TOKENIZE_CONTENT};
        bool want[] = {kinds[i].plain, kinds[i].trusted, kinds[i].content};
        for (size_t k = 0; k < 3; ++k) {
            struct bpi_special_hits hits = {0};
            ck_assert_int_eq(bpi_special_search(t, kinds[i].text, 5, flags[k], &hits), BP_OK);
            bool seen = hits.n == 1 &&
                        hits.hit[0].id == bpi_token_find(t, kinds[i].text, strlen(kinds[i].text));
            ck_assert_msg(seen == want[k], "%s, flags %x", kinds[i].text, flags[k]);
            bpi_free(hits.hit);
        }
    }
    /* Only the room itself can switch markup off. */
    struct bpi_ids ids = {0};
    ck_assert_int_eq(bpi_tokenize(t, "<usr>", 5, BPI_TOKENIZE_CONTENT, &ids, NULL), BP_OK);
    ck_assert_uint_eq(ids.n, 1);
    /* A special token cuts words: "ab" around it is two words. */
    ids.n = 0;
    ck_assert_int_eq(bpi_tokenize(t, "a<ctl>b", 7, BPI_TOKENIZE_SPECIAL, &ids, NULL), BP_OK);
    ck_assert(ids.n == 3 && ids.ids[0] == 'a' && ids.ids[1] == 256 && ids.ids[2] == 'b');
    bpi_ids_free(&ids);
    bpi_token_close(t);
}
END_TEST

/* The markers of each family stand for themselves only in trusted text, and a begin token is never doubled. */
START_TEST(markers_of_the_families)
{
    static const char *const markers[] = {"[BOS]",
                                          "[EOS]",
                                          "<|im_end|>",
                                          "<|im_user|>",
                                          "<|im_assistant|>",
                                          "<|im_system|>",
                                          "<|im_middle|>",
                                          "<|tool_calls_section_begin|>",
                                          "<\xef\xbd\x9c"
                                          "begin\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>",
                                          "<\xef\xbd\x9cUser\xef\xbd\x9c>",
                                          "[gMASK]",
                                          "<|user|>"};
    struct image m;
    struct bpi_token *t;
    struct bp_error err = BP_ERROR_INIT;
    image_begin(&m, "kimi-k2");
    image_bytes(&m);
    for (size_t i = 0; i < BPI_ARRAY_LEN(markers); ++i)
        (void)image_token(&m, markers[i], BPI_TOK_CONTROL);
    image_u32(&m, "tokenizer.ggml.bos_token_id", 256);
    image_bool(&m, "tokenizer.ggml.add_bos_token", true);
    ck_assert_msg(image_open(&m, &t, &err) == BP_OK, "%s", err.msg);
    struct bpi_ids ids = {0};
    for (size_t i = 0; i < BPI_ARRAY_LEN(markers); ++i) {
        size_t n = strlen(markers[i]);
        for (uint32_t flags = 0; flags <= (BPI_TOKENIZE_SPECIAL | BPI_TOKENIZE_BOS); ++flags) {
            bool special = (flags & BPI_TOKENIZE_SPECIAL) != 0;
            bool own = special && i == 0, added = (flags & BPI_TOKENIZE_BOS) != 0 && !own;
            ids.n = 0;
            ck_assert_int_eq(bpi_tokenize(t, markers[i], n, flags, &ids, NULL), BP_OK);
            ck_assert_uint_eq(ids.n, (special ? 1 : n) + added);
            ck_assert(ids.ids[0] == 256 || !added);
            if (special) ck_assert_int_eq(ids.ids[added], 256 + (int32_t)i);
            ck_assert(ids.own_bos == (own && (flags & BPI_TOKENIZE_BOS) != 0));
        }
    }
    /* Only the first of its own counts, and only at the very beginning; ids that stood before are not looked at. */
    static const char two[] = "[BOS][BOS]a", later[] = "a[BOS]";
    static const int32_t want[] = {256, 256, 256, 'a', 256, 'a', 256};
    ids.n = 0;
    ck_assert_int_eq(bpi_ids_push(&ids, 256), BP_OK);
    ck_assert_int_eq(
        bpi_tokenize(t, two, strlen(two), BPI_TOKENIZE_SPECIAL | BPI_TOKENIZE_BOS, &ids, NULL),
        BP_OK);
    ck_assert(ids.own_bos);
    ck_assert_int_eq(
        bpi_tokenize(t, later, strlen(later), BPI_TOKENIZE_SPECIAL | BPI_TOKENIZE_BOS, &ids, NULL),
        BP_OK);
    ck_assert(!ids.own_bos);
    ck_assert_uint_eq(ids.n, BPI_ARRAY_LEN(want));
    ck_assert_mem_eq(ids.ids, want, sizeof want);
    bpi_ids_free(&ids);
    bpi_token_close(t);
}
END_TEST

/* Tokens that overlap everywhere are the slow case: it stays near linear in the text. */
START_TEST(overlapping_tokens_in_a_long_text)
{
    enum { MIB = 1 << 20 };
    struct image m;
    struct bpi_token *t;
    struct bp_error err = BP_ERROR_INIT;
    image_begin(&m, "gpt-2");
    image_bytes(&m);
    (void)image_token(&m, "aa", BPI_TOK_USER);
    (void)image_token(&m, "aaaaaaa", BPI_TOK_USER);
    (void)image_token(&m, "aaaaaaaaaaaaaaab", BPI_TOK_USER);
    ck_assert_msg(image_open(&m, &t, &err) == BP_OK, "%s", err.msg);
    char *text = malloc(MIB);
    ck_assert_ptr_nonnull(text);
    memset(text, 'a', MIB);
    double seconds[2];
    struct bpi_ids ids = {0};
    for (int i = 0; i < 6; ++i) { /* the best of three each */
        uint64_t t0 = bp_test_cpu_ns();
        ids.n = 0;
        ck_assert_int_eq(bpi_tokenize(t, text, i % 2 == 0 ? MIB / 4 : MIB, 0, &ids, NULL), BP_OK);
        double s = (double)(bp_test_cpu_ns() - t0) * 1e-9;
        if (i < 2 || s < seconds[i % 2]) seconds[i % 2] = s;
    }
    printf("1 MiB of overlapping tokens: %.0f ms, 256 KiB: %.0f ms\n", seconds[1] * 1e3,
           seconds[0] * 1e3);
    ck_assert_uint_eq(ids.n, MIB / 7 + MIB % 7 / 2 + MIB % 7 % 2);
    ck_assert(seconds[1] < 8 * (seconds[0] > 5e-3 ? seconds[0] : 5e-3));
    free(text);
    bpi_ids_free(&ids);
    bpi_token_close(t);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("special");
    TCase *tc = tcase_create("special");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, overlaps_against_plain_search);
    tcase_add_test(tc, which_kinds_are_seen);
    tcase_add_test(tc, markers_of_the_families);
    tcase_add_test(tc, overlapping_tokens_in_a_long_text);
    suite_add_tcase(s, tc);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
