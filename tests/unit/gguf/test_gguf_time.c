/* test_gguf_time.c - opening stays fast: vocabularies of real size, many tensors, and names in the worst order.
 * Processor time, best of several runs, because the machine may be busy. SPDX-License-Identifier: MIT */
#include <time.h>
#include "unit/gguf/gguf_image.h"

#if defined(BP_SANITIZED)
enum { SLOWER = 10 };
#else
enum { SLOWER = 1 };
#endif
enum { RUNS = 5 };

static double open_seconds(const struct image *m, uint64_t want_kv, uint64_t want_tensors)
{
    double best = 1e9;
    for (int run = 0; run < RUNS; ++run) {
        struct bpi_gguf *g = NULL;
        struct bp_error err = BP_ERROR_INIT;
        clock_t start = clock();
        int32_t rc = bpi_gguf_open_memory(m->p, m->n, "big", &g, &err);
        double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
        ck_assert_msg(rc == BP_OK, "%s", err.msg);
        ck_assert_uint_eq(bpi_gguf_n_kv(g), want_kv);
        ck_assert_uint_eq(bpi_gguf_n_tensors(g), want_tensors);
        bpi_gguf_close(g);
        if (seconds < best) best = seconds;
    }
    return best;
}

static void strings(struct image *m, const char *key, const char *format, unsigned n)
{
    char text[64];
    img_array(m, key, BPI_GGUF_STRING, n);
    for (unsigned i = 0; i < n; ++i) {
        snprintf(text, sizeof text, "%s%u %u", format, i, i / 7);
        img_str(m, text);
    }
}

START_TEST(vocabulary)
{
    enum { N = 320000 };
    struct image m = {0};
    struct bpi_gguf *g = NULL;
    img_header(&m, 3, 0, 4);
    img_kv_str(&m, "general.architecture", "glm-dsa");
    strings(&m, "tokenizer.ggml.tokens", "tok", N);
    strings(&m, "tokenizer.ggml.merges", "left", N);
    img_array(&m, "tokenizer.ggml.token_type", BPI_GGUF_I32, N);
    img_fill(&m, 0, 4 * (size_t)N);
    double seconds = open_seconds(&m, 4, 0);
    printf("320000 tokens and merges, %.1f MB: opened in %.4f s\n", (double)m.n * 1e-6, seconds);
    ck_assert(seconds < 0.1 * SLOWER);

    ck_assert_int_eq(bpi_gguf_open_memory(m.p, m.n, "big", &g, NULL), BP_OK);
    struct bpi_span *all = malloc(N * sizeof *all);
    ck_assert_ptr_nonnull(all);
    clock_t start = clock();
    ck_assert_int_eq(bpi_gguf_arr_strings(g, bpi_gguf_find(g, "tokenizer.ggml.tokens"), all, NULL),
                     BP_OK);
    seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    printf("320000 strings listed in %.4f s\n", seconds);
    ck_assert(seconds < 0.1 * SLOWER);
    ck_assert(all[N - 1].n == 15 && memcmp(all[N - 1].data, "tok319999 45714", 15) == 0);
    free(all);
    bpi_gguf_close(g);
    img_free(&m);
}
END_TEST

START_TEST(many_keys)
{
    enum { N = BPI_GGUF_MAX_KV };
    struct image m = {0};
    char key[64];
    img_header(&m, 3, 0, N);
    for (unsigned i = 0; i < N; ++i) {
        snprintf(key, sizeof key, "some.common.beginning.%u", i);
        img_kv_u32(&m, key, i);
    }
    double seconds = open_seconds(&m, N, 0);
    printf("%d keys: opened in %.4f s\n", N, seconds);
    ck_assert(seconds < 0.15 * SLOWER);
    img_free(&m);
}
END_TEST

/* As many as the limit allows: in file order, and in reverse, which is the slower way through the overlap check. */
START_TEST(many_tensors)
{
    enum { N = BPI_GGUF_MAX_TENSORS };
    for (int reverse = 0; reverse < 2; ++reverse) {
        struct image m = {0};
        char name[64];
        img_header(&m, 3, N, 1);
        img_kv_u32(&m, "general.alignment", 1);
        for (unsigned i = 0; i < N; ++i) {
            snprintf(name, sizeof name, "blk.%u.ffn_gate_exps.%u", i / 256, i % 256);
            img_tensor2(&m, name, 1, 1, BP_GGUF_I8, reverse ? N - 1 - i : i);
        }
        img_fill(&m, 0, N);
        double seconds = open_seconds(&m, 1, N);
        printf("%d tensors%s: opened in %.4f s\n", N, reverse ? ", last first" : "", seconds);
        ck_assert(seconds < 2.0 * SLOWER);
        img_free(&m);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("gguf_time");
    TCase *c = tcase_create("all");
    tcase_set_timeout(c, 300);
    tcase_add_test(c, vocabulary);
    tcase_add_test(c, many_keys);
    tcase_add_test(c, many_tensors);
    suite_add_tcase(s, c);
    return img_main(s);
}
