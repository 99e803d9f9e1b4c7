/* test_base_file.c - reads, atomic writes, mappings, and what each of them refuses.
 * SPDX-License-Identifier: MIT */
#include "base/base.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[64];
static struct bp_error err;

static void setup(void)
{
    snprintf(dir, sizeof dir, "/tmp/bp_file_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    ck_assert_int_eq(chdir(dir), 0);
    err = (struct bp_error)BP_ERROR_INIT;
}

static void teardown(void)
{
    char command[96];
    ck_assert_int_eq(chdir("/"), 0);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    ck_assert_int_eq(system(command), 0);
}

static int n_entries(void)
{
    int n = 0;
    DIR *d = opendir(".");
    ck_assert_ptr_nonnull(d);
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) n += e->d_name[0] != '.';
    closedir(d);
    return n;
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

static void make_file(const char *path, const char *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(bytes, 1, n, f), n);
    ck_assert_int_eq(fclose(f), 0);
}

START_TEST(write_then_read_and_map)
{
    static char big[300000];
    for (size_t i = 0; i < sizeof big; ++i) big[i] = (char)(i * 7 + i / 253);
    ck_assert_int_eq(bpi_file_write("big", big, sizeof big, &err), BP_OK);
    char *data = NULL;
    size_t n = 0;
    ck_assert_int_eq(bpi_file_read("big", sizeof big, &data, &n, &err), BP_OK);
    ck_assert_uint_eq(n, sizeof big);
    ck_assert_mem_eq(data, big, sizeof big);
    ck_assert_uint_eq(data[n], 0);
    bpi_free(data);
    struct bpi_map m = {0};
    ck_assert_int_eq(bpi_map_open("big", &m, &err), BP_OK);
    ck_assert_uint_eq(m.n_bytes, sizeof big);
    ck_assert_mem_eq(m.data, big, sizeof big);
    /* Hints of any kind, also beyond the end, leave the bytes alone. */
    bpi_map_expect(&m, BPI_MAP_SCATTERED);
    bpi_map_want(&m, 1, 2);
    bpi_map_want(&m, sizeof big - 1, UINT64_MAX);
    bpi_map_want(&m, sizeof big, 1);
    bpi_map_want(&m, UINT64_MAX, UINT64_MAX);
    bpi_map_expect(&m, BPI_MAP_WHOLE);
    ck_assert_mem_eq(m.data, big, sizeof big);
    bpi_map_close(&m);
    ck_assert(m.data == NULL && m.n_bytes == 0);
    bpi_map_expect(&m, BPI_MAP_SCATTERED);
    bpi_map_want(&m, 0, 1);
    bpi_map_close(&m);
    ck_assert_int_eq(n_entries(), 1);
}
END_TEST

/* KiB of a mapping that are in memory; -1 where the system does not tell. */
static long resident_kib(const void *p)
{
    FILE *f = fopen("/proc/self/smaps", "r");
    char line[512], want[32];
    long kib = -1;
    bool here = false;
    if (f == NULL) return -1;
    snprintf(want, sizeof want, "%lx-", (unsigned long)(uintptr_t)p);
    while (kib < 0 && fgets(line, sizeof line, f) != NULL) {
        if (strncmp(line, want, strlen(want)) == 0) here = true;
        if (here && strncmp(line, "Rss:", 4) == 0) kib = strtol(line + 4, NULL, 10);
    }
    fclose(f);
    return kib;
}

/* Dropped pages leave memory, those only partly named stay, and what is read again is the file. */
START_TEST(map_drop)
{
    enum { N = 1 << 20 };
    static unsigned char bytes[N];
    struct bpi_map m = {0};
    for (size_t i = 0; i < N; ++i) bytes[i] = (unsigned char)(i * 7 + i / 251);
    ck_assert_int_eq(bpi_file_write("drop", bytes, N, &err), BP_OK);
    ck_assert_int_eq(bpi_map_open("drop", &m, &err), BP_OK);
    ck_assert_int_eq(memcmp(m.data, bytes, N), 0);
    const long before = resident_kib(m.data);
    bpi_map_drop(&m, 1, N - 2);
    const long after = resident_kib(m.data);
    if (before >= 0) {
        ck_assert_int_ge(before, N / 1024);
        ck_assert_int_gt(after, 0);
        ck_assert_int_lt(after, before / 2);
    }
    ck_assert_int_eq(memcmp(m.data, bytes, N), 0);
    bpi_map_drop(&m, N - 1, UINT64_MAX);
    bpi_map_drop(&m, UINT64_MAX, UINT64_MAX);
    bpi_map_drop(&m, N, 1);
    bpi_map_drop(&m, 5, 10);
    ck_assert_int_eq(memcmp(m.data, bytes, N), 0);
    bpi_map_close(&m);
    bpi_map_drop(&m, 0, 1);
}
END_TEST

START_TEST(empty_file)
{
    char *data = NULL;
    size_t n = 9;
    struct bpi_map m = {0};
    ck_assert_int_eq(bpi_file_write("empty", NULL, 0, &err), BP_OK);
    ck_assert_int_eq(bpi_file_read("empty", 10, &data, &n, &err), BP_OK);
    ck_assert(n == 0 && data[0] == '\0');
    bpi_free(data);
    ck_assert_int_eq(bpi_map_open("empty", &m, &err), BP_E_FORMAT);
    ck_assert_ptr_nonnull(strstr(err.msg, "empty"));
    ck_assert_str_eq(err.where, "empty");
    ck_assert_ptr_null(m.data);
}
END_TEST

START_TEST(read_limit)
{
    char *data = NULL;
    size_t n = 9;
    make_file("five", "12345", 5);
    ck_assert_int_eq(bpi_file_read("five", 4, &data, &n, &err), BP_E_LIMIT);
    ck_assert_ptr_nonnull(strstr(err.msg, "5 bytes"));
    ck_assert(data == NULL && n == 9);
    bpi_error_clear(&err);
    ck_assert_int_eq(bpi_file_read("five", 5, &data, &n, &err), BP_OK);
    bpi_free(data);
}
END_TEST

/* Each refusal has its own sentence, leaves the outputs alone and no file open. */
START_TEST(read_and_map_refuse)
{
    ck_assert_int_eq(mkdir("folder", 0700), 0);
    ck_assert_int_eq(mkfifo("pipe", 0600), 0);
    make_file("plain", "x", 1);
    static const struct {
        const char *path, *words;
        int native;
    } CASES[] = {{"folder", "is a directory", 0},
                 {"pipe", "device, pipe or socket", 0},
                 {"/dev/null", "device, pipe or socket", 0},
                 {"missing", "cannot be opened", ENOENT},
                 {"plain/below", "cannot be opened", ENOTDIR},
                 {"", "cannot be opened", ENOENT}};
    int before = n_open_files();
    for (size_t i = 0; i < BPI_ARRAY_LEN(CASES); ++i) {
        for (int way = 0; way < 2; ++way) {
            char *data = NULL;
            size_t n = 0;
            struct bpi_map m = {0};
            err = (struct bp_error)BP_ERROR_INIT;
            int32_t rc = way == 0 ? bpi_file_read(CASES[i].path, 1000, &data, &n, &err)
                                  : bpi_map_open(CASES[i].path, &m, &err);
            ck_assert_int_eq(rc, BP_E_IO);
            ck_assert_msg(strstr(err.msg, CASES[i].words) != NULL, "%s: %s", CASES[i].path,
                          err.msg);
            ck_assert_str_eq(err.where, CASES[i].path);
            ck_assert_int_eq(err.native, CASES[i].native);
            ck_assert(data == NULL && m.data == NULL);
        }
    }
    ck_assert_int_eq(n_open_files(), before);
    ck_assert_int_eq(bpi_map_open("missing", &(struct bpi_map){0}, NULL), BP_E_IO);
}
END_TEST

START_TEST(write_replaces_whole)
{
    make_file("f", "the old, longer content", 23);
    ck_assert_int_eq(bpi_file_write("f", "new", 3, &err), BP_OK);
    char *data = NULL;
    size_t n = 0;
    ck_assert_int_eq(bpi_file_read("f", 100, &data, &n, &err), BP_OK);
    ck_assert_str_eq(data, "new");
    bpi_free(data);
    ck_assert_int_eq(n_entries(), 1);
}
END_TEST

/* A reader that keeps opening the file while it is rewritten sees one of the two contents, never a mix or a part. */
START_TEST(readers_never_see_a_half)
{
    enum { BYTES = 200000 };
    static char a[BYTES], b[BYTES];
    memset(a, 'a', BYTES);
    memset(b, 'b', BYTES);
    ck_assert_int_eq(bpi_file_write("f", a, BYTES, &err), BP_OK);
    pid_t child = fork();
    ck_assert_int_ne(child, -1);
    if (child == 0) {
        for (int i = 0; i < 40; ++i) {
            if (bpi_file_write("f", i & 1 ? a : b, BYTES, NULL) != BP_OK) _exit(1);
        }
        _exit(0);
    }
    int status = 0, n_reads = 0;
    pid_t ended;
    do {
        ended = waitpid(child, &status, WNOHANG);
        char *data = NULL;
        size_t n = 0;
        ck_assert_int_eq(bpi_file_read("f", BYTES, &data, &n, &err), BP_OK);
        ck_assert_uint_eq(n, BYTES);
        ck_assert(memcmp(data, a, BYTES) == 0 || memcmp(data, b, BYTES) == 0);
        bpi_free(data);
        n_reads++;
    } while (ended == 0);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    ck_assert_int_ge(n_reads, 1);
    ck_assert_int_eq(n_entries(), 1);
}
END_TEST

/* The disk is full: a limit on the file size stands in for it. The old file stays, no temporary one does. */
START_TEST(failed_write_leaves_the_old_file)
{
    static char big[100000];
    make_file("f", "old", 3);
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit limit = {.rlim_cur = 4096, .rlim_max = 4096};
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    int before = n_open_files();
    ck_assert_int_eq(bpi_file_write("f", big, sizeof big, &err), BP_E_IO);
    ck_assert_int_eq(err.native, EFBIG);
    ck_assert_str_eq(err.where, "f");
    ck_assert_int_eq(n_open_files(), before);
    ck_assert_int_eq(n_entries(), 1);
    char *data = NULL;
    size_t n = 0;
    ck_assert_int_eq(bpi_file_read("f", 100, &data, &n, NULL), BP_OK);
    ck_assert_str_eq(data, "old");
    bpi_free(data);
    ck_assert_int_eq(bpi_file_write("g", big, sizeof big, NULL), BP_E_IO);
    ck_assert_int_eq(n_entries(), 1);
}
END_TEST

START_TEST(write_refuses)
{
    char left[64];
    ck_assert_int_eq(mkdir("folder", 0700), 0);
    ck_assert_int_eq(mkfifo("pipe", 0600), 0);
    ck_assert_int_eq(bpi_file_write("folder", "x", 1, &err), BP_E_IO);
    ck_assert_ptr_nonnull(strstr(err.msg, "a directory stands"));
    bpi_error_clear(&err);
    ck_assert_int_eq(bpi_file_write("pipe", "x", 1, &err), BP_E_IO);
    ck_assert_ptr_nonnull(strstr(err.msg, "a device, pipe or socket stands"));
    bpi_error_clear(&err);
    /* A link to a pipe is one too; neither may be replaced by a file, nor may anybody wait for a reader. */
    ck_assert_int_eq(symlink("pipe", "link"), 0);
    ck_assert_int_eq(bpi_file_write("link", "x", 1, &err), BP_E_IO);
    ck_assert_ptr_nonnull(strstr(err.msg, "a device, pipe or socket stands"));
    struct stat st;
    ck_assert(lstat("link", &st) == 0 && S_ISLNK(st.st_mode));
    ck_assert(stat("pipe", &st) == 0 && S_ISFIFO(st.st_mode));
    bpi_error_clear(&err);
    ck_assert_int_eq(bpi_file_write("nowhere/f", "x", 1, &err), BP_E_IO);
    ck_assert_int_eq(err.native, ENOENT);
    ck_assert_str_eq(err.where, "nowhere/f");
    bpi_error_clear(&err);
    /* A link that waits under the temporary name must not be followed. */
    make_file("victim", "safe", 4);
    snprintf(left, sizeof left, "f.tmp.%ld", (long)getpid());
    ck_assert_int_eq(symlink("victim", left), 0);
    ck_assert_int_eq(bpi_file_write("f", "x", 1, &err), BP_E_IO);
    ck_assert_ptr_nonnull(strstr(err.msg, "remove it"));
    ck_assert_str_eq(err.where, left);
    char *data = NULL;
    size_t n = 0;
    ck_assert_int_eq(bpi_file_read("victim", 100, &data, &n, NULL), BP_OK);
    ck_assert_str_eq(data, "safe");
    bpi_free(data);
    ck_assert_int_eq(n_entries(), 5);
}
END_TEST

/* A mapped file that changes: seen by the look at its length, refused by the reads; another file of that name is not it. */
START_TEST(files_that_change_while_mapped)
{
    struct bpi_map m = {0}, none = {0};
    struct bpi_input in = {NULL, -1};
    char got[4] = "";
    make_file("f", "0123456789", 10);
    ck_assert_int_eq(bpi_map_open("f", &m, &err), BP_OK);
    ck_assert_int_eq(bpi_map_check(&m, "f", &err), BP_OK);
    ck_assert_int_eq(bpi_map_check(&none, "f", &err), BP_OK);
    int before = n_open_files();
    ck_assert_int_eq(bpi_input_open(&m, "f", &in, &err), BP_OK);
    ck_assert_int_eq(bpi_input_read(&in, 6, got, 4, &err), BP_OK);
    ck_assert(memcmp(got, "6789", 4) == 0);
    ck_assert_int_eq(bpi_input_read(&in, 7, got, 4, &err), BP_E_IO); /* one byte too many */
    ck_assert(strstr(err.msg, "byte 10") != NULL);
    bpi_error_clear(&err);
    ck_assert_int_eq(truncate("f", 5), 0);
    ck_assert_int_eq(bpi_input_read(&in, 6, got, 4, &err), BP_E_IO);
    bpi_error_clear(&err);
    bpi_input_close(&in);
    bpi_input_close(&in); /* twice is harmless */
    ck_assert_int_eq(bpi_map_check(&m, "f", &err), BP_E_IO);
    ck_assert_str_eq(err.where, "f");
    ck_assert(strstr(err.msg, "10 bytes") != NULL && strstr(err.msg, "5 now") != NULL);
    bpi_error_clear(&err);
    ck_assert_int_eq(bpi_input_open(&m, "f", &in, &err), BP_E_IO);
    bpi_error_clear(&err);
    ck_assert_int_eq(remove("f"), 0);
    ck_assert_int_eq(bpi_map_check(&m, "f", &err), BP_OK); /* the mapping keeps it */
    ck_assert_int_eq(bpi_input_open(&m, "f", &in, &err), BP_E_IO);
    bpi_error_clear(&err);
    make_file("g", "0123456789", 10); /* never the inode of the old one, which the mapping holds */
    ck_assert_int_eq(rename("g", "f"), 0);
    ck_assert_int_eq(bpi_map_check(&m, "f", &err), BP_OK);
    ck_assert_int_eq(bpi_input_open(&m, "f", &in, &err), BP_E_IO);
    ck_assert_int_eq(n_open_files(), before);
    bpi_map_close(&m);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("file");
    TCase *t = tcase_create("file");
    tcase_set_timeout(t, 120);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, write_then_read_and_map);
    tcase_add_test(t, map_drop);
    tcase_add_test(t, empty_file);
    tcase_add_test(t, read_limit);
    tcase_add_test(t, read_and_map_refuse);
    tcase_add_test(t, write_replaces_whole);
    tcase_add_test(t, readers_never_see_a_half);
    tcase_add_test(t, failed_write_leaves_the_old_file);
    tcase_add_test(t, write_refuses);
    tcase_add_test(t, files_that_change_while_mapped);
    suite_add_tcase(s, t);
    SRunner *sr = srunner_create(s);
    srunner_run_all(sr, CK_NORMAL);
    int failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
