/* loader_registry.c - registered plugins and the ops they made.
 * Not here: which one a slot takes (loader_choose.c).
 * Threads: as loader.h says. SPDX-License-Identifier: MIT */
#include "loader/loader_priv.h"

#include <stdio.h>
#include <string.h>

enum { MAX_PLUGINS = 64, MAX_NAME = 31, MAX_OPS = 256, MAX_NAMES = 256 };

int32_t bpi_loader_create(const struct bpi_loader_env *env, struct bpi_loader **out,
                          struct bp_error *err)
{
    struct bpi_loader *l = bpi_calloc(1, sizeof *l);
    if (l == NULL) return bpi_fail_nomem(err, "loader", sizeof *l);
    l->env = *env;
    *out = l;
    return BP_OK;
}

static void destroy_ops(struct bpi_loader *l)
{
    while (l->newest_op != NULL) {
        struct bpi_bound_op *op = l->newest_op;
        l->newest_op = op->older;
        op->plugin->desc->op_destroy(op->plugin->self, &op->made);
        bpi_free(op->tables);
        bpi_free(op);
    }
}

void bpi_loader_dismiss(struct bpi_loader *l, struct bpi_plugin *newest)
{
    l->newest = newest->older;
    l->n_plugins--;
    newest->desc->close(newest->self);
    uint64_t left = atomic_load(&newest->used_bytes);
    if (left != 0) {
        bpi_logf(l->env.log, BPI_LOG_WARN, "loader",
                 "plugin %s was closed with %llu bytes of host memory unfreed", newest->name,
                 (unsigned long long)left);
    }
    bpi_free(newest);
}

void bpi_loader_destroy(struct bpi_loader *l)
{
    if (l == NULL) return;
    destroy_ops(l);
    while (l->newest != NULL) bpi_loader_dismiss(l, l->newest);
    bpi_loader_forget_found(l);
    bpi_free(l);
}

/* ---- handshake ---- */

bool bpi_plugin_name_ok(const char *name)
{
    if (name == NULL || name[0] == '\0' || strcmp(name, "auto") == 0) return false;
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_");
    return name[n] == '\0' && n <= MAX_NAME;
}

const struct bp_op_entry *bpi_desc_op(const struct bp_plugin_desc *desc, uint32_t i)
{
    return (const struct bp_op_entry *)(const void *)((const unsigned char *)desc->ops +
                                                      (uint64_t)i * desc->ops_stride);
}

const struct bp_op_entry *bpi_plugin_entry(const struct bp_plugin_desc *desc, const char *iface)
{
    for (uint32_t i = 0; i < desc->n_ops; ++i) {
        if (strcmp(bpi_desc_op(desc, i)->iface, iface) == 0) return bpi_desc_op(desc, i);
    }
    return NULL;
}

static int32_t check_offers(const struct bp_plugin_desc *desc, struct bp_error *err)
{
    if (desc->n_ops < 1 || desc->n_ops > MAX_OPS || desc->ops == NULL ||
        desc->ops_stride < sizeof(struct bp_op_entry)) {
        return bpi_fail(err, BP_E_ABI, "loader", desc->name,
                        "the plugin offers %u ops in entries of %u bytes; 1 to %d of at least %zu "
                        "were expected",
                        desc->n_ops, desc->ops_stride, MAX_OPS, sizeof(struct bp_op_entry));
    }
    for (uint32_t i = 0; i < desc->n_ops; ++i) {
        const struct bp_op_entry *e = bpi_desc_op(desc, i);
        if (e->iface == NULL || e->impl == NULL) {
            return bpi_fail(err, BP_E_ABI, "loader", desc->name,
                            "op %u of the plugin has no interface or no name", i);
        }
        if (e->iface_major != BP_ABI_MAJOR || e->iface_minor != BP_ABI_MINOR) {
            return bpi_fail(
                err, BP_E_ABI, "loader", desc->name,
                "the plugin offers %s %u.%u and this engine speaks %d.%d; rebuild the plugin",
                e->iface, e->iface_major, e->iface_minor, BP_ABI_MAJOR, BP_ABI_MINOR);
        }
    }
    return BP_OK;
}

static int32_t check_desc(const struct bp_plugin_desc *desc, struct bp_error *err)
{
    if (desc == NULL) {
        return bpi_fail(err, BP_E_ABI, "loader", NULL,
                        "the plugin does not work with an engine that speaks ABI %d.%d; rebuild it",
                        BP_ABI_MAJOR, BP_ABI_MINOR);
    }
    if (desc->h.size < BP_END(struct bp_plugin_desc, name)) {
        return bpi_fail(err, BP_E_ABI, "loader", NULL,
                        "the plugin's descriptor ends after %u bytes; %u were expected",
                        desc->h.size, BP_END(struct bp_plugin_desc, op_destroy));
    }
    if (!bpi_plugin_name_ok(desc->name)) {
        return bpi_fail(err, BP_E_ABI, "loader", NULL,
                        "a plugin's name has 1 to %d of a-z, 0-9 and _, and is not \"auto\"; this "
                        "one is \"%s\"",
                        MAX_NAME, desc->name != NULL ? desc->name : "");
    }
    if (desc->abi_major != BP_ABI_MAJOR || desc->abi_minor != BP_ABI_MINOR ||
        desc->min_host_minor > BP_ABI_MINOR) {
        return bpi_fail(err, BP_E_ABI, "loader", desc->name,
                        "the plugin speaks ABI %u.%u (engine at least %u.%u) and this engine "
                        "%d.%d; rebuild the plugin",
                        desc->abi_major, desc->abi_minor, desc->abi_major, desc->min_host_minor,
                        BP_ABI_MAJOR, BP_ABI_MINOR);
    }
    if (desc->h.size < BP_END(struct bp_plugin_desc, op_destroy) || desc->open == NULL ||
        desc->close == NULL || desc->op_create == NULL || desc->op_destroy == NULL) {
        return bpi_fail(
            err, BP_E_ABI, "loader", desc->name,
            "the plugin's descriptor (%u bytes) lacks open, close, op_create or op_destroy",
            desc->h.size);
    }
    return check_offers(desc, err);
}

int32_t bpi_loader_query(const struct bpi_loader *l, bp_plugin_query_fn query,
                         const struct bp_plugin_desc **out, struct bp_error *err)
{
    struct bp_query q = {.h = BP_HDR(struct bp_query, engine_version),
                         .host_major = BP_ABI_MAJOR,
                         .host_minor = BP_ABI_MINOR,
                         .host_min_plugin_minor = BP_ABI_MINOR};
    if (l->n_plugins == MAX_PLUGINS) {
        return bpi_fail(err, BP_E_LIMIT, "loader", NULL,
                        "%d plugins are registered, and no more fit", MAX_PLUGINS);
    }
    *out = query(&q);
    return check_desc(*out, err);
}

int32_t bpi_loader_admit(struct bpi_loader *l, const char *name, const struct bp_plugin_desc *desc,
                         struct bpi_plugin **out, struct bp_error *err)
{
    if (bpi_loader_find(l, name) != NULL) {
        return bpi_fail(err, BP_E_CONFIG, "loader", name,
                        "two plugins have this name; remove one, or give it another name");
    }
    BP_TRY(bpi_plugin_check_config(l->env.config, name, desc, err));
    struct bpi_plugin *p = bpi_calloc(1, sizeof *p);
    if (p == NULL) return bpi_fail_nomem(err, "loader", sizeof *p);
    p->loader = l;
    p->name = name;
    p->desc = desc;
    bpi_plugin_init_host(p);
    int32_t rc = desc->open(&p->host, &p->self, err);
    if (rc != BP_OK) {
        /* The plugin should have said why; this line counts only when it did not. */
        (void)bpi_fail(err, rc, "loader", name,
                       "the plugin cannot be opened and gave no reason (%s)", bpi_status_name(rc));
        bpi_free(p);
        return rc;
    }
    p->older = l->newest;
    l->newest = p;
    l->n_plugins++;
    *out = p;
    return BP_OK;
}

int32_t bpi_loader_register(struct bpi_loader *l, bp_plugin_query_fn query, struct bp_error *err)
{
    const struct bp_plugin_desc *desc = NULL; /* gcc -O3 does not see that the query sets it */
    struct bpi_plugin *p;
    BP_TRY(bpi_loader_query(l, query, &desc, err));
    return bpi_loader_admit(l, desc->name, desc, &p, err);
}

/* ---- lookups ---- */

size_t bpi_loader_n_plugins(const struct bpi_loader *l)
{
    return l->n_plugins;
}

const struct bp_plugin_desc *bpi_loader_plugin(const struct bpi_loader *l, size_t i)
{
    const struct bpi_plugin *p = l->newest;
    if (i >= l->n_plugins) return NULL;
    for (size_t at = l->n_plugins - 1; at > i; --at) p = p->older;
    return p->desc;
}

struct bpi_plugin *bpi_loader_find(const struct bpi_loader *l, const char *name)
{
    struct bpi_plugin *p = l->newest;
    while (p != NULL && strcmp(p->name, name) != 0) p = p->older;
    return p;
}

int32_t bpi_loader_fail_unknown(const struct bpi_loader *l, const char *name, const char *where,
                                struct bp_error *err)
{
    const char *names[MAX_NAMES];
    size_t n = 0;
    struct bpi_buf known = {0};
    for (const struct bpi_plugin *p = l->newest; p != NULL && n < MAX_NAMES; p = p->older) ++n;
    size_t at = n;
    for (const struct bpi_plugin *p = l->newest; at > 0; p = p->older) names[--at] = p->name;
    for (size_t i = 0; i < l->n_found && n < MAX_NAMES; ++i) {
        if (!l->found[i]->shadowed && l->found[i]->state != BPI_FOUND_OPEN)
            names[n++] = l->found[i]->name;
    }
    for (size_t i = 0; i < n; ++i) bpi_buf_printf(&known, "%s%s", i != 0 ? ", " : "", names[i]);
    const char *near = bpi_nearest(name, names, n);
    int32_t rc = bpi_fail(err, BP_E_CONFIG, "loader", where,
                          "no provider is called \"%s\"%s%s%s; there are: %s; see \"backplane plugins\"",
                          name,
                          near != NULL ? " (did you mean \"" : "", near != NULL ? near : "",
                          near != NULL ? "\"?)" : "", known.data != NULL ? known.data : "none");
    bpi_buf_free(&known);
    return rc;
}

int32_t bpi_loader_check_config(const struct bpi_loader *l, struct bp_error *err)
{
    char where[96];
    const char *name;
    for (size_t i = 0;
         l->env.config != NULL && (name = bpi_config_plugin_name_at(l->env.config, i)) != NULL;
         ++i) {
        if (bpi_loader_find(l, name) != NULL || bpi_loader_found_named(l, name) != NULL) continue;
        (void)snprintf(where, sizeof where, "[plugin.%s]", name);
        return bpi_loader_fail_unknown(l, name, where, err);
    }
    return BP_OK;
}

int32_t bpi_loader_make_op(struct bpi_loader *l, struct bpi_plugin *p,
                           const struct bp_op_entry *entry, const struct bp_device *dev,
                           struct bpi_bound_op *inner, struct bpi_bound_op **out,
                           struct bp_error *err)
{
    struct bpi_bound_op *op = bpi_calloc(1, sizeof *op);
    if (op == NULL) return bpi_fail_nomem(err, "loader", sizeof *op);
    int32_t rc = p->desc->op_create(p->self, entry, dev, inner != NULL ? &inner->ref : NULL,
                                    inner != NULL, &op->made, err);
    if (rc != BP_OK) {
        (void)bpi_fail(err, rc, "loader", entry->iface,
                       "%s cannot make this op and gave no reason (%s)", p->name,
                       bpi_status_name(rc));
        bpi_free(op);
        return rc;
    }
    op->plugin = p;
    op->iface = entry->iface;
    op->inner = inner;
    if (inner != NULL) {
        rc = bpi_flat_wrapped(op, err);
    } else {
        rc = bpi_table_check(op->made.vt, entry->iface, p->name, err);
        bpi_flat_plain(op);
    }
    if (rc != BP_OK) {
        p->desc->op_destroy(p->self, &op->made);
        bpi_free(op->tables);
        bpi_free(op);
        return rc;
    }
    op->device_kind = dev != NULL ? dev->kind : BP_DEV_HOST;
    op->device_ordinal = dev != NULL ? dev->ordinal : 0;
    op->older = l->newest_op;
    l->newest_op = op;
    *out = op;
    return BP_OK;
}

int32_t bpi_loader_op(struct bpi_loader *l, const char *provider, const char *iface,
                      const struct bp_device *dev, struct bp_op_ref *out, struct bp_error *err)
{
    const uint32_t kind = dev != NULL ? dev->kind : BP_DEV_HOST;
    const int32_t ordinal = dev != NULL ? dev->ordinal : 0;
    struct bpi_plugin *p;
    BP_TRY(bpi_loader_need(l, provider, iface, &p, err));
    const struct bp_op_entry *entry = bpi_plugin_entry(p->desc, iface);
    if (entry == NULL) {
        return bpi_fail(err, BP_DECLINED, "loader", iface,
                        "plugin %s does not offer this interface", provider);
    }
    struct bpi_bound_op *op = l->newest_op;
    while (op != NULL && (op->plugin != p || op->inner != NULL || strcmp(op->iface, iface) != 0 ||
                          op->device_kind != kind || op->device_ordinal != ordinal)) {
        op = op->older;
    }
    if (op == NULL) BP_TRY(bpi_loader_make_op(l, p, entry, dev, NULL, &op, err));
    *out = op->ref;
    return BP_OK;
}
