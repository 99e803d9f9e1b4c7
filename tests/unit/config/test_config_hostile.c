/* test_config_hostile.c - bad INIs and bad -s: each is refused with its code, its place and one sentence,
 * and leaves the values as they were. Random bytes too. Not here: good ones (test_config_load.c).
 * SPDX-License-Identifier: MIT */
#include <check.h>
#include <stdio.h>
#include <unistd.h>
#include "base/rng.h"
#include "unit/config/config_test.h"

#define NAME_50 "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwx"

struct bad {
    const char *text; /* of an INI, or of a -s */
    const char *where;
    const char *msg;
};

static const struct bad bad_inis[] = {
    // clang-format off
    /* forms */
    {"[kv\nblock=32\n",                     "t.ini:1", "[kv has no closing `]`"},
    {"[kv ; ]\n",                           "t.ini:1", "no closing `]`"},
    {"[kv] block=32\n",                     "t.ini:1", "block=32 after a section header"},
    {"[[kv]]\n",                            "t.ini:1", "] after a section header"},
    {"[kv]]\n",                             "t.ini:1", "after a section header"},
    {"[kv]\n\n; c\nblock 32\n",             "t.ini:4", "block 32 is neither [section] nor key = value"},
    {"[kv]\nblock ; = 32\n",                "t.ini:2", "is neither [section] nor key = value"},
    {"[kv]\n]\n",                           "t.ini:2", "] is neither"},
    {"block = 32\n[kv]\n",                  "t.ini:1", "block = 32 stands before the first [section]"},
    {"[kv]\n= 32\n",                        "t.ini:2", "a value in [kv] has no key"},
    {"[kv]\n = \n",                         "t.ini:2", "a value in [kv] has no key"},
    {"[kv]\n::\n",                          "t.ini:2", "has no key"},
    /* sections */
    {"[engin]\n",                           "t.ini:1", "unknown section [engin]; did you mean [engine]?"},
    {"[Engine]\nctx=1\n",                   "t.ini:1", "did you mean [engine]?"},
    {"[ kv ]\nblock=32\n",                  "t.ini:1", "did you mean [kv]?"},
    {"[zzzzzzzzzzzz]\n",                    "t.ini:1", "there are engine, slots, kv, parallel, model, sample, plugin.NAME and wrap"},
    {"[]\nk=1\n",                           "t.ini:1", "unknown section []"},
    {"[plugin]\nk=1\n",                     "t.ini:1", "[plugin] names no plugin; write [plugin.NAME]"},
    {"[plugin.]\nk=1\n",                    "t.ini:1", "names no plugin"},
    {"[plugin.a b]\n",                      "t.ini:1", "names no plugin"},
    {"[plugin.a.b]\n",                      "t.ini:1", "names no plugin"},
    {"[plugin.../../etc]\n",                "t.ini:1", "names no plugin"},
    {"[wrapp]\n",                           "t.ini:1", "did you mean [wrap]?"},
    /* keys */
    {"[kv]\ndtyp=f32\n",                    "t.ini:2", "unknown key dtyp in [kv]; did you mean dtype?"},
    {"[kv]\nDTYPE=f32\n",                   "t.ini:2", "did you mean dtype?"},
    {"[engine]\nbatch_token=1\n",           "t.ini:2", "did you mean batch_tokens?"},
    {"[engine]\ndtype=f32\n",               "t.ini:2", "unknown key dtype in [engine]; it belongs to [kv]"},
    {"[kv]\nzzzzzzzzz=1\n",                 "t.ini:2", "etc/backplane.ini lists every key"},
    {"[kv]\n\xef\xbb\xbf""block=1\n",       "t.ini:2", "unknown key"},
    {"[slots]\nmla.decod=ref\n",            "t.ini:2", "did you mean mla.decode?"},
    {"[slots]\nmla=ref\n",                  "t.ini:2", "unknown key mla in [slots]"},
    {"[wrap]\nmla.decodes=ref\n",           "t.ini:2", "did you mean mla.decode?"},
    {"[plugin.ref]\nrounds=bf16\n",         "t.ini:2", "did you mean round?"},
    {"[plugin.ref]\nfile=x.so\n",           "t.ini:2", "unknown key file in [plugin.ref]"},
    {"[plugin.x]\na b=1\n",                 "t.ini:2", "may only hold letters, digits"},
    {"[plugin.x]\nk@layers=1=2\n",          "t.ini:2", "may only hold letters, digits"},
    /* values */
    {"[kv]\ndtype=bf61\n",                  "t.ini:2", "[kv] dtype = bf61: expected one of auto, f32, bf16, f16; did you mean bf16?"},
    {"[kv]\ndtype=fp8_e4m3\n",              "t.ini:2", "expected one of auto, f32, bf16, f16"},
    {"[kv]\ndtype=F32\n",                   "t.ini:2", "did you mean f32?"},
    {"[kv]\ndtype=\"f32\"\n",               "t.ini:2", "expected one of"},
    {"[kv]\nblock=\"64\"\n",                "t.ini:2", "write values without quotes"},
    {"[kv]\nblock=64 # tokens\n",           "t.ini:2", "begins with a blank and `;`, not with `#`"},
    {"[kv]\nblock=64;tokens\n",             "t.ini:2", "[kv] block = 64;tokens: expected a power of two from 16 to 1024"},
    {"[kv]\nblock=\n",                      "t.ini:2", "[kv] block = (nothing): expected"},
    {"[kv]\nblock=0\n",                     "t.ini:2", "expected a power of two"},
    {"[kv]\nblock=-64\n",                   "t.ini:2", "expected a power of two"},
    {"[kv]\nblock=64.0\n",                  "t.ini:2", "expected a power of two"},
    {"[kv]\nblock=99999999999999999999\n",  "t.ini:2", "expected a power of two"},
    {"[engine]\nctx=4194305\n",             "t.ini:2", "expected an integer from 1 to 4194304, or auto"},
    {"[engine]\nthreads=all\n",             "t.ini:2", "expected an integer from 1 to 1024, or auto"},
    {"[engine]\nmmap=maybe\n",              "t.ini:2", "expected true or false"},
    {"[engine]\ndevice=\n",                 "t.ini:2", "expected a text of 1 to 63 bytes"},
    {"[sample]\ntemp=nan\n",                "t.ini:2", "[sample] temp = nan: expected a number from 0 to 100"},
    {"[sample]\ntop_p=1.0001\n",            "t.ini:2", "expected a number from 0 to 1"},
    {"[sample]\ntemp=0,8\n",                "t.ini:2", "expected a number"},
    {"[model]\nindexer=of\n",               "t.ini:2", "expected one of auto, on, off"},
    {"[slots]\nmoe=\n",                     "t.ini:2", "expected a comma list of provider names"},
    {"[slots]\nmoe=a,,b\n",                 "t.ini:2", "expected a comma list"},
    {"[slots]\nmoe=a,\n",                   "t.ini:2", "expected a comma list"},
    {"[slots]\nmoe=a b\n",                  "t.ini:2", "[slots] moe = a b: expected a comma list"},
    {"[slots]\nmoe=../x.so\n",              "t.ini:2", "expected a comma list"},
    {"[wrap]\nmoe=trace,,check\n",          "t.ini:2", "[wrap] moe = trace,,check: expected a comma list"},
    /* layers */
    {"[slots]\nmoe@layers=3-1 = ref\n",     "t.ini:2", "a range A-B with A <= B <= 4096"},
    {"[slots]\nmoe@layers=0-4097 = ref\n",  "t.ini:2", "moe@layers=0-4097 = ref: expected one layer or a range"},
    {"[slots]\nmoe@layers=99999 = ref\n",   "t.ini:2", "expected one layer or a range"},
    {"[slots]\nmoe@layers=-1 = ref\n",      "t.ini:2", "expected one layer or a range"},
    {"[slots]\nmoe@layers=1- = ref\n",      "t.ini:2", "expected one layer or a range"},
    {"[slots]\nmoe@layers=1-2-3 = ref\n",   "t.ini:2", "expected one layer or a range"},
    {"[slots]\nmoe@layers=1,2 = ref\n",     "t.ini:2", "expected one layer or a range"},
    {"[slots]\nmoe@layers=a-b = ref\n",     "t.ini:2", "expected one layer or a range"},
    {"[slots]\nmoe@layers= = ref\n",        "t.ini:2", "expected one layer or a range"},
    {"[slots]\nmoe@layers=0-2\n",           "t.ini:2", "then = and names, as in moe@layers=0-2 = ref"},
    {"[slots]\nmoe@layers=0-2 =\n",         "t.ini:2", "[slots] moe = (nothing): expected a comma list"},
    {"[slots]\nmoe@layer=0-2 = ref\n",      "t.ini:2", "moe@layer in [slots]: expected @layers=A-B"},
    {"[slots]\nmoe@=0-2 = ref\n",           "t.ini:2", "expected @layers=A-B"},
    {"[slots]\n@layers=0-2 = ref\n",        "t.ini:2", "unknown key"},
    {"[slots]\nmo@layers=0-2 = ref\n",      "t.ini:2", "unknown key mo@layers"},
    {"[slots]\ndevice@layers=0 = ref\n",    "t.ini:2", "device in [slots] takes no @layers"},
    {"[wrap]\ncoll@layers=0 = trace\n",     "t.ini:2", "coll in [wrap] takes no @layers"},
    {"[kv]\ndtype@layers=0-2 = f32\n",      "t.ini:2", "unknown key dtype@layers in [kv]"},
    /* twice */
    {"[kv]\nblock=32\n\nblock=32\n",        "t.ini:4", "[kv] block is set twice in this file, first in line 2"},
    {"[kv]\nblock=32\n[engine]\n[kv]\nblock=64\n", "t.ini:5", "set twice in this file, first in line 2"},
    {"[slots]\nmoe@layers=1=a\nmoe@layers=1-1=b\n", "t.ini:3", "moe@layers=1 is set twice"},
    {"[plugin.x]\nk=1\nk=1\n",              "t.ini:3", "[plugin.x] k is set twice"},
    {"[wrap]\nmoe=a\nmoe=\n",               "t.ini:3", "[wrap] moe is set twice"},
    /* bytes */
    {"[kv]\nblock=32\rdtype=f32\n",         "t.ini:2", "a carriage return at column 9"},
    {"[kv]\rblock=32\r",                    "t.ini:1", "a carriage return at column 5"},
    {"[kv]\nblock=3\x01""2\n",              "t.ini:2", "control character 0x01 at column 8"},
    {"[kv]\n# \x1b[31m\n",                  "t.ini:2", "control character 0x1b"},
    {"[kv]\n; \x7f\n",                      "t.ini:2", "control character 0x7f"},
    {"[plugin.x]\nk=\xff\n",                "t.ini:2", "bytes that are not UTF-8"},
    {"[plugin.x]\nk=\xc3\n",                "t.ini:2", "bytes that are not UTF-8"},
    {"# caf\xe9\n",                         "t.ini:1", "bytes that are not UTF-8"},
    {"\xff\xfe[\n",                         "t.ini",   "UTF-16 text"},
    {"\xfe\xff[\n",                         "t.ini",   "UTF-16 text"},
    {"\x7f""ELF\x02\x01\x01",               "t.ini:1", "control character"},
    {"{\"kv\": {\"block\": 32}}\n",         "t.ini:1", "stands before the first [section]"},
    // clang-format on
};

static const struct bad bad_settings[] = {
    // clang-format off
    {"",                            NULL, "an empty setting has no `=`"},
    {"   ",                         NULL, "has no `=`"},
    {"kv.dtype",                    NULL, "kv.dtype has no `=`; write -s section.key=value"},
    {"=f32",                        NULL, "the setting has no key"},
    {"  = f32",                     NULL, "the setting has no key"},
    {"dtype=f32",                   NULL, "dtype lacks its section; write -s kv.dtype=VALUE"},
    {"zzz=1",                       NULL, "zzz is no section.key"},
    {"kv.=1",                       NULL, "a value in [kv] has no key"},
    {".dtype=f32",                  NULL, "unknown section"},
    {"kv.dtyp=f32",                 NULL, "did you mean dtype?"},
    {"kw.dtype=f32",                NULL, "unknown section [kw]; did you mean [kv]?"},
    {"kv.dtype=f8",                 NULL, "[kv] dtype = f8: expected one of"},
    {"kv.dtype==f32",               NULL, "[kv] dtype = =f32"},
    {"kv.dtype=",                   NULL, "[kv] dtype = (nothing)"},
    {"kv.block=64 ; c",             NULL, "[kv] block = 64 ; c: expected"},
    {"plugin.k=1",                  NULL, "[plugin] names no plugin"},
    {"plugin.a b.k=1",              NULL, "names no plugin"},
    {"plugin.ref.rond=f16",         NULL, "unknown key rond in [plugin.ref]; did you mean round?"},
    {"slots.mla.decod=ref",         NULL, "did you mean mla.decode?"},
    {"slots.mla.decode@layers=2-1=ref", NULL, "expected one layer or a range"},
    {"slots.mla.decode@layers=ref", NULL, "expected one layer or a range"},
    {"slots.mla.decode@x.y=ref",    NULL, "expected @layers=A-B"},
    {"wrap.nothing=trace",          NULL, "unknown key nothing in [wrap]"},
    {"kv.block=3\n2",               NULL, "control character 0x0a"},
    {"kv.block=3\xff",              NULL, "bytes that are not UTF-8"},
    // clang-format on
};

/* A config that is not at its defaults, so that "nothing changed" means something. */
static struct bpi_config *used_config(void)
{
    struct bpi_config *c = new_config();
    load_ok(c, "[kv]\nblock = 128\n[slots]\nmoe@layers=1=a\n[plugin.x]\nk=0\n");
    set_ok(c, "plugin.x.k=5");
    return c;
}

START_TEST(bad_ini)
{
    const struct bad *b = &bad_inis[_i];
    struct bpi_config *c = used_config();
    char text[4096];
    struct listing before = list_all(c), after;
    load_fails(c, b->text, strlen(b->text), BP_E_CONFIG, b->where, b->msg);
    after = list_all(c);
    ck_assert_str_eq(before.text.data, after.text.data);
    bpi_buf_free(&after.text);
    /* After good lines of every kind the same happens, and the good lines are taken back. */
    if (strchr(b->where, ':') != NULL && strncmp(b->text, "[", 1) == 0) {
        char where[32];
        snprintf(text, sizeof text, "[sample]\ntemp=0\n[parallel]\ntp=2\n[plugin.y]\nz=1\n%s",
                 b->text);
        snprintf(where, sizeof where, "t.ini:%d", atoi(strchr(b->where, ':') + 1) + 6);
        struct bp_error err = BP_ERROR_INIT;
        ck_assert_int_eq(bpi_config_load_text(c, text, strlen(text), "t.ini", &err), BP_E_CONFIG);
        ck_assert_str_eq(err.where, where);
        after = list_all(c);
        ck_assert_str_eq(before.text.data, after.text.data);
        bpi_buf_free(&after.text);
        ck_assert_ptr_null(bpi_config_plugin_name_at(c, 1));
    }
    /* No error struct: the same status. */
    ck_assert_int_eq(bpi_config_load_text(c, b->text, strlen(b->text), "t.ini", NULL), BP_E_CONFIG);
    bpi_buf_free(&before.text);
    bpi_config_destroy(c);
}
END_TEST

START_TEST(bad_setting)
{
    struct bpi_config *c = used_config();
    struct listing before = list_all(c), after;
    set_fails(c, bad_settings[_i].text, BP_E_CONFIG, bad_settings[_i].msg);
    after = list_all(c);
    ck_assert_str_eq(before.text.data, after.text.data);
    bpi_buf_free(&before.text);
    bpi_buf_free(&after.text);
    bpi_config_destroy(c);
}
END_TEST

START_TEST(nul_bytes)
{
    struct bpi_config *c = used_config();
    static const char text[] = "[kv]\nblock=32\n\0dtype=f32\n";
    load_fails(c, text, sizeof text - 1, BP_E_CONFIG, "t.ini", "byte 15 is NUL");
    load_fails(c, "\0", 1, BP_E_CONFIG, "t.ini", "byte 1 is NUL");
    ck_assert_int_eq(bpi_config_int(c, "kv", "block"), 128);
    bpi_config_destroy(c);
}
END_TEST

/* A text of n bytes of `fill`, with `head` written over its beginning. */
static char *big_text(size_t n, char fill, const char *head)
{
    char *text = malloc(n + 1);
    ck_assert_ptr_nonnull(text);
    memset(text, fill, n);
    memcpy(text, head, strlen(head));
    text[n] = '\0';
    return text;
}

START_TEST(limits)
{
    struct bpi_config *c = used_config();
    char *text = big_text(BPI_CONFIG_MAX_BYTES + 1, '\n', "");
    load_fails(c, text, BPI_CONFIG_MAX_BYTES + 1, BP_E_LIMIT, "t.ini",
               "1048577 bytes, more than the 1048576");
    ck_assert_int_eq(bpi_config_load_text(c, text, BPI_CONFIG_MAX_BYTES, "t.ini", NULL), BP_OK);
    memset(text, 'a', BPI_CONFIG_MAX_BYTES); /* one line of a megabyte */
    load_fails(c, text, BPI_CONFIG_MAX_BYTES, BP_E_LIMIT, "t.ini:1",
               "1048576 bytes, more than the 4096");
    memset(text, '=', BPI_CONFIG_MAX_BYTES);
    load_fails(c, text, 4096, BP_E_CONFIG, "t.ini:1", "stands before the first [section]");
    memset(text, '[', BPI_CONFIG_MAX_BYTES);
    load_fails(c, text, 4096, BP_E_CONFIG, "t.ini:1", "has no closing `]`");
    free(text);
    text = big_text(5 + 4097, 'x', "[kv]\n");
    load_fails(c, text, 5 + 4097, BP_E_LIMIT, "t.ini:2",
               "this line has 4097 bytes, more than the 4096");
    load_fails(c, text, 5 + 4096, BP_E_CONFIG, "t.ini:2", "is neither [section] nor key = value");
    memcpy(text + 5, "block=", 6);
    load_fails(c, text, 5 + 4096, BP_E_CONFIG, "t.ini:2", "[kv] block = xxxxx");
    memset(text + 5, '=', 4096);
    load_fails(c, text, 5 + 4096, BP_E_CONFIG, "t.ini:2", "a value in [kv] has no key");
    free(text);
    load_fails(c, "[" NAME_50 "]\n", 53, BP_E_LIMIT, "t.ini:1", "has 50 bytes, more than the 49");
    load_fails(c, "[plugin.x]\n" NAME_50 NAME_50 "abcdefghijklmnopqrstu=1\n", 135, BP_E_LIMIT,
               "t.ini:2", "has 121 bytes, more than the 120");
    load_ok(c, "[plugin.x]\n" NAME_50 NAME_50 "abcdefghijklmnopqrst=1\n");
    text = big_text(BPI_CONFIG_MAX_LINE + 1, 'v', "plugin.x.k=");
    set_fails(c, text, BP_E_LIMIT, "4097 bytes, more than the 4096");
    text[BPI_CONFIG_MAX_LINE] = '\0';
    set_ok(c, text);
    memset(text, 'k', BPI_CONFIG_MAX_LINE - 1);
    text[BPI_CONFIG_MAX_LINE - 1] = '=';
    set_fails(c, text, BP_E_CONFIG, "is no section.key");
    memcpy(text, "plugin.x.", 9);
    set_fails(c, text, BP_E_LIMIT, "bytes, more than the 120");
    memset(text, '.', BPI_CONFIG_MAX_LINE - 1);
    set_fails(c, text, BP_E_CONFIG, "unknown section");
    free(text);
    bpi_config_destroy(c);
}
END_TEST

START_TEST(too_many_keys)
{
    struct bpi_config *c = new_config();
    struct bp_error err = BP_ERROR_INIT;
    struct bpi_buf b = {0};
    const char *key, *value;
    char where[32];
    for (unsigned i = 0; i < BPI_CONFIG_MAX_KEYS; ++i)
        bpi_buf_printf(&b, "[plugin.p%u]\nk%u=1\n", i / 2, i);
    ck_assert(!b.failed);
    ck_assert_int_eq(bpi_config_load_text(c, b.data, b.len, "t.ini", &err), BP_OK);
    size_t n_names = 0, n_keys = 0;
    while (bpi_config_plugin_name_at(c, n_names) != NULL) ++n_names;
    ck_assert_uint_eq(n_names, BPI_CONFIG_MAX_KEYS / 2);
    while (bpi_config_plugin_key_at(c, "p7", n_keys, &key, &value)) ++n_keys;
    ck_assert_uint_eq(n_keys, 2);
    bpi_buf_puts(&b, "[plugin.q]\nlast=1\n");
    snprintf(where, sizeof where, "t.ini:%u", 2 * BPI_CONFIG_MAX_KEYS + 2);
    load_fails(c, b.data, b.len, BP_E_LIMIT, where, "sets more than the 4096 keys");
    b.len -= strlen("[plugin.q]\nlast=1\n");
    for (int i = 1; i < 4; ++i)
        ck_assert_int_eq(bpi_config_load_text(c, b.data, b.len, "t.ini", &err), BP_OK);
    set_fails(c, "kv.block=32", BP_E_LIMIT, "files and -s together set more than the 16384 keys");
    bpi_buf_free(&b);
    bpi_config_destroy(c);
}
END_TEST

START_TEST(bad_files)
{
    struct bpi_config *c = used_config();
    struct bp_error err = BP_ERROR_INIT;
    char folder[] = "/tmp/bp-config-XXXXXX", path[256];
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(bpi_config_load(c, folder, &err), BP_E_IO);
    ck_assert_ptr_nonnull(strstr(err.msg, "directory"));
    snprintf(path, sizeof path, "%s/none.ini", folder);
    bpi_error_clear(&err);
    ck_assert_int_eq(bpi_config_load(c, path, &err), BP_E_IO);
    ck_assert_str_eq(err.where, path);
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fputs("[kv]\nblok=32\n", f);
    fclose(f);
    bpi_error_clear(&err);
    ck_assert_int_eq(bpi_config_load(c, path, &err), BP_E_CONFIG);
    ck_assert_ptr_nonnull(strstr(err.where, "/none.ini:2"));
    f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(fseek(f, BPI_CONFIG_MAX_BYTES, SEEK_SET), 0);
    fputc('x', f);
    fclose(f);
    bpi_error_clear(&err);
    ck_assert_int_eq(bpi_config_load(c, path, &err), BP_E_LIMIT);
    f = fopen(path, "w"); /* an empty file changes nothing and is no error */
    ck_assert_ptr_nonnull(f);
    fclose(f);
    ck_assert_int_eq(bpi_config_load(c, path, NULL), BP_OK);
    ck_assert_int_eq(bpi_config_int(c, "kv", "block"), 128);
    unlink(path);
    rmdir(folder);
    bpi_config_destroy(c);
}
END_TEST

START_TEST(long_labels)
{
    struct bpi_config *c = new_config();
    struct bp_error err = BP_ERROR_INIT;
    char label[601], want[601 + 8];
    memset(label, 'd', sizeof label - 1);
    memcpy(label + sizeof label - 1 - 8, "/own.ini", 9);
    ck_assert_int_eq(bpi_config_load_text(c, "[kv]\nblok=1", 11, label, &err), BP_E_CONFIG);
    ck_assert_uint_eq(strlen(err.where), sizeof err.where - 1);
    ck_assert(strncmp(err.where, "...d", 4) == 0);
    ck_assert_str_eq(err.where + sizeof err.where - 1 - 10, "/own.ini:2");
    bpi_error_clear(&err);
    ck_assert_int_eq(bpi_config_load_text(c, "[kv]\nblock=16", 13, label, &err), BP_OK);
    snprintf(want, sizeof want, "%s:2", label);
    ck_assert_str_eq(bpi_config_origin(c, "kv", "block"), want);
    ck_assert_int_eq(bpi_config_load_text(c, "[kv]\nblock=32", 13, NULL, &err), BP_OK);
    ck_assert_str_eq(bpi_config_origin(c, "kv", "block"), "(text):2");
    bpi_config_destroy(c);
}
END_TEST

/* Random lines made of the alphabet that matters: nothing crashes, a refusal changes nothing, and what is
 * accepted is within its range. */
START_TEST(random_texts)
{
    static const char *const bits[] = {
        "[kv]",  "[slots]", "[plugin.x]", "[wrap]",   "[",   "]",    "=",   ":",
        ";",     " ;",      "#",          "\n",       "\n",  "\n",   "\r",  " ",
        "block", "dtype",   "moe",        "@layers=", "0-2", "64",   "f32", "auto",
        ",",     "k",       "\xc3",       "\xc3\xa4", "-",   "1024", "\t"};
    const uint64_t seed = 20240817;
    struct bpi_rng rng;
    size_t n_good = 0;
    bpi_rng_seed(&rng, seed);
    for (int round = 0; round < 20000; ++round) {
        char text[512];
        size_t n = 0, n_bits = 1 + bpi_rng_below(&rng, 24);
        for (size_t i = 0; i < n_bits; ++i) {
            const char *bit = bits[bpi_rng_below(&rng, BPI_ARRAY_LEN(bits))];
            memcpy(text + n, bit, strlen(bit));
            n += strlen(bit);
        }
        struct bpi_config *c = new_config();
        struct bp_error err = BP_ERROR_INIT;
        int32_t rc = bpi_config_load_text(c, text, n, "t.ini", &err);
        int64_t block = bpi_config_int(c, "kv", "block");
        ck_assert_msg(block >= 16 && block <= 1024, "seed %llu", (unsigned long long)seed);
        if (rc == BP_OK) {
            ++n_good;
        } else {
            struct listing l = list_all(c);
            ck_assert_msg(rc == BP_E_CONFIG, "seed %llu: %d", (unsigned long long)seed, rc);
            is_one_sentence(&err);
            ck_assert_uint_eq(l.n_not_default, 0);
            bpi_buf_free(&l.text);
        }
        bpi_config_destroy(c);
    }
    ck_assert_uint_gt(n_good, 100); /* some of them are good, so both sides were tried */
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("config_hostile");
    TCase *tc = tcase_create("hostile");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, bad_ini, 0, (int)BPI_ARRAY_LEN(bad_inis));
    tcase_add_loop_test(tc, bad_setting, 0, (int)BPI_ARRAY_LEN(bad_settings));
    tcase_add_test(tc, nul_bytes);
    tcase_add_test(tc, limits);
    tcase_add_test(tc, too_many_keys);
    tcase_add_test(tc, bad_files);
    tcase_add_test(tc, long_labels);
    tcase_add_test(tc, random_texts);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
