/* bench_models.c - the rows of `backplane bench` for whole models: of a file, or of random weights in a known shape.
 * Of a shape three models are measured, which differ by one dense or some other layers, so that each kind of layer has its
 * own row; the whole model is then an estimate, and called so. SPDX-License-Identifier: MIT */
#include "bench_cli.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static int32_t emit(struct bench *b, struct bench_print *p, const char *op, const char *what,
                    double us, uint32_t samples, double bytes, double flops)
{
    struct bench_row row;
    (void)bench_begin(b, &row, op, "%s", what);
    row.us = us > 0.0 ? us : NAN; /* a difference below what the clock tells */
    row.us_min = row.us_max = NAN;
    row.samples = samples;
    row.calls = 1;
    row.bytes = bytes;
    row.flops = flops;
    if (isnan(row.us)) {
        snprintf(row.note, sizeof row.note, "too short to tell from the rest of a step");
    } else {
        bench_rates(b, &row);
    }
    return bench_print_row(p, &row);
}

/* Steps of the prompt are as long as the session allows. */
static int32_t emit_times(struct bench *b, struct bench_print *p, const struct bench_times *t,
                          const struct bench_run *r, const struct bench_cost *cost, uint32_t batch,
                          const char *name)
{
    char what[96];
    double bytes, flops, all = 0.0, sum = 0.0;
    for (uint32_t at = 0; at < r->prefill; at += batch) {
        bench_cost_of(cost, r->prefill - at < batch ? r->prefill - at : batch, 0, &bytes, &flops);
        all += bytes;
        sum += flops;
    }
    snprintf(what, sizeof what, "%s, %u tokens", name, r->prefill);
    BP_TRY(emit(b, p, "model.prefill", what, t->prefill_us, t->prefill_samples, all, sum));
    snprintf(what, sizeof what, "%s, %u sequence%s at %u tokens", name, r->seqs,
             r->seqs == 1 ? "" : "s", r->prefill);
    bench_cost_of(cost, r->seqs, r->seqs, &bytes, &flops);
    BP_TRY(emit(b, p, "model.decode", what, t->decode_us, t->decode_samples, bytes, flops));
    bench_cost_of(cost, r->seqs, 0, &all, &sum);
    BP_TRY(emit(b, p, "model.layers", what, t->layers_us, t->layers_samples, all, sum));
    return emit(b, p, "model.head", what, t->decode_us - t->layers_us, t->decode_samples,
                bytes - all, flops - sum);
}

static json_t *speeds_json(const struct bench_times *t, const struct bench_run *r)
{
    json_t *o = json_object();
    json_object_set_new(o, "prefill_tok_s", cli_json_real(r->prefill * 1e6 / t->prefill_us));
    json_object_set_new(o, "decode_tok_s", cli_json_real(r->seqs * 1e6 / t->decode_us));
    json_object_set_new(o, "prefill", json_integer(r->prefill));
    json_object_set_new(o, "seqs", json_integer(r->seqs));
    return o;
}

static void say_speeds(struct cli *c, const struct bench_times *t, const struct bench_run *r)
{
    if (c->json) return;
    printf("prefill %.1f tokens/s, decode %.1f tokens/s\n", r->prefill * 1e6 / t->prefill_us,
           r->seqs * 1e6 / t->decode_us);
}

static struct bench_run run_of(struct cli *c)
{
    return (struct bench_run){.prefill = (uint32_t)cli_int(&c->line, "prefill"),
                              .decode = (uint32_t)cli_int(&c->line, "decode"),
                              .seqs = (uint32_t)cli_int(&c->line, "seqs"),
                              .seconds = cli_float(&c->line, "seconds"),
                              .stopped = term_stopped};
}

/* What one sequence holds at the end: both rounds of decode steps, and those that warm up. */
static uint32_t need_ctx(const struct bench_run *r)
{
    return r->prefill + 2 * (r->decode + 8);
}

static int32_t suggest(struct cli *c, const struct bench_run *r)
{
    BP_TRY(cli_config_suggest(c, "engine", "ctx", need_ctx(r)));
    BP_TRY(cli_config_suggest(c, "engine", "max_seqs", r->seqs));
    return BP_OK;
}

static int32_t check_session(struct cli *c, const struct bench_run *r)
{
    if (bp_session_ctx(c->session) < need_ctx(r))
        return cli_fail(&c->err, BP_E_ARG, "engine.ctx",
                        "%u tokens of prompt and %u decode steps need a context of %u, "
                        "engine.ctx is %u",
                        r->prefill, r->decode, need_ctx(r), bp_session_ctx(c->session));
    if (bp_session_max_seqs(c->session) < r->seqs)
        return cli_fail(&c->err, BP_E_ARG, "engine.max_seqs",
                        "%u sequences were asked for, engine.max_seqs is %u", r->seqs,
                        bp_session_max_seqs(c->session));
    return BP_OK;
}

static int32_t measure_file(struct cli *c, struct bench *b, struct bench_print *p)
{
    struct bench_run r = run_of(c);
    struct bench_times t;
    struct bench_cost cost;
    BP_TRY(suggest(c, &r));
    BP_TRY(cli_open_session(c));
    BP_TRY(check_session(c, &r));
    BP_TRY(
        bench_cost_file(cli_text(&c->line, "model"), bp_model_n_layer(c->model), &cost, &c->err));
    BP_TRY(bench_run_session(c->session, bp_model_n_vocab(c->model), &r, &t, &c->err));
    BP_TRY(emit_times(b, p, &t, &r, &cost, bp_session_batch_tokens(c->session),
                      bp_model_arch(c->model)));
    if (c->json) {
        json_object_set_new(c->out, "model", speeds_json(&t, &r));
        json_object_set_new(c->out, "backends", cli_json_backends(c->session));
    }
    say_speeds(c, &t, &r);
    return BP_OK;
}

/* ---- shapes ---- */

struct measured {
    uint32_t n_dense, n_moe, batch;
    struct bench_times t;
    struct bench_cost cost;
};

static int32_t measure_image(struct cli *c, const struct bench_shape *s, struct bench_run *r,
                             bool last, struct measured *m)
{
    struct bench_image im = {0};
    struct bp_callbacks cb = {.h = BP_HDR(struct bp_callbacks, progress), .log = term_log};
    int32_t rc;
    BP_TRY(bench_image_make(s, m->n_dense, m->n_moe, cli_text(&c->line, "type"), need_ctx(r), &im,
                            &c->err));
    m->cost = im.cost;
    BP_TRY_GOTO(
        rc, bp_model_open_image(im.bytes, im.n, s->name, c->config, &cb, &c->model, &c->err), done);
    BP_TRY_GOTO(rc, bp_session_open(c->model, c->config, &cb, &c->session, &c->err), done);
    term_watch(c->session);
    BP_TRY_GOTO(rc, check_session(c, r), done);
    m->batch = bp_session_batch_tokens(c->session);
    BP_TRY_GOTO(rc, bench_run_session(c->session, bp_model_n_vocab(c->model), r, &m->t, &c->err),
                done);
    if (last && c->json) json_object_set_new(c->out, "backends", cli_json_backends(c->session));
done:
    term_watch(NULL);
    bp_session_close(c->session);
    bp_model_close(c->model);
    c->session = NULL;
    c->model = NULL;
    bench_image_free(&im);
    return rc;
}

/* The difference of two models that differ by n layers of one kind. */
static int32_t emit_layer(struct bench *b, struct bench_print *p, const struct bench_run *r,
                          const char *kind, const struct measured *more,
                          const struct measured *less, double n, double *us, double *prefill_us)
{
    char what[96];
    double b1, f1, b0, f0;
    *us = (more->t.layers_us - less->t.layers_us) / n;
    *prefill_us = (more->t.prefill_us - less->t.prefill_us) / n;
    snprintf(what, sizeof what, "one %s layer, %u sequence%s", kind, r->seqs,
             r->seqs == 1 ? "" : "s");
    bench_cost_of(&more->cost, r->seqs, 0, &b1, &f1);
    bench_cost_of(&less->cost, r->seqs, 0, &b0, &f0);
    BP_TRY(emit(b, p, "layer.decode", what, *us, more->t.layers_samples, (b1 - b0) / n,
                (f1 - f0) / n));
    snprintf(what, sizeof what, "one %s layer, %u tokens", kind, r->prefill);
    const double tok = r->prefill < more->batch ? r->prefill : more->batch;
    const double steps = ceil(r->prefill / (double)more->batch);
    bench_cost_of(&more->cost, tok, 0, &b1, &f1);
    bench_cost_of(&less->cost, tok, 0, &b0, &f0);
    return emit(b, p, "layer.prefill", what, *prefill_us, more->t.prefill_samples,
                steps * (b1 - b0) / n, r->prefill / tok * (f1 - f0) / n);
}

static void tell_estimate(struct cli *c, const struct bench_shape *s, const struct bench_run *r,
                          double decode_us, double prefill_us)
{
    if (!c->json && (isnan(decode_us) || isnan(prefill_us))) {
        printf("no estimate for all %u layers of %s: these are too short to tell apart\n",
               s->n_layer, s->name);
        return;
    }
    if (!c->json) {
        printf("estimate for all %u layers of %s, from these: prefill %.1f tokens/s, decode %.1f "
               "tokens/s\n",
               s->n_layer, s->name, r->prefill * 1e6 / prefill_us, r->seqs * 1e6 / decode_us);
        return;
    }
    json_t *o = json_object();
    json_object_set_new(o, "layers", json_integer(s->n_layer));
    json_object_set_new(o, "decode_us", cli_json_real(decode_us));
    json_object_set_new(o, "prefill_us", cli_json_real(prefill_us));
    json_object_set_new(o, "decode_tok_s", cli_json_real(r->seqs * 1e6 / decode_us));
    json_object_set_new(o, "prefill_tok_s", cli_json_real(r->prefill * 1e6 / prefill_us));
    json_object_set_new(c->out, "estimate", o);
}

/* NaN where a layer is too short to tell from the rest of a step. */
static double whole(double measured, double more_moe, double moe_us, double more_dense,
                    double dense_us)
{
    return moe_us > 0.0 && dense_us > 0.0 ? measured + more_moe * moe_us + more_dense * dense_us
                                          : NAN;
}

static int32_t measure_shape(struct cli *c, struct bench *b, struct bench_print *p)
{
    const char *name = cli_text(&c->line, "shape");
    const struct bench_shape *s = bench_shape_find(name);
    const uint32_t layers = (uint32_t)cli_int(&c->line, "layers");
    struct bench_run r = run_of(c);
    char what[96];
    double dense_us, dense_pre, moe_us, moe_pre;
    if (s == NULL)
        return cli_fail(&c->err, BP_E_ARG, "--shape", "there is no shape '%.40s'; %s exist", name,
                        bench_shape_names());
    if (layers < 3)
        return cli_fail(&c->err, BP_E_ARG, "--layers",
                        "at least 3 layers are needed to tell layers from the rest of a step");
    struct measured one = {.n_dense = 1, .n_moe = 1}, two = {.n_dense = 2, .n_moe = 1},
                    all = {.n_dense = 1, .n_moe = layers - 1};
    BP_TRY(suggest(c, &r));
    BP_TRY(measure_image(c, s, &r, false, &one));
    BP_TRY(measure_image(c, s, &r, false, &two));
    BP_TRY(measure_image(c, s, &r, true, &all));
    snprintf(what, sizeof what, "%s, %u layers", s->name, layers);
    BP_TRY(emit_times(b, p, &all.t, &r, &all.cost, all.batch, what));
    BP_TRY(emit_layer(b, p, &r, "dense", &two, &one, 1.0, &dense_us, &dense_pre));
    BP_TRY(emit_layer(b, p, &r, "MoE", &all, &one, layers - 2.0, &moe_us, &moe_pre));
    if (c->json) json_object_set_new(c->out, "model", speeds_json(&all.t, &r));
    say_speeds(c, &all.t, &r);
    const double more_moe = (double)s->n_layer - s->n_dense - (layers - 1.0);
    const double more_dense = s->n_dense - 1.0;
    tell_estimate(c, s, &r, whole(all.t.decode_us, more_moe, moe_us, more_dense, dense_us),
                  whole(all.t.prefill_us, more_moe, moe_pre, more_dense, dense_pre));
    return BP_OK;
}

int32_t bench_models(struct cli *c, struct bench *b, struct bench_print *p)
{
    return cli_given(&c->line, "shape") ? measure_shape(c, b, p) : measure_file(c, b, p);
}
