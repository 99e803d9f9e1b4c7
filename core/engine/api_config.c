/* api_config.c - the bp_config_* functions of backplane.h and tools.h, version, status names, bp_free.
 * Not here: what keys mean (core/config has the table), what sampling does (sampler.c).
 * Threads: a config belongs to one thread at a time. SPDX-License-Identifier: MIT */
#include "engine/engine.h"

#include <math.h>
#include <string.h>
#include <sys/random.h>

/* The project's version comes from the build, so that it stands in one place. */
#ifndef BP_VERSION
#define BP_VERSION "0.1.0"
#endif

const char *bp_version(void)
{
    return BP_VERSION;
}

const char *bp_status_name(int32_t status)
{
    return bpi_status_name(status);
}

void bp_free(void *p)
{
    bpi_free(p);
}

int32_t bp_config_create(struct bp_config **out, struct bp_error *err)
{
    *out = NULL;
    struct bp_config *c = bpi_calloc(1, sizeof *c);
    if (c == NULL) return bpi_fail_nomem(err, "config", sizeof *c);
    int32_t rc = bpi_config_create(&c->c, err);
    if (rc != BP_OK) {
        bpi_free(c);
        return rc;
    }
    *out = c;
    return BP_OK;
}

void bp_config_destroy(struct bp_config *c)
{
    if (c == NULL) return;
    bpi_config_destroy(c->c);
    bpi_buf_free(&c->range);
    bpi_free(c);
}

int32_t bp_config_add_plugin(struct bp_config *c, bp_plugin_query_fn query, struct bp_error *err)
{
    if (query == NULL)
        return bpi_fail(err, BP_E_ARG, "config", NULL, "a plugin was added without its function");
    if (c->n_plugins == BPI_MAX_LINKED)
        return bpi_fail(err, BP_E_LIMIT, "config", NULL,
                        "%d plugins are linked in already, and no more fit", BPI_MAX_LINKED);
    c->plugins[c->n_plugins++] = query;
    return BP_OK;
}

int32_t bp_config_load(struct bp_config *c, const char *path, struct bp_error *err)
{
    return bpi_config_load(c->c, path, err);
}

int32_t bp_config_set(struct bp_config *c, const char *assignment, struct bp_error *err)
{
    return bpi_config_set(c->c, assignment, err);
}

/* ---- walking the values ---- */

/* One visit of bpi_config_each: stops caring after the entry that was asked for. */
struct walk {
    const char *want_section, *want_name; /* by name, or ... */
    uint64_t want, at;                    /* ... by number */
    bool found;
    const struct bpi_config_key *key;
    const char *section, *name, *value, *origin;
};

static void walk_one(void *ctx, const struct bpi_config_key *key, const char *section,
                     const char *name, const char *value, const char *origin)
{
    struct walk *w = ctx;
    bool hit = w->want_section != NULL
                   ? strcmp(section, w->want_section) == 0 && strcmp(name, w->want_name) == 0
                   : w->at == w->want;
    w->at++;
    if (!hit || w->found) return;
    w->found = true;
    w->key = key;
    w->section = section;
    w->name = name;
    w->value = value;
    w->origin = origin;
}

const char *bp_config_get(const struct bp_config *c, const char *section, const char *key)
{
    struct walk w = {.want_section = section, .want_name = key};
    bpi_config_each(c->c, walk_one, &w);
    return w.found ? w.value : NULL;
}

static const char *type_name(uint32_t type)
{
    switch (type) {
    case BPI_CFG_INT:
        return "integer";
    case BPI_CFG_FLOAT:
        return "number";
    case BPI_CFG_BOOL:
        return "bool";
    case BPI_CFG_ENUM:
        return "choice";
    case BPI_CFG_LIST:
        return "list";
    default:
        return "text";
    }
}

/* Bounds have at most two decimals; printed without %f, whose decimal sign follows the process's locale. */
static void put_bound(struct bpi_buf *b, double v)
{
    long long hundredths = llround(v * 100.0);
    bpi_buf_printf(b, "%lld", hundredths / 100);
    if (hundredths % 100 != 0) bpi_buf_printf(b, ".%02lld", hundredths % 100);
}

static void put_range(struct bpi_buf *b, const struct bpi_config_key *key)
{
    if (key == NULL) return;
    if (key->type == BPI_CFG_INT || key->type == BPI_CFG_FLOAT) {
        put_bound(b, key->lo);
        bpi_buf_puts(b, "..");
        put_bound(b, key->hi);
        if (key->choices != NULL) bpi_buf_printf(b, "|%s", key->choices);
    } else if (key->type == BPI_CFG_BOOL) {
        bpi_buf_puts(b, "true|false");
    } else if (key->type == BPI_CFG_ENUM && key->choices != NULL) {
        bpi_buf_puts(b, key->choices);
    }
}

int32_t bp_config_entry(struct bp_config *c, uint32_t i, struct bp_config_entry *out)
{
    struct walk w = {.want = i};
    bpi_config_each(c->c, walk_one, &w);
    if (!w.found) return BP_DECLINED;

    c->range.len = 0;
    bpi_buf_append(&c->range, "", 1); /* so that an empty range has text at all */
    c->range.len = 0;
    put_range(&c->range, w.key);
    if (c->range.failed) return BP_E_NOMEM;
    out->section = w.section;
    out->key = w.name;
    out->value = w.value;
    out->origin = w.origin;
    out->dflt = w.key != NULL ? w.key->dflt : "";
    out->type = w.key != NULL ? type_name(w.key->type) : "text";
    out->range = c->range.data;
    out->doc = w.key != NULL ? w.key->doc : "Set by a file or on the command line.";
    return BP_OK;
}

/* ---- what the other files of this room read from a config ---- */

struct bpi_log bpi_engine_log(const struct bp_config *c, const struct bp_callbacks *cb)
{
    static const char *const levels[] = {"error", "warn", "info", "debug"};
    struct bpi_log log = {.level = BPI_LOG_WARN};
    if (cb != NULL) {
        log.sink = cb->log;
        log.ctx = cb->ctx;
    }
    if (c == NULL) return log;
    const char *level = bpi_config_str(c->c, "engine", "log");
    for (int32_t i = 0; i < (int32_t)BPI_ARRAY_LEN(levels); ++i) {
        if (strcmp(level, levels[i]) == 0) log.level = i;
    }
    return log;
}

/* Below 2^53, so that the seed survives a trip through JSON and the config's own range. */
static uint64_t fresh_seed(void)
{
    uint64_t seed;
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != (ssize_t)sizeof seed)
        seed = bpi_now_ns() * UINT64_C(0x9e3779b97f4a7c15);
    return seed >> 11;
}

void bp_sample_defaults(const struct bp_config *c, struct bp_sample_params *p)
{
    int64_t seed = bpi_config_int(c->c, "sample", "seed");
    *p = (struct bp_sample_params){
        .h = BP_HDR(struct bp_sample_params, seed),
        .temp = (float)bpi_config_float(c->c, "sample", "temp"),
        .top_k = (int32_t)bpi_config_int(c->c, "sample", "top_k"),
        .top_p = (float)bpi_config_float(c->c, "sample", "top_p"),
        .min_p = (float)bpi_config_float(c->c, "sample", "min_p"),
        .repeat_penalty = (float)bpi_config_float(c->c, "sample", "repeat_penalty"),
        .repeat_last = (uint32_t)bpi_config_int(c->c, "sample", "repeat_last"),
        .seed = seed == BPI_CONFIG_AUTO ? fresh_seed() : (uint64_t)seed,
    };
}
