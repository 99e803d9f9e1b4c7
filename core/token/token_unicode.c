/* token_unicode.c - look-up in the generated tables.
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

bool bpi_unicode_in_ranges(uint32_t cp, const uint32_t (*range)[2], size_t n)
{
    size_t low = 0, high = n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (cp > range[mid][1]) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low < n && cp >= range[low][0];
}

bool bpi_unicode_is_han(uint32_t cp)
{
    if (cp >= 0x4e00 && cp <= 0x9fff) return true; /* nearly all of them */
    return cp >= unicode_han[0][0] &&
           bpi_unicode_in_ranges(cp, unicode_han, BPI_ARRAY_LEN(unicode_han));
}

const char *bpi_unicode_version(void)
{
    return UNICODE_VERSION;
}
