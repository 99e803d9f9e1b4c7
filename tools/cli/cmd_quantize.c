/* cmd_quantize.c - `backplane quantize`: a GGUF written anew with its weights in other types.
 * Not here: rules and encoding (the library's). SPDX-License-Identifier: MIT */
#include "cli.h"

#include <stdio.h>
#include <string.h>

// clang-format off
static const struct cli_option options[] = {
    {"dry-run",    0, CLI_SWITCH, NULL, NULL, NULL, 0, 0, "Only say what each tensor would become; write nothing."},
    {"no-replace", 0, CLI_SWITCH, NULL, NULL, NULL, 0, 0,
     "Refuse when OUT exists. Otherwise it is replaced, once the new file is complete."},
    {"tensors",    't', CLI_SWITCH, NULL, NULL, NULL, 0, 0, "List every tensor. --dry-run and the JSON always do."},
};
// clang-format on

static const char *const reasons[] = {"asked", "raised", "fallback", "kept"};

struct quantize {
    struct cli *c;
    const char *in, *out, *type;
    struct bp_file *file;
    struct bp_quantize *plan;
    struct bp_quantize_info info;
    double seconds;
};

static void fill_json(const struct quantize *q, bool written)
{
    json_t *o = q->c->out, *tensors = json_array();
    struct bp_quantize_tensor t = {.h = BP_HDR(struct bp_quantize_tensor, reserved)};
    json_object_set_new(o, "in", cli_json_text(q->in, strlen(q->in)));
    json_object_set_new(o, "out", cli_json_text(q->out, strlen(q->out)));
    json_object_set_new(o, "type", json_string(q->info.type));
    json_object_set_new(o, "bytes_before", json_integer((json_int_t)q->info.bytes_before));
    json_object_set_new(o, "bytes_after", json_integer((json_int_t)q->info.bytes_after));
    json_object_set_new(o, "requantized", json_integer((json_int_t)q->info.n_requantized));
    json_object_set_new(o, "written", json_boolean(written));
    json_object_set_new(o, "seconds", written ? json_real(q->seconds) : json_null());
    for (uint64_t i = 0; bp_quantize_tensor(q->plan, i, &t) == BP_OK; ++i) {
        json_t *row = json_object();
        json_object_set_new(row, "name", cli_json_text(t.name, strlen(t.name)));
        json_object_set_new(row, "from", json_string(t.from));
        json_object_set_new(row, "to", json_string(t.to));
        json_object_set_new(row, "why", json_string(reasons[t.why & 3]));
        json_object_set_new(row, "bytes_before", json_integer((json_int_t)t.bytes_before));
        json_object_set_new(row, "bytes_after", json_integer((json_int_t)t.bytes_after));
        json_array_append_new(tensors, row);
    }
    json_object_set_new(o, "tensors", tensors);
}

static void print_text(const struct quantize *q, bool written, bool list)
{
    struct bp_quantize_tensor t = {.h = BP_HDR(struct bp_quantize_tensor, reserved)};
    for (uint64_t i = 0; list && bp_quantize_tensor(q->plan, i, &t) == BP_OK; ++i) {
        char line[256];
        int n = snprintf(line, sizeof line, "%-40s %-7s -> %-7s %-8s %12llu -> %llu bytes\n",
                         t.name, t.from, t.to, reasons[t.why & 3],
                         (unsigned long long)t.bytes_before, (unsigned long long)t.bytes_after);
        if (n > 0 && n < (int)sizeof line) term_out(line, (size_t)n);
    }
    printf("%s: %llu tensors, %llu bytes before, %llu after (%.1f%%)", q->info.type,
           (unsigned long long)q->info.n_tensors, (unsigned long long)q->info.bytes_before,
           (unsigned long long)q->info.bytes_after,
           100.0 * (double)q->info.bytes_after / (double)q->info.bytes_before);
    if (written)
        printf(", %.1f s, %.1f MB/s read\n", q->seconds,
               (double)q->info.bytes_before / 1e6 / (q->seconds > 1e-6 ? q->seconds : 1e-6));
    else
        printf(", nothing written\n");
}

static int32_t write_file(struct quantize *q)
{
    struct term_progress bar;
    struct bp_callbacks cb = {.h = BP_HDR(struct bp_callbacks, progress),
                              .ctx = &bar,
                              .log = term_log,
                              .progress = term_progress_fn};
    uint32_t flags = cli_given(&q->c->line, "no-replace") ? BP_QUANTIZE_NO_REPLACE : 0;
    term_catch_more();
    term_progress_begin(&bar, "quantizing");
    double start = term_seconds();
    int32_t rc = bp_quantize_write(q->plan, q->out, flags, q->c->config, &cb, &q->c->err);
    q->seconds = term_seconds() - start;
    term_progress_end(&bar);
    return rc;
}

static int32_t run_quantize(struct quantize *q)
{
    struct cli *c = q->c;
    bool dry = cli_given(&c->line, "dry-run");
    BP_TRY(bp_file_open(q->in, &q->file, &c->err));
    BP_TRY(bp_quantize_plan(q->file, q->type, &q->plan, &c->err));
    bp_quantize_info(q->plan, &q->info);
    if (!dry) BP_TRY(write_file(q));
    if (q->info.n_requantized > 0)
        term_say("note: %llu tensors of the source were quantized already; quantizing the original "
                 "gives a better file",
                 (unsigned long long)q->info.n_requantized);
    if (c->json)
        fill_json(q, !dry);
    else
        print_text(q, !dry, dry || cli_given(&c->line, "tensors"));
    return BP_OK;
}

static int32_t cmd_quantize(struct cli *c)
{
    struct quantize q = {.c = c, .info = {.h = BP_HDR(struct bp_quantize_info, n_requantized)}};
    if (cli_given(&c->line, "model"))
        return cli_fail(&c->err, BP_E_ARG, "-m, --model",
                        "the model to read is the first argument, IN, and not -m");
    if (c->line.n_pos < 3)
        return cli_fail(&c->err, BP_E_ARG, "arguments",
                        "quantize needs three arguments, IN OUT TYPE; the types are %s",
                        bp_quantize_types());
    q.in = c->line.pos[0];
    q.out = c->line.pos[1];
    q.type = c->line.pos[2];
    BP_TRY(cli_open_config(c));
    int32_t rc = run_quantize(&q);
    bp_quantize_destroy(q.plan);
    bp_file_close(q.file);
    return rc;
}

const struct cli_command cli_cmd_quantize = {
    .name = "quantize",
    .args = "IN OUT TYPE",
    .max_pos = 3,
    .summary = "Write a GGUF anew with its weights in another type.",
    .details =
        "TYPE is a type for every weight (F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, "
        "Q3_K, "
        "Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS) or a mix, Q4_K_M or Q5_K_M, which gives the tensors "
        "that "
        "matter most a better type. Norms, biases, vectors, the router and the index weights stay "
        "as they are. Where rows do not divide into a type's blocks another type stands in: Q4_K "
        "-> Q5_0, Q5_K -> Q5_1, Q6_K -> Q8_0, Q2_K, Q3_K and IQ4_XS -> IQ4_NL, and F16 for rows "
        "that are no multiple of 32.\n\n"
        "IN may be the first of several shards and of any type that can be read; OUT is one file "
        "with the same metadata. It appears when it is complete, and replaces what was there; "
        "Ctrl-C leaves nothing behind. The bytes do not depend on engine.threads.\n\n"
        "JSON: in, out, type, bytes_before, bytes_after, requantized, written, seconds, tensors[] "
        "{name, from, to, why, bytes_before, bytes_after}; why is asked, raised, fallback or kept.",
    .options = options,
    .n_options = sizeof options / sizeof options[0],
    .run = cmd_quantize,
};
