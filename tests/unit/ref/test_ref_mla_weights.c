/* test_ref_mla_weights.c - prepare, expand, absorb of the reference MLA backend against plain double loops.
 * SPDX-License-Identifier: MIT */
#include "unit/ref/mla_fixture.h"
#include "block/block.h"

struct dims {
    uint32_t h, p, r, v, c;
};
/* The first has C, P + R and V different with none dividing another: 80, 48, 40. */
static const struct dims all_dims[] = {
    {3, 32, 16, 40, 80}, {5, 48, 16, 40, 80}, {1, 7, 2, 3, 5}, {4, 64, 64, 96, 512}};

/* k_b[h][c][p] and v_b[h][v][c] as the file has them, with the decoded numbers beside them. */
struct file {
    struct dims d;
    struct bp_mla_weights w;
    float *k, *v; /* decoded, before scale and rounding */
};

static struct bp_raw raw_of(const void *data, uint32_t type, int64_t n0, int64_t n1, int64_t n2,
                            const char *name)
{
    struct bp_raw r = {.h = BP_HDR(struct bp_raw, reserved), .data = data, .type = type};
    r.n_dim = n2 > 0 ? 3 : 2;
    r.ne[0] = n0;
    r.ne[1] = n1;
    r.ne[2] = n2 > 0 ? n2 : 1;
    r.ne[3] = 1;
    for (int i = 0; i < 4; ++i) r.end[i] = r.ne[i];
    r.name = name;
    r.scale = 1.0f;
    FX_CHECK(bpi_block_bytes(type, (uint64_t)(n0 * n1 * r.ne[2]), &r.n_bytes));
    return r;
}

/* n random numbers of a type, and what they decode to. */
static void *encode(struct fx *f, uint32_t type, size_t n, float **decoded)
{
    uint64_t n_bytes;
    FX_CHECK(bpi_block_bytes(type, n, &n_bytes));
    unsigned char *p = fx_bytes(f, n_bytes);
    if (type == BP_GGUF_Q8_0) {
        for (size_t i = 0; i < n_bytes; ++i) p[i] = (unsigned char)bpi_rng_below(&f->rng, 256);
        for (size_t b = 0; b < n / 32; ++b) {
            uint16_t d = bpi_f32_to_f16((float)fx_random(f, 0.01));
            memcpy(p + b * 34, &d, 2);
        }
    } else {
        uint32_t dtype = type == BP_GGUF_F32    ? BP_DT_F32
                         : type == BP_GGUF_BF16 ? BP_DT_BF16
                                                : BP_DT_F16;
        for (size_t i = 0; i < n; ++i) {
            fx_write(p + i * fx_size(dtype), dtype, fx_random(f, 1.0));
        }
    }
    *decoded = fx_bytes(f, n * sizeof(float));
    ck_assert_int_eq(bpi_block_decode(type, p, n, *decoded), BP_OK);
    return p;
}

static void make_file(struct fx *f, struct file *file, const struct dims *d, uint32_t type)
{
    const uint32_t k_type = type == BP_GGUF_Q8_0 && d->p % 32 != 0 ? BP_GGUF_F16 : type;
    const uint32_t v_type = type == BP_GGUF_Q8_0 && d->c % 32 != 0 ? BP_GGUF_F16 : type;
    *file = (struct file){.d = *d};
    void *k = encode(f, k_type, (size_t)d->h * d->c * d->p, &file->k);
    void *v = encode(f, v_type, (size_t)d->h * d->c * d->v, &file->v);
    file->w = (struct bp_mla_weights){.h = BP_HDR(struct bp_mla_weights, head_end),
                                      .n_head = d->h,
                                      .nope_dim = d->p,
                                      .v_dim = d->v,
                                      .kv_rank = d->c,
                                      .head_end = d->h};
    file->w.k_b = raw_of(k, k_type, d->p, d->c, d->h, "blk.1.attn_k_b.weight");
    file->w.v_b = raw_of(v, v_type, d->c, d->v, d->h, "blk.1.attn_v_b.weight");
}

static double k_at(const struct file *x, int64_t h, int64_t c, int64_t p)
{
    return x->k[(h * x->d.c + c) * x->d.p + p];
}
static double v_at(const struct file *x, int64_t h, int64_t v, int64_t c)
{
    return x->v[(h * x->d.v + v) * x->d.c + c];
}

static void *prepared(struct fx *f, const struct bp_mla_weights *w)
{
    void *handle = NULL;
    struct bp_weight_info info = {.h = BP_HDR(struct bp_weight_info, n_bytes)};
    FX_OK(f->common->prepare(&f->ref, w, &handle, &info, &fx_err));
    uint64_t rows = (uint64_t)(w->head_end - w->head_begin) * (w->nope_dim + w->v_dim);
    ck_assert_uint_ge(info.n_bytes, rows * w->kv_rank * 4);
    return handle;
}

/* One absorb call: UK or UV of random rows. */
static struct bp_tensor absorb(struct fx *f, void *handle, const struct bp_tensor *x, uint32_t side,
                               int64_t n_out, uint32_t dtype)
{
    struct bp_tensor y = fx_tensor(f, dtype, x->dim[0], x->dim[1], n_out, 3);
    struct bp_mla_absorb_args a = {.h = BP_HDR(struct bp_mla_absorb_args, reserved),
                                   .weights = handle,
                                   .x = *x,
                                   .y = y,
                                   .side = side};
    FX_OK(f->common->absorb(&f->ref, &f->l, &a, &fx_err));
    return y;
}

static void expand(struct fx *f, void *handle, const struct bp_tensor *c,
                   const struct bp_tensor *k_pe, const struct dims *d, uint32_t dtype,
                   struct bp_tensor *k, struct bp_tensor *v)
{
    *k = fx_tensor(f, dtype, c->dim[0], d->h, d->p + d->r, 5);
    *v = fx_tensor(f, dtype, c->dim[0], d->h, d->v, 0);
    struct bp_mla_expand_args a = {.h = BP_HDR(struct bp_mla_expand_args, v),
                                   .weights = handle,
                                   .c = *c,
                                   .k_pe = *k_pe,
                                   .k = *k,
                                   .v = *v};
    FX_OK(f->common->expand(&f->ref, &f->l, &a, &fx_err));
}

/* Expand and absorb from the definition, for one type and activation dtype. */
static void check_formulas(uint32_t type, uint32_t act)
{
    for (size_t i = 0; i < BPI_ARRAY_LEN(all_dims); ++i) {
        struct fx f;
        struct file x;
        const struct dims d = all_dims[i];
        struct bp_tensor k, v;
        fx_open(&f, 2, BPI_REF_ROUND_NONE, fx_seed() + i);
        make_file(&f, &x, &d, type);
        void *handle = prepared(&f, &x.w);
        const int64_t n = 11;
        struct bp_tensor c = fx_random_tensor(&f, act, n, d.c, 0, 7, 1.0);
        struct bp_tensor k_pe = fx_random_tensor(&f, act, n, d.r, 0, 0, 1.0);
        struct bp_tensor q = fx_random_tensor(&f, act, n, d.h, d.p, 1, 1.0);
        struct bp_tensor o = fx_random_tensor(&f, act, n, d.h, d.c, 2, 1.0);
        expand(&f, handle, &c, &k_pe, &d, act, &k, &v);
        struct bp_tensor uk = absorb(&f, handle, &q, BP_MLA_ABSORB_UK, d.c, act);
        struct bp_tensor uv = absorb(&f, handle, &o, BP_MLA_ABSORB_UV, d.v, act);
        for (int64_t t = 0; t < n; ++t) {
            for (uint32_t h = 0; h < d.h; ++h) {
                for (uint32_t p = 0; p < d.p; ++p) {
                    double sum = 0;
                    for (uint32_t e = 0; e < d.c; ++e) {
                        sum += k_at(&x, h, e, p) * fx_get(&c, t, e, 0);
                    }
                    double got = fx_get(&k, t, h, p), want = sum;
                    FX_CHECK_MSG(fx_near(got, want, act, d.c), "k: got %.9g, want %.9g", got, want);
                }
                for (uint32_t r = 0; r < d.r; ++r) {
                    FX_CHECK(fx_get(&k, t, h, d.p + r) == fx_get(&k_pe, t, r, 0));
                }
                for (uint32_t e = 0; e < d.v; ++e) {
                    double a = 0, b = 0;
                    for (uint32_t s = 0; s < d.c; ++s) {
                        double w = v_at(&x, h, e, s);
                        a += w * fx_get(&c, t, s, 0);
                        b += w * fx_get(&o, t, h, s);
                    }
                    FX_CHECK(fx_near(fx_get(&v, t, h, e), a, act, d.c));
                    FX_CHECK(fx_near(fx_get(&uv, t, h, e), b, act, d.c));
                }
                for (uint32_t e = 0; e < d.c; ++e) {
                    double sum = 0;
                    for (uint32_t p = 0; p < d.p; ++p) {
                        sum += k_at(&x, h, e, p) * fx_get(&q, t, h, p);
                    }
                    FX_CHECK(fx_near(fx_get(&uk, t, h, e), sum, act, d.p));
                }
            }
        }
        f.common->release(&f.ref, handle);
        fx_close(&f);
    }
}

START_TEST(test_formulas)
{
    static const uint32_t types[] = {BP_GGUF_F32, BP_GGUF_BF16, BP_GGUF_F16, BP_GGUF_Q8_0};
    for (size_t i = 0; i < BPI_ARRAY_LEN(types); ++i) {
        check_formulas(types[i], BP_DT_F32);
    }
    check_formulas(BP_GGUF_F32, BP_DT_BF16);
    check_formulas(BP_GGUF_F32, BP_DT_F16);
}
END_TEST

/* A rounding mode with a boundary case may differ by a whole step: only f32 ports hold the comparison to one ulp of the
 * rounded format, so it is made in steps of that format. */
START_TEST(test_round_modes)
{
    static const uint32_t rounds[] = {BPI_REF_ROUND_BF16, BPI_REF_ROUND_F16};
    for (size_t i = 0; i < 2; ++i) {
        struct fx f;
        struct file x;
        const struct dims d = all_dims[0];
        const double ulp = rounds[i] == BPI_REF_ROUND_BF16 ? 0x1p-7 : 0x1p-10;
        int moved = 0;
        fx_open(&f, 1, rounds[i], fx_seed());
        make_file(&f, &x, &d, BP_GGUF_F32);
        void *handle = prepared(&f, &x.w);
        struct bp_tensor o = fx_random_tensor(&f, BP_DT_F32, 4, d.h, d.c, 0, 1.0);
        struct bp_tensor uv = absorb(&f, handle, &o, BP_MLA_ABSORB_UV, d.v, BP_DT_F32);
        for (int64_t t = 0; t < 4; ++t) {
            for (uint32_t h = 0; h < d.h; ++h) {
                for (uint32_t e = 0; e < d.v; ++e) {
                    double plain = 0, rounded = 0, got = fx_get(&uv, t, h, e);
                    for (uint32_t s = 0; s < d.c; ++s) {
                        plain += v_at(&x, h, e, s) * fx_get(&o, t, h, s);
                        rounded += fx_rounded(v_at(&x, h, e, s), rounds[i]) *
                                   fx_rounded(fx_get(&o, t, h, s), rounds[i]);
                    }
                    FX_CHECK(got == fx_rounded(got, rounds[i]));
                    FX_CHECK(fabs(got - rounded) <= 0.501 * ulp * fabs(rounded) + 1e-6);
                    moved += fabs(got - plain) > 0.51 * ulp * fabs(plain);
                }
            }
        }
        ck_assert_int_gt(moved, 0); /* weights and inputs were rounded, not the output alone */
        f.common->release(&f.ref, handle);
        fx_close(&f);
    }
}
END_TEST

/* A row alone, in pieces and in a batch has the same bits; NaN in one row stays there. */
START_TEST(test_rows_are_independent)
{
    struct fx f;
    struct file x;
    const struct dims d = all_dims[1];
    struct bp_tensor k, v, k1, v1;
    fx_open(&f, 2, BPI_REF_ROUND_NONE, fx_seed());
    make_file(&f, &x, &d, BP_GGUF_BF16);
    void *handle = prepared(&f, &x.w);
    const int64_t n = 21;
    struct bp_tensor c = fx_random_tensor(&f, BP_DT_F32, n, d.c, 0, 0, 1.0);
    struct bp_tensor k_pe = fx_random_tensor(&f, BP_DT_F32, n, d.r, 0, 0, 1.0);
    struct bp_tensor q = fx_random_tensor(&f, BP_DT_F32, n, d.h, d.p, 0, 1.0);
    struct bp_tensor o = fx_random_tensor(&f, BP_DT_F32, n, d.h, d.c, 0, 1.0);
    expand(&f, handle, &c, &k_pe, &d, BP_DT_F32, &k, &v);
    struct bp_tensor uk = absorb(&f, handle, &q, BP_MLA_ABSORB_UK, d.c, BP_DT_F32);
    struct bp_tensor uv = absorb(&f, handle, &o, BP_MLA_ABSORB_UV, d.v, BP_DT_F32);
    static const int64_t cuts[] = {0, 1, 2, 5, 12, 21};
    for (size_t i = 0; i + 1 < BPI_ARRAY_LEN(cuts); ++i) {
        struct bp_tensor cr = fx_rows(&c, cuts[i], cuts[i + 1]);
        struct bp_tensor pr = fx_rows(&k_pe, cuts[i], cuts[i + 1]);
        struct bp_tensor qr = fx_rows(&q, cuts[i], cuts[i + 1]);
        struct bp_tensor o_part = fx_rows(&o, cuts[i], cuts[i + 1]);
        expand(&f, handle, &cr, &pr, &d, BP_DT_F32, &k1, &v1);
        struct bp_tensor uk1 = absorb(&f, handle, &qr, BP_MLA_ABSORB_UK, d.c, BP_DT_F32);
        struct bp_tensor uv1 = absorb(&f, handle, &o_part, BP_MLA_ABSORB_UV, d.v, BP_DT_F32);
        struct bp_tensor want = fx_rows(&k, cuts[i], cuts[i + 1]);
        FX_CHECK(fx_same_bits(&k1, &want));
        want = fx_rows(&v, cuts[i], cuts[i + 1]);
        FX_CHECK(fx_same_bits(&v1, &want));
        want = fx_rows(&uk, cuts[i], cuts[i + 1]);
        FX_CHECK(fx_same_bits(&uk1, &want));
        want = fx_rows(&uv, cuts[i], cuts[i + 1]);
        FX_CHECK(fx_same_bits(&uv1, &want));
    }
    for (uint32_t e = 0; e < d.c; ++e) {
        fx_set(&c, 6, e, 0, NAN);
        for (uint32_t h = 0; h < d.h; ++h) fx_set(&o, 6, h, e, NAN);
    }
    expand(&f, handle, &c, &k_pe, &d, BP_DT_F32, &k1, &v1);
    struct bp_tensor uv1 = absorb(&f, handle, &o, BP_MLA_ABSORB_UV, d.v, BP_DT_F32);
    FX_CHECK(isnan(fx_get(&k1, 6, 0, 0)) && isnan(fx_get(&v1, 6, 0, 0)));
    FX_CHECK(isnan(fx_get(&uv1, 6, d.h - 1, d.v - 1)));
    for (int64_t t = 0; t < n; ++t) {
        if (t == 6) continue;
        struct bp_tensor got = fx_rows(&k1, t, t + 1), want = fx_rows(&k, t, t + 1);
        FX_CHECK(fx_same_bits(&got, &want));
        got = fx_rows(&uv1, t, t + 1);
        want = fx_rows(&uv, t, t + 1);
        FX_CHECK(fx_same_bits(&got, &want));
    }
    f.common->release(&f.ref, handle);
    fx_close(&f);
}
END_TEST

/* Do two handles give the same bits for everything? */
static bool same_handles(struct fx *f, void *a, void *b, const struct dims *d)
{
    struct bp_tensor c = fx_random_tensor(f, BP_DT_F32, 3, d->c, 0, 0, 1.0);
    struct bp_tensor k_pe = fx_random_tensor(f, BP_DT_F32, 3, d->r, 0, 0, 1.0);
    struct bp_tensor q = fx_random_tensor(f, BP_DT_F32, 3, d->h, d->p, 0, 1.0);
    struct bp_tensor ka, va, kb, vb;
    expand(f, a, &c, &k_pe, d, BP_DT_F32, &ka, &va);
    expand(f, b, &c, &k_pe, d, BP_DT_F32, &kb, &vb);
    struct bp_tensor ua = absorb(f, a, &q, BP_MLA_ABSORB_UK, d->c, BP_DT_F32);
    struct bp_tensor ub = absorb(f, b, &q, BP_MLA_ABSORB_UK, d->c, BP_DT_F32);
    return fx_same_bits(&ka, &kb) && fx_same_bits(&va, &vb) && fx_same_bits(&ua, &ub);
}

/* The joint form: per head P key rows, then V value rows, each over C. */
static void make_joint(struct fx *f, const struct file *x, struct bp_mla_weights *w)
{
    const struct dims d = x->d;
    float *joint = fx_bytes(f, (size_t)d.h * (d.p + d.v) * d.c * sizeof *joint);
    for (uint32_t h = 0; h < d.h; ++h) {
        float *rows = joint + (size_t)h * (d.p + d.v) * d.c;
        for (uint32_t c = 0; c < d.c; ++c) {
            for (uint32_t p = 0; p < d.p; ++p) rows[p * d.c + c] = (float)k_at(x, h, c, p);
            for (uint32_t v = 0; v < d.v; ++v) rows[(d.p + v) * d.c + c] = (float)v_at(x, h, v, c);
        }
    }
    *w = x->w;
    w->k_b = w->v_b = (struct bp_raw){.h = BP_HDR(struct bp_raw, reserved)};
    w->kv_b =
        raw_of(joint, BP_GGUF_F32, d.c, (int64_t)d.h * (d.p + d.v), 0, "blk.1.attn_kv_b.weight");
}

START_TEST(test_joint_and_flat_forms)
{
    struct fx f;
    struct file x;
    struct bp_mla_weights joint, flat, mixed;
    const struct dims d = all_dims[1];
    fx_open(&f, 1, BPI_REF_ROUND_NONE, fx_seed());
    make_file(&f, &x, &d, BP_GGUF_F32);
    make_joint(&f, &x, &joint);
    flat = x.w;
    flat.k_b = raw_of(x.w.k_b.data, BP_GGUF_F32, d.p, (int64_t)d.c * d.h, 0, "k_b");
    flat.v_b = raw_of(x.w.v_b.data, BP_GGUF_F32, d.c, (int64_t)d.v * d.h, 0, "v_b");
    mixed = joint;
    mixed.v_b = x.w.v_b;
    void *split = prepared(&f, &x.w), *one = prepared(&f, &joint);
    void *two = prepared(&f, &flat), *half = prepared(&f, &mixed);
    FX_CHECK(same_handles(&f, split, one, &d));
    FX_CHECK(same_handles(&f, split, two, &d));
    FX_CHECK(same_handles(&f, split, half, &d));
    /* The comparison can fail: another number in one place. */
    ((float *)joint.kv_b.data)[(size_t)(d.p + d.v) * d.c * 2 + 17] += 1.0f;
    void *other = prepared(&f, &joint);
    FX_CHECK(!same_handles(&f, split, other, &d));
    f.common->release(&f.ref, split);
    f.common->release(&f.ref, one);
    f.common->release(&f.ref, two);
    f.common->release(&f.ref, half);
    f.common->release(&f.ref, other);
    f.common->release(&f.ref, NULL);
    fx_close(&f);
}
END_TEST

/* A rank's heads are the same heads of the whole; an empty shard is legal; scale multiplies every number. */
START_TEST(test_shards_and_scale)
{
    struct fx f;
    struct file x;
    const struct dims d = all_dims[1];
    fx_open(&f, 1, BPI_REF_ROUND_NONE, fx_seed());
    make_file(&f, &x, &d, BP_GGUF_Q8_0);
    for (int form = 0; form < 2; ++form) {
        struct bp_mla_weights w = x.w;
        if (form == 1) make_joint(&f, &x, &w);
        void *whole = prepared(&f, &w);
        w.head_begin = 1;
        w.head_end = 4;
        void *part = prepared(&f, &w);
        w.head_begin = w.head_end = 2;
        void *none = prepared(&f, &w);
        struct bp_tensor q = fx_random_tensor(&f, BP_DT_F32, 3, d.h, d.p, 0, 1.0);
        struct bp_tensor q3 = q;
        q3.dim[1] = 3;
        q3.data = fx_at(&q, 0, 1, 0);
        struct bp_tensor y = absorb(&f, whole, &q, BP_MLA_ABSORB_UK, d.c, BP_DT_F32);
        struct bp_tensor y3 = absorb(&f, part, &q3, BP_MLA_ABSORB_UK, d.c, BP_DT_F32);
        struct bp_tensor want = y;
        want.dim[1] = 3;
        want.data = fx_at(&y, 0, 1, 0);
        FX_CHECK(fx_same_bits(&y3, &want));
        struct bp_tensor nothing = fx_tensor(&f, BP_DT_F32, 3, 0, 0, 0);
        nothing.ndim = 3;
        struct bp_mla_absorb_args a = {.weights = none, .x = nothing, .y = nothing};
        FX_OK(f.common->absorb(&f.ref, &f.l, &a, &fx_err));
        f.common->release(&f.ref, whole);
        f.common->release(&f.ref, part);
        f.common->release(&f.ref, none);
    }
    struct bp_mla_weights doubled = x.w;
    doubled.k_b.scale = 2.0f;
    void *once = prepared(&f, &x.w), *twice = prepared(&f, &doubled);
    struct bp_tensor q = fx_random_tensor(&f, BP_DT_F32, 2, d.h, d.p, 0, 1.0);
    struct bp_tensor y1 = absorb(&f, once, &q, BP_MLA_ABSORB_UK, d.c, BP_DT_F32);
    struct bp_tensor y2 = absorb(&f, twice, &q, BP_MLA_ABSORB_UK, d.c, BP_DT_F32);
    for (uint32_t c = 0; c < d.c; ++c) {
        FX_CHECK(fx_get(&y2, 1, 2, c) == 2.0 * fx_get(&y1, 1, 2, c));
    }
    f.common->release(&f.ref, once);
    f.common->release(&f.ref, twice);
    fx_close(&f);
}
END_TEST

START_TEST(test_bad_weights)
{
    struct fx f;
    struct file x;
    void *handle = NULL;
    struct bp_mla_weights w;
    const struct dims d = all_dims[0];
    fx_open(&f, 1, BPI_REF_ROUND_NONE, fx_seed());
    make_file(&f, &x, &d, BP_GGUF_F32);
    w = x.w;
    w.k_b.ne[0] = d.c; /* not transposed: the latent dimension first */
    w.k_b.ne[1] = d.p;
    FX_FAILS(BP_E_ARG, "heads need", f.common->prepare(&f.ref, &w, &handle, NULL, &fx_err));
    w = x.w;
    w.v_b.n_bytes -= 4;
    FX_FAILS(BP_E_ARG, "bytes", f.common->prepare(&f.ref, &w, &handle, NULL, &fx_err));
    w = x.w;
    w.k_b.type = 4; /* removed from the format */
    FX_FAILS(BP_DECLINED, "not served", f.common->prepare(&f.ref, &w, &handle, NULL, &fx_err));
    w = x.w;
    w.v_b.data = NULL;
    FX_FAILS(BP_E_ARG, "neither", f.common->prepare(&f.ref, &w, &handle, NULL, &fx_err));
    w = x.w;
    w.head_end = d.h + 1;
    FX_FAILS(BP_E_ARG, "in order", f.common->prepare(&f.ref, &w, &handle, NULL, &fx_err));
    w = x.w;
    w.k_b.ne[1] = INT64_MAX;
    w.k_b.ne[2] = 3;
    FX_FAILS(BP_E_ARG, "heads need", f.common->prepare(&f.ref, &w, &handle, NULL, &fx_err));
    ck_assert_ptr_null(handle);
    handle = prepared(&f, &x.w);
    struct bp_tensor q = fx_random_tensor(&f, BP_DT_F32, 2, d.h, d.c, 0, 1.0);
    struct bp_mla_absorb_args a = {.weights = handle, .x = q, .y = q};
    FX_FAILS(BP_E_ARG, "x has", f.common->absorb(&f.ref, &f.l, &a, &fx_err));
    a.side = 2;
    FX_FAILS(BP_E_ARG, "neither UK nor UV", f.common->absorb(&f.ref, &f.l, &a, &fx_err));
    f.common->release(&f.ref, handle);
    fx_close(&f);
}
END_TEST

/* The grouped sums have the very bits of the single one, whatever the counts. */
START_TEST(test_sums_do_not_see_groups)
{
    struct fx f;
    fx_open(&f, 1, BPI_REF_ROUND_NONE, fx_seed());
    static const int64_t widths[] = {1, 5, 8, 23, 64, 576};
    for (size_t i = 0; i < BPI_ARRAY_LEN(widths); ++i) {
        const int64_t n = widths[i];
        double q[9 * 576], out[9][16], acc[576], one[576], p[13];
        float data[13 * 576];
        const float *rows[13];
        for (int64_t k = 0; k < 9 * n; ++k) q[k] = fx_random(&f, 1.0);
        for (int64_t k = 0; k < 13 * n; ++k) data[k] = (float)fx_random(&f, 1.0);
        for (int k = 0; k < 13; ++k) {
            rows[k] = data + k * n;
            p[k] = fx_random(&f, 1.0);
        }
        for (uint32_t n_q = 1; n_q <= 9; ++n_q) {
            for (uint32_t n_row = 0; n_row <= 13; ++n_row) {
                bpi_ref_mla_dots(q, n_q, rows, n_row, n, out[0], 16);
                for (uint32_t a = 0; a < n_q; ++a) {
                    for (uint32_t b = 0; b < n_row; ++b) {
                        FX_CHECK(out[a][b] == bpi_ref_dot_fd(rows[b], q + a * n, n));
                    }
                }
            }
        }
        for (uint32_t n_row = 0; n_row <= 13; ++n_row) {
            for (int64_t k = 0; k < n; ++k) {
                acc[k] = q[k];
                one[k] = q[k];
                for (uint32_t b = 0; b < n_row; ++b) one[k] += p[b] * (double)rows[b][k];
            }
            bpi_ref_mla_accumulate(acc, p, rows, n_row, n);
            ck_assert_int_eq(memcmp(acc, one, (size_t)n * sizeof *acc), 0);
        }
    }
    fx_close(&f);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("weights");
    tcase_add_test(tc, test_formulas);
    tcase_add_test(tc, test_round_modes);
    tcase_add_test(tc, test_rows_are_independent);
    tcase_add_test(tc, test_joint_and_flat_forms);
    tcase_add_test(tc, test_shards_and_scale);
    tcase_add_test(tc, test_bad_weights);
    tcase_add_test(tc, test_sums_do_not_see_groups);
    return fx_main(tc, "ref_mla_weights");
}
