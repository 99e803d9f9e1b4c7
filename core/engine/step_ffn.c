/* step_ffn.c - feed-forward of one layer: SwiGLU, or routed experts with the shared expert.
 * SPDX-License-Identifier: MIT */
#include "engine/session_priv.h"

static int32_t dense_ffn(struct bp_session *s, uint32_t il, struct bp_error *err)
{
    struct bpi_layer *l = &s->layers[il];
    int64_t n = s->step.n_tok;
    struct bp_tensor x = bpi_t2(s->x, BP_DT_F32, n, s->hp->n_embd);
    struct bp_tensor ff[2] = {bpi_t2(s->ff, s->act, n, s->hp->n_ff),
                              bpi_t2(s->ff2, s->act, n, s->hp->n_ff)};
    BP_TRY(bpi_site_run(s, &l->gate_up, l->dense, (int32_t)il, &x, l->ffn_norm, ff, NULL, err));
    BP_TRY(bpi_tap_emit(s, BPI_TAP_FFN_ACT, (int32_t)il, &ff[0], err));
    return bpi_site_run(s, &l->down, l->dense, (int32_t)il, &ff[0], NULL, &x, &x, err);
}

static int32_t moe_ffn(struct bp_session *s, uint32_t il, struct bp_error *err)
{
    struct bpi_layer *l = &s->layers[il];
    const struct bpi_hparams *hp = s->hp;
    int32_t layer = (int32_t)il;
    const int64_t n = s->step.n_tok, k = hp->n_expert_used;
    struct bp_tensor x = bpi_t2(s->x, BP_DT_F32, n, hp->n_embd),
                     h = bpi_t2(s->h, s->act, n, hp->n_embd);
    struct bp_tensor logits = bpi_t2(s->router, BP_DT_F32, n, hp->n_expert);
    BP_TRY(bpi_dense_rms(s, l->dense, layer, &x, l->ffn_norm, &h, err));
    BP_TRY(bpi_tap_emit(s, BPI_TAP_FFN_NORM, layer, &h, err));
    BP_TRY(bpi_site_run(s, &l->router, l->dense, layer, &h, NULL, &logits, NULL, err));
    bpi_step_guard(s, &logits);
    BP_TRY(bpi_tap_emit(s, BPI_TAP_ROUTER, layer, &logits, err));

    struct bp_launch launch = bpi_step_launch(s, l->moe, layer);
    struct bp_moe_route_args r = {.h = BP_HDR(struct bp_moe_route_args, scale),
                                  .logits = logits,
                                  .ids = bpi_t2(s->moe_ids, BP_DT_I32, n, k),
                                  .weights =
                                      bpi_t2(s->moe_w + l->moe_number * (n * k), BP_DT_F32, n, k),
                                  .gating = hp->gating,
                                  .group_score = hp->group_score,
                                  .n_group = hp->n_group,
                                  .n_group_used = hp->n_group_used,
                                  .normalize = hp->expert_norm,
                                  .scale = hp->expert_scale};
    if (l->router_bias != NULL) {
        r.bias = bpi_t1((void *)(uintptr_t)l->router_bias, BP_DT_F32, hp->n_expert);
    }
    BP_TRY(BPI_OP(s, l->moe, bp_moe_ops, route, BP_MOE_OP_ROUTE, &launch, &r));
    BP_TRY(bpi_tap_emit(s, BPI_TAP_MOE_IDS, layer, &r.ids, err));
    BP_TRY(bpi_tap_emit(s, BPI_TAP_MOE_WEIGHTS, layer, &r.weights, err));

    struct bp_moe_run_args a = {.h = BP_HDR(struct bp_moe_run_args, reserved),
                                .weights = l->experts,
                                .x = h,
                                .ids = r.ids,
                                .gates = r.weights,
                                .y = x,
                                .accumulate = 1};
    launch = bpi_step_launch(s, l->moe, layer);
    return BPI_OP(s, l->moe, bp_moe_ops, run, BP_MOE_OP_RUN, &launch, &a);
}

int32_t bpi_step_ffn(struct bp_session *s, uint32_t il, struct bp_error *err)
{
    BP_TRY(s->layers[il].dense_ffn ? dense_ffn(s, il, err) : moe_ffn(s, il, err));
    struct bp_tensor x = bpi_t2(s->x, BP_DT_F32, s->step.n_tok, s->hp->n_embd);
    return bpi_tap_emit(s, BPI_TAP_OUT, (int32_t)il, &x, err);
}
