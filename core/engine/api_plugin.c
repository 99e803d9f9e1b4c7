/* api_plugin.c - the bp_plugin_list_* functions of tools.h: which plugins there are, from their files alone.
 * Not here: reading and judging files (core/loader). Threads: a list is immutable. SPDX-License-Identifier: MIT */
#include "engine/engine.h"

#include <string.h>
#include "loader/loader.h"
#include "loader/plugin_file.h"
#include "ref/ref.h"

struct bp_plugin_list {
    struct bpi_loader *loader; /* a whole search ... */
    struct bpi_found *file;    /* ... or one file */
    struct bpi_buf ref_ifaces;
};

static int32_t list_ref(struct bp_plugin_list *l, struct bp_error *err)
{
    BP_TRY(bpi_loader_register(l->loader, bpi_ref_query, err));
    const struct bp_plugin_desc *desc = bpi_loader_plugin(l->loader, 0);
    for (uint32_t i = 0; i < desc->n_ops; ++i)
        bpi_buf_printf(&l->ref_ifaces, "%s%s", i != 0 ? " " : "", bpi_desc_op(desc, i)->iface);
    return l->ref_ifaces.failed ? bpi_fail_nomem(err, "loader", l->ref_ifaces.cap) : BP_OK;
}

int32_t bp_plugin_list_open(const struct bp_config *cfg, struct bp_plugin_list **out,
                            struct bp_error *err)
{
    int32_t rc;
    *out = NULL;
    struct bp_plugin_list *l = bpi_calloc(1, sizeof *l);
    if (l == NULL) return bpi_fail_nomem(err, "loader", sizeof *l);
    struct bpi_loader_env env = {.config = cfg->c};
    BP_TRY_GOTO(rc, bpi_loader_create(&env, &l->loader, err), fail);
    BP_TRY_GOTO(rc, list_ref(l, err), fail);
    BP_TRY_GOTO(rc, bpi_loader_scan(l->loader, false, err), fail);
    *out = l;
    return BP_OK;
fail:
    bp_plugin_list_close(l);
    return rc;
}

int32_t bp_plugin_list_file(const char *path, struct bp_plugin_list **out, struct bp_error *err)
{
    *out = NULL;
    struct bp_plugin_list *l = bpi_calloc(1, sizeof *l);
    if (l == NULL) return bpi_fail_nomem(err, "loader", sizeof *l);
    int32_t rc = bpi_plugin_file_look(path, &l->file, err);
    if (rc != BP_OK) {
        bpi_free(l);
        return rc;
    }
    *out = l;
    return BP_OK;
}

void bp_plugin_list_close(struct bp_plugin_list *l)
{
    if (l == NULL) return;
    bpi_loader_destroy(l->loader);
    bpi_free(l->file);
    bpi_buf_free(&l->ref_ifaces);
    bpi_free(l);
}

BP_STATIC_ASSERT((int)BP_PLUGIN_HAS_NOTE == BPI_PF_NOTE &&
                     (int)BP_PLUGIN_HAS_ENTRY == BPI_PF_ENTRY &&
                     (int)BP_PLUGIN_STATIC_TLS == BPI_PF_STATIC_TLS &&
                     (int)BP_PLUGIN_TEXTREL == BPI_PF_TEXTREL &&
                     (int)BP_PLUGIN_UNIQUE == BPI_PF_UNIQUE,
                 "the flags of both headers are the same");

static void fill(const struct bpi_found *f, struct bp_plugin_info *out)
{
    const struct bpi_plugin_file *file = &f->file;
    const bool refused = f->state == BPI_FOUND_REFUSED;
    *out = (struct bp_plugin_info){.h = out->h,
                                   .name = f->name,
                                   .version = file->note.version,
                                   .file = f->path,
                                   .ifaces = file->note.ifaces,
                                   .reason = refused ? bpi_reason_name(f->why.code) : "",
                                   .why = refused ? f->why.text : "",
                                   .mend = refused ? f->why.mend : "",
                                   .needed = file->needed,
                                   .exports = file->exports,
                                   .status = refused ? BP_PLUGIN_REFUSED : BP_PLUGIN_READY,
                                   .flags = file->flags,
                                   .kind = file->note.kind,
                                   .abi_major = file->note.abi_major,
                                   .abi_minor = file->note.abi_minor,
                                   .n_needed = file->n_needed,
                                   .n_exports = file->n_exports,
                                   .tls_bytes = file->tls_bytes};
}

static void fill_built_in(const struct bp_plugin_list *l, struct bp_plugin_info *out)
{
    const struct bp_plugin_desc *desc = bpi_loader_plugin(l->loader, 0);
    *out = (struct bp_plugin_info){.h = out->h,
                                   .name = desc->name,
                                   .version = desc->version,
                                   .file = "",
                                   .ifaces = l->ref_ifaces.data,
                                   .reason = "",
                                   .why = "",
                                   .mend = "",
                                   .needed = "",
                                   .exports = "",
                                   .status = BP_PLUGIN_BUILT_IN,
                                   .kind = desc->kind,
                                   .abi_major = desc->abi_major,
                                   .abi_minor = desc->abi_minor};
}

int32_t bp_plugin_list_at(const struct bp_plugin_list *l, uint32_t i, struct bp_plugin_info *out)
{
    const size_t n = l->loader != NULL ? bpi_loader_n_found(l->loader) : 1;
    if (i < n)
        fill(l->loader != NULL ? bpi_loader_found(l->loader, i) : l->file, out);
    else if (i == n && l->loader != NULL)
        fill_built_in(l, out);
    else
        return BP_DECLINED;
    return BP_OK;
}
