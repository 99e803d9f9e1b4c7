/* test_gguf_noio.c - every file operation of writing a GGUF file fails once: an error that names the file, the old file
 * whole, no temporary one, nothing left open; signals and short writes change nothing.
 * Not here: reading (test_session_noio.c), single functions of base (test_file_noio.c).
 * SPDX-License-Identifier: MIT */
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "gguf/gguf.h"
#include "harness/io_fail.h"

enum { N = 1001, OLD_BYTES = 30 };
static char dir[64];
static const char old[OLD_BYTES] = "what stood here before";
static float values[2][N];

static void setup(void)
{
    (void)snprintf(dir, sizeof dir, "/tmp/bp_gguf_noio_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    ck_assert_int_eq(chdir(dir), 0);
    for (int i = 0; i < N; ++i) {
        values[0][i] = (float)i;
        values[1][i] = (float)-i;
    }
}

static void teardown(void)
{
    ck_assert_int_eq(unlink("out.gguf"), 0);
    ck_assert_int_eq(chdir("/"), 0);
    ck_assert_int_eq(rmdir(dir), 0); /* fails if anything else is left in it */
}

static int n_entries(const char *folder)
{
    int n = 0;
    DIR *d = opendir(folder);
    ck_assert_ptr_nonnull(d);
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static void put_old(void)
{
    FILE *f = fopen("out.gguf", "wb");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(old, 1, OLD_BYTES, f), OLD_BYTES);
    ck_assert_int_eq(fclose(f), 0);
}

static bool is_old(void)
{
    char got[OLD_BYTES + 1];
    FILE *f = fopen("out.gguf", "rb");
    ck_assert_ptr_nonnull(f);
    size_t n = fread(got, 1, sizeof got, f);
    (void)fclose(f);
    return n == OLD_BYTES && memcmp(got, old, n) == 0;
}

static bool is_whole(void)
{
    struct bpi_gguf *g = NULL;
    bool ok = bpi_gguf_open("out.gguf", &g, NULL) == BP_OK && bpi_gguf_n_tensors(g) == 2;
    for (int i = 0; i < 2 && ok; ++i) {
        const struct bpi_gguf_tensor *t = bpi_gguf_tensor(g, i == 0 ? "a" : "b");
        ok = t != NULL && t->n_bytes == sizeof values[i] &&
             memcmp(t->data, values[i], t->n_bytes) == 0;
    }
    bpi_gguf_close(g);
    return ok;
}

static struct bpi_gguf_writer *new_writer(void)
{
    struct bpi_gguf_writer *w = NULL;
    const int64_t ne[1] = {N};
    ck_assert_int_eq(bpi_gguf_writer_create(&w, NULL), BP_OK);
    ck_assert_int_eq(bpi_gguf_put_str(w, "general.name", "noio", 4), BP_OK);
    ck_assert_int_eq(bpi_gguf_put_tensor(w, "a", BP_GGUF_F32, 1, ne, values[0], sizeof values[0]),
                     BP_OK);
    ck_assert_int_eq(bpi_gguf_put_tensor(w, "b", BP_GGUF_F32, 1, ne, values[1], sizeof values[1]),
                     BP_OK);
    return w;
}

static void check_outcome(int how, int32_t rc, const struct bp_error *err)
{
    const char *call = io_fail_call_name(io_fail_call());
    if (how == EINTR || how == IO_SHORT) {
        ck_assert_msg(rc == BP_OK, "%s with %d: %s", call, how, err->msg);
    } else if (rc == BP_OK) { /* a look at a path that the opening behind it judges again */
        ck_assert_msg(io_fail_call() == IO_STAT, "%s with %d went unnoticed", call, how);
    } else {
        ck_assert_msg(rc == BP_E_IO && strstr(err->where, "out.gguf") != NULL &&
                          err->native == how && strlen(err->msg) > 15 &&
                          strchr(err->msg, '\n') == NULL,
                      "%s with %d: %d, %s: %s", call, how, rc, err->where, err->msg);
    }
    ck_assert_msg(rc == BP_OK ? is_whole() : is_old(), "%s with %d: contents", call, how);
}

START_TEST(each_operation_fails)
{
    static const int faults[] = {EIO, ENOSPC, ENOMEM, EINTR, IO_SHORT};
    const int how = faults[_i], before = n_entries("/proc/self/fd");
    uint64_t n = 1;
    for (;; ++n) {
        struct bp_error err = BP_ERROR_INIT;
        struct bpi_gguf_writer *w = new_writer();
        put_old();
        io_fail_arm(n, how);
        int32_t rc = bpi_gguf_writer_save(w, "out.gguf", &err);
        bool failed = io_fail_disarm();
        ck_assert_int_eq(n_entries("."), 1);
        ck_assert_int_eq(n_entries("/proc/self/fd"), before);
        if (failed) {
            check_outcome(how, rc, &err);
            /* The same writer, again: what failed once is not remembered. */
            err = (struct bp_error)BP_ERROR_INIT;
            rc = bpi_gguf_writer_save(w, "out.gguf", &err);
        }
        ck_assert_msg(rc == BP_OK && is_whole(), "%s", err.msg);
        bpi_gguf_writer_destroy(w);
        if (!failed) break;
    }
    printf("fault %d: %llu operations\n", how, (unsigned long long)n - 1);
    ck_assert_uint_ge(n - 1, how == IO_SHORT ? 3 : 6);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("gguf_noio");
    TCase *t = tcase_create("noio");
    tcase_set_timeout(t, 120);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_loop_test(t, each_operation_fails, 0, 5);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
