/* test_loader_registry.c - handshake, config schema, host services, life and death of plugins and ops.
 * The choice between providers: test_loader_choose.c. SPDX-License-Identifier: MIT */
#include "loader_fixture.h"

#include <sys/mman.h>
#include <unistd.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

/* Registers alpha, which must fail with this code and all these words. */
static void refused(struct stand *s, bp_plugin_query_fn query, int32_t code, const char *word,
                    const char *word2)
{
    struct bp_error err = BP_ERROR_INIT;
    const size_t before = bpi_loader_n_plugins(s->loader);
    int32_t rc = bpi_loader_register(s->loader, query, &err);
    ck_assert_msg(rc == code && err.code == code, "got %d: %s", rc, err.msg);
    says(&err, word);
    if (word2 != NULL) says(&err, word2);
    ck_assert_uint_eq(bpi_loader_n_plugins(s->loader), before);
    ck_assert_int_eq(fakes[0].n_open,
                     fakes[0].open_rc != BP_OK ? 1 : 0); /* refused before it was opened */
    ck_assert_int_eq(fakes[0].n_close, 0);
}

START_TEST(handshake_refuses_foreign_abis)
{
    struct stand s;
    stand_open(&s, "");
    refused(&s, query_none, BP_E_ABI, "0.1", NULL);
    fakes[0].desc.abi_minor = 7;
    refused(&s, query_a, BP_E_ABI, "0.7", "0.1"); /* both numbers */
    fakes[0].desc.abi_minor = BP_ABI_MINOR;
    fakes[0].desc.abi_major = 3;
    refused(&s, query_a, BP_E_ABI, "3.1", "0.1");
    fakes[0].desc.abi_major = BP_ABI_MAJOR;
    fakes[0].desc.min_host_minor = 9;
    refused(&s, query_a, BP_E_ABI, "0.9", "0.1");
    fakes[0].desc.min_host_minor = BP_ABI_MINOR;
    fakes[0].ops[0].iface_minor = 2;
    refused(&s, query_a, BP_E_ABI, "bp.quant 0.2", "0.1");
    fakes[0].ops[0].iface_minor = 1;
    fakes[0].desc.h.size = 20;
    refused(&s, query_a, BP_E_ABI, "20 bytes", NULL);
    fakes[0].desc.h.size = BP_END(struct bp_plugin_desc, close);
    refused(&s, query_a, BP_E_ABI, "op_destroy", NULL);
    fakes[0].desc.h.size = BP_END(struct bp_plugin_desc, op_destroy);
    fakes[0].desc.close = NULL;
    refused(&s, query_a, BP_E_ABI, "close", "alpha");
    stand_close(&s);
}
END_TEST

START_TEST(handshake_refuses_bad_descriptors)
{
    static const char *const bad_names[] = {"",
                                            "auto",
                                            "Alpha",
                                            "al pha",
                                            "al-pha",
                                            "../alpha",
                                            "abcdefghijklmnopqrstuvwxyz0123456789"};
    struct stand s;
    stand_open(&s, "");
    for (size_t i = 0; i < BPI_ARRAY_LEN(bad_names); ++i) {
        fakes[0].desc.name = bad_names[i];
        refused(&s, query_a, BP_E_ABI, "name", bad_names[i]);
    }
    fakes[0].desc.name = NULL;
    refused(&s, query_a, BP_E_ABI, "name", NULL);
    fakes[0].desc.name = "alpha";
    fakes[0].desc.n_ops = 0;
    refused(&s, query_a, BP_E_ABI, "0 ops", NULL);
    fakes[0].desc.n_ops = 1;
    fakes[0].desc.ops_stride = 8;
    refused(&s, query_a, BP_E_ABI, "8 bytes", NULL);
    fakes[0].desc.ops_stride = sizeof fakes[0].ops[0];
    fakes[0].ops[0].iface = NULL;
    refused(&s, query_a, BP_E_ABI, "no interface", NULL);
    fakes[0].ops[0].iface = "bp.quant";
    fakes[0].desc.cfg_stride = 4;
    refused(&s, query_a, BP_E_ABI, "5 keys of 4 bytes", NULL);
    fakes[0].desc.cfg_stride = sizeof fakes[0].keys[0];
    fakes[0].open_rc = BP_E_DEVICE;
    fakes[0].open_msg = "the machine is on fire";
    refused(&s, query_a, BP_E_DEVICE, "on fire", NULL);
    fakes[0].n_open = 0;
    fakes[0].open_msg = NULL;
    refused(&s, query_a, BP_E_DEVICE, "alpha", "gave no reason");
    fakes[0].open_rc = BP_OK;
    fakes[0].n_open = 0;
    struct bp_error err = BP_ERROR_INIT;
    ck_assert_int_eq(bpi_loader_register(s.loader, query_a, NULL), BP_OK);
    ck_assert_int_eq(bpi_loader_register(s.loader, query_a, &err),
                     BP_E_CONFIG); /* twice the same name */
    says(&err, "alpha");
    ck_assert_int_eq(fakes[0].n_open, 1);
    stand_close(&s);
}
END_TEST

/* ---- [plugin.NAME] ---- */

static void schema(const char *ini, int32_t code, const char *word, const char *word2)
{
    struct stand s;
    struct bp_error err = BP_ERROR_INIT;
    stand_open(&s, ini);
    int32_t rc = bpi_loader_register(s.loader, query_a, &err);
    ck_assert_msg(rc == code, "%s: got %d: %s", ini, rc, err.msg);
    if (code != BP_OK) {
        says(&err, word);
        says(&err, word2);
        says(&err, "t.ini:2"); /* where it stands */
        ck_assert_int_eq(fakes[0].n_open, 0);
    }
    stand_close(&s);
}

START_TEST(config_keys_are_checked_against_the_plugin)
{
    schema("[plugin.alpha]\nsplits = 8\nmode = exact\nratio = 0.25\ngreedy = yes\nlabel = what "
           "ever\nfile = /opt/x.so\n",
           BP_OK, "", "");
    schema("[plugin.alpha]\nsplit = 3\n", BP_E_CONFIG, "split", "did you mean \"splits\"");
    schema("[plugin.alpha]\nzzzzzzzzzz = 3\n", BP_E_CONFIG, "zzzzzzzzzz", "no such key");
    schema("[plugin.alpha]\nsplits = 9\n", BP_E_CONFIG, "\"9\"", "from 0 to 8");
    schema("[plugin.alpha]\nsplits = -1\n", BP_E_CONFIG, "\"-1\"", "splits");
    schema("[plugin.alpha]\nsplits = 2x\n", BP_E_CONFIG, "\"2x\"", "whole number");
    schema("[plugin.alpha]\nmode = fas\n", BP_E_CONFIG, "\"fas\"", "fast|exact");
    schema("[plugin.alpha]\nmode = fast|exact\n", BP_E_CONFIG, "mode", "fast|exact");
    schema("[plugin.alpha]\nratio = 1.5\n", BP_E_CONFIG, "ratio", "from 0 to 1");
    schema("[plugin.alpha]\nratio = nan\n", BP_E_CONFIG, "ratio", "from 0 to 1");
    schema("[plugin.alpha]\ngreedy = perhaps\n", BP_E_CONFIG, "greedy", "true or false");
}
END_TEST

START_TEST(sections_of_no_plugin_are_found)
{
    struct stand s;
    struct bp_error err = BP_ERROR_INIT;
    stand_open(&s, "[plugin.alpha]\nsplits = 2\n[plugin.bata]\nmode = fast\n");
    register_both(&s);
    ck_assert_int_eq(bpi_loader_check_config(s.loader, &err), BP_E_CONFIG);
    says(&err, "bata");
    says(&err, "did you mean \"beta\"");
    stand_close(&s);
    stand_open(&s, "[plugin.alpha]\nsplits = 2\n");
    register_both(&s);
    ck_assert_int_eq(bpi_loader_check_config(s.loader, NULL), BP_OK);
    stand_close(&s);
}
END_TEST

/* ---- host services ---- */

START_TEST(plugins_read_their_own_section)
{
    struct stand s;
    char text[16];
    int64_t i = -5;
    double f = -5.0;
    stand_open(&s, "[plugin.alpha]\nsplits = 7\nratio = 0.125\nlabel = twelve "
                   "chars\n[plugin.beta]\nsplits = 3\n");
    register_both(&s);
    const struct bp_host *h = fakes[0].host;
    ck_assert(h->h.size == BP_END(struct bp_host, parallel_for) && h->abi_minor == BP_ABI_MINOR);
    ck_assert_int_eq(h->cfg_str(h->ctx, "label", text, sizeof text), BP_OK);
    ck_assert_str_eq(text, "twelve chars");
    ck_assert_int_eq(h->cfg_str(h->ctx, "label", text, 12), BP_E_LIMIT); /* no room for the NUL */
    ck_assert_int_eq(h->cfg_str(h->ctx, "mode", text, sizeof text), BP_DECLINED);
    ck_assert_int_eq(h->cfg_i64(h->ctx, "splits", &i), BP_OK);
    ck_assert_int_eq(i, 7);
    ck_assert_int_eq(fakes[1].host->cfg_i64(fakes[1].host->ctx, "splits", &i), BP_OK);
    ck_assert_int_eq(i, 3);
    ck_assert_int_eq(h->cfg_i64(h->ctx, "label", &i), BP_E_CONFIG);
    ck_assert_int_eq(h->cfg_i64(h->ctx, "nothing", &i), BP_DECLINED);
    ck_assert_int_eq(h->cfg_f64(h->ctx, "ratio", &f), BP_OK);
    ck_assert(f == 0.125);
    ck_assert_int_eq(h->cfg_f64(h->ctx, "label", &f), BP_E_CONFIG);
    ck_assert_int_eq(h->cfg_f64(h->ctx, "nothing", &f), BP_DECLINED);
    ck_assert(h->log_on(h->ctx, BPI_LOG_INFO) != 0 && h->log_on(h->ctx, BPI_LOG_DEBUG) == 0);
    h->log(h->ctx, BPI_LOG_WARN, "100%s of it");
    ck_assert_ptr_nonnull(strstr(log_text, "1 alpha: 100%s of it"));
    stand_close(&s);
}
END_TEST

START_TEST(memory_is_aligned_and_counted)
{
    static const uint64_t aligns[] = {8, 16, 64, 256, 4096};
    struct stand s;
    uint64_t used, peak;
    void *p[5];
    stand_open(&s, "");
    register_both(&s);
    const struct bp_host *h = fakes[0].host;
    for (int i = 0; i < 5; ++i) {
        p[i] = h->mem_alloc(h->ctx, 1000, aligns[i]);
        ck_assert_ptr_nonnull(p[i]);
        ck_assert_uint_eq((uintptr_t)p[i] % aligns[i], 0);
        memset(p[i], i, 1000);
    }
    bpi_loader_memory(s.loader, 0, &used, &peak);
    ck_assert(used == 5000 && peak == 5000);
    bpi_loader_memory(s.loader, 1, &used, &peak);
    ck_assert(used == 0 && peak == 0);
    bpi_loader_memory(s.loader, 2, &used, &peak);
    ck_assert(used == 0 && peak == 0);
    for (int i = 0; i < 4; ++i) h->mem_free(h->ctx, p[i]);
    h->mem_free(h->ctx, NULL);
    bpi_loader_memory(s.loader, 0, &used, &peak);
    ck_assert(used == 1000 && peak == 5000);
    ck_assert_ptr_null(h->mem_alloc(h->ctx, 8, 3));
    ck_assert_ptr_null(h->mem_alloc(h->ctx, 8, 0));
    ck_assert_ptr_null(h->mem_alloc(h->ctx, UINT64_MAX, 64));
#ifndef BP_SANITIZED /* the address sanitizer ends the program instead of saying no */
    ck_assert_ptr_null(h->mem_alloc(h->ctx, UINT64_MAX / 4, 64));
#endif
    bpi_loader_memory(s.loader, 0, &used, &peak);
    ck_assert(used == 1000 && peak == 5000);
    void *empty = h->mem_alloc(h->ctx, 0, 64);
    ck_assert_ptr_nonnull(empty);
    h->mem_free(h->ctx, empty);
    h->mem_free(h->ctx, p[4]);
    stand_close(&s);
    ck_assert_ptr_null(strstr(log_text, "unfreed"));
}
END_TEST

/* Also where the allocator hands out again what was written and freed before. */
START_TEST(memory_is_zeroed)
{
    static const uint64_t sizes[] = {1, 24, 1000, 5000, 70000, 300000, 3000000};
    static const uint64_t aligns[] = {8, 64, 256, 4096};
    struct stand s;
    stand_open(&s, "");
    register_both(&s);
    const struct bp_host *h = fakes[0].host;
    for (int round = 0; round < 3; ++round) {
        for (size_t i = 0; i < 28; ++i) {
            const uint64_t n = sizes[i / 4];
            unsigned char *p = h->mem_alloc(h->ctx, n, aligns[i % 4]);
            ck_assert_ptr_nonnull(p);
            ck_assert_uint_eq((uintptr_t)p % aligns[i % 4], 0);
            uint64_t dirty = 0;
            for (uint64_t k = 0; k < n; ++k) dirty += p[k] != 0;
            ck_assert_msg(dirty == 0, "%llu of %llu bytes are not 0", (unsigned long long)dirty,
                          (unsigned long long)n);
#ifdef __SANITIZE_ADDRESS__
            ck_assert(__asan_address_is_poisoned(p + n) && !__asan_address_is_poisoned(p + n - 1));
#endif
            memset(p, 0xff, n);
            h->mem_free(h->ctx, p);
        }
    }
    stand_close(&s);
}
END_TEST

START_TEST(large_memory_takes_no_pages_until_it_is_used)
{
    enum { N = 64 << 20 };
    struct stand s;
    stand_open(&s, "");
    register_both(&s);
    const struct bp_host *h = fakes[0].host;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *p = h->mem_alloc(h->ctx, N, page);
    unsigned char *resident = bpi_calloc(N / page, 1);
    ck_assert(p != NULL && resident != NULL);
    size_t before = 0, after = 0;
    ck_assert_int_eq(mincore(p, N, resident), 0);
    for (size_t i = 0; i < N / page; ++i) before += resident[i] & 1;
    memset(p, 1, N);
    ck_assert_int_eq(mincore(p, N, resident), 0);
    for (size_t i = 0; i < N / page; ++i) after += resident[i] & 1;
    ck_assert_msg(before < N / page / 8, "%zu of %zu pages", before,
                  N / page);                /* a huge page fits */
    ck_assert_uint_ge(after, N / page / 2); /* the measurement does see pages */
    bpi_free(resident);
    h->mem_free(h->ctx, p);
    stand_close(&s);
}
END_TEST

START_TEST(what_a_plugin_leaves_behind_is_told)
{
    struct stand s;
    stand_open(&s, "");
    register_both(&s);
    const struct bp_host *h = fakes[1].host;
    void *leak = h->mem_alloc(h->ctx, 123, 16);
    ck_assert_ptr_nonnull(leak);
    fakes[1].leak = leak;
    bpi_loader_destroy(s.loader);
    s.loader = NULL;
    ck_assert_ptr_nonnull(strstr(log_text, "plugin beta was closed with 123 bytes"));
    bpi_free((unsigned char *)leak -
             16); /* as the host laid it out, so that the sanitizer sees no leak of ours */
    bpi_config_destroy(s.config);
}
END_TEST

static void count_range(void *arg, uint64_t begin, uint64_t end)
{
    unsigned char *seen = arg;
    for (uint64_t i = begin; i < end; ++i) seen[i]++;
}

START_TEST(parallel_for_covers_the_range_once)
{
    struct stand s;
    unsigned char seen[1000];
    for (int with_pool = 0; with_pool < 2; ++with_pool) {
        struct bpi_pool *pool = NULL;
        stand_open(&s, "");
        bpi_loader_destroy(s.loader);
        if (with_pool == 1) ck_assert_int_eq(bpi_pool_create(3, &pool, NULL), BP_OK);
        struct bpi_loader_env env = {
            .config = NULL, .log = NULL, .pool = pool}; /* all parts are optional */
        ck_assert_int_eq(bpi_loader_create(&env, &s.loader, NULL), BP_OK);
        ck_assert_int_eq(bpi_loader_register(s.loader, query_a, NULL), BP_OK);
        const struct bp_host *h = fakes[0].host;
        memset(seen, 0, sizeof seen);
        h->parallel_for(h->ctx, 1000, 7, count_range, seen);
        for (int i = 0; i < 1000; ++i) ck_assert_uint_eq(seen[i], 1);
        ck_assert_int_eq(h->log_on(h->ctx, BPI_LOG_ERROR), 0);
        h->log(h->ctx, BPI_LOG_ERROR, "to nobody");
        ck_assert_int_eq(h->cfg_i64(h->ctx, "splits", &(int64_t){0}), BP_DECLINED);
        stand_close(&s);
        bpi_pool_destroy(pool);
    }
}
END_TEST

/* ---- ops ---- */

START_TEST(ops_are_made_once_and_die_before_their_plugin)
{
    struct stand s;
    struct bp_op_ref one, two;
    struct bp_error err = BP_ERROR_INIT;
    const struct bp_device second = {
        .h = BP_HDR(struct bp_device, name), .kind = BP_DEV_HOST, .ordinal = 1};
    stand_open(&s, "");
    register_both(&s);
    ck_assert_str_eq(bpi_loader_plugin(s.loader, 0)->name, "alpha");
    ck_assert_str_eq(bpi_loader_plugin(s.loader, 1)->name, "beta");
    ck_assert_ptr_null(bpi_loader_plugin(s.loader, 2));
    ck_assert_int_eq(bpi_loader_op(s.loader, "alpha", "bp.quant", NULL, &one, NULL), BP_OK);
    ck_assert_int_eq(bpi_loader_op(s.loader, "alpha", "bp.quant", NULL, &two, NULL), BP_OK);
    ck_assert(one.vt == two.vt && one.self == two.self);
    ck_assert_int_eq(fakes[0].n_create, 1);
    ck_assert_int_eq(bpi_loader_op(s.loader, "alpha", "bp.quant", &second, &two, NULL), BP_OK);
    ck_assert_int_eq(fakes[0].n_create, 2); /* another device, another op */
    ck_assert_int_eq(bpi_loader_op(s.loader, "beta", "bp.quant", NULL, &two, NULL), BP_OK);
    ck_assert_int_eq(bpi_loader_op(s.loader, "alpha", "bp.moe", NULL, &two, &err), BP_DECLINED);
    says(&err, "alpha");
    bpi_error_clear(&err);
    ck_assert_int_eq(bpi_loader_op(s.loader, "alpa", "bp.quant", NULL, &two, &err), BP_E_CONFIG);
    says(&err, "did you mean \"alpha\"");
    history[0] = '\0';
    stand_close(&s);
    ck_assert_str_eq(history, "destroy:beta destroy:alpha destroy:alpha close:beta close:alpha");
}
END_TEST

START_TEST(tables_are_checked)
{
    struct stand s;
    for (int k = 0; k < 7; ++k) {
        struct bp_op_ref op;
        struct bp_error err = BP_ERROR_INIT;
        const char *word = "tensors";
        stand_open(&s, "");
        register_both(&s);
        if (k == 0) fakes[0].table.base.h.size = 40, word = "40 bytes";
        if (k == 1) fakes[0].table.base.iface = "bp.moe", word = "bp.moe 0.1";
        if (k == 2) fakes[0].table.base.iface_minor = 4, word = "bp.quant 0.4";
        if (k == 3) fakes[0].table.base.supports = NULL, word = "supports";
        if (k == 4) fakes[0].table.base.workspace = NULL, word = "workspace";
        if (k == 5) fakes[0].table.base.tensors = NULL;
        if (k == 6) fakes[0].create_rc = BP_E_DEVMEM, word = "no such luck";
        int32_t rc = bpi_loader_op(s.loader, "alpha", "bp.quant", NULL, &op, &err);
        ck_assert_msg(rc == (k == 6 ? BP_E_DEVMEM : BP_E_ABI), "case %d: %d", k, rc);
        says(&err, word);
        ck_assert_int_eq(fakes[0].n_create, 1);
        ck_assert_int_eq(fakes[0].n_destroy, k == 6 ? 0 : 1); /* what was made is unmade */
        stand_close(&s);
        ck_assert_int_eq(fakes[0].n_destroy, k == 6 ? 0 : 1);
    }
}
END_TEST

START_TEST(nothing_is_needed_to_destroy_nothing)
{
    bpi_loader_destroy(NULL);
    struct stand s;
    stand_open(&s, "");
    ck_assert_uint_eq(bpi_loader_n_plugins(s.loader), 0);
    ck_assert_int_eq(
        bpi_loader_op(s.loader, "alpha", "bp.quant", NULL, &(struct bp_op_ref){0}, NULL),
        BP_E_CONFIG);
    stand_close(&s);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {handshake_refuses_foreign_abis,
                                  handshake_refuses_bad_descriptors,
                                  config_keys_are_checked_against_the_plugin,
                                  sections_of_no_plugin_are_found,
                                  plugins_read_their_own_section,
                                  memory_is_aligned_and_counted,
                                  memory_is_zeroed,
                                  large_memory_takes_no_pages_until_it_is_used,
                                  what_a_plugin_leaves_behind_is_told,
                                  parallel_for_covers_the_range_once,
                                  ops_are_made_once_and_die_before_their_plugin,
                                  tables_are_checked,
                                  nothing_is_needed_to_destroy_nothing};
    return run_suite("loader_registry", tests, BPI_ARRAY_LEN(tests));
}
