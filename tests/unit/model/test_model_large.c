/* test_model_large.c - files with the tensor lists of large models, tiny in every dimension: counts, MTP and shared
 * indexers as real files have them, and the time an open takes. SPDX-License-Identifier: MIT */
#include "unit/model/model_edit.h"

struct plan {
    uint32_t arch, blocks, n_mtp, n_dense, n_vocab, ctx;
    bool bias, gating_key;
    uint32_t mtp_rows; /* how many of the table's MTP rows the file has */
};

static void put_keys(struct bpi_gguf_writer *w, const struct plan *p, const struct bpi_hparams *hp)
{
    const struct {
        const char *key;
        uint32_t v;
    } keys[] = {{"block_count", p->blocks},
                {"context_length", p->ctx},
                {"embedding_length", hp->n_embd},
                {"feed_forward_length", hp->n_ff},
                {"attention.head_count", hp->n_head},
                {"attention.head_count_kv", 1},
                {"attention.key_length", hp->kv_lora + hp->rope},
                {"attention.value_length", hp->kv_lora},
                {"attention.key_length_mla", hp->nope + hp->rope},
                {"attention.value_length_mla", hp->v_dim},
                {"attention.q_lora_rank", hp->q_lora},
                {"attention.kv_lora_rank", hp->kv_lora},
                {"leading_dense_block_count", p->n_dense},
                {"expert_count", hp->n_expert},
                {"expert_used_count", 2},
                {"expert_shared_count", 1},
                {"expert_feed_forward_length", hp->n_ff_exp},
                {"expert_group_count", 1},
                {"expert_group_used_count", 1},
                {"nextn_predict_layers", p->n_mtp},
                {"attention.indexer.head_count", hp->n_index_head},
                {"attention.indexer.key_length", hp->index_dim},
                {"attention.indexer.top_k", 8}};
    char name[96];
    const char *arch = bpi_arch_name(p->arch);
    bpi_gguf_put_str(w, "general.architecture", arch, strlen(arch));
    for (size_t i = 0; i < BPI_ARRAY_LEN(keys); ++i) {
        snprintf(name, sizeof name, "%s.%s", arch, keys[i].key);
        bpi_gguf_put_u32(w, name, keys[i].v);
    }
    snprintf(name, sizeof name, "%s.attention.layer_norm_rms_epsilon", arch);
    bpi_gguf_put_f32(w, name, 1e-5f);
    snprintf(name, sizeof name, "%s.expert_gating_func", arch);
    if (p->gating_key) bpi_gguf_put_u32(w, name, 2);
}

static bool in_block(const struct plan *p, size_t row, uint32_t block)
{
    bool moe = block >= p->n_dense;
    if (row >= BPI_W_COUNT) return block >= p->blocks - p->n_mtp && row - BPI_W_COUNT < p->mtp_rows;
    switch (bpi_role_rules[row].when) {
    case BPI_WHEN_Q_PLAIN:
    case BPI_WHEN_KV_JOINT:
    case BPI_WHEN_EXPERTS_FUSED:
        return false;
    case BPI_WHEN_INDEX:
        return bpi_arch_specs[p->arch].has_index;
    case BPI_WHEN_DENSE:
        return !moe;
    case BPI_WHEN_BIAS:
        return moe && p->bias;
    case BPI_WHEN_MOE:
    case BPI_WHEN_EXPERTS_SPLIT:
    case BPI_WHEN_SHARED:
        return moe;
    default:
        return true;
    }
}

static struct bpi_gguf *write_plan(const struct plan *p)
{
    struct bpi_hparams hp = {.n_embd = 32,
                             .n_vocab = p->n_vocab,
                             .n_head = 2,
                             .nope = 8,
                             .rope = 4,
                             .v_dim = 8,
                             .kv_lora = 16,
                             .q_lora = 16,
                             .n_ff = 32,
                             .n_expert = 4,
                             .n_ff_exp = 32,
                             .n_ff_shared = 32,
                             .n_index_head = 2,
                             .index_dim = 8};
    struct bpi_gguf_writer *w = NULL;
    struct bp_error err = BP_ERROR_INIT;
    size_t n_specs;
    const struct bpi_tensor_spec *specs = bpi_tensor_specs(&n_specs);
    ck_assert_int_eq(bpi_gguf_writer_create(&w, &err), BP_OK);
    put_keys(w, p, &hp);
    float *zeros = calloc((size_t)p->n_vocab * 32, sizeof *zeros);
    ck_assert_ptr_nonnull(zeros);
    for (size_t row = 0; row < n_specs; ++row) {
        for (uint32_t block = 0; block < (specs[row].per_layer ? p->blocks : 1); ++block) {
            char name[96];
            int64_t ne[4];
            if (specs[row].per_layer && !in_block(p, row, block)) continue;
            if (specs[row].per_layer)
                snprintf(name, sizeof name, "blk.%u.%s", block, specs[row].gguf);
            else
                snprintf(name, sizeof name, "%s", specs[row].gguf);
            uint32_t n_dim = bpi_shape_eval(&hp, specs[row].shape, ne);
            uint64_t n_bytes = (uint64_t)(ne[0] * ne[1] * ne[2]) * 4;
            ck_assert_uint_le(n_bytes, (uint64_t)p->n_vocab * 32 * 4);
            ck_assert_int_eq(bpi_gguf_put_tensor(w, name, BP_GGUF_F32, n_dim, ne, zeros, n_bytes),
                             BP_OK);
        }
    }
    char path[64];
    snprintf(path, sizeof path, "model_large.%ld.gguf", (long)getpid());
    ck_assert_msg(bpi_gguf_writer_save(w, path, &err) == BP_OK, "%s", err.msg);
    bpi_gguf_writer_destroy(w);
    free(zeros);
    struct bpi_gguf *g = NULL;
    ck_assert_msg(bpi_gguf_open(path, &g, &err) == BP_OK, "%s", err.msg);
    unlink(path);
    return g;
}

/* GLM-5.2 as published: 79 blocks, index tensors on all of them, no key that says which layers select. */
START_TEST(glm52)
{
    static const struct plan p = {BPI_ARCH_GLM_DSA, 79, 1, 3, 512, 1048576, true, true, 4};
    struct bpi_gguf *g = write_plan(&p);
    struct bpi_model *m = NULL;
    struct bp_error err = BP_ERROR_INIT;
    ck_assert_uint_eq(bpi_gguf_n_tensors(g), 1809);
    double best = 1e9;
    for (int i = 0; i < 5; ++i) {
        uint64_t t0 = bpi_now_ns();
        ck_assert_msg(bpi_model_open(g, NULL, &m, &err) == BP_OK, "%s", err.msg);
        double ms = (double)(bpi_now_ns() - t0) * 1e-6;
        if (ms < best) best = ms;
        if (i == 4) break;
        /* The model owns the file, so every further try needs it anew. */
        bpi_model_close(m);
        g = write_plan(&p);
    }
    printf("open of 1809 tensors: %.2f ms\n", best);
#ifdef BP_SANITIZED
    ck_assert(best < 500);
#else
    ck_assert(best < 50);
#endif
    const struct bpi_hparams *hp = bpi_model_hparams(m);
    ck_assert(hp->n_layer == 78 && hp->n_mtp == 1 && hp->n_dense == 3 && hp->sparse);
    uint32_t n_full = 0, n_mtp = 0, n_shared = 0;
    for (uint32_t i = 0; i < 78; ++i) n_full += bpi_model_index_full(m, i);
    ck_assert_uint_eq(n_full, 21);
    for (size_t i = 0; i < bpi_model_report_n(m); ++i) {
        const struct bpi_report_entry *r = bpi_model_report(m, i);
        if (r->kind != BPI_REPORT_UNUSED) continue;
        n_mtp += strstr(r->text, "MTP block 78") != NULL;
        n_shared += strstr(r->text, "shares the choice") != NULL;
    }
    ck_assert_uint_eq(n_mtp, 15 + 8 + 4);
    ck_assert_uint_eq(n_shared, 57 * 5);
    bpi_model_close(m);
}
END_TEST

/* GLM-4.7-Flash before its gating key existed. */
START_TEST(glm47_flash_without_gating)
{
    static const struct plan p = {BPI_ARCH_DEEPSEEK2, 48, 1, 1, 154880, 202752, true, false, 4};
    struct bpi_gguf *g = write_plan(&p);
    struct bpi_model *m = NULL;
    struct bp_error err = BP_ERROR_INIT;
    ck_assert_msg(bpi_model_open(g, NULL, &m, &err) == BP_OK, "%s", err.msg);
    ck_assert_uint_eq(bpi_model_hparams(m)->n_layer, 47);
    ck_assert_uint_eq(bpi_model_hparams(m)->gating, BP_GATING_SIGMOID);
    ASSERT_LINE(m, BPI_REPORT_ASSUMED, "expert_gating_func",
                "absent: sigmoid, the shape is GLM-4.7-Flash's");
    bpi_model_close(m);
}
END_TEST

/* The most blocks there may be, and one more. */
START_TEST(block_limit)
{
    struct plan p = {BPI_ARCH_DEEPSEEK2,
                     BPI_MODEL_MAX_LAYERS,
                     0,
                     BPI_MODEL_MAX_LAYERS,
                     64,
                     4096,
                     false,
                     true,
                     0};
    struct bpi_gguf *g = write_plan(&p);
    struct bpi_model *m = NULL;
    struct bp_error err = BP_ERROR_INIT;
    ck_assert_msg(bpi_model_open(g, NULL, &m, &err) == BP_OK, "%s", err.msg);
    ck_assert_uint_eq(bpi_model_hparams(m)->n_layer, BPI_MODEL_MAX_LAYERS);
    bpi_model_close(m);
    p.blocks = p.n_dense = BPI_MODEL_MAX_LAYERS + 1;
    g = write_plan(&p);
    ck_assert_int_eq(bpi_model_open(g, NULL, &m, &err), BP_E_LIMIT);
    bpi_gguf_close(g);
}
END_TEST

static void add(TCase *tc)
{
    tcase_add_test(tc, glm52);
    tcase_add_test(tc, glm47_flash_without_gating);
    tcase_add_test(tc, block_limit);
}

int main(void)
{
    return run_cases("model_large", add, 120);
}
