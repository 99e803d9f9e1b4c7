/* test_model_zoo.c - the nine zoo models and the bundled one open with the numbers their makers gave them.
 * SPDX-License-Identifier: MIT */
#include "unit/model/model_edit.h"

#include "base/half.h"

struct expected {
    const char *file;
    struct bpi_hparams hp;
    uint32_t n_full; /* layers that select by themselves */
};

// clang-format off
#define SHARED .n_ctx_train = 4096, .n_vocab = 264, .n_ff = 96, .rms_eps = 1e-6f, .rope_mag = 1, .index_eps = 1e-6f
#define COMMON SHARED, .n_embd = 64
#define SMALL  .kv_lora = 32, .nope = 24, .rope = 16, .v_dim = 32
#define NO_GROUPS .n_group = 1, .n_group_used = 1
#define YARN(log_mul) .rope_base = 1e4, .yarn = true, .yarn_factor = 40, .yarn_beta_fast = 32, .yarn_beta_slow = 1, \
               .yarn_orig_ctx = 64, .yarn_log_mul = log_mul
#define PLAIN .rope_base = 1e6, .yarn_factor = 1
static const struct expected zoo[] = {
    {"zoo-v2lite.gguf", {SHARED, SMALL, NO_GROUPS, YARN(0.0707), .n_embd = 32, .arch = BPI_ARCH_DEEPSEEK2,
     .n_layer = 27, .n_head = 4, .q_lora = 0, .n_dense = 1, .n_expert = 6, .n_expert_used = 3, .n_ff_exp = 32,
     .n_ff_shared = 64, .gating = BP_GATING_SOFTMAX, .group_score = BP_GROUP_MAX, .expert_norm = false,
     .expert_scale = 1, .attn_scale = 0.251341965}, 0},
    {"zoo-v2-group.gguf", {COMMON, SMALL, YARN(0.0707), .arch = BPI_ARCH_DEEPSEEK2, .n_layer = 3, .n_head = 4,
     .q_lora = 32, .n_dense = 1, .n_expert = 16, .n_expert_used = 3, .n_ff_exp = 32, .n_ff_shared = 64, .n_group = 4,
     .n_group_used = 2, .gating = BP_GATING_SOFTMAX, .group_score = BP_GROUP_MAX, .expert_norm = false,
     .expert_scale = 16, .attn_scale = 0.251341965}, 0},
    {"zoo-v3.gguf", {COMMON, SMALL, YARN(0.1), .arch = BPI_ARCH_DEEPSEEK2, .n_layer = 4, .n_head = 4, .q_lora = 48,
     .n_dense = 2, .n_expert = 16, .n_expert_used = 4, .n_ff_exp = 32, .n_ff_shared = 32, .n_group = 4,
     .n_group_used = 2, .gating = BP_GATING_SIGMOID, .group_score = BP_GROUP_TOP2, .expert_norm = true,
     .expert_scale = 2.5f, .attn_scale = 0.296282365}, 0},
    {"zoo-v3-512.gguf", {COMMON, YARN(0.1), .arch = BPI_ARCH_DEEPSEEK2, .n_layer = 2, .n_head = 8, .q_lora = 64,
     .kv_lora = 512, .nope = 128, .rope = 64, .v_dim = 128, .n_dense = 1, .n_expert = 16, .n_expert_used = 4,
     .n_ff_exp = 32, .n_ff_shared = 32, .n_group = 4, .n_group_used = 2, .gating = BP_GATING_SIGMOID,
     .group_score = BP_GROUP_TOP2, .expert_norm = true, .expert_scale = 2.5f, .attn_scale = 0.1352338}, 0},
    {"zoo-glm47flash.gguf", {COMMON, SMALL, NO_GROUPS, PLAIN, .arch = BPI_ARCH_DEEPSEEK2, .n_layer = 3,
     .n_head = 4, .q_lora = 48, .n_dense = 1, .n_expert = 8, .n_expert_used = 4, .n_ff_exp = 32, .n_ff_shared = 32,
     .gating = BP_GATING_SIGMOID, .group_score = BP_GROUP_TOP2, .expert_norm = true, .expert_scale = 1.8f,
     .attn_scale = 0.158113883}, 0},
    {"zoo-glm5.gguf", {COMMON, SMALL, NO_GROUPS, PLAIN, .arch = BPI_ARCH_GLM_DSA, .n_layer = 4, .n_head = 4,
     .q_lora = 48, .n_dense = 1, .n_expert = 16, .n_expert_used = 4, .n_ff_exp = 32, .n_ff_shared = 32,
     .gating = BP_GATING_SIGMOID, .group_score = BP_GROUP_TOP2, .expert_norm = true, .expert_scale = 2.5f,
     .attn_scale = 0.158113883, .sparse = true, .n_index_head = 16, .index_dim = 32, .top_k = 12,
     .index_rope_style = BP_ROPE_INTERLEAVED}, 4},
    {"zoo-glm5-512.gguf", {COMMON, NO_GROUPS, PLAIN, .arch = BPI_ARCH_GLM_DSA, .n_layer = 2, .n_head = 4,
     .q_lora = 64, .kv_lora = 512, .nope = 192, .rope = 64, .v_dim = 256, .n_dense = 1, .n_expert = 16,
     .n_expert_used = 8, .n_ff_exp = 32, .n_ff_shared = 32, .gating = BP_GATING_SIGMOID, .group_score = BP_GROUP_TOP2,
     .expert_norm = true, .expert_scale = 2.5f, .attn_scale = 0.0625, .sparse = true, .n_index_head = 8,
     .index_dim = 128, .top_k = 16, .index_rope_style = BP_ROPE_INTERLEAVED}, 2},
    {"zoo-glm52-shared.gguf", {COMMON, SMALL, NO_GROUPS, PLAIN, .arch = BPI_ARCH_GLM_DSA, .n_layer = 6,
     .n_head = 4, .q_lora = 48, .n_dense = 1, .n_expert = 16, .n_expert_used = 4, .n_ff_exp = 32, .n_ff_shared = 32,
     .gating = BP_GATING_SIGMOID, .group_score = BP_GROUP_TOP2, .expert_norm = true, .expert_scale = 2.5f,
     .attn_scale = 0.158113883, .sparse = true, .n_index_head = 16, .index_dim = 32, .top_k = 12,
     .index_rope_style = BP_ROPE_INTERLEAVED}, 3},
    {"zoo-v32.gguf", {COMMON, SMALL, YARN(0.1), .arch = BPI_ARCH_DEEPSEEK32, .n_layer = 3, .n_head = 4,
     .q_lora = 48, .n_dense = 1, .n_expert = 16, .n_expert_used = 4, .n_ff_exp = 32, .n_ff_shared = 32, .n_group = 4,
     .n_group_used = 2, .gating = BP_GATING_SIGMOID, .group_score = BP_GROUP_TOP2, .expert_norm = true,
     .expert_scale = 2.5f, .attn_scale = 0.296282365, .sparse = true, .n_index_head = 16, .index_dim = 32, .top_k = 12,
     .index_rope_style = BP_ROPE_HALF}, 3},
    {"bp-tiny-glm-dsa-Q4_K_M.gguf", {NO_GROUPS, .n_ctx_train = 2048, .n_embd = 256, .n_vocab = 4096, .n_ff = 1024,
     .rms_eps = 1e-6f, .rope_mag = 1, .index_eps = 1e-6f, PLAIN,
     .arch = BPI_ARCH_GLM_DSA, .n_layer = 5, .n_head = 8, .q_lora = 256, .kv_lora = 512, .nope = 64, .rope = 64,
     .v_dim = 96, .n_dense = 1, .n_expert = 16, .n_expert_used = 4, .n_ff_exp = 256, .n_ff_shared = 256,
     .gating = BP_GATING_SIGMOID, .group_score = BP_GROUP_TOP2, .expert_norm = true, .expert_scale = 2.5f,
     .attn_scale = 0.0883883476, .sparse = true, .n_index_head = 8, .index_dim = 128, .top_k = 256,
     .index_rope_style = BP_ROPE_INTERLEAVED}, 5},
};
#define SAME_U32(f) ck_assert_msg(got->f == want->f, "%s: " #f " is %u, wanted %u", x->file, (unsigned)got->f, (unsigned)want->f)
#define SAME_F(f) ck_assert_msg(fabs((double)got->f - (double)want->f) <= 2e-6 * fabs((double)want->f), \
                                "%s: " #f " is %.9g, wanted %.9g", x->file, (double)got->f, (double)want->f)
// clang-format on

static void check_hparams(const struct expected *x, const struct bpi_hparams *got)
{
    const struct bpi_hparams *want = &x->hp;
    SAME_U32(arch), SAME_U32(n_layer), SAME_U32(n_mtp), SAME_U32(n_ctx_train), SAME_U32(n_embd),
        SAME_U32(n_vocab);
    SAME_U32(n_head), SAME_U32(q_lora), SAME_U32(kv_lora), SAME_U32(nope), SAME_U32(rope),
        SAME_U32(v_dim);
    SAME_U32(n_dense), SAME_U32(n_ff), SAME_U32(n_expert), SAME_U32(n_expert_used),
        SAME_U32(n_ff_exp);
    SAME_U32(n_ff_shared), SAME_U32(n_group), SAME_U32(n_group_used), SAME_U32(gating),
        SAME_U32(group_score);
    SAME_U32(expert_norm), SAME_U32(yarn), SAME_U32(yarn_orig_ctx), SAME_U32(n_index_head),
        SAME_U32(index_dim);
    SAME_U32(top_k), SAME_U32(index_rope_style), SAME_U32(sparse);
    SAME_F(expert_scale), SAME_F(rms_eps), SAME_F(rope_base), SAME_F(yarn_factor),
        SAME_F(yarn_beta_fast);
    SAME_F(yarn_beta_slow), SAME_F(yarn_log_mul), SAME_F(rope_mag), SAME_F(attn_scale),
        SAME_F(index_eps);
}

static struct bpi_model *open_file(const char *file)
{
    const char *path = bp_test_model(file);
    ck_assert_msg(path != NULL, "no model file %s", file);
    struct bpi_gguf *g = NULL;
    struct bpi_model *m = NULL;
    struct bp_error err = BP_ERROR_INIT;
    ck_assert_msg(bpi_gguf_open(path, &g, &err) == BP_OK, "%s", err.msg);
    ck_assert_msg(bpi_model_open(g, NULL, &m, &err) == BP_OK, "%s: %s", file, err.msg);
    ck_assert_ptr_eq(bpi_model_gguf(m), g);
    return m;
}

START_TEST(hparams)
{
    const struct expected *x = &zoo[_i];
    struct bpi_model *m = open_file(x->file);
    check_hparams(x, bpi_model_hparams(m));
    uint32_t n_full = 0;
    for (uint32_t i = 0; i < x->hp.n_layer; ++i) {
        n_full += bpi_model_index_full(m, i);
        ck_assert_int_eq(bpi_model_layer_dense(m, i), i < x->hp.n_dense);
    }
    ck_assert_uint_eq(n_full, x->n_full);
    /* Nothing in these files is unknown, and nothing is missing. */
    for (size_t i = 0; i < bpi_model_report_n(m); ++i) {
        const struct bpi_report_entry *r = bpi_model_report(m, i);
        ck_assert_msg(r->kind != BPI_REPORT_UNUSED && r->kind != BPI_REPORT_MISSING, "%s: %s",
                      r->name, r->text);
    }
    ck_assert_ptr_null(bpi_model_report(m, bpi_model_report_n(m)));
    bpi_model_close(m);
}
END_TEST

/* Every tensor of the file is reached by exactly one role. */
START_TEST(every_tensor_has_a_role)
{
    struct bpi_model *m = open_file(zoo[_i].file);
    uint64_t n = 0;
    for (uint32_t role = 0; role < BPI_W_COUNT; ++role) {
        for (uint32_t layer = 0; layer < (role <= BPI_W_OUTPUT ? 1 : zoo[_i].hp.n_layer); ++layer) {
            struct bp_raw raw;
            char name[96];
            if (!bpi_model_raw(m, role, layer, 0, 1, &raw)) {
                ck_assert_ptr_null(raw.data);
                continue;
            }
            bpi_name_of(role, layer, name, sizeof name);
            ck_assert_str_eq(raw.name, name);
            const struct bpi_gguf_tensor *t = bpi_gguf_tensor(bpi_model_gguf(m), name);
            ck_assert_ptr_eq(raw.data, t->data);
            ck_assert_uint_eq(raw.n_bytes, t->n_bytes);
            ck_assert_uint_eq(raw.type, t->type);
            ck_assert_uint_eq(raw.n_dim, t->n_dim);
            ck_assert(raw.scale == 1.0f);
            for (uint32_t d = 0; d < 4; ++d) {
                ck_assert_int_eq(raw.ne[d], t->ne[d]);
                ck_assert_int_eq(raw.begin[d], 0);
                ck_assert_int_eq(raw.end[d], t->ne[d]);
            }
            ++n;
        }
    }
    ck_assert_uint_eq(n, bpi_gguf_n_tensors(bpi_model_gguf(m)));
    bpi_model_close(m);
}
END_TEST

/* Norms and biases, decoded: the file's own numbers. */
START_TEST(vectors)
{
    struct bpi_model *m = open_file("zoo-v32.gguf");
    static const struct {
        uint32_t role, layer, n;
    } vecs[] = {{BPI_W_OUTPUT_NORM, 0, 64},   {BPI_W_ATTN_NORM, 2, 64},
                {BPI_W_ATTN_Q_A_NORM, 1, 48}, {BPI_W_ATTN_KV_A_NORM, 0, 32},
                {BPI_W_FFN_NORM, 2, 64},      {BPI_W_ROUTER_BIAS, 1, 16},
                {BPI_W_INDEX_K_NORM, 2, 32},  {BPI_W_INDEX_K_NORM_B, 0, 32}};
    for (size_t i = 0; i < BPI_ARRAY_LEN(vecs); ++i) {
        size_t n = 0;
        char name[96];
        const float *v = bpi_model_vec(m, vecs[i].role, vecs[i].layer, &n);
        ck_assert_ptr_nonnull(v);
        ck_assert_uint_eq(n, vecs[i].n);
        bpi_name_of(vecs[i].role, vecs[i].layer, name, sizeof name);
        const struct bpi_gguf_tensor *t = bpi_gguf_tensor(bpi_model_gguf(m), name);
        ck_assert_uint_eq(t->type, BP_GGUF_F32);
        ck_assert_msg(memcmp(v, t->data, n * 4) == 0, "%s", name);
    }
    size_t n = 7;
    ck_assert_ptr_null(bpi_model_vec(m, BPI_W_ROUTER_BIAS, 0, &n)); /* a dense layer */
    ck_assert_uint_eq(n, 0);
    ck_assert_ptr_null(bpi_model_vec(m, BPI_W_ATTN_NORM, 3, NULL));
    ck_assert_ptr_null(bpi_model_vec(m, BPI_W_TOKEN_EMBD, 0, NULL)); /* no vector */
    ck_assert_ptr_null(bpi_model_vec(m, BPI_W_COUNT, 0, NULL));
    struct bp_raw raw;
    ck_assert(!bpi_model_raw(m, BPI_W_COUNT, 0, 0, 1, &raw));
    ck_assert(!bpi_model_raw(m, BPI_W_ATTN_NORM, 3, 0, 1, &raw));
    ck_assert(!bpi_model_raw(m, BPI_W_ATTN_NORM, 0, 1, 1, &raw));
    ck_assert(!bpi_model_raw(m, BPI_W_ATTN_NORM, 0, 0, 0, &raw));
    bpi_model_close(m);
    bpi_model_close(NULL);
}
END_TEST

/* A vector need not be F32 in the file. */
START_TEST(vectors_of_other_types)
{
    struct bpi_gguf *src = NULL;
    struct bp_error err = BP_ERROR_INIT;
    ck_assert_int_eq(bpi_gguf_open(bp_test_model("zoo-v3.gguf"), &src, &err), BP_OK);
    const float *plain = (const float *)bpi_gguf_tensor(src, "blk.3.ffn_norm.weight")->data;
    struct bpi_gguf_writer *w = NULL;
    ck_assert_int_eq(bpi_gguf_writer_create(&w, &err), BP_OK);
    uint16_t half[64];
    for (int i = 0; i < 64; ++i) half[i] = bpi_f32_to_f16(plain[i]);
    for (uint64_t i = 0; i < bpi_gguf_n_kv(src); ++i) bpi_gguf_put_copy(w, bpi_gguf_kv_at(src, i));
    for (uint64_t i = 0; i < bpi_gguf_n_tensors(src); ++i) {
        const struct bpi_gguf_tensor *t = bpi_gguf_tensor_at(src, i);
        bool it = strcmp(t->name, "blk.3.ffn_norm.weight") == 0;
        bpi_gguf_put_tensor(w, t->name, it ? BP_GGUF_F16 : t->type, t->n_dim, t->ne,
                            it ? (void *)half : t->data, it ? sizeof half : t->n_bytes);
    }
    ck_assert_int_eq(bpi_gguf_writer_save(w, "model_f16norm.gguf", &err), BP_OK);
    bpi_gguf_writer_destroy(w);
    struct bpi_gguf *g = NULL;
    struct bpi_model *m = NULL;
    ck_assert_int_eq(bpi_gguf_open("model_f16norm.gguf", &g, &err), BP_OK);
    unlink("model_f16norm.gguf");
    ck_assert_msg(bpi_model_open(g, NULL, &m, &err) == BP_OK, "%s", err.msg);
    const float *v = bpi_model_vec(m, BPI_W_FFN_NORM, 3, NULL);
    for (int i = 0; i < 64; ++i) ck_assert(v[i] == bpi_f16_to_f32(half[i]));
    bpi_model_close(m);
    bpi_gguf_close(src);
}
END_TEST

static void add(TCase *tc)
{
    tcase_add_loop_test(tc, hparams, 0, BPI_ARRAY_LEN(zoo));
    tcase_add_loop_test(tc, every_tensor_has_a_role, 0, BPI_ARRAY_LEN(zoo));
    tcase_add_test(tc, vectors);
    tcase_add_test(tc, vectors_of_other_types);
}

int main(void)
{
    return run_cases("model_zoo", add, 60);
}
