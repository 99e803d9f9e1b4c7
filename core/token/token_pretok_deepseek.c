/* token_pretok_deepseek.c - the stages of the splitters deepseek-v3 and deepseek-llm (DeepSeek-V2 and older).
 * Every stage cuts all pieces of the stage before, also those that it matched: in deepseek-llm the range ":-~" of the
 * marks holds the ASCII letters, so a word that stage 2 kept whole is cut at each border between ASCII and other
 * letters, and the range U+0800-U+4E00 cuts words with letters like U+1EBF. The models were trained that way.
 * Not here: running stages (token_pretok.c). Threads: pure functions.
 * Source: the pre_tokenizer sections of the models' tokenizer.json files. SPDX-License-Identifier: MIT */
#include "token/token_pretok_parts.h"

/* ---- deepseek-v3 ---- */

/* \p{N}{1,3} */
size_t bpi_pretok_three_digits(const struct bpi_piece *t, size_t at)
{
    return bpi_digits(t, at, 3);
}

/* [U+4E00-U+9FA5 U+3040-U+309F U+30A0-U+30FF]+ */
size_t bpi_pretok_v3_cjk(const struct bpi_piece *t, size_t at)
{
    for (;;) {
        struct bpi_cp c = bpi_cp_at(t, at);
        if (!((c.c >= 0x4e00 && c.c <= 0x9fa5) || (c.c >= 0x3040 && c.c <= 0x30ff))) return at;
        at = c.end;
    }
}

static bool is_ascii_letter(unsigned char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

/* Graphic ASCII that is neither a letter nor a digit. */
static bool is_ascii_mark(unsigned char c)
{
    return c > ' ' && c < 0x7f && !is_ascii_letter(c) && !(c >= '0' && c <= '9');
}

/* [ASCII mark][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
 * Digits and controls match nothing; what lies between two matches is a piece of its own. */
size_t bpi_pretok_v3_rest(const struct bpi_piece *t, size_t at)
{
    const uint32_t word = BPI_UC_L | BPI_UC_M, mark = BPI_UC_P | BPI_UC_S;
    if (is_ascii_mark(t->p[at])) {
        size_t end = at + 1;
        while (end < t->n && is_ascii_letter(t->p[end])) ++end;
        if (end > at + 1) return end;
    }
    struct bpi_cp c = bpi_cp_at(t, at);
    /* A combining mark may be the optional character or start the run: the match is the same. */
    if ((c.flags & word) != 0) return bpi_run_of(t, c.end, word);
    if (!bpi_is_newline(c.c) && (c.flags & mark) == 0) {
        size_t end = bpi_run_of(t, c.end, word);
        if (end > c.end) return end;
    }
    size_t start = t->p[at] == ' ' ? at + 1 : at;
    size_t end = bpi_run_of(t, start, mark);
    return end > start ? bpi_run_of_newlines(t, end) : bpi_spaces(t, at, true);
}

/* ---- deepseek-llm ---- */

/* Cased letters, as its tokenizer.json lists them. */
// clang-format off
static const uint32_t letters[][2] = {
    {0x41, 0x5a}, {0x61, 0x7a}, {0xb5, 0xb5}, {0xc0, 0xd6}, {0xd8, 0xf6}, {0xf8, 0x1ba}, {0x1bc, 0x1bf},
    {0x1c4, 0x293}, {0x295, 0x2af}, {0x370, 0x373}, {0x376, 0x376}, {0x377, 0x377}, {0x37b, 0x37d},
    {0x37f, 0x37f}, {0x386, 0x386}, {0x388, 0x38a}, {0x38c, 0x38c}, {0x38e, 0x3a1}, {0x3a3, 0x3f5},
    {0x3f7, 0x481}, {0x48a, 0x52f}, {0x531, 0x556}, {0x10a0, 0x10c5}, {0x13a0, 0x13f5}, {0x13f8, 0x13fd},
    {0x1c90, 0x1cba}, {0x1cbd, 0x1cbf}, {0x1d00, 0x1d2b}, {0x1d6b, 0x1d77}, {0x1d79, 0x1d9a},
    {0x1e00, 0x1f15}, {0x1f18, 0x1f1d}, {0x1f20, 0x1f45}, {0x1f48, 0x1f4d}, {0x1f50, 0x1f57},
    {0x1f59, 0x1f59}, {0x1f5b, 0x1f5b}, {0x1f5d, 0x1f5d}, {0x1f5f, 0x1f7d}, {0x1f80, 0x1fb4},
    {0x1fb6, 0x1fbc}, {0x1fbe, 0x1fbe}, {0x1fc2, 0x1fc4}, {0x1fc6, 0x1fcc}, {0x1fd0, 0x1fd3},
    {0x1fd6, 0x1fdb}, {0x1fe0, 0x1fec}, {0x1ff2, 0x1ff4}, {0x1ff6, 0x1ffc}, {0x2102, 0x2102},
    {0x2107, 0x2107}, {0x210a, 0x2113}, {0x2115, 0x2115}, {0x2119, 0x211d}, {0x2124, 0x2124},
    {0x2126, 0x2126}, {0x2128, 0x2128}, {0x212a, 0x212d}, {0x212f, 0x2134}, {0x2139, 0x2139},
    {0x213c, 0x213f}, {0x2145, 0x2149}, {0x214e, 0x214e}, {0x2183, 0x2183}, {0x2184, 0x2184},
    {0x2c00, 0x2c7b}, {0x2c7e, 0x2ce4}, {0x2ceb, 0x2cee}, {0x2cf2, 0x2cf2}, {0x2cf3, 0x2cf3},
    {0xa640, 0xa66d}, {0xa680, 0xa69b}, {0xa722, 0xa76f}, {0xa771, 0xa787}, {0xa78b, 0xa78e},
    {0xab70, 0xabbf}, {0xfb00, 0xfb06}, {0xfb13, 0xfb17}, {0xff21, 0xff3a}, {0xff41, 0xff5a},
    {0x10400, 0x1044f}, {0x104b0, 0x104d3}, {0x104d8, 0x104fb}, {0x10c80, 0x10cb2}, {0x10cc0, 0x10cf2},
    {0x118a0, 0x118df}, {0x1e900, 0x1e943},
};
/* "!-/" and ":-~", their full-width forms, quotation marks, and the CJK space, comma and full stop. */
static const uint32_t marks[][2] = {
    {0x21, 0x2f}, {0x3a, 0x7e}, {0x2018, 0x201f}, {0x3000, 0x3002}, {0xff01, 0xff0f}, {0xff1a, 0xff5e},
};
// clang-format on

/* \s?[set]+ where a space may be in the set too: then it is either, and the match is the same. */
static size_t space_and_run(const struct bpi_piece *t, size_t at, const uint32_t (*set)[2],
                            size_t n_set)
{
    struct bpi_cp c = bpi_cp_at(t, at);
    size_t start = at;
    if ((c.flags & BPI_UC_SPACE) != 0 && !bpi_unicode_in_ranges(c.c, set, n_set)) start = c.end;
    size_t end = start;
    for (c = bpi_cp_at(t, end); c.end > end && bpi_unicode_in_ranges(c.c, set, n_set);
         c = bpi_cp_at(t, end)) {
        end = c.end;
    }
    return end > start ? end : at;
}

/* [\r\n] */
size_t bpi_pretok_llm_newline(const struct bpi_piece *t, size_t at)
{
    return bpi_is_newline(t->p[at]) ? at + 1 : at;
}

/* \s?[letters]+ */
size_t bpi_pretok_llm_letters(const struct bpi_piece *t, size_t at)
{
    return space_and_run(t, at, letters, BPI_ARRAY_LEN(letters));
}

/* \s?[marks]+ */
size_t bpi_pretok_llm_marks(const struct bpi_piece *t, size_t at)
{
    return space_and_run(t, at, marks, BPI_ARRAY_LEN(marks));
}

/* Whether the character that ends at `at` is white space, which takes three bytes at most. */
static bool is_behind_space(const struct bpi_piece *t, size_t at)
{
    for (size_t n = 1; n <= 3 && n <= at; ++n) {
        struct bpi_cp c = bpi_cp_at(t, at - n);
        if (c.end == at && (c.flags & BPI_UC_SPACE) != 0) return true;
    }
    return false;
}

/* \s+$ where $ is the end of the piece. A run that reaches it matches at its first space, so behind a space there is
 * nothing to find; without that a long run before other text would be walked once for each of its spaces. */
size_t bpi_pretok_llm_spaces(const struct bpi_piece *t, size_t at)
{
    if (is_behind_space(t, at)) return at;
    size_t end = bpi_run_of(t, at, BPI_UC_SPACE);
    return end == t->n ? end : at;
}

/* [U+4E00-U+9FA5 U+0800-U+4E00 U+AC00-U+D7FF]+ */
size_t bpi_pretok_llm_cjk(const struct bpi_piece *t, size_t at)
{
    for (;;) {
        struct bpi_cp c = bpi_cp_at(t, at);
        if (!((c.c >= 0x800 && c.c <= 0x9fa5) || (c.c >= 0xac00 && c.c <= 0xd7ff))) return at;
        at = c.end;
    }
}

/* \p{N}+ */
size_t bpi_pretok_digit_run(const struct bpi_piece *t, size_t at)
{
    return bpi_run_of(t, at, BPI_UC_N);
}
