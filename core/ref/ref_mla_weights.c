/* ref_mla_weights.c - the up-projections of one layer: prepare, expand (keys and values of all heads from latents) and
 * absorb (queries into latent space, outputs out of it).
 * Handles are decoded whole, in one orientation, since each of their numbers is used at every step.
 * Threads: prepare and release serialised per instance; expand and absorb one call per instance.
 * SPDX-License-Identifier: MIT */
#include "ref/ref_mla.h"

#include "block/block.h"

#include <inttypes.h>
#include <string.h>

enum {
    TOK = 8 /* rows of x of one item */,
    LATENT = 8 /* latents decoded between transpositions */
};

/* Where one part of the file has a head's rows. */
struct part {
    const struct bp_raw *raw;
    uint64_t head_elems; /* numbers of one head */
};

/* Does raw hold n_head times `head_rows` rows of `width`? Two- and three-dimensional shapes have the same memory. */
static int32_t check_part(const struct bp_raw *raw, int64_t width, int64_t head_rows,
                          int64_t n_head, struct part *out, struct bp_error *err)
{
    int64_t rows = 1;
    for (uint32_t d = 1; d < 4 && d < raw->n_dim; ++d) {
        if (raw->ne[d] < 0 || __builtin_mul_overflow(rows, raw->ne[d], &rows)) rows = -1;
        if (rows < 0) break;
    }
    const struct bpi_block_info *block = bpi_block_info(raw->type);
    if (block == NULL || !block->can_decode) {
        return bpi_fail(err, BP_DECLINED, "ref", raw->name,
                        "tensor type %u (%s) is not served; ref decodes %s", raw->type,
                        block != NULL ? block->name : "unknown", bpi_block_supported_names());
    }
    if (raw->ne[0] != width || rows != head_rows * n_head) {
        return bpi_fail(err, BP_E_ARG, "ref", raw->name,
                        "the tensor is %" PRId64 " x %" PRId64 " numbers, and the model's %" PRId64
                        " heads need %" PRId64 " x %" PRId64,
                        raw->ne[0], rows, n_head, width, head_rows * n_head);
    }
    uint64_t want_bytes = 0;
    if (width % block->block_elems != 0 ||
        !bpi_block_bytes(raw->type, (uint64_t)width * (uint64_t)rows, &want_bytes) ||
        raw->n_bytes != want_bytes) {
        return bpi_fail(err, BP_E_ARG, "ref", raw->name,
                        "rows of %" PRId64 " numbers in blocks of %u need %" PRIu64
                        " bytes, and the tensor has %" PRIu64,
                        width, block->block_elems, want_bytes, raw->n_bytes);
    }
    *out = (struct part){.raw = raw, .head_elems = (uint64_t)(width * head_rows)};
    return BP_OK;
}

/* Numbers [at, at + n) of the tensor; at and n are whole blocks. */
static int32_t decode(const struct bpi_ref *ref, const struct bp_raw *raw, uint64_t at, uint64_t n,
                      float *dst)
{
    uint64_t at_bytes;
    if (!bpi_block_bytes(raw->type, at, &at_bytes)) return BP_E_INTERNAL;
    BP_TRY(bpi_block_decode(raw->type, (const unsigned char *)raw->data + at_bytes, n, dst));
    if (raw->scale != 1.0f) {
        for (uint64_t i = 0; i < n; ++i) dst[i] *= raw->scale;
    }
    bpi_ref_round(dst, (int64_t)n, ref->round);
    return BP_OK;
}

/* Key rows from k_b, which holds them transposed: row c has the P numbers that multiply latent c. */
static int32_t decode_transposed(const struct bpi_ref *ref, const struct part *part, uint64_t head,
                                 int64_t n_latent, int64_t n_row, float *tile, float *dst)
{
    for (int64_t c0 = 0; c0 < n_latent; c0 += LATENT) {
        int64_t n = n_latent - c0 < LATENT ? n_latent - c0 : LATENT;
        uint64_t at = head * part->head_elems + (uint64_t)(c0 * n_row);
        BP_TRY(decode(ref, part->raw, at, (uint64_t)(n * n_row), tile));
        for (int64_t p = 0; p < n_row; ++p) {
            for (int64_t c = 0; c < n; ++c) dst[p * n_latent + c0 + c] = tile[c * n_row + p];
        }
    }
    return BP_OK;
}

/* Which tensors serve: k_b and v_b where given, else their half of kv_b. */
struct source {
    struct part k, v, kv;
    bool k_own, v_own;
};

static int32_t find_source(const struct bp_mla_weights *w, struct source *s, struct bp_error *err)
{
    const int64_t p = w->nope_dim, v = w->v_dim, c = w->kv_rank, h = w->n_head;
    *s = (struct source){.k_own = w->k_b.data != NULL, .v_own = w->v_b.data != NULL};
    if (p == 0 || v == 0 || c == 0 || h == 0 || p > BPI_REF_MLA_MAX_DIM ||
        v > BPI_REF_MLA_MAX_DIM || c > BPI_REF_MLA_MAX_DIM || h > BPI_REF_MLA_MAX_DIM ||
        w->head_begin > w->head_end || w->head_end > w->n_head) {
        return bpi_fail(
            err, BP_E_ARG, "ref", "mla.common prepare",
            "heads %u..%u of %u with %u + %u rows over %u latents: every dimension must "
            "be 1..%d and the heads in order",
            w->head_begin, w->head_end, w->n_head, w->nope_dim, w->v_dim, w->kv_rank,
            BPI_REF_MLA_MAX_DIM);
    }
    if (s->k_own) BP_TRY(check_part(&w->k_b, p, c, h, &s->k, err));
    if (s->v_own) BP_TRY(check_part(&w->v_b, c, v, h, &s->v, err));
    if (s->k_own && s->v_own) return BP_OK;
    if (w->kv_b.data == NULL) {
        return bpi_fail(
            err, BP_E_ARG, "ref", "mla.common prepare",
            "the layer has neither k_b with v_b nor the joint kv_b; check the file with "
            "backplane inspect");
    }
    return check_part(&w->kv_b, c, p + v, h, &s->kv, err);
}

static int32_t decode_heads(const struct bpi_ref *ref, const struct bp_mla_weights *w,
                            const struct source *s, float *tile, float *rows)
{
    const uint64_t p = w->nope_dim, v = w->v_dim, c = w->kv_rank;
    for (uint64_t h = w->head_begin; h < w->head_end; ++h, rows += (p + v) * c) {
        if (s->k_own) {
            BP_TRY(decode_transposed(ref, &s->k, h, (int64_t)c, (int64_t)p, tile, rows));
        } else {
            BP_TRY(decode(ref, s->kv.raw, h * s->kv.head_elems, p * c, rows));
        }
        const struct bp_raw *v_raw = s->v_own ? s->v.raw : s->kv.raw;
        uint64_t at = s->v_own ? h * s->v.head_elems : h * s->kv.head_elems + p * c;
        BP_TRY(decode(ref, v_raw, at, v * c, rows + p * c));
    }
    return BP_OK;
}

/* Handles of one name hold the same numbers for the same tensors, and calls only read them. */
static uint64_t layout_of(uint32_t round)
{
    return round == BPI_REF_ROUND_BF16  ? bp_id("ref.mla.rows.bf16")
           : round == BPI_REF_ROUND_F16 ? bp_id("ref.mla.rows.f16")
                                        : bp_id("ref.mla.rows.f32");
}

int32_t bpi_ref_mla_prepare(void *self, const struct bp_mla_weights *w, void **out,
                            struct bp_weight_info *info, struct bp_error *err)
{
    struct bpi_ref *ref = self;
    struct bpi_ref_mla_weights *own = NULL;
    struct source s;
    float *tile = NULL;
    uint64_t n_head = w->head_end - w->head_begin, n_row, n_elem;
    int32_t rc = find_source(w, &s, err);
    if (rc != BP_OK) return rc;
    n_row = n_head * ((uint64_t)w->nope_dim + w->v_dim); /* below 2^42 */
    if (!bpi_mul_u64(n_row, w->kv_rank, &n_elem) || n_elem > UINT64_MAX / sizeof(float)) {
        return bpi_fail(err, BP_E_LIMIT, "ref", "mla.common prepare",
                        "the layer's up-projections overflow a 64-bit size");
    }
    own = bpi_ref_alloc(ref, 1, sizeof *own);
    tile = bpi_ref_alloc(ref, (uint64_t)w->nope_dim * LATENT, sizeof *tile);
    if (own == NULL || tile == NULL) goto nomem;
    *own = (struct bpi_ref_mla_weights){.n_head = (int64_t)n_head,
                                        .nope_dim = w->nope_dim,
                                        .v_dim = w->v_dim,
                                        .kv_rank = w->kv_rank};
    own->rows = bpi_ref_alloc(ref, n_elem, sizeof *own->rows);
    if (own->rows == NULL) goto nomem;
    rc = decode_heads(ref, w, &s, tile, own->rows);
    if (rc != BP_OK) {
        (void)bpi_fail(err, rc, "ref", "mla.common prepare", "an up-projection cannot be decoded");
        goto fail;
    }
    bpi_ref_free(ref, tile);
    if (info != NULL) {
        info->layout_id = layout_of(ref->round);
        info->n_bytes = sizeof *own + n_elem * sizeof(float);
    }
    *out = own;
    return BP_OK;
nomem:
    rc = bpi_fail_nomem(err, "ref", n_elem * sizeof(float));
fail:
    bpi_ref_free(ref, tile);
    bpi_ref_mla_release(ref, own);
    return rc;
}

void bpi_ref_mla_release(void *self, void *weights)
{
    struct bpi_ref_mla_weights *own = weights;
    if (own == NULL) return;
    bpi_ref_free(self, own->rows);
    bpi_ref_free(self, own);
}

/* ---- expand and absorb ---- */

/* One item: TOK rows of one head. Parts of a slice, in order: x as f32, x as double, pointers to weight rows, y. */
struct parts {
    float *part;
    double *x, *y;
    const float **rows;
};

static uint64_t max3(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t m = a > b ? a : b;
    return m > c ? m : c;
}

/* Widest row on either side of any of the products. */
static uint64_t widest(uint64_t nope_dim, uint64_t v_dim, uint64_t kv_rank)
{
    return max3(nope_dim + v_dim, kv_rank, 1);
}

uint64_t bpi_ref_mla_weights_slice(uint64_t nope_dim, uint64_t v_dim, uint64_t kv_rank)
{
    uint64_t n = widest(nope_dim, v_dim, kv_rank);
    return bpi_ref_mla_align(n * sizeof(float)) + 2 * bpi_ref_mla_align(TOK * n * sizeof(double)) +
           bpi_ref_mla_align(n * sizeof(float *));
}

static struct parts cut(const struct bpi_ref_mla_weights *w, unsigned char *scratch)
{
    uint64_t n = widest((uint64_t)w->nope_dim, (uint64_t)w->v_dim, (uint64_t)w->kv_rank);
    struct parts p;
    p.part = (float *)scratch;
    scratch += bpi_ref_mla_align(n * sizeof(float));
    p.x = (double *)scratch;
    scratch += bpi_ref_mla_align(TOK * n * sizeof(double));
    p.y = (double *)scratch;
    scratch += bpi_ref_mla_align(TOK * n * sizeof(double));
    p.rows = (const float **)scratch;
    return p;
}

struct job {
    const struct bpi_ref *ref;
    const struct bpi_ref_mla_weights *w;
    const struct bp_mla_expand_args *e;
    const struct bp_mla_absorb_args *a;
    int64_t n;
};

/* Rows [begin, end) of the head's weights, as pointers. */
static uint32_t weight_rows(const struct bpi_ref_mla_weights *w, int64_t head, int64_t begin,
                            int64_t end, const float **rows)
{
    const float *first = w->rows + head * (w->nope_dim + w->v_dim) * w->kv_rank;
    for (int64_t r = begin; r < end; ++r) rows[r - begin] = first + r * w->kv_rank;
    return (uint32_t)(end - begin);
}

static void expand_item(void *arg, uint64_t item, unsigned char *scratch)
{
    const struct job *j = arg;
    const struct bpi_ref_mla_weights *w = j->w;
    const struct bp_mla_expand_args *e = j->e;
    const int64_t h = (int64_t)(item % (uint64_t)w->n_head), n_rope = e->k_pe.dim[1];
    const int64_t first = (int64_t)(item / (uint64_t)w->n_head) * TOK;
    const int64_t n_out = w->nope_dim + w->v_dim;
    const uint32_t round = j->ref->round, n = (uint32_t)(j->n - first < TOK ? j->n - first : TOK);
    struct parts p = cut(w, scratch);
    for (uint32_t t = 0; t < n; ++t) {
        bpi_ref_mla_load_d(p.x + t * w->kv_rank, p.part, bpi_ref_at(&e->c, first + t, 0, 0),
                           e->c.dtype, w->kv_rank, round);
    }
    uint32_t n_row = weight_rows(w, h, 0, n_out, p.rows);
    bpi_ref_mla_dots(p.x, n, p.rows, n_row, w->kv_rank, p.y, n_out);
    for (uint32_t t = 0; t < n; ++t) {
        const double *y = p.y + t * n_out;
        bpi_ref_store(bpi_ref_at(&e->k, first + t, h, 0), e->k.dtype, y, w->nope_dim, round);
        bpi_ref_store(bpi_ref_at(&e->v, first + t, h, 0), e->v.dtype, y + w->nope_dim, w->v_dim,
                      round);
        /* In pieces: the rotated part may be wider than a slice's rows. */
        for (int64_t i = 0; i < n_rope; i += BPI_REF_MLA_STEP) {
            float part[BPI_REF_MLA_STEP];
            double wide[BPI_REF_MLA_STEP];
            int64_t m = n_rope - i < BPI_REF_MLA_STEP ? n_rope - i : BPI_REF_MLA_STEP;
            bpi_ref_mla_load_d(wide, part, bpi_ref_at(&e->k_pe, first + t, i, 0), e->k_pe.dtype, m,
                               round);
            bpi_ref_store(bpi_ref_at(&e->k, first + t, h, w->nope_dim + i), e->k.dtype, wide, m,
                          round);
        }
    }
}

int32_t bpi_ref_mla_expand(void *self, const struct bp_launch *l,
                           const struct bp_mla_expand_args *a, struct bp_error *err)
{
    static const char op[] = "mla.common expand";
    const struct bpi_ref *ref = self;
    const struct bpi_ref_mla_weights *w = a->weights;
    if (w == NULL || a->k_pe.ndim != 2) {
        return bpi_fail(err, BP_E_ARG, "ref", op, "no weights, or k_pe is not (n_k, R)");
    }
    const int64_t n = a->c.dim[0], n_rope = a->k_pe.dim[1];
    BP_TRY(bpi_ref_mla_port(&a->c, "c", BP_DT_NONE, n, w->kv_rank, 0, op, err));
    BP_TRY(bpi_ref_mla_port(&a->k_pe, "k_pe", BP_DT_NONE, n, n_rope, 0, op, err));
    if (w->n_head == 0 || n == 0) return BP_OK;
    BP_TRY(bpi_ref_mla_port(&a->k, "k", BP_DT_NONE, n, w->n_head, w->nope_dim + n_rope, op, err));
    BP_TRY(bpi_ref_mla_port(&a->v, "v", BP_DT_NONE, n, w->n_head, w->v_dim, op, err));
    struct job j = {.ref = ref, .w = w, .e = a, .n = n};
    uint64_t n_item = (uint64_t)(((n + TOK - 1) / TOK) * w->n_head);
    uint64_t work = (uint64_t)(n * w->n_head * w->kv_rank * (w->nope_dim + w->v_dim));
    return bpi_ref_mla_each(
        ref, l, n_item,
        bpi_ref_mla_weights_slice((uint64_t)w->nope_dim, (uint64_t)w->v_dim, (uint64_t)w->kv_rank),
        work, expand_item, &j, op, err);
}

static void absorb_item(void *arg, uint64_t item, unsigned char *scratch)
{
    const struct job *j = arg;
    const struct bpi_ref_mla_weights *w = j->w;
    const struct bp_mla_absorb_args *a = j->a;
    const int64_t h = (int64_t)(item % (uint64_t)w->n_head);
    const int64_t first = (int64_t)(item / (uint64_t)w->n_head) * TOK;
    const bool out_of = a->side == BP_MLA_ABSORB_UV;
    const int64_t n_in = out_of ? w->kv_rank : w->nope_dim;
    const int64_t n_out = out_of ? w->v_dim : w->kv_rank;
    const uint32_t round = j->ref->round, n = (uint32_t)(j->n - first < TOK ? j->n - first : TOK);
    struct parts p = cut(w, scratch);
    for (uint32_t t = 0; t < n; ++t) {
        bpi_ref_mla_load_d(p.x + t * n_in, p.part, bpi_ref_at(&a->x, first + t, h, 0), a->x.dtype,
                           n_in, round);
    }
    if (out_of) {
        uint32_t n_row = weight_rows(w, h, w->nope_dim, w->nope_dim + w->v_dim, p.rows);
        bpi_ref_mla_dots(p.x, n, p.rows, n_row, n_in, p.y, n_out);
    } else {
        uint32_t n_row = weight_rows(w, h, 0, w->nope_dim, p.rows);
        memset(p.y, 0, n * (size_t)n_out * sizeof *p.y);
        for (uint32_t t = 0; t < n; ++t) {
            bpi_ref_mla_accumulate(p.y + t * n_out, p.x + t * n_in, p.rows, n_row, n_out);
        }
    }
    for (uint32_t t = 0; t < n; ++t) {
        bpi_ref_store(bpi_ref_at(&a->y, first + t, h, 0), a->y.dtype, p.y + t * n_out, n_out,
                      round);
    }
}

int32_t bpi_ref_mla_absorb(void *self, const struct bp_launch *l,
                           const struct bp_mla_absorb_args *a, struct bp_error *err)
{
    static const char op[] = "mla.common absorb";
    const struct bpi_ref *ref = self;
    const struct bpi_ref_mla_weights *w = a->weights;
    if (w == NULL || a->side > BP_MLA_ABSORB_UV) {
        return bpi_fail(err, BP_E_ARG, "ref", op, "no weights, or side %u is neither UK nor UV",
                        a->side);
    }
    const bool out_of = a->side == BP_MLA_ABSORB_UV;
    const int64_t n = a->x.dim[0], n_in = out_of ? w->kv_rank : w->nope_dim;
    const int64_t n_out = out_of ? w->v_dim : w->kv_rank;
    if (w->n_head == 0 || n == 0) return BP_OK;
    BP_TRY(bpi_ref_mla_port(&a->x, "x", BP_DT_NONE, n, w->n_head, n_in, op, err));
    BP_TRY(bpi_ref_mla_port(&a->y, "y", BP_DT_NONE, n, w->n_head, n_out, op, err));
    struct job j = {.ref = ref, .w = w, .a = a, .n = n};
    uint64_t n_item = (uint64_t)(((n + TOK - 1) / TOK) * w->n_head);
    return bpi_ref_mla_each(
        ref, l, n_item,
        bpi_ref_mla_weights_slice((uint64_t)w->nope_dim, (uint64_t)w->v_dim, (uint64_t)w->kv_rank),
        (uint64_t)(n * w->n_head * n_in * n_out), absorb_item, &j, op, err);
}
