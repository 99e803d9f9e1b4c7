/* test_token_nomem.c - every allocation of opening a tokenizer, of tokenizing and of a conversation fails once: one
 * sentence, BP_E_NOMEM, nothing half written, nothing leaked (the sanitizer build watches).
 * SPDX-License-Identifier: MIT */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "harness/alloc_fail.h"
#include "harness/token_image.h"

#define KIMI                                                                                       \
    "<|im_system|>system<|im_middle|>Be "                                                          \
    "kind<|im_end|><|im_user|>user<|im_middle|><|im_assistant|>"

/* A vocabulary of Kimi-K2's kind; with merges in the file, or with merges to be derived. */
static struct bpi_gguf *make_file(struct image *m, bool merges)
{
    static const char *const markers[] = {"[BOS]",         "<|im_system|>",    "<|im_user|>",
                                          "<|im_middle|>", "<|im_assistant|>", "<|im_end|>"};
    struct bpi_gguf *g = NULL;
    struct bp_error err = BP_ERROR_INIT;
    image_begin(m, "kimi-k2");
    image_bytes(m);
    (void)image_token(m, "ab", BPI_TOK_NORMAL);
    (void)image_token(m, "abab", BPI_TOK_NORMAL);
    for (size_t i = 0; i < BPI_ARRAY_LEN(markers); ++i)
        (void)image_token(m, markers[i], BPI_TOK_CONTROL);
    if (merges) {
        image_merge(m, "a b");
        image_merge(m, "ab ab");
        image_merge(m, "abab no-entry");
    }
    image_u32(m, "tokenizer.ggml.bos_token_id", 258);
    image_bool(m, "tokenizer.ggml.add_bos_token", true);
    image_str(m, "tokenizer.chat_template", KIMI);
    image_end(m);
    ck_assert_msg(bpi_gguf_open_memory(m->b.data, m->b.len, "image", &g, &err) == BP_OK, "%s",
                  err.msg);
    return g;
}

/* A failed call says so; a call in which nothing failed works. */
static void check_rc(int32_t rc, bool failed, const struct bp_error *err, uint64_t n)
{
    if (failed) {
        ck_assert_msg(rc == BP_E_NOMEM && err->code == BP_E_NOMEM && strlen(err->msg) > 10,
                      "allocation %llu: %d, %s", (unsigned long long)n, rc, err->msg);
    } else {
        ck_assert_msg(rc == BP_OK, "%d, %s", rc, err->msg);
    }
}

static uint64_t walk_open(const struct bpi_gguf *g, bool onward)
{
    for (uint64_t n = 1;; ++n) {
        struct bp_error err = BP_ERROR_INIT;
        struct bpi_token *t = NULL;
        alloc_fail_arm(n, onward);
        int32_t rc = bpi_token_open(g, &t, &err);
        bool failed = alloc_fail_disarm();
        check_rc(rc, failed, &err, n);
        ck_assert((t == NULL) == failed);
        bpi_token_close(t);
        if (!failed) return n - 1;
    }
}

START_TEST(opening)
{
    for (int merges = 0; merges < 2; ++merges) {
        struct image m;
        struct bpi_gguf *g = make_file(&m, merges != 0);
        uint64_t one = walk_open(g, false), all = walk_open(g, true);
        printf("opening, merges %s: %llu allocations\n", merges != 0 ? "listed" : "derived",
               (unsigned long long)one);
        ck_assert_uint_eq(one, all);
        ck_assert_uint_gt(one, 10);
        bpi_gguf_close(g);
        image_free(&m);
    }
}
END_TEST

static int32_t work(const struct bpi_token *t, int what, const char *text, size_t n,
                    struct bpi_ids *ids, struct bp_error *err)
{
    const struct bpi_chat_msg msg = {"user", text, n};
    uint32_t flags = BPI_TOKENIZE_SPECIAL | BPI_TOKENIZE_BOS;
    return what == 0 ? bpi_tokenize(t, text, n, flags, ids, err)
                     : bpi_chat_format(t, &msg, 1, true, ids, err);
}

START_TEST(texts_and_conversations)
{
    struct image m;
    struct bpi_token *t;
    struct bp_error err = BP_ERROR_INIT;
    struct bpi_buf text = {0};
    struct bpi_gguf *g = make_file(&m, false);
    ck_assert_int_eq(bpi_token_open(g, &t, &err), BP_OK);
    bpi_gguf_close(g);
    image_free(&m);
    for (int i = 0; i < 100; ++i) bpi_buf_puts(&text, "[BOS]abababab <|im_end|>ab!");
    for (int what = 0; what < 2; ++what) {
        uint64_t n = 1;
        for (;; ++n) {
            struct bpi_ids ids = {0};
            struct bp_error e = BP_ERROR_INIT;
            ck_assert_int_eq(bpi_ids_push(&ids, 7), BP_OK);
            alloc_fail_arm(n, n % 2 == 0);
            int32_t rc = work(t, what, text.data, text.len, &ids, &e);
            bool failed = alloc_fail_disarm();
            check_rc(rc, failed, &e, n);
            ck_assert(ids.ids[0] == 7 && (ids.n == 1) == failed);
            bpi_ids_free(&ids);
            if (!failed) break;
        }
        printf("%s: %llu allocations\n", what == 0 ? "text" : "conversation",
               (unsigned long long)n - 1);
        ck_assert_uint_gt(n, 5);
    }
    bpi_buf_free(&text);
    bpi_token_close(t);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("token_nomem");
    TCase *tc = tcase_create("token_nomem");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, opening);
    tcase_add_test(tc, texts_and_conversations);
    suite_add_tcase(s, tc);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
