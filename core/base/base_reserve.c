/* base_reserve.c - space on disk for a file before it is written. A file of its own, because the call needs GNU's
 * headers, and they change the meaning of strerror_r. Threads: pure. SPDX-License-Identifier: MIT */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* fallocate */
#endif
#include "base/base_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/statvfs.h>

/* Not posix_fallocate: where the file system cannot reserve, that one writes to every block of the file. */
int bpi_reserve(int fd, uint64_t n_bytes)
{
    struct statvfs fs;
    int rc;
    /* First a look: some file systems fill the disk before they say that it is too small. Those that tell nothing about
     * themselves have no blocks. */
    if (fstatvfs(fd, &fs) == 0 && fs.f_blocks > 0 && n_bytes / fs.f_frsize > fs.f_bavail)
        return ENOSPC;
    do rc = fallocate(fd, 0, 0, (off_t)n_bytes);
    while (rc != 0 && errno == EINTR);
    if (rc == 0) return 0;
    return errno == ENOSPC || errno == EFBIG || errno == EDQUOT ? errno : 0;
}
