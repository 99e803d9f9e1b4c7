/* loader_scan.c - which plugins there are: sections that name a file, then the folders.
 * Reads notes only; no code of a plugin runs. What cannot be used is kept with its reason, so that a choice can say why
 * it was passed over.
 * Not here: opening (loader_open.c), choosing (loader_choose.c). Threads: as loader.h says.
 * SPDX-License-Identifier: MIT */
#include "loader/loader_priv.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/env.h"

enum { MAX_PATH = 4096, MAX_FOLDERS = 16, MAX_FILES = 512 };

static const char *const PREFIX = "backplane-", *const ENDING = ".so";

/* Where to look, in order. */
struct folders {
    char *path[MAX_FOLDERS];
    size_t n;
    bool named; /* by engine.plugin_path, so that each must be there */
};

/* ---- one file ---- */

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

static bool has_prefix(const char *path)
{
    return strncmp(base_name(path), PREFIX, strlen(PREFIX)) == 0;
}

/* "backplane-attn-flash.so" gives "attn_flash": what to call a file whose note cannot be read. */
static void name_of_file(const char *path, char *out, size_t cap)
{
    const char *s = base_name(path);
    if (has_prefix(path)) s += strlen(PREFIX);
    size_t n = strlen(s), at = 0;
    if (n > strlen(ENDING) && strcmp(s + n - strlen(ENDING), ENDING) == 0) n -= strlen(ENDING);
    for (size_t i = 0; i < n && at + 1 < cap; ++i) {
        char c = s[i] >= 'A' && s[i] <= 'Z' ? (char)(s[i] - 'A' + 'a') : s[i];
        out[at++] = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ? c : '_';
    }
    out[at] = '\0';
}

static int32_t read_file(const char *path, struct bpi_plugin_file *file, struct bpi_refusal *why,
                         struct bp_error *err)
{
    struct bpi_map map = {0};
    struct bp_error cause = BP_ERROR_INIT;
    memset(file, 0, sizeof *file);
    memset(why, 0, sizeof *why);
    int32_t rc = bpi_map_open(path, &map, &cause);
    if (rc == BP_E_NOMEM) return bpi_fail_nomem(err, "loader", 0);
    if (rc != BP_OK) {
        bpi_refuse(why, BP_R_LOAD, "%s", cause.msg);
        return BP_OK;
    }
    bpi_map_expect(&map, BPI_MAP_SCATTERED); /* a CUDA plugin is large, and a few pages are read */
    if (bpi_plugin_file_parse(map.data, map.n_bytes, file, why))
        (void)bpi_plugin_file_check(file, why);
    bpi_map_close(&map);
    return BP_OK;
}

/* Makes the entry of one file. trusted: the place must be good. name: NULL for the note's, or the file's. */
static int32_t make_found(const char *path, bool trusted, const char *name, struct bpi_found **out,
                          struct bp_error *err)
{
    char real[MAX_PATH];
    struct bpi_plugin_file file;
    struct bpi_refusal place = {0}, why;
    const bool placed = !trusted || bpi_trust_path(path, false, real, sizeof real, &place);
    const char *at = trusted && placed ? real : path;
    BP_TRY(read_file(at, &file, &why, err));
    const size_t n = strlen(at) + 1;
    struct bpi_found *f = bpi_calloc(1, sizeof *f + n);
    if (f == NULL) return bpi_fail_nomem(err, "loader", sizeof *f + n);
    char *copy = (char *)(f + 1);
    memcpy(copy, at, n);
    f->path = copy;
    f->file = file;
    f->why = placed ? why : place;
    f->state = f->why.code == BP_R_NONE ? BPI_FOUND_READY : BPI_FOUND_REFUSED;
    if (name != NULL)
        (void)snprintf(f->name, sizeof f->name, "%s", name);
    else if ((file.flags & BPI_PF_NOTE) != 0 && bpi_plugin_name_ok(file.note.name))
        (void)snprintf(f->name, sizeof f->name, "%s", file.note.name);
    else
        name_of_file(path, f->name, sizeof f->name);
    *out = f;
    return BP_OK;
}

int32_t bpi_plugin_file_look(const char *path, struct bpi_found **out, struct bp_error *err)
{
    struct bpi_map map = {0};
    BP_TRY(bpi_map_open(path, &map,
                        err)); /* a missing file is the caller's mistake, not a bad plugin */
    bpi_map_close(&map);
    return make_found(path, false, NULL, out, err);
}

static int32_t keep(struct bpi_loader *l, struct bpi_found *f, uint32_t folder,
                    struct bp_error *err)
{
    struct bpi_found **grown = bpi_realloc(l->found, l->n_found + 1, sizeof(struct bpi_found *));
    if (grown == NULL) {
        bpi_free(f);
        return bpi_fail_nomem(err, "loader", (l->n_found + 1) * sizeof(struct bpi_found *));
    }
    l->found = grown;
    f->folder = folder;
    f->order = (uint32_t)l->n_found;
    l->found[l->n_found++] = f;
    return BP_OK;
}

static void refuse_found(struct bpi_found *f, const char *other, const char *text)
{
    char name[160];
    if (f->state == BPI_FOUND_REFUSED) return; /* the first reason says more */
    bpi_copy_end(name, sizeof name, other);
    f->state = BPI_FOUND_REFUSED;
    bpi_refuse(&f->why, BP_R_CONFIG, "%s %s", name, text);
}

/* ---- folders ---- */

static void free_folders(struct folders *f)
{
    for (size_t i = 0; i < f->n; ++i) bpi_free(f->path[i]);
    f->n = 0;
}

static int32_t add_folder(struct folders *f, const char *path, size_t n, struct bp_error *err)
{
    if (f->n == MAX_FOLDERS) {
        return bpi_fail(err, BP_E_LIMIT, "loader", "engine.plugin_path",
                        "more than %d folders are listed; list fewer", MAX_FOLDERS);
    }
    f->path[f->n] = bpi_strndup(path, n);
    if (f->path[f->n] == NULL) return bpi_fail_nomem(err, "loader", n + 1);
    f->n++;
    return BP_OK;
}

static int32_t default_folders(struct folders *f, struct bp_error *err)
{
    char path[MAX_PATH + 64];
    const char *data = bpi_env("XDG_DATA_HOME"), *home = bpi_env("HOME");
    int n;
    if (bpi_program_folder(path, MAX_PATH)) {
        (void)snprintf(path + strlen(path), 64, "/../lib/backplane/plugins");
        BP_TRY(add_folder(f, path, strlen(path), err));
    }
    if (data != NULL && data[0] == '/')
        n = snprintf(path, sizeof path, "%s/backplane/plugins", data);
    else if (home != NULL && home[0] == '/')
        n = snprintf(path, sizeof path, "%s/.local/share/backplane/plugins", home);
    else
        return BP_OK;
    return (size_t)n < sizeof path ? add_folder(f, path, (size_t)n, err) : BP_OK;
}

static int32_t list_folders(const struct bpi_config *config, struct folders *f,
                            struct bp_error *err)
{
    const char *list = config != NULL ? bpi_config_str(config, "engine", "plugin_path") : "";
    f->named = list[0] != '\0';
    if (!f->named) return default_folders(f, err);
    for (const char *s = list; *s != '\0';) {
        const size_t n = strcspn(s, ":");
        if (n != 0) BP_TRY(add_folder(f, s, n, err));
        s += n + (s[n] == ':');
    }
    return BP_OK;
}

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* Folders that the user names must be there, absolute and, if strict, in trusted hands. */
static int32_t check_folders(const struct folders *f, bool strict, struct bp_error *err)
{
    char real[MAX_PATH];
    struct bpi_refusal why;
    for (size_t i = 0; f->named && i < f->n; ++i) {
        const bool good = bpi_trust_path(f->path[i], true, real, sizeof real, &why);
        if (good || (!strict && f->path[i][0] == '/' && is_folder(f->path[i]))) continue;
        struct bpi_buf b = {0};
        bpi_refusal_format(&why, &b);
        int32_t rc = b.data == NULL ? bpi_fail_nomem(err, "loader", sizeof why)
                                    : bpi_fail(err, BP_E_CONFIG, "loader", "engine.plugin_path",
                                               "the folder cannot be used: %s", b.data);
        bpi_buf_free(&b);
        return rc;
    }
    return BP_OK;
}

static int by_text(const void *a, const void *b)
{
    const char *const *x = a, *const *y = b;
    return strcmp(*x, *y);
}

/* Names ending in .so, sorted: the order of a directory means nothing. names: room for MAX_FILES. */
static int32_t list_files(const char *folder, char **names, size_t *n, struct bp_error *err)
{
    const struct dirent *e;
    int32_t rc = BP_OK;
    *n = 0;
    DIR *dir = opendir(folder);
    if (dir == NULL && errno == ENOMEM) return bpi_fail_nomem(err, "loader", 0);
    if (dir == NULL) return BP_DECLINED;
    while (rc == BP_OK && (e = readdir(dir)) != NULL) {
        const size_t len = strlen(e->d_name), n_end = strlen(ENDING);
        if (len <= n_end || strcmp(e->d_name + len - n_end, ENDING) != 0) continue;
        if (*n == MAX_FILES) {
            rc = bpi_fail(err, BP_E_LIMIT, "loader", folder,
                          "the folder holds more than %d files ending in .so; keep plugins in a "
                          "folder of their own",
                          MAX_FILES);
            break;
        }
        names[*n] = bpi_strndup(e->d_name, len);
        if (names[*n] == NULL)
            rc = bpi_fail_nomem(err, "loader", len + 1);
        else
            ++*n;
    }
    (void)closedir(dir);
    if (rc == BP_OK) qsort(names, *n, sizeof(char *), by_text);
    return rc;
}

static bool is_known_file(const struct bpi_loader *l, const char *path)
{
    for (size_t i = 0; i < l->n_found; ++i) {
        if (strcmp(l->found[i]->path, path) == 0) return true;
    }
    return false;
}

static int32_t add_file(struct bpi_loader *l, const char *folder, uint32_t at, const char *name,
                        struct bp_error *err)
{
    char path[2 * MAX_PATH];
    struct bpi_found *f = NULL;
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    BP_TRY(make_found(path, true, NULL, &f, err));
    /* Libraries that plugins bring along lie beside them, without a note and without our prefix. */
    const bool ours = (f->file.flags & BPI_PF_NOTE) != 0 || has_prefix(path);
    if (!ours || is_known_file(l, f->path)) {
        bpi_free(f);
        return BP_OK;
    }
    if (bpi_loader_find(l, f->name) != NULL)
        refuse_found(f, f->name,
                     "is the name of a plugin that is built in; give this file another by "
                     "[plugin.OTHER] file = ...");
    return keep(l, f, at, err);
}

static int32_t scan_folder(struct bpi_loader *l, const struct folders *folders, size_t at,
                           struct bp_error *err)
{
    size_t n = 0;
    char **names = bpi_calloc(MAX_FILES, sizeof(char *));
    if (names == NULL) return bpi_fail_nomem(err, "loader", MAX_FILES * sizeof(char *));
    const char *folder = folders->path[at];
    int32_t rc = list_files(folder, names, &n, err);
    for (size_t i = 0; rc == BP_OK && i < n; ++i)
        rc = add_file(l, folder, (uint32_t)at + 1, names[i], err);
    for (size_t i = 0; i < n; ++i) bpi_free(names[i]);
    bpi_free(names);
    if (rc != BP_DECLINED) return rc;
    return !folders->named ? BP_OK /* a default folder that is not there, or not for us */
                           : bpi_fail(err, BP_E_CONFIG, "loader", "engine.plugin_path",
                                      "the folder %s cannot be read", folder);
}

/* ---- sections ---- */

/* A base name is looked for in the folders; anything with a slash is a path, which trust wants absolute. */
static int32_t section_path(const struct folders *folders, const char *file, char *path, size_t cap)
{
    struct stat st;
    if (strchr(file, '/') != NULL) {
        (void)snprintf(path, cap, "%s", file);
        return BP_OK;
    }
    for (size_t i = 0; i < folders->n; ++i) {
        (void)snprintf(path, cap, "%s/%s", folders->path[i], file);
        if (lstat(path, &st) == 0) return BP_OK;
    }
    (void)snprintf(path, cap, "%s", file);
    return BP_DECLINED;
}

static int32_t missing_file(const struct folders *folders, const char *section, const char *file,
                            struct bp_error *err)
{
    struct bpi_buf b = {0};
    for (size_t i = 0; i < folders->n; ++i)
        bpi_buf_printf(&b, "%s%s", i != 0 ? ", " : "", folders->path[i]);
    int32_t rc = bpi_fail(err, BP_E_CONFIG, "loader", section,
                          "no file \"%s\" is in the plugin folders (%s); \"backplane plugins\" "
                          "lists what is there",
                          file, b.data != NULL ? b.data : "none");
    bpi_buf_free(&b);
    return rc;
}

static int32_t add_section(struct bpi_loader *l, const struct folders *folders, const char *name,
                           const char *file, bool strict, struct bp_error *err)
{
    char path[2 * MAX_PATH], section[96];
    struct bpi_found *f = NULL;
    (void)snprintf(section, sizeof section, "[plugin.%s] file", name);
    if (file[0] == '\0' || strcmp(name, "auto") == 0 || bpi_loader_find(l, name) != NULL) {
        return bpi_fail(err, BP_E_CONFIG, "loader", section,
                        file[0] == '\0'
                            ? "the value is empty; write a file's name, or remove the key"
                        : strcmp(name, "auto") == 0
                            ? "\"auto\" stands for all plugins; give this one another name"
                            : "this plugin is built in and has no file; use another name");
    }
    if (section_path(folders, file, path, sizeof path) != BP_OK && strict)
        return missing_file(folders, section, file, err);
    BP_TRY(make_found(path, true, name, &f, err));
    f->named = 1;
    return keep(l, f, 0, err);
}

static int32_t scan_sections(struct bpi_loader *l, const struct folders *folders, bool strict,
                             struct bp_error *err)
{
    const char *name;
    for (size_t i = 0;
         l->env.config != NULL && (name = bpi_config_plugin_name_at(l->env.config, i)) != NULL;
         ++i) {
        const char *file = bpi_config_plugin(l->env.config, name, "file");
        if (file != NULL) BP_TRY(add_section(l, folders, name, file, strict, err));
    }
    return BP_OK;
}

/* ---- all ---- */

/* By name; of one name first what a section names, then by folder; in a folder what can be used first. */
static int by_name(const void *a, const void *b)
{
    const struct bpi_found *x = *(struct bpi_found *const *)a, *y = *(struct bpi_found *const *)b;
    const int name = strcmp(x->name, y->name);
    if (name != 0) return name;
    if (x->folder != y->folder) return x->folder < y->folder ? -1 : 1;
    if (x->state != y->state) return x->state > y->state ? -1 : 1;
    return x->order < y->order ? -1 : 1;
}

/* One name, one file: of several the first counts, unless nothing says which is first. */
static void settle_names(struct bpi_loader *l)
{
    for (size_t i = 1; i < l->n_found; ++i) {
        struct bpi_found *f = l->found[i];
        size_t first = i;
        while (first > 0 && strcmp(l->found[first - 1]->name, f->name) == 0) --first;
        if (first == i) continue;
        struct bpi_found *one = l->found[first];
        f->shadowed = 1;
        if (f->state == BPI_FOUND_READY && f->folder == one->folder) {
            static const char twice[] = "in the same folder has this name too; say which by "
                                        "[plugin.NAME] file = ...";
            refuse_found(f, one->path, twice);
            refuse_found(one, f->path, twice);
        } else {
            refuse_found(f, one->path,
                         "has the same name and comes first; to use this one too, name it in "
                         "[plugin.OTHER] file = ...");
        }
    }
}

int32_t bpi_loader_scan(struct bpi_loader *l, bool strict, struct bp_error *err)
{
    struct folders folders = {.n = 0};
    int32_t rc = list_folders(l->env.config, &folders, err);
    if (rc == BP_OK) rc = check_folders(&folders, strict, err);
    if (rc == BP_OK) rc = scan_sections(l, &folders, strict, err);
    for (size_t i = 0; rc == BP_OK && i < folders.n; ++i) rc = scan_folder(l, &folders, i, err);
    free_folders(&folders);
    if (rc != BP_OK) return rc;
    if (l->n_found != 0) qsort(l->found, l->n_found, sizeof(struct bpi_found *), by_name);
    settle_names(l);
    return BP_OK;
}

size_t bpi_loader_n_found(const struct bpi_loader *l)
{
    return l->n_found;
}

const struct bpi_found *bpi_loader_found(const struct bpi_loader *l, size_t i)
{
    return i < l->n_found ? l->found[i] : NULL;
}

const struct bpi_found *bpi_loader_found_named(const struct bpi_loader *l, const char *name)
{
    return bpi_found_named(l, name);
}

struct bpi_found *bpi_found_named(const struct bpi_loader *l, const char *name)
{
    for (size_t i = 0; i < l->n_found; ++i) {
        if (strcmp(l->found[i]->name, name) == 0) return l->found[i];
    }
    return NULL;
}

void bpi_loader_forget_found(struct bpi_loader *l)
{
    for (size_t i = 0; i < l->n_found; ++i) bpi_free(l->found[i]);
    bpi_free(l->found);
    l->found = NULL;
    l->n_found = 0;
}
