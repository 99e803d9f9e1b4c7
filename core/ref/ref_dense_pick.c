/* ref_dense_pick.c - argmax and topk: exact, lowest index on ties, NaN never chosen.
 * Needs no scratch: the heap lives in the row of ids that the caller gave.
 * Threads: as slot_dense.h says. SPDX-License-Identifier: MIT */
#include "ref/ref_dense.h"

/* Does index a come before index b in the answer? Neither names a NaN. */
static bool before(const float *x, int32_t a, int32_t b)
{
    return x[a] > x[b] || (x[a] == x[b] && a < b);
}

/* Heap with the worst of the chosen at its root. */
static void sift_down(const float *x, int32_t *heap, int64_t n, int64_t at)
{
    for (;;) {
        int64_t worst = at, child = 2 * at + 1;
        for (int64_t c = child; c < n && c <= child + 1; ++c) {
            if (before(x, heap[worst], heap[c])) worst = c;
        }
        if (worst == at) return;
        int32_t held = heap[at];
        heap[at] = heap[worst];
        heap[worst] = held;
        at = worst;
    }
}

static void pick_row(const float *x, int64_t width, int64_t k, int32_t *ids)
{
    int64_t n = 0;
    for (int64_t i = 0; i < width; ++i) {
        if (x[i] != x[i]) continue;
        if (n < k) {
            ids[n++] = (int32_t)i;
            if (n == k) {
                for (int64_t at = n / 2; at-- > 0;) sift_down(x, ids, n, at);
            }
        } else if (before(x, (int32_t)i, ids[0])) {
            ids[0] = (int32_t)i;
            sift_down(x, ids, n, 0);
        }
    }
    if (n < k) {
        for (int64_t at = n / 2; at-- > 0;) sift_down(x, ids, n, at);
    }
    for (int64_t left = n - 1; left > 0; --left) { /* the worst goes to the end, again and again */
        int32_t held = ids[0];
        ids[0] = ids[left];
        ids[left] = held;
        sift_down(x, ids, left, 0);
    }
    for (int64_t i = n; i < k; ++i) ids[i] = -1;
}

struct job {
    struct bpi_ref *ref;
    const struct bp_dense_topk_args *a;
};

static void pick_slices(void *arg, uint64_t begin, uint64_t end)
{
    struct job *j = arg;
    const struct bp_dense_topk_args *a = j->a;
    for (uint64_t slice = begin; slice < end; ++slice) {
        int64_t r, r_end;
        bpi_ref_slice_part(slice, bpi_ref_slices(j->ref), a->x.dim[0], &r, &r_end);
        for (; r < r_end; ++r) {
            const float *x = bpi_ref_at(&a->x, r, 0, 0);
            int32_t *ids = bpi_ref_at(&a->ids, r, 0, 0);
            pick_row(x, a->x.dim[1], a->ids.dim[1], ids);
            if (a->values.data == NULL) continue;
            float *values = bpi_ref_at(&a->values, r, 0, 0);
            for (int64_t i = 0; i < a->ids.dim[1]; ++i)
                values[i] = ids[i] >= 0 ? x[ids[i]] : -INFINITY;
        }
    }
}

static int32_t pick(void *self, const struct bp_dense_topk_args *a, const char *op,
                    struct bp_error *err)
{
    struct job j = {.ref = self, .a = a};
    if (a->x.dtype != BP_DT_F32 || a->ids.dtype != BP_DT_I32 || a->ids.dim[0] != a->x.dim[0] ||
        a->ids.dim[1] < 1 || (a->values.data != NULL && a->values.dtype != BP_DT_F32)) {
        return bpi_fail(err, BP_E_ARG, "ref", op,
                        "x (%lld, %lld) F32 and ids (%lld, %lld) I32 do not fit together",
                        (long long)a->x.dim[0], (long long)a->x.dim[1], (long long)a->ids.dim[0],
                        (long long)a->ids.dim[1]);
    }
    bpi_ref_run_slices(j.ref, (uint64_t)(a->x.dim[0] * a->x.dim[1]), pick_slices, &j);
    return BP_OK;
}

int32_t bpi_ref_dense_argmax(void *self, const struct bp_launch *l,
                             const struct bp_dense_topk_args *a, struct bp_error *err)
{
    (void)l;
    return pick(self, a, "dense.argmax", err);
}

int32_t bpi_ref_dense_topk(void *self, const struct bp_launch *l,
                           const struct bp_dense_topk_args *a, struct bp_error *err)
{
    (void)l;
    return pick(self, a, "dense.topk", err);
}
