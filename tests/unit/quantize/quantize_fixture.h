/* quantize_fixture.h - a small source file of a test's own, and a folder to write in.
 * Not here: what is right; each test says it. Threads: one (static state). SPDX-License-Identifier: MIT */
#ifndef QUANTIZE_FIXTURE_H
#define QUANTIZE_FIXTURE_H

#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/pool.h"
#include "block/block.h"
#include "quantize/quantize.h"
#include "unit/block/block_data.h"

/* One tensor of a source. Values are drawn, encoded where the type has an encoder, else random legal blocks. */
struct src_tensor {
    const char *name;
    uint32_t type, n_dim;
    int64_t ne[4];
};

static char folder[64]; /* of this test, removed by folder_end */

static inline void folder_begin(void)
{
    snprintf(folder, sizeof folder, "quantize.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
}

/* A path in the folder, valid until the fourth next call. */
static inline const char *in_folder(const char *name)
{
    static char path[4][400];
    static unsigned i;
    char *p = path[i++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", folder, name);
    return p;
}

/* How many files are in the folder; `remove` takes them away. */
static inline unsigned folder_files(bool remove_them)
{
    unsigned n = 0;
    DIR *d = opendir(folder);
    ck_assert_ptr_nonnull(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        if (e->d_name[0] == '.') continue;
        ++n;
        if (remove_them) ck_assert_int_eq(remove(in_folder(e->d_name)), 0);
    }
    closedir(d);
    return n;
}

static inline void folder_end(void)
{
    (void)folder_files(true);
    ck_assert_int_eq(rmdir(folder), 0);
}

static inline uint64_t count_values(const int64_t ne[4], uint32_t n_dim)
{
    uint64_t n = 1;
    for (uint32_t d = 0; d < n_dim; ++d) n *= (uint64_t)ne[d];
    return n;
}

/* Blocks of the type over values that the seed determines; freed with free. */
static inline void *make_blocks(uint32_t type, uint64_t n, uint64_t seed, uint64_t *out_bytes)
{
    const struct bpi_block_info *info = bpi_block_info(type);
    float *x = malloc((n + 1) * sizeof *x);
    uint64_t n_bytes = 0;
    ck_assert(x != NULL && bpi_block_bytes(type, n, &n_bytes));
    unsigned char *p = calloc(1, n_bytes + 1);
    ck_assert_ptr_nonnull(p);
    fill_values(x, n, FILL_HEAVY, 0.05, seed);
    if (info->can_encode) {
        ck_assert_int_eq(bpi_block_encode(type, x, n, NULL, p), BP_OK);
    } else if (type == BP_GGUF_F64) {
        for (uint64_t i = 0; i < n; ++i) {
            double v = (double)x[i];
            memcpy(p + 8 * i, &v, sizeof v);
        }
    } else {
        /* Small bytes make no NaN of any scale, wherever the format keeps it. */
        struct bpi_rng rng;
        bpi_rng_seed(&rng, seed);
        for (uint64_t i = 0; i < n_bytes; ++i) p[i] = (unsigned char)(bpi_rng_u64(&rng) & 0x3b);
    }
    free(x);
    *out_bytes = n_bytes;
    return p;
}

/* Writes a source of tensors (ending with a NULL name) with a few keys and opens it. */
static inline struct bpi_gguf *make_source(const char *path, const struct src_tensor *t,
                                           uint64_t seed)
{
    struct bp_error err = BP_ERROR_INIT;
    struct bpi_gguf_writer *w = NULL;
    struct bpi_gguf *g = NULL;
    void *data[64] = {NULL};
    ck_assert_int_eq(bpi_gguf_writer_create(&w, &err), BP_OK);
    (void)bpi_gguf_put_str(w, "general.architecture", "test", 4);
    (void)bpi_gguf_put_u32(w, "general.file_type", 32);
    (void)bpi_gguf_put_str(w, "some.unknown\xff.key", "\0\x80\xff", 3);
    (void)bpi_gguf_put_u32(w, "split.no", 0);
    (void)bpi_gguf_put_u32(w, "split.count", 1);
    (void)bpi_gguf_put_f32(w, "some.number", 0.1f);
    for (size_t i = 0; t[i].name != NULL; ++i) {
        uint64_t n_bytes = 0;
        ck_assert_uint_lt(i, BPI_ARRAY_LEN(data));
        data[i] = make_blocks(t[i].type, count_values(t[i].ne, t[i].n_dim), seed + i, &n_bytes);
        (void)bpi_gguf_put_tensor(w, t[i].name, t[i].type, t[i].n_dim, t[i].ne, data[i], n_bytes);
    }
    ck_assert_msg(bpi_gguf_writer_save(w, path, &err) == BP_OK, "%s", err.msg);
    bpi_gguf_writer_destroy(w);
    for (size_t i = 0; i < BPI_ARRAY_LEN(data); ++i) free(data[i]);
    ck_assert_msg(bpi_gguf_open(path, &g, &err) == BP_OK, "%s", err.msg);
    return g;
}

static inline void plan_for(const struct bpi_gguf *g, const char *type, struct bpi_quantize_plan *p)
{
    struct bp_error err = BP_ERROR_INIT;
    ck_assert_ptr_nonnull(bpi_quantize_target(type));
    ck_assert_msg(bpi_quantize_plan(g, bpi_quantize_target(type), p, &err) == BP_OK, "%s", err.msg);
}

/* Plans and writes with `threads`; the file is opened again for the caller. */
static inline struct bpi_gguf *quantized(const struct bpi_gguf *g, const char *type,
                                         const char *path, uint32_t threads)
{
    struct bp_error err = BP_ERROR_INIT;
    struct bpi_quantize_plan p;
    struct bpi_quantize_job job = {0};
    struct bpi_gguf *out = NULL;
    plan_for(g, type, &p);
    if (threads > 0) ck_assert_int_eq(bpi_pool_create(threads, &job.pool, &err), BP_OK);
    ck_assert_msg(bpi_quantize_write(&p, path, &job, &err) == BP_OK, "%s", err.msg);
    bpi_pool_destroy(job.pool);
    ck_assert_msg(bpi_gguf_open(path, &out, &err) == BP_OK, "%s", err.msg);
    ck_assert_uint_eq(bpi_gguf_shard_bytes(out, 0), p.file_bytes);
    bpi_quantize_plan_free(&p);
    return out;
}

static inline int run_quantize_cases(const char *name, void (*add)(TCase *), double timeout)
{
    Suite *s = suite_create(name);
    TCase *tc = tcase_create(name);
    tcase_set_timeout(tc, timeout);
    tcase_add_checked_fixture(tc, folder_begin, folder_end);
    add(tc);
    suite_add_tcase(s, tc);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

#endif
