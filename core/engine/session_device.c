/* session_device.c - which device a rank runs on, its stream, and the dtype of activations there: `auto` is resolved here,
 * before anything that depends on it is bound, and what became of it is kept with the reason.
 * Not here: choosing providers (session_bind.c). Threads: the session's. SPDX-License-Identifier: MIT */
#include "engine/session_priv.h"
#include <stdio.h>
#include <string.h>

/* ---- device ---- */

int32_t bpi_device_words(const char *text, struct bp_device_problem *p, struct bp_error *err)
{
    *p = (struct bp_device_problem){.h = BP_HDR(struct bp_device_problem, ordinal),
                                    .kind = BP_DEV_HOST};
    if (strcmp(text, "cpu") == 0) return BP_OK;
    int64_t ordinal = 0;
    if (strcmp(text, "auto") == 0 || strcmp(text, "cuda") == 0 ||
        (strncmp(text, "cuda:", 5) == 0 && bpi_parse_i64(text + 5, &ordinal) && ordinal >= 0 &&
         ordinal < 1024)) {
        p->kind = BP_DEV_CUDA;
        p->ordinal = (int32_t)ordinal;
        return BP_OK;
    }
    return bpi_fail(err, BP_E_CONFIG, "engine", "engine.device",
                    "'%s' is no device; write cpu, cuda:N or auto", text);
}

bool bpi_device_is_absent(int32_t rc)
{
    return rc == BP_E_CONFIG || rc == BP_E_ABI || rc == BP_E_DEVICE || rc == BP_E_UNSUPPORTED ||
           rc == BP_DECLINED;
}

/* Is there a plugin for this device, and does the device answer? Binds nothing. */
static int32_t probe(struct bp_session *s, struct bpi_question *q, struct bp_error *err)
{
    struct bp_device seen = {.h = BP_HDR(struct bp_device, name)};
    BP_TRY(bpi_session_ask(s, q, err));
    const struct bp_device_ops *ops = (const struct bp_device_ops *)(const void *)q->ref.vt;
    int32_t rc = ops->props(q->ref.self, &seen, err);
    if (rc == BP_OK)
        snprintf(s->device_why, sizeof(s->device_why), "found by %s", q->cands[q->chosen].provider);
    return rc;
}

/* Did anyone but the reference backend, which is the host only, answer at all? */
static bool any_plugin_asked(const struct bpi_question *q)
{
    for (size_t i = 0; i < q->n_cands; ++i) {
        if (strcmp(q->cands[i].provider, "ref") != 0) return true;
    }
    return false;
}

static void want_device(struct bp_session *s)
{
    s->device = (struct bp_device){.h = BP_HDR(struct bp_device, name),
                                   .kind = s->device_problem.kind,
                                   .ordinal = s->device_problem.ordinal};
}

int32_t bpi_session_find_device(struct bp_session *s, struct bp_error *err)
{
    const char *asked = bpi_config_str(s->config, "engine", "device");
    struct bp_error why = BP_ERROR_INIT;
    struct bpi_question q = {.slot = BPI_SLOT_DEVICE, .layer = -1, .problem = &s->device_problem};
    BP_TRY(bpi_device_words(asked, &s->device_problem, err));
    want_device(s);
    if (strcmp(asked, "auto") != 0) return BP_OK;
    int32_t rc = probe(s, &q, &why);
    if (rc == BP_OK) return BP_OK;
    if (!bpi_device_is_absent(rc)) return bpi_fail(err, rc, "engine", why.where, "%s", why.msg);
    s->device_problem.kind = BP_DEV_HOST;
    want_device(s);
    if (any_plugin_asked(&q))
        snprintf(s->device_why, sizeof(s->device_why), "no GPU is used: %.290s", why.msg);
    else
        snprintf(s->device_why, sizeof(s->device_why), "no plugin for GPUs is installed");
    bpi_logf(&s->log, BPI_LOG_INFO, "engine", "engine.device = auto is the host: %s (%s)",
             any_plugin_asked(&q) ? "no GPU is used" : s->device_why, why.msg);
    return BP_OK;
}

int32_t bpi_session_bind_device(struct bp_session *s, struct bp_error *err)
{
    struct bp_error why = BP_ERROR_INIT;
    struct bpi_question q = {.slot = BPI_SLOT_DEVICE, .layer = -1, .problem = &s->device_problem};
    want_device(s);
    int32_t rc = bpi_session_choose(s, &q, &s->device_op, &why);
    if (rc != BP_OK) { /* auto that found no GPU may leave nobody: then that is what is wrong */
        return bpi_fail(err, rc, "engine", why.where, "%s%s%.300s", s->device_why,
                        s->device_why[0] != '\0' ? "; " : "", why.msg);
    }
    const struct bp_device_ops *ops = (const struct bp_device_ops *)(const void *)s->device_op->vt;
    void *self = s->device_op->self[BPI_SLOT_INDEX(bp_device_ops, props)];
    rc = ops->props(self, &s->device, &why);
    if (rc != BP_OK) { /* asked for and not there: a mistake in the settings */
        return bpi_fail(err, rc == BP_E_NOMEM ? rc : BP_E_CONFIG, "engine", "engine.device",
                        "engine.device = %s cannot be used, says %s: %s",
                        bpi_config_str(s->config, "engine", "device"), s->device_op->provider,
                        why.msg[0] != '\0' ? why.msg : "no reason given");
    }
    return bpi_decisions_device(s->decisions, &s->device,
                                bpi_config_str(s->config, "engine", "device"), s->device_why, err);
}

int32_t bpi_session_create_stream(struct bp_session *s, struct bp_error *err)
{
    if (s->device.kind == BP_DEV_HOST) return BP_OK; /* there a stream is NULL */
    return BPI_RUN(s->device_op, -1, bp_device_ops, stream_create, &s->stream);
}

/* ---- dtype of activations ---- */

static const struct {
    const char *name;
    uint32_t dtype;
} dtypes[] = {{"f32", BP_DT_F32}, {"bf16", BP_DT_BF16}, {"f16", BP_DT_F16}};

const char *bp_session_act_dtype(const struct bp_session *s)
{
    for (size_t i = 0; i < BPI_ARRAY_LEN(dtypes); ++i) {
        if (dtypes[i].dtype == s->act) return dtypes[i].name;
    }
    return "";
}

/* A refusal for the dtype of activations, as opposed to the cache's. */
static const struct bp_reason *act_refusal(const struct bpi_candidate *c)
{
    for (uint32_t i = 0; i < c->verdict.n_reasons && i < BPI_MAX_REASONS; ++i) {
        const struct bp_reason *r = &c->reasons[i];
        if (r->code == BP_R_DTYPE && r->critical != 0 &&
            (strcmp(r->field, "act_dtype") == 0 || strcmp(r->field, "x_dtype") == 0 ||
             strcmp(r->field, "y_dtype") == 0))
            return r;
    }
    return NULL;
}

void bpi_session_note_carried(struct bp_session *s, const struct bpi_question *q)
{
    const struct bp_reason *r = NULL;
    if (s->act_why[0] != '\0' || q->cands[q->chosen].on_host == 0) return;
    for (size_t i = 0; i < q->n_cands && r == NULL; ++i) {
        if (q->cands[i].verdict.level != BP_V_NO) continue;
        r = act_refusal(&q->cands[i]);
        if (r == NULL) continue;
        struct bpi_buf b = {0};
        bpi_loader_format_reason(r, &b);
        snprintf(s->act_why, sizeof(s->act_why),
                 "with %s slot %s, layer %d would compute on the host: %s: %s",
                 bp_session_act_dtype(s), bpi_slot_name(q->slot), q->layer, q->cands[i].provider,
                 b.data != NULL ? b.data : "");
        bpi_buf_free(&b);
    }
}

/* What one attempt to bind left behind. */
static int32_t unbind(struct bp_session *s, struct bp_error *err)
{
    s->n_bound = s->n_moe = 0;
    s->weight_bytes = 0;
    memset(s->layers, 0, s->n_layer * sizeof(*s->layers));
    memset(&s->head, 0, sizeof(s->head));
    memset(s->dense, 0, sizeof(s->dense));
    s->rms_f32 = s->coll = s->device_op = NULL;
    bpi_free(s->choices);
    s->choices = NULL;
    s->n_choices = 0;
    bp_decisions_close(s->decisions);
    s->decisions = NULL;
    return bpi_decisions_create(&s->decisions, err);
}

static int32_t bind_with(struct bp_session *s, uint32_t act, bool quiet, struct bp_error *err)
{
    s->act = act;
    s->quiet = quiet;
    BP_TRY(unbind(s, err));
    int32_t rc = bpi_session_bind_all(s, err);
    s->quiet = false;
    return rc;
}

/* bf16 on a device when whoever computes there takes it everywhere. */
static int32_t resolve_act(struct bp_session *s, uint32_t *act, struct bp_error *err)
{
    const char *asked = bpi_config_str(s->config, "engine", "act");
    struct bp_error why = BP_ERROR_INIT;
    *act = BP_DT_F32;
    for (size_t i = 0; i < BPI_ARRAY_LEN(dtypes); ++i) {
        if (strcmp(asked, dtypes[i].name) == 0) *act = dtypes[i].dtype;
    }
    s->act_why[0] = '\0';
    if (strcmp(asked, "auto") != 0) return BP_OK;
    if (s->lender != NULL) {
        *act = s->lender->act;
        snprintf(s->act_why, sizeof(s->act_why), "as the tensors that it gets from the other side");
        return BP_OK;
    }
    if (s->device_problem.kind == BP_DEV_HOST) {
        snprintf(s->act_why, sizeof(s->act_why), "the host computes in f32");
        return BP_OK;
    }
    int32_t rc = bind_with(s, BP_DT_BF16, true, &why);
    if (rc == BP_OK && s->act_why[0] == '\0') {
        *act = BP_DT_BF16;
        return BP_OK;
    }
    if (rc == BP_OK) return BP_OK;
    if (rc != BP_E_CONFIG && rc != BP_E_ABI)
        return bpi_fail(err, rc, "engine", why.where, "%s", why.msg);
    snprintf(s->act_why, sizeof(s->act_why), "bf16 is not served: %.290s", why.msg);
    return BP_OK;
}

int32_t bpi_session_bind(struct bp_session *s, struct bp_error *err)
{
    uint32_t act;
    BP_TRY(bpi_session_bind_alloc(s, err));
    BP_TRY(bpi_session_find_device(s, err));
    BP_TRY(resolve_act(s, &act, err));
    char why[sizeof(s->act_why)];
    memcpy(why, s->act_why, sizeof(why)); /* binding for good finds its own reasons */
    int32_t rc = bind_with(s, act, false, err);
    memcpy(s->act_why, why, sizeof(why));
    if (s->decisions == NULL) return rc;
    struct bp_error ignored = BP_ERROR_INIT;
    const char *asked = bpi_config_str(s->config, "engine", "act");
    int32_t noted =
        bpi_decisions_act(s->decisions, asked, rc == BP_OK ? bp_session_act_dtype(s) : "",
                          s->act_why, rc == BP_OK ? err : &ignored);
    if (rc != BP_OK) return rc;
    if (strcmp(asked, "auto") == 0)
        bpi_logf(&s->log, BPI_LOG_INFO, "engine", "engine.device = %s, engine.act = %s%s%s",
                 s->device.name, bp_session_act_dtype(s), s->act_why[0] != '\0' ? "; " : "",
                 s->act_why);
    return noted;
}
