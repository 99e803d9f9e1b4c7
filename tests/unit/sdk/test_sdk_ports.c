/* test_sdk_ports.c - the finished tensors() of sdk_ports.h against those of the reference backend: the same ports, in the
 * same order, for every slot of every interface, with optional ports given and not, and with every capacity.
 * SPDX-License-Identifier: MIT */
#include "backplane/sdk.h"

#include <check.h>
#include <stdbool.h>
#include <stdlib.h>
#include "ref/ref_priv.h"

typedef int32_t (*tensors_fn)(void *self, uint32_t slot, const void *args, struct bp_tensor *t,
                              uint32_t *n);

static const struct {
    const char *name;
    const struct bp_op_base *(*table)(void);
    tensors_fn ours;
    uint32_t n_slot;
} interfaces[] = {
    {"device", bpi_ref_device_ops, bp_device_tensors, 0},
    {"dense", bpi_ref_dense_ops, bp_dense_tensors, 9},
    {"quant", bpi_ref_quant_ops, bp_quant_tensors, 2},
    {"moe", bpi_ref_moe_ops, bp_moe_tensors, 2},
    {"coll", bpi_ref_coll_ops, bp_coll_tensors, 3},
    {"mla.common", bpi_ref_mla_common_ops, bp_mla_common_tensors, 5},
    {"mla.prefill", bpi_ref_mla_prefill_ops, bp_mla_prefill_tensors, 2},
    {"mla.decode", bpi_ref_mla_decode_ops, bp_mla_decode_tensors, 1},
    {"mla.index", bpi_ref_mla_index_ops, bp_mla_index_tensors, 2},
};

enum { ROOM = 12 };

/* Compares both answers for args, with every capacity. */
static void same_answer(size_t at, uint32_t slot, const void *args)
{
    const tensors_fn theirs = interfaces[at].table()->tensors;
    for (uint32_t cap = 0; cap <= ROOM; ++cap) {
        struct bp_tensor want[ROOM + 1], got[ROOM + 1];
        uint32_t n_want = cap, n_got = cap;
        memset(want, 0xee, sizeof want);
        memset(got, 0xee, sizeof got);
        ck_assert_int_eq(theirs(NULL, slot, args, want, &n_want), BP_OK);
        ck_assert_int_eq(interfaces[at].ours(NULL, slot, args, got, &n_got), BP_OK);
        ck_assert_msg(n_got == n_want, "%s slot %u: %u ports, want %u", interfaces[at].name, slot,
                      n_got, n_want);
        for (uint32_t i = 0; i < n_want && i < cap; ++i) {
            ck_assert_str_eq(got[i].name, want[i].name);
            got[i].name = want[i].name; /* equal texts at two places */
        }
        ck_assert_mem_eq(got, want, sizeof want);
    }
}

/* Args of any op, filled so that every tensor in them differs from every other; then with its data taken away, one word
 * at a time, so that each optional port is once given and once not. */
union any_args {
    uint64_t words[256];
    struct bp_quant_matmul_args matmul;
    struct bp_moe_run_args moe;
};

static void fill(union any_args *a)
{
    for (uint32_t i = 0; i < 256; ++i) a->words[i] = 0x100000001ull * (i + 1);
}

START_TEST(same_ports_as_ref)
{
    for (size_t at = 0; at < BP_LEN(interfaces); ++at) {
        for (uint32_t slot = 0; slot < interfaces[at].n_slot; ++slot) {
            union any_args a;
            struct bp_matmul_out outs[4];
            const bool is_matmul =
                interfaces[at].ours == bp_quant_tensors && slot == BP_QUANT_OP_MATMUL;
            for (uint32_t cleared = 0; cleared <= 120; ++cleared) {
                fill(&a);
                if (cleared > 0) a.words[cleared] = 0;
                if (is_matmul) { /* its list of outputs must be real */
                    memset(outs, 0x11, sizeof outs);
                    a.matmul.outs = outs;
                    a.matmul.out_stride = cleared % 2 == 0 ? 0 : (uint32_t)sizeof outs[0];
                    a.matmul.n_out = cleared % 4 + 1;
                    a.matmul.prologue = cleared / 4 % 2;
                    a.matmul.epilogue = cleared / 8 % 3;
                }
                same_answer(at, slot, &a);
            }
        }
    }
}
END_TEST

START_TEST(unknown_slots)
{
    union any_args a;
    struct bp_tensor t[ROOM];
    fill(&a);
    for (size_t at = 1; at < BP_LEN(interfaces); ++at) { /* device lists nothing for any slot */
        uint32_t n = ROOM;
        ck_assert_int_eq(interfaces[at].ours(NULL, interfaces[at].n_slot, &a, t, &n), BP_E_ARG);
    }
    uint32_t n = 5;
    ck_assert_int_eq(bp_device_tensors(NULL, 0, NULL, NULL, &n), BP_OK);
    ck_assert_uint_eq(n, 0);
}
END_TEST

START_TEST(shapes_at_strides)
{
    struct {
        struct bp_quant_shape shape;
        uint64_t more;
    } wide[2] = {{{BP_GGUF_Q8_0, 0, 1, 2}, 0}, {{BP_GGUF_Q4_K, 0, 3, 4}, 0}};
    struct bp_quant_problem p = {.w = &wide[0].shape, .w_stride = sizeof wide[0]};
    ck_assert_uint_eq(bp_quant_shape_at(&p, 1)->type, BP_GGUF_Q4_K);
    const struct bp_quant_shape plain[2] = {{BP_GGUF_Q8_0, 0, 1, 2}, {BP_GGUF_Q4_K, 0, 3, 4}};
    p.w = plain;
    p.w_stride = 0;
    ck_assert_int_eq(bp_quant_shape_at(&p, 1)->cols, 4);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("sdk_ports");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, same_ports_as_ref);
    tcase_add_test(tc, unknown_slots);
    tcase_add_test(tc, shapes_at_strides);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
