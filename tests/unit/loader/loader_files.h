/* loader_files.h - a folder of its own for each test, with copies of the test plugins in it, and a loader over it.
 * SPDX-License-Identifier: MIT */
#ifndef LOADER_FILES_H
#define LOADER_FILES_H

#include <sys/stat.h>
#include <unistd.h>
#include "loader/loader_priv.h"
#include "loader_fixture.h"

/* A fresh folder that only the user may write to; its real path, because /tmp may be a link. */
static inline void folder_make(char *out, size_t cap)
{
    char path[] = "/tmp/bp-loader-XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(path));
    char *real = realpath(path, NULL);
    ck_assert(real != NULL && strlen(real) < cap);
    strcpy(out, real);
    free(real);
}

static inline void folder_remove(const char *path)
{
    char command[400];
    ck_assert_int_eq(strncmp(path, "/", 1), 0);
    ck_assert_ptr_nonnull(strstr(path, "bp-loader-"));
    snprintf(command, sizeof command, "rm -rf '%s'", path);
    ck_assert_int_eq(system(command), 0);
}

static inline void copy_file(const char *from, const char *to)
{
    char *data = NULL;
    size_t n = 0;
    struct bp_error err = BP_ERROR_INIT;
    ck_assert_msg(bpi_file_read(from, 1 << 26, &data, &n, &err) == BP_OK, "%s: %s", from, err.msg);
    FILE *f = fopen(to, "wb");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(data, 1, n, f), n);
    ck_assert_int_eq(fclose(f), 0);
    ck_assert_int_eq(chmod(to, 0644), 0);
    bpi_free(data);
}

#ifdef BP_TEST_PLUGINS
/* Copies backplane-NAME.so into a folder, under another file name when `as` is given. */
static inline void install(const char *folder, const char *name, const char *as)
{
    char from[512], to[512];
    snprintf(from, sizeof from, "%s/backplane-%s.so", BP_TEST_PLUGINS, name);
    if (as != NULL)
        snprintf(to, sizeof to, "%s/%s", folder, as);
    else
        snprintf(to, sizeof to, "%s/backplane-%s.so", folder, name);
    copy_file(from, to);
}
#endif

/* A loader with the two fakes (alpha and beta, which offer bp.quant) registered, and what the folder holds found. */
struct files {
    char folder[256];
    struct stand s;
    struct bp_error err;
    int32_t rc; /* of the scan */
};

/* ini: "%s" stands for the folder, once or not at all; engine.plugin_path is the folder. */
static inline void files_open(struct files *f, const char *ini, bool strict)
{
    char text[1024], path[300];
    const char *at = strstr(ini, "%s");
    if (at != NULL)
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - ini), ini, f->folder, at + 2);
    else
        snprintf(text, sizeof text, "%s", ini);
    stand_open(&f->s, text);
    snprintf(path, sizeof path, "engine.plugin_path=%s", f->folder);
    if (strstr(ini, "plugin_path") == NULL)
        ck_assert_int_eq(bpi_config_set(f->s.config, path, NULL), BP_OK);
    register_both(&f->s);
    f->err = (struct bp_error)BP_ERROR_INIT;
    f->rc = bpi_loader_scan(f->s.loader, strict, &f->err);
}

static inline void files_close(struct files *f)
{
    stand_close(&f->s);
}

static inline const struct bpi_found *found(const struct files *f, const char *name)
{
    const struct bpi_found *one = bpi_loader_found_named(f->s.loader, name);
    ck_assert_msg(one != NULL, "%s was not found", name);
    return one;
}

static inline void refused(const struct files *f, const char *name, uint32_t code, const char *word)
{
    const struct bpi_found *one = found(f, name);
    ck_assert_msg(one->state == BPI_FOUND_REFUSED, "%s is not refused", name);
    ck_assert_msg(one->why.code == code && strstr(one->why.text, word) != NULL, "%s: %s %s", name,
                  bpi_reason_name(one->why.code), one->why.text);
}

#endif
