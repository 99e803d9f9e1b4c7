/* kit_subject.c - the plugin under test: loading, descriptor, opening, ops. Runs in a child only.
 * SPDX-License-Identifier: MIT */
#include "kit.h"

#include <dlfcn.h>
#include <string.h>

#include "backplane/tools.h"
#include "kit_guard.h"

bp_plugin_query_fn kit_entry(struct kit *k)
{
    bp_plugin_query_fn fn;
    if (k->o->reference) return bp_reference_query();
    kit_at(k, "1.1", "", "dlopen", "loading the file");
    kit_enter(k);
    void *lib = dlopen(k->o->file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    kit_leave(k);
    if (lib == NULL) {
        (void)kit_refuse(k, "1.1", BP_R_LOAD, "dlopen", NULL, "%s", dlerror());
        return NULL;
    }
    void *entry = dlsym(lib, BP_PLUGIN_ENTRY);
    if (entry == NULL) {
        (void)kit_refuse(k, "1.1", BP_R_LOAD, BP_PLUGIN_ENTRY, NULL,
                         "the file does not export the entry function");
        return NULL;
    }
    memcpy(&fn, &entry, sizeof fn);
    return fn;
}

static bool well_formed(struct kit *k, const struct bp_plugin_desc *d)
{
    const char *what = NULL;
    if (d->h.size < BP_END(struct bp_plugin_desc, op_destroy)) {
        return kit_refuse(k, "1.3", BP_R_ABI, "h.size", NULL,
                          "the descriptor has %u bytes, the ABI's has %u", d->h.size,
                          BP_END(struct bp_plugin_desc, op_destroy));
    }
    if (d->name == NULL || d->name[0] == '\0')
        what = "name";
    else if (d->version == NULL || d->version[0] == '\0')
        what = "version";
    else if (d->open == NULL)
        what = "open";
    else if (d->close == NULL)
        what = "close";
    else if (d->op_create == NULL)
        what = "op_create";
    else if (d->op_destroy == NULL)
        what = "op_destroy";
    else if (d->n_ops == 0 || d->n_ops > 256 || d->ops == NULL)
        what = "ops";
    else if (d->ops_stride != 0 && d->ops_stride < sizeof(struct bp_op_entry))
        what = "ops_stride";
    else if (d->n_cfg > 256 || (d->n_cfg != 0 && d->cfg == NULL))
        what = "cfg";
    else if (d->cfg_stride != 0 && d->cfg_stride < sizeof(struct bp_cfg_key))
        what = "cfg_stride";
    else if (d->kind > BP_KIND_WRAPPER)
        what = "kind";
    if (what != NULL)
        return kit_refuse(k, "1.3", BP_R_ABI, what, NULL,
                          "`%s` of the descriptor is missing or out of range", what);
    for (uint32_t i = 0; i < d->n_ops; ++i) {
        const struct bp_op_entry *e = kit_op_at(d, i);
        if (e->iface == NULL || e->impl == NULL)
            return kit_refuse(k, "1.3", BP_R_ABI, "ops", NULL, "op %u has no interface or name", i);
    }
    return true;
}

const struct bp_plugin_desc *kit_descriptor(struct kit *k)
{
    const struct bp_query q = {.h = BP_HDR(struct bp_query, engine_version),
                               .host_major = BP_ABI_MAJOR,
                               .host_minor = BP_ABI_MINOR,
                               .host_min_plugin_minor = BP_ABI_MINOR,
                               .engine_version = 100};
    bp_plugin_query_fn entry = kit_entry(k);
    if (entry == NULL) return NULL;
    kit_at(k, "4.10", "", "query", "asking for the descriptor");
    kit_enter(k);
    const struct bp_plugin_desc *d = entry(&q);
    kit_leave(k);
    if (d == NULL) {
        (void)kit_refuse(k, "1.2", BP_R_ABI, "query", NULL,
                         "NULL, for a host of ABI %d.%d: it was built for another one",
                         BP_ABI_MAJOR, BP_ABI_MINOR);
        return NULL;
    }
    kit_at(k, "1.3", "", "descriptor", "reading the descriptor");
    return well_formed(k, d) ? d : NULL;
}

const struct bp_op_entry *kit_op_at(const struct bp_plugin_desc *d, uint32_t i)
{
    const size_t stride = d->ops_stride != 0 ? d->ops_stride : sizeof(struct bp_op_entry);
    return (const struct bp_op_entry *)(const void *)((const unsigned char *)d->ops + i * stride);
}

const struct bp_cfg_key *kit_key_at(const struct bp_plugin_desc *d, uint32_t i)
{
    const size_t stride = d->cfg_stride != 0 ? d->cfg_stride : sizeof(struct bp_cfg_key);
    return (const struct bp_cfg_key *)(const void *)((const unsigned char *)d->cfg + i * stride);
}

bool kit_offers(const struct bp_plugin_desc *d, const char *iface)
{
    for (uint32_t i = 0; i < d->n_ops; ++i) {
        if (strcmp(kit_op_at(d, i)->iface, iface) == 0) return true;
    }
    return false;
}

static bool open_plugin(struct kit *k, struct kit_plugin *p)
{
    struct bp_error err = BP_ERROR_INIT;
    kit_at(k, "4.10", "", "open", "opening the plugin");
    kit_enter(k);
    int32_t rc = p->desc->open(&p->host.table, &p->self, &err);
    kit_leave(k);
    p->open = rc == BP_OK;
    if (p->open) return true;
    err.msg[sizeof err.msg - 1] = '\0';
    (void)kit_refuse(k, "4.1", rc == BP_E_CONFIG ? BP_R_CONFIG : BP_R_LOAD, "open", NULL,
                     "open returned %s: %s", kit_status_name(rc), err.msg);
    kit_host_done(&p->host);
    return false;
}

bool kit_open_subject(struct kit *k, struct kit_plugin *p)
{
    memset(p, 0, sizeof *p);
    p->desc = kit_descriptor(k);
    if (p->desc == NULL) return false;
    kit_host_init(&p->host, k->o->sets, k->o->n_sets);
    return open_plugin(k, p);
}

bool kit_open_reference(struct kit *k, struct kit_plugin *p)
{
    const struct bp_query q = {.h = BP_HDR(struct bp_query, engine_version),
                               .host_major = BP_ABI_MAJOR,
                               .host_minor = BP_ABI_MINOR,
                               .host_min_plugin_minor = BP_ABI_MINOR,
                               .engine_version = 100};
    memset(p, 0, sizeof *p);
    p->desc = bp_reference_query()(&q);
    if (p->desc == NULL) return false;
    kit_host_init(&p->host, NULL, 0);
    return open_plugin(k, p);
}

void kit_close(struct kit *k, struct kit_plugin *p)
{
    if (!p->open) return;
    kit_at(k, "4.10", "", "close", "closing the plugin");
    kit_enter(k);
    p->desc->close(p->self);
    kit_leave(k);
    p->open = false;
}

const struct bp_device *kit_host_device(void)
{
    static const struct bp_device host = {
        .h = BP_HDR(struct bp_device, name), .kind = BP_DEV_HOST, .n_sm = 1, .name = "host"};
    return &host;
}

bool kit_make_op(struct kit *k, struct kit_plugin *p, const char *iface,
                 const struct bp_device *dev, const struct bp_op_ref *inner, struct bp_op_ref *out)
{
    struct bp_error err = BP_ERROR_INIT;
    *out = (struct bp_op_ref){NULL, NULL};
    for (uint32_t i = 0; i < p->desc->n_ops; ++i) {
        const struct bp_op_entry *e = kit_op_at(p->desc, i);
        if (strcmp(e->iface, iface) != 0) continue;
        kit_at(k, "4.10", iface, "op_create", "making an op");
        kit_enter(k);
        int32_t rc = p->desc->op_create(p->self, e, dev, inner, inner != NULL ? 1 : 0, out, &err);
        kit_leave(k);
        err.msg[sizeof err.msg - 1] = '\0';
        if (rc == BP_DECLINED) {
            kit_note(k, iface, "is not made on %s: %s",
                     dev->kind == BP_DEV_HOST ? "the CPU" : "the device", err.msg);
            return false;
        }
        if (rc != BP_OK)
            return kit_fail(k, "4.1", iface, "op_create", NULL, "op_create returned %s: %s",
                            kit_status_name(rc), err.msg);
        if (out->vt == NULL)
            return kit_fail(k, "3.7", iface, "op_create", NULL, "op_create gave no op table");
        return true;
    }
    return false;
}

void kit_drop_op(struct kit *k, struct kit_plugin *p, struct bp_op_ref *op)
{
    if (op->vt == NULL) return;
    kit_at(k, "4.10", "", "op_destroy", "destroying an op");
    kit_enter(k);
    p->desc->op_destroy(p->self, op);
    kit_leave(k);
}
