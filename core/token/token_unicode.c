/* token_unicode.c - look-up in the generated two-stage table.
 * Not here: the data (unicode_tables.inc, written by scripts/gen_unicode.py).
 * Threads: pure functions. SPDX-License-Identifier: MIT */
#include "token/token_unicode.h"
#include "base/base.h"
#include "token/unicode_tables.inc"

/* In the order of CLASSES in the generator. */
static const uint16_t class_flags[16] = {0,         BPI_UC_LU, BPI_UC_LL,   BPI_UC_LT,
                                         BPI_UC_LM, BPI_UC_LO, BPI_UC_N,    BPI_UC_P,
                                         BPI_UC_S,  BPI_UC_M,  BPI_UC_SPACE};

uint32_t bpi_unicode_flags(uint32_t cp)
{
    if (cp >> 8 >= BPI_ARRAY_LEN(unicode_index)) return 0;
    uint32_t word = unicode_words[unicode_index[cp >> 8] * 32u + (cp >> 3 & 31u)];
    return class_flags[word >> 4 * (cp & 7u) & 15u];
}

const char *bpi_unicode_version(void)
{
    return UNICODE_VERSION;
}
