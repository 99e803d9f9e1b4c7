/* test_ref_mla_path.c - whole attention of one layer through the MLA ops of the reference backend, against one formula
 * that knows neither latents in queries, nor pages, nor chunks, nor merging.
 * SPDX-License-Identifier: MIT */
#include "unit/ref/mla_fixture.h"

struct dims {
    uint32_t h, p, r, v, c;
};
static const struct dims all_dims[] = {
    {3, 32, 16, 40, 80}, {8, 64, 64, 96, 512}, {5, 48, 8, 40, 33}, {1, 10, 2, 7, 5}};
enum { N_TOK = 90, N_SEQ = 2 };
static const int32_t lens[N_SEQ] = {N_TOK, 40};
static const float eps = 1e-6f;

/* A layer with its inputs: raw projections of every token, queries before rotation. */
struct layer {
    struct dims d;
    float scale;
    float *k_b, *v_b; /* [h][c][p], [h][v][c] */
    void *handle;
    struct bp_tensor kv, norm_w, q; /* (n_tok, C + R), (C), (n_tok, H, P + R) */
    struct fx_cache cache;
};

static struct bp_raw raw_f32(const float *data, int64_t n0, int64_t n1, int64_t n2)
{
    struct bp_raw r = {.h = BP_HDR(struct bp_raw, reserved), .data = data, .type = BP_GGUF_F32};
    r.n_bytes = (uint64_t)(n0 * n1 * n2) * 4;
    r.n_dim = 3;
    r.ne[0] = n0;
    r.ne[1] = n1;
    r.ne[2] = n2;
    r.ne[3] = 1;
    r.name = "test";
    r.scale = 1.0f;
    return r;
}

static float *random_floats(struct fx *f, size_t n, double amp)
{
    float *p = fx_bytes(f, n * sizeof *p);
    for (size_t i = 0; i < n; ++i) p[i] = (float)fx_random(f, amp);
    return p;
}

static void make_layer(struct fx *f, struct layer *y, const struct dims *d, uint32_t kv_dtype)
{
    *y = (struct layer){.d = *d, .scale = 1.0f / sqrtf((float)(d->p + d->r))};
    y->k_b = random_floats(f, (size_t)d->h * d->c * d->p, 1.0);
    y->v_b = random_floats(f, (size_t)d->h * d->v * d->c, 1.0);
    struct bp_mla_weights w = {.h = BP_HDR(struct bp_mla_weights, head_end),
                               .n_head = d->h,
                               .nope_dim = d->p,
                               .v_dim = d->v,
                               .kv_rank = d->c,
                               .head_end = d->h};
    w.k_b = raw_f32(y->k_b, d->p, d->c, d->h);
    w.v_b = raw_f32(y->v_b, d->c, d->v, d->h);
    FX_OK(f->common->prepare(&f->ref, &w, &y->handle, NULL, &fx_err));
    fx_cache(f, &y->cache, "mla", kv_dtype, d->c + d->r, 16, N_SEQ, lens, d->r);
    fx_write_all(&y->cache);
    const int64_t n = y->cache.meta.n_tok;
    y->kv = fx_random_tensor(f, BP_DT_F32, n, d->c + d->r, 0, 0, 2.0);
    y->norm_w = fx_random_tensor(f, BP_DT_F32, d->c, 0, 0, 0, 1.0);
    y->q = fx_random_tensor(f, BP_DT_F32, n, d->h, d->p + d->r, 0, 1.0);
    struct bp_mla_cache_write_args a = {.meta = &y->cache.meta,
                                        .kv = y->kv,
                                        .norm_w = y->norm_w,
                                        .pool = y->cache.pool,
                                        .eps = eps};
    FX_OK(f->common->cache_write(&f->ref, &f->l, &a, &fx_err));
}

/* Rotates pairs (2i, 2i+1) of x[0..n) by the angles of a position. */
static void rotate(const struct layer *y, double *x, uint32_t n, int64_t pos)
{
    for (uint32_t i = 0; i < n / 2; ++i) {
        double co = fx_get(&y->cache.meta.rope_cos, pos, i, 0);
        double si = fx_get(&y->cache.meta.rope_sin, pos, i, 0);
        double a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = a * co - b * si;
        x[2 * i + 1] = a * si + b * co;
    }
}

/* Queries as the engine hands them over: the rotated part rotated, in f32. */
static struct bp_tensor rotated(struct fx *f, const struct layer *y)
{
    const struct dims d = y->d;
    struct bp_tensor q = fx_tensor(f, BP_DT_F32, y->q.dim[0], d.h, d.p + d.r, 0);
    for (int64_t t = 0; t < q.dim[0]; ++t) {
        for (uint32_t h = 0; h < d.h; ++h) {
            double x[64];
            for (uint32_t i = 0; i < d.p; ++i) fx_set(&q, t, h, i, fx_get(&y->q, t, h, i));
            for (uint32_t i = 0; i < d.r; ++i) x[i] = fx_get(&y->q, t, h, d.p + i);
            rotate(y, x, d.r, y->cache.positions[t]);
            for (uint32_t i = 0; i < d.r; ++i) fx_set(&q, t, h, d.p + i, x[i]);
        }
    }
    return q;
}

/* Keys and values of one head for all tokens of a sequence, from the raw projections. */
struct head {
    double k[N_TOK][128], v[N_TOK][96];
};

static void make_head(const struct layer *y, int64_t first, int32_t n, uint32_t h, struct head *o)
{
    const struct dims d = y->d;
    for (int32_t s = 0; s < n; ++s) {
        double c[512], mean = 0;
        for (uint32_t i = 0; i < d.c; ++i) mean += pow(fx_get(&y->kv, first + s, i, 0), 2) / d.c;
        for (uint32_t i = 0; i < d.c; ++i) {
            c[i] = fx_get(&y->norm_w, i, 0, 0) * fx_get(&y->kv, first + s, i, 0) /
                   sqrt(mean + (double)eps);
        }
        for (uint32_t p = 0; p < d.p; ++p) {
            o->k[s][p] = 0;
            for (uint32_t i = 0; i < d.c; ++i) {
                o->k[s][p] += (double)y->k_b[((size_t)h * d.c + i) * d.p + p] * c[i];
            }
        }
        for (uint32_t i = 0; i < d.r; ++i) o->k[s][d.p + i] = fx_get(&y->kv, first + s, d.c + i, 0);
        rotate(y, o->k[s] + d.p, d.r, s);
        for (uint32_t v = 0; v < d.v; ++v) {
            o->v[s][v] = 0;
            for (uint32_t i = 0; i < d.c; ++i) {
                o->v[s][v] += (double)y->v_b[((size_t)h * d.v + v) * d.c + i] * c[i];
            }
        }
    }
}

/* Largest error of got (n_tok, H, V) against softmax(scale q.k) v, over the largest value of its row. */
static double worst(const struct layer *y, const struct bp_tensor *got, double use_scale)
{
    const struct dims d = y->d;
    double most = 0;
    struct head *o = malloc(sizeof *o);
    ck_assert_ptr_nonnull(o);
    for (int64_t seq = 0, first = 0; seq < N_SEQ; first += lens[seq++]) {
        for (uint32_t h = 0; h < d.h; ++h) {
            make_head(y, first, lens[seq], h, o);
            for (int32_t t = 0; t < lens[seq]; ++t) {
                double q[128], s[N_TOK], max = -INFINITY, sum = 0, want[96] = {0}, top = 0;
                for (uint32_t i = 0; i < d.p + d.r; ++i) q[i] = fx_get(&y->q, first + t, h, i);
                rotate(y, q + d.p, d.r, t);
                for (int32_t k = 0; k <= t; ++k) {
                    s[k] = 0;
                    for (uint32_t i = 0; i < d.p + d.r; ++i) s[k] += q[i] * o->k[k][i];
                    s[k] *= use_scale;
                    max = fmax(max, s[k]);
                }
                for (int32_t k = 0; k <= t; ++k) sum += exp(s[k] - max);
                for (uint32_t v = 0; v < d.v; ++v) {
                    for (int32_t k = 0; k <= t; ++k) want[v] += exp(s[k] - max) / sum * o->v[k][v];
                    top = fmax(top, fabs(want[v]));
                }
                for (uint32_t v = 0; v < d.v; ++v) {
                    double error = fabs(fx_get(got, first + t, h, v) - want[v]) / top;
                    if (!(error <= most)) most = error; /* NaN stays */
                    if (isnan(most)) break;
                }
            }
        }
    }
    free(o);
    return most;
}

/* ---- the three ways through the ops ---- */

/* Decode: absorb, attend the latents, come back. */
static struct bp_tensor absorbed(struct fx *f, struct layer *y)
{
    const struct dims d = y->d;
    const int64_t n = y->q.dim[0];
    struct bp_tensor q = rotated(f, y), lat = fx_tensor(f, BP_DT_F32, n, d.h, d.c + d.r, 0);
    struct bp_tensor mid = fx_tensor(f, BP_DT_F32, n, d.h, d.c, 0);
    struct bp_tensor out = fx_tensor(f, BP_DT_F32, n, d.h, d.v, 0);
    /* The nope part is a view of q, the absorbed part a view of the decode op's query. */
    struct bp_tensor nope = q, front = lat;
    nope.dim[2] = d.p;
    front.dim[2] = d.c;
    struct bp_mla_absorb_args a = {
        .weights = y->handle, .x = nope, .y = front, .side = BP_MLA_ABSORB_UK};
    FX_OK(f->common->absorb(&f->ref, &f->l, &a, &fx_err));
    int32_t *seq = fx_bytes(f, (size_t)n * 4), *len = fx_bytes(f, (size_t)n * 4);
    for (int64_t t = 0; t < n; ++t) {
        seq[t] = t >= lens[0];
        len[t] = y->cache.positions[t] + 1;
        for (uint32_t h = 0; h < d.h; ++h) {
            memcpy(fx_at(&lat, t, h, d.c), fx_at(&q, t, h, d.p), d.r * sizeof(float));
        }
    }
    struct bp_mla_decode_meta m = {.common = &y->cache.meta,
                                   .n_row = (uint32_t)n,
                                   .n_row_padded = (uint32_t)n,
                                   .max_kv = N_TOK};
    m.row_seq_host = seq;
    m.row_kv_len_host = len;
    struct bp_mla_decode_args r = {
        .meta = &m, .q = lat, .pool = y->cache.pool, .out = mid, .scale = y->scale};
    FX_OK(f->decode->plan(&f->ref, &f->l, &m, &fx_err));
    FX_OK(f->decode->run(&f->ref, &f->l, &r, &fx_err));
    a = (struct bp_mla_absorb_args){
        .weights = y->handle, .x = mid, .y = out, .side = BP_MLA_ABSORB_UV};
    FX_OK(f->common->absorb(&f->ref, &f->l, &a, &fx_err));
    return out;
}

/* Keys [begin, end) of a sequence, gathered and expanded. */
static void slab(struct fx *f, const struct layer *y, int32_t seq, int32_t begin, int32_t end,
                 struct bp_tensor *k, struct bp_tensor *v)
{
    const struct dims d = y->d;
    const int64_t n = end - begin;
    int32_t cu[] = {0, end - begin};
    struct bp_mla_prefill_meta m = {.common = &y->cache.meta, .n_seg = 1, .n_k = (uint32_t)n};
    m.seq_host = &seq;
    m.cu_q_host = m.cu_k_host = cu;
    m.kv_begin_host = &begin;
    struct bp_tensor c = fx_tensor(f, BP_DT_F32, n, d.c, 0, 0);
    struct bp_tensor pe = fx_tensor(f, BP_DT_F32, n, d.r, 0, 0);
    *k = fx_tensor(f, BP_DT_F32, n, d.h, d.p + d.r, 0);
    *v = fx_tensor(f, BP_DT_F32, n, d.h, d.v, 0);
    struct bp_mla_cache_gather_args g = {.meta = &m, .pool = y->cache.pool, .c = c, .k_pe = pe};
    FX_OK(f->common->cache_gather(&f->ref, &f->l, &g, &fx_err));
    struct bp_mla_expand_args e = {.weights = y->handle, .c = c, .k_pe = pe, .k = *k, .v = *v};
    FX_OK(f->common->expand(&f->ref, &f->l, &e, &fx_err));
}

/* Prefill in chunks: own keys with the mask, the cached context in slabs of at most n_slab keys, merged. */
static struct bp_tensor chunked(struct fx *f, struct layer *y, int32_t chunk, int32_t n_slab)
{
    const struct dims d = y->d;
    struct bp_tensor q = rotated(f, y), out = fx_tensor(f, BP_DT_F32, q.dim[0], d.h, d.v, 0);
    for (int32_t seq = 0, first = 0; seq < N_SEQ; first += lens[seq++]) {
        for (int32_t at = 0; at < lens[seq]; at += chunk) {
            const int n_before = f->n_buf;
            int32_t end = at + chunk < lens[seq] ? at + chunk : lens[seq];
            int32_t cu_q[] = {0, end - at}, cu_k[] = {0, end - at};
            struct bp_mla_prefill_meta m = {.common = &y->cache.meta, .n_seg = 1};
            struct bp_tensor lse = fx_tensor(f, BP_DT_F32, end - at, d.h, 0, 0);
            struct bp_tensor part = fx_tensor(f, BP_DT_F32, end - at, d.h, d.v, 0);
            struct bp_tensor part_lse = fx_tensor(f, BP_DT_F32, end - at, d.h, 0, 0);
            struct bp_mla_prefill_args a = {.meta = &m, .scale = y->scale};
            m.n_q = m.n_k = (uint32_t)(end - at);
            m.cu_q_host = cu_q;
            m.cu_k_host = cu_k;
            a.q = fx_rows(&q, first + at, first + end);
            a.out = fx_rows(&out, first + at, first + end);
            a.lse = lse;
            slab(f, y, seq, at, end, &a.k, &a.v);
            FX_OK(f->prefill->run(&f->ref, &f->l, &a, &fx_err));
            struct bp_mla_merge_args merge = {
                .out = a.out, .lse = lse, .other_out = part, .other_lse = part_lse};
            for (int32_t k = 0; k < at; k += n_slab) {
                int32_t stop = k + n_slab < at ? k + n_slab : at;
                cu_k[1] = stop - k;
                m.n_k = (uint32_t)(stop - k);
                a.out = part;
                a.lse = part_lse;
                slab(f, y, seq, k, stop, &a.k, &a.v);
                FX_OK(f->prefill->run_context(&f->ref, &f->l, &a, &fx_err));
                FX_OK(f->common->merge(&f->ref, &f->l, &merge, &fx_err));
            }
            fx_guards(f);
            while (f->n_buf > n_before) bpi_free(f->bufs[--f->n_buf].base);
        }
    }
    return out;
}

/* All ways agree with the formula; an f32 cache and f32 activations leave room for a few roundings only. */
START_TEST(test_all_ways)
{
    for (size_t i = 0; i < BPI_ARRAY_LEN(all_dims); ++i) {
        struct fx f;
        struct layer y;
        fx_open(&f, 2, BPI_REF_ROUND_NONE, fx_seed() + i);
        make_layer(&f, &y, &all_dims[i], BP_DT_F32);
        struct bp_tensor a = absorbed(&f, &y);
        double error = worst(&y, &a, (double)y.scale);
        FX_CHECK_MSG(error <= 1e-6, "absorbed: %g", error);
        static const int32_t cuts[][2] = {{90, 90}, {32, 16}, {7, 90}, {33, 5}};
        for (size_t k = 0; k < BPI_ARRAY_LEN(cuts); ++k) {
            struct bp_tensor p = chunked(&f, &y, cuts[k][0], cuts[k][1]);
            error = worst(&y, &p, (double)y.scale);
            /* Each merge rounds the output once more. */
            double room = 2e-6 + 1.2e-7 * ((double)N_TOK / cuts[k][1]);
            FX_CHECK_MSG(error <= room, "chunk %d, slab %d: %g", cuts[k][0], cuts[k][1], error);
        }
        FX_CHECK(worst(&y, &a, (double)y.scale * 1.59) > 1e-3); /* the comparison sees a scale */
        f.common->release(&f.ref, y.handle);
        fx_close(&f);
    }
}
END_TEST

/* The error grows smoothly with the coarseness of the cache, and the two forms stay close. */
START_TEST(test_cache_dtypes)
{
    static const uint32_t dtypes[] = {BP_DT_F32, BP_DT_F16, BP_DT_BF16};
    static const double lo[] = {0.0, 1e-5, 1e-4}, hi[] = {1e-6, 2e-2, 1e-1};
    for (size_t i = 0; i < 3; ++i) {
        struct fx f;
        struct layer y;
        fx_open(&f, 2, BPI_REF_ROUND_NONE, fx_seed());
        make_layer(&f, &y, &all_dims[0], dtypes[i]);
        struct bp_tensor a = absorbed(&f, &y), p = chunked(&f, &y, 16, 16);
        double one = worst(&y, &a, (double)y.scale), two = worst(&y, &p, (double)y.scale);
        FX_CHECK_MSG(one >= lo[i] && one <= hi[i], "absorbed, dtype %u: %g", dtypes[i], one);
        FX_CHECK_MSG(two >= lo[i] && two <= hi[i], "chunked, dtype %u: %g", dtypes[i], two);
        /* Both read the same rounded cache, so they differ by f32 roundings alone. */
        for (int64_t t = 0; t < a.dim[0]; ++t) {
            for (int64_t h = 0; h < 3; ++h) {
                for (int64_t v = 0; v < 40; ++v) {
                    double gap = fabs(fx_get(&a, t, h, v) - fx_get(&p, t, h, v));
                    FX_CHECK(gap <= 2e-5);
                }
            }
        }
        f.common->release(&f.ref, y.handle);
        fx_close(&f);
    }
}
END_TEST

/* Sparse rows that list all their keys equal dense ones through the whole path; fewer keys do not. */
START_TEST(test_select_then_attend)
{
    struct fx f;
    struct fx_cache c, ic;
    enum { ROWS = 3, TOP_K = 40, D = 24, W = 96, H = 3 };
    int32_t seq[ROWS] = {0, 1, 0}, len[ROWS] = {90, 40, 41};
    fx_open(&f, 2, BPI_REF_ROUND_NONE, fx_seed());
    fx_cache(&f, &c, "mla", BP_DT_BF16, W, 16, N_SEQ, lens, 0);
    fx_cache_fill(&f, &c, 1.0);
    fx_cache(&f, &ic, "mla.index", BP_DT_BF16, D, 16, N_SEQ, lens, 0);
    ic.table = c.table; /* one block table for both pools */
    ic.meta.block_table_host = c.table;
    fx_cache_fill(&f, &ic, 1.0);
    struct bp_mla_decode_meta m = {
        .common = &c.meta, .n_row = ROWS, .n_row_padded = ROWS, .max_kv = N_TOK};
    m.row_seq_host = seq;
    m.row_kv_len_host = len;
    struct bp_mla_select_args s = {.meta = &m, .pool = ic.pool, .scale = 0.1f, .top_k = TOP_K};
    s.q = fx_random_tensor(&f, BP_DT_F32, ROWS, 4, D, 0, 1.0);
    s.w = fx_random_tensor(&f, BP_DT_F32, ROWS, 4, 0, 0, 1.0);
    s.idx = fx_tensor(&f, BP_DT_I32, ROWS, TOP_K, 0, 0);
    s.idx_len = fx_tensor(&f, BP_DT_I32, ROWS, 0, 0, 0);
    s.scores = fx_tensor(&f, BP_DT_F32, ROWS, N_TOK, 0, 0);
    FX_OK(f.index->select(&f.ref, &f.l, &s, &fx_err));
    struct bp_mla_decode_args a = {.meta = &m, .pool = c.pool, .scale = 0.3f};
    a.q = fx_random_tensor(&f, BP_DT_F32, ROWS, H, W, 0, 1.0);
    a.out = fx_tensor(&f, BP_DT_F32, ROWS, H, 80, 0);
    a.idx = s.idx;
    a.idx_len = s.idx_len;
    FX_OK(f.decode->run(&f.ref, &f.l, &a, &fx_err));
    for (int64_t row = 0; row < ROWS; ++row) {
        for (int64_t h = 0; h < H; ++h) {
            double sum = 0, want = 0;
            int64_t n = 0;
            /* Kept: the TOP_K best of the scores that select reported. */
            for (int64_t at = 0; at < len[row]; ++at) {
                int64_t better = 0;
                double own = fx_get(&s.scores, row, at, 0), dot = 0;
                for (int64_t o = 0; o < len[row]; ++o) {
                    double other = fx_get(&s.scores, row, o, 0);
                    better += other > own || (other == own && o < at);
                }
                if (better >= TOP_K) continue;
                for (int64_t i = 0; i < W; ++i) {
                    dot += fx_get(&a.q, row, h, i) * fx_cached(&c, seq[row], at, i);
                }
                sum += exp((double)a.scale * dot);
                want += exp((double)a.scale * dot) * fx_cached(&c, seq[row], at, 7);
                ++n;
            }
            ck_assert_int_eq(n, TOP_K);
            FX_CHECK(fabs(fx_get(&a.out, row, h, 7) - want / sum) <= 1e-6);
        }
    }
    fx_close(&f);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("path");
    tcase_add_test(tc, test_all_ways);
    tcase_add_test(tc, test_cache_dtypes);
    tcase_add_test(tc, test_select_then_attend);
    return fx_main(tc, "ref_mla_path");
}
