/* pads.c - a wrapper around mla.decode that hands every call on with one more row: a padded one, as a backend on a device
 * gets them where batches are rounded up. Its length is 0 and its query NaN, which must reach no other row. The engine
 * makes no such rows on the CPU. Only dense rows are known here. It allocates in a step, as a wrapper for use never should.
 * Threads: as the plugin contract says. SPDX-License-Identifier: MIT */
#include "backplane/sdk.h"

#define NAME "pads"

struct plugin {
    const struct bp_host *host;
};

struct op {
    struct plugin *plugin;
    struct bp_op_ref inner;
};

/* What a call is handed on with; all in one allocation. */
struct padded {
    struct bp_mla_decode_meta meta;
    struct bp_mla_decode_args args;
};

/* Room for n + 1 rows of t's shape, tightly packed. */
static struct bp_tensor packed(const struct bp_tensor *t, int64_t n, float *data)
{
    struct bp_tensor p = *t;
    p.data = data;
    p.dim[0] = n + 1;
    p.stride[2] = 1;
    p.stride[1] = t->dim[2];
    p.stride[0] = t->dim[1] * t->dim[2];
    return p;
}

static void copy_rows(const struct bp_tensor *to, const struct bp_tensor *from, int64_t n)
{
    for (int64_t r = 0; r < n; ++r) {
        for (int64_t h = 0; h < to->dim[1]; ++h) {
            memcpy((float *)to->data + r * to->stride[0] + h * to->stride[1],
                   (const float *)from->data + r * from->stride[0] + h * from->stride[1],
                   (size_t)to->dim[2] * sizeof(float));
        }
    }
}

static void copy_ints(int32_t *to, const int32_t *from, int64_t n)
{
    memcpy(to, from, (size_t)n * sizeof *to);
    to[n] = 0;
}

static int32_t padded_run(void *self, const struct bp_launch *l, const struct bp_mla_decode_args *a,
                          struct bp_error *err)
{
    const struct op *o = self;
    const struct bp_mla_decode_ops *inner = (const struct bp_mla_decode_ops *)o->inner.vt;
    const struct bp_host *host = o->plugin->host;
    const int64_t n = a->meta->n_row;
    const uint64_t n_q = (uint64_t)((n + 1) * a->q.dim[1] * a->q.dim[2]);
    const uint64_t n_out = (uint64_t)((n + 1) * a->out.dim[1] * a->out.dim[2]);
    if (a->idx.data != NULL || a->lse.data != NULL || a->meta->n_row_padded != a->meta->n_row ||
        a->q.dtype != BP_DT_F32 || a->out.dtype != BP_DT_F32) {
        return bp_error_set(err, BP_E_ARG, NAME, "mla.decode run",
                            "pads knows dense rows of F32 alone");
    }
    struct padded *p = bp_mem_alloc(host, 1, sizeof *p);
    float *numbers = bp_mem_alloc(host, n_q + n_out, sizeof *numbers);
    int32_t *ints = bp_mem_alloc(host, 2 * ((uint64_t)n + 1), sizeof *ints);
    int32_t rc = BP_E_NOMEM;
    if (p != NULL && numbers != NULL && ints != NULL) {
        p->meta = *a->meta;
        p->args = *a;
        p->args.meta = &p->meta;
        p->args.q = packed(&a->q, n, numbers);
        p->args.out = packed(&a->out, n, numbers + n_q);
        memset(numbers, 0xff, (size_t)(n_q + n_out) * sizeof *numbers); /* all ones are a NaN */
        copy_rows(&p->args.q, &a->q, n);
        copy_ints(ints, a->meta->row_seq_host, n);
        copy_ints(ints + n + 1, a->meta->row_kv_len_host, n);
        p->meta.n_row_padded = p->meta.n_row + 1;
        p->meta.row_seq = p->meta.row_seq_host = ints;
        p->meta.row_kv_len = p->meta.row_kv_len_host = ints + n + 1;
        rc = inner->run(o->inner.self, l, &p->args, err);
        if (rc == BP_OK) copy_rows(&a->out, &p->args.out, n);
    } else {
        (void)bp_error_set(err, rc, NAME, "mla.decode run", "no memory for a row more");
    }
    bp_mem_free(host, p);
    bp_mem_free(host, numbers);
    bp_mem_free(host, ints);
    return rc;
}

static const struct bp_mla_decode_ops decode_ops = {
    .base = BP_OP_BASE(struct bp_mla_decode_ops, run, "bp.mla.decode", NULL, NULL, NULL),
    .run = padded_run};

static int32_t plugin_open(const struct bp_host *host, void **plugin, struct bp_error *err)
{
    struct plugin *p = bp_mem_alloc(host, 1, sizeof *p);
    if (p == NULL) return bp_error_set(err, BP_E_NOMEM, NAME, "open", "no memory for the plugin");
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
    struct plugin *p = plugin;
    if (n_inner != 1 || strcmp(entry->iface, "bp.mla.decode") != 0 ||
        (dev != NULL && dev->kind != BP_DEV_HOST)) {
        return bp_error_set(err, BP_DECLINED, NAME, entry->iface,
                            "pads wraps one op of mla.decode, on the CPU");
    }
    struct op *o = bp_mem_alloc(p->host, 1, sizeof *o);
    if (o == NULL)
        return bp_error_set(err, BP_E_NOMEM, NAME, entry->iface, "no memory for the wrapper");
    *o = (struct op){.plugin = p, .inner = inner[0]};
    *out = (struct bp_op_ref){.vt = &decode_ops.base, .self = o};
    return BP_OK;
}

static void plugin_op_destroy(void *plugin, struct bp_op_ref *op)
{
    struct plugin *p = plugin;
    bp_mem_free(p->host, op->self);
    *op = (struct bp_op_ref){.vt = NULL, .self = NULL};
}

BP_PLUGIN(BP_KIND_WRAPPER, NAME, "1.0.0", BP_ABOUT("Backplane", "MIT", "adds a padded row of NaN"),
          BP_NO_CUDA, BP_NO_KEYS,
          BP_HOOKS(plugin_open, plugin_close, plugin_op_create, plugin_op_destroy),
          ("bp.mla.decode", "pads"));
