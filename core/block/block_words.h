/* block_words.h - eight small values at a time: digits, bits and signs spread over the bytes of one 64-bit word.
 * Not here: formats. Little-endian, as all of core/block: byte i of a word is element i.
 * A compiler cannot make vector code from a table look-up per value; from bytes in memory it can.
 * Pure, inline. SPDX-License-Identifier: MIT */
#ifndef BPI_BLOCK_WORDS_H
#define BPI_BLOCK_WORDS_H

#include <stdint.h>
#include <string.h>

#define BYTES8(b) ((uint64_t)(b)*UINT64_C(0x0101010101010101))

/* Eight digits of two bits to eight bytes. */
static inline uint64_t spread_2bit(uint16_t digits)
{
    uint64_t w = digits;
    w = (w | w << 24) & UINT64_C(0x000000ff000000ff);
    w = (w | w << 12) & UINT64_C(0x000f000f000f000f);
    return (w | w << 6) & BYTES8(3);
}

/* Two rows of four digits of four bits to eight bytes, row a first. */
static inline uint64_t spread_4bit(uint16_t a, uint16_t b)
{
    uint64_t w = a | (uint64_t)b << 32;
    w = (w | w << 8) & UINT64_C(0x00ff00ff00ff00ff);
    return (w | w << 4) & BYTES8(15);
}

/* Bit i becomes byte i, 0 or 255: every byte gets all bits and keeps its own; adding 0x7f carries it to bit 7. */
static inline uint64_t spread_bits(unsigned char bits)
{
    uint64_t w = (BYTES8(bits) & UINT64_C(0x8040201008040201)) + BYTES8(0x7f);
    return (w >> 7 & BYTES8(1)) * 255;
}

/* Negates the bytes whose bit is set. No byte may be zero: the complement of another plus one carries nothing over. */
static inline uint64_t negate_bytes(uint64_t w, unsigned char bits)
{
    uint64_t mask = spread_bits(bits);
    return (w ^ mask) + (mask & BYTES8(1));
}

/* Bytes that hold value + 128 to two's complement. */
static inline uint64_t from_biased(uint64_t w)
{
    return w ^ BYTES8(128);
}

/* Seven stored sign bits; the eighth makes their number even. */
static inline unsigned char even_signs(unsigned low7)
{
    unsigned fold = low7 ^ low7 >> 4;
    return (unsigned char)(low7 | (0x6996u >> (fold & 15) & 1) << 7);
}

/* n: a constant, so that this becomes vector code. */
static inline void scale_bytes(float scale, const signed char *restrict q, int n,
                               float *restrict out)
{
    for (int j = 0; j < n; ++j) out[j] = scale * (float)q[j];
}

static inline void store_word(signed char *p, uint64_t w)
{
    memcpy(p, &w, sizeof w);
}

#endif
