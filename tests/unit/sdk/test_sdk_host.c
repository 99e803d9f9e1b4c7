/* test_sdk_host.c - texts, errors and host services of sdk.h over a made-up host, and the frame that BP_PLUGIN makes: note
 * and descriptor say the same. SPDX-License-Identifier: MIT */
#define BP_PLUGIN_QUERY_NAME sdk_test_query
#define BP_PLUGIN_BUILD_ID "test build"
#include "backplane/sdk.h"

#include <check.h>
#include <stdlib.h>

/* ---- a plugin ---- */

static int32_t frame_open(const struct bp_host *host, void **plugin, struct bp_error *err)
{
    (void)host, (void)plugin;
    return bp_error_set(err, BP_E_INTERNAL, "frame", "open", "never opened");
}

static void frame_close(void *plugin)
{
    (void)plugin;
}

static int32_t frame_op_create(void *plugin, const struct bp_op_entry *entry,
                               const struct bp_device *dev, const struct bp_op_ref *inner,
                               uint32_t n_inner, struct bp_op_ref *out, struct bp_error *err)
{
    (void)plugin, (void)dev, (void)inner, (void)n_inner, (void)out;
    return bp_error_set(err, BP_DECLINED, "frame", entry->iface, "never made");
}

static void frame_op_destroy(void *plugin, struct bp_op_ref *op)
{
    (void)plugin, (void)op;
}

static const struct bp_cfg_key frame_keys[] = {{"a", "int", "1", "A number.", 0, 9},
                                               {"b", "bool", "true", "A choice.", 0, 0}};
static const uint32_t frame_sm[] = {900, 1200};

BP_PLUGIN(BP_KIND_WRAPPER, "frame", "1.2.3", BP_ABOUT("vendor", "licence", "summary"),
          BP_CUDA(13000, 12080, frame_sm), BP_KEYS(frame_keys),
          BP_HOOKS(frame_open, frame_close, frame_op_create, frame_op_destroy), ("bp.quant", "q"),
          ("bp.mla.decode", "d"), ("bp.moe", "m"));

START_TEST(note_and_descriptor_agree)
{
    struct bp_query q = {.h = BP_HDR(struct bp_query, engine_version),
                         .host_major = BP_ABI_MAJOR,
                         .host_minor = BP_ABI_MINOR};
    const struct bp_plugin_desc *d = sdk_test_query(&q);
    const struct bp_plugin_note *note = &bp_note_record_.desc;
    ck_assert_ptr_nonnull(d);
    ck_assert_ptr_eq(d, sdk_test_query(&q));
    ck_assert_uint_eq(d->h.size, sizeof *d);
    ck_assert_uint_eq(bp_note_record_.namesz, sizeof "Backplane");
    ck_assert_uint_eq(bp_note_record_.descsz, sizeof *note);
    ck_assert_uint_eq(bp_note_record_.type, BP_NOTE_PLUGIN);
    ck_assert_str_eq(bp_note_record_.owner, "Backplane");
    ck_assert(note->abi_major == d->abi_major && note->abi_minor == d->abi_minor &&
              note->kind == d->kind);
    ck_assert_uint_eq(d->min_host_minor, BP_ABI_MINOR);
    ck_assert_uint_eq(d->kind, BP_KIND_WRAPPER);
    ck_assert_str_eq(note->name, d->name);
    ck_assert_str_eq(note->version, d->version);
    ck_assert_str_eq(note->ifaces, "bp.quant bp.mla.decode bp.moe");
    ck_assert_str_eq(d->version, "1.2.3");
    ck_assert_str_eq(d->vendor, "vendor");
    ck_assert_str_eq(d->license, "licence");
    ck_assert_str_eq(d->summary, "summary");
    ck_assert_str_eq(d->build_id, "test build");
    ck_assert_uint_eq(d->cuda_built, 13000);
    ck_assert_uint_eq(d->cuda_min_driver, 12080);
    ck_assert(d->sm == frame_sm && d->n_sm == 2);
    ck_assert(d->cfg == frame_keys && d->n_cfg == 2 && d->cfg_stride == sizeof frame_keys[0]);
    ck_assert(d->n_ops == 3 && d->ops_stride == sizeof d->ops[0]);
    ck_assert_str_eq(d->ops[1].iface, "bp.mla.decode");
    ck_assert_str_eq(d->ops[2].impl, "m");
    ck_assert(d->ops[0].iface_major == BP_ABI_MAJOR && d->ops[0].iface_minor == BP_ABI_MINOR);
    ck_assert(d->open == frame_open && d->close == frame_close && d->op_create == frame_op_create &&
              d->op_destroy == frame_op_destroy);
    q.host_minor++;
    ck_assert_ptr_null(sdk_test_query(&q));
    q.host_minor--;
    q.host_major++;
    ck_assert_ptr_null(sdk_test_query(&q));
    ck_assert_ptr_null(sdk_test_query(NULL));
}
END_TEST

/* ---- texts and errors ---- */

START_TEST(texts_never_overrun)
{
    char out[8];
    struct bp_text t;
    memset(out, 'z', sizeof out);
    bp_text_begin(&t, out, 6);
    ck_assert_str_eq(out, "");
    bp_text_add(&t, "ab");
    bp_text_i64(&t, -7);
    ck_assert_str_eq(out, "ab-7");
    bp_text_u64(&t, 123);
    ck_assert_str_eq(out, "ab-71");
    ck_assert(out[6] == 'z' && out[7] == 'z');
    bp_text_begin(&t, NULL, 100);
    bp_text_add(&t, "nowhere");
    bp_text_begin(&t, out, 1);
    bp_text_add(&t, "x");
    ck_assert_str_eq(out, "");
    char wide[64];
    bp_text_begin(&t, wide, sizeof wide);
    bp_text_i64(&t, INT64_MIN);
    bp_text_add(&t, " ");
    bp_text_u64(&t, UINT64_MAX);
    bp_text_add(&t, NULL);
    ck_assert_str_eq(wide, "-9223372036854775808 18446744073709551615(none)");
    bp_text_begin(&t, wide, sizeof wide);
    bp_text_u64(&t, 0);
    ck_assert_str_eq(wide, "0");
}
END_TEST

START_TEST(errors_are_filled_or_skipped)
{
    struct bp_error e = BP_ERROR_INIT, before;
    char text[700];
    ck_assert_int_eq(bp_error_number(&e, BP_E_ARG, "acme", "decode", "has ", -3, " rows"),
                     BP_E_ARG);
    ck_assert_int_eq(e.code, BP_E_ARG);
    ck_assert_str_eq(e.domain, "acme");
    ck_assert_str_eq(e.where, "decode");
    ck_assert_str_eq(e.msg, "has -3 rows");
    memset(text, 'y', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    ck_assert_int_eq(bp_error_set(&e, BP_E_IO, text, text, text), BP_E_IO);
    ck_assert_uint_eq(strlen(e.domain), sizeof e.domain - 1);
    ck_assert_uint_eq(strlen(e.where), sizeof e.where - 1);
    ck_assert_uint_eq(strlen(e.msg), sizeof e.msg - 1);
    ck_assert_int_eq(bp_error_set(NULL, BP_E_IO, "a", "b", "c"), BP_E_IO);
    e.h.size = BP_END(struct bp_error, where); /* shorter than it ever was: left alone */
    before = e;
    ck_assert_int_eq(bp_error_set(&e, BP_E_ARG, "a", "b", "c"), BP_E_ARG);
    ck_assert_mem_eq(&e, &before, sizeof e);
}
END_TEST

/* ---- host ---- */

static char said[64];
static const char *value; /* of every key; NULL: not set */

static int32_t fake_log_on(void *ctx, uint32_t level)
{
    (void)ctx;
    return level <= BP_LOG_INFO;
}

static void fake_log(void *ctx, uint32_t level, const char *line)
{
    struct bp_text t;
    (void)ctx, (void)level;
    bp_text_begin(&t, said, sizeof said);
    bp_text_add(&t, line);
}

static int32_t fake_str(void *ctx, const char *key, char *out, uint64_t cap)
{
    (void)ctx, (void)key;
    if (value == NULL) return BP_DECLINED;
    if (strlen(value) >= cap) return BP_E_LIMIT;
    memcpy(out, value, strlen(value) + 1);
    return BP_OK;
}

static int32_t fake_i64(void *ctx, const char *key, int64_t *out)
{
    (void)ctx, (void)key;
    *out = -1;
    if (value == NULL) return BP_DECLINED;
    if (strcmp(value, "bad") == 0) return BP_E_CONFIG;
    *out = 42;
    return BP_OK;
}

static int32_t fake_f64(void *ctx, const char *key, double *out)
{
    int64_t v;
    int32_t rc = fake_i64(ctx, key, &v);
    *out = (double)v + 0.5;
    return rc;
}

static void *fake_alloc(void *ctx, uint64_t n_bytes, uint64_t align)
{
    (void)ctx;
    return align == 64 ? calloc(1, n_bytes) : NULL;
}

static void fake_free(void *ctx, void *p)
{
    (void)ctx;
    free(p);
}

static void fake_for(void *ctx, uint64_t n, uint64_t grain,
                     void (*fn)(void *arg, uint64_t begin, uint64_t end), void *arg)
{
    (void)ctx, (void)grain;
    fn(arg, 0, n);
}

static const struct bp_host host = {.h = BP_HDR(struct bp_host, parallel_for),
                                    .log_on = fake_log_on,
                                    .log = fake_log,
                                    .cfg_str = fake_str,
                                    .cfg_i64 = fake_i64,
                                    .cfg_f64 = fake_f64,
                                    .mem_alloc = fake_alloc,
                                    .mem_free = fake_free,
                                    .parallel_for = fake_for};

START_TEST(only_shown_lines_are_logged)
{
    struct bp_host mute = host;
    said[0] = '\0';
    bp_log(&host, BP_LOG_DEBUG, "too detailed");
    ck_assert_str_eq(said, "");
    bp_log(&host, BP_LOG_INFO, "hello");
    ck_assert_str_eq(said, "hello");
    mute.log = NULL;
    bp_log(&mute, BP_LOG_INFO, "nobody");
    mute = host;
    mute.h.size = BP_END(struct bp_host, log_on); /* a host that ends before log */
    bp_log(&mute, BP_LOG_INFO, "nobody");
    ck_assert_str_eq(said, "hello");
    ck_assert(BP_HOST_HAS(&host, parallel_for) && !BP_HOST_HAS(&mute, parallel_for));
}
END_TEST

START_TEST(config_falls_back_to_the_default)
{
    static const char *const words[] = {"none", "decode"};
    char text[8];
    int64_t i;
    double f;
    int32_t b;
    uint32_t at;
    value = NULL;
    ck_assert(bp_cfg_str(&host, "k", "dflt", text, sizeof text) == BP_OK &&
              strcmp(text, "dflt") == 0);
    ck_assert_int_eq(bp_cfg_str(&host, "k", "much too long", text, sizeof text), BP_E_LIMIT);
    ck_assert_str_eq(text, "");
    ck_assert(bp_cfg_i64(&host, "k", 7, &i) == BP_OK && i == 7);
    ck_assert(bp_cfg_f64(&host, "k", 0.25, &f) == BP_OK && f == 0.25);
    ck_assert(bp_cfg_bool(&host, "k", 1, &b) == BP_OK && b == 1);
    ck_assert(bp_cfg_bool(&host, "k", 0, &b) == BP_OK && b == 0);
    ck_assert(bp_cfg_choice(&host, "k", words, 2, 1, &at) == BP_OK && at == 1);
    value = "decode";
    ck_assert(bp_cfg_str(&host, "k", "dflt", text, sizeof text) == BP_OK &&
              strcmp(text, "decode") == 0);
    ck_assert_int_eq(bp_cfg_str(&host, "k", "d", text, 4), BP_E_LIMIT);
    ck_assert_str_eq(text, "");
    ck_assert(bp_cfg_i64(&host, "k", 7, &i) == BP_OK && i == 42);
    ck_assert(bp_cfg_f64(&host, "k", 0.25, &f) == BP_OK && f == 42.5);
    ck_assert(bp_cfg_choice(&host, "k", words, 2, 0, &at) == BP_OK && at == 1);
    value = "bad";
    ck_assert(bp_cfg_i64(&host, "k", 7, &i) == BP_E_CONFIG && i == 7);
    ck_assert(bp_cfg_f64(&host, "k", 0.25, &f) == BP_E_CONFIG && f == 0.25);
    ck_assert(bp_cfg_choice(&host, "k", words, 2, 0, &at) == BP_E_CONFIG && at == 0);
    ck_assert(bp_cfg_bool(&host, "k", 1, &b) == BP_E_CONFIG && b == 1);
    static const char *const trues[] = {"true", "yes", "on", "1"}, *const falses[] = {"false", "no",
                                                                                      "off", "0"};
    for (uint32_t w = 0; w < 4; ++w) {
        value = trues[w];
        ck_assert(bp_cfg_bool(&host, "k", 0, &b) == BP_OK && b == 1);
        value = falses[w];
        ck_assert(bp_cfg_bool(&host, "k", 1, &b) == BP_OK && b == 0);
    }
}
END_TEST

static void add_range(void *arg, uint64_t begin, uint64_t end)
{
    *(uint64_t *)arg += end - begin;
}

START_TEST(memory_and_threads)
{
    uint64_t sum = 0;
    unsigned char *p = bp_mem_alloc(&host, 3, 5);
    ck_assert_ptr_nonnull(p);
    ck_assert_uint_eq(p[14], 0);
    bp_mem_free(&host, p);
    ck_assert_ptr_null(bp_mem_alloc(&host, UINT64_MAX / 4, 5));
    bp_parallel_for(&host, 10, 1, add_range, &sum);
    bp_parallel_for(&host, 0, 1, add_range, &sum);
    ck_assert_uint_eq(sum, 10);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("sdk_host");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, note_and_descriptor_agree);
    tcase_add_test(tc, texts_never_overrun);
    tcase_add_test(tc, errors_are_filled_or_skipped);
    tcase_add_test(tc, only_shown_lines_are_logged);
    tcase_add_test(tc, config_falls_back_to_the_default);
    tcase_add_test(tc, memory_and_threads);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
