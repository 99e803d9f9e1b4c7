/* block_search.c - the scans behind the encoders, and the searches that use nothing but scans.
 * Not here: rounding of scales to what a format can store (block_encode_*.c).
 * Source: least squares, restated for residuals (block_search.h); own derivation. Threads: pure.
 * SPDX-License-Identifier: MIT */
#include "block/block_search.h"

#include <math.h>

#include "base/half.h"

enum { L = BPI_LANES };

/* To the nearest integer, ties to even, for |t| < 2^22: adding 1.5 * 2^23 leaves no bits below 1. A call of rint would
 * keep the loops below from becoming vector code. */
static inline float nearest(float t)
{
    const float shift = 12582912.0f;
    return (t + shift) - shift;
}

static inline float clamp(float t, float lo, float hi)
{
    t = t < lo ? lo : t;
    return t > hi ? hi : t;
}

/* The nearest of the levels of IQ4: each midpoint that t has passed adds the gap between its neighbours. */
static inline float nearest_uneven(float t)
{
    float q = -127.0f;
    q += t > -115.5f ? 23.0f : 0.0f;
    q += t > -93.5f ? 21.0f : 0.0f;
    q += t > -74.0f ? 18.0f : 0.0f;
    q += t > -57.0f ? 16.0f : 0.0f;
    q += t > -42.0f ? 14.0f : 0.0f;
    q += t > -28.5f ? 13.0f : 0.0f;
    q += t > -16.0f ? 12.0f : 0.0f;
    q += t > -4.5f ? 11.0f : 0.0f;
    q += t > 7.0f ? 12.0f : 0.0f;
    q += t > 19.0f ? 12.0f : 0.0f;
    q += t > 31.5f ? 13.0f : 0.0f;
    q += t > 45.5f ? 15.0f : 0.0f;
    q += t > 61.0f ? 16.0f : 0.0f;
    q += t > 79.0f ? 20.0f : 0.0f;
    q += t > 101.0f ? 24.0f : 0.0f;
    return q;
}

bool bpi_block_bring_to_one(const float *src, const float *weights, int n, struct bpi_scaled *out)
{
    float peak = 0.0f, most = 0.0f;
    for (int i = 0; i < n; ++i) {
        peak = fabsf(src[i]) > peak ? fabsf(src[i]) : peak;
        most = weights != NULL && weights[i] > most ? weights[i] : most;
    }
    if (!(peak > 0x1p-25f)) return false;
    out->unit = bpi_f32_from_bits(bpi_f32_bits(peak) & 0x7f800000u);
    const float inv = 1.0f / out->unit;
    for (int i = 0; i < n; ++i) out->x[i] = src[i] * inv;
    for (int i = 0; i < n; ++i) {
        out->w[i] = most > 0.0f ? weights[i] / most : 1.0f;
        out->w[i] = out->w[i] > 0x1p-20f ? out->w[i] : 0x1p-20f;
    }
    return true;
}

float bpi_block_level(const struct bpi_levels *l, float t)
{
    return l->uneven ? nearest_uneven(t) : nearest(clamp(t, l->lo, l->hi));
}

unsigned bpi_block_level_index(float level)
{
    static const signed char levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                           1,    13,   25,  38,  53,  69,  89,  113};
    unsigned n = 0;
    for (int i = 1; i < 16; ++i) n += level >= (float)levels[i];
    return n;
}

/* ---- scale only ---- */

void bpi_block_scan(const struct bpi_group *g, const struct bpi_levels *l,
                    const float inv[BPI_LANES], struct bpi_sums *out)
{
    const float lo = l->lo, hi = l->hi;
    float rr[L] = {0}, rq[L] = {0}, qq[L] = {0};
    if (l->uneven) {
        for (int i = 0; i < g->n; ++i) {
            const float x = g->x[i], w = g->w[i];
            for (int c = 0; c < L; ++c) {
                const float t = x * inv[c], q = nearest_uneven(t), r = t - q;
                rr[c] += w * r * r;
                rq[c] += w * r * q;
                qq[c] += w * q * q;
            }
        }
    } else {
        for (int i = 0; i < g->n; ++i) {
            const float x = g->x[i], w = g->w[i];
            for (int c = 0; c < L; ++c) {
                const float t = x * inv[c], q = nearest(clamp(t, lo, hi)), r = t - q;
                rr[c] += w * r * r;
                rq[c] += w * r * q;
                qq[c] += w * q * q;
            }
        }
    }
    for (int c = 0; c < L; ++c) {
        out->rr[c] = rr[c];
        out->rq[c] = rq[c];
        out->qq[c] = qq[c];
    }
}

static float largest(const struct bpi_group *g)
{
    float best = 0.0f;
    for (int i = 0; i < g->n; ++i) best = fabsf(g->x[i]) > fabsf(best) ? g->x[i] : best;
    return best;
}

struct bpi_scale_fit bpi_block_best_scale(const struct bpi_group *g, const struct bpi_levels *l,
                                          const struct bpi_ladder *ladder)
{
    const float peak = largest(g);
    struct bpi_scale_fit best = {.scale = 0.0f, .err = HUGE_VALF};
    /* No format tells such a group from zeros when another value of the block is about 1. */
    if (fabsf(peak) < 0x1p-30f) return (struct bpi_scale_fit){0.0f, 0.0f};
    for (int s = 0; s < ladder->n_scans; ++s) {
        float inv[L];
        struct bpi_sums sums;
        for (int c = 0; c < L; ++c)
            inv[c] = (ladder->first - ladder->step * (float)(L * s + c)) / peak;
        bpi_block_scan(g, l, inv, &sums);
        for (int c = 0; c < L; ++c) {
            if (!(sums.qq[c] > 0.0f)) continue;
            const float delta = sums.rq[c] / sums.qq[c], unit = 1.0f / inv[c];
            const float err = (sums.rr[c] - delta * sums.rq[c]) * unit * unit;
            if (err < best.err) best = (struct bpi_scale_fit){(1.0f + delta) * unit, err};
        }
    }
    return best;
}

/* ---- scale and minimum ---- */

void bpi_block_scan_min(const struct bpi_group *g, float hi, const float inv[BPI_LANES],
                        const float min[BPI_LANES], struct bpi_min_sums *out)
{
    float sq[L] = {0}, qq[L] = {0}, sr[L] = {0}, rr[L] = {0}, rq[L] = {0};
    for (int i = 0; i < g->n; ++i) {
        const float x = g->x[i], w = g->w[i];
        for (int c = 0; c < L; ++c) {
            const float t = (x - min[c]) * inv[c], q = nearest(clamp(t, 0.0f, hi)), r = t - q;
            const float wq = w * q, wr = w * r;
            sq[c] += wq;
            qq[c] += wq * q;
            sr[c] += wr;
            rr[c] += wr * r;
            rq[c] += wr * q;
        }
    }
    for (int c = 0; c < L; ++c) {
        out->q[c] = sq[c];
        out->qq[c] = qq[c];
        out->r[c] = sr[c];
        out->rr[c] = rr[c];
        out->rq[c] = rq[c];
    }
}

float bpi_block_sum_w(const struct bpi_group *g)
{
    float sum = 0.0f;
    for (int i = 0; i < g->n; ++i) sum += g->w[i];
    return sum;
}

float bpi_block_flat_err(const struct bpi_group *g, float min)
{
    float err = 0.0f;
    for (int i = 0; i < g->n; ++i) err += g->w[i] * (g->x[i] - min) * (g->x[i] - min);
    return err;
}

/* Least squares for the q of candidate c: x is about scale * q + min. */
static struct bpi_min_fit correct(const struct bpi_min_sums *s, int c, float sum_w, float inv,
                                  float min, bool at_most_zero)
{
    const float unit = 1.0f / inv, det = sum_w * s->qq[c] - s->q[c] * s->q[c];
    struct bpi_min_fit f = {.scale = unit, .min = min, .err = s->rr[c], .mean_q = s->q[c] / sum_w};
    if (det > 1e-6f * sum_w * s->qq[c]) { /* else all q are the same */
        const float delta = (sum_w * s->rq[c] - s->q[c] * s->r[c]) / det;
        const float move = (s->qq[c] * s->r[c] - s->q[c] * s->rq[c]) / det;
        f.scale = (1.0f + delta) * unit;
        f.min = min + move * unit;
        f.err = s->rr[c] - delta * s->rq[c] - move * s->r[c];
    }
    if (at_most_zero && f.min > 0.0f &&
        s->qq[c] > 0.0f) { /* the best with min = 0: t and r grow by min * inv */
        const float add = min * inv, rq = s->rq[c] + add * s->q[c], delta = rq / s->qq[c];
        f.scale = (1.0f + delta) * unit;
        f.min = 0.0f;
        f.err = s->rr[c] + 2.0f * add * s->r[c] + add * add * sum_w - delta * rq;
    }
    f.err *= unit * unit;
    return f;
}

struct bpi_min_fit bpi_block_best_min(const struct bpi_group *g, float hi, bool at_most_zero,
                                      float clip, float step)
{
    const float sum_w = bpi_block_sum_w(g);
    float least = g->x[0], most = g->x[0];
    for (int i = 1; i < g->n; ++i) {
        least = g->x[i] < least ? g->x[i] : least;
        most = g->x[i] > most ? g->x[i] : most;
    }
    if (at_most_zero && least > 0.0f) least = 0.0f;
    struct bpi_min_fit best = {.scale = 0.0f, .min = least, .err = HUGE_VALF};
    if (!(most - least > 0x1p-30f)) { /* one value everywhere */
        best.err = 0.0f;
        return best;
    }
    /* Eight places for the least value times eight for the greatest, in levels. */
    for (int s = 0; s < 4; ++s) {
        float inv[L], min[L];
        struct bpi_min_sums sums;
        for (int c = 0; c < L; ++c) {
            const int k = L * s + c;
            const float a = step * (float)(k / 8) - clip, b = hi + clip - step * (float)(k % 8);
            inv[c] = (b - a) / (most - least);
            min[c] = least - a / inv[c];
        }
        bpi_block_scan_min(g, hi, inv, min, &sums);
        for (int c = 0; c < L; ++c) {
            const struct bpi_min_fit f = correct(&sums, c, sum_w, inv[c], min[c], at_most_zero);
            if (f.err < best.err && f.scale > 0.0f) best = f;
        }
    }
    return best;
}
