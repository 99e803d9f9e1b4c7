/* io_fail.h - make the n-th file operation of a stretch of code fail, or do less than it was asked for.
 * How: a test named test_<topic>_noio.c is linked with this and with -Wl,--wrap for the calls below
 * (tests/CMakeLists.txt), so every such call in the program's own objects and static libraries passes here.
 * Not here: what libc calls inside itself (behind fopen, opendir), and mappings of no file.
 * Use:  for (n = 1;; ++n) { io_fail_arm(n, EIO); rc = work(); if (!io_fail_disarm()) break; check rc; }
 * Threads: counting is atomic; arm and disarm from one thread. SPDX-License-Identifier: MIT */
#ifndef BP_TEST_IO_FAIL_H
#define BP_TEST_IO_FAIL_H

#include <stdbool.h>
#include <stdint.h>

enum io_call {
    IO_OPEN, IO_STAT, IO_FSTAT, IO_READ, IO_PREAD, IO_LSEEK, IO_MMAP, IO_CLOSE, IO_WRITE, IO_FSYNC, IO_RENAME, IO_N_CALLS
};
/* In place of an errno. SHORT: a transfer moves one byte only; END: a read finds the end of the file. */
enum { IO_SHORT = -1, IO_END = -2 };

/* From now on the nth operation (1 = the next one) fails with errno `how`, or goes as IO_SHORT or IO_END say. Counted
 * are the operations that can fail so: all of them with EIO, ENOMEM and the like; open, read, pread, write, fsync and
 * close with EINTR; transfers of more than one byte with IO_SHORT; read and pread with IO_END. A close that fails has
 * closed all the same, as on Linux. */
void io_fail_arm(uint64_t nth, int how);
/* Back to normal. Did an operation fail since arm? */
bool io_fail_disarm(void);
/* The operation that failed, and the path it was on ("" when unknown). */
enum io_call io_fail_call(void);
const char *io_fail_path(void);
const char *io_fail_call_name(enum io_call call);
/* Operations of this kind seen since arm. */
uint64_t io_fail_seen(enum io_call call);

#endif
