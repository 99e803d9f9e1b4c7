/* loader_host.c - the host table: log, config, accounted memory, parallel_for, one table per plugin.
 * Threads: any, as plugin.h says. SPDX-License-Identifier: MIT */
#include "loader/loader_priv.h"

#include <string.h>
#ifdef BP_SANITIZED
#include <sanitizer/asan_interface.h>
#define GUARD(p, n) ASAN_POISON_MEMORY_REGION(p, n) /* nothing without the address sanitizer */
#else
#define GUARD(p, n) ((void)0)
#endif

enum { ENGINE_VERSION = 100 }; /* 0.1.0 as major * 10000 + minor * 100 + patch */

/* ---- log ---- */

static int32_t host_log_on(void *ctx, uint32_t level)
{
    const struct bpi_plugin *p = ctx;
    const struct bpi_log *log = p->loader->env.log;
    return log != NULL && log->sink != NULL && level <= INT32_MAX && (int32_t)level <= log->level;
}

static void host_log(void *ctx, uint32_t level, const char *line)
{
    const struct bpi_plugin *p = ctx;
    int32_t lvl = level > BPI_LOG_DEBUG ? BPI_LOG_DEBUG : (int32_t)level;
    bpi_logf(p->loader->env.log, lvl, p->name, "%s", line);
}

/* ---- config ---- */

static const char *value_of(const struct bpi_plugin *p, const char *key)
{
    const struct bpi_config *config = p->loader->env.config;
    return config != NULL ? bpi_config_plugin(config, p->name, key) : NULL;
}

static int32_t host_cfg_str(void *ctx, const char *key, char *out, uint64_t cap)
{
    const char *value = value_of(ctx, key);
    if (value == NULL) return BP_DECLINED;
    size_t n = strlen(value) + 1;
    if (n > cap) return BP_E_LIMIT;
    memcpy(out, value, n);
    return BP_OK;
}

static int32_t host_cfg_i64(void *ctx, const char *key, int64_t *out)
{
    const char *value = value_of(ctx, key);
    if (value == NULL) return BP_DECLINED;
    return bpi_parse_i64(value, out) ? BP_OK : BP_E_CONFIG;
}

static int32_t host_cfg_f64(void *ctx, const char *key, double *out)
{
    const char *value = value_of(ctx, key);
    if (value == NULL) return BP_DECLINED;
    return bpi_parse_f64(value, out) ? BP_OK : BP_E_CONFIG;
}

/* ---- memory ---- */

/* Stands right before what the plugin gets. */
struct head {
    void *base;
    uint64_t n_bytes;
};

/* Zeroed by calloc, which knows when pages come fresh from the system and leaves them untouched: what a plugin reserves
 * for the largest problem costs no memory until it is used. calloc cannot align, so the block is moved up inside. */
static void *host_mem_alloc(void *ctx, uint64_t n_bytes, uint64_t align)
{
    struct bpi_plugin *p = ctx;
    uint64_t extra, total;
    if (align == 0 || (align & (align - 1)) != 0) return NULL;
    if (!bpi_add_u64(sizeof(struct head), align - 1, &extra)) return NULL;
    if (!bpi_add_u64(n_bytes, extra, &total) || total > SIZE_MAX) return NULL;
    unsigned char *base = bpi_calloc(1, (size_t)total);
    if (base == NULL) return NULL;
    const uint64_t at = (uint64_t)(uintptr_t)base + sizeof(struct head);
    const uint64_t gap = sizeof(struct head) + (-at & (align - 1));
    struct head head = {base, n_bytes};
    memcpy(base + gap - sizeof head, &head, sizeof head);
    GUARD(base + gap + n_bytes, total - gap - n_bytes);
    uint64_t used = atomic_fetch_add(&p->used_bytes, n_bytes) + n_bytes;
    uint64_t peak = atomic_load(&p->peak_bytes);
    while (used > peak && !atomic_compare_exchange_weak(&p->peak_bytes, &peak, used)) continue;
    return base + gap;
}

static void host_mem_free(void *ctx, void *mem)
{
    struct bpi_plugin *p = ctx;
    struct head head;
    if (mem == NULL) return;
    memcpy(&head, (unsigned char *)mem - sizeof head, sizeof head);
    atomic_fetch_sub(&p->used_bytes, head.n_bytes);
    bpi_free(head.base);
}

/* ---- threads ---- */

static void host_parallel_for(void *ctx, uint64_t n, uint64_t grain,
                              void (*fn)(void *arg, uint64_t begin, uint64_t end), void *arg)
{
    const struct bpi_plugin *p = ctx;
    bpi_pool_run(p->loader->env.pool, n, grain, fn, arg);
}

void bpi_plugin_init_host(struct bpi_plugin *p)
{
    p->host = (struct bp_host){
        .h = BP_HDR(struct bp_host, parallel_for),
        .abi_minor = BP_ABI_MINOR,
        .engine_version = ENGINE_VERSION,
        .ctx = p,
        .log_on = host_log_on,
        .log = host_log,
        .cfg_str = host_cfg_str,
        .cfg_i64 = host_cfg_i64,
        .cfg_f64 = host_cfg_f64,
        .mem_alloc = host_mem_alloc,
        .mem_free = host_mem_free,
        .parallel_for = host_parallel_for,
    };
}

void bpi_loader_memory(const struct bpi_loader *l, size_t i, uint64_t *used_bytes,
                       uint64_t *peak_bytes)
{
    const struct bpi_plugin *p = l->newest;
    for (size_t at = l->n_plugins; p != NULL && --at != i;) p = p->older;
    *used_bytes = p != NULL ? atomic_load(&p->used_bytes) : 0;
    *peak_bytes = p != NULL ? atomic_load(&p->peak_bytes) : 0;
}
