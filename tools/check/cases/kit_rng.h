/* kit_rng.h - a small seeded generator (splitmix64 seeding xoshiro256**), the same numbers on every machine.
 * Source: Blackman and Vigna, "Scrambled linear pseudorandom number generators" (2021); splitmix64 by Steele et al.
 * Not for cryptography. SPDX-License-Identifier: MIT */
#ifndef KIT_RNG_H
#define KIT_RNG_H

#include <stdint.h>

struct kit_rng {
    uint64_t s[4];
};

static inline void kit_rng_seed(struct kit_rng *r, uint64_t seed)
{
    for (int i = 0; i < 4; ++i) {
        uint64_t z = (seed += UINT64_C(0x9e3779b97f4a7c15));
        z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
        r->s[i] = z ^ (z >> 31);
    }
}
static inline uint64_t kit_rng_u64(struct kit_rng *r)
{
    uint64_t *s = r->s;
    uint64_t m = s[1] * 5;
    uint64_t out = ((m << 7) | (m >> 57)) * 9;
    uint64_t t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = (s[3] << 45) | (s[3] >> 19);
    return out;
}
/* [0, 1), 53 bits. */
static inline double kit_rng_f64(struct kit_rng *r)
{
    return (double)(kit_rng_u64(r) >> 11) * 0x1p-53;
}
/* [0, n), n >= 1; bias below 2^-32 for n below 2^32. */
static inline uint64_t kit_rng_below(struct kit_rng *r, uint64_t n)
{
    return (uint64_t)(((unsigned __int128)kit_rng_u64(r) * n) >> 64);
}

#endif
