/* call.c - a call's arguments are checked, and its weights are dealt out to launches. Contract slips get a
 * sentence, not a fault on the device; what a session asks for never fails here. Not here: sizes (plan.c),
 * launches (matmul.c). Pure.
 * SPDX-License-Identifier: MIT */
#include "call.h"

#define NAME "quant_gguf"

static int32_t bad_number(struct bp_error *err, const char *what, int64_t got)
{
    return bp_error_number(err, BP_E_ARG, NAME, "quant.matmul", what, got, "");
}

/* Rows of floats, elements of a row side by side, as kernels walk them. */
static int are_rows(const struct bp_tensor *t)
{
    return t->ndim == 2 && bp_is_float(t->dtype) && t->dim[0] >= 0 && t->dim[1] >= 0 &&
           (t->dim[1] <= 1 || t->stride[1] == 1);
}

static int32_t bad_port(struct bp_error *err, const char *op, const char *port,
                        const struct bp_tensor *t, int64_t rows, int64_t cols)
{
    struct bp_text s;
    const int32_t rc = bp_error_begin(err, &s, BP_E_ARG, NAME, op);
    bp_text_add(&s, port);
    bp_text_add(&s, " is (");
    for (uint32_t d = 0; d < t->ndim && d < 4; ++d) {
        if (d != 0) bp_text_add(&s, ", ");
        bp_text_i64(&s, t->dim[d]);
    }
    bp_text_add(&s, ") ");
    bp_text_add(&s, bp_dtype_name(t->dtype));
    bp_text_add(&s, rows < 0 ? "; (" : "; rows of f32, f16 or bf16 in (");
    if (rows >= 0) {
        bp_text_i64(&s, rows);
        bp_text_add(&s, ", ");
    }
    bp_text_i64(&s, cols);
    bp_text_add(&s, rows < 0 ? ") f32 was expected" : ") were expected");
    return rc;
}

static int32_t check_port(struct bp_error *err, const char *op, const char *port,
                          const struct bp_tensor *t, int64_t rows, int64_t cols)
{
    if (are_rows(t) && t->dim[0] == rows && t->dim[1] == cols &&
        (t->data != NULL || rows == 0 || cols == 0))
        return BP_OK;
    return bad_port(err, op, port, t, rows, cols);
}

static int32_t check_forms(const struct bp_quant_matmul_args *a, struct bp_error *err)
{
    const int64_t cols = a->x.dim[1];
    if (a->prologue > BP_PROLOGUE_RMS)
        return bad_number(err, "a prologue that this plugin does not know: ", a->prologue);
    if (a->epilogue > BP_EPILOGUE_SILU_MUL)
        return bad_number(err, "an epilogue that this plugin does not know: ", a->epilogue);
    if (a->prologue == BP_PROLOGUE_RMS) {
        const struct bp_tensor *w = &a->norm_w;
        if (w->ndim != 1 || w->dtype != BP_DT_F32 || w->dim[0] != cols ||
            (cols > 1 && w->stride[0] != 1) || (cols > 0 && w->data == NULL))
            return bad_port(err, "quant.matmul", "norm_w", w, -1, cols);
    }
    if (a->epilogue == BP_EPILOGUE_ADD) {
        const struct bp_tensor *y = &a->outs->y;
        return check_port(err, "quant.matmul", "residual", &a->residual, y->dim[0], y->dim[1]);
    }
    return BP_OK;
}

int32_t call_check_matmul(const struct bp_quant_matmul_args *a, struct bp_error *err)
{
    static const char *const names[QG_MAX_W] = {"y", "y1", "y2", "y3"};
    const struct qg_weight *first = NULL;
    const int silu = a->epilogue == BP_EPILOGUE_SILU_MUL;
    if (a->n_out < 1 || a->n_out > QG_MAX_W || a->outs == NULL)
        return bad_number(err, "1 to 4 outputs are served, not ", a->n_out);
    if (silu && a->n_out != 2) return bad_number(err, "silu_mul takes two weights, not ", a->n_out);
    if (!are_rows(&a->x))
        return bad_port(err, "quant.matmul", "x", &a->x, a->x.dim[0], a->x.dim[1]);
    for (uint32_t i = 0; i < a->n_out; ++i) {
        const struct bp_matmul_out *out = bp_matmul_out_at(a, i);
        const struct qg_weight *w = (const struct qg_weight *)out->weight;
        if (w == NULL) return bad_number(err, "a weight was not prepared: output ", i);
        if (w->cols != a->x.dim[1])
            return bad_number(err, "a weight and x differ in columns: ", w->cols);
        if (silu && i == 1) {
            if (w->rows != first->rows)
                return bad_number(err, "silu_mul takes weights with the same rows, not ", w->rows);
            continue; /* what would be its y is not written */
        }
        if (i == 0) first = w;
        BP_TRY(check_port(err, "quant.matmul", names[i], &out->y, a->x.dim[0], w->rows));
    }
    return check_forms(a, err);
}

int32_t call_check_dequantize(const struct bp_quant_dequantize_args *a, struct bp_error *err)
{
    const struct qg_weight *w = (const struct qg_weight *)a->weight;
    const int64_t n = a->y.dim[0];
    if (w == NULL)
        return bp_error_set(err, BP_E_ARG, NAME, "quant.dequantize", "the weight was not prepared");
    if (a->row_begin < 0 || n < 0 || a->row_begin > w->rows - n)
        return bp_error_number(err, BP_E_ARG, NAME, "quant.dequantize",
                               "rows outside of the weight, which has ", w->rows, "");
    return check_port(err, "quant.dequantize", "y", &a->y, n, w->cols);
}

static int alike(const struct qg_weight *a, const struct qg_weight *b)
{
    return a != b && a->type == b->type && a->skip == b->skip && a->cover == b->cover;
}

uint32_t call_together(const struct qg_weight *const *w, const struct bp_tensor *y, uint32_t n_w,
                       uint32_t first, uint32_t done)
{
    uint32_t set = UINT32_C(1) << first;
    for (uint32_t k = first + 1; k < n_w; ++k) {
        int fits = (done >> k & 1) == 0 && y[k].dtype == y[first].dtype;
        for (uint32_t i = first; i < k && fits; ++i)
            fits = (set >> i & 1) == 0 || alike(w[i], w[k]);
        if (fits) set |= UINT32_C(1) << k;
    }
    return set;
}

int call_joins(const struct qg_weight *const *w)
{
    return alike(w[0], w[1]);
}
