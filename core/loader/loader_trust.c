/* loader_trust.c - can anybody but root and the user change what lies at this path?
 * A plugin is code that runs with all of the user's rights, so its file and every folder above it must be in trusted
 * hands. The path is walked by hand, because a link in the middle may lead through a folder that the final path does not
 * show: whoever may change the link, or that folder, chooses the code.
 *
 * The rule for each component, links included: it belongs to root or to the effective user. For folders and files also:
 * neither group nor others may write. A folder with the sticky bit, such as /tmp, may be writable and stand on the way,
 * because in it nobody can rename or remove what belongs to others, and the next component must belong to us anyway. It
 * may not be the folder that holds plugins: there anybody can add names, hard links to old files of ours among them.
 * (An access list shows its writers in the group bits, so it needs no look of its own.)
 *
 * Between this check and the opening of the file nothing can change by hands that are not trusted.
 * Not here: what is inside the file. Threads: pure. SPDX-License-Identifier: MIT */
#include "loader/loader_priv.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_PATH = 4096, MAX_LINKS = 40 };

struct walk {
    bool want_folder;
    uint32_t n_links;
    size_t n_real;
    bool sticky; /* the folder reached so far is writable for others, but sticky */
    bool root_sticky;
    char real[MAX_PATH]; /* reached so far: "" is the root */
    char rest[MAX_PATH]; /* still to go */
    struct bpi_refusal *why;
};

/* The path as a shell takes it. */
static void put_quoted(struct bpi_buf *b, const char *s)
{
    const size_t plain = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                   "/._-+,:@%");
    if (s[plain] == '\0' && s[0] != '\0') {
        bpi_buf_puts(b, s);
        return;
    }
    bpi_buf_puts(b, "'");
    for (; *s != '\0'; ++s) {
        if (*s == '\'')
            bpi_buf_puts(b, "'\\''");
        else
            bpi_buf_append(b, s, 1);
    }
    bpi_buf_puts(b, "'");
}

static bool has_control(const char *s)
{
    for (; *s != '\0'; ++s) {
        if ((unsigned char)*s < ' ' || *s == 127) return true;
    }
    return false;
}

/* A command cut in the middle would be worse than none, and so would one with bytes that a terminal obeys. */
static void set_mend(struct bpi_refusal *why, const char *command, const char *path)
{
    struct bpi_buf b = {0};
    bpi_buf_printf(&b, "%s ", command);
    put_quoted(&b, path);
    if (!b.failed && b.len < sizeof why->mend && !has_control(b.data))
        memcpy(why->mend, b.data, b.len + 1);
    bpi_buf_free(&b);
}

/* what: "%s ..." with the component's name. */
static bool refuse_at(const struct walk *w, const char *what)
{
    char name[200];
    bpi_copy_end(name, sizeof name, w->n_real != 0 ? w->real : "/");
    bpi_refuse(w->why, BP_R_LOAD, "%s %s", name, what);
    return false;
}

static bool refuse_errno(const struct walk *w)
{
    char why[96], text[160];
    const int native = errno;
    if (strerror_r(native, why, sizeof why) != 0)
        (void)snprintf(why, sizeof why, "errno %d", native);
    (void)snprintf(text, sizeof text, "cannot be examined: %s", why);
    return refuse_at(w, text);
}

static bool check_owner(struct walk *w, const struct stat *st, bool is_link)
{
    char text[160], command[48];
    const unsigned owner = (unsigned)st->st_uid, user = (unsigned)geteuid();
    if (owner == 0 || owner == user) return true;
    (void)snprintf(text, sizeof text,
                   "%sbelongs to user %u, who could put any code there; it must belong to root or "
                   "to you (user %u)",
                   is_link ? "is a link that " : "", owner, user);
    refuse_at(w, text);
    (void)snprintf(command, sizeof command, "chown %s%u", is_link ? "-h " : "", user);
    set_mend(w->why, command, w->n_real != 0 ? w->real : "/");
    return false;
}

static bool check_mode(struct walk *w, const struct stat *st, bool allow_sticky)
{
    char text[160];
    w->sticky = false;
    if ((st->st_mode & (S_IWGRP | S_IWOTH)) == 0) return true;
    if (S_ISDIR(st->st_mode) && (st->st_mode & S_ISVTX) != 0) {
        w->sticky = true;
        if (allow_sticky) return true;
        return refuse_at(w, "may be written by others, so anybody could add a plugin; make a "
                            "folder of your own for plugins inside it");
    }
    (void)snprintf(
        text, sizeof text, "may be written by %s (mode %04o), who could put any code there",
        (st->st_mode & S_IWOTH) != 0 ? "everybody" : "its group", (unsigned)(st->st_mode & 07777));
    refuse_at(w, text);
    set_mend(w->why, "chmod go-w", w->n_real != 0 ? w->real : "/");
    return false;
}

/* Takes the next component off `rest` and adds it to `real`. False at the end. */
static bool next_component(struct walk *w, size_t *parent, bool *fits)
{
    size_t skip = strspn(w->rest, "/"), n = strcspn(w->rest + skip, "/");
    *fits = true;
    if (n == 0) return false;
    *parent = w->n_real;
    if (n == 2 && memcmp(w->rest + skip, "..", 2) == 0) {
        while (w->n_real > 0 && w->real[--w->n_real] != '/') continue;
    } else if (n != 1 || w->rest[skip] != '.') {
        if (w->n_real + 1 + n >= sizeof w->real) {
            *fits = false;
            return true;
        }
        w->real[w->n_real] = '/';
        memcpy(w->real + w->n_real + 1, w->rest + skip, n);
        w->n_real += 1 + n;
    }
    w->real[w->n_real] = '\0';
    memmove(w->rest, w->rest + skip + n, strlen(w->rest + skip + n) + 1);
    return true;
}

/* Puts a link's target in front of what is still to go; `real` goes back to the link's folder. */
static bool follow_link(struct walk *w, size_t parent)
{
    char target[MAX_PATH];
    if (++w->n_links > MAX_LINKS) return refuse_at(w, "is part of a circle of links");
    const ssize_t n = readlink(w->real, target, sizeof target);
    if (n < 0) return refuse_errno(w);
    const size_t n_rest = strlen(w->rest);
    if ((size_t)n + n_rest >= sizeof w->rest) return refuse_at(w, "is a link to a path too long");
    memmove(w->rest + n, w->rest, n_rest + 1);
    memcpy(w->rest, target, (size_t)n);
    w->n_real = n > 0 && target[0] == '/' ? 0 : parent;
    if (w->n_real == 0) w->sticky = w->root_sticky;
    w->real[w->n_real] = '\0';
    return true;
}

static bool is_last(const struct walk *w)
{
    return w->rest[strspn(w->rest, "/")] == '\0';
}

/* Checks what `real` names now. *parent: length of the folder's path, for links. */
static bool check_component(struct walk *w, size_t parent)
{
    struct stat st;
    if (lstat(w->n_real != 0 ? w->real : "/", &st) != 0) return refuse_errno(w);
    if (!check_owner(w, &st, S_ISLNK(st.st_mode))) return false;
    if (S_ISLNK(st.st_mode)) return follow_link(w, parent);
    if (!S_ISDIR(st.st_mode) && !is_last(w)) return refuse_at(w, "is no folder");
    if (!S_ISDIR(st.st_mode) && w->sticky) {
        w->n_real = parent; /* the folder is the guilty one */
        w->real[parent] = '\0';
        return refuse_at(w, "may be written by others, so anybody could add a plugin; make a "
                            "folder of your own for plugins inside it");
    }
    if (is_last(w) && w->want_folder != (S_ISDIR(st.st_mode) != 0))
        return refuse_at(w, w->want_folder ? "is no folder" : "is a folder; name a file inside it");
    if (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode))
        return refuse_at(w, "is a device, pipe or socket; a plugin is a regular file");
    return check_mode(w, &st, !is_last(w) || !w->want_folder);
}

static bool walk_path(struct walk *w)
{
    size_t parent = 0;
    bool fits;
    if (!check_component(w, 0)) return false; /* the root itself */
    w->root_sticky = w->sticky;
    while (next_component(w, &parent, &fits)) {
        if (!fits) return refuse_at(w, "goes on to a path that is too long");
        if (!check_component(w, parent)) return false;
    }
    return true;
}

bool bpi_trust_path(const char *path, bool want_folder, char *real, size_t cap,
                    struct bpi_refusal *why)
{
    struct walk w = {.want_folder = want_folder, .why = why};
    memset(why, 0, sizeof *why);
    if (path[0] != '/') {
        char here[MAX_PATH], shown[160];
        bpi_copy_end(shown, sizeof shown, path);
        bool known = getcwd(here, sizeof here) != NULL && strlen(here) + strlen(path) < 160;
        bpi_refuse(why, BP_R_LOAD, "\"%s\" is a relative path; write an absolute one%s%s%s%s",
                   shown, known ? ", such as " : "", known ? here : "", known ? "/" : "",
                   known ? path : "");
        return false;
    }
    if (strlen(path) >= sizeof w.rest) {
        bpi_refuse(why, BP_R_LOAD, "the path has %zu bytes, and at most %zu are accepted",
                   strlen(path), sizeof w.rest - 1);
        return false;
    }
    memcpy(w.rest, path, strlen(path) + 1);
    if (!walk_path(&w)) return false;
    if (w.n_real + 2 > cap) {
        bpi_refuse(why, BP_R_LOAD, "the real path has %zu bytes, and at most %zu are accepted",
                   w.n_real, cap - 2);
        return false;
    }
    memcpy(real, w.n_real != 0 ? w.real : "/", w.n_real != 0 ? w.n_real + 1 : 2);
    return true;
}
