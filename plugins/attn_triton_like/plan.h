/* plan.h - the work list of a decode step: which rows are cut into how many parts. Plain C on host memory, so that it is
 * tested without a device.
 * The number of parts of a row is decided here, from lengths the host knows; which keys a part covers is decided on the
 * device, from the length it reads there (kernels/decode.cuh), so a row whose list is shorter than its cache is cut evenly
 * too, and its last parts may be empty.
 * SPDX-License-Identifier: MIT */
#ifndef ATTN_PLAN_H
#define ATTN_PLAN_H

#include "kernels/launch.h"

enum { ATTN_MIN_PART = 128 /* keys; fewer are not worth a part of their own */ };

/* What the list is made for. */
struct attn_plan_shape {
    uint32_t n_row, n_head;
    uint32_t max_kv; /* of any row */
    uint32_t n_slot; /* blocks of threads that the device works on at a time */
    uint32_t fixed;  /* keys of a part; 0: chosen from all rows, so that the device is busy */
    uint32_t reserved;
};

/* Upper bounds. n_item: of lists of this very number of heads. The others hold for every shape that is not larger in any
 * field: parts of cut rows times heads, bytes of the whole list. They saturate at UINT64_MAX. */
struct attn_plan_bounds {
    uint64_t n_item, n_part_head, n_bytes;
};
struct attn_plan_bounds attn_plan_bounds(const struct attn_plan_shape *s);

/* Where the parts of the list lie behind the header. */
static inline int32_t *attn_plan_first(struct attn_plan_head *p)
{
    return (int32_t *)(void *)(p + 1);
}
static inline int32_t *attn_plan_splits(struct attn_plan_head *p, uint32_t n_row)
{
    return attn_plan_first(p) + n_row;
}
static inline struct attn_item *attn_plan_items(struct attn_plan_head *p, uint32_t n_row)
{
    const uint64_t n_number = ((uint64_t)n_row * 2 + 3) / 4 * 4; /* items are 16-byte aligned */
    return (struct attn_item *)(void *)(attn_plan_first(p) + n_number);
}

/* Writes the list of rows with these lengths (a negative one counts as 0) into plan, which has room for the bounds of *s.
 * Returns the bytes written. */
uint64_t attn_plan_build(const struct attn_plan_shape *s, const int32_t *len, struct attn_plan_head *plan);

#endif
