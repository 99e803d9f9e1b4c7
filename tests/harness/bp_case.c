/* bp_case.c - targets, cases and their memory. Tensors: bp_case_tensor.c. SPDX-License-Identifier: MIT */
#include "harness/bp_case.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "base/pool.h"
#include "ref/ref.h"

/* Everything that is linked in. Plugins that are loaded from files register after these. */
static const bp_plugin_query_fn built_in[] = {bpi_ref_query};

static void stop(const char *what, const struct bp_error *err)
{
    (void)fprintf(stderr, "%s: %s\n", what, err->msg);
    exit(2);
}

/* ---- targets ---- */

static bool find_device(struct bp_case_suite *s, uint32_t kind, struct bp_case_target *t)
{
    const struct bp_device_problem problem = {.h = BP_HDR(struct bp_device_problem, ordinal),
                                              .kind = kind};
    const struct bp_device wanted = {.h = BP_HDR(struct bp_device, name), .kind = kind};
    for (size_t i = 0; i < bpi_loader_n_plugins(s->loader); ++i) {
        const char *name = bpi_loader_plugin(s->loader, i)->name;
        if (bpi_loader_op(s->loader, name, "bp.device", &wanted, &t->device, NULL) != BP_OK)
            continue;
        bpi_loader_ask(&t->device, name, &problem, &s->answer);
        if (s->answer.verdict.level == BP_V_NO) continue;
        t->mem = (const struct bp_device_ops *)(const void *)t->device.vt;
        t->dev = (struct bp_device){.h = BP_HDR(struct bp_device, name)};
        return t->mem->props(t->device.self, &t->dev, NULL) == BP_OK &&
               t->mem->stream_create(t->device.self, &t->stream, NULL) == BP_OK;
    }
    return false;
}

static void find_targets(struct bp_case_suite *s)
{
    for (uint32_t kind = BP_DEV_HOST; kind <= BP_DEV_CUDA; ++kind) {
        for (size_t i = 0; i < bpi_loader_n_plugins(s->loader); ++i) {
            struct bp_case_target *t = &s->targets[s->n_targets];
            const struct bp_plugin_desc *desc = bpi_loader_plugin(s->loader, i);
            if (desc->kind != BP_KIND_BACKEND || s->n_targets == BP_CASE_TARGETS) continue;
            if (s->only != NULL && strcmp(s->only, desc->name) != 0) continue;
            if (!find_device(s, kind, t)) continue;
            if (bpi_loader_op(s->loader, desc->name, s->iface, &t->dev, &t->op, NULL) == BP_OK) {
                t->provider = desc->name;
                s->n_targets++;
            } else {
                t->mem->stream_destroy(t->device.self, t->stream);
            }
        }
    }
}

static void read_arguments(struct bp_case_suite *s, int argc, char **argv)
{
    s->seed = 20240607u;
    for (int i = 1; i < argc; ++i) {
        if (strcmp(argv[i], "--provider") == 0 && i + 1 < argc) {
            s->only = argv[++i];
        } else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc &&
                   bpi_parse_u64(argv[i + 1], &s->seed)) {
            ++i;
        } else if (strcmp(argv[i], "--verbose") == 0) {
            s->verbose = true;
        } else {
            (void)fprintf(stderr, "usage: %s [--provider NAME] [--seed N] [--verbose]\n", argv[0]);
            exit(2);
        }
    }
}

void bp_case_open(struct bp_case_suite *s, const char *name, const char *iface, int argc,
                  char **argv)
{
    struct bp_error err = BP_ERROR_INIT;
    memset(s, 0, sizeof *s);
    s->name = name;
    s->iface = iface;
    read_arguments(s, argc, argv);
    (void)printf("%s: seed %llu\n", name, (unsigned long long)s->seed);
    if (bpi_config_create(&s->config, &err) != BP_OK) stop("config", &err);
    if (bpi_pool_create(bpi_pool_cores(), &s->pool, &err) != BP_OK) stop("threads", &err);
    const struct bpi_loader_env env = {.config = s->config, .pool = s->pool};
    if (bpi_loader_create(&env, &s->loader, &err) != BP_OK) stop("loader", &err);
    for (size_t i = 0; i < BPI_ARRAY_LEN(built_in); ++i) {
        if (bpi_loader_register(s->loader, built_in[i], &err) != BP_OK) stop("plugin", &err);
    }
    find_targets(s);
}

int bp_case_close(struct bp_case_suite *s)
{
    bool good = s->n_targets > 0;
    if (!good) (void)printf("%s: FAIL no provider of %s\n", s->name, s->iface);
    for (uint32_t i = 0; i < s->n_targets; ++i) {
        struct bp_case_target *t = &s->targets[i];
        bool ok = t->n_failed == 0 && t->n_ok > 0;
        (void)printf("%s: %s on %s: %s, %u ok, %u failed, %u declined%s\n", s->name, t->provider,
                     t->dev.name, ok ? "ok" : "FAIL", t->n_ok, t->n_failed, t->n_declined,
                     t->n_ok + t->n_failed == 0 ? " (a provider that declines everything is broken)"
                                                : "");
        good = good && ok;
        t->mem->stream_destroy(t->device.self, t->stream);
    }
    if (s->n_flips != 0)
        (void)printf("%s: %u choices differed below the precision in use\n", s->name, s->n_flips);
    bpi_loader_destroy(s->loader);
    bpi_pool_destroy(s->pool);
    bpi_config_destroy(s->config);
    return good ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* ---- one case ---- */

bool bp_case_fail(struct bp_case_suite *s, const char *fmt, ...)
{
    va_list args;
    if (!s->failed) {
        va_start(args, fmt);
        (void)vsnprintf(s->why, sizeof s->why, fmt, args);
        va_end(args);
    }
    s->failed = true;
    return false;
}

static void note_declined(struct bp_case_suite *s)
{
    struct bpi_buf why = {0};
    s->target->n_declined++;
    if (!s->verbose) return;
    for (uint32_t i = 0; i < s->answer.verdict.n_reasons && i < BPI_MAX_REASONS; ++i) {
        bpi_buf_puts(&why, i != 0 ? ", " : "");
        bpi_loader_format_reason(&s->answer.reasons[i], &why);
    }
    (void)printf("DECLINED %s: %s: %s\n", s->target->provider, s->title,
                 why.data != NULL ? why.data : "no reason");
    bpi_buf_free(&why);
}

/* Memory that workspace() asks for, with a guard behind the scratch. */
static bool get_memory(struct bp_case_suite *s, const void *problem)
{
    struct bp_workspace ws = {.h = BP_HDR(struct bp_workspace, persistent_zeroed)};
    struct bp_error err = BP_ERROR_INIT;
    struct bp_case_target *t = s->target;
    if (t->op.vt->workspace(t->op.self, problem, &ws, &err) != BP_OK) {
        return bp_case_fail(s, "workspace: %s", err.msg);
    }
    const uint64_t sizes[4] = {ws.persistent_bytes, ws.plan_bytes, ws.scratch_bytes,
                               ws.pinned_bytes};
    for (int i = 0; i < 4; ++i) {
        if (sizes[i] == 0) continue;
        uint32_t kind = i == 3 ? BP_MEM_PINNED : BP_MEM_DEVICE;
        if (t->mem->alloc(t->device.self, kind, sizes[i], &s->memory[i], &err) != BP_OK) {
            return bp_case_fail(s, "memory: %s", err.msg);
        }
        /* Scratch and plans hold anything, NaN for example, before the first call. */
        if (i == 0 && ws.persistent_zeroed != 0) continue;
        if (i != 3)
            (void)t->mem->fill(t->device.self, s->memory[i], 0xff, sizes[i], t->stream, &err);
    }
    s->launch = (struct bp_launch){.h = BP_HDR(struct bp_launch, reserved),
                                   .dev = &t->dev,
                                   .stream = t->stream,
                                   .persistent = s->memory[0],
                                   .plan = s->memory[1],
                                   .scratch = s->memory[2],
                                   .pinned = s->memory[3],
                                   .scratch_bytes = ws.scratch_bytes,
                                   .epoch = 1,
                                   .layer = -1};
    return true;
}

bool bp_case_begin(struct bp_case_suite *s, struct bp_case_target *target, const void *problem,
                   const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(s->title, sizeof s->title, fmt, args);
    va_end(args);
    /* A seed of its own for each case, so that one case can be run again without those before it. */
    s->case_seed = s->seed ^ bp_id(s->title);
    bpi_rng_seed(&s->rng, s->case_seed);
    s->target = target;
    s->failed = false;
    s->n_tensors = 0;
    memset(s->memory, 0, sizeof s->memory);
    bpi_loader_ask(&target->op, target->provider, problem, &s->answer);
    if (s->answer.verdict.level == BP_V_NO) {
        note_declined(s);
        return false;
    }
    s->open = true;
    (void)get_memory(s, problem);
    return true;
}

void bp_case_end(struct bp_case_suite *s)
{
    struct bp_case_target *t = s->target;
    for (uint32_t i = 0; i < s->n_tensors; ++i) {
        t->mem->free(t->device.self, BP_MEM_DEVICE, s->tensors[i].device);
        free(s->tensors[i].host);
        free(s->tensors[i].start);
        free(s->tensors[i].after);
    }
    for (int i = 0; i < 4; ++i) {
        t->mem->free(t->device.self, i == 3 ? BP_MEM_PINNED : BP_MEM_DEVICE, s->memory[i]);
    }
    if (s->failed) {
        t->n_failed++;
        (void)printf("FAIL %s: %s: %s\n", t->provider, s->title, s->why);
    } else {
        t->n_ok++;
        if (s->verbose) (void)printf("ok %s: %s\n", t->provider, s->title);
    }
    s->open = false;
}
