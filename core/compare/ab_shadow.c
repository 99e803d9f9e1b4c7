/* ab_shadow.c - shadow mode: A runs, and each of its calls is repeated by B on the same inputs.
 * Where the results are not the same bits, ref is asked: exact, and rounded like the coarser side. A side that is the one
 * or the other has answered already; else they are opened when they are first needed, so that equal sides cost no more than
 * two runs. What ref needs is A's inputs as they were, so those that the call writes over are saved before.
 * Cache rows: each side writes its own, they are compared, and then all mirrors get A's, as near as their layout allows.
 * Threads: as a session. SPDX-License-Identifier: MIT */
#include "compare/compare_priv.h"
#include <math.h>
#include <string.h>
#include "backplane/slot_mla.h"

/* A buffer that grows. */
struct room {
    void *p;
    uint64_t n_bytes;
};

struct shadow {
    struct bpi_ab_run *r;
    struct bp_session *exact, *base; /* NULL: not needed yet */
    struct room saved[BPI_CALL_PORTS];
    void *from[BPI_CALL_PORTS];
    struct room blocks[4]; /* rows of A, B, exact, baseline */
    struct bpi_ab_route route;
    struct bp_step_item items[BPI_AB_BATCH]; /* of the step: item k is sequence k */
    uint32_t batch;
    uint32_t most;   /* tokens of one sequence in a step */
    int32_t *others; /* (batch - 1, tokens of a step) those of the neighbours */
    bool ran_b;
    double us_b;
    bool has_exact, has_base; /* of this call */
    uint32_t base_side; /* whose rows are the baseline: a side's, where it is that, or SIDE_BASE */
    bool dumping;
    struct bp_error tap_error;
};

enum { SIDE_A, SIDE_B, SIDE_EXACT, SIDE_BASE };

static int32_t reserve(struct room *m, uint64_t n, struct bp_error *err)
{
    if (n <= m->n_bytes) return BP_OK;
    void *p = bpi_alloc(n);
    if (p == NULL) return bpi_fail_nomem(err, "compare", n);
    bpi_free(m->p);
    *m = (struct room){p, n};
    return BP_OK;
}

/* ---- running the others ---- */

static int32_t named(int32_t rc, const char *side, struct bp_error *why, struct bp_error *err)
{
    if (rc == BP_OK) return BP_OK;
    return bpi_fail(err, rc, "compare", why->where, "side %s: %s", side, why->msg);
}

static int32_t run_b(struct shadow *s, const struct bpi_call *c, struct bp_error *err)
{
    struct bp_error why = BP_ERROR_INIT;
    s->ran_b = true;
    return named(bpi_mirror_run(s->r->a, s->r->b, c, &s->us_b, &why), "B", &why, err);
}

/* Runs the call on ref, opened now if need be. */
static int32_t run_ref(struct shadow *s, const struct bpi_call *c, bool baseline,
                       struct bp_error *err)
{
    struct bp_session **ref = baseline ? &s->base : &s->exact;
    if (*ref == NULL) {
        BP_TRY(bpi_ab_ref_session(s->r, baseline, ref, err));
        BP_TRY(bpi_mirror_join(s->r->a, *ref, s->items, s->batch, err));
    }
    BP_TRY(bpi_mirror_load(s->r->a, *ref, c, s->from, err));
    return bpi_mirror_run(s->r->a, *ref, c, NULL, err);
}

/* Are this side's results the exact ones? Ref's own are, unless it rounds, writes a cache that does, or reads one that
 * had to round A's rows. */
static bool is_exact(const struct shadow *s, const struct bpi_call *c, uint32_t side)
{
    const struct bp_ab_side *of = side == SIDE_A ? &s->r->p->a : &s->r->p->b;
    const struct bp_session *session = side == SIDE_A ? s->r->a : s->r->b;
    const uint32_t dtype = bpi_mirror_kv_dtype(session);
    if (of->model != s->r->p->a.model || !bpi_ab_is_exact(of->config) ||
        !bpi_mirror_is_ref(s->r->a, session, c))
        return false;
    for (uint32_t i = 0; i < c->n_port; ++i) {
        if (!bpi_call_is_pool(c, i) || dtype == BP_DT_F32) continue;
        if ((c->port[i].access & BP_OUT) != 0) return false;
        if (session != s->r->a && dtype != bpi_mirror_kv_dtype(s->r->a)) return false;
    }
    return true;
}

/* Who has the baseline of this call? */
static uint32_t base_of(const struct shadow *s, const struct bpi_call *c)
{
    bool cache = false;
    for (uint32_t i = 0; i < c->n_port; ++i) cache = cache || bpi_call_is_pool(c, i);
    if (bpi_ab_is_base(s->r, 1, cache) && bpi_mirror_is_ref(s->r->a, s->r->b, c)) return SIDE_B;
    if (bpi_ab_is_base(s->r, 0, cache) && bpi_mirror_is_ref(s->r->a, s->r->a, c)) return SIDE_A;
    return SIDE_BASE;
}

static int32_t before(void *ctx, const struct bpi_call *c, struct bp_error *err)
{
    struct shadow *s = ctx;
    s->ran_b = s->has_exact = s->has_base = false;
    memset(s->from, 0, sizeof(s->from));
    for (uint32_t i = 0; i < c->n_port; ++i) {
        if (!bpi_call_overwrites(c, i)) continue;
        BP_TRY(reserve(&s->saved[i], bpi_port_span(&c->port[i]), err));
        s->from[i] = s->saved[i].p;
        BP_TRY(bpi_mirror_save(s->r->a, &c->port[i], s->from[i], err));
    }
    BP_TRY(bpi_mirror_load(s->r->a, s->r->b, c, NULL, err));
    /* Whoever runs second finds weights in the processor's caches, so the order is drawn. */
    return bpi_rng_u64(&s->r->rng) & 1 ? run_b(s, c, err) : BP_OK;
}

/* ---- one output ---- */

/* How long the sums behind an output are: what noise grows with. */
static double inner_of(const struct bpi_call *c)
{
    int64_t n = 1;
    for (uint32_t i = 0; i < c->n_port; ++i) {
        const struct bp_tensor *t = &c->port[i];
        if ((t->access & BP_IN) == 0 || t->layout_id != 0 || t->ndim == 0) continue;
        if (t->dim[t->ndim - 1] > n) n = t->dim[t->ndim - 1];
        if (strncmp(c->slot, "mla.", 4) == 0 && t->dim[0] > n) n = t->dim[0]; /* keys */
    }
    if (strcmp(c->slot, "mla.decode") == 0) {
        const struct bp_mla_decode_args *a = c->args;
        if (a->meta->max_kv > n) n = a->meta->max_kv;
    }
    return (double)n;
}

static uint32_t pos_of(const struct shadow *s, int32_t first, int64_t row)
{
    const uint32_t *pos = bpi_mirror_row_pos(s->r->a);
    if (first == -1) return (uint32_t)row; /* gathered keys: their place in the slab */
    if (first == -2) return pos[bpi_mirror_logit_row(s->r->a, (uint32_t)row)];
    return pos[(uint32_t)first + (uint32_t)row];
}

/* Rows [begin, begin + n) of an output on all sides that have it. */
static int32_t read_block(struct shadow *s, const struct bpi_call *c, uint32_t port, int64_t begin,
                          int64_t n, uint64_t width, struct bp_error *err)
{
    struct bp_session *const side[] = {s->r->a, s->r->b, s->has_exact ? s->exact : NULL,
                                       s->has_base && s->base_side == SIDE_BASE ? s->base : NULL};
    for (uint32_t i = 0; i < 4; ++i) {
        if (side[i] == NULL) continue;
        BP_TRY(reserve(&s->blocks[i], (uint64_t)n * width * 4, err));
        BP_TRY(bpi_mirror_read(s->r->a, side[i], c, port, begin, n, s->blocks[i].p, err));
    }
    return BP_OK;
}

struct judged { /* one output of one call */
    struct bpi_ab_entry *e;
    uint32_t dtype;
    double inner;
    bool exact_a, exact_b;
    bool doubtful; /* beyond noise, and nobody was asked yet */
};

/* The row of each side, NULL where it was not asked. */
struct rows {
    const float *a, *b, *exact, *base;
};

static void blame(struct judged *j, uint32_t side)
{
    j->e->op.status = BP_AB_FAIL;
    if (j->e->blamed == 0) j->e->blamed = side;
}

/* d: of b against a. */
static void judge_row(struct judged *j, const struct rows *v, uint64_t n,
                      const struct bpi_ab_row *d)
{
    const float *exact = j->exact_a ? v->a : j->exact_b ? v->b : v->exact;
    if (v->b != exact && !bpi_ab_row_right(v->b, exact, v->base, n, j->dtype, j->inner, NULL))
        blame(j, 2);
    if (v->a != exact && !bpi_ab_row_right(v->a, exact, v->base, n, j->dtype, j->inner, NULL))
        blame(j, 1);
    if (v->base == NULL) return;
    const struct bpi_ab_row base =
        exact == v->a && v->base == v->b ? *d : bpi_ab_row(exact, v->base, n);
    if (base.max_abs > j->e->op.baseline_max_abs) j->e->op.baseline_max_abs = base.max_abs;
    j->e->base_d2 += base.d2;
    j->e->base_a2 += base.a2;
}

/* First look: is any row beyond what sums may do, or is no side known to be exact? */
static bool doubtful_row(const struct judged *j, const struct rows *v, uint64_t n)
{
    if (!j->exact_a && !j->exact_b) return memcmp(v->a, v->b, n * sizeof(float)) != 0;
    const float *exact = j->exact_a ? v->a : v->b, *other = j->exact_a ? v->b : v->a;
    return !bpi_ab_row_right(other, exact, NULL, n, j->dtype, j->inner, NULL);
}

typedef void (*row_fn)(struct shadow *s, const struct bpi_call *c, struct judged *j,
                       const struct rows *v, uint64_t n, uint32_t pos);

static void look_row(struct shadow *s, const struct bpi_call *c, struct judged *j,
                     const struct rows *v, uint64_t n, uint32_t pos)
{
    (void)s;
    (void)c;
    (void)pos;
    j->doubtful = j->doubtful || doubtful_row(j, v, n);
}

static void count_row(struct shadow *s, const struct bpi_call *c, struct judged *j,
                      const struct rows *v, uint64_t n, uint32_t pos)
{
    (void)s;
    (void)c;
    const struct bpi_ab_row d = bpi_ab_row(v->a, v->b, n);
    bpi_ab_count(j->e, &d, pos);
    if (!j->doubtful) return;
    judge_row(j, v, n, &d);
}

/* Calls fn for each row of dim 0, in blocks. */
static int32_t each_row(struct shadow *s, const struct bpi_call *c, uint32_t port, row_fn fn,
                        struct judged *j, struct bp_error *err)
{
    const struct bp_tensor *t = &c->port[port];
    const int32_t first = bpi_mirror_first_row(s->r->a, c);
    uint64_t width = 1;
    for (uint32_t d = 1; d < t->ndim; ++d) width *= (uint64_t)t->dim[d];
    if (width == 0) return BP_OK;
    const int64_t most = (int64_t)(BPI_AB_BLOCK / width > 0 ? BPI_AB_BLOCK / width : 1);
    for (int64_t at = 0; at < t->dim[0]; at += most) {
        const int64_t n = t->dim[0] - at < most ? t->dim[0] - at : most;
        BP_TRY(read_block(s, c, port, at, n, width, err));
        for (int64_t i = 0; i < n; ++i) {
            const float *block[4];
            for (int k = 0; k < 4; ++k)
                block[k] = s->blocks[k].p != NULL
                               ? (const float *)s->blocks[k].p + (uint64_t)i * width
                               : NULL;
            struct rows v = {block[SIDE_A], block[SIDE_B], s->has_exact ? block[SIDE_EXACT] : NULL,
                             s->has_base ? block[s->base_side] : NULL};
            fn(s, c, j, &v, width, pos_of(s, first, at + i));
        }
    }
    return BP_OK;
}

/* Asks ref: exact where neither side is, rounded where that is another thing. */
static int32_t ask_ref(struct shadow *s, const struct bpi_call *c, const struct judged *j,
                       struct bp_error *err)
{
    if (!j->exact_a && !j->exact_b && !s->has_exact) {
        BP_TRY(run_ref(s, c, false, err));
        s->has_exact = true;
    }
    if (s->r->unit > 0x1p-24 && !s->has_base) {
        s->base_side = base_of(s, c);
        if (s->base_side == SIDE_BASE) BP_TRY(run_ref(s, c, true, err));
        s->has_base = true;
    }
    return BP_OK;
}

static int32_t compare_floats(struct shadow *s, const struct bpi_call *c, uint32_t port,
                              struct judged *j, struct bp_error *err)
{
    BP_TRY(each_row(s, c, port, look_row, j, err));
    if (j->doubtful) BP_TRY(ask_ref(s, c, j, err));
    return each_row(s, c, port, count_row, j, err);
}

/* ---- choices ---- */

/* Which experts: places where both differ, with the exact gap. Weights count where the experts agree. */
static int32_t compare_route(struct shadow *s, const struct bpi_call *c, struct judged *j,
                             struct bp_error *err)
{
    const struct bpi_hparams *hp = bpi_mirror_hparams(s->r->a);
    const uint32_t k = hp->n_expert_used;
    const float *bias = bpi_mirror_router_bias(s->r->a, c->layer);
    const int64_t n = c->port[0].dim[0];
    const int32_t first = bpi_mirror_first_row(s->r->a, c);
    uint32_t logits = 0, ids = 0, weights = 0;
    for (uint32_t i = 0; i < c->n_port; ++i) {
        if (strcmp(c->port[i].name, "logits") == 0) logits = i;
        if (strcmp(c->port[i].name, "ids") == 0) ids = i;
        if (strcmp(c->port[i].name, "weights") == 0) weights = i;
    }
    if (s->route.n == 0) BP_TRY(bpi_ab_route_make(&s->route, hp, err));
    BP_TRY(reserve(&s->saved[BPI_CALL_PORTS - 1], (hp->n_expert + 4ull * k) * 4, err));
    float *row = s->saved[BPI_CALL_PORTS - 1].p, *wa = row + hp->n_expert, *wb = wa + k;
    int32_t *ia = (int32_t *)(void *)(wb + k), *ib = ia + k;
    for (int64_t r = 0; r < n; ++r) {
        BP_TRY(bpi_mirror_read(s->r->a, s->r->a, c, logits, r, 1, row, err));
        BP_TRY(bpi_mirror_read(s->r->a, s->r->a, c, ids, r, 1, ia, err));
        BP_TRY(bpi_mirror_read(s->r->a, s->r->b, c, ids, r, 1, ib, err));
        BP_TRY(bpi_mirror_read(s->r->a, s->r->a, c, weights, r, 1, wa, err));
        BP_TRY(bpi_mirror_read(s->r->a, s->r->b, c, weights, r, 1, wb, err));
        const uint32_t pos = pos_of(s, first, r);
        if (memcmp(ia, ib, k * sizeof(*ia)) == 0) {
            const struct bpi_ab_row d = bpi_ab_row(wa, wb, k);
            bpi_ab_count(j->e, &d, pos);
            /* Weights are f32 by definition, so no rounding excuses them; ref's own formula is exact enough. */
            if (!bpi_ab_row_right(wb, wa, NULL, k, BP_DT_F32, hp->n_expert, NULL))
                blame(j, j->exact_a ? 2 : j->exact_b ? 1 : 0);
            continue;
        }
        j->e->op.n_rows++;
        bpi_ab_route_score(&s->route, hp, bias, row);
        const double precision =
            bpi_ab_noise(bpi_ab_route_size(&s->route), hp->n_expert) +
            (s->r->round[0] != 'n' ? 2.0 * s->r->unit * bpi_ab_route_size(&s->route) : 0.0);
        struct bpi_ab_pairs at = {.place = 0};
        int32_t ea, eb;
        while (bpi_ab_next_experts(ia, ib, k, &at, &ea, &eb)) {
            const double gap = bpi_ab_route_gap(&s->route, ea, eb);
            bpi_ab_add_flip(j->e, pos, ea, eb, gap, !(gap <= precision));
        }
    }
    return BP_OK;
}

/* Keys that only one side chose, told by their positions. scores: exact, by position. */
static void pair_keys(struct shadow *s, struct judged *j, const int32_t *a, const int32_t *b,
                      uint32_t k, const double *scores, uint32_t n_keys, uint32_t row,
                      double precision)
{
    const uint32_t seq = bpi_mirror_row_item(s->r->a)[row], pos = bpi_mirror_row_pos(s->r->a)[row];
    uint64_t at[2] = {0, 0};
    int32_t only_a, only_b;
    while (bpi_ab_next_keys(a, b, k, at, &only_a, &only_b)) {
        const int32_t pa = bpi_mirror_slot_pos(s->r->a, seq, only_a);
        const int32_t pb = bpi_mirror_slot_pos(s->r->a, seq, only_b);
        const double gap = bpi_ab_key_gap(scores, n_keys, pa, pb);
        bpi_ab_add_flip(j->e, pos, pa, pb, gap, !(gap <= precision));
    }
}

static double largest(const double *v, uint32_t n)
{
    double most = 0.0;
    for (uint32_t i = 0; i < n; ++i) most = fabs(v[i]) > most ? fabs(v[i]) : most;
    return most;
}

static int32_t compare_select(struct shadow *s, const struct bpi_call *c, struct judged *j,
                              struct bp_error *err)
{
    const struct bp_mla_select_args *args = c->args;
    const struct bpi_hparams *hp = bpi_mirror_hparams(s->r->a);
    const uint64_t n_q = (uint64_t)hp->n_index_head * hp->index_dim;
    const uint32_t k = args->top_k, *row_pos = bpi_mirror_row_pos(s->r->a);
    uint32_t port[5] = {0}; /* q, w, idx, idx_len */
    static const char *const names[] = {"q", "w", "idx", "idx_len"};
    for (uint32_t i = 0; i < c->n_port; ++i) {
        for (uint32_t x = 0; x < 4; ++x) {
            if (strcmp(c->port[i].name, names[x]) == 0) port[x] = i;
        }
    }
    BP_TRY(reserve(&s->saved[BPI_CALL_PORTS - 1], (n_q + hp->n_index_head + 2ull * k) * 4, err));
    BP_TRY(reserve(&s->saved[BPI_CALL_PORTS - 2], (args->meta->max_kv + 1ull) * 8, err));
    float *q = s->saved[BPI_CALL_PORTS - 1].p, *w = q + n_q;
    int32_t *ia = (int32_t *)(void *)(w + hp->n_index_head), *ib = ia + k;
    double *scores = s->saved[BPI_CALL_PORTS - 2].p;
    for (int64_t r = 0; r < args->meta->n_row; ++r) {
        const uint32_t n_keys = (uint32_t)args->meta->row_kv_len_host[r];
        int32_t na, nb;
        BP_TRY(bpi_mirror_read(s->r->a, s->r->a, c, port[3], r, 1, &na, err));
        BP_TRY(bpi_mirror_read(s->r->a, s->r->b, c, port[3], r, 1, &nb, err));
        j->e->op.n_rows++;
        if (na != nb) bpi_ab_add_flip(j->e, row_pos[r], na, nb, (double)NAN, true);
        if (na < 0 || nb < 0) continue; /* it attends all its keys, and idx is unset */
        BP_TRY(bpi_mirror_read(s->r->a, s->r->a, c, port[2], r, 1, ia, err));
        BP_TRY(bpi_mirror_read(s->r->a, s->r->b, c, port[2], r, 1, ib, err));
        if (memcmp(ia, ib, k * sizeof(*ia)) == 0) continue;
        BP_TRY(bpi_mirror_read(s->r->a, s->r->a, c, port[0], r, 1, q, err));
        BP_TRY(bpi_mirror_read(s->r->a, s->r->a, c, port[1], r, 1, w, err));
        int32_t rc = bpi_ab_index_scores(s->r->a, c->layer, bpi_mirror_row_item(s->r->a)[r], q, w,
                                         n_keys, scores, err);
        if (rc != BP_OK && rc != BP_DECLINED) return rc;
        const double size = rc == BP_OK ? largest(scores, n_keys) : 0.0;
        /* A key's rounding moves its score by its unit, relative to what was summed up, a few times the score. */
        const double precision = bpi_ab_noise(4.0 * size, (double)hp->index_dim) +
                                 (s->r->unit > 0x1p-24 ? 4.0 * s->r->unit * size : 0.0);
        pair_keys(s, j, ia, ib, k, rc == BP_OK ? scores : NULL, n_keys, (uint32_t)r, precision);
    }
    return BP_OK;
}

/* ---- the cache ---- */

static int32_t read_rows(struct shadow *s, struct bp_session *side, uint32_t at,
                         const struct bpi_call *c, bool index, struct bp_error *err)
{
    const uint64_t n = (uint64_t)bpi_mirror_n_tok(side) * bpi_mirror_row_width(side, index) * 4;
    BP_TRY(reserve(&s->blocks[at], n, err));
    return bpi_mirror_rows(side, c->layer, index, s->blocks[at].p, err);
}

static int32_t import_rows(struct shadow *s, const struct bpi_call *c, bool index,
                           struct bp_error *err)
{
    struct bp_session *const side[] = {s->r->b, s->exact, s->base};
    for (uint32_t i = 0; i < 3; ++i) {
        if (side[i] == NULL) continue;
        int32_t rc = bpi_mirror_import(s->r->a, side[i], c->layer, index, err);
        if (rc != BP_OK && rc != BP_DECLINED) return rc;
    }
    return BP_OK;
}

static struct rows cache_row(const struct shadow *s, uint32_t row, uint32_t width)
{
    const float *v[4];
    for (int i = 0; i < 4; ++i)
        v[i] = s->blocks[i].p != NULL ? (const float *)s->blocks[i].p + (size_t)row * width : NULL;
    return (struct rows){v[SIDE_A], v[SIDE_B], s->has_exact ? v[SIDE_EXACT] : NULL,
                         s->has_base ? v[s->base_side] : NULL};
}

/* What both sides' rows were rounded to, at the least. */
static uint32_t cache_dtype(const struct bpi_ab_run *r)
{
    const uint32_t a = bpi_mirror_kv_dtype(r->a), b = bpi_mirror_kv_dtype(r->b);
    return a == BP_DT_BF16 || b == BP_DT_BF16 ? BP_DT_BF16
           : a == BP_DT_F16 || b == BP_DT_F16 ? BP_DT_F16
                                              : BP_DT_F32;
}

static int32_t compare_cache(struct shadow *s, const struct bpi_call *c, struct judged *j,
                             struct bp_error *err)
{
    const bool index = strcmp(c->op, "key_write") == 0;
    const uint32_t n = bpi_mirror_n_tok(s->r->a), w = bpi_mirror_row_width(s->r->a, index);
    int32_t rc = read_rows(s, s->r->a, SIDE_A, c, index, err);
    if (rc == BP_OK) rc = read_rows(s, s->r->b, SIDE_B, c, index, err);
    if (rc == BP_DECLINED) return BP_OK; /* rows nobody else can read: their readers will tell */
    BP_TRY(rc);
    if (memcmp(s->blocks[0].p, s->blocks[1].p, (size_t)n * w * 4) == 0) {
        j->e->op.n_rows += n;
    } else {
        for (uint32_t r = 0; r < n; ++r) {
            struct rows v = cache_row(s, r, w);
            look_row(s, c, j, &v, w, 0);
        }
        j->dtype = cache_dtype(s->r); /* whoever writes it rounds once */
        if (j->doubtful) BP_TRY(ask_ref(s, c, j, err));
        if (s->has_exact) BP_TRY(read_rows(s, s->exact, SIDE_EXACT, c, index, err));
        if (s->has_base && s->base_side == SIDE_BASE)
            BP_TRY(read_rows(s, s->base, SIDE_BASE, c, index, err));
        for (uint32_t r = 0; r < n; ++r) {
            struct rows v = cache_row(s, r, w);
            count_row(s, c, j, &v, w, bpi_mirror_row_pos(s->r->a)[r]);
        }
    }
    return import_rows(s, c, index, err);
}

/* ---- a call ---- */

static int32_t add_logits(struct shadow *s, const struct bpi_call *c, uint32_t port,
                          struct bp_error *err)
{
    const uint32_t n_vocab = s->r->ab->n_vocab;
    const int32_t first = bpi_mirror_first_row(s->r->a, c);
    BP_TRY(reserve(&s->blocks[0], n_vocab * 4ull, err));
    BP_TRY(reserve(&s->blocks[1], n_vocab * 4ull, err));
    for (int64_t i = 0; i < c->port[port].dim[0]; ++i) {
        BP_TRY(bpi_mirror_read(s->r->a, s->r->a, c, port, i, 1, s->blocks[0].p, err));
        BP_TRY(bpi_mirror_read(s->r->a, s->r->b, c, port, i, 1, s->blocks[1].p, err));
        BP_TRY(bpi_ab_add_position(s->r->ab, pos_of(s, first, i), s->blocks[0].p, s->blocks[1].p,
                                   n_vocab, err));
        if (!s->dumping) continue;
        BP_TRY(bpi_ab_keep_logits(s->r->ab, 0, s->blocks[0].p, err));
        BP_TRY(bpi_ab_keep_logits(s->r->ab, 1, s->blocks[1].p, err));
    }
    return BP_OK;
}

static int32_t compare_port(struct shadow *s, const struct bpi_call *c, uint32_t port,
                            struct judged *j, struct bp_error *err)
{
    j->dtype = c->port[port].dtype;
    if (bpi_mirror_same(s->r->a, s->r->b, c, port)) {
        j->e->op.n_rows += (uint64_t)c->port[port].dim[0];
        return BP_OK;
    }
    return compare_floats(s, c, port, j, err);
}

static int32_t compare_outputs(struct shadow *s, const struct bpi_call *c, struct judged *j,
                               struct bp_error *err)
{
    if (strcmp(c->op, "cache_write") == 0 || strcmp(c->op, "key_write") == 0)
        return compare_cache(s, c, j, err);
    if (strcmp(c->op, "select") == 0) return compare_select(s, c, j, err);
    if (strcmp(c->op, "route") == 0) return compare_route(s, c, j, err);
    for (uint32_t i = 0; i < c->n_port; ++i) {
        if ((c->port[i].access & BP_OUT) == 0) continue;
        j->doubtful = false;
        BP_TRY(compare_port(s, c, i, j, err));
        if (strcmp(c->tap, "logits") == 0 && strcmp(c->slot, "quant") == 0)
            BP_TRY(add_logits(s, c, i, err));
    }
    return BP_OK;
}

static int32_t after(void *ctx, const struct bpi_call *c, struct bp_error *err)
{
    struct shadow *s = ctx;
    struct bpi_ab_run *r = s->r;
    if (!s->ran_b) BP_TRY(run_b(s, c, err));
    struct bpi_ab_entry *e = bpi_ab_entry(r->ab, c->slot, c->op, c->tap, c->layer);
    if (e == NULL) return bpi_fail_nomem(err, "compare", sizeof(*e));
    if (e->op.calls++ == 0) {
        e->op.provider_a = bpi_ab_text(r->ab, "%s", c->provider);
        e->op.provider_b = bpi_ab_text(r->ab, "%s", bpi_mirror_provider(r->a, r->b, c));
    }
    e->op.bytes += c->bytes;
    e->op.flops += c->flops;
    r->ab->sum.seconds_a += c->us * 1e-6;
    r->ab->sum.seconds_b += s->us_b * 1e-6;
    BP_TRY(bpi_ab_sample(&e->time_a, c->us, &r->rng, err));
    BP_TRY(bpi_ab_sample(&e->time_b, s->us_b, &r->rng, err));
    struct judged j = {.e = e, .inner = inner_of(c)};
    j.exact_a = is_exact(s, c, SIDE_A);
    j.exact_b = is_exact(s, c, SIDE_B);
    return compare_outputs(s, c, &j, err);
}

/* ---- steps ---- */

static void keep_tap(void *ctx, const struct bp_tap_event *e)
{
    struct shadow *s = ctx;
    if (s->tap_error.code == BP_OK) (void)bpi_ab_keep(s->r->ab, 0, e, &s->tap_error);
}

static int32_t step(struct shadow *s, uint32_t pos, uint32_t n, uint32_t flags,
                    struct bp_error *err)
{
    struct bp_session *const side[] = {s->r->b, s->exact, s->base};
    for (uint32_t k = 0; k < s->batch; ++k) {
        s->items[k] = (struct bp_step_item){.h = BP_HDR(struct bp_step_item, n_logits),
                                            .seq = k,
                                            .flags = flags,
                                            .ids = s->r->ab->ids + pos,
                                            .n_ids = n,
                                            .n_logits = k == 0 ? n : 0};
        if (k == 0) continue;
        int32_t *other = s->others + (size_t)(k - 1) * s->most;
        bpi_ab_neighbour(s->r->ab, k, pos, n, other);
        s->items[k].ids = other;
    }
    for (uint32_t i = 0; i < 3; ++i) {
        if (side[i] != NULL) BP_TRY(bpi_mirror_begin(side[i], s->items, s->batch, err));
    }
    struct bp_error why = BP_ERROR_INIT;
    BP_TRY(
        bpi_ab_stepped(s->r, bp_session_step(s->r->a, s->items, s->batch, &why), "A", &why, err));
    s->r->ab->sum.n_steps_a++;
    s->r->ab->sum.n_steps_b++;
    BP_TRY(bpi_ab_progress(s->r, pos + n, s->r->p->n_ids + s->r->p->n_new, err));
    if (s->tap_error.code != BP_OK)
        return bpi_fail(err, s->tap_error.code, "compare", NULL, "%s", s->tap_error.msg);
    return BP_OK;
}

static int32_t run_steps(struct shadow *s, struct bp_error *err)
{
    struct bpi_ab_run *r = s->r;
    const struct bp_ab_params *p = r->p;
    uint32_t most = 0;
    BP_TRY(bpi_ab_batch(r->a, &p->a, &s->batch, &most, err));
    s->most = most;
    s->others = bpi_calloc((size_t)s->batch * most, sizeof(*s->others));
    if (s->others == NULL) return bpi_fail_nomem(err, "compare", (size_t)s->batch * most);
    for (uint32_t at = 0; at < p->n_ids && r->stopped == NULL;) {
        const uint32_t n = p->n_ids - at < most ? p->n_ids - at : most;
        BP_TRY(step(s, at, n, 0, err));
        at += n;
    }
    for (uint32_t i = 0; i < p->n_new && r->stopped == NULL; ++i) {
        const struct bp_ab_position *last = &r->ab->positions[r->ab->n_positions - 1];
        if (bp_token_is_eog(p->a.model, last->a_id)) break;
        r->ab->ids[r->ab->n_ids++] = last->a_id;
        BP_TRY(step(s, r->ab->n_ids - 1, 1, BP_STEP_DECODE, err));
    }
    return BP_OK;
}

static void free_rooms(struct shadow *s)
{
    for (uint32_t i = 0; i < BPI_CALL_PORTS; ++i) {
        s->r->ab->sum.compare_bytes += s->saved[i].n_bytes;
        bpi_free(s->saved[i].p);
    }
    for (uint32_t i = 0; i < 4; ++i) {
        s->r->ab->sum.compare_bytes += s->blocks[i].n_bytes;
        bpi_free(s->blocks[i].p);
    }
    bpi_free(s->others);
    bpi_ab_route_free(&s->route);
    bpi_ab_ref_end(s->r, s->base);
    bpi_ab_ref_end(s->r, s->exact);
}

int32_t bpi_ab_shadow(struct bpi_ab_run *r, struct bp_error *err)
{
    struct shadow s = {.r = r, .tap_error = BP_ERROR_INIT};
    const struct bpi_watch watch = {.ctx = &s, .before = before, .after = after};
    int32_t rc;
    BP_TRY(bpi_ab_open(r, &r->p->a, "A", &r->a, err));
    BP_TRY(bpi_ab_open(r, &r->p->b, "B", &r->b, err));
    BP_TRY(bpi_mirror_check(r->a, r->b, err));
    BP_TRY(bpi_ab_describe(r->ab, 0, r->a, err));
    BP_TRY(bpi_ab_describe(r->ab, 1, r->b, err));
    bpi_ab_settle_precision(r);
    if (r->p->dump != NULL) {
        s.dumping = true;
        BP_TRY(bp_session_tap(r->a, r->p->dump, keep_tap, &s, err));
    }
    BP_TRY(bpi_session_watch(r->a, &watch, err));
    const uint64_t start = bpi_now_ns();
    rc = run_steps(&s, err);
    r->ab->sum.seconds = (double)(bpi_now_ns() - start) * 1e-9;
    (void)bpi_session_watch(r->a, NULL, NULL);
    bp_session_memory(r->b, &r->ab->sum.memory_b); /* with the weights that came and went */
    free_rooms(&s);
    return rc;
}
