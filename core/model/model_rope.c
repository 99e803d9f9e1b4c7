/* model_rope.c - rotary frequencies, YaRN, cos and sin tables, and the softmax scale.
 * Not here: rotating anything (slots dense and mla.common take the tables).
 * Sources: Peng et al. 2023 (YaRN); ggml src/ggml.c and src/ggml-cpu/ops.cpp (bounds of the ramp); Hugging Face and vLLM
 * deepseek code (magnitudes); see docs/internals/model.md. Angles are double: positions go up to a million and more.
 * SPDX-License-Identifier: MIT */
#include "model/model_priv.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- frequencies ---- */

struct ramp {
    double low, high; /* pairs below low keep their frequency, pairs above high are stretched */
};

/* The (fractional) pair that turns `turns` times within the original context. */
static double turning_pair(const struct bpi_hparams *hp, double turns)
{
    const double two_pi = 6.283185307179586476925286766559;
    return hp->rope * log(hp->yarn_orig_ctx / (two_pi * turns)) / (2.0 * log(hp->rope_base));
}

static struct ramp ramp_of(const struct bpi_hparams *hp)
{
    struct ramp r = {0, 0};
    if (!hp->yarn) return r;
    r.low = fmax(0.0, floor(turning_pair(hp, hp->yarn_beta_fast)));
    /* The bound counts dimensions, not pairs, in the reference as well. */
    r.high = fmin(hp->rope - 1.0, ceil(turning_pair(hp, hp->yarn_beta_slow)));
    return r;
}

static double frequency(const struct bpi_hparams *hp, struct ramp r, uint32_t pair)
{
    double f = pow(hp->rope_base, -2.0 * pair / hp->rope);
    if (!hp->yarn) return f;
    double g = fmin(1.0, fmax(0.0, (pair - r.low) / fmax(0.001, r.high - r.low)));
    return f * (1.0 - g) + f / hp->yarn_factor * g;
}

void bpi_model_rope_freqs(const struct bpi_hparams *hp, double *out)
{
    struct ramp r = ramp_of(hp);
    for (uint32_t i = 0; i < hp->rope / 2; ++i) out[i] = frequency(hp, r, i);
}

void bpi_model_rope_table(const struct bpi_hparams *hp, uint32_t n_pos, float *out_cos,
                          float *out_sin)
{
    struct ramp r = ramp_of(hp);
    size_t pairs = hp->rope / 2;
    for (size_t i = 0; i < pairs; ++i) {
        double f = frequency(hp, r, (uint32_t)i);
        for (size_t pos = 0; pos < n_pos; ++pos) {
            double angle = (double)pos * f;
            out_cos[pos * pairs + i] = (float)(cos(angle) * hp->rope_mag);
            out_sin[pos * pairs + i] = (float)(sin(angle) * hp->rope_mag);
        }
    }
}

/* ---- keys ---- */

static bool is_text(struct bpi_span s, const char *text)
{
    return s.n == strlen(text) && memcmp(s.data, text, (size_t)s.n) == 0;
}

static int32_t unsupported(const struct bpi_model *m, uint32_t key, const char *what,
                           struct bp_error *err)
{
    char name[128];
    bpi_model_key_name(m, key, name, sizeof name);
    return bpi_fail(err, BP_E_UNSUPPORTED, "model", name, "key %s is %g; %s", name,
                    (double)m->key[key].f, what);
}

/* A number of [model] that stands in for a key; false when the configuration leaves it to the file. */
static bool override_of(struct bpi_model *m, const char *config_key, uint32_t key, double *out)
{
    if (m->cfg == NULL || bpi_config_is_auto(m->cfg, "model", config_key)) return false;
    char name[128], text[32];
    *out = bpi_config_float(m->cfg, "model", config_key);
    snprintf(name, sizeof name, "model.%s", config_key);
    bpi_number_text(*out, text);
    if (m->hp.yarn)
        bpi_model_note(m, BPI_REPORT_NOTE, name, "%s stands in for %s.%s", text, m->arch->name,
                       bpi_key_specs[key].suffix);
    else
        bpi_model_note(m, BPI_REPORT_NOTE, name, "without effect: the file does not use YaRN");
    return true;
}

static int32_t read_betas(struct bpi_model *m, struct bp_error *err)
{
    struct bpi_hparams *hp = &m->hp;
    const struct bpi_key_value *fast = &m->key[BPI_K_YARN_BETA_FAST],
                               *slow = &m->key[BPI_K_YARN_BETA_SLOW];
    hp->yarn_beta_fast = fast->found ? (double)fast->f : 32.0;
    hp->yarn_beta_slow = slow->found ? (double)slow->f : 1.0;
    bool over_fast = override_of(m, "yarn_beta_fast", BPI_K_YARN_BETA_FAST, &hp->yarn_beta_fast);
    bool over_slow = override_of(m, "yarn_beta_slow", BPI_K_YARN_BETA_SLOW, &hp->yarn_beta_slow);
    if (!fast->found && !over_fast)
        bpi_model_note_key(m, BPI_REPORT_ASSUMED, BPI_K_YARN_BETA_FAST,
                           "absent: 32, the usual value of YaRN");
    if (!slow->found && !over_slow)
        bpi_model_note_key(m, BPI_REPORT_ASSUMED, BPI_K_YARN_BETA_SLOW,
                           "absent: 1, the usual value of YaRN");
    if (hp->yarn_beta_slow <= hp->yarn_beta_fast) return BP_OK;
    return bpi_fail(err, over_fast || over_slow ? BP_E_CONFIG : BP_E_FORMAT, "model",
                    "rope.scaling.yarn_beta_slow",
                    "yarn_beta_slow is %g, above yarn_beta_fast %g; slow turns are the fewer ones",
                    hp->yarn_beta_slow, hp->yarn_beta_fast);
}

/* cos and sin carry the ratio of the two magnitudes, which is 1 in every model that has the key, because training set both
 * alike. Without mscale_all_dim the reference leaves the scale alone and puts 1 + 0.1 ln F on cos and sin. */
static void read_magnitude(struct bpi_model *m)
{
    struct bpi_hparams *hp = &m->hp;
    const struct bpi_key_value *key = &m->key[BPI_K_YARN_LOG_MUL];
    hp->yarn_log_mul = key->found ? (double)key->f : 0.0;
    bool over = override_of(m, "yarn_log_multiplier", BPI_K_YARN_LOG_MUL, &hp->yarn_log_mul);
    if (hp->yarn_log_mul > 0) return;
    hp->rope_mag = 1.0 + 0.1 * log(hp->yarn_factor);
    char mag[32];
    bpi_number_text(hp->rope_mag, mag);
    if (!over)
        bpi_model_note_key(m, BPI_REPORT_ASSUMED, BPI_K_YARN_LOG_MUL,
                           "%s: no mscale_all_dim, so the softmax scale stays and cos and sin are "
                           "multiplied by %s; "
                           "files made before this key existed need model.yarn_log_multiplier (0.1 "
                           "for DeepSeek-V3 and "
                           "Kimi-K2, 0.0707 for DeepSeek-V2-Lite)",
                           key->found ? "0" : "absent", mag);
}

static int32_t read_yarn(struct bpi_model *m, struct bp_error *err)
{
    struct bpi_hparams *hp = &m->hp;
    const struct bpi_key_value *orig = &m->key[BPI_K_ROPE_ORIG];
    hp->yarn = true;
    BP_TRY(bpi_model_require(m, BPI_K_ROPE_FACTOR, "a model with YaRN", err));
    hp->yarn_factor = (double)m->key[BPI_K_ROPE_FACTOR].f;
    if (hp->yarn_factor < 1)
        return unsupported(m, BPI_K_ROPE_FACTOR, "YaRN stretches by a factor of at least 1", err);
    for (uint32_t key = BPI_K_YARN_EXT_FACTOR; key <= BPI_K_YARN_ATTN_FACTOR; ++key)
        if (m->key[key].found && m->key[key].f != 1.0f)
            bpi_model_note_key(m, BPI_REPORT_NOTE, key,
                               "not 1, and ignored: no model of this family uses it");
    hp->yarn_orig_ctx = orig->found ? orig->u : hp->n_ctx_train;
    if (!orig->found)
        bpi_model_note_key(m, BPI_REPORT_ASSUMED, BPI_K_ROPE_ORIG, "absent: %u, the context_length",
                           hp->yarn_orig_ctx);
    BP_TRY(read_betas(m, err));
    read_magnitude(m);
    return BP_OK;
}

/* Without YaRN the frequencies are plain, and anything that would change them is refused, not dropped. */
static int32_t read_plain(struct bpi_model *m, struct bp_error *err)
{
    const struct bpi_key_value *type = &m->key[BPI_K_ROPE_TYPE];
    double unused;
    bool linear = !type->found || is_text(type->s, "linear");
    if (!linear && !is_text(type->s, "none")) {
        char name[128];
        bpi_model_key_name(m, BPI_K_ROPE_TYPE, name, sizeof name);
        return bpi_fail(err, BP_E_UNSUPPORTED, "model", name,
                        "key %s is '%.*s'; none and yarn are supported", name,
                        (int)(type->s.n < 64 ? type->s.n : 64), type->s.data);
    }
    for (uint32_t key = BPI_K_ROPE_FACTOR; linear && key <= BPI_K_ROPE_LINEAR; ++key)
        if (m->key[key].found && m->key[key].f != 0.0f && m->key[key].f != 1.0f)
            return unsupported(m, key, "linear scaling of positions is not supported, only yarn is",
                               err);
    (void)override_of(m, "yarn_log_multiplier", BPI_K_YARN_LOG_MUL, &unused);
    (void)override_of(m, "yarn_beta_fast", BPI_K_YARN_BETA_FAST, &unused);
    (void)override_of(m, "yarn_beta_slow", BPI_K_YARN_BETA_SLOW, &unused);
    return BP_OK;
}

int32_t bpi_model_derive_rope(struct bpi_model *m, struct bp_error *err)
{
    struct bpi_hparams *hp = &m->hp;
    const struct bpi_key_value *base = &m->key[BPI_K_ROPE_BASE];
    const struct bpi_key_value *attn = &m->key[BPI_K_ROPE_ATTN_FACTOR];
    hp->rope_base = base->found ? (double)base->f : 10000.0;
    if (!base->found)
        bpi_model_note_key(m, BPI_REPORT_ASSUMED, BPI_K_ROPE_BASE,
                           "absent: 10000, the format's default");
    if (hp->rope_base <= 1)
        return unsupported(m, BPI_K_ROPE_BASE, "a base above 1 was expected", err);
    if (attn->found && attn->f != 1.0f)
        return unsupported(m, BPI_K_ROPE_ATTN_FACTOR, "only 1 is supported", err);
    hp->yarn = false;
    hp->yarn_factor = 1.0;
    hp->rope_mag = 1.0;
    if (m->key[BPI_K_ROPE_TYPE].found && is_text(m->key[BPI_K_ROPE_TYPE].s, "yarn"))
        BP_TRY(read_yarn(m, err));
    else
        BP_TRY(read_plain(m, err));
    /* The width of a head as it is stored, never that of the absorbed form. */
    double mscale = 1.0 + hp->yarn_log_mul * log(hp->yarn_factor);
    hp->attn_scale = mscale * mscale / sqrt((double)hp->nope + hp->rope);
    return BP_OK;
}
