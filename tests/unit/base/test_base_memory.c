/* test_base_memory.c - allocation, arenas, checked arithmetic.
 * SPDX-License-Identifier: MIT */
#include "base/base.h"
#include "base/rng.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Requests that cannot be met must return NULL under the address sanitizer too, instead of ending the process. */
__attribute__((visibility("default"))) const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

START_TEST(zero_bytes_give_unique_pointers)
{
    void *a = bpi_alloc(0), *b = bpi_alloc(0), *c = bpi_calloc(0, 8), *d = bpi_realloc(NULL, 0, 4);
    void *e = bpi_alloc_aligned(0, 64);
    ck_assert(a != NULL && b != NULL && c != NULL && d != NULL && e != NULL);
    ck_assert(a != b && c != d);
    bpi_free(a);
    bpi_free(b);
    bpi_free(c);
    bpi_free(d);
    bpi_free(e);
    bpi_free(NULL);
}
END_TEST

START_TEST(overflow_and_exhaustion_return_null)
{
    /* volatile: the compiler would warn about, and then drop, requests that it can see to be absurd. */
    volatile size_t half = SIZE_MAX / 2 + 1, huge = SIZE_MAX / 4;
    ck_assert_ptr_null(bpi_calloc(half, 2));
    ck_assert_ptr_null(bpi_calloc(huge, 1));
    ck_assert_ptr_null(bpi_alloc(huge));
    ck_assert_ptr_null(bpi_alloc_aligned(huge, 64));
    ck_assert_ptr_null(bpi_strndup("x", SIZE_MAX));
    char *keep = bpi_strdup("keep");
    ck_assert_ptr_null(bpi_realloc(keep, half, 2));
    ck_assert_ptr_null(bpi_realloc(keep, huge, 1));
    ck_assert_str_eq(keep, "keep"); /* a refused growth leaves the old block alone */
    bpi_free(keep);
}
END_TEST

START_TEST(calloc_is_zeroed_and_realloc_keeps)
{
    unsigned char *p = bpi_calloc(100, 7);
    ck_assert_ptr_nonnull(p);
    for (int i = 0; i < 700; ++i) ck_assert_uint_eq(p[i], 0);
    memset(p, 9, 700);
    p = bpi_realloc(p, 2000, 7);
    ck_assert_ptr_nonnull(p);
    for (int i = 0; i < 700; ++i) ck_assert_uint_eq(p[i], 9);
    bpi_free(p);
}
END_TEST

START_TEST(alignment_is_honoured)
{
    for (size_t align = sizeof(void *); align <= 65536; align *= 2) {
        unsigned char *p = bpi_alloc_aligned(3, align);
        ck_assert_ptr_nonnull(p);
        ck_assert_uint_eq((uintptr_t)p % align, 0);
        p[2] = 1;
        bpi_free(p);
    }
}
END_TEST

START_TEST(strings_are_copied_with_their_nuls)
{
    char *s = bpi_strndup("ab\0cd", 5);
    ck_assert_ptr_nonnull(s);
    ck_assert_mem_eq(s, "ab\0cd", 6);
    bpi_free(s);
    s = bpi_strndup(NULL, 0);
    ck_assert_str_eq(s, "");
    bpi_free(s);
}
END_TEST

static bool all_bytes(const unsigned char *p, size_t n, unsigned char v)
{
    for (size_t i = 0; i < n; ++i) {
        if (p[i] != v) return false;
    }
    return true;
}

/* Every object is filled with its own number; at the end each must still hold it, so none overlap. */
START_TEST(arena_objects_are_zeroed_aligned_and_apart)
{
    enum { N = 3000 };
    static unsigned char *at[N];
    static size_t len[N];
    const uint64_t seed = 5;
    struct bpi_arena a = {.chunk_bytes = 1024};
    struct bpi_rng r;
    size_t total = 0;
    printf("seed %llu\n", (unsigned long long)seed);
    bpi_rng_seed(&r, seed);
    for (int i = 0; i < N; ++i) {
        size_t align = (size_t)1 << bpi_rng_below(&r, 9);
        len[i] = i % 100 == 99 ? 5000 : 1 + bpi_rng_below(&r, 200);
        at[i] = bpi_arena_alloc(&a, len[i], 1, align);
        ck_assert_ptr_nonnull(at[i]);
        ck_assert_uint_eq((uintptr_t)at[i] % align, 0);
        ck_assert(all_bytes(at[i], len[i], 0));
        memset(at[i], i % 251 + 1, len[i]);
        total += len[i];
    }
    ck_assert_uint_eq(a.used_bytes, total);
    for (int i = 0; i < N; ++i) ck_assert(all_bytes(at[i], len[i], (unsigned char)(i % 251 + 1)));
    bpi_arena_free(&a);
    ck_assert_ptr_null(a.head);
    ck_assert_uint_eq(a.used_bytes, 0);
    ck_assert_ptr_nonnull(bpi_arena_alloc(&a, 1, 1, 1)); /* usable again */
    bpi_arena_free(&a);
    bpi_arena_free(&a);
}
END_TEST

START_TEST(arena_refuses_what_cannot_be)
{
    struct bpi_arena a = {0};
    char *s = bpi_arena_strndup(&a, "abc", 2);
    ck_assert_str_eq(s, "ab");
    size_t used = a.used_bytes;
    volatile size_t huge = SIZE_MAX / 4, most = SIZE_MAX;
    ck_assert_ptr_null(bpi_arena_alloc(&a, most, 2, 8));
    ck_assert_ptr_null(bpi_arena_alloc(&a, most - 4, 1, 64));
    ck_assert_ptr_null(bpi_arena_alloc(&a, huge, 1, 8));
    ck_assert_ptr_null(bpi_arena_alloc(&a, 1, 1, 0));
    ck_assert_ptr_null(bpi_arena_alloc(&a, 1, 1, 24));
    ck_assert_ptr_null(bpi_arena_strndup(&a, "x", most));
    ck_assert_uint_eq(a.used_bytes, used);
    void *p = bpi_arena_alloc(&a, 0, 8, 8), *q = bpi_arena_alloc(&a, 0, 8, 8);
    ck_assert(p != NULL && q != NULL && p != q);
    ck_assert_str_eq(s, "ab");
    bpi_arena_free(&a);
}
END_TEST

START_TEST(checked_arithmetic)
{
    uint64_t v = 77;
    ck_assert(bpi_mul_u64(UINT64_C(1) << 32, (UINT64_C(1) << 32) - 1, &v));
    ck_assert_uint_eq(v, UINT64_C(0xffffffff00000000));
    v = 77;
    ck_assert(!bpi_mul_u64(UINT64_C(1) << 32, UINT64_C(1) << 32, &v));
    ck_assert_uint_eq(v, 77);
    ck_assert(bpi_mul_u64(0, UINT64_MAX, &v) && v == 0);
    ck_assert(bpi_add_u64(UINT64_MAX - 1, 1, &v) && v == UINT64_MAX);
    ck_assert(!bpi_add_u64(UINT64_MAX, 1, &v) && v == UINT64_MAX);
    v = 77;
    ck_assert(!bpi_align_up_u64(UINT64_MAX - 5, 64, &v) && v == 77);
    ck_assert(bpi_align_up_u64(0, 64, &v) && v == 0);
    ck_assert(bpi_align_up_u64(1, 64, &v) && v == 64);
    ck_assert(bpi_align_up_u64(64, 64, &v) && v == 64);
    ck_assert(bpi_align_up_u64(65, 1, &v) && v == 65);
    ck_assert(bpi_align_up_u64(UINT64_MAX - 63, 64, &v) && v == UINT64_MAX - 63);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("memory");
    TCase *t = tcase_create("memory");
    tcase_add_test(t, zero_bytes_give_unique_pointers);
    tcase_add_test(t, overflow_and_exhaustion_return_null);
    tcase_add_test(t, calloc_is_zeroed_and_realloc_keeps);
    tcase_add_test(t, alignment_is_honoured);
    tcase_add_test(t, strings_are_copied_with_their_nuls);
    tcase_add_test(t, arena_objects_are_zeroed_aligned_and_apart);
    tcase_add_test(t, arena_refuses_what_cannot_be);
    tcase_add_test(t, checked_arithmetic);
    suite_add_tcase(s, t);
    SRunner *sr = srunner_create(s);
    srunner_run_all(sr, CK_NORMAL);
    int failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
