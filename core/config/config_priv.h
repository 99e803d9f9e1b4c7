/* config_priv.h - what the files of core/config share.
 * Not here: anything another room may use (config.h). Threads: as config.h.
 * SPDX-License-Identifier: MIT */
#ifndef BPI_CONFIG_PRIV_H
#define BPI_CONFIG_PRIV_H

#include "config/config.h"

#define BPI_CONFIG_DOMAIN "config"

/* One setting from a file or a -s. Settings are only ever appended: the last one of a name counts. */
struct bpi_config_item {
    const struct bpi_config_key *row; /* NULL for `slot@layers=`, [wrap] and free plugin keys */
    char *block;                      /* owns the four texts below */
    const char *section, *name;       /* name as shown: "mla.decode@layers=0-2" */
    const char *value, *origin;
    size_t base_len;            /* bytes of name before "@layers" */
    int32_t layer_lo, layer_hi; /* -1 and -1: no layers named */
    size_t replaces;            /* index of the earlier setting of this name, or SIZE_MAX */
    bool replaced;              /* a later setting of this name follows */
    bool opens;                 /* the first setting of its section */
};

struct bpi_config {
    struct bpi_config_item *items;
    size_t n, cap;
};

/* Where a setting is being read: the label of a file and a line, or "-s" and line 0. */
struct bpi_config_source {
    const char *label;
    unsigned line;
    size_t
        first; /* items from here on belong to this file: a second one of the same name is an error */
    char where[96]; /* "LABEL:LINE" for errors, a long label cut at its front */
};
void bpi_config_source_line(struct bpi_config_source *src, unsigned line);

struct bpi_config_section {
    const char *name, *doc;
};
/* Sections of the table and [wrap], in file order; [plugin.NAME] is not among them. */
const struct bpi_config_section *bpi_config_sections(size_t *out_n);

/* The table's row, or NULL. `key` is key_len bytes long and need not end in a NUL. */
const struct bpi_config_key *bpi_config_row(const char *section, const char *key, size_t key_len);
/* NAME of "plugin.NAME" when it is well formed, else NULL. */
const char *bpi_config_plugin_name(const char *section);
bool bpi_config_section_known(const char *section);
int32_t bpi_config_unknown_section(const struct bpi_config_source *src, const char *section,
                                   struct bp_error *err);

/* Is the value good for this key? May add a clue for the reader to hint[cap] ("; did you mean bf16?"). */
bool bpi_config_value_ok(const struct bpi_config_key *row, const char *value, char *hint,
                         size_t cap);
/* Also for [wrap], which has no rows; an empty list is good there. */
bool bpi_config_list_ok(const char *value, bool may_be_empty);
/* "5" or "0-2" of n bytes: false when malformed, backwards, or past BPI_CONFIG_MAX_LAYER. */
bool bpi_config_parse_layers(const char *text, size_t n, int32_t *out_lo, int32_t *out_hi);
bool bpi_config_parse_bool(const char *value, bool *out);

/* Text of n bytes that can be kept and shown: valid UTF-8 without control characters other than tab.
 * Otherwise says in `why` what is wrong. */
bool bpi_config_text_ok(const char *text, size_t n, char *why, size_t cap);
/* A user's text for a message: at most 60 bytes, whole characters, "..." when cut. */
struct bpi_config_quote {
    char text[64];
};
struct bpi_config_quote bpi_config_quote(const char *s);

/* Checks one setting and appends it. On failure nothing has changed. */
int32_t bpi_config_add(struct bpi_config *c, const struct bpi_config_source *src,
                       const char *section, const char *name, const char *value,
                       struct bp_error *err);
/* Forgets the items from n on. */
void bpi_config_truncate(struct bpi_config *c, size_t n);

#endif
