/* block_encode_min.c - encoders of super-blocks whose groups have an integer scale and an integer minimum: Q2_K, Q4_K,
 * Q5_K.
 * Not here: groups without a minimum (block_encode_scale.c), where the course of the search is told; here it is the
 * same with two halves and with pairs of integers.
 * A minimum is subtracted, so with positive halves no group can lie above zero. Blocks that would suffer from that are
 * encoded upside down, with two negative halves.
 * Threads: pure. SPDX-License-Identifier: MIT */
#include "block/block_encode.h"

#include <math.h>

/* Measured on a trained model's weights: a third round or four starts lower the error by another 0.1 to 0.4 % and cost
 * half as much again or twice as much. */
enum { SUPER = 256, MAX_GROUPS = 16, L = BPI_LANES, STARTS = 2, ROUNDS = 2 };

struct format {
    float hi; /* levels 0 .. hi */
    float clip, step;
    int n_groups;
    int s_hi; /* integers 0 .. s_hi */
};

struct block {
    const struct format *f;
    struct bpi_scaled b;
    struct bpi_group g[MAX_GROUPS];
    struct bpi_min_fit fit[MAX_GROUPS];
    float sum_w[MAX_GROUPS];
};

struct choice {
    uint16_t d, dmin;
    int s[MAX_GROUPS], m[MAX_GROUPS];
    double err;
    double a11, a12, a22, b1, b2; /* least squares for the relative corrections of d and dmin */
};

/* How far groups lie on one side of zero, summed over the groups. */
static bool lies_above(const struct bpi_scaled *b, int len)
{
    double above = 0.0, below = 0.0;
    for (int at = 0; at < SUPER; at += len) {
        float least = b->x[at], most = b->x[at];
        for (int i = at; i < at + len; ++i) {
            least = b->x[i] < least ? b->x[i] : least;
            most = b->x[i] > most ? b->x[i] : most;
        }
        if (least > 0.0f) above += (double)least;
        if (most < 0.0f) below -= (double)most;
    }
    return above > below;
}

/* *out_flip: the values were negated. */
static bool block_open(struct block *k, const struct format *f, const float *src,
                       const float *weights, bool *out_flip)
{
    const int len = SUPER / f->n_groups;
    k->f = f;
    if (!bpi_block_bring_to_one(src, weights, SUPER, &k->b)) return false;
    *out_flip = lies_above(&k->b, len);
    for (int i = 0; i < SUPER && *out_flip; ++i) k->b.x[i] = -k->b.x[i];
    for (int j = 0; j < f->n_groups; ++j) {
        k->g[j] = (struct bpi_group){k->b.x + len * j, k->b.w + len * j, len};
        k->fit[j] = bpi_block_best_min(&k->g[j], f->hi, true, f->clip, f->step);
        k->sum_w[j] = bpi_block_sum_w(&k->g[j]);
    }
    return true;
}

static int limit(float v, int hi)
{
    return v < 0.0f ? 0 : v > (float)hi ? hi : (int)v;
}

/* Four integer scales around the best one, each with the four minima around the one that suits it; the best pair is
 * added to *c. */
static void choose_group(const struct block *k, int j, float d, float dmin, struct choice *c)
{
    const struct bpi_min_fit *fit = &k->fit[j];
    const int s_hi = k->f->s_hi;
    int s[L], m[L];
    float inv[L], min[L];
    struct bpi_min_sums sums;
    for (int i = 0; i < L; ++i) {
        s[i] = limit(fit->scale / d - 1.0f + (float)(i / 4), s_hi);
        /* With another scale the line through the middle of the values starts elsewhere. */
        const float start = fit->min + (fit->scale - d * (float)s[i]) * fit->mean_q;
        m[i] = dmin > 0.0f ? limit(-start / dmin - 1.0f + (float)(i % 4), s_hi) : 0;
        inv[i] = s[i] != 0 ? 1.0f / (d * (float)s[i]) : 0.0f;
        min[i] = -dmin * (float)m[i];
    }
    bpi_block_scan_min(&k->g[j], k->f->hi, inv, min, &sums);
    float best_err = HUGE_VALF;
    int best = 0;
    for (int i = 0; i < L; ++i) {
        const float unit = d * (float)s[i];
        const float err =
            s[i] != 0 ? unit * unit * sums.rr[i] : bpi_block_flat_err(&k->g[j], min[i]);
        if (!(err < best_err)) continue;
        best_err = err;
        best = i;
    }
    c->s[j] = s[best];
    c->m[j] = m[best];
    c->err += (double)best_err;
    const double unit = (double)d * s[best], at = (double)min[best];
    c->a11 += unit * unit * (double)sums.qq[best];
    c->a12 += unit * at * (double)sums.q[best];
    c->a22 += at * at * (double)k->sum_w[j];
    c->b1 += unit * unit * (double)sums.rq[best];
    c->b2 += unit * at * (double)sums.r[best];
    if (s[best] == 0) {
        for (int i = 0; i < k->g[j].n; ++i)
            c->b2 += at * (double)k->g[j].w[i] * ((double)k->g[j].x[i] - at);
    }
}

static void choose_all(const struct block *k, uint16_t half, uint16_t half_min, struct choice *c)
{
    const float d = bpi_block_from_half(half, k->b.unit);
    const float dmin = bpi_block_from_half(half_min, k->b.unit);
    *c = (struct choice){.d = half, .dmin = half_min};
    for (int j = 0; j < k->f->n_groups; ++j) choose_group(k, j, d, dmin, c);
}

/* Moves both halves to where least squares wants them for the integers and levels of *c. */
static void correct(const struct choice *c, float unit, uint16_t *half, uint16_t *half_min)
{
    const double det = c->a11 * c->a22 - c->a12 * c->a12;
    double delta = c->a11 > 0.0 ? c->b1 / c->a11 : 0.0, move = 0.0;
    if (det > 1e-9 * c->a11 * c->a22) {
        delta = (c->a22 * c->b1 - c->a12 * c->b2) / det;
        move = (c->a11 * c->b2 - c->a12 * c->b1) / det;
    }
    const double d = (1.0 + delta) * (double)bpi_block_from_half(*half, unit);
    const double dmin = (1.0 + move) * (double)bpi_block_from_half(*half_min, unit);
    *half = d > 0.0 ? bpi_block_to_half((float)d, unit) : 0;
    *half_min = dmin > 0.0 ? bpi_block_to_half((float)dmin, unit) : 0;
}

/* The half for which `peak` is at most the integer `top`. */
static uint16_t half_for(float peak, int top, float unit)
{
    uint16_t half = bpi_block_to_half(peak / (float)top, unit);
    if (bpi_block_from_half(half, unit) * (float)top < peak) half = bpi_block_half_step(half, 1);
    return half;
}

static struct choice search(const struct block *k)
{
    const struct format *f = k->f;
    struct choice best = {.err = HUGE_VAL};
    float peak = 0.0f, peak_min = 0.0f;
    for (int j = 0; j < f->n_groups; ++j) {
        peak = k->fit[j].scale > peak ? k->fit[j].scale : peak;
        peak_min = -k->fit[j].min > peak_min ? -k->fit[j].min : peak_min;
    }
    for (int start = 0; start < STARTS; ++start) {
        uint16_t half = half_for(peak, f->s_hi - start, k->b.unit);
        uint16_t half_min = half_for(peak_min, f->s_hi, k->b.unit);
        for (int round = 0; round < ROUNDS; ++round) {
            struct choice c;
            const uint16_t before = half, before_min = half_min;
            if (half == 0) half = 1; /* all groups are flat, or halves are too coarse */
            choose_all(k, half, half_min, &c);
            if (c.err < best.err) best = c;
            correct(&c, k->b.unit, &half, &half_min);
            if (half == before && half_min == before_min) break;
        }
    }
    return best;
}

struct result {
    uint16_t d, dmin;
    int s[MAX_GROUPS], m[MAX_GROUPS];
    unsigned char q[SUPER];
};

static void encode(const struct format *f, const float *src, const float *weights,
                   struct result *out)
{
    struct block k;
    bool flip = false;
    memset(out, 0, sizeof *out);
    if (!block_open(&k, f, src, weights, &flip)) return;
    const struct choice c = search(&k);
    const struct bpi_levels levels = {0.0f, f->hi, false};
    const float d = bpi_block_from_half(c.d, k.b.unit);
    const float dmin = bpi_block_from_half(c.dmin, k.b.unit);
    out->d = flip ? c.d | 0x8000u : c.d;
    out->dmin = flip ? c.dmin | 0x8000u : c.dmin;
    for (int j = 0; j < f->n_groups; ++j) {
        out->s[j] = c.s[j];
        out->m[j] = c.m[j];
        if (c.s[j] == 0) continue;
        const float inv = 1.0f / (d * (float)c.s[j]), min = -dmin * (float)c.m[j];
        const int at = (int)(k.g[j].x - k.b.x);
        for (int i = at; i < at + k.g[j].n; ++i)
            out->q[i] = (unsigned char)bpi_block_level(&levels, (k.b.x[i] - min) * inv);
    }
}

/* ---- formats ---- */

void bpi_block_encode_q2_k(const float *src, const float *weights, uint64_t n_blocks,
                           unsigned char *dst)
{
    static const struct format f = {3, 1.0f, 0.25f, 16, 15};
    for (uint64_t b = 0; b < n_blocks; ++b, src += SUPER, dst += 84) {
        struct result r;
        encode(&f, src, weights, &r);
        if (weights != NULL) weights += SUPER;
        memset(dst, 0, 80);
        for (int j = 0; j < 16; ++j) dst[j] = (unsigned char)(r.s[j] | r.m[j] << 4);
        for (int i = 0; i < SUPER; ++i)
            dst[16 + 32 * (i / 128) + i % 32] |= (unsigned char)(r.q[i] << (2 * (i / 32 % 4)));
        store_u16(dst + 80, r.d);
        store_u16(dst + 82, r.dmin);
    }
}

/* Eight 6-bit scales and minima in 12 bytes; the reverse is in block_k.c. */
static void pack_q45_scales(const struct result *r, unsigned char p[12])
{
    for (int j = 0; j < 4; ++j) {
        p[j] = (unsigned char)(r->s[j] | r->s[j + 4] >> 4 << 6);
        p[j + 4] = (unsigned char)(r->m[j] | r->m[j + 4] >> 4 << 6);
        p[j + 8] = (unsigned char)((r->s[j + 4] & 15) | (r->m[j + 4] & 15) << 4);
    }
}

void bpi_block_encode_q4_k(const float *src, const float *weights, uint64_t n_blocks,
                           unsigned char *dst)
{
    static const struct format f = {15, 0.75f, 0.25f, 8, 63};
    for (uint64_t b = 0; b < n_blocks; ++b, src += SUPER, dst += 144) {
        struct result r;
        encode(&f, src, weights, &r);
        if (weights != NULL) weights += SUPER;
        store_u16(dst, r.d);
        store_u16(dst + 2, r.dmin);
        pack_q45_scales(&r, dst + 4);
        for (int i = 0; i < SUPER / 2; ++i) {
            const int at = 64 * (i / 32) + i % 32;
            dst[16 + i] = (unsigned char)(r.q[at] | r.q[at + 32] << 4);
        }
    }
}

void bpi_block_encode_q5_k(const float *src, const float *weights, uint64_t n_blocks,
                           unsigned char *dst)
{
    static const struct format f = {31, 0.75f, 0.25f, 8, 63};
    for (uint64_t b = 0; b < n_blocks; ++b, src += SUPER, dst += 176) {
        struct result r;
        encode(&f, src, weights, &r);
        if (weights != NULL) weights += SUPER;
        store_u16(dst, r.d);
        store_u16(dst + 2, r.dmin);
        pack_q45_scales(&r, dst + 4);
        memset(dst + 16, 0, 32);
        for (int i = 0; i < SUPER; ++i)
            dst[16 + i % 32] |= (unsigned char)(r.q[i] >> 4 << (i / 32));
        for (int i = 0; i < SUPER / 2; ++i) {
            const int at = 64 * (i / 32) + i % 32;
            dst[48 + i] = (unsigned char)((r.q[at] & 15) | (r.q[at + 32] & 15) << 4);
        }
    }
}
