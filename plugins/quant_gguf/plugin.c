/* plugin.c - quant_gguf: bp.quant on CUDA devices. Descriptor, life cycle, what is served and with what memory.
 * Not here: weights (weight.c), products (matmul.c), choices (plan.c), kernels (kernels/).
 * Threads: as plugin.h says. SPDX-License-Identifier: MIT */
#include "quant_gguf.h"

static const uint32_t architectures[] = {900, 1200, 900u | 1u << 31};

static const struct bp_cfg_key keys[] = {
    {"gemm_from", "int", "9",
     "products of this many tokens and more decode the weight and go through cuBLAS; fewer read it "
     "as it is, eight at a time",
     1, 1 << 20},
};

/* ---- what is served ---- */

static void want_weight(struct bp_verdict *v, const struct bp_quant_shape *s, int64_t cols)
{
    if (qg_block_elems(s->type) == 0) {
        bp_reason_add(v, BP_R_QUANT, 1, "w.type", s->type, 0, BP_GGUF_COUNT - 1,
                      "no decoder for this type");
    } else if (qg_step_cols(s->type) == 0 && s->type != BP_GGUF_F32) {
        bp_note_slow(v, BP_R_QUANT, "w.type", s->type, 0, BP_GGUF_COUNT - 1,
                     "this type is decoded element by element; no kernel is tuned for it");
    }
    bp_want_range(v, BP_R_SHAPE, "w.rows", s->rows, 0, INT32_MAX - 512);
    bp_want_range(v, BP_R_SHAPE, "w.cols", s->cols, 0, INT32_MAX - 512);
    if (s->cols != cols)
        bp_reason_add(v, BP_R_SHAPE, 1, "w.cols", s->cols, cols, cols,
                      "weights that share an input have the same columns");
}

static void want_matmul(const struct bp_quant_problem *p, struct bp_verdict *v)
{
    const uint32_t floats = BP_SET(BP_DT_F32) | BP_SET(BP_DT_F16) | BP_SET(BP_DT_BF16);
    bp_want_dtype(v, "x_dtype", p->x_dtype, floats);
    bp_want_le(v, BP_R_FEATURE, "prologue", p->prologue, BP_PROLOGUE_RMS);
    bp_want_le(v, BP_R_FEATURE, "epilogue", p->epilogue, BP_EPILOGUE_SILU_MUL);
    if (p->epilogue == BP_EPILOGUE_SILU_MUL) {
        bp_want_eq(v, BP_R_SHAPE, "n_w", p->n_w, 2);
        if (p->n_w == 2 && p->w != NULL)
            bp_want_eq(v, BP_R_SHAPE, "w.rows", bp_quant_shape_at(p, 1)->rows,
                       bp_quant_shape_at(p, 0)->rows);
    }
}

static int32_t supports(void *self, const void *problem, struct bp_verdict *v)
{
    const uint32_t floats = BP_SET(BP_DT_F32) | BP_SET(BP_DT_F16) | BP_SET(BP_DT_BF16);
    const struct quant_op *o = self;
    const struct bp_quant_problem *p = problem;
    if (!bp_verdict_begin(v, &p->h, BP_END(struct bp_quant_problem, epilogue))) return BP_OK;
    bp_want_cc(v, o->dev, 90, 999);
    bp_want_le(v, BP_R_FEATURE, "op", p->op, BP_QUANT_OP_DEQUANTIZE);
    bp_want_dtype(v, "y_dtype", p->y_dtype, floats);
    bp_want_le(v, BP_R_SHAPE, "max_tok", p->max_tok, 1 << 24);
    if (p->n_w < 1 || p->n_w > QG_MAX_W || p->w == NULL) {
        bp_reason_add(v, BP_R_SHAPE, 1, "n_w", p->n_w, 1, QG_MAX_W, "weights that share one input");
    } else {
        for (uint32_t i = 0; i < p->n_w; ++i)
            want_weight(v, bp_quant_shape_at(p, i), bp_quant_shape_at(p, 0)->cols);
    }
    if (p->op == BP_QUANT_OP_MATMUL) want_matmul(p, v);
    /* A row is summed in the same order however many there are, except by cuBLAS, and alone by types with a kernel
     * for that. */
    int alone = 0;
    for (uint32_t i = 0; i < p->n_w && p->w != NULL; ++i)
        alone |= qg_one_warps(bp_quant_shape_at(p, i)->type, 1, INT64_MAX / 2) > 0;
    const int same = p->max_tok <= 1 || (alone == 0 && p->max_tok < o->plugin->gemm_from);
    return bp_verdict_done(v, BP_CAPTURE_ANY,
                           p->op == BP_QUANT_OP_DEQUANTIZE || same ? BP_DET_BATCH : BP_DET_RUN,
                           -1.0);
}

static int32_t workspace(void *self, const void *problem_max, struct bp_workspace *out,
                         struct bp_error *err)
{
    const struct quant_op *o = self;
    const struct bp_quant_problem *p = problem_max;
    struct plan_need need = {.n_tok = p->max_tok, .x_dtype = p->x_dtype};
    struct plan_scratch s;
    struct bp_area area;
    if (p->op != BP_QUANT_OP_MATMUL) return bp_workspace_set(out, 0, 0, 0, 0);
    for (uint32_t i = 0; i < p->n_w; ++i) {
        const struct bp_quant_shape *w = bp_quant_shape_at(p, i);
        need.rows = w->rows > need.rows ? w->rows : need.rows;
        need.cols = w->cols > need.cols ? w->cols : need.cols;
    }
    need.gemm = p->max_tok >= o->plugin->gemm_from;
    bp_area_count(&area);
    plan_scratch(&area, &need, &s);
    if (area.bad != 0)
        return bp_error_set(err, BP_E_LIMIT, QG_NAME, "workspace",
                            "the size of the scratch memory does not fit 64 bits");
    (void)bp_workspace_set(out, 0, 0, area.used, 0);
    out->align = 256;
    return BP_OK;
}

static int32_t format(void *self, uint32_t i, uint32_t *out_type)
{
    (void)self;
    for (uint32_t type = 0; type < BP_GGUF_COUNT; ++type) {
        if (qg_block_elems(type) == 0 || i-- != 0) continue;
        *out_type = type;
        return BP_OK;
    }
    return BP_DECLINED;
}

static const struct bp_quant_ops ops = {.base =
                                            BP_OP_BASE(struct bp_quant_ops, dequantize, "bp.quant",
                                                       supports, workspace, bp_quant_tensors),
                                        .format = format,
                                        .prepare = quant_prepare,
                                        .release = quant_release,
                                        .matmul = quant_matmul,
                                        .dequantize = quant_dequantize};

/* ---- life ---- */

static int32_t plugin_open(const struct bp_host *host, void **plugin, struct bp_error *err)
{
    struct quant_gguf *p = bp_mem_alloc(host, 1, sizeof *p);
    if (p == NULL)
        return bp_error_set(err, BP_E_NOMEM, QG_NAME, "open", "no memory for the plugin's state");
    p->host = host;
    const int32_t rc = bp_cfg_i64(host, keys[0].name, 9, &p->gemm_from);
    if (rc != BP_OK) {
        bp_mem_free(host, p);
        return bp_error_set(err, rc, QG_NAME, "gemm_from",
                            "a number of tokens from 1 to 1048576 was expected");
    }
    *plugin = p;
    return BP_OK;
}

static void plugin_close(void *plugin)
{
    struct quant_gguf *p = plugin;
    bp_mem_free(p->host, p);
}

static int32_t op_create(void *plugin, const struct bp_op_entry *entry, const struct bp_device *dev,
                         const struct bp_op_ref *inner, uint32_t n_inner, struct bp_op_ref *out,
                         struct bp_error *err)
{
    struct quant_gguf *p = plugin;
    (void)inner;
    if (strcmp(entry->iface, "bp.quant") != 0)
        return bp_error_set(err, BP_DECLINED, QG_NAME, entry->iface,
                            "this plugin does not offer the interface");
    if (n_inner != 0)
        return bp_error_number(err, BP_E_ARG, QG_NAME, entry->iface,
                               "a backend wraps nothing, and ", n_inner, " inner ops were given");
    if (dev == NULL || dev->kind != BP_DEV_CUDA)
        return bp_error_set(err, BP_DECLINED, QG_NAME, entry->iface,
                            "this op computes on CUDA devices; set engine.device = cuda:0");
    struct quant_op *o = bp_mem_alloc(p->host, 1, sizeof *o);
    if (o == NULL)
        return bp_error_set(err, BP_E_NOMEM, QG_NAME, entry->iface, "no memory for the op");
    o->plugin = p;
    o->dev = dev;
    out->vt = &ops.base;
    out->self = o;
    return BP_OK;
}

static void op_destroy(void *plugin, struct bp_op_ref *op)
{
    struct quant_gguf *p = plugin;
    quant_weights_end(op->self);
    bp_mem_free(p->host, op->self);
    op->vt = NULL;
    op->self = NULL;
}

BP_PLUGIN(BP_KIND_BACKEND, QG_NAME, "0.1.0",
          BP_ABOUT("Backplane", "MIT", "products with GGUF weights on CUDA devices"),
          BP_CUDA(13000, 13000, architectures), BP_KEYS(keys),
          BP_HOOKS(plugin_open, plugin_close, op_create, op_destroy), ("bp.quant", "planes"));
