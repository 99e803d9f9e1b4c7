/* test_ab_device.c - shadow mode between the host and a device whose memory the host cannot touch: every tensor must take the
 * device's copies. Ref computes on all sides - carried to the host, or as "near", which computes where the device's memory
 * lies and can be told to err in one op. SPDX-License-Identifier: MIT */
#include "unit/engine/fake_device.h"
#include <math.h>
#include "backplane/slot_mla.h"
#include "backplane/slot_moe.h"
#include "backplane/slot_quant.h"
#include "base/half.h"

/* ---- near: ref on the device ---- */

/* Which of its ops errs, and in which layer. */
static struct near {
    struct bp_plugin_desc desc;
    const struct bp_plugin_desc *ref;
    const char *iface;
    uint32_t number;
    int32_t layer;
    float scale; /* of the last number that the op writes; 0: it does not err */
    bool dies;   /* instead, it takes the device with it, which the next wait tells */
    int n_calls; /* of that op */
} near;

/* The memory of the device is open while an op of it runs. */
static void open_device(bool open)
{
    const int rights = open ? PROT_READ | PROT_WRITE : PROT_NONE;
    ck_assert_int_eq(mprotect(region, region_used, rights), 0);
}

/* The last number of the first output that is no cache. */
static void err_in(const struct bp_op_base *vt, void *self, uint32_t number, int32_t layer,
                   const void *args)
{
    struct bp_tensor t[16];
    uint32_t n = 16;
    if (near.scale == 0.0f || number != near.number || strcmp(vt->iface, near.iface) != 0) return;
    if (layer != near.layer) return;
    ++near.n_calls;
    if (near.dies) {
        dev_lost = true;
        return;
    }
    ck_assert_int_eq(vt->tensors(self, number, args, t, &n), BP_OK);
    for (uint32_t i = 0; i < n; ++i) {
        if ((t[i].access & BP_OUT) == 0 || t[i].layout_id != 0 || t[i].dtype == BP_DT_I32) continue;
        int64_t at = 0;
        for (uint32_t d = 0; d < t[i].ndim; ++d) at += (t[i].dim[d] - 1) * t[i].stride[d];
        if (t[i].dtype == BP_DT_F32) {
            ((float *)t[i].data)[at] *= near.scale;
        } else {
            uint16_t *h = (uint16_t *)t[i].data + at;
            *h = bpi_f32_to_bf16(bpi_bf16_to_f32(*h) * near.scale);
        }
        return;
    }
}

/* Tables of ref with every op of a step opened. T: the interface's table, TAG: of its copies. */
#define OPENED(TAG, slot, A, number)                                                               \
    static int32_t TAG##_##slot(void *self, const struct bp_launch *l, const struct A *a,          \
                                struct bp_error *err)                                              \
    {                                                                                              \
        open_device(true);                                                                         \
        int32_t rc = TAG##_ref.slot(self, l, a, err);                                              \
        if (rc == BP_OK) err_in(&TAG##_ref.base, self, number, l->layer, a);                       \
        open_device(false);                                                                        \
        return rc;                                                                                 \
    }
#define TABLE(TAG, T) static struct T TAG##_ops, TAG##_ref;

TABLE(dense, bp_dense_ops)
OPENED(dense, embed, bp_dense_embed_args, BP_DENSE_OP_EMBED)
OPENED(dense, rms, bp_dense_rms_args, BP_DENSE_OP_RMS)
OPENED(dense, rope, bp_dense_rope_args, BP_DENSE_OP_ROPE)
OPENED(dense, silu_mul, bp_dense_pair_args, BP_DENSE_OP_SILU_MUL)
OPENED(dense, add, bp_dense_pair_args, BP_DENSE_OP_ADD)
TABLE(quant, bp_quant_ops)
OPENED(quant, matmul, bp_quant_matmul_args, BP_QUANT_OP_MATMUL)
TABLE(common, bp_mla_common_ops)
OPENED(common, cache_write, bp_mla_cache_write_args, BP_MLA_OP_CACHE_WRITE)
OPENED(common, cache_gather, bp_mla_cache_gather_args, BP_MLA_OP_CACHE_GATHER)
OPENED(common, expand, bp_mla_expand_args, BP_MLA_OP_EXPAND)
OPENED(common, absorb, bp_mla_absorb_args, BP_MLA_OP_ABSORB)
OPENED(common, merge, bp_mla_merge_args, BP_MLA_OP_MERGE)
TABLE(prefill, bp_mla_prefill_ops)
OPENED(prefill, run, bp_mla_prefill_args, BP_MLA_PREFILL_OP_RUN)
OPENED(prefill, run_context, bp_mla_prefill_args, BP_MLA_PREFILL_OP_RUN_CONTEXT)
TABLE(decode, bp_mla_decode_ops)
OPENED(decode, run, bp_mla_decode_args, BP_MLA_DECODE_OP_RUN)
TABLE(index, bp_mla_index_ops)
OPENED(index, key_write, bp_mla_key_write_args, BP_MLA_INDEX_OP_KEY_WRITE)
OPENED(index, select, bp_mla_select_args, BP_MLA_INDEX_OP_SELECT)
TABLE(moe, bp_moe_ops)
OPENED(moe, route, bp_moe_route_args, BP_MOE_OP_ROUTE)
OPENED(moe, run, bp_moe_run_args, BP_MOE_OP_RUN)

static int32_t plan_prefill(void *self, const struct bp_launch *l,
                            const struct bp_mla_prefill_meta *m, struct bp_error *err)
{
    open_device(true);
    int32_t rc = prefill_ref.plan(self, l, m, err);
    open_device(false);
    return rc;
}
static int32_t plan_decode(void *self, const struct bp_launch *l,
                           const struct bp_mla_decode_meta *m, struct bp_error *err)
{
    open_device(true);
    int32_t rc = decode_ref.plan(self, l, m, err);
    open_device(false);
    return rc;
}

static int32_t near_create(void *plugin, const struct bp_op_entry *entry,
                           const struct bp_device *dev, const struct bp_op_ref *inner,
                           uint32_t n_inner, struct bp_op_ref *out, struct bp_error *err)
{
    if (dev != NULL && dev->kind != BP_DEV_CUDA) return BP_DECLINED;
    BP_TRY(near.ref->op_create(plugin, entry, NULL, inner, n_inner, out, err));
    const void *vt = out->vt;
#define TAKE(TAG, T)                                                                               \
    if (strcmp(entry->iface, TAG##_iface) == 0) {                                                  \
        if (TAG##_ref.base.iface == NULL) TAG##_ops = TAG##_ref = *(const struct T *)vt;           \
        out->vt = &TAG##_ops.base;                                                                 \
    }
    static const char dense_iface[] = "bp.dense", quant_iface[] = "bp.quant",
                      common_iface[] = "bp.mla.common", prefill_iface[] = "bp.mla.prefill",
                      decode_iface[] = "bp.mla.decode", index_iface[] = "bp.mla.index",
                      moe_iface[] = "bp.moe";
    TAKE(dense, bp_dense_ops)
    TAKE(quant, bp_quant_ops)
    TAKE(common, bp_mla_common_ops)
    TAKE(prefill, bp_mla_prefill_ops)
    TAKE(decode, bp_mla_decode_ops)
    TAKE(index, bp_mla_index_ops)
    TAKE(moe, bp_moe_ops)
    dense_ops.embed = dense_embed, dense_ops.rms = dense_rms, dense_ops.rope = dense_rope;
    dense_ops.silu_mul = dense_silu_mul, dense_ops.add = dense_add;
    quant_ops.matmul = quant_matmul;
    common_ops.cache_write = common_cache_write, common_ops.cache_gather = common_cache_gather;
    common_ops.expand = common_expand, common_ops.absorb = common_absorb;
    common_ops.merge = common_merge;
    prefill_ops.run = prefill_run, prefill_ops.run_context = prefill_run_context;
    prefill_ops.plan = plan_prefill, decode_ops.plan = plan_decode, decode_ops.run = decode_run;
    index_ops.key_write = index_key_write, index_ops.select = index_select;
    moe_ops.route = moe_route, moe_ops.run = moe_run;
    return BP_OK;
}

static const struct bp_plugin_desc *near_query(const struct bp_query *q)
{
    near.ref = bp_reference_query()(q);
    if (near.ref == NULL) return NULL;
    near.desc = *near.ref;
    near.desc.name = "near";
    near.desc.op_create = near_create;
    return &near.desc;
}

/* ---- comparisons ---- */

#define BOTH "engine.ctx=96", "engine.threads=1"
#define ON_DEVICE BOTH, "engine.device=cuda:0"
#define NEAR                                                                                       \
    "slots.dense=near", "slots.quant=near", "slots.mla.common=near", "slots.mla.prefill=near",     \
        "slots.mla.decode=near", "slots.mla.index=near", "slots.moe=near"
static const char *const host[] = {BOTH, "engine.device=cpu", NULL};
static const char *const device[] = {ON_DEVICE, "engine.act=f32", NULL}; /* ref, carried */
static const char *const device_f32[] = {ON_DEVICE, "engine.act=f32", "kv.dtype=f32", NULL};
static const char *const computing[] = {ON_DEVICE, NEAR, NULL};
static const char *const computing_f32[] = {ON_DEVICE, NEAR, "engine.act=f32", NULL};
static const char *const computing_f16[] = {ON_DEVICE, NEAR, "kv.dtype=f16", NULL};

struct duel {
    struct bp_config *cfg[2];
    struct bp_model *m;
    struct bp_ab *ab;
    struct bp_ab_summary sum;
    struct bp_error err;
    int32_t rc;
};

static struct bp_config *config(const char *const *set)
{
    struct bp_error err = BP_ERROR_INIT;
    struct bp_config *c = NULL;
    must(plain_config(&c, &err), &err);
    must(bp_config_add_plugin(c, dev_query, &err), &err);
    must(bp_config_add_plugin(c, near_query, &err), &err);
    for (size_t i = 0; set[i] != NULL; ++i) must(bp_config_set(c, set[i], &err), &err);
    return c;
}

static struct duel run(const char *path, uint32_t mode, const char *const *a, const char *const *b)
{
    struct bp_error err = BP_ERROR_INIT;
    struct duel d = {.cfg = {config(a), config(b)}, .err = BP_ERROR_INIT};
    int32_t ids[32];
    for (int i = 0; i < 32; ++i) ids[i] = (i * 37 + 11) % 250 + 1;
    must(bp_model_open(path, d.cfg[0], NULL, &d.m, &err), &err);
    struct bp_ab_params p = {.h = BP_HDR(struct bp_ab_params, cb),
                             .ids = ids,
                             .n_ids = 32,
                             .n_new = 2,
                             .mode = mode,
                             .max_kl = NAN,
                             .max_abs = NAN};
    p.a = (struct bp_ab_side){
        .h = BP_HDR(struct bp_ab_side, batch), .model = d.m, .config = d.cfg[0]};
    p.b = (struct bp_ab_side){
        .h = BP_HDR(struct bp_ab_side, batch), .model = d.m, .config = d.cfg[1]};
    d.rc = bp_ab_run(&p, &d.ab, &d.err);
    return d;
}

static struct duel duel(const char *path, uint32_t mode, const char *const *a, const char *const *b)
{
    struct duel d = run(path, mode, a, b);
    must(d.rc, &d.err);
    d.sum = (struct bp_ab_summary){.h = BP_HDR(struct bp_ab_summary, compare_bytes)};
    bp_ab_summary(d.ab, &d.sum);
    ck_assert_uint_eq(d.sum.n_pos, 34);
    return d;
}

static void end(struct duel *d)
{
    bp_ab_close(d->ab);
    bp_model_close(d->m);
    bp_config_destroy(d->cfg[0]);
    bp_config_destroy(d->cfg[1]);
}

static void compare(const char *path, const char *const *a, const char *const *b, bool equal)
{
    struct duel d = duel(path, BP_AB_SHADOW, a, b);
    ck_assert_msg(d.sum.pass, "%s", d.sum.text);
    ck_assert_int_eq(d.sum.first == -1, equal);
    struct bp_ab_op op = {.h = BP_HDR(struct bp_ab_op, flops)};
    for (uint32_t i = 0; bp_ab_op(d.ab, i, &op) == BP_OK; ++i) {
        ck_assert_msg(op.max_abs == 0 || (!equal && strncmp(op.slot, "mla.", 4) == 0),
                      "%s.%s %s: %g", op.slot, op.op, op.tap, op.max_abs);
        ck_assert_msg(op.n_rows > 0, "%s %s was not compared", op.op, op.tap);
        ck_assert(op.time_a.n == op.calls && op.time_b.n == op.calls);
    }
    end(&d);
}

static const char *const zoo[] = {ZOO("zoo-v2lite"), ZOO("zoo-glm5"), ZOO("zoo-v3")};

START_TEST(either_side_or_both)
{
    compare(zoo[_i], host, device, true);
    compare(zoo[_i], device, host, true);
    compare(zoo[_i], device, device, true);
    ck_assert_int_gt(n_copies, 0);
}
END_TEST

/* B takes the dtype of activations from A: bf16 where A computes on the device by itself. */
START_TEST(what_computes_on_the_device)
{
    compare(zoo[_i], computing, host, true);
    compare(zoo[_i], computing, computing, true);
    compare(zoo[_i], host, computing, true);
    compare(zoo[_i], computing_f32, host, true);
    struct duel d = duel(zoo[_i], BP_AB_SHADOW, computing, host);
    ck_assert_str_eq(d.sum.precision, "bf16");
    end(&d);
}
END_TEST

START_TEST(caches_are_converted_on_the_way)
{
    compare(zoo[_i], host, device_f32, false);
    compare(zoo[_i], device_f32, host, false);
    compare(zoo[_i], computing_f16, host, false);
}
END_TEST

START_TEST(two_whole_runs)
{
    struct duel d = duel(zoo[_i], BP_AB_FREE, computing_f32, host);
    ck_assert_msg(d.sum.pass && d.sum.first == -1, "%s", d.sum.text);
    end(&d);
    d = duel(zoo[_i], BP_AB_FREE, computing, host); /* bf16 and f32 */
    ck_assert_msg(d.sum.pass && d.sum.first >= 0, "%s", d.sum.text);
    ck_assert_str_eq(d.sum.precision, "bf16");
    end(&d);
}
END_TEST

static const struct fault {
    const char *iface;
    uint32_t number;
    int32_t layer;
    const char *op;
} faults[] = {
    {"bp.dense", BP_DENSE_OP_EMBED, -1, "embed"},
    {"bp.dense", BP_DENSE_OP_RMS, 1, "rms"},
    {"bp.dense", BP_DENSE_OP_ROPE, 1, "rope"},
    {"bp.quant", BP_QUANT_OP_MATMUL, 0, "matmul"},
    {"bp.mla.common", BP_MLA_OP_CACHE_GATHER, 1, "cache_gather"},
    {"bp.mla.common", BP_MLA_OP_EXPAND, 1, "expand"},
    {"bp.mla.common", BP_MLA_OP_ABSORB, 2, "absorb"},
    {"bp.mla.prefill", BP_MLA_PREFILL_OP_RUN, 1, "run"},
    {"bp.mla.decode", BP_MLA_DECODE_OP_RUN, 1, "run"},
    {"bp.moe", BP_MOE_OP_ROUTE, 2, "route"},
    {"bp.moe", BP_MOE_OP_RUN, 2, "run"},
};

START_TEST(a_faulty_op_on_the_device_is_named)
{
    const struct fault *f = &faults[_i];
    near.iface = f->iface;
    near.number = f->number;
    near.layer = f->layer;
    near.scale = 1.5f;
    for (int turn = 0; turn < 2; ++turn) {
        /* On A it computes in bf16; as B in A's dtype, which is f32 on the host. */
        const bool on_a = turn == 0;
        near.n_calls = 0;
        struct duel d =
            duel(ZOO("zoo-glm5"), BP_AB_SHADOW, on_a ? computing : host, on_a ? host : computing);
        ck_assert_int_gt(near.n_calls, 0);
        ck_assert_msg(!d.sum.pass && d.sum.n_fail > 0, "%s", d.sum.text);
        struct bp_ab_op op = {.h = BP_HDR(struct bp_ab_op, flops)};
        for (uint32_t i = 0; bp_ab_op(d.ab, i, &op) == BP_OK; ++i) {
            const bool guilty = op.layer == f->layer && strcmp(op.slot, f->iface + 3) == 0 &&
                                strcmp(op.op, f->op) == 0;
            ck_assert_msg(guilty || (op.status == BP_AB_OK && op.max_abs == 0),
                          "%s.%s of layer %d: %g %s", op.slot, op.op, op.layer, op.max_abs,
                          op.text);
            if (op.status != BP_AB_FAIL) continue;
            ck_assert_msg(strstr(op.text, on_a ? "of A (near)" : "of B (near)") != NULL, "%s",
                          op.text);
        }
        end(&d);
    }
}
END_TEST

/* A device tells of a failure when it is waited for; as each call is waited for, the op is still known. */
START_TEST(an_op_that_loses_the_device_is_named)
{
    near.iface = "bp.moe";
    near.number = BP_MOE_OP_RUN;
    near.layer = 2;
    near.scale = 1.0f;
    near.dies = true;
    const bool on_a = _i == 0;
    struct duel d =
        run(ZOO("zoo-glm5"), BP_AB_SHADOW, on_a ? computing : host, on_a ? host : computing);
    ck_assert_int_eq(d.rc, BP_E_DEVICE_LOST);
    ck_assert_msg(strstr(d.err.msg, "slot moe, layer 2, provider near, run: ") != NULL &&
                      strstr(d.err.msg, on_a ? "side A" : "side B") != NULL &&
                      strstr(d.err.msg, "the device is gone") != NULL,
                  "%s", d.err.msg);
    end(&d);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ab_device");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 300);
    tcase_add_loop_test(t, either_side_or_both, 0, 3);
    tcase_add_loop_test(t, what_computes_on_the_device, 0, 3);
    tcase_add_loop_test(t, caches_are_converted_on_the_way, 0, 3);
    tcase_add_loop_test(t, two_whole_runs, 0, 3);
    tcase_add_loop_test(t, a_faulty_op_on_the_device_is_named, 0,
                        (int)(sizeof faults / sizeof *faults));
    tcase_add_loop_test(t, an_op_that_loses_the_device_is_named, 0, 2);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
