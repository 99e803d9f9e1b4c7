/* inspect_check.c - `inspect --hash`, `--check` and `--validate`: is every byte what it was, does every block decode?
 * Not here: what a file holds (cmd_inspect.c). SPDX-License-Identifier: MIT */
#include "inspect.h"

#include <stdio.h>
#include <string.h>

enum { RUNS_PER_TENSOR = 8 };

static struct bp_callbacks progress_of(struct term_progress *bar, const char *title)
{
    term_progress_begin(bar, title);
    return (struct bp_callbacks){
        .h = BP_HDR(struct bp_callbacks, progress), .ctx = bar, .progress = term_progress_fn};
}

static json_t *number(uint64_t v)
{
    return json_integer((json_int_t)v);
}

static int32_t make_manifest(struct cli *c, const struct bp_file *f, struct bp_manifest **out)
{
    struct term_progress bar;
    struct bp_callbacks cb = progress_of(&bar, "hashing");
    int32_t rc = bp_file_hash(f, c->config, &cb, out, &c->err);
    term_progress_end(&bar);
    return rc;
}

/* ---- --hash ---- */

static void manifest_json(json_t *o, const struct bp_manifest *m)
{
    struct bp_manifest_info info = {.h = BP_HDR(struct bp_manifest_info, n_tensors)};
    struct bp_manifest_line line = {.h = BP_HDR(struct bp_manifest_line, n_bytes)};
    json_t *headers = json_array(), *tensors = json_array();
    bp_manifest_info(m, &info);
    json_object_set_new(o, "algorithm", json_string("xxh3-128"));
    json_object_set_new(o, "file", cli_json_text(info.file, strlen(info.file)));
    json_object_set_new(o, "bytes", number(info.n_bytes));
    for (uint64_t i = 0; bp_manifest_line(m, i, &line) == BP_OK; ++i) {
        json_t *row = json_object();
        bool header = i < info.n_shards;
        json_object_set_new(row, "hash", json_string(line.hash));
        if (!header) {
            json_object_set_new(row, "type", json_string(line.type));
            json_object_set_new(row, "name", cli_json_text(line.name, strlen(line.name)));
        }
        json_object_set_new(row, "bytes", number(line.n_bytes));
        json_object_set_new(row, "shard", cli_json_text(line.shard, strlen(line.shard)));
        json_array_append_new(header ? headers : tensors, row);
    }
    json_object_set_new(o, "headers", headers);
    json_object_set_new(o, "tensors", tensors);
}

int32_t inspect_hash(struct cli *c, const struct bp_file *f)
{
    struct bp_manifest *m = NULL;
    char *text = NULL;
    size_t n = 0;
    BP_TRY(make_manifest(c, f, &m));
    int32_t rc = BP_OK;
    if (c->json)
        manifest_json(c->out, m);
    else
        rc = bp_manifest_text(m, &text, &n, &c->err);
    if (text != NULL) term_out(text, n);
    bp_free(text);
    bp_manifest_close(m);
    return rc;
}

/* ---- --check ---- */

static const char *const difference_keys[] = {"headers", "damaged", "missing", "additional"};

struct comparison {
    struct cli *c;
    json_t *lists[4];
    uint64_t n[4];
};

static void add_difference(void *ctx, const struct bp_difference *d)
{
    static const char *const words[] = {"header", "damaged", "missing", "additional"};
    struct comparison *cmp = ctx;
    if (d->kind > BP_DIFFERENCE_ADDITIONAL) return;
    cmp->n[d->kind]++;
    if (cmp->c->json) {
        json_t *o = json_object();
        if (d->kind != BP_DIFFERENCE_HEADER)
            json_object_set_new(o, "name", cli_json_text(d->name, strlen(d->name)));
        json_object_set_new(o, "shard", cli_json_text(d->shard, strlen(d->shard)));
        json_object_set_new(o, "text", cli_json_text(d->text, strlen(d->text)));
        json_array_append_new(cmp->lists[d->kind], o);
        return;
    }
    char line[1024];
    snprintf(line, sizeof line, "%-10s %s (%s): %s\n", words[d->kind],
             d->kind == BP_DIFFERENCE_HEADER ? "of the file" : d->name, d->shard, d->text);
    term_out(line, strlen(line));
}

static void report_comparison(struct comparison *cmp, const struct bp_manifest_info *info,
                              uint64_t n)
{
    struct cli *c = cmp->c;
    c->answer_no = n > 0;
    if (c->json) {
        json_object_set_new(c->out, "ok", json_boolean(n == 0));
        json_object_set_new(c->out, "n_tensors", number(info->n_tensors));
        for (size_t k = 0; k < 4; ++k)
            json_object_set_new(c->out, difference_keys[k], cmp->lists[k]);
        return;
    }
    if (n == 0)
        printf("all %llu tensors and %llu header%s are what the manifest says\n",
               (unsigned long long)info->n_tensors, (unsigned long long)info->n_shards,
               info->n_shards == 1 ? "" : "s");
    else
        printf("%llu damaged, %llu missing, %llu additional of %llu tensors; %llu header%s "
               "differ%s\n",
               (unsigned long long)cmp->n[1], (unsigned long long)cmp->n[2],
               (unsigned long long)cmp->n[3], (unsigned long long)info->n_tensors,
               (unsigned long long)cmp->n[0], cmp->n[0] == 1 ? "" : "s", cmp->n[0] == 1 ? "s" : "");
}

int32_t inspect_compare(struct cli *c, const struct bp_file *f, const char *manifest)
{
    struct bp_manifest *want = NULL, *have = NULL;
    struct bp_manifest_info info = {.h = BP_HDR(struct bp_manifest_info, n_tensors)};
    struct comparison cmp = {.c = c};
    BP_TRY(bp_manifest_load(manifest, &want, &c->err));
    int32_t rc = make_manifest(c, f, &have);
    if (rc == BP_OK) {
        for (size_t k = 0; c->json && k < 4; ++k) cmp.lists[k] = json_array();
        bp_manifest_info(want, &info);
        uint64_t n = bp_manifest_compare(want, have, add_difference, &cmp);
        report_comparison(&cmp, &info, n);
    }
    bp_manifest_close(have);
    bp_manifest_close(want);
    return rc;
}

/* ---- --validate ---- */

struct listing {
    struct cli *c;
    json_t *rows;
};

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

static void add_bad(void *ctx, const struct bp_bad_blocks *b)
{
    struct listing *l = ctx;
    const char *shard = base_name(b->shard);
    if (l->c->json) {
        json_t *o = json_object();
        json_object_set_new(o, "tensor", cli_json_text(b->tensor, strlen(b->tensor)));
        json_object_set_new(o, "shard", cli_json_text(shard, strlen(shard)));
        json_object_set_new(o, "type", json_string(b->type_name));
        json_object_set_new(o, "block", number(b->block));
        json_object_set_new(o, "blocks", number(b->n_blocks));
        json_object_set_new(o, "reason", json_string(b->reason));
        json_array_append_new(l->rows, o);
        return;
    }
    char line[1024], more[64] = "";
    if (b->n_blocks > 1)
        snprintf(more, sizeof more, " to %llu", (unsigned long long)(b->block + b->n_blocks - 1));
    snprintf(line, sizeof line, "%s (%s, %s) block %llu%s: %s\n", b->tensor, b->type_name, shard,
             (unsigned long long)b->block, more, b->reason);
    term_out(line, strlen(line));
}

static void report_validation(struct listing *l, const struct bp_validation *v)
{
    json_t *o = l->c->out;
    l->c->answer_no = v->n_bad_blocks > 0;
    if (l->c->json) {
        json_object_set_new(o, "ok", json_boolean(v->n_bad_blocks == 0));
        json_object_set_new(o, "n_tensors", number(v->n_tensors));
        json_object_set_new(o, "n_bad_tensors", number(v->n_bad_tensors));
        json_object_set_new(o, "n_blocks", number(v->n_blocks));
        json_object_set_new(o, "n_bad_blocks", number(v->n_bad_blocks));
        json_object_set_new(o, "bytes", number(v->n_bytes));
        return;
    }
    printf("%llu of %llu blocks in %llu of %llu tensors are bad\n",
           (unsigned long long)v->n_bad_blocks, (unsigned long long)v->n_blocks,
           (unsigned long long)v->n_bad_tensors, (unsigned long long)v->n_tensors);
}

int32_t inspect_validate(struct cli *c, const struct bp_file *f)
{
    struct term_progress bar;
    struct bp_callbacks cb = progress_of(&bar, "validating");
    struct bp_validation v = {.h = BP_HDR(struct bp_validation, n_bytes)};
    struct listing l = {.c = c};
    if (c->json) {
        l.rows = json_array();
        json_object_set_new(c->out, "findings", l.rows);
    }
    int32_t rc = bp_file_validate(f, c->config, &cb, RUNS_PER_TENSOR, add_bad, &l, &v, &c->err);
    term_progress_end(&bar);
    if (rc == BP_OK) report_validation(&l, &v);
    return rc;
}
