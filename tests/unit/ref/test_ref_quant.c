/* test_ref_quant.c - bp.quant of the reference backend: values, batches, decoding kept or not, shards, refusals.
 * Fused forms: test_ref_quant_fused.c. SPDX-License-Identifier: MIT */
#include "ref_fixture.h"
#include "block/block.h"
#include "ref/ref_weight.h"

static const uint32_t float_dtypes[] = {BP_DT_F32, BP_DT_F16, BP_DT_BF16};

static const struct bp_quant_ops *quant(const struct bp_op_ref *op)
{
    return (const struct bp_quant_ops *)(const void *)op->vt;
}

static int64_t block_of(uint32_t type)
{
    for (int64_t n = 1; n <= 256; n *= 2) {
        uint64_t bytes;
        if (bpi_block_bytes(type, (uint64_t)n, &bytes)) return n;
    }
    return 0;
}

/* One weight, prepared. */
struct prepared {
    struct bp_oracle_weight w;
    struct bp_raw raw;
    void *handle;
};

static void prepare(struct rig *g, const struct bp_op_ref *op, struct prepared *p, uint32_t type,
                    int64_t cols, int64_t rows, float scale)
{
    struct bp_error err = BP_ERROR_INIT;
    bp_oracle_weight_init(&p->w, &g->rng, type, cols, rows, 1, scale);
    p->raw = bp_oracle_raw(&p->w, "blk.0.test.weight");
    ck_assert_msg(quant(op)->prepare(op->self, &p->raw, &p->handle, NULL, &err) == BP_OK,
                  "prepare: %s", err.msg);
}

static void drop(const struct bp_op_ref *op, struct prepared *p)
{
    quant(op)->release(op->self, p->handle);
    bp_oracle_weight_free(&p->w);
}

static void plan_for(struct rig *g, const struct bp_op_ref *op, uint32_t type, int64_t rows,
                     int64_t cols, uint32_t n_tok, uint32_t x_dtype, uint32_t y_dtype)
{
    struct bp_quant_shape shape = {.type = type, .rows = rows, .cols = cols};
    struct bp_quant_problem p = {.h = BP_HDR(struct bp_quant_problem, epilogue),
                                 .op = BP_QUANT_OP_MATMUL,
                                 .n_w = 1,
                                 .w_stride = sizeof shape,
                                 .max_tok = n_tok,
                                 .w = &shape,
                                 .x_dtype = x_dtype,
                                 .y_dtype = y_dtype};
    rig_prepare(g, op, &p);
}

static void multiply(struct rig *g, const struct bp_op_ref *op, void *handle,
                     const struct rig_tensor *x, const struct rig_tensor *y)
{
    struct bp_matmul_out out = {.weight = handle, .y = y->t};
    struct bp_quant_matmul_args a = {.h = BP_HDR(struct bp_quant_matmul_args, reserved),
                                     .x = x->t,
                                     .outs = &out,
                                     .n_out = 1,
                                     .out_stride = sizeof out};
    struct bp_error err = BP_ERROR_INIT;
    ck_assert_msg(quant(op)->matmul(op->self, &g->launch, &a, &err) == BP_OK, "matmul: %s",
                  err.msg);
    rig_check_scratch(g);
    rig_check_guards(x, "x");
    rig_check_guards(y, "y");
}

/* ---- values ---- */

static void check_values(struct rig *g, const struct bp_op_ref *op, uint32_t type, int64_t cols,
                         int64_t rows, int64_t n_tok, uint32_t x_dtype, uint32_t y_dtype,
                         int64_t pad)
{
    struct prepared p;
    prepare(g, op, &p, type, cols, rows, 1.0f);
    struct rig_tensor x = rig_tensor2(x_dtype, n_tok, cols, pad),
                      y = rig_tensor2(y_dtype, n_tok, rows, pad);
    rig_fill_normal(g, &x, 1.0);
    plan_for(g, op, type, rows, cols, (uint32_t)n_tok, x_dtype, y_dtype);
    multiply(g, op, p.handle, &x, &y);
    double *xd = rig_doubles(&x), *want = bp_oracle_alloc((size_t)(n_tok * rows), sizeof *want);
    double *mag = bp_oracle_alloc((size_t)(n_tok * rows), sizeof *mag);
    bp_oracle_matmul(BP_ORACLE_EXACT, p.w.w, rows, cols, xd, n_tok, want, mag);
    for (int64_t i = 0; i < n_tok * rows; ++i) {
        /* Double sums in another order: the last bits may differ, and so may the side that a tie falls to. */
        double slack = mag[i] * 0x1p-50, got = rig_get(&y, i);
        double lo = bp_oracle_round(want[i] - slack, bp_oracle_precision_of(y_dtype));
        double hi = bp_oracle_round(want[i] + slack, bp_oracle_precision_of(y_dtype));
        ck_assert_msg(got >= lo && got <= hi,
                      "type %u (%lld x %lld) token %lld: got %.9g, want %.9g", type,
                      (long long)rows, (long long)cols, (long long)(i / rows), got, want[i]);
    }
    free(xd);
    free(want);
    free(mag);
    rig_drop(&x, "x");
    rig_drop(&y, "y");
    drop(op, &p);
}

START_TEST(every_type_and_edge_shape)
{
    static const int64_t rows[] = {1, 3, 4, 17}, toks[] = {1, 2, 5, 19};
    struct rig g;
    rig_open(&g, NULL);
    struct bp_op_ref op = rig_op(&g, "bp.quant");
    uint32_t type, n_types = 0;
    while (quant(&op)->format(op.self, n_types, &type) == BP_OK) {
        n_types++;
        const int64_t block = block_of(type);
        for (size_t i = 0; i < BPI_ARRAY_LEN(rows); ++i) {
            int64_t cols = block == 1 ? 1 + 23 * (int64_t)i : block * (1 + (int64_t)i % 3);
            for (size_t d = 0; d < 2; ++d)
                check_values(&g, &op, type, cols, rows[i], toks[i], float_dtypes[i % 3],
                             float_dtypes[(i + d) % 3], (int64_t)i);
        }
    }
    ck_assert_uint_ge(n_types, 16);
    ck_assert_int_eq(quant(&op)->format(op.self, n_types, &type), BP_DECLINED);
    rig_close(&g);
}
END_TEST

START_TEST(large_shapes_use_all_threads)
{
    struct rig g;
    rig_open(&g, NULL);
    struct bp_op_ref op = rig_op(&g, "bp.quant");
    check_values(&g, &op, BP_GGUF_Q4_K, 1024, 257, 33, BP_DT_F32, BP_DT_F32, 0);
    check_values(&g, &op, BP_GGUF_Q8_0, 4128, 61, 5, BP_DT_F32, BP_DT_F32,
                 3); /* rows longer than a slice's share */
    check_values(&g, &op, BP_GGUF_BF16, 8200, 9, 2, BP_DT_F32, BP_DT_BF16, 1);
    rig_close(&g);
}
END_TEST

START_TEST(nothing_to_do)
{
    struct rig g;
    rig_open(&g, NULL);
    struct bp_op_ref op = rig_op(&g, "bp.quant");
    check_values(&g, &op, BP_GGUF_F32, 5, 0, 3, BP_DT_F32, BP_DT_F32, 1);
    check_values(&g, &op, BP_GGUF_F32, 5, 3, 0, BP_DT_F32, BP_DT_F32, 1);
    check_values(&g, &op, BP_GGUF_F32, 0, 3, 2, BP_DT_F32, BP_DT_F32,
                 1); /* an empty shard: zero, not garbage */
    check_values(&g, &op, BP_GGUF_Q4_0, 0, 3, 2, BP_DT_F32, BP_DT_F32, 1);
    quant(&op)->release(op.self, NULL);
    rig_close(&g);
}
END_TEST

/* ---- one row, whatever is beside it; decoded at each use, or read where it lies ---- */

START_TEST(rows_do_not_depend_on_the_batch)
{
    enum { ROWS = 71, COLS = 512, TOKS = 64 };
    static const int64_t batches[] = {2, 3, 5, TOKS};
    static const char *const rounds[] = {"none", "bf16", "f16"};
    for (size_t r = 0; r < BPI_ARRAY_LEN(rounds); ++r) {
        struct rig g, h;
        rig_open(&g, rounds[r]);
        rig_open(&h, rounds[r]);
        struct bp_op_ref op = rig_op(&g, "bp.quant"), other = rig_op(&h, "bp.quant");
        struct prepared p, q;
        prepare(&g, &op, &p, BP_GGUF_Q5_K, COLS, ROWS, 1.0f);
        float *floats = rig_as_floats(&p.w, &p.raw, &q.raw);
        ck_assert_int_eq(quant(&other)->prepare(other.self, &q.raw, &q.handle, NULL, NULL), BP_OK);
        struct rig_tensor x = rig_tensor2(BP_DT_F32, TOKS, COLS, 3),
                          all = rig_tensor2(BP_DT_F32, TOKS, ROWS, 0);
        rig_fill_normal(&g, &x, 1.0);
        plan_for(&g, &op, BP_GGUF_Q5_K, ROWS, COLS, TOKS, BP_DT_F32, BP_DT_F32);
        plan_for(&h, &other, BP_GGUF_F32, ROWS, COLS, TOKS, BP_DT_F32, BP_DT_F32);
        struct rig_tensor one_x = x, one_y = rig_tensor2(BP_DT_F32, 1, ROWS, 0);
        for (int64_t t = 0; t < TOKS; ++t) {
            struct rig_tensor row = all;
            one_x.t.data = bpi_ref_at(&x.t, t, 0, 0);
            one_x.t.dim[0] = 1;
            row.t.data = bpi_ref_at(&all.t, t, 0, 0);
            row.t.dim[0] = 1;
            struct bp_matmul_out out = {.weight = p.handle, .y = row.t};
            struct bp_quant_matmul_args a = {.h = BP_HDR(struct bp_quant_matmul_args, reserved),
                                             .x = one_x.t,
                                             .outs = &out,
                                             .n_out = 1,
                                             .out_stride = sizeof out};
            ck_assert_int_eq(quant(&op)->matmul(op.self, &g.launch, &a, NULL), BP_OK);
        }
        for (size_t b = 0; b < BPI_ARRAY_LEN(batches); ++b) {
            const int64_t n = batches[b];
            struct rig_tensor y = rig_tensor2(BP_DT_F32, n, ROWS, 1),
                              z = rig_tensor2(BP_DT_F32, n, ROWS, 1);
            struct rig_tensor part = x;
            part.t.dim[0] = n;
            struct bp_matmul_out out = {.weight = p.handle, .y = y.t};
            struct bp_quant_matmul_args a = {.h = BP_HDR(struct bp_quant_matmul_args, reserved),
                                             .x = part.t,
                                             .outs = &out,
                                             .n_out = 1,
                                             .out_stride = sizeof out};
            ck_assert_int_eq(quant(&op)->matmul(op.self, &g.launch, &a, NULL), BP_OK);
            rig_check_same(&y, 0, &all, 0, n * ROWS, "row alone against row in a batch");
            out = (struct bp_matmul_out){.weight = q.handle, .y = z.t};
            ck_assert_int_eq(quant(&other)->matmul(other.self, &h.launch, &a, NULL), BP_OK);
            rig_check_same(&z, 0, &all, 0, n * ROWS, "blocks against the same numbers as F32");
            rig_drop(&y, "y");
            rig_drop(&z, "z");
        }
        rig_drop(&x, "x");
        rig_drop(&all, "all");
        rig_drop(&one_y, "one");
        quant(&other)->release(other.self, q.handle);
        free(floats);
        drop(&op, &p);
        rig_close(&g);
        rig_close(&h);
    }
}
END_TEST

/* A handle is one small piece of memory; the weight stays in the file, and F32 is not even decoded. */
START_TEST(weights_stay_in_the_file)
{
    static const uint32_t types[] = {BP_GGUF_Q8_0, BP_GGUF_BF16, BP_GGUF_F32};
    static const char *const rounds[] = {"none", "bf16"};
    for (size_t i = 0; i < BPI_ARRAY_LEN(types) * BPI_ARRAY_LEN(rounds); ++i) {
        struct rig g;
        const uint32_t type = types[i % BPI_ARRAY_LEN(types)];
        const bool rounded = i >= BPI_ARRAY_LEN(types);
        rig_open(&g, rounds[rounded]);
        struct bp_op_ref op = rig_op(&g, "bp.quant");
        struct prepared p;
        prepare(&g, &op, &p, type, 512, 300, 1.0f);
        for (int scaled = 0; scaled < 2; ++scaled) {
            struct bp_weight_info info = {.h = BP_HDR(struct bp_weight_info, n_bytes)};
            const int64_t before = g.live;
            void *handle = NULL;
            float buf[512];
            int64_t stride = 0;
            p.raw.scale = scaled ? 2.0f : 1.0f;
            ck_assert_int_eq(quant(&op)->prepare(op.self, &p.raw, &handle, &info, NULL), BP_OK);
            ck_assert_int_eq(g.live, before + 1);
            ck_assert_uint_eq(info.n_bytes, sizeof(struct bpi_ref_weight));
            const float *row = bpi_ref_weight_rows(handle, 0, 7, 1, buf, &stride);
            bool in_file = (const unsigned char *)row == p.w.bytes + 7 * 512 * sizeof *row;
            ck_assert_int_eq(in_file, type == BP_GGUF_F32 && !rounded && !scaled);
            ck_assert(in_file || row == buf);
            ck_assert_int_eq(stride, 512);
            for (int64_t k = 0; k < 512; ++k) {
                double want = p.w.w[7 * 512 + k] * (scaled ? 2.0 : 1.0);
                if (rounded) want = bp_oracle_round(want, BP_ORACLE_BF16);
                ck_assert((double)row[k] == want);
            }
            quant(&op)->release(op.self, handle);
            ck_assert_int_eq(g.live, before);
        }
        drop(&op, &p);
        rig_close(&g);
    }
}
END_TEST

/* ---- parts of a weight ---- */

/* Columns [begin, end) need not begin at a block: the rest of the block must not leak in. */
START_TEST(shards_take_their_part_only)
{
    static const struct {
        uint32_t type;
        int64_t c0, c1, r0, r1;
    } parts[] = {{BP_GGUF_Q8_0, 32, 96, 0, 9},   {BP_GGUF_Q8_0, 5, 91, 2, 7},
                 {BP_GGUF_Q8_0, 33, 34, 0, 1},   {BP_GGUF_Q4_K, 256, 512, 3, 9},
                 {BP_GGUF_Q4_K, 100, 300, 0, 9}, {BP_GGUF_BF16, 7, 8, 1, 9},
                 {BP_GGUF_F32, 3, 500, 4, 5},    {BP_GGUF_F32, 0, 512, 2, 9},
                 {BP_GGUF_Q6_K, 255, 257, 0, 9}, {BP_GGUF_Q8_0, 64, 64, 0, 9}};
    struct rig g;
    rig_open(&g, NULL);
    struct bp_op_ref op = rig_op(&g, "bp.quant");
    for (size_t i = 0; i < BPI_ARRAY_LEN(parts); ++i) {
        struct prepared p;
        void *part = NULL;
        const int64_t cols = parts[i].c1 - parts[i].c0, rows = parts[i].r1 - parts[i].r0;
        prepare(&g, &op, &p, parts[i].type, 512, 9, 0.5f);
        p.raw.begin[0] = parts[i].c0;
        p.raw.end[0] = parts[i].c1;
        p.raw.begin[1] = parts[i].r0;
        p.raw.end[1] = parts[i].r1;
        ck_assert_int_eq(quant(&op)->prepare(op.self, &p.raw, &part, NULL, NULL), BP_OK);
        struct rig_tensor x = rig_tensor2(BP_DT_F32, 3, cols, 0),
                          y = rig_tensor2(BP_DT_F32, 3, rows, 0);
        struct rig_tensor plain = rig_tensor2(BP_DT_F32, rows, cols, 2);
        rig_fill_normal(&g, &x, 1.0);
        plan_for(&g, &op, parts[i].type, rows, cols, 3, BP_DT_F32, BP_DT_F32);
        multiply(&g, &op, part, &x, &y);
        struct bp_quant_dequantize_args d = {.h = BP_HDR(struct bp_quant_dequantize_args, y),
                                             .weight = part};
        d.y = plain.t;
        ck_assert_int_eq(quant(&op)->dequantize(op.self, &g.launch, &d, NULL), BP_OK);
        for (int64_t r = 0; r < rows; ++r) {
            for (int64_t t = 0; t < 3; ++t) {
                double want = 0.0, mag = 0.0;
                for (int64_t k = 0; k < cols; ++k) {
                    double w = p.w.w[(parts[i].r0 + r) * 512 + parts[i].c0 + k];
                    want += w * rig_get(&x, t * cols + k);
                    mag += fabs(w * rig_get(&x, t * cols + k));
                    ck_assert(rig_get(&plain, r * cols + k) == w);
                }
                ck_assert(fabs(rig_get(&y, t * rows + r) - want) <=
                          0x1p-24 * fabs(want) + mag * 0x1p-48);
            }
        }
        quant(&op)->release(op.self, part);
        rig_drop(&x, "x");
        rig_drop(&y, "y");
        rig_drop(&plain, "plain");
        drop(&op, &p);
    }
    rig_close(&g);
}
END_TEST

START_TEST(dequantize_gives_rows)
{
    static const char *const rounds[] = {"none", "bf16"};
    for (size_t m = 0; m < BPI_ARRAY_LEN(rounds); ++m) {
        struct rig g;
        rig_open(&g, rounds[m]);
        struct bp_op_ref op = rig_op(&g, "bp.quant");
        struct prepared p;
        prepare(&g, &op, &p, BP_GGUF_Q4_K, 256, 11, 3.0f);
        plan_for(&g, &op, BP_GGUF_Q4_K, 11, 256, 1, BP_DT_F32, BP_DT_F32);
        for (size_t d = 0; d < BPI_ARRAY_LEN(float_dtypes); ++d) {
            struct rig_tensor y = rig_tensor2(float_dtypes[d], 4, 256, 5);
            struct bp_quant_dequantize_args a = {.h = BP_HDR(struct bp_quant_dequantize_args, y),
                                                 .weight = p.handle,
                                                 .row_begin = 6,
                                                 .y = y.t};
            ck_assert_int_eq(quant(&op)->dequantize(op.self, &g.launch, &a, NULL), BP_OK);
            for (int64_t i = 0; i < 4 * 256; ++i) {
                double want = p.w.w[6 * 256 + i];
                if (m == 1) want = bp_oracle_round(want, BP_ORACLE_BF16);
                ck_assert(rig_get(&y, i) ==
                          bp_oracle_round(want, bp_oracle_precision_of(float_dtypes[d])));
            }
            struct bp_error err = BP_ERROR_INIT;
            a.row_begin = 8;
            ck_assert_int_eq(quant(&op)->dequantize(op.self, &g.launch, &a, &err), BP_E_ARG);
            ck_assert_ptr_nonnull(strstr(err.msg, "rows 8 to 12"));
            a.row_begin = -1;
            ck_assert_int_eq(quant(&op)->dequantize(op.self, &g.launch, &a, NULL), BP_E_ARG);
            rig_drop(&y, "y");
        }
        drop(&op, &p);
        rig_close(&g);
    }
}
END_TEST

/* ---- NaN and infinity ---- */

START_TEST(nan_stays_in_its_row)
{
    enum { ROWS = 37, COLS = 256, TOKS = 9 };
    struct rig g;
    rig_open(&g, NULL);
    struct bp_op_ref op = rig_op(&g, "bp.quant");
    struct prepared p;
    prepare(&g, &op, &p, BP_GGUF_Q4_K, COLS, ROWS, 1.0f);
    plan_for(&g, &op, BP_GGUF_Q4_K, ROWS, COLS, TOKS, BP_DT_F32, BP_DT_F32);
    struct rig_tensor x = rig_tensor2(BP_DT_F32, TOKS, COLS, 0),
                      clean = rig_tensor2(BP_DT_F32, TOKS, ROWS, 0);
    rig_fill_normal(&g, &x, 1.0);
    multiply(&g, &op, p.handle, &x, &clean);
    for (int64_t bad = 0; bad < TOKS; ++bad) {
        struct rig_tensor y = rig_tensor2(BP_DT_F32, TOKS, ROWS, 0);
        double kept = rig_get(&x, bad * COLS + bad);
        rig_set(&x, bad * COLS + bad, bad % 2 == 0 ? (double)NAN : (double)INFINITY);
        multiply(&g, &op, p.handle, &x, &y);
        for (int64_t t = 0; t < TOKS; ++t) {
            if (t != bad) rig_check_same(&y, t * ROWS, &clean, t * ROWS, ROWS, "row beside a NaN");
            for (int64_t r = 0; t == bad && r < ROWS; ++r)
                ck_assert(!isfinite(rig_get(&y, t * ROWS + r)));
        }
        rig_set(&x, bad * COLS + bad, kept);
        rig_drop(&y, "y");
    }
    rig_drop(&x, "x");
    rig_drop(&clean, "clean");
    drop(&op, &p);
    rig_close(&g);
}
END_TEST

/* ---- refusals ---- */

START_TEST(bad_weights_are_refused_with_a_sentence)
{
    struct rig g;
    rig_open(&g, NULL);
    struct bp_op_ref op = rig_op(&g, "bp.quant");
    struct bp_oracle_weight w;
    bp_oracle_weight_init(&w, &g.rng, BP_GGUF_Q8_0, 64, 4, 1, 1.0f);
    const struct bp_raw good = bp_oracle_raw(&w, "blk.3.bad.weight");
    for (int k = 0; k < 9; ++k) {
        struct bp_raw raw = good;
        struct bp_error err = BP_ERROR_INIT;
        void *handle = &raw;
        int32_t want = BP_E_ARG;
        if (k == 0) raw.type = BP_GGUF_Q8_K;
        if (k == 1) raw.type = 12345;
        if (k <= 1) want = BP_DECLINED;
        if (k == 2) raw.n_bytes -= 1;
        if (k == 3) raw.ne[0] = 63;
        if (k == 4) raw.end[1] = 5;
        if (k == 5) raw.begin[0] = -1;
        if (k == 6) raw.begin[1] = 3, raw.end[1] = 2;
        if (k == 7) raw.ne[1] = INT64_MAX, raw.end[1] = INT64_MAX;
        if (k == 8) raw.ne[2] = 2, raw.end[2] = 2;
        int32_t rc = quant(&op)->prepare(op.self, &raw, &handle, NULL, &err);
        ck_assert_msg(rc == want, "case %d: %d", k, rc);
        ck_assert_msg(err.code == want && err.msg[0] != '\0' &&
                          strcmp(err.where, "blk.3.bad.weight") == 0,
                      "case %d", k);
    }
    /* Memory that runs out leaves nothing behind. */
    void *handle = NULL;
    const int64_t before = g.live;
    g.fail_at = 1;
    ck_assert_int_eq(quant(&op)->prepare(op.self, &good, &handle, NULL, NULL), BP_E_NOMEM);
    ck_assert_int_eq(g.live, before);
    ck_assert_ptr_null(handle);
    bp_oracle_weight_free(&w);
    rig_close(&g);
}
END_TEST

START_TEST(calls_that_do_not_fit_are_refused)
{
    struct rig g;
    rig_open(&g, NULL);
    struct bp_op_ref op = rig_op(&g, "bp.quant");
    struct prepared p;
    prepare(&g, &op, &p, BP_GGUF_F16, 8, 4, 1.0f);
    plan_for(&g, &op, BP_GGUF_F16, 4, 8, 2, BP_DT_F32, BP_DT_F32);
    struct rig_tensor x = rig_tensor2(BP_DT_F32, 2, 8, 0), y = rig_tensor2(BP_DT_F32, 2, 4, 0);
    rig_fill_normal(&g, &x, 1.0);
    for (int k = 0; k < 6; ++k) {
        struct bp_matmul_out out[2] = {{.weight = p.handle, .y = y.t},
                                       {.weight = p.handle, .y = y.t}};
        struct bp_quant_matmul_args a = {.h = BP_HDR(struct bp_quant_matmul_args, reserved),
                                         .x = x.t,
                                         .outs = out,
                                         .n_out = 1,
                                         .out_stride = sizeof out[0]};
        struct bp_launch l = g.launch;
        struct bp_error err = BP_ERROR_INIT;
        if (k == 0) a.x.dim[1] = 7;
        if (k == 1) out[0].y.dim[0] = 1;
        if (k == 2) a.n_out = 5;
        if (k == 3) a.epilogue = BP_EPILOGUE_SILU_MUL;
        if (k == 4) l.scratch_bytes -= 1;
        if (k == 5) l.scratch = NULL;
        ck_assert_msg(quant(&op)->matmul(op.self, &l, &a, &err) == BP_E_ARG && err.msg[0] != '\0',
                      "case %d", k);
    }
    rig_drop(&x, "x");
    rig_drop(&y, "y");
    drop(&op, &p);
    rig_close(&g);
}
END_TEST

START_TEST(verdicts_name_what_is_wrong)
{
    struct rig g;
    rig_open(&g, NULL);
    struct bp_op_ref op = rig_op(&g, "bp.quant");
    struct bp_quant_shape w[2] = {{.type = BP_GGUF_Q4_K, .rows = 8, .cols = 256},
                                  {.type = BP_GGUF_Q6_K, .rows = 8, .cols = 256}};
    const struct bp_quant_problem good = {.h = BP_HDR(struct bp_quant_problem, epilogue),
                                          .n_w = 2,
                                          .w_stride = sizeof w[0],
                                          .max_tok = 4,
                                          .w = w,
                                          .x_dtype = BP_DT_F32,
                                          .y_dtype = BP_DT_BF16,
                                          .epilogue = BP_EPILOGUE_SILU_MUL};
    struct rig_answer a;
    rig_ask(&op, &good, &a);
    ck_assert_uint_eq(a.v.level, BP_V_YES);
    struct bp_quant_problem p = good;
    p.x_dtype = BP_DT_I32;
    p.y_dtype = BP_DT_U8;
    ck_assert(rig_refuses(&op, &p, BP_R_DTYPE, "x_dtype") &&
              rig_refuses(&op, &p, BP_R_DTYPE, "y_dtype")); /* all reasons */
    p = good;
    p.n_w = 5;
    ck_assert(rig_refuses(&op, &p, BP_R_SHAPE, "n_w"));
    p = good;
    p.op = 9;
    ck_assert(rig_refuses(&op, &p, BP_R_FEATURE, "op"));
    p = good;
    p.prologue = 2;
    ck_assert(rig_refuses(&op, &p, BP_R_FEATURE, "prologue"));
    p = good;
    p.epilogue = 3;
    ck_assert(rig_refuses(&op, &p, BP_R_FEATURE, "epilogue"));
    p = good;
    p.n_w = 1;
    ck_assert(rig_refuses(&op, &p, BP_R_SHAPE, "n_w"));
    w[1].rows = 9;
    ck_assert(rig_refuses(&op, &good, BP_R_SHAPE, "w.rows"));
    w[1].rows = 8;
    w[1].cols = 512;
    ck_assert(rig_refuses(&op, &good, BP_R_SHAPE, "w.cols"));
    w[1].cols = 256;
    w[1].type = BP_GGUF_Q8_K;
    ck_assert(rig_refuses(&op, &good, BP_R_QUANT, "w.type"));
    w[1].type = BP_GGUF_Q6_K;
    const struct bp_ext ext = {.size = sizeof ext, .flags = BP_EXT_CRITICAL, .id = 1};
    p = good;
    p.h.next = &ext;
    ck_assert(rig_refuses(&op, &p, BP_R_EXT, "h.next"));
    p = good;
    p.h.size = 24;
    ck_assert(rig_refuses(&op, &p, BP_R_ABI, "h.size"));
    rig_close(&g);
}
END_TEST

static uint64_t scratch_of(const struct bp_op_ref *op, uint32_t n_tok, int64_t rows, int64_t cols)
{
    struct bp_quant_shape w = {.type = BP_GGUF_F32, .rows = rows, .cols = cols};
    struct bp_quant_problem p = {.h = BP_HDR(struct bp_quant_problem, epilogue),
                                 .n_w = 1,
                                 .w_stride = sizeof w,
                                 .max_tok = n_tok,
                                 .w = &w,
                                 .x_dtype = BP_DT_F32,
                                 .y_dtype = BP_DT_F32};
    struct bp_workspace ws = {.h = BP_HDR(struct bp_workspace, persistent_zeroed)};
    ck_assert_int_eq(op->vt->workspace(op->self, &p, &ws, NULL), BP_OK);
    return ws.scratch_bytes;
}

START_TEST(workspaces_grow_with_the_problem)
{
    struct rig g;
    rig_open(&g, NULL);
    struct bp_op_ref op = rig_op(&g, "bp.quant");
    uint64_t before = 0;
    for (int64_t cols = 1; cols < 20000; cols += 61) {
        uint64_t now = scratch_of(&op, 7, 5, cols);
        ck_assert_uint_ge(now, before);
        ck_assert_uint_ge(scratch_of(&op, 8, 5, cols), now);
        ck_assert_uint_ge(scratch_of(&op, 7, 6, cols), now);
        before = now;
    }
    struct bp_quant_shape w = {.type = BP_GGUF_F32, .rows = 1, .cols = INT64_MAX};
    struct bp_quant_problem p = {.h = BP_HDR(struct bp_quant_problem, epilogue),
                                 .n_w = 1,
                                 .w_stride = sizeof w,
                                 .max_tok = UINT32_MAX,
                                 .w = &w,
                                 .x_dtype = BP_DT_F32,
                                 .y_dtype = BP_DT_F32};
    struct bp_workspace ws = {.h = BP_HDR(struct bp_workspace, persistent_zeroed)};
    struct bp_error err = BP_ERROR_INIT;
    ck_assert_int_eq(op.vt->workspace(op.self, &p, &ws, &err), BP_E_LIMIT);
    w.cols = INT64_MAX / 8192;
    ck_assert_int_eq(op.vt->workspace(op.self, &p, &ws, NULL), BP_E_LIMIT);
    rig_close(&g);
}
END_TEST

START_TEST(ports_are_listed)
{
    struct rig g;
    rig_open(&g, NULL);
    struct bp_op_ref op = rig_op(&g, "bp.quant");
    int dummy = 0;
    struct bp_matmul_out out[2] = {{.y = {.data = &dummy}}, {.y = {.data = &dummy}}};
    struct bp_quant_matmul_args a = {.h = BP_HDR(struct bp_quant_matmul_args, reserved),
                                     .outs = out,
                                     .n_out = 2,
                                     .out_stride = sizeof out[0]};
    struct bp_tensor t[8];
    uint32_t n = 8;
    ck_assert_int_eq(op.vt->tensors(op.self, BP_QUANT_OP_MATMUL, &a, t, &n), BP_OK);
    ck_assert_uint_eq(n, 3);
    ck_assert_str_eq(t[0].name, "x");
    ck_assert_uint_eq(t[0].access, BP_IN);
    ck_assert_str_eq(t[2].name, "y1");
    ck_assert_uint_eq(t[2].access, BP_OUT);
    a.prologue = BP_PROLOGUE_RMS;
    a.epilogue = BP_EPILOGUE_ADD;
    n = 2; /* fewer than needed: fills what fits, says what is needed */
    t[2].name = "untouched";
    ck_assert_int_eq(op.vt->tensors(op.self, BP_QUANT_OP_MATMUL, &a, t, &n), BP_OK);
    ck_assert_uint_eq(n, 5);
    ck_assert_str_eq(t[1].name, "norm_w");
    ck_assert_str_eq(t[2].name, "untouched");
    a.epilogue = BP_EPILOGUE_SILU_MUL;
    n = 8;
    ck_assert_int_eq(op.vt->tensors(op.self, BP_QUANT_OP_MATMUL, &a, t, &n), BP_OK);
    ck_assert_uint_eq(n, 3); /* x, norm_w, y: the second y is not written */
    n = 8;
    ck_assert_int_eq(op.vt->tensors(op.self, 77, &a, t, &n), BP_E_ARG);
    rig_close(&g);
}
END_TEST

RIG_MAIN("ref_quant", every_type_and_edge_shape, large_shapes_use_all_threads, nothing_to_do,
         rows_do_not_depend_on_the_batch, weights_stay_in_the_file, shards_take_their_part_only,
         dequantize_gives_rows, nan_stays_in_its_row, bad_weights_are_refused_with_a_sentence,
         calls_that_do_not_fit_are_refused, verdicts_name_what_is_wrong,
         workspaces_grow_with_the_problem, ports_are_listed)
