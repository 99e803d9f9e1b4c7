/* kit_problem.c - see kit_problem.h. SPDX-License-Identifier: MIT */
#include "kit_problem.h"

#include <inttypes.h>
#include <string.h>

static uint32_t pick(struct kit_rng *rng, const uint32_t *v, uint32_t n)
{
    return v[kit_rng_below(rng, n)];
}
#define PICK(...)                                                                                  \
    pick(rng, (const uint32_t[]){__VA_ARGS__}, KIT_LEN(((const uint32_t[]){__VA_ARGS__})))

/* Plain turns take what most serve; others anything. */
static uint32_t any(struct kit_rng *rng, uint32_t turn, uint32_t plain, uint32_t hi)
{
    if (turn < 24 || kit_rng_below(rng, 16) != 0) return plain;
    switch (kit_rng_below(rng, 5)) {
    case 0:
        return 0;
    case 1:
        return 1;
    case 2:
        return UINT32_MAX;
    default:
        return (uint32_t)kit_rng_below(rng, (uint64_t)hi + 1);
    }
}

static uint32_t dtype(struct kit_rng *rng, uint32_t turn)
{
    return any(rng, turn, PICK(BP_DT_F32, BP_DT_BF16, BP_DT_F16), 9);
}

static uint32_t weight_type(struct kit_rng *rng, uint32_t turn)
{
    return any(rng, turn,
               PICK(BP_GGUF_F32, BP_GGUF_BF16, BP_GGUF_F16, BP_GGUF_Q8_0, BP_GGUF_Q4_0,
                    BP_GGUF_Q4_K, BP_GGUF_Q6_K),
               BP_GGUF_COUNT + 3);
}

static void make_dense(struct kit_rng *rng, uint32_t turn, struct bp_dense_problem *p)
{
    *p = (struct bp_dense_problem){.h = BP_HDR(struct bp_dense_problem, k)};
    p->op = turn < 9 ? turn : any(rng, turn, (uint32_t)kit_rng_below(rng, 9), 12);
    p->max_rows = any(rng, turn, PICK(1, 2, 17, 64, 512), 1 << 20);
    p->width = any(rng, turn, PICK(64, 128, 512, 7168, 33), 1 << 20);
    p->x_dtype = p->op == BP_DENSE_OP_EMBED                                 ? BP_DT_I32
                 : p->op == BP_DENSE_OP_ARGMAX || p->op == BP_DENSE_OP_TOPK ? BP_DT_F32
                                                                            : dtype(rng, turn);
    p->y_dtype = turn < 9 ? p->x_dtype : dtype(rng, turn);
    if (p->op == BP_DENSE_OP_EMBED) p->y_dtype = BP_DT_F32;
    p->type = weight_type(rng, turn);
    p->k = any(rng, turn, PICK(1, 8, 64), 4096);
}

static void make_quant(struct kit_rng *rng, uint32_t turn, struct kit_problem *out)
{
    struct bp_quant_problem *p = &out->p.quant;
    *p = (struct bp_quant_problem){.h = BP_HDR(struct bp_quant_problem, epilogue)};
    p->op = any(rng, turn, turn % 8 == 7 ? BP_QUANT_OP_DEQUANTIZE : BP_QUANT_OP_MATMUL, 3);
    p->n_w = turn < 24 ? 1 : 1 + (uint32_t)kit_rng_below(rng, 4);
    p->w_stride = sizeof out->shapes[0];
    p->max_tok = any(rng, turn, PICK(1, 2, 16, 64, 512), 1 << 20);
    p->x_dtype = turn < 8 ? BP_DT_F32 : dtype(rng, turn);
    p->y_dtype = turn < 8 ? BP_DT_F32 : dtype(rng, turn);
    p->prologue = turn < 24 ? 0 : any(rng, turn, PICK(0, 1), 3);
    p->epilogue = turn < 24 ? 0
                            : any(rng, turn,
                                  p->n_w == 2   ? PICK(0, 2)
                                  : p->n_w == 1 ? PICK(0, 1)
                                                : 0,
                                  4);
    for (uint32_t i = 0; i < 4; ++i) {
        out->shapes[i] = (struct bp_quant_shape){
            weight_type(rng, turn), 0, any(rng, turn, PICK(1, 33, 64, 256, 2048), 1 << 20),
            any(rng, turn, PICK(256, 512, 1024, 7168), 1 << 20)};
    }
}

static void make_mla(struct kit_rng *rng, uint32_t turn, struct bp_mla_problem *p)
{
    *p = (struct bp_mla_problem){.h = BP_HDR(struct bp_mla_problem, type_v)};
    p->n_head = any(rng, turn, PICK(1, 8, 16, 128), 256);
    p->nope_dim = any(rng, turn, PICK(64, 128, 192), 512);
    p->rope_dim = any(rng, turn, PICK(64, 64, 16), 256);
    p->v_dim = any(rng, turn, PICK(96, 128, 256), 512);
    p->kv_rank = any(rng, turn, PICK(512, 512, 80), 1024);
    p->block_tok = any(rng, turn, PICK(64, 64, 16), 256);
    p->act_dtype = dtype(rng, turn);
    p->kv_dtype = dtype(rng, turn);
    p->max_tok = any(rng, turn, PICK(1, 64, 512), 1 << 16);
    p->max_seqs = any(rng, turn, PICK(1, 4), 64);
    p->max_rows = any(rng, turn, PICK(1, 32, 512), 1 << 16);
    p->max_kv = any(rng, turn, PICK(64, 1000, 4096), 1 << 20);
    p->max_slab = any(rng, turn, PICK(64, 2000), 1 << 16);
    p->n_index_head = any(rng, turn, PICK(8, 32), 64);
    p->index_dim = any(rng, turn, 128, 256);
    p->index_rope_style = any(rng, turn, PICK(0, 1), 3);
    p->top_k = any(rng, turn, PICK(64, 256, 2048), 4096);
    p->need_lse = (uint32_t)kit_rng_below(rng, 2);
    p->need_capture = any(rng, turn, 0, 4);
    p->need_determinism = any(rng, turn, PICK(0, 1, 2), 4);
    p->type_k = turn < 8 ? BP_GGUF_F32 : weight_type(rng, turn);
    p->type_v = turn < 8 ? BP_GGUF_F32 : weight_type(rng, turn);
    if (turn >= 24 && kit_rng_below(rng, 16) == 0) p->layout_id = kit_rng_u64(rng);
}

static void make_moe(struct kit_rng *rng, uint32_t turn, struct bp_moe_problem *p)
{
    *p = (struct bp_moe_problem){.h = BP_HDR(struct bp_moe_problem, y_dtype)};
    p->op = turn % 2;
    p->max_tok = any(rng, turn, PICK(1, 16, 512), 1 << 16);
    p->n_embd = any(rng, turn, PICK(256, 2048, 7168), 1 << 16);
    p->n_ff = any(rng, turn, PICK(256, 768, 2048), 1 << 16);
    p->n_ff_shared = any(rng, turn, PICK(0, 256), 1 << 16);
    p->n_expert = any(rng, turn, PICK(8, 64, 256), 512);
    p->n_expert_used = any(rng, turn, PICK(1, 2, 8), 32);
    p->expert_end = any(rng, turn, p->n_expert, 512);
    p->n_group = any(rng, turn, 1, 16);
    p->n_group_used = any(rng, turn, 1, 16);
    p->gating = any(rng, turn, PICK(BP_GATING_SOFTMAX, BP_GATING_SIGMOID), 4);
    p->group_score = any(rng, turn, PICK(0, 1), 3);
    p->type_gate = weight_type(rng, turn);
    p->type_up = any(rng, turn, p->type_gate, BP_GGUF_COUNT);
    p->type_down = weight_type(rng, turn);
    p->type_shared_gate = weight_type(rng, turn);
    p->type_shared_up = any(rng, turn, p->type_shared_gate, BP_GGUF_COUNT);
    p->type_shared_down = weight_type(rng, turn);
    p->x_dtype = dtype(rng, turn);
    p->y_dtype = any(rng, turn, BP_DT_F32, 9);
}

void kit_problem_make(const char *iface, struct kit_rng *rng, uint32_t turn,
                      struct kit_problem *out)
{
    memset(out, 0, sizeof *out);
    out->n_bytes = kit_iface_of(iface)->problem_bytes;
    if (strcmp(iface, "bp.dense") == 0) {
        make_dense(rng, turn, &out->p.dense);
    } else if (strcmp(iface, "bp.quant") == 0) {
        make_quant(rng, turn, out);
    } else if (strcmp(iface, "bp.moe") == 0) {
        make_moe(rng, turn, &out->p.moe);
    } else if (strcmp(iface, "bp.device") == 0) {
        out->p.device = (struct bp_device_problem){.h = BP_HDR(struct bp_device_problem, ordinal)};
        out->p.device.kind = any(rng, turn, BP_DEV_HOST, 3);
        out->p.device.ordinal = (int32_t)any(rng, turn, 0, 9);
    } else if (strcmp(iface, "bp.coll") == 0) {
        out->p.coll = (struct bp_coll_problem){.h = BP_HDR(struct bp_coll_problem, max_elems)};
        out->p.coll.world = any(rng, turn, PICK(1, 2, 4), 16);
        out->p.coll.rank = any(rng, turn, 0, 16);
        out->p.coll.dtype = turn < 8 ? BP_DT_F32 : dtype(rng, turn);
        out->p.coll.max_elems = any(rng, turn, PICK(1, 1000, 65536), 1 << 24);
    } else {
        make_mla(rng, turn, &out->p.mla);
    }
}

void kit_problem_link(struct kit_problem *p, const char *iface)
{
    if (strcmp(iface, "bp.quant") == 0) p->p.quant.w = p->shapes;
}

/* A smaller one, but not zero. */
static void down32(struct kit_rng *rng, uint32_t *v)
{
    if (*v > 1) *v = 1 + (uint32_t)kit_rng_below(rng, *v - 1);
}

bool kit_problem_shrink(const char *iface, struct kit_rng *rng, struct kit_problem *p)
{
    struct kit_problem before = *p;
    const uint64_t dice = kit_rng_u64(rng);
    if (strcmp(iface, "bp.dense") == 0) {
        down32(rng, &p->p.dense.max_rows);
    } else if (strcmp(iface, "bp.quant") == 0) {
        if (dice % 2 == 0) down32(rng, &p->p.quant.max_tok);
        for (uint32_t i = 0; dice % 2 == 1 && i < 4; ++i)
            if (p->shapes[i].rows > 1)
                p->shapes[i].rows = 1 + (int64_t)kit_rng_below(rng, (uint64_t)p->shapes[i].rows);
    } else if (strcmp(iface, "bp.moe") == 0) {
        down32(rng, &p->p.moe.max_tok);
    } else if (strncmp(iface, "bp.mla.", 7) == 0) {
        uint32_t *const sizes[] = {&p->p.mla.max_tok, &p->p.mla.max_seqs, &p->p.mla.max_rows,
                                   &p->p.mla.max_kv, &p->p.mla.max_slab};
        down32(rng, sizes[dice % KIT_LEN(sizes)]);
    } else {
        return false;
    }
    return memcmp(&before, p, sizeof *p) != 0;
}

void kit_problem_text(const char *iface, const struct kit_problem *p, char *out, size_t cap)
{
    if (strcmp(iface, "bp.dense") == 0) {
        const struct bp_dense_problem *d = &p->p.dense;
        (void)snprintf(out, cap, "op %u max_rows %u width %" PRId64 " x %u y %u type %u k %u",
                       d->op, d->max_rows, d->width, d->x_dtype, d->y_dtype, d->type, d->k);
    } else if (strcmp(iface, "bp.quant") == 0) {
        const struct bp_quant_problem *q = &p->p.quant;
        (void)snprintf(out, cap,
                       "op %u n_w %u max_tok %u x %u y %u pro %u epi %u w0 type %u %" PRId64
                       "x%" PRId64,
                       q->op, q->n_w, q->max_tok, q->x_dtype, q->y_dtype, q->prologue, q->epilogue,
                       p->shapes[0].type, p->shapes[0].rows, p->shapes[0].cols);
    } else if (strcmp(iface, "bp.moe") == 0) {
        const struct bp_moe_problem *m = &p->p.moe;
        (void)snprintf(out, cap,
                       "op %u max_tok %u embd %" PRId64 " ff %" PRId64
                       " experts %u used %u types %u/%u/%u",
                       m->op, m->max_tok, m->n_embd, m->n_ff, m->n_expert, m->n_expert_used,
                       m->type_gate, m->type_up, m->type_down);
    } else if (strncmp(iface, "bp.mla.", 7) == 0) {
        const struct bp_mla_problem *m = &p->p.mla;
        (void)snprintf(out, cap,
                       "H %u P %u R %u V %u C %u block %u act %u kv %u tok %u rows %u max_kv %u",
                       m->n_head, m->nope_dim, m->rope_dim, m->v_dim, m->kv_rank, m->block_tok,
                       m->act_dtype, m->kv_dtype, m->max_tok, m->max_rows, m->max_kv);
    } else {
        (void)snprintf(out, cap, "a problem");
    }
}
