/* plan.c - see plan.h. Threads: pure. SPDX-License-Identifier: MIT */
#include "plan.h"

/* Parts that are aimed at for each item the device works on at a time: with four, the last of them to end leaves little of
 * it idle; with more, the joining costs more than that. */
enum { WAVES = 4 };

static uint64_t mul(uint64_t a, uint64_t b)
{
    return b != 0 && a > UINT64_MAX / b ? UINT64_MAX : a * b;
}

static uint64_t add(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Parts of a row of `len` keys when a part is to have about `keys` of them. */
static uint32_t splits(uint64_t len, uint64_t keys)
{
    uint64_t n = (len + keys - 1) / keys;
    if (n > ATTN_MAX_SPLITS) n = ATTN_MAX_SPLITS;
    return n == 0 ? 1 : (uint32_t)n;
}

/* Parts that all rows are cut into: each is worked on by one block of threads for every block of heads. */
static uint64_t target(const struct attn_plan_shape *s)
{
    const uint64_t heads = s->n_head > ATTN_HEAD_BLOCK ? s->n_head : ATTN_HEAD_BLOCK;
    const uint64_t n = (uint64_t)WAVES * s->n_slot * ATTN_HEAD_BLOCK / heads;
    return n != 0 ? n : 1;
}

/* With keys >= total / target, all rows together have at most `target` parts and one more each; rows that are cut have
 * at least two parts, so at most twice the target. */
struct attn_plan_bounds attn_plan_bounds(const struct attn_plan_shape *s)
{
    const uint64_t n_row = s->n_row,
                   by_row = mul(n_row, splits(s->max_kv, s->fixed != 0 ? s->fixed : ATTN_MIN_PART));
    const uint64_t few_heads = s->n_head < ATTN_HEAD_BLOCK ? s->n_head : ATTN_HEAD_BLOCK;
    const uint64_t most =
        (uint64_t)WAVES * s->n_slot + 1; /* of target(), for any number of heads */
    struct attn_plan_bounds b = {.n_item = by_row, .n_part_head = mul(by_row, s->n_head)};
    uint64_t n_item = by_row;
    if (s->fixed == 0) {
        b.n_item = smaller(by_row, add(n_row, target(s)));
        b.n_part_head = smaller(b.n_part_head, 2 * (most * few_heads + s->n_head));
        n_item = smaller(by_row, add(n_row, most));
    }
    b.n_bytes = add(sizeof(struct attn_plan_head) + 16,
                    add(mul(n_row, 2 * sizeof(int32_t)), mul(n_item, sizeof(struct attn_item))));
    return b;
}

/* Keys of a part. */
static uint64_t part_keys(const struct attn_plan_shape *s, const int32_t *len)
{
    uint64_t total = 0, keys;
    if (s->fixed != 0) return s->fixed;
    for (uint32_t i = 0; i < s->n_row; ++i) total += len[i] > 0 ? (uint64_t)len[i] : 0;
    keys = (total + target(s) - 1) / target(s);
    keys = (keys + ATTN_KEY_STEP - 1) / ATTN_KEY_STEP * ATTN_KEY_STEP;
    return keys < ATTN_MIN_PART ? ATTN_MIN_PART : keys;
}

uint64_t attn_plan_build(const struct attn_plan_shape *s, const int32_t *len,
                         struct attn_plan_head *plan)
{
    const uint64_t keys = part_keys(s, len);
    int32_t *first = attn_plan_first(plan), *n_split = attn_plan_splits(plan, s->n_row);
    struct attn_item *items = attn_plan_items(plan, s->n_row), *item = items;
    uint32_t n_part = 0;
    for (uint32_t row = 0; row < s->n_row; ++row) {
        const uint32_t n = splits(len[row] > 0 ? (uint64_t)len[row] : 0, keys);
        first[row] = n > 1 ? (int32_t)n_part : -1;
        n_split[row] = (int32_t)n;
        if (n > 1) n_part += n;
        for (uint32_t i = 0; i < n; ++i)
            *item++ = (struct attn_item){(int32_t)row, (int32_t)i, (int32_t)n,
                                         n > 1 ? first[row] + (int32_t)i : -1};
    }
    *plan = (struct attn_plan_head){
        .n_item = (uint32_t)(item - items), .n_row = s->n_row, .n_part = n_part};
    return (uint64_t)((unsigned char *)item - (unsigned char *)plan);
}
