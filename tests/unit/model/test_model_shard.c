/* test_model_shard.c - parts of all ranks cover every tensor exactly once, at block borders, with the same borders for
 * gate, up and down. Shapes of real models without their data: the cut is arithmetic only.
 * SPDX-License-Identifier: MIT */
#include "unit/model/model_edit.h"

static const uint32_t tps[] = {1, 2, 3, 4, 5, 8, 16};

struct shape {
    const char *what;
    uint32_t head, nope, rope, v_dim, n_ff, n_ff_exp, n_ff_shared;
    uint32_t down, exp_down, shared_down; /* types */
    bool flat;
};

// clang-format off
static const struct shape shapes[] = {
    {"V2-Lite, Q8_0 and Q4_K", 16, 128, 64, 128, 10944, 1408, 2816, BP_GGUF_Q8_0, BP_GGUF_Q4_0, BP_GGUF_Q4_K, false},
    {"V3", 128, 128, 64, 128, 18432, 2048, 2048, BP_GGUF_Q6_K, BP_GGUF_Q4_K, BP_GGUF_Q6_K, false},
    {"GLM-4.7-Flash", 20, 192, 64, 256, 10240, 1536, 1536, BP_GGUF_Q4_K, BP_GGUF_Q4_K, BP_GGUF_Q8_0, true},
    {"GLM-5", 64, 192, 64, 256, 12288, 2048, 2048, BP_GGUF_BF16, BP_GGUF_IQ4_XS, BP_GGUF_F16, false},
    {"three heads, one block", 3, 8, 4, 16, 256, 32, 32, BP_GGUF_Q4_K, BP_GGUF_Q8_0, BP_GGUF_Q8_0, true},
};
// clang-format on

/* A model of two layers, the first dense, the second MoE, with all roles there; no data. */
struct fake {
    struct bpi_model m;
    struct bpi_gguf_tensor t[3 * BPI_W_COUNT];
    const struct bpi_gguf_tensor *at[3 * BPI_W_COUNT];
};

static uint32_t type_of(const struct shape *s, uint32_t role)
{
    return role == BPI_W_FFN_DOWN      ? s->down
           : role == BPI_W_EXP_DOWN    ? s->exp_down
           : role == BPI_W_SHARED_DOWN ? s->shared_down
                                       : BP_GGUF_Q8_0;
}

static void make(struct fake *f, const struct shape *s)
{
    memset(f, 0, sizeof *f);
    f->m.hp = (struct bpi_hparams){.n_layer = 2,
                                   .n_dense = 1,
                                   .n_embd = 256,
                                   .n_vocab = 1000,
                                   .n_head = s->head,
                                   .q_lora = 96,
                                   .kv_lora = 64,
                                   .nope = s->nope,
                                   .rope = s->rope,
                                   .v_dim = s->v_dim,
                                   .n_ff = s->n_ff,
                                   .n_expert = 6,
                                   .n_ff_exp = s->n_ff_exp,
                                   .n_ff_shared = s->n_ff_shared,
                                   .n_index_head = 4,
                                   .index_dim = 32};
    f->m.tensor = f->at;
    for (uint32_t i = 0; i < 3 * BPI_W_COUNT; ++i) {
        uint32_t role = i % BPI_W_COUNT;
        if ((i < BPI_W_COUNT) != (role <= BPI_W_OUTPUT)) continue;
        struct bpi_gguf_tensor *t = &f->t[i];
        /* Layer 0 has smaller blocks than layer 1, as mixes have: borders are the layer's own. */
        t->type = i < 2 * BPI_W_COUNT ? BP_GGUF_Q8_0 : type_of(s, role);
        t->n_dim = bpi_shape_eval(&f->m.hp, bpi_tensor_specs(NULL)[role].shape, t->ne);
        if (s->flat && (role == BPI_W_ATTN_K_B || role == BPI_W_ATTN_V_B)) {
            t->n_dim = 2;
            t->ne[1] *= t->ne[2];
            t->ne[2] = 1;
        }
        t->data = (const unsigned char *)t;
        f->at[i] = t;
    }
}

/* The file dimension that the rule cuts; -1 for replicated ones. */
static int cut_dim(const struct shape *s, uint32_t rule)
{
    switch (rule) {
    case BPI_SHARD_NONE:
        return -1;
    case BPI_SHARD_HEAD_COL:
    case BPI_SHARD_COL:
        return 0;
    case BPI_SHARD_HEAD_2:
        return s->flat ? 1 : 2;
    default:
        return 1;
    }
}

START_TEST(covers_everything_once)
{
    static struct fake f;
    const struct shape *s = &shapes[_i];
    make(&f, s);
    for (size_t k = 0; k < BPI_ARRAY_LEN(tps); ++k) {
        for (uint32_t role = 0; role < BPI_W_COUNT; ++role) {
            int cut = cut_dim(s, bpi_tensor_specs(NULL)[role].shard);
            int64_t next = 0;
            struct bp_raw r;
            for (uint32_t rank = 0; rank < tps[k]; ++rank) {
                ck_assert(bpi_model_raw(&f.m, role, 1, rank, tps[k], &r));
                for (int d = 0; d < 4; ++d) {
                    if (d == cut) continue;
                    ck_assert_int_eq(r.begin[d], 0);
                    ck_assert_int_eq(r.end[d], r.ne[d]);
                }
                if (cut < 0) continue;
                ck_assert_msg(r.begin[cut] == next && r.end[cut] >= next,
                              "%s: role %u, rank %u of %u", s->what, role, rank, tps[k]);
                next = r.end[cut];
            }
            /* One half only of the fused gate and up, when it is cut at all. */
            int64_t whole = cut < 0                                   ? 0
                            : role == BPI_W_EXP_GATE_UP && tps[k] > 1 ? r.ne[1] / 2
                                                                      : r.ne[cut];
            ck_assert_msg(next == whole, "%s: role %u of %u ranks ends at %lld", s->what, role,
                          tps[k], (long long)next);
        }
    }
}
END_TEST

/* group: down first, then those that are cut alike. */
static void check_borders(const struct bpi_model *m, const uint32_t group[4], uint32_t layer,
                          uint32_t rank, uint32_t tp)
{
    struct bp_raw down, other;
    ck_assert(bpi_model_raw(m, group[0], layer, rank, tp, &down));
    int64_t block = bpi_block_info(down.type)->block_elems;
    ck_assert_int_eq(down.begin[0] % block, 0);
    ck_assert_int_eq(down.end[0] % block, 0);
    /* Even to within one block. */
    int64_t blocks = down.ne[0] / block, mine = (down.end[0] - down.begin[0]) / block;
    ck_assert(mine == blocks / tp || mine == blocks / tp + 1);
    for (int i = 1; i < 4; ++i) {
        ck_assert(bpi_model_raw(m, group[i], layer, rank, tp, &other));
        ck_assert_int_eq(other.begin[1], down.begin[0]);
        ck_assert_int_eq(other.end[1], down.end[0]);
    }
}

START_TEST(borders_agree)
{
    static struct fake f;
    static const uint32_t groups[][4] = {
        {BPI_W_FFN_DOWN, BPI_W_FFN_GATE, BPI_W_FFN_UP, BPI_W_FFN_UP},
        {BPI_W_EXP_DOWN, BPI_W_EXP_GATE, BPI_W_EXP_UP, BPI_W_EXP_GATE_UP},
        {BPI_W_SHARED_DOWN, BPI_W_SHARED_GATE, BPI_W_SHARED_UP, BPI_W_SHARED_UP},
    };
    make(&f, &shapes[_i]);
    for (size_t k = 1; k < BPI_ARRAY_LEN(tps); ++k) {
        uint32_t tp = tps[k];
        for (uint32_t rank = 0; rank < tp; ++rank) {
            for (size_t g = 0; g < 2 * BPI_ARRAY_LEN(groups); ++g)
                check_borders(&f.m, groups[g / 2], g % 2, rank, tp);
            /* Heads: all tensors of one rank speak of the same heads. */
            struct bp_raw q, k_b, v_b, kv, o;
            const struct bpi_hparams *hp = &f.m.hp;
            ck_assert(bpi_model_raw(&f.m, BPI_W_ATTN_Q_B, 1, rank, tp, &q));
            ck_assert(bpi_model_raw(&f.m, BPI_W_ATTN_K_B, 1, rank, tp, &k_b));
            ck_assert(bpi_model_raw(&f.m, BPI_W_ATTN_V_B, 1, rank, tp, &v_b));
            ck_assert(bpi_model_raw(&f.m, BPI_W_ATTN_KV_B, 1, rank, tp, &kv));
            ck_assert(bpi_model_raw(&f.m, BPI_W_ATTN_OUTPUT, 1, rank, tp, &o));
            int d = shapes[_i].flat ? 1 : 2;
            int64_t per_k = shapes[_i].flat ? hp->kv_lora : 1,
                    per_v = shapes[_i].flat ? hp->v_dim : 1;
            int64_t head = (int64_t)hp->n_head * rank / tp,
                    next = (int64_t)hp->n_head * (rank + 1) / tp;
            ck_assert_int_eq(q.begin[1], head * (hp->nope + hp->rope));
            ck_assert_int_eq(q.end[1], next * (hp->nope + hp->rope));
            ck_assert_int_eq(k_b.begin[d], head * per_k);
            ck_assert_int_eq(k_b.end[d], next * per_k);
            ck_assert_int_eq(v_b.begin[d], head * per_v);
            ck_assert_int_eq(v_b.end[d], next * per_v);
            ck_assert_int_eq(kv.begin[1], head * (hp->nope + hp->v_dim));
            ck_assert_int_eq(kv.end[1], next * (hp->nope + hp->v_dim));
            ck_assert_int_eq(o.begin[0], head * hp->v_dim);
            ck_assert_int_eq(o.end[0], next * hp->v_dim);
        }
    }
}
END_TEST

/* Known cuts of models.md 8.2, uneven ones too. */
START_TEST(known_cuts)
{
    static struct fake f;
    struct bp_raw r;
    make(&f, &shapes[0]);
    ck_assert(bpi_model_raw(&f.m, BPI_W_SHARED_DOWN, 1, 0, 2, &r)); /* 11 blocks of 256 */
    ck_assert_int_eq(r.end[0], 5 * 256);
    ck_assert(bpi_model_raw(&f.m, BPI_W_SHARED_GATE, 1, 1, 2, &r));
    ck_assert_int_eq(r.begin[1], 5 * 256);
    ck_assert_int_eq(r.end[1], 2816);
    ck_assert(bpi_model_raw(&f.m, BPI_W_FFN_DOWN, 0, 1, 4, &r)); /* 342 blocks of 32 */
    ck_assert_int_eq(r.begin[0], 85 * 32);
    ck_assert_int_eq(r.end[0], 171 * 32);
    ck_assert(bpi_model_raw(&f.m, BPI_W_EXP_DOWN, 1, 7, 8, &r)); /* 44 blocks of 32 */
    ck_assert_int_eq(r.begin[0], 38 * 32);
    ck_assert_int_eq(r.end[0], 44 * 32);
    /* One block for several ranks: all but the last have an empty share. */
    make(&f, &shapes[4]);
    for (uint32_t rank = 0; rank < 16; ++rank) {
        ck_assert(bpi_model_raw(&f.m, BPI_W_FFN_DOWN, 1, rank, 16, &r));
        ck_assert_int_eq(r.end[0] - r.begin[0], rank == 15 ? 256 : 0);
    }
}
END_TEST

/* The real file with block types, and a tied output cut by vocabulary. */
START_TEST(of_a_file)
{
    static const struct edit tied[] = {{ED_DROP, "output.weight", 0, NULL}, {0}};
    struct bpi_model *m = edited_model("bp-tiny-glm-dsa-Q4_K_M.gguf", tied, NULL);
    struct bp_raw r;
    int64_t next = 0;
    for (uint32_t rank = 0; rank < 5; ++rank) {
        ck_assert(bpi_model_raw(m, BPI_W_OUTPUT, 0, rank, 5, &r));
        ck_assert_int_eq(r.begin[1], next);
        next = r.end[1];
        ck_assert(bpi_model_raw(m, BPI_W_TOKEN_EMBD, 0, rank, 5,
                                &r)); /* the same tensor, replicated in this role */
        ck_assert(r.begin[1] == 0 && r.end[1] == 4096);
        ck_assert(bpi_model_raw(m, BPI_W_FFN_DOWN, 0, rank, 5, &r));
        ck_assert_int_eq(r.type, BP_GGUF_Q4_K);
        ck_assert_int_eq(r.end[0] - r.begin[0], rank == 0 ? 0 : 256);
    }
    ck_assert_int_eq(next, 4096);
    bpi_model_close(m);
}
END_TEST

static void add(TCase *tc)
{
    tcase_add_loop_test(tc, covers_everything_once, 0, BPI_ARRAY_LEN(shapes));
    tcase_add_loop_test(tc, borders_agree, 0, BPI_ARRAY_LEN(shapes));
    tcase_add_test(tc, known_cuts);
    tcase_add_test(tc, of_a_file);
}

int main(void)
{
    return run_cases("model_shard", add, 60);
}
