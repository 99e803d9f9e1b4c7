/* mirror_name.c - what a call is called, after the tap that it writes, and what it costs.
 * Not here: taps themselves (tap.c). Threads: the session's. SPDX-License-Identifier: MIT */
#include "engine/mirror_priv.h"
#include <stdio.h>
#include <string.h>

/* By the buffer that is written; what is written at several places is told apart by what it is made from. */
static const char *name_of_buffer(const struct bp_session *s, const void *base)
{
    const struct {
        const void *base;
        const char *name;
    } names[] = {
        {s->q_lora, "attn.q_lora"}, {s->q, "attn.q"},          {s->kv_raw, "attn.kv"},
        {s->index_k, "index.k"},    {s->index_q, "index.q"},   {s->index_w, "index.weights"},
        {s->idx, "index.ids"},      {s->q_lat, "attn.q_lat"},  {s->o_lat, "attn.o_lat"},
        {s->heads, "attn.heads"},   {s->heads2, "attn.heads"}, {s->slab_c, "attn.cached"},
        {s->slab_k, "attn.k"},      {s->ff, "ffn.act"},        {s->ff2, "ffn.up"},
        {s->router, "moe.router"},  {s->moe_ids, "moe.ids"},   {s->logits, "logits"},
    };
    for (size_t i = 0; i < BPI_ARRAY_LEN(names); ++i) {
        if (names[i].base != NULL && names[i].base == base) return names[i].name;
    }
    return NULL;
}

static const char *name_of_norm(const struct bp_session *s, int32_t layer, const void *w)
{
    if (w == (const void *)s->output_norm || layer < 0) return "output_norm";
    const struct bpi_layer *l = &s->layers[layer];
    if (w == (const void *)l->ffn_norm) return "ffn.norm";
    return w == (const void *)l->q_a_norm ? "attn.q_a_norm" : "attn.norm";
}

static const void *base_of(const struct bp_session *s, const struct bp_tensor *t)
{
    uint32_t number;
    uint64_t offset;
    return bpi_mirror_buffer(s, t->data, &number, &offset) ? s->mems[number].p : NULL;
}

/* A product that ends in the residual, or in the buffer that add takes. */
static const char *name_of_residual(const struct bp_session *s, const struct bpi_call *c)
{
    const struct bp_quant_matmul_args *m = c->args;
    return base_of(s, &m->x) == (const void *)s->heads ? "attn.resid" : "out";
}

static const char *call_name(const struct bp_session *s, const struct bpi_call *c, const char *site)
{
    const struct bp_tensor *y = NULL;
    for (uint32_t i = 0; i < c->n_port && y == NULL; ++i) {
        if ((c->port[i].access & BP_OUT) != 0) y = &c->port[i];
    }
    if (y == NULL) return c->op;
    if (strcmp(c->op, "embed") == 0) return "embd";
    if (strcmp(c->op, "cache_write") == 0) return "attn.cache";
    if (strcmp(c->op, "key_write") == 0) return "index.cache";
    if (strcmp(c->op, "rms") == 0)
        return name_of_norm(s, c->layer, ((const struct bp_dense_rms_args *)c->args)->w.data);
    const void *base = base_of(s, y);
    if (strcmp(c->op, "rope") == 0)
        return base == (const void *)s->index_q ? "index.q" : "attn.q_pe";
    if (strcmp(c->op, "add") == 0) return site;
    if (strcmp(c->slot, "moe") == 0 && c->number == BP_MOE_OP_RUN) return "out";
    if (strcmp(c->slot, "quant") == 0 &&
        (base == (const void *)s->x || base == (const void *)s->x_add))
        return name_of_residual(s, c);
    const char *name = name_of_buffer(s, base);
    return name != NULL ? name : c->op;
}

void bpi_call_name(const struct bp_session *s, struct bpi_call *c, char *site, size_t cap)
{
    const char *name = call_name(s, c, site);
    char full[sizeof(c->tap)];
    if (c->layer >= 0)
        (void)snprintf(full, sizeof(full), "blk.%d.%s", c->layer, name);
    else
        (void)snprintf(full, sizeof(full), "%s", name);
    if (strcmp(c->slot, "quant") == 0 && name != site) (void)snprintf(site, cap, "%s", name);
    memcpy(c->tap, full, sizeof(full));
}

/* ---- cost ---- */

static double keys_of_rows(const struct bp_mla_decode_meta *m, const struct bp_mla_decode_args *a,
                           uint32_t top_k)
{
    double sum = 0;
    for (uint32_t r = 0; r < m->n_row; ++r) {
        const uint32_t n = (uint32_t)m->row_kv_len_host[r];
        sum += a->idx.data != NULL && n > top_k ? top_k : n;
    }
    return sum;
}

/* Pairs of a query and a key that it sees. */
static double pairs_of(const struct bp_mla_prefill_meta *m, bool causal)
{
    double sum = 0;
    for (uint32_t i = 0; i < m->n_seg; ++i) {
        const double q = m->cu_q_host[i + 1] - m->cu_q_host[i];
        const double k = m->cu_k_host[i + 1] - m->cu_k_host[i];
        sum += causal ? q * (k - q) + q * (q + 1) / 2 : q * k;
    }
    return sum;
}

static double matmul_cost(const struct bp_session *s, struct bpi_call *c)
{
    uint32_t first = 0;
    const struct bp_quant_matmul_args *m = c->args;
    const struct bpi_site *site = bpi_call_site(s, s, c, &first);
    double flops = 0;
    for (uint32_t i = 0; site != NULL && i < m->n_out && first + i < site->n_w; ++i) {
        c->bytes += (double)site->file_bytes[first + i];
        flops += 2.0 * (double)m->x.dim[0] * (double)site->rows[first + i] * (double)site->cols;
    }
    return flops;
}

/* Routed experts are read once each, as long as there are enough tokens to want them all. */
static double moe_cost(const struct bp_session *s, struct bpi_call *c)
{
    static const uint32_t routed[4] = {BPI_W_EXP_GATE, BPI_W_EXP_UP, BPI_W_EXP_GATE_UP,
                                       BPI_W_EXP_DOWN};
    static const uint32_t shared[3] = {BPI_W_SHARED_GATE, BPI_W_SHARED_UP, BPI_W_SHARED_DOWN};
    const struct bpi_hparams *hp = s->hp;
    const struct bp_moe_run_args *a = c->args;
    const double n = (double)a->x.dim[0], used = n * hp->n_expert_used;
    const double part = used < hp->n_expert ? used / hp->n_expert : 1.0;
    const uint32_t il = (uint32_t)c->layer;
    c->bytes += part * (double)bpi_session_file_bytes(s, routed, 4, il);
    c->bytes += (double)bpi_session_file_bytes(s, shared, 3, il);
    return 6.0 * hp->n_embd * (used * hp->n_ff_exp + n * hp->n_ff_shared);
}

/* Rows of a port that a call touches: of a table of rotations those of its tokens' positions. */
static double rows_of(const struct bp_session *s, const struct bp_tensor *port)
{
    static const char *const tables[] = {"cos_table", "sin_table", "rope_cos", "rope_sin"};
    const double n = (double)port->dim[0];
    for (size_t i = 0; port->name != NULL && i < BPI_ARRAY_LEN(tables); ++i) {
        if (strcmp(port->name, tables[i]) == 0 && n > s->step.n_tok) return s->step.n_tok;
    }
    return n;
}

void bpi_call_cost(const struct bp_session *s, struct bpi_call *c)
{
    const struct bpi_hparams *hp = s->hp;
    const double h = hp->n_head;
    for (uint32_t i = 0; i < c->n_port; ++i) {
        double n = c->port[i].layout_id != 0 ? 0.0 : bpi_dtype_bytes(c->port[i].dtype);
        for (uint32_t d = 0; d < c->port[i].ndim; ++d)
            n *= d == 0 ? rows_of(s, &c->port[i]) : (double)c->port[i].dim[d];
        c->bytes += c->port[i].access == BP_INOUT ? 2 * n : n;
    }
    if (strcmp(c->slot, "quant") == 0) {
        c->flops = matmul_cost(s, c);
    } else if (strcmp(c->slot, "moe") == 0 && c->number == BP_MOE_OP_RUN) {
        c->flops = moe_cost(s, c);
    } else if (strcmp(c->slot, "mla.prefill") == 0) {
        const struct bp_mla_prefill_args *a = c->args;
        c->flops = 2.0 * h * (hp->nope + hp->rope + hp->v_dim) *
                   pairs_of(a->meta, c->number == BP_MLA_PREFILL_OP_RUN);
    } else if (strcmp(c->slot, "mla.decode") == 0) {
        const struct bp_mla_decode_args *a = c->args;
        const double keys = keys_of_rows(a->meta, a, hp->top_k);
        const struct bpi_layer *l = &s->layers[c->layer];
        c->bytes += keys * (double)l->kv_block_bytes / s->block_tok;
        c->flops = 2.0 * h * (2.0 * hp->kv_lora + hp->rope) * keys;
    } else if (strcmp(c->op, "expand") == 0) {
        const struct bp_mla_expand_args *a = c->args;
        c->flops = 2.0 * h * hp->kv_lora * (hp->nope + hp->v_dim) * (double)a->c.dim[0];
    } else if (strcmp(c->op, "absorb") == 0) {
        const struct bp_mla_absorb_args *a = c->args;
        c->flops = 2.0 * h * hp->kv_lora * (double)a->x.dim[0] *
                   (a->side == BP_MLA_ABSORB_UK ? hp->nope : hp->v_dim);
    }
}
