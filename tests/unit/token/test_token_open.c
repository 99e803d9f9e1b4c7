/* test_token_open.c - malformed and hostile vocabularies: each is refused with a sentence, or handled as stated; the
 * byte alphabet; the time to open a very large vocabulary. SPDX-License-Identifier: MIT */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "harness/cpu_time.h"
#include "harness/token_image.h"
#include "harness/token_model.h"
#include "token/token_priv.h"

static void begin_bytes(struct image *m)
{
    image_begin(m, "gpt-2");
    image_bytes(m);
}

static struct bpi_token *must_open(struct image *m)
{
    struct bpi_token *t;
    struct bp_error err = BP_ERROR_INIT;
    ck_assert_msg(image_open(m, &t, &err) == BP_OK, "%s: %s", err.where, err.msg);
    return t;
}

static void must_refuse(struct image *m, int32_t rc, const char *part_of_message)
{
    struct bpi_token *t = (struct bpi_token *)1;
    struct bp_error err = BP_ERROR_INIT;
    int32_t got = image_open(m, &t, &err);
    ck_assert_msg(got == rc, "%d, %s: %s", got, err.where, err.msg);
    ck_assert_ptr_null(t);
    ck_assert_int_eq(err.code, rc);
    ck_assert_msg(strstr(err.msg, part_of_message) != NULL, "%s: %s", err.where, err.msg);
    ck_assert(err.where[0] != '\0');
}

START_TEST(kinds_of_tokenizers)
{
    struct image m;
    struct bpi_buf none = {0};
    image_begin(&m, "gpt-3");
    image_bytes(&m);
    must_refuse(&m, BP_E_UNSUPPORTED, "\"gpt-3\"");
    image_begin(&m, "gpt-3");
    image_bytes(&m);
    must_refuse(&m, BP_E_UNSUPPORTED,
                "gpt-2, llama-bpe, glm4, chatglm-bpe, qwen2, deepseek-v3, deepseek-llm, kimi-k2, "
                "default; if one of them");
    image_begin(&m, "deepseek-v4");
    image_bytes(&m);
    must_refuse(&m, BP_E_UNSUPPORTED, "(meant is perhaps \"deepseek-v3\")");
    image_begin(&m, "\xff and a name that is much too long to be repeated in one sentence");
    image_bytes(&m);
    must_refuse(&m, BP_E_UNSUPPORTED, "newer Backplane");
    image_begin(&m, "");
    image_bytes(&m);
    must_refuse(&m, BP_E_UNSUPPORTED, "pre-tokenizer \"\" is not supported");
    image_begin(&m, "gpt-2");
    must_refuse(&m, BP_E_FORMAT, "no vocabulary");
    image_begin(&m, "gpt-2");
    image_array(&m, "tokenizer.ggml.tokens", BPI_GGUF_STRING, 0, &none);
    must_refuse(&m, BP_E_FORMAT, "no vocabulary");
    image_begin(&m, "gpt-2");
    image_u32(&m, "tokenizer.ggml.tokens", 5);
    must_refuse(&m, BP_E_FORMAT, "expected an array of");

    m = (struct image){0}; /* no model key, then another model */
    bpi_buf_append(&m.b, "GGUF\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 24);
    image_bytes(&m);
    must_refuse(&m, BP_E_FORMAT, "no tokenizer");
    m = (struct image){0};
    bpi_buf_append(&m.b, "GGUF\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 24);
    image_str(&m, "tokenizer.ggml.model", "llama");
    image_bytes(&m);
    must_refuse(&m, BP_E_UNSUPPORTED, "\"llama\"");
    m = (struct image){0};
    bpi_buf_append(&m.b, "GGUF\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 24);
    image_u32(&m, "tokenizer.ggml.model", 1);
    image_bytes(&m);
    struct bpi_token *t;
    ck_assert_int_eq(image_open(&m, &t, NULL), BP_E_FORMAT);
}
END_TEST

/* A file that does not name its splitter is read with the general one, and says so. */
START_TEST(notes)
{
    for (int k = 0; k < 3; ++k) {
        struct image m;
        const char *key = NULL, *text = NULL;
        image_begin(&m, k == 0 ? NULL : k == 1 ? "default" : "glm4");
        image_bytes(&m);
        struct bpi_token *t = must_open(&m);
        ck_assert_str_eq(bpi_token_pre(t), k < 2 ? "default" : "glm4");
        ck_assert(bpi_token_note(t, 0, &key, &text) == (k == 0));
        if (k == 0) {
            ck_assert_str_eq(key, "tokenizer.ggml.pre");
            ck_assert_ptr_nonnull(strstr(text, "\"default\" is used"));
        }
        ck_assert(!bpi_token_note(t, 1, &key, &text) &&
                  !bpi_token_note(t, UINT32_MAX, &key, &text));
        bpi_token_close(t);
    }
    struct image m;
    struct bpi_token *none;
    image_begin(&m, NULL);
    image_u32(&m, "tokenizer.ggml.pre", 1); /* there, but no text */
    image_bytes(&m);
    ck_assert_int_eq(image_open(&m, &none, NULL), BP_E_FORMAT);
}
END_TEST

START_TEST(entries)
{
    struct image m;
    begin_bytes(&m);
    (void)image_token(&m, "ab", BPI_TOK_NORMAL);
    (void)image_token(&m, "ab", BPI_TOK_CONTROL);
    must_refuse(&m, BP_E_FORMAT, "entries 256 and 257 have the same text \"ab\"");

    image_begin(&m,
                "gpt-2"); /* the byte 0x20 has no entry: its character is here as a control token */
    for (uint32_t byte = 0; byte < 256; ++byte) {
        unsigned char text[4];
        size_t n = image_byte_text(byte, text);
        (void)image_token_n(&m, (const char *)text, n,
                            byte == 0x20 ? BPI_TOK_CONTROL : BPI_TOK_NORMAL);
    }
    must_refuse(&m, BP_E_FORMAT, "byte 0x20");
    image_begin(&m, "gpt-2");
    (void)image_token(&m, "only", BPI_TOK_NORMAL);
    must_refuse(&m, BP_E_FORMAT, "byte 0x00");

    char *big = malloc(70000);
    ck_assert_ptr_nonnull(big);
    memset(big, 'x', 70000);
    begin_bytes(&m);
    (void)image_token_n(&m, big, 65536, BPI_TOK_NORMAL);
    must_refuse(&m, BP_E_LIMIT, "65536 bytes");
    begin_bytes(&m);
    (void)image_token_n(&m, big, 1025, BPI_TOK_CONTROL);
    must_refuse(&m, BP_E_LIMIT, "1025 bytes");
    begin_bytes(&m);
    (void)image_token_n(&m, big, 1024, BPI_TOK_CONTROL);
    (void)image_token_n(&m, big, 65535, BPI_TOK_UNUSED);
    struct bpi_token *t = must_open(&m);
    struct bpi_ids ids = {0};
    ck_assert_int_eq(bpi_tokenize(t, big, 1025, BPI_TOKENIZE_SPECIAL, &ids, NULL), BP_OK);
    ck_assert(ids.n == 2 && ids.ids[0] == 256 && ids.ids[1] == 'x');
    bpi_ids_free(&ids);
    bpi_token_close(t);
    free(big);

    begin_bytes(
        &m); /* entries without text keep their ids, of whatever type, and are no duplicates */
    for (int32_t type = BPI_TOK_UNDEFINED; type <= BPI_TOK_BYTE; ++type)
        (void)image_token(&m, "", type);
    (void)image_token(&m, "<e>", BPI_TOK_CONTROL);
    t = must_open(&m);
    ck_assert_uint_eq(bpi_token_count(t), 264);
    ck_assert_int_eq(bpi_token_find(t, "", 0), BPI_TOKEN_NONE);
    ck_assert_int_eq(bpi_token_find(t, "<e>", 3), 263);
    struct bpi_buf b = {0};
    for (int32_t id = 256; id < 263; ++id)
        ck_assert_int_eq(bpi_token_bytes(t, id, true, &b), BP_OK);
    ck_assert_uint_eq(b.len, 0);
    ck_assert_uint_eq(bpi_token_text(t, 260).n, 0);
    ck_assert_uint_eq(bpi_token_text(t, -1).n, 0);
    ck_assert_uint_eq(bpi_token_text(t, 264).n, 0);
    ck_assert_uint_eq(bpi_token_type(t, 263), BPI_TOK_CONTROL);
    ck_assert_uint_eq(bpi_token_type(t, 264), BPI_TOK_UNDEFINED);
    ck_assert_int_eq(bpi_token_bytes(t, 264, true, &b), BP_E_ARG);
    ck_assert_int_eq(bpi_token_bytes(t, -1, true, &b), BP_E_ARG);
    bpi_buf_free(&b);
    bpi_token_close(t);
}
END_TEST

START_TEST(types)
{
    struct image m;
    begin_bytes(&m);
    m.n_types = 255;
    m.types.len = 255 * 4;
    must_refuse(&m, BP_E_FORMAT, "256 entries, got 255");
    begin_bytes(&m);
    (void)image_token(&m, "<x>", 7);
    must_refuse(&m, BP_E_FORMAT, "type 7");
    begin_bytes(&m);
    (void)image_token(&m, "<x>", -1);
    must_refuse(&m, BP_E_FORMAT, "type -1");
    begin_bytes(&m);
    m.n_types = 0;
    image_u32(&m, "tokenizer.ggml.token_type", 1);
    must_refuse(&m, BP_E_FORMAT, "expected an array");
    begin_bytes(&m); /* more types than entries do no harm; none means that all are normal */
    image_num(&m.types, BPI_TOK_CONTROL, 4);
    ++m.n_types;
    bpi_token_close(must_open(&m));
    begin_bytes(&m);
    m.n_types = 0;
    struct bpi_token *t = must_open(&m);
    ck_assert_uint_eq(bpi_token_type(t, 0), BPI_TOK_NORMAL);
    bpi_token_close(t);
}
END_TEST

START_TEST(byte_entries)
{
    static const struct {
        const char *entry, *bytes;
    } cases[] = {{"<0x41>", "A"},    {"<0xfF>", "\xff"},   {"<0x-1>", "<0x-1>"},
                 {"<0x4>", "<0x4>"}, {"<0x0G>", "<0x0G>"}, {"<0x410>", "<0x410>"},
                 {"0x41", "0x41"}};
    struct image m;
    begin_bytes(&m);
    for (size_t i = 0; i < BPI_ARRAY_LEN(cases); ++i)
        (void)image_token(&m, cases[i].entry, BPI_TOK_BYTE);
    (void)image_token(&m, "a b\xff\xc4\xa0",
                      BPI_TOK_UNUSED); /* no alphabet characters but the last */
    struct bpi_token *t = must_open(&m);
    for (size_t i = 0; i < BPI_ARRAY_LEN(cases); ++i) {
        struct bpi_buf b = {0};
        ck_assert_int_eq(bpi_token_bytes(t, 256 + (int32_t)i, false, &b), BP_OK);
        ck_assert_str_eq(b.data, cases[i].bytes);
        bpi_buf_free(&b);
    }
    struct bpi_buf b = {0};
    ck_assert_int_eq(bpi_token_bytes(t, 256 + (int32_t)BPI_ARRAY_LEN(cases), false, &b), BP_OK);
    ck_assert_str_eq(b.data, "a b\xff ");
    bpi_buf_free(&b);
    bpi_token_close(t);
}
END_TEST

START_TEST(merge_lines)
{
    static const char *const bad[] = {"ab", "", " ", "a ", " b", "a"};
    struct image m;
    for (size_t i = 0; i < BPI_ARRAY_LEN(bad); ++i) {
        begin_bytes(&m);
        image_merge(&m, "a b");
        image_merge(&m, bad[i]);
        must_refuse(&m, BP_E_FORMAT, "merge 1 (");
    }
    begin_bytes(&m);
    (void)image_token(&m, "ab", BPI_TOK_NORMAL);
    must_refuse(&m, BP_E_FORMAT, "no merges");
    begin_bytes(&m);
    image_u32(&m, "tokenizer.ggml.merges", 1);
    must_refuse(&m, BP_E_FORMAT, "expected an array of");

    /* Unknown texts, a pair named twice, texts with spaces: "x y" is no entry but a step to "xyz". */
    begin_bytes(&m);
    (void)image_token(&m, "xyz", BPI_TOK_NORMAL);
    (void)image_token(&m, "yz", BPI_TOK_NORMAL);
    static const char *const lines[] = {"x y",  "nowhere nothing", "y z", "x y",
                                        "xy z", "a b c",           "  d", "\xff \xfe"};
    for (size_t i = 0; i < BPI_ARRAY_LEN(lines); ++i) image_merge(&m, lines[i]);
    struct bpi_token *t = must_open(&m);
    struct bpi_ids ids = {0};
    ck_assert_int_eq(bpi_tokenize(t, "xyz", 3, 0, &ids, NULL), BP_OK);
    ck_assert(ids.n == 1 && ids.ids[0] == 256);
    ids.n = 0;
    ck_assert_int_eq(bpi_tokenize(t, "xyxyyz", 6, 0, &ids, NULL), BP_OK);
    static const int32_t want[] = {'x', 'y', 'x', 'y', 257}; /* "xy" falls back to its bytes */
    ck_assert_uint_eq(ids.n, 5);
    ck_assert_mem_eq(ids.ids, want, sizeof want);
    bpi_ids_free(&ids);
    bpi_token_close(t);
}
END_TEST

START_TEST(special_ids)
{
    static const char *const used[] = {"bos", "eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep"};
    struct image m;
    for (size_t i = 0; i < BPI_ARRAY_LEN(used); ++i) {
        char key[64];
        (void)snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", used[i]);
        begin_bytes(&m);
        image_u32(&m, key, 256);
        must_refuse(&m, BP_E_FORMAT, "id 256 is outside the vocabulary of 256");
        begin_bytes(&m);
        image_u32(&m, key, UINT32_MAX);
        must_refuse(&m, BP_E_FORMAT, "outside");
        begin_bytes(&m);
        image_str(&m, key, "7");
        struct bpi_token *none;
        ck_assert_int_eq(image_open(&m, &none, NULL), BP_E_FORMAT);
        begin_bytes(&m);
        image_u32(&m, key, 255);
        struct bpi_token *t = must_open(&m);
        ck_assert_int_eq(bpi_token_is_eog(t, 255), i > 0);
        ck_assert_int_eq(bpi_token_bos(t), i == 0 ? 255 : BPI_TOKEN_NONE);
        ck_assert_int_eq(bpi_token_eos(t), i == 1 ? 255 : BPI_TOKEN_NONE);
        bpi_token_close(t);
    }
    begin_bytes(&m);
    image_bool(&m, "tokenizer.ggml.add_bos_token", true);
    must_refuse(&m, BP_E_FORMAT, "bos_token_id is missing");
    /* llama-bpe adds a begin token when the file does not say, if there is one. */
    for (int k = 0; k < 4; ++k) {
        image_begin(&m, "llama-bpe");
        image_bytes(&m);
        if (k > 0) image_u32(&m, "tokenizer.ggml.bos_token_id", 1);
        if (k > 1) image_bool(&m, "tokenizer.ggml.add_bos_token", k == 3);
        struct bpi_token *t = must_open(&m);
        ck_assert_int_eq(bpi_token_add_bos(t), k == 1 || k == 3);
        bpi_token_close(t);
    }
    /* End texts count only on special entries. */
    begin_bytes(&m);
    (void)image_token(&m, "</s>", BPI_TOK_UNUSED);
    (void)image_token(&m, "<|im_end|>", BPI_TOK_CONTROL);
    (void)image_token(&m, "<|user|>", BPI_TOK_USER);
    (void)image_token(&m, "<|assistant|>", BPI_TOK_CONTROL);
    struct bpi_token *t = must_open(&m);
    ck_assert(!bpi_token_is_eog(t, 256) && bpi_token_is_eog(t, 257) && bpi_token_is_eog(t, 258));
    ck_assert(!bpi_token_is_eog(t, 259) && !bpi_token_is_eog(t, 260) && !bpi_token_is_eog(t, -1));
    bpi_token_close(t);
    begin_bytes(&m);
    image_u32(&m, "tokenizer.chat_template", 1);
    struct bpi_token *none;
    ck_assert_int_eq(image_open(&m, &none, NULL), BP_E_FORMAT);
}
END_TEST

START_TEST(byte_alphabet)
{
    for (uint32_t byte = 0; byte < 256; ++byte) {
        unsigned char text[4];
        uint32_t cp;
        bool ok;
        size_t n = image_byte_text(byte, text);
        (void)bpi_utf8_decode(text, n, &cp, &ok);
        ck_assert_uint_eq(bpi_byte_to_cp((unsigned char)byte), cp);
        ck_assert_int_eq(bpi_cp_to_byte(cp), (int)byte);
    }
    int known = 0;
    for (uint32_t cp = 0; cp < 0x400; ++cp) known += bpi_cp_to_byte(cp) >= 0;
    ck_assert_int_eq(known, 256);
    ck_assert_uint_eq(bpi_byte_to_cp(' '), 0x120);
    ck_assert_uint_eq(bpi_byte_to_cp('\n'), 0x10a);
    ck_assert_int_eq(bpi_cp_to_byte(0x110000), -1);
}
END_TEST

/* The zoo's vocabularies are single bytes without merges. */
START_TEST(bytes_only)
{
    struct bpi_token *t = bp_test_token("zoo-v32.gguf");
    ck_assert_ptr_nonnull(t);
    struct bpi_ids ids = {0};
    struct bpi_buf b = {0};
    ck_assert_int_eq(bpi_tokenize(t, "Hi \xc3\xa9\xff", 6, 0, &ids, NULL), BP_OK);
    ck_assert_uint_eq(ids.n, 6);
    for (size_t i = 0; i < ids.n; ++i)
        ck_assert_int_eq(bpi_token_bytes(t, ids.ids[i], false, &b), BP_OK);
    ck_assert_str_eq(b.data, "Hi \xc3\xa9\xff");
    bpi_buf_free(&b);
    bpi_ids_free(&ids);
    bpi_token_close(t);
}
END_TEST

/* 320 thousand entries and as many merges, like the largest vocabularies in use. */
START_TEST(large_vocabulary_opens_fast)
{
    enum { N = 320000 };
    struct image m;
    begin_bytes(&m);
    for (int i = 0; i < N; ++i) {
        char line[64], joined[64];
        (void)snprintf(line, sizeof line, "%x %cz", i, 'g' + i % 11);
        (void)snprintf(joined, sizeof joined, "%x%cz", i, 'g' + i % 11);
        image_merge(&m, line);
        (void)image_token(&m, joined, i % 100 == 0 ? BPI_TOK_CONTROL : BPI_TOK_NORMAL);
    }
    image_end(&m);
    struct bpi_gguf *g;
    struct bpi_token *t;
    struct bp_error err = BP_ERROR_INIT;
    ck_assert_msg(bpi_gguf_open_memory(m.b.data, m.b.len, "large", &g, &err) == BP_OK, "%s",
                  err.msg);
    uint64_t t0 = bp_test_cpu_ns();
    ck_assert_msg(bpi_token_open(g, &t, &err) == BP_OK, "%s", err.msg);
    double seconds = (double)(bp_test_cpu_ns() - t0) * 1e-9;
    printf("%d entries and merges: opened in %.0f ms\n", N, seconds * 1e3);
#ifdef BP_SANITIZED
    ck_assert(seconds < 10);
#else
    ck_assert(seconds < 1);
#endif
    ck_assert_uint_eq(bpi_token_count(t), N + 256);
    bpi_token_close(t);
    bpi_gguf_close(g);
    image_free(&m);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("token_open");
    TCase *tc = tcase_create("token_open");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, kinds_of_tokenizers);
    tcase_add_test(tc, notes);
    tcase_add_test(tc, entries);
    tcase_add_test(tc, types);
    tcase_add_test(tc, byte_entries);
    tcase_add_test(tc, merge_lines);
    tcase_add_test(tc, special_ids);
    tcase_add_test(tc, byte_alphabet);
    tcase_add_test(tc, bytes_only);
    tcase_add_test(tc, large_vocabulary_opens_fast);
    suite_add_tcase(s, tc);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
