/* step_site.c - products with fused prologue and epilogue, composed from plain ops where a provider wants it.
 * Composed and fused forms mean the same; which one ran is visible in traces only.
 * SPDX-License-Identifier: MIT */
#include "engine/session_priv.h"
#include <string.h>

enum { CORR_CALL_BITS = 24 }; /* plugin.h says so */

struct bp_launch bpi_step_launch(struct bp_session *s, const struct bpi_bound *op, int32_t layer)
{
    return (struct bp_launch){.h = BP_HDR(struct bp_launch, reserved),
                              .dev = op->on_host ? &s->host : &s->device,
                              .stream = op->on_host ? NULL : s->stream,
                              .persistent = op->persistent,
                              .plan = op->plan,
                              .scratch = op->on_host ? s->host_scratch : s->scratch,
                              .pinned = op->pinned,
                              .scratch_bytes = s->scratch_bytes,
                              .epoch = s->epoch,
                              .corr = (s->epoch << CORR_CALL_BITS) + ++s->step.n_call,
                              .capturing = s->capturing,
                              .layer = layer};
}

int32_t bpi_dense_rms(struct bp_session *s, struct bpi_bound *const *dense, int32_t layer,
                      const struct bp_tensor *x, const float *w, const struct bp_tensor *y,
                      struct bp_error *err)
{
    const struct bpi_bound *op = dense[BP_DENSE_OP_RMS];
    struct bp_launch l = bpi_step_launch(s, op, layer);
    struct bp_dense_rms_args a = {.h = BP_HDR(struct bp_dense_rms_args, reserved),
                                  .x = *x,
                                  .w = bpi_t1((void *)(uintptr_t)w, BP_DT_F32, x->dim[1]),
                                  .y = *y,
                                  .eps = s->hp->rms_eps};
    return BPI_OP(s, op, bp_dense_ops, rms, BP_DENSE_OP_RMS, &l, &a);
}

static int32_t matmul(struct bp_session *s, const struct bpi_site *site, uint32_t first, uint32_t n,
                      int32_t layer, const struct bp_tensor *x, const float *norm_w,
                      const struct bp_tensor *y, const struct bp_tensor *residual,
                      uint32_t prologue, uint32_t epilogue, struct bp_error *err)
{
    const struct bpi_bound *op = site->op[first];
    struct bp_launch l = bpi_step_launch(s, op, layer);
    struct bp_matmul_out outs[BPI_SITE_MAX_W];
    for (uint32_t i = 0; i < n; ++i) {
        outs[i] = (struct bp_matmul_out){.weight = site->weight[first + i], .y = y[first + i]};
    }
    struct bp_quant_matmul_args a = {.h = BP_HDR(struct bp_quant_matmul_args, reserved),
                                     .x = *x,
                                     .outs = outs,
                                     .n_out = n,
                                     .out_stride = sizeof(outs[0]),
                                     .prologue = prologue,
                                     .epilogue = epilogue,
                                     .eps = s->hp->rms_eps};
    if (prologue == BP_PROLOGUE_RMS)
        a.norm_w = bpi_t1((void *)(uintptr_t)norm_w, BP_DT_F32, site->cols);
    if (epilogue == BP_EPILOGUE_ADD) a.residual = *residual;
    return BPI_OP(s, op, bp_quant_ops, matmul, BP_QUANT_OP_MATMUL, &l, &a);
}

/* y = a op b with dense.add or dense.silu_mul. */
static int32_t pair(struct bp_session *s, struct bpi_bound *const *dense, uint32_t which,
                    int32_t layer, const struct bp_tensor *a, const struct bp_tensor *b,
                    const struct bp_tensor *y, struct bp_error *err)
{
    const struct bpi_bound *op = dense[which];
    struct bp_launch l = bpi_step_launch(s, op, layer);
    struct bp_dense_pair_args args = {
        .h = BP_HDR(struct bp_dense_pair_args, y), .a = *a, .b = *b, .y = *y};
    return which == BP_DENSE_OP_ADD ? BPI_OP(s, op, bp_dense_ops, add, which, &l, &args)
                                    : BPI_OP(s, op, bp_dense_ops, silu_mul, which, &l, &args);
}

int32_t bpi_site_run(struct bp_session *s, const struct bpi_site *site,
                     struct bpi_bound *const *dense, int32_t layer, const struct bp_tensor *x,
                     const float *norm_w, struct bp_tensor *y, const struct bp_tensor *residual,
                     struct bp_error *err)
{
    if (x->dim[0] == 0) return BP_OK;
    if (site->one_call) {
        return matmul(s, site, 0, site->n_w, layer, x, norm_w, y, residual, site->prologue,
                      site->epilogue, err);
    }
    struct bp_tensor in = *x;
    if (site->prologue == BP_PROLOGUE_RMS) {
        struct bpi_bound *const exact[BPI_N_DENSE] = {
            [BP_DENSE_OP_RMS] = layer < 0 ? s->rms_f32 : s->layers[layer].rms_f32};
        in = site->exact ? bpi_t2(s->x_add, BP_DT_F32, x->dim[0], site->cols)
                         : bpi_t2(s->h, s->act, x->dim[0], site->cols);
        BP_TRY(bpi_dense_rms(s, site->exact ? exact : dense, layer, x, norm_w, &in, err));
    }
    struct bp_tensor outs[BPI_SITE_MAX_W];
    memcpy(outs, y, site->n_w * sizeof(*y));
    if (site->epilogue ==
        BP_EPILOGUE_ADD) { /* through a buffer: residual and y are often the same tensor */
        outs[0] = bpi_t2(s->x_add, outs[0].dtype, x->dim[0], site->rows[0]);
    } else if (site->epilogue == BP_EPILOGUE_SILU_MUL) {
        outs[1] = bpi_t2(s->ff2, s->act, x->dim[0], site->rows[1]);
    }
    if (site->multi) {
        BP_TRY(matmul(s, site, 0, site->n_w, layer, &in, NULL, outs, NULL, 0, 0, err));
    } else {
        for (uint32_t i = 0; i < site->n_w; ++i)
            BP_TRY(matmul(s, site, i, 1, layer, &in, NULL, outs, NULL, 0, 0, err));
    }
    if (site->epilogue == BP_EPILOGUE_ADD) {
        return pair(s, dense, BP_DENSE_OP_ADD, layer, residual, &outs[0], &y[0], err);
    }
    if (site->epilogue == BP_EPILOGUE_SILU_MUL) {
        return pair(s, dense, BP_DENSE_OP_SILU_MUL, layer, &outs[0], &outs[1], &y[0], err);
    }
    return BP_OK;
}
