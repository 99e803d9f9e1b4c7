/* step.c - one step: check the items, reserve cache, run all layers, read logits, guard against NaN.
 * A step that fails leaves every sequence as it was, except that a numeric failure keeps the tokens and marks the
 * sequence failed. SPDX-License-Identifier: MIT */
#include "engine/session_priv.h"
#include "gguf/gguf.h"
#include <math.h>
#include <string.h>

/* ---- checks and cache ---- */

/* What the item's struct itself must be, before any of its fields counts. */
static int32_t check_struct(const struct bp_step_item *it, uint32_t i, struct bp_error *err)
{
    if (it->h.size < BP_END(struct bp_step_item, n_logits)) {
        return bpi_fail(err, BP_E_ARG, "engine", NULL, "item %u has h.size %u; fill h with BP_HDR",
                        i, it->h.size);
    }
    for (const struct bp_ext *e = it->h.next; e != NULL; e = e->next) {
        if ((e->flags & BP_EXT_CRITICAL) == 0) continue;
        return bpi_fail(err, BP_DECLINED, "engine", NULL,
                        "item %u carries a critical extension that this version does not know", i);
    }
    if ((it->flags & ~(uint32_t)BP_STEP_DECODE) != 0) {
        return bpi_fail(err, BP_E_ARG, "engine", NULL, "item %u has unknown flags %#x", i,
                        it->flags);
    }
    if (it->ids == NULL && it->n_ids > 0) {
        return bpi_fail(err, BP_E_ARG, "engine", NULL, "item %u has %u tokens but no ids", i,
                        it->n_ids);
    }
    return BP_OK;
}

static int32_t check_item(const struct bp_session *s, const struct bp_step_item *items, uint32_t i,
                          struct bp_error *err)
{
    const struct bp_step_item *it = &items[i];
    BP_TRY(check_struct(it, i, err));
    if (it->seq >= s->max_seqs) {
        return bpi_fail(err, BP_E_ARG, "engine", NULL,
                        "item %u names sequence %u; this session has 0 .. %u", i, it->seq,
                        s->max_seqs - 1);
    }
    for (uint32_t k = 0; k < i; ++k) {
        if (items[k].seq == it->seq) {
            return bpi_fail(err, BP_E_ARG, "engine", NULL, "sequence %u appears twice in one step",
                            it->seq);
        }
    }
    if (it->n_logits > it->n_ids) {
        return bpi_fail(err, BP_E_ARG, "engine", NULL,
                        "item %u asks for %u rows of logits but has %u tokens", i, it->n_logits,
                        it->n_ids);
    }
    uint32_t len = bpi_kv_len(s->kv, it->seq);
    if (it->n_ids >
        s->ctx - len) { /* before the ids are looked at: a wild count must not be followed */
        return bpi_fail(err, BP_E_LIMIT, "engine", "engine.ctx",
                        "sequence %u holds %u tokens and cannot take %u more: its context is %u",
                        it->seq, len, it->n_ids, s->ctx);
    }
    if (bpi_kv_failed(s->kv, it->seq)) {
        return bpi_fail(
            err, BP_E_ARG, "engine", NULL,
            "sequence %u failed with NaN or infinity in an earlier step; reset it first", it->seq);
    }
    for (uint32_t j = 0; j < it->n_ids; ++j) {
        if (it->ids[j] < 0 || (uint32_t)it->ids[j] >= s->hp->n_vocab) {
            return bpi_fail(err, BP_E_ARG, "engine", NULL,
                            "token %d at place %u is outside the vocabulary of %u", it->ids[j], j,
                            s->hp->n_vocab);
        }
    }
    return BP_OK;
}

static int32_t check_items(const struct bp_session *s, const struct bp_step_item *items,
                           uint32_t n_items, struct bp_error *err)
{
    uint64_t n_tok = 0, n_logits = 0, blocks = 0;
    if (items == NULL && n_items > 0)
        return bpi_fail(err, BP_E_ARG, "engine", NULL, "there are no items");
    if (n_items > s->max_seqs) {
        return bpi_fail(err, BP_E_ARG, "engine", NULL, "%u items, but engine.max_seqs is %u",
                        n_items, s->max_seqs);
    }
    for (uint32_t i = 0; i < n_items; ++i) {
        BP_TRY(check_item(s, items, i, err));
        n_tok += items[i].n_ids;
        n_logits += items[i].n_logits;
        blocks += bpi_kv_need(s->kv, items[i].seq, items[i].n_ids);
    }
    if (n_tok > s->batch_tok) {
        return bpi_fail(err, BP_E_ARG, "engine", "engine.batch_tokens",
                        "%llu tokens in one step, at most %u fit; cut the prompt into chunks",
                        (unsigned long long)n_tok, s->batch_tok);
    }
    if (n_logits > s->max_logits) {
        return bpi_fail(err, BP_E_ARG, "engine", NULL,
                        "%llu rows of logits in one step, at most %u fit",
                        (unsigned long long)n_logits, s->max_logits);
    }
    if (blocks > bpi_kv_free_blocks(s->kv)) {
        return bpi_fail(err, BP_E_LIMIT, "engine", "engine.max_seqs",
                        "the step needs %llu cache blocks, %u are free; reset a sequence",
                        (unsigned long long)blocks, bpi_kv_free_blocks(s->kv));
    }
    return BP_OK;
}

/* A shared last block is copied before its new owner writes into it. */
static int32_t copy_block(struct bp_session *s, int32_t from, int32_t to, struct bp_error *err)
{
    for (uint32_t il = 0; il < s->n_layer; ++il) {
        const struct bpi_layer *l = &s->layers[il];
        uint64_t n = l->kv_block_bytes, ni = l->index_block_bytes;
        BP_TRY(bpi_session_copy(s, l->pool + (uint64_t)to * n, l->pool + (uint64_t)from * n, n,
                                BP_COPY_D2D, err));
        if (!l->has_index) continue;
        BP_TRY(bpi_session_copy(s, l->index_pool + (uint64_t)to * ni,
                                l->index_pool + (uint64_t)from * ni, ni, BP_COPY_D2D, err));
    }
    return BP_OK;
}

static void take_back(struct bp_session *s, const struct bp_step_item *items, uint32_t n_items)
{
    for (uint32_t i = 0; i < n_items; ++i) bpi_kv_truncate(s->kv, items[i].seq, s->start[i]);
}

static int32_t reserve(struct bp_session *s, const struct bp_step_item *items, uint32_t n_items,
                       struct bp_error *err)
{
    for (uint32_t i = 0; i < n_items; ++i) s->start[i] = bpi_kv_len(s->kv, items[i].seq);
    for (uint32_t i = 0; i < n_items; ++i) {
        int32_t from, to;
        int32_t rc = bpi_kv_append(s->kv, items[i].seq, items[i].n_ids, &from, &to);
        if (rc != BP_OK)
            return bpi_fail(err, rc, "engine", NULL,
                            "cache blocks ran out in spite of the check before");
        if (from >= 0) BP_TRY(copy_block(s, from, to, err));
    }
    return BP_OK;
}

/* ---- forward ---- */

static int32_t embed(struct bp_session *s, struct bp_error *err)
{
    const struct bpi_bound *op = s->dense[BP_DENSE_OP_EMBED];
    struct bp_launch launch = bpi_step_launch(s, op, -1);
    struct bp_dense_embed_args a = {
        .h = BP_HDR(struct bp_dense_embed_args, y),
        .table = s->embed,
        .ids = bpi_t1((void *)(uintptr_t)s->ids_dev, BP_DT_I32, s->step.n_tok),
        .y = bpi_t2(s->x, BP_DT_F32, s->step.n_tok, s->hp->n_embd)};
    BP_TRY(BPI_OP(s, op, bp_dense_ops, embed, BP_DENSE_OP_EMBED, &launch, &a));
    return bpi_tap_emit(s, BPI_TAP_EMBD, -1, &a.y, err);
}

static int32_t head(struct bp_session *s, struct bp_error *err)
{
    const struct bpi_step *st = &s->step;
    uint64_t row = (uint64_t)s->hp->n_embd * sizeof(float);
    if (bpi_tap_on(s, BPI_TAP_OUTPUT_NORM, -1)) {
        struct bp_tensor x = bpi_t2(s->x, BP_DT_F32, st->n_tok, s->hp->n_embd), y = x;
        y.data = s->x_add; /* free by now */
        struct bpi_bound *const dense[BPI_N_DENSE] = {[BP_DENSE_OP_RMS] = s->rms_f32};
        BP_TRY(bpi_dense_rms(s, dense, -1, &x, s->output_norm, &y, err));
        BP_TRY(bpi_tap_emit(s, BPI_TAP_OUTPUT_NORM, -1, &y, err));
    }
    for (uint32_t i = 0; i < st->n_logits;) { /* runs of neighbouring rows in one copy */
        uint32_t n = 1;
        while (i + n < st->n_logits && st->logit_row[i + n] == st->logit_row[i] + n) ++n;
        BP_TRY(bpi_session_copy(s, (char *)s->x_rows + i * row,
                                (char *)s->x + st->logit_row[i] * row, n * row, BP_COPY_D2D, err));
        i += n;
    }
    struct bp_tensor x = bpi_t2(s->x_rows, BP_DT_F32, st->n_logits, s->hp->n_embd);
    struct bp_tensor y = bpi_t2(s->logits, BP_DT_F32, st->n_logits, s->hp->n_vocab);
    return bpi_site_run(s, &s->head, s->dense, -1, &x, s->output_norm, &y, NULL, err);
}

static uint64_t guard_elems(const struct bp_session *s)
{
    return (uint64_t)s->n_moe * s->step.n_tok * s->hp->n_expert_used;
}

/* One wait a step: logits and what the guard looks at come over together. */
int32_t bpi_step_finish(struct bp_session *s, struct bp_error *err)
{
    const struct bpi_step *st = &s->step;
    struct bp_tensor y = bpi_t2(s->logits, BP_DT_F32, st->n_logits, s->hp->n_vocab);
    if (s->logits_host != s->logits) {
        BP_TRY(bpi_session_copy(s, s->logits_host, s->logits,
                                (uint64_t)st->n_logits * s->hp->n_vocab * sizeof(float),
                                BP_COPY_D2H, err));
    }
    if (s->guard_host != NULL)
        BP_TRY(bpi_session_copy(s, s->guard_host, s->moe_w, guard_elems(s) * sizeof(float),
                                BP_COPY_D2H, err));
    BP_TRY(bpi_session_sync(s, err));
    return bpi_tap_emit(s, BPI_TAP_LOGITS, -1, &y, err);
}

int32_t bpi_step_interrupted(struct bp_session *s, uint32_t layer, struct bp_error *err)
{
    if (s->capturing || !atomic_load_explicit(&s->interrupted, memory_order_relaxed)) return BP_OK;
    atomic_store(&s->interrupted, 0);
    return bpi_fail(err, BP_E_ABORTED, "engine", NULL,
                    "the step was stopped on request at layer %u", layer);
}

int32_t bpi_step_compute(struct bp_session *s, struct bp_error *err)
{
    BP_TRY(embed(s, err));
    for (uint32_t il = 0; il < s->n_layer; ++il) {
        BP_TRY(bpi_step_interrupted(s, il, err));
        BP_TRY(bpi_step_attention(s, il, err));
        BP_TRY(bpi_step_interrupted(s, il, err));
        BP_TRY(bpi_step_ffn(s, il, err));
    }
    return head(s, err);
}

int32_t bpi_step_forward(struct bp_session *s, struct bp_error *err)
{
    BP_TRY(bpi_step_compute(s, err));
    return bpi_step_finish(s, err);
}

/* ---- NaN guard ---- */

static bool row_is_finite(const float *v, uint64_t n)
{
    /* v * 0 is 0 for finite v and NaN otherwise; sums keep the loop free of branches, several of them from waiting for each
     * other. */
    enum { LANES = 16 };
    float lane[LANES] = {0.0f}, sum = 0.0f;
    const uint64_t whole = n - n % LANES;
    for (uint64_t i = 0; i < whole; i += LANES) {
        for (uint64_t k = 0; k < LANES; ++k) lane[k] += v[i + k] * 0.0f;
    }
    for (uint64_t i = whole; i < n; ++i) sum += v[i] * 0.0f;
    for (uint64_t k = 0; k < LANES; ++k) sum += lane[k];
    return sum == 0.0f;
}

/* Infinity and NaN have all bits of the exponent set. */
static bool halves_are_finite(const uint16_t *v, uint64_t n, uint32_t exponent)
{
    bool good = true;
    for (uint64_t i = 0; i < n; ++i) good = good && (v[i] & exponent) != exponent;
    return good;
}

void bpi_step_guard(struct bp_session *s, const struct bp_tensor *t)
{
    if (s->device.kind != BP_DEV_HOST) return;
    int64_t width = t->ndim > 2 ? t->dim[1] * t->dim[2] : t->dim[1];
    for (int64_t r = 0; r < t->dim[0]; ++r) {
        const int64_t at = r * t->stride[0];
        const bool good = t->dtype == BP_DT_F32
                              ? row_is_finite((const float *)t->data + at, (uint64_t)width)
                              : halves_are_finite((const uint16_t *)t->data + at, (uint64_t)width,
                                                  t->dtype == BP_DT_F16 ? 0x7c00u : 0x7f80u);
        if (!good) s->bad_row[r] = 1;
    }
}

/* A router that meets NaN or infinity chooses nobody and gives NaN for weights, which then reach nothing: they are looked at
 * in place of its logits where those cannot be read. */
static void guard_weights(struct bp_session *s)
{
    const uint64_t n = guard_elems(s), k = s->hp->n_expert_used;
    for (uint64_t at = 0; at < n; at += k) {
        if (!row_is_finite(s->guard_host + at, k)) s->bad_row[at / k % s->step.n_tok] = 1;
    }
}

/* Each row of logits has a row of the batch of its own. */
static void check_logits(void *arg, uint64_t begin, uint64_t end)
{
    struct bp_session *s = arg;
    const uint64_t n = s->hp->n_vocab;
    for (uint64_t i = begin; i < end; ++i) {
        if (!row_is_finite(s->logits_host + i * n, n)) s->bad_row[s->step.logit_row[i]] = 1;
    }
}

/* Marks rows whose residual or logits are not finite, besides those that bpi_step_guard() marked; true when there are
 * some. On a device only logits and the router's weights are looked at: reading the residual back would cost a copy per
 * step, and what is not finite there reaches the logits. NaN that only the index meets is not seen there. */
static bool find_bad_rows(struct bp_session *s)
{
    const struct bpi_step *st = &s->step;
    struct bp_tensor x = bpi_t2(s->x, BP_DT_F32, st->n_tok, s->hp->n_embd);
    bpi_step_guard(s, &x);
    if (s->guard_host != NULL) guard_weights(s);
    const bool many = st->n_logits >= 8; /* worth waking the threads */
    bpi_pool_run(many ? s->pool : NULL, st->n_logits, 1, check_logits, s);
    return memchr(s->bad_row, 1, st->n_tok) != NULL;
}

/* On the host weights may still be read from the mapped files; a device has copies of its own. */
static int32_t check_files(const struct bp_session *s, struct bp_error *err)
{
    if (s->device.kind != BP_DEV_HOST && s->carry == NULL) return BP_OK;
    return bpi_gguf_check_files(bpi_model_gguf(s->model->m), err);
}

/* A device that is lost takes everything on it along: no later step may look as if it worked. */
static int32_t check_device(const struct bp_session *s, struct bp_error *err)
{
    if (s->lost.code == BP_OK) return BP_OK;
    return bpi_fail(err, BP_E_DEVICE_LOST, "engine", s->lost.where,
                    "the device was lost in an earlier step, so this session takes no more: %.380s",
                    s->lost.msg);
}

/* On a device a fault comes to light at some later call, so that the one that tells it is not the one to blame. */
static void tell_lost(struct bp_session *s, struct bp_error *err)
{
    const struct bp_error told = *err;
    bpi_error_clear(err);
    bpi_fail(err, BP_E_DEVICE_LOST, told.domain, told.where, "%.370s%s", told.msg,
             s->device.kind == BP_DEV_CUDA
                 ? "; an op before it may be to blame: CUDA_LAUNCH_BLOCKING=1 in the environment "
                   "and engine.graph = off make the error name it"
                 : "");
    err->native = told.native;
    s->lost = told;
}

/* Nothing may still read the staging when the next step fills it. */
static void after_failure(struct bp_session *s, int32_t rc, struct bp_error *err)
{
    struct bp_error ignored = BP_ERROR_INIT;
    if (rc != BP_E_DEVICE_LOST) {
        if (s->stream != NULL) (void)bpi_session_sync(s, &ignored);
    } else if (s->lost.code == BP_OK) {
        if (err != NULL) tell_lost(s, err);
        s->lost.code = rc;
    }
}

/* BP_E_NUMERIC once the sequences that met it are marked. A device that is lost and an interrupt in the search for the op
 * come before that: what they return is what the step has come to. */
static int32_t numeric_failure(struct bp_session *s, const struct bp_step_item *items,
                               struct bp_error *err)
{
    const struct bpi_step *st = &s->step;
    struct bp_error why = BP_ERROR_INIT;
    char where[96];
    const int32_t rc = bpi_tap_find_nonfinite(s, s->bad_row, where, sizeof(where), &why);
    if (rc == BP_E_DEVICE_LOST || rc == BP_E_ABORTED) {
        if (err != NULL) *err = why;
        return rc;
    }
    if (rc != BP_OK) after_failure(s, rc, &why);
    uint32_t first = 0;
    while (!s->bad_row[first]) ++first;
    for (uint32_t r = 0; r < st->n_tok; ++r) {
        if (s->bad_row[r]) bpi_kv_mark_failed(s->kv, items[st->row_item[r]].seq);
    }
    return bpi_fail(
        err, BP_E_NUMERIC, "engine", where,
        "NaN or infinity first appeared in %s, for sequence %u at position %u; the "
        "sequence was stopped and its cache will not be reused%s%s%.200s",
        where, items[st->row_item[first]].seq, st->row_pos[first],
        s->act == BP_DT_F16 ? "; f16 holds nothing above 65504, so try engine.act = bf16" : "",
        rc != BP_OK ? "; the op was not found, because the search for it failed: " : "",
        rc != BP_OK ? why.msg : "");
}

/* Until the step is known to be good its tokens can be taken back. */
int32_t bpi_step_open(struct bp_session *s, const struct bp_step_item *items, uint32_t n_items,
                      struct bp_error *err)
{
    s->step.n_items = s->step.n_logits = 0;
    BP_TRY(check_device(s, err));
    BP_TRY(check_items(s, items, n_items, err));
    int32_t rc = reserve(s, items, n_items, err);
    if (rc == BP_OK) rc = bpi_step_build(s, items, n_items, err);
    if (rc == BP_OK) return BP_OK;
    s->step.n_items = s->step.n_logits = 0;
    take_back(s, items, n_items);
    after_failure(s, rc, err);
    return rc;
}

int32_t bp_session_step(struct bp_session *s, const struct bp_step_item *items, uint32_t n_items,
                        struct bp_error *err)
{
    int32_t rc;
    BP_TRY(bpi_step_open(s, items, n_items, err));
    if (s->step.n_tok == 0) return BP_OK;
    memset(s->bad_row, 0, s->step.n_tok);
    BP_TRY_GOTO(rc, check_files(s, err), fail);
    BP_TRY_GOTO(rc, bpi_step_run(s, err), fail);
    BP_TRY_GOTO(rc, check_files(s, err), fail);
    if (!find_bad_rows(s)) return BP_OK;
    rc = numeric_failure(s, items, err);
    if (rc == BP_E_NUMERIC) return rc;
fail:
    s->step.n_items = s->step.n_logits = 0;
    take_back(s, items, n_items);
    after_failure(s, rc, err);
    return rc;
}

const float *bp_session_logits(const struct bp_session *s, uint32_t item, uint32_t row)
{
    const struct bpi_step *st = &s->step;
    if (item >= st->n_items || row >= st->logit_count[item]) return NULL;
    return s->logits_host + (uint64_t)(st->logit_first[item] + row) * s->hp->n_vocab;
}
