/* model_names.c - tensor names: GGUF name to table row and layer, and the names of Hugging Face checkpoints both ways.
 * Not here: which tensors a layer needs (model_resolve.c).
 * Threads: all functions are pure. SPDX-License-Identifier: MIT */
#include "model/model_priv.h"

#include <stdio.h>
#include <string.h>

static uint32_t slot_of(const char *suffix)
{
    uint64_t h = bp_id(suffix);
    return (uint32_t)(h ^ (h >> 32)) % BPI_NAME_SLOTS;
}

void bpi_name_index_init(struct bpi_name_index *ix)
{
    size_t n;
    const struct bpi_tensor_spec *specs = bpi_tensor_specs(&n);
    memset(ix, 0, sizeof *ix);
    for (size_t i = 0; i < n; ++i) {
        uint32_t s = slot_of(specs[i].gguf);
        while (ix->slot[s] != 0) s = (s + 1) % BPI_NAME_SLOTS;
        ix->slot[s] = (uint8_t)(i + 1);
    }
}

/* Reads a decimal number without sign or leading zeros, so that no two names mean the same block. */
static const char *parse_index(const char *p, uint32_t *out)
{
    if (*p < '0' || *p > '9') return NULL;
    if (*p == '0' && p[1] >= '0' && p[1] <= '9') return NULL;
    uint64_t v = 0;
    for (; *p >= '0' && *p <= '9'; ++p) {
        v = v * 10 + (uint64_t)(*p - '0');
        if (v > UINT32_MAX) v = UINT32_MAX;
    }
    *out = (uint32_t)v;
    return p;
}

/* Strips "prefix" N "." from the front; NULL when the name is not of that form. */
static const char *strip_layer(const char *name, const char *prefix, uint32_t *layer)
{
    size_t n = strlen(prefix);
    if (strncmp(name, prefix, n) != 0) return NULL;
    const char *p = parse_index(name + n, layer);
    return p != NULL && *p == '.' ? p + 1 : NULL;
}

struct bpi_name bpi_name_parse(const struct bpi_name_index *ix, const char *name)
{
    struct bpi_name out = {NULL, false, 0};
    const struct bpi_tensor_spec *specs = bpi_tensor_specs(NULL);
    const char *suffix = strip_layer(name, "blk.", &out.layer);
    out.in_block = suffix != NULL;
    if (suffix == NULL) suffix = name;
    for (uint32_t s = slot_of(suffix); ix->slot[s] != 0; s = (s + 1) % BPI_NAME_SLOTS) {
        const struct bpi_tensor_spec *spec = &specs[ix->slot[s] - 1];
        if (strcmp(spec->gguf, suffix) != 0) continue;
        if (spec->per_layer == out.in_block) out.spec = spec;
        break;
    }
    return out;
}

void bpi_name_of(uint32_t role, uint32_t layer, char *out, size_t cap)
{
    const struct bpi_tensor_spec *spec = &bpi_tensor_specs(NULL)[role];
    if (spec->per_layer)
        snprintf(out, cap, "blk.%u.%s", layer, spec->gguf);
    else
        snprintf(out, cap, "%s", spec->gguf);
}

bool bpi_model_hf_name(const char *gguf_name, char *out, size_t cap)
{
    struct bpi_name_index ix;
    bpi_name_index_init(&ix);
    struct bpi_name name = bpi_name_parse(&ix, gguf_name);
    if (name.spec == NULL || name.layer == UINT32_MAX) return false;
    int n = name.in_block ? snprintf(out, cap, "model.layers.%u.%s", name.layer, name.spec->hf)
                          : snprintf(out, cap, "%s", name.spec->hf);
    return n > 0 && (size_t)n < cap;
}

/* Does `name` equal `pattern`, whose star stands for one expert's number (or for itself)? */
static bool match_hf(const char *pattern, const char *name)
{
    const char *star = strchr(pattern, '*');
    if (star == NULL) return strcmp(pattern, name) == 0;
    size_t n = (size_t)(star - pattern);
    if (strncmp(pattern, name, n) != 0) return false;
    uint32_t expert;
    const char *rest = name[n] == '*' ? name + n + 1 : parse_index(name + n, &expert);
    return rest != NULL && strcmp(star + 1, rest) == 0;
}

bool bpi_model_gguf_name(const char *hf_name, size_t i, char *out, size_t cap)
{
    size_t n_specs;
    const struct bpi_tensor_spec *specs = bpi_tensor_specs(&n_specs);
    uint32_t layer = 0;
    const char *suffix = strip_layer(hf_name, "model.layers.", &layer);
    if (layer == UINT32_MAX) return false;
    for (size_t row = 0; row < n_specs; ++row) {
        if (specs[row].per_layer != (suffix != NULL)) continue;
        if (!match_hf(specs[row].hf, suffix != NULL ? suffix : hf_name)) continue;
        if (i-- > 0) continue;
        int n = specs[row].per_layer ? snprintf(out, cap, "blk.%u.%s", layer, specs[row].gguf)
                                     : snprintf(out, cap, "%s", specs[row].gguf);
        return n > 0 && (size_t)n < cap;
    }
    return false;
}
