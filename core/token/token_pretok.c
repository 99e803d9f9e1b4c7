/* token_pretok.c - pre-tokenizer regexes as hand-written matchers over code points.
 * A matcher gives exactly the match that its regex has at one place: the first alternative that fits wins, not the
 * longest. Every regex backtracks at most by one character here, and no text is looked at more than a few times, so
 * splitting is linear even for a megabyte of spaces.
 * A byte that is not valid UTF-8 counts as one U+FFFD (a symbol) and stays in the text as it is.
 * Not here: BPE, special tokens. Threads: pure functions.
 * Source: the pre_tokenizer sections of the models' tokenizer.json files. SPDX-License-Identifier: MIT */
#include "token/token_pretok.h"
#include "base/base.h"
#include "token/token.h"
#include "token/token_unicode.h"

#include <string.h>

struct cp {
    uint32_t c;
    uint32_t flags;
    size_t end; /* byte after it; equal to its place at the end of the piece */
};

static struct cp cp_at(const struct bpi_piece *t, size_t at)
{
    struct cp r = {0, 0, at};
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

static bool is_newline(uint32_t c)
{
    return c == '\r' || c == '\n';
}

/* ---- parts that the regexes share. `at` is returned where nothing matches ---- */

/* [flags]* */
static size_t run_of(const struct bpi_piece *t, size_t at, uint32_t flags)
{
    for (struct cp c = cp_at(t, at); (c.flags & flags) != 0; c = cp_at(t, at)) at = c.end;
    return at;
}

/* [^flags]* */
static size_t run_not_of(const struct bpi_piece *t, size_t at, uint32_t flags)
{
    for (struct cp c = cp_at(t, at); c.end > at && (c.flags & flags) == 0; c = cp_at(t, at)) {
        at = c.end;
    }
    return at;
}

/* [\r\n]* */
static size_t run_of_newlines(const struct bpi_piece *t, size_t at)
{
    while (at < t->n && is_newline(t->p[at])) ++at;
    return at;
}

/* \p{N}{1,max} */
static size_t digits(const struct bpi_piece *t, size_t at, int max)
{
    for (int i = 0; i < max; ++i) {
        struct cp c = cp_at(t, at);
        if ((c.flags & BPI_UC_N) == 0) break;
        at = c.end;
    }
    return at;
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ and without `newlines` \s+(?!\S)|\s+
 * The first alternative ends behind the last newline of the run. The second takes the whole run at the end of the
 * piece, else all but its last character, which then sticks to the word behind it. */
static size_t spaces(const struct bpi_piece *t, size_t at, bool newlines)
{
    size_t end = at, last = at, behind_newline = at;
    for (struct cp c = cp_at(t, at); (c.flags & BPI_UC_SPACE) != 0; c = cp_at(t, end)) {
        last = end;
        end = c.end;
        if (is_newline(c.c)) behind_newline = end;
    }
    if (newlines && behind_newline > at) return behind_newline;
    return end < t->n && last > at ? last : end;
}

/* One letter of a contraction. Ignoring case means Unicode case folding, and U+017F (long s) folds to s; no other
 * character beyond ASCII folds to a letter of these endings. */
static bool is_letter(struct cp c, char want, bool any_case)
{
    if (c.c == (uint32_t)(unsigned char)want) return true;
    if (!any_case) return false;
    return c.c == (uint32_t)(unsigned char)want - 32 || (want == 's' && c.c == 0x17f);
}

/* 's|'t|'re|'ve|'m|'ll|'d */
static size_t contraction(const struct bpi_piece *t, size_t at, bool any_case)
{
    static const char endings[][3] = {"s", "t", "re", "ve", "m", "ll", "d"};
    if (at >= t->n || t->p[at] != '\'') return at;
    struct cp first = cp_at(t, at + 1), second = cp_at(t, first.end);
    for (size_t i = 0; i < BPI_ARRAY_LEN(endings); ++i) {
        if (!is_letter(first, endings[i][0], any_case)) continue;
        if (endings[i][1] == '\0') return first.end;
        if (is_letter(second, endings[i][1], any_case)) return second.end;
    }
    return at;
}

/* ` ?[^\s\p{L}\p{N}]+` */
static size_t marks_and_symbols(const struct bpi_piece *t, size_t at)
{
    size_t start = at < t->n && t->p[at] == ' ' ? at + 1 : at;
    size_t end = run_not_of(t, start, BPI_UC_SPACE | BPI_UC_L | BPI_UC_N);
    return end > start ? end : at;
}

/* ---- gpt-2: contraction| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ ---- */

static size_t match_gpt2(const struct bpi_piece *t, size_t at)
{
    size_t end = contraction(t, at, false);
    if (end > at) return end;
    size_t start = t->p[at] == ' ' ? at + 1 : at;
    end = run_of(t, start, BPI_UC_L);
    if (end > start) return end;
    end = run_of(t, start, BPI_UC_N);
    if (end > start) return end;
    end = marks_and_symbols(t, at);
    return end > at ? end : spaces(t, at, false);
}

/* ---- llama-bpe, glm4, chatglm-bpe (digits in threes) and qwen2 (single digits):
 * contraction in any case|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,max}| ?[^\s\p{L}\p{N}]+[\r\n]*
 * |\s*[\r\n]+|\s+(?!\S)|\s+ ---- */

static size_t match_llama(const struct bpi_piece *t, size_t at, int max_digits)
{
    size_t end = contraction(t, at, true);
    if (end > at) return end;
    struct cp c = cp_at(t, at);
    /* A letter cannot be the optional character, so either it starts the run or the next one does. */
    if ((c.flags & BPI_UC_L) != 0) return run_of(t, c.end, BPI_UC_L);
    if (!is_newline(c.c) && (c.flags & BPI_UC_N) == 0) {
        end = run_of(t, c.end, BPI_UC_L);
        if (end > c.end) return end;
    }
    end = digits(t, at, max_digits);
    if (end > at) return end;
    end = marks_and_symbols(t, at);
    return end > at ? run_of_newlines(t, end) : spaces(t, at, true);
}

static size_t match_llama_bpe(const struct bpi_piece *t, size_t at)
{
    return match_llama(t, at, 3);
}

static size_t match_qwen2(const struct bpi_piece *t, size_t at)
{
    return match_llama(t, at, 1);
}

/* ---- deepseek-v3, three regexes one after the other ---- */

/* \p{N}{1,3} */
static size_t match_three_digits(const struct bpi_piece *t, size_t at)
{
    return digits(t, at, 3);
}

/* [U+4E00-U+9FA5 U+3040-U+309F U+30A0-U+30FF]+ */
static size_t match_cjk(const struct bpi_piece *t, size_t at)
{
    for (;;) {
        struct cp c = cp_at(t, at);
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
static size_t match_deepseek_v3(const struct bpi_piece *t, size_t at)
{
    const uint32_t word = BPI_UC_L | BPI_UC_M, mark = BPI_UC_P | BPI_UC_S;
    if (is_ascii_mark(t->p[at])) {
        size_t end = at + 1;
        while (end < t->n && is_ascii_letter(t->p[end])) ++end;
        if (end > at + 1) return end;
    }
    struct cp c = cp_at(t, at);
    /* A combining mark may be the optional character or start the run: the match is the same. */
    if ((c.flags & word) != 0) return run_of(t, c.end, word);
    if (!is_newline(c.c) && (c.flags & mark) == 0) {
        size_t end = run_of(t, c.end, word);
        if (end > c.end) return end;
    }
    size_t start = t->p[at] == ' ' ? at + 1 : at;
    size_t end = run_of(t, start, mark);
    return end > start ? run_of_newlines(t, end) : spaces(t, at, true);
}

/* ---- the table ---- */

static const struct bpi_pretok pretoks[] = {
    {.name = "gpt-2", .stage = {match_gpt2}},
    {.name = "llama-bpe",
     .stage = {match_llama_bpe},
     .ignore_merges = true,
     .default_add_bos = true},
    {.name = "glm4", .stage = {match_llama_bpe}},
    {.name = "chatglm-bpe", .stage = {match_llama_bpe}},
    {.name = "qwen2", .stage = {match_qwen2}},
    {.name = "deepseek-v3", .stage = {match_three_digits, match_cjk, match_deepseek_v3}},
};

const struct bpi_pretok *bpi_pretok_find(const char *name, size_t n_name)
{
    for (size_t i = 0; i < BPI_ARRAY_LEN(pretoks); ++i) {
        if (strlen(pretoks[i].name) == n_name && memcmp(pretoks[i].name, name, n_name) == 0) {
            return &pretoks[i];
        }
    }
    return NULL;
}

const char *const *bpi_pretok_names(void)
{
    static const char *const names[] = {"gpt-2", "llama-bpe",   "glm4", "chatglm-bpe",
                                        "qwen2", "deepseek-v3", NULL};
    _Static_assert(BPI_ARRAY_LEN(names) == BPI_ARRAY_LEN(pretoks) + 1, "one name per row");
    return names;
}

/* ---- running the stages: every stage cuts every piece of the one before ---- */

struct run {
    const struct bpi_pretok *pre;
    bpi_piece_fn fn;
    void *ctx;
};

static int32_t run_stage(const struct run *r, size_t stage, const unsigned char *p, size_t n)
{
    if (n == 0) return BP_OK;
    if (r->pre->stage[stage] == NULL) return r->fn(r->ctx, (const char *)p, n);
    const struct bpi_piece t = {p, n};
    size_t at = 0, done = 0; /* [done, at) matched nothing so far */
    while (at < n) {
        size_t end = r->pre->stage[stage](&t, at);
        if (end == at) {
            at = cp_at(&t, at).end;
            continue;
        }
        BP_TRY(run_stage(r, stage + 1, p + done, at - done));
        BP_TRY(run_stage(r, stage + 1, p + at, end - at));
        at = done = end;
    }
    return run_stage(r, stage + 1, p + done, n - done);
}

int32_t bpi_pretok_run(const struct bpi_pretok *pre, const char *text, size_t n, bpi_piece_fn fn,
                       void *ctx)
{
    const struct run r = {pre, fn, ctx};
    return run_stage(&r, 0, (const unsigned char *)text, n);
}

int32_t bpi_pretok_split(const char *pre, const char *text, size_t n,
                         int32_t (*fn)(void *ctx, const char *piece, size_t n), void *ctx)
{
    const struct bpi_pretok *found = pre != NULL ? bpi_pretok_find(pre, strlen(pre)) : NULL;
    if (found == NULL) return BP_E_UNSUPPORTED;
    return bpi_pretok_run(found, text, n, fn, ctx);
}
