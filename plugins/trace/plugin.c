/* plugin.c - trace: wraps any interface and keeps a span of every slot call, see docs/wrappers.md.
 * Not here: the slots (slots.c), the file (write.c).
 * Threads: open, close, op_create and op_destroy come one at a time. SPDX-License-Identifier: MIT */
#include "trace.h"

#define DEFAULT_OUT "backplane-trace.json"
enum { DEFAULT_EVENTS = 65536 };

static const struct bp_cfg_key keys[] = {
    {"out", "string", DEFAULT_OUT,
     "File for the spans, as Chrome trace JSON; empty: counters alone.", 0, 0},
    {"events", "int", "65536", "Spans kept of each wrapped op; the newest stay.", 1, 1 << 24},
    {"shapes", "bool", "no", "Keep names, dtypes and shapes of the tensors of each call.", 0, 0}};

static int32_t plugin_open(const struct bp_host *host, void **plugin, struct bp_error *err)
{
    struct trace_plugin *p = bp_mem_alloc(host, 1, sizeof *p);
    if (p == NULL)
        return bp_error_set(err, BP_E_NOMEM, TRACE_NAME, "open", "no memory for the state");
    p->host = host;
    p->fd = -1;
    int32_t rc = bp_cfg_str(host, "out", DEFAULT_OUT, p->out, sizeof p->out);
    if (rc == BP_OK) rc = bp_cfg_i64(host, "events", DEFAULT_EVENTS, &p->cap);
    if (rc == BP_OK) rc = bp_cfg_bool(host, "shapes", 0, &p->want_shapes);
    if (rc != BP_OK) {
        bp_mem_free(host, p);
        return bp_error_set(err, BP_E_CONFIG, TRACE_NAME, "[plugin.trace]",
                            "out, events or shapes cannot be read; out takes at most 511 bytes");
    }
    *plugin = p;
    return BP_OK;
}

static void free_op(const struct bp_host *host, struct trace_op *o)
{
    bp_mem_free(host, o->spans);
    bp_mem_free(host, o->shapes);
    bp_mem_free(host, o);
}

static void plugin_close(void *plugin)
{
    struct trace_plugin *p = plugin;
    trace_file_finish(p);
    while (p->newest != NULL) {
        struct trace_op *o = p->newest;
        p->newest = o->older;
        free_op(p->host, o);
    }
    bp_mem_free(p->host, p);
}

static int32_t plugin_op_create(void *plugin, const struct bp_op_entry *entry,
                                const struct bp_device *dev, const struct bp_op_ref *inner,
                                uint32_t n_inner, struct bp_op_ref *out, struct bp_error *err)
{
    struct trace_plugin *p = plugin;
    const char *const *names = NULL;
    const struct bp_op_base *table = trace_table(entry->iface, &names);
    if (table == NULL) {
        return bp_error_set(err, BP_DECLINED, TRACE_NAME, entry->iface,
                            "trace does not know this interface");
    }
    if (n_inner != 1 || inner[0].vt == NULL) {
        return bp_error_number(err, BP_E_ARG, TRACE_NAME, entry->iface, "trace wraps one op, and ",
                               n_inner, " were given");
    }
    int32_t rc = trace_file_open(p, err);
    if (rc != BP_OK) return rc;
    struct trace_op *o = bp_mem_alloc(p->host, 1, sizeof *o);
    if (o != NULL) {
        o->cap = (uint64_t)p->cap;
        o->spans = bp_mem_alloc(p->host, o->cap, sizeof *o->spans);
        if (p->want_shapes) o->shapes = bp_mem_alloc(p->host, o->cap, sizeof *o->shapes);
    }
    if (o == NULL || o->spans == NULL || (p->want_shapes && o->shapes == NULL)) {
        if (o != NULL) free_op(p->host, o);
        return bp_error_number(err, BP_E_NOMEM, TRACE_NAME, entry->iface, "no memory for ", p->cap,
                               " spans; lower [plugin.trace] events");
    }
    o->plugin = p;
    o->inner = inner[0];
    o->iface = table->iface;
    o->slot_names = names;
    o->id = ++p->n_ops;
    o->device_kind = dev != NULL ? dev->kind : (uint32_t)BP_DEV_HOST;
    o->older = p->newest;
    p->newest = o;
    out->vt = table;
    out->self = o;
    return BP_OK;
}

/* One line with the counters; the spans stay until the file is written. */
static void plugin_op_destroy(void *plugin, struct bp_op_ref *op)
{
    struct trace_plugin *p = plugin;
    struct trace_op *o = op->self;
    char line[1024];
    struct bp_text t;
    uint64_t n_calls = 0;
    bp_text_begin(&t, line, sizeof line);
    bp_text_add(&t, o->iface);
    for (uint32_t i = 0; i < TRACE_MAX_SLOTS; ++i) {
        const uint64_t calls = atomic_load(&o->calls[i]);
        if (calls == 0) continue;
        bp_text_add(&t, n_calls == 0 ? ": " : ", ");
        bp_text_add(&t, o->slot_names[i]);
        bp_text_add(&t, " ");
        bp_text_u64(&t, calls);
        bp_text_add(&t, " calls ");
        bp_text_u64(&t, atomic_load(&o->ns[i]) / 1000);
        bp_text_add(&t, " us");
        n_calls += calls;
    }
    if (n_calls != 0) bp_log(p->host, BP_LOG_INFO, line);
    op->vt = NULL;
    op->self = NULL;
}

BP_PLUGIN(BP_KIND_WRAPPER, TRACE_NAME, "1.0.0",
          BP_ABOUT("Backplane", "MIT", "spans and counters of every slot call"), BP_NO_CUDA,
          BP_KEYS(keys), BP_HOOKS(plugin_open, plugin_close, plugin_op_create, plugin_op_destroy),
          ("bp.device", "trace"), ("bp.dense", "trace"), ("bp.quant", "trace"), ("bp.moe", "trace"),
          ("bp.coll", "trace"), ("bp.mla.common", "trace"), ("bp.mla.prefill", "trace"),
          ("bp.mla.decode", "trace"), ("bp.mla.index", "trace"));
