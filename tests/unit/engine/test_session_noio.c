/* test_session_noio.c - every file operation of loading an INI, a model (one file or shards, mapped or read), its tokenizer
 * and a session and of one step fails once: an error with one sentence that names the file, nothing left open, and a
 * later attempt works. Signals and short reads change nothing at all.
 * Not here: files that are themselves wrong (tests/fault).
 * SPDX-License-Identifier: MIT */
#include "engine_fixture.h"
#include <dirent.h>
#include <errno.h>
#include <unistd.h>
#include "gguf/gguf.h"
#include "harness/io_fail.h"

enum { N_SHARDS = 3, N_IDS = 3 };
static char dir[64], ini[128], first_shard[128];

static void put_split_keys(struct bpi_gguf_writer *w, uint32_t no, uint64_t n_tensors)
{
    ck_assert_int_eq(bpi_gguf_put_u32(w, "split.no", no), BP_OK);
    ck_assert_int_eq(bpi_gguf_put_u32(w, "split.count", N_SHARDS), BP_OK);
    ck_assert_int_eq(bpi_gguf_put_u32(w, "split.tensors.count", (uint32_t)n_tensors), BP_OK);
}

static void write_shards(void)
{
    struct bpi_gguf *g = NULL;
    struct bp_error err = BP_ERROR_INIT;
    must(bpi_gguf_open(ZOO("zoo-v3"), &g, &err), &err);
    uint64_t n = bpi_gguf_n_tensors(g);
    for (uint32_t no = 0; no < N_SHARDS; ++no) {
        struct bpi_gguf_writer *w = NULL;
        char path[128];
        (void)snprintf(path, sizeof path, "%s/m-%05u-of-%05u.gguf", dir, no + 1,
                       (unsigned)N_SHARDS);
        must(bpi_gguf_writer_create(&w, &err), &err);
        for (uint64_t i = 0; no == 0 && i < bpi_gguf_n_kv(g); ++i)
            ck_assert_int_eq(bpi_gguf_put_copy(w, bpi_gguf_kv_at(g, i)), BP_OK);
        put_split_keys(w, no, n);
        for (uint64_t i = no; i < n; i += N_SHARDS) {
            const struct bpi_gguf_tensor *t = bpi_gguf_tensor_at(g, i);
            ck_assert_int_eq(
                bpi_gguf_put_tensor(w, t->name, t->type, t->n_dim, t->ne, t->data, t->n_bytes),
                BP_OK);
        }
        must(bpi_gguf_writer_save(w, path, &err), &err);
        bpi_gguf_writer_destroy(w);
        if (no == 0) memcpy(first_shard, path, sizeof path);
    }
    bpi_gguf_close(g);
}

static void setup(void)
{
    (void)snprintf(dir, sizeof dir, "/tmp/bp_session_noio_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    (void)snprintf(ini, sizeof ini, "%s/settings.ini", dir);
    FILE *f = fopen(ini, "wb");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_gt(fprintf(f, "[engine]\nctx = 64\nbatch_tokens = 32\nthreads = 1\n"), 0);
    ck_assert_int_eq(fclose(f), 0);
    write_shards();
}

static void teardown(void)
{
    char path[128];
    for (unsigned no = 1; no <= N_SHARDS; ++no) {
        (void)snprintf(path, sizeof path, "%s/m-%05u-of-%05u.gguf", dir, no, (unsigned)N_SHARDS);
        ck_assert_int_eq(unlink(path), 0);
    }
    ck_assert_int_eq(unlink(ini), 0);
    ck_assert_int_eq(rmdir(dir), 0);
}

static int n_open_files(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    ck_assert_ptr_nonnull(d);
    while (readdir(d) != NULL) ++n;
    closedir(d);
    return n;
}

/* Mappings of files in our folder or of the zoo. */
static int n_mapped_files(void)
{
    char line[4500];
    int n = 0;
    FILE *f = fopen("/proc/self/maps", "r");
    ck_assert_ptr_nonnull(f);
    while (fgets(line, sizeof line, f) != NULL) n += strstr(line, ".gguf") != NULL;
    (void)fclose(f);
    return n;
}

struct way {
    bool shards;
    const char *setting; /* one more, or NULL */
};
static const struct way ways[] = {
    {false, NULL}, {false, "engine.mmap=false"}, {true, NULL}, {true, "engine.mmap=false"}};

/* From the INI to the logits of the last token, which land in *r. */
static int32_t load_and_step(const struct way *w, struct rig *r, struct bp_error *err)
{
    int32_t *ids = NULL;
    size_t n = 0;
    BP_TRY(plain_config(&r->cfg, err));
    BP_TRY(bp_config_load(r->cfg, ini, err));
    if (w->setting != NULL) BP_TRY(bp_config_set(r->cfg, w->setting, err));
    BP_TRY(bp_model_open(w->shards ? first_shard : ZOO("zoo-v3"), r->cfg, NULL, &r->model, err));
    r->n_vocab = bp_model_n_vocab(r->model);
    BP_TRY(bp_tokenize(r->model, "abc", N_IDS, 0, &ids, &n, err));
    int32_t rc = n == N_IDS ? bp_session_open(r->model, r->cfg, NULL, &r->s, err) : BP_E_INTERNAL;
    struct bp_step_item it = item(0, ids, (uint32_t)n, 1, 0);
    if (rc == BP_OK) rc = bp_session_step(r->s, &it, 1, err);
    bp_free(ids);
    return rc;
}

static void check_failure(int how, int32_t rc, const struct bp_error *err)
{
    const char *call = io_fail_call_name(io_fail_call());
    const char *slash = strrchr(io_fail_path(), '/');
    const char *file = slash != NULL ? slash + 1 : io_fail_path();
    if (how == EINTR || how == IO_SHORT) {
        ck_assert_msg(rc == BP_OK, "%s of %s with %d: %s: %s", call, file, how, err->where,
                      err->msg);
        return;
    }
    if (rc ==
        BP_OK) { /* what was only read needs no close, and a look at a file that is already mapped is a courtesy */
        /* Plugins in the build's folder that no slot names: `auto` passes over what cannot be read. */
        const size_t len = strlen(file);
        const bool plugin = len > 3 && strcmp(file + len - 3, ".so") == 0;
        ck_assert_msg(io_fail_call() == IO_CLOSE || io_fail_call() == IO_STAT || plugin,
                      "%s of %s with %d went unnoticed", call, file, how);
        return;
    }
    ck_assert_msg(err->code == rc && rc == BP_E_IO, "%s of %s with %d: %s: %s", call, file, how,
                  bp_status_name(rc), err->msg);
    ck_assert_msg(
        file[0] != '\0' && (strstr(err->where, file) != NULL || strstr(err->msg, file) != NULL),
        "%s of %s with %d: the file is not named: %s: %s", call, file, how, err->where, err->msg);
    ck_assert_msg(strlen(err->msg) > 15 && strchr(err->msg, '\n') == NULL, "%s", err->msg);
}

static void walk(const struct way *w, int how, const float *want)
{
    int files = n_open_files(), maps = n_mapped_files();
    uint64_t n = 1;
    for (;; ++n) {
        struct rig r = {0};
        struct bp_error err = BP_ERROR_INIT;
        io_fail_arm(n, how);
        int32_t rc = load_and_step(w, &r, &err);
        bool failed = io_fail_disarm();
        if (failed)
            check_failure(how, rc, &err);
        else
            ck_assert_msg(rc == BP_OK, "%s: %s", err.where, err.msg);
        if (rc == BP_OK) ck_assert(same_bits(bp_session_logits(r.s, 0, 0), want, r.n_vocab));
        rig_close(&r);
        ck_assert_int_eq(n_open_files(), files);
        ck_assert_int_eq(n_mapped_files(), maps);
        if (!failed) break;
    }
    printf("%s%s, fault %d: %llu operations\n", w->shards ? "shards" : "one file",
           w->setting != NULL ? ", read" : "", how, (unsigned long long)n - 1);
    if (how > 0 && how != EINTR) {
        ck_assert_uint_ge(io_fail_seen(IO_OPEN), w->shards ? 1 + N_SHARDS : 2);
        ck_assert_uint_ge(io_fail_seen(IO_FSTAT), 2);
        ck_assert_uint_ge(io_fail_seen(IO_MMAP), w->shards ? N_SHARDS : 1);
        ck_assert_uint_ge(io_fail_seen(IO_CLOSE), 2);
        ck_assert_uint_ge(io_fail_seen(IO_PREAD), w->setting != NULL ? 2 : 1);
    }
}

START_TEST(each_operation_fails)
{
    static const int faults[] = {EIO, ENOMEM, EINTR, IO_SHORT, IO_END};
    const struct way *w = &ways[_i];
    struct rig r = {0};
    struct bp_error err = BP_ERROR_INIT;
    must(load_and_step(w, &r, &err), &err);
    float *want = malloc(r.n_vocab * sizeof *want);
    ck_assert_ptr_nonnull(want);
    memcpy(want, bp_session_logits(r.s, 0, 0), r.n_vocab * sizeof *want);
    rig_close(&r);
    for (size_t k = 0; k < sizeof faults / sizeof faults[0]; ++k) walk(w, faults[k], want);
    free(want);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("session_noio");
    TCase *tc = tcase_create("noio");
    tcase_set_timeout(tc, 300);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, each_operation_fails, 0, (int)(sizeof ways / sizeof ways[0]));
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
