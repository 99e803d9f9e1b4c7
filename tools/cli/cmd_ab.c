/* cmd_ab.c - `backplane ab`: two configurations on the same tokens; names the first difference and who made it.
 * Not here: the comparison (core/compare), the output (ab_out.c), the report (ab_html.c).
 * SPDX-License-Identifier: MIT */
#include "ab_html.h"
#include "ab_out.h"
#include "dump.h"
#include "golden.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// clang-format off
static const struct cli_option options[] = {
    {"a",       0,  CLI_TEXT, "K=V", NULL, NULL, 0, 0,
     "A setting of side A, like -s; several with blanks between them, or the option several times. Besides keys of the "
     "configuration: chunk=K, prompt tokens per step, and batch=N, sequences per step."},
    {"b",       0,  CLI_TEXT, "K=V", NULL, NULL, 0, 0, "The same of side B. Settings with -s are of both sides."},
    {"prompt",  'p', CLI_TEXT, "TEXT", NULL, NULL, 0, 0, "The text to compare on."},
    {"file",    'f', CLI_TEXT, "FILE", NULL, NULL, 0, 0, "Read the text from a file."},
    {"ids",      0,  CLI_TEXT, "ID,...", NULL, NULL, 0, 0, "Compare on these token ids in place of a text."},
    {"tokens",  'n', CLI_INT, "N", "0", NULL, 0, 1000000,
     "Let A pick N more tokens, the likeliest each time; both sides get them, in the decode form."},
    {"mode",     0,  CLI_TEXT, "MODE", NULL, NULL, 0, 0,
     "shadow: A runs, and each op of B gets A's very inputs. free: two whole runs. Shadow is the default where it can be."},
    {"model-b",  0,  CLI_TEXT, "FILE", NULL, NULL, 0, 0, "Side B reads another file."},
    {"golden",  'g', CLI_TEXT, "FILE", NULL, NULL, 0, 0,
     "Side B is a golden file: its first prompt's ids are the tokens, unless --golden-prompt names another."},
    {"golden-prompt", 0, CLI_INT, "N", "0", NULL, 0, 4095, "Which prompt of the golden file."},
    {"baseline", 0,  CLI_TEXT, "P", "auto", NULL, 0, 0,
     "What an error is judged by: ref rounded like this - auto (the coarsest that a side uses), none, bf16, f16."},
    {"max-kl",   0,  CLI_FLOAT, "X", NULL, NULL, 0, 1e30,
     "Largest mean KL(A || B) of the logits that passes, in nats."},
    {"max-abs",  0,  CLI_FLOAT, "X", NULL, NULL, 0, 1e30,
     "Largest difference of a logit that passes. In free mode limits that are given replace the judgement by the baseline."},
    {"html",     0,  CLI_TEXT, "FILE", NULL, NULL, 0, 0, "Write a report with plots, one file that needs no network."},
    {"dump",     0,  CLI_TEXT, "NAME,...", NULL, NULL, 0, 0,
     "Write these taps of A, '*' matching anything, to a golden file."},
    {"dump-to",  0,  CLI_TEXT, "FILE", "backplane-dump.gguf", NULL, 0, 0, "The golden file that --dump writes."},
    {"seed",     0,  CLI_INT, "S", "0", NULL, 0, 2147483647, "Seed of the order of the two sides' calls."},
};
// clang-format on

struct ab_cmd {
    struct cli *c;
    struct bp_config *config[2];
    struct bp_model *model_b;
    struct golden golden;
    struct bp_ab *ab;
    json_t *settings[2];
    uint32_t chunk[2], batch[2];
    char *text;
    size_t n_text;
    int32_t *ids; /* malloc */
    size_t n_ids;
    uint32_t mode, baseline;
};

/* ---- settings ---- */

static bool pseudo(const char *word, const char *name, uint32_t *out)
{
    const size_t n = strlen(name);
    char *end = NULL;
    if (strncmp(word, name, n) != 0 || word[n] != '=') return false;
    const unsigned long v = strtoul(word + n + 1, &end, 10);
    *out = word[n + 1] >= '0' && word[n + 1] <= '9' && *end == '\0' && v >= 1 && v <= 65536
               ? (uint32_t)v
               : 0;
    return true;
}

static int32_t set_word(struct ab_cmd *m, uint32_t side, const char *word)
{
    struct cli *c = m->c;
    const char *name = side == 0 ? "--a" : "--b", *eq = strchr(word, '=');
    char key[200];
    if (pseudo(word, "chunk", &m->chunk[side]) || pseudo(word, "batch", &m->batch[side])) {
        const uint32_t v = strncmp(word, "chunk", 5) == 0 ? m->chunk[side] : m->batch[side];
        if (v == 0)
            return cli_fail(&c->err, BP_E_ARG, name, "'%.60s' needs a number from 1 to 65536",
                            word);
    } else {
        struct bp_error why = BP_ERROR_INIT;
        int32_t rc = bp_config_set(m->config[side], word, &why);
        if (rc != BP_OK)
            return cli_fail(&c->err, rc == BP_E_CONFIG ? BP_E_ARG : rc, name, "%.400s", why.msg);
    }
    snprintf(key, sizeof key, "%.*s", (int)(eq != NULL ? eq - word : 0), word);
    json_object_set_new(m->settings[side], key, cli_json_text(eq + 1, strlen(eq + 1)));
    return BP_OK;
}

static int32_t set_words(struct ab_cmd *m, uint32_t side, const char *text)
{
    char word[4200];
    while (*text != '\0') {
        const size_t skip = strspn(text, " \t\n"), n = strcspn(text + skip, " \t\n");
        text += skip;
        if (n == 0) break;
        if (n >= sizeof word)
            return cli_fail(&m->c->err, BP_E_ARG, side == 0 ? "--a" : "--b",
                            "a setting is longer than 4096 bytes");
        memcpy(word, text, n);
        word[n] = '\0';
        BP_TRY(set_word(m, side, word));
        text += n;
    }
    return BP_OK;
}

/* Each side starts from what -c and -s say. */
static int32_t open_configs(struct ab_cmd *m)
{
    struct cli *c = m->c;
    BP_TRY(cli_open_config(c));
    for (uint32_t side = 0; side < 2; ++side) {
        BP_TRY(bp_config_create(&m->config[side], &c->err));
        const char *file = cli_text(&c->line, "config"), *value;
        if (file != NULL) BP_TRY(bp_config_load(m->config[side], file, &c->err));
        for (size_t i = 0; i < c->line.n_sets; ++i)
            BP_TRY(bp_config_set(m->config[side], c->line.sets[i], &c->err));
        m->settings[side] = json_object();
        for (size_t i = 0; (value = cli_given_at(&c->line, side == 0 ? "a" : "b", i)) != NULL; ++i)
            BP_TRY(set_words(m, side, value));
    }
    return BP_OK;
}

/* A side that takes n sequences a step needs room for them. */
static int32_t make_room(struct ab_cmd *m)
{
    char text[64];
    for (uint32_t side = 0; side < 2; ++side) {
        const char *have = bp_config_get(m->config[side], "engine", "max_seqs");
        if (m->batch[side] <= (have != NULL ? strtoul(have, NULL, 10) : 1)) continue;
        snprintf(text, sizeof text, "engine.max_seqs=%u", m->batch[side]);
        struct bp_error why = BP_ERROR_INIT;
        if (bp_config_set(m->config[side], text, &why) != BP_OK)
            return cli_fail(&m->c->err, BP_E_ARG, side == 0 ? "--a" : "--b",
                            "batch=%u is more than engine.max_seqs can be: %.300s", m->batch[side],
                            why.msg);
    }
    return BP_OK;
}

static int32_t choose_mode(struct ab_cmd *m)
{
    static const char *const names[] = {"auto", "none", "bf16", "f16"};
    struct cli *c = m->c;
    const char *mode = cli_text(&c->line, "mode"), *baseline = cli_text(&c->line, "baseline");
    const bool free_only =
        cli_given(&c->line, "golden") || m->chunk[0] != m->chunk[1] || m->batch[0] != m->batch[1];
    m->mode = free_only ? BP_AB_FREE : BP_AB_SHADOW;
    if (mode != NULL) {
        if (strcmp(mode, "shadow") != 0 && strcmp(mode, "free") != 0)
            return cli_fail(&c->err, BP_E_ARG, "--mode", "--mode takes shadow or free, not '%.60s'",
                            mode);
        m->mode = strcmp(mode, "free") == 0 ? BP_AB_FREE : BP_AB_SHADOW;
    }
    for (m->baseline = 0; m->baseline < 4; ++m->baseline) {
        if (strcmp(baseline, names[m->baseline]) == 0) return BP_OK;
    }
    return cli_fail(&c->err, BP_E_ARG, "--baseline",
                    "--baseline takes auto, none, bf16 or f16, not '%.60s'", baseline);
}

/* ---- tokens ---- */

static int32_t read_ids(struct ab_cmd *m, const char *text)
{
    struct cli *c = m->c;
    m->ids = calloc(strlen(text) + 1, sizeof *m->ids);
    if (m->ids == NULL) return cli_fail(&c->err, BP_E_NOMEM, "--ids", "out of memory");
    while (*text != '\0') {
        char *end = NULL;
        const long v = strtol(text, &end, 10);
        const bool digit = *text >= '0' && *text <= '9';
        if (!digit || (*end != ',' && *end != '\0') || v >= (long)bp_model_n_vocab(c->model))
            return cli_fail(&c->err, BP_E_ARG, "--ids",
                            "'%.30s' does not begin with a token id from 0 to %u", text,
                            bp_model_n_vocab(c->model) - 1);
        m->ids[m->n_ids++] = (int32_t)v;
        text = *end == ',' ? end + 1 : end;
    }
    return BP_OK;
}

static int32_t keep_ids(struct ab_cmd *m, const int32_t *ids, size_t n)
{
    m->ids = malloc((n + 1) * sizeof *m->ids);
    if (m->ids == NULL) return cli_fail(&m->c->err, BP_E_NOMEM, "prompt", "out of memory");
    if (n > 0) memcpy(m->ids, ids, n * sizeof *ids);
    m->n_ids = n;
    return BP_OK;
}

static int32_t read_prompt(struct ab_cmd *m)
{
    struct cli *c = m->c;
    int32_t *ids = NULL;
    size_t n = 0;
    if (cli_given(&c->line, "ids")) return BP_OK;
    BP_TRY(cli_read_text(c, true, &m->text, &m->n_text));
    BP_TRY(cli_open_model(c));
    BP_TRY(bp_tokenize(c->model, m->text, m->n_text, BP_TOKENIZE_BOS, &ids, &n, &c->err));
    int32_t rc = keep_ids(m, ids, n);
    bp_free(ids);
    return rc;
}

static int32_t open_golden(struct ab_cmd *m)
{
    struct cli *c = m->c;
    const uint32_t n = (uint32_t)cli_int(&c->line, "golden-prompt");
    BP_TRY(cli_open_model(c));
    BP_TRY(golden_open(&m->golden, cli_text(&c->line, "golden"), c->model, &c->err));
    if (n >= m->golden.n_prompts)
        return cli_fail(&c->err, BP_E_ARG, "--golden-prompt",
                        "the golden file has the prompts 0 to %u only", m->golden.n_prompts - 1);
    const struct golden_prompt *p = &m->golden.prompts[n];
    m->text = malloc(p->n_text + 1);
    if (m->text == NULL) return cli_fail(&c->err, BP_E_NOMEM, "--golden", "out of memory");
    if (p->n_text > 0) memcpy(m->text, p->text, p->n_text);
    m->text[p->n_text] = '\0';
    m->n_text = p->n_text;
    return keep_ids(m, p->ids, p->n_ids);
}

static int32_t read_input(struct ab_cmd *m)
{
    struct cli *c = m->c;
    const bool given = cli_given(&c->line, "prompt") || cli_given(&c->line, "file");
    const bool golden = cli_given(&c->line, "golden"), ids = cli_given(&c->line, "ids");
    if ((golden && (given || ids || cli_given(&c->line, "model-b"))) || (ids && given))
        return cli_fail(&c->err, BP_E_ARG, golden ? "--golden" : "--ids",
                        "the tokens can come from one place only: a text, --ids or --golden, which "
                        "also stands for side B");
    if (golden) return open_golden(m);
    BP_TRY(read_prompt(m));
    if (!given && !ids && m->n_text == 0)
        return cli_fail(
            &c->err, BP_E_ARG, "prompt",
            "there is nothing to compare on: standard input was empty; give a text with "
            "-p or -f, or --ids");
    BP_TRY(cli_open_model(c));
    if (ids) BP_TRY(read_ids(m, cli_text(&c->line, "ids")));
    if (m->n_ids == 0)
        return cli_fail(&c->err, BP_E_ARG, "prompt",
                        "the text has no tokens and this model begins texts with no BOS token, so "
                        "there is nothing to compare on; give some text");
    const char *file = cli_text(&c->line, "model-b");
    if (file == NULL) return BP_OK;
    struct bp_callbacks cb = {.h = BP_HDR(struct bp_callbacks, progress), .log = term_log};
    return bp_model_open(file, m->config[1], &cb, &m->model_b, &c->err);
}

/* ---- memory ---- */

struct estimate {
    uint64_t cache, weights, scratch;
    uint64_t layer; /* weights of the largest layer */
};

/* Weights by layer, -1 being the last place; rows say what runs of layers have together. */
static uint64_t largest_layer(const struct bp_decisions *d)
{
    struct bp_decision row = {.h = BP_HDR(struct bp_decision, weight_bytes)};
    int32_t n_layers = 0;
    uint64_t most = 0;
    for (uint32_t i = 0; bp_decision(d, i, &row) == BP_OK; ++i)
        n_layers = row.layer_end > n_layers ? row.layer_end : n_layers;
    for (int32_t layer = -1; layer < n_layers; ++layer) {
        uint64_t sum = 0;
        for (uint32_t i = 0; bp_decision(d, i, &row) == BP_OK; ++i) {
            const uint64_t n =
                row.layer_begin < 0 ? 1 : (uint64_t)(row.layer_end - row.layer_begin);
            const bool here =
                row.layer_begin < 0 ? layer < 0 : layer >= row.layer_begin && layer < row.layer_end;
            if (here) sum += row.file_bytes / n;
        }
        most = sum > most ? sum : most;
    }
    return most;
}

/* What a side will take, from its choices alone, before anything is loaded. A side that cannot be opened says so later. */
static bool estimate(struct ab_cmd *m, uint32_t side, struct estimate *e)
{
    struct bp_decisions *d = NULL;
    struct bp_error ignored = BP_ERROR_INIT;
    struct bp_decision row = {.h = BP_HDR(struct bp_decision, weight_bytes)};
    struct bp_decision_kv kv = {.h = BP_HDR(struct bp_decision_kv, index_token_bytes)};
    struct bp_decisions_info info = {.h = BP_HDR(struct bp_decisions_info, scratch_bytes)};
    struct bp_model *model = side == 1 && m->model_b != NULL ? m->model_b : m->c->model;
    const char *ctx = bp_config_get(m->config[side], "engine", "ctx");
    const char *seqs = bp_config_get(m->config[side], "engine", "max_seqs");
    uint64_t n = ctx != NULL ? strtoull(ctx, NULL, 10) : 0;
    if (n == 0) n = bp_model_n_ctx(model) < 4096 ? bp_model_n_ctx(model) : 4096;
    if (seqs != NULL) n *= strtoull(seqs, NULL, 10);
    *e = (struct estimate){0};
    const bool ok = bp_explain(model, m->config[side], NULL, &d, &ignored) == BP_OK;
    for (uint32_t i = 0; ok && bp_decision_kv(d, i, &kv) == BP_OK; ++i)
        e->cache +=
            n * (kv.token_bytes + kv.index_token_bytes) * (uint64_t)(kv.layer_end - kv.layer_begin);
    for (uint32_t i = 0; ok && bp_decision(d, i, &row) == BP_OK; ++i) e->weights += row.file_bytes;
    if (ok) bp_decisions_info(d, &info);
    if (ok) e->layer = largest_layer(d);
    e->scratch = info.scratch_bytes;
    bp_decisions_close(d);
    return ok;
}

static void say_memory(struct ab_cmd *m)
{
    const uint32_t sides = m->golden.file != NULL ? 1 : 2;
    for (uint32_t side = 0; side < sides && !m->c->json; ++side) {
        struct estimate e;
        if (!estimate(m, side, &e)) continue;
        const bool mirror = side == 1 && m->mode == BP_AB_SHADOW;
        term_say("side %c: cache %.1f MiB, weights %.1f MiB as the file holds them%s, scratch %.1f "
                 "MiB",
                 side == 0 ? 'A' : 'B', (double)e.cache / 0x1p20,
                 (double)(mirror ? e.layer : e.weights) / 0x1p20,
                 mirror ? " (one layer at a time)" : "", (double)e.scratch / 0x1p20);
    }
}

/* ---- running ---- */

static double limit(const struct cli *c, const char *name)
{
    return cli_given(&c->line, name) ? cli_float(&c->line, name) : (double)NAN;
}

static int32_t run(struct ab_cmd *m)
{
    struct cli *c = m->c;
    static struct term_progress bar; /* sessions keep the callbacks */
    struct bp_callbacks cb = {.h = BP_HDR(struct bp_callbacks, progress),
                              .ctx = &bar,
                              .log = term_log,
                              .progress = term_progress_fn};
    struct bp_ab_golden g = {.h = BP_HDR(struct bp_ab_golden, n_hidden)};
    struct bp_ab_params p = {.h = BP_HDR(struct bp_ab_params, cb),
                             .ids = m->ids,
                             .n_ids = (uint32_t)m->n_ids,
                             .n_new = (uint32_t)cli_int(&c->line, "tokens"),
                             .mode = m->mode,
                             .baseline = m->baseline,
                             .max_kl = limit(c, "max-kl"),
                             .max_abs = limit(c, "max-abs"),
                             .seed = (uint64_t)cli_int(&c->line, "seed"),
                             .dump = cli_text(&c->line, "dump"),
                             .cb = &cb};
    struct bp_ab_side *side[2] = {&p.a, &p.b};
    for (uint32_t i = 0; i < 2; ++i)
        *side[i] = (struct bp_ab_side){.h = BP_HDR(struct bp_ab_side, batch),
                                       .model = c->model,
                                       .config = m->config[i],
                                       .chunk = m->chunk[i],
                                       .batch = m->batch[i]};
    if (m->model_b != NULL) p.b.model = m->model_b;
    if (m->golden.file != NULL) {
        const struct golden_prompt *gp = &m->golden.prompts[cli_int(&c->line, "golden-prompt")];
        g.logits = gp->logits;
        g.n_rows = gp->n_rows;
        g.hidden = gp->hidden;
        g.n_hidden = gp->n_hidden;
        p.golden = &g;
        p.b.model = NULL;
    }
    say_memory(m);
    term_progress_begin(&bar, "comparing");
    c->computing = true;
    int32_t rc = bp_ab_run(&p, &m->ab, &c->err);
    term_progress_end(&bar);
    return rc;
}

/* ---- output ---- */

static int32_t write_dump(struct ab_cmd *m)
{
    struct cli *c = m->c;
    struct dump_prompt p = {.text = m->text != NULL ? m->text : "", .n_text = m->n_text};
    struct bp_ab_tap tap = {.h = BP_HDR(struct bp_ab_tap, pos)};
    struct bp_ab_summary s = {.h = BP_HDR(struct bp_ab_summary, compare_bytes)};
    uint32_t n = 0;
    if (!cli_given(&c->line, "dump")) return BP_OK;
    while (bp_ab_tap(m->ab, n, &tap) == BP_OK) ++n;
    struct dump_tap *taps = calloc(n + 1u, sizeof *taps);
    if (taps == NULL) return cli_fail(&c->err, BP_E_NOMEM, "--dump", "out of memory");
    for (uint32_t i = 0; bp_ab_tap(m->ab, i, &tap) == BP_OK; ++i) {
        if (tap.side != 0) continue;
        taps[p.n_taps++] = (struct dump_tap){.name = tap.name,
                                             .n_rows = tap.n_rows,
                                             .width = tap.width,
                                             .integer = tap.integer != 0,
                                             .data = tap.data,
                                             .pos = tap.pos};
    }
    bp_ab_summary(m->ab, &s);
    p.ids = bp_ab_ids(m->ab, &p.n_ids);
    p.logits = bp_ab_logits(m->ab, 0, 0);
    p.n_rows = s.n_pos;
    p.taps = taps;
    int32_t rc = dump_write(cli_text(&c->line, "dump-to"), c->model, &p, 1, &c->err);
    free(taps);
    return rc;
}

static int32_t tell(struct ab_cmd *m)
{
    struct cli *c = m->c;
    struct bp_ab_summary s = {.h = BP_HDR(struct bp_ab_summary, compare_bytes)};
    const char *other = cli_given(&c->line, "golden") ? cli_text(&c->line, "golden")
                        : m->model_b != NULL          ? cli_text(&c->line, "model-b")
                                                      : cli_model_path(c);
    const struct ab_side_text side[2] = {{m->settings[0], cli_model_path(c)},
                                         {m->settings[1], other}};
    int32_t rc = write_dump(m);
    bp_ab_summary(m->ab, &s);
    c->answer_no = !s.pass;
    json_t *o = ab_json(c, m->ab, side, m->text != NULL ? m->text : "", limit(c, "max-kl"),
                        limit(c, "max-abs"));
    if (o == NULL) return cli_fail(&c->err, BP_E_NOMEM, "ab", "out of memory");
    if (rc == BP_OK && cli_given(&c->line, "html"))
        rc = cli_ab_html(o, cli_text(&c->line, "html"), &c->err);
    if (c->json)
        json_object_update(c->out, o);
    else if (rc == BP_OK)
        ab_print(m->ab, c->verbose);
    json_decref(o);
    return rc;
}

static int32_t cmd_ab(struct cli *c)
{
    struct ab_cmd m = {.c = c};
    int32_t rc;
    if (cli_given(&c->line, "html")) BP_TRY_GOTO(rc, cli_check_output(c, "html", NULL), done);
    if (cli_given(&c->line, "dump"))
        BP_TRY_GOTO(rc, cli_check_output(c, "dump-to", cli_given(&c->line, "html") ? "html" : NULL),
                    done);
    BP_TRY_GOTO(rc, open_configs(&m), done);
    BP_TRY_GOTO(rc, make_room(&m), done);
    BP_TRY_GOTO(rc, choose_mode(&m), done);
    BP_TRY_GOTO(rc, read_input(&m), done);
    BP_TRY_GOTO(rc, run(&m), done);
    rc = tell(&m);
done:
    bp_ab_close(m.ab);
    golden_close(&m.golden);
    bp_model_close(m.model_b);
    for (int i = 0; i < 2; ++i) {
        bp_config_destroy(m.config[i]);
        json_decref(m.settings[i]);
    }
    free(m.text);
    free(m.ids);
    return rc;
}

const struct cli_command cli_cmd_ab = {
    .name = "ab",
    .args = "",
    .summary = "Compare two configurations on the same tokens and name the first difference.",
    .details =
        "Sides differ by any settings (--a, --b), by model file (--model-b), by plugin file (two "
        "[plugin.NAME] sections with `file`), by chunk and batch, or side B is a golden file.\n\n"
        "Shadow mode charges an error to the op that made it: B computes on A's inputs, call by "
        "call, and both are judged by ref at the same precision. Free mode compares two whole runs "
        "at every tap and tells what is made where and what is inherited. Exit status 0: they "
        "agree to the precision in use, or keep to --max-kl and --max-abs; 1: they do not.\n\n"
        "JSON: mode, a and b {settings, backends, model}, prompt {text, ids}, ops[] {slot, op, "
        "layer, tap, calls, max_abs, max_rel, norm_rel, baseline_norm_rel, worst_row, flips[] "
        "{row, a, b, gap, wide}, status, made_here, time_a_us and time_b_us {median, lo, hi}, "
        "bytes, flops}, first_difference, logits {max_abs, mean_abs, kl, kl_ba, topk_overlap, "
        "by_position[]}, timing, memory, verdict {pass, text, thresholds}.",
    .options = options,
    .n_options = sizeof options / sizeof options[0],
    .run = cmd_ab,
};
