/* loader_fixture.h - two fake plugins whose descriptors and answers a test may bend, and a log that can be read.
 * The state is at file scope because a query function has no argument to carry it; check runs each test in a process
 * of its own. SPDX-License-Identifier: MIT */
#ifndef LOADER_FIXTURE_H
#define LOADER_FIXTURE_H

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "backplane/slot_quant.h"
#include "loader/loader.h"

/* One fake: what it says, and what was done to it. */
struct fake {
    struct bp_plugin_desc desc;
    struct bp_cfg_key keys[5];
    struct bp_op_entry ops[2];
    struct bp_quant_ops table;
    int32_t open_rc, create_rc;
    const char *open_msg;
    uint32_t level; /* of the answer */
    struct bp_reason reasons[3];
    uint32_t n_reasons, claimed; /* claimed: 0 = n_reasons */
    int32_t supports_rc;
    int n_open, n_close, n_create, n_destroy, n_asked;
    const struct bp_host *host;
    void *leak;
};

static struct fake fakes[2];
static char history[512]; /* one word per event */
static char log_text[8192];

static inline void note(const char *what, const char *who)
{
    size_t n = strlen(history);
    snprintf(history + n, sizeof history - n, "%s%s:%s", n != 0 ? " " : "", what, who);
}

static inline int32_t fake_open(struct fake *f, const struct bp_host *host, void **plugin,
                                struct bp_error *err)
{
    f->n_open++;
    note("open", f->desc.name);
    f->host = host;
    if (f->open_rc != BP_OK) {
        return f->open_msg != NULL
                   ? bpi_fail(err, f->open_rc, f->desc.name, NULL, "%s", f->open_msg)
                   : f->open_rc;
    }
    *plugin = f;
    return BP_OK;
}
static inline int32_t open_a(const struct bp_host *host, void **plugin, struct bp_error *err)
{
    return fake_open(&fakes[0], host, plugin, err);
}
static inline int32_t open_b(const struct bp_host *host, void **plugin, struct bp_error *err)
{
    return fake_open(&fakes[1], host, plugin, err);
}
static inline void fake_close(void *plugin)
{
    struct fake *f = plugin;
    f->n_close++;
    note("close", f->desc.name);
}
static inline int32_t fake_create(void *plugin, const struct bp_op_entry *entry,
                                  const struct bp_device *dev, const struct bp_op_ref *inner,
                                  uint32_t n_inner, struct bp_op_ref *out, struct bp_error *err)
{
    struct fake *f = plugin;
    (void)entry;
    (void)dev;
    ck_assert(inner == NULL && n_inner == 0);
    f->n_create++;
    if (f->create_rc != BP_OK)
        return bpi_fail(err, f->create_rc, f->desc.name, NULL, "no such luck");
    *out = (struct bp_op_ref){.vt = &f->table.base, .self = f};
    return BP_OK;
}
static inline void fake_destroy(void *plugin, struct bp_op_ref *op)
{
    struct fake *f = plugin;
    ck_assert(op->self == f);
    f->n_destroy++;
    note("destroy", f->desc.name);
}

static inline int32_t fake_supports(void *self, const void *problem, struct bp_verdict *v)
{
    struct fake *f = self;
    (void)problem;
    f->n_asked++;
    v->level = f->level;
    for (uint32_t i = 0; i < f->n_reasons; ++i) {
        if (i < v->cap_reasons) v->reasons[i] = f->reasons[i];
    }
    v->n_reasons = f->claimed != 0 ? f->claimed : f->n_reasons;
    return f->supports_rc;
}
static inline int32_t fake_workspace(void *self, const void *p, struct bp_workspace *out,
                                     struct bp_error *err)
{
    (void)self;
    (void)p;
    (void)out;
    (void)err;
    return BP_OK;
}
static inline int32_t fake_tensors(void *self, uint32_t slot, const void *args, struct bp_tensor *t,
                                   uint32_t *n)
{
    (void)self;
    (void)slot;
    (void)args;
    (void)t;
    *n = 0;
    return BP_OK;
}
static inline int32_t fake_format(void *self, uint32_t i, uint32_t *out)
{
    (void)self;
    (void)i;
    (void)out;
    return BP_DECLINED;
}
static inline int32_t fake_prepare(void *self, const struct bp_raw *raw, void **out,
                                   struct bp_weight_info *info, struct bp_error *err)
{
    (void)self;
    (void)raw;
    (void)out;
    (void)info;
    (void)err;
    return BP_DECLINED;
}
static inline void fake_release(void *self, void *weight)
{
    (void)self;
    (void)weight;
}
static inline int32_t fake_matmul(void *self, const struct bp_launch *l,
                                  const struct bp_quant_matmul_args *a, struct bp_error *err)
{
    (void)self;
    (void)l;
    (void)a;
    (void)err;
    return BP_OK;
}

/* A well-behaved plugin that says yes to everything. */
static inline void fake_reset(struct fake *f, const char *name,
                              int32_t (*open)(const struct bp_host *host, void **plugin,
                                              struct bp_error *err))
{
    memset(f, 0, sizeof *f);
    f->keys[0] = (struct bp_cfg_key){
        .name = "splits", .type = "int", .dflt = "0", .doc = "Parts.", .lo = 0, .hi = 8};
    f->keys[1] = (struct bp_cfg_key){
        .name = "mode", .type = "enum:fast|exact", .dflt = "fast", .doc = "Which."};
    f->keys[2] = (struct bp_cfg_key){
        .name = "ratio", .type = "float", .dflt = "0.5", .doc = "Share.", .lo = 0, .hi = 1};
    f->keys[3] =
        (struct bp_cfg_key){.name = "greedy", .type = "bool", .dflt = "no", .doc = "All of it."};
    f->keys[4] =
        (struct bp_cfg_key){.name = "label", .type = "string", .dflt = "", .doc = "Any text."};
    f->ops[0] =
        (struct bp_op_entry){.iface = "bp.quant", .impl = "x", .iface_major = 0, .iface_minor = 1};
    f->ops[1] =
        (struct bp_op_entry){.iface = "bp.dense", .impl = "x", .iface_major = 0, .iface_minor = 1};
    f->table = (struct bp_quant_ops){.base = {.h = BP_HDR(struct bp_quant_ops, dequantize),
                                              .iface = "bp.quant",
                                              .iface_minor = 1,
                                              .supports = fake_supports,
                                              .workspace = fake_workspace,
                                              .tensors = fake_tensors},
                                     .format = fake_format,
                                     .prepare = fake_prepare,
                                     .release = fake_release,
                                     .matmul = fake_matmul};
    f->desc = (struct bp_plugin_desc){.h = BP_HDR(struct bp_plugin_desc, op_destroy),
                                      .abi_major = BP_ABI_MAJOR,
                                      .abi_minor = BP_ABI_MINOR,
                                      .min_host_minor = BP_ABI_MINOR,
                                      .name = name,
                                      .version = "1",
                                      .vendor = "test",
                                      .license = "MIT",
                                      .summary = "a fake",
                                      .build_id = "",
                                      .cfg = f->keys,
                                      .n_cfg = 5,
                                      .cfg_stride = sizeof f->keys[0],
                                      .ops = f->ops,
                                      .n_ops = 1,
                                      .ops_stride = sizeof f->ops[0],
                                      .open = open,
                                      .close = fake_close,
                                      .op_create = fake_create,
                                      .op_destroy = fake_destroy};
    f->level = BP_V_YES;
}

static inline const struct bp_plugin_desc *query_a(const struct bp_query *q)
{
    ck_assert(q->host_major == BP_ABI_MAJOR && q->host_minor == BP_ABI_MINOR);
    return &fakes[0].desc;
}
static inline const struct bp_plugin_desc *query_b(const struct bp_query *q)
{
    (void)q;
    return &fakes[1].desc;
}
static inline const struct bp_plugin_desc *query_none(const struct bp_query *q)
{
    (void)q;
    return NULL;
}

static inline void log_sink(void *ctx, int32_t level, const char *room, const char *line)
{
    size_t n = strlen(log_text);
    (void)ctx;
    snprintf(log_text + n, sizeof log_text - n, "%d %s: %s\n", level, room, line);
}

/* A loader with its config and log; the fakes are called alpha and beta. */
struct stand {
    struct bpi_config *config;
    struct bpi_log log;
    struct bpi_loader *loader;
};

static inline void stand_open(struct stand *s, const char *ini)
{
    struct bp_error err = BP_ERROR_INIT;
    memset(s, 0, sizeof *s);
    history[0] = log_text[0] = '\0';
    fake_reset(&fakes[0], "alpha", open_a);
    fake_reset(&fakes[1], "beta", open_b);
    ck_assert_int_eq(bpi_config_create(&s->config, NULL), BP_OK);
    ck_assert_msg(bpi_config_load_text(s->config, ini, strlen(ini), "t.ini", &err) == BP_OK,
                  "%s: %s", err.where, err.msg);
    s->log = (struct bpi_log){.sink = log_sink, .level = BPI_LOG_INFO};
    struct bpi_loader_env env = {.config = s->config, .log = &s->log};
    ck_assert_int_eq(bpi_loader_create(&env, &s->loader, NULL), BP_OK);
}

static inline void stand_close(struct stand *s)
{
    bpi_loader_destroy(s->loader);
    bpi_config_destroy(s->config);
}

static inline void register_both(struct stand *s)
{
    struct bp_error err = BP_ERROR_INIT;
    ck_assert_msg(bpi_loader_register(s->loader, query_a, &err) == BP_OK, "%s", err.msg);
    ck_assert_msg(bpi_loader_register(s->loader, query_b, &err) == BP_OK, "%s", err.msg);
}

static inline void says(const struct bp_error *err, const char *word)
{
    ck_assert_msg(strstr(err->msg, word) != NULL || strstr(err->where, word) != NULL,
                  "\"%s\" is missing from: %s: %s", word, err->where, err->msg);
}

static inline int run_suite(const char *name, const TTest *const *tests, size_t n)
{
    Suite *s = suite_create(name);
    for (size_t i = 0; i < n; ++i) {
        TCase *tc = tcase_create(tests[i]->name);
        tcase_set_timeout(tc, 60);
        tcase_add_test(tc, tests[i]);
        suite_add_tcase(s, tc);
    }
    SRunner *runner = srunner_create(s);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

#endif
