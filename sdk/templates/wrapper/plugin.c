/* plugin.c - template of a wrapper: counts calls of two ops, lets everything through, and says the counts at the end.
 * A wrapper fills only the slots that it wants to see; the engine calls all others directly, so they cost nothing.
 * Steps 1 to 5 are what you change. Threads: calls of one op never overlap, so its counter needs no lock.
 * SPDX-License-Identifier: MIT */
#include <backplane/sdk.h>

/* Step 1: the name by which [wrap] of an INI lists the wrapper; the file is backplane-NAME.so. */
#define NAME "count"

struct plugin {
    const struct bp_host *host;
};

/* Step 2: what one wrapped op keeps. `inner` is what it wraps and outlives it. */
struct op {
    struct plugin *plugin;
    struct bp_op_ref inner;
    const char *what;
    uint64_t n_calls, n_failed;
};

static int32_t counted(struct op *o, int32_t rc)
{
    o->n_calls++;
    if (rc != BP_OK) o->n_failed++;
    return rc;
}

/* Step 3: the slots to look at. Pass the very arguments on: they may be longer than the structs known here. The inner
 * table and its self come as a pair, so a function of the inner table always gets the inner self. */
static int32_t decode_run(void *self, const struct bp_launch *l, const struct bp_mla_decode_args *a,
                          struct bp_error *err)
{
    struct op *o = self;
    const struct bp_mla_decode_ops *inner = (const struct bp_mla_decode_ops *)o->inner.vt;
    return counted(o, inner->run(o->inner.self, l, a, err));
}

static int32_t quant_matmul(void *self, const struct bp_launch *l,
                            const struct bp_quant_matmul_args *a, struct bp_error *err)
{
    struct op *o = self;
    const struct bp_quant_ops *inner = (const struct bp_quant_ops *)o->inner.vt;
    return counted(o, inner->matmul(o->inner.self, l, a, err));
}

/* Step 4: the tables. Every slot that is not named is NULL, and so passes through. */
static const struct bp_mla_decode_ops decode_ops = {
    .base = BP_OP_BASE(struct bp_mla_decode_ops, run, "bp.mla.decode", NULL, NULL, NULL),
    .run = decode_run};
static const struct bp_quant_ops quant_ops = {
    .base = BP_OP_BASE(struct bp_quant_ops, dequantize, "bp.quant", NULL, NULL, NULL),
    .matmul = quant_matmul};

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
    struct plugin *p = plugin;
    const int decode = strcmp(entry->iface, "bp.mla.decode") == 0;
    (void)dev; /* only counts, so any device will do */
    if (!decode && strcmp(entry->iface, "bp.quant") != 0) {
        return bp_error_set(err, BP_DECLINED, NAME, entry->iface,
                            "this wrapper does not know the interface");
    }
    if (n_inner != 1 || inner[0].vt == NULL) {
        return bp_error_number(err, BP_E_ARG, NAME, entry->iface,
                               "a wrapper takes one inner op, and ", n_inner, " were given");
    }
    struct op *o = bp_mem_alloc(p->host, 1, sizeof *o);
    if (o == NULL)
        return bp_error_set(err, BP_E_NOMEM, NAME, entry->iface, "no memory for the wrapper");
    o->plugin = p;
    o->inner = inner[0];
    o->what = decode ? "mla.decode run" : "quant matmul";
    out->vt = decode ? &decode_ops.base : &quant_ops.base;
    out->self = o;
    return BP_OK;
}

static void plugin_op_destroy(void *plugin, struct bp_op_ref *op)
{
    struct plugin *p = plugin;
    struct op *o = op->self;
    char line[128];
    struct bp_text t;
    bp_text_begin(&t, line, sizeof line);
    bp_text_add(&t, o->what);
    bp_text_add(&t, ": ");
    bp_text_u64(&t, o->n_calls);
    bp_text_add(&t, " calls, ");
    bp_text_u64(&t, o->n_failed);
    bp_text_add(&t, " failed");
    bp_log(p->host, BP_LOG_INFO, line);
    bp_mem_free(p->host, o);
    op->vt = NULL;
    op->self = NULL;
}

/* Step 5: note, descriptor and entry, all from this one list; it names the interfaces that can be wrapped. */
BP_PLUGIN(BP_KIND_WRAPPER, NAME, "1.0.0", BP_ABOUT("your name", "MIT", "counts calls"), BP_NO_CUDA,
          BP_NO_KEYS, BP_HOOKS(plugin_open, plugin_close, plugin_op_create, plugin_op_destroy),
          ("bp.mla.decode", "count"), ("bp.quant", "count"));
