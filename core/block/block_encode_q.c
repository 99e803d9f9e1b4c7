/* block_encode_q.c - encoders of the 32-element formats: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL.
 * Not here: super-blocks. The scale (and minimum) that a search finds is rounded to a half; its neighbours are tried
 * too, with the error of what a decoder will really see, because each of them rounds other values differently.
 * Threads: pure. SPDX-License-Identifier: MIT */
#include "block/block_encode.h"

#include <math.h>

enum { ELEMS = 32, HALF = 16, L = BPI_LANES };

/* ---- one scale ---- */

struct scale_format {
    struct bpi_levels levels;
    struct bpi_ladder ladder[3]; /* to the levels of the other sign, of the same, and another try */
    int n_ladders;
};

/* All values as levels of the best half; the half is 0 and so are the levels when nothing is better than zeros. */
static uint16_t encode_scale(const float *src, const float *weights, const struct scale_format *f,
                             float q[ELEMS])
{
    struct bpi_scaled b;
    uint16_t halves[L] = {0};
    int n = 0, best = -1;
    memset(q, 0, ELEMS * sizeof *q);
    if (!bpi_block_bring_to_one(src, weights, ELEMS, &b)) return 0;
    const struct bpi_group g = {b.x, b.w, ELEMS};
    for (int i = 0; i < f->n_ladders; ++i) {
        const struct bpi_scale_fit fit = bpi_block_best_scale(&g, &f->levels, &f->ladder[i]);
        const uint16_t half = bpi_block_to_half(fit.scale, b.unit);
        for (int k = -1; k <= 1; ++k) halves[n++] = bpi_block_half_step(half, k);
    }
    float scale[L], inv[L], best_err = bpi_block_flat_err(&g, 0.0f);
    struct bpi_sums sums;
    for (int c = 0; c < L; ++c) {
        scale[c] = bpi_block_from_half(halves[c], b.unit);
        inv[c] = scale[c] != 0.0f ? 1.0f / scale[c] : 0.0f;
    }
    bpi_block_scan(&g, &f->levels, inv, &sums);
    for (int c = 0; c < n; ++c) {
        const float err = scale[c] * scale[c] * sums.rr[c];
        if (scale[c] == 0.0f || !(err < best_err)) continue;
        best_err = err;
        best = c;
    }
    if (best < 0) return 0;
    for (int i = 0; i < ELEMS; ++i) q[i] = bpi_block_level(&f->levels, b.x[i] * inv[best]);
    return halves[best];
}

void bpi_block_encode_q4_0(const float *src, const float *weights, uint64_t n_blocks,
                           unsigned char *dst)
{
    static const struct scale_format f = {{-8, 7, false}, {{-10, -0.25f, 2}, {9, 0.25f, 1}}, 2};
    for (uint64_t b = 0; b < n_blocks; ++b, src += ELEMS, dst += 18) {
        float q[ELEMS];
        store_u16(dst, encode_scale(src, weights, &f, q));
        if (weights != NULL) weights += ELEMS;
        for (int j = 0; j < HALF; ++j)
            dst[2 + j] = (unsigned char)((int)(q[j] + 8) | (int)(q[j + HALF] + 8) << 4);
    }
}

/* Five-bit values: nibbles behind four bytes of high bits. */
static void pack5(const unsigned char v[ELEMS], unsigned char *dst)
{
    memset(dst, 0, 4);
    for (int j = 0; j < ELEMS; ++j) dst[j / 8] |= (unsigned char)((v[j] >> 4) << (j % 8));
    for (int j = 0; j < HALF; ++j)
        dst[4 + j] = (unsigned char)((v[j] & 15) | (v[j + HALF] & 15) << 4);
}

void bpi_block_encode_q5_0(const float *src, const float *weights, uint64_t n_blocks,
                           unsigned char *dst)
{
    static const struct scale_format f = {
        {-16, 15, false}, {{-17.5f, -0.25f, 2}, {16.5f, 0.25f, 1}}, 2};
    for (uint64_t b = 0; b < n_blocks; ++b, src += ELEMS, dst += 22) {
        float q[ELEMS];
        unsigned char v[ELEMS];
        store_u16(dst, encode_scale(src, weights, &f, q));
        if (weights != NULL) weights += ELEMS;
        for (int j = 0; j < ELEMS; ++j) v[j] = (unsigned char)(q[j] + 16);
        pack5(v, dst + 2);
    }
}

/* -128 is left out: kernels negate values in eight bits. */
void bpi_block_encode_q8_0(const float *src, const float *weights, uint64_t n_blocks,
                           unsigned char *dst)
{
    static const struct scale_format f = {{-127, 127, false}, {{128.5f, 0.5f, 3}}, 1};
    for (uint64_t b = 0; b < n_blocks; ++b, src += ELEMS, dst += 34) {
        float q[ELEMS];
        store_u16(dst, encode_scale(src, weights, &f, q));
        if (weights != NULL) weights += ELEMS;
        for (int j = 0; j < ELEMS; ++j) dst[2 + j] = (unsigned char)(int)q[j];
    }
}

void bpi_block_encode_iq4_nl(const float *src, const float *weights, uint64_t n_blocks,
                             unsigned char *dst)
{
    static const struct scale_format f = {{0, 0, true}, {{-150, -4, 2}, {140, 4, 2}}, 2};
    for (uint64_t b = 0; b < n_blocks; ++b, src += ELEMS, dst += 18) {
        float q[ELEMS];
        store_u16(dst, encode_scale(src, weights, &f, q));
        if (weights != NULL) weights += ELEMS;
        for (int j = 0; j < HALF; ++j)
            dst[2 + j] = (unsigned char)(bpi_block_level_index(q[j]) |
                                         bpi_block_level_index(q[j + HALF]) << 4);
    }
}

/* ---- scale and minimum ---- */

/* Candidates of a scale and a minimum, as halves and as the numbers a decoder makes of them. */
struct pairs {
    uint16_t halves[L], min_halves[L];
    float scale[L], min[L], inv[L]; /* inv 0: the minimum alone */
};

static void set_scale(struct pairs *p, int c, float scale)
{
    p->scale[c] = scale;
    p->inv[c] = scale > 0.0f ? 1.0f / scale : 0.0f;
}

/* The half of `min` and its two neighbours (candidate c has c % 3), each with five scales: the given one, a little
 * less and more, and what reaches the greatest value. Then, for each minimum, the half nearest to its best scale after
 * least squares, and three neighbours of that. */
static void make_pairs(const struct bpi_group *g, float unit, float hi, float given, float min,
                       struct pairs *p)
{
    static const float factors[4] = {0.97f, 0.985f, 1.0f, 1.02f};
    const uint16_t at = bpi_block_to_half(min, unit);
    struct bpi_min_sums sums;
    float most = g->x[0], best_err[3] = {HUGE_VALF, HUGE_VALF, HUGE_VALF}, best_scale[3] = {0};
    for (int i = 1; i < g->n; ++i) most = g->x[i] > most ? g->x[i] : most;
    for (int c = 0; c < L; ++c) {
        p->min_halves[c] = bpi_block_half_step(at, c % 3 - 1);
        p->min[c] = bpi_block_from_half(p->min_halves[c], unit);
        set_scale(p, c, c < 12 ? given * factors[c / 3] : (most - p->min[c]) / hi);
    }
    bpi_block_scan_min(g, hi, p->inv, p->min, &sums);
    for (int c = 0; c < 15; ++c) {
        const float delta = sums.qq[c] > 0.0f ? sums.rq[c] / sums.qq[c] : 0.0f;
        const float err = (sums.rr[c] - delta * sums.rq[c]) * p->scale[c] * p->scale[c];
        if (p->inv[c] == 0.0f || !(err < best_err[c % 3])) continue;
        best_err[c % 3] = err;
        best_scale[c % 3] = (1.0f + delta) * p->scale[c];
    }
    for (int c = 0; c < L; ++c) {
        const uint16_t half = bpi_block_to_half(best_scale[c % 3], unit);
        p->halves[c] = bpi_block_half_step(half, c / 3 % 4 - 1);
        set_scale(p, c, bpi_block_from_half(p->halves[c], unit));
    }
}

/* A scale and a minimum that were chosen. */
struct pair {
    uint16_t half, min_half;
    float inv, min, err;
};

/* Keeps in *best the best pair with a minimum near `min`. */
static void try_near(const struct bpi_group *g, float unit, float hi, float given, float min,
                     struct pair *best)
{
    struct pairs p;
    struct bpi_min_sums sums;
    make_pairs(g, unit, hi, given, min, &p);
    bpi_block_scan_min(g, hi, p.inv, p.min, &sums);
    for (int c = 0; c < L; ++c) {
        const float err = p.inv[c] != 0.0f ? p.scale[c] * p.scale[c] * sums.rr[c]
                                           : bpi_block_flat_err(g, p.min[c]);
        if (err < best->err)
            *best = (struct pair){p.halves[c], p.min_halves[c], p.inv[c], p.min[c], err};
    }
}

/* halves: scale, minimum. */
static void encode_min(const float *src, const float *weights, float hi, uint16_t halves[2],
                       unsigned char q[ELEMS])
{
    const struct bpi_levels levels = {0.0f, hi, false};
    struct bpi_scaled b;
    memset(q, 0, ELEMS);
    halves[0] = halves[1] = 0;
    if (!bpi_block_bring_to_one(src, weights, ELEMS, &b)) return;
    const struct bpi_group g = {b.x, b.w, ELEMS};
    const struct bpi_min_fit fit = bpi_block_best_min(&g, hi, false, 0.75f, 0.25f);
    struct pair best = {.err = HUGE_VALF};
    float least_q = hi, most_q = 0.0f;
    try_near(&g, b.unit, hi, fit.scale, fit.min, &best);
    for (int i = 0; i < ELEMS; ++i) {
        const float level = bpi_block_level(&levels, (b.x[i] - best.min) * best.inv);
        least_q = level < least_q ? level : least_q;
        most_q = level > most_q ? level : most_q;
    }
    /* A free level at an end means that a minimum one level away does as well, and its half may round better. */
    if (least_q > 0.0f) try_near(&g, b.unit, hi, fit.scale, fit.min + fit.scale, &best);
    if (most_q < hi) try_near(&g, b.unit, hi, fit.scale, fit.min - fit.scale, &best);
    halves[0] = best.half;
    halves[1] = best.min_half;
    for (int i = 0; i < ELEMS; ++i)
        q[i] = (unsigned char)bpi_block_level(&levels, (b.x[i] - best.min) * best.inv);
}

void bpi_block_encode_q4_1(const float *src, const float *weights, uint64_t n_blocks,
                           unsigned char *dst)
{
    for (uint64_t b = 0; b < n_blocks; ++b, src += ELEMS, dst += 20) {
        uint16_t halves[2];
        unsigned char q[ELEMS];
        encode_min(src, weights, 15, halves, q);
        if (weights != NULL) weights += ELEMS;
        store_u16(dst, halves[0]);
        store_u16(dst + 2, halves[1]);
        for (int j = 0; j < HALF; ++j) dst[4 + j] = (unsigned char)(q[j] | q[j + HALF] << 4);
    }
}

void bpi_block_encode_q5_1(const float *src, const float *weights, uint64_t n_blocks,
                           unsigned char *dst)
{
    for (uint64_t b = 0; b < n_blocks; ++b, src += ELEMS, dst += 24) {
        uint16_t halves[2];
        unsigned char q[ELEMS];
        encode_min(src, weights, 31, halves, q);
        if (weights != NULL) weights += ELEMS;
        store_u16(dst, halves[0]);
        store_u16(dst + 2, halves[1]);
        pack5(q, dst + 4);
    }
}
