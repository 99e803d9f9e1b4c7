/* compare_models.c - do two model files give the same logits? A random prompt goes through both: as prompt, in two steps,
 * then token by token in the decode form; every row of logits is compared.
 * Not here: golden values (backplane verify). Exit: 0 the same, 1 not, 2 one of them cannot be opened or run.
 * SPDX-License-Identifier: MIT */
#include "backplane/backplane.h"
#include "base/rng.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SETS = 32, MAX_TOKENS = 512 };

struct side {
    const char *path;
    const char *sets[MAX_SETS]; /* "section.key=value" */
    uint32_t n_sets;
    struct bp_config *cfg;
    struct bp_model *model;
    struct bp_session *session;
};

struct compare {
    struct side side[2];
    uint64_t seed;
    uint32_t n_prompt, n_decode;
    double max_abs;
    /* results */
    uint32_t n_rows;
    double worst,
        widest; /* largest difference; largest spread of one row, which must not be zero */
    uint32_t worst_row;
    bool not_finite;
};

static int usage(void)
{
    fputs("compare_models [--seed N] [--prompt N] [--decode N] [--max-abs X]\n"
          "               [-s KEY=VALUE] [-a KEY=VALUE] [-b KEY=VALUE] A.gguf B.gguf\n"
          "-s sets a key for both, -a for A only, -b for B only.\n",
          stderr);
    return 2;
}

static bool add_set(struct side *s, const char *set)
{
    if (s->n_sets == MAX_SETS) return false;
    s->sets[s->n_sets++] = set;
    return true;
}

static bool number(const char *text, double low, double high, double *out)
{
    char *end;
    *out = strtod(text, &end);
    return end != text && *end == '\0' && *out >= low && *out <= high;
}

static bool read_option(struct compare *c, const char *name, const char *value)
{
    double v = 0;
    if (strcmp(name, "-s") == 0) return add_set(&c->side[0], value) && add_set(&c->side[1], value);
    if (strcmp(name, "-a") == 0) return add_set(&c->side[0], value);
    if (strcmp(name, "-b") == 0) return add_set(&c->side[1], value);
    if (strcmp(name, "--max-abs") == 0) return number(value, 0, 1e30, &c->max_abs);
    if (strcmp(name, "--seed") == 0) {
        c->seed = strtoull(value, NULL, 10);
        return true;
    }
    if (!number(value, 1, MAX_TOKENS, &v)) return false;
    if (strcmp(name, "--prompt") == 0)
        c->n_prompt = (uint32_t)v;
    else if (strcmp(name, "--decode") == 0)
        c->n_decode = (uint32_t)v;
    else
        return false;
    return true;
}

static bool read_options(struct compare *c, int argc, char **argv)
{
    int i = 1;
    for (; i + 1 < argc && argv[i][0] == '-'; i += 2)
        if (!read_option(c, argv[i], argv[i + 1])) return false;
    if (argc - i != 2 || c->n_prompt + c->n_decode > MAX_TOKENS) return false;
    c->side[0].path = argv[i];
    c->side[1].path = argv[i + 1];
    return true;
}

static bool failed(const struct side *s, const struct bp_error *err)
{
    fprintf(stderr, "%s: %s (%s)\n", s->path, err->msg, err->where);
    return false;
}

static bool open_side(struct side *s)
{
    struct bp_error err = BP_ERROR_INIT;
    if (bp_config_create(&s->cfg, &err) != BP_OK) return failed(s, &err);
    for (uint32_t i = 0; i < s->n_sets; ++i)
        if (bp_config_set(s->cfg, s->sets[i], &err) != BP_OK) return failed(s, &err);
    if (bp_model_open(s->path, s->cfg, NULL, &s->model, &err) != BP_OK ||
        bp_session_open(s->model, s->cfg, NULL, &s->session, &err) != BP_OK)
        return failed(s, &err);
    return true;
}

static void close_side(struct side *s)
{
    bp_session_close(s->session);
    bp_model_close(s->model);
    bp_config_destroy(s->cfg);
}

static void compare_row(struct compare *c, const float *a, const float *b, uint32_t n)
{
    double low = INFINITY, high = -INFINITY;
    for (uint32_t i = 0; i < n; ++i) {
        double d = fabs((double)a[i] - (double)b[i]);
        if (!isfinite(a[i]) || !isfinite(b[i])) c->not_finite = true;
        if (a[i] < low) low = a[i];
        if (a[i] > high) high = a[i];
        if (d > c->worst) c->worst = d, c->worst_row = c->n_rows;
    }
    if (high - low > c->widest) c->widest = high - low;
    ++c->n_rows;
}

static bool step(struct compare *c, const int32_t *ids, uint32_t n, uint32_t flags)
{
    uint32_t n_vocab = bp_model_n_vocab(c->side[0].model);
    for (int k = 0; k < 2; ++k) {
        struct bp_error err = BP_ERROR_INIT;
        struct bp_step_item item = {.h = BP_HDR(struct bp_step_item, n_logits),
                                    .flags = flags,
                                    .ids = ids,
                                    .n_ids = n,
                                    .n_logits = n};
        if (bp_session_step(c->side[k].session, &item, 1, &err) != BP_OK)
            return failed(&c->side[k], &err);
    }
    for (uint32_t r = 0; r < n; ++r) {
        const float *a = bp_session_logits(c->side[0].session, 0, r);
        const float *b = bp_session_logits(c->side[1].session, 0, r);
        if (a == NULL || b == NULL) {
            fprintf(stderr, "row %u has no logits\n", r);
            return false;
        }
        compare_row(c, a, b, n_vocab);
    }
    return true;
}

static bool run(struct compare *c)
{
    int32_t ids[MAX_TOKENS];
    struct bpi_rng rng;
    const struct bp_model *a = c->side[0].model, *b = c->side[1].model;
    if (bp_model_n_vocab(a) != bp_model_n_vocab(b) || bp_model_n_layer(a) != bp_model_n_layer(b)) {
        fprintf(stderr, "vocabulary %u and %u, layers %u and %u: not the same model\n",
                bp_model_n_vocab(a), bp_model_n_vocab(b), bp_model_n_layer(a), bp_model_n_layer(b));
        return false;
    }
    bpi_rng_seed(&rng, c->seed);
    for (uint32_t i = 0; i < c->n_prompt + c->n_decode; ++i)
        ids[i] = (int32_t)bpi_rng_below(&rng, bp_model_n_vocab(a));
    uint32_t first = (c->n_prompt + 1) / 2;
    if (!step(c, ids, first, 0)) return false;
    if (c->n_prompt > first && !step(c, ids + first, c->n_prompt - first, 0)) return false;
    for (uint32_t i = 0; i < c->n_decode; ++i)
        if (!step(c, ids + c->n_prompt + i, 1, BP_STEP_DECODE)) return false;
    return true;
}

/* What would compare equal without meaning anything is a failure as well. */
static int verdict(const struct compare *c)
{
    printf("%u rows, seed %llu, max_abs %.3g (row %u), spread of a row up to %.3g\n", c->n_rows,
           (unsigned long long)c->seed, c->worst, c->worst_row, c->widest);
    const char *why = NULL;
    if (c->not_finite)
        why = "not every logit is finite";
    else if (!(c->widest > 1e-3))
        why = "all logits of a row are alike, which shows nothing";
    else if (!(c->worst <= c->max_abs))
        why = "the difference is above the limit";
    if (why == NULL) {
        puts("SAME");
        return 0;
    }
    printf("DIFFERENT: %s (%.3g)\n", why, c->max_abs);
    return 1;
}

int main(int argc, char **argv)
{
    struct compare c = {.seed = 1, .n_prompt = 61, .n_decode = 9, .max_abs = 1e-5};
    if (!read_options(&c, argc, argv)) return usage();
    bool ok = open_side(&c.side[0]) && open_side(&c.side[1]) && run(&c);
    int status = ok ? verdict(&c) : 2;
    close_side(&c.side[0]);
    close_side(&c.side[1]);
    return status;
}
