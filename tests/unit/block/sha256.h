/* sha256.h - SHA-256 for tests that hold tables to a known hash; one call, not for large data.
 * Source: FIPS 180-4. SPDX-License-Identifier: MIT */
#ifndef SHA256_H
#define SHA256_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The first 32 bits of the fraction of a root of a small prime: exact, because the root is checked in integers. */
static inline uint32_t sha256_fraction(unsigned prime, bool cube)
{
    /* floor(root * 2^32) modulo 2^32, corrected from a long double guess. */
    unsigned __int128 r = (unsigned __int128)((cube ? cbrtl(prime) : sqrtl(prime)) * 4294967296.0L),
                      lo, hi;
    for (lo = r - 2, hi = r + 2; lo < hi;) { /* exactly: largest r with r^k <= prime * 2^(32 k) */
        unsigned __int128 mid = (lo + hi + 1) / 2;
        bool fits = cube ? mid * mid * mid <= (unsigned __int128)prime << 96
                         : mid * mid <= (unsigned __int128)prime << 64;
        if (fits) {
            lo = mid;
        } else {
            hi = mid - 1;
        }
    }
    return (uint32_t)lo;
}

static inline uint32_t sha256_rotate(uint32_t v, int n)
{
    return v >> n | v << (32 - n);
}

static inline void sha256_block(uint32_t h[8], const uint32_t k[64], const unsigned char *p)
{
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; ++i)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 |
               (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (int i = 16; i < 64; ++i) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + w[i - 7] + (sha256_rotate(a, 7) ^ sha256_rotate(a, 18) ^ a >> 3) +
               (sha256_rotate(b, 17) ^ sha256_rotate(b, 19) ^ b >> 10);
    }
    memcpy(s, h, sizeof s);
    for (int i = 0; i < 64; ++i) {
        uint32_t big1 = sha256_rotate(s[4], 6) ^ sha256_rotate(s[4], 11) ^ sha256_rotate(s[4], 25);
        uint32_t big0 = sha256_rotate(s[0], 2) ^ sha256_rotate(s[0], 13) ^ sha256_rotate(s[0], 22);
        uint32_t t1 = s[7] + big1 + ((s[4] & s[5]) ^ (~s[4] & s[6])) + k[i] + w[i];
        uint32_t t2 = big0 + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += t1;
        s[0] = t1 + t2;
    }
    for (int i = 0; i < 8; ++i) h[i] += s[i];
}

/* First 16 hexadecimal digits of the hash of n bytes. */
static inline void sha256_prefix(const unsigned char *p, size_t n, char out[17])
{
    uint32_t h[8], k[64];
    int found = 0;
    for (unsigned prime = 2; found < 64; ++prime) {
        bool is_prime = true;
        for (unsigned d = 2; d * d <= prime; ++d) is_prime = is_prime && prime % d != 0;
        if (!is_prime) continue;
        if (found < 8) h[found] = sha256_fraction(prime, false);
        k[found++] = sha256_fraction(prime, true);
    }
    size_t padded = (n + 9 + 63) / 64 * 64;
    unsigned char *all = calloc(1, padded);
    if (all == NULL) abort();
    memcpy(all, p, n);
    all[n] = 0x80;
    for (int i = 0; i < 8; ++i)
        all[padded - 1 - (size_t)i] = (unsigned char)((uint64_t)n * 8 >> (8 * i));
    for (size_t at = 0; at < padded; at += 64) sha256_block(h, k, all + at);
    free(all);
    snprintf(out, 17, "%08x%08x", h[0], h[1]);
}

#endif
