/* weights.c - the experts of a layer: from the file to device memory, in the form that the kernels read. Bytes pass
 * through pinned buffers; rows that have to be cut, padded or split into planes wait in a piece of device memory for the
 * kernel that does it, the others go straight to their place.
 * Threads: prepare and release come one at a time per instance. SPDX-License-Identifier: MIT */
#include "moe.h"

#include <stdbool.h>

enum { STAGE_BYTES = 32 << 20 };

static int32_t bad_shape(const struct bp_raw *raw, const char *text, int64_t n,
                         struct bp_error *err)
{
    return bp_error_number(err, BP_E_ARG, MOE_NAME, bp_cuda_name(raw), text, n,
                           "; read the file again or convert it anew");
}

/* Everything that prepare() is told is checked once here. */
static int32_t check_raw(const struct bp_raw *raw, struct bp_error *err)
{
    int64_t elems, block_bytes;
    uint64_t n = 1;
    moe_block(raw->type, &elems, &block_bytes);
    if (elems == 0)
        return bp_error_number(err, BP_DECLINED, MOE_NAME, bp_cuda_name(raw),
                               "no decoder for tensor type ", raw->type, "");
    for (int d = 0; d < 4; ++d) {
        if (raw->ne[d] < 0 || raw->begin[d] < 0 || raw->begin[d] > raw->end[d] ||
            raw->end[d] > raw->ne[d])
            return bad_shape(raw, "the part asked for lies outside of the tensor in dimension ", d,
                             err);
        if (raw->ne[d] != 0 && n > (uint64_t)INT64_MAX / (uint64_t)raw->ne[d])
            return bad_shape(raw, "the number of elements does not fit 64 bits, in dimension ", d,
                             err);
        n *= (uint64_t)raw->ne[d];
    }
    if (raw->ne[3] != 1)
        return bad_shape(raw, "experts have 3 dimensions, and the 4th is ", raw->ne[3], err);
    if (raw->ne[0] % elems != 0)
        return bad_shape(raw, "rows are no whole blocks: elements ", raw->ne[0], err);
    if (raw->ne[0] > 1 << 25 || raw->ne[1] > 1 << 25)
        return bad_shape(raw, "a matrix has at most 2^25 rows and columns, and here are rows ",
                         raw->ne[1], err);
    if (raw->ne[2] > MOE_MAX_EXPERT)
        return bad_shape(raw, "more experts than this plugin counts: ", raw->ne[2], err);
    if (n / (uint64_t)elems * (uint64_t)block_bytes > raw->n_bytes)
        return bad_shape(raw, "fewer bytes are given than the shape needs: ", (int64_t)raw->n_bytes,
                         err);
    return BP_OK;
}

static int64_t round_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* ---- from the file to the device ---- */

static int32_t stage_begin(struct moe_op *op, int64_t row_bytes, struct bp_error *err)
{
    const uint64_t want = row_bytes > STAGE_BYTES ? (uint64_t)row_bytes : STAGE_BYTES;
    BP_TRY(bp_cuda_staging_begin(&op->staging, err, MOE_NAME, "prepare"));
    if (op->stage_bytes >= want) return BP_OK;
    bp_cuda_free(op->dev, op->stage); /* waits for the kernels that read it */
    op->stage_bytes = 0;
    BP_TRY(bp_cuda_alloc(&op->stage, want, err, MOE_NAME, "prepare", "the upload of experts"));
    op->stage_bytes = want;
    return BP_OK;
}

/* n rows that lie one after the other in the file, to dst. */
static int32_t send_rows(struct moe_op *op, const struct moe_pack_call *how, const uint8_t *src,
                         uint8_t *dst, int64_t n, const char *name, struct bp_error *err)
{
    if (how->src_row == how->dst_row && how->skip == 0 && how->copy_bytes == how->dst_row)
        return bp_cuda_upload(&op->staging, dst, src, (uint64_t)(n * how->src_row), err, MOE_NAME,
                              name);
    BP_TRY(stage_begin(op, how->src_row, err));
    const int64_t most = (int64_t)op->stage_bytes / how->src_row;
    for (int64_t row = 0; row < n; row += most) {
        struct moe_pack_call c = *how;
        c.n_rows = n - row < most ? n - row : most;
        c.src = op->stage;
        c.dst = dst + row * how->dst_row;
        BP_TRY(bp_cuda_upload(&op->staging, op->stage, src + row * how->src_row,
                              (uint64_t)(c.n_rows * how->src_row), err, MOE_NAME, name));
        BP_TRY(bp_cuda_launched(err, MOE_NAME, name, moe_launch_pack(&c, op->staging.stream)));
    }
    return BP_OK;
}

/* This rank's part of one tensor. *left: decoded columns before the first own one. */
static int32_t mat_open(struct moe_op *op, struct moe_layer *y, int slot, const struct bp_raw *raw,
                        struct moe_mat *m, int32_t *left, struct bp_error *err)
{
    int64_t elems, block_bytes;
    BP_TRY(check_raw(raw, err));
    moe_block(raw->type, &elems, &block_bytes);
    const int64_t first = raw->begin[0] / elems, last = (raw->end[0] + elems - 1) / elems,
                  n_block = last - first;
    const int64_t rows = raw->end[1] - raw->begin[1], n = raw->end[2] - raw->begin[2];
    const bool planes = raw->type == BP_GGUF_Q6_K || raw->type == BP_GGUF_Q8_0;
    struct moe_pack_call how = {.type = raw->type,
                                .src_row = raw->ne[0] / elems * block_bytes,
                                .skip = first * block_bytes,
                                .n_block = n_block,
                                .copy_bytes = planes ? 0 : n_block * block_bytes};
    m->type = raw->type;
    m->scale = raw->scale;
    m->rows = (int32_t)rows;
    m->cols = (int32_t)round_up(n_block * elems, 32);
    how.dst_row = round_up(m->cols / elems * block_bytes, 16);
    m->row_bytes = how.dst_row;
    m->expert_bytes = rows * how.dst_row;
    *left = (int32_t)(raw->begin[0] - first * elems);
    if (n * rows * n_block == 0) return BP_OK;
    const uint64_t n_bytes = (uint64_t)(n * m->expert_bytes);
    BP_TRY(bp_cuda_alloc(&y->memory[slot], n_bytes, err, MOE_NAME, bp_cuda_name(raw),
                         "a tensor of experts"));
    y->n_bytes += n_bytes;
    m->data = y->memory[slot];
    const uint8_t *src =
        (const uint8_t *)raw->data + (raw->begin[2] * raw->ne[1] + raw->begin[1]) * how.src_row;
    if (rows == raw->ne[1])
        return send_rows(op, &how, src, y->memory[slot], n * rows, bp_cuda_name(raw), err);
    for (int64_t e = 0; e < n; ++e) {
        uint8_t *dst = (uint8_t *)y->memory[slot] + e * m->expert_bytes;
        BP_TRY(send_rows(op, &how, src + e * raw->ne[1] * how.src_row, dst, rows, bp_cuda_name(raw),
                         err));
    }
    return BP_OK;
}

/* ---- the parts of an expert ---- */

/* Views the two halves of a joint tensor as two. A shard is a range of one half, [0, n_ff), and means the same rows of
 * the other; the whole range [0, 2 n_ff) means all of both. */
static int32_t split_gate_up(const struct bp_raw *raw, struct bp_raw *gate, struct bp_raw *up,
                             struct bp_error *err)
{
    const int64_t half = raw->ne[1] / 2;
    const bool whole = raw->begin[1] == 0 && raw->end[1] == raw->ne[1];
    if (raw->ne[1] % 2 != 0 || (!whole && raw->end[1] > half))
        return bad_shape(raw,
                         "gate and up in one tensor want an even number of rows and a part of the "
                         "gate half, rows ",
                         raw->ne[1], err);
    *gate = *raw;
    if (whole) gate->end[1] = half;
    *up = *gate;
    up->begin[1] += half;
    up->end[1] += half;
    return BP_OK;
}

static int64_t part(const struct bp_raw *raw, int d)
{
    return raw->end[d] - raw->begin[d];
}

static int32_t experts_open(struct moe_op *op, struct moe_layer *y, int slot,
                            const struct bp_raw *gate, const struct bp_raw *up,
                            const struct bp_raw *down, struct moe_experts *e, struct bp_error *err)
{
    int32_t left[2];
    if (gate->data == NULL && up->data == NULL && down->data == NULL) return BP_OK;
    if (gate->data == NULL || up->data == NULL || down->data == NULL)
        return bp_error_set(
            err, BP_E_ARG, MOE_NAME, bp_cuda_name(down),
            "an expert needs gate, up and down, and one is missing; convert the file anew");
    bool fit = true;
    for (int d = 0; d < 3; ++d) fit = fit && part(gate, d) == part(up, d);
    fit = fit && gate->begin[2] == up->begin[2] && gate->begin[2] == down->begin[2] &&
          gate->end[2] == down->end[2];
    if (!fit || part(gate, 1) != part(down, 0) || part(gate, 0) != part(down, 1))
        return bad_shape(down, "gate, up and down do not fit together; down has rows ",
                         part(down, 1), err);
    e->begin = (int32_t)gate->begin[2];
    e->n = (int32_t)part(gate, 2);
    e->n_embd = (int32_t)part(gate, 0);
    e->n_ff = (int32_t)part(gate, 1);
    BP_TRY(mat_open(op, y, slot, gate, &e->gate, &left[0], err));
    BP_TRY(mat_open(op, y, slot + 1, up, &e->up, &left[1], err));
    BP_TRY(mat_open(op, y, slot + 2, down, &e->down, &e->left, err));
    e->width = e->down.cols;
    if (left[0] != 0 || left[1] != 0 || e->gate.cols != e->up.cols) {
        const int64_t at = gate->begin[0];
        return bp_error_number(err, BP_DECLINED, MOE_NAME, bp_cuda_name(gate),
                               "gate and up must begin at a whole block of columns, and begin at ",
                               at, "");
    }
    return BP_OK;
}

static int32_t layer_open(struct moe_op *op, const struct bp_moe_weights *w, struct moe_layer *y,
                          struct bp_error *err)
{
    struct bp_raw gate = w->gate, up = w->up;
    BP_TRY(bp_cuda_use(op->dev, err, MOE_NAME, "prepare"));
    if (w->gate_up.data != NULL) BP_TRY(split_gate_up(&w->gate_up, &gate, &up, err));
    BP_TRY(experts_open(op, y, 0, &gate, &up, &w->down, &y->routed, err));
    BP_TRY(
        experts_open(op, y, 3, &w->shared_gate, &w->shared_up, &w->shared_down, &y->shared, err));
    const bool both = y->routed.n_embd != 0 && y->shared.n_embd != 0;
    if (y->routed.n_embd + y->shared.n_embd == 0 ||
        (both && y->routed.n_embd != y->shared.n_embd) || y->shared.n > 1) {
        return bp_error_number(err, BP_E_ARG, MOE_NAME, bp_cuda_name(&w->shared_down),
                               "a mixture needs experts and a shared expert of the same width, or "
                               "one of both; routed have ",
                               y->routed.n_embd, " columns");
    }
    return bp_cuda_upload_done(&op->staging, err, MOE_NAME, bp_cuda_name(&w->down));
}

int32_t moe_prepare(void *self, const struct bp_moe_weights *w, void **out,
                    struct bp_weight_info *info, struct bp_error *err)
{
    struct moe_op *op = self;
    struct moe_layer *y = bp_mem_alloc(op->plugin->host, 1, sizeof *y);
    if (y == NULL)
        return bp_error_set(err, BP_E_NOMEM, MOE_NAME, "prepare", "no memory for a handle");
    const int32_t rc = layer_open(op, w, y, err);
    if (rc != BP_OK) {
        moe_release(self, y);
        return rc;
    }
    if (BP_HAS(info, struct bp_weight_info, n_bytes)) {
        info->layout_id = 0;
        info->n_bytes = y->n_bytes;
    }
    *out = y;
    return BP_OK;
}

void moe_release(void *self, void *weights)
{
    struct moe_op *op = self;
    struct moe_layer *y = weights;
    if (y == NULL) return;
    (void)cudaSetDevice(op->dev->ordinal);
    if (op->staging.stream != NULL) (void)cudaStreamSynchronize(op->staging.stream);
    for (uint32_t i = 0; i < BP_LEN(y->memory); ++i) bp_cuda_free(op->dev, y->memory[i]);
    bp_mem_free(op->plugin->host, y);
}

void moe_op_end(struct moe_op *op)
{
    if (op->stage == NULL && op->staging.ready == 0) return;
    (void)cudaSetDevice(op->dev->ordinal);
    bp_cuda_staging_end(&op->staging);
    bp_cuda_free(op->dev, op->stage);
    op->stage = NULL;
    op->stage_bytes = 0;
}
