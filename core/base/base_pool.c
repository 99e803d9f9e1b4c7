/* base_pool.c - worker threads that claim parts of an index range.
 * Not here: how many threads to use (config). Threads: one caller at a time gets the workers; any other call, a nested
 * one included, does its range alone.
 * How it is safe: `ticket` holds (job number, parts not yet claimed). A part is claimed by compare-and-swap; a ticket
 * with no part left never matches, so a late worker cannot enter a job that is over. The job's fields change only
 * after `pending` says that every claimed part is done. A worker that wakes too late holds nobody up.
 * SPDX-License-Identifier: MIT */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sched_getaffinity, CPU_COUNT_S */
#endif
#include "base/pool.h"
#include "base/base.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

typedef void pool_fn(void *arg, uint64_t begin, uint64_t end);

enum {
    POOL_MAX_THREADS = 1024,
    PART_BITS = 24,  /* low bits of a ticket; the other 40 count jobs */
    SPIN_NS = 8000,  /* longer than the gap between two ops of a step, shorter than a time slice */
    SPIN_PAUSES = 16 /* pauses between two looks at the clock */
};
#define PART_MAX ((UINT64_C(1) << PART_BITS) - 1)

struct bpi_pool {
    uint32_t n_threads; /* the caller included */
    uint32_t n_started; /* workers that exist */
    uint64_t
        spin_ns; /* 0 where threads outnumber cores: spinning would keep the others from running */
    pthread_t *workers;
    pthread_mutex_t lock; /* guards sleeping and waking only */
    pthread_cond_t wake, done;
    atomic_bool running; /* the workers are taken by a caller */
    atomic_bool stop;
    atomic_bool caller_waits;
    atomic_uint sleepers;

    /* The job. Relaxed atomics, because a late worker may look at them while the next job is set up. */
    _Atomic(pool_fn *) fn;
    _Atomic(void *) arg;
    atomic_uint_least64_t begin, end, grain, n_parts;

    /* Each on its own cache line: every claim and every finished part writes them. */
    _Alignas(64) atomic_uint_least64_t ticket;
    _Alignas(64) atomic_uint_least64_t pending;
};

static void cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Claims and runs parts until none is left. */
static void work(struct bpi_pool *p)
{
    uint64_t t = atomic_load_explicit(&p->ticket, memory_order_acquire);
    while ((t & PART_MAX) != 0) {
        pool_fn *fn = atomic_load_explicit(&p->fn, memory_order_relaxed);
        void *arg = atomic_load_explicit(&p->arg, memory_order_relaxed);
        uint64_t begin = atomic_load_explicit(&p->begin, memory_order_relaxed);
        uint64_t end = atomic_load_explicit(&p->end, memory_order_relaxed);
        uint64_t grain = atomic_load_explicit(&p->grain, memory_order_relaxed);
        uint64_t n_parts = atomic_load_explicit(&p->n_parts, memory_order_relaxed);
        if (!atomic_compare_exchange_weak_explicit(&p->ticket, &t, t - 1, memory_order_acq_rel,
                                                   memory_order_acquire)) {
            continue; /* somebody else was faster, or what was read belongs to another job */
        }
        uint64_t from = begin + (n_parts - (t & PART_MAX)) * grain;
        fn(arg, from, end - from > grain ? from + grain : end);
        if (atomic_fetch_sub(&p->pending, 1) == 1 && atomic_load(&p->caller_waits)) {
            pthread_mutex_lock(&p->lock);
            pthread_cond_signal(&p->done);
            pthread_mutex_unlock(&p->lock);
        }
        t = atomic_load_explicit(&p->ticket, memory_order_acquire);
    }
}

static bool job_offered(struct bpi_pool *p)
{
    return (atomic_load(&p->ticket) & PART_MAX) != 0 || atomic_load(&p->stop);
}

static bool job_done(struct bpi_pool *p)
{
    return atomic_load(&p->pending) == 0;
}

/* Waits a few microseconds for something that is likely to come at once; true when it came. */
static bool spin_until(struct bpi_pool *p, bool (*ready)(struct bpi_pool *p))
{
    if (ready(p)) return true;
    if (p->spin_ns == 0) return false;
    uint64_t until = bpi_now_ns() + p->spin_ns;
    do {
        for (int i = 0; i < SPIN_PAUSES; ++i) {
            cpu_relax();
            if (ready(p)) return true;
        }
    } while (bpi_now_ns() < until);
    return false;
}

static void *worker_main(void *arg)
{
    struct bpi_pool *p = arg;
    while (!atomic_load(&p->stop)) {
        if (!spin_until(p, job_offered)) {
            pthread_mutex_lock(&p->lock);
            /* Counted before the last look at the ticket; the caller looks in the other order, so one of the two
             * always sees the other (both sequentially consistent). */
            atomic_fetch_add(&p->sleepers, 1);
            while (!job_offered(p)) pthread_cond_wait(&p->wake, &p->lock);
            atomic_fetch_sub(&p->sleepers, 1);
            pthread_mutex_unlock(&p->lock);
        }
        work(p);
    }
    return NULL;
}

static void wake_workers(struct bpi_pool *p, uint64_t wanted)
{
    uint32_t sleepers = atomic_load(&p->sleepers);
    if (sleepers == 0) return;
    pthread_mutex_lock(&p->lock);
    if (wanted >= sleepers) {
        pthread_cond_broadcast(&p->wake);
    } else {
        for (uint64_t i = 0; i < wanted; ++i) pthread_cond_signal(&p->wake);
    }
    pthread_mutex_unlock(&p->lock);
}

/* One job of at most PART_MAX parts; returns when it is done. */
static void run_job(struct bpi_pool *p, uint64_t begin, uint64_t end, uint64_t grain, pool_fn *fn,
                    void *arg)
{
    uint64_t n_parts = (end - begin - 1) / grain + 1;
    atomic_store_explicit(&p->fn, fn, memory_order_relaxed);
    atomic_store_explicit(&p->arg, arg, memory_order_relaxed);
    atomic_store_explicit(&p->begin, begin, memory_order_relaxed);
    atomic_store_explicit(&p->end, end, memory_order_relaxed);
    atomic_store_explicit(&p->grain, grain, memory_order_relaxed);
    atomic_store_explicit(&p->n_parts, n_parts, memory_order_relaxed);
    atomic_store(&p->pending, n_parts);
    uint64_t job = (atomic_load(&p->ticket) >> PART_BITS) + 1;
    atomic_store(&p->ticket, (job << PART_BITS) | n_parts);
    wake_workers(p, n_parts - 1);
    work(p);
    if (spin_until(p, job_done)) return;
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->caller_waits, true);
    while (!job_done(p)) pthread_cond_wait(&p->done, &p->lock);
    atomic_store(&p->caller_waits, false);
    pthread_mutex_unlock(&p->lock);
}

static void run_alone(uint64_t n, uint64_t grain, pool_fn *fn, void *arg)
{
    for (uint64_t at = 0; at < n;) {
        uint64_t end = n - at > grain ? at + grain : n;
        fn(arg, at, end);
        at = end;
    }
}

void bpi_pool_run(struct bpi_pool *p, uint64_t n, uint64_t grain, pool_fn *fn, void *arg)
{
    if (n == 0) return;
    if (p == NULL) {
        fn(arg, 0, n);
        return;
    }
    if (grain == 0) grain = n / p->n_threads / 4;
    if (grain == 0) grain = 1;
    if (p->n_threads == 1 || n <= grain || atomic_exchange(&p->running, true)) {
        run_alone(n, grain, fn, arg);
        return;
    }
    uint64_t slice;
    if (!bpi_mul_u64(grain, PART_MAX, &slice)) slice = UINT64_MAX;
    for (uint64_t at = 0; at < n;) {
        uint64_t end = n - at > slice ? at + slice : n;
        run_job(p, at, end, grain, fn, arg);
        at = end;
    }
    atomic_store(&p->running, false);
}

static void pool_free(struct bpi_pool *p)
{
    pthread_cond_destroy(&p->done);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    bpi_free(p->workers);
    bpi_free(p);
}

void bpi_pool_destroy(struct bpi_pool *p)
{
    if (p == NULL) return;
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->stop, true);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    for (uint32_t i = 0; i < p->n_started; ++i) pthread_join(p->workers[i], NULL);
    pool_free(p);
}

/* Starts the workers with signals blocked: they stay the business of the application's own threads. Not those that a fault
 * raises in the thread itself: blocked, they would end the process at once and pass by the application's handler. */
static int start_workers(struct bpi_pool *p)
{
    sigset_t all, before;
    int rc = 0;
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGFPE);
    sigdelset(&all, SIGILL);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (p->n_started < p->n_threads - 1) {
        rc = pthread_create(&p->workers[p->n_started], NULL, worker_main, p);
        if (rc != 0) break;
        p->n_started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

int32_t bpi_pool_create(uint32_t n_threads, struct bpi_pool **out, struct bp_error *err)
{
    if (n_threads < 1 || n_threads > POOL_MAX_THREADS) {
        return bpi_fail(err, BP_E_ARG, "pool", NULL,
                        "%u threads were asked for; 1 to %d are possible", n_threads,
                        POOL_MAX_THREADS);
    }
    struct bpi_pool *p = bpi_alloc_aligned(sizeof *p, _Alignof(struct bpi_pool));
    if (p == NULL) return bpi_fail_nomem(err, "pool", sizeof *p);
    memset(p, 0, sizeof *p);
    p->workers = bpi_calloc(n_threads, sizeof *p->workers);
    if (p->workers == NULL) {
        bpi_free(p);
        return bpi_fail_nomem(err, "pool", n_threads * sizeof *p->workers);
    }
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->done, NULL);
    p->n_threads = n_threads;
    p->spin_ns = n_threads <= bpi_pool_cores() ? SPIN_NS : 0;
    int rc = start_workers(p);
    if (rc != 0) {
        uint32_t started = p->n_started;
        bool first = err != NULL && err->code == BP_OK;
        bpi_pool_destroy(p);
        bpi_fail(err, BP_E_IO, "pool", NULL,
                 "thread %u of %u cannot be started (errno %d); ask for fewer threads", started + 1,
                 n_threads - 1, rc);
        if (first) err->native = rc;
        return BP_E_IO;
    }
    *out = p;
    return BP_OK;
}

uint32_t bpi_pool_threads(const struct bpi_pool *p)
{
    return p != NULL ? p->n_threads : 1;
}

uint32_t bpi_pool_cores(void)
{
    /* A fixed cpu_set_t ends at 1024 processors and the call fails on larger machines, so the set grows. */
    for (int n_cpu = 1024; n_cpu <= 1 << 20; n_cpu *= 2) {
        cpu_set_t *set = CPU_ALLOC(n_cpu);
        if (set == NULL) break;
        size_t n_bytes = CPU_ALLOC_SIZE(n_cpu);
        int rc = sched_getaffinity(0, n_bytes, set);
        int n = rc == 0 ? CPU_COUNT_S(n_bytes, set) : 0;
        CPU_FREE(set);
        if (n > 0) return (uint32_t)n;
    }
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (uint32_t)n : 1;
}
