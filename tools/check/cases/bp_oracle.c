/* bp_oracle.c - weights, rounding and comparison of the oracle. Formulas: bp_oracle_ops.c.
 * SPDX-License-Identifier: MIT */
#include "cases/bp_oracle.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "backplane/sdk_tensor.h"

void *bp_oracle_alloc(size_t n, size_t elem_bytes)
{
    void *p = calloc(n != 0 ? n : 1, elem_bytes != 0 ? elem_bytes : 1);
    if (p == NULL) {
        (void)fprintf(stderr, "oracle: no memory for %zu times %zu bytes\n", n, elem_bytes);
        exit(2);
    }
    return p;
}

double bp_oracle_uniform(struct kit_rng *rng)
{
    return 2.0 * kit_rng_f64(rng) - 1.0;
}

double bp_oracle_normal(struct kit_rng *rng)
{
    double u = 1.0 - kit_rng_f64(rng); /* in (0, 1] */
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * kit_rng_f64(rng));
}

/* ---- rounding ---- */

uint32_t bp_oracle_precision_of(uint32_t dtype)
{
    return dtype == BP_DT_BF16  ? BP_ORACLE_BF16
           : dtype == BP_DT_F16 ? BP_ORACLE_F16
                                : BP_ORACLE_F32;
}

/* To n_bits of significand, ties to even, but to no finer step than 2^min_exp, in plain double arithmetic: adding and
 * taking away a number whose own step is the wanted one leaves v rounded to that step. */
static double round_bits(double v, int n_bits, int min_exp, double largest)
{
    int e;
    if (v == 0.0 || isnan(v) || isinf(v)) return v;
    (void)frexp(v, &e); /* |v| in [2^(e-1), 2^e) */
    int step = e - n_bits > min_exp ? e - n_bits : min_exp;
    volatile double shift = ldexp(1.5, step + 52);
    double r = (v + shift) - shift;
    if (r == 0.0) return copysign(0.0, v);
    return fabs(r) > largest ? copysign(INFINITY, v) : r;
}

double bp_oracle_round(double v, uint32_t precision)
{
    if (precision == BP_ORACLE_F32) return (double)(float)v;
    if (precision == BP_ORACLE_BF16) return round_bits(v, 8, -133, 0x1.fep127);
    if (precision == BP_ORACLE_F16) return round_bits(v, 11, -24, 65504.0);
    return v;
}

double bp_oracle_ulp(uint32_t dtype, double v)
{
    const int n_bits = dtype == BP_DT_BF16 ? 8 : dtype == BP_DT_F16 ? 11 : 24;
    const int min_exp = dtype == BP_DT_BF16 ? -133 : dtype == BP_DT_F16 ? -24 : -149;
    int e;
    if (v == 0.0 || isnan(v) || isinf(v)) return ldexp(1.0, min_exp);
    (void)frexp(v, &e);
    return ldexp(1.0, e - n_bits > min_exp ? e - n_bits : min_exp);
}

double bp_oracle_get(const void *p, uint32_t dtype, int64_t i)
{
    uint16_t h;
    float f;
    if (dtype == BP_DT_F32) {
        memcpy(&f, (const unsigned char *)p + 4 * i, sizeof f);
        return (double)f;
    }
    memcpy(&h, (const unsigned char *)p + 2 * i, sizeof h);
    return (double)(dtype == BP_DT_BF16 ? bp_bf16_f32(h) : bp_f16_f32(h));
}

void bp_oracle_put(void *p, uint32_t dtype, int64_t i, double v)
{
    float f = (float)v;
    uint16_t h = dtype == BP_DT_BF16 ? bp_f32_bf16(f) : bp_f32_f16(f);
    if (dtype == BP_DT_F32) {
        memcpy((unsigned char *)p + 4 * i, &f, sizeof f);
    } else {
        memcpy((unsigned char *)p + 2 * i, &h, sizeof h);
    }
}

/* ---- weights ---- */

// clang-format off
#define TYPE(name, elems, bytes) {#name, BP_GGUF_##name, elems, bytes}
static const struct bp_oracle_type types[] = {
    TYPE(F32, 1, 4), TYPE(F16, 1, 2), TYPE(BF16, 1, 2), TYPE(F64, 1, 8),
    TYPE(Q4_0, 32, 18), TYPE(Q4_1, 32, 20), TYPE(Q5_0, 32, 22), TYPE(Q5_1, 32, 24), TYPE(Q8_0, 32, 34),
    TYPE(Q2_K, 256, 84), TYPE(Q3_K, 256, 110), TYPE(Q4_K, 256, 144), TYPE(Q5_K, 256, 176), TYPE(Q6_K, 256, 210),
    TYPE(IQ2_XXS, 256, 66), TYPE(IQ2_XS, 256, 74), TYPE(IQ2_S, 256, 82), TYPE(IQ3_XXS, 256, 98),
    TYPE(IQ3_S, 256, 110), TYPE(IQ1_S, 256, 50), TYPE(IQ1_M, 256, 56), TYPE(IQ4_NL, 32, 18), TYPE(IQ4_XS, 256, 136),
    TYPE(TQ1_0, 256, 54), TYPE(TQ2_0, 256, 66), TYPE(MXFP4, 32, 17), TYPE(NVFP4, 64, 36), TYPE(Q1_0, 128, 18),
    TYPE(Q2_0, 64, 18),
};
// clang-format on

const struct bp_oracle_type *bp_oracle_type(uint32_t type)
{
    for (size_t i = 0; i < sizeof types / sizeof types[0]; ++i) {
        if (types[i].type == type) return &types[i];
    }
    return NULL;
}

/* Where a block keeps its scales, and what a scale of 1 makes of the largest quant. */
static const struct {
    uint32_t type;
    int n_scales, at[2];
    double span;
} scales_of[] = {
    {BP_GGUF_Q4_0, 1, {0, 0}, 8.0},      {BP_GGUF_Q4_1, 2, {0, 2}, 15.0},
    {BP_GGUF_Q5_0, 1, {0, 0}, 16.0},     {BP_GGUF_Q5_1, 2, {0, 2}, 31.0},
    {BP_GGUF_Q8_0, 1, {0, 0}, 127.0},    {BP_GGUF_Q2_K, 2, {80, 82}, 45.0},
    {BP_GGUF_Q3_K, 1, {108, 0}, 128.0},  {BP_GGUF_Q4_K, 2, {0, 2}, 945.0},
    {BP_GGUF_Q5_K, 2, {0, 2}, 1953.0},   {BP_GGUF_Q6_K, 1, {208, 0}, 4064.0},
    {BP_GGUF_IQ4_NL, 1, {0, 0}, 127.0},  {BP_GGUF_IQ4_XS, 1, {0, 0}, 4064.0},
    {BP_GGUF_IQ2_XXS, 1, {0, 0}, 167.0}, {BP_GGUF_IQ2_XS, 1, {0, 0}, 167.0},
    {BP_GGUF_IQ2_S, 1, {0, 0}, 167.0},   {BP_GGUF_IQ3_XXS, 1, {0, 0}, 481.0},
    {BP_GGUF_IQ3_S, 1, {0, 0}, 465.0},   {BP_GGUF_IQ1_S, 1, {0, 0}, 17.0},
    {BP_GGUF_IQ1_M, 1, {48, 0}, 17.0},   {BP_GGUF_TQ1_0, 1, {52, 0}, 1.0},
    {BP_GGUF_TQ2_0, 1, {64, 0}, 2.0},    {BP_GGUF_Q1_0, 1, {0, 0}, 1.0},
    {BP_GGUF_Q2_0, 1, {0, 0}, 2.0},      {BP_GGUF_MXFP4, 1, {0, 0}, 12.0},
    {BP_GGUF_NVFP4, 1, {0, 0}, 12.0},
};

/* Scales that are no F16 in one place: the power of two below |v| as an exponent byte, four times the same as E4M3,
 * and an F16 whose nibbles lie in the tops of four words. */
static void put_scale(uint32_t type, unsigned char *p, double v)
{
    unsigned char half[2];
    int e = ilogb(v);
    bp_oracle_put(half, BP_DT_F16, 0, v);
    if (type == BP_GGUF_MXFP4) {
        p[0] = (unsigned char)(e < -128 ? 0 : e > 126 ? 254 : e + 128);
    } else if (type == BP_GGUF_NVFP4) {
        for (int i = 0; i < 4; ++i)
            p[i] = (unsigned char)((e < -8 ? 0 : e > 6 ? 14 : e + 8) << 3 | (p[i] & 7));
    } else if (type == BP_GGUF_IQ1_M) {
        for (int i = 0; i < 4; ++i)
            p[1 + 2 * i] =
                (unsigned char)((p[1 + 2 * i] & 15) | (half[i / 2] >> (4 * (i % 2)) & 15) << 4);
    } else {
        memcpy(p, half, sizeof half);
    }
}

static void fill_float(struct bp_oracle_weight *w, struct kit_rng *rng, double size)
{
    int64_t n = w->ne[0] * w->ne[1] * w->ne[2];
    for (int64_t i = 0; i < n; ++i) {
        double v = bp_oracle_normal(rng) * size;
        if (w->type == BP_GGUF_F64) {
            memcpy(w->bytes + 8 * i, &v, sizeof v);
        } else {
            uint32_t dtype = w->type == BP_GGUF_F32   ? BP_DT_F32
                             : w->type == BP_GGUF_F16 ? BP_DT_F16
                                                      : BP_DT_BF16;
            bp_oracle_put(w->bytes, dtype, i, v);
        }
    }
}

static void fill_blocks(struct bp_oracle_weight *w, struct kit_rng *rng, uint64_t block_bytes,
                        double size)
{
    for (uint64_t i = 0; i < w->n_bytes; ++i) w->bytes[i] = (unsigned char)kit_rng_u64(rng);
    for (size_t t = 0; t < sizeof scales_of / sizeof scales_of[0]; ++t) {
        if (scales_of[t].type != w->type) continue;
        for (uint64_t b = 0; b < w->n_bytes; b += block_bytes) {
            for (int s = 0; s < scales_of[t].n_scales; ++s) {
                double v = size * (0.5 + kit_rng_f64(rng)) / scales_of[t].span;
                /* The second scale is a minimum: its sign differs between formats, so both signs are tried. */
                if (kit_rng_below(rng, 2) == 1) v = -v;
                put_scale(w->type, w->bytes + b + scales_of[t].at[s], v);
            }
        }
        return;
    }
    (void)fprintf(stderr, "oracle: type %u is not known to this test; add where its scales are\n",
                  w->type);
    exit(2);
}

void bp_oracle_weight_init(struct bp_oracle_weight *w, struct kit_rng *rng, uint32_t type,
                           int64_t ne0, int64_t ne1, int64_t ne2, float scale)
{
    const struct bp_oracle_type *info = bp_oracle_type(type);
    const uint64_t n = (uint64_t)(ne0 * ne1 * ne2);
    *w = (struct bp_oracle_weight){.type = type, .ne = {ne0, ne1, ne2}, .scale = scale};
    if (info == NULL || (uint64_t)ne0 % info->block_elems != 0) {
        (void)fprintf(stderr, "oracle: %lld elements are no rows of type %u\n", (long long)ne0,
                      type);
        exit(2);
    }
    w->n_bytes = n / info->block_elems * info->block_bytes;
    /* A multiple of 64 bytes at a multiple of 64: as a mapped file would have it. */
    w->bytes = aligned_alloc(64, (w->n_bytes + 127) / 64 * 64);
    if (w->bytes == NULL) exit(2);
    double size = 1.0 / sqrt(ne0 > 0 ? (double)ne0 : 1.0);
    if (info->block_elems == 1) {
        fill_float(w, rng, size);
    } else {
        fill_blocks(w, rng, info->block_bytes, 2.0 * size);
    }
    float *f = bp_oracle_alloc(n, sizeof *f);
    w->w = bp_oracle_alloc(n, sizeof *w->w);
    if (bp_oracle_decode(type, w->bytes, n, f) != BP_OK) exit(2);
    for (uint64_t i = 0; i < n; ++i) w->w[i] = (double)(f[i] * scale);
    free(f);
}

void bp_oracle_weight_free(struct bp_oracle_weight *w)
{
    free(w->bytes);
    free(w->w);
    *w = (struct bp_oracle_weight){0};
}

struct bp_raw bp_oracle_raw(const struct bp_oracle_weight *w, const char *name)
{
    struct bp_raw raw = {
        .h = BP_HDR(struct bp_raw, reserved), .data = w->bytes, .n_bytes = w->n_bytes};
    raw.type = w->type;
    raw.n_dim = w->ne[2] > 1 ? 3 : 2;
    for (int d = 0; d < 4; ++d) raw.ne[d] = raw.end[d] = d < 3 ? w->ne[d] : 1;
    raw.name = name;
    raw.scale = w->scale;
    return raw;
}

/* ---- comparison ---- */

/* A provider that sums in f32 makes several roundings where one of bf16 or f16 drowns them all. Measured on a part of the
 * grid: eight or more partial sums need at most 1.8, with the softmax in f32 as well mostly less than 4; one running sum
 * needs up to 9. With four, results that are scaled by 1 + 2^-20 are still found, and 2^-21 now and then (decision 0009). */
enum { F32_ROUNDINGS = 4 };

static double unit_of(uint32_t precision)
{
    return precision == BP_ORACLE_BF16  ? 0x1p-9
           : precision == BP_ORACLE_F16 ? 0x1p-12
                                        : F32_ROUNDINGS * 0x1p-24;
}

static const char *class_of(double v)
{
    return isnan(v) ? "NaN" : isinf(v) ? (v > 0 ? "+inf" : "-inf") : "finite";
}

static bool same_class(const struct bp_oracle_compare *c, char *why, size_t cap)
{
    for (int64_t i = 0; i < c->n_rows * c->width; ++i) {
        if (strcmp(class_of(c->got[i]), class_of(c->exact[i])) == 0) continue;
        (void)snprintf(why, cap, "row %lld column %lld: got %s (%.9g), exact %s (%.9g)",
                       (long long)(i / c->width), (long long)(i % c->width), class_of(c->got[i]),
                       c->got[i], class_of(c->exact[i]), c->exact[i]);
        return false;
    }
    return true;
}

static bool row_agrees(const struct bp_oracle_compare *c, int64_t row, char *why, size_t cap)
{
    const int64_t at = row * c->width;
    const double ulps = c->dtype == BP_DT_F32 ? F32_ROUNDINGS : 1;
    double largest = 0.0, base_error = 0.0, sum_error = 0.0, sum_bound = 0.0;
    for (int64_t i = at; i < at + c->width; ++i) {
        if (!isfinite(c->exact[i])) continue;
        double e = fabs(c->base[i] - c->exact[i]);
        if (isfinite(e) && e > base_error) base_error = e;
        if (fabs(c->exact[i]) > largest) largest = fabs(c->exact[i]);
    }
    for (int64_t i = at; i < at + c->width; ++i) {
        if (!isfinite(c->exact[i])) continue;
        double floor_error = c->mag != NULL ? c->mag[i] * unit_of(c->precision) : 0.0;
        double allowed = 2.0 * (base_error > floor_error ? base_error : floor_error) +
                         ulps * bp_oracle_ulp(c->dtype, largest);
        double e = fabs(c->got[i] - c->exact[i]);
        if (!(e <= allowed)) {
            (void)snprintf(why, cap,
                           "row %lld column %lld: got %.9g, exact %.9g, error %.3g, allowed %.3g",
                           (long long)row, (long long)(i - at), c->got[i], c->exact[i], e, allowed);
            return false;
        }
        sum_error += e * e;
        sum_bound += allowed * allowed;
    }
    /* An error that is everywhere just below the bound is no rounding any more. */
    if (c->width >= 16 && !(sqrt(sum_error) <= 0.75 * sqrt(sum_bound))) {
        (void)snprintf(why, cap, "row %lld: the norm of the error is %.3g, allowed %.3g",
                       (long long)row, sqrt(sum_error), 0.75 * sqrt(sum_bound));
        return false;
    }
    return true;
}

bool bp_oracle_agree(const struct bp_oracle_compare *c, char *why, size_t cap)
{
    if (!same_class(c, why, cap)) return false;
    for (int64_t r = 0; r < c->n_rows; ++r) {
        if (!row_agrees(c, r, why, cap)) return false;
    }
    return true;
}
