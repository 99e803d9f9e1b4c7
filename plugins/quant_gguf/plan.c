/* plan.c - sizes and choices of quant_gguf: how a weight lies, how many warps and blocks share its strips, what memory a
 * product needs. Not here: anything that touches a device. Pure. SPDX-License-Identifier: MIT */
#include "plan.h"

static int64_t round_up(int64_t v, int64_t unit)
{
    return (v + unit - 1) / unit * unit;
}

static int times(uint64_t a, uint64_t b, uint64_t *out)
{
    if (b != 0 && a > UINT64_MAX / b) return 0;
    *out = a * b;
    return 1;
}

static const char *check_raw(const struct bp_raw *raw, int64_t elems, int64_t block_bytes)
{
    uint64_t n = 1, n_bytes = 0;
    if (raw->data == NULL) return "has no data";
    for (int d = 0; d < 4; ++d) {
        if (raw->ne[d] < 0 || raw->begin[d] < 0 || raw->begin[d] > raw->end[d] ||
            raw->end[d] > raw->ne[d])
            return "has a part that does not lie in it";
        if (!times(n, (uint64_t)raw->ne[d], &n)) return "has more elements than 64 bits count";
    }
    if (raw->ne[2] != 1 || raw->ne[3] != 1)
        return "is no matrix; a weight of this slot has two dimensions";
    if (raw->ne[0] % elems != 0) return "has rows that are no whole blocks of its type";
    if (!times(n / (uint64_t)elems, (uint64_t)block_bytes, &n_bytes) || n_bytes > raw->n_bytes)
        return "has fewer bytes than its shape needs";
    if (raw->ne[0] > INT32_MAX || raw->ne[1] > INT32_MAX)
        return "has more than 2^31 - 1 rows or columns";
    return NULL;
}

const char *plan_weight(const struct bp_raw *raw, int64_t elems, int64_t block_bytes,
                        int64_t step_cols, int64_t step_bytes, struct plan_weight *out)
{
    const char *wrong = check_raw(raw, elems, block_bytes);
    memset(out, 0, sizeof *out);
    if (wrong != NULL) return wrong;
    out->rows = raw->end[1] - raw->begin[1];
    out->cols = raw->end[0] - raw->begin[0];
    out->first_block = raw->begin[0] / elems;
    const int64_t last = out->cols == 0 ? out->first_block : (raw->end[0] + elems - 1) / elems;
    out->skip = out->cols == 0 ? 0 : raw->begin[0] - out->first_block * elems;
    out->cover = (last - out->first_block) * elems;
    out->row_bytes = (last - out->first_block) * block_bytes;
    out->file_pitch = raw->ne[0] / elems * block_bytes;
    const int64_t strips = round_up(out->rows, PLAN_STRIP) / PLAN_STRIP;
    uint64_t n = 0;
    if (step_cols > 0) {
        out->n_steps =
            out->cover > 0 ? round_up(out->cover, step_cols) / step_cols : 1; /* of zeros */
        out->pitch = out->n_steps * (step_bytes > 0 ? step_bytes : step_cols * block_bytes);
        if (!times((uint64_t)strips * (step_bytes > 0 ? 1 : PLAN_STRIP), (uint64_t)out->pitch, &n))
            return "is too large";
    } else {
        /* Blocks of one element are read eight at a time: rows are whole runs of them, the rest zeros. */
        if (elems == 1) out->cover = round_up(out->cover, 8);
        out->pitch = elems == 1 ? out->cover * block_bytes : out->row_bytes;
        if (!times((uint64_t)out->rows, (uint64_t)out->pitch, &n)) return "is too large";
    }
    out->data_bytes = n;
    out->counters_at = (n + 255) & ~UINT64_C(255);
    out->n_bytes = out->counters_at + (uint64_t)strips * sizeof(uint32_t);
    return NULL;
}

/* Sharing a unit costs about 5 us on an H200 (partial sums through memory, a counter, another round of reads), a warp's step
 * about 1 us where all are at work. So units are dealt out whole unless that gives the busiest warps many more steps. */
static int deal_whole(int64_t n_unit, int64_t unit_steps, int64_t n_sm, int64_t per_sm, int64_t n_warp)
{
    const int64_t most = (n_unit + n_sm - 1) / n_sm * unit_steps / per_sm;
    const int64_t busiest = most > unit_steps ? most : unit_steps; /* steps of a block */
    const int64_t fair = n_unit * unit_steps / (n_sm * per_sm);
    return busiest - fair <= n_warp * PLAN_SHARING || busiest * 9 <= fair * 10;
}

struct plan_cut plan_gemv(int64_t n_unit, int64_t unit_strips, int64_t n_steps, uint32_t n_sm, uint32_t per_sm,
                          uint32_t n_warp)
{
    const int64_t n_strips = n_unit * unit_strips, n = n_strips * n_steps;
    const int64_t slots = (int64_t)n_sm * per_sm < PLAN_BLOCKS ? (int64_t)n_sm * per_sm : PLAN_BLOCKS;
    const int64_t least = (n_strips + 2 * n_warp - 1) / (2 * n_warp);
    struct plan_cut cut = {.whole = (uint32_t)deal_whole(n_unit, unit_strips * n_steps, n_sm, per_sm, n_warp)};
    int64_t blocks = slots;
    /* Rounds of blocks that are all full; a warp has at most the steps of two strips. */
    if (least > blocks) blocks = (least + slots - 1) / slots * slots;
    if (cut.whole != 0 && blocks > n_unit) blocks = n_unit;
    if (blocks > (n + n_warp - 1) / n_warp) blocks = (n + n_warp - 1) / n_warp; /* a step for each warp */
    cut.blocks = (uint32_t)(blocks > 1 ? blocks : 1);
    return cut;
}

uint32_t plan_parts(uint32_t x_dtype, int norm)
{
    if (x_dtype == BP_DT_F32) return PLAN_PARTS;
    return x_dtype == BP_DT_F16 || norm != 0 ? 2 : 1;
}

int64_t plan_slab_ld(int64_t cols)
{
    return round_up(cols, 8);
}

int64_t plan_slab_rows(uint32_t x_dtype)
{
    return x_dtype == BP_DT_F32 ? PLAN_SLAB_ROWS / 2 : PLAN_SLAB_ROWS;
}

static void *take(struct bp_area *a, uint64_t n, uint64_t m, uint64_t elem_bytes)
{
    uint64_t all = 0;
    if (!times(n, m, &all)) a->bad = 1;
    return bp_area_take(a, all, elem_bytes);
}

void plan_scratch(struct bp_area *a, const struct plan_need *need, struct plan_scratch *out)
{
    memset(out, 0, sizeof *out);
    if (need->cols > INT64_MAX / 4096 || need->rows > INT64_MAX / 4096) {
        a->bad = 1;
        return;
    }
    const uint64_t pass = need->n_tok < PLAN_TOK ? need->n_tok : PLAN_TOK;
    const uint64_t rows = (uint64_t)need->rows;
    /* A part of a tensor begins and ends inside of blocks, of up to 256 columns. */
    const uint64_t ld = (uint64_t)round_up(need->cols + 2 * PLAN_X_PAD, PLAN_X_PAD);
    /* First, because the area begins where cuBLAS wants its workspace to: at a multiple of 256; parts do of 64. */
    if (need->gemm != 0) out->blas = take(a, PLAN_BLAS_BYTES, 1, 1);
    out->stage = take(a, pass, ld, PLAN_PARTS * sizeof(uint16_t));
    /* Two units of two strips from each block; blocks as plan_gemv() answers for four weights. */
    const uint64_t blocks = PLAN_BLOCKS + 4 * (rows / PLAN_STRIP + 1) / (2 * PLAN_WARPS) + 1;
    out->partial = (float *)take(a, pass, blocks * 4 * PLAN_STRIP, sizeof(float));
    out->pair = (float *)take(a, 2 * pass, rows, sizeof(float));
    if (need->gemm == 0) return;
    const uint64_t slab = (uint64_t)plan_slab_rows(need->x_dtype), n = rows < slab ? rows : slab;
    const uint64_t bytes = need->x_dtype == BP_DT_F32 ? 4 : 2;
    out->norm = take(a, need->n_tok, (uint64_t)plan_slab_ld(need->cols), bytes);
    out->slab = take(a, n, (uint64_t)plan_slab_ld(need->cols), bytes);
    for (int i = 0; i < 2; ++i) out->sums[i] = (float *)take(a, need->n_tok, n, sizeof(float));
}
