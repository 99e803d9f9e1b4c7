/* test_config_load.c - good INIs and good -s: syntax, comments, long lines, layers, wrappers, plugins,
 * origins, the list of everything. Not here: bad ones (test_config_hostile.c). SPDX-License-Identifier: MIT */
#include <check.h>
#include <stdio.h>
#include "unit/config/config_test.h"

START_TEST(values_and_origins)
{
    struct bpi_config *c = new_config();
    load_ok(
        c, "[engine]\nctx = 8192\nmmap=false\n\n[kv]\n  dtype   =   bf16  \n[sample]\ntemp=0.25\n");
    ck_assert_int_eq(bpi_config_int(c, "engine", "ctx"), 8192);
    ck_assert(!bpi_config_bool(c, "engine", "mmap"));
    ck_assert_str_eq(bpi_config_str(c, "kv", "dtype"), "bf16");
    ck_assert(bpi_config_float(c, "sample", "temp") == 0.25);
    ck_assert_str_eq(bpi_config_origin(c, "engine", "ctx"), "t.ini:2");
    ck_assert_str_eq(bpi_config_origin(c, "kv", "dtype"), "t.ini:6");
    ck_assert_str_eq(bpi_config_origin(c, "kv", "block"), "default");
    /* A later file covers an earlier one, -s covers both, the rest stays. */
    load_ok(c, "# second\n[kv]\ndtype=f16\n");
    ck_assert_str_eq(bpi_config_str(c, "kv", "dtype"), "f16");
    ck_assert_str_eq(bpi_config_origin(c, "kv", "dtype"), "t.ini:3");
    set_ok(c, "kv.dtype=f32");
    ck_assert_str_eq(bpi_config_str(c, "kv", "dtype"), "f32");
    ck_assert_str_eq(bpi_config_origin(c, "kv", "dtype"), "-s");
    ck_assert_int_eq(bpi_config_int(c, "engine", "ctx"), 8192);
    bpi_config_destroy(c);
    bpi_config_destroy(NULL);
}
END_TEST

/* Value of [plugin.x] k for a line, as written and again pushed beyond inih's 200-byte buffer by blanks:
 * the two ways of reading a value must agree. */
static void same_short_and_long(const char *line, const char *want)
{
    char text[1024];
    for (int pad = 0; pad < 2; ++pad) {
        struct bpi_config *c = new_config();
        size_t before = strcspn(line, "=:") + 1;
        snprintf(text, sizeof text, "[plugin.x]\n%.*s%*s%s\nafter = 1\n", (int)before, line,
                 pad * 400, "", line + before);
        load_ok(c, text);
        ck_assert_msg(strcmp(bpi_config_plugin(c, "x", "k"), want) == 0, "%s gave <%s>, pad %d",
                      line, bpi_config_plugin(c, "x", "k"), pad);
        ck_assert_str_eq(bpi_config_plugin(c, "x", "after"), "1");
        bpi_config_destroy(c);
    }
}

START_TEST(comments_and_separators)
{
    same_short_and_long("k = v", "v");
    same_short_and_long("k: v", "v");
    same_short_and_long("  k = v ; said later", "v");
    same_short_and_long("k = v\t; said later", "v");
    same_short_and_long("k = v;w", "v;w");
    same_short_and_long("k = v # w", "v # w");
    same_short_and_long("k = a = b : c", "a = b : c");
    same_short_and_long("k = a ; b ; c", "a");
    same_short_and_long("k = ; all comment", "");
    same_short_and_long("k =", "");
    same_short_and_long("k = \t x y \t ", "x y");
    same_short_and_long("k = \"q ; r\"", "\"q");
    same_short_and_long("k = \xc3\xa4\xf0\x9f\xa6\x8a", "\xc3\xa4\xf0\x9f\xa6\x8a");
    struct bpi_config *c = new_config();
    load_ok(c, "; one\n# two\n   # three\n\t;four\n[kv] ; five\nblock=32 ;six\n[engine]# "
               "seven\nctx=9\n[sample]\t\n");
    ck_assert_int_eq(bpi_config_int(c, "kv", "block"), 32);
    ck_assert_int_eq(bpi_config_int(c, "engine", "ctx"), 9);
    bpi_config_destroy(c);
}
END_TEST

START_TEST(line_ends_and_marks)
{
    struct bpi_config *c = new_config();
    load_ok(c, "\xef\xbb\xbf[kv]\r\nblock=32\r\n\r\ndtype = f32 ; c\r\n");
    ck_assert_int_eq(bpi_config_int(c, "kv", "block"), 32);
    ck_assert_str_eq(bpi_config_str(c, "kv", "dtype"), "f32");
    ck_assert_str_eq(bpi_config_origin(c, "kv", "dtype"), "t.ini:4");
    load_ok(c, "[kv]\nblock=64"); /* no newline at the end */
    ck_assert_int_eq(bpi_config_int(c, "kv", "block"), 64);
    load_ok(c, "");
    load_ok(c, "\xef\xbb\xbf");
    load_ok(c, "\n\n\n");
    /* A blank in front makes no continuation of the line above. */
    load_ok(c, "[kv]\nblock = 128\n  dtype = f16\n");
    ck_assert_int_eq(bpi_config_int(c, "kv", "block"), 128);
    ck_assert_str_eq(bpi_config_str(c, "kv", "dtype"), "f16");
    bpi_config_destroy(c);
}
END_TEST

START_TEST(long_lines)
{
    struct bpi_config *c = new_config();
    char path[4001], text[5000];
    memset(path, 'p', sizeof path - 1);
    path[sizeof path - 1] = '\0';
    for (size_t n = 150; n <= 4000;
         n += n < 260 ? 1 : 187) { /* across inih's limit in single steps */
        snprintf(text, sizeof text, "[engine]\nplugin_path = %s%s ; note\n[kv]\nblock=32\n",
                 n % 2 == 0 ? "/" : ":", path + sizeof path - n);
        load_ok(c, text);
        ck_assert_uint_eq(strlen(bpi_config_str(c, "engine", "plugin_path")), n);
        ck_assert_int_eq(bpi_config_str(c, "engine", "plugin_path")[0], n % 2 == 0 ? '/' : ':');
        ck_assert_str_eq(bpi_config_origin(c, "engine", "plugin_path"), "t.ini:2");
        ck_assert_str_eq(bpi_config_origin(c, "kv", "block"), "t.ini:4");
    }
    /* Lines of exactly the largest size: a comment, a header and a value, each padded with blanks. */
    char *lines = malloc(3 * 4097 + 16);
    ck_assert_ptr_nonnull(lines);
    sprintf(lines, "#%4095s\n[kv]%4090s;x\nblock=128%4085s;y\n", "", " ", " ");
    ck_assert_uint_eq(strlen(lines), 3 * 4097);
    load_ok(c, lines);
    ck_assert_int_eq(bpi_config_int(c, "kv", "block"), 128);
    free(lines);
    bpi_config_destroy(c);
}
END_TEST

START_TEST(command_line)
{
    struct bpi_config *c = new_config();
    set_ok(c, "slots.mla.decode=a, b");
    ck_assert_str_eq(bpi_config_slot(c, "mla.decode", -1), "a, b");
    set_ok(c, "plugin.ref.round=bf16");
    ck_assert_str_eq(bpi_config_str(c, "plugin.ref", "round"), "bf16");
    set_ok(c, "  engine.plugin_path =  /a b:/c = d ; e # f  ");
    ck_assert_str_eq(bpi_config_str(c, "engine", "plugin_path"), "/a b:/c = d ; e # f");
    set_ok(c, "plugin.x.a.b=1=2");
    ck_assert_str_eq(bpi_config_plugin(c, "x", "a.b"), "1=2");
    set_ok(c, "slots.mla.decode@layers=3=z");
    ck_assert_str_eq(bpi_config_slot(c, "mla.decode", 3), "z");
    set_ok(c, "wrap.moe@layers=1-2=trace");
    ck_assert_str_eq(bpi_config_wrap(c, "moe", 2), "trace");
    /* The same key may come again; the last one counts. */
    for (int i = 0; i < 5; ++i) {
        set_ok(c, "kv.block=32");
        set_ok(c, "kv.block=16");
    }
    ck_assert_int_eq(bpi_config_int(c, "kv", "block"), 16);
    set_ok(c, "plugin.x.empty=");
    ck_assert_str_eq(bpi_config_plugin(c, "x", "empty"), "");
    bpi_config_destroy(c);
}
END_TEST

START_TEST(layers)
{
    struct bpi_config *c = new_config();
    ck_assert_str_eq(bpi_config_slot(c, "mla.decode", 5), "auto");
    load_ok(c, "[slots]\nmla.decode@layers=0-9 = wide\nmla.decode@layers = 2-4 = "
               "mid\nmla.decode@layers=3=one\n"
               "mla.decode = plain\nmla.decode@layers=4-6 = mid2\nmoe@layers=4096 = last\n");
    static const struct {
        int32_t layer;
        const char *want;
    } cases[] = {{-1, "plain"}, {0, "wide"}, {2, "mid"},  {3, "one"},    {4, "mid2"},
                 {6, "mid2"},   {7, "wide"}, {9, "wide"}, {10, "plain"}, {4096, "plain"}};
    for (size_t i = 0; i < BPI_ARRAY_LEN(cases); ++i)
        ck_assert_str_eq(bpi_config_slot(c, "mla.decode", cases[i].layer), cases[i].want);
    ck_assert_str_eq(bpi_config_slot(c, "moe", 4096), "last");
    ck_assert_str_eq(bpi_config_slot(c, "moe", 4095), "auto");
    ck_assert_str_eq(bpi_config_slot(c, "moe", -1), "auto");
    /* A plain entry from the command line does not cover a layer that the file singles out. */
    set_ok(c, "slots.mla.decode=cli");
    ck_assert_str_eq(bpi_config_slot(c, "mla.decode", 10), "cli");
    ck_assert_str_eq(bpi_config_slot(c, "mla.decode", 3), "one");
    set_ok(c, "slots.mla.decode@layers=3-3=cli3"); /* the same layers as `3` */
    ck_assert_str_eq(bpi_config_slot(c, "mla.decode", 3), "cli3");
    /* Other slots with the same beginning are other slots. */
    ck_assert_str_eq(bpi_config_slot(c, "mla.prefill", 3), "auto");
    bpi_config_destroy(c);
}
END_TEST

START_TEST(wrappers)
{
    struct bpi_config *c = new_config();
    ck_assert_str_eq(bpi_config_wrap(c, "mla.decode", 0), "");
    load_ok(c, "[wrap]\nmla.decode = trace, check\nmla.decode@layers=1 = check\nmoe=\n");
    ck_assert_str_eq(bpi_config_wrap(c, "mla.decode", 0), "trace, check");
    ck_assert_str_eq(bpi_config_wrap(c, "mla.decode", -1), "trace, check");
    ck_assert_str_eq(bpi_config_wrap(c, "mla.decode", 1), "check");
    ck_assert_str_eq(bpi_config_wrap(c, "moe", 1), "");
    ck_assert_str_eq(bpi_config_slot(c, "mla.decode", 1), "auto"); /* [slots] is not touched */
    set_ok(c, "wrap.mla.decode=");                                 /* takes them away */
    ck_assert_str_eq(bpi_config_wrap(c, "mla.decode", 0), "");
    bpi_config_destroy(c);
}
END_TEST

START_TEST(plugins)
{
    struct bpi_config *c = new_config();
    const char *key, *value;
    ck_assert_ptr_null(bpi_config_plugin_name_at(c, 0));
    ck_assert_str_eq(bpi_config_plugin(c, "ref", "round"), "none");
    load_ok(c, "[plugin.fast]\nfile = x.so\nsplits = 4\ntile=64\n[plugin.old-1]\nsplits = 2\n"
               "[plugin.fast]\nmore=1\n");
    set_ok(c, "plugin.fast.splits=8");
    ck_assert_str_eq(bpi_config_plugin(c, "fast", "file"), "x.so");
    ck_assert_str_eq(bpi_config_plugin(c, "fast", "splits"), "8");
    ck_assert_str_eq(bpi_config_plugin(c, "old-1", "splits"), "2");
    ck_assert_ptr_null(bpi_config_plugin(c, "fast", "nothing"));
    ck_assert_ptr_null(bpi_config_plugin(c, "nobody", "splits"));
    size_t n = 0, n_splits = 0;
    for (; bpi_config_plugin_key_at(c, "fast", n, &key, &value); ++n) {
        ck_assert_str_ne(key, "file");
        ck_assert_str_eq(value, bpi_config_plugin(c, "fast", key));
        n_splits += strcmp(key, "splits") == 0;
    }
    ck_assert_uint_eq(n, 3);
    ck_assert_uint_eq(n_splits, 1);
    ck_assert_str_eq(bpi_config_plugin_name_at(c, 0), "fast");
    ck_assert_str_eq(bpi_config_plugin_name_at(c, 1), "old-1");
    ck_assert_ptr_null(bpi_config_plugin_name_at(c, 2));
    /* ref: keys of the table, at their current values. */
    set_ok(c, "plugin.ref.round=f16");
    ck_assert(bpi_config_plugin_key_at(c, "ref", 0, &key, &value));
    ck_assert_str_eq(key, "round");
    ck_assert_str_eq(value, "f16");
    ck_assert(!bpi_config_plugin_key_at(c, "ref", 1, &key, &value));
    ck_assert_str_eq(bpi_config_plugin(c, "ref", "round"), "f16");
    bpi_config_destroy(c);
}
END_TEST

START_TEST(lists)
{
    char out[8];
    ck_assert(bpi_config_list_at(" a ,\tbb, ccc", 0, out, sizeof out));
    ck_assert_str_eq(out, "a");
    ck_assert(bpi_config_list_at(" a ,\tbb, ccc", 1, out, sizeof out));
    ck_assert_str_eq(out, "bb");
    ck_assert(bpi_config_list_at(" a ,\tbb, ccc ", 2, out, sizeof out));
    ck_assert_str_eq(out, "ccc");
    ck_assert(!bpi_config_list_at(" a ,\tbb, ccc", 3, out, sizeof out));
    ck_assert(!bpi_config_list_at("", 0, out, sizeof out));
    ck_assert(!bpi_config_list_at("  ", 0, out, sizeof out));
    ck_assert(bpi_config_list_at("1234567", 0, out, sizeof out));
    ck_assert(!bpi_config_list_at("12345678", 0, out, sizeof out));
    ck_assert(!bpi_config_list_at("a", 0, out, 0));
}
END_TEST

START_TEST(everything_in_order)
{
    struct bpi_config *c = new_config();
    size_t n_keys;
    bpi_config_keys(&n_keys);
    struct listing l = list_all(c);
    ck_assert_uint_eq(l.n, n_keys);
    ck_assert_uint_eq(l.n_table, n_keys);
    ck_assert_uint_eq(l.n_not_default, 0);
    ck_assert(strncmp(l.text.data, "engine.device=auto (default)\n", 29) == 0);
    bpi_buf_free(&l.text);
    load_ok(c, "[slots]\nmoe@layers=0-2=a\n[plugin.x]\nk=1\n[kv]\nblock=32\n[wrap]\nmoe=trace\n");
    set_ok(c, "plugin.x.k=2");
    set_ok(c, "slots.moe@layers=0-2=b");
    l = list_all(c);
    ck_assert_uint_eq(l.n, n_keys + 3);
    ck_assert_uint_eq(l.n_table, n_keys);
    ck_assert_ptr_nonnull(strstr(l.text.data, "\nkv.block=32 (t.ini:6)\n"));
    const char *tail = "wrap.moe=trace (t.ini:8)\nplugin.x.k=2 (-s)\nslots.moe@layers=0-2=b (-s)\n";
    ck_assert_uint_gt(l.text.len, strlen(tail));
    ck_assert_str_eq(l.text.data + l.text.len - strlen(tail), tail);
    bpi_buf_free(&l.text);
    bpi_config_destroy(c);
}
END_TEST

START_TEST(rules_across_keys)
{
    struct bpi_config *c = new_config();
    struct bp_error err = BP_ERROR_INIT;
    set_ok(c, "kv.block=1024"); /* half-made change: allowed until the check */
    ck_assert_int_eq(bpi_config_check(c, &err), BP_E_CONFIG);
    is_one_sentence(&err);
    ck_assert_ptr_nonnull(strstr(err.msg, "slab = 512 is no multiple of [kv] block = 1024 (-s)"));
    ck_assert_ptr_nonnull(strstr(err.msg, "slab = 1024"));
    set_ok(c, "engine.slab=2048");
    bpi_error_clear(&err);
    ck_assert_int_eq(bpi_config_check(c, &err), BP_OK);
    set_ok(c, "model.yarn_beta_fast=1"); /* Kimi-K2: both are 1 */
    set_ok(c, "model.yarn_beta_slow=1");
    ck_assert_int_eq(bpi_config_check(c, &err), BP_OK);
    load_ok(c, "[model]\nyarn_beta_slow = 2.5\n");
    ck_assert_int_eq(bpi_config_check(c, &err), BP_E_CONFIG);
    ck_assert_str_eq(err.where, "t.ini:2");
    ck_assert_ptr_nonnull(strstr(err.msg, "yarn_beta_slow = 2.5 is above yarn_beta_fast = 1 (-s)"));
    set_ok(c, "model.yarn_beta_fast=auto");
    ck_assert_int_eq(bpi_config_check(c, NULL), BP_OK);
    bpi_config_destroy(c);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("config_load");
    TCase *tc = tcase_create("load");
    tcase_add_test(tc, values_and_origins);
    tcase_add_test(tc, comments_and_separators);
    tcase_add_test(tc, line_ends_and_marks);
    tcase_add_test(tc, long_lines);
    tcase_add_test(tc, command_line);
    tcase_add_test(tc, layers);
    tcase_add_test(tc, wrappers);
    tcase_add_test(tc, plugins);
    tcase_add_test(tc, lists);
    tcase_add_test(tc, everything_in_order);
    tcase_add_test(tc, rules_across_keys);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
