"""faults.py - the faults that copies of the reference backend are built with, one edit each.

Each is a mistake that a real backend can make, or has made. What it needs to show: a model of the zoo, a way to compute
it (`whole` prompt in one step, in a `chunk` of 16 tokens a step, or `step` by step in the decode form), and for some the
type to quantize the model to, tensors that are set to zero first, a wrapper, or a batch. Where it shows: in one op of one
slot.

A text that is searched for is as long as it must be to stand in its file once.
SPDX-License-Identifier: MIT
"""
from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    name: str
    file: str  # in core/
    old: str
    new: str
    slot: str
    op: str
    model: str
    how: str = "whole"
    layers: str = "all"  # or moe, dense (feed-forward), index (that has its own)
    quant: str = ""
    zero: str = ""  # end of the names of tensors that are set to zero
    wrap: str = ""  # around the slot, with ref as well
    batch: int = 1  # sequences in a step that it takes to show; verify and shadow mode have one
    tie: bool = False  # what it chooses differently is tied exactly: reported, and no failure


ATTEND = "p->scores[i][s] *= (double)a->scale;"
FAULTS = (
    # ---- attention over the latent cache: mla.decode ----
    # The scale is inferred from the width of the absorbed query instead of taken as it is passed.
    Fault("softmax_scale", "ref/ref_mla_decode.c", ATTEND,
          "p->scores[i][s] *= 1.0 / __builtin_sqrt((double)j->width);", "mla.decode", "run", "v3", "step"),
    Fault("last_page", "ref/ref_mla_decode.c", ".n = m->row_kv_len_host[row], ",
          ".n = m->row_kv_len_host[row] / m->common->block_tok * m->common->block_tok, ",
          "mla.decode", "run", "v2-group", "step"),
    # The second block of a sequence is looked up one entry early.
    Fault("block_table", "ref/ref_mla_layout.c", "at / m->block_tok];",
          "at / m->block_tok - (at / m->block_tok == 1)];", "mla.decode", "run", "glm47flash", "step"),
    # Every row of a batch reads the last row's block table.
    Fault("batch_table", "ref/ref_mla_decode.c", ".seq = m->row_seq_host[row]}",
          ".seq = m->row_seq_host[m->n_row - 1]}", "mla.decode", "run", "v3", "step", batch=3),
    # Row 1 reads the list of row 0.
    Fault("batch_neighbour", "ref/ref_mla_decode.c", "k.list = bpi_ref_at(&a->idx, row, 0, 0);",
          "k.list = bpi_ref_at(&a->idx, row - (row == 1), 0, 0);", "mla.decode", "run", "glm5", "chunk"),
    # What a masked row holds is multiplied by zero instead of left alone.
    Fault("padded_nan", "ref/ref_mla_decode.c", "a->q.dtype, j->width, j->ref->round);",
          "a->q.dtype, j->width, j->ref->round);\n"
          "        p->q[i * j->width] +=\n"
          "            0.0 * (double)*(const float *)bpi_ref_at(&a->q, a->meta->n_row_padded - 1, head + i, 0);",
          "mla.decode", "run", "v2lite", "step", wrap="pads"),
    # ---- attention in the multi-head form: mla.prefill ----
    Fault("causal_mask", "ref/ref_mla_prefill.c", "n_k - n_q + at + 1 : n_k;", "n_k - n_q + at : n_k;",
          "mla.prefill", "run", "v2lite"),
    # Slabs of context are given out with log-sum-exps of base 2.
    Fault("context_lse", "ref/ref_mla_prefill.c", "head, 0) = (float)lse;",
          "head, 0) = (float)(j->causal ? lse : lse * 1.4426950408889634);",
          "mla.prefill", "run_context", "v3", "chunk"),
    # ---- what attention backends share: mla.common ----
    Fault("merge_base", "ref/ref_mla_common.c", "wa = exp(la - max), wb = exp(lb - max);",
          "wa = exp2(la - max), wb = exp2(lb - max);", "mla.common", "merge", "v3", "chunk"),
    # All but the first chunk of a prompt are rotated for the position behind their own.
    Fault("chunk_position", "ref/ref_mla_common.c",
          "const float *cosines = bpi_ref_at(&m->rope_cos, m->positions_host[t], 0, 0);\n"
          "    const float *sines = bpi_ref_at(&m->rope_sin, m->positions_host[t], 0, 0);",
          "const int64_t position = m->positions_host[t] + (m->positions_host[0] > 0);\n"
          "    const float *cosines = bpi_ref_at(&m->rope_cos, position, 0, 0);\n"
          "    const float *sines = bpi_ref_at(&m->rope_sin, position, 0, 0);",
          "mla.common", "cache_write", "v32", "chunk"),
    # The mean of the latents' squares is divided by the width of the whole row.
    Fault("latent_norm", "ref/ref_mla_common.c", "bpi_ref_dot_ff(x, x, n_latent) / (double)n_latent;",
          "bpi_ref_dot_ff(x, x, n_latent) / (double)width;", "mla.common", "cache_write", "v2lite"),
    Fault("gather_rope", "ref/ref_mla_common.c", "copy_row(row + latent_bytes,", "copy_row(row + 0 * latent_bytes,",
          "mla.common", "cache_gather", "v2-group"),
    # k_b is taken as it lies in the file, which is transposed.
    Fault("k_b_transposed", "ref/ref_mla_weights.c", "dst[p * n_latent + c0 + c] = tile",
          "dst[(c0 + c) * n_row + p] = tile", "mla.common", "expand", "glm47flash"),
    # Heads of v_b are counted with the size of a head of k_b.
    Fault("v_b_stride", "ref/ref_mla_weights.c", "h * s->v.head_elems", "h * s->k.head_elems",
          "mla.common", "expand", "v3"),
    # Outputs are brought out of latent space with the key rows.
    Fault("absorb_rows", "ref/ref_mla_weights.c", "weight_rows(w, h, w->nope_dim, w->nope_dim + w->v_dim, p.rows);",
          "weight_rows(w, h, 0, w->v_dim, p.rows);", "mla.common", "absorb", "v2lite", "step"),
    # ---- the sparse index: mla.index ----
    Fault("rope_sign", "ref/ref_mla_index.c", "c = cosines[i], s = sines[i];", "c = cosines[i], s = -sines[i];",
          "mla.index", "key_write", "glm5", layers="index"),
    Fault("index_relu", "ref/ref_mla_index.c", "(dot < 0.0 ? 0.0 : dot);", "dot;", "mla.index", "select", "v32",
          layers="index"),
    # One key too few is chosen.
    Fault("top_k", "ref/ref_mla_index.c", "at < n && kept < top_k; ++at)", "at < n && kept < top_k - 1; ++at)",
          "mla.index", "select", "glm52-shared", layers="index"),
    # Of equal scores the highest positions stay. (The index sees nothing, so that all scores are 0.)
    Fault("index_ties", "ref/ref_mla_index.c", "p->ranks[at + s] = rank_of(sum);",
          "p->ranks[at + s] = rank_of(sum + 1e-30 * (double)(at + s));", "mla.index", "select", "glm5", layers="index",
          zero="indexer.attn_q_b.weight", tie=True),
    # ---- experts: moe ----
    Fault("router_bias", "ref/ref_moe_route.c", "weight = ids[k] >= 0 ? w->p[ids[k]] : 0.0;",
          "weight = ids[k] >= 0 ? w->sel[ids[k]] : 0.0;", "moe", "route", "v3", layers="moe"),
    Fault("router_norm", "ref/ref_moe_route.c", "if (j->a->normalize != 0) weight", "if (j->a->normalize > 1) weight",
          "moe", "route", "glm47flash", layers="moe"),
    Fault("router_scale", "ref/ref_moe_route.c", "(float)(weight * (double)j->a->scale);",
          "(float)(weight * (double)j->a->scale * (double)j->a->scale);", "moe", "route", "v2-group", layers="moe"),
    # Groups are judged by their best expert where the sum of the two best is asked for.
    Fault("router_group", "ref/ref_moe_route.c", "best : best + second;", "best : best + 0.0 * second;",
          "moe", "route", "v32", layers="moe"),
    Fault("shared_expert", "ref/ref_moe_run.c", "if (j->m->shared_down.planes > 0) {",
          "if (j->m->shared_down.planes > 1) {", "moe", "run", "glm5", layers="moe"),
    Fault("silu_of_up", "ref/ref_moe_run.c", "bpi_ref_silu(a) * b,", "bpi_ref_silu(b) * a,", "moe", "run", "v2lite",
          layers="moe"),
    # The second token of a batch is computed from the first one's input.
    Fault("token_neighbour", "ref/ref_moe_run.c", "j->s.pair_tok[pair] = (int32_t)t;",
          "j->s.pair_tok[pair] = (int32_t)(t - (t == 1));", "moe", "run", "glm52-shared", layers="moe"),
    Fault("nibble_order", "block/block_q.c",
          "dst[j] = d * (float)((qs[j] & 15) - 8);\n"
          "        for (int j = 0; j < HALF; ++j) dst[j + HALF] = d * (float)((qs[j] >> 4) - 8);",
          "dst[j] = d * (float)((qs[j] >> 4) - 8);\n"
          "        for (int j = 0; j < HALF; ++j) dst[j + HALF] = d * (float)((qs[j] & 15) - 8);",
          "moe", "run", "v3", layers="moe", quant="Q4_0"),
    # ---- products with weights: quant ----
    # The half scale of a block is read as bfloat16.
    Fault("q8_scale", "block/block_q.c", "const float d = load_f16(src);\n        signed char q[ELEMS];",
          "const float d = bpi_bf16_to_f32(load_u16(src));\n        signed char q[ELEMS];",
          "quant", "matmul", "glm47flash", quant="Q8_0"),
    Fault("silu_missing", "ref/ref_quant.c", "y[r] = bpi_ref_silu(gate) * ", "y[r] = gate * ", "quant", "matmul", "v3",
          layers="dense"),
    # Every token gets the residual of the first one of its step.
    Fault("residual_row", "ref/ref_quant.c", "bpi_ref_at(&a->residual, t, row, 0)",
          "bpi_ref_at(&a->residual, 0 * t, row, 0)", "quant", "matmul", "v2-group"),
    # ---- dense ----
    Fault("rope_pairing", "ref/ref_dense_row.c", "if (a->style == BP_ROPE_HALF) {", "if (a->style != BP_ROPE_HALF) {",
          "dense", "rope", "v3"),
    Fault("rms_weight", "ref/ref_product.c", "* inv * (double)w[i];", "* inv * (1.0 + (double)w[i]);",
          "dense", "rms", "v2lite", layers="moe"),
)


@dataclass(frozen=True)
class KitFault:
    """A fault that no model of the zoo, computed by one rank with the engine's own choices, would show: backplane-check has
    to find it. breaks: the rule that each interface breaks in stage 6, and some that fall with it."""
    name: str
    file: str  # in core/
    old: str
    new: str
    breaks: dict
    case: str = ""  # of all cases those with this in their titles, where --quick, an eighth of them, does not come to it


KIT_FAULTS = (
    # Every rank takes the first heads of the model.
    KitFault("first_heads", "ref/ref_mla_weights.c",
             "for (uint64_t h = w->head_begin; h < w->head_end; ++h, rows += (p + v) * c) {",
             "for (uint64_t h = 0; h < w->head_end - w->head_begin; ++h, rows += (p + v) * c) {",
             {"bp.mla.common": ("6.5",)}),
    KitFault("scale_ignored", "ref/ref_weight.c", "w->scale = raw->scale;", "w->scale = 1.0f;",
             {"bp.quant": ("6.5", "6.14"), "bp.dense": ("6.14",), "bp.moe": ("6.5",)}),
    # Half of the scales of up-projections are applied: those below one.
    KitFault("scale_of_v", "ref/ref_mla_weights.c", "if (raw->scale != 1.0f) {", "if (raw->scale < 1.0f) {",
             {"bp.mla.common": ("6.5",)}),
    # Keys that a query must not see yet are weighed with zero instead of left alone.
    KitFault("masked_nan", "ref/ref_mla_prefill.c",
             "bpi_ref_mla_soft_step(&soft[i], p->scores[i], p->value_rows, (uint32_t)own);",
             "for (int64_t s = own; s < n_key; ++s) p->scores[i][s] = -__builtin_inf();\n"
             "            bpi_ref_mla_soft_step(&soft[i], p->scores[i], p->value_rows, n_key);",
             {"bp.mla.prefill": ("6.4",)}, case="run with NaN"),
    # The log-sum-exp decides whether anything is written.
    KitFault("prefill_without_lse", "ref/ref_mla_prefill.c", "double lse = bpi_ref_mla_soft_end(&soft[i]);",
             "if (a->lse.data == NULL) continue;\n        double lse = bpi_ref_mla_soft_end(&soft[i]);",
             {"bp.mla.prefill": ("6.9",)}),
    # Outputs are cleared before the inputs are read, which may be the same memory.
    KitFault("rope_in_place", "ref/ref_dense_row.c", "float in[2 * CHUNK], first[CHUNK], second[CHUNK];",
             "float in[2 * CHUNK], first[CHUNK], second[CHUNK];\n"
             "    __builtin_memset(bpi_ref_at(&a->y, r, head, 0), 0, (size_t)a->x.dim[2] * (to == BP_DT_F32 ? 4 : 2));",
             {"bp.dense": ("6.5",)}, case="rope style 0"),
    KitFault("residual_in_place", "ref/ref_quant.c", "float add[BPI_REF_ROW_BLOCK];",
             "float add[BPI_REF_ROW_BLOCK];\n"
             "        __builtin_memset(bpi_ref_at(port, t, row, 0), 0, (size_t)n * (port->dtype == BP_DT_F32 ? 4 : 2));",
             {"bp.quant": ("6.5",)}),
)
