/* ref_product.c - many dot products at once, and how a call is cut into parts.
 * A tile of rows or tokens shares its loads, but every (row, token) sum keeps the lane order of bpi_ref_dot_ff: a
 * result depends neither on the number of tokens nor on the part it fell into.
 * Threads: all functions but bpi_ref_run_slices are pure. SPDX-License-Identifier: MIT */
#include "ref/ref_weight.h"

enum { LANES = 8, TILE = BPI_REF_ROW_TILE, SLICES_MIN = 4, SLICES_MAX = 64, BLOCK_ELEMS_MAX = 256 };

BPI_REF_INNER static inline double fold(const double s[LANES])
{
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

struct tile {
    const float *w;
    int64_t w_stride;
    const double *x[TILE];
    int64_t cols;
    double *y;
    int64_t y_stride;
};

/* n_rows and n_tok are constants in every caller: those loops unroll and the sums stay in registers. The loop over
 * lanes must not unroll, or GCC 12 takes the whole tile apart into scalars (10 times slower). Of the shapes tried on an
 * EPYC 9004 (rows x tokens; 1024 columns, -O3, one core, GFLOP/s) 1x4 gave 31.9, 4x3 27.7, 4x4 22.0, 4x2 15.4; for one
 * token 4x1 gave 19.7 and 1x1 18.5. AVX2 gives the same order and, within 5 percent, the same numbers, where GCC's own
 * vector types of 64 bytes gave 1.5 to 11: hence plain loops. */
#if defined(__GNUC__)
__attribute__((always_inline))
#endif
BPI_REF_INNER static inline void
run_tile(const struct tile *c, int n_rows, int n_tok)
{
    const float *w = c->w;
    const int64_t w_stride = c->w_stride, cols = c->cols;
    const double *x[TILE];
    double s[TILE][TILE][LANES];
    for (int t = 0; t < n_tok; ++t) x[t] = c->x[t];
    for (int r = 0; r < n_rows; ++r) BPI_REF_TOUCH(w + r * w_stride, cols);
    for (int t = 0; t < n_tok; ++t) {
        BPI_REF_TOUCH(x[t], cols);
        BPI_REF_TOUCH(c->y + t * c->y_stride, n_rows);
    }
    for (int r = 0; r < n_rows; ++r) {
        for (int t = 0; t < n_tok; ++t) {
            for (int j = 0; j < LANES; ++j) s[r][t][j] = 0.0;
        }
    }
    int64_t i = 0;
    for (; i + LANES <= cols; i += LANES) {
        for (int r = 0; r < n_rows; ++r) {
            for (int t = 0; t < n_tok; ++t) {
#pragma GCC unroll 1
                for (int j = 0; j < LANES; ++j) {
                    s[r][t][j] += (double)w[r * w_stride + i + j] * x[t][i + j];
                }
            }
        }
    }
    for (int j = 0; i + j < cols; ++j) {
        for (int r = 0; r < n_rows; ++r) {
            for (int t = 0; t < n_tok; ++t) {
                s[r][t][j] += (double)w[r * w_stride + i + j] * x[t][i + j];
            }
        }
    }
    for (int r = 0; r < n_rows; ++r) {
        for (int t = 0; t < n_tok; ++t) c->y[t * c->y_stride + r] = fold(s[r][t]);
    }
}

BPI_REF_CLONES BPI_REF_INNER static void tile_1x4(const struct tile *c)
{
    run_tile(c, 1, 4);
}
BPI_REF_CLONES BPI_REF_INNER static void tile_4x1(const struct tile *c)
{
    run_tile(c, 4, 1);
}
BPI_REF_CLONES BPI_REF_INNER static void tile_1x1(const struct tile *c)
{
    run_tile(c, 1, 1);
}
BP_STATIC_ASSERT(TILE == 4, "the tiles are written for 4");

void bpi_ref_product(const float *w, int64_t w_stride, int64_t n_rows, const double *x,
                     int64_t x_stride, const int32_t *pick, int64_t n_tok, int64_t cols, double *y,
                     int64_t y_stride)
{
    struct tile c = {.w_stride = w_stride, .cols = cols, .y_stride = y_stride};
    for (int64_t t = 0; t < n_tok;) {
        const bool wide_t = n_tok - t >= TILE;
        for (int i = 0; i < (wide_t ? TILE : 1); ++i) {
            c.x[i] = x + (pick != NULL ? pick[t + i] : t + i) * x_stride;
        }
        for (int64_t r = 0; r < n_rows;) {
            const bool wide_r = !wide_t && n_rows - r >= TILE;
            c.w = w + r * w_stride;
            c.y = y + t * y_stride + r;
            if (wide_t) {
                tile_1x4(&c);
            } else if (wide_r) {
                tile_4x1(&c);
            } else {
                tile_1x1(&c);
            }
            r += wide_r ? TILE : 1;
        }
        t += wide_t ? TILE : 1;
    }
}

uint64_t bpi_ref_slices(const struct bpi_ref *ref)
{
    uint64_t n = (uint64_t)ref->device.n_sm * 4;
    return n < SLICES_MIN ? SLICES_MIN : n > SLICES_MAX ? SLICES_MAX : n;
}

void bpi_ref_run_slices(const struct bpi_ref *ref, uint64_t work,
                        void (*fn)(void *arg, uint64_t begin, uint64_t end), void *arg)
{
    uint64_t slices = bpi_ref_slices(ref);
    if (work < BPI_REF_SERIAL_WORK) {
        fn(arg, 0, slices);
    } else {
        ref->host->parallel_for(ref->host->ctx, slices, 1, fn, arg);
    }
}

void bpi_ref_slice_part(uint64_t s, uint64_t slices, int64_t n, int64_t *begin, int64_t *end)
{
    int64_t each = n / (int64_t)slices, more = n % (int64_t)slices, at = (int64_t)s;
    *begin = at * each + (at < more ? at : more);
    *end = *begin + each + (at < more ? 1 : 0);
}

uint64_t bpi_ref_slice_floats(int64_t cover)
{
    uint64_t tile = (uint64_t)cover * TILE;
    return tile > BPI_REF_SLICE_FLOATS ? tile : BPI_REF_SLICE_FLOATS;
}

int64_t bpi_ref_slice_rows(int64_t cover, int64_t n_tok)
{
    if (n_tok <= TILE || cover * TILE >= BPI_REF_SLICE_FLOATS) return TILE;
    int64_t rows = cover > 0 ? BPI_REF_SLICE_FLOATS / cover : BPI_REF_ROW_BLOCK;
    return rows > BPI_REF_ROW_BLOCK ? BPI_REF_ROW_BLOCK : rows / TILE * TILE;
}

int64_t bpi_ref_cover_max(int64_t cols)
{
    return cols + 2 * BLOCK_ELEMS_MAX;
}

void *bpi_ref_area_take(struct bpi_ref_area *a, uint64_t n, uint64_t elem_bytes)
{
    uint64_t n_bytes, begin, end;
    if (a->bad || !bpi_mul_u64(n, elem_bytes, &n_bytes) || !bpi_align_up_u64(a->used, 64, &begin) ||
        !bpi_add_u64(begin, n_bytes, &end) || (a->limited && end > a->cap)) {
        a->bad = true;
        return NULL;
    }
    a->used = end;
    return a->base != NULL ? a->base + begin : NULL;
}

int32_t bpi_ref_area_report(const struct bpi_ref_area *a, struct bp_workspace *out,
                            struct bp_error *err)
{
    if (a->bad || a->used > INT64_MAX) {
        return bpi_fail(
            err, BP_E_LIMIT, "ref", NULL,
            "the scratch memory for this problem does not fit 64 bits; ask for fewer tokens");
    }
    out->persistent_bytes = 0;
    out->plan_bytes = 0;
    out->scratch_bytes = a->used;
    out->pinned_bytes = 0;
    out->align = 64;
    out->persistent_zeroed = 0;
    return BP_OK;
}

struct bpi_ref_area bpi_ref_area_of(const struct bp_launch *l)
{
    struct bpi_ref_area a = {.base = l->scratch, .limited = true};
    a.cap = l->scratch != NULL ? l->scratch_bytes : 0;
    a.bad = (uintptr_t)l->scratch % 64 != 0;
    return a;
}

int32_t bpi_ref_area_fail(const struct bp_launch *l, const char *op, struct bp_error *err)
{
    return bpi_fail(err, BP_E_ARG, "ref", op,
                    "the scratch memory of layer %d is too small or not aligned to 64 bytes: %llu "
                    "bytes came; give "
                    "what workspace() asked for",
                    l->layer, (unsigned long long)l->scratch_bytes);
}

void bpi_ref_rms_row(const float *x, const float *w, int64_t n, float eps, double *y)
{
    double inv = 1.0 / sqrt(bpi_ref_dot_ff(x, x, n) / (double)n + (double)eps);
    for (int64_t i = 0; i < n; ++i) y[i] = (double)x[i] * inv * (double)w[i];
}
