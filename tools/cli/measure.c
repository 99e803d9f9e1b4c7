/* measure.c - how far logits and hidden states are from golden ones, in double. SPDX-License-Identifier: MIT */
#include "measure.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void measure_max(double *max, double v)
{
    if (isnan(*max)) return;
    if (!(v <= *max)) *max = v; /* also when v is NaN */
}

int32_t measure_begin(struct measure *m, uint32_t n_hidden, uint32_t greedy_total)
{
    *m = (struct measure){.greedy_total = greedy_total,
                          .n_hidden = n_hidden,
                          .max_flip_gap = -1.0,
                          .greedy_gap = -1.0};
    if (n_hidden == 0) return BP_OK;
    m->hidden_max = calloc(n_hidden, sizeof *m->hidden_max);
    m->hidden_rows = calloc(n_hidden, sizeof *m->hidden_rows);
    return m->hidden_max != NULL && m->hidden_rows != NULL ? BP_OK : BP_E_NOMEM;
}

void measure_end(struct measure *m)
{
    free(m->flips);
    free(m->hidden_max);
    free(m->hidden_rows);
    *m = (struct measure){0};
}

/* The two best of a row, the lowest id first on ties. NaN never wins. */
struct best {
    int32_t id;
    double gap; /* to the second best; infinite in a vocabulary of one */
};

static struct best find_best(const float *v, uint32_t n)
{
    uint32_t best = 0;
    double second = -INFINITY;
    for (uint32_t i = 1; i < n; ++i) {
        if (v[i] > v[best] || isnan(v[best])) best = i;
    }
    for (uint32_t i = 0; i < n; ++i) {
        if (i != best && (double)v[i] > second) second = (double)v[i];
    }
    return (struct best){(int32_t)best, (double)v[best] - second};
}

static double log_sum_exp(const float *v, uint32_t n)
{
    double max = -INFINITY, sum = 0.0;
    for (uint32_t i = 0; i < n; ++i) {
        if (isnan(v[i])) return NAN;
        max = fmax(max, (double)v[i]);
    }
    for (uint32_t i = 0; i < n; ++i) sum += exp((double)v[i] - max);
    return max + log(sum);
}

static double divergence(const float *golden, const float *ours, uint32_t n)
{
    double zg = log_sum_exp(golden, n), zo = log_sum_exp(ours, n), sum = 0.0;
    for (uint32_t i = 0; i < n; ++i) {
        double lg = (double)golden[i] - zg, p = exp(lg);
        if (p == 0.0) continue; /* p ln p goes to 0 */
        sum += p * (lg - ((double)ours[i] - zo));
    }
    return isnan(zg) || isnan(zo) ? NAN : sum;
}

static int32_t add_flip(struct measure *m, struct measure_flip f)
{
    if (m->n_flips == m->cap_flips) {
        size_t cap = m->cap_flips > 0 ? 2 * m->cap_flips : 16;
        struct measure_flip *flips = realloc(m->flips, cap * sizeof *flips);
        if (flips == NULL) return BP_E_NOMEM;
        m->flips = flips;
        m->cap_flips = cap;
    }
    m->flips[m->n_flips++] = f;
    measure_max(&m->max_flip_gap, f.gap);
    return BP_OK;
}

int32_t measure_row(struct measure *m, uint32_t row, const float *golden, const float *ours,
                    uint32_t n)
{
    for (uint32_t i = 0; i < n; ++i)
        measure_max(&m->max_abs, fabs((double)golden[i] - (double)ours[i]));
    double kl = divergence(golden, ours, n);
    m->kl_sum += kl;
    measure_max(&m->max_kl, kl);
    struct best g = find_best(golden, n), o = find_best(ours, n);
    m->rows++;
    if (g.id != o.id) return add_flip(m, (struct measure_flip){row, g.id, o.id, g.gap});
    m->agree++;
    return BP_OK;
}

int32_t measure_greedy(struct measure *m, const float *ours, uint32_t n, int32_t golden_id)
{
    struct best o = find_best(ours, n);
    if (o.id == golden_id && !m->greedy_off) {
        m->greedy_match++;
    } else if (!m->greedy_off) {
        m->greedy_off = true;
        m->greedy_gap = (double)ours[o.id] - (double)ours[golden_id];
    }
    return o.id;
}

void measure_hidden(struct measure *m, uint32_t level, const float *golden,
                    const struct bp_tensor *ours, uint32_t row, uint32_t n)
{
    bool fits = ours->dtype == BP_DT_F32 && ours->ndim == 2 && ours->dim[1] == (int64_t)n &&
                (int64_t)row < ours->dim[0];
    m->hidden_rows[level]++;
    for (uint32_t i = 0; i < n; ++i) {
        float v = NAN; /* a tensor of another form compares with nothing */
        if (fits)
            v = ((const float *)
                     ours->data)[(int64_t)row * ours->stride[0] + (int64_t)i * ours->stride[1]];
        measure_max(&m->hidden_max[level], fabs((double)golden[i] - (double)v));
    }
}

void measure_merge(struct measure *sum, const struct measure *m)
{
    if (sum->rows == 0 && sum->greedy_total == 0) sum->max_flip_gap = sum->greedy_gap = -1.0;
    measure_max(&sum->max_abs, m->max_abs);
    measure_max(&sum->max_kl, m->max_kl);
    measure_max(&sum->max_flip_gap, m->max_flip_gap);
    measure_max(&sum->greedy_gap, m->greedy_gap);
    sum->kl_sum += m->kl_sum;
    sum->rows += m->rows;
    sum->agree += m->agree;
    sum->steps += m->steps;
    sum->greedy_match += m->greedy_match;
    sum->greedy_total += m->greedy_total;
}

double measure_mean_kl(const struct measure *m)
{
    return m->rows > 0 ? m->kl_sum / (double)m->rows : NAN;
}

double measure_agree(const struct measure *m)
{
    return m->rows > 0 ? (double)m->agree / (double)m->rows : NAN;
}
