/* ref_mla_common.c - "bp.mla.common" of the reference backend: cache writes and reads, the merge of partial softmax
 * results, and the op table. Not here: up-projections (ref_mla_weights.c).
 * Metadata is read through its host twins only, so ref can stand in for one op of a rank on any device.
 * Threads: one call per instance; a call uses the host's threads. SPDX-License-Identifier: MIT */
#include "ref/ref_mla.h"

#include "block/block.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { PIECE = 128 /* numbers converted at a time on the stack */ };

/* ---- cache_write ---- */

struct write_job {
    const struct bpi_ref *ref;
    const struct bp_mla_cache_write_args *a;
    struct bpi_ref_mla_pool pool;
};

static uint64_t write_slice(uint64_t width)
{
    return bpi_ref_mla_align(width * sizeof(float)) + bpi_ref_mla_align(width * sizeof(double));
}

static void write_item(void *arg, uint64_t item, unsigned char *scratch)
{
    const struct write_job *j = arg;
    const struct bp_mla_cache_write_args *a = j->a;
    const struct bp_mla_meta *m = a->meta;
    const int64_t t = (int64_t)item, n_latent = a->norm_w.dim[0], width = a->kv.dim[1];
    const int64_t slot = m->slot_map_host[t];
    float *x = (float *)scratch;
    double *y = (double *)(scratch + bpi_ref_mla_align((uint64_t)width * sizeof(float)));
    if (slot < 0) return;
    bpi_ref_load(x, bpi_ref_at(&a->kv, t, 0, 0), a->kv.dtype, width, j->ref->round);
    const float *w = a->norm_w.data;
    double mean = bpi_ref_dot_ff(x, x, n_latent) / (double)n_latent;
    double inv = 1.0 / sqrt(mean + (double)a->eps);
    for (int64_t i = 0; i < n_latent; ++i) y[i] = (double)w[i] * ((double)x[i] * inv);
    const float *cosines = bpi_ref_at(&m->rope_cos, m->positions_host[t], 0, 0);
    const float *sines = bpi_ref_at(&m->rope_sin, m->positions_host[t], 0, 0);
    for (int64_t i = 0; n_latent + 2 * i < width; ++i) {
        double even = x[n_latent + 2 * i], odd = x[n_latent + 2 * i + 1];
        double c = cosines[i], s = sines[i];
        y[n_latent + 2 * i] = even * c - odd * s;
        y[n_latent + 2 * i + 1] = even * s + odd * c;
    }
    bpi_ref_store(bpi_ref_mla_pool_row(&j->pool, slot), j->pool.dtype, y, width, j->ref->round);
}

static int32_t common_cache_write(void *self, const struct bp_launch *l,
                                  const struct bp_mla_cache_write_args *a, struct bp_error *err)
{
    static const char op[] = "mla.common cache_write";
    const struct bp_mla_meta *m = a->meta;
    struct write_job j = {.ref = self, .a = a};
    if (m->n_tok == 0) return BP_OK;
    const int64_t width = a->kv.dim[1], n_latent = a->norm_w.dim[0];
    BP_TRY(bpi_ref_mla_port(&a->kv, "kv", BP_DT_NONE, m->n_tok, width, 0, op, err));
    BP_TRY(bpi_ref_mla_port(&a->norm_w, "norm_w", BP_DT_F32, 1, 0, 0, op, err));
    if (n_latent >= width || (width - n_latent) % 2 != 0) {
        return bpi_fail(err, BP_E_ARG, "ref", op,
                        "rows of %" PRId64 " numbers with %" PRId64
                        " latents leave no even number of them to rotate",
                        width, n_latent);
    }
    BP_TRY(bpi_ref_mla_pool_open(&a->pool, "mla", width, m->block_tok, op, &j.pool, err));
    BP_TRY(bpi_ref_mla_check_writes(m, &j.pool, width - n_latent, op, err));
    return bpi_ref_mla_each(j.ref, l, m->n_tok, write_slice((uint64_t)width),
                            m->n_tok * (uint64_t)width * 8, write_item, &j, op, err);
}

/* ---- cache_gather ---- */

struct gather_job {
    const struct bpi_ref *ref;
    const struct bp_mla_cache_gather_args *a;
    struct bpi_ref_mla_pool pool;
};

static void copy_row(const unsigned char *src, uint32_t src_dtype, unsigned char *dst,
                     uint32_t dst_dtype, int64_t n, uint32_t round)
{
    const int64_t src_bytes = src_dtype == BP_DT_F32 ? 4 : 2;
    const int64_t dst_bytes = dst_dtype == BP_DT_F32 ? 4 : 2;
    if (src_dtype == dst_dtype && round == BPI_REF_ROUND_NONE) {
        memcpy(dst, src, (size_t)(n * src_bytes));
        return;
    }
    for (int64_t i = 0; i < n; i += PIECE) {
        float part[PIECE];
        double wide[PIECE];
        int64_t m = n - i < PIECE ? n - i : PIECE;
        bpi_ref_mla_load_d(wide, part, src + i * src_bytes, src_dtype, m, round);
        bpi_ref_store(dst + i * dst_bytes, dst_dtype, wide, m, round);
    }
}

static void gather_item(void *arg, uint64_t item, unsigned char *scratch)
{
    (void)scratch;
    const struct gather_job *j = arg;
    const struct bp_mla_cache_gather_args *a = j->a;
    const struct bp_mla_prefill_meta *m = a->meta;
    const int64_t s = (int64_t)item;
    const int64_t n_latent = a->c.dim[1], n_rope = a->k_pe.dim[1];
    const uint64_t latent_bytes = (uint64_t)n_latent * (j->pool.dtype == BP_DT_F32 ? 4 : 2);
    for (int64_t r = m->cu_k_host[s]; r < m->cu_k_host[s + 1]; ++r) {
        int64_t at = m->kv_begin_host[s] + (r - m->cu_k_host[s]);
        int64_t slot = bpi_ref_mla_slot(m->common, m->seq_host[s], at);
        const unsigned char *row = bpi_ref_mla_pool_row(&j->pool, slot);
        copy_row(row, j->pool.dtype, bpi_ref_at(&a->c, r, 0, 0), a->c.dtype, n_latent,
                 j->ref->round);
        copy_row(row + latent_bytes, j->pool.dtype, bpi_ref_at(&a->k_pe, r, 0, 0), a->k_pe.dtype,
                 n_rope, j->ref->round);
    }
}

static int32_t common_cache_gather(void *self, const struct bp_launch *l,
                                   const struct bp_mla_cache_gather_args *a, struct bp_error *err)
{
    static const char op[] = "mla.common cache_gather";
    const struct bp_mla_prefill_meta *m = a->meta;
    struct gather_job j = {.ref = self, .a = a};
    if (m->n_seg == 0 || m->n_k == 0) return BP_OK;
    const int64_t n_latent = a->c.dim[1], n_rope = a->k_pe.dim[1];
    BP_TRY(bpi_ref_mla_port(&a->c, "c", BP_DT_NONE, m->n_k, n_latent, 0, op, err));
    BP_TRY(bpi_ref_mla_port(&a->k_pe, "k_pe", BP_DT_NONE, m->n_k, n_rope, 0, op, err));
    BP_TRY(bpi_ref_mla_pool_open(&a->pool, "mla", n_latent + n_rope, m->common->block_tok, op,
                                 &j.pool, err));
    for (uint32_t s = 0; s < m->n_seg; ++s) {
        int64_t n = (int64_t)m->cu_k_host[s + 1] - m->cu_k_host[s], begin = m->kv_begin_host[s];
        if (m->cu_k_host[s] < 0 || n < 0 || m->cu_k_host[s + 1] > (int64_t)m->n_k) {
            return bpi_fail(err, BP_E_ARG, "ref", op,
                            "keys of segment %u are rows %d..%d of a slab of %u", s,
                            m->cu_k_host[s], m->cu_k_host[s + 1], m->n_k);
        }
        BP_TRY(
            bpi_ref_mla_check_keys(m->common, &j.pool, m->seq_host[s], begin, begin + n, op, err));
    }
    return bpi_ref_mla_each(j.ref, l, m->n_seg, 0, (uint64_t)m->n_k * (uint64_t)j.pool.width,
                            gather_item, &j, op, err);
}

/* ---- merge ---- */

struct merge_job {
    const struct bpi_ref *ref;
    const struct bp_mla_merge_args *a;
};

/* Neither side is empty: out = (wa a + wb b) / (wa + wb), with the larger of the two weights 1. */
static void blend(const struct merge_job *j, void *out, uint32_t out_dtype, const void *other,
                  uint32_t other_dtype, int64_t n, double wa, double wb)
{
    const int64_t out_bytes = out_dtype == BP_DT_F32 ? 4 : 2;
    const int64_t other_bytes = other_dtype == BP_DT_F32 ? 4 : 2;
    const double sum = wa + wb;
    for (int64_t i = 0; i < n; i += PIECE) {
        float a[PIECE], b[PIECE];
        double y[PIECE];
        int64_t m = n - i < PIECE ? n - i : PIECE;
        unsigned char *dst = (unsigned char *)out + i * out_bytes;
        bpi_ref_load(a, dst, out_dtype, m, j->ref->round);
        bpi_ref_load(b, (const unsigned char *)other + i * other_bytes, other_dtype, m,
                     j->ref->round);
        for (int64_t k = 0; k < m; ++k) y[k] = (wa * (double)a[k] + wb * (double)b[k]) / sum;
        bpi_ref_store(dst, out_dtype, y, m, j->ref->round);
    }
}

static void merge_item(void *arg, uint64_t item, unsigned char *scratch)
{
    (void)scratch;
    const struct merge_job *j = arg;
    const struct bp_mla_merge_args *a = j->a;
    const int64_t i = (int64_t)item, n = a->out.dim[2];
    for (int64_t h = 0; h < a->out.dim[1]; ++h) {
        float *lse = bpi_ref_at(&a->lse, i, h, 0);
        const float other_lse = *(const float *)bpi_ref_at(&a->other_lse, i, h, 0);
        unsigned char *out = bpi_ref_at(&a->out, i, h, 0);
        const unsigned char *other = bpi_ref_at(&a->other_out, i, h, 0);
        const bool empty = *lse == -INFINITY, other_empty = other_lse == -INFINITY;
        if (empty && other_empty) {
            const double zero[PIECE] = {0};
            for (int64_t k = 0; k < n; k += PIECE) {
                bpi_ref_store(bpi_ref_at(&a->out, i, h, k), a->out.dtype, zero,
                              n - k < PIECE ? n - k : PIECE, BPI_REF_ROUND_NONE);
            }
        } else if (empty) {
            /* Bit for bit, so not through `round`: nothing is computed here. */
            copy_row(other, a->other_out.dtype, out, a->out.dtype, n, BPI_REF_ROUND_NONE);
            *lse = other_lse;
        } else if (!other_empty) {
            double la = *lse, lb = other_lse, max = la > lb ? la : lb;
            double wa = exp(la - max), wb = exp(lb - max);
            blend(j, out, a->out.dtype, other, a->other_out.dtype, n, wa, wb);
            *lse = (float)(max + log(wa + wb));
        }
    }
}

static int32_t common_merge(void *self, const struct bp_launch *l,
                            const struct bp_mla_merge_args *a, struct bp_error *err)
{
    static const char op[] = "mla.common merge";
    struct merge_job j = {.ref = self, .a = a};
    const int64_t n = a->out.dim[0], n_head = a->out.dim[1], width = a->out.dim[2];
    if (n == 0 || n_head == 0) return BP_OK;
    BP_TRY(bpi_ref_mla_port(&a->out, "out", BP_DT_NONE, n, n_head, width, op, err));
    BP_TRY(bpi_ref_mla_port(&a->lse, "lse", BP_DT_F32, n, n_head, 0, op, err));
    BP_TRY(bpi_ref_mla_port(&a->other_out, "other_out", BP_DT_NONE, n, n_head, width, op, err));
    BP_TRY(bpi_ref_mla_port(&a->other_lse, "other_lse", BP_DT_F32, n, n_head, 0, op, err));
    return bpi_ref_mla_each(j.ref, l, (uint64_t)n, 0, (uint64_t)(n * n_head * width) * 4,
                            merge_item, &j, op, err);
}

/* ---- table ---- */

static int32_t common_layouts(void *self, const struct bp_mla_problem *p, uint32_t i,
                              struct bp_kv_layout *out)
{
    (void)self;
    return bpi_ref_mla_layout_at("mla", (uint64_t)p->kv_rank + p->rope_dim, p->block_tok,
                                 p->kv_dtype, i, out);
}

static void check_type(struct bp_verdict *v, const char *field, uint32_t type)
{
    const struct bpi_block_info *block = bpi_block_info(type);
    if (block != NULL && block->can_decode) return;
    bpi_ref_refuse(v, BP_R_QUANT, field, type, 0, BP_GGUF_COUNT - 1,
                   "core/block has no decoder for this tensor type");
}

static int32_t common_supports(void *self, const void *problem, struct bp_verdict *v)
{
    (void)self;
    struct bp_mla_problem p;
    bpi_ref_mla_check_problem(problem, &p, true, v);
    bpi_ref_mla_check_latent(&p, true, v);
    check_type(v, "type_k", p.type_k);
    check_type(v, "type_v", p.type_v);
    bpi_ref_verdict_done(v);
    return BP_OK;
}

static int32_t common_workspace(void *self, const void *problem_max, struct bp_workspace *out,
                                struct bp_error *err)
{
    (void)self;
    const struct bp_mla_problem *p = problem_max;
    const uint64_t n_key = p->max_slab > p->max_tok ? p->max_slab : p->max_tok;
    const uint64_t n_row = n_key > p->max_rows ? n_key : p->max_rows;
    uint64_t write_bytes, expand_bytes;
    /* Items: tokens for cache_write, heads times rows (in eights or not) for the products. */
    if (!bpi_ref_mla_scratch(p->max_tok, write_slice((uint64_t)p->kv_rank + p->rope_dim),
                             &write_bytes) ||
        !bpi_ref_mla_scratch(n_row * p->n_head,
                             bpi_ref_mla_weights_slice(p->nope_dim, p->v_dim, p->kv_rank),
                             &expand_bytes)) {
        return bpi_fail(err, BP_E_LIMIT, "ref", "mla.common workspace",
                        "the scratch of this problem overflows a 64-bit size");
    }
    bpi_ref_mla_workspace(out, write_bytes > expand_bytes ? write_bytes : expand_bytes);
    return BP_OK;
}

static int32_t common_tensors(void *self, uint32_t slot, const void *args, struct bp_tensor *t,
                              uint32_t *n)
{
    (void)self;
    struct bp_tensor ports[5];
    uint32_t count = 0;
    if (slot == BP_MLA_OP_CACHE_WRITE) {
        const struct bp_mla_cache_write_args *a = args;
        ports[count++] = bpi_ref_port(&a->kv, "kv", BP_IN);
        ports[count++] = bpi_ref_port(&a->norm_w, "norm_w", BP_IN);
        ports[count++] = bpi_ref_port(&a->pool, "pool", BP_INOUT);
    } else if (slot == BP_MLA_OP_CACHE_GATHER) {
        const struct bp_mla_cache_gather_args *a = args;
        ports[count++] = bpi_ref_port(&a->pool, "pool", BP_IN);
        ports[count++] = bpi_ref_port(&a->c, "c", BP_OUT);
        ports[count++] = bpi_ref_port(&a->k_pe, "k_pe", BP_OUT);
    } else if (slot == BP_MLA_OP_EXPAND) {
        const struct bp_mla_expand_args *a = args;
        ports[count++] = bpi_ref_port(&a->c, "c", BP_IN);
        ports[count++] = bpi_ref_port(&a->k_pe, "k_pe", BP_IN);
        ports[count++] = bpi_ref_port(&a->k, "k", BP_OUT);
        ports[count++] = bpi_ref_port(&a->v, "v", BP_OUT);
    } else if (slot == BP_MLA_OP_ABSORB) {
        const struct bp_mla_absorb_args *a = args;
        ports[count++] = bpi_ref_port(&a->x, "x", BP_IN);
        ports[count++] = bpi_ref_port(&a->y, "y", BP_OUT);
    } else if (slot == BP_MLA_OP_MERGE) {
        const struct bp_mla_merge_args *a = args;
        ports[count++] = bpi_ref_port(&a->out, "out", BP_INOUT);
        ports[count++] = bpi_ref_port(&a->lse, "lse", BP_INOUT);
        ports[count++] = bpi_ref_port(&a->other_out, "other_out", BP_IN);
        ports[count++] = bpi_ref_port(&a->other_lse, "other_lse", BP_IN);
    } else {
        return BP_E_ARG;
    }
    bpi_ref_list(ports, count, t, n);
    return BP_OK;
}

const struct bp_op_base *bpi_ref_mla_common_ops(void)
{
    static const struct bp_mla_common_ops ops = {
        .base = {.h = BP_HDR(struct bp_mla_common_ops, merge),
                 .iface = "bp.mla.common",
                 .iface_major = 0,
                 .iface_minor = 1,
                 .supports = common_supports,
                 .workspace = common_workspace,
                 .tensors = common_tensors},
        .layouts = common_layouts,
        .prepare = bpi_ref_mla_prepare,
        .release = bpi_ref_mla_release,
        .cache_write = common_cache_write,
        .cache_gather = common_cache_gather,
        .expand = bpi_ref_mla_expand,
        .absorb = bpi_ref_mla_absorb,
        .merge = common_merge,
    };
    return &ops.base;
}
