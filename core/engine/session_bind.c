/* session_bind.c - choosing a provider for every slot and layer, and keeping what was chosen.
 * A weight's provider is chosen weight by weight in the plain form; whether a whole site runs in one fused call is asked
 * afterwards. SPDX-License-Identifier: MIT */
#include "engine/session_priv.h"
#include "block/block.h"
#include <stdio.h>
#include <string.h>

static const struct {
    const char *slot, *iface;
} slot_table[BPI_SLOT_COUNT] = {
    {"device", "bp.device"},
    {"dense", "bp.dense"},
    {"quant", "bp.quant"},
    {"mla.common", "bp.mla.common"},
    {"mla.prefill", "bp.mla.prefill"},
    {"mla.decode", "bp.mla.decode"},
    {"mla.index", "bp.mla.index"},
    {"moe", "bp.moe"},
    {"coll", "bp.coll"},
};

const char *bpi_slot_name(uint32_t slot)
{
    return slot_table[slot].slot;
}

/* Rows of the choice table: one per slot, provider and unbroken run of layers. */
static int32_t note_choice(struct bp_session *s, uint32_t slot, const char *provider, int32_t layer,
                           struct bp_error *err)
{
    const char *name = bpi_slot_name(slot);
    for (uint32_t i = 0; i < s->n_choices; ++i) {
        struct bp_choice *c = &s->choices[i];
        if (strcmp(c->slot, name) != 0 || strcmp(c->provider, provider) != 0) continue;
        if (layer < 0 && c->layer_begin < 0) return BP_OK;
        if (layer < 0 || c->layer_begin < 0 || layer < c->layer_begin) continue;
        if (layer < c->layer_end) return BP_OK;
        if (layer == c->layer_end) {
            c->layer_end++;
            return BP_OK;
        }
    }
    struct bp_choice *grown = bpi_realloc(s->choices, s->n_choices + 1u, sizeof(*grown));
    if (grown == NULL) return bpi_fail_nomem(err, "engine", (s->n_choices + 1u) * sizeof(*grown));
    s->choices = grown;
    grown[s->n_choices++] = (struct bp_choice){.h = BP_HDR(struct bp_choice, layer_end),
                                               .slot = name,
                                               .provider = provider,
                                               .layer_begin = layer < 0 ? -1 : layer,
                                               .layer_end = layer < 0 ? -1 : layer + 1};
    return BP_OK;
}

/* The last words of an interface name are the slot's. */
static const char *slot_of_iface(const char *iface)
{
    return strncmp(iface, "bp.", 3) == 0 ? iface + 3 : iface;
}

/* The provider's own sentence stays, behind who it was. Its texts may lack their NUL, and it may have said nothing. */
int32_t bpi_op_failed(const struct bpi_bound *op, int32_t layer, const char *fn, int32_t rc,
                      struct bp_error *err)
{
    char where[64], at[sizeof(err->where)], msg[sizeof(err->msg)];
    const char *slot = slot_of_iface(op->vt->iface);
    if (err == NULL) return rc;
    const bool said = err->code != BP_OK && err->msg[0] != '\0';
    const int32_t native = err->native;
    err->msg[sizeof(err->msg) - 1] = err->where[sizeof(err->where) - 1] = '\0';
    (void)snprintf(msg, sizeof(msg), "%s", said ? err->msg : "failed and gave no reason");
    (void)snprintf(at, sizeof(at), "%s", said ? err->where : "");
    const bool tells = at[0] != '\0' && strstr(msg, at) == NULL;
    if (layer >= 0)
        (void)snprintf(where, sizeof(where), "slot %s, layer %d", slot, layer);
    else
        (void)snprintf(where, sizeof(where), "slot %s", slot);
    bpi_error_clear(err);
    bpi_fail(err, rc, op->provider, where, "%s, provider %s, %s: %s%s%s", where, op->provider, fn,
             tells ? at : "", tells ? ": " : "", msg);
    err->native = native;
    return rc;
}

enum { MAX_ALIGN = 256 }; /* what alloc() of bp.device gives */

static void grow_workspace(struct bp_workspace *ws, const struct bp_workspace *more)
{
    if (more->persistent_bytes > ws->persistent_bytes)
        ws->persistent_bytes = more->persistent_bytes;
    if (more->plan_bytes > ws->plan_bytes) ws->plan_bytes = more->plan_bytes;
    if (more->scratch_bytes > ws->scratch_bytes) ws->scratch_bytes = more->scratch_bytes;
    if (more->pinned_bytes > ws->pinned_bytes) ws->pinned_bytes = more->pinned_bytes;
    if (more->align > ws->align) ws->align = more->align;
    ws->persistent_zeroed |= more->persistent_zeroed;
}

static void note_capture(struct bpi_bound *op, const struct bp_verdict *v)
{
    if (v->capture < op->capture) op->capture = v->capture;
}

int32_t bpi_session_bound(struct bp_session *s, const struct bp_op_ref *ref, const char *provider,
                          bool on_host, const void *problem, struct bpi_bound **out,
                          struct bp_workspace *out_ws, struct bp_error *err)
{
    struct bpi_bound *b = NULL;
    for (uint32_t i = 0; i < s->n_bound && b == NULL; ++i) {
        if (s->bound[i].ref.vt == ref->vt && s->bound[i].ref.self == ref->self) b = &s->bound[i];
    }
    if (b == NULL) {
        if (s->n_bound ==
            s->cap_bound) { /* pointers to entries are kept, so the array never moves */
            return bpi_fail(err, BP_E_LIMIT, "engine", provider,
                            "more than %u op instances are in use", s->cap_bound);
        }
        b = &s->bound[s->n_bound];
        const struct bpi_flat_op *flat = bpi_loader_flat(s->loader, ref);
        if (flat == NULL)
            return bpi_fail(err, BP_E_INTERNAL, "engine", provider,
                            "this op instance did not come from the loader");
        *b = (struct bpi_bound){.vt = flat->vt,
                                .self = flat->self,
                                .ref = *ref,
                                .provider = provider,
                                .on_host = on_host,
                                .capture = BP_CAPTURE_ANY,
                                .ws = {.align = 64}};
        s->n_bound++;
    }
    struct bp_workspace ws = {.h = BP_HDR(struct bp_workspace, persistent_zeroed)};
    BP_TRY(ref->vt->workspace(ref->self, problem, &ws, err));
    if (ws.align < 64 || ws.align > MAX_ALIGN || (ws.align & (ws.align - 1)) != 0) {
        return bpi_fail(
            err, BP_E_ABI, "engine", provider,
            "workspace() of %s asks for memory aligned to %u bytes; a power of two from "
            "64 to %d was expected",
            provider, ws.align, MAX_ALIGN);
    }
    grow_workspace(&b->ws, &ws);
    if (out_ws != NULL) *out_ws = ws;
    *out = b;
    return BP_OK;
}

int32_t bpi_session_ask(struct bp_session *s, struct bpi_question *q, struct bp_error *err)
{
    if (q->cands == NULL) q->cands = s->cands;
    q->row = BPI_NO_ROW;
    q->n_cands = 0;
    q->asked = true;
    return bpi_loader_choose(s->loader, slot_table[q->slot].slot, slot_table[q->slot].iface,
                             q->layer, &s->device, q->problem, q->cands, BPI_MAX_CANDIDATES,
                             &q->n_cands, &q->chosen, &q->ref, err);
}

static int32_t note_answers(struct bp_session *s, struct bpi_question *q, int32_t chosen,
                            const struct bp_workspace *ws, struct bp_error *err)
{
    const struct bpi_answers a = {.slot = slot_table[q->slot].slot,
                                  .iface = slot_table[q->slot].iface,
                                  .what = q->what != NULL ? q->what : "",
                                  .layer = q->layer,
                                  .cands = q->cands,
                                  .n_cands = q->n_cands,
                                  .chosen = chosen,
                                  .on_host = chosen >= 0 && q->cands[chosen].on_host != 0,
                                  .ws = ws,
                                  .file_bytes = q->file_bytes};
    return bpi_decisions_note(s->decisions, s->loader, s->config, &a, &q->row, err);
}

int32_t bpi_session_note_failure(struct bp_session *s, struct bpi_question *q, struct bp_error *err)
{
    const size_t n = q->n_cands;
    const bool served = n > 0 && q->cands[n - 1].verdict.level != BP_V_NO;
    return note_answers(s, q, served ? (int32_t)n - 1 : -1, NULL, err);
}

int32_t bpi_session_settle(struct bp_session *s, struct bpi_question *q, struct bpi_bound **out,
                           struct bp_error *err)
{
    struct bp_workspace ws = {.align = 0};
    const char *provider = q->cands[q->chosen].provider;
    BP_TRY(bpi_session_bound(s, &q->ref, provider, q->cands[q->chosen].on_host != 0, q->problem,
                             out, &ws, err));
    BP_TRY(note_answers(s, q, (int32_t)q->chosen, &ws, err));
    note_capture(*out, &q->cands[q->chosen].verdict);
    const uint64_t bytes = q->ready_bytes > q->file_bytes ? q->ready_bytes : q->file_bytes;
    if (q->cands[q->chosen].on_host == 0 && !bpi_add_u64(s->weight_bytes, bytes, &s->weight_bytes))
        s->weight_bytes = UINT64_MAX; /* which no device has */
    bpi_session_note_carried(s, q);
    if (!s->quiet)
        bpi_loader_tell(s->loader, slot_table[q->slot].slot, q->layer, q->cands, q->n_cands,
                        q->chosen);
    return note_choice(s, q->slot, provider, q->layer, err);
}

int32_t bpi_session_choose(struct bp_session *s, struct bpi_question *q, struct bpi_bound **out,
                           struct bp_error *err)
{
    int32_t rc = bpi_session_ask(s, q, err);
    if (rc == BP_OK) return bpi_session_settle(s, q, out, err);
    struct bp_error ignored = BP_ERROR_INIT; /* the first failure is the one to tell */
    (void)bpi_session_note_failure(s, q, &ignored);
    return rc;
}

uint64_t bpi_session_file_bytes(const struct bp_session *s, const uint32_t *roles, size_t n,
                                uint32_t layer)
{
    uint64_t sum = 0;
    struct bp_raw raw;
    for (size_t i = 0; i < n; ++i) {
        if (bpi_model_raw(s->model->m, roles[i], layer, 0, 1, &raw)) sum += raw.n_bytes;
    }
    return sum;
}

/* ---- dense and coll ---- */

static int32_t bind_dense(struct bp_session *s, uint32_t op, int32_t layer, int64_t width,
                          uint32_t x_dtype, uint32_t y_dtype, uint32_t type,
                          struct bpi_bound **table, struct bp_error *err)
{
    static const char *const ops[BPI_N_DENSE] = {
        "embed", "rms", "layernorm", "rope", "silu_mul", "add", "argmax", "topk", "matmul"};
    const uint32_t role[1] = {BPI_W_TOKEN_EMBD};
    struct bp_dense_problem p = {.h = BP_HDR(struct bp_dense_problem, k),
                                 .op = op,
                                 .max_rows = s->batch_tok,
                                 .width = width,
                                 .x_dtype = x_dtype,
                                 .y_dtype = y_dtype,
                                 .type = type,
                                 .k = 1};
    struct bpi_question q = {
        .slot = BPI_SLOT_DENSE, .layer = layer, .problem = &p, .what = ops[op]};
    if (op == BP_DENSE_OP_EMBED) q.file_bytes = bpi_session_file_bytes(s, role, 1, 0);
    BP_TRY(bpi_session_choose(s, &q, &table[op], err));
    if (op == BP_DENSE_OP_EMBED) s->embed_row = q.row;
    return BP_OK;
}

/* The norm with an F32 result, where others are not; `table` gets its entry from the one that comes after. */
static int32_t bind_rms_f32(struct bp_session *s, int32_t layer, struct bpi_bound **table,
                            struct bpi_bound **out, struct bp_error *err)
{
    BP_TRY(
        bind_dense(s, BP_DENSE_OP_RMS, layer, s->hp->n_embd, BP_DT_F32, BP_DT_F32, 0, table, err));
    *out = table[BP_DENSE_OP_RMS];
    return BP_OK;
}

/* The ops that fused forms are composed of, and rotation. */
static int32_t bind_layer_dense(struct bp_session *s, uint32_t il, struct bp_error *err)
{
    const struct bpi_hparams *hp = s->hp;
    struct bpi_layer *l = &s->layers[il];
    int32_t layer = (int32_t)il;
    int64_t wide = hp->n_embd > hp->q_lora ? hp->n_embd : hp->q_lora;
    if (l->has_index) /* for its weights, which are F32 */
        BP_TRY(bind_rms_f32(s, layer, l->dense, &l->rms_f32, err));
    BP_TRY(bind_dense(s, BP_DENSE_OP_RMS, layer, wide, BP_DT_F32, s->act, 0, l->dense, err));
    BP_TRY(bind_dense(s, BP_DENSE_OP_ROPE, layer, hp->rope, s->act, s->act, 0, l->dense, err));
    BP_TRY(
        bind_dense(s, BP_DENSE_OP_ADD, layer, hp->n_embd, BP_DT_F32, BP_DT_F32, 0, l->dense, err));
    if (l->dense_ffn)
        BP_TRY(
            bind_dense(s, BP_DENSE_OP_SILU_MUL, layer, hp->n_ff, s->act, s->act, 0, l->dense, err));
    return BP_OK;
}

/* ---- quant sites ---- */

static const char *type_name(uint32_t type)
{
    const struct bpi_block_info *info = bpi_block_info(type);
    return info != NULL ? info->name : "";
}

static int32_t site_add(struct bp_session *s, struct bpi_site *site, uint32_t role, uint32_t il,
                        struct bp_error *err)
{
    struct bp_raw raw;
    if (!bpi_model_raw(s->model->m, role, il, 0, 1, &raw)) {
        return bpi_fail(err, BP_E_INTERNAL, "engine", bpi_tensor_specs(&(size_t){0})[role].gguf,
                        "the model was opened without a weight that its forward pass needs");
    }
    uint32_t i = site->n_w++;
    site->rows[i] = raw.end[1] - raw.begin[1];
    site->cols = raw.end[0] - raw.begin[0];
    site->role[i] = role;
    site->type[i] = raw.type;
    site->file_bytes[i] = raw.n_bytes;
    return BP_OK;
}

static struct bp_quant_problem site_problem(const struct bp_session *s, const struct bpi_site *site,
                                            const struct bp_quant_shape *shapes, uint32_t n_w,
                                            uint32_t x_dtype, uint32_t y_dtype)
{
    return (struct bp_quant_problem){.h = BP_HDR(struct bp_quant_problem, epilogue),
                                     .op = BP_QUANT_OP_MATMUL,
                                     .n_w = n_w,
                                     .w_stride = sizeof(*shapes),
                                     .max_tok = s->batch_tok,
                                     .w = shapes,
                                     .x_dtype = x_dtype,
                                     .y_dtype = y_dtype,
                                     .prologue = n_w == site->n_w ? site->prologue : 0,
                                     .epilogue = n_w == site->n_w ? site->epilogue : 0};
}

/* Does the op serve this problem in one go? Then its workspace counts. */
static int32_t ask_form(struct bp_session *s, struct bpi_bound *op,
                        const struct bp_quant_problem *p, bool *out, struct bp_error *err)
{
    bpi_loader_ask(&op->ref, op->provider, p, &s->cands[0]);
    *out = s->cands[0].verdict.level != BP_V_NO;
    if (!*out) return BP_OK;
    struct bpi_bound *same;
    note_capture(op, &s->cands[0].verdict);
    return bpi_session_bound(s, &op->ref, op->provider, op->on_host, p, &same, NULL, err);
}

/* Chooses providers for the weights added so far. Inputs of the rms prologue are the residual (F32). */
static int32_t site_bind(struct bp_session *s, struct bpi_site *site, int32_t layer,
                         uint32_t x_dtype, uint32_t y_dtype, struct bp_error *err)
{
    struct bp_quant_shape shapes[BPI_SITE_MAX_W];
    /* The composed form reads what dense.rms left. */
    site->exact = site->prologue == BP_PROLOGUE_RMS && y_dtype == BP_DT_F32 && s->act != BP_DT_F32;
    const uint32_t plain_x = site->prologue == BP_PROLOGUE_RMS && !site->exact ? s->act : x_dtype;
    bool same = true;
    for (uint32_t i = 0; i < site->n_w; ++i) {
        shapes[i] = (struct bp_quant_shape){
            .type = site->type[i], .rows = site->rows[i], .cols = site->cols};
        struct bp_quant_problem plain = site_problem(s, site, &shapes[i], 1, plain_x, y_dtype);
        plain.prologue = BP_PROLOGUE_NONE;
        plain.epilogue = BP_EPILOGUE_NONE;
        struct bpi_question q = {.slot = BPI_SLOT_QUANT,
                                 .layer = layer,
                                 .problem = &plain,
                                 .what = type_name(site->type[i]),
                                 .file_bytes = site->file_bytes[i]};
        BP_TRY(bpi_session_choose(s, &q, &site->op[i], err));
        site->row[i] = q.row;
        same = same && site->op[i] == site->op[0];
    }
    if (!same) return BP_OK;
    struct bp_quant_problem p = site_problem(s, site, shapes, site->n_w, x_dtype, y_dtype);
    BP_TRY(ask_form(s, site->op[0], &p, &site->one_call, err));
    p.x_dtype = plain_x;
    p.prologue = BP_PROLOGUE_NONE;
    p.epilogue = BP_EPILOGUE_NONE;
    return ask_form(s, site->op[0], &p, &site->multi, err);
}

static int32_t bind_attention_sites(struct bp_session *s, uint32_t il, struct bp_error *err)
{
    struct bpi_layer *l = &s->layers[il];
    bool lora = s->hp->q_lora > 0;
    int32_t layer = (int32_t)il;

    l->in.prologue = BP_PROLOGUE_RMS;
    BP_TRY(site_add(s, &l->in, lora ? BPI_W_ATTN_Q_A : BPI_W_ATTN_Q, il, err));
    BP_TRY(site_add(s, &l->in, BPI_W_ATTN_KV_A, il, err));
    if (l->has_index) BP_TRY(site_add(s, &l->in, BPI_W_INDEX_K, il, err));
    BP_TRY(site_bind(s, &l->in, layer, BP_DT_F32, s->act, err));
    if (lora) {
        l->q_b.prologue = BP_PROLOGUE_RMS;
        BP_TRY(site_add(s, &l->q_b, BPI_W_ATTN_Q_B, il, err));
        BP_TRY(site_bind(s, &l->q_b, layer, s->act, s->act, err));
    }
    if (l->has_index) {
        l->index_q.prologue = l->index_w.prologue = BP_PROLOGUE_RMS;
        BP_TRY(site_add(s, &l->index_q, BPI_W_INDEX_Q_B, il, err));
        BP_TRY(site_bind(s, &l->index_q, layer, s->act, s->act, err));
        BP_TRY(site_add(s, &l->index_w, BPI_W_INDEX_PROJ, il, err));
        BP_TRY(site_bind(s, &l->index_w, layer, BP_DT_F32, BP_DT_F32, err));
    }
    l->out.epilogue = BP_EPILOGUE_ADD;
    BP_TRY(site_add(s, &l->out, BPI_W_ATTN_OUTPUT, il, err));
    return site_bind(s, &l->out, layer, s->act, BP_DT_F32, err);
}

static int32_t bind_ffn_sites(struct bp_session *s, uint32_t il, struct bp_error *err)
{
    struct bpi_layer *l = &s->layers[il];
    int32_t layer = (int32_t)il;
    if (l->dense_ffn) {
        l->gate_up.prologue = BP_PROLOGUE_RMS;
        l->gate_up.epilogue = BP_EPILOGUE_SILU_MUL;
        BP_TRY(site_add(s, &l->gate_up, BPI_W_FFN_GATE, il, err));
        BP_TRY(site_add(s, &l->gate_up, BPI_W_FFN_UP, il, err));
        BP_TRY(site_bind(s, &l->gate_up, layer, BP_DT_F32, s->act, err));
        l->down.epilogue = BP_EPILOGUE_ADD;
        BP_TRY(site_add(s, &l->down, BPI_W_FFN_DOWN, il, err));
        return site_bind(s, &l->down, layer, s->act, BP_DT_F32, err);
    }
    BP_TRY(site_add(s, &l->router, BPI_W_ROUTER, il, err));
    return site_bind(s, &l->router, layer, s->act, BP_DT_F32, err);
}

/* "Q4_K+Q6_K": gate and up, then down; shared experts are small and go unnamed. */
static void moe_what(const struct bp_moe_problem *p, char what[96])
{
    const char *gate = type_name(p->type_gate), *down = type_name(p->type_down);
    (void)snprintf(what, 96, strcmp(gate, down) == 0 ? "%s" : "%s+%s", gate, down);
}

static int32_t bind_moe(struct bp_session *s, uint32_t il, struct bp_error *err)
{
    const struct bpi_hparams *hp = s->hp;
    struct bp_moe_problem p = {.h = BP_HDR(struct bp_moe_problem, y_dtype),
                               .max_tok = s->batch_tok,
                               .n_embd = hp->n_embd,
                               .n_ff = hp->n_ff_exp,
                               .n_ff_shared = hp->n_ff_shared,
                               .n_expert = hp->n_expert,
                               .n_expert_used = hp->n_expert_used,
                               .expert_end = hp->n_expert,
                               .n_group = hp->n_group,
                               .n_group_used = hp->n_group_used,
                               .gating = hp->gating,
                               .group_score = hp->group_score,
                               .x_dtype = s->act,
                               .y_dtype = BP_DT_F32};
    static const uint32_t roles[6] = {BPI_W_EXP_GATE,    BPI_W_EXP_UP,    BPI_W_EXP_DOWN,
                                      BPI_W_SHARED_GATE, BPI_W_SHARED_UP, BPI_W_SHARED_DOWN};
    uint32_t *types[6] = {&p.type_gate,        &p.type_up,        &p.type_down,
                          &p.type_shared_gate, &p.type_shared_up, &p.type_shared_down};
    struct bp_raw raw;
    for (size_t i = 0; i < 6; ++i) {
        bool there = bpi_model_raw(s->model->m, roles[i], il, 0, 1, &raw);
        if (!there && i < 2) there = bpi_model_raw(s->model->m, BPI_W_EXP_GATE_UP, il, 0, 1, &raw);
        *types[i] = there ? raw.type : 0;
    }
    p.op = BP_MOE_OP_RUN;
    struct bpi_bound *run;
    char what[96];
    moe_what(&p, what);
    struct bpi_question q = {.slot = BPI_SLOT_MOE,
                             .layer = (int32_t)il,
                             .problem = &p,
                             .what = what,
                             .file_bytes = bpi_session_file_bytes(s, roles, 6, il)};
    const uint32_t joint[1] = {BPI_W_EXP_GATE_UP};
    q.file_bytes += bpi_session_file_bytes(s, joint, 1, il);
    BP_TRY(bpi_session_choose(s, &q, &run, err));
    s->layers[il].moe_row = q.row;
    p.op =
        BP_MOE_OP_ROUTE; /* whoever runs the experts also routes; its refusal must be seen here */
    bpi_loader_ask(&run->ref, run->provider, &p, &s->cands[0]);
    if (s->cands[0].verdict.level == BP_V_NO) {
        struct bpi_buf why = {0};
        for (uint32_t i = 0; i < s->cands[0].verdict.n_reasons && i < BPI_MAX_REASONS; ++i) {
            if (i > 0) bpi_buf_puts(&why, "; ");
            bpi_loader_format_reason(&s->cands[0].reasons[i], &why);
        }
        int32_t rc = bpi_fail(err, BP_E_CONFIG, "engine", "slots.moe",
                              "%s runs the experts but not the router: %s", run->provider,
                              why.data != NULL ? why.data : "no reason given");
        bpi_buf_free(&why);
        return rc;
    }
    s->layers[il].moe = run;
    note_capture(run, &s->cands[0].verdict);
    struct bpi_bound *same;
    return bpi_session_bound(s, &run->ref, run->provider, run->on_host, &p, &same, NULL, err);
}

static int32_t bind_head(struct bp_session *s, struct bp_error *err)
{
    const struct bpi_hparams *hp = s->hp;
    struct bp_raw raw;
    if (!bpi_model_raw(s->model->m, BPI_W_TOKEN_EMBD, 0, 0, 1, &raw)) {
        return bpi_fail(err, BP_E_INTERNAL, "engine", "token_embd.weight",
                        "the model has no embedding");
    }
    BP_TRY(bind_dense(s, BP_DENSE_OP_EMBED, -1, hp->n_embd, BP_DT_I32, BP_DT_F32, raw.type,
                      s->dense, err));
    BP_TRY(bind_rms_f32(s, -1, s->dense, &s->rms_f32, err));
    s->head.prologue = BP_PROLOGUE_RMS;
    BP_TRY(site_add(s, &s->head, BPI_W_OUTPUT, 0, err));
    return site_bind(s, &s->head, -1, BP_DT_F32, BP_DT_F32, err);
}

static int32_t bind_coll(struct bp_session *s, struct bp_error *err)
{
    struct bp_coll_problem p = {.h = BP_HDR(struct bp_coll_problem, max_elems),
                                .world = 1,
                                .dtype = BP_DT_F32,
                                .max_elems = (uint64_t)s->batch_tok * s->hp->n_embd};
    struct bpi_question q = {.slot = BPI_SLOT_COLL, .layer = -1, .problem = &p};
    return bpi_session_choose(s, &q, &s->coll, err);
}

int32_t bpi_session_bind_alloc(struct bp_session *s, struct bp_error *err)
{
    /* device, coll and head; per layer at most one instance of each slot and provider */
    s->cap_bound = 64;
    s->bound = bpi_arena_alloc(&s->arena, s->cap_bound, sizeof(*s->bound), 16);
    s->layers = bpi_arena_alloc(&s->arena, s->n_layer, sizeof(*s->layers), 16);
    s->cands = bpi_arena_alloc(&s->arena, BPI_N_TRIALS * BPI_MAX_CANDIDATES, sizeof(*s->cands), 16);
    if (s->bound == NULL || s->layers == NULL || s->cands == NULL)
        return bpi_fail_nomem(err, "engine", 65536);
    return BP_OK;
}

int32_t bpi_session_bind_all(struct bp_session *s, struct bp_error *err)
{
    BP_TRY(bpi_session_bind_device(s, err));
    BP_TRY(bind_coll(s, err));
    BP_TRY(bind_head(s, err));
    for (uint32_t il = 0; il < s->n_layer; ++il) {
        struct bpi_layer *l = &s->layers[il];
        l->dense_ffn = bpi_model_layer_dense(s->model->m, il);
        l->index_full = s->hp->sparse && bpi_model_index_full(s->model->m, il);
        l->has_index = l->index_full;
        BP_TRY(bind_layer_dense(s, il, err));
        BP_TRY(bind_attention_sites(s, il, err));
        BP_TRY(bind_ffn_sites(s, il, err));
        l->moe_number = s->n_moe;
        if (l->dense_ffn) continue;
        s->n_moe++;
        BP_TRY(bind_moe(s, il, err));
    }
    return bpi_session_negotiate(s, err);
}
