/* test_token_notes.c - what the tokenizer had to guess reaches the log and the load report; a begin token that a text
 * brings itself, and one that ids bring twice. SPDX-License-Identifier: MIT */
#include "backplane/tools.h"
#include "base/base.h"
#include "unit/engine/engine_fixture.h"

#include <unistd.h>

/* A copy of a zoo model whose key tokenizer.ggml.pre goes by another name, and which asks for a begin token. */
#define COPY "test_token_notes.gguf"

static char *find_key(char *data, size_t n, const char *key)
{
    size_t len = strlen(key);
    for (size_t i = 0; i + len <= n; ++i) {
        if (memcmp(data + i, key, len) == 0) return data + i;
    }
    ck_abort_msg("the zoo model has no %s", key);
    return NULL;
}

static void write_copy(bool without_pre)
{
    struct bp_error err = BP_ERROR_INIT;
    char *data;
    size_t n;
    must(bpi_file_read(ZOO("zoo-v2lite"), 1u << 24, &data, &n, &err), &err);
    if (without_pre) memcpy(find_key(data, n, "tokenizer.ggml.pre"), "tokenizer.ggml.prx", 18);
    char *add = find_key(data, n, "tokenizer.ggml.add_bos_token");
    add[strlen("tokenizer.ggml.add_bos_token") + 4] = 1; /* behind the kind */
    must(bpi_file_write(COPY, data, n, &err), &err);
    bpi_free(data);
}

struct lines {
    struct bpi_buf all; /* level digit, then the line, then a newline */
};

static void take_line(void *ctx, int32_t level, const char *room, const char *line)
{
    struct lines *l = ctx;
    bpi_buf_printf(&l->all, "%d %s: %s\n", level, room, line);
}

static bool logged(const struct lines *l, const char *what)
{
    return l->all.len > 0 && strstr(l->all.data, what) != NULL;
}

static struct rig open_copy(struct lines *l)
{
    struct rig r = {0};
    struct bp_error err = BP_ERROR_INIT;
    const struct bp_callbacks cb = {
        .h = BP_HDR(struct bp_callbacks, progress), .ctx = l, .log = take_line};
    must(plain_config(&r.cfg, &err), &err);
    must(bp_config_set(r.cfg, "engine.log=info", &err), &err);
    must(bp_config_set(r.cfg, "engine.ctx=64", &err), &err);
    must(bp_model_open(COPY, r.cfg, &cb, &r.model, &err), &err);
    must(bp_session_open(r.model, r.cfg, &cb, &r.s, &err), &err);
    r.n_vocab = bp_model_n_vocab(r.model);
    return r;
}

START_TEST(a_missing_pre_is_told)
{
    for (int k = 0; k < 2; ++k) {
        struct lines l = {0};
        write_copy(k == 0);
        struct rig r = open_copy(&l);
        ck_assert(logged(&l, "1 token: tokenizer.ggml.pre: ") == (k == 0));
        ck_assert_str_eq(bp_model_pre(r.model), k == 0 ? "default" : "gpt-2");
        uint32_t found = 0, n = 0;
        struct bp_report line = {.h = BP_HDR(struct bp_report, text)};
        for (; bp_model_report(r.model, n, &line) == BP_OK; ++n) {
            if (strcmp(line.name, "tokenizer.ggml.pre") != 0) continue;
            ck_assert_uint_eq(line.kind, BP_REPORT_NOTE);
            ck_assert_ptr_nonnull(strstr(line.text, "\"default\""));
            ++found;
        }
        ck_assert_uint_eq(found, k == 0 ? 1 : 0);
        ck_assert_int_eq(bp_model_report(r.model, n, &line), BP_DECLINED);
        ck_assert_int_eq(bp_model_report(r.model, UINT32_MAX, &line), BP_DECLINED);
        rig_close(&r);
        bpi_buf_free(&l.all);
    }
    (void)unlink(COPY);
}
END_TEST

static void check_tokens(const struct rig *r, const char *text, const int32_t *want, size_t n)
{
    struct bp_error err = BP_ERROR_INIT;
    int32_t *ids;
    size_t n_ids;
    must(bp_tokenize(r->model, text, strlen(text), BP_TOKENIZE_SPECIAL | BP_TOKENIZE_BOS, &ids,
                     &n_ids, &err),
         &err);
    ck_assert_uint_eq(n_ids, n);
    ck_assert_mem_eq(ids, want, n * sizeof *want);
    bp_free(ids);
}

static void run_prompt(struct rig *r, const int32_t *ids, size_t n)
{
    struct bp_error err = BP_ERROR_INIT;
    const struct bp_generate_params p = {.h = BP_HDR(struct bp_generate_params, ctx)};
    struct bp_generate_result out = {.h = BP_HDR(struct bp_generate_result, decode_s)};
    must(bp_generate(r->s, &p, ids, n, &out, &err), &err);
    ck_assert_uint_eq(out.n_prompt, n);
}

START_TEST(begin_tokens)
{
    static const char own[] = "begins with the begin token itself",
                      twice[] = "1 generate: the prompt begins with the begin token twice";
    static const int32_t one[] = {256, 'a'}, two[] = {256, 256, 'a'};
    struct lines l = {0};
    struct bp_error err = BP_ERROR_INIT;
    struct bpi_buf text = {0};
    char *begin;
    size_t n_begin;
    write_copy(false);
    struct rig r = open_copy(&l);
    must(bp_detokenize(r.model, one, 1, 1, &begin, &n_begin, &err), &err);
    ck_assert_uint_gt(n_begin, 1);
    bpi_buf_printf(&text, "%sa", begin);
    check_tokens(&r, "a", one, 2);
    ck_assert(!logged(&l, own));
    check_tokens(&r, text.data, one, 2); /* not doubled, and said so */
    ck_assert(logged(&l, own));

    run_prompt(&r, one, 2);
    run_prompt(&r, two, 3); /* in the middle of a sequence it is the caller's business */
    ck_assert(!logged(&l, twice));
    must(bp_seq_reset(r.s, 0, &err), &err);
    run_prompt(&r, two, 3);
    ck_assert(logged(&l, twice));
    bp_free(begin);
    bpi_buf_free(&text);
    bpi_buf_free(&l.all);
    rig_close(&r);
    (void)unlink(COPY);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("token_notes");
    TCase *tc = tcase_create("token_notes");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, a_missing_pre_is_told);
    tcase_add_test(tc, begin_tokens);
    suite_add_tcase(s, tc);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
