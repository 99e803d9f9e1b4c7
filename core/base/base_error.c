/* base_error.c - status names and the one way to fill struct bp_error.
 * Not here: what goes wrong in files (base_file.c). Threads: a bp_error belongs to one caller.
 * Needs no memory, so it can report that there is none.
 * SPDX-License-Identifier: MIT */
#include "base/base.h"
#include "base/base_priv.h"

#include <stdio.h>
#include <string.h>

const char *bpi_status_name(int32_t code)
{
    switch (code) {
#define STATUS_NAME(name, value, text)                                                             \
    case value:                                                                                    \
        return #name;
        BP_STATUS_MAP(STATUS_NAME)
#undef STATUS_NAME
    default:
        return "E_?";
    }
}

const char *bpi_status_text(int32_t code)
{
    switch (code) {
#define STATUS_TEXT(name, value, text)                                                             \
    case value:                                                                                    \
        return text;
        BP_STATUS_MAP(STATUS_TEXT)
#undef STATUS_TEXT
    default:
        return "unknown status";
    }
}

static void copy_cut(char *out, size_t cap, const char *s)
{
    size_t n = s != NULL ? strnlen(s, cap - 1) : 0;
    if (n > 0) memcpy(out, s, n);
    out[n] = '\0';
    bpi_text_make_plain(out);
}

int32_t bpi_fail(struct bp_error *err, int32_t code, const char *domain, const char *where,
                 const char *fmt, ...)
{
    /* Every caller knows all fields up to msg, because 1.0 had them: h.size matters only for later fields. */
    if (err == NULL || err->code != BP_OK) return code;
    err->code = code;
    err->native = 0;
    copy_cut(err->domain, sizeof err->domain, domain);
    bpi_copy_end(err->where, sizeof err->where, where != NULL ? where : "");
    bpi_text_make_plain(err->where);
    va_list args;
    va_start(args, fmt);
    int n = bpi_vformat(err->msg, sizeof err->msg, fmt, args);
    va_end(args);
    if (n < 0) copy_cut(err->msg, sizeof err->msg, bpi_status_text(code));
    bpi_text_make_plain(err->msg);
    return code;
}

int32_t bpi_fail_nomem(struct bp_error *err, const char *domain, size_t n_bytes)
{
    return bpi_fail(err, BP_E_NOMEM, domain, NULL,
                    "out of memory: %zu bytes were refused; free memory or choose smaller limits",
                    n_bytes);
}

void bpi_error_clear(struct bp_error *err)
{
    if (err == NULL) return;
    err->code = BP_OK;
    err->native = 0;
    err->domain[0] = '\0';
    err->where[0] = '\0';
    err->msg[0] = '\0';
}
