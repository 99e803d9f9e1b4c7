/* ports.c - what the four ops check before they start a kernel: problems, layouts, tensors, pools.
 * A layout "mla.<dtype>.<C+R>" or "mla.index.<dtype>.<D>" is rows of plain numbers, one per token; the same ids as those of
 * the reference, so that both can work on one pool. Values that lie on the device (lengths, block numbers) are not checked.
 * Threads: pure. SPDX-License-Identifier: MIT */
#include "attn.h"

static const uint32_t stored[] = {BP_DT_BF16, BP_DT_F16, BP_DT_F32}; /* in order of preference */
enum { FLOATS = BP_SET(BP_DT_F32) | BP_SET(BP_DT_F16) | BP_SET(BP_DT_BF16) };

void attn_want_problem(struct bp_verdict *v, const struct attn_op *o,
                       const struct bp_mla_problem *p, uint32_t capture, uint32_t determinism)
{
    bp_want_cc(v, o->dev, 90, 129);
    bp_want_dtype(v, "act_dtype", p->act_dtype, FLOATS);
    bp_want_range(v, BP_R_SHAPE, "rope_dim", p->rope_dim, 2, ATTN_MAX_HEAD);
    bp_want_mul(v, BP_R_SHAPE, "rope_dim", p->rope_dim, 2);
    bp_want_le(v, BP_R_GRAPH, "need_capture", p->need_capture, capture);
    bp_want_le(v, BP_R_DETERMINISM, "need_determinism", p->need_determinism, determinism);
}

void attn_want_latent(struct bp_verdict *v, const struct bp_mla_problem *p, int cache)
{
    const uint64_t width = (uint64_t)p->kv_rank + p->rope_dim;
    bp_want_range(v, BP_R_SHAPE, "n_head", p->n_head, 1, 65535);
    bp_want_range(v, BP_R_SHAPE, "kv_rank", p->kv_rank, 1, ATTN_MAX_WIDTH - (int64_t)p->rope_dim);
    if (cache) {
        bp_want_dtype(v, "kv_dtype", p->kv_dtype, FLOATS);
        bp_want_range(v, BP_R_SHAPE, "block_tok", p->block_tok, 1, 1 << 20);
        attn_want_layout(v, "layout_id", "mla", p->layout_id, width, p->kv_dtype);
    } else if (p->layout_id != 0) {
        if (v->layouts != NULL && v->cap_layouts > 0) v->layouts[v->n_layouts++] = p->layout_id;
    } else {
        attn_want_layout(v, "layout_id", "mla", 0, width, p->kv_dtype);
    }
}

void attn_want_layout(struct bp_verdict *v, const char *field, const char *family, uint64_t id,
                      uint64_t width, uint32_t dtype)
{
    char name[32];
    if (bp_layout_name(name, family, dtype, width) == 0) return; /* the dtype was refused already */
    (void)bp_offer_layout(v, name);
    bp_want_layout(v, field, id);
}

int32_t attn_layout_at(const char *family, uint64_t width, uint32_t block_tok, uint32_t dtype,
                       uint32_t i, struct bp_kv_layout *out)
{
    if (width == 0 || width > ATTN_MAX_WIDTH || block_tok == 0) return BP_DECLINED;
    for (uint32_t at = 0; at < BP_LEN(stored); ++at) {
        if ((dtype != BP_DT_NONE && stored[at] != dtype) || i-- > 0) continue;
        out->id = bp_layout_name(out->name, family, stored[at], width);
        out->token_bytes = width * (uint64_t)bp_dtype_bytes(stored[at]);
        out->block_bytes = out->token_bytes * block_tok;
        out->dtype = stored[at];
        out->align = 64;
        return BP_OK;
    }
    return BP_DECLINED;
}

int32_t attn_port(const struct bp_tensor *t, const char *name, uint32_t dtype, int64_t d0,
                  int64_t d1, int64_t d2, const char *op, struct bp_error *err)
{
    const uint32_t ndim = d2 != 0 ? 3 : d1 != 0 ? 2 : 1;
    const int typed =
        dtype != BP_DT_NONE ? t->dtype == dtype : t->dtype < 32 && (BP_SET(t->dtype) & FLOATS) != 0;
    const int shaped = t->ndim == ndim && t->dim[0] >= d0 && (d1 == 0 || t->dim[1] == d1) &&
                       (d2 == 0 || t->dim[2] == d2);
    if (typed && shaped && (d0 <= 0 || (t->data != NULL && t->stride[ndim - 1] == 1))) return BP_OK;
    struct bp_text s;
    (void)bp_error_begin(err, &s, BP_E_ARG, ATTN_NAME, op);
    bp_text_add(&s, name);
    bp_text_add(&s, " is ");
    bp_text_add(&s, bp_dtype_name(t->dtype));
    for (uint32_t d = 0; d < t->ndim && d < 4; ++d) {
        bp_text_add(&s, d == 0 ? " (" : ", ");
        bp_text_i64(&s, t->dim[d]);
    }
    bp_text_add(&s, t->ndim > 0 ? "), and the other arguments need ("
                                : ", and the other arguments need (");
    bp_text_i64(&s, d0);
    for (uint32_t d = 1; d < ndim; ++d) {
        bp_text_add(&s, ", ");
        bp_text_i64(&s, d == 1 ? d1 : d2);
    }
    bp_text_add(&s, ") of ");
    bp_text_add(&s, dtype != BP_DT_NONE ? bp_dtype_name(dtype) : "f32, f16 or bf16");
    bp_text_add(&s, " with innermost stride 1");
    return BP_E_ARG;
}

int32_t attn_pool_open(const struct bp_tensor *t, const char *family, int64_t width,
                       uint32_t block_tok, const char *op, struct attn_pool *out,
                       struct bp_error *err)
{
    char name[32];
    for (uint32_t at = 0; width > 0 && width <= ATTN_MAX_WIDTH && at < BP_LEN(stored); ++at) {
        if (bp_layout_name(name, family, stored[at], (uint64_t)width) != t->layout_id) continue;
        const int64_t row_bytes = width * bp_dtype_bytes(stored[at]),
                      block_bytes = row_bytes * block_tok;
        if (t->data == NULL || block_tok == 0 || t->ndim != 2 || t->dim[1] != block_bytes ||
            (t->dim[0] > 1 && t->stride[0] < block_bytes)) {
            return bp_error_number(err, BP_E_ARG, ATTN_NAME, op, "the pool must be (n_blocks, ",
                                   block_bytes,
                                   ") bytes for its layout and this number of tokens in a block");
        }
        *out = (struct attn_pool){.data = t->data,
                                  .block_bytes = t->stride[0],
                                  .row_bytes = row_bytes,
                                  .width = (uint32_t)width,
                                  .block_tok = block_tok,
                                  .dtype = stored[at]};
        return BP_OK;
    }
    return bp_error_number(err, BP_E_ARG, ATTN_NAME, op,
                           "the pool's layout is none of ours for rows of ", width,
                           " numbers; take one that layouts() lists");
}

struct attn_rows attn_rows_of(const struct bp_tensor *t)
{
    return (struct attn_rows){.data = t->data,
                              .row = t->stride[0],
                              .head = t->ndim > 2   ? t->stride[1]
                                      : t->ndim > 1 ? 1
                                                    : 0,
                              .dtype = t->dtype};
}

int32_t attn_tables(const struct bp_mla_meta *m, int64_t n_rope, const char *op,
                    struct bp_error *err)
{
    BP_TRY(attn_port(&m->rope_cos, "rope_cos", BP_DT_F32, 1, n_rope / 2, 0, op, err));
    return attn_port(&m->rope_sin, "rope_sin", BP_DT_F32, m->rope_cos.dim[0], n_rope / 2, 0, op,
                     err);
}

int32_t attn_launched(int32_t e, const char *op, struct bp_error *err)
{
    return bp_cuda_launched(err, ATTN_NAME, op, e);
}

int32_t attn_want_scratch(const struct bp_launch *l, uint64_t n_bytes, const char *op,
                          struct bp_error *err)
{
    if (l->scratch_bytes >= n_bytes && (n_bytes == 0 || l->scratch != NULL)) return BP_OK;
    return bp_error_number(
        err, BP_E_ARG, ATTN_NAME, op, "the call needs ", (int64_t)n_bytes,
        " bytes of scratch and got fewer; ask workspace() with the largest problem");
}
