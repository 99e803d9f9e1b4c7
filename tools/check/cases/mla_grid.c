/* mla_grid.c - see mla_grid.h. SPDX-License-Identifier: MIT */
#include "cases/mla_grid.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const int32_t mla_seq_len[MLA_N_SEQ] = {1, 63, 64, 65, 1000, 700};
const uint32_t mla_heads[5] = {1, 3, 8, 16, 20};
const uint32_t mla_dtypes[3] = {BP_DT_F32, BP_DT_BF16, BP_DT_F16};
const struct mla_pv mla_pv[4] = {{128, 128}, {192, 256}, {64, 96}, {48, 40}};
const struct mla_latent mla_latent[2] = {{512, 64}, {80, 16}};

struct bp_mla_problem mla_problem(const struct mla_dims *d)
{
    return (struct bp_mla_problem){.h = BP_HDR(struct bp_mla_problem, type_v),
                                   .n_head = d->h,
                                   .nope_dim = d->p,
                                   .rope_dim = d->r,
                                   .v_dim = d->v,
                                   .kv_rank = d->c,
                                   .block_tok = MLA_BLOCK_TOK,
                                   .act_dtype = d->act,
                                   .kv_dtype = d->kv,
                                   .max_tok = 2000,
                                   .max_seqs = MLA_N_SEQ,
                                   .max_rows = 32,
                                   .max_kv = MLA_MAX_KV,
                                   .max_slab = 2000,
                                   .need_lse = 1,
                                   .type_k = BP_GGUF_F32,
                                   .type_v = BP_GGUF_F32};
}

static const char *dtype_name(uint32_t dtype)
{
    return dtype == BP_DT_F32 ? "f32" : dtype == BP_DT_BF16 ? "bf16" : "f16";
}

void mla_label(struct mla_suite *s, const char *op, const struct mla_dims *d)
{
    (void)snprintf(s->label, sizeof s->label, "%s, H %u P %u R %u V %u C %u, %s, cache %s", op,
                   d->h, d->p, d->r, d->v, d->c, dtype_name(d->act), dtype_name(d->kv));
}

struct mla_judged mla_judged_alloc(int64_t n)
{
    return (struct mla_judged){bp_oracle_alloc((size_t)n, sizeof(double)),
                               bp_oracle_alloc((size_t)n, sizeof(double)),
                               bp_oracle_alloc((size_t)n, sizeof(double))};
}

void mla_judged_free(struct mla_judged *j)
{
    free(j->exact);
    free(j->base);
    free(j->mag);
}

static int32_t do_write(const struct mla_op *op, const void *a, struct bp_error *err)
{
    const struct bp_mla_common_ops *vt = (const void *)op->ref.vt;
    return vt->cache_write(op->ref.self, &op->l, a, err);
}

static int32_t do_gather(const struct mla_op *op, const void *a, struct bp_error *err)
{
    const struct bp_mla_common_ops *vt = (const void *)op->ref.vt;
    return vt->cache_gather(op->ref.self, &op->l, a, err);
}

bool mla_fill(struct mla_suite *s, struct mla_op *op, struct mla_filled *x,
              const struct mla_dims *d, const struct bp_kv_layout *layout)
{
    memset(x, 0, sizeof *x);
    mla_cache_init(s, &x->cache, layout, MLA_BLOCK_TOK, MLA_N_SEQ, mla_seq_len, MLA_N_SEQ - 2,
                   MLA_SHARED, d->r);
    const int64_t n = x->cache.meta.n_tok;
    x->kv = mla_random(s, d->act, n, d->c + d->r, 0, 8, 1.0);
    if (s->has_nan) {
        int64_t token = MLA_NAN_AT;
        for (int i = 0; i < MLA_NAN_SEQ; ++i) token += mla_seq_len[i];
        mla_put(&x->kv, token, d->c / 2, 0, NAN);
    }
    x->norm_w = mla_random(s, BP_DT_F32, d->c, 0, 0, 0, 0.7);
    x->cache.slots[1] = -1; /* written by the second step below */
    struct bp_mla_cache_write_args a = {.h = BP_HDR(struct bp_mla_cache_write_args, reserved),
                                        .meta = &x->cache.meta,
                                        .kv = x->kv,
                                        .norm_w = x->norm_w,
                                        .pool = x->cache.pool,
                                        .eps = MLA_EPS};
    const struct bp_tensor *inouts[] = {&x->cache.pool};
    if (!mla_run(s, op, do_write, BP_MLA_OP_CACHE_WRITE, &a, NULL, 0, inouts, 1)) return false;
    struct mla_cache one = x->cache;
    one.meta.n_tok = 1;
    one.meta.positions = one.meta.positions_host = x->cache.positions + 1;
    one.slots[1] = (int32_t)mla_slot(&x->cache, 1, 0);
    one.meta.slot_map = one.meta.slot_map_host = one.slots + 1;
    a.meta = &one.meta;
    a.kv = mla_rows(&x->kv, 1, 2);
    if (!mla_run(s, op, do_write, BP_MLA_OP_CACHE_WRITE, &a, NULL, 0, inouts, 1)) return false;
    for (int i = 0; i < MLA_N_SEQ; ++i) {
        x->cu[i + 1] = x->cu[i] + mla_seq_len[i];
        x->seq[i] = i;
    }
    x->gather = (struct bp_mla_prefill_meta){.h = BP_HDR(struct bp_mla_prefill_meta, kv_begin_host),
                                             .common = &x->cache.meta,
                                             .n_seg = MLA_N_SEQ,
                                             .n_k = (uint32_t)x->cu[MLA_N_SEQ],
                                             .max_k = 1000};
    x->gather.seq = x->gather.seq_host = x->seq;
    x->gather.cu_k = x->gather.cu_k_host = x->gather.cu_q = x->gather.cu_q_host = x->cu;
    x->gather.kv_begin = x->gather.kv_begin_host = x->begin;
    x->c = mla_tensor(s, d->act, x->cu[MLA_N_SEQ], d->c, 0, 4);
    x->k_pe = mla_tensor(s, d->act, x->cu[MLA_N_SEQ], d->r, 0, 0);
    struct bp_mla_cache_gather_args g = {.h = BP_HDR(struct bp_mla_cache_gather_args, k_pe),
                                         .meta = &x->gather,
                                         .pool = x->cache.pool,
                                         .c = x->c,
                                         .k_pe = x->k_pe};
    const struct bp_tensor *outs[] = {&x->c, &x->k_pe};
    if (!mla_run(s, op, do_gather, BP_MLA_OP_CACHE_GATHER, &g, outs, 2, NULL, 0)) return false;
    x->latent = mla_values(&x->c);
    x->rope = mla_values(&x->k_pe);
    return true;
}

void mla_filled_free(struct mla_filled *x)
{
    free(x->latent);
    free(x->rope);
}
