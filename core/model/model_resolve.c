/* model_resolve.c - names to roles: every tensor of the file gets its place or a report line, every needed role is there
 * or the open fails.
 * Not here: shapes (model_shapes.c) and numbers (model_hparams.c). One pass over the tensors, one hash lookup each.
 * SPDX-License-Identifier: MIT */
#include "model/model_priv.h"

#include <stdio.h>
#include <string.h>

/* ---- architecture ---- */

static int32_t find_arch(struct bpi_model *m, struct bp_error *err)
{
    struct bpi_span s = {NULL, 0};
    bool found = false;
    BP_TRY(bpi_gguf_get_str(m->gguf, "general.architecture", &s, &found, err));
    if (!found)
        return bpi_fail(err, BP_E_FORMAT, "model", "general.architecture",
                        "key general.architecture is missing; this is no model file, or only a "
                        "later part of a split one");
    const char *names[BPI_ARCH_COUNT];
    for (uint32_t i = 0; i < BPI_ARCH_COUNT; ++i) {
        names[i] = bpi_arch_specs[i].name;
        if (strlen(names[i]) != s.n || memcmp(names[i], s.data, (size_t)s.n) != 0) continue;
        m->arch = &bpi_arch_specs[i];
        m->hp.arch = i;
        return BP_OK;
    }
    char got[64];
    snprintf(got, sizeof got, "%.*s", (int)(s.n < sizeof got ? s.n : sizeof got - 1), s.data);
    const char *near = bpi_nearest(got, names, BPI_ARCH_COUNT);
    return bpi_fail(
        err, BP_E_UNSUPPORTED, "model", "general.architecture",
        "architecture '%s' is not supported; deepseek2, deepseek32 and glm-dsa are%s%s%s", got,
        near != NULL ? " (nearest: " : "", near != NULL ? near : "", near != NULL ? ")" : "");
}

/* ---- missing tensors ---- */

/* What may have become of a tensor that is absent: the same name behind a prefix, else the unknown name most like it. */
static void hint_for(const struct bpi_model *m, const char *wanted, char *out, size_t cap)
{
    struct bpi_name_index ix;
    uint64_t n = bpi_gguf_n_tensors(m->gguf), n_unknown = 0;
    size_t len = strlen(wanted);
    out[0] = '\0';
    for (uint64_t i = 0; i < n; ++i) {
        const char *name = bpi_gguf_tensor_at(m->gguf, i)->name;
        size_t name_len = strlen(name);
        if (name_len <= len || strcmp(name + name_len - len, wanted) != 0) continue;
        snprintf(out, cap, "; the file has '%s': its names carry the prefix '%.*s'", name,
                 (int)(name_len - len), name);
        return;
    }
    const char **unknown = bpi_calloc(n > 0 ? n : 1, sizeof *unknown);
    if (unknown == NULL) return; /* only the hint is lost */
    bpi_name_index_init(&ix);
    for (uint64_t i = 0; i < n; ++i) {
        const char *name = bpi_gguf_tensor_at(m->gguf, i)->name;
        if (bpi_name_parse(&ix, name).spec == NULL) unknown[n_unknown++] = name;
    }
    const char *near = bpi_nearest(wanted, unknown, (size_t)n_unknown);
    if (near != NULL) snprintf(out, cap, "; the file has '%s', which no table knows", near);
    bpi_free(unknown);
}

static const char *alternative(uint32_t role)
{
    switch (bpi_role_rules[role].when) {
    case BPI_WHEN_KV_JOINT:
    case BPI_WHEN_KV_SPLIT:
        return " (a layer needs attn_kv_b, or attn_k_b and attn_v_b)";
    case BPI_WHEN_EXPERTS_SPLIT:
    case BPI_WHEN_EXPERTS_FUSED:
        return " (a layer needs ffn_gate_exps and ffn_up_exps, or ffn_gate_up_exps)";
    case BPI_WHEN_Q_PLAIN:
    case BPI_WHEN_Q_LORA:
        return " (a model needs attn_q, or attn_q_a, attn_q_a_norm and attn_q_b)";
    default:
        return "";
    }
}

static int32_t fail_missing(const struct bpi_model *m, uint32_t role, uint32_t layer,
                            uint64_t n_missing, struct bp_error *err)
{
    char name[96], hint[256], more[64] = "";
    bpi_name_of(role, layer, name, sizeof name);
    hint_for(m, name, hint, sizeof hint);
    if (n_missing > 1)
        snprintf(more, sizeof more, ", and so are %llu more", (unsigned long long)(n_missing - 1));
    return bpi_fail(err, BP_E_FORMAT, "model", name, "tensor %s [%s] is missing%s%s%s", name,
                    bpi_tensor_specs(NULL)[role].shape, alternative(role), more,
                    hint[0] != '\0' ? hint : "; get the whole file, or convert it again");
}

int32_t bpi_model_check_missing(struct bpi_model *m, bool list, struct bp_error *err)
{
    uint64_t n_missing = 0;
    uint32_t first_role = 0, first_layer = 0;
    for (uint32_t row = 0; row <= m->hp.n_layer; ++row) {
        uint32_t begin = row == 0 ? 0 : BPI_W_OUTPUT + 1,
                 end = row == 0 ? BPI_W_OUTPUT + 1 : BPI_W_COUNT;
        uint32_t layer = row == 0 ? 0 : row - 1;
        for (uint32_t role = begin; role < end; ++role) {
            if (bpi_model_tensor(m, role, layer) != NULL ||
                bpi_model_need(m, role, layer, NULL) != BPI_NEED_YES)
                continue;
            if (n_missing++ == 0) first_role = role, first_layer = layer;
            if (!list) continue;
            char name[96];
            bpi_name_of(role, layer, name, sizeof name);
            bpi_model_note(m, BPI_REPORT_MISSING, name, "required%s", alternative(role));
        }
    }
    if (n_missing == 0 || list) return BP_OK;
    return fail_missing(m, first_role, first_layer, n_missing, err);
}

/* ---- need ---- */

static bool has(const struct bpi_model *m, uint32_t role, uint32_t layer)
{
    return bpi_model_tensor(m, role, layer) != NULL;
}

static uint32_t when(bool needed, const char *reason, const char **why)
{
    *why = reason;
    return needed ? BPI_NEED_YES : BPI_NEED_NO;
}

/* Two forms of one weight: whichever is whole serves; with neither whole, the one that was begun is asked for. */
static uint32_t need_kv(const struct bpi_model *m, uint32_t role, uint32_t layer, const char **why)
{
    bool joint = has(m, BPI_W_ATTN_KV_B, layer);
    bool k = has(m, BPI_W_ATTN_K_B, layer), v = has(m, BPI_W_ATTN_V_B, layer);
    if (role == BPI_W_ATTN_KV_B) return joint || (k && v) ? BPI_NEED_MAY : when(!k && !v, "", why);
    if (joint && !(k && v)) return when(false, "half of a pair; attn_kv_b serves", why);
    return joint || k || v ? BPI_NEED_YES : BPI_NEED_NO;
}

static uint32_t need_experts(const struct bpi_model *m, uint32_t role, uint32_t layer,
                             const char **why)
{
    bool split = has(m, BPI_W_EXP_GATE, layer) && has(m, BPI_W_EXP_UP, layer);
    bool fused = has(m, BPI_W_EXP_GATE_UP, layer);
    if (role == BPI_W_EXP_GATE_UP)
        return when(fused && !split, "ffn_gate_exps and ffn_up_exps serve", why);
    return when(split || !fused, "ffn_gate_up_exps serves", why);
}

uint32_t bpi_model_need(const struct bpi_model *m, uint32_t role, uint32_t layer, const char **why)
{
    const char *unused = "";
    if (why == NULL) why = &unused;
    *why = "";
    bool moe = layer >= m->hp.n_dense;
    uint32_t rule = bpi_role_rules[role].when;
    if (rule >= BPI_WHEN_MOE && !moe) return when(false, "the layer is dense", why);
    switch (rule) {
    case BPI_WHEN_ALWAYS:
    case BPI_WHEN_MOE:
        return BPI_NEED_YES;
    case BPI_WHEN_OPTIONAL:
    case BPI_WHEN_BIAS:
        return BPI_NEED_MAY;
    case BPI_WHEN_Q_PLAIN:
        return when(m->q_plain, "queries are compressed", why);
    case BPI_WHEN_Q_LORA:
        return when(!m->q_plain, "queries are not compressed", why);
    case BPI_WHEN_KV_JOINT:
    case BPI_WHEN_KV_SPLIT:
        return need_kv(m, role, layer, why);
    case BPI_WHEN_INDEX:
        if (!m->hp.sparse) return when(false, m->index_why, why);
        return when(m->index_full[layer] != 0, "the layer shares the choice of an earlier one",
                    why);
    case BPI_WHEN_DENSE:
        return when(!moe, "the layer is a mixture of experts", why);
    case BPI_WHEN_SHARED:
        return when(m->has_shared, "the model has no shared expert", why);
    default:
        return need_experts(m, role, layer, why);
    }
}

/* ---- places ---- */

static void drop_tensor(struct bpi_model *m, const struct bpi_name_index *ix,
                        const struct bpi_gguf_tensor *t)
{
    struct bpi_name name = bpi_name_parse(ix, t->name);
    const char *why = "";
    if (name.in_block && name.layer >= m->hp.n_layer && name.layer < m->hp.n_layer + m->hp.n_mtp) {
        bpi_model_note(m, BPI_REPORT_UNUSED, t->name,
                       "part of MTP block %u, which is kept for drafting and not run", name.layer);
    } else if (bpi_model_scale_place(m, ix, t->name) != SIZE_MAX) {
        bpi_model_note(m, BPI_REPORT_NOTE, t->name, "multiplies the weight of that name");
    } else if (name.spec == NULL) {
        bpi_model_note(m, BPI_REPORT_UNUSED, t->name, "no table knows this name; ignored");
    } else if (bpi_model_need(m, name.spec->role, name.layer, &why) == BPI_NEED_NO) {
        bpi_model_note(m, BPI_REPORT_UNUSED, t->name, "%s", why);
        size_t row = name.in_block ? (size_t)name.layer + 1 : 0;
        m->tensor[row * BPI_W_COUNT + name.spec->role] = NULL;
    }
}

void bpi_model_drop_unused(struct bpi_model *m)
{
    struct bpi_name_index ix;
    bpi_name_index_init(&ix);
    /* Alternatives look at each other, but a tensor that is not used never decides about one that is. */
    for (uint64_t i = 0; i < bpi_gguf_n_tensors(m->gguf); ++i)
        drop_tensor(m, &ix, bpi_gguf_tensor_at(m->gguf, i));
}

static int32_t place_tensors(struct bpi_model *m, const struct bpi_name_index *ix,
                             struct bp_error *err)
{
    /* n_layer is at most BPI_MODEL_MAX_LAYERS and the file has tensors of the last layer. */
    size_t n = ((size_t)m->hp.n_layer + 1) * BPI_W_COUNT;
    m->tensor = bpi_calloc(n, sizeof *m->tensor);
    if (m->tensor == NULL) return bpi_fail_nomem(err, "model", n * sizeof *m->tensor);
    for (uint64_t i = 0; i < bpi_gguf_n_tensors(m->gguf); ++i) {
        const struct bpi_gguf_tensor *t = bpi_gguf_tensor_at(m->gguf, i);
        struct bpi_name name = bpi_name_parse(ix, t->name);
        if (name.spec == NULL || name.spec->role == BPI_W_COUNT) continue;
        if (name.in_block && name.layer >= m->hp.n_layer) continue;
        size_t row = name.in_block ? (size_t)name.layer + 1 : 0;
        m->tensor[row * BPI_W_COUNT + name.spec->role] = t;
    }
    return BP_OK;
}

/* Compressed or plain queries; layer 0 speaks for all, the others are held against it as missing tensors. */
static int32_t find_query_form(struct bpi_model *m, struct bp_error *err)
{
    const struct bpi_key_value *key = &m->key[BPI_K_Q_LORA];
    bool plain = has(m, BPI_W_ATTN_Q, 0);
    bool lora = has(m, BPI_W_ATTN_Q_A, 0) || has(m, BPI_W_ATTN_Q_B, 0);
    char name[128];
    bpi_model_key_name(m, BPI_K_Q_LORA, name, sizeof name);
    m->q_plain = plain || (!lora && (!key->found || key->u == 0));
    if (plain && lora)
        return bpi_fail(err, BP_E_FORMAT, "model", "blk.0.attn_q.weight",
                        "layer 0 has both blk.0.attn_q.weight and compressed queries (attn_q_a, "
                        "attn_q_b); one form was "
                        "expected");
    if (key->found && key->u > 0 && plain)
        return bpi_fail(
            err, BP_E_FORMAT, "model", name,
            "key %s is %u, but layer 0 has blk.0.attn_q.weight, the form without compression", name,
            key->u);
    if (key->found && key->u == 0 && lora)
        return bpi_fail(err, BP_E_FORMAT, "model", name,
                        "key %s is 0, but layer 0 has compressed queries (attn_q_a, attn_q_b)",
                        name);
    return BP_OK;
}

static int32_t find_shared(struct bpi_model *m, struct bp_error *err)
{
    const struct bpi_key_value *key = &m->key[BPI_K_EXPERTS_SHARED];
    const struct bpi_gguf_tensor *t = NULL;
    for (uint32_t i = m->hp.n_dense; i < m->hp.n_layer && t == NULL; ++i)
        for (uint32_t role = BPI_W_SHARED_GATE; role <= BPI_W_SHARED_DOWN && t == NULL; ++role)
            t = bpi_model_tensor(m, role, i);
    m->has_shared = key->found ? key->u > 0 : t != NULL;
    if (m->has_shared || t == NULL) return BP_OK;
    char name[128], dims[96];
    bpi_model_key_name(m, BPI_K_EXPERTS_SHARED, name, sizeof name);
    bpi_dims_text(t, dims, sizeof dims);
    return bpi_fail(err, BP_E_FORMAT, "model", name,
                    "key %s is 0, but the file has the shared expert %s %s", name, t->name, dims);
}

static bool knows_a_block(const struct bpi_model *m, const struct bpi_name_index *ix)
{
    for (uint64_t i = 0; i < bpi_gguf_n_tensors(m->gguf); ++i) {
        struct bpi_name name = bpi_name_parse(ix, bpi_gguf_tensor_at(m->gguf, i)->name);
        if (name.spec != NULL && name.in_block) return true;
    }
    return false;
}

int32_t bpi_model_resolve(struct bpi_model *m, struct bp_error *err)
{
    struct bpi_name_index ix;
    bpi_name_index_init(&ix);
    BP_TRY(find_arch(m, err));
    /* First of all, because a file whose names all carry a prefix should hear that, not something about its keys. */
    if (!knows_a_block(m, &ix)) return fail_missing(m, BPI_W_ATTN_NORM, 0, 1, err);
    BP_TRY(bpi_model_read_keys(m, err));
    BP_TRY(bpi_model_find_trunk(m, &ix, err));
    BP_TRY(place_tensors(m, &ix, err));
    BP_TRY(bpi_model_find_dense(m, err));
    BP_TRY(find_query_form(m, err));
    BP_TRY(find_shared(m, err));
    return bpi_model_find_index(m, err);
}
