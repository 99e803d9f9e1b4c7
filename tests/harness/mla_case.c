/* mla_case.c - see mla_case.h. SPDX-License-Identifier: MIT */
#include "harness/mla_case.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ref/ref.h"

/* Whoever is to be held to the rules registers here. */
static const bp_plugin_query_fn providers[] = {bpi_ref_query};

static void must(int32_t rc, const struct bp_error *err)
{
    if (rc == BP_OK) return;
    (void)fprintf(stderr, "cannot start: %s\n", err->msg);
    exit(2);
}

static void read_arguments(struct mla_suite *s, int argc, char **argv)
{
    for (int i = 1; i < argc; ++i) {
        const bool more = i + 1 < argc;
        if (strcmp(argv[i], "--verbose") == 0) {
            s->verbose = true;
        } else if (strcmp(argv[i], "--provider") == 0 && more) {
            s->only = argv[++i];
        } else if (strcmp(argv[i], "--seed") == 0 && more) {
            s->seed = strtoull(argv[++i], NULL, 0);
        } else {
            (void)fprintf(stderr, "usage: %s [--provider NAME] [--seed N] [--verbose]\n", argv[0]);
            exit(2);
        }
    }
}

void mla_suite_open(struct mla_suite *s, int argc, char **argv)
{
    struct bp_error err = BP_ERROR_INIT;
    memset(s, 0, sizeof *s);
    s->seed = 1;
    read_arguments(s, argc, argv);
    printf("seed %llu (--seed N for another)\n", (unsigned long long)s->seed);
    bpi_rng_seed(&s->rng, s->seed);
    must(bpi_config_create(&s->config, &err), &err);
    must(bpi_pool_create(2, &s->pool, &err), &err);
    const struct bpi_loader_env env = {.config = s->config, .pool = s->pool};
    must(bpi_loader_create(&env, &s->loader, &err), &err);
    for (size_t i = 0; i < BPI_ARRAY_LEN(providers); ++i) {
        must(bpi_loader_register(s->loader, providers[i], &err), &err);
    }
    s->host = (struct bp_device){.h = BP_HDR(struct bp_device, name), .kind = BP_DEV_HOST};
}

bool mla_suite_take(struct mla_suite *s, size_t i)
{
    s->provider = bpi_loader_plugin(s->loader, i)->name;
    return s->only == NULL || strcmp(s->only, s->provider) == 0;
}

int mla_suite_close(struct mla_suite *s)
{
    bpi_loader_destroy(s->loader);
    bpi_pool_destroy(s->pool);
    bpi_config_destroy(s->config);
    printf("%u cases, %u declined, %u failures\n", s->n_case, s->n_declined, s->n_failed);
    return s->n_failed == 0 && s->n_case > 0 ? 0 : 1;
}

bool mla_fail(struct mla_suite *s, const char *fmt, ...)
{
    va_list args;
    if (++s->n_failed > 25) return false; /* counted, no longer printed */
    printf("FAIL %s, %s: ", s->provider, s->label);
    va_start(args, fmt);
    (void)vprintf(fmt, args);
    va_end(args);
    printf("\n");
    return false;
}

bool mla_op_find(struct mla_suite *s, const char *iface, struct mla_op *op)
{
    struct bp_error err = BP_ERROR_INIT;
    memset(op, 0, sizeof *op);
    op->iface = iface;
    int32_t rc = bpi_loader_op(s->loader, s->provider, iface, &s->host, &op->ref, &err);
    op->offered = rc == BP_OK;
    if (!op->offered) printf("SKIP %s %s: %s\n", s->provider, iface, err.msg);
    return op->offered;
}

static void print_reasons(const struct mla_suite *s, const struct mla_op *op)
{
    const uint32_t n = op->answer.verdict.n_reasons;
    printf("declined by %s, %s:", s->provider, s->label);
    for (uint32_t i = 0; i < n && i < BPI_MAX_REASONS; ++i) {
        struct bpi_buf b = {0};
        bpi_loader_format_reason(&op->answer.reasons[i], &b);
        printf(" %s;", b.data != NULL ? b.data : "");
        bpi_buf_free(&b);
    }
    printf("\n");
}

bool mla_ask(struct mla_suite *s, struct mla_op *op, const struct bp_mla_problem *p)
{
    struct bp_error err = BP_ERROR_INIT;
    ++op->n_asked;
    bpi_loader_ask(&op->ref, s->provider, p, &op->answer);
    if (op->answer.verdict.level == BP_V_NO) {
        ++s->n_declined;
        if (s->verbose) print_reasons(s, op);
        if (op->answer.verdict.n_reasons == 0) {
            return mla_fail(s, "%s declined without a reason", op->iface);
        }
        return false;
    }
    ++op->n_served;
    struct bp_workspace w = {.h = BP_HDR(struct bp_workspace, persistent_zeroed)};
    if (op->ref.vt->workspace(op->ref.self, p, &w, &err) != BP_OK) {
        return mla_fail(s, "%s workspace: %s", op->iface, err.msg);
    }
    if (w.align > MLA_GUARD || (w.align & (w.align - 1)) != 0) {
        return mla_fail(s, "%s asks for alignment %u", op->iface, w.align);
    }
    op->l = (struct bp_launch){.h = BP_HDR(struct bp_launch, reserved), .dev = &s->host};
    op->l.layer = -1;
    op->l.epoch = s->n_case + 1;
    op->l.persistent = mla_bytes(s, w.persistent_bytes);
    if (w.persistent_zeroed != 0) memset(op->l.persistent, 0, w.persistent_bytes);
    op->l.plan = mla_bytes(s, w.plan_bytes);
    op->l.pinned = mla_bytes(s, w.pinned_bytes);
    op->l.scratch = mla_bytes(s, w.scratch_bytes);
    op->l.scratch_bytes = w.scratch_bytes;
    return true;
}

void mla_op_done(struct mla_suite *s, const struct mla_op *op)
{
    if (!op->offered) return;
    (void)snprintf(s->label, sizeof s->label, "%s", op->iface);
    if (op->n_served == 0) (void)mla_fail(s, "all of %u problems declined", op->n_asked);
    printf("%s %s: %u of %u problems served\n", s->provider, op->iface, op->n_served, op->n_asked);
}

/* ---- buffers ---- */

void *mla_bytes(struct mla_suite *s, size_t n_bytes)
{
    if (s->n_buf == MLA_MAX_BUFS) {
        (void)fprintf(stderr, "more than %d buffers in one case\n", MLA_MAX_BUFS);
        exit(2);
    }
    unsigned char *base =
        aligned_alloc(MLA_GUARD, (n_bytes + 3 * MLA_GUARD - 1) / MLA_GUARD * MLA_GUARD);
    if (base == NULL) exit(2);
    memset(base, 0xa5, MLA_GUARD);
    memset(base + MLA_GUARD, 0xff, n_bytes);
    memset(base + MLA_GUARD + n_bytes, 0xa5, MLA_GUARD);
    s->bufs[s->n_buf].base = base;
    s->bufs[s->n_buf++].n_bytes = n_bytes;
    return base + MLA_GUARD;
}

bool mla_guards(struct mla_suite *s)
{
    for (int i = 0; i < s->n_buf; ++i) {
        for (size_t k = 0; k < MLA_GUARD; ++k) {
            const unsigned char *b = s->bufs[i].base;
            if (b[k] == 0xa5 && b[MLA_GUARD + s->bufs[i].n_bytes + k] == 0xa5) continue;
            return mla_fail(s, "a byte %s buffer %d of %zu bytes was overwritten",
                            b[k] != 0xa5 ? "before" : "after", i, s->bufs[i].n_bytes);
        }
    }
    return true;
}

void mla_case_end(struct mla_suite *s)
{
    while (s->n_buf > 0) free(s->bufs[--s->n_buf].base);
}

size_t mla_elem_bytes(uint32_t dtype)
{
    return dtype == BP_DT_F16 || dtype == BP_DT_BF16 ? 2 : dtype == BP_DT_U8 ? 1 : 4;
}

struct bp_tensor mla_tensor(struct mla_suite *s, uint32_t dtype, int64_t d0, int64_t d1, int64_t d2,
                            int64_t pad)
{
    struct bp_tensor t = {.dtype = dtype, .dim = {d0, d1, d2}};
    const int64_t inner = (d1 > 0 ? d1 : 1) * (d2 > 0 ? d2 : 1);
    t.ndim = d2 > 0 ? 3 : d1 > 0 ? 2 : 1;
    t.stride[0] = t.ndim == 1 ? 1 : inner + pad;
    t.stride[1] = t.ndim == 3 ? d2 : t.ndim == 2 ? 1 : 0;
    t.stride[2] = t.ndim == 3 ? 1 : 0;
    int64_t n = d0 == 0 ? 0 : t.ndim == 1 ? d0 : (d0 - 1) * t.stride[0] + inner;
    t.data = mla_bytes(s, (size_t)n * mla_elem_bytes(dtype));
    return t;
}

static void *element(const struct bp_tensor *t, int64_t i, int64_t j, int64_t k)
{
    int64_t at = i * t->stride[0] + j * t->stride[1] + k * t->stride[2];
    return (unsigned char *)t->data + (size_t)at * mla_elem_bytes(t->dtype);
}

double mla_get(const struct bp_tensor *t, int64_t i, int64_t j, int64_t k)
{
    if (t->dtype == BP_DT_I32) return *(const int32_t *)element(t, i, j, k);
    return bp_oracle_get(element(t, i, j, k), t->dtype, 0);
}

void mla_put(const struct bp_tensor *t, int64_t i, int64_t j, int64_t k, double v)
{
    if (t->dtype == BP_DT_I32)
        *(int32_t *)element(t, i, j, k) = (int32_t)v;
    else
        bp_oracle_put(element(t, i, j, k), t->dtype, 0, v);
}

/* Numbers of one row of the first dimension, and how many such rows. */
static int64_t inner_of(const struct bp_tensor *t)
{
    return (t->ndim > 1 ? t->dim[1] : 1) * (t->ndim > 2 ? t->dim[2] : 1);
}

/* Four 16-bit uniforms summed: near enough to normal, variance 1, and cheap. */
static double bell(struct bpi_rng *rng)
{
    const uint64_t u = bpi_rng_u64(rng);
    const uint64_t sum = (u & 0xffff) + (u >> 16 & 0xffff) + (u >> 32 & 0xffff) + (u >> 48);
    return ((double)sum / 65535.0 - 2.0) * 1.7320508075688772;
}

struct bp_tensor mla_random(struct mla_suite *s, uint32_t dtype, int64_t d0, int64_t d1, int64_t d2,
                            int64_t pad, double size)
{
    struct bp_tensor t = mla_tensor(s, dtype, d0, d1, d2, pad);
    for (int64_t i = 0; i < d0; ++i) {
        void *row = element(&t, i, 0, 0);
        for (int64_t k = 0; k < inner_of(&t); ++k) {
            bp_oracle_put(row, dtype, k, bell(&s->rng) * size);
        }
    }
    return t;
}

struct bp_tensor mla_rows(const struct bp_tensor *t, int64_t begin, int64_t end)
{
    struct bp_tensor r = *t;
    r.dim[0] = end - begin;
    r.data = element(t, begin, 0, 0);
    return r;
}

double *mla_values(const struct bp_tensor *t)
{
    const bool whole = t->ndim < 3 || t->stride[1] == t->dim[2];
    const int64_t n = inner_of(t), width = whole ? n : t->dim[2];
    double *v = bp_oracle_alloc((size_t)(t->dim[0] * n), sizeof *v);
    for (int64_t i = 0; i < t->dim[0]; ++i) {
        for (int64_t k = 0; k < n; k += width) {
            const void *row = element(t, i, whole ? 0 : k / width, 0);
            for (int64_t e = 0; e < width; ++e) v[i * n + k + e] = bp_oracle_get(row, t->dtype, e);
        }
    }
    return v;
}

/* Both have their inner dimensions contiguous. */
bool mla_same_bits(const struct bp_tensor *a, const struct bp_tensor *b)
{
    const size_t n_bytes = (size_t)inner_of(a) * mla_elem_bytes(a->dtype);
    for (int64_t i = 0; i < a->dim[0]; ++i) {
        if (memcmp(element(a, i, 0, 0), element(b, i, 0, 0), n_bytes) != 0) return false;
    }
    return true;
}

/* ---- calls ---- */

/* Copies the rows of a tensor out to, or back from, contiguous bytes. */
static void save(const struct bp_tensor *t, unsigned char *bytes, bool back)
{
    const size_t n_bytes = (size_t)inner_of(t) * mla_elem_bytes(t->dtype);
    for (int64_t i = 0; i < t->dim[0]; ++i) {
        if (back)
            memcpy(element(t, i, 0, 0), bytes + (size_t)i * n_bytes, n_bytes);
        else
            memcpy(bytes + (size_t)i * n_bytes, element(t, i, 0, 0), n_bytes);
    }
}

static unsigned char *saved(const struct bp_tensor *t)
{
    size_t n = (size_t)(t->dim[0] * inner_of(t)) * mla_elem_bytes(t->dtype);
    unsigned char *bytes = bp_oracle_alloc(n, 1);
    save(t, bytes, false);
    return bytes;
}

static void poison(const struct bp_tensor *t, int byte)
{
    const size_t n_bytes = (size_t)inner_of(t) * mla_elem_bytes(t->dtype);
    for (int64_t i = 0; i < t->dim[0]; ++i) memset(element(t, i, 0, 0), byte, n_bytes);
}

static bool call_once(struct mla_suite *s, struct mla_op *op, mla_call call, const void *args)
{
    struct bp_error err = BP_ERROR_INIT;
    int32_t rc = call(op, args, &err);
    if (rc != BP_OK) {
        return mla_fail(s, "%s: status %s: %s", op->iface, bpi_status_name(rc), err.msg);
    }
    return mla_guards(s);
}

bool mla_run(struct mla_suite *s, struct mla_op *op, mla_call call, const void *args,
             const struct bp_tensor *const *outs, int n_out, const struct bp_tensor *const *inouts,
             int n_inout)
{
    unsigned char *before[4] = {NULL}, *after[8] = {NULL};
    ++s->n_case;
    if (s->verbose) printf("%s: %s\n", s->label, op->iface);
    for (int i = 0; i < n_out; ++i) poison(outs[i], 0xff);
    for (int i = 0; i < n_inout; ++i) before[i] = saved(inouts[i]);
    bool good = call_once(s, op, call, args);
    if (good && op->answer.verdict.determinism >= BP_DET_RUN) {
        for (int i = 0; i < n_out; ++i) after[i] = saved(outs[i]);
        for (int i = 0; i < n_inout; ++i) after[n_out + i] = saved(inouts[i]);
        for (int i = 0; i < n_out; ++i) poison(outs[i], 0x7b);
        for (int i = 0; i < n_inout; ++i) save(inouts[i], before[i], true);
        good = call_once(s, op, call, args);
        for (int i = 0; good && i < n_out + n_inout; ++i) {
            const struct bp_tensor *t = i < n_out ? outs[i] : inouts[i - n_out];
            unsigned char *again = saved(t);
            size_t n = (size_t)(t->dim[0] * inner_of(t)) * mla_elem_bytes(t->dtype);
            if (memcmp(again, after[i], n) != 0) {
                good = mla_fail(s, "%s: other bits on repetition, in output %d", op->iface, i);
            }
            free(again);
        }
    }
    for (int i = 0; i < 4; ++i) free(before[i]);
    for (int i = 0; i < 8; ++i) free(after[i]);
    return good;
}

bool mla_judge(struct mla_suite *s, const char *what, const struct bp_tensor *t, int64_t n,
               const double *exact, const double *base, const double *mag, uint32_t dtype,
               uint32_t precision)
{
    char why[256];
    const int64_t width = t->ndim > 2 ? t->dim[2] : t->ndim > 1 ? t->dim[1] : t->dim[0];
    double *got = mla_values(t);
    struct bp_oracle_compare c = {.got = got, .exact = exact, .base = base, .mag = mag};
    c.n_rows = t->ndim == 1 ? 1 : n * inner_of(t) / width;
    c.width = width;
    c.dtype = dtype;
    c.precision = precision;
    bool good = bp_oracle_agree(&c, why, sizeof why);
    free(got);
    return good ? true : mla_fail(s, "%s: %s", what, why);
}

/* ---- cache ---- */

static void rope_tables(struct mla_suite *s, struct mla_cache *c, int64_t n_rope)
{
    const int64_t n_pos = c->meta.max_kv + 1;
    c->meta.rope_cos = mla_tensor(s, BP_DT_F32, n_pos, n_rope / 2, 0, 0);
    c->meta.rope_sin = mla_tensor(s, BP_DT_F32, n_pos, n_rope / 2, 0, 0);
    for (int64_t p = 0; p < n_pos; ++p) {
        for (int64_t i = 0; i < n_rope / 2; ++i) {
            double angle = (double)p * pow(1e4, -2.0 * (double)i / (double)n_rope);
            mla_put(&c->meta.rope_cos, p, i, 0, cos(angle));
            mla_put(&c->meta.rope_sin, p, i, 0, sin(angle));
        }
    }
}

void mla_cache_init(struct mla_suite *s, struct mla_cache *c, const struct bp_kv_layout *layout,
                    uint32_t block_tok, uint32_t n_seqs, const int32_t *len, int prefix_of,
                    int32_t n_shared, int64_t n_rope)
{
    uint32_t total = 0, next = 0;
    memset(c, 0, sizeof *c);
    c->n_seqs = n_seqs;
    c->meta.h = (struct bp_hdr)BP_HDR(struct bp_mla_meta, rope_sin);
    for (uint32_t q = 0; q < n_seqs; ++q) {
        uint32_t n = ((uint32_t)len[q] + block_tok - 1) / block_tok;
        c->len[q] = len[q];
        if (n + 1 > c->stride) c->stride = n + 1;
        if ((uint32_t)len[q] > c->meta.max_kv) c->meta.max_kv = (uint32_t)len[q];
        total += (uint32_t)len[q];
    }
    const uint32_t n_block = n_seqs * c->stride + 2;
    int32_t *order = mla_bytes(s, n_block * sizeof *order);
    for (uint32_t i = 0; i < n_block; ++i) { /* inside-out shuffle */
        uint32_t k = (uint32_t)bpi_rng_below(&s->rng, i + 1);
        order[i] = order[k];
        order[k] = (int32_t)i;
    }
    c->table = mla_bytes(s, n_seqs * c->stride * sizeof *c->table);
    c->slots = mla_bytes(s, (total + 1) * sizeof *c->slots);
    c->positions = mla_bytes(s, (total + 1) * sizeof *c->positions);
    for (uint32_t q = 0; q < n_seqs; ++q) {
        for (uint32_t b = 0; b < c->stride; ++b) {
            bool shared =
                prefix_of >= 0 && q == n_seqs - 1 && (int32_t)((b + 1) * block_tok) <= n_shared;
            c->table[q * c->stride + b] =
                shared ? c->table[(uint32_t)prefix_of * c->stride + b] : order[next];
            next += !shared;
        }
    }
    c->meta.block_tok = block_tok;
    c->meta.n_seqs = n_seqs;
    c->meta.table_stride = c->stride;
    c->meta.epoch = s->n_case + 1;
    c->meta.positions = c->meta.positions_host = c->positions;
    c->meta.slot_map = c->meta.slot_map_host = c->slots;
    c->meta.block_table = c->meta.block_table_host = c->table;
    c->meta.kv_len = c->meta.kv_len_host = c->len;
    for (uint32_t q = 0; q < n_seqs; ++q) {
        for (int32_t at = 0; at < len[q]; ++at) {
            if (prefix_of >= 0 && q == n_seqs - 1 && at < n_shared) continue;
            c->positions[c->meta.n_tok] = at;
            c->slots[c->meta.n_tok++] = (int32_t)mla_slot(c, q, at);
        }
    }
    rope_tables(s, c, n_rope);
    c->pool = mla_tensor(s, BP_DT_U8, n_block, (int64_t)layout->block_bytes, 0, 0);
    c->pool.layout_id = layout->id;
}

int64_t mla_slot(const struct mla_cache *c, int64_t seq, int64_t at)
{
    return (int64_t)c->table[seq * c->stride + at / c->meta.block_tok] * c->meta.block_tok +
           at % c->meta.block_tok;
}
