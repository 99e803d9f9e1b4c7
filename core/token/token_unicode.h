/* token_unicode.h - what the pre-tokenizers ask about a code point: general category and White_Space as flags, and the
 * script Han.
 * Not here: UTF-8 (base), case mapping, normalisation. Tables: scripts/gen_unicode.py.
 * Threads: pure functions. SPDX-License-Identifier: MIT */
#ifndef BPI_TOKEN_UNICODE_H
#define BPI_TOKEN_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A code point has at most one of these. None: controls, formats, surrogates, private use, unassigned. */
enum bpi_unicode_flag {
    BPI_UC_LU = 1,
    BPI_UC_LL = 2,
    BPI_UC_LT = 4,
    BPI_UC_LM = 8,
    BPI_UC_LO = 16,
    BPI_UC_L = 31, /* any letter */
    BPI_UC_N = 32,
    BPI_UC_P = 64,
    BPI_UC_S = 128,
    BPI_UC_M = 256,
    BPI_UC_SPACE = 512 /* White_Space */
};

/* O(1). 0 above U+10FFFF. */
uint32_t bpi_unicode_flags(uint32_t cp);
/* Script=Han: ideographs, radicals, and the few marks and numerals that belong to no other script. */
bool bpi_unicode_is_han(uint32_t cp);
/* Whether one of the n ascending ranges [first, last] holds cp. O(log n). */
bool bpi_unicode_in_ranges(uint32_t cp, const uint32_t (*range)[2], size_t n);
/* "14.0.0" */
const char *bpi_unicode_version(void);

#endif
