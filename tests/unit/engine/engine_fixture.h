/* engine_fixture.h - opening a zoo model and running prompts, for tests of the engine. Each failure ends the test with the
 * engine's own sentence. SPDX-License-Identifier: MIT */
#ifndef ENGINE_FIXTURE_H
#define ENGINE_FIXTURE_H

#include "backplane/backplane.h"
#include "base/rng.h"
#include <check.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ZOO(name) BP_SOURCE_DIR "/tests/data/zoo/" name ".gguf"

struct rig {
    struct bp_config *cfg;
    struct bp_model *model;
    struct bp_session *s;
    uint32_t n_vocab;
};

static inline void must(int32_t rc, const struct bp_error *err)
{
    ck_assert_msg(rc == BP_OK, "%s: %s (%s)", bp_status_name(rc), err->msg, err->where);
}

/* A configuration that sees no plugins in files: with those of the build, on a machine with a GPU, auto would choose them. */
static inline int32_t plain_config(struct bp_config **out, struct bp_error *err)
{
    BP_TRY(bp_config_create(out, err));
    return bp_config_set(*out, "engine.plugin_path=/usr", err);
}

/* settings: NULL-terminated "section.key=value". */
static inline struct rig rig_open(const char *path, const char *const *settings)
{
    struct rig r = {0};
    struct bp_error err = BP_ERROR_INIT;
    must(plain_config(&r.cfg, &err), &err);
    for (size_t i = 0; settings != NULL && settings[i] != NULL; ++i)
        must(bp_config_set(r.cfg, settings[i], &err), &err);
    must(bp_model_open(path, r.cfg, NULL, &r.model, &err), &err);
    must(bp_session_open(r.model, r.cfg, NULL, &r.s, &err), &err);
    r.n_vocab = bp_model_n_vocab(r.model);
    return r;
}

static inline void rig_close(struct rig *r)
{
    bp_session_close(r->s);
    bp_model_close(r->model);
    bp_config_destroy(r->cfg);
}

static inline struct bp_step_item item(uint32_t seq, const int32_t *ids, uint32_t n,
                                       uint32_t n_logits, uint32_t flags)
{
    return (struct bp_step_item){.h = BP_HDR(struct bp_step_item, n_logits),
                                 .seq = seq,
                                 .flags = flags,
                                 .ids = ids,
                                 .n_ids = n,
                                 .n_logits = n_logits};
}

/* Runs ids through `seq` in prefill chunks; copies the last token's logits to out (may be NULL). */
static inline void prefill(struct rig *r, uint32_t seq, const int32_t *ids, uint32_t n,
                           uint32_t chunk, float *out)
{
    struct bp_error err = BP_ERROR_INIT;
    for (uint32_t at = 0; at < n; at += chunk) {
        uint32_t m = n - at < chunk ? n - at : chunk;
        struct bp_step_item it = item(seq, ids + at, m, 1, 0);
        must(bp_session_step(r->s, &it, 1, &err), &err);
    }
    if (out != NULL) memcpy(out, bp_session_logits(r->s, 0, 0), r->n_vocab * sizeof(float));
}

static inline int32_t greedy(const float *logits, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; ++i) {
        if (logits[i] > logits[best]) best = i;
    }
    return (int32_t)best;
}

static inline int32_t *random_ids(uint64_t seed, uint32_t n, uint32_t n_vocab)
{
    struct bpi_rng rng;
    bpi_rng_seed(&rng, seed);
    int32_t *ids = calloc(n, sizeof(*ids));
    for (uint32_t i = 0; i < n; ++i) ids[i] = (int32_t)bpi_rng_below(&rng, n_vocab);
    return ids;
}

/* Same bits, and finite: two NaN rows are not equal. */
static inline bool same_bits(const float *a, const float *b, uint32_t n)
{
    for (uint32_t i = 0; i < n; ++i) {
        if (!(a[i] - a[i] == 0.0f)) return false;
    }
    return memcmp(a, b, n * sizeof(float)) == 0;
}

#endif
