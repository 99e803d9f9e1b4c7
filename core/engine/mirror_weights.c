/* mirror_weights.c - the weights of a mirror: got when a call wants them, given back when the calls go on to another layer,
 * so that two models fit where one and a layer do. A mirror on a device keeps as many as half of its free memory takes,
 * because uploading a model for each token would cost more than all the rest.
 * Not here: handles, and which of them are lent (session_weights.c). Threads: the session's.
 * SPDX-License-Identifier: MIT */
#include "engine/mirror_priv.h"
#include <string.h>

int32_t bpi_mirror_budget(struct bp_session *b, struct bp_error *err)
{
    uint64_t free_bytes = 0, all = 0;
    if (b->lender == NULL || b->device.kind == BP_DEV_HOST) return BP_OK;
    BP_TRY(BPI_RUN(b->device_op, -1, bp_device_ops, mem_info, &free_bytes, &all));
    b->keep_bytes = free_bytes / 2;
    return BP_OK;
}

static void enter(struct bp_session *b, int32_t layer)
{
    if (b->streamed != layer && b->held_bytes > b->keep_bytes) bpi_weights_release(b, b->streamed);
    b->streamed = layer;
}

static int32_t want_products(const struct bp_session *a, struct bp_session *b,
                             const struct bpi_call *c, struct bp_error *err)
{
    const struct bp_quant_matmul_args *m = c->args;
    uint32_t first = 0;
    struct bpi_site *site = (struct bpi_site *)(uintptr_t)bpi_call_site(a, b, c, &first);
    for (uint32_t i = first; site != NULL && i < site->n_w && i - first < m->n_out; ++i)
        BP_TRY(bpi_weight_of_site(b, site, i, c->layer, err));
    return BP_OK;
}

int32_t bpi_mirror_weights(const struct bp_session *a, struct bp_session *b,
                           const struct bpi_call *c, struct bp_error *err)
{
    const bool common = strcmp(c->slot, "mla.common") == 0;
    if (b->lender == NULL) return BP_OK;
    enter(b, c->layer);
    if (strcmp(c->slot, "quant") == 0) return want_products(a, b, c, err);
    if (strcmp(c->slot, "dense") == 0 && c->number == BP_DENSE_OP_EMBED)
        return bpi_weight_of_embed(b, err);
    if (common && (c->number == BP_MLA_OP_EXPAND || c->number == BP_MLA_OP_ABSORB))
        return bpi_weight_of_mla(b, (uint32_t)c->layer, err);
    if (strcmp(c->slot, "moe") == 0 && c->number == BP_MOE_OP_RUN)
        return bpi_weight_of_moe(b, (uint32_t)c->layer, err);
    return BP_OK;
}
