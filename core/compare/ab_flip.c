/* ab_flip.c - exact scores behind discrete choices: by how much did the loser lose? And which keys stand against each other.
 * Not here: telling flips (ab_shadow.c, ab_free.c). Threads: pure, but for reading the cache.
 * Source: slot_moe.h route, slot_mla.h select, in double. SPDX-License-Identifier: MIT */
#include "compare/compare_priv.h"
#include <math.h>
#include "backplane/slot_moe.h"

int32_t bpi_ab_route_make(struct bpi_ab_route *s, const struct bpi_hparams *hp,
                          struct bp_error *err)
{
    const uint32_t n_group = hp->n_group > 0 ? hp->n_group : 1;
    *s = (struct bpi_ab_route){.n = hp->n_expert, .n_group = n_group};
    s->sel = bpi_calloc(hp->n_expert + 1u, sizeof *s->sel);
    s->group = bpi_calloc(n_group, sizeof *s->group);
    s->kept = bpi_calloc(n_group, sizeof *s->kept);
    if (s->sel != NULL && s->group != NULL && s->kept != NULL) return BP_OK;
    bpi_ab_route_free(s);
    return bpi_fail_nomem(err, "compare", hp->n_expert * sizeof *s->sel);
}

void bpi_ab_route_free(struct bpi_ab_route *s)
{
    bpi_free(s->sel);
    bpi_free(s->group);
    bpi_free(s->kept);
    *s = (struct bpi_ab_route){0};
}

static void score_group(struct bpi_ab_route *s, const struct bpi_hparams *hp, uint32_t g)
{
    const uint32_t size = s->n / s->n_group;
    double best = -INFINITY, second = -INFINITY;
    for (uint32_t i = g * size; i < (g + 1) * size; ++i) {
        if (s->sel[i] > best) {
            second = best;
            best = s->sel[i];
        } else if (s->sel[i] > second) {
            second = s->sel[i];
        }
    }
    s->group[g] = hp->group_score == BP_GROUP_TOP2 && size > 1 ? best + second : best;
}

void bpi_ab_route_score(struct bpi_ab_route *s, const struct bpi_hparams *hp, const float *bias,
                        const float *logits)
{
    double largest = -INFINITY, sum = 0.0;
    for (uint32_t i = 0; i < s->n; ++i) {
        if (logits[i] > largest) largest = logits[i];
    }
    for (uint32_t i = 0; i < s->n; ++i) {
        s->sel[i] = hp->gating == BP_GATING_SIGMOID ? 1.0 / (1.0 + exp(-(double)logits[i]))
                                                    : exp(logits[i] - largest);
        sum += s->sel[i];
    }
    for (uint32_t i = 0; i < s->n; ++i) {
        if (hp->gating != BP_GATING_SIGMOID) s->sel[i] /= sum;
        if (bias != NULL) s->sel[i] += bias[i];
    }
    for (uint32_t g = 0; g < s->n_group; ++g) {
        score_group(s, hp, g);
        s->kept[g] = false;
    }
    const uint32_t used = s->n_group > 1 ? hp->n_group_used : 1;
    for (uint32_t k = 0; k < used && k < s->n_group; ++k) {
        uint32_t best = s->n_group;
        for (uint32_t g = 0; g < s->n_group; ++g) {
            if (!s->kept[g] && (best == s->n_group || s->group[g] > s->group[best])) best = g;
        }
        if (best < s->n_group) s->kept[best] = true;
    }
}

/* An expert of a group that did not come in lost by its group's score. */
double bpi_ab_route_gap(const struct bpi_ab_route *s, int32_t a, int32_t b)
{
    if (a < 0 || b < 0 || (uint32_t)a >= s->n || (uint32_t)b >= s->n) return (double)NAN;
    const uint32_t size = s->n / s->n_group, ga = (uint32_t)a / size, gb = (uint32_t)b / size;
    if (s->kept[ga] && s->kept[gb]) return fabs(s->sel[a] - s->sel[b]);
    double in = INFINITY, out = s->group[s->kept[gb] ? ga : gb];
    for (uint32_t g = 0; g < s->n_group; ++g) {
        if (s->kept[g] && s->group[g] < in) in = s->group[g];
    }
    return fabs(in - out);
}

double bpi_ab_route_size(const struct bpi_ab_route *s)
{
    double size = 0.0;
    for (uint32_t i = 0; i < s->n; ++i) {
        if (fabs(s->sel[i]) > size) size = fabs(s->sel[i]);
    }
    return s->n_group > 1 ? 2.0 * size : size;
}

int32_t bpi_ab_index_scores(struct bp_session *s, int32_t layer, uint32_t seq, const float *q,
                            const float *w, uint32_t n_keys, double *out, struct bp_error *err)
{
    const struct bpi_hparams *hp = bpi_mirror_hparams(s);
    float *key = bpi_calloc(hp->index_dim, sizeof *key);
    if (key == NULL) return bpi_fail_nomem(err, "compare", hp->index_dim * sizeof *key);
    int32_t rc = BP_OK;
    for (uint32_t p = 0; p < n_keys && rc == BP_OK; ++p) {
        double sum = 0.0;
        rc = bpi_mirror_cache_row(s, layer, true, seq, p, key, err);
        for (uint32_t h = 0; h < hp->n_index_head && rc == BP_OK; ++h) {
            double dot = 0.0;
            for (uint32_t d = 0; d < hp->index_dim; ++d)
                dot += (double)q[(size_t)h * hp->index_dim + d] * key[d];
            if (dot > 0.0) sum += w[h] * dot;
        }
        out[p] = sum;
    }
    bpi_free(key);
    return rc;
}

static int32_t next_of(const int32_t *v, const int32_t *other, uint64_t k, uint64_t *at)
{
    while (*at < k) {
        const int32_t key = v[(*at)++];
        bool both = key < 0;
        for (uint64_t i = 0; i < k && !both; ++i) both = other[i] == key;
        if (!both) return key;
    }
    return -1;
}

bool bpi_ab_next_keys(const int32_t *a, const int32_t *b, uint64_t k, uint64_t at[2],
                      int32_t *only_a, int32_t *only_b)
{
    *only_a = next_of(a, b, k, &at[0]);
    *only_b = next_of(b, a, k, &at[1]);
    return *only_a >= 0 || *only_b >= 0;
}

bool bpi_ab_next_experts(const int32_t *a, const int32_t *b, uint32_t k, struct bpi_ab_pairs *at,
                         int32_t *ea, int32_t *eb)
{
    if (bpi_ab_next_keys(a, b, k, at->keys, ea, eb)) return at->other_set = true;
    while (!at->other_set && at->place < k) {
        *ea = a[at->place];
        *eb = b[at->place++];
        if (*ea != *eb) return true;
    }
    return false;
}

double bpi_ab_key_gap(const double *scores, uint32_t n_keys, int32_t a, int32_t b)
{
    if (scores == NULL || a < 0 || b < 0 || (uint32_t)a >= n_keys || (uint32_t)b >= n_keys)
        return (double)NAN;
    return fabs(scores[a] - scores[b]);
}
