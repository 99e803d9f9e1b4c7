/* test_file_check.c - bp_file_hash and bp_file_validate on real models, whole and damaged; progress and stopping.
 * SPDX-License-Identifier: MIT */
#include "gguf/gguf.h"
#include "unit/engine/check_fixture.h"

static struct bp_manifest *hash_of(const char *path, const struct bp_config *cfg)
{
    struct bp_error err = BP_ERROR_INIT;
    struct bp_file *f = file_open(path);
    struct bp_manifest *m = NULL;
    must(bp_file_hash(f, cfg, NULL, &m, &err), &err);
    bp_file_close(f);
    return m;
}

static char *text_of(const struct bp_manifest *m)
{
    struct bp_error err = BP_ERROR_INIT;
    char *text = NULL;
    size_t n = 0;
    must(bp_manifest_text(m, &text, &n, &err), &err);
    ck_assert_uint_eq(strlen(text), n);
    return text;
}

/* The number of threads changes nothing, and what is written is read back. */
START_TEST(manifest_goes_both_ways)
{
    struct bp_config *one = NULL, *four = NULL;
    struct bp_error err = BP_ERROR_INIT;
    must(bp_config_create(&one, &err), &err);
    must(bp_config_create(&four, &err), &err);
    must(bp_config_set(one, "engine.threads=1", &err), &err);
    must(bp_config_set(four, "engine.threads=4", &err), &err);
    struct bp_manifest *a = hash_of(ZOO("zoo-v3"), one), *b = hash_of(ZOO("zoo-v3"), four),
                       *c = hash_of(ZOO("zoo-v3"), NULL), *d = NULL;
    char *at = text_of(a), *bt = text_of(b), *ct = text_of(c);
    ck_assert_str_eq(at, bt);
    ck_assert_str_eq(at, ct);
    FILE *f = fopen("both_ways.hash", "wb");
    fputs(at, f);
    ck_assert_int_eq(fclose(f), 0);
    must(bp_manifest_load("both_ways.hash", &d, &err), &err);
    ck_assert_uint_eq(bp_manifest_compare(d, a, NULL, NULL), 0);
    struct bp_manifest_info info = {.h = BP_HDR(struct bp_manifest_info, n_tensors)};
    struct bp_manifest_line line = {.h = BP_HDR(struct bp_manifest_line, n_bytes)};
    bp_manifest_info(d, &info);
    ck_assert_str_eq(info.file, "zoo-v3.gguf");
    ck_assert_uint_eq(info.n_shards, 1);
    ck_assert_uint_gt(info.n_tensors, 20);
    ck_assert_int_eq(bp_manifest_line(d, info.n_tensors, &line), BP_OK);
    ck_assert_uint_eq(strlen(line.hash), 32);
    ck_assert_int_eq(bp_manifest_line(d, info.n_tensors + 1, &line), BP_DECLINED);
    bp_manifest_close(d);
    ck_assert_int_eq(bp_manifest_load("none.hash", &d, &err), BP_E_IO);
    ck_assert_ptr_null(d);
    remove("both_ways.hash");
    bp_free(at);
    bp_free(bt);
    bp_free(ct);
    bp_manifest_close(a);
    bp_manifest_close(b);
    bp_manifest_close(c);
    bp_manifest_close(NULL);
    bp_config_destroy(one);
    bp_config_destroy(four);
}
END_TEST

struct seen {
    unsigned n;
    char name[64], reason[64];
    uint32_t kind;
    uint64_t block, n_blocks;
};

static void see_difference(void *ctx, const struct bp_difference *d)
{
    struct seen *s = ctx;
    s->n++;
    s->kind = d->kind;
    snprintf(s->name, sizeof s->name, "%s", d->name);
    ck_assert_str_eq(d->shard, "one_bit.gguf");
}

/* One bit, in the last byte of a tensor: that tensor is named and no other. */
START_TEST(one_bit_is_found)
{
    copy_file(ZOO("zoo-v3"), "one_bit.gguf");
    struct bp_manifest *whole = hash_of("one_bit.gguf", NULL);
    struct bp_file *f = file_open("one_bit.gguf");
    struct bp_file_tensor t = tensor_of(f, "blk.1.attn_output.weight");
    unsigned char byte = ((const unsigned char *)t.data)[t.n_bytes - 1] ^ 1;
    overwrite("one_bit.gguf", t.offset + t.n_bytes - 1, &byte, 1);
    bp_file_close(f);
    struct bp_manifest *hurt = hash_of("one_bit.gguf", NULL);
    struct seen s = {0};
    ck_assert_uint_eq(bp_manifest_compare(whole, hurt, see_difference, &s), 1);
    ck_assert_uint_eq(s.n, 1);
    ck_assert_uint_eq(s.kind, BP_DIFFERENCE_DAMAGED);
    ck_assert_str_eq(s.name, "blk.1.attn_output.weight");
    bp_manifest_close(whole);
    bp_manifest_close(hurt);
    remove("one_bit.gguf");
}
END_TEST

/* ---- validation ---- */

static void see_bad(void *ctx, const struct bp_bad_blocks *b)
{
    struct seen *s = ctx;
    if (s->n++ > 0) return;
    snprintf(s->name, sizeof s->name, "%s", b->tensor);
    snprintf(s->reason, sizeof s->reason, "%s", b->reason);
    s->block = b->block;
    s->n_blocks = b->n_blocks;
    ck_assert(strstr(b->shard, ".gguf") != NULL);
    ck_assert_uint_gt(strlen(b->type_name), 1);
}

static struct bp_validation validate(const char *path, struct seen *s)
{
    struct bp_validation v = {.h = BP_HDR(struct bp_validation, n_bytes)};
    struct bp_error err = BP_ERROR_INIT;
    struct bp_file *f = file_open(path);
    must(bp_file_validate(f, NULL, NULL, 2, see_bad, s, &v, &err), &err);
    bp_file_close(f);
    return v;
}

START_TEST(whole_models_are_good)
{
    static const char *const files[] = {ZOO("zoo-v3"), ZOO("zoo-glm5"),
                                        BP_SOURCE_DIR "/models/bp-tiny-glm-dsa-Q4_K_M.gguf"};
    struct seen s = {0};
    struct bp_validation v = validate(files[_i], &s);
    ck_assert_uint_eq(s.n, 0);
    ck_assert_uint_eq(v.n_bad_blocks, 0);
    ck_assert_uint_eq(v.n_bad_tensors, 0);
    ck_assert_uint_gt(v.n_tensors, 20);
    ck_assert_uint_gt(v.n_blocks, 10000);
    ck_assert_uint_gt(v.n_bytes, v.n_blocks);
}
END_TEST

START_TEST(bad_blocks_are_named)
{
    static const unsigned char nan16[] = {0x00, 0x7e}, inf16[] = {0x00, 0x7c};
    const char *path = "bad_blocks.gguf";
    copy_file(BP_SOURCE_DIR "/models/bp-tiny-glm-dsa-Q4_K_M.gguf", path);
    struct bp_file *f = file_open(path);
    struct bp_file_tensor t = tensor_of(f, "token_embd.weight");
    ck_assert_str_eq(t.type_name, "Q4_K");
    const uint64_t n = t.n_bytes / 144;
    bp_file_close(f);
    struct seen s = {0};
    overwrite(path, t.offset + 7 * 144, nan16, 2); /* a run of two ... */
    overwrite(path, t.offset + 8 * 144, nan16, 2);
    overwrite(path, t.offset + 9 * 144 + 2, inf16, 2); /* ... another reason ... */
    overwrite(path, t.offset + (n - 1) * 144, nan16,
              2); /* ... and the last one, which is counted only */
    struct bp_validation v = validate(path, &s);
    ck_assert_str_eq(s.name, "token_embd.weight");
    ck_assert_str_eq(s.reason, "its scale is NaN");
    ck_assert_uint_eq(s.block, 7);
    ck_assert_uint_eq(s.n_blocks, 2);
    ck_assert_uint_eq(s.n, 2); /* max_runs */
    ck_assert_uint_eq(v.n_bad_blocks, 4);
    ck_assert_uint_eq(v.n_bad_tensors, 1);
    remove(path);
}
END_TEST

/* Every value of a tensor: one run over the borders of pieces. */
START_TEST(a_run_is_one_finding)
{
    enum { N = 700001 };
    const char *path = "all_bad.gguf";
    const int64_t ne[4] = {N, 1, 1, 1}, few[4] = {8, 1, 1, 1};
    struct bp_error err = BP_ERROR_INIT;
    struct bpi_gguf_writer *w = NULL;
    float *ones = malloc(N * sizeof *ones), good[8] = {0};
    memset(ones, 0xff, N * sizeof *ones);
    must(bpi_gguf_writer_create(&w, &err), &err);
    must(bpi_gguf_put_tensor(w, "good", BP_GGUF_F32, 1, few, good, sizeof good), &err);
    must(bpi_gguf_put_tensor(w, "bad", BP_GGUF_F32, 1, ne, ones, N * sizeof *ones), &err);
    must(bpi_gguf_writer_save(w, path, &err), &err);
    bpi_gguf_writer_destroy(w);
    free(ones);
    struct seen s = {0};
    struct bp_validation v = validate(path, &s);
    ck_assert_uint_eq(s.n, 1);
    ck_assert_str_eq(s.name, "bad");
    ck_assert_uint_eq(s.block, 0);
    ck_assert_uint_eq(s.n_blocks, N);
    ck_assert_uint_eq(v.n_bad_blocks, N);
    ck_assert_uint_eq(v.n_blocks, N + 8);
    remove(path);
}
END_TEST

/* ---- progress ---- */

struct told {
    double last;
    int n, stop_at;
};

static int32_t progress(void *ctx, double fraction, const char *what)
{
    struct told *t = ctx;
    ck_assert(fraction >= t->last && fraction <= 1.0 && what != NULL);
    t->last = fraction;
    return ++t->n == t->stop_at;
}

START_TEST(progress_is_told_and_can_stop)
{
    struct bp_file *f = file_open(ZOO("zoo-v3"));
    struct bp_error err = BP_ERROR_INIT;
    struct told t = {0, 0, -1};
    struct bp_callbacks cb = {
        .h = BP_HDR(struct bp_callbacks, progress), .ctx = &t, .progress = progress};
    struct bp_config *one = NULL;
    struct bp_manifest *m = NULL;
    must(bp_config_create(&one, &err), &err);
    must(bp_config_set(one, "engine.threads=1", &err), &err);
    must(bp_file_hash(f, one, &cb, &m, &err), &err);
    ck_assert_int_gt(t.n, 20);
    ck_assert(t.last == 1.0);
    bp_manifest_close(m);
    t = (struct told){0, 0, 3};
    ck_assert_int_eq(bp_file_hash(f, one, &cb, &m, &err), BP_E_ABORTED);
    ck_assert_ptr_null(m);
    ck_assert_int_eq(t.n, 3);
    struct seen s = {0};
    struct bp_validation v = {.h = BP_HDR(struct bp_validation, n_bytes)};
    t = (struct told){0, 0, 2};
    err = (struct bp_error)BP_ERROR_INIT;
    ck_assert_int_eq(bp_file_validate(f, one, &cb, 8, see_bad, &s, &v, &err), BP_E_ABORTED);
    ck_assert_int_eq(t.n, 2);
    ck_assert_uint_eq(s.n, 0);
    bp_config_destroy(one);
    bp_file_close(f);
}
END_TEST

static void add(TCase *tc)
{
    tcase_add_test(tc, manifest_goes_both_ways);
    tcase_add_test(tc, one_bit_is_found);
    tcase_add_loop_test(tc, whole_models_are_good, 0, 3);
    tcase_add_test(tc, bad_blocks_are_named);
    tcase_add_test(tc, a_run_is_one_finding);
    tcase_add_test(tc, progress_is_told_and_can_stop);
}

int main(void)
{
    return run_suite("file_check", add);
}
