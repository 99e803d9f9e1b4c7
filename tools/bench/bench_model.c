/* bench_model.c - steps of a session by the clock: what a caller waits for, the host's part included.
 * Bytes of a decode step: all weights but the embedding table once, of experts as many as the tokens are expected to
 * choose if they choose evenly; the cache is not counted. Operations: two for each number that meets a token.
 * SPDX-License-Identifier: MIT */
#include "bench_priv.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- what a step costs ---- */

void bench_cost_add(struct bench_cost *c, const char *name, uint64_t n_bytes, uint64_t n_elems)
{
    if (strncmp(name, "token_embd.", 11) == 0) return;
    if (strncmp(name, "output.", 7) == 0) {
        c->head_bytes += (double)n_bytes;
        c->head_elems += (double)n_elems;
    } else if (strstr(name, "_exps.") != NULL) {
        c->expert_bytes += (double)n_bytes;
        c->expert_elems += (double)n_elems;
    } else {
        c->bytes += (double)n_bytes;
        c->elems += (double)n_elems;
    }
}

void bench_cost_of(const struct bench_cost *c, double n_tok, double n_head, double *bytes,
                   double *flops)
{
    const double part = c->experts > 0 ? (double)c->used / c->experts : 0.0;
    *bytes = c->bytes + c->expert_bytes * (1.0 - pow(1.0 - part, n_tok)) +
             (n_head > 0.0 ? c->head_bytes : 0.0);
    *flops = 2.0 * (n_tok * (c->elems + c->expert_elems * part) + n_head * c->head_elems);
}

/* Next-token layers are in some files and not run. */
static bool is_trunk(const char *name, uint64_t n_layer)
{
    if (strncmp(name, "blk.", 4) != 0) return true;
    return strtoull(name + 4, NULL, 10) < n_layer;
}

int32_t bench_cost_file(const char *path, uint32_t n_layer, struct bench_cost *c,
                        struct bp_error *err)
{
    struct bp_file *f = NULL;
    struct bp_file_info info = {.h = BP_HDR(struct bp_file_info, arch)};
    struct bp_file_tensor t = {.h = BP_HDR(struct bp_file_tensor, reserved)};
    char key[128];
    uint64_t used = 0, experts = 0;
    BP_TRY(bp_file_open(path, &f, err));
    bp_file_info(f, &info);
    struct bp_error ignored = BP_ERROR_INIT; /* a model without experts has none of these */
    snprintf(key, sizeof key, "%s.expert_used_count", info.arch);
    (void)bp_file_u64(f, key, &used, &ignored);
    snprintf(key, sizeof key, "%s.expert_count", info.arch);
    (void)bp_file_u64(f, key, &experts, &ignored);
    *c = (struct bench_cost){.used = (uint32_t)used, .experts = (uint32_t)experts};
    bool head = false;
    uint64_t embd_bytes = 0, embd_elems = 0;
    for (uint64_t i = 0; bp_file_tensor(f, i, &t) == BP_OK; ++i) {
        const uint64_t n =
            (uint64_t)t.ne[0] * (uint64_t)t.ne[1] * (uint64_t)t.ne[2] * (uint64_t)t.ne[3];
        if (!is_trunk(t.name, n_layer)) continue;
        bench_cost_add(c, t.name, t.n_bytes, n);
        head |= strcmp(t.name, "output.weight") == 0;
        if (strcmp(t.name, "token_embd.weight") == 0) embd_bytes = t.n_bytes, embd_elems = n;
    }
    if (!head) { /* then the embedding table is the head too */
        c->head_bytes = (double)embd_bytes;
        c->head_elems = (double)embd_elems;
    }
    bp_file_close(f);
    return BP_OK;
}

/* ---- steps ---- */

static double now_us(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int by_size(const void *x, const void *y)
{
    const double a = *(const double *)x, c = *(const double *)y;
    return (a > c) - (a < c);
}

static double median(double *v, uint32_t n)
{
    qsort(v, n, sizeof *v, by_size);
    return n % 2 == 1 ? v[n / 2] : 0.5 * (v[n / 2 - 1] + v[n / 2]);
}

/* A prompt of one sequence, in as few steps as the session allows; no logits. */
static int32_t feed(struct bp_session *s, uint32_t seq, const int32_t *ids, uint32_t n,
                    struct bp_error *err)
{
    const uint32_t most = bp_session_batch_tokens(s);
    BP_TRY(bp_seq_reset(s, seq, err));
    for (uint32_t at = 0; at < n; at += most) {
        const struct bp_step_item it = {.h = BP_HDR(struct bp_step_item, n_logits),
                                        .seq = seq,
                                        .ids = ids + at,
                                        .n_ids = n - at < most ? n - at : most};
        BP_TRY(bp_session_step(s, &it, 1, err));
    }
    return BP_OK;
}

static int32_t prefill(struct bp_session *s, const struct bench_run *r, const int32_t *ids,
                       struct bench_times *out, struct bp_error *err)
{
    enum { MOST = 5 };
    double us[MOST];
    const double begin = now_us();
    uint32_t n = 0;
    BP_TRY(feed(s, 0, ids, r->prefill, err)); /* the first loads code and wakes the device */
    while (n < MOST && (n == 0 || now_us() - begin < r->seconds * 1e6)) {
        const double start = now_us();
        if (r->stopped != NULL && r->stopped())
            return bench_fail(err, BP_E_ABORTED, "prefill", "stopped on request");
        BP_TRY(feed(s, 0, ids, r->prefill, err));
        us[n++] = now_us() - start;
    }
    out->prefill_samples = n;
    out->prefill_us = median(us, n);
    for (uint32_t q = 1; q < r->seqs; ++q) BP_TRY(feed(s, q, ids, r->prefill, err));
    return BP_OK;
}

static int32_t decode(struct bp_session *s, const struct bench_run *r, const int32_t *ids,
                      uint32_t n_logits, double *us, uint32_t *n_us, struct bp_error *err)
{
    enum { WARM = 3 };
    struct bp_step_item *items = calloc(r->seqs, sizeof *items);
    double *all = calloc(r->decode, sizeof *all);
    int32_t rc = BP_OK;
    uint32_t n = 0;
    if (items == NULL || all == NULL) rc = bench_fail(err, BP_E_NOMEM, "decode", "out of memory");
    const double begin = now_us();
    for (uint32_t i = 0; i < WARM + r->decode && rc == BP_OK; ++i) {
        if (n >= 3 && now_us() - begin > r->seconds * 1e6) break;
        for (uint32_t q = 0; q < r->seqs; ++q)
            items[q] = (struct bp_step_item){.h = BP_HDR(struct bp_step_item, n_logits),
                                             .seq = q,
                                             .flags = BP_STEP_DECODE,
                                             .ids = ids + (i * r->seqs + q) % r->n_ids,
                                             .n_ids = 1,
                                             .n_logits = n_logits};
        if (r->stopped != NULL && r->stopped())
            rc = bench_fail(err, BP_E_ABORTED, "decode", "stopped on request");
        const double start = now_us();
        if (rc == BP_OK) rc = bp_session_step(s, items, r->seqs, err);
        if (i >= WARM) all[n++] = now_us() - start;
    }
    if (rc == BP_OK) *us = median(all, n);
    *n_us = n;
    free(all);
    free(items);
    return rc;
}

int32_t bench_run_session(struct bp_session *s, uint32_t n_vocab, struct bench_run *r,
                          struct bench_times *out, struct bp_error *err)
{
    uint64_t seed = 1;
    *out = (struct bench_times){0};
    r->n_ids = r->prefill > 64 ? r->prefill : 64;
    int32_t *ids = malloc(r->n_ids * sizeof *ids);
    if (ids == NULL) return bench_fail(err, BP_E_NOMEM, "model", "out of memory");
    for (uint32_t i = 0; i < r->n_ids; ++i) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        ids[i] = (int32_t)((seed >> 33) % n_vocab);
    }
    int32_t rc = prefill(s, r, ids, out, err);
    if (rc == BP_OK) rc = decode(s, r, ids, 1, &out->decode_us, &out->decode_samples, err);
    if (rc == BP_OK) rc = decode(s, r, ids, 0, &out->layers_us, &out->layers_samples, err);
    free(ids);
    return rc;
}
