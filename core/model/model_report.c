/* model_report.c - the lines of the load report, and small texts that messages share.
 * A line that finds no memory is remembered, so that an open that could not report fails instead of staying silent.
 * SPDX-License-Identifier: MIT */
#include "model/model_priv.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Both texts are copied. */
static void add_line(struct bpi_model *m, uint32_t kind, const char *name, const char *text)
{
    if (m->n_report == m->cap_report) {
        size_t cap = m->cap_report == 0 ? 32 : m->cap_report * 2;
        struct bpi_report_entry *grown = bpi_realloc(m->report, cap, sizeof *grown);
        if (grown == NULL) {
            m->nomem = true;
            return;
        }
        m->report = grown;
        m->cap_report = cap;
    }
    char *name_copy = bpi_arena_strndup(&m->arena, name, strlen(name));
    char *text_copy = bpi_arena_strndup(&m->arena, text, strlen(text));
    if (name_copy == NULL || text_copy == NULL) {
        m->nomem = true;
        return;
    }
    m->report[m->n_report++] = (struct bpi_report_entry){kind, name_copy, text_copy};
}

void bpi_model_note(struct bpi_model *m, uint32_t kind, const char *name, const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    add_line(m, kind, name, text);
}

void bpi_model_note_key(struct bpi_model *m, uint32_t kind, uint32_t key, const char *fmt, ...)
{
    char name[128], text[512];
    va_list args;
    bpi_model_key_name(m, key, name, sizeof name);
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    add_line(m, kind, name, text);
}

void bpi_number_text(double v, char out[32])
{
    /* bpi_fail formats in the C locale without needing memory; the process may have chosen a decimal comma. */
    struct bp_error scratch = BP_ERROR_INIT;
    bpi_fail(&scratch, BP_E_ARG, NULL, NULL, "%.9g", v);
    snprintf(out, 32, "%.31s", scratch.msg);
}

void bpi_dims_text(const struct bpi_gguf_tensor *t, char *out, size_t cap)
{
    size_t at = 0;
    for (uint32_t d = 0; d < t->n_dim && d < 4 && at < cap; ++d) {
        int n = snprintf(out + at, cap - at, "%s%lld", d == 0 ? "[" : ", ", (long long)t->ne[d]);
        at += n > 0 ? (size_t)n : 0;
    }
    if (at < cap) snprintf(out + at, cap - at, "]");
}
