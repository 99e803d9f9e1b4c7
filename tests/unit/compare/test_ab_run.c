/* test_ab_run.c - whole comparisons on models of the zoo, with a provider that is ref but for what a test tells it.
 * SPDX-License-Identifier: MIT */
#include "unit/engine/engine_fixture.h"
#include "backplane/slot_mla.h"
#include "backplane/slot_moe.h"
#include "backplane/slot_quant.h"
#include "backplane/tools.h"
#include <math.h>

enum { N_IDS = 24, MAX_LOGITS = 1 << 14 };

/* What "tilt" makes of the last key that ref selects. */
enum last_key { KEEP, BEHIND, TWICE, SWAP };

/* "tilt": ref, with router logits that are tied on request, a router that leans to later experts, and an index that
 * selects wrong keys. */
static struct tilt {
    struct bp_plugin_desc desc;
    const struct bp_plugin_desc *ref;
    struct bp_moe_ops moe, ref_moe;
    struct bp_quant_ops quant, ref_quant;
    struct bp_mla_index_ops index, ref_index;
    struct bp_mla_common_ops common, ref_common;
    float nudge; /* factor of what is rotated and cached */
    enum last_key last;
    float lean;       /* added to a logit for each expert before it */
    bool tie;         /* every expert gets almost the same logit */
    int64_t n_expert; /* rows of the router */
    float scale;      /* of what the product writes in layer 1 */
    float logits[MAX_LOGITS];
} tilt;

static int32_t route(void *self, const struct bp_launch *l, const struct bp_moe_route_args *a,
                     struct bp_error *err)
{
    struct bp_moe_route_args other = *a;
    const int64_t n = a->logits.dim[0], w = a->logits.dim[1];
    ck_assert_int_le(n * w, MAX_LOGITS);
    for (int64_t r = 0; r < n; ++r) {
        for (int64_t e = 0; e < w; ++e)
            tilt.logits[r * w + e] =
                ((const float *)a->logits.data)[r * a->logits.stride[0] + e] + tilt.lean * (float)e;
    }
    other.logits.data = tilt.logits;
    other.logits.stride[0] = w;
    return tilt.ref_moe.route(self, l, &other, err);
}

static int32_t matmul(void *self, const struct bp_launch *l, const struct bp_quant_matmul_args *a,
                      struct bp_error *err)
{
    int32_t rc = tilt.ref_quant.matmul(self, l, a, err);
    const struct bp_tensor *y = &a->outs[0].y;
    float *v = y->data;
    for (int64_t i = 0;
         rc == BP_OK && tilt.tie && y->dim[1] == tilt.n_expert && i < y->dim[0] * y->dim[1]; ++i)
        v[i] = 1.0f + 1e-7f * (float)(i % 2);
    if (tilt.scale != 0.0f && l->layer == 1) v[y->dim[1] - 1] *= tilt.scale;
    return rc;
}

/* Its last key becomes the one behind the row's own token, or the last but one again, or changes places with that. */
static int32_t select_keys(void *self, const struct bp_launch *l,
                           const struct bp_mla_select_args *a, struct bp_error *err)
{
    int32_t rc = tilt.ref_index.select(self, l, a, err);
    const struct bp_mla_meta *m = a->meta->common;
    for (int64_t r = 0; rc == BP_OK && r < a->meta->n_row; ++r) {
        int32_t *last = (int32_t *)a->idx.data + r * a->idx.stride[0] + a->top_k - 1;
        const int32_t one = last[0];
        if (((const int32_t *)a->idx_len.data)[r] < 0) continue;
        if (tilt.last == TWICE || tilt.last == SWAP) last[0] = last[-1];
        if (tilt.last == SWAP) last[-1] = one;
        for (uint32_t t = 0; tilt.last == BEHIND && t < m->n_tok; ++t) {
            if (m->positions_host[t] == a->meta->row_kv_len_host[r]) last[0] = m->slot_map_host[t];
        }
    }
    return rc;
}

static int32_t cache_write(void *self, const struct bp_launch *l,
                           const struct bp_mla_cache_write_args *a, struct bp_error *err)
{
    struct bp_mla_cache_write_args other = *a;
    const int64_t n = a->kv.dim[0], w = a->kv.dim[1];
    if (tilt.nudge == 0.0f) return tilt.ref_common.cache_write(self, l, a, err);
    ck_assert_int_le(n * w, MAX_LOGITS);
    for (int64_t r = 0; r < n; ++r) {
        for (int64_t i = 0; i < w; ++i)
            tilt.logits[r * w + i] =
                ((const float *)a->kv.data)[r * a->kv.stride[0] + i] * tilt.nudge;
    }
    other.kv.data = tilt.logits;
    other.kv.stride[0] = w;
    return tilt.ref_common.cache_write(self, l, &other, err);
}

static int32_t op_create(void *plugin, const struct bp_op_entry *entry, const struct bp_device *dev,
                         const struct bp_op_ref *inner, uint32_t n_inner, struct bp_op_ref *out,
                         struct bp_error *err)
{
    BP_TRY(tilt.ref->op_create(plugin, entry, dev, inner, n_inner, out, err));
    if (strcmp(entry->iface, "bp.moe") == 0) {
        tilt.moe = tilt.ref_moe = *(const struct bp_moe_ops *)(const void *)out->vt;
        tilt.moe.route = route;
        out->vt = &tilt.moe.base;
    }
    if (strcmp(entry->iface, "bp.mla.index") == 0) {
        tilt.index = tilt.ref_index = *(const struct bp_mla_index_ops *)(const void *)out->vt;
        tilt.index.select = select_keys;
        out->vt = &tilt.index.base;
    }
    if (strcmp(entry->iface, "bp.mla.common") == 0) {
        tilt.common = tilt.ref_common = *(const struct bp_mla_common_ops *)(const void *)out->vt;
        tilt.common.cache_write = cache_write;
        out->vt = &tilt.common.base;
    }
    if (strcmp(entry->iface, "bp.quant") == 0) {
        tilt.quant = tilt.ref_quant = *(const struct bp_quant_ops *)(const void *)out->vt;
        tilt.quant.matmul = matmul;
        out->vt = &tilt.quant.base;
    }
    return BP_OK;
}

static const struct bp_plugin_desc *query(const struct bp_query *q)
{
    tilt.ref = bp_reference_query()(q);
    if (tilt.ref == NULL) return NULL;
    tilt.desc = *tilt.ref;
    tilt.desc.name = "tilt";
    tilt.desc.op_create = op_create;
    return &tilt.desc;
}

/* ---- a comparison ---- */

struct duel {
    struct bp_config *cfg[2];
    struct bp_model *model;
    struct bp_ab *ab;
    struct bp_ab_summary sum;
    struct bp_error err;
    int32_t rc;
};

static uint32_t baseline; /* of duels: enum bp_ab_baseline */

static struct duel duel(const char *path, uint32_t mode, const char *const *a, const char *const *b,
                        uint32_t n_new)
{
    struct duel d = {.err = BP_ERROR_INIT};
    int32_t ids[N_IDS];
    for (int i = 0; i < N_IDS; ++i) ids[i] = (i * 37 + 11) % 250 + 1;
    for (int side = 0; side < 2; ++side) {
        const char *const *set = side == 0 ? a : b;
        must(plain_config(&d.cfg[side], &d.err), &d.err);
        must(bp_config_add_plugin(d.cfg[side], query, &d.err), &d.err);
        must(bp_config_set(d.cfg[side], "engine.ctx=128", &d.err), &d.err);
        must(bp_config_set(d.cfg[side], "engine.threads=1", &d.err), &d.err);
        for (size_t i = 0; set[i] != NULL; ++i)
            must(bp_config_set(d.cfg[side], set[i], &d.err), &d.err);
    }
    must(bp_model_open(path, d.cfg[0], NULL, &d.model, &d.err), &d.err);
    struct bp_ab_params p = {.h = BP_HDR(struct bp_ab_params, cb),
                             .ids = ids,
                             .n_ids = N_IDS,
                             .n_new = n_new,
                             .mode = mode,
                             .baseline = baseline,
                             .max_kl = NAN,
                             .max_abs = NAN};
    p.a = (struct bp_ab_side){
        .h = BP_HDR(struct bp_ab_side, batch), .model = d.model, .config = d.cfg[0]};
    p.b = (struct bp_ab_side){
        .h = BP_HDR(struct bp_ab_side, batch), .model = d.model, .config = d.cfg[1]};
    d.rc = bp_ab_run(&p, &d.ab, &d.err);
    if (d.rc != BP_OK) return d;
    d.sum = (struct bp_ab_summary){.h = BP_HDR(struct bp_ab_summary, compare_bytes)};
    bp_ab_summary(d.ab, &d.sum);
    return d;
}

static void end(struct duel *d)
{
    bp_ab_close(d->ab);
    bp_model_close(d->model);
    bp_config_destroy(d->cfg[0]);
    bp_config_destroy(d->cfg[1]);
}

static struct bp_ab_op op_at(const struct duel *d, uint32_t i)
{
    struct bp_ab_op op = {.h = BP_HDR(struct bp_ab_op, flops)};
    ck_assert_int_eq(bp_ab_op(d->ab, i, &op), BP_OK);
    return op;
}

static const char *const ref[] = {"slots.moe=ref", "slots.quant=ref", NULL};
static const char *const moe_tilt[] = {"slots.moe=tilt", "slots.quant=ref", NULL};
static const char *const quant_tilt[] = {"slots.moe=ref", "slots.quant=tilt", NULL};
static const char *const index_tilt[] = {"slots.mla.index=tilt", NULL};
static const char *const both_tilt[] = {"slots.moe=tilt", "slots.quant=tilt", NULL};

START_TEST(ref_is_ref)
{
    for (uint32_t mode = BP_AB_SHADOW; mode <= BP_AB_FREE; ++mode) {
        struct duel d = duel(ZOO("zoo-glm5"), mode, ref, ref, 3);
        must(d.rc, &d.err);
        ck_assert(d.sum.pass && d.sum.first == -1 && d.sum.first_token == -1);
        ck_assert_uint_eq(d.sum.n_pos, N_IDS + 3);
        ck_assert(d.sum.max_abs == 0 && d.sum.kl == 0 && d.sum.kl_ba == 0 &&
                  d.sum.topk_overlap == 1);
        ck_assert_uint_gt(d.sum.n_ops, 20);
        for (uint32_t i = 0; i < d.sum.n_ops; ++i) {
            const struct bp_ab_op op = op_at(&d, i);
            ck_assert_msg(op.max_abs == 0 && op.norm_rel == 0 && op.n_flips == 0, "%s", op.tap);
            ck_assert_msg(op.n_rows > 0, "%s %s was not compared", op.op, op.tap);
            if (mode == BP_AB_SHADOW) ck_assert(op.time_a.n == op.calls && op.time_b.n == op.calls);
        }
        end(&d);
    }
}
END_TEST

/* The same faulty product on both sides agrees with itself; against ref it is found in the layer that has it. */
START_TEST(an_error_is_charged_to_its_op)
{
    tilt.scale = 1.01f;
    struct duel d = duel(ZOO("zoo-v2lite"), BP_AB_SHADOW, ref, quant_tilt, 0);
    must(d.rc, &d.err);
    ck_assert(!d.sum.pass && d.sum.n_fail > 0);
    for (uint32_t i = 0; i < d.sum.n_ops; ++i) {
        const struct bp_ab_op op = op_at(&d, i);
        ck_assert_msg((op.status == BP_AB_FAIL) == (op.layer == 1 && strcmp(op.slot, "quant") == 0),
                      "%s.%s of layer %d: %s", op.slot, op.op, op.layer, op.text);
    }
    const struct bp_ab_op first = op_at(&d, (uint32_t)d.sum.first);
    ck_assert_str_eq(first.provider_b, "tilt");
    ck_assert_ptr_nonnull(strstr(first.text, "of B (tilt)"));
    end(&d);
    /* The other way round it is A's. */
    d = duel(ZOO("zoo-v2lite"), BP_AB_SHADOW, quant_tilt, ref, 0);
    must(d.rc, &d.err);
    ck_assert(!d.sum.pass);
    ck_assert_ptr_nonnull(strstr(d.sum.first_text, "of A (tilt)"));
    end(&d);
    tilt.scale = 8.0f; /* whole runs are judged by what rounding does to whole runs */
    d = duel(ZOO("zoo-v2lite"), BP_AB_FREE, ref, quant_tilt, 0);
    must(d.rc, &d.err);
    ck_assert(!d.sum.pass && d.sum.made_here == 1);
    ck_assert_int_eq(op_at(&d, (uint32_t)d.sum.first).layer, 1);
    for (uint32_t i = (uint32_t)d.sum.first + 1; i < d.sum.n_ops; ++i) {
        const struct bp_ab_op op = op_at(&d, i);
        ck_assert_msg(op.status != BP_AB_FAIL || op.made_here == 0, "%s is inherited", op.tap);
    }
    end(&d);
}
END_TEST

/* Experts that are tied but for rounding may be chosen either way; that is told and fails nothing. */
START_TEST(a_narrow_flip_does_not_fail)
{
    tilt.tie = true;
    tilt.n_expert = 16;
    tilt.lean = 2e-7f;
    const char *const tied[] = {"slots.moe=ref", "slots.quant=tilt", NULL};
    struct duel d = duel(ZOO("zoo-v2-group"), BP_AB_SHADOW, tied, both_tilt, 0);
    must(d.rc, &d.err);
    ck_assert_msg(d.sum.pass, "%s", d.sum.text);
    ck_assert_uint_gt(d.sum.n_flip, 0);
    const struct bp_ab_op first = op_at(&d, (uint32_t)d.sum.first);
    ck_assert_str_eq(first.op, "route");
    ck_assert_uint_eq(first.status, BP_AB_FLIP);
    ck_assert(first.n_flips > 0 && first.n_wide == 0 && first.flips[0].gap < 1e-6);
    ck_assert_int_ne(first.flips[0].a, first.flips[0].b);
    end(&d);
}
END_TEST

START_TEST(a_wide_flip_fails)
{
    tilt.lean = 0.5f;
    for (uint32_t mode = BP_AB_SHADOW; mode <= BP_AB_FREE; ++mode) {
        struct duel d = duel(ZOO("zoo-v2-group"), mode, ref, moe_tilt, 0);
        must(d.rc, &d.err);
        ck_assert(!d.sum.pass);
        const struct bp_ab_op first = op_at(&d, (uint32_t)d.sum.first);
        ck_assert_str_eq(first.op, "route");
        ck_assert(first.status == BP_AB_FAIL && first.n_wide > 0);
        end(&d);
    }
}
END_TEST

/* An index that is wrong is found on either side. A key behind the row's own token has no score there: the gap is not
 * known, and nothing is read beyond the scores. */
static void find_wrong_keys(enum last_key last)
{
    tilt.last = last;
    for (uint32_t i = 0; i < 4; ++i) {
        const bool on_a = i % 2 == 0;
        const uint32_t mode = i < 2 ? BP_AB_FREE : BP_AB_SHADOW;
        struct duel d =
            duel(ZOO("zoo-glm5"), mode, on_a ? index_tilt : ref, on_a ? ref : index_tilt, 0);
        must(d.rc, &d.err);
        ck_assert_msg(!d.sum.pass, "mode %u, on %c: %s", mode, on_a ? 'A' : 'B', d.sum.text);
        const struct bp_ab_op first = op_at(&d, (uint32_t)d.sum.first);
        ck_assert_str_eq(first.op, "select");
        ck_assert_uint_eq(first.status, BP_AB_FAIL);
        ck_assert(first.n_wide > 0 && first.n_flips_kept > 0);
        for (uint64_t f = 0; f < first.n_flips_kept; ++f) {
            const int32_t wrong = on_a ? first.flips[f].a : first.flips[f].b;
            ck_assert_int_eq(wrong, last == BEHIND ? (int32_t)first.flips[f].pos + 1 : -1);
            ck_assert_msg(isnan(first.flips[f].gap) && first.flips[f].wide,
                          "mode %u, on %c: position %u, key %d: gap %g", mode, on_a ? 'A' : 'B',
                          first.flips[f].pos, wrong, first.flips[f].gap);
        }
        end(&d);
    }
}

START_TEST(a_key_behind_its_row_is_found)
{
    find_wrong_keys(BEHIND);
}
END_TEST

START_TEST(a_key_that_comes_twice_is_found)
{
    find_wrong_keys(TWICE);
}
END_TEST

/* Their order is for the kit to check; what is behind them can be compared all the same. */
START_TEST(keys_in_another_order_hide_nothing)
{
    tilt.last = SWAP;
    for (uint32_t mode = BP_AB_SHADOW; mode <= BP_AB_FREE; ++mode) {
        struct duel d = duel(ZOO("zoo-glm5"), mode, index_tilt, ref, 0);
        must(d.rc, &d.err);
        for (uint32_t i = 0; i < d.sum.n_ops; ++i) {
            const struct bp_ab_op op = op_at(&d, i);
            ck_assert_msg(op.n_flips == 0 && op.n_skipped == 0, "%s", op.tap);
        }
        end(&d);
    }
}
END_TEST

START_TEST(a_16_bit_cache_is_judged_by_its_precision)
{
    static const char *const f32[] = {"kv.dtype=f32", NULL}, *const bf16[] = {"kv.dtype=bf16",
                                                                              NULL};
    struct duel d = duel(ZOO("zoo-v2lite"), BP_AB_SHADOW, f32, bf16, 2);
    must(d.rc, &d.err);
    ck_assert_msg(d.sum.pass, "%s", d.sum.text);
    ck_assert_str_eq(d.sum.precision, "bf16");
    const struct bp_ab_op first = op_at(&d, (uint32_t)d.sum.first);
    ck_assert_str_eq(first.op, "cache_write");
    ck_assert(first.norm_rel > 0x1p-11 && first.norm_rel < 0x1p-8);
    ck_assert_double_eq(first.norm_rel, first.baseline_norm_rel);
    end(&d);
}
END_TEST

/* What f32 sums may do moves a number of a 16-bit cache by a place now and then, and no other precision need be named. */
START_TEST(a_last_place_of_the_cache_is_no_fault)
{
    static const char *const f16[] = {"kv.dtype=f16", "slots.mla.common=ref", NULL};
    static const char *const tilted[] = {"kv.dtype=f16", "slots.mla.common=tilt", NULL};
    tilt.nudge = 1.0f + 0x1p-20f;
    baseline = BP_AB_BASE_NONE;
    struct duel d = duel(ZOO("zoo-v2lite"), BP_AB_SHADOW, f16, tilted, 2);
    must(d.rc, &d.err);
    ck_assert_msg(d.sum.pass && d.sum.first >= 0, "%s", d.sum.text);
    ck_assert_str_eq(op_at(&d, (uint32_t)d.sum.first).op, "cache_write");
    end(&d);
    tilt.nudge = 1.0f + 0x1p-8f; /* several places */
    d = duel(ZOO("zoo-v2lite"), BP_AB_SHADOW, f16, tilted, 2);
    must(d.rc, &d.err);
    const struct bp_ab_op first = op_at(&d, (uint32_t)d.sum.first);
    ck_assert(!d.sum.pass && first.status == BP_AB_FAIL);
    ck_assert_str_eq(first.op, "cache_write");
    end(&d);
}
END_TEST

/* The same code in the same layout: one handle for both. Another layout: a layer at a time, whatever the forms of its steps. */
START_TEST(weights_of_b_are_lent_or_come_and_go)
{
    static const char *const bf16[] = {"plugin.ref.round=bf16", NULL};
    struct duel d = duel(ZOO("zoo-v2lite"), BP_AB_SHADOW, ref, ref, 2);
    must(d.rc, &d.err);
    const uint64_t all = d.sum.memory_a.weights;
    ck_assert_uint_gt(all, 500000);
    ck_assert_uint_lt(d.sum.memory_b.weights, all / 20);
    ck_assert_uint_eq(d.sum.compare_bytes < all, 1); /* nobody was asked */
    end(&d);
    d = duel(ZOO("zoo-v2lite"), BP_AB_SHADOW, ref, bf16, 2);
    must(d.rc, &d.err);
    ck_assert_msg(d.sum.pass, "%s", d.sum.text);
    ck_assert_uint_gt(d.sum.memory_b.weights, all / 30); /* of 27 layers, and what is outside */
    ck_assert_uint_lt(d.sum.memory_b.weights, all / 20);
    end(&d);
}
END_TEST

START_TEST(what_cannot_be_compared_is_refused)
{
    static const char *const small[] = {"engine.ctx=64", NULL};
    struct duel d = duel(ZOO("zoo-v2lite"), BP_AB_SHADOW, ref, small, 0);
    ck_assert_int_eq(d.rc, BP_E_ARG);
    ck_assert_ptr_nonnull(strstr(d.err.msg, "engine.ctx"));
    ck_assert_ptr_null(d.ab);
    end(&d);
    d = duel(ZOO("zoo-v2lite"), BP_AB_FREE, ref, small, 0);
    must(d.rc, &d.err);
    ck_assert(d.sum.pass && d.sum.first == -1);
    end(&d);
    struct bp_ab *ab = NULL;
    struct bp_error err = BP_ERROR_INIT;
    const struct bp_ab_params none = {.h = BP_HDR(struct bp_ab_params, cb)};
    ck_assert_int_eq(bp_ab_run(&none, &ab, &err), BP_E_ARG);
}
END_TEST

static int32_t stop_later(void *ctx, double fraction, const char *what)
{
    int *n = ctx;
    (void)fraction;
    return strcmp(what, "comparing") == 0 && ++*n == 2;
}

START_TEST(the_caller_can_stop)
{
    for (uint32_t mode = BP_AB_SHADOW; mode <= BP_AB_FREE; ++mode) {
        struct bp_error err = BP_ERROR_INIT;
        struct bp_config *cfg = NULL;
        struct bp_model *m = NULL;
        struct bp_ab *ab = NULL;
        int n = 0;
        const int32_t ids[] = {1, 2, 3, 4, 5, 6};
        const struct bp_callbacks cb = {
            .h = BP_HDR(struct bp_callbacks, progress), .ctx = &n, .progress = stop_later};
        must(plain_config(&cfg, &err), &err);
        must(bp_model_open(ZOO("zoo-v3"), cfg, NULL, &m, &err), &err);
        struct bp_ab_params p = {.h = BP_HDR(struct bp_ab_params, cb),
                                 .ids = ids,
                                 .n_ids = 6,
                                 .mode = mode,
                                 .max_kl = NAN,
                                 .max_abs = NAN,
                                 .cb = &cb};
        p.a = p.b = (struct bp_ab_side){
            .h = BP_HDR(struct bp_ab_side, batch), .model = m, .config = cfg, .chunk = 2};
        ck_assert_int_eq(bp_ab_run(&p, &ab, &err), BP_E_ABORTED);
        ck_assert_int_eq(n, 2);
        bp_model_close(m);
        bp_config_destroy(cfg);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ab_run");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 300);
    tcase_add_test(t, ref_is_ref);
    tcase_add_test(t, an_error_is_charged_to_its_op);
    tcase_add_test(t, a_narrow_flip_does_not_fail);
    tcase_add_test(t, a_wide_flip_fails);
    tcase_add_test(t, a_key_behind_its_row_is_found);
    tcase_add_test(t, a_key_that_comes_twice_is_found);
    tcase_add_test(t, keys_in_another_order_hide_nothing);
    tcase_add_test(t, a_16_bit_cache_is_judged_by_its_precision);
    tcase_add_test(t, the_caller_can_stop);
    tcase_add_test(t, a_last_place_of_the_cache_is_no_fault);
    tcase_add_test(t, weights_of_b_are_lent_or_come_and_go);
    tcase_add_test(t, what_cannot_be_compared_is_refused);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
