/* mla_fixture.h - what the unit tests of the reference backend's MLA interfaces share: a host table with threads,
 * guarded buffers, tensors, and a paged cache with shuffled blocks.
 * Not here: any formula; each test writes its own in plain double loops. SPDX-License-Identifier: MIT */
#ifndef MLA_FIXTURE_H
#define MLA_FIXTURE_H

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/pool.h"
#include "base/rng.h"
#include "ref/ref_mla.h"

enum { FX_MAX_BUFS = 512, FX_GUARD = 64, FX_MAX_SEQS = 8 };

struct fx {
    struct bpi_pool *pool;
    struct bp_host host;
    struct bpi_ref ref;
    struct bp_launch l;
    struct bpi_rng rng;
    struct {
        unsigned char *base;
        size_t n_bytes;
    } bufs[FX_MAX_BUFS];
    int n_buf;
    const struct bp_mla_common_ops *common;
    const struct bp_mla_prefill_ops *prefill;
    const struct bp_mla_decode_ops *decode;
    const struct bp_mla_index_ops *index;
};

static inline void *fx_host_alloc(void *ctx, uint64_t n_bytes, uint64_t align)
{
    (void)ctx;
    void *p = bpi_alloc_aligned(n_bytes, align);
    if (p != NULL) memset(p, 0, n_bytes); /* as plugin.h promises */
    return p;
}
static inline void fx_host_free(void *ctx, void *p)
{
    (void)ctx;
    bpi_free(p);
}
static inline void fx_host_for(void *ctx, uint64_t n, uint64_t grain,
                               void (*fn)(void *arg, uint64_t begin, uint64_t end), void *arg)
{
    bpi_pool_run(((struct fx *)ctx)->pool, n, grain, fn, arg);
}

/* A buffer between guard bytes, filled with 0xff: NaN as any float, -1 as any integer. */
static inline void *fx_bytes(struct fx *f, size_t n_bytes)
{
    ck_assert_int_lt(f->n_buf, FX_MAX_BUFS);
    unsigned char *base = bpi_alloc_aligned(n_bytes + 2 * FX_GUARD, 64);
    ck_assert_ptr_nonnull(base);
    memset(base, 0xa5, n_bytes + 2 * FX_GUARD);
    memset(base + FX_GUARD, 0xff, n_bytes);
    f->bufs[f->n_buf].base = base;
    f->bufs[f->n_buf++].n_bytes = n_bytes;
    return base + FX_GUARD;
}

static inline void fx_guards(const struct fx *f)
{
    for (int i = 0; i < f->n_buf; ++i) {
        const unsigned char *b = f->bufs[i].base;
        for (size_t k = 0; k < FX_GUARD; ++k) {
            if (b[k] == 0xa5 && b[FX_GUARD + f->bufs[i].n_bytes + k] == 0xa5) continue;
            ck_abort_msg("guard byte of buffer %d (%zu bytes) was overwritten", i,
                         f->bufs[i].n_bytes);
        }
    }
}

static inline void fx_open(struct fx *f, uint32_t n_threads, uint32_t round, uint64_t seed)
{
    memset(f, 0, sizeof *f);
    ck_assert_int_eq(bpi_pool_create(n_threads, &f->pool, NULL), BP_OK);
    f->host = (struct bp_host){.h = BP_HDR(struct bp_host, parallel_for),
                               .ctx = f,
                               .mem_alloc = fx_host_alloc,
                               .mem_free = fx_host_free,
                               .parallel_for = fx_host_for};
    f->ref.host = &f->host;
    f->ref.round = round;
    f->l = (struct bp_launch){.h = BP_HDR(struct bp_launch, reserved), .layer = -1};
    f->l.scratch_bytes = (uint64_t)12 << 20;
    f->l.scratch = bpi_alloc_aligned(f->l.scratch_bytes, 64);
    ck_assert_ptr_nonnull(f->l.scratch);
    memset(f->l.scratch, 0xff, f->l.scratch_bytes);
    bpi_rng_seed(&f->rng, seed);
    f->common = (const struct bp_mla_common_ops *)bpi_ref_mla_common_ops();
    f->prefill = (const struct bp_mla_prefill_ops *)bpi_ref_mla_prefill_ops();
    f->decode = (const struct bp_mla_decode_ops *)bpi_ref_mla_decode_ops();
    f->index = (const struct bp_mla_index_ops *)bpi_ref_mla_index_ops();
}

static inline void fx_close(struct fx *f)
{
    fx_guards(f);
    for (int i = 0; i < f->n_buf; ++i) bpi_free(f->bufs[i].base);
    bpi_free(f->l.scratch);
    bpi_pool_destroy(f->pool);
}

/* ---- tensors ---- */

static inline size_t fx_size(uint32_t dtype)
{
    return dtype == BP_DT_F16 || dtype == BP_DT_BF16 ? 2 : dtype == BP_DT_U8 ? 1 : 4;
}

/* Rows are `pad` elements further apart than they are long: views of wider buffers are legal everywhere. */
static inline struct bp_tensor fx_tensor(struct fx *f, uint32_t dtype, int64_t d0, int64_t d1,
                                         int64_t d2, int64_t pad)
{
    struct bp_tensor t = {.dtype = dtype, .dim = {d0, d1, d2}};
    t.ndim = d2 > 0 ? 3 : d1 > 0 ? 2 : 1;
    int64_t inner = (d1 > 0 ? d1 : 1) * (d2 > 0 ? d2 : 1);
    t.stride[0] = t.ndim == 1 ? 1 : inner + pad;
    t.stride[1] = t.ndim == 3 ? d2 : t.ndim == 2 ? 1 : 0;
    t.stride[2] = t.ndim == 3 ? 1 : 0;
    int64_t n = d0 == 0 ? 0 : t.ndim == 1 ? d0 : (d0 - 1) * t.stride[0] + inner;
    t.data = fx_bytes(f, (size_t)n * fx_size(dtype));
    return t;
}

/* Rows [begin, end) of a tensor. */
static inline struct bp_tensor fx_rows(const struct bp_tensor *t, int64_t begin, int64_t end)
{
    struct bp_tensor r = *t;
    r.dim[0] = end - begin;
    r.data = (unsigned char *)t->data + (size_t)(begin * t->stride[0]) * fx_size(t->dtype);
    return r;
}

static inline void *fx_at(const struct bp_tensor *t, int64_t i, int64_t j, int64_t k)
{
    int64_t at = i * t->stride[0] + j * t->stride[1] + k * t->stride[2];
    return (unsigned char *)t->data + (size_t)at * fx_size(t->dtype);
}

static inline double fx_read(const void *p, uint32_t dtype)
{
    if (dtype == BP_DT_F32) return *(const float *)p;
    if (dtype == BP_DT_I32) return *(const int32_t *)p;
    uint16_t h = *(const uint16_t *)p;
    return dtype == BP_DT_BF16 ? bpi_bf16_to_f32(h) : bpi_f16_to_f32(h);
}

static inline void fx_write(void *p, uint32_t dtype, double v)
{
    if (dtype == BP_DT_F32)
        *(float *)p = (float)v;
    else if (dtype == BP_DT_I32)
        *(int32_t *)p = (int32_t)v;
    else
        *(uint16_t *)p = dtype == BP_DT_BF16 ? bpi_f32_to_bf16((float)v) : bpi_f32_to_f16((float)v);
}

static inline double fx_get(const struct bp_tensor *t, int64_t i, int64_t j, int64_t k)
{
    return fx_read(fx_at(t, i, j, k), t->dtype);
}

static inline void fx_set(const struct bp_tensor *t, int64_t i, int64_t j, int64_t k, double v)
{
    fx_write(fx_at(t, i, j, k), t->dtype, v);
}

/* Uniform in (-amp, amp). */
static inline double fx_random(struct fx *f, double amp)
{
    return (2.0 * bpi_rng_f64(&f->rng) - 1.0) * amp;
}

static inline void fx_fill(struct fx *f, const struct bp_tensor *t, double amp)
{
    int64_t n1 = t->ndim > 1 ? t->dim[1] : 1, n2 = t->ndim > 2 ? t->dim[2] : 1;
    for (int64_t i = 0; i < t->dim[0]; ++i) {
        for (int64_t j = 0; j < n1; ++j) {
            for (int64_t k = 0; k < n2; ++k) fx_set(t, i, j, k, fx_random(f, amp));
        }
    }
}

static inline struct bp_tensor fx_random_tensor(struct fx *f, uint32_t dtype, int64_t d0,
                                                int64_t d1, int64_t d2, int64_t pad, double amp)
{
    struct bp_tensor t = fx_tensor(f, dtype, d0, d1, d2, pad);
    fx_fill(f, &t, amp);
    return t;
}

/* All rows the same bits? Strides may differ, padding is not compared. */
static inline bool fx_same_bits(const struct bp_tensor *a, const struct bp_tensor *b)
{
    int64_t n1 = a->ndim > 1 ? a->dim[1] : 1, n2 = a->ndim > 2 ? a->dim[2] : 1;
    if (a->dtype != b->dtype || a->ndim != b->ndim) return false;
    for (int64_t i = 0; i < a->dim[0]; ++i) {
        for (int64_t j = 0; j < n1; ++j) {
            for (int64_t k = 0; k < n2; ++k) {
                if (memcmp(fx_at(a, i, j, k), fx_at(b, i, j, k), fx_size(a->dtype)) != 0) {
                    return false;
                }
            }
        }
    }
    return true;
}

/* One rounding of `want` to dtype, with room for the last bits of a double sum of size `sum`. Fails on NaN. */
static inline bool fx_near(double got, double want, uint32_t dtype, double sum)
{
    double ulp = dtype == BP_DT_F32 ? 0x1p-23 : dtype == BP_DT_F16 ? 0x1p-10 : 0x1p-7;
    double least = dtype == BP_DT_F16 ? 0x1p-25 : 0x1p-140;
    return fabs(got - want) <= 0.5001 * ulp * fabs(want) + 1e-13 * fabs(sum) + least;
}

static inline double fx_rounded(double v, uint32_t round)
{
    if (round == BPI_REF_ROUND_BF16) return bpi_bf16_to_f32(bpi_f32_to_bf16((float)v));
    if (round == BPI_REF_ROUND_F16) return bpi_f16_to_f32(bpi_f32_to_f16((float)v));
    return v;
}

/* ---- a paged cache: n_seqs sequences of `len` tokens over blocks in random order, recycled slots full of NaN ---- */

struct fx_cache {
    struct bp_tensor pool;
    int64_t width;
    uint32_t dtype, block_tok, n_seqs, stride, max_tok;
    int32_t *table, *len, *positions, *slots;
    struct bp_mla_meta meta;
};

static inline uint64_t fx_layout(const char *family, uint32_t dtype, int64_t width)
{
    char name[64];
    const char *d = dtype == BP_DT_F32 ? "f32" : dtype == BP_DT_F16 ? "f16" : "bf16";
    (void)snprintf(name, sizeof name, "%s.%s.%lld", family, d, (long long)width);
    return bp_id(name);
}

static inline void fx_cache(struct fx *f, struct fx_cache *c, const char *family, uint32_t dtype,
                            int64_t width, uint32_t block_tok, uint32_t n_seqs, const int32_t *len,
                            int64_t n_rope)
{
    *c =
        (struct fx_cache){.width = width, .dtype = dtype, .block_tok = block_tok, .n_seqs = n_seqs};
    int32_t total = 0;
    for (uint32_t s = 0; s < n_seqs; ++s) {
        uint32_t n = ((uint32_t)len[s] + block_tok - 1) / block_tok;
        if (n + 1 > c->stride) c->stride = n + 1;
        total += len[s];
    }
    uint32_t n_block = c->stride * n_seqs + 3;
    int32_t *order = fx_bytes(f, n_block * sizeof *order);
    for (uint32_t i = 0; i < n_block; ++i) order[i] = (int32_t)i;
    for (uint32_t i = n_block - 1; i > 0; --i) {
        uint32_t k = (uint32_t)bpi_rng_below(&f->rng, i + 1);
        int32_t swap = order[i];
        order[i] = order[k];
        order[k] = swap;
    }
    c->table = fx_bytes(f, n_seqs * c->stride * sizeof *c->table);
    c->len = fx_bytes(f, n_seqs * sizeof *c->len);
    for (uint32_t s = 0; s < n_seqs; ++s) {
        c->len[s] = len[s];
        for (uint32_t b = 0; b < c->stride; ++b) {
            c->table[s * c->stride + b] = order[s * c->stride + b];
        }
    }
    c->pool =
        fx_tensor(f, BP_DT_U8, n_block, (int64_t)block_tok * width * (int64_t)fx_size(dtype), 0, 0);
    c->pool.layout_id = fx_layout(family, dtype, width);
    c->max_tok = (uint32_t)total;
    c->positions = fx_bytes(f, ((size_t)total + 1) * sizeof *c->positions);
    c->slots = fx_bytes(f, ((size_t)total + 1) * sizeof *c->slots);
    c->meta = (struct bp_mla_meta){.h = BP_HDR(struct bp_mla_meta, rope_sin),
                                   .n_seqs = n_seqs,
                                   .block_tok = block_tok,
                                   .table_stride = c->stride};
    /* Only the host twins are set: ref must not need the others. */
    c->meta.positions_host = c->positions;
    c->meta.slot_map_host = c->slots;
    c->meta.block_table_host = c->table;
    c->meta.kv_len_host = c->len;
    for (uint32_t s = 0; s < n_seqs; ++s) {
        if ((uint32_t)len[s] > c->meta.max_kv) c->meta.max_kv = (uint32_t)len[s];
    }
    if (n_rope == 0) return;
    int64_t n_pos = c->meta.max_kv + 1;
    c->meta.rope_cos = fx_tensor(f, BP_DT_F32, n_pos, n_rope / 2, 0, 1);
    c->meta.rope_sin = fx_tensor(f, BP_DT_F32, n_pos, n_rope / 2, 0, 0);
    for (int64_t p = 0; p < n_pos; ++p) {
        for (int64_t i = 0; i < n_rope / 2; ++i) {
            double angle = (double)p * pow(1e4, -2.0 * (double)i / (double)n_rope);
            fx_set(&c->meta.rope_cos, p, i, 0, cos(angle));
            fx_set(&c->meta.rope_sin, p, i, 0, sin(angle));
        }
    }
}

/* Token slot and the address of number i of position `at`, from the definition. */
static inline int64_t fx_slot(const struct fx_cache *c, int64_t seq, int64_t at)
{
    return (int64_t)c->table[seq * c->stride + at / c->block_tok] * c->block_tok +
           at % c->block_tok;
}
static inline void *fx_cell(const struct fx_cache *c, int64_t seq, int64_t at, int64_t i)
{
    size_t elem = (size_t)(fx_slot(c, seq, at) * c->width + i);
    return (unsigned char *)c->pool.data + elem * fx_size(c->dtype);
}
static inline double fx_cached(const struct fx_cache *c, int64_t seq, int64_t at, int64_t i)
{
    return fx_read(fx_cell(c, seq, at, i), c->dtype);
}

/* Random numbers in every slot that a sequence uses; the rest stays NaN. */
static inline void fx_cache_fill(struct fx *f, const struct fx_cache *c, double amp)
{
    for (uint32_t s = 0; s < c->n_seqs; ++s) {
        for (int32_t at = 0; at < c->len[s]; ++at) {
            for (int64_t i = 0; i < c->width; ++i) {
                fx_write(fx_cell(c, s, at, i), c->dtype, fx_random(f, amp));
            }
        }
    }
}

/* Metadata of a step that writes all tokens of all sequences, sequence by sequence; token t belongs to *out_seq. */
static inline void fx_write_all(struct fx_cache *c)
{
    uint32_t t = 0;
    for (uint32_t s = 0; s < c->n_seqs; ++s) {
        for (int32_t at = 0; at < c->len[s]; ++at, ++t) {
            c->positions[t] = at;
            c->slots[t] = (int32_t)fx_slot(c, s, at);
        }
    }
    c->meta.n_tok = t;
}

/* As ck_assert, but a check that holds costs nothing: the library reports each of its own to another process. */
#define FX_CHECK(cond)                                                                             \
    do {                                                                                           \
        if (!(cond)) ck_abort_msg("%s", #cond);                                                    \
    } while (0)
#define FX_CHECK_MSG(cond, ...)                                                                    \
    do {                                                                                           \
        if (!(cond)) ck_abort_msg(__VA_ARGS__);                                                    \
    } while (0)
#define FX_OK(call)                                                                                \
    do {                                                                                           \
        struct bp_error fx_err = BP_ERROR_INIT;                                                    \
        int32_t fx_rc = (call);                                                                    \
        ck_assert_msg(fx_rc == BP_OK, "%s: %d: %s", #call, fx_rc, fx_err.msg);                     \
    } while (0)
/* The call fails with this code and with a sentence that contains `text`. */
#define FX_FAILS(code, text, call)                                                                 \
    do {                                                                                           \
        struct bp_error fx_err = BP_ERROR_INIT;                                                    \
        int32_t fx_rc = (call);                                                                    \
        ck_assert_msg(fx_rc == (code), "%s: %d: %s", #call, fx_rc, fx_err.msg);                    \
        ck_assert_msg(strstr(fx_err.msg, (text)) != NULL, "no \"%s\" in: %s", (text), fx_err.msg); \
    } while (0)

/* main() of a test file: the seed is printed, and BP_SEED repeats a run. */
static inline uint64_t fx_seed(void)
{
    const char *text = getenv("BP_SEED");
    return text != NULL ? strtoull(text, NULL, 0) : UINT64_C(20250611);
}
static inline int fx_main(TCase *tc, const char *name)
{
    Suite *suite = suite_create(name);
    suite_add_tcase(suite, tc);
    tcase_set_timeout(tc, 300);
    SRunner *runner = srunner_create(suite);
    printf("seed %llu (set BP_SEED to change it)\n", (unsigned long long)fx_seed());
    fflush(stdout);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}

#endif
