/* loader_list.c - who would be asked for a slot, and who a name is: for tables and messages; nothing is opened here.
 * Not here: asking (loader_choose.c), which walks the same order.
 * Threads: as loader.h says. SPDX-License-Identifier: MIT */
#include "loader/loader_priv.h"

#include <string.h>

struct list {
    const struct bpi_loader *l;
    const char *iface;
    const char **names;
    size_t cap, n;
};

static void add(struct list *o, const char *name)
{
    for (size_t i = 0; i < o->n; ++i) {
        if (strcmp(o->names[i], name) == 0) return;
    }
    if (o->n < o->cap) o->names[o->n++] = name;
}

/* Registered plugins from the oldest to the newest; depth is bounded by the number of plugins. */
static void add_registered(struct list *o, const struct bpi_plugin *p)
{
    if (p == NULL) return;
    add_registered(o, p->older);
    if (bpi_loader_found_named(o->l, p->name) == NULL && p->desc->kind == BP_KIND_BACKEND &&
        bpi_plugin_entry(p->desc, o->iface) != NULL)
        add(o, p->name);
}

static void add_all(struct list *o)
{
    for (size_t i = 0; i < o->l->n_found; ++i) {
        if (bpi_found_may_offer(o->l->found[i], o->iface)) add(o, o->l->found[i]->name);
    }
    add_registered(o, o->l->newest);
}

static void add_named(struct list *o, const char *name)
{
    const struct bpi_plugin *p = bpi_loader_find(o->l, name);
    const struct bpi_found *f = bpi_loader_found_named(o->l, name);
    if (f != NULL)
        add(o, f->name);
    else if (p != NULL)
        add(o, p->name);
}

size_t bpi_loader_names(const struct bpi_loader *l, const char *slot, const char *iface,
                        int32_t layer, const char **names, size_t cap)
{
    struct list o = {.l = l, .iface = iface, .names = names, .cap = cap};
    const char *text = l->env.config != NULL ? bpi_config_slot(l->env.config, slot, layer) : "auto";
    char name[BPI_CONFIG_MAX_LINE];
    for (size_t i = 0; bpi_config_list_at(text, i, name, sizeof name); ++i) {
        if (strcmp(name, "auto") == 0)
            add_all(&o);
        else
            add_named(&o, name);
    }
    return o.n;
}

void bpi_loader_about(const struct bpi_loader *l, const char *name, const char **version,
                      const char **file)
{
    const struct bpi_plugin *p = bpi_loader_find(l, name);
    const struct bpi_found *f = bpi_loader_found_named(l, name);
    *version = *file = "";
    if (p != NULL && p->desc->version != NULL)
        *version = p->desc->version;
    else if (f != NULL)
        *version = f->file.note.version;
    if (f != NULL) *file = f->path;
}
