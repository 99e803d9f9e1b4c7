/* config_load.c - from the bytes of an INI to settings. inih cuts lines into section, key and value; every
 * line is vetted first, because inih cuts long names silently, ignores what follows a `]`, and reports no
 * reasons.
 * Not here: what keys and values mean (config_store.c, config_value.c).
 * inih's run-time variables (a speciality of Debian's build) are left alone: they belong to the whole
 * process.
 * SPDX-License-Identifier: MIT */
#include "config/config_priv.h"

#include <ini.h>
#include <string.h>

/* Bytes that a line with a stand-in value needs in inih's buffer: key, " = *", newline, NUL. */
#define STAND_IN_BYTES (BPI_CONFIG_MAX_NAME + 8u)

struct reader {
    struct bpi_config *c;
    struct bpi_config_source src;
    const char *at, *end; /* the text not yet read */
    bool in_section;
    char line[BPI_CONFIG_MAX_LINE + 1];
    const char
        *long_value; /* into line: the value of a line that does not fit inih's buffer, else NULL */
    int32_t rc;      /* the first failure; nothing is read after it */
    struct bp_error *err;
};

static bool is_blank(char ch)
{
    return ch == ' ' || ch == '\t';
}

static const char *skip_blanks(const char *s)
{
    return s + strspn(s, " \t");
}

/* The first of `chars` in s, or the blank-then-`;` that begins a comment, or the end: inih's own rule. */
static char *find_or_comment(char *s, const char *chars)
{
    bool after_blank = false;
    for (; *s != '\0'; ++s) {
        if (strchr(chars, *s) != NULL || (after_blank && *s == ';')) break;
        after_blank = is_blank(*s);
    }
    return s;
}

/* ---- vetting ---- */

/* Copies the next line to r->line, without its end. False after an error. */
static bool take_line(struct reader *r)
{
    char why[128];
    size_t left = (size_t)(r->end - r->at);
    const char *newline = memchr(r->at, '\n', left);
    size_t n = newline != NULL ? (size_t)(newline - r->at) : left;
    const char *begin = r->at;
    r->at += newline != NULL ? n + 1 : n;
    bpi_config_source_line(&r->src, r->src.line + 1);
    if (n > 0 && begin[n - 1] == '\r') --n;
    if (n > BPI_CONFIG_MAX_LINE) {
        r->rc = bpi_fail(r->err, BP_E_LIMIT, BPI_CONFIG_DOMAIN, r->src.where,
                         "this line has %zu bytes, more than the %u that are accepted", n,
                         BPI_CONFIG_MAX_LINE);
        return false;
    }
    if (!bpi_config_text_ok(begin, n, why, sizeof why)) {
        r->rc = bpi_fail(r->err, BP_E_CONFIG, BPI_CONFIG_DOMAIN, r->src.where, "this line holds %s",
                         why);
        return false;
    }
    memcpy(r->line, begin, n);
    r->line[n] = '\0';
    return true;
}

static int32_t vet_section(struct reader *r, char *text)
{
    char *close = find_or_comment(text + 1, "]");
    if (*close != ']')
        return bpi_fail(r->err, BP_E_CONFIG, BPI_CONFIG_DOMAIN, r->src.where,
                        "the section header %s has no closing `]`", bpi_config_quote(text).text);
    const char *rest = skip_blanks(close + 1);
    if (*rest != '\0' && *rest != ';' && *rest != '#')
        return bpi_fail(r->err, BP_E_CONFIG, BPI_CONFIG_DOMAIN, r->src.where,
                        "%s after a section header; put it on a line of its own",
                        bpi_config_quote(rest).text);
    *close = '\0'; /* for the checks below; put back for inih */
    int32_t rc = BP_OK;
    if ((size_t)(close - text - 1) > BPI_CONFIG_MAX_SECTION)
        rc = bpi_fail(r->err, BP_E_LIMIT, BPI_CONFIG_DOMAIN, r->src.where,
                      "the section name %s has %zu bytes, more than the %u that are accepted",
                      bpi_config_quote(text + 1).text, (size_t)(close - text - 1),
                      BPI_CONFIG_MAX_SECTION);
    else if (!bpi_config_section_known(text + 1))
        rc = bpi_config_unknown_section(&r->src, text + 1, r->err);
    *close = ']';
    close[1] = '\0'; /* a comment after the header need not fit inih's buffer */
    r->in_section = true;
    return rc;
}

/* Checks the form of a key line, and cuts the value out when the line does not fit inih's buffer of `room`
 * bytes. */
static int32_t vet_key(struct reader *r, char *text, size_t room)
{
    char *sep = find_or_comment(text, "=:");
    if (*sep != '=' && *sep != ':')
        return bpi_fail(r->err, BP_E_CONFIG, BPI_CONFIG_DOMAIN, r->src.where,
                        "%s is neither [section] nor key = value, and a comment begins with ; or #",
                        bpi_config_quote(text).text);
    if (!r->in_section)
        return bpi_fail(r->err, BP_E_CONFIG, BPI_CONFIG_DOMAIN, r->src.where,
                        "%s stands before the first [section]; put its section's header above it",
                        bpi_config_quote(text).text);
    char *key_end = sep;
    while (key_end > text && is_blank(key_end[-1])) --key_end;
    size_t n_key = (size_t)(key_end - text);
    if (n_key > BPI_CONFIG_MAX_NAME)
        return bpi_fail(r->err, BP_E_LIMIT, BPI_CONFIG_DOMAIN, r->src.where,
                        "the key %s has %zu bytes, more than the %u that are accepted",
                        bpi_config_quote(text).text, n_key, BPI_CONFIG_MAX_NAME);
    if (strlen(text) + 2 <= room) return BP_OK;
    char *value_end = find_or_comment(sep + 1, "");
    const char *value = skip_blanks(sep + 1);
    while (value_end > value && is_blank(value_end[-1])) --value_end;
    *value_end = '\0';
    *key_end = '\0';
    r->long_value = value;
    return BP_OK;
}

/* ---- between inih and the settings ---- */

/* inih's source of lines, in the manner of fgets. Blank lines and comments are skipped here; leading blanks
 * are dropped, so that inih never takes a line for the continuation of the one above. */
static char *feed(char *buffer, int size, void *user)
{
    struct reader *r = user;
    size_t room = size > 0 ? (size_t)size : 0;
    r->long_value = NULL;
    if (r->rc == BP_OK && room < STAND_IN_BYTES)
        r->rc =
            bpi_fail(r->err, BP_E_INTERNAL, BPI_CONFIG_DOMAIN, r->src.where,
                     "inih reads lines of %zu bytes only, and %u are needed; install a build with "
                     "its default of 200",
                     room, STAND_IN_BYTES);
    while (r->rc == BP_OK && r->at < r->end) {
        if (!take_line(r)) break;
        char *text = r->line + strspn(r->line, " \t");
        if (*text == '\0' || *text == ';' || *text == '#') continue;
        r->rc = *text == '[' ? vet_section(r, text) : vet_key(r, text, room);
        if (r->rc != BP_OK) break;
        size_t n = strlen(text);
        memcpy(buffer, text, n);
        if (r->long_value != NULL) {
            memcpy(buffer + n, " = *", 4);
            n += 4;
        }
        memcpy(buffer + n, "\n", 2);
        return buffer;
    }
    return NULL;
}

static int take_setting(void *user, const char *section, const char *name, const char *value)
{
    struct reader *r = user;
    if (r->rc != BP_OK) return 0;
    if (r->long_value != NULL) value = r->long_value;
    r->rc = bpi_config_add(r->c, &r->src, section, name, value != NULL ? value : "", r->err);
    return r->rc == BP_OK;
}

/* What concerns the text as a whole: size, encoding, NUL bytes. */
static int32_t vet_text(const char *text, size_t n, const char *label, struct bp_error *err)
{
    if (n > BPI_CONFIG_MAX_BYTES)
        return bpi_fail(err, BP_E_LIMIT, BPI_CONFIG_DOMAIN, label,
                        "the text has %zu bytes, more than the %u that are accepted", n,
                        BPI_CONFIG_MAX_BYTES);
    if (n >= 2 && (memcmp(text, "\xff\xfe", 2) == 0 || memcmp(text, "\xfe\xff", 2) == 0))
        return bpi_fail(err, BP_E_CONFIG, BPI_CONFIG_DOMAIN, label,
                        "this is UTF-16 text; save it as UTF-8");
    const char *nul = n > 0 ? memchr(text, '\0', n) : NULL;
    if (nul == NULL) return BP_OK;
    return bpi_fail(err, BP_E_CONFIG, BPI_CONFIG_DOMAIN, label,
                    "byte %zu is NUL, so this is no text file; give an INI file",
                    (size_t)(nul - text) + 1);
}

int32_t bpi_config_load_text(struct bpi_config *c, const char *text, size_t n, const char *label,
                             struct bp_error *err)
{
    struct reader r = {.c = c, .err = err};
    size_t first = c->n;
    if (label == NULL) label = "(text)";
    BP_TRY(vet_text(text, n, label, err));
    if (n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) { /* a byte order mark says nothing new */
        text += 3;
        n -= 3;
    }
    r.src.label = label;
    r.src.first = first;
    r.at = text;
    r.end = text + n;
    int status = ini_parse_stream(feed, &r, take_setting, &r);
    if (r.rc == BP_OK && status == -2)
        r.rc = bpi_fail_nomem(err, BPI_CONFIG_DOMAIN, BPI_CONFIG_MAX_LINE);
    else if (r.rc == BP_OK && status != 0)
        r.rc = bpi_fail(err, BP_E_INTERNAL, BPI_CONFIG_DOMAIN, label,
                        "inih refused key line %d, which had passed every check", status);
    if (r.rc != BP_OK) bpi_config_truncate(c, first);
    return r.rc;
}

int32_t bpi_config_load(struct bpi_config *c, const char *path, struct bp_error *err)
{
    char *text;
    size_t n;
    BP_TRY(bpi_file_read(path, BPI_CONFIG_MAX_BYTES, &text, &n, err));
    int32_t rc = bpi_config_load_text(c, text, n, path, err);
    bpi_free(text);
    return rc;
}
