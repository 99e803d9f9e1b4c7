/* api_quantize.c - the bp_quantize_* functions of tools.h over core/quantize.
 * Not here: rules and encoding. Threads: a plan belongs to one caller; writing makes a pool of its own.
 * SPDX-License-Identifier: MIT */
#include "engine/engine.h"

#include "base/pool.h"
#include "block/block.h"
#include "quantize/quantize.h"

struct bp_quantize {
    struct bpi_quantize_plan p;
};

BP_STATIC_ASSERT((int)BP_QUANTIZE_ASKED == (int)BPI_QUANTIZE_ASKED &&
                     (int)BP_QUANTIZE_RAISED == (int)BPI_QUANTIZE_RAISED &&
                     (int)BP_QUANTIZE_FALLBACK == (int)BPI_QUANTIZE_FALLBACK &&
                     (int)BP_QUANTIZE_KEPT == (int)BPI_QUANTIZE_KEPT,
                 "one numbering of reasons");

const char *bp_quantize_types(void)
{
    return bpi_quantize_names();
}

int32_t bp_quantize_plan(const struct bp_file *f, const char *type, struct bp_quantize **out,
                         struct bp_error *err)
{
    *out = NULL;
    const struct bpi_quantize_target *target = bpi_quantize_target(type);
    if (target == NULL)
        return bpi_fail(err, BP_E_ARG, "quantize", "TYPE",
                        "nothing can be quantized to '%.40s'; the types are %s", type,
                        bpi_quantize_names());
    struct bp_quantize *q = bpi_calloc(1, sizeof *q);
    if (q == NULL) return bpi_fail_nomem(err, "quantize", sizeof *q);
    int32_t rc = bpi_quantize_plan(bpi_engine_gguf(f), target, &q->p, err);
    if (rc == BP_OK)
        *out = q;
    else
        bpi_free(q);
    return rc;
}

void bp_quantize_destroy(struct bp_quantize *q)
{
    if (q == NULL) return;
    bpi_quantize_plan_free(&q->p);
    bpi_free(q);
}

/* Did its type lose something already? */
static bool is_quantized(uint32_t type)
{
    return bpi_block_info(type)->block_elems > 1;
}

void bp_quantize_info(const struct bp_quantize *q, struct bp_quantize_info *out)
{
    out->type = q->p.target->name;
    out->n_tensors = q->p.n_rows;
    out->bytes_before = 0;
    for (uint32_t i = 0; i < bpi_gguf_shards(q->p.g); ++i)
        out->bytes_before += bpi_gguf_shard_bytes(q->p.g, i);
    out->bytes_after = q->p.file_bytes;
    out->n_requantized = 0;
    for (uint64_t i = 0; i < q->p.n_rows; ++i) {
        const struct bpi_quantize_row *r = &q->p.rows[i];
        out->n_requantized +=
            r->to != r->src->type && is_quantized(r->src->type) && is_quantized(r->to);
    }
}

int32_t bp_quantize_tensor(const struct bp_quantize *q, uint64_t i, struct bp_quantize_tensor *out)
{
    if (i >= q->p.n_rows) return BP_DECLINED;
    const struct bpi_quantize_row *r = &q->p.rows[i];
    out->name = r->src->name;
    out->from = bpi_block_info(r->src->type)->name;
    out->to = bpi_block_info(r->to)->name;
    out->bytes_before = r->src->n_bytes;
    out->bytes_after = r->n_bytes;
    out->why = r->why;
    out->reserved = 0;
    return BP_OK;
}

int32_t bp_quantize_write(const struct bp_quantize *q, const char *path, uint32_t flags,
                          const struct bp_config *cfg, const struct bp_callbacks *cb,
                          struct bp_error *err)
{
    if ((flags & ~(uint32_t)BP_QUANTIZE_NO_REPLACE) != 0)
        return bpi_fail(err, BP_E_ARG, "quantize", "flags", "flags 0x%x are not known", flags);
    int64_t threads =
        cfg != NULL ? bpi_config_int(cfg->c, "engine", "threads") : (int64_t)BPI_CONFIG_AUTO;
    struct bpi_quantize_job job = {.no_replace = (flags & BP_QUANTIZE_NO_REPLACE) != 0};
    if (cb != NULL) {
        job.progress = cb->progress;
        job.progress_ctx = cb->ctx;
    }
    BP_TRY(bpi_pool_create(threads == BPI_CONFIG_AUTO ? bpi_pool_cores() : (uint32_t)threads,
                           &job.pool, err));
    int32_t rc = bpi_quantize_write(&q->p, path, &job, err);
    bpi_pool_destroy(job.pool);
    return rc;
}
