/* cmd_verify.c - `backplane verify`: a model against golden logits, hidden states and greedy continuations.
 * Not here: reading the golden file (golden.c), the numbers (measure.c). No NaN passes any comparison.
 * SPDX-License-Identifier: MIT */
#include "golden.h"
#include "measure.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// clang-format off
static const struct cli_option options[] = {
    {"golden",  'g', CLI_TEXT, "FILE", NULL, NULL, 0, 0, "The golden values, a GGUF of architecture 'golden'."},
    {"mode",     0,  CLI_TEXT, "MODE", "whole", NULL, 0, 0,
     "How prompts are computed: whole (one step where engine.batch_tokens allows), chunk:K (steps of K tokens), step "
     "(every token by itself, in the decode form)."},
    {"max-abs",  0,  CLI_FLOAT, "X", "5e-4", NULL, 0, 1e30,
     "Largest difference that passes, over logits and hidden states."},
    {"gap",      0,  CLI_FLOAT, "G", NULL, NULL, 0, 1e30,
     "For reduced precision: the likeliest token may differ only where the golden gap between the two best is at most "
     "G, and --max-abs counts only when it is given."},
    {"kl",       0,  CLI_FLOAT, "X", NULL, NULL, 0, 1e30,
     "Largest mean KL divergence (golden from ours, over all rows) that passes."},
};
// clang-format on

/* One verification. */
struct verify {
    struct cli *c;
    struct golden golden;
    struct measure *results; /* (n_prompts) */
    size_t step;             /* tokens per step, 0 = whole */
    uint32_t flags;
    /* the prompt at hand */
    const struct golden_prompt *p;
    struct measure *m;
    int32_t next; /* our pick behind the last row */
};

/* ---- computing ---- */

static int32_t add_logits(void *ctx, size_t index, const float *logits)
{
    struct verify *v = ctx;
    const struct golden_prompt *p = v->p;
    size_t row = index - (p->n_ids - p->n_rows), width = bp_model_n_vocab(v->c->model);
    if (measure_row(v->m, (uint32_t)row, p->logits + row * width, logits, (uint32_t)width) != BP_OK)
        return cli_fail(&v->c->err, BP_E_NOMEM, "verify", "out of memory");
    if (index + 1 == p->n_ids && p->n_greedy > 0)
        v->next = measure_greedy(v->m, logits, (uint32_t)width, p->greedy[0]);
    return BP_OK;
}

static int32_t add_greedy(void *ctx, size_t index, const float *logits)
{
    struct verify *v = ctx;
    (void)index;
    v->next = measure_greedy(v->m, logits, bp_model_n_vocab(v->c->model),
                             v->p->greedy[v->m->greedy_match]);
    return BP_OK;
}

static void add_hidden(void *ctx, const struct bp_tap_event *e)
{
    struct verify *v = ctx;
    uint32_t last = bp_model_n_layer(v->c->model), width = bp_model_n_embd(v->c->model), level;
    if (strcmp(e->name, "embd") == 0)
        level = 0;
    else if (strcmp(e->name, "output_norm") == 0)
        level = last;
    else if (e->layer >= 0 && (uint32_t)e->layer + 1 < last)
        level = (uint32_t)e->layer + 1;
    else
        return; /* the last layer's residual: the golden file has it after output_norm */
    for (uint32_t i = 0; i < e->n_rows; ++i) {
        if (e->row_pos[i] >= v->p->n_ids) continue;
        measure_hidden(v->m, level, v->p->hidden[level] + (size_t)e->row_pos[i] * width, e->data, i,
                       width);
    }
}

/* Every token must have been seen at every level, or the comparison is not what it says. */
static int32_t check_hidden(struct verify *v)
{
    for (uint32_t l = 0; l < v->p->n_hidden; ++l) {
        if (v->m->hidden_rows[l] != v->p->n_ids)
            return cli_fail(&v->c->err, BP_E_INTERNAL, "verify",
                            "the engine showed hidden state %u for %llu of %u tokens", l,
                            (unsigned long long)v->m->hidden_rows[l], v->p->n_ids);
    }
    return BP_OK;
}

static int32_t run_prompt(struct verify *v, uint32_t n)
{
    struct cli *c = v->c;
    const struct golden_prompt *p = &v->golden.prompts[n];
    v->p = p;
    v->m = &v->results[n];
    if (measure_begin(v->m, p->n_hidden, p->n_greedy) != BP_OK)
        return cli_fail(&c->err, BP_E_NOMEM, "verify", "out of memory");
    BP_TRY(bp_seq_reset(c->session, 0, &c->err));
    if (p->n_hidden > 0)
        BP_TRY(bp_session_tap(c->session, "embd,blk.*.out,output_norm", add_hidden, v, &c->err));
    uint64_t steps = c->n_steps;
    BP_TRY(cli_feed(c, p->ids, p->n_ids, v->step, v->flags, p->n_ids - p->n_rows, add_logits, v));
    v->m->steps = c->n_steps - steps;
    BP_TRY(bp_session_tap(c->session, NULL, NULL, NULL, &c->err));
    BP_TRY(check_hidden(v));
    /* From here on our own tokens are fed, which are the golden ones as long as they agree. */
    for (uint32_t k = 1; k < p->n_greedy && v->m->greedy_match == k; ++k)
        BP_TRY(cli_feed(c, &v->next, 1, 0, BP_STEP_DECODE, 0, add_greedy, v));
    return BP_OK;
}

/* ---- verdict ---- */

struct verdict {
    struct measure all;
    double max_hidden, max_any;
    bool pass, use_abs, use_gap, use_kl;
    double limit_abs, limit_gap, limit_kl;
};

static void judge(struct verify *v, struct verdict *out)
{
    const struct cli_line *l = &v->c->line;
    *out = (struct verdict){.use_gap = cli_given(l, "gap"),
                            .use_kl = cli_given(l, "kl"),
                            .use_abs = !cli_given(l, "gap") || cli_given(l, "max-abs"),
                            .limit_abs = cli_float(l, "max-abs"),
                            .limit_gap = cli_float(l, "gap"),
                            .limit_kl = cli_float(l, "kl")};
    for (uint32_t n = 0; n < v->golden.n_prompts; ++n) {
        measure_merge(&out->all, &v->results[n]);
        for (uint32_t k = 0; k < v->results[n].n_hidden; ++k)
            measure_max(&out->max_hidden, v->results[n].hidden_max[k]);
    }
    out->max_any = out->all.max_abs;
    measure_max(&out->max_any, out->max_hidden);
    double greedy_allowed = out->use_gap ? out->limit_gap : -1.0;
    out->pass = isfinite(out->max_any) && (!out->use_abs || out->max_any <= out->limit_abs) &&
                (!out->use_kl || measure_mean_kl(&out->all) <= out->limit_kl) &&
                (!out->use_gap || out->all.max_flip_gap <= out->limit_gap) &&
                out->all.greedy_gap <= greedy_allowed;
    v->c->answer_no = !out->pass;
}

/* ---- output ---- */

static void measure_json(json_t *o, const struct measure *m)
{
    json_object_set_new(o, "max_abs", cli_json_real(m->max_abs));
    json_object_set_new(o, "mean_kl", cli_json_real(measure_mean_kl(m)));
    json_object_set_new(o, "max_kl", cli_json_real(m->max_kl));
    json_object_set_new(o, "top1_agree", cli_json_real(measure_agree(m)));
    json_object_set_new(o, "rows", json_integer((json_int_t)m->rows));
    json_object_set_new(o, "greedy_match", json_integer(m->greedy_match));
    json_object_set_new(o, "greedy_total", json_integer(m->greedy_total));
    json_object_set_new(o, "greedy_gap",
                        m->greedy_gap < 0.0 ? json_null() : cli_json_real(m->greedy_gap));
    json_object_set_new(o, "max_flip_gap",
                        m->max_flip_gap < 0.0 ? json_null() : cli_json_real(m->max_flip_gap));
}

static json_t *prompt_json(const struct golden_prompt *p, const struct measure *m)
{
    json_t *o = json_object(), *hidden = json_array(), *flips = json_array();
    json_object_set_new(o, "text", cli_json_text(p->text != NULL ? p->text : "", p->n_text));
    json_object_set_new(o, "tokens", json_integer(p->n_ids));
    json_object_set_new(o, "steps", json_integer((json_int_t)m->steps));
    measure_json(o, m);
    for (uint32_t k = 0; k < m->n_hidden; ++k)
        json_array_append_new(hidden, cli_json_real(m->hidden_max[k]));
    json_object_set_new(o, "hidden_max_abs", hidden);
    for (size_t k = 0; k < m->n_flips; ++k) {
        json_t *f = json_object();
        json_object_set_new(f, "row", json_integer(m->flips[k].row));
        json_object_set_new(f, "gap", cli_json_real(m->flips[k].gap));
        json_object_set_new(f, "golden_id", json_integer(m->flips[k].golden_id));
        json_object_set_new(f, "our_id", json_integer(m->flips[k].our_id));
        json_array_append_new(flips, f);
    }
    json_object_set_new(o, "flips", flips);
    return o;
}

static void fill_json(const struct verify *v, const struct verdict *d)
{
    json_t *o = v->c->out, *prompts = json_array(), *limits = json_object();
    for (uint32_t n = 0; n < v->golden.n_prompts; ++n)
        json_array_append_new(prompts, prompt_json(&v->golden.prompts[n], &v->results[n]));
    json_object_set_new(o, "mode", json_string(cli_text(&v->c->line, "mode")));
    json_object_set_new(o, "prompts", prompts);
    measure_json(o, &d->all);
    json_object_set_new(o, "max_abs", cli_json_real(d->max_any));
    json_object_set_new(o, "max_abs_logits", cli_json_real(d->all.max_abs));
    json_object_set_new(o, "max_abs_hidden", cli_json_real(d->max_hidden));
    json_object_set_new(limits, "max_abs", d->use_abs ? json_real(d->limit_abs) : json_null());
    json_object_set_new(limits, "gap", d->use_gap ? json_real(d->limit_gap) : json_null());
    json_object_set_new(limits, "kl", d->use_kl ? json_real(d->limit_kl) : json_null());
    json_object_set_new(o, "limits", limits);
    json_object_set_new(o, "pass", json_boolean(d->pass));
    json_object_set_new(o, "backends", cli_json_backends(v->c->session));
}

/* What the golden does not hold is said, never shown as a perfect match. */
static void print_measure(const struct measure *m, double max_hidden, bool has_hidden)
{
    printf("max_abs %.3g, mean KL %.3g, max KL %.3g, top-1 %.2f%% of %llu, ", m->max_abs,
           measure_mean_kl(m), m->max_kl, 100.0 * measure_agree(m), (unsigned long long)m->rows);
    if (m->greedy_total > 0) {
        printf("greedy %u/%u", m->greedy_match, m->greedy_total);
    } else {
        printf("greedy not in the golden");
    }
    if (m->greedy_gap >= 0.0) printf(" (first difference at gap %.3g)", m->greedy_gap);
    if (has_hidden) {
        printf(", hidden %.3g\n", max_hidden);
    } else {
        printf(", hidden states not in the golden\n");
    }
}

static void print_text(const struct verify *v, const struct verdict *d)
{
    bool any_hidden = false;
    for (uint32_t n = 0; n < v->golden.n_prompts; ++n) {
        const struct measure *m = &v->results[n];
        double hidden = 0.0;
        for (uint32_t k = 0; k < m->n_hidden; ++k) measure_max(&hidden, m->hidden_max[k]);
        printf("prompt %u (%u tokens, %llu step%s): ", n, v->golden.prompts[n].n_ids,
               (unsigned long long)m->steps, m->steps == 1 ? "" : "s");
        any_hidden = any_hidden || m->n_hidden > 0;
        print_measure(m, hidden, m->n_hidden > 0);
        for (size_t k = 0; k < m->n_flips; ++k)
            printf("  row %u: golden token %d, ours %d, golden gap %.3g\n", m->flips[k].row,
                   m->flips[k].golden_id, m->flips[k].our_id, m->flips[k].gap);
    }
    printf("all: ");
    print_measure(&d->all, d->max_hidden, any_hidden);
    printf("activations %s, cache %s, %s; limits:", bp_session_act_dtype(v->c->session),
           bp_session_kv_dtype(v->c->session), bp_session_kv_layout(v->c->session));
    if (d->use_abs) printf(" max_abs %.3g", d->limit_abs);
    if (d->use_gap) printf(" gap %.3g", d->limit_gap);
    if (d->use_kl) printf(" mean KL %.3g", d->limit_kl);
    printf("\n%s\n", d->pass ? "PASS" : "FAIL");
    bool rounded = strcmp(bp_session_kv_dtype(v->c->session), "f32") != 0;
    if (!d->pass && rounded && d->use_abs && !d->use_gap)
        printf("the cache rounds to %s: compare with -s kv.dtype=f32, or by --gap and --kl\n",
               bp_session_kv_dtype(v->c->session));
}

/* ---- the command ---- */

static int32_t parse_mode(struct verify *v)
{
    const char *mode = cli_text(&v->c->line, "mode");
    if (strcmp(mode, "whole") == 0) return BP_OK;
    if (strcmp(mode, "step") == 0) {
        v->step = 1;
        v->flags = BP_STEP_DECODE;
        return BP_OK;
    }
    if (strncmp(mode, "chunk:", 6) == 0) {
        size_t digits = strspn(mode + 6, "0123456789");
        if (digits > 0 && digits < 8 && mode[6 + digits] == '\0') v->step = (size_t)atol(mode + 6);
        if (v->step > 0) return BP_OK;
    }
    return cli_fail(&v->c->err, BP_E_ARG, "--mode",
                    "--mode is whole, step, or chunk:K with K of at least 1, not '%.60s'", mode);
}

/* What the golden prompts need, unless the user chose. */
static int32_t suggest_limits(struct verify *v)
{
    uint32_t most = 0, ctx = 0;
    for (uint32_t n = 0; n < v->golden.n_prompts; ++n) {
        const struct golden_prompt *p = &v->golden.prompts[n];
        if (p->n_ids > most) most = p->n_ids;
        if (p->n_ids + p->n_greedy > ctx) ctx = p->n_ids + p->n_greedy;
    }
    size_t batch = v->step > 0 ? v->step : most;
    if (batch > 65536) batch = 65536;
    BP_TRY(cli_config_suggest(v->c, "engine", "ctx", ctx));
    if (batch > 512) BP_TRY(cli_config_suggest(v->c, "engine", "batch_tokens", batch));
    return BP_OK;
}

static int32_t run_all(struct verify *v)
{
    struct term_progress bar;
    int32_t rc = BP_OK;
    v->results = calloc(v->golden.n_prompts, sizeof *v->results);
    if (v->results == NULL) return cli_fail(&v->c->err, BP_E_NOMEM, "verify", "out of memory");
    term_progress_begin(&bar, "verifying");
    for (uint32_t n = 0; n < v->golden.n_prompts && rc == BP_OK; ++n) {
        term_progress_update(&bar, (double)n / v->golden.n_prompts, "");
        rc = run_prompt(v, n);
    }
    term_progress_end(&bar);
    return rc;
}

/* "backends: mla.decode dropin; all other slots ref": who is answerable for what was just printed. */
static void say_backends(const struct cli *c)
{
    struct bp_choice row = {.h = BP_HDR(struct bp_choice, layer_end)}, other = row;
    char line[1024];
    size_t n = 0, n_ref = 0;
    for (uint32_t i = 0; bp_session_choice(c->session, i, &row) == BP_OK; ++i) {
        bool told = false;
        if (strcmp(row.provider, "ref") == 0) {
            ++n_ref;
            continue;
        }
        for (uint32_t k = 0; k < i && !told; ++k)
            told = bp_session_choice(c->session, k, &other) == BP_OK &&
                   strcmp(other.slot, row.slot) == 0 && strcmp(other.provider, row.provider) == 0;
        if (told || n >= sizeof line) continue;
        n += (size_t)snprintf(line + n, sizeof line - n, "%s%s %s", n != 0 ? ", " : "", row.slot,
                              row.provider);
    }
    if (n == 0)
        term_say("backends: ref in all slots");
    else
        term_say("backends: %.900s%s", line, n_ref != 0 ? ", else ref" : "");
}

static int32_t cmd_verify(struct cli *c)
{
    struct verify v = {.c = c};
    struct verdict d;
    const char *path = cli_text(&c->line, "golden");
    int32_t rc;
    if (path == NULL)
        return cli_fail(&c->err, BP_E_ARG, "-g, --golden",
                        "verify needs the golden file: --golden FILE");
    BP_TRY(parse_mode(&v));
    BP_TRY(cli_open_model(c));
    BP_TRY(golden_open(&v.golden, path, c->model, &c->err));
    BP_TRY_GOTO(rc, suggest_limits(&v), done);
    BP_TRY_GOTO(rc, cli_open_session(c), done);
    BP_TRY_GOTO(rc, run_all(&v), done);
    judge(&v, &d);
    if (c->json)
        fill_json(&v, &d);
    else
        print_text(&v, &d);
    if (!c->json && !c->verbose) say_backends(c); /* -v has said it at length */
done:
    for (uint32_t n = 0; v.results != NULL && n < v.golden.n_prompts; ++n)
        measure_end(&v.results[n]);
    free(v.results);
    golden_close(&v.golden);
    return rc;
}

const struct cli_command cli_cmd_verify = {
    .name = "verify",
    .args = "",
    .summary = "Compare the model with golden logits, hidden states and greedy continuations.",
    .details =
        "Exit status 0: it passes; 1: it does not. It passes when logits and hidden states differ "
        "by at "
        "most --max-abs and every greedy token is equal. With --gap it passes when the likeliest "
        "token "
        "of every row is equal but where the golden gap is at most G (and the greedy text leaves "
        "the "
        "golden one only at such a gap).\n\n"
        "engine.ctx and engine.batch_tokens are set to what the golden prompts need, unless they "
        "are "
        "configured.\n\n"
        "JSON: mode, prompts[] {text, tokens, steps, max_abs, mean_kl, max_kl, top1_agree, rows, "
        "greedy_match, greedy_total, greedy_gap, max_flip_gap, hidden_max_abs[], flips[] {row, "
        "gap, "
        "golden_id, our_id}}, the same over all prompts, max_abs (of logits and hidden states), "
        "limits, "
        "pass, backends.",
    .options = options,
    .n_options = sizeof options / sizeof options[0],
    .run = cmd_verify,
};
