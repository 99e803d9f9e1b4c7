/* test_pretok_regex.c - the splitters against PCRE2 running the regexes themselves (UTF, UCP): on random texts, and on
 * all short texts over an alphabet of one character for each thing that a regex can ask.
 * SPDX-License-Identifier: MIT */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <check.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "base/rng.h"
#include "harness/token_pieces.h"
#include "token/token_unicode.h"

/* ---- the regexes ---- */

enum { MAX_STAGES = 6 };
struct reference {
    const char *name;
    const char *stage[MAX_STAGES];
    pcre2_code *re[MAX_STAGES];
};

#define CONTRACTIONS "'s|'t|'re|'ve|'m|'ll|'d"
#define GPT2 CONTRACTIONS "| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)"
#define LLAMA(digits)                                                                              \
    "(?i:" CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits                                  \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
/* Class intersection is not PCRE2's; a lookahead says the same. A bare \p{Han} would mean script extensions there, the
 * model's own regex means the script. */
#define HAN "\\p{sc:Han}"
#define UPPER "(?:(?!" HAN ")[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}])"
#define LOWER "(?:(?!" HAN ")[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}])"
#define PREFIX "[^\\r\\n\\p{L}\\p{N}]?"
#define V2_MARKS                                                                                   \
    "!-/:-~\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}\\x{2018}-\\x{201F}\\x{3000}-\\x{3002}"
#define V2_CJK "\\x{4E00}-\\x{9FA5}\\x{0800}-\\x{4E00}\\x{AC00}-\\x{D7FF}"
// clang-format off
#define V2_LETTERS \
    "A-Za-z\\x{00B5}\\x{00C0}-\\x{00D6}\\x{00D8}-\\x{00F6}\\x{00F8}-\\x{01BA}" \
    "\\x{01BC}-\\x{01BF}\\x{01C4}-\\x{0293}\\x{0295}-\\x{02AF}\\x{0370}-\\x{0373}\\x{0376}" \
    "\\x{0377}\\x{037B}-\\x{037D}\\x{037F}\\x{0386}\\x{0388}-\\x{038A}\\x{038C}" \
    "\\x{038E}-\\x{03A1}\\x{03A3}-\\x{03F5}\\x{03F7}-\\x{0481}\\x{048A}-\\x{052F}" \
    "\\x{0531}-\\x{0556}\\x{10A0}-\\x{10C5}\\x{13A0}-\\x{13F5}\\x{13F8}-\\x{13FD}" \
    "\\x{1C90}-\\x{1CBA}\\x{1CBD}-\\x{1CBF}\\x{1D00}-\\x{1D2B}\\x{1D6B}-\\x{1D77}" \
    "\\x{1D79}-\\x{1D9A}\\x{1E00}-\\x{1F15}\\x{1F18}-\\x{1F1D}\\x{1F20}-\\x{1F45}" \
    "\\x{1F48}-\\x{1F4D}\\x{1F50}-\\x{1F57}\\x{1F59}\\x{1F5B}\\x{1F5D}\\x{1F5F}-\\x{1F7D}" \
    "\\x{1F80}-\\x{1FB4}\\x{1FB6}-\\x{1FBC}\\x{1FBE}\\x{1FC2}-\\x{1FC4}\\x{1FC6}-\\x{1FCC}" \
    "\\x{1FD0}-\\x{1FD3}\\x{1FD6}-\\x{1FDB}\\x{1FE0}-\\x{1FEC}\\x{1FF2}-\\x{1FF4}" \
    "\\x{1FF6}-\\x{1FFC}\\x{2102}\\x{2107}\\x{210A}-\\x{2113}\\x{2115}\\x{2119}-\\x{211D}" \
    "\\x{2124}\\x{2126}\\x{2128}\\x{212A}-\\x{212D}\\x{212F}-\\x{2134}\\x{2139}" \
    "\\x{213C}-\\x{213F}\\x{2145}-\\x{2149}\\x{214E}\\x{2183}\\x{2184}\\x{2C00}-\\x{2C7B}" \
    "\\x{2C7E}-\\x{2CE4}\\x{2CEB}-\\x{2CEE}\\x{2CF2}\\x{2CF3}\\x{A640}-\\x{A66D}" \
    "\\x{A680}-\\x{A69B}\\x{A722}-\\x{A76F}\\x{A771}-\\x{A787}\\x{A78B}-\\x{A78E}" \
    "\\x{AB70}-\\x{ABBF}\\x{FB00}-\\x{FB06}\\x{FB13}-\\x{FB17}\\x{FF21}-\\x{FF3A}" \
    "\\x{FF41}-\\x{FF5A}\\x{10400}-\\x{1044F}\\x{104B0}-\\x{104D3}\\x{104D8}-\\x{104FB}" \
    "\\x{10C80}-\\x{10CB2}\\x{10CC0}-\\x{10CF2}\\x{118A0}-\\x{118DF}\\x{1E900}-\\x{1E943}"
// clang-format on

static struct reference references[] = {
    {.name = "gpt-2", .stage = {GPT2 "|\\s+"}},
    {.name = "llama-bpe", .stage = {LLAMA("\\p{N}{1,3}")}},
    {.name = "glm4", .stage = {LLAMA("\\p{N}{1,3}")}},
    {.name = "chatglm-bpe", .stage = {LLAMA("\\p{N}{1,3}")}},
    {.name = "qwen2", .stage = {LLAMA("\\p{N}")}},
    {.name = "deepseek-v3",
     .stage = {"\\p{N}{1,3}", "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+",
               "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
               "|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
               "| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
    {.name = "deepseek-llm",
     .stage = {"[\\r\\n]", "\\s?[" V2_LETTERS "]+", "\\s?[" V2_MARKS "]+", "\\s+$", "[" V2_CJK "]+",
               "\\p{N}+"}},
    {.name = "kimi-k2",
     .stage = {"[" HAN "]+|" PREFIX UPPER "*" LOWER "+(?i:" CONTRACTIONS ")?|" PREFIX UPPER
               "+" LOWER "*(?i:" CONTRACTIONS ")?"
               "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
    {.name = "default", .stage = {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
};

static pcre2_code *compile(const char *name, const char *pattern)
{
    int code;
    PCRE2_SIZE where;
    pcre2_code *re = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                   PCRE2_UTF | PCRE2_UCP, &code, &where, NULL);
    if (re == NULL) ck_abort_msg("%s: error %d at %zu of %s", name, code, where, pattern);
    (void)pcre2_jit_compile(re, PCRE2_JIT_COMPLETE);
    return re;
}

static void compile_references(void)
{
    for (size_t i = 0; i < BPI_ARRAY_LEN(references); ++i) {
        struct reference *r = &references[i];
        for (size_t k = 0; k < MAX_STAGES && r->stage[k] != NULL; ++k) {
            r->re[k] = compile(r->name, r->stage[k]);
        }
    }
}

static void free_references(void)
{
    for (size_t i = 0; i < BPI_ARRAY_LEN(references); ++i) {
        for (size_t k = 0; k < MAX_STAGES; ++k) {
            pcre2_code_free(references[i].re[k]);
            references[i].re[k] = NULL;
        }
    }
}

/* Each stage sees each piece as a text of its own, so lookahead stops at the piece's end. */
static void reference_split(const struct reference *r, size_t k, pcre2_match_data *md,
                            const char *text, size_t from, size_t to, struct pieces *p)
{
    if (from == to) return;
    if (k == MAX_STAGES || r->re[k] == NULL) {
        pieces_add_end(p, to);
        return;
    }
    size_t done = from, at = 0;
    while (pcre2_match(r->re[k], (PCRE2_SPTR)(text + from), to - from, at, PCRE2_NO_UTF_CHECK, md,
                       NULL) > 0) {
        size_t start = from + pcre2_get_ovector_pointer(md)[0];
        size_t end = from + pcre2_get_ovector_pointer(md)[1];
        if (end <= start) ck_abort_msg("%s matches nothing", r->name);
        /* These overwrite md, hence start and end. */
        reference_split(r, k + 1, md, text, done, start, p);
        reference_split(r, k + 1, md, text, start, end, p);
        done = end;
        at = end - from;
    }
    reference_split(r, k + 1, md, text, done, to, p);
}

struct compared {
    pcre2_match_data *md;
    struct pieces ours, theirs;
    size_t n_pieces[BPI_ARRAY_LEN(references)];
};

static void begin_comparing(struct compared *c)
{
    *c = (struct compared){0};
    compile_references();
    c->md = pcre2_match_data_create(1, NULL);
    ck_assert_ptr_nonnull(c->md);
}

static void compare(struct compared *c, const char *text, size_t n)
{
    for (size_t i = 0; i < BPI_ARRAY_LEN(references); ++i) {
        pieces_split(references[i].name, text, n, &c->ours);
        c->theirs.n = 0;
        reference_split(&references[i], 0, c->md, text, 0, n, &c->theirs);
        bool same = c->ours.n == c->theirs.n;
        for (size_t k = 0; same && k < c->ours.n; ++k) same = c->ours.end[k] == c->theirs.end[k];
        if (!same) ck_abort_msg("%s: \"%.*s\"", references[i].name, (int)n, text);
        c->n_pieces[i] += c->ours.n;
    }
}

/* Every splitter must have cut: one that leaves texts whole has compared nothing. */
static void end_comparing(struct compared *c, size_t least_pieces)
{
    for (size_t i = 0; i < BPI_ARRAY_LEN(references); ++i) {
        printf("%s%zu %s", i > 0 ? ", " : "pieces compared: ", c->n_pieces[i], references[i].name);
        ck_assert_uint_gt(c->n_pieces[i], least_pieces);
    }
    printf("\n");
    free(c->ours.end);
    free(c->theirs.end);
    pcre2_match_data_free(c->md);
    free_references();
}

/* ---- random texts ---- */

/* Characters at whose sides a class or a range of some regex ends. */
struct borders {
    uint32_t cp[4096];
    size_t n;
};

static bool matches(const pcre2_code *re, pcre2_match_data *md, uint32_t c)
{
    unsigned char utf8[4];
    size_t n = bpi_utf8_encode(c, utf8);
    return pcre2_match(re, utf8, n, 0, PCRE2_NO_UTF_CHECK, md, NULL) > 0;
}

/* Without a class are controls and what is not assigned, which Unicode versions disagree about. */
static void find_borders(struct borders *b, pcre2_match_data *md)
{
    static const char *const sets[] = {
        "[" V2_LETTERS "]", "[" V2_MARKS "]", "[" V2_CJK "]", "[\\x{3040}-\\x{30FF}]", HAN,
        "\\p{M}",           "\\p{L}",         "\\s"};
    b->n = 0;
    for (size_t i = 0; i < BPI_ARRAY_LEN(sets); ++i) {
        pcre2_code *re = compile("a set", sets[i]);
        bool before = false;
        for (uint32_t c = 1; c < 0x32000; ++c) {
            if (c >= 0xd800 && c <= 0xdfff) continue;
            bool in = matches(re, md, c);
            if (in != before) {
                for (uint32_t k = c - 1; k <= c; ++k) {
                    if (bpi_unicode_flags(k) == 0 || b->n == BPI_ARRAY_LEN(b->cp)) continue;
                    b->cp[b->n++] = k;
                }
            }
            before = in;
        }
        pcre2_code_free(re);
    }
    ck_assert_uint_lt(b->n, BPI_ARRAY_LEN(b->cp));
    ck_assert_uint_gt(b->n, 500);
}

/* Mostly characters that decide between alternatives, some from anywhere. U+180E is left out because PCRE2's \s has
 * it and White_Space does not. */
static uint32_t random_cp(struct bpi_rng *rng, const struct borders *borders)
{
    static const uint32_t edges[] = {
        ' ',    ' ',    ' ',    '\n',    '\r',    '\t',    '\'',    '\'',   's',    'S',    0x17f,
        't',    'r',    'e',    'v',     'V',     'E',     'm',     'l',    'L',    'd',    'D',
        'a',    'Z',    '1',    '2',     '0',     '.',     ',',     '!',    '_',    '-',    '<',
        '$',    '+',    0x85,   0xa0,    0x3000,  0x2028,  0x200b,  0x1,    0x7f,   0xe9,   0x301,
        0x302,  0x4e2d, 0x9fa5, 0x9fa6,  0x3042,  0x30ab,  0x30fb,  0x30fc, 0x3099, 0xac00, 0x5d0,
        0xff11, 0xbd,   0x2167, 0x1f642, 0x20ac,  0x2014,  0xff01,  0xfffd, 0x1c5,  0x2b0,  0x20000,
        0x3005, 0x3007, 0x2f00, 0x16ff0, 0x16fe3, 0x16fe2, 0xe0100, 0x212a, 0x1ebf, 0x2019, 0x3001};
    switch (bpi_rng_below(rng, 8)) {
    case 0:
        for (;;) {
            uint32_t limit = bpi_rng_below(rng, 2) == 0 ? 0x3000 : 0x20000;
            uint32_t c = (uint32_t)bpi_rng_below(rng, limit);
            if (bpi_unicode_flags(c) != 0) return c;
        }
    case 1:
        return borders->cp[bpi_rng_below(rng, borders->n)];
    default:
        return edges[bpi_rng_below(rng, BPI_ARRAY_LEN(edges))];
    }
}

/* A text uses few different characters in turn, so that alternatives meet their own kind again. */
static size_t random_text(struct bpi_rng *rng, const struct borders *borders, char *out,
                          size_t max_cp)
{
    uint32_t few[4] = {0};
    size_t n_cp = bpi_rng_below(rng, max_cp + 1), n = 0;
    uint64_t habit = bpi_rng_below(rng, 3);
    for (size_t i = 0; i < BPI_ARRAY_LEN(few); ++i) few[i] = random_cp(rng, borders);
    while (n_cp-- > 0) {
        uint32_t c =
            habit == 0 ? few[bpi_rng_below(rng, BPI_ARRAY_LEN(few))] : random_cp(rng, borders);
        uint64_t repeat = bpi_rng_below(rng, 6) == 0 ? 1 + bpi_rng_below(rng, 5) : 1;
        for (; repeat > 0; --repeat) n += bpi_utf8_encode(c, (unsigned char *)out + n);
    }
    return n;
}

#ifdef BP_SANITIZED
enum { N_TEXTS = 10000, MAX_SHORT = 3 };
#else
enum { N_TEXTS = 100000, MAX_SHORT = 4 };
#endif

START_TEST(random_texts)
{
    enum { MAX_CP = 40 };
    const uint64_t seed = 20240611;
    printf("seed %llu, %d texts, each with %zu splitters\n", (unsigned long long)seed, N_TEXTS,
           BPI_ARRAY_LEN(references));
    static struct borders borders;
    static char text[MAX_CP * 5 * 4];
    struct bpi_rng rng;
    struct compared c;
    bpi_rng_seed(&rng, seed);
    begin_comparing(&c);
    find_borders(&borders, c.md);
    for (int round = 0; round < N_TEXTS; ++round) {
        compare(&c, text, random_text(&rng, &borders, text, MAX_CP));
    }
    end_comparing(&c, (size_t)N_TEXTS * 6);
}
END_TEST

/* ---- all short texts ---- */

START_TEST(all_short_texts)
{
    /* Lu, Ll, Lt, Lm, Lo, M; the same as far as there is one in Han, and its N, P and S; letters of contractions;
     * digits, a mark that sticks to words and one of DeepSeek's range, spaces, newline, a control. */
    static const uint32_t alphabet[] = {'A',    'a',    0x1c5,   0x2b0,  0x5d0, 0x301, 0x4e2d,
                                        0x3005, 0x3007, 0x16ff0, 0x2f00, '\'',  's',   '1',
                                        '!',    0x3001, ' ',     0x3000, '\n',  0x1};
    enum { N_LETTERS = BPI_ARRAY_LEN(alphabet) };
    struct compared c;
    size_t n_texts = 0;
    begin_comparing(&c);
    for (size_t len = 1; len <= MAX_SHORT; ++len) {
        size_t count = 1;
        for (size_t i = 0; i < len; ++i) count *= N_LETTERS;
        for (size_t k = 0; k < count; ++k) {
            char text[MAX_SHORT * 4];
            size_t n = 0, rest = k;
            for (size_t i = 0; i < len; ++i, rest /= N_LETTERS) {
                n += bpi_utf8_encode(alphabet[rest % N_LETTERS], (unsigned char *)text + n);
            }
            compare(&c, text, n);
            ++n_texts;
        }
    }
    printf("%zu texts of at most %d characters\n", n_texts, MAX_SHORT);
    end_comparing(&c, n_texts);
}
END_TEST

START_TEST(every_splitter_has_a_regex)
{
    size_t n = 0;
    for (const char *const *name = bpi_pretok_names(); *name != NULL; ++name, ++n) {
        ck_assert_uint_lt(n, BPI_ARRAY_LEN(references));
        ck_assert_str_eq(*name, references[n].name);
    }
    ck_assert_uint_eq(n, BPI_ARRAY_LEN(references));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("pretok_regex");
    TCase *tc = tcase_create("pretok_regex");
    tcase_set_timeout(tc, 300);
    tcase_add_test(tc, random_texts);
    tcase_add_test(tc, all_short_texts);
    tcase_add_test(tc, every_splitter_has_a_regex);
    suite_add_tcase(s, tc);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
