/* plan.c - see plan.h. Threads: pure. SPDX-License-Identifier: MIT */
#include "plan.h"

/* Most parts for each block of threads that the device works on at a time, counting all blocks of heads: with four, the
 * last of them to end leaves little of it idle even when rows differ in length. */
enum { WAVES = 4 };
/* What a block costs besides its keys, and what joining a part costs for each head, in keys. */
enum { BLOCK_COST = 128, JOIN_COST = 1 };

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

static uint64_t round_up(uint64_t keys)
{
    keys = (keys + ATTN_KEY_STEP - 1) / ATTN_KEY_STEP * ATTN_KEY_STEP;
    return keys < ATTN_MIN_PART ? ATTN_MIN_PART : keys;
}

/* About how long a step takes with parts of this many keys: whole rounds of the device at the mean part, the last round at
 * the longest, and the joining. In keys; only comparisons of it mean something. */
static uint64_t cost(const struct attn_plan_shape *s, const int32_t *len, uint64_t total,
                     uint64_t keys)
{
    const uint64_t blocks = (s->n_head + ATTN_HEAD_BLOCK - 1) / ATTN_HEAD_BLOCK,
                   n_slot = s->n_slot != 0 ? s->n_slot : 1;
    uint64_t n_item = 0, n_part = 0, longest = 0;
    for (uint32_t i = 0; i < s->n_row; ++i) {
        const uint64_t n_key = len[i] > 0 ? (uint64_t)len[i] : 0, n = splits(n_key, keys);
        n_item += n;
        if (n > 1) n_part += n;
        if ((n_key + n - 1) / n > longest) longest = (n_key + n - 1) / n;
    }
    const uint64_t n_block = n_item * blocks, rounds = n_block / n_slot, rest = n_block % n_slot;
    const uint64_t mean = total / (n_item != 0 ? n_item : 1) + BLOCK_COST;
    return rounds * mean + (rest != 0 ? longest + BLOCK_COST : 0) +
           n_part * s->n_head * JOIN_COST / n_slot;
}

/* Keys of a part: the cheapest of a few sizes around one, two, three, four parts for each block of threads, and of those
 * that cut the longest row evenly. */
static uint64_t part_keys(const struct attn_plan_shape *s, const int32_t *len)
{
    uint64_t total = 0, longest = 0, best = 0, best_cost = UINT64_MAX;
    if (s->fixed != 0) return s->fixed;
    for (uint32_t i = 0; i < s->n_row; ++i) {
        const uint64_t n = len[i] > 0 ? (uint64_t)len[i] : 0;
        total += n;
        if (n > longest) longest = n;
    }
    const uint64_t least =
        round_up((total + target(s) - 1) / target(s)); /* no smaller: the bounds stand on it */
    for (uint64_t wave = 1; wave <= WAVES; ++wave) {
        const uint64_t even = round_up((total * WAVES / wave + target(s) - 1) / target(s)),
                       n = splits(longest, even);
        const uint64_t tries[] = {even, round_up((longest + n - 1) / n),
                                  n > 1 ? round_up((longest + n - 2) / (n - 1)) : even};
        for (uint32_t i = 0; i < sizeof tries / sizeof tries[0]; ++i) {
            const uint64_t keys = tries[i] > least ? tries[i] : least,
                           c = cost(s, len, total, keys);
            if (c >= best_cost) continue;
            best_cost = c;
            best = keys;
        }
    }
    return best;
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
