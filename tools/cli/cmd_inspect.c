/* cmd_inspect.c - `backplane inspect`: what a GGUF holds, and what the model's tables say about it.
 * A file that cannot run is still shown, with the reason; the exit status is 2 only when it cannot be read at all.
 * Not here: reading all of it (inspect_check.c).
 * SPDX-License-Identifier: MIT */
#include "inspect.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// clang-format off
static const struct cli_option options[] = {
    {"tensors", 't', CLI_SWITCH, NULL, NULL, NULL, 0, 0, "List every tensor. The JSON always does."},
    {"names",    0,  CLI_TEXT, "hf", NULL, NULL, 0, 0,
     "hf: also print the name that each tensor has in Hugging Face checkpoints."},
    {"hash",     0,  CLI_SWITCH, NULL, NULL, NULL, 0, 0,
     "Read the whole file and print a manifest: a hash of the header of each shard and of each tensor."},
    {"check",    0,  CLI_TEXT, "MANIFEST", NULL, NULL, 0, 0,
     "Read the whole file and name every tensor that is damaged, missing or additional against a manifest that --hash "
     "printed."},
    {"validate", 0,  CLI_SWITCH, NULL, NULL, NULL, 0, 0,
     "Read the whole file and name every block with NaN, infinities or a scale that decodes to nothing sensible, at most "
     "8 runs of blocks a tensor."},
    {"elements", 0,  CLI_INT, "N", "8", NULL, 0, 1000000, "Show arrays of the metadata up to N elements."},
};
// clang-format on

static const char *const report_keys[] = {"unused", "missing", "assumed", "notes"};

struct inspect {
    struct cli *c;
    struct bp_file *file;
    struct bp_file_info info;
    bool hf;
    json_t *lines[4];    /* by report kind */
    struct bp_error why; /* why it cannot run; code BP_OK when it can */
};

/* ---- gathering ---- */

static void add_line(void *ctx, const struct bp_report *line)
{
    struct inspect *in = ctx;
    if (line->kind > BP_REPORT_NOTE) return;
    json_t *o = json_object();
    json_object_set_new(o, "name", cli_json_text(line->name, strlen(line->name)));
    json_object_set_new(o, "text", cli_json_text(line->text, strlen(line->text)));
    json_array_append_new(in->lines[line->kind], o);
}

/* The load report of a model that opens; of one that does not, the survey and the reason. */
static int32_t gather_report(struct inspect *in, const char *path)
{
    struct cli *c = in->c;
    struct bp_report line = {.h = BP_HDR(struct bp_report, text)};
    in->why = (struct bp_error)BP_ERROR_INIT;
    int32_t rc = bp_model_open_headers(path, c->config, NULL, &c->model, &in->why);
    if (rc == BP_E_NOMEM) {
        c->err = in->why;
        return rc;
    }
    if (rc == BP_OK) {
        for (uint32_t i = 0; bp_model_report(c->model, i, &line) == BP_OK; ++i) add_line(in, &line);
        return BP_OK;
    }
    struct bp_error ignored = BP_ERROR_INIT; /* the model's reason is the one to show */
    rc = bp_file_survey(in->file, c->config, add_line, in, &ignored);
    return rc == BP_E_NOMEM ? cli_fail(&c->err, rc, "inspect", "%s", ignored.msg) : BP_OK;
}

/* Tensors of one type. */
struct type_total {
    const char *name;
    uint64_t n, values, bytes;
};

static void sum_types(const struct inspect *in, struct type_total type[BP_GGUF_COUNT])
{
    struct bp_file_tensor t = {.h = BP_HDR(struct bp_file_tensor, reserved)};
    memset(type, 0, BP_GGUF_COUNT * sizeof *type);
    for (uint64_t i = 0; bp_file_tensor(in->file, i, &t) == BP_OK; ++i) {
        if (t.type >= BP_GGUF_COUNT) continue;
        type[t.type].name = t.type_name;
        type[t.type].n++;
        type[t.type].values +=
            (uint64_t)t.ne[0] * (uint64_t)t.ne[1] * (uint64_t)t.ne[2] * (uint64_t)t.ne[3];
        type[t.type].bytes += t.n_bytes;
    }
}

/* ---- JSON ---- */

/* A metadata value as JSON: numbers, booleans and texts as such, arrays where their text is JSON, else their text. */
static json_t *value_json(const struct inspect *in, const char *key, const char *kind,
                          const char *text)
{
    if (strcmp(kind, "string") == 0) {
        char *raw = NULL;
        size_t n = 0;
        if (bp_file_str(in->file, key, &raw, &n, NULL) != BP_OK) return json_string("");
        json_t *j = cli_json_text(raw, n);
        bp_free(raw);
        return j;
    }
    json_t *j = json_loads(text, JSON_DECODE_ANY, NULL);
    return j != NULL ? j : cli_json_text(text, strlen(text));
}

static json_t *kv_json(const struct inspect *in)
{
    json_t *o = json_object();
    const char *key, *kind;
    char *text;
    uint32_t most = (uint32_t)cli_int(&in->c->line, "elements");
    for (uint64_t i = 0; bp_file_kv(in->file, i, most, &key, &kind, &text) == BP_OK; ++i) {
        size_t n = strlen(key);
        if (cli_utf8_valid(key, n, NULL))
            json_object_set_new(o, key, value_json(in, key, kind, text));
        bp_free(text);
    }
    return o;
}

static json_t *tensor_json(const struct inspect *in, const struct bp_file_tensor *t)
{
    json_t *o = json_object(), *shape = json_array();
    char hf[256];
    json_object_set_new(o, "name", cli_json_text(t->name, strlen(t->name)));
    json_object_set_new(o, "type", json_string(t->type_name));
    for (uint32_t d = 0; d < t->n_dim; ++d) json_array_append_new(shape, json_integer(t->ne[d]));
    json_object_set_new(o, "shape", shape);
    json_object_set_new(o, "bytes", json_integer((json_int_t)t->n_bytes));
    json_object_set_new(o, "offset", json_integer((json_int_t)t->offset));
    json_object_set_new(o, "shard", json_integer(t->shard));
    if (in->hf)
        json_object_set_new(o, "hf",
                            bp_file_hf_name(t->name, hf, sizeof hf) == BP_OK ? json_string(hf)
                                                                             : json_null());
    return o;
}

static json_t *model_json(const struct bp_model *m)
{
    json_t *o = json_object();
    json_object_set_new(o, "n_vocab", json_integer(bp_model_n_vocab(m)));
    json_object_set_new(o, "n_embd", json_integer(bp_model_n_embd(m)));
    json_object_set_new(o, "n_layer", json_integer(bp_model_n_layer(m)));
    json_object_set_new(o, "n_ctx", json_integer(bp_model_n_ctx(m)));
    const char *pre = bp_model_pre(m), *chat = bp_model_chat_family(m);
    json_object_set_new(o, "tokenizer", pre != NULL ? json_string(pre) : json_null());
    json_object_set_new(o, "chat", chat != NULL ? json_string(chat) : json_null());
    return o;
}

static json_t *types_json(const struct inspect *in)
{
    struct type_total type[BP_GGUF_COUNT];
    json_t *rows = json_array();
    sum_types(in, type);
    for (int i = 0; i < BP_GGUF_COUNT; ++i) {
        if (type[i].n == 0) continue;
        json_t *o = json_object();
        json_object_set_new(o, "type", json_string(type[i].name));
        json_object_set_new(o, "tensors", json_integer((json_int_t)type[i].n));
        json_object_set_new(o, "values", json_integer((json_int_t)type[i].values));
        json_object_set_new(o, "bytes", json_integer((json_int_t)type[i].bytes));
        json_array_append_new(rows, o);
    }
    return rows;
}

/* missing, unused, ... are lists of names; `report` has all lines with what was done about each. */
static void report_json(const struct inspect *in)
{
    json_t *report = json_array();
    for (size_t k = 0; k < 4; ++k) {
        json_t *names = json_array(), *line;
        size_t i;
        json_array_foreach(in->lines[k], i, line)
        {
            json_t *row = json_copy(line);
            json_array_append(names, json_object_get(line, "name"));
            json_object_set_new(row, "kind", json_string(report_keys[k]));
            json_array_append_new(report, row);
        }
        json_object_set_new(in->c->out, report_keys[k], names);
    }
    json_object_set_new(in->c->out, "report", report);
}

static void fill_json(const struct inspect *in)
{
    json_t *o = in->c->out, *shards = json_array(), *tensors = json_array();
    struct bp_file_shard shard = {.h = BP_HDR(struct bp_file_shard, n_tensors)};
    struct bp_file_tensor t = {.h = BP_HDR(struct bp_file_tensor, reserved)};
    json_object_set_new(o, "arch", cli_json_text(in->info.arch, strlen(in->info.arch)));
    json_object_set_new(o, "version", json_integer(in->info.version));
    json_object_set_new(o, "bytes", json_integer((json_int_t)in->info.n_bytes));
    for (uint32_t i = 0; bp_file_shard(in->file, i, &shard) == BP_OK; ++i) {
        json_t *s = json_object();
        json_object_set_new(s, "path", cli_json_text(shard.path, strlen(shard.path)));
        json_object_set_new(s, "bytes", json_integer((json_int_t)shard.n_bytes));
        json_object_set_new(s, "tensors", json_integer((json_int_t)shard.n_tensors));
        json_array_append_new(shards, s);
    }
    json_object_set_new(o, "shards", shards);
    json_object_set_new(o, "kv", kv_json(in));
    for (uint64_t i = 0; bp_file_tensor(in->file, i, &t) == BP_OK; ++i)
        json_array_append_new(tensors, tensor_json(in, &t));
    json_object_set_new(o, "types", types_json(in));
    json_object_set_new(o, "tensors", tensors);
    report_json(in);
    json_object_set_new(o, "model", in->c->model != NULL ? model_json(in->c->model) : json_null());
    json_object_set_new(o, "cannot_run",
                        in->c->model != NULL ? json_null() : cli_json_error(&in->why));
}

/* ---- text ---- */

static void print_kv(const struct inspect *in)
{
    const char *key, *kind;
    char *text;
    uint32_t most = (uint32_t)cli_int(&in->c->line, "elements");
    printf("\nmetadata (%llu)\n", (unsigned long long)in->info.n_kv);
    for (uint64_t i = 0; bp_file_kv(in->file, i, most, &key, &kind, &text) == BP_OK; ++i) {
        char line[512];
        int n = snprintf(line, sizeof line, "  %-52s %-12s %.400s", key, kind, text);
        bool cut = n >= (int)sizeof line || strlen(text) > 400;
        term_out(line, strlen(line));
        term_out(cut ? "...\n" : "\n", cut ? 4 : 1);
        bp_free(text);
    }
}

static void print_types(const struct inspect *in)
{
    struct type_total type[BP_GGUF_COUNT];
    sum_types(in, type);
    printf("\ntensors (%llu)\n", (unsigned long long)in->info.n_tensors);
    for (int i = 0; i < BP_GGUF_COUNT; ++i) {
        if (type[i].n > 0)
            printf("  %-8s %6llu tensors  %14llu values  %14llu bytes\n", type[i].name,
                   (unsigned long long)type[i].n, (unsigned long long)type[i].values,
                   (unsigned long long)type[i].bytes);
    }
}

static void print_tensors(const struct inspect *in)
{
    struct bp_file_tensor t = {.h = BP_HDR(struct bp_file_tensor, reserved)};
    putchar('\n');
    for (uint64_t i = 0; bp_file_tensor(in->file, i, &t) == BP_OK; ++i) {
        char shape[96] = "", hf[256] = "", line[600];
        for (uint32_t d = 0; d < t.n_dim; ++d) {
            size_t n = strlen(shape);
            snprintf(shape + n, sizeof shape - n, "%s%lld", d > 0 ? " x " : "", (long long)t.ne[d]);
        }
        if (in->hf && bp_file_hf_name(t.name, hf, sizeof hf) != BP_OK) snprintf(hf, sizeof hf, "-");
        int n = snprintf(line, sizeof line, "  %-40s %-8s %-22s %12llu bytes  %s\n", t.name,
                         t.type_name, shape, (unsigned long long)t.n_bytes, hf);
        if (n > 0 && n < (int)sizeof line) term_out(line, (size_t)n);
    }
}

static void print_lines(const struct inspect *in)
{
    for (size_t k = 0; k < 4; ++k) {
        if (json_array_size(in->lines[k]) == 0) continue;
        printf("\n%s (%zu)\n", report_keys[k], json_array_size(in->lines[k]));
        for (size_t i = 0; i < json_array_size(in->lines[k]); ++i) {
            json_t *o = json_array_get(in->lines[k], i);
            char line[700];
            snprintf(line, sizeof line, "  %-40s %s", json_string_value(json_object_get(o, "name")),
                     json_string_value(json_object_get(o, "text")));
            term_out(line, strlen(line));
            term_out("\n", 1);
        }
    }
}

static void print_text(const struct inspect *in)
{
    struct bp_file_shard shard = {.h = BP_HDR(struct bp_file_shard, n_tensors)};
    const struct bp_model *m = in->c->model;
    for (uint32_t i = 0; bp_file_shard(in->file, i, &shard) == BP_OK; ++i) {
        term_name(shard.path);
        printf("  %llu bytes, %llu tensors\n", (unsigned long long)shard.n_bytes,
               (unsigned long long)shard.n_tensors);
    }
    printf("GGUF version %u, architecture '", in->info.version);
    term_name(in->info.arch);
    printf("', %llu bytes in %u file%s\n", (unsigned long long)in->info.n_bytes, in->info.n_shards,
           in->info.n_shards == 1 ? "" : "s");
    print_kv(in);
    print_types(in);
    if (cli_given(&in->c->line, "tensors") || in->hf) print_tensors(in);
    print_lines(in);
    if (m == NULL) {
        char line[700];
        snprintf(line, sizeof line, "\ncannot run: %s%s%s\n", in->why.where,
                 in->why.where[0] != '\0' ? ": " : "", in->why.msg);
        term_out(line, strlen(line));
        return;
    }
    printf("\ncan run: %u layers, width %u, vocabulary %u, trained context %u; tokenizer %s, chat "
           "%s\n",
           bp_model_n_layer(m), bp_model_n_embd(m), bp_model_n_vocab(m), bp_model_n_ctx(m),
           bp_model_pre(m) != NULL ? bp_model_pre(m) : "not supported",
           bp_model_chat_family(m) != NULL ? bp_model_chat_family(m) : "not known");
}

/* Header, tensors, report: what `inspect` shows without reading weights. */
static int32_t show(struct inspect *in, const char *path)
{
    for (size_t k = 0; k < 4; ++k) in->lines[k] = json_array();
    int32_t rc = gather_report(in, path);
    if (rc == BP_OK && in->c->json) fill_json(in);
    if (rc == BP_OK && !in->c->json) print_text(in);
    for (size_t k = 0; k < 4; ++k) json_decref(in->lines[k]);
    return rc;
}

static int32_t check_options(struct cli *c)
{
    const char *names = cli_text(&c->line, "names");
    int reading = cli_given(&c->line, "hash") + cli_given(&c->line, "check") +
                  cli_given(&c->line, "validate");
    if (c->line.n_pos > 0 && cli_given(&c->line, "model"))
        return cli_fail(&c->err, BP_E_ARG, "-m, --model",
                        "two files were named; inspect shows one");
    if (names != NULL && strcmp(names, "hf") != 0)
        return cli_fail(&c->err, BP_E_ARG, "--names", "--names knows 'hf' only, not '%.60s'",
                        names);
    if (reading > 1)
        return cli_fail(&c->err, BP_E_ARG, "--hash",
                        "--hash, --check and --validate are three answers; ask for one at a time");
    if (reading > 0 &&
        (names != NULL || cli_given(&c->line, "tensors") || cli_given(&c->line, "elements")))
        return cli_fail(&c->err, BP_E_ARG, "--hash",
                        "--hash, --check and --validate print no list of tensors or metadata; ask "
                        "for that in a call of its own");
    return BP_OK;
}

static int32_t cmd_inspect(struct cli *c)
{
    struct inspect in = {.c = c, .info = {.h = BP_HDR(struct bp_file_info, arch)}};
    const char *manifest = cli_text(&c->line, "check");
    const char *path = c->line.n_pos > 0 ? c->line.pos[0] : cli_model_path(c);
    int32_t rc;
    if (path == NULL) return c->err.code;
    BP_TRY(check_options(c));
    in.hf = cli_given(&c->line, "names");
    BP_TRY(cli_open_config(c));
    BP_TRY(bp_file_open(path, &in.file, &c->err));
    bp_file_info(in.file, &in.info);
    if (cli_given(&c->line, "hash"))
        rc = inspect_hash(c, in.file);
    else if (manifest != NULL)
        rc = inspect_compare(c, in.file, manifest);
    else if (cli_given(&c->line, "validate"))
        rc = inspect_validate(c, in.file);
    else
        rc = show(&in, path);
    bp_file_close(in.file);
    return rc;
}

const struct cli_command cli_cmd_inspect = {
    .name = "inspect",
    .args = "[FILE]",
    .max_pos = 1,
    .summary = "Show what a GGUF file holds, and what is missing from it or unused.",
    .details =
        "Any GGUF is shown, also one that this program cannot run; the last line says why. Only "
        "headers are read, unless --hash, --check or --validate asks for all of it. Shapes "
        "are in file order, the contiguous dimension first.\n\n"
        "--check and --validate exit with 1 when they find something, with 2 when the manifest or "
        "the file cannot be read.\n\n"
        "JSON: arch, version, bytes, shards[], kv {}, types[] {type, tensors, values, bytes}, "
        "tensors[] {name, type, shape, bytes, offset, shard}, missing[], unused[], assumed[], "
        "notes[] (names), report[] {kind, name, text}, model, cannot_run.\n"
        "JSON of --hash: algorithm, file, bytes, headers[] {hash, bytes, shard}, tensors[] {hash, "
        "type, name, bytes, shard}.\n"
        "JSON of --check: ok, n_tensors, headers[] {shard, text}, damaged[], missing[], "
        "additional[] {name, shard, text}.\n"
        "JSON of --validate: ok, findings[] {tensor, shard, type, block, blocks, reason}, "
        "n_tensors, n_bad_tensors, n_blocks, n_bad_blocks, bytes.",
    .options = options,
    .n_options = sizeof options / sizeof options[0],
    .run = cmd_inspect,
};
