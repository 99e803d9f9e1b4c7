/* base_priv.h - what the files of core/base share among themselves; no other room includes it.
 * SPDX-License-Identifier: MIT */
#ifndef BPI_BASE_PRIV_H
#define BPI_BASE_PRIV_H

#include <stdarg.h>
#include <stddef.h>
#include "base/base.h"

/* vsnprintf with the numbers of the C locale, whatever locale the process or thread has chosen. */
int bpi_vformat(char *out, size_t cap, const char *fmt, va_list args) BPI_PRINTF(3, 0);

/* Makes text fit for a terminal, in place: control characters and bytes that are no UTF-8 become '?', and a sequence
 * that was cut at the end goes. Names inside hostile files reach messages, and must not move the cursor. */
void bpi_text_make_plain(char *s);

/* ---- files (base_file.c, base_reserve.c) ---- */

#define BPI_FILE_DOMAIN "file"

/* For failures of system calls: "what: why". Takes errno before anything else can change it; returns BP_E_IO. */
int32_t bpi_fail_errno(struct bp_error *err, const char *path, const char *what);
/* open; on network and other slow file systems a signal can end it before it did anything: then it is made once more. */
int bpi_open_again(const char *path, int flags, unsigned mode);
/* Reserves the first n_bytes of an open file. 0, or the errno that says that there is no room: full disk, quota, limit.
 * A file system that cannot reserve is fine: writing will tell. */
int bpi_reserve(int fd, uint64_t n_bytes);

#endif
