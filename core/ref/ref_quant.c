/* ref_quant.c - bp.quant: products with weights in GGUF block formats, all fused forms, and plain rows of a weight.
 * A fused form gives the bits of the plain ops one after the other with F32 between them: what would have been written
 * is rounded the same way before it is used.
 * Not here: decoding (ref_weight.c), sums (ref_product.c). Threads: one call per instance; work is split by rows.
 * SPDX-License-Identifier: MIT */
#include "backplane/slot_quant.h"

#include "block/block.h"
#include "ref/ref_weight.h"

enum { MAX_OUT = 4 };

/* ---- what is served ---- */

static const struct bp_quant_shape *shape_at(const struct bp_quant_problem *p, uint32_t i)
{
    uint64_t stride = p->w_stride != 0 ? p->w_stride : sizeof *p->w;
    return (const struct bp_quant_shape *)(const void *)((const unsigned char *)p->w + i * stride);
}

static void check_shapes(const struct bp_quant_problem *p, struct bp_verdict *v)
{
    const struct bp_quant_shape *first = shape_at(p, 0);
    for (uint32_t i = 0; i < p->n_w; ++i) {
        const struct bp_quant_shape *s = shape_at(p, i);
        const struct bpi_block_info *info = bpi_block_info(s->type);
        if (info == NULL || !info->can_decode) {
            bpi_ref_refuse(v, BP_R_QUANT, "w.type", s->type, 0, BP_GGUF_COUNT - 1,
                           "core/block has no decoder for this type");
        }
        if (s->rows < 0 || s->cols < 0) {
            bpi_ref_refuse(v, BP_R_SHAPE, s->rows < 0 ? "w.rows" : "w.cols",
                           s->rows < 0 ? s->rows : s->cols, 0, INT64_MAX, "a size is negative");
        }
        if (s->cols != first->cols) {
            bpi_ref_refuse(v, BP_R_SHAPE, "w.cols", s->cols, first->cols, first->cols,
                           "weights that share an input have the same number of columns");
        }
    }
    if (p->epilogue == BP_EPILOGUE_SILU_MUL && p->n_w == 2 && shape_at(p, 1)->rows != first->rows) {
        bpi_ref_refuse(v, BP_R_SHAPE, "w.rows", shape_at(p, 1)->rows, first->rows, first->rows,
                       "silu_mul pairs the rows of two weights");
    }
}

static int32_t quant_supports(void *self, const void *problem, struct bp_verdict *v)
{
    (void)self;
    const struct bp_quant_problem *p = problem;
    bpi_ref_check_header(v, &p->h, BP_END(struct bp_quant_problem, epilogue));
    if (v->n_reasons == 0) {
        if (p->op > BP_QUANT_OP_DEQUANTIZE) {
            bpi_ref_refuse(v, BP_R_FEATURE, "op", p->op, 0, BP_QUANT_OP_DEQUANTIZE, "unknown op");
        }
        if (p->n_w < 1 || p->n_w > MAX_OUT || p->w == NULL) {
            bpi_ref_refuse(v, BP_R_SHAPE, "n_w", p->n_w, 1, MAX_OUT,
                           "weights that share one input");
        } else {
            check_shapes(p, v);
        }
        if (p->op == BP_QUANT_OP_MATMUL && !bpi_ref_is_float(p->x_dtype)) {
            bpi_ref_refuse(v, BP_R_DTYPE, "x_dtype", p->x_dtype, BP_DT_F32, BP_DT_BF16,
                           "F32, F16 or BF16");
        }
        if (!bpi_ref_is_float(p->y_dtype)) {
            bpi_ref_refuse(v, BP_R_DTYPE, "y_dtype", p->y_dtype, BP_DT_F32, BP_DT_BF16,
                           "F32, F16 or BF16");
        }
        if (p->prologue > BP_PROLOGUE_RMS) {
            bpi_ref_refuse(v, BP_R_FEATURE, "prologue", p->prologue, 0, BP_PROLOGUE_RMS,
                           "unknown prologue");
        }
        if (p->epilogue > BP_EPILOGUE_SILU_MUL) {
            bpi_ref_refuse(v, BP_R_FEATURE, "epilogue", p->epilogue, 0, BP_EPILOGUE_SILU_MUL,
                           "unknown epilogue");
        }
        if (p->epilogue == BP_EPILOGUE_SILU_MUL && p->n_w != 2) {
            bpi_ref_refuse(v, BP_R_SHAPE, "n_w", p->n_w, 2, 2,
                           "silu_mul takes exactly two weights");
        }
    }
    bpi_ref_verdict_done(v);
    return BP_OK;
}

/* ---- scratch ---- */

struct scratch {
    double *x;      /* (n_tok, x_stride) the input as the products read it */
    float *row;     /* (slices, cols) one row of the input, for its norm */
    float *decoded; /* (slices, decoded_stride) rows of a weight */
    uint64_t decoded_stride;
    int64_t x_stride;
};

/* The one place that knows the scratch: counts it for workspace() and lays it out for a call. */
static void take_scratch(const struct bpi_ref *ref, struct bpi_ref_area *a, uint64_t n_tok,
                         int64_t cols, int64_t cover, struct scratch *s)
{
    uint64_t slices = bpi_ref_slices(ref), n_elems = 0, n_decoded = 0;
    s->x_stride = (cols + 7) / 8 * 8;
    s->decoded_stride = 2 * bpi_ref_slice_floats(cover); /* silu_mul decodes rows of two weights */
    if (!bpi_mul_u64(n_tok, (uint64_t)s->x_stride, &n_elems) ||
        !bpi_mul_u64(slices, s->decoded_stride, &n_decoded)) {
        a->bad = true;
    }
    s->x = bpi_ref_area_take(a, n_elems, sizeof *s->x);
    s->row = bpi_ref_area_take(a, slices * (uint64_t)s->x_stride, sizeof *s->row);
    s->decoded = bpi_ref_area_take(a, n_decoded, sizeof *s->decoded);
}

static int32_t quant_workspace(void *self, const void *problem_max, struct bp_workspace *out,
                               struct bp_error *err)
{
    const struct bp_quant_problem *p = problem_max;
    struct bpi_ref_area area = {0};
    struct scratch s;
    int64_t cols = 0;
    for (uint32_t i = 0; i < p->n_w; ++i)
        cols = shape_at(p, i)->cols > cols ? shape_at(p, i)->cols : cols;
    /* Far beyond any model, and far enough from overflow for all sizes above. */
    area.bad = cols > INT64_MAX / 4096;
    if (!area.bad) take_scratch(self, &area, p->max_tok, cols, bpi_ref_cover_max(cols), &s);
    return bpi_ref_area_report(&area, out, err);
}

static const struct bp_matmul_out *out_at(const struct bp_quant_matmul_args *a, uint32_t i)
{
    uint64_t stride = a->out_stride != 0 ? a->out_stride : sizeof *a->outs;
    return (const struct bp_matmul_out *)(const void *)((const unsigned char *)a->outs +
                                                        i * stride);
}

static int32_t quant_tensors(void *self, uint32_t slot, const void *args, struct bp_tensor *t,
                             uint32_t *n)
{
    (void)self;
    static const char *const y_names[MAX_OUT] = {"y", "y1", "y2", "y3"};
    struct bp_tensor ports[3 + MAX_OUT];
    uint32_t count = 0;
    if (slot == BP_QUANT_OP_DEQUANTIZE) {
        const struct bp_quant_dequantize_args *a = args;
        ports[count++] = bpi_ref_port(&a->y, "y", BP_OUT);
    } else if (slot == BP_QUANT_OP_MATMUL) {
        const struct bp_quant_matmul_args *a = args;
        uint32_t n_y = a->epilogue == BP_EPILOGUE_SILU_MUL ? 1 : a->n_out;
        ports[count++] = bpi_ref_port(&a->x, "x", BP_IN);
        if (a->prologue == BP_PROLOGUE_RMS)
            ports[count++] = bpi_ref_port(&a->norm_w, "norm_w", BP_IN);
        if (a->epilogue == BP_EPILOGUE_ADD)
            ports[count++] = bpi_ref_port(&a->residual, "residual", BP_IN);
        for (uint32_t i = 0; i < n_y && i < MAX_OUT; ++i) {
            ports[count++] = bpi_ref_port(&out_at(a, i)->y, y_names[i], BP_OUT);
        }
    } else {
        return BP_E_ARG;
    }
    bpi_ref_list(ports, count, t, n);
    return BP_OK;
}

/* ---- handles ---- */

static int32_t quant_format(void *self, uint32_t i, uint32_t *out_type)
{
    (void)self;
    for (uint32_t type = 0; type < BP_GGUF_COUNT; ++type) {
        const struct bpi_block_info *info = bpi_block_info(type);
        if (info == NULL || !info->can_decode) continue;
        if (i-- != 0) continue;
        *out_type = type;
        return BP_OK;
    }
    return BP_DECLINED;
}

static int32_t quant_prepare(void *self, const struct bp_raw *raw, void **out,
                             struct bp_weight_info *info, struct bp_error *err)
{
    return bpi_ref_weight_handle(self, raw, "a weight", out, info, err);
}

static void quant_release(void *self, void *weight)
{
    bpi_ref_free(self, weight);
}

/* ---- matmul ---- */

struct job {
    struct bpi_ref *ref;
    const struct bp_quant_matmul_args *a;
    struct scratch s;
    int64_t n_tok, cols, row_block;
    int64_t first_block[MAX_OUT + 1]; /* blocks of rows of all outputs, one after the other */
    uint32_t n_out;                   /* outputs that are written */
};

/* Fills rows of s.x: x itself or its norm, as an op of its own would have left it in F32. */
static void read_input(void *arg, uint64_t begin, uint64_t end)
{
    struct job *j = arg;
    const struct bp_quant_matmul_args *a = j->a;
    for (uint64_t slice = begin; slice < end; ++slice) {
        int64_t t, t_end;
        float *row = j->s.row + slice * (uint64_t)j->s.x_stride;
        bpi_ref_slice_part(slice, bpi_ref_slices(j->ref), j->n_tok, &t, &t_end);
        for (; t < t_end; ++t) {
            double *x = j->s.x + t * j->s.x_stride;
            bpi_ref_load(row, bpi_ref_at(&a->x, t, 0, 0), a->x.dtype, j->cols, j->ref->round);
            if (a->prologue == BP_PROLOGUE_RMS) {
                bpi_ref_rms_row(row, a->norm_w.data, j->cols, a->eps, x);
                for (int64_t k = 0; k < j->cols; ++k)
                    x[k] = (double)bpi_ref_round_once(x[k], BP_DT_F32, j->ref->round);
            } else {
                for (int64_t k = 0; k < j->cols; ++k) x[k] = (double)row[k];
            }
        }
    }
}

/* The epilogue for one token and n rows from `row` on; y holds exact sums. */
static void finish_rows(const struct job *j, uint32_t out, int64_t t, int64_t row, int64_t n,
                        double *y, const double *up)
{
    const struct bp_quant_matmul_args *a = j->a;
    const struct bp_tensor *port = &out_at(a, out)->y;
    const uint32_t round = j->ref->round;
    if (a->epilogue == BP_EPILOGUE_ADD && out == 0) {
        float add[BPI_REF_ROW_BLOCK];
        bpi_ref_load(add, bpi_ref_at(&a->residual, t, row, 0), a->residual.dtype, n, round);
        for (int64_t r = 0; r < n; ++r)
            y[r] = (double)bpi_ref_round_once(y[r], BP_DT_F32, round) + (double)add[r];
    } else if (a->epilogue == BP_EPILOGUE_SILU_MUL) {
        for (int64_t r = 0; r < n; ++r) {
            double gate = (double)bpi_ref_round_once(y[r], BP_DT_F32, round);
            y[r] = bpi_ref_silu(gate) * (double)bpi_ref_round_once(up[r], BP_DT_F32, round);
        }
    }
    bpi_ref_store(bpi_ref_at(port, t, row, 0), port->dtype, y, n, round);
}

static void multiply_block(const struct job *j, uint32_t out, int64_t row, float *decoded)
{
    const struct bpi_ref_weight *w[2] = {out_at(j->a, out)->weight, NULL};
    const float *rows[2] = {NULL, NULL};
    double y[2][BPI_REF_TOK_BLOCK * BPI_REF_ROW_BLOCK];
    int64_t stride[2] = {0, 0}, n_rows = w[0]->rows - row;
    const bool paired = j->a->epilogue == BP_EPILOGUE_SILU_MUL;
    if (n_rows > j->row_block) n_rows = j->row_block;
    rows[0] = bpi_ref_weight_rows(w[0], 0, row, n_rows, decoded, &stride[0]);
    if (paired) {
        w[1] = out_at(j->a, 1)->weight;
        rows[1] = bpi_ref_weight_rows(w[1], 0, row, n_rows, decoded + j->s.decoded_stride / 2,
                                      &stride[1]);
    }
    for (int64_t t = 0; t < j->n_tok; t += BPI_REF_TOK_BLOCK) {
        int64_t n_tok = j->n_tok - t < BPI_REF_TOK_BLOCK ? j->n_tok - t : BPI_REF_TOK_BLOCK;
        const double *x = j->s.x + t * j->s.x_stride;
        for (int i = 0; i < (paired ? 2 : 1); ++i) {
            bpi_ref_product(rows[i], stride[i], n_rows, x, j->s.x_stride, NULL, n_tok, j->cols,
                            y[i], BPI_REF_ROW_BLOCK);
        }
        for (int64_t i = 0; i < n_tok; ++i) {
            finish_rows(j, out, t + i, row, n_rows, y[0] + i * BPI_REF_ROW_BLOCK,
                        y[1] + i * BPI_REF_ROW_BLOCK);
        }
    }
}

static void multiply_slices(void *arg, uint64_t begin, uint64_t end)
{
    struct job *j = arg;
    for (uint64_t slice = begin; slice < end; ++slice) {
        int64_t b, b_end;
        uint32_t out = 0;
        float *decoded = j->s.decoded + slice * j->s.decoded_stride;
        bpi_ref_slice_part(slice, bpi_ref_slices(j->ref), j->first_block[j->n_out], &b, &b_end);
        for (; b < b_end; ++b) {
            while (b >= j->first_block[out + 1]) ++out;
            multiply_block(j, out, (b - j->first_block[out]) * j->row_block, decoded);
        }
    }
}

/* Contract slips get a sentence, not a crash; shapes inside a session never reach it. */
static int32_t check_call(const struct bp_quant_matmul_args *a, struct bp_error *err)
{
    if (a->n_out < 1 || a->n_out > MAX_OUT || a->x.ndim != 2) {
        return bpi_fail(err, BP_E_ARG, "ref", "quant.matmul",
                        "%u outputs of a %u-dimensional input; 1 to %d of 2", a->n_out, a->x.ndim,
                        MAX_OUT);
    }
    const bool paired = a->epilogue == BP_EPILOGUE_SILU_MUL;
    if (paired &&
        (a->n_out != 2 || ((const struct bpi_ref_weight *)out_at(a, 0)->weight)->rows !=
                              ((const struct bpi_ref_weight *)out_at(a, 1)->weight)->rows)) {
        return bpi_fail(err, BP_E_ARG, "ref", "quant.matmul",
                        "silu_mul takes two weights with the same number of rows");
    }
    for (uint32_t i = 0; i < a->n_out; ++i) {
        const struct bp_matmul_out *o = out_at(a, i);
        const struct bpi_ref_weight *w = o->weight;
        bool written = i == 0 || !paired;
        if (w->cols != a->x.dim[1] ||
            (written && (o->y.dim[0] != a->x.dim[0] || o->y.dim[1] != w->rows))) {
            return bpi_fail(err, BP_E_ARG, "ref", "quant.matmul",
                            "x (%lld, %lld) times weight (%lld, %lld) does not give y (%lld, %lld) "
                            "of output %u",
                            (long long)a->x.dim[0], (long long)a->x.dim[1], (long long)w->rows,
                            (long long)w->cols, (long long)o->y.dim[0], (long long)o->y.dim[1], i);
        }
    }
    return BP_OK;
}

static int32_t quant_matmul(void *self, const struct bp_launch *l,
                            const struct bp_quant_matmul_args *a, struct bp_error *err)
{
    struct job j = {.ref = self, .a = a, .n_tok = a->x.dim[0], .cols = a->x.dim[1]};
    const bool paired = a->epilogue == BP_EPILOGUE_SILU_MUL;
    BP_TRY(check_call(a, err));
    if (j.n_tok == 0) return BP_OK;
    int64_t cover = j.cols, n_rows = 0;
    for (uint32_t i = 0; i < a->n_out; ++i) {
        const struct bpi_ref_weight *w = out_at(a, i)->weight;
        if (w->cover > cover) cover = w->cover;
        n_rows += w->rows;
    }
    struct bpi_ref_area area = bpi_ref_area_of(l);
    take_scratch(j.ref, &area, (uint64_t)j.n_tok, j.cols, cover, &j.s);
    if (area.bad) return bpi_ref_area_fail(l, "quant.matmul", err);
    j.row_block = bpi_ref_slice_rows(cover, j.n_tok);
    j.n_out = paired ? 1 : a->n_out;
    for (uint32_t i = 0; i < j.n_out; ++i) {
        const struct bpi_ref_weight *w = out_at(a, i)->weight;
        j.first_block[i + 1] = j.first_block[i] + (w->rows + j.row_block - 1) / j.row_block;
    }
    bpi_ref_run_slices(j.ref, (uint64_t)(j.n_tok * j.cols), read_input, &j);
    bpi_ref_run_slices(j.ref, (uint64_t)(j.n_tok * j.cols) * (uint64_t)n_rows, multiply_slices, &j);
    return BP_OK;
}

/* ---- dequantize ---- */

struct dequantize_job {
    struct bpi_ref *ref;
    const struct bp_quant_dequantize_args *a;
    struct scratch s;
};

static void dequantize_slices(void *arg, uint64_t begin, uint64_t end)
{
    struct dequantize_job *j = arg;
    const struct bpi_ref_weight *w = j->a->weight;
    for (uint64_t slice = begin; slice < end; ++slice) {
        int64_t r, r_end, stride;
        bpi_ref_slice_part(slice, bpi_ref_slices(j->ref), j->a->y.dim[0], &r, &r_end);
        for (; r < r_end; ++r) {
            float *buf = j->s.decoded + slice * j->s.decoded_stride;
            const float *row = bpi_ref_weight_rows(w, 0, j->a->row_begin + r, 1, buf, &stride);
            bpi_ref_store_floats(bpi_ref_at(&j->a->y, r, 0, 0), j->a->y.dtype, row, w->cols,
                                 j->ref->round);
        }
    }
}

static int32_t quant_dequantize(void *self, const struct bp_launch *l,
                                const struct bp_quant_dequantize_args *a, struct bp_error *err)
{
    struct dequantize_job j = {.ref = self, .a = a};
    const struct bpi_ref_weight *w = a->weight;
    int64_t n_rows = a->y.dim[0];
    if (a->row_begin < 0 || n_rows < 0 || a->row_begin > w->rows - n_rows ||
        a->y.dim[1] != w->cols) {
        return bpi_fail(err, BP_E_ARG, "ref", "quant.dequantize",
                        "rows %lld to %lld of %lld columns are not in a weight of (%lld, %lld)",
                        (long long)a->row_begin, (long long)(a->row_begin + n_rows),
                        (long long)a->y.dim[1], (long long)w->rows, (long long)w->cols);
    }
    struct bpi_ref_area area = bpi_ref_area_of(l);
    take_scratch(j.ref, &area, 0, w->cols, w->cover, &j.s);
    if (area.bad) return bpi_ref_area_fail(l, "quant.dequantize", err);
    bpi_ref_run_slices(j.ref, (uint64_t)(n_rows * w->cols), dequantize_slices, &j);
    return BP_OK;
}

// clang-format off
static const struct bp_quant_ops ops = {
    .base = {.h = BP_HDR(struct bp_quant_ops, dequantize), .iface = "bp.quant", .iface_major = 0, .iface_minor = 1,
             .supports = quant_supports, .workspace = quant_workspace, .tensors = quant_tensors},
    .format = quant_format, .prepare = quant_prepare, .release = quant_release,
    .matmul = quant_matmul, .dequantize = quant_dequantize,
};
// clang-format on

const struct bp_op_base *bpi_ref_quant_ops(void)
{
    return &ops.base;
}
