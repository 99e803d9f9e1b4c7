/* io_fail.c - the wrappers that the linker's --wrap puts before the file operations. See io_fail.h.
 * Mutable file-scope state is what a wrapper needs; it is in test programs only. SPDX-License-Identifier: MIT */
#include "harness/io_fail.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int __real_open(const char *path, int flags, ...);
int __real_stat(const char *path, struct stat *st);
int __real_fstat(int fd, struct stat *st);
ssize_t __real_read(int fd, void *out, size_t n);
ssize_t __real_pread(int fd, void *out, size_t n, off_t at);
off_t __real_lseek(int fd, off_t at, int whence);
void *__real_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset);
int __real_close(int fd);
ssize_t __real_write(int fd, const void *data, size_t n);
int __real_fsync(int fd);
int __real_rename(const char *from, const char *to);
int __wrap_open(const char *path, int flags, ...);
int __wrap_stat(const char *path, struct stat *st);
int __wrap_fstat(int fd, struct stat *st);
ssize_t __wrap_read(int fd, void *out, size_t n);
ssize_t __wrap_pread(int fd, void *out, size_t n, off_t at);
off_t __wrap_lseek(int fd, off_t at, int whence);
void *__wrap_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset);
int __wrap_close(int fd);
ssize_t __wrap_write(int fd, const void *data, size_t n);
int __wrap_fsync(int fd);
int __wrap_rename(const char *from, const char *to);

static _Atomic uint64_t fail_at; /* 0 = not armed */
static _Atomic uint64_t counted, seen[IO_N_CALLS];
static atomic_bool has_failed;
static _Atomic int fail_how;
static enum io_call failed_call;
static char failed_path[4096];

void io_fail_arm(uint64_t nth, int how)
{
    for (int i = 0; i < IO_N_CALLS; ++i) atomic_store(&seen[i], 0);
    atomic_store(&counted, 0);
    atomic_store(&has_failed, false);
    atomic_store(&fail_how, how);
    failed_path[0] = '\0';
    atomic_store(&fail_at, nth);
}

bool io_fail_disarm(void)
{
    atomic_store(&fail_at, 0);
    return atomic_load(&has_failed);
}

enum io_call io_fail_call(void)
{
    return failed_call;
}

const char *io_fail_path(void)
{
    return failed_path;
}

uint64_t io_fail_seen(enum io_call call)
{
    return atomic_load(&seen[call]);
}

const char *io_fail_call_name(enum io_call call)
{
    static const char *const names[IO_N_CALLS] = {"open",  "stat",  "fstat", "read",
                                                  "pread", "lseek", "mmap",  "close",
                                                  "write", "fsync", "rename"};
    return names[call];
}

static bool can_fail(enum io_call call, int how, size_t n)
{
    switch (how) {
    case EINTR:
        return call == IO_OPEN || call == IO_READ || call == IO_PREAD || call == IO_WRITE ||
               call == IO_FSYNC || call == IO_CLOSE;
    case IO_SHORT:
        return (call == IO_READ || call == IO_PREAD || call == IO_WRITE) && n > 1;
    case IO_END:
        return (call == IO_READ || call == IO_PREAD) && n > 0;
    default:
        return true;
    }
}

/* Is it this one's turn? Keeps what it was, and sets errno where the fault is one. */
static bool must_fail(enum io_call call, const char *path, int fd, size_t n)
{
    uint64_t at = atomic_load(&fail_at);
    int how = atomic_load(&fail_how);
    if (at == 0) return false;
    atomic_fetch_add(&seen[call], 1);
    if (!can_fail(call, how, n) || atomic_fetch_add(&counted, 1) + 1 != at) return false;
    failed_call = call;
    if (path != NULL) {
        (void)snprintf(failed_path, sizeof failed_path, "%s", path);
    } else {
        char link[64];
        (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t len = readlink(link, failed_path, sizeof failed_path - 1);
        failed_path[len > 0 ? len : 0] = '\0';
    }
    atomic_store(&has_failed, true);
    if (how > 0) errno = how;
    return true;
}

int __wrap_open(const char *path, int flags, ...)
{
    mode_t mode = 0;
    if ((flags & O_CREAT) != 0) {
        va_list args;
        va_start(args, flags);
        mode = va_arg(args, mode_t);
        va_end(args);
    }
    return must_fail(IO_OPEN, path, -1, 0) ? -1 : __real_open(path, flags, mode);
}

int __wrap_stat(const char *path, struct stat *st)
{
    return must_fail(IO_STAT, path, -1, 0) ? -1 : __real_stat(path, st);
}

int __wrap_fstat(int fd, struct stat *st)
{
    return must_fail(IO_FSTAT, NULL, fd, 0) ? -1 : __real_fstat(fd, st);
}

/* Of a transfer whose turn it is: what is left of it. */
static ssize_t cut_transfer(void)
{
    int how = atomic_load(&fail_how);
    return how == IO_SHORT ? 1 : how == IO_END ? 0 : -1;
}

ssize_t __wrap_read(int fd, void *out, size_t n)
{
    if (!must_fail(IO_READ, NULL, fd, n)) return __real_read(fd, out, n);
    ssize_t cut = cut_transfer();
    return cut > 0 ? __real_read(fd, out, (size_t)cut) : cut;
}

ssize_t __wrap_pread(int fd, void *out, size_t n, off_t at)
{
    if (!must_fail(IO_PREAD, NULL, fd, n)) return __real_pread(fd, out, n, at);
    ssize_t cut = cut_transfer();
    return cut > 0 ? __real_pread(fd, out, (size_t)cut, at) : cut;
}

off_t __wrap_lseek(int fd, off_t at, int whence)
{
    return must_fail(IO_LSEEK, NULL, fd, 0) ? -1 : __real_lseek(fd, at, whence);
}

void *__wrap_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset)
{
    if (fd >= 0 && must_fail(IO_MMAP, NULL, fd, 0)) return MAP_FAILED;
    return __real_mmap(at, n, prot, flags, fd, offset);
}

int __wrap_close(int fd)
{
    bool fail = must_fail(IO_CLOSE, NULL, fd, 0);
    int native = errno;
    int rc = __real_close(fd);
    if (!fail) return rc;
    errno = native;
    return -1;
}

ssize_t __wrap_write(int fd, const void *data, size_t n)
{
    if (!must_fail(IO_WRITE, NULL, fd, n)) return __real_write(fd, data, n);
    ssize_t cut = cut_transfer();
    return cut > 0 ? __real_write(fd, data, (size_t)cut) : cut;
}

int __wrap_fsync(int fd)
{
    return must_fail(IO_FSYNC, NULL, fd, 0) ? -1 : __real_fsync(fd);
}

int __wrap_rename(const char *from, const char *to)
{
    return must_fail(IO_RENAME, to, -1, 0) ? -1 : __real_rename(from, to);
}
