/* plugin.c - template of a plugin in plain C: one attention backend, "bp.mla.decode" on the CPU.
 * Correct for every plain cache layout and every shape; simple rather than fast. Sums are double in a fixed order, so a row
 * has the same bits whatever its neighbours and the number of threads.
 * Steps 1 to 8 are what you change. Threads: as plugin.h says. SPDX-License-Identifier: MIT */
#include <backplane/sdk.h>

#include <math.h>

/* Step 1: the name by which an INI chooses the plugin; the file is backplane-NAME.so. */
#define NAME "frozen"

enum {
    SLICES = 16, /* parts of scratch, so at most this many threads work on one call */
    LANES = 8,   /* partial sums of a dot product: more exact than one, and open to vector units */
    MAX_DIM = 1 << 16
};

/* Step 2: what one instance of the plugin keeps. `self` of every call is a pointer to it; no file-scope variables. */
struct plugin {
    const struct bp_host *host;
};

/* Step 3: supports. List everything that the op needs, and nothing else: a reason for each mismatch, none stops early. */
static int32_t decode_supports(void *self, const void *problem, struct bp_verdict *v)
{
    const struct bp_mla_problem *p = problem;
    char layout[32];
    (void)self;
    if (!bp_verdict_begin(v, &p->h, BP_END(struct bp_mla_problem, type_v))) return BP_OK;
    bp_want_dtype(v, "act_dtype", p->act_dtype,
                  BP_SET(BP_DT_F32) | BP_SET(BP_DT_F16) | BP_SET(BP_DT_BF16));
    bp_want_dtype(v, "kv_dtype", p->kv_dtype,
                  BP_SET(BP_DT_F32) | BP_SET(BP_DT_F16) | BP_SET(BP_DT_BF16));
    bp_want_range(v, BP_R_SHAPE, "n_head", p->n_head, 1, MAX_DIM);
    bp_want_range(v, BP_R_SHAPE, "kv_rank", p->kv_rank, 1, MAX_DIM);
    bp_want_range(v, BP_R_SHAPE, "rope_dim", p->rope_dim, 0, MAX_DIM);
    bp_want_range(v, BP_R_SHAPE, "block_tok", p->block_tok, 1, MAX_DIM);
    bp_want_le(v, BP_R_GRAPH, "need_capture", p->need_capture, BP_CAPTURE_NONE);
    bp_want_le(v, BP_R_DETERMINISM, "need_determinism", p->need_determinism, BP_DET_BATCH);
    /* The cache layouts that the op reads; the engine picks one that all attention providers accept. */
    if (bp_layout_name(layout, "mla", p->kv_dtype, (uint64_t)p->kv_rank + p->rope_dim) != 0) {
        bp_offer_layout(v, layout);
        bp_want_layout(v, "layout_id", p->layout_id);
    }
    return bp_verdict_done(v, BP_CAPTURE_NONE, BP_DET_BATCH, -1.0);
}

/* Step 4: memory. One function takes the parts, for workspace() to count and for run() to lay out. */
struct scratch {
    float *q, *key; /* (SLICES, width) */
    double *acc;    /* (SLICES, latent) */
};

static void take_scratch(struct bp_area *a, uint64_t width, uint64_t latent, struct scratch *s)
{
    s->q = bp_area_take(a, SLICES * width, sizeof(float));
    s->key = bp_area_take(a, SLICES * width, sizeof(float));
    s->acc = bp_area_take(a, SLICES * latent, sizeof(double));
}

static int32_t decode_workspace(void *self, const void *problem_max, struct bp_workspace *out,
                                struct bp_error *err)
{
    const struct bp_mla_problem *p = problem_max;
    struct bp_area area;
    struct scratch s;
    (void)self;
    bp_area_count(&area);
    take_scratch(&area, (uint64_t)p->kv_rank + p->rope_dim, p->kv_rank, &s);
    if (area.bad != 0) {
        return bp_error_set(err, BP_E_LIMIT, NAME, "mla.decode workspace",
                            "the scratch of this problem overflows a 64-bit size");
    }
    return bp_workspace_set(out, 0, 0, area.used, 0);
}

/* Step 5: the arithmetic. */
struct job {
    const struct bp_mla_decode_args *a;
    struct scratch s;
    uint32_t kv_dtype;
    int64_t n_head, width, latent; /* width = C + R, latent = C */
};

static double dot(const float *a, const float *b, int64_t n)
{
    double part[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int64_t j = 0; j < LANES; ++j) part[j] += (double)a[i + j] * b[i + j];
    }
    for (; i < n; ++i) part[i % LANES] += (double)a[i] * b[i];
    return ((part[0] + part[1]) + (part[2] + part[3])) +
           ((part[4] + part[5]) + (part[6] + part[7]));
}

/* Softmax of one query over keys that arrive one at a time: the sums are kept relative to the largest score so far. */
struct softmax {
    double max, sum;
};

static void softmax_add(struct softmax *s, double score, const float *value, double *acc, int64_t n)
{
    if (score > s->max || s->sum == 0.0) {
        const double shrink = s->sum == 0.0 ? 0.0 : exp(s->max - score);
        for (int64_t i = 0; i < n; ++i) acc[i] *= shrink;
        s->sum *= shrink;
        s->max = score;
    }
    const double weight = exp(score - s->max);
    s->sum += weight;
    for (int64_t i = 0; i < n; ++i) acc[i] += weight * value[i];
}

/* The token slot of the row's at-th key: from its list, or by position from the block table; -1 means skip. */
static int64_t key_slot(const struct bp_mla_decode_args *a, const int32_t *list, int64_t seq,
                        int64_t at)
{
    const struct bp_mla_meta *m = a->meta->common;
    if (list != NULL) return list[at];
    const int64_t block = m->block_table_host[seq * m->table_stride + at / m->block_tok];
    return block * m->block_tok + at % m->block_tok;
}

static const void *pool_row(const struct job *j, int64_t slot)
{
    const int64_t block_tok = j->a->meta->common->block_tok;
    const unsigned char *block =
        (const unsigned char *)j->a->pool.data + slot / block_tok * j->a->pool.stride[0];
    return block + slot % block_tok * j->width * bp_dtype_bytes(j->kv_dtype);
}

static void attend(const struct job *j, int64_t row, int64_t head, float *q, float *key,
                   double *acc)
{
    const struct bp_mla_decode_args *a = j->a;
    const int64_t seq = a->meta->row_seq_host[row];
    int64_t n_key = a->meta->row_kv_len_host[row];
    const int32_t *list = NULL;
    struct softmax soft = {-INFINITY, 0.0};

    if (n_key > 0 && a->idx.data != NULL) {
        const int32_t n_list = *(const int32_t *)bp_at(&a->idx_len, row, 0, 0);
        if (n_list >= 0) { /* -1: the row attends all its keys */
            n_key = n_list;
            list = bp_at(&a->idx, row, 0, 0);
        }
    }
    for (int64_t i = 0; i < j->latent; ++i) acc[i] = 0.0;
    if (n_key > 0) bp_load(q, bp_at(&a->q, row, head, 0), a->q.dtype, j->width);
    for (int64_t at = 0; at < n_key; ++at) {
        const int64_t slot = key_slot(a, list, seq, at);
        if (slot < 0) continue;
        bp_load(key, pool_row(j, slot), j->kv_dtype, j->width);
        softmax_add(&soft, (double)a->scale * dot(q, key, j->width), key, acc, j->latent);
    }
    for (int64_t i = 0; i < j->latent; ++i) /* a row without keys gives 0 */
        q[i] = soft.sum != 0.0 ? (float)(acc[i] / soft.sum) : 0.0f;
    bp_store(bp_at(&a->out, row, head, 0), a->out.dtype, q, j->latent);
    if (a->lse.data != NULL) {
        const float lse = soft.sum != 0.0 ? (float)(soft.max + log(soft.sum)) : -INFINITY;
        *(float *)bp_at(&a->lse, row, head, 0) = lse;
    }
}

/* Slice s takes pairs of row and head s, s + SLICES, ...: its part of scratch has one owner. */
static void run_slices(void *arg, uint64_t begin, uint64_t end)
{
    const struct job *j = arg;
    const int64_t n_item = (int64_t)j->a->meta->n_row_padded * j->n_head;
    for (uint64_t slice = begin; slice < end; ++slice) {
        for (int64_t item = (int64_t)slice; item < n_item; item += SLICES) {
            attend(j, item / j->n_head, item % j->n_head, j->s.q + (int64_t)slice * j->width,
                   j->s.key + (int64_t)slice * j->width, j->s.acc + (int64_t)slice * j->latent);
        }
    }
}

/* The id of the pool's layout says how its numbers are stored; 0 for a layout that supports() never offered. */
static uint32_t pool_dtype(const struct bp_tensor *pool, int64_t width)
{
    static const uint32_t dtypes[] = {BP_DT_BF16, BP_DT_F16, BP_DT_F32};
    char name[32];
    for (uint32_t i = 0; i < BP_LEN(dtypes); ++i) {
        if (bp_layout_name(name, "mla", dtypes[i], (uint64_t)width) == pool->layout_id)
            return dtypes[i];
    }
    return BP_DT_NONE;
}

/* Step 6: the slots. plan() prepares a work list once per step; this op needs none. */
static int32_t decode_plan(void *self, const struct bp_launch *l,
                           const struct bp_mla_decode_meta *m, struct bp_error *err)
{
    (void)self, (void)l, (void)m, (void)err;
    return BP_OK;
}

static int32_t decode_run(void *self, const struct bp_launch *l, const struct bp_mla_decode_args *a,
                          struct bp_error *err)
{
    const struct plugin *p = self;
    struct job j = {.a = a, .n_head = a->q.dim[1], .width = a->q.dim[2], .latent = a->out.dim[2]};
    struct bp_area area;
    if (a->meta->n_row_padded == 0) return BP_OK;
    j.kv_dtype = pool_dtype(&a->pool, j.width);
    if (j.kv_dtype == BP_DT_NONE) {
        return bp_error_set(err, BP_E_ARG, NAME, "mla.decode run",
                            "the pool has a layout that this plugin did not offer");
    }
    bp_area_of(&area, l->scratch, l->scratch_bytes);
    take_scratch(&area, (uint64_t)j.width, (uint64_t)j.latent, &j.s);
    if (area.bad != 0) {
        return bp_error_number(
            err, BP_E_ARG, NAME, "mla.decode run", "only ", (int64_t)l->scratch_bytes,
            " bytes of scratch were given; ask workspace() with the largest problem");
    }
    bp_parallel_for(p->host, SLICES, 1, run_slices, &j);
    return BP_OK;
}

static const struct bp_mla_decode_ops decode_ops = {
    BP_OP_BASE(struct bp_mla_decode_ops, run, "bp.mla.decode", decode_supports, decode_workspace,
               bp_mla_decode_tensors),
    decode_plan, decode_run};

/* Step 7: life of the plugin and of its ops. */
static int32_t plugin_open(const struct bp_host *host, void **plugin, struct bp_error *err)
{
    struct plugin *p = bp_mem_alloc(host, 1, sizeof *p);
    if (p == NULL)
        return bp_error_set(err, BP_E_NOMEM, NAME, "open", "no memory for the plugin's state");
    p->host = host;
    *plugin = p;
    return BP_OK;
}

static void plugin_close(void *plugin)
{
    struct plugin *p = plugin;
    bp_mem_free(p->host, p);
}

static int32_t plugin_op_create(void *plugin, const struct bp_op_entry *entry,
                                const struct bp_device *dev, const struct bp_op_ref *inner,
                                uint32_t n_inner, struct bp_op_ref *out, struct bp_error *err)
{
    (void)inner;
    if (strcmp(entry->iface, "bp.mla.decode") != 0) {
        return bp_error_set(err, BP_DECLINED, NAME, entry->iface,
                            "this plugin does not offer the interface");
    }
    if (n_inner != 0) {
        return bp_error_number(err, BP_E_ARG, NAME, entry->iface, "a backend wraps nothing, and ",
                               n_inner, " inner ops were given");
    }
    if (dev != NULL && dev->kind != BP_DEV_HOST) {
        return bp_error_set(
            err, BP_DECLINED, NAME, entry->iface,
            "this op computes on the CPU; set engine.device = cpu, or name a provider for "
            "the device");
    }
    out->vt = &decode_ops.base;
    out->self = plugin;
    return BP_OK;
}

static void plugin_op_destroy(void *plugin, struct bp_op_ref *op)
{
    (void)plugin;
    op->vt = NULL;
    op->self = NULL;
}

/* Step 8: note, descriptor and entry, all from this one list. */
BP_PLUGIN(BP_KIND_BACKEND, NAME, "1.0.0",
          BP_ABOUT("your name", "MIT", "mla.decode in plain C, double sums"), BP_NO_CUDA,
          BP_NO_KEYS, BP_HOOKS(plugin_open, plugin_close, plugin_op_create, plugin_op_destroy),
          ("bp.mla.decode", "plain"));
