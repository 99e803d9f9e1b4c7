/* test_loader_choose.c - the choice between providers, with every reason kept. SPDX-License-Identifier: MIT */
#include "loader_fixture.h"

/* One choice, and what came of it. */
struct choice {
    struct bpi_candidate cands[4];
    size_t n, chosen;
    struct bp_op_ref op;
    struct bp_error err;
    int32_t rc;
};

static const struct bp_quant_problem matmul_problem = {
    .h = BP_HDR(struct bp_quant_problem, epilogue), .op = BP_QUANT_OP_MATMUL};

static void choose_for(struct stand *s, int32_t layer, const void *problem, struct choice *c)
{
    memset(c, 0, sizeof *c);
    c->err = (struct bp_error)BP_ERROR_INIT;
    c->chosen = 77;
    c->rc = bpi_loader_choose(s->loader, "quant", "bp.quant", layer, NULL, problem, c->cands, 4,
                              &c->n, &c->chosen, &c->op, &c->err);
    if (c->rc == BP_OK) bpi_loader_tell(s->loader, "quant", layer, c->cands, c->n, c->chosen);
}

static void choose(struct stand *s, int32_t layer, struct choice *c)
{
    choose_for(s, layer, &matmul_problem, c);
}

static void takes(const struct choice *c, const char *provider, size_t n_asked)
{
    ck_assert_msg(c->rc == BP_OK, "%s: %s", c->err.where, c->err.msg);
    ck_assert_uint_eq(c->n, n_asked);
    ck_assert_uint_eq(c->chosen, n_asked - 1);
    ck_assert_str_eq(c->cands[c->chosen].provider, provider);
    ck_assert(((struct fake *)c->op.self)->desc.name == c->cands[c->chosen].provider);
}

static void refuse(struct fake *f)
{
    f->level = BP_V_NO;
    f->n_reasons = 2;
    f->reasons[0] = (struct bp_reason){.code = BP_R_DTYPE,
                                       .critical = 1,
                                       .got = 2,
                                       .want_lo = 1,
                                       .want_hi = 1,
                                       .field = "kv_dtype",
                                       .text = "only F32"};
    f->reasons[1] =
        (struct bp_reason){.code = BP_R_VENDOR + 5, .critical = 1, .text = "the moon is full"};
}

START_TEST(the_first_that_serves_wins)
{
    struct stand s;
    struct choice c;
    stand_open(&s, "");
    register_both(&s);
    choose(&s, -1, &c);
    takes(&c, "alpha", 1);
    ck_assert_int_eq(fakes[1].n_asked, 0);
    stand_close(&s);
    stand_open(&s, "[slots]\nquant = beta, alpha\n");
    register_both(&s);
    choose(&s, 3, &c);
    takes(&c, "beta", 1);
    ck_assert_int_eq(fakes[0].n_create, 0); /* nothing is made that nobody asked for */
    stand_close(&s);
}
END_TEST

START_TEST(auto_falls_through_and_says_so)
{
    struct stand s;
    struct choice c;
    stand_open(&s, "");
    register_both(&s);
    refuse(&fakes[0]);
    choose(&s, 5, &c);
    takes(&c, "beta", 2);
    ck_assert_uint_eq(c.cands[0].verdict.level, BP_V_NO); /* all reasons are kept */
    ck_assert_uint_eq(c.cands[0].verdict.n_reasons, 2);
    ck_assert_uint_eq(c.cands[0].reasons[0].code, BP_R_DTYPE);
    ck_assert_ptr_nonnull(strstr(log_text, "slot quant, layer 5"));
    ck_assert_ptr_nonnull(strstr(log_text, "beta"));
    ck_assert_ptr_nonnull(strstr(log_text, "DTYPE kv_dtype: got f16 (2), want f32 (1) (only F32)"));
    stand_close(&s);
}
END_TEST

START_TEST(a_list_falls_through_too)
{
    struct stand s;
    struct choice c;
    stand_open(&s, "[slots]\nquant = beta, auto\n");
    register_both(&s);
    refuse(&fakes[1]);
    choose(&s, -1, &c);
    takes(&c, "alpha", 2); /* auto stands for all, but nobody is asked twice */
    ck_assert_int_eq(fakes[1].n_asked, 1);
    stand_close(&s);
}
END_TEST

START_TEST(named_alone_and_unable_is_an_error)
{
    struct stand s;
    struct choice c;
    stand_open(&s, "[slots]\nquant = alpha\n");
    register_both(&s);
    refuse(&fakes[0]);
    choose(&s, 7, &c);
    ck_assert_int_eq(c.rc, BP_E_CONFIG);
    ck_assert_uint_eq(c.n, 1);
    ck_assert_uint_eq(c.chosen, 77); /* not written */
    says(&c.err, "slot quant, layer 7");
    says(&c.err, "alpha");
    says(&c.err, "DTYPE kv_dtype: got f16 (2), want f32 (1) (only F32)");
    says(&c.err, "VENDOR 1005 (the moon is full)");
    ck_assert_int_eq(fakes[1].n_asked, 0);
    stand_close(&s);
}
END_TEST

START_TEST(fallback_warn_looks_for_another)
{
    struct stand s;
    struct choice c;
    stand_open(&s, "[engine]\nfallback = warn\n[slots]\nquant = alpha\n");
    register_both(&s);
    refuse(&fakes[0]);
    choose(&s, -1, &c);
    takes(&c, "beta", 2);
    ck_assert_ptr_nonnull(strstr(log_text, "1 loader: slot quant"));
    ck_assert_ptr_nonnull(strstr(log_text, "only F32"));
    refuse(&fakes[1]);
    choose(&s, -1, &c);
    ck_assert_int_eq(c.rc, BP_E_CONFIG);
    says(&c.err, "beta: DTYPE");
    stand_close(&s);
}
END_TEST

START_TEST(layers_can_be_singled_out)
{
    struct stand s;
    struct choice c;
    stand_open(&s, "[slots]\nquant = alpha\nquant@layers=0-2 = beta\n");
    register_both(&s);
    for (int32_t layer = -1; layer < 5; ++layer) {
        choose(&s, layer, &c);
        takes(&c, layer >= 0 && layer <= 2 ? "beta" : "alpha", 1);
    }
    stand_close(&s);
}
END_TEST

START_TEST(unknown_providers_are_named_with_the_nearest)
{
    struct stand s;
    struct choice c;
    stand_open(&s, "[slots]\nquant = alpah, beta\n");
    register_both(&s);
    choose(&s, -1, &c);
    ck_assert_int_eq(c.rc, BP_E_CONFIG);
    says(&c.err, "\"alpah\"");
    says(&c.err, "did you mean \"alpha\"");
    says(&c.err, "alpha, beta");
    ck_assert_uint_eq(c.n, 0);
    stand_close(&s);
    stand_open(&s, "[slots]\nquant = something_else_entirely\n");
    register_both(&s);
    choose(&s, -1, &c);
    ck_assert_int_eq(c.rc, BP_E_CONFIG);
    ck_assert_ptr_null(strstr(c.err.msg, "did you mean"));
    stand_close(&s);
}
END_TEST

START_TEST(plugins_without_the_interface)
{
    struct stand s;
    struct choice c;
    stand_open(&s, "[slots]\nquant = alpha\n");
    fakes[0].ops[0].iface = "bp.moe";
    register_both(&s);
    choose(&s, -1, &c);
    ck_assert_int_eq(c.rc, BP_E_CONFIG);
    says(&c.err, "alpha: FEATURE (plugin alpha does not offer this interface)");
    stand_close(&s);
    stand_open(&s, ""); /* auto does not even mention it */
    fakes[0].ops[0].iface = "bp.moe";
    register_both(&s);
    choose(&s, -1, &c);
    takes(&c, "beta", 1);
    stand_close(&s);
    stand_open(&s, "");
    choose(&s, -1, &c); /* nobody at all */
    ck_assert_int_eq(c.rc, BP_E_CONFIG);
    says(&c.err, "no registered plugin offers bp.quant");
    stand_close(&s);
}
END_TEST

START_TEST(degraded_serves_and_is_told)
{
    struct stand s;
    struct choice c;
    stand_open(&s, "");
    register_both(&s);
    fakes[0].level = BP_V_DEGRADED;
    fakes[0].n_reasons = 1;
    fakes[0].reasons[0] = (struct bp_reason){.code = BP_R_ARCH,
                                             .got = 80,
                                             .want_lo = 90,
                                             .want_hi = 120,
                                             .field = "sm",
                                             .text = "slow path"};
    choose(&s, -1, &c);
    takes(&c, "alpha", 1);
    ck_assert_uint_eq(c.cands[0].verdict.level, BP_V_DEGRADED);
    ck_assert_ptr_nonnull(strstr(log_text, "1 loader: slot quant"));
    ck_assert_ptr_nonnull(strstr(log_text, "ARCH sm: got 80, want 90..120 (slow path)"));
    stand_close(&s);
}
END_TEST

START_TEST(lies_are_refusals)
{
    struct stand s;
    struct choice c;
    static const struct bp_quant_problem dequantize = {
        .h = BP_HDR(struct bp_quant_problem, epilogue), .op = BP_QUANT_OP_DEQUANTIZE};
    stand_open(&s, "");
    register_both(&s);
    fakes[0].table.matmul = NULL; /* yes, and no function for it */
    choose(&s, -1, &c);
    takes(&c, "beta", 2);
    ck_assert_uint_eq(c.cands[0].reasons[0].code, BP_R_ABI);
    ck_assert_ptr_nonnull(strstr(c.cands[0].reasons[0].text, "matmul()"));
    choose_for(&s, -1, &dequantize, &c); /* neither has that one */
    ck_assert_int_eq(c.rc, BP_E_CONFIG);
    says(&c.err, "dequantize()");
    fakes[0].table.matmul = fake_matmul;
    fakes[0].table.base.h.size =
        BP_END(struct bp_quant_ops, release); /* the table ends before it */
    choose(&s, -1, &c);
    takes(&c, "beta", 2);
    fakes[0].table.base.h.size = BP_END(struct bp_quant_ops, dequantize);
    fakes[0].level = 9;
    choose(&s, -1, &c);
    takes(&c, "beta", 2);
    ck_assert_ptr_nonnull(strstr(c.cands[0].reasons[0].text, "level 9"));
    fakes[0].level = BP_V_YES;
    fakes[0].supports_rc = BP_E_DEVICE;
    choose(&s, -1, &c);
    takes(&c, "beta", 2);
    ck_assert_ptr_nonnull(strstr(c.cands[0].reasons[0].text, "E_DEVICE"));
    stand_close(&s);
}
END_TEST

START_TEST(reasons_beyond_the_room_are_counted)
{
    struct stand s;
    struct choice c;
    stand_open(&s, "[slots]\nquant = alpha\n");
    register_both(&s);
    refuse(&fakes[0]);
    fakes[0].claimed = 1000000;
    memset(fakes[0].reasons[0].field, 'f',
           sizeof fakes[0].reasons[0].field); /* no NUL at the end */
    memset(fakes[0].reasons[0].text, 't', sizeof fakes[0].reasons[0].text);
    choose(&s, -1, &c);
    ck_assert_int_eq(c.rc, BP_E_CONFIG);
    ck_assert_uint_eq(c.cands[0].verdict.n_reasons, 1000000);
    says(&c.err, "DTYPE ffffffffffffffffffffffffffffffff: got 2");
    fakes[0].claimed = 0;
    fakes[0].n_reasons = 0;
    choose(&s, -1, &c);
    says(&c.err, "alpha: gave no reason");
    stand_close(&s);
}
END_TEST

START_TEST(ops_that_cannot_be_made)
{
    struct stand s;
    struct choice c;
    stand_open(&s, "");
    register_both(&s);
    fakes[0].create_rc = BP_E_DEVICE;
    choose(&s, -1, &c);
    takes(&c, "beta", 2);
    ck_assert_uint_eq(c.cands[0].reasons[0].code, BP_R_LOAD);
    ck_assert_ptr_nonnull(strstr(c.cands[0].reasons[0].text, "no such luck"));
    fakes[0].create_rc = BP_E_NOMEM; /* says nothing about the provider */
    choose(&s, -1, &c);
    ck_assert_int_eq(c.rc, BP_E_NOMEM);
    stand_close(&s);
    stand_open(&s, "");
    register_both(&s);
    fakes[0].table.base.iface = "bp.nothing";
    choose(&s, -1, &c);
    takes(&c, "beta", 2);
    ck_assert_uint_eq(c.cands[0].reasons[0].code, BP_R_ABI);
    stand_close(&s);
}
END_TEST

/* What is broken in the first of two fakes, and what must be said about it. */
static void break_first(int how)
{
    if (how == 0) fakes[0].table.base.iface = "bp.nothing";
    if (how == 1) fakes[0].table.base.h.size = 8;
    if (how == 2) fakes[0].table.matmul = NULL;
    if (how == 3) fakes[0].level = 9;
    if (how == 4) fakes[0].supports_rc = BP_E_DEVICE;
    if (how == 5) fakes[0].create_rc = BP_E_DEVICE;
}

/* A no lets a list go on; what is broken ends it, because another provider would hide it. */
static void named_and_broken(int how)
{
    static const char *const words[] = {"bp.nothing", "8 bytes",  "matmul()",
                                        "level 9",    "E_DEVICE", "no such luck"};
    struct stand s;
    struct choice c;
    stand_open(&s, "[slots]\nquant = alpha, beta\n");
    register_both(&s);
    break_first(how);
    choose(&s, 4, &c);
    ck_assert_int_eq(c.rc, how == 5 ? BP_E_CONFIG : BP_E_ABI);
    says(&c.err, "slot quant, layer 4");
    says(&c.err, "alpha cannot be used");
    says(&c.err, words[how]);
    ck_assert_int_eq(fakes[1].n_asked, 0);
    stand_close(&s);

    stand_open(&s, "[slots]\nquant = beta, alpha\n"); /* it is not come to */
    register_both(&s);
    break_first(how);
    choose(&s, -1, &c);
    takes(&c, "beta", 1);
    stand_close(&s);

    stand_open(&s, ""); /* nobody named it: it is passed over, and told once */
    register_both(&s);
    break_first(how);
    for (int32_t layer = 0; layer < 3; ++layer) {
        choose(&s, layer, &c);
        takes(&c, "beta", 2);
        ck_assert_uint_eq(c.cands[0].broken, 1);
    }
    const char *told = strstr(log_text, "alpha is passed over");
    ck_assert_ptr_nonnull(told);
    ck_assert_ptr_nonnull(strstr(told, words[how]));
    ck_assert_ptr_null(strstr(told + 1, "alpha is passed over"));
    stand_close(&s);

    stand_open(&s, "[engine]\nfallback = warn\n[slots]\nquant = alpha\n");
    register_both(&s);
    break_first(how);
    choose(&s, -1, &c);
    takes(&c, "beta", 2);
    ck_assert_ptr_nonnull(strstr(log_text, "1 loader: slot quant: plugin alpha is passed over"));
    stand_close(&s);
}

START_TEST(named_and_broken_ends_the_list)
{
    for (int how = 0; how < 6; ++how) named_and_broken(how);
}
END_TEST

/* Types by name; numbers that are no type, and fields that hold none, stay numbers. */
START_TEST(types_have_names)
{
    static const struct {
        struct bp_reason r;
        const char *text;
    } cases[] = {
        {{BP_R_QUANT, 1, 30, 8, 8, "w.type", ""}, "QUANT w.type: got BF16 (30), want Q8_0 (8)"},
        {{BP_R_QUANT, 1, 4, 0, 42, "type_k", ""}, "QUANT type_k: got 4, want F32..Q2_0 (0..42)"},
        {{BP_R_QUANT, 1, 43, 8, 8, "type", ""}, "QUANT type: got 43, want Q8_0 (8)"},
        {{BP_R_QUANT, 1, 8, 0, 43, "type", ""}, "QUANT type: got 8, want 0..43"},
        {{BP_R_QUANT, 1, 8, 32, 32, "group", ""}, "QUANT group: got 8, want 32..32"},
        {{BP_R_DTYPE, 1, 3, 1, 2, "x_dtype", "x"},
         "DTYPE x_dtype: got bf16 (3), want f32..f16 (1..2) (x)"},
        {{BP_R_DTYPE, 1, 8, 0, 7, "dtype", ""}, "DTYPE dtype: got 8, want none..u32 (0..7)"},
        {{BP_R_DTYPE, 1, -1, 1, 1, "dtype", ""}, "DTYPE dtype: got -1, want f32 (1)"},
        {{BP_R_DTYPE, 1, 1, INT64_MIN, 2, "dtype", ""}, "DTYPE dtype: got 1, want at most 2"},
        {{BP_R_SHAPE, 1, 1, 2, 2, "x_dtype", ""}, "SHAPE x_dtype: got 1, want 2..2"},
    };
    for (size_t i = 0; i < BPI_ARRAY_LEN(cases); ++i) {
        struct bpi_buf b = {0};
        bpi_loader_format_reason(&cases[i].r, &b);
        ck_assert_str_eq(b.data, cases[i].text);
        bpi_buf_free(&b);
    }
    struct bp_reason full = {.code = BP_R_DTYPE}; /* no NUL at the end */
    memset(full.field, 'd', sizeof full.field);
    ck_assert_ptr_null(bpi_reason_number_name(&full, 1));
}
END_TEST

START_TEST(wrappers_serve_nothing)
{
    struct stand s;
    struct choice c;
    stand_open(&s, "[slots]\nquant = alpha\n");
    fakes[0].desc.kind = BP_KIND_WRAPPER;
    register_both(&s);
    choose(&s, -1, &c);
    ck_assert_int_eq(c.rc, BP_E_CONFIG);
    says(&c.err, "wraps");
    stand_close(&s);
    stand_open(&s, "");
    fakes[0].desc.kind = BP_KIND_WRAPPER;
    register_both(&s);
    choose(&s, -1, &c);
    takes(&c, "beta", 1);
    stand_close(&s);
    stand_open(&s, "[wrap]\nquant = trace\n"); /* asked for and not there: never ignored */
    register_both(&s);
    choose(&s, -1, &c);
    ck_assert_int_eq(c.rc, BP_E_CONFIG);
    says(&c.err, "trace");
    stand_close(&s);
}
END_TEST

START_TEST(too_many_candidates)
{
    struct stand s;
    struct bpi_candidate one[1];
    struct bp_op_ref op;
    struct bp_error err = BP_ERROR_INIT;
    size_t n = 0, chosen = 0;
    stand_open(&s, "");
    register_both(&s);
    refuse(&fakes[0]);
    ck_assert_int_eq(bpi_loader_choose(s.loader, "quant", "bp.quant", -1, NULL, &matmul_problem,
                                       one, 1, &n, &chosen, &op, &err),
                     BP_E_LIMIT);
    says(&err, "more than 1");
    stand_close(&s);
}
END_TEST

START_TEST(reason_names)
{
    struct bpi_buf b = {0};
    ck_assert_str_eq(bpi_reason_name(BP_R_NONE), "NONE");
    ck_assert_str_eq(bpi_reason_name(BP_R_TOPOLOGY), "TOPOLOGY");
    ck_assert_str_eq(bpi_reason_name(BP_R_DEVICE), "DEVICE");
    ck_assert_str_eq(bpi_reason_name(500), "UNKNOWN");
    ck_assert_str_eq(bpi_reason_name(BP_R_VENDOR), "VENDOR");
    bpi_loader_format_reason(
        &(struct bp_reason){
            .code = BP_R_SHAPE, .field = "k", .got = -3, .want_lo = 1, .want_hi = INT64_MAX},
        &b);
    ck_assert_str_eq(b.data, "SHAPE k: got -3, want at least 1");
    bpi_buf_free(&b);
    b = (struct bpi_buf){0};
    bpi_loader_format_reason(
        &(struct bp_reason){.code = BP_R_GRAPH, .field = "g", .got = 2, .want_lo = INT64_MIN}, &b);
    ck_assert_str_eq(b.data, "GRAPH g: got 2, want at most 0");
    bpi_buf_free(&b);
    b = (struct bpi_buf){0};
    bpi_loader_format_reason(
        &(struct bp_reason){.code = BP_R_LAYOUT, .field = "layout_id", .got = -2}, &b);
    ck_assert_str_eq(b.data, "LAYOUT layout_id: got id fffffffffffffffe");
    bpi_buf_free(&b);
    b = (struct bpi_buf){0};
    bpi_loader_format_reason(&(struct bp_reason){.code = BP_R_LOAD, .text = "gone"}, &b);
    ck_assert_str_eq(b.data, "LOAD (gone)");
    bpi_buf_free(&b);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {the_first_that_serves_wins,
                                  auto_falls_through_and_says_so,
                                  a_list_falls_through_too,
                                  named_alone_and_unable_is_an_error,
                                  fallback_warn_looks_for_another,
                                  layers_can_be_singled_out,
                                  unknown_providers_are_named_with_the_nearest,
                                  plugins_without_the_interface,
                                  degraded_serves_and_is_told,
                                  lies_are_refusals,
                                  reasons_beyond_the_room_are_counted,
                                  ops_that_cannot_be_made,
                                  named_and_broken_ends_the_list,
                                  types_have_names,
                                  wrappers_serve_nothing,
                                  too_many_candidates,
                                  reason_names};
    return run_suite("loader_choose", tests, BPI_ARRAY_LEN(tests));
}
