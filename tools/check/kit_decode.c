/* kit_decode.c - what a weight is: the reference backend's dequantize, for the oracle of stage 6.
 * Threads: pure. SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>

#include "backplane/slot_quant.h"
#include "backplane/tools.h"
#include "cases/bp_oracle.h"
#include "kit_host.h"

static int32_t decode(const struct bp_quant_ops *vt, void *self, const struct bp_raw *raw,
                      float *out)
{
    const struct bp_quant_shape shape = {raw->type, 0, 1, raw->ne[0]};
    const struct bp_quant_problem p = {.h = BP_HDR(struct bp_quant_problem, epilogue),
                                       .op = BP_QUANT_OP_DEQUANTIZE,
                                       .n_w = 1,
                                       .w_stride = sizeof shape,
                                       .max_tok = 1,
                                       .w = &shape,
                                       .x_dtype = BP_DT_F32,
                                       .y_dtype = BP_DT_F32};
    struct bp_workspace ws = {.h = BP_HDR(struct bp_workspace, persistent_zeroed)};
    struct bp_launch l = {.h = BP_HDR(struct bp_launch, reserved), .layer = -1};
    struct bp_quant_dequantize_args a = {.h = BP_HDR(struct bp_quant_dequantize_args, y)};
    void *scratch = NULL;
    BP_TRY(vt->base.workspace(self, &p, &ws, NULL));
    if (ws.scratch_bytes != 0) {
        scratch = aligned_alloc(4096, (ws.scratch_bytes + 4095) / 4096 * 4096);
        if (scratch == NULL) return BP_E_NOMEM;
    }
    l.scratch = scratch;
    l.scratch_bytes = ws.scratch_bytes;
    int32_t rc = vt->prepare(self, raw, &a.weight, NULL, NULL);
    if (rc == BP_OK) {
        a.y = (struct bp_tensor){.data = out,
                                 .dtype = BP_DT_F32,
                                 .ndim = 2,
                                 .dim = {1, raw->ne[0]},
                                 .stride = {raw->ne[0], 1}};
        rc = vt->dequantize(self, &l, &a, NULL);
        vt->release(self, a.weight);
    }
    free(scratch);
    return rc;
}

int32_t bp_oracle_decode(uint32_t type, const void *bytes, uint64_t n, float *out)
{
    const struct bp_query q = {.h = BP_HDR(struct bp_query, engine_version),
                               .host_major = BP_ABI_MAJOR,
                               .host_minor = BP_ABI_MINOR,
                               .host_min_plugin_minor = BP_ABI_MINOR};
    const struct bp_plugin_desc *d = bp_reference_query()(&q);
    const struct bp_op_entry entry = {"bp.quant", "ref", BP_ABI_MAJOR, BP_ABI_MINOR, 0, 0};
    const struct bp_oracle_type *t = bp_oracle_type(type);
    struct bp_op_ref op = {NULL, NULL};
    struct kit_host host;
    void *plugin = NULL;
    if (n == 0) return BP_OK;
    if (d == NULL || t == NULL || n > INT64_MAX) return BP_E_UNSUPPORTED;
    kit_host_init(&host, NULL, 0);
    host.serial = true;
    const int64_t cols = (int64_t)n;
    const struct bp_raw raw = {.h = BP_HDR(struct bp_raw, reserved),
                               .data = bytes,
                               .n_bytes = n / t->block_elems * t->block_bytes,
                               .type = type,
                               .n_dim = 2,
                               .ne = {cols, 1, 1, 1},
                               .end = {cols, 1, 1, 1},
                               .name = "oracle",
                               .scale = 1.0f};
    int32_t rc = d->open(&host.table, &plugin, NULL);
    if (rc == BP_OK) {
        rc = d->op_create(plugin, &entry, NULL, NULL, 0, &op, NULL);
        if (rc == BP_OK) {
            rc = decode((const struct bp_quant_ops *)(const void *)op.vt, op.self, &raw, out);
            d->op_destroy(plugin, &op);
        }
        d->close(plugin);
    }
    kit_host_done(&host);
    return rc;
}
