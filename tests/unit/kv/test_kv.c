/* test_kv.c - block tables: limits, sharing, copy before write, and a long random walk against a plain model in which
 * every sequence's tokens are kept as an array. SPDX-License-Identifier: MIT */
#include "kv/kv.h"
#include "base/base.h"
#include "base/rng.h"
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

START_TEST(limits_are_kept_and_nothing_changes_on_refusal)
{
    struct bpi_kv *kv;
    ck_assert_int_eq(bpi_kv_create(4, 16, 2, 40, &kv, NULL), BP_OK);
    int32_t from, to;
    ck_assert_uint_eq(bpi_kv_table_width(kv), 3);
    ck_assert_int_eq(bpi_kv_append(kv, 0, 40, &from, &to), BP_OK);
    ck_assert_uint_eq(bpi_kv_free_blocks(kv), 1);
    ck_assert_int_eq(bpi_kv_append(kv, 0, 1, &from, &to), BP_E_LIMIT);
    ck_assert_int_eq(bpi_kv_append(kv, 1, 17, &from, &to),
                     BP_E_LIMIT); /* needs two blocks, one is free */
    ck_assert_uint_eq(bpi_kv_len(kv, 1), 0);
    ck_assert_int_eq(bpi_kv_append(kv, 1, 16, &from, &to), BP_OK);
    ck_assert_uint_eq(bpi_kv_need(kv, 1, 1), 1);
    ck_assert_uint_eq(bpi_kv_need(kv, 1, 0), 0);
    bpi_kv_truncate(kv, 0, 0);
    ck_assert_uint_eq(bpi_kv_free_blocks(kv), 3);
    bpi_kv_destroy(kv);
    struct bp_error err = BP_ERROR_INIT;
    ck_assert_int_eq(bpi_kv_create(1u << 27, 16, 1, 16, &kv, &err), BP_E_LIMIT); /* 2^31 slots */
    ck_assert_ptr_nonnull(strstr(err.msg, "2^31"));
    bpi_kv_destroy(NULL);
}
END_TEST

START_TEST(whole_blocks_are_shared_and_copied_before_a_write)
{
    struct bpi_kv *kv;
    int32_t from, to;
    ck_assert_int_eq(bpi_kv_create(16, 8, 3, 32, &kv, NULL), BP_OK);
    ck_assert_int_eq(bpi_kv_append(kv, 0, 20, &from, &to), BP_OK);
    ck_assert_uint_eq(bpi_kv_share(kv, 1, 0, 20), 16); /* 2 whole blocks of the 20 tokens */
    ck_assert_uint_eq(bpi_kv_free_blocks(kv), 13);
    ck_assert_int_eq(bpi_kv_slot(kv, 1, 15), bpi_kv_slot(kv, 0, 15));
    ck_assert_uint_eq(bpi_kv_share(kv, 1, 0, 20), 0); /* not empty any more */
    ck_assert_uint_eq(bpi_kv_share(kv, 2, 0, 7), 0);  /* less than a block */
    /* Cutting the owner into the shared block and going on must not touch what sequence 1 reads. */
    bpi_kv_truncate(kv, 0, 12);
    ck_assert_uint_eq(bpi_kv_need(kv, 0, 1), 1);
    int32_t shared = bpi_kv_table(kv, 1)[1];
    ck_assert_int_eq(bpi_kv_append(kv, 0, 1, &from, &to), BP_OK);
    ck_assert_int_eq(from, shared);
    ck_assert_int_eq(to, bpi_kv_table(kv, 0)[1]);
    ck_assert_int_ne(to, shared);
    ck_assert_int_eq(bpi_kv_table(kv, 1)[1], shared);
    /* A failed sequence shares nothing until it is emptied. */
    bpi_kv_mark_failed(kv, 0);
    ck_assert_uint_eq(bpi_kv_share(kv, 2, 0, 12), 0);
    ck_assert(bpi_kv_failed(kv, 0));
    bpi_kv_truncate(kv, 0, 0);
    ck_assert(!bpi_kv_failed(kv, 0));
    bpi_kv_destroy(kv);
}
END_TEST

enum { N_SEQ = 5, CTX = 50, BLOCK = 4, N_BLOCKS = 40 };

struct walk {
    struct bpi_kv *kv;
    struct bpi_rng rng;
    int32_t truth[N_SEQ][CTX]; /* token of each position */
    uint32_t len[N_SEQ];
    int32_t pool[N_BLOCKS * BLOCK]; /* what the engine would have written */
    int32_t next_token;
};

static void walk_append(struct walk *w, uint32_t seq)
{
    uint32_t n = (uint32_t)bpi_rng_below(&w->rng, 12),
             need = bpi_kv_need(w->kv, seq, n < CTX ? n : 0);
    bool fits = n <= CTX - w->len[seq] && need <= bpi_kv_free_blocks(w->kv);
    int32_t from, to;
    int32_t rc = bpi_kv_append(w->kv, seq, n, &from, &to);
    ck_assert_int_eq(rc, fits ? BP_OK : BP_E_LIMIT);
    if (!fits) return;
    if (from >= 0) memcpy(&w->pool[to * BLOCK], &w->pool[from * BLOCK], sizeof(int32_t) * BLOCK);
    for (uint32_t i = 0; i < n; ++i) {
        w->truth[seq][w->len[seq]++] = w->next_token;
        w->pool[bpi_kv_slot(w->kv, seq, w->len[seq] - 1)] = w->next_token++;
    }
}

static void walk_check(const struct walk *w)
{
    for (uint32_t s = 0; s < N_SEQ; ++s) {
        ck_assert_uint_eq(bpi_kv_len(w->kv, s), w->len[s]);
        for (uint32_t p = 0; p < w->len[s]; ++p) {
            ck_assert_int_eq(w->pool[bpi_kv_slot(w->kv, s, p)], w->truth[s][p]);
        }
    }
}

START_TEST(random_walk_keeps_every_sequence_intact)
{
    uint64_t seed = 20261130 + (uint64_t)_i;
    printf("seed %llu\n", (unsigned long long)seed);
    struct walk *w = calloc(1, sizeof(*w));
    bpi_rng_seed(&w->rng, seed);
    ck_assert_int_eq(bpi_kv_create(N_BLOCKS, BLOCK, N_SEQ, CTX, &w->kv, NULL), BP_OK);
    for (int step = 0; step < 4000; ++step) {
        uint32_t seq = (uint32_t)bpi_rng_below(&w->rng, N_SEQ),
                 other = (uint32_t)bpi_rng_below(&w->rng, N_SEQ);
        switch (bpi_rng_below(&w->rng, 6)) {
        case 0: {
            uint32_t n = (uint32_t)bpi_rng_below(&w->rng, w->len[seq] + 1);
            bpi_kv_truncate(w->kv, seq, n);
            w->len[seq] = n;
            break;
        }
        case 1: {
            uint32_t want = (uint32_t)bpi_rng_below(&w->rng, CTX);
            uint32_t got = bpi_kv_share(w->kv, seq, other, want);
            if (got > 0) {
                ck_assert(w->len[seq] == 0 && seq != other && got <= want && got <= w->len[other]);
                memcpy(w->truth[seq], w->truth[other], got * sizeof(int32_t));
                w->len[seq] = got;
            }
            break;
        }
        default:
            walk_append(w, seq);
        }
        walk_check(w);
    }
    for (uint32_t s = 0; s < N_SEQ; ++s) bpi_kv_truncate(w->kv, s, 0);
    ck_assert_uint_eq(bpi_kv_free_blocks(w->kv), N_BLOCKS); /* no block was lost */
    bpi_kv_destroy(w->kv);
    free(w);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("kv");
    TCase *tc = tcase_create("kv");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, limits_are_kept_and_nothing_changes_on_refusal);
    tcase_add_test(tc, whole_blocks_are_shared_and_copied_before_a_write);
    tcase_add_loop_test(tc, random_walk_keeps_every_sequence_intact, 0, 4);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
