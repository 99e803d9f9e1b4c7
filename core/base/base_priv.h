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

#endif
