/* test_attn_host.c - the host code of attn_triton_like against launches, a run time and a cuBLAS of the test's own: what is
 * refused before anything is launched, that every call chooses its device, and that prepare() leaves nothing when it fails.
 * Not here: kernels (the kit, tests/gpu/attn), the work list (test_attn_plan.c). SPDX-License-Identifier: MIT */
#include "common.h"
#include "fake_cuda.h"

enum { HEADS = 16, ROWS = 4, LATENT = 32, ROPE = 8, NOPE = 16, VALUE = 16, BLOCK = 8, ORDINAL = 3 };

static struct {
    int launched;
    uint64_t part_head; /* of decode: rows of parts times heads that were launched with */
    int64_t n_position; /* of the last write */
    uint32_t dst_dtype; /* of the last decoding */
} fake;

static void reset(int fails)
{
    memset(&fake, 0, sizeof fake);
    cuda_reset(cudaErrorInvalidValue, fails, ORDINAL);
}

/* ---- cuBLAS ---- */

cublasStatus_t cublasSetStream_v2(cublasHandle_t h, cudaStream_t s)
{
    (void)h, (void)s;
    return cuda_blas(CUBLAS_STATUS_NOT_SUPPORTED);
}
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t h, void *p, size_t n_bytes)
{
    (void)h, (void)p, (void)n_bytes;
    return cuda_blas(CUBLAS_STATUS_NOT_SUPPORTED);
}
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t h, cublasOperation_t turn_a,
                                          cublasOperation_t turn_b, int m, int n, int k,
                                          const void *alpha, const void *a, cudaDataType a_type,
                                          int a_ld, long long a_step, const void *b,
                                          cudaDataType b_type, int b_ld, long long b_step,
                                          const void *beta, void *c, cudaDataType c_type, int c_ld,
                                          long long c_step, int n_batch,
                                          cublasComputeType_t compute, cublasGemmAlgo_t algo)
{
    (void)h, (void)turn_a, (void)turn_b, (void)m, (void)n, (void)k, (void)alpha, (void)a;
    (void)a_type, (void)a_ld, (void)a_step, (void)b, (void)b_type, (void)b_ld, (void)b_step;
    (void)beta, (void)c, (void)c_type, (void)c_ld, (void)c_step, (void)n_batch, (void)algo;
    ck_assert_int_eq(compute, CUBLAS_COMPUTE_32F);
    cuda_place();
    fake.launched++;
    return cuda_blas(CUBLAS_STATUS_NOT_SUPPORTED);
}

/* ---- launches ---- */

static int32_t launch(void)
{
    cuda_place();
    fake.launched++;
    return (int32_t)cuda_call();
}
#define LAUNCH(name)                                                                               \
    int32_t attn_start_##name(const struct attn_##name *a, void *stream)                           \
    {                                                                                              \
        (void)a, (void)stream;                                                                     \
        return launch();                                                                           \
    }
LAUNCH(gather)
LAUNCH(spread)
LAUNCH(merge)
LAUNCH(product)
int32_t attn_start_cache_write(const struct attn_cache_write *a, void *stream)
{
    (void)stream;
    fake.n_position = a->n_position;
    return launch();
}
int32_t attn_start_key_write(const struct attn_key_write *a, void *stream)
{
    (void)stream;
    fake.n_position = a->n_position;
    return launch();
}
int32_t attn_start_decode_weights(const struct attn_decode_weights *a, void *stream)
{
    (void)stream;
    fake.dst_dtype = a->dst_dtype;
    return launch();
}
uint32_t attn_type_block(uint32_t type, uint32_t *n_bytes)
{
    *n_bytes = 4;
    return type == BP_GGUF_F32 ? 1 : 0;
}
static int32_t launch_decode(const struct attn_decode *a)
{
    fake.part_head = (uint64_t)(a->part_lse - a->part_out);
    return launch();
}
int32_t attn_start_decode_fma(const struct attn_decode *a, void *stream)
{
    (void)stream;
    return launch_decode(a);
}
int32_t attn_start_decode_mma(const struct attn_decode *a, void *stream)
{
    (void)stream;
    return launch_decode(a);
}
int32_t attn_start_combine(const struct attn_decode *a, void *stream)
{
    (void)a, (void)stream;
    return launch();
}
int32_t attn_start_prefill_fma(const struct attn_prefill *a, void *stream)
{
    (void)a, (void)stream;
    return launch();
}
int32_t attn_start_prefill_mma(const struct attn_prefill *a, void *stream)
{
    (void)a, (void)stream;
    return launch();
}
int32_t attn_prefill_mma_serves(uint32_t qk_dim, uint32_t v_dim)
{
    (void)qk_dim, (void)v_dim;
    return 0;
}
int32_t attn_start_scores(const struct attn_select *a, void *stream)
{
    (void)a, (void)stream;
    return launch();
}
int32_t attn_start_scores_mma(const struct attn_select *a, void *stream)
{
    (void)a, (void)stream;
    return launch();
}
int32_t attn_start_topk(const struct attn_select *a, void *stream)
{
    (void)a, (void)stream;
    return launch();
}

/* ---- an op, and what calls need ---- */

static void *host_alloc(void *ctx, uint64_t n_bytes, uint64_t align)
{
    (void)ctx, (void)align;
    return calloc(1, n_bytes);
}
static void host_free(void *ctx, void *p)
{
    (void)ctx;
    free(p);
}
static const struct bp_host host = {.h = BP_HDR(struct bp_host, parallel_for),
                                    .abi_minor = BP_ABI_MINOR,
                                    .mem_alloc = host_alloc,
                                    .mem_free = host_free};
static struct attn_plugin plugin = {.host = &host};
static const struct bp_device dev = {.h = BP_HDR(struct bp_device, name),
                                     .kind = BP_DEV_CUDA,
                                     .ordinal = ORDINAL,
                                     .cc_major = 9,
                                     .n_sm = 132,
                                     .smem_bytes = 232448};
static struct attn_op op = {.plugin = &plugin, .dev = &dev};
static struct bp_error err = BP_ERROR_INIT;
static _Alignas(256) float memory[1 << 16]; /* of all tensors; nobody looks at the numbers */
static int32_t numbers[64];

static struct bp_mla_problem problem(uint32_t n_head, uint32_t act)
{
    return (struct bp_mla_problem){.h = BP_HDR(struct bp_mla_problem, type_v),
                                   .n_head = n_head,
                                   .nope_dim = NOPE,
                                   .rope_dim = ROPE,
                                   .v_dim = VALUE,
                                   .kv_rank = LATENT,
                                   .block_tok = BLOCK,
                                   .act_dtype = act,
                                   .kv_dtype = BP_DT_F32,
                                   .max_tok = ROWS,
                                   .max_seqs = ROWS,
                                   .max_rows = ROWS,
                                   .max_kv = 4096};
}

static struct bp_tensor tensor(uint32_t dtype, int64_t a, int64_t b, int64_t c)
{
    struct bp_tensor t = {.data = memory, .dtype = dtype, .ndim = c != 0 ? 3 : b != 0 ? 2 : 1};
    const int64_t dims[] = {a, b, c};
    int64_t step = 1;
    for (uint32_t d = t.ndim; d-- > 0; step *= dims[d]) {
        t.dim[d] = dims[d];
        t.stride[d] = step;
    }
    return t;
}

static struct bp_tensor pool(const char *family, uint32_t width)
{
    char name[32];
    struct bp_tensor t = tensor(BP_DT_U8, 4, (int64_t)width * 4 * BLOCK, 0);
    t.layout_id = bp_layout_name(name, family, BP_DT_F32, width);
    return t;
}

static struct bp_mla_meta meta(void)
{
    return (struct bp_mla_meta){.h = BP_HDR(struct bp_mla_meta, rope_sin),
                                .n_tok = ROWS,
                                .block_tok = BLOCK,
                                .positions = numbers,
                                .slot_map = numbers,
                                .rope_cos = tensor(BP_DT_F32, 77, ROPE / 2, 0),
                                .rope_sin = tensor(BP_DT_F32, 77, ROPE / 2, 0)};
}

static void *must_alloc(uint64_t n_bytes)
{
    void *p = calloc(1, n_bytes + 1);
    ck_assert_ptr_nonnull(p);
    return p;
}

static void refused(int32_t rc, int32_t want, const char *word)
{
    ck_assert_int_eq(rc, want);
    ck_assert_int_eq(err.code, want);
    ck_assert_int_eq(strncmp(err.domain, ATTN_NAME, strlen(err.domain)), 0);
    ck_assert_msg(strstr(err.msg, word) != NULL, "`%s` does not say `%s`", err.msg, word);
}

/* ---- decode ---- */

/* plan() and run() of rows of these lengths in memory for `sized`. */
static int32_t decode(const struct bp_workspace *sized, int64_t n_head, const int32_t *len)
{
    const struct bp_mla_meta common = meta();
    const struct bp_mla_decode_meta m = {.h = BP_HDR(struct bp_mla_decode_meta, row_kv_len_host),
                                         .common = &common,
                                         .n_row = ROWS,
                                         .n_row_padded = ROWS,
                                         .max_kv = 4096,
                                         .row_seq = numbers,
                                         .row_kv_len = len,
                                         .row_kv_len_host = len};
    const struct bp_mla_decode_args a = {.h = BP_HDR(struct bp_mla_decode_args, scale),
                                         .meta = &m,
                                         .q = tensor(BP_DT_F32, ROWS, n_head, LATENT + ROPE),
                                         .out = tensor(BP_DT_F32, ROWS, n_head, LATENT),
                                         .pool = pool("mla", LATENT + ROPE)};
    struct bp_launch l = {.h = BP_HDR(struct bp_launch, reserved), .dev = &dev};
    l.pinned = must_alloc(sized->pinned_bytes);
    l.plan = must_alloc(sized->plan_bytes);
    l.scratch = must_alloc(sized->scratch_bytes);
    l.scratch_bytes = sized->scratch_bytes;
    int32_t rc = attn_decode_ops.plan(&op, &l, &m, &err);
    cuda.device = 0; /* another rank of the thread came between */
    if (rc == BP_OK) rc = attn_decode_ops.run(&op, &l, &a, &err);
    free(l.pinned);
    free(l.plan);
    free(l.scratch);
    return rc;
}

START_TEST(decode_stays_in_its_scratch)
{
    const int32_t len[ROWS] = {4096, 1, 4000, 2048};
    const struct bp_mla_problem large = problem(HEADS, BP_DT_F32), small = problem(2, BP_DT_F32);
    struct bp_workspace most = {.h = BP_HDR(struct bp_workspace, persistent_zeroed)}, few = most;
    reset(0);
    op.n_head = 0;
    ck_assert_int_eq(attn_decode_ops.base.workspace(&op, &large, &most, &err), BP_OK);
    ck_assert_int_eq(attn_decode_ops.base.workspace(&op, &small, &few, &err), BP_OK);
    /* The smaller problem came last; the larger one is served all the same, and one of no problem is not. */
    ck_assert_int_eq(decode(&most, HEADS, len), BP_OK);
    ck_assert_int_eq(fake.launched, 2);
    ck_assert_uint_le(fake.part_head * sizeof(float), most.scratch_bytes);
    /* So is the smaller one in memory for no more than it. */
    ck_assert_int_eq(decode(&few, 2, len), BP_OK);
    ck_assert_int_eq(fake.launched, 4);
    ck_assert_uint_le(fake.part_head * sizeof(float), few.scratch_bytes);
    fake.launched = 0;
    refused(decode(&most, HEADS + 1, len), BP_E_ARG, "17 heads");
    few.scratch_bytes = 64;
    few.plan_bytes = most.plan_bytes;
    few.pinned_bytes = most.pinned_bytes;
    refused(decode(&few, HEADS, len), BP_E_ARG, "scratch is too small");
    ck_assert_int_eq(fake.launched, 0);
}
END_TEST

/* ---- the other calls ---- */

START_TEST(writes_choose_their_device_and_know_their_tables)
{
    const struct bp_mla_meta m = meta();
    const struct bp_launch l = {.h = BP_HDR(struct bp_launch, reserved), .dev = &dev};
    const struct bp_mla_cache_write_args w = {.h = BP_HDR(struct bp_mla_cache_write_args, reserved),
                                              .meta = &m,
                                              .kv = tensor(BP_DT_F32, ROWS, LATENT + ROPE, 0),
                                              .norm_w = tensor(BP_DT_F32, LATENT, 0, 0),
                                              .pool = pool("mla", LATENT + ROPE)};
    const struct bp_mla_key_write_args k = {.h = BP_HDR(struct bp_mla_key_write_args, rope_style),
                                            .meta = &m,
                                            .k = tensor(BP_DT_F32, ROWS, LATENT, 0),
                                            .norm_w = tensor(BP_DT_F32, LATENT, 0, 0),
                                            .norm_b = tensor(BP_DT_F32, LATENT, 0, 0),
                                            .pool = pool("mla.index", LATENT)};
    reset(0);
    ck_assert_int_eq(attn_common_ops.cache_write(&op, &l, &w, &err), BP_OK);
    ck_assert_int_eq(fake.n_position, 77);
    reset(0);
    ck_assert_int_eq(attn_index_ops.key_write(&op, &l, &k, &err), BP_OK);
    ck_assert_int_eq(fake.n_position, 77);
    ck_assert_int_eq(fake.launched, 1);
    reset(1);
    refused(attn_common_ops.cache_write(&op, &l, &w, &err), BP_E_DEVICE, "device cannot be used");
    ck_assert_int_eq(fake.launched, 0);
    ck_assert_int_eq(cuda.last, cudaSuccess);
}
END_TEST

static uint32_t level_of(const struct bp_op_base *vt)
{
    struct bp_reason reasons[8];
    struct bp_verdict v = {
        .h = BP_HDR(struct bp_verdict, cap_layouts), .reasons = reasons, .cap_reasons = 8};
    struct bp_mla_problem p = problem(HEADS, BP_DT_BF16);
    p.need_capture = BP_CAPTURE_ANY;
    (void)vt->supports(&op, &p, &v);
    ck_assert_uint_eq(v.level, BP_V_NO);
    v = (struct bp_verdict){
        .h = BP_HDR(struct bp_verdict, cap_layouts), .reasons = reasons, .cap_reasons = 8};
    p.need_capture = BP_CAPTURE_UNIFORM;
    (void)vt->supports(&op, &p, &v);
    ck_assert_uint_ne(v.level, BP_V_NO);
    return v.capture;
}

/* The host's counts fix the grids of all of them; and none needs a device to say so. */
START_TEST(no_op_promises_any_capture)
{
    reset(1);
    ck_assert_uint_eq(level_of(&attn_common_ops.base), BP_CAPTURE_UNIFORM);
    ck_assert_uint_eq(level_of(&attn_prefill_ops.base), BP_CAPTURE_UNIFORM);
    ck_assert_uint_eq(level_of(&attn_decode_ops.base), BP_CAPTURE_UNIFORM);
    ck_assert_int_eq(cuda.calls, 0);
}
END_TEST

/* ---- weights ---- */

static struct bp_mla_weights weights(const char *name)
{
    struct bp_mla_weights w = {.h = BP_HDR(struct bp_mla_weights, head_end),
                               .n_head = 2,
                               .nope_dim = NOPE,
                               .v_dim = VALUE,
                               .kv_rank = LATENT,
                               .head_end = 2};
    w.kv_b = (struct bp_raw){.h = BP_HDR(struct bp_raw, reserved),
                             .data = memory,
                             .n_bytes = 2 * (NOPE + VALUE) * LATENT * 4,
                             .type = BP_GGUF_F32,
                             .n_dim = 2,
                             .ne = {LATENT, 2 * (NOPE + VALUE), 1, 1},
                             .name = name,
                             .scale = 1.0f};
    return w;
}

START_TEST(prepare_arrives_or_leaves_nothing)
{
    const struct bp_mla_problem p = problem(2, BP_DT_BF16);
    const struct bp_mla_weights w = weights(NULL);
    int n = 0, failed;
    do {
        struct bp_workspace ws = {.h = BP_HDR(struct bp_workspace, persistent_zeroed)};
        void *handle = NULL;
        reset(0);
        ck_assert_int_eq(attn_common_open(&op, &err), BP_OK);
        ck_assert_int_eq(attn_common_ops.base.workspace(&op, &p, &ws, &err), BP_OK);
        ck_assert_uint_eq(ws.align % BP_CUDA_BLAS_ALIGN, 0);
        ck_assert_int_eq(cuda.calls, 0); /* all that can be asked without a device */
        reset(++n);
        const int32_t rc = attn_common_ops.prepare(&op, &w, &handle, NULL, &err);
        failed = cuda.calls >= n;
        ck_assert_int_eq(rc != BP_OK, failed);
        ck_assert_int_eq(cuda.last, cudaSuccess);
        if (failed) {
            ck_assert_ptr_null(handle);
            ck_assert_uint_gt(strlen(err.msg), 20);
        } else {
            ck_assert_uint_eq(fake.dst_dtype, BP_DT_BF16);
        }
        cuda.fails = 0;
        cuda.device = 0; /* another rank of the thread came between */
        attn_common_ops.release(&op, handle);
        attn_common_close(&op);
        ck_assert_int_eq(cuda.held, 0);
        ck_assert_int_lt(n, 100);
    } while (failed);
    ck_assert_int_gt(n, 8);
}
END_TEST

START_TEST(weights_that_do_not_fit_get_a_sentence)
{
    void *handle = NULL;
    reset(0);
    ck_assert_int_eq(attn_common_open(&op, &err), BP_OK);
    struct bp_mla_weights w = weights(NULL);
    w.kv_b.ne[1] = INT64_C(1) << 40;
    refused(attn_common_ops.prepare(&op, &w, &handle, NULL, &err), BP_E_ARG, "1099511627776");
    w = weights("blk.0.attn_kv_b.weight");
    w.kv_b.ne[1] = 5;
    refused(attn_common_ops.prepare(&op, &w, &handle, NULL, &err), BP_E_ARG, "32 x 5 numbers");
    ck_assert_str_eq(err.where, "blk.0.attn_kv_b.weight");
    w.kv_b.type = BP_GGUF_Q4_K;
    w.kv_b.name = NULL;
    refused(attn_common_ops.prepare(&op, &w, &handle, NULL, &err), BP_DECLINED, "no decoder");
    attn_common_close(&op);
    ck_assert_int_eq(cuda.held, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("attn_host");
    TCase *tc = tcase_create("host");
    tcase_add_test(tc, decode_stays_in_its_scratch);
    tcase_add_test(tc, writes_choose_their_device_and_know_their_tables);
    tcase_add_test(tc, no_op_promises_any_capture);
    tcase_add_test(tc, prepare_arrives_or_leaves_nothing);
    tcase_add_test(tc, weights_that_do_not_fit_get_a_sentence);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
