/* loader_reason.c - reasons in words. Threads: pure. SPDX-License-Identifier: MIT */
#include "loader/loader_priv.h"

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

void bpi_loader_format_reason(const struct bp_reason *r, struct bpi_buf *b)
{
    const int n_field = text_len(r->field, sizeof r->field),
              n_text = text_len(r->text, sizeof r->text);
    bpi_buf_puts(b, bpi_reason_name(r->code));
    if (r->code >= BP_R_VENDOR) bpi_buf_printf(b, " %u", r->code);
    if (n_field != 0) {
        bpi_buf_printf(b, " %.*s: got %lld, want %lld..%lld", n_field, r->field, (long long)r->got,
                       (long long)r->want_lo, (long long)r->want_hi);
    }
    if (n_text != 0) bpi_buf_printf(b, " (%.*s)", n_text, r->text);
}

void bpi_candidate_refuse(struct bpi_candidate *c, uint32_t code, const char *field,
                          const char *text)
{
    struct bp_reason *r = &c->reasons[0];
    c->verdict.level = BP_V_NO;
    c->verdict.n_reasons = 1;
    *r = (struct bp_reason){.code = code, .critical = 1};
    (void)snprintf(r->field, sizeof r->field, "%s", field);
    (void)snprintf(r->text, sizeof r->text, "%s", text);
}

void bpi_candidate_format(const struct bpi_candidate *c, struct bpi_buf *b)
{
    const uint32_t n =
        c->verdict.n_reasons < BPI_MAX_REASONS ? c->verdict.n_reasons : BPI_MAX_REASONS;
    bpi_buf_printf(b, "%s: ", c->provider);
    if (n == 0) bpi_buf_puts(b, "gave no reason");
    for (uint32_t i = 0; i < n; ++i) {
        if (i != 0) bpi_buf_puts(b, ", ");
        bpi_loader_format_reason(&c->reasons[i], b);
    }
}
