/* base_output.c - files that are there as a whole or not at all: they grow under a temporary name beside their own.
 * Not here: formats. Threads: an output belongs to one caller; two writers of one path at a time: one of them fails.
 * SPDX-License-Identifier: MIT */
#include "base/base_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WRITE_STEP = 1 << 30 }; /* systems write less than 2 GiB at once */

static int32_t create_temporary(struct bpi_output *o, struct bp_error *err)
{
    struct stat st;
    /* A rename would replace a device or a pipe by a plain file. */
    if (stat(o->path, &st) == 0 && !S_ISREG(st.st_mode))
        return bpi_fail(err, BP_E_IO, BPI_FILE_DOMAIN, o->path,
                        "%s stands at this path; name a regular file or a new one",
                        S_ISDIR(st.st_mode) ? "a directory" : "a device, pipe or socket");
    /* O_EXCL: never write through a link or into a file that somebody else is filling. */
    o->fd = bpi_open_again(o->tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (o->fd < 0 && errno == EEXIST)
        return bpi_fail(
            err, BP_E_IO, BPI_FILE_DOMAIN, o->tmp,
            "this temporary file is left from an interrupted write; remove it and try again");
    if (o->fd < 0) return bpi_fail_errno(err, o->path, "no file can be created in that folder");
    return BP_OK;
}

/* Reserving tells of a full disk before hours of work instead of after them. */
static int32_t reserve(const struct bpi_output *o, uint64_t n_bytes, struct bp_error *err)
{
    char what[96];
    int native = bpi_reserve(o->fd, n_bytes);
    if (native == 0) return BP_OK;
    snprintf(what, sizeof what, "there is no room for the %llu bytes of the file",
             (unsigned long long)n_bytes);
    errno = native;
    return bpi_fail_errno(err, o->path, what);
}

static void forget(struct bpi_output *o)
{
    bpi_free(o->path);
    bpi_free(o->tmp);
    *o = (struct bpi_output){.fd = -1};
}

int32_t bpi_output_begin(struct bpi_output *o, const char *path, uint64_t n_bytes,
                         struct bp_error *err)
{
    struct bpi_buf tmp = {0};
    int32_t rc;
    bpi_buf_printf(&tmp, "%s.tmp.%ld", path, (long)getpid());
    *o = (struct bpi_output){.path = bpi_strdup(path), .tmp = tmp.data, .fd = -1};
    if (tmp.failed || o->path == NULL) {
        rc = bpi_fail_nomem(err, BPI_FILE_DOMAIN, 2 * strlen(path) + 32);
        goto fail;
    }
    BP_TRY_GOTO(rc, create_temporary(o, err), fail);
    BP_TRY_GOTO(rc, reserve(o, n_bytes, err), fail);
    return BP_OK;
fail:
    bpi_output_drop(o);
    return rc;
}

int32_t bpi_output_write(const struct bpi_output *o, const void *data, uint64_t n,
                         struct bp_error *err)
{
    const char *p = data;
    while (n > 0) {
        ssize_t put = write(o->fd, p, n < WRITE_STEP ? n : WRITE_STEP);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return bpi_fail_errno(err, o->path, "the file cannot be written");
        p += put;
        n -= (uint64_t)put;
    }
    return BP_OK;
}

/* To the disk: otherwise a crash of the machine could leave the new name on an unfinished file. */
static int32_t bring_to_disk(const struct bpi_output *o, struct bp_error *err)
{
    int rc;
    do rc = fsync(o->fd);
    while (rc != 0 && errno == EINTR);
    return rc == 0 ? BP_OK : bpi_fail_errno(err, o->path, "the file cannot be brought to disk");
}

int32_t bpi_output_finish(struct bpi_output *o, struct bp_error *err)
{
    int32_t rc = bring_to_disk(o, err);
    /* A close that a signal interrupts has closed, and everything is on the disk by then. */
    if (close(o->fd) != 0 && errno != EINTR && rc == BP_OK)
        rc = bpi_fail_errno(err, o->path, "the file cannot be closed");
    if (rc == BP_OK && rename(o->tmp, o->path) != 0)
        rc = bpi_fail_errno(err, o->path, "the finished file cannot be given its name");
    if (rc != BP_OK) (void)unlink(o->tmp);
    forget(o);
    return rc;
}

void bpi_output_drop(struct bpi_output *o)
{
    if (o->tmp != NULL && o->fd >= 0) {
        (void)close(o->fd);
        (void)unlink(o->tmp);
    }
    forget(o);
}

int32_t bpi_file_write(const char *path, const void *data, size_t n, struct bp_error *err)
{
    struct bpi_output o = {0};
    int32_t rc;
    BP_TRY(bpi_output_begin(&o, path, n, err));
    BP_TRY_GOTO(rc, bpi_output_write(&o, data, n, err), fail);
    return bpi_output_finish(&o, err);
fail:
    bpi_output_drop(&o);
    return rc;
}
