/* ref_weight.c - opens raw tensors and decodes their rows at each use; F32 is read where it lies.
 * Not here: the block formats (core/block). Threads: see ref_weight.h. SPDX-License-Identifier: MIT */
#include "ref/ref_weight.h"

#include "block/block.h"

static const char *raw_name(const struct bp_raw *raw)
{
    return raw->name != NULL ? raw->name : "tensor";
}

/* Everything that prepare() is told is checked once here; afterwards rows are read without looking. */
static int32_t check_raw(const struct bp_raw *raw, const struct bpi_block_info *info,
                         struct bp_error *err)
{
    uint64_t n_elems = 1, n_bytes = 0;
    for (int d = 0; d < 4; ++d) {
        if (raw->ne[d] < 0 || raw->begin[d] < 0 || raw->begin[d] > raw->end[d] ||
            raw->end[d] > raw->ne[d]) {
            return bpi_fail(
                err, BP_E_ARG, "ref", raw_name(raw),
                "dimension %d has %lld elements, but the part asked for is %lld to %lld", d,
                (long long)raw->ne[d], (long long)raw->begin[d], (long long)raw->end[d]);
        }
        if (!bpi_mul_u64(n_elems, (uint64_t)raw->ne[d], &n_elems)) {
            return bpi_fail(err, BP_E_ARG, "ref", raw_name(raw),
                            "the number of elements does not fit 64 bits");
        }
    }
    if (raw->ne[3] != 1) {
        return bpi_fail(err, BP_E_ARG, "ref", raw_name(raw),
                        "a weight has at most 3 dimensions, the 4th is %lld",
                        (long long)raw->ne[3]);
    }
    if (raw->ne[0] % (int64_t)info->block_elems != 0) {
        return bpi_fail(err, BP_E_ARG, "ref", raw_name(raw),
                        "rows of %lld elements are no whole %s blocks of %u", (long long)raw->ne[0],
                        info->name, info->block_elems);
    }
    if (!bpi_block_bytes(raw->type, n_elems, &n_bytes) || n_bytes > raw->n_bytes) {
        return bpi_fail(err, BP_E_ARG, "ref", raw_name(raw),
                        "%llu bytes are given, but the shape needs %llu",
                        (unsigned long long)raw->n_bytes, (unsigned long long)n_bytes);
    }
    return BP_OK;
}

static const unsigned char *row_at(const struct bpi_ref_weight *w, int64_t plane, int64_t row)
{
    return w->data + (uint64_t)plane * w->plane_bytes + (uint64_t)row * w->row_bytes;
}

static void decode_rows(const struct bpi_ref_weight *w, int64_t plane, int64_t row, int64_t n,
                        float *dst)
{
    const unsigned char *src = row_at(w, plane, row);
    /* check_raw() made sure of the type and the block size, so decoding cannot fail. */
    for (int64_t i = 0; i < n; ++i) {
        float *to = dst + i * w->cover;
        (void)bpi_block_decode(w->type, src + (uint64_t)i * w->row_bytes, (uint64_t)w->cover, to);
        if (w->scale != 1.0f) {
            for (int64_t k = 0; k < w->cover; ++k) to[k] *= w->scale;
        }
        bpi_ref_round(to, w->cover, w->round);
    }
}

int32_t bpi_ref_weight_open(const struct bpi_ref *ref, const struct bp_raw *raw,
                            struct bpi_ref_weight *w, struct bp_error *err)
{
    *w = (struct bpi_ref_weight){.scale = 1.0f};
    if (raw->data == NULL) return BP_OK;
    const struct bpi_block_info *info = bpi_block_info(raw->type);
    if (info == NULL || !info->can_decode) {
        return bpi_fail(err, BP_DECLINED, "ref", raw_name(raw),
                        "type %u (%s) has no decoder; types served: %s", raw->type,
                        info != NULL ? info->name : "unknown", bpi_block_supported_names());
    }
    BP_TRY(check_raw(raw, info, err));
    const int64_t elems = info->block_elems;
    w->type = raw->type;
    w->scale = raw->scale;
    w->round = ref->round;
    w->row_bytes = (uint64_t)(raw->ne[0] / elems) * info->block_bytes;
    w->plane_bytes = w->row_bytes * (uint64_t)raw->ne[1];
    w->planes = raw->end[2] - raw->begin[2];
    w->rows = raw->end[1] - raw->begin[1];
    w->cols = raw->end[0] - raw->begin[0];
    int64_t first_block = raw->begin[0] / elems;
    int64_t last_block = w->cols == 0 ? first_block : (raw->end[0] + elems - 1) / elems;
    w->skip = w->cols == 0 ? 0 : raw->begin[0] - first_block * elems;
    w->cover = (last_block - first_block) * elems;
    if (w->planes == 0 || w->rows == 0 || w->cols == 0) return BP_OK;
    w->data = (const unsigned char *)raw->data + (uint64_t)raw->begin[2] * w->plane_bytes +
              (uint64_t)raw->begin[1] * w->row_bytes + (uint64_t)first_block * info->block_bytes;
    w->as_it_is = raw->type == BP_GGUF_F32 && raw->scale == 1.0f &&
                  ref->round == BPI_REF_ROUND_NONE && (uintptr_t)w->data % _Alignof(float) == 0;
    return BP_OK;
}

int32_t bpi_ref_weight_handle(struct bpi_ref *ref, const struct bp_raw *raw, const char *what,
                              void **out, struct bp_weight_info *info, struct bp_error *err)
{
    if (raw->data == NULL || raw->ne[2] != 1) {
        return bpi_fail(err, BP_E_ARG, "ref", raw->name,
                        "%s is one matrix with data; dimension 2 has %lld elements", what,
                        (long long)raw->ne[2]);
    }
    struct bpi_ref_weight *w = bpi_ref_alloc(ref, 1, sizeof *w);
    if (w == NULL) return bpi_fail_nomem(err, "ref", sizeof *w);
    int32_t rc = bpi_ref_weight_open(ref, raw, w, err);
    if (rc != BP_OK) {
        bpi_ref_free(ref, w);
        return rc;
    }
    if (BP_HAS(info, struct bp_weight_info, n_bytes)) {
        info->layout_id = 0;
        info->n_bytes = sizeof *w;
    }
    *out = w;
    return BP_OK;
}

const float *bpi_ref_weight_rows(const struct bpi_ref_weight *w, int64_t plane, int64_t row,
                                 int64_t n, float *buf, int64_t *stride)
{
    if (w->as_it_is) {
        *stride = (int64_t)(w->row_bytes / sizeof(float));
        return (const float *)(const void *)row_at(w, plane, row);
    }
    *stride = w->cover;
    if (w->data != NULL) decode_rows(w, plane, row, n, buf);
    return buf + w->skip;
}
