/* test_sampler.c - sampler and log-probabilities against naive versions written here from the definitions.
 * Randomness: one seed, printed, set with BP_TEST_SEED. SPDX-License-Identifier: MIT */
#include "backplane/backplane.h"
#include "base/rng.h"
#include "engine/engine.h"

#include <check.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t seed = 20250711;

static struct bp_sample_params params(void)
{
    struct bp_sample_params p = {.h = BP_HDR(struct bp_sample_params, seed),
                                 .temp = 1.0f,
                                 .top_p = 1.0f,
                                 .repeat_penalty = 1.0f,
                                 .repeat_last = 64,
                                 .seed = seed};
    return p;
}

static struct bp_sampler *make(const struct bp_sample_params *p, uint32_t n)
{
    struct bp_sampler *s = NULL;
    struct bp_error err = BP_ERROR_INIT;
    ck_assert_msg(bp_sampler_create(p, n, &s, &err) == BP_OK, "%s", err.msg);
    return s;
}

static int32_t pick(struct bp_sampler *s, const float *logits)
{
    int32_t id = -1;
    struct bp_error err = BP_ERROR_INIT;
    ck_assert_msg(bp_sampler_pick(s, logits, &id, &err) == BP_OK, "%s", err.msg);
    return id;
}

static void fill(struct bpi_rng *r, float *logits, uint32_t n, double scale)
{
    for (uint32_t i = 0; i < n; ++i) logits[i] = (float)((bpi_rng_f64(r) * 2.0 - 1.0) * scale);
}

/* ---- the naive sampler: the probability of every token, by sorting and adding up ---- */

struct pair {
    double logit;
    int32_t id;
};

static int by_logit(const void *a, const void *b)
{
    const struct pair *x = a, *y = b;
    if (x->logit != y->logit) return x->logit < y->logit ? 1 : -1;
    return x->id < y->id ? -1 : 1;
}

static void naive(const struct bp_sample_params *p, const float *logits, uint32_t n,
                  const int32_t *recent, size_t n_recent, double *prob)
{
    struct pair *v = calloc(n, sizeof *v);
    ck_assert_ptr_nonnull(v);
    for (uint32_t i = 0; i < n; ++i) {
        bool seen = false;
        for (size_t k = 0; k < n_recent; ++k) seen = seen || recent[k] == (int32_t)i;
        double l = (double)logits[i];
        if (seen) l = l > 0 ? l / (double)p->repeat_penalty : l * (double)p->repeat_penalty;
        v[i] = (struct pair){l, (int32_t)i};
        prob[i] = 0.0;
    }
    qsort(v, n, sizeof *v, by_logit);
    uint32_t kept = p->top_k > 0 && (uint32_t)p->top_k < n ? (uint32_t)p->top_k : n;
    double sum = 0.0, run = 0.0;
    for (uint32_t i = 0; i < kept; ++i) sum += exp(v[i].logit - v[0].logit);
    uint32_t by_p = kept, by_min = 0;
    for (uint32_t i = 0; i < kept; ++i) {
        run += exp(v[i].logit - v[0].logit) / sum;
        if (run >= (double)p->top_p) {
            by_p = i + 1;
            break;
        }
    }
    while (by_min < by_p && exp(v[by_min].logit - v[0].logit) >= (double)p->min_p) ++by_min;
    if (by_min == 0) by_min = 1;
    sum = 0.0;
    for (uint32_t i = 0; i < by_min; ++i) sum += exp((v[i].logit - v[0].logit) / (double)p->temp);
    for (uint32_t i = 0; i < by_min; ++i)
        prob[v[i].id] = exp((v[i].logit - v[0].logit) / (double)p->temp) / sum;
    free(v);
}

/* Pearson's statistic over cells that expect at least 5; the limit is the 1 - 1e-6 quantile (Wilson and Hilferty). */
static bool fits(const double *prob, const uint32_t *count, uint32_t n, uint32_t draws,
                 double *stat)
{
    double rest_p = 0.0, rest_n = 0.0;
    int cells = 0;
    *stat = 0.0;
    for (uint32_t i = 0; i < n; ++i) {
        double want = prob[i] * draws;
        if (prob[i] == 0.0 && count[i] > 0) {
            *stat = INFINITY;
            return false;
        }
        if (want < 5.0) {
            rest_p += want;
            rest_n += count[i];
            continue;
        }
        *stat += (count[i] - want) * (count[i] - want) / want;
        ++cells;
    }
    if (rest_p > 0.0) {
        *stat += (rest_n - rest_p) * (rest_n - rest_p) / fmax(rest_p, 1.0);
        ++cells;
    }
    double k = cells > 1 ? cells - 1 : 1, h = 2.0 / (9.0 * k);
    return *stat <= k * pow(1.0 - h + 4.75 * sqrt(h), 3.0);
}

static void check_distribution(const struct bp_sample_params *p, const float *logits, uint32_t n,
                               const char *what)
{
    enum { DRAWS = 40000 };
    double *prob = calloc(n, sizeof *prob), stat;
    uint32_t *count = calloc(n, sizeof *count);
    ck_assert(prob != NULL && count != NULL);
    struct bp_sampler *s = make(p, n);
    naive(p, logits, n, NULL, 0, prob);
    for (int i = 0; i < DRAWS; ++i) count[pick(s, logits)]++;
    ck_assert_msg(fits(prob, count, n, DRAWS, &stat), "%s: chi-square %g, seed %llu", what, stat,
                  (unsigned long long)seed);
    bp_sampler_destroy(s);
    free(prob);
    free(count);
}

START_TEST(distribution_of_each_filter)
{
    enum { N = 40 };
    float logits[N];
    struct bpi_rng r;
    bpi_rng_seed(&r, seed);
    for (int round = 0; round < 3; ++round) {
        fill(&r, logits, N, 3.0);
        logits[5] = logits[9] = logits[20]; /* ties at a place that filters may cut */
        struct bp_sample_params p = params();
        check_distribution(&p, logits, N, "plain");
        p.temp = 0.4f;
        check_distribution(&p, logits, N, "temp 0.4");
        p.temp = 2.5f;
        check_distribution(&p, logits, N, "temp 2.5");
        p = params();
        p.top_k = 7;
        check_distribution(&p, logits, N, "top-k");
        p.temp = 1.7f;
        p.top_p = 0.8f;
        check_distribution(&p, logits, N, "top-k, top-p, temp");
        p.min_p = 0.25f;
        check_distribution(&p, logits, N, "top-k, top-p, min-p, temp");
        p = params();
        p.top_p = 0.6f;
        check_distribution(&p, logits, N, "top-p");
        p = params();
        p.min_p = 0.1f;
        check_distribution(&p, logits, N, "min-p");
    }
}
END_TEST

/* The statistic can tell: draws at one temperature do not fit the probabilities of another. */
START_TEST(statistic_can_fail)
{
    enum { N = 12, DRAWS = 40000 };
    float logits[N];
    double prob[N], stat;
    uint32_t count[N] = {0};
    struct bpi_rng r;
    bpi_rng_seed(&r, seed + 1);
    fill(&r, logits, N, 2.0);
    struct bp_sample_params p = params();
    struct bp_sampler *s = make(&p, N);
    for (int i = 0; i < DRAWS; ++i) count[pick(s, logits)]++;
    p.temp = 1.1f;
    naive(&p, logits, N, NULL, 0, prob);
    ck_assert(!fits(prob, count, N, DRAWS, &stat));
    bp_sampler_destroy(s);
}
END_TEST

/* Exactly the kept set is drawn from, ties cut at the lower ids, on many random vocabularies. */
START_TEST(kept_set_is_the_naive_one)
{
    enum { MAX = 300 };
    static float logits[MAX];
    static double prob[MAX];
    struct bpi_rng r;
    bpi_rng_seed(&r, seed + 2);
    for (int round = 0; round < 200; ++round) {
        uint32_t n = 1 + (uint32_t)bpi_rng_below(&r, MAX);
        fill(&r, logits, n, 6.0);
        for (uint32_t i = 0; i < n; ++i) { /* coarse values make many ties; some are impossible */
            logits[i] = roundf(logits[i]);
            if (n > 1 && i > 0 && bpi_rng_below(&r, 9) == 0) logits[i] = -INFINITY;
        }
        struct bp_sample_params p = params();
        p.seed = bpi_rng_u64(&r);
        p.top_k = (int32_t)bpi_rng_below(&r, 12);
        p.top_p = bpi_rng_below(&r, 2) ? 1.0f : (float)bpi_rng_f64(&r);
        p.min_p = bpi_rng_below(&r, 2) ? 0.0f : (float)bpi_rng_f64(&r) * 0.5f;
        p.temp = 0.1f + 30.0f * (float)bpi_rng_f64(&r);
        struct bp_sampler *s = make(&p, n);
        naive(&p, logits, n, NULL, 0, prob);
        for (int i = 0; i < 300; ++i) {
            int32_t id = pick(s, logits);
            ck_assert(id >= 0 && (uint32_t)id < n);
            ck_assert_msg(prob[id] > 0.0,
                          "token %d of %u is outside of the kept set (round %d, seed %llu)", id, n,
                          round, (unsigned long long)seed);
        }
        bp_sampler_destroy(s);
    }
}
END_TEST

START_TEST(edges_of_the_filters)
{
    const float logits[4] = {1.0f, 3.0f, 3.0f, 2.0f};
    struct bp_sample_params p = params();
    p.top_p = 0.0f; /* at least one token is always kept: the lower id of the two best */
    struct bp_sampler *s = make(&p, 4);
    for (int i = 0; i < 50; ++i) ck_assert_int_eq(pick(s, logits), 1);
    bp_sampler_destroy(s);
    p = params();
    p.min_p = 1.0f; /* only what is as likely as the best, on the ordered path too */
    for (int32_t k = 0; k <= 4; k += 4) {
        bool seen[4] = {false};
        p.top_k = k == 4 ? 3 : 0;
        s = make(&p, 4);
        for (int i = 0; i < 100; ++i) seen[pick(s, logits)] = true;
        ck_assert(!seen[0] && seen[1] && seen[2] && !seen[3]);
        bp_sampler_destroy(s);
    }
    p = params();
    p.top_k = 1000000; /* more than there are */
    p.temp = 1e-30f;   /* no overflow on the way to greedy */
    s = make(&p, 4);
    for (int i = 0; i < 50; ++i) {
        int32_t id = pick(s, logits);
        ck_assert(id == 1 || id == 2);
    }
    bp_sampler_destroy(s);
    p = params();
    const float one = -3.0f;
    s = make(&p, 1);
    ck_assert_int_eq(pick(s, &one), 0);
    bp_sampler_destroy(s);
}
END_TEST

START_TEST(greedy_takes_the_lowest_id_on_ties)
{
    const float logits[6] = {-INFINITY, 2.0f, -1.0f, 2.0f, 2.0f, -INFINITY};
    struct bp_sample_params p = params();
    p.temp = 0.0f;
    p.top_k = 3; /* filters change nothing at temperature 0 */
    struct bp_sampler *s = make(&p, 6);
    for (int i = 0; i < 3; ++i) ck_assert_int_eq(pick(s, logits), 1);
    bp_sampler_destroy(s);
}
END_TEST

START_TEST(penalty_is_the_naive_one)
{
    enum { N = 30 };
    float logits[N];
    double prob[N];
    struct bpi_rng r;
    bpi_rng_seed(&r, seed + 3);
    for (int round = 0; round < 100; ++round) {
        int32_t history[64];
        size_t n = 0;
        struct bp_sample_params p = params();
        p.temp = 0.0f;
        p.repeat_penalty = 0.5f + 3.0f * (float)bpi_rng_f64(&r);
        p.repeat_last = 1 + (uint32_t)bpi_rng_below(&r, 8);
        struct bp_sampler *s = make(&p, N);
        const int32_t prompt[] = {3, 3,  29,
                                  7, -5, 100}; /* ids outside of the vocabulary are nobody's */
        bp_sampler_accept(s, prompt, 6);
        for (size_t i = 0; i < 6; ++i) history[n++] = prompt[i];
        fill(&r, logits, N, 4.0);
        for (int i = 0; i < N && round % 2; ++i) logits[i] -= 4.5f; /* nothing but negative ones */
        for (int step = 0; step < 20; ++step) {
            size_t look = n < p.repeat_last ? n : p.repeat_last;
            struct bp_sample_params greedy = p;
            greedy.temp = 1.0f;
            greedy.top_k = 1;
            naive(&greedy, logits, N, history + n - look, look, prob);
            int32_t want = 0;
            while (prob[want] == 0.0) ++want;
            int32_t got = pick(s, logits);
            ck_assert_msg(got == want, "step %d: %d instead of %d (round %d, seed %llu)", step, got,
                          want, round, (unsigned long long)seed);
            history[n++] = got;
        }
        bp_sampler_destroy(s);
    }
}
END_TEST

START_TEST(same_seed_same_tokens)
{
    enum { N = 200, STEPS = 100 };
    float logits[N];
    struct bpi_rng r;
    bpi_rng_seed(&r, seed + 4);
    fill(&r, logits, N, 1.0);
    struct bp_sample_params p = params();
    struct bp_sampler *a = make(&p, N), *b = make(&p, N);
    p.seed ^= 1;
    struct bp_sampler *c = make(&p, N);
    int differ = 0;
    for (int i = 0; i < STEPS; ++i) {
        int32_t x = pick(a, logits);
        ck_assert_int_eq(x, pick(b, logits));
        differ += x != pick(c, logits);
    }
    ck_assert_int_gt(differ, STEPS / 2);
    bp_sampler_destroy(a);
    bp_sampler_destroy(b);
    bp_sampler_destroy(c);
}
END_TEST

START_TEST(broken_logits_are_refused)
{
    float logits[5] = {0.0f, 1.0f, 2.0f, 3.0f, 4.0f};
    const float bad[] = {NAN, INFINITY};
    const float temps[] = {0.0f, 1.0f};
    for (int t = 0; t < 2; ++t) {
        struct bp_sample_params p = params();
        p.temp = temps[t];
        struct bp_sampler *s = make(&p, 5);
        int32_t id = -7;
        for (int k = 0; k < 2; ++k) {
            for (int at = 0; at < 5; ++at) {
                struct bp_error err = BP_ERROR_INIT;
                float good = logits[at];
                logits[at] = bad[k];
                ck_assert_int_eq(bp_sampler_pick(s, logits, &id, &err), BP_E_NUMERIC);
                ck_assert_int_eq(err.code, BP_E_NUMERIC);
                ck_assert_int_eq(id, -7);
                logits[at] = good;
            }
        }
        const float none[5] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY};
        ck_assert_int_eq(bp_sampler_pick(s, none, &id, NULL), BP_E_NUMERIC);
        const float single[5] = {-INFINITY, -INFINITY, -80.0f, -INFINITY, -INFINITY};
        ck_assert_int_eq(pick(s, single), 2);
        bp_sampler_destroy(s);
    }
}
END_TEST

START_TEST(bad_parameters_are_refused)
{
    const struct {
        size_t at;
        float v;
    } bad[] = {
        {offsetof(struct bp_sample_params, temp), -0.1f},
        {offsetof(struct bp_sample_params, temp), NAN},
        {offsetof(struct bp_sample_params, temp), INFINITY},
        {offsetof(struct bp_sample_params, top_p), 1.01f},
        {offsetof(struct bp_sample_params, top_p), NAN},
        {offsetof(struct bp_sample_params, min_p), -0.01f},
        {offsetof(struct bp_sample_params, min_p), NAN},
        {offsetof(struct bp_sample_params, repeat_penalty), 0.0f},
        {offsetof(struct bp_sample_params, repeat_penalty), NAN},
    };
    struct bp_sampler *s = (struct bp_sampler *)&s;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
        struct bp_sample_params p = params();
        struct bp_error err = BP_ERROR_INIT;
        memcpy((char *)&p + bad[i].at, &bad[i].v, sizeof bad[i].v);
        ck_assert_int_eq(bp_sampler_create(&p, 10, &s, &err), BP_E_ARG);
        ck_assert_ptr_null(s);
        ck_assert(err.msg[0] != '\0');
    }
    struct bp_sample_params p = params();
    p.top_k = -1;
    ck_assert_int_eq(bp_sampler_create(&p, 10, &s, NULL), BP_E_ARG);
    p = params();
    ck_assert_int_eq(bp_sampler_create(&p, 0, &s, NULL), BP_E_ARG);
    p.h.size = BP_END(struct bp_sample_params, repeat_last);
    ck_assert_int_eq(bp_sampler_create(&p, 10, &s, NULL), BP_E_ARG);
}
END_TEST

START_TEST(logprob_is_the_naive_one)
{
    enum { N = 500 };
    static float logits[N];
    struct bpi_rng r;
    bpi_rng_seed(&r, seed + 5);
    fill(&r, logits, N, 8.0);
    logits[17] = -INFINITY;
    long double sum = 0.0L;
    for (int i = 0; i < N; ++i) sum += expl((long double)logits[i]);
    for (int i = 0; i < N; ++i) {
        double want = (double)((long double)logits[i] - logl(sum));
        double got = bp_logprob(logits, N, i);
        /* 500 roundings of 2^-53, relative to a sum whose logarithm is below 16 */
        ck_assert_msg(got == want || fabs(got - want) <= 1e-13, "%d: %.17g, want %.17g", i, got,
                      want);
    }
    ck_assert(isnan(bp_logprob(logits, N, -1)) && isnan(bp_logprob(logits, N, N)));
    for (int i = 0; i < N; ++i) logits[i] += 3e4f; /* exp would overflow without the shift */
    ck_assert(isfinite(bp_logprob(logits, N, 0)));
    logits[3] = NAN;
    ck_assert(isnan(bp_logprob(logits, N, 0)));
}
END_TEST

START_TEST(top_is_the_sorted_one)
{
    enum { MAX = 400 };
    static float logits[MAX];
    static struct pair v[MAX];
    static struct bp_token_prob top[MAX + 1];
    struct bpi_rng r;
    bpi_rng_seed(&r, seed + 6);
    for (int round = 0; round < 300; ++round) {
        uint32_t n = 1 + (uint32_t)bpi_rng_below(&r, MAX), k = (uint32_t)bpi_rng_below(&r, n + 20);
        fill(&r, logits, n, 5.0);
        for (uint32_t i = 0; i < n; ++i) {
            if (round % 2) logits[i] = roundf(logits[i]); /* ties */
            v[i] = (struct pair){(double)logits[i], (int32_t)i};
        }
        qsort(v, n, sizeof *v, by_logit);
        uint32_t want_n = k < n ? k : n;
        top[want_n].id = -99; /* nothing is written behind the answer */
        ck_assert_uint_eq(bp_top_logprobs(logits, n, k, top), want_n);
        ck_assert_int_eq(top[want_n].id, -99);
        for (uint32_t i = 0; i < want_n; ++i) {
            ck_assert_msg(top[i].id == v[i].id, "place %u: %d, want %d (round %d, seed %llu)", i,
                          top[i].id, v[i].id, round, (unsigned long long)seed);
            double want = bp_logprob(logits, n, v[i].id);
            ck_assert(fabs((double)top[i].logprob - want) <= 1e-6 * (1.0 + fabs(want)));
        }
    }
    ck_assert_uint_eq(bp_top_logprobs(logits, 5, 0, NULL), 0);
}
END_TEST

/* Cut into pieces, on threads or not: the same bits, and the number that one plain loop gives. */
START_TEST(sum_in_pieces)
{
    static const uint32_t sizes[] = {1, 4095, 4096, 4097, 32769, 154880, 1100001};
    struct bp_error err = BP_ERROR_INIT;
    struct bpi_pool *pool = NULL;
    struct bpi_rng rng;
    const uint32_t n = sizes[_i];
    float *v = calloc(n, sizeof *v);
    ck_assert_int_eq(bpi_pool_create(3, &pool, &err), BP_OK);
    bpi_rng_seed(&rng, 17);
    double best = -INFINITY, sum = 0.0;
    for (uint32_t i = 0; i < n; ++i) v[i] = (float)(40.0 * bpi_rng_f64(&rng) - 20.0);
    for (uint32_t i = 0; i < n; ++i) best = fmax(best, (double)v[i]);
    for (uint32_t i = 0; i < n; ++i) sum += exp((double)v[i] - best);
    const double one = bpi_log_sum_exp(NULL, v, n), many = bpi_log_sum_exp(pool, v, n);
    ck_assert_msg(memcmp(&one, &many, sizeof one) == 0, "%.17g and %.17g", one, many);
    ck_assert_double_le(fabs(one - (best + log(sum))), 1e-10);
    v[n - 1] = NAN;
    ck_assert(isnan(bpi_log_sum_exp(NULL, v, n)) && isnan(bpi_log_sum_exp(pool, v, n)));
    for (uint32_t i = 0; i < n; ++i) v[i] = -INFINITY;
    ck_assert(bpi_log_sum_exp(pool, v, n) == -INFINITY);
    bpi_pool_destroy(pool);
    free(v);
}
END_TEST

int main(void)
{
    const char *given = getenv("BP_TEST_SEED");
    if (given != NULL) seed = strtoull(given, NULL, 10);
    printf("seed %llu\n", (unsigned long long)seed);
    Suite *suite = suite_create("sampler");
    TCase *t = tcase_create("sampler");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, distribution_of_each_filter);
    tcase_add_test(t, statistic_can_fail);
    tcase_add_test(t, kept_set_is_the_naive_one);
    tcase_add_test(t, edges_of_the_filters);
    tcase_add_test(t, greedy_takes_the_lowest_id_on_ties);
    tcase_add_test(t, penalty_is_the_naive_one);
    tcase_add_test(t, same_seed_same_tokens);
    tcase_add_test(t, broken_logits_are_refused);
    tcase_add_test(t, bad_parameters_are_refused);
    tcase_add_test(t, logprob_is_the_naive_one);
    tcase_add_test(t, top_is_the_sorted_one);
    tcase_add_loop_test(t, sum_in_pieces, 0, 7);
    suite_add_tcase(suite, t);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
