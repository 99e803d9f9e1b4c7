/* base_file.c - whole-file reads, read-only mappings, and the bytes of a mapping by read calls.
 * Not here: writing (base_output.c), formats, search paths. Threads: any. SPDX-License-Identifier: MIT */
#include "base/base_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define DOMAIN BPI_FILE_DOMAIN

int32_t bpi_fail_errno(struct bp_error *err, const char *path, const char *what)
{
    int native = errno;
    bool first = err != NULL && err->code == BP_OK;
    char why[128];
    if (strerror_r(native, why, sizeof why) != 0) snprintf(why, sizeof why, "errno %d", native);
    bpi_fail(err, BP_E_IO, DOMAIN, path, "%s: %s", what, why);
    if (first) err->native = native;
    return BP_E_IO;
}

int bpi_open_again(const char *path, int flags, unsigned mode)
{
    int fd;
    do fd = open(path, flags, mode);
    while (fd < 0 && errno == EINTR);
    return fd;
}

/* Opens a regular file and tells its size. O_NONBLOCK: opening a pipe must be refused, not waited for. */
static int32_t open_regular(const char *path, int *out_fd, struct stat *out, struct bp_error *err)
{
    struct stat st;
    int fd = bpi_open_again(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0) return bpi_fail_errno(err, path, "the file cannot be opened");
    int32_t rc;
    if (fstat(fd, &st) != 0) {
        rc = bpi_fail_errno(err, path, "the file cannot be examined");
        goto fail;
    }
    if (S_ISDIR(st.st_mode)) {
        rc = bpi_fail(err, BP_E_IO, DOMAIN, path, "this is a directory; name a file inside it");
        goto fail;
    }
    if (!S_ISREG(st.st_mode)) {
        rc = bpi_fail(err, BP_E_IO, DOMAIN, path,
                      "this is a device, pipe or socket; a regular file is needed");
        goto fail;
    }
    *out_fd = fd;
    *out = st;
    return BP_OK;
fail:
    close(fd);
    return rc;
}

int32_t bpi_file_read(const char *path, size_t max_bytes, char **out, size_t *out_len,
                      struct bp_error *err)
{
    int fd = -1;
    uint64_t n_bytes, with_nul;
    char *data = NULL;
    struct stat st;
    int32_t rc;
    BP_TRY(open_regular(path, &fd, &st, err));
    n_bytes = (uint64_t)st.st_size;
    if (n_bytes > max_bytes) {
        rc = bpi_fail(err, BP_E_LIMIT, DOMAIN, path,
                      "the file has %llu bytes, more than the %zu that are accepted here",
                      (unsigned long long)n_bytes, max_bytes);
        goto fail;
    }
    data = bpi_add_u64(n_bytes, 1, &with_nul) ? bpi_alloc(with_nul) : NULL;
    if (data == NULL) {
        rc = bpi_fail_nomem(err, DOMAIN, n_bytes);
        goto fail;
    }
    BP_TRY_GOTO(rc, bpi_input_read(&(struct bpi_input){path, fd}, 0, data, n_bytes, err), fail);
    close(fd);
    data[n_bytes] = '\0';
    *out = data;
    *out_len = n_bytes;
    return BP_OK;
fail:
    bpi_free(data);
    close(fd);
    return rc;
}

int32_t bpi_map_open(const char *path, struct bpi_map *out, struct bp_error *err)
{
    int fd = -1;
    struct stat st;
    BP_TRY(open_regular(path, &fd, &st, err));
    uint64_t n_bytes = (uint64_t)st.st_size;
    if (n_bytes == 0) {
        close(fd);
        return bpi_fail(err, BP_E_FORMAT, DOMAIN, path,
                        "the file is empty; was its download or copy interrupted?");
    }
    void *data = mmap(NULL, n_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    int32_t rc =
        data == MAP_FAILED ? bpi_fail_errno(err, path, "the file cannot be mapped") : BP_OK;
    close(fd);
    if (rc != BP_OK) return rc;
    out->data = data;
    out->n_bytes = n_bytes;
    out->device = (uint64_t)st.st_dev;
    out->inode = (uint64_t)st.st_ino;
    return BP_OK;
}

void bpi_map_close(struct bpi_map *m)
{
    if (m->data != NULL) munmap((void *)(uintptr_t)m->data, m->n_bytes);
    *m = (struct bpi_map){0};
}

void bpi_map_expect(const struct bpi_map *m, uint32_t use)
{
    if (m->data == NULL) return;
    (void)madvise((void *)(uintptr_t)m->data, m->n_bytes,
                  use == BPI_MAP_SCATTERED ? MADV_RANDOM : MADV_NORMAL);
}

void bpi_map_want(const struct bpi_map *m, uint64_t at, uint64_t n)
{
    if (m->data == NULL || at >= m->n_bytes || n == 0) return;
    if (n > m->n_bytes - at) n = m->n_bytes - at;
    long page = sysconf(_SC_PAGESIZE);
    if (page <= 0) return;
    uint64_t into = at % (uint64_t)page;
    (void)madvise((void *)(uintptr_t)(m->data + at - into), n + into, MADV_WILLNEED);
}

void bpi_map_drop(const struct bpi_map *m, uint64_t at, uint64_t n)
{
    const long page = sysconf(_SC_PAGESIZE);
    if (m->data == NULL || page <= 0 || at >= m->n_bytes) return;
    if (n > m->n_bytes - at) n = m->n_bytes - at;
    const uint64_t size = (uint64_t)page, begin = (at + size - 1) / size * size,
                   end = (at + n) / size * size;
    if (begin < end)
        (void)madvise((void *)(uintptr_t)(m->data + begin), end - begin, MADV_DONTNEED);
}

int32_t bpi_map_check(const struct bpi_map *m, const char *path, struct bp_error *err)
{
    struct stat st;
    if (m->data == NULL || stat(path, &st) != 0) return BP_OK;
    if ((uint64_t)st.st_dev != m->device || (uint64_t)st.st_ino != m->inode) return BP_OK;
    if ((uint64_t)st.st_size >= m->n_bytes) return BP_OK;
    return bpi_fail(err, BP_E_IO, DOMAIN, path,
                    "the file had %llu bytes when it was opened and has %llu now; another program "
                    "has shortened it, so fetch it again",
                    (unsigned long long)m->n_bytes, (unsigned long long)st.st_size);
}

/* ---- the bytes of a mapping by read calls ---- */

int32_t bpi_input_open(const struct bpi_map *m, const char *path, struct bpi_input *out,
                       struct bp_error *err)
{
    int fd = -1;
    struct stat st;
    BP_TRY(open_regular(path, &fd, &st, err));
    if ((uint64_t)st.st_dev == m->device && (uint64_t)st.st_ino == m->inode &&
        (uint64_t)st.st_size == m->n_bytes) {
        *out = (struct bpi_input){path, fd};
        return BP_OK;
    }
    close(fd);
    return bpi_fail(err, BP_E_IO, DOMAIN, path,
                    "this is not the file that was opened before, with %llu bytes; it was replaced "
                    "or changed meanwhile, so start again",
                    (unsigned long long)m->n_bytes);
}

int32_t bpi_input_read(const struct bpi_input *in, uint64_t at, void *out, size_t n,
                       struct bp_error *err)
{
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(in->fd, (char *)out + done, n - done, (off_t)(at + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return bpi_fail_errno(err, in->path, "the file cannot be read");
        if (got == 0)
            return bpi_fail(err, BP_E_IO, DOMAIN, in->path,
                            "the file ended at byte %llu, %zu bytes early; another program has "
                            "shortened it meanwhile, so make it whole and start again",
                            (unsigned long long)(at + done), n - done);
        done += (size_t)got;
    }
    return BP_OK;
}

void bpi_input_close(struct bpi_input *in)
{
    if (in->fd >= 0) close(in->fd);
    in->fd = -1;
}
