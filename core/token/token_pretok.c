/* token_pretok.c - pre-tokenizer regexes as hand-written matchers over code points; the table of splitters.
 * A matcher gives exactly the match that its regex has at one place: the first alternative that fits wins, not the
 * longest. Where a regex would backtrack, the matcher knows in advance how far, and no text is looked at more than a
 * few times, so splitting is linear even for a megabyte of spaces.
 * A byte that is not valid UTF-8 counts as one U+FFFD (a symbol) and stays in the text as it is.
 * Not here: the stages of DeepSeek (token_pretok_deepseek.c), BPE, special tokens. Threads: pure functions.
 * Source: the pre_tokenizer sections of the models' tokenizer.json files. SPDX-License-Identifier: MIT */
#include "token/token.h"
#include "token/token_pretok_parts.h"

#include <string.h>

/* [^flags]* */
static size_t run_not_of(const struct bpi_piece *t, size_t at, uint32_t flags)
{
    for (struct bpi_cp c = bpi_cp_at(t, at); c.end > at && (c.flags & flags) == 0;
         c = bpi_cp_at(t, at)) {
        at = c.end;
    }
    return at;
}

/* One letter of a contraction. Ignoring case means Unicode case folding, and U+017F (long s) folds to s; no other
 * character beyond ASCII folds to a letter of these endings. */
static bool is_letter(struct bpi_cp c, char want, bool any_case)
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
    struct bpi_cp first = bpi_cp_at(t, at + 1), second = bpi_cp_at(t, first.end);
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
    end = bpi_run_of(t, start, BPI_UC_L);
    if (end > start) return end;
    end = bpi_run_of(t, start, BPI_UC_N);
    if (end > start) return end;
    end = marks_and_symbols(t, at);
    return end > at ? end : bpi_spaces(t, at, false);
}

/* ---- llama-bpe, glm4, chatglm-bpe (digits in threes) and qwen2 (single digits):
 * contraction in any case|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,max}| ?[^\s\p{L}\p{N}]+[\r\n]*
 * |\s*[\r\n]+|\s+(?!\S)|\s+ ---- */

static size_t match_llama(const struct bpi_piece *t, size_t at, int max_digits)
{
    size_t end = contraction(t, at, true);
    if (end > at) return end;
    struct bpi_cp c = bpi_cp_at(t, at);
    /* A letter cannot be the optional character, so either it starts the run or the next one does. */
    if ((c.flags & BPI_UC_L) != 0) return bpi_run_of(t, c.end, BPI_UC_L);
    if (!bpi_is_newline(c.c) && (c.flags & BPI_UC_N) == 0) {
        end = bpi_run_of(t, c.end, BPI_UC_L);
        if (end > c.end) return end;
    }
    end = bpi_digits(t, at, max_digits);
    if (end > at) return end;
    end = marks_and_symbols(t, at);
    return end > at ? bpi_run_of_newlines(t, end) : bpi_spaces(t, at, true);
}

static size_t match_llama_bpe(const struct bpi_piece *t, size_t at)
{
    return match_llama(t, at, 3);
}

static size_t match_qwen2(const struct bpi_piece *t, size_t at)
{
    return match_llama(t, at, 1);
}

/* ---- kimi-k2:
 * [\p{Han}]+|P?U*L+contraction?|P?U+L*contraction?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
 * with P = [^\r\n\p{L}\p{N}], U = [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] and L = [\p{Ll}\p{Lm}\p{Lo}\p{M}], both without Han,
 * and contractions in any case. This is the regex of the model's own tokenizer; llama.cpp cuts otherwise. ---- */

enum {
    KIMI_BOTH = BPI_UC_LM | BPI_UC_LO | BPI_UC_M, /* in U and in L */
    KIMI_UPPER = BPI_UC_LU | BPI_UC_LT | KIMI_BOTH,
    KIMI_LOWER = BPI_UC_LL | KIMI_BOTH
};

static size_t run_of_han(const struct bpi_piece *t, size_t at)
{
    for (struct bpi_cp c = bpi_cp_at(t, at); bpi_unicode_is_han(c.c); c = bpi_cp_at(t, at)) {
        at = c.end;
    }
    return at;
}

static struct bpi_cp kimi_cp_at(const struct bpi_piece *t, size_t at)
{
    struct bpi_cp c = bpi_cp_at(t, at);
    if ((c.flags & KIMI_BOTH) != 0 && bpi_unicode_is_han(c.c)) c.flags = 0;
    return c;
}

/* U*L+, and the end of U* alone. U* takes all it can. If no letter of L follows, it gives back until L+ can start: at
 * the last character that is in both, where L+ also ends, because behind it there are capitals only. */
static size_t kimi_upper_lower(const struct bpi_piece *t, size_t at, size_t *upper_end)
{
    size_t end = at, both_end = at;
    struct bpi_cp c = kimi_cp_at(t, at);
    for (; (c.flags & KIMI_UPPER) != 0; c = kimi_cp_at(t, end)) {
        end = c.end;
        if ((c.flags & KIMI_BOTH) != 0) both_end = end;
    }
    *upper_end = end;
    if ((c.flags & KIMI_LOWER) == 0) return both_end;
    for (; (c.flags & KIMI_LOWER) != 0; c = kimi_cp_at(t, end)) end = c.end;
    return end;
}

/* P?U*L+|P?U+L* */
static size_t kimi_word(const struct bpi_piece *t, size_t at)
{
    struct bpi_cp c = bpi_cp_at(t, at);
    size_t start = at, upper_end;
    if ((c.flags & BPI_UC_N) != 0 || bpi_is_newline(c.c)) return at;
    if ((c.flags & BPI_UC_L) == 0) start = c.end;
    size_t end = kimi_upper_lower(t, start, &upper_end);
    if (end > start) return end;
    /* A combining mark need not be P: as L+ by itself it still comes before the second alternative. */
    if ((c.flags & BPI_UC_M) != 0) return c.end;
    return upper_end > start ? upper_end : at;
}

static size_t match_kimi(const struct bpi_piece *t, size_t at)
{
    size_t end = run_of_han(t, at);
    if (end > at) return end;
    end = kimi_word(t, at);
    if (end > at) return contraction(t, end, true);
    end = bpi_digits(t, at, 3);
    if (end > at) return end;
    end = marks_and_symbols(t, at);
    return end > at ? bpi_run_of_newlines(t, end) : bpi_spaces(t, at, true);
}

/* ---- default, for files that do not name a splitter: marks, then gpt-2, then digits and groups of three ---- */

/* [\p{P}\$\+<=>\^~\|]+ */
static size_t match_marks(const struct bpi_piece *t, size_t at)
{
    for (struct bpi_cp c = bpi_cp_at(t, at); c.end > at; c = bpi_cp_at(t, at)) {
        bool symbol = c.c != 0 && c.c < 0x80 && strchr("$+<=>^~|", (int)c.c) != NULL;
        if ((c.flags & BPI_UC_P) == 0 && !symbol) break;
        at = c.end;
    }
    return at;
}

/* [0-9][0-9][0-9] */
static size_t match_ascii_triple(const struct bpi_piece *t, size_t at)
{
    if (t->n - at < 3) return at;
    for (size_t i = at; i < at + 3; ++i) {
        if (t->p[i] < '0' || t->p[i] > '9') return at;
    }
    return at + 3;
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
    {.name = "deepseek-v3",
     .stage = {bpi_pretok_three_digits, bpi_pretok_v3_cjk, bpi_pretok_v3_rest}},
    {.name = "deepseek-llm",
     .stage = {bpi_pretok_llm_newline, bpi_pretok_llm_letters, bpi_pretok_llm_marks,
               bpi_pretok_llm_spaces, bpi_pretok_llm_cjk, bpi_pretok_digit_run}},
    {.name = "kimi-k2", .stage = {match_kimi}, .ids_are_ranks = true},
    {.name = BPI_PRETOK_DEFAULT,
     .stage = {match_marks, match_gpt2, bpi_pretok_digit_run, match_ascii_triple}},
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
    static const char *const names[] = {
        "gpt-2",       "llama-bpe",    "glm4",    "chatglm-bpe",      "qwen2",
        "deepseek-v3", "deepseek-llm", "kimi-k2", BPI_PRETOK_DEFAULT, NULL};
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
            at = bpi_cp_at(&t, at).end;
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
