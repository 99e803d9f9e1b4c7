/* test_pretok.c - the splitters against recorded pieces of an independent engine, and against PCRE2 running the
 * regexes themselves on random text; linear time; invalid bytes.
 * SPDX-License-Identifier: MIT */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <check.h>
#include <jansson.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "base/rng.h"
#include "harness/cpu_time.h"
#include "token/token.h"
#include "token/token_unicode.h"

struct pieces { /* ends of pieces, so that text is checked to be covered without gaps */
    const char *text;
    size_t at;
    size_t *end;
    size_t n, cap;
};

static void add_end(struct pieces *p, size_t end)
{
    if (p->n == p->cap) {
        p->cap = p->cap > 0 ? p->cap * 2 : 64;
        p->end = realloc(p->end, p->cap * sizeof *p->end);
        if (p->end == NULL) ck_abort_msg("out of memory");
    }
    p->end[p->n++] = end;
}

static int32_t collect(void *ctx, const char *piece, size_t n)
{
    struct pieces *p = ctx;
    /* Not ck_assert: it writes to a file each time, and there are millions of pieces. */
    if (n == 0 || piece != p->text + p->at) return BP_E_INTERNAL;
    p->at += n;
    add_end(p, p->at);
    return BP_OK;
}

static void split(const char *pre, const char *text, size_t n, struct pieces *p)
{
    p->text = text;
    p->at = p->n = 0;
    ck_assert_int_eq(bpi_pretok_split(pre, text, n, collect, p), BP_OK);
    ck_assert_uint_eq(p->at, n);
}

START_TEST(recorded_pieces)
{
    static const char *const names[] = {"gpt-2", "llama-bpe", "glm4", "qwen2", "deepseek-v3"};
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
            split(names[k], json_string_value(text), json_string_length(text), &p);
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
    free(p.end);
    json_decref(root);
}
END_TEST

/* ---- PCRE2 as the reference ---- */

struct reference {
    const char *name;
    const char *stage[4];
    pcre2_code *re[4];
};

#define CONTRACTIONS "'s|'t|'re|'ve|'m|'ll|'d"
#define LLAMA(digits)                                                                              \
    "(?i:" CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits                                  \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static struct reference references[] = {
    {.name = "gpt-2",
     .stage = {CONTRACTIONS "| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"}},
    {.name = "llama-bpe", .stage = {LLAMA("\\p{N}{1,3}")}},
    {.name = "glm4", .stage = {LLAMA("\\p{N}{1,3}")}},
    {.name = "chatglm-bpe", .stage = {LLAMA("\\p{N}{1,3}")}},
    {.name = "qwen2", .stage = {LLAMA("\\p{N}")}},
    {.name = "deepseek-v3",
     .stage = {"\\p{N}{1,3}", "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+",
               "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
               "|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
               "| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
};

static void compile_references(void)
{
    for (size_t i = 0; i < BPI_ARRAY_LEN(references); ++i) {
        struct reference *r = &references[i];
        for (size_t k = 0; k < 4 && r->stage[k] != NULL; ++k) {
            int code;
            PCRE2_SIZE where;
            r->re[k] = pcre2_compile((PCRE2_SPTR)r->stage[k], PCRE2_ZERO_TERMINATED,
                                     PCRE2_UTF | PCRE2_UCP, &code, &where, NULL);
            ck_assert_msg(r->re[k] != NULL, "%s stage %zu: %d at %zu", r->name, k, code, where);
            (void)pcre2_jit_compile(r->re[k], PCRE2_JIT_COMPLETE);
        }
    }
}

static void free_references(void)
{
    for (size_t i = 0; i < BPI_ARRAY_LEN(references); ++i) {
        for (size_t k = 0; k < 4; ++k) pcre2_code_free(references[i].re[k]);
    }
}

/* Each stage sees each piece as a text of its own, so lookahead stops at the piece's end. */
static void reference_split(const struct reference *r, size_t k, pcre2_match_data *md,
                            const char *text, size_t from, size_t to, struct pieces *p)
{
    if (from == to) return;
    if (k == 4 || r->re[k] == NULL) {
        add_end(p, to);
        return;
    }
    size_t done = from, at = 0;
    while (pcre2_match(r->re[k], (PCRE2_SPTR)(text + from), to - from, at, 0, md, NULL) > 0) {
        size_t start = from + pcre2_get_ovector_pointer(md)[0];
        size_t end = from + pcre2_get_ovector_pointer(md)[1];
        if (end <= start) ck_abort_msg("%s matches nothing", r->name);
        reference_split(r, k + 1, md, text, done, start,
                        p); /* overwrites md, hence start and end */
        reference_split(r, k + 1, md, text, start, end, p);
        done = end;
        at = end - from;
    }
    reference_split(r, k + 1, md, text, done, to, p);
}

/* Mostly characters that decide between alternatives, some from anywhere. U+180E is left out because PCRE2's \s has
 * it and White_Space does not; characters without a class are mostly unassigned, which versions disagree about. */
static uint32_t random_cp(struct bpi_rng *rng)
{
    static const uint32_t edges[] = {
        ' ',    ' ',    ' ',    '\n',   '\r',  '\t',    '\'',    '\'',   's',     'S',
        0x17f,  't',    'r',    'e',    'v',   'V',     'E',     'm',    'l',     'L',
        'd',    'D',    'a',    'Z',    '1',   '2',     '0',     '.',    ',',     '!',
        '_',    '-',    '<',    '$',    '+',   0x85,    0xa0,    0x3000, 0x2028,  0x200b,
        0x1,    0x7f,   0xe9,   0x301,  0x302, 0x4e2d,  0x9fa5,  0x9fa6, 0x3042,  0x30ab,
        0x30fb, 0x30fc, 0x3099, 0xac00, 0x5d0, 0xff11,  0xbd,    0x2167, 0x1f642, 0x20ac,
        0x2014, 0xff01, 0xfffd, 0x1c5,  0x2b0, 0x20000, 0xe0100, 0x212a};
    if (bpi_rng_below(rng, 8) != 0) return edges[bpi_rng_below(rng, BPI_ARRAY_LEN(edges))];
    for (;;) {
        uint32_t limit = bpi_rng_below(rng, 2) == 0 ? 0x3000 : 0x20000;
        uint32_t c = (uint32_t)bpi_rng_below(rng, limit);
        if (bpi_unicode_flags(c) != 0) return c;
    }
}

static size_t random_text(struct bpi_rng *rng, char *out, size_t max_cp)
{
    size_t n_cp = bpi_rng_below(rng, max_cp + 1), n = 0;
    while (n_cp-- > 0) {
        uint32_t c = random_cp(rng);
        uint64_t repeat = bpi_rng_below(rng, 6) == 0 ? 1 + bpi_rng_below(rng, 5) : 1;
        for (; repeat > 0; --repeat) n += bpi_utf8_encode(c, (unsigned char *)out + n);
    }
    return n;
}

START_TEST(random_text_against_pcre2)
{
    enum { ROUNDS = 40000, MAX_CP = 40 };
    const uint64_t seed = 20240611;
    printf("seed %llu, %d texts\n", (unsigned long long)seed, ROUNDS);
    struct bpi_rng rng;
    bpi_rng_seed(&rng, seed);
    compile_references();
    pcre2_match_data *md = pcre2_match_data_create(1, NULL);
    char text[MAX_CP * 5 * 4];
    struct pieces ours = {0}, theirs = {0};
    size_t total = 0;
    for (int round = 0; round < ROUNDS; ++round) {
        size_t n = random_text(&rng, text, MAX_CP);
        for (size_t i = 0; i < BPI_ARRAY_LEN(references); ++i) {
            split(references[i].name, text, n, &ours);
            theirs.n = 0;
            reference_split(&references[i], 0, md, text, 0, n, &theirs);
            bool same = ours.n == theirs.n;
            for (size_t k = 0; same && k < ours.n; ++k) same = ours.end[k] == theirs.end[k];
            if (!same)
                ck_abort_msg("%s, round %d: \"%.*s\"", references[i].name, round, (int)n, text);
            total += ours.n;
        }
    }
    printf("%zu pieces compared\n", total);
    ck_assert_uint_gt(total, (size_t)ROUNDS * 20);
    free(ours.end);
    free(theirs.end);
    pcre2_match_data_free(md);
    free_references();
}
END_TEST

/* A single wrong byte is one symbol: the split is that of the text with U+FFFD in its place. */
START_TEST(invalid_bytes_count_as_u_fffd)
{
    const uint64_t seed = 77;
    printf("seed %llu\n", (unsigned long long)seed);
    struct bpi_rng rng;
    bpi_rng_seed(&rng, seed);
    struct pieces raw = {0}, clean = {0};
    for (int round = 0; round < 5000; ++round) {
        char text[64], mended[64 * 3];
        size_t n = bpi_rng_below(&rng, sizeof text), m = 0, ends[64] = {0}, n_ends = 0;
        for (size_t i = 0; i < n; ++i) {
            static const char alphabet[] = "\xff\xc0\x80\xe4\xb8\xad\xf0\x9f\xed\xa0 a1.\n";
            text[i] = alphabet[bpi_rng_below(&rng, sizeof alphabet - 1)];
        }
        split("deepseek-v3", text, n, &raw);
        for (size_t i = 0, piece = 0; i < n;) {
            uint32_t c;
            bool ok;
            i += bpi_utf8_decode((const unsigned char *)text + i, n - i, &c, &ok);
            m += bpi_utf8_encode(c, (unsigned char *)mended + m);
            if (piece < raw.n && i == raw.end[piece]) {
                ends[n_ends++] = m;
                ++piece;
            }
        }
        split("deepseek-v3", mended, m, &clean);
        ck_assert_uint_eq(n_ends, raw.n); /* no piece ends inside a character */
        ck_assert_uint_eq(clean.n, raw.n);
        for (size_t i = 0; i < clean.n; ++i) ck_assert_uint_eq(clean.end[i], ends[i]);
    }
    free(raw.end);
    free(clean.end);
}
END_TEST

static double seconds_for(const char *pre, const char *text, size_t n, struct pieces *p)
{
    double best = 1e9;
    for (int i = 0; i < 3; ++i) {
        uint64_t t0 = bp_test_cpu_ns();
        split(pre, text, n, p);
        double s = (double)(bp_test_cpu_ns() - t0) * 1e-9;
        if (s < best) best = s;
    }
    return best;
}

START_TEST(time_is_linear)
{
    static const char *const fills[] = {
        " ",        "\n",   "\r\n", "a",  "1",  "'",  "!",  " \n", "\t ", "\xe4\xb8\xad",
        "\xcc\x81", "\x01", "\xff", "'l", " 1", "a ", "\n "};
    enum { MIB = 1 << 20 };
    char *text = malloc(MIB);
    ck_assert_ptr_nonnull(text);
    struct pieces p = {0};
    double worst = 0, worst_ratio = 0;
    for (size_t k = 0; k < BPI_ARRAY_LEN(fills); ++k) {
        size_t len = strlen(fills[k]);
        for (size_t i = 0; i < MIB; ++i) text[i] = fills[k][i % len];
        for (const char *const *name = bpi_pretok_names(); *name != NULL; ++name) {
            double big = seconds_for(*name, text, MIB, &p);
            double small = seconds_for(*name, text, MIB / 4, &p);
            if (big > worst) worst = big;
            /* Below two milliseconds the clock decides, not the algorithm. */
            double ratio = big > 2e-3 ? big / (small > 5e-4 ? small : 5e-4) : 0;
            if (ratio > worst_ratio) worst_ratio = ratio;
            ck_assert_msg(big < 2.0, "%s, fill %zu: %f s", *name, k, big);
            ck_assert_msg(ratio < 8.0, "%s, fill %zu: %f s, %f s for a quarter", *name, k, big,
                          small);
        }
    }
    printf("1 MiB: at most %.1f ms, at most %.1f times the time of 256 KiB\n", worst * 1e3,
           worst_ratio);
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
    ck_assert_uint_eq(n, BPI_ARRAY_LEN(references));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("pretok");
    TCase *tc = tcase_create("pretok");
    tcase_set_timeout(tc, 300);
    tcase_add_test(tc, recorded_pieces);
    tcase_add_test(tc, random_text_against_pcre2);
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
