/* fake_plugins.h - backends that compute as ref does and answer as a test wants: they hand every op to an instance of ref
 * of their own and stand before a few of its slots. State is at file scope because a query function has no argument;
 * check runs each test in a process of its own. SPDX-License-Identifier: MIT */
#ifndef FAKE_PLUGINS_H
#define FAKE_PLUGINS_H

#include "engine_fixture.h"
#include "backplane/slot_mla.h"
#include "backplane/slot_quant.h"
#include "backplane/tools.h"
#include "base/base.h"

enum { N_FAKES = 2, FAKE_IFACES = 9 };

struct fake {
    struct bp_plugin_desc desc;
    const struct bp_plugin_desc *ref;
    struct bp_mla_decode_ops decode, ref_decode;
    struct bp_mla_prefill_ops prefill, ref_prefill;
    struct bp_quant_ops quant, ref_quant;
    uint32_t only_dtype; /* of the cache; 0: all */
    uint32_t only_type;  /* of weights; 0: all */
    int n_decode, n_prefill, n_quant, n_prepare;
    int32_t fail_layer; /* decode fails there; -1: nowhere */
    const char *fail_msg;
    bool takes_device; /* has ops for every device: for choosing only, it computes on the host all the same */
};
static struct fake fakes[N_FAKES];

static inline void refuse(struct bp_verdict *v, uint32_t code, const char *field, int64_t got,
                          int64_t want)
{
    struct bp_reason *r = &v->reasons[v->n_reasons < v->cap_reasons ? v->n_reasons : 0];
    *r = (struct bp_reason){
        .code = code, .critical = 1, .got = got, .want_lo = want, .want_hi = want};
    snprintf(r->field, sizeof r->field, "%s", field);
    v->n_reasons++;
    v->level = BP_V_NO;
    v->n_layouts = 0;
}

static inline int32_t check_cache(const struct fake *f, const void *problem, struct bp_verdict *v)
{
    const struct bp_mla_problem *p = problem;
    if (f->only_dtype != 0 && p->kv_dtype != f->only_dtype)
        refuse(v, BP_R_DTYPE, "kv_dtype", p->kv_dtype, f->only_dtype);
    return BP_OK;
}

// clang-format off
#define FAKE_FUNCTIONS(i)                                                                                              \
    static int32_t decode_supports_##i(void *self, const void *problem, struct bp_verdict *v)                          \
    {                                                                                                                  \
        fakes[i].ref_decode.base.supports(self, problem, v);                                                           \
        return check_cache(&fakes[i], problem, v);                                                                     \
    }                                                                                                                  \
    static int32_t prefill_supports_##i(void *self, const void *problem, struct bp_verdict *v)                         \
    {                                                                                                                  \
        fakes[i].ref_prefill.base.supports(self, problem, v);                                                          \
        return check_cache(&fakes[i], problem, v);                                                                     \
    }                                                                                                                  \
    static int32_t quant_supports_##i(void *self, const void *problem, struct bp_verdict *v)                           \
    {                                                                                                                  \
        const struct bp_quant_problem *p = problem;                                                                    \
        fakes[i].ref_quant.base.supports(self, problem, v);                                                            \
        if (fakes[i].only_type != 0 && p->w[0].type != fakes[i].only_type)                                             \
            refuse(v, BP_R_QUANT, "type", p->w[0].type, fakes[i].only_type);                                           \
        return BP_OK;                                                                                                  \
    }                                                                                                                  \
    static int32_t decode_run_##i(void *self, const struct bp_launch *l, const struct bp_mla_decode_args *a,           \
                                  struct bp_error *err)                                                                \
    {                                                                                                                  \
        fakes[i].n_decode++;                                                                                           \
        if (l->layer != fakes[i].fail_layer) return fakes[i].ref_decode.run(self, l, a, err);                          \
        return fakes[i].fail_msg != NULL ? bpi_fail(err, BP_E_DEVICE, "fake", NULL, "%s", fakes[i].fail_msg)           \
                                         : BP_E_DEVICE;                                                                \
    }                                                                                                                  \
    static int32_t prefill_run_##i(void *self, const struct bp_launch *l, const struct bp_mla_prefill_args *a,         \
                                   struct bp_error *err)                                                               \
    {                                                                                                                  \
        fakes[i].n_prefill++;                                                                                          \
        return fakes[i].ref_prefill.run(self, l, a, err);                                                              \
    }                                                                                                                  \
    static int32_t quant_prepare_##i(void *self, const struct bp_raw *raw, void **out, struct bp_weight_info *info,    \
                                     struct bp_error *err)                                                             \
    {                                                                                                                  \
        fakes[i].n_prepare++;                                                                                          \
        return fakes[i].ref_quant.prepare(self, raw, out, info, err);                                                  \
    }                                                                                                                  \
    static int32_t fake_open_##i(const struct bp_host *host, void **plugin, struct bp_error *err)                      \
    {                                                                                                                  \
        return fakes[i].ref->open(host, plugin, err);                                                                  \
    }                                                                                                                  \
    static int32_t fake_create_##i(void *plugin, const struct bp_op_entry *e, const struct bp_device *dev,             \
                                   const struct bp_op_ref *inner, uint32_t n_inner, struct bp_op_ref *out,             \
                                   struct bp_error *err)                                                               \
    {                                                                                                                  \
        struct fake *f = &fakes[i];                                                                                    \
        BP_TRY(f->ref->op_create(plugin, e, f->takes_device && strcmp(e->iface, "bp.device") != 0 ? NULL : dev, inner, \
                                 n_inner, out, err));                                                                  \
        if (strcmp(e->iface, "bp.mla.decode") == 0) {                                                                  \
            f->decode = f->ref_decode = *(const struct bp_mla_decode_ops *)(const void *)out->vt;                      \
            f->decode.base.supports = decode_supports_##i;                                                             \
            f->decode.run = decode_run_##i;                                                                            \
            out->vt = &f->decode.base;                                                                                 \
        } else if (strcmp(e->iface, "bp.mla.prefill") == 0) {                                                          \
            f->prefill = f->ref_prefill = *(const struct bp_mla_prefill_ops *)(const void *)out->vt;                   \
            f->prefill.base.supports = prefill_supports_##i;                                                           \
            f->prefill.run = prefill_run_##i;                                                                          \
            out->vt = &f->prefill.base;                                                                                \
        } else if (strcmp(e->iface, "bp.quant") == 0) {                                                                \
            f->quant = f->ref_quant = *(const struct bp_quant_ops *)(const void *)out->vt;                             \
            f->quant.base.supports = quant_supports_##i;                                                               \
            f->quant.prepare = quant_prepare_##i;                                                                      \
            out->vt = &f->quant.base;                                                                                  \
        }                                                                                                              \
        return BP_OK;                                                                                                  \
    }                                                                                                                  \
    static const struct bp_plugin_desc *fake_query_##i(const struct bp_query *q)                                       \
    {                                                                                                                  \
        fakes[i].ref = bp_reference_query()(q);                                                                        \
        fakes[i].desc = *fakes[i].ref;                                                                                 \
        fakes[i].desc.name = "fake" #i;                                                                                \
        fakes[i].desc.version = "1." #i;                                                                               \
        fakes[i].desc.cfg = NULL;                                                                                      \
        fakes[i].desc.n_cfg = 0;                                                                                       \
        fakes[i].desc.open = fake_open_##i;                                                                            \
        fakes[i].desc.op_create = fake_create_##i;                                                                     \
        return &fakes[i].desc;                                                                                         \
    }
FAKE_FUNCTIONS(0)
FAKE_FUNCTIONS(1)
// clang-format on

/* A configuration that knows both; settings as rig_open. */
static inline struct bp_config *fake_config(const char *const *settings)
{
    struct bp_error err = BP_ERROR_INIT;
    struct bp_config *cfg;
    must(plain_config(&cfg, &err), &err);
    for (size_t i = 0; settings != NULL && settings[i] != NULL; ++i)
        must(bp_config_set(cfg, settings[i], &err), &err);
    fakes[0].fail_layer = fakes[1].fail_layer = -1;
    must(bp_config_add_plugin(cfg, fake_query_0, &err), &err);
    must(bp_config_add_plugin(cfg, fake_query_1, &err), &err);
    return cfg;
}

#endif
