/* token_pretok_parts.h - parts that several of the pre-tokenizers' regexes share, for the files token_pretok*.c.
 * Each function gives the end of its part's match at byte `at` of the piece, or `at` where nothing matches.
 * Not here: whole regexes. Threads: pure functions. SPDX-License-Identifier: MIT */
#ifndef BPI_TOKEN_PRETOK_PARTS_H
#define BPI_TOKEN_PRETOK_PARTS_H

#include "base/base.h"
#include "token/token_pretok.h"
#include "token/token_unicode.h"

struct bpi_cp {
    uint32_t c;
    uint32_t flags;
    size_t end; /* byte after it; equal to its place at the end of the piece */
};

static inline struct bpi_cp bpi_cp_at(const struct bpi_piece *t, size_t at)
{
    struct bpi_cp r = {0, 0, at};
    if (at >= t->n) return r;
    if (t->p[at] < 0x80) {
        r.c = t->p[at];
        r.end = at + 1;
    } else {
        bool ok;
        r.end = at + bpi_utf8_decode(t->p + at, t->n - at, &r.c, &ok);
    }
    r.flags = bpi_unicode_flags(r.c);
    return r;
}

static inline bool bpi_is_newline(uint32_t c)
{
    return c == '\r' || c == '\n';
}

/* [flags]* */
static inline size_t bpi_run_of(const struct bpi_piece *t, size_t at, uint32_t flags)
{
    for (struct bpi_cp c = bpi_cp_at(t, at); (c.flags & flags) != 0; c = bpi_cp_at(t, at)) {
        at = c.end;
    }
    return at;
}

/* [\r\n]* */
static inline size_t bpi_run_of_newlines(const struct bpi_piece *t, size_t at)
{
    while (at < t->n && bpi_is_newline(t->p[at])) ++at;
    return at;
}

/* \p{N}{1,max} */
static inline size_t bpi_digits(const struct bpi_piece *t, size_t at, int max)
{
    for (int i = 0; i < max; ++i) {
        struct bpi_cp c = bpi_cp_at(t, at);
        if ((c.flags & BPI_UC_N) == 0) break;
        at = c.end;
    }
    return at;
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ and without `newlines` \s+(?!\S)|\s+
 * The first alternative ends behind the last newline of the run. The second takes the whole run at the end of the
 * piece, else all but its last character, which then sticks to the word behind it. */
static inline size_t bpi_spaces(const struct bpi_piece *t, size_t at, bool newlines)
{
    size_t end = at, last = at, behind_newline = at;
    for (struct bpi_cp c = bpi_cp_at(t, at); (c.flags & BPI_UC_SPACE) != 0; c = bpi_cp_at(t, end)) {
        last = end;
        end = c.end;
        if (bpi_is_newline(c.c)) behind_newline = end;
    }
    if (newlines && behind_newline > at) return behind_newline;
    return end < t->n && last > at ? last : end;
}

/* ---- token_pretok_deepseek.c: the stages of deepseek-v3 and deepseek-llm ---- */
size_t bpi_pretok_three_digits(const struct bpi_piece *t, size_t at);
size_t bpi_pretok_v3_cjk(const struct bpi_piece *t, size_t at);
size_t bpi_pretok_v3_rest(const struct bpi_piece *t, size_t at);
size_t bpi_pretok_llm_newline(const struct bpi_piece *t, size_t at);
size_t bpi_pretok_llm_letters(const struct bpi_piece *t, size_t at);
size_t bpi_pretok_llm_marks(const struct bpi_piece *t, size_t at);
size_t bpi_pretok_llm_spaces(const struct bpi_piece *t, size_t at);
size_t bpi_pretok_llm_cjk(const struct bpi_piece *t, size_t at);
size_t bpi_pretok_digit_run(const struct bpi_piece *t, size_t at);

#endif
