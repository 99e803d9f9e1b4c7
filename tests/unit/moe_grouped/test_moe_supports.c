/* test_moe_supports.c - the built plugin on a machine without a device: what it says to problems for a device that is only
 * described, every refusal with field and numbers, workspaces, and who may create it.
 * SPDX-License-Identifier: MIT */
#include <check.h>

#include <dlfcn.h>
#include <stdlib.h>

#include <backplane/sdk.h>
#include <backplane/slot_moe.h>

static const struct bp_plugin_desc *desc;
static void *plugin;
static struct bp_device dev = {
    .h = BP_HDR(struct bp_device, name), .kind = BP_DEV_CUDA, .cc_major = 9, .n_sm = 132};
static struct bp_op_ref op;
static struct bp_reason reasons[16];
static struct bp_verdict verdict;

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

static int32_t create(const struct bp_device *on, struct bp_error *err)
{
    return desc->op_create(plugin, &desc->ops[0], on, NULL, 0, &op, err);
}

static void begin(void)
{
    static const struct bp_query q = {.h = BP_HDR(struct bp_query, engine_version),
                                      .host_major = BP_ABI_MAJOR,
                                      .host_minor = BP_ABI_MINOR};
    static const struct bp_host host = {.h = BP_HDR(struct bp_host, parallel_for),
                                        .abi_minor = BP_ABI_MINOR,
                                        .mem_alloc = host_alloc,
                                        .mem_free = host_free};
    struct bp_error err = BP_ERROR_INIT;
    bp_plugin_query_fn query = NULL;
    void *so = dlopen(BP_TEST_PLUGIN, RTLD_NOW | RTLD_LOCAL);
    ck_assert_msg(so != NULL, "%s", dlerror());
    void *entry = dlsym(so, BP_PLUGIN_ENTRY);
    ck_assert_ptr_nonnull(entry);
    memcpy(&query, &entry, sizeof query);
    desc = query(&q);
    ck_assert_ptr_nonnull(desc);
    ck_assert_int_eq(desc->open(&host, &plugin, &err), BP_OK);
    dev.cc_major = 9;
    ck_assert_int_eq(create(&dev, &err), BP_OK);
}

static void end(void)
{
    desc->op_destroy(plugin, &op);
    desc->close(plugin);
}

static struct bp_moe_problem problem(uint32_t number)
{
    return (struct bp_moe_problem){.h = BP_HDR(struct bp_moe_problem, y_dtype),
                                   .op = number,
                                   .max_tok = 512,
                                   .n_embd = 7168,
                                   .n_ff = 2048,
                                   .n_ff_shared = 2048,
                                   .n_expert = 256,
                                   .n_expert_used = 8,
                                   .expert_end = 256,
                                   .n_group = 8,
                                   .n_group_used = 4,
                                   .gating = BP_GATING_SIGMOID,
                                   .group_score = BP_GROUP_TOP2,
                                   .type_gate = BP_GGUF_Q4_K,
                                   .type_up = BP_GGUF_Q4_K,
                                   .type_down = BP_GGUF_Q6_K,
                                   .type_shared_gate = BP_GGUF_Q8_0,
                                   .type_shared_up = BP_GGUF_Q8_0,
                                   .type_shared_down = BP_GGUF_BF16,
                                   .x_dtype = BP_DT_BF16,
                                   .y_dtype = BP_DT_F32};
}

static uint32_t ask(const struct bp_moe_problem *p)
{
    verdict = (struct bp_verdict){.h = BP_HDR(struct bp_verdict, cost_us),
                                  .reasons = reasons,
                                  .cap_reasons = BP_LEN(reasons),
                                  .reason_stride = sizeof reasons[0]};
    memset(reasons, 0, sizeof reasons);
    ck_assert_int_eq(op.vt->supports(op.self, p, &verdict), BP_OK);
    return verdict.level;
}

/* Refused for this field, among others perhaps, and with what was got. */
static void refused(const struct bp_moe_problem *p, uint32_t code, const char *field, int64_t got)
{
    ck_assert_msg(ask(p) == BP_V_NO, "%s = %lld is served", field, (long long)got);
    for (uint32_t i = 0; i < verdict.n_reasons; ++i) {
        if (strcmp(reasons[i].field, field) != 0) continue;
        ck_assert_uint_eq(reasons[i].code, code);
        ck_assert_int_eq(reasons[i].got, got);
        ck_assert_uint_eq(reasons[i].critical, 1);
        ck_assert(reasons[i].text[0] != '\0');
        return;
    }
    ck_abort_msg("no reason names %s", field);
}

START_TEST(serves_large_models)
{
    struct bp_moe_problem p = problem(BP_MOE_OP_ROUTE);
    ck_assert_uint_eq(ask(&p), BP_V_YES);
    ck_assert_uint_eq(verdict.capture, BP_CAPTURE_ANY);
    ck_assert_uint_eq(verdict.determinism, BP_DET_BATCH);
    p = problem(BP_MOE_OP_RUN);
    ck_assert_uint_eq(ask(&p), BP_V_YES);
    ck_assert_uint_eq(verdict.capture, BP_CAPTURE_ANY);
    ck_assert_uint_eq(verdict.determinism, BP_DET_RUN);
    p.type_gate = BP_GGUF_IQ2_XS;
    ck_assert_uint_eq(ask(&p), BP_V_DEGRADED);
    ck_assert_uint_eq(verdict.n_reasons, 1);
    ck_assert_uint_eq(reasons[0].critical, 0);
}
END_TEST

START_TEST(refuses_with_field_and_number)
{
    struct bp_moe_problem p = problem(BP_MOE_OP_RUN);
    p.type_down = BP_GGUF_I32;
    refused(&p, BP_R_QUANT, "type_down", BP_GGUF_I32);
    p = problem(BP_MOE_OP_RUN);
    p.y_dtype = BP_DT_BF16;
    refused(&p, BP_R_DTYPE, "y_dtype", BP_DT_BF16);
    p.x_dtype = BP_DT_I32;
    refused(&p, BP_R_DTYPE, "x_dtype", BP_DT_I32);
    ck_assert_uint_eq(verdict.n_reasons, 2);
    p = problem(BP_MOE_OP_RUN);
    p.expert_begin = 100;
    p.expert_end = 99;
    refused(&p, BP_R_SHAPE, "expert_end", 99);
    p = problem(BP_MOE_OP_RUN);
    p.max_tok = 200000;
    refused(&p, BP_R_SHAPE, "max_tok", 200000);
    p = problem(BP_MOE_OP_RUN);
    p.n_expert = p.expert_end = 5000;
    refused(&p, BP_R_SHAPE, "n_expert", 5000);
    p = problem(BP_MOE_OP_ROUTE);
    p.n_group = 7;
    refused(&p, BP_R_SHAPE, "n_group", 7);
    p = problem(BP_MOE_OP_ROUTE);
    p.n_group_used = 9;
    refused(&p, BP_R_SHAPE, "n_group_used", 9);
    p = problem(BP_MOE_OP_ROUTE);
    p.n_expert_used = 129;
    refused(&p, BP_R_SHAPE, "n_expert_used", 129);
    p = problem(BP_MOE_OP_ROUTE);
    p.gating = 3;
    refused(&p, BP_R_FEATURE, "gating", 3);
    p = problem(7);
    refused(&p, BP_R_FEATURE, "op", 7);
    dev.cc_major = 8;
    p = problem(BP_MOE_OP_RUN);
    refused(&p, BP_R_ARCH, "cc", 80);
}
END_TEST

START_TEST(workspace_bounds_the_largest_call)
{
    struct bp_moe_problem p = problem(BP_MOE_OP_RUN);
    struct bp_workspace ws = {.h = BP_HDR(struct bp_workspace, persistent_zeroed)};
    struct bp_error err = BP_ERROR_INIT;
    ck_assert_int_eq(op.vt->workspace(op.self, &p, &ws, &err), BP_OK);
    /* h of 512 tokens with 8 choices, and results of down. */
    ck_assert_uint_ge(ws.scratch_bytes, UINT64_C(512) * 8 * 2048 * 2);
    ck_assert_uint_le(ws.scratch_bytes, UINT64_C(512) << 20);
    ck_assert_uint_eq(ws.persistent_bytes + ws.plan_bytes + ws.pinned_bytes, 0);
    p.op = BP_MOE_OP_ROUTE;
    ck_assert_int_eq(op.vt->workspace(op.self, &p, &ws, &err), BP_OK);
    ck_assert_uint_eq(ws.scratch_bytes, 0);
    p = problem(BP_MOE_OP_RUN);
    p.n_ff = INT64_MAX / 2;
    p.max_tok = UINT32_MAX;
    ck_assert_int_eq(op.vt->workspace(op.self, &p, &ws, &err), BP_E_LIMIT);
    ck_assert(err.msg[0] != '\0');
}
END_TEST

/* ---- calls that are refused before they reach a device ---- */

static struct bp_tensor tensor(uint32_t dtype, int64_t rows, int64_t cols)
{
    return (struct bp_tensor){.dtype = dtype, .ndim = 2, .dim = {rows, cols}, .stride = {cols, 1}};
}

static void is_told(int32_t rc, struct bp_error *err, const char *word)
{
    ck_assert_int_eq(rc, BP_E_ARG);
    ck_assert_int_eq(err->code, BP_E_ARG);
    ck_assert_msg(strstr(err->msg, word) != NULL, "`%s` does not say `%s`", err->msg, word);
    err->code = BP_OK;
}

START_TEST(route_wants_its_dtypes_and_rows)
{
    const struct bp_moe_ops *vt = (const void *)op.vt;
    const struct bp_launch l = {.h = BP_HDR(struct bp_launch, reserved), .dev = &dev};
    const struct bp_moe_route_args good = {.h = BP_HDR(struct bp_moe_route_args, scale),
                                           .logits = tensor(BP_DT_F32, 0, 16),
                                           .ids = tensor(BP_DT_I32, 0, 4),
                                           .weights = tensor(BP_DT_F32, 0, 4),
                                           .gating = BP_GATING_SOFTMAX,
                                           .scale = 1.0f};
    struct bp_error err = BP_ERROR_INIT;
    ck_assert_int_eq(vt->route(op.self, &l, &good, &err), BP_OK); /* no token: nothing to do */
    struct bp_moe_route_args a = good;
    a.logits.dtype = BP_DT_BF16;
    is_told(vt->route(op.self, &l, &a, &err), &err, "F32");
    a = good;
    a.ids.dtype = BP_DT_F32;
    is_told(vt->route(op.self, &l, &a, &err), &err, "I32");
    a = good;
    a.weights.dim[1] = 3;
    is_told(vt->route(op.self, &l, &a, &err), &err, "row for each token");
    a = good;
    a.ids.dim[0] = 7;
    is_told(vt->route(op.self, &l, &a, &err), &err, "row for each token");
}
END_TEST

START_TEST(run_wants_its_dtypes_and_rows)
{
    static const uint64_t nobody[512]; /* a handle without experts: n_embd is 0 */
    const struct bp_moe_ops *vt = (const void *)op.vt;
    const struct bp_launch l = {.h = BP_HDR(struct bp_launch, reserved), .dev = &dev};
    struct bp_moe_run_args good = {.h = BP_HDR(struct bp_moe_run_args, reserved),
                                   .x = tensor(BP_DT_BF16, 0, 0),
                                   .ids = tensor(BP_DT_I32, 0, 4),
                                   .gates = tensor(BP_DT_F32, 0, 4),
                                   .y = tensor(BP_DT_F32, 0, 0)};
    struct bp_error err = BP_ERROR_INIT;
    is_told(vt->run(op.self, &l, &good, &err), &err, "prepare()");
    good.weights = (void *)(uintptr_t)nobody;
    ck_assert_int_eq(vt->run(op.self, &l, &good, &err), BP_OK);
    struct bp_moe_run_args a = good;
    a.y.dtype = BP_DT_BF16;
    is_told(vt->run(op.self, &l, &a, &err), &err, "y F32");
    a = good;
    a.x.dtype = BP_DT_I32;
    is_told(vt->run(op.self, &l, &a, &err), &err, "float type");
    a = good;
    a.ids.dtype = BP_DT_F32;
    is_told(vt->run(op.self, &l, &a, &err), &err, "ids I32");
    a = good;
    a.gates.dim[1] = 5;
    is_told(vt->run(op.self, &l, &a, &err), &err, "same tokens");
    a = good;
    a.x.dim[0] = a.ids.dim[0] = a.gates.dim[0] = a.y.dim[0] = 65535;
    a.ids.dim[1] = a.gates.dim[1] = 65535;
    is_told(vt->run(op.self, &l, &a, &err), &err, "1073741823");
}
END_TEST

START_TEST(not_on_the_host)
{
    struct bp_op_ref kept = op;
    struct bp_error err = BP_ERROR_INIT;
    const struct bp_device host = {.h = BP_HDR(struct bp_device, name), .kind = BP_DEV_HOST};
    ck_assert_int_eq(create(&host, &err), BP_DECLINED);
    ck_assert_msg(strstr(err.msg, "engine.device = cuda:0") != NULL, "%s", err.msg);
    ck_assert_int_eq(create(NULL, &err), BP_DECLINED);
    op = kept;
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("moe_supports");
    TCase *tc = tcase_create("supports");
    tcase_add_checked_fixture(tc, begin, end);
    tcase_add_test(tc, serves_large_models);
    tcase_add_test(tc, refuses_with_field_and_number);
    tcase_add_test(tc, workspace_bounds_the_largest_call);
    tcase_add_test(tc, route_wants_its_dtypes_and_rows);
    tcase_add_test(tc, run_wants_its_dtypes_and_rows);
    tcase_add_test(tc, not_on_the_host);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
