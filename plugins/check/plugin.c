/* plugin.c - check: wraps any interface and looks at what each call wrote, see docs/wrappers.md.
 * Not here: the slots (slots.c), numbers and inputs (scan.c), memory around outputs (guard.c).
 * Threads: open, close, op_create and op_destroy come one at a time. SPDX-License-Identifier: MIT */
#include "check.h"

static const struct bp_cfg_key keys[] = {
    {"guards", "bool", "yes", "Watch the memory around outputs; takes more scratch.", 0, 0},
    {"inputs", "bool", "yes", "Compare inputs before and after each call; pools are left out.", 0,
     0}};

static int32_t plugin_open(const struct bp_host *host, void **plugin, struct bp_error *err)
{
    struct check_plugin *p = bp_mem_alloc(host, 1, sizeof *p);
    if (p == NULL)
        return bp_error_set(err, BP_E_NOMEM, CHECK_NAME, "open", "no memory for the state");
    p->host = host;
    int32_t rc = bp_cfg_bool(host, "guards", 1, &p->guards);
    if (rc == BP_OK) rc = bp_cfg_bool(host, "inputs", 1, &p->inputs);
    if (rc != BP_OK) {
        bp_mem_free(host, p);
        return bp_error_set(err, BP_E_CONFIG, CHECK_NAME, "[plugin.check]",
                            "guards or inputs cannot be read; they are yes or no");
    }
    *plugin = p;
    return BP_OK;
}

static void plugin_close(void *plugin)
{
    struct check_plugin *p = plugin;
    bp_mem_free(p->host, p);
}

static int32_t plugin_op_create(void *plugin, const struct bp_op_entry *entry,
                                const struct bp_device *dev, const struct bp_op_ref *inner,
                                uint32_t n_inner, struct bp_op_ref *out, struct bp_error *err)
{
    struct check_plugin *p = plugin;
    const struct bp_op_base *table = check_table(entry->iface);
    if (table == NULL) {
        return bp_error_set(err, BP_DECLINED, CHECK_NAME, entry->iface,
                            "check does not know this interface");
    }
    if (n_inner != 1 || inner[0].vt == NULL) {
        return bp_error_number(err, BP_E_ARG, CHECK_NAME, entry->iface, "check wraps one op, and ",
                               n_inner, " were given");
    }
    if (dev != NULL && dev->kind != BP_DEV_HOST) {
        /* Passing everything through would look like a clean bill of health. */
        return bp_error_set(err, BP_DECLINED, CHECK_NAME, entry->iface,
                            "check reads tensors with the CPU, and those of this op lie on another "
                            "device");
    }
    struct check_op *o = bp_mem_alloc(p->host, 1, sizeof *o);
    if (o == NULL)
        return bp_error_set(err, BP_E_NOMEM, CHECK_NAME, entry->iface, "no memory for the wrapper");
    o->plugin = p;
    o->inner = inner[0];
    o->iface = table->iface;
    out->vt = table;
    out->self = o;
    return BP_OK;
}

static void plugin_op_destroy(void *plugin, struct bp_op_ref *op)
{
    struct check_plugin *p = plugin;
    struct check_op *o = op->self;
    char line[512];
    struct bp_text t;
    const struct {
        uint64_t n;
        const char *what;
    } parts[] = {{o->n_calls, " calls, "},
                 {o->n_outputs, " outputs looked at, "},
                 {o->n_guarded, " in guarded memory, "},
                 {o->n_gaps, " between their rows, "},
                 {o->n_aliased, " laid over an input, "},
                 {o->n_no_room, " without room for guards"}};
    bp_text_begin(&t, line, sizeof line);
    bp_text_add(&t, o->iface);
    bp_text_add(&t, ": ");
    for (uint32_t i = 0; i < BP_LEN(parts); ++i) {
        bp_text_u64(&t, parts[i].n);
        bp_text_add(&t, parts[i].what);
    }
    if (o->n_calls != 0) bp_log(p->host, BP_LOG_INFO, line);
    bp_mem_free(p->host, o);
    op->vt = NULL;
    op->self = NULL;
}

BP_PLUGIN(BP_KIND_WRAPPER, CHECK_NAME, "1.0.0",
          BP_ABOUT("Backplane", "MIT", "NaN, infinity and stray writes, named by layer and op"),
          BP_NO_CUDA, BP_KEYS(keys),
          BP_HOOKS(plugin_open, plugin_close, plugin_op_create, plugin_op_destroy),
          ("bp.device", "check"), ("bp.dense", "check"), ("bp.quant", "check"), ("bp.moe", "check"),
          ("bp.coll", "check"), ("bp.mla.common", "check"), ("bp.mla.prefill", "check"),
          ("bp.mla.decode", "check"), ("bp.mla.index", "check"));
