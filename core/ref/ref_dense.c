/* ref_dense.c - the dense slot: what is served, scratch, ports; the embedding table; products of plain floats.
 * Not here: norms, rotation, element-wise ops (ref_dense_row.c), argmax and topk (ref_dense_pick.c).
 * Threads: as slot_dense.h says. SPDX-License-Identifier: MIT */
#include "ref/ref_dense.h"

#include "block/block.h"

enum { MAX_PORTS = 5 };

void bpi_ref_dense_take(const struct bpi_ref *ref, struct bpi_ref_area *a, int64_t width,
                        uint64_t rows_f, uint64_t rows_d, struct bpi_ref_dense_scratch *s)
{
    uint64_t slices = bpi_ref_slices(ref), n_f = 0, n_d = 0;
    s->f_stride = (uint64_t)((width + 15) / 16 * 16) * rows_f;
    s->d_stride = (uint64_t)((width + 7) / 8 * 8) * rows_d;
    if (!bpi_mul_u64(slices, s->f_stride, &n_f) || !bpi_mul_u64(slices, s->d_stride, &n_d))
        a->bad = true;
    s->f = bpi_ref_area_take(a, n_f, sizeof *s->f);
    s->d = bpi_ref_area_take(a, n_d, sizeof *s->d);
}

/* ---- what is served ---- */

static void want_float(struct bp_verdict *v, uint32_t dtype, const char *field)
{
    if (bpi_ref_is_float(dtype)) return;
    bpi_ref_refuse(v, BP_R_DTYPE, field, dtype, BP_DT_F32, BP_DT_BF16, "F32, F16 or BF16");
}

static int32_t dense_supports(void *self, const void *problem, struct bp_verdict *v)
{
    (void)self;
    const struct bp_dense_problem *p = problem;
    bpi_ref_check_header(v, &p->h, BP_END(struct bp_dense_problem, k));
    if (v->n_reasons != 0) return BP_OK;
    bool picks = p->op == BP_DENSE_OP_ARGMAX || p->op == BP_DENSE_OP_TOPK;
    if (p->op > BP_DENSE_OP_MATMUL) {
        bpi_ref_refuse(v, BP_R_FEATURE, "op", p->op, 0, BP_DENSE_OP_MATMUL, "unknown op");
    }
    if (p->width < 0 || p->width > INT32_MAX) {
        bpi_ref_refuse(v, BP_R_SHAPE, "width", p->width, 0, INT32_MAX, "row length");
    }
    if (p->op == BP_DENSE_OP_ROPE && p->width % 2 != 0) {
        bpi_ref_refuse(v, BP_R_SHAPE, "width", p->width, 0, INT32_MAX,
                       "rotated dims come in pairs");
    }
    if (p->op == BP_DENSE_OP_TOPK && (p->k < 1 || p->k > p->width)) {
        bpi_ref_refuse(v, BP_R_SHAPE, "k", p->k, 1, p->width, "k of a row");
    }
    if (p->op == BP_DENSE_OP_EMBED) {
        const struct bpi_block_info *info = bpi_block_info(p->type);
        if (info == NULL || !info->can_decode) {
            bpi_ref_refuse(v, BP_R_QUANT, "type", p->type, 0, BP_GGUF_COUNT - 1,
                           "core/block has no decoder for this type");
        }
    }
    if (picks && p->x_dtype != BP_DT_F32) {
        bpi_ref_refuse(v, BP_R_DTYPE, "x_dtype", p->x_dtype, BP_DT_F32, BP_DT_F32,
                       "logits are F32");
    }
    if (!picks) want_float(v, p->y_dtype, "y_dtype");
    if (!picks && p->op != BP_DENSE_OP_EMBED) want_float(v, p->x_dtype, "x_dtype");
    bpi_ref_verdict_done(v);
    return BP_OK;
}

/* ---- scratch and ports ---- */

static void take_embed(const struct bpi_ref *ref, struct bpi_ref_area *a, int64_t cover,
                       struct bpi_ref_dense_scratch *s)
{
    bpi_ref_dense_take(ref, a, cover, 1, 0, s);
}

static void take_matmul(const struct bpi_ref *ref, struct bpi_ref_area *a, int64_t k,
                        struct bpi_ref_dense_scratch *s)
{
    bpi_ref_dense_take(ref, a, k, BPI_REF_ROW_BLOCK, BPI_REF_TOK_BLOCK, s);
}

static int32_t dense_workspace(void *self, const void *problem_max, struct bp_workspace *out,
                               struct bp_error *err)
{
    const struct bp_dense_problem *p = problem_max;
    struct bpi_ref_area area = {0};
    struct bpi_ref_dense_scratch s;
    switch (p->op) {
    case BP_DENSE_OP_EMBED:
        take_embed(self, &area, bpi_ref_cover_max(p->width), &s);
        break;
    case BP_DENSE_OP_RMS:
    case BP_DENSE_OP_LAYERNORM:
        bpi_ref_dense_take(self, &area, p->width, 2, 1, &s);
        break;
    case BP_DENSE_OP_MATMUL:
        take_matmul(self, &area, p->width, &s);
        break;
    default:
        break;
    }
    return bpi_ref_area_report(&area, out, err);
}

static uint32_t list_norms(uint32_t slot, const void *args, struct bp_tensor *ports)
{
    uint32_t n = 0;
    if (slot == BP_DENSE_OP_RMS) {
        const struct bp_dense_rms_args *a = args;
        bool adds = a->add.data != NULL;
        ports[n++] = bpi_ref_port(&a->x, "x", adds ? BP_INOUT : BP_IN);
        if (adds) ports[n++] = bpi_ref_port(&a->add, "add", BP_IN);
        ports[n++] = bpi_ref_port(&a->w, "w", BP_IN);
        ports[n++] = bpi_ref_port(&a->y, "y", BP_OUT);
    } else {
        const struct bp_dense_layernorm_args *a = args;
        ports[n++] = bpi_ref_port(&a->x, "x", BP_IN);
        ports[n++] = bpi_ref_port(&a->w, "w", BP_IN);
        ports[n++] = bpi_ref_port(&a->b, "b", BP_IN);
        ports[n++] = bpi_ref_port(&a->y, "y", BP_OUT);
    }
    return n;
}

static uint32_t list_rope(const struct bp_dense_rope_args *a, struct bp_tensor *ports)
{
    ports[0] = bpi_ref_port(&a->x, "x", BP_IN);
    ports[1] = bpi_ref_port(&a->positions, "positions", BP_IN);
    ports[2] = bpi_ref_port(&a->cos_table, "cos_table", BP_IN);
    ports[3] = bpi_ref_port(&a->sin_table, "sin_table", BP_IN);
    ports[4] = bpi_ref_port(&a->y, "y", BP_OUT);
    return 5;
}

static uint32_t list_topk(const struct bp_dense_topk_args *a, struct bp_tensor *ports)
{
    uint32_t n = 0;
    ports[n++] = bpi_ref_port(&a->x, "x", BP_IN);
    if (a->values.data != NULL) ports[n++] = bpi_ref_port(&a->values, "values", BP_OUT);
    ports[n++] = bpi_ref_port(&a->ids, "ids", BP_OUT);
    return n;
}

static uint32_t list_three(const struct bp_tensor *a, const char *a_name, const struct bp_tensor *b,
                           const char *b_name, const struct bp_tensor *y, const char *y_name,
                           struct bp_tensor *ports)
{
    uint32_t n = 0;
    ports[n++] = bpi_ref_port(a, a_name, BP_IN);
    if (b != NULL) ports[n++] = bpi_ref_port(b, b_name, BP_IN);
    ports[n++] = bpi_ref_port(y, y_name, BP_OUT);
    return n;
}

static int32_t dense_tensors(void *self, uint32_t slot, const void *args, struct bp_tensor *t,
                             uint32_t *n)
{
    (void)self;
    struct bp_tensor ports[MAX_PORTS];
    const struct bp_dense_embed_args *embed = args;
    const struct bp_dense_pair_args *pair = args;
    const struct bp_dense_matmul_args *matmul = args;
    uint32_t count = 0;
    switch (slot) {
    case BP_DENSE_OP_EMBED:
        count = list_three(&embed->ids, "ids", NULL, NULL, &embed->y, "y", ports);
        break;
    case BP_DENSE_OP_RMS:
    case BP_DENSE_OP_LAYERNORM:
        count = list_norms(slot, args, ports);
        break;
    case BP_DENSE_OP_ROPE:
        count = list_rope(args, ports);
        break;
    case BP_DENSE_OP_SILU_MUL:
    case BP_DENSE_OP_ADD:
        count = list_three(&pair->a, "a", &pair->b, "b", &pair->y, "y", ports);
        break;
    case BP_DENSE_OP_ARGMAX:
    case BP_DENSE_OP_TOPK:
        count = list_topk(args, ports);
        break;
    case BP_DENSE_OP_MATMUL:
        count = list_three(&matmul->a, "a", &matmul->b, "b", &matmul->c, "c", ports);
        break;
    default:
        return BP_E_ARG;
    }
    bpi_ref_list(ports, count, t, n);
    return BP_OK;
}

/* ---- embedding table ---- */

static int32_t dense_prepare(void *self, const struct bp_raw *raw, void **out,
                             struct bp_weight_info *info, struct bp_error *err)
{
    return bpi_ref_weight_handle(self, raw, "an embedding table", out, info, err);
}

static void dense_release(void *self, void *table)
{
    bpi_ref_free(self, table);
}

struct embed_job {
    struct bpi_ref *ref;
    const struct bp_dense_embed_args *a;
    struct bpi_ref_dense_scratch s;
};

static void embed_slices(void *arg, uint64_t begin, uint64_t end)
{
    struct embed_job *j = arg;
    const struct bp_tensor *y = &j->a->y;
    for (uint64_t slice = begin; slice < end; ++slice) {
        int64_t t, t_end, stride;
        bpi_ref_slice_part(slice, bpi_ref_slices(j->ref), y->dim[0], &t, &t_end);
        for (; t < t_end; ++t) {
            int32_t id = *(const int32_t *)bpi_ref_at(&j->a->ids, t, 0, 0);
            const float *row =
                bpi_ref_weight_rows(j->a->table, 0, id, 1, j->s.f + slice * j->s.f_stride, &stride);
            bpi_ref_store_floats(bpi_ref_at(y, t, 0, 0), y->dtype, row, y->dim[1], j->ref->round);
        }
    }
}

static int32_t dense_embed(void *self, const struct bp_launch *l,
                           const struct bp_dense_embed_args *a, struct bp_error *err)
{
    struct embed_job j = {.ref = self, .a = a};
    const struct bpi_ref_weight *w = a->table;
    const int64_t n = a->ids.dim[0];
    if (a->y.dim[0] != n || a->y.dim[1] != w->cols) {
        return bpi_fail(err, BP_E_ARG, "ref", "dense.embed",
                        "y (%lld, %lld) does not hold %lld rows of a table with %lld columns",
                        (long long)a->y.dim[0], (long long)a->y.dim[1], (long long)n,
                        (long long)w->cols);
    }
    for (int64_t t = 0; t < n; ++t) {
        int32_t id = *(const int32_t *)bpi_ref_at(&a->ids, t, 0, 0);
        if (id < 0 || id >= w->rows) {
            return bpi_fail(err, BP_E_ARG, "ref", "dense.embed",
                            "token %lld has id %d, the table has %lld rows", (long long)t, id,
                            (long long)w->rows);
        }
    }
    struct bpi_ref_area area = bpi_ref_area_of(l);
    take_embed(j.ref, &area, w->cover, &j.s);
    if (area.bad) return bpi_ref_area_fail(l, "dense.embed", err);
    bpi_ref_run_slices(j.ref, (uint64_t)(n * w->cols), embed_slices, &j);
    return BP_OK;
}

/* ---- products of plain floats ---- */

struct matmul_job {
    struct bpi_ref *ref;
    const struct bp_dense_matmul_args *a;
    struct bpi_ref_dense_scratch s;
    int64_t blocks; /* of rows of b, per batch */
};

static void load_doubles(double *dst, const void *p, uint32_t dtype, int64_t n, uint32_t round)
{
    enum { CHUNK = 256 };
    float piece[CHUNK];
    for (int64_t at = 0; at < n; at += CHUNK) {
        int64_t m = n - at < CHUNK ? n - at : CHUNK;
        const unsigned char *src = (const unsigned char *)p + at * bpi_ref_dtype_bytes(dtype);
        bpi_ref_load(piece, src, dtype, m, round);
        for (int64_t i = 0; i < m; ++i) dst[at + i] = (double)piece[i];
    }
}

static void multiply_block(const struct matmul_job *j, int64_t batch, int64_t row, float *f,
                           double *d)
{
    const struct bp_dense_matmul_args *a = j->a;
    const uint32_t round = j->ref->round;
    const int64_t k = a->a.dim[2], m = a->a.dim[1];
    const int64_t stride = (k + 7) / 8 * 8;
    int64_t n_rows = a->b.dim[1] - row;
    double y[BPI_REF_TOK_BLOCK * BPI_REF_ROW_BLOCK];
    if (n_rows > BPI_REF_ROW_BLOCK) n_rows = BPI_REF_ROW_BLOCK;
    for (int64_t r = 0; r < n_rows; ++r) {
        bpi_ref_load(f + r * k, bpi_ref_at(&a->b, batch, row + r, 0), a->b.dtype, k, round);
    }
    for (int64_t t = 0; t < m; t += BPI_REF_TOK_BLOCK) {
        int64_t n_tok = m - t < BPI_REF_TOK_BLOCK ? m - t : BPI_REF_TOK_BLOCK;
        for (int64_t i = 0; i < n_tok; ++i) {
            load_doubles(d + i * stride, bpi_ref_at(&a->a, batch, t + i, 0), a->a.dtype, k, round);
        }
        bpi_ref_product(f, k, n_rows, d, stride, NULL, n_tok, k, y, BPI_REF_ROW_BLOCK);
        for (int64_t i = 0; i < n_tok; ++i) {
            bpi_ref_store(bpi_ref_at(&a->c, batch, t + i, row), a->c.dtype,
                          y + i * BPI_REF_ROW_BLOCK, n_rows, round);
        }
    }
}

static void matmul_slices(void *arg, uint64_t begin, uint64_t end)
{
    struct matmul_job *j = arg;
    for (uint64_t slice = begin; slice < end; ++slice) {
        int64_t i, i_end;
        float *f = j->s.f + slice * j->s.f_stride;
        double *d = j->s.d + slice * j->s.d_stride;
        bpi_ref_slice_part(slice, bpi_ref_slices(j->ref), j->a->a.dim[0] * j->blocks, &i, &i_end);
        for (; i < i_end; ++i)
            multiply_block(j, i / j->blocks, i % j->blocks * BPI_REF_ROW_BLOCK, f, d);
    }
}

static int32_t dense_matmul(void *self, const struct bp_launch *l,
                            const struct bp_dense_matmul_args *a, struct bp_error *err)
{
    struct matmul_job j = {.ref = self, .a = a};
    const int64_t batch = a->a.dim[0], m = a->a.dim[1], n = a->b.dim[1], k = a->a.dim[2];
    if (a->b.dim[0] != batch || a->c.dim[0] != batch || a->b.dim[2] != k || a->c.dim[1] != m ||
        a->c.dim[2] != n) {
        return bpi_fail(
            err, BP_E_ARG, "ref", "dense.matmul",
            "a (%lld, %lld, %lld), b (%lld, %lld, %lld) and c (%lld, %lld, %lld) do not agree",
            (long long)batch, (long long)m, (long long)k, (long long)a->b.dim[0], (long long)n,
            (long long)a->b.dim[2], (long long)a->c.dim[0], (long long)a->c.dim[1],
            (long long)a->c.dim[2]);
    }
    j.blocks = (n + BPI_REF_ROW_BLOCK - 1) / BPI_REF_ROW_BLOCK;
    struct bpi_ref_area area = bpi_ref_area_of(l);
    take_matmul(j.ref, &area, k, &j.s);
    if (area.bad) return bpi_ref_area_fail(l, "dense.matmul", err);
    bpi_ref_run_slices(j.ref, (uint64_t)(batch * m * n) * (uint64_t)k, matmul_slices, &j);
    return BP_OK;
}

// clang-format off
static const struct bp_dense_ops ops = {
    .base = {.h = BP_HDR(struct bp_dense_ops, matmul), .iface = "bp.dense", .iface_major = 0, .iface_minor = 1,
             .supports = dense_supports, .workspace = dense_workspace, .tensors = dense_tensors},
    .prepare = dense_prepare, .release = dense_release, .embed = dense_embed,
    .rms = bpi_ref_dense_rms, .layernorm = bpi_ref_dense_layernorm, .rope = bpi_ref_dense_rope,
    .silu_mul = bpi_ref_dense_silu_mul, .add = bpi_ref_dense_add,
    .argmax = bpi_ref_dense_argmax, .topk = bpi_ref_dense_topk, .matmul = dense_matmul,
};
// clang-format on

const struct bp_op_base *bpi_ref_dense_ops(void)
{
    return &ops.base;
}
