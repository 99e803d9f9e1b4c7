/* ref_fixture.h - what the unit tests of the reference backend share: a host table that counts and can fail, an opened
 * plugin, guarded tensors, scratch of exactly the size that workspace() asks for.
 * Not here: formulas (harness/bp_oracle.h). SPDX-License-Identifier: MIT */
#ifndef REF_FIXTURE_H
#define REF_FIXTURE_H

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "base/pool.h"
#include "cases/bp_oracle.h"
#include "ref/ref.h"
#include "ref/ref_priv.h"

enum { RIG_GUARD = 64, RIG_FILL = 0xff };

struct rig {
    struct bpi_pool *pool;
    struct bp_host host;
    const struct bp_plugin_desc *desc;
    struct bpi_ref *ref;
    const char *round; /* config; NULL: not set */
    int64_t live;      /* allocations that are not freed yet */
    int64_t fail_at;   /* the n-th allocation from now fails; 0: none does */
    struct bp_launch launch;
    unsigned char *scratch_end; /* guard bytes follow */
    struct kit_rng rng;
};

static inline uint64_t rig_seed(void)
{
    const char *text = getenv("BP_SEED");
    uint64_t seed = text != NULL ? strtoull(text, NULL, 10) : 20240607u;
    printf("seed %llu (BP_SEED)\n", (unsigned long long)seed);
    return seed;
}

static inline void *rig_alloc(void *ctx, uint64_t n_bytes, uint64_t align)
{
    struct rig *g = ctx;
    if (g->fail_at != 0 && --g->fail_at == 0) return NULL;
    /* No test needs a tebibyte, and the address sanitizer would end the program instead of saying no. */
    void *p = n_bytes < (uint64_t)1 << 40 ? bpi_alloc_aligned(n_bytes, align) : NULL;
    if (p != NULL) {
        g->live++;
        memset(p, 0, n_bytes); /* as plugin.h promises */
    }
    return p;
}
static inline void rig_free(void *ctx, void *p)
{
    if (p != NULL) ((struct rig *)ctx)->live--;
    bpi_free(p);
}
static inline int32_t rig_cfg_str(void *ctx, const char *key, char *out, uint64_t cap)
{
    const struct rig *g = ctx;
    if (strcmp(key, "round") != 0 || g->round == NULL) return BP_DECLINED;
    if (strlen(g->round) >= cap) return BP_E_LIMIT;
    memcpy(out, g->round, strlen(g->round) + 1);
    return BP_OK;
}
static inline void rig_for(void *ctx, uint64_t n, uint64_t grain,
                           void (*fn)(void *arg, uint64_t begin, uint64_t end), void *arg)
{
    bpi_pool_run(((struct rig *)ctx)->pool, n, grain, fn, arg);
}

static inline int32_t rig_try_open(struct rig *g, const char *round, struct bp_error *err)
{
    const struct bp_query q = {.h = BP_HDR(struct bp_query, engine_version),
                               .host_major = BP_ABI_MAJOR,
                               .host_minor = BP_ABI_MINOR};
    memset(g, 0, sizeof *g);
    g->round = round;
    ck_assert_int_eq(bpi_pool_create(2, &g->pool, NULL), BP_OK);
    g->host = (struct bp_host){.h = BP_HDR(struct bp_host, parallel_for),
                               .ctx = g,
                               .cfg_str = rig_cfg_str,
                               .mem_alloc = rig_alloc,
                               .mem_free = rig_free,
                               .parallel_for = rig_for};
    g->launch = (struct bp_launch){.h = BP_HDR(struct bp_launch, reserved), .layer = -1};
    kit_rng_seed(&g->rng, rig_seed());
    g->desc = bpi_ref_query(&q);
    ck_assert_ptr_nonnull(g->desc);
    void *plugin = NULL;
    int32_t rc = g->desc->open(&g->host, &plugin, err);
    g->ref = plugin;
    return rc;
}

static inline void rig_open(struct rig *g, const char *round)
{
    struct bp_error err = BP_ERROR_INIT;
    ck_assert_msg(rig_try_open(g, round, &err) == BP_OK, "open: %s", err.msg);
}

static inline void rig_check_scratch(const struct rig *g)
{
    for (int i = 0; g->scratch_end != NULL && i < RIG_GUARD; ++i) {
        ck_assert_msg(g->scratch_end[i] == 0xa5, "byte %d past the scratch was overwritten", i);
    }
}

static inline void rig_close(struct rig *g)
{
    rig_check_scratch(g);
    bpi_free(g->launch.scratch);
    g->desc->close(g->ref);
    ck_assert_msg(g->live == 0, "%lld allocations were not freed", (long long)g->live);
    bpi_pool_destroy(g->pool);
}

static inline struct bp_op_ref rig_op(struct rig *g, const char *iface)
{
    struct bp_op_ref op = {NULL, NULL};
    for (uint32_t i = 0; i < g->desc->n_ops; ++i) {
        const struct bp_op_entry *e =
            (const struct bp_op_entry *)(const void *)((const unsigned char *)g->desc->ops +
                                                       (size_t)i * g->desc->ops_stride);
        if (strcmp(e->iface, iface) != 0) continue;
        ck_assert_int_eq(g->desc->op_create(g->ref, e, NULL, NULL, 0, &op, NULL), BP_OK);
    }
    ck_assert_msg(op.vt != NULL, "%s is not offered", iface);
    return op;
}

struct rig_answer {
    struct bp_verdict v;
    struct bp_reason reasons[8];
};

static inline void rig_ask(const struct bp_op_ref *op, const void *problem, struct rig_answer *a)
{
    memset(a, 0, sizeof *a);
    a->v.h = (struct bp_hdr)BP_HDR(struct bp_verdict, cost_us);
    a->v.reasons = a->reasons;
    a->v.cap_reasons = 8;
    a->v.reason_stride = sizeof a->reasons[0];
    ck_assert_int_eq(op->vt->supports(op->self, problem, &a->v), BP_OK);
}

/* The answer is NO, and one of the reasons is this code for this field. */
static inline bool rig_refuses(const struct bp_op_ref *op, const void *problem, uint32_t code,
                               const char *field)
{
    struct rig_answer a;
    rig_ask(op, problem, &a);
    bool found = false;
    for (uint32_t i = 0; i < a.v.n_reasons && i < 8; ++i) {
        found = found || (a.reasons[i].code == code && strcmp(a.reasons[i].field, field) == 0 &&
                          a.reasons[i].critical == 1 && a.reasons[i].text[0] != '\0');
    }
    return a.v.level == BP_V_NO && found;
}

/* Asks, and gives the launch exactly the scratch that the problem needs, filled with NaN, guarded behind. */
static inline void rig_prepare(struct rig *g, const struct bp_op_ref *op, const void *problem)
{
    struct rig_answer a;
    struct bp_workspace ws = {.h = BP_HDR(struct bp_workspace, persistent_zeroed)};
    struct bp_error err = BP_ERROR_INIT;
    rig_ask(op, problem, &a);
    ck_assert_msg(a.v.level == BP_V_YES, "refused: %s %s", a.reasons[0].field, a.reasons[0].text);
    ck_assert_uint_eq(a.v.determinism, BP_DET_BATCH);
    ck_assert_msg(op->vt->workspace(op->self, problem, &ws, &err) == BP_OK, "workspace: %s",
                  err.msg);
    ck_assert(ws.align >= 64 && (ws.align & (ws.align - 1)) == 0);
    rig_check_scratch(g);
    bpi_free(g->launch.scratch);
    unsigned char *p = bpi_alloc_aligned(ws.scratch_bytes + RIG_GUARD, ws.align);
    ck_assert_ptr_nonnull(p);
    memset(p, RIG_FILL, ws.scratch_bytes);
    memset(p + ws.scratch_bytes, 0xa5, RIG_GUARD);
    g->launch.scratch = p;
    g->launch.scratch_bytes = ws.scratch_bytes;
    g->scratch_end = p + ws.scratch_bytes;
}

/* ---- tensors between guard bytes ---- */

struct rig_tensor {
    struct bp_tensor t;
    unsigned char *bytes; /* GUARD, the elements with their gaps, GUARD */
    size_t n_bytes, elem_bytes;
};

/* pad: elements between the end of a row and the next row, which must stay untouched too. */
static inline struct rig_tensor rig_tensor(uint32_t dtype, uint32_t ndim, const int64_t *dim,
                                           int64_t pad)
{
    struct rig_tensor r = {.elem_bytes = (size_t)bpi_ref_dtype_bytes(dtype)};
    r.t.dtype = dtype;
    r.t.ndim = ndim;
    int64_t stride = 1;
    for (uint32_t d = ndim; d-- > 0;) {
        r.t.dim[d] = dim[d];
        r.t.stride[d] = stride;
        stride *= dim[d];
        if (d == ndim - 1 && ndim > 1) stride += pad;
        if (d > 0 && d < ndim - 1) stride += pad;
    }
    r.n_bytes = (size_t)stride * r.elem_bytes;
    r.bytes = bpi_alloc(r.n_bytes + 2 * RIG_GUARD);
    ck_assert_ptr_nonnull(r.bytes);
    memset(r.bytes, RIG_FILL, r.n_bytes + 2 * RIG_GUARD);
    r.t.data = r.bytes + RIG_GUARD;
    return r;
}
static inline struct rig_tensor rig_tensor1(uint32_t dtype, int64_t n)
{
    return rig_tensor(dtype, 1, (int64_t[]){n}, 0);
}
static inline struct rig_tensor rig_tensor2(uint32_t dtype, int64_t n, int64_t m, int64_t pad)
{
    return rig_tensor(dtype, 2, (int64_t[]){n, m}, pad);
}
static inline struct rig_tensor rig_tensor3(uint32_t dtype, int64_t n, int64_t m, int64_t k,
                                            int64_t pad)
{
    return rig_tensor(dtype, 3, (int64_t[]){n, m, k}, pad);
}

/* The same numbers as *raw, all of the weight, but in F32: free the result after the last use of *out. */
static inline float *rig_as_floats(const struct bp_oracle_weight *w, const struct bp_raw *raw,
                                   struct bp_raw *out)
{
    const size_t n = (size_t)(w->ne[0] * w->ne[1] * w->ne[2]);
    float *f = bp_oracle_alloc(n, sizeof *f);
    for (size_t i = 0; i < n; ++i) f[i] = (float)w->w[i];
    *out = *raw;
    out->type = BP_GGUF_F32;
    out->scale = 1.0f;
    out->data = f;
    out->n_bytes = n * sizeof *f;
    return f;
}

static inline int64_t rig_count(const struct bp_tensor *t)
{
    int64_t n = 1;
    for (uint32_t d = 0; d < t->ndim; ++d) n *= t->dim[d];
    return n;
}
/* Element offset of the i-th logical element. */
static inline int64_t rig_offset(const struct bp_tensor *t, int64_t i)
{
    int64_t at = 0;
    for (uint32_t d = t->ndim; d-- > 0;) {
        at += i % t->dim[d] * t->stride[d];
        i /= t->dim[d];
    }
    return at;
}
static inline double rig_get(const struct rig_tensor *r, int64_t i)
{
    return bp_oracle_get(r->t.data, r->t.dtype, rig_offset(&r->t, i));
}
static inline void rig_set(struct rig_tensor *r, int64_t i, double v)
{
    bp_oracle_put(r->t.data, r->t.dtype, rig_offset(&r->t, i), v);
}
static inline int32_t *rig_int(struct rig_tensor *r, int64_t i)
{
    return (int32_t *)r->t.data + rig_offset(&r->t, i);
}
static inline void rig_fill_normal(struct rig *g, struct rig_tensor *r, double size)
{
    for (int64_t i = 0; i < rig_count(&r->t); ++i) rig_set(r, i, bp_oracle_normal(&g->rng) * size);
}
static inline double *rig_doubles(const struct rig_tensor *r)
{
    double *d = bp_oracle_alloc((size_t)rig_count(&r->t), sizeof *d);
    for (int64_t i = 0; i < rig_count(&r->t); ++i) d[i] = rig_get(r, i);
    return d;
}

/* Every byte that belongs to no element still holds the fill. */
static inline void rig_check_guards(const struct rig_tensor *r, const char *what)
{
    const size_t n = r->n_bytes + 2 * RIG_GUARD;
    unsigned char *own = bp_oracle_alloc(n, 1);
    for (int64_t i = 0; i < rig_count(&r->t); ++i) {
        memset(own + RIG_GUARD + (size_t)rig_offset(&r->t, i) * r->elem_bytes, 1, r->elem_bytes);
    }
    for (size_t i = 0; i < n; ++i) {
        ck_assert_msg(own[i] != 0 || r->bytes[i] == RIG_FILL,
                      "%s: byte %lld outside of the elements was written", what,
                      (long long)i - RIG_GUARD);
    }
    free(own);
}
static inline void rig_drop(struct rig_tensor *r, const char *what)
{
    rig_check_guards(r, what);
    bpi_free(r->bytes);
    r->bytes = NULL;
}

/* Same bits, element by element. */
static inline void rig_check_same(const struct rig_tensor *a, int64_t a_from,
                                  const struct rig_tensor *b, int64_t b_from, int64_t n,
                                  const char *what)
{
    ck_assert_uint_eq(a->t.dtype, b->t.dtype);
    for (int64_t i = 0; i < n; ++i) {
        const unsigned char *pa = (const unsigned char *)a->t.data +
                                  (size_t)rig_offset(&a->t, a_from + i) * a->elem_bytes;
        const unsigned char *pb = (const unsigned char *)b->t.data +
                                  (size_t)rig_offset(&b->t, b_from + i) * b->elem_bytes;
        ck_assert_msg(memcmp(pa, pb, a->elem_bytes) == 0, "%s: element %lld differs", what,
                      (long long)i);
    }
}

static inline Suite *rig_suite(const char *name, const TTest *const *tests, size_t n)
{
    Suite *s = suite_create(name);
    for (size_t i = 0; i < n; ++i) {
        TCase *tc = tcase_create(tests[i]->name);
        tcase_set_timeout(tc, 300);
        tcase_add_test(tc, tests[i]);
        suite_add_tcase(s, tc);
    }
    return s;
}
static inline int rig_main(const char *name, const TTest *const *tests, size_t n)
{
    SRunner *runner = srunner_create(rig_suite(name, tests, n));
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
#define RIG_MAIN(name, ...)                                                                        \
    int main(void)                                                                                 \
    {                                                                                              \
        const TTest *const tests[] = {__VA_ARGS__};                                                \
        return rig_main(name, tests, sizeof tests / sizeof tests[0]);                              \
    }

#endif
