/* planes.cuh - weights as the products read them: strips of 16 rows, cut along the columns into steps of 256 (128 for the
 * 16-bit floats). A step is a run of 16-byte words, one per lane and load, that hold the codes in the order in which a
 * lane needs them for mma m16n8k16, and behind them the scales of the 16 rows. One step is one stream of whole sectors.
 *
 * Lane 4 g + j owns rows g and g + 8. Of each group of 32 columns it owns eight, e = 0..7: columns 8 j + e, or, where a
 * scale is for 16 columns (SUB16), 4 j + i for i < 4 and 16 + 4 j + i - 4 above, where i is e in the order of index_of().
 * The order of columns inside a product does not matter, as long as x is read in the same one. Codes become bf16 in
 * registers, two at a time: 0x4300 with the code in its low bits is 128 + code, exactly; a subtraction takes 128 and the
 * format's own bias away.
 *
 * A format: codes (C), scales (H); struct fmt at the end binds them. Values are those of core/block, exactly; only a zero
 * may have the other sign.
 * Not here: products (gemv.cuh), writing this layout (repack.cu). SPDX-License-Identifier: MIT */
#ifndef QUANT_GGUF_PLANES_CUH
#define QUANT_GGUF_PLANES_CUH

#include <stdint.h>

#ifndef PLANES_ON_HOST /* a test has brought functions of its own */
#include "planes_device.cuh"
#endif

namespace planes
{

constexpr int STRIP = 16; /* rows */
constexpr int LANES = 32;

__device__ __forceinline__ float low_half(uint32_t w)
{
    return __half2float(__ushort_as_half(static_cast<unsigned short>(w & 0xffffu)));
}
__device__ __forceinline__ float high_half(uint32_t w)
{
    return __half2float(__ushort_as_half(static_cast<unsigned short>(w >> 16)));
}
/* 2^15 + byte n of w, with BYTES in a register: f32 has bit 0 of an integer between 2^15 and 2^16 at bit 8. */
constexpr uint32_t BYTES = 0x47000000u;
__device__ __forceinline__ float byte_float(uint32_t w, int n, uint32_t k)
{
    return __uint_as_float(__byte_perm(w, k, 0x7404u | static_cast<uint32_t>(n) << 4));
}
/* Moves bit `from` to bit `to`, and its neighbours with it. */
template <int FROM, int TO> __device__ __forceinline__ uint32_t move_bit(uint32_t w)
{
    if constexpr (FROM >= TO)
        return w >> (FROM - TO);
    else
        return w << (TO - FROM);
}
template <class T> __device__ __forceinline__ T load_word(const void *p)
{
    return *static_cast<const T *>(p);
}
/* Byte n of w. */
__device__ __forceinline__ int byte_of(uint32_t w, int n)
{
    return static_cast<int>(__byte_perm(w, 0, 0x4440u | static_cast<uint32_t>(n)));
}
__device__ __forceinline__ uint32_t word(const uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

constexpr uint32_t MAGIC = 0x43004300u; /* 128, twice */

/* ---- codes: NQ words of 16 bytes a lane; pair<G, P>(q, r, part, magic): e = 2 P and 2 P + 1 of group G, row g + 8 r, as
 * bf16; magic is MAGIC in a register, with FLIP where the highest bit is not stored as it is.
 * Packing: pack(v, w, code): word w of the v-th load, from code(r, G, e), an unsigned number.
 * four<G>(q, r, out): the same eight codes, without the format's bias, times 2^SHIFT, as signed bytes in two words, in the
 * order of byte_of(). SPREAD: of a word of four, two come from each half of the eight. ---- */

constexpr int STEP = 256;

/* Where element e = 2 P (and 16 bits above it 2 P + 1) of a group has its bit in a plane of bits, four groups to a word, and
 * its two in a plane of pairs, two groups to a word. Pairs P and P + 2 are a byte apart, as they are in a plane of nibbles,
 * so that four bytes come out at once. */
__device__ constexpr int bit_at(int G, int P)
{
    return 8 * (P >> 1) + 2 * (G & 3) + (P & 1);
}
__device__ constexpr int pair_at(int G, int P)
{
    return 8 * (P >> 1) + 4 * (G & 1) + 2 * (P & 1);
}

/* Bits 0-3 in a plane of nibbles, bits 4.. in a plane of HIGH (0, 1, 2) bits each. The highest bit is stored as the sign of
 * code - BIAS has it: inverted. */
template <int HIGH, int BIAS> struct nibbles {
    static constexpr int K = STEP, NQ = 4 + HIGH, PARTS = 1;
    static constexpr int SHIFT = BIAS == 0 ? 0 : 4 - HIGH;
    static constexpr uint32_t FLIP = BIAS;
    static constexpr bool SPREAD = true;
    static_assert(BIAS == 0 || BIAS == 8 << HIGH, "the sign is the highest bit");
    __device__ static uint32_t highs(const uint4 (&q)[NQ], int r, int G)
    {
        return HIGH == 1 ? word(q[4], r * 2 + (G >> 2)) : word(q[4 + (G >> 2)], (G >> 1 & 1) * 2 + r);
    }
    /* Pairs P and P + 2. */
    template <int G, int P> __device__ static uint32_t word_of(const uint4 (&q)[NQ], int r)
    {
        constexpr uint32_t LOW = 0x0f0f0f0fu << SHIFT, TOP = (((1u << HIGH) - 1) << (SHIFT + 4)) * 0x01010101u;
        const uint32_t v = move_bit<4 * P, SHIFT>(word(q[G / 2], (G & 1) * 2 + r)) & LOW;
        if constexpr (HIGH == 0) return v;
        return (move_bit<HIGH == 1 ? bit_at(G, P) : pair_at(G, P), SHIFT + 4>(highs(q, r, G)) & TOP) | v;
    }
    template <int G> __device__ static void four(const uint4 (&q)[NQ], int r, uint32_t (&out)[2])
    {
        out[0] = word_of<G, 0>(q, r);
        out[1] = word_of<G, 1>(q, r);
    }
    template <int G, int P>
    __device__ static uint32_t pair(const uint4 (&q)[NQ], int r, int, uint32_t magic)
    {
        constexpr uint32_t TOP = (((1u << HIGH) - 1) << 4) * 0x00010001u;
        uint32_t v = and_xor<0x000f000fu>(word(q[G / 2], (G & 1) * 2 + r) >> (4 * P), magic);
        if constexpr (HIGH != 0)
            v = and_xor<TOP>(move_bit<HIGH == 1 ? bit_at(G, P) : pair_at(G, P), 4>(highs(q, r, G)), v);
        return sub_bf16x2(v, (0x4300u + BIAS) * 0x10001u);
    }
    template <class F> __device__ static uint32_t pack(int v, int w, F code)
    {
        uint32_t out = 0;
        const int n = v < 4 ? 8 : HIGH == 1 ? 32 : 16;
        for (int i = 0; i < n; ++i) {
            const int g = i >> 3, e = i & 7, up = 16 * (e & 1);
            if (v < 4)
                out |= ((code(w & 1, 2 * v + (w >> 1), e) ^ FLIP) & 15u) << (4 * (e >> 1) + up);
            else if (HIGH == 1)
                out |= ((code(w >> 1, 4 * (w & 1) + g, e) ^ FLIP) >> 4 & 1u) << (bit_at(g, e >> 1) + up);
            else
                out |= ((code(w & 1, 4 * (v - 4) + 2 * (w >> 1) + g, e) ^ FLIP) >> 4 & 3u)
                       << (pair_at(g, e >> 1) + up);
        }
        return out;
    }
};

/* Bits 0-1 in a plane of pairs, bit 2 in a plane of bits when HIGH is 1. The highest bit is stored as above. */
template <int HIGH, int BIAS> struct two_bits {
    static constexpr int K = STEP, NQ = 2 + HIGH, PARTS = 1;
    static constexpr int SHIFT = BIAS == 0 ? 0 : 6 - HIGH;
    static constexpr uint32_t FLIP = BIAS;
    static constexpr bool SPREAD = true;
    static_assert(BIAS == 0 || BIAS == 2 << HIGH, "the sign is the highest bit");
    template <int G, int P> __device__ static uint32_t word_of(const uint4 (&q)[NQ], int r)
    {
        constexpr uint32_t LOW = (3u << SHIFT) * 0x01010101u, TOP = (4u << SHIFT) * 0x01010101u;
        const uint32_t v = move_bit<pair_at(G, P), SHIFT>(word(q[G >> 2], (G >> 1 & 1) * 2 + r)) & LOW;
        if constexpr (HIGH == 0) return v;
        return (move_bit<bit_at(G, P), SHIFT + 2>(word(q[NQ - 1], r * 2 + (G >> 2))) & TOP) | v;
    }
    template <int G> __device__ static void four(const uint4 (&q)[NQ], int r, uint32_t (&out)[2])
    {
        out[0] = word_of<G, 0>(q, r);
        out[1] = word_of<G, 1>(q, r);
    }
    template <int G, int P>
    __device__ static uint32_t pair(const uint4 (&q)[NQ], int r, int, uint32_t magic)
    {
        uint32_t v = and_xor<0x00030003u>(
            move_bit<pair_at(G, P), 0>(word(q[G >> 2], (G >> 1 & 1) * 2 + r)), magic);
        if constexpr (HIGH == 1)
            v = and_xor<0x00040004u>(move_bit<bit_at(G, P), 2>(word(q[2], r * 2 + (G >> 2))), v);
        return sub_bf16x2(v, (0x4300u + BIAS) * 0x10001u);
    }
    template <class F> __device__ static uint32_t pack(int v, int w, F code)
    {
        uint32_t out = 0;
        const int n = v < 2 ? 16 : 32;
        for (int i = 0; i < n; ++i) {
            const int g = i >> 3, e = i & 7, up = 16 * (e & 1);
            if (v < 2)
                out |= ((code(w & 1, 4 * v + 2 * (w >> 1) + g, e) ^ FLIP) & 3u) << (pair_at(g, e >> 1) + up);
            else
                out |= ((code(w >> 1, 4 * (w & 1) + g, e) ^ FLIP) >> 2 & 1u) << (bit_at(g, e >> 1) + up);
        }
        return out;
    }
};

/* Signed bytes. Seven bits fit behind 0x4300, and bit 7 is the lowest bit of the exponent there: 128 or 256, which is
 * what has to be taken away. */
struct bytes {
    static constexpr int K = STEP, NQ = 8, PARTS = 1, SHIFT = 0;
    static constexpr uint32_t FLIP = 0;
    static constexpr bool SPREAD = false;
    template <int G> __device__ static void four(const uint4 (&q)[NQ], int r, uint32_t (&out)[2])
    {
        out[0] = word(q[G], r * 2);
        out[1] = word(q[G], r * 2 + 1);
    }
    template <int G, int P>
    __device__ static uint32_t pair(const uint4 (&q)[NQ], int r, int, uint32_t magic)
    {
        const uint32_t v = word(q[G], r * 2 + (P >> 1)) >> (8 * (P & 1));
        return sub_bf16x2(and_or<0x007f007fu>(v, magic), and_or<0x00800080u>(v, magic));
    }
    template <class F> __device__ static uint32_t pack(int v, int w, F code)
    {
        uint32_t out = 0;
        for (int i = 0; i < 4; ++i)
            out |= (code(w >> 1, v, 4 * (w & 1) + i) & 255u) << (8 * ((i >> 1) + 2 * (i & 1)));
        return out;
    }
};

/* Nibbles that choose one of sixteen levels, given as the high and the low bytes of their bf16. T: high[4], low[4]. */
template <class T> struct levels {
    static constexpr int K = STEP, NQ = 4, PARTS = 1, SHIFT = 0;
    static constexpr uint32_t FLIP = 0;
    static constexpr bool SPREAD = false;
    template <int G> __device__ static void four(const uint4 (&q)[NQ], int r, uint32_t (&out)[2])
    {
        constexpr uint32_t whole[4] = {T::whole[0], T::whole[1], T::whole[2], T::whole[3]};
        const uint32_t v = word(q[G / 2], (G & 1) * 2 + r), below8 = v & 0x77777777u;
        const uint32_t which = (v >> 1 & 0x44444444u) | 0x32103210u;
        out[0] = choose(whole, below8, which);
        out[1] = choose(whole, below8 >> 16, which >> 16);
    }
    __device__ static uint32_t choose(const uint32_t (&t)[4], uint32_t below8, uint32_t which)
    {
        return choose_bytes(choose_bytes(t[0], t[1], below8), choose_bytes(t[2], t[3], below8), which);
    }
    template <int G, int P>
    __device__ static uint32_t pair(const uint4 (&q)[NQ], int r, int, uint32_t)
    {
        /* Of the two pairs of a half word most is the same; the compiler keeps it. */
        const uint32_t v = word(q[G / 2], (G & 1) * 2 + r) >> (16 * (P >> 1));
        const uint32_t below8 = v & 0x7777u, which = (v >> 1 & 0x4444u) | 0x3210u;
        constexpr uint32_t low[4] = {T::low[0], T::low[1], T::low[2], T::low[3]};
        constexpr uint32_t high[4] = {T::high[0], T::high[1], T::high[2], T::high[3]};
        return __byte_perm(choose(low, below8, which), choose(high, below8, which),
                           (P & 1) == 0 ? 0x5140u : 0x7362u);
    }
    template <class F> __device__ static uint32_t pack(int v, int w, F code)
    {
        uint32_t out = 0;
        for (int e = 0; e < 8; ++e) out |= (code(w & 1, 2 * v + (w >> 1), e) & 15u) << (4 * e);
        return out;
    }
};
/* bf16 of an integer below 2^8. */
constexpr uint32_t bf16_of(int v)
{
    uint32_t exponent = 127, magnitude = static_cast<uint32_t>(v < 0 ? -v : v) << 7;
    if (v == 0) return 0;
    while (magnitude >= 0x100u) magnitude >>= 1, ++exponent;
    while (magnitude < 0x80u) magnitude <<= 1, --exponent;
    return (v < 0 ? 0x8000u : 0u) | exponent << 7 | (magnitude & 0x7fu);
}
/* magnitude above loses bits it shifts out: none, for integers of at most seven bits after the first. */
constexpr uint32_t level_bytes(const int (&levels)[16], int first, int shift)
{
    uint32_t out = 0;
    for (int i = 0; i < 4; ++i) out |= (bf16_of(levels[first + i]) >> shift & 255u) << (8 * i);
    return out;
}
constexpr uint32_t whole_bytes(const int (&levels)[16], int first)
{
    uint32_t out = 0;
    for (int i = 0; i < 4; ++i) out |= (static_cast<uint32_t>(levels[first + i]) & 255u) << (8 * i);
    return out;
}
struct iq4_levels {
    static constexpr int of[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                   1,    13,   25,  38,  53,  69,  89,  113};
    static constexpr uint32_t high[4] = {level_bytes(of, 0, 8), level_bytes(of, 4, 8),
                                         level_bytes(of, 8, 8), level_bytes(of, 12, 8)};
    static constexpr uint32_t low[4] = {level_bytes(of, 0, 0), level_bytes(of, 4, 0),
                                        level_bytes(of, 8, 0), level_bytes(of, 12, 0)};
    static constexpr uint32_t whole[4] = {whole_bytes(of, 0), whole_bytes(of, 4), whole_bytes(of, 8),
                                          whole_bytes(of, 12)};
};
struct e2m1_levels { /* doubled, as the scales are halved */
    static constexpr int of[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    static constexpr uint32_t high[4] = {level_bytes(of, 0, 8), level_bytes(of, 4, 8),
                                         level_bytes(of, 8, 8), level_bytes(of, 12, 8)};
    static constexpr uint32_t low[4] = {level_bytes(of, 0, 0), level_bytes(of, 4, 0),
                                        level_bytes(of, 8, 0), level_bytes(of, 12, 0)};
    static constexpr uint32_t whole[4] = {whole_bytes(of, 0), whole_bytes(of, 4), whole_bytes(of, 8),
                                          whole_bytes(of, 12)};
};

/* bf16 as it is; f16 as two bf16 that add up to it (eight bits and the three below). They stay rows, which cuBLAS can read
 * too: load 2 G + r is of row g + 8 r, and its word P is pair P. */
template <bool F16> struct shorts {
    static constexpr int K = 128, NQ = 8, PARTS = F16 ? 2 : 1;
    static constexpr uint32_t FLIP = 0;
    static constexpr bool SPREAD = false;
    template <int G, int P>
    __device__ static uint32_t pair(const uint4 (&q)[NQ], int r, int part, uint32_t)
    {
        const uint32_t v = word(q[2 * G + r], P);
        if constexpr (!F16) return v;
        const float a = low_half(v), b = high_half(v);
        const uint32_t x = __float_as_uint(a), y = __float_as_uint(b),
                       top = __byte_perm(x, y, 0x7632u);
        if (part == 0) return top;
        /* Infinity minus itself is NaN; the low part of what is not finite is nothing. */
        const float low_a = a - __uint_as_float(x & 0xffff0000u),
                    low_b = b - __uint_as_float(y & 0xffff0000u);
        return __byte_perm(__float_as_uint(low_a == low_a ? low_a : 0.0f),
                           __float_as_uint(low_b == low_b ? low_b : 0.0f), 0x7632u);
    }
};

/* ---- scales: HB bytes a row in a first array, HB2 in a second; load(), then open(BYTES in a register) once a step;
 * scale(G, s) and min(G, s) of row g + 8 r, s: which 16 of the group. What open() left stays when the next step is loaded.
 * WHOLE: scales are whole numbers times unit(), whole(G, s), and minima too: four of them, lows(j) from group 4 j on (or
 * from run 4 j of 16 on), times low_unit(). (Sums of a step stay below 2^31: sums of 32 bytes' products times these.)
 * Packing: store(block, first, second): block(n) is the n-th block of the row's step, NULL where the row has none. ---- */

struct no_scales {
    static constexpr int HB = 0, HB2 = 0;
    static constexpr bool SUB16 = false, MIN = false, NONE = true, WHOLE = false;
    __device__ void load(const unsigned char *, const unsigned char *)
    {
    }
    __device__ void open(uint32_t)
    {
    }
    __device__ float scale(int, int) const
    {
        return 1.0f;
    }
    __device__ float min(int, int) const
    {
        return 0.0f;
    }
    template <class B> __device__ static void store(B, unsigned char *, unsigned char *)
    {
    }
};

/* Eight halves, one for each 32 columns. With MIN eight more, of what is added. AT: where the block has them. */
template <bool WITH_MIN> struct halves {
    static constexpr int HB = 16, HB2 = WITH_MIN ? 16 : 0;
    static constexpr bool SUB16 = false, MIN = WITH_MIN, NONE = false, WHOLE = false;
    uint4 next_d, next_m, d, m;
    __device__ void load(const unsigned char *first, const unsigned char *second)
    {
        next_d = load_word<uint4>(first);
        if (WITH_MIN) next_m = load_word<uint4>(second);
    }
    __device__ void open(uint32_t)
    {
        d = next_d;
        if (WITH_MIN) m = next_m;
    }
    __device__ float scale(int G, int) const
    {
        return (G & 1) == 0 ? low_half(word(d, G >> 1)) : high_half(word(d, G >> 1));
    }
    __device__ float min(int G, int) const
    {
        return (G & 1) == 0 ? -low_half(word(m, G >> 1)) : -high_half(word(m, G >> 1));
    }
    template <class B>
    __device__ static void store(B block, unsigned char *first, unsigned char *second)
    {
        for (int n = 0; n < 8; ++n) {
            const unsigned char *b = block(n);
            reinterpret_cast<uint16_t *>(first)[n] =
                static_cast<uint16_t>(b != nullptr ? bp_block_u16(b) : 0);
            if (WITH_MIN)
                reinterpret_cast<uint16_t *>(second)[n] =
                    static_cast<uint16_t>(b != nullptr ? bp_block_u16(b + 2) : 0);
        }
    }
};

/* Q4_K, Q5_K: d, dmin and twelve bytes, as the block has them. */
struct k45 {
    static constexpr int HB = 16, HB2 = 0;
    static constexpr bool SUB16 = false, MIN = true, NONE = false, WHOLE = true;
    uint4 raw;
    uint32_t sc[2], mn[2], bytes;
    float d, dmin, down, down_min;
    __device__ void load(const unsigned char *first, const unsigned char *)
    {
        raw = load_word<uint4>(first);
    }
    __device__ void open(uint32_t k)
    {
        bytes = k;
        d = low_half(raw.x);
        dmin = high_half(raw.x);
        down = -32768.0f * d;
        down_min = -32768.0f * dmin;
        sc[0] = raw.y & 0x3f3f3f3fu;
        mn[0] = raw.z & 0x3f3f3f3fu;
        sc[1] = (raw.w & 0x0f0f0f0fu) | (raw.y >> 2 & 0x30303030u);
        mn[1] = (raw.w >> 4 & 0x0f0f0f0fu) | (raw.z >> 2 & 0x30303030u);
    }
    /* (2^15 + n) d - 2^15 d, rounded once, is n d: 17 bits. */
    __device__ float scale(int G, int) const
    {
        return fmaf(byte_float(sc[G >> 2], G & 3, bytes), d, down);
    }
    __device__ float min(int G, int) const
    {
        return fmaf(byte_float(mn[G >> 2], G & 3, bytes), dmin, down_min);
    }
    __device__ int whole(int G, int) const
    {
        return byte_of(sc[G >> 2], G & 3);
    }
    __device__ float unit() const
    {
        return d;
    }
    __device__ uint32_t lows(int j) const
    {
        return j == 0 ? mn[0] : j == 1 ? mn[1] : 0;
    }
    __device__ float low_unit() const
    {
        return dmin;
    }
    template <class B> __device__ static void store(B block, unsigned char *first, unsigned char *)
    {
        const unsigned char *b = block(0);
        for (int i = 0; i < 8; ++i)
            reinterpret_cast<uint16_t *>(first)[i] =
                static_cast<uint16_t>(b != nullptr ? bp_block_u16(b + 2 * i) : 0);
    }
};

/* Bytes that hold a signed scale + 128, and one half d: N = 16 for 16 columns each (Q3_K, Q6_K), 8 for 32 (IQ4_XS). */
template <int N, uint32_t TYPE> struct biased {
    static constexpr int HB = N, HB2 = 2;
    static constexpr bool SUB16 = N == 16, MIN = false, NONE = false, WHOLE = true;
    uint4 next, raw;
    uint32_t half, bytes;
    float d, down;
    __device__ void load(const unsigned char *first, const unsigned char *second)
    {
        if constexpr (N == 16) {
            next = load_word<uint4>(first);
        } else {
            const uint2 v = load_word<uint2>(first);
            next.x = v.x;
            next.y = v.y;
        }
        half = load_word<uint16_t>(second);
    }
    __device__ void open(uint32_t k)
    {
        raw = next;
        bytes = k;
        d = low_half(half);
        down = -32896.0f * d; /* 2^15 + 128: with d 20 bits */
    }
    __device__ float scale(int G, int s) const
    {
        const int at = N == 16 ? 2 * G + s : G;
        return fmaf(byte_float(word(raw, at >> 2), at & 3, bytes), d, down);
    }
    __device__ int whole(int G, int s) const
    {
        const int at = N == 16 ? 2 * G + s : G;
        return signed_byte_of(word(raw, at >> 2) ^ 0x80808080u, at & 3);
    }
    __device__ float unit() const
    {
        return d;
    }
    __device__ float min(int, int) const
    {
        return 0.0f;
    }
    __device__ static int scale_of(const unsigned char *b, int n)
    {
        if (TYPE == BP_GGUF_Q3_K) return bp_block_q3_k_scale(b + 96, n);
        if (TYPE == BP_GGUF_Q6_K) return static_cast<signed char>(b[192 + n]);
        const int low = b[4 + (n >> 1)] >> (4 * (n & 1)) & 15;
        return (low | static_cast<int>(bp_block_u16(b + 2) >> (2 * n) & 3u) << 4) - 32;
    }
    template <class B>
    __device__ static void store(B block, unsigned char *first, unsigned char *second)
    {
        const unsigned char *b = block(0);
        constexpr int d_at = TYPE == BP_GGUF_Q3_K ? 108 : TYPE == BP_GGUF_Q6_K ? 208 : 0;
        for (int n = 0; n < N; ++n)
            first[n] = static_cast<unsigned char>(b != nullptr ? scale_of(b, n) + 128 : 128);
        *reinterpret_cast<uint16_t *>(second) =
            static_cast<uint16_t>(b != nullptr ? bp_block_u16(b + d_at) : 0);
    }
};

/* Q2_K: a nibble of scale and one of minimum for 16 columns, d and dmin. */
struct q2 {
    static constexpr int HB = 16, HB2 = 4;
    static constexpr bool SUB16 = true, MIN = true, NONE = false, WHOLE = true;
    uint4 next, raw;
    uint32_t halves, bytes;
    float d, dmin, down, down_min;
    __device__ void load(const unsigned char *first, const unsigned char *second)
    {
        next = load_word<uint4>(first);
        halves = load_word<uint32_t>(second);
    }
    __device__ void open(uint32_t k)
    {
        raw = next;
        bytes = k;
        d = low_half(halves);
        dmin = high_half(halves);
        down = -32768.0f * d;
        down_min = -32768.0f * dmin;
    }
    __device__ float scale(int G, int s) const
    {
        return fmaf(byte_float(word(raw, G >> 1) & 0x0f0f0f0fu, 2 * (G & 1) + s, bytes), d, down);
    }
    __device__ int whole(int G, int s) const
    {
        return byte_of(word(raw, G >> 1) & 0x0f0f0f0fu, 2 * (G & 1) + s);
    }
    __device__ float unit() const
    {
        return d;
    }
    __device__ uint32_t lows(int j) const
    {
        return word(raw, j) >> 4 & 0x0f0f0f0fu;
    }
    __device__ float low_unit() const
    {
        return dmin;
    }
    __device__ float min(int G, int s) const
    {
        return fmaf(byte_float(word(raw, G >> 1) >> 4 & 0x0f0f0f0fu, 2 * (G & 1) + s, bytes), dmin,
                    down_min);
    }
    template <class B>
    __device__ static void store(B block, unsigned char *first, unsigned char *second)
    {
        const unsigned char *b = block(0);
        for (int n = 0; n < 16; ++n) first[n] = b != nullptr ? b[n] : 0;
        *reinterpret_cast<uint32_t *>(second) = b != nullptr ? bp_block_u32(b + 80) : 0;
    }
};

/* MXFP4: eight exponents. NVFP4: sixteen numbers of eight bits. */
template <bool NV> struct small_floats {
    static constexpr int HB = NV ? 16 : 8, HB2 = 0;
    static constexpr bool SUB16 = NV, MIN = false, NONE = false, WHOLE = false;
    uint4 next, raw;
    __device__ void load(const unsigned char *first, const unsigned char *)
    {
        if constexpr (NV) {
            next = load_word<uint4>(first);
        } else {
            const uint2 v = load_word<uint2>(first);
            next.x = v.x;
            next.y = v.y;
        }
    }
    __device__ void open(uint32_t)
    {
        raw = next;
    }
    __device__ float scale(int G, int s) const
    {
        const int at = NV ? 2 * G + s : G;
        const unsigned char b =
            static_cast<unsigned char>(word(raw, at >> 2) >> (8 * (at & 3)) & 255u);
        return NV ? bp_block_scale_nvfp4(&b, 0) : bp_block_scale_mxfp4(&b, 0);
    }
    __device__ float min(int, int) const
    {
        return 0.0f;
    }
    template <class B> __device__ static void store(B block, unsigned char *first, unsigned char *)
    {
        for (int n = 0; n < HB; ++n) {
            const unsigned char *b = NV ? block(n >> 2) : block(n);
            first[n] = b != nullptr ? b[NV ? n & 3 : 0] : 0;
        }
    }
};

/* ---- formats ---- */

/* code(block, i): what the planes hold of element i, unsigned. */
template <uint32_t TYPE> struct fmt;
#define PLANES_FORMAT(NAME, CODES, EXPR)                                                           \
    template <> struct fmt<BP_GGUF_##NAME> : CODES {                                               \
        __device__ static uint32_t code(const unsigned char *b, int i)                             \
        {                                                                                          \
            (void)i;                                                                               \
            return static_cast<uint32_t>(EXPR);                                                    \
        }                                                                                          \
    };
template <class C, class H> struct made_of {
    using codes = C;
    using scales = H;
};
using is_bf16 = made_of<shorts<false>, no_scales>;
using is_f16 = made_of<shorts<true>, no_scales>;
using is_q8_0 = made_of<bytes, halves<false>>;
using is_q4_0 = made_of<nibbles<0, 8>, halves<false>>;
using is_q4_1 = made_of<nibbles<0, 0>, halves<true>>;
using is_q5_0 = made_of<nibbles<1, 16>, halves<false>>;
using is_q5_1 = made_of<nibbles<1, 0>, halves<true>>;
using is_iq4_nl = made_of<levels<iq4_levels>, halves<false>>;
using is_q2_k = made_of<two_bits<0, 0>, q2>;
using is_q3_k = made_of<two_bits<1, 4>, biased<16, BP_GGUF_Q3_K>>;
using is_q4_k = made_of<nibbles<0, 0>, k45>;
using is_q5_k = made_of<nibbles<1, 0>, k45>;
using is_q6_k = made_of<nibbles<2, 32>, biased<16, BP_GGUF_Q6_K>>;
using is_iq4_xs = made_of<levels<iq4_levels>, biased<8, BP_GGUF_IQ4_XS>>;
using is_mxfp4 = made_of<levels<e2m1_levels>, small_floats<false>>;
using is_nvfp4 = made_of<levels<e2m1_levels>, small_floats<true>>;
PLANES_FORMAT(BF16, is_bf16, bp_block_u16(b))
PLANES_FORMAT(F16, is_f16, bp_block_u16(b))
PLANES_FORMAT(Q8_0, is_q8_0, bp_block_code_q8_0(b, i))
PLANES_FORMAT(Q4_0, is_q4_0, bp_block_code_q4_0(b, i) + 8)
PLANES_FORMAT(Q4_1, is_q4_1, bp_block_code_q4_1(b, i))
PLANES_FORMAT(Q5_0, is_q5_0, bp_block_code_q5_0(b, i) + 16)
PLANES_FORMAT(Q5_1, is_q5_1, bp_block_code_q5_1(b, i))
PLANES_FORMAT(IQ4_NL, is_iq4_nl, bp_block_nibble32(b + 2, i))
PLANES_FORMAT(Q2_K, is_q2_k, bp_block_code_q2_k(b, i))
PLANES_FORMAT(Q3_K, is_q3_k, bp_block_code_q3_k(b, i) + 4)
PLANES_FORMAT(Q4_K, is_q4_k, bp_block_code_q4_k(b, i))
PLANES_FORMAT(Q5_K, is_q5_k, bp_block_code_q5_k(b, i))
PLANES_FORMAT(Q6_K, is_q6_k, bp_block_code_q6_k(b, i) + 32)
PLANES_FORMAT(IQ4_XS, is_iq4_xs, bp_block_nibble32(b + 8 + 16 * (i >> 5), i & 31))
PLANES_FORMAT(MXFP4, is_mxfp4, bp_block_nibble32(b + 1, i))
PLANES_FORMAT(NVFP4, is_nvfp4, b[4 + (i >> 4 << 3) + (i & 7)] >> (i >> 1 & 4) & 15)
#undef PLANES_FORMAT

/* ---- a step in registers ---- */

/* Column of element i, in their order, of group G within its step, for lane 4 g + j. */
template <bool SUB16> __device__ __forceinline__ int column_of(int G, int j, int i)
{
    return 32 * G + (SUB16 ? 16 * (i >> 2) + 4 * j + (i & 3) : 8 * j + i);
}

template <uint32_t TYPE> struct step {
    using C = typename fmt<TYPE>::codes;
    using H = typename fmt<TYPE>::scales;
    static constexpr int K = C::K, GROUPS = C::K / 32, NQ = C::NQ, PARTS = C::PARTS;
    static constexpr bool ROWS = TYPE == BP_GGUF_BF16 || TYPE == BP_GGUF_F16;
    /* A scale is for 16 columns, so the words that four() makes must not mix them. */
    static constexpr bool MIXED = C::SPREAD && H::SUB16;
    /* Which element, in the order of columns, code e is; which one byte b of word n of four() is. */
    __device__ static constexpr int index_of(int e)
    {
        return MIXED ? (e >> 1 & 1) * 4 + (e >> 2) * 2 + (e & 1) : e;
    }
    __device__ static constexpr int byte_of(int n, int b)
    {
        if (C::SPREAD) return index_of((b & 1) * 4 + 2 * n + (b >> 1));
        return TYPE == BP_GGUF_Q8_0 ? 4 * n + (b & 1) * 2 + (b >> 1) : 4 * n + b;
    }
    static constexpr int CODE_BYTES = NQ * LANES * 16;
    /* Of a strip's step, and from one step to the next. */
    static constexpr int BYTES = CODE_BYTES + STRIP * (H::HB + H::HB2),
                         AHEAD = ROWS ? K * 2 : BYTES;
    static_assert(BYTES % 16 == 0, "the next step is aligned again");
    uint4 q[NQ];
    H h[2];
    uint32_t magic, as_bytes;
    int64_t eight_rows; /* with ROWS: bytes from row g to row g + 8 */

    /* strip_bytes: from one strip to the next. */
    __device__ __forceinline__ void begin(int64_t strip_bytes)
    {
        magic = opaque(MAGIC ^ C::FLIP * 0x10001u);
        as_bytes = opaque(planes::BYTES);
        eight_rows = strip_bytes / 2;
    }
    /* This lane's place in the first step of a strip. */
    __device__ static __forceinline__ int64_t place(int64_t strip_bytes, int lane)
    {
        return ROWS ? (lane >> 2) * (strip_bytes / STRIP) + (lane & 3) * 16 : lane * 16;
    }

    /* Starts the copy of the step at p (this lane's place in it) to `room` in shared memory, in the order of planes. */
    __device__ __forceinline__ void copy(unsigned char *room, const unsigned char *p, int lane) const
    {
        constexpr int SCALES = (BYTES - CODE_BYTES) / 16;
        static_assert(SCALES <= LANES, "one word of scales for a lane");
#pragma unroll
        for (int v = 0; v < NQ; ++v) {
            const unsigned char *from = ROWS ? p + v / 2 * 64 + (v % 2 == 0 ? 0 : eight_rows) : p + v * LANES * 16;
            copy16(room + (v * LANES + lane) * 16, from);
        }
        if (SCALES > 0 && lane < SCALES) copy16(room + CODE_BYTES + lane * 16, p + CODE_BYTES);
    }
    /* From a step in the order of planes, in shared or global memory. */
    __device__ __forceinline__ void load(const unsigned char *room, int lane)
    {
#pragma unroll
        for (int v = 0; v < NQ; ++v) q[v] = load_word<uint4>(room + (v * LANES + lane) * 16);
        const int row = lane >> 2;
        const unsigned char *first = room + CODE_BYTES + row * H::HB;
        const unsigned char *second = room + CODE_BYTES + STRIP * H::HB + row * H::HB2;
        h[0].load(first, second);
        h[1].load(first + 8 * H::HB, second + 8 * H::HB2);
    }
    __device__ __forceinline__ void open()
    {
        h[0].open(as_bytes);
        h[1].open(as_bytes);
    }
    /* The A fragment of one mma: M = 0 for elements 0 to 3, 1 above. */
    template <int G, int M>
    __device__ __forceinline__ void fragment(uint32_t (&a)[4], int part) const
    {
        constexpr int P = MIXED ? M : 2 * M, NEXT = MIXED ? M + 2 : 2 * M + 1;
        a[0] = C::template pair<G, P>(q, 0, part, magic);
        a[1] = C::template pair<G, P>(q, 1, part, magic);
        a[2] = C::template pair<G, NEXT>(q, 0, part, magic);
        a[3] = C::template pair<G, NEXT>(q, 1, part, magic);
    }
};

} // namespace planes
#endif
