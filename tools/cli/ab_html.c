/* ab_html.c - the report of `backplane ab`: fills the page in and puts it in place.
 * Not here: what the parts show (ab_html_top.c, ab_html_tables.c, ab_html_sides.c), how it looks (report/).
 * Everything in the result is hostile: names of models, tokens and settings are text of strangers. No file-scope state.
 * SPDX-License-Identifier: MIT */
#include "ab_html.h"
#include "ab_html_parts.h"
#include "options.h"
#include "part.h"

#include <errno.h>
#include <string.h>

/* ---- the numbers, for the program in the page ---- */

/* In a script element only "</" and "<!--" mean something; without any '<' neither can appear. All these characters occur in
 * JSON inside of strings alone, where an escape means the same. */
static int put_json(const char *buffer, size_t n, void *ctx)
{
    FILE *f = ctx;
    for (size_t i = 0; i < n; ++i) {
        if (buffer[i] == '<' || buffer[i] == '>' || buffer[i] == '&' || buffer[i] == 0x7f)
            fprintf(f, "\\u%04x", (unsigned)buffer[i]);
        else
            putc(buffer[i], f);
    }
    return ferror(f) ? -1 : 0;
}

static void part_data(FILE *f, const json_t *r)
{
    /* ASCII only: U+2028 and its kind leave as escapes too. */
    if (json_dump_callback(r, put_json, f, JSON_COMPACT | JSON_ENSURE_ASCII) != 0) fputs("null", f);
}

/* ---- the page ---- */

static void fill_in(FILE *f, const char *name, size_t n, const json_t *r)
{
    static const struct {
        const char *name;
        void (*put)(FILE *f, const json_t *r);
    } parts[] = {
        {"title", ab_part_title}, {"verdict", ab_part_verdict},
        {"tiles", ab_part_tiles}, {"ops", ab_part_ops},
        {"flips", ab_part_flips}, {"positions", ab_part_positions},
        {"sides", ab_part_sides}, {"prompt", ab_part_prompt},
        {"cost", ab_part_cost},   {"findings", ab_part_findings},
        {"times", ab_part_times}, {"data", part_data},
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; ++i)
        if (strlen(parts[i].name) == n && memcmp(parts[i].name, name, n) == 0) {
            parts[i].put(f, r);
            return;
        }
}

/* The embedding program refuses a page with an odd number of marks, so every mark has its partner. */
static const char *find_mark(const char *p, const char *end)
{
    while (end - p >= 2) {
        const char *at = memchr(p, '@', (size_t)(end - p - 1));
        if (at == NULL) return NULL;
        if (at[1] == '@') return at;
        p = at + 1;
    }
    return NULL;
}

static void put_page(FILE *f, const json_t *r)
{
    const char *p = (const char *)cli_ab_page, *end = p + cli_ab_page_bytes;
    for (;;) {
        const char *open = find_mark(p, end);
        const char *close = open != NULL ? find_mark(open + 2, end) : NULL;
        if (close == NULL) break;
        fwrite(p, 1, (size_t)(open - p), f);
        fill_in(f, open + 2, (size_t)(close - open - 2), r);
        p = close + 2;
    }
    fwrite(p, 1, (size_t)(end - p), f);
}

/* ---- the file ---- */

int32_t cli_ab_html(const json_t *result, const char *path, struct bp_error *err)
{
    struct cli_part part;
    if (!json_is_object(result))
        return cli_fail(err, BP_E_ARG, path, "the result to report is not a JSON object");
    int bad = cli_part_open(&part, path);
    if (bad != 0)
        return cli_fail(err, bad == ENOMEM ? BP_E_NOMEM : BP_E_IO, path,
                        "the report needs a folder that can be written to: %s", strerror(bad));
    put_page(part.f, result);
    bad = cli_part_finish(&part, path);
    if (bad == 0) return BP_OK;
    return cli_fail(err, BP_E_IO, path, "the report could not be written: %s", strerror(bad));
}
