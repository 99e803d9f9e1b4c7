/* cmd_bench.c - `backplane bench`: ops beside the device's ceilings of the same run; whole models in tokens per second.
 * Not here: what is measured and how (tools/bench). SPDX-License-Identifier: MIT */
#include "bench_cli.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// clang-format off
static const struct cli_option options[] = {
    {"op",      0,  CLI_TEXT,   "OP", NULL, NULL, 0, 0,
     "Only this op, as quant.matmul or dense.rms, or all of one slot: quant, mla, mla.decode, moe, dense."},
    {"only",    0,  CLI_TEXT,   "TEXT", NULL, NULL, 0, 0, "Only rows whose description holds this text, as \"Q4_K\"."},
    {"sizes",   0,  CLI_TEXT,   "WORD", "auto", NULL, 0, 0,
     "full: as in large models; small: for a CPU; auto: full on a GPU."},
    {"samples", 0,  CLI_INT,    "N", "31", NULL, 3, 1000, "Samples of each row; the median counts."},
    {"seconds", 0,  CLI_FLOAT,  "S", "3", NULL, 0.01, 3600, "A row stops taking samples after this time, but takes three."},
    {"shape",   0,  CLI_TEXT,   "NAME", NULL, NULL, 0, 0,
     "A model of random weights instead of a file: glm-5, deepseek-v3 or tiny."},
    {"layers",  0,  CLI_INT,    "N", "4", NULL, 3, 128, "With --shape: how many layers, the first of them dense."},
    {"type",    0,  CLI_TEXT,   "TYPE", "Q4_K", NULL, 0, 0, "With --shape: the type of the large matrices."},
    {"prefill", 0,  CLI_INT,    "N", "512", NULL, 1, 1048576, "With --shape or -m: tokens of the prompt."},
    {"decode",  'n', CLI_INT,   "N", "32", NULL, 2, 1048576, "With --shape or -m: decode steps."},
    {"seqs",    0,  CLI_INT,    "N", "1", NULL, 1, 1024, "With --shape or -m: sequences that decode at once."},
};
// clang-format on

static void put_rate(json_t *o, const char *key, double v)
{
    json_object_set_new(o, key, cli_json_real(v));
}

static json_t *row_json(const struct bench_row *r)
{
    json_t *o = json_object();
    json_object_set_new(o, "op", json_string(r->op));
    json_object_set_new(o, "what", json_string(r->what));
    json_object_set_new(o, "provider",
                        r->provider != NULL && r->provider[0] != '\0' ? json_string(r->provider)
                                                                      : json_null());
    put_rate(o, "us", r->us);
    put_rate(o, "us_min", r->us_min);
    put_rate(o, "us_max", r->us_max);
    put_rate(o, "bytes", r->bytes);
    put_rate(o, "flops", r->flops);
    put_rate(o, "gb_s", r->gb_s);
    put_rate(o, "tflop_s", r->tflop_s);
    put_rate(o, "roof_pct", r->roof_pct);
    json_object_set_new(o, "roof", r->roof[0] != '\0' ? json_string(r->roof) : json_null());
    json_object_set_new(o, "samples", json_integer(r->samples));
    json_object_set_new(o, "calls", json_integer(r->calls));
    json_object_set_new(o, "graph", json_boolean(r->graph));
    json_object_set_new(o, "cached", json_boolean(r->cached));
    json_object_set_new(o, "note",
                        r->note[0] != '\0' ? cli_json_text(r->note, strlen(r->note)) : json_null());
    return o;
}

static void print_row(struct bench_print *p, const struct bench_row *r)
{
    if (!p->begun)
        printf("%s\n%-44s %-16s %10s %9s %9s %6s\n", p->device, "op", "provider", "us", "GB/s",
               "TFLOP/s", "roof %");
    p->begun = true;
    if (strcmp(p->op, r->op) != 0) printf("%s\n", r->op);
    snprintf(p->op, sizeof p->op, "%s", r->op);
    if (isnan(r->us)) {
        printf("  %-42s not measured: %s\n", r->what, r->note);
        return;
    }
    printf("  %-42s %-16s %10.2f %9.1f %9.3f ", r->what,
           r->provider != NULL && r->provider[0] != '\0' ? r->provider : "-", r->us, r->gb_s,
           r->tflop_s);
    if (isnan(r->roof_pct))
        printf("%6s\n", "-");
    else
        printf("%6.1f %s%s\n", r->roof_pct, r->roof, r->cached ? ", cached" : "");
}

int32_t bench_print_row(void *ctx, const struct bench_row *r)
{
    struct bench_print *p = ctx;
    const bool ceiling = strncmp(r->op, "ceiling.", 8) == 0;
    if (!ceiling && !isnan(r->us)) p->n_measured++;
    if (p->rows != NULL) {
        json_array_append_new(p->rows, row_json(r));
        return BP_OK;
    }
    if (ceiling && p->n_held < 2) {
        p->held[p->n_held++] = *r;
        return BP_OK;
    }
    if (!p->begun) {
        for (uint32_t i = 0; i < p->n_held; ++i) print_row(p, &p->held[i]);
    }
    print_row(p, r);
    (void)fflush(stdout);
    return BP_OK;
}

static json_t *device_json(const struct bp_device *d)
{
    json_t *o = json_object();
    json_object_set_new(o, "kind", json_string(d->kind == BP_DEV_HOST ? "host" : "cuda"));
    json_object_set_new(o, "ordinal", json_integer(d->ordinal));
    json_object_set_new(o, "name", cli_json_text(d->name, strlen(d->name)));
    json_object_set_new(o, "l2_bytes", json_integer(d->l2_bytes));
    return o;
}

static int32_t read_sizes(struct cli *c, bool on_host, bool *small)
{
    const char *word = cli_text(&c->line, "sizes");
    *small = strcmp(word, "auto") == 0 ? on_host : strcmp(word, "small") == 0;
    if (*small || strcmp(word, "auto") == 0 || strcmp(word, "full") == 0) return BP_OK;
    return cli_fail(&c->err, BP_E_ARG, "--sizes", "'%.40s' is none of auto, full, small", word);
}

static int32_t run_bench(struct cli *c, struct bench *b, struct bench_print *p,
                         struct bench_options *o)
{
    static const struct bp_callbacks cb = {.h = BP_HDR(struct bp_callbacks, progress),
                                           .log = term_log};
    const bool model = cli_given(&c->line, "model") || cli_given(&c->line, "shape");
    BP_TRY(bench_open(b, o, c->config, &cb, &c->err));
    BP_TRY(read_sizes(c, b->on_host, &o->small));
    p->device = b->dev->name;
    BP_TRY(model ? bench_ceilings(b, &c->err) : bench_all(b, &c->err));
    if (c->json) {
        json_t *ceilings = json_object();
        put_rate(ceilings, "copy_gb_s", b->copy_gb_s);
        put_rate(ceilings, "matmul_tflop_s", b->mm_tflop_s);
        json_object_set_new(c->out, "device", device_json(b->dev));
        json_object_set_new(c->out, "ceilings", ceilings);
    }
    return model ? bench_models(c, b, p) : BP_OK;
}

static int32_t cmd_bench(struct cli *c)
{
    struct bench_print p = {.c = c, .rows = c->json ? json_array() : NULL};
    struct bench_options o = {.op = cli_text(&c->line, "op"),
                              .only = cli_text(&c->line, "only"),
                              .samples = (uint32_t)cli_int(&c->line, "samples"),
                              .seconds = cli_float(&c->line, "seconds"),
                              .stopped = term_stopped,
                              .row = bench_print_row,
                              .ctx = &p};
    struct bench b = {0};
    int32_t rc = BP_OK;
    if (cli_given(&c->line, "model") && cli_given(&c->line, "shape"))
        rc = cli_fail(&c->err, BP_E_ARG, "--shape", "a file and a shape cannot both be measured");
    else if (cli_given(&c->line, "op") &&
             (cli_given(&c->line, "model") || cli_given(&c->line, "shape")))
        rc = cli_fail(&c->err, BP_E_ARG, "--op", "ops are measured without a model");
    if (rc == BP_OK) rc = cli_open_config(c);
    c->computing = rc == BP_OK;
    if (rc == BP_OK) rc = run_bench(c, &b, &p, &o);
    bench_close(&b);
    c->answer_no = rc == BP_OK && p.n_measured == 0;
    if (rc == BP_OK && c->json)
        json_object_set_new(c->out, "rows", p.rows);
    else
        json_decref(p.rows);
    return rc;
}

const struct cli_command cli_cmd_bench = {
    .name = "bench",
    .args = "",
    .summary = "Measure ops and models beside the device's own ceilings.",
    .details =
        "Without -m or --shape: ops. First the ceilings of the device, measured in the same run: "
        "copying (bytes read and written) and a large dense.matmul in the dtype of activations. "
        "Then for each op rows with the median time of a call, GB/s, TFLOP/s, and the part of the "
        "nearer ceiling that this is. Bytes and operations are those that the op cannot do "
        "without: weights as the file has them once for each call, of experts the chosen ones, "
        "keys that a row may see once; so a rate is never above what was moved, unless the "
        "data fits the device's cache, which is said. Weights take turns such that together they "
        "exceed that cache. On a GPU time is taken between two events of the device, around many "
        "calls replayed as one graph; on the host by the clock.\n\n"
        "With -m or --shape: a session. model.prefill is the prompt of one sequence, model.decode "
        "a "
        "step of all, model.layers the same step without logits, model.head the difference; all by "
        "the clock, the host's part included. A shape is a model of random weights, valid blocks "
        "that repeat and take no host memory; two smaller models tell what a dense and an MoE "
        "layer "
        "take, and from these the whole model is estimated. The cache's bytes are not counted.\n\n"
        "An op that nobody serves on the device is a row with the reason instead of numbers; the "
        "exit status is 1 when no row has any.\n\n"
        "JSON: device, ceilings {copy_gb_s, matmul_tflop_s}, rows[] {op, what, provider, us, "
        "us_min, us_max, bytes, flops, gb_s, tflop_s, roof_pct, roof, samples, calls, graph, "
        "cached, note}; with a model also model {prefill_tok_s, decode_tok_s, prefill, seqs}, "
        "backends, and with --shape estimate {layers, decode_us, prefill_us, decode_tok_s, "
        "prefill_tok_s}.",
    .options = options,
    .n_options = sizeof options / sizeof options[0],
    .run = cmd_bench,
};
