/* model_keys.c - reads every metadata key that the families know, and refuses values that mean nothing.
 * Not here: what the values are held against (model_hparams.c and its neighbours). Nothing is allocated from a key.
 * SPDX-License-Identifier: MIT */
#include "model/model_priv.h"

#include <math.h>
#include <stdio.h>

void bpi_model_key_name(const struct bpi_model *m, uint32_t key, char *out, size_t cap)
{
    snprintf(out, cap, "%s.%s", m->arch->name, bpi_key_specs[key].suffix);
}

/* An array must have one entry per block, or per trunk layer when MTP blocks are not counted. */
static int32_t check_array(const struct bpi_model *m, uint32_t key, const char *name,
                           struct bp_error *err)
{
    const struct bpi_gguf_kv *kv = m->key[key].kv;
    uint64_t blocks = m->key[BPI_K_BLOCK_COUNT].u;
    uint64_t mtp = m->key[BPI_K_NEXTN].found ? m->key[BPI_K_NEXTN].u : 0;
    if (kv->count == blocks || (mtp < blocks && kv->count == blocks - mtp)) return BP_OK;
    return bpi_fail(
        err, BP_E_FORMAT, "model", name,
        "key %s has %llu entries, but %s.block_count is %llu; an array needs one entry per layer",
        name, (unsigned long long)kv->count, m->arch->name, (unsigned long long)blocks);
}

static int32_t read_u32(struct bpi_model *m, uint32_t key, const char *name, struct bp_error *err)
{
    struct bpi_key_value *v = &m->key[key];
    if (v->kv->kind != BPI_GGUF_ARRAY || !(bpi_key_specs[key].flags & BPI_KF_ARRAY_OK))
        return bpi_gguf_get_u32(m->gguf, name, &v->u, NULL, err);
    BP_TRY(check_array(m, key, name, err));
    for (uint64_t i = 0; i < v->kv->count; ++i) {
        int64_t e = 0;
        BP_TRY(bpi_gguf_arr_i64(m->gguf, v->kv, i, &e, err));
        if (e < 0 || e > UINT32_MAX)
            return bpi_fail(err, BP_E_FORMAT, "model", name,
                            "entry %llu of key %s is %lld; a 32-bit count was expected",
                            (unsigned long long)i, name, (long long)e);
        if (i == 0) v->u = (uint32_t)e;
    }
    return BP_OK;
}

/* Presence of the value only: what a number may be depends on nothing but itself here. */
static int32_t check_value(const struct bpi_key_value *v, const struct bpi_key_spec *spec,
                           const char *name, struct bp_error *err)
{
    bool zero_ok = (spec->flags & BPI_KF_ZERO_OK) != 0;
    if (spec->type == BPI_KT_U32 && v->u == 0 && !zero_ok)
        return bpi_fail(err, BP_E_FORMAT, "model", name,
                        "key %s is 0; a positive number was expected", name);
    if (spec->type == BPI_KT_F32 && (!isfinite(v->f) || v->f < 0 || (v->f == 0 && !zero_ok)))
        return bpi_fail(err, BP_E_FORMAT, "model", name, "key %s is %g; a %s number was expected",
                        name, (double)v->f, zero_ok ? "finite, not negative" : "finite, positive");
    return BP_OK;
}

static int32_t read_key(struct bpi_model *m, uint32_t key, struct bp_error *err)
{
    const struct bpi_key_spec *spec = &bpi_key_specs[key];
    struct bpi_key_value *v = &m->key[key];
    char name[128];
    bpi_model_key_name(m, key, name, sizeof name);
    v->kv = bpi_gguf_find(m->gguf, name);
    v->found = v->kv != NULL;
    if (!v->found) {
        if (!(spec->flags & BPI_KF_REQUIRED)) return BP_OK;
        return bpi_model_require(m, key, "every model", err);
    }
    switch (spec->type) {
    case BPI_KT_U32:
        BP_TRY(read_u32(m, key, name, err));
        break;
    case BPI_KT_F32:
        BP_TRY(bpi_gguf_get_f32(m->gguf, name, &v->f, NULL, err));
        break;
    case BPI_KT_BOOL:
        BP_TRY(bpi_gguf_get_bool(m->gguf, name, &v->b, NULL, err));
        break;
    case BPI_KT_STR:
        BP_TRY(bpi_gguf_get_str(m->gguf, name, &v->s, NULL, err));
        break;
    default: /* arrays: their reader checks kind and length */
        break;
    }
    return check_value(v, spec, name, err);
}

int32_t bpi_model_read_keys(struct bpi_model *m, struct bp_error *err)
{
    for (uint32_t key = 0; key < BPI_K_COUNT; ++key) BP_TRY(read_key(m, key, err));
    return BP_OK;
}

int32_t bpi_model_require(const struct bpi_model *m, uint32_t key, const char *why,
                          struct bp_error *err)
{
    if (m->key[key].found) return BP_OK;
    char name[128];
    bpi_model_key_name(m, key, name, sizeof name);
    return bpi_fail(
        err, BP_E_FORMAT, "model", name,
        "key %s is missing; %s needs it and there is no default: convert the model again", name,
        why);
}

bool bpi_model_key_uniform(const struct bpi_model *m, uint32_t key, uint64_t n)
{
    const struct bpi_gguf_kv *kv = m->key[key].kv;
    if (kv == NULL || kv->kind != BPI_GGUF_ARRAY) return true;
    for (uint64_t i = 0; i < n && i < kv->count; ++i) {
        int64_t e = -1;
        if (bpi_gguf_arr_i64(m->gguf, kv, i, &e, NULL) != BP_OK || e != (int64_t)m->key[key].u)
            return false;
    }
    return true;
}
