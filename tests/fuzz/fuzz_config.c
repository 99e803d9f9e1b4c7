/* fuzz_config.c - random bytes as an INI and as a -s.
 * Watches: no crash; a refusal has a sentence and changes nothing; what is accepted reads back inside its range.
 * Input: the text of an INI; when its first byte is '!', the rest of the first line goes to -s and what follows is
 * the INI. SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "config/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void must(bool ok, const char *what)
{
    if (ok) return;
    fprintf(stderr, "fuzz_config: %s\n", what);
    abort();
}

struct summary {
    uint64_t hash;
    size_t n;
};

static void hash_text(uint64_t *hash, const char *s)
{
    do *hash = (*hash ^ (unsigned char)*s) * UINT64_C(0x100000001b3);
    while (*s++ != '\0');
}

static void see(void *ctx, const struct bpi_config_key *key, const char *section, const char *name,
                const char *value, const char *origin)
{
    struct summary *s = ctx;
    must(key == NULL || strcmp(key->key, name) == 0, "a key is listed under another name");
    must(bpi_utf8_valid(value, strlen(value)), "a value is not UTF-8");
    hash_text(&s->hash, section);
    hash_text(&s->hash, name);
    hash_text(&s->hash, value);
    hash_text(&s->hash, origin);
    s->n++;
}

static struct summary summary_of(const struct bpi_config *c)
{
    struct summary s = {UINT64_C(0xcbf29ce484222325), 0};
    bpi_config_each(c, see, &s);
    return s;
}

static void check_outcome(struct bpi_config *c, int32_t rc, const struct bp_error *err,
                          struct summary before)
{
    must(rc == err->code, "status and error disagree");
    if (rc == BP_OK) return;
    must(rc == BP_E_CONFIG || rc == BP_E_LIMIT, "a text made a status of another kind");
    must(err->msg[0] != '\0' && strchr(err->msg, '\n') == NULL, "an error is no sentence");
    must(bpi_utf8_valid(err->msg, strlen(err->msg)), "an error is not UTF-8");
    struct summary after = summary_of(c);
    must(after.n == before.n && after.hash == before.hash, "a refusal changed something");
}

/* Every typed read of what is now in the table. */
static void read_all(const struct bpi_config *c)
{
    size_t n;
    const struct bpi_config_key *keys = bpi_config_keys(&n);
    for (size_t i = 0; i < n; ++i) {
        const struct bpi_config_key *k = &keys[i];
        if (k->type == BPI_CFG_INT) {
            int64_t v = bpi_config_int(c, k->section, k->key);
            must(v == BPI_CONFIG_AUTO ? k->choices != NULL
                                      : (double)v >= k->lo && (double)v <= k->hi,
                 "an integer is out of its range");
        } else if (k->type == BPI_CFG_FLOAT) {
            double v = bpi_config_float(c, k->section, k->key);
            must(isnan(v) ? bpi_config_is_auto(c, k->section, k->key) : v >= k->lo && v <= k->hi,
                 "a number is out of its range");
        } else if (k->type == BPI_CFG_LIST) {
            for (int32_t layer = -1; layer < 4; ++layer) {
                char name[64];
                must(bpi_config_list_at(bpi_config_slot(c, k->key, layer), 0, name, sizeof name) &&
                         name[0] != '\0',
                     "a slot has no provider");
                const char *wrap = bpi_config_wrap(c, k->key, layer);
                must(wrap[0] == '\0' ||
                         (bpi_config_list_at(wrap, 0, name, sizeof name) && name[0] != '\0'),
                     "a wrapper has no name");
            }
        }
    }
    const char *plugin, *key, *value;
    for (size_t p = 0; p < 8 && (plugin = bpi_config_plugin_name_at(c, p)) != NULL; ++p) {
        for (size_t i = 0; i < 8 && bpi_config_plugin_key_at(c, plugin, i, &key, &value); ++i)
            must(strcmp(value, bpi_config_plugin(c, plugin, key)) == 0,
                 "two values of one plugin key");
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct bpi_config *c = NULL;
    struct bp_error err = BP_ERROR_INIT;
    const char *text = (const char *)data;
    if (bpi_config_create(&c, &err) != BP_OK) return 0;
    if (n > 0 && text[0] == '!') {
        const char *newline = memchr(text, '\n', n);
        size_t n_first = newline != NULL ? (size_t)(newline - text) : n;
        char *assignment = bpi_strndup(text + 1, n_first - 1);
        if (assignment != NULL) {
            struct summary before = summary_of(c);
            check_outcome(c, bpi_config_set(c, assignment, &err), &err, before);
        }
        bpi_free(assignment);
        text += newline != NULL ? n_first + 1 : n_first;
        n -= newline != NULL ? n_first + 1 : n_first;
    }
    bpi_error_clear(&err);
    struct summary before = summary_of(c);
    check_outcome(c, bpi_config_load_text(c, text, n, "fuzz.ini", &err), &err, before);
    read_all(c);
    bpi_error_clear(&err);
    must(bpi_config_check(c, &err) == err.code, "the check and its error disagree");
    bpi_config_destroy(c);
    return 0;
}
