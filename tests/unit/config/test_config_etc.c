/* test_config_etc.c - etc/ against the table: backplane.ini is what print_default prints, byte for byte,
 * and reads back as all defaults; every profile loads, and every example of docs/configuration.md.
 * With --write it writes etc/backplane.ini instead (scripts/update-etc calls it so).
 * SPDX-License-Identifier: MIT */
#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include "unit/config/config_test.h"

#define ETC_INI BP_SOURCE_DIR "/etc/backplane.ini"
#define PROFILES BP_SOURCE_DIR "/etc/profiles"

static struct bpi_buf printed(void)
{
    struct bpi_buf b = {0};
    bpi_config_print_default(&b);
    ck_assert(!b.failed);
    ck_assert_uint_gt(b.len, 1000);
    return b;
}

START_TEST(file_is_in_step)
{
    struct bpi_buf b = printed();
    struct bp_error err = BP_ERROR_INIT;
    char *text = NULL;
    size_t n = 0;
    int32_t rc = bpi_file_read(ETC_INI, BPI_CONFIG_MAX_BYTES, &text, &n, &err);
    ck_assert_msg(rc == BP_OK, "%s: %s; run scripts/update-etc", err.where, err.msg);
    size_t same = 0, line = 1;
    while (same < n && same < b.len && text[same] == b.data[same]) line += text[same++] == '\n';
    ck_assert_msg(
        n == b.len && same == n,
        "etc/backplane.ini differs from the key table in line %zu; run scripts/update-etc", line);
    bpi_free(text);
    bpi_buf_free(&b);
}
END_TEST

START_TEST(reads_back_as_defaults)
{
    struct bpi_buf b = printed();
    struct bpi_config *c = new_config();
    size_t n_keys;
    const struct bpi_config_key *keys = bpi_config_keys(&n_keys);
    load_ok(c, b.data);
    struct listing l = list_all(c);
    ck_assert_uint_eq(l.n, n_keys);
    ck_assert_uint_eq(l.n_not_default, 0);
    ck_assert_ptr_null(strstr(l.text.data, "(default)")); /* every key is really in the file */
    for (size_t i = 0; i < n_keys; ++i)
        ck_assert(strncmp(bpi_config_origin(c, keys[i].section, keys[i].key), "t.ini:", 6) == 0);
    bpi_buf_free(&l.text);
    bpi_config_destroy(c);
    for (const char *s = b.data; *s != '\0'; s += strcspn(s, "\n"), s += *s == '\n')
        ck_assert_msg(strcspn(s, "\n") <= 100, "too wide: %.60s", s);
    bpi_buf_free(&b);
}
END_TEST

START_TEST(profiles_load)
{
    DIR *folder = opendir(PROFILES);
    size_t n = 0;
    ck_assert_ptr_nonnull(folder);
    for (struct dirent *e; (e = readdir(folder)) != NULL;) {
        size_t len = strlen(e->d_name);
        char path[1024];
        struct bp_error err = BP_ERROR_INIT;
        if (len < 5 || strcmp(e->d_name + len - 4, ".ini") != 0) continue;
        struct bpi_config *c = new_config();
        snprintf(path, sizeof path, "%s/%s", PROFILES, e->d_name);
        int32_t rc = bpi_config_load(c, path, &err);
        ck_assert_msg(rc == BP_OK, "%s: %s", err.where, err.msg);
        ck_assert_msg(bpi_config_check(c, &err) == BP_OK, "%s: %s", err.where, err.msg);
        if (strcmp(e->d_name, "cpu.ini") == 0) {
            ck_assert_str_eq(bpi_config_str(c, "engine", "device"), "cpu");
            ck_assert_int_eq(bpi_config_int(c, "parallel", "tp"), 1);
            ++n;
        }
        bpi_config_destroy(c);
    }
    closedir(folder);
    ck_assert_uint_eq(n, 1);
}
END_TEST

/* Every fenced ini block of the page for users is a file that loads. */
START_TEST(documented_examples_load)
{
    struct bp_error err = BP_ERROR_INIT;
    char *text = NULL;
    size_t n = 0, n_blocks = 0;
    int32_t rc = bpi_file_read(BP_SOURCE_DIR "/docs/configuration.md", 1 << 20, &text, &n, &err);
    ck_assert_msg(rc == BP_OK, "%s: %s", err.where, err.msg);
    for (char *at = text; (at = strstr(at, "```ini\n")) != NULL; ++n_blocks) {
        at += strlen("```ini\n");
        char *end = strstr(at, "```");
        ck_assert_ptr_nonnull(end);
        struct bpi_config *c = new_config();
        rc = bpi_config_load_text(c, at, (size_t)(end - at), "docs/configuration.md", &err);
        ck_assert_msg(rc == BP_OK, "%s: %s", err.where, err.msg);
        if (strstr(at, "mla.decode@layers=1 = attn_triton_like") != NULL && n_blocks == 1) {
            ck_assert_str_eq(bpi_config_slot(c, "mla.decode", 1), "attn_triton_like");
            ck_assert_str_eq(bpi_config_slot(c, "mla.decode", 2), "ref");
            set_ok(c, "slots.mla.decode=other");
            ck_assert_str_eq(bpi_config_slot(c, "mla.decode", 2), "ref");
            ck_assert_str_eq(bpi_config_slot(c, "mla.decode", 3), "other");
        }
        bpi_config_destroy(c);
        at = end + 3;
    }
    ck_assert_uint_ge(n_blocks, 4);
    bpi_free(text);
}
END_TEST

static int write_etc(void)
{
    struct bpi_buf b = {0};
    struct bp_error err = BP_ERROR_INIT;
    bpi_config_print_default(&b);
    int32_t rc = b.failed ? bpi_fail_nomem(&err, "config", b.len)
                          : bpi_file_write(ETC_INI, b.data, b.len, &err);
    bpi_buf_free(&b);
    if (rc != BP_OK) fprintf(stderr, "%s: %s\n", err.where, err.msg);
    return rc == BP_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--write") == 0) return write_etc();
    Suite *suite = suite_create("config_etc");
    TCase *tc = tcase_create("etc");
    tcase_add_test(tc, file_is_in_step);
    tcase_add_test(tc, reads_back_as_defaults);
    tcase_add_test(tc, profiles_load);
    tcase_add_test(tc, documented_examples_load);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
