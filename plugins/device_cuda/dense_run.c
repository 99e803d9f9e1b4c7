/* dense_run.c - the calls of the dense slot: from the engine's tensors to one launch each.
 * Shapes that do not agree are refused with a sentence; what is on the device (ids, positions) the kernels check.
 * Not here: what is served (dense.c), the kernels. Threads: as slot_dense.h says. SPDX-License-Identifier: MIT */
#include "device_cuda.h"

static struct dc_rows rows_of(const struct bp_tensor *t)
{
    return (struct dc_rows){.data = t->data, .stride = t->stride[0], .dtype = t->dtype};
}

/* May memory be moved n elements at a time: rows at multiples of them, whatever the dtype? A single row's stride
 * counts too: the two ways add in different orders, and a row alone shall take the way that it takes among
 * others. */
static int is_wide(const struct bp_tensor *t, uint64_t n)
{
    const uint64_t unit = n * (uint64_t)bp_dtype_bytes(t->dtype);
    for (uint32_t d = 0; d + 1 < t->ndim && d < 4; ++d) {
        if (t->stride[d] % (int64_t)n != 0) return 0;
    }
    return ((uintptr_t)t->data & (unit - 1)) == 0;
}

/* Of ndim dimensions, elements of the last one side by side, as kernels walk them. */
static int lies_plain(const struct bp_tensor *t, uint32_t ndim)
{
    return t->ndim == ndim && (t->dim[ndim - 1] <= 1 || t->stride[ndim - 1] == 1);
}

static int same_rows(const struct bp_tensor *a, const struct bp_tensor *b, uint32_t ndim)
{
    for (uint32_t d = 0; d < ndim; ++d) {
        if (a->dim[d] != b->dim[d] || a->dim[d] < 0) return 0;
    }
    return bp_is_float(a->dtype) && bp_is_float(b->dtype) && lies_plain(a, ndim) &&
           lies_plain(b, ndim);
}

/* What every row is multiplied with or shifted by. */
static int is_vector(const struct bp_tensor *w, int64_t width)
{
    return w->dtype == BP_DT_F32 && lies_plain(w, 1) && w->dim[0] == width &&
           (w->data != NULL || width == 0);
}

static void add_shape(struct bp_text *t, const char *name, const struct bp_tensor *x)
{
    bp_text_add(t, name);
    bp_text_add(t, " (");
    for (uint32_t i = 0; i < x->ndim && i < 4; ++i) {
        if (i != 0) bp_text_add(t, ", ");
        bp_text_i64(t, x->dim[i]);
    }
    bp_text_add(t, ") ");
    bp_text_add(t, bp_dtype_name(x->dtype));
}

static int32_t fail_shapes(struct bp_error *err, const char *op, const char *a_name,
                           const struct bp_tensor *a, const char *b_name, const struct bp_tensor *b)
{
    struct bp_text t;
    const int32_t code = bp_error_begin(err, &t, BP_E_ARG, DC_NAME, op);
    add_shape(&t, a_name, a);
    bp_text_add(&t, " and ");
    add_shape(&t, b_name, b);
    bp_text_add(&t, " do not agree");
    return code;
}

/* ---- embed -------------------------------------------------------------------------------------- */

int32_t dc_embed(void *self, const struct bp_launch *l, const struct bp_dense_embed_args *a,
                 struct bp_error *err)
{
    const struct dc_dense *d = self;
    const struct dc_table *t = a->table;
    if (t == NULL)
        return bp_error_set(err, BP_E_ARG, DC_NAME, "dense.embed", "no table was prepared");
    const struct dc_embed_args e = {.table = t->data,
                                    .ids = a->ids.data,
                                    .y = rows_of(&a->y),
                                    .id_stride = a->ids.stride[0],
                                    .row_bytes = t->row_bytes,
                                    .n_rows = a->ids.dim[0],
                                    .n_vocab = t->n_rows,
                                    .width = t->width,
                                    .skip = t->skip,
                                    .scale = t->scale,
                                    .type = t->type};
    if (a->ids.dtype != BP_DT_I32 || a->ids.ndim != 1 || a->y.dim[0] != e.n_rows ||
        a->y.dim[1] != e.width || !bp_is_float(a->y.dtype) || !lies_plain(&a->y, 2))
        return fail_shapes(err, "dense.embed", "ids", &a->ids, "y", &a->y);
    if (e.n_rows == 0 || e.width == 0) return BP_OK;
    BP_TRY(bp_cuda_use(d->dev, err, DC_NAME, "dense.embed"));
    return bp_cuda_launched(err, DC_NAME, "dense.embed", dc_start_embed(&e, l->stream));
}

/* ---- norms ---------------------------------------------------------------------------------------- */

int32_t dc_rms(void *self, const struct bp_launch *l, const struct bp_dense_rms_args *a,
               struct bp_error *err)
{
    const struct dc_dense *d = self;
    const int adds = a->add.data != NULL;
    struct dc_norm n = {.x = rows_of(&a->x),
                        .y = rows_of(&a->y),
                        .w = a->w.data,
                        .n_rows = a->x.dim[0],
                        .width = a->x.dim[1],
                        .eps = a->eps,
                        .wide = a->x.dim[1] % 4 == 0 && is_wide(&a->x, 4) && is_wide(&a->y, 4) &&
                                is_wide(&a->w, 4)};
    if (!same_rows(&a->x, &a->y, 2)) return fail_shapes(err, "dense.rms", "x", &a->x, "y", &a->y);
    if (!is_vector(&a->w, n.width)) return fail_shapes(err, "dense.rms", "x", &a->x, "w", &a->w);
    if (adds && !same_rows(&a->x, &a->add, 2))
        return fail_shapes(err, "dense.rms", "x", &a->x, "add", &a->add);
    if (adds) {
        n.add = rows_of(&a->add);
        n.wide = n.wide && is_wide(&a->add, 4);
    }
    if (n.n_rows == 0 || n.width == 0) return BP_OK;
    BP_TRY(bp_cuda_use(d->dev, err, DC_NAME, "dense.rms"));
    return bp_cuda_launched(err, DC_NAME, "dense.rms", dc_start_rms(&n, l->stream));
}

int32_t dc_layernorm(void *self, const struct bp_launch *l, const struct bp_dense_layernorm_args *a,
                     struct bp_error *err)
{
    const struct dc_dense *d = self;
    const struct dc_norm n = {.x = rows_of(&a->x),
                              .y = rows_of(&a->y),
                              .w = a->w.data,
                              .b = a->b.data,
                              .n_rows = a->x.dim[0],
                              .width = a->x.dim[1],
                              .eps = a->eps,
                              .wide = a->x.dim[1] % 4 == 0 && is_wide(&a->x, 4) &&
                                      is_wide(&a->y, 4) && is_wide(&a->w, 4) && is_wide(&a->b, 4)};
    if (!same_rows(&a->x, &a->y, 2))
        return fail_shapes(err, "dense.layernorm", "x", &a->x, "y", &a->y);
    if (!is_vector(&a->w, n.width))
        return fail_shapes(err, "dense.layernorm", "x", &a->x, "w", &a->w);
    if (!is_vector(&a->b, n.width))
        return fail_shapes(err, "dense.layernorm", "x", &a->x, "b", &a->b);
    if (n.n_rows == 0 || n.width == 0) return BP_OK;
    BP_TRY(bp_cuda_use(d->dev, err, DC_NAME, "dense.layernorm"));
    return bp_cuda_launched(err, DC_NAME, "dense.layernorm", dc_start_layernorm(&n, l->stream));
}

/* ---- rotation and pairs --------------------------------------------------------------------------- */

static int is_table(const struct bp_tensor *t, int64_t half)
{
    return t->dtype == BP_DT_F32 && lies_plain(t, 2) && t->dim[1] == half;
}

int32_t dc_rope(void *self, const struct bp_launch *l, const struct bp_dense_rope_args *a,
                struct bp_error *err)
{
    const struct dc_dense *d = self;
    const struct dc_rope_args r = {.x = a->x.data,
                                   .y = a->y.data,
                                   .positions = a->positions.data,
                                   .cos_table = a->cos_table.data,
                                   .sin_table = a->sin_table.data,
                                   .x_row = a->x.stride[0],
                                   .x_head = a->x.stride[1],
                                   .y_row = a->y.stride[0],
                                   .y_head = a->y.stride[1],
                                   .position_stride = a->positions.stride[0],
                                   .cos_stride = a->cos_table.stride[0],
                                   .sin_stride = a->sin_table.stride[0],
                                   .n_rows = a->x.dim[0],
                                   .n_heads = a->x.dim[1],
                                   .half = a->x.dim[2] / 2,
                                   .n_pos = a->cos_table.dim[0],
                                   .x_dtype = a->x.dtype,
                                   .y_dtype = a->y.dtype,
                                   .style = a->style,
                                   .wide = a->x.dim[2] % 8 == 0 &&
                                           a->x.dim[1] * a->x.dim[2] < INT32_MAX &&
                                           is_wide(&a->x, 8) && is_wide(&a->y, 8) &&
                                           is_wide(&a->cos_table, 4) && is_wide(&a->sin_table, 4)};
    if (!same_rows(&a->x, &a->y, 3) || a->x.dim[2] % 2 != 0)
        return fail_shapes(err, "dense.rope", "x", &a->x, "y", &a->y);
    if (a->positions.dtype != BP_DT_I32 || a->positions.ndim != 1 ||
        a->positions.dim[0] != r.n_rows)
        return fail_shapes(err, "dense.rope", "x", &a->x, "positions", &a->positions);
    if (!is_table(&a->cos_table, r.half))
        return fail_shapes(err, "dense.rope", "x", &a->x, "cos_table", &a->cos_table);
    if (!is_table(&a->sin_table, r.half) || a->sin_table.dim[0] != r.n_pos)
        return fail_shapes(err, "dense.rope", "cos_table", &a->cos_table, "sin_table",
                           &a->sin_table);
    if (r.n_rows == 0 || r.n_heads == 0 || r.half == 0) return BP_OK;
    BP_TRY(bp_cuda_use(d->dev, err, DC_NAME, "dense.rope"));
    return bp_cuda_launched(err, DC_NAME, "dense.rope", dc_start_rope(&r, l->stream));
}

static int32_t run_pair(const struct dc_dense *d, const struct bp_launch *l,
                        const struct bp_dense_pair_args *a, uint32_t silu, const char *op,
                        struct bp_error *err)
{
    const uint32_t n = a->a.dtype == BP_DT_F32 ? 4 : 8; /* elements of 16 bytes */
    const struct dc_pair p = {.a = rows_of(&a->a),
                              .b = rows_of(&a->b),
                              .y = rows_of(&a->y),
                              .n_rows = a->y.dim[0],
                              .width = a->y.dim[1],
                              .silu = silu,
                              .wide = a->a.dtype == a->b.dtype && a->y.dim[1] % n == 0 &&
                                      is_wide(&a->a, n) && is_wide(&a->b, n) && is_wide(&a->y, n)};
    if (!same_rows(&a->a, &a->b, 2)) return fail_shapes(err, op, "a", &a->a, "b", &a->b);
    if (!same_rows(&a->a, &a->y, 2)) return fail_shapes(err, op, "a", &a->a, "y", &a->y);
    if (p.n_rows == 0 || p.width == 0) return BP_OK;
    BP_TRY(bp_cuda_use(d->dev, err, DC_NAME, op));
    return bp_cuda_launched(err, DC_NAME, op, dc_start_pair(&p, l->stream));
}

int32_t dc_silu_mul(void *self, const struct bp_launch *l, const struct bp_dense_pair_args *a,
                    struct bp_error *err)
{
    return run_pair(self, l, a, 1, "dense.silu_mul", err);
}

int32_t dc_add(void *self, const struct bp_launch *l, const struct bp_dense_pair_args *a,
               struct bp_error *err)
{
    return run_pair(self, l, a, 0, "dense.add", err);
}

/* ---- choices --------------------------------------------------------------------------------------- */

static int32_t begin_pick(const struct dc_dense *d, const struct bp_dense_topk_args *a,
                          struct dc_pick *p, const char *op, struct bp_error *err)
{
    *p = (struct dc_pick){.x = a->x.data,
                          .values = a->values.data,
                          .ids = a->ids.data,
                          .x_stride = a->x.stride[0],
                          .value_stride = a->values.stride[0],
                          .id_stride = a->ids.stride[0],
                          .n_rows = a->x.dim[0],
                          .width = a->x.dim[1],
                          .k = a->ids.dim[1]};
    if (a->x.dtype != BP_DT_F32 || a->ids.dtype != BP_DT_I32 || a->ids.dim[0] != p->n_rows ||
        !lies_plain(&a->x, 2) || !lies_plain(&a->ids, 2) || p->width < 1 || p->k < 1 ||
        p->k > p->width || p->k > DC_MAX_K)
        return fail_shapes(err, op, "x", &a->x, "ids", &a->ids);
    if (p->values != NULL && (a->values.dtype != BP_DT_F32 || a->values.dim[0] != p->n_rows ||
                              a->values.dim[1] != p->k || !lies_plain(&a->values, 2)))
        return fail_shapes(err, op, "ids", &a->ids, "values", &a->values);
    return bp_cuda_use(d->dev, err, DC_NAME, op);
}

int32_t dc_argmax(void *self, const struct bp_launch *l, const struct bp_dense_topk_args *a,
                  struct bp_error *err)
{
    struct dc_pick p;
    BP_TRY(begin_pick(self, a, &p, "dense.argmax", err));
    if (p.n_rows == 0) return BP_OK;
    p.best = l->scratch;
    p.arrived = l->persistent;
    if (p.k != 1) return fail_shapes(err, "dense.argmax", "x", &a->x, "ids", &a->ids);
    if (p.arrived == NULL)
        return bp_error_set(err, BP_E_ARG, DC_NAME, "dense.argmax",
                            "the persistent memory that workspace() asked for is missing");
    if (l->scratch_bytes < (uint64_t)p.n_rows * DC_MAX_PARTS * sizeof *p.best) {
        return bp_error_number(err, BP_E_ARG, DC_NAME, "dense.argmax",
                               "the scratch is too small for ", p.n_rows, " rows");
    }
    return bp_cuda_launched(err, DC_NAME, "dense.argmax", dc_start_argmax(&p, l->stream));
}

int32_t dc_topk(void *self, const struct bp_launch *l, const struct bp_dense_topk_args *a,
                struct bp_error *err)
{
    struct dc_pick p;
    BP_TRY(begin_pick(self, a, &p, "dense.topk", err));
    if (p.n_rows == 0) return BP_OK;
    return bp_cuda_launched(err, DC_NAME, "dense.topk", dc_start_topk(&p, l->stream));
}

/* ---- products -------------------------------------------------------------------------------------- */

static struct bp_cuda_matrix matrix_of(const struct bp_tensor *t)
{
    return (struct bp_cuda_matrix){
        .data = t->data, .row = t->stride[1], .batch = t->stride[0], .dtype = t->dtype};
}

int32_t dc_matmul(void *self, const struct bp_launch *l, const struct bp_dense_matmul_args *a,
                  struct bp_error *err)
{
    static const char op[] = "dense.matmul";
    const struct dc_dense *d = self;
    const int64_t batch = a->a.dim[0], m = a->a.dim[1], k = a->a.dim[2], n = a->b.dim[1];
    const struct bp_cuda_matrix x = matrix_of(&a->a), w = matrix_of(&a->b), y = matrix_of(&a->c);
    if (a->b.dim[0] != batch || a->b.dim[2] != k || k < 1 || a->a.dtype != a->b.dtype ||
        !bp_is_float(a->a.dtype) || !lies_plain(&a->a, 3) || !lies_plain(&a->b, 3))
        return fail_shapes(err, op, "a", &a->a, "b", &a->b);
    if (a->c.dim[0] != batch || a->c.dim[1] != m || a->c.dim[2] != n ||
        (a->c.dtype != a->a.dtype && a->c.dtype != BP_DT_F32) || !lies_plain(&a->c, 3))
        return fail_shapes(err, op, "a", &a->a, "c", &a->c);
    if (batch == 0 || m == 0 || n == 0) return BP_OK;
    if (l->scratch_bytes < BP_CUDA_BLAS_BYTES)
        return bp_error_number(
            err, BP_E_ARG, DC_NAME, op,
            "the scratch is smaller than workspace() said: ", (int64_t)l->scratch_bytes, " bytes");
    BP_TRY(bp_cuda_use(d->dev, err, DC_NAME, op));
    BP_TRY(
        bp_cuda_blas_begin(d->blas, l->stream, l->scratch, BP_CUDA_BLAS_BYTES, err, DC_NAME, op));
    return bp_cuda_blas_status(err, DC_NAME, op,
                               bp_cuda_blas_abt(d->blas, &x, &w, &y, m, n, k, batch, 1.0f, 0.0f),
                               "the product was not started");
}
