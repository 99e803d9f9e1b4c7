/* model_layers.c - which blocks are the trunk, which layers are dense, which select keys.
 * Block numbers and tensors in the file decide; keys are held against them. MTP (NextN) blocks lie behind the trunk and
 * are not run. Sources: llama.cpp src/llama-model.cpp and src/models/glm-dsa.cpp; see docs/internals/model.md.
 * SPDX-License-Identifier: MIT */
#include "model/model_priv.h"

#include <string.h>

/* ---- trunk ---- */

struct blocks {
    uint32_t n;                     /* highest block number + 1 */
    uint32_t first_mtp;             /* first block with nextn tensors; UINT32_MAX: none */
    bool any[BPI_MODEL_MAX_LAYERS]; /* has tensors that the table knows */
    bool mtp[BPI_MODEL_MAX_LAYERS]; /* has nextn tensors */
};

static int32_t scan_blocks(const struct bpi_model *m, const struct bpi_name_index *ix,
                           struct blocks *b, struct bp_error *err)
{
    *b = (struct blocks){.first_mtp = UINT32_MAX};
    for (uint64_t i = 0; i < bpi_gguf_n_tensors(m->gguf); ++i) {
        const struct bpi_gguf_tensor *t = bpi_gguf_tensor_at(m->gguf, i);
        struct bpi_name name = bpi_name_parse(ix, t->name);
        if (name.spec == NULL || !name.in_block) continue;
        if (name.layer >= BPI_MODEL_MAX_LAYERS)
            return bpi_fail(err, BP_E_LIMIT, "model", t->name,
                            "tensor %s belongs to a block that is too far back; at most %d blocks are "
                            "supported",
                            t->name, BPI_MODEL_MAX_LAYERS);
        b->any[name.layer] = true;
        if (name.layer >= b->n) b->n = name.layer + 1;
        if (name.spec->role != BPI_W_COUNT) continue;
        b->mtp[name.layer] = true;
        if (name.layer < b->first_mtp) b->first_mtp = name.layer;
    }
    return BP_OK;
}

static int32_t contradicts_blocks(const struct bpi_model *m, uint32_t key, const char *what,
                                  uint32_t block, struct bp_error *err)
{
    char name[128];
    bpi_model_key_name(m, key, name, sizeof name);
    return bpi_fail(err, BP_E_FORMAT, "model", name,
                    "key %s is %u (%s.block_count %u), but %s blk.%u; the file is incomplete or "
                    "its keys are wrong: "
                    "convert it again",
                    name, m->key[key].u, m->arch->name, m->key[BPI_K_BLOCK_COUNT].u, what, block);
}

int32_t bpi_model_find_trunk(struct bpi_model *m, const struct bpi_name_index *ix,
                             struct bp_error *err)
{
    struct bpi_key_value *nextn = &m->key[BPI_K_NEXTN];
    uint32_t count = m->key[BPI_K_BLOCK_COUNT].u;
    struct blocks b;
    BP_TRY(bpi_model_limit_key(m, BPI_K_BLOCK_COUNT, "blocks", BPI_MODEL_MAX_LAYERS, err));
    BP_TRY(scan_blocks(m, ix, &b, err));
    if (nextn->found && nextn->u >= count)
        return contradicts_blocks(m, BPI_K_NEXTN, "no trunk layer is left before", 0, err);

    uint32_t n_layer = count - (nextn->found ? nextn->u : 0);
    if (!nextn->found && b.first_mtp > 0 && b.first_mtp < n_layer) {
        /* The key was lost, the tensors tell: everything from the first nextn tensor on is MTP. */
        n_layer = b.first_mtp;
        bpi_model_note_key(
            m, BPI_REPORT_ASSUMED, BPI_K_NEXTN,
            "absent: %u, because blk.%u has nextn tensors; it is the first block that is not run",
            count - n_layer, n_layer);
    }
    if (b.first_mtp < n_layer)
        return contradicts_blocks(m, BPI_K_NEXTN, "there are nextn tensors in trunk block",
                                  b.first_mtp, err);
    if (b.n < n_layer)
        return contradicts_blocks(m, BPI_K_BLOCK_COUNT, "there are no tensors of", b.n, err);
    for (uint32_t i = n_layer; i < b.n; ++i) {
        if (!b.any[i] || b.mtp[i]) continue;
        uint32_t key = i < count ? BPI_K_NEXTN : BPI_K_BLOCK_COUNT;
        return contradicts_blocks(m, key, "there are tensors but no nextn tensors in", i, err);
    }
    m->hp.n_layer = n_layer;
    m->hp.n_mtp = b.n > n_layer ? b.n - n_layer : 0;
    if (b.n > count)
        bpi_model_note_key(m, BPI_REPORT_NOTE, BPI_K_BLOCK_COUNT,
                           "%u, but the file also has MTP blocks up to blk.%u; they are not run",
                           count, b.n - 1);
    else if (b.n < count && nextn->found)
        bpi_model_note_key(m, BPI_REPORT_NOTE, BPI_K_NEXTN,
                           "%u, but the file has %u MTP blocks; none is run", nextn->u,
                           m->hp.n_mtp);
    return BP_OK;
}

/* ---- dense layers ---- */

int32_t bpi_model_find_dense(struct bpi_model *m, struct bp_error *err)
{
    const struct bpi_key_value *key = &m->key[BPI_K_DENSE_LAYERS];
    uint32_t n_layer = m->hp.n_layer, first = 0;
    while (first < n_layer && bpi_model_tensor(m, BPI_W_ROUTER, first) == NULL) ++first;
    if (!key->found) {
        m->hp.n_dense = first;
        bpi_model_note_key(m, BPI_REPORT_ASSUMED, BPI_K_DENSE_LAYERS,
                           "absent: %u, the layers before the first with ffn_gate_inp.weight",
                           first);
        return BP_OK;
    }
    m->hp.n_dense = key->u;
    char name[128];
    bpi_model_key_name(m, BPI_K_DENSE_LAYERS, name, sizeof name);
    if (key->u > n_layer)
        return bpi_fail(err, BP_E_FORMAT, "model", name,
                        "key %s is %u, but the model has %u layers", name, key->u, n_layer);
    for (uint32_t i = 0; i < n_layer; ++i) {
        bool dense = i < key->u;
        const struct bpi_gguf_tensor *router = bpi_model_tensor(m, BPI_W_ROUTER, i);
        const struct bpi_gguf_tensor *gate = bpi_model_tensor(m, BPI_W_FFN_GATE, i);
        const struct bpi_gguf_tensor *odd = dense ? router : gate;
        if (odd == NULL || (dense ? gate : router) != NULL) continue;
        char dims[96];
        bpi_dims_text(odd, dims, sizeof dims);
        return bpi_fail(
            err, BP_E_FORMAT, "model", name,
            "key %s is %u, so layer %u has to be %s, but the file has %s %s; one of them is wrong",
            name, key->u, i, dense ? "dense" : "a mixture of experts", odd->name, dims);
    }
    return BP_OK;
}

/* ---- index ---- */

static const uint32_t index_roles[] = {BPI_W_INDEX_Q_B, BPI_W_INDEX_K, BPI_W_INDEX_K_NORM,
                                       BPI_W_INDEX_K_NORM_B, BPI_W_INDEX_PROJ};

/* attention.indexer.types: one bool or 0/1 per trunk layer (or per block). */
static int32_t read_index_types(struct bpi_model *m, struct bp_error *err)
{
    const struct bpi_gguf_kv *kv = m->key[BPI_K_INDEX_TYPES].kv;
    uint32_t n_layer = m->hp.n_layer;
    char name[128];
    bpi_model_key_name(m, BPI_K_INDEX_TYPES, name, sizeof name);
    if (kv->kind != BPI_GGUF_ARRAY ||
        (kv->count != n_layer && kv->count != m->key[BPI_K_BLOCK_COUNT].u))
        return bpi_fail(err, BP_E_FORMAT, "model", name,
                        "key %s has %llu entries; an array with one entry for each of the %u "
                        "layers was expected",
                        name, (unsigned long long)kv->count, n_layer);
    for (uint32_t i = 0; i < n_layer; ++i) {
        int64_t v = -1;
        BP_TRY(bpi_gguf_arr_i64(m->gguf, kv, i, &v, err));
        if (v != 0 && v != 1)
            return bpi_fail(err, BP_E_FORMAT, "model", name,
                            "entry %u of key %s is %lld; 0 (shared) or 1 (full) was "
                            "expected",
                            i, name, (long long)v);
        m->index_full[i] = (uint8_t)v;
    }
    if (!m->index_full[0])
        return bpi_fail(
            err, BP_E_FORMAT, "model", name,
            "entry 0 of key %s is 0 (shared); the first layer has no earlier choice to share",
            name);
    return BP_OK;
}

/* model.index_layers over the file. */
static int32_t impose_index_types(struct bpi_model *m, const char *wish, struct bp_error *err)
{
    bool all = strcmp(wish, "all") == 0;
    if (!all && m->arch->long_ctx == 0)
        return bpi_fail(err, BP_E_UNSUPPORTED, "model", "model.index_layers",
                        "model.index_layers is %s, but the layers of architecture %s do not share "
                        "their choice; set it to auto",
                        wish, m->arch->name);
    for (uint32_t i = 0; i < m->hp.n_layer; ++i)
        m->index_full[i] = all || bpi_arch_pattern_full(i);
    bpi_model_note(m, BPI_REPORT_NOTE, "model.index_layers",
                   "%s, whatever the file says, because model.index_layers is %s",
                   all ? "every layer selects" : "layers 0, 1, 2, 6, 10, ... select", wish);
    return BP_OK;
}

static int32_t find_full_layers(struct bpi_model *m, struct bp_error *err)
{
    const char *wish = m->cfg != NULL ? bpi_config_str(m->cfg, "model", "index_layers") : "auto";
    if (strcmp(wish, "auto") != 0) return impose_index_types(m, wish, err);
    if (m->key[BPI_K_INDEX_TYPES].found) return read_index_types(m, err);
    uint32_t ctx = m->key[BPI_K_CONTEXT].u;
    bool pattern = m->arch->long_ctx != 0 && ctx >= m->arch->long_ctx;
    for (uint32_t i = 0; i < m->hp.n_layer; ++i)
        m->index_full[i] = !pattern || bpi_arch_pattern_full(i);
    if (m->arch->long_ctx == 0) return BP_OK;
    bpi_model_note_key(
        m, BPI_REPORT_ASSUMED, BPI_K_INDEX_TYPES,
        pattern ? "absent: layers 0, 1, 2, 6, 10, ... select and the others share, as in GLM-5.2, "
                  "because context_length %u is at least %u"
                : "absent: every layer selects by itself, because context_length %u is below %u",
        ctx, m->arch->long_ctx);
    return BP_OK;
}

/* How many full layers lack an index tensor; *layer and *role are the first gap. */
static uint32_t count_gaps(const struct bpi_model *m, uint32_t *layer, uint32_t *role,
                           uint32_t *n_full, bool *any)
{
    uint32_t n_gap = 0;
    *n_full = 0;
    *any = false;
    for (uint32_t i = 0; i < m->hp.n_layer; ++i) {
        bool gap = false;
        for (size_t r = 0; r < BPI_ARRAY_LEN(index_roles); ++r) {
            if (bpi_model_tensor(m, index_roles[r], i) != NULL) {
                *any = true;
            } else if (m->index_full[i]) {
                if (n_gap == 0 && !gap) *layer = i, *role = index_roles[r];
                gap = true;
            }
        }
        *n_full += m->index_full[i];
        n_gap += gap;
    }
    return n_gap;
}

/* One MISSING line per tensor that selection would need, so that a half converted file shows what it lacks. */
static void list_gaps(struct bpi_model *m)
{
    for (uint32_t i = 0; i < m->hp.n_layer; ++i) {
        for (size_t r = 0; m->index_full[i] && r < BPI_ARRAY_LEN(index_roles); ++r) {
            char name[96];
            if (bpi_model_tensor(m, index_roles[r], i) != NULL) continue;
            bpi_name_of(index_roles[r], i, name, sizeof name);
            bpi_model_note(m, BPI_REPORT_MISSING, name,
                           "needed for sparse attention; attention is dense without it");
        }
    }
}

int32_t bpi_model_find_index(struct bpi_model *m, struct bp_error *err)
{
    const char *mode = m->cfg != NULL ? bpi_config_str(m->cfg, "model", "indexer") : "auto";
    bool on = strcmp(mode, "on") == 0, off = strcmp(mode, "off") == 0;
    m->index_why = "sparse attention is off";
    if (!m->arch->has_index) {
        m->index_why = "this architecture has no index";
        const char *layers =
            m->cfg != NULL ? bpi_config_str(m->cfg, "model", "index_layers") : "auto";
        const char *key = on ? "model.indexer" : "model.index_layers";
        if (!on && strcmp(layers, "auto") == 0) return BP_OK;
        return bpi_fail(err, BP_E_UNSUPPORTED, "model", key,
                        "%s is %s, but architecture %s has no index; set it to auto", key,
                        on ? "on" : layers, m->arch->name);
    }
    BP_TRY(find_full_layers(m, err));
    if (off) {
        bpi_model_note(m, BPI_REPORT_NOTE, "model.indexer",
                       "sparse attention: off (model.indexer is off)");
        return BP_OK;
    }
    uint32_t layer = 0, role = 0, n_full = 0;
    bool any = false;
    uint32_t n_gap = count_gaps(m, &layer, &role, &n_full, &any);
    char gap[96] = "";
    if (n_gap > 0) bpi_name_of(role, layer, gap, sizeof gap);
    if (n_gap > 0 && on)
        return bpi_fail(err, BP_E_FORMAT, "model", gap,
                        "tensor %s is missing, and model.indexer is on; set it to auto for dense "
                        "attention, or convert "
                        "the model again with its index tensors",
                        gap);
    if (n_gap == 0) {
        m->hp.sparse = true;
        bpi_model_note(m, BPI_REPORT_NOTE, "model.indexer",
                       "sparse attention: on (%u of %u layers select)", n_full, m->hp.n_layer);
    } else if (!any) {
        bpi_model_note(m, BPI_REPORT_NOTE, "model.indexer",
                       "sparse attention: off (no index tensors in file)");
    } else {
        bpi_model_note(
            m, BPI_REPORT_NOTE, "model.indexer",
            "sparse attention: off (%u of %u selecting layers lack index tensors, first %s)", n_gap,
            n_full, gap);
        list_gaps(m);
    }
    return BP_OK;
}
