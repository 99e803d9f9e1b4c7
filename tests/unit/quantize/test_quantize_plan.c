/* test_quantize_plan.c - which type a tensor gets: kept ones, mixes, fallbacks; the metadata of the new file.
 * The tables say what is expected; nothing here computes it. SPDX-License-Identifier: MIT */
#include "unit/quantize/quantize_fixture.h"

static uint32_t type_of(const char *name)
{
    const struct bpi_block_info *info = bpi_block_by_name(name);
    ck_assert_msg(info != NULL, "no type %s", name);
    return info->type;
}

static struct bpi_gguf_tensor tensor(const char *name, const char *type, int64_t ne0, int64_t ne1,
                                     int64_t ne2)
{
    struct bpi_gguf_tensor t = {.type = type_of(type), .n_dim = ne2 > 1 ? 3 : ne1 > 1 ? 2 : 1};
    snprintf(t.name, sizeof t.name, "%s", name);
    t.ne[0] = ne0;
    t.ne[1] = ne1;
    t.ne[2] = ne2;
    t.ne[3] = 1;
    return t;
}

// clang-format off
static const struct {
    const char *name, *from;
    int64_t ne0, ne1, ne2;
    const char *q4_k_m, *q5_k_m, *q8_0, *q4_k, *q2_k, *f16; /* NULL: kept */
} rows[] = {
    /* GLM-5's shapes, 78 layers and 256 experts: 78 / 8 = 9, 7 * 78 / 8 = 68 */
    {"token_embd.weight",            "BF16", 6144, 154880, 1, "Q4_K", "Q5_K", "Q8_0", "Q4_K", "Q2_K", "F16"},
    {"output.weight",                "BF16", 6144, 154880, 1, "Q6_K", "Q6_K", "Q8_0", "Q4_K", "Q2_K", "F16"},
    {"output_norm.weight",           "F32",  6144, 1, 1,      NULL, NULL, NULL, NULL, NULL, NULL},
    {"blk.3.attn_norm.weight",       "F32",  6144, 1, 1,      NULL, NULL, NULL, NULL, NULL, NULL},
    {"blk.3.attn_q_a.weight",        "BF16", 6144, 2048, 1,   "Q4_K", "Q5_K", "Q8_0", "Q4_K", "Q2_K", "F16"},
    {"blk.3.attn_q_b.weight",        "BF16", 2048, 16384, 1,  "Q4_K", "Q5_K", "Q8_0", "Q4_K", "Q2_K", "F16"},
    {"blk.3.attn_kv_a_mqa.weight",   "BF16", 6144, 576, 1,    "Q8_0", "Q8_0", "Q8_0", "Q4_K", "Q2_K", "F16"},
    {"blk.3.attn_k_b.weight",        "BF16", 192, 512, 64,    "Q8_0", "Q8_0", "Q8_0", "Q5_0", "IQ4_NL", "F16"},
    {"blk.3.attn_v_b.weight",        "BF16", 512, 256, 64,    "Q4_K", "Q5_K", "Q8_0", "Q4_K", "Q2_K", "F16"},
    {"blk.3.attn_kv_b.weight",       "BF16", 512, 28672, 1,   "Q8_0", "Q8_0", "Q8_0", "Q4_K", "Q2_K", "F16"},
    {"blk.3.attn_output.weight",     "BF16", 16384, 6144, 1,  "Q5_K", "Q5_K", "Q8_0", "Q4_K", "Q2_K", "F16"},
    {"blk.3.indexer.attn_k.weight",  "BF16", 6144, 128, 1,    "Q8_0", "Q8_0", "Q8_0", "Q4_K", "Q2_K", "F16"},
    {"blk.3.indexer.attn_q_b.weight","BF16", 2048, 4096, 1,   "Q4_K", "Q5_K", "Q8_0", "Q4_K", "Q2_K", "F16"},
    {"blk.3.indexer.proj.weight",    "BF16", 6144, 32, 1,     NULL, NULL, NULL, NULL, NULL, NULL},
    {"blk.3.indexer.k_norm.weight",  "F32",  128, 1, 1,       NULL, NULL, NULL, NULL, NULL, NULL},
    {"blk.3.indexer.k_norm.bias",    "F32",  128, 1, 1,       NULL, NULL, NULL, NULL, NULL, NULL},
    {"blk.3.ffn_gate_inp.weight",    "F32",  6144, 256, 1,    NULL, NULL, NULL, NULL, NULL, NULL},
    {"blk.3.exp_probs_b.bias",       "F32",  256, 1, 1,       NULL, NULL, NULL, NULL, NULL, NULL},
    {"blk.3.ffn_gate_exps.weight",   "BF16", 6144, 2048, 256, "Q4_K", "Q5_K", "Q8_0", "Q4_K", "Q2_K", "F16"},
    {"blk.3.ffn_up_exps.weight",     "BF16", 6144, 2048, 256, "Q4_K", "Q5_K", "Q8_0", "Q4_K", "Q2_K", "F16"},
    {"blk.8.ffn_down_exps.weight",   "BF16", 2048, 6144, 256, "Q6_K", "Q6_K", "Q8_0", "Q4_K", "Q2_K", "F16"},
    {"blk.9.ffn_down_exps.weight",   "BF16", 2048, 6144, 256, "Q4_K", "Q5_K", "Q8_0", "Q4_K", "Q2_K", "F16"},
    {"blk.10.ffn_down_exps.weight",  "BF16", 2048, 6144, 256, "Q4_K", "Q5_K", "Q8_0", "Q4_K", "Q2_K", "F16"},
    {"blk.11.ffn_down_shexp.weight", "BF16", 2048, 6144, 1,   "Q6_K", "Q6_K", "Q8_0", "Q4_K", "Q2_K", "F16"},
    {"blk.67.ffn_down.weight",       "BF16", 12288, 6144, 1,  "Q4_K", "Q5_K", "Q8_0", "Q4_K", "Q2_K", "F16"},
    {"blk.68.ffn_down.weight",       "BF16", 12288, 6144, 1,  "Q6_K", "Q6_K", "Q8_0", "Q4_K", "Q2_K", "F16"},
    {"blk.77.nextn.eh_proj.weight",  "BF16", 12288, 6144, 1,  "Q4_K", "Q5_K", "Q8_0", "Q4_K", "Q2_K", "F16"},
    /* V2-Lite's rows of 5.5 and 42.75 super-blocks; rows that no block divides */
    {"blk.8.ffn_down_exps.weight",   "BF16", 1408, 2048, 64,  "Q8_0", "Q8_0", "Q8_0", "Q5_0", "IQ4_NL", "F16"},
    {"blk.9.ffn_down_exps.weight",   "BF16", 1408, 2048, 64,  "Q5_0", "Q5_1", "Q8_0", "Q5_0", "IQ4_NL", "F16"},
    {"blk.0.ffn_down.weight",        "BF16", 10944, 2048, 1,  "Q8_0", "Q8_0", "Q8_0", "Q5_0", "IQ4_NL", "F16"},
    {"blk.3.attn_k_b.weight",        "F32",  24, 32, 4,       "F16", "F16", "F16", "F16", "F16", "F16"},
    {"blk.3.attn_output.weight",     "F32",  96, 64, 1,       "Q5_1", "Q5_1", "Q8_0", "Q5_0", "IQ4_NL", "F16"},
    {"output.weight",                "F32",  96, 264, 1,      "Q8_0", "Q8_0", "Q8_0", "Q5_0", "IQ4_NL", "F16"},
    /* other names, sources that are quantized, tables that hold no weights, a matrix of one row */
    {"blk.3.attn_qkv.weight",        "F16",  256, 768, 1,     "Q5_K", "Q6_K", "Q8_0", "Q4_K", "Q2_K", "F16"},
    {"blk.3.ffn_up.weight",          "IQ2_XS", 256, 768, 1,   "Q4_K", "Q5_K", "Q8_0", "Q4_K", "Q2_K", "F16"},
    {"blk.3.ffn_up.scale",           "F32",  256, 2, 1,       NULL, NULL, NULL, NULL, NULL, NULL},
    {"blk.3.ffn_gate_tid2eid.weight","I32",  256, 768, 1,     NULL, NULL, NULL, NULL, NULL, NULL},
    {"blk.3.odd.weight",             "BF16", 256, 1, 1,       NULL, NULL, NULL, NULL, NULL, NULL},
    {"blk.x.ffn_down.weight",        "BF16", 256, 256, 1,     "Q4_K", "Q5_K", "Q8_0", "Q4_K", "Q2_K", "F16"},
    {"blk.99999999999.ffn_down.weight", "BF16", 256, 256, 1,  "Q4_K", "Q5_K", "Q8_0", "Q4_K", "Q2_K", "F16"},
};
// clang-format on

static void expect(const char *target, const struct bpi_quantize_facts *facts,
                   const struct bpi_gguf_tensor *t, const char *want)
{
    struct bpi_quantize_row r = bpi_quantize_choose(bpi_quantize_target(target), facts, t);
    uint32_t to = want != NULL ? type_of(want) : t->type;
    ck_assert_msg(r.to == to, "%s of %s: %s, wanted %s", target, t->name,
                  bpi_block_info(r.to)->name, bpi_block_info(to)->name);
    ck_assert_msg((r.why == BPI_QUANTIZE_KEPT) == (want == NULL), "%s of %s: reason %u", target,
                  t->name, r.why);
    ck_assert_ptr_eq(r.src, t);
}

START_TEST(types)
{
    const struct bpi_quantize_facts facts = {.n_blocks = 78, .moe = true};
    struct bpi_gguf_tensor t =
        tensor(rows[_i].name, rows[_i].from, rows[_i].ne0, rows[_i].ne1, rows[_i].ne2);
    expect("Q4_K_M", &facts, &t, rows[_i].q4_k_m);
    expect("Q5_K_M", &facts, &t, rows[_i].q5_k_m);
    expect("Q8_0", &facts, &t, rows[_i].q8_0);
    expect("Q4_K", &facts, &t, rows[_i].q4_k);
    expect("Q2_K", &facts, &t, rows[_i].q2_k);
    expect("F16", &facts, &t, rows[_i].f16);
}
END_TEST

/* Without experts attention's values get more bits in the layers that ffn_down does. */
START_TEST(dense_models)
{
    const struct bpi_quantize_facts facts = {.n_blocks = 32};
    struct bpi_gguf_tensor v = tensor("blk.3.attn_v.weight", "F16", 4096, 1024, 1);
    struct bpi_gguf_tensor late = tensor("blk.5.attn_v.weight", "F16", 4096, 1024, 1);
    struct bpi_gguf_tensor k = tensor("blk.3.attn_k.weight", "F16", 4096, 1024, 1);
    struct bpi_gguf_tensor o = tensor("blk.3.attn_output.weight", "F16", 4096, 4096, 1);
    expect("Q4_K_M", &facts, &v, "Q6_K");
    expect("Q4_K_M", &facts, &late, "Q4_K");
    expect("Q4_K_M", &facts, &k, "Q4_K");
    expect("Q4_K_M", &facts, &o, "Q4_K");
}
END_TEST

/* A model that shares its embedding with the output treats it as the output. */
START_TEST(tied_embedding)
{
    const struct bpi_quantize_facts facts = {.n_blocks = 4, .tied = true};
    struct bpi_gguf_tensor t = tensor("token_embd.weight", "F16", 256, 4096, 1);
    expect("Q4_K_M", &facts, &t, "Q6_K");
    expect("Q4_K", &facts, &t, "Q4_K");
}
END_TEST

START_TEST(reasons)
{
    const struct bpi_quantize_facts facts = {.n_blocks = 4, .moe = true};
    const struct bpi_quantize_target *q4 = bpi_quantize_target("q4_k_m");
    struct bpi_gguf_tensor plain = tensor("blk.0.ffn_up.weight", "F32", 256, 256, 1);
    struct bpi_gguf_tensor better = tensor("blk.3.ffn_down.weight", "F32", 256, 256, 1);
    struct bpi_gguf_tensor odd = tensor("blk.0.ffn_up.weight", "F32", 96, 256, 1);
    struct bpi_gguf_tensor norm = tensor("blk.0.attn_norm.weight", "F32", 256, 1, 1);
    ck_assert_uint_eq(bpi_quantize_choose(q4, &facts, &plain).why, BPI_QUANTIZE_ASKED);
    ck_assert_uint_eq(bpi_quantize_choose(q4, &facts, &better).why, BPI_QUANTIZE_RAISED);
    ck_assert_uint_eq(bpi_quantize_choose(q4, &facts, &odd).why, BPI_QUANTIZE_FALLBACK);
    ck_assert_uint_eq(bpi_quantize_choose(q4, &facts, &norm).why, BPI_QUANTIZE_KEPT);
}
END_TEST

/* F32 keeps nothing back: it loses nothing. Integers have no such form. */
START_TEST(everything_to_f32)
{
    const struct bpi_quantize_facts facts = {.n_blocks = 4};
    struct bpi_gguf_tensor proj = tensor("blk.0.indexer.proj.weight", "Q4_K", 256, 8, 1);
    struct bpi_gguf_tensor norm = tensor("blk.0.attn_norm.weight", "BF16", 256, 1, 1);
    struct bpi_gguf_tensor ids = tensor("blk.0.ids.weight", "I32", 256, 2, 1);
    expect("F32", &facts, &proj, "F32");
    expect("F32", &facts, &norm, "F32");
    expect("F32", &facts, &ids, NULL);
}
END_TEST

START_TEST(targets)
{
    const char *names = bpi_quantize_names();
    unsigned n = 0;
    for (uint32_t type = 0; type < BP_GGUF_COUNT; ++type) {
        const struct bpi_block_info *info = bpi_block_info(type);
        if (info == NULL || !info->can_encode) continue;
        const struct bpi_quantize_target *t = bpi_quantize_target(info->name);
        ck_assert_msg(t != NULL, "%s can be encoded but not asked for", info->name);
        ck_assert(t->type == type && !t->mixed && strstr(names, info->name) != NULL);
        ++n;
    }
    ck_assert_uint_eq(n, 15);
    ck_assert_uint_eq(bpi_quantize_target("Q4_K_M")->file_type, 15);
    ck_assert_uint_eq(bpi_quantize_target("q5_k_m")->file_type, 17);
    ck_assert_uint_eq(bpi_quantize_target("Q8_0")->file_type, 7);
    ck_assert_uint_eq(bpi_quantize_target("bf16")->file_type, 32);
    static const char *const unknown[] = {"", "Q4", "Q4_K_MM", "Q4_K_S", "IQ2_XS", "I32", " F16"};
    for (size_t i = 0; i < BPI_ARRAY_LEN(unknown); ++i)
        ck_assert_msg(bpi_quantize_target(unknown[i]) == NULL, "'%s'", unknown[i]);
}
END_TEST

/* ---- the file ---- */

static const struct src_tensor few[] = {
    {"token_embd.weight", BP_GGUF_BF16, 2, {256, 8}},
    {"output.weight", BP_GGUF_BF16, 2, {256, 8}},
    {"blk.0.ffn_gate_exps.weight", BP_GGUF_BF16, 3, {256, 2, 8}},
    {"blk.0.attn_output.weight", BP_GGUF_BF16, 2, {256, 2}},
    {NULL, 0, 0, {0}},
};

static bool same_record(const struct bpi_gguf_kv *a, const struct bpi_gguf_kv *b)
{
    return a->key.n == b->key.n && memcmp(a->key.data, b->key.data, a->key.n) == 0 &&
           a->kind == b->kind && a->elem_kind == b->elem_kind && a->count == b->count &&
           a->value_bytes == b->value_bytes && memcmp(a->value, b->value, a->value_bytes) == 0;
}

/* Order and bytes are the source's; two keys are set, the one that was missing at the end; split.* are gone. */
START_TEST(metadata)
{
    struct bpi_gguf *g = make_source(in_folder("in.gguf"), few, 1);
    struct bpi_gguf *out = quantized(g, "Q4_K_M", in_folder("out.gguf"), 1);
    uint32_t v = 0;
    ck_assert_uint_eq(bpi_gguf_n_kv(g), 6);
    ck_assert_uint_eq(bpi_gguf_n_kv(out), 5);
    ck_assert(same_record(bpi_gguf_kv_at(g, 0), bpi_gguf_kv_at(out, 0)));
    ck_assert(same_record(bpi_gguf_kv_at(g, 2), bpi_gguf_kv_at(out, 2)));
    ck_assert(same_record(bpi_gguf_kv_at(g, 5), bpi_gguf_kv_at(out, 3)));
    ck_assert_int_eq(bpi_gguf_get_u32(out, "general.file_type", &v, NULL, NULL), BP_OK);
    ck_assert_uint_eq(v, 15);
    ck_assert_int_eq(memcmp(bpi_gguf_kv_at(out, 1)->key.data, "general.file_type", 17), 0);
    v = 0;
    ck_assert_int_eq(bpi_gguf_get_u32(out, "general.quantization_version", &v, NULL, NULL), BP_OK);
    ck_assert_uint_eq(v, 2);
    bpi_gguf_close(out);
    bpi_gguf_close(g);
}
END_TEST

/* Seven experts are no mixture here, eight are. */
START_TEST(facts_of_a_file)
{
    struct src_tensor t[BPI_ARRAY_LEN(few)];
    struct bpi_quantize_plan p;
    for (int experts = 7; experts <= 8; ++experts) {
        memcpy(t, few, sizeof t);
        t[2].ne[2] = experts;
        struct bpi_gguf *g = make_source(in_folder("in.gguf"), t, 1);
        plan_for(g, "Q4_K_M", &p);
        ck_assert_uint_eq(p.n_rows, 4);
        ck_assert_uint_eq(p.rows[0].to, BP_GGUF_Q4_K);
        ck_assert_uint_eq(p.rows[1].to, BP_GGUF_Q6_K);
        ck_assert_uint_eq(p.rows[3].to, experts == 8 ? BP_GGUF_Q5_K : BP_GGUF_Q4_K);
        bpi_quantize_plan_free(&p);
        bpi_gguf_close(g);
    }
    memcpy(t, few, sizeof t);
    t[1].name = "other.weight"; /* no output: the embedding serves for it */
    struct bpi_gguf *g = make_source(in_folder("in.gguf"), t, 1);
    plan_for(g, "Q4_K_M", &p);
    ck_assert_uint_eq(p.rows[0].to, BP_GGUF_Q6_K);
    bpi_quantize_plan_free(&p);
    bpi_quantize_plan_free(&p);
    bpi_gguf_close(g);
}
END_TEST

START_TEST(unreadable_types)
{
    static const struct src_tensor t[] = {{"blk.0.ffn_up.weight", BP_GGUF_Q8_K, 2, {256, 2}},
                                          {NULL, 0, 0, {0}}};
    struct bp_error err = BP_ERROR_INIT;
    struct bpi_quantize_plan p = {0};
    struct bpi_gguf *g = make_source(in_folder("in.gguf"), t, 1);
    ck_assert_int_eq(bpi_quantize_plan(g, bpi_quantize_target("Q4_K"), &p, &err), BP_E_UNSUPPORTED);
    ck_assert_str_eq(err.where, "blk.0.ffn_up.weight");
    ck_assert(strstr(err.msg, "Q8_K") != NULL && p.rows == NULL && p.writer == NULL);
    bpi_gguf_close(g);
}
END_TEST

static void add(TCase *tc)
{
    tcase_add_loop_test(tc, types, 0, BPI_ARRAY_LEN(rows));
    tcase_add_test(tc, dense_models);
    tcase_add_test(tc, tied_embedding);
    tcase_add_test(tc, reasons);
    tcase_add_test(tc, everything_to_f32);
    tcase_add_test(tc, targets);
    tcase_add_test(tc, metadata);
    tcase_add_test(tc, facts_of_a_file);
    tcase_add_test(tc, unreadable_types);
}

int main(void)
{
    return run_quantize_cases("quantize_plan", add, 60);
}
