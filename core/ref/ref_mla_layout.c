/* ref_mla_layout.c - cache layouts of the reference backend, verdicts and port checks that its MLA interfaces share,
 * and the split of a call into slices of scratch.
 * A layout "mla.<dtype>.<C+R>" or "mla.index.<dtype>.<D>" is rows of plain numbers, one per token, latent first and
 * then the rotated part; a block is block_tok rows. Only the id says so: ops look it up and trust no other field.
 * Threads: all functions may be called from any thread. SPDX-License-Identifier: MIT */
#include "ref/ref_mla.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* In order of preference: bf16 has the range of f32 at half its size. */
static const struct {
    const char *name;
    uint32_t dtype, n_bytes;
} stored[] = {{"bf16", BP_DT_BF16, 2}, {"f16", BP_DT_F16, 2}, {"f32", BP_DT_F32, 4}};

/* "mla.index.bf16.128" */
static void layout_name(char out[32], const char *family, uint64_t width, size_t at)
{
    (void)snprintf(out, 32, "%s.%s.%" PRIu64, family, stored[at].name, width);
}

static bool find_layout(const char *family, uint64_t width, uint64_t id, size_t *out_at)
{
    for (size_t at = 0; at < BPI_ARRAY_LEN(stored); ++at) {
        char name[32];
        layout_name(name, family, width, at);
        if (bp_id(name) != id) continue;
        *out_at = at;
        return true;
    }
    return false;
}

int32_t bpi_ref_mla_layout_at(const char *family, uint64_t width, uint32_t block_tok,
                              uint32_t kv_dtype, uint32_t i, struct bp_kv_layout *out)
{
    if (width == 0 || width > 2 * (uint64_t)BPI_REF_MLA_MAX_DIM || block_tok == 0) {
        return BP_DECLINED;
    }
    for (size_t at = 0; at < BPI_ARRAY_LEN(stored); ++at) {
        if (kv_dtype != BP_DT_NONE && stored[at].dtype != kv_dtype) continue;
        if (i-- > 0) continue;
        layout_name(out->name, family, width, at);
        out->id = bp_id(out->name);
        out->token_bytes = width * stored[at].n_bytes;
        out->block_bytes = out->token_bytes * block_tok;
        out->dtype = stored[at].dtype;
        out->align = 64;
        return BP_OK;
    }
    return BP_DECLINED;
}

/* ---- verdicts ---- */

void bpi_ref_mla_check_dim(struct bp_verdict *v, const char *field, uint32_t got)
{
    if (got >= 1 && got <= BPI_REF_MLA_MAX_DIM) return;
    bpi_ref_refuse(v, BP_R_SHAPE, field, got, 1, BPI_REF_MLA_MAX_DIM, "dimension out of range");
}

static void check_float(struct bp_verdict *v, const char *field, uint32_t got)
{
    if (bpi_ref_is_float(got)) return;
    bpi_ref_refuse(v, BP_R_DTYPE, field, got, BP_DT_F32, BP_DT_BF16, "ref takes f32, f16 and bf16");
}

void bpi_ref_mla_check_problem(const void *problem, struct bp_mla_problem *out, bool cache,
                               struct bp_verdict *v)
{
    const struct bp_hdr *h = problem;
    uint32_t ours = (uint32_t)sizeof *out;
    memset(out, 0, sizeof *out);
    memcpy(out, problem, h->size < ours ? h->size : ours);
    bpi_ref_check_header(v, h, ours);
    check_float(v, "act_dtype", out->act_dtype);
    if (cache) {
        check_float(v, "kv_dtype", out->kv_dtype);
        bpi_ref_mla_check_dim(v, "block_tok", out->block_tok);
    }
    bpi_ref_mla_check_dim(v, "rope_dim", out->rope_dim);
    if (out->rope_dim % 2 != 0) {
        bpi_ref_refuse(v, BP_R_SHAPE, "rope_dim", out->rope_dim, 2, BPI_REF_MLA_MAX_DIM,
                       "rotation works on pairs, so this must be even");
    }
    if (out->need_capture != BP_CAPTURE_NONE) {
        bpi_ref_refuse(v, BP_R_GRAPH, "need_capture", out->need_capture, BP_CAPTURE_NONE,
                       BP_CAPTURE_NONE, "work on the host cannot be captured in a graph");
    }
    if (out->need_determinism > BP_DET_BATCH) {
        bpi_ref_refuse(v, BP_R_DETERMINISM, "need_determinism", out->need_determinism, BP_DET_NONE,
                       BP_DET_BATCH, "ref promises BATCH and knows no stronger level");
    }
}

void bpi_ref_mla_check_latent(const struct bp_mla_problem *p, bool cache, struct bp_verdict *v)
{
    bpi_ref_mla_check_dim(v, "n_head", p->n_head);
    bpi_ref_mla_check_dim(v, "nope_dim", p->nope_dim);
    bpi_ref_mla_check_dim(v, "v_dim", p->v_dim);
    bpi_ref_mla_check_dim(v, "kv_rank", p->kv_rank);
    if (cache || p->layout_id == 0) {
        bpi_ref_mla_check_layout(v, "layout_id", "mla", p->layout_id,
                                 (uint64_t)p->kv_rank + p->rope_dim, p->kv_dtype);
    } else if (v->layouts != NULL && v->cap_layouts > 0) {
        v->layouts[0] = p->layout_id;
        v->n_layouts = 1;
    }
}

void bpi_ref_mla_check_layout(struct bp_verdict *v, const char *field, const char *family,
                              uint64_t id, uint64_t width, uint32_t kv_dtype)
{
    struct bp_kv_layout own = {.h = BP_HDR(struct bp_kv_layout, name)};
    if (bpi_ref_mla_layout_at(family, width, 1, kv_dtype, 0, &own) != BP_OK) {
        return; /* the dtype or a dimension was refused already */
    }
    if (kv_dtype == BP_DT_NONE) return;
    v->n_layouts = 0;
    if (v->layouts != NULL && v->cap_layouts > 0) v->layouts[v->n_layouts++] = own.id;
    if (id == 0 || id == own.id) return;
    char text[96];
    (void)snprintf(text, sizeof text,
                   "unknown layout id; of this dtype and width ref knows only %s", own.name);
    bpi_ref_refuse(v, BP_R_LAYOUT, field, (int64_t)id, (int64_t)own.id, (int64_t)own.id, text);
}

/* ---- pools ---- */

int32_t bpi_ref_mla_pool_open(const struct bp_tensor *t, const char *family, int64_t width,
                              uint32_t block_tok, const char *op, struct bpi_ref_mla_pool *out,
                              struct bp_error *err)
{
    size_t at;
    if (width <= 0 || !find_layout(family, (uint64_t)width, t->layout_id, &at)) {
        return bpi_fail(err, BP_E_ARG, "ref", op,
                        "the pool's layout id %016" PRIx64 " is no %s layout of %" PRId64
                        " numbers that ref knows; take one that layouts() lists",
                        t->layout_id, family, width);
    }
    uint64_t row_bytes = (uint64_t)width * stored[at].n_bytes;
    uint64_t block_bytes = row_bytes * block_tok;
    if (t->data == NULL || block_tok == 0 || t->ndim != 2 || t->dim[0] < 0 ||
        (uint64_t)t->dim[1] != block_bytes ||
        (t->dim[0] > 1 && (uint64_t)t->stride[0] < block_bytes)) {
        return bpi_fail(err, BP_E_ARG, "ref", op,
                        "the pool must be (n_blocks, %" PRIu64 ") bytes for blocks of %u tokens in "
                        "its layout, and it is (%" PRId64 ", %" PRId64 ") with %" PRId64
                        " bytes from block to block",
                        block_bytes, block_tok, t->dim[0], t->dim[1], t->stride[0]);
    }
    *out = (struct bpi_ref_mla_pool){.data = t->data,
                                     .block_bytes = (uint64_t)t->stride[0],
                                     .row_bytes = row_bytes,
                                     .width = width,
                                     .n_block = t->dim[0],
                                     .dtype = stored[at].dtype,
                                     .block_tok = block_tok};
    return BP_OK;
}

void *bpi_ref_mla_pool_row(const struct bpi_ref_mla_pool *pool, int64_t slot)
{
    uint64_t block = (uint64_t)slot / pool->block_tok, row = (uint64_t)slot % pool->block_tok;
    return pool->data + block * pool->block_bytes + row * pool->row_bytes;
}

int64_t bpi_ref_mla_slot(const struct bp_mla_meta *m, int64_t seq, int64_t at)
{
    int64_t block = m->block_table_host[seq * m->table_stride + at / m->block_tok];
    return block * m->block_tok + at % m->block_tok;
}

bool bpi_ref_mla_slot_ok(const struct bpi_ref_mla_pool *pool, int64_t slot)
{
    return slot >= 0 && slot / pool->block_tok < pool->n_block;
}

int32_t bpi_ref_mla_check_keys(const struct bp_mla_meta *m, const struct bpi_ref_mla_pool *pool,
                               int64_t seq, int64_t begin, int64_t end, const char *op,
                               struct bp_error *err)
{
    if (end <= begin) return BP_OK;
    int64_t room = (int64_t)m->table_stride * m->block_tok;
    if (seq < 0 || seq >= (int64_t)m->n_seqs || begin < 0 || end > room) {
        return bpi_fail(err, BP_E_ARG, "ref", op,
                        "keys %" PRId64 "..%" PRId64 " of sequence %" PRId64
                        " lie outside the block table of %u sequences with %" PRId64 " tokens each",
                        begin, end, seq, m->n_seqs, room);
    }
    for (int64_t b = begin / m->block_tok; b * m->block_tok < end; ++b) {
        int64_t block = m->block_table_host[seq * m->table_stride + b];
        if (block < 0 || block >= pool->n_block) {
            return bpi_fail(err, BP_E_ARG, "ref", op,
                            "block %" PRId64 " of sequence %" PRId64 " is number %" PRId64
                            ", and the pool has %" PRId64 " blocks",
                            b, seq, block, pool->n_block);
        }
    }
    return BP_OK;
}

int32_t bpi_ref_mla_check_writes(const struct bp_mla_meta *m, const struct bpi_ref_mla_pool *pool,
                                 int64_t rope_dim, const char *op, struct bp_error *err)
{
    BP_TRY(bpi_ref_mla_port(&m->rope_cos, "rope_cos", BP_DT_F32, 0, rope_dim / 2, 0, op, err));
    BP_TRY(bpi_ref_mla_port(&m->rope_sin, "rope_sin", BP_DT_F32, m->rope_cos.dim[0], rope_dim / 2,
                            0, op, err));
    for (uint32_t t = 0; t < m->n_tok; ++t) {
        int64_t slot = m->slot_map_host[t], at = m->positions_host[t];
        if (slot < 0) continue;
        if (!bpi_ref_mla_slot_ok(pool, slot)) {
            return bpi_fail(err, BP_E_ARG, "ref", op,
                            "token %u goes to slot %" PRId64 ", and the pool has %" PRId64
                            " blocks of %u tokens",
                            t, slot, pool->n_block, pool->block_tok);
        }
        if (at < 0 || at >= m->rope_cos.dim[0]) {
            return bpi_fail(err, BP_E_ARG, "ref", op,
                            "token %u has position %" PRId64 ", and the rope tables have %" PRId64
                            " rows",
                            t, at, m->rope_cos.dim[0]);
        }
    }
    return BP_OK;
}

int32_t bpi_ref_mla_port(const struct bp_tensor *t, const char *name, uint32_t dtype, int64_t d0,
                         int64_t d1, int64_t d2, const char *op, struct bp_error *err)
{
    uint32_t ndim = d2 != 0 ? 3 : d1 != 0 ? 2 : 1;
    bool good = t->ndim == ndim && t->dim[0] >= d0 && (d1 == 0 || t->dim[1] == d1) &&
                (d2 == 0 || t->dim[2] == d2);
    if (!good) {
        return bpi_fail(err, BP_E_ARG, "ref", op,
                        "%s has %u dimensions (%" PRId64 ", %" PRId64 ", %" PRId64
                        "), and the other arguments need %u: at least %" PRId64 ", then %" PRId64
                        ", %" PRId64,
                        name, t->ndim, t->dim[0], t->ndim > 1 ? t->dim[1] : 0,
                        t->ndim > 2 ? t->dim[2] : 0, ndim, d0, d1, d2);
    }
    if (dtype == BP_DT_NONE ? !bpi_ref_is_float(t->dtype) : t->dtype != dtype) {
        return bpi_fail(err, BP_E_ARG, "ref", op,
                        "%s has dtype %u, which ref does not take at this port", name, t->dtype);
    }
    if (d0 > 0 && (t->data == NULL || t->stride[ndim - 1] != 1)) {
        return bpi_fail(err, BP_E_ARG, "ref", op, "%s has no data or its innermost stride is not 1",
                        name);
    }
    return BP_OK;
}

/* ---- slices ---- */

uint64_t bpi_ref_mla_align(uint64_t n_bytes)
{
    return (n_bytes + 63) & ~UINT64_C(63);
}

bool bpi_ref_mla_scratch(uint64_t n_item, uint64_t slice_bytes, uint64_t *out_bytes)
{
    uint64_t n_slice = n_item < BPI_REF_MLA_SLICES ? n_item : BPI_REF_MLA_SLICES;
    return bpi_mul_u64(n_slice, slice_bytes, out_bytes);
}

void bpi_ref_mla_workspace(struct bp_workspace *out, uint64_t scratch_bytes)
{
    out->persistent_bytes = 0;
    out->plan_bytes = 0;
    out->scratch_bytes = scratch_bytes;
    out->pinned_bytes = 0;
    out->align = 64;
    out->persistent_zeroed = 0;
}

struct slices {
    bpi_ref_mla_fn fn;
    void *arg;
    unsigned char *scratch;
    uint64_t n_item, n_slice, slice_bytes;
};

/* Slice s takes items s, s + n_slice, ...: later items of a causal call cost more, and so every slice gets its share.
 * The host splits [0, n_slice), so a part of scratch has one owner however it cuts the range. */
static void run_slices(void *arg, uint64_t begin, uint64_t end)
{
    const struct slices *s = arg;
    for (uint64_t slice = begin; slice < end; ++slice) {
        unsigned char *own = s->slice_bytes > 0 ? s->scratch + slice * s->slice_bytes : NULL;
        for (uint64_t item = slice; item < s->n_item; item += s->n_slice) {
            s->fn(s->arg, item, own);
        }
    }
}

int32_t bpi_ref_mla_each(const struct bpi_ref *ref, const struct bp_launch *l, uint64_t n_item,
                         uint64_t slice_bytes, uint64_t work, bpi_ref_mla_fn fn, void *arg,
                         const char *op, struct bp_error *err)
{
    /* Below this, waking threads costs more than they save (a few tens of microseconds of arithmetic). */
    const uint64_t worth_threads = 1 << 16;
    struct slices s = {.fn = fn, .arg = arg, .scratch = l->scratch, .n_item = n_item};
    uint64_t need = UINT64_MAX;
    if (n_item == 0) return BP_OK;
    if (!bpi_ref_mla_scratch(n_item, slice_bytes, &need) || l->scratch_bytes < need ||
        (need > 0 && l->scratch == NULL)) {
        return bpi_fail(err, BP_E_ARG, "ref", op,
                        "the call needs %" PRIu64 " bytes of scratch and got %" PRIu64
                        "; ask workspace() with the largest problem",
                        need, l->scratch_bytes);
    }
    s.n_slice = n_item < BPI_REF_MLA_SLICES ? n_item : BPI_REF_MLA_SLICES;
    s.slice_bytes = slice_bytes;
    if (work < worth_threads) {
        run_slices(&s, 0, s.n_slice);
    } else {
        ref->host->parallel_for(ref->host->ctx, s.n_slice, 1, run_slices, &s);
    }
    return BP_OK;
}
