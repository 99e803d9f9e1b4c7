/* api_ops.c - bp_ops of tools.h: plugins, a device and the choice of providers without a model; block formats.
 * Not here: calling ops, memory (whoever holds the object does both). Threads: one at a time.
 * SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "backplane/slot_device.h"
#include "block/block.h"
#include "engine/engine.h"
#include "loader/loader.h"
#include "loader/plugin_file.h"
#include "ref/ref.h"

enum { MAX_CANDIDATES = 16 };

struct bp_ops {
    const struct bp_config *cfg;
    struct bpi_log log;
    struct bpi_pool *pool;
    struct bpi_loader *loader;
    struct bp_device device;
    struct bp_op_ref device_op;
    struct bpi_candidate cands[MAX_CANDIDATES];
};

static int32_t load(struct bp_ops *o, struct bp_error *err)
{
    const int64_t threads = bpi_config_int(o->cfg->c, "engine", "threads");
    BP_TRY(bpi_pool_create(threads == BPI_CONFIG_AUTO ? bpi_pool_cores() : (uint32_t)threads,
                           &o->pool, err));
    const struct bpi_loader_env env = {.config = o->cfg->c, .log = &o->log, .pool = o->pool};
    BP_TRY(bpi_loader_create(&env, &o->loader, err));
    BP_TRY(bpi_loader_register(o->loader, bpi_ref_query, err));
    for (uint32_t i = 0; i < o->cfg->n_plugins; ++i)
        BP_TRY(bpi_loader_register(o->loader, o->cfg->plugins[i], err));
    BP_TRY(bpi_loader_scan(o->loader, true, err));
    return bpi_loader_check_config(o->loader, err);
}

static int32_t choose(struct bp_ops *o, const char *slot, const void *problem, size_t *chosen,
                      struct bp_op_ref *op, struct bp_error *err)
{
    char iface[32];
    size_t n = 0;
    snprintf(iface, sizeof(iface), "bp.%s", slot);
    BP_TRY(bpi_loader_choose(o->loader, slot, iface, -1, &o->device, problem, o->cands,
                             MAX_CANDIDATES, &n, chosen, op, err));
    bpi_loader_tell(o->loader, slot, -1, o->cands, n, *chosen);
    return BP_OK;
}

static int32_t open_device(struct bp_ops *o, const struct bp_device_problem *p,
                           struct bp_error *err)
{
    size_t chosen;
    o->device = (struct bp_device){
        .h = BP_HDR(struct bp_device, name), .kind = p->kind, .ordinal = p->ordinal};
    BP_TRY(choose(o, "device", p, &chosen, &o->device_op, err));
    const struct bp_device_ops *ops = (const struct bp_device_ops *)(const void *)o->device_op.vt;
    return ops->props(o->device_op.self, &o->device, err);
}

/* As a session does it. */
static int32_t find_device(struct bp_ops *o, struct bp_error *err)
{
    const char *asked = bpi_config_str(o->cfg->c, "engine", "device");
    struct bp_device_problem p;
    struct bp_error why = BP_ERROR_INIT;
    BP_TRY(bpi_device_words(asked, &p, err));
    if (strcmp(asked, "auto") != 0) return open_device(o, &p, err);
    const int32_t rc = open_device(o, &p, &why);
    if (rc == BP_OK) return BP_OK;
    if (!bpi_device_is_absent(rc)) return bpi_fail(err, rc, "engine", why.where, "%s", why.msg);
    bpi_logf(&o->log, BPI_LOG_INFO, "engine",
             "engine.device = auto is the host: no GPU is used (%s)", why.msg);
    p.kind = BP_DEV_HOST;
    return open_device(o, &p, err);
}

int32_t bp_ops_open(const struct bp_config *cfg, const struct bp_callbacks *cb, struct bp_ops **out,
                    struct bp_error *err)
{
    int32_t rc;
    *out = NULL;
    BP_TRY(bpi_config_check(cfg->c, err));
    struct bp_ops *o = bpi_calloc(1, sizeof(*o));
    if (o == NULL) return bpi_fail_nomem(err, "engine", sizeof(*o));
    o->cfg = cfg;
    o->log = bpi_engine_log(cfg, cb);
    BP_TRY_GOTO(rc, load(o, err), fail);
    BP_TRY_GOTO(rc, find_device(o, err), fail);
    *out = o;
    return BP_OK;
fail:
    bp_ops_close(o);
    return rc;
}

void bp_ops_close(struct bp_ops *o)
{
    if (o == NULL) return;
    bpi_loader_destroy(o->loader);
    bpi_pool_destroy(o->pool);
    bpi_free(o);
}

const struct bp_device *bp_ops_device(const struct bp_ops *o, struct bp_op_ref *out_op)
{
    if (out_op != NULL) *out_op = o->device_op;
    return &o->device;
}

int32_t bp_ops_choose(struct bp_ops *o, const char *slot, const void *problem,
                      struct bp_op_choice *out, struct bp_error *err)
{
    struct bp_op_ref op = {NULL, NULL};
    size_t i = 0;
    BP_TRY(choose(o, slot, problem, &i, &op, err));
    const struct bp_verdict *v = &o->cands[i].verdict;
    *out = (struct bp_op_choice){.h = out->h,
                                 .op = op,
                                 .provider = o->cands[i].provider,
                                 .on_host = o->cands[i].on_host,
                                 .capture = v->capture,
                                 .determinism = v->determinism,
                                 .degraded = v->level == BP_V_DEGRADED};
    return BP_OK;
}

/* ---- block formats ---- */

int32_t bp_block_shape(uint32_t type, const char **out_name, uint32_t *out_elems,
                       uint32_t *out_bytes)
{
    const struct bpi_block_info *info = bpi_block_info(type);
    if (info == NULL) return BP_E_UNSUPPORTED;
    *out_name = info->name;
    *out_elems = info->block_elems;
    *out_bytes = info->block_bytes;
    return BP_OK;
}

int32_t bp_block_encode(uint32_t type, const float *src, uint64_t n_elems, void *dst,
                        struct bp_error *err)
{
    const int32_t rc = bpi_block_encode(type, src, n_elems, NULL, dst);
    if (rc == BP_OK) return BP_OK;
    const struct bpi_block_info *info = bpi_block_info(type);
    return bpi_fail(err, rc, "block", info != NULL ? info->name : "type",
                    "%llu numbers cannot be encoded as type %u", (unsigned long long)n_elems, type);
}
