/* session.c - sessions on a GPU as a program uses them: several sequences, cut back, shared and grown again, prompts between
 * single tokens. As captured graphs and as single calls they must give the same bits, and the host nearly the same numbers.
 * Then tokens per second for more and more sequences at once.
 * Usage: session MODEL PLUGIN_FOLDER DEVICE ("cuda:0"). Exit: 0 good, 1 not, 2 it could not be run.
 * Not here: numbers against golden values (backplane verify). SPDX-License-Identifier: MIT */
#include "backplane/backplane.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_SEQS = 64, MAX_OUT = 4096 };

struct run {
    struct bp_config *cfg;
    struct bp_model *model;
    struct bp_session *s;
    uint32_t n_vocab, n_out, state;
    float *out; /* (n_out, n_vocab) */
    struct bp_error err;
};

static bool good(struct run *r, int32_t rc, const char *what)
{
    if (rc == BP_OK) return true;
    printf("FAIL %s: %s\n", what, r->err.msg);
    return false;
}

static bool open_run(struct run *r, const char *model, const char *const *sets)
{
    *r = (struct run){.state = 12345, .err = BP_ERROR_INIT};
    if (!good(r, bp_config_create(&r->cfg, &r->err), "config")) return false;
    for (size_t i = 0; sets[i] != NULL; ++i) {
        if (!good(r, bp_config_set(r->cfg, sets[i], &r->err), sets[i])) return false;
    }
    if (!good(r, bp_model_open(model, r->cfg, NULL, &r->model, &r->err), "model")) return false;
    if (!good(r, bp_session_open(r->model, r->cfg, NULL, &r->s, &r->err), "session")) return false;
    r->n_vocab = bp_model_n_vocab(r->model);
    r->out = calloc((size_t)MAX_OUT * r->n_vocab, sizeof *r->out);
    return r->out != NULL;
}

static void close_run(struct run *r)
{
    bp_session_close(r->s);
    bp_model_close(r->model);
    bp_config_destroy(r->cfg);
    free(r->out);
}

static int32_t next_id(struct run *r)
{
    r->state = r->state * 1664525u + 1013904223u;
    return (int32_t)(3 + (r->state >> 8) % (r->n_vocab - 8));
}

/* One step: n[i] tokens for sequence seq[i], decoding where n[i] is 1; the last row of each is kept. */
static bool step(struct run *r, const uint32_t *seq, const uint32_t *n, uint32_t n_items, bool keep)
{
    struct bp_step_item it[MAX_SEQS] = {{.seq = 0}};
    static int32_t ids[MAX_SEQS][64]; /* one thread */
    for (uint32_t i = 0; i < n_items; ++i) {
        for (uint32_t k = 0; k < n[i]; ++k) ids[i][k] = next_id(r);
        it[i] = (struct bp_step_item){.h = BP_HDR(struct bp_step_item, n_logits),
                                      .seq = seq[i],
                                      .flags = n[i] == 1 ? BP_STEP_DECODE : 0,
                                      .ids = ids[i],
                                      .n_ids = n[i],
                                      .n_logits = 1};
    }
    if (!good(r, bp_session_step(r->s, it, n_items, &r->err), "step")) return false;
    for (uint32_t i = 0; i < n_items && keep && r->n_out < MAX_OUT; ++i) {
        const float *v = bp_session_logits(r->s, i, 0);
        memcpy(r->out + (size_t)r->n_out++ * r->n_vocab, v, r->n_vocab * sizeof *v);
    }
    return true;
}

static bool scenario(struct run *r)
{
    const uint32_t seq[5] = {0, 1, 2, 3, 4}, one[5] = {1, 1, 1, 1, 1};
    const uint32_t prompts[3] = {40, 17, 5}, mixed[3] = {1, 1, 33};
    uint32_t shared = 0;
    bool ok = step(r, seq, prompts, 3, true);
    for (int i = 0; i < 60 && ok; ++i) ok = step(r, seq, one, 3, true);
    ok =
        ok && good(r, bp_seq_share(r->s, 3, 0, 71, &shared, &r->err), "share"); /* inside a block */
    for (int i = 0; i < 12 && ok; ++i) ok = step(r, seq, one, 4, true);
    ok = ok && good(r, bp_seq_truncate(r->s, 1, 30, &r->err), "truncate");
    ok = ok && good(r, bp_seq_reset(r->s, 2, &r->err), "reset");
    ok = ok && step(r, seq, mixed, 3, true);
    for (int i = 0; i < 40 && ok; ++i) ok = step(r, seq, one, i % 2 == 0 ? 4 : 2, true);
    for (int i = 0; i < 30 && ok; ++i) ok = step(r, seq + 4, one, 1, true);
    return ok;
}

static bool finite_rows(const struct run *r)
{
    for (size_t i = 0; i < (size_t)r->n_out * r->n_vocab; ++i) {
        if (!isfinite(r->out[i])) return false;
    }
    return r->n_out > 0;
}

/* The mean of the largest differences of the rows, in units of the rows' spread. */
static double distance(const struct run *a, const struct run *b)
{
    double sum = 0.0;
    for (uint32_t row = 0; row < a->n_out; ++row) {
        const float *x = a->out + (size_t)row * a->n_vocab, *y = b->out + (size_t)row * a->n_vocab;
        double worst = 0.0, lo = (double)x[0], hi = lo;
        for (uint32_t i = 0; i < a->n_vocab; ++i) {
            worst = fmax(worst, fabs((double)x[i] - (double)y[i]));
            lo = fmin(lo, (double)x[i]);
            hi = fmax(hi, (double)x[i]);
        }
        sum += worst / (hi - lo);
    }
    return sum / a->n_out;
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double speed(struct run *r, uint32_t n_seqs)
{
    enum { WARM = 3, STEPS = 60 };
    uint32_t seq[MAX_SEQS], one[MAX_SEQS];
    for (uint32_t i = 0; i < n_seqs; ++i) {
        seq[i] = i;
        one[i] = 1;
        if (!good(r, bp_seq_reset(r->s, i, &r->err), "reset")) return NAN;
    }
    double begin = 0.0;
    for (int i = 0; i < WARM + STEPS; ++i) {
        if (i == WARM) begin = seconds();
        if (!step(r, seq, one, n_seqs, false)) return NAN;
    }
    return n_seqs * STEPS / (seconds() - begin);
}

int main(int argc, char **argv)
{
    static char path[4200], device[64];
    if (argc != 4) {
        fprintf(stderr, "usage: session MODEL PLUGIN_FOLDER DEVICE\n");
        return 2;
    }
    snprintf(path, sizeof path, "engine.plugin_path=%s", argv[2]);
    snprintf(device, sizeof device, "engine.device=%s", argv[3]);
#define LIMITS                                                                                     \
    path, "engine.ctx=256", "engine.max_seqs=64", "engine.batch_tokens=256", "engine.slab=64"
    const char *const sets[4][12] = {
        {LIMITS, device, "engine.graph=off", NULL},
        {LIMITS, device, "engine.graph=on", NULL},
        {LIMITS, device, "engine.graph=on", "engine.act=f32", "kv.dtype=f16", NULL},
        {LIMITS, "engine.device=cpu", "engine.act=f32", "kv.dtype=f16", NULL},
    };
    struct run r[4];
    memset(r, 0, sizeof r);
    bool ok = true;
    for (int i = 0; i < 4 && ok; ++i) ok = open_run(&r[i], argv[1], sets[i]) && scenario(&r[i]);
    if (!ok) return 2;
    for (int i = 0; i < 4; ++i) {
        if (!finite_rows(&r[i]))
            ok = false, printf("FAIL run %d has numbers that are not finite\n", i);
    }
    const size_t n = (size_t)r[0].n_out * r[0].n_vocab * sizeof(float);
    const bool same = r[0].n_out == r[1].n_out && memcmp(r[0].out, r[1].out, n) == 0;
    if (!same) ok = false;
    printf("%s %u rows of logits as graphs and as single calls: %s\n", same ? "PASS" : "FAIL",
           r[0].n_out, same ? "the same bits" : "they differ");
    const double d = distance(&r[3], &r[2]);
    if (!(d < 0.02)) ok = false;
    printf("%s f32 with a cache in f16 against the host: rows differ by %.5f of their spread on "
           "average (at most 0.02)\n",
           d < 0.02 ? "PASS" : "FAIL", d);
    for (uint32_t n_seqs = 1; n_seqs <= MAX_SEQS; n_seqs *= 2)
        printf("     %2u sequences: %9.1f tokens/s as single calls, %9.1f as graphs\n", n_seqs,
               speed(&r[0], n_seqs), speed(&r[1], n_seqs));
    for (int i = 0; i < 4; ++i) close_run(&r[i]);
    return ok ? 0 : 1;
}
