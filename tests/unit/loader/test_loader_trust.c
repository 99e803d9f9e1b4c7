/* test_loader_trust.c - who may write to a path: every component, links included. Wrong owners need root and are a SKIP
 * without it. SPDX-License-Identifier: MIT */
#include "loader_files.h"

#include <errno.h>

static char folder[256], real[4096];
static struct bpi_refusal why;

static void under(char *out, size_t cap, const char *name)
{
    snprintf(out, cap, "%s/%s", folder, name);
}

static void make_folder(const char *name, mode_t mode)
{
    char path[400];
    under(path, sizeof path, name);
    ck_assert_int_eq(mkdir(path, 0755), 0);
    ck_assert_int_eq(chmod(path, mode), 0);
}

static void make_file(const char *name, mode_t mode)
{
    char path[400];
    under(path, sizeof path, name);
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(fclose(f), 0);
    ck_assert_int_eq(chmod(path, mode), 0);
}

static void make_link(const char *name, const char *target)
{
    char path[400];
    under(path, sizeof path, name);
    ck_assert_int_eq(symlink(target, path), 0);
}

static bool trust(const char *name, bool want_folder)
{
    char path[600];
    under(path, sizeof path, name);
    return bpi_trust_path(path, want_folder, real, sizeof real, &why);
}

static void good(const char *name, bool want_folder, const char *want)
{
    char path[400];
    ck_assert_msg(trust(name, want_folder), "%s: %s", name, why.text);
    ck_assert_uint_eq(why.code, BP_R_NONE);
    under(path, sizeof path, want);
    ck_assert_str_eq(real, path);
}

/* guilty: the component's name below the folder; mend: the command before its path, "" for none. */
static void bad(const char *name, bool want_folder, const char *guilty, const char *word,
                const char *mend)
{
    char path[400], command[500];
    ck_assert_msg(!trust(name, want_folder), "%s is trusted as %s", name, real);
    ck_assert_uint_eq(why.code, BP_R_LOAD);
    under(path, sizeof path, guilty);
    ck_assert_msg(strncmp(why.text, path, strlen(path)) == 0 && why.text[strlen(path)] == ' ',
                  "want %s, got: %s", path, why.text);
    ck_assert_msg(strstr(why.text, word) != NULL, "want %s, got: %s", word, why.text);
    snprintf(command, sizeof command, "%s %s", mend, path);
    ck_assert_str_eq(why.mend, mend[0] != '\0' ? command : "");
}

static void begin(void)
{
    folder_make(folder, sizeof folder);
}

static void end(void)
{
    folder_remove(folder);
}

START_TEST(plain_paths)
{
    begin();
    make_folder("a", 0755);
    make_folder("a/b", 0700);
    make_file("a/b/x.so", 0644);
    good("a/b/x.so", false, "a/b/x.so");
    good("a//b/./x.so", false, "a/b/x.so");
    good("a/b/../b/x.so", false, "a/b/x.so");
    good("a/b", true, "a/b");
    good("a/b/", true, "a/b");
    bad("a/b", false, "a/b", "is a folder", "");
    bad("a/b/x.so", true, "a/b/x.so", "is no folder", "");
    bad("a/b/x.so/y", false, "a/b/x.so", "is no folder", "");
    bad("a/none/x.so", false, "a/none", "cannot be examined", "");
    ck_assert(bpi_trust_path("/", true, real, sizeof real, &why));
    ck_assert_str_eq(real, "/");
    ck_assert(bpi_trust_path("/..//../usr/..", true, real, sizeof real, &why));
    ck_assert_str_eq(real, "/");
    end();
}
END_TEST

START_TEST(writable_by_others)
{
    begin();
    make_folder("a", 0755);
    make_folder("a/b", 0755);
    make_file("a/b/x.so", 0644);
    char path[400];
    static const struct {
        const char *name;
        mode_t plain;
    } parts[] = {{"a", 0755}, {"a/b", 0755}, {"a/b/x.so", 0644}};
    for (size_t i = 0; i < BPI_ARRAY_LEN(parts); ++i) {
        under(path, sizeof path, parts[i].name);
        ck_assert_int_eq(chmod(path, parts[i].plain | 0002), 0);
        bad("a/b/x.so", false, parts[i].name, "everybody", "chmod go-w");
        ck_assert_int_eq(chmod(path, parts[i].plain | 0020), 0);
        bad("a/b/x.so", false, parts[i].name, "its group", "chmod go-w");
        ck_assert_int_eq(system(why.mend), 0); /* the command does mend it */
        good("a/b/x.so", false, "a/b/x.so");
    }
    end();
}
END_TEST

START_TEST(sticky_folders)
{
    begin();
    make_folder("s", 01777);
    make_folder("s/own", 0755);
    make_file("s/own/x.so", 0644);
    make_file("s/x.so", 0644);
    make_link("s/link.so", "own/x.so");
    make_link("s/beside.so", "x.so");
    good("s/own/x.so", false, "s/own/x.so"); /* on the way */
    good("s/link.so", false, "s/own/x.so");
    bad("s/x.so", false, "s", "anybody could add", ""); /* but nothing lies in it */
    bad("s/beside.so", false, "s", "anybody could add", "");
    bad("s", true, "s", "anybody could add", "");
    end();
}
END_TEST

START_TEST(links)
{
    char path[400];
    begin();
    make_folder("good", 0755);
    make_file("good/x.so", 0644);
    make_folder("open", 0777);
    make_file("open/x.so", 0644);
    make_folder("links", 0755);
    under(path, sizeof path, "good/x.so");
    make_link("links/absolute.so", path);
    make_link("links/relative.so", "../good/x.so");
    make_link("links/twice.so", "relative.so");
    make_link("links/folder", "../good");
    make_link("links/to_open.so", "../open/x.so");
    make_link("links/through_open.so", "../open/back.so");
    make_link("open/back.so", "../good/x.so");
    make_link("links/circle", "circle");
    make_link("links/broken.so", "nothing.so");
    good("links/absolute.so", false, "good/x.so");
    good("links/relative.so", false, "good/x.so");
    good("links/twice.so", false, "good/x.so");
    good("links/folder/x.so", false, "good/x.so");
    good("links/folder", true, "good");
    bad("links/to_open.so", false, "open", "everybody", "chmod go-w");
    /* The real path is good, but whoever writes to the folder in the middle chooses where the link leads. */
    bad("links/through_open.so", false, "open", "everybody", "chmod go-w");
    bad("links/circle", false, "links/circle", "circle", "");
    bad("links/broken.so", false, "links/nothing.so", "cannot be examined", "");
    end();
}
END_TEST

START_TEST(paths_that_are_none)
{
    static const char *const relative[] = {"", "x.so", "./x.so", "../x.so", "a/b"};
    begin();
    for (size_t i = 0; i < BPI_ARRAY_LEN(relative); ++i) {
        ck_assert(!bpi_trust_path(relative[i], false, real, sizeof real, &why));
        ck_assert_ptr_nonnull(strstr(why.text, "relative path"));
    }
    ck_assert_int_eq(chdir(folder), 0);
    ck_assert(!bpi_trust_path("x.so", false, real, sizeof real, &why));
    ck_assert_ptr_nonnull(strstr(why.text, folder)); /* it says what to write */
    ck_assert_int_eq(chdir("/"), 0);
    char *lengthy = bpi_alloc(10000);
    ck_assert_ptr_nonnull(lengthy);
    memset(lengthy, '/', 10000);
    lengthy[9999] = '\0';
    ck_assert(!bpi_trust_path(lengthy, true, real, sizeof real, &why));
    ck_assert_ptr_nonnull(strstr(why.text, "9999 bytes"));
    bpi_free(lengthy);
    make_file("x.so", 0644);
    char small[8], path[400];
    under(path, sizeof path, "x.so");
    ck_assert(!bpi_trust_path(path, false, small, sizeof small, &why));
    under(path, sizeof path, "pipe.so");
    ck_assert_int_eq(mkfifo(path, 0644), 0);
    bad("pipe.so", false, "pipe.so", "device, pipe or socket", "");
    end();
}
END_TEST

START_TEST(commands_can_be_pasted)
{
    begin();
    make_folder("it's a $(trap) `x`;", 0777);
    ck_assert(!trust("it's a $(trap) `x`;", true));
    ck_assert_int_eq(system(why.mend), 0);
    ck_assert_msg(trust("it's a $(trap) `x`;", true), "%s", why.text);
    make_folder("two\nlines", 0777); /* such a name gets no command */
    ck_assert(!trust("two\nlines", true));
    ck_assert_str_eq(why.mend, "");
    end();
}
END_TEST

START_TEST(other_owners)
{
    char path[400], mend[48];
    if (geteuid() != 0) return; /* main says SKIP */
    begin();
    make_folder("a", 0755);
    make_file("a/x.so", 0644);
    make_link("a/link.so", "x.so");
    under(path, sizeof path, "a/x.so");
    ck_assert_int_eq(chown(path, 12345, 12345), 0);
    bad("a/x.so", false, "a/x.so", "belongs to user 12345", "chown 0");
    ck_assert_int_eq(system(why.mend), 0);
    good("a/link.so", false, "a/x.so");
    under(path, sizeof path, "a/link.so");
    ck_assert_int_eq(lchown(path, 12345, 12345), 0);
    bad("a/link.so", false, "a/link.so", "is a link that belongs to user 12345", "chown -h 0");
    ck_assert_int_eq(system(why.mend), 0);
    good("a/link.so", false, "a/x.so");
    under(path, sizeof path, "a");
    ck_assert_int_eq(chown(path, 12345, 12345), 0);
    bad("a/x.so", false, "a", "belongs to user 12345", "chown 0");
    /* For a user who is not root: root and the user are trusted, nobody else is. */
    ck_assert_int_eq(chmod(folder, 0755), 0);
    ck_assert_int_eq(seteuid(12345), 0);
    good("a/x.so", false, "a/x.so");
    ck_assert_int_eq(seteuid(0), 0);
    ck_assert_int_eq(seteuid(54321), 0);
    snprintf(mend, sizeof mend, "chown %u", (unsigned)geteuid());
    bad("a/x.so", false, "a", "to you (user 54321)", mend);
    ck_assert_int_eq(seteuid(0), 0);
    end();
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {plain_paths, writable_by_others,  sticky_folders,
                                  links,       paths_that_are_none, commands_can_be_pasted,
                                  other_owners};
    int rc = run_suite("loader_trust", tests, BPI_ARRAY_LEN(tests));
    if (rc == EXIT_SUCCESS && geteuid() != 0) {
        printf("SKIP: files of other owners need root; all else passed\n");
        return 77;
    }
    return rc;
}
