/* sampler.c - from logits to a token: repetition penalty, top-k, top-p, min-p, temperature, draw; log-probabilities.
 * Not here: the loop around it (generate.c). All sums are in double. Filters look at the probabilities before the
 * temperature, so that temperature only reshapes what the filters kept.
 * Threads: a sampler belongs to one thread at a time; the bp_*logprob* functions are pure.
 * SPDX-License-Identifier: MIT */
#include "engine/engine.h"

#include <math.h>
#include <string.h>
#include "base/rng.h"

#define DOMAIN "sample"

struct candidate {
    double logit;  /* after the penalty */
    double weight; /* exp(logit - best) */
    int32_t id;
};

struct bp_sampler {
    struct bp_sample_params p;
    uint32_t n_vocab;
    struct bpi_rng rng;
    struct candidate *cand; /* (n_vocab) */
    int32_t *recent; /* (cap_recent) ring of the last tokens; NULL while the penalty is off */
    uint32_t cap_recent, n_recent, next_recent;
};

static int32_t check_params(const struct bp_sample_params *p, struct bp_error *err)
{
    if (!BP_HAS(p, struct bp_sample_params, seed))
        return bpi_fail(err, BP_E_ARG, DOMAIN, NULL, "the sampling parameters lack their header");
    if (!isfinite(p->temp) || p->temp < 0.0f)
        return bpi_fail(err, BP_E_ARG, DOMAIN, "temp", "temperature is %g; it must be 0 or more",
                        (double)p->temp);
    if (p->top_k < 0)
        return bpi_fail(err, BP_E_ARG, DOMAIN, "top_k", "top_k is %d; it must be 0 (off) or more",
                        p->top_k);
    if (!(p->top_p >= 0.0f && p->top_p <= 1.0f))
        return bpi_fail(err, BP_E_ARG, DOMAIN, "top_p", "top_p is %g; it must be from 0 to 1",
                        (double)p->top_p);
    if (!(p->min_p >= 0.0f && p->min_p <= 1.0f))
        return bpi_fail(err, BP_E_ARG, DOMAIN, "min_p", "min_p is %g; it must be from 0 to 1",
                        (double)p->min_p);
    if (!isfinite(p->repeat_penalty) || p->repeat_penalty <= 0.0f)
        return bpi_fail(err, BP_E_ARG, DOMAIN, "repeat_penalty",
                        "repeat_penalty is %g; it must be above 0 (1 = off)",
                        (double)p->repeat_penalty);
    return BP_OK;
}

int32_t bp_sampler_create(const struct bp_sample_params *p, uint32_t n_vocab,
                          struct bp_sampler **out, struct bp_error *err)
{
    *out = NULL;
    BP_TRY(check_params(p, err));
    if (n_vocab == 0 || n_vocab > INT32_MAX)
        return bpi_fail(err, BP_E_ARG, DOMAIN, NULL, "a vocabulary of %u tokens is impossible",
                        n_vocab);
    struct bp_sampler *s = bpi_calloc(1, sizeof *s);
    if (s == NULL) return bpi_fail_nomem(err, DOMAIN, sizeof *s);
    s->p = *p;
    s->n_vocab = n_vocab;
    s->cap_recent = p->repeat_penalty != 1.0f ? p->repeat_last : 0;
    bpi_rng_seed(&s->rng, p->seed);
    s->cand = bpi_calloc(n_vocab, sizeof *s->cand);
    if (s->cap_recent > 0) s->recent = bpi_calloc(s->cap_recent, sizeof *s->recent);
    if (s->cand == NULL || (s->cap_recent > 0 && s->recent == NULL)) {
        bp_sampler_destroy(s);
        return bpi_fail_nomem(err, DOMAIN, (size_t)n_vocab * sizeof *s->cand);
    }
    *out = s;
    return BP_OK;
}

void bp_sampler_destroy(struct bp_sampler *s)
{
    if (s == NULL) return;
    bpi_free(s->cand);
    bpi_free(s->recent);
    bpi_free(s);
}

uint32_t bpi_sampler_n_vocab(const struct bp_sampler *s)
{
    return s->n_vocab;
}

void bp_sampler_accept(struct bp_sampler *s, const int32_t *ids, size_t n)
{
    if (s->cap_recent == 0) return;
    if (n > s->cap_recent) {
        ids += n - s->cap_recent;
        n = s->cap_recent;
    }
    for (size_t i = 0; i < n; ++i) {
        s->recent[s->next_recent] = ids[i];
        s->next_recent = (s->next_recent + 1) % s->cap_recent;
        if (s->n_recent < s->cap_recent) s->n_recent++;
    }
}

/* ---- candidates ---- */

/* Copies the logits; refuses what no text may be made of. */
static int32_t load(struct bp_sampler *s, const float *logits, struct bp_error *err)
{
    bool any = false;
    for (uint32_t i = 0; i < s->n_vocab; ++i) {
        float v = logits[i];
        if (isnan(v) || v == INFINITY)
            return bpi_fail(err, BP_E_NUMERIC, DOMAIN, "logits",
                            "the logit of token %u is %s; no token can be chosen from such logits",
                            i, isnan(v) ? "NaN" : "+infinity");
        any = any || v != -INFINITY;
        s->cand[i] = (struct candidate){.logit = (double)v, .id = (int32_t)i};
    }
    if (!any)
        return bpi_fail(err, BP_E_NUMERIC, DOMAIN, "logits",
                        "all %u logits are -infinity; no token can be chosen", s->n_vocab);
    return BP_OK;
}

/* Computed from the logits themselves, so a token that was seen twice is penalised once. */
static void penalise(struct bp_sampler *s, const float *logits)
{
    double penalty = (double)s->p.repeat_penalty;
    for (uint32_t i = 0; i < s->n_recent; ++i) {
        int32_t id = s->recent[i];
        if (id < 0 || (uint32_t)id >= s->n_vocab) continue;
        double v = (double)logits[id];
        s->cand[id].logit = v > 0.0 ? v / penalty : v * penalty;
    }
}

/* Does a come before b: likelier, the lower id on ties. */
static bool before(const struct candidate *a, const struct candidate *b)
{
    return a->logit > b->logit || (a->logit == b->logit && a->id < b->id);
}

static void sift_down(struct candidate *heap, uint32_t n, uint32_t at)
{
    struct candidate moved = heap[at];
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= n) break;
        if (child + 1 < n && before(&heap[child + 1], &heap[child])) ++child;
        if (!before(&heap[child], &moved)) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moved;
}

/* The same with the least likely at the root. */
static void sift_least(struct candidate *heap, uint32_t n, uint32_t at)
{
    struct candidate moved = heap[at];
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= n) break;
        if (child + 1 < n && before(&heap[child], &heap[child + 1])) ++child;
        if (!before(&moved, &heap[child])) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moved;
}

/* ---- filters ---- */

/* Moves the likeliest token not yet taken behind the shrinking heap, as heap sort does. Taken tokens therefore stand at
 * the end of the array, the likeliest last. */
static const struct candidate *take(struct candidate *heap, uint32_t *n_left)
{
    struct candidate top = heap[0];
    uint32_t last = --*n_left;
    heap[0] = heap[last];
    if (last > 1) sift_down(heap, last, 0);
    heap[last] = top;
    return &heap[last];
}

/* Brings the k likeliest to the end of the array, in any order. One look at each of the others is mostly all it takes. */
static void gather(struct candidate *cand, uint32_t n, uint32_t k)
{
    struct candidate *kept = cand + (n - k); /* a heap whose root is the least likely */
    for (uint32_t i = k / 2; i-- > 0;) sift_least(kept, k, i);
    for (uint32_t i = 0; i < n - k; ++i) {
        if (!before(&cand[i], &kept[0])) continue;
        const struct candidate out = kept[0];
        kept[0] = cand[i];
        cand[i] = out;
        sift_least(kept, k, 0);
    }
}

/* Leaves the kept candidates in cand[first..n_vocab), the likeliest last. O(n + taken log n): what is taken is top_k
 * when that is on, else what top-p and min-p keep. */
static uint32_t filter(struct bp_sampler *s)
{
    const struct bp_sample_params *p = &s->p;
    const uint32_t n = s->n_vocab;
    const uint32_t limit = p->top_k > 0 && (uint32_t)p->top_k < n ? (uint32_t)p->top_k : n;
    struct candidate *heap = s->cand + (n - limit);
    uint32_t left = limit, first = limit; /* of the heap */
    if (limit < n) gather(s->cand, n, limit);
    for (uint32_t i = limit / 2; i-- > 0;) sift_down(heap, limit, i);

    /* top-p measures shares of what top-k kept, so that sum must be known first. */
    double best = heap[0].logit, sum = 0.0, kept = 0.0;
    for (uint32_t i = 0; i < limit; ++i) heap[i].weight = exp(heap[i].logit - best);
    for (uint32_t i = 0; i < limit && limit == n; ++i) sum += heap[i].weight;
    while (left > 0 && limit < n) sum += take(heap, &left)->weight;
    while (first > 0) {
        if (first == left) take(heap, &left);
        double w = heap[first - 1].weight;
        if (w < (double)p->min_p || w == 0.0) break; /* never the first, whose weight is 1 */
        --first;
        kept += w;
        if (p->top_p < 1.0f && kept >= (double)p->top_p * sum) break;
    }
    return n - limit + first;
}

/* With neither top-k nor top-p nothing needs an order. Leaves the kept candidates in cand[first..n_vocab). */
static uint32_t filter_unordered(struct bp_sampler *s)
{
    uint32_t n = s->n_vocab, first = n;
    double best = -INFINITY;
    for (uint32_t i = 0; i < n; ++i) best = fmax(best, s->cand[i].logit);
    for (uint32_t i = n; i-- > 0;) { /* from the end, because kept ones go there */
        struct candidate c = s->cand[i];
        c.weight = exp(c.logit - best);
        if (c.weight == 0.0 || c.weight < (double)s->p.min_p) continue;
        s->cand[--first] = c;
    }
    return first;
}

/* weight^(1/temp) through the logits, relative to the best kept one: no overflow at any temperature. */
static int32_t draw(struct bp_sampler *s, uint32_t first)
{
    double best = -INFINITY, sum = 0.0;
    for (uint32_t i = first; i < s->n_vocab; ++i) best = fmax(best, s->cand[i].logit);
    for (uint32_t i = first; i < s->n_vocab; ++i) {
        s->cand[i].weight = exp((s->cand[i].logit - best) / (double)s->p.temp);
        sum += s->cand[i].weight;
    }
    double u = bpi_rng_f64(&s->rng) * sum;
    int32_t id = s->cand[s->n_vocab - 1].id;
    for (uint32_t i = s->n_vocab; i-- > first;) { /* the likeliest first, where there is an order */
        if (s->cand[i].weight == 0.0) continue;
        id = s->cand[i].id; /* rounding may leave u just above the sum: then the last one stays */
        u -= s->cand[i].weight;
        if (u < 0.0) break;
    }
    return id;
}

static int32_t argmax(const struct bp_sampler *s)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < s->n_vocab; ++i) {
        if (s->cand[i].logit > s->cand[best].logit) best = i;
    }
    return s->cand[best].id;
}

/* The likeliest of plain logits, which then need no copy. False: something is wrong with them, and load() says what. */
static bool likeliest(const float *logits, uint32_t n, int32_t *out_id)
{
    float best = -INFINITY;
    int32_t id = -1;
    for (uint32_t i = 0; i < n; ++i) {
        if (!(logits[i] < INFINITY)) return false;
        if (logits[i] > best) {
            best = logits[i];
            id = (int32_t)i;
        }
    }
    if (id >= 0) *out_id = id;
    return id >= 0;
}

int32_t bp_sampler_pick(struct bp_sampler *s, const float *logits, int32_t *out_id,
                        struct bp_error *err)
{
    if (s->p.temp == 0.0f && s->n_recent == 0 && likeliest(logits, s->n_vocab, out_id)) {
        bp_sampler_accept(s, out_id, 1);
        return BP_OK;
    }
    BP_TRY(load(s, logits, err));
    penalise(s, logits);
    if (s->p.temp == 0.0f)
        *out_id = argmax(s);
    else if (s->p.top_k > 0 || s->p.top_p < 1.0f)
        *out_id = draw(s, filter(s));
    else
        *out_id = draw(s, filter_unordered(s));
    bp_sampler_accept(s, out_id, 1);
    return BP_OK;
}

/* ---- log-probabilities ---- */

/* Cut into the same pieces for any number of threads, and added in their order: the same bits. */
enum { MAX_PIECES = 256, PIECE = 4096 };
struct pieces {
    const float *logits;
    uint32_t n, each;
    double best;           /* of all */
    double of[MAX_PIECES]; /* the largest logit of a piece, then its sum */
};

static void largest(void *arg, uint64_t begin, uint64_t end)
{
    struct pieces *p = arg;
    for (uint64_t piece = begin; piece < end; ++piece) {
        const uint64_t from = piece * p->each, to = from + p->each < p->n ? from + p->each : p->n;
        double best = -INFINITY;
        bool nan = false;
        for (uint64_t i = from; i < to; ++i) {
            nan = nan || isnan(p->logits[i]);
            best = fmax(best, (double)p->logits[i]);
        }
        p->of[piece] = nan ? NAN : best;
    }
}

static void sum_piece(void *arg, uint64_t begin, uint64_t end)
{
    struct pieces *p = arg;
    for (uint64_t piece = begin; piece < end; ++piece) {
        const uint64_t from = piece * p->each, to = from + p->each < p->n ? from + p->each : p->n;
        double sum = 0.0;
        for (uint64_t i = from; i < to; ++i) sum += exp((double)p->logits[i] - p->best);
        p->of[piece] = sum;
    }
}

double bpi_log_sum_exp(struct bpi_pool *pool, const float *logits, uint32_t n)
{
    const uint32_t fit = (uint32_t)(((uint64_t)n + MAX_PIECES - 1) / MAX_PIECES);
    struct pieces p = {
        .logits = logits, .n = n, .each = fit > PIECE ? fit : PIECE, .best = -INFINITY};
    const uint32_t n_pieces = (uint32_t)(((uint64_t)n + p.each - 1) / p.each);
    if (n_pieces < 8) pool = NULL; /* not worth waking the threads */
    bpi_pool_run(pool, n_pieces, 1, largest, &p);
    for (uint32_t i = 0; i < n_pieces; ++i) {
        if (isnan(p.of[i])) return NAN;
        p.best = fmax(p.best, p.of[i]);
    }
    if (!isfinite(p.best)) return p.best;
    bpi_pool_run(pool, n_pieces, 1, sum_piece, &p);
    double sum = 0.0;
    for (uint32_t i = 0; i < n_pieces; ++i) sum += p.of[i];
    return p.best + log(sum);
}

double bp_logprob(const float *logits, uint32_t n_vocab, int32_t id)
{
    if (id < 0 || (uint32_t)id >= n_vocab) return NAN;
    return (double)logits[id] - bpi_log_sum_exp(NULL, logits, n_vocab);
}

/* Is a less wanted than b? In the heap below `logprob` still holds the plain logit. */
static bool worse(const struct bp_token_prob *a, const struct bp_token_prob *b)
{
    return a->logprob < b->logprob || (a->logprob == b->logprob && a->id > b->id);
}

/* Heap whose root is the least wanted entry. */
static void sift_worst(struct bp_token_prob *heap, uint32_t n, uint32_t at)
{
    struct bp_token_prob moved = heap[at];
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= n) break;
        if (child + 1 < n && worse(&heap[child + 1], &heap[child])) ++child;
        if (!worse(&heap[child], &moved)) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moved;
}

uint32_t bp_top_logprobs(const float *logits, uint32_t n_vocab, uint32_t k,
                         struct bp_token_prob *out)
{
    return k == 0
               ? 0
               : bpi_top_logprobs(logits, n_vocab, k, bpi_log_sum_exp(NULL, logits, n_vocab), out);
}

uint32_t bpi_top_logprobs(const float *logits, uint32_t n_vocab, uint32_t k, double norm,
                          struct bp_token_prob *out)
{
    if (k > n_vocab) k = n_vocab;
    if (k == 0) return 0;
    for (uint32_t i = 0; i < k; ++i) out[i] = (struct bp_token_prob){(int32_t)i, logits[i]};
    for (uint32_t i = k / 2; i-- > 0;) sift_worst(out, k, i);
    for (uint32_t i = k; i < n_vocab; ++i) {
        struct bp_token_prob t = {(int32_t)i, logits[i]};
        if (!worse(&out[0], &t)) continue;
        out[0] = t;
        sift_worst(out, k, 0);
    }
    for (uint32_t left = k; left > 1;) { /* heap sort: the least wanted goes to the end */
        struct bp_token_prob t = out[0];
        out[0] = out[--left];
        out[left] = t;
        sift_worst(out, left, 0);
    }
    for (uint32_t i = 0; i < k; ++i) out[i].logprob = (float)((double)out[i].logprob - norm);
    return k;
}
