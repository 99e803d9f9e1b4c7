/* output.c - may a file be written to? Asked before anything is computed.
 * A result is written beside its place and renamed, so it would replace whatever is there: a model, for one.
 * Not here: writing (dump.c, ab_html.c). SPDX-License-Identifier: MIT */
#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <backplane/tools.h>

static bool is_same(const char *path, const struct stat *out)
{
    struct stat in;
    return path != NULL && stat(path, &in) == 0 && in.st_dev == out->st_dev &&
           in.st_ino == out->st_ino;
}

/* A model of several files is all of them. */
static bool is_shard(const char *model, const struct stat *out)
{
    struct bp_file *f = NULL;
    struct bp_file_shard shard = {.h = BP_HDR(struct bp_file_shard, n_tensors)};
    bool found = false;
    if (model == NULL || bp_file_open(model, &f, NULL) != BP_OK) return false;
    for (uint32_t i = 0; !found && bp_file_shard(f, i, &shard) == BP_OK; ++i)
        found = is_same(shard.path, out);
    bp_file_close(f);
    return found;
}

/* The folder that a path lies in; free it. NULL: out of memory. */
static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = malloc(strlen(path) + 2);
    if (folder == NULL) return NULL;
    strcpy(folder, path);
    if (slash == NULL)
        strcpy(folder, ".");
    else
        folder[slash == path ? 1 : slash - path] = '\0';
    return folder;
}

static int32_t check_folder(struct cli *c, const char *path, const char *label)
{
    struct stat st;
    char *folder = folder_of(path);
    if (folder == NULL) return cli_fail(&c->err, BP_E_NOMEM, label, "out of memory");
    int32_t rc = BP_OK;
    if (stat(folder, &st) != 0 || !S_ISDIR(st.st_mode))
        rc = cli_fail(&c->err, BP_E_IO, label, "there is no folder '%.300s' to write into", folder);
    else if (access(folder, W_OK | X_OK) != 0)
        rc = cli_fail(&c->err, BP_E_IO, label, "the folder '%.300s' cannot be written to: %s",
                      folder, strerror(errno));
    free(folder);
    return rc;
}

/* Two outputs of one command, neither of which needs to exist yet. */
static bool is_same_place(const char *a, const char *b)
{
    char *folder_a = folder_of(a), *folder_b = folder_of(b);
    const char *name_a = strrchr(a, '/'), *name_b = strrchr(b, '/');
    struct stat st;
    bool same = folder_a != NULL && folder_b != NULL && stat(folder_b, &st) == 0 &&
                is_same(folder_a, &st) &&
                strcmp(name_a != NULL ? name_a + 1 : a, name_b != NULL ? name_b + 1 : b) == 0;
    free(folder_a);
    free(folder_b);
    return same;
}

int32_t cli_check_output(struct cli *c, const char *option, const char *other)
{
    char label[40];
    struct stat out;
    const char *path = cli_text(&c->line, option);
    snprintf(label, sizeof label, "--%s", option);
    if (path[0] == '\0') return cli_fail(&c->err, BP_E_ARG, label, "the name of the file is empty");
    if (other != NULL && is_same_place(path, cli_text(&c->line, other)))
        return cli_fail(&c->err, BP_E_ARG, label, "--%s names the same file", other);
    BP_TRY(check_folder(c, path, label));
    if (lstat(path, &out) != 0) return BP_OK;
    if (S_ISLNK(out.st_mode))
        return cli_fail(&c->err, BP_E_ARG, label,
                        "%.300s is a symbolic link, which would be replaced by a file; name the "
                        "file itself",
                        path);
    if (!S_ISREG(out.st_mode))
        return cli_fail(&c->err, BP_E_ARG, label, "%.300s is no ordinary file", path);
    bool taken = is_shard(cli_model_path(c), &out);
    const struct cli_option *o;
    for (size_t i = 0; !taken && (o = cli_option_at(c->line.cmd, i)) != NULL; ++i) {
        const char *value = c->line.value[i];
        if (o->kind != CLI_TEXT || value == NULL || strcmp(o->name, option) == 0) continue;
        taken = is_same(value, &out) || (strcmp(o->name, "model-b") == 0 && is_shard(value, &out));
    }
    if (!taken) return c->err.code;
    return cli_fail(&c->err, BP_E_ARG, label,
                    "%.300s is a file that is to be read; give the output a name of its own", path);
}
