/* test_tokenize.c - recorded ids of the bundled and the larger model, round trips, merging against a plain
 * reimplementation, streaming, time. Exits with 77 when the larger model is missing and all else passed.
 * SPDX-License-Identifier: MIT */
#include <check.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "base/rng.h"
#include "harness/cpu_time.h"
#include "harness/token_image.h"
#include "harness/token_model.h"

static bool have_deepseek2;

static void encode(const struct bpi_token *t, const char *text, size_t n, uint32_t flags,
                   struct bpi_ids *ids)
{
    struct bp_error err = BP_ERROR_INIT;
    ids->n = 0;
    int32_t rc = bpi_tokenize(t, text, n, flags, ids, &err);
    if (rc != BP_OK) ck_abort_msg("%d: %s", rc, err.msg);
}

static void decode(const struct bpi_token *t, const struct bpi_ids *ids, bool special,
                   struct bpi_buf *b)
{
    b->len = 0;
    for (size_t i = 0; i < ids->n; ++i) {
        if (bpi_token_bytes(t, ids->ids[i], special, b) != BP_OK)
            ck_abort_msg("id %d", ids->ids[i]);
    }
}

/* ---- recorded ids ---- */

static bool ids_are(const struct bpi_ids *ids, json_t *want)
{
    bool same = ids->n == json_array_size(want);
    for (size_t k = 0; same && k < ids->n; ++k) {
        same = ids->ids[k] == (int32_t)json_integer_value(json_array_get(want, k));
    }
    return same;
}

/* The recording program knew the special tokens in the text, so all its ids are those of trusted text. Where no marker
 * is in the text, trusted or not makes no difference. Returns how many texts hold a marker. */
static unsigned check_recorded(const char *model, const char *json_file)
{
    struct bpi_token *t = bp_test_token(model);
    ck_assert_ptr_nonnull(t);
    json_error_t je;
    json_t *root = json_load_file(json_file, 0, &je), *entry;
    ck_assert_msg(root != NULL, "%s", je.text);
    ck_assert_uint_gt(json_array_size(root), 5);
    struct bpi_ids ids = {0};
    unsigned with_marker = 0;
    size_t i;
    json_array_foreach(root, i, entry)
    {
        json_t *text = json_object_get(entry, "text"), *want = json_object_get(entry, "ids");
        encode(t, json_string_value(text), json_string_length(text), BPI_TOKENIZE_SPECIAL, &ids);
        ck_assert_msg(ids_are(&ids, want), "text %zu, trusted: %zu ids", i, ids.n);
        bool marker = false;
        for (size_t k = 0; k < ids.n; ++k) {
            marker = marker || bpi_token_type(t, ids.ids[k]) == BPI_TOK_CONTROL;
        }
        if (marker) ++with_marker;
        encode(t, json_string_value(text), json_string_length(text), 0, &ids);
        ck_assert_msg(ids_are(&ids, want) == !marker, "text %zu, not trusted: %zu ids", i, ids.n);
    }
    bpi_ids_free(&ids);
    json_decref(root);
    bpi_token_close(t);
    return with_marker;
}

START_TEST(recorded_ids_glm)
{
    static const char text[] = "<|user|> is not special here";
    static const int32_t plain[] = {27, 91, 495, 270, 91, 29, 378, 356, 970, 1538, 367, 710};
    ck_assert_uint_eq(
        check_recorded(BP_TEST_GLM, BP_SOURCE_DIR "/tests/data/golden/bp-tiny-glm-dsa.tokens.json"),
        1);
    struct bpi_token *t = bp_test_token(BP_TEST_GLM);
    struct bpi_ids ids = {0};
    encode(t, text, strlen(text), 0, &ids);
    ck_assert_uint_eq(ids.n, BPI_ARRAY_LEN(plain));
    ck_assert_mem_eq(ids.ids, plain, sizeof plain);
    bpi_ids_free(&ids);
    bpi_token_close(t);
}
END_TEST

START_TEST(recorded_ids_deepseek2)
{
    ck_assert_uint_eq(check_recorded(BP_TEST_DEEPSEEK2, BP_SOURCE_DIR
                                     "/tests/data/golden/bp-tiny-deepseek2.tokens.json"),
                      0);
}
END_TEST

START_TEST(facts_of_the_bundled_models)
{
    struct bpi_token *t = bp_test_token(BP_TEST_GLM);
    ck_assert_ptr_nonnull(t);
    ck_assert_uint_eq(bpi_token_count(t), 4096);
    ck_assert_str_eq(bpi_token_pre(t), "glm4");
    ck_assert_int_eq(bpi_token_bos(t), 4088);
    ck_assert_int_eq(bpi_token_eos(t), 4086);
    ck_assert(!bpi_token_add_bos(t));
    ck_assert_int_eq(bpi_token_find(t, "<|user|>", 8), 4093);
    /* The three end marks of this family, and no other special token. */
    for (int32_t id = -1; id <= 4096; ++id) {
        ck_assert_int_eq(bpi_token_is_eog(t, id), id == 4086 || id == 4093 || id == 4095);
    }
    bpi_token_close(t);
    if (!have_deepseek2) return;
    t = bp_test_token(BP_TEST_DEEPSEEK2);
    ck_assert_ptr_nonnull(t);
    ck_assert_int_eq(bpi_token_bos(t), 4093);
    ck_assert_int_eq(bpi_token_eos(t), 4094);
    ck_assert(bpi_token_add_bos(t));
    struct bpi_ids ids = {0};
    static const char own[] = "<\xef\xbd\x9c"
                              "begin\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>Hello";
    /* One begin token, whoever writes it. */
    encode(t, "Hello", 5, BPI_TOKENIZE_BOS, &ids);
    ck_assert(ids.n > 1 && ids.ids[0] == 4093 && ids.ids[1] != 4093);
    size_t n = ids.n;
    encode(t, own, strlen(own), BPI_TOKENIZE_BOS | BPI_TOKENIZE_SPECIAL, &ids);
    ck_assert(ids.n == n && ids.ids[0] == 4093 && ids.ids[1] != 4093);
    encode(t, own, strlen(own), BPI_TOKENIZE_BOS, &ids);
    ck_assert(ids.n > n && ids.ids[0] == 4093 && ids.ids[1] != 4093);
    encode(t, "", 0, BPI_TOKENIZE_BOS, &ids);
    ck_assert(ids.n == 1 && ids.ids[0] == 4093);
    for (int32_t id = 0; id < 4096; ++id) ck_assert_int_eq(bpi_token_is_eog(t, id), id == 4094);
    bpi_ids_free(&ids);
    bpi_token_close(t);
}
END_TEST

/* ---- round trips ---- */

static size_t random_bytes(struct bpi_rng *rng, char *out, size_t max)
{
    size_t n = bpi_rng_below(rng, max + 1);
    for (size_t i = 0; i < n; ++i) out[i] = (char)bpi_rng_u64(rng);
    return n;
}

static size_t random_utf8(struct bpi_rng *rng, char *out, size_t max_cp)
{
    static const uint32_t limits[] = {0x80, 0x80, 0x80, 0x800, 0x10000, 0x110000};
    size_t n_cp = bpi_rng_below(rng, max_cp + 1), n = 0;
    while (n_cp-- > 0) {
        uint32_t c =
            (uint32_t)bpi_rng_below(rng, limits[bpi_rng_below(rng, BPI_ARRAY_LEN(limits))]);
        n += bpi_utf8_encode(c, (unsigned char *)out + n); /* nothing for surrogates */
    }
    return n;
}

/* Pieces of real text, so that long merges happen, with markers among them. */
static size_t random_words(struct bpi_rng *rng, char *out, size_t max_words)
{
    static const char *const words[] = {
        " the", " once",         "<|user|>", "upon",      " a", "\n",    "123",
        " I'm", "[gMASK]",       "  ",       " little",   "s",  "<sop>", "?!",
        " and", "<|endoftext|>", "\r\n",     " children", "\t", "9",     "\xe4\xb8\xad"};
    size_t n_words = bpi_rng_below(rng, max_words + 1), n = 0;
    while (n_words-- > 0) {
        const char *w = words[bpi_rng_below(rng, BPI_ARRAY_LEN(words))];
        memcpy(out + n, w, strlen(w));
        n += strlen(w);
    }
    return n;
}

/* Feeds a stream id by id. What is out never ends inside a character, at most three bytes are held back, and the whole
 * is the text. */
static void check_stream(const struct bpi_token *t, const struct bpi_ids *ids, bool special,
                         const char *text, size_t n, struct bpi_buf *b)
{
    static bool boundary[8192];
    struct bpi_token_stream s = {0};
    struct bpi_buf whole = {0};
    if (n >= sizeof boundary) ck_abort_msg("%zu bytes", n);
    memset(boundary, 0, sizeof boundary);
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        bool ok;
        boundary[i] = true;
        i += bpi_utf8_decode((const unsigned char *)text + i, n - i, &cp, &ok);
    }
    boundary[n] = true;
    b->len = 0;
    for (size_t i = 0; i < ids->n; ++i) {
        if (bpi_token_stream_push(&s, t, ids->ids[i], special, b) != BP_OK)
            ck_abort_msg("id %d", ids->ids[i]);
        (void)bpi_token_bytes(t, ids->ids[i], special, &whole);
        if (b->len > n || !boundary[b->len]) ck_abort_msg("half a character after id %zu", i);
        if (b->len + 3 < whole.len || s.n_held != whole.len - b->len)
            ck_abort_msg("%u bytes held", s.n_held);
    }
    bpi_token_stream_flush(&s, b);
    bpi_buf_free(&whole);
    if (b->len != n || (n > 0 && memcmp(b->data, text, n) != 0)) {
        ck_abort_msg("the stream differs from the text");
    }
}

static void round_trips(const char *model, uint64_t seed)
{
    struct bpi_token *t = bp_test_token(model);
    ck_assert_ptr_nonnull(t);
    printf("%s: seed %llu\n", model, (unsigned long long)seed);
    struct bpi_rng rng;
    bpi_rng_seed(&rng, seed);
    struct bpi_ids ids = {0};
    struct bpi_buf b = {0};
    static char text[4096];
    size_t n_special = 0, n_ids = 0, n_bytes = 0;
    for (int round = 0; round < 9000; ++round) {
        size_t n = round % 3 == 0   ? random_bytes(&rng, text, 200)
                   : round % 3 == 1 ? random_utf8(&rng, text, 100)
                                    : random_words(&rng, text, 60);
        for (uint32_t flags = 0; flags <= BPI_TOKENIZE_SPECIAL; ++flags) {
            encode(t, text, n, flags, &ids);
            decode(t, &ids, true, &b);
            if (b.len != n || (n > 0 && memcmp(b.data, text, n) != 0))
                ck_abort_msg("round %d: not the text", round);
            check_stream(t, &ids, true, text, n, &b);
            size_t special = 0;
            for (size_t i = 0; i < ids.n; ++i) {
                uint32_t type = bpi_token_type(t, ids.ids[i]);
                if (type == BPI_TOK_CONTROL || type == BPI_TOK_UNKNOWN) ++special;
            }
            if (flags == 0 && special > 0)
                ck_abort_msg("round %d: text became a special id", round);
            n_special += special;
        }
        n_ids += ids.n;
        n_bytes += n;
    }
    printf("%zu bytes, %zu ids, %zu special\n", n_bytes, n_ids, n_special);
    ck_assert_uint_lt(n_ids, n_bytes); /* something was merged */
    if (strcmp(model, BP_TEST_GLM) == 0) ck_assert_uint_gt(n_special, 1000);
    bpi_buf_free(&b);
    bpi_ids_free(&ids);
    bpi_token_close(t);
}

START_TEST(round_trips_glm)
{
    round_trips(BP_TEST_GLM, 1234567);
}
END_TEST

START_TEST(round_trips_deepseek2)
{
    round_trips(BP_TEST_DEEPSEEK2, 7654321);
}
END_TEST

/* ---- merging, against symbols kept as texts and a search of all pairs in every step ---- */

enum { MAX_WORD = 48, N_LETTERS = 4, N_TEST_MERGES = 40 };
struct toy {
    char left[N_TEST_MERGES][MAX_WORD], right[N_TEST_MERGES][MAX_WORD];
    int n_merges;
    struct bpi_token *t;
};

/* Merges of letters and of earlier results. Some results are entries, some are control entries, some are nothing. */
static void make_toy(struct toy *toy, struct bpi_rng *rng, const char *pre)
{
    struct image m;
    struct bp_error err = BP_ERROR_INIT;
    char joined[N_LETTERS + N_TEST_MERGES][MAX_WORD];
    int n_joined = 0;
    image_begin(&m, pre);
    image_bytes(&m);
    for (; n_joined < N_LETTERS; ++n_joined)
        (void)snprintf(joined[n_joined], MAX_WORD, "%c", 'a' + n_joined);
    toy->n_merges = 0;
    while (toy->n_merges < N_TEST_MERGES) {
        const char *l = joined[bpi_rng_below(rng, (uint64_t)n_joined)];
        const char *r = joined[bpi_rng_below(rng, (uint64_t)n_joined)];
        char both[2 * MAX_WORD], line[2 * MAX_WORD + 2];
        (void)snprintf(both, sizeof both, "%s%s", l, r);
        (void)snprintf(line, sizeof line, "%s %s", l, r);
        if (strlen(both) >= 12) continue;
        (void)snprintf(toy->left[toy->n_merges], MAX_WORD, "%s", l);
        (void)snprintf(toy->right[toy->n_merges++], MAX_WORD, "%s", r);
        image_merge(&m, line);
        bool known = false;
        for (int i = 0; i < n_joined; ++i) known = known || strcmp(joined[i], both) == 0;
        if (known) continue;
        memcpy(joined[n_joined++], both, strlen(both) + 1);
        uint64_t kind = bpi_rng_below(rng, 5);
        if (kind > 0) (void)image_token(&m, both, kind == 1 ? BPI_TOK_CONTROL : BPI_TOK_NORMAL);
    }
    ck_assert_msg(image_open(&m, &toy->t, &err) == BP_OK, "%s", err.msg);
}

static void toy_encode(const struct toy *toy, const char *word, struct bpi_ids *ids)
{
    char sym[MAX_WORD][MAX_WORD];
    int n = (int)strlen(word);
    for (int i = 0; i < n; ++i) (void)snprintf(sym[i], MAX_WORD, "%c", word[i]);
    for (;;) {
        int best = N_TEST_MERGES, at = -1;
        for (int i = 0; i + 1 < n; ++i) {
            for (int k = 0; k < best; ++k) {
                if (strcmp(sym[i], toy->left[k]) == 0 && strcmp(sym[i + 1], toy->right[k]) == 0) {
                    best = k;
                    at = i;
                }
            }
        }
        if (at < 0) break;
        char both[2 * MAX_WORD];
        (void)snprintf(both, sizeof both, "%s%s", sym[at], sym[at + 1]);
        memcpy(sym[at], both, MAX_WORD); /* a word is shorter than MAX_WORD, so are its parts */
        memmove(sym[at + 1], sym[at + 2], (size_t)(n - at - 2) * sizeof sym[0]);
        --n;
    }
    ids->n = 0;
    for (int i = 0; i < n; ++i) {
        int32_t id = bpi_token_find(toy->t, sym[i], strlen(sym[i]));
        if (id != BPI_TOKEN_NONE && bpi_token_type(toy->t, id) == BPI_TOK_NORMAL) {
            (void)bpi_ids_push(ids, id);
            continue;
        }
        for (const char *c = sym[i]; *c != '\0'; ++c) (void)bpi_ids_push(ids, *c);
    }
}

START_TEST(merging_against_plain_search)
{
    const uint64_t seed = 4711;
    printf("seed %llu\n", (unsigned long long)seed);
    struct bpi_rng rng;
    bpi_rng_seed(&rng, seed);
    struct bpi_ids ours = {0}, theirs = {0};
    size_t merged = 0;
    for (int k = 0; k < 60; ++k) {
        static struct toy toy;
        make_toy(&toy, &rng, "gpt-2");
        for (int round = 0; round < 60; ++round) {
            char word[MAX_WORD] = "";
            size_t n = 1 + bpi_rng_below(&rng, MAX_WORD - 1);
            for (size_t i = 0; i < n; ++i) word[i] = (char)('a' + bpi_rng_below(&rng, N_LETTERS));
            encode(toy.t, word, n, 0, &ours);
            toy_encode(&toy, word, &theirs);
            bool same =
                ours.n == theirs.n && memcmp(ours.ids, theirs.ids, ours.n * sizeof(int32_t)) == 0;
            ck_assert_msg(same, "vocabulary %d, \"%s\"", k, word);
            merged += n - ours.n;
        }
        bpi_token_close(toy.t);
    }
    ck_assert_uint_gt(merged, 10000);
    bpi_ids_free(&ours);
    bpi_ids_free(&theirs);
}
END_TEST

START_TEST(whole_words_before_merges)
{
    struct bpi_ids ids = {0};
    for (int k = 0; k < 2; ++k) {
        struct image m;
        struct bpi_token *t;
        struct bp_error err = BP_ERROR_INIT;
        image_begin(&m, k == 0 ? "llama-bpe" : "glm4");
        image_bytes(&m);
        int32_t ab = (int32_t)image_token(&m, "ab", BPI_TOK_NORMAL);
        int32_t abcd = (int32_t)image_token(&m, "abcd", BPI_TOK_NORMAL);
        (void)image_token(&m, "abc", BPI_TOK_CONTROL);
        image_merge(&m, "a b");
        ck_assert_msg(image_open(&m, &t, &err) == BP_OK, "%s", err.msg);
        encode(t, "abcd", 4, 0, &ids);
        ck_assert(k == 0 ? ids.n == 1 && ids.ids[0] == abcd : ids.n == 3 && ids.ids[0] == ab);
        encode(t, "abc", 3, 0,
               &ids); /* a control token is not taken, although its text is the word */
        ck_assert(ids.n == 2 && ids.ids[0] == ab && ids.ids[1] == 'c');
        bpi_token_close(t);
    }
    bpi_ids_free(&ids);
}
END_TEST

/* ---- streaming: a text with characters of 1 to 4 bytes, in each of its 2^10 cuts into tokens ---- */

START_TEST(streaming_every_cut)
{
    static const char text[] = "a\xc3\xa9\xe4\xb8\xad\xf0\x9f\x99\x82z";
    enum { N = sizeof text - 1 };
    struct image m;
    struct bpi_token *t;
    struct bp_error err = BP_ERROR_INIT;
    int32_t id[N][N + 1];
    image_begin(&m, "gpt-2");
    image_bytes(&m);
    for (size_t from = 0; from < N; ++from) {
        struct bpi_buf entry = {0};
        for (size_t to = from + 1; to <= N; ++to) {
            unsigned char utf8[4];
            bpi_buf_append(&entry, utf8, image_byte_text((unsigned char)text[to - 1], utf8));
            id[from][to] = to == from + 1
                               ? (int32_t)(unsigned char)text[from]
                               : (int32_t)image_token_n(&m, entry.data, entry.len, BPI_TOK_NORMAL);
        }
        bpi_buf_free(&entry);
    }
    image_merge(
        &m, "x y"); /* ids are fed directly here; a vocabulary of longer entries needs some merge */
    ck_assert_msg(image_open(&m, &t, &err) == BP_OK, "%s", err.msg);
    struct bpi_ids ids = {0};
    struct bpi_buf b = {0};
    for (uint32_t cuts = 0; cuts < 1u << (N - 1); ++cuts) {
        ids.n = 0;
        for (size_t from = 0, to = 1; to <= N; ++to) {
            if (to < N && (cuts >> (to - 1) & 1) == 0) continue;
            ck_assert_int_eq(bpi_ids_push(&ids, id[from][to]), BP_OK);
            from = to;
        }
        check_stream(t, &ids, false, text, N, &b);
    }
    bpi_buf_free(&b);
    bpi_ids_free(&ids);
    bpi_token_close(t);
}
END_TEST

/* Bytes that cannot become a character come out as soon as that is certain, an unfinished one at the end. */
START_TEST(streaming_broken_bytes)
{
    static const struct {
        const char *bytes;
        size_t out[5];                        /* length of the text after each byte */
    } cases[] = {{"\x80", {1}},               /* lone continuation */
                 {"\xc0\x80", {1, 2}},        /* overlong */
                 {"\xe0\x80\x80", {0, 2, 3}}, /* overlong: certain at the second byte */
                 {"\xed\xa0\x80", {0, 2, 3}}, /* surrogate */
                 {"\xf4\x90", {0, 2}},        /* above U+10FFFF */
                 {"\xe4\xb8"
                  "a",
                  {0, 0, 3}},                 /* cut by a letter */
                 {"\xf0\x9f\x99", {0, 0, 0}}, /* ends inside */
                 {"\xe4\xf0\x9f\x99\x82", {0, 1, 1, 1, 5}},
                 {"\xff", {1}}};
    struct bpi_token *t = bp_test_token(BP_TEST_GLM);
    ck_assert_ptr_nonnull(t);
    for (size_t i = 0; i < BPI_ARRAY_LEN(cases); ++i) {
        struct bpi_token_stream s = {0};
        struct bpi_buf b = {0};
        size_t n = strlen(cases[i].bytes);
        for (size_t k = 0; k < n; ++k) {
            unsigned char utf8[4];
            size_t len = image_byte_text((unsigned char)cases[i].bytes[k], utf8);
            int32_t id = bpi_token_find(t, (const char *)utf8, len);
            ck_assert_int_eq(bpi_token_stream_push(&s, t, id, false, &b), BP_OK);
            ck_assert_msg(b.len == cases[i].out[k], "case %zu, byte %zu: %zu", i, k, b.len);
        }
        bpi_token_stream_flush(&s, &b);
        ck_assert_uint_eq(s.n_held, 0);
        ck_assert(b.len == n && memcmp(b.data, cases[i].bytes, n) == 0);
        bpi_buf_free(&b);
    }
    /* Control tokens are silent unless asked for, and never held back. */
    struct bpi_token_stream s = {0};
    struct bpi_buf b = {0};
    ck_assert_int_eq(bpi_token_stream_push(&s, t, 4093, false, &b), BP_OK);
    ck_assert_uint_eq(b.len, 0);
    ck_assert_int_eq(bpi_token_stream_push(&s, t, 4093, true, &b), BP_OK);
    ck_assert_str_eq(b.data, "<|user|>");
    ck_assert_int_eq(bpi_token_stream_push(&s, t, -1, true, &b), BP_E_ARG);
    ck_assert_int_eq(bpi_token_stream_push(&s, t, 4096, true, &b), BP_E_ARG);
    ck_assert_str_eq(b.data, "<|user|>");
    bpi_buf_free(&b);
    bpi_token_close(t);
}
END_TEST

/* ---- time ---- */

static double seconds_for(const struct bpi_token *t, const char *text, size_t n,
                          struct bpi_ids *ids)
{
    uint64_t t0 = bp_test_cpu_ns();
    encode(t, text, n, BPI_TOKENIZE_SPECIAL, ids);
    return (double)(bp_test_cpu_ns() - t0) * 1e-9;
}

/* Bytes whose runs merge again and again, so that the heap does real work: one word, twelve levels of merges. */
static struct bpi_token *open_doubling(const char *pre)
{
    /* The last ones: space, newline, a Han character. */
    static const char *const units[] = {"a", "7",        "aB",       "A",
                                        "'", "\xc4\xa0", "\xc4\x8a", "\xc3\xa4\xc2\xb8\xc5\x83"};
    struct image m;
    struct bpi_token *t;
    struct bp_error err = BP_ERROR_INIT;
    image_begin(&m, pre);
    image_bytes(&m);
    image_merge(&m, "a B");
    image_merge(&m, "\xc3\xa4 \xc2\xb8");
    image_merge(&m, "\xc3\xa4\xc2\xb8 \xc5\x83");
    (void)image_token(&m, "aB", BPI_TOK_NORMAL);
    (void)image_token(&m, "\xc3\xa4\xc2\xb8\xc5\x83", BPI_TOK_NORMAL);
    for (size_t k = 0; k < BPI_ARRAY_LEN(units); ++k) {
        struct bpi_buf run = {0}, line = {0};
        bpi_buf_puts(&run, units[k]);
        for (int level = 0; level < 12; ++level) {
            line.len = 0;
            bpi_buf_printf(&line, "%s %s", run.data, run.data);
            image_merge(&m, line.data);
            line.len = 0;
            bpi_buf_printf(&line, "%s%s", run.data, run.data);
            (void)image_token(&m, line.data, BPI_TOK_NORMAL);
            run.len = 0;
            bpi_buf_puts(&run, line.data);
        }
        bpi_buf_free(&run);
        bpi_buf_free(&line);
    }
    ck_assert_msg(image_open(&m, &t, &err) == BP_OK, "%s", err.msg);
    return t;
}

static void check_time(const char *model)
{
    static const char *const fills[] = {" ",        "\n",      "a", "7",    "the ",
                                        "<|user|>", "<|user|", "<", "\xff", "\xe4\xb8\xad"};
    enum { MIB = 1 << 20 };
#ifdef BP_SANITIZED
    const double limit = 20;
#else
    const double limit = 2;
#endif
    struct bpi_token *t = model != NULL ? bp_test_token(model) : open_doubling("gpt-2");
    ck_assert_ptr_nonnull(t);
    char *text = malloc(MIB);
    ck_assert_ptr_nonnull(text);
    struct bpi_ids ids = {0};
    for (size_t k = 0; k < BPI_ARRAY_LEN(fills); ++k) {
        size_t len = strlen(fills[k]);
        for (size_t i = 0; i < MIB; ++i) text[i] = fills[k][i % len];
        double big = 0, ratio = 0;
        for (int attempt = 0; attempt < 3; ++attempt) { /* other work may slow one */
            double small = seconds_for(t, text, MIB / 4, &ids);
            big = seconds_for(t, text, MIB, &ids);
            ratio = big / (small > 1e-3 ? small : 1e-3); /* below a millisecond the clock decides */
            if (big < limit && ratio < 8) break;
        }
        printf("%s: 1 MiB of fill %zu: %.0f ms, %.1f times 256 KiB, %zu ids\n",
               model != NULL ? model : "doubling", k, big * 1e3, ratio, ids.n);
        ck_assert_msg(big < limit, "%f s", big);
        ck_assert_msg(ratio < 8, "%f", ratio);
    }
    bpi_ids_free(&ids);
    free(text);
    bpi_token_close(t);
}

START_TEST(time_with_deep_merges)
{
    check_time(NULL);
    struct bpi_token *t = open_doubling("gpt-2");
    struct bpi_ids ids = {0};
    static char text[5 << 12];
    memset(text, 'a', sizeof text);
    encode(t, text, sizeof text - 1, 0, &ids); /* 4 runs of 4096, then 2048, 1024, ... 1 */
    ck_assert_uint_eq(ids.n, 4 + 12);
    memset(text, 0, sizeof text);
    for (size_t i = 0; i < 3 * 4096; ++i) text[i] = "\xe4\xb8\xad"[i % 3];
    encode(t, text, 3 * 4096, 0, &ids); /* the other units merge as far */
    ck_assert_uint_eq(ids.n, 1);
    for (size_t i = 0; i < 4096; ++i) text[i] = "aB"[i % 2];
    encode(t, text, 4096, 0, &ids);
    ck_assert_uint_eq(ids.n, 1);
    bpi_ids_free(&ids);
    bpi_token_close(t);
}
END_TEST

/* From text to ids with every splitter: spaces, newlines, letters, digits, Han, mixed case, apostrophes. */
START_TEST(time_of_every_splitter)
{
    static const char *const fills[] = {" ", "\n", "a", "7", "\xe4\xb8\xad", "aB", "A", "'"};
#ifdef BP_SANITIZED
    enum { SIZE = 1 << 18 };
#else
    enum { SIZE = 1 << 20 };
#endif
    char *text = malloc(SIZE);
    ck_assert_ptr_nonnull(text);
    struct bpi_ids ids = {0};
    for (const char *const *name = bpi_pretok_names(); *name != NULL; ++name) {
        struct bpi_token *t = open_doubling(*name);
        double worst = 0;
        for (size_t k = 0; k < BPI_ARRAY_LEN(fills); ++k) {
            size_t len = strlen(fills[k]);
            for (size_t i = 0; i < SIZE; ++i) text[i] = fills[k][i % len];
            double big = 0, ratio = 0;
            for (int attempt = 0; attempt < 3; ++attempt) {
                uint64_t t0 = bp_test_cpu_ns();
                encode(t, text, SIZE, 0, &ids);
                uint64_t t1 = bp_test_cpu_ns();
                encode(t, text, SIZE / 4, 0, &ids);
                double small = (double)(bp_test_cpu_ns() - t1) * 1e-9;
                big = (double)(t1 - t0) * 1e-9;
                ratio = big / (small > 1e-3 ? small : 1e-3);
                if (big < 2 && ratio < 8) break;
            }
            if (big > worst) worst = big;
            ck_assert_msg(big < 2 && ratio < 8, "%s, fill %zu: %f s, %f times a quarter", *name, k,
                          big, ratio);
        }
        printf("%s: %d bytes in at most %.0f ms\n", *name, SIZE, worst * 1e3);
        bpi_token_close(t);
    }
    bpi_ids_free(&ids);
    free(text);
}
END_TEST

START_TEST(time_glm)
{
    check_time(BP_TEST_GLM);
}
END_TEST

START_TEST(time_deepseek2)
{
    check_time(BP_TEST_DEEPSEEK2);
}
END_TEST

int main(void)
{
    have_deepseek2 = bp_test_model(BP_TEST_DEEPSEEK2) != NULL;
    Suite *s = suite_create("tokenize");
    TCase *tc = tcase_create("tokenize");
    tcase_set_timeout(tc, 300);
    tcase_add_test(tc, recorded_ids_glm);
    tcase_add_test(tc, facts_of_the_bundled_models);
    tcase_add_test(tc, round_trips_glm);
    tcase_add_test(tc, merging_against_plain_search);
    tcase_add_test(tc, whole_words_before_merges);
    tcase_add_test(tc, streaming_every_cut);
    tcase_add_test(tc, streaming_broken_bytes);
    tcase_add_test(tc, time_with_deep_merges);
    tcase_add_test(tc, time_of_every_splitter);
    tcase_add_test(tc, time_glm);
    if (have_deepseek2) {
        tcase_add_test(tc, recorded_ids_deepseek2);
        tcase_add_test(tc, round_trips_deepseek2);
        tcase_add_test(tc, time_deepseek2);
    }
    suite_add_tcase(s, tc);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    if (failed > 0) return EXIT_FAILURE;
    if (have_deepseek2) return EXIT_SUCCESS;
    printf("SKIP: the tests of " BP_TEST_DEEPSEEK2
           "; the others passed. Set BP_MODELS to its folder.\n");
    return 77;
}
