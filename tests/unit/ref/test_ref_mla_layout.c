/* test_ref_mla_layout.c - layouts, verdicts, workspaces and port lists of the reference MLA backend, and 64-bit sizes.
 * SPDX-License-Identifier: MIT */
#include "unit/ref/mla_fixture.h"

#include <sys/mman.h>

static const struct bp_mla_problem good = {.h = BP_HDR(struct bp_mla_problem, type_v),
                                           .n_head = 8,
                                           .nope_dim = 64,
                                           .rope_dim = 64,
                                           .v_dim = 96,
                                           .kv_rank = 512,
                                           .block_tok = 64,
                                           .act_dtype = BP_DT_F32,
                                           .kv_dtype = BP_DT_BF16,
                                           .max_tok = 512,
                                           .max_seqs = 2,
                                           .max_rows = 512,
                                           .max_kv = 2048,
                                           .max_slab = 1024,
                                           .n_index_head = 8,
                                           .index_dim = 128,
                                           .top_k = 256,
                                           .type_k = BP_GGUF_Q8_0,
                                           .type_v = BP_GGUF_Q4_K};

enum { N_IFACE = 4, INDEX = 3, PREFILL = 1, COMMON = 0 };

static const struct bp_op_base *table(int i)
{
    const struct bp_op_base *all[N_IFACE] = {bpi_ref_mla_common_ops(), bpi_ref_mla_prefill_ops(),
                                             bpi_ref_mla_decode_ops(), bpi_ref_mla_index_ops()};
    return all[i];
}

struct answer {
    struct bp_verdict v;
    struct bp_reason reasons[16];
    uint64_t layouts[4];
};

static void ask(const struct fx *f, int i, const struct bp_mla_problem *p, struct answer *a)
{
    memset(a, 0, sizeof *a);
    a->v.h = (struct bp_hdr)BP_HDR(struct bp_verdict, cost_us);
    a->v.reasons = a->reasons;
    a->v.cap_reasons = 16;
    a->v.reason_stride = sizeof a->reasons[0];
    a->v.layouts = a->layouts;
    a->v.cap_layouts = 4;
    ck_assert_int_eq(table(i)->supports((void *)&f->ref, p, &a->v), BP_OK);
}

static bool has_reason(const struct answer *a, uint32_t code, const char *field)
{
    for (uint32_t i = 0; i < a->v.n_reasons && i < 16; ++i) {
        const struct bp_reason *r = &a->reasons[i];
        if (r->code == code && strcmp(r->field, field) == 0) return r->critical == 1;
    }
    return false;
}

START_TEST(test_layout_list)
{
    static const struct {
        uint32_t dtype, n_bytes;
        const char *latent, *index;
    } want[] = {{BP_DT_BF16, 2, "mla.bf16.576", "mla.index.bf16.128"},
                {BP_DT_F16, 2, "mla.f16.576", "mla.index.f16.128"},
                {BP_DT_F32, 4, "mla.f32.576", "mla.index.f32.128"}};
    struct fx f;
    fx_open(&f, 1, BPI_REF_ROUND_NONE, fx_seed());
    for (uint32_t i = 0; i < 3; ++i) {
        for (int one = 0; one < 2; ++one) {
            struct bp_mla_problem p = good;
            struct bp_kv_layout a = {.h = BP_HDR(struct bp_kv_layout, name)}, b = a;
            p.kv_dtype = one ? want[i].dtype : BP_DT_NONE;
            ck_assert_int_eq(f.common->layouts(&f.ref, &p, one ? 0 : i, &a), BP_OK);
            ck_assert_int_eq(f.index->layouts(&f.ref, &p, one ? 0 : i, &b), BP_OK);
            ck_assert_str_eq(a.name, want[i].latent);
            ck_assert_str_eq(b.name, want[i].index);
            ck_assert_uint_eq(a.id, bp_id(want[i].latent));
            ck_assert_uint_eq(b.id, bp_id(want[i].index));
            ck_assert_uint_eq(a.dtype, want[i].dtype);
            ck_assert_uint_eq(a.token_bytes, 576u * want[i].n_bytes);
            ck_assert_uint_eq(a.block_bytes, 64u * 576u * want[i].n_bytes);
            ck_assert_uint_eq(b.block_bytes, 64u * 128u * want[i].n_bytes);
            ck_assert_uint_ge(a.align, 64);
            ck_assert_int_eq(f.common->layouts(&f.ref, &p, one ? 1 : 3, &a), BP_DECLINED);
            ck_assert_int_eq(f.index->layouts(&f.ref, &p, one ? 1 : 3, &b), BP_DECLINED);
        }
    }
    struct bp_mla_problem p = good;
    struct bp_kv_layout a = {.h = BP_HDR(struct bp_kv_layout, name)};
    p.kv_dtype = BP_DT_U8;
    ck_assert_int_eq(f.common->layouts(&f.ref, &p, 0, &a), BP_DECLINED);
    fx_close(&f);
}
END_TEST

START_TEST(test_good_problem)
{
    struct fx f;
    struct answer a;
    fx_open(&f, 1, BPI_REF_ROUND_NONE, fx_seed());
    for (int i = 0; i < N_IFACE; ++i) {
        struct bp_mla_problem p = good;
        p.index_layout_id = bp_id("mla.index.bf16.128");
        p.layout_id = bp_id("mla.bf16.576");
        ask(&f, i, &p, &a);
        ck_assert_uint_eq(a.v.level, BP_V_YES);
        ck_assert_uint_eq(a.v.n_reasons, 0);
        ck_assert_uint_eq(a.v.determinism, BP_DET_BATCH);
        ck_assert_uint_eq(a.v.n_layouts, 1);
        ck_assert_uint_eq(a.layouts[0], i == INDEX ? p.index_layout_id : p.layout_id);
    }
    fx_close(&f);
}
END_TEST

/* Each fault alone is named; all together are all named. */
START_TEST(test_reasons)
{
    struct fx f;
    struct answer a;
    fx_open(&f, 1, BPI_REF_ROUND_NONE, fx_seed());
    for (int i = 0; i < N_IFACE; ++i) {
        struct bp_mla_problem all = good, p;
#define FAULT(field_, value, code)                                                                 \
    do {                                                                                           \
        p = good;                                                                                  \
        p.field_ = (value);                                                                        \
        all.field_ = (value);                                                                      \
        ask(&f, i, &p, &a);                                                                        \
        FX_CHECK_MSG(a.v.level == BP_V_NO && has_reason(&a, code, #field_), "%s: " #field_,        \
                     table(i)->iface);                                                             \
    } while (0)
        FAULT(act_dtype, BP_DT_I32, BP_R_DTYPE);
        if (i != PREFILL) {
            FAULT(kv_dtype, BP_DT_U8, BP_R_DTYPE);
            FAULT(block_tok, 0, BP_R_SHAPE);
        }
        FAULT(rope_dim, 63, BP_R_SHAPE);
        FAULT(need_capture, BP_CAPTURE_Q1, BP_R_GRAPH);
        FAULT(need_determinism, 7, BP_R_DETERMINISM);
        if (i == INDEX) {
            FAULT(n_index_head, 0, BP_R_SHAPE);
            FAULT(index_dim, 0, BP_R_SHAPE);
            FAULT(index_rope_style, 2, BP_R_FEATURE);
            FAULT(top_k, 0, BP_R_SHAPE);
        } else {
            FAULT(n_head, 0, BP_R_SHAPE);
            FAULT(nope_dim, 0, BP_R_SHAPE);
            FAULT(v_dim, 0, BP_R_SHAPE);
            FAULT(kv_rank, 0, BP_R_SHAPE);
        }
        if (i == COMMON) {
            FAULT(type_k, 4, BP_R_QUANT);
            FAULT(type_v, BP_GGUF_Q8_1, BP_R_QUANT);
        }
        ask(&f, i, &all, &a);
        ck_assert_uint_ge(a.v.n_reasons, i == PREFILL ? 8 : 10);
        FX_CHECK(has_reason(&a, BP_R_DTYPE, "act_dtype"));
        FX_CHECK(has_reason(&a, BP_R_DTYPE, "kv_dtype") == (i != PREFILL));
        FX_CHECK(has_reason(&a, BP_R_SHAPE, i == INDEX ? "top_k" : "kv_rank"));
        p = good; /* layouts: right id of the wrong dtype, and of the wrong width */
        if (i == INDEX)
            p.index_layout_id = bp_id("mla.index.f32.128");
        else
            p.layout_id = bp_id("mla.bf16.512");
        ask(&f, i, &p, &a);
        if (i == PREFILL) { /* never sees the cache, so any layout will do */
            FX_CHECK(a.v.level == BP_V_YES && a.v.n_layouts == 1 && a.layouts[0] == p.layout_id);
        } else {
            const char *want = i == INDEX ? "mla.index.bf16.128" : "mla.bf16.576";
            FX_CHECK(a.v.level == BP_V_NO);
            FX_CHECK(has_reason(&a, BP_R_LAYOUT, i == INDEX ? "index_layout_id" : "layout_id"));
            FX_CHECK(strstr(a.reasons[0].text, want) != NULL);
        }
        const struct bp_ext ext = {.size = sizeof ext, .flags = BP_EXT_CRITICAL, .id = 5};
        p = good;
        p.h.next = &ext;
        ask(&f, i, &p, &a);
        FX_CHECK(a.v.level == BP_V_NO && has_reason(&a, BP_R_EXT, "h.next"));
        p = good;
        p.h.size = BP_END(struct bp_mla_problem, kv_rank);
        ask(&f, i, &p, &a);
        FX_CHECK(a.v.level == BP_V_NO && has_reason(&a, BP_R_ABI, "h.size"));
    }
    struct bp_mla_problem p = good;
    p.rope_dim = 256;
    ask(&f, INDEX, &p, &a);
    FX_CHECK(a.v.level == BP_V_NO && has_reason(&a, BP_R_SHAPE, "rope_dim"));
    fx_close(&f);
}
END_TEST

/* Growing any field never shrinks an answer, and absurd sizes are refused instead of wrapping. */
START_TEST(test_workspace)
{
    struct fx f;
    fx_open(&f, 1, BPI_REF_ROUND_NONE, fx_seed());
    for (int i = 0; i < N_IFACE; ++i) {
        static const size_t fields[] = {
            offsetof(struct bp_mla_problem, n_head),      offsetof(struct bp_mla_problem, nope_dim),
            offsetof(struct bp_mla_problem, rope_dim),    offsetof(struct bp_mla_problem, v_dim),
            offsetof(struct bp_mla_problem, kv_rank),     offsetof(struct bp_mla_problem, max_tok),
            offsetof(struct bp_mla_problem, max_rows),    offsetof(struct bp_mla_problem, max_kv),
            offsetof(struct bp_mla_problem, max_slab),    offsetof(struct bp_mla_problem, max_seqs),
            offsetof(struct bp_mla_problem, index_dim),   offsetof(struct bp_mla_problem, top_k),
            offsetof(struct bp_mla_problem, n_index_head)};
        struct bp_workspace w0 = {.h = BP_HDR(struct bp_workspace, persistent_zeroed)};
        FX_OK(table(i)->workspace(&f.ref, &good, &w0, &fx_err));
        ck_assert_uint_gt(w0.scratch_bytes, 0);
        ck_assert_uint_ge(w0.align, 64);
        ck_assert_uint_eq(w0.persistent_bytes + w0.plan_bytes + w0.pinned_bytes, 0);
        for (size_t k = 0; k < BPI_ARRAY_LEN(fields); ++k) {
            struct bp_workspace last = w0, next = w0;
            for (uint32_t step = 1; step < 40; ++step) {
                struct bp_mla_problem p = good;
                *(uint32_t *)((char *)&p + fields[k]) += step * step;
                FX_OK(table(i)->workspace(&f.ref, &p, &next, &fx_err));
                ck_assert_uint_ge(next.scratch_bytes, last.scratch_bytes);
                last = next;
            }
        }
    }
    struct bp_mla_problem p = good;
    struct bp_workspace w = {.h = BP_HDR(struct bp_workspace, persistent_zeroed)};
    p.n_index_head = p.index_dim = UINT32_MAX;
    FX_FAILS(BP_E_LIMIT, "overflows", table(INDEX)->workspace(&f.ref, &p, &w, &fx_err));
    fx_close(&f);
}
END_TEST

START_TEST(test_tensor_lists)
{
    struct fx f;
    fx_open(&f, 1, BPI_REF_ROUND_NONE, fx_seed());
    static const struct {
        int iface;
        uint32_t slot;
        const char *names[7];
        uint32_t access[6];
    } want[] = {
        {0, BP_MLA_OP_CACHE_WRITE, {"kv", "norm_w", "pool"}, {BP_IN, BP_IN, BP_INOUT}},
        {0, BP_MLA_OP_CACHE_GATHER, {"pool", "c", "k_pe"}, {BP_IN, BP_OUT, BP_OUT}},
        {0, BP_MLA_OP_EXPAND, {"c", "k_pe", "k", "v"}, {BP_IN, BP_IN, BP_OUT, BP_OUT}},
        {0, BP_MLA_OP_ABSORB, {"x", "y"}, {BP_IN, BP_OUT}},
        {0,
         BP_MLA_OP_MERGE,
         {"out", "lse", "other_out", "other_lse"},
         {BP_INOUT, BP_INOUT, BP_IN, BP_IN}},
        {1,
         BP_MLA_PREFILL_OP_RUN,
         {"q", "k", "v", "out", "lse"},
         {BP_IN, BP_IN, BP_IN, BP_OUT, BP_OUT}},
        {1,
         BP_MLA_PREFILL_OP_RUN_CONTEXT,
         {"q", "k", "v", "out", "lse"},
         {BP_IN, BP_IN, BP_IN, BP_OUT, BP_OUT}},
        {2,
         BP_MLA_DECODE_OP_RUN,
         {"q", "pool", "out", "lse", "idx", "idx_len"},
         {BP_IN, BP_IN, BP_OUT, BP_OUT, BP_IN, BP_IN}},
        {3,
         BP_MLA_INDEX_OP_KEY_WRITE,
         {"k", "norm_w", "norm_b", "pool"},
         {BP_IN, BP_IN, BP_IN, BP_INOUT}},
        {3,
         BP_MLA_INDEX_OP_SELECT,
         {"q", "w", "pool", "idx", "idx_len", "scores"},
         {BP_IN, BP_IN, BP_IN, BP_OUT, BP_OUT, BP_OUT}},
    };
    for (size_t i = 0; i < BPI_ARRAY_LEN(want); ++i) {
        /* Any args struct is a few pointers and tensors: with every byte set, all optional ports are given. */
        union {
            unsigned char bytes[2048];
            struct bp_mla_decode_args decode;
            struct bp_mla_select_args select;
        } args;
        struct bp_tensor t[8];
        memset(&args, 0x11, sizeof args);
        uint32_t n = 8, n_want = 0;
        while (want[i].names[n_want] != NULL) ++n_want;
        const struct bp_op_base *vt = table(want[i].iface);
        ck_assert_int_eq(vt->tensors(&f.ref, want[i].slot, &args, t, &n), BP_OK);
        ck_assert_uint_eq(n, n_want);
        for (uint32_t k = 0; k < n; ++k) {
            ck_assert_str_eq(t[k].name, want[i].names[k]);
            ck_assert_uint_eq(t[k].access, want[i].access[k]);
            ck_assert_uint_eq(t[k].layout_id, UINT64_C(0x1111111111111111));
        }
        n = 1; /* too small: the first only, and the number needed */
        t[1].name = "untouched";
        ck_assert_int_eq(vt->tensors(&f.ref, want[i].slot, &args, t, &n), BP_OK);
        ck_assert_uint_eq(n, n_want);
        ck_assert_str_eq(t[1].name, "untouched");
        n = 8;
        ck_assert_int_eq(vt->tensors(&f.ref, 9, &args, t, &n), BP_E_ARG);
    }
    struct bp_mla_decode_args none = {.h = BP_HDR(struct bp_mla_decode_args, reserved)};
    struct bp_tensor t[8];
    uint32_t n = 8;
    ck_assert_int_eq(table(2)->tensors(&f.ref, 0, &none, t, &n), BP_OK);
    ck_assert_uint_eq(n, 3);
    fx_close(&f);
}
END_TEST

/* A block whose bytes begin beyond 2^32: written, gathered and attended there. */
START_TEST(test_far_block)
{
    const uint64_t far_bytes = UINT64_C(5) << 30;
    struct fx f;
    struct fx_cache c;
    const int32_t len[] = {3};
    fx_open(&f, 1, BPI_REF_ROUND_NONE, fx_seed());
    fx_cache(&f, &c, "mla", BP_DT_F32, 576, 64, 1, len, 64);
    const uint64_t block_bytes = UINT64_C(64) * 576 * 4;
    const int64_t n_block = (int64_t)(far_bytes / block_bytes) + 1;
    /* Address space only: three rows of it are ever touched. */
    void *space = mmap(NULL, (size_t)n_block * block_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ck_assert_ptr_ne(space, MAP_FAILED);
    c.pool.data = space;
    c.pool.dim[0] = n_block;
    c.table[0] = (int32_t)(n_block - 1);
    fx_write_all(&c);
    struct bp_tensor kv = fx_random_tensor(&f, BP_DT_F32, 3, 576, 0, 0, 1.0);
    struct bp_tensor w = fx_random_tensor(&f, BP_DT_F32, 512, 0, 0, 0, 1.0);
    struct bp_mla_cache_write_args a = {.meta = &c.meta, .kv = kv, .norm_w = w, .pool = c.pool};
    FX_OK(f.common->cache_write(&f.ref, &f.l, &a, &fx_err));
    const float *row = (const float *)((char *)space + (uint64_t)(n_block - 1) * block_bytes);
    FX_CHECK(row[0] != 0.0f && row[2 * 576 + 575] != 0.0f && row[3 * 576] == 0.0f);
    int32_t seq[] = {0}, cu[] = {0, 3}, begin[] = {0};
    struct bp_mla_prefill_meta pm = {.common = &c.meta, .n_seg = 1, .n_q = 3, .n_k = 3};
    pm.seq_host = seq;
    pm.cu_k_host = pm.cu_q_host = cu;
    pm.kv_begin_host = begin;
    struct bp_tensor lat = fx_tensor(&f, BP_DT_F32, 3, 512, 0, 0);
    struct bp_tensor pe = fx_tensor(&f, BP_DT_F32, 3, 64, 0, 0);
    struct bp_mla_cache_gather_args g = {.meta = &pm, .pool = c.pool, .c = lat, .k_pe = pe};
    FX_OK(f.common->cache_gather(&f.ref, &f.l, &g, &fx_err));
    FX_CHECK(fx_get(&lat, 2, 511, 0) == row[2 * 576 + 511]);
    FX_CHECK(fx_get(&pe, 1, 63, 0) == row[576 + 575]);
    (void)munmap(space, (size_t)n_block * block_bytes);
    fx_close(&f);
}
END_TEST

START_TEST(test_bad_pools)
{
    struct fx f;
    struct fx_cache c;
    const int32_t len[] = {3};
    fx_open(&f, 1, BPI_REF_ROUND_NONE, fx_seed());
    fx_cache(&f, &c, "mla", BP_DT_BF16, 12, 4, 1, len, 4);
    fx_write_all(&c);
    struct bp_tensor kv = fx_random_tensor(&f, BP_DT_F32, 3, 12, 0, 0, 1.0);
    struct bp_tensor w = fx_random_tensor(&f, BP_DT_F32, 8, 0, 0, 0, 1.0);
    struct bp_mla_cache_write_args a = {.meta = &c.meta, .kv = kv, .norm_w = w, .pool = c.pool};
    FX_OK(f.common->cache_write(&f.ref, &f.l, &a, &fx_err));
    a.pool.layout_id = fx_layout("mla.index", BP_DT_BF16, 12); /* the other family */
    FX_FAILS(BP_E_ARG, "layout id", f.common->cache_write(&f.ref, &f.l, &a, &fx_err));
    a.pool.layout_id = 0;
    FX_FAILS(BP_E_ARG, "layout id", f.common->cache_write(&f.ref, &f.l, &a, &fx_err));
    a.pool.layout_id = fx_layout("mla", BP_DT_F32, 12); /* twice the bytes */
    FX_FAILS(BP_E_ARG, "the pool must be", f.common->cache_write(&f.ref, &f.l, &a, &fx_err));
    a.pool = c.pool;
    c.slots[1] = (int32_t)(c.pool.dim[0] * 4);
    FX_FAILS(BP_E_ARG, "goes to slot", f.common->cache_write(&f.ref, &f.l, &a, &fx_err));
    c.slots[1] = -1;
    c.positions[2] = 1000;
    FX_FAILS(BP_E_ARG, "has position", f.common->cache_write(&f.ref, &f.l, &a, &fx_err));
    c.positions[2] = 2;
    f.l.scratch_bytes = 16;
    FX_FAILS(BP_E_ARG, "scratch", f.common->cache_write(&f.ref, &f.l, &a, &fx_err));
    fx_close(&f);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("layout");
    tcase_add_test(tc, test_layout_list);
    tcase_add_test(tc, test_good_problem);
    tcase_add_test(tc, test_reasons);
    tcase_add_test(tc, test_workspace);
    tcase_add_test(tc, test_tensor_lists);
    tcase_add_test(tc, test_far_block);
    tcase_add_test(tc, test_bad_pools);
    return fx_main(tc, "ref_mla_layout");
}
