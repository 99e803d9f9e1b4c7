/* dropin.c - the plugin of the drop-in test: its frame, and attention of new tokens in two passes over the keys (scores,
 * then softmax and the weighted sum). Written against the installed headers alone, as a third party would.
 * Threads: as plugin.h says. SPDX-License-Identifier: MIT */
#include "dropin.h"

#include <math.h>

enum { PARTS = 8 }; /* rows that are worked on at a time, each with its own part of scratch */

static int32_t decode_supports(void *self, const void *problem, struct bp_verdict *v)
{
    const struct bp_mla_problem *p = problem;
    const uint32_t floats = BP_SET(BP_DT_F32) | BP_SET(BP_DT_BF16);
    char layout[32];
    (void)self;
    if (!bp_verdict_begin(v, &p->h, BP_END(struct bp_mla_problem, type_v))) return BP_OK;
    bp_want_dtype(v, "act_dtype", p->act_dtype, floats);
    bp_want_dtype(v, "kv_dtype", p->kv_dtype, floats);
    bp_want_range(v, BP_R_SHAPE, "kv_rank", p->kv_rank, 1, 4096);
    bp_want_range(v, BP_R_SHAPE, "rope_dim", p->rope_dim, 0, 4096);
    bp_want_le(v, BP_R_GRAPH, "need_capture", p->need_capture, BP_CAPTURE_NONE);
    if (bp_layout_name(layout, "mla", p->kv_dtype, (uint64_t)p->kv_rank + p->rope_dim) != 0) {
        bp_offer_layout(v, layout);
        bp_want_layout(v, "layout_id", p->layout_id);
    }
    return bp_verdict_done(v, BP_CAPTURE_NONE, BP_DET_BATCH, -1.0);
}

struct scratch {
    float *q, *key; /* (PARTS, width) twice */
    double *acc,
        *score; /* (PARTS, latent), (PARTS, max_kv): the kit allows twice the reference's error, not more */
};

static void take(struct bp_area *a, uint64_t width, uint64_t latent, uint64_t n_key,
                 struct scratch *s)
{
    s->q = bp_area_take(a, PARTS * width, sizeof(float));
    s->key = bp_area_take(a, PARTS * width, sizeof(float));
    s->acc = bp_area_take(a, PARTS * latent, sizeof(double));
    s->score = bp_area_take(a, n_key, PARTS * sizeof(double));
}

static int32_t decode_workspace(void *self, const void *problem_max, struct bp_workspace *out,
                                struct bp_error *err)
{
    const struct bp_mla_problem *p = problem_max;
    const uint64_t n_key = p->max_kv > p->top_k ? p->max_kv : p->top_k;
    struct bp_area area;
    struct scratch s;
    (void)self;
    bp_area_count(&area);
    take(&area, (uint64_t)p->kv_rank + p->rope_dim, p->kv_rank, n_key, &s);
    if (area.bad != 0)
        return bp_error_set(err, BP_E_LIMIT, NAME, "workspace", "the scratch overflows 64 bits");
    return bp_workspace_set(out, 0, 0, area.used, 0);
}

struct job {
    const struct bp_mla_decode_args *a;
    const struct dropin *d;
    struct scratch s;
    uint32_t kv_dtype;
    int64_t n_head, width, latent, n_key;
};

static const void *cached(const struct job *j, int64_t slot)
{
    const int64_t block_tok = j->a->meta->common->block_tok;
    return (const unsigned char *)j->a->pool.data + slot / block_tok * j->a->pool.stride[0] +
           slot % block_tok * j->width * bp_dtype_bytes(j->kv_dtype);
}

/* Keys of a row, and where the at-th lies. */
static int64_t n_keys(const struct job *j, int64_t row, const int32_t **list)
{
    const struct bp_mla_decode_args *a = j->a;
    int64_t n = a->meta->row_kv_len_host[row];
    *list = NULL;
    if (n > 0 && a->idx.data != NULL && *(const int32_t *)bp_at(&a->idx_len, row, 0, 0) >= 0) {
        *list = bp_at(&a->idx, row, 0, 0);
        n = *(const int32_t *)bp_at(&a->idx_len, row, 0, 0);
    }
    if (j->d->fault == FAULT_DECODE && n > 1) n -= 1; /* forgets the newest token */
    return n;
}

static int64_t slot_of(const struct job *j, const int32_t *list, int64_t row, int64_t at)
{
    const struct bp_mla_meta *m = j->a->meta->common;
    if (list != NULL) return list[at];
    const int64_t seq = j->a->meta->row_seq_host[row];
    return (int64_t)m->block_table_host[seq * m->table_stride + at / m->block_tok] * m->block_tok +
           at % m->block_tok;
}

static void attend(const struct job *j, int64_t row, int64_t head, uint64_t part)
{
    const struct bp_mla_decode_args *a = j->a;
    float *q = j->s.q + (int64_t)part * j->width, *key = j->s.key + (int64_t)part * j->width;
    double *acc = j->s.acc + (int64_t)part * j->latent,
           *score = j->s.score + (int64_t)part * j->n_key;
    const int32_t *list;
    const int64_t n = n_keys(j, row, &list);
    double max = -INFINITY, sum = 0.0;
    for (int64_t i = 0; i < j->latent; ++i) acc[i] = 0.0;
    if (n > 0) bp_load(q, bp_at(&a->q, row, head, 0), a->q.dtype, j->width);
    for (int64_t at = 0; at < n; ++at) {
        const int64_t slot = slot_of(j, list, row, at);
        double dot = 0.0;
        score[at] = -INFINITY;
        if (slot < 0) continue;
        bp_load(key, cached(j, slot), j->kv_dtype, j->width);
        for (int64_t i = 0; i < j->width; ++i) dot += (double)q[i] * (double)key[i];
        score[at] = dot * (double)a->scale;
        if (!(score[at] <= max)) max = score[at];
    }
    for (int64_t at = 0; at < n; ++at) {
        const int64_t slot = slot_of(j, list, row, at);
        if (slot < 0) continue;
        const double weight = exp(score[at] - max);
        bp_load(key, cached(j, slot), j->kv_dtype, j->latent);
        for (int64_t i = 0; i < j->latent; ++i) acc[i] += weight * (double)key[i];
        sum += weight;
    }
    for (int64_t i = 0; i < j->latent; ++i)
        q[i] = sum != 0.0 ? (float)(acc[i] / sum) : 0.0f; /* the query is no longer needed */
    bp_store(bp_at(&a->out, row, head, 0), a->out.dtype, q, j->latent);
    if (a->lse.data != NULL)
        *(float *)bp_at(&a->lse, row, head, 0) = sum != 0.0 ? (float)(max + log(sum)) : -INFINITY;
}

static void run_parts(void *arg, uint64_t begin, uint64_t end)
{
    const struct job *j = arg;
    const int64_t n_item = (int64_t)j->a->meta->n_row_padded * j->n_head;
    for (uint64_t part = begin; part < end; ++part) {
        for (int64_t i = (int64_t)part; i < n_item; i += PARTS)
            attend(j, i / j->n_head, i % j->n_head, part);
    }
}

static int32_t decode_plan(void *self, const struct bp_launch *l,
                           const struct bp_mla_decode_meta *m, struct bp_error *err)
{
    (void)self, (void)l, (void)m, (void)err;
    return BP_OK;
}

static int32_t decode_run(void *self, const struct bp_launch *l, const struct bp_mla_decode_args *a,
                          struct bp_error *err)
{
    struct dropin *d = self;
    struct job j = {
        .a = a, .d = d, .n_head = a->q.dim[1], .width = a->q.dim[2], .latent = a->out.dim[2]};
    struct bp_area area;
    char name[32];
    d->n_decode++;
    if (bp_layout_name(name, "mla", BP_DT_F32, (uint64_t)j.width) == a->pool.layout_id)
        j.kv_dtype = BP_DT_F32;
    if (bp_layout_name(name, "mla", BP_DT_BF16, (uint64_t)j.width) == a->pool.layout_id)
        j.kv_dtype = BP_DT_BF16;
    if (j.kv_dtype == BP_DT_NONE)
        return bp_error_set(err, BP_E_ARG, NAME, "run", "a layout that was not offered");
    j.n_key = a->meta->max_kv;
    if (a->idx.data != NULL && a->idx.dim[1] > j.n_key) j.n_key = a->idx.dim[1];
    bp_area_of(&area, l->scratch, l->scratch_bytes);
    take(&area, (uint64_t)j.width, (uint64_t)j.latent, (uint64_t)j.n_key, &j.s);
    if (area.bad != 0)
        return bp_error_set(err, BP_E_ARG, NAME, "run", "too little scratch for this call");
    bp_parallel_for(d->host, PARTS, 1, run_parts, &j);
    return BP_OK;
}

const struct bp_mla_decode_ops dropin_decode = {BP_OP_BASE(struct bp_mla_decode_ops, run,
                                                           "bp.mla.decode", decode_supports,
                                                           decode_workspace, bp_mla_decode_tensors),
                                                decode_plan, decode_run};

/* ---- frame ---- */

static const struct bp_cfg_key keys[] = {
    {"fault", "enum:none|decode|matmul", "none",
     "A deliberate error: the newest key is forgotten, or a block's scale.", 0, 0},
};

static int32_t plugin_open(const struct bp_host *host, void **plugin, struct bp_error *err)
{
    static const char *const faults[] = {"none", "decode", "matmul"};
    struct dropin *d = bp_mem_alloc(host, 1, sizeof *d);
    if (d == NULL)
        return bp_error_set(err, BP_E_NOMEM, NAME, "open", "no memory for the plugin's state");
    d->host = host;
    if (bp_cfg_choice(host, "fault", faults, BP_LEN(faults), FAULT_NONE, &d->fault) != BP_OK) {
        bp_mem_free(host, d);
        return bp_error_set(err, BP_E_CONFIG, NAME, "plugin.dropin.fault",
                            "takes none, decode or matmul");
    }
    *plugin = d;
    return BP_OK;
}

static void plugin_close(void *plugin)
{
    struct dropin *d = plugin;
    char line[96];
    struct bp_text t;
    bp_text_begin(&t, line, sizeof line);
    bp_text_add(&t, "calls: decode ");
    bp_text_u64(&t, d->n_decode);
    bp_text_add(&t, ", matmul ");
    bp_text_u64(&t, d->n_matmul);
    bp_log(d->host, BP_LOG_INFO, line);
    bp_mem_free(d->host, d);
}

static int32_t plugin_op_create(void *plugin, const struct bp_op_entry *entry,
                                const struct bp_device *dev, const struct bp_op_ref *inner,
                                uint32_t n_inner, struct bp_op_ref *out, struct bp_error *err)
{
    (void)inner;
    if (n_inner != 0 || (dev != NULL && dev->kind != BP_DEV_HOST))
        return bp_error_set(err, BP_DECLINED, NAME, entry->iface,
                            "a backend for the CPU that wraps nothing");
    if (strcmp(entry->iface, "bp.mla.decode") == 0)
        out->vt = &dropin_decode.base;
    else if (strcmp(entry->iface, "bp.quant") == 0)
        out->vt = &dropin_quant.base;
    else
        return bp_error_set(err, BP_DECLINED, NAME, entry->iface,
                            "only bp.mla.decode and bp.quant are offered");
    out->self = plugin;
    return BP_OK;
}

static void plugin_op_destroy(void *plugin, struct bp_op_ref *op)
{
    (void)plugin;
    op->vt = NULL;
    op->self = NULL;
}

BP_PLUGIN(BP_KIND_BACKEND, NAME, "0.3.1",
          BP_ABOUT("a third party", "MIT", "mla.decode, and Q8_0 products"), BP_NO_CUDA,
          BP_KEYS(keys), BP_HOOKS(plugin_open, plugin_close, plugin_op_create, plugin_op_destroy),
          ("bp.mla.decode", "two-pass"), ("bp.quant", "q8_0"));
