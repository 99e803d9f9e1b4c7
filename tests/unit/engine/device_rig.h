/* device_rig.h - sessions on the device of fake_gpu.h, for the tests that open them.
 * Not here: the device. SPDX-License-Identifier: MIT */
#ifndef DEVICE_RIG_H
#define DEVICE_RIG_H

#include "fake_gpu.h"

#define COMMON                                                                                     \
    "engine.ctx=96", "engine.batch_tokens=32", "engine.slab=64", "engine.threads=1",               \
        "engine.max_seqs=5", "kv.block=16"
static const char *const on_cpu[] = {COMMON, "engine.device=cpu", NULL};
static const char *const eager[] = {COMMON, "engine.device=cuda:0", "engine.act=f32",
                                    "engine.graph=off", NULL};
static const char *const graphs[] = {COMMON, "engine.device=cuda:0", "engine.act=f32", NULL};
static const char *const demanded[] = {COMMON, "engine.device=cuda:0", "engine.act=f32",
                                       "engine.graph=on", NULL};

static int n_warnings;
static char last_line[1024];
static const char *counted = NULL; /* how many lines have this in them */
static int n_counted;
static inline void keep_line(void *ctx, int32_t level, const char *domain, const char *line)
{
    (void)ctx;
    (void)domain;
    if (level <= 1) ++n_warnings;
    if (counted != NULL && strstr(line, counted) != NULL) ++n_counted;
    snprintf(last_line, sizeof last_line, "%s", line);
}

static inline struct bp_config *config(const char *const *set)
{
    struct bp_error err = BP_ERROR_INIT;
    struct bp_config *c = NULL;
    must(plain_config(&c, &err), &err);
    must(bp_config_add_plugin(c, gpu_query, &err), &err);
    for (size_t i = 0; set[i] != NULL; ++i) must(bp_config_set(c, set[i], &err), &err);
    return c;
}

static inline int32_t try_open(struct rig *r, const char *path, const char *const *set,
                        struct bp_error *err)
{
    struct bp_callbacks cb = {.h = BP_HDR(struct bp_callbacks, progress), .log = keep_line};
    *r = (struct rig){.cfg = config(set)};
    must(bp_model_open(path, r->cfg, NULL, &r->model, err), err);
    r->n_vocab = bp_model_n_vocab(r->model);
    return bp_session_open(r->model, r->cfg, &cb, &r->s, err);
}

static inline struct rig open_on(const char *path, const char *const *set)
{
    struct rig r;
    struct bp_error err = BP_ERROR_INIT;
    must(try_open(&r, path, set, &err), &err);
    return r;
}

static inline void expect(const char *text, const char *part)
{
    ck_assert_msg(strstr(text, part) != NULL, "\"%s\" is not in: %s", part, text);
}

struct out {
    float *v;
    size_t n, cap;
};
static inline void keep(struct out *o, const float *v, size_t n)
{
    ck_assert_ptr_nonnull(v);
    if (o->n + n > o->cap) {
        o->cap = 2 * (o->n + n);
        o->v = realloc(o->v, o->cap * sizeof *o->v);
        ck_assert_ptr_nonnull(o->v);
    }
    memcpy(o->v + o->n, v, n * sizeof *v);
    o->n += n;
}

/* One token for each of `n` sequences; logits of those in `mask`. */
static inline void decode_step(struct rig *r, const int32_t *ids, uint32_t n, uint32_t mask, struct out *o)
{
    struct bp_error err = BP_ERROR_INIT;
    struct bp_step_item it[5] = {{.seq = 0}};
    for (uint32_t i = 0; i < n; ++i) it[i] = item(i, ids + i, 1, mask >> i & 1, BP_STEP_DECODE);
    must(bp_session_step(r->s, it, n, &err), &err);
    for (uint32_t i = 0; i < n; ++i) {
        if ((mask >> i & 1) != 0) keep(o, bp_session_logits(r->s, i, 0), r->n_vocab);
    }
}

static const char *const zoo[] = {ZOO("zoo-glm47flash"), ZOO("zoo-glm5"), ZOO("zoo-v3"),
                                  ZOO("zoo-glm52-shared")};

#endif
