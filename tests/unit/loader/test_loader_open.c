/* test_loader_open.c - plugins in files: found by their notes, opened when a slot wants them, refused with a reason.
 * SPDX-License-Identifier: MIT */
#include "backplane/slot_coll.h"
#include "loader_files.h"

#include <locale.h>
#include <signal.h>

static const struct bp_coll_problem problem = {
    .h = BP_HDR(struct bp_coll_problem, max_elems), .world = 1, .dtype = BP_DT_F32, .max_elems = 8};

/* One choice for the coll slot. */
struct choice {
    struct bpi_candidate cands[24];
    size_t n, chosen;
    struct bp_op_ref op;
    struct bp_error err;
    int32_t rc;
};

static void choose(struct files *f, struct choice *c)
{
    memset(c, 0, sizeof *c);
    c->err = (struct bp_error)BP_ERROR_INIT;
    c->rc = bpi_loader_choose(f->s.loader, "coll", "bp.coll", -1, NULL, &problem, c->cands, 24,
                              &c->n, &c->chosen, &c->op, &c->err);
}

static bool has_run(const char *name)
{
    char variable[64];
    snprintf(variable, sizeof variable, "BP_TEST_RAN_%s", name);
    return getenv(variable) != NULL;
}

static void begin(struct files *f)
{
    memset(f, 0, sizeof *f);
    folder_make(f->folder, sizeof f->folder);
}

static void end(struct files *f)
{
    files_close(f);
    folder_remove(f->folder);
}

/* ---- finding ---- */

START_TEST(found_by_their_notes_without_running_code)
{
    struct files f;
    begin(&f);
    install(f.folder, "good", NULL);
    install(f.folder, "old_note", NULL);
    install(f.folder, "misspelt", NULL);
    install(f.folder, "no_note", NULL);
    install(f.folder, "no_note", "libhelper.so"); /* what plugins bring along is no plugin */
    install(f.folder, "no_entry", NULL);
    install(f.folder, "good_too", "strange-name.so"); /* a note is enough */
    install(f.folder, "says_no", "backplane-says_no.so.bak");
    files_open(&f, "", true);
    ck_assert_msg(f.rc == BP_OK, "%s", f.err.msg);
    ck_assert_uint_eq(bpi_loader_n_found(f.s.loader), 6);
    for (size_t i = 1; i < 6; ++i)
        ck_assert_str_lt(bpi_loader_found(f.s.loader, i - 1)->name,
                         bpi_loader_found(f.s.loader, i)->name);
    const struct bpi_found *good = found(&f, "good");
    ck_assert_uint_eq(good->state, BPI_FOUND_READY);
    ck_assert_str_eq(good->file.note.version, "1.2.3");
    ck_assert_str_eq(good->file.note.ifaces, "bp.coll");
    ck_assert_uint_eq(good->file.flags & (BPI_PF_NOTE | BPI_PF_ENTRY), BPI_PF_NOTE | BPI_PF_ENTRY);
    ck_assert_uint_eq(good->file.n_exports, 0);
    ck_assert_ptr_nonnull(strstr(good->file.needed, "libc.so"));
    ck_assert_uint_eq(found(&f, "good_too")->state, BPI_FOUND_READY);
    refused(&f, "old_note", BP_R_ABI, "ABI 0.99 and this engine 0.1");
    ck_assert_int_eq(found(&f, "old_note")->why.got, 99);
    ck_assert_int_eq(found(&f, "old_note")->why.want_hi, BP_ABI_MINOR);
    refused(&f, "misspelt", BP_R_ABI, "did you mean bp.quant?");
    refused(&f, "no_note", BP_R_LOAD, "no plugin note");
    refused(&f, "no_entry", BP_R_LOAD, BP_PLUGIN_ENTRY);
    ck_assert(!has_run("good") && !has_run("old_note") && !has_run("no_note"));
    end(&f);
}
END_TEST

START_TEST(folders_that_are_named_must_be_good)
{
    static const struct {
        const char *ini;
        const char *word;
    } bad[] = {
        {"[engine]\nplugin_path = plugins\n", "relative"},
        {"[engine]\nplugin_path = /nowhere/at/all\n", "/nowhere cannot be examined"},
        {"[engine]\nplugin_path = /tmp\n", "/tmp may be written by others"},
        {"[engine]\nplugin_path = /etc/passwd\n", "is no folder"},
    };
    struct files f;
    begin(&f);
    for (size_t i = 0; i < BPI_ARRAY_LEN(bad); ++i) {
        files_open(&f, bad[i].ini, true);
        ck_assert_int_eq(f.rc, BP_E_CONFIG);
        says(&f.err, bad[i].word);
        says(&f.err, "engine.plugin_path");
        files_close(&f);
    }
    install(f.folder, "good", NULL);
    ck_assert_int_eq(chmod(f.folder, 0777), 0);
    files_open(&f, "", true);
    ck_assert_int_eq(f.rc, BP_E_CONFIG);
    says(&f.err, "run: chmod go-w /");
    says(&f.err, f.folder);
    files_close(&f);
    files_open(&f, "", false); /* for a listing: there, and refused */
    ck_assert_int_eq(f.rc, BP_OK);
    refused(&f, "good", BP_R_LOAD, "everybody (mode 0777)");
    end(&f);
}
END_TEST

START_TEST(sections_name_files)
{
    struct files f;
    struct choice c;
    begin(&f);
    install(f.folder, "good", NULL);
    files_open(&f,
               "[plugin.one]\nfile = backplane-good.so\nnumber = 3\n"
               "[plugin.two]\nfile = %s/backplane-good.so\nnumber = 4\n"
               "[slots]\ncoll = two, one\n",
               true);
    ck_assert_msg(f.rc == BP_OK, "%s", f.err.msg);
    ck_assert_uint_eq(bpi_loader_n_found(f.s.loader), 2); /* and none under the note's own name */
    ck_assert_int_eq(bpi_loader_check_config(f.s.loader, NULL), BP_OK);
    choose(&f, &c);
    ck_assert_msg(c.rc == BP_OK, "%s", c.err.msg);
    ck_assert_str_eq(c.cands[c.chosen].provider, "two");
    ck_assert_int_eq(((const int64_t *)c.op.self)[1], 4); /* its own section, its own self */
    struct bp_op_ref other;
    ck_assert_int_eq(bpi_loader_op(f.s.loader, "one", "bp.coll", NULL, &other, NULL), BP_OK);
    ck_assert(other.self != c.op.self && other.vt == c.op.vt);
    ck_assert_int_eq(((const int64_t *)other.self)[1], 3);
    files_close(&f);
    files_open(&f, "[plugin.one]\nfile = backplane-god.so\n", true);
    ck_assert_int_eq(f.rc, BP_E_CONFIG);
    says(&f.err, "no file \"backplane-god.so\"");
    says(&f.err, f.folder);
    files_close(&f);
    files_open(&f, "[plugin.alpha]\nfile = backplane-good.so\n", true);
    ck_assert_int_eq(f.rc, BP_E_CONFIG);
    says(&f.err, "built in");
    files_close(&f);
    files_open(&f, "[plugin.auto]\nfile = backplane-good.so\n", true);
    ck_assert_int_eq(f.rc, BP_E_CONFIG);
    files_close(&f);
    files_open(&f, "[plugin.one]\nfile = sub/x.so\n[slots]\ncoll = one\n", true);
    ck_assert_int_eq(f.rc, BP_OK);
    refused(&f, "one", BP_R_LOAD, "relative");
    choose(&f, &c);
    ck_assert_int_eq(c.rc, BP_E_CONFIG);
    says(&c.err, "relative");
    end(&f);
}
END_TEST

START_TEST(one_name_one_file)
{
    struct files f;
    char second[300], text[900];
    begin(&f);
    install(f.folder, "good", NULL);
    install(f.folder, "good", "backplane-good-new.so");
    files_open(&f, "", true);
    ck_assert_uint_eq(bpi_loader_n_found(f.s.loader), 2);
    for (size_t i = 0; i < 2; ++i) {
        const struct bpi_found *one = bpi_loader_found(f.s.loader, i);
        ck_assert_uint_eq(one->state, BPI_FOUND_REFUSED); /* nothing says which is meant */
        ck_assert_ptr_nonnull(strstr(one->why.text, "in the same folder"));
    }
    files_close(&f);
    files_open(&f, "[plugin.good]\nfile = backplane-good-new.so\n", true);
    ck_assert_uint_eq(found(&f, "good")->state, BPI_FOUND_READY);
    ck_assert_ptr_nonnull(strstr(found(&f, "good")->path, "good-new"));
    ck_assert_uint_eq(bpi_loader_found(f.s.loader, 1)->shadowed, 1);
    files_close(&f);
    snprintf(second, sizeof second, "%s/second", f.folder);
    ck_assert_int_eq(mkdir(second, 0755), 0);
    install(second, "good_too", NULL);
    install(f.folder, "good_too", NULL);
    snprintf(text, sizeof text, "[engine]\nplugin_path = %s:%s\n", second, f.folder);
    files_open(&f, text, true);
    ck_assert_msg(f.rc == BP_OK, "%s", f.err.msg);
    ck_assert_uint_eq(found(&f, "good_too")->state, BPI_FOUND_READY); /* the first folder counts */
    ck_assert_ptr_nonnull(strstr(found(&f, "good_too")->path, "/second/"));
    end(&f);
}
END_TEST

START_TEST(a_file_cannot_take_a_built_in_name)
{
    struct files f;
    begin(&f);
    install(f.folder, "no_note", "backplane-alpha.so"); /* named after its file */
    files_open(&f, "", true);
    ck_assert_int_eq(f.rc, BP_OK);
    ck_assert_uint_eq(found(&f, "alpha")->state, BPI_FOUND_REFUSED);
    struct bp_op_ref op;
    ck_assert_int_eq(bpi_loader_op(f.s.loader, "alpha", "bp.quant", NULL, &op, NULL), BP_OK);
    ck_assert(op.self == &fakes[0]);
    end(&f);
}
END_TEST

/* ---- opening ---- */

START_TEST(opened_when_a_slot_wants_it)
{
    struct files f;
    struct choice c;
    struct bp_error err = BP_ERROR_INIT;
    begin(&f);
    install(f.folder, "good", NULL);
    install(f.folder, "good_too", NULL);
    files_open(&f, "", true);
    ck_assert_uint_eq(bpi_loader_n_plugins(f.s.loader), 2);
    choose(&f, &c); /* auto: by name */
    ck_assert_msg(c.rc == BP_OK, "%s", c.err.msg);
    ck_assert_uint_eq(c.n, 1);
    ck_assert_str_eq(c.cands[0].provider, "good");
    ck_assert(has_run("good") && !has_run("good_too"));
    ck_assert_uint_eq(found(&f, "good")->state, BPI_FOUND_OPEN);
    ck_assert_uint_eq(bpi_loader_n_plugins(f.s.loader), 3);
    const struct bp_coll_ops *t = (const struct bp_coll_ops *)(const void *)c.op.vt;
    void *comm = NULL;
    ck_assert_int_eq(t->comm_create(c.op.self, NULL, &comm, &err), BP_OK);
    t->comm_destroy(c.op.self, comm);
    uint64_t used, peak;
    bpi_loader_memory(f.s.loader, 2, &used, &peak);
    ck_assert_uint_gt(used, 0);
    files_close(&f);
    ck_assert_ptr_null(strstr(log_text, "unfreed"));
    files_open(&f, "", true); /* a second session: the same code, another instance */
    choose(&f, &c);
    ck_assert_int_eq(c.rc, BP_OK);
    ck_assert(c.op.vt == &t->base);
    end(&f);
}
END_TEST

START_TEST(two_sessions_at_once)
{
    struct files f, g;
    struct choice c, d;
    begin(&f);
    install(f.folder, "good", NULL);
    files_open(&f, "", true);
    choose(&f, &c);
    g = f;
    files_open(&g, "", true);
    choose(&g, &d);
    ck_assert_int_eq(c.rc, BP_OK);
    ck_assert_int_eq(d.rc, BP_OK);
    ck_assert(c.op.vt == d.op.vt && c.op.self != d.op.self);
    files_close(&g);
    ck_assert_int_eq(((const int64_t *)c.op.self)[1], 7); /* the first one lives on */
    end(&f);
}
END_TEST

START_TEST(keys_are_checked_when_it_is_opened)
{
    static const struct {
        const char *ini, *word;
    } bad[] = {{"[plugin.good]\nnumbre = 3\n[slots]\ncoll = good\n", "did you mean \"number\"?"},
               {"[plugin.good]\nnumber = 300\n[slots]\ncoll = good\n", "from 1 to 100"}};
    for (size_t i = 0; i < BPI_ARRAY_LEN(bad); ++i) {
        struct files f;
        struct choice c;
        begin(&f);
        install(f.folder, "good", NULL);
        files_open(&f, bad[i].ini, true);
        ck_assert_int_eq(bpi_loader_check_config(f.s.loader, NULL), BP_OK);
        choose(&f, &c);
        ck_assert_int_eq(c.rc, BP_E_CONFIG);
        says(&c.err, bad[i].word);
        says(&c.err, "[plugin.good]");
        refused(&f, "good", BP_R_CONFIG, bad[i].word);
        end(&f);
    }
}
END_TEST

/* Each is an error when it is named, and a candidate with a reason when auto comes to it. */
START_TEST(broken_ones_are_refused_with_a_reason)
{
    static const struct {
        const char *name;
        uint32_t code;
        const char *word;
        bool runs; /* its constructors have to run before the fault shows */
    } bad[] = {
        {"old_note", BP_R_ABI, "ABI 0.99", false},
        {"no_entry", BP_R_LOAD, BP_PLUGIN_ENTRY, false},
        {"lying_abi", BP_R_ABI, "speaks ABI 0.99", true},
        {"lying_name", BP_R_ABI, "name is \"lying_name\" in the note and \"another\"", true},
        {"lying_version", BP_R_ABI, "version is \"1.2.3\" in the note and \"9.9.9\"", true},
        {"lying_offer", BP_R_ABI, "\"bp.moe\" in the descriptor", true},
        {"overstated", BP_R_ABI, "\"bp.moe\" in the note and \"none\"", true},
        {"null_query", BP_R_ABI, "does not work with an engine that speaks ABI 0.1", true},
        {"open_fails", BP_R_DEVICE, "the chip is on holiday", true},
        {"missing_symbol", BP_R_LOAD, "bp_test_symbol_that_nobody_has", false},
        {"missing_library", BP_R_LIBRARY, "libbp_test_helper.so", false},
        {"changes_locale", BP_R_SELFTEST, "locale", true},
    };
    static const char last[] = "[plugin.zz]\nfile = zz.so\n"; /* by name behind all of them */
    for (size_t i = 0; i < BPI_ARRAY_LEN(bad); ++i) {
        struct files f;
        struct choice c;
        char ini[160];
        begin(&f);
        install(f.folder, bad[i].name, NULL);
        install(f.folder, "good_too", "zz.so");
        snprintf(ini, sizeof ini, "[plugin.zz]\nfile = zz.so\n[slots]\ncoll = %s, zz\n",
                 bad[i].name);
        if (bad[i].code == BP_R_SELFTEST && setlocale(LC_ALL, "C.UTF-8") == NULL) {
            printf("SKIP: this system has no locale C.UTF-8\n");
            folder_remove(f.folder);
            continue;
        }
        (void)setlocale(LC_ALL, "C");
        files_open(&f, ini, true);
        choose(&f, &c);
        ck_assert_msg(c.rc == (bad[i].code == BP_R_ABI ? BP_E_ABI : BP_E_CONFIG), "%s: %d %s",
                      bad[i].name, c.rc, c.err.msg);
        says(&c.err, bad[i].word);
        says(&c.err, bad[i].name);
        says(&c.err, "slot coll");
        ck_assert_str_eq(log_text, ""); /* the error says it all */
        refused(&f, bad[i].name, bad[i].code, bad[i].word);
        ck_assert_int_eq(has_run(bad[i].name), bad[i].runs);
        ck_assert_str_eq(setlocale(LC_ALL, NULL), "C");
        const size_t n_plugins = bpi_loader_n_plugins(f.s.loader);
        choose(&f, &c); /* the same answer, from memory */
        ck_assert_int_ne(c.rc, BP_OK);
        ck_assert_uint_eq(bpi_loader_n_plugins(f.s.loader), n_plugins);
        files_close(&f);

        snprintf(ini, sizeof ini, "%s[engine]\nfallback = warn\n[slots]\ncoll = %s\n", last,
                 bad[i].name);
        for (int warn = 0; warn < 2; ++warn) {
            files_open(&f, warn != 0 ? ini : last, true);
            choose(&f, &c);
            ck_assert_msg(c.rc == BP_OK, "%s: %s", bad[i].name, c.err.msg);
            ck_assert_uint_eq(c.n, 2);
            ck_assert_str_eq(c.cands[0].provider, bad[i].name);
            ck_assert_uint_eq(c.cands[0].verdict.level, BP_V_NO);
            ck_assert_uint_eq(c.cands[0].reasons[0].code, bad[i].code);
            ck_assert(c.cands[0].refusal == &found(&f, bad[i].name)->why);
            ck_assert_str_eq(c.cands[1].provider, "zz");
            ck_assert_ptr_nonnull(strstr(log_text, "is passed over"));
            log_text[0] = '\0';
            choose(&f, &c); /* told once */
            ck_assert_ptr_null(strstr(log_text, "is passed over"));
            files_close(&f);
        }
        folder_remove(f.folder);
    }
}
END_TEST

START_TEST(saying_no_is_no_mistake)
{
    struct files f;
    struct choice c;
    begin(&f);
    install(f.folder, "good", NULL);
    install(f.folder, "says_no", NULL);
    files_open(&f, "[slots]\ncoll = says_no, good\n", true);
    choose(&f, &c);
    ck_assert_msg(c.rc == BP_OK, "%s", c.err.msg);
    ck_assert_uint_eq(c.n, 2);
    ck_assert_uint_eq(c.cands[0].reasons[0].code, BP_R_TOPOLOGY);
    ck_assert_ptr_null(c.cands[0].refusal);
    files_close(&f);
    files_open(&f, "[slots]\ncoll = says_no\n", true);
    choose(&f, &c);
    ck_assert_int_eq(c.rc, BP_E_CONFIG);
    says(&c.err, "TOPOLOGY (not today)");
    files_close(&f);
    files_open(&f, "[slots]\ncoll = godo\n", true);
    choose(&f, &c);
    ck_assert_int_eq(c.rc, BP_E_CONFIG);
    says(&c.err, "did you mean \"good\"?");
    end(&f);
}
END_TEST

START_TEST(registered_ones_come_last)
{
    struct files f;
    struct choice c;
    begin(&f);
    install(f.folder, "says_no", NULL);
    memset(fakes, 0, sizeof fakes);
    files_open(&f, "", true);
    files_close(&f);
    stand_open(&f.s, "");
    fakes[1].ops[0].iface = "bp.coll"; /* beta, built in */
    fakes[1].table.base.iface = "bp.coll";
    register_both(&f.s);
    char set[300];
    snprintf(set, sizeof set, "engine.plugin_path=%s", f.folder);
    ck_assert_int_eq(bpi_config_set(f.s.config, set, NULL), BP_OK);
    ck_assert_int_eq(bpi_loader_scan(f.s.loader, true, NULL), BP_OK);
    choose(&f, &c);
    ck_assert_uint_eq(c.n, 2);
    ck_assert_str_eq(c.cands[0].provider, "says_no");
    ck_assert_str_eq(c.cands[1].provider, "beta");
    end(&f);
}
END_TEST

START_TEST(signals_are_told)
{
    struct files f;
    struct choice c;
    begin(&f);
    install(f.folder, "changes_signals", NULL);
    files_open(&f, "", true);
    choose(&f, &c);
    ck_assert_int_eq(c.rc, BP_OK);
    ck_assert_ptr_nonnull(strstr(log_text, "plugin changes_signals changed what signal"));
    (void)signal(SIGUSR2, SIG_DFL);
    end(&f);
}
END_TEST

START_TEST(texts_of_the_linker_become_sentences)
{
    static const struct {
        const char *text;
        uint32_t code;
        const char *want;
    } cases[] = {
        {"libx.so.1: cannot open shared object file: No such file or directory", BP_R_LIBRARY,
         "the library libx.so.1, which"},
        {"/p/a.so: undefined symbol: frob_2, version V1", BP_R_LOAD, "the symbol frob_2 is"},
        {"/lib/libc.so.6: version `GLIBC_9.9' not found (required by /p/a.so)", BP_R_LIBRARY,
         "(GLIBC_9.9 is missing)"},
        {"/p/a.so: cannot allocate memory in static TLS block", BP_R_LOAD,
         "refuses it: /p/a.so: cannot allocate"},
        {"", BP_R_LOAD, "refuses it"},
        {"undefined symbol: ", BP_R_LOAD, "symbol"},
        {": cannot open shared object file", BP_R_LIBRARY, "library"},
    };
    for (size_t i = 0; i < BPI_ARRAY_LEN(cases); ++i) {
        struct bpi_refusal why;
        bpi_refuse_dlerror(&why, cases[i].text);
        ck_assert_uint_eq(why.code, cases[i].code);
        ck_assert_msg(strstr(why.text, cases[i].want) != NULL, "%s", why.text);
    }
}
END_TEST

START_TEST(built_for_another_device)
{
    static const uint32_t sm[] = {900, 1200u | (UINT32_C(1) << 31)};
    struct bp_plugin_desc desc = {.sm = sm, .n_sm = 2, .cuda_min_driver = 12000};
    struct bpi_refusal why;
    static const struct {
        int major, minor;
        uint32_t driver, code;
    } cases[] = {{9, 0, 12000, BP_R_NONE},   {9, 5, 13000, BP_R_NONE},  {8, 6, 13000, BP_R_ARCH},
                 {10, 0, 13000, BP_R_ARCH},  {12, 0, 13000, BP_R_NONE}, {13, 1, 13000, BP_R_NONE},
                 {9, 0, 11080, BP_R_DRIVER}, {0, 0, 11080, BP_R_NONE}};
    for (size_t i = 0; i < BPI_ARRAY_LEN(cases); ++i) {
        struct bp_device dev = {.kind = BP_DEV_CUDA,
                                .cc_major = cases[i].major,
                                .cc_minor = cases[i].minor,
                                .driver_version = cases[i].driver};
        bool fits = bpi_desc_fits_device(&desc, &dev, &why);
        ck_assert_int_eq(fits, cases[i].code == BP_R_NONE);
        ck_assert_uint_eq(why.code, cases[i].code);
        dev.kind = BP_DEV_HOST;
        ck_assert(bpi_desc_fits_device(&desc, &dev, &why));
    }
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {found_by_their_notes_without_running_code,
                                  folders_that_are_named_must_be_good,
                                  sections_name_files,
                                  one_name_one_file,
                                  a_file_cannot_take_a_built_in_name,
                                  opened_when_a_slot_wants_it,
                                  two_sessions_at_once,
                                  keys_are_checked_when_it_is_opened,
                                  broken_ones_are_refused_with_a_reason,
                                  saying_no_is_no_mistake,
                                  registered_ones_come_last,
                                  signals_are_told,
                                  texts_of_the_linker_become_sentences,
                                  built_for_another_device};
    return run_suite("loader_open", tests, BPI_ARRAY_LEN(tests));
}
