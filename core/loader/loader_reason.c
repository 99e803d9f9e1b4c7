/* loader_reason.c - reasons in words. Threads: pure. SPDX-License-Identifier: MIT */
#include "loader/loader_priv.h"

#include "backplane/sdk_tensor.h"
#include "gguf/gguf_types.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *bpi_reason_name(uint32_t code)
{
    switch (code) {
#define REASON_NAME(name, value)                                                                   \
    case value:                                                                                    \
        return #name;
        BP_REASON_MAP(REASON_NAME)
#undef REASON_NAME
    default:
        return code >= BP_R_VENDOR ? "VENDOR" : "UNKNOWN";
    }
}

/* Texts come from plugins: they may lack their final NUL. */
static int text_len(const char *s, size_t cap)
{
    size_t n = 0;
    while (n < cap && s[n] != '\0') ++n;
    return (int)n;
}

/* As much as fits; a text that was cut says so. */
static void copy_begin(char *out, size_t cap, const char *s)
{
    const size_t n = strlen(s);
    memcpy(out, s, n < cap ? n + 1 : cap);
    if (n >= cap) memcpy(out + cap - 4, "...", 4);
}

static const char *gguf_name(uint32_t type)
{
    static const char *const names[BP_GGUF_COUNT] = {
#define ROW(name, elems, bytes) [BP_GGUF_##name] = #name,
        BPI_GGUF_TYPE_MAP(ROW)
#undef ROW
    };
    return type < BP_GGUF_COUNT ? names[type] : NULL;
}

const char *bpi_reason_number_name(const struct bp_reason *r, int64_t number)
{
    char field[sizeof r->field + 1];
    (void)snprintf(field, sizeof field, "%.*s", text_len(r->field, sizeof r->field), r->field);
    if (number < 0 || number >= BP_GGUF_COUNT) return NULL;
    if (r->code == BP_R_QUANT && strstr(field, "type") != NULL) return gguf_name((uint32_t)number);
    if (r->code != BP_R_DTYPE || strstr(field, "dtype") == NULL || number > BP_DT_U32) return NULL;
    return bp_dtype_name((uint32_t)number);
}

/* Types, which have no order that means anything to people: names, and the numbers beside them. */
static bool put_names(const struct bp_reason *r, struct bpi_buf *b)
{
    const char *got = bpi_reason_number_name(r, r->got),
               *lo = bpi_reason_number_name(r, r->want_lo),
               *hi = bpi_reason_number_name(r, r->want_hi);
    if (lo == NULL || hi == NULL) return false;
    if (got != NULL)
        bpi_buf_printf(b, "got %s (%lld)", got, (long long)r->got);
    else
        bpi_buf_printf(b, "got %lld", (long long)r->got);
    if (r->want_lo == r->want_hi)
        bpi_buf_printf(b, ", want %s (%lld)", lo, (long long)r->want_lo);
    else
        bpi_buf_printf(b, ", want %s..%s (%lld..%lld)", lo, hi, (long long)r->want_lo,
                       (long long)r->want_hi);
    return true;
}

/* Ids of layouts and extensions are hashes, which have no range; an end that is open is not a number to read. */
static void put_numbers(const struct bp_reason *r, struct bpi_buf *b)
{
    const long long got = (long long)r->got, lo = (long long)r->want_lo, hi = (long long)r->want_hi;
    if (put_names(r, b)) return;
    if (r->code == BP_R_LAYOUT || r->code == BP_R_EXT)
        bpi_buf_printf(b, "got id %016llx", (unsigned long long)r->got);
    else if (r->want_lo == INT64_MIN)
        bpi_buf_printf(b, "got %lld, want at most %lld", got, hi);
    else if (r->want_hi == INT64_MAX)
        bpi_buf_printf(b, "got %lld, want at least %lld", got, lo);
    else
        bpi_buf_printf(b, "got %lld, want %lld..%lld", got, lo, hi);
}

void bpi_loader_format_reason(const struct bp_reason *r, struct bpi_buf *b)
{
    const int n_field = text_len(r->field, sizeof r->field),
              n_text = text_len(r->text, sizeof r->text);
    bpi_buf_puts(b, bpi_reason_name(r->code));
    if (r->code >= BP_R_VENDOR) bpi_buf_printf(b, " %u", r->code);
    if (n_field != 0) {
        bpi_buf_printf(b, " %.*s: ", n_field, r->field);
        put_numbers(r, b);
    }
    if (n_text != 0) bpi_buf_printf(b, " (%.*s)", n_text, r->text);
}

void bpi_refuse(struct bpi_refusal *why, uint32_t code, const char *fmt, ...)
{
    va_list args;
    memset(why, 0, sizeof *why);
    why->code = code;
    va_start(args, fmt);
    (void)vsnprintf(why->text, sizeof why->text, fmt, args);
    va_end(args);
}

void bpi_refusal_numbers(struct bpi_refusal *why, const char *field, int64_t got, int64_t lo,
                         int64_t hi)
{
    (void)snprintf(why->field, sizeof why->field, "%s", field);
    why->got = got;
    why->want_lo = lo;
    why->want_hi = hi;
}

void bpi_refusal_format(const struct bpi_refusal *why, struct bpi_buf *b)
{
    bpi_buf_printf(b, "%s (%s)", why->text, bpi_reason_name(why->code));
    if (why->mend[0] != '\0') bpi_buf_printf(b, "; run: %s", why->mend);
}

void bpi_candidate_take(struct bpi_candidate *c, const struct bpi_refusal *why)
{
    bpi_candidate_refuse(c, why->code, why->field, why->text);
    c->reasons[0].got = why->got;
    c->reasons[0].want_lo = why->want_lo;
    c->reasons[0].want_hi = why->want_hi;
    c->refusal = why;
}

void bpi_candidate_refuse(struct bpi_candidate *c, uint32_t code, const char *field,
                          const char *text)
{
    struct bp_reason *r = &c->reasons[0];
    c->verdict.level = BP_V_NO;
    c->verdict.n_reasons = 1;
    *r = (struct bp_reason){.code = code, .critical = 1};
    copy_begin(r->field, sizeof r->field, field);
    copy_begin(r->text, sizeof r->text, text);
}

void bpi_candidate_format(const struct bpi_candidate *c, struct bpi_buf *b)
{
    const uint32_t n =
        c->verdict.n_reasons < BPI_MAX_REASONS ? c->verdict.n_reasons : BPI_MAX_REASONS;
    bpi_buf_printf(b, "%s: ", c->provider);
    if (c->refusal != NULL) { /* its text is whole, a reason's has 128 bytes */
        bpi_refusal_format(c->refusal, b);
        return;
    }
    if (n == 0) bpi_buf_puts(b, "gave no reason");
    for (uint32_t i = 0; i < n; ++i) {
        if (i != 0) bpi_buf_puts(b, ", ");
        bpi_loader_format_reason(&c->reasons[i], b);
    }
}
