/* test_loader_open_nomem.c - every allocation of finding, opening and choosing a plugin fails once: BP_E_NOMEM, one
 * sentence, nothing leaked (the sanitizer build watches), and no plugin is held to be bad because of it.
 * SPDX-License-Identifier: MIT */
#include "backplane/slot_coll.h"
#include "harness/alloc_fail.h"
#include "loader_files.h"

static const struct bp_coll_problem problem = {
    .h = BP_HDR(struct bp_coll_problem, max_elems), .world = 1, .dtype = BP_DT_F32, .max_elems = 8};

static struct bpi_candidate cands[8];

static int32_t find_and_choose(const struct bpi_loader_env *env, const char **provider,
                               struct bp_error *err)
{
    struct bpi_loader *l = NULL;
    struct bp_op_ref op;
    size_t n, chosen = 0;
    int32_t rc = bpi_loader_create(env, &l, err);
    if (rc != BP_OK) return rc;
    rc = bpi_loader_scan(l, true, err);
    if (rc == BP_OK) rc = bpi_loader_check_config(l, err);
    if (rc == BP_OK)
        rc = bpi_loader_choose(l, "coll", "bp.coll", -1, NULL, &problem, cands, 8, &n, &chosen, &op,
                               err);
    if (rc == BP_OK) *provider = strcmp(cands[chosen].provider, "good") == 0 ? "good" : "another";
    bpi_loader_destroy(l);
    return rc;
}

static void walk(const char *folder, bool onward)
{
    char ini[400];
    struct bpi_config *config = NULL;
    snprintf(ini, sizeof ini,
             "[engine]\nplugin_path = %s\n[plugin.good]\nnumber = 3\n"
             "[plugin.named]\nfile = backplane-says_no.so\n[slots]\ncoll = named, auto\n",
             folder);
    ck_assert_int_eq(bpi_config_create(&config, NULL), BP_OK);
    ck_assert_int_eq(bpi_config_load_text(config, ini, strlen(ini), "t.ini", NULL), BP_OK);
    const struct bpi_loader_env env = {.config = config};
    uint64_t n = 1;
    for (;; ++n) {
        struct bp_error err = BP_ERROR_INIT;
        const char *provider = "none";
        alloc_fail_arm(n, onward);
        int32_t rc = find_and_choose(&env, &provider, &err);
        bool failed = alloc_fail_disarm();
        if (!failed) {
            ck_assert_msg(rc == BP_OK, "%s: %s", err.where, err.msg);
            ck_assert_str_eq(provider, "good");
            break;
        }
        /* Texts for a log that nobody reads may fail without harm; then the choice is the right one. */
        if (rc == BP_OK) {
            ck_assert_str_eq(provider, "good");
            continue;
        }
        ck_assert_msg(rc == BP_E_NOMEM, "allocation %llu: status %d, %s", (unsigned long long)n, rc,
                      err.msg);
        ck_assert_int_eq(err.code, BP_E_NOMEM);
        ck_assert_uint_gt(strlen(err.msg), 10);
    }
    ck_assert_uint_gt(n, 12);
    bpi_config_destroy(config);
}

START_TEST(each_allocation_fails_once)
{
    char folder[256];
    folder_make(folder, sizeof folder);
    install(folder, "good", NULL);
    install(folder, "says_no", NULL);
    install(folder, "lying_abi", "backplane-aa.so");
    install(folder, "old_note", NULL);
    walk(folder, false);
    walk(folder, true);
    folder_remove(folder);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {each_allocation_fails_once};
    return run_suite("loader_open_nomem", tests, BPI_ARRAY_LEN(tests));
}
