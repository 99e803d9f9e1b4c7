/* ab.c - bp_ab_run: opens both sides, runs the mode, closes both sides, judges.
 * Not here: the modes (ab_shadow.c, ab_free.c). Threads: as a session. SPDX-License-Identifier: MIT */
#include "compare/compare_priv.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- sessions ---- */

/* In shadow mode all but side A repeat its calls. */
static int32_t open_session(struct bpi_ab_run *r, struct bp_model *m, const struct bp_config *c,
                            struct bp_session **out, struct bp_error *err)
{
    return r->p->mode == BP_AB_SHADOW && r->a != NULL
               ? bpi_mirror_open(m, c, r->p->cb, r->a, out, err)
               : bp_session_open(m, c, r->p->cb, out, err);
}

int32_t bpi_ab_open(struct bpi_ab_run *r, const struct bp_ab_side *side, const char *name,
                    struct bp_session **out, struct bp_error *err)
{
    struct bp_error why = BP_ERROR_INIT;
    int32_t rc = open_session(r, side->model, side->config, out, &why);
    if (rc == BP_OK) return BP_OK;
    return bpi_fail(err, rc, "compare", why.where, "side %s cannot be opened: %s", name, why.msg);
}

static int32_t set(struct bp_config *c, struct bp_error *err, const char *fmt, ...)
    BPI_PRINTF(3, 4);
static int32_t set(struct bp_config *c, struct bp_error *err, const char *fmt, ...)
{
    char text[320];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    return bp_config_set(c, text, err);
}

/* The limits of side a, and nothing else of it: no plugin, no wrapper. */
static int32_t ref_config(const struct bpi_ab_run *r, bool baseline, struct bp_config *c,
                          struct bp_error *err)
{
    static const char *const keys[][2] = {
        {"engine", "max_seqs"}, {"engine", "batch_tokens"},
        {"engine", "slab"},     {"engine", "threads"},
        {"kv", "block"},
    };
    static const char *const slots[] = {"dense",       "quant",      "mla.common",
                                        "mla.prefill", "mla.decode", "mla.index",
                                        "moe",         "device",     "coll"};
    for (size_t i = 0; i < BPI_ARRAY_LEN(keys); ++i) {
        const char *v = bp_config_get(r->p->a.config, keys[i][0], keys[i][1]);
        if (v != NULL) BP_TRY(set(c, err, "%s.%s=%s", keys[i][0], keys[i][1], v));
    }
    BP_TRY(set(c, err, "engine.ctx=%u", bp_session_ctx(r->a)));
    BP_TRY(set(c, err, "engine.device=cpu"));
    for (size_t i = 0; i < BPI_ARRAY_LEN(slots); ++i) BP_TRY(set(c, err, "slots.%s=ref", slots[i]));
    BP_TRY(set(c, err, "kv.dtype=%s", baseline ? r->kv : "f32"));
    return set(c, err, "plugin.ref.round=%s", baseline ? r->round : "none");
}

int32_t bpi_ab_ref_session(struct bpi_ab_run *r, bool baseline, struct bp_session **out,
                           struct bp_error *err)
{
    struct bp_config *c = NULL;
    struct bp_error why = BP_ERROR_INIT;
    *out = NULL;
    BP_TRY(bp_config_create(&c, err));
    int32_t rc = ref_config(r, baseline, c, &why);
    if (rc == BP_OK) rc = open_session(r, r->p->a.model, c, out, &why);
    bp_config_destroy(c);
    if (rc != BP_OK)
        return bpi_fail(err, rc, "compare", why.where, "the reference to judge by cannot run: %s",
                        why.msg);
    return BP_OK;
}

void bpi_ab_ref_end(struct bpi_ab_run *r, struct bp_session *s)
{
    struct bp_session_memory m = {.h = BP_HDR(struct bp_session_memory, scratch)};
    if (s == NULL) return;
    bp_session_memory(s, &m);
    r->ab->sum.compare_bytes += m.cache + m.weights + m.buffers + m.scratch;
    bp_session_close(s);
}

int32_t bpi_ab_stepped(struct bpi_ab_run *r, int32_t rc, const char *name,
                       const struct bp_error *why, struct bp_error *err)
{
    if (rc == BP_E_NUMERIC) {
        if (r->stopped == NULL) r->stopped = bpi_ab_text(r->ab, "side %s: %s", name, why->msg);
        return BP_OK;
    }
    if (rc == BP_OK) return BP_OK;
    return bpi_fail(err, rc, "compare", why->where, "side %s: %s", name, why->msg);
}

int32_t bpi_ab_batch(const struct bp_session *s, const struct bp_ab_side *side, uint32_t *batch,
                     uint32_t *chunk, struct bp_error *err)
{
    const uint32_t batch_tok = bp_session_batch_tokens(s), logits = bp_session_max_logits(s);
    *batch = side->batch > 0 ? side->batch : 1;
    if (*batch > BPI_AB_BATCH || *batch > bp_session_max_seqs(s) || *batch > batch_tok)
        return bpi_fail(err, BP_E_ARG, "compare", "engine.max_seqs",
                        "a batch of %u sequences is wanted; engine.max_seqs is %u, "
                        "engine.batch_tokens %u, and %d are the most",
                        *batch, bp_session_max_seqs(s), batch_tok, BPI_AB_BATCH);
    const uint32_t most = batch_tok / *batch;
    *chunk = side->chunk > 0 && side->chunk < most ? side->chunk : most;
    if (*chunk > logits) *chunk = logits;
    return BP_OK;
}

void bpi_ab_neighbour(const struct bp_ab *ab, uint32_t k, uint32_t pos, uint32_t n, int32_t *out)
{
    for (uint32_t i = 0; i < n; ++i) out[i] = ab->ids[(pos + i + 7ull * k) % ab->n_ids];
}

int32_t bpi_ab_progress(const struct bpi_ab_run *r, uint32_t done, uint32_t total,
                        struct bp_error *err)
{
    const struct bp_callbacks *cb = r->p->cb;
    if (cb == NULL || cb->progress == NULL) return BP_OK;
    if (cb->progress(cb->ctx, total > 0 ? (double)done / total : 1.0, "comparing") == 0)
        return BP_OK;
    return bpi_fail(err, BP_E_ABORTED, "compare", NULL, "the comparison was stopped on request");
}

/* ---- precision ---- */

static const char *round_of(const struct bp_config *c)
{
    const char *round = c != NULL ? bpi_config_plugin(c->c, "ref", "round") : NULL;
    return round != NULL ? round : "none";
}

bool bpi_ab_is_exact(const struct bp_config *c)
{
    return strcmp(round_of(c), "none") == 0;
}

bool bpi_ab_is_base(const struct bpi_ab_run *r, uint32_t side, bool cache)
{
    const struct bp_ab_side *of = side == 0 ? &r->p->a : &r->p->b;
    return of->model == r->p->a.model && strcmp(round_of(of->config), r->round) == 0 &&
           (!cache || strcmp(bp_ab_kv_dtype(r->ab, side), r->kv) == 0);
}

static int coarseness(const char *dtype)
{
    return strcmp(dtype, "bf16") == 0 ? 2 : strcmp(dtype, "f16") == 0 ? 1 : 0;
}

/* What a side rounds its activations to. */
static int rounding(const struct bp_session *s, const struct bp_config *c)
{
    const int round = coarseness(round_of(c)), act = coarseness(bp_session_act_dtype(s));
    return act > round ? act : round;
}

void bpi_ab_settle_precision(struct bpi_ab_run *r)
{
    static const char *const names[] = {"f32", "f16", "bf16"};
    static const char *const rounds[] = {"none", "f16", "bf16"};
    static const double units[] = {0x1p-24, 0x1p-12, 0x1p-9};
    int kv = coarseness(bp_ab_kv_dtype(r->ab, 0)), round = rounding(r->a, r->p->a.config);
    if (r->p->golden == NULL) {
        const int kv_b = coarseness(bp_ab_kv_dtype(r->ab, 1));
        const int round_b = rounding(r->b, r->p->b.config);
        kv = kv_b > kv ? kv_b : kv;
        round = round_b > round ? round_b : round;
    }
    if (r->p->baseline == BP_AB_BASE_NONE) kv = round = 0;
    if (r->p->baseline == BP_AB_BASE_BF16) kv = round = 2;
    if (r->p->baseline == BP_AB_BASE_F16) kv = round = 1;
    (void)snprintf(r->kv, sizeof(r->kv), "%s", names[kv]);
    (void)snprintf(r->round, sizeof(r->round), "%s", rounds[round]);
    const int all = round > kv ? round : kv;
    r->unit = units[all];
    r->ab->sum.precision = names[all];
}

/* ---- the whole ---- */

static int32_t check(const struct bp_ab_params *p, struct bp_error *err)
{
    if (!BP_HAS(p, struct bp_ab_params, cb) || !BP_HAS(&p->a, struct bp_ab_side, batch) ||
        !BP_HAS(&p->b, struct bp_ab_side, batch))
        return bpi_fail(err, BP_E_ARG, "compare", NULL, "the parameters lack their headers");
    if (p->ids == NULL || p->n_ids == 0)
        return bpi_fail(err, BP_E_ARG, "compare", NULL,
                        "there are no tokens to compare on; give some text");
    if (p->a.model == NULL || p->a.config == NULL)
        return bpi_fail(err, BP_E_ARG, "compare", NULL, "side A has no model or no configuration");
    if ((p->golden == NULL) != (p->b.model != NULL && p->b.config != NULL))
        return bpi_fail(err, BP_E_ARG, "compare", NULL,
                        "side B is a model with a configuration, or golden values, and one of them "
                        "only");
    if (p->mode > BP_AB_FREE || p->baseline > BP_AB_BASE_F16)
        return bpi_fail(err, BP_E_ARG, "compare", NULL, "mode %u or baseline %u is unknown",
                        p->mode, p->baseline);
    if (p->golden != NULL && (p->mode != BP_AB_FREE || p->n_new > 0))
        return bpi_fail(err, BP_E_ARG, "compare", NULL,
                        "golden values can be compared with in free mode only, and have no tokens "
                        "beyond their own");
    if (p->mode == BP_AB_SHADOW && (p->a.chunk != p->b.chunk || p->a.batch != p->b.batch))
        return bpi_fail(err, BP_E_ARG, "compare", NULL,
                        "in shadow mode B gets A's tensors, so both take the same tokens in the "
                        "same steps; other chunks and batches need --mode free");
    for (uint32_t i = 0; i < p->n_ids; ++i) {
        if (p->ids[i] >= 0 && (uint32_t)p->ids[i] < bp_model_n_vocab(p->a.model)) continue;
        return bpi_fail(err, BP_E_ARG, "compare", NULL,
                        "token %d at place %u is outside the vocabulary of %u", p->ids[i], i,
                        bp_model_n_vocab(p->a.model));
    }
    if (p->b.model != NULL && bp_model_n_vocab(p->b.model) != bp_model_n_vocab(p->a.model))
        return bpi_fail(err, BP_E_ARG, "compare", NULL,
                        "model A has %u tokens and model B has %u; their logits cannot be compared",
                        bp_model_n_vocab(p->a.model), bp_model_n_vocab(p->b.model));
    return BP_OK;
}

static int32_t create(const struct bp_ab_params *p, struct bp_ab **out, struct bp_error *err)
{
    struct bp_ab *ab = bpi_calloc(1, sizeof(*ab));
    if (ab == NULL) return bpi_fail_nomem(err, "compare", sizeof(*ab));
    ab->ids = bpi_calloc((size_t)p->n_ids + p->n_new, sizeof(*ab->ids));
    if (ab->ids == NULL) {
        bpi_free(ab);
        return bpi_fail_nomem(err, "compare", p->n_ids * sizeof(*ab->ids));
    }
    memcpy(ab->ids, p->ids, p->n_ids * sizeof(*ab->ids));
    ab->n_ids = p->n_ids;
    ab->n_vocab = bp_model_n_vocab(p->a.model);
    ab->sum = (struct bp_ab_summary){.h = BP_HDR(struct bp_ab_summary, compare_bytes),
                                     .mode = p->mode,
                                     .text = "",
                                     .precision = "f32",
                                     .first_text = "",
                                     .first = -1,
                                     .first_token = -1,
                                     .top_k = BPI_AB_TOP};
    *out = ab;
    return BP_OK;
}

int32_t bp_ab_run(const struct bp_ab_params *p, struct bp_ab **out, struct bp_error *err)
{
    struct bpi_ab_run r = {.p = p, .unit = 0x1p-24};
    *out = NULL;
    BP_TRY(check(p, err));
    BP_TRY(create(p, &r.ab, err));
    bpi_rng_seed(&r.rng, p->seed);
    int32_t rc = p->mode == BP_AB_SHADOW ? bpi_ab_shadow(&r, err) : bpi_ab_free(&r, err);
    if (p->golden != NULL)
        bpi_ab_ref_end(&r, r.b);
    else
        bp_session_close(r.b);
    bp_session_close(r.a);
    if (rc != BP_OK) {
        bp_ab_close(r.ab);
        return rc;
    }
    bpi_ab_verdict(&r);
    *out = r.ab;
    return BP_OK;
}
