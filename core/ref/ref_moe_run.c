/* ref_moe_run.c - the experts' products, grouped by expert so that a row of a weight is decoded once per call.
 * First h = silu(gate x) * (up x) for every pair (token, chosen expert) and for the shared expert, then, block by block
 * of output rows, down for all pairs, and for each token the sum in the order of its choices, shared last. So neither
 * the grouping nor the number of tokens shows in a token's result.
 * Threads: as slot_moe.h says; work is split by rows. SPDX-License-Identifier: MIT */
#include "ref/ref_moe.h"

void bpi_ref_moe_take(const struct bpi_ref *ref, struct bpi_ref_area *a,
                      const struct bpi_ref_moe_size *size, struct bpi_ref_moe_scratch *s)
{
    uint64_t slices = bpi_ref_slices(ref), n_pair = 0, n_x = 0, n_h = 0, n_hs = 0, n_part = 0,
             n_decoded = 0, n = 0;
    s->x_stride = (size->n_embd + 7) / 8 * 8;
    s->h_stride = (size->n_ff + 7) / 8 * 8;
    s->h_shared_stride = (size->n_ff_shared + 7) / 8 * 8;
    s->decoded_stride = 2 * bpi_ref_slice_floats(size->cover); /* rows of gate and of up */
    bool ok = bpi_mul_u64(size->n_tok, size->n_used, &n_pair) && n_pair <= INT32_MAX &&
              bpi_mul_u64(size->n_tok, (uint64_t)s->x_stride, &n_x) &&
              bpi_mul_u64(n_pair, (uint64_t)s->h_stride, &n_h) &&
              bpi_mul_u64(size->n_tok, (uint64_t)s->h_shared_stride, &n_hs) &&
              bpi_add_u64(n_pair, size->n_tok, &n) &&
              bpi_mul_u64(n, BPI_REF_ROW_BLOCK, &s->part_stride) &&
              bpi_mul_u64(s->part_stride, slices, &n_part) &&
              bpi_mul_u64(s->decoded_stride, slices, &n_decoded);
    if (!ok) {
        a->bad = true;
        return;
    }
    s->x = bpi_ref_area_take(a, n_x, sizeof *s->x);
    s->x_row = bpi_ref_area_take(a, slices * (uint64_t)s->x_stride, sizeof *s->x_row);
    s->h = bpi_ref_area_take(a, n_h, sizeof *s->h);
    s->h_shared = bpi_ref_area_take(a, n_hs, sizeof *s->h_shared);
    s->part = bpi_ref_area_take(a, n_part, sizeof *s->part);
    s->decoded = bpi_ref_area_take(a, n_decoded, sizeof *s->decoded);
    s->first = bpi_ref_area_take(a, size->n_expert + 1, sizeof *s->first);
    s->pair_tok = bpi_ref_area_take(a, n_pair, sizeof *s->pair_tok);
    s->pair_of = bpi_ref_area_take(a, n_pair, sizeof *s->pair_of);
}

struct job {
    struct bpi_ref *ref;
    const struct bp_moe_run_args *a;
    const struct bpi_ref_moe *m;
    struct bpi_ref_moe_scratch s;
    int64_t n_tok, n_used, n_expert, n_pair; /* experts and pairs of this rank */
    int64_t tok_rows; /* the most tokens that share a row: how many rows to decode at a time */
};

/* Counting sort of the choices by expert. Within an expert pairs keep the order of tokens. */
static void group_pairs(struct job *j)
{
    const struct bpi_ref_moe *m = j->m;
    int32_t *first = j->s.first;
    for (int64_t e = 0; e <= j->n_expert; ++e) first[e] = 0;
    for (int64_t t = 0; t < j->n_tok; ++t) {
        const int32_t *ids = bpi_ref_at(&j->a->ids, t, 0, 0);
        for (int64_t k = 0; k < j->n_used; ++k) {
            if (ids[k] >= m->expert_begin && ids[k] < m->expert_end)
                first[ids[k] - m->expert_begin]++;
        }
    }
    int32_t at = 0, most = 0;
    for (int64_t e = 0; e <= j->n_expert; ++e) {
        int32_t count = first[e];
        first[e] = at;
        at += count;
        if (count > most) most = count;
    }
    for (int64_t t = 0; t < j->n_tok; ++t) {
        const int32_t *ids = bpi_ref_at(&j->a->ids, t, 0, 0);
        for (int64_t k = 0; k < j->n_used; ++k) {
            bool here = ids[k] >= m->expert_begin && ids[k] < m->expert_end;
            int32_t pair = here ? first[ids[k] - m->expert_begin]++ : -1;
            j->s.pair_of[t * j->n_used + k] = pair;
            if (here) j->s.pair_tok[pair] = (int32_t)t;
        }
    }
    for (int64_t e = j->n_expert; e > 0; --e)
        first[e] = first[e - 1]; /* filling moved each to the next */
    first[0] = 0;
    j->n_pair = at;
    j->tok_rows = m->shared_gate.planes > 0 ? j->n_tok : most;
}

static void read_input(void *arg, uint64_t begin, uint64_t end)
{
    struct job *j = arg;
    for (uint64_t slice = begin; slice < end; ++slice) {
        int64_t t, t_end;
        float *row = j->s.x_row + slice * (uint64_t)j->s.x_stride;
        bpi_ref_slice_part(slice, bpi_ref_slices(j->ref), j->n_tok, &t, &t_end);
        for (; t < t_end; ++t) {
            double *x = j->s.x + t * j->s.x_stride;
            bpi_ref_load(row, bpi_ref_at(&j->a->x, t, 0, 0), j->a->x.dtype, j->m->n_embd,
                         j->ref->round);
            for (int64_t k = 0; k < j->m->n_embd; ++k) x[k] = (double)row[k];
        }
    }
}

/* ---- gate and up ---- */

/* Tokens of one expert: all of them for the shared one (pick == NULL). */
struct group {
    const struct bpi_ref_weight *gate, *up, *down;
    int64_t plane, n;
    const int32_t *pick;
    double *h; /* (n, h_stride) */
    int64_t h_stride;
};

/* e == n_expert is the shared expert. */
static struct group group_of(const struct job *j, int64_t e)
{
    const struct bpi_ref_moe *m = j->m;
    struct group g = {
        .gate = &m->gate, .up = &m->up, .down = &m->down, .plane = e, .h_stride = j->s.h_stride};
    if (e < j->n_expert) {
        g.n = j->s.first[e + 1] - j->s.first[e];
        g.pick = j->s.pair_tok + j->s.first[e];
        g.h = j->s.h + j->s.first[e] * j->s.h_stride;
        return g;
    }
    g = (struct group){.gate = &m->shared_gate, .up = &m->shared_up, .down = &m->shared_down};
    g.n = m->shared_gate.planes > 0 ? j->n_tok : 0;
    g.h = j->s.h_shared;
    g.h_stride = j->s.h_shared_stride;
    return g;
}

static void inner_block(const struct job *j, const struct group *g, int64_t row, int64_t n_rows,
                        float *decoded)
{
    enum { T = BPI_REF_TOK_BLOCK, R = BPI_REF_ROW_BLOCK };
    const uint32_t round = j->ref->round;
    double gate[T * R], up[T * R];
    int64_t gate_stride, up_stride;
    const float *wg = bpi_ref_weight_rows(g->gate, g->plane, row, n_rows, decoded, &gate_stride);
    const float *wu = bpi_ref_weight_rows(g->up, g->plane, row, n_rows,
                                          decoded + j->s.decoded_stride / 2, &up_stride);
    for (int64_t t = 0; t < g->n; t += T) {
        int64_t n = g->n - t < T ? g->n - t : T, k = j->m->n_embd;
        const double *x = g->pick != NULL ? j->s.x : j->s.x + t * j->s.x_stride;
        const int32_t *pick = g->pick != NULL ? g->pick + t : NULL;
        bpi_ref_product(wg, gate_stride, n_rows, x, j->s.x_stride, pick, n, k, gate, R);
        bpi_ref_product(wu, up_stride, n_rows, x, j->s.x_stride, pick, n, k, up, R);
        for (int64_t i = 0; i < n; ++i) {
            double *h = g->h + (t + i) * g->h_stride + row;
            for (int64_t r = 0; r < n_rows; ++r) {
                /* Each step rounded as an op of its own would leave it in F32. */
                double a = (double)bpi_ref_round_once(gate[i * R + r], BP_DT_F32, round);
                double b = (double)bpi_ref_round_once(up[i * R + r], BP_DT_F32, round);
                h[r] = (double)bpi_ref_round_once(bpi_ref_silu(a) * b, BP_DT_F32, round);
            }
        }
    }
}

/* Blocks of inner rows of all experts that have tokens, the shared one last; items are numbered through. */
static void inner_slices(void *arg, uint64_t begin, uint64_t end)
{
    struct job *j = arg;
    for (uint64_t slice = begin; slice < end; ++slice) {
        float *decoded = j->s.decoded + slice * j->s.decoded_stride;
        for (int64_t e = 0; e <= j->n_expert; ++e) {
            struct group g = group_of(j, e);
            if (g.n == 0) continue;
            int64_t cover = g.gate->cover > g.up->cover ? g.gate->cover : g.up->cover;
            int64_t rows = bpi_ref_slice_rows(cover, j->tok_rows);
            int64_t b, b_end, n_blocks = (g.gate->rows + rows - 1) / rows;
            /* Starting with another slice for each expert evens out experts with fewer blocks than slices. */
            uint64_t slices = bpi_ref_slices(j->ref);
            bpi_ref_slice_part((slice + (uint64_t)e) % slices, slices, n_blocks, &b, &b_end);
            for (; b < b_end; ++b) {
                int64_t left = g.gate->rows - b * rows;
                inner_block(j, &g, b * rows, left < rows ? left : rows, decoded);
            }
        }
    }
}

/* ---- down, and the sum of each token ---- */

/* y = the choices in their order, then the shared expert; `part` holds one row block of every pair and token. */
static void sum_token(const struct job *j, int64_t t, int64_t row, int64_t n_rows,
                      const double *part)
{
    enum { R = BPI_REF_ROW_BLOCK };
    const struct bp_moe_run_args *a = j->a;
    const float *gates = bpi_ref_at(&a->gates, t, 0, 0);
    void *to = bpi_ref_at(&a->y, t, row, 0);
    double y[R] = {0};
    for (int64_t k = 0; k < j->n_used; ++k) {
        int32_t pair = j->s.pair_of[t * j->n_used + k];
        if (pair < 0) continue;
        for (int64_t r = 0; r < n_rows; ++r) y[r] += (double)gates[k] * part[(int64_t)pair * R + r];
    }
    if (j->m->shared_down.planes > 0) {
        for (int64_t r = 0; r < n_rows; ++r) y[r] += part[(j->n_pair + t) * R + r];
    }
    if (a->accumulate != 0) {
        float before[R];
        bpi_ref_load(before, to, a->y.dtype, n_rows, j->ref->round);
        for (int64_t r = 0; r < n_rows; ++r) y[r] += (double)before[r];
    }
    bpi_ref_store(to, a->y.dtype, y, n_rows, j->ref->round);
}

static void outer_block(const struct job *j, int64_t row, int64_t n_rows, float *decoded,
                        double *part)
{
    enum { R = BPI_REF_ROW_BLOCK };
    for (int64_t e = 0; e <= j->n_expert; ++e) {
        struct group g = group_of(j, e);
        if (g.n == 0) continue;
        int64_t stride, at = e < j->n_expert ? j->s.first[e] : j->n_pair;
        const float *w = bpi_ref_weight_rows(g.down, g.plane, row, n_rows, decoded, &stride);
        bpi_ref_product(w, stride, n_rows, g.h, g.h_stride, NULL, g.n, g.down->cols, part + at * R,
                        R);
    }
    for (int64_t t = 0; t < j->n_tok; ++t) sum_token(j, t, row, n_rows, part);
}

static void outer_slices(void *arg, uint64_t begin, uint64_t end)
{
    struct job *j = arg;
    const struct bpi_ref_moe *m = j->m;
    int64_t cover = m->down.cover > m->shared_down.cover ? m->down.cover : m->shared_down.cover;
    int64_t rows = bpi_ref_slice_rows(cover, j->tok_rows);
    for (uint64_t slice = begin; slice < end; ++slice) {
        int64_t b, b_end;
        float *decoded = j->s.decoded + slice * j->s.decoded_stride;
        double *part = j->s.part + slice * j->s.part_stride;
        bpi_ref_slice_part(slice, bpi_ref_slices(j->ref), (m->n_embd + rows - 1) / rows, &b,
                           &b_end);
        for (; b < b_end; ++b) {
            int64_t left = m->n_embd - b * rows;
            outer_block(j, b * rows, left < rows ? left : rows, decoded, part);
        }
    }
}

static int64_t widest(const struct bpi_ref_moe *m)
{
    const struct bpi_ref_weight *all[] = {&m->gate,        &m->up,        &m->down,
                                          &m->shared_gate, &m->shared_up, &m->shared_down};
    int64_t cover = 0;
    for (size_t i = 0; i < BPI_ARRAY_LEN(all); ++i)
        cover = all[i]->cover > cover ? all[i]->cover : cover;
    return cover;
}

static int32_t check_call(const struct bpi_ref_moe *m, const struct bp_moe_run_args *a,
                          struct bp_error *err)
{
    const int64_t n_tok = a->x.dim[0];
    if (a->x.dim[1] == m->n_embd && a->y.dim[1] == m->n_embd && a->y.dim[0] == n_tok &&
        a->ids.dim[0] == n_tok && a->gates.dim[0] == n_tok && a->gates.dim[1] == a->ids.dim[1]) {
        return BP_OK;
    }
    return bpi_fail(err, BP_E_ARG, "ref", "moe.run",
                    "x (%lld, %lld), ids (%lld, %lld), gates (%lld, %lld), y (%lld, %lld) do not "
                    "agree for n_embd %lld",
                    (long long)n_tok, (long long)a->x.dim[1], (long long)a->ids.dim[0],
                    (long long)a->ids.dim[1], (long long)a->gates.dim[0],
                    (long long)a->gates.dim[1], (long long)a->y.dim[0], (long long)a->y.dim[1],
                    (long long)m->n_embd);
}

int32_t bpi_ref_moe_run(void *self, const struct bp_launch *l, const struct bp_moe_run_args *a,
                        struct bp_error *err)
{
    const struct bpi_ref_moe *m = a->weights;
    struct job j = {.ref = self, .a = a, .m = m, .n_tok = a->x.dim[0], .n_used = a->ids.dim[1]};
    BP_TRY(check_call(m, a, err));
    if (j.n_tok == 0) return BP_OK;
    j.n_expert = m->expert_end - m->expert_begin;
    struct bpi_ref_moe_size size = {.n_tok = (uint64_t)j.n_tok,
                                    .n_used = (uint64_t)j.n_used,
                                    .n_expert = (uint64_t)j.n_expert,
                                    .n_embd = m->n_embd,
                                    .n_ff = m->n_ff,
                                    .n_ff_shared = m->n_ff_shared,
                                    .cover = widest(m)};
    struct bpi_ref_area area = bpi_ref_area_of(l);
    bpi_ref_moe_take(j.ref, &area, &size, &j.s);
    if (area.bad) return bpi_ref_area_fail(l, "moe.run", err);
    group_pairs(&j);
    uint64_t inner =
        (uint64_t)(j.n_pair * m->n_ff + j.n_tok * m->n_ff_shared) * (uint64_t)m->n_embd;
    bpi_ref_run_slices(j.ref, (uint64_t)(j.n_tok * m->n_embd), read_input, &j);
    bpi_ref_run_slices(j.ref, 2 * inner, inner_slices, &j);
    bpi_ref_run_slices(j.ref, inner, outer_slices, &j);
    return BP_OK;
}
