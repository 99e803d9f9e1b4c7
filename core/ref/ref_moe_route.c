/* ref_moe_route.c - which experts a token goes to, and with what weight.
 * Source: DeepSeek-V2 report (2024) for softmax and groups by their maximum, DeepSeek-V3 report (2024) for sigmoid, the
 * bias that acts on the choice only, and groups by the sum of their two best.
 * All arithmetic is double. Threads: as slot_moe.h says. SPDX-License-Identifier: MIT */
#include "ref/ref_moe.h"

void bpi_ref_route_take(const struct bpi_ref *ref, struct bpi_ref_area *a, uint64_t n_expert,
                        struct bpi_ref_route_scratch *s)
{
    uint64_t n = bpi_ref_slices(ref);
    s->stride = n_expert;
    if (!bpi_mul_u64(n, s->stride, &n)) a->bad = true;
    s->p = bpi_ref_area_take(a, n, sizeof *s->p);
    s->sel = bpi_ref_area_take(a, n, sizeof *s->sel);
    s->group = bpi_ref_area_take(a, n, sizeof *s->group);
    s->mark = bpi_ref_area_take(a, n, sizeof *s->mark);
}

struct job {
    struct bpi_ref *ref;
    const struct bp_moe_route_args *a;
    struct bpi_ref_route_scratch s;
    int64_t n_expert, n_used, n_group, n_group_used;
};

/* One row's share of the scratch. */
struct row {
    double *p, *sel, *group;
    uint8_t *mark;
};

static void softmax(const float *z, int64_t n, double *p)
{
    double top = -INFINITY, sum = 0.0;
    for (int64_t i = 0; i < n; ++i) {
        if ((double)z[i] > top) top = (double)z[i];
    }
    for (int64_t i = 0; i < n; ++i) {
        p[i] = exp((double)z[i] - top);
        sum += p[i];
    }
    for (int64_t i = 0; i < n; ++i) p[i] /= sum;
}

/* Fills p and sel; false when a logit is no finite number, or a score none. */
static bool score(const struct job *j, const float *z, const struct row *w)
{
    const float *bias = j->a->bias.data;
    if (j->a->gating == BP_GATING_SOFTMAX) {
        softmax(z, j->n_expert, w->p);
    } else {
        for (int64_t i = 0; i < j->n_expert; ++i) w->p[i] = 1.0 / (1.0 + exp(-(double)z[i]));
    }
    bool numbers = true;
    for (int64_t i = 0; i < j->n_expert; ++i) {
        w->sel[i] = bias != NULL ? w->p[i] + (double)bias[i] : w->p[i];
        if (!isfinite(z[i]) || w->sel[i] != w->sel[i]) numbers = false;
    }
    return numbers;
}

/* Its best, or the sum of its two best; a group of one has no second, and that counts nothing. */
static double group_score(const double *sel, int64_t n, uint32_t kind)
{
    double best = sel[0], second = -INFINITY;
    for (int64_t i = 1; i < n; ++i) {
        if (sel[i] > best) {
            second = best;
            best = sel[i];
        } else if (sel[i] > second) {
            second = sel[i];
        }
    }
    return kind == BP_GROUP_MAX || n == 1 ? best : best + second;
}

/* Marks the experts that may be chosen. A dropped group is out, whatever sign its scores have. */
static void mark_allowed(const struct job *j, const struct row *w)
{
    const int64_t size = j->n_expert / j->n_group;
    for (int64_t i = 0; i < j->n_expert; ++i) w->mark[i] = j->n_group_used >= j->n_group;
    if (j->n_group_used >= j->n_group) return;
    for (int64_t g = 0; g < j->n_group; ++g)
        w->group[g] = group_score(w->sel + g * size, size, j->a->group_score);
    for (int64_t k = 0; k < j->n_group_used; ++k) {
        int64_t best = -1;
        for (int64_t g = 0; g < j->n_group; ++g) {
            if (w->mark[g * size] == 0 && (best < 0 || w->group[g] > w->group[best])) best = g;
        }
        for (int64_t i = 0; i < size; ++i) w->mark[best * size + i] = 1;
    }
}

static void poison_row(const struct job *j, int32_t *ids, float *weights)
{
    for (int64_t k = 0; k < j->n_used; ++k) {
        ids[k] = -1;
        weights[k] = NAN;
    }
}

static void route_row(const struct job *j, const float *z, const struct row *w, int32_t *ids,
                      float *weights)
{
    if (!score(j, z, w)) {
        poison_row(j, ids, weights);
        return;
    }
    double sum = 0.0;
    mark_allowed(j, w);
    for (int64_t k = 0; k < j->n_used; ++k) {
        int64_t best = -1;
        for (int64_t i = 0; i < j->n_expert; ++i) {
            if (w->mark[i] != 0 && (best < 0 || w->sel[i] > w->sel[best])) best = i;
        }
        ids[k] =
            (int32_t)best; /* -1 cannot happen: supports() made sure that enough experts stay */
        if (best < 0) continue;
        w->mark[best] = 0;
        sum += w->p[best];
    }
    for (int64_t k = 0; k < j->n_used; ++k) {
        double weight = ids[k] >= 0 ? w->p[ids[k]] : 0.0;
        if (j->a->normalize != 0) weight /= sum + 1e-20;
        weights[k] = (float)(weight * (double)j->a->scale);
    }
}

static void route_slices(void *arg, uint64_t begin, uint64_t end)
{
    struct job *j = arg;
    const struct bp_moe_route_args *a = j->a;
    for (uint64_t slice = begin; slice < end; ++slice) {
        int64_t t, t_end;
        uint64_t at = slice * j->s.stride;
        struct row w = {j->s.p + at, j->s.sel + at, j->s.group + at, j->s.mark + at};
        bpi_ref_slice_part(slice, bpi_ref_slices(j->ref), a->logits.dim[0], &t, &t_end);
        for (; t < t_end; ++t) {
            route_row(j, bpi_ref_at(&a->logits, t, 0, 0), &w, bpi_ref_at(&a->ids, t, 0, 0),
                      bpi_ref_at(&a->weights, t, 0, 0));
        }
    }
}

static int32_t check_call(const struct job *j, struct bp_error *err)
{
    const struct bp_moe_route_args *a = j->a;
    if (j->n_expert < 1 || j->n_expert % j->n_group != 0) {
        return bpi_fail(err, BP_E_ARG, "ref", "moe.route", "%lld groups do not divide %lld experts",
                        (long long)j->n_group, (long long)j->n_expert);
    }
    if (j->n_used < 1 || j->n_used > j->n_group_used * (j->n_expert / j->n_group)) {
        return bpi_fail(err, BP_E_ARG, "ref", "moe.route",
                        "%lld experts cannot be chosen from %lld of %lld groups",
                        (long long)j->n_used, (long long)j->n_group_used, (long long)j->n_group);
    }
    if (a->gating != BP_GATING_SOFTMAX && a->gating != BP_GATING_SIGMOID) {
        return bpi_fail(err, BP_E_ARG, "ref", "moe.route",
                        "gating %u is neither softmax (1) nor sigmoid (2)", a->gating);
    }
    return BP_OK;
}

int32_t bpi_ref_moe_route(void *self, const struct bp_launch *l, const struct bp_moe_route_args *a,
                          struct bp_error *err)
{
    struct job j = {.ref = self, .a = a, .n_expert = a->logits.dim[1], .n_used = a->ids.dim[1]};
    j.n_group = a->n_group > 1 ? a->n_group : 1;
    j.n_group_used = j.n_group > 1 ? a->n_group_used : 1;
    if (j.n_group_used > j.n_group) j.n_group_used = j.n_group;
    BP_TRY(check_call(&j, err));
    if (a->logits.dim[0] == 0) return BP_OK;
    struct bpi_ref_area area = bpi_ref_area_of(l);
    bpi_ref_route_take(j.ref, &area, (uint64_t)j.n_expert, &j.s);
    if (area.bad) return bpi_ref_area_fail(l, "moe.route", err);
    /* exp is the cost: a few dozen multiply-adds each. */
    bpi_ref_run_slices(j.ref, (uint64_t)(a->logits.dim[0] * j.n_expert) * 32, route_slices, &j);
    return BP_OK;
}
