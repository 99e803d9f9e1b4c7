/* model_scales.c - companion scales: "blk.3.attn_q_a.scale" multiplies every number of "blk.3.attn_q_a.weight".
 * Converters of NVFP4 checkpoints write them, with one number, or one per expert for stacked experts. Their other
 * companions (".input_scale") only matter to engines that quantize activations the same way.
 * Not here: multiplying; whoever owns a weight does that (struct bp_raw carries the number).
 * Source: llama.cpp src/llama-model.cpp (names and meaning), restated. SPDX-License-Identifier: MIT */
#include "model/model_priv.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

size_t bpi_model_scale_place(const struct bpi_model *m, const struct bpi_name_index *ix,
                             const char *name)
{
    static const char suffix[] = ".scale";
    char weight[BPI_GGUF_MAX_NAME_BYTES + 8];
    size_t n = strlen(name), cut = sizeof suffix - 1;
    if (n <= cut || strcmp(name + n - cut, suffix) != 0) return SIZE_MAX;
    snprintf(weight, sizeof weight, "%.*s.weight", (int)(n - cut), name);
    struct bpi_name parsed = bpi_name_parse(ix, weight);
    if (parsed.spec == NULL || parsed.spec->role == BPI_W_COUNT) return SIZE_MAX;
    if (parsed.in_block && parsed.layer >= m->hp.n_layer) return SIZE_MAX;
    size_t row = parsed.in_block ? (size_t)parsed.layer + 1 : 0;
    size_t place = row * BPI_W_COUNT + parsed.spec->role;
    return m->tensor[place] != NULL ? place : SIZE_MAX;
}

static bool is_expert_role(uint32_t role)
{
    return role == BPI_W_EXP_GATE || role == BPI_W_EXP_UP || role == BPI_W_EXP_GATE_UP ||
           role == BPI_W_EXP_DOWN;
}

/* One number for the whole tensor; a list per expert serves as long as all of its numbers are equal. */
static int32_t one_number(const struct bpi_gguf_tensor *t, const struct bpi_gguf_tensor *weight,
                          const float *v, uint64_t n, struct bp_error *err)
{
    for (uint64_t i = 0; i < n; ++i) {
        if (!isfinite(v[i]))
            return bpi_fail(err, BP_E_NUMERIC, "model", t->name,
                            "element %llu of tensor %s is %s; the file is damaged or was "
                            "converted badly",
                            (unsigned long long)i, t->name, isnan(v[i]) ? "NaN" : "infinite");
        if (v[i] != v[0])
            return bpi_fail(err, BP_E_UNSUPPORTED, "model", t->name,
                            "tensor %s scales each expert of %s differently (%g and %g); one scale "
                            "for all experts is supported: convert the model to another type",
                            t->name, weight->name, (double)v[0], (double)v[i]);
    }
    return BP_OK;
}

static int32_t read_scale(struct bpi_model *m, const struct bpi_gguf_tensor *t, size_t place,
                          struct bp_error *err)
{
    const struct bpi_gguf_tensor *weight = m->tensor[place];
    const struct bpi_block_info *info = bpi_block_info(t->type);
    bool per_expert = is_expert_role((uint32_t)(place % BPI_W_COUNT));
    uint64_t n = t->n_bytes / 4;
    char dims[96];
    bpi_dims_text(t, dims, sizeof dims);
    if (t->type != BP_GGUF_F32)
        return bpi_fail(err, BP_E_UNSUPPORTED, "model", t->name,
                        "tensor %s has type %s; scales are F32", t->name,
                        info != NULL ? info->name : "?");
    if (n != 1 && !(per_expert && n == m->hp.n_expert))
        return bpi_fail(err, BP_E_FORMAT, "model", t->name,
                        "tensor %s is %s; one number for the whole of %s was expected%s", t->name,
                        dims, weight->name, per_expert ? ", or one per expert" : "");
    float v[BPI_MODEL_MAX_EXPERTS];
    BP_TRY(bpi_block_decode(t->type, t->data, (size_t)n, v));
    BP_TRY(one_number(t, weight, v, n, err));
    m->scale[place] = v[0];
    return BP_OK;
}

int32_t bpi_model_read_scales(struct bpi_model *m, struct bp_error *err)
{
    struct bpi_name_index ix;
    size_t n = ((size_t)m->hp.n_layer + 1) * BPI_W_COUNT;
    bpi_name_index_init(&ix);
    for (uint64_t i = 0; i < bpi_gguf_n_tensors(m->gguf); ++i) {
        const struct bpi_gguf_tensor *t = bpi_gguf_tensor_at(m->gguf, i);
        size_t place = bpi_model_scale_place(m, &ix, t->name);
        if (place == SIZE_MAX) continue;
        if (m->scale == NULL) {
            m->scale = bpi_alloc(n * sizeof *m->scale);
            if (m->scale == NULL) return bpi_fail_nomem(err, "model", n * sizeof *m->scale);
            for (size_t k = 0; k < n; ++k) m->scale[k] = 1.0f;
        }
        BP_TRY(read_scale(m, t, place, err));
    }
    return BP_OK;
}
