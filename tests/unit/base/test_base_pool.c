/* test_base_pool.c - every index exactly once, whatever the sizes, the threads and the timing.
 * SPDX-License-Identifier: MIT */
#include "base/base.h"
#include "base/pool.h"
#include "base/rng.h"

#include <check.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_N = 5000 };

/* What one run saw. Counts are plain bytes: two threads that got the same index would be a race, which the thread
 * sanitizer reports and the count shows. */
struct seen {
    unsigned char count[MAX_N];
    uint64_t n, grain;
    atomic_uint_least64_t sum, calls;
    atomic_bool bad_range;
};

static void count_range(void *arg, uint64_t begin, uint64_t end)
{
    struct seen *s = arg;
    if (begin >= end || end > s->n || (s->grain != 0 && end - begin > s->grain)) {
        atomic_store(&s->bad_range, true);
        return;
    }
    uint64_t sum = 0;
    for (uint64_t i = begin; i < end; ++i) {
        s->count[i]++;
        sum += i;
    }
    atomic_fetch_add(&s->sum, sum);
    atomic_fetch_add(&s->calls, 1);
}

static struct bpi_pool *make_pool(uint32_t n_threads)
{
    struct bpi_pool *p = NULL;
    struct bp_error err = BP_ERROR_INIT;
    ck_assert_msg(bpi_pool_create(n_threads, &p, &err) == BP_OK, "%s", err.msg);
    ck_assert_uint_eq(bpi_pool_threads(p), n_threads);
    return p;
}

static void check_run(struct bpi_pool *p, struct seen *s, uint64_t n, uint64_t grain)
{
    memset(s, 0, sizeof *s);
    s->n = n;
    s->grain = p != NULL ? grain : 0; /* without a pool it is one call */
    bpi_pool_run(p, n, grain, count_range, s);
    ck_assert(!atomic_load(&s->bad_range));
    ck_assert_uint_eq(atomic_load(&s->sum), n > 0 ? n * (n - 1) / 2 : 0);
    for (uint64_t i = 0; i < MAX_N;
         ++i) { /* no check macro per index: each would write to check's pipe */
        if (s->count[i] != (i < n))
            ck_abort_msg("index %llu ran %d times", (unsigned long long)i, s->count[i]);
    }
}

START_TEST(every_index_once)
{
    static struct seen s;
    static const uint64_t SIZES[] = {0, 1, 2, 3, 5, 7, 8, 64, 1000, 4999},
                          GRAINS[] = {0, 1, 2, 3, 16, 1000, 5000, UINT64_MAX};
    for (uint32_t threads = 1; threads <= 9; threads += 2) {
        struct bpi_pool *p = make_pool(threads);
        for (size_t i = 0; i < BPI_ARRAY_LEN(SIZES); ++i) {
            for (size_t k = 0; k < BPI_ARRAY_LEN(GRAINS); ++k)
                check_run(p, &s, SIZES[i], GRAINS[k]);
        }
        bpi_pool_destroy(p);
    }
}
END_TEST

START_TEST(without_a_pool_it_is_one_call)
{
    static struct seen s;
    check_run(NULL, &s, 1000, 10);
    ck_assert_uint_eq(atomic_load(&s.calls), 1);
    check_run(NULL, &s, 0, 10);
    ck_assert_uint_eq(atomic_load(&s.calls), 0);
    ck_assert_uint_eq(bpi_pool_threads(NULL), 1);
    bpi_pool_destroy(NULL);
}
END_TEST

/* Many short jobs with random sizes and random pauses: workers are met spinning, asleep and in between. */
START_TEST(many_runs_with_random_timing)
{
    static struct seen s;
    struct bpi_rng r;
    const uint64_t seed = bpi_now_ns();
    printf("seed %llu\n", (unsigned long long)seed);
    bpi_rng_seed(&r, seed);
    for (uint32_t threads = 2; threads <= 4; ++threads) {
        struct bpi_pool *p = make_pool(threads);
        for (int i = 0; i < 3000; ++i) {
            check_run(p, &s, bpi_rng_below(&r, 100), bpi_rng_below(&r, 8));
            if (bpi_rng_below(&r, 8) == 0) {
                struct timespec pause = {0, (long)bpi_rng_below(&r, 60000)};
                nanosleep(&pause, NULL);
            }
        }
        bpi_pool_destroy(p);
    }
}
END_TEST

/* Writes of one job are visible to the caller and to every thread of the next job without further ado. */
static void add_previous(void *arg, uint64_t begin, uint64_t end)
{
    uint32_t *v = arg;
    for (uint64_t i = begin; i < end; ++i) v[MAX_N + i] = v[(i * 7919 + 13) % MAX_N] + 1;
}

START_TEST(jobs_see_what_earlier_jobs_wrote)
{
    static uint32_t v[2 * MAX_N];
    struct bpi_pool *p = make_pool(4);
    memset(v, 0, sizeof v);
    for (uint32_t round = 1; round <= 500; ++round) {
        bpi_pool_run(p, MAX_N, 17, add_previous, v);
        for (int i = 0; i < MAX_N; ++i) {
            if (v[MAX_N + i] != round)
                ck_abort_msg("round %u, element %d: %u", round, i, v[MAX_N + i]);
        }
        memcpy(v, v + MAX_N, sizeof v / 2);
    }
    bpi_pool_destroy(p);
}
END_TEST

/* Workers must really take part: four parts that wait for each other can only end on four threads. */
static void meet(void *arg, uint64_t begin, uint64_t end)
{
    atomic_uint *here = arg;
    (void)begin;
    (void)end;
    atomic_fetch_add(here, 1);
    while (atomic_load(here) < 4) sched_yield();
}

START_TEST(all_threads_work_at_the_same_time)
{
    struct bpi_pool *p = make_pool(4);
    for (int i = 0; i < 200; ++i) {
        atomic_uint here = 0;
        bpi_pool_run(p, 4, 1, meet, &here);
        ck_assert_uint_eq(atomic_load(&here), 4);
        if (i % 20 == 0) usleep(2000); /* from sleep as well as from spinning */
    }
    bpi_pool_destroy(p);
}
END_TEST

/* More parts than one ticket can count (2^24), with one index each. */
static void count_only(void *arg, uint64_t begin, uint64_t end)
{
    atomic_fetch_add_explicit((atomic_uint_least64_t *)arg, end - begin, memory_order_relaxed);
}

START_TEST(more_parts_than_a_ticket_holds)
{
    atomic_uint_least64_t n = 0;
    struct bpi_pool *p = make_pool(2);
    bpi_pool_run(p, (UINT64_C(1) << 24) + 5, 1, count_only, &n);
    ck_assert_uint_eq(atomic_load(&n), (UINT64_C(1) << 24) + 5);
    bpi_pool_destroy(p);
}
END_TEST

/* The header forbids a nested run. It must still neither hang nor lose an index. */
struct nest {
    struct bpi_pool *p;
    struct seen inner[8];
};

static void outer_fn(void *arg, uint64_t begin, uint64_t end)
{
    struct nest *n = arg;
    for (uint64_t i = begin; i < end; ++i) {
        n->inner[i].n = 50;
        n->inner[i].grain = 4;
        bpi_pool_run(n->p, 50, 4, count_range, &n->inner[i]);
    }
}

START_TEST(nested_run_does_not_hang)
{
    static struct nest n;
    n.p = make_pool(3);
    bpi_pool_run(n.p, 8, 1, outer_fn, &n);
    for (int i = 0; i < 8; ++i) {
        ck_assert(!atomic_load(&n.inner[i].bad_range));
        for (int k = 0; k < 50; ++k) ck_assert_uint_eq(n.inner[i].count[k], 1);
    }
    static struct seen after;
    check_run(n.p, &after, 100, 1); /* and the pool is usable afterwards */
    bpi_pool_destroy(n.p);
}
END_TEST

START_TEST(create_and_destroy_at_once)
{
    for (int i = 0; i < 300; ++i) bpi_pool_destroy(make_pool(1 + (uint32_t)i % 6));
    struct bpi_pool *p = NULL;
    struct bp_error err = BP_ERROR_INIT;
    ck_assert_int_eq(bpi_pool_create(0, &p, &err), BP_E_ARG);
    ck_assert_ptr_null(p);
    ck_assert_ptr_nonnull(strstr(err.msg, "0 threads"));
    ck_assert_int_eq(bpi_pool_create(UINT32_MAX, &p, NULL), BP_E_ARG);
    ck_assert_ptr_null(p);
}
END_TEST

/* Signals belong to the application's own threads: one sent to the process never interrupts a worker. */
static _Thread_local bool is_main_thread;
static atomic_uint on_main, on_worker;

static void on_signal(int sig)
{
    (void)sig;
    atomic_fetch_add(is_main_thread ? &on_main : &on_worker, 1);
}

START_TEST(workers_take_no_signals)
{
    struct sigaction act = {.sa_handler = on_signal};
    is_main_thread = true;
    ck_assert_int_eq(sigaction(SIGUSR1, &act, NULL), 0);
    struct bpi_pool *p = make_pool(4);
    for (int i = 0; i < 50; ++i) ck_assert_int_eq(kill(getpid(), SIGUSR1), 0);
    ck_assert_uint_ge(atomic_load(&on_main), 1);
    ck_assert_uint_eq(atomic_load(&on_worker), 0);
    bpi_pool_destroy(p);
}
END_TEST

START_TEST(cores)
{
    uint32_t n = bpi_pool_cores();
    long online = sysconf(_SC_NPROCESSORS_CONF);
    ck_assert_uint_ge(n, 1);
    ck_assert_uint_le(n, (uint32_t)online);
}
END_TEST

static void look_at_mask(void *arg, uint64_t begin, uint64_t end)
{
    atomic_uint *wrong = arg;
    sigset_t mask;
    (void)begin;
    (void)end;
    const int faults[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL};
    pthread_sigmask(SIG_BLOCK, NULL, &mask);
    for (size_t i = 0; i < BPI_ARRAY_LEN(faults); ++i)
        if (sigismember(&mask, faults[i])) atomic_fetch_add(wrong, 1);
    struct timespec pause = {0, 2000000}; /* so that the others get their parts */
    nanosleep(&pause, NULL);
}

/* A fault in a worker must reach the application's handler: blocked, it would kill without it. */
START_TEST(faults_are_not_blocked)
{
    struct bpi_pool *p = NULL;
    struct bp_error err = BP_ERROR_INIT;
    atomic_uint wrong = 0;
    ck_assert_int_eq(bpi_pool_create(4, &p, &err), BP_OK);
    bpi_pool_run(p, 40, 1, look_at_mask, &wrong);
    ck_assert_uint_eq(atomic_load(&wrong), 0);
    bpi_pool_destroy(p);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("pool");
    TCase *t = tcase_create("pool");
    tcase_set_timeout(t, 200);
    tcase_add_test(t, every_index_once);
    tcase_add_test(t, without_a_pool_it_is_one_call);
    tcase_add_test(t, many_runs_with_random_timing);
    tcase_add_test(t, jobs_see_what_earlier_jobs_wrote);
    tcase_add_test(t, all_threads_work_at_the_same_time);
    tcase_add_test(t, more_parts_than_a_ticket_holds);
    tcase_add_test(t, nested_run_does_not_hang);
    tcase_add_test(t, create_and_destroy_at_once);
    tcase_add_test(t, workers_take_no_signals);
    tcase_add_test(t, faults_are_not_blocked);
    tcase_add_test(t, cores);
    suite_add_tcase(s, t);
    SRunner *sr = srunner_create(s);
    srunner_run_all(sr, CK_NORMAL);
    int failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
