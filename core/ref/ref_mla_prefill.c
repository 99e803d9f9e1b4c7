/* ref_mla_prefill.c - "bp.mla.prefill" of the reference backend: the multi-head form over expanded keys, causal (run)
 * or unmasked over a slab of context (run_context).
 * An item is TILE packed query rows of one head. A query's keys are taken in steps counted from the first key of its
 * segment's slab, so its bits depend on nothing but its own keys.
 * Threads: one call per instance; a call uses the host's threads. SPDX-License-Identifier: MIT */
#include "ref/ref_mla.h"

#include <inttypes.h>

enum { TILE = 8, STEP = BPI_REF_MLA_STEP };

struct job {
    const struct bpi_ref *ref;
    const struct bp_mla_prefill_args *a;
    int64_t n_q, n_head, qk_dim, v_dim;
    bool causal;
};

/* What an item keeps in its slice. */
struct parts {
    float *part;          /* [qk_dim] */
    double *q;            /* [TILE][qk_dim] */
    double *acc;          /* [TILE][v_dim] */
    float *keys, *values; /* [STEP][qk_dim], [STEP][v_dim]; used when the ports are not plain f32 */
    double scores[TILE][STEP];
    const float *key_rows[STEP], *value_rows[STEP];
};

static uint64_t slice_bytes(uint64_t qk_dim, uint64_t v_dim)
{
    return bpi_ref_mla_align(sizeof(struct parts)) + bpi_ref_mla_align(qk_dim * sizeof(float)) +
           bpi_ref_mla_align(TILE * qk_dim * sizeof(double)) +
           bpi_ref_mla_align(TILE * v_dim * sizeof(double)) +
           bpi_ref_mla_align(STEP * qk_dim * sizeof(float)) +
           bpi_ref_mla_align(STEP * v_dim * sizeof(float));
}

static struct parts *cut(const struct job *j, unsigned char *scratch)
{
    const uint64_t qk_dim = (uint64_t)j->qk_dim, v_dim = (uint64_t)j->v_dim;
    struct parts *p = (struct parts *)scratch;
    scratch += bpi_ref_mla_align(sizeof *p);
    p->part = (float *)scratch;
    scratch += bpi_ref_mla_align(qk_dim * sizeof(float));
    p->q = (double *)scratch;
    scratch += bpi_ref_mla_align(TILE * qk_dim * sizeof(double));
    p->acc = (double *)scratch;
    scratch += bpi_ref_mla_align(TILE * v_dim * sizeof(double));
    p->keys = (float *)scratch;
    scratch += bpi_ref_mla_align(STEP * qk_dim * sizeof(float));
    p->values = (float *)scratch;
    return p;
}

/* n rows of one head from `first` on, as f32: in place where they are plain, else converted into `copy`. */
static void row_pointers(const struct bp_tensor *t, int64_t first, uint32_t n, int64_t head,
                         int64_t width, uint32_t round, float *copy, const float **rows)
{
    const bool plain = t->dtype == BP_DT_F32 && round == BPI_REF_ROUND_NONE;
    for (uint32_t i = 0; i < n; ++i) {
        const void *row = bpi_ref_at(t, first + i, head, 0);
        rows[i] = plain ? row : copy + i * width;
        if (!plain) bpi_ref_load(copy + i * width, row, t->dtype, width, round);
    }
}

/* Keys that query `at` of a segment with n_q queries and n_k keys sees. */
static int64_t visible(const struct job *j, int64_t at, int64_t n_q, int64_t n_k)
{
    int64_t n = j->causal ? n_k - n_q + at + 1 : n_k;
    return n > 0 ? n : 0;
}

/* Queries [at, at + n), n at most TILE, of segment seg, in one head. */
static void attend(const struct job *j, struct parts *p, uint32_t seg, int64_t at, uint32_t n,
                   int64_t head)
{
    const struct bp_mla_prefill_args *a = j->a;
    const struct bp_mla_prefill_meta *m = a->meta;
    const uint32_t round = j->ref->round;
    const int64_t q0 = m->cu_q_host[seg], k0 = m->cu_k_host[seg];
    const int64_t n_q = m->cu_q_host[seg + 1] - q0, n_k = m->cu_k_host[seg + 1] - k0;
    struct bpi_ref_mla_soft soft[TILE];
    for (uint32_t i = 0; i < n; ++i) {
        bpi_ref_mla_load_d(p->q + i * j->qk_dim, p->part, bpi_ref_at(&a->q, q0 + at + i, head, 0),
                           a->q.dtype, j->qk_dim, round);
        bpi_ref_mla_soft_begin(&soft[i], p->acc + i * j->v_dim, j->v_dim);
    }
    const int64_t most = visible(j, at + n - 1, n_q, n_k); /* the last query sees the most */
    for (int64_t k = 0; k < most; k += STEP) {
        const uint32_t n_key = (uint32_t)(most - k < STEP ? most - k : STEP);
        row_pointers(&a->k, k0 + k, n_key, head, j->qk_dim, round, p->keys, p->key_rows);
        row_pointers(&a->v, k0 + k, n_key, head, j->v_dim, round, p->values, p->value_rows);
        bpi_ref_mla_dots(p->q, n, p->key_rows, n_key, j->qk_dim, p->scores[0], STEP);
        for (uint32_t i = 0; i < n; ++i) {
            int64_t own = visible(j, at + i, n_q, n_k) - k;
            if (own <= 0) continue;
            if (own > n_key) own = n_key;
            for (int64_t s = 0; s < own; ++s) p->scores[i][s] *= (double)a->scale;
            bpi_ref_mla_soft_step(&soft[i], p->scores[i], p->value_rows, (uint32_t)own);
        }
    }
    for (uint32_t i = 0; i < n; ++i) {
        double lse = bpi_ref_mla_soft_end(&soft[i]);
        bpi_ref_store(bpi_ref_at(&a->out, q0 + at + i, head, 0), a->out.dtype, soft[i].acc,
                      j->v_dim, round);
        if (a->lse.data == NULL) continue;
        *(float *)bpi_ref_at(&a->lse, q0 + at + i, head, 0) = (float)lse;
    }
}

static void tile_item(void *arg, uint64_t item, unsigned char *scratch)
{
    const struct job *j = arg;
    const struct bp_mla_prefill_meta *m = j->a->meta;
    const int64_t head = (int64_t)(item % (uint64_t)j->n_head);
    int64_t row = (int64_t)(item / (uint64_t)j->n_head) * TILE;
    const int64_t end = row + TILE < j->n_q ? row + TILE : j->n_q;
    struct parts *p = cut(j, scratch);
    uint32_t seg = 0, past = m->n_seg; /* the last segment that begins at or before row */
    while (past - seg > 1) {
        uint32_t mid = seg + (past - seg) / 2;
        if (m->cu_q_host[mid] <= row)
            seg = mid;
        else
            past = mid;
    }
    for (; row < end; ++seg) {
        int64_t stop = m->cu_q_host[seg + 1] < end ? m->cu_q_host[seg + 1] : end;
        if (stop <= row) continue;
        attend(j, p, seg, row - m->cu_q_host[seg], (uint32_t)(stop - row), head);
        row = stop;
    }
}

/* Segments in order and inside the packed tensors; *out_work counts query-key pairs. */
static int32_t check_segments(const struct bp_mla_prefill_meta *m, const char *op,
                              uint64_t *out_work, struct bp_error *err)
{
    const int32_t *cq = m->cu_q_host, *ck = m->cu_k_host;
    bool good = cq[0] == 0 && ck[0] >= 0 && cq[m->n_seg] == (int64_t)m->n_q &&
                ck[m->n_seg] <= (int64_t)m->n_k;
    *out_work = 0;
    for (uint32_t s = 0; good && s < m->n_seg; ++s) {
        good = cq[s + 1] >= cq[s] && ck[s + 1] >= ck[s];
        *out_work +=
            (uint64_t)(int64_t)(cq[s + 1] - cq[s]) * (uint64_t)(int64_t)(ck[s + 1] - ck[s]);
    }
    if (good) return BP_OK;
    return bpi_fail(err, BP_E_ARG, "ref", op,
                    "cu_q and cu_k of %u segments must rise from 0 to the %u queries and at most "
                    "%u keys",
                    m->n_seg, m->n_q, m->n_k);
}

static int32_t run_all(void *self, const struct bp_launch *l, const struct bp_mla_prefill_args *a,
                       bool causal, const char *op, struct bp_error *err)
{
    const struct bp_mla_prefill_meta *m = a->meta;
    uint64_t n_pair;
    if (m->n_seg == 0 || m->n_q == 0) return BP_OK;
    struct job j = {.ref = self, .a = a, .n_q = m->n_q, .causal = causal};
    j.n_head = a->q.dim[1];
    j.qk_dim = a->q.dim[2];
    j.v_dim = a->out.dim[2];
    BP_TRY(bpi_ref_mla_port(&a->q, "q", BP_DT_NONE, m->n_q, j.n_head, j.qk_dim, op, err));
    BP_TRY(bpi_ref_mla_port(&a->k, "k", BP_DT_NONE, m->n_k, j.n_head, j.qk_dim, op, err));
    BP_TRY(bpi_ref_mla_port(&a->v, "v", BP_DT_NONE, m->n_k, j.n_head, j.v_dim, op, err));
    BP_TRY(bpi_ref_mla_port(&a->out, "out", BP_DT_NONE, m->n_q, j.n_head, j.v_dim, op, err));
    if (a->lse.data != NULL || !causal) {
        BP_TRY(bpi_ref_mla_port(&a->lse, "lse", BP_DT_F32, m->n_q, j.n_head, 0, op, err));
    }
    BP_TRY(check_segments(m, op, &n_pair, err));
    uint64_t n_item = (((uint64_t)m->n_q + TILE - 1) / TILE) * (uint64_t)j.n_head;
    uint64_t work = n_pair * (uint64_t)(j.n_head * (j.qk_dim + j.v_dim));
    return bpi_ref_mla_each(j.ref, l, n_item, slice_bytes((uint64_t)j.qk_dim, (uint64_t)j.v_dim),
                            work, tile_item, &j, op, err);
}

static int32_t prefill_run(void *self, const struct bp_launch *l,
                           const struct bp_mla_prefill_args *a, struct bp_error *err)
{
    return run_all(self, l, a, true, "mla.prefill run", err);
}

static int32_t prefill_run_context(void *self, const struct bp_launch *l,
                                   const struct bp_mla_prefill_args *a, struct bp_error *err)
{
    return run_all(self, l, a, false, "mla.prefill run_context", err);
}

/* Items are found from the metadata alone: there is nothing to plan. */
static int32_t prefill_plan(void *self, const struct bp_launch *l,
                            const struct bp_mla_prefill_meta *m, struct bp_error *err)
{
    (void)self;
    (void)l;
    (void)m;
    (void)err;
    return BP_OK;
}

static int32_t prefill_supports(void *self, const void *problem, struct bp_verdict *v)
{
    (void)self;
    struct bp_mla_problem p;
    bpi_ref_mla_check_problem(problem, &p, false, v);
    bpi_ref_mla_check_latent(&p, false, v);
    bpi_ref_verdict_done(v);
    return BP_OK;
}

static int32_t prefill_workspace(void *self, const void *problem_max, struct bp_workspace *out,
                                 struct bp_error *err)
{
    (void)self;
    const struct bp_mla_problem *p = problem_max;
    uint64_t scratch_bytes;
    if (!bpi_ref_mla_scratch((uint64_t)p->max_tok * p->n_head,
                             slice_bytes((uint64_t)p->nope_dim + p->rope_dim, p->v_dim),
                             &scratch_bytes)) {
        return bpi_fail(err, BP_E_LIMIT, "ref", "mla.prefill workspace",
                        "the scratch of this problem overflows a 64-bit size");
    }
    bpi_ref_mla_workspace(out, scratch_bytes);
    return BP_OK;
}

static int32_t prefill_tensors(void *self, uint32_t slot, const void *args, struct bp_tensor *t,
                               uint32_t *n)
{
    (void)self;
    const struct bp_mla_prefill_args *a = args;
    struct bp_tensor ports[5];
    uint32_t count = 0;
    if (slot > BP_MLA_PREFILL_OP_RUN_CONTEXT) return BP_E_ARG;
    ports[count++] = bpi_ref_port(&a->q, "q", BP_IN);
    ports[count++] = bpi_ref_port(&a->k, "k", BP_IN);
    ports[count++] = bpi_ref_port(&a->v, "v", BP_IN);
    ports[count++] = bpi_ref_port(&a->out, "out", BP_OUT);
    if (a->lse.data != NULL) ports[count++] = bpi_ref_port(&a->lse, "lse", BP_OUT);
    bpi_ref_list(ports, count, t, n);
    return BP_OK;
}

const struct bp_op_base *bpi_ref_mla_prefill_ops(void)
{
    static const struct bp_mla_prefill_ops ops = {
        .base = {.h = BP_HDR(struct bp_mla_prefill_ops, run_context),
                 .iface = "bp.mla.prefill",
                 .iface_major = 0,
                 .iface_minor = 1,
                 .supports = prefill_supports,
                 .workspace = prefill_workspace,
                 .tensors = prefill_tensors},
        .plan = prefill_plan,
        .run = prefill_run,
        .run_context = prefill_run_context,
    };
    return &ops.base;
}
