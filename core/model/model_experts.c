/* model_experts.c - numbers of the mixture of experts: counts, widths, routing.
 * A key that is absent takes the format's documented default, and the report says so with the reason, because a silent
 * wrong default here gives text that almost makes sense.
 * Sources: llama.cpp src/models/deepseek2.cpp and glm-dsa.cpp (defaults), Hugging Face deepseek_v2 and deepseek_v3 (group
 * score); see docs/internals/model.md. SPDX-License-Identifier: MIT */
#include "model/model_priv.h"

static int32_t derive_counts(struct bpi_model *m, struct bp_error *err)
{
    struct bpi_hparams *hp = &m->hp;
    uint32_t first = hp->n_dense;
    const struct bpi_gguf_tensor *router = bpi_model_tensor(m, BPI_W_ROUTER, first);
    const struct bpi_gguf_tensor *gate = bpi_model_tensor(m, BPI_W_EXP_GATE, first);
    const struct bpi_gguf_tensor *fused = bpi_model_tensor(m, BPI_W_EXP_GATE_UP, first);
    const struct bpi_gguf_tensor *width = gate != NULL ? gate : fused;
    char name[128];
    hp->n_expert = (uint32_t)router->ne[1];
    BP_TRY(bpi_model_limit(router->name, "experts", hp->n_expert, BPI_MODEL_MAX_EXPERTS, err));
    BP_TRY(bpi_model_expect(m, BPI_K_EXPERTS, hp->n_expert, router, "experts", err));
    if (gate == NULL && fused->ne[1] % 2 != 0)
        return bpi_fail(
            err, BP_E_FORMAT, "model", fused->name,
            "tensor %s has %lld rows; an even number was expected, half for gate and half for up",
            fused->name, (long long)fused->ne[1]);
    hp->n_ff_exp = (uint32_t)(gate != NULL ? gate->ne[1] : fused->ne[1] / 2);
    BP_TRY(bpi_model_expect(m, BPI_K_EXPERT_FF, hp->n_ff_exp, width, "width of an expert", err));

    BP_TRY(bpi_model_require(m, BPI_K_EXPERTS_USED, "a model with experts", err));
    hp->n_expert_used = m->key[BPI_K_EXPERTS_USED].u;
    bpi_model_key_name(m, BPI_K_EXPERTS_USED, name, sizeof name);
    if (hp->n_expert_used == 0 || hp->n_expert_used > hp->n_expert)
        return bpi_fail(err, BP_E_FORMAT, "model", name,
                        "key %s is %u; between 1 and %u experts (tensor %s) was expected", name,
                        hp->n_expert_used, hp->n_expert, router->name);
    return BP_OK;
}

static int32_t derive_shared(struct bpi_model *m, struct bp_error *err)
{
    struct bpi_hparams *hp = &m->hp;
    const struct bpi_key_value *key = &m->key[BPI_K_EXPERTS_SHARED];
    if (!m->has_shared) {
        if (!key->found)
            bpi_model_note_key(m, BPI_REPORT_ASSUMED, BPI_K_EXPERTS_SHARED,
                               "absent: 0, because the file has no ffn_gate_shexp.weight");
        return BP_OK;
    }
    const struct bpi_gguf_tensor *gate = bpi_model_tensor(m, BPI_W_SHARED_GATE, hp->n_dense);
    hp->n_ff_shared = (uint32_t)gate->ne[1];
    if (hp->n_ff_shared % hp->n_ff_exp == 0)
        return bpi_model_expect(m, BPI_K_EXPERTS_SHARED, hp->n_ff_shared / hp->n_ff_exp, gate,
                                "its width over that of an expert", err);
    char dims[96];
    bpi_dims_text(gate, dims, sizeof dims);
    return bpi_fail(err, BP_E_FORMAT, "model", gate->name,
                    "tensor %s is %s; as many rows as whole experts of width %u have was expected",
                    gate->name, dims, hp->n_ff_exp);
}

static int32_t derive_gating(struct bpi_model *m, bool any_bias, struct bp_error *err)
{
    struct bpi_hparams *hp = &m->hp;
    const struct bpi_key_value *key = &m->key[BPI_K_GATING];
    char name[128];
    bpi_model_key_name(m, BPI_K_GATING, name, sizeof name);
    hp->gating = key->found ? key->u : 0;
    if (hp->gating == BP_GATING_SOFTMAX || hp->gating == BP_GATING_SIGMOID) return BP_OK;
    if (hp->gating != 0)
        return bpi_fail(err, BP_E_UNSUPPORTED, "model", name,
                        "key %s is %u; 1 (softmax) and 2 (sigmoid) are supported", name,
                        hp->gating);
    const char *why = m->arch->gating_why;
    hp->gating = m->arch->gating;
    if (hp->arch == BPI_ARCH_DEEPSEEK2 && bpi_arch_is_glm_flash(hp->n_layer, hp->n_vocab)) {
        hp->gating = BP_GATING_SIGMOID;
        why = "the shape is GLM-4.7-Flash's (47 or 48 layers, vocabulary of 154880)";
    }
    bpi_model_note_key(m, BPI_REPORT_ASSUMED, BPI_K_GATING, "%s: %s, %s%s",
                       key->found ? "0" : "absent",
                       hp->gating == BP_GATING_SIGMOID ? "sigmoid" : "softmax", why,
                       hp->gating == BP_GATING_SOFTMAX && any_bias
                           ? "; but the file has a selection bias (exp_probs_b.bias), which models "
                             "with sigmoid have: "
                             "if the text is poor, convert the model again"
                           : "");
    return BP_OK;
}

static void derive_weights(struct bpi_model *m)
{
    struct bpi_hparams *hp = &m->hp;
    const struct bpi_key_value *scale = &m->key[BPI_K_EXPERT_SCALE];
    hp->expert_scale = scale->found && scale->f != 0 ? scale->f : 1.0f;
    if (!scale->found || scale->f == 0)
        bpi_model_note_key(m, BPI_REPORT_ASSUMED, BPI_K_EXPERT_SCALE,
                           "%s: 1, expert weights are not scaled", scale->found ? "0" : "absent");
    hp->expert_norm = m->key[BPI_K_EXPERT_NORM].b;
    if (!m->key[BPI_K_EXPERT_NORM].found)
        bpi_model_note_key(
            m, BPI_REPORT_ASSUMED, BPI_K_EXPERT_NORM,
            "absent: false, the format's default; weights of chosen experts are not normalised");
}

static int32_t derive_groups(struct bpi_model *m, struct bp_error *err)
{
    struct bpi_hparams *hp = &m->hp;
    const struct bpi_key_value *n = &m->key[BPI_K_GROUPS], *used = &m->key[BPI_K_GROUPS_USED];
    char name[128], used_name[128];
    bpi_model_key_name(m, BPI_K_GROUPS, name, sizeof name);
    bpi_model_key_name(m, BPI_K_GROUPS_USED, used_name, sizeof used_name);
    hp->n_group = hp->n_group_used = 1;
    if (!n->found || n->u == 0) {
        bool v3 = hp->n_expert == 256 && hp->n_layer == 61 && hp->n_embd == 7168;
        bpi_model_note_key(m, BPI_REPORT_ASSUMED, BPI_K_GROUPS,
                           "%s: 1 group, the choice is among all %u experts%s",
                           n->found ? "0" : "absent", hp->n_expert,
                           v3 ? "; DeepSeek-V3 and R1 were trained with 8 groups of which 4 stay, "
                                "older files lack that"
                              : "");
        return BP_OK;
    }
    if (n->u == 1) return BP_OK;
    if (n->u > hp->n_expert || hp->n_expert % n->u != 0)
        return bpi_fail(err, BP_E_FORMAT, "model", name,
                        "key %s is %u, which does not divide the %u experts (tensor %s)", name,
                        n->u, hp->n_expert, bpi_model_tensor(m, BPI_W_ROUTER, hp->n_dense)->name);
    BP_TRY(bpi_model_require(m, BPI_K_GROUPS_USED, "a model with expert groups", err));
    if (used->u == 0 || used->u > n->u)
        return bpi_fail(err, BP_E_FORMAT, "model", used_name,
                        "key %s is %u; between 1 and %u groups was expected", used_name, used->u,
                        n->u);
    if ((uint64_t)used->u * (hp->n_expert / n->u) < hp->n_expert_used)
        return bpi_fail(
            err, BP_E_FORMAT, "model", used_name,
            "key %s is %u: %u groups of %u experts are fewer than the %u experts chosen per token",
            used_name, used->u, used->u, hp->n_expert / n->u, hp->n_expert_used);
    hp->n_group = n->u;
    hp->n_group_used = used->u;
    return BP_OK;
}

int32_t bpi_model_derive_experts(struct bpi_model *m, struct bp_error *err)
{
    struct bpi_hparams *hp = &m->hp;
    hp->n_group = hp->n_group_used = 1;
    hp->expert_scale = 1.0f;
    hp->gating = m->arch->gating;
    if (hp->n_dense == hp->n_layer) {
        if (!m->key[BPI_K_EXPERTS].found || m->key[BPI_K_EXPERTS].u == 0) return BP_OK;
        bpi_model_note_key(m, BPI_REPORT_NOTE, BPI_K_EXPERTS, "%u, but every layer is dense",
                           m->key[BPI_K_EXPERTS].u);
        return BP_OK;
    }
    BP_TRY(derive_counts(m, err));
    BP_TRY(derive_shared(m, err));
    uint32_t n_bias = 0, n_moe = hp->n_layer - hp->n_dense, without = 0;
    for (uint32_t i = hp->n_dense; i < hp->n_layer; ++i) {
        bool bias = bpi_model_tensor(m, BPI_W_ROUTER_BIAS, i) != NULL;
        if (!bias) without = i;
        n_bias += bias;
    }
    if (n_bias > 0 && n_bias < n_moe)
        bpi_model_note(m, BPI_REPORT_MISSING, "exp_probs_b.bias",
                       "absent in %u of %u layers (blk.%u the last of them); taken as zeros there",
                       n_moe - n_bias, n_moe, without);
    BP_TRY(derive_gating(m, n_bias > 0, err));
    if (n_bias == 0 && hp->gating == BP_GATING_SIGMOID)
        bpi_model_note(m, BPI_REPORT_MISSING, "exp_probs_b.bias",
                       "absent in every layer: experts are chosen by their plain scores");
    /* DeepSeek-V2 (softmax, no bias) scores a group by its best expert, V3 and later by the sum of the two best. */
    hp->group_score = hp->gating == BP_GATING_SOFTMAX && n_bias == 0 ? BP_GROUP_MAX : BP_GROUP_TOP2;
    derive_weights(m);
    return derive_groups(m, err);
}
