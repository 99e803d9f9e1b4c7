/* test_quant_planes.cpp - the layout that quant_gguf repacks weights to, walked on the host: what is packed from random
 * blocks is read back by the code that kernels read it with, and must be what block.cuh says, for every type, row, column
 * and lane. The instructions of the device are replaced by functions that do the same.
 * Not here: the products themselves, which need a device (backplane-check --gpu). SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

#include "backplane/cuda/block.cuh"

#define PLANES_ON_HOST
#define __device__
#define __forceinline__ inline

struct uint2 {
    uint32_t x, y;
};
struct uint4 {
    uint32_t x, y, z, w;
};
/* As CUDA documents it: bit 3 of a choice does not count, unlike that of the instruction. */
static inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t choice)
{
    const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
    uint32_t out = 0;
    for (int i = 0; i < 4; ++i) {
        const uint32_t n = choice >> (4 * i) & 7u;
        out |= static_cast<uint32_t>(bytes >> (8 * n) & 255u) << (8 * i);
    }
    return out;
}
static inline float __uint_as_float(uint32_t bits)
{
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}
static inline uint32_t __float_as_uint(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}
static inline uint32_t __ushort_as_half(unsigned short h)
{
    return h;
}
static inline float __half2float(uint32_t h)
{
    return bp_block_half_bits(h);
}

namespace planes
{

static void copy16(void *to, const void *from)
{
    memcpy(to, from, 16);
}
static int signed_byte_of(uint32_t w, int n)
{
    return static_cast<signed char>(w >> (8 * n) & 255u);
}
static uint32_t opaque(uint32_t v)
{
    return v;
}
template <uint32_t MASK> static uint32_t and_or(uint32_t w, uint32_t or_)
{
    return (w & MASK) | or_;
}
template <uint32_t MASK> static uint32_t and_xor(uint32_t w, uint32_t x)
{
    return (w & MASK) ^ x;
}
static uint32_t choose_bytes(uint32_t a, uint32_t b, uint32_t choice)
{
    if ((choice & 0x8888u) != 0) {
        printf("a byte is chosen by 0x%x\n", static_cast<unsigned>(choice & 0xffffu));
        exit(1);
    }
    return __byte_perm(a, b, choice & 0xffffu);
}
/* The formats rely on differences that need no rounding. */
static uint32_t sub_bf16x2(uint32_t a, uint32_t b)
{
    uint32_t out = 0;
    for (int i = 0; i < 2; ++i) {
        const float x = __uint_as_float((a >> (16 * i) & 0xffffu) << 16);
        const float y = __uint_as_float((b >> (16 * i) & 0xffffu) << 16);
        const uint32_t bits = __float_as_uint(x - y);
        if ((bits & 0xffffu) != 0) {
            printf("the difference of %a and %a is no bf16\n", static_cast<double>(x), static_cast<double>(y));
            exit(1);
        }
        out |= bits >> 16 << (16 * i);
    }
    return out;
}

} // namespace planes

#include "gemv_types.h"
#include "planes.cuh"

using planes::fmt;
using planes::step;

static uint64_t state = 20261201;
static unsigned char random_byte()
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<unsigned char>(state >> 56);
}

static long n_bad, n_seen;

/* The same codes as signed bytes: each byte of a word, times its scale, is the weight at the column it says it is of, and
 * where a scale is for 16 columns a word keeps to one of them. */
template <uint32_t TYPE, int G> static void check_bytes(const step<TYPE> &s, const std::vector<float> &want, int lane)
{
    using S = step<TYPE>;
    for (int r = 0; r < 2; ++r) {
        uint32_t words[2];
        S::C::template four<G>(s.q, r, words);
        for (int n = 0; n < 8; ++n) {
            const int at = S::byte_of(n >> 2, n & 3), sub = S::H::SUB16 ? n >> 2 : 0;
            const int code = static_cast<signed char>(words[n >> 2] >> (8 * (n & 3)) & 255u);
            float v = s.h[r].scale(G, sub) * (static_cast<float>(code) / static_cast<float>(1 << S::C::SHIFT));
            if (S::H::MIN) v = v - s.h[r].min(G, sub);
            if constexpr (S::H::WHOLE) {
                bool same = s.h[r].scale(G, sub) == s.h[r].unit() * static_cast<float>(s.h[r].whole(G, sub));
                if constexpr (S::H::MIN) {
                    const int at_low = S::H::SUB16 ? 2 * G + sub : G;
                    const uint32_t low = s.h[r].lows(at_low >> 2) >> (8 * (at_low & 3)) & 255u;
                    same = same && s.h[r].min(G, sub) == s.h[r].low_unit() * static_cast<float>(low);
                }
                if (!same && n_bad++ < 10)
                    printf("type %u row %d group %d: its scale is not the whole number times the unit\n",
                           static_cast<unsigned>(TYPE), (lane >> 2) + 8 * r, G);
            }
            const int row = (lane >> 2) + 8 * r, col = planes::column_of<S::H::SUB16>(G, lane & 3, at);
            const float exact = want[static_cast<size_t>(row * S::K + col)];
            ++n_seen;
            if ((!(v == exact) || (S::H::SUB16 && at >> 2 != sub)) && n_bad++ < 10)
                printf("type %u row %d column %d: %a as bytes, expected %a\n", static_cast<unsigned>(TYPE), row, col,
                       static_cast<double>(v), static_cast<double>(exact));
        }
    }
}

/* Everything that one lane holds of one group and the ones after it. */
template <uint32_t TYPE, int G = 0> static void check_groups(const step<TYPE> &s, const std::vector<float> &want, int lane)
{
    if constexpr (G < step<TYPE>::GROUPS) {
        using S = step<TYPE>;
        uint32_t a[S::PARTS][2][4];
        for (int p = 0; p < S::PARTS; ++p) {
            s.template fragment<G, 0>(a[p][0], p);
            s.template fragment<G, 1>(a[p][1], p);
        }
        for (int i = 0; i < 16; ++i) {
            const int r = i >> 3, e = i & 7;
            float v = 0.0f;
            for (int p = 0; p < S::PARTS; ++p) {
                const uint32_t w = a[p][e >> 2][r + 2 * (e >> 1 & 1)];
                v += __uint_as_float((e & 1) == 0 ? w << 16 : w & 0xffff0000u);
            }
            if (!S::H::NONE) v = s.h[r].scale(G, e >> 2) * v;
            if (S::H::MIN) v = v - s.h[r].min(G, e >> 2);
            const int row = (lane >> 2) + 8 * r, col = planes::column_of<S::H::SUB16>(G, lane & 3, e);
            const float exact = want[static_cast<size_t>(row * S::K + col)];
            ++n_seen;
            if (!(v == exact) && n_bad++ < 10)
                printf("type %u row %d column %d: %a, expected %a\n", static_cast<unsigned>(TYPE), row, col,
                       static_cast<double>(v), static_cast<double>(exact));
        }
        if constexpr (!S::ROWS) check_bytes<TYPE, G>(s, want, lane);
        check_groups<TYPE, G + 1>(s, want, lane);
    }
}

template <uint32_t TYPE> static void make_finite(unsigned char *block)
{
    using B = bp::block<TYPE>;
    for (bool good = false; !good;) {
        for (int i = 0; i < B::bytes; ++i) block[i] = random_byte();
        good = true;
        for (int i = 0; i < B::n; ++i) good = good && isfinite(B::at(block, i));
    }
}

/* n_blocks: blocks of a row that exist; the rest of the step is zeros. */
template <uint32_t TYPE> static void check_step(int n_blocks)
{
    using S = step<TYPE>;
    using B = bp::block<TYPE>;
    std::vector<unsigned char> raw(static_cast<size_t>(16 * n_blocks * B::bytes)), out(S::BYTES);
    std::vector<float> want(16 * S::K, 0.0f);
    for (int b = 0; b < 16 * n_blocks; ++b) make_finite<TYPE>(&raw[static_cast<size_t>(b * B::bytes)]);
    const auto row_of = [&](int row) { return raw.data() + static_cast<size_t>(row * n_blocks * B::bytes); };
    for (int row = 0; row < 16; ++row) {
        for (int c = 0; c < n_blocks * B::n; ++c) want[static_cast<size_t>(row * S::K + c)] = B::row_at(row_of(row), c);
    }
    for (int row = 0; row < 16 && S::ROWS; ++row)
        memcpy(out.data() + row * S::AHEAD, row_of(row), static_cast<size_t>(n_blocks * B::bytes));
    for (int i = 0; i < S::NQ * 32 * 4 && !S::ROWS; ++i) {
        const int w = i & 3, lane = i >> 2 & 31, v = i >> 7;
        const auto code = [&](int r, int G, int e) -> uint32_t {
            const int row = (lane >> 2) + 8 * r, col = planes::column_of<S::H::SUB16>(G, lane & 3, S::index_of(e));
            return col >= n_blocks * B::n ? 0 : fmt<TYPE>::code(row_of(row) + col / B::n * B::bytes, col % B::n);
        };
        if constexpr (!S::ROWS) {
            const uint32_t word = S::C::pack(v, w, code);
            memcpy(&out[static_cast<size_t>(4 * i)], &word, sizeof word);
        }
    }
    for (int row = 0; row < 16 && !S::H::NONE; ++row) {
        const auto block = [&](int n) -> const unsigned char * {
            return n < n_blocks ? row_of(row) + n * B::bytes : nullptr;
        };
        unsigned char *first = out.data() + S::CODE_BYTES;
        S::H::store(block, first + row * S::H::HB, first + 16 * S::H::HB + row * S::H::HB2);
    }
    /* Through the copy that a kernel makes into shared memory. */
    std::vector<unsigned char> copied(S::BYTES);
    for (int lane = 0; lane < 32; ++lane) {
        step<TYPE> s;
        s.begin(16 * S::AHEAD);
        s.copy(copied.data(), out.data() + S::place(16 * S::AHEAD, lane), lane);
    }
    for (int lane = 0; lane < 32; ++lane) {
        step<TYPE> s;
        s.begin(16 * S::AHEAD);
        s.load(copied.data(), lane);
        s.open();
        check_groups<TYPE>(s, want, lane);
    }
}

template <uint32_t TYPE> static void check_type(const char *name)
{
    using S = step<TYPE>;
    const long before = n_bad;
    const int whole = S::K / bp::block<TYPE>::n;
    for (int i = 0; i < 10; ++i) check_step<TYPE>(whole);
    for (int n = 1; n < whole; n += whole > 8 ? 37 : 1) check_step<TYPE>(n);
    printf("%-8s %4d bytes a step: %s\n", name, S::BYTES, n_bad == before ? "ok" : "FAILED");
}

int main()
{
#define CHECK(NAME) check_type<BP_GGUF_##NAME>(#NAME);
    QG_PLANES_MAP(CHECK)
    QG_ROWS_MAP(CHECK)
    printf("%ld values compared\n", n_seen);
    return n_bad == 0 && n_seen > 0 ? 0 : 1;
}
