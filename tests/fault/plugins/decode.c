/* decode.c - "bp.mla.decode" in few lines, right but for the fault that FAULT names. SPDX-License-Identifier: MIT */
#include "backplane/slot_mla.h"

#include <math.h>

#define IFACE "bp.mla.decode"
#define OP_TABLE decode_table
static const struct bp_mla_decode_ops decode_table;
#include "frame.h"

static int32_t decode_supports(void *self, const void *problem, struct bp_verdict *v)
{
    const struct bp_mla_problem *p = problem;
    const uint32_t floats = BP_SET(BP_DT_F32) | BP_SET(BP_DT_F16) | BP_SET(BP_DT_BF16);
    char layout[32];
    (void)self;
    if (!frame_supports(v, &p->h, BP_END(struct bp_mla_problem, type_v))) return BP_OK;
    bp_want_dtype(v, "act_dtype", p->act_dtype, floats);
    bp_want_dtype(v, "kv_dtype", p->kv_dtype, floats);
    bp_want_range(v, BP_R_SHAPE, "kv_rank", p->kv_rank, 1, 1 << 16);
    bp_want_range(v, BP_R_SHAPE, "rope_dim", p->rope_dim, 0, 1 << 16);
    bp_want_range(v, BP_R_SHAPE, "block_tok", p->block_tok, 1, 1 << 16);
    bp_want_le(v, BP_R_GRAPH, "need_capture", p->need_capture, BP_CAPTURE_NONE);
    bp_want_le(v, BP_R_DETERMINISM, "need_determinism", p->need_determinism, BP_DET_BATCH);
    if (FAULT == F_WRONG_LAYOUT) {
        bp_offer_layout(v, "mla.of_its_own.7");
    } else if (bp_layout_name(layout, "mla", p->kv_dtype, (uint64_t)p->kv_rank + p->rope_dim) !=
               0) {
        bp_offer_layout(v, layout);
    }
    bp_want_layout(v, "layout_id", p->layout_id);
    return bp_verdict_done(v, BP_CAPTURE_NONE, BP_DET_BATCH, -1.0);
}

struct rows {
    float *q, *key, *out;
    double *sum;
};

static void take_rows(struct bp_area *a, uint64_t width, struct rows *r)
{
    r->q = bp_area_take(a, width, sizeof(float));
    r->key = bp_area_take(a, width, sizeof(float));
    r->out = bp_area_take(a, width, sizeof(float));
    r->sum = bp_area_take(a, width, sizeof(double));
}

static int32_t decode_workspace(void *self, const void *problem, struct bp_workspace *out,
                                struct bp_error *err)
{
    const struct bp_mla_problem *p = problem;
    struct bp_area a;
    struct rows r;
    (void)self;
    (void)err;
    bp_area_count(&a);
    take_rows(&a, (uint64_t)p->kv_rank + p->rope_dim, &r);
    return frame_workspace(out, a.used, p->max_rows);
}

static uint32_t pool_dtype(const struct bp_tensor *pool, uint64_t width)
{
    static const uint32_t dtypes[] = {BP_DT_F32, BP_DT_BF16, BP_DT_F16};
    char name[32];
    for (uint32_t i = 0; i < BP_LEN(dtypes) && FAULT != F_IGNORES_LAYOUT; ++i) {
        if (bp_layout_name(name, "mla", dtypes[i], width) == pool->layout_id) return dtypes[i];
    }
    return FAULT == F_IGNORES_LAYOUT ? BP_DT_BF16 : BP_DT_NONE;
}

/* Token slot of the at-th key of a row. */
static int64_t slot_of(const struct bp_mla_decode_args *a, int64_t row, int64_t at,
                       const int32_t *list)
{
    const struct bp_mla_meta *m = a->meta->common;
    if (list != NULL) return list[at];
    const int64_t block =
        m->block_table_host[(int64_t)a->meta->row_seq_host[row] * m->table_stride +
                            at / m->block_tok];
    return block * m->block_tok + at % m->block_tok;
}

static void attend(const struct bp_mla_decode_args *a, uint32_t dtype, int64_t row, int64_t head,
                   const struct rows *r)
{
    const int64_t width = a->q.dim[2], latent = a->out.dim[2],
                  block_tok = a->meta->common->block_tok;
    const int32_t *list = NULL;
    int64_t n = a->meta->row_kv_len_host[row];
    double max = -INFINITY, total = 0.0;
    if (n > 0 && a->idx.data != NULL && *(int32_t *)bp_at(&a->idx_len, row, 0, 0) >= 0) {
        n = *(int32_t *)bp_at(&a->idx_len, row, 0, 0);
        list = bp_at(&a->idx, row, 0, 0);
    }
    for (int64_t i = 0; i < latent; ++i) r->sum[i] = 0.0;
    if (n > 0) bp_load(r->q, bp_at(&a->q, row, head, 0), a->q.dtype, width);
    for (int64_t at = 0; at < n; ++at) {
        const int64_t slot = slot_of(a, row, at, list);
        double score = 0.0;
        if (slot < 0) continue;
        const unsigned char *block =
            (const unsigned char *)a->pool.data + slot / block_tok * a->pool.stride[0];
        bp_load(r->key, block + slot % block_tok * width * bp_dtype_bytes(dtype), dtype, width);
        for (int64_t i = 0; i < width; ++i) score += (double)r->q[i] * (double)r->key[i];
        score *= (double)a->scale;
        if (score > max || total == 0.0) {
            const double by = total == 0.0 ? 0.0 : exp(max - score);
            for (int64_t i = 0; i < latent; ++i) r->sum[i] *= by;
            total *= by;
            max = score;
        }
        const double weight = exp(score - max);
        total += weight;
        for (int64_t i = 0; i < latent; ++i) r->sum[i] += weight * (double)r->key[i];
    }
    for (int64_t i = 0; i < latent; ++i)
        r->out[i] = (float)(total != 0.0 ? r->sum[i] / total : 0.0);
    if (FAULT == F_NEEDS_LSE && a->lse.data == NULL) return;
    bp_store(bp_at(&a->out, row, head, 0), a->out.dtype, r->out, latent);
    if (a->lse.data == NULL) return;
    const double lse = total != 0.0 ? max + log(total) : -INFINITY;
    *(float *)bp_at(&a->lse, row, head, 0) = (float)(FAULT == F_LSE_BASE_2 ? lse / log(2.0) : lse);
}

static int32_t plan(void *self, const struct bp_launch *l, const struct bp_mla_decode_meta *m,
                    struct bp_error *err)
{
    (void)self;
    (void)l;
    (void)m;
    (void)err;
    return BP_OK;
}

static int32_t run(void *self, const struct bp_launch *l, const struct bp_mla_decode_args *a,
                   struct bp_error *err)
{
    const uint64_t width = (uint64_t)a->q.dim[2];
    const uint32_t dtype = pool_dtype(&a->pool, width);
    const float nan = NAN;
    int has_nan = 0;
    struct bp_area area;
    struct rows r;
    BP_TRY(misbehave_in_run(self, l));
    if (dtype == BP_DT_NONE)
        return bp_error_set(err, BP_E_ARG, NAME, "run",
                            "the pool has a layout that this plugin did not offer");
    bp_area_of(&area, l->scratch, l->scratch_bytes);
    take_rows(&area, width, &r);
    if (area.bad != 0)
        return bp_error_set(err, BP_E_ARG, NAME, "run", "too little scratch was given");
    for (int64_t row = 0; row < (int64_t)a->meta->n_row_padded; ++row) {
        for (int64_t head = 0; head < a->q.dim[1]; ++head) {
            attend(a, dtype, row, head, &r);
            has_nan |= isnan(r.out[0]);
            if (FAULT == F_CACHED_NAN && has_nan) /* as sums that go on from row to row would */
                bp_store(bp_at(&a->out, row, head, 0), a->out.dtype, &nan, 1);
        }
    }
    return BP_OK;
}

static const struct bp_mla_decode_ops decode_table = {
    .base = {.h = {FAULT == F_CUT_TABLE     ? BP_END(struct bp_op_base, supports)
                   : FAULT == F_SHORT_TABLE ? BP_END(struct bp_mla_decode_ops, plan)
                                            : BP_END(struct bp_mla_decode_ops, run),
                   0, NULL},
             .iface = IFACE,
             .iface_major = BP_ABI_MAJOR,
             .iface_minor = BP_ABI_MINOR,
             .supports = FAULT == F_NULL_SUPPORTS ? NULL : decode_supports,
             .workspace = FAULT == F_NULL_WORKSPACE ? NULL : decode_workspace,
             .tensors = FAULT == F_NULL_TENSORS ? NULL : bp_mla_decode_tensors},
    .plan = plan,
    .run = FAULT == F_NULL_RUN ? NULL : run};
