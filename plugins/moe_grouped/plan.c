/* plan.c - see plan.h. SPDX-License-Identifier: MIT */
#include "plan.h"

#include "kernels/moe_kernels.h"

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* a * b for sizes that are not negative; too large: INT64_MAX. */
static int64_t times(int64_t a, int64_t b)
{
    if (a == 0 || b == 0) return 0;
    return a > INT64_MAX / b ? INT64_MAX : a * b;
}

/* A cut may begin and end inside a block of down: at most 255 columns more on each side, and whole chunks of 32. */
int64_t moe_width_most(int64_t n_ff)
{
    return n_ff == 0 ? 0 : (n_ff + 2 * 255 + 31) / 32 * 32;
}

/* Rows of parts: one for each pair, and one of the shared expert for each token. */
static int64_t part_rows(const struct moe_size *s)
{
    const int64_t routed = s->n_expert > 0 && s->width > 0 ? times(s->n_tok, s->n_used) : 0;
    return routed + (s->width_shared > 0 ? s->n_tok : 0);
}

static int64_t part_columns(const struct moe_size *s)
{
    const int64_t rows = max64(part_rows(s), 1), fit = MOE_PART_BYTES / 4 / rows / 128 * 128;
    return min64(s->n_embd, max64(fit, 128));
}

void moe_plan_make(const struct moe_size *s, struct moe_plan *p)
{
    const int64_t n_pair = times(s->n_tok, s->n_used);
    const int half = s->x_dtype == BP_DT_BF16;
    p->few = s->n_tok <= MOE_FEW_TOKENS || n_pair <= times(MOE_FEW_PAIRS, s->n_expert);
    p->half = half && !p->few;
    p->tile_tok = n_pair < times(24, s->n_expert) ? MOE_TILE_FEW : MOE_TILE_MANY;
    p->n_tile = (int32_t)min64(n_pair, n_pair / p->tile_tok + s->n_expert);
    p->tile_tok_shared = s->n_tok <= 2 * MOE_TILE_FEW ? MOE_TILE_FEW : MOE_TILE_MANY;
    p->n_tile_shared = (int32_t)((s->n_tok + p->tile_tok_shared - 1) / p->tile_tok_shared);
    p->n_col = part_columns(s);
}

void moe_plan_take(const struct moe_size *s, const struct moe_plan *p, struct bp_area *a,
                   struct moe_scratch *out)
{
    const uint64_t elem = p->half ? 2 : 4;
    const int64_t n_pair = s->n_expert > 0 && s->width > 0 ? times(s->n_tok, s->n_used) : 0;
    memset(out, 0, sizeof *out);
    out->h = bp_area_take(a, (uint64_t)times(n_pair, s->width), elem);
    out->h_shared = bp_area_take(a, (uint64_t)times(s->n_tok, s->width_shared), elem);
    out->part = bp_area_take(a, (uint64_t)times(n_pair, p->n_col), sizeof(float));
    if (s->width_shared > 0)
        out->part_shared = bp_area_take(a, (uint64_t)times(s->n_tok, p->n_col), sizeof(float));
    if (p->few || n_pair == 0) return;
    out->list = bp_area_take(a, (uint64_t)n_pair, sizeof(int32_t));
    out->tiles = bp_area_take(a, (uint64_t)p->n_tile * 4, sizeof(int32_t));
}

/* Not the layout of the largest call: a smaller one may have wider elements of h (few tokens) or more columns of parts.
 * Each part here is at least what it is in any call, and grows with every size. */
uint64_t moe_plan_bytes(const struct moe_size *most)
{
    const int64_t n_pair = times(most->n_tok, most->n_used),
                  rows = times(most->n_tok, times(most->n_used, 1) + 1);
    const int half = most->x_dtype == BP_DT_BF16;
    /* The most tokens of which h is f32 although activations are bf16. */
    const int64_t few =
        min64(most->n_tok, max64(MOE_FEW_TOKENS, times(MOE_FEW_PAIRS, most->n_expert)));
    const int64_t few_pair = min64(
        n_pair, max64(times(MOE_FEW_TOKENS, most->n_used), times(MOE_FEW_PAIRS, most->n_expert)));
    struct bp_area a;
    bp_area_count(&a);
    const int64_t h = max64(times(n_pair, half ? 2 : 4), times(few_pair, 4));
    const int64_t h_shared = max64(times(most->n_tok, half ? 2 : 4), times(few, 4));
    (void)bp_area_take(&a, (uint64_t)h, (uint64_t)most->width);
    (void)bp_area_take(&a, (uint64_t)h_shared, (uint64_t)most->width_shared);
    /* One part is cut in two, each rounded up; a pass has at least 128 columns. */
    const int64_t all = times(rows, times(most->n_embd, 4)), least = times(rows, 128 * 4);
    (void)bp_area_take(&a, (uint64_t)min64(all, max64(MOE_PART_BYTES, least)) + 128, 1);
    (void)bp_area_take(&a, (uint64_t)n_pair, sizeof(int32_t));
    (void)bp_area_take(&a, (uint64_t)min64(n_pair, n_pair / MOE_TILE_FEW + most->n_expert),
                       4 * sizeof(int32_t));
    return a.bad ? UINT64_MAX : a.used;
}
