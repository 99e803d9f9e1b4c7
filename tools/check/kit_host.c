/* kit_host.c - see kit_host.h. SPDX-License-Identifier: MIT */
#include "kit_host.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kit_guard.h"

static int32_t host_log_on(void *ctx, uint32_t level)
{
    (void)ctx;
    return level <= 3;
}

static void host_log(void *ctx, uint32_t level, const char *line)
{
    struct kit_host *h = ctx;
    (void)level;
    if (line == NULL || strlen(line) > 1u << 20) return;
    (void)pthread_mutex_lock(&h->lock);
    h->n_log++;
    (void)pthread_mutex_unlock(&h->lock);
}

/* ---- config ---- */

/* *rc is set when the call has to fail on purpose. */
static const char *value_of(struct kit_host *h, const char *key, int32_t *rc)
{
    *rc = BP_DECLINED;
    (void)pthread_mutex_lock(&h->lock);
    bool fail = ++h->n_cfg == h->fail_cfg_at;
    (void)pthread_mutex_unlock(&h->lock);
    if (fail) {
        *rc = h->fail_cfg_rc;
        return NULL;
    }
    for (uint32_t i = 0; i < h->n_sets; ++i) {
        if (strcmp(h->sets[i].key, key) == 0) return h->sets[i].value;
    }
    return NULL;
}

static int32_t host_cfg_str(void *ctx, const char *key, char *out, uint64_t cap)
{
    int32_t rc;
    const char *v = value_of(ctx, key, &rc);
    if (v == NULL) return rc;
    if (strlen(v) + 1 > cap) return BP_E_LIMIT;
    memcpy(out, v, strlen(v) + 1);
    return BP_OK;
}

static int32_t host_cfg_i64(void *ctx, const char *key, int64_t *out)
{
    int32_t rc;
    char *end;
    const char *v = value_of(ctx, key, &rc);
    if (v == NULL) return rc;
    errno = 0;
    long long n = strtoll(v, &end, 10);
    if (*v == '\0' || *end != '\0' || errno != 0) return BP_E_CONFIG;
    *out = n;
    return BP_OK;
}

static int32_t host_cfg_f64(void *ctx, const char *key, double *out)
{
    int32_t rc;
    char *end;
    const char *v = value_of(ctx, key, &rc);
    if (v == NULL) return rc;
    double x = strtod(v, &end);
    if (*v == '\0' || *end != '\0') return BP_E_CONFIG;
    *out = x;
    return BP_OK;
}

/* ---- memory ---- */

static void *host_alloc(void *ctx, uint64_t n_bytes, uint64_t align)
{
    struct kit_host *h = ctx;
    if (align < 8 || (align & (align - 1)) != 0) return NULL;
    (void)pthread_mutex_lock(&h->lock);
    bool fail = ++h->n_alloc == h->fail_alloc_at;
    if (h->in_call != 0) h->alloc_in_call++;
    (void)pthread_mutex_unlock(&h->lock);
    if (fail) return NULL;
    void *p = kit_guard_alloc(n_bytes, align, KIT_AT_END, 0, "memory of mem_alloc", h);
    if (p == NULL) return NULL;
    (void)pthread_mutex_lock(&h->lock);
    h->live_blocks++;
    (void)pthread_mutex_unlock(&h->lock);
    return p;
}

static void host_free(void *ctx, void *p)
{
    struct kit_host *h = ctx;
    if (p == NULL) return;
    bool known = kit_guard_free(p);
    (void)pthread_mutex_lock(&h->lock);
    if (known)
        h->live_blocks--;
    else
        h->n_free_unknown++;
    (void)pthread_mutex_unlock(&h->lock);
}

/* ---- parallel_for ---- */

struct job {
    void (*fn)(void *arg, uint64_t begin, uint64_t end);
    void *arg;
    uint64_t n, grain, n_chunk, next;
    bool backwards;
    pthread_mutex_t lock;
};

static void *work(void *arg)
{
    struct job *j = arg;
    for (;;) {
        (void)pthread_mutex_lock(&j->lock);
        uint64_t i = j->next++;
        (void)pthread_mutex_unlock(&j->lock);
        if (i >= j->n_chunk) return NULL;
        if (j->backwards) i = j->n_chunk - 1 - i;
        uint64_t begin = i * j->grain, end = begin + j->grain;
        j->fn(j->arg, begin, end < j->n ? end : j->n);
    }
}

/* Every call cuts and orders its range in another way, and every eighth runs on two threads: bits that depend on either
 * show. Threads are joined before it returns, so that a count of threads sees the plugin's own only. */
static void host_parallel_for(void *ctx, uint64_t n, uint64_t grain,
                              void (*fn)(void *arg, uint64_t begin, uint64_t end), void *arg)
{
    struct kit_host *h = ctx;
    pthread_t other;
    if (n == 0) return;
    (void)pthread_mutex_lock(&h->lock);
    uint32_t turn = h->n_parallel++;
    (void)pthread_mutex_unlock(&h->lock);
    struct job j = {.fn = fn, .arg = arg, .n = n, .backwards = turn % 2 == 1};
    j.grain = grain != 0 ? grain : 1 + (n - 1) / (1 + turn % 5);
    j.n_chunk = (n - 1) / j.grain + 1;
    (void)pthread_mutex_init(&j.lock, NULL);
    bool two =
        !h->serial && turn % 8 == 0 && j.n_chunk > 1 && pthread_create(&other, NULL, work, &j) == 0;
    (void)work(&j);
    if (two) (void)pthread_join(other, NULL);
    (void)pthread_mutex_destroy(&j.lock);
}

void kit_host_init(struct kit_host *h, const struct kit_set *sets, uint32_t n_sets)
{
    memset(h, 0, sizeof *h);
    h->sets = sets;
    h->n_sets = n_sets;
    (void)pthread_mutex_init(&h->lock, NULL);
    h->table = (struct bp_host){.h = BP_HDR(struct bp_host, parallel_for),
                                .abi_minor = BP_ABI_MINOR,
                                .engine_version = 100,
                                .ctx = h,
                                .log_on = host_log_on,
                                .log = host_log,
                                .cfg_str = host_cfg_str,
                                .cfg_i64 = host_cfg_i64,
                                .cfg_f64 = host_cfg_f64,
                                .mem_alloc = host_alloc,
                                .mem_free = host_free,
                                .parallel_for = host_parallel_for};
}

void kit_host_done(struct kit_host *h)
{
    (void)kit_guard_free_all(h);
    (void)pthread_mutex_destroy(&h->lock);
}
