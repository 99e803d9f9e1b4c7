/* test_token_ranks.c - vocabularies without merges whose ids are ranks: against an encoder written as tiktoken defines
 * it, against the merges of a vocabulary that was trained here, refusals, time. SPDX-License-Identifier: MIT */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "base/rng.h"
#include "harness/cpu_time.h"
#include "harness/token_image.h"

static struct bpi_token *must_open(struct image *m)
{
    struct bpi_token *t;
    struct bp_error err = BP_ERROR_INIT;
    ck_assert_msg(image_open(m, &t, &err) == BP_OK, "%s: %s", err.where, err.msg);
    return t;
}

static void encode(const struct bpi_token *t, const char *text, size_t n, struct bpi_ids *ids)
{
    ids->n = 0;
    if (bpi_tokenize(t, text, n, 0, ids, NULL) != BP_OK) ck_abort_msg("cannot tokenize");
}

static bool same_ids(const struct bpi_ids *a, const struct bpi_ids *b)
{
    return a->n == b->n && memcmp(a->ids, b->ids, a->n * sizeof(int32_t)) == 0;
}

/* ---- against the definition: the whole word if it is an entry, else join the neighbours of the lowest id ---- */

enum { MAX_WORD = 40, N_ENTRIES = 60, N_LETTERS = 4 };

static int32_t rank_of(const struct bpi_token *t, const char *text, size_t n)
{
    int32_t id = bpi_token_find(t, text, n);
    return id != BPI_TOKEN_NONE && bpi_token_type(t, id) == BPI_TOK_NORMAL ? id : INT32_MAX;
}

static void plain_encode(const struct bpi_token *t, const char *word, size_t n, struct bpi_ids *ids)
{
    size_t cut[MAX_WORD + 1], n_part = n;
    ids->n = 0;
    if (rank_of(t, word, n) != INT32_MAX) {
        (void)bpi_ids_push(ids, rank_of(t, word, n));
        return;
    }
    for (size_t i = 0; i <= n; ++i) cut[i] = i;
    for (;;) {
        int32_t best = INT32_MAX;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n_part; ++i) {
            int32_t rank = rank_of(t, word + cut[i], cut[i + 2] - cut[i]);
            if (rank < best) {
                best = rank;
                at = i;
            }
        }
        if (best == INT32_MAX) break;
        memmove(&cut[at + 1], &cut[at + 2], (n_part - at - 1) * sizeof cut[0]);
        --n_part;
    }
    for (size_t i = 0; i < n_part; ++i) {
        (void)bpi_ids_push(ids, rank_of(t, word + cut[i], cut[i + 1] - cut[i]));
    }
}

/* Every entry is two earlier ones joined, in any order of lengths; some joins are special and no part of others. */
static struct bpi_token *random_vocabulary(struct bpi_rng *rng)
{
    static char joined[N_LETTERS + N_ENTRIES][32];
    struct image m;
    int n = 0;
    image_begin(&m, "kimi-k2");
    image_bytes(&m);
    for (; n < N_LETTERS; ++n) (void)snprintf(joined[n], sizeof joined[n], "%c", 'a' + n);
    while (n < N_LETTERS + N_ENTRIES) {
        char both[64];
        (void)snprintf(both, sizeof both, "%s%s", joined[bpi_rng_below(rng, (uint64_t)n)],
                       joined[bpi_rng_below(rng, (uint64_t)n)]);
        bool known = strlen(both) >= 12;
        for (int i = 0; i < n; ++i) known = known || strcmp(joined[i], both) == 0;
        if (known) continue;
        memcpy(joined[n++], both, strlen(both) + 1);
        (void)image_token(&m, both, BPI_TOK_NORMAL);
    }
    (void)image_token(&m, "abcabcabcabcabc", BPI_TOK_CONTROL);
    (void)image_token(&m, "dcbadcbadcbadcba", BPI_TOK_UNUSED);
    (void)image_token(&m,
                      "\xe2\x96\x81"
                      "a",
                      BPI_TOK_NORMAL); /* no text of bytes: never met */
    return must_open(&m);
}

START_TEST(merging_as_tiktoken_does)
{
    const uint64_t seed = 163328;
    printf("seed %llu\n", (unsigned long long)seed);
    struct bpi_rng rng;
    bpi_rng_seed(&rng, seed);
    struct bpi_ids ours = {0}, theirs = {0};
    size_t merged = 0;
    for (int k = 0; k < 80; ++k) {
        struct bpi_token *t = random_vocabulary(&rng);
        for (int round = 0; round < 100; ++round) {
            char word[MAX_WORD];
            size_t n = 1 + bpi_rng_below(&rng, MAX_WORD - 1);
            for (size_t i = 0; i < n; ++i) word[i] = (char)('a' + bpi_rng_below(&rng, N_LETTERS));
            encode(t, word, n, &ours);
            plain_encode(t, word, n, &theirs);
            if (!same_ids(&ours, &theirs)) ck_abort_msg("vocabulary %d, \"%.*s\"", k, (int)n, word);
            merged += n - ours.n;
        }
        /* Every entry comes back from its own text: that is what whole words are for. */
        for (int32_t id = 0; id < 256 + N_ENTRIES; ++id) {
            struct bpi_buf text = {0};
            ck_assert_int_eq(bpi_token_bytes(t, id, false, &text), BP_OK);
            encode(t, text.data, text.len, &ours);
            if (ours.n != 1 || ours.ids[0] != id) ck_abort_msg("entry %d", id);
            bpi_buf_free(&text);
        }
        bpi_token_close(t);
    }
    ck_assert_uint_gt(merged, 30000);
    bpi_ids_free(&ours);
    bpi_ids_free(&theirs);
}
END_TEST

/* ---- against the merges of a trained vocabulary, which a converter would write ---- */

enum { N_TRAIN = 400, N_IDS = 256 + N_TRAIN, MAX_TRAIN_BYTES = 60000 };
struct training {
    int32_t id[MAX_TRAIN_BYTES]; /* symbols of all words */
    size_t begin[MAX_TRAIN_BYTES + 1], n_words, n;
    char text[N_IDS][256]; /* in the byte alphabet */
};

static int32_t add_word(void *ctx, const char *piece, size_t n)
{
    struct training *tr = ctx;
    tr->begin[tr->n_words++] = tr->n;
    for (size_t i = 0; i < n; ++i) tr->id[tr->n++] = (unsigned char)piece[i];
    tr->begin[tr->n_words] = tr->n;
    return BP_OK;
}

/* The most frequent pair of neighbours. */
static void best_pair(const struct training *tr, uint32_t *count, int32_t *left, int32_t *right)
{
    uint32_t most = 0;
    memset(count, 0, sizeof *count * N_IDS * N_IDS);
    for (size_t w = 0; w < tr->n_words; ++w) {
        for (size_t i = tr->begin[w]; i + 1 < tr->begin[w + 1]; ++i) {
            uint32_t c = ++count[tr->id[i] * N_IDS + tr->id[i + 1]];
            if (c <= most) continue;
            most = c;
            *left = tr->id[i];
            *right = tr->id[i + 1];
        }
    }
    ck_assert_uint_gt(most, 1);
}

static void join_pair(struct training *tr, int32_t left, int32_t right, int32_t joined)
{
    size_t out = 0;
    for (size_t w = 0; w < tr->n_words; ++w) {
        size_t from = tr->begin[w], to = tr->begin[w + 1];
        tr->begin[w] = out;
        for (size_t i = from; i < to; ++i) {
            bool hit = i + 1 < to && tr->id[i] == left && tr->id[i + 1] == right;
            tr->id[out++] = hit ? joined : tr->id[i];
            i += hit;
        }
    }
    tr->begin[tr->n_words] = tr->n = out;
}

START_TEST(the_same_as_trained_merges)
{
    static struct training tr;
    struct image with, without;
    char *text;
    size_t n;
    struct bp_error err = BP_ERROR_INIT;
    ck_assert_int_eq(bpi_file_read(BP_SOURCE_DIR "/tests/data/text/stories-heldout.txt", 1u << 24,
                                   &text, &n, &err),
                     BP_OK);
    ck_assert_uint_gt(n, MAX_TRAIN_BYTES);
    uint32_t *count = malloc(sizeof *count * N_IDS * N_IDS);
    ck_assert_ptr_nonnull(count);
    ck_assert_int_eq(bpi_pretok_split("kimi-k2", text, MAX_TRAIN_BYTES, add_word, &tr), BP_OK);
    image_begin(&with, "kimi-k2");
    image_begin(&without, "kimi-k2");
    image_bytes(&with);
    image_bytes(&without);
    for (uint32_t byte = 0; byte < 256; ++byte) {
        tr.text[byte][image_byte_text(byte, (unsigned char *)tr.text[byte])] = '\0';
    }
    for (int32_t id = 256; id < N_IDS; ++id) {
        int32_t left = 0, right = 0;
        struct bpi_buf line = {0};
        best_pair(&tr, count, &left, &right);
        join_pair(&tr, left, right, id);
        int len = snprintf(tr.text[id], sizeof tr.text[id], "%s%s", tr.text[left], tr.text[right]);
        ck_assert(len > 0 && (size_t)len < sizeof tr.text[id]);
        bpi_buf_printf(&line, "%s %s", tr.text[left], tr.text[right]);
        image_merge(&with, line.data);
        (void)image_token(&with, tr.text[id], BPI_TOK_NORMAL);
        (void)image_token(&without, tr.text[id], BPI_TOK_NORMAL);
        bpi_buf_free(&line);
    }
    struct bpi_token *listed = must_open(&with), *derived = must_open(&without);
    struct bpi_ids a = {0}, b = {0};
    const char *key, *note;
    encode(listed, text, n, &a);
    encode(derived, text, n, &b);
    printf("%zu bytes, %zu ids\n", n, a.n);
    ck_assert(same_ids(&a, &b));
    ck_assert_uint_lt(a.n, n / 2); /* the training was worth something */
    ck_assert(!bpi_token_note(listed, 0, &key, &note));
    ck_assert(bpi_token_note(derived, 0, &key, &note) && !bpi_token_note(derived, 1, &key, &note));
    ck_assert_str_eq(key, "tokenizer.ggml.merges");
    bpi_ids_free(&a);
    bpi_ids_free(&b);
    bpi_token_close(listed);
    bpi_token_close(derived);
    bpi_free(text);
    free(count);
}
END_TEST

/* ---- what is refused, and what is not derived ---- */

static void check_entries(const char *pre, const char *const *entries, int32_t want,
                          const char *part_of_message)
{
    struct image m;
    struct bpi_token *t;
    struct bp_error err = BP_ERROR_INIT;
    image_begin(&m, pre);
    image_bytes(&m);
    for (; *entries != NULL; ++entries) (void)image_token(&m, *entries, BPI_TOK_NORMAL);
    ck_assert_int_eq(image_open(&m, &t, &err), want);
    if (want != BP_OK) {
        ck_assert_str_eq(err.where, "tokenizer.ggml.merges");
        ck_assert_msg(strstr(err.msg, part_of_message) != NULL, "%s", err.msg);
    }
    bpi_token_close(t);
}

START_TEST(refusals)
{
    static const char *const right[] = {"ab", "bc", "abc", NULL},
                             *const late[] = {"abc", "ab", NULL},
                             *const alone[] = {"ab", "xyz", NULL}, *const none[] = {NULL};
    check_entries("kimi-k2", right, BP_OK, "");
    check_entries("kimi-k2", late, BP_E_FORMAT,
                  "entry 256 (\"abc\") is not two earlier ones joined");
    check_entries("kimi-k2", alone, BP_E_FORMAT, "entry 257 (\"xyz\")");
    check_entries("kimi-k2", none, BP_OK, "");
    for (const char *const *name = bpi_pretok_names(); *name != NULL; ++name) {
        if (strcmp(*name, "kimi-k2") == 0) continue;
        check_entries(*name, right, BP_E_FORMAT, "there are no merges, but entry 256 (\"ab\")");
    }
}
END_TEST

/* With merges in the file nothing is derived, and a word that is an entry is merged like any other. */
START_TEST(listed_merges_come_first)
{
    struct image m;
    image_begin(&m, "kimi-k2");
    image_bytes(&m);
    int32_t ab = (int32_t)image_token(&m, "ab", BPI_TOK_NORMAL);
    (void)image_token(&m, "abc", BPI_TOK_NORMAL);
    image_merge(&m, "a b");
    struct bpi_token *t = must_open(&m);
    struct bpi_ids ids = {0};
    encode(t, "abc", 3, &ids);
    ck_assert(ids.n == 2 && ids.ids[0] == ab && ids.ids[1] == 'c');
    bpi_ids_free(&ids);
    bpi_token_close(t);
}
END_TEST

/* ---- time: a large vocabulary, and entries that all begin and end each other ---- */

static double seconds_to_open(struct image *m, uint32_t n_entries)
{
    struct bpi_gguf *g;
    struct bpi_token *t;
    struct bp_error err = BP_ERROR_INIT;
    image_end(m);
    ck_assert_int_eq(bpi_gguf_open_memory(m->b.data, m->b.len, "large", &g, &err), BP_OK);
    uint64_t t0 = bp_test_cpu_ns();
    ck_assert_msg(bpi_token_open(g, &t, &err) == BP_OK, "%s", err.msg);
    double seconds = (double)(bp_test_cpu_ns() - t0) * 1e-9;
    ck_assert_uint_eq(bpi_token_count(t), n_entries);
    bpi_token_close(t);
    bpi_gguf_close(g);
    image_free(m);
    return seconds;
}

#ifdef BP_SANITIZED
static const double limit = 20;
#else
static const double limit = 2;
#endif

/* As many as Kimi-K2 has: all hexadecimal numbers from their first digits on. */
START_TEST(large_vocabulary_opens_fast)
{
    enum { N = 163328 };
    struct image m;
    uint32_t n = 0;
    image_begin(&m, "kimi-k2");
    image_bytes(&m);
    for (uint32_t v = 16; n < N; ++v, ++n) {
        char text[16];
        (void)snprintf(text, sizeof text, "%x", v);
        (void)image_token(&m, text, BPI_TOK_NORMAL);
    }
    double seconds = seconds_to_open(&m, 256 + n);
    printf("%u entries without merges: opened in %.0f ms\n", n, seconds * 1e3);
    ck_assert(seconds < limit);
}
END_TEST

static double seconds_for_runs(size_t longest)
{
    double best = 1e9;
    for (int attempt = 0; attempt < 3; ++attempt) {
        struct image m;
        struct bpi_buf run = {0};
        uint32_t n = 256;
        image_begin(&m, "kimi-k2");
        image_bytes(&m);
        bpi_buf_puts(&run, "a");
        while (run.len < longest) {
            bpi_buf_puts(&run, "a");
            n = image_token_n(&m, run.data, run.len, BPI_TOK_NORMAL) + 1;
        }
        bpi_buf_free(&run);
        double seconds = seconds_to_open(&m, n);
        if (seconds < best) best = seconds;
    }
    return best;
}

START_TEST(runs_of_one_letter)
{
    double small = seconds_for_runs(400), big = seconds_for_runs(800);
    printf("runs up to 400: %.1f ms, up to 800 (4 times the bytes): %.1f ms\n", small * 1e3,
           big * 1e3);
    ck_assert(big < limit);
    ck_assert(big < 10 * (small > 5e-3 ? small : 5e-3));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("token_ranks");
    TCase *tc = tcase_create("token_ranks");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, merging_as_tiktoken_does);
    tcase_add_test(tc, the_same_as_trained_merges);
    tcase_add_test(tc, refusals);
    tcase_add_test(tc, listed_merges_come_first);
    tcase_add_test(tc, large_vocabulary_opens_fast);
    tcase_add_test(tc, runs_of_one_letter);
    suite_add_tcase(s, tc);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
