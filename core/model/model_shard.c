/* model_shard.c - which part of a tensor a rank owns. Pure arithmetic on shapes, head counts and block sizes.
 * Rules: models of vLLM's tensor parallelism (heads, vocabulary, feed-forward width), with cuts of quantised rows at block
 * borders as llama.cpp's block layout demands; see docs/internals/model.md. SPDX-License-Identifier: MIT */
#include "model/model_priv.h"

/* First of n items that rank owns when tp ranks share them as evenly as whole items allow; rank == tp gives n. */
static int64_t share(int64_t n, uint32_t rank, uint32_t tp)
{
    return (int64_t)((uint64_t)n * rank / tp);
}

static void cut(struct bp_raw *r, uint32_t dim, int64_t items, int64_t unit, uint32_t rank,
                uint32_t tp)
{
    r->begin[dim] = share(items, rank, tp) * unit;
    r->end[dim] = share(items, rank + 1, tp) * unit;
}

/* Borders along the feed-forward width: whole blocks of the tensor that has this width as its columns. */
static void cut_width(struct bp_raw *r, uint32_t dim, const struct bpi_gguf_tensor *down,
                      uint32_t rank, uint32_t tp)
{
    int64_t block = bpi_block_info(down->type)->block_elems;
    cut(r, dim, down->ne[0] / block, block, rank, tp);
}

static void cut_by_rule(const struct bpi_model *m, uint32_t role, uint32_t layer,
                        const struct bpi_gguf_tensor *t, uint32_t rank, uint32_t tp,
                        struct bp_raw *r)
{
    int64_t heads = m->hp.n_head;
    uint32_t dim = 1;
    switch (bpi_tensor_specs(NULL)[role].shard) {
    case BPI_SHARD_HEAD_ROW:
        cut(r, 1, heads, t->ne[1] / heads, rank, tp);
        break;
    case BPI_SHARD_HEAD_2:
        /* The 2-D form has the heads joined with the dimension before them. */
        if (t->ne[2] == heads) dim = 2;
        cut(r, dim, heads, t->ne[dim] / heads, rank, tp);
        break;
    case BPI_SHARD_HEAD_COL:
        cut(r, 0, heads, t->ne[0] / heads, rank, tp);
        break;
    case BPI_SHARD_ROW:
        cut_width(r, 1, bpi_model_tensor(m, bpi_role_rules[role].down, layer), rank, tp);
        break;
    case BPI_SHARD_COL:
        cut_width(r, 0, t, rank, tp);
        break;
    case BPI_SHARD_VOCAB:
        cut(r, 1, t->ne[1], 1, rank, tp);
        break;
    default: /* replicated */
        break;
    }
}

bool bpi_model_raw(const struct bpi_model *m, uint32_t role, uint32_t layer, uint32_t rank,
                   uint32_t tp, struct bp_raw *out)
{
    *out = (struct bp_raw){.h = BP_HDR(struct bp_raw, reserved)};
    bool global = role <= BPI_W_OUTPUT;
    if (role >= BPI_W_COUNT || (!global && layer >= m->hp.n_layer) || tp == 0 || rank >= tp)
        return false;
    size_t place = (global ? 0 : (size_t)layer + 1) * BPI_W_COUNT + role;
    if (role == BPI_W_OUTPUT && m->tensor[place] == NULL) place = BPI_W_TOKEN_EMBD;
    const struct bpi_gguf_tensor *t = m->tensor[place];
    if (t == NULL) return false;
    out->data = t->data;
    out->n_bytes = t->n_bytes;
    out->type = t->type;
    out->n_dim = t->n_dim;
    out->name = t->name;
    out->scale = m->scale != NULL ? m->scale[place] : 1.0f;
    for (uint32_t d = 0; d < 4; ++d) {
        out->ne[d] = out->end[d] = t->ne[d];
        out->begin[d] = 0;
    }
    if (tp > 1) cut_by_rule(m, role, layer, t, rank, tp, out);
    return true;
}
