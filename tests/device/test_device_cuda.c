/* test_device_cuda.c - what device_cuda answers without a device: on which devices it makes its ops, what it serves on a
 * device that was only described to it, memory asked for, and one sentence when there is no driver.
 * Not here: anything that computes (tests/gpu). SPDX-License-Identifier: MIT */
#include "backplane/sdk.h"

#include <check.h>
#include <dlfcn.h>
#include <stdlib.h>

static const struct bp_plugin_desc *desc;
static void *plugin;
static struct bp_reason reasons[16];
static struct bp_verdict v;

static void *host_alloc(void *ctx, uint64_t n_bytes, uint64_t align)
{
    (void)ctx;
    const uint64_t whole = (n_bytes + align - 1) / align * align;
    void *p = aligned_alloc((size_t)align, (size_t)whole);
    if (p != NULL) memset(p, 0, (size_t)whole);
    return p;
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

static struct bp_device described(int32_t cc_major, int32_t cc_minor)
{
    return (struct bp_device){.h = BP_HDR(struct bp_device, name),
                              .kind = BP_DEV_CUDA,
                              .cc_major = cc_major,
                              .cc_minor = cc_minor,
                              .n_sm = 132};
}

static int32_t make(const char *iface, const struct bp_device *dev, struct bp_op_ref *out,
                    struct bp_error *err)
{
    for (uint32_t i = 0; i < desc->n_ops; ++i) {
        if (strcmp(desc->ops[i].iface, iface) == 0)
            return desc->op_create(plugin, &desc->ops[i], dev, NULL, 0, out, err);
    }
    ck_abort_msg("%s is not offered", iface);
    return BP_E_INTERNAL;
}

static void setup(void)
{
    static const struct bp_query q = {.h = BP_HDR(struct bp_query, engine_version),
                                      .host_major = BP_ABI_MAJOR,
                                      .host_minor = BP_ABI_MINOR};
    struct bp_error err = BP_ERROR_INIT;
    void *so = dlopen(BP_TEST_PLUGIN, RTLD_NOW | RTLD_LOCAL);
    ck_assert_msg(so != NULL, "%s", dlerror());
    void *entry = dlsym(so, BP_PLUGIN_ENTRY);
    bp_plugin_query_fn query = NULL;
    ck_assert_ptr_nonnull(entry);
    memcpy(&query, &entry, sizeof query);
    desc = query(&q);
    ck_assert_ptr_nonnull(desc);
    ck_assert_int_eq(desc->open(&host, &plugin, &err), BP_OK);
}

static void ask(const struct bp_op_ref *op, const void *problem)
{
    v = (struct bp_verdict){.h = BP_HDR(struct bp_verdict, cost_us),
                            .reasons = reasons,
                            .cap_reasons = BP_LEN(reasons),
                            .reason_stride = sizeof reasons[0]};
    memset(reasons, 0, sizeof reasons);
    ck_assert_int_eq(op->vt->supports(op->self, problem, &v), BP_OK);
}

static struct bp_dense_problem problem(uint32_t op)
{
    return (struct bp_dense_problem){.h = BP_HDR(struct bp_dense_problem, k),
                                     .op = op,
                                     .max_rows = 512,
                                     .width = 154880,
                                     .x_dtype = BP_DT_F32,
                                     .y_dtype = BP_DT_F32,
                                     .type = BP_GGUF_Q4_K,
                                     .k = 64};
}

START_TEST(the_cpu_is_declined)
{
    const struct bp_device cpu = {.h = BP_HDR(struct bp_device, name), .kind = BP_DEV_HOST};
    static const char *const ifaces[] = {"bp.device", "bp.dense"};
    for (uint32_t i = 0; i < BP_LEN(ifaces); ++i) {
        struct bp_error err = BP_ERROR_INIT;
        struct bp_op_ref op = {NULL, NULL};
        ck_assert_int_eq(make(ifaces[i], &cpu, &op, &err), BP_DECLINED);
        ck_assert_ptr_nonnull(strstr(err.msg, "engine.device = cuda:0"));
        ck_assert_int_eq(make(ifaces[i], NULL, &op, NULL), BP_DECLINED);
    }
}
END_TEST

START_TEST(every_op_and_dtype)
{
    static const uint32_t floats[] = {BP_DT_F32, BP_DT_F16, BP_DT_BF16};
    const struct bp_device dev = described(9, 0);
    struct bp_op_ref op = {NULL, NULL};
    ck_assert_int_eq(make("bp.dense", &dev, &op, NULL), BP_OK);
    for (uint32_t which = BP_DENSE_OP_EMBED; which <= BP_DENSE_OP_MATMUL; ++which) {
        for (uint32_t i = 0; i < 9; ++i) {
            struct bp_dense_problem p = problem(which);
            const int picks = which == BP_DENSE_OP_ARGMAX || which == BP_DENSE_OP_TOPK;
            p.x_dtype = floats[i / 3];
            p.y_dtype = floats[i % 3];
            ask(&op, &p);
            int good = 1;
            if (picks) good = p.x_dtype == BP_DT_F32;
            if (which == BP_DENSE_OP_MATMUL)
                good = p.y_dtype == BP_DT_F32 || p.y_dtype == p.x_dtype;
            ck_assert_msg((v.level == BP_V_YES) == (good != 0), "op %u, dtypes %u and %u", which,
                          p.x_dtype, p.y_dtype);
            if (v.level != BP_V_YES) ck_assert_uint_eq(reasons[0].code, BP_R_DTYPE);
            if (v.level == BP_V_YES) {
                ck_assert_uint_eq(v.capture, BP_CAPTURE_ANY);
                ck_assert_uint_eq(v.determinism,
                                  which == BP_DENSE_OP_MATMUL ? BP_DET_RUN : BP_DET_BATCH);
            }
        }
    }
    desc->op_destroy(plugin, &op);
}
END_TEST

/* One field of a good problem is spoilt, and the reason names it with what was got. */
static void refused(const struct bp_op_ref *op, const struct bp_dense_problem *p, uint32_t code,
                    const char *field, int64_t got)
{
    ask(op, p);
    ck_assert_uint_eq(v.level, BP_V_NO);
    ck_assert_uint_eq(v.n_reasons, 1);
    ck_assert_uint_eq(reasons[0].code, code);
    ck_assert_str_eq(reasons[0].field, field);
    ck_assert_int_eq(reasons[0].got, got);
}

START_TEST(refusals_name_their_field)
{
    struct bp_device dev = described(9, 0);
    struct bp_op_ref op = {NULL, NULL};
    ck_assert_int_eq(make("bp.dense", &dev, &op, NULL), BP_OK);
    struct bp_dense_problem p = problem(BP_DENSE_OP_TOPK);
    p.k = 0;
    refused(&op, &p, BP_R_SHAPE, "k", 0);
    p.k = 8193;
    refused(&op, &p, BP_R_SHAPE, "k", 8193);
    p.k = 8192;
    ask(&op, &p);
    ck_assert_uint_eq(v.level, BP_V_YES);
    p = problem(BP_DENSE_OP_ROPE);
    p.width = 63;
    refused(&op, &p, BP_R_SHAPE, "width", 63);
    p = problem(BP_DENSE_OP_EMBED);
    p.type = BP_GGUF_I8;
    refused(&op, &p, BP_R_QUANT, "type", BP_GGUF_I8);
    p = problem(BP_DENSE_OP_RMS);
    p.op = 9;
    refused(&op, &p, BP_R_FEATURE, "op", 9);
    p = problem(BP_DENSE_OP_RMS);
    dev = described(8, 9);
    refused(&op, &p, BP_R_ARCH, "cc", 89);
    dev = described(12, 0);
    ask(&op, &p);
    ck_assert_uint_eq(v.level, BP_V_YES);
    desc->op_destroy(plugin, &op);
}
END_TEST

START_TEST(memory_is_asked_for)
{
    const struct bp_device dev = described(9, 0);
    struct bp_op_ref op = {NULL, NULL};
    struct bp_workspace ws = {.h = BP_HDR(struct bp_workspace, persistent_zeroed)};
    ck_assert_int_eq(make("bp.dense", &dev, &op, NULL), BP_OK);
    struct bp_dense_problem p = problem(BP_DENSE_OP_ARGMAX);
    ck_assert_int_eq(op.vt->workspace(op.self, &p, &ws, NULL), BP_OK);
    ck_assert_uint_eq(ws.persistent_bytes, 512 * 4);
    ck_assert_uint_eq(ws.persistent_zeroed, 1);
    ck_assert_uint_eq(ws.scratch_bytes, 512 * 32 * 8);
    p = problem(BP_DENSE_OP_MATMUL);
    ck_assert_int_eq(op.vt->workspace(op.self, &p, &ws, NULL), BP_OK);
    /* Nothing of cuBLAS's lies where argmax keeps its counters: a bound op may be asked for both. */
    ck_assert(ws.persistent_bytes == 0 && ws.align == 256 && ws.scratch_bytes == 32 << 20);
    p = problem(BP_DENSE_OP_RMS);
    ck_assert_int_eq(op.vt->workspace(op.self, &p, &ws, NULL), BP_OK);
    ck_assert(ws.persistent_bytes == 0 && ws.scratch_bytes == 0 && ws.plan_bytes == 0);
    desc->op_destroy(plugin, &op);
}
END_TEST

/* ---- calls that a kernel must not see ---- */

static struct bp_tensor port(uint32_t ndim, int64_t d0, int64_t d1, int64_t d2)
{
    static float numbers[64];
    struct bp_tensor t = {
        .data = numbers, .dtype = BP_DT_F32, .ndim = ndim, .dim = {d0, d1, d2, 1}};
    for (uint32_t d = ndim; d-- > 0;)
        t.stride[d] = d + 1 == ndim ? 1 : t.stride[d + 1] * t.dim[d + 1];
    return t;
}

/* Each of these spoils one port. */
static void other_dtype(struct bp_tensor *t)
{
    t->dtype = BP_DT_I64;
}
static void other_width(struct bp_tensor *t)
{
    t->dim[t->ndim - 1] += 2;
}
static void other_rank(struct bp_tensor *t)
{
    t->ndim = t->ndim == 1 ? 2 : 1;
}
static void spread_out(struct bp_tensor *t)
{
    t->stride[t->ndim - 1] = 2;
}
static void (*const spoil[])(struct bp_tensor *) = {other_dtype, other_width, other_rank,
                                                    spread_out};

static void refused_call(int32_t rc, const struct bp_error *err, const char *where)
{
    ck_assert_int_eq(rc, BP_E_ARG);
    ck_assert_str_eq(err->domain, "device_cuda");
    ck_assert_str_eq(err->where, where);
    ck_assert_msg(strstr(err->msg, "do not agree") != NULL, "%s", err->msg);
}

/* No device stands behind the op, and none is needed to refuse. */
START_TEST(ports_that_do_not_agree_are_refused)
{
    const struct bp_device dev = described(9, 0);
    const struct bp_launch l = {.h = BP_HDR(struct bp_launch, reserved), .dev = &dev};
    struct bp_op_ref op = {NULL, NULL};
    struct bp_error err = BP_ERROR_INIT;
    ck_assert_int_eq(make("bp.dense", &dev, &op, NULL), BP_OK);
    const struct bp_dense_ops *ops = (const struct bp_dense_ops *)(const void *)op.vt;
    for (uint32_t how = 0; how < BP_LEN(spoil); ++how) {
        for (uint32_t which = 0; which < 4; ++which) {
            struct bp_dense_rms_args r = {.h = BP_HDR(struct bp_dense_rms_args, reserved)};
            r.x = r.y = r.add = port(2, 2, 8, 1);
            r.w = port(1, 8, 1, 1);
            spoil[how]((struct bp_tensor *[]){&r.x, &r.y, &r.add, &r.w}[which]);
            refused_call(ops->rms(op.self, &l, &r, &err), &err, "dense.rms");
            struct bp_dense_layernorm_args n = {
                .h = BP_HDR(struct bp_dense_layernorm_args, reserved)};
            n.x = n.y = port(2, 2, 8, 1);
            n.w = n.b = port(1, 8, 1, 1);
            spoil[how]((struct bp_tensor *[]){&n.x, &n.y, &n.w, &n.b}[which]);
            refused_call(ops->layernorm(op.self, &l, &n, &err), &err, "dense.layernorm");
            struct bp_dense_rope_args p = {.h = BP_HDR(struct bp_dense_rope_args, reserved)};
            p.x = p.y = port(3, 2, 2, 8);
            p.cos_table = p.sin_table = port(2, 4, 4, 1);
            p.positions = port(1, 2, 1, 1);
            p.positions.dtype = BP_DT_I32;
            spoil[how]((struct bp_tensor *[]){&p.x, &p.y, &p.cos_table, &p.sin_table}[which]);
            refused_call(ops->rope(op.self, &l, &p, &err), &err, "dense.rope");
            struct bp_dense_pair_args a = {.h = BP_HDR(struct bp_dense_pair_args, y)};
            a.a = a.b = a.y = port(2, 2, 8, 1);
            spoil[how]((struct bp_tensor *[]){&a.a, &a.b, &a.y}[which % 3]);
            refused_call(ops->add(op.self, &l, &a, &err), &err, "dense.add");
            refused_call(ops->silu_mul(op.self, &l, &a, &err), &err, "dense.silu_mul");
            struct bp_dense_matmul_args m = {.h = BP_HDR(struct bp_dense_matmul_args, c)};
            m.a = m.b = m.c = port(3, 2, 4, 4);
            spoil[how]((struct bp_tensor *[]){&m.a, &m.b, &m.c}[which % 3]);
            refused_call(ops->matmul(op.self, &l, &m, &err), &err, "dense.matmul");
            struct bp_dense_topk_args k = {.h = BP_HDR(struct bp_dense_topk_args, ids)};
            k.x = port(2, 2, 8, 1);
            k.values = k.ids = port(2, 2, 3, 1);
            k.ids.dtype = BP_DT_I32;
            /* Choices from wider rows are as good. */
            if (how == 1 && which % 3 == 0) continue;
            spoil[how]((struct bp_tensor *[]){&k.x, &k.values, &k.ids}[which % 3]);
            refused_call(ops->topk(op.self, &l, &k, &err), &err, "dense.topk");
        }
    }
    struct bp_dense_rms_args r = {.h = BP_HDR(struct bp_dense_rms_args, reserved)};
    r.x = r.y = port(2, 2, 8, 1);
    r.w = port(1, 8, 1, 1);
    r.w.data = NULL;
    refused_call(ops->rms(op.self, &l, &r, &err), &err, "dense.rms");
    struct bp_dense_rope_args p = {.h = BP_HDR(struct bp_dense_rope_args, reserved)};
    p.x = p.y = port(3, 2, 2, 8);
    p.cos_table = p.sin_table = port(2, 4, 4, 1);
    p.positions = port(1, 1, 1, 1); /* of two rows, and no numbers of 32 bits */
    refused_call(ops->rope(op.self, &l, &p, &err), &err, "dense.rope");
    const struct bp_dense_embed_args e = {
        .h = BP_HDR(struct bp_dense_embed_args, y), .ids = p.positions, .y = r.y};
    ck_assert_int_eq(ops->embed(op.self, &l, &e, &err), BP_E_ARG);
    ck_assert_ptr_nonnull(strstr(err.msg, "no table"));
    desc->op_destroy(plugin, &op);
}
END_TEST

/* A tensor may come without a name, and its sizes from a file. */
START_TEST(bad_tables_are_refused)
{
    static const float numbers[16];
    const struct bp_device dev = described(9, 0);
    struct bp_op_ref op = {NULL, NULL};
    ck_assert_int_eq(make("bp.dense", &dev, &op, NULL), BP_OK);
    const struct bp_dense_ops *ops = (const struct bp_dense_ops *)(const void *)op.vt;
    const struct bp_raw good = {.h = BP_HDR(struct bp_raw, reserved),
                                .data = numbers,
                                .n_bytes = sizeof numbers,
                                .type = BP_GGUF_F32,
                                .n_dim = 2,
                                .ne = {4, 4, 1, 1},
                                .end = {4, 4, 1, 1},
                                .scale = 1.0f};
    for (int i = 0; i < 6; ++i) {
        struct bp_raw raw = good;
        struct bp_error err = BP_ERROR_INIT;
        void *table = &raw;
        if (i == 0) raw.type = BP_GGUF_I8;
        if (i == 1) raw.data = NULL;
        if (i == 2) raw.n_bytes--;
        if (i == 3) raw.end[1] = 5;
        if (i == 4) raw.begin[0] = -1;
        if (i == 5) raw.ne[0] = raw.end[0] = INT64_MAX, raw.ne[1] = raw.end[1] = 0;
        ck_assert_int_eq(ops->prepare(op.self, &raw, &table, NULL, &err),
                         i == 0 ? BP_DECLINED : BP_E_ARG);
        ck_assert_ptr_null(table);
        ck_assert_str_eq(err.where, "tensor");
    }
    ops->release(op.self, NULL);
    desc->op_destroy(plugin, &op);
}
END_TEST

/* On a machine with a GPU the last ordinal is one that is not there; without, the driver is what is missing. */
START_TEST(a_missing_device_is_one_sentence)
{
    struct bp_device dev = described(0, 0), seen = described(0, 0);
    struct bp_op_ref op = {NULL, NULL};
    struct bp_error err = BP_ERROR_INIT;
    dev.ordinal = 1000;
    ck_assert_int_eq(make("bp.device", &dev, &op, NULL), BP_OK);
    const struct bp_device_problem p = {
        .h = BP_HDR(struct bp_device_problem, ordinal), .kind = BP_DEV_CUDA, .ordinal = 1000};
    ask(&op, &p);
    ck_assert_uint_eq(v.level, BP_V_YES);
    const struct bp_device_ops *ops = (const struct bp_device_ops *)(const void *)op.vt;
    ck_assert_int_eq(ops->props(op.self, &seen, &err), BP_E_DEVICE);
    ck_assert_msg(strstr(err.msg, "no NVIDIA driver") != NULL ||
                      strstr(err.msg, "no GPU") != NULL ||
                      strstr(err.msg, "newer driver") != NULL ||
                      strstr(err.msg, "cuda:1000 is not there") != NULL,
                  "%s", err.msg);
    ck_assert_str_eq(err.domain, "device_cuda");
    desc->op_destroy(plugin, &op);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_cuda");
    TCase *tc = tcase_create("all");
    tcase_add_unchecked_fixture(tc, setup, NULL);
    tcase_add_test(tc, the_cpu_is_declined);
    tcase_add_test(tc, every_op_and_dtype);
    tcase_add_test(tc, refusals_name_their_field);
    tcase_add_test(tc, memory_is_asked_for);
    tcase_add_test(tc, ports_that_do_not_agree_are_refused);
    tcase_add_test(tc, bad_tables_are_refused);
    tcase_add_test(tc, a_missing_device_is_one_sentence);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
