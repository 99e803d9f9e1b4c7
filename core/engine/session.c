/* session.c - opening and closing a session, its limits and sequences. The step itself: step.c.
 * SPDX-License-Identifier: MIT */
#include "engine/session_priv.h"
#include "gguf/gguf.h"
#include "loader/plugin_file.h"
#include "ref/ref.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

int32_t bpi_session_progress(struct bp_session *s, double fraction, const char *what,
                             struct bp_error *err)
{
    if (s->cb.progress == NULL || s->cb.progress(s->cb.ctx, fraction, what) == 0) return BP_OK;
    return bpi_fail(err, BP_E_ABORTED, "engine", NULL, "loading was stopped on request");
}

static int32_t read_limits(struct bp_session *s, struct bp_error *err)
{
    const struct bpi_config *c = s->config;
    const struct bpi_hparams *hp = s->hp;
    BP_TRY(bpi_config_check(c, err));
    int64_t ctx = bpi_config_int(c, "engine", "ctx");
    uint32_t dflt = hp->n_ctx_train < 4096 ? hp->n_ctx_train : 4096;
    s->ctx = ctx == BPI_CONFIG_AUTO ? dflt : (uint32_t)ctx;
    s->max_seqs = (uint32_t)bpi_config_int(c, "engine", "max_seqs");
    s->batch_tok = (uint32_t)bpi_config_int(c, "engine", "batch_tokens");
    s->block_tok = (uint32_t)bpi_config_int(c, "kv", "block");
    s->slab = (uint32_t)bpi_config_int(c, "engine", "slab");
    if (s->ctx > hp->n_ctx_train) {
        return bpi_fail(
            err, BP_E_CONFIG, "engine", "engine.ctx",
            "%u tokens asked for, the model was trained for %u; set engine.ctx to at most %u",
            s->ctx, hp->n_ctx_train, hp->n_ctx_train);
    }
    if (s->batch_tok < s->max_seqs) {
        return bpi_fail(
            err, BP_E_CONFIG, "engine", "engine.batch_tokens",
            "%u tokens per step cannot hold one token of each of engine.max_seqs = %u sequences",
            s->batch_tok, s->max_seqs);
    }
    uint64_t all =
        (uint64_t)s->ctx * s->max_seqs; /* no step is larger than everything that fits the cache */
    if (s->batch_tok > all) s->batch_tok = (uint32_t)all;
    s->slab_cap = s->slab > s->batch_tok ? s->slab : s->batch_tok;
    s->max_rows = s->batch_tok;
    s->max_phase = (s->ctx + s->slab - 1) / s->slab;
    uint64_t seg = 2 * (uint64_t)s->max_seqs + s->batch_tok / s->slab;
    s->max_seg = seg < s->batch_tok ? (uint32_t)seg : s->batch_tok;
    uint64_t rows = (UINT64_C(64) << 20) / (4 * (uint64_t)hp->n_vocab);
    if (rows < s->max_seqs) rows = s->max_seqs;
    s->max_logits = rows < s->batch_tok ? (uint32_t)rows : s->batch_tok;
    s->index_scale = hp->sparse ? 1.0 / sqrt((double)hp->n_index_head * hp->index_dim) : 0.0;
    if (bpi_config_int(c, "parallel", "tp") != 1) {
        return bpi_fail(err, BP_E_UNSUPPORTED, "engine", "parallel.tp",
                        "this build runs one rank; set parallel.tp = 1");
    }
    return BP_OK;
}

/* What is linked in comes first, so that no file can take its name. Settings for plugins that are not there would be lost without a
 * word. */
static int32_t find_plugins(struct bp_session *s, struct bp_error *err)
{
    BP_TRY(bpi_loader_register(s->loader, bpi_ref_query, err));
    for (uint32_t i = 0; i < s->linked->n_plugins; ++i)
        BP_TRY(bpi_loader_register(s->loader, s->linked->plugins[i], err));
    BP_TRY(bpi_loader_scan(s->loader, true, err));
    return bpi_loader_check_config(s->loader, err);
}

struct layer_check {
    uint32_t n_layer;
    char name[96]; /* of an entry beyond the model's layers */
};

static void check_layer_entry(void *ctx, const struct bpi_config_key *key, const char *section,
                              const char *name, const char *value, const char *origin)
{
    struct layer_check *c = ctx;
    const char *at = strstr(name, "@layers=");
    (void)key;
    (void)value;
    (void)origin;
    if (at == NULL || (strcmp(section, "slots") != 0 && strcmp(section, "wrap") != 0)) return;
    const char *last = strchr(at, '-');
    int64_t layer;
    if (!bpi_parse_i64(last != NULL ? last + 1 : at + strlen("@layers="), &layer) ||
        layer >= c->n_layer) {
        snprintf(c->name, sizeof(c->name), "%s.%s", section, name);
    }
}

/* An entry for layers that the model does not have would never be looked at, wrong provider and all. */
static int32_t check_layers(const struct bp_session *s, struct bp_error *err)
{
    struct layer_check c = {.n_layer = s->n_layer};
    bpi_config_each(s->config, check_layer_entry, &c);
    if (c.name[0] == '\0') return BP_OK;
    return bpi_fail(err, BP_E_CONFIG, "engine", c.name, "the model has layers 0 to %u only",
                    s->n_layer - 1);
}

static int32_t open_backends(struct bp_session *s, struct bp_error *err)
{
    int64_t threads = bpi_config_int(s->config, "engine", "threads");
    uint32_t n = threads == BPI_CONFIG_AUTO ? bpi_pool_cores() : (uint32_t)threads;
    BP_TRY(bpi_pool_create(n, &s->pool, err));
    struct bpi_loader_env env = {.config = s->config, .log = &s->log, .pool = s->pool};
    BP_TRY(bpi_loader_create(&env, &s->loader, err));
    BP_TRY(find_plugins(s, err));
    BP_TRY(check_layers(s, err));
    return bpi_session_bind(s, err);
}

static int32_t create_comm(struct bp_session *s, struct bp_error *err)
{
    struct bp_coll_setup setup = {
        .h = BP_HDR(struct bp_coll_setup, key), .world = 1, .key = "model"};
    return BPI_RUN(s->coll, -1, bp_coll_ops, comm_create, &setup, &s->comm);
}

static int32_t create_session(struct bp_model *m, const struct bp_config *cfg,
                              const struct bp_callbacks *cb, struct bp_session **out,
                              struct bp_error *err)
{
    struct bp_session *s = bpi_calloc(1, sizeof(*s));
    if (s == NULL) return bpi_fail_nomem(err, "engine", sizeof(*s));
    s->model = m;
    m->n_sessions++;
    s->hp = bpi_model_hparams(m->m);
    s->n_layer = s->hp->n_layer;
    s->config = cfg->c;
    s->linked = cfg;
    if (cb != NULL) s->cb = *cb;
    s->log = bpi_engine_log(cfg, cb);
    atomic_init(&s->interrupted, 0);
    *out = s;
    return BP_OK;
}

static int32_t open_session(struct bp_model *m, const struct bp_config *cfg,
                            const struct bp_callbacks *cb, const struct bp_session *lender,
                            struct bp_session **out, struct bp_error *err)
{
    struct bp_session *s = NULL;
    *out = NULL;
    if (bpi_model_headers_only(m->m))
        return bpi_fail(err, BP_E_ARG, "engine", m->path,
                        "the model was opened for its headers only; open it with bp_model_open");
    BP_TRY(create_session(m, cfg, cb, &s, err));
    int32_t rc;
    s->lender = lender;
    s->streamed = -1;
    BP_TRY_GOTO(rc, read_limits(s, err), fail);
    BP_TRY_GOTO(rc, open_backends(s, err), fail);
    BP_TRY_GOTO(rc, bpi_session_create_stream(s, err), fail);
    BP_TRY_GOTO(rc, create_comm(s, err), fail);
    BP_TRY_GOTO(rc, bpi_session_buffers(s, err), fail);
    BP_TRY_GOTO(rc, bpi_gguf_check_files(bpi_model_gguf(m->m), err), fail);
    BP_TRY_GOTO(rc, bpi_session_prepare(s, err), fail);
    BP_TRY_GOTO(rc, bpi_carry_create(s, err), fail);
    BP_TRY_GOTO(rc, bpi_graphs_create(s, err), fail);
    BP_TRY_GOTO(rc, bpi_mirror_budget(s, err), fail);
    BP_TRY_GOTO(rc, bpi_gguf_check_files(bpi_model_gguf(m->m), err), fail);
    BP_TRY_GOTO(rc, bpi_session_progress(s, 1.0, "ready", err), fail);
    s->config = NULL;
    s->linked = NULL;
    *out = s;
    return BP_OK;
fail:
    bp_session_close(s);
    return rc;
}

int32_t bp_session_open(struct bp_model *m, const struct bp_config *cfg,
                        const struct bp_callbacks *cb, struct bp_session **out,
                        struct bp_error *err)
{
    return open_session(m, cfg, cb, NULL, out, err);
}

int32_t bpi_mirror_open(struct bp_model *m, const struct bp_config *cfg,
                        const struct bp_callbacks *cb, const struct bp_session *a,
                        struct bp_session **out, struct bp_error *err)
{
    return open_session(m, cfg, cb, a, out, err);
}

int32_t bp_explain(struct bp_model *m, const struct bp_config *cfg, const struct bp_callbacks *cb,
                   struct bp_decisions **out, struct bp_error *err)
{
    struct bp_session *s = NULL;
    *out = NULL;
    BP_TRY(create_session(m, cfg, cb, &s, err));
    int32_t rc = read_limits(s, err);
    if (rc == BP_OK) rc = open_backends(s, err);
    *out = s->decisions; /* they depend on nothing of the session */
    s->decisions = NULL;
    bp_session_close(s);
    return rc;
}

const struct bp_decisions *bp_session_decisions(const struct bp_session *s)
{
    return s->decisions;
}

void bp_session_close(struct bp_session *s)
{
    if (s == NULL) return;
    if (s->stream != NULL && s->lost.code == BP_OK) { /* a step that failed may have left work on it */
        struct bp_error ignored = BP_ERROR_INIT, *err = &ignored;
        (void)bpi_session_sync(s, err);
    }
    bpi_graphs_destroy(s);
    bpi_session_release(s);
    if (s->device_op != NULL) bpi_time_close(s);
    if (s->comm != NULL) BPI_CALL(s->coll, bp_coll_ops, comm_destroy, s->comm);
    if (s->device_op != NULL) bpi_session_free_all(s);
    if (s->stream != NULL) BPI_CALL(s->device_op, bp_device_ops, stream_destroy, s->stream);
    bpi_kv_destroy(s->kv);
    bpi_loader_destroy(s->loader);
    bpi_pool_destroy(s->pool);
    bpi_free(s->choices);
    bp_decisions_close(s->decisions);
    bpi_arena_free(&s->taps.arena);
    bpi_arena_free(&s->arena);
    s->model->n_sessions--;
    bpi_free(s);
}

uint32_t bp_session_ctx(const struct bp_session *s)
{
    return s->ctx;
}

uint32_t bp_session_max_seqs(const struct bp_session *s)
{
    return s->max_seqs;
}

uint32_t bp_session_batch_tokens(const struct bp_session *s)
{
    return s->batch_tok;
}

uint32_t bp_session_max_logits(const struct bp_session *s)
{
    return s->max_logits;
}

int32_t bp_session_choice(const struct bp_session *s, uint32_t i, struct bp_choice *out)
{
    if (i >= s->n_choices) return BP_DECLINED;
    struct bp_hdr h = out->h;
    *out = s->choices[i];
    out->h = h;
    return BP_OK;
}

void bp_session_interrupt(struct bp_session *s)
{
    atomic_store(&s->interrupted, 1);
}

/* ---- sequences ---- */

static int32_t check_seq(const struct bp_session *s, uint32_t seq, struct bp_error *err)
{
    if (seq < s->max_seqs) return BP_OK;
    return bpi_fail(err, BP_E_ARG, "engine", NULL,
                    "sequence %u does not exist; this session has 0 .. %u", seq, s->max_seqs - 1);
}

uint32_t bp_seq_len(const struct bp_session *s, uint32_t seq)
{
    return bpi_kv_len(s->kv, seq);
}

int32_t bp_seq_reset(struct bp_session *s, uint32_t seq, struct bp_error *err)
{
    BP_TRY(check_seq(s, seq, err));
    bpi_kv_truncate(s->kv, seq, 0);
    return BP_OK;
}

int32_t bp_seq_truncate(struct bp_session *s, uint32_t seq, uint32_t n_tok, struct bp_error *err)
{
    BP_TRY(check_seq(s, seq, err));
    if (n_tok > bpi_kv_len(s->kv, seq)) {
        return bpi_fail(err, BP_E_ARG, "engine", NULL,
                        "sequence %u holds %u tokens and cannot be cut to %u", seq,
                        bpi_kv_len(s->kv, seq), n_tok);
    }
    bpi_kv_truncate(s->kv, seq, n_tok);
    return BP_OK;
}

int32_t bp_seq_share(struct bp_session *s, uint32_t dst, uint32_t src, uint32_t n_tok,
                     uint32_t *out_shared, struct bp_error *err)
{
    BP_TRY(check_seq(s, dst, err));
    BP_TRY(check_seq(s, src, err));
    if (out_shared == NULL || dst == src) {
        return bpi_fail(err, BP_E_ARG, "engine", NULL,
                        dst == src ? "a sequence cannot share with itself" : "out_shared is NULL");
    }
    *out_shared = 0;
    if (bpi_kv_len(s->kv, dst) != 0) {
        return bpi_fail(err, BP_E_ARG, "engine", NULL,
                        "sequence %u is not empty; reset it before sharing", dst);
    }
    *out_shared = bpi_kv_share(s->kv, dst, src, n_tok);
    return BP_OK;
}
