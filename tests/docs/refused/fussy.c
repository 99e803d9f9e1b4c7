/* fussy.c - a plugin that refuses everything, for the reason that its key says: what docs/plugin-refused.md shows is what
 * the engine prints about it. Written with the helpers that plugins use, so that the words are theirs.
 * It serves nothing. Threads: as plugin.h says. SPDX-License-Identifier: MIT */
#include <backplane/sdk.h>

#define NAME "fussy"

enum why {
    WHY_NONE,
    WHY_DRIVER,
    WHY_ARCH,
    WHY_DTYPE,
    WHY_QUANT,
    WHY_LAYOUT,
    WHY_SHAPE,
    WHY_ALIGN,
    WHY_FEATURE,
    WHY_GRAPH,
    WHY_DETERMINISM,
    WHY_TOPOLOGY,
    WHY_MEMORY,
    WHY_SELFTEST,
    WHY_EXT,
    WHY_DEVICE,
    WHY_VENDOR,
    WHY_SHORT,
    WHY_OPEN
};
static const char *const words[] = {"none",        "driver",   "arch",   "dtype",    "quant",
                                    "layout",      "shape",    "align",  "feature",  "graph",
                                    "determinism", "topology", "memory", "selftest", "ext",
                                    "device",      "vendor",   "short",  "open"};
static const struct bp_cfg_key keys[] = {
    {"why",
     "enum:none|driver|arch|dtype|quant|layout|shape|align|feature|graph|determinism|topology|"
     "memory|selftest|ext|"
     "device|vendor|short|open",
     "none", "The reason for which everything is refused.", 0, 0},
    {"splits", "int", "0", "Parts of the keys; 0 chooses by length.", 0, 64}};

struct plugin {
    const struct bp_host *host;
    uint32_t why;
};

static void refuse(uint32_t why, struct bp_verdict *v)
{
    switch (why) {
    case WHY_DRIVER:
        bp_reason_add(v, BP_R_DRIVER, 1, "driver", 12080, 13000, INT32_MAX, "update the driver");
        break;
    case WHY_ARCH:
        bp_want_range(v, BP_R_ARCH, "cc", 90, 120, 121);
        break;
    case WHY_ALIGN:
        bp_want_mul(v, BP_R_ALIGN, "cols", 288, 256);
        break;
    case WHY_FEATURE:
        bp_want_eq(v, BP_R_FEATURE, "prologue", BP_PROLOGUE_RMS, BP_PROLOGUE_NONE);
        break;
    case WHY_GRAPH:
        bp_want_le(v, BP_R_GRAPH, "need_capture", BP_CAPTURE_UNIFORM, BP_CAPTURE_NONE);
        break;
    case WHY_DETERMINISM:
        bp_want_le(v, BP_R_DETERMINISM, "need_determinism", BP_DET_BATCH, BP_DET_RUN);
        break;
    case WHY_TOPOLOGY:
        bp_reason_add(v, BP_R_TOPOLOGY, 1, "world", 3, 2, 8, "ranks must be 2, 4 or 8");
        break;
    case WHY_MEMORY:
        bp_reason_add(v, BP_R_MEMORY, 1, "smem_bytes", 101376, 233472, INT64_MAX,
                      "shared memory of one block");
        break;
    case WHY_DEVICE:
        bp_want_cc(v, NULL, 120, 121);
        break;
    case WHY_VENDOR:
        bp_reason_add(v, BP_R_VENDOR + 7, 1, "", 0, 0, 0, "the licence of this backend has ended");
        break;
    default:
        break;
    }
}

/* What the host would have to send for these two, sent to ourselves. */
static void refuse_struct(uint32_t why, const struct bp_quant_problem *p, struct bp_verdict *v)
{
    struct bp_quant_problem copy = *p;
    const struct bp_ext ext = {sizeof ext, BP_EXT_CRITICAL, bp_id("acme.sparse"), NULL};
    if (why == WHY_EXT) copy.h.next = &ext;
    if (why == WHY_SHORT) copy.h.size = BP_END(struct bp_quant_problem, max_tok);
    (void)bp_verdict_begin(v, &copy.h, BP_END(struct bp_quant_problem, epilogue));
}

static int32_t quant_supports(void *self, const void *problem, struct bp_verdict *v)
{
    const struct plugin *me = self;
    const struct bp_quant_problem *p = problem;
    static const uint32_t q8[] = {BP_GGUF_Q8_0};
    if (me->why == WHY_SELFTEST) {
        v->level = 7;
        return BP_OK;
    }
    if (me->why == WHY_EXT || me->why == WHY_SHORT) {
        refuse_struct(me->why, p, v);
        return BP_OK;
    }
    if (!bp_verdict_begin(v, &p->h, BP_END(struct bp_quant_problem, epilogue))) return BP_OK;
    if (me->why == WHY_DTYPE)
        bp_want_dtype(v, "x_dtype", p->x_dtype, BP_SET(BP_DT_F16) | BP_SET(BP_DT_BF16));
    if (me->why == WHY_QUANT)
        bp_want_of(v, BP_R_QUANT, "type", bp_quant_shape_at(p, 0)->type, q8, BP_LEN(q8));
    if (me->why == WHY_SHAPE)
        bp_want_range(v, BP_R_SHAPE, "cols", bp_quant_shape_at(p, 0)->cols, 512, 16384);
    refuse(me->why, v);
    if (me->why == WHY_NONE) v->level = BP_V_NO;
    return bp_verdict_done(v, BP_CAPTURE_NONE, BP_DET_RUN, -1.0);
}

static int32_t decode_supports(void *self, const void *problem, struct bp_verdict *v)
{
    const struct plugin *me = self;
    const struct bp_mla_problem *p = problem;
    if (!bp_verdict_begin(v, &p->h, BP_END(struct bp_mla_problem, type_v))) return BP_OK;
    if (me->why == WHY_LAYOUT) {
        bp_offer_layout(v, "mla.fp8.656");
        bp_want_layout(v, "layout_id", p->layout_id);
    } else {
        bp_want_dtype(v, "kv_dtype", p->kv_dtype, BP_SET(BP_DT_BF16));
    }
    return bp_verdict_done(v, BP_CAPTURE_NONE, BP_DET_RUN, -1.0);
}

static int32_t no_workspace(void *self, const void *problem_max, struct bp_workspace *out,
                            struct bp_error *err)
{
    (void)self, (void)problem_max, (void)err;
    return bp_workspace_set(out, 0, 0, 0, 0);
}

static int32_t decode_plan(void *self, const struct bp_launch *l,
                           const struct bp_mla_decode_meta *m, struct bp_error *err)
{
    (void)self, (void)l, (void)m;
    return bp_error_set(err, BP_E_DEVICE, NAME, "mla.decode plan", "this plugin serves nothing");
}

static int32_t decode_run(void *self, const struct bp_launch *l, const struct bp_mla_decode_args *a,
                          struct bp_error *err)
{
    (void)self, (void)l, (void)a;
    return bp_error_set(err, BP_E_DEVICE, NAME, "mla.decode run", "this plugin serves nothing");
}

/* Its products are missing, so a yes could not be kept. */
static const struct bp_quant_ops quant_ops = {.base = BP_OP_BASE(struct bp_quant_ops, dequantize,
                                                                 "bp.quant", quant_supports,
                                                                 no_workspace, bp_quant_tensors)};
static const struct bp_mla_decode_ops decode_ops = {BP_OP_BASE(struct bp_mla_decode_ops, run,
                                                               "bp.mla.decode", decode_supports,
                                                               no_workspace, bp_mla_decode_tensors),
                                                    decode_plan, decode_run};

static int32_t plugin_open(const struct bp_host *host, void **plugin, struct bp_error *err)
{
    struct plugin *p = bp_mem_alloc(host, 1, sizeof *p);
    if (p == NULL)
        return bp_error_set(err, BP_E_NOMEM, NAME, "open", "no memory for the plugin's state");
    p->host = host;
    int32_t rc = bp_cfg_choice(host, "why", words, BP_LEN(words), WHY_NONE, &p->why);
    if (rc == BP_OK && p->why == WHY_OPEN)
        rc = bp_error_set(err, BP_E_DEVICE, NAME, "open",
                          "the accelerator does not answer; is it switched on?");
    if (rc != BP_OK) {
        bp_mem_free(host, p);
        return rc;
    }
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
    (void)dev, (void)inner, (void)n_inner, (void)err;
    out->vt = strcmp(entry->iface, "bp.quant") == 0 ? &quant_ops.base : &decode_ops.base;
    out->self = plugin;
    return BP_OK;
}

static void plugin_op_destroy(void *plugin, struct bp_op_ref *op)
{
    (void)plugin;
    op->vt = NULL;
}

BP_PLUGIN(BP_KIND_BACKEND, NAME, "1.0.0", BP_ABOUT("Backplane", "MIT", "refuses everything"),
          BP_NO_CUDA, BP_KEYS(keys),
          BP_HOOKS(plugin_open, plugin_close, plugin_op_create, plugin_op_destroy),
          ("bp.quant", "none"), ("bp.mla.decode", "none"));
