/* block_encode_scale.c - encoders of super-blocks whose groups have an integer scale each: Q3_K, Q6_K, IQ4_XS.
 * Not here: groups with a minimum (block_encode_min.c).
 * First each group alone gets its best real scale. Then, for a few halves d, each group chooses the integer near
 * scale / d that leaves the least error after its values are rounded anew; least squares over the whole block moves d,
 * and the groups choose again. The best of all that was tried is kept.
 * Threads: pure. SPDX-License-Identifier: MIT */
#include "block/block_encode.h"

#include <math.h>

/* Measured on a trained model's weights: a third round or four starts lower the error by another 0.1 to 0.4 % and cost
 * half as much again or twice as much. */
enum { SUPER = 256, MAX_GROUPS = 16, L = BPI_LANES, STARTS = 2, ROUNDS = 2 };

struct format {
    struct bpi_levels levels;
    struct bpi_ladder ladder[2]; /* the largest value to levels below zero, and above */
    int n_groups;
    int s_lo, s_hi; /* integer scales */
};

struct block {
    const struct format *f;
    struct bpi_scaled b;
    struct bpi_group g[MAX_GROUPS];
    float scale[MAX_GROUPS][2]; /* the best of each ladder, the better one first */
    float zero_err[MAX_GROUPS]; /* error when all values become 0 */
};

struct choice {
    uint16_t d;
    int s[MAX_GROUPS];
    double err;
    double rq, qq; /* least squares for d: its best relative correction is rq / qq */
};

static bool block_open(struct block *k, const struct format *f, const float *src,
                       const float *weights)
{
    const int len = SUPER / f->n_groups;
    k->f = f;
    if (!bpi_block_bring_to_one(src, weights, SUPER, &k->b)) return false;
    for (int j = 0; j < f->n_groups; ++j) {
        k->g[j] = (struct bpi_group){k->b.x + len * j, k->b.w + len * j, len};
        struct bpi_scale_fit a = bpi_block_best_scale(&k->g[j], &f->levels, &f->ladder[0]);
        struct bpi_scale_fit b = bpi_block_best_scale(&k->g[j], &f->levels, &f->ladder[1]);
        k->scale[j][0] = a.err <= b.err ? a.scale : b.scale;
        k->scale[j][1] = a.err <= b.err ? b.scale : a.scale;
        k->zero_err[j] = bpi_block_flat_err(&k->g[j], 0.0f);
    }
    return true;
}

/* Eight integers around each of the two scales; the best is added to *c. */
static void choose_group(const struct block *k, int j, float d, struct choice *c)
{
    const struct format *f = k->f;
    int s[L];
    float inv[L];
    struct bpi_sums sums;
    for (int i = 0; i < L; ++i) {
        float ideal = k->scale[j][i / 8] / d;
        ideal = ideal < (float)f->s_lo ? (float)f->s_lo : ideal;
        ideal = ideal > (float)f->s_hi ? (float)f->s_hi : ideal;
        s[i] = (int)floorf(ideal) - 3 + i % 8;
        s[i] = s[i] < f->s_lo ? f->s_lo : s[i] > f->s_hi ? f->s_hi : s[i];
        inv[i] = s[i] != 0 ? 1.0f / (d * (float)s[i]) : 0.0f;
    }
    bpi_block_scan(&k->g[j], &f->levels, inv, &sums);
    float best_err = k->zero_err[j];
    int best = -1;
    for (int i = 0; i < L; ++i) {
        const float unit = d * (float)s[i], err = unit * unit * sums.rr[i];
        if (s[i] == 0 || !(err < best_err)) continue;
        best_err = err;
        best = i;
    }
    c->s[j] = best >= 0 ? s[best] : 0;
    c->err += (double)best_err;
    if (best < 0) return;
    const double unit = (double)d * s[best];
    c->rq += unit * unit * (double)sums.rq[best];
    c->qq += unit * unit * (double)sums.qq[best];
}

static void choose_all(const struct block *k, uint16_t half, struct choice *c)
{
    const float d = bpi_block_from_half(half, k->b.unit);
    *c = (struct choice){.d = half};
    for (int j = 0; j < k->f->n_groups; ++j) choose_group(k, j, d, c);
}

/* The best d and scales. */
static struct choice search(const struct block *k)
{
    const struct format *f = k->f;
    struct choice best = {.err = HUGE_VAL};
    float peak = 0.0f;
    for (int j = 0; j < f->n_groups; ++j)
        peak = fabsf(k->scale[j][0]) > fabsf(peak) ? k->scale[j][0] : peak;
    for (int start = 0; start < STARTS; ++start) {
        /* The largest scale is brought to the integer of largest magnitude, or one below, ...; d is rounded up, so
         * that it stays within the integers also where halves are coarse. */
        uint16_t half = bpi_block_to_half(peak / (float)(f->s_lo + start), k->b.unit);
        if (fabsf(bpi_block_from_half(half, k->b.unit)) * (float)-f->s_lo < fabsf(peak))
            half = bpi_block_half_step(half, 1);
        for (int round = 0; round < ROUNDS && (half & 0x7fff) != 0; ++round) {
            struct choice c;
            choose_all(k, half, &c);
            if (c.err < best.err) best = c;
            if (!(c.qq > 0.0)) break;
            const double d = (double)bpi_block_from_half(half, k->b.unit) * (1.0 + c.rq / c.qq);
            const uint16_t next = bpi_block_to_half((float)d, k->b.unit);
            if (next == half) break;
            half = next;
        }
    }
    return best;
}

/* Everything an encoder needs to write a block: the half, integer scales, levels. */
struct result {
    uint16_t d;
    int s[MAX_GROUPS];
    float q[SUPER];
};

static void encode(const struct format *f, const float *src, const float *weights,
                   struct result *out)
{
    struct block k;
    memset(out, 0, sizeof *out);
    if (!block_open(&k, f, src, weights)) return;
    const struct choice c = search(&k);
    const float d = bpi_block_from_half(c.d, k.b.unit);
    out->d = c.d;
    for (int j = 0; j < f->n_groups; ++j) {
        out->s[j] = c.s[j];
        if (c.s[j] == 0) continue;
        const float inv = 1.0f / (d * (float)c.s[j]);
        const int at = (int)(k.g[j].x - k.b.x);
        for (int i = at; i < at + k.g[j].n; ++i)
            out->q[i] = bpi_block_level(&f->levels, k.b.x[i] * inv);
    }
}

/* ---- formats ---- */

void bpi_block_encode_q3_k(const float *src, const float *weights, uint64_t n_blocks,
                           unsigned char *dst)
{
    static const struct format f = {
        {-4, 3, false}, {{-6.25f, -0.25f, 1}, {4.5f, 0.125f, 1}}, 16, -32, 31};
    for (uint64_t b = 0; b < n_blocks; ++b, src += SUPER, dst += 110) {
        struct result r;
        encode(&f, src, weights, &r);
        if (weights != NULL) weights += SUPER;
        memset(dst, 0, 110);
        for (int i = 0; i < SUPER; ++i) {
            const int v = (int)r.q[i] + 4;
            dst[32 + 32 * (i / 128) + i % 32] |= (unsigned char)((v & 3) << (2 * (i / 32 % 4)));
            dst[i % 32] |= (unsigned char)(v >> 2 << (i / 32));
        }
        for (int j = 0; j < 16; ++j) {
            const int s = r.s[j] + 32;
            dst[96 + j % 8] |= (unsigned char)((s & 15) << (4 * (j / 8)));
            dst[104 + j % 4] |= (unsigned char)(s >> 4 << (2 * (j / 4)));
        }
        store_u16(dst + 108, r.d);
    }
}

void bpi_block_encode_q6_k(const float *src, const float *weights, uint64_t n_blocks,
                           unsigned char *dst)
{
    static const struct format f = {
        {-32, 31, false}, {{-33.5f, -0.25f, 2}, {32.5f, 0.25f, 2}}, 16, -128, 127};
    for (uint64_t b = 0; b < n_blocks; ++b, src += SUPER, dst += 210) {
        struct result r;
        encode(&f, src, weights, &r);
        if (weights != NULL) weights += SUPER;
        memset(dst, 0, 210);
        for (int i = 0; i < SUPER; ++i) {
            const int v = (int)r.q[i] + 32, quarter = i / 32 % 4;
            dst[64 * (i / 128) + 32 * (quarter % 2) + i % 32] |=
                (unsigned char)((v & 15) << (4 * (quarter / 2)));
            dst[128 + 32 * (i / 128) + i % 32] |= (unsigned char)(v >> 4 << (2 * quarter));
        }
        for (int j = 0; j < 16; ++j) dst[192 + j] = (unsigned char)r.s[j];
        store_u16(dst + 208, r.d);
    }
}

void bpi_block_encode_iq4_xs(const float *src, const float *weights, uint64_t n_blocks,
                             unsigned char *dst)
{
    static const struct format f = {{0, 0, true}, {{-150, -4, 2}, {140, 4, 2}}, 8, -32, 31};
    for (uint64_t b = 0; b < n_blocks; ++b, src += SUPER, dst += 136) {
        struct result r;
        uint16_t high = 0;
        encode(&f, src, weights, &r);
        if (weights != NULL) weights += SUPER;
        memset(dst, 0, 136);
        for (int j = 0; j < 8; ++j) {
            const int s = r.s[j] + 32;
            dst[4 + j / 2] |= (unsigned char)((s & 15) << (4 * (j % 2)));
            high |= (uint16_t)(s >> 4 << (2 * j));
            for (int i = 0; i < 16; ++i)
                dst[8 + 16 * j + i] =
                    (unsigned char)(bpi_block_level_index(r.q[32 * j + i]) |
                                    bpi_block_level_index(r.q[32 * j + i + 16]) << 4);
        }
        store_u16(dst, r.d);
        store_u16(dst + 2, high);
    }
}
